//! One input: whether it panics, how much memory it takes, whether what is said shows a record; and
//! a second thread that sees to it that it ends.

use crate::scratch::Scratch;
use crate::target::{MARKER, Seen, Target};
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// How an input went.
#[derive(Debug)]
pub struct Result {
    /// What came of it, or what is wrong.
    pub seen: std::result::Result<Seen, String>,
    /// The most bytes that were held at a time.
    pub peak: u64,
    /// How long it took.
    pub time: Duration,
}

/// No message is longer: it is one line for people.
const LONGEST_MESSAGE: usize = 1 << 14;

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
    let seen = match outcome {
        Some(Ok(seen)) => judged(target, seen, input, peak),
        _ => Err(PANIC.with(|panic| format!("panicked: {}", panic.borrow()))),
    };
    Result { seen, peak, time }
}

fn judged(
    target: &Target,
    seen: Seen,
    input: &[u8],
    peak: u64,
) -> std::result::Result<Seen, String> {
    let most = target.memory + 64 * input.len() as u64;
    if peak > most {
        return Err(format!(
            "memory: {peak} bytes at a time for an input of {}, at most {most} expected",
            input.len()
        ));
    }
    if seen.said.len() > LONGEST_MESSAGE {
        return Err(format!(
            "message: {} bytes, at most {LONGEST_MESSAGE} expected",
            seen.said.len()
        ));
    }
    if let Some(letter) = seen.said.chars().find(|letter| letter.is_control()) {
        return Err(format!("message: the control character {letter:?} in {:?}", seen.said));
    }
    if target.private && MARKER.iter().any(|part| seen.said.contains(part)) {
        return Err(format!("shows a record: {}", seen.said));
    }
    Ok(seen)
}

/// Panics of watched threads are noted and not printed.
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

/// What a thread is at.
#[derive(Debug, Default)]
pub struct Slot {
    /// Odd while an input is running.
    turn: AtomicU64,
    input: Mutex<(&'static str, Vec<u8>)>,
}

impl Slot {
    /// An input begins.
    pub fn begin(&self, target: &'static str, input: &[u8]) {
        let mut held = self.input.lock().unwrap_or_else(PoisonError::into_inner);
        held.0 = target;
        held.1.clear();
        held.1.extend_from_slice(input);
        self.turn.fetch_add(1, Ordering::SeqCst);
    }

    /// It is over.
    pub fn end(&self) {
        self.turn.fetch_add(1, Ordering::SeqCst);
    }
}

/// How often it is looked.
const TICK: Duration = Duration::from_millis(50);

/// Looks at the threads, and ends the process when one of them has been at one input for longer
/// than `patience`; the input is then in the folder.
///
/// Looks are counted rather than time taken: a machine that stands still for a while is not a hang.
pub fn guard(slots: Vec<Arc<Slot>>, patience: Duration, folder: PathBuf) {
    thread::spawn(move || {
        let most = patience.as_millis() / TICK.as_millis();
        let mut before: Vec<Looks> = vec![Looks::default(); slots.len()];
        loop {
            thread::sleep(TICK);
            for (slot, before) in slots.iter().zip(&mut before) {
                if before.look(slot.turn.load(Ordering::SeqCst)) > most {
                    let held = slot.input.lock().unwrap_or_else(PoisonError::into_inner);
                    let place = crate::hunt::keep(&folder, held.0, &held.1);
                    eprintln!("{}: hangs for more than {patience:?}: {place}", held.0);
                    std::process::exit(1);
                }
            }
        }
    });
}

/// How often one input was seen at work.
#[derive(Clone, Copy, Debug, Default)]
struct Looks {
    turn: u64,
    looks: u128,
}

impl Looks {
    /// One more look; how often it was this input, without the first time.
    fn look(&mut self, turn: u64) -> u128 {
        self.looks = if turn == self.turn && turn % 2 == 1 { self.looks + 1 } else { 0 };
        self.turn = turn;
        self.looks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_input_that_goes_on_is_counted() {
        let mut looks = Looks::default();
        // Between two inputs for long, then several short ones, then one that stays.
        let seen = [0, 0, 0, 1, 3, 4, 4, 5, 7, 7, 7, 9].map(|turn| looks.look(turn));
        assert_eq!(seen, [0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 0]);
    }
}
