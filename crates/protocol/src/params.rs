//! Parameters, and what has their shape: gradients, moments, directions.

use tensor::Array;

/// The trainable tensors of a model, in the model's order.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Params(Vec<Array>);

impl Params {
    /// Takes the tensors as they are.
    pub fn new(tensors: Vec<Array>) -> Self {
        Self(tensors)
    }

    /// Zeros of the same shapes.
    pub fn zeros_like(&self) -> Self {
        Self(self.0.iter().map(|tensor| Array::zeros(tensor.shape())).collect())
    }

    /// How many tensors.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many numbers in all.
    pub fn numbers(&self) -> usize {
        self.0.iter().map(Array::len).sum()
    }

    /// The tensors.
    pub fn iter(&self) -> std::slice::Iter<'_, Array> {
        self.0.iter()
    }

    /// The tensors, to be changed.
    pub fn iter_mut(&mut self) -> std::slice::IterMut<'_, Array> {
        self.0.iter_mut()
    }

    /// Sets every number.
    pub fn fill(&mut self, value: f32) {
        self.0.iter_mut().for_each(|tensor| tensor.fill(value));
    }
}

impl std::ops::Index<usize> for Params {
    type Output = Array;

    fn index(&self, tensor: usize) -> &Array {
        &self.0[tensor]
    }
}

impl std::ops::IndexMut<usize> for Params {
    fn index_mut(&mut self, tensor: usize) -> &mut Array {
        &mut self.0[tensor]
    }
}
