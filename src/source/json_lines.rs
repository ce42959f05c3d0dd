//! JSON lines as they come through a pipe: a `LiveSource` that cannot go back.
//!
//! The first line decides, with [`Columns`], what all of them mean; opening waits for it. A window is what has arrived,
//! at most 1,000 lines. Nothing can be read again: after a crash the producer decides what comes next. A
//! last line without its newline is a line.

use std::io::Read;
use std::sync::{Arc, Mutex, PoisonError};

use super::columns::{Columns, Reading, RecordKind};
use super::json_records::JsonShape;
use super::lines::{Lines, MAX_LINE_BYTES, piece_of, push_line};
use super::{Arrived, LiveReader, LiveSource, Manifest, ReadLimits};
use crate::data::Position;
use crate::error::{Error, Result};

/// Lines in a window at most.
const WINDOW_LINES: usize = 1000;

/// JSON lines from a pipe.
pub struct JsonLines {
    name: Arc<str>,
    shape: JsonShape,
    manifest: Manifest,
    lines: Mutex<Lines>,
}

impl JsonLines {
    /// Waits for the first line and finds out what it means. Messages call the stream `name`.
    pub fn new(name: &str, read: Box<dyn Read + Send>, columns: &Columns, limits: &ReadLimits) -> Result<Self> {
        let max_line_bytes = MAX_LINE_BYTES.min(usize::try_from(limits.record_bytes).unwrap_or(usize::MAX));
        let mut lines = Lines::new(read, 0, max_line_bytes);
        loop {
            if !lines.wait_for_line().map_err(|e| Error::io(name, &e))? {
                return Err(Error::format(format!("{name}: ended before the first line: pipe JSON lines in")));
            }
            // Only the first: what has arrived besides is a matter of chance.
            let first = lines.peek().find(|line| !line.trim_ascii().is_empty());
            let shape = first.map(|first| JsonShape::find(&[first], columns).map_err(|error| error.at(name)));
            if let Some(shape) = shape.transpose()? {
                let manifest = Manifest::new("json-lines", Vec::new(), &shape.identity());
                return Ok(Self { name: name.into(), shape, manifest, lines: Mutex::new(lines) });
            }
            if lines.peek().next().is_none() {
                return Err(Error::data(format!("{name}: the first line is longer than {max_line_bytes} bytes")));
            }
            lines.next().map_err(|e| Error::io(name, &e))?; // a blank one
        }
    }

    /// What the records are.
    pub fn kind(&self) -> RecordKind {
        self.shape.kind()
    }

    /// Which keys are read, and which are not; `None` where lines are lists.
    pub fn reading(&self) -> Option<Reading> {
        Some(self.shape.reading()).filter(|reading| !reading.read.is_empty())
    }
}

impl LiveSource for JsonLines {
    fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    fn can_go_back(&self) -> bool {
        false
    }

    fn open(self: Arc<Self>, _: Option<&Position>) -> Result<Box<dyn LiveReader>> {
        Ok(Box::new(Reader { stream: self, state: State::Between }))
    }
}

/// There is one at a time: what one has read, no other sees.
struct Reader {
    stream: Arc<JsonLines>,
    state: State,
}

enum State {
    Between,
    /// A window has begun.
    Begun,
    /// Its lines were delivered.
    Delivered,
}

impl LiveReader for Reader {
    fn next(&mut self, limits: &ReadLimits) -> Result<Option<Arrived>> {
        let stream = &self.stream;
        // Nothing here panics while the lock is held.
        let mut lines = stream.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let failed = |offset: u64, e: &std::io::Error| Error::io(&format!("{}: after byte {offset}", stream.name), e);
        match self.state {
            State::Between => {
                let offset = lines.offset();
                if !lines.wait_for_line().map_err(|e| failed(offset, &e))? {
                    return Ok(None);
                }
                self.state = State::Begun;
                Ok(Some(Arrived::WindowStart(bytes_so_far(offset)?)))
            }
            State::Begun => {
                let (mut records, mut offsets) = (stream.shape.records(), Vec::new());
                let max_line_bytes = lines.max_line_bytes();
                let mut is_first = true;
                // The first may be a line that is too long, and still to be read.
                while is_first
                    || (records.len() < WINDOW_LINES && records.num_bytes() < limits.piece_bytes && lines.has_line())
                {
                    is_first = false;
                    let start = lines.offset();
                    match lines.next().map_err(|e| failed(start, &e))? {
                        Some((offset, line)) => {
                            push_line(&mut records, &mut offsets, offset, &line, max_line_bytes);
                        }
                        None => break,
                    }
                }
                self.state = State::Delivered;
                if records.is_empty() {
                    drop(lines);
                    return self.next(limits); // blank lines
                }
                Ok(Some(Arrived::Piece(piece_of(stream.name.clone(), records, offsets))))
            }
            State::Delivered => {
                self.state = State::Between;
                Ok(Some(Arrived::WindowEnd(bytes_so_far(lines.offset())?)))
            }
        }
    }
}

/// What is known of a place in a pipe: it tells people how far it came.
fn bytes_so_far(bytes: u64) -> Result<Position> {
    Position::new(&serde_json::json!({ "bytes": bytes }))
}

impl std::fmt::Debug for JsonLines {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JsonLines").field("name", &self.name).field("shape", &self.shape).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;
    use crate::source::{Piece, Records};

    const LIMITS: ReadLimits = ReadLimits { piece_bytes: 1 << 20, part_bytes: 1 << 20, record_bytes: 200 };

    /// Delivers one write at a time, as a pipe does.
    struct Writes(VecDeque<Vec<u8>>);

    impl Read for Writes {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            let Some(mut first) = self.0.pop_front() else { return Ok(0) };
            let read = first.len().min(buffer.len());
            buffer[..read].copy_from_slice(&first[..read]);
            if read < first.len() {
                self.0.push_front(first.split_off(read));
            }
            Ok(read)
        }
    }

    fn open(writes: &[&[u8]]) -> Result<Arc<JsonLines>> {
        let writes = writes.iter().filter(|write| !write.is_empty()).map(|write| write.to_vec()).collect();
        JsonLines::new("standard input", Box::new(Writes(writes)), &Columns::Auto, &LIMITS).map(Arc::new)
    }

    /// A record and its place.
    type Found = (u64, std::result::Result<Vec<u32>, String>);

    /// All records with their places, and how many windows they came in.
    fn read_all(writes: &[&[u8]]) -> (Vec<Found>, usize) {
        let mut reader = open(writes).unwrap().open(None).unwrap();
        let (mut found, mut windows) = (Vec::new(), 0);
        while let Some(arrived) = reader.next(&LIMITS).unwrap() {
            match arrived {
                Arrived::WindowStart(_) => windows += 1,
                Arrived::Piece(piece) => found.extend(records_of(&piece)),
                Arrived::WindowEnd(_) => {}
                other => panic!("{other:?}"),
            }
        }
        (found, windows)
    }

    fn records_of(piece: &Piece) -> Vec<Found> {
        let Records::Lists(lists) = &piece.records else { panic!("{piece:?}") };
        let content = |record: usize| match piece.bad.iter().find(|bad| bad.0 == record) {
            Some((_, reason)) => Err(reason.clone()),
            None => Ok(lists.range(record).map(|at| lists.values.category(at).unwrap()).collect()),
        };
        (0..piece.num_records()).map(|record| (piece.positions.place(record).1, content(record))).collect()
    }

    proptest! {
        #[test]
        fn any_cut_of_the_lines_into_writes_gives_the_same_records(
            rows in prop::collection::vec(prop_oneof![
                4 => (0u32..300, 0u32..3).prop_map(|(a, b)| format!("{{\"a\":{a},\"b\":{b}}}")),
                1 => Just(String::new()),
                1 => Just("{\"a\":\"x\"}".to_string()),
                1 => Just("y".repeat(250)),
            ], 1..40),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
            has_end in any::<bool>(),
        ) {
            let mut text = format!("\n{{\"a\":1,\"b\":2}}\n{}", rows.join("\n"));
            if has_end {
                text.push('\n');
            }
            let bytes = text.as_bytes();
            let mut places: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len())).collect();
            places.extend([0, bytes.len()]);
            places.sort_unstable();
            let writes: Vec<&[u8]> = places.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect();
            let (whole, _) = read_all(&[bytes]);
            prop_assert_eq!(read_all(&writes).0, whole.clone());
            prop_assert_eq!(whole.len(), 1 + rows.iter().filter(|row| !row.is_empty()).count());
        }
    }

    #[test]
    fn a_window_is_what_has_arrived_and_no_more_than_some_lines() {
        let lines = |count: usize| "{\"a\":1}\n".repeat(count).into_bytes();
        assert_eq!(read_all(&[&lines(3), &lines(2), b"{\"a\"", b":1}\n"]).1, 3);
        let (records, windows) = read_all(&[&lines(2500)]);
        assert_eq!((records.len(), windows), (2500, 3));
        assert!(records.iter().all(|(_, row)| row.as_ref().is_ok_and(|row| row == &[1])));
    }

    #[test]
    fn the_first_line_decides_and_a_change_after_it_is_named() {
        let (records, _) = read_all(&[b"{\"a\":1}\n{\"a\":2,\"b\":3}\n{\"a\":4}\n"]);
        assert!(records[1].1.as_ref().is_err_and(|reason| reason.contains("`b` is not among")), "{records:?}");
        assert_eq!((&records[0].1, &records[2].1), (&Ok(vec![1]), &Ok(vec![4])));
        assert_eq!(records[2].0, 22, "the byte at which the line begins");
        for (bytes, words) in [
            (&b""[..], "ended before the first line"),
            (b"\n\n", "ended before the first line"),
            (b"{\"a\":1,\"b\":\"x\"}\n", "is not clear"),
        ] {
            let error = open(&[bytes]).expect_err(words).to_string();
            assert!(error.starts_with("standard input: ") && error.contains(words), "{error}");
        }
    }
}
