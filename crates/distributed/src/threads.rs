//! Threads that act as ranks: the same collectives without a launcher, for tests.

use crate::ranks::Status;
use crate::transport::{Buffer, Message, Transport};
use crate::{Error, Ranks};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Duration;

/// How long one thread waits for another.
const TIMEOUT: Duration = Duration::from_secs(60);

struct ThreadTransport {
    rank: usize,
    to: Vec<Sender<Vec<u8>>>,
    from: Vec<Receiver<Vec<u8>>>,
}

/// Returns `count` connected ranks, each to be used by a thread of its own.
///
/// # Errors
/// If a thread cannot be started.
pub fn threads(count: usize) -> Result<Vec<Ranks>, Error> {
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
        Ranks::new(move |_: &Arc<Status>| Ok((ThreadTransport { rank, to, from }, String::new())))
    })
    .collect()
}

impl Transport for ThreadTransport {
    fn rank(&self) -> usize {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.to.len()
    }

    fn exchange(
        &mut self,
        sends: &[Message<'_>],
        receives: &mut [Buffer<'_>],
        meanwhile: &mut dyn FnMut(),
    ) -> Result<(), Error> {
        let lost = |rank: usize| Error::Lost { rank };
        for &(to, bytes) in sends {
            self.to[to].send(bytes.to_vec()).map_err(|_| lost(to))?;
        }
        meanwhile();
        for (from, buffer) in receives {
            let bytes = self.from[*from].recv_timeout(TIMEOUT).map_err(|_| lost(*from))?;
            if bytes.len() != buffer.len() {
                let (rank, expected, got) = (*from, buffer.len(), bytes.len());
                return Err(Error::Length { rank, expected, got });
            }
            buffer.copy_from_slice(&bytes);
        }
        Ok(())
    }
}
