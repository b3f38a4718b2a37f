//! An engine that hides nothing, so that tests see lots and noise through released values.

#![allow(dead_code)]

use curator::Records;
use model::{Engine, Error, Example, Input, Observed, Sum, Weights};
use protocol::{Blocks, Geometry, Params, Role, Trainable};

/// An engine whose losses are the records themselves, and whose gradients are 0: a loss without
/// noise tells who is in the lot, and a released gradient is noise alone.
pub(crate) struct Transparent {
    pub(crate) lengths: Vec<usize>,
}

impl Engine for Transparent {
    fn trainable(&self) -> Vec<Trainable> {
        let tensor = |(k, &length): (usize, &usize)| Trainable {
            name: format!("tensor {k}"),
            shape: vec![length],
            role: Role::Vector,
        };
        self.lengths.iter().enumerate().map(tensor).collect()
    }

    fn stand_ins(&self) -> Vec<Example> {
        Vec::new()
    }

    fn admits(&mut self, _: &[&Example]) -> Result<(), Error> {
        Ok(())
    }

    fn losses(&mut self, _: &Params, examples: &[&Example]) -> Result<Vec<f64>, Error> {
        let loss = |example: &&Example| match &example.input {
            Input::Numbers(numbers) => f64::from(numbers[0]),
            Input::Tokens(_) => f64::NAN,
        };
        Ok(examples.iter().map(loss).collect())
    }

    fn weighted_sum(
        &mut self,
        at: &Params,
        examples: &[&Example],
        _: &Geometry,
        blocks: &Blocks,
        weigh: &mut dyn FnMut(&Observed<'_>, &mut Weights),
        _: &mut Sum,
    ) -> Result<(), Error> {
        let losses = self.losses(at, examples)?;
        let squares = vec![0.0; losses.len() * blocks.count()];
        let mut weights = Weights::default();
        weights.reset(losses.len(), blocks.count());
        weigh(&Observed::new(&losses, &squares, blocks.count()), &mut weights);
        Ok(())
    }
}

/// Place i has a record with loss 2^i, unless it is vacant.
pub(crate) fn places(count: usize, is_vacant: impl Fn(usize) -> bool) -> Records {
    let place =
        |i: usize| Some(Example::numbers(vec![(1u32 << i) as f32], 0)).filter(|_| !is_vacant(i));
    Records::with_vacancies((0..count).map(place).collect())
}
