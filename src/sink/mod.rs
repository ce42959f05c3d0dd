//! Where tables go: rows with named columns, in a file or on standard output.
//!
//! The name decides the format: `.parquet`, `.arrow` or `.arrows` (an IPC stream), `.csv`, `.jsonl`; `-` is an Arrow
//! stream on standard output. A file appears whole or not at all. Rows are written as they come, a row group or a
//! message at a time, so memory does not depend on their number. `answers` makes the columns. The counterpart of
//! `source`; fed by `cli`.

pub mod answers;
mod csv;
mod json;
mod parquet;

use std::io::{BufWriter, Stdout, Write};
use std::path::{Path, PathBuf};

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, Schema, SchemaRef};
use arrow::ipc::writer::StreamWriter;

use self::parquet::ParquetFile;
use crate::error::{Error, Result};
use crate::files::WholeFile;

/// Standard output, where a path is expected.
pub const STANDARD_OUTPUT: &str = "-";

/// The format of a table that is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableFormat {
    /// A Parquet file.
    Parquet,
    /// An Arrow IPC stream.
    Arrow,
    /// Text with commas and a header.
    Csv,
    /// A JSON object per line.
    Json,
}

impl TableFormat {
    /// The format that a file's name says.
    pub fn of(path: &Path) -> Result<Self> {
        if path == Path::new(STANDARD_OUTPUT) {
            return Ok(Self::Arrow);
        }
        let ending = path.extension().and_then(|ending| ending.to_str()).map(str::to_ascii_lowercase);
        match ending.as_deref() {
            Some("parquet") => Ok(Self::Parquet),
            Some("arrow" | "arrows") => Ok(Self::Arrow),
            Some("csv") => Ok(Self::Csv),
            Some("jsonl") => Ok(Self::Json),
            _ => Err(Error::option(format!(
                "{}: cannot tell the format from the name; end it with .parquet, .arrow, .csv or .jsonl, or write an \
                 Arrow stream to standard output with -",
                path.display()
            ))),
        }
    }

    /// Refuses columns that the format has no place for.
    fn check(self, schema: &Schema) -> Result<()> {
        let is_refused = |data_type: &DataType| match self {
            Self::Parquet | Self::Arrow => false,
            Self::Csv => data_type.is_nested() || is_bytes(data_type),
            Self::Json => !json::holds(data_type),
        };
        let name = if self == Self::Csv { "CSV" } else { "JSON lines" };
        match schema.fields().iter().find(|field| is_refused(field.data_type())) {
            None => Ok(()),
            Some(field) => Err(Error::option(format!(
                "column `{}` is {}, which {name} cannot hold: write .parquet or .arrow, or leave the column out",
                field.name(),
                field.data_type()
            ))),
        }
    }
}

fn is_bytes(data_type: &DataType) -> bool {
    match data_type {
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView | DataType::FixedSizeBinary(_) => true,
        DataType::Dictionary(_, values) => is_bytes(values),
        _ => false,
    }
}

/// Takes a table, some rows at a time.
pub struct TableSink {
    writer: Writer,
    /// For messages.
    name: String,
    /// What is on the disk before the table is whole.
    unfinished: Option<PathBuf>,
}

enum Writer {
    Parquet(Box<ParquetFile>),
    Arrow(StreamWriter<WholeFile>),
    StandardOutput(StreamWriter<BufWriter<Stdout>>),
    Csv(WholeFile),
    Json(WholeFile),
}

impl TableSink {
    /// Begins a table with these columns. A file that is there stays until the new one is whole.
    pub fn create(path: &Path, schema: &SchemaRef) -> Result<Self> {
        let name = path.display().to_string();
        let format = TableFormat::of(path)?;
        refuse_repeated_names(schema).and_then(|()| format.check(schema)).map_err(|error| error.at(&name))?;
        let refused = |e: arrow::error::ArrowError| failed(&name, &e);
        if path == Path::new(STANDARD_OUTPUT) {
            let stdout = BufWriter::new(std::io::stdout());
            let writer = Writer::StandardOutput(StreamWriter::try_new(stdout, schema).map_err(refused)?);
            return Ok(Self { writer, name: "standard output".into(), unfinished: None });
        }
        let mut file = WholeFile::create(path)?;
        let unfinished = file.unfinished().map(Path::to_path_buf);
        let writer = match format {
            TableFormat::Parquet => Writer::Parquet(Box::new(ParquetFile::new(file, schema, &name)?)),
            TableFormat::Arrow => Writer::Arrow(StreamWriter::try_new(file, schema).map_err(refused)?),
            TableFormat::Csv => {
                let header = csv::header(schema);
                file.write_all(header.as_bytes()).map_err(|e| Error::io_at(path, &e))?;
                Writer::Csv(file)
            }
            TableFormat::Json => Writer::Json(file),
        };
        Ok(Self { writer, name, unfinished })
    }

    /// The file that is on the disk until the table is whole, to be removed by whoever ends the process before.
    pub fn unfinished(&self) -> Option<&Path> {
        self.unfinished.as_deref()
    }

    /// Writes some rows; `false` if nobody reads them any more, as after `| head`.
    pub fn write(&mut self, rows: &RecordBatch) -> Result<bool> {
        let name = &self.name;
        match &mut self.writer {
            Writer::Parquet(file) => file.write(rows, name)?,
            Writer::Arrow(writer) => writer.write(rows).map_err(|e| failed(name, &e))?,
            Writer::StandardOutput(writer) => {
                let written = writer.write(rows).map_err(into_io).and_then(|()| writer.get_mut().flush());
                match written {
                    Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => return Ok(false),
                    written => written.map_err(|e| Error::io(name, &e))?,
                }
            }
            Writer::Csv(file) => file.write_all(&csv::lines(rows)?).map_err(|e| Error::io(name, &e))?,
            Writer::Json(file) => file.write_all(&json::lines(rows)?).map_err(|e| Error::io(name, &e))?,
        }
        Ok(true)
    }

    /// Writes what is left and puts the file into its place.
    pub fn finish(self) -> Result<()> {
        let name = self.name;
        match self.writer {
            Writer::Parquet(file) => file.finish(&name),
            Writer::Arrow(writer) => writer.into_inner().map_err(|e| failed(&name, &e))?.finish(),
            Writer::StandardOutput(writer) => {
                let written = writer.into_inner().map_err(into_io).and_then(|mut stdout| stdout.flush());
                match written {
                    Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
                    written => written.map_err(|e| Error::io(&name, &e)),
                }
            }
            Writer::Csv(file) | Writer::Json(file) => file.finish(),
        }
    }
}

fn failed(name: &str, error: &dyn std::fmt::Display) -> Error {
    Error::io(name, &std::io::Error::other(error.to_string()))
}

fn into_io(error: arrow::error::ArrowError) -> std::io::Error {
    match error {
        arrow::error::ArrowError::IoError(_, error) => error,
        error => std::io::Error::other(error.to_string()),
    }
}

/// Readers find columns by their names: two of one name would hide each other.
fn refuse_repeated_names(schema: &Schema) -> Result<()> {
    let mut seen = std::collections::HashSet::new();
    match schema.fields().iter().find(|field| !seen.insert(field.name())) {
        Some(twice) => Err(Error::option(format!(
            "two columns would be called `{}`: rename the one in the data, or leave it out with --keys",
            twice.name()
        ))),
        None => Ok(()),
    }
}
