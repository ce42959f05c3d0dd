//! One anemone step of a large model on random data: how long, and how much memory.
//!
//!     cargo run --release --example large_step -- hmm  1024 50257 128 512
//!     cargo run --release --example large_step -- hclt 256  256   768 512
//!
//! Arguments: structure, latents, categories, variables, rows of the batch, and if wanted a number of steps. The peak
//! is the whole process's resident memory as the operating system (Linux) reports it.

use std::sync::Arc;
use std::time::Instant;

use anemone::backend::Backend;
use anemone::backend::cpu::{CpuBackend, CpuOptions};
use anemone::circuit::{Categorical, Params};
use anemone::data::Batch;
use anemone::optim::AnemoneSpec;
use anemone::rng::Rng;
use anemone::structure::{HcltOptions, Tree, Tying, hclt, hmm};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [structure, latents, cats, vars, rows, rest @ ..] = &args[..] else {
        return Err("usage: large_step hmm|hclt LATENTS CATEGORIES VARIABLES ROWS [STEPS]".into());
    };
    let (latents, cats): (usize, u32) = (latents.parse()?, cats.parse()?);
    let (vars, rows): (usize, usize) = (vars.parse()?, rows.parse()?);
    let steps: usize = rest.first().map_or(Ok(1), |s| s.parse())?;

    let mut rng = Rng::new(1);
    let symbols = Categorical::new(cats)?;
    let circuit = match structure.as_str() {
        "hmm" => hmm(vars, latents, symbols, Tying::Homogeneous)?,
        // A random tree of the shape that images give: every variable hangs from one of the twelve before it.
        "hclt" => {
            let parents: Vec<Option<usize>> =
                (0..vars).map(|v| (v > 0).then(|| v - 1 - rng.below(v.min(12)))).collect();
            hclt(&Tree::from_parents(&parents)?, latents, |_| symbols.clone(), HcltOptions::default())?
        }
        other => return Err(format!("structure `{other}` is unknown: hmm or hclt").into()),
    };
    let circuit = Arc::new(circuit);
    println!("parameters      {}", circuit.layout().num_values());

    let params = Params::random(&circuit, 1, 2.0)?;
    let mut backend = CpuBackend::new(circuit, &params, &CpuOptions::default())?;
    drop(params);
    let mut optimizer = AnemoneSpec::default().build(&mut backend)?;
    let values: Vec<u16> = (0..rows * vars).map(|_| rng.below(cats as usize) as u16).collect();
    let batch = Batch::from_rows(&values, vars)?;
    println!("rows at once    {}", backend.micro_batch_rows().min(rows));
    for _ in 0..steps {
        let clock = Instant::now();
        let report = optimizer.learn(&mut backend, &batch)?;
        let seconds = clock.elapsed().as_secs_f64();
        println!("step            {seconds:.2} s, log-likelihood {:.3}", report.batch.mean_log_likelihood());
    }
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|l| l.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB")?.parse::<f64>().ok());
    match peak {
        Some(kib) => println!("peak memory     {:.2} GiB", kib / (1 << 20) as f64),
        None => println!("peak memory     unknown on this system"),
    }
    Ok(())
}
