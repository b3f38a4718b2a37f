//! How fast a run trains, from steps that were seen at different times.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// The number of observations from which the pace follows.
const WINDOW: usize = 30;

/// The steps of a running process, each with the time at which it was first seen.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    seen: VecDeque<(Instant, u64)>,
}

impl Pace {
    /// Adds an observation of a running process.
    pub(crate) fn observe(&mut self, now: Instant, step: u64) {
        match self.seen.back() {
            Some((_, last)) if *last == step => return,
            // The run was resumed from an earlier step.
            Some((_, last)) if *last > step => self.seen.clear(),
            _ => {}
        }
        if self.seen.len() == WINDOW {
            self.seen.pop_front();
        }
        self.seen.push_back((now, step));
    }

    /// Forgets everything: no process works on the run.
    pub(crate) fn reset(&mut self) {
        self.seen.clear();
    }

    /// The time that the remaining steps take at this pace; `None` if it is not known yet.
    ///
    /// The first observation is not the time at which its step was made, so that it takes three.
    pub(crate) fn time_left(&self, steps: u64) -> Option<Duration> {
        let ((start, first), (end, last)) = (*self.seen.get(1)?, *self.seen.back()?);
        let made = last.checked_sub(first).filter(|made| *made > 0)?;
        let per_step = end.duration_since(start).as_secs_f64() / made as f64;
        Duration::try_from_secs_f64(per_step * steps.saturating_sub(last) as f64).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pace_follows_from_the_window() {
        let (start, mut pace) = (Instant::now(), Pace::default());
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        pace.observe(at(0), 3);
        pace.observe(at(1), 4);
        assert_eq!(pace.time_left(10), None);
        pace.observe(at(3), 5);
        pace.observe(at(4), 5);
        assert_eq!(pace.time_left(10), Some(Duration::from_secs(10)));
        assert_eq!(pace.time_left(5), Some(Duration::ZERO));
        // Resumed from step 2.
        pace.observe(at(9), 2);
        assert_eq!(pace.time_left(10), None);
        for second in 10..100 {
            pace.observe(at(second), second);
        }
        assert_eq!(pace.time_left(109), Some(Duration::from_secs(10)));
        pace.reset();
        assert_eq!(pace.time_left(109), None);
    }
}
