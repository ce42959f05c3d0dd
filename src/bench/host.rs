//! What the machine says about itself, where it does: Linux, in `/proc`.

use std::fs;

use serde::Serialize;

use crate::machine_memory::peak_memory;

/// The machine behind a measurement. What it does not tell is left out.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Host {
    /// The most memory that the process had since [`reset_peak_memory`], in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peak_memory_bytes: Option<u64>,
    /// Tasks that ran or wanted to, over the last 1, 5 and 15 minutes: more than threads, and others were measured too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub load_average: Option<[f64; 3]>,
    /// The processor's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<String>,
}

impl Host {
    /// Looks now.
    pub fn look() -> Self {
        let read = |path: &str| fs::read_to_string(path).ok();
        Self {
            peak_memory_bytes: peak_memory(),
            load_average: read("/proc/loadavg").and_then(|text| load_average(&text)),
            cpu: read("/proc/cpuinfo").and_then(|text| cpu_name(&text)),
        }
    }
}

/// Resets the peak, so that a line does not show the memory of the one before it. Where the system does not allow it,
/// the peak stays that of the whole process.
pub fn reset_peak_memory() {
    let _refused = fs::write("/proc/self/clear_refs", "5");
}

fn load_average(text: &str) -> Option<[f64; 3]> {
    let numbers: Vec<f64> = text.split_whitespace().take(3).map_while(|number| number.parse().ok()).collect();
    numbers.try_into().ok()
}

fn cpu_name(text: &str) -> Option<String> {
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    line.split_once(':').map(|(_, name)| name.trim().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_linux_writes_is_read_and_what_it_does_not_write_is_none() {
        assert_eq!(load_average("0.50 1.25 2.00 3/99 12345\n"), Some([0.5, 1.25, 2.0]));
        assert_eq!(cpu_name("processor\t: 0\nmodel name\t: Some CPU: 3 GHz\n").as_deref(), Some("Some CPU: 3 GHz"));
        assert_eq!((load_average("1 2"), cpu_name("processor : 0")), (None, None));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn memory_that_was_used_is_in_the_peak() {
        let bytes = std::hint::black_box(vec![1u8; 40 << 20]);
        let peak = Host::look().peak_memory_bytes.unwrap();
        assert!(peak > 40 << 20, "{peak} with {} in use", bytes.len());
    }
}
