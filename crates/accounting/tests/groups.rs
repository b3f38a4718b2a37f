//! Costs for units of several rows, against values computed by `peers/golden_groups.py`.
#![allow(clippy::unwrap_used)]

use Adjacency::{AddRemove, ReplaceOne};
use accounting::{
    Accountant, Adjacency, Composition, Cost, Delta, Epsilon, Event, Sampling, SamplingRate, Sigma,
    Unit,
};

/// σ, dataset, lot, adjacency, rows, ε, δ(ε), ε(1e-5): one step.
type FixedSize = (f64, u64, u64, Adjacency, u64, f64, f64, f64);
const FIXED_SIZE: [FixedSize; 8] = [
    (1.5, 1000, 50, ReplaceOne, 2, 1.0, 0.00499775984641, 6.52829562003),
    (1.5, 1000, 50, AddRemove, 2, 1.0, 0.00500980383007, 6.53179195135),
    (2.0, 1000, 100, ReplaceOne, 5, 3.0, 0.0292915604371, 26.798554735),
    (2.0, 1000, 100, AddRemove, 5, 3.0, 0.0296596001168, 26.8474340514),
    (4.0, 200, 100, ReplaceOne, 3, 2.0, 0.0168203976344, 5.16710312326),
    (4.0, 200, 100, AddRemove, 3, 2.0, 0.0175647271071, 5.20050537936),
    (3.0, 500, 5, ReplaceOne, 16, 4.0, 2.35225793413e-7, 1.93445096629),
    (3.0, 500, 5, AddRemove, 16, 4.0, 3.03361873642e-7, 2.01827315004),
];

/// σ, q, rows, ε, δ(ε), ε(1e-5): one step, replace-one.
const POISSON: [(f64, f64, u64, f64, f64, f64); 3] = [
    (1.0, 0.01, 2, 1.0, 6.50432724586e-7, 0.525429644104),
    (2.0, 0.1, 4, 3.0, 8.96715381093e-7, 2.38466130029),
    (0.8, 0.001, 3, 2.0, 7.77240424148e-10, 0.114972972775),
];

/// σ, epochs, adjacency, rows, ε(1e-5): full lots and shuffled epochs.
const UNSAMPLED: [(f64, u64, Adjacency, u64, f64); 10] = [
    (10.0, 4, AddRemove, 1, 0.725521750858),
    (10.0, 4, ReplaceOne, 1, 1.55498169153),
    (10.0, 4, AddRemove, 3, 2.44492390199),
    (10.0, 4, ReplaceOne, 3, 5.41348598434),
    (30.0, 25, AddRemove, 8, 6.12924483924),
    (30.0, 25, ReplaceOne, 8, 14.334311217),
    (50.0, 1, AddRemove, 100, 9.99725614643),
    (50.0, 1, ReplaceOne, 100, 24.3816108831),
    (5.0, 1, AddRemove, 2, 1.55498169153),
    (5.0, 1, ReplaceOne, 2, 3.38693318616),
];

fn cost(lots: Sampling, sigma: f64, steps: u64, adjacency: Adjacency, rows: u64) -> Cost {
    let events = Composition::repeated(Event::gaussian(lots, Sigma::new(sigma).unwrap()), steps);
    Cost::new(&events, Unit { adjacency, rows }).unwrap()
}

/// Asserts upper bounds close to the exact values: δ within 2e-4, ε within `slack`, relative.
fn check(cost: &Cost, epsilon: f64, delta: f64, at_small_delta: f64, slack: f64) {
    let ours = cost.delta(Accountant::Pld, Epsilon::new(epsilon).unwrap()).unwrap();
    let ratio = ours.delta / delta;
    assert!(
        (1.0 - 1e-10..1.0 + 2e-4).contains(&ratio),
        "{}, ε = {epsilon}: {} / {delta}",
        cost.unit(),
        ours.delta
    );
    assert_eq!(ours.unit, cost.unit());
    for accountant in [Accountant::Pld, Accountant::Best] {
        let ours = cost.epsilon(accountant, Delta::new(1e-5).unwrap()).unwrap();
        let ratio = ours.epsilon / at_small_delta;
        assert!(
            (1.0 - 1e-10..1.0 + slack).contains(&ratio),
            "{}: {} / {at_small_delta}",
            cost.unit(),
            ours.epsilon
        );
        assert_eq!((ours.unit, ours.delta), (cost.unit(), 1e-5));
    }
}

#[test]
fn groups_under_fixed_size_sampling() {
    for (sigma, dataset, lot, adjacency, rows, epsilon, delta, at_small_delta) in FIXED_SIZE {
        let lots = Sampling::fixed_size(dataset, lot).unwrap();
        check(&cost(lots, sigma, 1, adjacency, rows), epsilon, delta, at_small_delta, 2e-3);
    }
}

#[test]
fn groups_under_poisson_sampling_and_replace_one() {
    for (sigma, q, rows, epsilon, delta, at_small_delta) in POISSON {
        let lots = Sampling::Poisson { rate: SamplingRate::new(q).unwrap() };
        check(&cost(lots, sigma, 1, ReplaceOne, rows), epsilon, delta, at_small_delta, 2e-3);
    }
}

#[test]
fn groups_without_sampling() {
    let every_row = Sampling::Poisson { rate: SamplingRate::new(1.0).unwrap() };
    for (sigma, epochs, adjacency, rows, at_small_delta) in UNSAMPLED {
        for lots in [Sampling::Shuffled { dataset: 100, lot: 10 }, Sampling::Full, every_row] {
            let cost = cost(lots, sigma, epochs, adjacency, rows);
            let ours = cost.epsilon(Accountant::Pld, Delta::new(1e-5).unwrap()).unwrap().epsilon;
            assert!(
                (ours / at_small_delta - 1.0).abs() < 1e-6,
                "{lots:?} {}: {ours} / {at_small_delta}",
                cost.unit()
            );
            // The Rényi divergence of order α between N(μ, 1) and N(0, 1) is αμ²/2.
            let mu = adjacency.sensitivity() * rows as f64 * (epochs as f64).sqrt() / sigma;
            assert!((cost.renyi(3.0).unwrap() / (1.5 * mu * mu) - 1.0).abs() < 1e-9);
        }
    }
}

/// ε increases in the number of rows across the switch from direct analysis to the group bound.
#[test]
fn more_rows_cost_more_beyond_the_direct_analysis() {
    let lots = Sampling::Poisson { rate: SamplingRate::new(0.02).unwrap() };
    let of = |rows| {
        cost(lots, 400.0, 10, AddRemove, rows)
            .epsilon(Accountant::Rdp, Delta::new(1e-5).unwrap())
            .unwrap()
            .epsilon
    };
    let prices = [1, 16, 255, 256, 257, 300, 1000].map(of);
    assert!(prices.windows(2).all(|pair| pair[0] < pair[1]), "{prices:?}");
}
