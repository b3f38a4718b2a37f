//! Composition of discrete privacy losses by FFT, tilted towards the losses that decide.
//!
//! # Tilting
//! δ(ε) is decided by losses just above ε, which may be far in the tail, where an FFT of the
//! untilted distribution gives nothing but rounding error. Multiplying every release's masses by
//! e^{θl} (and dividing by E e^{θL}) commutes with convolution and moves the bulk of the
//! distribution there; it is undone afterwards. So δ has small *relative* error however small it
//! is, and the window needs to hold only a few standard deviations around ε instead of everything
//! down to 0.
//!
//! # Claim
//! ε and δ computed from a [`Composed`] are never below those of the composed dominating pairs.
//!
//! # Why
//! The discrete pairs dominate ([`super::discrete`]). The circular convolution adds the masses
//! outside the window to those inside. What comes from the left only adds; P-mass to the right of
//! the window is bounded by Chernoff's inequality for the very masses that are convolved, and moved
//! to loss ∞. The rounding error of the FFT is bounded in the 2-norm and added to δ. Windows
//! and tilts are chosen by estimates; a bad choice makes the result loose, never low.
//!
//! # Two stages
//! A fine grid is needed for single releases, a wide window for many; with both at once the FFT is
//! long. So runs are composed in two stages (Ghazi, Kamath, Kumar, Manurangsi 2022): some of them
//! on the fine grid in a narrow window, then, on a grid coarser by a whole factor, the rest.

use super::convolution::Convolution;
use super::discrete::{Discrete, Grid, discretise};
use crate::direction::Direction;
use crate::dominating::DominatingPair;
use crate::pair::Moments;
use crate::rdp;

/// ln of the tilted mass that may wrap around from the left of the window.
///
/// It is far less than the tilted bulk, and it can only add.
const LN_LEFT: f64 = -24.0;

/// ln of the tilted mass that may be to the right of the window.
const LN_RIGHT: f64 = -18.0;

/// Largest change of tilt in the search for a window, in units of 1/standard deviation.
const MAX_TILT_PER_DEVIATION: f64 = 100.0;

/// Largest change of tilt in the search for a window, in units of 1/largest shift.
///
/// Beyond, moments are expensive to integrate and do not improve the window.
const MAX_TILT_PER_SHIFT: f64 = 400.0;

/// Largest length of an FFT. For longer ones the grid is coarser and the bound less tight, or
/// absent.
const MAX_FFT: f64 = (1_u64 << 21) as f64;

/// Length of an FFT from which on a second stage is worthwhile.
const TWO_STAGE_FFT: f64 = (1_u64 << 13) as f64;

/// How much coarser the grid may be for single large losses than for sums of many.
///
/// Their error is not multiplied by the number of releases.
const RARE: f64 = 8.0;

/// Releases in a group of the first stage, in units of the square of the grids' ratio.
///
/// With as many as the square itself, the coarse grid would cost as much tightness as the fine one;
/// larger groups cost proportionally less.
const GROUP: f64 = 4.0;

/// Tilt, grid and tail of a composition.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ComposeOptions {
    /// The tilt.
    pub(crate) theta: f64,
    /// The tilt at which ε or δ is decided.
    pub(crate) saddle: f64,
    /// ln of the P-mass that may be moved to loss ∞: a small fraction of δ.
    pub(crate) ln_tail: f64,
    /// The wanted step of the grid.
    pub(crate) step: f64,
    /// Approximate ε of interest.
    pub(crate) epsilon: f64,
    /// Approximate ln δ of interest.
    ///
    /// Single losses of size ε and probability δ decide the result, which the tilts do not show.
    pub(crate) ln_delta: f64,
}

/// The privacy loss of a whole direction on a grid, tilted.
#[derive(Debug, Clone)]
pub(crate) struct Composed {
    pub(crate) step: f64,
    pub(crate) first: i64,
    pub(crate) masses: Vec<f64>,
    /// The tilt: the P-mass at loss l is masses·e^{ln_mgf − θl}.
    pub(crate) theta: f64,
    pub(crate) ln_mgf: f64,
    /// P-mass at loss ∞.
    pub(crate) infinite: f64,
    /// Bound on the 2-norm of the rounding error of `masses`.
    pub(crate) rounding: f64,
}

/// Composes all releases of a truncated direction.
///
/// `None` if the FFT would be too long, or the result is not finite.
pub(crate) fn compose(direction: &Direction, options: ComposeOptions) -> Option<Composed> {
    let ComposeOptions { theta, saddle, ln_tail, step: wanted, epsilon, ln_delta } = options;
    let count = direction.len();
    let total = direction.moments(theta);
    // Splitting makes ln E e^{tL} larger by up to t(1+t)·step²/8 a distribution (see `discrete`):
    // `spread` is the sum of step²/8.
    let window = |spread: f64| {
        Window::of(|t| direction.moments(t), total, spread, theta, direction.steepness(), ln_tail)
    };
    let length = window(count * wanted * wanted / 8.0).length();
    let fine = wanted.max(length / MAX_FFT);
    let most = direction.pairs().iter().map(|p| p.1).max().unwrap_or(1) as f64;
    let ratio = (length / fine / TWO_STAGE_FFT).min((most / (4.0 * GROUP)).sqrt()).floor().max(1.0);
    let step = ratio * fine;
    let window = window(count * (1.0 + 2.0 / GROUP) * fine * fine / 8.0);
    let mut all = Convolution::new(window.size(step)?, step, theta, window.right);
    let grid = |step: f64, count: u64| Grid {
        theta,
        saddle,
        step,
        decisive: 0.5 * epsilon,
        ln_rarity: (count as f64 / RARE).ln() - ln_delta,
    };
    let mut infinite = 0.0;
    for (pair, count) in direction.pairs() {
        let one = discretise(pair, grid(fine, *count))?;
        if ratio == 1.0 {
            all.multiply(&one, *count, 0.0);
            continue;
        }
        // Equal groups; the remaining releases, fewer than there are groups, are laid on the coarse
        // grid directly.
        let times = ((*count as f64 / (GROUP * ratio * ratio)).round() as u64).max(1);
        let ln_tail = ln_tail - (times as f64 * direction.pairs().len() as f64).ln();
        let group = Group { pair, one: &one, size: count / times, ratio: ratio as i64, ln_tail };
        let coarse = group.compose(theta, fine)?;
        infinite += times as f64 * coarse.infinite;
        all.multiply(&coarse.distribution, times, coarse.rounding);
        if count % times > 0 {
            all.multiply(&discretise(pair, grid(step, *count))?, count % times, 0.0);
        }
    }
    let first = window.first(step);
    let (masses, rounding, beyond) = all.finish(first, i64::MAX, total.ln_mgf)?;
    Some(Composed {
        step,
        first,
        masses,
        theta,
        ln_mgf: total.ln_mgf,
        infinite: infinite + beyond,
        rounding,
    })
}

/// Equal releases, composed on the fine grid and then laid on a grid `ratio` times coarser.
struct Group<'a> {
    pair: &'a DominatingPair,
    one: &'a Discrete,
    size: u64,
    ratio: i64,
    ln_tail: f64,
}

/// A group on the coarse grid.
struct Coarse {
    distribution: Discrete,
    /// Bound on the 2-norm of the rounding error of its masses.
    rounding: f64,
    /// P-mass at loss ∞.
    infinite: f64,
}

impl Group<'_> {
    fn moments(&self, theta: f64) -> Moments {
        let (m, n) = (self.pair.moments(theta), self.size as f64);
        Moments { ln_mgf: n * m.ln_mgf, mean: n * m.mean, variance: n * m.variance }
    }

    fn compose(&self, theta: f64, fine: f64) -> Option<Coarse> {
        let (at, spread) = (self.moments(theta), self.size as f64 * fine * fine / 8.0);
        let mut window =
            Window::of(|t| self.moments(t), at, spread, theta, self.pair.steepness(), self.ln_tail);
        // Mass that wraps around from the left appears at the far right, where it would be composed
        // again with every group: the window is extended for it, and the extension is cut off.
        let end = (window.plain / fine).ceil() as i64 + 1;
        window.high += at.variance.sqrt();
        let mut group = Convolution::new(window.size(fine)?, fine, theta, window.right);
        group.multiply(self.one, self.size, 0.0);
        let first_fine = window.first(fine);
        let (masses, rounding, infinite) = group.finish(first_fine, end, at.ln_mgf)?;
        // Each fine knot is split between its coarse neighbours, keeping P- and Q-mass, in tilted
        // terms.
        let ratio = self.ratio;
        let unit = -(-(ratio as f64) * fine).exp_m1();
        let share = |i: i64| {
            let (below, above) = (i as f64 * fine, (ratio - i) as f64 * fine);
            let up = -(-below).exp_m1() / unit;
            ((1.0 - up) * (-theta * below).exp(), up * (theta * above).exp())
        };
        let shares: Vec<(f64, f64)> = (0..ratio).map(share).collect();
        let first = first_fine.div_euclid(ratio);
        let mut coarse = vec![0.0; masses.len() / ratio as usize + 3];
        let (mut cell, mut place) = (0, first_fine.rem_euclid(ratio) as usize);
        for mass in masses {
            let (down, up) = shares[place];
            coarse[cell] += mass * down;
            coarse[cell + 1] += mass * up;
            place += 1;
            if place == shares.len() {
                (cell, place) = (cell + 1, 0);
            }
        }
        // A coarse knot gathers the errors of 2·ratio fine ones.
        let growth = (2.0 * ratio as f64).sqrt() * (theta * ratio as f64 * fine).exp();
        Some(Coarse {
            distribution: Discrete { first, masses: coarse },
            rounding: rounding * growth,
            infinite,
        })
    }
}

/// The interval of losses that an FFT covers, and the tilt that bounds the mass to its right.
struct Window {
    low: f64,
    high: f64,
    /// The loss beyond which the tail of the untilted distribution is small enough.
    plain: f64,
    /// The tilt of the Chernoff bound of that tail.
    right: f64,
}

impl Window {
    /// From the left end of the tilted distribution to the e^`ln_tail` tail of the untilted one.
    fn of(
        moments: impl Fn(f64) -> Moments,
        at: Moments,
        spread: f64,
        theta: f64,
        steepness: f64,
        ln_tail: f64,
    ) -> Self {
        let away = 1.0 / at.variance.sqrt();
        let most = (MAX_TILT_PER_DEVIATION * away).min(MAX_TILT_PER_SHIFT / steepness);
        let plain = |t: f64| {
            let m = moments(t);
            Moments {
                ln_mgf: m.ln_mgf + t * (1.0 + t) * spread,
                mean: m.mean + (1.0 + 2.0 * t) * spread,
                variance: m.variance + 2.0 * spread,
            }
        };
        // The tilted distribution mirrored, so that its left tail is to the right.
        let left = |d: f64| {
            let m = moments(theta - d);
            Moments { ln_mgf: m.ln_mgf - at.ln_mgf, mean: -m.mean, variance: m.variance }
        };
        // The right tail of the tilted distribution: it wraps around to the left, which is harmless
        // only if it is small.
        let right = |d: f64| {
            let m = moments(theta + d);
            Moments { ln_mgf: m.ln_mgf - at.ln_mgf, ..m }
        };
        let (plain_edge, tilt) = rdp::tail(plain, ln_tail, theta.max(away.min(most)), theta + most);
        let (right_edge, _) = rdp::tail(right, LN_RIGHT, away.min(most), most);
        let (left_edge, _) = rdp::tail(left, LN_LEFT, (5.0 * away).min(most), most);
        Self { low: -left_edge, high: plain_edge.max(right_edge), plain: plain_edge, right: tilt }
    }

    fn length(&self) -> f64 {
        self.high - self.low
    }

    fn first(&self, step: f64) -> i64 {
        (self.low / step).floor() as i64
    }

    /// The number of knots, rounded up to a fast FFT length; `None` if there are too many.
    fn size(&self, step: f64) -> Option<usize> {
        let knots = (self.length() / step).ceil() + 3.0;
        // Tests the good case, so that NaN gives `None`.
        if !(knots <= 2.0 * MAX_FFT && self.low.abs() / step < 1e15) {
            return None;
        }
        let least = (knots as usize).max(32);
        let power = least.next_power_of_two();
        Some(
            [power / 8 * 5, power / 4 * 3].into_iter().find(|size| *size >= least).unwrap_or(power),
        )
    }
}
