//! Clipping around a public center, at a public scale of each element.
//!
//! A gradient is encoded as w = (g − a)/b and clipped to norm 1. The release is decoded as
//! g̃ = b ⊙ w̃ + a. An absent example contributes 0, and a is added with coefficient 1, whatever the
//! size of the lot. DP-MacAdam and AdaCliP choose a and b from earlier releases.
//!
//! Both take the scale b = s^½ (Σ_j s_j)^½ from standard deviations s, where the sum is over all
//! elements of all tensors. Of all scales with Σ_j s_j²/b_j² = 1, that is with E‖w‖² = 1, it is the
//! one with the least noise Σ_j b_j² (Pichapati et al. 2019).
//!
//! The limits h₁ and h₂ of the variances are configured as clip bounds C, with h = C²/d for d
//! elements: if all variances are h, then b = C.

use crate::descent::GatherTensors;
use crate::gradient_noise::QueryTemplate;
use crate::{GradientNoise, State, elementwise, within};
use protocol::{Bound, Clipping, Geometry, GradientQuery, Params, Positive, Refused};
use rayon::prelude::*;
use tensor::Array;

/// The largest distance of the center from 0, in scales, for which a query is asked.
const MAX_DISTANCE: f64 = 900.0;

/// A query with clip bound 1 around a center, at a scale of each element.
pub(crate) struct CenteredClip {
    template: QueryTemplate,
    /// a and b, of all tensors.
    geometry: Geometry,
    /// h₁ and h₂
    pub(crate) limits: (f64, f64),
    /// The variance of all elements for which b is the first clip bound.
    pub(crate) first_variance: f64,
}

impl CenteredClip {
    /// Creates the query with center 0; the clip bound of `bound` is the scale of all elements.
    ///
    /// # Errors
    /// If a clip bound is out of range, or the limits are in the wrong order.
    pub(crate) fn new(clips: (f64, f64), bound: Bound, params: &Params) -> Result<Self, Refused> {
        let (least, most) = (
            Positive::new("optimizer.clips", clips.0)?.get(),
            Positive::new("optimizer.clips", clips.1)?.get(),
        );
        if !(least <= most) {
            return Err(Refused::Query(format!(
                "optimizer.clips: the least clip bound {least} is larger than the largest {most}"
            )));
        }
        let start = bound.clip.get();
        let elements = params.elements().max(1) as f64;
        let variance = |clip: f64| clip.powi(2) / elements;
        for (what, value) in [
            ("optimizer.clip", start),
            ("optimizer.clip, squared, over the number of parameters", variance(start)),
            ("optimizer.clips: the least, squared, over the number of parameters", variance(least)),
            ("optimizer.clips: the largest, squared", most.powi(2)),
        ] {
            within(what, value, 1e-30, 1e30)?;
        }
        let mut scale = params.zeros_like();
        scale.fill(start as f32);
        let bound = Bound { clip: Positive::new("the clip bound", 1.0)?, sigma: bound.sigma };
        let noise = GradientNoise { bound, clipping: Clipping::Cut };
        Ok(Self {
            template: QueryTemplate::one_block(noise, params.len()),
            geometry: Geometry::Affine { center: params.zeros_like(), scale },
            limits: (variance(least), variance(most)),
            first_variance: variance(start),
        })
    }

    /// Returns the bound of the only block.
    pub(crate) fn bounds(&self) -> &[Bound] {
        &self.template.bounds
    }

    /// Returns the query at these parameters.
    pub(crate) fn query<'a>(&'a self, at: &'a Params) -> GradientQuery<'a> {
        self.template.query(at, &self.geometry)
    }

    /// Returns the center a and the scale b of a tensor.
    pub(crate) fn tensor(&mut self, k: usize) -> (&mut Array, &mut Array) {
        let (center, scale) = self.tensors();
        (&mut center[k], &mut scale[k])
    }

    fn tensors(&mut self) -> (&mut Params, &mut Params) {
        let Geometry::Affine { center, scale } = &mut self.geometry else {
            unreachable!("the geometry is affine")
        };
        (center, scale)
    }

    /// Gathers the center of all tensors and returns it.
    ///
    /// # Errors
    /// If the tensors of others are not available.
    pub(crate) fn gather_center(
        &mut self,
        gather: GatherTensors<'_>,
    ) -> Result<&mut Params, Refused> {
        let center = self.tensors().0;
        gather(center)?;
        Ok(center)
    }

    /// Gathers the scale of all tensors and returns it.
    ///
    /// # Errors
    /// If the tensors of others are not available.
    pub(crate) fn gather_scale(
        &mut self,
        gather: GatherTensors<'_>,
    ) -> Result<&mut Params, Refused> {
        let scale = self.tensors().1;
        gather(scale)?;
        Ok(scale)
    }

    /// Gathers standard deviations s, which are in the scale, and replaces them by b.
    ///
    /// # Errors
    /// If the tensors of others are not available.
    pub(crate) fn complete_scale(&mut self, gather: GatherTensors<'_>) -> Result<(), Refused> {
        let scale = self.gather_scale(gather)?;
        let total: f64 = scale.iter().map(|tensor| elementwise::sum(tensor, |s| s)).sum();
        let root = total.sqrt() as f32;
        scale.iter_mut().for_each(|scale| {
            scale.data_mut().par_iter_mut().for_each(|s| *s = s.sqrt() * root);
        });
        Ok(())
    }

    /// Moves the center towards 0 if it is too many scales away from 0.
    ///
    /// The curator refuses such a center, because it cannot be subtracted exactly enough. Any other
    /// center is valid, too. Only the noise of tiny lots moves it so far.
    pub(crate) fn limit_center(&mut self) {
        let (center, scale) = self.tensors();
        let squared_distances = |(center, scale): (&Array, &Array)| {
            let pieces = center.data().par_chunks(1 << 14).zip(scale.data().par_chunks(1 << 14));
            pieces
                .map(|(m, b)| {
                    m.iter()
                        .zip(b)
                        .map(|(&m, &b)| (f64::from(m) / f64::from(b)).powi(2))
                        .sum::<f64>()
                })
                .collect::<Vec<_>>()
        };
        let distance =
            center.iter().zip(scale.iter()).flat_map(squared_distances).sum::<f64>().sqrt();
        if distance > MAX_DISTANCE {
            let shrink = (MAX_DISTANCE / distance) as f32;
            center
                .iter_mut()
                .for_each(|center| center.data_mut().par_iter_mut().for_each(|m| *m *= shrink));
        }
    }

    /// Adds center and scale to a state.
    pub(crate) fn save(&self, state: &mut State) {
        if let Geometry::Affine { center, scale } = &self.geometry {
            state.set_shared("center", center);
            state.set_shared("scale", scale);
        }
    }

    /// Restores center and scale.
    ///
    /// # Errors
    /// If they are missing or have other shapes.
    pub(crate) fn load(&mut self, state: &mut State) -> Result<(), Refused> {
        let (center, scale) = self.tensors();
        *center = state.take_shared("center", center)?;
        *scale = state.take_shared("scale", scale)?;
        Ok(())
    }
}
