//! Low-rank adapters of a transformer, trained privately with PRISM; the other weights are frozen.
//!
//! `cargo run --release -p muffle --example lora_prism [MODEL]`, where MODEL is a directory in the
//! Hugging Face layout; by default a small new model.

#![allow(clippy::print_stdout)]

use muffle::Config;
use muffle::Silent;
use muffle::config::Auto;
use muffle::run;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut config = Config::embedded().with_optimizer("dp-prism")?;
    match std::env::args().nth(1) {
        Some(model) => config.model.source = model,
        None => config.model.also_train = vec!["wte".into()],
    }
    config.model.lora_rank = 4;
    config.training.steps = Auto::Value(10);
    let out = std::env::temp_dir().join(format!("muffle-lora-{}", std::process::id()));
    let outcome = run::train(&config, &out, &mut Silent)?;
    println!(
        "NLL {:?} at ε = {:?}; the model is in {}",
        outcome.scores.map(|scores| scores.nll),
        outcome.statement.epsilon,
        out.join("model").display()
    );
    Ok(())
}
