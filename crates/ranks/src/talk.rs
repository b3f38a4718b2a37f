//! Who is there, and the thread that does the talking.
//!
//! All messages of a process go through one thread. It works through its jobs in order, so that processes which begin the same jobs in the same order understand each other; it goes on while others
//! compute, which is how sums travel during the next micro-batch; and it says that it is alive while everybody computes.

use crate::wire::{Lost, Nobody, Wire};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
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
    /// Somebody waits for the job at hand.
    pub(crate) awaited: AtomicBool,
    /// An exit code plus one, with which all processes shall end.
    end: AtomicU32,
    /// How the work goes on.
    pub(crate) pace: Pace,
}

/// When work last went on, and the longest it ever took to go on: by that, work that has come to a standstill is told from work that takes its time.
pub(crate) struct Pace {
    since: Instant,
    /// In milliseconds since then, plus one; 0 while nobody works.
    ticked: AtomicU64,
    longest: AtomicU64,
}

impl Default for Pace {
    fn default() -> Self {
        Self { since: Instant::now(), ticked: AtomicU64::new(0), longest: AtomicU64::new(0) }
    }
}

impl Pace {
    fn now(&self) -> u64 {
        self.since.elapsed().as_millis() as u64 + 1
    }

    /// The piece of work before this moment is done, and the next begins, if there is one.
    fn tick(&self, now: u64, next: bool) {
        let last = self.ticked.swap(if next { now } else { 0 }, Ordering::AcqRel);
        if last > 0 {
            self.longest.fetch_max(now.saturating_sub(last).max(1), Ordering::AcqRel);
        }
    }

    /// For how many seconds work has stood still, if that is far longer than it ever took.
    #[cfg_attr(not(feature = "mpi"), allow(dead_code))]
    pub(crate) fn standstill(&self) -> Option<u64> {
        self.standstill_at(self.now())
    }

    fn standstill_at(&self, now: u64) -> Option<u64> {
        let (ticked, longest) = (self.ticked.load(Ordering::Acquire), self.longest.load(Ordering::Acquire));
        let still = now.saturating_sub(ticked);
        (ticked > 0 && longest > 0 && still > PATIENCE.max(20 * longest)).then_some(still / 1000)
    }
}

/// The shortest standstill that counts, in milliseconds.
const PATIENCE: u64 = 20_000;

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
        Self(Arc::new(Inner { rank: 0, ranks: 1, host: String::new(), jobs: None, thread: None, signs: Arc::default() }))
    }

    /// A thread that talks over the wire that `connect` makes in it.
    pub(crate) fn new<W: Wire>(connect: impl FnOnce(&Arc<Signs>) -> Result<(W, String), Lost> + Send + 'static) -> Result<Self, Lost> {
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
        let thread = std::thread::Builder::new().name("ranks".into()).spawn(run).map_err(|error| Lost(error.to_string()))?;
        let (rank, ranks, host) = begun.recv().map_err(|_| gone())??;
        Ok(Self(Arc::new(Inner { rank, ranks, host, jobs: Some(Mutex::new(jobs)), thread: Some(thread), signs })))
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
        let host = if self.0.host.is_empty() { String::new() } else { format!(" on {}", self.0.host) };
        format!("rank {} of {}{host}", self.rank(), self.count())
    }

    /// Begins a job, after those that were begun before. The other processes must begin its counterparts.
    pub fn begin<T: Send + 'static>(&self, job: impl FnOnce(&mut dyn Wire) -> Result<T, Lost> + Send + 'static) -> Pending<T> {
        let (reply, result) = mpsc::sync_channel(1);
        let job = move |wire: &mut dyn Wire| drop(reply.send(job(wire)));
        match &self.0.jobs {
            None => job(&mut Nobody),
            // Whoever waits for a job that could not be begun is told then.
            Some(jobs) => drop(jobs.lock().map(|jobs| jobs.send(Box::new(job)))),
        }
        Pending { result, signs: Arc::clone(&self.0.signs) }
    }

    /// Says that the work goes on. Called for each piece of work of about the same size, until [`rest`](Self::rest): if that does not happen for a long time, all processes end.
    pub fn tick(&self) {
        self.0.signs.pace.tick(self.0.signs.pace.now(), true);
    }

    /// Says that something else is done now, however long it may take.
    pub fn rest(&self) {
        self.0.signs.pace.tick(self.0.signs.pace.now(), false);
    }

    /// Ends all processes with this exit code, or this one if they cannot be told. For one process among several; alone, the caller ends by itself.
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
    of("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE").or_else(|| of("PMI_RANK", "PMI_SIZE")).or_else(|| of("PMIX_RANK", "SLURM_NTASKS"))
}

/// How many of the processes are on this machine, as far as the launcher says so.
pub fn neighbours() -> Option<usize> {
    number("OMPI_COMM_WORLD_LOCAL_SIZE").or_else(|| number("MPI_LOCALNRANKS")).filter(|&count| count > 0)
}

fn number(name: &str) -> Option<usize> {
    std::env::var(name).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_standstill_is_told_from_work_that_takes_its_time() {
        let pace = Pace::default();
        // Nobody works, or nobody knows yet how long it takes.
        assert_eq!(pace.standstill_at(1_000_000), None);
        pace.tick(1_000, true);
        assert_eq!(pace.standstill_at(1_000_000), None);
        pace.tick(1_100, true);
        assert_eq!((pace.standstill_at(21_000), pace.standstill_at(21_101)), (None, Some(20)));
        // It may take as long as it took before, and twenty times that.
        pace.tick(11_100, true);
        assert_eq!((pace.standstill_at(211_100), pace.standstill_at(211_101)), (None, Some(200)));
        pace.tick(12_100, false);
        pace.tick(5_000_000, true);
        assert_eq!(pace.longest.load(Ordering::Acquire), 10_000, "rest is not work");
    }
}
