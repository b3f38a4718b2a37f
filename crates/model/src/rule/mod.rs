//! Per-example gradients that are never made: their norms, and their weighted sums, from what a backward pass leaves behind.
//!
//! A parameter enters a model in one of three forms, and in several places if it is tied. Everything the curator needs follows from the forms:
//!
//! | form | an example's gradient | who |
//! |---|---|---|
//! | outer | Σ_t x_t ⊗ d_t | weights of linear maps and convolutions, low-rank factors |
//! | lookup | Σ_t e(id_t) ⊗ d_t | embeddings |
//! | vector | itself: it is small, one row an example | gains and biases |
//!
//! # Claim
//! The norm of a parameter is that of the *sum* over all places where it enters (tied weights), and no example's norm depends on another example.
//! # Checked by
//! `tests/brute_force.rs`, `tests/isolation.rs`.

mod direct;
mod ghost;
mod lookup;
mod tangent;

use crate::batch::Batch;
use crate::graph::{Graph, Value};
use crate::layer::{Index, Order};
use crate::plan::Plan;
use crate::run::Buffers;
use protocol::Geometry;
use rayon::prelude::*;
use tensor::gram::Rows;
use tensor::matmul::{Onto, Threads, View, ViewMut, matmul};
use tensor::{Array, Workspace, embedding};

/// A place where a parameter enters, and what its per-example gradient is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// Σ_t x_t ⊗ d_t
    Outer {
        /// x
        x: Value,
        /// d: the gradient by this value, its first column and how many columns.
        gradient: (Value, usize, usize),
        /// Whether the rows of the parameter belong to d or to x.
        order: Order,
    },
    /// Σ_t e(id_t) ⊗ d_t
    Lookup {
        /// id
        index: Index,
        /// d
        gradient: Value,
    },
    /// One row an example, made already.
    Vector,
}

impl Use {
    /// The value and the gradient it is made of.
    pub(crate) fn reads(self) -> (Option<Value>, Option<Value>) {
        match self {
            Self::Outer { x, gradient, .. } => (Some(x), Some(gradient.0)),
            Self::Lookup { gradient, .. } => (None, Some(gradient)),
            Self::Vector => (None, None),
        }
    }
}

/// Rows whose products are added up in f32 without a pause.
const LONGEST_SUM: usize = 512;

/// How the norms of outer products are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum NormMethod {
    /// Whichever costs less for the sides at hand.
    #[default]
    Cheapest,
    /// From inner products of pairs of rows: no gradient is made.
    Ghost,
    /// One example's gradient at a time, a few rows at a time.
    Direct,
}

/// What a backward pass leaves.
#[derive(Clone, Copy)]
pub(crate) struct Traces<'a> {
    pub(crate) graph: &'a Graph,
    pub(crate) plan: &'a Plan,
    pub(crate) batch: &'a Batch,
    pub(crate) buffers: &'a Buffers,
    pub(crate) method: NormMethod,
}

/// The square of a norm that is larger by `room`. What is not a number stays so.
fn enlarged(square: f64, room: f64) -> f64 {
    let norm = if square < 0.0 { 0.0 } else { square.sqrt() };
    (norm + room).powi(2)
}

impl<'a> Traces<'a> {
    fn shape(&self, k: usize) -> (usize, usize) {
        let shape = &self.graph.specs[self.plan.trained[k].0].shape;
        (shape.first().copied().unwrap_or(1), shape.iter().skip(1).product())
    }

    /// The rows of one example of a value's data.
    fn rows(&self, value: Value, data: &'a [f32], example: usize, first: usize, width: usize) -> Rows<'a> {
        let form = self.graph.forms[value.0];
        let offsets = self.batch.offsets(form.space);
        let (start, end) = (offsets[example], offsets[example + 1]);
        let data = data.get(start * form.width..end * form.width).unwrap_or(&[]);
        Rows { data, rows: if data.is_empty() { 0 } else { end - start }, stride: form.width, first, width }
    }

    fn x(&self, x: Value, example: usize) -> Rows<'a> {
        self.rows(x, &self.buffers.values[x.0], example, 0, self.graph.forms[x.0].width)
    }

    fn d(&self, gradient: (Value, usize, usize), example: usize) -> Rows<'a> {
        self.rows(gradient.0, self.buffers.gradients.slice(gradient.0), example, gradient.1, gradient.2)
    }

    fn vectors(&self, k: usize) -> &'a [f32] {
        &self.buffers.vectors[self.plan.trained[k].0]
    }

    /// The indices and the gradient rows of one example's lookups.
    fn lookups(&self, index: Index, gradient: Value, example: usize) -> (&'a [u32], Rows<'a>) {
        let d = self.rows(gradient, self.buffers.gradients.slice(gradient), example, 0, self.graph.forms[gradient.0].width);
        let first = self.batch.offsets(self.graph.forms[gradient.0].space)[example];
        (&index.of(self.batch)[first..first + d.rows], d)
    }

    /// Adds each example's squared norm, in `geometry`, of trained parameter `k` to `norms`.
    pub(crate) fn add_norms(&self, geometry: &Geometry, k: usize, norms: &mut [f64]) {
        let (_, cols) = self.shape(k);
        let affine = match geometry {
            Geometry::Affine { center, scale } => Some((&center[k], &scale[k])),
            _ => None,
        };
        let uses = self.plan.uses[k].as_slice();
        match (uses, affine) {
            ([Use::Vector, ..], _) => {
                let width = self.shape(k).0 * cols;
                let rows = self.vectors(k);
                norms.iter_mut().zip(rows.chunks_exact(width.max(1))).for_each(|(norm, row)| *norm += direct::square(row, 0, affine));
            }
            ([Use::Lookup { index, gradient }], _) => {
                let rest = affine.map_or(0.0, |(center, scale)| direct::square_of_nothing(center, scale));
                let gain = affine.map_or(1.0, |(_, scale)| direct::largest_gain(scale));
                self.each(norms, |example| {
                    let (ids, d) = self.lookups(*index, *gradient, example);
                    enlarged(rest + lookup::square(ids, d, affine), gain * self.rounding(k, example))
                });
            }
            ([Use::Outer { x, gradient, .. }], None) => self.each(norms, |example| {
                let (x, d) = (self.x(*x, example), self.d(*gradient, example));
                let found = self.prefers_ghost(x, d).then(|| ghost::measure(x, d));
                found.and_then(ghost::Ghost::certain).unwrap_or_else(|| self.direct_square(k, example))
            }),
            ([Use::Lookup { index, gradient: rows }, Use::Outer { x, gradient, order: Order::OutIn }], None)
            | ([Use::Outer { x, gradient, order: Order::OutIn }, Use::Lookup { index, gradient: rows }], None) => {
                self.each(norms, |example| {
                    let (x, d) = (self.x(*x, example), self.d(*gradient, example));
                    let found = self.prefers_ghost(x, d).then(|| {
                        let (ids, rows) = self.lookups(*index, *rows, example);
                        let product = lookup::product_with_outer(ids, rows, x, d);
                        ghost::measure(x, d).and_lookups(lookup::square(ids, rows, None), product)
                    });
                    found.and_then(ghost::Ghost::certain).unwrap_or_else(|| self.direct_square(k, example))
                })
            }
            _ => {
                let gain = affine.map_or(1.0, |(_, scale)| direct::largest_gain(scale));
                self.each(norms, |example| enlarged(self.made_square(k, example, affine), gain * self.rounding(k, example)));
            }
        }
    }

    /// Adds each example's squared norm of the tangent coordinates of a low-rank pair.
    pub(crate) fn add_tangent_norms(&self, frame: &protocol::Frame, norms: &mut [f64]) {
        self.each(norms, |example| tangent::square(self, frame, example));
    }

    fn each(&self, norms: &mut [f64], square: impl Fn(usize) -> f64 + Sync) {
        norms.par_iter_mut().with_max_len(1).enumerate().for_each(|(example, norm)| *norm += square(example));
    }

    fn prefers_ghost(&self, x: Rows<'_>, d: Rows<'_>) -> bool {
        match self.method {
            NormMethod::Ghost => true,
            NormMethod::Direct => false,
            NormMethod::Cheapest => ghost::cost(x.rows, x.width, d.width) <= direct::cost(x.rows, x.width, d.width),
        }
    }

    /// The squared norm of an example's gradient that is made for it, and room for rounding.
    fn direct_square(&self, k: usize, example: usize) -> f64 {
        enlarged(self.made_square(k, example, None), self.rounding(k, example))
    }

    /// How far an example's gradient, as it enters a sum, may be from itself, as a norm.
    ///
    /// A gradient is a sum over rows, Σ_t x_t ⊗ d_t, in f32. Where rows cancel each other, its rounding is not relative to what is left but to S = Σ_t ‖x_t‖‖d_t‖: about √rows · 2⁻²⁴ · S if
    /// roundings are independent. Sixteen times that is added to a norm that was not found certain otherwise, so that a weighted gradient stays within its bound.
    fn rounding(&self, k: usize, example: usize) -> f64 {
        let (mut size, mut rows) = (0.0, 0);
        for entry in &self.plan.uses[k] {
            match *entry {
                Use::Outer { x, gradient, .. } => {
                    let (x, d) = (self.x(x, example), self.d(gradient, example));
                    size += (0..d.rows).map(|t| (embedding::square(x.row(t)) * embedding::square(d.row(t))).sqrt()).sum::<f64>();
                    rows += d.rows;
                }
                Use::Lookup { index, gradient } => {
                    let (_, d) = self.lookups(index, gradient, example);
                    size += (0..d.rows).map(|t| embedding::square(d.row(t)).sqrt()).sum::<f64>();
                    rows += d.rows;
                }
                // Made already: what is measured is what is summed.
                Use::Vector => {}
            }
        }
        1e-6 * (rows as f64).sqrt() * size
    }

    fn made_square(&self, k: usize, example: usize, affine: Option<(&Array, &Array)>) -> f64 {
        let mut square = 0.0;
        direct::gradient(self, k, example, |first, rows| square += direct::square(rows, first, affine));
        square
    }

    /// Adds the weighted sum of all examples' gradients by trained parameter `k` to `sum`. Without weights every example counts 1.
    pub(crate) fn add_sum(&self, k: usize, weights: Option<&[f32]>, sum: &mut Array, space: &mut Workspace) {
        let (rows, cols) = self.shape(k);
        for entry in &self.plan.uses[k] {
            match *entry {
                Use::Vector => {
                    let all = self.vectors(k);
                    let width = (rows * cols).max(1);
                    // In f64, rounded once: how some examples are rounded hardly depends on which others are there.
                    for (column, sum) in sum.data_mut().iter_mut().enumerate() {
                        let mut all_of = f64::from(*sum);
                        for (example, row) in all.chunks_exact(width).enumerate() {
                            let weight = weights.map_or(1.0, |weights| weights[example]);
                            if weight != 0.0 {
                                all_of += f64::from(weight) * f64::from(row[column]);
                            }
                        }
                        *sum = all_of as f32;
                    }
                    // All places of a vector are in one row already.
                    return;
                }
                Use::Lookup { index, gradient } => {
                    let d = self.buffers.gradients.slice(gradient);
                    let offsets = self.batch.offsets(self.graph.forms[gradient.0].space);
                    if !d.is_empty() {
                        let each = row_weights(offsets, weights, space);
                        let mut order = space.take_places();
                        embedding::scatter(cols, index.of(self.batch), &each, d, sum.data_mut(), &mut order);
                        space.give_places(order);
                        space.give(each);
                    }
                }
                Use::Outer { x, gradient, order } => self.add_outer(x, gradient, order, weights, (rows, cols), sum, space),
            }
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn add_outer(
        &self,
        x: Value,
        gradient: (Value, usize, usize),
        order: Order,
        weights: Option<&[f32]>,
        (rows, cols): (usize, usize),
        sum: &mut Array,
        space: &mut Workspace,
    ) {
        let (values, d) = (self.buffers.values[x.0].as_slice(), self.buffers.gradients.slice(gradient.0));
        if d.is_empty() {
            return;
        }
        let form = self.graph.forms[x.0];
        let offsets = self.batch.offsets(form.space);
        let count = self.batch.rows(form.space);
        let stride = self.graph.forms[gradient.0.0].width;
        let mut x = View::new(values, count, form.width);
        let mut d = View::columns(d, count, stride, gradient.1, gradient.2);
        let mut scaled = Vec::new();
        if let Some(weights) = weights {
            // The narrower side carries the weights.
            let narrow = if form.width <= gradient.2 { x } else { d };
            scaled = space.take(count * narrow.cols());
            narrow.scale_rows_into(offsets, weights, &mut scaled);
            let side = View::new(&scaled, count, narrow.cols());
            if form.width <= gradient.2 { x = side } else { d = side }
        }
        // In pieces, so that no number is the sum of many more than so many in a row: rounding grows with that (the curator's PROOFS.md, 3).
        for start in (0..count).step_by(LONGEST_SUM) {
            let end = (start + LONGEST_SUM).min(count);
            let (x, d) = (x.some_rows(start, end), d.some_rows(start, end));
            let (lhs, rhs) = if order == Order::OutIn { (d.t(), x) } else { (x.t(), d) };
            matmul(ViewMut::new(sum.data_mut(), rows, cols), Onto::Old, 1.0, lhs, rhs, Threads::All);
        }
        space.give(scaled);
    }
}

/// Each example's weight, for each of its rows.
fn row_weights(offsets: &[usize], weights: Option<&[f32]>, space: &mut Workspace) -> Vec<f32> {
    let mut each = space.take(offsets.last().copied().unwrap_or(0));
    for (example, rows) in offsets.windows(2).enumerate() {
        each[rows[0]..rows[1]].fill(weights.map_or(1.0, |weights| weights[example]));
    }
    each
}
