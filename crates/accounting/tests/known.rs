//! Laplace noise and releases whose guarantee is known, against closed forms and brute-force sums.
#![allow(clippy::unwrap_used)]

use accounting::{
    Accountant, Adjacency, Composition, Cost, Delta, Epsilon, Error, Event, FailureProbability,
    Rho, Sampling, SamplingRate, Sigma, Unit,
};

const ADD_REMOVE: Adjacency = Adjacency::AddRemove;
const REPLACE_ONE: Adjacency = Adjacency::ReplaceOne;

fn laplace(lots: Sampling, scale: f64) -> Event {
    Event::Laplace { lots, multiplier: Sigma::new(scale).unwrap() }
}

fn gaussian(sigma: f64) -> Event {
    Event::gaussian(Sampling::Full, Sigma::new(sigma).unwrap())
}

fn poisson(rate: f64) -> Sampling {
    Sampling::Poisson { rate: SamplingRate::new(rate).unwrap() }
}

fn known(epsilon: f64, delta: f64) -> Event {
    Event::EpsilonDelta {
        epsilon: Epsilon::new(epsilon).unwrap(),
        delta: FailureProbability::new(delta).unwrap(),
        adjacency: ADD_REMOVE,
    }
}

fn zcdp(rho: f64, adjacency: Adjacency) -> Event {
    Event::Zcdp { rho: Rho::new(rho).unwrap(), adjacency }
}

fn cost(events: &[(Event, u64)], unit: impl Into<Unit>) -> Result<Cost, Error> {
    let mut all = Composition::new();
    for (event, count) in events {
        all.push(event.clone(), *count)?;
    }
    Cost::new(&all, unit)
}

fn delta_of(events: &[(Event, u64)], accountant: Accountant, epsilon: f64) -> f64 {
    let epsilon = Epsilon::new(epsilon).unwrap();
    cost(events, ADD_REMOVE).unwrap().delta(accountant, epsilon).unwrap().delta
}

fn epsilon_of(events: &[(Event, u64)], unit: impl Into<Unit>, by: Accountant, delta: f64) -> f64 {
    let delta = Delta::new(delta).unwrap();
    cost(events, unit).unwrap().epsilon(by, delta).unwrap().epsilon
}

/// An upper bound that exceeds the exact value by at most `share`.
fn assert_tight(bound: f64, exact: f64, share: f64, what: &str) {
    assert!(
        bound >= exact * (1.0 - 1e-12) && bound <= exact * (1.0 + share) + 1e-14,
        "{what}: {bound}, exactly {exact}"
    );
}

/// δ of one release with Laplace noise: 1 − e^{(ε−s)/2}.
fn laplace_delta(shift: f64, epsilon: f64) -> f64 {
    (-(0.5 * (epsilon - shift)).exp_m1()).max(0.0)
}

#[test]
fn one_laplace_release_has_its_closed_form() {
    for scale in [0.3, 1.0, 4.0, 50.0] {
        let shift = 1.0 / scale;
        for part in [0.0, 0.2, 0.7, 0.95] {
            let events = [(laplace(Sampling::Full, scale), 1)];
            let found = delta_of(&events, Accountant::Pld, part * shift);
            let exact = laplace_delta(shift, part * shift);
            assert_tight(found, exact, 1e-3, &format!("scale {scale}, ε = {part} of {shift}"));
        }
        // No loss is larger than the shift, at any δ.
        let events = [(laplace(Sampling::Full, scale), 3)];
        for by in [Accountant::Pld, Accountant::Rdp, Accountant::Best] {
            let epsilon = epsilon_of(&events, ADD_REMOVE, by, 1e-30);
            assert!(epsilon <= 3.0 * shift * (1.0 + 1e-12), "{by} at scale {scale}: {epsilon}");
            assert!(epsilon >= 2.9 * shift, "{by} at scale {scale}: {epsilon}");
            assert_eq!(delta_of(&events, by, 3.001 * shift), 0.0);
        }
        let pure = cost(&events, ADD_REMOVE).unwrap().pure_epsilon();
        assert!((pure / (3.0 * shift) - 1.0).abs() < 1e-12, "scale {scale}: {pure}");
        // Replaced by another, a row changes the sum by twice as much.
        let replaced = epsilon_of(&events, REPLACE_ONE, Accountant::Pld, 1e-30);
        assert!((replaced - 6.0 * shift).abs() < 0.1 * shift);
        let person = Unit { adjacency: ADD_REMOVE, rows: 2 };
        assert_eq!(epsilon_of(&events, person, Accountant::Pld, 1e-30), replaced);
    }
}

#[test]
fn sampled_laplace_noise_is_amplified_exactly() {
    // H_α((1−q)Q + qP ‖ Q) = q H_β(P‖Q) with β = 1 + (α − 1)/q, for α ≥ 1.
    for (rate, scale) in [(0.01_f64, 1.0_f64), (0.3, 0.5), (0.9, 2.0)] {
        for epsilon in [0.0_f64, 0.005, 0.1, 0.5] {
            let inner = (epsilon.exp_m1() / rate).ln_1p();
            let exact = rate * laplace_delta(1.0 / scale, inner);
            // The direction of adding: H_α(P ‖ (1−q)P + qQ) = (1 − α(1−q)) H_β(P‖Q) with
            // β = αq/(1 − α(1−q)), if α(1−q) < 1.
            let left = 1.0 - epsilon.exp() * (1.0 - rate);
            let other = if left > 0.0 {
                left * laplace_delta(1.0 / scale, (epsilon.exp() * rate / left).ln())
            } else {
                0.0
            };
            let events = [(laplace(poisson(rate), scale), 1)];
            let found = delta_of(&events, Accountant::Pld, epsilon);
            assert_tight(found, exact.max(other), 2e-3, &format!("q {rate}, ε {epsilon}"));
        }
        let run = [(laplace(poisson(rate), scale), 200)];
        let [pld, rdp] = [Accountant::Pld, Accountant::Rdp]
            .map(|accountant| epsilon_of(&run, ADD_REMOVE, accountant, 1e-6));
        let full = [(laplace(Sampling::Full, scale), 200)];
        assert!(pld <= rdp && rdp <= 1.3 * pld, "q {rate}: {pld}, {rdp}");
        assert!(pld < epsilon_of(&full, ADD_REMOVE, Accountant::Pld, 1e-6));
    }
    let whole = epsilon_of(&[(laplace(poisson(1.0), 2.0), 9)], ADD_REMOVE, Accountant::Pld, 1e-6);
    let full = epsilon_of(&[(laplace(Sampling::Full, 2.0), 9)], ADD_REMOVE, Accountant::Pld, 1e-6);
    assert_eq!(whole, full);
}

#[test]
fn renyi_divergences_of_laplace_noise_have_their_closed_form() {
    for scale in [0.4, 1.0, 6.0] {
        let cost = cost(&[(laplace(Sampling::Full, scale), 1)], ADD_REMOVE).unwrap();
        for order in [1.5_f64, 2.0, 7.3, 40.0] {
            // Mironov 2017, Table II.
            let (more, less) = ((order - 1.0) / scale, -order / scale);
            let sum = order * more.exp() + (order - 1.0) * less.exp();
            let exact = (sum / (2.0 * order - 1.0)).ln() / (order - 1.0);
            assert_tight(cost.renyi(order).unwrap(), exact, 3e-6, &format!("{scale}, {order}"));
        }
    }
}

#[test]
fn known_guarantees_compose_optimally() {
    // Kairouz, Oh, Viswanath 2015, Thm. 3.3.
    let exact = |epsilon: f64, delta: f64, count: u64, total: f64| {
        let mut sum = 0.0;
        let mut choose = 1.0;
        for i in 0..=count {
            let (k, i) = (count as f64, i as f64);
            let term = ((k - i) * epsilon).exp() - (total + i * epsilon).exp();
            sum += choose * term.max(0.0) / (1.0 + epsilon.exp()).powf(k);
            choose *= (k - i) / (i + 1.0);
        }
        let success = (1.0 - delta).powf(count as f64);
        1.0 - success * (1.0 - sum)
    };
    for (epsilon, delta, count) in [(1.0, 0.0, 1), (0.1, 0.0, 30), (0.5, 1e-6, 8), (0.02, 1e-3, 60)]
    {
        let events = [(known(epsilon, delta), count)];
        // The losses of all releases are multiples of ε. At those, δ has kinks, where the grid costs
        // more than between them.
        for (part, share) in [(0.31, 1e-3), (0.63, 1e-3), (0.0, 2e-2), (0.6, 2e-2)] {
            let total = part * epsilon * count as f64;
            let found = delta_of(&events, Accountant::Pld, total);
            let what = format!("{count} × ({epsilon}, {delta}) at {total}");
            assert_tight(found, exact(epsilon, delta, count, total), share, &what);
        }
    }
    // δ that is asked for may be no more than what the releases have already.
    let one = [(known(1.0, 1e-5), 1)];
    for by in [Accountant::Pld, Accountant::Rdp, Accountant::Best] {
        let exact = epsilon_of(&one, ADD_REMOVE, by, 1e-5);
        assert!((exact - 1.0).abs() < 1e-12, "{by}: {exact}");
        assert_eq!(epsilon_of(&one, ADD_REMOVE, by, 0.9e-5), f64::INFINITY);
        assert_eq!(epsilon_of(&[(known(0.0, 1e-6), 10)], ADD_REMOVE, by, 1e-4), 0.0);
        assert_eq!(epsilon_of(&[(known(0.0, 0.5), 2)], ADD_REMOVE, by, 0.7), f64::INFINITY);
        assert_eq!(delta_of(&one, by, 1.1), 1e-5);
    }
    assert_eq!(cost(&one, ADD_REMOVE).unwrap().renyi(2.0).unwrap(), f64::INFINITY);
}

#[test]
fn units_that_are_chains_of_neighbours_pay_for_each_link() {
    let ln = |epsilon: f64| epsilon.exp_m1();
    let (epsilon, delta) = (0.5_f64, 1e-6);
    for (unit, links) in [
        (Unit { adjacency: ADD_REMOVE, rows: 3 }, 3.0),
        (Unit { adjacency: REPLACE_ONE, rows: 1 }, 2.0),
        (Unit { adjacency: REPLACE_ONE, rows: 2 }, 4.0),
    ] {
        let events = [(known(epsilon, delta), 1)];
        let least = delta * ln(links * epsilon) / ln(epsilon);
        let by = Accountant::Best;
        assert_eq!(epsilon_of(&events, unit, by, 0.999 * least), f64::INFINITY);
        let found = epsilon_of(&events, unit, by, 1.001 * least);
        let share = found / (links * epsilon);
        assert!((0.99..1.0 + 1e-12).contains(&share), "{unit}: {found}");
        let found = epsilon_of(&[(zcdp(0.1, ADD_REMOVE), 2)], unit, by, 1e-5);
        let sigma = 1.0 / (2.0 * 0.2 * links * links).sqrt();
        let same = epsilon_of(&[(gaussian(sigma), 1)], ADD_REMOVE, Accountant::Rdp, 1e-5);
        assert!((found / same - 1.0).abs() < 1e-9, "{unit}: {found}, {same}");
    }
    // A failure that is certain.
    let person = Unit { adjacency: ADD_REMOVE, rows: 1000 };
    assert_eq!(epsilon_of(&[(known(3.0, 1e-3), 1)], person, Accountant::Best, 0.5), f64::INFINITY);
    // Nothing follows for data sets of different sizes.
    let replaced = [(zcdp(0.1, REPLACE_ONE), 1)];
    assert!(matches!(cost(&replaced, ADD_REMOVE), Err(Error::Unsupported { .. })));
    assert!(cost(&replaced, Unit { adjacency: ADD_REMOVE, rows: 2 }).is_err());
}

#[test]
fn kinds_of_noise_compose() {
    // δ of both together is the mean over the loss of the Laplace noise of the Gaussian's δ.
    let (scale, sigma) = (2.0, 1.5);
    let shift = 1.0 / scale;
    let gaussian_delta = |epsilon: f64| {
        if epsilon >= 0.0 {
            delta_of(&[(gaussian(sigma), 1)], Accountant::Pld, epsilon)
        } else {
            let positive = delta_of(&[(gaussian(sigma), 1)], Accountant::Pld, -epsilon);
            // H_α = 1 − α + α H_{1/α} for a pair that is its own mirror image.
            1.0 - epsilon.exp() + epsilon.exp() * positive
        }
    };
    for epsilon in [0.0, 0.8, 2.5] {
        let cells = 4000;
        let width = 2.0 * shift / f64::from(cells);
        let mut exact = 0.5 * gaussian_delta(epsilon - shift)
            + 0.5 * (-shift).exp() * gaussian_delta(epsilon + shift);
        for cell in 0..cells {
            let loss = (f64::from(cell) + 0.5) * width - shift;
            exact += width * 0.25 * (0.5 * (loss - shift)).exp() * gaussian_delta(epsilon - loss);
        }
        let events = [(laplace(Sampling::Full, scale), 1), (gaussian(sigma), 1)];
        let found = delta_of(&events, Accountant::Pld, epsilon);
        assert!((found / exact - 1.0).abs() < 1e-3, "ε = {epsilon}: {found}, {exact}");
        assert!(found >= exact * (1.0 - 1e-6));
        // A failure adds its share.
        let events = [events[0].clone(), events[1].clone(), (known(0.0, 0.01), 1)];
        let more = delta_of(&events, Accountant::Pld, epsilon);
        assert!((more - (0.01 + 0.99 * found)).abs() < 1e-9);
    }
    // With ρ, only Rényi bounds are left.
    let events = [(laplace(Sampling::Full, 2.0), 1), (zcdp(0.1, ADD_REMOVE), 1)];
    let best = epsilon_of(&events, ADD_REMOVE, Accountant::Best, 1e-5);
    assert_eq!(best, epsilon_of(&events, ADD_REMOVE, Accountant::Rdp, 1e-5));
    let alone = epsilon_of(&events[1..], ADD_REMOVE, Accountant::Best, 1e-5);
    assert!(best > alone && best < alone + shift);
}

#[test]
fn what_is_not_known_is_refused() {
    let delta = Delta::new(1e-5).unwrap();
    let refused = |events: &[(Event, u64)], accountant| {
        let cost = cost(events, ADD_REMOVE).unwrap();
        let zero = Epsilon::new(0.0).unwrap();
        matches!(cost.epsilon(accountant, delta), Err(Error::Unsupported { .. }))
            && matches!(cost.delta(accountant, zero), Err(Error::Unsupported { .. }))
    };
    assert!(refused(&[(zcdp(0.1, ADD_REMOVE), 1)], Accountant::Pld));
    for event in
        [laplace(Sampling::Full, 1.0), known(1.0, 0.0), known(1.0, 1e-4), zcdp(0.1, ADD_REMOVE)]
    {
        assert!(refused(&[(event.clone(), 1)], Accountant::Gdp), "{event}");
        assert!(event.to_string().len() > 10);
    }
    for event in [known(1.0, 1e-6), zcdp(0.1, ADD_REMOVE)] {
        assert!(cost(&[(event, 1)], ADD_REMOVE).unwrap().trade_off(delta).is_err());
    }
    let curve = cost(&[(laplace(Sampling::Full, 1.0), 1)], ADD_REMOVE).unwrap();
    let tpr = curve.trade_off(Delta::new(1e-9).unwrap()).unwrap().tpr(0.1);
    assert!((0.1 * 1.0_f64.exp()..0.1 * 1.0_f64.exp() * 1.001).contains(&tpr), "{tpr}");
    let fixed = Sampling::fixed_size(100, 10).unwrap();
    for (lots, unit) in [
        (fixed, Unit::from(ADD_REMOVE)),
        (fixed, REPLACE_ONE.into()),
        (poisson(0.1), REPLACE_ONE.into()),
    ] {
        assert!(cost(&[(laplace(lots, 1.0), 1)], unit).is_err(), "{lots} for {unit}");
    }
    for event in [gaussian(1.0), known(1.0, 1e-9), zcdp(0.1, ADD_REMOVE), Event::NonPrivate] {
        let pure = cost(&[(event.clone(), 1)], ADD_REMOVE).unwrap().pure_epsilon();
        assert_eq!(pure, f64::INFINITY, "{event}");
    }
    // A person's rows in Poisson lots have the bound of a chain.
    let run = [(laplace(poisson(0.1), 1.0), 10)];
    let person = Unit { adjacency: ADD_REMOVE, rows: 2 };
    let [one, two] = [ADD_REMOVE.into(), person]
        .map(|unit: Unit| epsilon_of(&run, unit, Accountant::Best, 1e-5));
    assert!(two > 1.9 * one, "{one}, {two}");
}
