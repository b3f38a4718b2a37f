//! Helpers of the tests of this module: comparison, public normal values, matrices in f64.

use noise::PublicRandom;
use tensor::{Array, linalg};

pub(super) fn close(a: f64, b: f64, tolerance: f64) -> bool {
    (a - b).abs() <= tolerance * b.abs()
}

pub(super) fn normals(seed: u64, count: usize) -> Vec<f32> {
    let mut numbers = vec![0.0; count];
    PublicRandom::from_seed(seed).normals(0, &mut numbers);
    numbers
}

/// c_s from its definition.
pub(super) fn coefficient(s: u32) -> f64 {
    let factorial = |n: u32| (1..=n).map(f64::from).product::<f64>();
    factorial(2 * s) / (4f64.powi(s as i32) * factorial(s).powi(2))
}

/// A row-major matrix in f64.
#[derive(Clone)]
pub(super) struct Matrix(pub(super) usize, pub(super) usize, pub(super) Vec<f64>);

impl Matrix {
    pub(super) fn times(&self, other: &Self) -> Self {
        let entry = |i: usize, j: usize| {
            (0..self.1).map(|k| self.2[i * self.1 + k] * other.2[k * other.1 + j]).sum()
        };
        Self(
            self.0,
            other.1,
            (0..self.0 * other.1).map(|at| entry(at / other.1, at % other.1)).collect(),
        )
    }
    pub(super) fn transposed(&self) -> Self {
        Self(
            self.1,
            self.0,
            (0..self.2.len()).map(|at| self.2[at % self.0 * self.1 + at / self.0]).collect(),
        )
    }
    pub(super) fn plus(&self, factor: f64, other: &Self) -> Self {
        Self(self.0, self.1, self.2.iter().zip(&other.2).map(|(a, b)| a + factor * b).collect())
    }
    pub(super) fn operator_norm(&self) -> f64 {
        let array =
            Array::new([self.0, self.1], self.2.iter().map(|&x| x as f32).collect()).unwrap();
        f64::from(linalg::svd(&array).unwrap().1[0])
    }
    pub(super) fn newton_schulz(&self, degree: u32, steps: usize) -> Self {
        let one = Self(
            self.0,
            self.0,
            (0..self.0 * self.0).map(|at| if at % (self.0 + 1) == 0 { 1.0 } else { 0.0 }).collect(),
        );
        (0..steps).fold(self.clone(), |y, _| {
            let h = one.plus(-1.0, &y.times(&y.transposed()));
            let mut sum = Self(self.0, self.0, vec![0.0; self.0 * self.0]);
            let mut power = one.clone();
            for s in 0..=degree {
                sum = sum.plus(coefficient(s), &power);
                power = power.times(&h);
            }
            sum.times(&y)
        })
    }
}
