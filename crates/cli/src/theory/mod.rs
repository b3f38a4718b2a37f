//! `muffle theory`: formulas of the DP-Muon paper for given shapes and settings.

mod figures;
mod tables;

use super::error::Error;
use super::number::{count, real};
use super::output::print_json;
use clap::Args;
use figures::Output;
use muffle::config::Config;
use muffle::load::model::DataProperties;
use muffle::optim::newton_schulz::{self, Normaliser, Polynomial};
use muffle::optim::theory::PrivateMomentum;
use muffle::optim::{Descent, GradientNoise, Method, Muon, Probes};
use muffle::protocol::{Bound, Clipping, Trainable};
use muffle::{LoadedModel, Plan};
use std::path::PathBuf;

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
    #[arg(long, value_name = "RUN.toml", requires = "dataset_size")]
    #[arg(conflicts_with_all = ["shape", "settings"])]
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
    #[arg(long, short = 's', value_name = "S", value_parser = real)]
    #[arg(required_unless_present = "config")]
    noise_multiplier: Option<f64>,
    /// The clip bound C of each matrix [default: 1]
    #[arg(long, value_name = "C", value_parser = real)]
    clip: Option<f64>,
    /// The expected number of records in a lot
    #[arg(long, short = 'b', value_name = "B", value_parser = real)]
    #[arg(required_unless_present = "config")]
    lot_size: Option<f64>,
    /// Steps
    #[arg(long, short = 't', value_name = "T", value_parser = count)]
    #[arg(required_unless_present = "config")]
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
    #[arg(long, value_name = "X", value_parser = real)]
    #[arg(requires_all = ["smoothness", "descent", "gradient_norm"])]
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

/// Parses a shape such as `768x3072`.
fn shape(text: &str) -> Result<(usize, usize), String> {
    let dimension =
        |part: &str| part.trim().parse::<usize>().ok().filter(|dimension| *dimension > 0);
    text.split_once(['x', '×'])
        .and_then(|(rows, cols)| Some((dimension(rows)?, dimension(cols)?)))
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
        let defaults = newton_schulz::Config::default();
        let steps =
            given.newton_schulz_steps.map_or(defaults.steps, |steps| steps.min(100) as usize);
        Self {
            shapes: count_shapes(arguments.shape.iter().copied()),
            noise_multiplier: given.noise_multiplier.unwrap_or(f64::NAN),
            clip: given.clip.unwrap_or(1.0),
            lot: given.lot_size.unwrap_or(f64::NAN),
            steps: given.steps.unwrap_or(0),
            momentum: given.momentum.unwrap_or(0.95),
            iteration: newton_schulz::Config {
                polynomial: given.newton_schulz_degree.unwrap_or(defaults.polynomial),
                steps,
                normaliser: given.normaliser.unwrap_or(defaults.normaliser),
            },
            probes: given.probes.unwrap_or(1) as usize,
        }
    }

    /// Reads matrices and settings from a configuration, with the plan for `records` records.
    fn from_config(config: &Config, records: u64) -> Result<Self, Error> {
        let (muon_config, correction) = match &config.optimizer.method {
            Method::DpMuon(method) => (&method.own, None),
            Method::DpMuonBc(method) => (&method.own.muon, Some(method.own.correction)),
            _ => {
                return Err(Error::usage(format!(
                    "optimizer.name: expected dp-muon or dp-muon-bc, got {}",
                    config.optimizer.name()
                )));
            }
        };
        let model = LoadedModel::open(config, DataProperties::default(), &mut |_| ())?;
        let tensors: Vec<Trainable> = model.network.trainable();
        drop(model);
        let records = usize::try_from(records)
            .map_err(|_| Error::usage("--dataset-size: too large for this machine"))?;
        let plan = Plan::new(config, records, &tensors)?;
        let bound = Bound::new(config.optimizer.clip(), plan.sigma.gradient)?;
        let noise = GradientNoise { bound, clipping: Clipping::Cut };
        let muon = Muon::new(muon_config, correction, noise, &tensors, Probes::from_seed(0))?;
        let bound = muon.bounds()[0];
        if muon.bounds().iter().any(|other| *other != bound) {
            return Err(Error::usage(
                "optimizer.blocks: expected none, since one clip bound and noise multiplier are \
                 shown for all matrices",
            ));
        }
        let matrix_shape = |&k: &usize| {
            let shape = &tensors[k].shape;
            (shape[0], shape.iter().skip(1).product())
        };
        Ok(Self {
            shapes: count_shapes(muon.matrices().iter().map(matrix_shape)),
            noise_multiplier: bound.sigma.get(),
            clip: bound.clip.get(),
            lot: plan.lot_size(),
            steps: plan.steps,
            momentum: muon_config.momentum.or(0.95),
            iteration: muon_config.iteration(),
            probes: correction.map_or(0, |correction| correction.probes),
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

/// Returns the distinct shapes in order, each with the number of its matrices.
fn count_shapes(shapes: impl Iterator<Item = (usize, usize)>) -> Vec<(usize, usize, usize)> {
    let mut all: Vec<(usize, usize, usize)> = Vec::new();
    for (rows, cols) in shapes {
        match all.iter_mut().find(|(r, c, _)| (*r, *c) == (rows, cols)) {
            Some((.., count)) => *count += 1,
            None => all.push((rows, cols, 1)),
        }
    }
    all
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
            notes: tables::notes(&settings, &matrices),
            matrices,
        };
        if self.json {
            return print_json(&output);
        }
        output.print();
        Ok(())
    }
}
