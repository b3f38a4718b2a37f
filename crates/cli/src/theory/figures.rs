//! The figures of `muffle theory`, matrix by matrix.

use super::{Settings, Theory};
use crate::error::Error;
use crate::output::Number;
use muffle::noise::PublicRandom;
use muffle::optim::newton_schulz::{Normaliser, Polynomial};
use muffle::optim::theory::{
    GradientTail, HeatExpansion, Horizon, Iteration, Problem, Quality, SimulatedBias, Spectrum,
    mean_weight_norm, noise_singular_values, probe_error_bound, simulate, tracking_noise,
};
use serde::Serialize;

/// The probability with which the bound on δ of Lemma 3.3 may fail.
pub(super) const FAILURE_PROBABILITY: f64 = 0.01;

/// The output of `--json`.
#[derive(Serialize)]
pub(super) struct Output {
    pub(super) noise_multiplier: f64,
    pub(super) clip: f64,
    pub(super) lot_size: f64,
    pub(super) steps: u64,
    pub(super) momentum: f64,
    pub(super) newton_schulz_steps: usize,
    pub(super) newton_schulz_degree: Polynomial,
    pub(super) normaliser: Normaliser,
    pub(super) probes: usize,
    pub(super) gradient_noise_std: f64,
    pub(super) signal_norm: f64,
    pub(super) matrices: Vec<Matrix>,
    pub(super) notes: Vec<String>,
}

/// The figures of one shape.
#[derive(Serialize)]
pub(super) struct Matrix {
    pub(super) rows: usize,
    pub(super) cols: usize,
    pub(super) count: usize,
    pub(super) noise: Vec<MomentumNoise>,
    pub(super) tracking: TrackingFigures,
    pub(super) bias: Vec<Bias>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) stationarity: Option<Terms>,
}

/// Noise in the momentum after a step (Lemma C.1).
#[derive(Serialize)]
pub(super) struct MomentumNoise {
    pub(super) step: u64,
    pub(super) std: f64,
    pub(super) spectral: f64,
    pub(super) frobenius: f64,
    pub(super) frobenius_over_clip: f64,
}

/// Figures of equation (7), Lemma 3.3 and Lemma B.4.
///
/// Gradients are in units of √r C, the largest nuclear norm of a clipped mean.
#[derive(Serialize)]
pub(super) struct TrackingFigures {
    pub(super) gamma: f64,
    pub(super) noise: f64,
    pub(super) noise_over_signal: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) worst_chi: Option<Number>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) least_gradient_worst: Option<Number>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) noise_mean_error: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) least_gradient_mean: Option<Number>,
}

/// Bias of the direction after the last step, as fractions of the norm of the clean direction.
#[derive(Serialize)]
pub(super) struct Bias {
    pub(super) rank: usize,
    pub(super) output: f64,
    pub(super) leading: f64,
    pub(super) next: f64,
    pub(super) corrected: f64,
    pub(super) usable: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) probe_error_bound: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) simulated: Option<Simulated>,
}

/// A simulation of the bias.
#[derive(Serialize)]
pub(super) struct Simulated {
    pub(super) bias: f64,
    pub(super) bias_error: Number,
    pub(super) corrected: f64,
    pub(super) corrected_error: Number,
    pub(super) probe_error: f64,
}

/// The terms of Theorem 3.4, with the mean error of noise.
#[derive(Serialize)]
pub(super) struct Terms {
    pub(super) optimization: f64,
    pub(super) curvature: f64,
    pub(super) clipping: Number,
    pub(super) noise: f64,
    pub(super) drift: f64,
    pub(super) bound: Number,
    #[serde(skip)]
    pub(super) text: String,
}

impl Theory {
    /// The figures of one shape.
    pub(super) fn matrix(
        &self,
        settings: &Settings,
        rows: usize,
        cols: usize,
        count: usize,
    ) -> Result<Matrix, Error> {
        let momentum = settings.momentum_of(rows, cols);
        let horizon = (1.0 / (1.0 - settings.momentum)).ceil();
        let mut steps = vec![1, horizon.clamp(1.0, 1e15) as u64, settings.steps];
        steps.retain(|step| *step <= settings.steps.max(1));
        steps.dedup();
        let mut noise = Vec::new();
        for step in steps {
            let frobenius = momentum.frobenius(step)?;
            noise.push(MomentumNoise {
                step,
                std: momentum.std(step)?,
                spectral: momentum.spectral(step)?,
                frobenius,
                frobenius_over_clip: frobenius / settings.clip,
            });
        }
        let noise_spectrum = noise_singular_values(rows, cols)?;
        let iteration = match settings.iteration.polynomial {
            Polynomial::Newton { degree } => {
                Some(Iteration::new(degree, settings.iteration.steps)?)
            }
            // Lemma 3.3 holds for the polynomials p_κ only.
            Polynomial::Quintic => None,
        };
        let initial_error = momentum.initial_error(
            settings.steps,
            FAILURE_PROBABILITY,
            settings.iteration.normaliser,
        )?;
        let worst = iteration.map(|iteration| iteration.quality(initial_error));
        let mean = iteration.map(|iteration| iteration.mean_quality(&noise_spectrum));
        let shape = (rows, cols);
        let release = (settings.clip, settings.lot, settings.noise_multiplier);
        let tracking_error = tracking_noise(shape, release, settings.momentum, settings.steps)?;
        let max_nuclear_norm = (rows.min(cols) as f64).sqrt() * settings.clip;
        let least_gradient = |quality: Option<Quality>| -> Result<Option<Number>, Error> {
            let Some(quality) = quality else { return Ok(None) };
            Ok(Some((quality.least_gradient(tracking_error)? / max_nuclear_norm).into()))
        };
        let tracking = TrackingFigures {
            gamma: mean_weight_norm(settings.momentum, settings.steps)?,
            noise: tracking_error,
            noise_over_signal: tracking_error / max_nuclear_norm,
            worst_chi: worst.map(|quality| quality.chi().into()),
            least_gradient_worst: least_gradient(worst)?,
            noise_mean_error: mean.map(Quality::epsilon),
            least_gradient_mean: least_gradient(mean)?,
        };
        let full_rank = rows.min(cols);
        let mut ranks: Vec<usize> = if self.assumed.rank.is_empty() {
            vec![1, (full_rank as f64).sqrt().round() as usize, full_rank]
        } else {
            self.assumed.rank.iter().map(|&rank| (rank as usize).min(full_rank)).collect()
        };
        ranks.dedup();
        let bias = ranks
            .into_iter()
            .map(|rank| self.bias(settings, shape, rank))
            .collect::<Result<Vec<_>, Error>>()?;
        let stationarity = self.stationarity(settings, shape, mean)?;
        Ok(Matrix { rows, cols, count, noise, tracking, bias, stationarity })
    }

    /// The bias at the last step, at the scale of the momentum buffer.
    fn bias(
        &self,
        settings: &Settings,
        (rows, cols): (usize, usize),
        rank: usize,
    ) -> Result<Bias, Error> {
        let momentum = settings.momentum_of(rows, cols);
        let scale = momentum.scale(settings.steps)?;
        let signal = self.assumed.signal * settings.clip * scale;
        let noise = momentum.std(settings.steps)? * scale;
        let clean = Spectrum::flat(rows, cols, rank, signal)?;
        let heat = HeatExpansion::new(&settings.iteration, &clean)?;
        let output_norm = heat.output_norm();
        let samples = usize::try_from(self.samples)
            .map_err(|_| Error::usage("--samples: too large for this machine"))?;
        let simulated = if samples > 0 {
            let random = PublicRandom::new("theory", 0);
            Some(simulate(&settings.iteration, &clean, noise, samples, &random)?)
        } else {
            None
        };
        let relative = |result: SimulatedBias| Simulated {
            bias: result.bias / result.output,
            bias_error: (result.bias_error / result.output).into(),
            corrected: result.corrected / result.output,
            corrected_error: (result.corrected_error / result.output).into(),
            probe_error: result.probe_error
                / (settings.probes.max(1) as f64).sqrt()
                / result.output,
        };
        let probe_error_bound = if settings.probes > 0 {
            let polynomial = settings.iteration.polynomial;
            Some(probe_error_bound(polynomial, (rows, cols), settings.probes)? / output_norm)
        } else {
            None
        };
        Ok(Bias {
            rank,
            output: heat.output().last().copied().unwrap_or(0.0),
            leading: heat.leading_bias(noise)? / output_norm,
            next: heat.next_bias(noise)? / output_norm,
            corrected: heat.remainder(noise)? / output_norm,
            usable: heat.is_usable(noise),
            probe_error_bound,
            simulated: simulated.map(relative),
        })
    }

    /// Computes Theorem 3.4; `None` without the assumptions that it needs.
    fn stationarity(
        &self,
        settings: &Settings,
        (rows, cols): (usize, usize),
        quality: Option<Quality>,
    ) -> Result<Option<Terms>, Error> {
        let assumed = &self.assumed;
        let (Some(learning_rate), Some(smoothness), Some(descent), Some(norm), Some(quality)) = (
            assumed.learning_rate,
            assumed.smoothness,
            assumed.descent,
            assumed.gradient_norm,
            quality,
        ) else {
            return Ok(None);
        };
        let problem = Problem {
            rows,
            cols,
            descent,
            smoothness,
            lot: settings.lot,
            noise_multiplier: settings.noise_multiplier,
            quality,
        };
        let horizon = Horizon {
            steps: settings.steps,
            learning_rate,
            momentum: settings.momentum,
            clip: settings.clip,
        };
        let bound = problem.bound(&horizon, GradientTail::SecondMoment(norm))?;
        Ok(Some(Terms {
            optimization: bound.optimization,
            curvature: bound.curvature,
            clipping: bound.tracking.clipping.into(),
            noise: bound.tracking.noise,
            drift: bound.tracking.drift,
            bound: bound.total().into(),
            text: bound.to_string(),
        }))
    }
}
