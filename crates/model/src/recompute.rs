//! Passes in little memory: only what crosses from one stretch of layers to the next is kept, the
//! rest is made again.
//!
//! A stretch is what lies between two cuts of the graph, usually a transformer block. Norms must be
//! known before anything can be summed, so a private step sweeps twice: once for the norms, once
//! for the sums. A parameter is dealt with as soon as the lowest stretch in which it enters has
//! gone backward.

use crate::run::Purpose;
use crate::{Error, Memory, Network};
use protocol::Params;

impl Network {
    /// Whether there is memory for a pass over the examples that are packed.
    pub(crate) fn room(&mut self) -> Result<(), Error> {
        let bytes = self.batch.bytes(&self.graph) / if self.memory == Memory::Keep { 1 } else { 4 };
        // What there was room for before is still there, idle.
        if bytes > self.roomy {
            if !tensor::memory::can_allocate(bytes.saturating_sub(self.space.idle_bytes())) {
                return Err(Error::Memory { examples: self.batch.examples, bytes });
            }
            self.roomy = bytes;
        }
        Ok(())
    }

    /// Goes forward, then backward stretch by stretch. After each stretch `done(network, which)` is
    /// called, where `which` tells the trained parameters whose traces are complete.
    pub(crate) fn sweep(
        &mut self,
        at: &Params,
        mut done: impl FnMut(&mut Self, &dyn Fn(usize) -> bool),
    ) {
        let end = self.graph.layers.len();
        let mut starts: Vec<usize> =
            std::iter::once(0).chain(self.graph.cuts.iter().copied()).collect();
        starts.dedup();
        let last = starts.last().copied().unwrap_or(0);
        for pair in starts.windows(2) {
            self.forward(at, pair[0]..pair[1], Purpose::Sketch { start: pair[0] });
        }
        self.forward(at, last..end, Purpose::Training { start: last });
        self.finish(Purpose::Training { start: last });
        let mut stop = end;
        for &start in starts.iter().rev() {
            if stop <= self.plan.lowest {
                break;
            }
            if start != last {
                self.forward(at, start..stop, Purpose::Training { start });
            }
            self.backward(at, start.max(self.plan.lowest)..stop);
            let complete: Vec<bool> =
                self.plan.first_use.iter().map(|first| (start..stop).contains(first)).collect();
            done(self, &|k| complete[k]);
            self.run(at, Purpose::Training { start }).forget_stretch(start);
            stop = start;
        }
        self.buffers.release(&mut self.space);
    }
}
