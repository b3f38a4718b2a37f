//! Laplacians of maps that act on singular values.
//!
//! A polynomial map G(X) = p(X Xᵀ) X of m × n matrices, m ≤ n, replaces each singular value s by
//! f(s) = s p(s²). With u = s² and w = p/2 it is the gradient of Φ(X) = Σ_i P(u_i), P′ = w. The
//! Laplacian commutes with the gradient, so ΔG = ∇(ΔΦ) and Δ²G = ∇(Δ²Φ), and those are functions of
//! singular values alone. On such functions, with a = n − m + 1,
//!
//! Δ = Σ_i (4 u_i ∂_i² + 2a ∂_i) + 4 Σ_{i<j} (u_i ∂_i − u_j ∂_j)/(u_i − u_j).
//!
//! Every quotient is a divided difference, which stays finite where singular values are equal. With
//! θ(u) = u w(u), A = 4u w′ + 2a w and ψ = ΔΦ:
//!
//! - ψ = Σ_i A(u_i) + 4 Σ_{i<j} θ[u_i, u_j].
//! - Δψ = Σ_i (4u A″ + 2a A′)(u_i) + Σ_{i<j} (4 (u A′)[u_i, u_j] + C(u_i, u_j)) + Σ_{i<j<k} D.
//! - `C(x, y) = 32 (x θ[xxxy] + y θ[xyyy]) + 8a (θ[xxy] + θ[xyy]) + 16 (x θ[xxyy] + θ[xyy])`.
//! - `D(x, y, z) = 16 (η_x[y, z] + η_y[x, z] + η_z[x, y])`, where `η_y(x) = x ∂_x θ[x, y]` and
//!   `η_y[x, z] = θ[zzy] + x (θ[xxzy] + θ[xzzy])`.
//!
//! The functions below return the derivatives by one u_i, times 2 s_i: singular values of ΔG, Δ²G.

use super::Spectrum;

/// Number of Taylor coefficients that are carried.
pub(super) const ORDERS: usize = 9;

/// Taylor coefficients of a function of u around the square of each singular value.
pub(super) type Jets = Vec<[f64; ORDERS]>;

/// The product of two Taylor series.
pub(super) fn times(a: &[f64; ORDERS], b: &[f64; ORDERS]) -> [f64; ORDERS] {
    std::array::from_fn(|k| (0..=k).map(|i| a[i] * b[k - i]).sum())
}

/// The points around which functions are expanded: the squares of distinct singular values.
pub(super) struct Points<'a> {
    values: &'a [(f64, usize)],
    /// u
    squares: Vec<f64>,
    /// a = n − m + 1
    excess: f64,
}

impl<'a> Points<'a> {
    pub(super) fn new(spectrum: &'a Spectrum, squares: Vec<f64>) -> Self {
        let (rows, cols) = spectrum.shape();
        let excess = (rows.max(cols) - rows.min(cols) + 1) as f64;
        Self { values: spectrum.values(), squares, excess }
    }

    /// The singular values of G, for the Taylor coefficients of p.
    pub(super) fn value(&self, p: &Jets) -> Vec<f64> {
        p.iter().zip(&self.squares).map(|(p, u)| u.sqrt() * p[0]).collect()
    }

    /// The Taylor coefficients of p₁ with s p₁(s²) = s d/ds (s p(s²)): p₁ = p + 2u p′.
    pub(super) fn euler(&self, p: &Jets) -> Jets {
        let (first, derivative) = (p, self.derivative(p));
        let second = self.by_square(&derivative);
        combine(first, 1.0, &second, 2.0)
    }

    /// The singular values of ΔG.
    pub(super) fn laplacian(&self, p: &Jets) -> Vec<f64> {
        let (single, theta) = self.parts(p);
        self.each(|i| {
            let pairs = |j: usize| 4.0 * self.divided(&theta, &[i, i, j]);
            single[i][1] + self.sum(i, pairs)
        })
    }

    /// The singular values of Δ²G.
    pub(super) fn bilaplacian(&self, p: &Jets) -> Vec<f64> {
        let (single, theta) = self.parts(p);
        let first = self.derivative(&single);
        let second = self.derivative(&first);
        let twice = combine(&self.by_square(&second), 4.0, &first, 2.0 * self.excess);
        let moved = self.by_square(&first);
        let dd = |nodes: &[usize]| self.divided(&theta, nodes);
        self.each(|i| {
            let x = self.squares[i];
            let pairs = |j: usize| {
                let y = self.squares[j];
                4.0 * self.divided(&moved, &[i, i, j])
                    + (32.0 + 16.0 * self.excess) * dd(&[i, i, i, j])
                    + 96.0 * x * dd(&[i, i, i, i, j])
                    + 32.0 * y * dd(&[i, i, j, j, j])
                    + (32.0 + 8.0 * self.excess) * dd(&[i, i, j, j])
                    + 32.0 * x * dd(&[i, i, i, j, j])
            };
            let triples = |j: usize, k: usize| {
                let y = self.squares[j];
                let spectator =
                    dd(&[i, i, k, k]) + y * (dd(&[i, i, j, j, k]) + dd(&[i, i, j, k, k]));
                let actor = |near: usize, far: usize| {
                    dd(&[i, i, near, far])
                        + dd(&[i, near, near, far])
                        + x * (2.0 * dd(&[i, i, i, near, far]) + dd(&[i, i, near, near, far]))
                };
                16.0 * (spectator + actor(j, k) + actor(k, j))
            };
            twice[i][1] + self.sum(i, pairs) + self.sum_of_pairs(i, triples)
        })
    }

    /// A = 4u w′ + 2a w and θ = u w, for w = p/2.
    fn parts(&self, p: &Jets) -> (Jets, Jets) {
        let w = combine(p, 0.5, p, 0.0);
        let single = combine(&self.by_square(&self.derivative(&w)), 4.0, &w, 2.0 * self.excess);
        let theta = self.by_square(&w);
        (single, theta)
    }

    /// 2 s_i times the derivative by u_i.
    fn each(&self, derivative: impl Fn(usize) -> f64) -> Vec<f64> {
        let scaled =
            |(i, u): (usize, &f64)| if *u > 0.0 { 2.0 * u.sqrt() * derivative(i) } else { 0.0 };
        self.squares.iter().enumerate().map(scaled).collect()
    }

    /// How many singular values are at point j, without one at point i.
    fn others(&self, i: usize, j: usize) -> f64 {
        (self.values[j].1 - usize::from(i == j)) as f64
    }

    /// The sum over all other singular values.
    fn sum(&self, i: usize, term: impl Fn(usize) -> f64) -> f64 {
        let all = (0..self.values.len()).map(|j| (j, self.others(i, j)));
        all.filter(|(_, count)| *count > 0.0).map(|(j, count)| count * term(j)).sum()
    }

    /// The sum over all pairs of other singular values.
    fn sum_of_pairs(&self, i: usize, term: impl Fn(usize, usize) -> f64) -> f64 {
        let mut sum = 0.0;
        for j in 0..self.values.len() {
            for k in j..self.values.len() {
                let (one, other) = (self.others(i, j), self.others(i, k));
                let count = if j == k { 0.5 * one * (one - 1.0) } else { one * other };
                if count > 0.0 {
                    sum += count * term(j, k);
                }
            }
        }
        sum
    }

    fn derivative(&self, f: &Jets) -> Jets {
        let next = |f: &[f64; ORDERS], k: usize| f.get(k + 1).map_or(0.0, |x| (k + 1) as f64 * x);
        f.iter().map(|f| std::array::from_fn(|k| next(f, k))).collect()
    }

    /// u f(u)
    fn by_square(&self, f: &Jets) -> Jets {
        let at =
            |f: &[f64; ORDERS], u: f64, k: usize| u * f[k] + if k > 0 { f[k - 1] } else { 0.0 };
        f.iter().zip(&self.squares).map(|(f, &u)| std::array::from_fn(|k| at(f, u, k))).collect()
    }

    /// The divided difference f[u_i, u_j, …]; at equal points it is a Taylor coefficient.
    fn divided(&self, f: &Jets, nodes: &[usize]) -> f64 {
        let mut nodes = nodes.to_vec();
        nodes.sort_unstable();
        let mut table: Vec<f64> = nodes.iter().map(|&i| f[i][0]).collect();
        for order in 1..nodes.len() {
            for at in 0..nodes.len() - order {
                let (low, high) = (nodes[at], nodes[at + order]);
                table[at] = if low == high {
                    f[low][order]
                } else {
                    (table[at + 1] - table[at]) / (self.squares[high] - self.squares[low])
                };
            }
        }
        table[0]
    }
}

/// x f + y g
fn combine(f: &Jets, x: f64, g: &Jets, y: f64) -> Jets {
    f.iter().zip(g).map(|(f, g)| std::array::from_fn(|k| x * f[k] + y * g[k])).collect()
}
