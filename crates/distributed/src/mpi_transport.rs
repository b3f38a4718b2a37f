//! Processes started by an MPI launcher.
//!
//! Only the communication thread calls MPI. It polls non-blocking operations. Meanwhile it sends
//! heartbeats, checks those of other ranks, and aborts all ranks if one is silent. If a process
//! dies, the launcher ends the others; a process that hangs is detected here.

use crate::ranks::Status;
use crate::transport::{Buffer, Message, Transport};
use crate::{Error, Ranks, launcher_rank};
use mpi::Threading;
use mpi::environment::Universe;
use mpi::topology::SimpleCommunicator;
use mpi::traits::*;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Tags of messages.
const DATA: i32 = 1;
const HEARTBEAT: i32 = 2;

/// Time between heartbeats, and the longest time without one.
const INTERVAL: Duration = Duration::from_secs(1);
const SILENCE: Duration = Duration::from_secs(10);

/// How long messages are polled without a pause while a caller waits, and the pause after that.
const BUSY_POLLING: Duration = Duration::from_millis(20);
const PAUSE: Duration = Duration::from_micros(100);

/// After this time without a message, pauses are ten times as long.
const LONG: Duration = Duration::from_secs(1);

/// Exit code if another process does not answer: a fault, not bad input.
const LOST_RANK: i32 = 5;

struct MpiTransport {
    // Dropped last: this finalises MPI.
    world: SimpleCommunicator,
    rank: usize,
    ranks: usize,
    status: Arc<Status>,
    /// When this process sent its last heartbeat.
    sent: Instant,
    /// When each rank was last heard of.
    heard: Vec<Instant>,
    _universe: Universe,
}

/// Returns this process among those that a launcher started; `None` if there was no launcher.
///
/// # Errors
/// If MPI cannot be initialised.
pub fn connect_mpi() -> Result<Option<Ranks>, Error> {
    if launcher_rank().is_none() {
        return Ok(None);
    }
    Ranks::new(connect).map(Some)
}

fn connect(status: &Arc<Status>) -> Result<(MpiTransport, String), Error> {
    let (universe, _) =
        mpi::initialize_with_threading(Threading::Funneled).ok_or(Error::Initialised)?;
    let world = universe.world();
    let (rank, ranks) = (world.rank() as usize, world.size() as usize);
    let host = mpi::environment::processor_name().unwrap_or_default();
    let now = Instant::now();
    Ok((
        MpiTransport {
            world,
            rank,
            ranks,
            status: Arc::clone(status),
            sent: now,
            heard: vec![now; ranks],
            _universe: universe,
        },
        host,
    ))
}

impl MpiTransport {
    /// Sends and checks heartbeats, and aborts all ranks if asked to. Rank 0 exchanges heartbeats
    /// with all others.
    fn heartbeat(&mut self) {
        if let Some(code) = self.status.abort_code() {
            self.world.abort(code.into());
        }
        if self.sent.elapsed() < INTERVAL || self.ranks == 1 {
            return;
        }
        // A late heartbeat means that this process was suspended. It has received nothing
        // meanwhile.
        let suspended = self.sent.elapsed() > SILENCE / 2;
        self.sent = Instant::now();
        if suspended {
            self.heard.fill(self.sent);
            self.status.stall.resumed(self.sent);
        }
        if let Some(seconds) = self.status.stall.stalled(self.sent) {
            self.abort_all(&format!(
                "rank {} has made no progress for {seconds} seconds",
                self.rank
            ));
        }
        let peers = if self.rank == 0 { 1..self.ranks } else { 0..1 };
        peers.clone().for_each(|other| {
            self.world.process_at_rank(other as i32).send_with_tag(&[0u8][..], HEARTBEAT)
        });
        while let Some(status) = self.world.any_process().immediate_probe_with_tag(HEARTBEAT) {
            let mut nothing = [0u8];
            self.world
                .process_at_rank(status.source_rank())
                .receive_into_with_tag(&mut nothing[..], HEARTBEAT);
            self.heard[status.source_rank() as usize] = Instant::now();
        }
        if let Some(silent) = peers.into_iter().find(|&other| self.heard[other].elapsed() > SILENCE)
        {
            self.abort_all(&format!(
                "rank {silent} has sent nothing for {} seconds",
                SILENCE.as_secs()
            ));
        }
    }

    fn abort_all(&self, reason: &str) {
        eprintln!(
            "muffle: {reason}; all processes are aborted. Charges are saved: continue with \
             muffle resume"
        );
        self.world.abort(LOST_RANK);
    }
}

impl Transport for MpiTransport {
    fn rank(&self) -> usize {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.ranks
    }

    fn exchange(
        &mut self,
        sends: &[Message<'_>],
        receives: &mut [Buffer<'_>],
        meanwhile: &mut dyn FnMut(),
    ) -> Result<(), Error> {
        // Also called here, in case all messages have arrived before they are waited for.
        self.heartbeat();
        mpi::request::scope(|scope| {
            let mut open = Vec::with_capacity(sends.len() + receives.len());
            for (from, buffer) in receives {
                let length = buffer.len();
                let request = self
                    .world
                    .process_at_rank(*from as i32)
                    .immediate_receive_into_with_tag(scope, &mut **buffer, DATA);
                open.push((Some(length), request));
            }
            for &(to, bytes) in sends {
                open.push((
                    None,
                    self.world
                        .process_at_rank(to as i32)
                        .immediate_send_with_tag(scope, bytes, DATA),
                ));
            }
            meanwhile();
            let mut since = Instant::now();
            loop {
                let before = open.len();
                let mut pending = Vec::with_capacity(before);
                for (length, request) in open {
                    match request.test() {
                        // MPI accepts messages that are shorter than the buffer.
                        Ok(status)
                            if length.is_some_and(|length| {
                                status.count(u8::equivalent_datatype()) as usize != length
                            }) =>
                        {
                            self.abort_all(&format!(
                                "rank {} and rank {} are not doing the same",
                                status.source_rank(),
                                self.rank
                            ));
                        }
                        Ok(_) => {}
                        Err(request) => pending.push((length, request)),
                    }
                }
                open = pending;
                if open.is_empty() {
                    return Ok(());
                }
                if open.len() < before {
                    since = Instant::now();
                }
                self.heartbeat();
                // The computing threads of this process need its cores.
                let busy =
                    self.status.awaited.load(Ordering::Acquire) && since.elapsed() < BUSY_POLLING;
                if busy {
                    std::thread::yield_now();
                } else {
                    std::thread::sleep(if since.elapsed() < LONG { PAUSE } else { 10 * PAUSE });
                }
            }
        })
    }

    fn idle(&mut self) {
        self.heartbeat();
    }

    /// Waits until all ranks are done, so that no rank takes an exit for a loss.
    fn close(&mut self) {
        // Aborts here if asked to.
        self.heartbeat();
        let others = || (0..self.ranks).filter(|&other| other != self.rank);
        let mut bytes = vec![0; self.ranks];
        let sends: Vec<Message<'_>> = others().map(|other| (other, &[0u8][..])).collect();
        let rank = self.rank;
        let mut receives: Vec<Buffer<'_>> =
            bytes.chunks_mut(1).enumerate().filter(|(other, _)| *other != rank).collect();
        let _ = self.exchange(&sends, &mut receives, &mut || ());
    }
}
