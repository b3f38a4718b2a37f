//! The saved state of an optimizer. It is computed from released values, so it is public.

use protocol::{Params, Refused, TensorMap};
use std::collections::{BTreeMap, BTreeSet};
use tensor::Array;

/// The shapes of the tensors that a state must have, by tensor.
pub type Shapes = TensorMap<Vec<usize>>;

/// The state of an optimizer: numbers and tensors by name, and the states of its parts.
///
/// ```
/// use optim::State;
/// use protocol::{Params, TensorMap};
/// use tensor::Array;
///
/// let velocity = TensorMap::from(Params::new(vec![Array::zeros([2, 3])]));
/// let mut state = State::new("sgd");
/// state.set_tensors("velocity", &velocity);
/// let shapes = [(0, vec![2, 3])].into_iter().collect();
/// assert_eq!(state.take_tensors("velocity", &shapes)?, velocity);
/// # Ok::<(), protocol::Refused>(())
/// ```
#[derive(Clone, Debug, PartialEq, Default)]
pub struct State {
    /// The kind of optimizer or part.
    pub kind: String,
    /// Single numbers.
    pub numbers: BTreeMap<String, f64>,
    /// Tensors, by the index of the parameter that they belong to.
    pub tensors: BTreeMap<String, TensorMap>,
    /// Values for all parameters, which every descent of a model needs.
    pub shared: BTreeMap<String, Params>,
    /// States of parts.
    pub parts: BTreeMap<String, State>,
    /// The tensors that it is restricted to; `None` for all.
    restricted_to: Option<BTreeSet<usize>>,
}

impl State {
    /// Creates an empty state.
    pub fn new(kind: &str) -> Self {
        Self { kind: kind.into(), ..Self::default() }
    }

    /// Sets a number.
    pub fn set_number(&mut self, name: &str, number: f64) {
        self.numbers.insert(name.into(), number);
    }

    /// Sets tensors.
    pub fn set_tensors(&mut self, name: &str, tensors: &TensorMap) {
        self.tensors.insert(name.into(), tensors.clone());
    }

    /// Sets values for all parameters, which every descent of a model needs.
    pub fn set_shared(&mut self, name: &str, params: &Params) {
        self.shared.insert(name.into(), params.clone());
    }

    /// Sets the state of a part.
    pub fn set_part(&mut self, name: &str, part: Self) {
        self.parts.insert(name.into(), part);
    }

    /// Restricts the state and its parts to the tensors of some parameters.
    ///
    /// Other tensors are dropped, except shared ones. [`take_tensors`](Self::take_tensors) then
    /// expects only those that are left.
    pub fn restrict(&mut self, wanted: &BTreeSet<usize>) {
        self.retain_tensors(wanted);
        self.expect_only(wanted);
    }

    /// Drops tensors of other parameters, except shared ones, here and in all parts.
    pub fn retain_tensors(&mut self, wanted: &BTreeSet<usize>) {
        for tensors in self.tensors.values_mut() {
            tensors.retain(|tensor| wanted.contains(&tensor));
        }
        self.parts.values_mut().for_each(|part| part.retain_tensors(wanted));
    }

    fn expect_only(&mut self, wanted: &BTreeSet<usize>) {
        self.restricted_to = Some(wanted.clone());
        self.parts.values_mut().for_each(|part| part.expect_only(wanted));
    }

    /// Checks the kind of the state.
    ///
    /// # Errors
    /// If it is a state of another kind.
    pub fn check_kind(&self, kind: &str) -> Result<(), Refused> {
        if self.kind == kind {
            Ok(())
        } else {
            Err(Refused::Query(format!("expected the state of {kind}, got that of {}", self.kind)))
        }
    }

    /// Returns a number.
    ///
    /// # Errors
    /// If it is missing.
    pub fn number(&self, name: &str) -> Result<f64, Refused> {
        self.numbers.get(name).copied().ok_or_else(|| self.missing(name))
    }

    /// Returns a count.
    ///
    /// # Errors
    /// If it is missing, or not a count.
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

    /// Takes tensors of these shapes out of the state.
    ///
    /// # Errors
    /// If a tensor is missing or has another shape, or there are tensors without a shape.
    pub fn take_tensors(&mut self, name: &str, shapes: &Shapes) -> Result<TensorMap, Refused> {
        let tensors = self.tensors.remove(name).ok_or_else(|| self.missing(name))?;
        let wanted =
            |tensor: &usize| self.restricted_to.as_ref().is_none_or(|only| only.contains(tensor));
        let expected = shapes.iter().filter(|(tensor, _)| wanted(tensor));
        let expected = expected.map(|(tensor, shape)| (tensor, &shape[..]));
        if !tensors.iter().map(|(tensor, array)| (tensor, array.shape())).eq(expected) {
            return Err(self.differs(name));
        }
        Ok(tensors)
    }

    /// Takes shared tensors out of the state, which have the shapes of these parameters.
    ///
    /// # Errors
    /// If they are missing or have other shapes.
    pub fn take_shared(&mut self, name: &str, like: &Params) -> Result<Params, Refused> {
        let shared = self.shared.remove(name).ok_or_else(|| self.missing(name))?;
        if !shared.iter().map(Array::shape).eq(like.iter().map(Array::shape)) {
            return Err(self.differs(name));
        }
        Ok(shared)
    }

    /// Takes the state of a part out of this state.
    ///
    /// # Errors
    /// If it is missing.
    pub fn part(&mut self, name: &str) -> Result<Self, Refused> {
        self.parts.remove(name).ok_or_else(|| self.missing(name))
    }

    fn differs(&self, name: &str) -> Refused {
        Refused::Query(format!(
            "the state of {}: {name}: tensors differ from those of the parameters in number or \
             shape",
            self.kind
        ))
    }

    fn missing(&self, name: &str) -> Refused {
        Refused::Query(format!("the state of {} has no {name}", self.kind))
    }
}

/// Returns the shape of each parameter.
pub(crate) fn shapes<'a>(params: impl IntoIterator<Item = &'a Array>) -> Shapes {
    params.into_iter().map(|tensor| tensor.shape().to_vec()).enumerate().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_must_be_those_expected() {
        let tensor = |k: usize, shape: &[usize]| (k, Array::zeros(shape));
        let expected: Shapes = [(0, vec![2]), (2, vec![3, 1])].into_iter().collect();
        let take = |tensors: Vec<(usize, Array)>, only: Option<&[usize]>| {
            let mut inner = State::new("part");
            inner.set_tensors("m", &tensors.into_iter().collect());
            let mut state = State::new("whole");
            state.set_part("part", inner);
            if let Some(only) = only {
                state.restrict(&only.iter().copied().collect());
            }
            state.part("part").unwrap().take_tensors("m", &expected).map(|tensors| tensors.len())
        };
        let both = || vec![tensor(0, &[2]), tensor(2, &[3, 1])];
        assert_eq!(take(both(), None), Ok(2));
        // A restricted state has the wanted tensors only, in its parts too.
        assert_eq!(take(both(), Some(&[2])), Ok(1));
        assert_eq!(take(both(), Some(&[])), Ok(0));
        // Missing, of another shape, another tensor.
        assert!(take(vec![tensor(0, &[2])], None).is_err());
        assert!(take(vec![tensor(0, &[2])], Some(&[2])).is_err());
        assert!(take(vec![tensor(0, &[2]), tensor(2, &[1, 3])], None).is_err());
        assert!(take(vec![tensor(0, &[2]), tensor(1, &[3, 1])], None).is_err());
        let mut more = both();
        more.push(tensor(3, &[1]));
        assert!(take(more, None).is_err());
    }
}
