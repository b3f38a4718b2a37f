//! PRISM: private training of low-rank adapters, independent of their factorization (Wang and Zhang
//! 2026).
//!
//! Z = A Bᵀ can be written with many factors, and noise on the factors means something else for
//! each. PRISM clips and releases gradients in coordinates of the tangent space at Z
//! ([`protocol::Frame`]), keeps its first moment there and carries it from one tangent space to the
//! next, divides by an r×r second moment with a ridge at the known level of the noise, and steps
//! along the manifold of matrices of rank r ([`retraction`]).
//!
//! The ridge is λ_A = c₀ (σC/B)² · (m − ¾r)/m · tr((BᵀB)⁻¹)/r: what the noise alone contributes to
//! dAᵀdA/m, in the mean over directions. (The paper's σC²/b has another dimension.) Tensors that
//! belong to no pair, such as a task's head, join the same clip bound and are updated by Adam.

mod coordinates;
pub mod retraction;

use self::coordinates::{Tangent, lift, transport};
use crate::adam::{self, Moments};
use crate::config::{Hyperparameters, Setting};
use crate::descent::Gather;
use crate::gradient_noise::QueryTemplate;
use crate::{Auto, Descent, GradientNoise, Note, Probes, State, elementwise, within};
use protocol::{Bound, Frame, Geometry, GradientQuery, Noisy, Params, Refused, Role, Trainable};
use serde::{Deserialize, Serialize};
use tensor::matmul::product;
use tensor::{Array, linalg};

/// Hyperparameters of PRISM.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// β₁ and β₂
    pub betas: (f64, f64),
    /// c₀: the ridge, as a multiple of the noise.
    pub ridge: f64,
    /// The learning rate of the other tensors, relative to the pairs'; 1 by default.
    pub auxiliary_ratio: Auto<f64>,
    /// ε of Adam, which updates the other tensors.
    pub epsilon: f64,
}

impl Default for Config {
    fn default() -> Self {
        Self { betas: adam::BETAS, ridge: 1.0, auxiliary_ratio: Auto::Auto, epsilon: adam::EPSILON }
    }
}

impl Hyperparameters for Config {
    fn build(
        &self,
        noise: GradientNoise,
        setting: &Setting<'_>,
    ) -> Result<Box<dyn Descent>, Refused> {
        Ok(Box::new(Prism::new(*self, noise, setting.tensors, setting.probes())?))
    }
}

/// A pair of factors and its state.
struct Pair {
    left: usize,
    right: usize,
    moment: Tangent,
    /// V_A and V_B, r×r.
    second: (Array, Array),
}

impl Pair {
    /// Whether this process works on it.
    fn is_own(&self) -> bool {
        !self.moment.x.is_empty()
    }
}

/// Descent on the manifold of matrices of fixed rank.
pub struct Prism {
    config: Config,
    auxiliary_ratio: f64,
    template: QueryTemplate,
    pairs: Vec<Pair>,
    /// The tangent spaces of the last query, in the order of the pairs.
    geometry: Geometry,
    heads: Vec<usize>,
    moments: Moments,
    fresh: Probes,
    steps: u64,
}

impl Prism {
    /// Creates the optimizer for these tensors; their roles name the pairs. New directions come
    /// from `fresh` if a pair loses its rank.
    ///
    /// # Errors
    /// If none of the tensors is half of a pair, or a hyperparameter is out of range.
    pub fn new(
        config: Config,
        noise: GradientNoise,
        tensors: &[Trainable],
        fresh: Probes,
    ) -> Result<Self, Refused> {
        let head = adam::Rule::plain(config.betas, config.epsilon);
        head.check()?;
        within("optimizer.ridge", config.ridge, 0.0, f64::INFINITY)?;
        let ratio = config.auxiliary_ratio.or(1.0);
        let auxiliary_ratio = within("optimizer.auxiliary_ratio", ratio, 0.0, f64::INFINITY)?;
        let zeros = |k: usize| Array::zeros(tensors[k].shape.clone());
        let mut pairs = Vec::new();
        let mut heads = Vec::new();
        for (k, tensor) in tensors.iter().enumerate() {
            match tensor.role {
                Role::Left(right) => {
                    let rank = zeros(k).cols();
                    let small = || Array::zeros([rank, rank]);
                    pairs.push(Pair {
                        left: k,
                        right,
                        moment: Tangent { x: zeros(k), y: zeros(right) },
                        second: (small(), small()),
                    });
                }
                Role::Right(_) => {}
                _ => heads.push(k),
            }
        }
        if pairs.is_empty() {
            return Err(Refused::Query(
                "PRISM trains low-rank pairs, and the model has none: set model.lora_rank".into(),
            ));
        }
        let shapes: Vec<Array> = heads.iter().map(|&k| zeros(k)).collect();
        Ok(Self {
            config,
            auxiliary_ratio,
            template: QueryTemplate::one_block(noise, tensors.len()),
            pairs,
            geometry: Geometry::Tangent { frames: Vec::new() },
            heads,
            moments: Moments::new(head, shapes.iter()),
            fresh,
            steps: 0,
        })
    }

    fn frames(&self) -> &[Frame] {
        match &self.geometry {
            Geometry::Tangent { frames } => frames,
            _ => &[],
        }
    }
}

impl Descent for Prism {
    fn bounds(&self) -> &[Bound] {
        &self.template.bounds
    }

    fn query<'a>(&'a mut self, at: &'a Params) -> Result<GradientQuery<'a>, Refused> {
        let frames = self
            .pairs
            .iter()
            .map(|pair| Ok(Frame::new(at, pair.left, pair.right)?))
            .collect::<Result<Vec<_>, Refused>>()?;
        let before = std::mem::replace(&mut self.geometry, Geometry::Tangent { frames });
        if let (Geometry::Tangent { frames: before }, Geometry::Tangent { frames: now }) =
            (&before, &self.geometry)
        {
            for ((pair, before), now) in
                self.pairs.iter_mut().zip(before).zip(now).filter(|((pair, _), _)| pair.is_own())
            {
                pair.moment = transport(before, now, &pair.moment);
            }
        }
        Ok(self.template.query(at, &self.geometry))
    }

    fn direction(
        &mut self,
        _: &Params,
        answer: Noisy<Params>,
        _: Gather<'_>,
    ) -> Result<Params, Refused> {
        self.steps += 1;
        let mut direction = answer.value;
        self.geometry.decode(&mut direction);
        let (b1, b2) = self.config.betas;
        let steps = self.steps.min(i32::MAX as u64) as i32;
        let (c1, c2) = ((1.0 / (1.0 - b1.powi(steps))) as f32, 1.0 / (1.0 - b2.powi(steps)));
        let noise = self.config.ridge * answer.std[0].powi(2);
        let Geometry::Tangent { frames } = &self.geometry else {
            return Err(Refused::Query("an answer before a question".into()));
        };
        if frames.len() != self.pairs.len() {
            return Err(Refused::Query("an answer before a question".into()));
        }
        for (pair, frame) in self.pairs.iter_mut().zip(frames).filter(|(pair, _)| pair.is_own()) {
            let release = Tangent {
                x: std::mem::take(&mut direction[pair.left]),
                y: std::mem::take(&mut direction[pair.right]),
            };
            for (moment, release) in
                [(&mut pair.moment.x, &release.x), (&mut pair.moment.y, &release.y)]
            {
                elementwise::update(moment, release, |m, g| {
                    (b1 as f32).mul_add(m, (1.0 - b1) as f32 * g)
                });
            }
            let (da, db) = lift(frame, &release);
            let (ma, mb) = lift(frame, &pair.moment);
            for (at, second, delta, moment, other) in [
                (pair.left, &mut pair.second.0, da, ma, &frame.right_inverse),
                (pair.right, &mut pair.second.1, db, mb, &frame.left_inverse),
            ] {
                let (rows, rank) = (delta.rows() as f64, delta.cols() as f64);
                let square = product(delta.view().t(), delta.view());
                elementwise::update(second, &square, |v, s| {
                    (b2 as f32).mul_add(v, ((1.0 - b2) / rows) as f32 * s)
                });
                // tr((BᵀB)⁻¹) = ‖R_B⁻¹‖²
                let trace: f64 = other.data().iter().map(|&r| f64::from(r).powi(2)).sum();
                let ridge = noise * (rows - 0.75 * rank) / rows * trace / rank;
                let mut moved = product(moment.view(), inverse_root(second, c2, ridge)?.view());
                moved.data_mut().iter_mut().for_each(|x| *x *= c1);
                direction[at] = moved;
            }
        }
        let mut heads: Vec<Array> =
            self.heads.iter().map(|&k| std::mem::take(&mut direction[k])).collect();
        self.moments.advance(heads.iter_mut(), answer.std[0], self.auxiliary_ratio);
        self.heads.iter().zip(heads).for_each(|(&k, array)| direction[k] = array);
        Ok(direction)
    }

    /// Both factors of a pair must be its own, or neither.
    fn keep(&mut self, own: &dyn Fn(usize) -> bool) {
        for pair in self.pairs.iter_mut().filter(|pair| !own(pair.left)) {
            pair.moment = Tangent { x: Array::default(), y: Array::default() };
            pair.second = Default::default();
        }
        self.moments.keep(|index| self.heads[index], own);
    }

    fn apply(
        &self,
        params: &mut Params,
        direction: &Params,
        rate: f64,
    ) -> Result<Vec<Note>, Refused> {
        let (mut notes, mut moved) = (Vec::new(), Vec::new());
        for pair in &self.pairs {
            let (left, right) = (pair.left, pair.right);
            let fresh =
                |side: usize, out: &mut [f32]| self.fresh.write(self.steps, left, side, out);
            let (a, b, inflated) = retraction::retract(
                (&params[left], &params[right]),
                (&direction[left], &direction[right]),
                rate,
                fresh,
            )?;
            if inflated > 0 {
                notes.push(Note(format!(
                    "pair {left}/{right}: {inflated} of {} directions had vanished and were \
                     replaced by new ones",
                    a.cols()
                )));
            }
            moved.push((left, right, a, b));
        }
        // Nothing has changed until everything has succeeded.
        moved.into_iter().for_each(|(left, right, a, b)| (params[left], params[right]) = (a, b));
        self.heads
            .iter()
            .for_each(|&k| elementwise::step_tensor(&mut params[k], &direction[k], rate, 0.0));
        Ok(notes)
    }

    fn save(&self) -> State {
        let mut state = State::new("prism");
        state.set_number("steps", self.steps as f64);
        for (name, of) in [("moment", 0), ("second", 1), ("basis", 2), ("inverse", 3)] {
            let mut tensors = Vec::new();
            for (index, pair) in self.pairs.iter().enumerate() {
                let frame = self.frames().get(index);
                match of {
                    0 => tensors.extend([pair.moment.x.clone(), pair.moment.y.clone()]),
                    1 => tensors.extend([pair.second.0.clone(), pair.second.1.clone()]),
                    2 => tensors.extend(
                        frame
                            .into_iter()
                            .flat_map(|f| [f.left_basis.clone(), f.right_basis.clone()]),
                    ),
                    _ => tensors.extend(
                        frame
                            .into_iter()
                            .flat_map(|f| [f.left_inverse.clone(), f.right_inverse.clone()]),
                    ),
                }
            }
            state.tensors.insert(name.into(), tensors);
        }
        state.set_part("heads", self.moments.save());
        state
    }

    fn load(&mut self, mut state: State) -> Result<(), Refused> {
        state.is_of("prism")?;
        self.steps = state.count("steps")?;
        let started = state.tensors.get("basis").is_some_and(|bases| !bases.is_empty());
        let both =
            |f: &dyn Fn(&Pair) -> [Array; 2]| self.pairs.iter().flat_map(f).collect::<Vec<_>>();
        let mut moments = both(&|pair| [pair.moment.x.clone(), pair.moment.y.clone()]);
        let mut seconds = both(&|pair| [pair.second.0.clone(), pair.second.1.clone()]);
        let mut bases = if started { moments.clone() } else { Vec::new() };
        let mut inverses = if started { seconds.clone() } else { Vec::new() };
        for (name, into) in [
            ("moment", &mut moments),
            ("second", &mut seconds),
            ("basis", &mut bases),
            ("inverse", &mut inverses),
        ] {
            state.tensors_into(name, into)?;
        }
        let mut frames = Vec::new();
        for (index, pair) in self.pairs.iter_mut().enumerate() {
            let two = |list: &[Array]| (list[2 * index].clone(), list[2 * index + 1].clone());
            (pair.moment.x, pair.moment.y) = two(&moments);
            pair.second = two(&seconds);
            if started {
                let ((left_basis, right_basis), (left_inverse, right_inverse)) =
                    (two(&bases), two(&inverses));
                frames.push(Frame {
                    left: pair.left,
                    right: pair.right,
                    left_basis,
                    right_basis,
                    left_inverse,
                    right_inverse,
                });
            }
        }
        self.geometry = Geometry::Tangent { frames };
        self.moments.load(state.part("heads")?)
    }
}

/// (correction · V + ridge · I)^(−½) of a symmetric V ≥ 0. Directions in which there is nothing at
/// all, not even a ridge, are left alone.
fn inverse_root(second: &Array, correction: f64, ridge: f64) -> Result<Array, Refused> {
    let (values, vectors) = linalg::symmetric_eigen(second)?;
    let rank = values.len();
    let largest = values.iter().fold(0.0f64, |most, &v| most.max(correction * f64::from(v)));
    let least = 1e-12 * (largest + ridge);
    let scaled = Array::from_fn([rank, rank], |i| {
        let value = correction * f64::from(values[i % rank].max(0.0)) + ridge;
        let root = if value > least { value.sqrt().recip() } else { 0.0 };
        (f64::from(vectors.data()[i]) * root) as f32
    });
    Ok(product(scaled.view(), vectors.view().t()))
}
