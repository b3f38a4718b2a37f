//! Activations, fused with the preceding bias.
//!
//! The forward pass stores the derivative, so the backward pass is one multiplication.

use crate::parallel::rows_per_piece;
use crate::simd::{erf_and_gauss, exp, sigmoid, update, vectorized};
use rayon::prelude::*;

/// An element-wise activation function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// max(0, x)
    Relu,
    /// GELU in its tanh approximation, as in GPT-2.
    GeluTanh,
    /// GELU, x·Φ(x), by the error function, as in BERT.
    GeluErf,
    /// x/(1 + e^−x)
    Silu,
    /// Hyperbolic tangent.
    Tanh,
}

/// √(2/π)
const ROOT: f32 = 0.797_884_6;
/// 1/√(2π)
const DENSITY: f32 = 0.398_942_3;

impl Activation {
    /// Returns the value and the derivative.
    #[inline(always)]
    fn value_and_derivative(self, x: f32) -> (f32, f32) {
        match self {
            // NaN remains NaN.
            Self::Relu => {
                (if x <= 0.0 { 0.0 } else { x }, if x <= 0.0 { 0.0 } else { 1.0 + 0.0 * x })
            }
            Self::GeluTanh => {
                let limit = 10.0;
                let clamped = clamp(x, limit);
                // ½(1 + tanh u) = σ(2u)
                let square = clamped * clamped;
                let s = sigmoid(2.0 * ROOT * clamped * square.mul_add(0.044_715, 1.0));
                let slope = 2.0 * ROOT * square.mul_add(3.0 * 0.044_715, 1.0);
                with_limits(x, limit, s, (clamped * s * (1.0 - s)).mul_add(slope, s))
            }
            Self::GeluErf => {
                let limit = 14.0;
                let clamped = clamp(x, limit);
                let (erf, gauss) = erf_and_gauss(clamped * std::f32::consts::FRAC_1_SQRT_2);
                let phi = 0.5 + 0.5 * erf;
                with_limits(x, limit, phi, (clamped * DENSITY).mul_add(gauss, phi))
            }
            Self::Silu => silu(x),
            Self::Tanh => {
                let t = 1.0 - 2.0 / (1.0 + exp(2.0 * x));
                (t, 1.0 - t * t)
            }
        }
    }
}

/// Clamps x to −limit..limit; NaN remains NaN.
#[inline(always)]
fn clamp(x: f32, limit: f32) -> f32 {
    let x = if x < -limit { -limit } else { x };
    if x > limit { limit } else { x }
}

/// Returns `x · share` and `slope`, or zeros if x is below −limit.
///
/// There the formulas are inaccurate: [`exp`] is at least 1e-38 instead of 0, and its factor grows
/// with |x|. Above the limit, the clamped argument gives a share and a slope of 1.
#[inline(always)]
fn with_limits(x: f32, limit: f32, share: f32, slope: f32) -> (f32, f32) {
    if x < -limit { (0.0, 0.0) } else { (x * share, slope) }
}

#[inline(always)]
fn silu(x: f32) -> (f32, f32) {
    let limit = 80.0;
    let clamped = clamp(x, limit);
    let s = sigmoid(clamped);
    with_limits(x, limit, s, (clamped * s).mul_add(1.0 - s, s))
}

#[inline(always)]
fn apply(
    activation: Activation,
    bias: Option<&[f32]>,
    width: usize,
    z: &mut [f32],
    out: &mut [f32],
) {
    for (z, out) in z.chunks_exact_mut(width).zip(out.chunks_exact_mut(width)) {
        match bias {
            Some(bias) => {
                for ((z, out), b) in z.iter_mut().zip(out).zip(bias) {
                    (*out, *z) = activation.value_and_derivative(*z + b);
                }
            }
            None => {
                for (z, out) in z.iter_mut().zip(out) {
                    (*out, *z) = activation.value_and_derivative(*z);
                }
            }
        }
    }
}

/// Computes `out = f(z + bias)` and `z = f′(z + bias)`.
pub fn forward(
    activation: Activation,
    bias: Option<&[f32]>,
    width: usize,
    z: &mut [f32],
    out: &mut [f32],
) {
    assert_eq!(z.len(), out.len(), "values and derivatives");
    if z.is_empty() {
        return;
    }
    let piece = width * rows_per_piece(z.len() / width, width);
    z.par_chunks_mut(piece).zip(out.par_chunks_mut(piece)).for_each(|(z, out)| {
        // A constant in each arm keeps the branch outside the loop.
        macro_rules! each {
            ($($name:ident)*) => {
                match activation {
                    $(Activation::$name => vectorized(
                        #[inline(always)]
                        || apply(Activation::$name, bias, width, z, out),
                    ),)*
                }
            };
        }
        each!(Relu GeluTanh GeluErf Silu Tanh);
    });
}

/// Adds the bias to the columns from `first` on of each row; rows are `stride` wide.
pub fn add_bias(bias: &[f32], stride: usize, first: usize, z: &mut [f32]) {
    if z.is_empty() {
        return;
    }
    let piece = stride * rows_per_piece(z.len() / stride, stride);
    z.par_chunks_mut(piece).for_each(|z| {
        vectorized(
            #[inline(always)]
            || {
                for row in z.chunks_exact_mut(stride) {
                    for (z, b) in row[first..].iter_mut().zip(bias) {
                        *z += b;
                    }
                }
            },
        );
    });
}

/// Computes `d *= by`: the backward pass of an activation with derivative `by`.
pub fn multiply(d: &mut [f32], by: &[f32]) {
    assert_eq!(d.len(), by.len(), "factors");
    let piece = rows_per_piece(d.len(), 1);
    d.par_chunks_mut(piece).zip(by.par_chunks(piece)).for_each(|(d, by)| {
        vectorized(
            #[inline(always)]
            || update(d, by, |d, by| d * by),
        );
    });
}

/// Computes `d += by`.
pub fn add(d: &mut [f32], by: &[f32]) {
    assert_eq!(d.len(), by.len(), "summands");
    let piece = rows_per_piece(d.len(), 1);
    d.par_chunks_mut(piece).zip(by.par_chunks(piece)).for_each(|(d, by)| {
        vectorized(
            #[inline(always)]
            || update(d, by, |d, by| d + by),
        );
    });
}

/// Computes `out = a + b`.
pub fn add_to(a: &[f32], b: &[f32], out: &mut [f32]) {
    assert_eq!((a.len(), b.len()), (out.len(), out.len()), "summands");
    let piece = rows_per_piece(out.len(), 1);
    out.par_chunks_mut(piece).zip(a.par_chunks(piece)).zip(b.par_chunks(piece)).for_each(
        |((out, a), b)| {
            vectorized(
                #[inline(always)]
                || {
                    for i in 0..out.len() {
                        out[i] = a[i] + b[i];
                    }
                },
            );
        },
    );
}

/// Computes `out = silu(gate) · value`; rows of `x` are a gate and a value, each `width` wide.
pub fn swiglu(width: usize, x: &[f32], out: &mut [f32]) {
    assert_eq!(x.len(), 2 * out.len(), "gates and values");
    if out.is_empty() {
        return;
    }
    let rows = rows_per_piece(out.len() / width, width);
    out.par_chunks_mut(rows * width).zip(x.par_chunks(2 * rows * width)).for_each(|(out, x)| {
        vectorized(
            #[inline(always)]
            || {
                for (out, x) in out.chunks_exact_mut(width).zip(x.chunks_exact(2 * width)) {
                    let (gate, value) = x.split_at(width);
                    for ((out, g), v) in out.iter_mut().zip(gate).zip(value) {
                        *out = silu(*g).0 * v;
                    }
                }
            },
        );
    });
}

/// Writes the gradient of [`swiglu`] with respect to `x` to `dx`.
pub fn swiglu_backward(width: usize, x: &[f32], dout: &[f32], dx: &mut [f32]) {
    assert_eq!((x.len(), dx.len()), (2 * dout.len(), 2 * dout.len()), "gates and values");
    if dout.is_empty() {
        return;
    }
    let rows = rows_per_piece(dout.len() / width, width);
    dx.par_chunks_mut(2 * rows * width)
        .zip(x.par_chunks(2 * rows * width))
        .zip(dout.par_chunks(rows * width))
        .for_each(|((dx, x), dout)| {
            vectorized(
                #[inline(always)]
                || {
                    for ((dx, x), d) in dx
                        .chunks_exact_mut(2 * width)
                        .zip(x.chunks_exact(2 * width))
                        .zip(dout.chunks_exact(width))
                    {
                        let (gate, value) = x.split_at(width);
                        let (dgate, dvalue) = dx.split_at_mut(width);
                        for i in 0..width {
                            let (s, slope) = silu(gate[i]);
                            dgate[i] = d[i] * value[i] * slope;
                            dvalue[i] = d[i] * s;
                        }
                    }
                },
            );
        });
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Activation; 5] = [
        Activation::Relu,
        Activation::GeluTanh,
        Activation::GeluErf,
        Activation::Silu,
        Activation::Tanh,
    ];

    /// x → f(x) at 1, from the definitions.
    #[test]
    fn values_match_the_definitions() {
        let expected = [1.0, 0.841_192, 0.841_344_7, 0.731_058_6, 0.761_594_2];
        for (f, y) in ALL.into_iter().zip(expected) {
            let (mut z, mut out) = (vec![0.25, 0.25], vec![0.0; 2]);
            forward(f, Some(&[0.75, 0.75]), 2, &mut z, &mut out);
            assert!((out[0] - y).abs() < 1e-6 && out[0] == out[1], "{f:?} {out:?}");
        }
    }

    #[test]
    fn derivatives_match_differences() {
        for f in ALL {
            for i in -60..60 {
                let x = i as f32 / 10.0 + 0.05;
                let h = 1e-2;
                let (up, down) = (
                    f64::from(f.value_and_derivative(x + h).0),
                    f64::from(f.value_and_derivative(x - h).0),
                );
                let slope = (up - down) / (2.0 * f64::from(h));
                assert!(
                    (slope - f64::from(f.value_and_derivative(x).1)).abs() < 2e-4,
                    "{f:?} at {x}: {slope} {}",
                    f.value_and_derivative(x).1
                );
            }
        }
    }

    /// For large |x| an activation is 0, 1 or x, and its slope 0 or 1.
    #[test]
    fn limits_for_large_arguments_are_exact() {
        for f in ALL {
            for x in [100.0, 1e3, 1e7, 1e14, 1e19, 1e30, f32::MAX] {
                let (top, bottom) = if f == Activation::Tanh { (1.0, -1.0) } else { (x, 0.0) };
                let slope = if f == Activation::Tanh { 0.0 } else { 1.0 };
                let near =
                    |got: (f32, f32), value: f32, slope: f32| got.0 == value && got.1 == slope;
                assert!(
                    near(f.value_and_derivative(x), top, slope),
                    "{f:?} at {x}: {:?}",
                    f.value_and_derivative(x)
                );
                assert!(
                    near(f.value_and_derivative(-x), bottom, 0.0),
                    "{f:?} at -{x}: {:?}",
                    f.value_and_derivative(-x)
                );
            }
        }
    }

    #[test]
    fn nan_stays_and_extremes_are_finite() {
        for f in ALL {
            assert!(
                f.value_and_derivative(f32::NAN).0.is_nan()
                    && f.value_and_derivative(f32::NAN).1.is_nan(),
                "{f:?}"
            );
            for x in [-1e4, -100.0, 0.0, 100.0, 1e4] {
                assert!(
                    f.value_and_derivative(x).0.is_finite()
                        && f.value_and_derivative(x).1.is_finite(),
                    "{f:?} {x}"
                );
            }
        }
    }

    #[test]
    fn swiglu_matches_differences() {
        let x = [0.3, -1.2, 2.0, 0.7, -0.4, 1.1, 0.2, -2.0];
        let d = [1.0, -0.5, 0.25, 2.0];
        let value = |x: &[f32]| {
            let mut out = [0.0; 4];
            swiglu(2, x, &mut out);
            out.iter().zip(d).map(|(a, b)| f64::from(a * b)).sum::<f64>()
        };
        let mut dx = [0.0; 8];
        swiglu_backward(2, &x, &d, &mut dx);
        for i in 0..8 {
            let (mut up, mut down) = (x, x);
            up[i] += 1e-2;
            down[i] -= 1e-2;
            assert!(((value(&up) - value(&down)) / 2e-2 - f64::from(dx[i])).abs() < 1e-3);
        }
    }
}
