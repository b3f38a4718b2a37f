//! How much memory there is.

use std::fs;

/// Free memory in bytes, as far as the system says so: of the machine, or of the group of processes
/// that this one is in, whichever has less.
pub fn available() -> Option<u64> {
    let read = |path: &str| fs::read_to_string(path).ok();
    let machine = read("/proc/meminfo").and_then(|text| of_machine(&text));
    let group = [
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
    .find_map(|(limit, used, stat)| of_group(&read(limit)?, &read(used)?, &read(stat)?));
    machine.into_iter().chain(group).min()
}

/// Whether so many bytes can be had now. They are given back at once: that they are still there a
/// moment later is likely, not certain.
pub fn can_allocate(bytes: usize) -> bool {
    let asked = bytes as u64;
    // Systems promise more than they have: what is free is asked first, then the promise.
    available().is_none_or(|free| asked <= free)
        && Vec::<u8>::new().try_reserve_exact(bytes).is_ok()
}

fn of_machine(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().trim_end_matches("kB").trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Files that the system keeps in memory as long as nobody needs it do not count as used. No limit
/// is written as "max", or as a number beyond all memory.
fn of_group(limit: &str, used: &str, stat: &str) -> Option<u64> {
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
    fn what_systems_say_is_understood() {
        assert_eq!(
            of_machine("MemTotal:  24681536 kB\nMemFree: 1 kB\nMemAvailable:   20 kB\n"),
            Some(20 * 1024)
        );
        assert_eq!(of_machine("MemTotal: 5 kB"), None);
        assert_eq!(of_group("1000\n", "700\n", "anon 300\ninactive_file 200\nslab 1"), Some(500));
        assert_eq!(of_group("max\n", "700\n", ""), None);
        assert_eq!(of_group("100", "700", ""), Some(0));
    }

    #[test]
    fn there_is_room_for_little_and_not_for_everything() {
        assert!(can_allocate(1 << 16));
        assert!(!can_allocate(usize::MAX / 2));
        assert!(!can_allocate(usize::MAX));
    }
}
