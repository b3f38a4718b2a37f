//! PRISM: private training of low-rank adapters (Wang and Zhang 2026).
//!
//! An adapter Z = A Bᵀ has many factorizations (A R, B R⁻ᵀ), and the effect of noise on A and B
//! depends on which one is used. The steps of PRISM do not depend on it:
//!
//! 1. Before the first query the factors are balanced ([`retraction::balance`]). That leaves an
//!    orthogonal R, and for such an R everything below is the same step of Z.
//! 2. Gradients are clipped and released in coordinates of the tangent space at Z
//!    ([`protocol::Frame`]), for any R.
//! 3. The first moment is stored in these coordinates and transported from one tangent space to the
//!    next.
//! 4. It is multiplied by the inverse root of an r×r second moment, with a ridge at the known level
//!    of the noise.
//! 5. The step follows the manifold of matrices of rank r and returns balanced factors
//!    ([`retraction::retract`]).
//!
//! Tensors without a pair, such as the head of a task, are in the same clip block and are updated
//! by Adam.
//!
//! # Noise in the second moment
//!
//! Let ν = σC/B. The released coordinates have the noise X = νN and Y = ν(I − Q_B Q_Bᵀ)N′, with
//! independent standard normal N (m×r) and N′ (n×r). With K = Q_Aᵀ X, the half lift gives
//!
//! - dA = (X − ½ Q_A K) R_B⁻ᵀ = (I − ½ Q_A Q_Aᵀ) X R_B⁻ᵀ. Since (I − ½P)² = I − ¾P for a projector
//!   P, and E(XᵀMX) = ν² tr(M) I: E(dAᵀdA) = ν² (m − ¾r) R_B⁻¹ R_B⁻ᵀ = ν² (m − ¾r) (BᵀB)⁻¹.
//! - dB = (Y + ½ Q_B Kᵀ) R_A⁻ᵀ. Its parts are orthogonal, E(YᵀY) = ν² (n − r) I and E(K Kᵀ) = ν² r I:
//!   E(dBᵀdB) = ν² (n − r + ¼r) (AᵀA)⁻¹ = ν² (n − ¾r) (AᵀA)⁻¹.
//!
//! So the noise adds N_A = ν² (m − ¾r)/m · (BᵀB)⁻¹ to the expectation of dAᵀdA/m, and N_B likewise.
//! The ridge is its average over directions, λ_A = c₀ tr(N_A)/r. (The paper's σC²/b has other
//! units.)
//!
//! With [`Config::subtract_noise`], each step adds dAᵀdA/m − N_A to the moving average. Averages
//! are linear, so the bias-corrected result is V̂ minus the bias-corrected average of all N_A, each
//! at the factors of its own step. N_A depends on earlier releases only; hence without a signal the
//! expectation of the result is 0, also while the factors move. Negative eigenvalues count as 0.

mod coordinates;
pub mod retraction;

use self::coordinates::{Tangent, lift, transport};
use crate::adam::{self, Moments};
use crate::config::{Hyperparameters, Setting};
use crate::gradient_noise::QueryTemplate;
use crate::state::Shapes;
use crate::{Auto, Descent, GradientNoise, Note, Probes, State, elementwise, keys, within};
use protocol::{
    Bound, Frame, Geometry, GradientQuery, Noisy, Params, Refused, Role, TensorMap, Trainable,
};
use tensor::matmul::product;
use tensor::{Array, linalg};

keys! {
    /// Hyperparameters of PRISM.
    #[derive(Clone, Copy, Debug)]
    #[serde(default, deny_unknown_fields)]
    pub struct Config {
        /// β₁ and β₂: decay of the averages of the gradient and of its square.
        pub betas: (f64, f64) = adam::BETAS,
        /// c₀: the ridge, as a multiple of the noise.
        pub ridge: f64 = 1.0,
        /// Whether the expectation of the noise is subtracted from the second moment.
        pub subtract_noise: bool = false,
        /// The learning rate of the other tensors, relative to the pairs'; 1 by default.
        pub auxiliary_ratio: Auto<f64> = Auto::Auto,
        /// ε of Adam, which updates the other tensors.
        pub epsilon: f64 = adam::EPSILON,
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

/// A pair of factors A (m×r) and B (n×r).
struct Pair {
    left: usize,
    right: usize,
    /// The moments; `None` before the first answer.
    state: Option<PairState>,
}

/// The moments of a pair.
struct PairState {
    moment: Tangent,
    /// V_A and V_B, r×r.
    second: (Array, Array),
}

impl PairState {
    /// Creates moments of zero for a release of these shapes.
    fn zeros(release: &Tangent) -> Self {
        let rank = release.x.cols();
        let (x, y) = (Array::zeros(release.x.shape()), Array::zeros(release.y.shape()));
        let second = || Array::zeros([rank, rank]);
        Self { moment: Tangent { x, y }, second: (second(), second()) }
    }
}

/// Descent on the manifold of matrices of fixed rank.
pub struct Prism {
    config: Config,
    auxiliary_ratio: f64,
    template: QueryTemplate,
    pairs: Vec<Pair>,
    shapes: Vec<Vec<usize>>,
    /// The tangent spaces of the last query, in the order of the pairs.
    geometry: Geometry,
    /// The indices of the tensors without a pair, which Adam updates.
    others: Vec<usize>,
    moments: Moments,
    fresh: Probes,
    steps: u64,
}

impl Prism {
    /// Creates the optimizer for these tensors, whose roles determine the pairs.
    ///
    /// If a pair loses its rank, new directions are drawn from `fresh`.
    ///
    /// # Errors
    /// If none of the tensors is half of a pair, or a hyperparameter is out of range.
    pub fn new(
        config: Config,
        noise: GradientNoise,
        tensors: &[Trainable],
        fresh: Probes,
    ) -> Result<Self, Refused> {
        let auxiliary = adam::Rule::plain(config.betas, config.epsilon);
        auxiliary.check()?;
        within("optimizer.ridge", config.ridge, 0.0, f64::INFINITY)?;
        if config.subtract_noise && config.ridge == 0.0 {
            return Err(Refused::Query(
                "optimizer.subtract_noise: expected an optimizer.ridge above 0, which bounds the \
                 steps, got 0"
                    .into(),
            ));
        }
        let ratio = config.auxiliary_ratio.or(1.0);
        let auxiliary_ratio = within("optimizer.auxiliary_ratio", ratio, 0.0, f64::INFINITY)?;
        let mut pairs = Vec::new();
        let mut others = Vec::new();
        for (k, tensor) in tensors.iter().enumerate() {
            match tensor.role {
                Role::Left(right) => pairs.push(Pair { left: k, right, state: None }),
                Role::Right(_) => {}
                _ => others.push(k),
            }
        }
        if pairs.is_empty() {
            return Err(Refused::Query(
                "PRISM trains low-rank pairs, and the model has none: set model.lora_rank".into(),
            ));
        }
        let other_shapes: Shapes = others.iter().map(|&k| (k, tensors[k].shape.clone())).collect();
        Ok(Self {
            config,
            auxiliary_ratio,
            template: QueryTemplate::one_block(noise, tensors.len()),
            pairs,
            shapes: tensors.iter().map(|tensor| tensor.shape.clone()).collect(),
            geometry: Geometry::Tangent { frames: Vec::new() },
            others,
            moments: Moments::new(auxiliary, other_shapes),
            fresh,
            steps: 0,
        })
    }

    /// Replaces the factors of each pair; either all pairs change or none.
    ///
    /// `change` returns the new factors, and how many of their directions are new.
    fn replace_pairs(
        &self,
        params: &mut Params,
        change: impl Fn(&Pair, &Params) -> Result<(Array, Array, usize), Refused>,
    ) -> Result<Vec<Note>, Refused> {
        let (mut notes, mut changed) = (Vec::new(), Vec::new());
        for pair in &self.pairs {
            let (left, right) = (pair.left, pair.right);
            let (a, b, inflated) = change(pair, params)?;
            if inflated > 0 {
                notes.push(Note(format!(
                    "pair {left}/{right}: {inflated} of {} directions had vanished and were \
                     replaced by new ones",
                    a.cols()
                )));
            }
            changed.push((left, right, a, b));
        }
        changed.into_iter().for_each(|(left, right, a, b)| (params[left], params[right]) = (a, b));
        Ok(notes)
    }

    /// Writes public random values for new directions of a pair.
    fn write_fresh(&self, pair: &Pair, side: usize, out: &mut [f32]) {
        self.fresh.write(self.steps, pair.left, side, out);
    }

    /// Returns the tangent space of a pair at the last query.
    fn frame_of(&self, pair: &Pair) -> Option<&Frame> {
        match &self.geometry {
            Geometry::Tangent { frames } => frame_at(frames, pair.left),
            _ => None,
        }
    }
}

fn frame_at(frames: &[Frame], left: usize) -> Option<&Frame> {
    frames.iter().find(|frame| frame.left == left)
}

impl Descent for Prism {
    fn bounds(&self) -> &[Bound] {
        &self.template.bounds
    }

    /// Balances the factors of each pair.
    fn initialize(&self, params: &mut Params) -> Result<Vec<Note>, Refused> {
        self.replace_pairs(params, |pair, params| {
            let factors = (&params[pair.left], &params[pair.right]);
            retraction::balance(factors, |side, out| self.write_fresh(pair, side, out))
        })
    }

    fn query<'a>(&'a mut self, at: &'a Params) -> Result<GradientQuery<'a>, Refused> {
        self.pairs.iter().try_for_each(|pair| check_balance(at, pair))?;
        let frames = self
            .pairs
            .iter()
            .map(|pair| Ok(Frame::new(at, pair.left, pair.right)?))
            .collect::<Result<Vec<_>, Refused>>()?;
        let before = std::mem::replace(&mut self.geometry, Geometry::Tangent { frames });
        if let (Geometry::Tangent { frames: before }, Geometry::Tangent { frames: now }) =
            (&before, &self.geometry)
        {
            for (pair, now) in self.pairs.iter_mut().zip(now) {
                if let (Some(state), Some(before)) = (&mut pair.state, frame_at(before, pair.left))
                {
                    state.moment = transport(before, now, &state.moment);
                }
            }
        }
        Ok(self.template.query(at, &self.geometry))
    }

    fn direction(&mut self, _: &Params, answer: Noisy<TensorMap>) -> Result<TensorMap, Refused> {
        self.steps += 1;
        let mut direction = answer.value;
        self.geometry.decode(&mut direction);
        let (b1, b2) = self.config.betas;
        let steps = self.steps.min(i32::MAX as u64) as i32;
        let (c1, c2) = ((1.0 / (1.0 - b1.powi(steps))) as f32, 1.0 / (1.0 - b2.powi(steps)));
        let variance = answer.std[0].powi(2);
        let Geometry::Tangent { frames } = &self.geometry else {
            return Err(Refused::Query("answered before it was asked".into()));
        };
        if frames.len() != self.pairs.len() {
            return Err(Refused::Query("answered before it was asked".into()));
        }
        for (pair, frame) in self.pairs.iter_mut().zip(frames) {
            let release = match (direction.remove(pair.left), direction.remove(pair.right)) {
                (Some(x), Some(y)) => Tangent { x, y },
                (None, None) => continue,
                _ => {
                    return Err(Refused::Query(format!(
                        "expected an answer for both factors {}/{} of a pair, got one",
                        pair.left, pair.right
                    )));
                }
            };
            let PairState { moment, second } =
                pair.state.get_or_insert_with(|| PairState::zeros(&release));
            for (moment, release) in [(&mut moment.x, &release.x), (&mut moment.y, &release.y)] {
                elementwise::update(moment, release, |m, g| {
                    (b1 as f32).mul_add(m, (1.0 - b1) as f32 * g)
                });
            }
            let (da, db) = lift(frame, &release);
            let (ma, mb) = lift(frame, moment);
            for (at, second, delta, moment, other) in [
                (pair.left, &mut second.0, da, ma, &frame.right_inverse),
                (pair.right, &mut second.1, db, mb, &frame.left_inverse),
            ] {
                let (rows, rank) = (delta.rows() as f64, delta.cols() as f64);
                let mut square = product(delta.view().t(), delta.view());
                // The noise of dAᵀdA is ν² (m − ¾r) (BᵀB)⁻¹, with (BᵀB)⁻¹ = R_B⁻¹ R_B⁻ᵀ.
                let gram_inverse = product(other.view(), other.view().t());
                let noise = variance * (rows - 0.75 * rank);
                if self.config.subtract_noise {
                    elementwise::update(&mut square, &gram_inverse, |s, g| {
                        (-noise as f32).mul_add(g, s)
                    });
                }
                elementwise::update(second, &square, |v, s| {
                    (b2 as f32).mul_add(v, ((1.0 - b2) / rows) as f32 * s)
                });
                let diagonal = gram_inverse.data().iter().step_by(delta.cols() + 1);
                let trace: f64 = diagonal.map(|&x| f64::from(x)).sum();
                let ridge = self.config.ridge * noise / rows * trace / rank;
                let mut moved = product(moment.view(), inverse_root(second, c2, ridge)?.view());
                moved.data_mut().iter_mut().for_each(|x| *x *= c1);
                direction.insert(at, moved);
            }
        }
        let others = direction.iter_mut().filter(|(k, _)| self.others.contains(k));
        self.moments.advance(others, answer.std[0], self.auxiliary_ratio);
        Ok(direction)
    }

    fn apply(
        &self,
        params: &mut Params,
        direction: &Params,
        rate: f64,
    ) -> Result<Vec<Note>, Refused> {
        let notes = self.replace_pairs(params, |pair, params| {
            retraction::retract(
                (&params[pair.left], &params[pair.right]),
                (&direction[pair.left], &direction[pair.right]),
                rate,
                |side, out| self.write_fresh(pair, side, out),
            )
        })?;
        self.others
            .iter()
            .for_each(|&k| elementwise::step(&mut params[k], &direction[k], rate, 0.0));
        Ok(notes)
    }

    fn save(&self) -> Result<State, Refused> {
        let mut state = State::new("prism");
        state.set_number("steps", self.steps as f64);
        let answered: Vec<_> = self
            .pairs
            .iter()
            .filter_map(|pair| Some((pair, self.frame_of(pair)?, pair.state.as_ref()?)))
            .collect();
        type Both<'a> = (&'a Array, &'a Array);
        let mut set = |name: &str, of: &dyn for<'a> Fn(&'a Frame, &'a PairState) -> Both<'a>| {
            let both = answered.iter().flat_map(|(pair, frame, own)| {
                let (left, right) = of(frame, own);
                [(pair.left, left.clone()), (pair.right, right.clone())]
            });
            state.set_tensors(name, &both.collect());
        };
        set("moment", &|_, own| (&own.moment.x, &own.moment.y));
        set("second", &|_, own| (&own.second.0, &own.second.1));
        set("basis", &|frame, _| (&frame.left_basis, &frame.right_basis));
        set("inverse", &|frame, _| (&frame.left_inverse, &frame.right_inverse));
        state.set_part("heads", self.moments.save());
        Ok(state)
    }

    fn load(&mut self, mut state: State) -> Result<(), Refused> {
        state.check_kind("prism")?;
        self.steps = state.count("steps")?;
        let factors = || self.pairs.iter().flat_map(|pair| [pair.left, pair.right]);
        let whole: Shapes = factors().map(|k| (k, self.shapes[k].clone())).collect();
        let rank = |k: usize| self.shapes[k].last().copied().unwrap_or(1);
        let small: Shapes = factors().map(|k| (k, vec![rank(k); 2])).collect();
        let mut moments = state.take_tensors("moment", &whole)?;
        let mut seconds = state.take_tensors("second", &small)?;
        let mut bases = state.take_tensors("basis", &whole)?;
        let mut inverses = state.take_tensors("inverse", &small)?;
        let mut frames = Vec::new();
        for pair in &mut self.pairs {
            let (left, right) = (pair.left, pair.right);
            let both = |map: &mut TensorMap| map.remove(left).zip(map.remove(right));
            // A restricted state has some of the pairs.
            pair.state = both(&mut moments)
                .zip(both(&mut seconds))
                .map(|((x, y), second)| PairState { moment: Tangent { x, y }, second });
            let frame = both(&mut bases).zip(both(&mut inverses));
            frames.extend(frame.map(|((left_basis, right_basis), inverses)| {
                let (left_inverse, right_inverse) = inverses;
                Frame { left, right, left_basis, right_basis, left_inverse, right_inverse }
            }));
        }
        self.geometry = Geometry::Tangent { frames };
        self.moments.load(state.part("heads")?)
    }
}

/// The largest accepted ‖AᵀA − BᵀB‖ of balanced factors, relative to ‖AᵀA‖ + ‖BᵀB‖.
///
/// Of balanced factors, rounded to f32, at most 4e-8 was seen.
const BALANCE_TOLERANCE: f64 = 1e-4;

/// Refuses factors that are not balanced.
///
/// Steps from them would depend on the factorization. It happens if the parameters were changed
/// from outside, or [`Descent::initialize`] was not called.
fn check_balance(at: &Params, pair: &Pair) -> Result<(), Refused> {
    let gram = |k: usize| product(at[k].view().t(), at[k].view());
    let (left, right) = (gram(pair.left), gram(pair.right));
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|x| x * x).sum::<f64>().sqrt();
    let whole = |gram: &Array| norm(&mut gram.data().iter().map(|&x| f64::from(x)));
    let apart =
        norm(&mut left.data().iter().zip(right.data()).map(|(&a, &b)| f64::from(a) - f64::from(b)));
    // Tests for the valid case, so that NaN is refused.
    if apart <= BALANCE_TOLERANCE * (whole(&left) + whole(&right)) {
        return Ok(());
    }
    Err(Refused::Query(format!(
        "pair {}/{}: expected balanced factors, AᵀA = BᵀB; got ‖AᵀA‖ = {:.3e}, ‖BᵀB‖ = {:.3e} and \
         ‖AᵀA − BᵀB‖ = {apart:.3e}",
        pair.left,
        pair.right,
        whole(&left),
        whole(&right)
    )))
}

/// Returns (correction · V + ridge · I)^(−½) for a symmetric V; its negative eigenvalues count as 0.
///
/// Eigenvalues of the sum that are zero up to rounding remain zero.
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
