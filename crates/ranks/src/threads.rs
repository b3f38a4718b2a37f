//! Threads that stand for processes: the same algorithms without a launcher, for tests.

use crate::wire::{Lost, Message, Room, Wire};
use crate::{Ranks, talk::Signs};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Duration;

/// How long one waits for another.
const PATIENCE: Duration = Duration::from_secs(60);

struct Threads {
    rank: usize,
    to: Vec<Sender<Vec<u8>>>,
    from: Vec<Receiver<Vec<u8>>>,
}

/// So many of them, connected with each other, each for a thread of its own.
///
/// # Errors
/// If the system gives no threads.
pub fn threads(count: usize) -> Result<Vec<Ranks>, Lost> {
    let mut to: Vec<Vec<_>> = (0..count).map(|_| Vec::new()).collect();
    let mut from: Vec<Vec<_>> = (0..count).map(|_| Vec::new()).collect();
    for sender in &mut to {
        for receiver in &mut from {
            let (send, receive) = mpsc::channel();
            sender.push(send);
            receiver.push(receive);
        }
    }
    let all = to.into_iter().zip(from).enumerate();
    all.map(|(rank, (to, from))| {
        Ranks::new(move |_: &Arc<Signs>| Ok((Threads { rank, to, from }, String::new())))
    })
    .collect()
}

impl Wire for Threads {
    fn rank(&self) -> usize {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.to.len()
    }

    fn exchange(
        &mut self,
        sends: &[Message<'_>],
        receives: &mut [Room<'_>],
        meanwhile: &mut dyn FnMut(),
    ) -> Result<(), Lost> {
        let lost = |rank: usize| Lost(format!("rank {rank} is gone"));
        for &(to, bytes) in sends {
            self.to[to].send(bytes.to_vec()).map_err(|_| lost(to))?;
        }
        meanwhile();
        for (from, room) in receives {
            let bytes = self.from[*from].recv_timeout(PATIENCE).map_err(|_| lost(*from))?;
            if bytes.len() != room.len() {
                return Err(Lost(format!(
                    "rank {from} sent {} bytes where {} were expected",
                    bytes.len(),
                    room.len()
                )));
            }
            room.copy_from_slice(&bytes);
        }
        Ok(())
    }
}
