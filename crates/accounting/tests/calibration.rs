//! Calibration keeps its target and is tight; the cost of hyperparameter tuning.
#![allow(clippy::unwrap_used)]

use accounting::calibrate::{self, Target};
use accounting::tuning::{self, Repetition};
use accounting::{
    Accountant, Adjacency, Composition, Cost, Delta, Epsilon, Error, Event, Release, Sampling,
    SamplingRate, Sigma,
};
use proptest::prelude::*;

mod proptest_config;

fn target(epsilon: f64, delta: f64, accountant: Accountant) -> Target {
    Target {
        epsilon: Epsilon::new(epsilon).unwrap(),
        delta: Delta::new(delta).unwrap(),
        unit: Adjacency::AddRemove.into(),
        accountant,
    }
}

fn poisson(q: f64, steps: u64) -> impl Fn(Sigma) -> accounting::Result<Composition> {
    move |sigma| Ok(Composition::repeated(Event::poisson(SamplingRate::new(q)?, sigma), steps))
}

/// The accountants that give upper bounds.
fn accountants() -> impl Strategy<Value = Accountant> {
    prop_oneof![Just(Accountant::Best), Just(Accountant::Rdp), Just(Accountant::Pld)]
}

proptest! {
    #![proptest_config(proptest_config::config(24))]

    #[test]
    fn sigma_keeps_the_target_and_a_smaller_one_does_not(
        epsilon in -2.0..4.0_f64,
        q in -3.0..0.0_f64,
        steps in 1..5000_u64,
        delta in -9.0..-3.0_f64,
        accountant in accountants(),
    ) {
        let (target, q) = (target(epsilon.exp(), 10_f64.powf(delta), accountant), 10_f64.powf(q));
        let (sigma, price) = calibrate::sigma(target, poisson(q, steps)).unwrap();
        prop_assert!(price.epsilon <= target.epsilon.get());
        prop_assert_eq!(target.price(&poisson(q, steps)(sigma).unwrap()).unwrap(), price);
        let less = Sigma::new(sigma.get() * (1.0 - 1e-4)).unwrap();
        if less.get() > 1e-3 {
            let more = target.price(&poisson(q, steps)(less).unwrap()).unwrap();
            prop_assert!(more.epsilon > target.epsilon.get());
        }
    }

    #[test]
    fn steps_keep_the_target_and_one_more_does_not(
        epsilon in -1.0..3.0_f64,
        q in -3.0..-0.5_f64,
        sigma in 0.6..4.0_f64,
    ) {
        let target = target(epsilon.exp(), 1e-5, Accountant::Rdp);
        let event = Event::poisson(SamplingRate::new(10_f64.powf(q)).unwrap(), Sigma::new(sigma).unwrap());
        let (steps, price) = calibrate::steps(target, &Composition::new(), &event).unwrap();
        prop_assert!(price.epsilon <= target.epsilon.get());
        let more = Composition::repeated(event, steps + 1);
        prop_assert!(target.price(&more).unwrap().epsilon > target.epsilon.get(), "{steps}");
    }
}

/// The multipliers of the DP-Muon paper's Table 3, found from their ε: 49 blocks on one lot need 7
/// times the noise of one.
#[test]
fn sigmas_of_the_dp_muon_paper() {
    for (q, steps, delta, sigma) in
        [(1024.0 / 42043.0, 410, 8e-6, 0.7189), (1024.0 / 60591.0, 885, 1e-5, 0.7094)]
    {
        let target = target(7.97, delta, Accountant::Rdp);
        let (found, _) = calibrate::sigma(target, poisson(q, steps)).unwrap();
        assert!((found.get() / sigma - 1.0).abs() < 2e-3, "{found} != {sigma}");
        let joint = |sigma: Sigma| {
            let event = Event::Gaussian {
                lots: Sampling::Poisson { rate: SamplingRate::new(q)? },
                release: Release::joint([(sigma, 49)])?,
            };
            Ok::<_, Error>(Composition::repeated(event, steps))
        };
        let (each, _) = calibrate::sigma(target, joint).unwrap();
        assert!((each.get() / found.get() / 7.0 - 1.0).abs() < 1e-5, "{each}");
    }
}

/// HyFreeDP: σ_g is 1.01 times what the gradients alone need, and σ_l uses the budget that is left.
///
/// On fresh lots σ_l is far smaller than on the gradient's own lots. The published values, by RDP,
/// are 1.97 and 5.6.
#[test]
fn loss_probes_use_the_budget_that_gradients_leave() {
    let (rate, steps, probes) = (SamplingRate::new(1000.0 / 50_000.0).unwrap(), 250, 50);
    for (accountant, fresh_sigma, same_sigma) in
        [(Accountant::Rdp, 1.97, 5.63), (Accountant::Best, 1.88, 5.08)]
    {
        let target = target(3.0, 1e-5, accountant);
        let (reference, _) = calibrate::sigma(target, poisson(rate.get(), steps)).unwrap();
        let gradient = Sigma::new(1.01 * reference.get()).unwrap();
        let fresh = |sigma: Sigma| {
            let mut events = Composition::repeated(Event::poisson(rate, gradient), steps);
            events.push(
                Event::Gaussian {
                    lots: Sampling::Poisson { rate },
                    release: Release::joint([(sigma, 3)])?,
                },
                probes,
            )?;
            Ok::<_, Error>(events)
        };
        let same = |sigma: Sigma| {
            let mut events = Composition::repeated(Event::poisson(rate, gradient), steps - probes);
            let release = Release::joint([(gradient, 1), (sigma, 3)])?;
            events.push(Event::Gaussian { lots: Sampling::Poisson { rate }, release }, probes)?;
            Ok::<_, Error>(events)
        };
        let (fresh, price) = calibrate::sigma(target, fresh).unwrap();
        assert!(price.epsilon <= 3.0 && (fresh.get() - fresh_sigma).abs() < 0.01, "{fresh}");
        let (same, price) = calibrate::sigma(target, same).unwrap();
        assert!(price.epsilon <= 3.0 && (same.get() - same_sigma).abs() < 0.01, "{same}");
    }
}

#[test]
fn lot_size_keeps_the_target_and_a_larger_one_does_not() {
    let (target, n, sigma) =
        (target(3.0, 1e-5, Accountant::Best), 50_000, Sigma::new(1.0).unwrap());
    let events = |lot: u64| {
        Ok::<_, Error>(Composition::repeated(
            Event::poisson(SamplingRate::new(lot as f64 / n as f64)?, sigma),
            1000,
        ))
    };
    let (lot, price) = calibrate::lot_size(target, n, events).unwrap();
    assert!(
        price.epsilon <= 3.0 && target.price(&events(lot + 1).unwrap()).unwrap().epsilon > 3.0,
        "{lot}"
    );
}

#[test]
fn unreachable_targets_are_refused() {
    let tight = target(0.5, 1e-5, Accountant::Best);
    let spent = Composition::repeated(Event::gaussian(Sampling::Full, Sigma::new(1.0).unwrap()), 1);
    let more = |sigma: Sigma| {
        let mut events = spent.clone();
        events.push(Event::gaussian(Sampling::Full, sigma), 1)?;
        Ok(events)
    };
    assert!(matches!(calibrate::sigma(tight, more), Err(Error::Unreachable { .. })));
    let step = Event::gaussian(Sampling::Full, Sigma::new(1.0).unwrap());
    assert!(matches!(calibrate::steps(tight, &spent, &step), Err(Error::Unreachable { .. })));
    assert_eq!(calibrate::steps(tight, &Composition::new(), &step).unwrap().0, 0);
    assert!(matches!(
        calibrate::lot_size(tight, 10, |_| Ok(spent.clone())),
        Err(Error::Unreachable { .. })
    ));
    let never = |_: Sigma| Ok::<_, Error>(Composition::repeated(Event::NonPrivate, 1));
    assert!(calibrate::sigma(tight, never).is_err());
    // ε = 0 is reachable with δ > 0, by very large noise.
    let (sigma, price) =
        calibrate::sigma(target(0.0, 1e-3, Accountant::Best), poisson(0.1, 10)).unwrap();
    assert!(price.epsilon == 0.0 && sigma.get() > 10.0, "{sigma}");
}

/// Random repetition costs more than one run, far less than all runs, and increases with the mean.
#[test]
fn tuning_costs_more_than_one_run_and_less_than_all() {
    let run = Composition::repeated(
        Event::poisson(SamplingRate::new(0.01).unwrap(), Sigma::new(1.0).unwrap()),
        1000,
    );
    let delta = Delta::new(1e-6).unwrap();
    let price = |repetition| {
        tuning::epsilon(&run, Adjacency::AddRemove, repetition, delta).unwrap().epsilon
    };
    let once = Cost::new(&run, Adjacency::AddRemove)
        .unwrap()
        .epsilon(Accountant::Best, delta)
        .unwrap()
        .epsilon;
    assert_eq!(price(Repetition::Fixed(1)), once);
    let all = price(Repetition::Fixed(30));
    for law in [Repetition::Geometric, Repetition::Logarithmic, Repetition::Poisson] {
        let (few, many) = (price(law(3.0)), price(law(30.0)));
        assert!(
            once < few && few < many && many < all,
            "{}: {once} {few} {many} {all}",
            law(3.0).name()
        );
    }
    for bad in [0.0, -1.0, 0.5, f64::NAN, f64::INFINITY] {
        assert!(
            tuning::epsilon(&run, Adjacency::AddRemove, Repetition::Geometric(bad), delta).is_err()
        );
    }
}

/// Theorem 2 of Papernot and Steinke for a Gaussian run with ρ = 0.1 (μ² = 0.2), by hand: at order
/// 1 + θ and free order 1 + t the selection is ρ(1+θ) + (1+η)(ρt + ln(1/γ)/(1+t)) + ln(mean)/θ;
/// the smallest value over a fine grid of θ and t.
#[test]
fn geometric_tuning_matches_theorem_2() {
    let sigma = Sigma::new((1.0 / 0.2_f64).sqrt()).unwrap();
    let run = Composition::repeated(Event::gaussian(Sampling::Full, sigma), 1);
    let (rho, delta, mean): (f64, f64, f64) = (0.1, 1e-6, 10.0);
    let ours = tuning::epsilon(
        &run,
        Adjacency::AddRemove,
        Repetition::Geometric(mean),
        Delta::new(delta).unwrap(),
    )
    .unwrap()
    .epsilon;
    let grid = || (0..2000).map(|i| 0.01 * 1.005_f64.powi(i));
    let free =
        grid().map(|t| 2.0 * (rho * t + mean.ln() / (1.0 + t))).fold(f64::INFINITY, f64::min);
    let by_hand = grid()
        .map(|theta| {
            rho * (1.0 + theta) + free + mean.ln() / theta
                - (1.0 / theta).ln_1p()
                - ((1.0 + theta) * delta).ln() / theta
        })
        .fold(f64::INFINITY, f64::min);
    assert!(ours >= by_hand - 1e-9 && ours < by_hand * 1.001, "{ours} / {by_hand}");
}
