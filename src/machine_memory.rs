//! What the system says about memory, where it does: Linux, in `/proc`.

use std::fs;

/// Bytes that this machine has.
pub(crate) fn memory_of_this_machine() -> Option<u64> {
    bytes_of(&fs::read_to_string("/proc/meminfo").ok()?, "MemTotal:")
}

/// The most bytes that this process had, since it began or since the peak was reset.
pub(crate) fn peak_memory() -> Option<u64> {
    bytes_of(&fs::read_to_string("/proc/self/status").ok()?, "VmHWM:")
}

/// What stands behind a name: `VmHWM:     20 kB`.
fn bytes_of(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_by_their_name() {
        let status = "Name:\tx\nVmHWM:\t   20 kB\nVmRSS:\t 10 kB\n";
        assert_eq!((bytes_of(status, "VmHWM:"), bytes_of(status, "VmRSS:")), (Some(20480), Some(10240)));
        assert_eq!((bytes_of(status, "Name:"), bytes_of("Name: x", "VmHWM:")), (None, None));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_process_has_less_than_its_machine() {
        assert!(peak_memory().unwrap() < memory_of_this_machine().unwrap());
    }
}
