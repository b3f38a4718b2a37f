//! The curator: holds the records and answers queries about them with noise.

use crate::grid::{self, WEIGHT_STEPS};
use crate::private_state::MechanismState;
use crate::release::{PaidRelease, release};
use crate::sampler::Sampler;
use crate::sums::LotSummer;
use crate::{Door, Journal, Private, PrivateState, Randomness, Records, Sampling};
use accounting::Ledger;
use engine::{CheckedQuery, Engine, Isolation, Reducer, SumPrecision};
use noise::{DrawKeys, IndependentGaussian, Mechanism, Ratchet, ReleaseKind};
use protocol::{
    Announcement, Blocks, Clipping, Geometry, GradientQuery, LossQuery, Noisy, Oracle, Params,
    Positive, Refused, TensorMap, Trainable,
};
use std::hash::{DefaultHasher, Hash, Hasher};

/// Holds records, draws lots, and answers announced and charged queries with noise.
///
/// Other crates learn about records, lots and sums only from its answers as an [`Oracle`].
///
/// ```
/// use accounting::{Sampling, SamplingRate};
/// use cpu::Network;
/// use curator::{Curator, Door, Randomness, Records};
/// use engine::Example;
/// use model::{Mlp, activation::Activation};
/// use protocol::{Announcement, Blocks, Bound, Clipping, Geometry, GradientQuery, Oracle};
///
/// let mlp = Mlp { input: 2, hidden: vec![4], classes: 2, activation: Activation::Tanh };
/// let graph = mlp.graph();
/// let values = graph.init(0)?;
/// let (network, params) = Network::new(graph, values, |_| true)?;
/// let records = Records::new(vec![Example::features(vec![1.0, 0.5], 1); 100]);
/// let sampling = Sampling::Poisson { rate: SamplingRate::new(0.1)? };
/// let (door, secret) = (Door::unlimited(), Randomness::from_system()?);
/// let mut curator = Curator::new(network, records, sampling, door, secret)?;
///
/// let bounds = [Bound::new(1.0, 2.0)?];
/// curator.draw(&Announcement::gradient(&bounds))?;
/// let answer = curator.gradient(&GradientQuery {
///     at: &params,
///     geometry: &Geometry::Identity,
///     blocks: &Blocks::flat(params.len()),
///     bounds: &bounds,
///     clipping: Clipping::Cut,
/// })?;
/// // σ C over the expected lot size.
/// assert_eq!((answer.value.len(), answer.std[0]), (params.len(), 2.0 * 1.0 / 10.0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Curator<E> {
    summer: LotSummer<E>,
    sampler: Sampler,
    door: Door,
    randomness: Randomness,
    mechanism: Box<dyn Mechanism>,
    lot: Option<Lot>,
    /// Number of the next draw, from which keys are derived. It only grows.
    draws: u64,
    state_sink: Option<StateSink>,
}

/// Called after a lot is drawn and before anything is computed from it, to save the private state.
pub type StateSink = Box<dyn FnMut(&PrivateState) -> Result<(), String> + Send>;

/// A lot that was charged and drawn, and the releases that may still be made from it.
struct Lot {
    /// Number of the draw.
    draw: u64,
    /// Keys of further releases from it.
    releases: Ratchet,
    /// Places of its records, ascending.
    places: Private<Vec<usize>>,
    /// The announced releases that were not made yet.
    remaining: Announcement,
}

/// Share of the charged clip bound to which gradients and losses are clipped.
///
/// The rest is a margin for rounding, because norms are computed in floating point (PROOFS.md, 3).
const CLIPPED_SHARE: f64 = 1.0 - 1.0 / 256.0;

/// The largest ‖center/scale‖ of an affine geometry, in units of the smaller of clip bound and γ.
///
/// Beyond it, subtracting the center loses more precision than [`CLIPPED_SHARE`] allows for.
const MAX_CENTER_DISTANCE: f64 = 1000.0;

/// Accepted clip bounds: all values computed with them are well within the range of f32.
const CLIP_RANGE: std::ops::RangeInclusive<f64> = 1e-15..=1e15;

/// The largest ratio of a clip bound to the γ of automatic clipping.
const MAX_CLIP_OVER_GAMMA: f64 = 1e6;

/// Accepted products of a clip bound and a scale of an affine geometry.
const SCALED_CLIP_RANGE: std::ops::RangeInclusive<f64> = 1e-28..=1e28;

impl<E> std::fmt::Debug for Curator<E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Curator")
            .field("sampling", &self.sampler.sampling)
            .field("door", &self.door)
            .finish_non_exhaustive()
    }
}

impl<E: Engine> Curator<E> {
    /// Creates a curator from an engine and records.
    ///
    /// # Errors
    /// If a record does not fit the model, or lots are larger than the data.
    pub fn new(
        engine: E,
        records: Records,
        sampling: Sampling,
        door: Door,
        randomness: Randomness,
    ) -> Result<Self, Refused> {
        let sampler = Sampler::new(sampling, records.places())?;
        // An earlier process may have drawn lots for the charges in this ledger. Their numbers, and
        // so their keys, are not used again, even with a fixed seed.
        let draws = sampler.most_draws(door.ledger().events().len());
        Ok(Self {
            summer: LotSummer::new(engine, records)?,
            sampler,
            door,
            randomness,
            mechanism: Box::new(IndependentGaussian::default()),
            lot: None,
            draws,
            state_sink: None,
        })
    }

    /// Sets the micro-batch size. It changes speed and memory, not what is released.
    pub fn set_micro_batch(&mut self, examples: usize) {
        self.summer.set_micro_batch(examples);
    }

    /// Returns the micro-batch size, which is smaller than requested after running out of memory.
    ///
    /// **Not private**: it may depend on the records.
    pub fn micro_batch(&self) -> usize {
        self.summer.micro_batch()
    }

    /// Sets the reducer, which divides lots among several processes and adds up their sums.
    ///
    /// All of them hold the same records and draw from the same secret. The process that owns a
    /// tensor adds noise to its sums, with a key that depends on the draw and the tensor only. What
    /// is released does not depend on the number of processes.
    ///
    /// The current lot is discarded, because the other processes have not agreed on it.
    ///
    /// # Errors
    /// If the reducer is made for other tensors.
    pub fn set_reducer(&mut self, reducer: Box<dyn Reducer>) -> Result<(), Refused> {
        self.lot = None;
        self.summer.set_reducer(reducer)
    }

    /// Replaces the mechanism that adds noise; by default [`IndependentGaussian`] on a grid.
    ///
    /// The current lot and epoch are discarded, because they were charged for the previous
    /// mechanism. So call this before a saved state is restored.
    pub fn set_mechanism(&mut self, mechanism: Box<dyn Mechanism>) {
        self.lot = None;
        self.sampler.abandon_epoch();
        self.mechanism = mechanism;
    }

    /// Returns the public description of the trained tensors.
    pub fn trainable(&self) -> &[Trainable] {
        self.summer.trainable()
    }

    /// Returns what has been charged.
    pub fn ledger(&self) -> &Ledger {
        self.door.ledger()
    }

    /// Returns the door: the ledger with its budget.
    pub fn door(&self) -> &Door {
        &self.door
    }

    /// Returns the secret randomness, to report its origin.
    pub fn randomness(&self) -> &Randomness {
        &self.randomness
    }

    /// Returns how far the engine isolates records, for the privacy statement.
    pub fn isolation(&self) -> Isolation {
        self.summer.isolation()
    }

    /// Returns the public lot size.
    pub fn lot_size(&self) -> f64 {
        self.sampler.lot_size()
    }

    /// Sets the journal, which is called after each charge and before anything is computed.
    pub fn set_journal(&mut self, journal: Journal) {
        self.door.set_journal(journal);
    }

    /// Sets what saves the private state after each draw, before anything is computed.
    pub fn set_state_sink(&mut self, state_sink: StateSink) {
        self.state_sink = Some(state_sink);
    }

    /// Returns an upper bound on the number of lots drawn so far, by earlier processes too.
    pub fn draws(&self) -> u64 {
        self.draws
    }

    /// Returns the private state that an interrupted run needs to resume.
    pub fn private_state(&self) -> PrivateState {
        let state = self.mechanism.save();
        let mechanism = (!state.is_empty())
            .then(|| MechanismState { name: self.mechanism.name().into(), state });
        PrivateState { draws: self.draws, epoch: self.sampler.private_state(), mechanism }
    }

    /// Resumes where another process was interrupted.
    ///
    /// Its draws are not repeated, an epoch that was paid for continues, and so does the mechanism.
    ///
    /// # Errors
    /// If the state belongs to another run.
    pub fn restore_private_state(&mut self, saved: PrivateState) -> Result<(), Refused> {
        let state = match &saved.mechanism {
            Some(own) if own.name == self.mechanism.name() => &own.state[..],
            Some(_) => {
                let mechanism = self.mechanism.name();
                return Err(invalid(noise::Error::State { mechanism }));
            }
            None => &[],
        };
        self.mechanism.restore(state).map_err(invalid)?;
        self.draws = self.draws.max(saved.draws);
        saved.epoch.map_or(Ok(()), |epoch| self.sampler.restore_private_state(epoch))
    }

    /// Returns the announcement with the multipliers as which the mechanism charges them.
    fn charged(&self, draw: u64, announced: &Announcement) -> Result<Announcement, Refused> {
        announced.sigmas().iter().try_fold(Announcement::default(), |sum, &(sigma, count)| {
            let charged = self.mechanism.charged_multiplier(draw, sigma.get());
            Ok(sum.and(Positive::new("the charged noise multiplier", charged)?, count))
        })
    }

    /// Removes the releases of a query from the announced ones and takes the key of their noise.
    ///
    /// # Errors
    /// If one of them was not announced. Then nothing is removed.
    fn spend(
        &mut self,
        kind: ReleaseKind,
        sigmas: impl Iterator<Item = Positive>,
    ) -> Result<PaidRelease, Refused> {
        let lot =
            self.lot.as_mut().ok_or_else(|| Refused::Query("no lot has been drawn".into()))?;
        let mut remaining = lot.remaining.clone();
        for sigma in sigmas {
            if !remaining.take(sigma) {
                return Err(Refused::Query(format!(
                    "a release with σ = {sigma} was not announced when the lot was drawn"
                )));
            }
        }
        lot.remaining = remaining;
        Ok(PaidRelease { draw: lot.draw, key: lot.releases.take_next().map_err(failed)?, kind })
    }

    /// Validates a query and chooses the grids of its sums, which depend on public values alone.
    fn check<'a>(
        &self,
        query: &GradientQuery<'a>,
    ) -> Result<(CheckedQuery<'a>, SumPrecision), Refused> {
        let checked = self.summer.check(query)?;
        if query.bounds.len() != query.blocks.count() {
            return Err(Refused::Query(format!(
                "{} bounds for {} blocks",
                query.bounds.len(),
                query.blocks.count()
            )));
        }
        query.bounds.iter().try_for_each(|bound| check_clip(bound.clip.get()))?;
        for (block, bound) in query.bounds.iter().enumerate() {
            let elements: usize = (0..query.at.len())
                .filter(|&k| query.blocks.of(k) == block)
                .map(|k| query.at[k].len())
                .sum();
            self.mechanism.validate(bound.sigma.get(), elements).map_err(invalid)?;
        }
        if let Clipping::Automatic { gamma } = query.clipping {
            query.bounds.iter().try_for_each(|bound| {
                within(
                    "clip bound over γ",
                    bound.clip.get() / gamma.get(),
                    0.0..=MAX_CLIP_OVER_GAMMA,
                )
            })?;
        }
        let center_distance = match query.geometry {
            Geometry::Affine { center, scale } => {
                // The sum of all weights, in steps, must fit into 64 bits.
                let largest_weight = |bound: &protocol::Bound| match query.clipping {
                    Clipping::Cut => 1.0,
                    Clipping::Automatic { gamma } => (bound.clip.get() / gamma.get()).max(1.0),
                };
                let sum = query.bounds.iter().map(largest_weight).fold(1.0, f64::max)
                    * self.summer.places() as f64;
                within("largest sum of weights", sum, 0.0..=2f64.powi(61) / WEIGHT_STEPS)?;
                check_affine(query, center, scale)?
            }
            Geometry::Identity | Geometry::Tangent { .. } => 0.0,
        };
        let (roundings, places) = (self.summer.roundings(), self.summer.places());
        let scales = grid::scales(query, &roundings, places, center_distance)?;
        Ok((checked, SumPrecision::Steps(scales)))
    }
}

/// Validates center and scale of an affine geometry; returns the largest distance of the center.
///
/// The distance in a block is ‖center/scale‖ in units of the clip bound, or of γ if it is smaller.
fn check_affine(
    query: &GradientQuery<'_>,
    center: &Params,
    scale: &Params,
) -> Result<f64, Refused> {
    let mut squared_distances = vec![0.0; query.bounds.len()];
    for (k, (center, scale)) in center.iter().zip(scale.iter()).enumerate() {
        let block = query.blocks.of(k);
        let clip = query.bounds[block].clip.get();
        for (&center, &scale) in center.data().iter().zip(scale.data()) {
            squared_distances[block] += (f64::from(center) / f64::from(scale)).powi(2);
            if !SCALED_CLIP_RANGE.contains(&(clip * f64::from(scale))) {
                return Err(Refused::Query(format!(
                    "a clip bound of {clip} at a scale of {scale} is outside of what f32 can hold"
                )));
            }
        }
    }
    let mut largest = 0.0f64;
    for (square, bound) in squared_distances.iter().zip(query.bounds) {
        let unit = match query.clipping {
            Clipping::Cut => bound.clip.get(),
            Clipping::Automatic { gamma } => bound.clip.get().min(gamma.get()),
        };
        let distance = square.sqrt() / unit;
        within(
            "distance of the center in scales and clip bounds",
            distance,
            0.0..=MAX_CENTER_DISTANCE,
        )?;
        largest = largest.max(distance);
    }
    Ok(largest)
}

/// Converts an error of the crate `noise`, none of which depends on records.
pub(crate) fn failed(error: noise::Error) -> Refused {
    Refused::Failed(error.to_string())
}

/// Converts an error about a query or a saved state.
fn invalid(error: noise::Error) -> Refused {
    Refused::Query(error.to_string())
}

fn check_clip(clip: f64) -> Result<(), Refused> {
    within("clip bound", clip, CLIP_RANGE)
}

/// Refuses a value outside of a range. It tests for the valid case, so that NaN is refused.
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
    /// (PROOFS.md, 7.) All releases from the lot were charged before it was drawn.
    fn draw(&mut self, announced: &Announcement) -> Result<(), Refused> {
        // The previous lot is discarded even if this draw fails.
        self.lot = None;
        let draw = self.draws;
        let charged = self.charged(draw, announced)?;
        if let Some(event) = self.sampler.due(announced, &charged)? {
            self.door.charge(event)?;
        }
        let DrawKeys { lot, tag, releases } = self.randomness.draw(draw).map_err(failed)?;
        self.draws += 1;
        let places = self.sampler.draw(announced, &lot);
        let state = self.private_state();
        if let Some(state_sink) = &mut self.state_sink {
            state_sink(&state).map_err(|what| {
                Refused::Failed(format!("the private state cannot be saved: {what}"))
            })?;
        }
        // Waits until all processes have charged the same event and drawn the same lot. By then
        // rank 0 has saved the charge, so no process computes before.
        self.summer.agree(&|| {
            let mut digest = DefaultHasher::new();
            places.inner().hash(&mut digest);
            format!(
                "{draw} {} {announced:?} {} {:?}",
                self.door.ledger().events().len(),
                digest.finish(),
                tag.bytes()
            )
        })?;
        self.lot = Some(Lot { draw, releases, places, remaining: announced.clone() });
        Ok(())
    }

    /// # Claim
    /// (PROOFS.md, 1–5.) One record moves the sum of block k by at most C_k, and the noise has
    /// standard deviation σ_k C_k.
    fn gradient(&mut self, query: &GradientQuery<'_>) -> Result<Noisy<TensorMap>, Refused> {
        let (checked, precision) = self.check(query)?;
        self.summer.agree_on_geometry(query.geometry)?;
        let paid =
            self.spend(ReleaseKind::Gradient, query.bounds.iter().map(|bound| bound.sigma))?;
        let Some(lot) = &self.lot else {
            return Err(Refused::Query("no lot has been drawn".into()));
        };
        let affine = matches!(query.geometry, Geometry::Affine { .. });
        let (params, bounds) = (query.at, query.bounds);
        let sums =
            self.summer.gradients(&lot.places, params, &checked, &precision, |norm, block| {
                let factor = query.clipping.factor(norm, bounds[block].clip.get() * CLIPPED_SHARE);
                // An affine encoding subtracts Σ c times its center, so Σ c must be exact: weights
                // are rounded down to whole steps.
                if affine { (factor * WEIGHT_STEPS).floor() / WEIGHT_STEPS } else { factor }
            })?;
        let (blocks, size) = ((query.blocks, query.bounds), self.sampler.lot_size());
        let shape = |k: usize| query.at[k].shape().to_vec();
        release(self.mechanism.as_mut(), &paid, sums, shape, blocks, size)
    }

    /// # Claim
    /// (PROOFS.md, 6.) One record moves the sum by at most C, and the noise has standard deviation
    /// σ C.
    fn loss(&mut self, query: &LossQuery<'_>) -> Result<Noisy<f64>, Refused> {
        self.summer.check_params(query.at)?;
        check_clip(query.bound.clip.get())?;
        self.mechanism.validate(query.bound.sigma.get(), 1).map_err(invalid)?;
        let paid = self.spend(ReleaseKind::Loss, std::iter::once(query.bound.sigma))?;
        let Some(lot) = &self.lot else {
            return Err(Refused::Query("no lot has been drawn".into()));
        };
        let sums = self.summer.losses(&lot.places, query.at, query.bound.clip.get(), |loss| {
            clipped_loss(loss, query.bound.clip.get() * CLIPPED_SHARE)
        })?;
        let (blocks, size) = (Blocks::flat(1), self.sampler.lot_size());
        let blocks = (&blocks, &[query.bound][..]);
        let noisy = release(self.mechanism.as_mut(), &paid, sums, |_| vec![1], blocks, size)?;
        Ok(Noisy { value: f64::from(noisy.value[0].data()[0]), std: noisy.std })
    }
}

/// Clips a loss to ±clip; NaN becomes 0.
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
