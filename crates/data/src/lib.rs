//! Data formats, their readers, and the preparation of examples.
//!
//! | to find | look in |
//! |---|---|
//! | the content of one row of a file | [`Record`] |
//! | the formats, and how one is detected | [`Format`] |
//! | the readers, one file for each format | `read/` |
//! | features of images | [`Scattering`], and [`FeatureCache`] for several runs |
//! | augmented views of images | [`Views`] |
//! | how a source and a target become one text | [`Template`] |
//! | texts that are too long | [`TooLong`] |
//! | what a label is: a class, several labels, a number | [`Task`] |
//! | the example that a model is trained on | [`Preparation`] |

#![forbid(unsafe_code)]

mod causal;
mod contrast;
mod dead_leaves;
mod error;
mod feature_cache;
mod format;
mod lanes;
mod long;
mod prepare;
mod read;
mod record;
mod scattering;
mod task;
mod template;
mod views;
mod whitening;

pub use causal::CausalInput;
pub use error::{Error, Result};
pub use feature_cache::FeatureCache;
pub use format::Format;
pub use long::{LongTexts, TooLong};
pub use prepare::{ModelInput, Preparation, Prepared};
pub use read::{LabelRule, Missing, ReadOptions, RecordIter, Separator};
pub use record::{Content, Label, MergeBySource, Record, merge_by_source};
pub use scattering::Scattering;
pub use task::{Task, split_labels};
pub use template::{InvalidTemplate, Prompt, Template, TextTemplate};
pub use views::Views;
