//! A descent whose work and state are divided among the ranks.

use crate::{Error, Ownership, Ranks};
use optim::{Descent, GatherTensors, Note, State};
use protocol::{Bound, GradientQuery, Noisy, Params, Refused, TensorMap};
use tensor::Array;

/// Wraps the descent of one rank, which gets answers for the tensors that this rank owns.
///
/// All ranks gather the directions of all tensors. [`save`](Descent::save) gathers the state on
/// rank 0, so all ranks must call it. [`load`](Descent::load) takes a complete state and drops the
/// tensors that this rank does not own.
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

    fn initialize(&self, params: &mut Params) -> Result<Vec<Note>, Refused> {
        self.inner.initialize(params)
    }

    fn query<'a>(&'a mut self, at: &'a Params) -> Result<GradientQuery<'a>, Refused> {
        self.inner.query(at)
    }

    fn direction(&mut self, at: &Params, answer: Noisy<TensorMap>) -> Result<TensorMap, Refused> {
        let own = self.inner.direction(at, answer)?;
        Ok(gather(&self.ranks, &self.ownership, own)?.into())
    }

    fn synchronize(&mut self, _: GatherTensors<'_>) -> Result<(), Refused> {
        let Self { inner, ranks, ownership } = self;
        inner.synchronize(&mut |params| {
            *params = gather(ranks, ownership, TensorMap::from(std::mem::take(params)))?;
            Ok(())
        })
    }

    fn work(&self, tensor: usize, at: &Params) -> f64 {
        self.inner.work(tensor, at)
    }

    fn weight_decay(&self, tensor: usize) -> f64 {
        self.inner.weight_decay(tensor)
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
        let mut state = self.inner.save()?;
        state.retain_tensors(&self.ownership.owned_by(self.ranks.rank()));
        gather_state(&self.ranks, state)
    }

    fn load(&mut self, mut state: State) -> Result<(), Refused> {
        state.restrict(&self.ownership.owned_by(self.ranks.rank()));
        self.inner.load(state)
    }
}

/// Returns all tensors, each from its owner. Values of tensors of other owners are ignored.
fn gather(ranks: &Ranks, ownership: &Ownership, mut tensors: TensorMap) -> Result<Params, Refused> {
    tensors.retain(|tensor| ownership.owner(tensor) == ranks.rank());
    let shapes = tensors.iter().map(|(k, tensor)| (k, tensor.shape()));
    let owned = ownership.owned_by(ranks.rank());
    if !shapes.eq(owned.iter().map(|&k| (k, ownership.shape(k)))) {
        return Err(Refused::Failed(format!(
            "expected values of the {} tensors that this rank owns, got {} or other shapes",
            owned.len(),
            tensors.len()
        )));
    }
    Ok(ranks.all_gather(ownership, tensors).wait()?)
}

/// A tensor of a state: the path of part names to it, its name, its index and its shape.
type Entry = (Vec<String>, String, usize, Vec<usize>);

/// Completes the state of rank 0 with the tensors of other ranks, whose states are unchanged.
///
/// # Errors
/// If the numbers of the states differ, or a rank is lost.
fn gather_state(ranks: &Ranks, mut state: State) -> Result<State, Refused> {
    let mut numbers = String::new();
    list_numbers(&state, &mut numbers);
    if let Some(rank) = ranks.first_difference(numbers.into_bytes())? {
        return Err(Refused::Failed(format!(
            "the optimizer's state: numbers of rank {rank} and rank 0 differ"
        )));
    }
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

/// Lists the kinds, names and numbers of a state and its parts.
fn list_numbers(state: &State, text: &mut String) {
    text.push_str(&state.kind);
    for (name, number) in &state.numbers {
        text.push_str(&format!("\n{name} {:x}", number.to_bits()));
    }
    for (name, part) in &state.parts {
        text.push_str(&format!("\n{name}: "));
        list_numbers(part, text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::threads;
    use protocol::Geometry;

    /// A descent that has state for all tensors from the start, and numbers of its own.
    struct EagerDescent {
        state: TensorMap,
        number: f64,
    }

    impl Descent for EagerDescent {
        fn bounds(&self) -> &[Bound] {
            &[]
        }

        fn query<'a>(&'a mut self, _: &'a Params) -> Result<GradientQuery<'a>, Refused> {
            Err(Refused::Query(format!("{:?} is not asked for", Geometry::Identity)))
        }

        fn direction(
            &mut self,
            _: &Params,
            answer: Noisy<TensorMap>,
        ) -> Result<TensorMap, Refused> {
            for (k, tensor) in answer.value.iter() {
                self.state.insert(k, tensor.clone());
            }
            Ok(answer.value)
        }

        fn save(&self) -> Result<State, Refused> {
            let mut state = State::new("eager");
            state.set_number("number", self.number);
            state.set_tensors("state", &self.state);
            Ok(state)
        }

        fn load(&mut self, _: State) -> Result<(), Refused> {
            Ok(())
        }
    }

    /// Takes one step on two ranks, which own one tensor each, and saves the state of both.
    fn saved(number: fn(usize) -> f64) -> Vec<Result<State, Refused>> {
        let one = |ranks: Ranks| {
            let rank = ranks.rank();
            let ownership = Ownership::new(vec![1, 0], vec![vec![2], vec![3]]);
            let zeros = Params::new(vec![Array::zeros([2]), Array::zeros([3])]);
            let mut answer = TensorMap::new();
            let shape = ownership.shape(1 - rank).to_vec();
            answer.insert(1 - rank, Array::from_fn(shape, |i| (10 * rank + i + 1) as f32));
            let inner = EagerDescent { state: zeros.clone().into(), number: number(rank) };
            let mut descent = ShardedDescent::new(Box::new(inner), ranks, ownership);
            let answer = Noisy { value: answer, std: Vec::new() };
            let direction = descent.direction(&zeros, answer).unwrap();
            assert_eq!(
                (direction[0].data(), direction[1].data()),
                (&[11.0, 12.0][..], &[1.0, 2.0, 3.0][..])
            );
            descent.save()
        };
        std::thread::scope(|scope| {
            let ranks = threads(2).unwrap().into_iter();
            let all: Vec<_> = ranks.map(|ranks| scope.spawn(move || one(ranks))).collect();
            all.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    /// State of tensors that a rank does not own is ignored, wherever it comes from.
    #[test]
    fn the_state_of_a_tensor_is_that_of_its_owner() {
        let all = saved(|_| 1.0);
        let first = &all[0].as_ref().unwrap().tensors["state"];
        assert_eq!((first[0].data(), first[1].data()), (&[11.0, 12.0][..], &[1.0, 2.0, 3.0][..]));
        assert!(all[1].as_ref().unwrap().tensors["state"].indices().eq([0]));
    }

    #[test]
    fn numbers_that_differ_between_ranks_are_refused() {
        assert!(saved(|rank| rank as f64).iter().all(Result::is_err));
    }
}
