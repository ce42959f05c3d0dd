//! `kernels/first-day` where there is no GPU: it shows what it would do, or says in one line that it cannot.
//! `kernels/roofline`, whose tables are on a page. And `kernels/mutants`, as far as it takes no time.

use std::path::Path;
use std::process::{Command, Output};

use crate::common::emulator::{attach, detach, has_real_driver};

/// What the script answers where there is no GPU that can be used.
const NO_GPU: i32 = 77;

fn first_day(args: &[&str]) -> Option<Command> {
    script("first-day", args)
}

/// A script, as a command that finds no emulator; nothing where there is no Python.
fn script(name: &str, args: &[&str]) -> Option<Command> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels").join(name);
    if !Command::new("python3").arg("--version").output().is_ok_and(|o| o.status.success()) {
        eprintln!("skipped: there is no python3");
        return None;
    }
    let mut command = Command::new("python3");
    detach(&mut command).arg(script).args(args);
    Some(command)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// One line on standard error with these words, nothing else, and no folder.
fn refuses(mut command: Command, words: &str) {
    let folder = std::env::temp_dir().join(format!("anemone-first-day-{}", std::process::id()));
    let Output { status, stdout, stderr } = command.arg("--out").arg(&folder).output().unwrap();
    let said = text(&stderr);
    assert_eq!((status.code(), text(&stdout).as_str()), (Some(NO_GPU), ""), "{said}");
    assert!(said.lines().count() == 1 && said.contains("no GPU") && said.contains(words), "{said}");
    assert!(!folder.exists());
}

#[test]
fn a_dry_run_shows_every_step_and_needs_no_gpu() {
    let Some(mut command) = first_day(&["--dry-run"]) else { return };
    let output = command.output().unwrap();
    let shown = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let names: Vec<&str> = shown.lines().filter_map(|line| line.split_whitespace().next()).collect();
    let wanted =
        ["facts", "build", "tests-kernels", "tests-backend", "repeat-same-bits", "sanitizer", "bench-hmm-256-cuda"];
    for step in wanted {
        assert!(names.iter().any(|name| name.starts_with(step)), "no step {step} in\n{shown}");
    }
    assert!(shown.contains("ANEMONE_TEST_REAL_DRIVER=1 cargo test"), "{shown}");
    assert!(shown.contains("bench --circuit hclt"), "{shown}");
}

#[test]
fn without_a_driver_it_says_so_in_one_line() {
    if has_real_driver() {
        return;
    }
    if let Some(command) = first_day(&[]) {
        refuses(command, "libcuda.so");
    }
}

#[test]
fn a_driver_without_a_device_or_too_old_is_no_gpu() {
    for (name, value, words) in [("DEVICES", "0", "no device"), ("DRIVER_VERSION", "11080", "11.8")] {
        let Some(mut command) = first_day(&[]) else { return };
        attach(&mut command).env(format!("ANEMONE_EMULATOR_{name}"), value);
        refuses(command, words);
    }
}

#[test]
fn a_device_is_found_and_an_emulated_one_is_called_so() {
    let Some(mut command) = first_day(&["--probe"]) else { return };
    let output = attach(&mut command).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("EMULATED"), "{}", text(&output.stdout));
}

/// Running them takes many minutes; that they have not been left behind by the code is seen at once.
#[test]
fn every_deliberate_mistake_can_still_be_made() {
    let Some(mut command) = script("mutants", &["--check"]) else { return };
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let listed = script("mutants", &["--list"]).unwrap().output().unwrap();
    let listed = text(&listed.stdout);
    let page = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/GPU.md")).unwrap();
    let rows = page.lines().skip_while(|line| !line.starts_with("| mistake | where |"));
    let rows = rows.skip(2).take_while(|line| line.starts_with('|')).count();
    assert_eq!(rows, listed.lines().count(), "docs/GPU.md has a line for each of\n{listed}");

    let refused = script("mutants", &["no-such-mutant"]).unwrap().output().unwrap();
    assert_eq!(refused.status.code(), Some(2), "{}", text(&refused.stderr));
}

#[test]
fn the_estimates_on_the_page_are_those_of_the_script() {
    let Some(mut command) = script("roofline", &[]) else { return };
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let page = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/GPU.md")).unwrap();
    let printed = text(&output.stdout);
    let estimates: Vec<&str> = printed.lines().filter(|line| line.starts_with("| H")).collect();
    assert_eq!(estimates.len(), 14, "seven models, two tables");
    for line in estimates {
        assert!(page.contains(line), "docs/GPU.md has no line\n{line}");
    }
}
