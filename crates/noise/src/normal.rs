//! Standard normal values from a ChaCha20 stream.
//!
//! A [`Key`] determines an endless sequence of independent standard normal values. Value i depends
//! on the key and on i alone, so that a tensor can be filled by any number of threads. Uniform
//! words come from ChaCha20; pairs of them become pairs of normal values by the Box–Muller
//! transform. Where a radius is large, 32 more bits are drawn for it, so that the tail ends at 9.4
//! standard deviations (a probability of 5e-21), not at 6.7.

use crate::key::{BLOCKS, CHUNK, Key, Rng, TAILS};
use rayon::prelude::*;

/// Values are made in groups: this many words make this many values.
const GROUP: usize = 2 * LANES;
const LANES: usize = 16;

impl Key {
    /// Writes the normal values from index `at` on.
    ///
    /// # Panics
    /// If `at` is not a multiple of [`CHUNK`].
    pub fn normals(&self, at: u64, out: &mut [f32]) {
        assert_eq!(at % CHUNK as u64, 0, "`at` must be a multiple of the chunk size");
        let mut words = [0u32; CHUNK];
        let mut at = at;
        for out in out.chunks_mut(CHUNK) {
            self.fill(at, &mut words[..out.len().next_multiple_of(BLOCKS)]);
            self.transform(at, &words[..out.len().next_multiple_of(GROUP)], out);
            at += CHUNK as u64;
        }
    }

    /// Writes the normal values from index 0 on, with all threads.
    pub fn fill_normals(&self, out: &mut [f32]) {
        out.par_chunks_mut(CHUNK)
            .enumerate()
            .for_each(|(chunk, out)| self.normals((chunk * CHUNK) as u64, out));
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

    /// Redraws the large radii, from 16 + 32 bits.
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

/// Runs `body`, compiled for the best available instruction set.
///
/// Write `vectorised(#[inline(always)] || …)`: the body is called once for each instruction set, and
/// unless it is inlined into all of these calls it is compiled without vectors. Passed to `dispatch`
/// directly, the same closure was measured to be four to five times slower.
#[inline(always)]
fn vectorised<R>(body: impl FnOnce() -> R) -> R {
    pulp::Arch::new().dispatch(body)
}

/// Radii from words below this one are redrawn with more bits.
const FAR: u32 = 1 << 16;

/// Turns 16 radii and 16 angles into 32 values; returns how many radii are large.
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

/// Computes ln((word + ½)/2³²), with a relative error of about 1e-7 at both ends.
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
    // Signs by quarter: sin + + − −, cos + − − +.
    let sin = f32::from_bits(sin.to_bits() ^ ((quarter & 2) << 30));
    let cos = f32::from_bits(cos.to_bits() ^ ((quarter.wrapping_add(1) & 2) << 30));
    (sin, cos)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn polynomials_are_close() {
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
                // The lowest bit is ignored: a relative error of 2⁻¹⁷ of u at the lower end.
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

    /// Values differ where an index of 15, 16, 32 or more bits would wrap around. Two f32 values
    /// are equal by chance in about one of 10⁷ pairs.
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
        // Of 2 million pairs about 30 have large radii; before refinement those come from 16 bits.
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
        // The refining bits differ at each index: 20 uniform values are within 0.4 of each other
        // less often than once in a million.
        let (low, high) =
            fractions.iter().fold((1.0f64, 0.0f64), |(low, high), &x| (low.min(x), high.max(x)));
        assert!(high - low > 0.4 && seen >= 20, "{low} {high} {seen}");
    }

    /// Moments and the share beyond a few thresholds, each within 5.5 standard errors: a false
    /// alarm once in 2 million runs, and the seed is fixed.
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
