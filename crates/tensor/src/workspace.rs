//! Reusable buffers, so that a training step in its steady state allocates no memory.

/// A pool of reusable buffers.
#[derive(Default)]
pub struct Workspace {
    /// Idle buffers by increasing capacity.
    idle: Vec<Vec<f32>>,
    /// An idle list of indices.
    indices: Vec<u32>,
    allocations: usize,
}

/// Idle buffers hold private values: `Debug` does not print them.
impl std::fmt::Debug for Workspace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Workspace")
            .field("idle", &self.idle.len())
            .field("allocations", &self.allocations)
            .finish()
    }
}

/// Returns the capacity of a new buffer: four sizes per power of two.
///
/// So buffers of similar lengths can be reused for each other.
fn capacity_class(len: usize) -> usize {
    len.next_multiple_of((len.max(64).next_power_of_two() / 8).max(1))
}

impl Workspace {
    /// Creates an empty workspace.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes a buffer of this length with unspecified contents; the caller overwrites all of it.
    pub fn take(&mut self, len: usize) -> Vec<f32> {
        let at = self.idle.partition_point(|buffer| buffer.capacity() < len);
        // A buffer far larger than needed stays idle.
        if self
            .idle
            .get(at)
            .is_some_and(|buffer| buffer.capacity() <= len.saturating_mul(2).max(1024))
        {
            let mut buffer = self.idle.remove(at);
            buffer.resize(len, 0.0);
            if cfg!(debug_assertions) {
                // Tests detect code that reads before it writes.
                buffer.fill(f32::NAN);
            }
            return buffer;
        }
        self.allocations += 1;
        let mut buffer = Vec::with_capacity(capacity_class(len));
        buffer.resize(len, 0.0);
        buffer
    }

    /// Takes a buffer of zeros.
    pub fn zeros(&mut self, len: usize) -> Vec<f32> {
        let mut buffer = self.take(len);
        buffer.fill(0.0);
        buffer
    }

    /// Releases a buffer for reuse.
    pub fn give(&mut self, buffer: Vec<f32>) {
        if buffer.capacity() > 0 {
            let at = self.idle.partition_point(|idle| idle.capacity() < buffer.capacity());
            self.idle.insert(at, buffer);
        }
    }

    /// Takes an empty list of indices with spare capacity, if one was released.
    pub fn take_indices(&mut self) -> Vec<u32> {
        let mut indices = std::mem::take(&mut self.indices);
        indices.clear();
        indices
    }

    /// Releases a list of indices for reuse.
    pub fn give_indices(&mut self, indices: Vec<u32>) {
        self.indices = indices;
    }

    /// Returns the number of buffers allocated so far. It is constant in the steady state.
    pub fn allocations(&self) -> usize {
        self.allocations
    }

    /// Returns the number of bytes of the idle buffers.
    pub fn idle_bytes(&self) -> usize {
        self.idle.iter().map(|buffer| size_of::<f32>() * buffer.capacity()).sum()
    }

    /// Returns all idle memory to the system.
    pub fn clear(&mut self) {
        self.idle = Vec::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn similar_lengths_share_a_buffer() {
        let mut space = Workspace::new();
        for len in [100_000, 95_000, 104_000, 99_000] {
            let buffer = space.take(len);
            assert!(buffer.capacity() >= len && buffer.capacity() <= len + len / 4);
            space.give(buffer);
        }
        assert_eq!(space.allocations(), 1);
    }

    #[test]
    fn debug_output_has_no_contents() {
        let mut space = Workspace::new();
        space.give(vec![123.5; 7]);
        assert!(!format!("{space:?}").contains("123.5"));
    }

    #[test]
    fn returned_buffers_are_reused() {
        let mut space = Workspace::new();
        let (a, b) = (space.take(5000), space.take(100_000));
        space.give(a);
        space.give(b);
        let again = space.take(90_000);
        assert_eq!((again.len(), space.allocations()), (90_000, 2));
        // The small buffer is too small, the large one is in use.
        let other = space.take(6000);
        assert_eq!((other.len(), space.allocations()), (6000, 3));
        assert!(space.zeros(4000).iter().all(|&x| x == 0.0));
        assert_eq!(space.allocations(), 3);
        space.give(other);
        assert!(space.idle_bytes() >= 4 * 6000);
        space.clear();
        assert_eq!(space.idle_bytes(), 0);
    }
}
