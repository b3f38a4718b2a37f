//! An array: a shape and its numbers, row after row, in host memory.

use crate::Error;
use crate::matmul::View;

/// Numbers with a shape, the last dimension running fastest.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Array {
    shape: Vec<usize>,
    data: Vec<f32>,
}

impl Array {
    /// Takes the numbers as they are.
    ///
    /// # Errors
    /// If there are not as many numbers as the shape asks for.
    pub fn new(shape: impl Into<Vec<usize>>, data: Vec<f32>) -> Result<Self, Error> {
        let shape = shape.into();
        match shape.iter().try_fold(1usize, |product, &side| product.checked_mul(side)) {
            Some(expected) if expected == data.len() => Ok(Self { shape, data }),
            expected => Err(Error::Shape { shape, expected, got: data.len() }),
        }
    }

    /// All zeros.
    pub fn zeros(shape: impl Into<Vec<usize>>) -> Self {
        let shape = shape.into();
        let data = vec![0.0; shape.iter().product()];
        Self { shape, data }
    }

    /// Each number from its index.
    pub fn from_fn(shape: impl Into<Vec<usize>>, f: impl FnMut(usize) -> f32) -> Self {
        let shape = shape.into();
        let data = (0..shape.iter().product()).map(f).collect();
        Self { shape, data }
    }

    /// The sides.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// How many numbers.
    pub fn len(&self) -> usize {
        self.data.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.data.is_empty()
    }

    /// The first side; 1 for a single number.
    pub fn rows(&self) -> usize {
        self.shape.first().copied().unwrap_or(1)
    }

    /// The product of the other sides: a kernel of a convolution is a matrix (out,
    /// in·height·width).
    pub fn cols(&self) -> usize {
        self.shape.iter().skip(1).product()
    }

    /// The numbers.
    pub fn data(&self) -> &[f32] {
        &self.data
    }

    /// As a matrix of [`rows`](Self::rows) × [`cols`](Self::cols).
    pub fn view(&self) -> View<'_> {
        View::new(&self.data, self.rows(), self.cols())
    }

    /// The numbers, to be changed.
    pub fn data_mut(&mut self) -> &mut [f32] {
        &mut self.data
    }

    /// The numbers alone.
    pub fn into_data(self) -> Vec<f32> {
        self.data
    }

    /// Sets every number.
    pub fn fill(&mut self, value: f32) {
        self.data.fill(value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shape_must_fit() {
        assert!(Array::new([2, 3], vec![0.0; 6]).is_ok());
        assert!(Array::new([2, 3], vec![0.0; 5]).is_err());
        assert!(Array::new([usize::MAX, 3], vec![0.0; 5]).is_err());
        assert_eq!(Array::new([], vec![1.0]).unwrap().cols(), 1);
        assert_eq!(Array::zeros([4, 3, 2, 2]).cols(), 12);
    }
}
