//! `anemone train`: learn what a pipeline says.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap::Args;

use super::output::Outcome;
use super::pipeline_args::{PipelineArgs, Understood};
use super::report::{Report, Style};
use super::service::Service;
use super::{join, runtime, words};
use crate::backend::PlaceSpec;
use crate::backend::cpu::IsaCap;
use crate::backend::{ClusterSums, Device, TrainingPrecision};
use crate::error::{Error, Result};
use crate::pipeline::observer::{Event, Observer};
use crate::pipeline::run::{RESOLVED, TrainOptions, train};
use crate::pipeline::run_files::is_run_folder;
use crate::pipeline::spec::parse_size;
use crate::pipeline::stop::Stop;
use crate::pipeline::team::Team;
use crate::telemetry;

/// Learn a circuit from a stream of rows, as a pipeline file or a few flags say.
///
/// Writes the resolved pipeline, metrics.jsonl and checkpoints into the run folder. Stop it at any time: SIGINT and
/// SIGTERM finish the update, write a checkpoint and exit with 0, and so does a terminal that is closed; after anything
/// else --resume goes on from the last checkpoint to the same parameters. SIGHUP writes a checkpoint and goes on.
/// --out DIR --resume is enough: the pipeline is then the one that the run wrote into its folder.
#[derive(Args, Clone, Debug)]
pub(super) struct TrainArgs {
    #[command(flatten)]
    pipeline: PipelineArgs,
    /// Go on from the latest checkpoint in the run folder, if there is one
    #[arg(long)]
    resume: bool,
    /// Go on even if data, decoder, optimizer or batches are not those of the checkpoint; the circuit stays the
    /// checkpoint's
    #[arg(long)]
    force_resume: bool,
    /// Run folder; if left out, that of a run's own resolved.toml, otherwise runs/<name of the pipeline>
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    #[command(flatten)]
    machine: MachineArgs,
    /// How precisely training multiplies matrices: f32, tf32 (GPU only), bf16x3 or bf16 (tf32 on a GPU and f32 on a CPU
    /// if left out); held-out rows are always looked at in f32
    #[arg(long, value_name = "PRECISION", value_parser = words::PRECISIONS, hide_possible_values = true)]
    precision: Option<String>,
    /// The most to use of the processor: scalar, avx2, avx512, amx or auto (auto if left out)
    #[arg(long, value_name = "SET", value_parser = words::ISAS, hide_possible_values = true)]
    isa: Option<String>,
    /// Learn together with the other processes that a launcher (mpiexec, srun) has started: auto, off or mpi; needs
    /// batch.shards of at least as many
    #[arg(long, default_value = "auto", value_parser = words::CLUSTERS, hide_possible_values = true)]
    cluster: String,
    /// How flows of several processes are summed: nccl between their GPUs, host by way of their memory, or auto, which
    /// is nccl where every process can; the numbers do not depend on it
    #[arg(long, default_value = "auto", value_parser = words::CLUSTER_SUMS, hide_possible_values = true)]
    cluster_sums: String,
    /// Show metrics to Prometheus at this address: a port of this machine, or an IP address and a port
    #[arg(long, value_name = "ADDR")]
    metrics_addr: Option<String>,
    /// One JSON object a line on standard output, instead of text
    #[arg(long)]
    json: bool,
    /// Nothing but warnings and errors
    #[arg(long, conflicts_with = "json")]
    quiet: bool,
}

/// The device and what it may use.
#[derive(Args, Clone, Debug)]
pub(super) struct MachineArgs {
    /// Where the circuit lives: auto, cpu, cuda:N, or several GPUs such as cuda:0,1; auto is the first GPU if there is
    /// one (of several processes on a machine, each takes the next), otherwise the CPU
    #[arg(long, default_value = "auto", value_parser = words::DEVICES, hide_possible_values = true)]
    device: String,
    /// Worker threads (all cores if left out); the numbers do not depend on it
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Memory for the rows that are worked on at once, such as 512MiB (2GiB if left out; on a GPU what is free)
    #[arg(long, value_name = "SIZE")]
    memory: Option<String>,
}

/// More threads than any machine has cores only wait for each other.
const MOST_THREADS: usize = 1024;

impl MachineArgs {
    /// The flags that were given, as they are typed.
    pub fn as_words(&self) -> Vec<String> {
        let device = (self.device != "auto").then(|| format!("--device {}", self.device));
        let threads = self.threads.map(|threads| format!("--threads {threads}"));
        let memory = self.memory.as_ref().map(|memory| format!("--memory {memory}"));
        [device, threads, memory].into_iter().flatten().collect()
    }

    /// Checks the flags.
    pub fn understand(&self) -> Result<PlaceSpec> {
        let place = || format!("--device {}", self.device);
        let device: Device = self.device.parse().map_err(|e: Error| e.at(place()))?;
        // Before any data is read. A missing device is the user's mistake, like a missing path: no failure of the
        // machine.
        device.settle().map_err(|e| Error::option(e.to_string()).at(place()))?;
        if let Some(threads) = self.threads.filter(|threads| !(1..=MOST_THREADS).contains(threads)) {
            return Err(Error::option(format!(
                "--threads {threads}: must be from 1 to {MOST_THREADS}, or left out to use all cores"
            )));
        }
        let size = |text: &String| {
            let bytes = parse_size(text).and_then(|bytes| usize::try_from(bytes).ok()).filter(|bytes| *bytes > 0);
            bytes.ok_or_else(|| Error::option(format!("--memory {text}: expected a size such as 512MiB")))
        };
        let memory_budget = self.memory.as_ref().map(size).transpose()?;
        Ok(PlaceSpec { device, threads: self.threads, memory_budget, ..PlaceSpec::default() })
    }
}

/// The device, and how it is to compute.
fn understand_place(args: &TrainArgs) -> Result<PlaceSpec> {
    let place = args.machine.understand()?;
    let precision = args.precision.as_deref().map(|name| understand_precision(name, place.device)).transpose()?;
    let sums = args.cluster_sums.trim().parse().map_err(|e: Error| e.at("--cluster-sums"))?;
    Ok(PlaceSpec { isa: understand_isa(args.isa.as_deref())?, precision, sums, ..place })
}

/// The precision that `--precision` names, if the device has it.
pub(super) fn understand_precision(name: &str, device: Device) -> Result<TrainingPrecision> {
    let precision: TrainingPrecision = name.trim().parse().map_err(|e: Error| e.at("--precision"))?;
    if precision == TrainingPrecision::Tf32 && device.settle()?.0 == Device::Cpu {
        return Err(Error::option("--precision tf32: needs a GPU; on a CPU there are f32, bf16x3, bf16"));
    }
    Ok(precision)
}

/// The instruction set that `--isa` names.
pub(super) fn understand_isa(name: Option<&str>) -> Result<Option<IsaCap>> {
    name.map(str::parse::<IsaCap>).transpose().map_err(|e| e.at("--isa"))
}

/// Which pipeline: to resume the run of a folder, that folder says it.
fn pipeline_of(args: &TrainArgs) -> Result<PipelineArgs> {
    let resume = args.resume || args.force_resume;
    let pipeline = args.pipeline.or_file(|| args.out.as_ref().filter(|_| resume).map(|out| out.join(RESOLVED)));
    match (args.pipeline.file(), pipeline.file()) {
        (None, Some(file)) if !file.is_file() => Err(Error::option(format!(
            "{}: is missing, so the folder does not say what to go on with; name the pipeline file, or --data",
            file.display()
        ))),
        _ => Ok(pipeline),
    }
}

/// The run folder whose `resolved.toml` the pipeline is. It means that run: a second one beside it would be nobody's
/// wish.
fn own_folder(pipeline: Option<&Path>) -> Option<PathBuf> {
    let folder = pipeline.filter(|file| file.file_name().is_some_and(|name| name == RESOLVED))?.parent()?;
    let folder = if folder == Path::new("") { Path::new(".") } else { folder };
    is_run_folder(folder).then(|| folder.to_path_buf())
}

pub(super) fn run(args: &TrainArgs) -> Outcome {
    let runtime = runtime()?;
    let stop = Stop::new();
    // Before the other ranks are met, which takes a while: a signal that came then would end the job without a word.
    runtime.block_on(async { stop.on_signals() })?;
    let ranks = join::join(&args.cluster)?;
    let team = Team::new(ranks.as_ref());
    let understood = understand(args);
    let outcome = runtime.block_on(team.agree(understood)).and_then(|(understood, mut options)| {
        if ranks.is_none() && options.place.sums == ClusterSums::Nccl {
            return Err(Error::option(
                "--cluster-sums nccl: this process is alone; start several with a launcher (mpiexec, srun)",
            ));
        }
        if let Some(ranks) = &ranks {
            options.place.ranks = Some(ranks.with_shards(understood.spec.batch.shards)?); // refused alike by all
        }
        run_as(&team, args, &understood, (&options, &stop), &runtime)
    });
    drop(runtime);
    join::leave(team, ranks, outcome)
}

/// What the flags and the pipeline say.
fn understand(args: &TrainArgs) -> Result<(Understood, TrainOptions)> {
    let pipeline = pipeline_of(args)?;
    let understood = pipeline.understand()?;
    let place = understand_place(args)?;
    let own = own_folder(pipeline.file());
    let folder_name = own.as_ref().and_then(|folder| Some(folder.file_name()?.to_string_lossy().into_owned()));
    let name = understood.spec.name.clone().or(folder_name).unwrap_or_else(|| understood.name.clone());
    let options = TrainOptions {
        out: args.out.clone().or(own).unwrap_or_else(|| Path::new("runs").join(&name)),
        name,
        resume: args.resume || args.force_resume,
        force_resume: args.force_resume,
        place,
        every_look: false,
    };
    Ok((understood, options))
}

/// Learns, and shows it: all of it where this process is the first or the only one.
fn run_as(
    team: &Team,
    args: &TrainArgs,
    understood: &Understood,
    (options, stop): (&TrainOptions, &Stop),
    runtime: &tokio::runtime::Runtime,
) -> Outcome {
    let style = match (args.json, args.quiet) {
        (true, _) => Style::Json,
        (_, true) => Style::Quiet,
        _ => Style::Text,
    };
    let mut report = Report::new(style);
    if !team.is_first() {
        stop.be_silent();
        return runtime.block_on(async {
            let mut heir = Heir { report, has_taken_over: false };
            train(&understood.spec, options, stop, &mut heir).await?;
            heir.report.close();
            heir.report.written()
        });
    }
    let address = args.metrics_addr.as_deref().map(telemetry::parse_address).transpose();
    let address = address.map_err(|e| team.mark(e.at("--metrics-addr")))?;
    understood.notes.iter().for_each(|note| report.note(note));
    let trained = runtime.block_on(async {
        let _service = Service::begin();
        let server = match address {
            Some(address) => Some(serve(address).await.map_err(|e| team.mark(e))?),
            None => None,
        };
        if let Some(server) = &server {
            report.note(&format!("metrics are at http://{}/metrics", server.address()));
        }
        train(&understood.spec, options, stop, &mut report).await
    });
    report.close();
    trained?;
    report.written()
}

async fn serve(address: SocketAddr) -> Result<telemetry::Server> {
    telemetry::serve(address, telemetry::install()?).await
}

/// A rank that is not the first: it says nothing until the first is gone.
struct Heir {
    report: Report,
    has_taken_over: bool,
}

impl Observer for Heir {
    fn event(&mut self, event: &Event) {
        if self.has_taken_over {
            self.report.show(event);
        }
    }

    fn take_over(&mut self) {
        self.has_taken_over = true;
    }
}

impl Observer for Report {
    fn event(&mut self, event: &Event) {
        self.show(event);
    }
}
