//! Formulas of the DP-Muon paper (Kim and Fan 2026), evaluated for given shapes and settings.
//!
//! It is public arithmetic: no record is read and nothing is charged. `muffle theory` prints it.
//!
//! | to evaluate | look in |
//! |---|---|
//! | noise in the momentum, its norms (Lemma C.1) | [`PrivateMomentum`], [`momentum_noise`] |
//! | averaging by momentum: Γ_T (6), v_C (5) | [`mean_weight_norm`], [`gradient_noise`] |
//! | error of the direction: ε_q, χ_q (Lemma 3.3) | [`Iteration`], [`InitialError`] |
//! | distance of momentum and gradient (7) | [`Tracking`], [`tracking_noise`] |
//! | descent of a step (Lemma B.4) | [`Quality::descent`] |
//! | clipping residual (4) | [`GradientTail`] |
//! | stationarity (Theorem 3.4), schedules (10), (13) | [`Problem`], [`Horizon`] |
//! | bias by noise (§4), its correction (Theorem 4.1) | [`HeatExpansion`] |
//! | error of the probes (C.6), the bias itself | [`probe_error_bound`], [`simulate`] |
//!
//! Theorem 3.4 bounds (1/T) Σ_t E‖∇f(W_{t−1})‖_* for *one* matrix, moved by η times the
//! Newton–Schulz direction with p_κ, without weight decay, scaling by shape, bias correction or the
//! quintic polynomial. The sizes of its terms show which hyperparameter to change. Limits:
//!
//! - The paper takes δ_{0,T} for a constant. It is a property of the run.
//!   [`PrivateMomentum::initial_error`] bounds it with high probability, and at realistic settings
//!   χ_q is then so large that the theorem says nothing. [`Iteration::mean_quality`] has an error
//!   that may replace ε_q in Lemma B.4 and Theorem 3.4, and is small.
//! - The corollaries let T grow and hold σ fixed, so the privacy loss grows with T. For a fixed
//!   loss σ/B grows like √T/N while Γ_T ≥ 1/√T: the noise term does not vanish unless the number N
//!   of examples grows.
//! - The paper draws B examples independently. Poisson lots divided by their expected size B serve
//!   as well: same mean, same v_C.
//! - The heat expansion is asymptotic. Where the noise is not small beside the singular values of
//!   the clean momentum, it says nothing: [`HeatExpansion::is_usable`].
//! - The bound of C.6 with one pair of probes is as large as the output: [`probe_error_bound`].
//!
//! Invalid arguments are refused, and the refusal names the quantity.

mod clipping;
mod heat;
mod iteration;
mod laplacian;
mod momentum;
mod noise_spectrum;
mod private_momentum;
mod simulation;
mod spectrum;
mod stationarity;
mod tracking;

#[cfg(test)]
mod testing;

pub use clipping::GradientTail;
pub use heat::HeatExpansion;
pub use iteration::{InitialError, Iteration, Quality};
pub use momentum::{
    gradient_noise, mean_weight_norm, momentum_noise, momentum_noise_limit, weight_norm,
};
pub use noise_spectrum::noise_singular_values;
pub use private_momentum::PrivateMomentum;
pub use simulation::{SimulatedBias, probe_error_bound, simulate};
pub use spectrum::Spectrum;
pub use stationarity::{Horizon, Problem, Stationarity};
pub use tracking::{Tracking, tracking_noise};

use protocol::{Positive, Refused};
use std::fmt;

/// h = −½ ln β; infinite without momentum.
fn half_decay(momentum: f64) -> Result<f64, Refused> {
    if (0.0..1.0).contains(&momentum) {
        Ok(-0.5 * momentum.ln())
    } else {
        Err(refused("the momentum β", "a number in [0, 1)", momentum))
    }
}

fn positive(what: &'static str, value: f64) -> Result<f64, Refused> {
    Positive::new(what, value).map(Positive::get)
}

// Comparisons test for the valid case, so that NaN is refused.
fn not_negative(what: &str, value: f64) -> Result<f64, Refused> {
    if (0.0..f64::INFINITY).contains(&value) {
        Ok(value)
    } else {
        Err(refused(what, "a finite number of at least 0", value))
    }
}

fn in_unit(what: &str, value: f64) -> Result<f64, Refused> {
    if value > 0.0 && value < 1.0 {
        Ok(value)
    } else {
        Err(refused(what, "a number in (0, 1)", value))
    }
}

fn counted<N: PartialEq + From<u8> + fmt::Display>(what: &str, count: N) -> Result<N, Refused> {
    if count != N::from(0) { Ok(count) } else { Err(refused(what, "at least 1", count)) }
}

fn refused(what: &str, expected: &str, got: impl fmt::Display) -> Refused {
    Refused::Query(format!("{what}: {expected} expected, got {got}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::newton_schulz::Normaliser;
    use tensor::Array;

    fn problem() -> Problem {
        let quality =
            Iteration::new(2, 3).unwrap().quality(InitialError::from_delta(0.95).unwrap());
        Problem {
            rows: 6,
            cols: 4,
            descent: 2.0,
            smoothness: 3.0,
            lot: 64.0,
            noise_multiplier: 1.5,
            quality,
        }
    }

    const HORIZON: Horizon = Horizon { steps: 500, learning_rate: 0.01, momentum: 0.9, clip: 0.5 };

    #[test]
    fn invalid_arguments_are_refused() {
        let says = |result: Result<f64, Refused>, what: &str| match result {
            Err(Refused::Query(message)) => {
                assert!(message.starts_with(what), "{message}: not about {what}")
            }
            other => panic!("{what}: {other:?}"),
        };
        let bound = |problem: Problem, horizon: Horizon, tail| {
            problem.bound(&horizon, tail).map(|b| b.total())
        };
        let (p, good) = (problem(), GradientTail::SecondMoment(1.0));
        for bad in [-1.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            says(bound(Problem { descent: bad, ..p }, HORIZON, good), "the descent");
            says(bound(Problem { smoothness: bad, ..p }, HORIZON, good), "the smoothness");
            says(
                bound(Problem { noise_multiplier: bad, ..p }, HORIZON, good),
                "the noise multiplier",
            );
            says(bound(p, HORIZON, GradientTail::Excess(bad)), "the excess");
            says(momentum_noise(bad, 0.9, 3), "the noise");
            says(momentum_noise_limit(bad, 0.9), "the noise");
            says(InitialError::from_delta(bad).map(InitialError::delta), "δ");
        }
        for bad in [0.0, -1.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            says(bound(Problem { lot: bad, ..p }, HORIZON, good), "the lot");
            says(bound(p, Horizon { learning_rate: bad, ..HORIZON }, good), "the learning rate");
            says(bound(p, Horizon { clip: bad, ..HORIZON }, good), "the clip bound");
            says(bound(p, HORIZON, GradientTail::SecondMoment(bad)), "the root mean square G₂");
            says(bound(p, HORIZON, GradientTail::Light(bad)), "the tail scale K");
            says(Horizon::second_moment(10, bad, 1.0).map(|h| h.clip), "the constant η₀");
            says(Horizon::second_moment(10, 1.0, bad).map(|h| h.clip), "the constant C₀");
            says(Horizon::light_tail(10, bad, 1.0).map(|h| h.clip), "the constant η₀");
            says(Horizon::light_tail(10, 1.0, bad).map(|h| h.clip), "the tail scale K");
            says(
                InitialError::from_singular_value(bad).map(InitialError::delta),
                "the singular value",
            );
        }
        for bad in [-0.1, 1.0, 1.1, f64::NAN, f64::INFINITY] {
            says(bound(p, Horizon { momentum: bad, ..HORIZON }, good), "the momentum");
            says(weight_norm(bad, 3), "the momentum");
            says(momentum_noise_limit(1.0, bad), "the momentum");
            says(
                Iteration::with_error(2, InitialError::from_delta(0.5).unwrap(), bad)
                    .map(|i| i.steps() as f64),
                "the error",
            );
            says(Iteration::reaching(2, bad, 0.9).map(|i| i.steps() as f64), "the singular value");
            says(
                Iteration::reaching(2, 0.5, bad).map(|i| i.steps() as f64),
                "the singular value to reach",
            );
        }
        says(bound(Problem { rows: 0, ..p }, HORIZON, good), "the rows");
        says(bound(Problem { cols: 0, ..p }, HORIZON, good), "the columns");
        says(bound(p, Horizon { steps: 0, ..HORIZON }, good), "the steps");
        says(Horizon::light_tail(1, 1.0, 1.0).map(|h| h.clip), "the steps");
        says(momentum_noise(1.0, 0.9, 0), "the step");
        says(gradient_noise(1.0, 1.0, 1.0, 0), "the entries");
        says(good.residual(0, 1.0), "the rank");
        says(Iteration::new(0, 3).map(|i| i.steps() as f64), "the degree");
        says(
            Iteration::with_error(0, InitialError::from_delta(0.5).unwrap(), 0.5)
                .map(|i| i.steps() as f64),
            "the degree",
        );
        // No number of steps is enough where nothing is known.
        let hopeless = InitialError::from_delta(1.0).unwrap();
        says(Iteration::with_error(2, hopeless, 0.5).map(|i| i.steps() as f64), "δ");
        says(
            bound(
                Problem { quality: Iteration::new(2, 9).unwrap().quality(hopeless), ..p },
                HORIZON,
                good,
            ),
            "the error",
        );
        for bad in [f32::NAN, f32::INFINITY] {
            says(
                InitialError::of_momentum(
                    &Array::new([1, 2], vec![1.0, bad]).unwrap(),
                    Normaliser::Frobenius,
                )
                .map(InitialError::delta),
                "the momentum",
            );
        }
    }
}
