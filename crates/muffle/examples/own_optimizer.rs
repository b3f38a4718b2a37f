//! An optimizer defined outside the workspace: sign descent on released gradients.
//!
//! [`Descent::query`] states the query, and the answer becomes a direction. The optimizer has no
//! access to records: everything it does is post-processing.
//!
//! `cargo run --release -p muffle --example own_optimizer`

#![allow(clippy::print_stdout)]

use cpu::Network;
use engine::Example;
use model::Mlp;
use model::activation::Activation;
use muffle::Session;
use muffle::curator::Records;
use optim::{Descent, Optimizer, Schedule, State};
use protocol::{
    Blocks, Bound, Clipping, Geometry, GradientQuery, Noisy, Params, Refused, TensorMap,
};

/// θ ← θ − η sign(g)
struct SignDescent {
    bounds: Vec<Bound>,
    blocks: Blocks,
}

impl Descent for SignDescent {
    fn bounds(&self) -> &[Bound] {
        &self.bounds
    }

    fn query<'a>(&'a mut self, at: &'a Params) -> Result<GradientQuery<'a>, Refused> {
        Ok(GradientQuery {
            at,
            geometry: &Geometry::Identity,
            blocks: &self.blocks,
            bounds: &self.bounds,
            clipping: Clipping::Cut,
        })
    }

    fn direction(&mut self, _: &Params, answer: Noisy<TensorMap>) -> Result<TensorMap, Refused> {
        let mut direction = answer.value;
        for (_, tensor) in direction.iter_mut() {
            tensor.data_mut().iter_mut().for_each(|x| *x = x.signum());
        }
        Ok(direction)
    }

    fn save(&self) -> Result<State, Refused> {
        Ok(State::new("sign-descent"))
    }

    fn load(&mut self, state: State) -> Result<(), Refused> {
        state.check_kind("sign-descent")
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mlp = Mlp { input: 2, hidden: vec![16], classes: 2, activation: Activation::Tanh };
    let graph = mlp.graph();
    let values = graph.init(0)?;
    let (network, params) = Network::new(graph, values, |_| true)?;
    let example = |i: u32| {
        let (a, b) = ((i as f32 * 0.37).sin(), (i as f32 * 0.91).cos());
        Example::features(vec![a, b], u32::from(a * b > 0.0))
    };
    let records = Records::new((0..4000).map(example).collect());
    let mut session = Session::builder(network, params, records)
        .epsilon(3.0)
        .steps(60)
        .lot_size(200)
        .custom_optimizer(|setting| {
            let bounds = vec![Bound::new(0.5, setting.sigma.gradient)?];
            let descent = SignDescent { bounds, blocks: Blocks::flat(setting.tensors.len()) };
            Ok(Optimizer::new(descent, Schedule::constant(3e-3)?))
        })
        .build()?;
    while session.step()?.is_some() {}
    println!("ε = {:.3} after {} steps", session.guarantee()?.epsilon, session.steps());
    Ok(())
}
