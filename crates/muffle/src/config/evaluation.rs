//! The section `[evaluation]`: figures during and after training, and which parameters are
//! released.

use super::{Auto, Publicity};
use crate::Error;
use optim::keys;
use serde::{Deserialize, Serialize};

keys! {
    /// The section `[evaluation]`.
    #[derive(Clone, Debug)]
    #[serde(default, deny_unknown_fields)]
    pub struct Evaluation {
        /// Steps between evaluations on the validation data; a twentieth of all by default.
        pub every: Auto<u64> = Auto::Auto,
        /// The maximum number of validation examples of an evaluation, or "all".
        ///
        /// With 0 there are no evaluations during training.
        #[serde(with = "count_or_all")]
        pub examples: u64 = 512,
        /// The maximum number of rows that are evaluated at the end, and of texts that are scored; or
        /// "all". With 0, nothing is evaluated at the end.
        #[serde(with = "count_or_all")]
        pub test_examples: u64 = u64::MAX,
        /// Which parameters the released model has: those of the last step, or those of the best
        /// evaluation, which needs public validation data.
        pub select: Select = Select::Last,
        /// Training ends after this many evaluations in a row without improvement; 0 for never.
        ///
        /// It needs public validation data. The figure is that of `select`, or the NLL. All planned
        /// steps stay charged: when to stop is decided from releases.
        pub patience: u64 = 0,
        /// Whether the figures of `history.jsonl` are also written as TensorBoard events.
        pub tensorboard: bool = false,
        /// Number of texts that are generated at the end.
        pub samples: u64 = 3,
        /// Whether texts are generated for the test data and scored at the end.
        pub score: bool = false,
        /// Number of beams.
        pub beams: usize = 5,
        /// The maximum number of generated tokens.
        pub max_new_tokens: usize = 100,
        /// The minimum number of generated tokens.
        pub min_new_tokens: usize = 5,
        /// The exponent of the length in the score of a beam.
        pub length_penalty: f64 = 1.0,
    }
}

/// Which parameters the released model has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Select {
    /// Those of the last step.
    #[default]
    Last,
    /// Those of the evaluation with the smallest NLL.
    BestNll,
    /// Those of the evaluation with the largest accuracy.
    BestAccuracy,
    /// Those of the evaluation with the smallest RMSE of a regression.
    BestRmse,
    /// Those of the evaluation with the largest BLEU; texts are generated at each evaluation.
    BestBleu,
    /// Those of the checkpoint nearest in step to the evaluation with the smallest NLL.
    ///
    /// Checkpoints are those of every `training.checkpoint_every` steps and of the last step. Of
    /// two that are equally near, the earlier one is taken.
    NearestBestNll,
}

impl Select {
    /// The name in configurations.
    pub fn name(self) -> &'static str {
        match self {
            Self::Last => "last",
            Self::BestNll => "best-nll",
            Self::BestAccuracy => "best-accuracy",
            Self::BestRmse => "best-rmse",
            Self::BestBleu => "best-bleu",
            Self::NearestBestNll => "nearest-best-nll",
        }
    }
}

impl Evaluation {
    /// Whether evaluations decide what is released: the parameters, or the number of steps.
    pub(crate) fn decides(&self) -> bool {
        self.select != Select::Last || self.patience > 0
    }

    /// Refuses a selection or an early stop by figures on private data, or without evaluations.
    ///
    /// A choice by private figures is a release of its own: it would have to be priced for the
    /// records of the validation data. It is refused instead, because those records have no ledger.
    pub(crate) fn check(&self, publicity: Publicity) -> Result<(), Error> {
        let name = format!("{:?}", self.select.name());
        let keys = [
            ("evaluation.select", self.select != Select::Last, name, "selects", "\"last\""),
            ("evaluation.patience", self.patience > 0, self.patience.to_string(), "stops", "0"),
        ];
        for (key, used, value, verb, without) in keys {
            if used && publicity == Publicity::Private {
                return Err(Error::config(
                    key,
                    format!(
                        "{value} {verb} by figures on the validation data, which are not declared \
                         public: such a choice costs privacy that is not charged; expected \
                         {without}, or data.evaluation_data = \"public\""
                    ),
                ));
            }
            if used && self.examples == 0 {
                return Err(Error::config(
                    key,
                    format!(
                        "{value} needs evaluations during training, but evaluation.examples is 0"
                    ),
                ));
            }
        }
        Ok(())
    }
}

/// A number, or "all" for `u64::MAX`.
mod count_or_all {
    use serde::de::{Deserializer, Error, Unexpected, Visitor};
    use serde::ser::Serializer;

    pub(super) fn serialize<S: Serializer>(count: &u64, to: S) -> Result<S::Ok, S::Error> {
        match *count {
            u64::MAX => to.serialize_str("all"),
            count => to.serialize_u64(count),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
        from.deserialize_any(CountOrAll)
    }

    struct CountOrAll;

    impl Visitor<'_> for CountOrAll {
        type Value = u64;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("a number of examples or \"all\"")
        }

        fn visit_u64<E: Error>(self, count: u64) -> Result<u64, E> {
            Ok(count)
        }

        fn visit_i64<E: Error>(self, count: i64) -> Result<u64, E> {
            u64::try_from(count).map_err(|_| E::invalid_value(Unexpected::Signed(count), &self))
        }

        fn visit_str<E: Error>(self, text: &str) -> Result<u64, E> {
            match text {
                "all" => Ok(u64::MAX),
                other => Err(E::invalid_value(Unexpected::Str(other), &self)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;

    fn read(line: &str) -> Result<Evaluation, Error> {
        Ok(Config::parse(&format!("[evaluation]\n{line}"))?.evaluation)
    }

    #[test]
    fn a_number_of_examples_or_all() {
        assert_eq!(read("examples = 7").unwrap().examples, 7);
        assert_eq!(read("examples = \"all\"").unwrap().examples, u64::MAX);
        for line in ["examples = -1", "examples = \"some\"", "examples = 1.5"] {
            let refused = read(line).unwrap_err().to_string();
            assert!(
                refused.starts_with("evaluation.examples: ")
                    && refused.contains("expected a number of examples or \"all\""),
                "{refused}"
            );
        }
        let all = Config::default().with("evaluation.examples=all").unwrap();
        assert!(all.print().contains("examples = \"all\""), "{}", all.print());
        assert_eq!(Config::parse(&all.print()).unwrap(), all);
    }

    #[test]
    fn selection_needs_public_evaluations() {
        for name in ["best-nll", "best-accuracy", "best-rmse", "best-bleu", "nearest-best-nll"] {
            let evaluation = read(&format!("select = {name:?}")).unwrap();
            assert_eq!(evaluation.select.name(), name);
            evaluation.check(Publicity::Public).unwrap();
            let refused = evaluation.check(Publicity::Private).unwrap_err().to_string();
            assert!(refused.contains("costs privacy that is not charged"), "{refused}");
            let none = Evaluation { examples: 0, ..evaluation };
            assert!(none.check(Publicity::Public).unwrap_err().to_string().contains("is 0"));
        }
        read("select = \"last\"").unwrap().check(Publicity::Private).unwrap();
        assert!(read("select = \"best\"").unwrap_err().to_string().contains("evaluation.select"));
    }

    #[test]
    fn an_early_stop_needs_public_evaluations() {
        let evaluation = read("patience = 3").unwrap();
        evaluation.check(Publicity::Public).unwrap();
        let refused = evaluation.check(Publicity::Private).unwrap_err().to_string();
        assert!(
            refused.starts_with("evaluation.patience: 3 stops by figures")
                && refused.contains("costs privacy that is not charged"),
            "{refused}"
        );
        let none = Evaluation { examples: 0, ..evaluation };
        assert!(none.check(Publicity::Public).unwrap_err().to_string().contains("is 0"));
    }

    /// A resumed run keeps the settings that decide which parameters are released, and no others.
    #[test]
    fn settings_that_select_are_part_of_the_digest() {
        let digest = |changes: &[&str]| {
            let config =
                changes.iter().fold(Config::default(), |c, change| c.with(change).unwrap());
            config.digest()
        };
        let every = "training.checkpoint_every=7";
        for change in [every, "evaluation.every=3", "evaluation.examples=9"] {
            assert_eq!(digest(&[change]), digest(&[]), "{change}");
            let nearest = "evaluation.select=nearest-best-nll";
            assert_ne!(digest(&[nearest, change]), digest(&[nearest]), "{change}");
        }
        let best = "evaluation.select=best-nll";
        assert_eq!(digest(&[best, every]), digest(&[best]));
        assert_ne!(digest(&[best, "evaluation.every=3"]), digest(&[best]));
        assert_ne!(digest(&[best]), digest(&[]));
        let patience = "evaluation.patience=2";
        assert_ne!(digest(&[patience]), digest(&[]));
        assert_ne!(digest(&[patience, "evaluation.every=3"]), digest(&[patience]));
        assert_eq!(digest(&["evaluation.tensorboard=true"]), digest(&[]));
    }
}
