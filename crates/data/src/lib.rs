//! Data formats, their readers, and the preparation of examples.
//!
//! | to find | look in |
//! |---|---|
//! | the content of one row of a file | [`Record`] |
//! | the formats, and how one is detected | [`Format`] |
//! | the readers, one file for each format | `read/` |
//! | features of images | [`Scattering`] |
//! | augmented views of images | [`Views`] |
//! | the example that a model is trained on | [`Preparation`] |

#![forbid(unsafe_code)]

mod error;
mod format;
mod prepare;
mod read;
mod record;
mod scattering;
mod views;

pub use error::{Error, Result};
pub use format::Format;
pub use prepare::{ModelInput, Preparation, Prepared};
pub use read::{ReadOptions, RecordIter};
pub use record::{Content, MergeBySource, Record, merge_by_source};
pub use scattering::Scattering;
pub use views::Views;
