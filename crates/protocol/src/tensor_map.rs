//! Values for some of a model's tensors.

use crate::{Params, Refused};
use std::collections::{BTreeMap, btree_map};
use tensor::Array;

/// A value for each of some trainable tensors, by the index of the tensor.
///
/// Where several processes divide the tensors of a model among themselves, each has the values of
/// the tensors that it owns. A tensor that is not in the map has no value here; an empty array is
/// the value of a tensor without elements.
///
/// ```
/// use protocol::{Params, TensorMap};
/// use tensor::Array;
///
/// let mut map = TensorMap::from(Params::new(vec![Array::zeros([2]), Array::zeros([3])]));
/// assert_eq!((map.len(), map[1].len()), (2, 3));
/// map.remove(0);
/// assert!(map.into_params(2).is_err(), "tensor 0 is missing");
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct TensorMap<T = Array>(BTreeMap<usize, T>);

impl<T> TensorMap<T> {
    /// Creates an empty map.
    pub fn new() -> Self {
        Self(BTreeMap::new())
    }

    /// Returns the number of tensors in the map.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether no tensor is in the map.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a tensor is in the map.
    pub fn contains(&self, tensor: usize) -> bool {
        self.0.contains_key(&tensor)
    }

    /// Returns the value of a tensor.
    pub fn get(&self, tensor: usize) -> Option<&T> {
        self.0.get(&tensor)
    }

    /// Returns the value of a tensor, mutably.
    pub fn get_mut(&mut self, tensor: usize) -> Option<&mut T> {
        self.0.get_mut(&tensor)
    }

    /// Returns the value of a tensor; inserts `value()` first if the map has none.
    pub fn get_or_insert_with(&mut self, tensor: usize, value: impl FnOnce() -> T) -> &mut T {
        self.0.entry(tensor).or_insert_with(value)
    }

    /// Sets the value of a tensor; returns the previous one.
    pub fn insert(&mut self, tensor: usize, value: T) -> Option<T> {
        self.0.insert(tensor, value)
    }

    /// Takes the value of a tensor out of the map.
    pub fn remove(&mut self, tensor: usize) -> Option<T> {
        self.0.remove(&tensor)
    }

    /// Retains the tensors for which `wanted` returns true.
    pub fn retain(&mut self, wanted: impl Fn(usize) -> bool) {
        self.0.retain(|&tensor, _| wanted(tensor));
    }

    /// Returns the indices of the tensors, in ascending order.
    pub fn indices(&self) -> impl ExactSizeIterator<Item = usize> + '_ {
        self.0.keys().copied()
    }

    /// Returns the values, in the order of the tensors.
    pub fn values(&self) -> impl ExactSizeIterator<Item = &T> + DoubleEndedIterator + Clone {
        self.0.values()
    }

    /// Returns the tensors and their values, in ascending order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (usize, &T)> + Clone {
        self.0.iter().map(|(&tensor, value)| (tensor, value))
    }

    /// Returns the tensors and their values, mutably, in ascending order.
    pub fn iter_mut(&mut self) -> impl ExactSizeIterator<Item = (usize, &mut T)> {
        self.0.iter_mut().map(|(&tensor, value)| (tensor, value))
    }
}

impl TensorMap {
    /// Returns the value of a tensor; inserts zeros of this shape first if the map has none.
    pub fn get_or_zeros(&mut self, tensor: usize, shape: &[usize]) -> &mut Array {
        self.get_or_insert_with(tensor, || Array::zeros(shape))
    }

    /// Returns the parameters of a model of `tensors` tensors, all of which are in the map.
    ///
    /// # Errors
    /// If one of them is missing.
    pub fn into_params(self, tensors: usize) -> Result<Params, Refused> {
        if !self.indices().eq(0..tensors) {
            return Err(Refused::Failed(format!(
                "expected values for all {tensors} tensors, got {} of them",
                self.len()
            )));
        }
        Ok(Params::new(self.0.into_values().collect()))
    }
}

impl From<Params> for TensorMap {
    fn from(params: Params) -> Self {
        params.into_tensors().into_iter().enumerate().collect()
    }
}

impl<T> Default for TensorMap<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> FromIterator<(usize, T)> for TensorMap<T> {
    fn from_iter<I: IntoIterator<Item = (usize, T)>>(values: I) -> Self {
        Self(values.into_iter().collect())
    }
}

impl<T> IntoIterator for TensorMap<T> {
    type Item = (usize, T);
    type IntoIter = btree_map::IntoIter<usize, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

/// # Panics
/// If the tensor is not in the map.
impl<T> std::ops::Index<usize> for TensorMap<T> {
    type Output = T;

    fn index(&self, tensor: usize) -> &T {
        &self.0[&tensor]
    }
}
