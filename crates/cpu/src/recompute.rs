//! Activation recomputation: only the inputs of each segment of layers are retained; other
//! activations are recomputed before their backward pass.
//!
//! A segment lies between two marks of the graph, usually a transformer block. Norms must be known
//! before anything can be summed, so a private step runs forward and backward twice: once for the
//! norms, once for the sums. A parameter is complete as soon as the lowest segment in which it
//! enters has run backward.

use crate::network::Network;
use crate::pass::Mode;
use engine::Error;
use model::Activations;
use protocol::Params;

impl Network {
    /// Refuses a micro-batch for whose passes memory does not suffice.
    pub(crate) fn reserve(&mut self) -> Result<(), Error> {
        let share = if self.activations == Activations::Retain { 1 } else { 4 };
        let bytes = self.batch.bytes(&self.graph) / share;
        // Memory found before is still held by the workspace.
        if bytes > self.reserved_bytes {
            if !tensor::memory::can_allocate(bytes.saturating_sub(self.workspace.idle_bytes())) {
                return Err(Error::OutOfMemory { examples: self.batch.examples, bytes });
            }
            self.reserved_bytes = bytes;
        }
        Ok(())
    }

    /// Runs forward, then backward segment by segment. After each segment
    /// `done(network, complete)` is called, where `complete` tells the trained parameters whose
    /// traces are complete.
    pub(crate) fn forward_backward_by_segment(
        &mut self,
        params: &Params,
        mut done: impl FnMut(&mut Self, &dyn Fn(usize) -> bool),
    ) {
        let end = self.graph.ops().len();
        let mut starts: Vec<usize> =
            std::iter::once(0).chain(self.graph.segments().iter().copied()).collect();
        starts.dedup();
        let last = starts.last().copied().unwrap_or(0);
        for pair in starts.windows(2) {
            self.forward(params, pair[0]..pair[1], Mode::SegmentInputs { start: pair[0] });
        }
        self.forward(params, last..end, Mode::Training { start: last });
        self.finish(Mode::Training { start: last });
        let mut stop = end;
        for &start in starts.iter().rev() {
            if stop <= self.plan.lowest {
                break;
            }
            if start != last {
                self.forward(params, start..stop, Mode::Training { start });
            }
            self.backward(params, start.max(self.plan.lowest)..stop);
            let complete: Vec<bool> =
                self.plan.first_use.iter().map(|first| (start..stop).contains(first)).collect();
            done(self, &|k| complete[k]);
            self.pass(params, Mode::Training { start }).free_segment(start);
            stop = start;
        }
        self.buffers.release(&mut self.workspace);
    }
}
