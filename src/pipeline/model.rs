//! `[circuit]` becomes a [`Circuit`] over the rows that a decoder makes.
//!
//! Hidden Chow–Liu trees are learned from a sample of rows, which the caller reads first ([`needs_sample`]); everything
//! else needs only the shape of a row. The same spec, shape and sample give the same circuit. [`estimate`] says what it
//! will take before anything is allocated. Called by `run` and by `anemone check`.

use std::path::Path;
use std::sync::Arc;

use serde::Serialize;

use super::observer::{Start, StartKind};
use super::spec::{CircuitSpec, InputKind, ModelSpec, PdSpec, StartSpec, TyingSpec, expand_path};
use crate::backend::cpu::bytes_per_row;
use crate::circuit::distribution::{LEAST_RATE, STD_BOUNDS};
use crate::circuit::{
    Bernoulli, Binomial, Categorical, Circuit, DiscreteLogistic, Distribution, Gaussian, NegativeBinomial, ParamKind,
    Params, Poisson, json,
};
use crate::data::{Batch, InputSpec};
use crate::decode::{RowShape, ValueKind};
use crate::error::{Error, Result};
use crate::optim::OptimizerSpec;
use crate::structure::{
    Clusters, HcltOptions, MutualInformation, PdOptions, ROWS_OF_A_START, RatSpnOptions, Spread, Spreads, Tree, Tying,
    factor_latents, has_densities, hclt, hmm_of, monarch_hmm, mutual_information_telling, pd, pdhclt_telling, rat_spn,
    start_densities, start_from_clusters, start_from_rows, start_sequence,
};

/// How deep a RAT-SPN is where nothing is said and there are variables enough.
const DEFAULT_DEPTH: usize = 4;

/// Pieces that a line, and the side of an image, are cut into where nothing is said.
const PIECES_OF_A_LINE: usize = 16;
const PIECES_OF_A_SIDE: usize = 4;

/// Returns true if the structure is learned from rows.
pub fn learns_structure(spec: &CircuitSpec) -> bool {
    matches!(spec.model, ModelSpec::Hclt { .. } | ModelSpec::Pdhclt(_))
}

/// Whether a circuit is built for what its rows are: its structure, or where the moments of its densities are taken
/// about.
pub fn needs_sample(spec: &CircuitSpec, shape: &RowShape) -> bool {
    learns_structure(spec) || !matches!(spec.model, ModelSpec::File { .. }) && has_normal_inputs(spec, shape)
}

/// Returns true if an input of these rows is a normal distribution.
fn has_normal_inputs(spec: &CircuitSpec, shape: &RowShape) -> bool {
    match &shape.columns[..] {
        [] => input_kind(spec, shape.values) == InputKind::Gaussian,
        columns => columns.contains(&InputSpec::Gaussian),
    }
}

/// Returns true if all inputs of these rows are tables.
pub fn are_tables(spec: &CircuitSpec, shape: &RowShape) -> bool {
    match &shape.columns[..] {
        [] => input_kind(spec, shape.values) == InputKind::Categorical,
        columns => columns.iter().all(|input| matches!(input, InputSpec::Categorical(_))),
    }
}

/// Builds the circuit. `sample` are rows to learn a tree and the spread of real columns from; `tell` is told how much
/// of that is done, from 0 to 1.
pub fn build_circuit(
    spec: &CircuitSpec,
    shape: &RowShape,
    sample: Option<&Batch>,
    tell: &(dyn Fn(f64) + Sync),
) -> Result<Circuit> {
    build(spec, shape, sample, tell).map_err(|e| e.at("circuit"))
}

fn build(spec: &CircuitSpec, shape: &RowShape, sample: Option<&Batch>, tell: &(dyn Fn(f64) + Sync)) -> Result<Circuit> {
    if let ModelSpec::File { path } = &spec.model {
        let (circuit, _) = json::load(Path::new(&expand_path(path)?))?;
        return check_fits(circuit, shape).map_err(|e| e.at(path));
    }
    let num_vars = shape.num_vars;
    let spreads = sample.filter(|_| has_normal_inputs(spec, shape)).map(Spreads::of_rows);
    let each: Vec<Arc<dyn Distribution>> = (0..num_vars)
        .map(|var| input(spec, shape, var, spreads.as_ref().map(|spreads| spreads.of(var))))
        .collect::<Result<_>>()?;
    if let Some(other) = shape.columns.iter().find(|&&input| spec.model.ties_inputs() && input != shape.columns[0]) {
        return Err(Error::option(format!(
            "model = \"{}\": all its variables share their inputs, and the columns of the table are not alike \
             ({}, {}): hclt and rat-spn have inputs for each",
            spec.model.name(),
            shape.columns[0].name(),
            other.name()
        )));
    }
    let shared = input(spec, shape, 0, spreads.as_ref().map(Spreads::shared))?;
    let each = |var: usize| if spec.model.ties_inputs() { shared.clone() } else { each[var].clone() };
    let sample = || {
        sample.ok_or_else(|| {
            Error::option(format!("model = {}: needs rows to learn its structure from", spec.model.name()))
        })
    };
    match &spec.model {
        ModelSpec::Hmm { latents, tying } => {
            let tying = match tying {
                TyingSpec::Homogeneous => Tying::Homogeneous,
                TyingSpec::Inhomogeneous => Tying::Inhomogeneous,
            };
            hmm_of(num_vars, *latents, each, tying)
        }
        ModelSpec::MonarchHmm { latents, factors } => {
            let factors = factors.map_or_else(|| factor_latents(*latents), Ok)?;
            monarch_hmm(num_vars, factors, shared.clone())
        }
        ModelSpec::Hclt { latents, components, tie_inputs } => {
            let tree = Tree::chow_liu(&mutual_information_telling(sample()?, MutualInformation::Auto, tell)?)?;
            hclt(&tree, *latents, each, HcltOptions { tie_inputs: *tie_inputs, components: *components })
        }
        ModelSpec::Pd(options) => {
            let (grid, options) = pd_options(options, spec.seed, shape)?;
            pd(&grid, &options, each)
        }
        ModelSpec::Pdhclt(options) => {
            let (grid, options) = pd_options(options, spec.seed, shape)?;
            pdhclt_telling(sample()?, &grid, &options, MutualInformation::Auto, each, tell)
        }
        ModelSpec::RatSpn { latents, depth, repetitions, pieces } => {
            let deepest = num_vars.checked_ilog(*pieces).unwrap_or(0) as usize;
            let depth = depth.unwrap_or(DEFAULT_DEPTH.min(deepest));
            let (latents, repetitions, pieces, seed) = (*latents, *repetitions, *pieces, spec.seed);
            rat_spn(num_vars, &RatSpnOptions { latents, depth, repetitions, pieces, seed }, each)
        }
        ModelSpec::File { .. } => unreachable!("read above"),
    }
}

/// What parameters start from, with how many rows of the stream are looked at for it at the most.
pub fn start_of(spec: &CircuitSpec, circuit: &Circuit) -> Start {
    let from = match spec.start {
        None => StartKind::File,
        Some(_) if starts_from_clusters(spec, circuit) => StartKind::Clusters,
        Some(StartSpec::Rows) => StartKind::Rows,
        Some(StartSpec::Noise) if has_densities(circuit) => StartKind::Densities,
        Some(StartSpec::Noise) => StartKind::Noise,
    };
    let rows = match from {
        StartKind::Noise => 0,
        StartKind::Rows if !has_densities(circuit) => spec.structure_rows.min(ROWS_OF_A_START as u64),
        StartKind::File if !has_densities(circuit) => 0,
        _ => spec.structure_rows,
    };
    Start { from, rows }
}

/// Returns true if rows make a start better, and the circuit can do without: not components, and not densities.
pub fn can_start_without(spec: &CircuitSpec, circuit: &Circuit) -> bool {
    start_of(spec, circuit).from == StartKind::Rows && !has_densities(circuit)
}

/// Components of a mixture that start from chance alone are soon one, so that they start from clusters whatever their
/// states start from.
fn starts_from_clusters(spec: &CircuitSpec, circuit: &Circuit) -> bool {
    matches!(spec.model, ModelSpec::Hclt { components: 2.., tie_inputs: false, .. })
        && input_categories(circuit).is_some()
}

/// The parameters to start from: those of the circuit's file; or random ones, moved to rows of `sample` as
/// [`start_of`] says.
pub fn initial_params(spec: &CircuitSpec, circuit: &Circuit, sample: Option<&Batch>) -> Result<Params> {
    if let ModelSpec::File { path } = &spec.model {
        let (_, params) = json::load(Path::new(&expand_path(path)?))?;
        if let Some(params) = params {
            params.check(circuit).map_err(|e| e.at(path))?;
            return Ok(params);
        }
    }
    let mut params = Params::random(circuit, spec.seed, spec.perturbation).map_err(|e| e.at("circuit"))?;
    let Some(sample) = sample else { return Ok(params) };
    let clusters = match (&spec.model, input_categories(circuit)) {
        (ModelSpec::Hclt { components, .. }, Some(cats)) if starts_from_clusters(spec, circuit) => {
            Some(Clusters::of_rows(sample, cats, *components, spec.seed).map_err(|e| e.at("circuit"))?)
        }
        _ => None,
    };
    if let Some(clusters) = &clusters {
        clusters.move_start(circuit, &mut params)?;
    }
    match (spec.start, clusters) {
        (Some(StartSpec::Rows), Some(clusters)) => {
            start_from_clusters(circuit, sample, &clusters, spec.seed, &mut params)?;
        }
        (Some(StartSpec::Rows), None) if spec.model.is_sequence() => start_sequence(circuit, sample, &mut params)?,
        (Some(StartSpec::Rows), None) => start_from_rows(circuit, sample, spec.seed, &mut params)?,
        (Some(StartSpec::Noise) | None, _) => {}
    }
    start_densities(circuit, sample, spec.seed, &mut params)?;
    Ok(params)
}

/// The most categories of a variable, if all inputs are tables.
fn input_categories(circuit: &Circuit) -> Option<u32> {
    let inputs = circuit.params().iter().filter_map(|block| match &block.kind {
        ParamKind::Input(input) => Some(input.is_table().then_some(input.num_params() as u32)),
        ParamKind::Sum { .. } => None,
    });
    inputs.collect::<Option<Vec<u32>>>()?.into_iter().max()
}

/// What inputs are, where the pipeline may leave it open.
pub fn input_kind(spec: &CircuitSpec, values: ValueKind) -> InputKind {
    spec.input.unwrap_or(match values {
        ValueKind::Categories(_) => InputKind::Categorical,
        ValueKind::Reals | ValueKind::Mixed => InputKind::Gaussian,
    })
}

/// What the inputs of a variable are.
fn input_spec(spec: &CircuitSpec, shape: &RowShape, var: usize) -> Result<InputSpec> {
    let refuse =
        |name: &str| Err(Error::option(format!("input = \"{name}\": needs categories, and the rows are real numbers")));
    if let Some(own) = shape.columns.get(var) {
        return match spec.input {
            None => Ok(*own),
            Some(_) => Err(Error::option(
                "input: the columns of a table have inputs of their own: say [columns.NAME] distribution = …",
            )),
        };
    }
    match (input_kind(spec, shape.values), shape.values) {
        (InputKind::Categorical, ValueKind::Categories(cats)) => Ok(InputSpec::Categorical(cats)),
        (InputKind::DiscreteLogistic, ValueKind::Categories(cats)) => Ok(InputSpec::DiscreteLogistic(cats)),
        (InputKind::Categorical, ValueKind::Reals | ValueKind::Mixed) => refuse("categorical"),
        (InputKind::DiscreteLogistic, ValueKind::Reals | ValueKind::Mixed) => refuse("discrete-logistic"),
        (InputKind::Gaussian, _) => Ok(InputSpec::Gaussian),
    }
}

/// The distribution of a variable. A normal one takes moments about the centre of its column, and is at least `min_std`
/// of its width wide.
fn input(spec: &CircuitSpec, shape: &RowShape, var: usize, spread: Option<Spread>) -> Result<Arc<dyn Distribution>> {
    Ok(match input_spec(spec, shape, var)? {
        InputSpec::Categorical(cats) => Categorical::new(cats)?,
        InputSpec::Bernoulli => Bernoulli::new(),
        InputSpec::Binomial(trials) => Binomial::new(trials)?,
        InputSpec::Poisson => Poisson::new(LEAST_RATE)?,
        InputSpec::NegativeBinomial => NegativeBinomial::new(LEAST_RATE)?,
        InputSpec::DiscreteLogistic(cats) => DiscreteLogistic::new(cats, (-1.0, 1.0), spec.min_std)?,
        InputSpec::Gaussian => {
            let Spread { centre, width } = spread.unwrap_or(Spread { centre: 0.0, width: 1.0 });
            Gaussian::new((spec.min_std * width).clamp(STD_BOUNDS.0, STD_BOUNDS.1), centre)?
        }
    })
}

/// The grid of the variables, and where it may be cut.
fn pd_options(spec: &PdSpec, seed: u64, shape: &RowShape) -> Result<(Vec<usize>, PdOptions)> {
    let grid = spec.shape.clone().or_else(|| shape.grid.clone()).unwrap_or_else(|| vec![shape.num_vars]);
    let on_grid = grid.iter().try_fold(1usize, |product, &axis| product.checked_mul(axis));
    if on_grid != Some(shape.num_vars) {
        return Err(Error::option(format!("shape = {grid:?}: must hold the {} variables of a row", shape.num_vars)));
    }
    let intervals = spec.intervals.clone().unwrap_or_else(|| default_intervals(&grid));
    if intervals.len() != grid.len() {
        return Err(Error::option(format!(
            "intervals = {intervals:?}: must have one number for each axis of {grid:?}"
        )));
    }
    let options = PdOptions {
        max_product_connections: spec.max_product_connections,
        block_size: spec.block_size,
        seed,
        ..PdOptions::new(intervals, spec.latents)
    };
    Ok((grid, options))
}

/// A line is cut into at most 16 pieces, the sides of an image into at most 4; its colours stay together.
pub(crate) fn default_intervals(grid: &[usize]) -> Vec<usize> {
    let interval = |(axis, &length): (usize, &usize)| match (grid.len(), axis) {
        (1, _) => length.div_ceil(PIECES_OF_A_LINE),
        (3.., 2..) => length,
        _ => length.div_ceil(PIECES_OF_A_SIDE),
    };
    grid.iter().enumerate().map(interval).collect()
}

/// Refuses a circuit of a file that is not over such rows. Categories are checked batch by batch anyway.
fn check_fits(circuit: Circuit, shape: &RowShape) -> Result<Circuit> {
    if circuit.num_vars() == shape.num_vars {
        return Ok(circuit);
    }
    Err(Error::option(format!(
        "the circuit has {} variables, a row has {}: change [decode] or the circuit",
        circuit.num_vars(),
        shape.num_vars
    )))
}

/// Bytes that a run will take, by what takes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct MemoryEstimate {
    /// The parameters.
    pub parameters: u64,
    /// What the optimizer keeps: flows, momentum, moments, one number per param row, averaged parameters.
    pub optimizer: u64,
    /// Values and flows of the rows that are worked on at once, on the CPU.
    pub activations: u64,
    /// Rows on their way.
    pub pipeline: u64,
}

impl MemoryEstimate {
    /// All together.
    pub fn total(&self) -> u64 {
        [self.parameters, self.optimizer, self.activations, self.pipeline].into_iter().fold(0, u64::saturating_add)
    }
}

/// What a run with batches of `batch_rows` will take, under the budgets of the backend and of the pipeline.
pub fn estimate(
    circuit: &Circuit,
    optimizer: &OptimizerSpec,
    batch_rows: usize,
    backend_budget: u64,
    pipeline_budget: u64,
) -> MemoryEstimate {
    let layout = circuit.layout();
    let per_row = bytes_per_row(circuit) as u64;
    let wanted = per_row.saturating_mul(batch_rows as u64);
    MemoryEstimate {
        parameters: 4 * layout.num_values() as u64,
        optimizer: optimizer.buffer_bytes(layout.num_stats() as u64, layout.num_rows() as u64)
            + if optimizer.average().is_on() { 4 * layout.num_values() as u64 } else { 0 },
        activations: wanted.min(backend_budget).max(per_row), // one row is worked on whatever the budget
        pipeline: pipeline_budget,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::cpu::{CpuBackend, CpuOptions};
    use crate::backend::{Backend, FlowPrecision, FlowsId, ParamRowsId, Tensor};
    use crate::optim::OPTIMIZERS;
    use crate::pipeline::spec::PipelineSpec;
    use crate::rng::Rng;

    fn spec(circuit: &str) -> CircuitSpec {
        let text = format!("[source]\nfiles = \"a.parquet\"\n[circuit]\n{circuit}");
        PipelineSpec::parse(&text, "p.toml").unwrap().circuit
    }

    fn shape(num_vars: usize, values: ValueKind, grid: Option<Vec<usize>>) -> RowShape {
        RowShape { grid, ..RowShape::of(num_vars, values) }
    }

    fn rows(num_vars: usize, cats: usize) -> Batch {
        let mut rng = Rng::new(3);
        let values: Vec<u8> = (0..40 * num_vars).map(|_| rng.below(cats) as u8).collect();
        Batch::from_rows(&values, num_vars).unwrap()
    }

    #[test]
    fn every_model_builds_and_is_over_the_variables_of_a_row() {
        let grid = shape(48, ValueKind::Categories(4), Some(vec![4, 4, 3]));
        let sample = rows(48, 4);
        for (text, sampled) in [
            ("model = \"hmm\"\nlatents = 4", false),
            ("model = \"hmm\"\nlatents = 4\ntying = \"inhomogeneous\"", false),
            ("model = \"monarch-hmm\"\nlatents = 12", false),
            ("model = \"monarch_hmm\"\nfactors = [2, 5]", false),
            ("model = \"hclt\"\nlatents = 4", true),
            ("model = \"hclt\"\nlatents = 4\ntie_inputs = true", true),
            ("model = \"hclt\"\nlatents = 4\ncomponents = 3", true),
            ("model = \"pd\"\nlatents = 4", false),
            ("model = \"pd\"\nlatents = 4\nshape = [6, 8]\nintervals = [3, 4]", false),
            ("model = \"pdhclt\"\nlatents = 4", true),
            ("model = \"rat-spn\"\nlatents = 4", false),
            ("model = \"hmm\"\nlatents = 4\ninput = \"discrete-logistic\"", false),
        ] {
            let spec = spec(text);
            assert_eq!(needs_sample(&spec, &grid), sampled, "{text}");
            let circuit = build_circuit(&spec, &grid, sampled.then_some(&sample), &|_| ()).expect(text);
            assert_eq!(circuit.num_vars(), 48, "{text}");
            initial_params(&spec, &circuit, None).unwrap().check(&circuit).unwrap();
            circuit.check_batch(&sample).expect(text);
        }
    }

    #[test]
    fn a_tree_without_rows_and_a_grid_that_does_not_fit_are_refused() {
        let line = shape(10, ValueKind::Categories(2), None);
        for (text, words) in [
            ("model = \"hclt\"", "needs rows"),
            ("model = \"pd\"\nshape = [3, 4]", "must hold the 10 variables"),
            ("model = \"pd\"\nintervals = [3, 4]", "one number for each axis of [10]"),
            ("model = \"monarch-hmm\"\nlatents = 7", "a prime"),
            ("model = \"rat-spn\"\ndepth = 9", "must be at most 3"),
        ] {
            let error = build_circuit(&spec(text), &line, None, &|_| ()).unwrap_err().to_string();
            assert!(error.starts_with("circuit") && error.contains(words), "{text}: {error}");
        }
        let reals = shape(10, ValueKind::Reals, None);
        assert!(build_circuit(&spec("input = \"categorical\""), &reals, None, &|_| ()).is_err());
        assert!(build_circuit(&spec("latents = 2"), &reals, None, &|_| ()).is_ok(), "reals are Gaussian by default");
    }

    #[test]
    fn the_start_is_what_the_pipeline_says_from_as_many_rows_as_it_says() {
        let (line, sample) = (shape(6, ValueKind::Categories(4), None), rows(6, 4));
        use StartKind::{Clusters, Densities, Noise, Rows};
        for (text, from, looked_at) in [
            ("model = \"hclt\"", Rows, 1024),
            ("model = \"hclt\"\nstructure_rows = 100", Rows, 100),
            ("model = \"hclt\"\nstart = \"noise\"", Noise, 0),
            ("model = \"hclt\"\ncomponents = 3", Clusters, 20_000),
            ("model = \"hclt\"\ncomponents = 3\nstart = \"noise\"", Clusters, 20_000),
            ("model = \"hclt\"\ncomponents = 3\ninput = \"categorical\"", Clusters, 20_000),
            ("model = \"hclt\"\ncomponents = 3\ntie_inputs = true", Rows, 1024),
            ("model = \"hclt\"\ncomponents = 3\ntie_inputs = true\nstart = \"noise\"", Noise, 0),
            ("model = \"hclt\"\ninput = \"discrete-logistic\"", Rows, 20_000),
            ("model = \"hclt\"\ncomponents = 3\ninput = \"discrete-logistic\"\nstart = \"noise\"", Densities, 20_000),
            ("model = \"hmm\"", Rows, 1024),
            ("model = \"hmm\"\ntying = \"inhomogeneous\"", Rows, 1024),
            ("model = \"hmm\"\nstart = \"noise\"", Noise, 0),
            ("model = \"hmm\"\ninput = \"discrete-logistic\"", Rows, 20_000),
            ("model = \"monarch-hmm\"\nfactors = [2, 2]", Rows, 1024),
            ("model = \"pd\"\nstart = \"rows\"", Rows, 1024),
            ("model = \"rat-spn\"", Noise, 0),
        ] {
            let latents = if text.contains("factors") { "" } else { "latents = 2" };
            let spec = spec(&format!("{text}\n{latents}"));
            let circuit = build_circuit(&spec, &line, Some(&sample), &|_| ()).unwrap();
            let chance = Params::random(&circuit, spec.seed, spec.perturbation).unwrap();
            let start = initial_params(&spec, &circuit, Some(&sample)).unwrap();
            start.check(&circuit).unwrap();
            assert_eq!(start_of(&spec, &circuit), Start { from, rows: looked_at }, "{text}");
            assert_eq!(start != chance, from != Noise, "{text}");
        }
        for start in ["rows", "noise"] {
            let many = spec(&format!("model = \"hclt\"\nlatents = 2\ncomponents = 41\nstart = \"{start}\""));
            let circuit = build_circuit(&many, &line, Some(&sample), &|_| ()).unwrap();
            let error = initial_params(&many, &circuit, Some(&sample)).unwrap_err().to_string();
            assert!(
                error.starts_with("circuit") && error.contains("components = 41: more than the 40 rows"),
                "{error}"
            );
        }
    }

    #[test]
    fn components_that_start_from_rows_are_weighed_by_their_clusters_too() {
        let (line, sample) = (shape(6, ValueKind::Categories(4), None), rows(6, 4));
        let text = "model = \"hclt\"\nlatents = 2\ncomponents = 3";
        let (by_rows, by_noise) = (spec(text), spec(&format!("{text}\nstart = \"noise\"")));
        let circuit = build_circuit(&by_rows, &line, Some(&sample), &|_| ()).unwrap();
        let [a, b] = [by_rows, by_noise].map(|spec| initial_params(&spec, &circuit, Some(&sample)).unwrap());
        let root = circuit.param_ids().find(|&id| circuit.layout().block(id).units() == 1).unwrap();
        assert_eq!(a.row(root, 0), b.row(root, 0));
        assert_ne!(a, b);
    }

    #[test]
    fn a_start_from_rows_is_the_same_on_any_number_of_threads() {
        let (line, sample) = (shape(6, ValueKind::Categories(4), None), rows(6, 4));
        for text in ["model = \"hmm\"", "model = \"hclt\"", "model = \"hclt\"\ncomponents = 3"] {
            let spec = spec(&format!("{text}\nlatents = 3"));
            let starts = [1, 3].map(|threads| {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                pool.install(|| {
                    let circuit = build_circuit(&spec, &line, Some(&sample), &|_| ()).unwrap();
                    initial_params(&spec, &circuit, Some(&sample)).unwrap()
                })
            });
            assert_eq!(starts[0], starts[1], "{text}");
        }
    }

    #[test]
    fn real_columns_have_the_origin_and_the_least_width_of_their_own_unless_they_are_tied() {
        let reals = shape(2, ValueKind::Reals, None);
        let values: Vec<f32> = (0..200).flat_map(|n| [n as f32 * 1e6, 3.0 + (n % 10) as f32 * 0.01]).collect();
        let sample = Batch::from_rows(&values, 2).unwrap();
        let options = |text: &str| {
            let circuit =
                build_circuit(&spec(&format!("{text}\nlatents = 2")), &reals, Some(&sample), &|_| ()).unwrap();
            let inputs = circuit.params().iter().filter_map(|block| match &block.kind {
                ParamKind::Input(input) => Some(input.options()),
                ParamKind::Sum { .. } => None,
            });
            inputs.map(|o| (o["origin"].as_f64().unwrap(), o["min_sigma"].as_f64().unwrap())).collect::<Vec<_>>()
        };
        for text in ["model = \"hclt\"", "model = \"rat-spn\"\nrepetitions = 1", "tying = \"inhomogeneous\""] {
            let mut found = options(text);
            found.sort_by(|a, b| a.0.total_cmp(&b.0));
            let [(near, narrow), (far, wide)] = found[..] else { panic!("{text}: {found:?}") };
            assert!((near - 3.05).abs() < 0.02 && (far - 1e8).abs() < 2e6, "{text}: {found:?}");
            assert!(narrow < 1e-3 && wide > 1e5, "{text}: {found:?}");
        }
        assert_eq!(options("tying = \"homogeneous\"").len(), 1);
    }

    #[test]
    fn a_circuit_of_a_file_keeps_its_parameters() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("circuit.json");
        let made = spec("latents = 3\nseed = 9");
        let shape = shape(4, ValueKind::Categories(2), None);
        let circuit = build_circuit(&made, &shape, None, &|_| ()).unwrap();
        let params = initial_params(&made, &circuit, None).unwrap();
        json::save(&path, &circuit, Some(&params)).unwrap();
        let file = spec(&format!("model = \"file\"\npath = '{}'", path.display()));
        let again = build_circuit(&file, &shape, None, &|_| ()).unwrap();
        assert_eq!(initial_params(&file, &again, None).unwrap(), params);
        let wide = RowShape { num_vars: 5, ..shape };
        let error = build_circuit(&file, &wide, None, &|_| ()).unwrap_err().to_string();
        assert!(error.contains("has 4 variables, a row has 5"), "{error}");
    }

    #[test]
    fn default_cuts_keep_lines_images_and_colours_small() {
        assert_eq!(default_intervals(&[805]), [51]);
        assert_eq!(default_intervals(&[7]), [1]);
        assert_eq!(default_intervals(&[16, 16, 3]), [4, 4, 3]);
        assert_eq!(default_intervals(&[28, 28]), [7, 7]);
    }

    /// Bytes of all flow and row buffers of a backend: handles are numbered from 0.
    fn buffer_bytes(backend: &mut CpuBackend) -> u64 {
        let (flows, rows) = (backend.new_flows(FlowPrecision::Single).unwrap(), backend.new_rows().unwrap());
        let flows = (0..flows.index).map(|index| backend.save_flows(FlowsId { index, ..flows }));
        let rows = (0..rows.index).map(|index| backend.save_rows(ParamRowsId { index, ..rows }));
        let bytes = flows.chain(rows).map(|tensor| match tensor.unwrap() {
            Tensor::F32(values) => 4 * values.len() as u64,
            Tensor::F64(values) => 8 * values.len() as u64,
        });
        bytes.sum()
    }

    #[test]
    fn the_estimate_counts_every_buffer_of_an_optimizer() {
        let circuit = Arc::new(
            build_circuit(&spec("latents = 3"), &shape(4, ValueKind::Categories(5), None), None, &|_| ()).unwrap(),
        );
        let layout = circuit.layout().clone();
        let (stats, rows) = (layout.num_stats() as u64, layout.num_rows() as u64);
        let params = Params::random(&circuit, 1, 2.0).unwrap();
        for name in OPTIMIZERS {
            for batches in [1, 2] {
                let text = match name {
                    "full_batch_em" => "[learn]\noptimizer = \"full_batch_em\"".to_string(),
                    _ => format!("[learn]\noptimizer = \"{name}\"\nbatches_per_update = {batches}"),
                };
                let text = format!("[source]\nfiles = \"a.parquet\"\n{text}");
                let optimizer = PipelineSpec::parse(&text, "p.toml").unwrap().learn.optimizer;
                let mut backend = CpuBackend::new(circuit.clone(), &params, &CpuOptions::default()).unwrap();
                optimizer.build(&mut backend).unwrap();
                assert_eq!(optimizer.buffer_bytes(stats, rows), buffer_bytes(&mut backend), "{text}");
            }
        }
    }

    #[test]
    fn activations_stay_under_the_budget() {
        let circuit =
            build_circuit(&spec("latents = 3"), &shape(4, ValueKind::Categories(5), None), None, &|_| ()).unwrap();
        let optimizer = OptimizerSpec::FullBatchEm(crate::optim::FullBatchEmSpec::default());
        let small = estimate(&circuit, &optimizer, 1, 1 << 30, 7);
        let large = estimate(&circuit, &optimizer, 1_000_000, 1 << 20, 7);
        assert!(small.activations > 0 && small.activations < 10_000);
        assert_eq!((large.activations, large.pipeline), (1 << 20, 7));
        assert_eq!(small.parameters, 4 * circuit.layout().num_values() as u64);
        assert_eq!(large.total(), large.parameters + large.optimizer + large.activations + 7);
    }
}
