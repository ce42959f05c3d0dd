//! The commands around a run, as a user types them: train, check, eval, inspect, tokenize, keys, completions. Also two
//! pages of documentation that are about them: what they say is what the program does.

use std::path::Path;
use std::process::Output;

use anemone::rng::Rng;
use assert_cmd::Command;
use serde_json::Value;
use tempfile::TempDir;

/// A pipeline that is learned in no time.
const PIPELINE: &str = "[source.synthetic]\nkind = 'hmm'\nnum_vars = 8\ncats = 5\nlatents = 3\nrows = 600\n\
    [batch]\nrows = 100\n\
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

/// Marks that turn the direction of writing, DEL and C1 are written out for a terminal, and as JSON writes them.
#[cfg(target_os = "linux")]
#[test]
fn json_stays_json_whatever_names_hold() {
    let folder = folder();
    let dir = folder.path();
    let name = "r\u{200f}u\u{7f}n\u{85}";
    let lines = printed(dir, &["train", "p.toml", "--json", "--set", "learn.epochs=1", "--out", name]);
    let events: Vec<Value> = lines.lines().map(json).collect();
    assert_eq!(events[0]["event"], "started");
    assert_eq!(events[0]["out"], name);
    let inspected = printed(dir, &["inspect", name, "--json"]);
    let evaluated = printed(dir, &["eval", name, "--json"]);
    assert!(json(&inspected)["path"].as_str().unwrap().starts_with(name), "{inspected}");
    assert!(json(&evaluated)["model"].as_str().unwrap().starts_with(name), "{evaluated}");
    for text in [lines, inspected, evaluated] {
        assert!(text.contains(r"r\u200fu\u007fn\u0085") && !text.contains(['\u{200f}', '\u{7f}', '\u{85}']), "{text}");
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
    for words in [
        "600 rows per epoch",
        "rows of 8 variables, 5 categories",
        "start        600 rows",
        "anemone, for 3 epochs",
        "activations",
    ] {
        assert!(table.contains(words), "no `{words}` in:\n{table}");
    }
    let one = ["learn.seconds=1", "checkpoint.every_batches=1", "checkpoint.every_seconds=1"];
    let one: Vec<&str> = one.iter().flat_map(|key| ["--set", key]).collect();
    let table = printed(folder.path(), &[&["check", "p.toml"], &one[..]].concat());
    for words in ["for 3 epochs or 1 second\n", "every batch and every second, keeps"] {
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
        (&["check", "--data", "nothing-*.parquet"], 2, "nothing-*.parquet"),
        (&["eval", "empty", "--isa", "sse9"], 2, "--isa: instruction set \"sse9\" is not known"),
        (&["eval", "empty"], 2, "has no model and no checkpoint"),
        (&["inspect", "nowhere"], 2, "no such model"),
        (&["inspect", "damaged.parquet"], 2, "damaged.parquet: is not known by its name"),
        (
            &["eval", "damaged.parquet"],
            2,
            "damaged.parquet: is a file; name a model, a checkpoint or a run folder, which are folders",
        ),
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
    // An underscore is as good as a hyphen, and a slip gets the nearest word.
    let adam = ["check", "--data", "damaged.parquet", "--optimizer"];
    assert_eq!(refused(dir, &[&adam[..], &["mini_batch_em"]].concat()).0, 3);
    let slip = refused(dir, &[&adam[..], &["mini-bach-em"]].concat());
    assert!(slip.0 == 2 && slip.1.contains("did you mean `mini_batch_em`?"), "{slip:?}");
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
        // Values too: of --optimizer, --model, --device, --precision and --isa.
        if ["bash", "zsh", "fish"].contains(&shell) {
            for value in ["stepwise-em", "rat-spn", "cuda:0", "bf16x3", "avx512"] {
                let escaped = value.replace(':', "\\:");
                assert!(script.contains(value) || script.contains(&escaped), "{shell}: {value}");
            }
        }
    }
}

#[test]
fn check_says_how_the_step_changes_and_when() {
    let folder = folder();
    let check = |more: &[&str]| printed(folder.path(), &[&["check", "p.toml", "--set"], more].concat());
    let line = |set: &str| {
        let table = check(&[set]);
        table.lines().find(|line| line.starts_with("step ")).unwrap_or_else(|| panic!("{table}")).to_string()
    };
    assert!(line("learn.momentum=0.5").ends_with("  0.3 throughout"));
    // Six batches an epoch, three epochs.
    let cosine = |horizon: &str| {
        line(&format!("learn.step={{ schedule = 'cosine', from = 0.4, to = 0.02, horizon = {horizon} }}"))
    };
    assert!(cosine("'3 epochs'").ends_with("0.4 falling to 0.02 at update 18 (end of epoch 3), the end of the run"));
    assert_eq!(cosine("'1800 rows'"), cosine("18"));
    let early = "at update 6 (end of epoch 1), then constant for 12 of the run's 18 updates";
    assert!(cosine("'1 epoch'").ends_with(early), "{}", cosine("'1 epoch'"));
    let power = "learn.step={ schedule = 'power', from = 0.4, kappa = 0.5, delay = '0.5 epochs', floor = 0.15 }";
    let told =
        "0.4 at first, 0.2 after 9 updates (epoch 2), never below 0.15, 0.155 at the end of the run (18 updates)";
    assert!(line(power).ends_with(told), "{}", line(power));
    let found = json(&check(&[power, "--set", "learn.batches_per_update=2", "--json"]));
    let (schedule, places) = (&found["schedule"], &found["schedule"]["landmarks"]);
    assert_eq!((&schedule["key"], &schedule["updates"]), (&Value::from("step"), &Value::from(9)));
    assert_eq!((&places[1]["update"], &places[1]["epoch"]), (&Value::from(5), &Value::from(5.0 / 3.0)), "{schedule}");
    assert_eq!(found["optimizer"]["step"]["delay"], "0.5 epochs", "as it was written");
    assert!(json(&check(&["learn.optimizer=full_batch_em", "--json"]))["schedule"].is_null());
}

#[test]
fn epochs_in_a_schedule_are_kept_in_a_run_and_need_rows_that_are_known() {
    let folder = folder();
    let dir = folder.path();
    let train = |out: &str, horizon: &str, more: &[&str]| {
        let step = format!("learn.step={{ schedule = 'cosine', from = 0.4, to = 0.02, horizon = {horizon} }}");
        let args = [&["train", "p.toml", "--json", "--out", out, "--set", &step], more].concat();
        let lines: Vec<Value> = printed(dir, &args).lines().map(json).collect();
        lines.last().unwrap()["valid_ll"].as_f64().unwrap()
    };
    let whole = train("epochs", "'3 epochs'", &[]);
    assert_eq!(whole, train("updates", "18", &[]), "the same steps");
    assert_ne!(whole, train("longer", "20", &[]));
    let resolved = std::fs::read_to_string(dir.join("epochs/resolved.toml")).unwrap();
    assert!(resolved.contains("horizon = \"3 epochs\""), "{resolved}");
    // Stopped in the middle of an epoch and resumed, from the run folder alone.
    train("parts", "'3 epochs'", &["--set", "learn.batches=8"]);
    let rest = printed(dir, &["train", "--out", "parts", "--resume", "--json", "--set", "learn.batches=99"]);
    assert_eq!(json(rest.lines().last().unwrap())["valid_ll"].as_f64().unwrap(), whole);

    let endless = PIPELINE.replace("rows = 600\n", "") + "[learn.step]\nschedule = 'power'\nfrom = 0.4\nkappa = 0.5\n";
    let endless = endless.replace("step = 0.3\n", "");
    std::fs::write(dir.join("endless.toml"), endless).unwrap();
    for command in ["check", "train"] {
        let (code, error) = refused(dir, &[command, "endless.toml", "--set", "learn.step.delay=2 epochs"]);
        assert_eq!((code, error.lines().count()), (2, 1), "{error}");
        for words in ["learn: step.delay = \"2 epochs\": ", "give rows or updates"] {
            assert!(error.contains(words), "no `{words}` in: {error}");
        }
    }
    let table = printed(dir, &["check", "endless.toml", "--set", "learn.step.delay=2000 rows"]);
    assert!(table.contains("0.4 at first, 0.2 after 60 updates\n"), "{table}");
}

/// Learns with a step so large in the end that the best checkpoint is not the last one.
#[test]
fn the_best_checkpoint_or_any_other_is_looked_at_when_asked() {
    let folder = folder();
    let dir = folder.path();
    printed(dir, &["train", "p.toml", "--quiet", "--set", "checkpoint.keep=3", "--set", "learn.epochs=4"]);
    // Another run of one batch with a full step: worse on held-out rows.
    let worse = ["train", "p.toml", "--quiet", "--resume", "--set", "learn.epochs=30", "--set", "learn.step=1.0"];
    printed(dir, &[&worse[..], &["--set", "learn.momentum=0.0", "--set", "learn.batches=26"]].concat());
    let metrics = std::fs::read_to_string(dir.join("runs/p/metrics.jsonl")).unwrap();
    let looks: Vec<(u64, f64)> = metrics.lines().map(json).filter_map(|line| valid(&line)).collect();
    let best = looks.iter().copied().reduce(|a, b| if b.1 > a.1 { b } else { a }).unwrap();
    let last = *looks.last().unwrap();
    assert!(best.0 < last.0 && best.1 > last.1, "{looks:?}");

    let of = |flags: &[&str]| {
        let output = anemone(dir, &[&["eval", "runs/p", "--json"], flags].concat());
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{flags:?}: {error}");
        let found = json(std::str::from_utf8(&output.stdout).unwrap());
        (found["step"].as_u64().unwrap(), found["mean_log_likelihood"].as_f64().unwrap(), error)
    };
    let (step, value, said) = of(&["--best"]);
    assert_eq!((step, value), best);
    assert!(said.contains(&format!("step-{step:010}, the best")), "{said}");
    let (step, _, said) = of(&[]);
    assert!(step == 26 && said.contains("step-0000000026, the latest"), "{said}");
    let path = format!("runs/p/checkpoints/step-{:010}", best.0);
    for named in [best.0.to_string().as_str(), &path, &format!("step-{:010}", best.0)] {
        assert_eq!(of(&["--checkpoint", named]).0, best.0, "{named}");
    }
    for command in
        [&["sample", "runs/p", "--best"][..], &["inpaint", "runs/p", "--best"], &["inspect", "runs/p", "--best"]]
    {
        let error = String::from_utf8(anemone(dir, command).stderr).unwrap();
        assert!(error.contains(&format!("step-{:010}, the best", best.0)), "{command:?}: {error}");
    }
    for (args, words) in [
        (&["eval", "runs/p", "--checkpoint", "7"][..], "--checkpoint 7: "),
        (&["sample", "runs/p", "--checkpoint", "none"], "--checkpoint none: no such checkpoint"),
        (&["eval", &path, "--best"], "--best: "),
        (&["inspect", "p.toml", "--best"], "--best: p.toml is a file"),
    ] {
        let (code, error) = refused(dir, args);
        assert!(code == 2 && error.contains(words), "{args:?}: {code} {error}");
    }
    // The best one is whole, and the newest that is whole knows it.
    let newest = dir.join("runs/p/checkpoints/step-0000000026/checkpoint.json");
    let text = std::fs::read_to_string(&newest).unwrap();
    std::fs::write(&newest, &text[..text.len() / 2]).unwrap();
    let (step, _, said) = of(&["--best"]);
    assert_eq!(step, best.0);
    assert!(said.contains("warning: ") && said.contains("step-0000000026: not used"), "{said}");
}

/// Step and held-out log-likelihood of a line of metrics, if it has one.
fn valid(line: &Value) -> Option<(u64, f64)> {
    Some((line["step"].as_u64()?, line["valid_ll"].as_f64()?))
}

#[test]
fn densities_have_nats_only_and_one_epoch_is_one_epoch() {
    let folder = folder();
    let dir = folder.path();
    let mut npy = b"\x93NUMPY\x01\x00\x76\x00{'descr': '<f4', 'fortran_order': False, 'shape': (64, 2), }".to_vec();
    npy.resize(127, b' ');
    npy.push(b'\n');
    npy.extend((0..128).flat_map(|i| ((i * 37 % 101) as f32 / 50.0 - 1.0).to_le_bytes()));
    std::fs::write(dir.join("a.npy"), npy).unwrap();
    let train = ["train", "--data", "a.npy", "--valid", "a.npy", "--model", "hclt", "--latents", "2", "--epochs", "1"];
    let said = printed(dir, &[&train[..], &["--out", "density"]].concat());
    assert!(said.contains("nats per row") && said.contains("1 epoch: 1 batch, 64 rows"), "{said}");
    let table = printed(dir, &["eval", "density"]);
    for text in [&said, &table] {
        assert!(!text.contains("bits") && !text.contains("perplexity"), "{text}");
    }
    let found = json(&printed(dir, &["eval", "density", "--json"]));
    assert!(found["mean_log_likelihood"].is_f64() && found["bits_per_dim"].is_null(), "{found}");
    // Of categories both are shown; the flag beside a file is in the resolved pipeline.
    assert!(printed(dir, &["train", "p.toml", "--epochs", "2"]).contains("bits per dimension"));
    assert!(printed(dir, &["eval", "runs/p"]).contains("perplexity"));
    assert!(std::fs::read_to_string(dir.join("runs/p/resolved.toml")).unwrap().contains("epochs = 2"));
}

/// A page of the documentation.
fn page(name: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs").join(name)).unwrap()
}

#[test]
fn the_reference_page_is_what_keys_prints() {
    let folder = tempfile::tempdir().unwrap();
    let (printed, page) = (printed(folder.path(), &["keys", "--markdown"]), page("REFERENCE.md"));
    let differ = printed.lines().zip(page.lines()).find(|(printed, page)| printed != page);
    let again = "cargo run -- keys --markdown > docs/REFERENCE.md";
    assert!(printed == page, "docs/REFERENCE.md is out of date, make it again: {again}\n{differ:#?}");
}

#[test]
fn keys_prints_one_key_a_section_or_the_nearest_word() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    let all = printed(dir, &["keys"]);
    for words in ["[source.synthetic]", "learn.step.horizon", "compare.search_epochs", "contender.NAME.like"] {
        assert!(all.contains(words), "no `{words}`");
    }
    let key = printed(dir, &["keys", "pipeline.on_bad"]);
    for words in ["one of \"fail\", \"skip\", \"quarantine\"", "default  \"fail\""] {
        assert!(key.contains(words), "no `{words}` in:\n{key}");
    }
    assert!(key.lines().count() == 4, "{key}");
    assert!(printed(dir, &["keys", "[batch]"]).contains("batch.shuffle_window"));
    let (code, error) = refused(dir, &["keys", "learn.stpe"]);
    let words = "learn.stpe: unknown key or section; did you mean `learn.step`?";
    assert!(code == 2 && error.contains(words) && error.lines().count() == 1, "{code}: {error}");
}

/// Writes rows as a `.npy` file: categories as bytes, real numbers as singles.
fn write_npy(path: &Path, descr: &str, (rows, vars): (usize, usize), bytes: &[u8]) {
    let mut header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({rows}, {vars}), }}");
    let length = (header.len() + 11).next_multiple_of(64) - 10;
    header += &" ".repeat(length - 1 - header.len());
    let head = [b"\x93NUMPY\x01\x00", &(length as u16).to_le_bytes()[..], header.as_bytes(), b"\n"].concat();
    std::fs::write(path, [&head, bytes].concat()).unwrap();
}

/// A Python that has NumPy: the one that `ANEMONE_PYTHON` names, or the one on the path.
pub(super) fn python_with_numpy() -> Option<String> {
    let named = std::env::var("ANEMONE_PYTHON").ok().filter(|name| !name.is_empty());
    let program = named.unwrap_or_else(|| "python3".to_string());
    let mut command = Command::new(&program);
    let tried = command.args(["-c", "import numpy"]).timeout(std::time::Duration::from_secs(120)).output();
    tried.is_ok_and(|output| output.status.success()).then_some(program)
}

/// Prints, for every pair of a folder and a file of rows, what the code on the page says.
const DRIVER: &str = r#"
import sys
for folder, file in zip(sys.argv[1::2], sys.argv[2::2]):
    rows = np.load(file)
    found = {"mean": log_likelihoods(folder, rows).mean()}
    if "tied" in folder:
        found["hmm"] = hmm_log_likelihoods(folder, rows).mean()
    if rows.dtype.kind == "u": # what is missing is summed out
        hidden, filled = rows[:8].astype(float), []
        hidden[:, 1] = np.nan
        for category in range(4):
            rows[:8, 1] = category
            filled.append(np.exp(log_likelihoods(folder, rows[:8])))
        found["marginal"] = np.abs(np.log(sum(filled)) - log_likelihoods(folder, hidden)).max()
    print(json.dumps(found))
"#;

#[test]
fn the_reader_on_the_page_agrees_with_eval() {
    let Some(python) = python_with_numpy() else {
        eprintln!("skipped: there is no python3 with NumPy (ANEMONE_PYTHON names another)");
        return;
    };
    const VARS: usize = 8;
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    let mut rng = Rng::new(5);
    for (split, rows) in [("train", 400), ("held", 100)] {
        let (mut cats, mut reals) = (Vec::new(), Vec::new());
        for _ in 0..rows {
            let mut category = rng.below(4);
            for _ in 0..VARS {
                category = (category + rng.below(2)) % 4;
                cats.push(category as u8);
                reals.extend((category as f32 - 1.5 + 0.3 * rng.normal() as f32).to_le_bytes());
            }
        }
        write_npy(&dir.join(format!("{split}-cats.npy")), "|u1", (rows, VARS), &cats);
        write_npy(&dir.join(format!("{split}-reals.npy")), "<f4", (rows, VARS), &reals);
    }

    // Every kind of node: groups, slices and maps come with the Monarch and the Poon–Domingos circuits.
    let circuits = [
        ("tied", "cats", "model = 'hmm'\nlatents = 4"),
        ("free", "cats", "model = 'hmm'\nlatents = 4\ntying = 'inhomogeneous'"),
        ("monarch", "cats", "model = 'monarch-hmm'\nlatents = 16"),
        ("mixture", "cats", "model = 'hclt'\nlatents = 3\ncomponents = 2"),
        ("pd", "cats", "model = 'pd'\nlatents = 4\nshape = [2, 4]\nmax_product_connections = 1\nblock_size = 2"),
        ("rat", "cats", "model = 'rat-spn'\nlatents = 3\nrepetitions = 2"),
        ("logistic", "cats", "model = 'hclt'\nlatents = 3\ninput = 'discrete-logistic'"),
        ("gaussian", "reals", "model = 'hclt'\nlatents = 3"),
    ];
    let (mut expected, mut args, mut nodes) = (Vec::new(), Vec::new(), String::new());
    for (name, data, circuit) in circuits {
        let text = format!(
            "[source]\nfiles = 'train-{data}.npy'\n[batch]\nrows = 100\n[circuit]\n{circuit}\n[learn]\nepochs = 3\n\
             [validate]\nfiles = 'held-{data}.npy'\n"
        );
        std::fs::write(dir.join(format!("{name}.toml")), text).unwrap();
        let lines = printed(dir, &["train", &format!("{name}.toml"), "--json"]);
        let checkpoint = json(lines.lines().last().unwrap())["checkpoint"].as_str().unwrap().to_string();
        let found = json(&printed(dir, &["eval", &checkpoint, "--json"]));
        assert_eq!((&found["rows"], &found["impossible_rows"]), (&Value::from(100), &Value::from(0)), "{name}");
        expected.push((name, found["mean_log_likelihood"].as_f64().unwrap()));
        nodes += &std::fs::read_to_string(dir.join(&checkpoint).join("circuit.json")).unwrap();
        args.extend([checkpoint, format!("held-{data}.npy")]);
    }
    for form in ["\"groups\"", "\"start\"", "\"map\"", "\"categorical\"", "\"gaussian\"", "\"discrete_logistic\""] {
        assert!(nodes.contains(form), "no circuit has {form}");
    }

    let page = page("MODEL_FILE.md");
    let blocks: Vec<&str> = page.split("```python\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    let [readers @ .., example] = blocks.as_slice() else { panic!("no code in the page") };
    assert!(example.contains("log_likelihoods("), "the last block is the example:\n{example}");
    std::fs::write(dir.join("reader.py"), readers.concat() + DRIVER).unwrap();
    let mut command = Command::new(python);
    command.current_dir(dir).arg("reader.py").args(&args).timeout(std::time::Duration::from_secs(120));
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let out = String::from_utf8(output.stdout).unwrap();
    assert_eq!(out.lines().count(), expected.len(), "{out}");
    for ((name, expected), line) in expected.into_iter().zip(out.lines()) {
        let found = json(line);
        // Single precision in the program, double in the page: a few units of the seventh digit of some ten nats.
        let near = |key: &str, to: f64| (found[key].as_f64().unwrap() - to).abs() < 1e-5;
        assert!(near("mean", expected), "{name}: {expected} and {found}");
        assert!(name != "tied" || near("hmm", expected), "{name}: {expected} and {found}");
        assert!(found.get("marginal").is_none() || near("marginal", 0.0), "{name}: {found}");
    }
}

#[test]
fn the_page_of_the_files_names_every_key_and_buffer_of_a_checkpoint() {
    let folder = folder();
    let dir = folder.path();
    let page = page("MODEL_FILE.md");
    let named = |name: &str| assert!(page.contains(&format!("`{name}`")), "docs/MODEL_FILE.md does not name `{name}`");
    // A checkpoint in the middle of an update has everything there is.
    for optimizer in ["anemone", "full_batch_em", "mini_batch_em", "stepwise_em", "adam", "sgd"] {
        let set = format!("learn.optimizer={optimizer}");
        let mut args = vec!["train", "p.toml", "--json", "--out", optimizer, "--set", &set, "--set", "learn.batches=5"];
        if optimizer != "full_batch_em" {
            args.extend(["--set", "learn.batches_per_update=2"]);
        }
        let lines = printed(dir, &args);
        let checkpoint = json(lines.lines().last().unwrap())["checkpoint"].as_str().unwrap().to_string();
        let file = json(&std::fs::read_to_string(dir.join(&checkpoint).join("checkpoint.json")).unwrap());
        let body = &file["body"];
        let cursor = &body["progress"]["cursor"];
        for part in [&file, body, &body["identity"], &body["progress"], cursor, &body["extra"], &body["files"]] {
            part.as_object()
                .unwrap()
                .keys()
                .filter(|key| !["body", "sha256"].contains(&key.as_str()))
                .for_each(|key| named(key));
        }
        let bytes = std::fs::read(dir.join(&checkpoint).join("optimizer.safetensors")).unwrap();
        let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let header = json(std::str::from_utf8(&bytes[8..8 + length]).unwrap());
        header.as_object().unwrap().keys().for_each(|name| named(name));
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
