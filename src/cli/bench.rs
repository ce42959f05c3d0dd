//! `anemone bench`: how fast it learns, and how far it gets in that time.
//!
//! Without a pipeline whole steps are timed on made-up rows; with one, optimizers learn its stream one after the other.
//! Nothing is written but the lines that were asked for. What is measured is in `bench`, how it is shown in
//! `bench_table`.

use std::fs::File;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget};
use serde_json::json;

use super::bench_table::{stream_table, synthetic_table};
use super::output::{Outcome, note, say, say_json};
use super::train::{MachineArgs, understand_isa, understand_precision};
use super::{runtime, words};
use crate::backend::PlaceSpec;
use crate::backend::TrainingPrecision;
use crate::backend::cpu::Isa;
use crate::bench::stream::compare;
use crate::bench::synthetic::{Kind, Sizes, Synthetic};
use crate::bench::{Line, Reference, Setting};
use crate::error::{Error, Result};
use crate::optim::{OPTIMIZERS, OptimizerSpec};
use crate::pipeline::overrides;
use crate::pipeline::spec::{LIMITS, PipelineSpec, default_options, load_document};
use crate::pipeline::suggest::hint;

/// Measure how fast optimizers learn, and how far they get in that time.
///
/// Without a pipeline it times whole optimizer steps on made-up rows: tokens for hmm and monarch, images for hclt and
/// pdhclt. With one, each optimizer learns the same stream from the same start, and is judged after the same rows and
/// after the same seconds. Speeds stand beside the best f32 matrix product that this machine makes in the same run.
#[derive(Args, Clone, Debug)]
pub(super) struct BenchArgs {
    /// Pipeline file (TOML) whose stream is learned; without it, steps on synthetic rows are timed
    #[arg(value_name = "FILE.toml")]
    file: Option<PathBuf>,
    #[arg(long, visible_alias = "optimizers", value_name = "LIST", value_delimiter = ',')]
    #[arg(value_parser = words::OPTIMIZERS, hide_possible_values = true)]
    #[arg(help = format!(
        "Optimizers, with commas between: {} (anemone if left out; with a pipeline anemone,full-batch-em)",
        words::OPTIMIZERS.list()
    ))]
    optimizer: Vec<String>,
    /// Numbers that matrices are multiplied in, with commas between: f32, tf32 (GPU only), bf16x3, bf16 (f32 if left
    /// out, on a GPU tf32)
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    #[arg(value_parser = words::PRECISIONS, hide_possible_values = true)]
    precision: Vec<String>,
    /// The most modern instructions that may be used: scalar, avx2, avx512, amx, auto
    #[arg(long, value_name = "CAP", value_parser = words::ISAS, hide_possible_values = true)]
    isa: Option<String>,
    #[command(flatten)]
    machine: MachineArgs,
    /// One JSON object a line: to standard output in place of the table (-), or to a file besides it
    #[arg(long, value_name = "-|FILE")]
    json: Option<String>,
    #[command(flatten, next_help_heading = "Synthetic rows")]
    synthetic: SyntheticArgs,
    #[command(flatten, next_help_heading = "A pipeline's stream")]
    stream: StreamArgs,
}

/// What to make where there is no pipeline.
#[derive(Args, Clone, Debug)]
struct SyntheticArgs {
    /// Circuits, with commas between: hmm, monarch, hclt, pdhclt (hmm if left out)
    #[arg(long, value_name = "LIST", value_delimiter = ',', conflicts_with = "file")]
    #[arg(value_parser = words::CIRCUITS, hide_possible_values = true)]
    circuit: Vec<String>,
    /// Hidden states (hmm 256, monarch 1024, hclt and pdhclt 64 if left out)
    #[arg(long, value_name = "K", conflicts_with = "file")]
    latents: Option<usize>,
    /// Variables of a row (128; hclt and pdhclt 768, a patch of 16×16 pixels in three colours)
    #[arg(long, value_name = "N", conflicts_with = "file")]
    vars: Option<usize>,
    /// Categories of a variable (50257; hclt and pdhclt 256)
    #[arg(long, value_name = "C", conflicts_with = "file")]
    cats: Option<u32>,
    /// Rows in a batch
    #[arg(long, value_name = "B", default_value_t = 512, conflicts_with = "file")]
    batch_rows: usize,
    /// Steps that are timed
    #[arg(long, value_name = "N", default_value_t = 5, conflicts_with = "file")]
    steps: usize,
    /// Steps before them that are not
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with = "file")]
    warmup: usize,
    /// Seed of rows, structure and start
    #[arg(long, value_name = "S", default_value_t = 1, conflicts_with = "file")]
    seed: u64,
}

/// How the pipeline is changed.
#[derive(Args, Clone, Debug)]
struct StreamArgs {
    /// Passes over the data
    #[arg(long, value_name = "N", requires = "file")]
    epochs: Option<u64>,
    /// Change a key, such as --set batch.rows=64; an option of one optimizer goes to those that know it
    #[arg(long = "set", value_name = "KEY=VALUE", requires = "file")]
    set: Vec<String>,
}

pub(super) fn run(args: &BenchArgs) -> Outcome {
    let settings = args.settings()?;
    match &args.file {
        None => args.run_synthetic(&settings),
        Some(file) => args.run_stream(file, &settings),
    }
}

impl BenchArgs {
    /// One setting for each precision.
    fn settings(&self) -> Result<Vec<Setting>> {
        let place = PlaceSpec { isa: understand_isa(self.isa.as_deref())?, ..self.machine.understand()? };
        let place = PlaceSpec { device: place.device.settle()?.0, ..place };
        let precisions = match &self.precision[..] {
            [] => vec![TrainingPrecision::default_of(place.device)],
            names => names.iter().map(|name| understand_precision(name, place.device)).collect::<Result<_>>()?,
        };
        precisions.into_iter().map(|precision| setting(&place, precision)).collect()
    }

    fn run_synthetic(&self, settings: &[Setting]) -> Outcome {
        let kinds = self.kinds()?;
        let optimizers = self.default_optimizers()?;
        let SyntheticArgs { batch_rows, seed, warmup, steps, .. } = self.synthetic;
        // All are built before the first is measured: a mistake in the last should not come after minutes.
        let build = |(kind, sizes)| Synthetic::new(kind, sizes, batch_rows, seed);
        let circuits: Result<Vec<Synthetic>> = kinds.into_iter().map(build).collect();
        let circuits = circuits?;
        let mut results = Results::open(self.json.as_deref())?;
        let waiting = Waiting::new();
        waiting.say("matrix products");
        let mut reference = reference(settings);
        let mut measure = || -> Result<()> {
            for circuit in &circuits {
                for (optimizer, setting) in optimizers.iter().flat_map(|spec| settings.iter().map(move |s| (spec, s))) {
                    waiting.say(&format!("{} {} {}", circuit.kind().name(), optimizer.name(), setting.precision));
                    results.lines.push(circuit.measure(optimizer, setting, (warmup, steps), &mut reference)?);
                }
            }
            Ok(())
        };
        let measured = measure();
        waiting.end();
        results.show(&reference, synthetic_table)?; // also what came before a failure
        measured
    }

    /// What to measure, with every size that was not given.
    fn kinds(&self) -> Result<Vec<(Kind, Sizes)>> {
        let SyntheticArgs { latents, vars, cats, batch_rows, steps, .. } = self.synthetic;
        let cats_given = cats.map(|cats| cats as usize);
        let given = [("latents", latents), ("vars", vars), ("cats", cats_given)];
        let always = [("batch-rows", Some(batch_rows)), ("steps", Some(steps))];
        if let Some((flag, _)) = given.into_iter().chain(always).find(|(_, count)| *count == Some(0)) {
            return Err(Error::option(format!("--{flag} 0: must be at least 1")));
        }
        let names = if self.synthetic.circuit.is_empty() { &["hmm".to_string()][..] } else { &self.synthetic.circuit };
        let sized = |name: &String| {
            let kind = kind(name)?;
            let usual = kind.usual_sizes();
            let sizes = Sizes {
                latents: latents.unwrap_or(usual.latents),
                vars: vars.unwrap_or(usual.vars),
                cats: cats.unwrap_or(usual.cats),
            };
            Ok((kind, sizes))
        };
        names.iter().map(sized).collect()
    }

    fn default_optimizers(&self) -> Result<Vec<OptimizerSpec>> {
        self.optimizers(&["anemone"])?.into_iter().map(default_optimizer).collect()
    }

    fn run_stream(&self, file: &Path, settings: &[Setting]) -> Outcome {
        let specs = self.understand_stream(file)?;
        let stem = file.file_stem().map(|stem| stem.to_string_lossy().into_owned());
        let name = specs.first().and_then(|spec| spec.name.clone()).or(stem).unwrap_or_default();
        let mut results = Results::open(self.json.as_deref())?;
        let waiting = Waiting::new();
        waiting.say(&name);
        let mut reference = reference(settings);
        let mut tell = |text: &str| waiting.beside(text);
        let compared = runtime()?.block_on(compare(&name, &specs, settings, &mut reference, &mut tell));
        waiting.end();
        results.lines = compared?;
        results.show(&reference, stream_table)
    }

    /// The pipeline once for each optimizer.
    fn understand_stream(&self, file: &Path) -> Result<Vec<PipelineSpec>> {
        let optimizers = self.optimizers(&["anemone", "full_batch_em"])?;
        let epochs = self.stream.epochs.map(|epochs| format!("learn.epochs={epochs}"));
        let mut specs = Vec::new();
        for optimizer in &optimizers {
            let mut document = load_document(file)?;
            let mut set: Vec<String> = known_to(optimizer, &optimizers, &self.stream.set).cloned().collect();
            set.extend(epochs.clone());
            set.push(format!("learn.optimizer={optimizer}"));
            for text in overrides::apply(&mut document, &set)? {
                note(format_args!("note: {text}"));
            }
            let mut spec = PipelineSpec::from_document(&document)?;
            if spec.learn.seconds.take().is_some() && specs.is_empty() {
                note("note: learn.seconds: left out, because optimizers are compared after the same rows");
            }
            specs.push(spec);
        }
        Ok(specs)
    }

    /// The optimizers by their names in files, each once.
    fn optimizers(&self, usual: &[&'static str]) -> Result<Vec<&'static str>> {
        if self.optimizer.is_empty() {
            return Ok(usual.to_vec());
        }
        let mut known: Vec<&'static str> = Vec::new();
        for name in &self.optimizer {
            let spelled = name.trim().replace('-', "_");
            let Some(found) = OPTIMIZERS.into_iter().find(|known| *known == spelled) else {
                let shown = OPTIMIZERS.map(|known| known.replace('_', "-"));
                let hint = hint(name, shown.iter().map(String::as_str));
                return Err(Error::option(format!("--optimizer {name}: unknown; {hint}")));
            };
            if !known.contains(&found) {
                known.push(found);
            }
        }
        Ok(known)
    }
}

/// The one place that turns flags into what a backend is made with.
fn setting(place: &PlaceSpec, precision: TrainingPrecision) -> Result<Setting> {
    let isa = Isa::detect(place.cpu_options().isa.or_environment()?);
    let place = PlaceSpec { precision: Some(precision), ..place.clone() };
    let device = place.device.to_string();
    Ok(Setting { place, device, precision: precision.to_string(), isa: isa.name().to_string() })
}

/// The best matrix product with as many threads as are measured.
fn reference(settings: &[Setting]) -> Reference {
    Reference::new(settings.first().map_or(1, Setting::threads))
}

fn kind(name: &str) -> Result<Kind> {
    let known = Kind::ALL.map(Kind::name);
    let found = Kind::ALL.into_iter().find(|kind| kind.name() == name.trim());
    found.ok_or_else(|| Error::option(format!("--circuit {name}: unknown; {}", hint(name, known))))
}

fn default_optimizer(name: &str) -> Result<OptimizerSpec> {
    let spec = serde_json::from_value(json!({ "optimizer": name }));
    spec.map_err(|e| Error::option(format!("--optimizer {name}: {e}")))
}

/// The assignments without those options that another of the optimizers has and this one has not.
fn known_to<'a>(optimizer: &str, all: &[&str], set: &'a [String]) -> impl Iterator<Item = &'a String> {
    let keys = |name: &str| -> Vec<String> { default_options(name).keys().cloned().collect() };
    let own = keys(optimizer);
    let others: Vec<String> = all.iter().flat_map(|name| keys(name)).filter(|key| !own.contains(key)).collect();
    set.iter().filter(move |assignment| {
        let path = assignment.split('=').next().unwrap_or_default().trim();
        let key = path.strip_prefix("learn.").and_then(|rest| rest.split('.').next()).unwrap_or_default();
        LIMITS.contains(&key) || !others.iter().any(|other| other == key)
    })
}

/// What was measured, and where it goes.
struct Results {
    lines: Vec<Line>,
    json: Json,
}

/// Where JSON goes.
enum Json {
    Nowhere,
    StandardOutput,
    File(String, File),
}

impl Results {
    /// Opens the file now: a measurement should not fail at its end.
    fn open(json: Option<&str>) -> Result<Self> {
        let json = match json {
            None => Json::Nowhere,
            Some("-") => Json::StandardOutput,
            Some(path) => Json::File(path.into(), File::create(path).map_err(|e| Error::io(path, &e))?),
        };
        Ok(Self { lines: Vec::new(), json })
    }

    /// Writes the lines, all against the best reference of the run, and the table unless standard output is JSON's.
    fn show(&mut self, reference: &Reference, table: fn(&[Line]) -> String) -> Result<()> {
        self.lines.iter_mut().for_each(|line| line.hold_against(reference));
        for line in &self.lines {
            let text =
                serde_json::to_string(line).map_err(|e| Error::internal(format!("a line cannot be written: {e}")))?;
            match &mut self.json {
                Json::Nowhere => {}
                Json::StandardOutput => say_json(text)?,
                Json::File(path, file) => writeln!(file, "{text}").map_err(|e| Error::io(path, &e))?,
            }
        }
        match self.json {
            Json::Nowhere | Json::File(..) if !self.lines.is_empty() => say(table(&self.lines)),
            _ => Ok(()),
        }
    }
}

/// Says what is being measured, on a terminal. It does not move by itself: that would be measured too.
struct Waiting {
    bar: ProgressBar,
}

impl Waiting {
    fn new() -> Self {
        let shown = std::io::stderr().is_terminal();
        let target = if shown { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        Self {
            bar: ProgressBar::with_draw_target(None, target).with_style(indicatif::ProgressStyle::default_spinner()),
        }
    }

    fn say(&self, what: &str) {
        self.bar.set_message(format!("measuring {what}"));
        self.bar.tick();
    }

    fn beside(&self, text: &str) {
        self.bar.suspend(|| note(text));
    }

    fn end(&self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Command {
        #[command(flatten)]
        bench: BenchArgs,
    }

    fn parse(args: &[&str]) -> BenchArgs {
        Command::try_parse_from(["anemone"].iter().chain(args)).unwrap().bench
    }

    #[test]
    fn sizes_that_are_not_given_are_those_of_the_circuit() {
        assert_eq!(parse(&[]).kinds().unwrap(), [(Kind::Hmm, Sizes { latents: 256, vars: 128, cats: 50_257 })]);
        assert!(matches!(parse(&[]).default_optimizers().unwrap()[..], [OptimizerSpec::Anemone(_)]));
        let args = ["--circuit", "hclt,pdhclt", "--latents", "8", "--optimizer", "adam,full-batch-em,adam,sgd"];
        let optimizers = parse(&args).default_optimizers().unwrap();
        let sizes = Sizes { latents: 8, vars: 768, cats: 256 };
        assert_eq!(parse(&args).kinds().unwrap(), [(Kind::Hclt, sizes), (Kind::Pdhclt, sizes)]);
        assert_eq!(optimizers.iter().map(OptimizerSpec::name).collect::<Vec<_>>(), ["adam", "full_batch_em", "sgd"]);
    }

    #[test]
    fn every_optimizer_has_a_default_and_every_slip_its_word() {
        for name in OPTIMIZERS {
            assert_eq!(default_optimizer(name).unwrap().name(), name);
        }
        for (args, words) in [
            (&["--circuit", "hlct"][..], "--circuit hlct: unknown; did you mean `hclt`?"),
            (&["--circuit", "rat-spn"], "there are hmm, monarch, hclt and pdhclt"),
            (&["--optimizer", "anemona"], "--optimizer anemona: unknown; did you mean `anemone`?"),
            (&["--optimizer", "anemone,full-batch"], "did you mean `full-batch-em`?"),
            (&["--steps", "0"], "--steps 0: must be at least 1"),
            (&["--cats", "0"], "--cats 0: must be at least 1"),
        ] {
            let args = parse(args);
            let error = args.kinds().and_then(|_| args.default_optimizers()).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn an_option_goes_to_those_optimizers_that_know_it() {
        let set: Vec<String> =
            ["learn.step=0.3", "learn.smoothing=1e-4", "learn.batches=9", "batch.rows=8", "learn.stpe=1"]
                .map(String::from)
                .to_vec();
        let all = ["anemone", "full_batch_em"];
        assert_eq!(known_to("anemone", &all, &set).collect::<Vec<_>>(), set.iter().collect::<Vec<_>>());
        assert_eq!(known_to("full_batch_em", &all, &set).collect::<Vec<_>>(), set[1..].iter().collect::<Vec<_>>());
        // Alone it has no other optimizer to leave the option to: the pipeline will refuse it.
        assert_eq!(known_to("full_batch_em", &all[1..], &set).count(), set.len());
    }
}
