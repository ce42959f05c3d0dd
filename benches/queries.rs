//! Questions beside learning: `cargo bench --bench queries`.
//!
//! An HMM with 256 states over 50,257 words and 128 places, and an HCLT with 32 latents over 768 variables of 256
//! categories. Printed are rows per second of an anemone step and of an evaluation, and of each question with what it
//! is of one or the other; half of the cells of a row are missing where something is. Posterior marginals come in two
//! forms: as mixtures, of which one probability a cell is computed (that of the value that was hidden), and with the
//! probabilities of all categories, which for 50,257 words is more than thirty times the arithmetic of learning.
//! Last come milliseconds of one next word of the HMM under a constraint, after half a row and at its end: automata of
//! 50 states, one that looks for a phrase of 49 words and one in which every word leads anywhere, the worst case.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use anemone::backend::Backend;
use anemone::backend::cpu::{CpuBackend, CpuOptions};
use anemone::optim::AnemoneSpec;
use anemone::query::Function;
use anemone::query::dfa::{Dfa, Order, contains};
use anemone::rng::Rng;
use anemone::structure::{HcltOptions, Tree};
use anemone::{Batch, Categorical, Circuit, Params, Result, View, hclt, hmm};

fn main() -> Result<()> {
    let chain = hmm(128, 256, Categorical::new(50_257)?)?;
    measure("hmm-256, 128 of 50,257 words", chain.clone(), 50_257, 512, 16)?;
    let parents: Vec<Option<usize>> = (0..768).map(|v: usize| v.checked_sub(1).map(|v| v / 2)).collect();
    let tree =
        hclt(&Tree::from_parents(&parents)?, 32, |_| Categorical::new(256).expect("some"), HcltOptions::default())?;
    measure("hclt-32, 768 of 256", tree, 256, 512, 512)?;
    next_words(chain)
}

fn measure(name: &str, circuit: Circuit, cats: u32, rows: usize, rows_with_all: usize) -> Result<()> {
    let circuit = Arc::new(circuit);
    let params = Params::random(&circuit, 1, 2.0)?;
    let vars = circuit.num_vars();
    let mut rng = Rng::new(7);
    // Few values are common.
    let values: Vec<u16> = (0..rows * vars).map(|_| (f64::from(cats - 1) * rng.uniform().powi(4)) as u16).collect();
    let whole = Batch::from_rows(&values, vars)?;
    let mask: Vec<bool> = (0..rows * vars).map(|_| rng.below(2) == 0).collect();
    let half = whole.clone().with_missing(|row, var| mask[row * vars + var]);
    let few = half.slice(0..rows_with_all);

    let mut backend = CpuBackend::new(circuit.clone(), &params, &CpuOptions::default())?;
    let eval = rate(rows, || backend.log_likelihoods(&whole).map(drop))?;
    let mut optimizer = AnemoneSpec::default().build(&mut backend)?;
    let learn = rate(rows, || optimizer.learn(&mut backend, &whole).map(drop))?;
    drop(backend);
    let view = View::of(circuit, params)?;
    println!("{name}: learning {learn:.0} rows/s, evaluation {eval:.0} rows/s");
    let show = |what: &str, rate: f64, of: f64, unit: &str| {
        println!("  {what:<34} {rate:>8.1} rows/s, {:.2} of {unit}", rate / of)
    };
    let scored = rate(rows, || view.log_likelihoods_spread(&whole).map(drop))?;
    show("log-likelihoods of a view", scored, eval, "evaluation");
    let hidden = |row: usize, var: usize| u32::from(values[row * vars + var]);
    let posteriors = rate(rows, || {
        view.for_each_posterior(&half, |row, var, posterior| {
            black_box(posterior.probability(hidden(row, var)));
        })
    })?;
    show("posteriors, one category each", posteriors, learn, "learning");
    let marginals = rate(rows_with_all, || view.posterior_marginals(&few).map(drop))?;
    show("posterior marginals, all categories", marginals, learn, "learning");
    let functions = vec![Function::Identity; vars];
    show("expectations", rate(rows, || view.expectations(&half, &functions).map(drop))?, learn, "learning");
    show("surprise", rate(rows, || view.surprise(&whole).map(drop))?, learn, "learning");
    show("sample_given, one each", rate(rows, || view.sample_given(&half, 1, 3).map(drop))?, learn, "learning");
    show("mpe", rate(rows, || view.mpe(&half).map(drop))?, eval, "evaluation");
    Ok(())
}

fn next_words(circuit: Circuit) -> Result<()> {
    const WORDS: usize = 50_257;
    const STATES: usize = 50;
    let circuit = Arc::new(circuit);
    let length = circuit.num_vars();
    let view = View::of(circuit.clone(), Params::random(&circuit, 1, 2.0)?)?;
    let mut rng = Rng::new(7);
    let anywhere: Vec<u8> = (0..STATES * WORDS).map(|_| rng.below(STATES) as u8).collect();
    let phrase: Vec<u32> = (0..STATES as u32 - 1).collect();
    println!("hmm-256, 128 of 50,257 words, one next word");
    for (name, dfa) in [
        ("a phrase of 49 words", contains(&[phrase], WORDS, Order::AsListed)?),
        ("50 states, from each to all", {
            let next = |state: usize, word: u32| usize::from(anywhere[state * WORDS + word as usize]);
            Dfa::from_fn(WORDS, STATES, 0, next, |state| state < STATES / 4)?
        }),
    ] {
        assert_eq!(dfa.num_states(), STATES);
        let begun = Instant::now();
        let constrained = view.constrained(dfa, length)?;
        println!("  {name:<34} tables {:.1} s", begun.elapsed().as_secs_f64());
        for known in [length / 2, length - 1] {
            let prefix: Vec<u32> = (0..known as u32).collect();
            let next = 1000.0 / rate(1, || constrained.next(&prefix).map(drop))?;
            let chances = 1000.0 / rate(1, || constrained.chances(&prefix).map(drop))?;
            println!("  {:<34} {next:>8.1} ms, chances {chances:.1} ms", format!("  after {known}"));
        }
    }
    Ok(())
}

/// Rows per second, the best of some runs after one that warms up.
fn rate(rows: usize, mut act: impl FnMut() -> Result<()>) -> Result<f64> {
    act()?;
    let mut best = f64::INFINITY;
    for _ in 0..4 {
        let begun = Instant::now();
        act()?;
        best = best.min(begun.elapsed().as_secs_f64());
    }
    Ok(rows as f64 / best)
}
