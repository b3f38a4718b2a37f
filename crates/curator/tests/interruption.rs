//! A curator that goes on after an interruption: nothing is drawn or paid for twice.

#![allow(clippy::unwrap_used)]

mod support;

use cpu::Network;
use curator::{Curator, Door, PrivateState, Randomness, Records, Sampling};
use protocol::{Announcement, Noisy, Oracle, Params, Refused};
use std::sync::{Arc, Mutex};
use support::{Kind, QuerySpec, network, query_specs, records};

/// A curator of one engine, `sealed` before it begins, and what its keeper was last given.
fn curator(
    sampling: Sampling,
    randomness: Randomness,
    sealed: Option<&str>,
) -> (Curator<Network>, Arc<Mutex<String>>) {
    let (network, _) = network(Kind::Mlp);
    let mut curator = Curator::new(
        network,
        Records::new(records(Kind::Mlp, 10)),
        sampling,
        Door::unlimited(),
        randomness,
    )
    .unwrap();
    if let Some(text) = sealed {
        curator.restore_private_state(PrivateState::from_text(text).unwrap()).unwrap();
    }
    let kept = Arc::new(Mutex::new(String::new()));
    let put = kept.clone();
    curator.set_state_sink(Box::new(move |sealed| {
        *put.lock().unwrap() = sealed.to_text().map_err(|error| error.to_string())?;
        Ok(())
    }));
    (curator, kept)
}

fn spec() -> (QuerySpec, Params) {
    let (network, at) = network(Kind::Mlp);
    // So little noise that sums can be told apart.
    (query_specs(Kind::Mlp, &network, &at, 1.0, 1e-6).swap_remove(0), at)
}

fn summed(releases: &[Noisy<Params>], lot: f64) -> Vec<f64> {
    let mut sum = vec![0.0; releases[0].value.elements()];
    for release in releases {
        let numbers = release.value.iter().flat_map(|tensor| tensor.data());
        sum.iter_mut().zip(numbers).for_each(|(sum, &x)| *sum += f64::from(x) * lot);
    }
    sum
}

/// An epoch of three lots, interrupted after the first two: together they have every record once,
/// and are charged once.
#[test]
fn an_interrupted_epoch_is_resumed() {
    let (spec, at) = spec();
    let sampling = Sampling::Shuffled { dataset: 10, lot: 4 };
    let (mut first, kept) = curator(sampling, Randomness::from_system().unwrap(), None);
    let mut releases: Vec<_> = (0..2).map(|_| spec.ask(&mut first, &at).unwrap()).collect();
    assert_eq!(first.ledger().events().len(), 1);
    let text = kept.lock().unwrap().clone();
    let (mut second, _) = curator(sampling, Randomness::from_system().unwrap(), Some(&text));
    releases.push(spec.ask(&mut second, &at).unwrap());
    assert_eq!(second.ledger().events().len(), 0);
    let (mut whole, _) = curator(Sampling::Full, Randomness::fixed(1), None);
    let all = summed(&[spec.ask(&mut whole, &at).unwrap()], 10.0);
    let together = summed(&releases, 4.0);
    assert!(together.iter().zip(&all).all(|(a, b)| (a - b).abs() < 1e-3), "{together:?} {all:?}");
    // The epoch is over: another one is drawn and paid for.
    spec.ask(&mut second, &at).unwrap();
    assert_eq!(second.ledger().events().len(), 1);
    // Without what was put away, a new epoch begins, and is charged.
    let (mut forgetful, _) = curator(sampling, Randomness::from_system().unwrap(), None);
    spec.ask(&mut forgetful, &at).unwrap();
    assert_eq!(forgetful.ledger().events().len(), 1);
}

/// Charges that were made before count as draws, even if nothing else is known of them.
#[test]
fn a_fixed_seed_does_not_repeat_noise_if_the_private_state_is_lost() {
    let (spec, at) = spec();
    let (mut first, _) = curator(Sampling::Full, Randomness::fixed(7), None);
    let release = spec.ask(&mut first, &at).unwrap();
    let plan = accounting::Composition::repeated(first.ledger().events().runs()[0].0.clone(), 2);
    let budget = accounting::Budget {
        epsilon: accounting::Epsilon::new(1e300).unwrap(),
        delta: accounting::Delta::new(1e-5).unwrap(),
        unit: accounting::Adjacency::AddRemove.into(),
        accountant: accounting::Accountant::Rdp,
    };
    let door = Door::resumed(budget, &plan, first.ledger().clone()).unwrap();
    let (network, _) = network(Kind::Mlp);
    let mut second = Curator::new(
        network,
        Records::new(records(Kind::Mlp, 10)),
        Sampling::Full,
        door,
        Randomness::fixed(7),
    )
    .unwrap();
    assert_ne!(release, spec.ask(&mut second, &at).unwrap());
}

/// Even with a fixed seed a process that goes on does not use noise again.
#[test]
fn a_fixed_seed_does_not_repeat_noise_after_an_interruption() {
    let (spec, at) = spec();
    let release = |sealed: Option<&str>| {
        let (mut curator, kept) = curator(Sampling::Full, Randomness::fixed(7), sealed);
        let release = spec.ask(&mut curator, &at).unwrap();
        let text = kept.lock().unwrap().clone();
        (release, text)
    };
    let (first, sealed) = release(None);
    let (second, _) = release(Some(&sealed));
    assert_ne!(first, second);
    assert_eq!(first, release(None).0);
}

#[test]
fn nothing_is_computed_if_the_state_cannot_be_saved() {
    let (spec, at) = spec();
    let (mut curator, _) = curator(Sampling::Full, Randomness::fixed(7), None);
    curator.set_state_sink(Box::new(|_| Err("disk full".into())));
    assert!(
        matches!(curator.draw(&Announcement::gradient(&spec.bounds)), Err(Refused::Failed(what)) if what.contains("disk full"))
    );
    assert!(matches!(curator.gradient(&spec.query(&at)), Err(Refused::Query(_))));
    assert_eq!(curator.ledger().events().len(), 1);
}

#[test]
fn a_damaged_private_state_is_refused_and_not_shown() {
    let (spec, at) = spec();
    let (mut shuffled, kept) =
        curator(Sampling::Shuffled { dataset: 10, lot: 4 }, Randomness::fixed(3), None);
    spec.ask(&mut shuffled, &at).unwrap();
    let text = kept.lock().unwrap().clone();
    assert_eq!(PrivateState::from_text(&text).unwrap(), shuffled.private_state());
    assert_eq!(format!("{:?}", shuffled.private_state()), "PrivateState(…)");
    for bad in [
        "",
        "{}",
        &text[..text.len() - 1],
        &text.replace("\"version\":1", "\"version\":2"),
        &text.replace("draws", "drawn"),
    ] {
        let refused = PrivateState::from_text(bad).unwrap_err().to_string();
        assert!(refused.contains("private state") && !refused.contains("key"), "{refused}");
    }
    // A shuffled epoch is not for a curator that draws otherwise.
    let (mut poisson, _) = curator(support::poisson(0.5), Randomness::fixed(3), None);
    assert!(poisson.restore_private_state(shuffled.private_state()).is_err());
}
