//! From the rows of one space to those of another: tokens with targets, the first token, the mean,
//! an image as one row.

use super::Layer;
use crate::graph::Value;
use crate::run::Run;
use tensor::matmul::OutputMode;
use tensor::{embedding, pooling};

/// The tokens that carry a target: what comes after costs nothing for the others.
#[derive(Debug)]
pub(crate) struct TargetRows {
    pub(crate) x: Value,
    pub(crate) out: Value,
}

impl Layer for TargetRows {
    fn inputs(&self) -> Vec<Value> {
        vec![self.x]
    }

    fn outputs(&self) -> Vec<Value> {
        vec![self.out]
    }

    fn forward(&self, _: usize, run: &mut Run<'_>) {
        let mut out = run.buffer(self.out);
        embedding::gather(
            &run.buffers.values[self.x.0],
            run.form(self.x).width,
            &run.batch.target_rows,
            &mut out,
        );
        run.put(self.out, out);
    }

    fn backward(&self, _: usize, run: &mut Run<'_>) {
        let Some(d) = run.gradient(self.out) else { return };
        run.contribute(self.x, |run, dx, onto| {
            if onto == OutputMode::Overwrite {
                dx.fill(0.0);
            }
            spread(&run.batch.target_rows, run.form(self.x).width, &d, dx);
        });
    }
}

/// Adds row after row of `d` to the rows of `dx` that `rows` names.
fn spread(rows: &[u32], width: usize, d: &[f32], dx: &mut [f32]) {
    for (&row, d) in rows.iter().zip(d.chunks_exact(width)) {
        dx[row as usize * width..][..width].iter_mut().zip(d).for_each(|(dx, d)| *dx += d);
    }
}

/// The first token of each example; zeros for an empty one.
#[derive(Debug)]
pub(crate) struct FirstToken {
    pub(crate) x: Value,
    pub(crate) out: Value,
}

impl Layer for FirstToken {
    fn inputs(&self) -> Vec<Value> {
        vec![self.x]
    }

    fn outputs(&self) -> Vec<Value> {
        vec![self.out]
    }

    fn forward(&self, _: usize, run: &mut Run<'_>) {
        let width = run.form(self.x).width;
        let mut out = run.buffer(self.out);
        let x = &run.buffers.values[self.x.0];
        for (out, rows) in
            out.chunks_exact_mut(width).zip(run.batch.offsets(run.form(self.x).space).windows(2))
        {
            if rows[0] < rows[1] {
                out.copy_from_slice(&x[rows[0] * width..][..width])
            } else {
                out.fill(0.0)
            }
        }
        run.put(self.out, out);
    }

    fn backward(&self, _: usize, run: &mut Run<'_>) {
        let Some(d) = run.gradient(self.out) else { return };
        run.contribute(self.x, |run, dx, onto| {
            let width = run.form(self.x).width;
            if onto == OutputMode::Overwrite {
                dx.fill(0.0);
            }
            for (d, rows) in
                d.chunks_exact(width).zip(run.batch.offsets(run.form(self.x).space).windows(2))
            {
                if rows[0] < rows[1] {
                    dx[rows[0] * width..][..width].iter_mut().zip(d).for_each(|(dx, d)| *dx += d);
                }
            }
        });
    }
}

/// The mean of each example's rows; zeros for an empty one.
#[derive(Debug)]
pub(crate) struct MeanRows {
    pub(crate) x: Value,
    pub(crate) out: Value,
}

impl Layer for MeanRows {
    fn inputs(&self) -> Vec<Value> {
        vec![self.x]
    }

    fn outputs(&self) -> Vec<Value> {
        vec![self.out]
    }

    fn forward(&self, _: usize, run: &mut Run<'_>) {
        let mut out = run.buffer(self.out);
        let offsets = run.batch.offsets(run.form(self.x).space);
        pooling::mean_rows(
            offsets,
            run.form(self.x).width,
            &run.buffers.values[self.x.0],
            &mut out,
        );
        run.put(self.out, out);
    }

    fn backward(&self, _: usize, run: &mut Run<'_>) {
        let Some(d) = run.gradient(self.out) else { return };
        run.contribute_whole(self.x, |run, dx| {
            let form = run.form(self.x);
            pooling::mean_rows_backward(run.batch.offsets(form.space), form.width, &d, dx);
        });
    }
}

/// The same numbers with other sides: a grid as one row, or one row as a grid.
#[derive(Debug)]
pub(crate) struct Reshape {
    /// None: the numbers of the batch.
    pub(crate) x: Option<Value>,
    pub(crate) out: Value,
}

impl Layer for Reshape {
    fn inputs(&self) -> Vec<Value> {
        self.x.into_iter().collect()
    }

    fn outputs(&self) -> Vec<Value> {
        vec![self.out]
    }

    fn forward(&self, _: usize, run: &mut Run<'_>) {
        let mut out = run.buffer(self.out);
        out.copy_from_slice(
            self.x.map_or(run.batch.numbers.as_slice(), |x| &run.buffers.values[x.0]),
        );
        run.put(self.out, out);
    }

    fn backward(&self, _: usize, run: &mut Run<'_>) {
        if let Some(x) = self.x {
            run.pass_on(self.out, x);
        }
    }
}
