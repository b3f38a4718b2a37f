//! `privacy.json`: what is promised to whom, for how much, and what is not. It has all that is needed to compute the figures again.

use crate::config::{Config, Publicity};
use crate::optimizers::Name;
use crate::{Failed, Plan, snapshot};
use accounting::{Accountant, Guarantee, Ledger, Unit};
use curator::Sampling;
use serde::{Deserialize, Serialize};

/// The privacy statement of a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Statement {
    /// Of the written form.
    pub version: u32,
    /// Which program says so.
    pub software: String,
    /// Whether there is a guarantee at all.
    pub private: bool,
    /// What was spent: ε, an upper bound. None if there is no guarantee.
    pub epsilon: Option<f64>,
    /// At this δ.
    pub delta: Option<f64>,
    /// What was promised before the run began.
    pub promised_epsilon: Option<f64>,
    /// Which data sets are neighbours, and how many rows a person has.
    pub unit: Option<Unit>,
    /// Whose figure it is.
    pub accountant: Option<Accountant>,
    /// How lots were drawn.
    pub sampling: String,
    /// Records that took part. Public by assumption.
    pub records: usize,
    /// The public lot size.
    pub lot_size: f64,
    /// The noise of a lot's gradient, in clip bounds, all blocks together.
    pub noise_multiplier: Option<f64>,
    /// Steps whose result is in the model.
    pub steps: u64,
    /// Where noise and lots came from.
    pub randomness: String,
    /// Everything that was charged.
    pub ledger: Ledger,
    /// SHA-256 of the ledger as it is written here without white space.
    pub ledger_sha256: String,
    /// SHA-256 of each file of weights.
    pub weights_sha256: Vec<(String, String)>,
    /// What the guarantee says, in words.
    pub covered: Vec<String>,
    /// What it does not say.
    pub not_covered: Vec<String>,
}

/// The version of the written form.
const VERSION: u32 = 1;

impl Statement {
    /// For a run of this configuration that spent this ledger.
    ///
    /// # Errors
    /// If the price cannot be computed.
    pub fn new(config: &Config, plan: &Plan, ledger: &Ledger, steps: u64, weights_sha256: Vec<(String, String)>) -> Result<Self, Failed> {
        let spent = plan.budget.map(|_| plan.spent(ledger)).transpose()?;
        let text = serde_json::to_string(ledger).map_err(|error| Failed::Input(error.to_string()))?;
        Ok(Self {
            version: VERSION,
            software: concat!("muffle ", env!("CARGO_PKG_VERSION")).into(),
            private: spent.is_some(),
            epsilon: spent.map(|spent| spent.epsilon),
            delta: spent.map(|spent| spent.delta),
            promised_epsilon: plan.budget.map(|budget| budget.epsilon.get()),
            unit: spent.map(|spent| spent.unit),
            accountant: spent.map(|spent| spent.accountant),
            sampling: sampling(plan.sampling),
            records: plan.records,
            lot_size: plan.lot_size(),
            noise_multiplier: plan.budget.map(|_| plan.sigma.gradient),
            steps,
            randomness: match config.privacy.seed {
                None => "the operating system".into(),
                Some(seed) => format!("FIXED SEED {seed}: there is no privacy for anybody who knows it"),
            },
            ledger: ledger.clone(),
            ledger_sha256: snapshot::digest(text.as_bytes()),
            weights_sha256,
            covered: spent.map(|spent| covered(config, plan, &spent)).unwrap_or_default(),
            not_covered: not_covered(config, spent.is_some()),
        })
    }

    /// The statement in plain words, a paragraph each.
    pub fn words(&self) -> Vec<String> {
        let (Some(epsilon), Some(delta), Some(unit)) = (self.epsilon, self.delta, self.unit) else {
            return vec!["This model was trained without privacy. Whatever is in the data may be in the model.".into()];
        };
        let whose = if unit.rows == 1 { "one record".to_string() } else { format!("all records of one person, of which at most {} took part", unit.rows) };
        let change = match unit.adjacency {
            accounting::Adjacency::AddRemove => format!("with or without {whose}"),
            accounting::Adjacency::ReplaceOne => format!("if {whose} had said something else"),
        };
        let factor = epsilon.exp();
        vec![
            format!(
                "Whoever sees this model, and every value that was released while it was made, sees almost the same as {change}. Nothing that could happen to somebody because of the model would be more than \
                 e^{epsilon:.3} ≈ {} times as likely{}, except with a probability of at most {delta:.2e}.",
                if factor < 1e6 { format!("{factor:.1}") } else { format!("{factor:.1e}") },
                if unit.adjacency == accounting::Adjacency::AddRemove { " because their data was there" } else { "" },
            ),
            "That is the worst case, over all data and all attackers, whatever they know of everybody else. The chart of what an attacker can gain says the same in another way: how often somebody who guesses \
             whether a given person was there can be right, for each rate of false alarms they accept."
                .into(),
        ]
    }
}

/// How lots were drawn, in words.
fn sampling(sampling: Sampling) -> String {
    match sampling {
        Sampling::Poisson { rate } => format!("poisson: every record independently with probability {}", rate.get()),
        Sampling::FixedSize { lot } => format!("fixed: {lot} records, drawn anew for each step"),
        Sampling::Shuffled { lot } => format!("shuffled: {lot} records after one another from an order drawn for each epoch; no amplification is claimed"),
        Sampling::Full => "full: every record in every step".into(),
    }
}

fn covered(config: &Config, plan: &Plan, spent: &Guarantee) -> Vec<String> {
    let unit = match (&config.data.group, spent.unit.rows) {
        (Some(column), rows) => format!("Every person, as named in the column {column:?}, with all of the {rows} rows at most that took part."),
        (None, _) => "Every single row of the training data. Somebody with several rows is protected less: the ε of k rows is about k times as large.".into(),
    };
    vec![
        unit,
        format!("All {} lots that were drawn, in whatever order the answers led to; the noise followed a plan that was fixed before the first.", plan.events.len()),
        "The model, every checkpoint, the learning rates and whatever anybody computes from them.".into(),
    ]
}

fn not_covered(config: &Config, private: bool) -> Vec<String> {
    if !private {
        return vec!["Everybody in the training data.".into()];
    }
    let mut list = vec![
        "That there is such a data set, how many records of it took part, and the configuration: they count as public.".to_string(),
        "Other runs on the same people, and settings that were chosen by looking at their data: every run adds to what is spent.".into(),
        "What can be learned about somebody from other people's data: that is what models are for.".into(),
        "What the model knew before: the data of its first training, its tokenizer.".into(),
        "Whoever can watch the machine at work: time, memory, the folder of the data, files that were sealed.".into(),
        "Rounding: noise is drawn from a cryptographic generator and rounded onto a public grid; the exact law of floating-point numbers is argued, not proved.".into(),
    ];
    if config.data.evaluation_data == Publicity::Private {
        list.push("The people of the validation and test data: every figure on them is marked NON-PRIVATE.".into());
    }
    if config.privacy.seed.is_some() {
        list.push("Anybody, against somebody who knows the seed of the noise: it was fixed.".into());
    }
    if Name::of(&config.optimizer.name).is_ok_and(|name| name.needs_pairs()) || config.model.lora_rank > 0 {
        list.push("The frozen weights: they are those of the model as it was.".into());
    }
    list
}
