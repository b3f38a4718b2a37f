//! Loading of the model with its tokenizer, and of the records.

pub mod corpus;
pub mod data;
pub mod model;
