//! Operations between spaces: tokens with a target, first token, mean of rows, reshape.

use super::Layer;
use crate::pass::Pass;
use model::op::{FirstTokenOp, MeanRowsOp, ReshapeOp, TargetRowsOp};
use tensor::matmul::OutputMode;
use tensor::{embedding, pooling};

impl Layer for TargetRowsOp {
    fn forward(&self, _: usize, pass: &mut Pass<'_>) {
        let mut out = pass.alloc(self.out);
        embedding::gather(
            pass.value(self.x),
            pass.shape(self.x).width,
            &pass.batch.target_rows,
            &mut out,
        );
        pass.set_value(self.out, out);
    }

    fn backward(&self, _: usize, pass: &mut Pass<'_>) {
        let Some(d) = pass.gradient(self.out) else { return };
        pass.add_gradient(self.x, |pass, dx, mode| {
            if mode == OutputMode::Overwrite {
                dx.fill(0.0);
            }
            scatter_add(&pass.batch.target_rows, pass.shape(self.x).width, &d, dx);
        });
    }
}

/// Adds row i of `d` to row `rows[i]` of `dx`.
fn scatter_add(rows: &[u32], width: usize, d: &[f32], dx: &mut [f32]) {
    for (&row, d) in rows.iter().zip(d.chunks_exact(width)) {
        dx[row as usize * width..][..width].iter_mut().zip(d).for_each(|(dx, d)| *dx += d);
    }
}

impl Layer for FirstTokenOp {
    fn forward(&self, _: usize, pass: &mut Pass<'_>) {
        let width = pass.shape(self.x).width;
        let mut out = pass.alloc(self.out);
        let x = pass.value(self.x);
        for (out, rows) in out.chunks_exact_mut(width).zip(pass.offsets(self.x).windows(2)) {
            if rows[0] < rows[1] {
                out.copy_from_slice(&x[rows[0] * width..][..width])
            } else {
                out.fill(0.0)
            }
        }
        pass.set_value(self.out, out);
    }

    fn backward(&self, _: usize, pass: &mut Pass<'_>) {
        let Some(d) = pass.gradient(self.out) else { return };
        pass.add_gradient(self.x, |pass, dx, mode| {
            let width = pass.shape(self.x).width;
            if mode == OutputMode::Overwrite {
                dx.fill(0.0);
            }
            for (d, rows) in d.chunks_exact(width).zip(pass.offsets(self.x).windows(2)) {
                if rows[0] < rows[1] {
                    dx[rows[0] * width..][..width].iter_mut().zip(d).for_each(|(dx, d)| *dx += d);
                }
            }
        });
    }
}

impl Layer for MeanRowsOp {
    fn forward(&self, _: usize, pass: &mut Pass<'_>) {
        let mut out = pass.alloc(self.out);
        let offsets = pass.offsets(self.x);
        pooling::mean_rows(offsets, pass.shape(self.x).width, pass.value(self.x), &mut out);
        pass.set_value(self.out, out);
    }

    fn backward(&self, _: usize, pass: &mut Pass<'_>) {
        let Some(d) = pass.gradient(self.out) else { return };
        pass.write_gradient(self.x, |pass, dx| {
            let shape = pass.shape(self.x);
            pooling::mean_rows_backward(pass.batch.offsets(shape.space), shape.width, &d, dx);
        });
    }
}

impl Layer for ReshapeOp {
    fn forward(&self, _: usize, pass: &mut Pass<'_>) {
        let mut out = pass.alloc(self.out);
        out.copy_from_slice(self.x.map_or(pass.batch.features.as_slice(), |x| pass.value(x)));
        pass.set_value(self.out, out);
    }

    fn backward(&self, _: usize, pass: &mut Pass<'_>) {
        if let Some(x) = self.x {
            pass.copy_gradient(self.out, x);
        }
    }
}
