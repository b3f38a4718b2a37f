//! The curator: the only one who holds records, and the only one who turns what was computed from
//! them into something public.

use crate::grid::{self, WEIGHT_STEPS};
use crate::randomness::DrawKeys;
use crate::ratchet::Ratchet;
use crate::sampler::Sampler;
use crate::sums::LotSummer;
use crate::{Door, Journal, Noise, Private, Randomness, Records, Sampling, Sealed, noise};
use accounting::Ledger;
use engine::{CheckedQuery, Engine, Isolation, SumPrecision};
use protocol::{
    Announcement, Blocks, Clipping, Geometry, GradientQuery, LossQuery, Noisy, Oracle, Params,
    Positive, Refused, Trainable,
};
use ranks::Ranks;
use std::hash::{DefaultHasher, Hash, Hasher};
use tensor::normal::Key;

#[cfg(test)]
use crate::mutants::{self, Mutant};

/// Holds records, draws lots, and answers with noise what has been paid for.
///
/// There is no way to the records, the lots or the sums but the [`Oracle`]'s answers.
pub struct Curator<E> {
    holder: LotSummer<E>,
    sampler: Sampler,
    door: Door,
    randomness: Randomness,
    noise: Noise,
    lot: Option<Lot>,
    /// How many lots were drawn: what keys are derived from. It only grows.
    draws: u64,
    keeper: Option<Keeper>,
}

/// What is called after a lot is drawn and before anything is computed from it: to put away what
/// only the curator may know.
pub type Keeper = Box<dyn FnMut(&Sealed) -> Result<(), String> + Send>;

/// A lot that has been paid for, and what may still be asked of it.
struct Lot {
    /// Which draw it was.
    #[cfg(test)]
    draw: u64,
    /// The keys of the releases that are still to be made from it.
    releases: Ratchet,
    places: Private<Vec<usize>>,
    left: Announcement,
}

/// Norms are measured and sums are made in floating point: gradients are clipped to this share of
/// the bound that is charged for, so that rounding does not carry them over it. (PROOFS.md, 3.)
const ROOM: f64 = 1.0 - 1.0 / 256.0;

/// The largest ‖center/scale‖ of an affine geometry, in units of the clip bound (or of γ, whichever
/// is less): beyond it, taking the center off loses more than [`ROOM`] allows for.
const FARTHEST_CENTER: f64 = 1000.0;

/// Clip bounds with which nothing comes near the ends of f32, and the largest ratio of a bound to
/// the γ of automatic clipping.
const CLIPS: std::ops::RangeInclusive<f64> = 1e-15..=1e15;
const LARGEST_GAIN: f64 = 1e6;

/// Clip bounds times the scales of an affine geometry.
const SCALED_CLIPS: std::ops::RangeInclusive<f64> = 1e-28..=1e28;

impl<E> std::fmt::Debug for Curator<E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Curator")
            .field("sampling", &self.sampler.sampling)
            .field("door", &self.door)
            .finish_non_exhaustive()
    }
}

impl<E: Engine> Curator<E> {
    /// Takes the records. They do not come out again.
    ///
    /// # Errors
    /// If a record does not fit the model, or the lots do not fit the data.
    pub fn new(
        engine: E,
        records: Records,
        sampling: Sampling,
        door: Door,
        randomness: Randomness,
    ) -> Result<Self, Refused> {
        let sampler = Sampler::new(sampling, records.places())?;
        // A door that was spent at before: whatever was drawn for that is not drawn again, even if
        // a fixed seed would.
        let draws = sampler.most_draws(door.ledger().events().len());
        Ok(Self {
            holder: LotSummer::new(engine, records)?,
            sampler,
            door,
            randomness,
            noise: Noise::default(),
            lot: None,
            draws,
            keeper: None,
        })
    }

    /// How many records are computed on at a time. It changes speed and memory; the law of what is
    /// released does not depend on it.
    pub fn set_micro_batch(&mut self, examples: usize) {
        self.holder.set_micro_batch(examples);
    }

    /// How many records are computed on at a time now: fewer than was asked for if there was not
    /// enough memory. It may tell of the records: for whoever holds them.
    pub fn micro_batch(&self) -> usize {
        self.holder.micro_batch()
    }

    /// Is one of several processes that hold the same records and draw from the same secret. Each
    /// sums its share of every lot; `owners[k]` is the one that tensor k's sums go to, and that
    /// adds noise to them. What is released does not depend on how many there are, but for
    /// rounding.
    ///
    /// # Errors
    /// If a tensor has no owner.
    pub fn join(&mut self, ranks: Ranks, owners: Vec<usize>) -> Result<(), Refused> {
        self.holder.join(ranks, owners)
    }

    /// What numbers the noise is made of.
    pub fn set_noise(&mut self, noise: Noise) {
        self.noise = noise;
    }

    /// What is publicly known of the trained tensors.
    pub fn trainable(&self) -> &[Trainable] {
        self.holder.trainable()
    }

    /// What has been charged.
    pub fn ledger(&self) -> &Ledger {
        self.door.ledger()
    }

    /// The ledger and what it is held to.
    pub fn door(&self) -> &Door {
        &self.door
    }

    /// Where the noise comes from.
    pub fn randomness(&self) -> &Randomness {
        &self.randomness
    }

    /// How far the engine keeps records apart: what a statement says of it.
    pub fn isolation(&self) -> Isolation {
        self.holder.isolation()
    }

    /// The public lot size.
    pub fn lot_size(&self) -> f64 {
        self.sampler.lot_size()
    }

    /// Calls this after each charge, before anything is computed.
    pub fn set_journal(&mut self, journal: Journal) {
        self.door.set_journal(journal);
    }

    /// Calls this after each draw, before anything is computed.
    pub fn set_keeper(&mut self, keeper: Keeper) {
        self.keeper = Some(keeper);
    }

    /// How many lots were drawn, or may have been.
    pub fn draws(&self) -> u64 {
        self.draws
    }

    /// What it must remember over an interruption.
    pub fn seal(&self) -> Sealed {
        Sealed { draws: self.draws, epoch: self.sampler.seal() }
    }

    /// Goes on where another process was interrupted: what that one drew is not drawn again, and an
    /// epoch that was paid for goes on.
    ///
    /// # Errors
    /// If it comes from another run.
    pub fn unseal(&mut self, sealed: Sealed) -> Result<(), Refused> {
        self.draws = self.draws.max(sealed.draws);
        sealed.epoch.map_or(Ok(()), |epoch| self.sampler.unseal(epoch))
    }

    /// Takes what a query will release out of what was announced, and gives the key of its noise;
    /// refuses it, and takes nothing, if it was not announced.
    fn spend(&mut self, sigmas: impl Iterator<Item = Positive>) -> Result<Key, Refused> {
        let lot =
            self.lot.as_mut().ok_or_else(|| Refused::Query("no lot has been drawn".into()))?;
        let mut left = lot.left.clone();
        for sigma in sigmas {
            if !left.take(sigma) {
                return Err(Refused::Query(format!(
                    "a release with σ = {sigma} was not announced when the lot was drawn"
                )));
            }
        }
        lot.left = left;
        #[cfg(test)]
        if mutants::is(Mutant::SameNoise) || mutants::is(Mutant::NoiseTwice) {
            return Ok(Key::from_seed(if mutants::is(Mutant::SameNoise) {
                0
            } else {
                lot.draw / 2
            }));
        }
        lot.releases.take_next()
    }

    /// Whether a query makes sense; and the grids on which its sums are made, which depend on
    /// public values alone.
    fn check<'a>(
        &self,
        query: &GradientQuery<'a>,
    ) -> Result<(CheckedQuery<'a>, SumPrecision), Refused> {
        let checked = self.holder.check(query)?;
        if query.bounds.len() != query.blocks.count() {
            return Err(Refused::Query(format!(
                "{} bounds for {} blocks",
                query.bounds.len(),
                query.blocks.count()
            )));
        }
        query.bounds.iter().try_for_each(|bound| check_clip(bound.clip.get()))?;
        for (block, bound) in query.bounds.iter().enumerate() {
            let numbers: usize = (0..query.at.len())
                .filter(|&k| query.blocks.of(k) == block)
                .map(|k| query.at[k].len())
                .sum();
            within(
                "noise multiplier times the root of a block's numbers",
                bound.sigma.get() * (numbers as f64).sqrt(),
                0.0..=noise::COARSEST,
            )?;
        }
        if let Clipping::Automatic { gamma } = query.clipping {
            query.bounds.iter().try_for_each(|bound| {
                within("clip bound over γ", bound.clip.get() / gamma.get(), 0.0..=LARGEST_GAIN)
            })?;
        }
        let far = match query.geometry {
            Geometry::Affine { center, scale } => {
                // So that the sum of all weights, in its steps, stays within 64 bits.
                let largest = |bound: &protocol::Bound| match query.clipping {
                    Clipping::Cut => 1.0,
                    Clipping::Automatic { gamma } => (bound.clip.get() / gamma.get()).max(1.0),
                };
                let sum = query.bounds.iter().map(largest).fold(1.0, f64::max)
                    * self.holder.places() as f64;
                within("largest sum of weights", sum, 0.0..=2f64.powi(61) / WEIGHT_STEPS)?;
                check_affine(query, center, scale)?
            }
            Geometry::Identity | Geometry::Tangent { .. } => 0.0,
        };
        let scales = grid::scales(query, &self.holder.roundings(), self.holder.places(), far)?;
        Ok((checked, SumPrecision::Steps(scales)))
    }
}

/// Whether what an affine encoding takes off and divides by leaves sums exact enough, block by
/// block; and how far off its center is.
fn check_affine(
    query: &GradientQuery<'_>,
    center: &Params,
    scale: &Params,
) -> Result<f64, Refused> {
    let mut far = vec![0.0; query.bounds.len()];
    for (k, (center, scale)) in center.iter().zip(scale.iter()).enumerate() {
        let block = query.blocks.of(k);
        let clip = query.bounds[block].clip.get();
        for (&center, &scale) in center.data().iter().zip(scale.data()) {
            far[block] += (f64::from(center) / f64::from(scale)).powi(2);
            if !SCALED_CLIPS.contains(&(clip * f64::from(scale))) {
                return Err(Refused::Query(format!(
                    "a clip bound of {clip} at a scale of {scale} is outside of what f32 can hold"
                )));
            }
        }
    }
    let mut farthest = 0.0f64;
    for (far, bound) in far.iter().zip(query.bounds) {
        let unit = match query.clipping {
            Clipping::Cut => bound.clip.get(),
            Clipping::Automatic { gamma } => bound.clip.get().min(gamma.get()),
        };
        within(
            "distance of the center in scales and clip bounds",
            far.sqrt() / unit,
            0.0..=FARTHEST_CENTER,
        )?;
        farthest = farthest.max(far.sqrt() / unit);
    }
    Ok(farthest)
}

fn check_clip(clip: f64) -> Result<(), Refused> {
    within("clip bound", clip, CLIPS)
}

/// Asks for the good case, so that NaN is refused.
pub(crate) fn within(
    what: &str,
    value: f64,
    range: std::ops::RangeInclusive<f64>,
) -> Result<(), Refused> {
    if range.contains(&value) {
        return Ok(());
    }
    Err(Refused::Query(format!(
        "the {what} must be between {:e} and {:e}, got {value:e}",
        range.start(),
        range.end()
    )))
}

impl<E: Engine> Oracle for Curator<E> {
    /// # Claim
    /// (PROOFS.md, 7.) Whatever is released from the lot was charged before it was drawn.
    fn draw(&mut self, announced: &Announcement) -> Result<(), Refused> {
        // Whatever happens next, nothing more is released from the lot before.
        self.lot = None;
        if let Some(event) = self.sampler.due(announced)? {
            self.door.charge(event)?;
        }
        let draw = self.draws;
        let DrawKeys { lot, tag, releases } = self.randomness.draw(draw)?;
        self.draws += 1;
        let places = self.sampler.draw(announced, &lot);
        let sealed = self.seal();
        if let Some(keeper) = &mut self.keeper {
            keeper(&sealed).map_err(|what| {
                Refused::Failed(format!("what was drawn cannot be put away: {what}"))
            })?;
        }
        // Before anybody computes, everybody has charged and drawn the same: the first process has
        // written it down.
        self.holder.team().agree(|| {
            let mut lot = DefaultHasher::new();
            places.within().hash(&mut lot);
            format!(
                "{draw} {} {announced:?} {} {:?}",
                self.door.ledger().events().len(),
                lot.finish(),
                tag.bytes()
            )
        })?;
        self.lot = Some(Lot {
            #[cfg(test)]
            draw,
            releases,
            places,
            left: announced.clone(),
        });
        Ok(())
    }

    /// # Claim
    /// (PROOFS.md, 1–5.) One record moves the sum of block k by at most C_k, and the noise has
    /// standard deviation σ_k C_k.
    fn gradient(&mut self, query: &GradientQuery<'_>) -> Result<Noisy<Params>, Refused> {
        let (checked, precision) = self.check(query)?;
        self.holder.team().agree_on(query.geometry)?;
        let key = self.spend(query.bounds.iter().map(|bound| bound.sigma))?;
        let Some(lot) = &self.lot else {
            return Err(Refused::Query("no lot has been drawn".into()));
        };
        #[cfg(test)]
        mutants::set_micro_batches(lot.places.within().len().div_ceil(self.holder.micro_batch()));
        let affine = matches!(query.geometry, Geometry::Affine { .. });
        let sums =
            self.holder.gradients(&lot.places, query.at, &checked, &precision, |norm, block| {
                #[cfg(test)]
                if mutants::is(Mutant::ClipOff) && block == 0 {
                    return 1.0;
                }
                let factor = query.clipping.factor(norm, query.bounds[block].clip.get() * ROOM);
                // Where a center is taken off as often as the weights say, they are whole multiples of
                // a step.
                if affine { (factor * WEIGHT_STEPS).floor() / WEIGHT_STEPS } else { factor }
            })?;
        let shapes = self.holder.team().own_shapes();
        #[cfg(test)]
        let taken = self.holder.taken(&lot.places)?;
        #[cfg(test)]
        if taken == 0 && mutants::is(Mutant::EmptyRefused) {
            return Err(Refused::Failed("nobody is there".into()));
        }
        let answer = noise::add(
            self.noise,
            sums,
            &shapes,
            query.blocks,
            query.bounds,
            self.sampler.lot_size(),
            &key,
        );
        #[cfg(test)]
        let answer = if mutants::is(Mutant::RealisedDivisor) {
            mutants::times(answer, self.sampler.lot_size() / taken.max(1) as f64)
        } else {
            answer
        };
        Ok(answer)
    }

    /// # Claim
    /// (PROOFS.md, 6.) One record moves the sum by at most C, and the noise has standard deviation
    /// σ C.
    fn loss(&mut self, query: &LossQuery<'_>) -> Result<Noisy<f64>, Refused> {
        self.holder.check_params(query.at)?;
        check_clip(query.bound.clip.get())?;
        within("noise multiplier", query.bound.sigma.get(), 0.0..=noise::COARSEST)?;
        let key = self.spend(std::iter::once(query.bound.sigma))?;
        let Some(lot) = &self.lot else {
            return Err(Refused::Query("no lot has been drawn".into()));
        };
        let sums = self.holder.losses(&lot.places, query.at, query.bound.clip.get(), |loss| {
            clipped_loss(loss, query.bound.clip.get() * ROOM)
        })?;
        let noisy = noise::add(
            self.noise,
            sums,
            &[vec![1]],
            &Blocks::flat(1),
            &[query.bound],
            self.sampler.lot_size(),
            &key,
        );
        Ok(Noisy { value: f64::from(noisy.value[0].data()[0]), std: noisy.std })
    }

    fn gather(&mut self, parts: &mut Params) -> Result<(), Refused> {
        self.holder.team().gather(parts)
    }
}

/// A loss within ±clip; 0 if it is not a number.
fn clipped_loss(loss: f64, clip: f64) -> f64 {
    if loss.is_nan() { 0.0 } else { loss.clamp(-clip, clip) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_are_clipped() {
        assert_eq!(clipped_loss(f64::NAN, 2.0), 0.0);
        assert_eq!(clipped_loss(f64::INFINITY, 2.0), 2.0);
        assert_eq!(clipped_loss(f64::NEG_INFINITY, 2.0), -2.0);
        assert_eq!(clipped_loss(1.5, 2.0), 1.5);
    }
}
