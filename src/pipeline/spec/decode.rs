//! `[decode]`: what records mean.

use serde::Serialize;

use super::document::Document;
use super::section::Section;
use super::source::{Format, SourceSpec};
use super::tables;
use crate::data::TableSchema;
use crate::decode::image_spec::{Color, ImageSpec, MAX_LEVELS};
use crate::error::Result;
use crate::pipeline::suggest::list;

/// How records become rows. Keys that are `None` are at the default of their kind, or belong to another kind.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct DecodeSpec {
    /// What the records are; `None` lets the first of them decide.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<DecodeKind>,
    /// For text: `gpt2`, or the path of a `tokenizer.json`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokenizer: Option<String>,
    /// For text and tokens: how many make a row.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window: Option<usize>,
    /// For text and tokens: what a row is; `None` is windows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rows: Option<TextRows>,
    /// For text: whether every text ends with the token that says so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end_of_text: Option<bool>,
    /// For tokens: how many different ones there are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vocab: Option<u32>,
    /// For images: the side of the squares that they are cut into; `None` takes them whole.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub patch: Option<usize>,
    /// For images: which colours the circuit sees; `None` is grey for grey ones and YCoCg-R for others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub color: Option<Color>,
    /// For images in grey or RGB: shades of a channel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub levels: Option<u32>,
    /// For images: `[height, width]` that all of them must have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<(usize, usize)>,
    /// For rows: how many categories a variable has; `None` counts them over the first rows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cats: Option<u32>,
    /// For tables: what every column means; `None` finds it in the first rows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schema: Option<TableSchema>,
}

/// What records are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum DecodeKind {
    /// Text, to be cut into tokens.
    Text,
    /// Lists of token ids.
    Tokens,
    /// Image files.
    Image,
    /// Lists of numbers, one row each.
    Rows,
    /// Rows of a table whose columns mean something each: names, counts, numbers, times.
    Table,
}

/// What a row of tokens is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum TextRows {
    /// As many tokens as a row has, of all texts one after the other.
    Windows,
    /// The tokens of one text; what it leaves of its last row is missing.
    Texts,
}

/// Every kind by its name in files, with its keys.
pub(super) const KINDS: [(&str, DecodeKind, &[&str]); 5] = [
    ("text", DecodeKind::Text, &["tokenizer", "window", "rows", "end_of_text"]),
    ("tokens", DecodeKind::Tokens, &["vocab", "window", "rows"]),
    ("image", DecodeKind::Image, &["patch", "color", "levels", "size"]),
    ("rows", DecodeKind::Rows, &["cats"]),
    ("table", DecodeKind::Table, &["schema"]),
];

/// Every colour space by its name in files.
const COLORS: [(&str, Color); 4] =
    [("ycocg-r", Color::YcocgR), ("ycocg", Color::Ycocg), ("rgb", Color::Rgb), ("grey", Color::Grey)];

/// Tokens in a row where nothing is said.
pub const DEFAULT_WINDOW: usize = 128;

/// Beyond this a single row would not fit anywhere.
pub(super) const LONGEST_WINDOW: usize = 1 << 24;

/// The tokenizer where nothing is said.
pub const DEFAULT_TOKENIZER: &str = "gpt2";

/// How many tokens that one has: the vocabulary of a token file of which nothing is said.
pub const GPT2_VOCAB: u32 = 50257;

impl DecodeKind {
    /// The name in files.
    pub fn name(self) -> &'static str {
        KINDS.iter().find(|(_, kind, _)| *kind == self).map_or("", |(name, ..)| name)
    }

    fn keys(self) -> &'static [&'static str] {
        KINDS.iter().find(|(_, kind, _)| *kind == self).map_or(&[], |(.., keys)| keys)
    }
}

impl DecodeSpec {
    /// The same for records of that kind, with every default filled in.
    pub fn of_kind(&self, kind: DecodeKind) -> Self {
        let is = |wanted: DecodeKind| (kind == wanted).then_some(());
        let windowed = is(DecodeKind::Text).or(is(DecodeKind::Tokens));
        let color = is(DecodeKind::Image).and(self.color); // where nothing is said the pictures decide
        Self {
            kind: Some(kind),
            tokenizer: is(DecodeKind::Text)
                .map(|()| self.tokenizer.clone().unwrap_or_else(|| DEFAULT_TOKENIZER.to_string())),
            window: windowed.map(|()| self.window.unwrap_or(DEFAULT_WINDOW)),
            rows: windowed.and(self.rows),
            // Whoever learns single texts wants to know where they end.
            end_of_text: is(DecodeKind::Text).map(|()| self.end_of_text.unwrap_or(self.rows == Some(TextRows::Texts))),
            vocab: is(DecodeKind::Tokens).map(|()| self.vocab.unwrap_or(GPT2_VOCAB)),
            patch: is(DecodeKind::Image).and(self.patch),
            color,
            levels: color.filter(|color| color.has_levels()).map(|_| self.levels.unwrap_or(MAX_LEVELS)),
            size: is(DecodeKind::Image).and(self.size),
            cats: is(DecodeKind::Rows).and(self.cats),
            schema: is(DecodeKind::Table).and(self.schema.clone()),
        }
    }

    /// The options of an image decoder.
    pub fn image(&self) -> ImageSpec {
        let color = self.color.unwrap_or(Color::YcocgR);
        ImageSpec { patch: self.patch, color, levels: self.levels, size: self.size }
    }
}

/// The kinds that a key belongs to; empty for keys of all.
pub(super) fn kinds_with(key: &str) -> Vec<&'static str> {
    KINDS.iter().filter(|(.., keys)| keys.contains(&key)).map(|(name, ..)| *name).collect()
}

pub(super) fn read(
    document: &Document,
    source: &SourceSpec,
    elsewhere: impl Fn(&str) -> Option<String>,
) -> Result<DecodeSpec> {
    let section = Section::open(document, "decode")?.only(tables::DECODE.keys, elsewhere)?;
    let kind = section.choice("kind", &KINDS.map(|(name, kind, _)| (name, kind)))?;
    let kind = kind.or_else(|| kind_of_source(source)).or_else(|| kind_of_keys(section));
    let kind = kind.or_else(|| document.get("columns").map(|_| DecodeKind::Table));
    if let Some(kind) = kind
        && let Some(key) = section.keys().find(|key| *key != "kind" && !kind.keys().contains(key))
    {
        let keys = list(kind.keys().iter().copied());
        return Err(section.refuse(key, format!("has no meaning for kind = \"{}\", which takes {keys}", kind.name())));
    }
    let written = DecodeSpec {
        kind,
        tokenizer: section.text("tokenizer")?,
        window: match section.count("window", 1)? {
            Some(window) if window > LONGEST_WINDOW => {
                return Err(section.refuse("window", format!("must be at most {LONGEST_WINDOW}")));
            }
            window => window,
        },
        rows: section.choice("rows", &[("windows", TextRows::Windows), ("texts", TextRows::Texts)])?,
        end_of_text: section.has("end_of_text").then(|| section.truth("end_of_text", false)).transpose()?,
        vocab: section.small("vocab", 1)?,
        patch: section.count("patch", 1)?,
        color: section.choice("color", &COLORS)?,
        levels: section.small("levels", 0)?,
        size: section.counts("size", Some(2))?.map(|size| (size[0], size[1])),
        cats: section.small("cats", 1)?,
        schema: match section.value("schema") {
            None => None,
            Some(schema) => {
                Some(TableSchema::from_json(schema).map_err(|error| section.refuse_value("schema", &error))?)
            }
        },
    };
    if kind == Some(DecodeKind::Image) && written.patch.is_none() && written.size.is_none() {
        let why = "is missing: say into what squares images are cut (patch = 16), or how large all of them are \
                   (size = [28, 28])";
        return Err(section.refuse("patch", why));
    }
    if written.levels.is_some() {
        written.image().check_levels().map_err(|why| section.refuse("levels", why))?;
    }
    Ok(match kind {
        Some(kind) => written.of_kind(kind),
        None => written,
    })
}

/// What a source delivers, where its format alone says so.
fn kind_of_source(source: &SourceSpec) -> Option<DecodeKind> {
    match source.format {
        None | Some(Format::Npy) => Some(DecodeKind::Rows),
        Some(Format::Tokens) => Some(DecodeKind::Tokens),
        Some(Format::Csv) => Some(DecodeKind::Table), // cells without a type
        Some(Format::Parquet | Format::Jsonl | Format::Arrow) => None,
    }
}

/// The kind whose keys are written, where a key belongs to one kind only.
fn kind_of_keys(section: Section<'_>) -> Option<DecodeKind> {
    let own = |kind: DecodeKind, key: &str| {
        kind.keys().contains(&key) && !KINDS.iter().any(|(_, other, keys)| *other != kind && keys.contains(&key))
    };
    KINDS.iter().map(|(_, kind, _)| *kind).find(|kind| section.keys().any(|key| own(*kind, key)))
}
