//! What large models cost: the time and memory of one anemone step, or of the mutual information behind a tree.
//!
//!     cargo run --release --example large -- hmm  1024 50257 128 512
//!     cargo run --release --example large -- hclt 256  256   768 512
//!     cargo run --release --example large -- tree 256 768 20000
//!
//! Arguments: `hmm` or `hclt`, latents, categories, variables, rows of the batch and, if wanted, a number of steps; or
//! `tree`, categories, variables, rows. Data is random. The peak is the whole process's resident memory as Linux
//! reports it.

use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

use anemone::backend::cpu::{CpuBackend, CpuOptions};
use anemone::circuit::{Categorical, Params};
use anemone::data::Batch;
use anemone::optim::AnemoneSpec;
use anemone::rng::Rng;
use anemone::structure::{HcltOptions, MutualInformation, Tree, hclt, hmm, mutual_information};

const USAGE: &str =
    "usage: large hmm|hclt LATENTS CATEGORIES VARIABLES ROWS [STEPS] | large tree CATEGORIES VARIABLES ROWS";

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (what, numbers) = args.split_first().ok_or(USAGE)?;
    let numbers: Vec<usize> = numbers.iter().map(|n| n.parse()).collect::<Result<_, _>>().map_err(|_| USAGE)?;
    match (what.as_str(), &numbers[..]) {
        ("hmm" | "hclt", &[latents, cats, vars, rows]) => learn(what, latents, cats, vars, rows, 1)?,
        ("hmm" | "hclt", &[latents, cats, vars, rows, steps]) => learn(what, latents, cats, vars, rows, steps)?,
        ("tree", &[cats, vars, rows]) => grow(cats, vars, rows)?,
        _ => return Err(USAGE.into()),
    }
    match peak_memory() {
        Some(gib) => println!("peak memory     {gib:.2} GiB"),
        None => println!("peak memory     unknown on this system"),
    }
    Ok(())
}

/// Takes anemone steps on one batch.
fn learn(
    what: &str,
    latents: usize,
    cats: usize,
    vars: usize,
    rows: usize,
    steps: usize,
) -> Result<(), Box<dyn Error>> {
    let mut rng = Rng::new(1);
    let symbols = Categorical::new(u32::try_from(cats)?)?;
    let circuit = Arc::new(match what {
        "hmm" => hmm(vars, latents, symbols)?,
        // A random tree of the shape that images give: every variable hangs from one of the twelve before it.
        _ => {
            let parent = |v: usize, rng: &mut Rng| (v > 0).then(|| v - 1 - rng.below(v.min(12)));
            let parents: Vec<_> = (0..vars).map(|v| parent(v, &mut rng)).collect();
            hclt(&Tree::from_parents(&parents)?, latents, |_| symbols.clone(), HcltOptions::default())?
        }
    });
    println!("parameters      {}", circuit.layout().num_values());
    let params = Params::random(&circuit, 1, 2.0)?;
    let mut backend = CpuBackend::new(circuit, &params, &CpuOptions::default())?;
    drop(params);
    let mut optimizer = AnemoneSpec::default().build(&mut backend)?;
    let batch = random_batch(&mut rng, cats, vars, rows)?;
    println!("rows at once    {}", backend.micro_batch_rows().min(rows));
    for _ in 0..steps {
        let clock = Instant::now();
        let report = optimizer.learn(&mut backend, &batch)?;
        let seconds = clock.elapsed().as_secs_f64();
        println!("step            {seconds:.2} s, log-likelihood {:.3}", report.batch.mean_log_likelihood());
    }
    Ok(())
}

/// Grows a Chow-Liu tree.
fn grow(cats: usize, vars: usize, rows: usize) -> Result<(), Box<dyn Error>> {
    let batch = random_batch(&mut Rng::new(1), cats, vars, rows)?;
    let clock = Instant::now();
    let information = mutual_information(&batch, MutualInformation::Auto)?;
    println!("information     {:.2} s for {} pairs", clock.elapsed().as_secs_f64(), vars * (vars - 1) / 2);
    let tree = Tree::chow_liu(&information)?;
    println!("tree            {:.2} s, root {}", clock.elapsed().as_secs_f64(), tree.root());
    Ok(())
}

fn random_batch(rng: &mut Rng, cats: usize, vars: usize, rows: usize) -> anemone::Result<Batch> {
    let values: Vec<u16> = (0..rows * vars).map(|_| rng.below(cats) as u16).collect();
    Batch::from_rows(&values, vars)
}

/// Peak resident memory of this process, in GiB.
fn peak_memory() -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let kib = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB"))?;
    Some(kib.parse::<f64>().ok()? / f64::from(1 << 20))
}
