//! Buffers that are handed out and taken back, so that a training step in its steady state asks the
//! system for no memory.

/// A store of buffers.
#[derive(Default)]
pub struct Workspace {
    /// Idle buffers by rising capacity.
    idle: Vec<Vec<f32>>,
    /// An idle list of places.
    places: Vec<u32>,
    allocations: usize,
}

/// Idle buffers hold what their last users left: they do not print.
impl std::fmt::Debug for Workspace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Workspace")
            .field("idle", &self.idle.len())
            .field("allocations", &self.allocations)
            .finish()
    }
}

/// The size a new buffer gets: four sizes an octave, so that batches of slightly different lengths
/// share buffers.
fn class(len: usize) -> usize {
    len.next_multiple_of((len.max(64).next_power_of_two() / 8).max(1))
}

impl Workspace {
    /// An empty one.
    pub fn new() -> Self {
        Self::default()
    }

    /// A buffer of this length. Its contents are whatever an earlier user left there: the caller
    /// overwrites all of it.
    pub fn take(&mut self, len: usize) -> Vec<f32> {
        let at = self.idle.partition_point(|buffer| buffer.capacity() < len);
        // A buffer far larger than asked for stays for whoever needs it.
        if self
            .idle
            .get(at)
            .is_some_and(|buffer| buffer.capacity() <= len.saturating_mul(2).max(1024))
        {
            let mut buffer = self.idle.remove(at);
            buffer.resize(len, 0.0);
            if cfg!(debug_assertions) {
                // Whoever reads before writing is found out by the tests.
                buffer.fill(f32::NAN);
            }
            return buffer;
        }
        self.allocations += 1;
        let mut buffer = Vec::with_capacity(class(len));
        buffer.resize(len, 0.0);
        buffer
    }

    /// A buffer of zeros.
    pub fn zeros(&mut self, len: usize) -> Vec<f32> {
        let mut buffer = self.take(len);
        buffer.fill(0.0);
        buffer
    }

    /// Takes a buffer back.
    pub fn give(&mut self, buffer: Vec<f32>) {
        if buffer.capacity() > 0 {
            let at = self.idle.partition_point(|idle| idle.capacity() < buffer.capacity());
            self.idle.insert(at, buffer);
        }
    }

    /// An empty list of places, with whatever room an earlier one had.
    pub fn take_indices(&mut self) -> Vec<u32> {
        let mut places = std::mem::take(&mut self.places);
        places.clear();
        places
    }

    /// Takes a list back.
    pub fn give_indices(&mut self, places: Vec<u32>) {
        self.places = places;
    }

    /// How many buffers had to be made so far. It stands still in the steady state.
    pub fn allocations(&self) -> usize {
        self.allocations
    }

    /// How many bytes the idle buffers hold.
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
    fn contents_do_not_print() {
        let mut space = Workspace::new();
        space.give(vec![123.5; 7]);
        assert!(!format!("{space:?}").contains("123.5"));
    }

    #[test]
    fn a_returned_buffer_is_used_again() {
        let mut space = Workspace::new();
        let (a, b) = (space.take(5000), space.take(100_000));
        space.give(a);
        space.give(b);
        let again = space.take(90_000);
        assert_eq!((again.len(), space.allocations()), (90_000, 2));
        // The small one is too small, the large one is out.
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
