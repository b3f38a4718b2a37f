//! Muffle: differentially private training of neural networks.
//!
//! Today it tells what a private run costs ([`accounting`]) and helps to plan one; the program's commands are in [`cli`].

pub mod chart;
pub mod cli;
pub mod config;
pub mod optimizers;
pub mod plan;

pub use accounting;
