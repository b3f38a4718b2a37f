//! The Newton–Schulz iteration: approximates the orthogonal polar factor by matrix products.
//!
//! Y ← p(Y Yᵀ) Y, from Y = X/α, drives every nonzero singular value towards 1 (Kim and Fan 2026,
//! §2; Kim and Oh 2026). With p_κ(λ) = Σ_{j ≤ κ} c_j (1−λ)^j, c_j = (2j)!/(4^j j!²), a singular
//! value s of Y becomes s′ with 1 − s′² ≤ (1 − s²)^{κ+1}: it stays in [0, 1] and converges to 1.
//!
//! If a matrix has more rows than columns, the equal Y p(Yᵀ Y) is computed. Y Yᵀ and all
//! polynomials of it are symmetric, and only half of each is computed.
//!
//! Several steps, a *stretch*, can be made on the Gram matrix S = Y Yᵀ alone. For two steps,
//! Y₂ = p(S₁) p(S) Y with S₁ = p(S) S p(S). So Y is read twice per stretch, not twice per step, and
//! all factors are symmetric. Each step amplifies rounding errors in S by p(0)². A stretch ends
//! before the amplification exceeds 1000, and then S is recomputed. For a matrix four times as wide
//! as high, five steps in one stretch need half the operations.

use crate::auto::NumberOrName;
use serde::{Deserialize, Serialize};
use tensor::matmul::{OutputMode, Threads, View, ViewMut, matmul};
use tensor::symmetric::symmetric_product;

/// Parameters of the iteration.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Config {
    /// The polynomial p.
    pub polynomial: Polynomial,
    /// q: the number of steps.
    pub steps: usize,
    /// α: the number by which the matrix is divided first.
    pub normaliser: Normaliser,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            polynomial: Polynomial::Newton { degree: 2 },
            steps: 5,
            normaliser: Normaliser::Frobenius,
        }
    }
}

/// The polynomial that is applied to Y Yᵀ; as text, its degree κ or "quintic".
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "NumberOrName<usize>", into = "NumberOrName<usize>")]
pub enum Polynomial {
    /// p_κ, which converges.
    Newton {
        /// κ ≥ 1
        degree: usize,
    },
    /// 3.4445 − 4.7750 λ + 2.0315 λ² (Jordan et al. 2024), which does not converge.
    ///
    /// Singular values increase quickly at first and then vary between 0.68 and 1.13.
    Quintic,
}

impl TryFrom<NumberOrName<usize>> for Polynomial {
    type Error = String;
    fn try_from(raw: NumberOrName<usize>) -> Result<Self, String> {
        match raw {
            NumberOrName::Number(degree) if degree >= 1 => Ok(Self::Newton { degree }),
            NumberOrName::Name(name) if name == "quintic" => Ok(Self::Quintic),
            NumberOrName::Number(degree) => {
                Err(format!("expected a degree of at least 1 or \"quintic\", got {degree}"))
            }
            NumberOrName::Name(name) => {
                Err(format!("expected a degree of at least 1 or \"quintic\", got {name:?}"))
            }
        }
    }
}

impl From<Polynomial> for NumberOrName<usize> {
    fn from(polynomial: Polynomial) -> Self {
        match polynomial {
            Polynomial::Newton { degree } => Self::Number(degree),
            Polynomial::Quintic => Self::Name("quintic".into()),
        }
    }
}

/// The number by which a matrix is divided before the iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Normaliser {
    /// ‖X‖_F: the result does not depend on the scale of X. The zero matrix stays zero.
    Frobenius,
    /// max(1, ‖X‖_F), as in the paper.
    ///
    /// A matrix of norm below 1, as is common in private training, stays small, and so does the
    /// step.
    #[serde(rename = "max1")]
    AtLeastOne,
}

impl Polynomial {
    /// Returns the coefficients, and whether they are in powers of 1 − λ or of λ.
    fn coefficients(self) -> (Vec<f32>, Base) {
        match self {
            Self::Newton { degree } => {
                let next = |c: &f64, s: usize| c * (2 * s - 1) as f64 / (2 * s) as f64;
                let mut all = vec![1.0];
                (1..=degree.max(1)).for_each(|s| all.push(next(&all[s - 1], s)));
                (all.into_iter().map(|c| c as f32).collect(), Base::Residual)
            }
            Self::Quintic => (vec![3.4445, -4.7750, 2.0315], Base::Gram),
        }
    }
}

/// The variable in whose powers a polynomial is given.
#[derive(Clone, Copy, PartialEq)]
enum Base {
    /// 1 − λ
    Residual,
    /// λ
    Gram,
}

/// Buffers that calls of [`orthogonalise`] reuse.
#[derive(Default)]
pub struct Scratch {
    gram: Vec<f32>,
    base: Vec<f32>,
    sum: Vec<f32>,
    next: Vec<f32>,
    total: Vec<f32>,
    image: Vec<f32>,
}

/// Replaces a matrix by the result of the iteration.
pub fn orthogonalise(
    config: &Config,
    x: &mut Vec<f32>,
    rows: usize,
    cols: usize,
    scratch: &mut Scratch,
    threads: Threads,
) {
    let norm = x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt();
    let alpha = match config.normaliser {
        Normaliser::Frobenius if norm == 0.0 => 1.0,
        Normaliser::Frobenius => norm,
        Normaliser::AtLeastOne => norm.max(1.0),
    };
    x.iter_mut().for_each(|x| *x = (f64::from(*x) / alpha) as f32);
    let (coefficients, base) = config.polynomial.coefficients();
    let side = rows.min(cols);
    for buffer in [
        &mut scratch.gram,
        &mut scratch.base,
        &mut scratch.sum,
        &mut scratch.next,
        &mut scratch.total,
    ] {
        buffer.resize(side * side, 0.0);
    }
    scratch.image.resize(x.len(), 0.0);
    let stretch = stretch(config, rows, cols);
    let mut remaining = config.steps;
    while remaining > 0 {
        let steps = remaining.min(stretch);
        remaining -= steps;
        let y = View::new(x, rows, cols);
        let (outer, inner) = if rows <= cols { (y, y.t()) } else { (y.t(), y) };
        symmetric_product(&mut scratch.gram, 1.0, outer, inner, threads);
        for step in 0..steps {
            scratch.base.copy_from_slice(&scratch.gram);
            if base == Base::Residual {
                scratch.base.iter_mut().for_each(|x| *x = -*x);
                add_to_diagonal(&mut scratch.base, side, 1.0);
            }
            horner(&coefficients, side, scratch, threads);
            let p = View::new(&scratch.sum, side, side);
            if step + 1 < steps {
                symmetric_product(
                    &mut scratch.next,
                    1.0,
                    View::new(&scratch.gram, side, side),
                    p,
                    threads,
                );
                symmetric_product(
                    &mut scratch.gram,
                    1.0,
                    p,
                    View::new(&scratch.next, side, side),
                    threads,
                );
            }
            if step == 0 {
                std::mem::swap(&mut scratch.total, &mut scratch.sum);
            } else {
                symmetric_product(
                    &mut scratch.next,
                    1.0,
                    p,
                    View::new(&scratch.total, side, side),
                    threads,
                );
                std::mem::swap(&mut scratch.total, &mut scratch.next);
            }
        }
        let p = View::new(&scratch.total, side, side);
        let (outer, inner) = if rows <= cols { (p, y) } else { (y, p) };
        matmul(
            ViewMut::new(&mut scratch.image, rows, cols),
            OutputMode::Overwrite,
            1.0,
            outer,
            inner,
            threads,
        );
        std::mem::swap(x, &mut scratch.image);
    }
}

/// Returns the number of steps per stretch that costs the least and that rounding allows.
fn stretch(config: &Config, rows: usize, cols: usize) -> usize {
    const MAX_AMPLIFICATION: f64 = 1000.0;
    let (coefficients, base) = config.polynomial.coefficients();
    let at_zero: f64 = match base {
        Base::Residual => coefficients.iter().map(|&c| f64::from(c)).sum(),
        Base::Gram => f64::from(coefficients[0]),
    };
    let longest = (MAX_AMPLIFICATION.ln() / (2.0 * at_zero.ln())) as usize;
    let (short, long) = (rows.min(cols) as f64, rows.max(cols) as f64);
    // In units of short², where a symmetric product costs 0.6 of a plain one.
    let cost = |stretch: usize| {
        let stretches = config.steps.div_ceil(stretch) as f64;
        let small = config.steps as f64 * (coefficients.len() - 2) as f64
            + 3.0 * (config.steps as f64 - stretches);
        stretches * 1.6 * long + 0.6 * small * short
    };
    (1..=longest.max(1)).min_by(|&a, &b| cost(a).total_cmp(&cost(b))).unwrap_or(1)
}

/// Computes `scratch.sum` = Σ c_j base^j. All factors commute, so every product is symmetric.
fn horner(coefficients: &[f32], side: usize, scratch: &mut Scratch, threads: Threads) {
    let last = coefficients.len() - 1;
    scratch
        .sum
        .iter_mut()
        .zip(&scratch.base)
        .for_each(|(sum, base)| *sum = coefficients[last] * base);
    add_to_diagonal(&mut scratch.sum, side, coefficients[last - 1]);
    for &coefficient in coefficients[..last - 1].iter().rev() {
        let (base, sum) =
            (View::new(&scratch.base, side, side), View::new(&scratch.sum, side, side));
        symmetric_product(&mut scratch.next, 1.0, base, sum, threads);
        add_to_diagonal(&mut scratch.next, side, coefficient);
        std::mem::swap(&mut scratch.sum, &mut scratch.next);
    }
}

fn add_to_diagonal(a: &mut [f32], side: usize, number: f32) {
    a.iter_mut().step_by(side + 1).for_each(|x| *x += number);
}

/// Counts the operations of a plain implementation: without symmetric products and stretches.
pub fn operations(config: &Config, rows: usize, cols: usize) -> f64 {
    let (short, long) = (rows.min(cols) as f64, rows.max(cols) as f64);
    let powers = (config.polynomial.coefficients().0.len() - 2) as f64;
    config.steps as f64 * (4.0 * short * short * long + powers * 2.0 * short.powi(3))
}

#[cfg(test)]
mod tests {
    use super::*;
    use noise::PublicRandom;
    use proptest::prelude::*;
    use tensor::{Array, linalg};

    fn normal(rows: usize, cols: usize, seed: u64) -> Vec<f32> {
        let mut x = vec![0.0; rows * cols];
        PublicRandom::from_seed(seed).normals(0, &mut x);
        x
    }

    fn run(config: &Config, x: &[f32], rows: usize, cols: usize) -> Vec<f32> {
        let mut y = x.to_vec();
        orthogonalise(config, &mut y, rows, cols, &mut Scratch::default(), Threads::One);
        y
    }

    /// What the iteration does to one singular value.
    fn scalar(config: &Config, mut s: f64) -> f64 {
        let (coefficients, base) = config.polynomial.coefficients();
        for _ in 0..config.steps {
            let x = if base == Base::Residual { 1.0 - s * s } else { s * s };
            s *= coefficients.iter().rev().fold(0.0, |sum, &c| sum * x + f64::from(c));
        }
        s
    }

    const ALL: [Polynomial; 5] = [
        Polynomial::Newton { degree: 1 },
        Polynomial::Newton { degree: 2 },
        Polynomial::Newton { degree: 3 },
        Polynomial::Newton { degree: 4 },
        Polynomial::Quintic,
    ];

    #[test]
    fn coefficients_are_the_binomial_ones() {
        let (c, _) = Polynomial::Newton { degree: 4 }.coefficients();
        assert_eq!(c, [1.0, 0.5, 0.375, 0.3125, 35.0 / 128.0]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]
        /// Singular vectors stay, singular values follow the scalar map: the whole iteration
        /// against the decomposition.
        #[test]
        fn it_is_the_scalar_map_on_singular_values(
            rows in 1usize..14,
            cols in 1usize..14,
            seed in 0u64..1000,
            which in 0usize..5,
            steps in 0usize..7,
        ) {
            let normaliser = Normaliser::Frobenius;
            let config = Config { polynomial: ALL[which], steps, normaliser };
            let x = normal(rows, cols, seed);
            let (u, s, v) = linalg::svd(&Array::new([rows, cols], x.clone()).unwrap()).unwrap();
            let norm = s.iter().map(|s| s * s).sum::<f32>().sqrt();
            let y = run(&config, &x, rows, cols);
            for i in 0..rows {
                for j in 0..cols {
                    let expected: f64 = (0..s.len())
                        .map(|k| {
                            f64::from(u.data()[i * s.len() + k])
                                * scalar(&config, f64::from(s[k] / norm))
                                * f64::from(v.data()[j * s.len() + k])
                        })
                        .sum();
                    prop_assert!((f64::from(y[i * cols + j]) - expected).abs() < 3e-5, "{} \
                        {expected}", y[i * cols + j]);
                }
            }
        }
    }

    #[test]
    fn stretches_are_long_where_they_pay() {
        let of = |degree, steps, rows, cols| {
            stretch(
                &Config { polynomial: Polynomial::Newton { degree }, steps, ..Config::default() },
                rows,
                cols,
            )
        };
        assert_eq!((of(2, 5, 768, 3072), of(2, 5, 3072, 768)), (5, 5));
        assert_eq!(of(2, 5, 768, 768), 1);
        // 1.875^10 = 537 is the most.
        assert!((1..30).all(|steps| of(2, steps, 10, 1000) <= 5));
        assert_eq!(of(2, 10, 10, 1000), 5);
        assert!(
            stretch(&Config { polynomial: Polynomial::Quintic, ..Config::default() }, 10, 1000)
                <= 2
        );
        assert_eq!(of(2, 0, 0, 0), 1);
    }

    /// Wide and tall ones, in stretches, against the decomposition.
    #[test]
    fn long_stretches_are_accurate() {
        for (rows, cols) in [(24, 200), (150, 30)] {
            for degree in 1..=3 {
                let config = Config {
                    polynomial: Polynomial::Newton { degree },
                    steps: 7,
                    normaliser: Normaliser::Frobenius,
                };
                let x = normal(rows, cols, 8);
                let (u, s, v) = linalg::svd(&Array::new([rows, cols], x.clone()).unwrap()).unwrap();
                let length = s.iter().map(|s| s * s).sum::<f32>().sqrt();
                let k = s.len();
                let y = run(&config, &x, rows, cols);
                for (i, &got) in y.iter().enumerate() {
                    let expected: f64 = (0..k)
                        .map(|l| {
                            f64::from(u.data()[i / cols * k + l])
                                * scalar(&config, f64::from(s[l] / length))
                                * f64::from(v.data()[i % cols * k + l])
                        })
                        .sum();
                    assert!(
                        (f64::from(got) - expected).abs() < 2e-5,
                        "{rows} {cols} {degree}: {got} {expected}"
                    );
                }
            }
        }
    }

    #[test]
    fn singular_values_stay_within_one_and_contract() {
        for degree in 1..=4 {
            let one = Config {
                polynomial: Polynomial::Newton { degree },
                steps: 1,
                normaliser: Normaliser::Frobenius,
            };
            for i in 0..=1000 {
                let s = f64::from(i) / 1000.0;
                let next = scalar(&one, s);
                assert!((-1e-7..=1.0 + 1e-7).contains(&next));
                assert!(
                    1.0 - next * next <= (1.0 - s * s).powi(degree as i32 + 1) + 1e-7,
                    "{degree} {s} {next}"
                );
            }
        }
        let quintic =
            Config { polynomial: Polynomial::Quintic, steps: 5, normaliser: Normaliser::Frobenius };
        assert!(
            (1..=100)
                .all(|i| (0.67..1.14).contains(&scalar(&quintic, 0.01 + 0.0099 * f64::from(i))))
        );
    }

    #[test]
    fn steps_that_are_needed() {
        // Steps for a singular value of at least 0.9, from 0.5, 0.1, 0.03, 0.01, 1e-3, 1e-4.
        for (degree, table) in
            [(1, [3, 7, 10, 13, 18, 24]), (2, [2, 5, 7, 8, 12, 16]), (3, [2, 4, 5, 7, 10, 13])]
        {
            for (start, steps) in [0.5, 0.1, 0.03, 0.01, 1e-3, 1e-4].into_iter().zip(table) {
                let after = |steps| {
                    scalar(
                        &Config {
                            polynomial: Polynomial::Newton { degree },
                            steps,
                            ..Config::default()
                        },
                        start,
                    )
                };
                assert!(after(steps) >= 0.9 && after(steps - 1) < 0.9, "{degree} {start}");
            }
        }
    }

    #[test]
    fn normalisers() {
        let paper = Config { normaliser: Normaliser::AtLeastOne, ..Config::default() };
        let small: Vec<f32> = normal(6, 9, 1).into_iter().map(|x| x * 1e-3).collect();
        let norm = |x: &[f32]| x.iter().map(|x| x * x).sum::<f32>().sqrt();
        // A small matrix stays small under the paper's, and does not under the other: √6 is the
        // norm of an orthogonal 6×9 matrix.
        assert!(norm(&run(&paper, &small, 6, 9)) < 0.3);
        assert!(norm(&run(&Config::default(), &small, 6, 9)) > 2.0);
        let large = normal(6, 9, 1);
        assert_eq!(run(&paper, &large, 6, 9), run(&Config::default(), &large, 6, 9));
        for config in [paper, Config::default()] {
            assert!(run(&config, &[0.0; 12], 3, 4).iter().all(|&x| x == 0.0));
            assert!(run(&config, &[], 0, 4).is_empty());
        }
    }
}
