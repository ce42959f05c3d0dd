//! Cuts a CSV file into rows, wherever its quotes let a row end.
//!
//! A quote opens at the beginning of a cell and nowhere else, and what it opens goes on over delimiters and line ends
//! to a quote that is followed by a delimiter, a line end or nothing; two quotes inside are one. A quote that is opened
//! and not closed like that spoils the line in which it opens and no other: the row is bad and ends with that line. To
//! know it the cutter looks no further than [`MAX_QUOTED_BYTES`], so a lost quote costs neither a whole file nor its
//! size in memory. Where rows begin depends on the file alone, not on how it is read or on the limits of a run.
//!
//! Used for blocks (`starts`, `mod`), for what comes through a pipe (`pipe`) and for answers (`whole_rows`).

use std::io::{self, ErrorKind, Read};

use super::header::sniff;
use crate::source::json_shape::BYTE_ORDER_MARK;

/// The longest cell in quotes that is looked for: what a record may take however small the memory of a run is.
pub const MAX_QUOTED_BYTES: usize = 16 << 20;

/// How much is read at once.
const READ_BYTES: usize = 128 << 10;

/// Rows of some input.
pub struct Cutter {
    input: Box<dyn Read + Send>,
    /// Read and not yet delivered, from `used` on.
    buffer: Vec<u8>,
    used: usize,
    /// Where the next row begins in the file.
    offset: u64,
    /// `None` until the first line was seen.
    delimiter: Option<u8>,
    is_at_end: bool,
    /// What is known of the row at `used`.
    walk: Walk,
    max_row_bytes: usize,
    max_quoted_bytes: usize,
}

/// A row of a file.
pub struct Row<'a> {
    /// The byte at which it begins.
    pub offset: u64,
    /// Its bytes without the line end, or why it cannot be read.
    pub bytes: Result<&'a [u8], String>,
}

impl Cutter {
    /// Rows of an input that begins at byte `offset` of a file, where a row begins. Longer rows than `max_row_bytes`
    /// are bad. Without a delimiter the first line decides.
    pub fn new(input: Box<dyn Read + Send>, offset: u64, delimiter: Option<u8>, max_row_bytes: usize) -> Self {
        Self {
            input,
            buffer: Vec::new(),
            used: 0,
            offset,
            delimiter,
            is_at_end: false,
            walk: Walk::default(),
            max_row_bytes,
            max_quoted_bytes: MAX_QUOTED_BYTES,
        }
    }

    /// Where the next row begins.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// What is between cells: known once there was a row.
    pub fn delimiter(&self) -> u8 {
        self.delimiter.unwrap_or(b',')
    }

    /// Longer rows are bad from here on.
    pub fn with_max_row_bytes(self, max_row_bytes: usize) -> Self {
        Self { max_row_bytes, ..self }
    }

    /// Looks for the end of quotes no further than this.
    #[cfg(test)]
    pub fn with_max_quoted_bytes(self, max_quoted_bytes: usize) -> Self {
        Self { max_quoted_bytes, ..self }
    }

    /// The next row that is not an empty line.
    pub fn next(&mut self) -> io::Result<Option<Row<'_>>> {
        if !self.wait_for_row()? {
            return Ok(None);
        }
        let (offset, length) = (self.offset, self.row_length().unwrap_or_default());
        let walk = std::mem::take(&mut self.walk);
        let row = self.used..self.used + length;
        self.used = row.end;
        self.offset += walk.dropped + length as u64;
        let bytes = without_line_end(&self.buffer[row]);
        let whole = walk.dropped + bytes.len() as u64;
        let bytes = match walk.broken {
            _ if whole > self.max_row_bytes as u64 => Err(too_long(self.max_row_bytes)),
            Some(Broken { at, is_closed: true }) => {
                let at = offset + at;
                Err(format!("after the quote at byte {at} a cell goes on: a quote inside quotes is written twice"))
            }
            Some(Broken { at, is_closed: false }) => {
                Err(format!("the quote at byte {} opens a cell and is never closed", offset + at))
            }
            None => Ok(bytes),
        };
        Ok(Some(Row { offset, bytes }))
    }

    /// Returns true if the next row can be had without waiting.
    pub fn has_row(&mut self) -> bool {
        self.delimiter.is_some() && self.skip_empty_lines() && self.row_length().is_some()
    }

    /// Reads on until there is a row; returns false at the end.
    pub fn wait_for_row(&mut self) -> io::Result<bool> {
        self.begin()?;
        loop {
            if self.skip_empty_lines() && self.row_length().is_some() {
                return Ok(true);
            }
            if self.is_at_end {
                return Ok(false);
            }
            self.fill()?;
        }
    }

    /// At the beginning of a file: leaves out what some editors begin it with, and finds the delimiter.
    fn begin(&mut self) -> io::Result<()> {
        if self.delimiter.is_some() && self.offset > 0 {
            return Ok(());
        }
        while !self.is_at_end && self.buffer.len() < BYTE_ORDER_MARK.len() {
            self.fill()?;
        }
        if self.offset == 0 && self.used == 0 && self.buffer.starts_with(BYTE_ORDER_MARK) {
            self.used = BYTE_ORDER_MARK.len();
            self.offset = self.used as u64;
        }
        while self.delimiter.is_none() {
            let lines = &self.buffer[self.used..];
            let first = lines.iter().position(|byte| !matches!(byte, b'\r' | b'\n')).unwrap_or(lines.len());
            self.delimiter = sniff(&lines[first..], self.is_at_end);
            if self.delimiter.is_none() {
                self.fill()?;
            }
        }
        Ok(())
    }

    /// Steps over empty lines; returns false if nothing comes after them yet.
    fn skip_empty_lines(&mut self) -> bool {
        if self.walk.at > 0 || self.walk.dropped > 0 {
            return true; // in the midst of a row
        }
        let bytes = &self.buffer[self.used..];
        let mut skipped = 0;
        loop {
            skipped += match &bytes[skipped..] {
                [b'\n', ..] => 1,
                [b'\r', b'\n', ..] => 2,
                [b'\r'] if self.is_at_end => 1,
                [b'\r'] | [] => {
                    self.used += skipped;
                    self.offset += skipped as u64;
                    return false;
                }
                _ => break,
            };
        }
        self.used += skipped;
        self.offset += skipped as u64;
        true
    }

    /// How long the next row is, with its line end, if that is known.
    fn row_length(&mut self) -> Option<usize> {
        let bytes = &self.buffer[self.used..];
        self.walk.end_of_row(bytes, self.is_at_end, self.delimiter.unwrap_or(b','), self.max_quoted_bytes)
    }

    /// Reads once: what has arrived, and no more than that. Of a row that is too long only what is still to be looked
    /// at is kept.
    fn fill(&mut self) -> io::Result<()> {
        if self.buffer.len() - self.used > self.max_row_bytes {
            let needless = self.walk.drop_seen();
            self.used += needless;
        }
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

/// Why a row is bad that is longer than this.
fn too_long(max_row_bytes: usize) -> String {
    format!("a row of more than {max_row_bytes} bytes is too long: it is no text, or pipeline.memory is to be raised")
}

fn without_line_end(row: &[u8]) -> &[u8] {
    let row = row.strip_suffix(b"\n").unwrap_or(row);
    row.strip_suffix(b"\r").unwrap_or(row)
}

/// How far a row has been looked through. Places count from where the row, or what is kept of it, begins.
#[derive(Clone, Copy, Debug, Default)]
struct Walk {
    /// Everything before it has been looked at.
    at: usize,
    /// The quote that opens the cell at `at`, if it is in quotes.
    opened: Option<usize>,
    /// The row is bad, and ends with the line that `at` is in.
    broken: Option<Broken>,
    /// Bytes of the row that are no longer there.
    dropped: u64,
}

/// A quote that is wrong.
#[derive(Clone, Copy, Debug)]
struct Broken {
    /// Its place in the row.
    at: u64,
    /// Whether it was closed in its own line, and something followed.
    is_closed: bool,
}

impl Walk {
    /// How long the row is that begins with `bytes`; `None` if that cannot be told without more of them.
    fn end_of_row(&mut self, bytes: &[u8], is_at_end: bool, delimiter: u8, max_quoted: usize) -> Option<usize> {
        loop {
            let Some(opened) = self.opened else {
                match find(bytes, self.at, |byte| byte == b'\n' || byte == b'"') {
                    None => {
                        self.at = bytes.len();
                        return (is_at_end && self.at > 0).then_some(self.at);
                    }
                    Some(end) if bytes[end] == b'\n' => {
                        self.at = end; // asked again, it is found again
                        return Some(end + 1);
                    }
                    Some(quote) => {
                        let begins_cell = quote == 0 || bytes[quote - 1] == delimiter;
                        self.opened = (begins_cell && self.broken.is_none()).then_some(quote);
                        self.at = quote + 1;
                    }
                }
                continue;
            };
            let quote = find(bytes, self.at, |byte| byte == b'"');
            let is_too_far = quote.unwrap_or(bytes.len()) - opened > max_quoted;
            let Some(quote) = quote.filter(|_| !is_too_far) else {
                self.at = bytes.len();
                if !is_too_far && !is_at_end {
                    return None;
                }
                self.break_off(bytes, opened, None);
                continue;
            };
            match &bytes[quote + 1..] {
                [] | [b'\r'] if !is_at_end => {
                    self.at = quote;
                    return None;
                }
                [b'"', ..] => self.at = quote + 2,
                [] | [b'\r'] | [b'\n', ..] | [b'\r', b'\n', ..] => (self.at, self.opened) = (quote + 1, None),
                [next, ..] if *next == delimiter => (self.at, self.opened) = (quote + 1, None),
                _ => self.break_off(bytes, opened, Some(quote)),
            }
        }
    }

    /// The cell that opens there is not closed as it should be: what follows its line is read as other rows.
    fn break_off(&mut self, bytes: &[u8], opened: usize, closed: Option<usize>) {
        let line_end = find(bytes, opened, |byte| byte == b'\n');
        let is_closed = closed.is_some_and(|closed| line_end.is_none_or(|end| closed < end));
        let at = closed.filter(|_| is_closed).unwrap_or(opened);
        self.broken = Some(Broken { at: self.dropped + at as u64, is_closed });
        self.opened = None;
        self.at = line_end.unwrap_or(bytes.len());
    }

    /// Forgets what need not be looked at again; returns how many bytes that is.
    fn drop_seen(&mut self) -> usize {
        // The byte before the next one tells whether a cell begins.
        let needless = self.opened.unwrap_or(self.at).saturating_sub(1);
        self.at -= needless;
        self.opened = self.opened.map(|opened| opened - needless);
        self.dropped += needless as u64;
        needless
    }
}

/// The first byte from `from` on that is wanted. In chunks without a way out, which the compiler makes wide.
fn find(bytes: &[u8], from: usize, is_wanted: impl Fn(u8) -> bool) -> Option<usize> {
    const AT_ONCE: usize = 32;
    let mut at = from.min(bytes.len());
    let (chunks, rest) = bytes[at..].as_chunks::<AT_ONCE>();
    for chunk in chunks {
        if chunk.iter().fold(false, |any, &byte| any | is_wanted(byte)) {
            return chunk.iter().position(|&byte| is_wanted(byte)).map(|place| at + place);
        }
        at += AT_ONCE;
    }
    rest.iter().position(|&byte| is_wanted(byte)).map(|place| at + place)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Delivers so many bytes at a time.
    struct Drops(Vec<u8>, usize, usize);

    impl Read for Drops {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            let read = self.1.min(into.len()).min(self.0.len() - self.2);
            into[..read].copy_from_slice(&self.0[self.2..self.2 + read]);
            self.2 += read;
            Ok(read)
        }
    }

    type Found = (u64, Result<String, String>);

    fn cut(text: &[u8], at_once: usize, max_row: usize, max_quoted: usize) -> Vec<Found> {
        let input = Box::new(Drops(text.to_vec(), at_once, 0));
        let mut cutter = Cutter::new(input, 0, Some(b','), max_row).with_max_quoted_bytes(max_quoted);
        let mut found = Vec::new();
        while let Some(row) = cutter.next().unwrap() {
            found.push((row.offset, row.bytes.map(|bytes| String::from_utf8_lossy(bytes).into_owned())));
        }
        assert_eq!(cutter.offset(), text.len() as u64);
        found
    }

    fn rows(text: &str) -> Vec<Found> {
        cut(text.as_bytes(), 7, 1000, 1000)
    }

    #[test]
    fn rows_end_at_lines_outside_quotes() {
        let text = "a,b\r\n\n\"x\ny\",\"say \"\"hi\"\"\n\"\r\n\r\n5\" pipe,\"\"\nlast";
        let expected = ["a,b", "\"x\ny\",\"say \"\"hi\"\"\n\"", "5\" pipe,\"\"", "last"];
        let found = rows(text);
        let texts: Vec<&str> = found.iter().map(|(_, row)| row.as_deref().unwrap()).collect();
        assert_eq!(texts, expected);
        assert!(found.iter().all(|(offset, row)| text[*offset as usize..].starts_with(row.as_deref().unwrap())));
        assert_eq!(rows("\u{feff}\"a\nb\"\n")[0], (3, Ok("\"a\nb\"".into())));
        assert_eq!((rows(""), rows("\n\r\n\r")), (vec![], vec![]));
    }

    #[test]
    fn a_lost_quote_spoils_its_line_and_no_other() {
        for text in ["a\n1,\"b,2\nc,3\n\"d\"x,4\ne,5\n", "a\n1,\"b,2\nc,3\nd,4\ne,5\n", "a\n1,\"b\"\"2\nc,3\n"] {
            let found = rows(text);
            let (offset, row) = &found[1];
            assert_eq!(*offset, 2);
            assert_eq!(row.clone().unwrap_err(), "the quote at byte 4 opens a cell and is never closed");
            assert_eq!(found[2], (text.find("c,3").unwrap() as u64, Ok("c,3".into())));
        }
        let closed = rows("a\n1,\"b\"2,\"\"\nc\n");
        assert_eq!(closed.len(), 3);
        let reason = closed[1].1.clone().unwrap_err();
        assert_eq!(reason, "after the quote at byte 6 a cell goes on: a quote inside quotes is written twice");
        // Beyond so many bytes a quote is not looked for.
        let far = format!("a\n\"b\n{}\"\nc\n", "x".repeat(50));
        assert_eq!(cut(far.as_bytes(), 7, 1000, 53).len(), 3);
        let found = cut(far.as_bytes(), 7, 1000, 52);
        assert!(found.len() == 4 && found[1].1.is_err() && found[2].1.is_ok(), "{found:?}");
    }

    #[test]
    fn a_row_that_is_too_long_is_bad_and_what_follows_is_read() {
        for long in ["x".repeat(500_000), format!("\"{}\n{}\"", "x".repeat(250_000), "y,".repeat(1000))] {
            let text = format!("a\n{long},1\nb\n");
            for at_once in [1000, usize::MAX] {
                let found = cut(text.as_bytes(), at_once, 100, 1 << 20);
                assert_eq!(found.len(), 3, "{at_once}");
                assert!(found[1].1.clone().unwrap_err().starts_with("a row of more than 100 bytes is too long"));
                assert_eq!(found[2], (text.len() as u64 - 2, Ok("b".into())));
            }
        }
        assert!(cut(b"abc\r\n", 1, 3, 10)[0].1.is_ok() && cut(b"abcd\r\n", 1, 3, 10)[0].1.is_err());
    }

    proptest! {
        #[test]
        fn rows_do_not_depend_on_how_the_bytes_arrive(
            text in "[a,\"\r\n]{0,80}", at_once in 1usize..20, max_row in 1usize..40, max_quoted in 1usize..40,
        ) {
            let whole = cut(text.as_bytes(), usize::MAX, max_row, max_quoted);
            prop_assert_eq!(&cut(text.as_bytes(), at_once, max_row, max_quoted), &whole);
            // A row that is cut out alone is the same row, so blocks may begin with any of them.
            for (at, (offset, _)) in whole.iter().enumerate() {
                let rest = cut(&text.as_bytes()[*offset as usize..], at_once, max_row, max_quoted);
                let starts: Vec<u64> = rest.iter().map(|(start, _)| start + offset).collect();
                prop_assert_eq!(starts, whole[at..].iter().map(|(start, _)| *start).collect::<Vec<_>>());
            }
        }
    }
}
