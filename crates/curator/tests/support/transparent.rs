//! An engine that hides nothing, so that tests see lots and noise through released values.

#![allow(dead_code)]

use curator::Records;
use engine::{CheckedQuery, Engine, Error, Example, Input, Observed, Sum, SumPrecision, Weights};
use protocol::{Params, Role, Trainable};

/// An engine whose losses are the records themselves, and whose gradients are 0: a loss without
/// noise tells which records are in the lot, and a released gradient is noise alone.
pub(crate) struct Transparent {
    pub(crate) lengths: Vec<usize>,
    sum: Option<Sum>,
}

impl Transparent {
    /// Tensors of these lengths.
    pub(crate) fn new(lengths: Vec<usize>) -> Self {
        Self { lengths, sum: None }
    }
}

impl Engine for Transparent {
    fn trainable(&self) -> Vec<Trainable> {
        let tensor = |(k, &length): (usize, &usize)| {
            Trainable::new(format!("tensor {k}"), [length], Role::Vector)
        };
        self.lengths.iter().enumerate().map(tensor).collect()
    }

    fn probe_examples(&self) -> Vec<Example> {
        Vec::new()
    }

    fn validate(&mut self, _: &Example) -> Result<(), Error> {
        Ok(())
    }

    fn load(&mut self, _: &Params) -> Result<(), Error> {
        Ok(())
    }

    fn unload(&mut self) {}

    fn losses(&mut self, examples: &[&Example]) -> Result<Vec<f64>, Error> {
        let loss = |example: &&Example| match &example.parts()[0].input {
            Input::Features(numbers) => f64::from(numbers[0]),
            Input::Tokens(_) => f64::NAN,
        };
        Ok(examples.iter().map(loss).collect())
    }

    fn start_sum(&mut self, precision: &SumPrecision) -> Result<(), Error> {
        self.sum = precision.zeros(self.lengths.iter().copied());
        Ok(())
    }

    fn observe(
        &mut self,
        examples: &[&Example],
        query: &CheckedQuery<'_>,
    ) -> Result<Observed, Error> {
        let losses = self.losses(examples)?;
        let blocks = query.blocks().count();
        let squares = vec![0.0; losses.len() * blocks];
        Ok(Observed::new(losses, squares, blocks))
    }

    fn accumulate(&mut self, _: &Weights) -> Result<(), Error> {
        Ok(())
    }

    fn take_sum(&mut self) -> Result<Sum, Error> {
        self.sum.take().ok_or(Error::Order("no sum was started"))
    }
}

/// Place i has a record with loss 2^i, unless it is vacant.
pub(crate) fn places(count: usize, is_vacant: impl Fn(usize) -> bool) -> Records {
    let place =
        |i: usize| Some(Example::features(vec![(1u32 << i) as f32], 0)).filter(|_| !is_vacant(i));
    Records::with_vacancies((0..count).map(place).collect())
}
