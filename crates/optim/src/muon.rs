//! DP-Muon and DP-MuonBC (Kim and Fan 2026).
//!
//! Each matrix has a clip block of its own; everything else is one block and is updated by Adam.
//! The released gradient of a matrix feeds a heavy-ball momentum M ← μ M + G̃, and the direction is
//! M after the Newton–Schulz iteration Q. All blocks come from one lot and are paid for together:
//! from one total multiplier σ they get σ_W = σ √(Σ w)/√w_W.
//!
//! **Bias correction.** Noise in M is centred, but Q is not linear, so Q(M) is biased. M carries
//! normal noise of a known standard deviation r; the paper's 2 Q(M) − (1/2J) Σ_j [Q(M + r U_j) +
//! Q(M − r U_j)] with public normal U_j takes the leading term off (Theorem 4.1). The paper writes
//! it for M/s_t and ρ_t = r/s_t; with the Frobenius normaliser that is the same, and with the other
//! it keeps both terms on one scale. r² ← μ² r² + ν² follows the noise that was actually added.

use crate::adam::{self, Moments};
use crate::descent::{Gather, forget};
use crate::flat::Asking;
use crate::newton_schulz::{self, Scratch, orthogonalise};
use crate::{Descent, Note, Probes, State, elementwise, within};
use protocol::{
    Blocks, Bound, Clipping, Geometry, GradientQuery, Noisy, Params, Positive, Refused, Role,
    Trainable,
};
use rayon::prelude::*;
use tensor::Array;
use tensor::matmul::Threads;

/// Its numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// μ
    pub momentum: f64,
    /// Q
    pub iteration: newton_schulz::Config,
    /// J: pairs of probes of the bias correction; 0 for DP-Muon without it.
    pub probes: usize,
    /// What a direction is multiplied by.
    pub scale: ShapeScale,
    /// Decoupled weight decay of the matrices; 0 for none.
    pub weight_decay: f64,
    /// Which tensors are orthogonalised.
    pub group: Group,
    /// What updates the others.
    pub auxiliary: adam::Config,
    /// The others' rate, relative to the matrices'.
    pub auxiliary_ratio: f64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            momentum: 0.95,
            iteration: newton_schulz::Config::default(),
            probes: 0,
            scale: ShapeScale::None,
            weight_decay: 0.0,
            group: Group::Hidden,
            auxiliary: adam::Config::default(),
            auxiliary_ratio: 2.0 / 3.0,
        }
    }
}

/// What a direction is multiplied by, from the sides of its matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShapeScale {
    /// 1, as in the paper.
    None,
    /// √max(1, rows/cols)
    RowsOverCols,
    /// 0.2 √max(rows, cols): about the size of Adam's directions.
    LargerSide,
}

impl ShapeScale {
    fn of(self, rows: usize, cols: usize) -> f64 {
        match self {
            Self::None => 1.0,
            Self::RowsOverCols => (rows as f64 / cols as f64).max(1.0).sqrt(),
            Self::LargerSide => 0.2 * (rows.max(cols) as f64).sqrt(),
        }
    }
}

/// Which tensors are orthogonalised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// Weights between hidden values, kernels of convolutions as matrices (out, in·height·width).
    Hidden,
    /// Everything of two or more dimensions, tables and head too.
    AllMatrices,
}

impl Group {
    fn takes(self, tensor: &Trainable) -> bool {
        match self {
            Self::Hidden => !matches!(tensor.role, Role::Table | Role::Head | Role::Vector),
            Self::AllMatrices => tensor.shape.len() >= 2,
        }
    }
}

/// How each block is clipped and noised.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Noise {
    /// The clip bound of each block.
    pub clip: Positive,
    /// What all blocks together cost: that of one release with this multiplier.
    pub sigma: Positive,
    /// How gradients are clipped.
    pub clipping: Clipping,
}

/// Momentum, orthogonalised.
pub struct Muon {
    config: Config,
    asking: Asking,
    /// The matrices, by their places among the tensors; each is its own block, numbered in this
    /// order.
    matrices: Vec<usize>,
    momentum: Vec<Array>,
    /// The variance of the noise in each momentum.
    variance: Vec<f64>,
    /// The other tensors.
    others: Vec<usize>,
    moments: Moments,
    probes: Probes,
    steps: u64,
}

impl Muon {
    /// For these tensors, with equal shares of the privacy for all blocks.
    ///
    /// # Errors
    /// If there is no matrix among them, or a number makes no sense.
    pub fn new(
        config: Config,
        noise: Noise,
        tensors: &[Trainable],
        probes: Probes,
    ) -> Result<Self, Refused> {
        within("the momentum", config.momentum, 0.0, 1.0)?;
        within("the weight decay", config.weight_decay, 0.0, f64::INFINITY)?;
        within("the auxiliary ratio", config.auxiliary_ratio, 0.0, f64::INFINITY)?;
        config.auxiliary.check()?;
        let (matrices, others): (Vec<usize>, Vec<usize>) =
            (0..tensors.len()).partition(|&k| config.group.takes(&tensors[k]));
        if matrices.is_empty() {
            return Err(Refused::Query(
                "Muon needs a matrix to orthogonalise, and none of the trained tensors is one"
                    .into(),
            ));
        }
        let mut of = vec![matrices.len(); tensors.len()];
        matrices.iter().enumerate().for_each(|(block, &k)| of[k] = block);
        let blocks = Blocks::new(of).ok_or_else(|| Refused::Query("blocks with gaps".into()))?;
        let equal = Positive::new("the weight of a block", 1.0)?;
        let bounds = Bound::shared(noise.sigma, &vec![(noise.clip, equal); blocks.count()])?;
        let zeros = |list: &[usize]| {
            list.iter().map(|&k| Array::zeros(tensors[k].shape.clone())).collect::<Vec<_>>()
        };
        Ok(Self {
            asking: Asking { blocks, bounds, clipping: noise.clipping },
            momentum: zeros(&matrices),
            variance: vec![0.0; matrices.len()],
            moments: Moments::new(config.auxiliary, zeros(&others).iter()),
            config,
            matrices,
            others,
            probes,
            steps: 0,
        })
    }

    /// The places of the matrices among the tensors.
    pub fn matrices(&self) -> &[usize] {
        &self.matrices
    }

    /// 2 Q(M) − (1/2J) Σ_j [Q(M + r U_j) + Q(M − r U_j)], or Q(M).
    fn orthogonalised(
        &self,
        index: usize,
        scratch: &mut (Scratch, Vec<f32>, Vec<f32>),
        threads: Threads,
    ) -> Array {
        let momentum = &self.momentum[index];
        let (rows, cols) = (momentum.rows(), momentum.cols());
        let (buffers, work, probe) = scratch;
        let scale = self.config.scale.of(rows, cols);
        let pairs = if self.variance[index] > 0.0 { self.config.probes } else { 0 };
        let deviation = self.variance[index].sqrt() as f32;
        let mut out = Array::zeros(momentum.shape());
        let mut add = |point: &mut Vec<f32>, weight: f64| {
            orthogonalise(&self.config.iteration, point, rows, cols, buffers, threads);
            let weight = (weight * scale) as f32;
            out.data_mut()
                .iter_mut()
                .zip(point.iter())
                .for_each(|(out, &y)| *out = weight.mul_add(y, *out));
        };
        work.clear();
        work.extend_from_slice(momentum.data());
        add(work, if pairs > 0 { 2.0 } else { 1.0 });
        for j in 0..pairs {
            probe.resize(momentum.len(), 0.0);
            self.probes.write(self.steps, self.matrices[index], j, probe);
            for sign in [deviation, -deviation] {
                work.clear();
                work.extend(
                    momentum.data().iter().zip(probe.iter()).map(|(&m, &u)| sign.mul_add(u, m)),
                );
                add(work, -0.5 / pairs as f64);
            }
        }
        out
    }
}

impl Descent for Muon {
    fn bounds(&self) -> &[Bound] {
        &self.asking.bounds
    }

    fn query<'a>(&'a mut self, at: &'a Params) -> Result<GradientQuery<'a>, Refused> {
        Ok(self.asking.query(at, &Geometry::Identity))
    }

    fn direction(
        &mut self,
        _: &Params,
        answer: Noisy<Params>,
        _: Gather<'_>,
    ) -> Result<Params, Refused> {
        let mut direction = answer.value;
        let momentum = self.config.momentum;
        for (index, &k) in self.matrices.iter().enumerate() {
            elementwise::update(&mut self.momentum[index], &direction[k], |m, g| {
                (momentum as f32).mul_add(m, g)
            });
            self.variance[index] =
                momentum * momentum * self.variance[index] + answer.std[index].powi(2);
        }
        // The most expensive first, so that no thread is left with one of them at the end.
        let mut order: Vec<usize> =
            (0..self.matrices.len()).filter(|&index| !self.momentum[index].is_empty()).collect();
        order.sort_by_key(|&index| {
            std::cmp::Reverse(
                self.momentum[index].len()
                    * self.momentum[index].rows().min(self.momentum[index].cols()),
            )
        });
        // With few matrices for each thread, the threads share each product instead.
        let threads = if order.len() >= 4 * rayon::current_num_threads() {
            Threads::One
        } else {
            Threads::All
        };
        let one = |scratch: &mut _, &index: &usize| {
            (self.matrices[index], self.orthogonalised(index, scratch, threads))
        };
        let done: Vec<(usize, Array)> = match threads {
            Threads::One => {
                order.par_iter().with_max_len(1).map_init(Default::default, one).collect()
            }
            Threads::All => {
                let mut scratch = Default::default();
                order.iter().map(|index| one(&mut scratch, index)).collect()
            }
        };
        done.into_iter().for_each(|(k, array)| direction[k] = array);
        let mut others: Vec<Array> =
            self.others.iter().map(|&k| std::mem::take(&mut direction[k])).collect();
        if let Some(&std) = answer.std.get(self.matrices.len()) {
            self.moments.advance(others.iter_mut(), std, self.config.auxiliary_ratio);
        }
        self.others.iter().zip(others).for_each(|(&k, array)| direction[k] = array);
        self.steps += 1;
        Ok(direction)
    }

    /// In billionths of a second, roughly: noise and updates take some ten a number, and a product
    /// of the iteration one or two for each of the shorter side's.
    fn work(&self, tensor: usize, at: &Params) -> f64 {
        let matrix = &at[tensor];
        let products = if self.matrices.contains(&tensor) {
            matrix.rows().min(matrix.cols()) * (1 + 2 * self.config.probes)
        } else {
            0
        };
        matrix.len() as f64 * (10.0 + 0.75 * products as f64)
    }

    fn keep(&mut self, own: &dyn Fn(usize) -> bool) {
        forget(self.momentum.iter_mut(), |index| self.matrices[index], own);
        self.moments.keep(|index| self.others[index], own);
    }

    fn apply(
        &self,
        params: &mut Params,
        direction: &Params,
        rate: f64,
    ) -> Result<Vec<Note>, Refused> {
        let decays = [
            (&self.matrices, self.config.weight_decay),
            (&self.others, self.config.auxiliary.weight_decay * self.config.auxiliary_ratio),
        ];
        for (tensors, decay) in decays {
            tensors.iter().for_each(|&k| {
                elementwise::step_tensor(&mut params[k], &direction[k], rate, decay)
            });
        }
        Ok(Vec::new())
    }

    fn save(&self) -> State {
        let mut state = State::new("muon");
        state.set_number("steps", self.steps as f64);
        self.variance.iter().enumerate().for_each(|(index, &variance)| {
            state.set_number(&format!("variance {index}"), variance)
        });
        state.set_tensors("momentum", &self.momentum);
        state.set_part("others", self.moments.save());
        state
    }

    fn load(&mut self, mut state: State) -> Result<(), Refused> {
        state.is_of("muon")?;
        self.steps = state.count("steps")?;
        for (index, variance) in self.variance.iter_mut().enumerate() {
            *variance = state.number(&format!("variance {index}"))?;
        }
        state.tensors_into("momentum", &mut self.momentum)?;
        self.moments.load(state.part("others")?)
    }
}
