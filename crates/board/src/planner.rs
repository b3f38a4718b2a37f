//! The planner: noise, cost and risk of a run, by the accountant of `muffle calibrate`.
//!
//! Every ε is an upper bound. The page asks for the noise first, and for everything else with the
//! noise that it got, so that each answer is short.

use crate::http::Request;
use accounting::calibrate::{self, Target};
use accounting::{
    Accountant, Adjacency, Composition, Cost, Delta, Epsilon, Event, Guarantee, Release, Sampling,
    SamplingMethod, Sigma, Unit,
};
use muffle::chart::{Axis, Chart, Mark, Series};
use muffle::plan::recommend;
use muffle::plan::repeated::Repeated;
use muffle::report::digits::{short, up, up_e};
use muffle::report::{Number, trade_off_chart};
use serde::Serialize;
use std::fmt::Write;
use std::str::FromStr;

/// The largest number of records.
const MAX_RECORDS: u64 = 1_000_000_000_000;

/// The largest number of steps.
const MAX_STEPS: f64 = 1e9;

/// The largest number of blocks, of rows of a person, and of runs.
const MAX_COUNT: u64 = 10_000;

/// The number of epochs after which ε is computed.
const EPOCH_POINTS: u64 = 10;

/// The settings of a run that is planned.
#[derive(Clone, Debug)]
pub(crate) struct Question {
    records: u64,
    epsilon: f64,
    delta: Delta,
    lot: u64,
    epochs: f64,
    blocks: u64,
    unit: Unit,
    sampling: SamplingMethod,
    /// The noise multiplier that was answered before.
    sigma: Option<Sigma>,
    /// The number of repeated runs.
    runs: Option<u64>,
}

impl Question {
    /// Reads the settings from a query.
    ///
    /// # Errors
    /// Which setting is missing or out of range.
    pub(crate) fn parse(request: &Request) -> Result<Self, String> {
        let records = whole(request, "records", 1, MAX_RECORDS)?;
        let sampling: SamplingMethod = value(request, "sampling")?;
        let adjacency: String = value(request, "adjacency")?;
        let adjacency = Adjacency::ALL.into_iter().find(|known| known.name() == adjacency);
        let unit = Unit {
            adjacency: adjacency.ok_or("adjacency: expected add-remove or replace-one")?,
            rows: whole(request, "rows", 1, MAX_COUNT)?,
        };
        let lot = match sampling {
            SamplingMethod::Full => records,
            _ => whole(request, "lot", 1, records)?,
        };
        let epsilon: f64 = value(request, "epsilon")?;
        if !(epsilon > 0.0 && epsilon <= 1e6) {
            return Err(format!("epsilon: expected more than 0 and at most 1e6, got {epsilon}"));
        }
        let delta: f64 = value(request, "delta")?;
        let one_record = 1.0 / records as f64;
        if !(delta > 0.0 && delta < one_record) {
            return Err(format!(
                "delta: expected more than 0 and less than 1/N = {one_record:.3e}, got {delta}"
            ));
        }
        let epochs: f64 = value(request, "epochs")?;
        let sigma = match request.value("sigma") {
            Some(_) => Some(Sigma::new(value(request, "sigma")?).map_err(|e| e.to_string())?),
            None => None,
        };
        let runs = match request.value("runs") {
            Some(_) => Some(whole(request, "runs", 1, MAX_COUNT)?),
            None => None,
        };
        let question = Self {
            records,
            epsilon,
            delta: Delta::new(delta).map_err(|error| error.to_string())?,
            lot,
            epochs,
            blocks: whole(request, "blocks", 1, MAX_COUNT)?,
            unit,
            sampling,
            sigma,
            runs,
        };
        let steps = question.steps_of(epochs);
        if !(epochs > 0.0 && (1.0..=MAX_STEPS).contains(&steps)) {
            return Err(format!("epochs: expected 1 to {MAX_STEPS} steps, got {steps}"));
        }
        Ok(question)
    }

    /// The share of the records in a lot.
    fn rate(&self) -> f64 {
        self.lot as f64 / self.records as f64
    }

    /// Steps of some epochs, rounded up as by `muffle account --epochs`.
    fn steps_of(&self, epochs: f64) -> f64 {
        (epochs / self.rate()).ceil()
    }

    fn steps(&self) -> u64 {
        self.steps_of(self.epochs) as u64
    }

    /// The events of `steps` steps with lots of this size, as `muffle account` counts them.
    fn events(&self, sigma: Sigma, lot: u64, steps: u64) -> Result<Composition, accounting::Error> {
        let release = Release::joint([(sigma, self.blocks)])?;
        let lots = match self.sampling {
            // Rounded down: enough epochs, whether or not the last, short lot is used.
            SamplingMethod::Shuffled => Sampling::shuffled((self.records / lot).max(1), 1)?,
            method => method.with(self.records, lot)?,
        };
        let count = steps.div_ceil(lots.lots_per_event());
        Ok(Composition::repeated(Event::Gaussian { lots, release }, count))
    }

    fn target(&self, accountant: Accountant) -> Result<Target, accounting::Error> {
        let epsilon = Epsilon::new(self.epsilon)?;
        Ok(Target { epsilon, delta: self.delta, unit: self.unit, accountant })
    }

    /// The noise multiplier of the question.
    fn sigma(&self) -> Result<Sigma, String> {
        self.sigma.ok_or_else(|| "sigma: expected a number, got none".into())
    }

    /// The least noise that keeps the promise, and its cost.
    pub(crate) fn noise(&self) -> Result<Noise, String> {
        let (sigma, price) = self.calibrate(Accountant::Best).map_err(|e| e.to_string())?;
        Ok(self.answer(sigma, price))
    }

    /// A noise that keeps the promise, found sooner: by RDP, which asks for a little more.
    ///
    /// Its cost is by the best accountant, so that it is what `muffle account` prints.
    pub(crate) fn first_noise(&self) -> Result<Noise, String> {
        let found = self.calibrate(Accountant::Rdp).and_then(|(sigma, _)| {
            let events = self.events(sigma, self.lot, self.steps())?;
            Ok((sigma, self.target(Accountant::Best)?.price(&events)?))
        });
        let (sigma, price) = found.map_err(|error| error.to_string())?;
        Ok(self.answer(sigma, price))
    }

    fn calibrate(&self, accountant: Accountant) -> Result<(Sigma, Guarantee), accounting::Error> {
        let (target, steps) = (self.target(accountant)?, self.steps());
        calibrate::sigma(target, |sigma| self.events(sigma, self.lot, steps))
    }

    /// The answer about a noise multiplier and its cost.
    fn answer(&self, sigma: Sigma, price: Guarantee) -> Noise {
        let steps = self.steps();
        let setting =
            recommend::Setting { epochs: self.epochs, lot: self.lot, steps, sigma: sigma.get() };
        let mut warnings = Vec::new();
        if price.epsilon > 10.0 {
            warnings.push(format!(
                "ε = {} is large: in the worst case an attacker can be almost certain.",
                up(price.epsilon, 1)
            ));
        }
        if self.sampling == SamplingMethod::Shuffled {
            warnings.push(
                "Shuffled lots get no amplification by sampling: every epoch is charged as one \
                 release on all the data."
                    .into(),
            );
        }
        Noise {
            sigma: sigma.get(),
            sigma_text: up(sigma.get(), 6),
            epsilon: price.epsilon,
            epsilon_text: up(price.epsilon, 4),
            delta_text: up_e(price.delta),
            unit: price.unit.to_string(),
            accountant: price.accountant.name(),
            steps,
            rate: self.rate(),
            noise_in_mean: short(setting.noise_in_mean()),
            noise_of_run: short(setting.noise_of_run()),
            warnings,
            run_toml: self.run_toml(steps),
            command: self.command(steps),
            account: self.account(sigma, steps),
        }
    }

    /// ε after some of the epochs, at the noise of the question.
    pub(crate) fn epochs(&self) -> Result<Epochs, String> {
        let (sigma, last) = (self.sigma()?, self.steps());
        // Whole epochs, evenly spread; always the first step and the last.
        let whole = (self.epochs.floor() as u64).max(1);
        let mut steps: Vec<u64> = (1..=EPOCH_POINTS.min(whole))
            .map(|i| (i * whole) as f64 / EPOCH_POINTS.min(whole) as f64)
            .map(|epoch| (self.steps_of(epoch.floor().max(1.0)) as u64).min(last))
            .collect();
        steps.extend([1, last]);
        steps.sort_unstable();
        steps.dedup();
        let cost = |&steps: &u64| -> Result<EpochCost, accounting::Error> {
            let events = self.events(sigma, self.lot, steps)?;
            let price = self.target(Accountant::Best)?.price(&events)?;
            let epochs = steps as f64 * self.rate();
            Ok(EpochCost { steps, epochs, epsilon: price.epsilon.into() })
        };
        let costs = in_threads(&steps, &cost)
            .into_iter()
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| error.to_string())?;
        let points = costs.iter().map(|cost| (cost.epochs, cost.epsilon.0)).collect();
        let chart = Chart {
            title: "ε after each epoch".into(),
            x: Axis::from_zero("epochs"),
            y: Axis::from_zero("ε spent"),
            series: vec![Series::new("at most", points).steps()],
            marks: vec![Mark { name: "promised".into(), y: self.epsilon }],
        };
        Ok(Epochs { svg: chart.svg_without_style(), costs })
    }

    /// What an attacker can learn at most, at the noise of the question.
    pub(crate) fn attacker(&self) -> Result<Attacker, String> {
        let events = self.events(self.sigma()?, self.lot, self.steps());
        // As `muffle account --trade-off`.
        let resolution = Delta::new(self.delta.get().clamp(1e-9, 1e-3));
        let curve = events
            .and_then(|events| Cost::new(&events, self.unit))
            .and_then(|cost| cost.trade_off(resolution?))
            .map_err(|error| error.to_string())?;
        let chart = trade_off_chart(&curve, self.unit.adjacency);
        let found = |fpr: f64| Found { fpr, tpr: curve.tpr(fpr) };
        let who = match (self.unit.adjacency, self.unit.rows) {
            (Adjacency::AddRemove, 1) => "members",
            (Adjacency::AddRemove, _) => "persons in the data",
            (Adjacency::ReplaceOne, _) => "values of a record",
        };
        Ok(Attacker {
            svg: chart.svg_without_style(),
            sentence: format!(
                "At 1 % false alarms, at most {} % of {who} are found.",
                up(100.0 * curve.tpr(0.01), 1)
            ),
            found: [1e-4, 1e-3, 0.01, 0.1].map(found).into(),
        })
    }

    /// The cost of several runs with this noise on the same records.
    pub(crate) fn repeated(&self) -> Result<RepeatedCost, String> {
        let runs = self.runs.ok_or("runs: expected a whole number, got none")?;
        let repeated = self
            .events(self.sigma()?, self.lot, self.steps())
            .and_then(|events| Repeated::new(&events, self.unit, self.delta, runs))
            .map_err(|error| error.to_string())?;
        Ok(RepeatedCost {
            runs,
            all: repeated.all.into(),
            all_text: up(repeated.all, 2),
            best: repeated.random.map(|(epsilon, _)| epsilon.into()),
            best_text: repeated.random.map(|(epsilon, _)| up(epsilon, 2)),
        })
    }

    /// The lot size and number of epochs that `muffle plan` recommends.
    pub(crate) fn recommended(&self) -> Result<Option<Recommended>, String> {
        if self.sampling == SamplingMethod::Full {
            return Ok(None);
        }
        // Many settings are compared. RDP is fast, and close enough for a comparison.
        let target = self.target(Accountant::Rdp).map_err(|error| error.to_string())?;
        let sigma = |lot: u64, steps: u64| {
            let found = calibrate::sigma(target, |sigma| self.events(sigma, lot, steps));
            found.map(|(sigma, _)| sigma.get())
        };
        let found = recommend::recommend(self.records, None, None, sigma)
            .map_err(|error: accounting::Error| error.to_string())?;
        let setting = found.setting;
        Ok(Some(Recommended {
            lot: setting.lot,
            epochs: setting.epochs,
            steps: setting.steps,
            noise_of_run: short(setting.noise_of_run()),
            reason: match found.is_flat() {
                true => "A doubled lot would lower the noise of the run by less than a tenth.",
                false => "The largest lot and most epochs that are considered.",
            },
        }))
    }

    /// A configuration of this run, without the model.
    fn run_toml(&self, steps: u64) -> String {
        let mut text = format!(
            "# {} records, {} epochs. Set data.train to your file; keys that are left out have \
             their defaults.\n[data]\ntrain = \"TRAIN\"\n",
            self.records, self.epochs
        );
        if self.unit.rows > 1 {
            let _ = writeln!(
                text,
                "# The column that names the person of a row.\ngroup = \"COLUMN\"\nperson_rows = \
                 \"separate\"\nrows_per_person = {}",
                self.unit.rows
            );
        }
        let _ = writeln!(
            text,
            "\n[privacy]\nepsilon = {:?}\ndelta = {:e}",
            self.epsilon,
            self.delta.get()
        );
        if self.unit.adjacency != Adjacency::default() {
            let _ = writeln!(text, "adjacency = \"{}\"", self.unit.adjacency);
        }
        if self.sampling != SamplingMethod::default() {
            let _ = writeln!(text, "sampling = \"{}\"", self.sampling);
        }
        let _ = writeln!(text, "\n[training]\nlot_size = {}\nsteps = {steps}", self.lot);
        if self.blocks > 1 {
            let _ = writeln!(
                text,
                "\n# The number of blocks ({}) follows from the optimizer, such as dp-muon, and \
                 the model.",
                self.blocks
            );
        }
        text
    }

    /// The command line that trains with this plan.
    fn command(&self, steps: u64) -> String {
        let mut text = format!(
            "muffle train RUN.toml --epsilon {} --delta {:e} --lot-size {} --steps {steps}",
            self.epsilon,
            self.delta.get(),
            self.lot
        );
        if self.sampling != SamplingMethod::default() {
            let _ = write!(text, " --set privacy.sampling={}", self.sampling);
        }
        if self.unit.adjacency != Adjacency::default() {
            let _ = write!(text, " --set privacy.adjacency={}", self.unit.adjacency);
        }
        text
    }

    /// The command line that computes the same ε.
    fn account(&self, sigma: Sigma, steps: u64) -> String {
        let mut text = format!(
            "muffle account --noise-multiplier {} --dataset-size {} --lot-size {} --steps {steps} \
             --delta {:e}",
            sigma.get(),
            self.records,
            self.lot,
            self.delta.get()
        );
        for (option, given, default) in [
            ("--blocks", self.blocks.to_string(), "1"),
            ("--rows-per-person", self.unit.rows.to_string(), "1"),
            ("--adjacency", self.unit.adjacency.to_string(), "add-remove"),
            ("--sampling", self.sampling.to_string(), "poisson"),
        ] {
            if given != default {
                let _ = write!(text, " {option} {given}");
            }
        }
        text
    }
}

/// Computes values in as many threads as the machine has, in order.
fn in_threads<T: Sync, R: Send>(inputs: &[T], compute: &(impl Fn(&T) -> R + Sync)) -> Vec<R> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let chunks = inputs.chunks(inputs.len().div_ceil(threads).max(1));
    std::thread::scope(|scope| {
        let workers: Vec<_> = chunks
            .map(|chunk| scope.spawn(move || chunk.iter().map(compute).collect::<Vec<R>>()))
            .collect();
        let finish = |worker: std::thread::ScopedJoinHandle<'_, Vec<R>>| match worker.join() {
            Ok(values) => values,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        workers.into_iter().flat_map(finish).collect()
    })
}

/// Reads a value of the query.
fn value<T: FromStr>(request: &Request, name: &str) -> Result<T, String> {
    let text = request.value(name).ok_or_else(|| format!("{name}: expected a value, got none"))?;
    text.parse().map_err(|_| format!("{name}: not a valid value"))
}

/// Reads a whole number of the query.
fn whole(request: &Request, name: &str, least: u64, most: u64) -> Result<u64, String> {
    let number: u64 =
        value(request, name).map_err(|_| format!("{name}: expected a whole number"))?;
    match (least..=most).contains(&number) {
        true => Ok(number),
        false => Err(format!("{name}: expected {least} to {most}, got {number}")),
    }
}

/// The noise of a run.
#[derive(Serialize)]
pub(crate) struct Noise {
    sigma: f64,
    sigma_text: String,
    epsilon: f64,
    epsilon_text: String,
    delta_text: String,
    unit: String,
    accountant: &'static str,
    steps: u64,
    rate: f64,
    /// σ/B.
    noise_in_mean: String,
    /// σ/(B √T).
    noise_of_run: String,
    warnings: Vec<String>,
    run_toml: String,
    command: String,
    account: String,
}

/// ε after some epochs.
#[derive(Serialize)]
pub(crate) struct Epochs {
    svg: String,
    costs: Vec<EpochCost>,
}

#[derive(Serialize)]
struct EpochCost {
    steps: u64,
    epochs: f64,
    epsilon: Number,
}

/// Bounds on membership tests.
#[derive(Serialize)]
pub(crate) struct Attacker {
    svg: String,
    sentence: String,
    found: Vec<Found>,
}

#[derive(Serialize)]
struct Found {
    fpr: f64,
    tpr: f64,
}

/// The cost of several runs.
#[derive(Serialize)]
pub(crate) struct RepeatedCost {
    runs: u64,
    /// ε if all are released.
    all: Number,
    all_text: String,
    /// ε if only the best of a random number of runs is released.
    best: Option<Number>,
    best_text: Option<String>,
}

/// A recommended setting.
#[derive(Serialize)]
pub(crate) struct Recommended {
    lot: u64,
    epochs: f64,
    steps: u64,
    noise_of_run: String,
    reason: &'static str,
}
