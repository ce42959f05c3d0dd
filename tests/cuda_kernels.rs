//! Every kernel of `kernels/ptx` through `cudarc`, against plain loops in double precision and the CPU's own rules.
//!
//! Sizes are no multiples of tiles, memory is NaN until written, comparisons fail on NaN. Tests named `typical…` run what most launches are, and their counters
//! are held to `kernels/budgets.toml`. Whatever driver the library path leads to is used, in CI the one of `kernels/emulator`; without one, nothing is tested.

#[path = "cuda_kernels/device.rs"]
mod device;
#[path = "cuda_kernels/inputs.rs"]
mod inputs;
#[path = "cuda_kernels/log_space.rs"]
mod log_space;
#[path = "cuda_kernels/products.rs"]
mod products;
#[path = "../src/backend/cpu/scaled.rs"]
#[allow(dead_code)]
mod scaled;
#[path = "cuda_kernels/sums.rs"]
mod sums;

use std::path::Path;
use std::process::Command;

/// The device; ends the test, well, where there is no driver.
macro_rules! device_or_return {
    () => {
        match crate::device() {
            Some(device) => device,
            None => return,
        }
    };
}
pub(crate) use device_or_return;

fn device() -> Option<device::Device> {
    // SAFETY: only looks whether the library is there.
    if !unsafe { cudarc::driver::sys::is_culib_present() } {
        eprintln!("skipped: there is no CUDA driver, not even an emulated one");
        return None;
    }
    Some(device::Device::new(&Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels/ptx")))
}

#[test]
fn counters_are_within_budget() {
    // SAFETY: only looks whether the library is there.
    if !unsafe { cudarc::driver::sys::is_culib_present() } {
        return;
    }
    // Counters are written when a process ends.
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("counters.json");
    let tests = Command::new(std::env::current_exe().unwrap())
        .args(["typical", "--test-threads=1"])
        .env("ANEMONE_EMULATOR_COUNTERS", &file)
        .output()
        .unwrap();
    assert!(tests.status.success(), "{}", String::from_utf8_lossy(&tests.stdout));
    let Ok(text) = std::fs::read_to_string(&file) else {
        eprintln!("skipped: this driver does not count");
        return;
    };
    let counters: serde_json::Value = serde_json::from_str(&text).unwrap();
    let budgets = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels/budgets.toml")).unwrap();
    let budgets: toml::Table = budgets.parse().unwrap();
    let mut problems = Vec::new();
    for (name, budget) in budgets["kernel"].as_table().unwrap() {
        let Some(counted) = counters["kernels"].get(name) else {
            problems.push(format!("{name}: no typical test launches it"));
            continue;
        };
        let allowed = |what: &str| budget.get(what).unwrap_or(&budgets["default"][what]).as_float().unwrap();
        for memory in ["global_load", "global_store"] {
            let efficiency = counted[memory]["efficiency"].as_f64().unwrap();
            if !(efficiency >= allowed("sectors")) {
                problems.push(format!("{name}: {memory} uses {efficiency} of its sectors, not {}", allowed("sectors")));
            }
        }
        for memory in ["shared_load", "shared_store"] {
            let factor = counted[memory]["conflict_factor"].as_f64().unwrap();
            if !(factor <= allowed("banks")) {
                problems.push(format!(
                    "{name}: {memory} takes {factor} passes instead of one, more than {}",
                    allowed("banks")
                ));
            }
        }
        if counted["local"].as_u64() != Some(0) {
            problems.push(format!("{name}: uses local memory"));
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}
