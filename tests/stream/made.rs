//! Sources and decoders made up for the tests, small enough to print.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anemone::Result;
use anemone::batcher::BatchSpec;
use anemone::data::{Cursor, Digest, Item, Table, Values};
use anemone::decode::{BadRecord, Decoded, Decoder, Output, RowShape, ValueKind};
use anemone::pipeline::stream::{Stream, StreamOptions};
use anemone::source::{
    Blobs, Block, BlockSource, BoxFuture, Fetched, IndexedSource, Lists, Manifest, Piece, Positions, ReadLimits,
    Records, Source,
};

/// Blocks of records; a record is a few bytes.
pub struct MadeBlocks {
    manifest: Manifest,
    info: Vec<Block>,
    blocks: Vec<Vec<Vec<u8>>>,
    /// Records in a piece, so that pieces do not fall together with blocks.
    piece_records: usize,
}

impl MadeBlocks {
    pub fn source(blocks: Vec<Vec<Vec<u8>>>, piece_records: usize) -> Source {
        let info = blocks.iter().map(|records| {
            let bytes = records.iter().map(|r| r.len() as u64 + 1).sum();
            Block { bytes, fetch_bytes: bytes }
        });
        let info = info.collect();
        Source::Blocks(Arc::new(Self { manifest: Manifest::new("made", vec![], ""), info, blocks, piece_records }))
    }

    /// Blocks of these sizes whose records are numbered through, four bytes each.
    pub fn numbered(sizes: &[usize], piece_records: usize) -> Source {
        let mut next = 0u32;
        let mut record = |_| {
            next += 1;
            (next - 1).to_le_bytes().to_vec()
        };
        Self::source(sizes.iter().map(|&size| (0..size).map(&mut record).collect()).collect(), piece_records)
    }
}

impl BlockSource for MadeBlocks {
    fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    fn blocks(&self) -> &[Block] {
        &self.info
    }

    fn fetch(&self, block: usize, _: ReadLimits) -> BoxFuture<'_, Result<Fetched>> {
        let mut first = 0;
        let pieces: Vec<Result<Piece>> = self.blocks[block]
            .chunks(self.piece_records)
            .map(|records| {
                let mut blobs = Blobs::default();
                records.iter().for_each(|record| blobs.push(record));
                let positions = Positions::Rows { first };
                first += records.len() as u64;
                let file = format!("made-{block}").into();
                Ok(Piece { file, positions, records: Records::Blobs(blobs), bad: vec![] })
            })
            .collect();
        Box::pin(async move { Ok(Fetched { pieces: Box::new(pieces.into_iter()) }) })
    }
}

/// Rows by number: row i is `[i, i+1]`.
pub struct MadeRows {
    manifest: Manifest,
    num_rows: Option<u64>,
}

impl MadeRows {
    pub fn source(num_rows: Option<u64>) -> Source {
        Source::Indexed(Arc::new(Self { manifest: Manifest::new("made", vec![], ""), num_rows }))
    }
}

impl IndexedSource for MadeRows {
    fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    fn num_rows(&self) -> Option<u64> {
        self.num_rows
    }

    fn gather(&self, rows: &[u64]) -> Result<Piece> {
        let values = Values::U32(rows.iter().flat_map(|&row| [row as u32, row as u32 + 1]).collect());
        let ends = (1..=rows.len()).map(|row| 2 * row).collect();
        Ok(Piece {
            file: "made".into(),
            positions: Positions::RowNumbers(rows.to_vec()),
            records: Records::Lists(Lists { values, ends, missing: None }),
            bad: vec![],
        })
    }
}

/// What a made decoder makes of a record.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// One row of one variable: the record's number.
    Number,
    /// Tokens, one a byte, cut into rows of this many.
    Bytes(usize),
    /// Lists of two as they are, without every fifth.
    Pairs,
    /// Lists of two as they are, all of them.
    AllPairs,
}

/// Decodes made records, late and out of order if asked; refuses records that end with 255.
pub struct MadeDecoder {
    kind: Kind,
    shape: RowShape,
    pub jitter: bool,
}

impl MadeDecoder {
    pub fn shared(kind: Kind, jitter: bool) -> Arc<dyn Decoder> {
        let num_vars = match kind {
            Kind::Number => 1,
            Kind::Bytes(window) => window,
            Kind::Pairs | Kind::AllPairs => 2,
        };
        let values = ValueKind::Categories(if matches!(kind, Kind::Bytes(_)) { 256 } else { u32::MAX });
        Arc::new(Self { kind, shape: RowShape::of(num_vars, values), jitter })
    }
}

impl Decoder for MadeDecoder {
    fn shape(&self) -> &RowShape {
        &self.shape
    }

    fn identity(&self) -> String {
        format!("made {:?}", self.kind)
    }

    fn decode(&self, piece: &Piece) -> Result<Decoded> {
        let blobs = match &piece.records {
            Records::Lists(lists) => {
                let Values::U32(values) = &lists.values else { panic!("made rows are u32") };
                // Row 3 of every five is bad.
                let is_bad = |row: &[u32]| row[0] % 5 == 3 && !matches!(self.kind, Kind::AllPairs);
                let (bad, good): (Vec<_>, Vec<_>) = values.chunks(2).enumerate().partition(|(_, row)| is_bad(row));
                let good = good.into_iter().flat_map(|(_, row)| row.to_vec()).collect();
                let bad = bad.into_iter().map(|(record, _)| BadRecord::new(piece, record, "a bad row")).collect();
                let output = Output::Rows(Table::new(2, Values::U32(good))?);
                return Ok(Decoded { output, records: lists.ends.len() as u64, bad });
            }
            Records::Blobs(blobs) => blobs,
            Records::Cells(_) => panic!("nobody made a table"),
        };
        if self.jitter {
            // Later pieces are often faster, so that the order has to be restored.
            let hash = Digest::of(&blobs.bytes).as_bytes()[0];
            thread::sleep(Duration::from_micros(u64::from(hash) * 7));
        }
        let mut bad = vec![];
        let mut good = vec![];
        for record in 0..blobs.ends.len() {
            match blobs.get(record) {
                [.., 255] => bad.push(BadRecord::new(piece, record, "ends with 255")),
                bytes => good.push(bytes),
            }
        }
        let output = match self.kind {
            Kind::Bytes(_) => Output::Tokens(Values::U16(good.concat().into_iter().map(u16::from).collect())),
            _ => {
                let numbers = good.iter().map(|bytes| u32::from_le_bytes((*bytes).try_into().unwrap()));
                Output::Rows(Table::new(1, Values::U32(numbers.collect()))?)
            }
        };
        Ok(Decoded { output, records: blobs.ends.len() as u64, bad })
    }
}

/// An item as data: rows of a batch and its cursor, or the end of an epoch.
#[derive(Clone, Debug, PartialEq)]
pub enum Seen {
    Batch(Vec<Vec<u32>>, Cursor),
    EpochEnd(Cursor),
}

impl Seen {
    pub fn cursor(&self) -> &Cursor {
        match self {
            Self::Batch(_, end) => end,
            Self::EpochEnd(next) => next,
        }
    }

    pub fn rows(&self) -> &[Vec<u32>] {
        match self {
            Self::Batch(rows, _) => rows,
            Self::EpochEnd(_) => &[],
        }
    }
}

/// Everything a stream delivers, and the error that ended it, if one did.
pub fn run(
    source: &Source,
    decoder: &Arc<dyn Decoder>,
    batch: &BatchSpec,
    options: &StreamOptions,
    start: Cursor,
) -> (Vec<Seen>, Option<anemone::Error>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let mut stream = Stream::open(source, decoder, batch, options, start).unwrap();
        let mut seen = vec![];
        loop {
            match stream.next().await {
                Ok(Some(Item::Batch { batch, end })) => {
                    let row = |r| (0..batch.num_vars()).map(|v| batch.column(v).category(r).unwrap()).collect();
                    seen.push(Seen::Batch((0..batch.num_rows()).map(row).collect(), end));
                }
                Ok(Some(Item::EpochEnd { next })) => seen.push(Seen::EpochEnd(next)),
                Ok(None) => return (seen, None),
                Err(error) => return (seen, Some(error)),
            }
        }
    })
}
