//! Available memory.

use std::fs;

/// Returns the free memory in bytes: the smaller of that of the machine and of the cgroup.
///
/// `None` if the system does not report it.
pub fn available() -> Option<u64> {
    let read = |path: &str| fs::read_to_string(path).ok();
    let machine = read("/proc/meminfo").and_then(|text| of_machine(&text));
    let cgroup = [
        (
            "/sys/fs/cgroup/memory.max",
            "/sys/fs/cgroup/memory.current",
            "/sys/fs/cgroup/memory.stat",
        ),
        (
            "/sys/fs/cgroup/memory/memory.limit_in_bytes",
            "/sys/fs/cgroup/memory/memory.usage_in_bytes",
            "/sys/fs/cgroup/memory/memory.stat",
        ),
    ]
    .into_iter()
    .find_map(|(limit, used, stat)| of_cgroup(&read(limit)?, &read(used)?, &read(stat)?));
    machine.into_iter().chain(cgroup).min()
}

/// Returns whether this many bytes can be allocated now.
///
/// They are released at once, so a later allocation may still fail.
pub fn can_allocate(bytes: usize) -> bool {
    // Systems overcommit: the free memory is checked first, then an allocation is tried.
    available().is_none_or(|free| bytes as u64 <= free)
        && Vec::<u8>::new().try_reserve_exact(bytes).is_ok()
}

fn of_machine(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().trim_end_matches("kB").trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Returns the free memory of a cgroup; `None` without a limit.
///
/// Inactive cached files do not count as used. No limit is written as "max", or as a huge number.
fn of_cgroup(limit: &str, used: &str, stat: &str) -> Option<u64> {
    let limit: u64 = limit.trim().parse().ok()?;
    let used: u64 = used.trim().parse().ok()?;
    let files = stat
        .lines()
        .find_map(|line| line.strip_prefix("inactive_file "))
        .and_then(|n| n.trim().parse::<u64>().ok())
        .unwrap_or(0);
    Some(limit.saturating_sub(used.saturating_sub(files)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_reports_are_parsed() {
        assert_eq!(
            of_machine("MemTotal:  24681536 kB\nMemFree: 1 kB\nMemAvailable:   20 kB\n"),
            Some(20 * 1024)
        );
        assert_eq!(of_machine("MemTotal: 5 kB"), None);
        assert_eq!(of_cgroup("1000\n", "700\n", "anon 300\ninactive_file 200\nslab 1"), Some(500));
        assert_eq!(of_cgroup("max\n", "700\n", ""), None);
        assert_eq!(of_cgroup("100", "700", ""), Some(0));
    }

    #[test]
    fn small_allocations_are_possible_and_huge_ones_are_not() {
        assert!(can_allocate(1 << 16));
        assert!(!can_allocate(usize::MAX / 2));
        assert!(!can_allocate(usize::MAX));
    }
}
