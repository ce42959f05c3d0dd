//! The learner as a service: what it promises about order, waiting, failure, and about resuming where it stopped.

mod checkpoints;

use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use crate::common::cases::{Case, mixed, tied_hmm};
use crate::common::{bits, start};
use anemone::backend::Backend;
use anemone::data::{Batch, Cursor, Item};
use anemone::learner::{Checkpoint, Identity, Learned, Learner, Progress, Snapshot, checkpoint, circuit_digest};
use anemone::optim::{Optimizer, OptimizerSpec, OptimizerState, StepReport};
use anemone::{Error, ErrorKind, Result};
use serde_json::{Map, json};

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
    Learner::from_parts(Box::new(backend), optimizer, resume).unwrap()
}

async fn feed(learner: &Learner, items: &[Item]) {
    for item in items {
        match item.clone() {
            Item::Batch { batch, end } => drop(learner.learn_to(batch, end).await.unwrap()),
            Item::EpochEnd { next } => drop(learner.end_epoch_at(next).await.unwrap()),
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

#[tokio::test]
async fn a_raised_step_is_larger_and_in_the_saved_state_to_the_bit() {
    let home = tempfile::tempdir().unwrap();
    let case = small();
    let items = stream(&case, 3);
    for (i, spec) in optimizers().iter().enumerate() {
        let (through, usual) = (learner(&case, spec, None), learner(&case, spec, None));
        for learner in [&through, &usual] {
            feed(learner, &items[..7]).await;
        }
        let before = through.snapshot().await.unwrap();
        through.raise_step().await.unwrap();
        let raised = through.snapshot().await.unwrap();
        assert_eq!(timeless(&raised.progress), timeless(&before.progress), "counters and cursor stay");
        assert!(raised.optimizer.counters.contains_key("raised") == (spec.name() != "full_batch_em"), "{spec:?}");
        let dir = home.path().join(i.to_string());
        let checkpoint = checkpoint::load(&write(&dir, &raised)).unwrap();
        let resumed = learner(&case, spec, Some(&checkpoint));
        for learner in [&through, &resumed, &usual] {
            feed(learner, &items[7..]).await;
        }
        let (through, resumed) = (through.snapshot().await.unwrap(), resumed.snapshot().await.unwrap());
        assert!(bits(&through.params) == bits(&resumed.params), "{spec:?}");
        assert!(through.optimizer == resumed.optimizer, "{spec:?}");
        let steps = (through.progress.last_step_size, usual.progress().last_step_size);
        assert!(spec.name() == "full_batch_em" || steps.0 > steps.1, "{spec:?}: {steps:?}");
    }
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

    fn restart(&mut self, backend: &mut dyn Backend) -> Result<()> {
        self.inner.restart(backend)
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
    Learner::from_parts(Box::new(backend), Box::new(Hooked { inner, before: Box::new(before) }), None).unwrap()
}

/// A learner that waits before every batch until it is told to continue, or until the teller is gone.
fn gated(case: &Case) -> (Learner, mpsc::Sender<()>) {
    let (open, gate) = mpsc::channel();
    let learner = hooked(case, move || {
        gate.recv().ok();
        Ok(())
    });
    (learner, open)
}

/// Starts `count` calls of `learn`, each in a task, and lets them come as far as they can.
async fn start_learning(learner: &Learner, case: &Case, count: usize) -> Vec<tokio::task::JoinHandle<Result<Learned>>> {
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
    // A caller that gives up while waiting for room was never heard; what was taken in is carried out.
    for task in tasks {
        task.abort();
        assert!(task.await.unwrap_err().is_cancelled());
    }
    drop(open);
    learner.params().await.unwrap();
    assert_eq!(learner.progress().batches, 1 + 2);
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
    assert_eq!(other.progress().batches, 3);
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
        Learner::from_parts(Box::new(backend), optimizer, Some(checkpoint))
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
