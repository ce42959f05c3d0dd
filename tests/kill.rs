//! Killed anywhere, it goes on to the same bits.
//!
//! Training is killed (SIGKILL) at random moments and resumed until it is through; parameters, optimizer state and cursor
//! must be those of the run that nobody killed. `ANEMONE_KILLS=100 cargo test --release --test kill -- --nocapture`
//! kills a hundred times; the default is a handful, for every day.

#![allow(clippy::unwrap_used)]
#![allow(dead_code)] // not every test writes every kind of shard

#[path = "common/shards.rs"]
mod shards;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anemone::rng::Rng;

/// Kills over all three cases.
fn wanted_kills() -> usize {
    std::env::var("ANEMONE_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(9)
}

struct Case {
    name: &'static str,
    pipeline: String,
}

/// Text through BPE into an HMM, images into a tree, and full-batch EM, which must survive in mid-epoch.
fn cases(dir: &Path) -> Vec<Case> {
    for shard in 0..3 {
        shards::write_texts(&dir.join(format!("text-{shard}.parquet")), &shards::texts(150, shard), 40);
    }
    let mut rng = Rng::new(5);
    let images: Vec<Vec<u8>> = (0..160).map(|_| shards::picture(8, &mut rng)).collect();
    shards::write_images(&dir.join("images-0.parquet"), &images[..90], 24);
    shards::write_images(&dir.join("images-1.parquet"), &images[90..], 24);
    let snps = (0..900 * 40).map(|i| u8::from(rng.uniform() < 0.2 + 0.015 * f64::from(i % 40))).collect();
    shards::write_rows(&dir.join("snps.parquet"), snps, 40, 100);
    let at = |pattern: &str| dir.join(pattern).display().to_string();
    let common = "[checkpoint]\nevery_batches = 3\nkeep = 2\n";
    vec![
        Case {
            name: "hmm-text",
            pipeline: format!(
                "[source]\nfiles = '{}'\ncolumn = 'text'\n[decode]\nkind = 'text'\nwindow = 16\n[batch]\nrows = 16\n\
                 shuffle_window = '4KiB'\n[circuit]\nmodel = 'hmm'\nlatents = 8\n[learn]\nepochs = 4\n[validate]\n\
                 files = '{}'\nevery_batches = 7\n{common}",
                at("text-[01].parquet"),
                at("text-2.parquet")
            ),
        },
        Case {
            name: "hclt-images",
            pipeline: format!(
                "[source]\nfiles = '{}'\n[decode]\nkind = 'image'\npatch = 4\ncolor = 'ycocg-r'\n[batch]\nrows = 24\n\
                 [circuit]\nmodel = 'hclt'\nlatents = 8\nstructure_rows = 300\n[learn]\nepochs = 5\n{common}",
                at("images-*.parquet")
            ),
        },
        Case {
            name: "full-batch-snps",
            pipeline: format!(
                "[source]\nfiles = '{}'\n[batch]\nrows = 32\nshuffle_window = '8KiB'\n[circuit]\nmodel = 'hclt'\n\
                 latents = 12\n[learn]\noptimizer = 'full_batch_em'\nepochs = 8\n{common}",
                at("snps.parquet")
            ),
        },
    ]
}

fn start(pipeline: &Path, out: &Path) -> Child {
    Command::new(env!("CARGO_BIN_EXE_anemone"))
        .args(["train", "--quiet", "--resume", "--threads", "1", "--out"])
        .args([out, pipeline])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn finish(child: Child, what: &str) {
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{what}: {}", String::from_utf8_lossy(&output.stderr));
}

fn last_checkpoint(out: &Path) -> PathBuf {
    let mut steps: Vec<PathBuf> =
        std::fs::read_dir(out.join("checkpoints")).unwrap().map(|entry| entry.unwrap().path()).collect();
    steps.retain(|path| path.file_name().unwrap().to_string_lossy().starts_with("step-"));
    steps.sort();
    steps.pop().expect("a finished run has a checkpoint")
}

/// What must be the same bits: parameters, optimizer, and place in the stream with all counters that are not times.
fn outcome(out: &Path) -> (Vec<u8>, Vec<u8>, serde_json::Value) {
    let folder = last_checkpoint(out);
    let read = |name: &str| std::fs::read(folder.join(name)).unwrap();
    let meta: serde_json::Value = serde_json::from_slice(&read("checkpoint.json")).unwrap();
    let mut progress = meta["body"]["progress"].clone();
    for clock in ["compute_seconds", "query_seconds", "wait_seconds"] {
        progress.as_object_mut().unwrap().remove(clock);
    }
    (read("model.safetensors"), read("optimizer.safetensors"), progress)
}

#[test]
fn killed_at_random_moments_and_resumed_it_learns_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    let cases = cases(folder.path());
    let kills_each = wanted_kills().div_ceil(cases.len());
    let mut rng = Rng::new(17);
    for Case { name, pipeline } in cases {
        let file = folder.path().join(format!("{name}.toml"));
        std::fs::write(&file, pipeline).unwrap();
        let whole = folder.path().join(format!("{name}-whole"));
        let begun = Instant::now();
        finish(start(&file, &whole), name);
        let (time, expected) = (begun.elapsed(), outcome(&whole));
        assert!(!expected.0.is_empty());
        let (mut kills, mut runs, mut useful) = (0, 0, 0);
        while kills < kills_each {
            // One run, killed again and again until it is through.
            let out = folder.path().join(format!("{name}-killed-{runs}"));
            runs += 1;
            loop {
                let mut child = start(&file, &out);
                let moment = Duration::from_secs_f64(time.as_secs_f64() * rng.uniform());
                thread::sleep(moment);
                let is_through = child.try_wait().unwrap().is_some();
                if is_through || kills >= kills_each {
                    finish(child, name);
                    break;
                }
                child.kill().unwrap(); // SIGKILL, by id
                child.wait().unwrap();
                kills += 1;
                useful += usize::from(out.join("checkpoints").is_dir() && any_checkpoint(&out));
            }
            let found = outcome(&out);
            assert_eq!(found.2, expected.2, "{name}: place and counters");
            assert!(found.0 == expected.0, "{name}: parameters differ after {kills} kills");
            assert!(found.1 == expected.1, "{name}: optimizer state differs after {kills} kills");
        }
        println!("{name}: {kills} kills in {runs} runs, {useful} of them with a checkpoint to go on from: same bits");
    }
}

fn any_checkpoint(out: &Path) -> bool {
    let entries = std::fs::read_dir(out.join("checkpoints")).unwrap();
    entries.into_iter().any(|entry| entry.unwrap().file_name().to_string_lossy().starts_with("step-"))
}

/// Rows without end, so that only a signal ends the run.
const ENDLESS: &str = "[source.synthetic]\nkind = 'hmm'\nnum_vars = 8\ncats = 6\nlatents = 3\n[batch]\nrows = 32\n\
                       [circuit]\nmodel = 'hmm'\nlatents = 4\n[checkpoint]\nevery_batches = 50\n";

#[cfg(unix)]
#[test]
fn a_signal_finishes_the_update_writes_a_checkpoint_and_exits_with_zero() {
    let folder = tempfile::tempdir().unwrap();
    let (file, out) = (folder.path().join("endless.toml"), folder.path().join("run"));
    std::fs::write(&file, ENDLESS).unwrap();
    let mut last_step = 0;
    for signal in ["-TERM", "-INT"] {
        let child = start(&file, &out);
        let deadline = Instant::now() + Duration::from_secs(60);
        // Until it has learned something new.
        while !(out.join("checkpoints").is_dir() && any_checkpoint(&out) && newest_step(&out) > last_step) {
            assert!(Instant::now() < deadline, "no checkpoint in a minute");
            thread::sleep(Duration::from_millis(20));
        }
        let before = newest_step(&out);
        assert!(Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap().success());
        finish(child, signal); // exit code 0
        last_step = newest_step(&out);
        assert!(last_step >= before);
        anemone::learner::checkpoint::load(&last_checkpoint(&out)).unwrap();
    }
}

fn newest_step(out: &Path) -> u64 {
    let name = last_checkpoint(out).file_name().unwrap().to_string_lossy().into_owned();
    name.trim_start_matches("step-").parse().unwrap()
}
