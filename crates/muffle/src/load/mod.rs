//! Loading of the model with its tokenizer, and of the records.

pub mod corpus;
pub mod data;
mod features;
pub mod model;
