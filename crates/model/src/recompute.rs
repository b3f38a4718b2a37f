//! Passes in little memory: only what crosses from one stretch of layers to the next is kept, the rest is made again.
//!
//! A stretch is what lies between two cuts of the graph, usually a transformer block. Norms must be known before anything can be summed, so a private step
//! sweeps twice: once for the norms, once for the sums. A parameter is dealt with as soon as the lowest stretch in which it enters has gone backward.

use crate::Network;
use crate::run::Purpose;
use protocol::Params;

impl Network {
    /// Goes forward, then backward stretch by stretch. After each stretch `done(network, which)` is called, where `which` tells the trained parameters
    /// whose traces are complete.
    pub(crate) fn sweep(&mut self, at: &Params, mut done: impl FnMut(&mut Self, &dyn Fn(usize) -> bool)) {
        let end = self.graph.layers.len();
        let mut starts: Vec<usize> = std::iter::once(0).chain(self.graph.cuts.iter().copied()).collect();
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
            let complete: Vec<bool> = self.plan.first_use.iter().map(|first| (start..stop).contains(first)).collect();
            done(self, &|k| complete[k]);
            self.run(at, Purpose::Training { start }).forget_stretch(start);
            stop = start;
        }
        self.buffers.release(&mut self.space);
    }
}
