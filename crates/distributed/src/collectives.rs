//! Collective operations. All ranks must start the same operations in the same order.
//!
//! Sums of a tensor go to its owner, in pieces: while one piece is sent, the one before it is added
//! up. The owner adds the contributions in the order of the ranks, so that sums of floating-point
//! numbers do not depend on timing; MPI's own reductions do not promise an order. If the owners'
//! shares are equal, the cost is that of the best algorithms for long messages: every element is
//! sent once to its owner and, after it was processed, once to each other rank.

use crate::transport::{Buffer, Message, Transport};
use crate::{Error, Ownership, Pending, Ranks};
use bytemuck::{Pod, cast_slice, cast_slice_mut};
use protocol::{Params, TensorMap};
use std::ops::Range;
use tensor::Array;

/// Elements of one piece on the way to one rank.
const PIECE: usize = 1 << 20;

/// Elements that are added up at a time.
const BLOCK: usize = 1 << 12;

/// Bytes of the longest message from one rank to all.
const MAX_MESSAGE: usize = 1 << 24;

/// An element of a sum: a 64-bit integer or floating-point number.
pub trait Summand: Pod + Send + std::ops::AddAssign {}

impl Summand for i64 {}
impl Summand for f64 {}

/// Adds up a piece that this rank owns, given the piece, this rank, and the values of each rank.
type AddPiece<'a, N> = &'a mut dyn FnMut(&Piece, usize, &[Vec<N>]);

/// A part of a tensor.
#[derive(Clone, Debug)]
struct Piece {
    tensor: usize,
    range: Range<usize>,
}

/// Returns the pieces of each rank, in an order that all ranks know.
fn pieces(ownership: &Ownership, ranks: usize) -> Vec<Vec<Piece>> {
    // Each rank needs two buffers of a piece for each other rank.
    let longest = (PIECE / ranks).max(1 << 12);
    let mut pieces: Vec<Vec<Piece>> = (0..ranks).map(|_| Vec::new()).collect();
    for tensor in 0..ownership.tensors() {
        let length = ownership.elements(tensor);
        pieces[ownership.owner(tensor)].extend(
            (0..length)
                .step_by(longest)
                .map(|at| Piece { tensor, range: at..(at + longest).min(length) }),
        );
    }
    pieces
}

impl Ranks {
    /// Sums tensors over all ranks; each rank gets the sums of the tensors that it owns.
    pub fn reduce<A: Summand>(
        &self,
        ownership: &Ownership,
        mut tensors: Vec<Vec<A>>,
    ) -> Pending<TensorMap<Vec<A>>> {
        let ownership = ownership.clone();
        self.start(move |transport| {
            let mut own = take_own(&ownership, transport.rank(), &mut tensors);
            if transport.ranks() > 1 {
                send_to_owners(transport, &ownership, &tensors, &mut |piece, rank, received| {
                    let Some(own) = own.get_mut(piece.tensor) else { return };
                    let mine = &mut own[piece.range.clone()];
                    in_blocks(mine.len(), |block, sum| {
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

    /// Sums tensors over all ranks and adds the sums of the tensors that this rank owns to `onto`.
    ///
    /// Their elements may have a shorter type than those of `onto`.
    pub fn reduce_onto<A: Summand, N: Pod + Into<A> + Send>(
        &self,
        ownership: &Ownership,
        onto: TensorMap<Vec<A>>,
        mut tensors: Vec<Vec<N>>,
    ) -> Pending<TensorMap<Vec<A>>> {
        let (ownership, mut onto) = (ownership.clone(), onto);
        self.start(move |transport| {
            let rank = transport.rank();
            let own = take_own(&ownership, rank, &mut tensors);
            for (k, own) in own.iter() {
                onto.get_or_insert_with(k, || vec![A::zeroed(); own.len()]);
            }
            let mut add_piece = |piece: &Piece, rank: usize, received: &[Vec<N>]| {
                let (Some(own), Some(onto)) = (own.get(piece.tensor), onto.get_mut(piece.tensor))
                else {
                    return;
                };
                let (mine, onto) = (&own[piece.range.clone()], &mut onto[piece.range.clone()]);
                in_blocks(mine.len(), |block, sum| {
                    for (other, theirs) in received.iter().enumerate() {
                        let theirs = if other == rank { mine } else { theirs };
                        add(sum, &theirs[block.clone()]);
                    }
                    add(&mut onto[block], sum);
                });
            };
            if transport.ranks() > 1 {
                send_to_owners(transport, &ownership, &tensors, &mut add_piece)?;
            } else {
                for piece in &pieces(&ownership, 1)[0] {
                    add_piece(piece, 0, &[Vec::new()]);
                }
            }
            Ok(onto)
        })
    }

    /// Sends the tensors that each rank owns to all ranks, which get all tensors.
    pub fn all_gather(&self, ownership: &Ownership, own: TensorMap) -> Pending<Params> {
        let ownership = ownership.clone();
        self.start(move |transport| {
            let (rank, ranks) = (transport.rank(), transport.ranks());
            let mut all: Vec<Array> = Vec::with_capacity(ownership.tensors());
            let mut own = own;
            for k in 0..ownership.tensors() {
                let shape = ownership.shape(k);
                let array = if ownership.owner(k) == rank { own.remove(k) } else { None };
                all.push(array.unwrap_or_else(|| Array::zeros(shape)));
            }
            let pieces = pieces(&ownership, ranks);
            for round in 0..pieces.iter().map(Vec::len).max().unwrap_or(0) {
                let piece = pieces[rank].get(round);
                let mut sent: &[u8] = &[];
                let mut receives: Vec<Buffer<'_>> = Vec::new();
                for (k, tensor) in all.iter_mut().enumerate() {
                    let owner = ownership.owner(k);
                    match pieces[owner].get(round).filter(|piece| piece.tensor == k) {
                        None => {}
                        Some(piece) if owner == rank => {
                            sent = cast_slice(&tensor.data()[piece.range.clone()]);
                        }
                        Some(piece) => {
                            let range = piece.range.clone();
                            receives.push((owner, cast_slice_mut(&mut tensor.data_mut()[range])));
                        }
                    }
                }
                let sends: Vec<Message<'_>> = others(rank, ranks)
                    .filter(|_| piece.is_some())
                    .map(|other| (other, sent))
                    .collect();
                transport.exchange(&sends, &mut receives, &mut || ())?;
            }
            Ok(Params::new(all))
        })
    }

    /// Sends a few bytes of each rank to all ranks; returns them by rank.
    ///
    /// # Errors
    /// If a rank is lost.
    pub fn all_gather_bytes(&self, own: Vec<u8>) -> Result<Vec<Vec<u8>>, Error> {
        self.start(move |transport| all_gather_bytes(transport, own)).wait()
    }

    /// Returns the first rank whose bytes differ from those of rank 0; the same on all ranks.
    ///
    /// # Errors
    /// If a rank is lost.
    pub fn first_difference(&self, own: Vec<u8>) -> Result<Option<usize>, Error> {
        let all = self.all_gather_bytes(own)?;
        Ok(all.iter().position(|theirs| *theirs != all[0]))
    }

    /// Returns the bytes of rank 0 on all ranks. The bytes of other ranks are ignored.
    ///
    /// # Errors
    /// If a rank is lost.
    pub fn broadcast(&self, own: Vec<u8>) -> Result<Vec<u8>, Error> {
        let job = move |transport: &mut dyn Transport| {
            let (rank, mut own) = (transport.rank(), own);
            let mut length = (own.len() as u64).to_le_bytes();
            from_first(transport, &mut length)?;
            if rank > 0 {
                own.resize(u64::from_le_bytes(length) as usize, 0);
            }
            own.chunks_mut(MAX_MESSAGE).try_for_each(|piece| from_first(transport, piece))?;
            Ok(own)
        };
        self.start(job).wait()
    }

    /// Sends arrays from other ranks to rank 0, in the order given.
    ///
    /// `sent[rank]` has the shapes of the arrays that a rank sends, and is the same on all ranks.
    /// `own` has the arrays that this rank sends. Rank 0 gets the arrays by rank; other ranks get
    /// empty lists.
    ///
    /// # Errors
    /// If a rank is lost.
    pub fn gather_to_first(
        &self,
        sent: Vec<Vec<Vec<usize>>>,
        own: Vec<Array>,
    ) -> Result<Vec<Vec<Array>>, Error> {
        let job = move |transport: &mut dyn Transport| {
            let this = transport.rank();
            let mut received: Vec<Vec<Array>> = vec![Vec::new(); sent.len()];
            for (rank, shapes) in sent.iter().enumerate().skip(1) {
                for (index, shape) in shapes.iter().enumerate() {
                    if this == 0 {
                        let mut array = Array::zeros(shape.clone());
                        for piece in array.data_mut().chunks_mut(MAX_MESSAGE / 4) {
                            let buffer = (rank, cast_slice_mut(piece));
                            transport.exchange(&[], &mut [buffer], &mut || ())?;
                        }
                        received[rank].push(array);
                    } else if this == rank {
                        for piece in own[index].data().chunks(MAX_MESSAGE / 4) {
                            let message = (0, cast_slice(piece));
                            transport.exchange(&[message], &mut [], &mut || ())?;
                        }
                    }
                }
            }
            Ok(received)
        };
        self.start(job).wait()
    }
}

/// Iterates over all ranks except this one.
fn others(rank: usize, ranks: usize) -> impl Iterator<Item = usize> {
    (0..ranks).filter(move |&other| other != rank)
}

/// Takes the tensors that a rank owns.
fn take_own<N>(ownership: &Ownership, rank: usize, tensors: &mut [Vec<N>]) -> TensorMap<Vec<N>> {
    let own = tensors.iter_mut().enumerate().filter(|(k, _)| ownership.owner(*k) == rank);
    own.map(|(k, tensor)| (k, std::mem::take(tensor))).collect()
}

/// Sends pieces to their owners, and calls `add_piece` for each piece of this rank.
fn send_to_owners<N: Pod>(
    transport: &mut dyn Transport,
    ownership: &Ownership,
    tensors: &[Vec<N>],
    add_piece: AddPiece<'_, N>,
) -> Result<(), Error> {
    let (rank, ranks) = (transport.rank(), transport.ranks());
    let pieces = pieces(ownership, ranks);
    let rounds = pieces.iter().map(Vec::len).max().unwrap_or(0);
    let longest = pieces[rank].iter().map(|piece| piece.range.len()).max().unwrap_or(0);
    let buffers = || {
        (0..ranks)
            .map(|other| vec![N::zeroed(); if other == rank { 0 } else { longest }])
            .collect::<Vec<_>>()
    };
    let (mut now, mut before) = (buffers(), buffers());
    for round in 0..=rounds {
        let to = |other: usize| {
            pieces[other]
                .get(round)
                .map(|piece| (other, cast_slice(&tensors[piece.tensor][piece.range.clone()])))
        };
        let sends: Vec<Message<'_>> = others(rank, ranks).filter_map(to).collect();
        let length = pieces[rank].get(round).map_or(0, |piece| piece.range.len());
        let buffers = now.iter_mut().enumerate().filter(|(other, _)| *other != rank && length > 0);
        let mut receives: Vec<Buffer<'_>> =
            buffers.map(|(other, buffer)| (other, cast_slice_mut(&mut buffer[..length]))).collect();
        let previous = round.checked_sub(1).and_then(|round| pieces[rank].get(round));
        transport.exchange(&sends, &mut receives, &mut || {
            if let Some(piece) = previous {
                add_piece(piece, rank, &before);
            }
        })?;
        std::mem::swap(&mut now, &mut before);
    }
    Ok(())
}

/// Calls `sum` with each block of a range and a buffer of zeros to sum in.
fn in_blocks<A: Summand>(length: usize, mut sum: impl FnMut(Range<usize>, &mut [A])) {
    let mut buffer = [A::zeroed(); BLOCK];
    for at in (0..length).step_by(BLOCK) {
        let block = at..(at + BLOCK).min(length);
        let buffer = &mut buffer[..block.len()];
        buffer.fill(A::zeroed());
        sum(block, buffer);
    }
}

/// Adds values to sums.
fn add<A: Summand, N: Copy + Into<A>>(sum: &mut [A], values: &[N]) {
    sum.iter_mut().zip(values).for_each(|(sum, &value)| *sum += value.into());
}

/// Sends the bytes of this rank to all others and returns those of all ranks.
fn all_gather_bytes(transport: &mut dyn Transport, own: Vec<u8>) -> Result<Vec<Vec<u8>>, Error> {
    let (rank, ranks) = (transport.rank(), transport.ranks());
    let mut lengths = vec![[0; 8]; ranks];
    lengths[rank] = (own.len() as u64).to_le_bytes();
    all_gather_into(transport, &mut lengths)?;
    let mut all: Vec<Vec<u8>> =
        lengths.iter().map(|length| vec![0; u64::from_le_bytes(*length) as usize]).collect();
    all[rank] = own;
    all_gather_into(transport, &mut all)?;
    Ok(all)
}

/// Sends `all[rank]` of this rank to all others and fills the rest of `all` with theirs.
fn all_gather_into(
    transport: &mut dyn Transport,
    all: &mut [impl AsRef<[u8]> + AsMut<[u8]>],
) -> Result<(), Error> {
    let (rank, ranks) = (transport.rank(), transport.ranks());
    let own = all[rank].as_ref().to_vec();
    let sends: Vec<Message<'_>> = others(rank, ranks).map(|other| (other, &own[..])).collect();
    let mut receives: Vec<Buffer<'_>> = all
        .iter_mut()
        .enumerate()
        .filter(|(other, _)| *other != rank)
        .map(|(other, bytes)| (other, bytes.as_mut()))
        .collect();
    transport.exchange(&sends, &mut receives, &mut || ())
}

/// Overwrites the bytes of all ranks with those of rank 0.
fn from_first(transport: &mut dyn Transport, bytes: &mut [u8]) -> Result<(), Error> {
    if transport.rank() > 0 {
        return transport.exchange(&[], &mut [(0, bytes)], &mut || ());
    }
    let sends: Vec<Message<'_>> = (1..transport.ranks()).map(|other| (other, &*bytes)).collect();
    transport.exchange(&sends, &mut [], &mut || ())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::threads;
    use std::sync::Arc;

    /// Runs `work` on `count` threads that act as ranks.
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

    const LENGTHS: [usize; 5] = [3, 0, PIECE + 17, 5, 2 * PIECE / 3];

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

    fn ownership(count: usize) -> Ownership {
        let owners = (0..LENGTHS.len()).map(|k| k % count).collect();
        Ownership::new(owners, LENGTHS.iter().map(|&length| vec![length]).collect())
    }

    /// Checks that a rank has the expected sums of the tensors that it owns, and no others.
    fn check_own<A: Summand + PartialEq + std::fmt::Debug>(
        count: usize,
        rank: usize,
        own: &TensorMap<Vec<A>>,
        expected: impl Fn(usize, usize) -> A,
    ) {
        assert!(own.indices().eq((0..LENGTHS.len()).filter(|k| k % count == rank)));
        for (k, tensor) in own.iter() {
            let expected: Vec<A> = (0..LENGTHS[k]).map(|i| expected(k, i)).collect();
            assert!(*tensor == expected, "tensor {k} of rank {rank} of {count}");
        }
    }

    #[test]
    fn owners_add_sums_in_the_order_of_ranks() {
        for count in [1, 2, 3, 4] {
            let all = on(count, move |ranks| {
                ranks.reduce(&ownership(count), tensors(ranks.rank(), |x| x)).wait().unwrap()
            });
            for (rank, own) in all.iter().enumerate() {
                check_own(count, rank, own, |k, i| {
                    (0..count).fold(0.0, |sum, rank| sum + number(rank, k, i))
                });
            }
        }
    }

    #[test]
    fn shorter_elements_are_added_to_longer_ones() {
        for count in [1, 2, 3] {
            let all = on(count, move |ranks| {
                let first = if ranks.count() == 2 {
                    TensorMap::new()
                } else {
                    ranks.reduce(&ownership(count), tensors(ranks.rank(), |x| x)).wait().unwrap()
                };
                ranks
                    .reduce_onto(&ownership(count), first, tensors(ranks.rank(), |x| x as f32))
                    .wait()
                    .unwrap()
            });
            for (rank, own) in all.iter().enumerate() {
                check_own(count, rank, own, |k, i| {
                    let sum = |of: fn(f64) -> f64| {
                        (0..count).fold(0.0, |sum, rank| sum + of(number(rank, k, i)))
                    };
                    let short = sum(|x| f64::from(x as f32));
                    if count == 2 { short } else { sum(|x| x) + short }
                });
            }
        }
    }

    #[test]
    fn integers_are_added_exactly() {
        let long = |x: f64| (x * 2f64.powi(60)) as i64;
        let short = |x: f64| (x * 2f64.powi(30)) as i32;
        let all = on(3, move |ranks| {
            let first = ranks.reduce(&ownership(3), tensors(ranks.rank(), long)).wait().unwrap();
            ranks.reduce_onto(&ownership(3), first, tensors(ranks.rank(), short)).wait().unwrap()
        });
        for (rank, own) in all.iter().enumerate() {
            check_own(3, rank, own, |k, i| {
                let each =
                    |rank: usize| long(number(rank, k, i)) + i64::from(short(number(rank, k, i)));
                (0..3).map(each).sum()
            });
        }
    }

    #[test]
    fn all_ranks_get_all_tensors() {
        let whole = || {
            let tensors = tensors(7, |x| x as f32).into_iter();
            Params::new(tensors.map(|x| Array::new([x.len()], x).unwrap()).collect())
        };
        for count in [1, 2, 3, 5] {
            let all = on(count, move |ranks| {
                let mut own = TensorMap::from(whole());
                own.retain(|k| k % count == ranks.rank());
                ranks.all_gather(&ownership(count), own).wait().unwrap()
            });
            assert!(all.into_iter().all(|gathered| gathered == whole()), "{count}");
        }
    }

    #[test]
    fn messages_reach_all_processes() {
        for count in [1, 2, 4] {
            let long = vec![7; MAX_MESSAGE + 3];
            let expected = long.clone();
            let all = on(count, move |ranks| {
                let own = vec![ranks.rank() as u8; ranks.rank()];
                assert_eq!(ranks.first_difference(vec![1]).unwrap(), None);
                assert_eq!(
                    ranks.first_difference(vec![u8::from(ranks.rank() == 1)]).unwrap(),
                    (count > 1).then_some(1)
                );
                (
                    ranks.all_gather_bytes(own).unwrap(),
                    ranks.broadcast(if ranks.is_first() { long.clone() } else { vec![1] }).unwrap(),
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
    fn arrays_reach_rank_0() {
        let shapes = [vec![], vec![vec![2, 3], vec![0]], vec![vec![MAX_MESSAGE / 4 + 3]]];
        let array = |rank: usize, shape: &Vec<usize>| {
            Array::from_fn(shape.clone(), |i| (rank * 1000 + i % 997) as f32)
        };
        let arrays = move |shapes: &[Vec<Vec<usize>>], rank: usize| {
            shapes[rank].iter().map(|shape| array(rank, shape)).collect::<Vec<_>>()
        };
        let sent = shapes.to_vec();
        let all = on(3, move |ranks| {
            ranks.gather_to_first(sent.clone(), arrays(&sent, ranks.rank())).unwrap()
        });
        for (rank, received) in all.iter().enumerate() {
            for (from, received) in received.iter().enumerate() {
                let expected = if rank == 0 { arrays(&shapes, from) } else { Vec::new() };
                assert!(*received == expected, "from {from} to {rank}");
            }
        }
    }

    /// A rank that ends without a message is an error, not waited for.
    #[test]
    fn a_lost_rank_is_an_error() {
        let mut all = threads(2).unwrap();
        drop(all.pop());
        assert!(all[0].all_gather_bytes(vec![1, 2, 3]).is_err());
    }
}
