//! Reading numbers out of reference files.

use std::path::{Path, PathBuf};

use serde_json::Value;

use anemone::data::{Batch, Values};

/// A file under `tests/fixtures`.
pub fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

/// Python writes NaN, which is not JSON; here it becomes null, on which every comparison fails.
pub fn read_json(path: &Path) -> Value {
    let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text.replace("NaN", "null")).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

pub fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is not a number"))
}

pub fn index(value: &Value) -> usize {
    value.as_u64().unwrap_or_else(|| panic!("{value} is not an index")) as usize
}

pub fn list(value: &Value) -> &[Value] {
    value.as_array().unwrap_or_else(|| panic!("{value} is not a list"))
}

pub fn vector(value: &Value) -> Vec<f64> {
    list(value).iter().map(number).collect()
}

pub fn matrix(value: &Value) -> Vec<Vec<f64>> {
    list(value).iter().map(vector).collect()
}

/// A batch from rows of categories, where a negative one is missing.
pub fn categories(rows: &Value) -> Batch {
    let rows = matrix(rows);
    let values: Vec<u16> = rows.iter().flatten().map(|&v| v.max(0.0) as u16).collect();
    Batch::from_rows(&values, rows[0].len()).unwrap().with_missing(|row, var| rows[row][var] < 0.0)
}

/// A batch from rows of real numbers.
pub fn reals(rows: &Value) -> Batch {
    let rows = matrix(rows);
    let column = |var: usize| Values::F32(rows.iter().map(|row| row[var] as f32).collect());
    Batch::from_columns((0..rows[0].len()).map(column).collect()).unwrap()
}
