//! An engine with quadratic losses: example i has a point x_i and the loss ½‖z(θ) − x_i‖², where z
//! is the parameters, or A Bᵀ for each pair.

use engine::{CheckedQuery, Engine, Error, Example, Input, Observed, Sum, SumPrecision, Weights};
use noise::PublicRandom;
use protocol::{Blocks, Params, Role, Trainable};
use tensor::Array;

/// An engine with quadratic losses.
pub(crate) struct Quadratic {
    tensors: Vec<Trainable>,
    params: Params,
    sum: Option<Sum>,
    /// Gradients of the observed examples, and the clip blocks.
    observed: Option<(Vec<Vec<Vec<f64>>>, Blocks)>,
}

impl Quadratic {
    pub(crate) fn new(tensors: Vec<Trainable>) -> Self {
        Self { tensors, params: Params::default(), sum: None, observed: None }
    }

    /// The shape of each observed matrix, and its tensors.
    fn parts(&self) -> Vec<(usize, Option<usize>, usize)> {
        let size = |k: usize| self.tensors[k].shape.iter().product::<usize>();
        let part = |k: usize| match self.tensors[k].role {
            Role::Left(right) => {
                Some((k, Some(right), self.tensors[k].shape[0] * self.tensors[right].shape[0]))
            }
            Role::Right(_) => None,
            _ => Some((k, None, size(k))),
        };
        (0..self.tensors.len()).filter_map(part).collect()
    }

    /// The number of features of an example.
    pub(crate) fn numbers(&self) -> usize {
        self.parts().iter().map(|part| part.2).sum()
    }

    /// Initial parameters, not degenerate.
    pub(crate) fn start(&self, seed: u64) -> Params {
        let tensor = |(k, tensor): (usize, &Trainable)| {
            let mut array = Array::zeros(tensor.shape.clone());
            PublicRandom::from_seed(seed).derive(k as u64).normals(0, array.data_mut());
            array
        };
        Params::new(self.tensors.iter().enumerate().map(tensor).collect())
    }

    /// Creates `count` examples around a common point.
    ///
    /// The point is at the distance `far` from the origin, the deviations have the size `spread`.
    /// For pairs the point has the rank of the pairs.
    pub(crate) fn examples(&self, count: u64, far: f32, spread: f32) -> Vec<Example> {
        let truth = self.start(77);
        let center: Vec<f32> =
            self.point(&truth).concat().iter().map(|&z| far * z as f32).collect();
        let one = |seed: u64| {
            let mut own = vec![0.0; center.len()];
            PublicRandom::from_seed(1000 + seed).normals(0, &mut own);
            Example::features(center.iter().zip(own).map(|(c, z)| c + spread * z).collect(), 0)
        };
        (0..count).map(one).collect()
    }

    /// z(θ), by parts.
    fn point(&self, at: &Params) -> Vec<Vec<f64>> {
        let get = |k: usize, i: usize| f64::from(at[k].data()[i]);
        let part = |(k, right, size): (usize, Option<usize>, usize)| match right {
            None => (0..size).map(|i| get(k, i)).collect(),
            Some(right) => {
                let (n, rank) = (at[right].rows(), at[k].cols());
                (0..size)
                    .map(|i| {
                        (0..rank)
                            .map(|l| get(k, i / n * rank + l) * get(right, i % n * rank + l))
                            .sum()
                    })
                    .collect()
            }
        };
        self.parts().into_iter().map(part).collect()
    }

    /// The mean loss without noise, which training minimizes.
    pub(crate) fn mean_loss(&self, at: &Params, examples: &[Example]) -> f64 {
        examples.iter().map(|example| self.example(at, example).0).sum::<f64>()
            / examples.len() as f64
    }

    /// The mean loss at the common point: about half the squared deviations.
    pub(crate) fn mean_loss_floor(&self, spread: f64) -> f64 {
        0.5 * spread * spread * self.numbers() as f64
    }

    fn example(&self, at: &Params, example: &Example) -> (f64, Vec<Vec<f64>>) {
        let Input::Features(point) = &example.only_part().unwrap().input else { panic!("numbers") };
        let mut gradient: Vec<Vec<f64>> = at.iter().map(|tensor| vec![0.0; tensor.len()]).collect();
        let (mut loss, mut first) = (0.0, 0);
        for ((k, right, size), z) in self.parts().into_iter().zip(self.point(at)) {
            let residual: Vec<f64> =
                z.iter().zip(&point[first..first + size]).map(|(z, &x)| z - f64::from(x)).collect();
            first += size;
            loss += 0.5 * residual.iter().map(|r| r * r).sum::<f64>();
            match right {
                None => gradient[k].copy_from_slice(&residual),
                Some(right) => {
                    let (n, rank) = (at[right].rows(), at[k].cols());
                    for (i, r) in residual.iter().enumerate() {
                        for l in 0..rank {
                            gradient[k][i / n * rank + l] +=
                                r * f64::from(at[right].data()[i % n * rank + l]);
                            gradient[right][i % n * rank + l] +=
                                r * f64::from(at[k].data()[i / n * rank + l]);
                        }
                    }
                }
            }
        }
        (loss, gradient)
    }
}

impl Engine for Quadratic {
    fn trainable(&self) -> Vec<Trainable> {
        self.tensors.clone()
    }

    fn probe_examples(&self) -> Vec<Example> {
        self.examples(3, 1.0, 1.0)
    }

    fn validate(&mut self, example: &Example) -> Result<(), Error> {
        if example.len() == self.numbers() {
            Ok(())
        } else {
            Err(Error::Example { index: 0, reason: "another number of features".into() })
        }
    }

    fn load(&mut self, params: &Params) -> Result<(), Error> {
        self.params = params.clone();
        Ok(())
    }

    fn unload(&mut self) {
        (self.params, self.observed) = (Params::default(), None);
    }

    fn losses(&mut self, examples: &[&Example]) -> Result<Vec<f64>, Error> {
        Ok(examples.iter().map(|example| self.example(&self.params, example).0).collect())
    }

    fn start_sum(&mut self, precision: &SumPrecision) -> Result<(), Error> {
        self.sum = precision.zeros(self.tensors.iter().map(|t| t.shape.iter().product()));
        Ok(())
    }

    fn observe(
        &mut self,
        examples: &[&Example],
        query: &CheckedQuery<'_>,
    ) -> Result<Observed, Error> {
        let (geometry, blocks) = (query.geometry(), query.blocks());
        let count = blocks.count();
        let (losses, gradients): (Vec<f64>, Vec<Vec<Vec<f64>>>) =
            examples.iter().map(|example| self.example(&self.params, example)).unzip();
        let mut squares = vec![0.0; losses.len() * count];
        for (i, gradient) in gradients.iter().enumerate() {
            let encoded = geometry.encode(blocks, gradient.clone());
            encoded.iter().enumerate().for_each(|(k, x)| {
                squares[i * count + blocks.of(k)] += x.iter().map(|x| x * x).sum::<f64>()
            });
        }
        self.observed = Some((gradients, blocks.clone()));
        Ok(Observed::new(losses, squares, count))
    }

    fn accumulate(&mut self, weights: &Weights) -> Result<(), Error> {
        let (gradients, blocks) = self.observed.take().ok_or(Error::Order("observe first"))?;
        let sum = self.sum.as_mut().ok_or(Error::Order("start a sum first"))?;
        for (i, gradient) in gradients.iter().enumerate() {
            for (k, gradient) in gradient.iter().enumerate() {
                sum[k].add(weights.block(blocks.of(k))[i], gradient.iter().copied());
            }
        }
        Ok(())
    }

    fn take_sum(&mut self) -> Result<Sum, Error> {
        self.sum.take().ok_or(Error::Order("start a sum first"))
    }
}
