//! The command line.
//!
//! Exit codes: 0 done, 1 something failed (one line on standard error says what), 2 the command was not understood.

mod demo;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Learns probabilistic circuits, exact generative models, by mini-batch EM.
#[derive(Debug, Parser)]
#[command(name = "anemone", version, about, propagate_version = true, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Demo(demo::DemoArgs),
}

/// Parses the command line, does what it says, and tells how it went.
pub fn run() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Demo(args) => demo::run(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
