//! Where real data sets are, if they are there.
//!
//! They are not part of the repository: they are looked for in the folder that `ANEMONE_DATA` names, or in
//! `../shared/data`. A test that finds none says so and passes.

#![allow(dead_code)] // every test file uses its part of it

use std::io::Write;
use std::path::{Path, PathBuf};

/// The folder of all data sets.
pub fn data_folder() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    std::env::var_os("ANEMONE_DATA").map_or_else(|| here.join("../shared/data"), PathBuf::from)
}

/// The folder of a data set, if it is there.
pub fn data(name: &str) -> Option<PathBuf> {
    let folder = data_folder().join(name);
    if !folder.is_dir() {
        // Not `eprintln!`, which the test runner captures: a skipped test must not look like one that ran.
        let message = format!("skipped: the data set {name} is not here; name its folder's parent in ANEMONE_DATA\n");
        let _ = std::io::stderr().write_all(message.as_bytes());
        return None;
    }
    Some(folder)
}
