//! What messages hold: pieces of records, each with the offset of its message.
//!
//! A message that is not as expected is a bad record at its offset, and so is one of another schema than the first. A
//! message without a value says that a key was deleted (compacted topics) and holds no record.

use std::sync::Arc;

use super::Message;
use super::spec::MessageFormat;
use crate::data::Values;
use crate::error::{Error, Result};
#[cfg(feature = "parquet")]
use crate::source::LiveSource as _;
#[cfg(feature = "parquet")]
use crate::source::arrow_stream::ArrowStream;
use crate::source::json_records::JsonShape;
use crate::source::token_width::TokenWidth;
use crate::source::{Arrived, Blobs, Columns, Lists, Piece, Positions, ReadLimits, Reading, RecordKind, Records};

/// How messages become records.
#[derive(Debug)]
pub(super) enum Meaning {
    Json(JsonShape),
    Text,
    /// Ids of that width; so many in a message, if messages are rows.
    Ids(TokenWidth, Option<usize>),
    /// Streams of these columns.
    #[cfg(feature = "parquet")]
    Arrow {
        columns: Columns,
        kind: RecordKind,
        reading: Reading,
    },
}

impl Meaning {
    /// Returns true if messages have to be looked at to know what they mean.
    pub fn needs_messages(format: MessageFormat, are_rows: bool) -> bool {
        match format {
            MessageFormat::Json | MessageFormat::Arrow => true,
            MessageFormat::Ids => are_rows,
            MessageFormat::Text => false,
        }
    }

    /// What messages mean, by the first of them. `are_rows`: each message of ids is a row.
    pub fn find(
        format: MessageFormat,
        first: &[Message],
        columns: &Columns,
        width: TokenWidth,
        are_rows: bool,
        limits: &ReadLimits,
    ) -> Result<Self> {
        let values: Vec<&[u8]> = first.iter().filter_map(|message| message.payload.as_deref()).collect();
        match format {
            MessageFormat::Json => JsonShape::find(&values, columns).map(Self::Json),
            MessageFormat::Text => Ok(Self::Text),
            MessageFormat::Ids if are_rows => {
                let row = values.iter().map(|value| value.len() / width.bytes()).find(|&row| row > 0);
                Ok(Self::Ids(width, Some(row.ok_or_else(|| Error::data("the first messages hold no ids"))?)))
            }
            MessageFormat::Ids => Ok(Self::Ids(width, None)),
            #[cfg(not(feature = "parquet"))]
            MessageFormat::Arrow => {
                let _ = limits;
                Err(Error::not_built("source.kafka.value: arrow", "parquet"))
            }
            #[cfg(feature = "parquet")]
            MessageFormat::Arrow => {
                // The first that is one decides; what the others are worth is the policy's business.
                let mut trouble = Error::data("the first messages have no value");
                for message in first.iter().filter_map(|message| message.payload.clone()) {
                    match ArrowStream::new(
                        "the first message",
                        Box::new(std::io::Cursor::new(message)),
                        columns,
                        limits,
                    ) {
                        Ok(stream) => {
                            let (kind, reading) = (stream.kind(), stream.reading().clone());
                            return Ok(Self::Arrow { columns: columns.clone(), kind, reading });
                        }
                        Err(error) => trouble = error,
                    }
                }
                Err(trouble)
            }
        }
    }

    /// What the records are.
    pub fn kind(&self) -> RecordKind {
        match self {
            Self::Json(shape) => shape.kind(),
            Self::Text => RecordKind::Text,
            Self::Ids(_, row) => RecordKind::Lists { width: *row, reals: false },
            #[cfg(feature = "parquet")]
            Self::Arrow { kind, .. } => *kind,
        }
    }

    /// Which columns are read, where messages have columns.
    pub fn reading(&self) -> Option<Reading> {
        let reading = match self {
            Self::Json(shape) => shape.reading(),
            Self::Text | Self::Ids(..) => return None,
            #[cfg(feature = "parquet")]
            Self::Arrow { reading, .. } => reading.clone(),
        };
        (!reading.read.is_empty()).then_some(reading)
    }

    /// What decides which records there are, for the manifest.
    pub fn identity(&self) -> String {
        match self {
            Self::Json(shape) => format!("json {}", shape.identity()),
            Self::Text => "text".into(),
            Self::Ids(width, _) => format!("ids {}", width.name()),
            #[cfg(feature = "parquet")]
            Self::Arrow { reading, .. } => {
                format!("arrow {:?}", reading.read.iter().map(|column| &column.name).collect::<Vec<_>>())
            }
        }
    }

    /// The records of some messages of a partition, which messages call `file`.
    pub fn arrivals(&self, file: &Arc<str>, messages: Vec<Message>, limits: &ReadLimits) -> Vec<Arrived> {
        let whole = messages.into_iter().filter_map(|message| Some((message.offset, message.payload?)));
        let checked = whole.map(|(offset, value)| (offset, limits.check_record(value.len() as u64).map(|()| value)));
        match self {
            Self::Json(shape) => {
                let (mut records, mut offsets) = (shape.records(), Vec::new());
                for (offset, value) in checked {
                    offsets.push(offset as u64);
                    match value {
                        Ok(value) => records.push(&value),
                        Err(reason) => records.push_bad(reason),
                    }
                }
                let (records, bad) = records.finish();
                in_piece(file, offsets, records, bad)
            }
            Self::Text => {
                let (mut blobs, mut offsets, mut bad) = (Blobs::default(), Vec::new(), Vec::new());
                for (offset, value) in checked {
                    let text = value.and_then(|value| String::from_utf8(value).map_err(|_| "is not UTF-8".to_string()));
                    blobs.push(text.as_deref().unwrap_or_default().as_bytes());
                    bad.extend(text.err().map(|reason| (offsets.len(), reason)));
                    offsets.push(offset as u64);
                }
                in_piece(file, offsets, Records::Blobs(blobs), bad)
            }
            Self::Ids(width, row) => {
                let (mut ids, mut ends, mut offsets, mut bad) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
                for (offset, value) in checked {
                    match value.and_then(|value| check_ids(value, *width, *row)) {
                        Ok(value) => ids.extend(value),
                        Err(reason) => bad.push((offsets.len(), reason)),
                    }
                    ends.push(ids.len() / width.bytes());
                    offsets.push(offset as u64);
                }
                let values: Values = width.column_from_le_bytes(&ids);
                in_piece(file, offsets, Records::Lists(Lists { values, ends, missing: None }), bad)
            }
            #[cfg(feature = "parquet")]
            Self::Arrow { columns, kind, reading } => checked
                .flat_map(|(offset, value)| {
                    let value = value.map_err(Error::data);
                    let pieces =
                        value.and_then(|value| arrow_pieces(file, offset, value, (columns, *kind, reading), limits));
                    pieces.unwrap_or_else(|error| {
                        vec![Arrived::Damaged(
                            Error::data(error.to_string()).at(format_args!("{file}: offset {offset}")),
                        )]
                    })
                })
                .collect(),
        }
    }
}

fn in_piece(file: &Arc<str>, offsets: Vec<u64>, records: Records, bad: Vec<(usize, String)>) -> Vec<Arrived> {
    if offsets.is_empty() {
        return Vec::new();
    }
    vec![Arrived::Piece(Piece { file: file.clone(), positions: Positions::Offsets(offsets), records, bad })]
}

fn check_ids(value: Vec<u8>, width: TokenWidth, row: Option<usize>) -> std::result::Result<Vec<u8>, String> {
    let (bytes, width) = (value.len(), width.bytes());
    match row {
        _ if bytes % width != 0 => Err(format!("{bytes} bytes are not whole ids of {width} bytes")),
        Some(row) if bytes != row * width => Err(format!("{} ids where a row has {row}", bytes / width)),
        _ => Ok(value),
    }
}

/// All rows of a message that is an Arrow stream, or none of them.
#[cfg(feature = "parquet")]
fn arrow_pieces(
    file: &Arc<str>,
    offset: i64,
    value: Vec<u8>,
    (columns, kind, reading): (&Columns, RecordKind, &Reading),
    limits: &ReadLimits,
) -> Result<Vec<Arrived>> {
    let stream = ArrowStream::new("the message", Box::new(std::io::Cursor::new(value)), columns, limits)?;
    let names = |reading: &Reading| reading.read.iter().map(|column| column.name.clone()).collect::<Vec<_>>();
    if stream.kind() != kind || names(stream.reading()) != names(reading) {
        return Err(Error::data("the schema is another one than that of the first message"));
    }
    let mut reader = Arc::new(stream).open(None)?;
    let mut pieces = Vec::new();
    while let Some(arrived) = reader.next(limits)? {
        if let Arrived::Piece(piece) = arrived {
            let positions = Positions::Offsets(vec![offset as u64; piece.num_records()]);
            pieces.push(Arrived::Piece(Piece { file: file.clone(), positions, ..piece }));
        }
    }
    Ok(pieces)
}
