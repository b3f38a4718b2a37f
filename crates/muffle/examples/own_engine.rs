//! An engine defined outside the workspace: linear regression, computed without a graph.
//!
//! An engine reports losses and norms per example and adds weighted gradients. The session's probe
//! refuses an engine whose norms are not those of the gradients it sums, or in which one example
//! changes another's gradient.
//!
//! `cargo run --release -p muffle --example own_engine`

#![allow(clippy::print_stdout)]

use engine::{
    CheckedQuery, Engine, Error, Example, Input, Isolation, Observed, Sum, SumPrecision, Weights,
};
use muffle::Session;
use muffle::curator::Records;
use protocol::{GeometryKind, Params, Role, Trainable};
use tensor::Array;

/// ½ (w · x − y)², where y is the last feature of an example.
#[derive(Default)]
struct LeastSquares {
    width: usize,
    params: Params,
    sum: Option<Sum>,
    /// Gradients of the observed examples.
    gradients: Vec<Vec<f64>>,
}

impl LeastSquares {
    fn residual(&self, example: &Example) -> (f64, Vec<f64>) {
        let Input::Features(features) = &example.parts()[0].input else {
            return (f64::NAN, Vec::new());
        };
        let (x, y) = features.split_at(self.width);
        let x: Vec<f64> = x.iter().map(|&x| f64::from(x)).collect();
        let weights = self.params[0].data().iter().map(|&w| f64::from(w));
        (weights.zip(&x).map(|(w, x)| w * x).sum::<f64>() - f64::from(y[0]), x)
    }
}

impl Engine for LeastSquares {
    fn trainable(&self) -> Vec<Trainable> {
        vec![Trainable::new("weights", [self.width], Role::Vector)]
    }

    fn probe_examples(&self) -> Vec<Example> {
        let example = |k: usize| {
            let features = (0..=self.width).map(|i| ((i + 3 * k) as f32).sin()).collect();
            Example::features(features, 0)
        };
        (0..3).map(example).collect()
    }

    fn validate(&mut self, example: &Example) -> Result<(), Error> {
        // Examples of several parts are refused, because only one part is computed.
        let features = example.only_part().map(|part| part.input.len());
        let reason = match features {
            Ok(features) if features == self.width + 1 => return Ok(()),
            Ok(features) => format!("expected {} features, got {features}", self.width + 1),
            Err(reason) => reason,
        };
        Err(Error::Example { index: 0, reason })
    }

    fn load(&mut self, params: &Params) -> Result<(), Error> {
        self.params = params.clone();
        Ok(())
    }

    fn unload(&mut self) {
        self.params = Params::default();
        self.gradients.clear();
    }

    fn losses(&mut self, examples: &[&Example]) -> Result<Vec<f64>, Error> {
        Ok(examples.iter().map(|example| 0.5 * self.residual(example).0.powi(2)).collect())
    }

    fn start_sum(&mut self, precision: &SumPrecision) -> Result<(), Error> {
        self.sum = precision.zeros([self.width].into_iter());
        Ok(())
    }

    fn observe(&mut self, examples: &[&Example], _: &CheckedQuery<'_>) -> Result<Observed, Error> {
        let (losses, gradients): (Vec<f64>, Vec<Vec<f64>>) = examples
            .iter()
            .map(|example| {
                let (residual, x) = self.residual(example);
                (0.5 * residual.powi(2), x.iter().map(|x| residual * x).collect())
            })
            .unzip();
        let squared_norm = |gradient: &Vec<f64>| gradient.iter().map(|g| g * g).sum();
        let squared_norms = gradients.iter().map(squared_norm).collect();
        self.gradients = gradients;
        Ok(Observed::new(losses, squared_norms, 1))
    }

    fn accumulate(&mut self, weights: &Weights) -> Result<(), Error> {
        let sum = self.sum.as_mut().ok_or(Error::Order("no sum was started"))?;
        for (gradient, &weight) in self.gradients.iter().zip(weights.block(0)) {
            sum[0].add(weight, gradient.iter().copied());
        }
        Ok(())
    }

    fn take_sum(&mut self) -> Result<Sum, Error> {
        self.sum.take().ok_or(Error::Order("no sum was started"))
    }

    fn isolation(&self) -> Isolation {
        Isolation::Exact
    }

    fn supports(&self, geometry: GeometryKind) -> bool {
        geometry == GeometryKind::Identity
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let engine = LeastSquares { width: 2, ..LeastSquares::default() };
    let params = Params::new(vec![Array::zeros([2])]);
    let example = |i: u32| {
        let (a, b) = ((i as f32 * 0.37).sin(), (i as f32 * 0.91).cos());
        Example::features(vec![a, b, 2.0 * a - b], 0)
    };
    let records = Records::new((0..5000).map(example).collect());
    let mut session = Session::builder(engine, params, records)
        .epsilon(2.0)
        .steps(100)
        .lot_size(500)
        .optimizer(optim::Method::DpSgd(Default::default()))
        .build()?;
    while session.step()?.is_some() {}
    let weights = session.params()[0].data();
    println!("w = {weights:?}, expected [2, -1]; ε = {:.3}", session.guarantee()?.epsilon);
    Ok(())
}
