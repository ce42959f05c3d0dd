//! Arrow IPC streams, as any producer can pipe into standard input: a `LiveSource`.
//!
//! The schema comes first and decides, with [`Columns`], what the records are; then each record batch is cut into
//! pieces, and rows are counted from the beginning. Nothing can be read again: after a crash the producer decides what
//! comes next.
//!
//! A stream that stops inside a message is cut off, and an error. One that stops between two messages is complete even
//! without the end marker, because the format allows it; watch the producer's exit status (`set -o pipefail`).
//!
//! Lengths are checked in `arrow_messages` before the `arrow` crate sees them.

use std::collections::HashMap;
use std::io::{BufReader, Cursor, Read};
use std::sync::{Arc, Mutex, PoisonError};

use arrow::array::{ArrayRef, RecordBatch};
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use arrow::ipc::MessageHeader;
use arrow::ipc::convert::try_fb_to_schema;
use arrow::ipc::reader::{read_dictionary, read_record_batch};

use super::arrow_messages::{CONTINUATION_MARKER, Message, Messages, Trouble};
use super::binding::Binding;
use super::columns::{Columns, Reading, RecordKind};
use super::cuts::Cuts;
use super::{Arrived, LiveReader, LiveSource, Manifest, Piece, Positions, ReadLimits};
use crate::caught::quietly;
use crate::data::Position;
use crate::error::{Error, Result};

/// What the other format, a file with an index at its end, begins with.
const FILE_MAGIC: &[u8] = b"ARROW1";

/// Record batches from a stream.
pub struct ArrowStream {
    name: Arc<str>,
    binding: Binding,
    manifest: Manifest,
    batches: Mutex<Batches>,
}

/// The record batches of a stream, with all columns, and how far they have been read.
pub(super) struct Batches {
    name: Arc<str>,
    schema: SchemaRef,
    /// `None` after the end, or after an error after which reading cannot continue.
    messages: Option<Messages>,
    /// What the batches refer to, by its number.
    dictionaries: HashMap<i64, ArrayRef>,
    batches: u64,
    rows: u64,
}

impl ArrowStream {
    /// Reads the schema and finds the columns in it. Waits until the producer has sent it. Messages call the stream
    /// `name`.
    pub fn new(name: &str, read: Box<dyn Read + Send>, columns: &Columns, limits: &ReadLimits) -> Result<Self> {
        let batches = Batches::begin(name, read, limits)?;
        let binding = Binding::new(&batches.schema, columns).map_err(|error| error.at(name))?;
        // Of the columns that are read: others may come and go.
        let options = format!("{:?} {:?}", binding.names(), binding.kind());
        let manifest = Manifest::new("arrow-stream", Vec::new(), &options);
        Ok(Self { name: name.into(), binding, manifest, batches: Mutex::new(batches) })
    }

    /// What the records are.
    pub fn kind(&self) -> RecordKind {
        self.binding.kind()
    }

    /// Which columns are read, and which are not.
    pub fn reading(&self) -> &Reading {
        self.binding.reading()
    }
}

impl Batches {
    /// Reads the schema. Waits until the producer has sent it.
    pub(super) fn begin(name: &str, mut read: Box<dyn Read + Send>, limits: &ReadLimits) -> Result<Self> {
        let mut head = Vec::new();
        read.by_ref().take(FILE_MAGIC.len() as u64).read_to_end(&mut head).map_err(|e| Error::io(name, &e))?;
        check_head(&head).map_err(|error| error.at(name))?;
        let mut messages = Messages::new(Box::new(Cursor::new(head).chain(BufReader::new(read))));
        let no_schema = |why: &str| Error::format(format!("{name}: no schema of an Arrow IPC stream: {why}"));
        let first = messages.next(limits).map_err(|trouble| match trouble {
            Trouble::Failed(e) => Error::io(name, &e),
            Trouble::CutOff => no_schema("the stream is cut off"),
            Trouble::Refused(why) => no_schema(&why),
        })?;
        let first = first.ok_or_else(|| no_schema("the stream has ended"))?;
        let schema = unless_damaged(|| read_schema(&first)).map_err(|error| no_schema(&error.to_string()))?;
        let (dictionaries, messages) = (HashMap::new(), Some(messages));
        Ok(Self { name: name.into(), schema, messages, dictionaries, batches: 0, rows: 0 })
    }

    /// The columns.
    pub(super) fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// The next record batch that has rows.
    pub(super) fn next(&mut self, limits: &ReadLimits) -> Result<Option<RecordBatch>> {
        let Some(mut messages) = self.messages.take() else { return Ok(None) };
        loop {
            let place = || format!("{}: record batch {}, after row {}", self.name, self.batches, self.rows);
            let message = messages.next(limits).map_err(|trouble| match trouble {
                Trouble::Failed(e) => Error::io(&place(), &e),
                Trouble::CutOff => Error::format("the stream is cut off: did its producer fail?").at(place()),
                Trouble::Refused(why) => Error::format(why).at(place()),
            })?;
            let Some(message) = message else { return Ok(None) };
            let (schema, dictionaries) = (&self.schema, &mut self.dictionaries);
            let read = unless_damaged(|| read_message(&message, schema, dictionaries));
            let place = || format!("{}: record batch {}, after row {}", self.name, self.batches, self.rows);
            if let Some(batch) = read.map_err(|error| Error::format(error.to_string()).at(place()))? {
                self.batches += 1;
                if batch.num_rows() > 0 {
                    self.rows += batch.num_rows() as u64;
                    self.messages = Some(messages);
                    return Ok(Some(batch));
                }
            }
        }
    }
}

/// The rows of a message, if it has any; a dictionary is kept for the rows to come.
fn read_message(
    message: &Message,
    schema: &SchemaRef,
    dictionaries: &mut HashMap<i64, ArrayRef>,
) -> std::result::Result<Option<RecordBatch>, ArrowError> {
    let (metadata, body) = (parsed(message)?, message.body());
    let version = metadata.version();
    if let Some(batch) = metadata.header_as_record_batch() {
        return read_record_batch(&body, batch, schema.clone(), dictionaries, None, &version).map(Some);
    }
    if let Some(dictionary) = metadata.header_as_dictionary_batch() {
        return read_dictionary(&body, dictionary, schema, dictionaries, &version).map(|()| None);
    }
    match metadata.header_type() {
        MessageHeader::NONE => Ok(None),
        MessageHeader::Schema => Err(ArrowError::IpcError("a second schema".into())),
        other => Err(ArrowError::IpcError(format!("a message of a kind that holds no rows: {other:?}"))),
    }
}

fn read_schema(message: &Message) -> std::result::Result<SchemaRef, ArrowError> {
    let metadata = parsed(message)?;
    let schema = metadata.header_as_schema();
    let schema = schema.ok_or_else(|| ArrowError::IpcError("its first message is another one".into()))?;
    try_fb_to_schema(schema).map(Arc::new)
}

/// The metadata of a message that was checked, so that this succeeds.
fn parsed(message: &Message) -> std::result::Result<arrow::ipc::Message<'_>, ArrowError> {
    message.metadata().map_err(|trouble| ArrowError::IpcError(format!("{trouble:?}")))
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
    if !head.starts_with(&CONTINUATION_MARKER) {
        return Err(Error::format(
            "does not begin like an Arrow IPC stream: write one, for instance with pyarrow.ipc.new_stream",
        ));
    }
    Ok(())
}

/// The `arrow` crate panics on some damaged messages, such as one with a dictionary that is not there: an error like
/// any other. What was read from is not used again after an error, so it does not matter in what state that left it.
fn unless_damaged<T>(read: impl FnOnce() -> std::result::Result<T, ArrowError>) -> std::result::Result<T, ArrowError> {
    let damaged = |_| Err(ArrowError::IpcError("its parts contradict each other: the stream is damaged".into()));
    quietly(read).unwrap_or_else(damaged)
}

impl LiveSource for ArrowStream {
    fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    fn can_go_back(&self) -> bool {
        false
    }

    fn open(self: Arc<Self>, _: Option<&Position>) -> Result<Box<dyn LiveReader>> {
        Ok(Box::new(ArrowReader { stream: self, current: None, is_over: false }))
    }
}

/// Reads a stream, a record batch a window. There is one at a time: what one has read, no other sees.
struct ArrowReader {
    stream: Arc<ArrowStream>,
    /// The batch that is being delivered, and the number of its first row.
    current: Option<(u64, Cuts)>,
    /// After the end, or after an error.
    is_over: bool,
}

impl LiveReader for ArrowReader {
    fn next(&mut self, limits: &ReadLimits) -> Result<Option<Arrived>> {
        let stream = &self.stream;
        let Some((first, cuts)) = &mut self.current else {
            if self.is_over {
                return Ok(None);
            }
            self.is_over = true; // unless there is a batch
            // Nothing here panics while the lock is held; if it did, there would be no messages any more.
            let mut batches = stream.batches.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(batch) = batches.next(limits)? else { return Ok(None) };
            self.is_over = false;
            let first = batches.rows - batch.num_rows() as u64;
            self.current = Some((first, Cuts::new(batch)));
            return Ok(Some(Arrived::WindowStart(rows_so_far(first)?)));
        };
        let Some(cut) = cuts.next(&stream.binding, limits) else {
            let end = rows_so_far(*first + cuts.num_rows() as u64)?;
            self.current = None;
            return Ok(Some(Arrived::WindowEnd(end)));
        };
        let place = |error: Error| error.at(format_args!("{}: rows from {first} on", stream.name));
        let (rows, records, bad) = cut.map_err(place)?;
        let positions = Positions::Rows { first: *first + rows.start as u64 };
        Ok(Some(Arrived::Piece(Piece { file: stream.name.clone(), positions, records, bad })))
    }
}

/// What is known of a place in a pipe: it tells people how far it came.
fn rows_so_far(rows: u64) -> Result<Position> {
    Position::new(&serde_json::json!({ "rows": rows }))
}

impl std::fmt::Debug for ArrowStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ArrowStream").field("name", &self.name).field("binding", &self.binding).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{ArrayRef, DictionaryArray, StringArray, UInt8Array, UInt16Array};
    use arrow::datatypes::{Int8Type, Schema};
    use arrow::ipc::CompressionType;
    use arrow::ipc::writer::{IpcWriteOptions, StreamWriter};
    use proptest::prelude::*;

    use super::*;
    use crate::ErrorKind;
    use crate::data::Values;
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
        ArrowStream::new("standard input", Box::new(Cursor::new(bytes.to_vec())), columns, &LIMITS)
    }

    const LIMITS: ReadLimits = ReadLimits { piece_bytes: 1 << 20, part_bytes: 1 << 20, record_bytes: 1 << 18 };

    fn reader(stream: ArrowStream) -> Box<dyn LiveReader> {
        Arc::new(stream).open(None).unwrap()
    }

    fn next_piece(reader: &mut dyn LiveReader) -> Result<Option<Piece>> {
        loop {
            match reader.next(&LIMITS)? {
                Some(Arrived::Piece(piece)) => return Ok(Some(piece)),
                Some(_) => {}
                None => return Ok(None),
            }
        }
    }

    fn pieces(bytes: &[u8]) -> Result<Vec<Piece>> {
        let mut reader = reader(open(bytes, &Columns::Auto)?);
        std::iter::from_fn(|| next_piece(&mut *reader).transpose()).collect()
    }

    #[test]
    fn every_batch_is_a_piece_and_rows_count_from_the_beginning() {
        let (bytes, _) = numbers(&[vec![1, 2, 7], vec![], vec![300]]);
        let pieces = pieces(&bytes).unwrap();
        let expected = |values: Vec<u16>, missing: Option<Vec<bool>>| {
            let ends = (1..=values.len() / 2).map(|row| 2 * row).collect();
            Records::Lists(Lists { values: Values::U16(values), ends, missing })
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
        let mut reader = reader(stream);
        let Records::Blobs(blobs) = next_piece(&mut *reader).unwrap().unwrap().records else {
            panic!("texts are blobs")
        };
        assert_eq!([0, 1, 2].map(|record| blobs.get(record)), [&b"anemone"[..], b"coral", b"anemone"]);
        assert_eq!(next_piece(&mut *reader).unwrap(), None);
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
        let bytes = Cursor::new(bytes[..ends[0] + 30].to_vec()).chain(Fails);
        let stream = ArrowStream::new("standard input", Box::new(bytes), &Columns::Auto, &LIMITS).unwrap();
        let mut reader = reader(stream);
        let error = next_piece(&mut *reader).unwrap_err();
        assert!(error.kind() == ErrorKind::Io && error.to_string().contains("the pipe broke"), "{error}");
        assert_eq!(next_piece(&mut *reader).unwrap(), None);
        assert_eq!(ArrowStream::new("x", Box::new(Fails), &Columns::Auto, &LIMITS).unwrap_err().kind(), ErrorKind::Io);
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

    /// The same stream of numbers, compressed.
    fn compressed(batches: &[Vec<u16>], codec: CompressionType) -> Vec<u8> {
        let schema = Schema::new(vec![
            arrow::datatypes::Field::new("a", arrow::datatypes::DataType::UInt16, false),
            arrow::datatypes::Field::new("b", arrow::datatypes::DataType::UInt8, true),
        ]);
        let options = IpcWriteOptions::default().try_with_compression(Some(codec)).unwrap();
        let mut writer = StreamWriter::try_new_with_options(Vec::new(), &schema, options).unwrap();
        for values in batches {
            let first: ArrayRef = Arc::new(UInt16Array::from(values.clone()));
            let second: ArrayRef = Arc::new(UInt8Array::from_iter(values.iter().map(|v| (v % 7 != 0).then_some(5))));
            writer.write(&RecordBatch::try_new(schema.clone().into(), vec![first, second]).unwrap()).unwrap();
        }
        writer.into_inner().unwrap()
    }

    const CODECS: [CompressionType; 2] = [CompressionType::ZSTD, CompressionType::LZ4_FRAME];

    #[test]
    fn a_compressed_batch_may_have_many_rows_in_few_bytes_and_is_one_message_in_pieces() {
        for codec in CODECS {
            let bytes = compressed(&[vec![3; 100_000], vec![4; 3]], codec);
            assert!(bytes.len() < 10_000, "{}", bytes.len());
            let mut reader = reader(open(&bytes, &Columns::Auto).unwrap());
            let (mut rows, mut starts, mut ends) = (0, Vec::new(), Vec::new());
            while let Some(arrived) = reader.next(&LIMITS).unwrap() {
                match arrived {
                    Arrived::WindowStart(position) => starts.push(position),
                    Arrived::WindowEnd(position) => ends.push(position),
                    Arrived::Piece(piece) => {
                        assert_eq!(piece.positions, Positions::Rows { first: rows });
                        rows += piece.num_records() as u64;
                    }
                    other => panic!("{other:?}"),
                }
            }
            assert_eq!(starts, [0, 100_000].map(|rows| rows_so_far(rows).unwrap()));
            assert_eq!(ends, [100_000, 100_003].map(|rows| rows_so_far(rows).unwrap()));
        }
    }

    #[test]
    fn a_batch_that_decompresses_to_more_than_the_limit_is_refused() {
        for codec in CODECS {
            let error = pieces(&compressed(&[vec![1, 2], vec![3; 400_000]], codec)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Format, "{error}");
            let text = error.to_string();
            assert!(text.contains("record batch 1, after row 2: a message takes 2 MiB"), "{text}");
            assert!(text.contains("pipeline.memory"), "{text}");
        }
    }

    #[test]
    fn no_length_is_believed_wherever_it_stands() {
        for codec in CODECS {
            let bytes = compressed(&[vec![9; 5000], vec![4, 5]], codec);
            for at in (8..bytes.len() - 8).step_by(4) {
                for length in [1i64 << 40, i64::MAX, -2, i64::MIN, 1 << 31] {
                    let mut damaged = bytes.clone();
                    damaged[at..at + 8].copy_from_slice(&length.to_le_bytes());
                    if let Err(error) = pieces(&damaged) {
                        assert_ne!(error.kind(), ErrorKind::Io, "byte {at}: {error}");
                    }
                }
            }
        }
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

        #[test]
        fn no_damage_to_a_compressed_stream_ends_the_process_or_fails_as_a_disk_would(
            codec in prop::sample::select(CODECS.to_vec()),
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        ) {
            let mut bytes = compressed(&[(0..2000).map(|i| i % 50).collect(), vec![4, 5]], codec);
            changes.iter().for_each(|(at, byte)| {
                let at = at.index(bytes.len());
                bytes[at] = *byte;
            });
            match pieces(&bytes) {
                Ok(pieces) => prop_assert!(pieces.iter().map(Piece::num_records).sum::<usize>() <= 2100),
                Err(error) => prop_assert!(error.kind() != ErrorKind::Io, "{error}"),
            }
        }
    }
}
