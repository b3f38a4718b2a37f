//! No pair of neighbours exceeds its dominating pair: random contributions in the plane, by
//! quadrature.
#![allow(clippy::unwrap_used)]

use accounting::{
    Accountant, Adjacency, Composition, Cost, Epsilon, Event, Sampling, SamplingRate, Sigma,
};
use proptest::prelude::*;

mod proptest_config;

type Point = [f64; 2];

/// A mixture of unit normals in the plane: (weight, centre).
type Mixture = Vec<(f64, Point)>;

fn density(mixture: &Mixture, z: Point) -> f64 {
    let normal = |c: Point| (-0.5 * ((z[0] - c[0]).powi(2) + (z[1] - c[1]).powi(2))).exp();
    mixture.iter().map(|(w, c)| w * normal(*c)).sum::<f64>() / std::f64::consts::TAU
}

/// H_α(P‖Q) = ∫ (P − αQ)₊ on a grid. The integrand has a kink, so the error is of second order in
/// the step.
fn hockey_stick(p: &Mixture, q: &Mixture, alpha: f64) -> f64 {
    let (reach, step) = (8.0, 0.05);
    let points = (2.0 * reach / step) as i32;
    let mut sum = 0.0;
    for i in 0..=points {
        for j in 0..=points {
            let z = [-reach + step * i as f64, -reach + step * j as f64];
            sum += (density(p, z) - alpha * density(q, z)).max(0.0);
        }
    }
    sum * step * step
}

fn clipped(angle: f64, length: f64, bound: f64) -> Point {
    [bound * length * angle.cos(), bound * length * angle.sin()]
}

fn plus(a: Point, b: Point) -> Point {
    [a[0] + b[0], a[1] + b[1]]
}

fn claimed(lots: Sampling, sigma: f64, adjacency: Adjacency, epsilon: f64) -> f64 {
    let events = Composition::repeated(Event::gaussian(lots, Sigma::new(sigma).unwrap()), 1);
    Cost::new(&events, adjacency)
        .unwrap()
        .delta(Accountant::Pld, Epsilon::new(epsilon).unwrap())
        .unwrap()
        .delta
}

/// An angle and a norm. Many norms are the clip bound, where the worst cases are.
fn contribution() -> impl Strategy<Value = (f64, f64)> {
    (0.0..std::f64::consts::TAU, prop_oneof![Just(1.0), 0.0..1.0_f64])
}

proptest! {
    #![proptest_config(proptest_config::config(40))]

    #[test]
    fn random_neighbours_under_poisson_sampling_stay_below_the_bound(
        x in contribution(),
        y in contribution(),
        q in 0.01..0.99_f64,
        sigma in 0.5..3.0_f64,
        epsilon in 0.0..2.0_f64,
    ) {
        let (x, y) = (clipped(x.0, x.1, 1.0 / sigma), clipped(y.0, y.1, 1.0 / sigma));
        let with = |v: Point| vec![(1.0 - q, [0.0, 0.0]), (q, v)];
        let nothing = vec![(1.0, [0.0, 0.0])];
        let (alpha, lots) = (epsilon.exp(), Sampling::Poisson { rate: SamplingRate::new(q).unwrap() });
        let add_remove = claimed(lots, sigma, Adjacency::AddRemove, epsilon);
        for (p, q) in [(with(x), nothing.clone()), (nothing, with(x))] {
            let seen = hockey_stick(&p, &q, alpha);
            prop_assert!(seen <= add_remove + 1e-4, "{seen} > {add_remove}");
        }
        let replace = claimed(lots, sigma, Adjacency::ReplaceOne, epsilon);
        let seen = hockey_stick(&with(x), &with(y), alpha);
        prop_assert!(seen <= replace + 1e-4, "{seen} > {replace}");
    }

    /// Lots of 2 out of 3 or 4 rows, all of them enumerated, independently of the proof.
    #[test]
    fn random_neighbours_under_fixed_size_sampling_stay_below_the_bound(
        rows in prop::collection::vec(contribution(), 4..=5),
        sigma in 0.7..3.0_f64,
        epsilon in 0.0..2.0_f64,
    ) {
        let rows: Vec<Point> = rows.iter().map(|r| clipped(r.0, r.1, 1.0 / sigma)).collect();
        let lots_of = |rows: &[Point]| -> Mixture {
            let sums: Vec<Point> = (0..rows.len())
                .flat_map(|i| (0..i).map(move |j| (i, j)))
                .map(|(i, j)| plus(rows[i], rows[j]))
                .collect();
            let n = sums.len() as f64;
            sums.into_iter().map(|centre| (1.0 / n, centre)).collect()
        };
        let alpha = epsilon.exp();
        let (extra, others) = rows.split_last().unwrap();
        let (replacement, others) = others.split_last().unwrap();
        let with = |row: Point| lots_of(&[others, &[row]].concat());
        // The data set with the row has others + 1 rows.
        let size = others.len() as u64 + 1;
        let lots = Sampling::fixed_size(size, 2).unwrap();
        let replace = claimed(lots, sigma, Adjacency::ReplaceOne, epsilon);
        let seen = hockey_stick(&with(*extra), &with(*replacement), alpha);
        prop_assert!(seen <= replace + 1e-4, "replace-one: {seen} > {replace}");
        let add_remove = claimed(lots, sigma, Adjacency::AddRemove, epsilon);
        let without = lots_of(others);
        for (p, q) in [(with(*extra), without.clone()), (without.clone(), with(*extra))] {
            let seen = hockey_stick(&p, &q, alpha);
            prop_assert!(seen <= add_remove + 1e-4, "add-remove: {seen} > {add_remove}");
        }
    }
}

/// The bounds are tight: where the dominating pair is attained, δ is its divergence.
#[test]
fn bounds_are_attained_by_the_worst_pairs() {
    let (q, sigma, epsilon) = (0.3, 1.0, 0.4_f64);
    let lots = Sampling::Poisson { rate: SamplingRate::new(q).unwrap() };
    let at = |x: f64| vec![(1.0 - q, [0.0, 0.0]), (q, [x, 0.0])];
    let remove = hockey_stick(&at(1.0), &vec![(1.0, [0.0, 0.0])], epsilon.exp());
    assert!((claimed(lots, sigma, Adjacency::AddRemove, epsilon) - remove).abs() < 2e-4);
    let replace = hockey_stick(&at(1.0), &at(-1.0), epsilon.exp());
    assert!((claimed(lots, sigma, Adjacency::ReplaceOne, epsilon) - replace).abs() < 2e-4);
    let fixed = hockey_stick(&at(2.0), &vec![(1.0, [0.0, 0.0])], epsilon.exp());
    assert!(
        (claimed(Sampling::fixed_size(10, 3).unwrap(), sigma, Adjacency::ReplaceOne, epsilon)
            - fixed)
            .abs()
            < 2e-4
    );
}
