//! A layer defined outside the workspace: a learned scale and shift of every feature.
//!
//! [`Operation`] declares its inputs and outputs, [`Layer`] its computation and the form of its
//! per-example gradients. The session's probe checks it before it sees a record.
//!
//! `cargo run --release -p muffle --example own_layer`

#![allow(clippy::print_stdout)]

use cpu::{GradientForm, Layer, Network, OutputMode, Pass};
use engine::Example;
use model::op::Operation;
use model::{Builder, Init, Linear, Param, Space, Value};
use muffle::Session;
use muffle::curator::Records;

/// y = gain ⊙ x + shift
#[derive(Debug)]
struct ScaleShift {
    x: Value,
    gain: Param,
    shift: Param,
    out: Value,
}

impl Operation for ScaleShift {
    fn inputs(&self) -> Vec<Value> {
        vec![self.x]
    }

    fn outputs(&self) -> Vec<Value> {
        vec![self.out]
    }

    fn params(&self) -> Vec<Param> {
        vec![self.gain, self.shift]
    }
}

impl Layer for ScaleShift {
    fn gradient_forms(&self) -> Vec<(Param, GradientForm)> {
        vec![(self.gain, GradientForm::Vector), (self.shift, GradientForm::Vector)]
    }

    fn saved_values(&self) -> Vec<Value> {
        vec![self.x]
    }

    fn forward(&self, _: usize, pass: &mut Pass<'_>) {
        let mut out = pass.alloc(self.out);
        let (gain, shift) = (pass.param(self.gain).data(), pass.param(self.shift).data());
        let rows = pass.value(self.x).chunks_exact(gain.len());
        for (out, x) in out.chunks_exact_mut(gain.len()).zip(rows) {
            for i in 0..gain.len() {
                out[i] = gain[i].mul_add(x[i], shift[i]);
            }
        }
        pass.set_value(self.out, out);
    }

    fn backward(&self, _: usize, pass: &mut Pass<'_>) {
        let Some(d) = pass.gradient(self.out) else { return };
        // This layer has one row per example.
        if pass.trains(self.gain) {
            let mut gains = pass.alloc(self.x);
            let products = pass.value(self.x).iter().zip(d.iter()).map(|(x, d)| x * d);
            gains.iter_mut().zip(products).for_each(|(gain, product)| *gain = product);
            pass.add_vector_gradients(self.gain, gains);
        }
        if pass.trains(self.shift) {
            let mut shifts = pass.alloc(self.x);
            shifts.copy_from_slice(&d);
            pass.add_vector_gradients(self.shift, shifts);
        }
        pass.add_gradient(self.x, |pass, dx, mode| {
            let gain = pass.param(self.gain).data();
            for (dx, d) in dx.chunks_exact_mut(gain.len()).zip(d.chunks_exact(gain.len())) {
                for i in 0..gain.len() {
                    let old = if mode == OutputMode::Overwrite { 0.0 } else { dx[i] };
                    dx[i] = gain[i].mul_add(d[i], old);
                }
            }
        });
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut build = Builder::features(2);
    let x = build.input();
    let gain = build.param("scale.gain", [2], Init::Ones);
    let shift = build.param("scale.shift", [2], Init::Zeros);
    let out = build.custom_value(Space::Parts, 2);
    build.custom(cpu::custom(ScaleShift { x, gain, shift, out }));
    let logits = build.linear(out, Linear::new("head", 2, 2));
    let graph = build.finish(logits);
    let values = graph.init(0)?;
    let (network, params) = Network::new(graph, values, |_| true)?;

    let example = |i: u32| {
        let x = (i % 100) as f32 / 50.0 - 1.0;
        Example::features(vec![x, x * x], u32::from(x > 0.0))
    };
    let records = Records::new((0..2000).map(example).collect());
    let mut session = Session::builder(network, params, records)
        .epsilon(3.0)
        .steps(40)
        .lot_size(100)
        .optimizer(optim::Method::DpAdam(Default::default()))
        .build()?;
    while session.step()?.is_some() {}
    println!("ε = {:.3} after {} steps", session.guarantee()?.epsilon, session.steps());
    Ok(())
}
