//! Bias of the Newton–Schulz output Q under Gaussian noise: §4, Theorem 4.1 and Appendix C.
//!
//! For noise of standard deviation ρ around X, the paper expands the mean output P_ρ Q(X):
//!
//! - without correction it is off by (ρ²/2) ΔQ(X) + O(ρ⁴) (§4, C.4);
//! - with correction it is off by −(ρ⁴/4) Δ²Q(X) + O(ρ⁶) (Theorem 4.1).
//!
//! Q replaces each singular value, so ΔQ(X) and Δ²Q(X) have the singular vectors of X and are
//! evaluated from its singular values (`laplacian.rs` has the derivation for a polynomial map G).
//! The normalised map F(X) = G(X/‖X‖_F) is constant along rays. In d = mn dimensions
//! with E = r ∂_r and L = E² + (d−2) E, the Laplacian of the unit sphere is Δ_S = r²Δ − L, it
//! commutes with r and E, and EΔ = Δ(E−2). At ‖X‖_F = α that gives
//!
//! - α² ΔF = Δ_S G = ΔG − L G;
//! - α⁴ Δ²F = Δ_S² G − 2(d−4) Δ_S G, from Δ(r⁻² H) = r⁻⁴ (Δ_S − 2(d−4)) H;
//! - Δ_S² G = Δ²G − 2Δ[E² + (d−4) E + 4 − d] G + L² G.
//!
//! The expansion is asymptotic in ρ. Where the next term is not small beside the leading one, it
//! says nothing about the actual bias: see [`HeatExpansion::is_usable`] and
//! [`simulate`](super::simulate).

use super::laplacian::{Jets, ORDERS, Points, times};
use super::spectrum::norm;
use super::{Spectrum, not_negative, refused};
use crate::newton_schulz::{Config, Normaliser, Polynomial};
use protocol::Refused;

/// Q, ΔQ and Δ²Q at a matrix, as singular values.
///
/// ```
/// use optim::newton_schulz::Config;
/// use optim::theory::{HeatExpansion, Spectrum};
///
/// let clean = Spectrum::flat(64, 64, 64, 1.0)?;
/// let heat = HeatExpansion::new(&Config::default(), &clean)?;
/// assert!(heat.is_usable(1e-3) && !heat.is_usable(1.0));
/// assert!(heat.remainder(1e-3)? < heat.leading_bias(1e-3)?);
/// # Ok::<(), protocol::Refused>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct HeatExpansion {
    spectrum: Spectrum,
    output: Vec<f64>,
    laplacian: Vec<f64>,
    bilaplacian: Vec<f64>,
}

impl HeatExpansion {
    /// Expands the iteration around a clean momentum.
    ///
    /// # Errors
    /// If the map is not smooth at the momentum (Assumption C.2), which is at 0 with the Frobenius
    /// norm and at norm 1 with `max1`; or if a derivative is too large for f64.
    pub fn new(iteration: &Config, clean: &Spectrum) -> Result<Self, Refused> {
        let size = clean.norm();
        let normalised = match iteration.normaliser {
            Normaliser::Frobenius => true,
            Normaliser::AtLeastOne => size > 1.0,
        };
        let smooth = if normalised { size > 0.0 } else { size < 1.0 };
        if !smooth {
            let expected = "a norm at which the normaliser is smooth";
            return Err(refused("the clean momentum", expected, size));
        }
        let scale = if normalised { size } else { 1.0 };
        let squares: Vec<f64> =
            clean.values().iter().map(|(value, _)| (value / scale).powi(2)).collect();
        let p = polynomial(iteration, &squares);
        let points = Points::new(clean, squares);
        let (output, mut laplacian, mut bilaplacian) =
            (points.value(&p), points.laplacian(&p), points.bilaplacian(&p));
        if normalised {
            let d = clean.elements();
            let mut euler = vec![p];
            (0..4).for_each(|k| euler.push(points.euler(&euler[k])));
            let value = |k: usize| points.value(&euler[k]);
            let [e1, e2, e3, e4] = [value(1), value(2), value(3), value(4)];
            let [d1, d2] = [points.laplacian(&euler[1]), points.laplacian(&euler[2])];
            for i in 0..output.len() {
                let plain = laplacian[i];
                let sphere = plain - (e2[i] + (d - 2.0) * e1[i]);
                let mixed = d2[i] + (d - 4.0) * d1[i] + (4.0 - d) * plain;
                let radial = e4[i] + 2.0 * (d - 2.0) * e3[i] + (d - 2.0).powi(2) * e2[i];
                let twice = bilaplacian[i] - 2.0 * mixed + radial;
                laplacian[i] = sphere / scale.powi(2);
                bilaplacian[i] = (twice - 2.0 * (d - 4.0) * sphere) / scale.powi(4);
            }
        }
        let expansion = Self { spectrum: clean.clone(), output, laplacian, bilaplacian };
        for values in [&expansion.output, &expansion.laplacian, &expansion.bilaplacian] {
            if let Some(bad) = values.iter().find(|x| !x.is_finite()) {
                return Err(refused("the derivative of the iteration", "a finite number", bad));
            }
        }
        Ok(expansion)
    }

    /// The singular values of Q, one for each distinct value of the clean momentum.
    pub fn output(&self) -> &[f64] {
        &self.output
    }

    /// ‖Q‖_F: what the biases are to be compared with.
    pub fn output_norm(&self) -> f64 {
        self.norm(&self.output)
    }

    /// The singular values of ΔQ; a positive one means that noise raises the output.
    pub fn laplacian(&self) -> &[f64] {
        &self.laplacian
    }

    /// The singular values of Δ²Q.
    pub fn bilaplacian(&self) -> &[f64] {
        &self.bilaplacian
    }

    /// (ρ²/2) ‖ΔQ‖_F: the leading term of the bias without correction.
    pub fn leading_bias(&self, noise: f64) -> Result<f64, Refused> {
        Ok(0.5 * not_negative("the noise", noise)?.powi(2) * self.norm(&self.laplacian))
    }

    /// (ρ⁴/8) ‖Δ²Q‖_F: the next term of the bias without correction.
    pub fn next_bias(&self, noise: f64) -> Result<f64, Refused> {
        Ok(0.125 * not_negative("the noise", noise)?.powi(4) * self.norm(&self.bilaplacian))
    }

    /// (ρ⁴/4) ‖Δ²Q‖_F: the leading term of the bias that correction leaves (Theorem 4.1).
    pub fn remainder(&self, noise: f64) -> Result<f64, Refused> {
        Ok(2.0 * self.next_bias(noise)?)
    }

    /// Whether the next term is at most a tenth of the leading one, and that half of ‖Q‖_F.
    ///
    /// A rule of thumb, not a bound on the error of the expansion. In simulations it leaves the
    /// leading bias right to a tenth; the remainder of Theorem 4.1 is then right in its order of
    /// magnitude, and often too large.
    pub fn is_usable(&self, noise: f64) -> bool {
        match (self.leading_bias(noise), self.next_bias(noise)) {
            (Ok(leading), Ok(next)) => next <= 0.1 * leading && leading <= 0.5 * self.output_norm(),
            _ => false,
        }
    }

    fn norm(&self, values: &[f64]) -> f64 {
        norm(values, self.spectrum.values())
    }
}

/// The Taylor coefficients, at each u, of p with Q(Y) = p(Y Yᵀ) Y for the whole iteration.
///
/// One step multiplies Y by p₀(λ), λ its squared singular value, so λ becomes λ p₀(λ)².
fn polynomial(iteration: &Config, squares: &[f64]) -> Jets {
    let coefficients = in_powers_of_the_residual(iteration.polynomial);
    let one = |u: f64| {
        let constant = |x: f64| std::array::from_fn(|k| if k == 0 { x } else { 0.0 });
        let mut square: [f64; ORDERS] = constant(u);
        square[1] = 1.0;
        let mut product = constant(1.0);
        for _ in 0..iteration.steps {
            let residual: [f64; ORDERS] =
                std::array::from_fn(|k| f64::from(u8::from(k == 0)) - square[k]);
            let mut p = constant(0.0);
            for &coefficient in coefficients.iter().rev() {
                p = times(&p, &residual);
                p[0] += coefficient;
            }
            product = times(&product, &p);
            square = times(&square, &times(&p, &p));
        }
        product
    };
    squares.iter().map(|&u| one(u)).collect()
}

/// The coefficients of the polynomial in powers of 1 − λ.
fn in_powers_of_the_residual(polynomial: Polynomial) -> Vec<f64> {
    match polynomial {
        Polynomial::Newton { degree } => {
            let next = |c: &mut f64, s: usize| {
                let current = *c;
                *c *= (2 * s + 1) as f64 / (2 * s + 2) as f64;
                Some(current)
            };
            (0..=degree).scan(1.0, next).collect()
        }
        Polynomial::Quintic => {
            let (a, b, c) = (3.4445, -4.7750, 2.0315);
            // a + bλ + cλ² with λ = 1 − (1 − λ).
            vec![a + b + c, -b - 2.0 * c, c]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Matrix, close};
    use super::*;

    /// Q in f64, from its definition.
    fn q(iteration: &Config, x: &Matrix) -> Matrix {
        let size = x.2.iter().map(|x| x * x).sum::<f64>().sqrt();
        let alpha = match iteration.normaliser {
            Normaliser::Frobenius => size,
            Normaliser::AtLeastOne => size.max(1.0),
        };
        let y = Matrix(x.0, x.1, x.2.iter().map(|x| x / alpha).collect());
        let flat = if x.0 > x.1 { y.transposed() } else { y };
        let coefficients = in_powers_of_the_residual(iteration.polynomial);
        let done = (0..iteration.steps).fold(flat, |y, _| {
            let one = Matrix(
                y.0,
                y.0,
                (0..y.0 * y.0).map(|k| f64::from(u8::from(k % (y.0 + 1) == 0))).collect(),
            );
            let h = one.plus(-1.0, &y.times(&y.transposed()));
            let mut sum = Matrix(y.0, y.0, vec![0.0; y.0 * y.0]);
            for &c in coefficients.iter().rev() {
                sum = sum.times(&h).plus(c, &one);
            }
            sum.times(&y)
        });
        if x.0 > x.1 { done.transposed() } else { done }
    }

    /// A matrix with these values on the diagonal.
    fn diagonal(rows: usize, cols: usize, values: &[f64]) -> Matrix {
        let mut data = vec![0.0; rows * cols];
        values.iter().enumerate().for_each(|(i, &value)| data[i * cols + i] = value);
        Matrix(rows, cols, data)
    }

    /// Δ by central differences of fourth order in every element, applied to any map.
    fn differences(f: &dyn Fn(&Matrix) -> Matrix, x: &Matrix, step: f64) -> Matrix {
        let here = f(x);
        let mut sum = Matrix(x.0, x.1, vec![0.0; x.2.len()]);
        for k in 0..x.2.len() {
            let at = |by: f64| {
                let mut moved = x.clone();
                moved.2[k] += by * step;
                f(&moved)
            };
            let weights =
                [(1.0, 4.0 / 3.0), (-1.0, 4.0 / 3.0), (2.0, -1.0 / 12.0), (-2.0, -1.0 / 12.0)];
            for (by, weight) in weights {
                sum = sum.plus(weight / step.powi(2), &at(by));
            }
            sum = sum.plus(-2.5 / step.powi(2), &here);
        }
        sum
    }

    fn cases() -> Vec<(Config, usize, usize, Vec<f64>)> {
        use Normaliser::{AtLeastOne, Frobenius};
        let newton = |degree, steps, normaliser| Config {
            polynomial: Polynomial::Newton { degree },
            steps,
            normaliser,
        };
        let quintic = Config { polynomial: Polynomial::Quintic, steps: 2, normaliser: Frobenius };
        vec![
            (newton(1, 1, Frobenius), 2, 2, vec![1.0, 0.6]),
            (newton(2, 2, Frobenius), 2, 3, vec![0.9, 0.5]),
            (newton(2, 2, Frobenius), 3, 2, vec![0.9, 0.5]),
            // Equal ones, zeros, three that differ.
            (newton(2, 2, Frobenius), 3, 3, vec![0.7, 0.7, 0.7]),
            (newton(1, 2, Frobenius), 3, 4, vec![0.8, 0.8, 0.0]),
            (newton(1, 2, Frobenius), 3, 3, vec![1.3, 0.8, 0.4]),
            (newton(1, 2, Frobenius), 4, 4, vec![1.0, 0.5, 0.5, 0.2]),
            (newton(2, 2, AtLeastOne), 2, 3, vec![0.6, 0.3]),
            (newton(2, 2, AtLeastOne), 2, 3, vec![2.6, 1.3]),
            (quintic, 2, 3, vec![0.9, 0.4]),
        ]
    }

    /// Both Laplacians against central differences of Q itself, and off the diagonal nothing.
    #[test]
    fn laplacians_are_those_of_the_map() {
        for (iteration, rows, cols, values) in cases() {
            let given: Vec<(f64, usize)> = values.iter().map(|&value| (value, 1)).collect();
            let spectrum = Spectrum::new(rows, cols, &given).unwrap();
            let heat = HeatExpansion::new(&iteration, &spectrum).unwrap();
            let x = diagonal(rows, cols, &values);
            let map = |x: &Matrix| q(&iteration, x);
            let laplacian = |x: &Matrix| differences(&map, x, 4e-3);
            let expected = [map(&x), laplacian(&x), differences(&laplacian, &x, 2e-2)];
            let tolerances = [1e-12, 1e-6, 2e-3];
            let got = [heat.output(), heat.laplacian(), heat.bilaplacian()];
            for ((expected, got), tolerance) in expected.iter().zip(got).zip(tolerances) {
                let size = expected.2.iter().fold(1.0f64, |most, x| most.max(x.abs()));
                for (k, entry) in expected.2.iter().enumerate() {
                    let (i, j) = (k / cols, k % cols);
                    let value = if i == j {
                        let at = spectrum.values().iter().position(|(s, _)| *s == values[i]);
                        got[at.unwrap()]
                    } else {
                        0.0
                    };
                    assert!(
                        (value - entry).abs() < tolerance * size,
                        "{iteration:?} {values:?} at {i}, {j}: {value}, by differences {entry}"
                    );
                }
            }
        }
    }

    /// Scaling: ΔQ falls with the square of a matrix's norm, Δ²Q with its fourth power.
    #[test]
    fn the_normalised_map_scales() {
        let at = |norm: f64| {
            let clean = Spectrum::flat(20, 30, 7, norm).unwrap();
            HeatExpansion::new(&Config::default(), &clean).unwrap()
        };
        let (small, large) = (at(0.5), at(2.0));
        for (s, l) in small.laplacian().iter().zip(large.laplacian()) {
            assert!(close(*s, 16.0 * l, 1e-9) || *s == 0.0);
        }
        assert!(close(small.remainder(1e-3).unwrap(), large.remainder(4e-3).unwrap(), 1e-9));
        assert!(close(small.next_bias(1e-3).unwrap(), 0.5 * small.remainder(1e-3).unwrap(), 1e-12));
    }

    #[test]
    fn kinks_are_refused() {
        let zero = Spectrum::new(3, 3, &[]).unwrap();
        let one = Spectrum::flat(3, 3, 1, 1.0).unwrap();
        let literal = Config { normaliser: Normaliser::AtLeastOne, ..Config::default() };
        assert!(HeatExpansion::new(&Config::default(), &zero).is_err());
        assert!(HeatExpansion::new(&literal, &one).is_err());
        assert!(HeatExpansion::new(&literal, &zero).is_ok());
        assert!(HeatExpansion::new(&Config::default(), &one).unwrap().leading_bias(-1.0).is_err());
    }
}
