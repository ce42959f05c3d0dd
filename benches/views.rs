//! Questions while a circuit learns: `cargo bench --bench views`.
//!
//! Eight threads ask views of an HMM with 256 states over 50,257 words without a pause, half of them for a new view
//! each time, while it learns batches of several sizes. Printed are the times of answers (of a view at hand, and of
//! getting a new one), and whether learning ended with the bits of a learner that nobody asked. An answer is computed
//! by the thread that asks, so its time should not depend on the size of the batches; to get a new view is to wait for
//! the batch that is being learned.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anemone::{Batch, Categorical, Circuit, Learner, Params, Result, hmm};

const LENGTH: usize = 128;
const WORDS: u32 = 50_257;
const THREADS: usize = 8;

fn main() -> Result<()> {
    let circuit = std::sync::Arc::new(hmm(LENGTH, 256, Categorical::new(WORDS)?)?);
    println!("{THREADS} threads ask, milliseconds: median, 90 %, 99 %");
    for (rows, batches) in [(64, 64), (512, 8), (2048, 2)] {
        let quiet = learn(&circuit, rows, batches, 0)?;
        let asked = learn(&circuit, rows, batches, THREADS)?;
        let same = quiet.params.values() == asked.params.values();
        println!(
            "batches of {rows:>4}: an answer {}, a new view {}; {} answers; {}",
            quantiles(asked.answers.clone()),
            quantiles(asked.views),
            asked.answers.len(),
            if same { "the same bits" } else { "OTHER BITS" }
        );
        assert!(same, "asking changed what was learned");
    }
    Ok(())
}

struct Asked {
    params: Params,
    answers: Vec<Duration>,
    views: Vec<Duration>,
}

fn learn(circuit: &std::sync::Arc<Circuit>, rows: usize, batches: u64, threads: usize) -> Result<Asked> {
    let learner = Learner::on(circuit.clone()).spawn()?;
    let over = AtomicBool::new(false);
    let (answers, views) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
    let probe = words(1, 99)?;
    thread::scope(|scope| -> Result<()> {
        for number in 0..threads {
            let (learner, over, answers, views, probe) = (learner.clone(), &over, &answers, &views, &probe);
            scope.spawn(move || {
                let mut view = learner.view_blocking().expect("the learner lives");
                while !over.load(Ordering::Relaxed) {
                    if number % 2 == 0 {
                        let clock = Instant::now();
                        view = learner.view_blocking().expect("the learner lives");
                        views.lock().expect("no thread panics").push(clock.elapsed());
                    }
                    let clock = Instant::now();
                    view.log_likelihoods(probe).expect("the row fits");
                    answers.lock().expect("no thread panics").push(clock.elapsed());
                }
            });
        }
        for seed in 0..batches {
            learner.learn_blocking(words(rows, seed)?)?;
        }
        over.store(true, Ordering::Relaxed);
        Ok(())
    })?;
    let take = |times: Mutex<Vec<Duration>>| times.into_inner().expect("no thread panics");
    Ok(Asked { params: learner.params_blocking()?, answers: take(answers), views: take(views) })
}

/// Words of which few are common.
fn words(rows: usize, seed: u64) -> Result<Batch> {
    let mut state = seed.wrapping_mul(2).wrapping_add(1);
    let mut word = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let uniform = (state >> 11) as f64 / (1u64 << 53) as f64;
        (f64::from(WORDS - 1) * uniform.powi(4)) as u16
    };
    Batch::from_rows(&(0..rows * LENGTH).map(|_| word()).collect::<Vec<_>>(), LENGTH)
}

fn quantiles(mut times: Vec<Duration>) -> String {
    if times.is_empty() {
        return "–".into();
    }
    times.sort_unstable();
    let at = |part: f64| times[((times.len() - 1) as f64 * part) as usize].as_secs_f64() * 1e3;
    format!("{:.1} / {:.1} / {:.1}", at(0.5), at(0.9), at(0.99))
}
