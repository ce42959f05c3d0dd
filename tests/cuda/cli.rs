//! `--device` as a user types it, with the emulated driver, with one that has nothing to offer, and with none.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

use crate::common::emulator::{STREAM_MODES, attach, detach, has_real_driver};

/// A pipeline that even the emulator learns in no time.
const PIPELINE: &str = "[source.synthetic]\nkind = 'hmm'\nnum_vars = 5\ncats = 4\nlatents = 3\nrows = 60\n\
    [batch]\nrows = 20\n\
    [circuit]\nmodel = 'hmm'\nlatents = 4\n[learn]\nepochs = 2\nstep = 0.3\n[validate]\nrows = 20\n";

/// What a process finds where a driver would be.
#[derive(Clone, Copy)]
enum Driver<'a> {
    None,
    Emulated(&'a [(&'a str, &'a str)]),
    /// Whatever library this folder has.
    In(&'a Path),
}

const EMULATED: Driver<'static> = Driver::Emulated(&[("STREAMS", "lazy")]);

fn anemone(driver: Driver<'_>, dir: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_anemone"));
    command.current_dir(dir).args(args);
    match driver {
        Driver::None => detach(&mut command),
        Driver::Emulated(settings) => {
            attach(&mut command);
            settings.iter().fold(&mut command, |c, (name, value)| c.env(format!("ANEMONE_EMULATOR_{name}"), value))
        }
        Driver::In(folder) => command.env("LD_LIBRARY_PATH", folder),
    };
    command.output().unwrap()
}

fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("p.toml"), PIPELINE).unwrap();
    folder
}

/// The events that a run reports.
fn trained(driver: Driver<'_>, dir: &Path, args: &[&str]) -> Vec<Value> {
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
    for streams in STREAM_MODES {
        let emulated = [("STREAMS", streams), ("DEVICES", "2")];
        let run = |out: &str, args: &[&str], tolerance: f64| {
            let out = format!("{out}-{streams}");
            let got = trained(Driver::Emulated(&emulated), dir, &[&["--out", &out], args].concat());
            assert!(
                (held_out(&got) - held_out(&want)).abs() < tolerance,
                "{out}: {} and {}",
                held_out(&got),
                held_out(&want)
            );
            event(&got, "started").clone()
        };
        // Operands of f32: the same but for the order of sums.
        let started = run("f32", &["--device", "cuda:0", "--precision", "f32"], 1e-4);
        assert!(started["device"].as_str().unwrap().starts_with("cuda:0 ("), "{started}");
        // So are two devices, each with half of every batch.
        let started = run("two", &["--device", "cuda:0,1", "--precision", "f32"], 1e-4);
        assert!(started["device"].as_str().unwrap().contains("cuda:1 ("), "{started}");
        // And by default on tensor cores, which `auto` finds.
        let started = run("tf32", &[], 1e-2);
        assert_eq!(started["precision"], "tf32");
    }

    // What was learned there is evaluated here, and the other way round.
    for (driver, device, run) in [(Driver::None, "cpu", "f32-lazy"), (EMULATED, "cuda:0", "cpu")] {
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
    for streams in STREAM_MODES {
        let emulated = [("STREAMS", streams)];
        let (cuda, cpu) = ((Driver::Emulated(&emulated), "cuda:0"), (Driver::None, "cpu"));
        for (first, second, out) in [(cuda, cpu, "down"), (cpu, cuda, "up")] {
            let out = format!("{out}-{streams}");
            let f32 = ["--precision", "f32", "--out", &out];
            trained(first.0, dir, &[&["--device", first.1, "--set", "learn.epochs=1"][..], &f32].concat());
            let events = trained(second.0, dir, &[&["--device", second.1, "--resume"][..], &f32].concat());
            assert!(event(&events, "started")["resumed_from"].is_string(), "{out}");
            assert_eq!(event(&events, "finished")["step"], 6, "{out}");
            assert!((held_out(&events) - want).abs() < 1e-4, "{out}: {} and {want}", held_out(&events));
        }
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
        is_no_device(driver, dir, words);
    }
}

/// The GPU was not asked for, and it has no room for the circuit, or for what the optimizer keeps: the CPU learns.
#[test]
fn without_room_auto_says_why_and_takes_the_cpu() {
    let folder = folder();
    for failing in ["1", "9"] {
        let driver = Driver::Emulated(&[("FAIL_ALLOC", failing)]);
        let events = trained(driver, folder.path(), &["--device", "auto", "--out", failing]);
        let started = event(&events, "started");
        assert_eq!(started["device"], "cpu");
        let note = started["device_note"].as_str().unwrap();
        assert!(note.contains("cuda:0") && note.contains("out of memory"), "{note}");
    }
}

/// `auto` says these words in one line and takes the CPU; `cuda:0` is one line of error with them.
fn is_no_device(driver: Driver<'_>, dir: &Path, words: &str) {
    let out = dir.join(words);
    let out = out.to_str().unwrap();
    let events = trained(driver, dir, &["--device", "auto", "--out", out]);
    let started = event(&events, "started");
    assert_eq!(started["device"], "cpu");
    assert!(started["device_note"].as_str().unwrap().contains(words), "{started}");

    let output = anemone(driver, dir, &["train", "p.toml", "--out", &format!("{out}-again")]);
    let said = String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{said}");
    assert_eq!(said.lines().filter(|line| line.contains(words) && line.contains("cpu (")).count(), 1, "{said}");

    let output = anemone(driver, dir, &["train", "p.toml", "--device", "cuda:0", "--out", "refused"]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert_eq!(error.lines().count(), 1, "{error}");
    assert!(error.contains("--device cuda:0: ") && error.contains(words), "{error}");
}

/// An old driver has a library, but not all of its functions. Here they end the process: none may be called before all
/// are found.
#[test]
fn a_driver_that_lacks_a_function_is_no_device() {
    let folder = folder();
    let dir = folder.path();
    let probe = include_str!("../../src/backend/cuda/probe.rs");
    let list = probe.split_once("const SYMBOLS").and_then(|(_, rest)| rest.split_once("];")).unwrap().0;
    let names: Vec<&str> = list.split('"').filter(|name| name.starts_with("cu")).collect();
    assert!(names.len() > 30, "{names:?}");
    for lacking in ["cuInit", "cuMemAllocAsync", "cuGraphExecDestroy"] {
        let driver = dir.join(format!("driver without {lacking}"));
        std::fs::create_dir(&driver).unwrap();
        let has = names.iter().filter(|name| **name != lacking);
        let functions: String = has.map(|name| format!("int {name}(void) {{ __builtin_trap(); }}\n")).collect();
        std::fs::write(driver.join("driver.c"), functions).unwrap();
        let made = Command::new("cc")
            .current_dir(&driver)
            .args(["-shared", "-fPIC", "-o", "libcuda.so", "driver.c"])
            .output()
            .expect("a C compiler, which building needs too");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        is_no_device(Driver::In(&driver), dir, &format!("it has no {lacking};"));
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

#[test]
fn sums_between_gpus_are_refused_where_they_make_no_sense() {
    let folder = folder();
    for (sums, wanted) in [
        ("nccl", "--cluster-sums nccl: this process is alone; start several with a launcher"),
        ("mpi", "--cluster-sums: mpi: expected auto, host or nccl"),
    ] {
        let args = ["train", "p.toml", "--device", "cpu", "--cluster", "off", "--cluster-sums", sums];
        let output = anemone(Driver::None, folder.path(), &args);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(text.contains(wanted), "{text}");
    }
}
