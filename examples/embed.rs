//! A learner inside a program of your own: rows come from wherever you have them, and anybody may ask while it learns.
//!
//!     cargo run --release --example embed
//!
//! Here a machine with two moods writes rows of symbols and slowly changes its habits. One task watches the machine and
//! feeds an HMM; another asks, between the batches, how likely the model finds a row of the first hour and one of the
//! last. In the end everything is written to a folder, read back, and asked again.

use std::error::Error;
use std::sync::Arc;

use anemone::backend::cpu::{CpuBackend, CpuOptions};
use anemone::circuit::{Categorical, Circuit, Params};
use anemone::data::Batch;
use anemone::learner::{Checkpoint, Identity, Learner, checkpoint};
use anemone::optim::AnemoneSpec;
use anemone::rng::Rng;
use anemone::structure::hmm;

const LENGTH: usize = 24; // symbols in a row
const SYMBOLS: usize = 6;
const BATCHES: usize = 300;
const ROWS: usize = 64; // in a batch

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    // The structure says what can be learned: 8 hidden states, the same habits at every place of a row.
    let circuit = Arc::new(hmm(LENGTH, 8, Categorical::new(SYMBOLS as u32)?)?);
    let learner = start(&circuit, None)?;

    // A handle is cheap to clone: one for whoever has data, one for whoever has questions.
    let feeding = tokio::spawn(feed(learner.clone()));
    let probes = probes()?;
    let mut next = 0;
    while !feeding.is_finished() {
        let answers = learner.log_likelihoods(probes.clone()).await?; // waits its turn between two batches
        let progress = learner.progress(); // never waits
        if progress.batches >= next {
            let [first, last] = answers[..] else { return Err("two rows have two answers".into()) };
            print!("{:>4} batches: a row of the first hour {first:>7.2}, of the last {last:>7.2}", progress.batches);
            // How well it foretold the batches it has learned from since.
            println!(
                "{}",
                progress.prequential.recent_mean().map_or(String::new(), |mean| format!(", foretold {mean:.2}"))
            );
            next += 50;
        }
    }
    feeding.await??;

    // Parameters, optimizer and counters of one moment, in a folder that appears whole or not at all.
    let folder = tempfile::tempdir()?;
    let path = checkpoint::write(folder.path(), &learner.snapshot().await?, &Identity::default(), &Default::default())?;
    let before = learner.log_likelihoods(probes.clone()).await?;
    learner.close().await?;

    // Another day, another process: the same circuit goes on to the same bits.
    let checkpoint = checkpoint::load(&path)?;
    let learner = start(&circuit, Some(&checkpoint))?;
    let after = learner.log_likelihoods(probes).await?;
    println!("before {before:?}\nafter  {after:?}, at row {}", learner.progress().cursor.row);
    if before == after { Ok(()) } else { Err("the checkpoint is not what was learned".into()) }
}

fn start(circuit: &Arc<Circuit>, resume: Option<&Checkpoint>) -> anemone::Result<Learner> {
    let params = Params::random(circuit, 1, 2.0)?; // replaced by those of a checkpoint
    let mut backend = Box::new(CpuBackend::new(circuit.clone(), &params, &CpuOptions::default())?);
    let optimizer = AnemoneSpec::default().build(&mut *backend)?;
    Learner::spawn(backend, optimizer, resume)
}

/// Watches the machine. `learn` waits while the learner is busy, so this never runs ahead of it.
async fn feed(learner: Learner) -> anemone::Result<()> {
    let mut rng = Rng::new(7);
    for batch in 0..BATCHES {
        let drift = batch as f64 / BATCHES as f64;
        let rows: Vec<u8> = (0..ROWS).flat_map(|_| machine(&mut rng, drift)).collect();
        learner.learn(Batch::from_rows(&rows, LENGTH)?).await?;
    }
    Ok(())
}

/// One row: a mood that lasts, a favourite symbol for each mood, and some noise. With time one mood comes to like
/// another.
fn machine(rng: &mut Rng, drift: f64) -> Vec<u8> {
    let mut mood = rng.below(2);
    let row = (0..LENGTH).map(|_| {
        if rng.uniform() < 0.1 {
            mood = 1 - mood;
        }
        let favourite = match mood {
            0 => 0,
            _ if rng.uniform() < drift => 5,
            _ => 3,
        };
        if rng.uniform() < 0.8 { favourite } else { rng.below(SYMBOLS) as u8 }
    });
    row.collect()
}

/// Two rows to ask about: symbols of the first hour and of the last.
fn probes() -> anemone::Result<Batch> {
    let row = |favourite: u8| (0..LENGTH).map(move |i| if i < LENGTH / 2 { 0 } else { favourite });
    let rows: Vec<u8> = row(3).chain(row(5)).collect();
    Batch::from_rows(&rows, LENGTH)
}
