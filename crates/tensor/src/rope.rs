//! Rotary positions (Su et al. 2021), in the halves convention of Llama: element `i` turns with
//! element `i + dim/2`.

use crate::simd::vectorised;
use rayon::prelude::*;
use std::sync::{Arc, Mutex, PoisonError};

/// A frequency (radians a position) for each pair of a vector, and the angles of the positions that
/// have come so far.
pub struct Rope {
    frequencies: Vec<f64>,
    /// A model may take far longer texts than it is given: the table grows with them.
    angles: Mutex<Arc<Angles>>,
}

/// Its table tells how long texts were: it does not print.
impl std::fmt::Debug for Rope {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rope").field("frequencies", &self.frequencies).finish_non_exhaustive()
    }
}

/// Position after position, a number for each pair.
#[derive(Default)]
struct Angles {
    positions: usize,
    cos: Vec<f32>,
    sin: Vec<f32>,
}

/// Which way to turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rotation {
    /// As the forward pass does.
    Forward,
    /// Back: the gradient of a rotation.
    Backward,
}

/// Where in a row the vectors lie that are turned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadColumns {
    /// Width of a row.
    pub stride: usize,
    /// First column.
    pub first: usize,
    /// How many vectors, one after another.
    pub heads: usize,
}

impl Rope {
    /// One frequency (radians a position) for each pair.
    pub fn new(frequencies: Vec<f64>) -> Self {
        Self { frequencies, angles: Mutex::default() }
    }

    /// The width of a vector that is turned.
    pub fn dim(&self) -> usize {
        2 * self.frequencies.len()
    }

    /// Angles for at least this many positions.
    fn angles(&self, positions: usize) -> Arc<Angles> {
        // A table that somebody panicked over is whole: it is replaced at once or not at all.
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

    /// Turns the vectors of each row by its position.
    pub fn rotate(&self, positions: &[u32], place: HeadColumns, turn: Rotation, data: &mut [f32]) {
        let HeadColumns { stride, first, heads } = place;
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
                vectorised(
                    #[inline(always)]
                    || {
                        for vector in
                            row[first..first + 2 * half * heads].chunks_exact_mut(2 * half)
                        {
                            let (a, b) = vector.split_at_mut(half);
                            for i in 0..half {
                                let s = if turn == Rotation::Forward { sin[i] } else { -sin[i] };
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

    /// A longer text makes a longer table, and the angles of a position are the same in both.
    #[test]
    fn the_table_grows_with_the_texts() {
        let rope = Rope::new(vec![1.0, 0.1]);
        let place = HeadColumns { stride: 4, first: 0, heads: 1 };
        let start: Vec<f32> = (0..400).map(|i| (i as f32).sin()).collect();
        let (mut short, mut long) = (start[..12].to_vec(), start.clone());
        rope.rotate(&[0, 1, 2], place, Rotation::Forward, &mut short);
        assert_eq!(rope.angles(0).positions, 4);
        rope.rotate(&(0..100).collect::<Vec<_>>(), place, Rotation::Forward, &mut long);
        assert_eq!((rope.angles(0).positions, &long[..12]), (128, &short[..]));
    }

    #[test]
    fn it_turns_and_turns_back() {
        let rope = Rope::new(vec![1.0, 0.1]);
        let place = HeadColumns { stride: 10, first: 1, heads: 2 };
        let start: Vec<f32> = (0..50).map(|i| (i as f32).sin()).collect();
        let mut x = start.clone();
        // Rows 0..3 are one example, 3 and 4 two more (the one between is empty).
        rope.rotate(&[0, 1, 2, 0, 0], place, Rotation::Forward, &mut x);
        // Position 0 does not move; outer columns never do.
        for row in [0, 3, 4] {
            assert_eq!(x[row * 10..row * 10 + 10], start[row * 10..row * 10 + 10]);
        }
        assert_eq!((x[20], x[29]), (start[20], start[29]));
        // Second row: pair (1, 3) by one radian, pair (2, 4) by a tenth.
        let (a, b) = (start[11], start[13]);
        assert!((x[11] - (a * 1f32.cos() - b * 1f32.sin())).abs() < 1e-6);
        assert!((x[13] - (b * 1f32.cos() + a * 1f32.sin())).abs() < 1e-6);
        rope.rotate(&[0, 1, 2, 0, 0], place, Rotation::Backward, &mut x);
        assert!(x.iter().zip(&start).all(|(x, s)| (x - s).abs() < 1e-6));
    }
}
