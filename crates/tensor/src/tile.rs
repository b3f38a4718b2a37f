//! The inner loop of matrix products: a tile of the result, in registers.
//!
//! # Claim
//! Each element of a tile is `fma(a[k-1], b[k-1], … fma(a[0], b[0], 0))`: one chain of fused
//! multiplications and additions in the order of k. It depends only on its row of A and its column
//! of B, and has the same bits on every instruction set.
//!
//! # Why
//! An element has a lane of its own; lanes are never added to each other. Other rows, other columns
//! and padding are in other lanes. A fused multiplication and addition is rounded once, by IEEE
//! 754, on every processor.
//!
//! # Checked by
//! `matmul::tests::an_element_is_a_sum_over_blocks_of_chains`, on every instruction set that the
//! processor has, and `outer::tests::every_instruction_set_gives_the_same_steps`

// Loops are spelled out by index: an adaptor of iterators may be compiled apart, without vectors.
#![allow(clippy::needless_range_loop)]

use pulp::Simd;

/// Number of vectors in a row of a tile.
pub(crate) const VECTORS: usize = 2;

/// Largest number of columns of a tile on any instruction set.
pub(crate) const MAX_COLUMNS: usize = 32;

/// A kernel that is compiled for each instruction set.
pub(crate) trait Kernel {
    /// Runs the kernel.
    ///
    /// `ROWS` is the height of a tile that suits the number of registers. `to_int` rounds values
    /// below 2³¹ to the nearest integer, ties to even.
    ///
    /// Implementations are `#[inline(always)]`: otherwise they are compiled once, without vectors.
    fn run<S: Simd, const ROWS: usize>(
        self,
        simd: S,
        to_int: impl Fn(S, S::f32s) -> S::i32s + Copy,
    );
}

/// The instruction set. Results do not depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(dead_code)] // Each processor has some of them.
pub(crate) enum Instructions {
    Avx512,
    Avx2,
    Neon,
    Portable,
}

impl Instructions {
    /// Returns the best instruction set of the processor.
    #[inline]
    pub(crate) fn best() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            if pulp::x86::V4::try_new().is_some() {
                return Self::Avx512;
            }
            if pulp::x86::V3::try_new().is_some() {
                return Self::Avx2;
            }
        }
        #[cfg(target_arch = "aarch64")]
        if pulp::aarch64::Neon::try_new().is_some() {
            return Self::Neon;
        }
        Self::Portable
    }

    /// Returns whether the processor supports it.
    #[cfg(test)]
    pub(crate) fn available(self) -> bool {
        let best = Self::best();
        self == best || self == Self::Portable || (best == Self::Avx512 && self == Self::Avx2)
    }
}

/// Runs a kernel, compiled for these instructions.
pub(crate) fn dispatch(instructions: Instructions, kernel: impl Kernel) {
    match instructions {
        #[cfg(target_arch = "x86_64")]
        Instructions::Avx512 => {
            if let Some(simd) = pulp::x86::V4::try_new() {
                return simd.vectorize(
                    #[inline(always)]
                    || {
                        kernel.run::<_, 8>(
                            simd,
                            #[inline(always)]
                            |simd, x| pulp::cast(simd.avx512f._mm512_cvtps_epi32(pulp::cast(x))),
                        );
                    },
                );
            }
        }
        #[cfg(target_arch = "x86_64")]
        Instructions::Avx2 => {
            if let Some(simd) = pulp::x86::V3::try_new() {
                return simd.vectorize(
                    #[inline(always)]
                    || {
                        kernel.run::<_, 6>(
                            simd,
                            #[inline(always)]
                            |simd, x| pulp::cast(simd.avx._mm256_cvtps_epi32(pulp::cast(x))),
                        );
                    },
                );
            }
        }
        #[cfg(target_arch = "aarch64")]
        Instructions::Neon => {
            if let Some(simd) = pulp::aarch64::Neon::try_new() {
                return simd.vectorize(
                    #[inline(always)]
                    || kernel.run::<_, 8>(simd, lane_by_lane),
                );
            }
        }
        _ => {}
    }
    kernel.run::<_, 4>(pulp::Scalar256b, lane_by_lane);
}

#[inline(always)]
fn lane_by_lane<S: Simd>(_: S, x: S::f32s) -> S::i32s {
    let mut out: S::i32s = pulp::bytemuck::Zeroable::zeroed();
    let from: &[f32] = pulp::bytemuck::cast_slice(std::slice::from_ref(&x));
    let to: &mut [i32] = pulp::bytemuck::cast_slice_mut(std::slice::from_mut(&mut out));
    for (to, from) in to.iter_mut().zip(from) {
        *to = from.round_ties_even() as i32;
    }
    out
}

/// Strides of a matrix: element (i, p) is at `i · row + p · col`.
#[derive(Clone, Copy)]
pub(crate) struct Strides {
    pub(crate) row: usize,
    pub(crate) col: usize,
}

/// Computes `ROWS` × `WIDE` vectors of A·B, summed over `k`.
///
/// This is the only code that multiplies and adds.
///
/// Row i of the tile is row min(i, rows − 1) of A: rows beyond are computed twice instead of read
/// from beyond the end.
///
/// # Safety
/// `a` points to elements (i, p), i < rows, p < k, at these strides; `b` to `k` rows of `WIDE`
/// vectors, `stride` elements apart.
#[inline(always)]
pub(crate) unsafe fn product<S: Simd, const ROWS: usize, const WIDE: usize>(
    simd: S,
    k: usize,
    a: *const f32,
    at: Strides,
    rows: usize,
    b: *const f32,
    stride: usize,
) -> [[S::f32s; WIDE]; ROWS] {
    let mut sums = [[simd.splat_f32s(0.0); WIDE]; ROWS];
    let mut left = [a; ROWS];
    for (i, left) in left.iter_mut().enumerate() {
        *left = a.wrapping_add(i.min(rows - 1) * at.row);
    }
    for p in 0..k {
        let mut right = [simd.splat_f32s(0.0); WIDE];
        for (v, right) in right.iter_mut().enumerate() {
            // SAFETY: row p of B, vector v of it: the caller's promise.
            *right =
                unsafe { b.add(p * stride + v * S::F32_LANES).cast::<S::f32s>().read_unaligned() };
        }
        for i in 0..ROWS {
            // SAFETY: element (min(i, rows − 1), p) of A: the caller's promise.
            let factor = simd.splat_f32s(unsafe { *left[i].add(p * at.col) });
            for v in 0..WIDE {
                sums[i][v] = simd.mul_add_e_f32s(factor, right[v], sums[i][v]);
            }
        }
    }
    sums
}

/// Copies `k` rows and `columns` columns of B, at these strides, to rows of `width` elements,
/// padded with zeros.
///
/// # Safety
/// `b` points to elements (p, j), p < k, j < columns, at these strides.
pub(crate) unsafe fn pack(
    b: *const f32,
    at: Strides,
    k: usize,
    columns: usize,
    width: usize,
    to: &mut [f32],
) {
    let to = &mut to[..k * width];
    if at.col == 1 && columns == width {
        // SAFETY: guaranteed by the caller.
        let copied = unsafe {
            match width {
                32 => copy_rows::<32>(b, at.row, to),
                16 => copy_rows::<16>(b, at.row, to),
                8 => copy_rows::<8>(b, at.row, to),
                6 => copy_rows::<6>(b, at.row, to),
                4 => copy_rows::<4>(b, at.row, to),
                _ => false,
            }
        };
        if copied {
            return;
        }
    }
    if at.col == 1 {
        for (p, to) in to.chunks_exact_mut(width).enumerate() {
            // SAFETY: `columns` elements of row p, which lie end to end.
            let from = unsafe { std::slice::from_raw_parts(b.add(p * at.row), columns) };
            to[..columns].copy_from_slice(from);
            to[columns..].fill(0.0);
        }
        return;
    }
    #[cfg(target_arch = "x86_64")]
    if at.row == 1
        && let Some(simd) = pulp::x86::V3::try_new()
    {
        // SAFETY: guaranteed by the caller.
        return unsafe { pack_transposed(simd, b, at.col, k, columns, width, to) };
    }
    for (p, to) in to.chunks_exact_mut(width).enumerate() {
        for (j, to) in to.iter_mut().enumerate() {
            // SAFETY: element (p, j), if there is one.
            *to = if j < columns { unsafe { *b.add(p * at.row + j * at.col) } } else { 0.0 };
        }
    }
}

/// Copies rows of a length known at compile time, which avoids a call for each.
///
/// # Safety
/// All rows that fit into `to` can be read, `stride` apart.
#[inline(always)]
unsafe fn copy_rows<const WIDTH: usize>(b: *const f32, stride: usize, to: &mut [f32]) -> bool {
    for (p, to) in to.as_chunks_mut::<WIDTH>().0.iter_mut().enumerate() {
        // SAFETY: guaranteed by the caller.
        *to = unsafe { b.add(p * stride).cast::<[f32; WIDTH]>().read_unaligned() };
    }
    true
}

/// Does the same as [`pack`] for a matrix of contiguous columns that are `stride` apart.
///
/// # Safety
/// As [`pack`].
#[cfg(target_arch = "x86_64")]
unsafe fn pack_transposed(
    simd: pulp::x86::V3,
    b: *const f32,
    stride: usize,
    k: usize,
    columns: usize,
    width: usize,
    to: &mut [f32],
) {
    let to: &mut [f32] = to;
    simd.vectorize(
        #[inline(always)]
        move || {
            let whole = (k / 8 * 8, columns / 8 * 8);
            for j in (0..whole.1).step_by(8) {
                let mut from = [b; 8];
                for (i, from) in from.iter_mut().enumerate() {
                    *from = b.wrapping_add((j + i) * stride);
                }
                let mut to = to[j..].as_mut_ptr();
                for p in (0..whole.0).step_by(4) {
                    // SAFETY: four rows of eight columns are inside B and, as width ≥ columns,
                    // inside the copy.
                    unsafe { transpose(simd, from, p, to, width) };
                    to = to.wrapping_add(4 * width);
                }
            }
            // The remaining elements.
            for p in 0..k {
                for j in if p < whole.0 { whole.1 } else { 0 }..width {
                    to[p * width + j] = if j < columns {
                        // SAFETY: element (p, j) of the source.
                        unsafe { *b.add(j * stride + p) }
                    } else {
                        0.0
                    };
                }
            }
        },
    );
}

/// Transposes four elements, from `p` on, of eight columns into four rows of `to`, `width` apart.
///
/// # Safety
/// They can be read and written there.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn transpose(
    simd: pulp::x86::V3,
    from: [*const f32; 8],
    p: usize,
    to: *mut f32,
    width: usize,
) {
    let avx = simd.avx;
    // Four elements of column i next to four of column i + 4: loading does half of the
    // transposition.
    let halves = |i: usize| {
        // SAFETY: guaranteed by the caller.
        let (low, high) = unsafe {
            (
                from[i].add(p).cast::<[f32; 4]>().read_unaligned(),
                from[i + 4].add(p).cast::<[f32; 4]>().read_unaligned(),
            )
        };
        avx._mm256_insertf128_ps::<1>(avx._mm256_castps128_ps256(pulp::cast(low)), pulp::cast(high))
    };
    let v = [halves(0), halves(1), halves(2), halves(3)];
    let (a, b) = (avx._mm256_unpacklo_ps(v[0], v[1]), avx._mm256_unpackhi_ps(v[0], v[1]));
    let (c, d) = (avx._mm256_unpacklo_ps(v[2], v[3]), avx._mm256_unpackhi_ps(v[2], v[3]));
    let rows = [
        avx._mm256_shuffle_ps::<0x44>(a, c),
        avx._mm256_shuffle_ps::<0xEE>(a, c),
        avx._mm256_shuffle_ps::<0x44>(b, d),
        avx._mm256_shuffle_ps::<0xEE>(b, d),
    ];
    for (i, row) in rows.into_iter().enumerate() {
        let row: [f32; 8] = pulp::cast(row);
        // SAFETY: guaranteed by the caller.
        unsafe { to.add(i * width).cast::<[f32; 8]>().write_unaligned(row) };
    }
}
