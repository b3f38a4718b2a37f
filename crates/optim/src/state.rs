//! The state of an optimizer, as data. It is made of released values: public.

use protocol::{Params, Refused};
use std::collections::BTreeMap;
use tensor::Array;

/// The state of an optimizer: numbers and tensors by name, and the states of its parts.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct State {
    /// The kind of optimizer or part.
    pub kind: String,
    /// Single numbers.
    pub numbers: BTreeMap<String, f64>,
    /// Tensors, in the order of the parameters they belong to.
    pub tensors: BTreeMap<String, Vec<Array>>,
    /// States of parts.
    pub parts: BTreeMap<String, State>,
}

impl State {
    /// An empty state.
    pub fn new(kind: &str) -> Self {
        Self { kind: kind.into(), ..Self::default() }
    }

    /// Sets a number.
    pub fn set_number(&mut self, name: &str, number: f64) {
        self.numbers.insert(name.into(), number);
    }

    /// Sets a list of tensors.
    pub fn set_tensors(&mut self, name: &str, tensors: &[Array]) {
        self.tensors.insert(name.into(), tensors.to_vec());
    }

    /// Sets tensors that have the shapes of the parameters.
    pub fn set_params(&mut self, name: &str, params: &Params) {
        self.tensors.insert(name.into(), params.iter().cloned().collect());
    }

    /// Sets the state of a part.
    pub fn set_part(&mut self, name: &str, part: Self) {
        self.parts.insert(name.into(), part);
    }

    /// All tensors, in an order that depends on their names only.
    pub fn arrays_mut(&mut self) -> Vec<&mut Array> {
        let own = self.tensors.values_mut().flatten();
        own.chain(self.parts.values_mut().flat_map(Self::arrays_mut)).collect()
    }

    /// Refuses a state of another kind.
    pub fn is_of(&self, kind: &str) -> Result<(), Refused> {
        if self.kind == kind {
            Ok(())
        } else {
            Err(Refused::Query(format!("expected the state of {kind}, got that of {}", self.kind)))
        }
    }

    /// A number.
    ///
    /// # Errors
    /// If it is missing.
    pub fn number(&self, name: &str) -> Result<f64, Refused> {
        self.numbers.get(name).copied().ok_or_else(|| self.missing(name))
    }

    /// A count.
    pub fn count(&self, name: &str) -> Result<u64, Refused> {
        let number = self.number(name)?;
        if (0.0..9e15).contains(&number) && number.fract() == 0.0 {
            return Ok(number as u64);
        }
        Err(Refused::Query(format!(
            "the state of {}: {name}: expected a count, got {number}",
            self.kind
        )))
    }

    /// Moves tensors of the state into `into`, which has the same shapes.
    pub fn tensors_into(&mut self, name: &str, into: &mut [Array]) -> Result<(), Refused> {
        let tensors = self.tensors.remove(name).ok_or_else(|| self.missing(name))?;
        // Empty tensors belong to other processes.
        let own = |into: &Array| !into.is_empty();
        if tensors.len() != into.len()
            || tensors.iter().zip(into.iter()).any(|(a, b)| a.shape() != b.shape() && own(b))
        {
            return Err(Refused::Query(format!(
                "the state of {}: {name}: shapes differ from those of the parameters",
                self.kind
            )));
        }
        into.iter_mut()
            .zip(tensors)
            .filter(|(into, _)| own(into))
            .for_each(|(into, tensor)| *into = tensor);
        Ok(())
    }

    /// Moves tensors of the state into `into`, which has the same shapes.
    ///
    /// # Errors
    /// If they are missing, or have other shapes.
    pub fn params_into(&mut self, name: &str, into: &mut Params) -> Result<(), Refused> {
        let mut tensors: Vec<Array> = into.iter().cloned().collect();
        self.tensors_into(name, &mut tensors)?;
        *into = Params::new(tensors);
        Ok(())
    }

    /// Takes the state of a part out.
    ///
    /// # Errors
    /// If it is missing.
    pub fn part(&mut self, name: &str) -> Result<Self, Refused> {
        self.parts.remove(name).ok_or_else(|| self.missing(name))
    }

    fn missing(&self, name: &str) -> Refused {
        Refused::Query(format!("the state of {} has no {name}", self.kind))
    }
}
