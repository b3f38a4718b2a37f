//! Normal numbers from a cryptographic generator, at any place of a sequence, as fast as they can
//! be written.
//!
//! A [`Key`] stands for an endless sequence of independent standard normal numbers. Number i
//! depends on the key and on i alone, so that a tensor can be filled by any number of threads.
//! Uniform words come from ChaCha20; pairs of them become pairs of normal numbers by Box and
//! Muller's rule. Where a radius lies far out, 32 more bits are drawn for it, so that the tail ends
//! at 9.4 standard deviations (a probability of 5e-21), not at 6.7.

use crate::simd::vectorised;
use chacha20::rand_core::SeedableRng;
use chacha20::rand_core::block::Generator;
use chacha20::variants::Legacy;
use chacha20::{ChaCha20Rng, ChaChaCore, R20};
use rayon::prelude::*;
use zeroize::{Zeroize, ZeroizeOnDrop};

pub use chacha20::rand_core::Rng;

/// Numbers are made in groups: this many words make this many numbers.
const GROUP: usize = 2 * LANES;
const LANES: usize = 16;

/// Words that the generator makes at a time.
pub(crate) const BLOCKS: usize = 64;

/// Numbers that are made at a time, in one thread.
pub const CHUNK: usize = 8192;

/// A key of the generator. It does not print, and its bytes are zeroed when it is dropped.
///
/// The state of the generator, which contains the key, is zeroed by `chacha20` (its feature
/// `zeroize`).
#[derive(Clone, PartialEq, Eq)]
pub struct Key([u8; 32]);

impl Zeroize for Key {
    fn zeroize(&mut self) {
        self.0.zeroize();
    }
}

impl Drop for Key {
    fn drop(&mut self) {
        self.zeroize();
    }
}

impl ZeroizeOnDrop for Key {}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key(…)")
    }
}

/// The streams of a key: what makes the numbers, what refines the tails, what makes the key of the
/// discrete numbers, and from here on what makes other keys.
const WORDS: u64 = 0;
const TAILS: u64 = 1;
pub(crate) const DISCRETE: u64 = 1 << 62;
const KEYS: u64 = 1 << 63;

impl Key {
    /// From 32 bytes, which should come from the operating system.
    pub fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The bytes: whoever has them has all the numbers.
    pub fn bytes(&self) -> &[u8; 32] {
        &self.0
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8; 32] {
        &mut self.0
    }

    /// From a small number: for tests.
    pub fn from_seed(seed: u64) -> Self {
        Self::for_purpose("", seed)
    }

    /// From a small number and what it is for: the same number serves several purposes without
    /// giving them the same draws.
    ///
    /// # Panics
    /// If the purpose takes more than 24 bytes.
    pub fn for_purpose(purpose: &str, seed: u64) -> Self {
        let mut key = Self([0; 32]);
        key.0[..8].copy_from_slice(&seed.to_le_bytes());
        key.0[8..8 + purpose.len()].copy_from_slice(purpose.as_bytes());
        key
    }

    /// Another key, independent of this one's numbers and of the keys with other labels.
    ///
    /// # Panics
    /// If the label takes more than 63 bits.
    #[must_use]
    pub fn derive(&self, label: u64) -> Self {
        assert!(label < KEYS, "a label of at most 63 bits");
        let mut key = Self([0; 32]);
        self.stream(KEYS | label, 0).fill_bytes(&mut key.0);
        key
    }

    /// Uniform words.
    pub fn words(&self) -> impl Rng + use<> {
        self.stream(WORDS, 0)
    }

    /// Writes the numbers from `at` on.
    ///
    /// # Panics
    /// If `at` is not a multiple of [`CHUNK`].
    pub fn normals(&self, at: u64, out: &mut [f32]) {
        assert_eq!(at % CHUNK as u64, 0, "numbers are made in chunks");
        let mut words = [0u32; CHUNK];
        let mut at = at;
        for out in out.chunks_mut(CHUNK) {
            self.fill(at, &mut words[..out.len().next_multiple_of(BLOCKS)]);
            self.transform(at, &words[..out.len().next_multiple_of(GROUP)], out);
            at += CHUNK as u64;
        }
    }

    /// Writes the numbers from the first on, with all threads.
    pub fn fill_normals(&self, out: &mut [f32]) {
        out.par_chunks_mut(CHUNK)
            .enumerate()
            .for_each(|(chunk, out)| self.normals((chunk * CHUNK) as u64, out));
    }

    /// The words from `at` on, straight from the block function: a buffered generator would spend
    /// most of the time on copies.
    pub(crate) fn fill(&self, at: u64, words: &mut [u32]) {
        let mut blocks = ChaChaCore::<R20, Legacy>::from_seed(self.0);
        blocks.set_block_pos(at / 16);
        words.as_chunks_mut::<BLOCKS>().0.iter_mut().for_each(|words| blocks.generate(words));
    }

    pub(crate) fn stream(&self, stream: u64, word: u64) -> ChaCha20Rng {
        let mut generator = ChaCha20Rng::from_seed(self.0);
        generator.set_stream(stream);
        if word > 0 {
            generator.set_word_pos(u128::from(word));
        }
        generator
    }

    fn transform(&self, at: u64, words: &[u32], out: &mut [f32]) {
        let whole = out.len() / GROUP * GROUP;
        let mut rest = [0.0; GROUP];
        let far = vectorised(
            #[inline(always)]
            || {
                let mut far = 0;
                for (words, out) in
                    words.chunks_exact(GROUP).zip(out[..whole].chunks_exact_mut(GROUP))
                {
                    far += group(words, out);
                }
                if words.len() > whole {
                    far += group(&words[whole..], &mut rest);
                }
                far
            },
        );
        let tail = out.len() - whole;
        if far > 0 {
            self.refine(at, &words[..whole], &mut out[..whole]);
            if words.len() > whole {
                self.refine(at + whole as u64, &words[whole..], &mut rest);
            }
        }
        out[whole..].copy_from_slice(&rest[..tail]);
    }

    /// Draws the radii that lie far out again, from 16 + 32 bits.
    #[cold]
    fn refine(&self, at: u64, words: &[u32], out: &mut [f32]) {
        for (g, (words, out)) in
            words.chunks_exact(GROUP).zip(out.chunks_exact_mut(GROUP)).enumerate()
        {
            for lane in (0..LANES).filter(|&lane| words[lane] < FAR) {
                let place = at + (g * GROUP + lane) as u64;
                let more = self.stream(TAILS, place).next_u32();
                let uniform = (f64::from(words[lane]) + (f64::from(more) + 0.5) * 2f64.powi(-32))
                    * 2f64.powi(-32);
                let radius = (-2.0 * uniform.ln()).sqrt();
                let (sin, cos) =
                    (f64::from(words[LANES + lane]) * 2f64.powi(-32) * std::f64::consts::TAU)
                        .sin_cos();
                out[lane] = (radius * cos) as f32;
                out[LANES + lane] = (radius * sin) as f32;
            }
        }
    }
}

/// Radii from words below this one are drawn again with more bits.
const FAR: u32 = 1 << 16;

/// 16 radii and 16 angles into 32 numbers; how many radii lie far out.
#[inline(always)]
fn group(words: &[u32], out: &mut [f32]) -> u32 {
    let (radii, angles) = words[..GROUP].split_at(LANES);
    let (first, second) = out[..GROUP].split_at_mut(LANES);
    let mut far = 0;
    for lane in 0..LANES {
        let radius = (-2.0 * ln_uniform(radii[lane])).sqrt();
        let (sin, cos) = sin_cos(angles[lane]);
        first[lane] = radius * cos;
        second[lane] = radius * sin;
        far += u32::from(radii[lane] < FAR);
    }
    far
}

/// ln((word + ½)/2³²), with a relative error of about 1e-7 at both ends. Polynomial: Moshier,
/// Cephes, `logf`.
#[inline(always)]
fn ln_uniform(word: u32) -> f32 {
    // Below √½ the number itself is split into m·2^e with √½ ≤ m < √2; above, 1 − u is exact and m
    // = u.
    const ROOT_HALF: u32 = 0xB504_F334;
    let u = ((word >> 1) as i32 as f32).mul_add(2.0, 1.0) * 2f32.powi(-32);
    let shifted = u.to_bits().wrapping_sub(std::f32::consts::FRAC_1_SQRT_2.to_bits());
    let e = ((shifted as i32) >> 23) as f32;
    let m = f32::from_bits(
        (shifted & 0x007f_ffff).wrapping_add(std::f32::consts::FRAC_1_SQRT_2.to_bits()),
    );
    let near = -(((!word) & 0x7fff_ffff) as i32 as f32 + 0.5) * 2f32.powi(-32);
    let (e, f) = if word >= ROOT_HALF { (0.0, near) } else { (e, m - 1.0) };
    let p = f.mul_add(7.037_683_6e-2, -1.151_461e-1);
    let p = f.mul_add(p, 1.167_699_9e-1);
    let p = f.mul_add(p, -1.242_014_1e-1);
    let p = f.mul_add(p, 1.424_932_3e-1);
    let p = f.mul_add(p, -1.666_805_7e-1);
    let p = f.mul_add(p, 2.000_071_4e-1);
    let p = f.mul_add(p, -2.499_999_4e-1);
    let p = f.mul_add(p, 3.333_333e-1);
    let z = f * f;
    let y = (f * z).mul_add(p, -0.5 * z) + f;
    e.mul_add(std::f32::consts::LN_2, y)
}

/// Sine and cosine of 2π·word/2³². Polynomials: Moshier, Cephes, `sinf`.
#[inline(always)]
fn sin_cos(word: u32) -> (f32, f32) {
    // The nearest quarter turn, and what is left of it.
    let quarter = word.wrapping_add(1 << 29) >> 30;
    let rest = word.wrapping_sub(quarter << 30) as i32 as f32;
    let x = rest * (std::f32::consts::TAU * 2f32.powi(-32));
    let z = x * x;
    let s = z.mul_add(-1.951_529_6e-4, 8.332_161e-3);
    let s = z.mul_add(s, -1.666_665_5e-1);
    let s = (z * x).mul_add(s, x);
    let c = z.mul_add(2.443_315_7e-5, -1.388_731_6e-3);
    let c = z.mul_add(c, 4.166_664_6e-2);
    let c = (z * z).mul_add(c, (-0.5f32).mul_add(z, 1.0));
    let (sin, cos) = if quarter & 1 == 1 { (c, s) } else { (s, c) };
    // Signs by quarter: sin + + − −, cos + − − +.
    let sin = f32::from_bits(sin.to_bits() ^ ((quarter & 2) << 30));
    let cos = f32::from_bits(cos.to_bits() ^ ((quarter.wrapping_add(1) & 2) << 30));
    (sin, cos)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_functions_are_close() {
        let mut words: Vec<u32> =
            (0..1_000_000u32).map(|i| i.wrapping_mul(2_654_435_761)).collect();
        words.extend((0..3000).flat_map(|i| {
            [i, u32::MAX - i, 0xB504_F334 - 1500 + i, (1 << 29) - 1500 + i, (3 << 30) - 1500 + i]
        }));
        for word in words {
            let (sin, cos) = (f64::from(word) * 2f64.powi(-32) * std::f64::consts::TAU).sin_cos();
            let got = sin_cos(word);
            assert!(
                (f64::from(got.0) - sin).abs() < 2e-7 && (f64::from(got.1) - cos).abs() < 2e-7,
                "{word}: {got:?} {sin} {cos}"
            );
            if word >= FAR {
                let truth = ((f64::from(word) + 0.5) * 2f64.powi(-32)).ln();
                let got = f64::from(ln_uniform(word));
                // The lowest bit is not looked at: a relative error of 2⁻¹⁷ of u at the lower end.
                assert!((got / truth - 1.0).abs() < 3e-6, "{word}: {got} {truth}");
                assert!(
                    (got / truth - 1.0).abs() < 4e-7 || word < 1 << 22,
                    "{word}: {got} {truth}"
                );
                assert!(got < 0.0);
            }
        }
    }

    /// That dropping runs `zeroize` cannot be observed without `unsafe`; that it runs something,
    /// and what `zeroize` does, can.
    #[test]
    fn a_dropped_key_is_zeroed() {
        fn is_zeroed_on_drop<T: ZeroizeOnDrop>() -> bool {
            std::mem::needs_drop::<T>()
        }
        assert!(
            is_zeroed_on_drop::<Key>()
                && is_zeroed_on_drop::<ChaChaCore<R20, Legacy>>()
                && is_zeroed_on_drop::<ChaCha20Rng>()
        );
        let mut key = Key::from_seed(4).derive(9);
        assert!(key.0.iter().any(|&byte| byte != 0));
        key.zeroize();
        assert_eq!(key.0, [0; 32]);
    }

    #[test]
    fn words_are_those_of_the_generator() {
        let key = Key::from_seed(4).derive(9);
        let mut words = vec![0; 4 * BLOCKS];
        for at in [0, CHUNK as u64] {
            key.fill(at, &mut words);
            let mut generator = key.stream(WORDS, at);
            assert!(words.iter().all(|&word| word == generator.next_u32()));
        }
    }

    #[test]
    fn a_number_depends_on_its_place_alone() {
        let key = Key::from_seed(7);
        let mut all = vec![0.0; 3 * CHUNK + 77];
        key.fill_normals(&mut all);
        for (at, len) in [
            (0, 5),
            (CHUNK, CHUNK),
            (2 * CHUNK, CHUNK + 77),
            (0, 3 * CHUNK + 40),
            (CHUNK, 33),
            (CHUNK, 0),
        ] {
            let mut some = vec![0.0; len];
            key.normals(at as u64, &mut some);
            assert_eq!(some, all[at..at + len], "{at} {len}");
        }
        let mut other = vec![0.0; 64];
        for key in [key.derive(0), key.derive(1), Key::from_seed(8), key.derive(0).derive(0)] {
            key.normals(0, &mut other);
            assert!(other.iter().zip(&all).all(|(a, b)| a != b));
        }
    }

    /// Where an index of 15, 16, 32 or so many bits would begin again, numbers are others. Of two
    /// equal f32 there is about one by chance in 10⁷ pairs.
    #[test]
    fn far_places_have_numbers_of_their_own() {
        let key = Key::from_seed(7);
        let mut first = vec![0.0; CHUNK];
        key.normals(0, &mut first);
        for bits in 13..60 {
            for at in [1u64 << bits, 3 << bits] {
                let mut far = vec![0.0; CHUNK];
                key.normals(at, &mut far);
                assert!(far.iter().zip(&first).filter(|(a, b)| a == b).count() < 5, "{at}");
            }
        }
    }

    /// Labels of all sizes make keys of their own, and none is the key itself.
    #[test]
    fn far_labels_have_keys_of_their_own() {
        let key = Key::from_seed(7);
        let labels: std::collections::BTreeSet<u64> = (0..63)
            .flat_map(|bits| [(1u64 << bits) - 1, 1 << bits, (1 << bits) + 1])
            .chain([KEYS - 1])
            .collect();
        let keys: std::collections::HashSet<[u8; 32]> =
            labels.iter().map(|&label| key.derive(label).0).chain([key.0]).collect();
        assert_eq!(keys.len(), labels.len() + 1);
    }

    #[test]
    fn tails_are_refined() {
        // With 2 million pairs about 30 lie far out; before they are refined they are written from
        // 16 bits only.
        let key = Key::from_seed(1);
        let mut all = vec![0.0; 1 << 22];
        key.fill_normals(&mut all);
        let (mut words, mut seen, mut fractions) = (vec![0; CHUNK], 0, Vec::new());
        for chunk in 0..all.len() / CHUNK {
            key.fill((chunk * CHUNK) as u64, &mut words);
            for (g, words) in words.chunks_exact(GROUP).enumerate() {
                for lane in (0..LANES).filter(|&lane| words[lane] < FAR) {
                    let place = chunk * CHUNK + g * GROUP + lane;
                    let square =
                        f64::from(all[place]).powi(2) + f64::from(all[place + LANES]).powi(2);
                    let uniform = (-0.5 * square).exp() * 2f64.powi(32);
                    assert!(
                        uniform > f64::from(words[lane]) - 0.1
                            && uniform < f64::from(words[lane]) + 1.1,
                        "{uniform} {}",
                        words[lane]
                    );
                    seen += 1;
                    fractions.push(uniform - f64::from(words[lane]));
                }
            }
        }
        assert!((10..90).contains(&seen), "{seen}");
        // The bits that refine are other ones at each place: 20 uniform numbers are within 0.4 of
        // each other less often than once in a million.
        let (low, high) =
            fractions.iter().fold((1.0f64, 0.0f64), |(low, high), &x| (low.min(x), high.max(x)));
        assert!(high - low > 0.4 && seen >= 20, "{low} {high} {seen}");
    }

    /// Moments and the share beyond a few thresholds, each within 5.5 standard errors: a false
    /// alarm once in 2 million runs, and the seed is fixed.
    #[test]
    fn the_law_is_normal() {
        let n = 1 << 23;
        let mut all = vec![0.0f32; n];
        Key::from_seed(3).fill_normals(&mut all);
        let mean =
            |f: &dyn Fn(f64) -> f64| all.iter().map(|&x| f(f64::from(x))).sum::<f64>() / n as f64;
        let error = |variance: f64| 5.5 * (variance / n as f64).sqrt();
        assert!(mean(&|x| x).abs() < error(1.0));
        assert!((mean(&|x| x * x) - 1.0).abs() < error(2.0));
        assert!(mean(&|x| x.powi(3)).abs() < error(15.0));
        assert!((mean(&|x| x.powi(4)) - 3.0).abs() < error(96.0));
        // Upper tail probabilities of the normal law.
        for (threshold, p) in [
            (0.0, 0.5),
            (0.01, 0.496_010_6),
            (0.5, 0.308_537_54),
            (1.0, 0.158_655_25),
            (2.0, 0.022_750_13),
            (4.0, 3.167_124_2e-5),
        ] {
            for sign in [1.0, -1.0] {
                assert!(
                    (mean(&|x| f64::from(u8::from(sign * x > threshold))) - p).abs()
                        < error(p * (1.0 - p)),
                    "{threshold}"
                );
            }
        }
        // Neighbours and the two numbers of a pair are uncorrelated.
        for lag in [1, LANES, GROUP, CHUNK] {
            let sum: f64 =
                all.iter().zip(&all[lag..]).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum();
            assert!((sum / n as f64).abs() < error(1.0), "{lag}");
        }
    }
}
