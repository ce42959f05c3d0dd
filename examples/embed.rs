//! A learner inside a program of your own: rows come from wherever you have them, and other tasks ask while it learns.
//!
//!     cargo run --release --example embed
//!
//! A machine with two moods writes rows of symbols and slowly changes its habits. One task watches it and feeds an HMM;
//! this one asks how likely the model finds a row of the first hour and one of the last, and what follows a beginning.
//! Then the learner is closed, and another one resumes from its checkpoint.

use anemone::{Batch, Categorical, Learner, hmm};

const BATCHES: u64 = 300;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // The structure says what can be learned: 8 hidden states, the same habits at every place of a row.
    let circuit = hmm(machine::LENGTH, 8, Categorical::new(machine::SYMBOLS)?)?;
    let state = tempfile::tempdir()?;
    let learner = Learner::on(circuit.clone()).resume(state.path()).spawn()?; // starts afresh: the folder is empty

    // A handle is cheap to clone: one for the task that has data, one for the task that has questions.
    let feeding = tokio::spawn(feed(learner.clone()));
    let probes = Batch::from_rows(&machine::probes(), machine::LENGTH)?;
    while !feeding.is_finished() {
        let view = learner.view().await?; // one θ for every question below
        if view.batches() % 50 == 0 {
            let [first, last] = view.log_likelihoods(&probes)?[..] else { unreachable!("two rows") };
            println!("{:>4} batches: a row of the first hour {first:>7.2}, of the last {last:>7.2}", view.batches());
        }
        tokio::task::yield_now().await;
    }
    feeding.await??;

    // What follows the first half of a row: how likely the rest is, and three completions.
    let view = learner.view().await?;
    let known = probes.clone().with_missing(|_, var| var >= machine::LENGTH / 2);
    println!("given the first half, the rest has {:.2?} nats", view.conditional(&probes, &known)?);
    println!("completions: {:?}", view.sample_given(&known.slice(0..1), 3, 7)?.column(machine::LENGTH - 1));

    // Another day, another process: bit-identical.
    learner.checkpoint(state.path()).await?;
    let before = learner.log_likelihoods(probes.clone()).await?;
    learner.close().await?;
    let learner = Learner::on(circuit).resume(state.path()).spawn()?;
    let after = learner.log_likelihoods(probes).await?;
    println!("before {before:?}\nafter  {after:?}, at row {}", learner.progress().rows);
    if before == after { Ok(()) } else { Err("the checkpoint is not what was learned".into()) }
}

/// Watches the machine. `learn` waits while the learner is busy, so this never runs ahead of it.
async fn feed(learner: Learner) -> anemone::Result<()> {
    let mut machine = machine::Machine::new();
    for batch in 0..BATCHES {
        let rows = machine.rows(64, batch as f64 / BATCHES as f64);
        learner.learn(Batch::from_rows(&rows, machine::LENGTH)?).await?;
    }
    Ok(())
}

/// The data generator.
mod machine {
    pub const LENGTH: usize = 24; // symbols in a row
    pub const SYMBOLS: u32 = 6;

    /// A mood that lasts, a favourite symbol for each mood, and some noise. With time one mood comes to like another.
    pub struct Machine {
        state: u64,
    }

    impl Machine {
        pub fn new() -> Self {
            Self { state: 7 }
        }

        pub fn rows(&mut self, rows: usize, drift: f64) -> Vec<u8> {
            (0..rows).flat_map(|_| self.row(drift)).collect()
        }

        fn row(&mut self, drift: f64) -> Vec<u8> {
            let mut mood = self.below(2);
            let mut symbol = || {
                if self.uniform() < 0.1 {
                    mood = 1 - mood;
                }
                let favourite = match mood {
                    0 => 0,
                    _ if self.uniform() < drift => 5,
                    _ => 3,
                };
                if self.uniform() < 0.8 { favourite } else { self.below(u64::from(SYMBOLS)) as u8 }
            };
            (0..LENGTH).map(|_| symbol()).collect()
        }

        /// Any generator will do.
        fn uniform(&mut self) -> f64 {
            self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.state >> 11) as f64 / (1u64 << 53) as f64
        }

        fn below(&mut self, most: u64) -> u64 {
            (self.uniform() * most as f64) as u64
        }
    }

    /// Two rows to ask about: symbols of the first hour and of the last.
    pub fn probes() -> Vec<u8> {
        let row = |favourite: u8| (0..LENGTH).map(move |i| if i < LENGTH / 2 { 0 } else { favourite });
        row(3).chain(row(5)).collect()
    }
}
