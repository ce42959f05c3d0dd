//! The command as a user types it.

#![allow(clippy::unwrap_used)] // a test that cannot go on should stop right there

use std::process::Output;

use assert_cmd::Command;
use serde_json::Value;

fn anemone(args: &[&str]) -> Output {
    Command::cargo_bin("anemone").unwrap().args(args).timeout(std::time::Duration::from_secs(120)).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Held-out nats per symbol after the last epoch, by optimizer, and the source's.
fn demo_curves(threads: &str) -> (Vec<(String, f64)>, f64) {
    let output = anemone(&["demo", "--epochs", "3", "--rows", "2048", "--threads", threads, "--json"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let lines: Vec<Value> = text(&output.stdout).lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let curves = lines[1..]
        .iter()
        .map(|line| (line["optimizer"].as_str().unwrap().to_string(), line["nats_per_symbol"].as_f64().unwrap()));
    (curves.collect(), lines[0]["source_nats_per_symbol"].as_f64().unwrap())
}

#[test]
fn the_demo_learns_and_anemone_is_ahead_of_full_batch_em() {
    let (curves, source) = demo_curves("2");
    assert_eq!(curves.len(), 6, "three epochs each");
    let last = |name: &str| curves.iter().rev().find(|(n, _)| n == name).unwrap().1;
    let (anemone, full) = (last("anemone"), last("full_batch_em"));
    assert!(source < anemone && anemone < full, "source {source}, anemone {anemone}, full-batch EM {full}");
    assert_eq!(demo_curves("1").0, curves, "the numbers do not depend on the number of threads");
}

#[test]
fn the_demo_prints_curves_for_people() {
    let output = anemone(&["demo", "--epochs", "2", "--rows", "256"]);
    let out = text(&output.stdout);
    assert!(output.status.success());
    for word in ["entropy rate", "epoch", "anemone", "full-batch-em", "█"] {
        assert!(out.contains(word), "no `{word}` in:\n{out}");
    }
}

#[test]
fn mistakes_get_one_clear_line_and_a_failing_exit() {
    for (args, words) in [
        (&["demo", "--latents", "0"][..], &["latents = 0", "at least 1"][..]),
        (&["demo", "--cats", "0"], &["at least one category"]),
        (&["demo", "--rows", "0"], &["--rows = 0"]),
        (&["demo", "--threads", "0"], &["threads = 0"]),
    ] {
        let output = anemone(args);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {error}");
        assert_eq!(error.lines().count(), 1, "{args:?}: {error}");
        words.iter().for_each(|word| assert!(error.contains(word), "{args:?}: no `{word}` in `{error}`"));
    }
    assert_eq!(anemone(&["demo", "--epochs", "none"]).status.code(), Some(2));
    assert_eq!(anemone(&["swim"]).status.code(), Some(2));
}
