//! Linear layers with bias, activation and low-rank adapter. Several layers can share one input and
//! write to different columns of one output.

use super::{BatchShape, Layer};
use crate::pass::Pass;
use crate::rule::GradientForm;
use model::Param;
use model::op::{LinearOp, LinearPart, Order};
use tensor::activation;
use tensor::matmul::{OutputMode, Threads, View, ViewMut, matmul};
use tensor::{Array, norm};

/// Returns the columns of the result that one layer computes.
fn columns<'a>(part: &LinearPart, data: &'a mut [f32], rows: usize, stride: usize) -> ViewMut<'a> {
    ViewMut::columns(data, rows, stride, part.first, part.width)
}

/// Returns a view of the weight with shape [inputs, outputs].
pub(crate) fn in_out(weight: &Array, order: Order) -> View<'_> {
    let view = View::new(weight.data(), weight.rows(), weight.cols());
    if order == Order::OutIn { view.t() } else { view }
}

impl Layer for LinearOp {
    fn gradient_forms(&self) -> Vec<(Param, GradientForm)> {
        let mut forms = Vec::new();
        for part in &self.parts {
            let gradient = (self.out, part.first, part.width);
            forms.push((
                part.weight,
                GradientForm::Outer { x: self.x, gradient, order: part.order },
            ));
            forms.extend(part.bias.map(|bias| (bias, GradientForm::Vector)));
            if let Some(adapter) = part.low_rank {
                forms.push((
                    adapter.left,
                    GradientForm::Outer { x: adapter.inner, gradient, order: Order::OutIn },
                ));
                // The gradient with respect to the inner value includes the scale.
                forms.push((
                    adapter.right,
                    GradientForm::Outer {
                        x: self.x,
                        gradient: (adapter.inner, 0, adapter.rank),
                        order: Order::InOut,
                    },
                ));
            }
        }
        forms
    }

    fn forward(&self, index: usize, pass: &mut Pass<'_>) {
        let (rows, width) = (pass.rows(self.out), pass.shape(self.out).width);
        let x = pass.take_value(self.x);
        let x_view = View::new(&x, rows, pass.shape(self.x).width);
        let mut z = pass.alloc(self.out);
        for part in &self.parts {
            matmul(
                columns(part, &mut z, rows, width),
                OutputMode::Overwrite,
                1.0,
                x_view,
                in_out(pass.param(part.weight), part.order),
                Threads::All,
            );
            if let Some(adapter) = part.low_rank {
                let mut inner = pass.alloc(adapter.inner);
                matmul(
                    ViewMut::new(&mut inner, rows, adapter.rank),
                    OutputMode::Overwrite,
                    adapter.scale,
                    x_view,
                    in_out(pass.param(adapter.right), Order::InOut),
                    Threads::All,
                );
                matmul(
                    columns(part, &mut z, rows, width),
                    OutputMode::Accumulate,
                    1.0,
                    View::new(&inner, rows, adapter.rank),
                    in_out(pass.param(adapter.left), Order::OutIn),
                    Threads::All,
                );
                pass.set_value(adapter.inner, inner);
            }
        }
        pass.set_value(self.x, x);
        match self.activation {
            Some(activation) => {
                let mut out = pass.alloc(self.out);
                // There is only one part: the builder checks this.
                let bias = self.parts[0].bias.map(|bias| pass.param(bias).data());
                activation::forward(activation, bias, width, &mut z, &mut out);
                pass.save(index, z);
                pass.set_value(self.out, out);
            }
            None => {
                for part in &self.parts {
                    if let Some(bias) = part.bias {
                        activation::add_bias(pass.param(bias).data(), width, part.first, &mut z);
                    }
                }
                pass.set_value(self.out, z);
            }
        }
    }

    fn backward(&self, index: usize, pass: &mut Pass<'_>) {
        let (rows, width) = (pass.rows(self.out), pass.shape(self.out).width);
        if self.activation.is_some() {
            let Some(mut d) = pass.take_gradient(self.out) else { return };
            activation::multiply(&mut d, pass.saved(index));
            pass.set_gradient(self.out, d);
        }
        let Some(d) = pass.gradient(self.out) else { return };
        let parts = pass.parts();
        for part in &self.parts {
            if let Some(bias) = part.bias.filter(|&bias| pass.trains(bias)) {
                let mut sums = pass.workspace.take(parts * part.width);
                norm::row_sums(
                    pass.offsets(self.out),
                    &d,
                    width,
                    part.first,
                    part.width,
                    &mut sums,
                );
                pass.add_vector_gradients(bias, sums);
            }
            if let Some(adapter) = part.low_rank {
                pass.add_gradient(adapter.inner, |pass, inner, mode| {
                    let left = in_out(pass.param(adapter.left), Order::OutIn).t();
                    matmul(
                        ViewMut::new(inner, rows, adapter.rank),
                        mode,
                        adapter.scale,
                        View::columns(&d, rows, width, part.first, part.width),
                        left,
                        Threads::All,
                    );
                });
            }
        }
        for part in &self.parts {
            let columns = View::columns(&d, rows, width, part.first, part.width);
            pass.add_gradient(self.x, |pass, dx, mode| {
                let input_width = pass.shape(self.x).width;
                matmul(
                    ViewMut::new(dx, rows, input_width),
                    mode,
                    1.0,
                    columns,
                    in_out(pass.param(part.weight), part.order).t(),
                    Threads::All,
                );
                if let Some(adapter) = part.low_rank {
                    let inner =
                        View::new(pass.buffers.gradients.slice(adapter.inner), rows, adapter.rank);
                    matmul(
                        ViewMut::new(dx, rows, input_width),
                        OutputMode::Accumulate,
                        1.0,
                        inner,
                        in_out(pass.param(adapter.right), Order::InOut).t(),
                        Threads::All,
                    );
                }
            });
        }
    }

    fn flops(&self, batch: &BatchShape<'_>) -> f64 {
        let (rows, width) = (batch.rows(self.out) as f64, batch.width(self.x) as f64);
        self.parts.iter().map(|part| 2.0 * rows * width * part.width as f64).sum()
    }
}
