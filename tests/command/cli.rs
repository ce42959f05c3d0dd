//! The command as a user types it.

use std::fs;
use std::path::Path;
use std::process::Output;

use assert_cmd::Command;
use serde_json::Value;

fn anemone(args: &[&str]) -> Output {
    anemone_in(Path::new("."), args)
}

fn anemone_in(dir: &Path, args: &[&str]) -> Output {
    let mut command = Command::cargo_bin("anemone").unwrap();
    command.current_dir(dir).args(args).timeout(std::time::Duration::from_secs(120)).output().unwrap()
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

/// A pipeline that is learned in no time.
const PIPELINE: &str = "[source.synthetic]\nkind = 'hmm'\nnum_vars = 6\ncats = 5\nlatents = 2\nrows = 300\n\
    [batch]\nrows = 100\n\
    [circuit]\nmodel = 'hmm'\nlatents = 3\n[learn]\nepochs = 3\n[validate]\nrows = 50\n";

/// Learns `PIPELINE` into `dir/run`, with more flags.
fn train(dir: &Path, more: &[&str]) {
    fs::write(dir.join("p.toml"), PIPELINE).unwrap();
    let output = anemone_in(dir, &[&["train", "p.toml", "--out", "run", "--quiet", "--threads", "1"], more].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        match entry.file_type().unwrap().is_dir() {
            true => copy(&entry.path(), &to.join(entry.file_name())),
            false => drop(fs::copy(entry.path(), to.join(entry.file_name())).unwrap()),
        }
    }
}

/// The rule of docs/GUIDE.md: like mistakes end alike, whichever command finds them.
#[test]
fn like_mistakes_get_like_exit_codes() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    train(dir, &[]);
    copy(&dir.join("run"), &dir.join("damaged"));
    for checkpoint in fs::read_dir(dir.join("damaged/checkpoints")).unwrap().map(Result::unwrap) {
        let model = checkpoint.path().join("model.safetensors");
        if model.is_file() {
            let mut bytes = fs::read(&model).unwrap();
            let last = bytes.len() - 1;
            bytes[last] ^= 1;
            fs::write(model, bytes).unwrap();
        }
    }
    fs::write(dir.join("typo.toml"), "[source]\nfiles = 'a.npy'\n[learn]\nstpe = 1\n").unwrap();
    fs::write(dir.join("torn.toml"), "[source\nfiles = 3").unwrap();
    fs::write(dir.join("latin.toml"), b"# \xe9\n").unwrap();
    fs::write(dir.join("text.parquet"), "this is text").unwrap();
    fs::write(dir.join("short.npy"), "this is text").unwrap();
    fs::write(dir.join("circuit.json"), "{\"nodes\": ").unwrap();
    fs::write(dir.join("file"), "").unwrap();
    fs::create_dir(dir.join("folder.parquet")).unwrap();
    let mut npy = b"\x93NUMPY\x01\x00\x76\x00{'descr': '|u1', 'fortran_order': False, 'shape': (8, 2), }".to_vec();
    npy.resize(127, b' ');
    npy.push(b'\n');
    npy.extend([0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3]);
    fs::write(dir.join("good.npy"), &npy).unwrap();
    for (code, args) in [
        // What is not there, or is of another kind.
        (2, &["train", "--data", "none.parquet"][..]),
        (2, &["train", "--data", "none-*.parquet"]),
        (2, &["train", "--data", "none.bin"]),
        (2, &["train", "--data", "good.npy", "--valid", "none.npy"]),
        (2, &["train", "none.toml"]),
        (2, &["check", "none.toml"]),
        (2, &["bench", "none.toml"]),
        (2, &["compare", "none.toml"]),
        (2, &["inspect", "none.toml"]),
        (2, &["inspect", "none.json"]),
        (2, &["eval", "none"]),
        (2, &["sample", "none"]),
        (2, &["inpaint", "none"]),
        (2, &["inspect", "none"]),
        (2, &["inspect", "file"]),
        (2, &["sample", "file"]),
        (2, &["eval", "folder.parquet"]),
        (2, &["train", "--data", "folder.parquet"]),
        (2, &["train", "folder.parquet"]),
        (2, &["train", "text.parquet"]),
        (2, &["train", "file/p.toml"]),
        (2, &["sample", "run", "--out", "none/rows.csv"]),
        (2, &["tokenize", "none.jsonl", "--out", "a.bin"]),
        (2, &["sample", "run", "--tokenizer", "none.json"]),
        // Flags and files that cannot be understood, and what no machine can do.
        (2, &["train"]),
        (2, &["train", "typo.toml"]),
        (2, &["train", "torn.toml"]),
        (2, &["inspect", "torn.toml"]),
        (2, &["train", "latin.toml"]),
        (2, &["train", "p.toml", "--set", "batch.rows=many"]),
        (2, &["train", "--data", "good.npy", "--latents", "1000000"]),
        (2, &["train", "--data", "good.npy", "--latents", "100000000000"]),
        (2, &["train", "--data", "good.npy", "--model", "hclt", "--latents", "100000000000"]),
        (2, &["bench", "--latents", "100000000000"]),
        (2, &["demo", "--latents", "100000000000"]),
        (2, &["train", "p.toml", "--device", "cuda:99"]),
        (2, &["inpaint", "run", "--skip", "100"]),
        // Contents.
        (3, &["train", "--data", "text.parquet"]),
        (3, &["check", "--data", "short.npy"]),
        (3, &["tokenize", "text.parquet", "--out", "a.bin"]),
        (3, &["inspect", "circuit.json"]),
        (3, &["train", "p.toml", "--set", "circuit={ model = 'file', path = 'circuit.json' }"]),
        (3, &["train", "--data", "good.npy", "--set", "decode.cats=3"]),
        (3, &["eval", "damaged"]),
        (3, &["sample", "damaged"]),
        (3, &["inspect", "damaged"]),
        (3, &["train", "p.toml", "--out", "damaged", "--resume"]),
        // A run that is not resumed.
        (4, &["train", "p.toml", "--out", "run"]),
        (4, &["train", "p.toml", "--out", "run", "--resume", "--set", "batch.rows=50"]),
    ] {
        let output = anemone_in(dir, args);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {error}");
        if args.len() > 1 {
            let lines = error.lines().filter(|line| line.starts_with("error: ")).count();
            assert_eq!(lines, 1, "{args:?}: {error}");
        }
    }
}

#[test]
fn a_slip_is_told_with_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    fs::write(dir.join("a.parquet"), "PAR1").unwrap();
    for (args, words) in [
        (&["train", "a.parquet"][..], "a.parquet: is data, not a pipeline file; to learn from it: --data a.parquet"),
        (&["inspect", "a.parquet"], "a.parquet: is not known by its name: a circuit ends in .json"),
    ] {
        let error = text(&anemone_in(dir, args).stderr);
        assert!(error.contains(words), "{args:?}: {error}");
    }
}
