//! What is left when learning is over: structure and parameters, with where they come from.
//!
//! A model is a checkpoint without an optimizer, the same files in the same format, so whatever reads one reads the
//! other.

use std::path::Path;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::checkpoint::{CheckpointMeta, Contents, load_meta, load_model, write_folder};
use super::{Identity, Snapshot, View, ctrlg};
use crate::circuit::{Circuit, Params};
use crate::error::Result;

/// A model that was read and found whole.
#[derive(Clone, Debug)]
pub struct Model {
    /// The structure.
    pub circuit: Arc<Circuit>,
    /// Its parameters.
    pub params: Params,
    /// Where it comes from.
    pub meta: CheckpointMeta,
}

impl Model {
    /// The model, to be asked: likelihoods, conditionals, samples.
    pub fn view(&self) -> Result<View> {
        View::of(self.circuit.clone(), self.params.clone())
    }
}

/// Writes a snapshot's model as the folder `path`, whole or not at all; an older model of that name is replaced.
pub fn save(path: &Path, snapshot: &Snapshot, identity: &Identity, extra: &Map<String, Value>) -> Result<()> {
    let Snapshot { circuit, params, progress, .. } = snapshot;
    write_folder(path, &Contents { circuit, params, optimizer: None, progress, identity, extra })
}

/// Reads the model of a folder that [`save`] or `checkpoint::write` has made, or of one in Ctrl-G's format
/// ([`ctrlg`]). An optimizer's buffers are not looked at.
pub fn load(path: &Path) -> Result<Model> {
    if ctrlg::is_ctrlg(path) {
        return Ok(ctrlg::read(path, None)?.into_model());
    }
    let meta = load_meta(path)?;
    let (circuit, params) = load_model(path, &meta)?;
    Ok(Model { circuit, params, meta })
}
