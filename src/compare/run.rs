//! Runs a comparison: searches first, then every contender under every seed, one after the other on the whole machine.
//!
//! Data is opened once per comparison; a circuit is built once per seed and shared. Whatever is over is not done again,
//! and an interrupted run resumes from its last checkpoint, so the same command finishes what it began.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::json;

use super::findings::{Contender, Findings, Point, Section, Setting, Trial};
use super::spec::{Choice, ComparisonSpec, ContenderSpec, slug};
use super::store::{Recorder, RunFolder, RunResult};
use crate::backend::PlaceSpec;
use crate::circuit::Circuit;
use crate::error::{Error, ErrorKind, Result};
use crate::pipeline::evaluate::evaluate;
use crate::pipeline::observer::{Event, Observer};
use crate::pipeline::prepare::{Built, Given, HeldOut, Inputs};
use crate::pipeline::run::{TrainOptions, train_on};
use crate::pipeline::spec::{CircuitSpec, PipelineSpec, inline};
use crate::pipeline::stop::Stop;
use crate::source::Source;

/// What a comparison reports, besides the events of its runs.
pub trait Audience: Observer {
    /// A run is about to begin, or to resume.
    fn begins(&mut self, task: &Task);

    /// A run is over, now or before; `findings` has it.
    fn ends(&mut self, task: &Task, findings: &Findings) -> Result<()>;
}

/// One run of a comparison.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Task {
    /// Which comparison.
    pub section: String,
    /// Which contender.
    pub contender: String,
    /// Which options are tried; empty in a run that counts.
    pub trial: Vec<String>,
    /// Under which seed.
    pub seed: u64,
    /// For how many epochs.
    pub epochs: u64,
}

/// Where and how to run.
#[derive(Clone, Debug)]
pub struct CompareOptions {
    /// The folder of everything.
    pub out: PathBuf,
    /// The device and what it may use.
    pub place: PlaceSpec,
    /// What the whole is called.
    pub title: String,
    /// The day, for the report.
    pub date: String,
    /// The machine in words, for the report.
    pub machine_in_words: String,
    /// The command, for the report.
    pub command: String,
}

/// How many runs a comparison is, trials and all.
pub fn count_runs(spec: &ComparisonSpec) -> Result<(usize, usize)> {
    let mut trials = 0;
    for contender in &spec.contenders {
        let own = spec.trials_after(contender, &Choice::default())?.len();
        trials += if own > 1 { own } else { 0 };
    }
    Ok((trials, spec.contenders.iter().map(|contender| contender.seeds.len()).sum()))
}

/// Runs all comparisons. The flag is true if they are over, and false if a stop was requested.
pub async fn compare(
    specs: &[ComparisonSpec],
    options: &CompareOptions,
    stop: &Stop,
    audience: &mut dyn Audience,
) -> Result<(Findings, bool)> {
    let mut findings = Findings {
        title: options.title.clone(),
        date: options.date.clone(),
        machine: options.machine_in_words.clone(),
        command: options.command.clone(),
        sections: Vec::new(),
    };
    for spec in specs {
        let shared = spec.shared(spec.seeds[0])?;
        let inputs = open(spec, &shared).await.map_err(|e| e.at(&spec.name))?;
        findings.sections.push(begin(spec, &inputs));
        let mut section = Running { spec, options, stop, inputs, circuits: Vec::new(), starts: Vec::new() };
        if !section.run(&mut findings, audience).await.map_err(|e| e.at(&spec.name))? {
            return Ok((findings, false));
        }
    }
    Ok((findings, true))
}

/// The data of a comparison, test rows and all.
async fn open(spec: &ComparisonSpec, shared: &PipelineSpec) -> Result<Inputs> {
    let mut inputs = Inputs::open(shared).await?;
    if let Source::Live(_) = inputs.source {
        return Err(Error::unsupported("a live stream comes only once: several optimizers cannot learn from it"));
    }
    if matches!(inputs.source, Source::Indexed(_)) && inputs.num_rows().is_none() {
        return Err(Error::option("the source is endless, and epochs are compared: give it a number of rows"));
    }
    if !spec.test.is_empty() {
        let test =
            HeldOut::open_files(shared, &spec.test, inputs.reading.as_ref()).await.map_err(|e| e.at("compare.test"))?;
        // Looked at now, not after the first epoch.
        test.open(&inputs)?.next().await.map_err(|e| e.at("compare.test"))?;
        inputs.test = Some(test);
    }
    Ok(inputs)
}

fn begin(spec: &ComparisonSpec, inputs: &Inputs) -> Section {
    Section {
        name: spec.name.clone(),
        title: spec.title.clone(),
        about: spec.about.clone(),
        data: inputs.describe_source(),
        rows: inputs.num_rows().unwrap_or(0),
        num_vars: inputs.decoder.shape().num_vars as u64,
        epochs: spec.epochs,
        references: spec.references.clone(),
        thresholds: spec.thresholds.clone(),
        ..Section::default()
    }
}

/// What a contender starts from. Contenders that say the same of the circuit, seed included, start from the same
/// parameters.
struct Start {
    circuit: CircuitSpec,
    point: Point,
}

/// One comparison while it runs.
struct Running<'a> {
    spec: &'a ComparisonSpec,
    options: &'a CompareOptions,
    stop: &'a Stop,
    inputs: Inputs,
    /// One for each seed, shared by all contenders.
    circuits: Vec<(u64, Arc<Circuit>)>,
    starts: Vec<Start>,
}

impl Running<'_> {
    /// Returns true if it came to its end.
    async fn run(&mut self, findings: &mut Findings, audience: &mut dyn Audience) -> Result<bool> {
        let spec = self.spec;
        let mut chosen: Vec<Choice> = Vec::new();
        for contender in &spec.contenders {
            let like = spec.contenders.iter().position(|other| Some(&other.name) == contender.like.as_ref());
            let inherited = like.map(|at| chosen[at].clone()).unwrap_or_default();
            let Some((choice, trials)) = self.search(contender, &inherited, findings, audience).await? else {
                return Ok(false);
            };
            let pipeline = spec.pipeline(&choice, spec.seeds[0], spec.epochs)?;
            let section = last(findings);
            section.circuit = describe_circuit(&pipeline);
            section.contenders.push(Contender {
                name: contender.name.clone(),
                optimizer: pipeline.learn.optimizer.name().to_string(),
                ablates: contender.like.clone(),
                settings: settings(&choice, &pipeline),
                trials,
                seeds: contender.seeds.clone(),
                runs: Vec::new(),
            });
            chosen.push(choice);
        }
        // Seed by seed, so that a report of half of them compares all contenders.
        for &seed in &spec.seeds {
            let takes_part = |(_, contender): &(usize, &ContenderSpec)| contender.seeds.contains(&seed);
            for (at, contender) in spec.contenders.iter().enumerate().filter(takes_part) {
                let task = self.task(contender, seed, spec.epochs, Vec::new());
                let folder = self.options.out.join(&spec.name).join(slug(&contender.name));
                let Some(result) = self.learn(&task, &chosen[at], &folder, audience).await? else {
                    return Ok(false);
                };
                let section = last(findings);
                section.valid_rows = section.valid_rows.max(result.valid_rows);
                section.rows = section.rows.max(result.run.rows.checked_div(spec.epochs).unwrap_or(0));
                section.parameters = section.parameters.max(result.parameters);
                section.contenders[at].runs.push(result.run);
                audience.ends(&task, findings)?;
            }
        }
        Ok(true)
    }

    fn task(&self, contender: &ContenderSpec, seed: u64, epochs: u64, trial: Vec<String>) -> Task {
        Task { section: self.spec.name.clone(), contender: contender.name.clone(), trial, seed, epochs }
    }

    /// Settles the options of a contender: tries all, takes the best. `None` if a stop was requested.
    async fn search(
        &mut self,
        contender: &ContenderSpec,
        inherited: &Choice,
        findings: &Findings,
        audience: &mut dyn Audience,
    ) -> Result<Option<(Choice, Vec<Trial>)>> {
        let choices = self.spec.trials_after(contender, inherited)?;
        if let [only] = &choices[..] {
            return Ok(Some((only.clone(), Vec::new())));
        }
        let (seed, epochs) = (self.spec.seeds[0], self.spec.search_epochs);
        let mut trials = Vec::new();
        for choice in &choices {
            let settings = as_learned(choice.searched(&choices), &self.spec.pipeline(choice, seed, epochs)?);
            let shown = settings.iter().map(|setting| format!("{} = {}", setting.key, setting.value)).collect();
            let task = self.task(contender, seed, epochs, shown);
            let folder = self.options.out.join(&self.spec.name).join("search").join(slug(&contender.name));
            let Some(result) = self.learn(&task, choice, &folder, audience).await? else { return Ok(None) };
            let values = result.run.points.iter().skip(1).filter_map(|point| point.valid);
            // What broke down on the way is no choice, however far it came before.
            let best_valid = values.reduce(f64::max).filter(|_| result.run.failed.is_none());
            trials.push(Trial { settings, epochs, best_valid, is_chosen: false });
            audience.ends(&task, findings)?;
        }
        let better = |a: &usize, b: &usize| {
            let value = |at: &usize| trials[*at].best_valid.unwrap_or(f64::NEG_INFINITY);
            value(a).total_cmp(&value(b)).then(b.cmp(a)) // of equals the first
        };
        let best = (0..trials.len()).max_by(better).unwrap_or(0);
        if trials[best].best_valid.is_none() {
            // Worth a line in the table, as it is without a search; the others continue.
            let why = "nothing that was tried made every held-out row possible, and so the first is taken";
            audience.event(&Event::Warning(format!("{}: {why}", contender.name)));
        }
        trials[best].is_chosen = true;
        Ok(Some((choices[best].clone(), trials)))
    }

    /// One run, from its last checkpoint if it has one. `None` if a stop was requested.
    async fn learn(
        &mut self,
        task: &Task,
        choice: &Choice,
        parent: &Path,
        audience: &mut dyn Audience,
    ) -> Result<Option<RunResult>> {
        let pipeline = self.spec.pipeline(choice, task.seed, task.epochs)?;
        let mut inputs = self.inputs.learned_as(&pipeline);
        if !task.trial.is_empty() {
            inputs.test = None; // test rows have no part in choosing
        }
        let name = format!("seed-{}", task.seed);
        let folder = RunFolder::new(parent, &name, &pipeline, &inputs, &self.options.place)?;
        if let Some(result) = folder.result()? {
            return Ok(Some(result));
        }
        audience.begins(task);
        let circuit = self.circuit(task.seed, audience).await?;
        let start = self.start(&pipeline, &circuit).await?;
        let options = TrainOptions {
            name: task.contender.clone(),
            out: folder.path().to_path_buf(),
            resume: true,
            force_resume: false,
            place: self.options.place.clone(),
            every_look: true,
        };
        let mut recorder = Recorder::new(&folder, &mut *audience);
        let finished = train_on(&inputs, circuit, &options, self.stop, &mut recorder).await;
        let mut result = recorder.finish(task.seed, start)?;
        match finished {
            // Also one that was stopped before its last look at held-out rows, which the next stretch makes up for.
            Ok(finished) if finished.epoch < task.epochs || !result.is_looked_at_after(task.epochs) => return Ok(None),
            Ok(finished) => result.run.rows = finished.rows,
            // A model that is none any more: the optimizer's doing, and worth a line in the table.
            Err(error) if error.kind() == ErrorKind::Diverged => {
                audience.event(&Event::Warning(format!("{} failed: {error}", task.contender)));
                result.run.failed = Some(error.to_string());
            }
            Err(error) => return Err(error),
        }
        (result.run.date, result.run.machine) = (self.options.date.clone(), self.options.machine_in_words.clone());
        folder.finish(&result)?;
        if !task.trial.is_empty() {
            folder.remove_checkpoints()?;
        }
        Ok(Some(result))
    }

    /// The circuit of a seed. It is the shared pipeline's: a contender may start elsewhere, not in another circuit.
    async fn circuit(&mut self, seed: u64, audience: &mut dyn Audience) -> Result<Arc<Circuit>> {
        if let Some((_, circuit)) = self.circuits.iter().find(|(of, _)| *of == seed) {
            return Ok(circuit.clone());
        }
        let inputs = self.inputs.learned_as(&self.spec.shared(seed)?);
        let mut seen = |share| audience.event(&Event::Structure { share });
        let circuit = Arc::new(inputs.build_circuit(&mut seen).await?);
        self.circuits.push((seed, circuit.clone()));
        Ok(circuit)
    }

    /// How likely held-out rows are where a contender starts.
    async fn start(&mut self, pipeline: &PipelineSpec, circuit: &Arc<Circuit>) -> Result<Point> {
        if let Some(start) = self.starts.iter().find(|start| start.circuit == pipeline.circuit) {
            return Ok(start.point);
        }
        // Only the parameters are the contender's: its optimizer and the size of its batches have no part in them.
        let shared = self.spec.shared(pipeline.batch.seed)?;
        let inputs = self.inputs.learned_as(&PipelineSpec { circuit: pipeline.circuit.clone(), ..shared });
        let Built { learner, .. } = inputs.build_learner(circuit, &self.options.place, Given::Nothing).await?;
        let mut point = Point::default();
        if let Some(valid) = &inputs.valid {
            let score = async |batch| learner.log_likelihoods(batch).await;
            let found = evaluate(&mut valid.open(&inputs)?, valid.rows, score).await?;
            point.valid = found.mean_log_likelihood.filter(|_| found.impossible_rows == 0);
        }
        self.starts.push(Start { circuit: pipeline.circuit.clone(), point });
        Ok(point)
    }
}

fn last(findings: &mut Findings) -> &mut Section {
    let at = findings.sections.len() - 1; // `compare` has put it there
    &mut findings.sections[at]
}

/// What a contender runs with, for people: what it chose, and what it has from the pipeline that matters as much.
fn settings(choice: &Choice, pipeline: &PipelineSpec) -> Vec<Setting> {
    let mut settings = as_learned(choice.settings(), pipeline);
    settings.retain(|setting| setting.key != "learn.optimizer"); // has a place of its own
    let learn = json!(pipeline.learn);
    for (key, value) in [("learn.smoothing", learn.get("smoothing")), ("batch.rows", Some(&json!(pipeline.batch.rows)))]
    {
        let is_there = settings.iter().any(|setting| setting.key == key);
        if let Some(value) = value.filter(|_| !is_there) {
            settings.push(Setting { key: key.into(), value: inline(value) });
        }
    }
    settings
}

/// Settings with the schedules that were gone through: a shorter run has a shorter one than the file says.
fn as_learned(mut settings: Vec<Setting>, pipeline: &PipelineSpec) -> Vec<Setting> {
    let learn = json!(pipeline.learn);
    for setting in settings.iter_mut().filter(|setting| setting.value.starts_with('{')) {
        let learned = setting.key.strip_prefix("learn.").and_then(|key| learn.get(key));
        setting.value = learned.map_or_else(|| std::mem::take(&mut setting.value), inline);
    }
    settings
}

/// The circuit in a few words.
fn describe_circuit(pipeline: &PipelineSpec) -> String {
    let model = &pipeline.circuit.model;
    match model.latents() {
        Some(latents) => format!("{}, {latents} latents", model.name()),
        None => model.name().to_string(),
    }
}
