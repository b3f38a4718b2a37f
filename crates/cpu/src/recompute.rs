//! Activation recomputation: only the inputs of each segment of layers are retained.
//!
//! Other activations are recomputed before their backward pass. A segment is usually a transformer
//! block. Norms must be known before gradients can be summed, so a private step runs forward and
//! backward twice: once for the norms, once for the sums. The intermediates of a parameter are
//! complete after the backward pass of the first segment that uses it.

use crate::network::Network;
use crate::pass::Mode;
use engine::Error;
use model::Activations;
use protocol::Params;

impl Network {
    /// Checks that there is enough memory for the passes over the packed micro-batch.
    pub(crate) fn reserve(&mut self) -> Result<(), Error> {
        let share = if self.activations == Activations::Retain { 1 } else { 4 };
        let bytes = self.batch.bytes(&self.graph) / share;
        // The workspace still holds the memory of earlier passes.
        if bytes > self.reserved_bytes {
            if !tensor::memory::can_allocate(bytes.saturating_sub(self.workspace.idle_bytes())) {
                return Err(Error::OutOfMemory { examples: self.batch.examples(), bytes });
            }
            self.reserved_bytes = bytes;
        }
        Ok(())
    }

    /// Runs the forward pass, then the backward pass segment by segment.
    ///
    /// `done(network, is_complete)` is called after each segment; `is_complete(k)` selects the
    /// trained parameters whose intermediates are complete.
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
        self.compute_losses(Mode::Training { start: last });
        let mut stop = end;
        for &start in starts.iter().rev() {
            if stop <= self.plan.first_layer {
                break;
            }
            if start != last {
                self.forward(params, start..stop, Mode::Training { start });
            }
            self.backward(params, start.max(self.plan.first_layer)..stop);
            let complete: Vec<bool> =
                self.plan.first_use.iter().map(|first| (start..stop).contains(first)).collect();
            done(self, &|k| complete[k]);
            self.pass(params, Mode::Training { start }).free_segment(start);
            stop = start;
        }
        self.buffers.release(&mut self.workspace);
    }
}
