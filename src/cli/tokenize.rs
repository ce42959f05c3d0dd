//! `anemone tokenize`: texts become a flat file of token ids, which learning reads at no cost.
//!
//! The file has nothing but little-endian ids; `.bin.zst` has them in compressed frames. It appears whole or not at
//! all: written beside its place, flushed, then renamed.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use rayon::prelude::*;
use serde_json::json;

use super::output::{Outcome, note, say, say_json, table, thousands};
use super::runtime;
use crate::data::Values;
use crate::decode::text::TextDecoder;
use crate::decode::{Decoded, Decoder, Output};
use crate::error::{Error, Result};
use crate::files::{open_regular, parent_of, put_in_place};
use crate::pipeline::open::{open_source, open_text};
use crate::pipeline::spec::{Document, PipelineSpec, show_size};
use crate::source::compressed_tokens::CompressedWriter;
use crate::source::token_width::TokenWidth;
use crate::source::{Arrived, Piece, ReadLimits, Source};

/// Turn texts (Parquet, JSON lines, an Arrow stream) into a flat file of tokens.
#[derive(Args, Clone, Debug)]
pub(super) struct TokenizeArgs {
    /// Paths or patterns of texts; - is an Arrow stream on standard input
    #[arg(value_name = "FILES", required = true)]
    files: Vec<String>,
    /// Where the tokens go: a name that ends in .bin or .bin.zst
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// The column that holds the text; of JSON lines, its key
    #[arg(long, value_name = "NAME")]
    column: Option<String>,
    /// gpt2, or the path of a tokenizer.json
    #[arg(long, default_value = "gpt2")]
    tokenizer: String,
    /// Put the token that ends a text after each
    #[arg(long)]
    end_of_text: bool,
    /// Bytes of a token: u16 or u32; the smallest that fits if left out
    #[arg(long, value_name = "WIDTH", value_parser = ["u16", "u32"])]
    width: Option<String>,
    /// Leave out texts that cannot be read, instead of stopping
    #[arg(long)]
    skip_bad: bool,
    /// Replace a file that is there
    #[arg(long)]
    force: bool,
    /// One JSON object instead of a table
    #[arg(long)]
    json: bool,
}

/// About how large the pieces are that are tokenised at once.
const PIECE_BYTES: usize = 1 << 20;

/// Pieces that are tokenised side by side.
const PIECES_AT_ONCE: usize = 16;

pub(super) fn run(args: &TokenizeArgs) -> Outcome {
    let begun = Instant::now();
    let spec = pipeline(args)?;
    let compressed = is_compressed(&args.out)?;
    if args.out.exists() && !args.force {
        let why = "already exists; --force replaces it";
        return Err(Error::option(format!("{}: {why}", args.out.display())));
    }
    let decoder = open_text(&spec.decode, 1)?;
    let width = width(args, decoder.vocab())?;
    let beside = Beside::create(&args.out)?;
    let mut counts = Counts::default();
    let sink = match compressed {
        true => Sink::Compressed(Box::new(CompressedWriter::new(beside.writer()?, width)?)),
        false => Sink::Flat(beside.writer()?, width),
    };
    runtime()?.block_on(tokenize(args, &spec, &decoder, sink, &mut counts))?;
    let bytes = beside.publish(&args.out)?;
    let seconds = begun.elapsed().as_secs_f64();
    if args.json {
        let Counts { texts, bad, tokens } = counts;
        let width = width.name();
        return say_json(
            json!({"out": args.out, "texts": texts, "bad": bad, "tokens": tokens, "width": width, "bytes": bytes,
                             "seconds": seconds}),
        );
    }
    let mut rows = vec![
        ("tokens", format!("{} in {}", thousands(counts.tokens), args.out.display())),
        ("texts", thousands(counts.texts)),
        ("size", format!("{}, {} each before compression", show_size(bytes), width.name())),
        ("time", format!("{seconds:.1} s")),
    ];
    if counts.bad > 0 {
        rows.push(("left out", format!("{} texts that cannot be read", thousands(counts.bad))));
    }
    say(table(&rows))
}

/// What to read, as a pipeline says it.
fn pipeline(args: &TokenizeArgs) -> Result<PipelineSpec> {
    let mut document = Document::new("the command line");
    document.set("source.files", json!(args.files), "FILES")?;
    if let Some(column) = &args.column {
        document.set("source.column", json!(column), "--column")?;
    }
    document.set("decode.kind", json!("text"), "FILES")?;
    document.set("decode.tokenizer", json!(args.tokenizer), "--tokenizer")?;
    document.set("decode.end_of_text", json!(args.end_of_text), "--end-of-text")?;
    PipelineSpec::from_document(&document)
}

fn is_compressed(out: &Path) -> Result<bool> {
    let name = out.file_name().map(|name| name.to_string_lossy().to_ascii_lowercase()).unwrap_or_default();
    match (name.ends_with(".bin"), name.ends_with(".bin.zst")) {
        (true, _) => Ok(false),
        (_, true) => Ok(true),
        _ => Err(Error::option(format!("--out {}: must end in .bin or .bin.zst", out.display()))),
    }
}

fn width(args: &TokenizeArgs, vocab: u32) -> Result<TokenWidth> {
    let fits = vocab <= 1 << 16;
    match args.width.as_deref() {
        None if fits => Ok(TokenWidth::U16),
        Some("u16") if !fits => Err(Error::option(format!(
            "--width u16: the tokenizer has {} tokens, which need u32",
            thousands(vocab.into())
        ))),
        Some("u16") => Ok(TokenWidth::U16),
        _ => Ok(TokenWidth::U32),
    }
}

#[derive(Default)]
struct Counts {
    texts: u64,
    bad: u64,
    tokens: u64,
}

async fn tokenize(
    args: &TokenizeArgs,
    spec: &PipelineSpec,
    decoder: &TextDecoder,
    mut sink: Sink,
    counts: &mut Counts,
) -> Result<()> {
    let opened = open_source(&spec.source.at_rest(), &spec.decode, spec.pipeline.memory, None).await?;
    let limits = ReadLimits::of_memory(PIECE_BYTES, spec.pipeline.memory);
    let mut take = |pieces: Vec<Piece>| -> Result<()> {
        // Side by side, written in order.
        let decoded: Vec<Result<Decoded>> = pieces.par_iter().map(|piece| decoder.decode(piece)).collect();
        for decoded in decoded {
            let decoded = decoded?;
            if let Some(bad) = decoded.bad.first()
                && !args.skip_bad
            {
                return Err(Error::data(format!("{bad}; --skip-bad leaves it out")));
            }
            counts.texts += decoded.records;
            counts.bad += decoded.bad.iter().map(|bad| bad.records).sum::<u64>();
            if let Output::Tokens(tokens) = decoded.output {
                counts.tokens += tokens.len() as u64;
                sink.write(&tokens)?;
            }
        }
        Ok(())
    };
    match &opened.source {
        Source::Blocks(source) => {
            for block in 0..source.blocks().len() {
                let mut pieces = source.fetch(block, limits).await?.pieces;
                loop {
                    let group = pieces.by_ref().take(PIECES_AT_ONCE).collect::<Result<Vec<_>>>()?;
                    if group.is_empty() {
                        break;
                    }
                    take(group)?;
                }
            }
        }
        Source::Live(source) => {
            let mut reader = source.clone().open(None)?;
            while let Some(arrived) = reader.next(&limits)? {
                match arrived {
                    Arrived::Piece(piece) => take(vec![piece])?,
                    Arrived::Damaged(error) => return Err(error),
                    _ => {}
                }
            }
        }
        Source::Indexed(_) => return Err(Error::option("these files hold numbers, not texts")),
    }
    sink.finish()
}

/// Where tokens go.
enum Sink {
    Flat(BufWriter<File>, TokenWidth),
    Compressed(Box<CompressedWriter<BufWriter<File>>>),
}

impl Sink {
    fn write(&mut self, tokens: &Values) -> Result<()> {
        let ids: Vec<u32> = (0..tokens.len()).filter_map(|at| tokens.category(at)).collect();
        match self {
            Self::Compressed(writer) => writer.push(&ids),
            Self::Flat(file, width) => {
                let bytes: Vec<u8> = match width {
                    TokenWidth::U16 => ids.iter().flat_map(|&id| (id as u16).to_le_bytes()).collect(),
                    TokenWidth::U32 => ids.iter().flat_map(|&id| id.to_le_bytes()).collect(),
                };
                file.write_all(&bytes).map_err(|e| Error::io("writing tokens", &e))
            }
        }
    }

    fn finish(self) -> Result<()> {
        let mut file = match self {
            Self::Flat(file, _) => file,
            Self::Compressed(writer) => writer.finish()?,
        };
        file.flush().and_then(|()| file.get_ref().sync_all()).map_err(|e| Error::io("writing tokens", &e))
    }
}

/// A file beside the one that is wanted; goes away unless it is published. It is locked as long as a process writes it,
/// so that what a killed process left can be told from what another is writing.
struct Beside {
    path: PathBuf,
    file: File,
    published: bool,
}

impl Beside {
    fn create(out: &Path) -> Result<Self> {
        remove_abandoned(out);
        let name = out.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let path = out.with_file_name(format!("{UNFINISHED}{}-{name}", std::process::id()));
        let failed = |e: std::io::Error| Error::io_at(&path, &e);
        let file = File::create(&path).map_err(failed)?;
        let _ = file.try_lock(); // without locks nothing is ever taken for abandoned
        Ok(Self { path, file, published: false })
    }

    fn writer(&self) -> Result<BufWriter<File>> {
        let file = self.file.try_clone().map_err(|e| Error::io_at(&self.path, &e))?;
        Ok(BufWriter::with_capacity(1 << 20, file))
    }

    /// Gives it the wanted name; how many bytes it has.
    fn publish(mut self, out: &Path) -> Result<u64> {
        let failed = |e: std::io::Error| Error::io_at(out, &e);
        let bytes = fs::metadata(&self.path).map_err(failed)?.len();
        put_in_place(&self.path, out).map_err(failed)?;
        self.published = true;
        Ok(bytes)
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        if !self.published
            && let Err(error) = fs::remove_file(&self.path)
        {
            note(format_args!("warning: {}: could not be removed: {error}", self.path.display()));
        }
    }
}

/// What names of unfinished files begin with; a process id and the wanted name follow.
const UNFINISHED: &str = ".tmp-";

/// Removes what killed processes left unfinished beside `out`, and says so. A file that is locked is being written; one
/// that is so new that its writer may not have locked it yet stays too.
fn remove_abandoned(out: &Path) {
    for entry in fs::read_dir(parent_of(out)).into_iter().flatten().flatten() {
        let path = entry.path();
        let is_old = entry.metadata().is_ok_and(|found| {
            found.is_file() && found.modified().is_ok_and(|at| at.elapsed().is_ok_and(|age| age >= SETTLED))
        });
        if is_old
            && entry.file_name().to_str().is_some_and(is_unfinished)
            && open_regular(&path).is_ok_and(|file| file.try_lock().is_ok())
            && fs::remove_file(&path).is_ok()
        {
            note(format_args!("note: {}: removed, it was left by a process that was killed", path.display()));
        }
    }
}

/// Between making a file and locking it lie microseconds.
const SETTLED: Duration = Duration::from_secs(2);

/// `.tmp-<process id>-<name>.bin` or `.bin.zst`.
fn is_unfinished(name: &str) -> bool {
    let parts = name.strip_prefix(UNFINISHED).and_then(|rest| rest.split_once('-'));
    parts.is_some_and(|(id, wanted)| id.parse::<u32>().is_ok() && is_compressed(Path::new(wanted)).is_ok())
}
