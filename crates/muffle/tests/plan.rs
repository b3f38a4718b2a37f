//! Plans of configurations: steps, noise and cost.

#![allow(clippy::unwrap_used)]

use accounting::Accountant;
use curator::lot_event;
use muffle::Error;
use muffle::config::Config;
use muffle::plan::Plan;
use optim::registry;
use protocol::{Params, Role, Trainable};
use tensor::Array;

fn tensors(pairs: bool) -> Vec<Trainable> {
    let tensor = |name: &str, shape: &[usize], role| Trainable::new(name, shape, role);
    if pairs {
        vec![
            tensor("a.lora_left", &[6, 2], Role::Left(1)),
            tensor("a.lora_right", &[5, 2], Role::Right(0)),
        ]
    } else {
        // 48 matrices and the rest: as many blocks as GPT-2 has.
        let mut list: Vec<Trainable> =
            (0..48).map(|k| tensor(&format!("h.{k}"), &[2, 3], Role::Hidden)).collect();
        list.push(tensor("bias", &[4], Role::Vector));
        list
    }
}

fn plan(text: &str, records: usize) -> Result<Plan, Error> {
    let config = Config::parse(text)?;
    let tensors = tensors(config.optimizer.entry().needs_pairs);
    Plan::new(&config, records, &tensors)
}

/// The plan has the charges of all steps, and its time does not depend on their number.
#[test]
fn a_plan_has_the_lots_of_every_step() {
    for (every, steps, lot, rate) in [
        (1, 7, "fresh", "hyfree"),
        (3, 10, "same", "hyfree"),
        (3, 2, "fresh", "hyfree"),
        (5, 20, "fresh", "hyfree"),
        (4, 9, "fresh", "0.1"),
    ] {
        let rate = if rate == "hyfree" { "\"hyfree\"" } else { rate };
        let text = format!(
            "[privacy]\nsigma = 2.0\naccountant = \"rdp\"\n[training]\nlot_size = 10\nsteps = \
             {steps}\n[optimizer]\nname = \"dp-sgd\"\n\
             learning_rate = {rate}\n[optimizer.hyfree]\nevery = {every}\nlot = \"{lot}\""
        );
        let plan = plan(&text, 100).unwrap();
        let (tensors, params) = (tensors(false), Params::default());
        let optimizer = plan.optimizer(&Config::parse(&text).unwrap(), &tensors, &params).unwrap();
        let asked = (0..steps)
            .flat_map(|step| optimizer.lots(step))
            .map(|announced| lot_event(plan.sampling, &announced).unwrap());
        let mut asked: Vec<String> = asked.map(|event| event.to_string()).collect();
        let planned = plan
            .events
            .runs()
            .iter()
            .flat_map(|(event, count)| vec![event.to_string(); *count as usize]);
        let mut planned: Vec<String> = planned.collect();
        asked.sort();
        planned.sort();
        assert_eq!(planned, asked, "every {every} of {steps}");
    }
    let many = plan(
        "[privacy]\nsigma = 1e6\naccountant = \"rdp\"\n[training]\nsteps = \
            4000000000\n[optimizer]\nname = \"dp-sgd\"",
        100,
    )
    .unwrap();
    assert_eq!(many.events.len(), 4_000_000_000);
}

/// The DP-Muon paper's experiment on E2E: 42,043 records, lots of 1024, 10 epochs.
const E2E: &str = "[privacy]\nepsilon = 8\ndelta = 8e-6\naccountant \
    = \"rdp\"\n[training]\nlot_size = 1024\nepochs = 10\n";

#[test]
fn noise_multipliers_of_the_paper() {
    let adam = plan(&format!("{E2E}[optimizer]\nname = \"dp-adam\""), 42_043).unwrap();
    // 10 · 42043/1024 = 410.57: the paper has 410 steps.
    assert_eq!(adam.steps, 411);
    assert!((adam.sigma.gradient - 0.7189).abs() < 2e-3, "{:?}", adam.sigma);
    assert!((adam.lot_size() - 1024.0).abs() < 1e-9);
    // Muon's blocks have jointly the same noise as Adam's one block.
    let muon = plan(&format!("{E2E}[optimizer]\nname = \"dp-muon-bc\""), 42_043).unwrap();
    assert_eq!(muon.sigma.gradient, adam.sigma.gradient);
    assert!(muon.price.unwrap().epsilon <= 8.0);
    // PLD is tighter: less noise for the same promise.
    let tight =
        plan(&format!("{}[optimizer]\nname = \"dp-adam\"", E2E.replace("rdp", "pld")), 42_043)
            .unwrap();
    assert!(tight.sigma.gradient < 0.69, "{:?}", tight.sigma);
}

#[test]
fn hyfree_pays_for_its_probes() {
    let text = |lot: &str| {
        format!(
            "[privacy]\nepsilon = 3\ndelta = 1e-5\naccountant = \"rdp\"\n[training]\nlot_size = \
             1000\nsteps = 250\n\
             [optimizer]\nname = \"dp-adam\"\nlearning_rate = \"hyfree\"\n[optimizer.hyfree]\nlot \
             = \"{lot}\""
        )
    };
    let (fresh, same) =
        (plan(&text("fresh"), 50_000).unwrap(), plan(&text("same"), 50_000).unwrap());
    assert!((fresh.sigma.probe - 1.97).abs() < 0.02, "{:?}", fresh.sigma);
    assert!((same.sigma.probe - 5.63).abs() < 0.03, "{:?}", same.sigma);
    assert_eq!(fresh.events.len(), 300);
    assert_eq!(same.events.len(), 250);
    for plan in [fresh, same] {
        let spent = plan.price.unwrap().epsilon;
        assert!(spent <= 3.0 && spent > 2.99, "{spent}");
    }
    let shuffled = plan(&text("fresh").replace("rdp\"", "rdp\"\nsampling = \"shuffled\""), 50_000);
    assert!(matches!(shuffled, Err(error) if error.to_string().contains("poisson")));
}

#[test]
fn defaults_are_derived() {
    let plain = plan("", 10_000).unwrap();
    assert_eq!(plain.budget.unwrap().delta.get(), 1e-5);
    assert_eq!(plain.budget.unwrap().epsilon.get(), 8.0);
    assert_eq!(plain.lot_size(), 200.0);
    assert_eq!(plain.steps, 150);
    assert_eq!(plain.events.len(), 150);
    let given = plan(
        "[privacy]\nsigma = 1.0\ndelta = 1e-5\n[training]\nlot_size = 100\nsteps = 1000",
        10_000,
    )
    .unwrap();
    // σ = 1, q = 0.01, T = 1000.
    assert!((given.price.unwrap().epsilon - 1.8283).abs() < 1e-3);
    assert_eq!(given.budget.unwrap().epsilon.get(), given.price.unwrap().epsilon);
    let shuffled =
        plan("[privacy]\nsampling = \"shuffled\"\n[training]\nlot_size = 300\nsteps = 100", 1000)
            .unwrap();
    // 4 lots per epoch, 25 epochs.
    assert_eq!(shuffled.events.len(), 25);
    let persons = |more: &str| {
        let text = format!("[data]\ngroup = \"person\"\n{more}\n[privacy]\nepsilon = 3.0");
        plan(&text, 10_000)
    };
    let separate = "person_rows = \"separate\"";
    let grouped = persons(&format!("{separate}\nrows_per_person = 3")).unwrap();
    assert_eq!(grouped.budget.unwrap().unit.rows, 3);
    assert!(persons(separate).is_err(), "separate rows need a limit");
    // If the rows of a person are one record, persons cost what records cost.
    let rows = plan("[privacy]\nepsilon = 3.0", 10_000).unwrap();
    for limit in ["", "rows_per_person = 3"] {
        let combined = persons(limit).unwrap();
        assert_eq!(combined.sigma, rows.sigma);
        assert_eq!(combined.budget.unwrap().unit, rows.budget.unwrap().unit);
    }
    assert!(grouped.sigma.gradient > 1.5 * rows.sigma.gradient);
    assert!(grouped.sigma.gradient > plain.sigma.gradient);
    let without = plan("[optimizer]\nname = \"adam\"", 10_000).unwrap();
    assert!(without.budget.is_none() && without.price.is_none());
}

#[test]
fn invalid_values_are_refused_with_their_key() {
    for (text, part) in [
        ("[training]\nlot_size = 0", "training.lot_size"),
        ("[training]\nlot_size = 101", "at most 100, the number of records; got 101"),
        ("[training]\nsteps = 0", "training.steps"),
        ("[training]\nsteps = 5\nepochs = 2", "not both"),
        ("[training]\nepochs = -1", "training.epochs"),
        ("[privacy]\nepsilon = 1\nsigma = 1", "not both"),
        ("[privacy]\nepsilon = -1", "epsilon"),
        ("[privacy]\nsigma = 0", "privacy.sigma"),
        ("[privacy]\ndelta = 1", "delta"),
        ("[privacy]\naccountant = \"gdp\"", "best, pld or rdp"),
        ("[privacy]\nunit = \"person\"", "privacy.unit: \"person\" needs the column"),
        (
            "[privacy]\nunit = \"record\"\n[data]\ngroup = \"who\"",
            "privacy.unit: \"record\" contradicts data.group = \"who\"",
        ),
        (
            "[privacy]\nunit = \"user\"",
            "privacy.unit: expected \"record\" or \"person\" or \"auto\", got \"user\"",
        ),
        ("[optimizer]\nname = \"dp-moun\"", "dp-muon"),
        ("[optimizer]\nclip = 0", "optimizer.clip"),
        ("[optimizer]\nname = \"dp-sgd\"\nmomentum = 1.0", "optimizer.momentum"),
        (
            "[optimizer]\nname = \"dp-adam\"\nweight_decay = 0.1",
            "weight_decay: not read by dp-adam",
        ),
        ("[optimizer]\nname = \"dp-adamw\"\nweight_decay = -0.1", "optimizer.weight_decay"),
        ("[optimizer]\nlearning_rate = -0.1", "optimizer.learning_rate"),
        ("[optimizer]\nname = \"dp-muon\"\nnewton_schulz_degree = 0", "newton_schulz_degree"),
        ("[optimizer]\nlearning_rate = \"hyfree\"\n[optimizer.hyfree]\npoints = 4", "3 or 5"),
        (
            "[optimizer]\nlearning_rate = \"hyfree\"\n[optimizer.hyfree]\ngradient_factor = 1.0",
            "gradient_factor",
        ),
        ("[optimizer]\nname = \"dp-macadam\"\nclips = [2.0, 1.0]", "larger"),
    ] {
        let refused = plan(text, 100).unwrap_err();
        assert!(
            refused.to_string().contains(part) && refused.to_string().lines().count() == 1,
            "{text}: {refused}"
        );
    }
    let impossible = plan(
        "[privacy]\nepsilon = 1e-9\ndelta = 1e-300\nsampling = \"full\"\n[training]\nlot_size = \
         1\nsteps = 1000000",
        1,
    );
    assert!(matches!(impossible, Err(Error::Promise(_)) | Ok(_)));
}

/// A mechanism that publishes one random record has δ = 1/N.
#[test]
fn a_delta_of_one_record_is_refused() {
    for delta in ["0.5", "0.01", "1.0", "0.0", "-0.1", "nan"] {
        let refused = plan(&format!("[privacy]\ndelta = {delta}"), 100).unwrap_err().to_string();
        assert!(refused.starts_with("privacy.delta: expected"), "{refused}");
    }
    assert!(plan("[privacy]\ndelta = 0.0099", 100).is_ok());
    let refused = plan("[privacy]\ndelta = 0.5", 100).unwrap_err().to_string();
    assert!(refused.contains("less than 1/N = 1.000e-2 for 100 records, got 0.5"), "{refused}");
}

#[test]
fn promises_out_of_range_are_refused() {
    for (key, value) in [
        ("epsilon", "0"),
        ("epsilon", "-1"),
        ("epsilon", "nan"),
        ("epsilon", "inf"),
        ("sigma", "0"),
    ] {
        let refused = plan(&format!("[privacy]\n{key} = {value}"), 100).unwrap_err().to_string();
        let expected = format!("privacy.{key}: expected a finite number greater than 0, got");
        assert!(refused.starts_with(&expected), "{refused}");
    }
}

/// σ/B is the noise of a step, and the ratio to the signal falls with the number of steps.
#[test]
fn plans_tell_noise_from_signal() {
    let at = |epsilon: f64| plan(&format!("[privacy]\nepsilon = {epsilon}"), 1000).unwrap();
    let (tight, loose) = (at(0.01), at(8.0));
    assert_eq!(loose.noise_in_mean(), loose.sigma.gradient / loose.lot_size());
    let expected = loose.noise_in_mean() * (4900.0 / loose.steps as f64).sqrt();
    assert!((loose.noise_to_signal(4900) / expected - 1.0).abs() < 1e-12);
    assert!(tight.noise_to_signal(4900) > 3.0 && loose.noise_to_signal(4900) < 3.0);
}

#[test]
fn every_optimizer_can_be_named() {
    for entry in registry::ALL {
        let config = Config::parse(&format!("[optimizer]\nname = {:?}", entry.name)).unwrap();
        let tensors = tensors(entry.needs_pairs);
        let params =
            Params::new(tensors.iter().map(|tensor| Array::zeros(tensor.shape.clone())).collect());
        let plan = Plan::new(&config, 1000, &tensors).unwrap();
        assert_eq!(plan.budget.is_some(), entry.private);
        let optimizer = plan.optimizer(&config, &tensors, &params).unwrap();
        assert_eq!(optimizer.lots(0).len(), 1);
        assert_eq!(entry.name.starts_with("dp-"), entry.private);
    }
    assert_ne!(plan("", 100).unwrap().price.unwrap().accountant, Accountant::Gdp);
}
