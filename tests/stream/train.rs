//! A run from pipeline to checkpoint, through the library: limits, validation, resuming, refusing, run folder.

use std::fs;
use std::path::Path;

use anemone::backend::PlaceSpec;
use anemone::backend::cpu::{CpuBackend, CpuOptions};
use anemone::backend::{Backend, TrainingPrecision};
use anemone::circuit::StatesInUse;
use anemone::learner::checkpoint::{load, write};
use anemone::learner::{Checkpoint, Snapshot, latest};
use anemone::pipeline::observer::{Event, Finished, Observer};
use anemone::pipeline::run::{TrainOptions, train};
use anemone::pipeline::spec::PipelineSpec;
use anemone::pipeline::stop::Stop;
use anemone::{ErrorKind, Result};

use crate::common::shards;

/// 60 batches of an HMM's rows, twice over.
const SYNTHETIC: &str = "[source.synthetic]\nkind = 'hmm'\nnum_vars = 8\ncats = 6\nlatents = 3\nrows = 1900\n\
                         [batch]\nrows = 32\n[circuit]\nmodel = 'hmm'\nlatents = 4\n[learn]\nepochs = 2\n\
                         [validate]\nrows = 200\n[checkpoint]\nevery_batches = 20\nkeep = 2\n";

struct Watcher {
    stop: Stop,
    /// Asks for a stop after this many batches.
    stop_at: Option<u64>,
    events: Vec<Event>,
}

impl Observer for Watcher {
    fn event(&mut self, event: &Event) {
        if let Event::Step(line) = event
            && Some(line.step) == self.stop_at
        {
            self.stop.request();
        }
        self.events.push(event.clone());
    }
}

struct Run {
    out: tempfile::TempDir,
    resume: bool,
    force_resume: bool,
    stop_at: Option<u64>,
    threads: usize,
    precision: Option<TrainingPrecision>,
}

impl Run {
    fn new() -> Self {
        Self {
            out: tempfile::tempdir().unwrap(),
            resume: false,
            force_resume: false,
            stop_at: None,
            threads: 1,
            precision: None,
        }
    }

    fn go(&self, pipeline: &str) -> (Result<Finished>, Vec<Event>) {
        let spec = PipelineSpec::parse(pipeline, "test.toml").unwrap();
        let options = TrainOptions {
            name: "test".into(),
            out: self.out.path().join("run"),
            resume: self.resume,
            force_resume: self.force_resume,
            place: PlaceSpec { threads: Some(self.threads), precision: self.precision, ..PlaceSpec::default() },
            every_look: false,
        };
        let stop = Stop::new();
        let mut watcher = Watcher { stop: stop.clone(), stop_at: self.stop_at, events: vec![] };
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let finished = runtime.block_on(train(&spec, &options, &stop, &mut watcher));
        (finished, watcher.events)
    }

    fn checkpoints(&self) -> std::path::PathBuf {
        self.out.path().join("run/checkpoints")
    }

    fn last(&self) -> Checkpoint {
        latest(&self.checkpoints()).unwrap().found.unwrap().1
    }

    fn lines(&self) -> Vec<serde_json::Value> {
        let text = fs::read_to_string(self.out.path().join("run/metrics.jsonl")).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

fn assert_same_bits(a: &Checkpoint, b: &Checkpoint) {
    assert!(a.params == b.params, "parameters differ");
    assert!(a.optimizer == b.optimizer, "optimizer states differ");
    assert_eq!(a.meta.progress.cursor, b.meta.progress.cursor);
    assert_eq!(a.meta.progress.prequential, b.meta.progress.prequential);
    assert_eq!(a.meta.extra["best"], b.meta.extra["best"]);
}

#[test]
fn a_run_improves_and_leaves_what_it_promises() {
    let run = Run::new();
    let (finished, events) = run.go(SYNTHETIC);
    let finished = finished.unwrap();
    assert_eq!((finished.step, finished.epoch, finished.rows), (120, 2, 3800));
    let valid: Vec<f64> = events
        .iter()
        .filter_map(|event| match event {
            Event::Validated(validated) => validated.log_likelihood,
            _ => None,
        })
        .collect();
    assert_eq!(valid.len(), 2, "once an epoch");
    assert!(valid[1] > valid[0] && valid[1] < finished.source_ll.unwrap() + 0.2, "{valid:?} {finished:?}");
    // Two last ones and the best, which is the last here.
    let kept: Vec<String> = fs::read_dir(run.checkpoints())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .filter(|name| name.starts_with("step-"))
        .collect();
    assert_eq!(kept.len(), 2, "{kept:?}");
    // The resolved pipeline reads back, and metrics.jsonl has the promised keys.
    let resolved = fs::read_to_string(run.out.path().join("run/resolved.toml")).unwrap();
    let mut expected = PipelineSpec::parse(SYNTHETIC, "test").unwrap();
    expected.decode.cats = Some(6); // the data decided it, and it is written down
    assert_eq!(PipelineSpec::parse(&resolved, "resolved").unwrap(), expected);
    let lines = run.lines();
    for key in ["step", "epoch", "rows", "seconds", "prequential_ll", "valid_ll", "step_size", "rows_per_second"] {
        assert!(lines.iter().all(|line| line.get(key).is_some()), "{key}");
    }
    assert_eq!(lines.iter().filter(|line| !line["valid_ll"].is_null()).count(), 2);
    assert_eq!(lines.last().unwrap()["step"], 120);
    // Lines with a look at held-out rows, and no others, say how many states are in use: at the end, those of the
    // model.
    for line in &lines {
        assert_eq!(line["states_in_use"].is_null(), line["valid_ll"].is_null(), "{line}");
    }
    let last = run.last();
    let mut backend = CpuBackend::new(last.circuit.clone(), &last.params, &CpuOptions::default()).unwrap();
    let rows = backend.new_rows().unwrap();
    backend.top_down(rows).unwrap();
    let used = StatesInUse::new(&last.circuit, &backend.rows(rows).unwrap()).unwrap();
    assert_eq!(lines.last().unwrap()["states_in_use"].as_f64(), Some(used.mean()));
    let Some(Event::Validated(look)) = events.iter().rfind(|event| matches!(event, Event::Validated(_))) else {
        panic!("no look at held-out rows")
    };
    assert_eq!(look.states_in_use, Some(used.mean()));
}

#[test]
fn a_run_that_was_stopped_goes_on_to_the_same_bits_on_any_number_of_threads() {
    let whole = Run::new();
    whole.go(SYNTHETIC).0.unwrap();
    let expected = whole.last();
    for stop_at in [1, 20, 59, 60, 61, 119] {
        let mut run = Run::new();
        (run.stop_at, run.threads) = (Some(stop_at), 2);
        let (finished, _) = run.go(SYNTHETIC);
        assert_eq!(
            (finished.as_ref().unwrap().step, finished.unwrap().reason.as_str()),
            (stop_at, "stopped by a signal")
        );
        assert_eq!(run.last().meta.progress.batches, stop_at);
        (run.stop_at, run.resume, run.threads) = (None, true, 1);
        let (finished, events) = run.go(SYNTHETIC);
        assert_eq!(finished.unwrap().step, 120);
        assert!(matches!(&events[0], Event::Started(started) if started.step == stop_at && started.start.is_none()));
        assert_same_bits(&run.last(), &expected);
        // No step twice in the metrics, though the stretches overlap on disk.
        let steps: Vec<u64> =
            run.lines().iter().filter(|l| l["valid_ll"].is_null()).map(|l| l["step"].as_u64().unwrap()).collect();
        assert!(steps.is_sorted_by(|a, b| a < b), "{steps:?}");
    }
}

#[test]
fn a_run_that_is_resumed_keeps_its_precision_unless_told_another() {
    let run_in = |first, second| {
        let mut run = Run::new();
        (run.stop_at, run.precision) = (Some(20), first);
        run.go(SYNTHETIC).0.unwrap();
        (run.stop_at, run.resume, run.precision) = (None, true, second);
        run.go(SYNTHETIC).0.unwrap();
        run.last()
    };
    let whole = Run { precision: Some(TrainingPrecision::Bf16), ..Run::new() };
    let (finished, events) = whole.go(SYNTHETIC);
    assert!(matches!(&events[0], Event::Started(started) if started.precision == TrainingPrecision::Bf16));
    assert!(finished.unwrap().valid_ll.unwrap().is_finite());
    assert_same_bits(&run_in(Some(TrainingPrecision::Bf16), None), &whole.last());
    assert_eq!(whole.last().meta.extra["precision"], "bf16");
    let other = run_in(Some(TrainingPrecision::Bf16), Some(TrainingPrecision::F32));
    assert!(other.params != whole.last().params, "it was told to go on in f32");
    assert_eq!(other.meta.extra["precision"], "f32");
    assert_same_bits(&run_in(None, None), &run_in(Some(TrainingPrecision::F32), None));
}

#[test]
fn full_batch_em_keeps_its_half_epoch() {
    let pipeline = SYNTHETIC.replace("[learn]\n", "[learn]\noptimizer = 'full_batch_em'\n");
    let whole = Run::new();
    whole.go(&pipeline).0.unwrap();
    let mut run = Run::new();
    run.stop_at = Some(37);
    run.go(&pipeline).0.unwrap();
    (run.stop_at, run.resume) = (None, true);
    run.go(&pipeline).0.unwrap();
    assert_same_bits(&run.last(), &whole.last());
}

#[test]
fn a_run_is_not_resumed_on_something_else_unless_told_so() {
    let mut run = Run::new();
    run.stop_at = Some(30);
    run.go(SYNTHETIC).0.unwrap();
    run.stop_at = None;
    let (again, _) = run.go(SYNTHETIC);
    let error = again.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::State);
    assert!(error.to_string().contains("--resume") && error.to_string().contains("--out"), "{error}");
    run.resume = true;
    let seed = SYNTHETIC.replace("rows = 1900", "rows = 1900\nseed = 99");
    let others = [
        (seed.clone(), "the data"),
        (SYNTHETIC.replace("latents = 4", "latents = 5"), "the circuit"),
        (SYNTHETIC.replace("latents = 4", "latents = 4\nstart = 'noise'"), "the circuit"),
        (SYNTHETIC.replace("[learn]\n", "[learn]\noptimizer = 'adam'\n"), "the optimizer"),
        (SYNTHETIC.replace("[batch]\nrows = 32", "[batch]\nrows = 31"), "the batches"),
    ];
    for (other, what) in others {
        let error = run.go(&other).0.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::State);
        assert!(error.to_string().contains(what) && error.to_string().contains("--force-resume"), "{error}");
        assert_eq!(run.last().meta.progress.batches, 30, "the checkpoint stays as it was");
    }
    run.force_resume = true;
    let (finished, events) = run.go(&seed);
    assert_eq!(finished.unwrap().step, 120);
    let warned = |word: &str| events.iter().any(|event| matches!(event, Event::Warning(text) if text.contains(word)));
    assert!(warned("the data") && !warned("--force-resume"), "{events:?}");
}

#[test]
fn a_record_of_the_run_that_cannot_be_read_is_refused_unless_told_to_go_on() {
    let mut run = Run::new();
    run.stop_at = Some(30);
    run.go(SYNTHETIC).0.unwrap();
    let Checkpoint { circuit, params, optimizer, meta } = run.last();
    let (identity, mut extra, progress) = (meta.identity, meta.extra, meta.progress);
    extra.insert("memory_budget".into(), "2GiB".into());
    let snapshot = Snapshot { circuit, params, optimizer: optimizer.unwrap(), progress };
    write(&run.checkpoints(), &snapshot, &identity, &extra).unwrap();
    (run.stop_at, run.resume) = (None, true);
    let error = run.go(SYNTHETIC).0.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::State);
    for word in ["step-0000000030", "extra.memory_budget = \"2GiB\"", "remove this checkpoint", "--force-resume"] {
        assert!(error.to_string().contains(word), "`{error}` has no `{word}`");
    }
    assert_eq!(run.last().meta.progress.batches, 30);
    run.force_resume = true;
    let (finished, events) = run.go(SYNTHETIC);
    assert_eq!(finished.unwrap().step, 120);
    let warned = |word: &str| events.iter().any(|event| matches!(event, Event::Warning(text) if text.contains(word)));
    assert!(warned("extra.memory_budget") && !warned("--force-resume"), "{events:?}");
}

#[test]
fn a_run_that_began_when_noise_was_the_only_start_is_resumed_from_noise_by_name() {
    let noise = SYNTHETIC.replace("latents = 4", "latents = 4\nstart = 'noise'");
    let mut run = Run::new();
    run.stop_at = Some(30);
    run.go(&noise).0.unwrap();
    // What version 0.1.0 wrote for the same pipeline, before it knew of starts; nor did its pipeline name one.
    let then = "c131b01409a3ad6ad0a82c097c4075ff5c68792a3950d2a2b09289706544df61";
    assert_eq!(run.last().meta.identity.circuit_spec, then);
    let resolved = run.out.path().join("run/resolved.toml");
    assert!(fs::read_to_string(&resolved).unwrap().contains("start = \"noise\"\n"));
    (run.stop_at, run.resume) = (None, true);
    run.go(&noise).0.unwrap();
    assert_eq!(run.last().meta.identity.circuit_spec, then);
    assert!(fs::read_to_string(&resolved).unwrap().contains("start = \"noise\"\n"));
}

#[test]
fn forced_to_another_circuit_a_run_says_what_goes_on() {
    let mut run = Run::new();
    run.stop_at = Some(30);
    run.go(SYNTHETIC).0.unwrap();
    (run.stop_at, run.resume, run.force_resume) = (None, true, true);
    run.go(&SYNTHETIC.replace("latents = 4", "latents = 5")).0.unwrap();
    let resolved = fs::read_to_string(run.out.path().join("run/resolved.toml")).unwrap();
    let resolved = PipelineSpec::parse(&resolved, "resolved").unwrap();
    assert_eq!(resolved.circuit.model.latents(), Some(4), "the checkpoint's");
    // And with it nothing needs to be forced.
    run.force_resume = false;
    run.go(SYNTHETIC).0.unwrap();
}

#[test]
fn what_the_data_decided_is_in_the_resolved_pipeline() {
    let dir = tempfile::tempdir().unwrap();
    shards::write_texts(&dir.path().join("a.parquet"), &shards::texts(100, 1), 50);
    shards::write_rows(&dir.path().join("b.parquet"), (0..400).map(|i| (i % 7) as u8).collect(), 4, 50);
    let circuit = "[batch]\nrows = 8\n[circuit]\nmodel = 'hmm'\nlatents = 2\n";
    for (file, more, words) in [
        (
            "a.parquet",
            "column = 'text'\n",
            &["kind = \"text\"", "tokenizer = \"gpt2\"", "window = 128", "end_of_text = false"][..],
        ),
        ("b.parquet", "", &["column = \"snps\"", "kind = \"rows\"", "cats = 7"]),
    ] {
        let mut run = Run::new();
        run.go(&format!("[source]\nfiles = '{}'\n{more}{circuit}", dir.path().join(file).display())).0.unwrap();
        let resolved = fs::read_to_string(run.out.path().join("run/resolved.toml")).unwrap();
        words.iter().for_each(|word| assert!(resolved.contains(word), "no `{word}` in {resolved}"));
        run.resume = true;
        run.go(&resolved).0.unwrap(); // it is the same run
    }
}

/// Takes the held-out rows away while a run learns.
struct Remover {
    file: std::path::PathBuf,
    warnings: Vec<String>,
}

impl Observer for Remover {
    fn event(&mut self, event: &Event) {
        match event {
            Event::Started(_) => fs::remove_file(&self.file).unwrap(),
            Event::Warning(text) => self.warnings.push(text.clone()),
            _ => {}
        }
    }
}

#[test]
fn held_out_rows_that_went_away_end_a_run_only_if_every_look_counts() {
    for every_look in [false, true] {
        let run = Run::new();
        let (file, held_out) = (run.out.path().join("a.parquet"), run.out.path().join("b.parquet"));
        for path in [&file, &held_out] {
            shards::write_rows(path, (0..4000).map(|i| (i * i % 3) as u8).collect(), 4, 50);
        }
        let pipeline = format!(
            "[source]\nfiles = '{}'\n[batch]\nrows = 50\n[circuit]\nmodel = 'hmm'\nlatents = 2\n[learn]\nepochs = 2\n\
             [validate]\nfiles = '{}'\n",
            file.display(),
            held_out.display()
        );
        let spec = PipelineSpec::parse(&pipeline, "test.toml").unwrap();
        let options = TrainOptions {
            name: "test".into(),
            out: run.out.path().join("run"),
            resume: false,
            force_resume: false,
            place: PlaceSpec { threads: Some(1), ..PlaceSpec::default() },
            every_look,
        };
        let mut remover = Remover { file: held_out, warnings: vec![] };
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let finished = runtime.block_on(train(&spec, &options, &Stop::new(), &mut remover));
        if every_look {
            let error = finished.unwrap_err().to_string();
            assert!(error.contains("validate") && error.contains("b.parquet"), "{error}");
            assert!(run.last().meta.progress.batches > 0, "what was learned is saved");
            continue;
        }
        let finished = finished.unwrap();
        assert_eq!((finished.step, finished.epoch), (40, 2));
        assert!(remover.warnings.iter().any(|text| text.contains("held-out rows could not")), "{:?}", remover.warnings);
        assert_eq!(run.last().meta.progress.batches, 40, "what was learned is saved");
    }
}

#[test]
fn full_batch_em_is_not_begun_on_a_source_without_end() {
    let endless = SYNTHETIC.replace("rows = 1900\n", "").replace("[learn]\nepochs = 2", "[learn]\nbatches = 5");
    Run::new().go(&endless).0.unwrap();
    let run = Run::new();
    let error = run.go(&endless.replace("[learn]\n", "[learn]\noptimizer = 'full_batch_em'\n")).0.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Option);
    assert!(error.to_string().contains("mini_batch_em"), "{error}");
}

#[test]
fn forced_to_another_optimizer_a_run_goes_on_with_its_parameters() {
    let mut run = Run::new();
    run.stop_at = Some(30);
    run.go(SYNTHETIC).0.unwrap();
    (run.stop_at, run.resume, run.force_resume) = (None, true, true);
    let adam = SYNTHETIC.replace("[learn]\n", "[learn]\noptimizer = 'adam'\n");
    let (finished, _) = run.go(&adam);
    assert_eq!(finished.unwrap().step, 120);
    assert_eq!(run.last().optimizer.unwrap().optimizer, "adam");
}

#[test]
fn without_one_whole_checkpoint_a_run_does_not_start_over_in_silence() {
    let mut run = Run::new();
    run.stop_at = Some(10);
    run.go(SYNTHETIC).0.unwrap();
    let (only, _) = latest(&run.checkpoints()).unwrap().found.unwrap();
    fs::write(only.join("optimizer.safetensors"), "").unwrap();
    (run.stop_at, run.resume) = (None, true);
    let error = run.go(SYNTHETIC).0.unwrap_err();
    assert!(error.to_string().contains("no checkpoint is whole"), "{error}");
}

#[test]
fn held_out_rows_of_another_width_are_refused_before_the_first_batch() {
    let dir = tempfile::tempdir().unwrap();
    shards::write_rows(&dir.path().join("train.parquet"), vec![1; 8 * 300], 8, 100);
    shards::write_rows(&dir.path().join("valid.parquet"), vec![1; 7 * 30], 7, 100);
    let at = |name: &str| dir.path().join(name).display().to_string();
    let (train, valid) = (at("train.parquet"), at("valid.parquet"));
    let pipeline =
        format!("[source]\nfiles = '{train}'\n[circuit]\nmodel = 'hmm'\nlatents = 2\n[validate]\nfiles = '{valid}'\n");
    let (finished, events) = Run::new().go(&pipeline);
    let error = finished.unwrap_err();
    assert!(error.to_string().contains("validate") && error.to_string().contains("7 values"), "{error}");
    assert_eq!(events, []);
}

#[test]
fn the_ledger_is_written_also_when_there_are_too_many_bad_records() {
    let dir = tempfile::tempdir().unwrap();
    let pipeline = with_a_null(dir.path());
    let run = Run::new();
    let error = run.go(&format!("{pipeline}[pipeline]\non_bad = 'quarantine'\nmax_bad = 0\n")).0.unwrap_err();
    assert!(error.to_string().contains("pipeline.max_bad"), "{error}");
    let ledger = fs::read_to_string(run.out.path().join("run/quarantine.jsonl")).unwrap();
    assert_eq!(ledger.lines().count(), 1);
}

#[test]
fn a_finished_run_that_is_resumed_adds_no_step_to_its_metrics() {
    let mut run = Run::new();
    run.go(SYNTHETIC).0.unwrap();
    let before = run.lines();
    run.resume = true;
    assert_eq!(run.go(SYNTHETIC).0.unwrap().step, 120);
    assert!(run.lines().iter().all(|line| line["step"].as_u64().unwrap() > 0));
    assert!(run.lines().len() <= before.len() + 1);
    assert_eq!(run.last().meta.progress.batches, 120);
}

#[test]
fn a_damaged_newer_checkpoint_does_not_push_out_the_good_ones() {
    let mut run = Run::new();
    let one = SYNTHETIC.replace("keep = 2", "keep = 1\nkeep_best = false");
    run.stop_at = Some(50);
    run.go(&one).0.unwrap();
    let good = run.checkpoints().join("step-0000000050");
    let damaged = run.checkpoints().join("step-0000000999");
    fs::create_dir(&damaged).unwrap();
    fs::copy(good.join("checkpoint.json"), damaged.join("checkpoint.json")).unwrap();
    (run.stop_at, run.resume) = (Some(70), true);
    run.go(&one).0.unwrap();
    assert_eq!(run.last().meta.progress.batches, 70, "the newest whole one");
}

#[test]
fn a_changed_step_size_is_not_something_else() {
    let mut run = Run::new();
    run.stop_at = Some(30);
    run.go(SYNTHETIC).0.unwrap();
    (run.stop_at, run.resume) = (None, true);
    let slower = SYNTHETIC.replace("[learn]\n", "[learn]\nstep = 0.1\n");
    assert_eq!(run.go(&slower).0.unwrap().step, 120);
}

#[test]
fn a_damaged_checkpoint_is_passed_over_and_the_one_before_serves() {
    let whole = Run::new();
    whole.go(SYNTHETIC).0.unwrap();
    let mut run = Run::new();
    run.stop_at = Some(50);
    run.go(SYNTHETIC).0.unwrap();
    let (newest, _) = latest(&run.checkpoints()).unwrap().found.unwrap();
    let model = newest.join("model.safetensors");
    let mut bytes = fs::read(&model).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&model, bytes).unwrap();
    assert!(load(&newest).is_err());
    (run.stop_at, run.resume) = (None, true);
    let (finished, events) = run.go(SYNTHETIC);
    assert_eq!(finished.unwrap().step, 120);
    assert!(matches!(&events[0], Event::Warning(text) if text.contains("step-0000000050")), "{:?}", events[0]);
    assert_same_bits(&run.last(), &whole.last());
}

#[test]
fn limits_by_batches_end_a_run_and_more_of_them_go_on() {
    let limited = |batches: u64| SYNTHETIC.replace("epochs = 2", &format!("batches = {batches}"));
    let mut run = Run::new();
    assert_eq!(run.go(&limited(70)).0.unwrap().reason, "70 batches");
    run.resume = true;
    assert_eq!(run.go(&limited(90)).0.unwrap().step, 90);
}

/// Eight text records, the fifth of which is null.
fn with_a_null(dir: &Path) -> String {
    let texts = shards::texts(400, 1);
    let column = arrow::array::StringArray::from_iter(texts.iter().enumerate().map(|(i, t)| (i != 4).then_some(t)));
    shards::write_parquet(&dir.join("bad.parquet"), "text", std::sync::Arc::new(column), 100);
    format!(
        "[source]\nfiles = '{}'\n[decode]\nkind = 'text'\nwindow = 16\n[batch]\nrows = 8\n\
         [circuit]\nmodel = 'hmm'\nlatents = 2\n\
         [learn]\nepochs = 2\n",
        dir.join("bad.parquet").display()
    )
}

#[test]
fn bad_records_fail_are_skipped_or_go_into_the_ledger_once() {
    let dir = tempfile::tempdir().unwrap();
    let pipeline = with_a_null(dir.path());
    let error = Run::new().go(&pipeline).0.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Data);
    assert!(error.to_string().contains("bad.parquet: row 4: null"), "{error}");

    let (finished, events) = Run::new().go(&format!("{pipeline}[pipeline]\non_bad = 'skip'\n"));
    finished.unwrap();
    assert!(events.iter().any(|event| matches!(event, Event::Warning(text) if text.contains("row 4: null"))));

    let run = Run::new();
    run.go(&format!("{pipeline}[pipeline]\non_bad = 'quarantine'\n")).0.unwrap();
    let ledger = fs::read_to_string(run.out.path().join("run/quarantine.jsonl")).unwrap();
    assert_eq!(ledger.lines().count(), 1, "two epochs meet it, the ledger has it once: {ledger}");
    let entry: serde_json::Value = serde_json::from_str(&ledger).unwrap();
    assert_eq!((&entry["position"], &entry["reason"]), (&4.into(), &"null".into()));
    let cursor = run.last().meta.progress.cursor;
    assert_eq!((cursor.bad_records, cursor.bad_before_epoch), (2, 2), "once an epoch");
}
