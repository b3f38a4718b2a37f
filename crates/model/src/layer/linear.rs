//! A linear map, with a bias, an activation and a low-rank addition as wanted. Several maps of one
//! input lie side by side in one output.

use super::Layer;
use crate::batch::Batch;
use crate::graph::{Graph, Param, Value};
use crate::rule::Use;
use crate::run::Run;
use tensor::activation::{self, Activation};
use tensor::matmul::{OutputMode, Threads, View, ViewMut, matmul};
use tensor::{Array, norm};

/// How a weight lies in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Rows are outputs: most models.
    OutIn,
    /// Rows are inputs: GPT-2.
    InOut,
}

/// One map: some columns of the output.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub(crate) weight: Param,
    pub(crate) order: Order,
    pub(crate) bias: Option<Param>,
    pub(crate) low_rank: Option<LowRank>,
    pub(crate) first: usize,
    pub(crate) width: usize,
}

impl Part {
    fn columns<'a>(&self, data: &'a mut [f32], rows: usize, stride: usize) -> ViewMut<'a> {
        ViewMut::columns(data, rows, stride, self.first, self.width)
    }
}

/// A pair (A: out×r, B: in×r): the map gains scale · A Bᵀ.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LowRank {
    pub(crate) left: Param,
    pub(crate) right: Param,
    pub(crate) rank: usize,
    pub(crate) scale: f32,
    /// scale · x B, tokens × r.
    pub(crate) inner: Value,
}

#[derive(Debug)]
pub(crate) struct Linear {
    pub(crate) x: Value,
    pub(crate) parts: Vec<Part>,
    pub(crate) activation: Option<Activation>,
    pub(crate) out: Value,
}

/// The weight as a matrix in × out.
pub(crate) fn in_out(weight: &Array, order: Order) -> View<'_> {
    let view = View::new(weight.data(), weight.rows(), weight.cols());
    if order == Order::OutIn { view.t() } else { view }
}

impl Layer for Linear {
    fn inputs(&self) -> Vec<Value> {
        vec![self.x]
    }

    fn outputs(&self) -> Vec<Value> {
        std::iter::once(self.out)
            .chain(self.parts.iter().filter_map(|part| part.low_rank.map(|pair| pair.inner)))
            .collect()
    }

    fn params(&self) -> Vec<Param> {
        let of = |part: &Part| {
            let pair =
                part.low_rank.map_or([None, None], |pair| [Some(pair.left), Some(pair.right)]);
            [Some(part.weight), part.bias, pair[0], pair[1]]
        };
        self.parts.iter().flat_map(of).flatten().collect()
    }

    fn uses(&self) -> Vec<(Param, Use)> {
        let mut uses = Vec::new();
        for part in &self.parts {
            let gradient = (self.out, part.first, part.width);
            uses.push((part.weight, Use::Outer { x: self.x, gradient, order: part.order }));
            uses.extend(part.bias.map(|bias| (bias, Use::Vector)));
            if let Some(pair) = part.low_rank {
                uses.push((pair.left, Use::Outer { x: pair.inner, gradient, order: Order::OutIn }));
                // The gradient by the inner value carries the scale already.
                uses.push((
                    pair.right,
                    Use::Outer {
                        x: self.x,
                        gradient: (pair.inner, 0, pair.rank),
                        order: Order::InOut,
                    },
                ));
            }
        }
        uses
    }

    fn forward(&self, index: usize, run: &mut Run<'_>) {
        let (rows, width) = (run.rows(self.out), run.form(self.out).width);
        let x = run.lend(self.x);
        let x_view = View::new(&x, rows, run.form(self.x).width);
        let mut z = run.buffer(self.out);
        for part in &self.parts {
            matmul(
                part.columns(&mut z, rows, width),
                OutputMode::Overwrite,
                1.0,
                x_view,
                in_out(run.param(part.weight), part.order),
                Threads::All,
            );
            if let Some(pair) = part.low_rank {
                let mut inner = run.buffer(pair.inner);
                matmul(
                    ViewMut::new(&mut inner, rows, pair.rank),
                    OutputMode::Overwrite,
                    pair.scale,
                    x_view,
                    in_out(run.param(pair.right), Order::InOut),
                    Threads::All,
                );
                matmul(
                    part.columns(&mut z, rows, width),
                    OutputMode::Accumulate,
                    1.0,
                    View::new(&inner, rows, pair.rank),
                    in_out(run.param(pair.left), Order::OutIn),
                    Threads::All,
                );
                run.put(pair.inner, inner);
            }
        }
        run.put(self.x, x);
        match self.activation {
            Some(activation) => {
                let mut out = run.buffer(self.out);
                // One part: the builder sees to it.
                let bias = self.parts[0].bias.map(|bias| run.param(bias).data());
                activation::forward(activation, bias, width, &mut z, &mut out);
                run.buffers.notes[index] = z;
                run.put(self.out, out);
            }
            None => {
                for part in &self.parts {
                    if let Some(bias) = part.bias {
                        activation::add_bias(run.param(bias).data(), width, part.first, &mut z);
                    }
                }
                run.put(self.out, z);
            }
        }
    }

    fn backward(&self, index: usize, run: &mut Run<'_>) {
        let (rows, width) = (run.rows(self.out), run.form(self.out).width);
        if self.activation.is_some() {
            let Some(mut d) = run.own_gradient(self.out) else { return };
            activation::multiply(&mut d, &run.buffers.notes[index]);
            run.put_gradient(self.out, d);
        }
        let Some(d) = run.gradient(self.out) else { return };
        let examples = run.batch.examples;
        for part in &self.parts {
            if let Some(bias) = part.bias.filter(|&bias| run.plan.trains(bias)) {
                let mut sums = run.space.take(examples * part.width);
                norm::row_sums(
                    run.batch.offsets(run.form(self.out).space),
                    &d,
                    width,
                    part.first,
                    part.width,
                    &mut sums,
                );
                run.add_vectors(bias, sums);
            }
            if let Some(pair) = part.low_rank {
                run.contribute(pair.inner, |run, inner, onto| {
                    let left = in_out(run.param(pair.left), Order::OutIn).t();
                    matmul(
                        ViewMut::new(inner, rows, pair.rank),
                        onto,
                        pair.scale,
                        View::columns(&d, rows, width, part.first, part.width),
                        left,
                        Threads::All,
                    );
                });
            }
        }
        for part in &self.parts {
            let columns = View::columns(&d, rows, width, part.first, part.width);
            run.contribute(self.x, |run, dx, onto| {
                let side = run.form(self.x).width;
                matmul(
                    ViewMut::new(dx, rows, side),
                    onto,
                    1.0,
                    columns,
                    in_out(run.param(part.weight), part.order).t(),
                    Threads::All,
                );
                if let Some(pair) = part.low_rank {
                    let inner = View::new(run.buffers.gradients.slice(pair.inner), rows, pair.rank);
                    matmul(
                        ViewMut::new(dx, rows, side),
                        OutputMode::Accumulate,
                        1.0,
                        inner,
                        in_out(run.param(pair.right), Order::InOut).t(),
                        Threads::All,
                    );
                }
            });
        }
    }

    fn work(&self, batch: &Batch, graph: &Graph) -> f64 {
        let rows = batch.rows(graph.forms[self.out.0].space) as f64;
        let side = graph.forms[self.x.0].width as f64;
        self.parts.iter().map(|part| 2.0 * rows * side * part.width as f64).sum()
    }
}
