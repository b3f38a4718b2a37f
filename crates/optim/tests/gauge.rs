//! PRISM and the factorization of its pairs: (A, B) and (A R, B R⁻ᵀ) are the same matrix A Bᵀ.

#![allow(clippy::unwrap_used)]

use noise::PublicRandom;
use optim::{GradientNoise, Optimizer, Prism, Probes, Schedule, prism};
use protocol::{
    Announcement, Bound, Clipping, GradientQuery, LossQuery, Noisy, Oracle, Params, Refused, Role,
    TensorMap, Trainable,
};
use tensor::{Array, linalg};

/// m, n and r of each pair of a model.
type Shapes = &'static [(usize, usize, usize)];

const MODELS: [Shapes; 4] =
    [&[(9, 7, 3), (12, 5, 2)], &[(6, 6, 4)], &[(4, 9, 3), (5, 4, 1)], &[(20, 16, 4)]];
const EXAMPLES: u64 = 12;
const BATCH: f64 = 5.0;
const CLIP: f64 = 3.0;
const SIGMA: f64 = 0.4;

/// A matrix in f64, by rows.
#[derive(Clone)]
struct Matrix {
    rows: usize,
    cols: usize,
    data: Vec<f64>,
}

impl Matrix {
    fn from_fn(rows: usize, cols: usize, f: impl Fn(usize, usize) -> f64) -> Self {
        Self { rows, cols, data: (0..rows * cols).map(|i| f(i / cols, i % cols)).collect() }
    }

    fn of(array: &Array) -> Self {
        Self::from_fn(array.rows(), array.cols(), |i, j| {
            f64::from(array.data()[i * array.cols() + j])
        })
    }

    fn normal(rows: usize, cols: usize, key: &PublicRandom) -> Self {
        let mut values = vec![0.0f32; rows * cols];
        key.normals(0, &mut values);
        Self { rows, cols, data: values.into_iter().map(f64::from).collect() }
    }

    fn at(&self, i: usize, j: usize) -> f64 {
        self.data[i * self.cols + j]
    }

    fn t(&self) -> Self {
        Self::from_fn(self.cols, self.rows, |i, j| self.at(j, i))
    }

    fn times(&self, other: &Self) -> Self {
        assert_eq!(self.cols, other.rows);
        Self::from_fn(self.rows, other.cols, |i, j| {
            (0..self.cols).map(|l| self.at(i, l) * other.at(l, j)).sum()
        })
    }

    fn minus(&self, other: &Self) -> Self {
        Self::from_fn(self.rows, self.cols, |i, j| self.at(i, j) - other.at(i, j))
    }

    fn norm(&self) -> f64 {
        self.data.iter().map(|x| x * x).sum::<f64>().sqrt()
    }

    fn narrow(&self) -> Array {
        Array::from_fn([self.rows, self.cols], |i| self.data[i] as f32)
    }

    /// Converts to f32 and checks that nothing is rounded.
    fn exact(&self) -> Array {
        let array = self.narrow();
        assert_eq!(Self::of(&array).data, self.data, "rounded");
        array
    }
}

/// Returns a random invertible R and R⁻ᵀ, whose elements have so few bits that A R is exact in f32.
///
/// R = D L U, with powers of two in D, and unit triangles L and U of small integers, whose inverses
/// are integers, too. The condition number is between `low` and `high`.
fn gauge(rank: usize, seed: u64, (low, high): (f64, f64)) -> (Matrix, Matrix) {
    let key = PublicRandom::from_seed(seed).derive(rank as u64);
    for attempt in 0..10_000 {
        let draw = Matrix::normal(3 * rank, rank, &key.derive(attempt));
        let (mut r, mut inverse) = (identity(rank), identity(rank));
        // One elementary matrix I + k e_i e_jᵀ after another; its inverse is I − k e_i e_jᵀ.
        for (i, j) in (0..rank).flat_map(|i| (0..rank).map(move |j| (i, j))).filter(|(i, j)| i != j)
        {
            let k = (1.2 * draw.at(i, j)).round();
            let shear = |k: f64| {
                Matrix::from_fn(rank, rank, |a, b| {
                    f64::from(u8::from(a == b)) + if (a, b) == (i, j) { k } else { 0.0 }
                })
            };
            r = r.times(&shear(k));
            inverse = shear(-k).times(&inverse);
        }
        let power = |i: usize| (1.5 * draw.at(2 * rank, i)).round().exp2();
        let r = Matrix::from_fn(rank, rank, |i, j| power(i) * r.at(i, j));
        let inverse = Matrix::from_fn(rank, rank, |i, j| inverse.at(i, j) / power(j));
        assert_eq!(r.times(&inverse).data, identity(rank).data);
        let (_, s, _) = linalg::svd(&r.narrow()).unwrap();
        if rank == 1 || (low..high).contains(&f64::from(s[0] / s[rank - 1])) {
            return (r, inverse.t());
        }
    }
    panic!("no matrix of rank {rank} with a condition number from {low} to {high}")
}

fn identity(rank: usize) -> Matrix {
    Matrix::from_fn(rank, rank, |i, j| f64::from(u8::from(i == j)))
}

/// The pairs of a model, and a vector without a pair.
fn tensors(shapes: Shapes) -> Vec<Trainable> {
    let mut tensors = Vec::new();
    for &(m, n, r) in shapes {
        let k = tensors.len();
        for (rows, role) in [(m, Role::Left(k + 1)), (n, Role::Right(k))] {
            tensors.push(Trainable::new(format!("t{}", tensors.len()), [rows, r], role));
        }
    }
    tensors.push(Trainable::new("bias", [3], Role::Vector));
    tensors
}

/// Random parameters: factors of multiples of 1/64, not balanced.
fn start(shapes: Shapes, seed: u64) -> Params {
    let key = PublicRandom::from_seed(seed);
    let tensor = |(k, tensor): (usize, &Trainable)| {
        let mut array = Array::zeros(tensor.shape.clone());
        key.derive(k as u64).normals(0, array.data_mut());
        array.data_mut().iter_mut().for_each(|x| *x = (x.clamp(-2.0, 2.0) * 64.0).round() / 64.0);
        array
    };
    Params::new(tensors(shapes).iter().enumerate().map(tensor).collect())
}

/// Replaces all pairs (A, B) by (A R, B R⁻ᵀ), exactly.
fn regauged(shapes: Shapes, params: &Params, seed: u64, condition: (f64, f64)) -> Params {
    let mut changed = params.clone();
    for (p, &(_, _, rank)) in shapes.iter().enumerate() {
        let (r, inverse) = gauge(rank, seed + p as u64, condition);
        changed[2 * p] = Matrix::of(&params[2 * p]).times(&r).exact();
        changed[2 * p + 1] = Matrix::of(&params[2 * p + 1]).times(&inverse).exact();
    }
    changed
}

/// A Bᵀ of each pair.
fn products(shapes: Shapes, params: &Params) -> Vec<Matrix> {
    let product = |p: usize| Matrix::of(&params[2 * p]).times(&Matrix::of(&params[2 * p + 1]).t());
    (0..shapes.len()).map(product).collect()
}

/// Examples with the losses ½‖A Bᵀ − T‖² + ½‖bias − t‖², clipped and noised.
///
/// The noise of a pair is σC P(Ξ), with a standard normal m×n matrix Ξ that does not depend on the
/// factors, and the projector P onto the tangent space at A Bᵀ. That is the law of the released
/// noise (`the_noise_covers_the_tangent_space_and_nothing_else` in claims.rs), written so that all
/// factorizations get the same tangent vector.
struct TangentOracle {
    shapes: Shapes,
    signal: bool,
    seed: u64,
    step: u64,
}

impl TangentOracle {
    fn new(shapes: Shapes, seed: u64) -> Self {
        Self { shapes, signal: true, seed, step: 0 }
    }

    /// Gradients with respect to all tensors, given those with respect to A Bᵀ and the bias.
    fn by_tensor(&self, at: &Params, pairs: &[Matrix], bias: Vec<f64>) -> Vec<Vec<f64>> {
        let factors = pairs.iter().enumerate().flat_map(|(p, g)| {
            let (a, b) = (Matrix::of(&at[2 * p]), Matrix::of(&at[2 * p + 1]));
            [g.times(&b).data, g.t().times(&a).data]
        });
        factors.chain([bias]).collect()
    }

    fn random(&self, key: &PublicRandom) -> (Vec<Matrix>, Vec<f64>) {
        let pair = |(p, &(m, n, _)): (usize, &(usize, usize, usize))| {
            Matrix::normal(m, n, &key.derive(p as u64))
        };
        let pairs = self.shapes.iter().enumerate().map(pair).collect();
        (pairs, Matrix::normal(1, 3, &key.derive(99)).data)
    }
}

impl Oracle for TangentOracle {
    fn draw(&mut self, _: &Announcement) -> Result<(), Refused> {
        Ok(())
    }

    fn gradient(&mut self, query: &GradientQuery<'_>) -> Result<Noisy<TensorMap>, Refused> {
        let root = PublicRandom::from_seed(self.seed);
        let mut sum: Vec<Vec<f64>> = query.at.iter().map(|x| vec![0.0; x.len()]).collect();
        let mut add = |factor: f64, encoded: &[Vec<f64>]| {
            for (sum, x) in sum.iter_mut().flatten().zip(encoded.iter().flatten()) {
                *sum += factor * x;
            }
        };
        let points = products(self.shapes, query.at);
        for example in 0..if self.signal { EXAMPLES } else { 0 } {
            let (targets, bias) = self.random(&root.derive(1).derive(example));
            let residuals: Vec<Matrix> =
                points.iter().zip(&targets).map(|(z, target)| z.minus(target)).collect();
            let own = query.at[2 * points.len()].data();
            let bias = own.iter().zip(bias).map(|(&x, t)| f64::from(x) - t).collect();
            let gradient = self.by_tensor(query.at, &residuals, bias);
            let encoded = query.geometry.encode(query.blocks, gradient);
            let norm = encoded.iter().flatten().map(|x| x * x).sum::<f64>().sqrt();
            add(query.clipping.factor(norm, CLIP), &encoded);
        }
        let (noise, bias) = self.random(&root.derive(2).derive(self.step));
        let noise = self.by_tensor(query.at, &noise, bias);
        add(SIGMA * CLIP, &query.geometry.encode(query.blocks, noise));
        self.step += 1;
        let release = |(k, sum): (usize, &Vec<f64>)| {
            (k, Array::from_fn(query.at[k].shape(), |i| (sum[i] / BATCH) as f32))
        };
        let value = sum.iter().enumerate().map(release).collect();
        Ok(Noisy { value, std: vec![SIGMA * CLIP / BATCH] })
    }

    fn loss(&mut self, _: &LossQuery<'_>) -> Result<Noisy<f64>, Refused> {
        Err(Refused::Query("a fixed learning rate probes no loss".into()))
    }
}

fn optimizer(shapes: Shapes, subtract_noise: bool, rate: f64) -> Optimizer {
    Optimizer::new(descent(shapes, subtract_noise), Schedule::constant(rate).unwrap())
}

fn descent(shapes: Shapes, subtract_noise: bool) -> Prism {
    // β₂ is small, so that the second moment changes within a few steps.
    let config = prism::Config { betas: (0.8, 0.9), subtract_noise, ..prism::Config::default() };
    let bound = Bound::new(CLIP, SIGMA).unwrap();
    let noise = GradientNoise { bound, clipping: Clipping::Cut };
    Prism::new(config, noise, &tensors(shapes), Probes::from_seed(1)).unwrap()
}

/// Takes steps; returns A Bᵀ of each pair before the first step and after each one.
fn path(shapes: Shapes, mut params: Params, seed: u64, subtract_noise: bool) -> Vec<Vec<Matrix>> {
    let mut oracle = TangentOracle::new(shapes, seed);
    let mut optimizer = optimizer(shapes, subtract_noise, 0.05);
    let mut path = vec![products(shapes, &params)];
    for _ in 0..8 {
        assert_eq!(optimizer.step(&mut params, &mut oracle).unwrap().notes, []);
        path.push(products(shapes, &params));
    }
    path
}

/// The whole step of A Bᵀ, with momentum and preconditioner, is the same for all factorizations.
#[test]
fn steps_do_not_depend_on_the_factorization() {
    let (mut worst, mut shortest) = (0.0f64, f64::INFINITY);
    for (model, shapes) in MODELS.into_iter().enumerate() {
        for seed in 0..3 {
            let params = start(shapes, 100 * model as u64 + seed);
            for subtract_noise in [false, true] {
                let expected = path(shapes, params.clone(), seed, subtract_noise);
                for condition in [(1.0, 10.0), (30.0, 100.0), (300.0, 1000.0)] {
                    let other = regauged(shapes, &params, 10 * seed, condition);
                    assert!(other != params);
                    let got = path(shapes, other, seed, subtract_noise);
                    for step in 1..expected.len() {
                        for p in 0..shapes.len() {
                            let moved =
                                |path: &[Vec<Matrix>]| path[step][p].minus(&path[step - 1][p]);
                            let (expected, got) = (moved(&expected), moved(&got));
                            let apart = got.minus(&expected).norm() / expected.norm();
                            assert!(
                                apart < 1e-4,
                                "{:?} seed {seed} condition {condition:?} step {step}: {apart:e}",
                                shapes[p]
                            );
                            worst = worst.max(apart);
                            shortest = shortest.min(expected.norm());
                        }
                    }
                }
            }
        }
    }
    assert!(worst > 0.0 && shortest > 0.01, "{worst:e} {shortest}");
}

/// Without the balanced factors a step depends on the factorization, so there is no query.
#[test]
fn a_query_at_factors_that_are_not_balanced_is_refused() {
    use optim::Descent;
    for shapes in MODELS {
        let mut prism = descent(shapes, false);
        let mut params = start(shapes, 5);
        let refused = prism.query(&params).unwrap_err().to_string();
        assert!(refused.contains("expected balanced factors"), "{refused}");
        prism.initialize(&mut params).unwrap();
        let balanced = params.clone();
        assert!(prism.query(&params).is_ok());
        for scale in [1.001f32, 0.999, f32::NAN] {
            let mut changed = balanced.clone();
            changed[0].data_mut().iter_mut().for_each(|x| *x *= scale);
            assert!(prism.query(&changed).is_err(), "{scale}");
        }
    }
}

/// Directions that are missing at the start are replaced by the same ones for all factorizations.
#[test]
fn directions_that_are_missing_at_the_start_are_replaced_and_reported() {
    let shapes: Shapes = &[(9, 7, 3)];
    let lacking = |lost: usize| {
        let mut params = start(shapes, 3);
        for k in [0, 1] {
            let tensor = &mut params[k];
            tensor
                .data_mut()
                .iter_mut()
                .enumerate()
                .filter(|(i, _)| i % 3 < lost)
                .for_each(|(_, x)| *x = 0.0);
        }
        params
    };
    for lost in 1..=3 {
        let params = lacking(lost);
        let starts = [params.clone(), regauged(shapes, &params, 4, (30.0, 100.0))];
        let ends = starts.map(|mut params| {
            let mut oracle = TangentOracle::new(shapes, 1);
            let mut optimizer = optimizer(shapes, false, 1e-4);
            let notes = optimizer.step(&mut params, &mut oracle).unwrap().notes;
            assert_eq!(notes.len(), 1, "{notes:?}");
            assert!(notes[0].0.contains(&format!("{lost} of 3 directions")), "{notes:?}");
            products(shapes, &params).remove(0)
        });
        let apart = ends[0].minus(&ends[1]).norm() / ends[0].norm();
        assert!(apart < 1e-5, "{lost}: {apart:e}");
    }
    // The second pair is not finite: nothing is asked, and the first pair does not change.
    let two = MODELS[0];
    let mut params = start(two, 3);
    params[3].data_mut()[2] = f32::NAN;
    let before = params.clone();
    let mut oracle = TangentOracle::new(two, 1);
    assert!(optimizer(two, false, 0.1).step(&mut params, &mut oracle).is_err());
    assert_eq!(oracle.step, 0);
    assert!(params[0] == before[0] && params[1] == before[1]);
    // Fewer rows than columns.
    let flat: Shapes = &[(2, 7, 3)];
    assert!(optimizer(flat, false, 0.1).initialize(&mut start(flat, 3)).is_err());
}

/// A run that is resumed is not balanced again; one that is resumed before its first step is.
#[test]
fn a_resumed_run_equals_an_uninterrupted_one() {
    for shapes in MODELS {
        for subtract_noise in [false, true] {
            let unbalanced = regauged(shapes, &start(shapes, 8), 2, (30.0, 100.0));
            let run = |interrupted: &[u64]| {
                let mut params = unbalanced.clone();
                let mut oracle = TangentOracle::new(shapes, 6);
                let mut own = optimizer(shapes, subtract_noise, 0.05);
                for step in 0..6 {
                    if interrupted.contains(&step) {
                        let state = own.save().unwrap();
                        own = optimizer(shapes, subtract_noise, 0.05);
                        own.load(state).unwrap();
                    }
                    own.step(&mut params, &mut oracle).unwrap();
                }
                (params, own.save().unwrap())
            };
            let whole = run(&[]);
            for at in 0..6 {
                assert!(run(&[at]) == whole, "{shapes:?}: interrupted at {at}");
            }
            assert!(run(&[0, 1, 2, 3, 4, 5]) == whole);
        }
    }
}

/// Mean and standard error of each element of the second moments after some steps on noise alone.
///
/// `Prism` saves the moving average; divided by 1 − β₂ᵗ it is V̂.
fn second_moments(shapes: Shapes, subtract_noise: bool, steps: u64, trials: u64) -> Vec<[f64; 2]> {
    let correction = 1.0 / (1.0 - 0.9f64.powi(steps as i32));
    let mut sums: Vec<[f64; 2]> = Vec::new();
    for trial in 0..trials {
        let mut params = start(shapes, 7);
        let mut oracle =
            TangentOracle { signal: false, ..TangentOracle::new(shapes, 1000 + trial) };
        let mut optimizer = optimizer(shapes, subtract_noise, 0.05);
        for _ in 0..steps {
            optimizer.step(&mut params, &mut oracle).unwrap();
        }
        let mut state = optimizer.save().unwrap();
        let second = state.part("descent").unwrap().tensors.remove("second").unwrap();
        let elements = second.iter().flat_map(|(_, v)| v.data().to_vec());
        for (i, v) in elements.enumerate() {
            let v = correction * f64::from(v);
            if sums.len() == i {
                sums.push([0.0; 2]);
            }
            sums[i] = [sums[i][0] + v, sums[i][1] + v * v];
        }
    }
    let trials = trials as f64;
    let statistics = |[sum, squares]: [f64; 2]| {
        let mean = sum / trials;
        [mean, ((squares / trials - mean * mean) / trials).sqrt()]
    };
    sums.into_iter().map(statistics).collect()
}

/// Without a signal, the expectation of V̂ is the matrix that `subtract_noise` subtracts.
///
/// After one step it is also ν² (m − ¾r)/m (BᵀB)⁻¹, computed here from the balanced factors.
#[test]
fn the_subtracted_matrix_is_the_expectation_of_the_noise() {
    let shapes: Shapes = &[(5, 7, 2), (3, 4, 2)];
    let trials = 4000;
    for steps in [1, 4] {
        let plain = second_moments(shapes, false, steps, trials);
        let reduced = second_moments(shapes, true, steps, trials);
        assert_eq!(plain.len(), 4 * 4);
        for (i, [mean, error]) in reduced.iter().enumerate() {
            // 5.5 standard errors: a false alarm in 25 million elements.
            assert!(mean.abs() < 5.5 * error, "{steps} steps, element {i}: {mean} ± {error}");
        }
        // The test can see it: on the diagonal the noise is far above the error.
        for i in [0, 3, 4, 7, 8, 11, 12, 15] {
            assert!(plain[i][0] > 30.0 * plain[i][1], "{i}: {:?}", plain[i]);
        }
        if steps == 1 {
            for (i, expected) in expected_noise(shapes).into_iter().enumerate() {
                let [mean, error] = plain[i];
                assert!((mean - expected).abs() < 5.5 * error, "{i}: {mean} ± {error}, {expected}");
            }
        }
    }
}

/// ν² (m − ¾r)/m (BᵀB)⁻¹ and ν² (n − ¾r)/n (AᵀA)⁻¹ of each pair of rank 2, at the balanced start.
fn expected_noise(shapes: Shapes) -> Vec<f64> {
    let mut params = start(shapes, 7);
    optimizer(shapes, false, 0.05).initialize(&mut params).unwrap();
    let mut expected = Vec::new();
    for (p, &(m, n, rank)) in shapes.iter().enumerate() {
        assert_eq!(rank, 2);
        for (rows, other) in [(m as f64, 2 * p + 1), (n as f64, 2 * p)] {
            let other = Matrix::of(&params[other]);
            let gram = other.t().times(&other);
            let (a, b, d) = (gram.at(0, 0), gram.at(0, 1), gram.at(1, 1));
            let factor = (SIGMA * CLIP / BATCH).powi(2) * (rows - 1.5) / rows / (a * d - b * b);
            expected.extend([factor * d, -factor * b, -factor * b, factor * a]);
        }
    }
    expected
}

#[test]
fn subtracting_the_noise_needs_a_ridge() {
    let shapes = MODELS[0];
    let config = |ridge| prism::Config { ridge, subtract_noise: true, ..prism::Config::default() };
    let bound = Bound::new(CLIP, SIGMA).unwrap();
    let build = |ridge| {
        let noise = GradientNoise { bound, clipping: Clipping::Cut };
        Prism::new(config(ridge), noise, &tensors(shapes), Probes::from_seed(1))
    };
    assert!(build(0.1).is_ok());
    let refused = build(0.0).err().unwrap().to_string();
    assert!(refused.contains("optimizer.subtract_noise"), "{refused}");
}
