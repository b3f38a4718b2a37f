//! A mechanism with state and a sensitivity of its own, behind the seam of the curator.

#![allow(clippy::unwrap_used)]

use accounting::Event;
use cpu::Network;
use curator::{Curator, Door, PrivateState, Randomness, Records, Sampling};
use noise::{Error, IndependentGaussian, Mechanism, Release, ReleaseKind};
use protocol::{Announcement, Bound, LossQuery, Oracle, Params};

mod support;
use support::{Kind, network, query_specs, records};

/// Subtracts half of the noise of the release before, and regenerates that noise from its saved
/// key.
///
/// A matrix-factorisation mechanism in small: C⁻¹ has 1 on the diagonal and −½ below it, so that C
/// has columns (1, ½, ¼, …), whose norm is below √(4/3): the sensitivity to a record that takes
/// part once. It applies to gradients alone.
#[derive(Default)]
struct Correlated {
    gaussian: IndependentGaussian,
    previous: Option<noise::Key>,
}

/// The norm of a column of C.
const SENSITIVITY: f64 = 1.154_700_538_379_251_6;

impl Mechanism for Correlated {
    fn name(&self) -> &'static str {
        "correlated"
    }

    fn validate(&self, multiplier: f64, elements: usize) -> Result<(), Error> {
        self.gaussian.validate(multiplier, elements)
    }

    fn charged_multiplier(&self, _draw: u64, multiplier: f64) -> f64 {
        multiplier / SENSITIVITY
    }

    fn released_deviation(&self, draw: u64, deviation: f64) -> f64 {
        if draw == 0 { deviation } else { deviation * 1.25f64.sqrt() }
    }

    fn add_noise(&mut self, release: &Release<'_>, sums: Vec<Vec<f64>>) -> Vec<Vec<f32>> {
        if release.kind == ReleaseKind::Loss {
            return self.gaussian.add_noise(release, sums);
        }
        let zeros: Vec<Vec<f64>> = sums.iter().map(|sum| vec![0.0; sum.len()]).collect();
        let mut values = self.gaussian.add_noise(release, sums);
        if let Some(key) = &self.previous {
            let before = self.gaussian.add_noise(&Release { key, ..release.clone() }, zeros);
            let pairs = values.iter_mut().flatten().zip(before.into_iter().flatten());
            pairs.for_each(|(value, noise)| *value -= 0.5 * noise);
        }
        self.previous = Some(release.key.clone());
        values
    }

    fn save(&self) -> Vec<u8> {
        self.previous.as_ref().map_or(Vec::new(), |key| key.bytes().to_vec())
    }

    fn restore(&mut self, state: &[u8]) -> Result<(), Error> {
        self.previous = match state {
            [] => None,
            state => Some(noise::Key::new(
                state.try_into().map_err(|_| Error::State { mechanism: self.name() })?,
            )),
        };
        Ok(())
    }
}

fn curator(mechanism: impl Mechanism + 'static) -> (Curator<Network>, Params) {
    let (network, at) = network(Kind::Mlp);
    let records = Records::new(records(Kind::Mlp, 4));
    let (door, randomness) = (Door::unlimited(), Randomness::fixed(3));
    let mut curator = Curator::new(network, records, Sampling::Full, door, randomness).unwrap();
    curator.set_mechanism(Box::new(mechanism));
    (curator, at)
}

/// Releases a gradient with C = 0.5 and σ = 1.
fn release(curator: &mut Curator<Network>, at: &Params) -> protocol::Noisy<Params> {
    let spec = query_specs(Kind::Mlp, &network(Kind::Mlp).0, at, 0.5, 1.0).swap_remove(0);
    spec.ask(curator, at).unwrap()
}

#[test]
fn the_multiplier_of_the_mechanism_is_charged_and_its_deviation_reported() {
    let (mut curator, at) = curator(Correlated::default());
    for draw in 0..2 {
        let std = release(&mut curator, &at).std[0];
        let nominal = 0.5 / curator.lot_size();
        assert_eq!(std, if draw == 0 { nominal } else { 0.5 * 1.25f64.sqrt() / 4.0 });
    }
    let (event, count) = curator.ledger().events().runs().last().unwrap();
    let Event::Gaussian { release, .. } = event else { panic!("{event}") };
    assert_eq!((release.effective_sigma(), *count), (1.0 / SENSITIVITY, 2));
}

/// A lot is charged by the mechanism that is set when it is drawn: another one releases nothing
/// from it, and starts an epoch that is charged again.
#[test]
fn what_was_charged_for_another_mechanism_is_not_released() {
    let (network, at) = network(Kind::Mlp);
    let spec = query_specs(Kind::Mlp, &network, &at, 0.5, 1.0).swap_remove(0);
    let announced = Announcement::gradient(&spec.bounds);
    let (records, sampling) =
        (Records::new(records(Kind::Mlp, 4)), Sampling::shuffled(4, 1).unwrap());
    let (door, randomness) = (Door::unlimited(), Randomness::fixed(3));
    let mut curator = Curator::new(network, records, sampling, door, randomness).unwrap();
    for charges in 1..3 {
        curator.draw(&announced).unwrap();
        assert_eq!(curator.ledger().events().len(), charges);
        curator.set_mechanism(Box::new(IndependentGaussian::default()));
        let refused = curator.gradient(&spec.query(&at)).unwrap_err().to_string();
        assert!(refused.contains("no lot"), "{refused}");
    }
}

/// With the same keys, correlated noise is the independent noise minus half of that before it.
#[test]
fn the_mechanism_keeps_state_from_release_to_release() {
    let (mut plain, at) = curator(IndependentGaussian::default());
    let (mut correlated, _) = curator(Correlated::default());
    let plain = [(); 2].map(|()| release(&mut plain, &at).value);
    let correlated = [(); 2].map(|()| release(&mut correlated, &at).value);
    assert_eq!(plain[0], correlated[0]);
    assert_ne!(plain[1], correlated[1]);
    // A loss has noise of its own: the state is not touched.
    let (mut other, _) = curator(Correlated::default());
    let first = release(&mut other, &at).value;
    let bound = Bound::new(1.0, 1.0).unwrap();
    let before = other.private_state();
    other.draw(&Announcement::default().and(bound.sigma, 1)).unwrap();
    other.loss(&LossQuery { at: &at, bound }).unwrap();
    assert_eq!(first, plain[0]);
    assert_ne!(before, other.private_state(), "the number of draws");
    assert_eq!(state(&before), state(&other.private_state()));
}

fn state(sealed: &PrivateState) -> String {
    let text = sealed.to_text().unwrap();
    text.split_once("\"mechanism\"").unwrap().1.to_string()
}

/// A restored mechanism releases what one that was not interrupted does.
#[test]
fn the_state_of_the_mechanism_survives_an_interruption() {
    let (mut whole, at) = curator(Correlated::default());
    let (mut first, _) = curator(Correlated::default());
    release(&mut whole, &at);
    release(&mut first, &at);
    let text = first.private_state().to_text().unwrap();
    let (mut second, _) = curator(Correlated::default());
    second.restore_private_state(PrivateState::from_text(&text).unwrap()).unwrap();
    assert_eq!(release(&mut second, &at), release(&mut whole, &at));
    let (mut fresh, _) = curator(IndependentGaussian::default());
    let refused = fresh
        .restore_private_state(PrivateState::from_text(&text).unwrap())
        .unwrap_err()
        .to_string();
    assert!(refused.contains("independent-gaussian"), "{refused}");
    assert_eq!(fresh.draws(), 0);
}

/// The format of the private state is the same for a mechanism without state.
#[test]
fn a_mechanism_without_state_is_not_in_the_saved_state() {
    let (mut curator, at) = curator(IndependentGaussian::default());
    release(&mut curator, &at);
    let text = curator.private_state().to_text().unwrap();
    assert_eq!(text, r#"{"version":1,"draws":1,"epoch":null}"#);
}
