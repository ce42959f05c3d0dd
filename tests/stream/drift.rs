//! Streams that change: alarms, what is done about them, and that none of it depends on where a run was interrupted.

use std::fs;
use std::path::PathBuf;

use anemone::Result;
use anemone::backend::PlaceSpec;
use anemone::learner::{Checkpoint, latest, list};
use anemone::pipeline::observer::{Drift, Event, Finished, Observer};
use anemone::pipeline::run::{TrainOptions, train};
use anemone::pipeline::spec::PipelineSpec;
use anemone::pipeline::stop::Stop;

/// 300 batches of three distributions, one after the other.
const CHANGING: &str = "[source.synthetic]\nnum_vars = 8\ncats = 12\nlatents = 6\nseed = 1\nchanges = [6400, 12800]\n\
                        [batch]\nrows = 64\n[circuit]\nmodel = 'hmm'\nlatents = 4\n[learn]\nbatches = 300\n\
                        [checkpoint]\nevery_batches = 40\nkeep = 2\n";

/// Batches after which the distribution is another one.
const CHANGES: [u64; 2] = [100, 200];

struct Watcher {
    stop: Stop,
    stop_at: Option<u64>,
    alarms: Vec<Drift>,
}

impl Observer for Watcher {
    fn event(&mut self, event: &Event) {
        match event {
            Event::Step(line) if Some(line.step) == self.stop_at => self.stop.request(),
            Event::Drift(drift) => self.alarms.push(*drift),
            _ => {}
        }
    }
}

struct Run(tempfile::TempDir);

impl Run {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn out(&self) -> PathBuf {
        self.0.path().join("run")
    }

    /// From the latest checkpoint, if there is one, until the end or a stop after so many batches.
    fn go(&self, pipeline: &str, stop_at: Option<u64>) -> (Result<Finished>, Vec<Drift>) {
        let spec = PipelineSpec::parse(pipeline, "test.toml").unwrap();
        let options = TrainOptions {
            name: "test".into(),
            out: self.out(),
            resume: true,
            force_resume: false,
            place: PlaceSpec { threads: Some(1), ..PlaceSpec::default() },
            every_look: false,
        };
        let stop = Stop::new();
        let mut watcher = Watcher { stop: stop.clone(), stop_at, alarms: Vec::new() };
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let finished = runtime.block_on(train(&spec, &options, &stop, &mut watcher));
        (finished, watcher.alarms)
    }

    fn last(&self) -> Checkpoint {
        latest(&self.out().join("checkpoints")).unwrap().found.unwrap().1
    }

    fn steps(&self) -> Vec<u64> {
        list(&self.out().join("checkpoints")).unwrap().into_iter().map(|(step, _)| step).collect()
    }

    /// As if the run had been killed before its last checkpoint.
    fn lose_last_checkpoint(&self) {
        let (_, path) = list(&self.out().join("checkpoints")).unwrap().pop().unwrap();
        fs::remove_dir_all(path).unwrap();
    }
}

fn with(action: &str) -> String {
    format!("{CHANGING}[drift]\ndetector = 'both'\nmean_rows = 1000\non_drift = '{action}'\n")
}

#[test]
fn every_change_is_told_once_with_its_place_and_nothing_else_is() {
    let run = Run::new();
    let (finished, alarms) = run.go(CHANGING, None); // a source without an end is watched without being asked to
    finished.unwrap();
    let steps: Vec<u64> = alarms.iter().map(|drift| drift.step).collect();
    assert_eq!(alarms.len(), 2, "{alarms:?}");
    for ((number, alarm), change) in alarms.iter().enumerate().zip(CHANGES) {
        assert!(alarm.step > change && alarm.step <= change + 10, "{alarms:?}");
        assert_eq!((alarm.number, alarm.rows), (number as u64 + 1, alarm.step * 64));
        assert!(alarm.after_ll < alarm.before_ll - 0.5, "{alarm:?}");
        let since = alarm.rows - change * 64;
        assert!(alarm.rows_ago.abs_diff(since) <= 4 * 64, "{alarm:?} came {since} rows after the change");
    }
    let text = fs::read_to_string(run.out().join("metrics.jsonl")).unwrap();
    let lines: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let told: Vec<u64> = lines.iter().filter_map(|line| line["drift"]["step"].as_u64()).collect();
    assert_eq!(told, steps, "every alarm has its line");
    for key in ["prequential_ll", "window_ll", "fading_ll"] {
        assert!(lines.iter().all(|line| line[key].is_f64()), "{key}");
    }
}

#[test]
fn files_that_end_are_watched_only_where_somebody_asks() {
    let ending = CHANGING.replace("seed = 1", "seed = 1\nrows = 19200") + "[pipeline]\n";
    let quiet = ending.replace("[batch]", "[batch]\nshuffle = false");
    assert_eq!(Run::new().go(&quiet, None).1, []);
    assert_eq!(Run::new().go(&(quiet + "[drift]\n"), None).1.len(), 2);
    assert_eq!(Run::new().go(&(CHANGING.to_string() + "[drift]\ndetector = 'none'\n"), None).1, []);
}

#[test]
fn a_run_with_any_action_ends_with_the_same_bits_wherever_it_was_interrupted() {
    for action in ["report", "raise-step", "checkpoint"] {
        let pipeline = with(action);
        let through = Run::new();
        let (finished, alarms) = through.go(&pipeline, None);
        finished.unwrap();
        assert!(alarms.len() >= 2, "{action}: {alarms:?}");
        let whole = through.last();
        let fired = alarms[0].step;
        // Before, at and after an alarm; the last is of a run that dies without a checkpoint.
        for (stop_at, is_killed) in [(fired - 1, false), (fired, false), (fired + 3, false), (fired + 60, true)] {
            let run = Run::new();
            let (finished, first) = run.go(&pipeline, Some(stop_at));
            assert_eq!(finished.unwrap().step, stop_at, "{action}");
            let mut told = first;
            if is_killed {
                run.lose_last_checkpoint();
                let at = *run.steps().last().unwrap();
                told.retain(|drift| drift.step <= at);
            }
            let (finished, second) = run.go(&pipeline, None);
            finished.unwrap();
            told.extend(second);
            assert_eq!(told, alarms, "{action}, interrupted after {stop_at}");
            let resumed = run.last();
            assert!(resumed.params == whole.params, "{action}, interrupted after {stop_at}: parameters differ");
            assert!(resumed.optimizer == whole.optimizer, "{action}, interrupted after {stop_at}: states differ");
            assert_eq!(resumed.meta.progress.recent_rows, whole.meta.progress.recent_rows);
            assert_eq!(resumed.meta.extra["drift"], whole.meta.extra["drift"], "{action}");
        }
    }
}

#[test]
fn a_raised_step_is_larger_for_a_while_and_learns_otherwise() {
    let (report, raised) = (Run::new(), Run::new());
    report.go(&with("report"), Some(150)).0.unwrap();
    raised.go(&with("raise-step"), Some(150)).0.unwrap();
    assert!(report.last().params != raised.last().params);
}

#[test]
fn checkpoints_that_drift_asked_for_are_kept_up_to_their_number() {
    let run = Run::new();
    let (finished, alarms) = run.go(&with("checkpoint"), None);
    finished.unwrap();
    let fired: Vec<u64> = alarms.iter().map(|drift| drift.step).collect();
    assert_eq!(run.steps(), [&fired[..], &[280, 300]].concat());
    let one = Run::new();
    one.go(&(with("checkpoint") + "keep = 1\n"), None).0.unwrap();
    assert_eq!(one.steps(), [fired[fired.len() - 1], 280, 300]);
}

#[test]
fn a_run_that_drift_stops_leaves_a_checkpoint_and_goes_on_when_it_is_resumed() {
    let run = Run::new();
    let (finished, alarms) = run.go(&with("stop"), None);
    let finished = finished.unwrap();
    assert_eq!((alarms.len(), alarms[0].step), (1, finished.step));
    assert!(finished.reason.contains("the stream has changed"), "{}", finished.reason);
    assert_eq!(run.last().meta.progress.batches, finished.step);
    let (again, alarms) = run.go(&with("stop"), None);
    assert!(again.unwrap().step > finished.step + 50 && alarms.len() == 1, "until the next change");
}
