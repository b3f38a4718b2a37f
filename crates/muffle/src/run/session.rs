//! A run in memory: plan, curator, optimizer and parameters. What a library user drives;
//! [`crate::run`] drives it with a folder around it.

use crate::Error;
use crate::Plan;
use crate::config::Config;
use crate::run::together;
use accounting::{Guarantee, Ledger};
use curator::{Curator, Door, Exact, Randomness, Records, Sealed};
use engine::{Engine, Isolation};
use noise::IndependentGaussian;
use optim::{Optimizer, State};
use protocol::{Oracle, Params, Refused, Role, Trainable};
use ranks::Ranks;

/// A run that can be stepped.
///
/// ```
/// use model::{Example, Mlp, Network, activation::Activation};
/// use muffle::{Config, Session, curator::Records};
///
/// let graph = Mlp { input: 2, hidden: vec![8], classes: 2, activation: Activation::Tanh }.graph();
/// let values = graph.init(0)?;
/// let (network, params) = device().network(graph, values, &|_| true)?;
/// let people = (0..500).map(|i| Example::numbers(vec![i as f32 / 500.0, 1.0], u32::from(i < 250))).collect();
/// let config = Config::parse("[privacy]\nepsilon = 2.0\n[training]\nsteps = 20\nlot_size = 50")?;
/// let mut session = Session::new(&config, network, params, Records::new(people))?;
/// while session.step()?.is_some() {}
/// println!("ε = {} at δ = {}", session.guarantee()?.epsilon, session.guarantee()?.delta);
/// # assert!(session.guarantee()?.epsilon <= 2.0 && session.steps() == 20);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Session<E> {
    plan: Plan,
    optimizer: Optimizer,
    oracle: Answering<E>,
    params: Params,
    /// Whether it goes on with a run that was interrupted.
    resumed: bool,
    ranks: Ranks,
}

enum Answering<E> {
    Privately(Curator<E>),
    Exactly(Exact<E>),
}

/// What a run was when it was interrupted.
pub struct Interrupted {
    /// What was charged, by all steps that were begun.
    pub ledger: Ledger,
    /// What the curator remembers.
    pub sealed: Option<Sealed>,
    /// What the optimizer remembers; none if it has not begun.
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
    /// Works out the plan, looks whether the model can be trained privately, and takes the records.
    ///
    /// The sections `model` and `data` of the configuration play no part: model and records are
    /// given.
    ///
    /// # Errors
    /// If the configuration makes no sense, the promise cannot be kept, one example of the model
    /// reaches another, or a record does not fit.
    pub fn new(
        config: &Config,
        engine: E,
        params: Params,
        records: Records,
    ) -> Result<Self, Error> {
        Self::among(&Ranks::alone(), config, engine, params, records, None)
    }

    /// Goes on where a run was interrupted.
    ///
    /// # Errors
    /// As [`new`](Self::new), or if what is left of the run is not part of the plan.
    pub fn resume(
        config: &Config,
        engine: E,
        records: Records,
        mut from: Interrupted,
    ) -> Result<Self, Error> {
        let params = std::mem::take(&mut from.params);
        Self::among(&Ranks::alone(), config, engine, params, records, Some(from))
    }

    /// One of several processes that train one model together: all of them with the same
    /// configuration, model, records and past. Those of the past that say what was charged and
    /// drawn must be the same on all.
    ///
    /// # Errors
    /// As [`new`](Self::new), or if a process is gone.
    pub fn among(
        ranks: &Ranks,
        config: &Config,
        mut engine: E,
        params: Params,
        records: Records,
        from: Option<Interrupted>,
    ) -> Result<Self, Error> {
        let tensors = engine.trainable();
        let plan = Plan::new(config, records.places(), &tensors)?;
        match from {
            None => engine::probe(&mut engine, &params)?,
            // Where a run stands now, gradients may be anything.
            Some(_) => engine::probe_isolation(&mut engine, &params)?,
        }
        let resumed = from.is_some();
        let mut optimizer = plan.optimizer(config, &tensors, &params)?;
        // Each process works on tensors of its own.
        let owners = ranks::share(&groups(&tensors), &optimizer.work(&params), ranks.count());
        optimizer.keep(&|tensor| owners[tensor] == ranks.rank());
        let randomness = config.privacy.seed.map_or_else(
            || curator::shared_randomness(ranks),
            |seed| Ok(Randomness::fixed(seed)),
        )?;
        let (ledger, sealed) = match from {
            Some(from) => {
                from.optimizer.map_or(Ok(()), |state| optimizer.load(state))?;
                (from.ledger, from.sealed)
            }
            None => (Ledger::new(), None),
        };
        let mut oracle = match plan.budget {
            Some(budget) => {
                let door = Door::resumed(budget, &plan.events, ledger)?;
                let mut curator = Curator::new(engine, records, plan.sampling, door, randomness)?;
                curator.set_mechanism(Box::new(IndependentGaussian::new(config.privacy.noise)));
                curator.join(ranks.clone(), owners)?;
                Answering::Privately(curator)
            }
            None => {
                let mut exact = Exact::resumed(engine, records, plan.sampling, randomness, ledger)?;
                exact.join(ranks.clone(), owners)?;
                Answering::Exactly(exact)
            }
        };
        if let (Answering::Privately(curator), Some(sealed)) = (&mut oracle, sealed) {
            curator.unseal(sealed)?;
        }
        Ok(Self { plan, optimizer, oracle, params, resumed, ranks: ranks.clone() })
    }

    /// One step; `None` if all steps are done, or what is left of the budget, after an
    /// interruption, does not pay for another.
    ///
    /// # Errors
    /// If something could not be computed or written down.
    pub fn step(&mut self) -> Result<Option<Step>, Error> {
        if self.optimizer.steps() >= self.plan.steps {
            return Ok(None);
        }
        let oracle: &mut dyn Oracle = match &mut self.oracle {
            Answering::Privately(curator) => curator,
            Answering::Exactly(exact) => exact,
        };
        match self.optimizer.step(&mut self.params, oracle) {
            Ok(step) => Ok(Some(step)),
            // Steps that were charged and lost in an interruption are not made up for.
            Err(Refused::Budget(_)) if self.resumed && self.optimizer.steps() > 0 => Ok(None),
            Err(refused) => Err(refused.into()),
        }
    }

    /// How many records are computed on at a time: speed and memory, nothing else.
    pub fn set_micro_batch(&mut self, examples: usize) {
        match &mut self.oracle {
            Answering::Privately(curator) => curator.set_micro_batch(examples),
            Answering::Exactly(exact) => exact.set_micro_batch(examples),
        }
    }

    /// How many records are computed on at a time now. **Not private** if it is fewer than was
    /// asked for: that there was not enough memory may tell of how long records are.
    pub fn micro_batch(&self) -> usize {
        match &self.oracle {
            Answering::Privately(curator) => curator.micro_batch(),
            Answering::Exactly(exact) => exact.micro_batch(),
        }
    }

    /// Calls this with the ledger after each charge, before anything is computed.
    pub fn set_journal(&mut self, journal: curator::Journal) {
        if let Answering::Privately(curator) = &mut self.oracle {
            curator.set_journal(journal);
        }
    }

    /// Calls this after each draw, before anything is computed.
    pub fn set_keeper(&mut self, keeper: curator::Keeper) {
        if let Answering::Privately(curator) = &mut self.oracle {
            curator.set_keeper(keeper);
        }
    }

    /// The numbers of the run.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Steps that were made.
    pub fn steps(&self) -> u64 {
        self.optimizer.steps()
    }

    /// The parameters. They were made from released values: public.
    pub fn params(&self) -> &Params {
        &self.params
    }

    /// What is publicly known of the trained tensors.
    pub fn trainable(&self) -> &[Trainable] {
        match &self.oracle {
            Answering::Privately(curator) => curator.trainable(),
            Answering::Exactly(exact) => exact.trainable(),
        }
    }

    /// How far the engine keeps records apart.
    pub fn isolation(&self) -> Isolation {
        match &self.oracle {
            Answering::Privately(curator) => curator.isolation(),
            Answering::Exactly(exact) => exact.isolation(),
        }
    }

    /// How many lots were drawn, or may have been.
    pub fn draws(&self) -> u64 {
        match &self.oracle {
            Answering::Privately(curator) => curator.draws(),
            Answering::Exactly(exact) => exact.ledger().events().len(),
        }
    }

    /// What the optimizer remembers. Of several processes the first gets all of it; the others must
    /// ask with it, and get their part.
    ///
    /// # Errors
    /// If a process is gone.
    pub fn optimizer(&self) -> Result<State, Error> {
        together::complete(&self.ranks, self.optimizer.save())
    }

    /// What has been charged.
    pub fn ledger(&self) -> &Ledger {
        match &self.oracle {
            Answering::Privately(curator) => curator.ledger(),
            Answering::Exactly(exact) => exact.ledger(),
        }
    }

    /// What has been spent so far, at the budget's δ. Without privacy ε is infinite.
    ///
    /// # Errors
    /// If it cannot be computed.
    pub fn guarantee(&self) -> Result<Guarantee, Error> {
        self.plan.spent(self.ledger())
    }
}

/// Which tensors must have the same owner: the two factors of a pair.
fn groups(tensors: &[Trainable]) -> Vec<usize> {
    let group = |(k, tensor): (usize, &Trainable)| {
        if let Role::Right(left) = tensor.role { left } else { k }
    };
    tensors.iter().enumerate().map(group).collect()
}
