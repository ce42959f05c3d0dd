//! Typed tables through the program: what columns mean is found, said, kept, and used by every command; what a user
//! says of a column is what it means; a category, a column or a type that is another at query time has its policy.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use anemone::rng::Rng;
use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, Date32Array, Float64Array, Int64Array, RecordBatch, StringArray,
    TimestampSecondArray,
};
use arrow::datatypes::DataType;
use serde_json::Value;

use crate::answers::{anemone, cells, columns, names, numbers, printed, read_parquet, write_parquet};
use crate::common::running::outcome;

const COUNTRIES: [&str; 4] = ["DE", "FR", "IT", "a \"b\", c"];

/// A table of three hidden kinds of customer: what is known of one tells about the rest.
fn customers(rows: usize, missing: f64, seed: u64) -> RecordBatch {
    let mut rng = Rng::new(seed);
    let kinds: Vec<usize> = (0..rows).map(|_| rng.below(3)).collect();
    let mut column = |value: &mut dyn FnMut(usize, &mut Rng) -> f64| -> Vec<Option<f64>> {
        kinds
            .iter()
            .map(|&kind| {
                let value = value(kind, &mut rng);
                (rng.uniform() >= missing).then_some(value)
            })
            .collect()
    };
    let noisy = |kind: usize, rng: &mut Rng| if rng.uniform() < 0.9 { kind as f64 } else { rng.below(4) as f64 };
    let country = column(&mut |kind, rng| noisy(kind, rng));
    let age = column(&mut |kind, rng| (30.0 + 15.0 * kind as f64 + 4.0 * rng.normal()).round());
    let income = column(&mut |kind, rng| 1000.0 * (2.0 + kind as f64 + 0.2 * rng.normal()));
    let visits = column(&mut |kind, rng| (0..4 * kind + 2).filter(|_| rng.uniform() < 0.5).count() as f64);
    let member = column(&mut |kind, rng| f64::from(u8::from(rng.uniform() < [0.05, 0.5, 0.95][kind])));
    let joined = column(&mut |kind, rng| 19_000.0 + 300.0 * kind as f64 + (30.0 * rng.normal()).round());
    let seen = column(&mut |kind, rng| 1.7e9 + 86_400.0 * rng.below(7) as f64 + 3600.0 * (8 + 4 * kind) as f64);
    let text = |value: &Option<f64>| value.map(|value| COUNTRIES[value as usize]);
    let whole = |value: &Option<f64>| value.map(|value| value as i64);
    columns(vec![
        ("id".into(), Arc::new(Int64Array::from_iter_values(0..rows as i64)) as ArrayRef),
        ("country".into(), Arc::new(StringArray::from_iter(country.iter().map(text)))),
        ("age".into(), Arc::new(Int64Array::from_iter(age.iter().map(whole)))),
        ("income".into(), Arc::new(Float64Array::from_iter(income))),
        ("visits".into(), Arc::new(Int64Array::from_iter(visits.iter().map(whole)))),
        ("member".into(), Arc::new(BooleanArray::from_iter(member.iter().map(|value| value.map(|v| v == 1.0))))),
        ("joined".into(), Arc::new(Date32Array::from_iter(joined.iter().map(|value| value.map(|v| v as i32))))),
        ("seen".into(), Arc::new(TimestampSecondArray::from_iter(seen.iter().map(whole)))),
    ])
}

const TRAIN: [&str; 10] =
    ["train", "--data", "train.parquet", "--table", "--latents", "6", "--epochs", "8", "--batch-rows", "64"];

/// A folder with a table to learn from, and one with holes.
fn place() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    write_parquet(&folder.path().join("train.parquet"), &customers(1500, 0.05, 1), 400);
    write_parquet(&folder.path().join("in.parquet"), &customers(300, 0.3, 2), 100);
    folder
}

fn learned(dir: &Path, more: &[&str]) -> String {
    printed(dir, &[&TRAIN[..], &["--out", "run"], more].concat())
}

/// What is said of a command that fails, in one line.
fn refused(dir: &Path, args: &[&str]) -> String {
    let output = anemone(dir, args);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{args:?} succeeded: {text}");
    let errors: Vec<&str> = text.lines().filter(|line| line.starts_with("error: ")).collect();
    assert_eq!(errors.len(), 1, "{args:?}: {text}");
    errors[0].to_string()
}

#[test]
fn what_columns_are_understood_as_is_said_before_anything_is_learned() {
    let folder = place();
    let text = printed(folder.path(), &["check", "--data", "train.parquet", "--table", "--latents", "4"]);
    let line = |name: &str| {
        let found = text.lines().find(|line| line.trim_start().starts_with(&format!("{name} ")));
        found.unwrap_or_else(|| panic!("{name}: {text}")).split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert!(line("id").starts_with("id whole numbers ignored: 1500 different whole numbers of 1500"), "{text}");
    assert!(line("country").starts_with("country texts category 5 "), "{text}");
    assert!(line("age").starts_with("age whole numbers number (gaussian)"), "{text}");
    assert!(line("income").starts_with("income numbers number (gaussian)"), "{text}");
    assert!(line("visits").starts_with("visits whole numbers category"), "{text}");
    assert!(line("member").starts_with("member true or false bool 2"), "{text}");
    assert!(line("joined").starts_with("joined dates time (gaussian, in days)"), "{text}");
    assert!(line("seen").starts_with("seen times time (gaussian, in days)"), "{text}");
    assert!(line("circuit").starts_with("circuit hclt"), "{text}");
    let json = printed(folder.path(), &["check", "--data", "train.parquet", "--table", "--latents", "4", "--json"]);
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["table"]["columns"].as_array().unwrap().len(), 8);
    assert_eq!(json["decoder"]["rows"]["columns"].as_array().unwrap().len(), 7);
    // Nothing is learned from a mixed table without that word, and the message has it.
    let error = refused(folder.path(), &["train", "--data", "train.parquet", "--model", "hclt"]);
    assert!(error.contains("decode.kind = \"table\" (--table)"), "{error}");
}

#[test]
fn a_mixed_table_is_learned_asked_and_filled_in_its_own_words() {
    let folder = place();
    let dir = folder.path();
    learned(dir, &["--valid", "in.parquet"]);
    // Better than columns that know nothing of each other: those are the same model with one state.
    let eval = |run: &str| -> f64 {
        let json = printed(dir, &["eval", run, "--data", "in.parquet", "--json"]);
        serde_json::from_str::<Value>(&json).unwrap()["mean_log_likelihood"].as_f64().unwrap()
    };
    printed(dir, &["train", "--data", "train.parquet", "--table", "--latents", "1", "--epochs", "4", "--out", "one"]);
    assert!(eval("run") > eval("one") + 1.0, "{} against {}", eval("run"), eval("one"));

    printed(dir, &["score", "run", "--data", "in.parquet", "--out", "score.parquet"]);
    let score = read_parquet(&dir.join("score.parquet"));
    let scores: Vec<f64> = numbers(&score, "log_likelihood").into_iter().flatten().collect();
    let mean = scores.iter().sum::<f64>() / scores.len() as f64;
    assert!(scores.len() == 300 && (mean - eval("run")).abs() < 1e-4, "{mean} is not what eval says");

    let table = read_parquet(&dir.join("in.parquet"));
    printed(dir, &["impute", "run", "--data", "in.parquet", "--out", "mpe.parquet"]);
    let filled = read_parquet(&dir.join("mpe.parquet"));
    assert_eq!(filled.schema().fields(), table.schema().fields(), "columns keep their types");
    for (column, name) in names(&table).iter().enumerate() {
        let (before, after) = (cells(table.column(column)), cells(filled.column(column)));
        assert_eq!(filled.column(column).null_count(), 0, "{name}: something is missing still");
        for (before, after) in before.iter().zip(&after).filter(|(before, _)| !before.is_empty()) {
            assert_eq!(before, after, "{name}: a known cell is another");
        }
    }
    // What was hidden is found again more often than by always saying the most frequent.
    let truth = customers(300, 0.0, 2);
    let right = |table: &RecordBatch| {
        let (a, b) = (cells(table.column(1)), cells(truth.column(1)));
        a.iter().zip(&b).filter(|(a, b)| a == b).count()
    };
    assert!(right(&filled) > right(&table) + 40, "{} of 300 are right", right(&filled));

    printed(dir, &["marginals", "run", "--data", "in.parquet", "--out", "marginals.parquet"]);
    let marginals = read_parquet(&dir.join("marginals.parquet"));
    let of_country: Vec<String> = names(&marginals).into_iter().filter(|name| name.starts_with("p_country_")).collect();
    assert_eq!(of_country.len(), 5, "{of_country:?}: four names, and other");
    assert!(of_country.contains(&"p_country_a \"b\", c".to_string()), "{of_country:?}");
    let income = numbers(&marginals, "mean_income");
    assert!(income.iter().flatten().all(|mean| (1000.0..5000.0).contains(mean)), "{income:?}");
    let (known, asked) = (table.column(3).null_count(), income.iter().flatten().count());
    assert_eq!(known, asked, "a mean for every missing cell, and for no other");

    // Rows of one country, drawn in the words of the table.
    printed(dir, &["impute", "run", "--data", "in.parquet", "--out", "mean.parquet", "--by", "mean"]);
    printed(dir, &["score", "run", "--data", "in.parquet", "--out", "given.csv", "--given", "country=DE"]);
    let csv = printed(dir, &["sample", "run", "--rows", "50"]);
    let mut lines = csv.lines();
    assert_eq!(lines.next(), Some("row,country,age,income,visits,member,joined,seen"));
    let found = lines.map(|line| line.split(',').map(String::from).collect::<Vec<_>>());
    for cells in found.filter(|cells| cells.len() == 8) {
        assert!(["DE", "FR", "IT", "other"].contains(&cells[1].as_str()), "{cells:?}");
        assert!(cells[5] == "true" || cells[5] == "false", "{cells:?}");
        assert!(cells[6].starts_with("20") && cells[6].len() == 10, "{cells:?}: a date");
    }
}

#[test]
fn what_is_said_of_a_column_is_what_it_means() {
    let folder = place();
    let dir = folder.path();
    let sets = [
        "columns.age.bins=5",
        "columns.visits.distribution=poisson",
        "columns.member.distribution=bernoulli",
        "columns.seen.as=weekday",
        "columns.joined.as=ignore",
        "columns.country.categories=3",
        "columns.income.as=number",
    ];
    let sets: Vec<&str> = sets.iter().flat_map(|set| ["--set", *set]).collect();
    let text = learned(dir, &sets);
    for words in ["bins", "count (poisson)", "bool (bernoulli)", "weekday", "ignored: as asked", "2 more names are"] {
        assert!(text.contains(words), "{words}: {text}");
    }
    printed(dir, &["marginals", "run", "--data", "in.parquet", "--out", "out.parquet"]);
    let found = names(&read_parquet(&dir.join("out.parquet")));
    let of = |start: &str| found.iter().filter(|name| name.starts_with(start)).cloned().collect::<Vec<_>>();
    assert_eq!(of("p_seen_").len(), 7, "{found:?}");
    assert!(of("p_seen_").contains(&"p_seen_Monday".to_string()), "{found:?}");
    assert_eq!((of("p_country_").len(), of("p_age_[").len(), of("p_joined")), (3, 5, Vec::new()));
    assert_eq!(of("mean_"), ["mean_income", "mean_visits"]);
    // A resolved pipeline means the same without what was said; it and a changed word contradict each other.
    let resolved = fs::read_to_string(dir.join("run/resolved.toml")).unwrap();
    assert!(resolved.contains("[[decode.schema.columns]]"), "{resolved}");
    printed(dir, &["check", "run/resolved.toml"]);
    let error = refused(dir, &["check", "run/resolved.toml", "--set", "columns.age.bins=3"]);
    assert!(error.contains("[columns.age] says something else than decode.schema"), "{error}");
    for (set, words) in [
        ("columns.agee.bins=3", "[columns.agee]: there is no such column; there are `id`, `country`"),
        ("columns.country.as=number", "column `country`: as = \"number\": needs numbers"),
        ("columns.age.as=colour", "columns.age.as = \"colour\": unknown"),
        ("columns.age.trials=3", "column `age`: trials: has no meaning but for"),
        ("circuit.model=hmm", "all its variables share their inputs, and the columns of the table are not alike"),
        ("circuit.input=gaussian", "the columns of a table have inputs of their own"),
    ] {
        let error = refused(dir, &["check", "--data", "train.parquet", "--table", "--set", set]);
        assert!(error.contains(words), "{set}: {error}");
    }
}

#[test]
fn every_structure_for_mixed_columns_and_every_family_learns() {
    let folder = place();
    let dir = folder.path();
    for (model, more) in [("hclt", "circuit.components=2"), ("rat-spn", "circuit.repetitions=2"), ("pd", "name=pd")] {
        let args = ["train", "--data", "train.parquet", "--table", "--latents", "4", "--epochs", "2", "--out", model];
        printed(dir, &[&args[..], &["--model", model, "--set", more]].concat());
        printed(dir, &["mpe", model, "--data", "in.parquet", "--out", "out.parquet"]);
        printed(dir, &["impute", model, "--data", "in.parquet", "--out", "out.parquet", "--by", "draws"]);
    }
}

#[test]
fn another_category_column_or_type_has_its_documented_result() {
    let folder = place();
    let dir = folder.path();
    learned(dir, &["--set", "columns.visits.as=number", "--set", "columns.country.unseen=error"]);
    let table = customers(20, 0.0, 3);
    let with = |name: &str, column: ArrayRef| {
        let fields = table.schema();
        let replaced = names(&table).into_iter().enumerate().map(|(at, known)| {
            let column = if known == name { column.clone() } else { table.column(at).clone() };
            (known, column)
        });
        assert!(fields.field_with_name(name).is_ok());
        write_parquet(&dir.join("q.parquet"), &columns(replaced.collect()), 7);
    };
    let score = |more: &[&'static str]| -> Vec<&'static str> {
        [&["score", "run", "--data", "q.parquet", "--out", "out.parquet"], more].concat()
    };
    // A name that was never seen.
    let places: Vec<&str> = (0..20).map(|row| if row == 9 { "NZ" } else { "DE" }).collect();
    with("country", Arc::new(StringArray::from(places)));
    let error = refused(dir, &score(&[]));
    assert!(error.contains("q.parquet: row 9: column `country`: `NZ` is not among the 4 categories"), "{error}");
    assert!(error.contains("--unseen missing"), "{error}");
    assert!(!dir.join("out.parquet").exists(), "half a table was left");
    printed(dir, &score(&["--unseen", "missing"]));
    // A type that means the same, and one that does not.
    with("age", Arc::new(Float64Array::from_iter_values((0..20).map(|row| 30.0 + f64::from(row)))));
    printed(dir, &score(&[]));
    with("age", Arc::new(StringArray::from(vec!["old"; 20])));
    let error = refused(dir, &score(&[]));
    assert!(error.contains("row 0: column `age`: `old` is not a number"), "{error}");
    // A column that is not there.
    let kept: Vec<_> = names(&table).into_iter().enumerate().filter(|(_, name)| name != "income").collect();
    let kept = kept.into_iter().map(|(at, name)| (name, table.column(at).clone())).collect();
    write_parquet(&dir.join("q.parquet"), &columns(kept), 7);
    let output = anemone(dir, &score(&[]));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && text.contains("warning: no column `income`"), "{text}");
    assert!(refused(dir, &score(&["--strict"])).contains("no column `income`, which the model has learned from"));
    printed(dir, &["impute", "run", "--data", "q.parquet", "--out", "out.parquet"]);
    let filled = read_parquet(&dir.join("out.parquet"));
    let income = filled.column_by_name("income").expect("it is added");
    assert_eq!((income.data_type(), income.null_count()), (&DataType::Float64, 0));
    // None of them, and a question about none.
    write_parquet(&dir.join("q.parquet"), &columns(vec![("z".into(), table.column(0).clone())]), 7);
    assert!(refused(dir, &score(&[])).contains("the table has none of the model's columns"));
    write_parquet(&dir.join("q.parquet"), &table, 7);
    assert!(refused(dir, &score(&["--given", "country=NZ"])).contains("--given country=NZ: `NZ` is not among"));
    assert!(refused(dir, &score(&["--columns", "age"])).contains("the model knows its columns by their names"));
}

#[test]
fn a_run_on_a_table_that_was_stopped_goes_on_to_the_same_bits() {
    let folder = place();
    let dir = folder.path();
    learned(dir, &["--valid", "in.parquet"]);
    let half = [&TRAIN[..6], &["--batch-rows", "64", "--out", "again", "--valid", "in.parquet"]].concat();
    printed(dir, &[&half[..], &["--set", "learn.batches=70", "--epochs", "8"]].concat());
    printed(dir, &[&half[..], &["--epochs", "8", "--resume"]].concat());
    assert!(outcome(&dir.join("run")) == outcome(&dir.join("again")), "another model");
    // Another table of the same names may mean something else: then it is another run.
    let other = customers(1500, 0.05, 9);
    write_parquet(&dir.join("train.parquet"), &other, 400);
    let error = refused(dir, &[&half[..], &["--epochs", "9", "--resume"]].concat());
    assert!(error.contains("differs in the data"), "{error}");
}

#[test]
fn an_arrow_stream_of_a_table_is_looked_at_and_learned_from_whole() {
    let folder = place();
    let dir = folder.path();
    let table = customers(1500, 0.05, 1);
    let mut bytes = Vec::new();
    let mut writer = arrow::ipc::writer::StreamWriter::try_new(&mut bytes, &table.schema()).unwrap();
    (0..15).for_each(|part| writer.write(&table.slice(part * 100, 100)).unwrap());
    writer.finish().unwrap();
    drop(writer);
    let mut command = assert_cmd::Command::cargo_bin("anemone").unwrap();
    command.current_dir(dir).args(["train", "--data", "-", "--table", "--latents", "3", "--batch-rows", "100"]);
    let output = command.args(["--out", "piped", "--json"]).write_stdin(bytes).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let last: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    let rows = last.as_object().unwrap().values().find_map(|value| value.get("rows")).cloned();
    assert_eq!(rows.or(last.get("rows").cloned()), Some(Value::from(1500)), "every row once: {last}");
    let csv = printed(dir, &["sample", "piped", "--rows", "2"]);
    assert!(csv.starts_with("row,country,age,"), "{csv}");
    let table = read_parquet(&dir.join("in.parquet"));
    printed(dir, &["score", "piped", "--data", "in.parquet", "--out", "out.jsonl"]);
    let lines = fs::read_to_string(dir.join("out.jsonl")).unwrap();
    assert_eq!(lines.lines().count(), table.num_rows());
    let first: Value = serde_json::from_str(lines.lines().next().unwrap()).unwrap();
    assert!(first["log_likelihood"].is_f64());
    assert_eq!(first["country"].as_str().map(String::from), {
        let column = table.column(1).as_string::<i32>();
        (!column.is_null(0)).then(|| column.value(0).to_string())
    });
}

#[test]
fn a_text_column_stays_one_in_a_file_that_spells_only_numbers_there() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    let mut rng = Rng::new(5);
    let codes = ["1.10", "1.1", "007", "b", "NA"];
    let rows: Vec<(&str, f64)> = (0..400)
        .map(|_| {
            let code = rng.below(codes.len());
            (codes[code], 3.0 * code as f64 + rng.normal())
        })
        .collect();
    let csv = |rows: &[(&str, f64)]| {
        let lines: String = rows.iter().map(|(code, x)| format!("{code},{x}\n")).collect();
        format!("code,x\n{lines}")
    };
    fs::write(dir.join("train.csv"), csv(&rows)).unwrap();
    printed(dir, &["train", "--data", "train.csv", "--latents", "4", "--batch-rows", "40", "--out", "run"]);
    let asked: Vec<(&str, f64)> = rows.iter().filter(|(code, _)| *code != "b").copied().take(60).collect();
    fs::write(dir.join("q.csv"), csv(&asked)).unwrap();
    let texts: ArrayRef = Arc::new(StringArray::from_iter_values(asked.iter().map(|(code, _)| *code)));
    let xs: ArrayRef = Arc::new(Float64Array::from_iter_values(asked.iter().map(|(_, x)| *x)));
    write_parquet(&dir.join("q.parquet"), &columns(vec![("code".into(), texts), ("x".into(), xs)]), 25);
    let scores = ["q.csv", "q.parquet"].map(|data| {
        printed(dir, &["score", "run", "--data", data, "--out", "out.parquet"]);
        let table = read_parquet(&dir.join("out.parquet"));
        assert_eq!(table.column(0).data_type(), &DataType::Utf8, "{data}");
        numbers(&table, "log_likelihood")
    });
    assert_eq!(scores[0], scores[1]);
    assert!(scores[0].len() == 60 && scores[0].iter().flatten().all(|score| *score > -12.0), "{scores:?}");
}
