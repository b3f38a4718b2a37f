//! Loops compiled for several instruction sets, and vectorized elementary functions.
//!
//! `vectorized` compiles its body several times and picks at run time. The bodies are plain loops
//! over lanes that the compiler turns into vector instructions; sums keep `LANES` partial sums, so
//! their order does not depend on the processor, nor on the number of threads.

/// Number of partial sums of a reduction.
pub(crate) const LANES: usize = 16;

/// Runs `body`, compiled for the best available instruction set.
///
/// Write `vectorized(#[inline(always)] || …)`: the body is called from several places, one for each
/// instruction set, and unless it is inlined into all of them it is compiled once, without vectors,
/// and ten times slower.
#[inline(always)]
pub(crate) fn vectorized<R>(body: impl FnOnce() -> R) -> R {
    pulp::Arch::new().dispatch(body)
}

#[inline(always)]
pub(crate) fn fold(lanes: [f32; LANES]) -> f32 {
    let mut half = LANES / 2;
    let mut lanes = lanes;
    while half > 0 {
        for i in 0..half {
            lanes[i] += lanes[i + half];
        }
        half /= 2;
    }
    lanes[0]
}

/// Loads the first `LANES` elements, padded with zeros.
///
/// A block of channels may be narrower: the other lanes then hold the next elements of the same
/// example, which the caller must not store.
#[inline(always)]
pub(crate) fn load(values: &[f32]) -> [f32; LANES] {
    if let Some(all) = values.first_chunk() {
        return *all;
    }
    let mut lanes = [0.0; LANES];
    for (lane, &number) in lanes.iter_mut().zip(values) {
        *lane = number;
    }
    lanes
}

/// Stores as many lanes as fit.
#[inline(always)]
pub(crate) fn store(lanes: [f32; LANES], values: &mut [f32]) {
    match values.first_chunk_mut() {
        Some(all) => *all = lanes,
        None => values.iter_mut().zip(lanes).for_each(|(number, lane)| *number = lane),
    }
}

/// Returns Σ f(a, b), summed in lanes.
#[inline(always)]
pub(crate) fn sum2(a: &[f32], b: &[f32], f: impl Fn(f32, f32, f32) -> f32) -> f32 {
    let n = a.len().min(b.len());
    let (a, b) = (&a[..n], &b[..n]);
    let mut lanes = [0.0f32; LANES];
    let (ac, bc) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
    let (ar, br) = (ac.remainder(), bc.remainder());
    for (x, y) in ac.zip(bc) {
        for i in 0..LANES {
            lanes[i] = f(x[i], y[i], lanes[i]);
        }
    }
    for i in 0..ar.len() {
        lanes[i] = f(ar[i], br[i], lanes[i]);
    }
    fold(lanes)
}

/// Computes `y ← f(y, x)`, element by element.
///
/// Loops are spelled out: an adaptor such as `for_each` may be compiled separately, without
/// vectors.
#[inline(always)]
pub(crate) fn update(y: &mut [f32], x: &[f32], f: impl Fn(f32, f32) -> f32) {
    let n = y.len().min(x.len());
    let (y, x) = (&mut y[..n], &x[..n]);
    for i in 0..n {
        y[i] = f(y[i], x[i]);
    }
}

/// Computes `y ← factor · y`.
#[inline(always)]
pub(crate) fn scale(y: &mut [f32], factor: f32) {
    for y in y {
        *y *= factor;
    }
}

/// Returns Σ a·b, summed in f32 within blocks and in f64 between them.
#[inline(always)]
pub(crate) fn long_dot(a: &[f32], b: &[f32]) -> f64 {
    const BLOCK: usize = 1024;
    let n = a.len().min(b.len());
    let (mut total, mut start) = (0.0, 0);
    while start < n {
        let end = (start + BLOCK).min(n);
        total += f64::from(dot(&a[start..end], &b[start..end]));
        start = end;
    }
    total
}

/// Returns Σ a·b.
#[inline(always)]
pub(crate) fn dot(a: &[f32], b: &[f32]) -> f32 {
    sum2(a, b, |x, y, sum| x.mul_add(y, sum))
}

/// Returns Σ a.
#[inline(always)]
pub(crate) fn sum(a: &[f32]) -> f32 {
    sum2(a, a, |x, _, sum| sum + x)
}

/// Returns the maximum; NaN if there is one.
#[inline(always)]
pub(crate) fn max(a: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    // `x > m || x is NaN` in one comparison.
    let larger = |x: f32, m: f32| if x <= m { m } else { x };
    let chunks = a.chunks_exact(LANES);
    let rest = chunks.remainder();
    for x in chunks {
        for i in 0..LANES {
            lanes[i] = if lanes[i].is_nan() { lanes[i] } else { larger(x[i], lanes[i]) };
        }
    }
    for &x in rest {
        lanes[0] = if lanes[0].is_nan() { lanes[0] } else { larger(x, lanes[0]) };
    }
    lanes.into_iter().fold(f32::NEG_INFINITY, |m, x| if m.is_nan() { m } else { larger(x, m) })
}

/// Computes e^x to about one unit in the last place.
///
/// It is 1e-38 below −87, finite up to 88, and NaN for NaN.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    // Comparisons let NaN through.
    let x = if x < -87.0 { -87.0 } else { x };
    let x = if x > 88.0 { 88.0 } else { x };
    // x = n·ln 2 + r; adding 1.5·2²³ rounds to the integer n and leaves it in the low bits.
    const MAGIC: f32 = 12_582_912.0;
    let shifted = x.mul_add(std::f32::consts::LOG2_E, MAGIC);
    let n = shifted - MAGIC;
    let r = n.mul_add(-0.693_359_4, x);
    let r = n.mul_add(2.121_944_4e-4, r);
    // The Taylor polynomial: |r| ≤ 0.35, and 0.35⁸/8! < 6e-9.
    let p = r.mul_add(1.0 / 5040.0, 1.0 / 720.0);
    let p = r.mul_add(p, 1.0 / 120.0);
    let p = r.mul_add(p, 1.0 / 24.0);
    let p = r.mul_add(p, 1.0 / 6.0);
    let p = r.mul_add(p, 0.5);
    let p = (r * r).mul_add(p, r) + 1.0;
    p * f32::from_bits((shifted.to_bits().wrapping_add(127)) << 23)
}

/// Computes 1/(1 + e^−x).
#[inline(always)]
pub(crate) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// Computes erf(x) and e^(−x²).
///
/// Abramowitz and Stegun 7.1.26, absolute error below 2e-7.
#[inline(always)]
pub(crate) fn erf_and_gauss(x: f32) -> (f32, f32) {
    let a = x.abs();
    let t = 1.0 / a.mul_add(0.327_591_1, 1.0);
    let p = t.mul_add(1.061_405_4, -1.453_152_1);
    let p = t.mul_add(p, 1.421_413_7);
    let p = t.mul_add(p, -0.284_496_72);
    let p = t * t.mul_add(p, 0.254_829_6);
    let gauss = exp(-a * a);
    ((1.0 - p * gauss).copysign(x), gauss)
}

/// Computes the softmax in place; returns the logarithm of the sum of exponentials.
#[inline(always)]
pub(crate) fn softmax(row: &mut [f32]) -> f32 {
    let top = max(row);
    let mut lanes = [0.0f32; LANES];
    let mut chunks = row.chunks_exact_mut(LANES);
    for chunk in chunks.by_ref() {
        for i in 0..LANES {
            chunk[i] = exp(chunk[i] - top);
            lanes[i] += chunk[i];
        }
    }
    for (x, lane) in chunks.into_remainder().iter_mut().zip(&mut lanes) {
        *x = exp(*x - top);
        *lane += *x;
    }
    let sum = fold(lanes);
    let inverse = 1.0 / sum;
    scale(row, inverse);
    top + sum.ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_close() {
        let mut worst = 0.0f64;
        for i in -8700..=8800 {
            let x = i as f32 / 100.0 + 0.003;
            let truth = f64::from(x.clamp(-87.0, 88.0)).exp();
            worst = worst.max((f64::from(exp(x)) / truth - 1.0).abs());
        }
        assert!(worst < 3e-7, "{worst}");
        assert_eq!(exp(0.0), 1.0);
        assert!(exp(f32::NAN).is_nan());
        assert!(exp(f32::NEG_INFINITY) < 1e-37 && exp(f32::INFINITY).is_finite());
    }

    #[test]
    fn erf_is_close() {
        // erf(0.5), erf(1), erf(2)
        for (x, y) in [(0.0, 0.0), (0.5, 0.520_499_9), (1.0, 0.842_700_8), (-2.0, -0.995_322_3)] {
            assert!((erf_and_gauss(x).0 - y).abs() < 3e-7);
        }
    }

    #[test]
    fn sums_and_maxima() {
        for n in [0, 1, 15, 16, 17, 100] {
            let a: Vec<f32> = (0..n).map(|i| i as f32 * 0.5).collect();
            assert_eq!(sum(&a), a.iter().sum::<f32>());
            assert_eq!(dot(&a, &a), a.iter().map(|x| x * x).sum::<f32>());
            assert_eq!(max(&a), a.iter().copied().fold(f32::NEG_INFINITY, f32::max));
            if n > 0 {
                let mut b = a.clone();
                b[n / 2] = f32::NAN;
                assert!(max(&b).is_nan() && sum(&b).is_nan());
            }
        }
    }
}
