//! A typed builder for [`Session`]: the settings of a run in memory.

use crate::Error;
use crate::config::{Auto, Config, LearningRate, OptimizerConfig};
use crate::plan::{OptimizerFactory, Plan};
use crate::run::session::Session;
use accounting::{Adjacency, SamplingMethod};
use curator::Records;
use distributed::Ranks;
use engine::Engine;
use optim::{Optimizer, Origin, Setting};
use protocol::{Params, Refused};

/// Builds a [`Session`]. Every setting has the default of its key in `RUN.toml`.
///
/// [`Session`] has an example.
#[must_use]
pub struct SessionBuilder<E> {
    config: Config,
    engine: E,
    params: Params,
    records: Records,
    optimizer: Option<Box<OptimizerFactory>>,
    origin: Origin,
}

impl<E: Engine> SessionBuilder<E> {
    pub(crate) fn new(engine: E, params: Params, records: Records) -> Self {
        Self {
            config: Config::default(),
            engine,
            params,
            records,
            optimizer: None,
            origin: Origin::New,
        }
    }

    /// Sets the budget ε. The noise is calibrated to it.
    pub fn epsilon(mut self, epsilon: f64) -> Self {
        self.config.privacy.epsilon = Auto::Value(epsilon);
        self
    }

    /// Sets the δ of the budget; 1/(10 N) by default.
    pub fn delta(mut self, delta: f64) -> Self {
        self.config.privacy.delta = Auto::Value(delta);
        self
    }

    /// Sets the noise multiplier instead of ε.
    pub fn noise_multiplier(mut self, sigma: f64) -> Self {
        self.config.privacy.sigma = Auto::Value(sigma);
        self
    }

    /// Sets which data sets are neighbours.
    pub fn adjacency(mut self, adjacency: Adjacency) -> Self {
        self.config.privacy.adjacency = adjacency;
        self
    }

    /// Sets how lots are drawn.
    pub fn sampling(mut self, method: SamplingMethod) -> Self {
        self.config.privacy.sampling = method;
        self
    }

    /// Sets the number of steps.
    pub fn steps(mut self, steps: u64) -> Self {
        self.config.training.steps = Auto::Value(steps);
        self
    }

    /// Sets the expected number of times that a record is used, instead of steps.
    pub fn epochs(mut self, epochs: f64) -> Self {
        self.config.training.epochs = Auto::Value(epochs);
        self
    }

    /// Sets the expected number of records in a lot.
    pub fn lot_size(mut self, records: u64) -> Self {
        self.config.training.lot_size = Auto::Value(records);
        self
    }

    /// Sets the micro-batch size. It changes speed and memory, not what is released.
    pub fn micro_batch(mut self, records: usize) -> Self {
        self.config.training.micro_batch = Auto::Value(records);
        self
    }

    /// Sets the optimizer and its hyperparameters.
    pub fn optimizer(mut self, optimizer: impl Into<OptimizerConfig>) -> Self {
        let learning_rate = self.config.optimizer.learning_rate;
        self.config.optimizer = optimizer.into();
        if self.config.optimizer.learning_rate == Auto::Auto {
            self.config.optimizer.learning_rate = learning_rate;
        }
        self
    }

    /// Declares the origin of the initial parameters, on which default learning rates depend; new
    /// by default.
    pub fn origin(mut self, origin: Origin) -> Self {
        self.origin = origin;
        self
    }

    /// Sets the learning rate.
    pub fn learning_rate(mut self, rate: f64) -> Self {
        self.config.optimizer.learning_rate = Auto::Value(LearningRate::Fixed(rate));
        self
    }

    /// Lets HyFreeDP find the learning rate, from losses that are released and charged.
    pub fn find_learning_rate(mut self) -> Self {
        self.config.optimizer.learning_rate = Auto::Value(LearningRate::HyFree);
        self
    }

    /// Sets a private optimizer that is not in the registry, such as one of another crate.
    ///
    /// It is built once for the plan, without parameters, to announce what it will ask, and once
    /// for the run.
    pub fn custom_optimizer(
        mut self,
        build: impl Fn(&Setting<'_>) -> Result<Optimizer, Refused> + 'static,
    ) -> Self {
        self.optimizer = Some(Box::new(build));
        self
    }

    /// Plans the run, probes the engine and validates the records.
    ///
    /// # Errors
    /// If a setting is invalid, no plan is within the budget, the probe refuses the engine, or a
    /// record does not fit the model.
    pub fn build(self) -> Result<Session<E>, Error> {
        let Self { config, engine, params, records, optimizer, origin } = self;
        let tensors = engine.trainable();
        let plan = match &optimizer {
            None => Plan::new(&config, records.places(), &tensors)?,
            Some(build) => Plan::with_optimizer(&config, records.places(), &tensors, build)?,
        };
        let setting = Setting { origin, ..plan.setting(&config, &tensors, &params) };
        let optimizer = match &optimizer {
            None => config.optimizer.build(&setting)?,
            Some(build) => build(&setting)?,
        };
        let mut session = Session::with_optimizer(
            &Ranks::alone(),
            &config,
            plan,
            optimizer,
            engine,
            params,
            records,
            None,
        )?;
        if let Auto::Value(records) = config.training.micro_batch {
            session.set_micro_batch(records);
        }
        Ok(session)
    }
}
