//! Runs one input and checks for panics, excessive memory, leaked records and hangs.

use crate::scratch::Scratch;
use crate::target::{MARKER, ReadOutcome, Target};
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// The result of one input.
#[derive(Debug)]
pub struct Result {
    /// The outcome, or the failure.
    pub outcome: std::result::Result<ReadOutcome, String>,
    /// The peak memory in bytes.
    pub peak: u64,
    /// The time taken.
    pub time: Duration,
}

/// Largest length of a message, which is one line on a terminal.
const MAX_MESSAGE: usize = 1 << 14;

thread_local! {
    static WATCHED: Cell<bool> = const { Cell::new(false) };
    static PANIC: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Runs one input.
pub fn run(target: &Target, scratch: &Scratch, input: &[u8]) -> Result {
    silence();
    let mut outcome = None;
    let start = Instant::now();
    WATCHED.set(true);
    let info = allocation_counter::measure(|| {
        outcome = Some(catch_unwind(AssertUnwindSafe(|| (target.run)(scratch, input))));
    });
    WATCHED.set(false);
    let time = start.elapsed();
    let peak = info.bytes_max;
    let outcome = match outcome {
        Some(Ok(seen)) => check(target, seen, input, peak),
        _ => Err(PANIC.with(|panic| format!("panicked: {}", panic.borrow()))),
    };
    Result { outcome, peak, time }
}

fn check(
    target: &Target,
    seen: ReadOutcome,
    input: &[u8],
    peak: u64,
) -> std::result::Result<ReadOutcome, String> {
    let most = target.memory + 64 * input.len() as u64;
    if peak > most {
        return Err(format!(
            "memory: peak of {peak} bytes for an input of {} bytes, at most {most} allowed",
            input.len()
        ));
    }
    if seen.message.len() > MAX_MESSAGE {
        return Err(format!(
            "message: {} bytes, at most {MAX_MESSAGE} allowed",
            seen.message.len()
        ));
    }
    if let Some(letter) = seen.message.chars().find(|letter| letter.is_control()) {
        return Err(format!("message: control character {letter:?} in {:?}", seen.message));
    }
    if target.private && MARKER.iter().any(|part| seen.message.contains(part)) {
        return Err(format!("message shows a record: {}", seen.message));
    }
    Ok(seen)
}

/// Installs a hook that records panics of monitored threads instead of printing them.
fn silence() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if WATCHED.get() {
                PANIC.with(|panic| *panic.borrow_mut() = info.to_string());
            } else {
                usual(info);
            }
        }));
    });
}

/// The input that a thread is running.
#[derive(Debug, Default)]
pub struct RunningInput {
    /// Odd while an input is running.
    turn: AtomicU64,
    input: Mutex<(&'static str, Vec<u8>)>,
}

impl RunningInput {
    /// Marks the start of an input.
    pub fn begin(&self, target: &'static str, input: &[u8]) {
        let mut held = self.input.lock().unwrap_or_else(PoisonError::into_inner);
        held.0 = target;
        held.1.clear();
        held.1.extend_from_slice(input);
        self.turn.fetch_add(1, Ordering::SeqCst);
    }

    /// Marks the end of the input.
    pub fn end(&self) {
        self.turn.fetch_add(1, Ordering::SeqCst);
    }
}

/// Interval between checks for hangs.
const TICK: Duration = Duration::from_millis(50);

/// Starts a thread that exits the process when an input runs longer than `time_limit`.
///
/// The input is saved in the folder. Checks are counted instead of elapsed time, so that a
/// suspended machine is not a hang.
pub fn exit_on_hang(running: Vec<Arc<RunningInput>>, time_limit: Duration, folder: PathBuf) {
    thread::spawn(move || {
        let most = time_limit.as_millis() / TICK.as_millis();
        let mut before: Vec<HangCounter> = vec![HangCounter::default(); running.len()];
        loop {
            thread::sleep(TICK);
            for (running_input, before) in running.iter().zip(&mut before) {
                if before.check(running_input.turn.load(Ordering::SeqCst)) > most {
                    let held = running_input.input.lock().unwrap_or_else(PoisonError::into_inner);
                    let place = crate::fuzz_loop::save_input(&folder, held.0, &held.1);
                    eprintln!("{}: hangs for more than {time_limit:?}: {place}", held.0);
                    std::process::exit(1);
                }
            }
        }
    });
}

/// Counts consecutive checks that found the same input running.
#[derive(Clone, Copy, Debug, Default)]
struct HangCounter {
    turn: u64,
    checks: u128,
}

impl HangCounter {
    /// Records a check; returns how often this input was found before.
    fn check(&mut self, turn: u64) -> u128 {
        self.checks = if turn == self.turn && turn % 2 == 1 { self.checks + 1 } else { 0 };
        self.turn = turn;
        self.checks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_input_that_keeps_running_is_counted() {
        let mut checks = HangCounter::default();
        // A pause, several short inputs, then one that keeps running.
        let seen = [0, 0, 0, 1, 3, 4, 4, 5, 7, 7, 7, 9].map(|turn| checks.check(turn));
        assert_eq!(seen, [0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 0]);
    }
}
