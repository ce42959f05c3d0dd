//! A checkpoint as bytes, to the same bits: how one rank gives others what it has read.
//!
//! A JSON header with its length before it (structure, counters, names and lengths of buffers), then all numbers,
//! little-endian. For processes of one version that run at the same time; what is kept is in `checkpoint`.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::checkpoint::{Checkpoint, CheckpointMeta};
use crate::backend::Tensor;
use crate::circuit::Params;
use crate::circuit::json::{read_circuit, write_circuit};
use crate::error::{Error, Result};
use crate::optim::OptimizerState;

#[derive(Serialize, Deserialize)]
struct Header {
    circuit: String,
    meta: CheckpointMeta,
    num_params: usize,
    /// Name, whether it is in double precision, and length.
    buffers: Vec<(String, bool, usize)>,
}

impl Checkpoint {
    /// Everything, as bytes.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let buffers = self.optimizer.iter().flat_map(|state| &state.buffers);
        let described = buffers.clone().map(|(name, tensor)| match tensor {
            Tensor::F32(numbers) => (name.clone(), false, numbers.len()),
            Tensor::F64(numbers) => (name.clone(), true, numbers.len()),
        });
        let header = Header {
            circuit: write_circuit(&self.circuit, None),
            meta: self.meta.clone(),
            num_params: self.params.values().len(),
            buffers: described.collect(),
        };
        let header = serde_json::to_vec(&header).map_err(|e| Error::internal(format!("a checkpoint as bytes: {e}")))?;
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header);
        bytes.extend(self.params.values().iter().flat_map(|x| x.to_le_bytes()));
        for (_, tensor) in buffers {
            match tensor {
                Tensor::F32(numbers) => bytes.extend(numbers.iter().flat_map(|x| x.to_le_bytes())),
                Tensor::F64(numbers) => bytes.extend(numbers.iter().flat_map(|x| x.to_le_bytes())),
            }
        }
        Ok(bytes)
    }

    /// What [`to_bytes`](Self::to_bytes) wrote.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let mut rest = bytes;
        let mut take = |len: usize| rest.split_off(..len).ok_or_else(|| cut_off(bytes.len()));
        let len = u64::from_le_bytes(take(8)?.try_into().expect("eight bytes")) as usize;
        let header: Header =
            serde_json::from_slice(take(len)?).map_err(|e| Error::state(format!("a checkpoint as bytes: {e}")))?;
        let (circuit, _) = read_circuit(&header.circuit)?;
        let params = Params::from_values(&circuit, singles(take(4 * header.num_params)?))?;
        let optimizer = match &header.meta.optimizer {
            None => None,
            Some(small) => {
                let mut buffers = BTreeMap::new();
                for (name, is_double, len) in header.buffers {
                    let tensor = match is_double {
                        false => Tensor::F32(singles(take(4 * len)?)),
                        true => Tensor::F64(doubles(take(8 * len)?)),
                    };
                    buffers.insert(name, tensor);
                }
                let (counters, numbers) = (small.counters.clone(), small.numbers.clone());
                Some(OptimizerState { optimizer: small.optimizer.clone(), counters, numbers, buffers })
            }
        };
        Ok(Self { circuit: Arc::new(circuit), params, optimizer, meta: header.meta })
    }
}

fn cut_off(len: usize) -> Error {
    Error::state(format!("a checkpoint as bytes: {len} of them are not all"))
}

fn singles(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|x| f32::from_le_bytes(x.try_into().expect("four bytes"))).collect()
}

fn doubles(bytes: &[u8]) -> Vec<f64> {
    bytes.chunks_exact(8).map(|x| f64::from_le_bytes(x.try_into().expect("eight bytes"))).collect()
}
