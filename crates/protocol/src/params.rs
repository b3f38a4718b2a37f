//! Parameters, and values of the same shapes: gradients, moments, directions.

use std::sync::Arc;
use tensor::Array;

/// The trainable tensors of a model, in the model's order.
///
/// Clones share their tensors until one of them is changed (copy on write).
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Params(Vec<Arc<Array>>);

impl Params {
    /// Takes the tensors, in the model's order.
    pub fn new(tensors: Vec<Array>) -> Self {
        Self(tensors.into_iter().map(Arc::new).collect())
    }

    /// Returns zeros of the same shapes.
    pub fn zeros_like(&self) -> Self {
        Self::new(self.iter().map(|tensor| Array::zeros(tensor.shape())).collect())
    }

    /// Returns the number of tensors.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no tensors.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the number of elements of all tensors together.
    pub fn elements(&self) -> usize {
        self.iter().map(Array::len).sum()
    }

    /// Iterates over the tensors.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Array> + DoubleEndedIterator + Clone {
        self.0.iter().map(Arc::as_ref)
    }

    /// Iterates over the tensors, mutably. A tensor that a clone shares is copied first.
    pub fn iter_mut(&mut self) -> impl ExactSizeIterator<Item = &mut Array> + DoubleEndedIterator {
        self.0.iter_mut().map(Arc::make_mut)
    }

    /// Returns the tensors. A tensor that a clone shares is copied.
    pub fn into_tensors(self) -> Vec<Array> {
        self.0.into_iter().map(Arc::unwrap_or_clone).collect()
    }

    /// Sets every element.
    pub fn fill(&mut self, value: f32) {
        self.iter_mut().for_each(|tensor| tensor.fill(value));
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
        Arc::make_mut(&mut self.0[tensor])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clones_share_tensors_until_one_changes() {
        let mut params = Params::new(vec![Array::zeros([2]), Array::zeros([3])]);
        let copy = params.clone();
        params[0].fill(1.0);
        assert!(std::ptr::eq(&params[1], &copy[1]) && !std::ptr::eq(&params[0], &copy[0]));
        assert_eq!((params[0].data(), copy[0].data()), (&[1.0; 2][..], &[0.0; 2][..]));
        drop(copy);
        let before: *const Array = &params[1];
        params.fill(2.0);
        assert!(std::ptr::eq(before, &params[1]));
    }
}
