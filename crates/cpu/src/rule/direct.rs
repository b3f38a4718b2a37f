//! One example's gradient at a time, some rows at a time: it never exists as a whole.

use super::{GradientForm, Traces};
use model::op::Order;
use std::cell::RefCell;
use tensor::matmul::{OutputMode, Threads, View, ViewMut, matmul};
use tensor::{Array, embedding};

thread_local! {
    /// The rows at hand: kept between calls.
    static SCRATCH: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// Numbers that are made at a time: they stay in the second-level cache.
const STRETCH: usize = 1 << 16;

/// Calls `each(first, rows)` with stretches of rows of one example's gradient by trained parameter
/// `k`.
pub(crate) fn gradient(
    traces: &Traces<'_>,
    k: usize,
    example: usize,
    mut each: impl FnMut(usize, &[f32]),
) {
    let (rows, cols) = traces.shape(k);
    if rows * cols == 0 {
        return;
    }
    let stretch = (STRETCH / cols).clamp(1, rows);
    SCRATCH.with_borrow_mut(|scratch| {
        scratch.resize(scratch.len().max(stretch * cols), 0.0);
        for first in (0..rows).step_by(stretch) {
            let count = stretch.min(rows - first);
            let part = &mut scratch[..count * cols];
            part.fill(0.0);
            for entry in &traces.plan.gradient_forms[k] {
                add(traces, *entry, example, first, cols, part);
            }
            each(first, part);
        }
    });
}

/// Adds what one use contributes to the rows from `first` on.
fn add(
    traces: &Traces<'_>,
    entry: GradientForm,
    example: usize,
    first: usize,
    cols: usize,
    part: &mut [f32],
) {
    let count = part.len() / cols;
    match entry {
        GradientForm::Outer { x, gradient, order } => {
            let (x, d) = (traces.x(x, example), traces.d(gradient, example));
            if d.rows == 0 {
                return;
            }
            let (tall, wide) = if order == Order::OutIn { (d, x) } else { (x, d) };
            let lhs =
                View::columns(tall.data, tall.rows, tall.stride, tall.first + first, count).t();
            let rhs = View::columns(wide.data, wide.rows, wide.stride, wide.first, wide.width);
            matmul(
                ViewMut::new(part, count, cols),
                OutputMode::Accumulate,
                1.0,
                lhs,
                rhs,
                Threads::One,
            );
        }
        GradientForm::Lookup { index, gradient } => {
            let (ids, d) = traces.lookups(index, gradient, example);
            for (t, &id) in ids.iter().enumerate() {
                if let Some(row) = (id as usize).checked_sub(first).filter(|&row| row < count) {
                    part[row * cols..][..cols]
                        .iter_mut()
                        .zip(&d.data[t * cols..])
                        .for_each(|(sum, d)| *sum += d);
                }
            }
        }
        // Vectors are complete already, and are never asked for piece by piece.
        GradientForm::Vector => unreachable!("a vector's gradient is a row"),
    }
}

/// Σ g², or Σ ((g − center)/scale)², of rows from `first` on.
pub(crate) fn square(rows: &[f32], first: usize, affine: Option<(&Array, &Array)>) -> f64 {
    let Some((center, scale)) = affine else { return embedding::squared_norm(rows) };
    let start = first * center.cols();
    let pairs = center.data()[start..].iter().zip(&scale.data()[start..]);
    rows.iter().zip(pairs).map(|(g, (c, s))| (f64::from(g - c) / f64::from(*s)).powi(2)).sum()
}

/// Σ (center/scale)²: where a zero gradient lies.
pub(crate) fn square_of_nothing(center: &Array, scale: &Array) -> f64 {
    // Stretch by stretch: what is rounded is a millionth of a millionth of the sum, however many
    // elements there are.
    let stretch = |(center, scale): (&[f32], &[f32])| {
        center.iter().zip(scale).map(|(c, s)| (f64::from(*c) / f64::from(*s)).powi(2)).sum::<f64>()
    };
    center.data().chunks(4096).zip(scale.data().chunks(4096)).map(stretch).sum()
}

/// The most that an encoding with these scales can lengthen a vector.
pub(crate) fn largest_gain(scale: &Array) -> f64 {
    1.0 / f64::from(scale.data().iter().copied().fold(f32::INFINITY, f32::min))
}

/// Work, in multiplications. Making and reading a number of the gradient counts as a few.
pub(crate) fn cost(rows: usize, a: usize, b: usize) -> f64 {
    (rows as f64 + 4.0) * a as f64 * b as f64
}
