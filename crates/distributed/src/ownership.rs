//! Which rank owns which tensor.

use protocol::{Role, Trainable};
use std::collections::BTreeSet;
use std::sync::Arc;

/// The owner of each trainable tensor. It is the same on all ranks.
///
/// ```
/// use distributed::Ownership;
///
/// let ownership = Ownership::new(vec![0, 1, 0], vec![vec![2, 3], vec![3], vec![4]]);
/// assert!(ownership.owned_by(0).into_iter().eq([0, 2]));
/// ```
#[derive(Clone, Debug)]
pub struct Ownership {
    owners: Arc<[usize]>,
    shapes: Arc<[Vec<usize>]>,
}

impl Ownership {
    /// Takes the rank that owns each tensor, and the shapes of the tensors.
    ///
    /// # Panics
    /// If there are more owners than tensors, or fewer.
    pub fn new(owners: Vec<usize>, shapes: Vec<Vec<usize>>) -> Self {
        assert_eq!(owners.len(), shapes.len(), "one owner for each tensor");
        Self { owners: owners.into(), shapes: shapes.into() }
    }

    /// Divides tensors among ranks such that the largest total work of a rank is small.
    ///
    /// `work[k]` is the cost of tensor k in any unit. The two factors of a low-rank pair get the
    /// same owner.
    pub fn divide(tensors: &[Trainable], work: &[f64], ranks: usize) -> Self {
        let group = |(k, tensor): (usize, &Trainable)| {
            if let Role::Right(left) = tensor.role { left } else { k }
        };
        let groups: Vec<usize> = tensors.iter().enumerate().map(group).collect();
        let shapes = tensors.iter().map(|tensor| tensor.shape.clone()).collect();
        Self::new(assign(&groups, work, ranks), shapes)
    }

    /// Returns the number of tensors.
    pub fn tensors(&self) -> usize {
        self.owners.len()
    }

    /// Returns the rank that owns a tensor.
    pub fn owner(&self, tensor: usize) -> usize {
        self.owners[tensor]
    }

    /// Returns the tensors that a rank owns.
    pub fn owned_by(&self, rank: usize) -> BTreeSet<usize> {
        (0..self.tensors()).filter(|&tensor| self.owner(tensor) == rank).collect()
    }

    /// Returns the shape of a tensor.
    pub fn shape(&self, tensor: usize) -> &[usize] {
        &self.shapes[tensor]
    }

    /// Returns the number of elements of a tensor.
    pub fn elements(&self, tensor: usize) -> usize {
        self.shapes[tensor].iter().product()
    }
}

/// Assigns each group of tensors to a rank; returns the rank of each tensor.
///
/// `groups[k]` is the group of tensor k. The most expensive group is first, and each is assigned to
/// the rank with the least work so far.
fn assign(groups: &[usize], work: &[f64], ranks: usize) -> Vec<usize> {
    let count = groups.iter().max().map_or(0, |last| last + 1);
    let mut costs = vec![0.0; count];
    groups.iter().zip(work).for_each(|(&group, &work)| costs[group] += work);
    let mut order: Vec<usize> = (0..count).collect();
    order.sort_by(|&a, &b| costs[b].total_cmp(&costs[a]).then(a.cmp(&b)));
    let mut owner = vec![0; count];
    let mut total = vec![0.0f64; ranks.max(1)];
    for group in order {
        let least = (0..total.len()).min_by(|&a, &b| total[a].total_cmp(&total[b])).unwrap_or(0);
        owner[group] = least;
        total[least] += costs[group];
    }
    groups.iter().map(|&group| owner[group]).collect()
}

#[cfg(test)]
mod tests {
    use super::assign;

    #[test]
    fn work_is_divided_evenly_and_groups_stay_together() {
        let groups = [0, 1, 2, 3, 1, 4];
        let work = [10.0, 3.0, 4.0, 4.0, 3.0, 1.0];
        let owners = assign(&groups, &work, 2);
        assert_eq!(owners[1], owners[4]);
        let total = |rank| {
            let own = owners.iter().zip(work).filter(|(owner, _)| **owner == rank);
            own.map(|(_, work)| work).sum::<f64>()
        };
        assert!((total(0) - total(1)).abs() <= 3.0, "{owners:?}");
        assert_eq!(assign(&groups, &work, 1), [0; 6]);
        // More ranks than groups: some own nothing.
        assert!(assign(&[0, 1], &[1.0, 1.0], 4).iter().all(|&owner| owner < 2));
        assert!(assign(&[], &[], 3).is_empty());
    }
}
