//! `privacy.json`: what is promised to whom, for how much, and what is not. It has all that is needed to compute the figures again.

use crate::config::{Config, Publicity};
use crate::digits::{up, up_e};
use crate::optimizers::Name;
use crate::{Failed, Plan, snapshot};
use accounting::{Accountant, Delta, Guarantee, Ledger, Unit};
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
        // Whoever reads the statement would know the seed, and could take the noise off.
        let private = spent.is_some() && config.privacy.seed.is_none();
        let text = serde_json::to_string(ledger).map_err(|error| Failed::Input(error.to_string()))?;
        Ok(Self {
            version: VERSION,
            software: concat!("muffle ", env!("CARGO_PKG_VERSION")).into(),
            private,
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
                Some(seed) => format!("FIXED SEED {seed}: whoever knows it, and you do now, can take the noise off"),
            },
            ledger: ledger.clone(),
            ledger_sha256: snapshot::digest(text.as_bytes()),
            weights_sha256,
            covered: spent.filter(|_| private).map(|spent| covered(config, ledger, &spent)).unwrap_or_default(),
            not_covered: not_covered(config, private),
        })
    }

    /// The statement in plain words, a paragraph each.
    pub fn words(&self) -> Vec<String> {
        let (Some(epsilon), Some(delta), Some(unit)) = (self.epsilon, self.delta, self.unit) else {
            return vec!["This model was trained without privacy. Whatever is in the data may be in the model.".into()];
        };
        if !self.private {
            return vec![format!(
                "The noise came from a seed that is written in this statement, so that it protects nobody from its readers. With a secret seed the run would have ε = {} at δ = {}.",
                up(epsilon, 3),
                up_e(delta)
            )];
        }
        let whose = if unit.rows == 1 {
            "one record".to_string()
        } else {
            format!("all records of one person, of which at most {} took part", unit.rows)
        };
        let change = match unit.adjacency {
            accounting::Adjacency::AddRemove => format!("with or without {whose}"),
            accounting::Adjacency::ReplaceOne => format!("if {whose} had said something else"),
        };
        let factor = epsilon.exp();
        let factor = if factor < 1e4 { up(factor, 2) } else { up_e(factor) };
        vec![
            format!(
                "Whoever sees this model, and every value that was released while it was made, sees almost the same as {change}: whatever they do, it becomes at most e^{} ≤ {factor} times as likely, and then \
                 by another {} at most.",
                up(epsilon, 3),
                up_e(delta),
            ),
            "That is the worst case, over all data and all attackers, whatever they know of everybody else.".into(),
        ]
    }
}

/// How lots were drawn, in words.
fn sampling(sampling: Sampling) -> String {
    match sampling {
        Sampling::Poisson { rate } => format!("poisson: every record independently with probability {}", rate.get()),
        Sampling::FixedSize { lot } => format!("fixed: {lot} records, drawn anew for each step"),
        Sampling::Shuffled { lot } => {
            format!("shuffled: {lot} records after one another from an order drawn for each epoch; no amplification is claimed")
        }
        Sampling::Full => "full: every record in every step".into(),
    }
}

fn covered(config: &Config, ledger: &Ledger, spent: &Guarantee) -> Vec<String> {
    let unit = match (&config.data.group, spent.unit.rows) {
        (Some(column), rows) => {
            format!("Every person, as named in the column {column:?}, with all of the {rows} rows at most that took part.")
        }
        (None, _) => format!(
            "Every single row of the training data. Somebody with several rows is protected less: with 2 rows ε is {}, with 10 rows {}, at the same δ.",
            of_rows(ledger, spent, 2),
            of_rows(ledger, spent, 10)
        ),
    };
    let what = if config.privacy.sampling == crate::config::Sampling::Shuffled { "epochs" } else { "lots" };
    vec![
        unit,
        format!(
            "All {} {what} that were charged, in whatever order the answers led to; the noise followed a plan that was fixed before the first.",
            ledger.events().len()
        ),
        "The model, every checkpoint, the learning rates and whatever anybody computes from them.".into(),
    ]
}

/// ε of somebody with several rows.
fn of_rows(ledger: &Ledger, spent: &Guarantee, rows: u64) -> String {
    let unit = Unit { rows, ..spent.unit };
    let price = Delta::new(spent.delta).and_then(|delta| ledger.cost(unit)?.epsilon(Accountant::Best, delta));
    price.map_or_else(|_| format!("more than {rows} times as large"), |price| up(price.epsilon, 1))
}

fn not_covered(config: &Config, private: bool) -> Vec<String> {
    if !private {
        return vec!["Anybody in the training data.".into()];
    }
    let mut list = vec![
        "That there is such a data set, how many records of it took part, and the configuration: they count as public.".to_string(),
        "Other runs on the same people, and settings that were chosen by looking at their data: every run adds to what is spent.".into(),
        "What can be learned about somebody from other people's data: that is what models are for.".into(),
        "What the model knew before: the data of its first training, its tokenizer.".into(),
        "Whoever can watch the machine at work: time, memory, the folder of the data, files that were sealed.".into(),
        "Rounding: noise is drawn from a cryptographic generator and rounded onto a public grid; the exact law of floating-point numbers is argued, not proved.".into(),
    ];
    if config.data.publicity() == Publicity::Private {
        list.push("The people of the validation and test data: every figure on them is marked NON-PRIVATE.".into());
    }
    if Name::of(&config.optimizer.name).is_ok_and(|name| name.needs_pairs()) || config.model.lora_rank > 0 {
        list.push("The frozen weights: they are those of the model as it was.".into());
    }
    list
}
