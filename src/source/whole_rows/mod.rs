//! Rows of tables with all their columns, in order: for answers that are written beside what was asked.
//!
//! Learning reads only the columns it needs, in any order; here the other columns are carried along, with their types.
//! The same checks hold: every length lies inside the file, and parts are compared with the limits before they are
//! decompressed. Rows come in *lots* of a fixed number whatever the file's own parts are, so that answers do not depend
//! on how a table was cut. One part of a file, a few lots and nothing else are in memory.
//!
//! Text files (CSV, JSON lines) do not say the types of their columns, so these are read twice: `found`.
//!
//! Reading blocks: it belongs on a thread of its own, with the handle of a runtime that waits for bytes.

mod arrow;
pub mod cells;
mod csv;
mod found;
mod json;
pub mod numbers;
mod parquet;

use std::collections::VecDeque;
use std::sync::Arc;

use ::arrow::array::RecordBatch;
use ::arrow::compute::concat_batches;
use ::arrow::datatypes::{Field, Fields, Schema, SchemaRef};

use self::arrow::ArrowRows;
use self::csv::CsvRows;
use self::found::{Found, Kind};
use self::json::JsonRows;
use self::parquet::ParquetRows;
use super::ReadLimits;
use super::store::{Shard, resolve, side_by_side};
use crate::error::{Error, Result};

/// Rows with all their columns.
pub type TableRows = RecordBatch;

/// The columns of a table.
pub type TableColumns = Schema;

/// Standard input, where a path is expected.
pub const STANDARD_INPUT: &str = "-";

/// Files that are opened at the same time.
const REQUESTS: usize = 8;

/// A table that is read once, from the first row to the last.
pub struct WholeRows {
    files: VecDeque<OpenFile>,
    schema: SchemaRef,
    num_rows: Option<u64>,
    lot_rows: usize,
    /// Rows that are read and in no lot yet.
    waiting: VecDeque<Part>,
    num_waiting: usize,
    /// Rows in lots so far.
    delivered: u64,
}

struct OpenFile {
    name: Arc<str>,
    rows: Box<dyn FileRows>,
    /// Rows read so far.
    read: u64,
}

/// The rows of one file.
trait FileRows: Send {
    /// Its columns.
    fn schema(&self) -> &SchemaRef;

    /// How many rows it has, if it says so.
    fn num_rows(&self) -> Option<u64>;

    /// What was seen in the columns of a file that does not say their types.
    fn found(&self) -> Option<&Found> {
        None
    }

    /// Reads columns as what holds the cells of all such files.
    fn widen(&mut self, all: &Found) {
        let _ = all;
    }

    /// The next rows, as many as are convenient; `None` at the end.
    fn next(&mut self) -> Result<Option<RecordBatch>>;
}

/// Some rows of a file.
#[derive(Clone, Debug)]
pub struct Part {
    /// The rows, with all columns.
    pub rows: RecordBatch,
    /// The file, for messages.
    pub file: Arc<str>,
    /// The number of the first row in its file.
    pub first: u64,
}

/// Rows that are answered together.
#[derive(Clone, Debug)]
pub struct Lot {
    /// The rows, with all columns.
    pub rows: RecordBatch,
    /// The same rows, by the files they are from.
    pub parts: Vec<Part>,
    /// The number of the first row, over all files.
    pub first: u64,
}

impl Lot {
    /// A place for each row: the file, and the row in there.
    pub fn place(&self, row: usize) -> (Arc<str>, u64) {
        let mut row = row;
        for part in &self.parts {
            if row < part.rows.num_rows() {
                return (part.file.clone(), part.first + row as u64);
            }
            row -= part.rows.num_rows();
        }
        ("".into(), self.first + row as u64)
    }
}

impl WholeRows {
    /// Opens the files that names and patterns stand for, or standard input; all must have the same columns. Rows come
    /// in lots of `lot_rows`. Of files that do not say the types of their columns, those of these names stay `texts`
    /// whatever they spell.
    pub async fn open(patterns: &[String], lot_rows: usize, limits: ReadLimits, texts: &[String]) -> Result<Self> {
        if patterns == [STANDARD_INPUT] {
            let open = move || ArrowRows::new("standard input", Box::new(std::io::stdin()), limits);
            let opened = tokio::task::spawn_blocking(open).await;
            let opened = opened.map_err(|e| Error::internal(format!("reading standard input: {e}")))??;
            return Self::new(vec![("standard input".into(), Box::new(opened))], lot_rows, texts);
        }
        let opened = resolve(patterns).await?.into_iter().map(|shard| async move {
            let rows: Box<dyn FileRows> = open_file(&shard, limits).await?;
            Ok((shard.name().clone(), rows))
        });
        Self::new(side_by_side(opened, REQUESTS).await?, lot_rows, texts)
    }

    fn new(mut files: Vec<(Arc<str>, Box<dyn FileRows>)>, lot_rows: usize, texts: &[String]) -> Result<Self> {
        let mut all = Found::default();
        files.iter().filter_map(|(_, rows)| rows.found()).try_for_each(|found| all.merge(found))?;
        for place in texts.iter().filter_map(|name| all.find(name)).collect::<Vec<_>>() {
            all.see(place, Kind::Text);
        }
        files.iter_mut().for_each(|(_, rows)| rows.widen(&all));
        let Some((first, rows)) = files.first() else { return Err(Error::data("no file to read")) };
        let mut fields: Vec<Arc<Field>> = rows.schema().fields().to_vec();
        for (name, rows) in &files[1..] {
            agree(&mut fields, rows.schema().fields()).map_err(|why| Error::data(format!("{name}: {why} {first}")))?;
        }
        // What else is written beside a schema is about the columns that were there, and now there are others.
        let schema = Arc::new(Schema::new(fields));
        let num_rows = files.iter().map(|(_, rows)| rows.num_rows()).sum();
        let files = files.into_iter().map(|(name, rows)| OpenFile { name, rows, read: 0 }).collect();
        let (waiting, lot_rows) = (VecDeque::new(), lot_rows.max(1));
        Ok(Self { files, schema, num_rows, lot_rows, waiting, num_waiting: 0, delivered: 0 })
    }

    /// The columns.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// How many rows there are, if the files say so.
    pub fn num_rows(&self) -> Option<u64> {
        self.num_rows
    }

    /// A lot without rows: it has the columns.
    pub fn no_rows(&self) -> Lot {
        Lot { rows: RecordBatch::new_empty(self.schema.clone()), parts: Vec::new(), first: self.delivered }
    }

    /// The next lot; `None` at the end. The last one may be short.
    pub fn next_lot(&mut self) -> Result<Option<Lot>> {
        while self.num_waiting < self.lot_rows
            && let Some(file) = self.files.front_mut()
        {
            let Some(rows) = file.rows.next()? else {
                self.files.pop_front();
                continue;
            };
            let first = file.read;
            file.read += rows.num_rows() as u64;
            self.num_waiting += rows.num_rows();
            let rows = RecordBatch::try_new(self.schema.clone(), rows.columns().to_vec());
            let rows = rows.map_err(|e| Error::data(format!("{}: row {first}: {e}", file.name)))?;
            self.waiting.push_back(Part { rows, file: file.name.clone(), first });
        }
        let mut parts: Vec<Part> = Vec::new();
        let mut wanted = self.lot_rows.min(self.num_waiting);
        self.num_waiting -= wanted;
        while wanted > 0
            && let Some(mut part) = self.waiting.pop_front()
        {
            let has = part.rows.num_rows();
            if has > wanted {
                let rest = part.rows.slice(wanted, has - wanted);
                self.waiting.push_front(Part { rows: rest, first: part.first + wanted as u64, ..part.clone() });
                part.rows = part.rows.slice(0, wanted);
            }
            wanted -= part.rows.num_rows();
            parts.push(part);
        }
        let rows = match &parts[..] {
            [] => return Ok(None),
            [part] => part.rows.clone(),
            parts => concat_batches(&self.schema, parts.iter().map(|part| &part.rows))
                .map_err(|e| Error::internal(e.to_string()))?,
        };
        let first = self.delivered;
        self.delivered += rows.num_rows() as u64;
        Ok(Some(Lot { rows, parts, first }))
    }
}

async fn open_file(shard: &Shard, limits: ReadLimits) -> Result<Box<dyn FileRows>> {
    let name = shard.name().clone();
    let lower = name.to_ascii_lowercase();
    // What a compressed file is, is said before that it is compressed.
    let (plain, is_compressed) = lower.strip_suffix(".zst").map_or((&*lower, false), |plain| (plain, true));
    match (plain.rsplit_once('.').map(|(_, ending)| ending), is_compressed) {
        (Some("parquet"), false) => Ok(Box::new(ParquetRows::open(shard.clone(), limits).await?)),
        (Some("arrow" | "arrows"), false) => {
            let reader = shard.reader(0..shard.size())?;
            let open = move || ArrowRows::new(&name, Box::new(reader), limits);
            let opened = tokio::task::spawn_blocking(open).await;
            Ok(Box::new(opened.map_err(|e| Error::internal(format!("opening a stream: {e}")))??))
        }
        (Some("csv" | "tsv"), _) => Ok(Box::new(CsvRows::open(shard, limits).await?)),
        (Some("jsonl"), _) => Ok(Box::new(JsonRows::open(shard, limits).await?)),
        _ => Err(Error::option(format!(
            "{name}: cannot tell the format from the name; tables are .parquet, .arrow, .csv, .tsv or .jsonl, the last \
             three perhaps with .zst, or an Arrow stream on standard input, which is -"
        ))),
    }
}

/// Makes `fields` those of two files; says how they differ if names or types do.
fn agree(fields: &mut [Arc<Field>], others: &Fields) -> std::result::Result<(), String> {
    if fields.len() != others.len() {
        return Err(format!("has {} columns, not {} as", others.len(), fields.len()));
    }
    for (field, other) in fields.iter_mut().zip(others) {
        if field.name() != other.name() {
            return Err(format!("has column `{}` in the place of `{}` in", other.name(), field.name()));
        }
        if field.data_type() != other.data_type() {
            let (name, here, there) = (field.name(), other.data_type(), field.data_type());
            return Err(format!("column `{name}` is {here}, not {there} as in"));
        }
        if other.is_nullable() && !field.is_nullable() {
            *field = Arc::new(field.as_ref().clone().with_nullable(true));
        }
    }
    Ok(())
}
