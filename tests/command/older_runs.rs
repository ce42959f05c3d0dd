//! Runs that the version before the front door began: they are read, and resumed bit-identically.
//!
//! `tests/fixtures/older/NAME` is the run folder of that version after 7 batches (HMM: anemone with momentum and
//! averages; HCLT: stepwise EM in the middle of an update of two batches), `after-30` what the same version had after
//! 30 without a stop. Made with `--isa scalar`, so that the processor has no part in the bits.

use std::fs;
use std::path::Path;

use assert_cmd::Command;

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        match entry.file_type().unwrap().is_dir() {
            true => copy(&entry.path(), &to.join(entry.file_name())),
            false => drop(fs::copy(entry.path(), to.join(entry.file_name())).unwrap()),
        }
    }
}

#[test]
fn runs_of_the_version_before_are_resumed_bit_identically() {
    for name in ["hmm", "hclt"] {
        let older = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/older").join(name);
        let home = tempfile::tempdir().unwrap();
        let run = home.path().join("run");
        copy(&older, &run);
        let args = ["train", "--out", "run", "--resume", "--threads", "2", "--set", "learn.batches=30"];
        let output = Command::cargo_bin("anemone").unwrap().current_dir(&home).args(args).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        for file in ["model.safetensors", "optimizer.safetensors"] {
            let resumed = fs::read(run.join("checkpoints/step-0000000030").join(file)).unwrap();
            let whole = fs::read(older.join("after-30").join(file)).unwrap();
            assert_eq!(resumed, whole, "{name}: {file}");
        }
        let output = Command::cargo_bin("anemone").unwrap().args(["inspect"]).arg(&older).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}
