//! What a pipeline names, opened: sources by their format (here), decoders by what the source delivers (`decoder`).
//!
//! Where the pipeline is silent the data decides, as far as it can only mean one thing: a column of lists is rows, a
//! column of image files images, columns of numbers are variables, and how many categories there are is counted over
//! the first rows. What was decided is said before anything is learned ([`Opened::reading`]). Opening reads headers and
//! at most these rows.

mod decoder;
mod look;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_channel::Sender;

#[cfg(feature = "text")]
pub use self::decoder::open_text;
pub use self::decoder::{OpenedDecoder, open_decoder};
use super::spec::{Compared, DEFAULT_WINDOW, DecodeKind, DecodeSpec, Format, SourceSpec, expand_path};
use crate::data::{TableSchema, Values};
use crate::detached::detached;
use crate::error::{Error, ErrorKind, Result};
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
use crate::source::synthetic::Synthetic;
use crate::source::token_ranges::TokenRanges;
use crate::source::token_width::TokenWidth;
use crate::source::tokens::TokenFiles;
use crate::source::watch::{FirstFiles, OpenFile, WatchOptions, Watched};
use crate::source::{BoxFuture, Columns, ReadLimits, Reading, RecordKind, Records, Source, Wanted};

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

#[cfg(all(test, not(feature = "parquet"), not(feature = "images")))]
mod tests {
    use super::*;
    use crate::pipeline::spec::ColumnsSpec;

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
