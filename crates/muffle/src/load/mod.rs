//! What a run starts from: the model with its tokenizer, and the records.

pub mod corpus;
pub mod data;
pub mod model;
