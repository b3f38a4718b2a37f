//! Who is there, and the thread that does the talking.
//!
//! All messages of a process go through one thread. It works through its jobs in order, so that
//! processes which begin the same jobs in the same order understand each other; it goes on while
//! others compute, which is how sums travel during the next micro-batch; and it says that it is
//! alive while all processes compute.

use crate::wire::{Alone, Lost, Wire};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long the thread sleeps when there is nothing to do.
const IDLE: Duration = Duration::from_millis(250);

type Job = Box<dyn FnOnce(&mut dyn Wire) + Send>;

/// This process among those that train together. Copies are the same process.
#[derive(Clone)]
pub struct Ranks(Arc<Inner>);

struct Inner {
    rank: usize,
    ranks: usize,
    host: String,
    jobs: Option<Mutex<Sender<Job>>>,
    thread: Option<JoinHandle<()>>,
    signs: Arc<Signs>,
}

/// What the thread should know at any moment.
#[derive(Default)]
pub(crate) struct Signs {
    /// A caller waits for the current job.
    pub(crate) awaited: AtomicBool,
    /// An exit code plus one, with which all processes shall end.
    end: AtomicU32,
    /// How the work goes on.
    pub(crate) pace: Pace,
}

/// The piece of work at hand, and the longest that a unit of work ever took: by that, a standstill
/// is told from work that takes its time.
#[derive(Default)]
pub(crate) struct Pace(Mutex<Worked>);

#[derive(Default)]
struct Worked {
    /// When it was begun, and how many units it has.
    piece: Option<(Instant, u64)>,
    longest: Option<Duration>,
}

impl Pace {
    /// The piece before this moment is done, and the next one of so many units begins, if there is
    /// one.
    fn tick(&self, now: Instant, next: Option<u64>) {
        let Ok(mut worked) = self.0.lock() else { return };
        if let Some((begun, units)) = worked.piece {
            let each = now.saturating_duration_since(begun)
                / u32::try_from(units).unwrap_or(u32::MAX).max(1);
            worked.longest = worked.longest.max(Some(each));
        }
        worked.piece = next.map(|units| (now, units.max(1)));
    }

    /// This process was asleep: the piece at hand begins now.
    #[cfg_attr(not(feature = "mpi"), allow(dead_code))]
    pub(crate) fn awake(&self, now: Instant) {
        if let Ok(mut worked) = self.0.lock() {
            worked.piece = worked.piece.map(|(_, units)| (now, units));
        }
    }

    /// For how many seconds work has stood still, if that is far longer than as much ever took.
    #[cfg_attr(not(feature = "mpi"), allow(dead_code))]
    pub(crate) fn standstill(&self, now: Instant) -> Option<u64> {
        let worked = self.0.lock().ok()?;
        let ((begun, units), longest) = worked.piece.zip(worked.longest)?;
        let still = now.saturating_duration_since(begun);
        let usual =
            longest.checked_mul(u32::try_from(units).unwrap_or(u32::MAX)).unwrap_or(Duration::MAX);
        (still > PATIENCE.max(usual.saturating_mul(20))).then_some(still.as_secs())
    }
}

/// The shortest standstill that counts.
const PATIENCE: Duration = Duration::from_secs(20);

impl Signs {
    /// The exit code with which all processes shall end, if they shall.
    #[cfg_attr(not(feature = "mpi"), allow(dead_code))]
    pub(crate) fn end(&self) -> Option<u8> {
        let code = self.end.load(Ordering::Acquire);
        u8::try_from(code.checked_sub(1)?).ok()
    }
}

impl std::fmt::Debug for Ranks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Ranks({} of {})", self.rank(), self.count())
    }
}

impl Ranks {
    /// One process.
    pub fn alone() -> Self {
        Self(Arc::new(Inner {
            rank: 0,
            ranks: 1,
            host: String::new(),
            jobs: None,
            thread: None,
            signs: Arc::default(),
        }))
    }

    /// A thread that talks over the wire that `connect` makes in it.
    pub(crate) fn new<W: Wire>(
        connect: impl FnOnce(&Arc<Signs>) -> Result<(W, String), Lost> + Send + 'static,
    ) -> Result<Self, Lost> {
        let (ready, begun) = mpsc::sync_channel(1);
        let (jobs, orders) = mpsc::channel();
        let signs = Arc::new(Signs::default());
        let own = Arc::clone(&signs);
        let run = move || match connect(&own) {
            Ok((wire, host)) => {
                let _ = ready.send(Ok((wire.rank(), wire.ranks(), host)));
                talk(wire, &orders);
            }
            Err(lost) => drop(ready.send(Err(lost))),
        };
        let thread = std::thread::Builder::new()
            .name("ranks".into())
            .spawn(run)
            .map_err(|error| Lost(error.to_string()))?;
        let (rank, ranks, host) = begun.recv().map_err(|_| gone())??;
        Ok(Self(Arc::new(Inner {
            rank,
            ranks,
            host,
            jobs: Some(Mutex::new(jobs)),
            thread: Some(thread),
            signs,
        })))
    }

    /// Which of them this is, from 0.
    pub fn rank(&self) -> usize {
        self.0.rank
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.ranks
    }

    /// Whether this is the one that writes files and speaks to the user.
    pub fn is_first(&self) -> bool {
        self.0.rank == 0
    }

    /// How a user knows this process.
    pub fn name(&self) -> String {
        let host =
            if self.0.host.is_empty() { String::new() } else { format!(" on {}", self.0.host) };
        format!("rank {} of {}{host}", self.rank(), self.count())
    }

    /// Begins a job, after those that were begun before. The other processes must begin its
    /// counterparts.
    pub(crate) fn begin<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut dyn Wire) -> Result<T, Lost> + Send + 'static,
    ) -> Pending<T> {
        let (reply, result) = mpsc::sync_channel(1);
        let job = move |wire: &mut dyn Wire| drop(reply.send(job(wire)));
        match &self.0.jobs {
            None => job(&mut Alone),
            // A caller that waits for a job that could not be started is told then.
            Some(jobs) => drop(jobs.lock().map(|jobs| jobs.send(Box::new(job)))),
        }
        Pending { result, signs: Arc::clone(&self.0.signs) }
    }

    /// Says that the work goes on, with a piece of so many units. If it takes twenty times as long
    /// as so many units ever took, and longer than a while, all processes end.
    pub fn tick(&self, units: u64) {
        self.0.signs.pace.tick(Instant::now(), Some(units));
    }

    /// Says that something else is done now, however long it may take.
    pub fn rest(&self) {
        self.0.signs.pace.tick(Instant::now(), None);
    }

    /// Ends all processes with this exit code, or this one if they cannot be told. For one process
    /// among several; alone, the caller ends by itself.
    pub fn end(&self, code: u8) {
        if self.count() == 1 {
            return;
        }
        self.0.signs.end.store(u32::from(code) + 1, Ordering::Release);
        // The launcher ends this process too, soon.
        std::thread::sleep(Duration::from_secs(10));
        std::process::exit(code.into());
    }
}

/// The loop of the thread.
fn talk(mut wire: impl Wire, orders: &Receiver<Job>) {
    loop {
        match orders.recv_timeout(IDLE) {
            Ok(job) => job(&mut wire),
            Err(RecvTimeoutError::Timeout) => wire.idle(),
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    wire.farewell();
}

impl Drop for Inner {
    fn drop(&mut self) {
        if std::thread::panicking() && self.ranks > 1 {
            self.signs.end.store(102, Ordering::Release);
        }
        drop(self.jobs.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// What a job will give.
#[must_use]
pub struct Pending<T> {
    result: Receiver<Result<T, Lost>>,
    signs: Arc<Signs>,
}

impl<T> Pending<T> {
    /// Waits for it.
    ///
    /// # Errors
    /// If a process is gone.
    pub fn wait(self) -> Result<T, Lost> {
        self.signs.awaited.store(true, Ordering::Release);
        let result = self.result.recv().map_err(|_| gone()).flatten();
        self.signs.awaited.store(false, Ordering::Release);
        result
    }
}

fn gone() -> Lost {
    Lost("the thread that talks to the other processes is gone".into())
}

/// Which of how many processes this is that a launcher started, as far as it says so.
pub fn launcher() -> Option<(usize, usize)> {
    // Open MPI, MPICH and Intel MPI, and Slurm where it stands in for their launchers.
    let of = |rank: &str, ranks: &str| number(rank).zip(number(ranks));
    of("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")
        .or_else(|| of("PMI_RANK", "PMI_SIZE"))
        .or_else(|| of("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"))
}

/// How many of the processes are on this machine, as far as the launcher says so.
pub fn neighbours() -> Option<usize> {
    number("OMPI_COMM_WORLD_LOCAL_SIZE")
        .or_else(|| number("MPI_LOCALNRANKS"))
        .filter(|&count| count > 0)
}

fn number(name: &str) -> Option<usize> {
    std::env::var(name).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_standstill_is_told_from_work_that_takes_its_time() {
        let (pace, zero) = (Pace::default(), Instant::now());
        let at = |seconds: u64| zero + Duration::from_secs(seconds);
        // No process works, or it is not known yet how long it takes.
        assert_eq!(pace.standstill(at(1000)), None);
        pace.tick(at(0), Some(1));
        assert_eq!(pace.standstill(at(1000)), None);
        pace.tick(at(1), Some(1));
        assert_eq!((pace.standstill(at(21)), pace.standstill(at(22))), (None, Some(21)));
        // Thirty-two units take thirty-two times as long.
        pace.tick(at(2), Some(32));
        assert_eq!((pace.standstill(at(642)), pace.standstill(at(643))), (None, Some(641)));
        pace.awake(at(600));
        assert_eq!(pace.standstill(at(643)), None);
        // Rest is not work.
        pace.tick(at(610), None);
        assert_eq!(pace.standstill(at(9000)), None);
        pace.tick(at(9000), Some(2));
        assert_eq!((pace.standstill(at(9040)), pace.standstill(at(9041))), (None, Some(41)));
    }
}
