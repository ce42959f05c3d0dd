//! `anemone compare`: optimizers side by side on one stream, and a report of how they did.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::output::{Outcome, counted, harmless, note, say, thousands};
use super::train::{MachineArgs, understand_isa, understand_precision};
use super::{runtime, words};
use crate::backend::Device;
use crate::backend::PlaceSpec;
use crate::backend::cpu::Isa;
use crate::bench::host::Host;
use crate::compare::findings::{Findings, Run};
use crate::compare::report;
use crate::compare::run::{Audience, CompareOptions, Task, compare, count_runs};
use crate::compare::spec::{ComparisonSpec, Overrides};
use crate::error::{Error, Result};
use crate::files::write_whole;
use crate::pipeline::observer::{Event, Observer};
use crate::pipeline::overrides;
use crate::pipeline::stop::Stop;

/// Compare optimizers on the same stream, from the same start, and write a report.
///
/// Each file names a pipeline and the contenders that learn it (see pipelines/experiments). Options that a contender
/// searches are settled first; then every contender learns once for each seed. Where files share contenders, a last
/// table has the regret of each: its mean gap to the best over all files. Everything is in one folder, with report.html
/// (and report.md), its charts as SVG and its tables as CSV, written anew after every run. The same command goes on
/// with what is not over.
#[derive(Args, Clone, Debug)]
pub(super) struct CompareArgs {
    /// Comparison files (TOML); one section of the report each
    #[arg(value_name = "FILE.toml", required = true)]
    files: Vec<PathBuf>,
    /// Folder of the comparison (runs/ and the folder that the files are in, with the name of a single one)
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// What the report is called (the title of the file, or the name of the folder)
    #[arg(long)]
    title: Option<String>,
    /// Change a key of every pipeline, such as --set circuit.latents=16
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Passes over the data, in place of what the files say
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    epochs: Option<u64>,
    /// Seeds, with commas between, in place of what the files say
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    seeds: Vec<u64>,
    #[command(flatten)]
    machine: MachineArgs,
    /// Numbers that matrices are multiplied in: f32, tf32 (GPU only), bf16x3, bf16
    #[arg(long, value_name = "NAME", value_parser = words::PRECISIONS, hide_possible_values = true)]
    precision: Option<String>,
    /// The most to use of the processor: scalar, avx2, avx512, amx or auto (auto if left out)
    #[arg(long, value_name = "SET", value_parser = words::ISAS, hide_possible_values = true)]
    isa: Option<String>,
    /// Say what would be run, and do not
    #[arg(long)]
    dry_run: bool,
    /// Say nothing but warnings
    #[arg(long, short)]
    quiet: bool,
}

pub(super) fn run(args: &CompareArgs) -> Outcome {
    let (specs, options) = args.understand()?;
    if args.dry_run {
        return say(plan(&specs, &options.out)?);
    }
    let mut show = Show { out: options.out.clone(), bar: None, is_quiet: args.quiet, epochs: 0, latest: None };
    let compared = runtime()?.block_on(async {
        let stop = Stop::new();
        stop.on_signals()?;
        compare(&specs, &options, &stop, &mut show).await
    });
    show.close();
    let (findings, is_over) = compared?;
    let written = write(&findings, &options.out)?;
    if !args.quiet {
        let regret = report::regret_in_plain_text(&findings);
        if !regret.is_empty() {
            say(format_args!("\n{regret}\n"))?;
        }
        let unfinished = if is_over { "" } else { "stopped; the same command goes on\n" };
        say(format_args!("{unfinished}report      {}", written.page.display()))?;
    }
    Ok(())
}

impl CompareArgs {
    fn understand(&self) -> Result<(Vec<ComparisonSpec>, CompareOptions)> {
        let set = self.set.iter().map(|assignment| overrides::parse(assignment)).collect::<Result<_>>()?;
        let overrides = Overrides { set, epochs: self.epochs, seeds: self.seeds.clone() };
        let specs = self.files.iter().map(|file| ComparisonSpec::load(file, &overrides)).collect::<Result<Vec<_>>>()?;
        for (at, spec) in specs.iter().enumerate() {
            if specs[..at].iter().any(|other| other.name == spec.name) {
                let file = self.files[at].display();
                return Err(Error::option(format!("{file}: another file's folder would be called {} too", spec.name)));
            }
        }
        let place = self.machine.understand()?;
        let precision = self.precision.as_deref().map(|name| understand_precision(name, place.device)).transpose()?;
        // Settled once: contenders that learn on different devices could not be compared.
        let (device, _) = place.device.settle()?;
        let place = PlaceSpec { device, isa: understand_isa(self.isa.as_deref())?, precision, ..place };
        let name = self.name(&specs);
        let out = self.out.clone().unwrap_or_else(|| PathBuf::from("runs").join(&name));
        let title = match (&self.title, &specs[..]) {
            (Some(title), _) => title.clone(),
            (None, [only]) => only.title.clone(),
            (None, _) => name,
        };
        let machine_in_words = describe(&place)?;
        let options = CompareOptions { command: self.command(), out, title, place, date: today(), machine_in_words };
        Ok((specs, options))
    }

    /// The folder that the files are in, and the stem of the only one.
    fn name(&self, specs: &[ComparisonSpec]) -> String {
        let folder = self.files[0].parent().and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
        match (specs, folder) {
            ([only], None) => only.name.clone(),
            ([only], Some(folder)) => format!("{folder}-{}", only.name),
            (_, Some(folder)) => folder,
            (_, None) => "compare".to_string(),
        }
    }

    /// What gives the report again.
    fn command(&self) -> String {
        let mut words = vec!["anemone compare".to_string()];
        words.extend(self.files.iter().map(|file| quoted(&file.display().to_string())));
        words.extend(self.out.iter().map(|out| format!("--out {}", quoted(&out.display().to_string()))));
        words.extend(self.set.iter().map(|set| format!("--set {}", quoted(set))));
        words.extend(self.epochs.map(|epochs| format!("--epochs {epochs}")));
        if !self.seeds.is_empty() {
            let seeds: Vec<String> = self.seeds.iter().map(u64::to_string).collect();
            words.push(format!("--seeds {}", seeds.join(",")));
        }
        let flags = [("--precision", &self.precision), ("--isa", &self.isa), ("--title", &self.title)];
        let given = flags
            .into_iter()
            .filter_map(|(flag, value)| value.as_ref().map(|value| format!("{flag} {}", quoted(value))));
        words.extend(given);
        words.extend(self.machine.as_words());
        words.join(" ")
    }
}

/// A word as a shell takes it.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,+@%".contains(c);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_string(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

/// Writes everything that was found so far.
fn write(findings: &Findings, out: &Path) -> Result<report::Written> {
    let text = serde_json::to_string_pretty(findings);
    let text = text.map_err(|e| Error::internal(format!("the findings cannot be written: {e}")))?;
    std::fs::create_dir_all(out).map_err(|e| Error::io_at(out, &e))?;
    write_whole(&out.join("findings.json"), &text)?;
    report::write(findings, out)
}

fn describe(place: &PlaceSpec) -> Result<String> {
    let (device, _) = place.device.settle()?;
    if device != Device::Cpu {
        return Ok(device.to_string());
    }
    let options = place.cpu_options();
    let threads = options.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    let isa = Isa::detect(options.isa.or_environment()?);
    let cpu = Host::look().cpu.unwrap_or_else(|| "a processor".into());
    Ok(format!("{threads} threads of {cpu}, {}", isa.name()))
}

/// Today in UTC, `2026-11-16`.
fn today() -> String {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let (year, month, day) = civil(since.map_or(0, |since| since.as_secs() / 86_400));
    format!("{year:04}-{month:02}-{day:02}")
}

/// Year, month and day of a number of days since 1970-01-01. Years begin in March here, so that the leap day is their
/// last.
fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468; // since 0000-03-01
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    (400 * era + year_of_era + u64::from(month <= 2), month, day)
}

/// What would be run.
fn plan(specs: &[ComparisonSpec], out: &Path) -> Result<String> {
    let mut lines = Vec::new();
    for spec in specs {
        let (trials, runs) = count_runs(spec)?;
        let names: Vec<&str> = spec.contenders.iter().map(|contender| contender.name.as_str()).collect();
        let search = match trials {
            0 => String::new(),
            _ => {
                let trials = counted(trials as u64, "trial", "trials");
                format!("{trials} of {}, then ", counted(spec.search_epochs, "epoch", "epochs"))
            }
        };
        let (name, epochs) = (&spec.name, counted(spec.epochs, "epoch", "epochs"));
        let runs = counted(runs as u64, "run", "runs");
        lines.push(format!("{name}: {search}{runs} of {epochs} ({})", names.join("; ")));
    }
    lines.push(format!("in {}", out.display()));
    Ok(lines.join("\n"))
}

/// Shows a comparison: a line a run, and on a terminal how far the present one is.
struct Show {
    out: PathBuf,
    bar: Option<ProgressBar>,
    is_quiet: bool,
    epochs: u64,
    latest: Option<f64>,
}

impl Show {
    fn close(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

impl Audience for Show {
    fn begins(&mut self, task: &Task) {
        (self.epochs, self.latest) = (task.epochs, None);
        if self.is_quiet || !std::io::stderr().is_terminal() {
            return;
        }
        let bar = ProgressBar::with_draw_target(Some(task.epochs), ProgressDrawTarget::stderr());
        let style = ProgressStyle::with_template("{prefix}  [{bar:24}] {pos}/{len} epochs  {msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("=> "));
        bar.set_prefix(harmless(&name(task), &[]).into_owned());
        self.bar = Some(bar);
    }

    fn ends(&mut self, task: &Task, findings: &Findings) -> Result<()> {
        self.close();
        let latest = self.latest.take(); // of this run alone
        if task.trial.is_empty() {
            write(findings, &self.out)?;
        }
        if self.is_quiet {
            return Ok(());
        }
        let run = findings.sections.last().and_then(|section| {
            let of_task = section.contenders.iter().find(|contender| contender.name == task.contender)?;
            of_task.runs.iter().find(|run| run.seed == task.seed)
        });
        match run {
            Some(run) if task.trial.is_empty() => say(format_args!("{}  {}", name(task), outcome(run))),
            _ => match latest {
                Some(valid) => {
                    let epochs = counted(task.epochs, "epoch", "epochs");
                    say(format_args!("{}  valid {valid:.3} after {epochs}", name(task)))
                }
                None => Ok(()), // it was over before
            },
        }
    }
}

impl Observer for Show {
    fn event(&mut self, event: &Event) {
        match event {
            Event::Warning(message) => match &self.bar {
                Some(bar) => bar.suspend(|| note(format_args!("warning: {message}"))),
                None => note(format_args!("warning: {message}")),
            },
            Event::Validated(found) => {
                self.latest = found.log_likelihood.filter(|_| found.impossible_rows == 0);
                if let (Some(bar), Some(valid)) = (&self.bar, self.latest) {
                    bar.set_position(found.epoch);
                    bar.set_message(format!("valid {valid:.3}"));
                }
            }
            _ => {}
        }
    }
}

fn name(task: &Task) -> String {
    let trial = if task.trial.is_empty() { String::new() } else { format!(" ({})", task.trial.join(", ")) };
    format!("{}: {}{trial}, seed {}", task.section, task.contender, task.seed)
}

fn outcome(run: &Run) -> String {
    if let Some(why) = &run.failed {
        return format!("failed: {why}");
    }
    let best = run.points.iter().skip(1).filter_map(|point| point.valid).reduce(f64::max); // but the start
    let best = best.map_or("no row was possible".to_string(), |best| format!("best valid {best:.3}"));
    let test = run.test.map_or(String::new(), |test| format!(", test {test:.3}"));
    let speed = run.rows as f64 / run.seconds.max(1e-9);
    format!("{best}{test}, {} rows/s", thousands(speed as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_have_their_names() {
        for (days, date) in [(0, (1970, 1, 1)), (59, (1970, 3, 1)), (789, (1972, 2, 29)), (20_773, (2026, 11, 16))] {
            assert_eq!(civil(days), date, "{days}");
        }
        // Every day follows the one before it.
        let mut before = civil(0);
        for days in 1..200_000 {
            let now = civil(days);
            let next_day = now.0 == before.0 && now.1 == before.1 && now.2 == before.2 + 1;
            let next_month =
                now.2 == 1 && (now.1 == before.1 + 1 && now.0 == before.0 || now.1 == 1 && now.0 == before.0 + 1);
            assert!(next_day || next_month, "{before:?} {now:?}");
            before = now;
        }
    }
}
