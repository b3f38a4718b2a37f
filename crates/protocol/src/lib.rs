//! Queries about private data and their answers: the interface between analyst and curator.
//!
//! All types of this crate hold public values.

#![forbid(unsafe_code)]

mod blocks;
mod check;
mod geometry;
mod oracle;
mod params;
mod positive;
mod query;
mod tensor_map;
mod trainable;

pub use blocks::Blocks;
pub use geometry::{Frame, Geometry, GeometryKind};
pub use oracle::{Noisy, Oracle, Refused};
pub use params::Params;
pub use positive::Positive;
pub use query::{Announcement, Bound, Clipping, GradientQuery, LossQuery};
pub use tensor_map::TensorMap;
pub use trainable::{Role, Trainable};
