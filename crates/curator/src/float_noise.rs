//! The law of [`Noise::Float`](crate::Noise::Float), with its key known.

use crate::sums::Sums;
use crate::{Noise, Private, noise};
use protocol::{Blocks, Bound};
use tensor::normal::Key;

/// A floating-point number of noise is z + 2⁻¹² z′: with z known, z′ is left, to 8 bits. It is
/// normal, and independent of z: within 5.5 standard errors, which a new seed would exceed once in
/// 26 million.
#[test]
fn the_fine_part_is_independent_of_the_coarse_one() {
    let (count, key) = (1 << 15, Key::from_seed(9));
    let sums = Private::new(Sums { tensors: vec![vec![0.0; count]] });
    let bound = Bound::new(1.0, 1.0).unwrap();
    let released =
        noise::add(Noise::Float, sums, &[vec![count]], &Blocks::flat(1), &[bound], 1.0, &key);
    let mut coarse = vec![0.0; count];
    key.derive(0).normals(0, &mut coarse);
    let pairs = released.value[0]
        .data()
        .iter()
        .zip(&coarse)
        .map(|(&x, &z)| (f64::from(z), (f64::from(x) - f64::from(z)) * 4096.0));
    // The released f32 has steps of 2⁻²⁴ of its size: beyond 1 they would show in z′.
    let pairs: Vec<(f64, f64)> = pairs.filter(|(z, _)| z.abs() < 1.0).collect();
    let n = pairs.len() as f64;
    let mean =
        |f: &dyn Fn(f64, f64) -> f64| pairs.iter().map(|&(z, fine)| f(z, fine)).sum::<f64>() / n;
    assert!(mean(&|_, fine| fine).abs() < 5.5 / n.sqrt());
    assert!((mean(&|_, fine| fine * fine) - 1.0).abs() < 5.5 * (2.0 / n).sqrt());
    let variance = mean(&|z, _| z * z);
    assert!(mean(&|z, fine| z * fine).abs() < 5.5 * (variance / n).sqrt());
}
