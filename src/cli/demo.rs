//! `anemone demo`: a newcomer sees that it learns, and that anemone gets there in fewer epochs.
//!
//! A random HMM makes the data, so the best log-likelihood anyone can reach is known: the source's own. Anemone and
//! full-batch EM then learn a larger HMM from the same start on the same batches.

use std::io::IsTerminal;
use std::sync::Arc;
use std::time::Instant;

use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::json;

use super::output::{say, say_json};
use crate::backend::Backend;
use crate::backend::cpu::{CpuBackend, CpuOptions};
use crate::circuit::{Categorical, Circuit, Params};
use crate::data::Batch;
use crate::error::{Error, Result};
use crate::optim::{AnemoneSpec, FullBatchEmSpec, OptimizerSpec};
use crate::query::sample;
use crate::rng::Rng;
use crate::structure::hmm;

/// Learn a hidden Markov model from data whose source is known, with anemone and with full-batch EM.
#[derive(Args, Clone, Debug)]
pub(super) struct DemoArgs {
    /// Passes over the training rows
    #[arg(long, default_value_t = 24, value_parser = clap::value_parser!(u32).range(1..))]
    epochs: u32,
    /// Hidden states of the model that learns
    #[arg(long, default_value_t = 16)]
    latents: usize,
    /// Rows to learn from; a quarter as many are held out
    #[arg(long, default_value_t = 8192)]
    rows: usize,
    /// Rows in a mini-batch
    #[arg(long, default_value_t = 128)]
    batch_rows: usize,
    /// Symbols in a row
    #[arg(long, default_value_t = 32)]
    length: usize,
    /// Different symbols
    #[arg(long, default_value_t = 24)]
    cats: u32,
    /// Seed of the source, the data and the start
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Worker threads (all cores if left out); the numbers do not depend on it
    #[arg(long)]
    threads: Option<usize>,
    /// One JSON object a line instead of text
    #[arg(long)]
    json: bool,
}

/// Hidden states of the source.
const SOURCE_STATES: usize = 12;

/// Spread of the source's log-probabilities: large, so that there is something to learn.
const SOURCE_PERTURBATION: f64 = 20.0;

/// "There": this part of the way from independent symbols to the source.
const CLOSE: f64 = 0.95;

pub(super) fn run(args: &DemoArgs) -> Result<()> {
    for (name, value) in [("--rows", args.rows), ("--batch-rows", args.batch_rows)] {
        if value == 0 {
            return Err(Error::option(format!("{name} = 0: must be at least 1")));
        }
    }
    let problem = Problem::new(args)?;
    problem.announce(args)?;
    let optimizers =
        [OptimizerSpec::Anemone(AnemoneSpec::default()), OptimizerSpec::FullBatchEm(FullBatchEmSpec::default())];
    let mut curves = Vec::new();
    for spec in &optimizers {
        curves.push(problem.learn(spec, args)?);
    }
    if args.json { Ok(()) } else { say(problem.report(&curves)) }
}

/// The data and what is known about its source.
struct Problem {
    model: Arc<Circuit>,
    train: Batch,
    held_out: Batch,
    /// −log p of the held-out rows under the source, nats per symbol: no model does better on average.
    entropy_rate: f64,
    /// The same under independent symbols with the training rows' frequencies: what one starts from.
    independent: f64,
}

/// One optimizer's held-out nats per symbol, before the first epoch and after each.
struct Curve {
    optimizer: &'static str,
    nats: Vec<f64>,
    seconds: f64,
}

impl Problem {
    fn new(args: &DemoArgs) -> Result<Self> {
        let symbols = Categorical::new(args.cats)?;
        let source = Arc::new(hmm(args.length, SOURCE_STATES, symbols.clone())?);
        let truth = Params::random(&source, args.seed, SOURCE_PERTURBATION)?;
        let mut rng = Rng::stream(args.seed, 1 << 32);
        let train = sample(&source, &truth, args.rows, &mut rng)?;
        let held_out = sample(&source, &truth, args.rows.div_ceil(4), &mut rng)?;
        let mut evaluator = CpuBackend::new(source, &truth, &cpu_options(args))?;
        Ok(Self {
            entropy_rate: nats_per_symbol(&mut evaluator, &held_out)?,
            independent: independent_nats(&train, &held_out, args.cats as usize),
            model: Arc::new(hmm(args.length, args.latents, symbols)?),
            train,
            held_out,
        })
    }

    fn announce(&self, args: &DemoArgs) -> Result<()> {
        let (entropy, independent) = (self.entropy_rate, self.independent);
        if args.json {
            return say_json(json!({"source_nats_per_symbol": entropy, "independent_nats_per_symbol": independent}));
        }
        let (rows, length, cats, held_out) = (args.rows, args.length, args.cats, self.held_out.num_rows());
        let (states, parameters) = (args.latents, self.model.layout().num_values());
        say(format_args!(
            "data     {rows} rows of {length} symbols out of {cats}, made by a random HMM with {SOURCE_STATES} states; \
             {held_out} more held out\n\
             model    HMM with {states} states, {parameters} parameters\n\
             source   {entropy:.4} nats per symbol: its entropy rate, the best anyone can do\n\
             start    {independent:.4} nats per symbol: symbols by their frequencies alone\n"
        ))
    }

    /// Learns from the start, for all epochs.
    fn learn(&self, spec: &OptimizerSpec, args: &DemoArgs) -> Result<Curve> {
        let start = Params::random(&self.model, args.seed.wrapping_add(1), 2.0)?;
        let mut backend = CpuBackend::new(self.model.clone(), &start, &cpu_options(args))?;
        let mut optimizer = spec.build(&mut backend)?;
        let batches: Vec<Batch> = self.train.chunks(args.batch_rows).collect();
        let bar = progress_bar(optimizer.name(), args, batches.len());
        let mut nats = vec![nats_per_symbol(&mut backend, &self.held_out)?];
        let mut seconds = 0.0;
        for epoch in 1..=args.epochs {
            let clock = Instant::now();
            for batch in &batches {
                optimizer.learn(&mut backend, batch)?;
                bar.inc(1);
            }
            optimizer.end_epoch(&mut backend)?;
            seconds += clock.elapsed().as_secs_f64();
            let here = nats_per_symbol(&mut backend, &self.held_out)?;
            bar.set_message(format!("epoch {epoch:>3}  held out {here:.4} nats per symbol"));
            if args.json {
                let line =
                    json!({"optimizer": optimizer.name(), "epoch": epoch, "nats_per_symbol": here, "seconds": seconds});
                say_json(line)?;
            }
            nats.push(here);
        }
        bar.finish_and_clear();
        Ok(Curve { optimizer: optimizer.name(), nats, seconds })
    }

    /// The curves side by side, and what came of them.
    fn report(&self, curves: &[Curve]) -> String {
        let names: Vec<String> = curves.iter().map(|c| c.optimizer.replace('_', "-")).collect();
        let mut lines = vec!["held out, nats per symbol above the source (shorter bars are better)\n".to_string()];
        let header: String = names.iter().map(|name| format!("   {name:<40}")).collect();
        lines.push(format!("epoch{header}"));
        let above = |curve: &Curve, epoch: usize| curve.nats[epoch] - self.entropy_rate;
        let top = curves.iter().map(|c| above(c, 0)).fold(f64::MIN_POSITIVE, f64::max);
        for epoch in 0..curves[0].nats.len() {
            let cell = |curve| format!("   {:>8.4} {:<31}", above(curve, epoch), bar(above(curve, epoch) / top, 30));
            lines.push(format!("{epoch:>5}{}", curves.iter().map(cell).collect::<String>()));
        }
        lines.push(String::new());
        let close = self.independent - CLOSE * (self.independent - self.entropy_rate);
        for (name, curve) in names.iter().zip(curves) {
            let epochs = curve.nats.len() - 1;
            let gap = format!("{:.0} % of the gap to the source", 100.0 * CLOSE);
            let when = match curve.nats.iter().position(|&n| n <= close) {
                Some(epoch) => format!("closes {gap} in {epoch} epochs"),
                None => format!("does not close {gap} in {epochs} epochs"),
            };
            let (last, seconds) = (curve.nats[epochs], curve.seconds);
            lines.push(format!("{name:<14} {when}; ends at {last:.4} nats per symbol ({seconds:.1} s)"));
        }
        lines.iter().map(|line| line.trim_end().to_string()).collect::<Vec<_>>().join("\n")
    }
}

fn cpu_options(args: &DemoArgs) -> CpuOptions {
    CpuOptions { threads: args.threads, ..CpuOptions::default() }
}

/// Mean −log p per symbol.
fn nats_per_symbol(backend: &mut dyn Backend, batch: &Batch) -> Result<f64> {
    let lls = backend.log_likelihoods(batch)?;
    Ok(-lls.iter().sum::<f64>() / (batch.num_rows() * batch.num_vars()) as f64)
}

/// The nats per symbol of independent symbols, with the frequencies of `train` (one count added to each).
fn independent_nats(train: &Batch, held_out: &Batch, cats: usize) -> f64 {
    let cells = |batch: &Batch| -> Vec<usize> {
        let rows = 0..batch.num_rows();
        let cell = |row: usize, var: usize| batch.column(var).category(row).map_or(0, |c| c as usize);
        rows.flat_map(|row| (0..batch.num_vars()).map(move |var| cell(row, var))).collect()
    };
    let mut counts = vec![1.0; cats];
    cells(train).into_iter().for_each(|c| counts[c] += 1.0);
    let total: f64 = counts.iter().sum();
    let held_out = cells(held_out);
    -held_out.iter().map(|&c| (counts[c] / total).ln()).sum::<f64>() / held_out.len() as f64
}

fn progress_bar(name: &str, args: &DemoArgs, batches: usize) -> ProgressBar {
    let shown = std::io::stderr().is_terminal() && !args.json;
    let target = if shown { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    let bar = ProgressBar::with_draw_target(Some(u64::from(args.epochs) * batches as u64), target);
    let style = ProgressStyle::with_template("{prefix:<14} [{bar:30}] {pos}/{len} batches  {msg}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("=> "));
    bar.set_prefix(name.replace('_', "-"));
    bar
}

/// A bar of at most `width` characters, in eighths.
fn bar(part: f64, width: usize) -> String {
    let eighths = (part.clamp(0.0, 1.0) * (8 * width) as f64).round() as usize;
    let rest = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"][eighths % 8];
    "█".repeat(eighths / 8) + rest
}
