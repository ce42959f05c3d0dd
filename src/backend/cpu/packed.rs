//! Weights that several nodes share, packed once for all tiles of all batches until they change.

use rayon::prelude::*;

use super::fixed::Fixed;
use super::kernels::Arithmetic;
use super::kernels::product::{Matrix, Packed};
use super::workers::Workers;
use crate::circuit::BlockLayout;

/// A weight matrix, packed for both directions.
#[derive(Default)]
pub(super) struct PackedWeights {
    /// Wᵀ.
    pub forward: Packed,
    /// W.
    pub backward: Packed,
}

/// The shared weights of a backend, packed.
pub(super) struct PackedBlocks {
    /// By block; `None` for those that one node uses, which workers pack tile by tile.
    pub blocks: Vec<Option<PackedWeights>>,
    /// The arithmetic they were packed for; `None` where they are not of the parameters as they are now.
    packed_for: Option<Arithmetic>,
}

impl PackedBlocks {
    /// Nothing is packed yet.
    pub fn new(fixed: &Fixed) -> Self {
        Self { blocks: unpacked(fixed), packed_for: None }
    }

    /// The next to pack has other parameters.
    pub fn forget(&mut self) {
        self.packed_for = None;
    }

    /// Packs the weights, if they have changed or were packed for another arithmetic: training and evaluation take
    /// turns of many batches.
    pub fn pack(&mut self, fixed: &Fixed, workers: &Workers, arithmetic: Arithmetic, theta: &[f32]) {
        if self.packed_for == Some(arithmetic) {
            return;
        }
        self.packed_for = Some(arithmetic);
        workers.install(|| {
            self.blocks.par_iter_mut().zip(fixed.circuit.layout().blocks()).for_each(|(packed, layout)| {
                let Some(packed) = packed else { return };
                let weights = weights(layout, theta);
                rayon::join(
                    || packed.forward.pack_transposed(arithmetic, weights),
                    || packed.backward.pack(arithmetic, weights),
                );
            });
        });
    }
}

/// The shared weights packed for the forward pass alone, on this thread.
pub(super) fn pack_forward(fixed: &Fixed, arithmetic: Arithmetic, theta: &[f32]) -> Vec<Option<PackedWeights>> {
    let mut blocks = unpacked(fixed);
    for (packed, layout) in blocks.iter_mut().zip(fixed.circuit.layout().blocks()) {
        if let Some(packed) = packed {
            packed.forward.pack_transposed(arithmetic, weights(layout, theta));
        }
    }
    blocks
}

/// The same for both directions.
pub(super) fn pack_both(fixed: &Fixed, arithmetic: Arithmetic, theta: &[f32]) -> Vec<Option<PackedWeights>> {
    let mut blocks = pack_forward(fixed, arithmetic, theta);
    for (packed, layout) in blocks.iter_mut().zip(fixed.circuit.layout().blocks()) {
        if let Some(packed) = packed {
            packed.backward.pack(arithmetic, weights(layout, theta));
        }
    }
    blocks
}

fn unpacked(fixed: &Fixed) -> Vec<Option<PackedWeights>> {
    fixed.stages.tied.iter().map(|tied| tied.map(|_| PackedWeights::default())).collect()
}

fn weights<'a>(layout: &BlockLayout, theta: &'a [f32]) -> Matrix<'a> {
    let (units, cols) = (layout.units(), layout.values_per_row);
    Matrix::new(&theta[layout.values.clone()], units, cols, cols)
}
