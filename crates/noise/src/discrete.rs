//! Exact sampling of the discrete Gaussian on the integers, without rounding or truncation.
//!
//! A [`Key`] also determines a sequence of independent integers n with probabilities proportional
//! to f(n) = exp(−n²/2s²), s = 2⁴⁰. This is the noise of Canonne, Kamath and Steinke, "The discrete
//! Gaussian for differential privacy" (2020). The sampler is an integer ziggurat as in Buchmann,
//! Cabarcas, Göpfert, Hülsing and Weiden, "Discrete Ziggurat" (2013), but without rounding. It is
//! as fast as sampling normal values.
//!
//! **The envelope.** The envelope is a stack of 1024 layers of the same area A. Layer i has N_i
//! columns, one for each integer 0 ≤ x < N_i, and height A/N_i, so that its upper edge is Y_i =
//! A·(1/N_0 + … + 1/N_i). Layer 0 has another shape: R columns of height Y_0, then W columns of
//! height Y_0/2^j for each j = 0, 1, 2, …, so that N_0 = R + 2W. The widths satisfy f(N_i) ≤
//! Y_{i−1} for i ≥ 1, 1 ≤ Y_1023, f(R) ≤ Y_0 and W ≥ s²·ln 2/R; from the last two, f(R + m) ≤
//! f(R)·exp(−Rm/s²) ≤ Y_0/2^j for all m ≥ jW. As f is decreasing, the part of column x below
//! f(x) lies within the envelope, for all x.
//!
//! **Why it is exact.** A layer, a column of the layer and a real height within the layer are drawn
//! uniformly. Because all layers have the same area, this is a uniform point of the envelope. It is
//! accepted if it is below f(x). Accepted points are uniform below f, so x has probabilities
//! proportional to f(x) on 0, 1, 2, … A fair sign, with −0 rejected, gives the distribution on all
//! integers. Three conditions must hold, and none of them relies on unproven floating point:
//! - The column is uniform: Lemire's multiplication with rejection.
//! - Columns that are accepted without comparing heights have f(x) ≥ Y_i.
//! - The height is a real number U·A/N_i + Y_{i−1}. 64 bits of U are drawn first. U is compared
//!   with t = (f(x) − Y_{i−1})·N_i/A, in floating point if the proven error bound permits a
//!   decision. Otherwise integers bracket t, and more bits of U are drawn until U is outside the
//!   bracket.

use crate::key::{CHUNK, Key, Rng, WORDS_PER_CALL};
use num_bigint::{BigInt, BigUint};
use std::sync::LazyLock;

/// Base-2 logarithm of the parameter s of the distribution.
pub const LOG_SCALE: u32 = 40;

impl Key {
    /// Writes the discrete Gaussian values from index `at` on.
    ///
    /// Value i depends only on the key and on i. Each value uses two words of stream 0 of a derived
    /// key; rejected values of chunk c are redrawn from stream 1 + c.
    ///
    /// # Claim
    /// The values are independent, and their probabilities are exactly proportional to exp(−n²/2s²)
    /// on all integers n, s = 2⁴⁰, if the words of ChaCha20 are uniform.
    ///
    /// # Why
    /// See the documentation of this module.
    ///
    /// # Checked by
    /// `accepted_heights_add_up`, `columns_of_a_layer_are_equally_likely`,
    /// `bits_are_drawn_until_they_decide`, `small_distributions_are_exact`.
    ///
    /// # Panics
    /// If `at` is not a multiple of [`CHUNK`].
    pub fn discrete_gaussians(&self, at: u64, out: &mut [i64]) {
        assert_eq!(at % CHUNK as u64, 0, "`at` must be a multiple of the chunk size");
        let key = self.for_discrete();
        let mut at = at;
        for out in out.chunks_mut(CHUNK) {
            ZIGGURAT.fill_chunk(&key, at, out);
            at += CHUNK as u64;
        }
    }
}

/// The ziggurat for s = 2⁴⁰.
static ZIGGURAT: LazyLock<Ziggurat> = LazyLock::new(|| Ziggurat::new(LOG_SCALE, AREA));

/// The smallest area for which the layers reach height 1, to 7 digits.
const AREA: u64 = 1_413_891_500_000_000;

/// The layers of the envelope, for s = 2^log_s.
#[derive(Clone)]
struct Ziggurat {
    log_s: u32,
    layers: [Layer; LAYERS],
    edges: [Edge; LAYERS],
    /// A = area·s/2⁶⁰.
    area: u64,
    /// R, the first column of the tail.
    tail_start: u64,
    /// W, the number of columns of each step of the tail.
    tail_width: u64,
    /// Columns below this one are compared in floating point first.
    float_limit: u64,
    exp_table: ExpTable,
}

/// Number of layers.
const LAYERS: usize = 1024;

/// Width of a layer and the columns that are accepted without a comparison.
#[derive(Clone, Copy, Default)]
struct Layer {
    /// N_i·2¹¹: the upper word of its product with 53 random bits is the column.
    width: u64,
    /// Columns 1 to this one are accepted without comparing heights.
    inner: u64,
}

/// The floating-point constants of a layer for comparing heights.
#[derive(Clone, Copy, Default)]
struct Edge {
    /// Y_{i−1}, within 2⁻⁵⁰.
    below: f64,
    /// N_i/A, after two roundings.
    rate: f64,
}

/// Number of bits of a word that select the column; 10 other bits select the layer, one the sign.
const COLUMN_BITS: u32 = 53;

/// Values sampled at a time: their words fit into the L1 cache.
const BATCH: usize = 1024;

impl Ziggurat {
    /// Computes the layers of area `area`·s/2⁶⁰.
    ///
    /// Widths are computed in floating point, with an allowance for its error.
    ///
    /// # Panics
    /// If the layers do not cover f.
    fn new(log_s: u32, area: u64) -> Self {
        let exp_table = ExpTable::new();
        let f = |n| exp_table.gaussian(n, log_s);
        // ln 2 < 0.6931471806.
        let tail_width = |start: u64| {
            ((6_931_471_806u128 << (2 * log_s)) / (10_000_000_000 * u128::from(start))) as u64 + 1
        };
        let first_width = |start| start + 2 * tail_width(start);
        let scale = power_of_two(log_s as i32 - 60);
        let tail_start = smallest(1 << log_s, (5 << log_s) - 1, |start| {
            (f(start) + power_of_two(-45)) * first_width(start) as f64 <= area as f64 * scale
        });
        let (mut layers, mut edges) = ([Layer::default(); LAYERS], [Edge::default(); LAYERS]);
        // 2⁶⁴·s·Σ 1/N_k, each term rounded down. The error of Y_i is less than
        // 1024·2⁻⁶⁴·area/2⁶⁰ < 2⁻⁵⁴ plus three roundings of a number below 2.
        let mut sum = 0u128;
        let height = |sum: u128| area as f64 * sum as f64 * power_of_two(-124);
        let mut width = first_width(tail_start);
        for (i, (layer, edge)) in layers.iter_mut().zip(&mut edges).enumerate() {
            let below = height(sum);
            if i > 0 {
                width = smallest(1, width.min(tail_start), |n| f(n) + ERROR <= below - ERROR);
                assert!(f(width) + ERROR <= below - ERROR, "f(N_i) is at most Y_(i-1)");
            }
            sum += (1 << (64 + log_s)) / u128::from(width);
            let above = height(sum);
            let inner = smallest(0, width.min(tail_start), |n| f(n) - ERROR < above + ERROR);
            let rate = width as f64 / (area as f64 * scale);
            assert!(
                rate >= 1.0 && above < 2.0 && area >> 60 == 0 && width >> COLUMN_BITS == 0,
                "layers are low and narrow"
            );
            *layer = Layer { width: width << (64 - COLUMN_BITS), inner: inner.saturating_sub(1) };
            *edge = Edge { below, rate };
        }
        assert!(height(sum) - ERROR >= 1.0, "the layers reach 1");
        Self {
            log_s,
            layers,
            edges,
            area,
            tail_start,
            tail_width: tail_width(tail_start),
            float_limit: 5 << log_s,
            exp_table,
        }
    }

    /// Writes the values from index `at` on, within one chunk.
    fn fill_chunk(&self, key: &Key, at: u64, out: &mut [i64]) {
        let mut redraws = key.stream(1 + at / CHUNK as u64, 0);
        let mut next_word = || redraws.next_u64();
        let mut words = [0; 2 * BATCH];
        let mut at = at;
        for out in out.chunks_mut(BATCH) {
            key.fill_words(2 * at, &mut words[..(2 * out.len()).next_multiple_of(WORDS_PER_CALL)]);
            words
                .as_chunks()
                .0
                .iter()
                .zip(out)
                .for_each(|(words, out)| *out = self.sample(words, &mut next_word));
            at += BATCH as u64;
        }
    }

    /// Draws one value, almost always from one word with a product and two comparisons.
    #[inline(always)]
    fn sample(&self, words: &[u32; 2], next_word: &mut impl FnMut() -> u64) -> i64 {
        let word = u64::from(words[0]) | u64::from(words[1]) << 32;
        let layer = &self.layers[word as usize % LAYERS];
        let (x, low) = product(word >> (64 - COLUMN_BITS), layer.width);
        // 1 ≤ x ≤ inner, and Lemire's rule does not reject x, because low/2¹¹ ≥ N_i > 2⁵³ mod N_i.
        if x.wrapping_sub(1) < layer.inner && low >= layer.width {
            signed(x, word)
        } else {
            self.sample_slow(word, next_word)
        }
    }

    /// Draws one value, starting with a word that was not accepted immediately.
    #[cold]
    fn sample_slow(&self, word: u64, next_word: &mut impl FnMut() -> u64) -> i64 {
        let mut word = word;
        loop {
            match self.try_sample(word, next_word) {
                Some(n) => return n,
                None => word = next_word(),
            }
        }
    }

    /// Returns the value of a word, or `None` if the word is rejected.
    fn try_sample(&self, word: u64, next_word: &mut impl FnMut() -> u64) -> Option<i64> {
        let i = word as usize % LAYERS;
        let Layer { width, inner } = self.layers[i];
        let (x, low) = product(word >> (64 - COLUMN_BITS), width);
        // Lemire's rule: each column has the same number of accepted inputs of the 2⁵³.
        let surplus = || (1 << COLUMN_BITS) % (width >> (64 - COLUMN_BITS));
        if low < width && low < surplus() << (64 - COLUMN_BITS) || signed(1, word) < 0 && x == 0 {
            return None;
        }
        if x.wrapping_sub(1) < inner {
            return Some(signed(x, word));
        }
        let column = if i == 0 && x >= self.tail_start {
            // x − R is uniform below 2W, so its remainder modulo W is uniform below W. The sum does
            // not overflow: that would need j ≥ 2²³, hence 2²³ zero bits in a row.
            let j = leading_zeros(next_word);
            let offset = (x - self.tail_start) % self.tail_width;
            Column { i, j, x: self.tail_start + u64::from(j) * self.tail_width + offset }
        } else {
            Column { i, j: 0, x }
        };
        self.is_below(&column, next_word).then(|| signed(column.x, word))
    }

    /// Decides whether a uniform real number U is below t.
    ///
    /// In floating point, the errors of f and Y are at most 2⁻⁵⁰ each, and four roundings of
    /// numbers below 2 add less than 2⁻⁵⁰. These are multiplied by the rate, which is at least 1.
    /// The error of U is 2⁻⁵³. The total error is less than 2⁻⁴⁷ times the rate.
    fn is_below(&self, column: &Column, next_word: &mut impl FnMut() -> u64) -> bool {
        let first = next_word();
        if column.x < self.float_limit {
            let Edge { below, rate } = self.edges[column.i];
            // W > s/8, so j < 40 here.
            let rate = rate * (1u64 << column.j) as f64;
            let gap = first as f64 * power_of_two(-64)
                - (self.exp_table.gaussian(column.x, self.log_s) - below) * rate;
            if gap.abs() > rate * power_of_two(-47) {
                return gap < 0.0;
            }
        }
        self.is_below_exactly(column, first, next_word)
    }

    /// Decides whether U, of which `first` are the first 64 bits, is below t, in integers.
    #[cold]
    fn is_below_exactly(
        &self,
        column: &Column,
        first: u64,
        next_word: &mut impl FnMut() -> u64,
    ) -> bool {
        let (mut uniform, mut bits) = (BigInt::from(first), 64);
        loop {
            let (low, high) = self.threshold(column, bits);
            if uniform >= high {
                return false;
            }
            if uniform < low {
                // Both are integers, so U < uniform + 1 ≤ low.
                return true;
            }
            uniform = (uniform << 64) + next_word();
            bits += 64;
        }
    }

    /// Returns integer bounds of 2^bits·t, t = 2^j·N_i·(f(x)/A − Σ 1/N_k), k < i.
    fn threshold(&self, column: &Column, bits: u64) -> (BigInt, BigInt) {
        // With these guard bits, the errors of the 1024 terms, times N_i, stay below 1.
        let guard_bits = 64 + u64::from(self.log_s);
        let work = bits + u64::from(column.j) + guard_bits;
        let (low, high) =
            exp_bounds(&(BigUint::from(column.x) * column.x), 2 * u64::from(self.log_s) + 1, work);
        let area = BigUint::from(self.area) << self.log_s;
        let (low, high) =
            (BigInt::from((low << 60) / &area), BigInt::from(ceil_div(high << 60, &area)));
        let widths = || self.layers.iter().map(|layer| layer.width >> (64 - COLUMN_BITS));
        let one = BigUint::from(1u8) << work;
        let under: BigUint = widths().take(column.i).map(|width| &one / width).sum();
        let over = BigInt::from(&under + column.i);
        let width = widths().nth(column.i).unwrap_or_default();
        // Right shifts of negative numbers round down.
        let high = -(high - BigInt::from(under)) * width;
        (((low - over) * width) >> guard_bits, -(high >> guard_bits))
    }
}

/// Column x of layer i; j is the step of the tail, or 0.
struct Column {
    i: usize,
    j: u32,
    x: u64,
}

/// Returns the upper and the lower word of a product.
#[inline(always)]
fn product(a: u64, b: u64) -> (u64, u64) {
    let product = u128::from(a) * u128::from(b);
    ((product >> 64) as u64, product as u64)
}

/// Returns x with the sign that the word selects.
#[inline(always)]
fn signed(x: u64, word: u64) -> i64 {
    let minus = -((word / LAYERS as u64 % 2) as i64);
    (x as i64 ^ minus) - minus
}

/// Counts the zero bits before the first one bit of a sequence of random words.
fn leading_zeros(next_word: &mut impl FnMut() -> u64) -> u32 {
    let mut zeros = 0;
    loop {
        let word = next_word();
        zeros += word.leading_zeros();
        if word > 0 {
            return zeros;
        }
    }
}

/// Returns the smallest number in `from..=to` that satisfies a monotone predicate.
///
/// Returns `to` if no smaller number satisfies it.
fn smallest(from: u64, to: u64, predicate: impl Fn(u64) -> bool) -> u64 {
    let (mut from, mut to) = (from, to);
    while from < to {
        let middle = from.midpoint(to);
        if predicate(middle) {
            to = middle;
        } else {
            from = middle + 1;
        }
    }
    to
}

/// Returns 2^k, exactly.
const fn power_of_two(k: i32) -> f64 {
    f64::from_bits(((1023 + k) as u64) << 52)
}

/// A table of exp(−k/16), with errors below 2⁻⁵³.
#[derive(Clone)]
struct ExpTable([f64; 16 * 13]);

/// Bound on the errors of [`ExpTable::gaussian`] and of the edges.
const ERROR: f64 = power_of_two(-50);

impl ExpTable {
    fn new() -> Self {
        let word =
            |k: usize| exp_bounds(&k.into(), 4, 63).0.iter_u64_digits().next().unwrap_or_default();
        Self(std::array::from_fn(|k| word(k) as f64 * power_of_two(-63)))
    }

    /// Computes exp(−n²/2s²) for n < 5s, within 2⁻⁵⁰.
    ///
    /// The error is the sum of those of the table (2⁻⁵³), of truncating the series (2⁻⁵⁴), of its
    /// steps (2⁻⁵³), of `rest` (2⁻⁵⁷) and of the last product (2⁻⁵⁴).
    #[inline]
    fn gaussian(&self, n: u64, log_s: u32) -> f64 {
        // n²/2s² in units of 2⁻⁵⁹: less than 12.5, with an error of at most one unit.
        let square = u128::from(n) * u128::from(n);
        let shift = 2 * log_s + 1;
        let exponent =
            if shift > 59 { square >> (shift - 59) } else { square << (59 - shift) } as u64;
        let rest = (exponent % (1 << 55)) as i64 as f64 * power_of_two(-59);
        // e^−r = 1 − r(1 − r/2(1 − r/3(…))). Each step multiplies the previous error by at most
        // 1/16 and adds 3/16·2⁻⁵³ + 2⁻⁵⁴. The remainder is less than (1/16)⁹/9!.
        let series =
            (1..=8).rev().fold(1.0, |series, k| 1.0 - rest * (1.0 / f64::from(k)) * series);
        self.0[(exponent >> 55) as usize] * series
    }
}

/// Returns integer bounds of 2^bits·exp(−top/2^shift), at most 3 apart.
fn exp_bounds(top: &BigUint, shift: u64, bits: u64) -> (BigUint, BigUint) {
    // exp(−r) = exp(−r/2^k)^(2^k) with r/2^k ≤ 2⁻⁸, by k squarings. Each doubles the error, so k
    // more bits are needed, and some for the roundings.
    let squares = (top.bits() + 8).saturating_sub(shift);
    let work = bits + squares + 32;
    let one = BigUint::from(1u8) << work;
    let (mut low, mut high) = (one.clone(), one.clone());
    let mut term = (one.clone(), one);
    for k in 1u32.. {
        term = (
            ((term.0 * top) >> (shift + squares)) / k,
            ceil_div(ceil_shift(term.1 * top, shift + squares), &k.into()),
        );
        if k % 2 == 1 {
            (low, high) = (low - &term.1, high - &term.0);
        } else {
            (low, high) = (low + &term.0, high + &term.1);
        }
        if term.1 <= 1u8.into() {
            break;
        }
    }
    // The remaining terms alternate and decrease, so their sum is less than the last term.
    (low, high) = (low - 1u8, high + 1u8);
    for _ in 0..squares {
        (low, high) = ((&low * &low) >> work, ceil_shift(&high * &high, work));
    }
    (low >> (work - bits), ceil_shift(high, work - bits))
}

/// Returns a/2^shift, rounded up.
fn ceil_shift(a: BigUint, shift: u64) -> BigUint {
    let floor = &a >> shift;
    if a.trailing_zeros().is_none_or(|zeros| zeros >= shift) { floor } else { floor + 1u8 }
}

/// Returns a/b, rounded up.
fn ceil_div(a: BigUint, b: &BigUint) -> BigUint {
    (a + b - 1u8) / b
}

#[cfg(test)]
mod tests {
    use super::*;

    /// log₂ s and area of ziggurats so small that single integers can be counted.
    ///
    /// Their code is that of the ziggurat for s = 2⁴⁰.
    const SMALL: [(u32, u64); 4] = [
        (1, 1_700_000_000_000_000),
        (2, 1_553_870_000_000_000),
        (3, 1_483_800_000_000_000),
        (10, 1_414_470_000_000_000),
    ];

    fn ziggurats() -> impl Iterator<Item = Ziggurat> {
        SMALL.iter().map(|&(log_s, area)| Ziggurat::new(log_s, area)).chain([ZIGGURAT.clone()])
    }

    fn draw(ziggurat: &Ziggurat, seed: u64, n: usize) -> Vec<i64> {
        let (key, mut out) = (Key::from_seed(seed).for_discrete(), vec![0; n]);
        out.chunks_mut(CHUNK)
            .enumerate()
            .for_each(|(chunk, out)| ziggurat.fill_chunk(&key, (chunk * CHUNK) as u64, out));
        out
    }

    impl Ziggurat {
        fn widths(&self) -> Vec<u64> {
            self.layers.iter().map(|layer| layer.width >> (64 - COLUMN_BITS)).collect()
        }

        /// Returns integer bounds of 2^bits·f(n)/A.
        fn height(&self, n: u64, bits: u64) -> (BigUint, BigUint) {
            let (low, high) =
                exp_bounds(&BigUint::from(n).pow(2), 2 * u64::from(self.log_s) + 1, bits);
            let area = BigUint::from(self.area) << self.log_s;
            ((low << 60) / &area, (high << 60) / &area + 1u8)
        }
    }

    /// Returns the deviation of counts from their expectation in standard errors (Wilson and
    /// Hilferty). It exceeds 5.5 with probability 1 in 26 million; the seeds are fixed.
    fn chi_square(counts: &[u64], law: &[f64]) -> f64 {
        assert_eq!(counts.len(), law.len());
        let (n, total) = (counts.iter().sum::<u64>() as f64, law.iter().sum::<f64>());
        assert!(
            law.iter().all(|p| p / total * n > 8.0),
            "every bin must have enough expected counts"
        );
        let sum: f64 = counts
            .iter()
            .zip(law)
            .map(|(&count, p)| (count as f64 - p / total * n).powi(2) / (p / total * n))
            .sum();
        let freedom = (counts.len() - 1) as f64;
        ((sum / freedom).cbrt() - 1.0 + 2.0 / (9.0 * freedom)) / (2.0 / (9.0 * freedom)).sqrt()
    }

    /// Computes ∫ exp(−z²/2)/√(2π) from a to b by Simpson's rule.
    fn mass(a: f64, b: f64) -> f64 {
        let steps = ((b - a) * 200.0).ceil().max(2.0) * 2.0;
        let f = |k: f64| (-0.5 * (a + (b - a) * k / steps).powi(2)).exp();
        let inner: f64 =
            (1..steps as u32).map(|k| f(f64::from(k)) * f64::from(2 + k % 2 * 2)).sum();
        (f(0.0) + inner + f(steps)) * (b - a) / (3.0 * steps) / std::f64::consts::TAU.sqrt()
    }

    /// Counts values by bin. The first edge must be the smallest value; the last bin is unbounded.
    fn count(samples: impl IntoIterator<Item = u64>, edges: &[u64]) -> Vec<u64> {
        let mut counts = vec![0; edges.len()];
        samples.into_iter().for_each(|n| counts[edges.partition_point(|&edge| edge <= n) - 1] += 1);
        counts
    }

    /// Returns the probabilities of the bins for the continuous distribution.
    fn probabilities(edges: &[u64], log_s: u32) -> Vec<f64> {
        let z = |n: u64| n as f64 / 2f64.powi(log_s as i32);
        edges
            .windows(2)
            .map(|edge| mass(z(edge[0]), z(edge[1])))
            .chain(edges.last().map(|&edge| mass(z(edge), 12.0)))
            .collect()
    }

    #[test]
    fn integer_bounds_of_the_exponential_are_correct() {
        // 10⁵⁰·exp(−top/2^shift); Python: `from decimal import *; getcontext().prec = 60;
        // (-Decimal('0.5')).exp()`.
        let known = [
            (1u64, 1, "60653065971263342360379953499118045344191813548718"),
            (2, 0, "13533528323661269189399949497248440340763154590957"),
            (8, 0, "33546262790251183882138912578086101931090013372"),
            (1, 3, "88249690258459540286489214322905073622200482499065"),
            (100, 0, "3720075"),
        ];
        for (top, shift, digits) in known {
            let (low, high) = exp_bounds(&top.into(), shift, 200);
            let (digits, scale) = (digits.parse::<BigUint>().unwrap(), BigUint::from(10u8).pow(50));
            assert!(
                &low * &scale < (&digits + 1u8) << 200u8 && &high * &scale > &digits << 200u8,
                "{top}/2^{shift}"
            );
            assert!(&high - &low <= 3u8.into() && low < high);
        }
        // Bounds with more bits are within bounds with fewer bits.
        let squares =
            [0, 1, 2, 3, 1000, 1 << 40, (1 << 40) + 1, 4_447_950_000_000, 10_000_000_000_000]
                .map(|n: u64| BigUint::from(n).pow(2));
        for square in squares {
            let bounds =
                [63, 64, 65, 127, 128, 300, 1000].map(|bits| (bits, exp_bounds(&square, 81, bits)));
            for pair in bounds.windows(2) {
                let ((fewer, outer), (more, inner)) = (&pair[0], &pair[1]);
                assert!(inner.1.clone() - &inner.0 <= 3u8.into() && inner.0 < inner.1);
                assert!(
                    &outer.0 << (more - fewer) <= inner.0 && inner.1 <= &outer.1 << (more - fewer),
                    "{square} {fewer} {more}"
                );
            }
        }
    }

    #[test]
    fn floating_point_error_is_within_its_bound() {
        let mut words = Key::from_seed(2).words();
        let mut worst = 0u8;
        for ziggurat in ziggurats() {
            let (log_s, reach) = (ziggurat.log_s, ziggurat.float_limit);
            let random = (0..20_000).map(|_| product(words.next_u64(), reach).0);
            // Columns where the index of the table changes, and the first and last columns.
            let steps = (0..200u32).map(|k| (f64::from(k) / 8.0).sqrt() * 2f64.powi(log_s as i32));
            for n in random
                .chain(steps.flat_map(|n| [n as u64, n as u64 + 1]))
                .chain([0, 1, reach - 1])
                .filter(|&n| n < reach)
            {
                let (low, high) =
                    exp_bounds(&BigUint::from(n).pow(2), u64::from(2 * log_s + 1), 120);
                let got =
                    BigUint::from((ziggurat.exp_table.gaussian(n, log_s) * 2f64.powi(100)) as u128)
                        << 20u8;
                // In units of 2⁻⁵³, rounded up. The proof gives less than 8, the test less than 4.
                let error = if got > low { got - low } else { high - got };
                worst = worst.max(u8::try_from(ceil_shift(error, 120 - 53)).unwrap());
            }
        }
        assert!((1..=4).contains(&worst), "{worst}");
    }

    #[test]
    fn floating_point_agrees_with_integers() {
        // For the same column, t in floating point is within half of the slack around the integer
        // bounds.
        let mut words = Key::from_seed(12).words();
        for ziggurat in ziggurats() {
            let widths = ziggurat.widths();
            for k in 0..3000 {
                let (i, j) = (
                    words.next_u32() as usize % LAYERS,
                    if k % 2 == 0 { 0 } else { words.next_u32() % 4 },
                );
                let column = if j > 0 {
                    Column {
                        i: 0,
                        j,
                        x: ziggurat.tail_start
                            + u64::from(j) * ziggurat.tail_width
                            + words.next_u64() % ziggurat.tail_width,
                    }
                } else {
                    Column {
                        i,
                        j,
                        x: widths[i].min(ziggurat.tail_start)
                            - 1
                            - words.next_u64() % (widths[i].min(ziggurat.tail_start) / 20 + 1),
                    }
                };
                if column.x >= ziggurat.float_limit {
                    continue;
                }
                let (low, high) = ziggurat.threshold(&column, 64);
                assert!(low < high && &high - &low <= 2.into());
                let Edge { below, rate } = ziggurat.edges[column.i];
                let rate = rate * 2f64.powi(j as i32);
                let got = (ziggurat.exp_table.gaussian(column.x, ziggurat.log_s) - below) * rate;
                let got = BigInt::from((got * 2f64.powi(64)) as i128);
                let slack = BigInt::from((rate * 2f64.powi(64 - 47)) as i128 / 2);
                assert!(
                    got > low - &slack && got < high + &slack,
                    "{} {} {}",
                    column.i,
                    column.j,
                    column.x
                );
            }
        }
    }

    /// The sum over the layers of height times accepted share is f(x). This is the statement of
    /// exactness; the test checks it at all edges and next to them.
    #[test]
    fn accepted_heights_add_up() {
        for ziggurat in ziggurats() {
            let (widths, one) = (ziggurat.widths(), BigUint::from(1u8) << 256);
            assert!(
                widths.windows(2).skip(1).all(|pair| pair[0] >= pair[1])
                    && widths[1] <= ziggurat.tail_start
            );
            assert_eq!(widths[0], ziggurat.tail_start + 2 * ziggurat.tail_width);
            let edges =
                widths[1..].iter().copied().chain(ziggurat.layers.iter().map(|layer| layer.inner));
            let mut columns: Vec<u64> = edges
                .flat_map(|n| [n.saturating_sub(1), n, n + 1])
                .chain([0, ziggurat.tail_start - 1])
                .collect();
            columns.sort_unstable();
            columns.dedup();
            for x in columns.into_iter().filter(|&x| x < ziggurat.tail_start) {
                let (mut low, mut high) = (BigUint::ZERO, BigUint::ZERO);
                for (i, layer) in ziggurat.layers.iter().enumerate().filter(|&(i, _)| x < widths[i])
                {
                    if x.wrapping_sub(1) < layer.inner {
                        low += &one / widths[i];
                        high += &one / widths[i] + 1u8;
                    } else {
                        let (least, most) = ziggurat.threshold(&Column { i, j: 0, x }, 192);
                        let share = |t: BigInt| t.to_biguint().unwrap_or_default().min(&one >> 64);
                        low += (share(least) << 64) / widths[i];
                        high += (share(most) << 64) / widths[i] + 1u8;
                    }
                }
                let truth = ziggurat.height(x, 256);
                assert!(low <= truth.1 && high >= truth.0, "{x}: {low} {high} {truth:?}");
                assert!(high - low < &truth.1 >> 150, "{x}");
            }
        }
    }

    #[test]
    fn layers_cover_f_and_inner_columns_are_below_f() {
        for ziggurat in ziggurats() {
            let (widths, one) = (ziggurat.widths(), BigUint::from(1u8) << 256);
            let height = |n| ziggurat.height(n, 256);
            let mut below = BigUint::ZERO;
            for (i, &width) in widths.iter().enumerate() {
                if i > 0 {
                    // The upper bound of f is at most the lower bound of Y, and except for the
                    // slack no layer is wider than necessary.
                    assert!(height(width).1 <= below && height(width + 1).1 < below, "{i}");
                    let waste = 1 + (width >> 20);
                    assert!(width <= waste || height(width - waste).1 > below, "{i}");
                }
                let above = &below + &one / width;
                let inner = ziggurat.layers[i].inner;
                assert!(inner < width.min(ziggurat.tail_start));
                assert!(
                    inner == 0
                        || height(inner).0 > &above + LAYERS
                            && height(inner - 1).0 > &above + LAYERS,
                    "{i}"
                );
                assert!(height(inner + 2 + (inner >> 20)).1 < above, "{i}");
                below = above;
            }
            assert!(height(0).1 <= below);
            // In the tail, f(R + jW) is at most Y_0/2^j.
            for j in 0..200 {
                let x = ziggurat.tail_start + j * ziggurat.tail_width;
                assert!(height(x).1 <= (&one / widths[0]) >> j, "{j}");
                assert!(
                    ziggurat.threshold(&Column { i: 0, j: j as u32, x }, 64).1
                        <= BigInt::from(1) << 64
                );
            }
        }
    }

    #[test]
    #[should_panic(expected = "reach 1")]
    fn a_smaller_area_does_not_cover_f() {
        Ziggurat::new(LOG_SCALE, AREA - AREA / 1_000_000);
    }

    /// The same number of words is accepted for each column of a layer.
    #[test]
    fn columns_of_a_layer_are_equally_likely() {
        let mut words = Key::from_seed(5).words();
        let widths = ZIGGURAT.widths();
        // The word that is drawn after a rejected word.
        let replacement = 0x9E37_79B9_7F4A_7000;
        let redrawn = ZIGGURAT.try_sample(replacement, &mut || 0).unwrap();
        let mut rejected = 0;
        for k in 0..400 {
            // The last layer is left out: it accepts no column without a comparison.
            let i = if k < 20 { k } else { words.next_u32() as usize % (LAYERS - 1) };
            let (width, inner) = (u128::from(widths[i]), ZIGGURAT.layers[i].inner);
            let x = [1, inner, 1 + words.next_u64() % inner][k % 3];
            let word = |v: u128, sign: u64| {
                ((v as u64) << (64 - COLUMN_BITS)) | (sign * LAYERS as u64) | i as u64
            };
            let first = (u128::from(x) << COLUMN_BITS).div_ceil(width);
            let end = (u128::from(x + 1) << COLUMN_BITS).div_ceil(width);
            for (sign, n) in [(0, x as i64), (1, -(x as i64))] {
                let tries: Vec<_> =
                    (first..end).map(|v| ZIGGURAT.try_sample(word(v, sign), &mut || 0)).collect();
                assert_eq!(
                    tries.iter().filter(|&&made| made == Some(n)).count() as u128,
                    (1 << COLUMN_BITS) / width,
                    "{i} {x}"
                );
                rejected += tries.iter().filter(|made| made.is_none()).count();
                for (v, made) in (first..end).zip(tries) {
                    let word = word(v, sign);
                    assert_eq!(
                        ZIGGURAT.sample(&[word as u32, (word >> 32) as u32], &mut || replacement),
                        made.unwrap_or(redrawn)
                    );
                }
            }
            // Zero is accepted with one sign only.
            let last = (1 << COLUMN_BITS) / width - 1;
            assert_eq!(
                [0, 1].map(|sign| ZIGGURAT.try_sample(word(last, sign), &mut || 0)),
                [Some(0), None]
            );
        }
        assert!(rejected > 100, "{rejected}");
    }

    /// Among 4 million values, 2.3 equal pairs are expected. If two chunks shared words, there
    /// would be thousands.
    #[test]
    fn values_do_not_repeat() {
        let mut samples = draw(&ZIGGURAT, 10, 1 << 22);
        samples.sort_unstable();
        let pairs = samples.windows(2).filter(|pair| pair[0] == pair[1]).count();
        assert!(pairs < 20, "{pairs}");
    }

    #[test]
    fn bits_are_drawn_until_they_decide() {
        let one = BigInt::from(1) << 64;
        for ziggurat in ziggurats() {
            let columns = ziggurat.layers.iter().zip(ziggurat.widths()).enumerate();
            let columns = columns.map(|(i, (layer, width))| Column {
                i,
                j: 0,
                x: layer.inner + (width.min(ziggurat.tail_start) - layer.inner) / 2,
            });
            // U has the bits of t, except for one unit more or less in the last word.
            let cases = columns.map(|column| (ziggurat.threshold(&column, 192), column));
            let cases = cases
                .filter(|((low, high), _)| low > &BigInt::ZERO && high < &(BigInt::from(1) << 192))
                .step_by(3)
                .take(5);
            let cases: Vec<_> = cases.collect();
            assert!(cases.len() > 2, "columns where t is neither 0 nor 1");
            for ((low, high), column) in cases {
                for (end, is_below) in [(low - 1, true), (high, false)] {
                    let word = |k: u8| u64::try_from((&end >> (128 - 64 * k)) % &one).unwrap();
                    let mut k = 0;
                    let mut next_word = || {
                        k += 1;
                        word(k - 1)
                    };
                    assert_eq!(
                        ziggurat.is_below(&column, &mut next_word),
                        is_below,
                        "{}",
                        column.i
                    );
                    assert_eq!(k, 3);
                }
            }
        }
    }

    #[test]
    fn integer_decisions_alone_give_the_same_values() {
        for (ziggurat, n) in ziggurats().zip([1 << 14, 1 << 14, 1 << 15, 1 << 16, 1 << 19]) {
            let exact = Ziggurat { float_limit: 0, ..ziggurat.clone() };
            assert!(draw(&ziggurat, 6, n) == draw(&exact, 6, n), "{}", ziggurat.log_s);
        }
    }

    #[test]
    fn a_value_depends_on_its_index_alone() {
        let key = Key::from_seed(7);
        let mut all = vec![0; 3 * CHUNK + 77];
        key.discrete_gaussians(0, &mut all);
        for (at, len) in [
            (0, 5),
            (CHUNK, CHUNK),
            (2 * CHUNK, CHUNK + 77),
            (0, 3 * CHUNK + 40),
            (CHUNK, 33),
            (CHUNK, BATCH + 1),
            (CHUNK, 0),
        ] {
            let mut some = vec![0; len];
            key.discrete_gaussians(at as u64, &mut some);
            assert_eq!(some, all[at..at + len], "{at} {len}");
        }
        let mut other = vec![0; 64];
        for key in [key.derive(0), key.derive(1), Key::from_seed(8), key.for_discrete()] {
            key.discrete_gaussians(0, &mut other);
            assert!(other.iter().zip(&all).all(|(a, b)| a != b));
        }
        // Recorded: a key gives the same values on all machines and in all versions.
        assert_eq!(all[..3], [-657_130_678_782, -1_972_441_906_080, 1_586_221_592_697]);
        assert_eq!(
            all.iter().fold(0u64, |sum, &n| sum.rotate_left(5) ^ n as u64),
            12_970_856_416_629_814_027
        );
    }

    /// Values differ at indices where a counter of 15, 16, 32 or more bits would wrap around. Two
    /// values are equal by chance with a probability of about 10⁻¹².
    #[test]
    fn distant_indices_have_distinct_values() {
        let key = Key::from_seed(7);
        let mut first = vec![0; CHUNK];
        key.discrete_gaussians(0, &mut first);
        for bits in 13..60 {
            for at in [1u64 << bits, 3 << bits] {
                let mut far = vec![0; CHUNK];
                key.discrete_gaussians(at, &mut far);
                assert!(far.iter().zip(&first).all(|(a, b)| a != b), "{at}");
            }
        }
    }

    /// Rejected values are redrawn from words of their chunk only. If two chunks shared those
    /// words, several of their values would be equal. By chance, two chunks have an equal
    /// value with a probability of about 1/58,000, and three with less than 10⁻¹².
    #[test]
    fn chunks_share_no_words_for_rejected_values() {
        let key = Key::from_seed(7);
        let chunk = |at: u64| {
            let mut samples = vec![0; CHUNK];
            key.discrete_gaussians(at, &mut samples);
            samples
        };
        let first: std::collections::HashSet<i64> = chunk(0).into_iter().collect();
        for bits in 13..60 {
            let same = chunk(1 << bits).iter().filter(|number| first.contains(number)).count();
            assert!(same < 3, "{bits}: {same}");
        }
    }

    /// For small s, the counts of all integers have the exact probabilities.
    ///
    /// The number of draws is twice that needed to detect a layer that is one column too wide.
    #[test]
    fn small_distributions_are_exact() {
        for (log_s, area) in SMALL {
            let samples = draw(&Ziggurat::new(log_s, area), 9, 1 << 22);
            let s = f64::from(1 << log_s);
            // One bin for each integer that is expected 20 times or more, two bins for the others.
            let end = (s * if log_s < 10 { 3.9 } else { 3.1 }) as i64;
            let bin = |n: i64| (n.clamp(-end - 1, end + 1) + end + 1) as usize;
            let (mut counts, mut law) = (vec![0; bin(end + 1) + 1], vec![0.0; bin(end + 1) + 1]);
            samples.iter().for_each(|&n| counts[bin(n)] += 1);
            (-20 << log_s..=20 << log_s)
                .for_each(|n| law[bin(n)] += (-0.5 * (n as f64 / s).powi(2)).exp());
            let deviation = chi_square(&counts, &law);
            assert!(deviation.abs() < 5.5, "s = {s}: {deviation}");
            // Zero, of which one sign is rejected, is checked separately.
            let (p, n) = (law[bin(0)] / law.iter().sum::<f64>(), samples.len() as f64);
            assert!((counts[bin(0)] as f64 - n * p).abs() < 5.5 * (n * p * (1.0 - p)).sqrt());
        }
    }

    /// Moments, tail probabilities, bits and correlations are within 5.5 standard errors. The
    /// false-alarm rate is one in 26 million, and the seed is fixed.
    #[test]
    fn the_distribution_is_gaussian() {
        let n = 1 << 23;
        let mut samples = vec![0; n];
        Key::from_seed(3).discrete_gaussians(0, &mut samples);
        let s = 2f64.powi(LOG_SCALE as i32);
        let mean = |f: &dyn Fn(f64) -> f64| {
            samples.iter().map(|&x| f(x as f64 / s)).sum::<f64>() / n as f64
        };
        let error = |variance: f64| 5.5 * (variance / n as f64).sqrt();
        assert!(mean(&|x| x).abs() < error(1.0));
        assert!((mean(&|x| x * x) - 1.0).abs() < error(2.0));
        assert!(mean(&|x| x.powi(3)).abs() < error(15.0));
        assert!((mean(&|x| x.powi(4)) - 3.0).abs() < error(96.0));
        for threshold in [0.0, 0.01, 0.5, 1.0, 2.0, 3.0, ZIGGURAT.tail_start as f64 / s, 4.3] {
            let p = mass(threshold, 12.0);
            for sign in [1.0, -1.0] {
                assert!(
                    (mean(&|x| f64::from(u8::from(sign * x > threshold))) - p).abs()
                        < error(p * (1.0 - p)),
                    "{threshold}"
                );
            }
        }
        for lag in [1, 2, BATCH, CHUNK] {
            let sum: f64 = samples
                .iter()
                .zip(&samples[lag..])
                .map(|(&a, &b)| a as f64 / s * (b as f64 / s))
                .sum();
            assert!((sum / n as f64).abs() < error(1.0), "{lag}");
            let sum: f64 = samples
                .iter()
                .zip(&samples[lag..])
                .map(|(&a, &b)| ((a as f64 / s).powi(2) - 1.0) * ((b as f64 / s).powi(2) - 1.0))
                .sum();
            assert!((sum / n as f64).abs() < error(4.0), "{lag}");
        }
        for shift in [0, 8, 16, 24] {
            let mut counts = [0; 256];
            samples.iter().for_each(|&n| counts[(n >> shift) as usize % 256] += 1);
            let deviation = chi_square(&counts, &[1.0 / 256.0; 256]);
            assert!(deviation.abs() < 5.5, "bits from {shift}: {deviation}");
        }
    }

    #[test]
    fn the_histogram_is_correct() {
        let samples = draw(&ZIGGURAT, 4, 1 << 23);
        // 500 bins of about the same probability on each side.
        let grid = 1u64 << (LOG_SCALE - 11);
        let (mut edges, mut sum) = (vec![0], 0.0);
        for k in 1u32..5 << 11 {
            sum += mass(f64::from(k - 1) / 2048.0, f64::from(k) / 2048.0);
            if sum * 1000.0 >= edges.len() as f64 && edges.len() < 500 {
                edges.push(u64::from(k) * grid);
            }
        }
        let law = probabilities(&edges, LOG_SCALE);
        assert!(law.len() == 500 && law.iter().all(|p| (0.0003..0.002).contains(p)), "{law:?}");
        let side = |sign: i64| {
            count(samples.iter().filter(|&&n| n * sign > 0).map(|n| n.unsigned_abs()), &edges)
        };
        let deviation = chi_square(&[side(1), side(-1)].concat(), &[law.clone(), law].concat());
        assert!(deviation.abs() < 5.5, "{deviation}");
        // Bins at the edges of the layers and in the middle between them.
        let widths = ZIGGURAT.widths();
        let ends = widths[1..].iter().copied().chain([0]).collect::<Vec<_>>();
        let mut edges: Vec<u64> = ends
            .windows(2)
            .flat_map(|pair| [pair[0], pair[0].midpoint(pair[1])])
            .chain([0])
            .collect();
        edges.sort_unstable();
        let deviation = chi_square(
            &count(samples.iter().map(|n| n.unsigned_abs()), &edges),
            &probabilities(&edges, LOG_SCALE),
        );
        assert!(deviation.abs() < 5.5, "{deviation}");
    }

    /// Only words of layer 0 are drawn, so that the tail is sampled often.
    #[test]
    fn the_tail_is_correct() {
        for (ziggurat, bins) in
            [(ZIGGURAT.clone(), 40), (Ziggurat::new(SMALL[2].0, SMALL[2].1), 12)]
        {
            let Ziggurat { log_s, tail_start, tail_width, .. } = ziggurat;
            let mut words = Key::from_seed(11).words();
            let mut draw = || {
                let word = words.next_u64() & !(LAYERS as u64 - 1);
                ziggurat.try_sample(word, &mut || words.next_u64()).map(i64::unsigned_abs)
            };
            let samples: Vec<u64> = (0..1 << 22).filter_map(|_| draw()).collect();
            let beyond = || samples.iter().copied().filter(|&n| n >= tail_start);
            let edges: Vec<u64> =
                (0..bins).map(|k| tail_start + k * tail_width.div_ceil(4)).collect();
            let f = |n: u64| (-0.5 * (n as f64 / 2f64.powi(log_s as i32)).powi(2)).exp();
            let each = |from: u64, to: u64| (from..to).map(f).sum::<f64>();
            let (law, scale) = if log_s < 10 {
                (
                    edges
                        .iter()
                        .map(|&n| {
                            each(
                                n,
                                if n == edges[edges.len() - 1] {
                                    200
                                } else {
                                    n + tail_width.div_ceil(4)
                                },
                            )
                        })
                        .collect(),
                    1.0,
                )
            } else {
                (
                    probabilities(&edges, log_s),
                    std::f64::consts::TAU.sqrt() * 2f64.powi(log_s as i32),
                )
            };
            let deviation = chi_square(&count(beyond(), &edges), &law);
            assert!(deviation.abs() < 5.5, "s = 2^{log_s}: {deviation}");
            // The share of the tail, relative to the R columns of height Y_0 (or f, if it is
            // lower); column 0 counts half.
            let first = ziggurat.area as f64 * 2f64.powi(log_s as i32 - 60)
                / (tail_start + 2 * tail_width) as f64;
            let body = (ziggurat.layers[0].inner as f64 + 0.5) * first
                + each(ziggurat.layers[0].inner + 1, tail_start);
            let (area, n) = (law.iter().sum::<f64>() * scale, samples.len() as f64);
            let p = area / (area + body);
            let share = beyond().count() as f64 / n;
            assert!(
                (share - p).abs() < 5.5 * (p * (1.0 - p) / n).sqrt(),
                "s = 2^{log_s}: {share} {p}"
            );
        }
    }
}
