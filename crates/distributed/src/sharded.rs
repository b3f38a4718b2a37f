//! A descent whose work and state are divided among the ranks.

use crate::{Error, Ownership, Ranks};
use optim::{Complete, Descent, Note, State};
use protocol::{Bound, GradientQuery, Noisy, Params, Refused, TensorMap};
use tensor::Array;

/// Wraps the descent of one rank, which is answered for the tensors that this rank owns.
///
/// Directions of all tensors are gathered on all ranks. [`save`](Descent::save) gathers the state on
/// rank 0, and all ranks must call it; [`load`](Descent::load) takes a complete state and keeps what
/// belongs to the tensors of this rank.
pub struct ShardedDescent {
    inner: Box<dyn Descent>,
    ranks: Ranks,
    ownership: Ownership,
}

impl ShardedDescent {
    /// Wraps the descent of this rank.
    pub fn new(inner: Box<dyn Descent>, ranks: Ranks, ownership: Ownership) -> Self {
        Self { inner, ranks, ownership }
    }
}

impl Descent for ShardedDescent {
    fn bounds(&self) -> &[Bound] {
        self.inner.bounds()
    }

    fn query<'a>(&'a mut self, at: &'a Params) -> Result<GradientQuery<'a>, Refused> {
        self.inner.query(at)
    }

    fn direction(&mut self, at: &Params, answer: Noisy<TensorMap>) -> Result<TensorMap, Refused> {
        let own = self.inner.direction(at, answer)?;
        Ok(gather(&self.ranks, &self.ownership, own)?.into())
    }

    fn couple(&mut self, _: Complete<'_>) -> Result<(), Refused> {
        let Self { inner, ranks, ownership } = self;
        inner.couple(&mut |params| {
            *params = gather(ranks, ownership, TensorMap::from(std::mem::take(params)))?;
            Ok(())
        })
    }

    fn work(&self, tensor: usize, at: &Params) -> f64 {
        self.inner.work(tensor, at)
    }

    fn apply(
        &self,
        params: &mut Params,
        direction: &Params,
        rate: f64,
    ) -> Result<Vec<Note>, Refused> {
        self.inner.apply(params, direction, rate)
    }

    fn save(&self) -> Result<State, Refused> {
        gather_state(&self.ranks, self.inner.save()?)
    }

    fn load(&mut self, mut state: State) -> Result<(), Refused> {
        state.restrict(&self.ownership.owned_by(self.ranks.rank()));
        self.inner.load(state)
    }
}

/// Returns all tensors, each from its owner. Tensors that this rank does not own are ignored.
fn gather(ranks: &Ranks, ownership: &Ownership, mut tensors: TensorMap) -> Result<Params, Refused> {
    tensors.retain(|tensor| ownership.owner(tensor) == ranks.rank());
    let shapes = tensors.iter().map(|(k, tensor)| (k, tensor.shape()));
    let owned = ownership.owned_by(ranks.rank());
    if !shapes.eq(owned.iter().map(|&k| (k, ownership.shape(k)))) {
        return Err(Refused::Failed("the descent did not return the tensors of its answer".into()));
    }
    Ok(ranks.all_gather(ownership, tensors).wait()?)
}

/// A tensor of a state: the names of the parts above it, its name, its index and its shape.
type Entry = (Vec<String>, String, usize, Vec<usize>);

/// Completes the state of rank 0 with the tensors of other ranks. Other ranks keep theirs.
fn gather_state(ranks: &Ranks, mut state: State) -> Result<State, Refused> {
    let (mut entries, mut arrays) = (Vec::new(), Vec::new());
    if !ranks.is_first() {
        list(&state, &mut Vec::new(), &mut entries, &mut arrays);
    }
    let invalid = |rank: usize| move |source| Error::Message { rank, source };
    let text = serde_json::to_vec(&entries).map_err(invalid(ranks.rank()))?;
    let gathered = ranks.all_gather_bytes(text)?.into_iter().enumerate();
    let listed: Vec<Vec<Entry>> = gathered
        .map(|(rank, text)| serde_json::from_slice(&text).map_err(invalid(rank)))
        .collect::<Result<_, _>>()?;
    let shapes = |entries: &Vec<Entry>| entries.iter().map(|entry| entry.3.clone()).collect();
    let received = ranks.gather_to_first(listed.iter().map(shapes).collect(), arrays)?;
    for (entries, arrays) in listed.into_iter().zip(received) {
        for ((path, name, tensor, _), array) in entries.into_iter().zip(arrays) {
            let mut part = &mut state;
            for name in path {
                part = part.parts.entry(name).or_default();
            }
            part.tensors.entry(name).or_default().insert(tensor, array);
        }
    }
    Ok(state)
}

/// Lists the tensors of a state and its parts, except shared ones.
fn list(state: &State, path: &mut Vec<String>, entries: &mut Vec<Entry>, arrays: &mut Vec<Array>) {
    for (name, tensors) in &state.tensors {
        for (tensor, array) in tensors.iter() {
            entries.push((path.clone(), name.clone(), tensor, array.shape().to_vec()));
            arrays.push(array.clone());
        }
    }
    for (name, part) in &state.parts {
        path.push(name.clone());
        list(part, path, entries, arrays);
        path.pop();
    }
}
