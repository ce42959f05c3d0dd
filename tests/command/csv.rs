//! CSV and JSON lines through the program: answers about them are those about the same table in Parquet, what was asked
//! about comes back as it was written, and a model learns the same from any of them.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::{Output, Stdio};
use std::sync::Arc;

use anemone::rng::Rng;
use arrow::array::{ArrayRef, Date32Array, Float64Array, Int64Array, ListArray, RecordBatch, StringArray};
use arrow::datatypes::Int64Type;
use assert_cmd::Command;
use parquet::arrow::ArrowWriter;
use serde_json::Value;
use tempfile::TempDir;

const VARS: usize = 4;
const ROWS: usize = 600;

fn anemone(dir: &Path, args: &[&str]) -> Output {
    let mut command = Command::cargo_bin("anemone").unwrap();
    command.current_dir(dir).args(args).timeout(std::time::Duration::from_secs(120)).output().unwrap()
}

fn succeeds(dir: &Path, args: &[&str]) {
    let output = anemone(dir, args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
}

fn read(dir: &Path, name: &str) -> String {
    fs::read_to_string(dir.join(name)).unwrap()
}

fn write_parquet(path: &Path, columns: Vec<(String, ArrayRef)>) {
    let columns = columns.into_iter().map(|(name, array)| (name, array, true));
    let table = RecordBatch::try_from_iter_with_nullable(columns).unwrap();
    let mut writer = ArrowWriter::try_new(File::create(path).unwrap(), table.schema(), None).unwrap();
    writer.write(&table).unwrap();
    writer.close().unwrap();
}

/// A row of a table: what it carries along, and categories that go together, some of them missing.
struct Row {
    name: Option<String>,
    code: String,
    day: i32,
    amount: f64,
    values: [Option<i64>; VARS],
}

fn rows(count: usize, missing: f64, seed: u64) -> Vec<Row> {
    let mut rng = Rng::new(seed);
    let odd = ["plain", "b, c", "say \"d\"", "e\nf", " g ", "", "NA", "é"];
    let row = |at: usize| {
        let latent = rng.below(3) as i64;
        let mut value = || {
            let value = if rng.uniform() < 0.8 { latent } else { rng.below(3) as i64 };
            (rng.uniform() >= missing).then_some(value)
        };
        Row {
            values: std::array::from_fn(|_| value()),
            name: (!at.is_multiple_of(11)).then(|| odd[at % odd.len()].to_string()),
            code: format!("{:05}", at * 7),
            day: 19_000 + at as i32,
            amount: at as f64 * 0.1 - 3.0,
        }
    };
    (0..count).map(row).collect()
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('"', "\"\""))
}

/// 2022-01-08 and later, in one of the three ways that a table has them.
fn day(days: i32) -> String {
    let days = i64::from(days);
    anemone::data::Cell::Date(days).to_string()
}

/// As people write it: one line end is not like the others, words for nothing, quotes where none are needed.
fn csv(rows: &[Row]) -> String {
    let mut text = "name,code,day,x0,x1,\"amount\",x2,x3\r\n".to_string();
    for (at, row) in rows.iter().enumerate() {
        let name = row.name.as_deref().map_or(String::new(), quoted);
        let nothing = ["", "NA", "", "null"][at % 4];
        let value = |var: usize| row.values[var].map_or(nothing.to_string(), |value| value.to_string());
        let [a, b, c, d] = std::array::from_fn(value);
        let end = if at % 5 == 0 { "\r\n" } else { "\n" };
        text += &format!("{name},{},{},{a},{b},{:.1},{c},\"{d}\"{end}", row.code, day(row.day), row.amount);
    }
    text
}

fn jsonl(rows: &[Row]) -> String {
    let line = |row: &Row| {
        let mut fields: Vec<(String, Value)> = vec![
            ("name".into(), row.name.clone().into()),
            ("code".into(), row.code.clone().into()),
            ("day".into(), day(row.day).into()),
        ];
        for (var, value) in row.values.iter().enumerate() {
            // What is not there is missing, as what is null.
            if value.is_some() || var == 0 {
                fields.push((format!("x{var}"), (*value).into()));
            }
        }
        fields.push(("amount".into(), row.amount.into()));
        let fields: Vec<String> = fields.iter().map(|(key, value)| format!("\"{key}\": {value}")).collect();
        format!("{{{}}}\n", fields.join(", "))
    };
    rows.iter().map(line).collect()
}

fn variables(rows: &[Row]) -> Vec<(String, ArrayRef)> {
    let column = |var: usize| Arc::new(Int64Array::from_iter(rows.iter().map(|row| row.values[var]))) as ArrayRef;
    (0..VARS).map(|var| (format!("x{var}"), column(var))).collect()
}

/// A folder with a model in `run` and one table as `in.csv`, `in.jsonl` and `in.parquet`.
fn place() -> (TempDir, Vec<Row>) {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    write_parquet(&dir.join("train.parquet"), variables(&rows(900, 0.0, 1)));
    let train =
        ["train", "--data", "train.parquet", "--model", "hclt", "--latents", "3", "--epochs", "3", "--out", "run"];
    succeeds(dir, &train);
    let rows = rows(ROWS, 0.3, 2);
    fs::write(dir.join("in.csv"), csv(&rows)).unwrap();
    fs::write(dir.join("in.jsonl"), jsonl(&rows)).unwrap();
    let mut columns = variables(&rows);
    columns.push(("name".into(), Arc::new(StringArray::from_iter(rows.iter().map(|row| row.name.as_deref())))));
    columns.push(("day".into(), Arc::new(Date32Array::from_iter_values(rows.iter().map(|row| row.day)))));
    columns.push(("amount".into(), Arc::new(Float64Array::from_iter_values(rows.iter().map(|row| row.amount)))));
    write_parquet(&dir.join("in.parquet"), columns);
    (folder, rows)
}

/// Cells of a CSV file that the program wrote, without their quotes.
fn cells(text: &str) -> Vec<Vec<String>> {
    let (mut rows, mut row, mut cell, mut in_quotes) = (Vec::new(), Vec::new(), String::new(), false);
    let mut chars = text.chars().filter(|c| *c != '\r').peekable();
    while let Some(c) = chars.next() {
        match c {
            '"' if in_quotes && chars.peek() == Some(&'"') => cell.extend(chars.next()),
            '"' => in_quotes = !in_quotes,
            ',' if !in_quotes => row.push(std::mem::take(&mut cell)),
            '\n' if !in_quotes => {
                row.push(std::mem::take(&mut cell));
                rows.push(std::mem::take(&mut row));
            }
            c => cell.push(c),
        }
    }
    rows
}

fn column(table: &[Vec<String>], name: &str) -> Vec<String> {
    let at = table[0].iter().position(|known| known == name).unwrap_or_else(|| panic!("no {name} in {:?}", table[0]));
    table[1..].iter().map(|row| row[at].clone()).collect()
}

fn objects(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn answers_about_csv_and_json_lines_are_those_about_parquet() {
    let (folder, rows) = place();
    let dir = folder.path();
    let zstd = |name: &str| zstd::encode_all(&fs::read(dir.join(name)).unwrap()[..], 3).unwrap();
    fs::write(dir.join("z.csv.zst"), zstd("in.csv")).unwrap();
    fs::write(dir.join("z.jsonl.zst"), zstd("in.jsonl")).unwrap();
    for command in [&["score"][..], &["impute", "--by", "mean"], &["marginals", "--of", "x0"], &["mpe"]] {
        let ask = |data: &str, out: &str| {
            succeeds(dir, &[command, &["run", "--data", data, "--out", out][..]].concat());
            read(dir, out)
        };
        let expected = cells(&ask("in.parquet", "p.csv"));
        for data in ["in.csv", "z.csv.zst", "in.jsonl", "z.jsonl.zst"] {
            let found = cells(&ask(data, "out.csv"));
            assert_eq!(found.len(), ROWS + 1);
            let is_new = |name: &&String| !["name", "code", "day", "amount"].contains(&name.as_str());
            for name in expected[0].iter().filter(is_new) {
                assert_eq!(column(&found, name), column(&expected, name), "{command:?} of {data}: {name}");
            }
        }
        let lines = objects(&ask("in.jsonl", "out.jsonl"));
        let same = objects(&ask("in.parquet", "p.jsonl"));
        for (line, same) in lines.iter().zip(&same) {
            for (key, value) in same.as_object().unwrap() {
                assert_eq!(&line[key], value, "{command:?}: {key}");
            }
        }
    }
    // Whatever is not filled is as it was, and all that was missing is filled.
    assert!(rows.iter().filter(|row| row.values.contains(&None)).count() > ROWS / 2);
    succeeds(dir, &["impute", "run", "--data", "in.csv", "--out", "filled.csv"]);
    let filled = cells(&read(dir, "filled.csv"));
    assert_eq!(filled[0], cells(&read(dir, "in.csv"))[0]);
    for var in 0..VARS {
        let name = format!("x{var}");
        for (row, cell) in rows.iter().zip(column(&filled, &name)) {
            let number: i64 = cell.parse().unwrap_or_else(|_| panic!("{name} is {cell:?}"));
            assert!(row.values[var].is_none_or(|value| value == number) && (0..3).contains(&number));
        }
    }
}

#[test]
fn every_cell_comes_back_as_it_was_written() {
    let (folder, rows) = place();
    let dir = folder.path();
    succeeds(dir, &["score", "run", "--data", "in.csv", "--out", "out.csv"]);
    let (before, after) = (cells(&read(dir, "in.csv")), cells(&read(dir, "out.csv")));
    assert_eq!(after[0][..before[0].len()], before[0]);
    for name in ["name", "code", "day"] {
        assert_eq!(column(&before, name), column(&after, name), "{name}");
    }
    for (var, name) in (0..VARS).map(|var| (var, format!("x{var}"))) {
        let expected: Vec<String> =
            rows.iter().map(|row| row.values[var].map_or(String::new(), |value| value.to_string())).collect();
        assert_eq!(column(&after, &name), expected, "words for nothing are nothing");
    }
    let numbers = |table| -> Vec<f64> { column(table, "amount").iter().map(|cell| cell.parse().unwrap()).collect() };
    assert_eq!(numbers(&before), numbers(&after));
    // An empty text is not a missing one, before and after.
    let raw = read(dir, "out.csv");
    let is_empty = |row: &&Row| row.name.as_deref() == Some("");
    let empty = rows.iter().filter(is_empty).count();
    assert_eq!(raw.lines().filter(|line| line.starts_with("\"\",")).count(), empty);
    assert_eq!(
        raw.lines().filter(|line| line.starts_with(',')).count(),
        rows.iter().filter(|r| r.name.is_none()).count()
    );
    succeeds(dir, &["score", "run", "--data", "in.jsonl", "--out", "out.jsonl"]);
    for (before, after) in objects(&read(dir, "in.jsonl")).iter().zip(objects(&read(dir, "out.jsonl"))) {
        for (key, value) in before.as_object().unwrap() {
            assert_eq!(&after[key], value);
        }
        assert!(after["log_likelihood"].is_f64());
    }
    // Columns are in the order in which they appear.
    let text = read(dir, "out.jsonl");
    let places = ["name", "code", "day", "x0", "amount"].map(|key| text.find(&format!("\"{key}\":")).unwrap());
    assert!(places.is_sorted(), "{places:?}");
}

#[test]
fn a_column_without_a_cell_is_filled_and_files_may_differ_in_what_they_show_of_a_type() {
    let (folder, _) = place();
    let dir = folder.path();
    fs::write(dir.join("gap-1.csv"), "id,x0,x1,x2,x3\na,0,1,0,\nb,2,2,,\n").unwrap();
    fs::write(dir.join("gap-2.csv"), "id,x0,x1,x2,x3\n7,1,1,1,\n").unwrap();
    for out in ["out.csv", "out.parquet", "out.jsonl"] {
        succeeds(dir, &["impute", "run", "--data", "gap-1.csv", "gap-2.csv", "--out", out]);
        succeeds(dir, &["score", "run", "--data", "gap-*.csv", "--out", &format!("score-{out}")]);
    }
    let filled = cells(&read(dir, "out.csv"));
    assert_eq!((column(&filled, "id"), column(&filled, "x0")), (words(&["a", "b", "7"]), words(&["0", "2", "1"])));
    assert_eq!(column(&filled, "x3"), words(&["0", "2", "1"]), "as the others of its row");
    assert_eq!(column(&cells(&read(dir, "score-out.csv")), "x3"), words(&["", "", ""]));
    let lines = objects(&read(dir, "out.jsonl"));
    assert_eq!((&lines[2]["id"], &lines[2]["x3"]), (&Value::from("7"), &Value::from(1)));
    fs::write(dir.join("gap-3.csv"), "id,x0,x1,x2\n7,1,1,1\n").unwrap();
    let output = anemone(dir, &["score", "run", "--data", "gap-*.csv", "--out", "o.csv"]);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(error.contains("gap-3.csv: has 4 columns, not 5 as gap-1.csv"), "{error}");
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(ToString::to_string).collect()
}

#[test]
fn lists_and_nested_values_of_json_lines_come_along() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    let line = |row: &Row| {
        let values: Vec<Value> = row.values.iter().map(|value| (*value).into()).collect();
        serde_json::json!({ "more": { "b": [1, "x"] }, "mixed": row.day, "row": values }).to_string() + "\n"
    };
    let train: String = rows(500, 0.0, 1).iter().map(line).collect();
    let asked = rows(40, 0.3, 2);
    fs::write(dir.join("train.jsonl"), train).unwrap();
    fs::write(
        dir.join("in.jsonl"),
        asked.iter().map(line).collect::<String>() + "{\"mixed\": 3, \"mixed\": \"t\", \"row\": [1,1,1,1]}\n",
    )
    .unwrap();
    let lists = asked.iter().map(|row| Some(row.values.to_vec())).chain([Some(vec![Some(1); VARS])]);
    let lists: ArrayRef = Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>(lists));
    write_parquet(&dir.join("in.parquet"), vec![("row".into(), lists)]);
    let train =
        ["train", "--data", "train.jsonl", "--column", "row", "--latents", "3", "--epochs", "2", "--out", "run"];
    succeeds(dir, &train);
    for data in ["in.jsonl", "in.parquet"] {
        succeeds(dir, &["impute", "run", "--data", data, "--out", &format!("{data}.out.jsonl")]);
    }
    let [lines, same] = ["in.jsonl", "in.parquet"].map(|data| objects(&read(dir, &format!("{data}.out.jsonl"))));
    assert_eq!((lines.len(), same.len()), (41, 41));
    for (line, same) in lines.iter().zip(&same) {
        assert_eq!(line["row"], same["row"]);
    }
    assert_eq!((&lines[0]["more"], &lines[0]["mixed"]), (&Value::from("{\"b\":[1,\"x\"]}"), &Value::from("19000")));
    assert_eq!((&lines[40]["more"], &lines[40]["mixed"]), (&Value::Null, &Value::from("t")));
}

#[test]
fn a_file_that_cannot_be_answered_is_named_with_its_row_and_leaves_nothing() {
    let (folder, _) = place();
    let dir = folder.path();
    let header = "x0,x1,x2,x3\n0,1,2,0\n";
    for (name, content, code, words) in [
        ("a.csv", format!("{header}1,2\n"), 3, "a.csv: row 1: 2 cells where the header has 4"),
        (
            "b.csv",
            format!("{header}1,\"2,3,4\n1,1,1,1\n"),
            3,
            "b.csv: row 1: the quote at byte 22 opens a cell and is never",
        ),
        ("c.csv", "0,1,2,0\n1,1,1,1\n".into(), 3, "it looks as if there is no header"),
        ("d.csv", String::new(), 3, "d.csv: is empty"),
        ("e.csv", "x0,x0\n".into(), 3, "the header has `x0` twice"),
        ("f.csv", "x0,,x1\n".into(), 3, "column 2 of 3 has no name"),
        ("g.csv", format!("{header}1,1,1,x\n"), 3, "column `x3` is Utf8"),
        ("h.csv", format!("{header}1,1,1,9\n"), 3, "h.csv: row 1: "),
        ("i.jsonl", "{\"x0\": 1}\n{\n".into(), 3, "i.jsonl: row 1: not a JSON object"),
        ("j.jsonl", "\n".into(), 3, "j.jsonl: no line with a column in it"),
        ("k.csv.gz", String::new(), 2, "cannot tell the format"),
        ("l.parquet.zst", String::new(), 2, "cannot tell the format"),
        ("m.csv.zst", "not zstd".into(), 3, "m.csv.zst: "),
    ] {
        fs::write(dir.join(name), content).unwrap();
        let output = anemone(dir, &["score", "run", "--data", name, "--out", "o.csv"]);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{name}: {error}");
        assert!(error.lines().last().unwrap().contains(words) && !error.contains("panicked"), "{name}: {error}");
        assert!(!dir.join("o.csv").exists());
    }
}

#[test]
fn rows_of_numbers_are_learned_from_csv_as_from_json_lines() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    let (train, held_out) = (rows(400, 0.1, 3), rows(100, 0.1, 4));
    fs::write(dir.join("train.csv"), csv(&train)).unwrap();
    fs::write(dir.join("valid.csv"), csv(&held_out)).unwrap();
    fs::write(dir.join("train.jsonl"), jsonl(&train)).unwrap();
    fs::write(dir.join("valid.jsonl"), jsonl(&held_out)).unwrap();
    let tabs = csv(&train).lines().map(|line| line.replace(',', "\t") + "\n").collect::<String>();
    fs::write(dir.join("tabs.tsv"), tabs.replace("b\t c", "b, c")).unwrap();
    let likelihood = |run: &str, data: &str| -> f64 {
        let output = anemone(dir, &["eval", run, "--data", data, "--columns", "x*", "--json"]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice::<Value>(&output.stdout).unwrap()["mean_log_likelihood"].as_f64().unwrap()
    };
    let usual = ["--columns", "x0,x1,x2,x3", "--latents", "3", "--epochs", "2", "--set", "decode.kind=rows"];
    for ending in ["csv", "jsonl"] {
        let (data, valid) = (format!("train.{ending}"), format!("valid.{ending}"));
        let args = ["train", "--data", &data, "--valid", &valid, "--out", ending, "--set", "batch.shuffle=false"];
        succeeds(dir, &[&args[..], &usual].concat());
    }
    let expected = likelihood("jsonl", "valid.jsonl");
    for (run, data) in [("csv", "valid.csv"), ("csv", "valid.jsonl"), ("jsonl", "valid.csv")] {
        let found = likelihood(run, data);
        assert!((found - expected).abs() < 1e-12, "{run} on {data}: {found} and {expected}");
    }
    assert!(likelihood("csv", "tabs.tsv").is_finite());
    // Through a pipe, whose first rows cannot be looked at twice.
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_anemone"));
    command.current_dir(dir).args(["train", "--data", "-", "--format", "csv", "--out", "pipe", "--batch-rows", "64"]);
    command.args(&usual[..4]).args(&usual[6..]).args(["--set", "decode.cats=3"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(csv(&train).as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    succeeds(dir, &["score", "pipe", "--data", "valid.csv", "--out", "scores.csv"]);
    let mean = |scores: &[String]| scores.iter().map(|score| score.parse::<f64>().unwrap()).sum::<f64>() / 100.0;
    let found = mean(&column(&cells(&read(dir, "scores.csv")), "log_likelihood"));
    let uniform = -(VARS as f64) * 0.9 * 3f64.ln();
    assert!(found > uniform + 0.1, "nothing was learned: {found} and {uniform}");
    // A bad row is named; what else there is may be learned from.
    fs::write(dir.join("bad.csv"), csv(&train) + "x,y\n").unwrap();
    let bad = [&["train", "--data", "bad.csv"][..], &usual].concat();
    let output = anemone(dir, &[&bad[..], &["--out", "bad"]].concat());
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    let at = csv(&train).len();
    assert!(
        !output.status.success() && error.contains(&format!("bad.csv: byte {at}: 2 cells where the header has 8")),
        "{error}"
    );
    succeeds(dir, &[&bad[..], &["--out", "skipped", "--set", "pipeline.on_bad=skip"]].concat());
}
