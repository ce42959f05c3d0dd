//! `anemone completions`: what a shell needs to complete the commands.

use std::io::Write;

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use super::Cli;
use super::output::Outcome;
use crate::error::Error;

/// Print a completion script: `anemone completions bash > /etc/bash_completion.d/anemone`.
#[derive(Args, Clone, Debug)]
pub(super) struct CompletionsArgs {
    /// Which shell
    shell: Shell,
}

pub(super) fn run(args: &CompletionsArgs) -> Outcome {
    let mut script = Vec::new(); // written in one go: the generator panics when its reader has gone
    clap_complete::generate(args.shell, &mut Cli::command(), "anemone", &mut script);
    std::io::stdout().write_all(&script).map_err(|e| Error::io("standard output", &e))
}
