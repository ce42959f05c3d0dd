//! `--device` as a user types it, with the emulated driver, with one that has nothing to offer, and with none.

#![allow(clippy::unwrap_used)] // a test that cannot go on should stop right there

mod common;

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

use common::emulator::{attach, detach, has_real_driver};

/// A pipeline that even the emulator learns in no time.
const PIPELINE: &str = "[source.synthetic]\nkind = 'hmm'\nnum_vars = 5\ncats = 4\nlatents = 3\nrows = 60\n[batch]\nrows = 20\n\
    [circuit]\nmodel = 'hmm'\nlatents = 4\n[learn]\nepochs = 2\nstep = 0.3\n[validate]\nrows = 20\n";

/// What a process finds where a driver would be.
#[derive(Clone, Copy)]
enum Driver {
    None,
    Emulated(&'static [(&'static str, &'static str)]),
}

const EMULATED: Driver = Driver::Emulated(&[("STREAMS", "lazy")]);

fn anemone(driver: Driver, dir: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_anemone"));
    command.current_dir(dir).args(args);
    match driver {
        Driver::None => detach(&mut command),
        Driver::Emulated(settings) => {
            attach(&mut command);
            settings.iter().fold(&mut command, |c, (name, value)| c.env(format!("ANEMONE_EMULATOR_{name}"), value))
        }
    };
    command.output().unwrap()
}

fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("p.toml"), PIPELINE).unwrap();
    folder
}

/// The events that a run reports.
fn trained(driver: Driver, dir: &Path, args: &[&str]) -> Vec<Value> {
    let output = anemone(driver, dir, &[&["train", "p.toml", "--json"][..], args].concat());
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn event<'a>(events: &'a [Value], name: &str) -> &'a Value {
    events.iter().find(|event| event["event"] == name).unwrap_or_else(|| panic!("no event `{name}`"))
}

fn held_out(events: &[Value]) -> f64 {
    event(events, "finished")["valid_ll"].as_f64().unwrap()
}

#[test]
fn a_run_on_a_device_ends_where_one_on_the_cpu_does() {
    let folder = folder();
    let dir = folder.path();
    let want = trained(Driver::None, dir, &["--device", "cpu", "--out", "cpu"]);
    assert_eq!(event(&want, "started")["device"], "cpu");
    // Operands of f32: the same but for the order of sums.
    let got = trained(EMULATED, dir, &["--device", "cuda:0", "--precision", "f32", "--out", "f32"]);
    assert!(event(&got, "started")["device"].as_str().unwrap().starts_with("cuda:0 ("), "{got:?}");
    assert!((held_out(&got) - held_out(&want)).abs() < 1e-4, "{} and {}", held_out(&got), held_out(&want));
    // So are two devices, each with half of every batch.
    let two = Driver::Emulated(&[("STREAMS", "lazy"), ("DEVICES", "2")]);
    let got = trained(two, dir, &["--device", "cuda:0,1", "--precision", "f32", "--out", "two"]);
    assert!(event(&got, "started")["device"].as_str().unwrap().contains("cuda:1 ("), "{got:?}");
    assert!((held_out(&got) - held_out(&want)).abs() < 1e-4, "{} and {}", held_out(&got), held_out(&want));
    // And by default on tensor cores, which `auto` finds.
    let got = trained(EMULATED, dir, &["--out", "tf32"]);
    assert_eq!(event(&got, "started")["precision"], "tf32");
    assert!((held_out(&got) - held_out(&want)).abs() < 1e-2, "{} and {}", held_out(&got), held_out(&want));

    // What was learned there is evaluated here, and the other way round.
    for (driver, device, run) in [(Driver::None, "cpu", "f32"), (EMULATED, "cuda:0", "cpu")] {
        let output = anemone(driver, dir, &["eval", run, "--device", device, "--json"]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let found: Value = serde_json::from_slice(&output.stdout).unwrap();
        let log_likelihood = found["mean_log_likelihood"].as_f64().unwrap();
        assert!((log_likelihood - held_out(&want)).abs() < 1e-4, "{device}: {found}");
    }
}

#[test]
fn a_run_goes_on_on_the_other_device() {
    let folder = folder();
    let dir = folder.path();
    let want = held_out(&trained(Driver::None, dir, &["--device", "cpu", "--out", "whole"]));
    for (first, second, out) in
        [((EMULATED, "cuda:0"), (Driver::None, "cpu"), "down"), ((Driver::None, "cpu"), (EMULATED, "cuda:0"), "up")]
    {
        let f32 = ["--precision", "f32", "--out", out];
        trained(first.0, dir, &[&["--device", first.1, "--set", "learn.epochs=1"][..], &f32].concat());
        let events = trained(second.0, dir, &[&["--device", second.1, "--resume"][..], &f32].concat());
        assert!(event(&events, "started")["resumed_from"].is_string(), "{out}");
        assert_eq!(event(&events, "finished")["step"], 6, "{out}");
        assert!((held_out(&events) - want).abs() < 1e-4, "{out}: {} and {want}", held_out(&events));
    }
}

#[test]
fn without_a_device_auto_says_why_and_takes_the_cpu() {
    let folder = folder();
    let dir = folder.path();
    let none = Driver::Emulated(&[("DEVICES", "0")]);
    for (driver, words) in [(Driver::None, "libcuda.so"), (none, "no device")] {
        if matches!(driver, Driver::None) && has_real_driver() {
            continue;
        }
        let out = dir.join(words);
        let out = out.to_str().unwrap();
        let events = trained(driver, dir, &["--device", "auto", "--out", out]);
        let started = event(&events, "started");
        assert_eq!(started["device"], "cpu");
        assert!(started["device_note"].as_str().unwrap().contains(words), "{started}");

        let output = anemone(driver, dir, &["train", "p.toml", "--device", "cuda:0", "--out", "refused"]);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert_eq!(error.lines().count(), 1, "{error}");
        assert!(error.contains("--device cuda:0: ") && error.contains(words), "{error}");
    }
}

#[test]
fn a_device_without_memory_is_an_error() {
    let folder = folder();
    let driver = Driver::Emulated(&[("FAIL_ALLOC", "20")]);
    let output = anemone(driver, folder.path(), &["train", "p.toml", "--device", "cuda:0"]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && error.contains("out of memory"), "{error}");
}

#[test]
fn a_benchmark_names_its_device() {
    let folder = folder();
    let small = ["--latents", "4", "--vars", "4", "--cats", "5", "--batch-rows", "8", "--steps", "1", "--warmup", "0"];
    let args = [&["bench", "--device", "cuda:0", "--json", "-"][..], &small].concat();
    let output = anemone(EMULATED, folder.path(), &args);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let line: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&line["device"], &line["precision"]), (&Value::from("cuda:0"), &Value::from("tf32")));
}
