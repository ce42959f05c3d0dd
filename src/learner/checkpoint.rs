//! A learner as a folder of files, written and read back to the same bits.
//!
//! | file | holds |
//! |---|---|
//! | `circuit.json` | the structure, as `circuit::json` writes it without parameters |
//! | `model.safetensors` | the parameters, one tensor a block |
//! | `optimizer.safetensors` | the optimizer's buffers; not in a model |
//! | `checkpoint.json` | the rest ([`CheckpointMeta`]), with the SHA-256 of each of the other files and of itself |
//!
//! A checkpoint appears whole or not at all (`publish`) and is read only if every byte is as it was written.
//! Parameters, optimizer and cursor are of one moment, so a stream that begins at the cursor continues the run.
//! [`CheckpointFolder`] keeps several checkpoints; [`model`](super::model) is the same folder without an optimizer.
//!
//! [`CheckpointFolder`]: super::CheckpointFolder

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub use super::hashed_file::FileHash;
use super::hashed_file::{self, CheckedReader, cannot_read, damaged};
use super::publish::publish;
use super::{Identity, Progress, Snapshot, model_file};
use crate::circuit::json::{read_circuit, write_circuit};
use crate::circuit::{Circuit, Params};
use crate::data::Digest;
use crate::error::{Error, Result};
use crate::files::read_regular;
use crate::optim::OptimizerState;

/// The format this version writes, and the newest that it reads.
pub(super) const FORMAT: u32 = 1;

const META: &str = "checkpoint.json";
const CIRCUIT: &str = "circuit.json";
const MODEL: &str = "model.safetensors";
const OPTIMIZER: &str = "optimizer.safetensors";

/// A checkpoint that was read and found whole.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    /// The structure.
    pub circuit: Arc<Circuit>,
    /// Its parameters.
    pub params: Params,
    /// What the optimizer needs besides; a model has none.
    pub optimizer: Option<OptimizerState>,
    /// All else.
    pub meta: CheckpointMeta,
}

/// What a checkpoint says about itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CheckpointMeta {
    /// Version of the format.
    pub format: u32,
    /// The version of this crate that wrote it.
    pub anemone: String,
    /// What the parameters were learned from, and how.
    pub identity: Identity,
    /// Counters, and the place in the stream that the parameters belong to.
    pub progress: Progress,
    /// The optimizer's counters; its buffers are in a file of their own. A model has none.
    pub optimizer: Option<OptimizerCounters>,
    /// Whatever else the run keeps with its parameters: validation history, counters of bad records, the pipeline's
    /// text.
    pub extra: Map<String, Value>,
    /// Every other file.
    pub files: BTreeMap<String, FileHash>,
}

/// The small part of an [`OptimizerState`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OptimizerCounters {
    /// Which optimizer it belongs to.
    pub optimizer: String,
    /// Updates made, batches waiting.
    pub counters: BTreeMap<String, u64>,
    /// Weights of what is waiting.
    pub numbers: BTreeMap<String, f64>,
}

impl Checkpoint {
    /// What would be read if a snapshot were written.
    pub fn of(snapshot: Snapshot, identity: &Identity, extra: Map<String, Value>) -> Self {
        let Snapshot { circuit, params, optimizer, progress } = snapshot;
        let meta = CheckpointMeta {
            format: FORMAT,
            anemone: env!("CARGO_PKG_VERSION").to_string(),
            identity: identity.clone(),
            progress,
            optimizer: Some(counters(&optimizer)),
            extra,
            files: BTreeMap::new(),
        };
        Self { circuit, params, optimizer: Some(optimizer), meta }
    }

    /// The same without what the optimizer had gathered: to go on with another one.
    pub fn without_optimizer(mut self) -> Self {
        (self.optimizer, self.meta.optimizer) = (None, None);
        self
    }
}

/// Writes a snapshot as `dir/step-…` and returns that path. On any failure nothing has changed.
pub fn write(dir: &Path, snapshot: &Snapshot, identity: &Identity, extra: &Map<String, Value>) -> Result<PathBuf> {
    let target = dir.join(step_name(snapshot.progress.batches));
    let Snapshot { circuit, params, optimizer, progress } = snapshot;
    write_folder(&target, &Contents { circuit, params, optimizer: Some(optimizer), progress, identity, extra })?;
    Ok(target)
}

/// The name of the checkpoint after `step` batches.
pub(super) fn step_name(step: u64) -> String {
    format!("step-{step:010}")
}

/// What goes into a folder.
pub(super) struct Contents<'a> {
    pub circuit: &'a Circuit,
    pub params: &'a Params,
    pub optimizer: Option<&'a OptimizerState>,
    pub progress: &'a Progress,
    pub identity: &'a Identity,
    pub extra: &'a Map<String, Value>,
}

pub(super) fn write_folder(target: &Path, contents: &Contents<'_>) -> Result<()> {
    contents.params.check(contents.circuit)?;
    publish(target, &[META, CIRCUIT, MODEL, OPTIMIZER], |folder| {
        let structure = write_circuit(contents.circuit, None);
        let mut files = BTreeMap::from([
            (CIRCUIT.into(), hashed_file::write(&folder.join(CIRCUIT), |out| out.write_all(structure.as_bytes()))?),
            (MODEL.into(), model_file::write_params(&folder.join(MODEL), contents.circuit, contents.params)?),
        ]);
        if let Some(state) = contents.optimizer {
            files.insert(OPTIMIZER.into(), model_file::write_buffers(&folder.join(OPTIMIZER), &state.buffers)?);
        }
        let text = frame(&CheckpointMeta {
            format: FORMAT,
            anemone: env!("CARGO_PKG_VERSION").to_string(),
            identity: contents.identity.clone(),
            progress: contents.progress.clone(),
            optimizer: contents.optimizer.map(counters),
            extra: contents.extra.clone(),
            files,
        })?;
        hashed_file::write(&folder.join(META), |out| out.write_all(text.as_bytes()))?;
        Ok(())
    })
}

fn counters(state: &OptimizerState) -> OptimizerCounters {
    let OptimizerState { optimizer, counters, numbers, .. } = state;
    OptimizerCounters { optimizer: optimizer.clone(), counters: counters.clone(), numbers: numbers.clone() }
}

/// Reads a checkpoint, or a model, and checks every byte of it.
pub fn load(path: &Path) -> Result<Checkpoint> {
    let meta = load_meta(path)?;
    let (circuit, params) = load_model(path, &meta)?;
    let optimizer = match &meta.optimizer {
        None => None,
        Some(OptimizerCounters { optimizer, counters, numbers }) => Some(OptimizerState {
            optimizer: optimizer.clone(),
            counters: counters.clone(),
            numbers: numbers.clone(),
            buffers: model_file::read_buffers(&path.join(OPTIMIZER), listed(path, &meta, OPTIMIZER)?)?,
        }),
    };
    for (name, hash) in meta.files.iter().filter(|(name, _)| ![CIRCUIT, MODEL, OPTIMIZER].contains(&&***name)) {
        CheckedReader::open(&path.join(name), hash)?.finish()?;
    }
    Ok(Checkpoint { circuit, params, optimizer, meta })
}

/// Reads what a checkpoint says about itself, and none of the large files.
pub fn load_meta(path: &Path) -> Result<CheckpointMeta> {
    let place = path.join(META).display().to_string();
    if !path.is_dir() {
        return Err(Error::missing_path(format!(
            "{}: is not a folder, and a checkpoint or model is one",
            path.display()
        )));
    }
    let text = read_regular(&path.join(META)).map_err(|e| cannot_read(&place, &e))?;
    unframe(&text, &place)
}

pub(super) fn load_model(path: &Path, meta: &CheckpointMeta) -> Result<(Arc<Circuit>, Params)> {
    let place = path.join(CIRCUIT).display().to_string();
    let text = hashed_file::read_all(&path.join(CIRCUIT), listed(path, meta, CIRCUIT)?)?;
    let text = String::from_utf8(text).map_err(|_| damaged(&place, "is no text"))?;
    let (circuit, _) = read_circuit(&text).map_err(|e| e.at(place))?;
    let params = model_file::read_params(&path.join(MODEL), listed(path, meta, MODEL)?, &circuit)?;
    Ok((Arc::new(circuit), params))
}

fn listed<'a>(path: &Path, meta: &'a CheckpointMeta, name: &str) -> Result<&'a FileHash> {
    let missing = || damaged(&path.join(META).display().to_string(), &format!("does not list {name}"));
    meta.files.get(name).ok_or_else(missing)
}

// `checkpoint.json` is a JSON object of the body and its hash. The text around the body is fixed to the byte, so that
// the hash of the body covers the whole file.
const BEFORE_BODY: &str = "{\n\"body\": ";
const BEFORE_HASH: &str = ",\n\"sha256\": \"";
const AFTER_HASH: &str = "\"\n}\n";

fn frame(meta: &CheckpointMeta) -> Result<String> {
    let body = serde_json::to_string_pretty(meta).map_err(|e| Error::state(format!("{META}: cannot be saved: {e}")))?;
    let hash = Digest::of(body.as_bytes());
    let text = [BEFORE_BODY, &body, BEFORE_HASH, &hash, AFTER_HASH].concat();
    // JSON has no NaN: better to hear of one now than on the day the checkpoint is needed.
    match unframe(text.as_bytes(), META) {
        Ok(again) if again == *meta => Ok(text),
        Ok(_) => Err(Error::state(format!("{META}: cannot be saved: it would come back changed"))),
        Err(e) => Err(Error::state(format!("{META}: cannot be saved: {e}"))),
    }
}

fn unframe(text: &[u8], place: &str) -> Result<CheckpointMeta> {
    let text = str::from_utf8(text).map_err(|_| damaged(place, "is no text"))?;
    let inner = text.strip_prefix(BEFORE_BODY).and_then(|text| text.strip_suffix(AFTER_HASH));
    let Some((body, hash)) = inner.and_then(|inner| inner.rsplit_once(BEFORE_HASH)) else {
        return Err(damaged(place, "is not whole"));
    };
    let found = Digest::of(body.as_bytes());
    if found != hash {
        return Err(damaged(place, &format!("its body's SHA-256 is {found:.12}… and must be {hash:.12}…")));
    }
    // Whole, so what it says is what was written: the version comes before everything that depends on it.
    let body: Value = serde_json::from_str(body).map_err(|e| damaged(place, &format!("is no JSON: {e}")))?;
    let format = body.get("format").and_then(Value::as_u64);
    match format {
        Some(format) if format > u64::from(FORMAT) => {
            let version = body.get("anemone").and_then(Value::as_str).unwrap_or("another version");
            Err(Error::unsupported(format!(
                "{place}: anemone {version} wrote it in format {format}, this one reads up to {FORMAT}: use a newer \
                 anemone"
            )))
        }
        Some(_) => serde_json::from_value(body).map_err(|e| damaged(place, &e.to_string())),
        None => Err(damaged(place, "has no format number")),
    }
}
