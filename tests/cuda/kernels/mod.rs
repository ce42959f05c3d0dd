//! Every kernel of `kernels/ptx` through `cudarc`, against plain loops in double precision and the CPU's own rules.
//!
//! Sizes are no multiples of tiles, memory is NaN until written, comparisons fail on NaN. The tests need a
//! driver: without one they do nothing, and `kernel_runs` runs them again in a process that has the emulated one.
//! Those named `typical…` launch what most launches are, and their counters are held to `kernels/budgets.toml`.
//! `ANEMONE_TEST_REAL_DRIVER=1` runs them where there is a GPU.

mod averages;
mod device;
mod inputs;
mod log_space;
mod products;
#[path = "../../../src/backend/cpu/scaled.rs"]
#[allow(dead_code)] // the rules of scales, as the CPU has them
mod scaled;
mod sums;

use std::path::{Path, PathBuf};

/// The device; ends the test, well, in a process without a driver.
macro_rules! device_or_return {
    () => {
        match crate::kernels::device() {
            Some(device) => device,
            None => return,
        }
    };
}
pub(crate) use device_or_return;

/// Set in the processes that have a driver.
pub const INSIDE: &str = "ANEMONE_TEST_KERNELS";

/// Names another folder than `kernels/ptx`, with mistakes in it.
pub const PTX: &str = "ANEMONE_TEST_PTX";

pub fn kernels_ptx() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels/ptx")
}

fn device() -> Option<device::Device> {
    let has_driver = std::env::var_os(INSIDE).is_some() || std::env::var_os("ANEMONE_TEST_REAL_DRIVER").is_some();
    let ptx = std::env::var_os(PTX).map_or_else(kernels_ptx, PathBuf::from);
    has_driver.then(|| device::Device::new(&ptx))
}
