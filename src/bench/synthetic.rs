//! A circuit of a given size on rows that suit it.

use std::sync::Arc;

use super::flops::flops_per_row;
use super::host::{Host, reset_peak_memory};
use super::rows::Rows;
use super::steps::Timing;
use super::trees::{CHANNELS, local_tree, side};
use super::{Line, Reference, Setting, Speed, Subject};
use crate::circuit::{Categorical, Circuit, Params};
use crate::data::Batch;
use crate::error::{Error, Result};
use crate::optim::OptimizerSpec;
use crate::pipeline::build::refuse_too_large;
use crate::pipeline::model::{default_intervals, estimate};
use crate::pipeline::observer::Phases;
use crate::rng::Rng;
use crate::structure::{HcltOptions, MutualInformation, PdOptions, hclt, hmm, monarch_hmm, pdhclt};

/// Batches that are made beforehand: enough that none is still in a cache when it comes again.
const POOL: usize = 4;

/// Variables of a row: no circuit with more of them could be kept.
const MOST_VARS: usize = 1 << 20;

/// Values in a batch. More take no longer a value, only more memory.
const MOST_CELLS: usize = 1 << 30;

/// Rows that the small trees of a PDHCLT are found from.
const STRUCTURE_ROWS: usize = 512;

/// The usual spread of a random start.
const PERTURBATION: f64 = 2.0;

/// Which structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A hidden Markov model over tokens.
    Hmm,
    /// The same with a Monarch matrix of two equal factors as its transition.
    Monarch,
    /// A hidden Chow–Liu tree over an image.
    Hclt,
    /// A Poon–Domingos circuit over an image, with trees in its smallest boxes.
    Pdhclt,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Hmm, Self::Monarch, Self::Hclt, Self::Pdhclt];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Hmm => "hmm",
            Self::Monarch => "monarch",
            Self::Hclt => "hclt",
            Self::Pdhclt => "pdhclt",
        }
    }

    /// The size that it is usually measured at.
    pub fn usual_sizes(self) -> Sizes {
        match self {
            Self::Hmm => Sizes { latents: 256, vars: 128, cats: 50_257 },
            Self::Monarch => Sizes { latents: 1024, vars: 128, cats: 50_257 },
            Self::Hclt | Self::Pdhclt => Sizes { latents: 64, vars: 768, cats: 256 },
        }
    }

    fn rows(self, sizes: Sizes) -> Result<Rows> {
        match self {
            Self::Hmm | Self::Monarch => Rows::tokens(sizes.vars, sizes.cats),
            Self::Hclt | Self::Pdhclt => Rows::fields(sizes.vars, sizes.cats),
        }
    }
}

/// How large a circuit is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Hidden states, units of a region.
    pub latents: usize,
    /// Variables of a row.
    pub vars: usize,
    /// Categories of a variable.
    pub cats: u32,
}

/// A circuit and batches for it, the same for every optimizer.
#[derive(Clone, Debug)]
pub struct Synthetic {
    kind: Kind,
    sizes: Sizes,
    seed: u64,
    circuit: Arc<Circuit>,
    pool: Vec<Batch>,
}

impl Synthetic {
    /// Builds the circuit and makes the rows.
    pub fn new(kind: Kind, sizes: Sizes, batch_rows: usize, seed: u64) -> Result<Self> {
        if sizes.vars > MOST_VARS {
            return Err(Error::option(format!("vars = {}: must be at most {MOST_VARS}", sizes.vars)));
        }
        let circuit = build(kind, sizes, seed)?;
        let rows = kind.rows(sizes)?;
        if batch_rows == 0 || batch_rows.checked_mul(sizes.vars).is_none_or(|cells| cells > MOST_CELLS) {
            let most = MOST_CELLS / sizes.vars;
            return Err(Error::option(format!("batch_rows = {batch_rows}: must be from 1 to {most}")));
        }
        let batch = |stream| rows.batch(batch_rows, &mut Rng::stream(seed, stream));
        let pool = (1..=POOL as u64).map(batch).collect::<Result<_>>()?;
        Ok(Self { kind, sizes, seed, circuit: Arc::new(circuit), pool })
    }

    /// Which structure it is.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Times an optimizer, from the same start for each. Refuses what this machine has not enough memory for.
    pub fn measure(
        &self,
        spec: &OptimizerSpec,
        setting: &Setting,
        (warmup, steps): (usize, usize),
        reference: &mut Reference,
    ) -> Result<Line> {
        reset_peak_memory();
        let batch_rows = self.pool[0].num_rows();
        let budget = setting.place.memory_budget() as u64;
        refuse_too_large(&estimate(&self.circuit, spec, batch_rows, budget, 0))?;
        let start = Params::random(&self.circuit, self.seed, PERTURBATION)?;
        let mut backend = setting.place.place(&self.circuit, &start)?.0;
        drop(start); // the backend has its own; twice the parameters would be in the peak
        let mut optimizer = spec.build(&mut *backend)?;
        let timing = Timing::measure(&mut *backend, &mut *optimizer, &self.pool, warmup, steps)?;
        let host = Host::look();
        reference.again();
        let median = timing.median();
        let flops = flops_per_row(&self.circuit);
        let speed = Speed::new(timing.num_steps() as u64, batch_rows as f64, median.seconds, flops);
        let phases = median.phases;
        let mut line = Line {
            subject: Subject {
                bench: "synthetic",
                circuit: self.kind.name().into(),
                latents: Some(self.sizes.latents),
                vars: self.sizes.vars,
                cats: Some(self.sizes.cats),
                parameters: self.circuit.layout().num_values() as u64,
                optimizer: spec.name().into(),
                device: setting.device.clone(),
                precision: setting.precision.clone(),
                isa: setting.isa.clone(),
                threads: setting.threads(),
                batch_rows,
                ..Subject::default()
            },
            speed: Speed {
                step_seconds_min: Some(timing.fastest().seconds),
                update_seconds: timing.update_seconds,
                ..speed.with_phases(Phases {
                    prepare: phases.prepare,
                    forward: phases.forward,
                    backward: phases.backward,
                    flows: phases.flows,
                    update: phases.update,
                    ..Phases::default()
                })
            },
            log_likelihood: timing.log_likelihood,
            standing: None,
            host,
        };
        line.hold_against(reference);
        Ok(line)
    }
}

/// The circuit of a kind and a size.
pub fn build(kind: Kind, sizes: Sizes, seed: u64) -> Result<Circuit> {
    let Sizes { latents, vars, cats } = sizes;
    let categories = Categorical::new(cats)?;
    let each = |_: usize| categories.clone() as _;
    match kind {
        Kind::Hmm => hmm(vars, latents, categories.clone()),
        Kind::Monarch => {
            let factor = latents.isqrt();
            if factor < 2 || factor * factor != latents {
                let (below, above) = (factor.max(2).pow(2), (factor + 1).max(3).pow(2));
                return Err(Error::option(format!(
                    "latents = {latents}: monarch takes a square, such as {below} or {above}"
                )));
            }
            monarch_hmm(vars, (factor, factor), categories.clone())
        }
        Kind::Hclt => hclt(&local_tree(vars, seed)?, latents, each, HcltOptions::default()),
        Kind::Pdhclt => {
            let shape = side(vars).map_or_else(|| vec![vars], |side| vec![side, side, CHANNELS]);
            let sample = kind.rows(sizes)?.batch(STRUCTURE_ROWS, &mut Rng::stream(seed, 0))?;
            let options = PdOptions { seed, ..PdOptions::new(default_intervals(&shape), latents) };
            pdhclt(&sample, &shape, &options, MutualInformation::Auto, each)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::PlaceSpec;
    use crate::optim::AnemoneSpec;

    fn sizes(kind: Kind) -> Sizes {
        let latents = if kind == Kind::Monarch { 9 } else { 4 };
        Sizes { latents, vars: 12, cats: 6 }
    }

    #[test]
    fn every_kind_learns_and_its_line_adds_up() {
        let mut reference = Reference { threads: 1, gflops: 10.0 };
        let place = PlaceSpec { threads: Some(1), ..PlaceSpec::default() };
        let setting = Setting { place, device: "cpu".into(), precision: "f32".into(), isa: "auto".into() };
        let spec = OptimizerSpec::Anemone(AnemoneSpec::default());
        for kind in Kind::ALL {
            let synthetic = Synthetic::new(kind, sizes(kind), 33, 1).unwrap();
            let line = synthetic.measure(&spec, &setting, (1, 3), &mut reference).unwrap();
            assert_eq!((line.subject.circuit.as_str(), line.subject.vars, line.speed.steps), (kind.name(), 12, 3));
            let speed = line.speed;
            let flops = flops_per_row(&build(kind, sizes(kind), 1).unwrap());
            assert_eq!(speed.gflop_per_row, flops as f64 / 1e9);
            assert!((speed.rows_per_second * speed.step_seconds - 33.0).abs() < 1e-6);
            assert!((speed.bound * speed.gemm_gflops / speed.gflops - 1.0).abs() < 1e-9);
            assert!(speed.gemm_gflops >= 10.0 && line.log_likelihood.unwrap() < 0.0);
        }
    }

    #[test]
    fn every_batch_of_the_pool_is_another_and_the_seed_decides() {
        let pool = |seed| Synthetic::new(Kind::Hclt, sizes(Kind::Hclt), 5, seed).unwrap().pool;
        let one = pool(1);
        assert!((1..POOL).all(|i| !one[..i].contains(&one[i])));
        assert_eq!(one, pool(1));
        assert_ne!(one, pool(2));
    }

    #[test]
    fn sizes_that_make_no_circuit_are_refused() {
        for (kind, latents, words) in [
            (Kind::Monarch, 10, "latents = 10: monarch takes a square, such as 9 or 16"),
            (Kind::Monarch, 1, "such as 4 or 9"),
            (Kind::Hmm, 0, "latents = 0"),
            (Kind::Hclt, 0, "latents = 0"),
        ] {
            let error = build(kind, Sizes { latents, ..sizes(kind) }, 1).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
        let huge = Sizes { vars: usize::MAX, ..sizes(Kind::Hclt) };
        assert!(Synthetic::new(Kind::Hclt, huge, 1, 1).unwrap_err().to_string().contains("must be at most 1048576"));
        for rows in [0, usize::MAX] {
            let error = Synthetic::new(Kind::Hmm, sizes(Kind::Hmm), rows, 1).unwrap_err().to_string();
            assert!(error.contains("must be from 1 to"), "{error}");
        }
    }
}
