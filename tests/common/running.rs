//! Runs of the command that are stopped, killed and resumed, and what they leave behind.

use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

/// Rows without end, so that only a signal ends the run.
pub const ENDLESS: &str = "[source.synthetic]\nkind = 'hmm'\nnum_vars = 8\ncats = 6\nlatents = 3\n[batch]\nrows = 32\n\
                       [circuit]\nmodel = 'hmm'\nlatents = 4\n[checkpoint]\nevery_batches = 50\n";

/// Waits for its end, which must be a good one.
pub fn finish(child: Child, what: &str) {
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{what}: {}", String::from_utf8_lossy(&output.stderr));
}

pub fn last_checkpoint(out: &Path) -> PathBuf {
    let mut steps: Vec<PathBuf> =
        std::fs::read_dir(out.join("checkpoints")).unwrap().map(|entry| entry.unwrap().path()).collect();
    steps.retain(|path| path.file_name().unwrap().to_string_lossy().starts_with("step-"));
    steps.sort();
    steps.pop().expect("a finished run has a checkpoint")
}

/// What must be the same bits: parameters, optimizer, and place in the stream with all counters that are not times.
pub fn outcome(out: &Path) -> (Vec<u8>, Vec<u8>, serde_json::Value) {
    let folder = last_checkpoint(out);
    let read = |name: &str| std::fs::read(folder.join(name)).unwrap();
    let meta: serde_json::Value = serde_json::from_slice(&read("checkpoint.json")).unwrap();
    let mut progress = meta["body"]["progress"].clone();
    for clock in ["compute_seconds", "query_seconds", "wait_seconds"] {
        progress.as_object_mut().unwrap().remove(clock);
    }
    (read("model.safetensors"), read("optimizer.safetensors"), progress)
}

pub fn any_checkpoint(out: &Path) -> bool {
    let entries = std::fs::read_dir(out.join("checkpoints")).unwrap();
    entries.into_iter().any(|entry| entry.unwrap().file_name().to_string_lossy().starts_with("step-"))
}

pub fn newest_step(out: &Path) -> u64 {
    let name = last_checkpoint(out).file_name().unwrap().to_string_lossy().into_owned();
    name.trim_start_matches("step-").parse().unwrap()
}

/// A run that is ended with its test, however that ends.
pub struct Running(pub Option<Child>);

impl Running {
    pub fn child(&mut self) -> &mut Child {
        self.0.as_mut().expect("it has not ended")
    }

    #[cfg(unix)]
    pub fn send(&mut self, signal: &str) {
        let id = self.child().id().to_string();
        assert!(Command::new("kill").args([signal, &id]).status().unwrap().success());
    }

    /// What it said, if it ends within a minute.
    pub fn ended(mut self) -> std::process::Output {
        let deadline = Instant::now() + Duration::from_secs(60);
        while self.child().try_wait().unwrap().is_none() {
            assert!(Instant::now() < deadline, "it does not end");
            thread::sleep(Duration::from_millis(20));
        }
        self.0.take().unwrap().wait_with_output().unwrap()
    }

    pub fn ends_well(self, what: &str) {
        let output = self.ended();
        assert!(output.status.success(), "{what}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill(); // by id
            let _ = child.wait();
        }
    }
}

/// Waits until the run in `out` has a checkpoint after `step`.
pub fn wait_for_step_after(out: &Path, step: u64) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !(out.join("checkpoints").is_dir() && any_checkpoint(out) && newest_step(out) > step) {
        assert!(Instant::now() < deadline, "no checkpoint in a minute");
        thread::sleep(Duration::from_millis(20));
    }
}
