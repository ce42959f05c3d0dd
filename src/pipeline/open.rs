//! What a pipeline names, opened: sources by their format, decoders by what the source delivers.
//!
//! Where the pipeline is silent the data decides, as far as it can only mean one thing: a column of lists is rows, a
//! column of image files images, columns of numbers are variables, and how many categories there are is counted over
//! the first rows. What was decided is said before anything is learned ([`Opened::reading`]). Opening reads headers and
//! at most these rows.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_channel::Sender;

use super::spec::{
    ColumnsSpec, Compared, DEFAULT_TOKENIZER, DEFAULT_WINDOW, DecodeKind, DecodeSpec, Format, GPT2_VOCAB, SourceSpec,
    TextRows, expand_path,
};
use super::table::{TableReport, open_table};
use crate::data::{TableSchema, Values};
#[cfg(feature = "images")]
use crate::decode::image::{Color, ImageDecoder, is_grey};
use crate::decode::rows::RowDecoder;
#[cfg(feature = "text")]
use crate::decode::text::TextDecoder;
use crate::decode::tokens::TokenDecoder;
use crate::decode::{Decoder, ValueKind};
use crate::detached::detached;
use crate::error::{Error, ErrorKind, Result};
use crate::source::ahead::Ahead;
#[cfg(feature = "parquet")]
use crate::source::arrow_stream::ArrowStream;
use crate::source::compressed_tokens::CompressedTokens;
use crate::source::csv::{CsvPipe, CsvSource};
use crate::source::follow::FollowedFile;
use crate::source::json_lines::JsonLines;
use crate::source::jsonl::JsonlSource;
use crate::source::kafka::spec::KafkaSpec;
#[cfg(feature = "kafka")]
use crate::source::kafka::spec::MessageFormat;
#[cfg(feature = "kafka")]
use crate::source::kafka::{Access, KafkaSource};
use crate::source::npy::NpyFiles;
#[cfg(feature = "parquet")]
use crate::source::parquet::ParquetSource;
use crate::source::store::{Shard, resolve};
use crate::source::synthetic::{Synthetic, SyntheticSpec};
use crate::source::token_ranges::TokenRanges;
use crate::source::token_width::TokenWidth;
use crate::source::tokens::TokenFiles;
use crate::source::watch::{FirstFiles, OpenFile, WatchOptions, Watched};
use crate::source::{
    BlockSource, BoxFuture, Columns, IndexedSource, Manifest, Piece, ReadLimits, Reading, RecordKind, Records, Source,
    Wanted,
};

/// Rows that are looked at to count categories.
const ROWS_TO_COUNT: usize = 20_000;

/// Images that are looked at for colours.
#[cfg(feature = "images")]
const IMAGES_TO_SEE: usize = 64;

/// The most categories that are taken from the data without being asked for.
const MOST_COUNTED: u32 = 1 << 20;

/// About how large a piece is that is only looked at.
const PIECE_BYTES: usize = 256 << 10;

/// A source with what is known of its records before any is read.
#[derive(Clone, Debug)]
pub struct Opened {
    /// Where records come from.
    pub source: Source,
    /// What they are.
    hint: Hint,
    /// Which columns of a table they come from.
    pub reading: Option<Reading>,
    /// Digests of all bytes of the files, if these are to be compared.
    pub digests: Vec<String>,
    /// The first file of a watched folder: it can be looked at before anything is taken.
    first_file: Option<Source>,
    /// How much of it may be in memory at once while it is looked at.
    limits: ReadLimits,
}

#[derive(Clone, Debug)]
enum Hint {
    /// As the schema says.
    Records(RecordKind),
    /// Rows of one window of a token file.
    TokenRows,
    /// Stretches of a token stream.
    TokenStream,
    /// Rows of an array of this shape.
    Array(Vec<usize>),
    /// Rows of synthetic data with so many categories.
    Synthetic { num_vars: usize, cats: u32 },
}

/// Opens a source for a run with so much memory. Token files are cut into rows of `decode.window`. Where the source
/// names no column, those of `like` are meant, if that is given.
pub async fn open_source(
    spec: &SourceSpec,
    decode: &DecodeSpec,
    memory: u64,
    like: Option<&Reading>,
) -> Result<Opened> {
    open_source_telling(spec, decode, memory, like, &async_channel::unbounded().0).await
}

/// Like [`open_source`]; says what it waits for, if it has to wait.
pub async fn open_source_telling(
    spec: &SourceSpec,
    decode: &DecodeSpec,
    memory: u64,
    like: Option<&Reading>,
    tell: &Sender<String>,
) -> Result<Opened> {
    let limits = ReadLimits::of_memory(PIECE_BYTES, memory);
    let mut first_file = None;
    let (source, hint, reading) = match spec.watch {
        true => {
            let (watched, first, (hint, reading)) = open_watched(spec, decode, like, tell).await?;
            first_file = Some(first);
            (watched, hint, reading)
        }
        false => open_hinted(spec, decode, limits, like).await?,
    };
    let mut digests = Vec::new();
    if spec.digest == Compared::Whole {
        for shard in resolve_files(spec).await? {
            digests.push(shard.digest().await?);
        }
    }
    Ok(Opened { source, hint, reading, digests, first_file, limits })
}

async fn resolve_files(spec: &SourceSpec) -> Result<Vec<Shard>> {
    resolve(&patterns(spec)?).await
}

fn patterns(spec: &SourceSpec) -> Result<Vec<String>> {
    spec.files.iter().map(|file| expand_path(file)).collect()
}

/// The first file of a watched folder that is there now, and how many there are.
pub async fn first_watched(spec: &SourceSpec) -> Result<(Shard, usize)> {
    FirstFiles::new(&patterns(spec)?, spec.settle())?.now().await
}

async fn open_hinted(
    spec: &SourceSpec,
    decode: &DecodeSpec,
    limits: ReadLimits,
    like: Option<&Reading>,
) -> Result<(Source, Hint, Option<Reading>)> {
    if let Some(synthetic) = &spec.synthetic {
        let hint = Hint::Synthetic { num_vars: synthetic.num_vars, cats: synthetic.cats };
        return Ok((Source::Indexed(Arc::new(Synthetic::new(synthetic)?)), hint, None));
    }
    if let Some(kafka) = &spec.kafka {
        return open_kafka(kafka, spec, decode, columns_of(spec, decode, like), limits).await;
    }
    let format = FileFormat::new(spec, decode, like)?;
    #[cfg(feature = "parquet")]
    if format.format == Format::Arrow {
        let columns = format.columns;
        let open = move || ArrowStream::new("standard input", Box::new(std::io::stdin()), &columns, &limits);
        let stream = detached("standard-input", open).await?; // blocks until somebody writes
        let (hint, reading) = (Hint::Records(stream.kind()), stream.reading().clone());
        return Ok((Source::Live(Arc::new(stream)), hint, Some(reading)));
    }
    if format.format == Format::Jsonl && spec.is_standard_input() {
        let columns = format.columns;
        let open = move || JsonLines::new("standard input", Box::new(std::io::stdin()), &columns, &limits);
        let lines = detached("standard-input", open).await?; // blocks until somebody writes
        let (hint, reading) = (Hint::Records(lines.kind()), lines.reading());
        return Ok((Source::Live(Arc::new(lines)), hint, reading));
    }
    if format.format == Format::Csv && spec.is_standard_input() {
        let (columns, delimiter) = (format.columns, format.delimiter);
        let open = move || CsvPipe::new("standard input", Box::new(std::io::stdin()), &columns, delimiter, &limits);
        let pipe = detached("standard-input", open).await?; // blocks until somebody writes
        let (hint, reading) = (Hint::Records(pipe.kind()), pipe.reading().clone());
        return Ok((Source::Live(Arc::new(pipe)), hint, Some(reading)));
    }
    if spec.follow {
        return open_followed(spec, decode, format.columns, format.width).await;
    }
    let shards = resolve_files(spec).await?;
    format.open(shards).await
}

/// Which columns are meant.
fn columns_of(spec: &SourceSpec, decode: &DecodeSpec, like: Option<&Reading>) -> Columns {
    if decode.kind == Some(DecodeKind::Table) {
        let of_schema = |schema: &TableSchema| schema.columns.iter().map(|column| column.name.clone()).collect();
        return match (&spec.column, &spec.columns[..], like) {
            (Some(name), ..) => Columns::Cells(vec![name.clone()]),
            (None, [], None) => Columns::Cells(decode.schema.as_ref().map_or_else(Vec::new, of_schema)),
            (None, [], Some(like)) => like.columns(&Columns::Cells(Vec::new())),
            (None, names, _) => Columns::Cells(names.to_vec()),
        };
    }
    match (&spec.column, &spec.columns[..], like) {
        (Some(name), ..) => Columns::One(name.clone()),
        (None, [], None) => match decode.kind {
            None => Columns::Auto,
            Some(DecodeKind::Text) => Columns::Only(Wanted::Text),
            Some(DecodeKind::Image) => Columns::Only(Wanted::Images),
            Some(DecodeKind::Rows) => Columns::Only(Wanted::Rows),
            Some(DecodeKind::Tokens) => Columns::Only(Wanted::Lists),
            Some(DecodeKind::Table) => unreachable!("decided above"),
        },
        (None, [], Some(like)) => like.columns(&Columns::Auto),
        (None, names, _) => Columns::Many(names.to_vec()),
    }
}

/// How files are read.
#[derive(Clone, Debug)]
struct FileFormat {
    format: Format,
    /// Of a table, or of JSON lines.
    columns: Columns,
    /// Of CSV.
    delimiter: Option<char>,
    /// Of a token.
    width: TokenWidth,
    /// Tokens in a row.
    window: usize,
}

impl FileFormat {
    fn new(spec: &SourceSpec, decode: &DecodeSpec, like: Option<&Reading>) -> Result<Self> {
        let columns = columns_of(spec, decode, like);
        let format = spec.format.ok_or_else(|| Error::option("files: say what to read"))?;
        #[cfg(not(feature = "parquet"))]
        match format {
            Format::Parquet => return Err(Error::not_built("files: Parquet", "parquet")),
            Format::Arrow => return Err(Error::not_built("format: Arrow", "parquet")),
            _ => {}
        }
        Ok(Self {
            format,
            columns,
            delimiter: spec.delimiter,
            width: spec.tokens.unwrap_or(TokenWidth::U16),
            window: decode.window.unwrap_or(DEFAULT_WINDOW),
        })
    }

    /// Opens files that are there.
    async fn open(&self, shards: Vec<Shard>) -> Result<(Source, Hint, Option<Reading>)> {
        Ok(match self.format {
            #[cfg(feature = "parquet")]
            Format::Parquet => {
                let source = ParquetSource::open(shards, &self.columns).await?;
                let (hint, reading) = (Hint::Records(source.column_kind()), source.reading().clone());
                (Source::Blocks(Arc::new(source)), hint, Some(reading))
            }
            Format::Jsonl => {
                let source = JsonlSource::open(shards, &self.columns).await?;
                let (hint, reading) = (Hint::Records(source.kind()), source.reading());
                (Source::Blocks(Arc::new(source)), hint, reading)
            }
            Format::Csv => {
                let source = CsvSource::open(shards, &self.columns, self.delimiter).await?;
                let (hint, reading) = (Hint::Records(source.kind()), source.reading().clone());
                (Source::Blocks(Arc::new(source)), hint, Some(reading))
            }
            Format::Tokens if shards.iter().all(is_compressed) => {
                let source = CompressedTokens::open(shards, self.width).await?;
                (Source::Blocks(Arc::new(source)), Hint::TokenStream, None)
            }
            Format::Tokens if shards.iter().any(is_compressed) => {
                return Err(Error::option("files: some token files are compressed and some are not; read them apart"));
            }
            Format::Tokens => {
                let source = TokenFiles::open(&local_paths(&shards)?, self.width, self.window)?;
                (Source::Indexed(Arc::new(source)), Hint::TokenRows, None)
            }
            Format::Npy => {
                let source = NpyFiles::open(&local_paths(&shards)?)?;
                let hint = Hint::Array(source.shape().to_vec());
                (Source::Indexed(Arc::new(source)), hint, None)
            }
            #[cfg(not(feature = "parquet"))]
            Format::Parquet => unreachable!("refused before"),
            Format::Arrow => unreachable!("opened or refused before"),
        })
    }

    /// Opens one file of a watched folder; `None` if there is nothing in it.
    async fn open_alone(&self, shard: Shard) -> Result<Option<(Source, Hint, Option<Reading>)>> {
        match self.format {
            Format::Jsonl | Format::Csv | Format::Tokens if shard.size() == 0 => Ok(None),
            // A row may begin in one file and end in the next, so these are one stream.
            Format::Tokens if !is_compressed(&shard) => {
                let source = TokenRanges::open(vec![shard], self.width).await?;
                Ok(Some((Source::Blocks(Arc::new(source)), Hint::TokenStream, None)))
            }
            _ => self.open(vec![shard]).await.map(Some),
        }
    }
}

/// The files of a watched folder, which are like the first.
struct WatchedFiles {
    format: FileFormat,
    like: Hint,
    has_reals: bool,
}

impl OpenFile for WatchedFiles {
    fn open(&self, shard: Shard) -> BoxFuture<'_, Result<Option<Source>>> {
        Box::pin(async move {
            let name = shard.name().clone();
            let Some((source, hint, _)) = self.format.open_alone(shard).await? else { return Ok(None) };
            let unlike = |expected: String, found: String| {
                Err(Error::data(format!("{name}: has {found} where the first file had {expected}")))
            };
            match (&self.like, &hint) {
                (Hint::Array(first), Hint::Array(shape)) if first != shape => {
                    return unlike(format!("rows of shape {first:?}"), format!("rows of shape {shape:?}"));
                }
                (Hint::Records(first), Hint::Records(kind)) if !first.holds(*kind) => {
                    return unlike(first.describe(), kind.describe());
                }
                _ if !self.has_reals && has_reals(&source, &hint)? => {
                    return unlike("categories".into(), "real numbers".into());
                }
                _ => {}
            }
            Ok(Some(source))
        })
    }
}

/// Returns true if the values of a file are real numbers.
fn has_reals(source: &Source, hint: &Hint) -> Result<bool> {
    match (source, hint) {
        (_, Hint::Records(RecordKind::Lists { reals, .. })) => Ok(*reals),
        (Source::Indexed(source), Hint::Array(_)) => {
            Ok(matches!(source.gather(&[0])?.records, Records::Lists(lists) if matches!(lists.values, Values::F32(_))))
        }
        _ => Ok(false),
    }
}

/// Opens a folder that grows, once its first file is whole: the source, and that file, which decides what its records
/// are. A file that cannot be read decides nothing; what it means for the run is seen when its turn comes.
async fn open_watched(
    spec: &SourceSpec,
    decode: &DecodeSpec,
    like: Option<&Reading>,
    tell: &Sender<String>,
) -> Result<(Source, Source, (Hint, Option<Reading>))> {
    let (mut format, patterns) = (FileFormat::new(spec, decode, like)?, patterns(spec)?);
    let mut files = FirstFiles::new(&patterns, spec.settle())?;
    let (first, hint, reading) = loop {
        match format.open_alone(files.next(tell).await?).await {
            Ok(Some(opened)) => break opened,
            Ok(None) => {}
            Err(error) if matches!(error.kind(), ErrorKind::Data | ErrorKind::Format) => {
                let _nobody_wonders = tell.try_send(format!("{error}: waiting for a first file that can be read"));
            }
            Err(error) => return Err(error),
        }
    };
    if let Some(reading) = &reading {
        format.columns = reading.columns(&format.columns);
    }
    let how = format!("{:?} {} {:?} {:?}", spec.files, format.format.name(), format.columns, format.width);
    let has_reals = has_reals(&first, &hint)?;
    let options = WatchOptions { settle: spec.settle(), on_gap: spec.on_gap };
    let watched =
        Watched::new(&patterns, options, Arc::new(WatchedFiles { format, like: hint.clone(), has_reals }), &how)?;
    Ok((Source::Live(Arc::new(watched)), first, (hint, reading)))
}

/// A file that is read as it is written.
async fn open_followed(
    spec: &SourceSpec,
    decode: &DecodeSpec,
    columns: Columns,
    width: TokenWidth,
) -> Result<(Source, Hint, Option<Reading>)> {
    let path = PathBuf::from(expand_path(spec.files.first().map_or("", String::as_str))?);
    let (window, on_gap, format) = (decode.window.unwrap_or(DEFAULT_WINDOW), spec.on_gap, spec.format);
    let open = move || match format {
        Some(Format::Tokens) => FollowedFile::tokens(&path, width, window, on_gap),
        _ => FollowedFile::json(&path, &columns, on_gap),
    };
    let file = detached("followed-file", open).await?; // blocks until there is a line
    let (hint, reading) = (file.kind().map_or(Hint::TokenRows, Hint::Records), file.reading());
    Ok((Source::Live(Arc::new(file)), hint, reading))
}

#[cfg(feature = "kafka")]
async fn open_kafka(
    kafka: &KafkaSpec,
    spec: &SourceSpec,
    decode: &DecodeSpec,
    columns: Columns,
    limits: ReadLimits,
) -> Result<(Source, Hint, Option<Reading>)> {
    let brokers: Vec<String> = kafka.brokers.iter().map(|broker| expand_path(broker)).collect::<Result<_>>()?;
    let option = |(name, value): (&String, &String)| match expand_path(value) {
        Ok(value) => Ok((name.clone(), value)),
        Err(error) => Err(error.at(format_args!("kafka.options: `{name}`"))),
    };
    let access =
        Access { brokers: brokers.join(","), options: kafka.options.iter().map(option).collect::<Result<_>>()? };
    let (kafka, width) = (kafka.clone(), spec.tokens.unwrap_or(TokenWidth::U16));
    let are_rows = decode.kind == Some(DecodeKind::Rows);
    let is_ids = kafka.value == MessageFormat::Ids;
    let open = move || {
        // Said at once: nothing else happens until a message comes.
        let tell = |text: &str| eprintln!("note: {text}");
        KafkaSource::open(&kafka, access, &columns, width, are_rows, limits, &tell).map_err(|e| e.at("kafka"))
    };
    let source = detached("kafka", open).await?; // blocks until brokers answer, and until there is a message
    let hint = if is_ids && !are_rows { Hint::TokenStream } else { Hint::Records(source.kind()) };
    let reading = source.reading();
    Ok((Source::Live(Arc::new(source)), hint, reading))
}

#[cfg(not(feature = "kafka"))]
async fn open_kafka(
    _: &KafkaSpec,
    _: &SourceSpec,
    _: &DecodeSpec,
    _: Columns,
    _: ReadLimits,
) -> Result<(Source, Hint, Option<Reading>)> {
    Err(Error::not_built("kafka: a topic", "kafka"))
}

fn is_compressed(shard: &Shard) -> bool {
    shard.name().to_ascii_lowercase().ends_with(".zst")
}

/// Files that are mapped into memory have to be on this machine.
fn local_paths(shards: &[Shard]) -> Result<Vec<PathBuf>> {
    let local = |shard: &Shard| {
        let path = shard.local_path().map(Path::to_path_buf);
        path.ok_or_else(|| Error::unsupported(format!("{}: can only be read from a local disk", shard.name())))
    };
    shards.iter().map(local).collect()
}

/// A decoder, and what was found out about what it decodes.
pub struct OpenedDecoder {
    /// The decoder.
    pub decoder: Arc<dyn Decoder>,
    /// How records become rows, with all that was found.
    pub decode: DecodeSpec,
    /// What the columns of a table are understood as.
    pub table: Option<Arc<TableReport>>,
}

/// The decoder for what a source delivers, where `decode` does not say otherwise.
pub async fn open_decoder(decode: &DecodeSpec, columns: &ColumnsSpec, opened: &mut Opened) -> Result<OpenedDecoder> {
    let kind = decode.kind.unwrap_or_else(|| opened.likely_kind());
    let mut found = decode.of_kind(kind);
    if kind == DecodeKind::Table {
        let (decoder, table) = open_table(&found, columns, opened).await?;
        found.schema = Some(decoder.schema().clone());
        return Ok(OpenedDecoder { decoder, decode: found, table: Some(table) });
    }
    #[cfg(feature = "images")]
    if kind == DecodeKind::Image && found.color.is_none() {
        found = DecodeSpec { color: Some(opened.likely_color().await?), ..found }.of_kind(kind);
    }
    let decoder = decoder_of_kind(kind, &found, opened).await?;
    if let (DecodeKind::Rows, ValueKind::Categories(cats)) = (kind, decoder.shape().values) {
        found.cats = Some(cats);
    }
    Ok(OpenedDecoder { decoder, decode: found, table: None })
}

async fn decoder_of_kind(kind: DecodeKind, decode: &DecodeSpec, opened: &Opened) -> Result<Arc<dyn Decoder>> {
    let window = decode.window.unwrap_or(DEFAULT_WINDOW);
    match kind {
        #[cfg(feature = "text")]
        DecodeKind::Text => Ok(Arc::new(open_text(decode, window)?)),
        #[cfg(not(feature = "text"))]
        DecodeKind::Text => Err(Error::not_built("kind: text", "text")),
        DecodeKind::Tokens => {
            let vocab = decode.vocab.unwrap_or(GPT2_VOCAB);
            let texts = decode.rows == Some(TextRows::Texts);
            Ok(Arc::new(match opened.hint {
                Hint::TokenRows | Hint::TokenStream if texts => {
                    return Err(Error::option(
                        "rows = \"texts\": a token file is one long list, which does not say where texts begin; \
                         give lists of tokens, or text",
                    ));
                }
                _ if texts => TokenDecoder::texts(vocab, window)?,
                Hint::TokenRows => TokenDecoder::rows(vocab, window)?,
                _ => TokenDecoder::new(vocab, window)?,
            }))
        }
        #[cfg(feature = "images")]
        DecodeKind::Image => Ok(Arc::new(ImageDecoder::new(decode.image())?.with_memory(2 * opened.limits.part_bytes))),
        #[cfg(not(feature = "images"))]
        DecodeKind::Image => Err(Error::not_built("kind: image", "images")),
        DecodeKind::Rows => opened.row_decoder(decode).await,
        DecodeKind::Table => unreachable!("opened by itself"),
    }
}

/// The tokenizer that `decode` names.
#[cfg(feature = "text")]
#[cfg_attr(docsrs, doc(cfg(feature = "text")))]
pub fn open_text(decode: &DecodeSpec, window: usize) -> Result<TextDecoder> {
    let decoder = match decode.tokenizer.as_deref().unwrap_or(DEFAULT_TOKENIZER) {
        DEFAULT_TOKENIZER => TextDecoder::gpt2(window)?,
        path => TextDecoder::from_file(Path::new(&expand_path(path)?), window)?,
    };
    let decoder = if decode.rows == Some(TextRows::Texts) { decoder.apart() } else { decoder };
    if !decode.end_of_text.unwrap_or(false) {
        return Ok(decoder);
    }
    let separator = decoder.end_of_text();
    if separator.is_none() {
        return Err(Error::option("end_of_text = true: this tokenizer has no token that ends a text"));
    }
    decoder.with_separator(separator)
}

impl Opened {
    /// What the records are, where nobody says.
    fn likely_kind(&self) -> DecodeKind {
        match &self.hint {
            Hint::Records(RecordKind::Text) => DecodeKind::Text,
            Hint::Records(RecordKind::Image) => DecodeKind::Image,
            Hint::Records(RecordKind::Lists { .. }) | Hint::Array(_) | Hint::Synthetic { .. } => DecodeKind::Rows,
            Hint::Records(RecordKind::Cells { .. }) => DecodeKind::Table,
            Hint::TokenRows | Hint::TokenStream => DecodeKind::Tokens,
        }
    }

    /// How long most of the first lists are: a list of another length is a bad record. Where there is no such length
    /// the lists are not rows.
    async fn list_length(&self) -> Result<usize> {
        let mut lengths: BTreeMap<usize, usize> = BTreeMap::new();
        let mut first_other = None;
        self.look(ROWS_TO_COUNT, |piece| {
            let Records::Lists(lists) = &piece.records else { return Ok(()) };
            let good = (0..lists.ends.len()).filter(|record| piece.bad.iter().all(|(bad, _)| bad != record));
            for record in good {
                let length = lists.range(record).len();
                *lengths.entry(length).or_default() += 1;
                if lengths.len() == 2 && first_other.is_none() {
                    let (unit, number) = piece.positions.place(record);
                    first_other = Some(format!("{}: {unit} {number} has {length}", piece.file));
                }
            }
            Ok(())
        })
        .await?;
        let total: usize = lengths.values().sum();
        let most = lengths.iter().max_by_key(|(_, count)| **count);
        match (most, lengths.keys().next(), lengths.keys().last()) {
            (Some((&length, &count)), ..) if 2 * count > total && length > 0 => Ok(length),
            (_, Some(shortest), Some(longest)) if longest > shortest => Err(Error::data(format!(
                "lists of {shortest} to {longest} values are not rows ({}); decode.kind = \"tokens\" joins them",
                first_other.unwrap_or_default()
            ))),
            _ => Err(Error::data("the first lists are empty: there is no row in them")),
        }
    }

    async fn row_decoder(&self, decode: &DecodeSpec) -> Result<Arc<dyn Decoder>> {
        let (num_vars, grid, known_cats, reals) = match &self.hint {
            Hint::Synthetic { num_vars, cats } => (*num_vars, None, Some(*cats), false),
            Hint::Array(shape) => (shape.iter().product(), Some(shape.clone()), None, false),
            Hint::Records(RecordKind::Lists { width, reals }) => {
                let length = match width {
                    Some(width) => *width,
                    None => self.list_length().await?,
                };
                (length, None, None, *reals)
            }
            Hint::TokenRows | Hint::TokenStream => {
                return Err(Error::option("kind = \"rows\": token files are read with kind = \"tokens\""));
            }
            Hint::Records(_) => return Err(Error::option("kind = \"rows\": the records are not lists of numbers")),
        };
        let values = match decode.cats.or(known_cats) {
            Some(cats) => ValueKind::Categories(cats),
            None if reals => ValueKind::Reals,
            None => self.count_categories().await?,
        };
        let decoder = RowDecoder::new(num_vars, values)?;
        Ok(Arc::new(match grid.filter(|grid| grid.len() > 1) {
            Some(grid) => decoder.with_grid(grid)?,
            None => decoder,
        }))
    }

    /// Grey if all of the first images are, which are few; otherwise colours. Those of a live stream cannot be looked
    /// at.
    #[cfg(feature = "images")]
    async fn likely_color(&self) -> Result<Color> {
        if let (Source::Live(_), None) = (&self.source, &self.first_file) {
            return Ok(Color::YcocgR);
        }
        let (mut grey, mut coloured) = (0, 0);
        self.look(IMAGES_TO_SEE, |piece| {
            if let Records::Blobs(blobs) = &piece.records {
                for is_grey in (0..blobs.ends.len().min(IMAGES_TO_SEE)).filter_map(|record| is_grey(blobs.get(record)))
                {
                    *if is_grey { &mut grey } else { &mut coloured } += 1;
                }
            }
            Ok(())
        })
        .await?;
        Ok(if grey > 0 && coloured == 0 { Color::Grey } else { Color::YcocgR })
    }

    /// One more than the largest value of the first rows; at least two.
    async fn count_categories(&self) -> Result<ValueKind> {
        let mut largest = 1;
        let mut reals = false;
        self.look(ROWS_TO_COUNT, |piece| {
            let Records::Lists(lists) = &piece.records else { return Ok(()) };
            reals |= matches!(lists.values, Values::F32(_));
            let missing = |at: usize| lists.missing.as_ref().is_some_and(|missing| missing[at]);
            let values = (0..lists.values.len()).filter(|&at| !missing(at)).filter_map(|at| lists.values.category(at));
            largest = values.max().unwrap_or(0).max(largest);
            Ok(())
        })
        .await?;
        match (reals, largest.checked_add(1)) {
            (true, _) => Ok(ValueKind::Reals),
            (false, Some(cats)) if cats <= MOST_COUNTED => Ok(ValueKind::Categories(cats)),
            (false, _) => Err(Error::data(format!(
                "a value {largest} among the first rows would make more categories than anybody means; if it is right, \
                 say so with decode.cats"
            ))),
        }
    }

    /// The pieces of a block with its first `wanted` records.
    async fn first_pieces(&self, source: &Arc<dyn BlockSource>, block: usize, wanted: usize) -> Result<Vec<Piece>> {
        let fetched = source.fetch(block, self.limits).await?;
        // Cutting is work, not waiting, and may itself wait for bytes: not on a thread that drives others.
        let cut = tokio::task::spawn_blocking(move || {
            let (mut seen, mut pieces) = (0, Vec::new());
            for piece in fetched.pieces {
                let piece = piece?;
                seen += piece.num_records();
                pieces.push(piece);
                if seen >= wanted {
                    break;
                }
            }
            Ok::<_, Error>(pieces)
        });
        cut.await.map_err(|e| Error::internal(format!("looking at the first rows: {e}")))?
    }

    /// Like `look`; records of a live stream are held, and delivered all the same.
    pub(super) async fn look_and_hold(
        &mut self,
        records: usize,
        mut see: impl FnMut(&Piece) -> Result<()> + Send,
    ) -> Result<()> {
        let (Source::Live(source), None) = (&self.source, &self.first_file) else {
            return self.look(records, see).await;
        };
        let (source, limits) = (source.clone(), self.limits);
        // Reading blocks until somebody writes, and is shown where it may be: pieces come through a channel.
        let (send, pieces) = async_channel::bounded(1);
        let look = detached("first-records", move || {
            Ahead::look(source, &limits, records, |piece| {
                send.send_blocking(piece.clone()).map_err(|_| Error::internal("nobody looks at the first records"))
            })
        });
        let mut look = std::pin::pin!(look);
        let ahead = loop {
            tokio::select! {
                biased;
                Ok(piece) = pieces.recv() => see(&piece)?,
                ahead = &mut look => break ahead?,
            }
        };
        while let Ok(piece) = pieces.try_recv() {
            see(&piece)?;
        }
        self.source = Source::Live(Arc::new(ahead));
        Ok(())
    }

    /// Shows the first records to `see`, about `records` of them.
    async fn look(&self, records: usize, mut see: impl FnMut(&Piece) -> Result<()>) -> Result<()> {
        match self.first_file.as_ref().unwrap_or(&self.source) {
            Source::Indexed(source) => {
                let rows: Vec<u64> = (0..source.num_rows().unwrap_or(u64::MAX).min(records as u64)).collect();
                rows.chunks(1024).try_for_each(|rows| see(&source.gather(rows)?))
            }
            Source::Blocks(source) => {
                let (mut left, mut damaged) = (records, None);
                for block in 0..source.blocks().len() {
                    match self.first_pieces(source, block, left).await {
                        Ok(pieces) => {
                            for piece in pieces {
                                see(&piece)?;
                                left = left.saturating_sub(piece.num_records());
                            }
                        }
                        // What a damaged block means for the run is decided when it is read (`on_bad`).
                        Err(error) if matches!(error.kind(), ErrorKind::Data | ErrorKind::Format) => {
                            damaged.get_or_insert(error);
                        }
                        Err(error) => return Err(error),
                    }
                    if left == 0 {
                        break;
                    }
                }
                damaged.filter(|_| left == records).map_or(Ok(()), Err) // unless nothing could be seen
            }
            Source::Live(_) => Err(Error::option(
                "a live stream comes only once, so its first rows cannot be looked at: say decode.kind, and \
                 decode.cats for rows",
            )),
        }
    }
}

/// Rows of synthetic data that come after those learned from.
#[derive(Debug)]
pub struct HeldOutRows {
    synthetic: Synthetic,
    manifest: Manifest,
    first: u64,
    rows: u64,
}

/// Where held-out rows of an endless source begin: no run comes so far.
const BEYOND: u64 = 1 << 48;

impl HeldOutRows {
    /// `rows` rows after those of `spec`.
    pub fn new(spec: &SyntheticSpec, rows: u64) -> Result<Self> {
        let synthetic = Synthetic::new(&SyntheticSpec { rows: None, ..spec.clone() })?;
        let first = spec.rows.unwrap_or(BEYOND);
        let manifest = Manifest::new("synthetic", Vec::new(), &format!("{spec:?} {first} {rows}"));
        Ok(Self { synthetic, manifest, first, rows })
    }

    /// Mean log-likelihood of these rows under their own source, which no model beats but by chance.
    pub fn source_log_likelihood(&self) -> Result<f64> {
        let mut total = 0.0;
        for row in 0..self.rows {
            if let Records::Lists(lists) = self.gather(&[row])?.records {
                let values: Vec<u32> = (0..lists.values.len()).filter_map(|at| lists.values.category(at)).collect();
                total += self.synthetic.log_likelihood(&values);
            }
        }
        Ok(total / self.rows as f64)
    }
}

impl IndexedSource for HeldOutRows {
    fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    fn num_rows(&self) -> Option<u64> {
        Some(self.rows)
    }

    fn gather(&self, rows: &[u64]) -> Result<Piece> {
        let rows: Vec<u64> = rows.iter().map(|row| row + self.first).collect();
        self.synthetic.gather(&rows)
    }
}

#[cfg(all(test, not(feature = "parquet"), not(feature = "images")))]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_was_left_out_of_the_build_is_refused_by_the_name_of_its_feature() {
        let decode = DecodeSpec::default();
        for (format, wanted) in [
            (Format::Parquet, "files: Parquet is not in this build: it needs the feature \"parquet\""),
            (Format::Arrow, "format: Arrow is not in this build: it needs the feature \"parquet\""),
        ] {
            let spec = SourceSpec { files: vec!["a".into()], format: Some(format), ..SourceSpec::default() };
            let error = open_source(&spec, &decode, 1 << 20, None).await.unwrap_err();
            assert_eq!((error.kind(), error.to_string().as_str()), (ErrorKind::Unsupported, wanted));
        }
        let text = "[source.synthetic]\nkind = \"hmm\"\nnum_vars = 4\ncats = 3\nlatents = 2\nseed = 1\nrows = 8";
        let spec = crate::pipeline::spec::PipelineSpec::parse(text, "x.toml").unwrap();
        let mut opened = open_source(&spec.source, &decode, 1 << 20, None).await.unwrap();
        let images = DecodeSpec { kind: Some(DecodeKind::Image), ..DecodeSpec::default() };
        let found = open_decoder(&images, &ColumnsSpec::default(), &mut opened).await;
        let error = found.err().expect("there are no images");
        assert_eq!(error.to_string(), "kind: image is not in this build: it needs the feature \"images\"");
    }
}
