//! Values that no run accepts, whatever its data and model are.

use super::{Auto, Config, PersonRows};
use crate::Error;
use std::collections::HashSet;

/// Largest noise multiplier. A run with more noise learns nothing.
const MAX_SIGMA: f64 = 1e6;
/// Largest number of beams.
const MAX_BEAMS: usize = 256;
/// Largest number of threads.
const MAX_THREADS: usize = 1024;

impl Config {
    /// Refuses values outside their range.
    pub(crate) fn check_values(&self) -> Result<(), Error> {
        self.check_counts()?;
        self.check_persons()?;
        self.check_labels()?;
        let refuse = |key: &str, expected: &str, got: f64| {
            Err(Error::config(key, format!("expected {expected}, got {got}")))
        };
        let (alpha, penalty) = (self.model.lora_alpha, self.evaluation.length_penalty);
        if !(alpha > 0.0 && alpha < f64::INFINITY) {
            return refuse("model.lora_alpha", "a finite number greater than 0", alpha);
        }
        if !penalty.is_finite() {
            return refuse("evaluation.length_penalty", "a finite number", penalty);
        }
        match self.privacy.sigma {
            Auto::Value(sigma) if sigma > MAX_SIGMA && sigma < f64::INFINITY => {
                refuse("privacy.sigma", &format!("at most {MAX_SIGMA:e}"), sigma)
            }
            _ => Ok(()),
        }
    }

    fn check_counts(&self) -> Result<(), Error> {
        let (training, evaluation) = (&self.training, &self.evaluation);
        let threads = training.threads.given().copied().unwrap_or(1);
        let beams = evaluation.beams;
        for (key, value, least, most) in [
            ("training.micro_batch", training.micro_batch.or(1), 1, usize::MAX),
            ("training.threads", threads, 1, MAX_THREADS),
            ("evaluation.beams", beams, 1, MAX_BEAMS),
            ("evaluation.max_new_tokens", evaluation.max_new_tokens, 1, usize::MAX),
            (
                "evaluation.min_new_tokens",
                evaluation.min_new_tokens,
                0,
                // The default need not be changed with the maximum.
                evaluation.max_new_tokens.max(super::Evaluation::default().min_new_tokens),
            ),
        ] {
            if value < least {
                let message = format!("expected at least {least}, got {value}");
                return Err(Error::config(key, message));
            }
            if value > most {
                return Err(Error::config(key, format!("expected at most {most}, got {value}")));
            }
        }
        for (key, value) in [
            ("training.checkpoint_every", training.checkpoint_every),
            ("evaluation.every", evaluation.every.or(1)),
        ] {
            if value == 0 {
                return Err(Error::config(key, "expected at least 1, got 0"));
            }
        }
        Ok(())
    }

    /// Refuses settings of persons where no column names them.
    fn check_persons(&self) -> Result<(), Error> {
        let data = &self.data;
        let given = [
            ("data.rows_per_person", data.rows_per_person.given().is_some()),
            ("data.person_rows", data.person_rows == PersonRows::Separate),
        ];
        match given.iter().find(|(_, given)| *given && data.group.is_none()) {
            Some((key, _)) => Err(Error::config(
                *key,
                "needs the column that names the person of a row; set data.group, or remove the key",
            )),
            None => Ok(()),
        }
    }

    /// Refuses class names that are empty or occur twice.
    fn check_labels(&self) -> Result<(), Error> {
        let mut seen = HashSet::new();
        match self.data.labels.iter().find(|label| label.trim().is_empty() || !seen.insert(*label))
        {
            Some(label) => Err(Error::config(
                "data.labels",
                format!("expected different names that are not empty, got {label:?}"),
            )),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_outside_their_range_are_refused_with_their_key() {
        for (change, message) in [
            ("training.micro_batch=0", "training.micro_batch: expected at least 1, got 0"),
            ("training.threads=0", "training.threads: expected at least 1, got 0"),
            ("training.threads=100000", "training.threads: expected at most 1024, got 100000"),
            ("training.checkpoint_every=0", "training.checkpoint_every: expected at least 1"),
            ("evaluation.every=0", "evaluation.every: expected at least 1, got 0"),
            ("evaluation.beams=0", "evaluation.beams: expected at least 1, got 0"),
            ("evaluation.beams=1000000", "evaluation.beams: expected at most 256"),
            ("evaluation.max_new_tokens=0", "evaluation.max_new_tokens: expected at least 1"),
            ("evaluation.min_new_tokens=200", "evaluation.min_new_tokens: expected at most 100"),
            ("evaluation.length_penalty=nan", "evaluation.length_penalty: expected a finite"),
            ("model.lora_alpha=0", "model.lora_alpha: expected a finite number greater than 0"),
            ("model.lora_alpha=-3", "model.lora_alpha: expected a finite number greater than 0"),
            ("privacy.sigma=1e10", "privacy.sigma: expected at most 1e6, got 10000000000"),
            ("data.rows_per_person=4", "data.rows_per_person: needs the column"),
            ("data.person_rows=separate", "data.person_rows: needs the column"),
            ("data.labels=[\"a\", \"b\", \"a\"]", "data.labels: expected different names"),
            ("data.labels=[\"a\", \"\"]", "data.labels: expected different names"),
        ] {
            let config = Config::default().with(change).unwrap();
            let refused = config.check_values().unwrap_err().to_string();
            assert!(refused.starts_with(message), "{refused}");
        }
        Config::default().check_values().unwrap();
        Config::default().with("evaluation.max_new_tokens=3").unwrap().check_values().unwrap();
    }
}
