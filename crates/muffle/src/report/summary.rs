//! The sentences of a privacy statement, rendered from its typed fields.

use crate::config::{DroppedRows, PersonRows, Select};
use crate::report::Marking;
use crate::report::digits::{up, up_e};
use crate::report::statement::{RandomnessSource, Statement};
use accounting::{Accountant, Adjacency, Delta, Ledger, SamplingMethod, Unit};
use engine::Isolation;
use noise::GaussianKind;
use std::fmt::Write;

/// The share of false alarms for which the success of an attacker is stated.
const FALSE_ALARMS: f64 = 0.01;

impl Statement {
    /// The whole statement in sentences, for its field `summary`.
    pub(crate) fn rendered(&self) -> Vec<String> {
        let mut lines = self.words();
        lines.extend(self.covered().into_iter().map(|line| format!("Covered: {line}")));
        lines.extend(self.not_covered().into_iter().map(|line| format!("Not covered: {line}")));
        lines
    }

    /// The guarantee in plain words, by paragraphs.
    pub fn words(&self) -> Vec<String> {
        let (Some(epsilon), Some(delta), Some(unit)) = (self.epsilon, self.delta, self.unit) else {
            return vec![
                "This model was trained without privacy. Everything in the training data may be \
                 in the model."
                    .into(),
            ];
        };
        if !self.private {
            return vec![format!(
                "The noise came from a seed that is part of this statement. Every reader can \
                 remove it, so there is no guarantee. With a secret seed the run would have ε = {} \
                 at δ = {}.",
                up(epsilon, 3),
                up_e(delta)
            )];
        }
        let unit_records = match (unit.rows, self.person_rows) {
            (1, Some(PersonRows::Combined)) => "all rows of one person".to_string(),
            (1, Some(PersonRows::Separate)) => "the one row of a person that took part".to_string(),
            (1, None) => "one record".to_string(),
            (k, _) => format!("all records of one person, of which at most {k} took part"),
        };
        let change = match unit.adjacency {
            Adjacency::AddRemove => format!("ith or without {unit_records}"),
            Adjacency::ReplaceOne => format!("ith another content of {unit_records}"),
        };
        let shown = up(epsilon, 3);
        // Of the ε that is shown, which may be larger than the computed one.
        let factor = shown.parse().map_or(f64::INFINITY, f64::exp);
        let factor = if factor < 1e4 { up(factor, 2) } else { up_e(factor) };
        let attack = self.attack_in_words(unit, delta);
        let start = if attack.is_some() { "In the usual terms: w" } else { "W" };
        let guarantee = format!(
            "{start}{change}, the probability of any outcome of the training changes \
             at most by the factor e^{shown} ≤ {factor}, plus {}. An outcome is the model \
             together with every value that was released while it was trained.",
            up_e(delta),
        );
        attack
            .into_iter()
            .chain([
                guarantee,
                match self.coverage.isolation {
                    Isolation::Exact => "This is the worst case, over all data and all attackers, \
                    whatever they know of the other records."
                        .into(),
                    Isolation::UpToRounding => {
                        "This is the worst case over all attackers, whatever \
                    they know of the other records, and over all data except data constructed to \
                    exploit the rounding of the program."
                            .into()
                    }
                },
            ])
            .collect()
    }

    /// What an attacker can achieve, in numbers; `None` if the accountant has no such bound.
    ///
    /// The rates are upper bounds on every test, and are rounded up.
    fn attack_in_words(&self, unit: Unit, delta: f64) -> Option<String> {
        let delta = Delta::new(delta).ok()?;
        let cost = self.ledger.cost(unit).ok()?;
        let curve = cost.trade_off(delta).ok();
        let found = match &curve {
            Some(curve) => curve.tpr(FALSE_ALARMS),
            // Without a curve, (ε, δ) bounds every test: TPR ≤ e^ε FPR + δ.
            None => {
                let epsilon = cost.epsilon(Accountant::Best, delta).ok()?.epsilon;
                (epsilon.exp() * FALSE_ALARMS + delta.get()).min(1.0)
            }
        };
        // Ten rows are ten steps between neighbours, each of which maps the rate of alarms on one
        // side to the largest one on the other. A direct bound is lower, but can take half a minute.
        let of_ten = curve.map(|curve| (0..10).fold(FALSE_ALARMS, |rate, _| curve.tpr(rate)));
        let percent = |rate: f64| up(100.0 * rate, 1);
        let named = self.person_column.is_some();
        let (one, many) = if named { ("person", "persons") } else { ("record", "records") };
        let (alarms, rate) = (100.0 * FALSE_ALARMS, percent(found));
        let mut text = match unit.adjacency {
            Adjacency::AddRemove => format!(
                "An attacker who knows everything else tests whether a {one} took part. A test that \
                 raises a false alarm for {alarms} % of the {many} that did not take part finds at \
                 most {rate} % of those that did; a test without the model finds {alarms} %."
            ),
            Adjacency::ReplaceOne => format!(
                "An attacker who knows everything else tests which of two contents a {one} has. A \
                 test that wrongly reports the second for {alarms} % of the {many} with the first \
                 reports it for at most {rate} % of those with the second; a test without the model \
                 for {alarms} %."
            ),
        };
        if !named && let Some(rate) = of_ten {
            let _ = write!(text, " Of persons with 10 rows, it finds at most {} %.", percent(rate));
        }
        Some(text)
    }

    /// What the guarantee covers; empty without one.
    pub fn covered(&self) -> Vec<String> {
        let Some((unit, delta)) = self.promise() else { return Vec::new() };
        let protected_unit = match &self.person_column {
            Some(column) if self.person_rows == Some(PersonRows::Combined) => format!(
                "Every person, as named in the column {column:?}, with all rows that took part, \
                 however many: their gradient is clipped as one."
            ),
            Some(column) => format!(
                "Every person, as named in the column {column:?}, with all rows that took part, at \
                 most {}.",
                unit.rows
            ),
            None => format!(
                "Every single row of the training data. A person with several rows is protected \
                 less: with 2 rows ε is {}, with 10 rows {}, at the same δ.",
                epsilon_for_rows(&self.ledger, unit, delta, 2),
                epsilon_for_rows(&self.ledger, unit, delta, 10)
            ),
        };
        let charged = if self.sampling == SamplingMethod::Shuffled { "epochs" } else { "lots" };
        let sessions = match self.sessions.len() {
            1 => "1 session".into(),
            sessions => format!("{sessions} sessions (the run was resumed)"),
        };
        vec![
            protected_unit,
            format!(
                "All {} {charged} that were charged, in {sessions}, with queries that depend on \
                 earlier answers; the noise followed a plan that was fixed before the first.",
                self.ledger.events().len(),
            ),
            "The model, every checkpoint, the learning rates, and everything computed from them."
                .into(),
            self.parameters_in_words(),
        ]
    }

    /// What the guarantee does not cover.
    pub fn not_covered(&self) -> Vec<String> {
        if !self.private {
            return vec!["Every record of the training data.".into()];
        }
        let data_set = match self.coverage.dropped_rows {
            DroppedRows::Vacant => {
                "The existence of the data set, its number of rows, and the configuration: they \
                 count as public."
            }
            DroppedRows::Public => {
                "The existence of the data set, its number of rows, which of them were removed as \
                 too long or empty (data.dropped_rows = \"public\"), and the configuration: they \
                 count as public."
            }
        };
        let mut list = vec![
            data_set,
            "Other runs on the same records, and settings that were chosen by looking at the \
             data: every run adds to the cost.",
            "What can be learned about a person from the records of others: this is what a model \
             is for.",
            "What the model knew before: its pretraining data and its tokenizer.",
            "Observers of the machines at work: time, memory, the folder of the data, sealed \
             files, messages between processes.",
        ];
        if self.coverage.isolation == Isolation::UpToRounding {
            list.push(
                "Data constructed to exploit the rounding of the program: in the last bits, the \
                 contribution of a record depends on the records computed with it, and at a kink \
                 of the model these bits decide a whole gradient (curator/PROOFS.md, 2).",
            );
        }
        if self.coverage.noise == Some(GaussianKind::Float) {
            list.push(
                "Rounding of the noise: it is drawn from a cryptographic generator and rounded to \
                 a public grid; the exact law of floating-point numbers is argued, not proved.",
            );
        }
        if self.coverage.figures == Marking::NonPrivate {
            list.push(
                "The records of the validation and test data: every figure computed from them is \
                 marked NON-PRIVATE.",
            );
        }
        if self.coverage.frozen_weights {
            list.push("The frozen weights: they are those of the original model.");
        }
        list.into_iter().map(String::from).collect()
    }

    /// Which parameters the model has, in words.
    pub fn parameters_in_words(&self) -> String {
        let (step, steps) = (self.model_step, self.steps);
        let parameters = match self.ema_decay {
            None => format!("those after step {step}"),
            Some(decay) => format!(
                "a moving average (decay {decay}) of those of all steps up to step {step}, which \
                 costs nothing"
            ),
        };
        match self.selection {
            Select::Last => format!("The parameters of the model are {parameters}."),
            selection => format!(
                "The parameters of the model are {parameters} of {steps}, selected by \
                 figures on validation data that were declared public (evaluation.select = {:?}). \
                 The selection costs nothing: the charges cover the parameters of every step.",
                selection.name()
            ),
        }
    }

    /// The unit of protection and its neighbours in words.
    pub fn neighbours_in_words(&self) -> String {
        match (self.unit, self.person_rows) {
            (None, _) => "none".into(),
            (Some(unit), Some(PersonRows::Combined)) => {
                format!("{}, all rows of one person", unit.adjacency)
            }
            (Some(unit), _) => unit.to_string(),
        }
    }

    /// The sampling of lots in words.
    pub fn sampling_in_words(&self) -> String {
        let (lot, records) = (self.lot_size.round(), self.records);
        match self.sampling {
            SamplingMethod::Poisson => {
                format!("poisson: each of {records} records with probability {lot}/{records}")
            }
            SamplingMethod::FixedSize => {
                format!("fixed: {lot} of {records} records, drawn for each step")
            }
            SamplingMethod::Shuffled => format!(
                "shuffled: lots of {lot} records, in an order drawn for each epoch; no \
                 amplification is claimed"
            ),
            SamplingMethod::Full => "full: every record in every step".into(),
        }
    }
}

impl std::fmt::Display for RandomnessSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::OperatingSystem => f.write_str("the operating system"),
            Self::FixedSeed(seed) => {
                write!(f, "FIXED SEED {seed}: every reader can remove the noise")
            }
        }
    }
}

/// ε of a person with `rows` rows, in words if it cannot be computed.
fn epsilon_for_rows(ledger: &Ledger, unit: Unit, delta: f64, rows: u64) -> String {
    let price = Delta::new(delta)
        .and_then(|delta| ledger.cost(Unit { rows, ..unit })?.epsilon(Accountant::Best, delta));
    price.map_or_else(|_| format!("more than {rows} times as large"), |price| up(price.epsilon, 1))
}
