//! `score`, `marginals`, `impute` and `mpe` as a user types them: what is asked of a table and what is written, in
//! every format, held against a view of the same model; what must not change does not; every mistake leaves nothing.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::{Output, Stdio};
use std::sync::Arc;

use anemone::learner::{latest, model};
use anemone::rng::Rng;
use anemone::{Batch, View};
use arrow::array::{
    Array, ArrayRef, AsArray, Float32Array, Float64Array, Int8Array, Int16Array, ListArray, RecordBatch, StringArray,
    TimestampMicrosecondArray,
};
use arrow::compute::concat_batches;
use arrow::datatypes::{DataType, Float64Type, Int16Type, Int32Type};
use arrow::ipc::reader::StreamReader;
use arrow::ipc::writer::StreamWriter;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use assert_cmd::Command;
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::file::properties::WriterProperties;
use serde_json::Value;
use tempfile::TempDir;

use crate::common::running::Running;

const VARS: usize = 5;
const ROWS: usize = 700;
const COMMANDS: [&str; 4] = ["score", "marginals", "impute", "mpe"];

pub fn anemone(dir: &Path, args: &[&str]) -> Output {
    let mut command = Command::cargo_bin("anemone").unwrap();
    command.current_dir(dir).args(args).timeout(std::time::Duration::from_secs(120)).output().unwrap()
}

/// What a command that succeeds prints.
pub fn printed(dir: &Path, args: &[&str]) -> String {
    let output = anemone(dir, args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

pub fn columns(columns: Vec<(String, ArrayRef)>) -> RecordBatch {
    RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, array)| (name, array, true))).unwrap()
}

pub fn write_parquet(path: &Path, table: &RecordBatch, group_rows: usize) {
    let properties = WriterProperties::builder().set_max_row_group_row_count(Some(group_rows)).build();
    let mut writer = ArrowWriter::try_new(File::create(path).unwrap(), table.schema(), Some(properties)).unwrap();
    writer.write(table).unwrap();
    writer.close().unwrap();
}

fn arrow_bytes(table: &RecordBatch, batch_rows: usize) -> Vec<u8> {
    let mut writer = StreamWriter::try_new(Vec::new(), &table.schema()).unwrap();
    for first in (0..table.num_rows()).step_by(batch_rows) {
        writer.write(&table.slice(first, batch_rows.min(table.num_rows() - first))).unwrap();
    }
    writer.into_inner().unwrap()
}

pub fn read_parquet(path: &Path) -> RecordBatch {
    let reader = ParquetRecordBatchReaderBuilder::try_new(File::open(path).unwrap()).unwrap();
    let schema = reader.schema().clone();
    let batches: Vec<RecordBatch> = reader.build().unwrap().map(Result::unwrap).collect();
    concat_batches(&schema, &batches).unwrap()
}

fn read_arrow(bytes: &[u8]) -> RecordBatch {
    let reader = StreamReader::try_new(bytes, None).unwrap();
    let schema = reader.schema();
    let batches: Vec<RecordBatch> = reader.map(Result::unwrap).collect();
    concat_batches(&schema, &batches).unwrap()
}

/// Cells of a column, as they are written in a CSV file; nothing for null.
pub fn cells(column: &dyn Array) -> Vec<String> {
    let format = ArrayFormatter::try_new(column, &FormatOptions::default()).unwrap();
    (0..column.len())
        .map(|row| if column.is_null(row) { String::new() } else { format.value(row).to_string() })
        .collect()
}

pub fn names(table: &RecordBatch) -> Vec<String> {
    table.schema().fields().iter().map(|field| field.name().clone()).collect()
}

pub fn numbers(table: &RecordBatch, name: &str) -> Vec<Option<f64>> {
    table
        .column_by_name(name)
        .unwrap_or_else(|| panic!("{:?}", names(table)))
        .as_primitive::<Float64Type>()
        .iter()
        .collect()
}

/// Rows of categories that go together, some of them missing.
fn values(rows: usize, missing: f64, seed: u64) -> Vec<[Option<i16>; VARS]> {
    let mut rng = Rng::new(seed);
    (0..rows)
        .map(|_| {
            let latent = rng.below(3) as i16;
            std::array::from_fn(|_| {
                let value = if rng.uniform() < 0.8 { latent } else { rng.below(3) as i16 };
                (rng.uniform() >= missing).then_some(value)
            })
        })
        .collect()
}

fn int_columns(rows: &[[Option<i16>; VARS]]) -> Vec<(String, ArrayRef)> {
    let column = |var: usize| Arc::new(Int16Array::from_iter(rows.iter().map(|row| row[var]))) as ArrayRef;
    (0..VARS).map(|var| (format!("x{var}"), column(var))).collect()
}

/// Besides the variables a name, with everything that a CSV file has to quote, and a time.
fn asked_table(rows: &[[Option<i16>; VARS]]) -> RecordBatch {
    let odd = ["a", "b, c", "say \"d\"", "e\nf", " g "];
    let name = (0..rows.len()).map(|row| (row % 7 != 0).then(|| format!("{} {row}", odd[row % odd.len()])));
    let time = TimestampMicrosecondArray::from_iter_values((0..rows.len() as i64).map(|row| row * 1_000_001));
    let mut all = int_columns(rows);
    all.insert(2, ("name".into(), Arc::new(StringArray::from_iter(name))));
    all.push(("when".into(), Arc::new(time)));
    columns(all)
}

/// A folder with a model in `run` and a table in `in.parquet`.
struct Place {
    folder: TempDir,
    rows: Vec<[Option<i16>; VARS]>,
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path();
        write_parquet(&dir.join("train.parquet"), &columns(int_columns(&values(900, 0.0, 1))), 400);
        printed(
            dir,
            &["train", "--data", "train.parquet", "--model", "hclt", "--latents", "3", "--epochs", "4", "--out", "run"],
        );
        let rows = values(ROWS, 0.3, 2);
        write_parquet(&dir.join("in.parquet"), &asked_table(&rows), 300);
        Self { folder, rows }
    }

    fn dir(&self) -> &Path {
        self.folder.path()
    }

    fn view(&self, run: &str) -> View {
        let found = latest(&self.dir().join(run).join("checkpoints")).unwrap().found.unwrap();
        model::load(&found.0).unwrap().view().unwrap()
    }

    fn batch(&self) -> Batch {
        let flat: Vec<u8> = self.rows.iter().flatten().map(|cell| cell.unwrap_or(0) as u8).collect();
        Batch::from_rows(&flat, VARS).unwrap().with_missing(|row, var| self.rows[row][var].is_none())
    }

    /// Runs a command on the table and reads what it wrote.
    fn ask(&self, command: &str, more: &[&str]) -> RecordBatch {
        let mut args = vec![command, "run", "--data", "in.parquet", "--out", "out.parquet"];
        args.extend_from_slice(more);
        printed(self.dir(), &args);
        read_parquet(&self.dir().join("out.parquet"))
    }
}

/// The columns of the table are in the answer: the same names, types and cells, but for those that `may_differ`.
fn assert_carried(table: &RecordBatch, answer: &RecordBatch, may_differ: impl Fn(&str) -> bool) {
    assert!(table.num_rows() > 0 && answer.num_rows() == table.num_rows());
    for (at, field) in table.schema().fields().iter().enumerate() {
        let schema = answer.schema();
        assert_eq!((schema.field(at).name(), schema.field(at).data_type()), (field.name(), field.data_type()));
        if !may_differ(field.name()) {
            assert_eq!(answer.column(at), table.column(at), "{}", field.name());
        }
    }
}

fn assert_near(a: f64, b: f64, what: &str) {
    assert!((a - b).abs() <= 1e-9 * (1.0 + b.abs()), "{what}: {a} and {b}");
}

#[test]
fn a_score_is_what_a_view_and_eval_say_and_rows_stay_as_they_are() {
    let place = Place::new();
    let answer = place.ask("score", &[]);
    let table = asked_table(&place.rows);
    assert_carried(&table, &answer, |_| false);
    assert_eq!(names(&answer)[table.num_columns()..], ["log_likelihood"]);
    let scores: Vec<f64> = numbers(&answer, "log_likelihood").into_iter().map(Option::unwrap).collect();
    let expected = place.view("run").log_likelihoods(&place.batch()).unwrap();
    scores.iter().zip(&expected).for_each(|(a, b)| assert_near(*a, *b, "a row"));
    let found = printed(place.dir(), &["eval", "run", "--data", "in.parquet", "--columns", "x*", "--json"]);
    let found: Value = serde_json::from_str(&found).unwrap();
    assert_near(scores.iter().sum::<f64>() / ROWS as f64, found["mean_log_likelihood"].as_f64().unwrap(), "eval");
    // What is said is of the rows that were written, and names the update.
    let said = printed(place.dir(), &["score", "run", "--data", "in.parquet", "--out", "x.csv", "--json"]);
    let said: Value = serde_json::from_str(&said).unwrap();
    assert_near(said["possible_log_likelihood"].as_f64().unwrap(), found["mean_log_likelihood"].as_f64().unwrap(), "");
    assert_eq!(
        (&said["step"], &said["rows"], &said["out"]),
        (&found["step"], &Value::from(ROWS), &Value::from("x.csv"))
    );
    // Keys alone, and by another number of threads.
    let keyed = place.ask("score", &["--keys", "when,x1", "--threads", "1"]);
    assert_eq!(names(&keyed), ["x1", "when", "log_likelihood"]);
    assert_eq!(keyed.column(2), answer.column(table.num_columns()));
}

#[test]
fn surprise_is_the_difference_of_two_scores() {
    let place = Place::new();
    let answer = place.ask("score", &["--per-variable"]);
    let (batch, view) = (place.batch(), place.view("run"));
    let scores = numbers(&answer, "log_likelihood");
    for var in 0..VARS {
        let without = view.log_likelihoods(&batch.clone().with_missing(|_, of| of == var)).unwrap();
        let found = numbers(&answer, &format!("surprise_x{var}"));
        assert!(found.iter().flatten().count() > ROWS / 2);
        for row in 0..ROWS {
            match found[row] {
                None => assert!(batch.is_missing(row, var)),
                Some(surprise) => {
                    let expected = scores[row].unwrap() - without[row];
                    assert!((surprise - expected).abs() < 1e-4, "row {row}: {surprise} and {expected}");
                }
            }
        }
    }
}

#[test]
fn marginals_sum_to_one_where_something_is_missing_and_dosage_is_their_mean() {
    let place = Place::new();
    let table = asked_table(&place.rows);
    let answer = place.ask("marginals", &[]);
    assert_carried(&table, &answer, |_| false);
    let filled = place.ask("impute", &["--by", "mean"]);
    assert_carried(&table, &filled, |name| name.starts_with('x'));
    for var in 0..VARS {
        let of = |category: usize| -> Float32Array {
            answer.column_by_name(&format!("p_x{var}_{category}")).unwrap().as_primitive().clone()
        };
        let (p, dosages) = ([of(0), of(1), of(2)], numbers(&filled, &format!("dosage_x{var}")));
        let cells: Int16Array = filled.column_by_name(&format!("x{var}")).unwrap().as_primitive::<Int16Type>().clone();
        for (row, dosage) in dosages.iter().enumerate() {
            let dosage = dosage.unwrap();
            match place.rows[row][var] {
                Some(value) => {
                    assert!(p.iter().all(|p| p.is_null(row)), "row {row}: it is known");
                    assert_eq!((f64::from(value), value), (dosage, cells.value(row)));
                }
                None => {
                    let values: Vec<f64> = p.iter().map(|p| f64::from(p.value(row))).collect();
                    assert!((values.iter().sum::<f64>() - 1.0).abs() < 1e-5, "{values:?}");
                    assert!((values[1] + 2.0 * values[2] - dosage).abs() < 1e-5, "{values:?} and {dosage}");
                    assert_eq!(f64::from(cells.value(row)), dosage.round());
                }
            }
        }
    }
    assert_eq!(names(&place.ask("marginals", &["--of", "x3", "--keys", "x0"])), ["x0", "p_x3_0", "p_x3_1", "p_x3_2"]);
}

#[test]
fn filling_leaves_known_cells_alone_and_no_cell_missing() {
    let place = Place::new();
    let (table, batch, view) = (asked_table(&place.rows), place.batch(), place.view("run"));
    let best = view.mpe(&batch).unwrap();
    let column = |answer: &RecordBatch, var: usize| -> Int16Array {
        answer.column_by_name(&format!("x{var}")).unwrap().as_primitive::<Int16Type>().clone()
    };
    let check = |answer: &RecordBatch| {
        for var in 0..VARS {
            let cells = column(answer, var);
            assert_eq!(cells.null_count(), 0);
            for row in 0..ROWS {
                assert_eq!(place.rows[row][var].unwrap_or(cells.value(row)), cells.value(row));
            }
        }
    };
    for (command, more) in
        [("impute", &[][..]), ("mpe", &[]), ("impute", &["--by", "mean"]), ("impute", &["--by", "draws"])]
    {
        let answer = place.ask(command, more);
        assert_carried(&table, &answer, |name| name.starts_with('x'));
        check(&answer);
        if more.is_empty() {
            for var in 0..VARS {
                let expected = (0..ROWS).map(|row| best.rows().column(var).real(row) as i16);
                assert_eq!(column(&answer, var), Int16Array::from_iter_values(expected));
            }
        }
    }
    let answer = place.ask("mpe", &[]);
    assert_eq!(names(&answer)[table.num_columns()..], ["log_joint", "log_likelihood"]);
    let likelihoods = view.log_likelihoods(best.rows()).unwrap();
    for (row, &expected) in likelihoods.iter().enumerate() {
        let (joint, likelihood) =
            (numbers(&answer, "log_joint")[row].unwrap(), numbers(&answer, "log_likelihood")[row].unwrap());
        assert_near(joint, best.log_joints()[row], "joint");
        assert_near(likelihood, expected, "likelihood");
        assert!(joint <= likelihood + 1e-5);
    }
    // Draws are of their seed alone, and several of a row are one after the other.
    let draw = |more: &[&str]| place.ask("impute", &[&["--by", "draws"], more].concat());
    let (one, again, other) = (draw(&["--threads", "1"]), draw(&["--threads", "2"]), draw(&["--seed", "9"]));
    assert_eq!(one, again);
    assert_ne!(one, other);
    let many = draw(&["--draws", "3"]);
    assert_eq!(many.num_rows(), 3 * ROWS);
    let number: Vec<i64> =
        many.column_by_name("draw").unwrap().as_primitive::<arrow::datatypes::Int64Type>().values().to_vec();
    assert_eq!(number[..6], [1, 2, 3, 1, 2, 3]);
    let first = many.column_by_name("when").unwrap();
    assert_eq!(cells(first)[3], cells(table.column_by_name("when").unwrap())[1]);
}

#[test]
fn what_is_given_counts_for_every_row_and_a_score_is_then_conditional() {
    let place = Place::new();
    let (view, batch) = (place.view("run"), place.batch());
    let flat: Vec<u8> = (0..ROWS * VARS)
        .map(|cell| match cell % VARS {
            1 => 2,
            var => place.rows[cell / VARS][var].unwrap_or(0) as u8,
        })
        .collect();
    let given = Batch::from_rows(&flat, VARS).unwrap().with_missing(|row, var| var != 1 && batch.is_missing(row, var));
    let alone = given.slice(0..1).with_missing(|_, var| var != 1);
    let (joint, evidence) = (view.log_likelihoods(&given).unwrap(), view.log_likelihoods(&alone).unwrap()[0]);
    let answer = place.ask("score", &["--given", "x1=2", "--per-variable"]);
    for (row, score) in numbers(&answer, "log_likelihood").into_iter().enumerate() {
        assert!((score.unwrap() - (joint[row] - evidence)).abs() < 1e-6, "row {row}");
    }
    assert_eq!(numbers(&answer, "surprise_x1").iter().flatten().count(), 0, "it is given, and no surprise");
    // The rows themselves stay as they are; where nothing was, there is what is given.
    assert_carried(&asked_table(&place.rows), &answer, |_| false);
    let filled = place.ask("impute", &["--given", "x1=2"]);
    let cells: Int16Array = filled.column_by_name("x1").unwrap().as_primitive::<Int16Type>().clone();
    assert!((0..ROWS).all(|row| cells.value(row) == place.rows[row][1].unwrap_or(2)));
}

/// A JSON cell as it is written in a CSV file.
fn json_cell(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Lines of a CSV file as cells.
fn csv_cells(text: &str) -> Vec<Vec<String>> {
    let (mut rows, mut row, mut cell, mut in_quotes) = (Vec::new(), Vec::new(), String::new(), false);
    let mut chars = text.chars().peekable();
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

#[test]
fn every_format_has_the_same_cells() {
    let place = Place::new();
    let dir = place.dir();
    fs::write(dir.join("in.arrow"), arrow_bytes(&asked_table(&place.rows), 77)).unwrap();
    for command in COMMANDS {
        let mut more = Vec::new();
        if command == "impute" {
            more.extend(["--by", "draws", "--seed", "3"]);
        }
        let table = place.ask(command, &more);
        for out in ["out.csv", "out.jsonl", "out.arrow", "out.arrows"] {
            printed(dir, &[&[command, "run", "--data", "in.arrow", "--out", out], &more[..]].concat());
        }
        let expected: Vec<Vec<String>> = table.columns().iter().map(|column| cells(column)).collect();
        let csv = csv_cells(&fs::read_to_string(dir.join("out.csv")).unwrap());
        assert_eq!((csv.len(), &csv[0]), (ROWS + 1, &names(&table)));
        let json = fs::read_to_string(dir.join("out.jsonl")).unwrap();
        let json: Vec<Value> = json.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(json.len(), ROWS);
        for (column, name) in names(&table).iter().enumerate() {
            for row in 0..ROWS {
                let cell = &expected[column][row];
                assert_eq!(csv[row + 1][column], *cell, "{command}: row {row}: {name}");
                let (found, is_number) = (json_cell(&json[row][name]), json[row][name].is_f64());
                let same = found == *cell || is_number && found.parse::<f64>() == cell.parse::<f64>();
                assert!(same, "{command}: row {row}: {name}: {found} and {cell}");
            }
        }
        for out in ["out.arrow", "out.arrows"] {
            let found = read_arrow(&fs::read(dir.join(out)).unwrap());
            assert_eq!(found.columns(), table.columns(), "{command}");
        }
    }
    // Standard input and output.
    let mut command = Command::cargo_bin("anemone").unwrap();
    let command = command.current_dir(dir).args(["score", "run", "--data", "-", "--out", "-"]);
    let output = command.write_stdin(arrow_bytes(&asked_table(&place.rows), 100)).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(read_arrow(&output.stdout).columns(), place.ask("score", &[]).columns());
    assert!(String::from_utf8_lossy(&output.stderr).contains("nats per row"));
}

#[test]
fn several_files_are_one_table_and_cuts_do_not_matter() {
    let place = Place::new();
    let (dir, table) = (place.dir(), asked_table(&place.rows));
    write_parquet(&dir.join("part-0.parquet"), &table.slice(0, 123), 50);
    write_parquet(&dir.join("part-1.parquet"), &table.slice(123, ROWS - 123), 1000);
    let whole = place.ask("impute", &["--by", "draws"]);
    printed(dir, &["impute", "run", "--data", "part-*.parquet", "--out", "parts.parquet", "--by", "draws"]);
    assert_eq!(read_parquet(&dir.join("parts.parquet")), whole);
    write_parquet(&dir.join("part-2.parquet"), &columns(int_columns(&place.rows)), 1000);
    let output = anemone(dir, &["score", "run", "--data", "part-*.parquet", "--out", "more.parquet"]);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(3) && error.contains("part-2.parquet: has 5 columns, not 7"), "{error}");
    assert!(!dir.join("more.parquet").exists());
}

#[test]
fn rows_that_are_lists_and_numbers_that_are_densities_are_answered_alike() {
    let place = Place::new();
    let dir = place.dir();
    let rows = values(300, 0.3, 5);
    let list = |rows: &[[Option<i16>; VARS]]| -> ArrayRef {
        Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(
            rows.iter().map(|row| Some(row.iter().map(|cell| cell.map(i32::from)).collect::<Vec<_>>())),
        ))
    };
    let ids: ArrayRef = Arc::new(Int8Array::from_iter_values((0..300).map(|row| (row % 100) as i8)));
    write_parquet(&dir.join("lists.parquet"), &columns(vec![("snps".into(), list(&values(500, 0.0, 4)))]), 500);
    write_parquet(&dir.join("asked.parquet"), &columns(vec![("id".into(), ids), ("snps".into(), list(&rows))]), 100);
    printed(dir, &["train", "--data", "lists.parquet", "--model", "hclt", "--latents", "3", "--out", "lists"]);
    let ask = |command: &str, more: &[&str]| {
        printed(dir, &[&[command, "lists", "--data", "asked.parquet", "--out", "o.parquet"], more].concat());
        read_parquet(&dir.join("o.parquet"))
    };
    let (scored, marginals) = (ask("score", &["--per-variable"]), ask("marginals", &[]));
    assert_eq!(names(&scored), ["id", "snps", "log_likelihood", "surprise_snps"]);
    assert_eq!(names(&marginals), ["id", "snps", "p_snps"]);
    let (filled, means) = (ask("impute", &[]), ask("impute", &["--by", "mean"]));
    assert_eq!(names(&means), ["id", "snps", "dosage_snps"]);
    assert_eq!(filled.schema().field(1).data_type(), &DataType::new_list(DataType::Int32, true));
    for (row, values) in rows.iter().enumerate() {
        let cells = |table: &RecordBatch, column: usize| table.column(column).as_list::<i32>().value(row);
        let (snps, p, dosage) = (cells(&filled, 1), cells(&marginals, 2), cells(&means, 2));
        for (var, known) in values.iter().enumerate() {
            let snp = snps.as_primitive::<Int32Type>().value(var) as i16;
            assert_eq!(known.unwrap_or(snp), snp);
            let p = p.as_list::<i32>();
            assert_eq!(p.is_null(var), known.is_some());
            if known.is_none() {
                let p: Vec<f32> = p.value(var).as_primitive::<arrow::datatypes::Float32Type>().values().to_vec();
                let mean = f64::from(p[1] + 2.0 * p[2]);
                assert!((p.iter().sum::<f32>() - 1.0).abs() < 1e-5 && p.len() == 3);
                assert!((mean - dosage.as_primitive::<Float64Type>().value(var)).abs() < 1e-5);
            }
        }
    }
    let given = ask("impute", &["--given", "2=1"]);
    let snps = given.column(1).as_list::<i32>();
    assert!(
        (0..300).all(|row| {
            i32::from(rows[row][2].unwrap_or(1)) == snps.value(row).as_primitive::<Int32Type>().value(2)
        })
    );

    let mut rng = Rng::new(3);
    let column = |rng: &mut Rng, missing: f64| -> ArrayRef {
        let draw = |_| {
            let value = 10.0 + 3.0 * rng.normal();
            (rng.uniform() >= missing).then_some(value)
        };
        Arc::new(Float64Array::from_iter((0..400).map(draw)))
    };
    let learned = columns(vec![("a".into(), column(&mut rng, 0.0)), ("b".into(), column(&mut rng, 0.0))]);
    let asked = columns(vec![("b".into(), column(&mut rng, 0.4)), ("a".into(), column(&mut rng, 0.4))]);
    write_parquet(&dir.join("reals.parquet"), &learned, 400);
    write_parquet(&dir.join("reals-asked.parquet"), &asked, 400);
    printed(dir, &["train", "--data", "reals.parquet", "--model", "hclt", "--latents", "2", "--out", "reals"]);
    let ask = |command: &str, more: &[&str]| {
        printed(dir, &[&[command, "reals", "--data", "reals-asked.parquet", "--out", "o.parquet"], more].concat());
        read_parquet(&dir.join("o.parquet"))
    };
    let (known, marginals, means) = (numbers(&asked, "a"), ask("marginals", &[]), ask("impute", &["--by", "mean"]));
    assert_eq!(names(&marginals), ["b", "a", "mean_a", "mean_b", "variance_a", "variance_b"]);
    let (mean, variance, filled) =
        (numbers(&marginals, "mean_a"), numbers(&marginals, "variance_a"), numbers(&means, "a"));
    assert!(known.iter().flatten().count() > 100 && mean.iter().flatten().count() > 100);
    for row in 0..400 {
        match known[row] {
            Some(value) => assert_eq!((filled[row], mean[row], variance[row]), (Some(value), None, None)),
            None => {
                let (mean, variance) = (mean[row].unwrap(), variance[row].unwrap());
                assert!((mean - filled[row].unwrap()).abs() < 1e-4 * mean.abs(), "{mean} {:?}", filled[row]);
                assert!((5.0..15.0).contains(&mean) && (1.0..30.0).contains(&variance), "{mean} ± {variance}");
            }
        }
    }
}

#[test]
fn a_table_without_rows_has_an_answer_without_rows() {
    let place = Place::new();
    let dir = place.dir();
    write_parquet(&dir.join("none.parquet"), &asked_table(&[]), 10);
    for (command, more) in
        [("score", "--per-variable"), ("marginals", "--strict"), ("impute", "--by=mean"), ("mpe", "--strict")]
    {
        let whole = place.ask(command, &[more]);
        for out in ["none-out.parquet", "none-out.arrow", "none-out.csv", "none-out.jsonl"] {
            printed(dir, &[command, "run", "--data", "none.parquet", "--out", out, more]);
        }
        let found = read_parquet(&dir.join("none-out.parquet"));
        assert_eq!((found.num_rows(), found.schema().fields()), (0, whole.schema().fields()), "{command}");
        assert_eq!(fs::read_to_string(dir.join("none-out.csv")).unwrap(), names(&whole).join(",") + "\n");
        assert_eq!(fs::read(dir.join("none-out.jsonl")).unwrap(), b"");
    }
}

#[test]
fn a_column_that_is_not_there_is_missing_in_every_row_or_an_error() {
    let place = Place::new();
    let dir = place.dir();
    let without: Vec<(String, ArrayRef)> =
        int_columns(&place.rows).into_iter().filter(|(name, _)| name != "x3").collect();
    write_parquet(&dir.join("less.parquet"), &columns(without), 300);
    let output = anemone(dir, &["score", "run", "--data", "less.parquet", "--out", "less-out.parquet"]);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && error.contains("warning: no column `x3`"), "{error}");
    let found = numbers(&read_parquet(&dir.join("less-out.parquet")), "log_likelihood");
    let batch = place.batch().with_missing(|_, var| var == 3);
    let expected = place.view("run").log_likelihoods(&batch).unwrap();
    found.iter().zip(&expected).for_each(|(a, b)| assert_near(a.unwrap(), *b, "a row"));
    // Filling adds it.
    printed(dir, &["impute", "run", "--data", "less.parquet", "--out", "less-out.parquet"]);
    let filled = read_parquet(&dir.join("less-out.parquet"));
    assert_eq!(names(&filled), ["x0", "x1", "x2", "x4", "x3"]);
    assert_eq!(filled.column(4).null_count(), 0);
    let output = anemone(dir, &["score", "run", "--data", "less.parquet", "--out", "strict.parquet", "--strict"]);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(3) && error.contains("error: no column `x3`"), "{error}");
    assert!(!dir.join("strict.parquet").exists());
}

#[test]
fn every_mistake_is_one_line_and_leaves_nothing() {
    let place = Place::new();
    let dir = place.dir();
    let mut rows = place.rows.clone();
    rows[650][2] = Some(7);
    write_parquet(&dir.join("unseen.parquet"), &asked_table(&rows), 300);
    let texts: Vec<(String, ArrayRef)> = int_columns(&place.rows)
        .into_iter()
        .map(|(name, array)| match name.as_str() {
            "x1" => (name, Arc::new(StringArray::from_iter_values((0..ROWS).map(|_| "one"))) as ArrayRef),
            _ => (name, array),
        })
        .collect();
    write_parquet(&dir.join("texts.parquet"), &columns(texts), 300);
    let mut twice = int_columns(&place.rows);
    twice.push(("log_likelihood".into(), twice[0].1.clone()));
    write_parquet(&dir.join("twice.parquet"), &columns(twice), 300);
    let whole = fs::read(dir.join("in.parquet")).unwrap();
    fs::write(dir.join("cut.parquet"), &whole[..whole.len() / 2]).unwrap();
    let stream = arrow_bytes(&asked_table(&place.rows), 100);
    fs::write(dir.join("cut.arrow"), &stream[..stream.len() - 3000]).unwrap();
    let lists: ArrayRef =
        Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>((0..3).map(|_| Some(vec![Some(1)]))));
    let mut nested = int_columns(&place.rows[..3]);
    nested.push(("more".into(), lists));
    write_parquet(&dir.join("nested.parquet"), &columns(nested), 300);
    let before: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    let score = |data: &str| {
        vec!["score".to_string(), "run".into(), "--data".into(), data.into(), "--out".into(), "o.csv".into()]
    };
    let with = |data: &str, more: &[&str]| [score(data), more.iter().map(|word| word.to_string()).collect()].concat();
    let mistakes: Vec<(Vec<String>, i32, &str)> = vec![
        (score("absent.parquet"), 2, "absent.parquet"),
        (score("in.txt"), 2, "in.txt"),
        (score("cut.parquet"), 3, "cut.parquet: not a whole Parquet file"),
        (score("cut.arrow"), 3, "the stream is cut off"),
        (score("unseen.parquet"), 3, "unseen.parquet: row 650: "),
        (score("texts.parquet"), 3, "column `x1`"),
        (score("twice.parquet"), 2, "two columns would be called `log_likelihood`"),
        (score("nested.parquet"), 2, "column `more` is List"),
        (score("train.parquet run/resolved.toml"), 2, "train.parquet run"),
        (with("in.parquet", &["--given", "x9=1"]), 2, "the model has no column `x9`; it has x0, x1"),
        (with("in.parquet", &["--given", "x1=9"]), 2, "--given x1=9: 9 is outside 0 to 2"),
        (with("in.parquet", &["--given", "x1"]), 2, "expected NAME=VALUE"),
        (with("in.parquet", &["--given", "x1="]), 2, "says nothing"),
        (with("in.parquet", &["--keys", "z"]), 2, "--keys: no column `z`"),
        (with("in.parquet", &["--columns", "x0,x1"]), 2, "the table has 2 variables and the model 5"),
        (with("in.parquet", &["--checkpoint", "77"]), 2, "--checkpoint 77"),
    ];
    for (args, code, words) in mistakes {
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let output = anemone(dir, &args);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{args:?}: {error}");
        let last = error.lines().last().unwrap();
        assert!(last.starts_with("error: ") && last.contains(words), "{args:?}: `{last}` does not say `{words}`");
        assert!(!error.contains("panicked"), "{error}");
    }
    for (args, words) in [
        (&["impute", "run", "--data", "in.parquet", "--out", "o.csv", "--draws", "3"][..], "needs --by draws"),
        (&["marginals", "run", "--data", "in.parquet", "--out", "o.csv", "--of", "z"], "no column `z`"),
        (&["mpe", "run", "--data", "in.parquet", "--out", "o.xlsx"], "cannot tell the format from the name"),
        (&["mpe", "run", "--data", "in.parquet", "--out", "no/such/folder/o.csv"], "no/such/folder"),
    ] {
        let output = anemone(dir, args);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(2) && error.contains(words), "{args:?}: {error}");
    }
    let after: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(before, after);
    // The same category, taken for missing.
    printed(dir, &["score", "run", "--data", "unseen.parquet", "--out", "o.parquet", "--unseen", "missing"]);
    let found = numbers(&read_parquet(&dir.join("o.parquet")), "log_likelihood")[650].unwrap();
    let batch = place.batch().slice(650..651).with_missing(|_, var| var == 2);
    assert_near(found, place.view("run").log_likelihoods(&batch).unwrap()[0], "the row");
}

#[cfg(unix)]
#[test]
fn a_signal_leaves_nothing_and_a_kill_no_table() {
    let place = Place::new();
    let dir = place.dir();
    // A stream that does not end: the command waits for more after these rows.
    let stream = arrow_bytes(&asked_table(&place.rows), ROWS);
    let endless = &stream[..stream.len() - 8];
    for (signal, code) in [("-TERM", Some(143)), ("-INT", Some(130)), ("-HUP", Some(129)), ("-KILL", None)] {
        fs::write(dir.join("o.parquet"), "old").unwrap();
        let mut command = std::process::Command::new(assert_cmd::cargo::cargo_bin!("anemone"));
        command.current_dir(dir).args(["impute", "run", "--data", "-", "--out", "o.parquet"]);
        let child = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let mut running = Running(Some(child));
        let mut stdin = running.child().stdin.take().unwrap();
        stdin.write_all(endless).unwrap();
        stdin.flush().unwrap();
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while !dir.join("o.parquet.tmp").exists() {
            assert!(std::time::Instant::now() < deadline, "it does not begin");
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        running.send(signal);
        let output = running.ended();
        assert_eq!(output.status.code(), code, "{signal}");
        assert_eq!(fs::read_to_string(dir.join("o.parquet")).unwrap(), "old", "{signal}");
        assert_eq!(dir.join("o.parquet.tmp").exists(), signal == "-KILL", "{signal}");
        drop(stdin);
    }
    // What a kill left is no obstacle.
    place.ask("impute", &[]);
    printed(dir, &["impute", "run", "--data", "in.parquet", "--out", "o.parquet"]);
    assert!(!dir.join("o.parquet.tmp").exists());
    assert_eq!(read_parquet(&dir.join("o.parquet")).num_rows(), ROWS);
}
