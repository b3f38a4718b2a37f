//! `privacy.json`: what is promised to whom, for how much, and what is not. It has all that is
//! needed to compute the figures again.

use crate::Failed;
use crate::Plan;
use crate::config::{Config, DroppedRows, Publicity};
use crate::report::digits::{up, up_e};
use crate::run::chain::{Chain, Closing, SessionEntry};
use crate::run::snapshot;
use accounting::{Accountant, Delta, Ledger, SamplingRate, Unit};
use curator::{Noise, Sampling};
use model::Isolation;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The privacy statement of a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Statement {
    /// Of the written form.
    pub version: u32,
    /// Which program says so.
    pub software: String,
    /// The id of the run, which its other files have as well.
    pub run_id: String,
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
    /// Places of the data set, whether they hold a record or not: rows of the file, or those left
    /// if `dropped_rows` is public. Public by assumption.
    pub records: usize,
    /// Whether rows that are too long or empty are vacant places, or were removed because which
    /// ones they are was declared public.
    pub dropped_rows: DroppedRows,
    /// The public lot size.
    pub lot_size: f64,
    /// The noise of a lot's gradient, in clip bounds, all blocks together.
    pub noise_multiplier: Option<f64>,
    /// What numbers the noise is made of.
    pub noise: Option<Noise>,
    /// How far the engine keeps records apart while it computes.
    pub isolation: Isolation,
    /// Steps whose result is in the model.
    pub steps: u64,
    /// Where noise and lots came from.
    pub randomness: String,
    /// The processes that worked on the run: one, and one more each time it was resumed.
    pub sessions: Vec<SessionEntry>,
    /// Everything that was charged.
    pub ledger: Ledger,
    /// The head of the hash chain over sessions and charges.
    pub ledger_head: String,
    /// SHA-256 of the configuration, as far as it decides what is trained and charged.
    pub config_sha256: String,
    /// SHA-256 of each file of weights.
    pub weights_sha256: Vec<(String, String)>,
    /// What the guarantee says, in words.
    pub covered: Vec<String>,
    /// What it does not say.
    pub not_covered: Vec<String>,
}

/// The name of the file.
pub const FILE: &str = "privacy.json";

/// The version of the written form.
const VERSION: u32 = 2;

/// This program.
const SOFTWARE: &str = concat!("muffle ", env!("CARGO_PKG_VERSION"));

/// What the words depend on beside the numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Circumstances {
    /// The column that says whose a row is, in quotation marks.
    group: Option<String>,
    seed: Option<u64>,
    evaluation: Publicity,
    dropped_rows: DroppedRows,
    noise: Option<Noise>,
    isolation: Isolation,
    /// Whether some weights were not trained.
    frozen: bool,
}

const SYSTEM: &str = "the operating system";
const SEED: &str = "FIXED SEED ";
const PERSON: &str = "Every person, as named in the column ";
const EVALUATION: &str =
    "The people of the validation and test data: every figure on them is marked NON-PRIVATE.";
const FROZEN: &str = "The frozen weights: they are those of the model as it was.";

impl Circumstances {
    fn of(config: &Config, isolation: Isolation) -> Self {
        Self {
            isolation,
            group: config.data.group.as_ref().map(|column| format!("{column:?}")),
            seed: config.privacy.seed,
            evaluation: config.data.publicity(),
            dropped_rows: config.data.dropped_rows,
            noise: config.optimizer.is_private().then_some(config.privacy.noise),
            frozen: config.optimizer.entry().needs_pairs || config.model.lora_rank > 0,
        }
    }

    /// As a statement tells of them.
    fn told(statement: &Statement) -> Self {
        let says = |line: &str| statement.not_covered.iter().any(|said| said == line);
        let group = statement.covered.first().and_then(|line| quoted(line.strip_prefix(PERSON)?));
        let seed = statement
            .randomness
            .strip_prefix(SEED)
            .and_then(|rest| rest.split(':').next()?.parse().ok());
        let evaluation = if says(EVALUATION) { Publicity::Private } else { Publicity::Public };
        Self {
            group,
            seed,
            evaluation,
            dropped_rows: statement.dropped_rows,
            noise: statement.noise,
            isolation: statement.isolation,
            frozen: says(FROZEN),
        }
    }

    fn randomness(&self) -> String {
        match self.seed {
            None => SYSTEM.into(),
            Some(seed) => {
                format!("{SEED}{seed}: whoever knows it, and you do now, can take the noise off")
            }
        }
    }
}

/// The text in quotation marks that begins here, with them.
fn quoted(text: &str) -> Option<String> {
    let (mut escaped, mut length) = (false, 1);
    for c in text.strip_prefix('"')?.chars() {
        length += c.len_utf8();
        match c {
            '"' if !escaped => return Some(text[..length].into()),
            c if c.is_control() => return None,
            c => escaped = c == '\\' && !escaped,
        }
    }
    None
}

impl Statement {
    /// For a run of this configuration with these charges.
    ///
    /// # Errors
    /// If the price cannot be computed.
    pub fn new(
        config: &Config,
        plan: &Plan,
        chain: &Chain,
        steps: u64,
        isolation: Isolation,
        weights_sha256: Vec<(String, String)>,
    ) -> Result<Self, Failed> {
        let ledger = chain.ledger();
        let open = Chain::rebuild(chain.run_id(), ledger.events(), chain.sessions())
            .map_err(Failed::Input)?;
        let spent = plan.budget.map(|_| plan.spent(ledger)).transpose()?;
        let circumstances = Circumstances::of(config, isolation);
        // Whoever reads the statement would know the seed, and could take the noise off.
        let private = spent.is_some() && circumstances.seed.is_none();
        let mut statement = Self {
            version: VERSION,
            software: SOFTWARE.into(),
            run_id: chain.run_id().into(),
            private,
            epsilon: spent.map(|spent| spent.epsilon),
            delta: spent.map(|spent| spent.delta),
            promised_epsilon: plan.budget.map(|budget| budget.epsilon.get()),
            unit: spent.map(|spent| spent.unit),
            accountant: spent.map(|spent| spent.accountant),
            sampling: sampling(plan.sampling),
            records: plan.records,
            dropped_rows: circumstances.dropped_rows,
            lot_size: plan.lot_size(),
            noise_multiplier: plan.budget.map(|_| plan.sigma.gradient),
            noise: circumstances.noise,
            isolation,
            steps,
            randomness: circumstances.randomness(),
            sessions: chain.sessions().to_vec(),
            ledger: ledger.clone(),
            // Without the closing, which has the hash of this statement.
            ledger_head: open.head(),
            config_sha256: config.digest(),
            weights_sha256,
            covered: Vec::new(),
            not_covered: Vec::new(),
        };
        (statement.covered, statement.not_covered) = statement.coverage(&circumstances);
        Ok(statement)
    }

    /// Reads one strictly: every field is there, once, and there is no other.
    ///
    /// # Errors
    /// One line that names what is wrong.
    pub fn parse(text: &str) -> Result<Self, String> {
        let statement: Self = serde_json::from_str(text).map_err(|error| error.to_string())?;
        // What serde overlooks: an option that is left out, a field too many deeper down.
        let (there, expected) = (serde_json::from_str(text), serde_json::to_value(&statement));
        let (there, expected): (Value, Value) =
            there.and_then(|there| Ok((there, expected?))).map_err(|error| error.to_string())?;
        match differing(&there, &expected, "") {
            Some(place) => {
                Err(format!("{place}: a field that is missing, unknown or out of place"))
            }
            None => Ok(statement),
        }
    }

    /// The bytes that are hashed and signed: compact JSON with the fields in their order.
    ///
    /// # Errors
    /// If it has no written form, which does not happen.
    pub fn canonical(&self) -> Result<String, Failed> {
        serde_json::to_string(self).map_err(|error| Failed::Input(error.to_string()))
    }

    /// What closes the chain of the run that this is the statement of.
    pub(crate) fn closing(&self) -> Result<Closing, Failed> {
        Ok(Closing {
            weights_sha256: self.weights_sha256.clone(),
            config_sha256: self.config_sha256.clone(),
            statement_sha256: snapshot::digest(self.canonical()?.as_bytes()),
        })
    }

    /// The chain of the run up to its closing, recomputed.
    ///
    /// # Errors
    /// If the sessions do not fit the charges, or it has another head.
    pub(crate) fn chain(&self) -> Result<Chain, String> {
        let chain = Chain::rebuild(&self.run_id, self.ledger.events(), &self.sessions)?;
        match chain.head() == self.ledger_head {
            true => Ok(chain),
            false => Err(format!(
                "ledger_head: sessions and charges give {}, got {:?}",
                chain.head(),
                self.ledger_head
            )),
        }
    }

    /// The lists of what is covered and what is not, as they follow from everything else in the
    /// statement. None if no column says whose a row is, and a person has several.
    pub(crate) fn told(&self) -> Option<(Vec<String>, Vec<String>)> {
        let told = Circumstances::told(self);
        let of_rows = self.unit.is_none_or(|unit| unit.rows == 1);
        (of_rows || told.group.is_some() || !self.private).then(|| self.coverage(&told))
    }

    /// Whether this program says the same things in the same words.
    pub(crate) fn is_ours(&self) -> bool {
        self.version == VERSION && self.software == SOFTWARE
    }

    /// Where the noise came from, if it is one of the two things that a run can say: the seed, or
    /// none for the operating system.
    pub(crate) fn seed(&self) -> Option<Option<u64>> {
        let told = Circumstances::told(self);
        (told.randomness() == self.randomness).then_some(told.seed)
    }

    /// How lots were drawn, if it is said in our words.
    pub(crate) fn lots(&self) -> Option<Sampling> {
        let number = |before: &str| self.sampling.strip_prefix(before)?.split(' ').next();
        let lot = |before: &str| number(before)?.parse().ok();
        let dataset = self.records as u64;
        let poisson = || {
            SamplingRate::new(
                number("poisson: every record independently with probability ")?.parse().ok()?,
            )
            .ok()
        };
        let found = (poisson().map(|rate| Sampling::Poisson { rate }))
            .or_else(|| lot("fixed: ").map(|lot| Sampling::FixedSize { dataset, lot }))
            .or_else(|| lot("shuffled: ").map(|lot| Sampling::Shuffled { dataset, lot }))
            .unwrap_or(Sampling::Full);
        (sampling(found) == self.sampling).then_some(found)
    }

    fn coverage(&self, circumstances: &Circumstances) -> (Vec<String>, Vec<String>) {
        let covered = match (self.unit, self.delta) {
            (Some(unit), Some(delta)) if self.private => {
                self.covered_by(circumstances, unit, delta)
            }
            _ => Vec::new(),
        };
        (covered, not_covered(circumstances, self.private))
    }

    fn covered_by(&self, circumstances: &Circumstances, unit: Unit, delta: f64) -> Vec<String> {
        let whom = match &circumstances.group {
            Some(column) => format!(
                "{PERSON}{column}, with all of the {} rows at most that took part.",
                unit.rows
            ),
            None => format!(
                "Every single row of the training data. Somebody with several rows is protected \
                 less: with 2 rows ε is {}, with 10 rows {}, at the same δ.",
                of_rows(&self.ledger, unit, delta, 2),
                of_rows(&self.ledger, unit, delta, 10)
            ),
        };
        let what =
            if matches!(self.lots(), Some(Sampling::Shuffled { .. })) { "epochs" } else { "lots" };
        vec![
            whom,
            format!(
                "All {} {what} that were charged, in {}, in whatever order the answers led to; the \
                 noise followed a plan that was fixed before the first.",
                self.ledger.events().len(),
                match self.sessions.len() {
                    1 => "1 session".into(),
                    sessions => format!("{sessions} sessions (the run was resumed)"),
                }
            ),
            "The model, every checkpoint, the learning rates and whatever anybody computes from \
             them."
                .into(),
        ]
    }

    /// The statement in plain words, a paragraph each.
    pub fn words(&self) -> Vec<String> {
        let (Some(epsilon), Some(delta), Some(unit)) = (self.epsilon, self.delta, self.unit) else {
            return vec![
                "This model was trained without privacy. Whatever is in the data may be in \
                the model."
                    .into(),
            ];
        };
        if !self.private {
            return vec![format!(
                "The noise came from a seed that is written in this statement, so that it protects \
                 nobody from its readers. With a secret seed the run would have ε = {} at δ = {}.",
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
                "Whoever sees this model, and every value that was released while it was made, \
                 sees almost the same as {change}: whatever they do, it becomes at most e^{} ≤ \
                 {factor} times as likely, and then \
                 by another {} at most.",
                up(epsilon, 3),
                up_e(delta),
            ),
            match self.isolation {
                Isolation::Exact => "That is the worst case, over all data and all attackers, \
                    whatever they know of everybody else."
                    .into(),
                Isolation::UpToRounding => "That is the worst case over all attackers, whatever \
                    they know of everybody else, and over all data but such as were made for the \
                    rounding of the program."
                    .into(),
            },
        ]
    }
}

/// How lots were drawn, in words.
fn sampling(sampling: Sampling) -> String {
    match sampling {
        Sampling::Poisson { rate } => {
            format!("poisson: every record independently with probability {}", rate.get())
        }
        Sampling::FixedSize { lot, .. } => {
            format!("fixed: {lot} records, drawn anew for each step")
        }
        Sampling::Shuffled { lot, .. } => {
            format!(
                "shuffled: {lot} records after one another from an order drawn for each epoch; no \
                 amplification is claimed"
            )
        }
        Sampling::Full => "full: every record in every step".into(),
    }
}

/// ε of somebody with several rows.
fn of_rows(ledger: &Ledger, unit: Unit, delta: f64, rows: u64) -> String {
    let price = Delta::new(delta)
        .and_then(|delta| ledger.cost(Unit { rows, ..unit })?.epsilon(Accountant::Best, delta));
    price.map_or_else(|_| format!("more than {rows} times as large"), |price| up(price.epsilon, 1))
}

fn not_covered(circumstances: &Circumstances, private: bool) -> Vec<String> {
    if !private {
        return vec!["Anybody in the training data.".into()];
    }
    let mut list =
        vec![
        match circumstances.dropped_rows {
            DroppedRows::Vacant => "That there is such a data set, how many rows it has, and the \
                configuration: they count as public.",
            DroppedRows::Public => {
                "That there is such a data set, how many rows it has, which of them are too long \
                 or empty and were removed (data.dropped_rows = \"public\"), and the \
                 configuration: they count as public."
            }
        }
        .to_string(),
        "Other runs on the same people, and settings that were chosen by looking at their data: \
         every run adds to what is spent.".into(),
        "What can be learned about somebody from other people's data: that is what models are \
         for.".into(),
        "What the model knew before: the data of its first training, its tokenizer.".into(),
        "Whoever can watch the machines at work: time, memory, the folder of the data, files that \
         were sealed, what several processes send each other.".into(),
    ];
    if circumstances.isolation == Isolation::UpToRounding {
        list.push(
            "Data made for the rounding of the program: what one record contributes depends \
            on which others are computed with it, in the last bits, and at a kink of the model \
            these decide a whole gradient (curator/PROOFS.md, 2)."
                .into(),
        );
    }
    if circumstances.noise == Some(Noise::Float) {
        list.push(
            "Rounding: noise is drawn from a cryptographic generator and rounded onto a \
            public grid; the exact law of floating-point numbers is argued, not proved."
                .into(),
        );
    }
    if circumstances.evaluation == Publicity::Private {
        list.push(EVALUATION.into());
    }
    if circumstances.frozen {
        list.push(FROZEN.into());
    }
    list
}

/// The first place at which two values have other keys, lengths or kinds. How a number is written
/// does not matter.
fn differing(a: &Value, b: &Value, within: &str) -> Option<String> {
    let place =
        |key: &str| if within.is_empty() { key.to_string() } else { format!("{within}.{key}") };
    match (a, b) {
        (Value::Object(a), Value::Object(b)) => {
            let alone = a
                .keys()
                .find(|key| !b.contains_key(*key))
                .or_else(|| b.keys().find(|key| !a.contains_key(*key)));
            alone.map(|key| place(key)).or_else(|| {
                a.iter().find_map(|(key, value)| differing(value, b.get(key)?, &place(key)))
            })
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => a
            .iter()
            .zip(b)
            .enumerate()
            .find_map(|(index, (a, b))| differing(a, b, &place(&index.to_string()))),
        (Value::Number(a), Value::Number(b)) if a.as_f64() == b.as_f64() => None,
        _ => (a != b).then(|| within.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_column_is_found_whatever_it_is() {
        for column in ["who", "", "a \"b\" c", "back\\", "tab\t", "\u{1}", "ü", ", with all of the"]
        {
            let line = format!("{column:?}, with all of the 3 rows at most that took part.");
            assert_eq!(quoted(&line), Some(format!("{column:?}")));
        }
        for line in ["", "who", "\"who", "\"a\nb\"", "\"who\\\""] {
            assert_eq!(quoted(line), None, "{line}");
        }
    }
}
