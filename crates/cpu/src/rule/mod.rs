//! Norms and weighted sums of per-example gradients, from the intermediates of a backward pass.
//!
//! Per-example gradients of matrices are not materialized. The gradient of each use of a parameter
//! has one of three forms; tied parameters have several uses. Norms and sums follow from the forms:
//!
//! | form | an example's gradient | parameters |
//! |---|---|---|
//! | outer | Σ_t x_t ⊗ d_t | weights of linear layers and convolutions, low-rank factors |
//! | lookup | Σ_t e(id_t) ⊗ d_t | embeddings |
//! | vector | one row, computed by the backward pass | gains and biases |
//!
//! # Claim
//! The norm of a parameter is that of the *sum* over all its uses (tied weights) and over all parts
//! of an example, and no example's norm depends on another example.
//!
//! # Checked by
//! `tests/brute_force.rs`, `tests/isolation.rs`.

mod direct;
mod ghost;
mod lookup;
mod tangent;

use crate::batch::Batch;
use crate::layer::embedding::selected_rows;
use crate::pass::Buffers;
use crate::plan::BackwardPlan;
use engine::Accumulator;
use model::op::{Index, Order};
use model::{Graph, Value};
use protocol::Geometry;
use rayon::prelude::*;
use tensor::gram::Rows;
use tensor::matmul::{DEPTH, OutputMode, Threads, View, ViewMut, matmul};
use tensor::{Array, Workspace, embedding, outer};

/// The form of an example's gradient for one use of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GradientForm {
    /// The sum of outer products Σ_t x_t ⊗ d_t.
    Outer {
        /// x_t: the rows of this value.
        x: Value,
        /// d_t: the value, first column and number of columns of the gradient.
        gradient: (Value, usize, usize),
        /// Whether the rows of the parameter correspond to d or to x.
        order: Order,
    },
    /// The sum of table rows Σ_t e(id_t) ⊗ d_t.
    Lookup {
        /// id_t: the row that token t selects.
        index: Index,
        /// d_t: the rows of the gradient with respect to this value.
        gradient: Value,
    },
    /// One row for each example, added by [`Pass::add_vector_gradients`].
    ///
    /// [`Pass::add_vector_gradients`]: crate::Pass::add_vector_gradients
    Vector,
}

impl GradientForm {
    /// Returns the value and the gradient that the form reads.
    pub(crate) fn reads(self) -> (Option<Value>, Option<Value>) {
        match self {
            Self::Outer { x, gradient, .. } => (Some(x), Some(gradient.0)),
            Self::Lookup { gradient, .. } => (None, Some(gradient)),
            Self::Vector => (None, None),
        }
    }
}

/// 2⁻²⁴ (1 + 2⁻¹⁰): the rounding error of one operation, with a margin for higher orders.
const UNIT: f64 = (1.0 + 1.0 / 1024.0) / 16_777_216.0;

/// The largest S = Σ_t ‖x_t‖‖d_t‖ of an example with nonzero weight.
pub(crate) const MAX_SIZE: f64 = 1e30;

/// How norms of sums of outer products are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum NormMethod {
    /// The cheaper of the two methods, by number of rows and columns.
    #[default]
    Cheapest,
    /// Ghost norms: inner products of pairs of rows, without the gradient.
    Ghost,
    /// The gradient itself, one example and a few rows at a time.
    Direct,
}

/// Activations and output gradients of a backward pass.
#[derive(Clone, Copy)]
pub(crate) struct Intermediates<'a> {
    pub(crate) graph: &'a Graph,
    pub(crate) plan: &'a BackwardPlan,
    pub(crate) batch: &'a Batch,
    pub(crate) buffers: &'a Buffers,
    pub(crate) method: NormMethod,
}

/// Adds a margin to a norm, given its square; returns the square. NaN remains NaN.
fn add_margin(square: f64, margin: f64) -> f64 {
    let norm = if square < 0.0 { 0.0 } else { square.sqrt() };
    (norm + margin).powi(2)
}

impl<'a> Intermediates<'a> {
    /// Returns rows and columns of trained parameter `k`.
    fn shape(&self, k: usize) -> (usize, usize) {
        let shape = &self.graph.params()[self.plan.trained[k].index()].shape;
        (shape.first().copied().unwrap_or(1), shape.iter().skip(1).product())
    }

    /// Returns the rows of one example in the data of a value.
    fn rows(
        &self,
        value: Value,
        data: &'a [f32],
        example: usize,
        first: usize,
        width: usize,
    ) -> Rows<'a> {
        let shape = self.graph.shape(value);
        let rows = self.batch.rows_of(shape.space, example);
        let data = data.get(rows.start * shape.width..rows.end * shape.width).unwrap_or(&[]);
        Rows {
            data,
            rows: if data.is_empty() { 0 } else { rows.len() },
            stride: shape.width,
            first,
            width,
        }
    }

    /// Returns the input rows x_t of one example.
    fn x(&self, x: Value, example: usize) -> Rows<'a> {
        self.rows(x, &self.buffers.values[x.index()], example, 0, self.graph.shape(x).width)
    }

    /// Returns the gradient rows d_t of one example.
    fn d(&self, gradient: (Value, usize, usize), example: usize) -> Rows<'a> {
        self.rows(
            gradient.0,
            self.buffers.gradients.slice(gradient.0),
            example,
            gradient.1,
            gradient.2,
        )
    }

    /// Returns the per-example gradients of a vector, one row for each example.
    fn vectors(&self, k: usize) -> &'a [f32] {
        &self.buffers.vectors[self.plan.trained[k].index()]
    }

    /// Returns the table rows and the gradient rows of one example's lookups.
    fn lookups(&self, index: Index, gradient: Value, example: usize) -> (&'a [u32], Rows<'a>) {
        let d = self.rows(
            gradient,
            self.buffers.gradients.slice(gradient),
            example,
            0,
            self.graph.shape(gradient).width,
        );
        let first = self.batch.rows_of(self.graph.shape(gradient).space, example).start;
        (&selected_rows(index, self.batch)[first..first + d.rows], d)
    }

    /// Adds the squared norms of trained parameter `k` in a geometry, by example.
    pub(crate) fn add_norms(&self, geometry: &Geometry, k: usize, squares: &mut [f64]) {
        let (_, cols) = self.shape(k);
        let affine = match geometry {
            Geometry::Affine { center, scale } => Some((&center[k], &scale[k])),
            _ => None,
        };
        let forms = self.plan.gradient_forms[k].as_slice();
        match (forms, affine) {
            ([GradientForm::Vector, ..], _) => {
                let width = self.shape(k).0 * cols;
                let rows = self.vectors(k);
                if let (true, Some((center, scale))) = (rows.is_empty(), affine) {
                    // No gradient reaches the parameter. A zero gradient is not zero in affine
                    // coordinates.
                    let square = direct::square_of_zero(center, scale);
                    squares.iter_mut().for_each(|sum| *sum += square);
                }
                squares
                    .iter_mut()
                    .zip(rows.chunks_exact(width.max(1)))
                    .for_each(|(sum, row)| *sum += direct::square(row, 0, affine));
            }
            ([GradientForm::Lookup { index, gradient }], _) => {
                let of_zero =
                    affine.map_or(0.0, |(center, scale)| direct::square_of_zero(center, scale));
                let gain = affine.map_or(1.0, |(_, scale)| direct::largest_gain(scale));
                self.for_each_example(squares, |example| {
                    let (ids, d) = self.lookups(*index, *gradient, example);
                    // Each row of the table is summed in f64 and rounded once.
                    let plain = lookup::square(ids, d, None);
                    let square = if affine.is_some() {
                        of_zero + lookup::square(ids, d, affine)
                    } else {
                        plain
                    };
                    add_margin(square, 8.0 * UNIT * gain * plain.sqrt())
                });
            }
            ([GradientForm::Outer { x, gradient, .. }], None) => {
                self.for_each_example(squares, |example| {
                    let (x, d) = (self.x(*x, example), self.d(*gradient, example));
                    let ghost = self.prefers_ghost(x, d).then(|| ghost::ghost_norm(x, d));
                    ghost
                        .and_then(ghost::GhostNorm::accurate_square)
                        .unwrap_or_else(|| self.direct_square(k, example))
                })
            }
            (
                [
                    GradientForm::Lookup { index, gradient: rows },
                    GradientForm::Outer { x, gradient, order: Order::OutIn },
                ],
                None,
            )
            | (
                [
                    GradientForm::Outer { x, gradient, order: Order::OutIn },
                    GradientForm::Lookup { index, gradient: rows },
                ],
                None,
            ) => self.for_each_example(squares, |example| {
                let (x, d) = (self.x(*x, example), self.d(*gradient, example));
                let ghost = self.prefers_ghost(x, d).then(|| {
                    let (ids, rows) = self.lookups(*index, *rows, example);
                    let product = lookup::product_with_outer(ids, rows, x, d);
                    ghost::ghost_norm(x, d).add_lookups(lookup::square(ids, rows, None), product)
                });
                ghost
                    .and_then(ghost::GhostNorm::accurate_square)
                    .unwrap_or_else(|| self.direct_square(k, example))
            }),
            _ => {
                let gain = affine.map_or(1.0, |(_, scale)| direct::largest_gain(scale));
                self.for_each_example(squares, |example| {
                    let square = self.materialized_square(k, example, affine);
                    add_margin(square, gain * self.rounding(k, example))
                });
            }
        }
    }

    /// Adds the squared norms of a low-rank pair in tangent coordinates, by example.
    pub(crate) fn add_tangent_norms(&self, frame: &protocol::Frame, squares: &mut [f64]) {
        self.for_each_example(squares, |example| tangent::square(self, frame, example));
    }

    /// Adds `square(example)` for each example, with all threads.
    fn for_each_example(&self, squares: &mut [f64], square: impl Fn(usize) -> f64 + Sync) {
        squares
            .par_iter_mut()
            .with_max_len(1)
            .enumerate()
            .for_each(|(example, sum)| *sum += square(example));
    }

    /// Returns whether the norm of an outer product is computed as a ghost norm.
    fn prefers_ghost(&self, x: Rows<'_>, d: Rows<'_>) -> bool {
        match self.method {
            NormMethod::Ghost => true,
            NormMethod::Direct => false,
            NormMethod::Cheapest => {
                ghost::cost(x.rows, x.width, d.width) <= direct::cost(x.rows, x.width, d.width)
            }
        }
    }

    /// Computes the squared norm of an example's gradient directly, with a margin for rounding.
    fn direct_square(&self, k: usize, example: usize) -> f64 {
        add_margin(self.materialized_square(k, example, None), self.rounding(k, example))
    }

    /// Bounds the rounding error of an example's gradient in a sum and in its norm.
    ///
    /// A gradient is a sum over rows, Σ_t x_t ⊗ d_t, in f32. If rows cancel each other, the
    /// rounding error is relative to S = Σ_t ‖x_t‖‖d_t‖, not to the result. The error of a chain of
    /// n operations is at most n · 2⁻²⁴ · S (1 + 2⁻¹⁰). In weighted sums, chains have at most
    /// [`outer::MAX_CHAIN`] rows; where the gradient is computed for its norm, they have
    /// [`tensor::matmul::DEPTH`] rows and one addition for each such block of rows. Both errors are
    /// added to a norm that is not an accurate ghost norm, so that a weighted gradient is within
    /// its bound for all rows.
    ///
    /// If S is larger than 10³⁰, the result is infinite and the example gets weight 0. So no
    /// intermediate result of an example with nonzero weight leaves the range of f32.
    fn rounding(&self, k: usize, example: usize) -> f64 {
        let (mut size, mut terms) = (0.0, 8);
        for form in &self.plan.gradient_forms[k] {
            match *form {
                GradientForm::Outer { x, gradient, .. } => {
                    let (x, d) = (self.x(x, example), self.d(gradient, example));
                    size += (0..d.rows)
                        .map(|t| {
                            (embedding::squared_norm(x.row(t)) * embedding::squared_norm(d.row(t)))
                                .sqrt()
                        })
                        .sum::<f64>();
                    terms +=
                        d.rows.min(outer::MAX_CHAIN) + d.rows.min(DEPTH) + d.rows.div_ceil(DEPTH);
                }
                GradientForm::Lookup { index, gradient } => {
                    let (_, d) = self.lookups(index, gradient, example);
                    size +=
                        (0..d.rows).map(|t| embedding::squared_norm(d.row(t)).sqrt()).sum::<f64>();
                    // Where the gradient is computed for its norm, rows of one index are added in a
                    // chain.
                    terms += d.rows;
                }
                // The norm is computed from the same numbers that are summed.
                GradientForm::Vector => {}
            }
        }
        // γ_n = n u/(1 − n u) bounds a chain of any length for which n u < 1 (Higham 2002, 3.1). An
        // example of many parts can have long ones.
        let share = terms as f64 * UNIT;
        if size <= MAX_SIZE && share < 0.5 { share / (1.0 - share) * size } else { f64::INFINITY }
    }

    /// Computes the squared norm of an example's gradient, a few rows at a time.
    fn materialized_square(
        &self,
        k: usize,
        example: usize,
        affine: Option<(&Array, &Array)>,
    ) -> f64 {
        let mut square = 0.0;
        direct::gradient(self, k, example, |first, rows| {
            square += direct::square(rows, first, affine)
        });
        square
    }

    /// Adds the weighted sum of all examples' gradients of trained parameter `k` to `sum`.
    ///
    /// Examples of weight 0 are not read.
    pub(crate) fn add_weighted(
        &self,
        k: usize,
        weights: &[f32],
        sum: &mut Accumulator,
        workspace: &mut Workspace,
    ) {
        let (rows, cols) = self.shape(k);
        for form in &self.plan.gradient_forms[k] {
            match *form {
                GradientForm::Vector => {
                    for (row, &weight) in
                        self.vectors(k).chunks_exact((rows * cols).max(1)).zip(weights)
                    {
                        sum.add(weight, row.iter().map(|&x| f64::from(x)));
                    }
                    // The row of an example is the sum over all uses of the vector.
                    return;
                }
                GradientForm::Lookup { index, gradient } => {
                    let d = self.buffers.gradients.slice(gradient);
                    if !d.is_empty() {
                        let offsets = self.batch.example_offsets(self.graph.shape(gradient).space);
                        let mut order = workspace.take_indices();
                        embedding::scatter_records(
                            cols,
                            selected_rows(index, self.batch),
                            &offsets,
                            weights,
                            d,
                            sum.totals(),
                            &mut order,
                        );
                        workspace.give_indices(order);
                    }
                }
                GradientForm::Outer { x, gradient, order } => {
                    if let Some((lhs, rhs)) = self.factors(x, gradient, order) {
                        outer::add_outer(
                            sum.totals(),
                            lhs,
                            rhs,
                            &self.batch.example_offsets(self.graph.shape(x).space),
                            weights,
                        );
                    }
                }
            }
        }
    }

    /// Adds the unweighted sum of all examples' gradients of trained parameter `k` to `sum`.
    ///
    /// It is computed in floating point as one matrix product, as in non-private training.
    pub(crate) fn add_plain(&self, k: usize, sum: &mut Array, workspace: &mut Workspace) {
        let (rows, cols) = self.shape(k);
        for form in &self.plan.gradient_forms[k] {
            match *form {
                GradientForm::Vector => {
                    for row in self.vectors(k).chunks_exact((rows * cols).max(1)) {
                        sum.data_mut().iter_mut().zip(row).for_each(|(sum, x)| *sum += x);
                    }
                    return;
                }
                GradientForm::Lookup { index, gradient } => {
                    let d = self.buffers.gradients.slice(gradient);
                    if !d.is_empty() {
                        let mut order = workspace.take_indices();
                        embedding::scatter(
                            cols,
                            selected_rows(index, self.batch),
                            d,
                            sum.data_mut(),
                            &mut order,
                        );
                        workspace.give_indices(order);
                    }
                }
                GradientForm::Outer { x, gradient, order } => {
                    if let Some((lhs, rhs)) = self.factors(x, gradient, order) {
                        matmul(
                            ViewMut::new(sum.data_mut(), rows, cols),
                            OutputMode::Accumulate,
                            1.0,
                            lhs.t(),
                            rhs,
                            Threads::All,
                        );
                    }
                }
            }
        }
    }

    /// Returns the factors of a sum of outer products over all examples.
    ///
    /// The columns of the first are the rows of the parameter, those of the second its columns.
    /// Returns `None` if no gradient reaches the parameter.
    fn factors(
        &self,
        x: Value,
        gradient: (Value, usize, usize),
        order: Order,
    ) -> Option<(View<'a>, View<'a>)> {
        let (values, d) =
            (self.buffers.values[x.index()].as_slice(), self.buffers.gradients.slice(gradient.0));
        if d.is_empty() {
            return None;
        }
        let shape = self.graph.shape(x);
        let count = self.batch.rows(shape.space);
        let x = View::new(values, count, shape.width);
        let d = View::columns(d, count, self.graph.shape(gradient.0).width, gradient.1, gradient.2);
        Some(if order == Order::OutIn { (d, x) } else { (x, d) })
    }
}
