//! Reference values from public accountants and from quadrature (`peers/golden_accounting.py`).
#![allow(clippy::unwrap_used)]

use accounting::{
    Accountant, Adjacency, Composition, Cost, Delta, Epsilon, Event, SamplingRate, Sigma, Unit,
};
use serde::Deserialize;

#[derive(Deserialize)]
struct Golden {
    public: Vec<Public>,
    public_heterogeneous: Vec<Heterogeneous>,
    truth: Vec<Truth>,
    rdp_truth: Vec<Renyi>,
    rdp_truth_replace: Vec<Renyi>,
    group_truth: Vec<Group>,
}

#[derive(Deserialize)]
struct Public {
    sigma: f64,
    q: f64,
    steps: u64,
    delta: f64,
    adjacency: Adjacency,
    pld: f64,
    rdp: Option<f64>,
}

#[derive(Deserialize)]
struct Heterogeneous {
    events: Vec<Step>,
    delta: f64,
    pld: f64,
}

#[derive(Deserialize)]
struct Step {
    sigma: f64,
    q: f64,
    steps: u64,
}

#[derive(Deserialize)]
struct Truth {
    sigma: f64,
    q: f64,
    steps: u64,
    epsilon: f64,
    adjacency: Adjacency,
    delta: f64,
}

#[derive(Deserialize)]
struct Renyi {
    sigma: f64,
    q: f64,
    order: f64,
    value: f64,
}

#[derive(Deserialize)]
struct Group {
    sigma: f64,
    q: f64,
    rows: u64,
    epsilon: f64,
    delta: f64,
}

fn golden() -> Golden {
    serde_json::from_str(include_str!("golden.json")).unwrap()
}

fn poisson(sigma: f64, q: f64, steps: u64) -> Composition {
    Composition::repeated(
        Event::poisson(SamplingRate::new(q).unwrap(), Sigma::new(sigma).unwrap()),
        steps,
    )
}

fn epsilon(events: &Composition, unit: impl Into<Unit>, accountant: Accountant, delta: f64) -> f64 {
    Cost::new(events, unit)
        .unwrap()
        .epsilon(accountant, Delta::new(delta).unwrap())
        .unwrap()
        .epsilon
}

/// The public PLD accountant's grid is coarse for long runs, so ours may be well below it.
#[test]
fn pld_matches_the_public_accountant() {
    for row in golden().public {
        let events = poisson(row.sigma, row.q, row.steps);
        let ours = epsilon(&events, row.adjacency, Accountant::Pld, row.delta);
        let ratio = ours / row.pld;
        assert!(
            ratio < 1.0 + 2e-4 && ratio > 0.95,
            "{} {} {} {}: {ours} / {}",
            row.sigma,
            row.q,
            row.steps,
            row.delta,
            row.pld
        );
    }
}

/// Searching all orders improves on a grid: little where it is dense, by a third without small
/// ones.
#[test]
fn rdp_matches_the_public_accountant() {
    for row in golden().public {
        let Some(public) = row.rdp else { continue };
        let ours = epsilon(
            &poisson(row.sigma, row.q, row.steps),
            row.adjacency,
            Accountant::Rdp,
            row.delta,
        );
        let ratio = ours / public;
        assert!(
            ratio < 1.0 + 1e-9 && ratio > 0.6,
            "{} {} {} {}: {ours} / {public}",
            row.sigma,
            row.q,
            row.steps,
            row.delta
        );
    }
}

#[test]
fn heterogeneous_runs_match_the_public_accountant() {
    for row in golden().public_heterogeneous {
        let mut events = Composition::new();
        for step in &row.events {
            events.extend(&poisson(step.sigma, step.q, step.steps)).unwrap();
        }
        let ours = epsilon(&events, Adjacency::AddRemove, Accountant::Pld, row.delta);
        let ratio = ours / row.pld;
        assert!(ratio < 1.0 + 3e-5 && ratio > 0.997, "{ours} / {}", row.pld);
    }
}

/// The table of the specification, as printed there.
#[test]
fn pld_and_rdp_match_the_specification() {
    for (sigma, q, steps, delta, pld, rdp) in [
        (1.0, 0.01, 1000, 1e-5, 1.828244, 2.101367),
        (1.5, 0.04, 2250, 1e-5, 6.768787, 7.329335),
        (1.1, 256.0 / 60000.0, 14040, 1e-5, 2.379644, 2.594363),
        (0.6, 1024.0 / 42061.0, 410, 1.0 / 84122.0, 11.104625, 12.766859),
        (2.0, 0.1, 500, 1e-6, 6.216700, 6.679293),
        (0.8, 0.001, 100000, 1e-7, 3.226937, 3.541121),
        (10.0, 1.0, 100, 1e-5, 4.377179, 4.728507),
        (0.5, 0.01, 1000, 1e-5, 13.360826, 15.472133),
        (5.0, 0.5, 200, 1e-5, 6.701170, 7.231782),
        // Table 3 of the DP-Muon paper, and its 49 blocks as the one joint release that they are.
        (0.7189, 1024.0 / 42043.0, 410, 8e-6, 6.9664, 7.9787),
        (0.7094, 1024.0 / 60591.0, 885, 1e-5, 6.9863, 7.9615),
        (2.3395 / 7.0, 1024.0 / 42043.0, 410, 8e-6, 61.98, 75.0),
    ] {
        let events = poisson(sigma, q, steps);
        let ours = epsilon(&events, Adjacency::AddRemove, Accountant::Pld, delta);
        assert!((ours / pld - 1.0).abs() < 3e-4, "{sigma} {q} {steps}: {ours} != {pld}");
        let ours = epsilon(&events, Adjacency::AddRemove, Accountant::Rdp, delta);
        assert!(
            ours / rdp < 1.0 + 1e-5 && ours / rdp > 0.92,
            "{sigma} {q} {steps}: {ours} != {rdp}"
        );
    }
}

/// δ(ε) of a few steps, one direction at a time: ours, the larger of both, is never below either.
#[test]
fn delta_is_never_below_quadrature() {
    for row in golden().truth {
        let cost = Cost::new(&poisson(row.sigma, row.q, row.steps), row.adjacency).unwrap();
        let ours = cost.delta(Accountant::Pld, Epsilon::new(row.epsilon).unwrap()).unwrap().delta;
        assert!(
            ours >= row.delta,
            "{} {} {} ε = {}: {ours} < {}",
            row.sigma,
            row.q,
            row.steps,
            row.epsilon,
            row.delta
        );
        // And the other way: at that δ, the ε is not below.
        let back = cost.epsilon(Accountant::Best, Delta::new(row.delta).unwrap()).unwrap().epsilon;
        assert!(
            back >= row.epsilon * (1.0 - 1e-9),
            "{} {} {}: {back} < {}",
            row.sigma,
            row.q,
            row.steps,
            row.epsilon
        );
    }
}

/// Where quadrature covers the worse direction, ours is close to it.
#[test]
fn delta_is_close_to_quadrature() {
    let mut close = 0;
    for row in golden().truth {
        let cost = Cost::new(&poisson(row.sigma, row.q, row.steps), row.adjacency).unwrap();
        let ours = cost.delta(Accountant::Pld, Epsilon::new(row.epsilon).unwrap()).unwrap().delta;
        close += usize::from(ours / row.delta < 1.0 + 2e-4);
    }
    assert!(close >= 60, "only {close} of 110 rows are close");
}

#[test]
fn groups_match_quadrature() {
    for row in golden().group_truth {
        let unit = Unit { adjacency: Adjacency::AddRemove, rows: row.rows };
        let cost = Cost::new(&poisson(row.sigma, row.q, 1), unit).unwrap();
        let ours = cost.delta(Accountant::Pld, Epsilon::new(row.epsilon).unwrap()).unwrap().delta;
        assert!(
            ours >= row.delta && ours < row.delta * (1.0 + 2e-4),
            "{} {} k = {} ε = {}: {ours} / {}",
            row.sigma,
            row.q,
            row.rows,
            row.epsilon,
            row.delta
        );
    }
}

/// Rényi divergences of integer and fractional orders against 40-digit quadrature, σ down to 0.2
/// and q up to 0.99.
#[test]
fn renyi_divergences_match_quadrature() {
    let golden = golden();
    let rows = golden.rdp_truth.iter().map(|row| (Adjacency::AddRemove, row));
    for (adjacency, row) in
        rows.chain(golden.rdp_truth_replace.iter().map(|row| (Adjacency::ReplaceOne, row)))
    {
        let ours =
            Cost::new(&poisson(row.sigma, row.q, 1), adjacency).unwrap().renyi(row.order).unwrap();
        // Above by the allowance for rounding, which is absolute: 1e-14 of (order − 1) times the
        // divergence.
        let allowance = 1e-11 * row.value + 2e-14 / (row.order - 1.0);
        assert!(
            ours >= row.value * (1.0 - 1e-14) && ours <= row.value + allowance,
            "{} {} {}: {ours} / {}",
            row.sigma,
            row.q,
            row.order,
            row.value
        );
    }
}
