//! Values of the section `[data]`: labels, persons, and whether data are public.

use super::{Auto, Data};
use crate::Error;
use ::data::{LabelRule, LongTexts, Task};
use serde::{Deserialize, Serialize};

/// What the labels of rows are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TaskKind {
    /// One class.
    Classification,
    /// Any number of labels, each of which applies or does not.
    MultiLabel,
    /// A number.
    Regression,
}

impl TaskKind {
    /// The kind of a task.
    pub fn of(task: Task) -> Self {
        match task {
            Task::Classification => Self::Classification,
            Task::MultiLabel => Self::MultiLabel,
            Task::Regression { .. } => Self::Regression,
        }
    }

    /// The name in configurations.
    pub fn name(self) -> &'static str {
        match self {
            Self::Classification => "classification",
            Self::MultiLabel => "multi-label",
            Self::Regression => "regression",
        }
    }
}

/// How the rows of a person take part in training, if `data.group` names persons.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PersonRows {
    /// All rows of a person are one record: their gradient is clipped once.
    ///
    /// The number of records N is the number of persons, and accounting is that of single records.
    Combined,
    /// Every row is a record. The guarantee for a person follows from that for k records.
    Separate,
}

/// Whether data are public.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Publicity {
    /// Public: figures on the data may be shown.
    Public,
    /// Private and not covered by the guarantee: every figure on the data is marked so.
    Private,
}

impl Data {
    /// Whether the rows of a person are one record.
    pub fn combines_rows(&self) -> bool {
        self.group.is_some() && self.person_rows == PersonRows::Combined
    }

    /// How texts that are too long are prepared.
    pub fn long_texts(&self) -> LongTexts {
        LongTexts {
            rule: self.too_long.given().copied(),
            max_chunks: self.max_chunks,
            combination: self.combine,
        }
    }

    /// The task of rows with labels.
    ///
    /// # Errors
    /// If the constants of a regression are invalid, or given for another task.
    pub fn task(&self) -> Result<Task, Error> {
        let (mean, scale) = (self.target_mean, self.target_scale);
        let kind = self.task.or(TaskKind::Classification);
        if kind != TaskKind::Regression && (mean, scale) != (0.0, 1.0) {
            return Err(Error::config(
                "data.target_mean",
                format!("expected data.task = \"regression\" with it, got {:?}", kind.name()),
            ));
        }
        // Far beyond this, targets are not finite.
        if !(scale > 0.0 && scale.is_finite() && (mean / scale).abs() < 1e30) {
            return Err(Error::config(
                "data.target_scale",
                format!("expected a finite number above 0, got {scale} (and the mean {mean})"),
            ));
        }
        Ok(match kind {
            TaskKind::Classification => Task::Classification,
            TaskKind::MultiLabel => Task::MultiLabel,
            TaskKind::Regression => Task::Regression { mean, scale },
        })
    }

    /// Sets the task to that of a model.
    pub fn set_task(&mut self, task: Task) {
        self.task = Auto::Value(TaskKind::of(task));
        if let Task::Regression { mean, scale } = task {
            (self.target_mean, self.target_scale) = (mean, scale);
        }
    }

    /// What the labels of rows are.
    pub(crate) fn label_rule(&self) -> LabelRule {
        match self.task.or(TaskKind::Classification) {
            TaskKind::Classification => LabelRule::Name,
            TaskKind::MultiLabel => LabelRule::Names,
            TaskKind::Regression => LabelRule::Number,
        }
    }

    /// Whether figures on validation and test data are public.
    pub fn publicity(&self) -> Publicity {
        let embedded = self.train == "embedded" && self.validation.is_none() && self.test.is_none();
        self.evaluation_data.or(if embedded { Publicity::Public } else { Publicity::Private })
    }
}
