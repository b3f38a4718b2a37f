//! A custom model of layers, trained privately in memory: classification of two moons at ε = 2.
//!
//! `cargo run --release -p muffle --example own_model`

#![allow(clippy::print_stdout)]

use cpu::Network;
use engine::Example;
use model::activation::Activation;
use model::{Builder, Linear};
use muffle::Session;
use muffle::curator::Records;
use muffle::data::Task;
use muffle::evaluate;
use optim::Method;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut build = Builder::features(2);
    let x = build.input();
    let hidden = Linear::new("hidden", 2, 32).init_std(1.0).activation(Activation::Tanh);
    let x = build.linear(x, hidden);
    let logits = build.linear(x, Linear::new("head", 32, 2));
    let graph = build.finish(logits);

    let values = graph.init(0)?;
    let (network, params) = Network::new(graph, values, |_| true)?;
    let mut looking = network.new_instance();
    let mut session = Session::builder(network, params, Records::new(moons(0, 4000)))
        .epsilon(2.0)
        .optimizer(Method::DpAdam(Default::default()))
        .learning_rate(0.02)
        .steps(150)
        .lot_size(200)
        .build()?;
    while session.step()?.is_some() {}

    let public =
        evaluate::examples(&mut looking, session.params(), Task::Classification, &moons(1, 1000))?;
    let promise = session.guarantee()?;
    println!(
        "accuracy {:.1} % at ε = {:.3}, δ = {:.1e} ({})",
        100.0 * public.accuracy.unwrap_or(0.0),
        promise.epsilon,
        promise.delta,
        promise.unit
    );
    Ok(())
}

/// Two interleaved half circles.
fn moons(part: u32, count: u32) -> Vec<Example> {
    let point = |i: u32| {
        let (class, turn) = (i % 2, (i * 37 + part * 11) % 997);
        let angle = turn as f32 / 997.0 * std::f32::consts::PI;
        let jitter = |k: u32| {
            ((i.wrapping_mul(2_654_435_761).wrapping_add(k * 977 + part)) % 1000) as f32 / 5000.0
                - 0.1
        };
        let (x, y) = if class == 0 {
            (angle.cos(), angle.sin())
        } else {
            (1.0 - angle.cos(), 0.5 - angle.sin())
        };
        Example::features(vec![x + jitter(1), y + jitter(2)], class)
    };
    (0..count).map(point).collect()
}
