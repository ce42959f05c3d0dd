//! Tables of answers beside `eval`, as a user runs them: `cargo bench --bench tables`.
//!
//! An HMM with 256 states over 50,257 words and 128 places, and an HCLT with 32 latents over 768 variables of 256
//! categories; rows are a list of numbers each in a Parquet file of several row groups. Every round runs all commands
//! once, one after the other, as processes: reading the model counts for all of them. Printed is the median of rows per
//! second, and what it is of `eval`'s.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

use anemone::learner::{Identity, model};
use anemone::rng::Rng;
use anemone::structure::{HcltOptions, Tree};
use anemone::{Categorical, Circuit, Learner, Params, hclt, hmm};
use arrow::array::{ArrayRef, Int64Array, ListBuilder, RecordBatch, UInt16Builder};
use parquet::arrow::ArrowWriter;
use parquet::file::properties::WriterProperties;

const ROUNDS: usize = 3;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let chain = hmm(128, 256, Categorical::new(50_257)?)?;
    measure("hmm-256, 128 of 50,257 words", chain, 50_257, 4096, &["score"])?;
    let parents: Vec<Option<usize>> = (0..768).map(|v: usize| v.checked_sub(1).map(|v| v / 2)).collect();
    let tree =
        hclt(&Tree::from_parents(&parents)?, 32, |_| Categorical::new(256).expect("some"), HcltOptions::default())?;
    measure("hclt-32, 768 of 256", tree, 256, 16_384, &["score", "mpe", "impute --by mean"])
}

fn measure(
    name: &str,
    circuit: Circuit,
    cats: u32,
    rows: usize,
    commands: &[&str],
) -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let dir = folder.path();
    let vars = circuit.num_vars();
    let params = Params::random(&Arc::new(circuit.clone()), 1, 2.0)?;
    let learner = Learner::on(circuit).params(params).spawn()?;
    model::save(&dir.join("model"), &learner.snapshot_blocking()?, &Identity::default(), &serde_json::Map::new())?;
    drop(learner);
    write_rows(&dir.join("rows.parquet"), vars, cats, rows)?;
    std::fs::write(
        dir.join("p.toml"),
        format!("[source]\nfiles = ['rows.parquet']\ncolumn = 'x'\n[decode]\nkind = 'rows'\ncats = {cats}\n"),
    )?;
    let eval: Vec<&str> = "eval model p.toml --split source".split(' ').collect();
    let mut all: Vec<(String, Vec<String>)> = vec![("eval".into(), eval.iter().map(|word| word.to_string()).collect())];
    for command in commands {
        let (verb, more) = command.split_once(' ').unwrap_or((command, ""));
        let words = format!("{verb} model --data rows.parquet --out out.parquet {more}");
        all.push((command.to_string(), words.split_whitespace().map(String::from).collect()));
    }
    let mut seconds = vec![Vec::new(); all.len()];
    for _ in 0..ROUNDS {
        for (at, (_, words)) in all.iter().enumerate() {
            seconds[at].push(run(dir, words)?);
        }
    }
    println!("{name}: {rows} rows, {ROUNDS} rounds");
    let median = |seconds: &Vec<f64>| {
        let mut sorted = seconds.clone();
        sorted.sort_by(f64::total_cmp);
        sorted[sorted.len() / 2]
    };
    let eval = median(&seconds[0]);
    for ((name, _), seconds) in all.iter().zip(&seconds) {
        let found = median(seconds);
        println!("  {name:<18} {:>8.1} rows/s, {:.2} of eval", rows as f64 / found, eval / found);
    }
    Ok(())
}

/// Seconds of a command that succeeds.
fn run(dir: &Path, words: &[String]) -> Result<f64, Box<dyn std::error::Error>> {
    let begun = Instant::now();
    let mut command = Command::new(env!("CARGO_BIN_EXE_anemone"));
    let output = command.current_dir(dir).args(words).stdin(Stdio::null()).output()?;
    match output.status.success() {
        true => Ok(begun.elapsed().as_secs_f64()),
        false => Err(format!("{words:?}: {}", String::from_utf8_lossy(&output.stderr)).into()),
    }
}

/// Rows of which few values are common; a key besides.
fn write_rows(path: &Path, vars: usize, cats: u32, rows: usize) -> Result<(), Box<dyn std::error::Error>> {
    let mut rng = Rng::new(7);
    let mut lists = ListBuilder::new(UInt16Builder::new());
    for _ in 0..rows {
        for _ in 0..vars {
            lists.values().append_value((f64::from(cats - 1) * rng.uniform().powi(4)) as u16);
        }
        lists.append(true);
    }
    let keys: ArrayRef = Arc::new(Int64Array::from_iter_values(0..rows as i64));
    let table = RecordBatch::try_from_iter([("key", keys), ("x", Arc::new(lists.finish()) as ArrayRef)])?;
    let properties = WriterProperties::builder().set_max_row_group_row_count(Some(rows.div_ceil(4))).build();
    let mut writer = ArrowWriter::try_new(std::fs::File::create(path)?, table.schema(), Some(properties))?;
    writer.write(&table)?;
    writer.close()?;
    Ok(())
}
