//! Noise that momentum averages: weights (6), (8), Lemma C.1, and v_C (5).

use super::{counted, half_decay, not_negative, positive};
use protocol::Refused;
use std::f64::consts::LN_2;

/// (Σ_j w_{t,j}²)^{1/2}: the share of one step's noise that averaging leaves after t steps.
///
/// The weights are w_{t,j} ∝ β^{t−j} (Lemma B.5). The sum is (1−β)/(1+β) · (1+β^t)/(1−β^t) =
/// tanh(h)/tanh(ht) with h = −½ ln β, which has all its digits for β near 1 and near 0.
pub fn weight_norm(momentum: f64, step: u64) -> Result<f64, Refused> {
    let h = half_decay(momentum)?;
    Ok((h.tanh() / (h * counted("the step", step)? as f64).tanh()).sqrt())
}

/// Γ_T(β), the mean of [`weight_norm`] over the steps 1 to T (6).
///
/// It is at most 1/(T√(1−β)) + 2√(1−β), which gives (8) its constants. The first terms are summed.
/// For the others Euler–Maclaurin is exact in double precision, as ∫ √coth has a closed form.
pub fn mean_weight_norm(momentum: f64, steps: u64) -> Result<f64, Refused> {
    const SUMMED: u64 = 1024;
    // From here on tanh(h) = 1; an infinite h would only bring ∞ − ∞.
    let h = half_decay(momentum)?.min(100.0);
    let count = counted("the steps", steps)? as f64;
    let height = |x: f64| x.tanh().sqrt().recip();
    let mut sum: f64 = (1..=steps.min(SUMMED)).map(|t| height(h * t as f64)).sum();
    if steps > SUMMED {
        // ∫ √coth = artanh y + arctan y with y = √tanh; the second form of artanh is for y near 1.
        let area = |x: f64| {
            let y = x.tanh().sqrt();
            let artanh = if x < 1.0 {
                y.atanh()
            } else {
                x + y.ln_1p() + 0.5 * ((-2.0 * x).exp().ln_1p() - LN_2)
            };
            artanh + y.atan()
        };
        let slope = |x: f64| 0.5 * (height(x).recip() - height(x).powi(3));
        let (from, to) = (h * (SUMMED as f64 + 0.5), h * (count + 0.5));
        sum += (area(to) - area(from)) / h - h * (slope(to) - slope(from)) / 24.0;
    }
    Ok(h.tanh().sqrt() * sum / count)
}

/// ρ_t: the standard deviation of the noise in each element of M_t/Σ_{j<t} β^j (Lemma C.1).
///
/// `noise` is ν = σC/B, that of one element of a released gradient.
pub fn momentum_noise(noise: f64, momentum: f64, step: u64) -> Result<f64, Refused> {
    Ok(not_negative("the noise", noise)? * weight_norm(momentum, step)?)
}

/// ρ_∞ = ν √((1−β)/(1+β)), the limit of [`momentum_noise`].
pub fn momentum_noise_limit(noise: f64, momentum: f64) -> Result<f64, Refused> {
    Ok(not_negative("the noise", noise)? * half_decay(momentum)?.tanh().sqrt())
}

/// v_C = C √(1/B + dσ²/B²): noise of a released gradient from sampling and from privacy (5).
///
/// It bounds the root mean square of the Frobenius norm for d elements.
pub fn gradient_noise(
    clip: f64,
    lot: f64,
    noise_multiplier: f64,
    entries: usize,
) -> Result<f64, Refused> {
    let (clip, lot) = (positive("the clip bound", clip)?, positive("the lot", lot)?);
    let privacy = not_negative("the noise multiplier", noise_multiplier)?
        * (counted("the entries", entries)? as f64).sqrt()
        / lot;
    Ok(clip * lot.sqrt().recip().hypot(privacy))
}

#[cfg(test)]
mod tests {
    use super::super::testing::{close, normals};
    use super::*;

    #[test]
    fn the_mean_weight_norm_is_the_double_sum() {
        let brute = |beta: f64, steps: u64| {
            let (mut sum, mut squares, mut total, mut lost) = (0.0, 0.0, 0.0, 0.0);
            for _ in 0..steps {
                // At each step every weight β^{t−j} gains a factor β, and a 1 comes in.
                (sum, squares) = (beta * sum + 1.0, beta * (beta * squares) + 1.0);
                // Kahan's sum: millions of roundings would be seen.
                let term = f64::sqrt(squares) / sum - lost;
                let next: f64 = total + term;
                (lost, total) = (next - total - term, next);
            }
            total / steps as f64
        };
        for beta in [
            0.0,
            1e-300,
            1e-3,
            0.3,
            0.5,
            0.9,
            0.95,
            0.999,
            1.0 - 1e-6,
            1.0 - 1e-12,
            1.0 - f64::EPSILON / 2.0,
        ] {
            for steps in [1, 2, 3, 10, 100, 400] {
                let weights =
                    |t: u64| (1..=t).map(|j| beta.powi((t - j) as i32)).collect::<Vec<_>>();
                let norm = |w: Vec<f64>| {
                    w.iter().map(|w| w * w).sum::<f64>().sqrt() / w.iter().sum::<f64>()
                };
                let double = (1..=steps).map(|t| norm(weights(t))).sum::<f64>() / steps as f64;
                assert!(
                    close(mean_weight_norm(beta, steps).unwrap(), double, 1e-12),
                    "β = {beta}, T = {steps}"
                );
                assert!(
                    close(weight_norm(beta, steps).unwrap(), norm(weights(steps)), 1e-12),
                    "β = {beta}, t = {steps}"
                );
            }
            for steps in [1023, 1024, 1025, 1100, 5000, 100_000, 3_000_000] {
                let (got, expected) = (mean_weight_norm(beta, steps).unwrap(), brute(beta, steps));
                assert!(close(got, expected, 2e-12), "β = {beta}, T = {steps}: {got} {expected}");
            }
            for steps in [1, 10, 1000, 1_000_000, 1 << 40, u64::MAX] {
                let (got, t, root) =
                    (mean_weight_norm(beta, steps).unwrap(), steps as f64, (1.0 - beta).sqrt());
                assert!(got <= 1.0 / (t * root) + 2.0 * root, "(8): β = {beta}, T = {steps}");
                assert!(
                    got >= 1.0 / t.sqrt() * (1.0 - 1e-14)
                        && got >= (root / (1.0 + beta).sqrt()) * (1.0 - 1e-14)
                );
            }
        }
        assert_eq!(mean_weight_norm(0.0, 5000).unwrap(), 1.0);
    }

    #[test]
    fn the_noise_of_the_momentum() {
        let (nu, beta) = (0.7, 0.9);
        let (mut variance, mut sum) = (0.0, 0.0);
        // 40 000 entries with noise of variance ν², through the recursion. Their mean square has a
        // relative standard deviation of √(2/40000) = 0.0071; 4.9 of them are exceeded once in a
        // million, five times here.
        let (entries, mut buffer) = (40_000, vec![0.0; 40_000]);
        for t in 1..=60u64 {
            variance = beta * beta * variance + nu * nu;
            sum = beta * sum + 1.0;
            let expected = variance / (sum * sum);
            let rho = momentum_noise(nu, beta, t).unwrap();
            assert!(close(rho * rho, expected, 1e-12), "t = {t}");
            buffer
                .iter_mut()
                .zip(normals(100 + t, entries))
                .for_each(|(m, z): (&mut f64, f32)| *m = beta * *m + nu * f64::from(z));
            if [1, 2, 5, 20, 60].contains(&t) {
                let square = buffer.iter().map(|m| (m / sum).powi(2)).sum::<f64>() / entries as f64;
                assert!(close(square, rho * rho, 4.9 * 0.0071), "t = {t}: {square}");
            }
            assert!(rho >= momentum_noise_limit(nu, beta).unwrap());
        }
        assert!(close(
            momentum_noise(nu, beta, 2000).unwrap(),
            momentum_noise_limit(nu, beta).unwrap(),
            1e-14
        ));
        assert!(close(momentum_noise_limit(nu, beta).unwrap(), nu * (0.1f64 / 1.9).sqrt(), 1e-12));
        for t in [1, 2, u64::MAX] {
            assert_eq!(momentum_noise(nu, 0.0, t).unwrap(), nu);
        }
    }

    #[test]
    fn the_noise_of_a_gradient() {
        // 0.1² (1/1024 + 35·4/1024²)
        assert!(close(
            gradient_noise(0.1, 1024.0, 2.0, 35).unwrap().powi(2),
            0.01 * (1.0 / 1024.0 + 140.0 / 1_048_576.0),
            1e-12
        ));
        assert!(close(gradient_noise(3.0, 4.0, 0.0, 35).unwrap(), 1.5, 1e-15));
    }
}
