//! The cost of a random number of runs, against the formulas of Papernot and Steinke (2022).
#![allow(clippy::unwrap_used)]

use accounting::tuning::{self, Repetition};
use accounting::{
    Accountant, Adjacency, Composition, Cost, Delta, Epsilon, Event, Sampling, Sigma,
};

/// ρ of one run: its Rényi divergence of order λ is ρλ.
const RHO: f64 = 0.1;
const DELTA: f64 = 1e-6;

fn run() -> Composition {
    let sigma = Sigma::new((1.0 / (2.0 * RHO)).sqrt()).unwrap();
    Composition::repeated(Event::gaussian(Sampling::Full, sigma), 1)
}

fn ours(repetition: Repetition) -> f64 {
    tuning::epsilon(&run(), Adjacency::AddRemove, repetition, Delta::new(DELTA).unwrap())
        .unwrap()
        .epsilon
}

/// Orders 1 + θ.
fn thetas() -> impl Iterator<Item = f64> {
    (0..2000).map(|i| 0.01 * 1.005_f64.powi(i))
}

/// ε at δ from the Rényi guarantee `total` of order 1 + θ (Canonne, Kamath, Steinke 2020, Prop.
/// 12).
fn converted(theta: f64, total: f64) -> f64 {
    total - (1.0 / theta).ln_1p() - ((1.0 + theta) * DELTA).ln() / theta
}

fn smallest(of: impl Fn(f64) -> f64) -> f64 {
    thetas().map(of).fold(f64::INFINITY, f64::min)
}

/// Theorem 6: a Poisson number of runs of this mean adds mean·δ̂ + ln(mean)/θ, where one run is
/// (ε̂, δ̂)-private with e^ε̂ = 1 + 1/θ. With the true δ̂ it is at most ours, which has an upper
/// bound of it.
#[test]
fn poisson_tuning_matches_theorem_6() {
    let cost = Cost::new(&run(), Adjacency::AddRemove).unwrap();
    for mean in [2.0, 10.0, 100.0] {
        let by_hand = smallest(|theta| {
            let hat = cost
                .delta(Accountant::Pld, Epsilon::new((1.0 / theta).ln_1p()).unwrap())
                .unwrap()
                .delta;
            converted(theta, RHO * (1.0 + theta) + mean * hat + f64::ln(mean) / theta)
        });
        let ours = ours(Repetition::Poisson(mean));
        assert!(ours >= by_hand - 1e-9 && ours < 1.5 * by_hand, "{mean}: {ours} / {by_hand}");
    }
}

/// Theorem 2 with η = 0: a logarithmic number of runs adds ρt + ln(1/γ)/(1 + t) + ln(mean)/θ for
/// any t > 0, where (1/γ − 1)/ln(1/γ) is the mean.
#[test]
fn logarithmic_tuning_matches_theorem_2() {
    for mean in [2.0, 10.0, 100.0] {
        // ln(1/γ), by Newton's method from above: (e^x − 1)/x = mean.
        let mut x: f64 = 20.0;
        for _ in 0..200 {
            let f = x.exp_m1() - mean * x;
            x -= f / (x.exp() - mean);
        }
        assert!((x.exp_m1() / x - mean).abs() < 1e-9 && x > 0.1);
        let free = smallest(|t| RHO * t + x / (1.0 + t));
        let by_hand =
            smallest(|theta| converted(theta, RHO * (1.0 + theta) + free + mean.ln() / theta));
        let ours = ours(Repetition::Logarithmic(mean));
        assert!(ours >= by_hand - 1e-9 && ours < 1.001 * by_hand, "{mean}: {ours} / {by_hand}");
    }
}
