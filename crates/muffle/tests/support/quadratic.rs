//! An engine whose losses are half squared distances: example i holds a point x_i, and its loss is
//! ½‖z(θ) − x_i‖², where z is the parameters, or A Bᵀ for each pair.

use model::{Engine, Error, Example, Input, Observed, Sum, Weights};
use noise::PublicRandom;
use protocol::{Blocks, Geometry, Params, Role, Trainable};
use tensor::Array;

/// The engine.
pub(crate) struct Quadratic {
    tensors: Vec<Trainable>,
}

impl Quadratic {
    pub(crate) fn new(tensors: Vec<Trainable>) -> Self {
        Self { tensors }
    }

    /// Sides of each observed matrix, and which tensors make it.
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

    /// How many numbers an example holds.
    pub(crate) fn numbers(&self) -> usize {
        self.parts().iter().map(|part| part.2).sum()
    }

    /// First parameters, not degenerate.
    pub(crate) fn start(&self, seed: u64) -> Params {
        let tensor = |(k, tensor): (usize, &Trainable)| {
            let mut array = Array::zeros(tensor.shape.clone());
            PublicRandom::from_seed(seed).derive(k as u64).normals(0, array.data_mut());
            array
        };
        Params::new(self.tensors.iter().enumerate().map(tensor).collect())
    }

    /// `count` examples around a common point that is `far` from the origin; their own deviations
    /// have the size `spread`. For pairs the point has the pairs' rank.
    pub(crate) fn examples(&self, count: u64, far: f32, spread: f32) -> Vec<Example> {
        let truth = self.start(77);
        let center: Vec<f32> =
            self.observed(&truth).concat().iter().map(|&z| far * z as f32).collect();
        let one = |seed: u64| {
            let mut own = vec![0.0; center.len()];
            PublicRandom::from_seed(1000 + seed).normals(0, &mut own);
            Example::numbers(center.iter().zip(own).map(|(c, z)| c + spread * z).collect(), 0)
        };
        (0..count).map(one).collect()
    }

    /// z(θ), part by part.
    fn observed(&self, at: &Params) -> Vec<Vec<f64>> {
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

    /// The mean loss without noise: what training is to bring down.
    pub(crate) fn mean_loss(&self, at: &Params, examples: &[Example]) -> f64 {
        examples.iter().map(|example| self.example(at, example).0).sum::<f64>()
            / examples.len() as f64
    }

    /// What is left at the common point: half the squares of the examples' own deviations, about.
    pub(crate) fn mean_loss_floor(&self, spread: f64) -> f64 {
        0.5 * spread * spread * self.numbers() as f64
    }

    fn example(&self, at: &Params, example: &Example) -> (f64, Vec<Vec<f64>>) {
        let Input::Numbers(point) = &example.input else { panic!("numbers") };
        let mut gradient: Vec<Vec<f64>> = at.iter().map(|tensor| vec![0.0; tensor.len()]).collect();
        let (mut loss, mut first) = (0.0, 0);
        for ((k, right, size), z) in self.parts().into_iter().zip(self.observed(at)) {
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

    fn stand_ins(&self) -> Vec<Example> {
        self.examples(3, 1.0, 1.0)
    }

    fn admits(&mut self, examples: &[&Example]) -> Result<(), Error> {
        let what = "another number of numbers".to_string();
        if examples.iter().all(|example| example.len() == self.numbers()) {
            Ok(())
        } else {
            Err(Error::Example { index: 0, what })
        }
    }

    fn losses(&mut self, at: &Params, examples: &[&Example]) -> Result<Vec<f64>, Error> {
        Ok(examples.iter().map(|example| self.example(at, example).0).collect())
    }

    fn weighted_sum(
        &mut self,
        at: &Params,
        examples: &[&Example],
        geometry: &Geometry,
        blocks: &Blocks,
        weigh: &mut dyn FnMut(&Observed<'_>, &mut Weights),
        sum: &mut Sum,
    ) -> Result<(), Error> {
        let count = blocks.count();
        let all: Vec<(f64, Vec<Vec<f64>>)> =
            examples.iter().map(|example| self.example(at, example)).collect();
        let losses: Vec<f64> = all.iter().map(|(loss, _)| *loss).collect();
        let mut squares = vec![0.0; all.len() * count];
        for (i, (_, gradient)) in all.iter().enumerate() {
            let mut encoded = gradient.clone();
            geometry.encode_sum(blocks, &vec![1.0; count], &mut encoded);
            encoded.iter().enumerate().for_each(|(k, x)| {
                squares[i * count + blocks.of(k)] += x.iter().map(|x| x * x).sum::<f64>()
            });
        }
        let mut weights = Weights::default();
        weights.reset(all.len(), count);
        let seen = Observed::new(&losses, &squares, count);
        (0..all.len()).filter(|&i| !seen.is_sound(i)).for_each(|i| weights.void(i));
        weigh(&seen, &mut weights);
        for (i, (_, gradient)) in all.iter().enumerate().filter(|(i, _)| seen.is_sound(*i)) {
            for (k, gradient) in gradient.iter().enumerate() {
                sum[k].add(weights.block(blocks.of(k))[i], gradient.iter().copied());
            }
        }
        Ok(())
    }
}
