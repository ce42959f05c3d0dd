//! Hidden Markov models in the folder that Ctrl-G keeps them in, to be written and read.
//!
//! | file | holds |
//! |---|---|
//! | `config.json` | `hidden_states`, `vocab_size`, `eos_token_id` |
//! | `model.safetensors` | `alpha_exp` `[states, states]`: p(next state \| state) |
//! | | `beta` `[states, symbols]`: log p(symbol \| state) |
//! | | `gamma` `[states]`: log p(first state) |
//!
//! That is what `ctrlg.HMM.from_pretrained` loads and `save_pretrained` writes (github.com/joshuacnf/Ctrl-G at db7c6ad,
//! with huggingface_hub 0.23). Such a model has no length; we note that of our rows in the header of the tensors, where
//! others do not look. A probability of zero is written as the logarithm −1e30, whose exponential is zero: −∞ would
//! become NaN there, where the logarithm of a missing token is multiplied by zero.
//!
//! [`model::load`](super::model::load) reads such a folder like any other model.

use std::collections::{BTreeMap, HashMap};
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::checkpoint::CheckpointMeta;
use super::foreign_tensors::ForeignTensors;
use super::model::Model;
use super::publish::publish;
use super::{Identity, Progress, hashed_file, model_file};
use crate::circuit::{Categorical, Circuit, Params};
use crate::error::{Error, Result};
use crate::files::read_regular;
use crate::query::chain::Chain;
use crate::structure::hmm;

const CONFIG: &str = "config.json";
const TENSORS: &str = "model.safetensors";
/// The file that a folder of ours has, and this one has not.
const OURS: &str = "checkpoint.json";

/// The note on how many variables a row has.
const ROW_LENGTH: &str = "row_length";
/// Under which key of its `extra` a model keeps the token that ends a text.
const END_OF_TEXT: &str = "end_of_text";
/// Under which key of its `extra` a model says whose format it came in.
const ORIGIN: &str = "origin";

/// The logarithm of zero.
const LOG_ZERO: f32 = -1e30;
/// Rows that sum to one within this are kept to the bit; it is what f32 makes of 50,000 logarithms.
const AS_IT_IS: f64 = 1e-5;
/// Rows that are farther from one than this are no distributions.
const FARTHEST: f64 = 1e-3;

/// A model that was read from such a folder.
#[derive(Clone, Debug)]
pub struct CtrlgModel {
    /// A homogeneous hidden Markov model.
    pub circuit: Arc<Circuit>,
    /// Its parameters.
    pub params: Params,
    /// The token that ends a text.
    pub end_of_text: u32,
    /// How far from one a row of probabilities was before it was normalised, at most; zero if all were kept as they
    /// are.
    pub farthest: f64,
}

/// Returns true if a folder holds a model in this format, by the names of its files.
pub fn is_ctrlg(path: &Path) -> bool {
    path.join(CONFIG).is_file() && path.join(TENSORS).is_file() && !path.join(OURS).exists()
}

/// Writes a chain whose steps share their parameters as the folder `path`, whole or not at all; an older folder of this
/// format is replaced. `end_of_text` is the token that ends a text.
///
/// ```
/// use anemone::circuit::{Categorical, Params};
/// use anemone::learner::ctrlg;
/// use anemone::structure::hmm;
///
/// let circuit = hmm(8, 3, Categorical::new(5)?)?;
/// let params = Params::random(&circuit, 1, 2.0)?;
/// let folder = tempfile::tempdir().unwrap().path().join("hmm");
/// ctrlg::write(&folder, &circuit, &params, 4)?;
/// let again = ctrlg::read(&folder, None)?;
/// assert_eq!((again.circuit.num_vars(), again.end_of_text), (8, 4));
/// # Ok::<(), anemone::Error>(())
/// ```
pub fn write(path: &Path, circuit: &Circuit, params: &Params, end_of_text: u32) -> Result<()> {
    let chain = Chain::of(circuit, params)?;
    let (states, symbols) = (chain.num_states(), chain.num_symbols());
    if !chain.is_homogeneous() || chain.num_vars() < 2 {
        return Err(Error::unsupported(
            "Ctrl-G's format has one matrix of transitions and one of emissions for all steps, and this model has not: \
             learn one with circuit.tying = \"homogeneous\" and at least two variables",
        ));
    }
    if end_of_text as usize >= symbols {
        return Err(Error::option(format!("end-of-text is {end_of_text}, which is outside 0..{symbols}")));
    }
    let alpha: Vec<f32> = (0..states).flat_map(|state| chain.transition_row(0, state)).map(|p| p as f32).collect();
    let emissions = chain.emissions(0); // [symbols × states]
    let beta: Vec<f32> =
        (0..states).flat_map(|state| emissions[state..].iter().step_by(states).map(|&p| log(f64::from(p)))).collect();
    let gamma: Vec<f32> = chain.initial().iter().map(|&p| log(p)).collect();
    let config = json!({"eos_token_id": end_of_text, "hidden_states": states, "vocab_size": symbols});
    let config = format!("{config:#}\n");
    let notes = HashMap::from([
        ("format".to_string(), "pt".to_string()), // as those who read it say that they wrote it
        (ROW_LENGTH.to_string(), chain.num_vars().to_string()),
    ]);
    publish(path, &[CONFIG, TENSORS], |folder| {
        hashed_file::write(&folder.join(CONFIG), |out| out.write_all(config.as_bytes()))?;
        let tensors = [
            ("alpha_exp", vec![states, states], &alpha[..]),
            ("beta", vec![states, symbols], &beta[..]),
            ("gamma", vec![states], &gamma[..]),
        ];
        model_file::write_tensors(&folder.join(TENSORS), tensors, notes)
    })
}

fn log(p: f64) -> f32 {
    if p > 0.0 { p.ln() as f32 } else { LOG_ZERO }
}

/// Reads a folder of this format. Rows have `length` variables; if nobody says, as many as the folder notes, which only
/// those do that we wrote.
pub fn read(path: &Path, length: Option<usize>) -> Result<CtrlgModel> {
    let config = Config::read(&path.join(CONFIG))?;
    let Config { states, symbols, end_of_text } = config;
    let mut file = ForeignTensors::open(&path.join(TENSORS))?;
    let noted = file.note(ROW_LENGTH).and_then(|noted| noted.parse().ok());
    let Some(length) = length.or(noted) else {
        return Err(Error::option(format!(
            "{}: a Ctrl-G model does not say how many tokens a row has: `anemone import` makes a model of it with \
             --length",
            path.display()
        )));
    };
    if length < 2 {
        return Err(Error::option(format!("length = {length}: a chain with transitions has at least two variables")));
    }
    let place = |name: &str| format!("{}: {name}", path.join(TENSORS).display());
    // Shapes are compared with the file before anything of their size is made.
    file.expect("alpha_exp", &[states, states])?;
    file.expect("beta", &[states, symbols])?;
    file.expect("gamma", &[states])?;
    let circuit = hmm(length, states, Categorical::new(symbols as u32)?)?;
    let mut values = vec![0.0f32; circuit.layout().num_values()];
    let blocks: Vec<_> = circuit.param_ids().map(|id| circuit.layout().block(id).values.clone()).collect();
    let mut farthest = 0.0f64;

    let mut alpha = file.take("alpha_exp")?;
    for (state, row) in alpha.chunks_exact_mut(states).enumerate() {
        let off = distribution(row).map_err(|why| bad_row(&place("alpha_exp"), state, &why))?;
        farthest = farthest.max(off);
    }
    values[blocks[1].clone()].copy_from_slice(&alpha);

    let mut beta = file.take("beta")?;
    let emissions = &mut values[blocks[0].clone()];
    for (state, row) in beta.chunks_exact_mut(symbols).enumerate() {
        row.iter_mut().for_each(|log| *log = f64::from(*log).exp() as f32);
        let off = distribution(row).map_err(|why| bad_row(&place("beta, as exponentials"), state, &why))?;
        farthest = farthest.max(off);
        row.iter().enumerate().for_each(|(symbol, &p)| emissions[symbol * states + state] = p);
    }

    // Whatever `gamma` sums to, Ctrl-G takes its softmax.
    let gamma = file.take("gamma")?;
    let nan = gamma.iter().copied().find(|log| log.is_nan());
    let largest = nan.unwrap_or_else(|| gamma.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    if !largest.is_finite() {
        return Err(Error::format(format!("{}: {largest} is no logarithm of a distribution", place("gamma"))));
    }
    let weights: Vec<f64> = gamma.iter().map(|&log| (f64::from(log) - f64::from(largest)).exp()).collect();
    let total: f64 = weights.iter().sum();
    values[blocks[2].clone()].iter_mut().zip(&weights).for_each(|(p, weight)| *p = (weight / total) as f32);

    let params = Params::from_values(&circuit, values).map_err(|e| e.at(path.display()))?;
    Ok(CtrlgModel { circuit: Arc::new(circuit), params, end_of_text, farthest })
}

impl CtrlgModel {
    /// The same as any other model, which remembers where it comes from.
    pub fn into_model(self) -> Model {
        let extra: Map<String, Value> =
            Map::from_iter([(END_OF_TEXT.into(), json!(self.end_of_text)), (ORIGIN.into(), json!("Ctrl-G"))]);
        let meta = CheckpointMeta {
            format: super::checkpoint::FORMAT,
            anemone: env!("CARGO_PKG_VERSION").to_string(),
            identity: Identity::default(),
            progress: Progress::default(),
            optimizer: None,
            extra,
            files: BTreeMap::new(),
        };
        Model { circuit: self.circuit, params: self.params, meta }
    }
}

impl Model {
    /// The token that ends a text, where the model says so: one that came in Ctrl-G's format does.
    pub fn end_of_text(&self) -> Option<u32> {
        self.meta.extra.get(END_OF_TEXT).and_then(Value::as_u64).and_then(|token| u32::try_from(token).ok())
    }

    /// Whose format the model came in, if it was not ours.
    pub fn origin(&self) -> Option<&str> {
        self.meta.extra.get(ORIGIN).and_then(Value::as_str)
    }
}

/// What `config.json` says.
struct Config {
    states: usize,
    symbols: usize,
    end_of_text: u32,
}

impl Config {
    fn read(path: &Path) -> Result<Self> {
        let place = path.display();
        let text = read_regular(path).map_err(|e| Error::io_at(path, &e))?;
        let value: Value =
            serde_json::from_slice(&text).map_err(|e| Error::format(format!("{place}: is no JSON: {e}")))?;
        let number = |key: &str| {
            let found = value.get(key).unwrap_or(&Value::Null);
            found.as_u64().and_then(|number| u32::try_from(number).ok()).ok_or_else(|| {
                Error::format(format!(
                    "{place}: `{key}` is {found}: Ctrl-G's models say hidden_states, vocab_size and eos_token_id there"
                ))
            })
        };
        let (states, symbols, end_of_text) = (number("hidden_states")?, number("vocab_size")?, number("eos_token_id")?);
        if states == 0 || symbols == 0 || end_of_text >= symbols {
            let found = format!("hidden_states {states}, vocab_size {symbols}, eos_token_id {end_of_text}");
            return Err(Error::format(format!("{place}: {found}: is no model; end-of-text is one of the tokens")));
        }
        Ok(Self { states: states as usize, symbols: symbols as usize, end_of_text })
    }
}

/// Normalises a row that is nearly a distribution; returns how far it was off, or zero if it was left alone.
fn distribution(row: &mut [f32]) -> std::result::Result<f64, String> {
    if let Some((at, p)) = row.iter().enumerate().find(|(_, p)| !(p.is_finite() && **p >= 0.0)) {
        return Err(format!("entry {at}: {p} is not a probability"));
    }
    let total: f64 = row.iter().map(|&p| f64::from(p)).sum();
    let off = (total - 1.0).abs();
    if off > FARTHEST {
        return Err(format!("sums to {total:.6}, and probabilities sum to one"));
    }
    if off <= AS_IT_IS {
        return Ok(0.0);
    }
    row.iter_mut().for_each(|p| *p = (f64::from(*p) / total) as f32);
    Ok(off)
}

fn bad_row(place: &str, state: usize, why: &str) -> Error {
    Error::format(format!("{place}: row {state}: {why}"))
}
