//! DP-Muon and DP-MuonBC (Kim and Fan 2026).
//!
//! By default, hidden matrices are orthogonalised and have their own clip blocks; other tensors
//! share one block and are updated by Adam ([`Group`]). The released gradient G̃ of a matrix is
//! added to a heavy-ball momentum M ← μ M + G̃, and the direction is Q(M), where Q is the
//! Newton–Schulz iteration. All blocks are released from one lot and charged together: from the
//! joint multiplier σ, the block of matrix W gets σ_W = σ √(Σ w)/√w_W ([`BlockRule`]).
//!
//! **Bias correction.** The noise in M has mean 0, but Q is not linear, so Q(M) is biased. Its
//! standard deviation r is known: r² ← μ² r² + ν², where ν is that of G̃. With public normal U_j,
//! the paper's 2 Q(M) − (1/2J) Σ_j [Q(M + r U_j) + Q(M − r U_j)] removes the leading term of the
//! bias (Theorem 4.1).
//!
//! The paper evaluates this at M̂ = M/s_t, s_t = (1 − μ^t)/(1 − μ), with r/s_t instead of r
//! ([`EvaluateAt`]). With the Frobenius normaliser both are the same. With max(1, ‖·‖_F), the norm
//! of M is above 1 at realistic σ, and the result is that of the Frobenius normaliser; M̂ is so
//! small that the step shrinks.

mod blocks;

pub use self::blocks::{AUXILIARY, BlockRule, Group};

use self::blocks::{Assignment, assign};
use crate::adam::{self, Moments};
use crate::config::{Hyperparameters, Setting};
use crate::gradient_noise::QueryTemplate;
use crate::newton_schulz::{self, Normaliser, Polynomial, Scratch, orthogonalise};
use crate::state::Shapes;
use crate::{Auto, Descent, GradientNoise, Key, Keys, Probes, State, elementwise, keys, within};
use protocol::{Bound, Geometry, GradientQuery, Noisy, Params, Refused, TensorMap, Trainable};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use tensor::Array;
use tensor::matmul::Threads;

keys! {
    /// Hyperparameters of DP-Muon.
    #[derive(Clone, Debug)]
    #[serde(default, deny_unknown_fields)]
    pub struct Config {
        /// μ: momentum of the matrices; 0.95 by default.
        pub momentum: Auto<f64> = Auto::Auto,
        /// Steps of the Newton–Schulz iteration Q.
        pub newton_schulz_steps: usize = newton_schulz::Config::default().steps,
        /// Degree of its polynomial, or "quintic".
        pub newton_schulz_degree: Polynomial = newton_schulz::Config::default().polynomial,
        /// The number by which the momentum is divided before the iteration: frobenius or max1.
        pub normaliser: Normaliser = newton_schulz::Config::default().normaliser,
        /// The factor of a direction, from the shape of its matrix: none, rows-over-cols or
        /// larger-side.
        pub shape_scale: ShapeScale = ShapeScale::LargerSide,
        /// Which tensors are orthogonalised and which have their own clip block: hidden, paper or all.
        pub muon_group: Group = Group::Hidden,
        /// Clip bounds and noise shares of single blocks.
        pub blocks: Vec<BlockRule> = Vec::new(),
        /// Decoupled weight decay of the matrices; 0 by default.
        pub weight_decay: Auto<f64> = Auto::Auto,
        /// β₁ and β₂ of Adam, which updates the other tensors.
        pub betas: (f64, f64) = adam::BETAS,
        /// ε of Adam.
        pub epsilon: f64 = adam::EPSILON,
        /// The learning rate of the other tensors, relative to the matrices'; 1 by default.
        pub auxiliary_ratio: Auto<f64> = Auto::Auto,
    }
}

impl Config {
    /// Returns the parameters of the Newton–Schulz iteration Q.
    pub fn iteration(&self) -> newton_schulz::Config {
        newton_schulz::Config {
            polynomial: self.newton_schulz_degree,
            steps: self.newton_schulz_steps,
            normaliser: self.normaliser,
        }
    }
}

impl Hyperparameters for Config {
    fn build(
        &self,
        noise: GradientNoise,
        setting: &Setting<'_>,
    ) -> Result<Box<dyn Descent>, Refused> {
        Ok(Box::new(Muon::new(self, None, noise, setting.tensors, setting.probes())?))
    }
}

/// Hyperparameters of DP-MuonBC.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CorrectedConfig {
    /// Hyperparameters of DP-Muon.
    #[serde(flatten)]
    pub muon: Config,
    /// The bias correction.
    #[serde(flatten)]
    pub correction: Correction,
}

keys! {
    /// Hyperparameters of the bias correction.
    #[derive(Clone, Copy, Debug, Eq)]
    #[serde(default, deny_unknown_fields)]
    pub struct Correction {
        /// J: pairs of probes.
        pub probes: usize = 1,
        /// Where the iteration is evaluated: momentum or average.
        pub evaluate_at: EvaluateAt = EvaluateAt::Momentum,
    }
}

/// Where the Newton–Schulz iteration of DP-MuonBC is evaluated.
///
/// It matters with the normaliser `max1` only. For pure noise in a 768×768 matrix with σ_W = 5.03,
/// C = 0.1 and lots of 1024, the root mean square of the resulting singular values is 0.63 at M and
/// 0.05 at M̂.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EvaluateAt {
    /// At the momentum M, as DP-Muon does.
    Momentum,
    /// At the averaged gradient M̂ = M/s_t, as in the paper.
    Average,
}

impl Keys for CorrectedConfig {
    fn keys(&self) -> Vec<Key> {
        [self.muon.keys(), self.correction.keys()].concat()
    }
}

impl Hyperparameters for CorrectedConfig {
    fn build(
        &self,
        noise: GradientNoise,
        setting: &Setting<'_>,
    ) -> Result<Box<dyn Descent>, Refused> {
        let (correction, probes) = (Some(self.correction), setting.probes());
        Ok(Box::new(Muon::new(&self.muon, correction, noise, setting.tensors, probes)?))
    }
}

/// The factor of a direction, from the shape of its matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ShapeScale {
    /// 1, as in the paper.
    None,
    /// √max(1, rows/cols) of the weight as outputs × inputs, however it is stored.
    RowsOverCols,
    /// 0.2 √max(rows, cols), which gives elements of directions about the size of Adam's.
    ///
    /// With singular values of root mean square s, those of the elements of a direction are
    /// s/√max(rows, cols) before and 0.2 s after scaling; s is 1 for a converged iteration and 0.63
    /// for noise in a square matrix. Where noise dominates, Adam's are √((1 − β₁)/(1 + β₁)) = 0.23.
    LargerSide,
}

impl ShapeScale {
    fn of(self, tensor: &Trainable) -> f64 {
        let rows = tensor.shape.first().copied().unwrap_or(1);
        let cols: usize = tensor.shape.iter().skip(1).product();
        let (outputs, inputs) = if tensor.transposed { (cols, rows) } else { (rows, cols) };
        match self {
            Self::None => 1.0,
            Self::RowsOverCols => (outputs as f64 / inputs as f64).max(1.0).sqrt(),
            Self::LargerSide => 0.2 * (rows.max(cols) as f64).sqrt(),
        }
    }
}

/// Descent along orthogonalised momentum.
pub struct Muon {
    iteration: newton_schulz::Config,
    /// The factor of each matrix's direction, in the order of the matrices.
    scales: Vec<f64>,
    /// μ
    decay: f64,
    weight_decay: f64,
    auxiliary_ratio: f64,
    correction: Correction,
    template: QueryTemplate,
    /// The indices of the tensors that are orthogonalised.
    matrices: Vec<usize>,
    /// The shapes of the matrices.
    shapes: Shapes,
    momentum: TensorMap,
    /// The variance of the noise in each momentum, in the order of the matrices.
    variance: Vec<f64>,
    /// The indices of the other tensors.
    others: Vec<usize>,
    moments: Moments,
    probes: Probes,
    steps: u64,
}

impl Muon {
    /// Creates the optimizer for these tensors, without bias correction if `correction` is `None`.
    ///
    /// # Errors
    /// If none of the tensors is a matrix, or a hyperparameter is out of range.
    pub fn new(
        config: &Config,
        correction: Option<Correction>,
        noise: GradientNoise,
        tensors: &[Trainable],
        probes: Probes,
    ) -> Result<Self, Refused> {
        let decay = within("optimizer.momentum", config.momentum.or(0.95), 0.0, 1.0)?;
        let weight_decay =
            within("optimizer.weight_decay", config.weight_decay.or(0.0), 0.0, f64::INFINITY)?;
        let ratio = config.auxiliary_ratio.or(1.0);
        let auxiliary_ratio = within("optimizer.auxiliary_ratio", ratio, 0.0, f64::INFINITY)?;
        let auxiliary = adam::Rule::plain(config.betas, config.epsilon);
        auxiliary.check()?;
        if config.newton_schulz_degree == (Polynomial::Newton { degree: 0 }) {
            return Err(Refused::Query(
                "optimizer.newton_schulz_degree: expected at least 1, got 0".into(),
            ));
        }
        let Assignment { matrices, blocks, bounds } =
            assign(config.muon_group, &config.blocks, &noise, tensors)?;
        let others: Vec<usize> = (0..tensors.len()).filter(|k| !matrices.contains(k)).collect();
        let shapes = |list: &[usize]| list.iter().map(|&k| (k, tensors[k].shape.clone())).collect();
        Ok(Self {
            iteration: config.iteration(),
            scales: matrices.iter().map(|&k| config.shape_scale.of(&tensors[k])).collect(),
            decay,
            weight_decay,
            auxiliary_ratio,
            correction: correction.unwrap_or(Correction { probes: 0, ..Correction::default() }),
            template: QueryTemplate { blocks, bounds, clipping: noise.clipping },
            shapes: shapes(&matrices),
            momentum: TensorMap::new(),
            variance: vec![0.0; matrices.len()],
            moments: Moments::new(auxiliary, shapes(&others)),
            matrices,
            others,
            probes,
            steps: 0,
        })
    }

    /// Returns the indices of the tensors that are orthogonalised.
    pub fn matrices(&self) -> &[usize] {
        &self.matrices
    }

    /// Returns s_t = (1 − μ^t)/(1 − μ), the sum of the weights of all gradients in the momentum.
    fn momentum_weight(&self) -> f64 {
        let t = (self.steps + 1).min(i32::MAX as u64) as i32;
        (1.0 - self.decay.powi(t)) / (1.0 - self.decay)
    }

    /// Returns the direction of a matrix: Q(M), with bias correction if it has probes.
    ///
    /// `index` counts the matrices.
    fn orthogonalised(
        &self,
        index: usize,
        momentum: &Array,
        scratch: &mut (Scratch, Vec<f32>, Vec<f32>),
        threads: Threads,
    ) -> Array {
        let (rows, cols) = (momentum.rows(), momentum.cols());
        let (buffers, work, probe) = scratch;
        let scale = self.scales[index];
        let pairs = if self.variance[index] > 0.0 { self.correction.probes } else { 0 };
        let shrink = match self.correction.evaluate_at {
            EvaluateAt::Momentum => 1.0,
            EvaluateAt::Average => self.momentum_weight().recip(),
        };
        let deviation = (self.variance[index].sqrt() * shrink) as f32;
        let shrink = shrink as f32;
        let mut out = Array::zeros(momentum.shape());
        let mut add = |point: &mut Vec<f32>, weight: f64| {
            orthogonalise(&self.iteration, point, rows, cols, buffers, threads);
            let weight = (weight * scale) as f32;
            out.data_mut()
                .iter_mut()
                .zip(point.iter())
                .for_each(|(out, &y)| *out = weight.mul_add(y, *out));
        };
        work.clear();
        work.extend(momentum.data().iter().map(|&m| shrink * m));
        add(work, if pairs > 0 { 2.0 } else { 1.0 });
        for j in 0..pairs {
            probe.resize(momentum.len(), 0.0);
            self.probes.write(self.steps, self.matrices[index], j, probe);
            for sign in [deviation, -deviation] {
                work.clear();
                work.extend(
                    momentum
                        .data()
                        .iter()
                        .zip(probe.iter())
                        .map(|(&m, &u)| sign.mul_add(u, shrink * m)),
                );
                add(work, -0.5 / pairs as f64);
            }
        }
        out
    }
}

impl Descent for Muon {
    fn bounds(&self) -> &[Bound] {
        &self.template.bounds
    }

    fn query<'a>(&'a mut self, at: &'a Params) -> Result<GradientQuery<'a>, Refused> {
        Ok(self.template.query(at, &Geometry::Identity))
    }

    fn direction(&mut self, _: &Params, answer: Noisy<TensorMap>) -> Result<TensorMap, Refused> {
        let mut direction = answer.value;
        let momentum = self.decay;
        for (index, &k) in self.matrices.iter().enumerate() {
            // Also for matrices of other processes, so that the numbers of the state are the same.
            let std = answer.std[self.template.blocks.of(k)];
            self.variance[index] = momentum * momentum * self.variance[index] + std.powi(2);
            if let Some(gradient) = direction.get(k) {
                let buffer = self.momentum.get_or_zeros(k, gradient.shape());
                elementwise::update(buffer, gradient, |m, g| (momentum as f32).mul_add(m, g));
            }
        }
        // The most expensive matrices first, so that no thread is left with one at the end.
        let mut order: Vec<(usize, usize, &Array)> = self
            .matrices
            .iter()
            .enumerate()
            .filter_map(|(index, &k)| Some((index, k, self.momentum.get(k)?)))
            .collect();
        order.sort_by_key(|(_, _, momentum)| {
            std::cmp::Reverse(momentum.len() * momentum.rows().min(momentum.cols()))
        });
        // With few matrices for each thread, the threads share each product instead.
        let threads = if order.len() >= 4 * rayon::current_num_threads() {
            Threads::One
        } else {
            Threads::All
        };
        let direction_of = |scratch: &mut _, &(index, k, momentum): &(usize, usize, &Array)| {
            (k, self.orthogonalised(index, momentum, scratch, threads))
        };
        let done: Vec<(usize, Array)> = match threads {
            Threads::One => {
                order.par_iter().with_max_len(1).map_init(Default::default, direction_of).collect()
            }
            Threads::All => {
                let mut scratch = Default::default();
                order.iter().map(|matrix| direction_of(&mut scratch, matrix)).collect()
            }
        };
        for (k, array) in done {
            direction.insert(k, array);
        }
        if let Some(&first) = self.others.first() {
            let std = answer.std[self.template.blocks.of(first)];
            let others = direction.iter_mut().filter(|(k, _)| !self.shapes.contains(*k));
            self.moments.advance(others, std, self.auxiliary_ratio);
        }
        self.steps += 1;
        Ok(direction)
    }

    /// Estimates nanoseconds.
    ///
    /// Noise and updates take about 10 per element. Each evaluation of Q takes about 0.75 per
    /// element and row of the shorter side.
    fn work(&self, tensor: usize, at: &Params) -> f64 {
        let matrix = &at[tensor];
        let products = if self.matrices.contains(&tensor) {
            matrix.rows().min(matrix.cols()) * (1 + 2 * self.correction.probes)
        } else {
            0
        };
        matrix.len() as f64 * (10.0 + 0.75 * products as f64)
    }

    fn weight_decay(&self, tensor: usize) -> f64 {
        if self.shapes.contains(tensor) { self.weight_decay } else { 0.0 }
    }

    fn save(&self) -> Result<State, Refused> {
        let mut state = State::new("muon");
        state.set_number("steps", self.steps as f64);
        self.variance.iter().enumerate().for_each(|(index, &variance)| {
            state.set_number(&format!("variance {index}"), variance)
        });
        state.set_tensors("momentum", &self.momentum);
        state.set_part("others", self.moments.save());
        Ok(state)
    }

    fn load(&mut self, mut state: State) -> Result<(), Refused> {
        state.check_kind("muon")?;
        self.steps = state.count("steps")?;
        for (index, variance) in self.variance.iter_mut().enumerate() {
            *variance = state.number(&format!("variance {index}"))?;
        }
        self.momentum = state.take_tensors("momentum", &self.shapes)?;
        self.moments.load(state.part("others")?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::Role;

    /// A weight with four times as many outputs as inputs, stored either way.
    #[test]
    fn shape_scales_do_not_depend_on_the_storage() {
        let stored = Trainable::new("w", [8, 2], Role::Hidden);
        let transposed = Trainable::new("w", [2, 8], Role::Hidden).transposed();
        for (scale, expected) in [
            (ShapeScale::None, 1.0),
            (ShapeScale::RowsOverCols, 2.0),
            (ShapeScale::LargerSide, 0.2 * 8f64.sqrt()),
        ] {
            assert_eq!((scale.of(&stored), scale.of(&transposed)), (expected, expected));
        }
        let wide = Trainable::new("w", [2, 8], Role::Hidden);
        assert_eq!(ShapeScale::RowsOverCols.of(&wide), 1.0);
    }
}
