//! This process among the others, and its communication thread.
//!
//! All messages of a process go through one thread. It runs jobs in the order in which they were
//! started, so all processes must start the same jobs in the same order. While other threads
//! compute, it sends sums and heartbeats.

use crate::Error;
use crate::stall::StallDetector;
use crate::transport::{OneRank, Transport};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long the thread waits for the next job before it calls [`Transport::idle`].
const IDLE: Duration = Duration::from_millis(250);

type Job = Box<dyn FnOnce(&mut dyn Transport) + Send>;

/// This process and the others that train the same model. Clones are the same process.
#[derive(Clone)]
pub struct Ranks(Arc<Inner>);

struct Inner {
    rank: usize,
    ranks: usize,
    host: String,
    jobs: Option<Mutex<Sender<Job>>>,
    thread: Option<JoinHandle<()>>,
    status: Arc<Status>,
}

/// State through which other threads inform the communication thread.
#[derive(Default)]
pub(crate) struct Status {
    /// Whether a caller waits for the current job.
    pub(crate) awaited: AtomicBool,
    /// The exit code plus one if all processes are to be aborted, else 0.
    abort: AtomicU32,
    pub(crate) stall: StallDetector,
}

impl Status {
    /// Returns the exit code with which all processes are to be aborted, if any.
    #[cfg_attr(not(feature = "mpi"), allow(dead_code))]
    pub(crate) fn abort_code(&self) -> Option<u8> {
        let code = self.abort.load(Ordering::Acquire);
        u8::try_from(code.checked_sub(1)?).ok()
    }
}

impl std::fmt::Debug for Ranks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Ranks({} of {})", self.rank(), self.count())
    }
}

impl Ranks {
    /// Creates the rank of a single process, without a communication thread.
    pub fn alone() -> Self {
        Self(Arc::new(Inner {
            rank: 0,
            ranks: 1,
            host: String::new(),
            jobs: None,
            thread: None,
            status: Arc::default(),
        }))
    }

    /// Starts the communication thread, in which `connect` creates the transport.
    pub(crate) fn new<T: Transport>(
        connect: impl FnOnce(&Arc<Status>) -> Result<(T, String), Error> + Send + 'static,
    ) -> Result<Self, Error> {
        let (ready, connected) = mpsc::sync_channel(1);
        let (jobs, queue) = mpsc::channel();
        let status = Arc::new(Status::default());
        let own = Arc::clone(&status);
        let run = move || match connect(&own) {
            Ok((transport, host)) => {
                let _ = ready.send(Ok((transport.rank(), transport.ranks(), host)));
                run_jobs(transport, &queue);
            }
            Err(error) => drop(ready.send(Err(error))),
        };
        let thread = std::thread::Builder::new()
            .name("communication".into())
            .spawn(run)
            .map_err(Error::Thread)?;
        let (rank, ranks, host) = connected.recv().map_err(|_| Error::Stopped)??;
        Ok(Self(Arc::new(Inner {
            rank,
            ranks,
            host,
            jobs: Some(Mutex::new(jobs)),
            thread: Some(thread),
            status,
        })))
    }

    /// Returns the rank of this process, from 0.
    pub fn rank(&self) -> usize {
        self.0.rank
    }

    /// Returns the number of processes.
    pub fn count(&self) -> usize {
        self.0.ranks
    }

    /// Whether this is rank 0, which writes files and prints.
    pub fn is_first(&self) -> bool {
        self.0.rank == 0
    }

    /// Returns a name for messages, such as `rank 1 of 4 on node7`.
    pub fn name(&self) -> String {
        let host =
            if self.0.host.is_empty() { String::new() } else { format!(" on {}", self.0.host) };
        format!("rank {} of {}{host}", self.rank(), self.count())
    }

    /// Starts a job, which runs after all jobs before it. All other processes must start the same.
    pub(crate) fn start<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut dyn Transport) -> Result<T, Error> + Send + 'static,
    ) -> Pending<T> {
        let (reply, result) = mpsc::sync_channel(1);
        let job = move |transport: &mut dyn Transport| drop(reply.send(job(transport)));
        match &self.0.jobs {
            None => job(&mut OneRank),
            // If the job cannot be started, `Pending::wait` returns an error.
            Some(jobs) => drop(jobs.lock().map(|jobs| jobs.send(Box::new(job)))),
        }
        Pending { result, status: Arc::clone(&self.0.status) }
    }

    /// Reports that a piece of work of so many units starts.
    ///
    /// If it takes twenty times as long as expected, and at least 20 seconds, all processes are
    /// aborted.
    pub fn start_work(&self, units: u64) {
        self.0.status.stall.start_work(Instant::now(), Some(units));
    }

    /// Reports that the current piece of work is done; what follows may take any time.
    pub fn end_work(&self) {
        self.0.status.stall.start_work(Instant::now(), None);
    }

    /// Aborts all processes with this exit code. Does nothing if there is only one process.
    pub fn abort(&self, code: u8) {
        if self.count() == 1 {
            return;
        }
        self.0.status.abort.store(u32::from(code) + 1, Ordering::Release);
        // The launcher ends this process too. If it does not, this process exits alone.
        std::thread::sleep(Duration::from_secs(10));
        std::process::exit(code.into());
    }
}

/// Runs jobs until the last clone of [`Ranks`] is dropped.
fn run_jobs(mut transport: impl Transport, queue: &Receiver<Job>) {
    loop {
        match queue.recv_timeout(IDLE) {
            Ok(job) => job(&mut transport),
            Err(RecvTimeoutError::Timeout) => transport.idle(),
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    transport.close();
}

impl Drop for Inner {
    fn drop(&mut self) {
        if std::thread::panicking() && self.ranks > 1 {
            // Exit code 101, that of a panic, plus one.
            self.status.abort.store(102, Ordering::Release);
        }
        drop(self.jobs.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The result of a job that may still be running.
#[must_use]
pub struct Pending<T> {
    result: Receiver<Result<T, Error>>,
    status: Arc<Status>,
}

impl<T> Pending<T> {
    /// Waits for the result.
    ///
    /// # Errors
    /// If a process is lost.
    pub fn wait(self) -> Result<T, Error> {
        self.status.awaited.store(true, Ordering::Release);
        let result = self.result.recv().map_err(|_| Error::Stopped).flatten();
        self.status.awaited.store(false, Ordering::Release);
        result
    }
}

/// Returns the rank and the number of ranks that an MPI launcher has set in the environment.
pub fn launcher_rank() -> Option<(usize, usize)> {
    // Open MPI; MPICH and Intel MPI; Slurm as a launcher.
    let read = |rank: &str, ranks: &str| number(rank).zip(number(ranks));
    read("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")
        .or_else(|| read("PMI_RANK", "PMI_SIZE"))
        .or_else(|| read("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"))
}

/// Returns the number of ranks on this machine, if the launcher has set it.
pub fn local_ranks() -> Option<usize> {
    number("OMPI_COMM_WORLD_LOCAL_SIZE")
        .or_else(|| number("MPI_LOCALNRANKS"))
        .filter(|&count| count > 0)
}

/// Returns the number in an environment variable, if there is one.
fn number(name: &str) -> Option<usize> {
    std::env::var(name).ok()?.parse().ok()
}
