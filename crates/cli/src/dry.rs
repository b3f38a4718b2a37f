//! The output of `muffle train --dry-run`.

use super::error::Error;
use super::estimate::LocalCost;
use super::output::{fields, note, print, print_json, short, up, up_e, warn};
use muffle::config::Config;
use muffle::run::dry::DryRun;
use serde::Serialize;

/// The output of `--json`.
#[derive(Serialize)]
struct Output<'a> {
    private: bool,
    epsilon: Option<f64>,
    delta: Option<f64>,
    sigma: Option<f64>,
    sampling_rate: f64,
    records: usize,
    lot_size: f64,
    steps: u64,
    noise_in_mean: Option<f64>,
    noise_to_signal: Option<f64>,
    optimizer: &'a str,
    parameters: usize,
    parameters_trained: usize,
    cost: LocalCost,
}

/// Prints plan and cost of a run that was not started.
pub(crate) fn print_dry_run(config: &Config, dry: &DryRun, json: bool) -> Result<(), Error> {
    let plan = &dry.plan;
    let (trained, all) = dry.parameters;
    let (lot, private) = (plan.lot_size(), plan.price.is_some());
    let cost = LocalCost::new(&dry.cost, lot, plan.steps);
    let rate = lot / plan.records as f64;
    let (noise, to_signal) = (plan.noise_in_mean(), plan.noise_to_signal(trained));
    if json {
        return print_json(&Output {
            private: private && config.privacy.seed.is_none(),
            epsilon: plan.price.map(|price| price.epsilon),
            delta: plan.price.map(|price| price.delta),
            sigma: private.then_some(plan.sigma.gradient),
            sampling_rate: rate,
            records: plan.records,
            lot_size: lot,
            steps: plan.steps,
            noise_in_mean: private.then_some(noise),
            noise_to_signal: private.then_some(to_signal),
            optimizer: config.optimizer.name(),
            parameters: all,
            parameters_trained: trained,
            cost,
        });
    }
    let mut rows = vec![
        ("model", format!("{}: {trained} of {all} parameters are trained", config.model.source)),
        ("data", format!("{} records (their number is public)", plan.records)),
    ];
    match plan.price {
        Some(price) => {
            let (epsilon, delta) = (up(price.epsilon, 3), up_e(price.delta));
            let accountant = price.accountant;
            rows.push((
                "privacy",
                format!("ε = {epsilon} at δ = {delta}, {}; by {accountant}", price.unit),
            ));
            rows.push((
                "noise",
                format!(
                    "σ = {}; noise in mean ÷ clip bound: {}",
                    short(plan.sigma.gradient),
                    short(noise)
                ),
            ));
        }
        None => rows.push(("privacy", "NONE: the optimizer is not private".into())),
    }
    rows.push((
        "training",
        format!(
            "{}, {} steps, lots of {} (sampling rate {})",
            config.optimizer.name(),
            plan.steps,
            short(lot),
            short(rate)
        ),
    ));
    rows.push(("cost", cost.in_words()));
    print(&fields(&rows));
    if private {
        warn_if_hopeless(to_signal);
    }
    note!("dry run: nothing was trained or charged, and no folder was created");
    Ok(())
}

/// The ratio of noise to signal from which a plan is called hopeless.
const HOPELESS: f64 = 3.0;

/// Warns if the noise of all steps together is larger than any gradient can be.
pub(crate) fn warn_if_hopeless(noise_to_signal: f64) {
    // Tests for the good case, so that NaN is warned about.
    if noise_to_signal < HOPELESS {
        return;
    }
    warn(&format!(
        "the model will learn next to nothing: averaged over all steps, the noise is still {} \
         times as large as the largest possible gradient; raise privacy.epsilon or \
         training.lot_size, train fewer parameters (model.lora_rank), or use more records",
        short((noise_to_signal * 10.0).round() / 10.0)
    ));
}
