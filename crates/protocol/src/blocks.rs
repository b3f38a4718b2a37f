//! Clip blocks: which tensors are clipped together.

/// A partition of the trainable tensors into blocks, each with its own norm and clip bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocks {
    of: Vec<usize>,
    count: usize,
}

impl Blocks {
    /// Puts all tensors into one block: flat clipping.
    pub fn flat(tensors: usize) -> Self {
        Self { of: vec![0; tensors], count: 1 }
    }

    /// Puts each tensor into a block of its own.
    pub fn each(tensors: usize) -> Self {
        Self { of: (0..tensors).collect(), count: tensors }
    }

    /// Takes the block of each tensor; `None` if blocks are not numbered from 0 without gaps.
    ///
    /// A block without tensors would be charged and release nothing.
    pub fn new(of: Vec<usize>) -> Option<Self> {
        let count = of.iter().max().map_or(0, |most| most + 1);
        let mut seen = vec![false; count.min(of.len())];
        of.iter().try_for_each(|&block| seen.get_mut(block).map(|seen| *seen = true))?;
        (seen.len() == count && seen.iter().all(|&seen| seen)).then_some(Self { of, count })
    }

    /// Returns the block of a tensor.
    pub fn of(&self, tensor: usize) -> usize {
        self.of[tensor]
    }

    /// Returns the number of blocks.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Returns the number of tensors.
    pub fn tensors(&self) -> usize {
        self.of.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_refused() {
        assert!(Blocks::new(vec![0, 1, 0, 2]).is_some_and(|b| b.count() == 3 && b.of(3) == 2));
        assert!(Blocks::new(vec![0, 2]).is_none());
        assert!(Blocks::new(vec![1]).is_none());
        assert!(Blocks::new(vec![usize::MAX - 1]).is_none());
        assert_eq!(
            Blocks::new(Vec::new()),
            Some(Blocks::flat(0)).map(|b| Blocks { count: 0, ..b })
        );
    }
}
