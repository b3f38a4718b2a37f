//! What was spent and drawn before an interruption stays spent and drawn, also where only the
//! ledger is left of it.

#![allow(clippy::unwrap_used)]

mod support;
#[path = "support/transparent.rs"]
mod transparent;

use accounting::{Accountant, Adjacency, Budget, Composition, Delta, Epsilon, Ledger};
use curator::{Curator, Door, Randomness, Sampling, lot_event};
use protocol::{
    Announcement, Blocks, Bound, Clipping, Geometry, GradientQuery, Oracle, Params, Refused,
};
use tensor::Array;
use transparent::{Transparent, places};

/// A curator of vacant places: what it releases is noise.
fn curator(sampling: Sampling, door: Door) -> (Curator<Transparent>, Params) {
    let engine = Transparent::new(vec![8]);
    let at = Params::new(vec![Array::zeros([8])]);
    (Curator::new(engine, places(10, |_| true), sampling, door, Randomness::fixed(3)).unwrap(), at)
}

fn release(curator: &mut Curator<Transparent>, at: &Params) -> Vec<u32> {
    let bound = Bound::new(1.0, 1.0).unwrap();
    curator.draw(&Announcement::gradient(&[bound])).unwrap();
    let (geometry, blocks) = (Geometry::Identity, Blocks::flat(1));
    let query = GradientQuery {
        at,
        geometry: &geometry,
        blocks: &blocks,
        bounds: &[bound],
        clipping: Clipping::Cut,
    };
    curator.gradient(&query).unwrap().value[0].data().iter().map(|x| x.to_bits()).collect()
}

fn budget() -> Budget {
    Budget {
        epsilon: Epsilon::new(1e300).unwrap(),
        delta: Delta::new(1e-5).unwrap(),
        unit: Adjacency::AddRemove.into(),
        accountant: Accountant::Rdp,
    }
}

/// A charge of a shuffled epoch pays for several lots: with a fixed seed and nothing but the ledger
/// left, the noise of none of them is used again.
#[test]
fn noise_of_a_shuffled_epoch_does_not_repeat_if_the_private_state_is_lost() {
    for lot in [3, 4, 10] {
        let sampling = Sampling::shuffled(10, lot).unwrap();
        let (mut first, at) = curator(sampling, Door::unlimited());
        let lots = 10u64.div_ceil(lot);
        let before: Vec<_> = (0..2 * lots).map(|_| release(&mut first, &at)).collect();
        assert_eq!(first.ledger().events().len(), 2);
        let plan = Composition::repeated(first.ledger().events().runs()[0].0.clone(), 9);
        let door = Door::resumed(budget(), &plan, first.ledger().clone()).unwrap();
        let (mut second, _) = curator(sampling, door);
        let after: Vec<_> = (0..2 * lots).map(|_| release(&mut second, &at)).collect();
        assert!(after.iter().all(|noise| !before.contains(noise)), "lots of {lot}");
    }
}

/// Events of two kinds in turn: every run of them in the ledger counts, not only the first of its
/// kind.
#[test]
fn events_spent_by_two_processes_in_turn_count() {
    let announced =
        [1.0, 2.0].map(|sigma| Announcement::gradient(&[Bound::new(1.0, sigma).unwrap()]));
    let event = |kind: usize| lot_event(Sampling::Full, &announced[kind]).unwrap();
    let mut plan = Composition::repeated(event(0), 5);
    plan.push(event(1), 3).unwrap();
    let draws = |spent: Ledger, order: &[usize]| {
        let (mut curator, _) =
            curator(Sampling::Full, Door::resumed(budget(), &plan, spent).unwrap());
        let made: Vec<bool> =
            order.iter().map(|&kind| curator.draw(&announced[kind]).is_ok()).collect();
        (made, curator.ledger().clone())
    };
    let (made, spent) = draws(Ledger::new(), &[0, 1, 0, 1, 0]);
    assert!(made.iter().all(|made| *made) && spent.events().runs().len() == 5);
    // Two of the first kind and one of the second are left.
    let (made, all) = draws(spent, &[0, 0, 0, 1, 1, 0]);
    assert_eq!(made, [true, true, false, true, false, false]);
    assert_eq!(all.events().len(), 8);
    // A ledger in which there is more than was planned, in parts that are not.
    let mut more = Ledger::new();
    [0, 1, 0, 1, 0, 1, 0, 1].into_iter().for_each(|kind| more.charge(event(kind), 1).unwrap());
    assert!(matches!(Door::resumed(budget(), &plan, more), Err(Refused::Budget(_))));
}
