//! The command line.
//!
//! | exit code | meaning |
//! |---|---|
//! | 0 | done; also after SIGINT or SIGTERM, with a checkpoint written |
//! | 1 | it failed on the way: a disk, memory, a device, a likelihood that is not a number |
//! | 2 | not understood, or not possible: a flag, a pipeline file, a missing or wrong path, a size beyond any machine |
//! | 3 | the contents of data, of a model or of a checkpoint are bad: damaged, or out of range |
//! | 4 | a run was not resumed: the checkpoint is of another one, or checkpoints exist and `--resume` was not given |
//! | 130, 143 | a second SIGINT or SIGTERM, at once |
//!
//! The code follows from the kind of the error alone (`output.rs`); one line on standard error says what and where.
//! Results go to standard output, everything else to standard error. One file per command.

#![allow(rustdoc::invalid_html_tags)] // comments on arguments are help on a terminal: `<name>` is no tag

mod answers;
mod bench;
mod bench_table;
mod check;
mod columns;
mod compare;
mod completions;
mod constraint;
mod demo;
mod eval;
mod exchange;
mod inpaint;
mod inspect;
mod join;
mod keys;
mod mask;
mod model_path;
mod no_memory;
mod output;
mod pipeline_args;
mod report;
mod row_lines;
mod rows_args;
mod sample;
mod service;
mod sink;
mod steps;
mod table_args;
mod tokenize;
mod train;
mod understood;
mod view;
mod words;

pub use no_memory::SystemMemory;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::error::{Error, Result};
use crate::pipeline::stop::survive_file_limits;

const EXIT_CODES: &str = "Exit codes: 0 done (also after SIGINT or SIGTERM, with a checkpoint written), 1 \
                          failed (disk, memory, device), 2 not understood or not possible (flags, pipeline files, \
                          paths, sizes), 3 bad contents of data, a model or a checkpoint, 4 not resumed, 130 or 143 \
                          after a second signal";

/// Learns probabilistic circuits, exact generative models, by mini-batch EM.
#[derive(Debug, Parser)]
#[command(name = "anemone", version, about, propagate_version = true, arg_required_else_help = true)]
#[command(after_help = EXIT_CODES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Train(Box<train::TrainArgs>),
    Check(check::CheckArgs),
    Eval(eval::EvalArgs),
    Inspect(inspect::InspectArgs),
    Sample(Box<sample::SampleArgs>),
    Inpaint(Box<inpaint::InpaintArgs>),
    Score(Box<answers::ScoreArgs>),
    Marginals(Box<answers::MarginalsArgs>),
    Impute(Box<answers::ImputeArgs>),
    Mpe(Box<answers::MpeArgs>),
    Tokenize(tokenize::TokenizeArgs),
    Export(exchange::ExportArgs),
    Import(exchange::ImportArgs),
    Bench(Box<bench::BenchArgs>),
    Compare(Box<compare::CompareArgs>),
    Keys(keys::KeysArgs),
    Completions(completions::CompletionsArgs),
    Demo(demo::DemoArgs),
}

/// Parses the command line, does what it says, and tells how it went.
pub fn run() -> ExitCode {
    no_memory::say_so();
    let outcome = match Cli::parse().command {
        Command::Train(args) => train::run(&args),
        Command::Check(args) => check::run(&args),
        Command::Eval(args) => eval::run(&args),
        Command::Inspect(args) => inspect::run(&args),
        Command::Sample(args) => sample::run(&args),
        Command::Inpaint(args) => inpaint::run(&args),
        Command::Score(args) => answers::score(&args),
        Command::Marginals(args) => answers::marginals(&args),
        Command::Impute(args) => answers::impute(&args),
        Command::Mpe(args) => answers::mpe(&args),
        Command::Tokenize(args) => tokenize::run(&args),
        Command::Export(args) => exchange::export(&args),
        Command::Import(args) => exchange::import(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Compare(args) => compare::run(&args),
        Command::Keys(args) => keys::run(&args),
        Command::Completions(args) => completions::run(&args),
        Command::Demo(args) => demo::run(&args),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => output::report_failure(&error),
    }
}

/// What waits for bytes, signals and requests while others work.
fn runtime() -> Result<tokio::runtime::Runtime> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().thread_name("anemone-io").build();
    let runtime = runtime.map_err(|e| Error::io("cannot start threads", &e))?;
    let inside = runtime.enter();
    survive_file_limits();
    drop(inside);
    Ok(runtime)
}
