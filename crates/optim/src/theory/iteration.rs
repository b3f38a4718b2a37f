//! Quality of the Newton–Schulz direction: Lemma 3.3, equation (3).

use super::{counted, in_unit, refused};
use crate::newton_schulz::Normaliser;
use protocol::Refused;
use tensor::{Array, linalg};

/// The error δ_{t,0} = ‖Π − Y Yᵀ‖_op before the first Newton–Schulz step (Lemma 3.3).
///
/// Y = 𝒯(M)/α is the normalised momentum and Π the projector onto its range. Y Yᵀ has the
/// eigenvalues s² there, so 1 − δ is the square of the smallest singular value s > 0 of Y. That is
/// stored, because near δ = 1 it has more digits. Transposing changes nothing.
///
/// ```
/// let start = optim::theory::InitialError::from_singular_value(0.5)?;
/// assert_eq!(start.delta(), 0.75);
/// # Ok::<(), protocol::Refused>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct InitialError {
    /// 1 − δ, in [0, 1].
    gap: f64,
}

impl InitialError {
    /// Computes δ of a momentum matrix, to the accuracy of f32; δ = 0 for the zero matrix.
    ///
    /// A singular value of at most 2⁻²⁴‖M‖_F may be rounding of the elements and counts as 0.
    pub fn of_momentum(momentum: &Array, normaliser: Normaliser) -> Result<Self, Refused> {
        if !momentum.data().iter().all(|x| x.is_finite()) {
            return Err(Refused::Query("the momentum: expected finite elements".into()));
        }
        let norm = momentum.data().iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt();
        let alpha = match normaliser {
            Normaliser::Frobenius => norm,
            Normaliser::AtLeastOne => norm.max(1.0),
        };
        let (_, values, _) = linalg::svd(momentum)?;
        let rounding = 0.5 * f64::from(f32::EPSILON) * norm;
        let smallest = values.into_iter().map(f64::from).rfind(|&s| s > rounding);
        Ok(Self { gap: smallest.map_or(1.0, |s| (s / alpha).min(1.0).powi(2)) })
    }

    /// From the smallest singular value s > 0 of the normalised momentum: δ = 1 − s².
    pub fn from_singular_value(s: f64) -> Result<Self, Refused> {
        if s > 0.0 && s <= 1.0 {
            Ok(Self { gap: s * s })
        } else {
            Err(refused("the singular value", "a number in (0, 1]", s))
        }
    }

    /// From δ itself.
    pub fn from_delta(delta: f64) -> Result<Self, Refused> {
        if (0.0..=1.0).contains(&delta) {
            Ok(Self { gap: 1.0 - delta })
        } else {
            Err(refused("δ", "a number in [0, 1]", delta))
        }
    }

    /// From 1 − δ.
    pub fn from_gap(gap: f64) -> Result<Self, Refused> {
        if (0.0..=1.0).contains(&gap) {
            Ok(Self { gap })
        } else {
            Err(refused("1 − δ", "a number in [0, 1]", gap))
        }
    }

    /// δ
    pub fn delta(self) -> f64 {
        1.0 - self.gap
    }

    /// 1 − δ, with all its digits.
    pub fn gap(self) -> f64 {
        self.gap
    }

    /// The larger error of two steps; δ_{0,T} is the largest of all.
    #[must_use]
    pub fn worst(self, other: Self) -> Self {
        Self { gap: self.gap.min(other.gap) }
    }
}

/// q Newton–Schulz steps with p_κ(λ) = Σ_{s ≤ κ} c_s (1−λ)^s, c_s = (2s)!/(4^s s!²).
///
/// ```
/// let twice = optim::theory::Iteration::new(1, 2)?;
/// assert_eq!(twice.singular_value(1.0), 1.0);
/// assert!(twice.singular_value(0.5) > 0.85);
/// # Ok::<(), protocol::Refused>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Iteration {
    degree: usize,
    steps: usize,
}

impl Iteration {
    /// Makes `steps` steps with the polynomial of this degree, at least 1.
    pub fn new(degree: usize, steps: usize) -> Result<Self, Refused> {
        Ok(Self { degree: counted("the degree", degree)?, steps })
    }

    /// The fewest steps for which Lemma 3.3 promises ε_q ≤ `error`, a number in (0, 1).
    ///
    /// From δ = 1 no number of steps is enough.
    pub fn with_error(degree: usize, start: InitialError, error: f64) -> Result<Self, Refused> {
        in_unit("the error ε", error)?;
        let degree = counted("the degree", degree)?;
        // After 1100 steps (κ+1)^q is larger than −1/ln δ for every δ < 1 there is.
        let mut tried = (0..1100).map(|steps| Self { degree, steps });
        tried
            .find(|iteration| iteration.quality(start).epsilon <= error)
            .ok_or_else(|| refused("δ", "a number below 1", start.delta()))
    }

    /// The fewest steps that take the singular value `from` to `to`, both in (0, 1).
    ///
    /// Lemma 3.3 asks for more, because it does not use how fast small values grow. A goal so near
    /// 1 that rounding hides it is refused.
    pub fn reaching(degree: usize, from: f64, to: f64) -> Result<Self, Refused> {
        in_unit("the singular value", from)?;
        in_unit("the singular value to reach", to)?;
        let once = Self::new(degree, 1)?;
        let steps = once.path(from).position(|s| s >= to);
        Ok(Self {
            steps: steps.ok_or_else(|| {
                refused("the singular value to reach", "less in double precision", to)
            })?,
            ..once
        })
    }

    /// q
    pub fn steps(self) -> usize {
        self.steps
    }

    /// Applies the steps to a singular value in [0, 1].
    ///
    /// The result is in [0, 1], and the map is monotone: d/ds s p_κ(s²) is a multiple of (1−s²)^κ.
    pub fn singular_value(self, s: f64) -> f64 {
        self.path(s).take(self.steps.saturating_add(1)).last().unwrap_or(s)
    }

    /// The bound of Lemma 3.3: ε_q = 1 − √(1 − δ^{(κ+1)^q}).
    pub fn quality(self, start: InitialError) -> Quality {
        if !(start.gap > 0.0) {
            return Quality { epsilon: 1.0, chi: f64::INFINITY };
        }
        let exponent = (self.degree as f64 + 1.0).powf(self.steps as f64);
        let ln = exponent * (-start.gap).ln_1p();
        // 1 − √(1−x) = x/(1 + √(1−x)): nothing cancels for small x, and 1 − x has its digits for x
        // near 1.
        let root = (-ln.exp_m1()).sqrt();
        Quality { epsilon: ln.exp() / (1.0 + root), chi: 1.0 / root }
    }

    /// The exact error ‖O − Polar(M)‖_op = 1 − s, with s the image of the smallest singular value.
    ///
    /// It is never above [`quality`](Self::quality) and may replace it in Theorem 3.4, which needs
    /// of ε_q only that it bounds this norm.
    pub fn exact_quality(self, start: InitialError) -> Quality {
        let s = self.singular_value(start.gap.sqrt());
        Quality { epsilon: 1.0 - s, chi: 1.0 / s }
    }

    /// A singular value before the first step, after it, and so on, until rounding stops it.
    fn path(self, s: f64) -> impl Iterator<Item = f64> {
        let step = move |&s: &f64| {
            let (h, mut term, mut p) = ((1.0 - s) * (1.0 + s), 1.0, 1.0);
            for k in 1..=self.degree {
                term *= h * (2 * k - 1) as f64 / (2 * k) as f64;
                p += term;
            }
            Some((s * p).min(1.0)).filter(|&next| next > s)
        };
        std::iter::successors(Some(s), step)
    }
}

/// Error of a direction O: ε_q ≥ ‖O − Polar(M)‖_op, and χ_q = 1/(1 − ε_q).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Quality {
    pub(super) epsilon: f64,
    pub(super) chi: f64,
}

impl Quality {
    /// ε_q
    pub fn epsilon(self) -> f64 {
        self.epsilon
    }

    /// χ_q, infinite if ε_q = 1.
    pub fn chi(self) -> f64 {
        self.chi
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Matrix, close, coefficient, normals};
    use super::*;

    #[test]
    fn one_step_contracts() {
        for degree in 1..=4 {
            let once = Iteration::new(degree, 1).unwrap();
            let mut before = -1.0;
            for i in 0..=10_000 {
                let s = f64::from(i) * 1e-4;
                let after = once.singular_value(s);
                let p: f64 = (0..=degree as u32)
                    .map(|k| coefficient(k) * (1.0 - s * s).powi(k as i32))
                    .sum();
                assert!((after - s * p).abs() < 1e-14, "κ = {degree}, s = {s}: {after}");
                assert!((0.0..=1.0).contains(&after));
                assert!(
                    1.0 - after * after <= (1.0 - s * s).powi(degree as i32 + 1) + 1e-14,
                    "κ = {degree}, s = {s}"
                );
                assert!(after >= before - 1e-15, "κ = {degree}: the order changed at {s}");
                before = after;
            }
        }
    }

    #[test]
    fn steps_to_nine_tenths() {
        let table = [[3, 7, 10, 13, 18, 24], [2, 5, 7, 8, 12, 16], [2, 4, 5, 7, 10, 13]];
        for (degree, row) in (1..).zip(table) {
            for (s, steps) in [0.5, 0.1, 0.03, 0.01, 1e-3, 1e-4].into_iter().zip(row) {
                assert_eq!(
                    Iteration::reaching(degree, s, 0.9).unwrap().steps(),
                    steps,
                    "κ = {degree}, s = {s}"
                );
                // The lemma knows no better.
                assert!(
                    Iteration::with_error(
                        degree,
                        InitialError::from_singular_value(s).unwrap(),
                        0.1
                    )
                    .unwrap()
                    .steps()
                        >= steps
                );
            }
        }
        assert_eq!(Iteration::reaching(2, 0.95, 0.9).unwrap().steps(), 0);
        // 1.5·0.5 − 0.5·0.5³ = 0.6875, just reached.
        assert_eq!(Iteration::reaching(1, 0.5, 0.6875).unwrap().steps(), 1);
        assert_eq!(Iteration::reaching(1, 0.5, 0.6876).unwrap().steps(), 2);
    }

    #[test]
    fn the_lemma_holds_for_matrices() {
        let random = |seed, m: usize, n: usize, scale: f32| {
            Array::new([m, n], normals(seed, m * n).iter().map(|x| scale * x).collect()).unwrap()
        };
        // Rank 2, in whole numbers.
        let low = Array::from_fn([5, 7], |at| {
            ((at / 7 + 1) * (at % 7 + 2)) as f32 - ((at / 7 % 2) * (at % 7 % 3)) as f32
        });
        let wanted = [
            random(1, 4, 6, 1.0),
            random(2, 7, 4, 1.0),
            random(3, 3, 8, 0.02),
            random(4, 1, 5, 0.3),
            random(5, 5, 5, 1.0),
            low,
        ];
        for m in wanted {
            for normaliser in [Normaliser::Frobenius, Normaliser::AtLeastOne] {
                let start = InitialError::of_momentum(&m, normaliser).unwrap();
                let norm = m.data().iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt();
                let alpha = if normaliser == Normaliser::Frobenius { norm } else { norm.max(1.0) };
                let y = Matrix(
                    m.rows(),
                    m.cols(),
                    m.data().iter().map(|&x| f64::from(x) / alpha).collect(),
                );
                let y = if m.rows() > m.cols() { y.transposed() } else { y };
                // Far enough to converge, not so far that rounding grows in the empty directions.
                let polar = y.newton_schulz(3, 14);
                // The projector from the polar factor: δ by its definition.
                let projector = polar.times(&polar.transposed());
                let delta = projector.plus(-1.0, &y.times(&y.transposed())).operator_norm();
                assert!(
                    (start.delta() - delta).abs() < 1e-6,
                    "δ = {}, by its definition {delta}",
                    start.delta()
                );
                for degree in 1..=3 {
                    for steps in 0..=6 {
                        let error =
                            y.newton_schulz(degree, steps).plus(-1.0, &polar).operator_norm();
                        let iteration = Iteration::new(degree as usize, steps).unwrap();
                        let (bound, exact) =
                            (iteration.quality(start), iteration.exact_quality(start));
                        assert!(
                            error <= bound.epsilon() + 1e-6,
                            "κ = {degree}, q = {steps}: {error} > {}",
                            bound.epsilon()
                        );
                        assert!(
                            (error - exact.epsilon()).abs() < 1e-5,
                            "κ = {degree}, q = {steps}: {error}, not {}",
                            exact.epsilon()
                        );
                        assert!(exact.epsilon() <= bound.epsilon() + 1e-14);
                        assert!(exact.chi() <= bound.chi() * (1.0 + 1e-14));
                        assert!(
                            steps > 0 || (error - bound.epsilon()).abs() < 1e-6,
                            "without steps the lemma is an equation"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn starts() {
        let delta = |shape: [usize; 2], data: &[f32], normaliser| {
            InitialError::of_momentum(&Array::new(shape, data.to_vec()).unwrap(), normaliser)
                .unwrap()
                .delta()
        };
        for normaliser in [Normaliser::Frobenius, Normaliser::AtLeastOne] {
            assert_eq!(delta([2, 3], &[0.0; 6], normaliser), 0.0);
            assert_eq!(delta([0, 3], &[], normaliser), 0.0);
            // One singular value, equal to the norm.
            assert!(delta([1, 2], &[3.0, 4.0], normaliser) < 1e-6);
            assert!(close(
                delta([2, 2], &[3.0, 0.0, 0.0, 4.0], normaliser),
                1.0 - 9.0 / 25.0,
                1e-6
            ));
        }
        assert!(close(delta([1, 1], &[0.5], Normaliser::AtLeastOne), 0.75, 1e-6));
        assert_eq!(delta([1, 1], &[0.5], Normaliser::Frobenius), 0.0);
        // Rank 1 up to rounding.
        let (u, v) = (normals(6, 20), normals(7, 30));
        let outer = Array::from_fn([20, 30], |at| u[at / 30] * v[at % 30]);
        assert!(InitialError::of_momentum(&outer, Normaliser::Frobenius).unwrap().delta() < 1e-6);
        let [good, bad] = [0.1, 0.9].map(|delta| InitialError::from_delta(delta).unwrap());
        assert_eq!([good.worst(bad), bad.worst(good)], [bad; 2]);
    }

    #[test]
    fn quality_keeps_its_digits() {
        let quality = |degree, steps, start| Iteration::new(degree, steps).unwrap().quality(start);
        let delta = |delta| InitialError::from_delta(delta).unwrap();
        for d in [0.1, 0.5, 0.9] {
            for (degree, steps) in [(1, 0), (1, 2), (2, 1), (3, 1)] {
                let got = quality(degree, steps, delta(d));
                let epsilon = 1.0 - (1.0 - d.powi((degree as i32 + 1).pow(steps as u32))).sqrt();
                assert!((got.epsilon() - epsilon).abs() < 1e-15, "{} {epsilon}", got.epsilon());
                assert!(close(got.chi(), 1.0 / (1.0 - epsilon), 1e-14));
            }
        }
        // δ^N = 1e-24: ε = δ^N/2, and 1 − √(1 − δ^N) would be 0.
        assert!(close(quality(1, 3, delta(1e-3)).epsilon(), 0.5e-24, 1e-12));
        // 1 − δ = 1e-18: 1 − δ^N = 243e-18, and δ itself would be 1.
        let near = InitialError::from_singular_value(1e-9).unwrap();
        assert_eq!(near.delta(), 1.0);
        assert!(close(near.gap(), 1e-18, 1e-15));
        assert!(close(quality(2, 5, near).chi(), (243e-18f64).sqrt().recip(), 1e-12));
        let perfect = Quality { epsilon: 0.0, chi: 1.0 };
        for q in [
            quality(1, 40, delta(0.5)),
            quality(7, usize::MAX, near),
            quality(1, 0, delta(0.0)),
            quality(3, usize::MAX, delta(0.0)),
        ] {
            assert_eq!(q, perfect);
        }
        for steps in [0, 5, usize::MAX] {
            assert_eq!(quality(2, steps, delta(1.0)), Quality { epsilon: 1.0, chi: f64::INFINITY });
        }
        assert_eq!(Iteration::new(2, usize::MAX).unwrap().exact_quality(near), perfect);
    }

    #[test]
    fn as_few_steps_as_promised() {
        for degree in 1..=4 {
            for gap in [0.9, 0.3, 1e-2, 1e-6, 1e-18, 1e-300] {
                let start = InitialError { gap };
                let mut before = 0;
                for error in [0.9, 0.5, 1e-3, 1e-12] {
                    let found = Iteration::with_error(degree, start, error).unwrap();
                    assert!(found.quality(start).epsilon() <= error);
                    assert!(
                        found.steps() == 0
                            || Iteration::new(degree, found.steps() - 1)
                                .unwrap()
                                .quality(start)
                                .epsilon()
                                > error
                    );
                    assert!(found.steps() >= before);
                    before = found.steps();
                }
            }
        }
    }
}
