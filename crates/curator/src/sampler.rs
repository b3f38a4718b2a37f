//! Sampling of lots, and the event that is charged for them.
//!
//! Both are computed from the same [`Sampling`], so a lot cannot be charged as another one.

use crate::Private;
use crate::private_state::SavedEpoch;
use accounting::{Event, Release, Sampling, Sigma};
use noise::{Key, Rng};
use protocol::{Announcement, Refused};

/// Returns the event that is charged for a lot, or for an epoch of shuffled lots.
///
/// # Errors
/// If a lot is larger than the data, or nothing is announced.
pub fn lot_event(sampling: Sampling, announced: &Announcement) -> Result<Event, Refused> {
    sampling.check().map_err(refuse)?;
    let sigmas =
        announced.sigmas().iter().map(|&(sigma, count)| Ok((Sigma::new(sigma.get())?, count)));
    let release = sigmas.collect::<Result<Vec<_>, _>>().and_then(Release::joint).map_err(refuse)?;
    Ok(Event::Gaussian { lots: sampling, release })
}

fn refuse(error: accounting::Error) -> Refused {
    Refused::Query(error.to_string())
}

/// Draws lots and determines when they are charged.
#[derive(Debug)]
pub(crate) struct Sampler {
    pub(crate) sampling: Sampling,
    places: usize,
    epoch: Option<Epoch>,
}

/// An epoch of shuffled lots that has been paid for.
#[derive(Debug)]
struct Epoch {
    /// Key from which the order was drawn.
    key: Key,
    order: Private<Vec<usize>>,
    /// Number of places that were in a lot.
    done: usize,
    /// The releases from each lot that were charged when the epoch began.
    paid: Announcement,
}

impl Sampler {
    pub(crate) fn new(sampling: Sampling, places: usize) -> Result<Self, Refused> {
        if let Some(dataset) = sampling.dataset()
            && dataset != places as u64
        {
            return Err(Refused::Query(format!(
                "sampling: {sampling}: expected lots of the {places} records, got {dataset}"
            )));
        }
        sampling.check().map_err(refuse)?;
        if places == 0 {
            return Err(Refused::Query("records: expected at least 1, got 0".into()));
        }
        Ok(Self { sampling, places, epoch: None })
    }

    /// Returns the public lot size.
    pub(crate) fn lot_size(&self) -> f64 {
        self.sampling.lot_size(self.places)
    }

    /// Returns the event to charge before the next lot; `None` within a charged epoch.
    ///
    /// `charged` is the announcement with the multipliers as which the noise mechanism charges
    /// them. A lot with another announcement than the current epoch begins a new epoch.
    ///
    /// # Claim
    /// (PROOFS.md, 9.) Each place is in at most one lot of an epoch, and every lot of an epoch
    /// releases what was charged at its beginning. So an epoch costs one release on all places.
    pub(crate) fn due(
        &self,
        announced: &Announcement,
        charged: &Announcement,
    ) -> Result<Option<Event>, Refused> {
        if self.continues_epoch(announced) {
            Ok(None)
        } else {
            lot_event(self.sampling, charged).map(Some)
        }
    }

    /// Returns whether the next lot belongs to the current epoch.
    fn continues_epoch(&self, announced: &Announcement) -> bool {
        self.epoch
            .as_ref()
            .is_some_and(|epoch| epoch.done < self.places && epoch.paid == *announced)
    }

    /// Draws the places of the next lot, in ascending order, without looking at records.
    pub(crate) fn draw(&mut self, announced: &Announcement, key: &Key) -> Private<Vec<usize>> {
        let mut words = key.words();
        let lot = match self.sampling {
            Sampling::Full => (0..self.places).collect(),
            Sampling::Poisson { rate } => {
                // Rounded down: the actual rate is at most the charged one.
                let threshold = (rate.get() * 2f64.powi(64)) as u128;
                (0..self.places).filter(|_| u128::from(words.next_u64()) < threshold).collect()
            }
            Sampling::FixedSize { lot, .. } => {
                let mut lot = shuffled(self.places, lot as usize, &mut words);
                lot.sort_unstable();
                lot
            }
            Sampling::Shuffled { lot, .. } => {
                if !self.continues_epoch(announced) {
                    let order = Private::new(shuffled(self.places, self.places, &mut words));
                    self.epoch =
                        Some(Epoch { key: key.clone(), order, done: 0, paid: announced.clone() });
                }
                let mut places = Vec::new();
                if let Some(epoch) = &mut self.epoch {
                    let end = epoch.done.saturating_add(lot as usize).min(self.places);
                    places.extend(&epoch.order.inner()[epoch.done..end]);
                    epoch.done = end;
                }
                places.sort_unstable();
                places
            }
        };
        Private::new(lot)
    }

    /// Returns the largest number of lots that so many charges cover.
    pub(crate) fn most_draws(&self, charges: u64) -> u64 {
        charges.saturating_mul(self.sampling.lots_per_event())
    }

    /// Abandons the current epoch: the next lot begins a new one, which is charged again.
    pub(crate) fn abandon_epoch(&mut self) {
        self.epoch = None;
    }

    /// Returns the unfinished epoch, to be saved.
    pub(crate) fn private_state(&self) -> Option<SavedEpoch> {
        let saved = |epoch: &Epoch| SavedEpoch {
            key: epoch.key.clone(),
            done: epoch.done,
            paid: epoch.paid.clone(),
        };
        self.epoch.as_ref().filter(|epoch| epoch.done < self.places).map(saved)
    }

    /// Resumes an epoch that was saved.
    pub(crate) fn restore_private_state(&mut self, saved: SavedEpoch) -> Result<(), Refused> {
        if !matches!(self.sampling, Sampling::Shuffled { .. }) || saved.done > self.places {
            return Err(Refused::Query("the saved sampler belongs to another run".into()));
        }
        let order = Private::new(shuffled(self.places, self.places, &mut saved.key.words()));
        self.epoch = Some(Epoch { key: saved.key, order, done: saved.done, paid: saved.paid });
        Ok(())
    }
}

/// Draws `count` numbers below `n`, in random order: a partial Fisher–Yates shuffle.
fn shuffled(n: usize, count: usize, words: &mut impl Rng) -> Vec<usize> {
    let mut order: Vec<usize> = (0..n).collect();
    for i in 0..count {
        let j = i + below((n - i) as u64, words) as usize;
        order.swap(i, j);
    }
    order.truncate(count);
    order
}

/// Draws an exactly uniform number below `n`, by rejecting words beyond the last multiple of n.
fn below(n: u64, words: &mut impl Rng) -> u64 {
    let largest = u64::MAX - (u64::MAX % n + 1) % n;
    loop {
        let word = words.next_u64();
        if word <= largest {
            return word % n;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use accounting::{Accountant, Adjacency, Composition, Cost, Delta, SamplingRate};
    use protocol::Positive;

    fn announced(sigma: f64) -> Announcement {
        Announcement::default().and(Positive::new("σ", sigma).unwrap(), 1)
    }

    fn sampler(sampling: Sampling, places: usize) -> Sampler {
        Sampler::new(sampling, places).unwrap()
    }

    /// Draws `count` lots.
    fn lots(sampling: Sampling, places: usize, count: u64) -> Vec<Vec<usize>> {
        let mut sampler = sampler(sampling, places);
        let root = Key::from_seed(5);
        (0..count)
            .map(|draw| sampler.draw(&announced(1.0), &root.derive(draw)).into_inner())
            .collect()
    }

    #[test]
    fn impossible_lots_are_refused() {
        for (sampling, places) in [
            (Sampling::FixedSize { dataset: 5, lot: 0 }, 5),
            (Sampling::FixedSize { dataset: 5, lot: 6 }, 5),
            (Sampling::Shuffled { dataset: 5, lot: 6 }, 5),
            (Sampling::FixedSize { dataset: 4, lot: 2 }, 5),
            (Sampling::Shuffled { dataset: 6, lot: 2 }, 5),
            (Sampling::Poisson { rate: SamplingRate::new(0.5).unwrap() }, 0),
            (Sampling::Full, 0),
        ] {
            assert!(Sampler::new(sampling, places).is_err());
        }
    }

    /// Each place is in a share q of the lots, and two places are in q² of them, within 5.5
    /// standard errors.
    #[test]
    fn poisson_lots_are_independent() {
        let rate = 0.3;
        let (places, count) = (40, 20_000);
        let drawn =
            lots(Sampling::Poisson { rate: SamplingRate::new(rate).unwrap() }, places, count);
        let share = |f: &dyn Fn(&Vec<usize>) -> bool| {
            drawn.iter().filter(|lot| f(lot)).count() as f64 / count as f64
        };
        let error = |p: f64| 5.5 * (p * (1.0 - p) / count as f64).sqrt();
        for place in 0..places {
            assert!((share(&|lot| lot.contains(&place)) - rate).abs() < error(rate));
            let next = (place + 1) % places;
            assert!(
                (share(&|lot| lot.contains(&place) && lot.contains(&next)) - rate * rate).abs()
                    < error(rate * rate)
            );
        }
        // The variance of the size is binomial, and sizes of consecutive lots are uncorrelated.
        let sizes: Vec<f64> = drawn.iter().map(|lot| lot.len() as f64).collect();
        let (mean, variance) = (rate * places as f64, rate * (1.0 - rate) * places as f64);
        let spread = sizes.iter().map(|size| (size - mean).powi(2)).sum::<f64>() / count as f64;
        assert!((spread / variance - 1.0).abs() < 5.5 * (2.0 / count as f64).sqrt());
        let covariance =
            sizes.windows(2).map(|w| (w[0] - mean) * (w[1] - mean)).sum::<f64>() / count as f64;
        assert!((covariance / variance).abs() < 5.5 / (count as f64).sqrt());
        assert!(
            lots(Sampling::Poisson { rate: SamplingRate::new(1.0).unwrap() }, 7, 3)
                .iter()
                .all(|lot| *lot == [0, 1, 2, 3, 4, 5, 6])
        );
        assert!(
            lots(Sampling::Poisson { rate: SamplingRate::new(1e-9).unwrap() }, 7, 100)
                .iter()
                .all(Vec::is_empty)
        );
    }

    /// Pooled over places and draws, the share is within 5.5 standard errors of the rate.
    ///
    /// A new seed would exceed that once in 26 million. A rate that is wrong by one percent is off
    /// by at least 16 standard errors.
    #[test]
    fn the_rate_is_the_one_that_is_charged() {
        let (places, count) = (400, 20_000);
        for rate in [0.25, 0.3, 0.9] {
            let drawn =
                lots(Sampling::Poisson { rate: SamplingRate::new(rate).unwrap() }, places, count);
            let trials = places as f64 * count as f64;
            let share = drawn.iter().map(Vec::len).sum::<usize>() as f64 / trials;
            let error = (rate * (1.0 - rate) / trials).sqrt();
            assert!((share - rate).abs() < 5.5 * error, "{rate}: {share}");
            assert!(0.01 * rate > 16.0 * error);
        }
    }

    /// Whether a place is in a lot is uncorrelated with whether it is in the next lot.
    ///
    /// The tolerance is 5.5 standard errors.
    #[test]
    fn consecutive_lots_are_independent() {
        let (places, count, rate) = (40usize, 20_000, 0.3);
        let drawn =
            lots(Sampling::Poisson { rate: SamplingRate::new(rate).unwrap() }, places, count);
        let product = |lots: &[Vec<usize>]| {
            let both = lots[0].iter().filter(|place| lots[1].contains(place)).count() as f64;
            both - rate * (lots[0].len() + lots[1].len()) as f64 + rate * rate * places as f64
        };
        let correlation = drawn.windows(2).map(product).sum::<f64>()
            / (rate * (1.0 - rate) * ((places as u64 * (count - 1)) as f64).sqrt());
        assert!(correlation.abs() < 5.5, "{correlation}");
    }

    #[test]
    fn fixed_lots_are_uniform() {
        let (places, lot, count) = (10, 3, 20_000);
        let drawn = lots(Sampling::fixed_size(places as u64, lot).unwrap(), places, count);
        assert!(
            drawn.iter().all(|lot| lot.len() == 3
                && lot.windows(2).all(|w| w[0] < w[1])
                && lot[2] < places)
        );
        // 120 possible lots, equally often.
        let mut counts = std::collections::HashMap::new();
        drawn.iter().for_each(|lot| *counts.entry(lot.clone()).or_insert(0u32) += 1);
        let expected = count as f64 / 120.0;
        assert_eq!(counts.len(), 120);
        let chi: f64 = counts.values().map(|&n| (f64::from(n) - expected).powi(2) / expected).sum();
        // 119 degrees of freedom: mean 119, standard deviation 15.4.
        assert!((40.0..215.0).contains(&chi), "{chi}");
    }

    #[test]
    fn an_epoch_has_every_place_once_and_is_charged_once() {
        let (places, lot) = (10, 4);
        let sampling = Sampling::shuffled(places as u64, lot).unwrap();
        let drawn = lots(sampling, places, 6);
        assert_eq!(drawn.iter().map(Vec::len).collect::<Vec<_>>(), [4, 4, 2, 4, 4, 2]);
        for epoch in drawn.chunks(3) {
            let mut all = epoch.concat();
            all.sort_unstable();
            assert_eq!(all, (0..places).collect::<Vec<_>>());
        }
        assert_ne!(drawn[..3], drawn[3..]);
        let mut sampler = sampler(sampling, places);
        let root = Key::from_seed(5);
        for draw in 0..7 {
            let due = |sigma| sampler.due(&announced(sigma), &announced(sigma)).unwrap();
            assert_eq!(due(1.0).is_some(), draw % 3 == 0);
            // The charge never covers another announcement.
            assert!(due(0.5).is_some() && due(2.0).is_some());
            let _ = sampler.draw(&announced(1.0), &root.derive(draw));
        }
        // Another announcement begins a new epoch, with all places in it.
        let sizes: Vec<usize> = (7..10)
            .map(|draw| sampler.draw(&announced(0.5), &root.derive(draw)).into_inner().len())
            .collect();
        assert_eq!(sizes, [4, 4, 2]);
    }

    #[test]
    fn every_way_has_its_own_price() {
        let rate = SamplingRate::new(0.1).unwrap();
        let price = |sampling: Sampling| {
            let event = lot_event(sampling, &announced(1.5)).unwrap();
            let Event::Gaussian { lots, release } = &event else { unreachable!() };
            assert_eq!((*lots, release.effective_sigma()), (sampling, 1.5));
            let run = Composition::repeated(event, 10);
            let cost = Cost::new(&run, Adjacency::ReplaceOne).unwrap();
            cost.epsilon(Accountant::Rdp, Delta::new(1e-5).unwrap()).unwrap().epsilon
        };
        let poisson = price(Sampling::Poisson { rate });
        let fixed = price(Sampling::fixed_size(100, 10).unwrap());
        let (shuffled, full) = (price(Sampling::shuffled(100, 10).unwrap()), price(Sampling::Full));
        // Shuffled lots get no amplification: an epoch costs one release on all the data.
        assert!(poisson != fixed && poisson < full && fixed < full, "{poisson} {fixed} {full}");
        assert_eq!(shuffled, full);
        assert!(lot_event(Sampling::Full, &Announcement::default()).is_err());
        let impossible = Sampling::FixedSize { dataset: 10, lot: 11 };
        assert!(lot_event(impossible, &announced(1.5)).is_err());
        assert_eq!(Sampling::Poisson { rate }.lot_size(100), 10.0);
    }

    #[test]
    fn bounded_numbers_are_uniform() {
        let mut words = Key::from_seed(9).words();
        let mut counts = [0u32; 7];
        (0..70_000).for_each(|_| counts[below(7, &mut words) as usize] += 1);
        assert!(counts.iter().all(|&n| (f64::from(n) - 10_000.0).abs() < 5.5 * 93.0), "{counts:?}");
        assert_eq!(below(1, &mut words), 0);
    }
}
