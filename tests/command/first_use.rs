//! What a new user meets: raw units, mixed tables, ragged lists, grey pictures. The program never guesses without a
//! word, and what it decides it says before it learns.

use std::fs::File;
use std::path::Path;
use std::process::Output;
use std::sync::Arc;
use std::time::Duration;

use anemone::rng::Rng;
use arrow::array::{
    ArrayRef, BooleanArray, Float64Array, Int64Array, ListArray, StringArray, TimestampMillisecondArray, UInt8Array,
};
use arrow::datatypes::UInt8Type;
use arrow::ipc::writer::StreamWriter;
use arrow::record_batch::RecordBatch;
use assert_cmd::Command;
use parquet::arrow::ArrowWriter;
use serde_json::Value;

use crate::common::shards;

fn anemone(dir: &Path, args: &[&str]) -> Output {
    with_input(dir, args, Vec::new())
}

fn with_input(dir: &Path, args: &[&str], input: Vec<u8>) -> Output {
    let mut command = Command::cargo_bin("anemone").unwrap();
    command.current_dir(dir).args(args).write_stdin(input).timeout(Duration::from_secs(120)).output().unwrap()
}

/// The events of a run that succeeds.
fn events(output: &Output) -> Vec<Value> {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn event<'a>(events: &'a [Value], name: &str) -> &'a Value {
    events.iter().find(|event| event["event"] == name).unwrap_or_else(|| panic!("no event {name} in {events:?}"))
}

/// The one line that a command which is refused prints. Nothing has been learned.
fn refusal(dir: &Path, args: &[&str], code: i32) -> String {
    let output = anemone(dir, args);
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{args:?}: {text}");
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(!dir.join("runs").join("hclt").join("checkpoints").join("step-0000000001").exists());
    text
}

fn table(columns: Vec<(&str, ArrayRef)>) -> RecordBatch {
    RecordBatch::try_from_iter(columns).unwrap()
}

fn write(path: &Path, batch: &RecordBatch) {
    let mut writer = ArrowWriter::try_new(File::create(path).unwrap(), batch.schema(), None).unwrap();
    writer.write(batch).unwrap();
    writer.close().unwrap();
}

const MEANS: [[f64; 3]; 3] = [[30.0, 2.0, 10.0], [45.0, 3.5, 20.0], [60.0, 5.0, 5.0]];
const DEVIATIONS: [f64; 3] = [3.0, 0.3, 1.5];

/// Three normal components in units of their own, and the mean log-likelihood of the rows under that mixture.
fn mixture(rows: usize, seed: u64, scale: f64, shift: f64) -> (RecordBatch, f64) {
    let mut rng = Rng::new(seed);
    let (mut columns, mut total) = (vec![Vec::new(); 3], 0.0);
    for _ in 0..rows {
        let means = MEANS[rng.below(3)];
        let row: Vec<f64> = (0..3).map(|var| means[var] + DEVIATIONS[var] * rng.normal()).collect();
        let log_density = |means: &[f64; 3]| {
            let one = |var: usize| {
                let z: f64 = (row[var] - means[var]) / DEVIATIONS[var];
                -0.5 * (z * z + std::f64::consts::TAU.ln()) - (DEVIATIONS[var] * scale).ln()
            };
            (0..3).map(one).sum::<f64>()
        };
        total += MEANS.iter().map(|means| log_density(means).exp() / 3.0).sum::<f64>().ln();
        columns.iter_mut().zip(row).for_each(|(column, x)| column.push(x * scale + shift));
    }
    let names = ["height", "weight", "age"];
    let arrays = columns.into_iter().map(|column| Arc::new(Float64Array::from(column)) as ArrayRef);
    (table(names.into_iter().zip(arrays).collect()), total / rows as f64)
}

#[test]
fn a_mixture_in_raw_units_comes_near_the_truth_in_any_unit() {
    let dir = tempfile::tempdir().unwrap();
    for (scale, shift) in [(1.0, 0.0), (1e6, 1e9), (1e-4, -3.0)] {
        write(&dir.path().join("train.parquet"), &mixture(6000, 1, scale, shift).0);
        let (valid, truth) = mixture(2000, 2, scale, shift);
        write(&dir.path().join("valid.parquet"), &valid);
        for (model, optimizer) in [("hclt", "anemone"), ("rat-spn", "anemone"), ("hclt", "full-batch-em")] {
            let out = format!("{model}-{optimizer}-{scale:e}");
            let args =
                ["train", "--data", "train.parquet", "--valid", "valid.parquet", "--model", model, "--latents", "8"];
            let more = ["--epochs", "12", "--batch-rows", "128", "--optimizer", optimizer, "--out", &out, "--json"];
            let events = events(&anemone(dir.path(), &[&args[..], &more].concat()));
            let found = event(&events, "finished")["valid_ll"].as_f64().unwrap();
            assert!((found - truth).abs() < 0.1, "{out}: {found} where the truth is {truth}");
        }
    }
}

#[test]
fn a_column_that_an_f32_cannot_follow_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let seconds: ArrayRef = Arc::new(Float64Array::from_iter_values((0..500).map(|n| 1.7e9 + f64::from(n % 60))));
    let plain: ArrayRef = Arc::new(Float64Array::from_iter_values((0..500).map(|n| f64::from(n % 60))));
    write(&dir.path().join("t.parquet"), &table(vec![("plain", plain), ("seconds", seconds)]));
    let args = [
        "train",
        "--data",
        "t.parquet",
        "--model",
        "hclt",
        "--latents",
        "2",
        "--batch-rows",
        "2",
        "--out",
        "out",
        "--json",
    ];
    let run = events(&anemone(dir.path(), &args));
    let warnings: Vec<&str> = run
        .iter()
        .filter(|event| event["event"] == "warning")
        .map(|event| event["message"].as_str().unwrap())
        .collect();
    assert!(warnings.len() == 1 && warnings[0].starts_with("column `seconds` (Float64): "), "{warnings:?}");
}

#[test]
fn densities_start_from_the_first_rows_of_a_live_stream_and_learn_from_them_too() {
    let dir = tempfile::tempdir().unwrap();
    let (rows, truth) = mixture(6000, 1, 1.0, 0.0);
    let mut stream = Vec::new();
    let mut writer = StreamWriter::try_new(&mut stream, &rows.schema()).unwrap();
    (0..60).for_each(|at| writer.write(&rows.slice(at * 100, 100)).unwrap());
    writer.finish().unwrap();
    drop(writer);
    std::fs::write(
        dir.path().join("live.toml"),
        "[source]\nfiles = '-'\n[decode]\nkind = 'rows'\n[batch]\nrows = 64\n\
        [circuit]\nmodel = 'hclt'\nlatents = 8\nstructure_rows = 1000\n[learn]\nepochs = 1\n",
    )
    .unwrap();
    let runs = ["a", "b"].map(|out| {
        let args = ["train", "live.toml", "--out", out, "--json"];
        let events = events(&with_input(dir.path(), &args, stream.clone()));
        let finished = event(&events, "finished");
        assert_eq!(finished["rows"], 6000, "rows that were looked at are learned from, once");
        finished["prequential_ll"].as_f64().unwrap()
    });
    assert_eq!(runs[0], runs[1], "a start from rows is the same every time");
    assert!(runs[0] > truth - 0.5, "{} where the truth is {truth}", runs[0]);
}

#[test]
fn a_sequence_starts_from_the_first_batch_of_a_live_stream_and_a_check_uses_up_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut rng = Rng::new(5);
    let names: Vec<String> = (0..6).map(|var| format!("x{var}")).collect();
    let column = |values: &mut Rng| Arc::new(UInt8Array::from_iter_values((0..600).map(|_| values.below(4) as u8)));
    let rows = table(names.iter().map(|name| (name.as_str(), column(&mut rng) as ArrayRef)).collect());
    let stream = |batches: usize| {
        let mut stream = Vec::new();
        let mut writer = StreamWriter::try_new(&mut stream, &rows.schema()).unwrap();
        (0..batches).for_each(|at| writer.write(&rows.slice(at * 100, 100)).unwrap());
        writer.finish().unwrap();
        drop(writer);
        stream
    };
    let text = "[source]\nfiles = '-'\n[decode]\nkind = 'rows'\ncats = 4\n[batch]\nrows = 64\n\
        [circuit]\nmodel = 'hmm'\nlatents = 4\n[learn]\nepochs = 1\n";
    std::fs::write(dir.path().join("live.toml"), text).unwrap();
    let runs = [("a", "1"), ("b", "2")].map(|(out, threads)| {
        let args = ["train", "live.toml", "--out", out, "--threads", threads, "--json"];
        let events = events(&with_input(dir.path(), &args, stream(6)));
        let start = serde_json::json!({"from": "rows", "rows": 64});
        assert_eq!(event(&events, "started")["start"], start, "one batch is waited for, and no more");
        let finished = event(&events, "finished").clone();
        assert_eq!(finished["rows"], 600, "rows that were looked at are learned from, once");
        finished["prequential_ll"].as_f64().unwrap()
    });
    assert_eq!(runs[0], runs[1], "the same start on any number of threads");
    let found = &events(&with_input(dir.path(), &["check", "live.toml", "--json"], stream(0)))[0];
    assert_eq!(found["start"], Value::Null);
    assert_eq!(
        (&found["resolved"]["circuit"]["start"], &found["resolved"]["circuit"]["perturbation"]),
        (&"rows".into(), &8.0.into())
    );
}

fn mixed() -> RecordBatch {
    let numbers: Vec<i64> = (0..64).collect();
    table(vec![
        ("country", Arc::new(StringArray::from_iter_values(numbers.iter().map(|n| format!("land {}", n % 5))))),
        ("age", Arc::new(Int64Array::from(numbers.clone()))),
        ("income", Arc::new(Float64Array::from_iter_values(numbers.iter().map(|&n| n as f64 * 1234.5)))),
        ("member", Arc::new(BooleanArray::from_iter(numbers.iter().map(|n| Some(n % 3 == 0))))),
        ("seen", Arc::new(TimestampMillisecondArray::from_iter_values(numbers.iter().copied()))),
    ])
}

#[test]
fn a_mixed_table_is_refused_with_what_would_work_and_learned_when_told_how() {
    let dir = tempfile::tempdir().unwrap();
    write(&dir.path().join("mixed.parquet"), &mixed());
    let data = ["train", "--data", "mixed.parquet", "--model", "hclt", "--latents", "2", "--epochs", "1"];
    let text = refusal(dir.path(), &data, 2);
    for word in [
        "`country` (Utf8)",
        "`seen` (Timestamp",
        "--column country",
        r#"source.columns = ["age", "income", "member"]"#,
        r#"decode.kind = "table" (--table)"#,
    ] {
        assert!(text.contains(word), "{word} is not in {text}");
    }
    let told = [&data[..], &["--columns", "age,income", "--out", "told", "--json"]].concat();
    let run = events(&anemone(dir.path(), &told));
    let columns = &event(&run, "started")["columns"];
    let names = |key: &str| {
        columns[key].as_array().unwrap().iter().map(|c| c["name"].as_str().unwrap().to_string()).collect::<Vec<_>>()
    };
    assert_eq!(names("read"), ["age", "income"]);
    assert_eq!(names("left_out"), ["country", "member", "seen"]);
    // Other rows may call the same columns otherwise, and have others beside them.
    let renamed = mixed();
    let renamed = ["age", "income", "country"].map(|name| renamed.column_by_name(name).unwrap().clone());
    let renamed = ["a", "b", "c"].into_iter().zip(renamed).collect();
    write(&dir.path().join("renamed.parquet"), &table(renamed));
    let model = "told/checkpoints/step-0000000001";
    let eval = ["eval", model, "--data", "renamed.parquet", "--json"];
    assert!(refusal(dir.path(), &eval, 2).contains("no column `age`"));
    let value = |args: &[&str]| {
        let output = anemone(dir.path(), args);
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        events(&output)[0]["mean_log_likelihood"].as_f64().unwrap()
    };
    let as_learned = value(&["eval", model, "--data", "mixed.parquet", "--json"]);
    assert_eq!(value(&[&eval[..], &["--columns", "a,b"]].concat()), as_learned);
    let inpaint = ["inpaint", "told", "--data", "renamed.parquet", "--columns", "a,b", "--missing", "last"];
    let output = anemone(dir.path(), &inpaint);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let both = [&eval[..], &["--columns", "a,b", "--column", "a"]].concat();
    assert_eq!(anemone(dir.path(), &both).status.code(), Some(2), "one or the other");
    // Told what records are: all numbers, and what is left out is named.
    let rows = [&data[..], &["--set", "decode.kind=rows", "--out", "rows"]].concat();
    let output = anemone(dir.path(), &rows);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && text.contains("left out: `country` (Utf8), `seen`"), "{text}");
    assert!(text.contains("rows of 3 variables, real numbers, as normal densities"), "{text}");
}

#[test]
fn strings_are_texts_only_when_somebody_says_so() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["text", "name"] {
        let texts: ArrayRef = Arc::new(StringArray::from_iter_values(shards::texts(200, 1)));
        write(&dir.path().join("texts.parquet"), &table(vec![(name, texts)]));
        let data = ["train", "--data", "texts.parquet", "--model", "hmm", "--latents", "2", "--epochs", "1"];
        let text = refusal(dir.path(), &data, 2);
        assert!(text.contains(&format!("--column {name}")), "{text}");
        let window = ["--set", "decode.window=8", "--set", "decode.end_of_text=true", "--out"];
        for (out, told) in [("column", ["--column", name]), ("kind", ["--set", "decode.kind=text"])] {
            let out = format!("{name}-{out}");
            let output = anemone(dir.path(), &[&data[..], &told, &window, &[&out]].concat());
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(output.status.success(), "{text} {}", String::from_utf8_lossy(&output.stderr));
            assert!(text.contains(&format!("columns    `{name}` (Utf8)")), "{text}");
        }
    }
}

/// 300 lists of eight and one of two, in row 40.
fn one_short_list() -> RecordBatch {
    let lists = (0..300u32).map(|row| {
        let length = if row == 40 { 2 } else { 8 };
        Some((0..length).map(|at| Some(((row + at) % 3) as u8)).collect::<Vec<_>>())
    });
    table(vec![("x", Arc::new(ListArray::from_iter_primitive::<UInt8Type, _, _>(lists)))])
}

#[test]
fn a_list_of_another_length_is_a_bad_record_and_does_not_make_tokens_of_rows() {
    let dir = tempfile::tempdir().unwrap();
    write(&dir.path().join("lists.parquet"), &one_short_list());
    let data = ["train", "--data", "lists.parquet", "--model", "hclt", "--latents", "2", "--epochs", "1"];
    let text = refusal(dir.path(), &[&data[..], &["--out", "failed"]].concat(), 3);
    assert!(text.contains("lists.parquet: row 40: ") && text.contains("2 values"), "{text}");
    let skip = ["--set", "pipeline.on_bad=quarantine", "--out", "skipped", "--json"];
    let run = events(&anemone(dir.path(), &[&data[..], &skip].concat()));
    assert_eq!(event(&run, "started")["num_vars"], 8);
    assert_eq!((&event(&run, "finished")["rows"], &event(&run, "finished")["bad_records"]), (&299.into(), &1.into()));
    let ledger = std::fs::read_to_string(dir.path().join("skipped/quarantine.jsonl")).unwrap();
    assert!(ledger.lines().count() == 1 && ledger.contains("40"), "{ledger}");

    // Lists of all lengths are no rows, and are tokens only when the pipeline says so.
    let lists = (0..50u32).map(|row| Some((0..row + 1).map(|at| Some((at % 3) as u8)).collect::<Vec<_>>()));
    let ragged = table(vec![("x", Arc::new(ListArray::from_iter_primitive::<UInt8Type, _, _>(lists)) as ArrayRef)]);
    write(&dir.path().join("lists.parquet"), &ragged);
    let text = refusal(dir.path(), &[&data[..], &["--out", "ragged"]].concat(), 3);
    assert!(text.contains(r#"decode.kind = "tokens""#) && text.contains("lists.parquet: row 1"), "{text}");
    let tokens =
        ["--set", "decode.kind=tokens", "--set", "decode.vocab=3", "--set", "decode.window=5", "--out", "tokens"];
    let output = anemone(dir.path(), &[&data[..], &tokens].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn held_out_rows_have_the_columns_of_those_that_are_learned() {
    let dir = tempfile::tempdir().unwrap();
    let column = |seed: u64| {
        let mut rng = Rng::new(seed);
        Arc::new(UInt8Array::from_iter_values((0..200).map(|_| rng.below(3) as u8))) as ArrayRef
    };
    write(&dir.path().join("train.parquet"), &table(vec![("a", column(1)), ("b", column(2))]));
    let other: ArrayRef = Arc::new(StringArray::from_iter_values((0..200).map(|n| n.to_string())));
    write(&dir.path().join("valid.parquet"), &table(vec![("id", other), ("b", column(3)), ("a", column(4))]));
    let args = ["train", "--data", "train.parquet", "--valid", "valid.parquet", "--model", "hclt", "--latents", "2"];
    let run = events(&anemone(dir.path(), &[&args[..], &["--epochs", "1", "--out", "out", "--json"]].concat()));
    assert!(event(&run, "finished")["valid_ll"].as_f64().unwrap() < 0.0);
}

#[test]
fn grey_pictures_stay_grey_unless_colours_are_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let grey = |seed: u8| {
        let image = image::GrayImage::from_fn(8, 8, |x, y| image::Luma([(x * 9 + y * 5) as u8 ^ seed]));
        let mut bytes = std::io::Cursor::new(Vec::new());
        image.write_to(&mut bytes, image::ImageFormat::Png).unwrap();
        bytes.into_inner()
    };
    let grey: Vec<Vec<u8>> = (0..20).map(grey).collect();
    let mut rng = Rng::new(1);
    let colours: Vec<Vec<u8>> = (0..20).map(|_| shards::picture(8, &mut rng)).collect();
    for (images, more, variables) in [
        (&grey, &[][..], 16),
        (&grey, &["--set", "decode.color=ycocg-r"], 48),
        (&colours, &[], 48),
        (&colours, &["--set", "decode.color=grey"], 16),
    ] {
        shards::write_images(&dir.path().join("images.parquet"), images, 10);
        let args = ["check", "--data", "images.parquet", "--set", "decode.patch=4", "--json"];
        let output = anemone(dir.path(), &[&args[..], more].concat());
        let found: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(found["circuit"]["variables"], variables, "{more:?}");
    }
}

#[test]
fn a_structure_is_heard_of_while_it_is_learned_and_few_updates_are_worth_a_word() {
    let dir = tempfile::tempdir().unwrap();
    let mut rng = Rng::new(1);
    let (rows, vars) = (1500, 2000);
    let values: Vec<u8> = (0..rows * vars).map(|_| rng.below(3) as u8).collect();
    shards::write_rows(&dir.path().join("wide.parquet"), values, vars, 500);
    let args =
        ["train", "--data", "wide.parquet", "--model", "hclt", "--latents", "2", "--epochs", "1", "--out", "out"];
    let run = events(&anemone(dir.path(), &[&args[..], &["--json"]].concat()));
    let shares: Vec<f64> = run
        .iter()
        .filter(|event| event["event"] == "structure")
        .map(|event| event["share"].as_f64().unwrap())
        .collect();
    assert!(
        !shares.is_empty() && shares.is_sorted() && shares.iter().all(|share| (0.0..=1.0).contains(share)),
        "{shares:?}"
    );
    let before = run.iter().position(|event| event["event"] == "structure").unwrap();
    assert!(before < run.iter().position(|event| event["event"] == "started").unwrap());
    let warning = event(&run, "warning")["message"].as_str().unwrap();
    assert!(warning.contains("1 epoch of 1500 rows in batches of 512 makes only 3 updates"), "{warning}");
}
