//! The learner as a service: what it promises about order, waiting, failure, and about going on where it stopped.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc;
use std::time::Duration;

use crate::common::cases::{Case, mixed, tied_hmm};
use crate::common::{bits, start};
use anemone::backend::Backend;
use anemone::circuit::Categorical;
use anemone::data::{Batch, Cursor, Digest, Item};
use anemone::learner::{
    Checkpoint, CheckpointFolder, Hold, Identity, Learner, Progress, Snapshot, checkpoint, circuit_digest, latest,
    model,
};
use anemone::optim::{Optimizer, OptimizerSpec, OptimizerState, StepReport};
use anemone::structure::{Tying, hmm};
use anemone::{Error, ErrorKind, Result};
use serde_json::{Map, Value, json};

/// Every optimizer, with and without several batches an update, with step sizes that depend on the number of updates.
fn optimizers() -> Vec<OptimizerSpec> {
    let power = json!({"schedule": "power", "from": 0.8, "kappa": 0.6, "delay": 2.0});
    let specs = [
        json!({"optimizer": "anemone", "step": power}),
        json!({"optimizer": "anemone", "momentum": 0.0}),
        json!({"optimizer": "anemone", "batches_per_update": 3, "step": power}),
        json!({"optimizer": "full_batch_em"}),
        json!({"optimizer": "mini_batch_em", "momentum": 0.5, "step": power}),
        json!({"optimizer": "mini_batch_em", "batches_per_update": 2}),
        json!({"optimizer": "stepwise_em", "step": power}),
        json!({"optimizer": "stepwise_em", "batches_per_update": 2}),
        json!({"optimizer": "adam", "rate": power}),
        json!({"optimizer": "adam", "batches_per_update": 2}),
        json!({"optimizer": "sgd", "rate": power}),
        json!({"optimizer": "sgd", "batches_per_update": 3}),
    ];
    specs.map(|spec| serde_json::from_value(spec).unwrap()).to_vec()
}

fn anemone() -> OptimizerSpec {
    optimizers().swap_remove(0)
}

fn small() -> Case {
    Case::new("tied hmm", tied_hmm(5, 3, 4))
}

/// A short stream: epochs of batches of unequal size, with missing cells and weights.
fn stream(case: &Case, epochs: u64) -> Vec<Item> {
    let mut items = Vec::new();
    for epoch in 0..epochs {
        let mut row = 0;
        for (i, rows) in [4, 5, 3, 1].into_iter().enumerate() {
            row += rows as u64;
            let weights = (0..rows).map(|r| 0.5 + r as f32).collect();
            let batch = case.batch_with_missing(rows, 10 * epoch + i as u64).with_weights(weights).unwrap();
            let carry = vec![7; i]; // what a token stream leaves over
            items.push(Item::Batch { batch, end: Cursor { epoch, row, carry, records: 3, ..Cursor::default() } });
        }
        items.push(Item::EpochEnd { next: Cursor { epoch: epoch + 1, records: 99, ..Cursor::default() } });
    }
    items
}

fn learner(case: &Case, spec: &OptimizerSpec, resume: Option<&Checkpoint>) -> Learner {
    let (backend, optimizer) = start(&case.circuit, &case.params, spec);
    Learner::spawn(Box::new(backend), optimizer, resume).unwrap()
}

async fn feed(learner: &Learner, items: &[Item]) {
    for item in items {
        match item.clone() {
            Item::Batch { batch, end } => drop(learner.learn_to(batch, end).await.unwrap()),
            Item::EpochEnd { next } => drop(learner.end_epoch(next).await.unwrap()),
        }
    }
}

/// Progress without the clocks, which are never the same.
fn timeless(progress: &Progress) -> Progress {
    Progress { compute_seconds: 0.0, query_seconds: 0.0, wait_seconds: 0.0, ..progress.clone() }
}

fn write(dir: &Path, snapshot: &Snapshot) -> PathBuf {
    checkpoint::write(dir, snapshot, &Identity::default(), &Map::new()).unwrap()
}

#[tokio::test]
async fn stop_load_continue_gives_the_same_bits_as_never_stopping() {
    let home = tempfile::tempdir().unwrap();
    for case in [small(), Case::new("mixed inputs", mixed())] {
        let items = stream(&case, 2);
        for (i, spec) in optimizers().iter().enumerate() {
            // Densities have no gradient steps, and of the EM rules one way each will do.
            if !case.is_discrete() && ![0, 3, 4, 7].contains(&i) {
                continue;
            }
            // The run that never stops, without any learner around it.
            let (mut backend, mut optimizer) = start(&case.circuit, &case.params, spec);
            for item in &items {
                match item {
                    Item::Batch { batch, .. } => drop(optimizer.learn(&mut backend, batch).unwrap()),
                    Item::EpochEnd { .. } => drop(optimizer.end_epoch(&mut backend).unwrap()),
                }
            }
            let expected = (bits(&backend.averaged_params().unwrap()), optimizer.save(&backend).unwrap());

            // One that is written down at every position. The end of an epoch is a position without a step of its own.
            let watched = learner(&case, spec, None);
            let mut saved = Vec::new();
            for (position, item) in items.iter().enumerate() {
                let dir = home.path().join(format!("{}-{i}-{position}", case.circuit.num_vars()));
                saved.push(write(&dir, &watched.snapshot().await.unwrap()));
                feed(&watched, std::slice::from_ref(item)).await;
            }
            let end = watched.snapshot().await.unwrap();
            assert!((bits(&end.params), end.optimizer) == expected, "{}: {spec:?}: snapshots disturb", case.name);

            for (position, path) in saved.iter().enumerate() {
                let checkpoint = checkpoint::load(path).unwrap();
                // A process that knows the structure and no parameters.
                let fresh =
                    Case { params: anemone::circuit::Params::random(&case.circuit, 99, 1.0).unwrap(), ..case.clone() };
                let resumed = learner(&fresh, spec, Some(&checkpoint));
                feed(&resumed, &items[position..]).await;
                let again = resumed.snapshot().await.unwrap();
                let place = format!("{}: {spec:?}: stopped at {position}", case.name);
                assert!((bits(&again.params), again.optimizer) == expected, "{place}: other bits");
                assert_eq!(timeless(&again.progress), timeless(&end.progress), "{place}");
            }
        }
    }
}

#[tokio::test]
async fn questions_while_learning_do_not_change_what_is_learned() {
    let case = small();
    let items = stream(&case, 3);
    let quiet = learner(&case, &anemone(), None);
    feed(&quiet, &items).await;
    let asked = learner(&case, &anemone(), None);
    let asker = tokio::spawn({
        let (asked, probe) = (asked.clone(), case.batch(70, 5));
        async move {
            for _ in 0..30 {
                assert_eq!(asked.log_likelihoods(probe.clone()).await.unwrap().len(), 70);
                asked.params().await.unwrap();
                asked.snapshot().await.unwrap();
            }
        }
    });
    feed(&asked, &items).await;
    asker.await.unwrap();
    assert_eq!(bits(&asked.params().await.unwrap()), bits(&quiet.params().await.unwrap()));
    let progress = asked.progress();
    assert_eq!(timeless(&progress), timeless(&quiet.progress()));
    assert!(progress.compute_seconds > 0.0 && progress.query_seconds > 0.0 && progress.wait_seconds > 0.0);
}

/// An optimizer that does something first.
struct Hooked {
    inner: Box<dyn Optimizer>,
    before: Box<dyn FnMut() -> Result<()> + Send>,
}

impl Optimizer for Hooked {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn learn(&mut self, backend: &mut dyn Backend, batch: &Batch) -> Result<StepReport> {
        (self.before)()?;
        self.inner.learn(backend, batch)
    }

    fn end_epoch(&mut self, backend: &mut dyn Backend) -> Result<bool> {
        (self.before)()?;
        self.inner.end_epoch(backend)
    }

    fn save(&self, backend: &dyn Backend) -> Result<OptimizerState> {
        self.inner.save(backend)
    }

    fn load(&mut self, backend: &mut dyn Backend, state: &OptimizerState) -> Result<()> {
        self.inner.load(backend, state)
    }
}

fn hooked(case: &Case, before: impl FnMut() -> Result<()> + Send + 'static) -> Learner {
    let (backend, inner) = start(&case.circuit, &case.params, &anemone());
    Learner::spawn(Box::new(backend), Box::new(Hooked { inner, before: Box::new(before) }), None).unwrap()
}

/// A learner that waits before every batch until it is told to go on, or until the teller is gone.
fn gated(case: &Case) -> (Learner, mpsc::Sender<()>) {
    let (open, gate) = mpsc::channel();
    let learner = hooked(case, move || {
        gate.recv().ok();
        Ok(())
    });
    (learner, open)
}

/// Starts `count` calls of `learn`, each in a task, and lets them come as far as they can.
async fn start_learning(
    learner: &Learner,
    case: &Case,
    count: usize,
) -> Vec<tokio::task::JoinHandle<Result<StepReport>>> {
    let tasks = (0..count).map(|i| {
        let (learner, batch) = (learner.clone(), case.batch(2, i as u64));
        tokio::spawn(async move { learner.learn(batch).await })
    });
    let tasks: Vec<_> = tasks.collect();
    tokio::time::sleep(Duration::from_millis(100)).await;
    tasks
}

#[tokio::test]
async fn a_busy_learner_takes_in_two_more_batches_and_lets_the_rest_wait() {
    let case = small();
    let (learner, open) = gated(&case);
    let tasks = start_learning(&learner, &case, 6).await;
    assert!(tasks.iter().all(|task| !task.is_finished()));
    // Who gives up while waiting for room was never heard; what was taken in is carried out.
    for task in tasks {
        task.abort();
        assert!(task.await.unwrap_err().is_cancelled());
    }
    drop(open);
    learner.params().await.unwrap();
    assert_eq!(learner.progress().step, 1 + 2);
}

#[tokio::test]
async fn a_refused_batch_concerns_its_sender_alone_and_leaves_no_trace() {
    let case = small();
    let (spoiled, clean) = (learner(&case, &anemone(), None), learner(&case, &anemone(), None));
    let good = case.batch(4, 1);
    let bad = [
        Batch::from_rows(&[0u8, 1, 2, 3, 200], 5).unwrap(),
        Batch::from_rows(&[0u8, 1], 2).unwrap(),
        Batch::from_rows::<u8>(&[], 5).unwrap(),
    ];
    for learner in [&spoiled, &clean] {
        learner.learn(good.clone()).await.unwrap();
    }
    for batch in bad {
        let before = timeless(&spoiled.progress());
        let place = Cursor { row: 1_000_000, ..Cursor::default() };
        assert_eq!(spoiled.learn_to(batch.clone(), place).await.unwrap_err().kind(), ErrorKind::Data);
        assert_eq!(spoiled.log_likelihoods(batch).await.unwrap_err().kind(), ErrorKind::Data);
        assert_eq!(timeless(&spoiled.progress()), before);
    }
    for learner in [&spoiled, &clean] {
        learner.learn(good.clone()).await.unwrap();
    }
    assert_eq!(bits(&spoiled.params().await.unwrap()), bits(&clean.params().await.unwrap()));
    assert_eq!(spoiled.progress().cursor, Cursor { row: 8, ..Cursor::default() });
    spoiled.close().await.unwrap();
}

#[tokio::test]
async fn a_failure_while_learning_stops_the_learner_and_everybody_hears_why() {
    let case = small();
    let (open, gate) = mpsc::channel::<()>();
    let learner = hooked(&case, move || {
        gate.recv().ok();
        Err(Error::io("device 0", &std::io::Error::other("fell off the bus")))
    });
    let tasks = start_learning(&learner, &case, 5).await;
    drop(open);
    let mut stopped = 0;
    for task in tasks {
        let error = task.await.unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io);
        assert!(error.to_string().ends_with("device 0: fell off the bus"), "{error}");
        stopped += usize::from(error.to_string().starts_with("the learner stopped: "));
    }
    assert_eq!(stopped, 4, "one is told by the device, the others by the learner");
    assert!(learner.snapshot().await.is_err() && learner.learn_blocking(case.batch(1, 1)).is_err());
    assert_eq!(timeless(&learner.progress()), Progress::default());
    let error = learner.close().await.unwrap_err();
    assert_eq!(error.to_string(), "the learner stopped: device 0: fell off the bus");
}

struct SlowToEnd;

impl Drop for SlowToEnd {
    fn drop(&mut self) {
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[tokio::test]
async fn a_panic_is_an_error_to_everybody_who_waits() {
    let case = small();
    let (open, gate) = mpsc::channel::<()>();
    let slow = SlowToEnd; // callers are woken long before the thread knows how it ended
    let learner = hooked(&case, move || {
        let _ = &slow;
        gate.recv().ok();
        panic!("a wheel came {}", "off")
    });
    let tasks = start_learning(&learner, &case, 5).await;
    drop(open);
    for task in tasks {
        let error = tokio::time::timeout(Duration::from_secs(10), task).await.expect("nobody waits for ever");
        assert_eq!(error.unwrap().unwrap_err().to_string(), "the learner stopped: it panicked: a wheel came off");
    }
    assert!(learner.log_likelihoods_blocking(case.batch(1, 1)).is_err());
    assert!(learner.close().await.unwrap_err().to_string().contains("a wheel came off"));
}

#[tokio::test]
async fn closing_finishes_what_was_taken_in_and_tells_the_others() {
    let case = small();
    let (learner, open) = gated(&case);
    let other = learner.clone();
    let tasks = start_learning(&learner, &case, 3).await;
    let closing = tokio::spawn(learner.close());
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!closing.is_finished());
    drop(open);
    closing.await.unwrap().unwrap();
    for task in tasks {
        task.await.unwrap().unwrap();
    }
    assert_eq!(other.progress().step, 3);
    assert!(other.params().await.unwrap_err().to_string().contains("was closed"));
    other.close().await.unwrap();
}

#[test]
fn the_thread_ends_when_the_last_handle_is_dropped() {
    let case = small();
    let (alive, ended) = mpsc::channel::<()>();
    let learner = hooked(&case, move || {
        alive.send(()).ok();
        Ok(())
    });
    let clone = learner.clone();
    drop(learner);
    clone.learn_blocking(case.batch(2, 1)).unwrap();
    ended.recv_timeout(Duration::from_secs(10)).unwrap();
    assert_eq!(ended.try_recv(), Err(mpsc::TryRecvError::Empty), "the optimizer lives");
    drop(clone);
    assert_eq!(ended.recv_timeout(Duration::from_secs(10)), Err(mpsc::RecvTimeoutError::Disconnected));
}

#[tokio::test]
async fn a_checkpoint_is_resumed_by_its_circuit_and_its_optimizer_alone() {
    let home = tempfile::tempdir().unwrap();
    let case = small();
    let first = learner(&case, &anemone(), None);
    feed(&first, &stream(&case, 1)).await;
    let snapshot = first.snapshot().await.unwrap();
    let checkpoint = checkpoint::load(&write(home.path(), &snapshot)).unwrap();

    let spawn = |case: &Case, spec: &OptimizerSpec, checkpoint: &Checkpoint| {
        let (backend, optimizer) = start(&case.circuit, &case.params, spec);
        Learner::spawn(Box::new(backend), optimizer, Some(checkpoint))
    };
    // The same parameter blocks in another structure: the numbers would fit.
    let reordered = Case::new("longer", tied_hmm(6, 3, 4));
    assert_eq!(reordered.circuit.layout(), case.circuit.layout());
    let error = spawn(&reordered, &anemone(), &checkpoint).unwrap_err();
    assert!(error.kind() == ErrorKind::State && error.to_string().contains("another circuit"), "{error}");
    assert!(error.to_string().contains(&circuit_digest(&case.circuit)[..12]), "{error}");

    let adam = &optimizers()[8];
    let error = spawn(&case, adam, &checkpoint).unwrap_err();
    assert!(error.kind() == ErrorKind::State && error.to_string().contains("anemone"), "{error}");
    let changed = spawn(&case, adam, &checkpoint.without_optimizer()).unwrap();
    assert_eq!(bits(&changed.params().await.unwrap()), bits(&snapshot.params));
    assert_eq!(timeless(&changed.progress()), timeless(&snapshot.progress));
}

/// A small checkpoint with something in every part of it.
fn sample_snapshot(steps: usize) -> Snapshot {
    let case = small();
    let learner = learner(&case, &optimizers()[2], None);
    for i in 0..steps {
        learner.learn_blocking(case.batch(3, i as u64)).unwrap();
    }
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(learner.snapshot()).unwrap()
}

fn files(path: &Path) -> Vec<PathBuf> {
    let mut files: Vec<_> = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

fn names(path: &Path) -> Vec<String> {
    files(path).iter().map(|path| path.file_name().unwrap().to_str().unwrap().to_string()).collect()
}

#[test]
fn a_checkpoint_says_what_it_was_given() {
    let home = tempfile::tempdir().unwrap();
    let snapshot = sample_snapshot(5);
    let identity =
        Identity { data: Digest::of(b"data"), optimizer: json!({"optimizer": "anemone"}), ..Identity::default() };
    let extra = json!({"best": {"step": 3, "log_likelihood": -0.1}, "é\"\n": "…"}).as_object().unwrap().clone();
    let path = checkpoint::write(home.path(), &snapshot, &identity, &extra).unwrap();
    assert_eq!(path, home.path().join("step-0000000005"));
    assert_eq!(names(&path), ["checkpoint.json", "circuit.json", "model.safetensors", "optimizer.safetensors"]);
    let loaded = checkpoint::load(&path).unwrap();
    assert_eq!((&loaded.meta.identity, &loaded.meta.extra), (&identity, &extra));
    assert_eq!(loaded.meta.progress, snapshot.progress);
    assert_eq!(loaded.optimizer, Some(snapshot.optimizer.clone()));
    assert_eq!(bits(&loaded.params), bits(&snapshot.params));
    assert_eq!(circuit_digest(&loaded.circuit), circuit_digest(&snapshot.circuit));
    assert_eq!(loaded.meta.files["circuit.json"].sha256, circuit_digest(&snapshot.circuit));
    let text = fs::read_to_string(path.join("checkpoint.json")).unwrap();
    assert!(serde_json::from_str::<Value>(&text).unwrap()["body"]["progress"]["step"] == 5, "it is JSON to others too");

    let kept = home.path().join("model");
    model::save(&kept, &snapshot, &identity, &extra).unwrap();
    assert_eq!(names(&kept), ["checkpoint.json", "circuit.json", "model.safetensors"]);
    for path in [&kept, &path] {
        let model = model::load(path).unwrap();
        assert_eq!(bits(&model.params), bits(&snapshot.params));
        assert_eq!(model.meta.extra, extra);
    }
    assert!(checkpoint::load(&kept).unwrap().optimizer.is_none());
    // A model does not need the optimizer's file even where one belongs.
    fs::remove_file(path.join("optimizer.safetensors")).unwrap();
    assert!(model::load(&path).is_ok() && checkpoint::load(&path).is_err());
    let error = model::load(&home.path().join("nowhere")).unwrap_err();
    assert!(error.to_string().contains("nowhere"), "{error}");
}

#[test]
fn what_cannot_be_read_back_is_not_written() {
    let home = tempfile::tempdir().unwrap();
    let spoil: [fn(&mut Snapshot); 2] = [
        |snapshot| snapshot.progress.prequential.weight = f64::NAN,
        |snapshot| *snapshot.optimizer.numbers.get_mut("pending_weight").unwrap() = f64::INFINITY,
    ];
    for spoil in spoil {
        let mut snapshot = sample_snapshot(1);
        spoil(&mut snapshot);
        let error = checkpoint::write(home.path(), &snapshot, &Identity::default(), &Map::new()).unwrap_err();
        assert!(error.kind() == ErrorKind::State && error.to_string().contains("cannot be saved"), "{error}");
    }
    assert_eq!(names(home.path()), [] as [&str; 0]);
}

#[test]
fn every_flipped_cut_or_missing_byte_is_noticed() {
    let home = tempfile::tempdir().unwrap();
    let path = write(home.path(), &sample_snapshot(4));
    checkpoint::load(&path).unwrap();
    for file in files(&path) {
        let whole = fs::read(&file).unwrap();
        let name = file.file_name().unwrap().to_str().unwrap().to_string();
        let check = |bytes: &[u8], what: &str| {
            fs::write(&file, bytes).unwrap();
            let error = checkpoint::load(&path).expect_err(&format!("{name}: {what} goes unnoticed"));
            assert_eq!(error.kind(), ErrorKind::Format, "{name}: {what}: {error}");
            assert!(error.to_string().contains(&name), "{name}: {what}: {error}");
        };
        let stride = if name == "checkpoint.json" { 1 } else { 7 };
        for at in (0..whole.len()).step_by(stride) {
            let mut bytes = whole.clone();
            bytes[at] ^= 1 << (at % 8);
            check(&bytes, &format!("a bit of byte {at}"));
        }
        for end in (0..whole.len()).step_by(97).chain([whole.len() - 1]) {
            check(&whole[..end], &format!("cut at {end}"));
        }
        check(&[&whole[..], b"\n"].concat(), "a byte too many");
        fs::remove_file(&file).unwrap();
        let error = checkpoint::load(&path).unwrap_err().to_string();
        assert!(error.contains(&name) && error.contains("is missing"), "{error}");
        fs::write(&file, &whole).unwrap();
    }
    checkpoint::load(&path).unwrap();
}

/// Rewrites a checkpoint's description so that its hash is right.
fn rewrite_meta(path: &Path, from: &str, to: &str) {
    let file = path.join("checkpoint.json");
    let text = fs::read_to_string(&file).unwrap();
    let hash_at = text.rfind(",\n\"sha256\"").unwrap();
    let body = &text["{\n\"body\": ".len()..hash_at];
    assert!(body.contains(from));
    let body = body.replacen(from, to, 1);
    fs::write(&file, format!("{{\n\"body\": {body},\n\"sha256\": \"{}\"\n}}\n", Digest::of(body.as_bytes()))).unwrap();
}

#[test]
fn the_latest_is_the_newest_that_is_whole_and_a_newer_format_is_never_skipped() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("checkpoints");
    assert!(latest(&dir).unwrap().found.is_none(), "a folder that is not there has no checkpoint");
    let paths: Vec<_> = [9, 10, 11, 100].into_iter().map(|steps| write(&dir, &sample_snapshot(steps))).collect();
    fs::create_dir(dir.join("step-200")).unwrap();
    fs::create_dir(dir.join("step-one")).unwrap();
    let folder = CheckpointFolder::open(&dir).unwrap();
    assert_eq!(folder.list().unwrap().iter().map(|(step, _)| *step).collect::<Vec<_>>(), [9, 10, 11, 100]);
    assert_eq!(folder.latest().unwrap().found.unwrap().0, paths[3]);

    fs::write(paths[3].join("model.safetensors"), "x").unwrap();
    fs::remove_file(paths[2].join("checkpoint.json")).unwrap();
    let found = folder.latest().unwrap();
    assert_eq!(found.found.unwrap().0, paths[1]);
    assert_eq!(found.damaged.iter().map(|(path, _)| path).collect::<Vec<_>>(), [&paths[3], &paths[2]]);
    assert!(found.damaged[0].1.to_string().contains("model.safetensors"));
    assert!(found.damaged[1].1.to_string().contains("is missing"));

    rewrite_meta(&paths[0], "\"epoch\": 0", "\"epoch\": \"none\"");
    rewrite_meta(&paths[1], "\"files\"", "\"flies\"");
    let none = folder.latest().unwrap();
    assert!(none.found.is_none() && none.damaged.len() == 4);

    write(&dir, &sample_snapshot(100));
    assert_eq!(folder.latest().unwrap().found.unwrap().0, paths[3], "a rerun replaces a damaged one");
    rewrite_meta(&paths[3], "\"format\": 1", "\"format\": 2");
    let error = folder.latest().unwrap_err();
    assert!(error.kind() == ErrorKind::Unsupported && error.to_string().contains("newer anemone"), "{error}");
}

#[test]
fn pruning_keeps_the_last_ones_and_the_best() {
    let home = tempfile::tempdir().unwrap();
    let folder = CheckpointFolder::open(home.path()).unwrap();
    let mut snapshot = sample_snapshot(1);
    let steps: Vec<u64> = (1..=6).collect();
    for &step in &steps {
        snapshot.progress.step = step;
        folder.write(&snapshot, &Identity::default(), &Map::new()).unwrap();
    }
    let left = || folder.list().unwrap().into_iter().map(|(step, _)| step).collect::<Vec<_>>();
    assert!(folder.prune(99, 0, None).is_err());
    assert_eq!(folder.prune(99, 9, None).unwrap(), [] as [PathBuf; 0]);
    assert_eq!(left(), steps);
    assert_eq!(folder.prune(99, 2, Some(2)).unwrap().len(), 3);
    assert_eq!(left(), [2, 5, 6]);
    folder.prune(99, 1, Some(6)).unwrap();
    assert_eq!(left(), [6]);
    let all: BTreeSet<String> = names(home.path()).into_iter().collect();
    assert_eq!(all, [".lock".to_string(), "step-0000000006".to_string()].into(), "nothing else is left");
}

#[test]
fn a_folder_has_one_writer_at_a_time_and_forgets_what_was_unfinished() {
    let home = tempfile::tempdir().unwrap();
    let first = CheckpointFolder::open(home.path()).unwrap();
    fs::create_dir(home.path().join(".tmp-step-0000000007-1")).unwrap();
    let error = CheckpointFolder::open(home.path()).unwrap_err();
    assert!(error.kind() == ErrorKind::State && error.to_string().contains("another run"), "{error}");
    assert_eq!(names(home.path()).len(), 2, "who has no lock touches nothing");
    drop(first);
    let second = CheckpointFolder::open(home.path()).unwrap();
    assert_eq!(names(home.path()), [".lock"]);
    let path = second.write(&sample_snapshot(1), &Identity::default(), &Map::new()).unwrap();
    assert_eq!(second.latest().unwrap().found.unwrap().0, path);
}

#[test]
fn a_folder_that_was_removed_is_made_again_and_one_that_was_taken_is_left_alone() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("checkpoints");
    let first = CheckpointFolder::open(&dir).unwrap();
    let write = |folder: &CheckpointFolder| folder.write(&sample_snapshot(1), &Identity::default(), &Map::new());
    assert_eq!(first.hold().unwrap(), Hold::Held);
    fs::rename(&dir, home.path().join("moved")).unwrap();
    assert_eq!(first.hold().unwrap(), Hold::Renewed);
    write(&first).unwrap();
    assert!(CheckpointFolder::open(&dir).is_err(), "the new one is locked too");

    fs::remove_dir_all(&dir).unwrap();
    let second = CheckpointFolder::open(&dir).unwrap();
    assert_eq!(first.hold().unwrap(), Hold::Taken);
    let error = write(&first).unwrap_err();
    assert!(error.to_string().contains("another process"), "{error}");
    assert_eq!(names(&dir), [".lock"], "nothing was written");
    write(&second).unwrap();
    drop(second);
    assert_eq!(first.hold().unwrap(), Hold::Taken, "what the other one left stays its own");
}

/// Runs itself once more in a process that may open few files, and has opened all of them.
#[cfg(target_os = "linux")]
#[test]
fn a_checkpoint_is_written_by_a_process_that_can_open_no_more_files() {
    const ASKED: &str = "ANEMONE_TEST_NO_DESCRIPTORS";
    if let Ok(dir) = std::env::var(ASKED) {
        let folder = CheckpointFolder::open(Path::new(&dir)).unwrap();
        let snapshots = [1, 2, 3].map(sample_snapshot);
        let taken: Vec<fs::File> = std::iter::from_fn(|| fs::File::open("/dev/null").ok()).collect();
        for snapshot in &snapshots {
            folder.write(snapshot, &Identity::default(), &Map::new()).unwrap();
            folder.prune(snapshot.progress.step, 1, None).unwrap();
            assert!(fs::File::open("/dev/null").is_err(), "the reserve is taken back");
        }
        println!("{} files were open", taken.len());
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let test = "learner::a_checkpoint_is_written_by_a_process_that_can_open_no_more_files";
    let child = Command::new("sh")
        .args(["-c", &format!("ulimit -n 64; exec \"$0\" --exact {test} --nocapture")])
        .arg(std::env::current_exe().unwrap())
        .env(ASKED, home.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&child.stdout);
    assert!(
        child.status.success() && said.contains("files were open"),
        "{said}{}",
        String::from_utf8_lossy(&child.stderr)
    );
    let found = latest(home.path()).unwrap().found.unwrap();
    assert_eq!(found.1.meta.progress.step, 3);
}

/// Runs itself once more in a process that may write only very small files: the nearest thing to a full disk.
#[cfg(unix)]
#[test]
fn a_full_disk_is_an_error_that_costs_nothing() {
    const ASKED: &str = "ANEMONE_TEST_FULL_DISK";
    let large = || {
        let case = Case::new("hmm", hmm(2, 16, Categorical::new(500).unwrap(), Tying::Homogeneous).unwrap());
        let learner = learner(&case, &anemone(), None);
        learner.learn_blocking(case.batch(3, 1)).unwrap();
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(learner.snapshot()).unwrap()
    };
    if let Ok(dir) = std::env::var(ASKED) {
        let folder = CheckpointFolder::open(Path::new(&dir)).unwrap();
        let error = folder.write(&large(), &Identity::default(), &Map::new()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io);
        assert!(error.to_string().contains("model.safetensors"), "{error}");
        assert_eq!(names(Path::new(&dir)).len(), 2, "nothing unfinished is left");
        println!("the disk was full");
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let mut before = large();
    before.progress.step = 0;
    let kept = write(home.path(), &before);
    let child = Command::new("sh")
        .args([
            "-c",
            "trap '' XFSZ; ulimit -f 8; exec \"$0\" --exact learner::a_full_disk_is_an_error_that_costs_nothing --nocapture",
        ])
        .arg(std::env::current_exe().unwrap())
        .env(ASKED, home.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&child.stdout);
    assert!(
        child.status.success() && said.contains("the disk was full"),
        "{said}{}",
        String::from_utf8_lossy(&child.stderr)
    );
    let found = latest(home.path()).unwrap();
    assert!(found.damaged.is_empty());
    assert_eq!(found.found.unwrap().0, kept);
}
