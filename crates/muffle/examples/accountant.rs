//! Accounting without training: cost of a run, noise for a promise, trade-off curve.
//!
//! `cargo run --release -p muffle --example accountant`

#![allow(clippy::print_stdout)]

use muffle::accounting::calibrate::{self, Target};
use muffle::accounting::{
    Accountant, Adjacency, Composition, Cost, Delta, Epsilon, Error, Event, SamplingRate, Sigma,
};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (rate, steps, delta) = (SamplingRate::new(1024.0 / 42_043.0)?, 410, Delta::new(8e-6)?);
    let run =
        |sigma: Sigma| Ok::<_, Error>(Composition::repeated(Event::poisson(rate, sigma), steps));
    let target = Target {
        epsilon: Epsilon::new(8.0)?,
        delta,
        unit: Adjacency::AddRemove.into(),
        accountant: Accountant::Best,
    };
    let (sigma, price) = calibrate::sigma(target, run)?;
    println!(
        "σ = {:.4} keeps ε = {:.4} at δ = {:e}, by {}",
        sigma.get(),
        price.epsilon,
        price.delta,
        price.accountant
    );
    let cost = Cost::new(&run(sigma)?, Adjacency::AddRemove)?;
    let curve = cost.trade_off(delta)?;
    for fpr in [0.001, 0.01, 0.1] {
        println!(
            "wrong about {:4.1} % of the absent, right about at most {:5.1} % of the present",
            100.0 * fpr,
            100.0 * curve.tpr(fpr)
        );
    }
    Ok(())
}
