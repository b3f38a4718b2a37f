//! How the sums of several processes become one. It sees sums without noise, so it stays inside
//! this crate.
//!
//! Every process knows the secret and so the whole lot; each clips and sums every n-th place of it.
//! A tensor has one owner, to whom all sums of it go, and who adds noise to them: each number gets
//! noise once, from the key of its tensor and its place, and is the same on every process.

use bytemuck::Pod;
use protocol::{Geometry, Params, Refused};
use ranks::{Lost, Number, Parts, Ranks};
use std::hash::{DefaultHasher, Hash, Hasher};
use tensor::Array;

/// The processes that hold the same records, and which tensors are whose.
pub(crate) struct Team {
    ranks: Ranks,
    parts: Parts,
    shapes: Vec<Vec<usize>>,
}

impl Team {
    pub(crate) fn alone(shapes: Vec<Vec<usize>>) -> Self {
        Self::new(Ranks::alone(), vec![0; shapes.len()], shapes)
    }

    pub(crate) fn new(ranks: Ranks, owners: Vec<usize>, shapes: Vec<Vec<usize>>) -> Self {
        let lengths = shapes.iter().map(|shape| shape.iter().product()).collect();
        Self { ranks, parts: Parts::new(owners, lengths), shapes }
    }

    /// The same processes with other owners.
    pub(crate) fn with(&self, ranks: Ranks, owners: Vec<usize>) -> Result<Self, Refused> {
        if owners.len() != self.shapes.len() || owners.iter().any(|&owner| owner >= ranks.count()) {
            return Err(Refused::Query("each tensor needs an owner among the processes".into()));
        }
        Ok(Self::new(ranks, owners, self.shapes.clone()))
    }

    pub(crate) fn is_alone(&self) -> bool {
        self.ranks.count() == 1
    }

    /// The shapes of what this process owns; of what it does not own, those of nothing.
    pub(crate) fn own_shapes(&self) -> Vec<Vec<usize>> {
        let own = |(k, shape): (usize, &Vec<usize>)| {
            if self.parts.owner(k) == self.ranks.rank() { shape.clone() } else { vec![0] }
        };
        self.shapes.iter().enumerate().map(own).collect()
    }

    /// This process's places of a lot: every n-th, so that all have the same number of them, or one
    /// more. Vacant places are among them, so who else is there does not depend on who is.
    pub(crate) fn own_places(&self, lot: &[usize]) -> Vec<usize> {
        lot.iter().copied().skip(self.ranks.rank()).step_by(self.ranks.count()).collect()
    }

    /// The most places that a process has of a lot of so many.
    pub(crate) fn most_places(&self, lot: usize) -> usize {
        lot.div_ceil(self.ranks.count())
    }

    /// Begins to send sums to their owners.
    pub(crate) fn begin_sum<A: Number>(&self, sums: Vec<Vec<A>>) -> ranks::Pending<Vec<Vec<A>>> {
        self.ranks.sum(&self.parts, sums)
    }

    /// Adds sums of a few records to what came of [`begin_sum`](Self::begin_sum), or to nothing.
    pub(crate) fn sum_onto<A: Number, N: Pod + Into<A> + Send>(
        &self,
        onto: Vec<Vec<A>>,
        few: Vec<Vec<N>>,
    ) -> Result<Vec<Vec<A>>, Refused> {
        self.ranks.sum_onto(&self.parts, onto, few).wait().map_err(refused)
    }

    /// Adds a few numbers up over all processes, in the order of ranks: on all of them the same,
    /// bit for bit.
    pub(crate) fn sum_few<A: Number>(&self, numbers: &mut [A]) -> Result<(), Refused> {
        if self.is_alone() {
            return Ok(());
        }
        let all =
            self.ranks.all_gather_bytes(bytemuck::cast_slice(numbers).to_vec()).map_err(refused)?;
        numbers.fill(A::zeroed());
        for theirs in all {
            if theirs.len() != size_of_val(numbers) {
                return Err(Refused::Failed("another process sums something else".into()));
            }
            let theirs: Vec<A> = bytemuck::pod_collect_to_vec(&theirs);
            numbers.iter_mut().zip(theirs).for_each(|(sum, own)| *sum += own);
        }
        Ok(())
    }

    /// Waits until all processes are where this one is, and refuses if one of them is somewhere
    /// else.
    pub(crate) fn agree(&self, what: impl FnOnce() -> String) -> Result<(), Refused> {
        if self.is_alone() {
            return Ok(());
        }
        match self.ranks.differing(what().into_bytes()).map_err(refused)? {
            None => Ok(()),
            Some(rank) => Err(Refused::Failed(format!(
                "rank {rank} and rank 0 are not doing the same; all processes must be started with \
                 the same command"
            ))),
        }
    }

    /// The coordinates in which one clips must be those in which another adds noise. Tangent spaces
    /// are worked out by each process for itself, by factorisations that are not the same on all
    /// processors; all else is put together from the same bits.
    pub(crate) fn agree_on(&self, geometry: &Geometry) -> Result<(), Refused> {
        let Geometry::Tangent { frames } = geometry else { return Ok(()) };
        self.agree(|| {
            let mut hasher = DefaultHasher::new();
            let arrays = frames.iter().flat_map(|frame| {
                [&frame.left_basis, &frame.right_basis, &frame.left_inverse, &frame.right_inverse]
            });
            arrays.flat_map(|array| array.data()).for_each(|x| x.to_bits().hash(&mut hasher));
            hasher.finish().to_string()
        })
    }

    /// Says that the work goes on, with a piece of so many tokens.
    pub(crate) fn tick(&self, tokens: usize) {
        self.ranks.tick(tokens as u64);
    }

    /// Says that the work on a lot is done.
    pub(crate) fn rest(&self) {
        self.ranks.rest();
    }

    /// Makes whole what each process has of its own tensors.
    pub(crate) fn gather(&self, parts: &mut Params) -> Result<(), Refused> {
        if self.is_alone() {
            return Ok(());
        }
        let numbers = parts.iter_mut().map(|tensor| std::mem::take(tensor).into_data()).collect();
        let whole = self.ranks.gather(&self.parts, numbers).wait().map_err(refused)?;
        *parts = self.params(whole)?;
        Ok(())
    }

    fn params(&self, numbers: Vec<Vec<f32>>) -> Result<Params, Refused> {
        let tensors = self
            .shapes
            .iter()
            .zip(numbers)
            .map(|(shape, numbers)| Array::new(shape.clone(), numbers));
        Ok(Params::new(tensors.collect::<Result<_, _>>()?))
    }
}

fn refused(lost: Lost) -> Refused {
    Refused::Failed(lost.to_string())
}
