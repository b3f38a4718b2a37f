//! Convolution powers of discrete distributions by FFT, with bounds on rounding and on the tail.

use super::discrete::Discrete;
use realfft::num_complex::Complex;
use realfft::{RealFftPlanner, RealToComplex};
use std::cell::RefCell;
use std::sync::Arc;

/// Error of the FFT in units of machine precision, per doubling of its length.
///
/// Higham (2002, Thm. 24.2) has about 3.5.
const FFT_ERROR: f64 = 4.0;

/// A circular convolution, accumulated as a product of spectra.
pub(crate) struct Convolution {
    forward: Arc<dyn RealToComplex<f64>>,
    line: Vec<f64>,
    scratch: Vec<Complex<f64>>,
    spectrum: Vec<Complex<f64>>,
    step: f64,
    theta: f64,
    /// The tilt of the Chernoff bound on the P-mass to the right.
    right: f64,
    /// ln of the product's moment at `right`, relative to the moment at `theta`.
    ln_right: f64,
    /// Number of releases in powers of 64 and more.
    long: f64,
    /// Number of releases in smaller powers, times the 2-norm of their distribution.
    short: f64,
    /// Sum of the errors of the factors.
    inherited: f64,
    /// Bound on the total mass of the product.
    growth: f64,
}

thread_local! {
    // Plans hold tables of sines; a calibration needs the same lengths repeatedly.
    static PLANNER: RefCell<RealFftPlanner<f64>> = RefCell::new(RealFftPlanner::new());
}

impl Convolution {
    /// The empty product on `size` knots, `step` apart, tilted by θ.
    ///
    /// `right` is the tilt of the Chernoff bound on the tail.
    pub(crate) fn new(size: usize, step: f64, theta: f64, right: f64) -> Self {
        let forward = PLANNER.with(|planner| planner.borrow_mut().plan_fft_forward(size));
        let scratch = forward.make_scratch_vec();
        Self {
            forward,
            line: vec![0.0; size],
            scratch,
            spectrum: Vec::new(),
            step,
            theta,
            right,
            ln_right: 0.0,
            long: 1.0,
            short: 0.0,
            inherited: 0.0,
            growth: 1.0,
        }
    }

    /// Multiplies by the `count`-th power of a distribution.
    ///
    /// `error` is a bound on the 2-norm of the error of its masses.
    pub(crate) fn multiply(&mut self, distribution: &Discrete, count: u64, error: f64) {
        let (size, n) = (self.line.len(), count as f64);
        self.line.fill(0.0);
        let mut at = distribution.first.rem_euclid(size as i64) as usize;
        for mass in &distribution.masses {
            self.line[at] += mass;
            at = if at + 1 == size { 0 } else { at + 1 };
        }
        self.ln_right += n * distribution.ln_moment((self.right - self.theta) * self.step);
        if count >= 64 {
            self.long += n
        } else {
            self.short += n * norm(&self.line)
        }
        self.inherited += n * error;
        self.growth *= sum(distribution.masses.iter().copied()).max(1.0).powf(n);
        let mut output = vec![Complex::default(); size / 2 + 1];
        transform(&*self.forward, &mut self.line, &mut output, &mut self.scratch);
        raise(&mut output, count);
        if self.spectrum.is_empty() {
            self.spectrum = output;
        } else {
            self.spectrum.iter_mut().zip(&output).for_each(|(s, z)| *s *= z);
        }
    }

    /// The masses of the product, a bound on their rounding error, and a bound on the tail.
    ///
    /// The masses are those from knot `first` to knot `end`, exclusive; the rounding error is in
    /// the 2-norm; the tail is the P-mass to their right, where `ln_mgf` is ln of the untilted
    /// distribution's moment at θ. `None` if a result is not finite.
    pub(crate) fn finish(
        mut self,
        first: i64,
        end: i64,
        ln_mgf: f64,
    ) -> Option<(Vec<f64>, f64, f64)> {
        let size = self.line.len();
        // The Hartley transform, Re − Im of the Fourier transform, is its own inverse: the same
        // plan serves both ways.
        hartley(&self.spectrum, &mut self.line);
        transform(&*self.forward, &mut self.line, &mut self.spectrum, &mut self.scratch);
        hartley(&self.spectrum, &mut self.line);
        let mut masses = self.line;
        masses.rotate_left(first.rem_euclid(size as i64) as usize);
        let scale = 1.0 / size as f64;
        masses.iter_mut().for_each(|m| *m *= scale);
        let total = sum(masses.iter().copied());
        masses.iter_mut().for_each(|m| *m = m.max(0.0));
        // Each term of a transform passes through log₂ n roundings, so an entry of the spectrum F
        // of masses that add up to 1 is off by at most `unit`, and all of them by `unit` times the
        // masses' 2-norm (both after scaling). F^n is then off by n·F^{n−1}·ΔF. For n ≥ 64, F^{n−1}
        // is at most 2F^n (or, where |F| < ½, nothing), so that the 2-norm of the result serves
        // instead of that of the factor.
        let unit = FFT_ERROR * f64::EPSILON * (size as f64).log2();
        let rounding = (unit * (self.long * (2.0 * norm(&masses) + 1e-15) + self.short)
            + self.inherited)
            * self.growth;
        // Chernoff: P(L ≥ l) ≤ E e^{tL}·e^{−tl}.
        masses.truncate(end.saturating_sub(first).clamp(0, size as i64) as usize);
        let edge = self.step * (first + masses.len() as i64) as f64;
        let beyond = (ln_mgf + self.ln_right - self.right * edge).exp();
        (total.is_finite() && rounding.is_finite() && beyond.is_finite())
            .then_some((masses, rounding, beyond))
    }
}

impl Discrete {
    /// ln Σ m_k e^{dk}, by Horner's rule from the far end so that nothing overflows.
    fn ln_moment(&self, d: f64) -> f64 {
        let (fade, last) = ((-d.abs()).exp(), self.masses.len() as i64 - 1);
        let horner = |sum: f64, mass: &f64| sum * fade + mass;
        let (sum, at) = if d >= 0.0 {
            (self.masses.iter().fold(0.0, horner), self.first + last)
        } else {
            (self.masses.iter().rev().fold(0.0, horner), self.first)
        };
        sum.ln() + d * at as f64
    }
}

fn transform(
    plan: &dyn RealToComplex<f64>,
    line: &mut [f64],
    output: &mut [Complex<f64>],
    scratch: &mut [Complex<f64>],
) {
    // The only error is a wrong buffer length, and ours come from the plan; NaN makes the result
    // unused.
    if plan.process_with_scratch(line, output, scratch).is_err() {
        output.fill(Complex::new(f64::NAN, f64::NAN));
    }
}

/// The Hartley transform of a real line whose Fourier transform has this first half.
fn hartley(half: &[Complex<f64>], line: &mut [f64]) {
    let Some((first, rest)) = half.split_first() else { return };
    line[0] = first.re - first.im;
    // The second half is the first one mirrored, with Im negated; both meet in the middle.
    let (up, down) = line[1..].split_at_mut(rest.len());
    up.iter_mut().zip(rest).for_each(|(x, z)| *x = z.re - z.im);
    down.iter_mut().rev().zip(rest).for_each(|(x, z)| *x = z.re + z.im);
}

/// Raises every entry to the n-th power; 0 where the power is negligible.
fn raise(spectrum: &mut [Complex<f64>], n: u64) {
    if n == 1 {
        return;
    }
    let least = (-100.0 / n as f64).exp();
    for z in spectrum {
        if z.norm_sqr() < least {
            *z = Complex::default();
            continue;
        }
        let (mut base, mut rest, mut power) = (*z, n, Complex::new(1.0, 0.0));
        while rest > 0 {
            if rest & 1 == 1 {
                power *= base;
            }
            base = base * base;
            rest >>= 1;
        }
        *z = power;
    }
}

fn norm(line: &[f64]) -> f64 {
    sum(line.iter().map(|m| m * m)).sqrt()
}

/// Sums in eight independent lanes, for instruction-level parallelism.
fn sum(values: impl Iterator<Item = f64>) -> f64 {
    let mut lanes = [0.0; 8];
    values.enumerate().for_each(|(i, x)| lanes[i % 8] += x);
    lanes.iter().sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Powers of a small distribution against convolution by hand, window and bounds included.
    #[test]
    fn powers_match_direct_convolution() {
        let distribution = Discrete { first: -1, masses: vec![0.25, 0.5, 0.25] };
        let mut by_hand = vec![1.0];
        for _ in 0..7 {
            let mut next = vec![0.0; by_hand.len() + 2];
            for (i, x) in by_hand.iter().enumerate() {
                (0..3).for_each(|j| next[i + j] += x * distribution.masses[j]);
            }
            by_hand = next;
        }
        let mut product = Convolution::new(32, 0.1, 0.0, 1.0);
        product.multiply(&distribution, 3, 0.0);
        product.multiply(&distribution, 4, 0.0);
        let (masses, rounding, beyond) = product.finish(-10, 22, 0.0).unwrap();
        let error = (0..15).map(|i| (masses[i + 3] - by_hand[i]).powi(2)).sum::<f64>().sqrt();
        assert!(error <= rounding && rounding < 1e-12, "{error} {rounding}");
        // E e^{L} with L ∈ {−0.1, 0, 0.1}, to the seventh, times e^{−end}.
        let moment = (0.25 * (-0.1_f64).exp() + 0.5 + 0.25 * 0.1_f64.exp()).powi(7);
        assert!((beyond - moment * (-2.2_f64).exp()).abs() < 1e-12, "{beyond}");
    }

    #[test]
    fn results_that_are_not_finite_are_none() {
        let mut product = Convolution::new(32, 0.1, 0.0, 1.0);
        product.multiply(&Discrete { first: 0, masses: vec![f64::NAN] }, 3, 0.0);
        assert!(product.finish(0, 32, 0.0).is_none());
    }
}
