//! HyFreeDP finds the learning rate; the cost of the search is part of the promise.
//!
//! `cargo run --release -p muffle --example hyfree`

#![allow(clippy::print_stdout)]

use muffle::Config;
use muffle::config::{Auto, LearningRate};
use muffle::run;
use muffle::run::{Progress, RunObserver, RunStart};

/// Prints the learning rates.
struct Rates;

impl RunObserver for Rates {
    fn message(&mut self, line: &str) {
        println!("{line}");
    }
    fn started(&mut self, begun: &RunStart<'_>) {
        println!(
            "σ = {:.4} for gradients, {:.4} for each probe of the loss",
            begun.plan.sigma.gradient, begun.plan.sigma.probe
        );
    }
    fn stepped(&mut self, progress: &Progress) {
        if progress.fresh {
            println!(
                "step {:3}: rate {:.2e}, NLL {:.4}",
                progress.step,
                progress.latest.learning_rate,
                progress.latest.nll.unwrap_or(f64::NAN)
            );
        }
    }
    fn should_stop(&mut self) -> bool {
        false
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut config = Config::embedded().with_optimizer("dp-adam")?;
    config.optimizer.learning_rate = Auto::Value(LearningRate::HyFree);
    config.training.steps = Auto::Value(20);
    let out = std::env::temp_dir().join(format!("muffle-hyfree-{}", std::process::id()));
    let outcome = run::train(&config, &out, &mut Rates)?;
    println!("ε = {:?}, probes included", outcome.statement.epsilon);
    Ok(())
}
