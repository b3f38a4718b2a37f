//! Time and memory of a run on this machine, from a few private steps on synthetic records.

use crate::config::{Auto, Config, PersonRows, Select};
use crate::run::memory;
use crate::{Error, LoadedModel, Session};
use accounting::SamplingMethod;
use curator::Records;
use data::Views;
use engine::{Engine, Example, Input, Target};
use model::InputShape;
use noise::{PublicRandom, Rng};
use std::time::Instant;

/// The measured cost of steps of any lot size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepCost {
    /// Seconds of a step that do not depend on the lot: noise and update.
    pub fixed: f64,
    /// Seconds of each record of a lot.
    pub per_record: f64,
    /// The micro-batch size that the free memory allows.
    pub micro_batch: usize,
    /// Bytes that micro-batches of this size need beyond those of the measurement.
    pub further_bytes: usize,
    /// The number of tokens of a record; `None` for images.
    pub length: Option<usize>,
}

impl StepCost {
    /// Seconds of one step with lots of this size.
    pub fn step(&self, lot: f64) -> f64 {
        self.fixed + self.per_record * lot
    }
}

/// The records of the smaller lot that is measured; the other has twice as many.
const RECORDS: usize = 4;

/// Measures steps on synthetic records of `length` tokens, with the configured optimizer.
///
/// Records of the training data are not read.
///
/// # Errors
/// If the model does not fit the optimizer, or a step fails.
pub fn measure(config: &Config, model: &LoadedModel, length: usize) -> Result<StepCost, Error> {
    let micro_batch = config
        .training
        .micro_batch
        .or_else(|| memory::micro_batch(&model.network, length, 1))
        .max(1);
    let small = RECORDS.min(micro_batch);
    let times = [small, 2 * small].map(|records| seconds(config, model, length, records));
    let [less, more] = times;
    let (less, more) = (less?, more?);
    // On a machine with other work, the larger lot may be the faster one.
    let per_record = ((more - less) / small as f64).max(more / (4.0 * small as f64));
    let is_text = matches!(model.network.graph().input(), InputShape::Tokens { .. });
    Ok(StepCost {
        fixed: (less - per_record * small as f64).max(0.0),
        // Every view of an image is computed.
        per_record: per_record * config.data.views.count() as f64,
        micro_batch,
        further_bytes: micro_batch.saturating_sub(2 * small)
            * model.network.graph().bytes_per_example(length),
        length: is_text.then_some(length),
    })
}

/// Seconds of the faster of two steps on a lot of `records` synthetic records.
fn seconds(
    config: &Config,
    model: &LoadedModel,
    length: usize,
    records: usize,
) -> Result<f64, Error> {
    let mut config = config.clone();
    // All records are in every lot, and no noise is searched for: only the time matters.
    config.privacy.sampling = SamplingMethod::Full;
    (config.privacy.epsilon, config.privacy.sigma) = (Auto::Auto, Auto::Value(1.0));
    (config.privacy.delta, config.privacy.seed) = (Auto::Auto, None);
    (config.training.steps, config.training.epochs) = (Auto::Value(3), Auto::Auto);
    (config.training.lot_size, config.data.group) = (Auto::Auto, None);
    (config.data.rows_per_person, config.data.person_rows) = (Auto::Auto, PersonRows::Combined);
    config.privacy.unit = Auto::Auto;
    (config.evaluation.select, config.data.views) = (Select::Last, Views::None);
    let network = model.network.new_instance();
    let examples = synthetic(model, length, records);
    let mut session = Session::new(&config, network, model.params.clone(), Records::new(examples))?;
    session.set_micro_batch(records);
    session.step()?;
    let mut least = f64::INFINITY;
    for _ in 0..2 {
        let start = Instant::now();
        session.step()?;
        least = least.min(start.elapsed().as_secs_f64());
    }
    Ok(least)
}

/// Synthetic records: random tokens of the given length, or the random features of the probe.
fn synthetic(model: &LoadedModel, length: usize, count: usize) -> Vec<Example> {
    let probes = model.network.probe_examples();
    let InputShape::Tokens { vocab, max_length } = model.network.graph().input() else {
        return probes.into_iter().cycle().take(count).collect();
    };
    let classifies = probes
        .iter()
        .flat_map(Example::parts)
        .any(|part| matches!((&part.input, &part.target), (Input::Tokens(_), Target::Class(_))));
    let example = |index: usize| {
        let mut words = PublicRandom::new("estimate", index as u64).words();
        let length = length.clamp(2, max_length.max(2));
        let tokens = (0..length).map(|_| words.next_u32() % vocab.max(1) as u32).collect();
        if classifies { Example::labelled(tokens, 0) } else { Example::continuation(tokens, 1) }
    };
    (0..count).map(example).collect()
}
