//! Lines of bytes, and the records in them.
//!
//! [`Lines`] cuts whatever it reads at newlines and never keeps more than one line that is too long; [`LinePieces`]
//! makes records of them by a [`JsonShape`]. Blank lines are nothing, and a line that does not fit is a bad record at
//! its byte offset. Used by `jsonl` (files), `json_lines` (standard input) and `follow` (files that grow).

use std::io::{ErrorKind, Read};
use std::sync::Arc;

use super::json_records::{JsonRecords, JsonShape};
use super::json_shape::BYTE_ORDER_MARK;
use super::store::read_error;
use super::{Piece, Positions};
use crate::error::{Error, Result};

/// A longer line is a bad record: it may be a file that is no text at all.
pub(super) const MAX_LINE_BYTES: usize = 64 << 20;
/// How much a line splitter reads at once.
const READ_BYTES: usize = 64 << 10;
/// Records in a piece at most: lines without text take room too.
const PIECE_RECORDS: usize = 8192;
/// How many lines, and about how many bytes of them, are looked at to find out what they mean.
const FIRST_LINES: usize = 100;
const FIRST_BYTES: u64 = 256 << 10;

/// The pieces of some lines.
pub(super) struct LinePieces {
    lines: Lines,
    file: Arc<str>,
    shape: Arc<JsonShape>,
    piece_bytes: usize,
    /// Delivered after the lines that came before it.
    failure: Option<Error>,
    is_over: bool,
}

impl LinePieces {
    /// The records of lines, in pieces of about so many bytes.
    pub(super) fn new(lines: Lines, file: Arc<str>, shape: Arc<JsonShape>, piece_bytes: usize) -> Self {
        Self { lines, file, shape, piece_bytes, failure: None, is_over: false }
    }

    /// Where the next line begins.
    pub(super) fn offset(&self) -> u64 {
        self.lines.offset
    }
}

impl Iterator for LinePieces {
    type Item = Result<Piece>;

    fn next(&mut self) -> Option<Result<Piece>> {
        let (mut records, mut offsets) = (self.shape.records(), Vec::new());
        while !self.is_over && records.num_bytes() < self.piece_bytes.max(1) && records.len() < PIECE_RECORDS {
            let max_line_bytes = self.lines.max_line_bytes;
            match self.lines.next() {
                Ok(None) => self.is_over = true,
                Err(error) => {
                    self.is_over = true;
                    let place = format!("{}: after byte {} of its lines", self.file, self.lines.offset);
                    self.failure = Some(read_error(&place, &error));
                }
                Ok(Some((offset, line))) => push_line(&mut records, &mut offsets, offset, &line, max_line_bytes),
            }
        }
        if offsets.is_empty() {
            return self.failure.take().map(Err);
        }
        Some(Ok(piece_of(self.file.clone(), records, offsets)))
    }
}

/// Adds a line to the records, and where it begins to their places; nothing of a blank one.
pub(super) fn push_line(
    records: &mut JsonRecords,
    offsets: &mut Vec<u64>,
    offset: u64,
    line: &Line<'_>,
    max_line_bytes: usize,
) {
    match line {
        Line::Whole(line) => {
            let line = line.strip_prefix(BYTE_ORDER_MARK).filter(|_| offset == 0).unwrap_or(line);
            if line.trim_ascii().is_empty() {
                return;
            }
            records.push(line);
        }
        Line::TooLong => records.push_bad(format!(
            "a line of more than {max_line_bytes} bytes is too long: it is no text, or pipeline.memory is to be raised"
        )),
    }
    offsets.push(offset);
}

/// Records of lines at these bytes.
pub(super) fn piece_of(file: Arc<str>, records: JsonRecords, offsets: Vec<u64>) -> Piece {
    let (records, bad) = records.finish();
    Piece { file, positions: Positions::Bytes(offsets), records, bad }
}

/// The first lines of some input: enough to find out what they mean. What cannot be read is not among them.
pub(super) fn first_lines(input: Box<dyn Read + Send>) -> Vec<Vec<u8>> {
    let mut lines = Lines::new(input, 0, MAX_LINE_BYTES);
    let mut found = Vec::new();
    while found.len() < FIRST_LINES
        && lines.offset < FIRST_BYTES
        && let Ok(Some((_, line))) = lines.next()
    {
        if let Line::Whole(line) = line {
            found.push(line.to_vec());
        }
    }
    found
}

/// Cuts bytes at newlines.
pub(super) struct Lines {
    input: Box<dyn Read + Send>,
    /// Read and not yet delivered, from `used` on.
    buffer: Vec<u8>,
    used: usize,
    /// Of `buffer[used]` in the file.
    offset: u64,
    max_line_bytes: usize,
    is_at_end: bool,
}

pub(super) enum Line<'a> {
    Whole(&'a [u8]),
    TooLong,
}

impl Lines {
    /// Lines of some input that begins at byte `offset` of a file.
    pub(super) fn new(input: Box<dyn Read + Send>, offset: u64, max_line_bytes: usize) -> Self {
        Self { input, buffer: Vec::new(), used: 0, offset, max_line_bytes, is_at_end: false }
    }

    /// Where the next line begins.
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// Longer lines are bad.
    pub(super) fn max_line_bytes(&self) -> usize {
        self.max_line_bytes
    }

    /// Returns true if the next line can be had without waiting.
    pub(super) fn has_line(&self) -> bool {
        let read = &self.buffer[self.used..];
        read.contains(&b'\n') || (self.is_at_end && !read.is_empty())
    }

    /// Reads on until there is a line; returns false at the end. Nothing is kept of a line that is too long but its
    /// beginning, so `next` is what reads that.
    pub(super) fn wait_for_line(&mut self) -> std::io::Result<bool> {
        while !self.has_line() && !self.is_at_end && self.buffer.len() - self.used <= self.max_line_bytes {
            self.fill()?;
        }
        Ok(self.used < self.buffer.len())
    }

    /// The whole lines that were read and not yet delivered.
    pub(super) fn peek(&self) -> impl Iterator<Item = &[u8]> {
        self.buffer[self.used..]
            .split_inclusive(|&byte| byte == b'\n')
            .filter(|line| line.ends_with(b"\n") || self.is_at_end)
    }

    /// The next line without its newline, and where it begins.
    pub(super) fn next(&mut self) -> std::io::Result<Option<(u64, Line<'_>)>> {
        let start = self.offset;
        let mut searched = 0;
        let mut is_too_long = false;
        loop {
            let fresh = &self.buffer[self.used + searched..];
            if let Some(newline) = fresh.iter().position(|&byte| byte == b'\n') {
                let line = self.used..self.used + searched + newline;
                self.used = line.end + 1;
                self.offset += line.len() as u64 + 1;
                is_too_long |= line.len() > self.max_line_bytes;
                let line = if is_too_long { Line::TooLong } else { Line::Whole(&self.buffer[line]) };
                return Ok(Some((start, line)));
            }
            searched = self.buffer.len() - self.used;
            if searched > self.max_line_bytes {
                // Nothing of it is kept but where it began.
                is_too_long = true;
                self.offset += searched as u64;
                self.used += searched;
                searched = 0;
            }
            if self.is_at_end {
                let line = self.used..self.buffer.len();
                self.used = line.end;
                self.offset += line.len() as u64;
                return Ok(match (is_too_long, line.is_empty()) {
                    (true, _) => Some((start, Line::TooLong)),
                    (false, true) => None,
                    (false, false) => Some((start, Line::Whole(&self.buffer[line]))),
                });
            }
            self.fill()?;
        }
    }

    /// Reads once: what has arrived, and no more than that.
    fn fill(&mut self) -> std::io::Result<()> {
        self.buffer.drain(..self.used);
        self.used = 0;
        let before = self.buffer.len();
        self.buffer.resize(before + READ_BYTES, 0);
        let read = loop {
            match self.input.read(&mut self.buffer[before..]) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                read => break read,
            }
        };
        self.buffer.truncate(before + *read.as_ref().unwrap_or(&0));
        self.is_at_end = read? == 0;
        Ok(())
    }
}
