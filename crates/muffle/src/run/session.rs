//! A training run held in memory: plan, curator, optimizer and parameters. A library user steps it;
//! [`crate::run`] adds a folder on disk.

use crate::Error;
use crate::Plan;
use crate::config::Config;
use crate::run::builder::SessionBuilder;
use accounting::{Guarantee, Ledger};
use curator::{Curator, Door, NonPrivateOracle, PrivateState, Randomness, Records};
use distributed::{LotReducer, Ownership, Ranks, ShardedDescent};
use engine::{Engine, Isolation, Reducer};
use noise::IndependentGaussian;
use optim::{Optimizer, State};
use protocol::{Oracle, Params, Refused, Trainable};

/// A training run held in memory, advanced one step at a time.
///
/// ```
/// use cpu::Network;
/// use engine::Example;
/// use model::{Mlp, activation::Activation};
/// use muffle::{Session, curator::Records};
/// use optim::Method;
///
/// let mlp = Mlp { input: 2, hidden: vec![8], classes: 2, activation: Activation::Tanh };
/// let graph = mlp.graph();
/// let values = graph.init(0)?;
/// let (network, params) = Network::new(graph, values, |_| true)?;
/// let example = |i: u32| Example::features(vec![i as f32 / 500.0, 1.0], u32::from(i < 250));
/// let records = Records::new((0..500).map(example).collect());
/// let mut session = Session::builder(network, params, records)
///     .epsilon(2.0)
///     .optimizer(Method::DpAdam(Default::default()))
///     .steps(20)
///     .lot_size(50)
///     .build()?;
/// while session.step()?.is_some() {}
/// println!("ε = {} at δ = {}", session.guarantee()?.epsilon, session.guarantee()?.delta);
/// # assert!(session.guarantee()?.epsilon <= 2.0 && session.steps() == 20);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Session<E> {
    plan: Plan,
    optimizer: Optimizer,
    backend: Backend<E>,
    params: Params,
    /// Whether it resumes an interrupted run.
    resumed: bool,
}

/// The oracle that answers the optimizer's queries.
enum Backend<E> {
    Private(Curator<E>),
    NonPrivate(NonPrivateOracle<E>),
}

/// The state of an interrupted run.
pub struct ResumeState {
    /// All charges, including those of steps that were not completed.
    pub ledger: Ledger,
    /// The private state of the curator.
    pub private_state: Option<PrivateState>,
    /// The state of the optimizer; `None` before its first step.
    pub optimizer: Option<State>,
    /// The parameters.
    pub params: Params,
}

/// What a step did. All of it is public.
pub type Step = optim::Step;

impl<E> std::fmt::Debug for Session<E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("plan", &self.plan).finish_non_exhaustive()
    }
}

impl<E: Engine> Session<E> {
    /// Starts to build a session for an engine, its initial parameters and the records.
    pub fn builder(engine: E, params: Params, records: Records) -> SessionBuilder<E> {
        SessionBuilder::new(engine, params, records)
    }

    /// Plans a run, probes the engine and validates the records.
    ///
    /// The sections `model` and `data` of the configuration are not used, because model and records
    /// are given; only default learning rates are smaller if `model.source` is a pretrained model.
    ///
    /// # Errors
    /// If the configuration is invalid, no plan is within the budget, the probe refuses the engine,
    /// or a record does not fit the model.
    pub fn new(
        config: &Config,
        engine: E,
        params: Params,
        records: Records,
    ) -> Result<Self, Error> {
        Self::among(&Ranks::alone(), config, engine, params, records, None)
    }

    /// Resumes an interrupted run.
    ///
    /// # Errors
    /// As [`new`](Self::new), or if the ledger has charges that are not in the plan, or a state
    /// does not fit the optimizer or the curator.
    pub fn resume(
        config: &Config,
        engine: E,
        records: Records,
        mut from: ResumeState,
    ) -> Result<Self, Error> {
        let params = std::mem::take(&mut from.params);
        Self::among(&Ranks::alone(), config, engine, params, records, Some(from))
    }

    /// Starts or resumes a run on one of several processes, which all have the same configuration,
    /// model, records and state.
    ///
    /// # Errors
    /// As [`new`](Self::new), or if a process is lost.
    pub fn among(
        ranks: &Ranks,
        config: &Config,
        engine: E,
        params: Params,
        records: Records,
        from: Option<ResumeState>,
    ) -> Result<Self, Error> {
        let tensors = engine.trainable();
        let plan = Plan::new(config, records.places(), &tensors)?;
        let optimizer = plan.optimizer(config, &tensors, &params)?;
        Self::with_optimizer(ranks, config, plan, optimizer, engine, params, records, from)
    }

    /// Starts or resumes a run with an optimizer that was built for the plan.
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn with_optimizer(
        ranks: &Ranks,
        config: &Config,
        plan: Plan,
        mut optimizer: Optimizer,
        mut engine: E,
        params: Params,
        records: Records,
        from: Option<ResumeState>,
    ) -> Result<Self, Error> {
        let tensors = engine.trainable();
        // The probe tests norms in tangent spaces only where these exist, so it must see the factors
        // at which the first query is asked, not initial ones without full rank.
        let mut start = params.clone();
        optimizer.initialize(&mut start)?;
        match from {
            None => engine::probe(&mut engine, &start)?,
            // No check that every tensor gets a gradient: during a run any gradient may be zero.
            Some(_) => {
                engine::probe_isolation(&mut engine, &start)?;
                engine::probe_norms(&mut engine, &start)?;
            }
        }
        drop(start);
        let resumed = from.is_some();
        let mut reducer: Option<Box<dyn Reducer>> = None;
        if ranks.count() > 1 {
            let work = optimizer.work(&params);
            let ownership = Ownership::divide(&tensors, &work, ranks.count());
            optimizer = optimizer.wrap_descent(|descent| {
                Box::new(ShardedDescent::new(descent, ranks.clone(), ownership.clone()))
            });
            reducer = Some(Box::new(LotReducer::new(ranks.clone(), ownership)?));
        }
        let randomness = match config.privacy.seed {
            Some(seed) => Randomness::fixed(seed),
            None => distributed::shared_randomness(ranks)?,
        };
        let (ledger, private_state) = match from {
            Some(from) => {
                from.optimizer.map_or(Ok(()), |state| optimizer.load(state))?;
                (from.ledger, from.private_state)
            }
            None => (Ledger::new(), None),
        };
        let mut backend = match plan.budget {
            Some(budget) => {
                let door = Door::resumed(budget, &plan.events, ledger)?;
                let mut curator = Curator::new(engine, records, plan.sampling, door, randomness)?;
                curator.set_mechanism(Box::new(IndependentGaussian::new(config.privacy.noise)));
                if let Some(reducer) = reducer {
                    curator.set_reducer(reducer)?;
                }
                Backend::Private(curator)
            }
            None => {
                let mut oracle =
                    NonPrivateOracle::resumed(engine, records, plan.sampling, randomness, ledger)?;
                if let Some(reducer) = reducer {
                    oracle.set_reducer(reducer)?;
                }
                Backend::NonPrivate(oracle)
            }
        };
        if let (Backend::Private(curator), Some(state)) = (&mut backend, private_state) {
            curator.restore_private_state(state)?;
        }
        Ok(Self { plan, optimizer, backend, params, resumed })
    }

    /// Takes one step; returns `None` if all steps are done.
    ///
    /// A resumed run also returns `None` if the rest of the budget does not cover another step.
    ///
    /// # Errors
    /// If a computation fails or the ledger cannot be saved.
    pub fn step(&mut self) -> Result<Option<Step>, Error> {
        if self.optimizer.steps() >= self.plan.steps {
            return Ok(None);
        }
        let oracle: &mut dyn Oracle = match &mut self.backend {
            Backend::Private(curator) => curator,
            Backend::NonPrivate(oracle) => oracle,
        };
        match self.optimizer.step(&mut self.params, oracle) {
            Ok(step) => Ok(Some(step)),
            // Steps that were charged and lost in an interruption are not repeated.
            Err(Refused::Budget(_)) if self.resumed && self.optimizer.steps() > 0 => Ok(None),
            Err(refused) => Err(refused.into()),
        }
    }

    /// Sets the micro-batch size. It changes speed and memory, not what is released.
    pub fn set_micro_batch(&mut self, examples: usize) {
        match &mut self.backend {
            Backend::Private(curator) => curator.set_micro_batch(examples),
            Backend::NonPrivate(oracle) => oracle.set_micro_batch(examples),
        }
    }

    /// Returns the micro-batch size, which is smaller than requested after running out of memory.
    ///
    /// **Not private**: it may depend on the lengths of records.
    pub fn micro_batch(&self) -> usize {
        match &self.backend {
            Backend::Private(curator) => curator.micro_batch(),
            Backend::NonPrivate(oracle) => oracle.micro_batch(),
        }
    }

    /// Sets a function that gets the ledger after each charge, before anything is computed.
    pub fn set_journal(&mut self, journal: curator::Journal) {
        if let Backend::Private(curator) = &mut self.backend {
            curator.set_journal(journal);
        }
    }

    /// Sets a function that gets the private state after each draw, before anything is computed.
    pub fn set_state_sink(&mut self, state_sink: curator::StateSink) {
        if let Backend::Private(curator) = &mut self.backend {
            curator.set_state_sink(state_sink);
        }
    }

    /// Returns the plan: steps, noise and cost of the run.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Returns the number of steps taken.
    pub fn steps(&self) -> u64 {
        self.optimizer.steps()
    }

    /// Returns the parameters. They are computed from released values, so they are public.
    pub fn params(&self) -> &Params {
        &self.params
    }

    /// Returns the parameters to release or to evaluate: the moving average of the parameters of
    /// all steps if there is one (`optimizer.ema_decay`), otherwise those of the last step.
    pub fn released_params(&self) -> &Params {
        self.optimizer.released(&self.params)
    }

    /// Returns the public description of the trained tensors.
    pub fn trainable(&self) -> &[Trainable] {
        match &self.backend {
            Backend::Private(curator) => curator.trainable(),
            Backend::NonPrivate(oracle) => oracle.trainable(),
        }
    }

    /// Returns how far the engine isolates records.
    pub fn isolation(&self) -> Isolation {
        match &self.backend {
            Backend::Private(curator) => curator.isolation(),
            Backend::NonPrivate(oracle) => oracle.isolation(),
        }
    }

    /// Returns the number of lots that were drawn, or may have been.
    pub fn draws(&self) -> u64 {
        match &self.backend {
            Backend::Private(curator) => curator.draws(),
            Backend::NonPrivate(oracle) => oracle.ledger().events().len(),
        }
    }

    /// Returns the state of the optimizer.
    ///
    /// In a distributed run all processes must call this: rank 0 gets the complete state, the
    /// others that of their tensors.
    ///
    /// # Errors
    /// If a process is lost.
    pub fn optimizer(&self) -> Result<State, Error> {
        Ok(self.optimizer.save()?)
    }

    /// Returns what has been charged.
    pub fn ledger(&self) -> &Ledger {
        match &self.backend {
            Backend::Private(curator) => curator.ledger(),
            Backend::NonPrivate(oracle) => oracle.ledger(),
        }
    }

    /// Returns the cost so far, at the budget's δ. Without privacy ε is infinite.
    ///
    /// # Errors
    /// If it cannot be computed.
    pub fn guarantee(&self) -> Result<Guarantee, Error> {
        self.plan.spent(self.ledger())
    }
}
