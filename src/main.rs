//! The `anemone` command.

use std::process::ExitCode;

/// The system's, and a sentence where it has no more.
#[global_allocator]
static MEMORY: anemone::cli::SystemMemory = anemone::cli::SystemMemory;

fn main() -> ExitCode {
    anemone::cli::run()
}
