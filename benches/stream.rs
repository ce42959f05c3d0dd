//! Do the stages keep up? Rows per second of the stages alone, against what HMM-256 training takes on this machine.
//!
//! `cargo bench --bench stream`: reads `wikitext2` from the folder that `ANEMONE_DATA` names (default
//! `../shared/data`), or data of the same shape that it makes itself. Everything is measured in turns within one run,
//! and the medians are compared: the ratio is what counts, not the times of one machine on one day.

#[path = "../tests/common/data_folder.rs"]
mod data_folder;
#[path = "../tests/common/shards.rs"]
#[allow(dead_code, clippy::unwrap_used)]
mod shards;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use anemone::Result;
use anemone::backend::cpu::{CpuBackend, CpuOptions};
use anemone::batcher::BatchSpec;
use anemone::circuit::{Categorical, Params};
use anemone::data::{Batch, Cursor, Item};
use anemone::decode::Decoder;
use anemone::decode::text::TextDecoder;
use anemone::decode::tokens::TokenDecoder;
use anemone::optim::{AnemoneSpec, Optimizer};
use anemone::pipeline::stream::{Stream, StreamOptions};
use anemone::rng::Rng;
use anemone::source::parquet::ParquetSource;
use anemone::source::token_width::TokenWidth;
use anemone::source::tokens::TokenFiles;
use anemone::source::{Columns, Source, store};
use anemone::structure::hmm;

const WINDOW: usize = 128;
const VOCAB: u32 = 50_257;
const ROUNDS: usize = 5;

fn main() -> Result<()> {
    let made = tempfile::tempdir().map_err(|e| anemone::Error::io("a folder for the benchmark", &e))?;
    let (tokens, texts) = data(made.path());
    let runtime = tokio::runtime::Runtime::new().map_err(|e| anemone::Error::io("a runtime", &e))?;
    let whole_rows: Arc<dyn Decoder> = Arc::new(TokenDecoder::rows(VOCAB, WINDOW)?);
    let text: Arc<dyn Decoder> = Arc::new(TextDecoder::gpt2(WINDOW)?);
    let token_source = Source::Indexed(Arc::new(TokenFiles::open(&[tokens], TokenWidth::U16, WINDOW)?));
    let parquet = runtime
        .block_on(async { ParquetSource::open(store::resolve(&[texts]).await?, &Columns::One("text".into())).await })?;
    let parquet = Source::Blocks(Arc::new(parquet));
    let mut learner = Hmm::new(256)?;

    let (mut bin, mut bpe, mut learn) = (vec![], vec![], vec![]);
    for round in 0..ROUNDS as u64 {
        bin.push(runtime.block_on(rows_per_second(&token_source, &whole_rows, round, 2_000_000))?);
        bpe.push(runtime.block_on(rows_per_second(&parquet, &text, round, 40_000))?);
        let batch = runtime.block_on(first_batch(&token_source, &whole_rows, round))?;
        learn.push(learner.rows_per_second(&batch)?);
    }
    let (bin, bpe, learn) = (median(bin), median(bpe), median(learn));
    println!("rows of {WINDOW} tokens per second, medians of {ROUNDS} rounds");
    println!("{:<42}{learn:>12.0}", "HMM-256, vocabulary 50,257, batch 512");
    println!("{:<42}{bin:>12.0}   {:>7.1} × what it learns", "stages alone, .bin", bin / learn);
    println!("{:<42}{bpe:>12.0}   {:>7.1} × what it learns", "stages alone, Parquet text through BPE", bpe / learn);
    Ok(())
}

/// The token file and the pattern of the text shards.
fn data(made: &Path) -> (PathBuf, String) {
    let wikitext = data_folder::data_folder().join("wikitext2");
    if wikitext.join("train.bin").is_file() {
        println!("data: wikitext2");
        return (wikitext.join("train.bin"), wikitext.join("train-*.parquet").display().to_string());
    }
    println!("data: made up, because {} is not there", wikitext.display());
    let mut rng = Rng::new(1);
    let token = |rng: &mut Rng| (f64::from(VOCAB).powf(rng.uniform()) as u16).to_le_bytes(); // common ones are common
    let tokens: Vec<u8> = (0..2_400_000).flat_map(|_| token(&mut rng)).collect();
    std::fs::write(made.join("train.bin"), tokens).expect("a temporary folder takes 5 MB");
    shards::write_texts(&made.join("train-0.parquet"), &shards::texts(100_000, 1), 4096);
    (made.join("train.bin"), made.join("train-*.parquet").display().to_string())
}

async fn open(source: &Source, decoder: &Arc<dyn Decoder>, seed: u64) -> Result<Stream> {
    let batch = BatchSpec { seed, ..BatchSpec::default() };
    Stream::open(source, decoder, &batch, &StreamOptions::default(), Cursor::default())
}

/// Batches into a sink that only counts them.
async fn rows_per_second(source: &Source, decoder: &Arc<dyn Decoder>, seed: u64, rows: usize) -> Result<f64> {
    let begun = Instant::now();
    let mut stream = open(source, decoder, seed).await?;
    let mut seen = 0;
    while seen < rows {
        match stream.next().await? {
            Some(Item::Batch { batch, .. }) => seen += std::hint::black_box(batch).num_rows(),
            Some(Item::EpochEnd { .. }) => {}
            None => break,
        }
    }
    Ok(seen as f64 / begun.elapsed().as_secs_f64())
}

async fn first_batch(source: &Source, decoder: &Arc<dyn Decoder>, seed: u64) -> Result<Batch> {
    match open(source, decoder, seed).await?.next().await? {
        Some(Item::Batch { batch, .. }) => Ok(batch),
        _ => unreachable!("the data has rows, so a batch comes first"),
    }
}

/// An HMM that learns by anemone.
struct Hmm {
    backend: CpuBackend,
    optimizer: Box<dyn Optimizer>,
}

impl Hmm {
    fn new(latents: usize) -> Result<Self> {
        let circuit = Arc::new(hmm(WINDOW, latents, Categorical::new(VOCAB)?)?);
        let start = Params::random(&circuit, 1, 2.0)?;
        let mut backend = CpuBackend::new(circuit, &start, &CpuOptions::default())?;
        let optimizer = AnemoneSpec::default().build(&mut backend)?;
        Ok(Self { backend, optimizer })
    }

    fn rows_per_second(&mut self, batch: &Batch) -> Result<f64> {
        let begun = Instant::now();
        for _ in 0..3 {
            self.optimizer.learn(&mut self.backend, batch)?;
        }
        Ok(3.0 * batch.num_rows() as f64 / begun.elapsed().as_secs_f64())
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
