//! Loading of the model with its tokenizer, and of the records.

pub mod corpus;
pub mod data;
pub(crate) mod digest;
pub(crate) mod embedded_model;
mod features;
mod image_preset;
mod lora;
pub mod model;
mod task;
mod template;
