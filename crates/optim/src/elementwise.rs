//! Elementwise updates of tensors, in parallel.

use rayon::prelude::*;
use tensor::Array;

/// Elements that one thread updates at a time.
const PIECE: usize = 1 << 14;

/// Computes a ← f(a, b) for each element.
pub(crate) fn update(a: &mut Array, b: &Array, f: impl Fn(f32, f32) -> f32 + Sync) {
    a.data_mut().par_chunks_mut(PIECE).zip(b.data().par_chunks(PIECE)).for_each(|(a, b)| {
        a.iter_mut().zip(b).for_each(|(a, &b)| *a = f(*a, b));
    });
}

/// Calls `f` with each element of three tensors; it may change all of them.
pub(crate) fn update3(
    a: &mut Array,
    b: &mut Array,
    c: &mut Array,
    f: impl Fn(&mut f32, &mut f32, &mut f32) + Sync,
) {
    let pieces = a
        .data_mut()
        .par_chunks_mut(PIECE)
        .zip(b.data_mut().par_chunks_mut(PIECE))
        .zip(c.data_mut().par_chunks_mut(PIECE));
    pieces.for_each(|((a, b), c)| a.iter_mut().zip(b).zip(c).for_each(|((a, b), c)| f(a, b, c)));
}

/// Computes θ ← (1 − rate·decay) θ − rate·d for one tensor.
pub(crate) fn step(param: &mut Array, direction: &Array, rate: f64, decay: f64) {
    let (shrink, rate) = ((1.0 - rate * decay) as f32, rate as f32);
    update(param, direction, |p, d| shrink.mul_add(p, -rate * d));
}
