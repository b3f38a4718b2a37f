//! `muffle theory`: formulas of the DP-Muon paper for given shapes and settings.

use super::error::Error;
use super::number::{count, real};
use super::output::{Number, print, print_json, short, table};
use clap::Args;
use muffle::config::Config;
use muffle::load::model::Circumstances;
use muffle::noise::PublicRandom;
use muffle::optim::newton_schulz::{self, Normaliser, Polynomial};
use muffle::optim::theory::{
    GradientTail, HeatExpansion, Horizon, Iteration, PrivateMomentum, Problem, Quality,
    SimulatedBias, Spectrum, mean_weight_norm, noise_singular_values, probe_error_bound, simulate,
    tracking_noise,
};
use muffle::optim::{Descent, GradientNoise, Method, Muon, Probes, muon};
use muffle::protocol::{Bound, Clipping, Trainable};
use muffle::{LoadedModel, Plan};
use serde::Serialize;
use std::path::PathBuf;

/// The probability with which the bound on δ of Lemma 3.3 may fail.
const FAILURE: f64 = 0.01;

/// What the DP-Muon paper proves, for your matrices: noise in the momentum, bias of the directions,
/// bounds on progress
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    muffle theory --shape 768x768 --shape 768x3072 --noise-multiplier 1 --clip 1 --lot-size 1024 \
    --steps 300\n  \
    muffle theory --shape 64x64 --noise-multiplier 1 --lot-size 256 --steps 100 --samples 20   \
    (simulates the bias, too)\n  \
    muffle theory --config RUN.toml --dataset-size 42043\n\n\
    Everything is computed from public numbers: no records are read and nothing is charged. Of \
    the data a configuration names, only its size is used, which --dataset-size gives.")]
pub(crate) struct Theory {
    /// Rows and columns of a matrix; may be given several times
    #[arg(long, value_name = "RxC", value_parser = shape, required_unless_present = "config")]
    shape: Vec<(usize, usize)>,
    /// A RUN.toml with dp-muon or dp-muon-bc: shapes and settings are taken from it
    #[arg(long, value_name = "RUN.toml", conflicts_with_all = ["shape", "settings"], requires = "dataset_size")]
    config: Option<PathBuf>,
    /// Number of records of the configuration's data set
    #[arg(long, value_name = "N", value_parser = count, requires = "config")]
    dataset_size: Option<u64>,
    #[command(flatten)]
    settings: SettingArgs,
    #[command(flatten)]
    assumed: Assumed,
    /// Also simulate the bias with so many noise matrices a row, 8 orthogonalizations each
    #[arg(long, value_name = "K", value_parser = count, default_value = "0")]
    samples: u64,
    /// One JSON object on standard output
    #[arg(long)]
    json: bool,
}

/// The settings of DP-Muon.
#[derive(Args)]
#[group(id = "settings", multiple = true)]
struct SettingArgs {
    /// Noise standard deviation divided by the clip bound, of each matrix
    #[arg(long, short = 's', value_name = "S", value_parser = real, required_unless_present = "config")]
    noise_multiplier: Option<f64>,
    /// The clip bound C of each matrix [default: 1]
    #[arg(long, value_name = "C", value_parser = real)]
    clip: Option<f64>,
    /// The expected number of records in a lot
    #[arg(long, short = 'b', value_name = "B", value_parser = real, required_unless_present = "config")]
    lot_size: Option<f64>,
    /// Steps
    #[arg(long, short = 't', value_name = "T", value_parser = count, required_unless_present = "config")]
    steps: Option<u64>,
    /// Momentum [default: 0.95]
    #[arg(long, value_name = "M", value_parser = real)]
    momentum: Option<f64>,
    /// Steps of the Newton–Schulz iteration [default: 5]
    #[arg(long, value_name = "Q", value_parser = count)]
    newton_schulz_steps: Option<u64>,
    /// Degree of its polynomial, or quintic [default: 2]
    #[arg(long, value_name = "K|quintic", value_parser = polynomial)]
    newton_schulz_degree: Option<Polynomial>,
    /// What the momentum is divided by: frobenius or max1 [default: frobenius]
    #[arg(long, value_name = "NAME", value_parser = normaliser)]
    normaliser: Option<Normaliser>,
    /// Pairs of probes of the bias correction [default: 1]
    #[arg(long, value_name = "J", value_parser = count)]
    probes: Option<u64>,
}

/// Assumptions about what is not public: the clean momentum and the loss.
#[derive(Args)]
struct Assumed {
    /// Frobenius norm of the momentum without noise, as a fraction of the clip bound
    #[arg(long, value_name = "X", value_parser = real, default_value = "1")]
    signal: f64,
    /// Its effective rank; may be given several times [default: 1, √r and r = min(rows, columns)]
    #[arg(long, value_name = "K", value_parser = count)]
    rank: Vec<u64>,
    /// Learning rate η; with the next three options, prints Theorem 3.4 term by term
    #[arg(long, value_name = "X", value_parser = real, requires_all = ["smoothness", "descent", "gradient_norm"])]
    learning_rate: Option<f64>,
    /// L of Assumption 3.1
    #[arg(long, value_name = "L", value_parser = real, requires = "learning_rate")]
    smoothness: Option<f64>,
    /// D₀: how far the loss can fall
    #[arg(long, value_name = "D", value_parser = real, requires = "learning_rate")]
    descent: Option<f64>,
    /// G₂: root mean square of the norms of one example's gradient
    #[arg(long, value_name = "G", value_parser = real, requires = "learning_rate")]
    gradient_norm: Option<f64>,
}

/// A shape as `768x3072`.
fn shape(text: &str) -> Result<(usize, usize), String> {
    let side = |part: &str| part.trim().parse::<usize>().ok().filter(|side| *side > 0);
    text.split_once(['x', '×'])
        .and_then(|(rows, cols)| Some((side(rows)?, side(cols)?)))
        .ok_or_else(|| format!("expected rows and columns, like 768x3072; got '{text}'"))
}

fn polynomial(text: &str) -> Result<Polynomial, String> {
    match (text, text.parse::<usize>()) {
        ("quintic", _) => Ok(Polynomial::Quintic),
        (_, Ok(degree)) if (1..=50).contains(&degree) => Ok(Polynomial::Newton { degree }),
        _ => Err(format!("expected a degree from 1 to 50 or quintic; got '{text}'")),
    }
}

fn normaliser(text: &str) -> Result<Normaliser, String> {
    match text {
        "frobenius" => Ok(Normaliser::Frobenius),
        "max1" => Ok(Normaliser::AtLeastOne),
        _ => Err(format!("expected frobenius or max1; got '{text}'")),
    }
}

/// The matrices and the settings they share.
struct Settings {
    /// Rows, columns, and the number of matrices of this shape.
    shapes: Vec<(usize, usize, usize)>,
    noise_multiplier: f64,
    clip: f64,
    lot: f64,
    steps: u64,
    momentum: f64,
    iteration: newton_schulz::Config,
    /// Pairs of probes; 0 without bias correction.
    probes: usize,
}

impl Settings {
    fn from_arguments(arguments: &Theory) -> Self {
        let given = &arguments.settings;
        let usual = newton_schulz::Config::default();
        let steps = given.newton_schulz_steps.map_or(usual.steps, |steps| steps.min(100) as usize);
        Self {
            shapes: collect(arguments.shape.iter().copied()),
            noise_multiplier: given.noise_multiplier.unwrap_or(f64::NAN),
            clip: given.clip.unwrap_or(1.0),
            lot: given.lot_size.unwrap_or(f64::NAN),
            steps: given.steps.unwrap_or(0),
            momentum: given.momentum.unwrap_or(0.95),
            iteration: newton_schulz::Config {
                polynomial: given.newton_schulz_degree.unwrap_or(usual.polynomial),
                steps,
                normaliser: given.normaliser.unwrap_or(usual.normaliser),
            },
            probes: given.probes.unwrap_or(1) as usize,
        }
    }

    /// The matrices and settings of a configuration, planned for so many records.
    fn from_config(config: &Config, records: u64) -> Result<Self, Error> {
        let (own, probes): (muon::Config, usize) = match &config.optimizer.method {
            Method::DpMuon(method) => (method.own, 0),
            Method::DpMuonBc(method) => (method.own.muon, method.own.probes),
            _ => {
                return Err(Error::usage(format!(
                    "optimizer.name: expected dp-muon or dp-muon-bc, got {}",
                    config.optimizer.name()
                )));
            }
        };
        let model = LoadedModel::open(config, Circumstances::default(), &mut |_| ())?;
        let tensors: Vec<Trainable> = model.network.trainable();
        drop(model);
        let records = usize::try_from(records)
            .map_err(|_| Error::usage("--dataset-size: too large for this machine"))?;
        let plan = Plan::new(config, records, &tensors)?;
        let bound = Bound::new(config.optimizer.clip(), plan.sigma.gradient)?;
        let noise = GradientNoise { bound, clipping: Clipping::Cut };
        let muon = Muon::new(own, probes, noise, &tensors, Probes::from_seed(0))?;
        let bound = muon.bounds()[0];
        let side = |&k: &usize| {
            let shape = &tensors[k].shape;
            (shape[0], shape.iter().skip(1).product())
        };
        Ok(Self {
            shapes: collect(muon.matrices().iter().map(side)),
            noise_multiplier: bound.sigma.get(),
            clip: bound.clip.get(),
            lot: plan.lot_size(),
            steps: plan.steps,
            momentum: own.momentum.or(0.95),
            iteration: own.iteration(),
            probes,
        })
    }

    fn momentum_of(&self, rows: usize, cols: usize) -> PrivateMomentum {
        PrivateMomentum {
            rows,
            cols,
            clip: self.clip,
            lot: self.lot,
            noise_multiplier: self.noise_multiplier,
            momentum: self.momentum,
        }
    }
}

/// Distinct shapes in order, with how many there are of each.
fn collect(shapes: impl Iterator<Item = (usize, usize)>) -> Vec<(usize, usize, usize)> {
    let mut all: Vec<(usize, usize, usize)> = Vec::new();
    for (rows, cols) in shapes {
        match all.iter_mut().find(|(r, c, _)| (*r, *c) == (rows, cols)) {
            Some((.., count)) => *count += 1,
            None => all.push((rows, cols, 1)),
        }
    }
    all
}

/// The output of `--json`.
#[derive(Serialize)]
struct Output {
    noise_multiplier: f64,
    clip: f64,
    lot_size: f64,
    steps: u64,
    momentum: f64,
    newton_schulz_steps: usize,
    newton_schulz_degree: Polynomial,
    normaliser: Normaliser,
    probes: usize,
    gradient_noise_std: f64,
    signal_norm: f64,
    matrices: Vec<Matrix>,
    notes: Vec<String>,
}

/// The figures of one shape.
#[derive(Serialize)]
struct Matrix {
    rows: usize,
    cols: usize,
    count: usize,
    noise: Vec<MomentumNoise>,
    tracking: TrackingFigures,
    bias: Vec<Bias>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stationarity: Option<Terms>,
}

/// Noise in the momentum after a step (Lemma C.1).
#[derive(Serialize)]
struct MomentumNoise {
    step: u64,
    std: f64,
    spectral: f64,
    frobenius: f64,
    frobenius_over_clip: f64,
}

/// Equation (7), Lemma 3.3 and Lemma B.4. Gradients are in units of √r C, the largest nuclear norm
/// of a clipped mean.
#[derive(Serialize)]
struct TrackingFigures {
    gamma: f64,
    noise: f64,
    noise_over_signal: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    worst_chi: Option<Number>,
    #[serde(skip_serializing_if = "Option::is_none")]
    least_gradient_worst: Option<Number>,
    #[serde(skip_serializing_if = "Option::is_none")]
    noise_mean_error: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    least_gradient_mean: Option<Number>,
}

/// Bias of the direction after the last step, as fractions of the norm of the clean direction.
#[derive(Serialize)]
struct Bias {
    rank: usize,
    output: f64,
    leading: f64,
    next: f64,
    corrected: f64,
    usable: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    probe_error_bound: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    simulated: Option<Simulated>,
}

/// A simulation of the bias.
#[derive(Serialize)]
struct Simulated {
    bias: f64,
    bias_error: Number,
    corrected: f64,
    corrected_error: Number,
    probe_error: f64,
}

/// Theorem 3.4 with the mean error of noise.
#[derive(Serialize)]
struct Terms {
    optimization: f64,
    curvature: f64,
    clipping: Number,
    noise: f64,
    drift: f64,
    bound: Number,
    #[serde(skip)]
    text: String,
}

impl Theory {
    pub(crate) fn run(self) -> Result<(), Error> {
        let settings = match (&self.config, self.dataset_size) {
            (Some(path), Some(records)) => Settings::from_config(&Config::read(path)?, records)?,
            _ => Settings::from_arguments(&self),
        };
        let mut matrices = Vec::new();
        for &(rows, cols, count) in &settings.shapes {
            matrices.push(self.matrix(&settings, rows, cols, count)?);
        }
        let first = &settings.shapes[0];
        let output = Output {
            noise_multiplier: settings.noise_multiplier,
            clip: settings.clip,
            lot_size: settings.lot,
            steps: settings.steps,
            momentum: settings.momentum,
            newton_schulz_steps: settings.iteration.steps,
            newton_schulz_degree: settings.iteration.polynomial,
            normaliser: settings.iteration.normaliser,
            probes: settings.probes,
            gradient_noise_std: settings.momentum_of(first.0, first.1).gradient_std()?,
            signal_norm: self.assumed.signal * settings.clip,
            notes: notes(&settings, &matrices),
            matrices,
        };
        if self.json {
            return print_json(&output);
        }
        output.print();
        Ok(())
    }

    fn matrix(
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
        let law = noise_singular_values(rows, cols)?;
        let iteration = match settings.iteration.polynomial {
            Polynomial::Newton { degree } => {
                Some(Iteration::new(degree, settings.iteration.steps)?)
            }
            // Lemma 3.3 is about p_κ.
            Polynomial::Quintic => None,
        };
        let start =
            momentum.initial_error(settings.steps, FAILURE, settings.iteration.normaliser)?;
        let worst = iteration.map(|iteration| iteration.quality(start));
        let mean = iteration.map(|iteration| iteration.mean_quality(&law));
        let shape = (rows, cols);
        let tracked = (settings.clip, settings.lot, settings.noise_multiplier);
        let left = tracking_noise(shape, tracked, settings.momentum, settings.steps)?;
        let largest = (rows.min(cols) as f64).sqrt() * settings.clip;
        let least = |quality: Option<Quality>| -> Result<Option<Number>, Error> {
            let Some(quality) = quality else { return Ok(None) };
            Ok(Some((quality.least_gradient(left)? / largest).into()))
        };
        let tracking = TrackingFigures {
            gamma: mean_weight_norm(settings.momentum, settings.steps)?,
            noise: left,
            noise_over_signal: left / largest,
            worst_chi: worst.map(|quality| quality.chi().into()),
            least_gradient_worst: least(worst)?,
            noise_mean_error: mean.map(Quality::epsilon),
            least_gradient_mean: least(mean)?,
        };
        let full = rows.min(cols);
        let mut ranks: Vec<usize> = if self.assumed.rank.is_empty() {
            vec![1, (full as f64).sqrt().round() as usize, full]
        } else {
            self.assumed.rank.iter().map(|&rank| (rank as usize).min(full)).collect()
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
        let size = heat.output_norm();
        let samples = usize::try_from(self.samples)
            .map_err(|_| Error::usage("--samples: too large for this machine"))?;
        let simulated = if samples > 0 {
            let random = PublicRandom::new("theory", 0);
            Some(simulate(&settings.iteration, &clean, noise, samples, &random)?)
        } else {
            None
        };
        let relative = |seen: SimulatedBias| Simulated {
            bias: seen.bias / seen.output,
            bias_error: (seen.bias_error / seen.output).into(),
            corrected: seen.corrected / seen.output,
            corrected_error: (seen.corrected_error / seen.output).into(),
            probe_error: seen.probe_error / (settings.probes.max(1) as f64).sqrt() / seen.output,
        };
        let probe_error_bound = if settings.probes > 0 {
            let polynomial = settings.iteration.polynomial;
            Some(probe_error_bound(polynomial, (rows, cols), settings.probes)? / size)
        } else {
            None
        };
        Ok(Bias {
            rank,
            output: heat.output().last().copied().unwrap_or(0.0),
            leading: heat.leading_bias(noise)? / size,
            next: heat.next_bias(noise)? / size,
            corrected: heat.remainder(noise)? / size,
            usable: heat.is_usable(noise),
            probe_error_bound,
            simulated: simulated.map(relative),
        })
    }

    fn stationarity(
        &self,
        settings: &Settings,
        (rows, cols): (usize, usize),
        quality: Option<Quality>,
    ) -> Result<Option<Terms>, Error> {
        let given = &self.assumed;
        let (Some(learning_rate), Some(smoothness), Some(descent), Some(norm), Some(quality)) =
            (given.learning_rate, given.smoothness, given.descent, given.gradient_norm, quality)
        else {
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

/// What the figures do not say, in sentences.
fn notes(settings: &Settings, matrices: &[Matrix]) -> Vec<String> {
    let named = |which: &dyn Fn(&Matrix) -> bool| {
        let named = matrices.iter().filter(|matrix| which(matrix));
        named
            .map(|matrix| format!("{}×{}", matrix.rows, matrix.cols))
            .collect::<Vec<_>>()
            .join(", ")
    };
    let mut notes = Vec::new();
    let mut note = |shapes: String, text: &str| {
        if !shapes.is_empty() {
            notes.push(format!("{shapes}: {text}"));
        }
    };
    let beyond = |figure: &Option<Number>| figure.is_some_and(|figure| !(figure.0 <= 1.0));
    note(
        named(&|matrix| matrix.tracking.noise_over_signal >= 1.0),
        "equation (7) is vacuous: its noise alone exceeds the largest clipped mean",
    );
    note(
        named(&|matrix| beyond(&matrix.tracking.least_gradient_worst)),
        "Lemma B.4 and Theorem 3.4 are vacuous with the worst direction's error (Lemma 3.3): no \
         clipped gradient is large enough",
    );
    note(
        named(&|matrix| beyond(&matrix.tracking.least_gradient_mean)),
        "they are vacuous with the mean error, too",
    );
    note(
        named(&|matrix| matrix.bias.iter().any(|bias| !bias.usable)),
        "rows marked ✗: the noise is too large for the expansion of §4 and Theorem 4.1; their \
         figures are not estimates of the bias (--samples simulates it)",
    );
    note(
        named(&|matrix| {
            matrix.bias.iter().any(|bias| bias.probe_error_bound.is_some_and(|bound| bound >= 1.0))
        }),
        "the bound of C.6 on the error of the probes is vacuous: it is as large as the direction",
    );
    if settings.iteration.polynomial == Polynomial::Quintic {
        notes.push("Lemma 3.3 is about the polynomials p_κ, not about quintic".into());
    }
    notes
}

impl Output {
    fn print(&self) {
        let degree = match self.newton_schulz_degree {
            Polynomial::Newton { degree } => format!("of degree {degree}"),
            Polynomial::Quintic => "of the quintic polynomial".into(),
        };
        print(&format!(
            "σ = {} for each matrix, C = {}, lots of {}, {} steps, momentum {}, {} Newton–Schulz \
             steps {degree}\nNoise of a released gradient: standard deviation {} in each element. \
             No records are read, nothing is charged.\n",
            short(self.noise_multiplier),
            short(self.clip),
            self.lot_size,
            self.steps,
            self.momentum,
            self.newton_schulz_steps,
            short(self.gradient_noise_std),
        ));
        let mut lines = Vec::new();
        for matrix in &self.matrices {
            for noise in &matrix.noise {
                lines.push(vec![
                    matrix.name(),
                    noise.step.to_string(),
                    short(noise.std),
                    short(noise.spectral),
                    short(noise.frobenius),
                    short(noise.frobenius_over_clip),
                ]);
            }
        }
        print("Noise in the momentum (Lemma C.1); the signal has a norm of at most C:");
        print(&table(&["matrix", "step", "std", "spectral", "Frobenius", "Frobenius ÷ C"], &lines));
        let optional = |figure: Option<f64>| figure.map_or("–".into(), short);
        let number = |figure: &Option<Number>| optional(figure.map(|figure| figure.0));
        let line = |matrix: &Matrix| {
            let figures = &matrix.tracking;
            vec![
                matrix.name(),
                short(figures.gamma),
                short(figures.noise_over_signal),
                number(&figures.worst_chi),
                number(&figures.least_gradient_worst),
                optional(figures.noise_mean_error),
                number(&figures.least_gradient_mean),
            ]
        };
        print(&format!(
            "\nTracking and descent, gradients in units of √r·C, the largest clipped mean. \
             Descent is promised from\n‖g‖_* on (Lemma B.4), by the worst direction's χ_q \
             (Lemma 3.3, with probability {}) or by the mean error of noise:",
            1.0 - FAILURE
        ));
        let header =
            ["matrix", "Γ_T (6)", "noise (7)", "χ_q", "‖g‖_* by χ_q", "mean ε", "‖g‖_* by mean ε"];
        print(&table(&header, &self.matrices.iter().map(line).collect::<Vec<_>>()));
        self.print_bias();
        for matrix in &self.matrices {
            if let Some(terms) = &matrix.stationarity {
                print(&format!(
                    "\nTheorem 3.4 for {}, with the mean error of noise:\n{}",
                    matrix.name(),
                    terms.text
                ));
            }
        }
        if !self.notes.is_empty() {
            print(&format!("\n{}", self.notes.join("\n")));
        }
    }

    fn print_bias(&self) {
        let simulated = self.matrices.iter().any(|m| m.bias.iter().any(|b| b.simulated.is_some()));
        let mut header =
            vec!["matrix", "rank", "output", "bias", "next term", "corrected", "C.6 bound", ""];
        if simulated {
            header.extend(["simulated bias", "±", "corrected", "±", "probe error"]);
        }
        let mut lines = Vec::new();
        for matrix in &self.matrices {
            for bias in &matrix.bias {
                let mut line = vec![
                    matrix.name(),
                    bias.rank.to_string(),
                    short(bias.output),
                    short(bias.leading),
                    short(bias.next),
                    short(bias.corrected),
                    bias.probe_error_bound.map_or("–".into(), short),
                    if bias.usable { "✓" } else { "✗" }.into(),
                ];
                if let Some(seen) = &bias.simulated {
                    line.extend([
                        short(seen.bias),
                        short(seen.bias_error.0),
                        short(seen.corrected),
                        short(seen.corrected_error.0),
                        short(seen.probe_error),
                    ]);
                }
                lines.push(line);
            }
        }
        print(&format!(
            "\nBias of the direction after the last step, ÷ its norm, if the momentum without \
             noise has norm {} and\nequal singular values: leading and next term (§4), what \
             correction leaves (Theorem 4.1), error of its probes (C.6):",
            short(self.signal_norm)
        ));
        print(&table(&header, &lines));
    }
}

impl Matrix {
    fn name(&self) -> String {
        let count = if self.count > 1 { format!(" ({})", self.count) } else { String::new() };
        format!("{}×{}{count}", self.rows, self.cols)
    }
}
