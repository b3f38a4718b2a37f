//! Standard normal values from a ChaCha20 stream.
//!
//! A [`Key`] determines a sequence of independent standard normal values. Value i depends only on
//! the key and on i, so any number of threads can fill a tensor. The Box–Muller transform maps
//! pairs of uniform words to pairs of normal values. If a radius is large, 32 more bits are drawn
//! for it, so that the tail ends at 9.4 standard deviations (a probability of 5e-21), not at 6.7.

use crate::key::{CHUNK, Key, Rng, TAIL_STREAM, WORDS_PER_CALL};
use rayon::prelude::*;

/// Words of a group, and values computed from them: radii first, then angles.
const GROUP: usize = 2 * LANES;
/// Radii and angles of a group.
const LANES: usize = 16;

impl Key {
    /// Writes standard normal values from index `at` on.
    ///
    /// # Panics
    /// If `at` is not a multiple of [`CHUNK`].
    pub fn normals(&self, at: u64, out: &mut [f32]) {
        assert_eq!(at % CHUNK as u64, 0, "`at` must be a multiple of the chunk size");
        let mut words = [0u32; CHUNK];
        let mut at = at;
        for out in out.chunks_mut(CHUNK) {
            self.fill_words(at, &mut words[..out.len().next_multiple_of(WORDS_PER_CALL)]);
            self.transform(at, &words[..out.len().next_multiple_of(GROUP)], out);
            at += CHUNK as u64;
        }
    }

    /// Writes standard normal values from index 0 on, with all threads.
    pub fn fill_normals(&self, out: &mut [f32]) {
        out.par_chunks_mut(CHUNK)
            .enumerate()
            .for_each(|(chunk, out)| self.normals((chunk * CHUNK) as u64, out));
    }

    /// Transforms uniform words to normal values.
    fn transform(&self, at: u64, words: &[u32], out: &mut [f32]) {
        let whole = out.len() / GROUP * GROUP;
        let mut last = [0.0; GROUP];
        let large = vectorized(
            #[inline(always)]
            || {
                let mut large = 0;
                for (words, out) in
                    words.chunks_exact(GROUP).zip(out[..whole].chunks_exact_mut(GROUP))
                {
                    large += transform_group(words, out);
                }
                if words.len() > whole {
                    large += transform_group(&words[whole..], &mut last);
                }
                large
            },
        );
        let remainder = out.len() - whole;
        if large > 0 {
            self.refine(at, &words[..whole], &mut out[..whole]);
            if words.len() > whole {
                self.refine(at + whole as u64, &words[whole..], &mut last);
            }
        }
        out[whole..].copy_from_slice(&last[..remainder]);
    }

    /// Recomputes large radii from 16 + 32 bits.
    #[cold]
    fn refine(&self, at: u64, words: &[u32], out: &mut [f32]) {
        for (g, (words, out)) in
            words.chunks_exact(GROUP).zip(out.chunks_exact_mut(GROUP)).enumerate()
        {
            for lane in (0..LANES).filter(|&lane| words[lane] < TAIL_THRESHOLD) {
                let index = at + (g * GROUP + lane) as u64;
                let low = self.stream(TAIL_STREAM, index).next_u32();
                let uniform = (f64::from(words[lane]) + (f64::from(low) + 0.5) * 2f64.powi(-32))
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

/// Runs `body`, compiled for the best available instruction set.
///
/// Write `vectorized(#[inline(always)] || …)`: there is one call of the body for each instruction
/// set, and unless the body is inlined into all of them it is compiled without vector instructions.
/// Passing the same closure to `dispatch` directly was measured to be four to five times slower.
#[inline(always)]
fn vectorized<R>(body: impl FnOnce() -> R) -> R {
    pulp::Arch::new().dispatch(body)
}

/// Radii from words below this one are recomputed with more bits.
const TAIL_THRESHOLD: u32 = 1 << 16;

/// Computes 32 values from 16 radii and 16 angles; returns the number of large radii.
#[inline(always)]
fn transform_group(words: &[u32], out: &mut [f32]) -> u32 {
    let (radii, angles) = words[..GROUP].split_at(LANES);
    let (first, second) = out[..GROUP].split_at_mut(LANES);
    let mut large = 0;
    for lane in 0..LANES {
        let radius = (-2.0 * ln_uniform(radii[lane])).sqrt();
        let (sin, cos) = sin_cos(angles[lane]);
        first[lane] = radius * cos;
        second[lane] = radius * sin;
        large += u32::from(radii[lane] < TAIL_THRESHOLD);
    }
    large
}

/// Computes ln((word + ½)/2³²) with a relative error of about 1e-7 near 0 and near 1.
///
/// Polynomial: Moshier, Cephes, `logf`.
#[inline(always)]
fn ln_uniform(word: u32) -> f32 {
    // Below √½, u is split into m·2^e with √½ ≤ m < √2; above, 1 − u is exact and m = u.
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

/// Computes sine and cosine of 2π·word/2³².
///
/// Polynomials: Moshier, Cephes, `sinf`.
#[inline(always)]
fn sin_cos(word: u32) -> (f32, f32) {
    // The nearest quarter turn, and the remainder.
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
    // Signs of the quarters: sin + + − −, cos + − − +.
    let sin = f32::from_bits(sin.to_bits() ^ ((quarter & 2) << 30));
    let cos = f32::from_bits(cos.to_bits() ^ ((quarter.wrapping_add(1) & 2) << 30));
    (sin, cos)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn polynomials_are_accurate() {
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
            if word >= TAIL_THRESHOLD {
                let truth = ((f64::from(word) + 0.5) * 2f64.powi(-32)).ln();
                let got = f64::from(ln_uniform(word));
                // `ln_uniform` ignores the lowest bit, a relative error of 2⁻¹⁷ of u near 0.
                assert!((got / truth - 1.0).abs() < 3e-6, "{word}: {got} {truth}");
                assert!(
                    (got / truth - 1.0).abs() < 4e-7 || word < 1 << 22,
                    "{word}: {got} {truth}"
                );
                assert!(got < 0.0);
            }
        }
    }

    #[test]
    fn a_value_depends_on_its_index_alone() {
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

    /// Values differ at indices where a counter of 15, 16, 32 or more bits would wrap around. Two
    /// f32 values are equal by chance in about one of 10⁷ pairs.
    #[test]
    fn distant_indices_have_distinct_values() {
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

    #[test]
    fn tails_are_refined() {
        // About 30 of 2 million pairs have large radii. Without refinement they have 16 bits.
        let key = Key::from_seed(1);
        let mut all = vec![0.0; 1 << 22];
        key.fill_normals(&mut all);
        let (mut words, mut seen, mut fractions) = (vec![0; CHUNK], 0, Vec::new());
        for chunk in 0..all.len() / CHUNK {
            key.fill_words((chunk * CHUNK) as u64, &mut words);
            for (g, words) in words.chunks_exact(GROUP).enumerate() {
                for lane in (0..LANES).filter(|&lane| words[lane] < TAIL_THRESHOLD) {
                    let index = chunk * CHUNK + g * GROUP + lane;
                    let square =
                        f64::from(all[index]).powi(2) + f64::from(all[index + LANES]).powi(2);
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
        // The additional bits differ at each index: the range of 20 uniform values is below 0.4
        // with a probability of less than 10⁻⁶.
        let (low, high) =
            fractions.iter().fold((1.0f64, 0.0f64), |(low, high), &x| (low.min(x), high.max(x)));
        assert!(high - low > 0.4 && seen >= 20, "{low} {high} {seen}");
    }

    /// Moments and tail probabilities are within 5.5 standard errors. The false-alarm rate is one
    /// in 2 million, and the seed is fixed.
    #[test]
    fn the_distribution_is_normal() {
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
        // Upper tail probabilities of the normal distribution.
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
        // Neighbours and the two values of a pair are uncorrelated.
        for lag in [1, LANES, GROUP, CHUNK] {
            let sum: f64 =
                all.iter().zip(&all[lag..]).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum();
            assert!((sum / n as f64).abs() < error(1.0), "{lag}");
        }
    }
}
