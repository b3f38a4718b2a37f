//! Which process works on which tensor.

/// Gives each group of tensors to a process, so that the most that one has to do is small: the most
/// expensive group first, each to the process that has least. A group, such as the two factors of a pair,
/// stays together. The same on every process.
///
/// `groups[k]` is the group of tensor k, `work[k]` what it costs.
pub fn share(groups: &[usize], work: &[f64], ranks: usize) -> Vec<usize> {
    let count = groups.iter().max().map_or(0, |last| last + 1);
    let mut costs = vec![0.0; count];
    groups.iter().zip(work).for_each(|(&group, &work)| costs[group] += work);
    let mut order: Vec<usize> = (0..count).collect();
    order.sort_by(|&a, &b| costs[b].total_cmp(&costs[a]).then(a.cmp(&b)));
    let mut owner = vec![0; count];
    let mut busy = vec![0.0f64; ranks.max(1)];
    for group in order {
        let least = (0..busy.len()).min_by(|&a, &b| busy[a].total_cmp(&busy[b])).unwrap_or(0);
        owner[group] = least;
        busy[least] += costs[group];
    }
    groups.iter().map(|&group| owner[group]).collect()
}

#[cfg(test)]
mod tests {
    use super::share;

    #[test]
    fn work_is_divided_evenly_and_groups_stay_together() {
        let groups = [0, 1, 2, 3, 1, 4];
        let work = [10.0, 3.0, 4.0, 4.0, 3.0, 1.0];
        let owners = share(&groups, &work, 2);
        assert_eq!(owners[1], owners[4]);
        let busy = |rank| {
            owners
                .iter()
                .zip(work)
                .filter(|(owner, _)| **owner == rank)
                .map(|(_, work)| work)
                .sum::<f64>()
        };
        assert!((busy(0) - busy(1)).abs() <= 3.0, "{owners:?}");
        assert_eq!(share(&groups, &work, 1), [0; 6]);
        // More processes than groups: some have nothing.
        assert!(share(&[0, 1], &[1.0, 1.0], 4).iter().all(|&owner| owner < 2));
        assert!(share(&[], &[], 3).is_empty());
    }
}
