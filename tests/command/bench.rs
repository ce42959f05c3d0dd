//! `anemone bench` as a user types it, at tiny sizes: lines that add up, nothing left behind, clear errors.

use std::path::{Path, PathBuf};
use std::process::Output;

use assert_cmd::Command;
use serde_json::Value;

fn anemone(dir: &Path, args: &[&str]) -> Output {
    let mut command = Command::cargo_bin("anemone").unwrap();
    command.current_dir(dir).args(args).timeout(std::time::Duration::from_secs(300)).output().unwrap()
}

/// What a command that succeeds prints.
fn printed(dir: &Path, args: &[&str]) -> String {
    let output = anemone(dir, args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))).collect()
}

fn number(line: &Value, path: &str) -> f64 {
    line.pointer(path).and_then(Value::as_f64).unwrap_or_else(|| panic!("no number at {path}: {line}"))
}

fn quickstart() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("pipelines/quickstart.toml")
}

/// The sizes of every test below: squares for monarch, a patch of 2×2 pixels for the trees.
const TINY: [&str; 10] = ["--latents", "4", "--vars", "12", "--cats", "7", "--batch-rows", "24", "--steps", "3"];

/// What must hold of every line, of either kind.
fn assert_adds_up(line: &Value) {
    let names = ["rows_per_second", "step_seconds", "gflop_per_row", "gflops", "gemm_gflops", "bound", "parameters"];
    for name in names {
        let value = number(line, &format!("/{name}"));
        assert!(value.is_finite() && value > 0.0, "{name} = {value}: {line}");
    }
    assert!(number(line, "/log_likelihood") < 0.0, "{line}");
    // A step is its phases and what no phase accounts for. Clocks of threads and of the step are not read at the same
    // moment.
    let device = ["wait", "prepare", "forward", "backward", "flows", "update"];
    let phases: f64 = device.iter().map(|phase| number(line, &format!("/phases/{phase}"))).sum();
    let (step, other) = (number(line, "/step_seconds"), number(line, "/other_seconds"));
    assert!(other >= 0.0 && (phases + other - step).abs() <= 1e-9 * step + 1e-5, "{phases} s and {other} s: {line}");
    let ratio = number(line, "/gflops") / (number(line, "/gflop_per_row") * number(line, "/rows_per_second"));
    assert!((ratio - 1.0).abs() < 1e-6, "{line}");
    let ratio = number(line, "/bound") * number(line, "/gemm_gflops") / number(line, "/gflops");
    assert!((ratio - 1.0).abs() < 1e-6, "{line}");
    if cfg!(target_os = "linux") {
        assert!(number(line, "/peak_memory_bytes") > 1e6 && line["load_average"].is_array(), "{line}");
    }
}

#[test]
fn every_circuit_has_a_line_that_adds_up() {
    let dir = tempfile::tempdir().unwrap();
    let args = ["bench", "--circuit", "hmm,monarch,hclt,pdhclt", "--threads", "1", "--json", "-"];
    let found = lines(&printed(dir.path(), &[&args[..], &TINY].concat()));
    let kinds: Vec<&str> = found.iter().map(|line| line["circuit"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["hmm", "monarch", "hclt", "pdhclt"]);
    for line in &found {
        assert_adds_up(line);
        assert_eq!((&line["bench"], &line["steps"]), (&Value::from("synthetic"), &Value::from(3)));
        assert_eq!((&line["optimizer"], &line["precision"]), (&"anemone".into(), &"f32".into()));
        // What the machine has, not what was asked for.
        assert!(["scalar", "avx2", "avx512", "amx"].contains(&line["isa"].as_str().unwrap()), "{line}");
        assert_eq!((&line["threads"], &line["batch_rows"], &line["vars"]), (&1.into(), &24.into(), &12.into()));
        assert!(number(line, "/step_seconds_min") <= number(line, "/step_seconds"));
        assert_eq!((&line["phases"]["read"], &line["update_seconds"]), (&Value::from(0.0), &Value::Null));
    }
    // Eleven transitions of 4×4, and the initial row; the same with four blocks of 2×2 for each transition.
    for (line, weights) in [(&found[0], 11.0 * 16.0 + 4.0), (&found[1], 11.0 * 4.0 * 4.0 + 4.0)] {
        assert_eq!(number(line, "/gflop_per_row"), 6.0 * weights / 1e9);
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is left behind");
}

#[test]
fn every_optimizer_is_timed_and_the_epochs_update_stands_apart() {
    let dir = tempfile::tempdir().unwrap();
    let all = "anemone,full-batch-em,mini_batch_em,stepwise-em,adam,sgd";
    let args = ["bench", "--optimizer", all, "--json", "found.jsonl", "--warmup", "0", "--seed", "9"];
    let table = printed(dir.path(), &[&args[..], &TINY].concat());
    let found = lines(&std::fs::read_to_string(dir.path().join("found.jsonl")).unwrap());
    assert_eq!(found.len(), 6);
    for line in &found {
        assert_adds_up(line);
        let is_full_batch = line["optimizer"] == "full_batch_em";
        assert_eq!(line["update_seconds"].as_f64().is_some_and(|seconds| seconds > 0.0), is_full_batch, "{line}");
    }
    for word in ["hmm-4", "7 categories", "full-batch-em", "rows/s", "epoch's update", "of GEMM", "nats/row"] {
        assert!(table.contains(word), "no `{word}` in:\n{table}");
    }
}

#[test]
fn the_same_seed_learns_the_same_and_threads_do_not_matter() {
    let dir = tempfile::tempdir().unwrap();
    let likelihood = |threads: &str, seed: &str| {
        let args = ["bench", "--circuit", "hclt", "--threads", threads, "--seed", seed, "--json", "-"];
        let found = lines(&printed(dir.path(), &[&args[..], &TINY].concat()));
        number(&found[0], "/log_likelihood")
    };
    let one = likelihood("1", "1");
    assert_eq!(one, likelihood("2", "1"));
    assert_ne!(one, likelihood("2", "2"));
}

#[test]
fn optimizers_learn_one_stream_as_train_does_and_leave_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = quickstart();
    let pipeline = path.to_str().unwrap();
    let args = ["bench", pipeline, "--optimizers", "anemone,full-batch-em", "--epochs", "2", "--json", "-"];
    let found = lines(&printed(dir.path(), &[&args[..], &["--set", "learn.step=0.3"]].concat()));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is left behind");
    assert_eq!(found.len(), 2);
    for line in &found {
        assert_adds_up(line);
        assert_eq!((&line["bench"], &line["pipeline"]), (&"stream".into(), &"quickstart".into()));
        assert_eq!((&line["rows"], &line["epochs"], &line["steps"]), (&16384.into(), &2.into(), &128.into()));
        assert_eq!(line["held_out"], true);
        assert_eq!(line["equal_seconds"], found[0]["equal_seconds"]);
        assert!(number(line, "/equal_seconds") <= number(line, "/seconds"));
        assert!(number(line, "/phases/decode") > 0.0);
    }
    let [anemone, full] = [&found[0], &found[1]].map(|line| number(line, "/equal_rows_ll"));
    assert!(anemone > full, "anemone {anemone}, full-batch EM {full}");
    // The fastest is judged by where it ended.
    assert!(
        found
            .iter()
            .any(|line| line["seconds"] == line["equal_seconds"] && line["equal_rows_ll"] == line["equal_seconds_ll"])
    );

    let train = ["train", pipeline, "--out", "run", "--json", "--set", "learn.epochs=2", "--set", "learn.step=0.3"];
    let trained = printed(dir.path(), &train);
    let finished = lines(&trained).pop().unwrap();
    assert_eq!(number(&finished, "/valid_ll"), anemone, "the same loop, to the same bits");
    assert!(number(&finished, "/phases/decode") > 0.0);
}

#[test]
fn without_held_out_rows_it_is_judged_by_rows_when_they_were_first_seen() {
    let dir = tempfile::tempdir().unwrap();
    let pipeline = "[source.synthetic]\nkind = 'hmm'\nnum_vars = 8\ncats = 5\nlatents = 3\nrows = 600\n\
        [batch]\nrows = 100\n\
        [circuit]\nmodel = 'hmm'\nlatents = 4\n[learn]\noptimizer = 'adam'\nrate = 0.02\nseconds = 60\n";
    std::fs::write(dir.path().join("p.toml"), pipeline).unwrap();
    let output = anemone(dir.path(), &["bench", "p.toml"]);
    assert_eq!(output.status.code(), Some(2), "only seconds, and those are not equal rows");
    assert!(String::from_utf8_lossy(&output.stderr).contains("--epochs"));

    let output =
        anemone(dir.path(), &["bench", "p.toml", "--epochs", "1", "--optimizer", "adam,sgd", "--json", "x.jsonl"]);
    let (table, notes) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert!(output.status.success(), "{notes}");
    assert!(notes.contains("learn.seconds: left out") && notes.contains("learn.optimizer = sgd"), "{notes}");
    for word in ["p: 600 rows of 8 variables in 1 epoch", "first seen", "equal seconds", "wait"] {
        assert!(table.contains(word), "no `{word}` in:\n{table}");
    }
    for line in lines(&std::fs::read_to_string(dir.path().join("x.jsonl")).unwrap()) {
        assert_adds_up(&line);
        assert_eq!((&line["held_out"], &line["rows"]), (&false.into(), &600.into()));
        assert!(number(&line, "/equal_rows_ll") < 0.0);
    }
}

#[test]
fn mistakes_get_one_clear_line_and_exit_code_2() {
    let dir = tempfile::tempdir().unwrap();
    let path = quickstart();
    let pipeline = path.to_str().unwrap();
    for (args, words) in [
        (&["bench", "--circuit", "hmmm"][..], "--circuit hmmm: unknown; did you mean `hmm`?"),
        (&["bench", "--optimizer", "stepwise"], "--optimizer stepwise: unknown; did you mean `stepwise-em`?"),
        (&["bench", "--optimizer", "lion"], "there are anemone, full-batch-em"),
        (&["bench", "--latents", "0"], "--latents 0: must be at least 1"),
        (&["bench", "--vars", "0"], "--vars 0"),
        (&["bench", "--batch-rows", "0"], "--batch-rows 0"),
        (
            &["bench", "--circuit", "monarch", "--latents", "60", "--cats", "5"],
            "latents = 60: monarch takes a square, such as 49 or 64",
        ),
        (&["bench", "--latents", "100000", "--cats", "1000000"], "this machine has"),
        (&["bench", "--latents", "99999999999999"], "make more than"),
        (&["bench", "--circuit", "hclt", "--vars", "99999999999"], "vars = 99999999999: must be at most"),
        (&["bench", "--batch-rows", "999999999999"], "must be from 1 to"),
        (&["bench", "--threads", "0"], "--threads 0"),
        (&["bench", "--memory", "much"], "--memory much"),
        (&["bench", "none.toml"], "none.toml"),
        (
            &["bench", pipeline, "--optimizers", "full-batch-em", "--set", "learn.step=0.3"],
            "full_batch_em has no such option",
        ),
        (&["bench", pipeline, "--set", "batch.rwos=3"], "did you mean `rows`?"),
    ] {
        let output = anemone(dir.path(), args);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {error}");
        let error: Vec<&str> = error.lines().filter(|line| !line.starts_with("note:")).collect();
        assert!(error.len() == 1 && error[0].contains(words), "{args:?}: no `{words}` in {error:?}");
    }
    for args in [
        &["bench", "--precision", "f16"][..],
        &["bench", "--isa", "mmx"],
        &["bench", pipeline, "--latents", "3"],
        &["bench", "--epochs", "3"],
        &["bench", "--json"],
    ] {
        assert_eq!(anemone(dir.path(), args).status.code(), Some(2), "{args:?}");
    }
    let output = anemone(dir.path(), &["bench", "--json", "no/such/folder.jsonl"]);
    assert_eq!(output.status.code(), Some(2), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}
