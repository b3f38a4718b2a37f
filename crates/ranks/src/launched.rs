//! Processes that an MPI launcher started.
//!
//! One thread of each process calls MPI, and no other. It does not wait inside MPI for what others
//! compute: everything is begun and then asked for, so that between two questions it can say that
//! it is alive, listen whether the others are, and end all of them if one is not. A process that
//! dies takes the others with it, which is the launcher's doing; one that is only silent is noticed
//! here.

use crate::talk::Signs;
use crate::wire::{Lost, Message, Room, Wire};
use crate::{Ranks, launcher};
use mpi::Threading;
use mpi::environment::Universe;
use mpi::topology::SimpleCommunicator;
use mpi::traits::*;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const DATA: i32 = 1;
const BEAT: i32 = 2;

/// How often a process says that it is alive, and how long it may be silent.
const EVERY: Duration = Duration::from_secs(1);
const SILENCE: Duration = Duration::from_secs(10);

/// How long messages are asked for without a pause if a caller waits for them, and the pauses after
/// that.
const EAGER: Duration = Duration::from_millis(20);
const PAUSE: Duration = Duration::from_micros(100);

/// After so long without a message another pause does not matter.
const LONG: Duration = Duration::from_secs(1);

/// The exit code when another process does not answer: what bad input has, too, for the run can go
/// on.
const CODE: i32 = 2;

struct Launched {
    // Dropped last: that ends MPI.
    world: SimpleCommunicator,
    rank: usize,
    ranks: usize,
    signs: Arc<Signs>,
    said: Instant,
    heard: Vec<Instant>,
    _universe: Universe,
}

/// This process among those that a launcher started; none if it was not started by one.
///
/// # Errors
/// If MPI cannot be started.
pub fn launched() -> Result<Option<Ranks>, Lost> {
    if launcher().is_none() {
        return Ok(None);
    }
    Ranks::new(connect).map(Some)
}

fn connect(signs: &Arc<Signs>) -> Result<(Launched, String), Lost> {
    let (universe, _) = mpi::initialize_with_threading(Threading::Funneled)
        .ok_or_else(|| Lost("MPI was started before".into()))?;
    let world = universe.world();
    let (rank, ranks) = (world.rank() as usize, world.size() as usize);
    let host = mpi::environment::processor_name().unwrap_or_default();
    let now = Instant::now();
    Ok((
        Launched {
            world,
            rank,
            ranks,
            signs: Arc::clone(signs),
            said: now,
            heard: vec![now; ranks],
            _universe: universe,
        },
        host,
    ))
}

impl Launched {
    /// Says that it is alive, listens whether the others are, and looks whether all shall end. The
    /// first process hears all others, and they hear the first.
    fn beat(&mut self) {
        if let Some(code) = self.signs.end() {
            self.world.abort(code.into());
        }
        if self.said.elapsed() < EVERY || self.ranks == 1 {
            return;
        }
        // A process that was suspended has received nothing in that time.
        let asleep = self.said.elapsed() > SILENCE / 2;
        self.said = Instant::now();
        if asleep {
            self.heard.fill(self.said);
            self.signs.pace.awake(self.said);
        }
        if let Some(seconds) = self.signs.pace.standstill(self.said) {
            self.end_all(&format!("rank {} has got nowhere for {seconds} seconds", self.rank));
        }
        let neighbours = if self.rank == 0 { 1..self.ranks } else { 0..1 };
        neighbours.clone().for_each(|other| {
            self.world.process_at_rank(other as i32).send_with_tag(&[0u8][..], BEAT)
        });
        while let Some(status) = self.world.any_process().immediate_probe_with_tag(BEAT) {
            let mut nothing = [0u8];
            self.world
                .process_at_rank(status.source_rank())
                .receive_into_with_tag(&mut nothing[..], BEAT);
            self.heard[status.source_rank() as usize] = Instant::now();
        }
        if let Some(silent) =
            neighbours.into_iter().find(|&other| self.heard[other].elapsed() > SILENCE)
        {
            self.end_all(&format!(
                "rank {silent} has not been heard of for {} seconds",
                SILENCE.as_secs()
            ));
        }
    }

    fn end_all(&self, why: &str) {
        eprintln!(
            "muffle: {why}; all processes end. What was charged is written down: go on with muffle \
             resume"
        );
        self.world.abort(CODE);
    }
}

impl Wire for Launched {
    fn rank(&self) -> usize {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.ranks
    }

    fn exchange(
        &mut self,
        sends: &[Message<'_>],
        receives: &mut [Room<'_>],
        meanwhile: &mut dyn FnMut(),
    ) -> Result<(), Lost> {
        // Here too, should none of many messages ever have to be waited for.
        self.beat();
        mpi::request::scope(|scope| {
            let mut open = Vec::with_capacity(sends.len() + receives.len());
            for (from, room) in receives {
                let length = room.len();
                let request = self
                    .world
                    .process_at_rank(*from as i32)
                    .immediate_receive_into_with_tag(scope, &mut **room, DATA);
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
                let mut still = Vec::with_capacity(before);
                for (length, request) in open {
                    match request.test() {
                        // MPI is content with less than there is room for.
                        Ok(status)
                            if length.is_some_and(|length| {
                                status.count(u8::equivalent_datatype()) as usize != length
                            }) =>
                        {
                            self.end_all(&format!(
                                "rank {} and rank {} do not do the same",
                                status.source_rank(),
                                self.rank
                            ));
                        }
                        Ok(_) => {}
                        Err(request) => still.push((length, request)),
                    }
                }
                open = still;
                if open.is_empty() {
                    return Ok(());
                }
                if open.len() < before {
                    since = Instant::now();
                }
                self.beat();
                // Computing threads of this process need its core more.
                let eager = self.signs.awaited.load(Ordering::Acquire) && since.elapsed() < EAGER;
                if eager {
                    std::thread::yield_now();
                } else {
                    std::thread::sleep(if since.elapsed() < LONG { PAUSE } else { 10 * PAUSE });
                }
            }
        })
    }

    fn idle(&mut self) {
        self.beat();
    }

    /// No process exits before all are done: until then the others would take silence for a loss.
    fn farewell(&mut self) {
        // If the job is aborted, there is no farewell.
        self.beat();
        let others = || (0..self.ranks).filter(|&other| other != self.rank);
        let mut bytes = vec![0; self.ranks];
        let sends: Vec<Message<'_>> = others().map(|other| (other, &[0u8][..])).collect();
        let rank = self.rank;
        let mut receives: Vec<Room<'_>> =
            bytes.chunks_mut(1).enumerate().filter(|(other, _)| *other != rank).collect();
        let _ = self.exchange(&sends, &mut receives, &mut || ());
    }
}
