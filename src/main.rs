//! The `anemone` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    anemone::cli::run()
}
