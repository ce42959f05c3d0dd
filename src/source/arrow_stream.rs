//! Arrow IPC streams, as any producer can pipe into standard input: a `LiveSource`.
//!
//! The schema comes first and decides, with [`Columns`], what the records are; then each record batch is one piece, and rows
//! are counted from the beginning. Nothing can be read again: after a crash the producer decides what comes next.
//!
//! A stream that stops inside a message is cut off, and an error. One that stops between two messages is complete even
//! without the end marker, because the format allows it; watch the producer's exit status (`set -o pipefail`).

use std::io::{BufReader, Cursor, ErrorKind, Read};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

use arrow::array::RecordBatch;
use arrow::error::ArrowError;
use arrow::ipc::reader::StreamReader;

use super::columns::{Binding, Columns, Reading, RecordKind};
use super::{LiveSource, Manifest, Piece, Positions};
use crate::error::{Error, Result};

/// What every stream begins with since version 0.15 of the format.
const CONTINUATION_MARKER: &[u8] = &[0xff; 4];

/// What the other format, a file with an index at its end, begins with.
const FILE_MAGIC: &[u8] = b"ARROW1";

/// Record batches from a stream.
pub struct ArrowStream {
    name: Arc<str>,
    binding: Binding,
    manifest: Manifest,
    state: Mutex<State>,
}

/// How far the stream has been read.
struct State {
    /// `None` after the end, or after an error from which reading cannot go on.
    reader: Option<StreamReader<Watched>>,
    batches: u64,
    rows: u64,
}

impl ArrowStream {
    /// Reads the schema and finds the columns in it. Waits until the producer has sent it. Messages call the stream
    /// `name`.
    pub fn new(name: &str, mut read: Box<dyn Read + Send>, columns: &Columns) -> Result<Self> {
        let mut head = Vec::new();
        read.by_ref().take(FILE_MAGIC.len() as u64).read_to_end(&mut head).map_err(|e| Error::io(name, &e))?;
        check_head(&head).map_err(|error| error.at(name))?;
        let watched = Watched { inner: Cursor::new(head).chain(BufReader::new(read)), bytes: 0, ended: false };
        let reader = unless_damaged(|| StreamReader::try_new(watched, None)).map_err(|error| match error {
            ArrowError::IoError(_, e) if e.kind() != ErrorKind::UnexpectedEof => Error::io(name, &e),
            other => Error::format(format!("{name}: no schema of an Arrow IPC stream: {other}")),
        })?;
        let binding = Binding::new(&reader.schema(), columns).map_err(|error| error.at(name))?;
        // Of the columns that are read: others may come and go.
        let options = format!("{:?} {:?}", binding.names(), binding.kind());
        let manifest = Manifest::new("arrow-stream", Vec::new(), &options);
        let state = Mutex::new(State { reader: Some(reader), batches: 0, rows: 0 });
        Ok(Self { name: name.into(), binding, manifest, state })
    }

    /// What the records are.
    pub fn kind(&self) -> RecordKind {
        self.binding.kind()
    }

    /// Which columns are read, and which are not.
    pub fn reading(&self) -> &Reading {
        self.binding.reading()
    }

    /// The next record batch, with the number of its first row.
    fn next_batch(&self) -> Result<Option<(u64, RecordBatch)>> {
        // Nothing here panics while the lock is held; if it did, the reader would notice that it is inside a message.
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let State { reader: slot, batches, rows } = &mut *state;
        let Some(reader) = slot else { return Ok(None) };
        let before = reader.get_ref().bytes;
        let outcome = unless_damaged(|| reader.next().transpose()).transpose();
        let (read, ended) = (reader.get_ref().bytes - before, reader.get_ref().ended);
        let place = format!("{}: record batch {batches}, after row {rows}", self.name);
        let cut_off = || Error::format(format!("{place}: the stream is cut off: did its producer fail?"));
        let failure = match outcome {
            // Whole messages are multiples of 8 bytes; the reader takes a few bytes of another one for an end.
            None if ended && !read.is_multiple_of(4) => Some(cut_off()),
            None => None,
            // A column of a batch takes at least a bit a row, so a lying row count does not make us allocate.
            Some(Ok(batch)) if batch.num_rows() as u64 > 8 * read => {
                let rows = batch.num_rows();
                Some(Error::format(format!("{place}: {rows} rows in {read} bytes: the stream is damaged")))
            }
            Some(Ok(batch)) => {
                let first = *rows;
                *batches += 1;
                *rows += batch.num_rows() as u64;
                return Ok(Some((first, batch)));
            }
            Some(Err(ArrowError::IoError(_, e))) if e.kind() != ErrorKind::UnexpectedEof => Some(Error::io(&place, &e)),
            Some(Err(_)) if ended => Some(cut_off()),
            Some(Err(error)) => Some(Error::format(format!("{place}: {error}"))),
        };
        *slot = None;
        failure.map_or(Ok(None), Err)
    }
}

/// Refuses what is not a stream before the reader takes its first bytes for a length.
fn check_head(head: &[u8]) -> Result<()> {
    if head.is_empty() {
        return Err(Error::format(
            "ended before an Arrow IPC stream began: pipe one in, for instance from pyarrow.ipc.new_stream",
        ));
    }
    if head == FILE_MAGIC {
        return Err(Error::format(
            "is an Arrow IPC file, not a stream: write it with pyarrow.ipc.new_stream instead of new_file",
        ));
    }
    if !head.starts_with(CONTINUATION_MARKER) {
        return Err(Error::format(
            "does not begin like an Arrow IPC stream: write one, for instance with pyarrow.ipc.new_stream",
        ));
    }
    Ok(())
}

/// The `arrow` crate panics on some damaged messages, such as one with a buffer outside it: an error like any other. What
/// was read from is not used again after an error, so it does not matter in what state that left it.
fn unless_damaged<T>(read: impl FnOnce() -> std::result::Result<T, ArrowError>) -> std::result::Result<T, ArrowError> {
    let damaged = |_| Err(ArrowError::IpcError("its lengths contradict each other: the stream is damaged".into()));
    catch_unwind(AssertUnwindSafe(read)).unwrap_or_else(damaged)
}

impl LiveSource for ArrowStream {
    fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    fn next(&self) -> Result<Option<Piece>> {
        while let Some((first, batch)) = self.next_batch()? {
            if batch.num_rows() == 0 {
                continue;
            }
            let place = |error: Error| error.at(format_args!("{}: rows from {first} on", self.name));
            let (records, bad) = self.binding.records(&batch).map_err(place)?;
            return Ok(Some(Piece { file: self.name.clone(), positions: Positions::Rows { first }, records, bad }));
        }
        Ok(None)
    }
}

impl std::fmt::Debug for ArrowStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ArrowStream").field("name", &self.name).field("binding", &self.binding).finish_non_exhaustive()
    }
}

/// A reader that remembers how far it came.
struct Watched {
    inner: std::io::Chain<Cursor<Vec<u8>>, BufReader<Box<dyn Read + Send>>>,
    /// Bytes read.
    bytes: u64,
    /// Whether there are no more.
    ended: bool,
}

impl Read for Watched {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.bytes += read as u64;
        self.ended |= read == 0 && !buffer.is_empty();
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{ArrayRef, DictionaryArray, StringArray, UInt8Array, UInt16Array};
    use arrow::datatypes::{Int8Type, Schema};
    use arrow::ipc::writer::StreamWriter;
    use proptest::prelude::*;

    use super::*;
    use crate::ErrorKind;
    use crate::data::Column;
    use crate::source::{Lists, Records};

    /// A stream of batches of two columns of numbers, and where each message ends in it (the schema first).
    fn numbers(batches: &[Vec<u16>]) -> (Vec<u8>, Vec<usize>) {
        let batch = |values: &Vec<u16>| {
            let first: ArrayRef = Arc::new(UInt16Array::from(values.clone()));
            let second: ArrayRef = Arc::new(UInt8Array::from_iter(values.iter().map(|v| (v % 7 != 0).then_some(5))));
            RecordBatch::try_from_iter_with_nullable([("a", first, false), ("b", second, true)]).unwrap()
        };
        let schema = batch(&vec![]).schema();
        let mut writer = StreamWriter::try_new(Vec::new(), &schema).unwrap();
        let mut ends = vec![writer.get_ref().len()];
        for values in batches {
            writer.write(&batch(values)).unwrap();
            ends.push(writer.get_ref().len());
        }
        (writer.into_inner().unwrap(), ends)
    }

    fn open(bytes: &[u8], columns: &Columns) -> Result<ArrowStream> {
        ArrowStream::new("standard input", Box::new(Cursor::new(bytes.to_vec())), columns)
    }

    fn pieces(bytes: &[u8]) -> Result<Vec<Piece>> {
        let stream = open(bytes, &Columns::Auto)?;
        std::iter::from_fn(|| stream.next().transpose()).collect()
    }

    #[test]
    fn every_batch_is_a_piece_and_rows_count_from_the_beginning() {
        let (bytes, _) = numbers(&[vec![1, 2, 7], vec![], vec![300]]);
        let pieces = pieces(&bytes).unwrap();
        let expected = |values: Vec<u16>, missing: Option<Vec<bool>>| {
            let ends = (1..=values.len() / 2).map(|row| 2 * row).collect();
            Records::Lists(Lists { values: Column::U16(values), ends, missing })
        };
        assert_eq!(pieces.len(), 2);
        assert_eq!(pieces[0].positions, Positions::Rows { first: 0 });
        let mask = vec![false, false, false, false, false, true];
        assert_eq!(pieces[0].records, expected(vec![1, 5, 2, 5, 7, 0], Some(mask)));
        assert_eq!(pieces[1].positions, Positions::Rows { first: 3 });
        assert_eq!(pieces[1].records, expected(vec![300, 5], None));
        assert_eq!(&*pieces[1].file, "standard input");
    }

    #[test]
    fn texts_come_through_dictionaries_that_travel_between_batches() {
        let words: DictionaryArray<Int8Type> = vec!["anemone", "coral", "anemone"].into_iter().collect();
        let plain = StringArray::from(vec!["x", "y", "z"]);
        let columns: [(&str, ArrayRef); 2] = [("words", Arc::new(words)), ("plain", Arc::new(plain))];
        let batch = RecordBatch::try_from_iter(columns).unwrap();
        let mut writer = StreamWriter::try_new(Vec::new(), &batch.schema()).unwrap();
        writer.write(&batch).unwrap();
        let bytes = writer.into_inner().unwrap();
        let stream = open(&bytes, &Columns::One("words".into())).unwrap();
        assert_eq!(stream.kind(), RecordKind::Text);
        let Records::Blobs(blobs) = stream.next().unwrap().unwrap().records else { panic!("texts are blobs") };
        assert_eq!([0, 1, 2].map(|record| blobs.get(record)), [&b"anemone"[..], b"coral", b"anemone"]);
        assert_eq!(stream.next().unwrap(), None);
        let error = open(&bytes, &Columns::One("word".into())).unwrap_err();
        assert!(error.to_string().starts_with("standard input: no column `word`"), "{error}");
    }

    #[test]
    fn a_stream_cut_off_anywhere_inside_a_message_is_an_error_with_its_number() {
        let (bytes, ends) = numbers(&[vec![1, 2, 3], vec![4, 5]]);
        for length in 1..bytes.len() {
            let cut = pieces(&bytes[..length]);
            if ends.contains(&length) {
                let whole = ends.iter().filter(|&&end| end <= length).count() - 1;
                assert_eq!(cut.unwrap().len(), whole, "{length} bytes");
                continue;
            }
            let error = cut.expect_err(&format!("{length} of {} bytes", bytes.len()));
            assert_eq!(error.kind(), ErrorKind::Format, "{error}");
            if length > ends[1] {
                let place =
                    if length < ends[2] { "record batch 1, after row 3" } else { "record batch 2, after row 5" };
                assert!(
                    error.to_string().contains(place) && error.to_string().contains("cut off"),
                    "{length}: {error}"
                );
            }
        }
    }

    #[test]
    fn what_is_no_stream_is_refused_before_it_is_read() {
        for (bytes, word) in [
            (&b""[..], "standard input: ended before an Arrow IPC stream began: pipe one in"),
            (b"ARROW1\0\0rest", "is an Arrow IPC file, not a stream"),
            (b"{\"text\": \"hello\"}\n", "does not begin like an Arrow IPC stream"),
            (b"\xff\xff\xff\xff", "no schema"),
            (b"\xff\xff\xff\xff\0\0\0\0", "no schema"),
            (b"\xff\xff\xff\xff\xff\xff\xff\x7f\0\0", "no schema"),
        ] {
            let error = open(bytes, &Columns::Auto).unwrap_err();
            assert!(error.kind() == ErrorKind::Format && error.to_string().contains(word), "{error} should say {word}");
        }
    }

    #[test]
    fn a_failing_pipe_is_an_io_error_and_the_end() {
        struct Fails;
        impl Read for Fails {
            fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
                Err(std::io::Error::other("the pipe broke"))
            }
        }
        let (bytes, ends) = numbers(&[vec![1, 2, 3]]);
        let reader = Cursor::new(bytes[..ends[0] + 30].to_vec()).chain(Fails);
        let stream = ArrowStream::new("standard input", Box::new(reader), &Columns::Auto).unwrap();
        let error = stream.next().unwrap_err();
        assert!(error.kind() == ErrorKind::Io && error.to_string().contains("the pipe broke"), "{error}");
        assert_eq!(stream.next().unwrap(), None);
        assert_eq!(ArrowStream::new("x", Box::new(Fails), &Columns::Auto).unwrap_err().kind(), ErrorKind::Io);
    }

    #[test]
    fn the_manifest_is_that_of_the_columns_read() {
        let (bytes, _) = numbers(&[vec![1]]);
        let digest = |columns: &Columns| open(&bytes, columns).unwrap().manifest().digest.clone();
        assert_eq!(digest(&Columns::Auto), digest(&Columns::Many(vec!["a".into(), "b".into()])));
        assert_ne!(digest(&Columns::Auto), digest(&Columns::One("a".into())));
        assert_eq!(open(&bytes, &Columns::Auto).unwrap().manifest().kind, "arrow-stream");
        let empty = StreamWriter::try_new(Vec::new(), &Schema::empty()).unwrap().into_inner().unwrap();
        assert!(open(&empty, &Columns::Auto).unwrap_err().to_string().contains("there are none"));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]

        #[test]
        fn no_damage_makes_it_panic_or_deliver_more_rows(
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        ) {
            let (mut bytes, _) = numbers(&[vec![1, 2, 3], vec![4, 5]]);
            changes.iter().for_each(|(at, byte)| {
                let at = at.index(bytes.len());
                bytes[at] = *byte;
            });
            // A damaged count may promise rows in the padding of a buffer, 64 bytes each, but not more.
            if let Ok(pieces) = pieces(&bytes) {
                prop_assert!(pieces.iter().map(Piece::num_records).sum::<usize>() <= 64);
            }
        }
    }
}
