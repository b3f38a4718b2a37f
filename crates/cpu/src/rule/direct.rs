//! Per-example gradients computed one example and some rows at a time, for their norms.

use super::{GradientForm, Intermediates};
use model::op::Order;
use std::cell::RefCell;
use tensor::matmul::{OutputMode, Threads, View, ViewMut, matmul};
use tensor::{Array, embedding};

thread_local! {
    /// Buffer of the current rows, reused between calls.
    static SCRATCH: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// Elements computed at a time: they fit into the second-level cache.
const PART_ELEMENTS: usize = 1 << 16;

/// Computes one example's gradient of trained parameter `k` in parts.
///
/// `each(first, rows)` is called with consecutive rows, of which the first has index `first`.
pub(crate) fn gradient(
    intermediates: &Intermediates<'_>,
    k: usize,
    example: usize,
    mut each: impl FnMut(usize, &[f32]),
) {
    let (rows, cols) = intermediates.shape(k);
    if rows * cols == 0 {
        return;
    }
    let part_rows = (PART_ELEMENTS / cols).clamp(1, rows);
    SCRATCH.with_borrow_mut(|scratch| {
        scratch.resize(scratch.len().max(part_rows * cols), 0.0);
        for first in (0..rows).step_by(part_rows) {
            let count = part_rows.min(rows - first);
            let part = &mut scratch[..count * cols];
            part.fill(0.0);
            for form in &intermediates.plan.gradient_forms[k] {
                add(intermediates, *form, example, first, cols, part);
            }
            each(first, part);
        }
    });
}

/// Adds the gradient of one use to the rows from `first` on.
fn add(
    intermediates: &Intermediates<'_>,
    form: GradientForm,
    example: usize,
    first: usize,
    cols: usize,
    part: &mut [f32],
) {
    let count = part.len() / cols;
    match form {
        GradientForm::Outer { x, gradient, order } => {
            let (x, d) = (intermediates.x(x, example), intermediates.d(gradient, example));
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
            let (ids, d) = intermediates.lookups(index, gradient, example);
            for (t, &id) in ids.iter().enumerate() {
                if let Some(row) = (id as usize).checked_sub(first).filter(|&row| row < count) {
                    part[row * cols..][..cols]
                        .iter_mut()
                        .zip(&d.data[t * cols..])
                        .for_each(|(sum, d)| *sum += d);
                }
            }
        }
        // Norms of vectors are computed from their rows.
        GradientForm::Vector => unreachable!("gradients of vectors are not computed in parts"),
    }
}

/// Returns Σ g², or Σ ((g − center)/scale)², of rows from `first` on.
pub(crate) fn square(rows: &[f32], first: usize, affine: Option<(&Array, &Array)>) -> f64 {
    let Some((center, scale)) = affine else { return embedding::squared_norm(rows) };
    let start = first * center.cols();
    let pairs = center.data()[start..].iter().zip(&scale.data()[start..]);
    rows.iter().zip(pairs).map(|(g, (c, s))| (f64::from(g - c) / f64::from(*s)).powi(2)).sum()
}

/// Returns Σ (center/scale)², the squared norm of a zero gradient in affine coordinates.
pub(crate) fn square_of_zero(center: &Array, scale: &Array) -> f64 {
    // Summed in chunks, so that the relative rounding error is below 10⁻¹² for any number of
    // elements.
    let chunk = |(center, scale): (&[f32], &[f32])| {
        center.iter().zip(scale).map(|(c, s)| (f64::from(*c) / f64::from(*s)).powi(2)).sum::<f64>()
    };
    center.data().chunks(4096).zip(scale.data().chunks(4096)).map(chunk).sum()
}

/// Returns the largest factor by which an affine encoding can increase a norm.
pub(crate) fn largest_gain(scale: &Array) -> f64 {
    1.0 / f64::from(scale.data().iter().copied().fold(f32::INFINITY, f32::min))
}

/// Estimates the cost in multiplications, with a few for writing and reading each element.
pub(crate) fn cost(rows: usize, a: usize, b: usize) -> f64 {
    (rows as f64 + 4.0) * a as f64 * b as f64
}
