//! Arrays of f32 in host memory, in row-major order.

use crate::Error;
use crate::matmul::View;

/// A dense array in row-major order.
///
/// ```
/// let array = tensor::Array::new([2, 3], vec![1.0; 6])?;
/// assert_eq!((array.rows(), array.cols()), (2, 3));
/// assert!(tensor::Array::new([2, 3], vec![1.0; 5]).is_err());
/// # Ok::<(), tensor::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Array {
    shape: Vec<usize>,
    data: Vec<f32>,
}

impl Array {
    /// Creates an array from its shape and elements.
    ///
    /// # Errors
    /// If the number of elements does not match the shape.
    pub fn new(shape: impl Into<Vec<usize>>, data: Vec<f32>) -> Result<Self, Error> {
        let shape = shape.into();
        match shape.iter().try_fold(1usize, |product, &size| product.checked_mul(size)) {
            Some(expected) if expected == data.len() => Ok(Self { shape, data }),
            expected => Err(Error::Shape { shape, expected, got: data.len() }),
        }
    }

    /// Creates an array of zeros.
    pub fn zeros(shape: impl Into<Vec<usize>>) -> Self {
        let shape = shape.into();
        let data = vec![0.0; shape.iter().product()];
        Self { shape, data }
    }

    /// Creates an array from a function of the index.
    pub fn from_fn(shape: impl Into<Vec<usize>>, f: impl FnMut(usize) -> f32) -> Self {
        let shape = shape.into();
        let data = (0..shape.iter().product()).map(f).collect();
        Self { shape, data }
    }

    /// Returns the shape.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        self.data.len()
    }

    /// Returns whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.data.is_empty()
    }

    /// Returns the first dimension; 1 for a scalar.
    pub fn rows(&self) -> usize {
        self.shape.first().copied().unwrap_or(1)
    }

    /// Returns the product of the other dimensions.
    ///
    /// A convolution kernel is a matrix (out, in·height·width).
    pub fn cols(&self) -> usize {
        self.shape.iter().skip(1).product()
    }

    /// Returns the elements.
    pub fn data(&self) -> &[f32] {
        &self.data
    }

    /// Returns a view as a matrix of [`rows`](Self::rows) × [`cols`](Self::cols).
    pub fn view(&self) -> View<'_> {
        View::new(&self.data, self.rows(), self.cols())
    }

    /// Returns the elements, mutable.
    pub fn data_mut(&mut self) -> &mut [f32] {
        &mut self.data
    }

    /// Returns the elements, without the shape.
    pub fn into_data(self) -> Vec<f32> {
        self.data
    }

    /// Sets every element.
    pub fn fill(&mut self, value: f32) {
        self.data.fill(value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_that_do_not_match_are_refused() {
        assert!(Array::new([2, 3], vec![0.0; 6]).is_ok());
        assert!(Array::new([2, 3], vec![0.0; 5]).is_err());
        assert!(Array::new([usize::MAX, 3], vec![0.0; 5]).is_err());
        assert_eq!(Array::new([], vec![1.0]).unwrap().cols(), 1);
        assert_eq!(Array::zeros([4, 3, 2, 2]).cols(), 12);
    }
}
