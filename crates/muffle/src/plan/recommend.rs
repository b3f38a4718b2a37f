//! Recommends a lot size and a number of epochs for a promise, before there is a model.
//!
//! The noise that matters is not σ but what is left of it at the end. The mean of a lot of B
//! records has noise of σ/B clip bounds, and an average over T steps has σ/(B √T). At a fixed
//! number of epochs E, lots of B of N records take T = E·N/B steps: doubling the lot costs no
//! computation. It lowers σ/(B √T) by up to √2 as long as σ hardly depends on the lot, and by
//! nothing once σ grows with √B. The same holds for epochs, which do cost computation.
//!
//! The rule: the fewest epochs for which some lot is *flat*, and the smallest such lot, which takes
//! the most steps. A lot is flat if doubling it lowers σ/(B √T) by less than [`GAIN`]. Lots have at
//! most N/[`LARGEST_SHARE`] records, and the run at least [`FEWEST_STEPS`] steps, because an
//! optimizer needs some.

/// Doubling a lot that lowers the noise of a run by less than this share is not worth it.
pub const GAIN: f64 = 0.1;

/// The largest lot that is recommended is the number of records divided by this.
pub const LARGEST_SHARE: u64 = 8;

/// The fewest steps that are recommended.
pub const FEWEST_STEPS: u64 = 150;

/// The numbers of epochs that are considered.
pub const EPOCHS: [f64; 7] = [1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 30.0];

/// A lot size and a number of epochs, with the noise that they need.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Setting {
    /// The expected number of times that a record is used.
    pub epochs: f64,
    /// The expected number of records in a lot.
    pub lot: u64,
    /// Number of steps.
    pub steps: u64,
    /// The noise multiplier.
    pub sigma: f64,
}

impl Setting {
    /// The noise in the mean of a lot, divided by the clip bound: σ/B.
    pub fn noise_in_mean(&self) -> f64 {
        self.sigma / self.lot as f64
    }

    /// The noise left in an average over all steps, divided by the clip bound: σ/(B √T).
    pub fn noise_of_run(&self) -> f64 {
        self.noise_in_mean() / (self.steps as f64).sqrt()
    }
}

/// A recommended setting, and why.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Recommendation {
    /// The setting.
    pub setting: Setting,
    /// The setting with twice the lot at the same number of epochs.
    pub doubled: Setting,
}

impl Recommendation {
    /// The share by which doubling the lot would lower the noise of the run.
    pub fn gain(&self) -> f64 {
        1.0 - self.doubled.noise_of_run() / self.setting.noise_of_run()
    }

    /// Whether a larger lot gains little. If not, the limits on lot and steps decided.
    pub fn is_flat(&self) -> bool {
        self.gain() < GAIN
    }
}

/// The number of steps of some epochs, rounded up.
pub fn steps(records: u64, epochs: f64, lot: u64) -> u64 {
    (epochs * records as f64 / lot as f64).ceil().max(1.0) as u64
}

/// Recommends a setting for `records` records.
///
/// Lot size or epochs may be given; the other is then recommended. `sigma` returns the noise
/// multiplier of a lot size and a number of steps.
///
/// # Errors
/// If `sigma` fails.
pub fn recommend<E>(
    records: u64,
    lot: Option<u64>,
    epochs: Option<f64>,
    mut sigma: impl FnMut(u64, u64) -> Result<f64, E>,
) -> Result<Recommendation, E> {
    let mut at = |epochs: f64, lot: u64| {
        let steps = steps(records, epochs, lot);
        Ok(Setting { epochs, lot, steps, sigma: sigma(lot, steps)? })
    };
    let mut search = |epochs: f64| {
        let largest = lot.unwrap_or_else(|| largest_lot(records, epochs));
        // Twice the lot may be more than there are records: then the doubled number of epochs has
        // about the same effect on the noise of the run.
        let doubled = match largest.checked_mul(2).filter(|double| *double <= records) {
            Some(double) => at(epochs, double)?,
            None => at(2.0 * epochs, largest)?,
        };
        let mut found = Recommendation { setting: at(epochs, largest)?, doubled };
        while found.is_flat() && lot.is_none() && found.setting.lot > 1 {
            let half = at(epochs, found.setting.lot / 2)?;
            let smaller = Recommendation { setting: half, doubled: found.setting };
            if !smaller.is_flat() {
                break;
            }
            found = smaller;
        }
        Ok(found)
    };
    if let Some(epochs) = epochs {
        return search(epochs);
    }
    let mut found = search(EPOCHS[0])?;
    for epochs in &EPOCHS[1..] {
        if found.is_flat() {
            break;
        }
        found = search(*epochs)?;
    }
    Ok(found)
}

/// The largest lot that is recommended for a number of epochs: a power of two.
fn largest_lot(records: u64, epochs: f64) -> u64 {
    let by_steps = (epochs * records as f64 / FEWEST_STEPS as f64) as u64;
    let limit = by_steps.min(records / LARGEST_SHARE).max(1);
    1 << limit.ilog2()
}

#[cfg(test)]
mod tests {
    use super::*;
    use accounting::calibrate::{self, Target};
    use accounting::{
        Accountant, Adjacency, Composition, Delta, Epsilon, Error, Event, SamplingRate,
    };

    fn noise(records: u64, epsilon: f64) -> impl FnMut(u64, u64) -> Result<f64, Error> {
        move |lot, steps| {
            let target = Target {
                epsilon: Epsilon::new(epsilon)?,
                delta: Delta::new(0.1 / records as f64)?,
                unit: Adjacency::AddRemove.into(),
                accountant: Accountant::Rdp,
            };
            let rate = SamplingRate::new(lot as f64 / records as f64)?;
            let events = |sigma| Ok(Composition::repeated(Event::poisson(rate, sigma), steps));
            Ok(calibrate::sigma::<Error>(target, events)?.0.get())
        }
    }

    #[test]
    fn ten_thousand_records_at_epsilon_three() {
        let found = recommend(10_000, None, None, noise(10_000, 3.0)).unwrap();
        let setting = found.setting;
        assert!(found.is_flat() && setting.steps >= FEWEST_STEPS, "{found:?}");
        assert!(setting.lot <= 10_000 / LARGEST_SHARE, "{found:?}");
        // Half the lot would gain from doubling: the smallest flat lot is recommended.
        let mut sigma = noise(10_000, 3.0);
        let (lot, steps) = (setting.lot / 2, steps(10_000, setting.epochs, setting.lot / 2));
        let half = Setting { lot, steps, sigma: sigma(lot, steps).unwrap(), ..setting };
        assert!(setting.noise_of_run() < (1.0 - GAIN) * half.noise_of_run(), "{half:?} {found:?}");
        // σ alone suggests the smaller lot.
        assert!(half.sigma < setting.sigma, "{half:?} {found:?}");
    }

    #[test]
    fn limits_hold_for_any_number_of_records() {
        for (records, epsilon) in [(1, 1.0), (7, 3.0), (100, 0.5), (1000, 8.0), (1_000_000, 1.0)] {
            let found = recommend(records, None, None, noise(records, epsilon)).unwrap().setting;
            assert!(found.lot >= 1 && found.lot <= (records / LARGEST_SHARE).max(1), "{found:?}");
            assert_eq!(found.steps, steps(records, found.epochs, found.lot));
        }
    }

    #[test]
    fn given_values_are_kept() {
        let found = recommend(5000, Some(300), None, noise(5000, 2.0)).unwrap();
        assert_eq!(found.setting.lot, 300);
        let found = recommend(5000, None, Some(4.0), noise(5000, 2.0)).unwrap();
        assert_eq!(found.setting.epochs, 4.0);
    }
}
