//! How work is cut for the threads. No result depends on the cut: every reduction stays inside one
//! piece.

/// Numbers a thread should have at least, to be worth waking.
const GRAIN: usize = 1 << 13;

/// Rows in a piece of a `rows` × `width` matrix.
pub(crate) fn rows_per_piece(rows: usize, width: usize) -> usize {
    let fair = rows.div_ceil(4 * rayon::current_num_threads());
    fair.max(GRAIN.div_ceil(width.max(1))).max(1)
}

/// How many examples and rows, by the offsets of a packed batch. Whoever writes by offsets asks
/// here first.
pub(crate) fn packed(offsets: &[usize]) -> (usize, usize) {
    assert!(
        offsets.first() == Some(&0) && offsets.is_sorted(),
        "offsets begin at 0 and do not fall"
    );
    (offsets.len() - 1, offsets[offsets.len() - 1])
}

/// A pointer that tasks may share. Each task touches its own part only; whoever makes one says why.
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

    /// The numbers `at .. at + len`.
    ///
    /// # Safety
    /// They lie inside the slice this was made from, which is still borrowed, and nobody else uses
    /// them meanwhile.
    pub(crate) unsafe fn part<'a>(self, at: usize, len: usize) -> &'a mut [f32] {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.0.add(at), len) }
    }
}
