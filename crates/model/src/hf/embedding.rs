//! Extension of an embedding table by one row.

use tensor::Array;

/// Appends a row to a table: the mean of the other rows.
///
/// A new `[PAD]` token with this row is predicted like an average token.
pub fn append_mean_row(array: &Array) -> Array {
    let (rows, cols) = (array.rows(), array.cols());
    let mut sums = vec![0.0f64; cols];
    for row in array.data().chunks_exact(cols.max(1)) {
        for (sum, &x) in sums.iter_mut().zip(row) {
            *sum += f64::from(x);
        }
    }
    let mut shape = vec![rows + 1];
    shape.extend(array.shape().iter().skip(1));
    let mut extended = Array::zeros(shape);
    let (old, new) = extended.data_mut().split_at_mut(array.len());
    old.copy_from_slice(array.data());
    for (x, sum) in new.iter_mut().zip(sums) {
        *x = (sum / rows.max(1) as f64) as f32;
    }
    extended
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_new_row_is_the_mean() {
        let array =
            append_mean_row(&Array::new([2, 3], vec![1.0, 2.0, 3.0, 3.0, 5.0, 8.0]).unwrap());
        assert_eq!(
            array,
            Array::new([3, 3], vec![1.0, 2.0, 3.0, 3.0, 5.0, 8.0, 2.0, 3.5, 5.5]).unwrap()
        );
        assert_eq!(append_mean_row(&Array::zeros([0, 2])), Array::zeros([1, 2]));
        assert_eq!(append_mean_row(&Array::zeros([2, 0])), Array::zeros([3, 0]));
        assert_eq!(
            append_mean_row(&Array::new([3, 1, 1], vec![1.0, 2.0, 6.0]).unwrap()).data()[3],
            3.0
        );
        // A sum in f32 would lose the 3.
        assert_eq!(
            append_mean_row(&Array::new([3, 1], vec![1e9, 3.0, -1e9]).unwrap()).data()[3],
            1.0
        );
    }
}
