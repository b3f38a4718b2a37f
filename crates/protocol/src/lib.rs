//! What may be asked of private data and what comes back: the public language between analyst and curator.

#![forbid(unsafe_code)]

mod blocks;
mod geometry;
mod params;

pub use blocks::Blocks;
pub use geometry::{Frame, Geometry};
pub use params::Params;
