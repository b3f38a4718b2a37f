//! Detection of a process that is alive but makes no progress.

use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Distinguishes a stalled process from one whose work takes long.
///
/// It compares the time of the current piece of work with the longest time per unit so far.
#[derive(Default)]
pub(crate) struct StallDetector(Mutex<Progress>);

#[derive(Default)]
struct Progress {
    /// When the current piece was started, and its units.
    piece: Option<(Instant, u64)>,
    /// The longest time for one unit.
    longest: Option<Duration>,
}

/// The shortest time without progress that counts as a stall.
const MIN_STALL: Duration = Duration::from_secs(20);

/// A piece of work that takes this many times longer than expected is stalled.
const FACTOR: u32 = 20;

impl StallDetector {
    /// Ends the current piece of work and starts the next one, if there is one.
    pub(crate) fn start_work(&self, now: Instant, units: Option<u64>) {
        let Ok(mut progress) = self.0.lock() else { return };
        if let Some((started, units)) = progress.piece {
            let each = now.saturating_duration_since(started)
                / u32::try_from(units).unwrap_or(u32::MAX).max(1);
            progress.longest = progress.longest.max(Some(each));
        }
        progress.piece = units.map(|units| (now, units.max(1)));
    }

    /// Restarts the clock of the current piece, after this process was suspended.
    #[cfg_attr(not(feature = "mpi"), allow(dead_code))]
    pub(crate) fn resumed(&self, now: Instant) {
        if let Ok(mut progress) = self.0.lock() {
            progress.piece = progress.piece.map(|(_, units)| (now, units));
        }
    }

    /// Returns the seconds since the current piece was started, if it is stalled.
    #[cfg_attr(not(feature = "mpi"), allow(dead_code))]
    pub(crate) fn stalled(&self, now: Instant) -> Option<u64> {
        let progress = self.0.lock().ok()?;
        let ((started, units), longest) = progress.piece.zip(progress.longest)?;
        let elapsed = now.saturating_duration_since(started);
        let usual =
            longest.checked_mul(u32::try_from(units).unwrap_or(u32::MAX)).unwrap_or(Duration::MAX);
        (elapsed > MIN_STALL.max(usual.saturating_mul(FACTOR))).then_some(elapsed.as_secs())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stall_is_told_from_long_work() {
        let (detector, zero) = (StallDetector::default(), Instant::now());
        let at = |seconds: u64| zero + Duration::from_secs(seconds);
        // No work, or the time of a unit is not yet known.
        assert_eq!(detector.stalled(at(1000)), None);
        detector.start_work(at(0), Some(1));
        assert_eq!(detector.stalled(at(1000)), None);
        detector.start_work(at(1), Some(1));
        assert_eq!((detector.stalled(at(21)), detector.stalled(at(22))), (None, Some(21)));
        // Thirty-two units take thirty-two times as long.
        detector.start_work(at(2), Some(32));
        assert_eq!((detector.stalled(at(642)), detector.stalled(at(643))), (None, Some(641)));
        detector.resumed(at(600));
        assert_eq!(detector.stalled(at(643)), None);
        // Waiting for other ranks is not work.
        detector.start_work(at(610), None);
        assert_eq!(detector.stalled(at(9000)), None);
        detector.start_work(at(9000), Some(2));
        assert_eq!((detector.stalled(at(9040)), detector.stalled(at(9041))), (None, Some(41)));
    }
}
