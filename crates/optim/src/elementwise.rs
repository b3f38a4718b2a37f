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

/// Calls `f` with each element of four tensors; it may change all of them.
pub(crate) fn update4(
    [a, b, c, d]: [&mut Array; 4],
    f: impl Fn(&mut f32, &mut f32, &mut f32, &mut f32) + Sync,
) {
    let pieces = a
        .data_mut()
        .par_chunks_mut(PIECE)
        .zip(b.data_mut().par_chunks_mut(PIECE))
        .zip(c.data_mut().par_chunks_mut(PIECE).zip(d.data_mut().par_chunks_mut(PIECE)));
    pieces.for_each(|((a, b), (c, d))| {
        let elements = a.iter_mut().zip(b).zip(c.iter_mut().zip(d));
        elements.for_each(|((a, b), (c, d))| f(a, b, c, d));
    });
}

/// Returns the sum of f(x) over the elements x of a tensor; it does not depend on the threads.
pub(crate) fn sum(tensor: &Array, f: impl Fn(f64) -> f64 + Sync) -> f64 {
    let pieces = tensor.data().par_chunks(PIECE);
    let pieces = pieces.map(|piece| piece.iter().map(|&x| f(f64::from(x))).sum::<f64>());
    pieces.collect::<Vec<_>>().into_iter().sum()
}

/// Computes θ ← (1 − rate·decay) θ − rate·d for one tensor.
pub(crate) fn step(param: &mut Array, direction: &Array, rate: f64, decay: f64) {
    let (shrink, rate) = ((1.0 - rate * decay) as f32, rate as f32);
    update(param, direction, |p, d| shrink.mul_add(p, -rate * d));
}
