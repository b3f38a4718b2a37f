//! Many releases: the discrete losses convolved by FFT, tilted towards the losses that decide.
//!
//! # Tilting
//! δ(ε) is decided by losses just above ε, which may be far in the tail, where an FFT of the plain law has nothing but rounding error. Multiplying
//! every release's masses by e^{θl} (and dividing by E e^{θL}) commutes with convolution and moves the bulk of the law there; it is
//! undone afterwards. So δ has small *relative* error however small it is, and the window needs to hold only a few standard
//! deviations around ε instead of everything down to 0.
//!
//! # Claim
//! The figures read off a [`Composed`] are never below those of the composed dominating pairs.
//!
//! # Why
//! The discrete pairs dominate ([`super::discrete`]). The circular convolution adds the masses outside the window to those inside. What comes
//! from the left only adds; P-mass to the right of the window is bounded by Chernoff's inequality for the discrete law, at the best
//! of several tilts, and moved to loss ∞. What the FFT may have rounded off is bounded in the 2-norm and added to δ.
//!
//! # Two stages
//! A fine grid is needed for single releases, a wide window for many; with both at once the FFT is long. So runs are
//! composed in two stages (Ghazi, Kamath, Kumar, Manurangsi 2022): some of them on the fine grid in a narrow window, then, on
//! a grid coarser by a whole factor, the rest.

use super::discrete::{Discrete, Grid, discretise};
use crate::direction::Direction;
use crate::pair::{Moments, Pair};
use crate::rdp;
use realfft::num_complex::Complex;
use realfft::{RealFftPlanner, RealToComplex};
use std::cell::RefCell;
use std::sync::Arc;

/// ln of the tilted mass that may come in from the left of the window: far less than the tilted bulk, and it can only add.
const LN_LEFT: f64 = -24.0;

/// The same to the right, as far as the tilt and not the plain law asks for it.
const LN_RIGHT: f64 = -18.0;

/// How far windows look for a better tilt, in units of one over the standard deviation.
const FURTHEST: f64 = 100.0;

/// The FFT's error in units of the machine's precision, per doubling of its length: several times what is seen.
const FFT_ERROR: f64 = 4.0;

/// No FFT is longer than this; where more would be wanted the grid is coarser and the bound less tight.
const LONGEST: f64 = (1_u64 << 22) as f64;

/// FFTs longer than this are worth a second stage.
const SHORT: f64 = (1_u64 << 13) as f64;

/// How much coarser the grid may be for single losses that decide alone than for what many releases add up to: their error is not
/// multiplied by the number of releases.
const RARE: f64 = 8.0;

/// Releases in a group of the first stage, in units of the square of the grids' ratio.
const GROUP: f64 = 4.0;

/// How tight the result has to be.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Focus {
    /// The tilt.
    pub(crate) theta: f64,
    /// The tilt at which the figures to be read are decided.
    pub(crate) saddle: f64,
    /// ln of the P-mass that may be cut off on the right: a small part of the δ around which figures will be read.
    pub(crate) ln_tail: f64,
    /// The grid's step as wanted.
    pub(crate) step: f64,
    /// About the ε of interest…
    pub(crate) epsilon: f64,
    /// …and ln of its δ: losses of this size and rarity decide alone, which the tilts do not show.
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
pub(crate) fn compose(direction: &Direction, focus: Focus) -> Composed {
    let Focus { theta, saddle, ln_tail, step: wanted, epsilon, ln_delta } = focus;
    let total = direction.moments(theta);
    let window = |step: f64| Window::of(|t| direction.moments(t), total, direction.len(), theta, step, ln_tail);
    let length = window(wanted).length();
    let fine = wanted.max(length / LONGEST);
    let most = direction.pairs().iter().map(|p| p.1).max().unwrap_or(1) as f64;
    let ratio = (length / fine / SHORT).min((most / (4.0 * GROUP)).sqrt()).floor().max(1.0);
    let mut infinite = ln_tail.exp();
    let grid =
        |step: f64, count: u64| Grid { theta, saddle, step, decisive: 0.5 * epsilon, ln_rarity: (count as f64 / RARE).ln() - ln_delta };
    // (law, how often, bound on the 2-norm of the error already in it)
    let mut stages: Vec<(Discrete, u64, f64)> = Vec::new();
    for (pair, count) in direction.pairs() {
        let one = discretise(pair, grid(fine, *count));
        if ratio == 1.0 {
            stages.push((one, *count, 0.0));
            continue;
        }
        // As many equal groups as fit; the few releases that are left over, fewer than there are groups, go on the coarse grid directly.
        let times = ((*count as f64 / (GROUP * ratio * ratio)).round() as u64).max(1);
        let ln_tail = ln_tail - (times as f64 * direction.pairs().len() as f64).ln();
        let group = Group { pair, one: &one, size: count / times, ratio: ratio as i64, ln_tail };
        infinite += times as f64 * ln_tail.exp();
        let (discrete, rounding) = group.compose(theta, fine);
        stages.push((discrete, times, rounding));
        if count % times > 0 {
            let discrete = discretise(pair, grid(ratio * fine, *count));
            stages.push((discrete, count % times, 0.0));
        }
    }
    let step = ratio * fine;
    let window = window(step);
    let stages: Vec<_> = stages.iter().map(|(law, count, rounding)| (law, *count, *rounding)).collect();
    let (masses, rounding) = convolve(&stages, window.first(step), window.size(step));
    Composed { step, first: window.first(step), masses, theta, ln_mgf: total.ln_mgf, infinite, rounding }
}

/// Equal releases that are composed on the fine grid and then laid on one that is `ratio` times coarser.
struct Group<'a> {
    pair: &'a Pair,
    one: &'a Discrete,
    size: u64,
    ratio: i64,
    ln_tail: f64,
}

impl Group<'_> {
    fn moments(&self, theta: f64) -> Moments {
        let (m, n) = (self.pair.moments(theta), self.size as f64);
        Moments { ln_mgf: n * m.ln_mgf, mean: n * m.mean, variance: n * m.variance }
    }

    /// The law on the coarse grid, and a bound on the 2-norm of its rounding error.
    fn compose(&self, theta: f64, fine: f64) -> (Discrete, f64) {
        let at = self.moments(theta);
        let window = Window::of(|t| self.moments(t), at, self.size as f64, theta, fine, self.ln_tail);
        let first_fine = window.first(fine);
        let (masses, rounding) = convolve(&[(self.one, self.size, 0.0)], first_fine, window.size(fine));
        // Each fine knot is split between its coarse neighbours, keeping P- and Q-mass, in tilted terms.
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
        let growth = (2.0 * ratio as f64).sqrt() * (theta * ratio as f64 * fine).exp();
        (Discrete { first, masses: coarse }, rounding * growth)
    }
}

/// The stretch of losses that an FFT covers.
struct Window {
    low: f64,
    high: f64,
}

impl Window {
    /// From where the tilted law begins to where the plain law's tail has mass e^`ln_tail` at the most.
    fn of(moments: impl Fn(f64) -> Moments, at: Moments, count: f64, theta: f64, step: f64, ln_tail: f64) -> Self {
        let away = 1.0 / at.variance.sqrt();
        // The discrete law has somewhat larger moments than the pairs themselves (see `discrete`).
        let right = |t: f64| {
            let (m, spread) = (moments(t), count * step * step / 8.0);
            Moments {
                ln_mgf: m.ln_mgf + t * (1.0 + t) * spread,
                mean: m.mean + (1.0 + 2.0 * t) * spread,
                variance: m.variance + 2.0 * spread,
            }
        };
        // The tilted law mirrored, so that its left tail is to the right.
        let left = |d: f64| {
            let m = moments(theta - d);
            Moments { ln_mgf: m.ln_mgf - at.ln_mgf, mean: -m.mean, variance: m.variance }
        };
        // And to the right of it: what is left out there comes in at the left, which is harmless for the plain law but not if it is much.
        let tilted = |d: f64| {
            let m = moments(theta + d);
            Moments { ln_mgf: m.ln_mgf - at.ln_mgf, ..m }
        };
        let high = rdp::tail(right, ln_tail, theta.max(away), theta + FURTHEST * away);
        let high = high.max(rdp::tail(tilted, LN_RIGHT, away, FURTHEST * away));
        Self { low: -rdp::tail(left, LN_LEFT, 5.0 * away, FURTHEST * away), high }
    }

    fn length(&self) -> f64 {
        self.high - self.low
    }

    fn first(&self, step: f64) -> i64 {
        (self.low / step).floor() as i64
    }

    /// The number of knots, rounded up to a length that the FFT likes.
    fn size(&self, step: f64) -> usize {
        let least = ((self.length() / step).ceil() as usize + 3).max(32);
        let power = least.next_power_of_two();
        if power / 4 * 3 >= least { power / 4 * 3 } else { power }
    }
}

thread_local! {
    // Plans hold tables of sines; a calibration asks for the same lengths again and again.
    static PLANNER: RefCell<RealFftPlanner<f64>> = RefCell::new(RealFftPlanner::new());
}

fn plan(size: usize) -> Arc<dyn RealToComplex<f64>> {
    PLANNER.with(|planner| planner.borrow_mut().plan_fft_forward(size))
}

/// The circular convolution of laws, each so often and with so large an error already in it (2-norm), read from knot `first` on; and a bound on
/// the 2-norm of its rounding error.
fn convolve(stages: &[(&Discrete, u64, f64)], first: i64, size: usize) -> (Vec<f64>, f64) {
    let forward = plan(size);
    let mut line = vec![0.0; size];
    let mut scratch = forward.make_scratch_vec();
    let mut spectrum: Vec<Complex<f64>> = Vec::new();
    let unit = FFT_ERROR * f64::EPSILON * (size as f64).log2();
    let (mut long, mut short, mut inherited, mut growth) = (1.0, 0.0, 0.0, 1.0);
    for (i, &(law, count, error)) in stages.iter().enumerate() {
        if i > 0 {
            line.fill(0.0);
        }
        let mut at = law.first.rem_euclid(size as i64) as usize;
        for mass in &law.masses {
            line[at] += mass;
            at = if at + 1 == size { 0 } else { at + 1 };
        }
        let n = count as f64;
        if count >= 64 {
            long += n
        } else {
            short += n * norm(&line)
        }
        inherited += n * error;
        growth *= sum(line.iter().copied()).max(1.0).powf(n);
        let mut output = vec![Complex::default(); size / 2 + 1];
        process(forward.process_with_scratch(&mut line, &mut output, &mut scratch));
        raise(&mut output, count);
        if spectrum.is_empty() {
            spectrum = output;
        } else {
            spectrum.iter_mut().zip(&output).for_each(|(s, z)| *s *= z);
        }
    }
    // Back by the same transform: Hartley's, Re − Im of Fourier's, is its own inverse, and half of all tables need not be made.
    hartley(&spectrum, &mut line);
    process(forward.process_with_scratch(&mut line, &mut spectrum, &mut scratch));
    hartley(&spectrum, &mut line);
    let shift = first.rem_euclid(size as i64) as usize;
    line.rotate_left(shift);
    let scale = 1.0 / size as f64;
    line.iter_mut().for_each(|m| *m = (*m * scale).max(0.0));
    // Each term of a transform passes through log₂ n roundings, so an entry of the spectrum F of masses that add up to 1 is off by at most
    // `unit`, and all of them by `unit` times the masses' 2-norm (both after scaling). F^n is then off by n·F^{n−1}·ΔF. For n ≥ 64, F^{n−1} is
    // at most 2F^n (or, where |F| < ½, nothing), so that the 2-norm of the result serves instead of that of the factor.
    let rounding = unit * (long * (2.0 * norm(&line) + 1e-15) + short) + inherited;
    (line, rounding * growth)
}

/// The Hartley transform of a real line whose Fourier transform has this first half.
fn hartley(half: &[Complex<f64>], line: &mut [f64]) {
    let Some((first, rest)) = half.split_first() else { return };
    line[0] = first.re - first.im;
    // The second half is the first one mirrored, with Im negated; both meet in the middle.
    let (up, down) = line[1..].split_at_mut(rest.len());
    up.iter_mut().zip(rest).for_each(|(x, z)| *x = z.re - z.im);
    down.iter_mut().rev().zip(rest).for_each(|(x, z)| *x = z.re + z.im);
}

fn norm(line: &[f64]) -> f64 {
    sum(line.iter().map(|m| m * m)).sqrt()
}

/// A sum in eight lanes: a single one waits for each addition.
fn sum(values: impl Iterator<Item = f64>) -> f64 {
    let mut lanes = [0.0; 8];
    values.enumerate().for_each(|(i, x)| lanes[i % 8] += x);
    lanes.iter().sum()
}

/// The FFT crate reports wrong buffer lengths; ours come from its own makers.
fn process(result: Result<(), realfft::FftError>) {
    debug_assert!(result.is_ok(), "{result:?}");
}

/// Every entry to the n-th power; 0 where that is below anything that matters.
fn raise(spectrum: &mut [Complex<f64>], n: u64) {
    if n == 1 {
        return;
    }
    let least = (-100.0 / n as f64).exp();
    for z in spectrum {
        if z.norm_sqr() < least {
            *z = Complex::default();
            continue;
        }
        let (mut base, mut rest, mut power) = (*z, n, Complex::new(1.0, 0.0));
        while rest > 0 {
            if rest & 1 == 1 {
                power *= base;
            }
            base = base * base;
            rest >>= 1;
        }
        *z = power;
    }
}
