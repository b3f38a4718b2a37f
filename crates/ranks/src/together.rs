//! What processes do together. Each of these must be begun by all of them, in the same order.
//!
//! Tensors are divided among the processes. A sum over all processes goes to the one that owns the
//! tensor, in pieces: while one piece travels, the one before it is added up. The owner of a tensor
//! adds what the others sent in the order of their ranks, so that no sum depends on timing; MPI's
//! own reductions do not promise an order. What a sum costs is what the best algorithms for long
//! messages cost, if the owners' shares are equal: every number travels once to its owner and,
//! after it was worked on, once to each other process.

use crate::wire::{Lost, Message, Room, Wire};
use crate::{Pending, Ranks};
use bytemuck::{Pod, cast_slice, cast_slice_mut};
use std::ops::Range;
use std::sync::Arc;

/// Which process owns which tensor.
#[derive(Clone, Debug)]
pub struct Parts {
    owners: Arc<[usize]>,
    lengths: Arc<[usize]>,
}

impl Parts {
    /// `owners[k]` is the rank that owns tensor k, of `lengths[k]` numbers. The same on every
    /// process.
    pub fn new(owners: Vec<usize>, lengths: Vec<usize>) -> Self {
        Self { owners: owners.into(), lengths: lengths.into() }
    }

    /// Who owns a tensor.
    pub fn owner(&self, tensor: usize) -> usize {
        self.owners[tensor]
    }

    /// The pieces of each process, in an order that all of them know.
    fn pieces(&self, ranks: usize) -> Vec<Vec<Piece>> {
        // So that there is room for one of each process and two at a time.
        let longest = (PIECES / ranks).max(1 << 12);
        let mut pieces: Vec<Vec<Piece>> = (0..ranks).map(|_| Vec::new()).collect();
        for (tensor, (&owner, &length)) in self.owners.iter().zip(&*self.lengths).enumerate() {
            pieces[owner].extend(
                (0..length)
                    .step_by(longest)
                    .map(|at| Piece { tensor, range: at..(at + longest).min(length) }),
            );
        }
        pieces
    }
}

/// Numbers under way to one process at a time.
const PIECES: usize = 1 << 20;

/// Numbers that are added up at a time.
const BLOCK: usize = 1 << 12;

/// Bytes of a message of one process to all.
const LONGEST: usize = 1 << 24;

/// What sums are made of: 64-bit integers, or floating-point numbers.
pub trait Number: Pod + Send + std::ops::AddAssign {}

impl Number for i64 {}
impl Number for f64 {}

/// What is done with a piece of this process: it, its rank, and what the others sent, by rank.
type Sum<'a, N> = &'a mut dyn FnMut(&Piece, usize, &[Vec<N>]);

/// A part of a tensor.
#[derive(Clone, Debug)]
struct Piece {
    tensor: usize,
    range: Range<usize>,
}

impl Ranks {
    /// Sums over all processes, sent to the owner of each tensor; other processes get empty sums.
    pub fn sum<A: Number>(&self, parts: &Parts, mut tensors: Vec<Vec<A>>) -> Pending<Vec<Vec<A>>> {
        let parts = parts.clone();
        self.begin(move |wire| {
            let mut own = take_own(&parts, wire.rank(), &mut tensors);
            if wire.ranks() > 1 {
                reduce(wire, &parts, &tensors, &mut |piece, rank, received| {
                    let mine = &mut own[piece.tensor][piece.range.clone()];
                    in_order(mine.len(), |block, sum| {
                        let own = &mine[block.clone()];
                        received.iter().enumerate().for_each(|(other, theirs)| {
                            add(sum, if other == rank { own } else { &theirs[block.clone()] })
                        });
                        mine[block].copy_from_slice(sum);
                    });
                })?;
            }
            Ok(own)
        })
    }

    /// Adds the sums over all processes of numbers that may be shorter to `onto`, which has what
    /// this process owns, or nothing yet.
    pub fn sum_onto<A: Number, N: Pod + Into<A> + Send>(
        &self,
        parts: &Parts,
        onto: Vec<Vec<A>>,
        mut tensors: Vec<Vec<N>>,
    ) -> Pending<Vec<Vec<A>>> {
        let (parts, mut onto) = (parts.clone(), onto);
        self.begin(move |wire| {
            let rank = wire.rank();
            onto.resize(tensors.len(), Vec::new());
            for (k, onto) in onto.iter_mut().enumerate() {
                onto.resize(
                    if parts.owners[k] == rank { parts.lengths[k] } else { 0 },
                    A::zeroed(),
                );
            }
            let own = take_own(&parts, rank, &mut tensors);
            let mut sum_piece = |piece: &Piece, rank: usize, received: &[Vec<N>]| {
                let (mine, onto) = (
                    &own[piece.tensor][piece.range.clone()],
                    &mut onto[piece.tensor][piece.range.clone()],
                );
                in_order(mine.len(), |block, sum| {
                    let each = received.iter().enumerate();
                    each.for_each(|(other, theirs)| {
                        add(
                            sum,
                            if other == rank {
                                &mine[block.clone()]
                            } else {
                                &theirs[block.clone()]
                            },
                        )
                    });
                    add(&mut onto[block], sum);
                });
            };
            if wire.ranks() > 1 {
                reduce(wire, &parts, &tensors, &mut sum_piece)?;
            } else {
                let whole = |(tensor, &length): (usize, &usize)| Piece { tensor, range: 0..length };
                parts
                    .lengths
                    .iter()
                    .enumerate()
                    .map(whole)
                    .for_each(|piece| sum_piece(&piece, 0, &[Vec::new()]));
            }
            Ok(onto)
        })
    }

    /// Puts together what each process has of its own tensors; the others' may be anything.
    pub fn gather(&self, parts: &Parts, mut tensors: Vec<Vec<f32>>) -> Pending<Vec<Vec<f32>>> {
        let parts = parts.clone();
        self.begin(move |wire| {
            let (rank, ranks) = (wire.rank(), wire.ranks());
            let own = take_own(&parts, rank, &mut tensors);
            for (k, tensor) in tensors.iter_mut().enumerate() {
                tensor.resize(if parts.owners[k] == rank { 0 } else { parts.lengths[k] }, 0.0);
            }
            let pieces = parts.pieces(ranks);
            for round in 0..pieces.iter().map(Vec::len).max().unwrap_or(0) {
                let mut receives: Vec<Room<'_>> = Vec::new();
                for (k, tensor) in tensors.iter_mut().enumerate() {
                    let owner = parts.owners[k];
                    if let Some(piece) =
                        pieces[owner].get(round).filter(|piece| piece.tensor == k && owner != rank)
                    {
                        receives.push((owner, cast_slice_mut(&mut tensor[piece.range.clone()])));
                    }
                }
                let piece = pieces[rank]
                    .get(round)
                    .map(|piece| cast_slice(&own[piece.tensor][piece.range.clone()]));
                let sends: Vec<Message<'_>> =
                    others(rank, ranks).filter_map(|other| Some((other, piece?))).collect();
                wire.exchange(&sends, &mut receives, &mut || ())?;
            }
            own.into_iter()
                .enumerate()
                .filter(|(k, _)| parts.owners[*k] == rank)
                .for_each(|(k, own)| tensors[k] = own);
            Ok(tensors)
        })
    }

    /// A few bytes of every process, by rank.
    ///
    /// # Errors
    /// If a process is gone.
    pub fn all_gather_bytes(&self, own: Vec<u8>) -> Result<Vec<Vec<u8>>, Lost> {
        self.begin(move |wire| all_gather_bytes(wire, own)).wait()
    }

    /// The first process whose bytes are not those of the first of all, if there is one: on all
    /// processes the same.
    ///
    /// # Errors
    /// If a process is gone.
    pub fn differing(&self, own: Vec<u8>) -> Result<Option<usize>, Lost> {
        let all = self.all_gather_bytes(own)?;
        Ok(all.iter().position(|theirs| *theirs != all[0]))
    }

    /// The bytes of the first process, on all of them. What others give is not looked at.
    ///
    /// # Errors
    /// If a process is gone.
    pub fn first_says(&self, own: Vec<u8>) -> Result<Vec<u8>, Lost> {
        let job = move |wire: &mut dyn Wire| {
            let (rank, ranks, mut own) = (wire.rank(), wire.ranks(), own);
            let mut length = (own.len() as u64).to_le_bytes();
            from_first(wire, &mut length)?;
            own.resize(
                if rank == 0 || ranks == 1 {
                    own.len()
                } else {
                    u64::from_le_bytes(length) as usize
                },
                0,
            );
            own.chunks_mut(LONGEST).try_for_each(|piece| from_first(wire, piece))?;
            Ok(own)
        };
        self.begin(job).wait()
    }

    /// What is empty on the first process, from the lowest other one that has it. The other
    /// processes get back what they gave.
    ///
    /// # Errors
    /// If a process is gone.
    pub fn complete_first(&self, mut tensors: Vec<Vec<f32>>) -> Result<Vec<Vec<f32>>, Lost> {
        let job = move |wire: &mut dyn Wire| {
            let rank = wire.rank();
            let lengths: Vec<u64> = tensors.iter().map(|tensor| tensor.len() as u64).collect();
            let known = all_gather_bytes(wire, cast_slice(&lengths).to_vec())?;
            let length = |rank: usize, k: usize| {
                known[rank]
                    .get(8 * k..8 * k + 8)
                    .and_then(|bytes| bytes.first_chunk())
                    .map_or(0, |bytes| u64::from_le_bytes(*bytes) as usize)
            };
            for (k, tensor) in tensors.iter_mut().enumerate() {
                let Some(giver) =
                    (0..known.len()).find(|&rank| length(rank, k) > 0).filter(|&giver| giver > 0)
                else {
                    continue;
                };
                if rank == 0 {
                    tensor.resize(length(giver, k), 0.0);
                    for piece in tensor.chunks_mut(LONGEST / 4) {
                        wire.exchange(&[], &mut [(giver, cast_slice_mut(piece))], &mut || ())?;
                    }
                } else if rank == giver {
                    for piece in tensor.chunks(LONGEST / 4) {
                        wire.exchange(&[(0, cast_slice(piece))], &mut [], &mut || ())?;
                    }
                }
            }
            Ok(tensors)
        };
        self.begin(job).wait()
    }
}

fn others(rank: usize, ranks: usize) -> impl Iterator<Item = usize> {
    (0..ranks).filter(move |&other| other != rank)
}

/// Takes what a process owns out of all tensors; what is left and what is taken are empty where the
/// other is not.
fn take_own<N>(parts: &Parts, rank: usize, tensors: &mut [Vec<N>]) -> Vec<Vec<N>> {
    tensors
        .iter_mut()
        .enumerate()
        .map(
            |(k, tensor)| if parts.owners[k] == rank { std::mem::take(tensor) } else { Vec::new() },
        )
        .collect()
}

/// Sends pieces to their owners, and calls `sum` for each piece of this process.
fn reduce<N: Pod>(
    wire: &mut dyn Wire,
    parts: &Parts,
    tensors: &[Vec<N>],
    sum: Sum<'_, N>,
) -> Result<(), Lost> {
    let (rank, ranks) = (wire.rank(), wire.ranks());
    let pieces = parts.pieces(ranks);
    let rounds = pieces.iter().map(Vec::len).max().unwrap_or(0);
    let longest = pieces[rank].iter().map(|piece| piece.range.len()).max().unwrap_or(0);
    let room = || {
        (0..ranks)
            .map(|other| vec![N::zeroed(); if other == rank { 0 } else { longest }])
            .collect::<Vec<_>>()
    };
    let (mut now, mut before) = (room(), room());
    for round in 0..=rounds {
        let to = |other: usize| {
            pieces[other]
                .get(round)
                .map(|piece| (other, cast_slice(&tensors[piece.tensor][piece.range.clone()])))
        };
        let sends: Vec<Message<'_>> = others(rank, ranks).filter_map(to).collect();
        let length = pieces[rank].get(round).map_or(0, |piece| piece.range.len());
        let rooms = now.iter_mut().enumerate().filter(|(other, _)| *other != rank && length > 0);
        let mut receives: Vec<Room<'_>> =
            rooms.map(|(other, room)| (other, cast_slice_mut(&mut room[..length]))).collect();
        let last = round.checked_sub(1).and_then(|round| pieces[rank].get(round));
        wire.exchange(&sends, &mut receives, &mut || {
            if let Some(piece) = last {
                sum(piece, rank, &before);
            }
        })?;
        std::mem::swap(&mut now, &mut before);
    }
    Ok(())
}

/// Calls this with each block of so many numbers and zeros to sum in.
fn in_order<A: Number>(length: usize, mut sum: impl FnMut(Range<usize>, &mut [A])) {
    let mut room = [A::zeroed(); BLOCK];
    for at in (0..length).step_by(BLOCK) {
        let block = at..(at + BLOCK).min(length);
        let room = &mut room[..block.len()];
        room.fill(A::zeroed());
        sum(block, room);
    }
}

fn add<A: Number, N: Copy + Into<A>>(sum: &mut [A], numbers: &[N]) {
    sum.iter_mut().zip(numbers).for_each(|(sum, &number)| *sum += number.into());
}

fn all_gather_bytes(wire: &mut dyn Wire, own: Vec<u8>) -> Result<Vec<Vec<u8>>, Lost> {
    let (rank, ranks) = (wire.rank(), wire.ranks());
    let mut lengths = vec![[0; 8]; ranks];
    lengths[rank] = (own.len() as u64).to_le_bytes();
    to_all(wire, &mut lengths)?;
    let mut all: Vec<Vec<u8>> =
        lengths.iter().map(|length| vec![0; u64::from_le_bytes(*length) as usize]).collect();
    all[rank] = own;
    to_all(wire, &mut all)?;
    Ok(all)
}

/// Sends this process's bytes to all others and receives theirs.
fn to_all(wire: &mut dyn Wire, all: &mut [impl AsRef<[u8]> + AsMut<[u8]>]) -> Result<(), Lost> {
    let (rank, ranks) = (wire.rank(), wire.ranks());
    let own = all[rank].as_ref().to_vec();
    let sends: Vec<Message<'_>> = others(rank, ranks).map(|other| (other, &own[..])).collect();
    let mut receives: Vec<Room<'_>> = all
        .iter_mut()
        .enumerate()
        .filter(|(other, _)| *other != rank)
        .map(|(other, bytes)| (other, bytes.as_mut()))
        .collect();
    wire.exchange(&sends, &mut receives, &mut || ())
}

fn from_first(wire: &mut dyn Wire, bytes: &mut [u8]) -> Result<(), Lost> {
    if wire.rank() > 0 {
        return wire.exchange(&[], &mut [(0, bytes)], &mut || ());
    }
    let sends: Vec<Message<'_>> = (1..wire.ranks()).map(|other| (other, &*bytes)).collect();
    wire.exchange(&sends, &mut [], &mut || ())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::threads;

    /// The same on so many threads that stand for processes.
    fn on<T: Send + 'static>(
        count: usize,
        work: impl Fn(&Ranks) -> T + Send + Sync + 'static,
    ) -> Vec<T> {
        let work = Arc::new(work);
        let all = threads(count).unwrap().into_iter().map(|ranks| {
            let work = Arc::clone(&work);
            std::thread::spawn(move || work(&ranks))
        });
        all.collect::<Vec<_>>().into_iter().map(|thread| thread.join().unwrap()).collect()
    }

    const LENGTHS: [usize; 5] = [3, 0, PIECES + 17, 5, 2 * PIECES / 3];

    fn number(rank: usize, tensor: usize, i: usize) -> f64 {
        (((rank + 1) * 31 + tensor * 7 + i) as f64).sin() / 3.0
    }

    fn tensors<N>(rank: usize, of: impl Fn(f64) -> N) -> Vec<Vec<N>> {
        LENGTHS
            .iter()
            .enumerate()
            .map(|(k, &length)| (0..length).map(|i| of(number(rank, k, i))).collect())
            .collect()
    }

    fn parts(count: usize) -> Parts {
        Parts::new((0..LENGTHS.len()).map(|k| k % count).collect(), LENGTHS.to_vec())
    }

    #[test]
    fn sums_go_to_their_owners_in_the_order_of_ranks() {
        for count in [1, 2, 3, 4] {
            let all = on(count, move |ranks| {
                ranks.sum(&parts(count), tensors(ranks.rank(), |x| x)).wait().unwrap()
            });
            for (rank, own) in all.into_iter().enumerate() {
                for (k, tensor) in own.into_iter().enumerate() {
                    let expected =
                        |i: usize| (0..count).fold(0.0, |sum, rank| sum + number(rank, k, i));
                    let length = if k % count == rank { LENGTHS[k] } else { 0 };
                    assert_eq!(
                        tensor,
                        (0..length).map(expected).collect::<Vec<_>>(),
                        "{count} {rank} {k}"
                    );
                }
            }
        }
    }

    #[test]
    fn shorter_numbers_are_added_onto_longer_ones() {
        for count in [1, 2, 3] {
            let all = on(count, move |ranks| {
                let first = if ranks.count() == 2 {
                    Vec::new()
                } else {
                    ranks.sum(&parts(count), tensors(ranks.rank(), |x| x)).wait().unwrap()
                };
                ranks
                    .sum_onto(&parts(count), first, tensors(ranks.rank(), |x| x as f32))
                    .wait()
                    .unwrap()
            });
            for (rank, own) in all.into_iter().enumerate() {
                for (k, tensor) in own.into_iter().enumerate() {
                    let long =
                        |i: usize| (0..count).fold(0.0, |sum, rank| sum + number(rank, k, i));
                    let short = |i: usize| {
                        (0..count).fold(0.0, |sum, rank| sum + f64::from(number(rank, k, i) as f32))
                    };
                    let length = if k % count == rank { LENGTHS[k] } else { 0 };
                    let expected =
                        |i: usize| if count == 2 { short(i) } else { long(i) + short(i) };
                    assert_eq!(
                        tensor,
                        (0..length).map(expected).collect::<Vec<_>>(),
                        "{count} {rank} {k}"
                    );
                }
            }
        }
    }

    #[test]
    fn integers_are_added_exactly() {
        let long = |x: f64| (x * 2f64.powi(60)) as i64;
        let short = |x: f64| (x * 2f64.powi(30)) as i32;
        let all = on(3, move |ranks| {
            let first = ranks.sum(&parts(3), tensors(ranks.rank(), long)).wait().unwrap();
            ranks.sum_onto(&parts(3), first, tensors(ranks.rank(), short)).wait().unwrap()
        });
        for (rank, own) in all.into_iter().enumerate() {
            for (k, tensor) in own.into_iter().enumerate() {
                let each = |rank: usize, i: usize| {
                    long(number(rank, k, i)) + i64::from(short(number(rank, k, i)))
                };
                let length = if k % 3 == rank { LENGTHS[k] } else { 0 };
                assert_eq!(
                    tensor,
                    (0..length)
                        .map(|i| (0..3).map(|rank| each(rank, i)).sum())
                        .collect::<Vec<i64>>(),
                    "{rank} {k}"
                );
            }
        }
    }

    #[test]
    fn parts_are_put_together() {
        for count in [1, 2, 3, 5] {
            let all = on(count, move |ranks| {
                let own = tensors(7, |x| x as f32).into_iter().enumerate();
                let own = own
                    .map(|(k, tensor)| if k % count == ranks.rank() { tensor } else { Vec::new() })
                    .collect();
                ranks.gather(&parts(count), own).wait().unwrap()
            });
            assert!(all.into_iter().all(|whole| whole == tensors(7, |x| x as f32)), "{count}");
        }
    }

    #[test]
    fn messages_reach_all_processes() {
        for count in [1, 2, 4] {
            let long = vec![7; LONGEST + 3];
            let expected = long.clone();
            let all = on(count, move |ranks| {
                let own = vec![ranks.rank() as u8; ranks.rank()];
                assert_eq!(ranks.differing(vec![1]).unwrap(), None);
                assert_eq!(
                    ranks.differing(vec![u8::from(ranks.rank() == 1)]).unwrap(),
                    (count > 1).then_some(1)
                );
                (
                    ranks.all_gather_bytes(own).unwrap(),
                    ranks
                        .first_says(if ranks.is_first() { long.clone() } else { vec![1] })
                        .unwrap(),
                )
            });
            for (gathered, first) in all {
                assert_eq!(
                    gathered,
                    (0..count).map(|rank| vec![rank as u8; rank]).collect::<Vec<_>>()
                );
                assert!(first == expected);
            }
        }
    }

    #[test]
    fn the_first_is_completed() {
        let all = on(3, |ranks| {
            let has = [&[0][..], &[1, 2], &[2], &[], &[0, 1, 2]];
            let give = |(k, who): (usize, &&[usize])| {
                if who.contains(&ranks.rank()) { vec![k as f32; 10 * k + 1] } else { Vec::new() }
            };
            ranks.complete_first(has.iter().enumerate().map(give).collect()).unwrap()
        });
        let lengths: Vec<Vec<usize>> =
            all.iter().map(|list| list.iter().map(Vec::len).collect()).collect();
        assert_eq!(lengths, [[1, 11, 21, 0, 41], [0, 11, 0, 0, 41], [0, 11, 21, 0, 41]]);
        assert!(all[0].iter().enumerate().all(|(k, tensor)| tensor.iter().all(|&x| x == k as f32)));
    }

    /// A process that ends without a word is noticed, not waited for.
    #[test]
    fn one_that_is_gone_is_noticed() {
        let mut all = threads(2).unwrap();
        drop(all.pop());
        assert!(all[0].all_gather_bytes(vec![1, 2, 3]).is_err());
    }
}
