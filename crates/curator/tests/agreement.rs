//! Processes that add in another order or work in other coordinates would release two values with
//! the same noise. Threads stand for processes.

#![allow(clippy::unwrap_used)]

mod support;
#[path = "support/transparent.rs"]
mod transparent;

use curator::{Curator, Door, Randomness, Records, Sampling};
use distributed::{LotReducer, Ownership, Ranks, threads};
use engine::Example;
use protocol::{Announcement, Bound, LossQuery, Oracle, Params};
use support::{Kind, curator, network, poisson, query_specs, records};
use tensor::Array;
use transparent::Transparent;

fn on<T: Send>(count: usize, work: impl Fn(&Ranks) -> T + Sync) -> Vec<T> {
    let work = &work;
    std::thread::scope(|scope| {
        let all = threads(count).unwrap().into_iter();
        let all: Vec<_> = all.map(|ranks| scope.spawn(move || work(&ranks))).collect();
        all.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn reducer(ranks: &Ranks, owners: Vec<usize>, shapes: &[Vec<usize>]) -> Box<LotReducer> {
    let ownership = Ownership::new(owners, shapes.to_vec());
    Box::new(LotReducer::new(ranks.clone(), ownership).unwrap())
}

/// 1 + 2⁻⁶⁰ − 1 is 0 in one order and 2⁻⁶⁰ in another, and the noise is far smaller. Each loss is
/// rounded to the grid by itself, so that no order matters: all processes release the same.
#[test]
fn losses_do_not_depend_on_the_order_of_ranks() {
    let tiny = 2f32.powi(-60);
    let released = on(3, |ranks| {
        let examples = [1.0, tiny, -1.0].map(|loss| Example::features(vec![loss], 0));
        let engine = Transparent::new(vec![1]);
        let (door, randomness) = (Door::unlimited(), Randomness::fixed(1));
        let mut curator =
            Curator::new(engine, Records::new(examples.to_vec()), Sampling::Full, door, randomness)
                .unwrap();
        curator.set_reducer(reducer(ranks, vec![0], &[vec![1]])).unwrap();
        let bound = Bound::new(2.0, 1e-21).unwrap();
        curator.draw(&Announcement::default().and(bound.sigma, 1)).unwrap();
        let at = Params::new(vec![Array::zeros([1])]);
        curator.loss(&LossQuery { at: &at, bound }).unwrap().value
    });
    assert!(released.iter().all(|value| value.to_bits() == released[0].to_bits()), "{released:?}");
    assert!(released[0].abs() < 0.1 * f64::from(tiny), "{released:?}");
}

/// Factors twice as long have the same bases, and other inverses: another tangent encoding.
#[test]
fn tangent_spaces_of_another_scale_are_refused() {
    let (net, at) = network(Kind::Lora);
    let scaled = |factor: f32| {
        let mut at = at.clone();
        at.iter_mut().flat_map(|tensor| tensor.data_mut()).for_each(|x| *x *= factor);
        at
    };
    let (one, two) = (support::frames(&net, &scaled(1.0)), support::frames(&net, &scaled(2.0)));
    assert!(one[0].left_basis == two[0].left_basis && one[0].left_inverse != two[0].left_inverse);
    let messages = on(2, |ranks| {
        let (mut curator, _) =
            curator(Kind::Lora, Records::new(records(Kind::Lora, 20)), poisson(0.5), 5);
        let shapes: Vec<_> = at.iter().map(|tensor| tensor.shape().to_vec()).collect();
        curator
            .set_reducer(reducer(ranks, (0..at.len()).map(|k| k % 2).collect(), &shapes))
            .unwrap();
        let at = scaled(if ranks.is_first() { 1.0 } else { 2.0 });
        let spec = query_specs(Kind::Lora, &network(Kind::Lora).0, &at, 0.3, 0.5).pop().unwrap();
        spec.ask(&mut curator, &at).unwrap_err().to_string()
    });
    assert!(
        messages
            .iter()
            .all(|messages| messages.contains("rank 1 and rank 0 are not doing the same")),
        "{messages:?}"
    );
}
