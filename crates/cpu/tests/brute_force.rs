//! Norms and sums equal those of single examples, for every model, method and geometry.

#![allow(clippy::unwrap_used)]

mod support;

use cpu::NormMethod;
use engine::{Combination, Example};
use model::Activations;
use proptest::prelude::*;
use protocol::{Blocks, Frame, Geometry, Params};
use support::zoo::{self, Kind};
use support::{close, difference, gradients, norm, run, weighted};

/// Returns examples of these (length, masked); the last one has no targets.
fn examples(kind: Kind, seed: u64, lengths: &[(usize, usize)]) -> Vec<Example> {
    let mut all: Vec<Example> = lengths
        .iter()
        .zip(seed..)
        .map(|(&(length, masked), seed)| zoo::example(kind, seed, length, masked))
        .collect();
    if let Some(last) = all.pop() {
        all.push(zoo::without_targets(last));
    }
    all
}

/// Combines neighbouring examples to examples of up to `parts` parts, by turns as mean and as sum.
fn combined(examples: Vec<Example>, parts: usize) -> Vec<Example> {
    let combine = |(i, parts): (usize, &[Example])| {
        let combination = if i % 2 == 0 { Combination::Mean } else { Combination::Sum };
        Example::combined(parts.iter().cloned(), combination)
    };
    examples.chunks(parts).enumerate().filter_map(combine).collect()
}

fn weight(example: usize, block: usize) -> f64 {
    0.25 + 0.5 * example as f64 - 0.125 * block as f64
}

/// Returns an affine geometry with random center and scale.
fn affine(params: &Params) -> Geometry {
    let mut center = params.zeros_like();
    let mut scale = params.zeros_like();
    for k in 0..params.len() {
        center[k]
            .data_mut()
            .iter_mut()
            .enumerate()
            .for_each(|(i, x)| *x = 0.05 * zoo::noise(500 + k as u64, i));
        scale[k]
            .data_mut()
            .iter_mut()
            .enumerate()
            .for_each(|(i, x)| *x = 0.6 + 0.5 * zoo::noise(900 + k as u64, i).abs());
    }
    Geometry::Affine { center, scale }
}

proptest! {
    #![proptest_config(support::config(60))]

    #[test]
    fn norms_and_sums_equal_those_of_single_examples(
        which in 0..zoo::ALL.len(),
        seed in 0u64..1000,
        lengths in prop::collection::vec((0usize..20, 0usize..8), 0..7),
        parts in 1usize..4,
        per_tensor: bool,
        is_affine: bool,
        recompute: bool,
    ) {
        let kind = zoo::ALL[which];
        let (mut network, params) = zoo::network(kind, seed);
        let all = combined(examples(kind, seed, &lengths), parts);
        let references: Vec<&Example> = all.iter().collect();
        let count = params.len();
        let blocks = if per_tensor { Blocks::each(count) } else { Blocks::flat(count) };
        let geometry = if is_affine { affine(&params) } else { Geometry::Identity };
        let alone = gradients(&mut network, &params, &references);
        let activations =
            if recompute { Activations::Recompute } else { Activations::Retain };
        network.set_activations(activations);
        let mut outcome = None;
        for method in [NormMethod::Ghost, NormMethod::Direct, NormMethod::Cheapest] {
            network.set_norm_method(method);
            let observed = run(&mut network, &params, &references, &geometry, &blocks, weight);
            prop_assert_eq!(observed.losses.len(), all.len());
            for (example, gradient) in alone.iter().enumerate() {
                for block in 0..blocks.count() {
                    let got = observed.norms[example][block];
                    let expected = norm(gradient, &geometry, &blocks, block);
                    prop_assert!(
                        close(got, expected, 2e-4, 1e-5),
                        "{kind:?} {method:?} example {example} block {block}: {got} {expected}"
                    );
                }
            }
            outcome = Some(observed);
        }
        let outcome = outcome.unwrap();
        if all.is_empty() {
            prop_assert!(outcome.sum.iter().all(|tensor| tensor.data().iter().all(|&x| x == 0.0)));
        } else {
            let expected = weighted(&alone, &blocks, weight);
            let difference = difference(&outcome.sum, &expected);
            prop_assert!(difference < 1e-4, "{kind:?}: {difference}");
        }
    }

    /// Norms and sums do not depend on the partition of a lot into micro-batches.
    #[test]
    fn micro_batches_do_not_change_norms_and_sums(
        which in 0..zoo::ALL.len(),
        seed in 0u64..1000,
        lengths in prop::collection::vec((1usize..20, 0usize..8), 2..6),
        cut in 1usize..5,
    ) {
        let kind = zoo::ALL[which];
        let (mut network, params) = zoo::network(kind, seed);
        let example = |(&(length, masked), seed): (&(usize, usize), u64)| {
            zoo::example(kind, seed, length, masked)
        };
        let all: Vec<Example> = lengths.iter().zip(seed..).map(example).collect();
        let all = combined(all, 1 + seed as usize % 2);
        prop_assume!(all.len() > 1);
        let references: Vec<&Example> = all.iter().collect();
        let blocks = Blocks::flat(params.len());
        let mut outcome = |examples: &[&Example]| {
            run(&mut network, &params, examples, &Geometry::Identity, &blocks, |_, _| 0.5)
        };
        let whole = outcome(&references);
        let cut = cut.min(all.len() - 1);
        let (first, second) = (outcome(&references[..cut]), outcome(&references[cut..]));
        let mut sum = first.sum;
        for k in 0..sum.len() {
            sum[k].data_mut().iter_mut().zip(second.sum[k].data()).for_each(|(a, b)| *a += b);
        }
        prop_assert!(difference(&whole.sum, &sum) < 1e-4);
        for (i, norms) in first.norms.iter().chain(&second.norms).enumerate() {
            prop_assert!(close(norms[0], whole.norms[i][0], 1e-4, 1e-6));
        }
    }
}

/// Norms in tangent coordinates equal ‖P(G)‖ of the projection as an m×n matrix.
#[test]
fn tangent_norms_equal_those_of_the_projected_matrix() {
    for kind in [Kind::Gpt2Lora, Kind::LlamaLora] {
        let (mut network, params) = zoo::network(kind, 3);
        let frames: Vec<Frame> = network
            .pairs()
            .into_iter()
            .map(|(left, right)| Frame::new(&params, left, right).unwrap())
            .collect();
        assert!(!frames.is_empty());
        let geometry = Geometry::Tangent { frames: frames.clone() };
        let all: Vec<Example> = (0..4).map(|i| zoo::example(kind, i, 5 * i as usize, 1)).collect();
        let all: Vec<Example> = all.iter().cloned().chain(combined(all.clone(), 3)).collect();
        let references: Vec<&Example> = all.iter().collect();
        let alone = gradients(&mut network, &params, &references);
        let outcome = run(
            &mut network,
            &params,
            &references,
            &geometry,
            &Blocks::flat(params.len()),
            |_, _| 1.0,
        );
        for (example, gradient) in alone.iter().enumerate() {
            let mut square = 0.0;
            for frame in &frames {
                square += tangent_square(&params, frame, gradient);
            }
            assert!(
                close(outcome.norms[example][0], square.sqrt(), 1e-3, 1e-5),
                "{kind:?} {example}: {} {}",
                outcome.norms[example][0],
                square.sqrt()
            );
        }
    }
}

/// Returns ‖P(G)‖² of the tangent projection of G, computed as an m×n matrix in f64.
///
/// P(G) = G Π_B + Π_A G − Π_A G Π_B.
///
/// The gradients gA = G B and gB = Gᵀ A of the factors determine it: G Π_B = gA (BᵀB)⁻¹ Bᵀ and
/// Π_A G = A (AᵀA)⁻¹ gBᵀ.
fn tangent_square(params: &Params, frame: &Frame, gradient: &Params) -> f64 {
    let matrix = |a: &tensor::Array| -> Vec<Vec<f64>> {
        a.data().chunks(a.cols()).map(|row| row.iter().map(|&x| f64::from(x)).collect()).collect()
    };
    let (a, b) = (matrix(&params[frame.left]), matrix(&params[frame.right]));
    let (ga, gb) = (matrix(&gradient[frame.left]), matrix(&gradient[frame.right]));
    let t = |m: &Vec<Vec<f64>>| -> Vec<Vec<f64>> {
        (0..m[0].len()).map(|j| m.iter().map(|row| row[j]).collect()).collect()
    };
    let mul = |x: &Vec<Vec<f64>>, y: &Vec<Vec<f64>>| -> Vec<Vec<f64>> {
        x.iter()
            .map(|row| {
                (0..y[0].len()).map(|j| row.iter().zip(y).map(|(r, y)| r * y[j]).sum()).collect()
            })
            .collect()
    };
    let inverse = |m: &Vec<Vec<f64>>| -> Vec<Vec<f64>> {
        // Rank 2.
        let d = m[0][0] * m[1][1] - m[0][1] * m[1][0];
        vec![vec![m[1][1] / d, -m[0][1] / d], vec![-m[1][0] / d, m[0][0] / d]]
    };
    let (ia, ib) = (inverse(&mul(&t(&a), &a)), inverse(&mul(&t(&b), &b)));
    let right = mul(&mul(&ga, &ib), &t(&b));
    let left = mul(&mul(&a, &ia), &t(&gb));
    let both = mul(&mul(&mul(&a, &ia), &mul(&t(&a), &mul(&ga, &ib))), &t(&b));
    let mut square = 0.0;
    for i in 0..right.len() {
        for j in 0..right[0].len() {
            square += (right[i][j] + left[i][j] - both[i][j]).powi(2);
        }
    }
    square
}
