//! The commands around a run, as a user types them: train, check, eval, inspect, tokenize, completions.

#![allow(clippy::unwrap_used)] // a test that cannot go on should stop right there

use std::path::Path;
use std::process::Output;

use assert_cmd::Command;
use serde_json::Value;
use tempfile::TempDir;

/// A pipeline that is learned in no time.
const PIPELINE: &str = "[source.synthetic]\nkind = 'hmm'\nnum_vars = 8\ncats = 5\nlatents = 3\nrows = 600\n[batch]\nrows = 100\n\
    [circuit]\nmodel = 'hmm'\nlatents = 4\n[learn]\nepochs = 3\nstep = 0.3\n[validate]\nrows = 200\n";

fn anemone(dir: &Path, args: &[&str]) -> Output {
    let mut command = Command::cargo_bin("anemone").unwrap();
    command.current_dir(dir).args(args).timeout(std::time::Duration::from_secs(120)).output().unwrap()
}

/// What a command that succeeds prints.
fn printed(dir: &Path, args: &[&str]) -> String {
    let output = anemone(dir, args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The exit code and the one line of a command that fails.
fn refused(dir: &Path, args: &[&str]) -> (i32, String) {
    let output = anemone(dir, args);
    (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("p.toml"), PIPELINE).unwrap();
    folder
}

#[test]
fn a_run_is_trained_looked_at_and_evaluated() {
    let folder = folder();
    let dir = folder.path();
    let lines: Vec<Value> = printed(dir, &["train", "p.toml", "--json"]).lines().map(json).collect();
    let of = |name: &str| lines.iter().filter(|line| line["event"] == name).collect::<Vec<_>>();
    assert_eq!((of("started").len(), of("step").len(), of("epoch_end").len()), (1, 18, 3));
    let finished = of("finished")[0];
    assert_eq!((&finished["step"], &finished["rows"]), (&Value::from(18), &Value::from(1800)));
    let valid = finished["valid_ll"].as_f64().unwrap();
    assert!(valid < finished["source_ll"].as_f64().unwrap(), "nobody beats the source: {finished}");
    for file in ["resolved.toml", "metrics.jsonl"] {
        assert!(dir.join("runs/p").join(file).is_file(), "{file}");
    }

    // The held-out rows again, and from the run folder, its checkpoints or one of them.
    let checkpoint = finished["checkpoint"].as_str().unwrap();
    for path in ["runs/p", "runs/p/checkpoints", checkpoint] {
        let found = json(&printed(dir, &["eval", path, "--json"]));
        assert_eq!((found["mean_log_likelihood"].as_f64(), &found["rows"]), (Some(valid), &Value::from(200)), "{path}");
    }
    let bits = json(&printed(dir, &["eval", "runs/p", "p.toml", "--json"]))["bits_per_dim"].as_f64().unwrap();
    assert!((bits + valid / 8.0 / std::f64::consts::LN_2).abs() < 1e-9);
    let source =
        json(&printed(dir, &["eval", "runs/p", "--split", "source", "--rows", "150", "--batch-rows", "64", "--json"]));
    assert_eq!(source["rows"], 150);

    let inspected = printed(dir, &["inspect", "runs/p"]);
    for words in ["18 batches, 1,800 rows", "8\n", "categorical", "model.safetensors"] {
        assert!(inspected.contains(words), "no `{words}` in:\n{inspected}");
    }
    assert_eq!(json(&printed(dir, &["inspect", checkpoint, "--json"]))["circuit"]["variables"], 8);
    // The resolved pipeline of the run is one, and means the same.
    let resolved = std::fs::read_to_string(dir.join("runs/p/resolved.toml")).unwrap();
    let (header, rest) = resolved.split_once('\n').unwrap();
    assert!(header.starts_with("# anemone "), "{header}");
    assert_eq!(printed(dir, &["inspect", "runs/p/resolved.toml"]).trim_end(), rest.trim_end());
}

#[test]
fn a_run_folder_is_enough_to_go_on() {
    let folder = folder();
    let dir = folder.path();
    let short = ["--set", "learn.epochs=1", "--set", "name=short"];
    printed(dir, &[&["train", "p.toml", "--quiet", "--out", "here/run"], &short[..]].concat());
    let names = || {
        let mut names: Vec<_> = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name()).collect();
        names.sort();
        names
    };
    let before = names();
    let step = |args: &[&str]| json(printed(dir, args).lines().last().unwrap())["step"].as_u64().unwrap();
    assert_eq!(step(&["train", "here/run/resolved.toml", "--resume", "--set", "learn.epochs=2", "--json"]), 12);
    assert_eq!(step(&["train", "--out", "here/run", "--resume", "--set", "learn.epochs=3", "--json"]), 18);
    // Without --resume it is the same run, which is there already.
    let (code, error) = refused(dir, &["train", "here/run/resolved.toml"]);
    assert!(code == 4 && error.contains("--resume") && error.contains("here/run"), "{code}: {error}");
    // Elsewhere it is a new one.
    assert_eq!(step(&["train", "here/run/resolved.toml", "--out", "there", "--set", "learn.epochs=1", "--json"]), 6);
    let mut after = before.clone();
    after.push("there".into());
    assert_eq!(names(), after, "no other folder was begun");
    let (code, error) = refused(dir, &["train", "--out", "nowhere", "--resume"]);
    assert!(code == 2 && error.contains("nowhere/resolved.toml") && error.contains("--data"), "{code}: {error}");
    let (code, error) = refused(dir, &["train", "--resume"]);
    assert!(code == 2 && error.contains("a pipeline file"), "{code}: {error}");
}

#[test]
fn names_from_files_have_no_power_over_the_terminal() {
    let folder = folder();
    let dir = folder.path();
    let evil = "evil\\u001b[2J\\u009b1m\\nerror: fine.parquet"; // as TOML and JSON write it
    std::fs::write(dir.join("evil.toml"), format!("[source]\nfiles = \"{evil}\"\n")).unwrap();
    std::fs::write(dir.join("evil.json"), format!("{{\"nodes\": [{{\"kind\": \"{evil}\"}}], \"{evil}\": 1}}")).unwrap();
    for args in
        [&["check", "evil.toml"][..], &["train", "evil.toml"], &["inspect", "evil.json"], &["inspect", "evil.toml"]]
    {
        let output = anemone(dir, args);
        for text in [&output.stdout, &output.stderr] {
            let text = String::from_utf8_lossy(text);
            assert!(text.chars().all(|c| !c.is_control() || c == '\n'), "{args:?}: {text:?}");
        }
        let errors = String::from_utf8_lossy(&output.stderr).lines().count();
        assert!(errors == usize::from(!output.status.success()), "{args:?}: one line");
    }
}

#[test]
fn a_run_is_not_overwritten_and_goes_on_when_told() {
    let folder = folder();
    let dir = folder.path();
    printed(dir, &["train", "p.toml", "--quiet"]);
    let (code, error) = refused(dir, &["train", "p.toml"]);
    assert_eq!(code, 4, "{error}");
    assert!(error.contains("--resume") && error.contains("--out"), "{error}");
    let other = refused(dir, &["train", "p.toml", "--resume", "--set", "batch.rows=50"]);
    assert!(other.0 == 4 && other.1.contains("--force-resume"), "{other:?}");
    let lines = printed(dir, &["train", "p.toml", "--resume", "--set", "learn.epochs=4", "--json"]);
    let finished = json(lines.lines().last().unwrap());
    assert_eq!((&finished["step"], &finished["epoch"]), (&Value::from(24), &Value::from(4)));
}

#[test]
fn another_optimizer_is_one_flag_away_and_the_note_says_what_stays() {
    let folder = folder();
    let output = anemone(folder.path(), &["train", "p.toml", "--set", "learn.optimizer=full-batch-em"]);
    assert!(output.status.success());
    let (out, error) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert!(error.contains("note: learn.optimizer = full-batch-em") && error.contains("leaves out step"), "{error}");
    assert!(out.contains("full_batch_em") && out.contains("the source itself"), "{out}");
}

#[test]
fn check_says_what_would_happen_and_leaves_nothing() {
    let folder = folder();
    let table = printed(folder.path(), &["check", "p.toml"]);
    for words in
        ["600 rows an epoch", "rows of 8 variables, 5 categories", "hmm", "anemone, for 3 epochs", "activations"]
    {
        assert!(table.contains(words), "no `{words}` in:\n{table}");
    }
    let found = json(&printed(folder.path(), &["check", "p.toml", "--json", "--set", "circuit.latents=6"]));
    assert_eq!(found["circuit"]["parameters"], 6 * 5 + 6 * 6 + 6);
    assert!(found["memory"]["parameters"].as_u64().unwrap() == 4 * 72);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "only the pipeline is there");
}

#[test]
fn mistakes_have_their_exit_code_and_one_line() {
    let folder = folder();
    let dir = folder.path();
    std::fs::write(dir.join("bad.toml"), "[source]\nfiles = 'a.parquet'\n[learn]\nstpe = 1\n").unwrap();
    std::fs::write(dir.join("damaged.parquet"), "this is no Parquet file").unwrap();
    std::fs::create_dir(dir.join("empty")).unwrap();
    for (args, code, words) in [
        (&["train", "bad.toml"][..], 2, "bad.toml:4: learn.stpe: unknown key; did you mean `step`?"),
        (&["train", "none.toml"], 2, "none.toml"),
        (&["train", "p.toml", "--set", "learn.step=1.4"], 2, "--set learn.step: learn.step = 1.4: must be in (0, 1]"),
        (&["train", "p.toml", "--device", "gpu"], 2, "--device gpu: unknown; there are auto, cpu and cuda:N"),
        (&["train", "p.toml", "--memory", "much"], 2, "--memory much: expected a size"),
        (
            &["train", "p.toml", "--precision", "f16"],
            2,
            "--precision: precision \"f16\" is not known; there are f32, tf32, bf16x3, bf16",
        ),
        (&["train", "p.toml", "--isa", "sse9"], 2, "--isa: instruction set \"sse9\" is not known"),
        (&["train", "p.toml", "--metrics-addr", "here"], 2, "--metrics-addr: here"),
        (&["check", "--data", "damaged.parquet"], 3, "damaged.parquet"),
        (&["check", "--data", "nothing-*.parquet"], 1, "nothing-*.parquet"),
        (&["eval", "empty", "--isa", "sse9"], 2, "--isa: instruction set \"sse9\" is not known"),
        (&["eval", "empty"], 2, "has no model and no checkpoint"),
        (&["inspect", "nowhere"], 2, "no such model"),
        (&["inspect", "damaged.parquet"], 2, "damaged.parquet: is not known by its name"),
        (&["eval", "damaged.parquet"], 2, "damaged.parquet: is a file, and a model, a checkpoint or a run is a folder"),
        (&["train", "damaged.parquet"], 2, "is data, not a pipeline file; to learn from it: --data damaged.parquet"),
        (&["train", "p.toml", "--out", "/"], 2, "/: is the root of the file system"),
        (&["train", "p.toml", "--out", "p.toml"], 2, "p.toml: is not a folder"),
        (
            &["train", "p.toml", "--set", "circuit.min_std=1e-46"],
            2,
            "--set circuit.min_std: circuit.min_std = 1e-46: must be in [1e-37, 1e37]",
        ),
        (&["check", "p.toml", "--set", "circuit.min_std=1e39"], 2, "must be in [1e-37, 1e37]"),
        (&["tokenize", "damaged.parquet", "--out", "x.txt"], 2, "must end in .bin or .bin.zst"),
    ] {
        let (found, error) = refused(dir, args);
        assert_eq!(found, code, "{args:?}: {error}");
        assert_eq!(error.lines().count(), 1, "{args:?}: {error}");
        assert!(error.contains(words), "{args:?}: no `{words}` in `{error}`");
    }
    for args in [&["train"][..], &["train", "p.toml", "--latents", "3"], &["train", "p.toml", "--json", "--quiet"]] {
        assert_eq!(refused(dir, args).0, 2, "{args:?}");
    }
}

#[test]
fn texts_become_tokens_whole_or_not_at_all() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    let texts = "{\"text\": \"Hello, world!\"}\n{\"text\": \"\"}\n{\"text\": \"Hello\"}\n";
    std::fs::write(dir.join("a.jsonl"), texts).unwrap();
    let made = json(&printed(dir, &["tokenize", "a.jsonl", "--out", "a.bin", "--json"]));
    assert_eq!((&made["tokens"], &made["texts"]), (&Value::from(5), &Value::from(3)));
    let want: Vec<u8> = [15496u16, 11, 995, 0, 15496].iter().flat_map(|id| id.to_le_bytes()).collect();
    assert_eq!(std::fs::read(dir.join("a.bin")).unwrap(), want);
    let wide = ["tokenize", "a.jsonl", "--out", "b.bin", "--width", "u32", "--end-of-text"];
    printed(dir, &wide);
    assert_eq!(std::fs::read(dir.join("b.bin")).unwrap().len(), 4 * (5 + 3));

    let (code, error) = refused(dir, &["tokenize", "a.jsonl", "--out", "a.bin"]);
    assert!(code == 2 && error.contains("--force"), "{error}");
    std::fs::write(dir.join("bad.jsonl"), format!("{texts}{{\"other\": 1}}\n")).unwrap();
    let (code, error) = refused(dir, &["tokenize", "bad.jsonl", "--out", "a.bin", "--force"]);
    assert!(code == 3 && error.contains("bad.jsonl") && error.contains("--skip-bad"), "{code}: {error}");
    assert_eq!(std::fs::read(dir.join("a.bin")).unwrap(), want, "a failure leaves the old file");
    let skipped = json(&printed(dir, &["tokenize", "bad.jsonl", "--out", "a.bin.zst", "--skip-bad", "--json"]));
    assert_eq!((&skipped["tokens"], &skipped["bad"]), (&Value::from(5), &Value::from(1)));
    let names: Vec<String> =
        std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().to_string_lossy().into_owned()).collect();
    assert!(names.iter().all(|name| !name.contains("tmp")), "{names:?}");

    // What was made is what a run reads.
    let args = ["train", "--data", "a.bin.zst", "--latents", "2", "--set", "decode.window=2", "--json", "--quiet"];
    assert_eq!(refused(dir, &args).0, 2, "--json and --quiet contradict each other");
    let lines = printed(dir, &[&args[..args.len() - 1], &["--out", "run"]].concat());
    assert_eq!(json(lines.lines().last().unwrap())["rows"], 2);
    // A model of the texts looks at the tokens as well.
    let texts =
        ["train", "--data", "a.jsonl", "--latents", "2", "--set", "decode.window=2", "--quiet", "--out", "texts"];
    printed(dir, &texts);
    let of = |file: &str| json(&printed(dir, &["eval", "texts", "--data", file, "--json"]));
    assert_eq!(of("a.jsonl")["mean_log_likelihood"], of("a.bin.zst")["mean_log_likelihood"]);
}

#[test]
fn every_shell_gets_its_completions() {
    let folder = tempfile::tempdir().unwrap();
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let script = printed(folder.path(), &["completions", shell]);
        assert!(script.contains("tokenize") && script.contains("force-resume"), "{shell}");
    }
}

#[test]
fn what_a_killed_tokenize_left_is_removed_and_what_another_writes_stays() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    std::fs::write(dir.join("a.jsonl"), "{\"text\": \"Hello\"}\n").unwrap();
    let long_ago = std::time::SystemTime::now() - std::time::Duration::from_secs(60);
    let make = |name: &str| {
        let file = std::fs::File::create(dir.join(name)).unwrap();
        file.set_modified(long_ago).unwrap();
        file
    };
    let written = make(".tmp-77-other.bin");
    written.lock().unwrap();
    for name in [".tmp-999999-a.bin", ".tmp-12-b.bin.zst", ".tmp-notes.bin", ".tmp-5-notes.txt"] {
        make(name);
    }
    let output = anemone(dir, &["tokenize", "a.jsonl", "--out", "a.bin"]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    assert!(error.contains(".tmp-999999-a.bin: removed") && error.lines().count() == 2, "{error}");
    let mut names: Vec<String> =
        std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    assert_eq!(names, [".tmp-5-notes.txt", ".tmp-77-other.bin", ".tmp-notes.bin", "a.bin", "a.jsonl"]);
}
