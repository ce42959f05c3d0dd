//! Records out of the rows of a CSV file.
//!
//! A row that does not fit is a bad record with a reason: not UTF-8, another number of cells than the header, a text
//! where a number is meant. Used for files (`mod`) and for what comes through a pipe (`pipe`).

use std::sync::Arc;

use super::cells::{Span, spans};
use super::cutter::{Cutter, Row};
use super::shape::{CsvShape, Form};
use crate::data::schema::{parse_number, says_missing};
use crate::data::{Cells, Values};
use crate::error::{Error, Result};
use crate::source::json_records::{Number, append};
use crate::source::store::read_error;
use crate::source::{Blobs, Lists, Piece, Positions, Records};

/// Records in a piece at most: rows that are bad take room, too.
const PIECE_RECORDS: usize = 8192;

/// How the rows of one file become records.
#[derive(Clone, Debug)]
pub(super) struct RowReader {
    form: Form,
    /// Where the columns are in this file.
    places: Vec<usize>,
    names: Arc<[String]>,
    /// How many columns the file has.
    width: usize,
    delimiter: u8,
}

impl RowReader {
    /// For a file with these columns.
    pub fn new(shape: &CsvShape, file_names: &[String], delimiter: u8) -> Result<Self> {
        let (places, names) = (shape.places_in(file_names)?, shape.names.clone().into());
        Ok(Self { form: shape.form, places, names, width: file_names.len(), delimiter })
    }

    /// What is between cells.
    pub fn delimiter(&self) -> u8 {
        self.delimiter
    }

    /// Room for records.
    pub fn records(&self) -> CsvRecords {
        let kept = match self.form {
            Form::Cells => Kept::Cells(Cells::new(self.places.len())),
            Form::Numbers { .. } => {
                Kept::Numbers(Lists { values: Values::U8(Vec::new()), ends: Vec::new(), missing: None })
            }
            Form::Text => Kept::Texts(Blobs::default()),
        };
        CsvRecords { kept, offsets: Vec::new(), bad: Vec::new(), found: Vec::new(), numbers: Vec::new() }
    }
}

/// Records that are being put together.
pub(super) struct CsvRecords {
    kept: Kept,
    offsets: Vec<u64>,
    bad: Vec<(usize, String)>,
    /// The cells of the row that is being read.
    found: Vec<Span>,
    /// Its numbers.
    numbers: Vec<Number>,
}

enum Kept {
    Cells(Cells),
    Numbers(Lists),
    Texts(Blobs),
}

impl CsvRecords {
    /// Adds the record of a row; a bad one if it does not fit.
    pub fn push(&mut self, reader: &RowReader, row: &Row<'_>) {
        self.offsets.push(row.offset);
        let read = match &row.bytes {
            Ok(bytes) => self.read(reader, bytes),
            Err(reason) => Err(reason.clone()),
        };
        if let Err(reason) = read {
            self.bad.push((self.offsets.len() - 1, reason));
            match &mut self.kept {
                Kept::Cells(cells) => cells.push_null_row(),
                Kept::Numbers(lists) => lists.ends.push(lists.values.len()),
                Kept::Texts(blobs) => blobs.push(&[]),
            }
        }
    }

    /// All of a row, or nothing of it and why.
    fn read(&mut self, reader: &RowReader, bytes: &[u8]) -> std::result::Result<(), String> {
        let row =
            std::str::from_utf8(bytes).map_err(|e| format!("not UTF-8 at byte {} of the row", e.valid_up_to()))?;
        let count = spans(bytes, reader.delimiter, reader.width, &mut self.found);
        if count != reader.width {
            let cells = if count == 1 { "cell" } else { "cells" };
            return Err(format!("{count} {cells} where the header has {}", reader.width));
        }
        let spans = reader.places.iter().map(|place| &self.found[*place]);
        match &mut self.kept {
            Kept::Cells(cells) => spans.for_each(|span| cells.push(&span.cell(row))),
            Kept::Numbers(lists) => {
                self.numbers.clear();
                for (span, name) in spans.zip(&*reader.names) {
                    let text = span.text(row);
                    self.numbers.push(number(&text).map_err(|why| format!("column `{name}`: {why}"))?);
                }
                append(lists, &self.numbers, reader.form == Form::Numbers { reals: true });
            }
            Kept::Texts(blobs) => {
                for (span, name) in spans.zip(&*reader.names) {
                    if span.cell(row).is_null() {
                        return Err(format!("column `{name}` is empty, not a text"));
                    }
                    blobs.push(span.text(row).as_bytes());
                }
            }
        }
        Ok(())
    }

    /// How many records there are, bad ones among them.
    pub fn len(&self) -> usize {
        self.offsets.len()
    }

    /// Returns true if there is none.
    pub fn is_empty(&self) -> bool {
        self.offsets.is_empty()
    }

    /// Bytes that the records take.
    pub fn num_bytes(&self) -> usize {
        match &self.kept {
            Kept::Cells(cells) => cells.num_bytes(),
            Kept::Numbers(lists) => lists.values.num_bytes(),
            Kept::Texts(blobs) => blobs.bytes.len(),
        }
    }

    /// The records as a piece of a file.
    pub fn finish(self, file: Arc<str>) -> Piece {
        let records = match self.kept {
            Kept::Cells(cells) => Records::Cells(cells),
            Kept::Numbers(lists) => Records::Lists(lists),
            Kept::Texts(blobs) => Records::Blobs(blobs),
        };
        Piece { file, positions: Positions::Bytes(self.offsets), records, bad: self.bad }
    }
}

/// A number of a row; truth values are 0 and 1.
fn number(text: &str) -> std::result::Result<Number, String> {
    let text = text.trim();
    if says_missing(text) {
        return Ok(Number::Missing);
    }
    if text.eq_ignore_ascii_case("true") || text.eq_ignore_ascii_case("false") {
        return Ok(Number::Whole(u32::from(text.eq_ignore_ascii_case("true"))));
    }
    match parse_number(text).map(Number::of) {
        Some(Some(number)) => Ok(number),
        Some(None) => Err(format!("{text} is not a finite 32-bit number")),
        None => Err(format!("`{}` is not a number", text.chars().take(40).collect::<String>().escape_debug())),
    }
}

/// The pieces of some rows.
pub(super) struct CsvPieces {
    cutter: Cutter,
    reader: Arc<RowReader>,
    file: Arc<str>,
    piece_bytes: usize,
    is_over: bool,
    /// Delivered after the rows that came before it.
    failure: Option<Error>,
}

impl CsvPieces {
    /// The records of rows, in pieces of about so many bytes.
    pub fn new(cutter: Cutter, reader: Arc<RowReader>, file: Arc<str>, piece_bytes: usize) -> Self {
        Self { cutter, reader, file, piece_bytes, is_over: false, failure: None }
    }
}

impl Iterator for CsvPieces {
    type Item = Result<Piece>;

    fn next(&mut self) -> Option<Result<Piece>> {
        let mut records = self.reader.records();
        while !self.is_over && records.num_bytes() < self.piece_bytes.max(1) && records.len() < PIECE_RECORDS {
            let offset = self.cutter.offset();
            match self.cutter.next() {
                Ok(Some(row)) => records.push(&self.reader, &row),
                Ok(None) => self.is_over = true,
                Err(error) => {
                    self.is_over = true;
                    self.failure = Some(read_error(&format!("{}: after byte {offset} of its rows", self.file), &error));
                }
            }
        }
        if records.is_empty() {
            return self.failure.take().map(Err);
        }
        Some(Ok(records.finish(self.file.clone())))
    }
}
