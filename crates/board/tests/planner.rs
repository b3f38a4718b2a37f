//! The planner's numbers are those of the accountant.

#![allow(clippy::unwrap_used)]

mod support;

use accounting::calibrate::{self, Target};
use accounting::{
    Accountant, Adjacency, Composition, Cost, Delta, Epsilon, Event, Release, Sampling,
    SamplingMethod, SamplingRate, Sigma, Unit,
};
use muffle::protocol::{Role, Trainable};
use muffle::{Config, Plan};
use serde_json::Value;
use support::Server;

/// A setting of the planner.
struct Setting {
    records: u64,
    lot: u64,
    steps: u64,
    epochs: f64,
    epsilon: f64,
    delta: f64,
    blocks: u64,
    rows: u64,
    adjacency: Adjacency,
    sampling: SamplingMethod,
}

const BASE: Setting = Setting {
    records: 10_000,
    lot: 250,
    steps: 400,
    epochs: 10.0,
    epsilon: 3.0,
    delta: 1e-5,
    blocks: 1,
    rows: 1,
    adjacency: Adjacency::AddRemove,
    sampling: SamplingMethod::Poisson,
};

impl Setting {
    fn query(&self) -> String {
        format!(
            "records={}&lot={}&epochs={}&epsilon={}&delta={:e}&blocks={}&rows={}&adjacency={}\
             &sampling={}",
            self.records,
            self.lot,
            self.epochs,
            self.epsilon,
            self.delta,
            self.blocks,
            self.rows,
            self.adjacency,
            self.sampling
        )
    }

    fn unit(&self) -> Unit {
        Unit { adjacency: self.adjacency, rows: self.rows }
    }

    fn events(&self, sigma: f64, steps: u64) -> Composition {
        let lots = match self.sampling {
            SamplingMethod::Poisson => Sampling::Poisson {
                rate: SamplingRate::new(self.lot as f64 / self.records as f64).unwrap(),
            },
            SamplingMethod::FixedSize => Sampling::fixed_size(self.records, self.lot).unwrap(),
            SamplingMethod::Full => Sampling::Full,
            SamplingMethod::Shuffled => Sampling::shuffled(self.records / self.lot, 1).unwrap(),
        };
        let release = Release::joint([(Sigma::new(sigma).unwrap(), self.blocks)]).unwrap();
        let count = steps.div_ceil(lots.lots_per_event());
        Composition::repeated(Event::Gaussian { lots, release }, count)
    }

    fn epsilon_of(&self, sigma: f64, steps: u64) -> f64 {
        let cost = Cost::new(&self.events(sigma, steps), self.unit()).unwrap();
        cost.epsilon(Accountant::Best, Delta::new(self.delta).unwrap()).unwrap().epsilon
    }
}

fn settings() -> Vec<Setting> {
    vec![
        BASE,
        Setting { blocks: 12, ..BASE },
        Setting { rows: 4, ..BASE },
        Setting { adjacency: Adjacency::ReplaceOne, ..BASE },
        Setting { sampling: SamplingMethod::FixedSize, ..BASE },
        Setting { sampling: SamplingMethod::Shuffled, ..BASE },
        Setting { sampling: SamplingMethod::Full, lot: 10_000, epochs: 20.0, steps: 20, ..BASE },
        Setting { epsilon: 0.2, delta: 1e-9, ..BASE },
        Setting { records: 42_043, lot: 1024, epochs: 2.5, steps: 103, ..BASE },
    ]
}

fn server() -> Server {
    // The folder is removed at once: the planner needs none.
    Server::start(&[tempfile::tempdir().unwrap().path()])
}

#[test]
fn answers_are_those_of_the_accountant() {
    let server = server();
    for setting in settings() {
        let query = setting.query();
        let answer = server.get(&format!("plan?{query}")).json();
        let target = Target {
            epsilon: Epsilon::new(setting.epsilon).unwrap(),
            delta: Delta::new(setting.delta).unwrap(),
            unit: setting.unit(),
            accountant: Accountant::Best,
        };
        let expected = calibrate::sigma::<accounting::Error>(target, |sigma| {
            Ok(setting.events(sigma.get(), setting.steps))
        });
        let sigma = answer["sigma"].as_f64().unwrap();
        assert_eq!(sigma, expected.unwrap().0.get(), "{query}");
        assert_eq!(answer["steps"], setting.steps, "{query}");
        let epsilon = answer["epsilon"].as_f64().unwrap();
        assert_eq!(epsilon, setting.epsilon_of(sigma, setting.steps), "{query}");
        assert!(epsilon <= setting.epsilon);
        // The first answer asks for a little more noise, at the price of the same accountant.
        let first = server.get(&format!("plan/first?{query}")).json();
        let first_sigma = first["sigma"].as_f64().unwrap();
        assert!(first_sigma >= sigma * (1.0 - 2e-6) && first_sigma < 1.5 * sigma, "{query}");
        assert_eq!(first["epsilon"], setting.epsilon_of(first_sigma, setting.steps), "{query}");
        let priced = format!("{query}&sigma={sigma}");
        let epochs = server.get(&format!("plan/epochs?{priced}")).json();
        let costs = epochs["costs"].as_array().unwrap();
        assert_eq!(costs[0]["steps"], 1);
        assert_eq!(costs.last().unwrap()["steps"], setting.steps);
        for cost in costs {
            let steps = cost["steps"].as_u64().unwrap();
            assert_eq!(cost["epsilon"], setting.epsilon_of(sigma, steps), "{query} {steps}");
        }
    }
}

#[test]
fn the_attacker_is_bounded_by_the_trade_off_curve() {
    let server = server();
    let sigma = 1.5;
    let answer = server.get(&format!("plan/attacker?{}&sigma={sigma}", BASE.query())).json();
    let cost = Cost::new(&BASE.events(sigma, BASE.steps), BASE.unit()).unwrap();
    let curve = cost.trade_off(Delta::new(BASE.delta).unwrap()).unwrap();
    for found in answer["found"].as_array().unwrap() {
        let fpr = found["fpr"].as_f64().unwrap();
        assert_eq!(found["tpr"], curve.tpr(fpr));
    }
    let percent = 100.0 * curve.tpr(0.01);
    let sentence = answer["sentence"].as_str().unwrap();
    let shown: f64 = sentence.split(' ').nth(7).unwrap().parse().unwrap();
    assert!(shown >= percent && shown < percent + 0.11, "{sentence} {percent}");
}

#[test]
fn repeated_runs_cost_what_the_accountant_says() {
    let server = server();
    let sigma = 1.5;
    for runs in [2, 5, 10] {
        let query = format!("{}&sigma={sigma}&runs={runs}", BASE.query());
        let row = server.get(&format!("plan/repeated?{query}")).json();
        assert_eq!(row["all"], BASE.epsilon_of(sigma, BASE.steps * runs));
        let best = row["best"].as_f64().unwrap();
        assert!(best > BASE.epsilon_of(sigma, BASE.steps), "{row}");
    }
}

#[test]
fn the_recommendation_is_that_of_the_plan() {
    let server = server();
    let answer = server.get(&format!("plan/recommended?{}", BASE.query())).json();
    let target = Target {
        epsilon: Epsilon::new(BASE.epsilon).unwrap(),
        delta: Delta::new(BASE.delta).unwrap(),
        unit: BASE.unit(),
        accountant: Accountant::Rdp,
    };
    let expected = muffle::plan::recommend::recommend(BASE.records, None, None, |lot, steps| {
        let setting = Setting { lot, ..BASE };
        calibrate::sigma::<accounting::Error>(
            target,
            |sigma| Ok(setting.events(sigma.get(), steps)),
        )
        .map(|found| found.0.get())
    });
    let expected = expected.unwrap().setting;
    assert_eq!(
        (&answer["lot"], &answer["epochs"], &answer["steps"]),
        (&Value::from(expected.lot), &Value::from(expected.epochs), &Value::from(expected.steps))
    );
    let full = Setting { sampling: SamplingMethod::Full, lot: 10_000, ..BASE };
    assert!(server.get(&format!("plan/recommended?{}", full.query())).json().is_null());
}

#[test]
fn the_configuration_plans_the_same_noise() {
    let server = server();
    // The plan of a run counts the lots of a shuffled epoch exactly, and blocks by the optimizer.
    for setting in settings().iter().filter(|setting| setting.blocks == 1) {
        let answer = server.get(&format!("plan?{}", setting.query())).json();
        let config = Config::parse(answer["run_toml"].as_str().unwrap()).unwrap();
        let weight = Trainable::new("weight", [4, 4], Role::Hidden);
        let plan = Plan::new(&config, setting.records as usize, &[weight]).unwrap();
        assert_eq!(plan.steps, setting.steps);
        let sigma = answer["sigma"].as_f64().unwrap();
        assert!(
            (plan.sigma.gradient / sigma - 1.0).abs() < 2e-6,
            "{} {sigma}",
            plan.sigma.gradient
        );
    }
}

#[test]
fn settings_out_of_range_are_refused() {
    let server = server();
    let base = BASE.query();
    let error = |from: &str, to: &str| {
        let query = base.replace(from, to);
        assert_ne!(query, base);
        let answer = server.get(&format!("plan?{query}"));
        assert_eq!(answer.status, 400, "{to}: {answer:?}");
        serde_json::from_str::<Value>(&answer.body).unwrap()["error"].as_str().unwrap().to_string()
    };
    for (from, to, name) in [
        ("records=10000", "records=0", "records"),
        ("records=10000", "records=1e9", "records"),
        ("records=10000", "records=99999999999999999999", "records"),
        ("records=10000&", "", "records"),
        ("lot=250", "lot=0", "lot"),
        ("lot=250", "lot=10001", "lot"),
        ("epochs=10", "epochs=0", "epochs"),
        ("epochs=10", "epochs=-1", "epochs"),
        ("epochs=10", "epochs=NaN", "epochs"),
        ("epochs=10", "epochs=1e300", "epochs"),
        ("epsilon=3", "epsilon=0", "epsilon"),
        ("epsilon=3", "epsilon=inf", "epsilon"),
        ("epsilon=3", "epsilon=nan", "epsilon"),
        ("delta=1e-5", "delta=0", "delta"),
        ("delta=1e-5", "delta=1e-4", "delta"),
        ("delta=1e-5", "delta=NaN", "delta"),
        ("blocks=1", "blocks=0", "blocks"),
        ("rows=1", "rows=0", "rows"),
        ("adjacency=add-remove", "adjacency=x", "adjacency"),
        ("sampling=poisson", "sampling=x", "sampling"),
    ] {
        let message = error(from, to);
        assert!(message.starts_with(name), "{to}: {message}");
    }
    for part in ["epochs", "attacker", "repeated"] {
        let status = |more: &str| server.get(&format!("plan/{part}?{base}{more}")).status;
        assert_eq!(status("&runs=2"), 400);
        assert_eq!(status("&runs=2&sigma=0"), 400);
        assert_eq!(status("&runs=2&sigma=1"), 200);
        assert_eq!(status("&runs=0&sigma=1"), 400);
    }
}
