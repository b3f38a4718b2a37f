//! Rotary position embedding (Su et al. 2021) in Llama's convention: element `i` is paired with
//! element `i + dim/2`.

use crate::simd::vectorized;
use rayon::prelude::*;
use std::sync::{Arc, Mutex, PoisonError};

/// Rotary position embedding: frequencies, and a table of angles that grows as needed.
pub struct Rope {
    frequencies: Vec<f64>,
    /// The table grows with the texts, which are usually shorter than the model's limit.
    angles: Mutex<Arc<Angles>>,
}

/// The size of the table depends on private texts: `Debug` does not print it.
impl std::fmt::Debug for Rope {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rope").field("frequencies", &self.frequencies).finish_non_exhaustive()
    }
}

/// Cosines and sines, one for each position and pair.
#[derive(Default)]
struct Angles {
    positions: usize,
    cos: Vec<f32>,
    sin: Vec<f32>,
}

/// The direction of a rotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rotation {
    /// The forward pass.
    Forward,
    /// The inverse rotation, which is the backward pass.
    Backward,
}

/// The columns of a row that are rotated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadColumns {
    /// Width of a row.
    pub stride: usize,
    /// First column.
    pub first: usize,
    /// The number of vectors, which are contiguous.
    pub heads: usize,
}

impl Rope {
    /// Creates an embedding from one frequency (radians per position) for each pair.
    pub fn new(frequencies: Vec<f64>) -> Self {
        Self { frequencies, angles: Mutex::default() }
    }

    /// Returns the width of a vector.
    pub fn dim(&self) -> usize {
        2 * self.frequencies.len()
    }

    /// Returns the angles of at least this many positions.
    fn angles(&self, positions: usize) -> Arc<Angles> {
        // A poisoned table is still valid: it is replaced as a whole or not at all.
        let mut angles = self.angles.lock().unwrap_or_else(PoisonError::into_inner);
        if angles.positions < positions {
            let positions = positions.next_power_of_two();
            let table = |f: fn(f64) -> f64| {
                (0..positions)
                    .flat_map(|p| self.frequencies.iter().map(move |w| f(p as f64 * w) as f32))
                    .collect()
            };
            *angles = Arc::new(Angles { positions, cos: table(f64::cos), sin: table(f64::sin) });
        }
        Arc::clone(&angles)
    }

    /// Rotates the vectors of each row by its position.
    pub fn rotate(
        &self,
        positions: &[u32],
        columns: HeadColumns,
        rotation: Rotation,
        data: &mut [f32],
    ) {
        let HeadColumns { stride, first, heads } = columns;
        let half = self.frequencies.len();
        assert_eq!(data.len(), positions.len() * stride, "{} rows of {stride}", positions.len());
        assert!(first + 2 * half * heads <= stride, "vectors inside a row");
        if stride == 0 {
            return;
        }
        let angles = self.angles(positions.iter().max().map_or(0, |&last| last as usize + 1));
        let rows = crate::parallel::rows_per_piece(data.len() / stride, 2 * half * heads);
        data.par_chunks_mut(rows * stride).enumerate().for_each(|(piece, data)| {
            for (i, row) in data.chunks_exact_mut(stride).enumerate() {
                let position = positions[piece * rows + i] as usize;
                let (cos, sin) = (
                    &angles.cos[position * half..][..half],
                    &angles.sin[position * half..][..half],
                );
                vectorized(
                    #[inline(always)]
                    || {
                        for vector in
                            row[first..first + 2 * half * heads].chunks_exact_mut(2 * half)
                        {
                            let (a, b) = vector.split_at_mut(half);
                            for i in 0..half {
                                let s =
                                    if rotation == Rotation::Forward { sin[i] } else { -sin[i] };
                                (a[i], b[i]) = (a[i] * cos[i] - b[i] * s, b[i] * cos[i] + a[i] * s);
                            }
                        }
                    },
                );
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A longer text extends the table without changing its angles.
    #[test]
    fn the_table_grows_with_the_texts() {
        let rope = Rope::new(vec![1.0, 0.1]);
        let columns = HeadColumns { stride: 4, first: 0, heads: 1 };
        let start: Vec<f32> = (0..400).map(|i| (i as f32).sin()).collect();
        let (mut short, mut long) = (start[..12].to_vec(), start.clone());
        rope.rotate(&[0, 1, 2], columns, Rotation::Forward, &mut short);
        assert_eq!(rope.angles(0).positions, 4);
        rope.rotate(&(0..100).collect::<Vec<_>>(), columns, Rotation::Forward, &mut long);
        assert_eq!((rope.angles(0).positions, &long[..12]), (128, &short[..]));
    }

    #[test]
    fn backward_inverts_forward() {
        let rope = Rope::new(vec![1.0, 0.1]);
        let columns = HeadColumns { stride: 10, first: 1, heads: 2 };
        let start: Vec<f32> = (0..50).map(|i| (i as f32).sin()).collect();
        let mut x = start.clone();
        // Rows 0..3 are one example, 3 and 4 two more (the one between is empty).
        rope.rotate(&[0, 1, 2, 0, 0], columns, Rotation::Forward, &mut x);
        // Position 0 is not rotated; other columns are unchanged.
        for row in [0, 3, 4] {
            assert_eq!(x[row * 10..row * 10 + 10], start[row * 10..row * 10 + 10]);
        }
        assert_eq!((x[20], x[29]), (start[20], start[29]));
        // Second row: pair (1, 3) by one radian, pair (2, 4) by a tenth.
        let (a, b) = (start[11], start[13]);
        assert!((x[11] - (a * 1f32.cos() - b * 1f32.sin())).abs() < 1e-6);
        assert!((x[13] - (b * 1f32.cos() + a * 1f32.sin())).abs() < 1e-6);
        rope.rotate(&[0, 1, 2, 0, 0], columns, Rotation::Backward, &mut x);
        assert!(x.iter().zip(&start).all(|(x, s)| (x - s).abs() < 1e-6));
    }
}
