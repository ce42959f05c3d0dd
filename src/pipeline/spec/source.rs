//! `[source]` and `[validate]`: which files, or which made-up data.

use std::time::Duration;

use serde::Serialize;
use serde_json::{Map, Value};

use super::document::Document;
use super::section::Section;
use super::{kafka, tables};
use crate::error::{Error, Result};
use crate::pipeline::suggest::list;
use crate::source::OnGap;
use crate::source::kafka::spec::{KafkaSpec, MergeOrder};
use crate::source::synthetic::SyntheticSpec;
use crate::source::token_width::TokenWidth;

/// Where rows come from.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct SourceSpec {
    /// Paths, patterns or addresses, as they were written: `${NAME}` is replaced when they are opened. Empty for
    /// synthetic data; `-` alone is standard input.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<String>,
    /// What the files are; `None` for synthetic data.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub format: Option<Format>,
    /// The one column to read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub column: Option<String>,
    /// The columns to read, one per variable; a name that ends in `*` is a prefix.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub columns: Vec<String>,
    /// What is between the cells of CSV; `None` is decided by the name and the first line of each file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delimiter: Option<char>,
    /// How wide a token is in a flat token file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<TokenWidth>,
    /// Whether files are learned from as they appear, without an end.
    #[serde(skip_serializing_if = "is_false")]
    pub watch: bool,
    /// How many seconds a file of a watched folder must stay the same to count as whole; `None` is the usual.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub settle: Option<f64>,
    /// Whether the one file is read as it is written, without an end.
    #[serde(skip_serializing_if = "is_false")]
    pub follow: bool,
    /// What happens where something that comes next is gone.
    #[serde(skip_serializing_if = "is_usual")]
    pub on_gap: OnGap,
    /// What of the files a resumed run is held to.
    #[serde(skip_serializing_if = "Compared::is_default")]
    pub digest: Compared,
    /// Made-up data with a known distribution, instead of files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub synthetic: Option<SyntheticSpec>,
    /// A topic of Kafka, instead of files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kafka: Option<KafkaSpec>,
}

impl SourceSpec {
    /// Returns true if rows arrive while they are learned from.
    pub fn is_live(&self) -> bool {
        self.is_standard_input() || self.follow || self.watch || self.kafka.is_some()
    }

    /// Returns true if rows come through a pipe.
    pub fn is_standard_input(&self) -> bool {
        self.files == [STANDARD_INPUT]
    }

    /// Returns true if a live source promises the same order of rows in every run. A watched folder does, for files
    /// that appear in the order of their names.
    pub fn has_fixed_order(&self) -> bool {
        let is_merged_in_order = self.kafka.as_ref().is_some_and(|kafka| kafka.order == MergeOrder::RoundRobin);
        self.follow || self.watch || is_merged_in_order
    }

    /// The same files as they are now, without waiting for others.
    pub fn at_rest(&self) -> Self {
        Self { watch: false, settle: None, on_gap: OnGap::default(), ..self.clone() }
    }

    /// How long a file of a watched folder must stay the same to count as whole.
    pub fn settle(&self) -> Duration {
        self.settle.map_or(SETTLE, Duration::from_secs_f64)
    }

    /// Returns true if no end of the rows is known: they arrive, or are made, for as long as one likes.
    pub fn is_endless(&self) -> bool {
        self.is_live() || self.synthetic.as_ref().is_some_and(|synthetic| synthetic.rows.is_none())
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_false(value: &bool) -> bool {
    !value
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_usual(on_gap: &OnGap) -> bool {
    *on_gap == OnGap::default()
}

/// How long a file must stay the same to count as whole, where nothing is said.
const SETTLE: Duration = Duration::from_secs(2);

/// What held-out likelihood is measured on, and how often.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ValidateSpec {
    /// The rows. Without files it is synthetic data: rows that come after those learned from.
    #[serde(flatten)]
    pub source: SourceSpec,
    /// At the end of every so many epochs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub every_epochs: Option<u64>,
    /// After every so many batches.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub every_batches: Option<u64>,
    /// After every so many rows: with the first batch that reaches them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub every_rows: Option<u64>,
    /// After every so many seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub every_seconds: Option<f64>,
    /// No more rows than this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rows: Option<u64>,
}

/// What of a file must be the same for a run to go on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Compared {
    /// Its name, its size, its first and its last 64 KiB.
    #[default]
    Ends,
    /// Every byte, which are all read when it is opened.
    Whole,
}

impl Compared {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// What a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// Parquet shards.
    Parquet,
    /// Flat token ids, `.bin`, perhaps compressed.
    Tokens,
    /// One JSON object, or list, a line, perhaps compressed.
    Jsonl,
    /// Rows of cells with a header, perhaps compressed.
    Csv,
    /// NumPy arrays.
    Npy,
    /// An Arrow IPC stream on standard input.
    Arrow,
}

/// Every format by its name in files.
pub(super) const FORMATS: [(&str, Format); 6] = [
    ("parquet", Format::Parquet),
    ("tokens", Format::Tokens),
    ("jsonl", Format::Jsonl),
    ("csv", Format::Csv),
    ("npy", Format::Npy),
    ("arrow", Format::Arrow),
];

/// Endings that say what a file is.
const ENDINGS: [(&str, Format); 10] = [
    (".parquet", Format::Parquet),
    (".bin", Format::Tokens),
    (".bin.zst", Format::Tokens),
    (".jsonl", Format::Jsonl),
    (".jsonl.zst", Format::Jsonl),
    (".csv", Format::Csv),
    (".csv.zst", Format::Csv),
    (".tsv", Format::Csv),
    (".tsv.zst", Format::Csv),
    (".npy", Format::Npy),
];

/// Standard input, where a file is expected.
pub const STANDARD_INPUT: &str = "-";

/// Rows that are held out of synthetic data where nothing is said.
pub const DEFAULT_HELD_OUT: u64 = 2048;

/// How often held-out rows are looked at on a live stream, where nothing is said.
const LIVE_VALIDATION_SECONDS: f64 = 300.0;

/// What `column` was called for JSON lines; still read, never written.
const FORMER_COLUMN: &str = "field";

impl Format {
    /// The name in files.
    pub fn name(self) -> &'static str {
        FORMATS.iter().find(|(_, format)| *format == self).map_or("", |(name, _)| name)
    }

    /// What a file is, by its ending.
    pub fn of(file: &str) -> Option<Self> {
        if file == STANDARD_INPUT {
            return Some(Self::Arrow);
        }
        let lower = file.to_ascii_lowercase();
        ENDINGS.iter().find(|(ending, _)| lower.ends_with(ending)).map(|(_, format)| *format)
    }

    /// The keys of a section that say how such files are read.
    fn keys(self) -> &'static [&'static str] {
        match self {
            Self::Parquet | Self::Arrow => &["column", "columns"],
            Self::Jsonl => &["column", "columns", FORMER_COLUMN],
            Self::Csv => &["column", "columns", "delimiter"],
            Self::Tokens => &["tokens"],
            Self::Npy => &[],
        }
    }
}

/// The formats whose files a key says how to read; empty for keys of all.
pub(super) fn formats_with(key: &str) -> Vec<&'static str> {
    FORMATS.iter().filter(|(_, format)| format.keys().contains(&key)).map(|(name, _)| *name).collect()
}

pub(super) fn read(document: &Document, elsewhere: impl Fn(&str) -> Option<String>) -> Result<SourceSpec> {
    let section = Section::open(document, "source")?.only(tables::SOURCE.keys, elsewhere)?;
    if section.has("kafka") {
        return kafka::read(document, section);
    }
    match (section.has("files"), section.has("synthetic")) {
        (true, false) => read_files(section, None),
        (false, true) => {
            if let Some(key) = section.keys().find(|key| *key != "synthetic") {
                return Err(section.refuse(key, "has no meaning for synthetic data, which has no files"));
            }
            Ok(SourceSpec { synthetic: Some(read_synthetic(document)?), ..SourceSpec::default() })
        }
        (true, true) => Err(section.refuse("files", "has no meaning beside [source.synthetic]; keep one of them")),
        (false, false) => {
            Err(section.refuse("files", "is missing: say what to read, or write [source.synthetic] or [source.kafka]"))
        }
    }
}

pub(super) fn read_validate(
    document: &Document,
    training: &SourceSpec,
    elsewhere: impl Fn(&str) -> Option<String>,
) -> Result<Option<ValidateSpec>> {
    let section = Section::open(document, "validate")?;
    if !section.is_written() {
        return Ok(None);
    }
    let section = section.only(tables::VALIDATE.keys, elsewhere)?;
    let (every_epochs, every_batches) = (section.whole("every_epochs", 1)?, section.whole("every_batches", 1)?);
    let mut rows = section.whole("rows", 1)?;
    let source = match (section.has("files"), &training.synthetic) {
        (true, _) => read_files(section, Some(training))?,
        (false, Some(_)) => {
            rows = rows.or(Some(DEFAULT_HELD_OUT));
            SourceSpec::default()
        }
        (false, None) => return Err(section.refuse("files", "is missing: say which rows are held out")),
    };
    let every_rows = section.whole("every_rows", 1)?;
    let every_seconds = section.number("every_seconds", |s| s > 0.0, "positive")?;
    let is_said = every_batches.is_some() || every_rows.is_some() || every_seconds.is_some();
    let (every_epochs, every_seconds) = match (is_said, training.is_live()) {
        (false, false) => (every_epochs.or(Some(1)), None),
        // A live stream may have no epoch at all.
        (false, true) => (every_epochs, every_epochs.is_none().then_some(LIVE_VALIDATION_SECONDS)),
        (true, _) => (every_epochs, every_seconds),
    };
    Ok(Some(ValidateSpec { source, every_epochs, every_batches, every_rows, every_seconds, rows }))
}

/// The files of a section; how they are read is said there, or `inherited`.
fn read_files(section: Section<'_>, inherited: Option<&SourceSpec>) -> Result<SourceSpec> {
    let files = section.texts("files")?.unwrap_or_default();
    let format = match section.choice("format", &FORMATS)? {
        Some(format) => format,
        None => format_of_all(section, &files)?,
    };
    let is_standard_input = files == [STANDARD_INPUT];
    if format == Format::Arrow && !is_standard_input {
        let why = "an Arrow stream is read from standard input: write files = \"-\" alone";
        return Err(section.refuse("files", why));
    }
    if !matches!(format, Format::Arrow | Format::Jsonl | Format::Csv) && files.iter().any(|file| file == STANDARD_INPUT)
    {
        let why = "standard input is an Arrow stream, JSON lines or CSV: say format = \"jsonl\" or \"csv\" for these";
        return Err(section.refuse("files", why));
    }
    if files.len() > 1 && files.iter().any(|file| file == STANDARD_INPUT) {
        return Err(section.refuse("files", "standard input is read alone: write files = \"-\""));
    }
    let keys = FORMATS.iter().flat_map(|(_, format)| format.keys());
    if let Some(key) = keys.filter(|key| !format.keys().contains(key)).find(|key| section.has(key)) {
        let known = match format.keys() {
            [] => "takes no key".to_string(),
            keys => format!("takes {}", list(keys.iter().copied().filter(|key| *key != FORMER_COLUMN))),
        };
        return Err(section.refuse(key, format!("has no meaning for {} files, whose format {known}", format.name())));
    }
    let (mut column, columns) = (section.text("column")?, section.texts("columns")?.unwrap_or_default());
    if let Some(former) = section.text(FORMER_COLUMN)? {
        if column.is_some() {
            return Err(section.refuse(FORMER_COLUMN, "is the former name of column; keep column alone"));
        }
        column = Some(former);
    }
    if column.is_some() && !columns.is_empty() {
        return Err(section.refuse("columns", "has no meaning beside column; keep one of them"));
    }
    let delimiter = section.text("delimiter")?.map(|text| one_delimiter(section, &text)).transpose()?;
    let follow = inherited.is_none() && section.truth("follow", false)?;
    if follow {
        check_followed(section, &files, format)?;
    }
    let watch = section.truth("watch", false)?;
    let settle = section.number("settle", |s| (0.0..=86_400.0).contains(&s), "in [0, 86400]")?;
    if watch && (is_standard_input || follow) {
        return Err(
            section.refuse("watch", "has no meaning for standard input or a followed file, which are live anyway")
        );
    }
    if settle.is_some() && !watch {
        return Err(section.refuse("settle", "has no meaning for files that are not watched (watch = true)"));
    }
    let gaps = [("fail", OnGap::Fail), ("skip", OnGap::Skip)];
    let on_gap = if inherited.is_none() { section.choice("on_gap", &gaps)? } else { None };
    if on_gap.is_some() && !follow && !watch {
        return Err(section.refuse(
            "on_gap",
            "has no meaning for files that are neither followed nor watched (follow, watch = true)",
        ));
    }
    // Held-out lines beside other files have texts, whatever the column of these is called.
    let usual =
        inherited.filter(|source| format == Format::Jsonl && source.format != Some(format)).map(|_| "text".into());
    let inherited = inherited.filter(|source| source.format == Some(format));
    let said_here = column.is_some() || !columns.is_empty();
    let widths = [("u16", TokenWidth::U16), ("u32", TokenWidth::U32)];
    let tokens = section.choice("tokens", &widths)?.or_else(|| inherited.and_then(|source| source.tokens));
    let column = column.or_else(|| inherited.filter(|_| !said_here).and_then(|source| source.column.clone()));
    Ok(SourceSpec {
        files,
        format: Some(format),
        column: column.or_else(|| usual.filter(|_| !said_here)),
        columns: match inherited {
            Some(source) if !said_here => source.columns.clone(),
            _ => columns,
        },
        delimiter: delimiter.or_else(|| inherited.and_then(|source| source.delimiter)),
        tokens: tokens.or((format == Format::Tokens).then_some(TokenWidth::U16)),
        watch,
        settle: settle.or(watch.then(|| SETTLE.as_secs_f64())),
        digest: match section.choice("digest", &[("ends", Compared::Ends), ("whole", Compared::Whole)])? {
            Some(Compared::Whole) if is_standard_input || follow => {
                return Err(section.refuse("digest", "has no meaning for a live stream, which comes only once"));
            }
            Some(Compared::Whole) if watch => {
                return Err(
                    section.refuse("digest", "has no meaning for a watched folder, whose files are not known yet")
                );
            }
            compared => compared.unwrap_or_default(),
        },
        follow,
        on_gap: on_gap.unwrap_or_default(),
        synthetic: None,
        kafka: None,
    })
}

/// What is between cells: one character that is no part of a line end or a quote.
fn one_delimiter(section: Section<'_>, text: &str) -> Result<char> {
    let mut characters = text.chars();
    match (characters.next(), characters.next()) {
        (Some(delimiter), None) if delimiter.is_ascii() && !matches!(delimiter, '"' | '\n' | '\r' | '\0') => {
            Ok(delimiter)
        }
        _ => Err(section.refuse("delimiter", "must be one ASCII character that is no quote and no line end, as \";\"")),
    }
}

/// One file of lines or tokens, which is not compressed, can be followed.
fn check_followed(section: Section<'_>, files: &[String], format: Format) -> Result<()> {
    let why = match files {
        [file] if file == STANDARD_INPUT => "standard input goes on for as long as it is open, without being followed",
        [file] if file.contains(['*', '?', '[']) => "follows one file, not a pattern",
        [file] if file.contains("://") => "follows a file of this machine",
        [file] if file.to_ascii_lowercase().ends_with(".zst") => "follows files that are not compressed",
        [_] if !matches!(format, Format::Jsonl | Format::Tokens) => "follows JSON lines (.jsonl) or flat tokens (.bin)",
        [_] => return Ok(()),
        _ => "follows one file",
    };
    Err(section.refuse("follow", why))
}

fn format_of_all(section: Section<'_>, files: &[String]) -> Result<Format> {
    let mut formats = Vec::new();
    for file in files {
        let Some(format) = Format::of(file) else {
            let endings = list(ENDINGS.iter().map(|(ending, _)| *ending));
            let names = list(FORMATS.iter().map(|(name, _)| *name));
            return Err(section.refuse(
                "files",
                format!(
                    "`{file}`: cannot tell the format from the name; there are {endings}, or say format = … ({names})"
                ),
            ));
        };
        formats.push(format);
    }
    match formats.iter().find(|format| **format != formats[0]) {
        Some(other) => {
            let both = format!("{} and {}", formats[0].name(), other.name());
            Err(section.refuse("files", format!("are of two formats, {both}; a pipeline reads one")))
        }
        None => Ok(formats[0]),
    }
}

fn read_synthetic(document: &Document) -> Result<SyntheticSpec> {
    let section = Section::open(document, "source.synthetic")?.only(tables::SYNTHETIC.keys, |_| None)?;
    let kind = section.choice("kind", &[("hmm", "hmm"), ("mixture", "mixture")])?.unwrap_or("hmm");
    let mut spec = Map::from_iter([("kind".to_string(), Value::from(kind))]);
    let defaults = [("num_vars", 1, Some(32)), ("cats", 1, Some(24)), ("latents", 1, Some(12)), ("seed", 0, Some(1))];
    for (key, least, default) in defaults.into_iter().chain([("rows", 1, None), ("drift", 1, None)]) {
        if let Some(number) = section.whole(key, least)?.or(default) {
            spec.insert(key.to_string(), Value::from(number));
        }
    }
    if let Some(changes) = section.counts("changes", None)? {
        spec.insert("changes".to_string(), Value::from(changes));
    }
    serde_json::from_value(Value::Object(spec))
        .map_err(|e| Error::option(format!("{}: source.synthetic: {e}", document.place("source.synthetic"))))
}
