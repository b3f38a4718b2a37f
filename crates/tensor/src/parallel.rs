//! Division of work among threads.
//!
//! Results do not depend on it: every reduction is within one task.

/// Smallest number of elements of a task.
const GRAIN: usize = 1 << 13;

/// Returns the number of rows of a task for a `rows` × `width` matrix.
pub(crate) fn rows_per_piece(rows: usize, width: usize) -> usize {
    let fair = rows.div_ceil(4 * rayon::current_num_threads());
    fair.max(GRAIN.div_ceil(width.max(1))).max(1)
}

/// Returns the numbers of examples and rows of a packed batch.
///
/// It validates the offsets: code that writes by offsets calls it first.
pub(crate) fn packed(offsets: &[usize]) -> (usize, usize) {
    assert!(
        offsets.first() == Some(&0) && offsets.is_sorted(),
        "offsets must begin at 0 and not decrease"
    );
    (offsets.len() - 1, offsets[offsets.len() - 1])
}

/// A pointer shared between tasks, each of which accesses only its own part.
#[derive(Clone, Copy)]
pub(crate) struct Shared(*mut f32);

// SAFETY: a `Shared` by itself does nothing; every dereference is in an unsafe block that argues
// disjointness.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    pub(crate) fn new(data: &mut [f32]) -> Self {
        Self(data.as_mut_ptr())
    }

    /// Returns the elements `at .. at + len`.
    ///
    /// # Safety
    /// They are inside the slice this was made from, which is still borrowed, and no other
    /// reference to them exists.
    pub(crate) unsafe fn part<'a>(self, at: usize, len: usize) -> &'a mut [f32] {
        // SAFETY: guaranteed by the caller.
        unsafe { std::slice::from_raw_parts_mut(self.0.add(at), len) }
    }
}
