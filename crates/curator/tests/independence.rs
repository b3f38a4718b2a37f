//! Lots are independent of each other, and noise is independent of lots, of its place in a tensor
//! and of the numbers of tensor, release and draw. Asked through the public interface.
//!
//! Each bound is 5.5 standard errors, which a normal number exceeds once in 26 million; a test
//! makes at most 25 comparisons, so that a new seed would be refused less than once in a million.
//! The seeds are fixed.

#![allow(clippy::unwrap_used)]

mod support;
#[path = "support/transparent.rs"]
mod transparent;

use curator::{Curator, Door, PrivateState, Randomness, Records, Sampling};
use noise::{GaussianKind, IndependentGaussian};
use protocol::{
    Announcement, Blocks, Bound, Clipping, Geometry, GradientQuery, LossQuery, Oracle, Params,
};
use support::{poisson, positive};
use tensor::Array;
use transparent::{Transparent, places};

fn curator(
    lengths: &[usize],
    records: Records,
    sampling: Sampling,
    seed: u64,
) -> (Curator<Transparent>, Params) {
    let at = Params::new(lengths.iter().map(|&length| Array::zeros([length])).collect());
    let engine = Transparent::new(lengths.to_vec());
    (
        Curator::new(engine, records, sampling, Door::unlimited(), Randomness::fixed(seed))
            .unwrap(),
        at,
    )
}

/// A clip bound that no loss reaches, and so little noise (0.02) that sums of whole numbers show.
/// With less, sums of 2¹⁶ would be beyond the grid's integers.
fn exactly() -> Bound {
    Bound::new(1e6, 2e-8).unwrap()
}

/// Who is in the lot, as bits: 16 places fit into the f32 that is released.
fn taken(curator: &mut Curator<Transparent>, at: &Params) -> u32 {
    let loss =
        curator.loss(&LossQuery { at, bound: exactly() }).unwrap().value * curator.lot_size();
    assert!((loss - loss.round()).abs() < 0.3, "{loss}");
    loss.round() as u32
}

fn lots(sampling: Sampling, places_count: usize, draws: usize) -> Vec<u32> {
    let (mut curator, at) = curator(&[1], places(places_count, |_| false), sampling, 3);
    let announced = Announcement::default().and(exactly().sigma, 1);
    let one = |_| {
        curator.draw(&announced).unwrap();
        taken(&mut curator, &at)
    };
    (0..draws).map(one).collect()
}

/// Σ over draws and places of (in lot t − q)(in lot t + lag − q), in standard errors. Its terms are
/// uncorrelated: exactly for Poisson lots; for lots of a fixed size those of one draw have a
/// correlation of 1/(places − 1)², which makes the error larger by a factor of at most
/// places/(places − 1).
fn overlap(lots: &[u32], places: usize, rate: f64, lag: usize) -> f64 {
    let is_in = |lot: u32, place: usize| f64::from(lot >> place & 1) - rate;
    let pairs = lots.iter().zip(&lots[lag..]);
    let sum: f64 = pairs
        .map(|(&a, &b)| (0..places).map(|place| is_in(a, place) * is_in(b, place)).sum::<f64>())
        .sum();
    sum / (rate * (1.0 - rate) * (((lots.len() - lag) * places) as f64).sqrt())
}

#[test]
fn consecutive_lots_of_a_curator_are_independent() {
    let (count, draws) = (12, 8000);
    for (sampling, rate) in
        [(poisson(0.25), 0.25), (Sampling::FixedSize { dataset: 12, lot: 3 }, 0.25)]
    {
        let lots = lots(sampling, count, draws);
        for lag in 1..=8 {
            let apart = overlap(&lots, count, rate, lag);
            assert!(apart.abs() < 5.5, "{sampling:?}, lag {lag}: {apart} standard errors");
        }
        // Each lot twice would be seen.
        let twice: Vec<u32> = lots.iter().flat_map(|&lot| [lot, lot]).collect();
        assert!(overlap(&twice, count, rate, 1) > 50.0);
    }
}

/// The shares of (place, draw) pairs that are in a lot, pooled: a rate that is off by a hundredth
/// is 11 standard errors off.
#[test]
fn the_rate_of_a_curator_is_the_one_that_is_charged() {
    let (count, draws, rate) = (16, 40_000, 0.7);
    let lots = lots(poisson(rate), count, draws);
    let share =
        lots.iter().map(|lot| f64::from(lot.count_ones())).sum::<f64>() / (count * draws) as f64;
    let error = (rate * (1.0 - rate) / (count * draws) as f64).sqrt();
    assert!((share - rate).abs() < 5.5 * error, "{share}");
    assert!(0.01 * rate > 11.0 * error);
}

/// Σ (noise/std)² / n, and how far it may be from 1.
fn spread(noise: &[f64]) -> (f64, f64) {
    let n = noise.len() as f64;
    (noise.iter().map(|z| z * z).sum::<f64>() / n, 5.5 * (2.0 / n).sqrt())
}

/// The variance of the noise, given how many are in the lot: from empty lots to full ones it is the
/// same, of gradients and of losses.
#[test]
fn noise_does_not_depend_on_the_realised_lot() {
    let bound = Bound::new(0.5, 1.5).unwrap();
    let wide = Bound::new(1000.0, 2.0).unwrap();
    let announced = Announcement::gradient(&[bound]).and(exactly().sigma, 1).and(wide.sigma, 1);
    let is_odd = |place: usize| place % 2 == 1;
    for (sampling, records, most) in [
        (poisson(0.5), places(4, |_| false), 4),
        (poisson(0.5), places(8, is_odd), 4),
        (Sampling::FixedSize { dataset: 6, lot: 3 }, places(6, is_odd), 3),
        (Sampling::Shuffled { dataset: 6, lot: 3 }, places(6, is_odd), 3),
    ] {
        let (mut curator, at) = curator(&[40, 24], records, sampling, 4);
        let lot_size = curator.lot_size();
        let mut gradients = vec![Vec::new(); most + 1];
        let mut losses = vec![Vec::new(); most + 1];
        for _ in 0..3000 {
            curator.draw(&announced).unwrap();
            let lot = taken(&mut curator, &at);
            let query = GradientQuery {
                at: &at,
                geometry: &Geometry::Identity,
                blocks: &Blocks::flat(2),
                bounds: &[bound],
                clipping: Clipping::Cut,
            };
            let gradient = curator.gradient(&query).unwrap().value;
            let size = lot.count_ones() as usize;
            gradients[size].extend(
                gradient
                    .values()
                    .flat_map(|tensor| tensor.data())
                    .map(|&x| f64::from(x) * lot_size / (0.5 * 1.5)),
            );
            let loss = curator.loss(&LossQuery { at: &at, bound: wide }).unwrap().value * lot_size;
            losses[size].push((loss - f64::from(lot)) / (1000.0 * 2.0));
        }
        for (size, (gradients, losses)) in gradients.iter().zip(&losses).enumerate() {
            assert!(losses.len() > 100, "{sampling:?}: {} lots of {size}", losses.len());
            for noise in [gradients, losses] {
                let (ratio, error) = spread(noise);
                assert!(
                    (ratio - 1.0).abs() < error,
                    "{sampling:?}, {size} in the lot: {ratio} ± {error}"
                );
            }
            // A standard deviation of √(realised/expected), which is right on average, would be
            // seen.
            let (_, error) = spread(gradients);
            let realised = size as f64 / (most as f64 / 2.0);
            assert!((realised - 1.0).abs() > error || size * 2 == most);
        }
    }
}

/// The noise of one tensor at places 2^k apart, from one group of numbers to all of it.
#[test]
fn noise_does_not_repeat_within_a_tensor() {
    let length = (1 << 18) + 77;
    let bound = Bound::new(1.0, 1.0).unwrap();
    for kind in [GaussianKind::Grid, GaussianKind::Float] {
        let (mut curator, at) = curator(&[length], places(1, |_| true), Sampling::Full, 5);
        curator.set_mechanism(Box::new(IndependentGaussian::new(kind)));
        curator.draw(&Announcement::gradient(&[bound])).unwrap();
        let (blocks, geometry) = (Blocks::flat(1), Geometry::Identity);
        let query = GradientQuery {
            at: &at,
            geometry: &geometry,
            blocks: &blocks,
            bounds: &[bound],
            clipping: Clipping::Cut,
        };
        let released = curator.gradient(&query).unwrap().value;
        let numbers = released[0].data();
        for lag in (4..=17).map(|bits| 1usize << bits) {
            let pairs = numbers.iter().zip(&numbers[lag..]);
            let sum: f64 = pairs.map(|(&a, &b)| f64::from(a) * f64::from(b)).sum();
            let apart = sum / ((length - lag) as f64).sqrt();
            assert!(apart.abs() < 5.5, "{kind:?}, lag {lag}: {apart} standard errors");
        }
    }
}

/// More tensors than 16 bits can number: each has noise of its own. By chance two f32 are the same
/// about once in 6·10⁷, so that 4 of 5000 pairs are less often than once in 10¹⁷.
#[test]
fn noise_does_not_repeat_from_tensor_to_tensor() {
    let count = 70_000;
    let bound = Bound::new(1.0, 1.0).unwrap();
    let (mut curator, at) = curator(&vec![1; count], places(1, |_| true), Sampling::Full, 6);
    curator.draw(&Announcement::gradient(&[bound])).unwrap();
    let (blocks, geometry) = (Blocks::flat(count), Geometry::Identity);
    let query = GradientQuery {
        at: &at,
        geometry: &geometry,
        blocks: &blocks,
        bounds: &[bound],
        clipping: Clipping::Cut,
    };
    let released = curator.gradient(&query).unwrap().value;
    for lag in [1, 1 << 8, 1 << 15, 1 << 16] {
        let same = (0..count - lag)
            .filter(|&k| released[k].data() == released[k + lag].data())
            .take(4)
            .count();
        assert!(same < 4, "lag {lag}");
    }
}

/// A run that goes on after 2¹⁶ or 2³² draws has other lots and other noise than one that begins,
/// although the seed is fixed.
#[test]
fn draws_far_apart_do_not_share_lots_or_noise() {
    let announced = Announcement::default().and(exactly().sigma, 1).and(positive(1.0), 300);
    let seen: Vec<(u64, Vec<u64>)> =
        [0u64, 1, 255, 256, 65_535, 65_536, 65_537, 1 << 32, (1 << 32) + 1]
            .into_iter()
            .map(|draws| {
                let (mut curator, at) = curator(&[1], places(16, |_| false), poisson(0.5), 7);
                let sealed = format!(r#"{{"version":1,"draws":{draws},"epoch":null}}"#);
                curator.restore_private_state(PrivateState::from_text(&sealed).unwrap()).unwrap();
                curator.draw(&announced).unwrap();
                let lot = taken(&mut curator, &at);
                let bound = Bound::new(1e6, 1.0).unwrap();
                let mut release = || {
                    (curator.loss(&LossQuery { at: &at, bound }).unwrap().value * 8.0
                        - f64::from(lot))
                    .to_bits()
                };
                let noise = (0..300).map(|_| release()).collect();
                curator.draw(&announced).unwrap();
                (u64::from(lot) << 32 | u64::from(taken(&mut curator, &at)), noise)
            })
            .collect();
    // Two lots of 16 places in a row are the same once in 4·10⁹, and the noise of two releases once
    // in some 10⁷.
    for (k, (lot, noise)) in seen.iter().enumerate() {
        for (other, others) in &seen[..k] {
            assert_ne!(lot, other);
            assert!(noise.iter().zip(others).filter(|(a, b)| a == b).count() < 4);
        }
        // Nor do the releases from one lot, of which there are more than 8 bits can number.
        assert!(noise[..44].iter().zip(&noise[256..]).filter(|(a, b)| a == b).count() < 4);
    }
}
