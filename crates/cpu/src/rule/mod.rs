//! Per-example gradients that are never made: their norms, and their weighted sums, from what a
//! backward pass leaves behind.
//!
//! A parameter enters a model in one of three forms, and in several places if it is tied.
//! Everything the curator needs follows from the forms:
//!
//! | form | an example's gradient | who |
//! |---|---|---|
//! | outer | Σ_t x_t ⊗ d_t | weights of linear maps and convolutions, low-rank factors |
//! | lookup | Σ_t e(id_t) ⊗ d_t | embeddings |
//! | vector | itself: it is small, one row an example | gains and biases |
//!
//! # Claim
//! The norm of a parameter is that of the *sum* over all places where it enters (tied weights), and
//! no example's norm depends on another example.
//! # Checked by
//! `tests/brute_force.rs`, `tests/isolation.rs`.

mod direct;
mod ghost;
mod lookup;
mod tangent;

use crate::batch::Batch;
use crate::layer::embedding::selected_rows;
use crate::pass::Buffers;
#[allow(unused_imports)]
use crate::pass::Pass;
use crate::plan::BackwardPlan;
use engine::Accumulator;
use model::op::{Index, Order};
use model::{Graph, Value};
use protocol::Geometry;
use rayon::prelude::*;
use tensor::gram::Rows;
use tensor::matmul::{DEPTH, OutputMode, Threads, View, ViewMut, matmul};
use tensor::{Array, Workspace, embedding, outer};

/// How an example's gradient by a parameter is formed, at one place where the parameter enters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GradientForm {
    /// Σ_t x_t ⊗ d_t
    Outer {
        /// x_t: the rows of this value.
        x: Value,
        /// d_t: rows of the gradient by this value, its first column and its number of columns.
        gradient: (Value, usize, usize),
        /// Whether the rows of the parameter belong to d or to x.
        order: Order,
    },
    /// Σ_t e(id_t) ⊗ d_t
    Lookup {
        /// id_t
        index: Index,
        /// d_t: rows of the gradient by this value.
        gradient: Value,
    },
    /// One row for each example, which the backward pass computes ([`Pass::add_vector_gradients`]).
    Vector,
}

impl GradientForm {
    /// The value and the gradient it is made of.
    pub(crate) fn reads(self) -> (Option<Value>, Option<Value>) {
        match self {
            Self::Outer { x, gradient, .. } => (Some(x), Some(gradient.0)),
            Self::Lookup { gradient, .. } => (None, Some(gradient)),
            Self::Vector => (None, None),
        }
    }
}

/// 2⁻²⁴ (1 + 2⁻¹⁰): the rounding of one operation, and room for those of higher order.
const UNIT: f64 = (1.0 + 1.0 / 1024.0) / 16_777_216.0;

/// The largest S = Σ_t ‖x_t‖‖d_t‖ of an example that contributes.
pub(crate) const LARGEST: f64 = 1e30;

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
    pub(crate) plan: &'a BackwardPlan,
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
        let shape = &self.graph.params()[self.plan.trained[k].index()].shape;
        (shape.first().copied().unwrap_or(1), shape.iter().skip(1).product())
    }

    /// The rows of one example of a value's data.
    fn rows(
        &self,
        value: Value,
        data: &'a [f32],
        example: usize,
        first: usize,
        width: usize,
    ) -> Rows<'a> {
        let form = self.graph.shape(value);
        let offsets = self.batch.offsets(form.space);
        let (start, end) = (offsets[example], offsets[example + 1]);
        let data = data.get(start * form.width..end * form.width).unwrap_or(&[]);
        Rows {
            data,
            rows: if data.is_empty() { 0 } else { end - start },
            stride: form.width,
            first,
            width,
        }
    }

    fn x(&self, x: Value, example: usize) -> Rows<'a> {
        self.rows(x, &self.buffers.values[x.index()], example, 0, self.graph.shape(x).width)
    }

    fn d(&self, gradient: (Value, usize, usize), example: usize) -> Rows<'a> {
        self.rows(
            gradient.0,
            self.buffers.gradients.slice(gradient.0),
            example,
            gradient.1,
            gradient.2,
        )
    }

    fn vectors(&self, k: usize) -> &'a [f32] {
        &self.buffers.vectors[self.plan.trained[k].index()]
    }

    /// The indices and the gradient rows of one example's lookups.
    fn lookups(&self, index: Index, gradient: Value, example: usize) -> (&'a [u32], Rows<'a>) {
        let d = self.rows(
            gradient,
            self.buffers.gradients.slice(gradient),
            example,
            0,
            self.graph.shape(gradient).width,
        );
        let first = self.batch.offsets(self.graph.shape(gradient).space)[example];
        (&selected_rows(index, self.batch)[first..first + d.rows], d)
    }

    /// Adds each example's squared norm, in `geometry`, of trained parameter `k` to `norms`.
    pub(crate) fn add_norms(&self, geometry: &Geometry, k: usize, norms: &mut [f64]) {
        let (_, cols) = self.shape(k);
        let affine = match geometry {
            Geometry::Affine { center, scale } => Some((&center[k], &scale[k])),
            _ => None,
        };
        let uses = self.plan.gradient_forms[k].as_slice();
        match (uses, affine) {
            ([GradientForm::Vector, ..], _) => {
                let width = self.shape(k).0 * cols;
                let rows = self.vectors(k);
                if let (true, Some((center, scale))) = (rows.is_empty(), affine) {
                    // No gradient came: it is zero, which is not where the center is.
                    let square = direct::square_of_nothing(center, scale);
                    norms.iter_mut().for_each(|norm| *norm += square);
                }
                norms
                    .iter_mut()
                    .zip(rows.chunks_exact(width.max(1)))
                    .for_each(|(norm, row)| *norm += direct::square(row, 0, affine));
            }
            ([GradientForm::Lookup { index, gradient }], _) => {
                let rest =
                    affine.map_or(0.0, |(center, scale)| direct::square_of_nothing(center, scale));
                let gain = affine.map_or(1.0, |(_, scale)| direct::largest_gain(scale));
                self.each(norms, |example| {
                    let (ids, d) = self.lookups(*index, *gradient, example);
                    // Each row of the table is summed in f64 and rounded once.
                    let own = lookup::square(ids, d, None);
                    let square =
                        if affine.is_some() { rest + lookup::square(ids, d, affine) } else { own };
                    enlarged(square, 8.0 * UNIT * gain * own.sqrt())
                });
            }
            ([GradientForm::Outer { x, gradient, .. }], None) => self.each(norms, |example| {
                let (x, d) = (self.x(*x, example), self.d(*gradient, example));
                let found = self.prefers_ghost(x, d).then(|| ghost::measure(x, d));
                found
                    .and_then(ghost::Ghost::certain)
                    .unwrap_or_else(|| self.direct_square(k, example))
            }),
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
            ) => self.each(norms, |example| {
                let (x, d) = (self.x(*x, example), self.d(*gradient, example));
                let found = self.prefers_ghost(x, d).then(|| {
                    let (ids, rows) = self.lookups(*index, *rows, example);
                    let product = lookup::product_with_outer(ids, rows, x, d);
                    ghost::measure(x, d).and_lookups(lookup::square(ids, rows, None), product)
                });
                found
                    .and_then(ghost::Ghost::certain)
                    .unwrap_or_else(|| self.direct_square(k, example))
            }),
            _ => {
                let gain = affine.map_or(1.0, |(_, scale)| direct::largest_gain(scale));
                self.each(norms, |example| {
                    enlarged(self.made_square(k, example, affine), gain * self.rounding(k, example))
                });
            }
        }
    }

    /// Adds each example's squared norm of the tangent coordinates of a low-rank pair.
    pub(crate) fn add_tangent_norms(&self, frame: &protocol::Frame, norms: &mut [f64]) {
        self.each(norms, |example| tangent::square(self, frame, example));
    }

    fn each(&self, norms: &mut [f64], square: impl Fn(usize) -> f64 + Sync) {
        norms
            .par_iter_mut()
            .with_max_len(1)
            .enumerate()
            .for_each(|(example, norm)| *norm += square(example));
    }

    fn prefers_ghost(&self, x: Rows<'_>, d: Rows<'_>) -> bool {
        match self.method {
            NormMethod::Ghost => true,
            NormMethod::Direct => false,
            NormMethod::Cheapest => {
                ghost::cost(x.rows, x.width, d.width) <= direct::cost(x.rows, x.width, d.width)
            }
        }
    }

    /// The squared norm of an example's gradient that is made for it, and room for rounding.
    fn direct_square(&self, k: usize, example: usize) -> f64 {
        enlarged(self.made_square(k, example, None), self.rounding(k, example))
    }

    /// How far an example's gradient, as it enters a sum, may be from itself, as a norm.
    ///
    /// A gradient is a sum over rows, Σ_t x_t ⊗ d_t, in f32. Where rows cancel each other, its
    /// rounding is not relative to what is left but to S = Σ_t ‖x_t‖‖d_t‖. A chain of n operations
    /// is off by at most n · 2⁻²⁴ · S (1 + 2⁻¹⁰): chains have at most [`outer::LONGEST`] rows where
    /// sums are made, and [`tensor::matmul::DEPTH`] rows and one addition for each such stretch
    /// where the gradient is made for its norm. Both are added to a norm that was not found certain
    /// otherwise, so that a weighted gradient stays within its bound whatever its rows are.
    ///
    /// If S is beyond 10³⁰ the result is infinite, and the example contributes nothing: no
    /// intermediate result of an example that does add_gradient leaves the range of f32.
    fn rounding(&self, k: usize, example: usize) -> f64 {
        let (mut size, mut terms) = (0.0, 8);
        for entry in &self.plan.gradient_forms[k] {
            match *entry {
                GradientForm::Outer { x, gradient, .. } => {
                    let (x, d) = (self.x(x, example), self.d(gradient, example));
                    size += (0..d.rows)
                        .map(|t| {
                            (embedding::squared_norm(x.row(t)) * embedding::squared_norm(d.row(t)))
                                .sqrt()
                        })
                        .sum::<f64>();
                    terms +=
                        d.rows.min(outer::LONGEST) + d.rows.min(DEPTH) + d.rows.div_ceil(DEPTH);
                }
                GradientForm::Lookup { index, gradient } => {
                    let (_, d) = self.lookups(index, gradient, example);
                    size +=
                        (0..d.rows).map(|t| embedding::squared_norm(d.row(t)).sqrt()).sum::<f64>();
                    // Where the gradient is made for its norm, rows of one index are added up in a
                    // chain.
                    terms += d.rows;
                }
                // Made already: what is measured is what is summed.
                GradientForm::Vector => {}
            }
        }
        if size <= LARGEST { terms as f64 * UNIT * size } else { f64::INFINITY }
    }

    fn made_square(&self, k: usize, example: usize, affine: Option<(&Array, &Array)>) -> f64 {
        let mut square = 0.0;
        direct::gradient(self, k, example, |first, rows| {
            square += direct::square(rows, first, affine)
        });
        square
    }

    /// Adds the weighted sum of all examples' gradients by trained parameter `k` to `sum`. An
    /// example of weight 0 is not read.
    pub(crate) fn add_weighted(
        &self,
        k: usize,
        weights: &[f32],
        sum: &mut Accumulator,
        space: &mut Workspace,
    ) {
        let (rows, cols) = self.shape(k);
        for entry in &self.plan.gradient_forms[k] {
            match *entry {
                GradientForm::Vector => {
                    for (row, &weight) in
                        self.vectors(k).chunks_exact((rows * cols).max(1)).zip(weights)
                    {
                        sum.add(weight, row.iter().map(|&x| f64::from(x)));
                    }
                    // All places of a vector are in one row already.
                    return;
                }
                GradientForm::Lookup { index, gradient } => {
                    let d = self.buffers.gradients.slice(gradient);
                    if !d.is_empty() {
                        let offsets = self.batch.offsets(self.graph.shape(gradient).space);
                        let mut order = space.take_indices();
                        embedding::scatter_records(
                            cols,
                            selected_rows(index, self.batch),
                            offsets,
                            weights,
                            d,
                            sum.totals(),
                            &mut order,
                        );
                        space.give_indices(order);
                    }
                }
                GradientForm::Outer { x, gradient, order } => {
                    if let Some((lhs, rhs)) = self.factors(x, gradient, order) {
                        outer::add_outer(
                            sum.totals(),
                            lhs,
                            rhs,
                            self.batch.offsets(self.graph.shape(x).space),
                            weights,
                        );
                    }
                }
            }
        }
    }

    /// Adds the sum of all examples' gradients by trained parameter `k`, in floating point and as
    /// one product: what training without privacy does.
    pub(crate) fn add_plain(&self, k: usize, sum: &mut Array, space: &mut Workspace) {
        let (rows, cols) = self.shape(k);
        for entry in &self.plan.gradient_forms[k] {
            match *entry {
                GradientForm::Vector => {
                    for row in self.vectors(k).chunks_exact((rows * cols).max(1)) {
                        sum.data_mut().iter_mut().zip(row).for_each(|(sum, x)| *sum += x);
                    }
                    return;
                }
                GradientForm::Lookup { index, gradient } => {
                    let d = self.buffers.gradients.slice(gradient);
                    if !d.is_empty() {
                        let mut order = space.take_indices();
                        embedding::scatter(
                            cols,
                            selected_rows(index, self.batch),
                            d,
                            sum.data_mut(),
                            &mut order,
                        );
                        space.give_indices(order);
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

    /// The two sides of an outer product: rows × rows of the parameter, and rows × columns of it.
    /// None if no gradient came.
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
        let form = self.graph.shape(x);
        let count = self.batch.rows(form.space);
        let x = View::new(values, count, form.width);
        let d = View::columns(d, count, self.graph.shape(gradient.0).width, gradient.1, gradient.2);
        Some(if order == Order::OutIn { (d, x) } else { (x, d) })
    }
}
