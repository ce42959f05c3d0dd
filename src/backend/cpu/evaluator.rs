//! Likelihoods under parameters that do not change, asked from any number of threads at once.
//!
//! An evaluator shares what is fixed with the backend it comes from and nothing else: every call runs on the thread
//! that makes it, so it never waits for a batch that is being learned. It gives the bits of
//! `CpuBackend::log_likelihoods`, because a row's value does not depend on the rows beside it, nor on who computes it.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use super::CpuOptions;
use super::fixed::Fixed;
use super::forward::{self, Pass};
use super::packed::{PackedWeights, pack_forward};
use super::questions::Questions;
use super::scratch::Scratch;
use super::shared::ReadOnly;
use super::step::rescue;
use super::tile::{MOST_TILE_ROWS, Tile};
use crate::backend::micro_batch::pieces;
use crate::circuit::{Circuit, Params};
use crate::data::Batch;
use crate::error::Result;

/// A circuit with parameters that stay as they are.
pub struct Evaluator {
    pub(super) fixed: Arc<Fixed>,
    pub(super) params: Params,
    /// Weights that several nodes share, packed from `params` for the forward pass; by block.
    packed: Vec<Option<PackedWeights>>,
    /// Working memory of calls that are over, for those to come: as much as the most calls at once have needed. What
    /// workers remember of packed weights stays right, because the parameters do not change.
    idle: Mutex<Vec<Workspace>>,
    /// What other questions than likelihoods need, made when the first is asked.
    pub(super) questions: OnceLock<Questions>,
}

/// What one call works with: one tile after the other goes through the same memory.
pub(super) struct Workspace {
    pub tile: Tile,
    pub scratch: Scratch,
}

impl Evaluator {
    /// Takes parameters of the circuit, and packs the weights that several nodes share.
    pub(crate) fn new(fixed: Arc<Fixed>, params: Params) -> Self {
        debug_assert!(params.check(&fixed.circuit).is_ok(), "parameters of this circuit");
        let packed = pack_forward(&fixed, fixed.evaluation(), params.values());
        Self { fixed, params, packed, idle: Mutex::default(), questions: OnceLock::new() }
    }

    /// For a backend that has nothing to share: the circuit is made ready for this machine's processor.
    pub(crate) fn on_host(circuit: Arc<Circuit>, params: Params) -> Result<Self> {
        Ok(Self::new(Arc::new(Fixed::new(circuit, &CpuOptions::default())?), params))
    }

    /// The circuit.
    pub(crate) fn circuit(&self) -> &Arc<Circuit> {
        &self.fixed.circuit
    }

    /// The parameters.
    pub(crate) fn params(&self) -> &Params {
        &self.params
    }

    /// log p(x) of every row, in nats; −∞ where it is impossible. Missing cells are marginalised exactly.
    pub(crate) fn log_likelihoods(&self, batch: &Batch) -> Result<Vec<f64>> {
        let fixed = &*self.fixed;
        fixed.circuit.check_batch(batch)?;
        let theta = self.params.values();
        let pass = fixed.pass(fixed.evaluation(), ReadOnly::new(theta), &self.packed, batch, 0);
        let mut workspace = self.idle_workspace();
        let mut out = Vec::with_capacity(batch.num_rows());
        for rows in pieces(batch.num_rows(), fixed.micro_batch.min(MOST_TILE_ROWS)) {
            workspace.tile.prepare(&fixed.plan, batch, rows, false, false);
            workspace.tile.prepare_values(&fixed.plan);
            out.extend_from_slice(workspace.forward(pass, theta));
        }
        self.give_back(workspace);
        Ok(out)
    }

    /// The same bits, computed by all threads of the rayon pool that asks.
    pub(crate) fn log_likelihoods_spread(&self, batch: &Batch) -> Result<Vec<f64>> {
        let fixed = &*self.fixed;
        fixed.circuit.check_batch(batch)?;
        let theta = self.params.values();
        let pass = fixed.pass(fixed.evaluation(), ReadOnly::new(theta), &self.packed, batch, 0);
        let tiles = self.over_tiles(batch.num_rows(), |workspace, rows| {
            workspace.tile.prepare(&fixed.plan, batch, rows, false, false);
            workspace.tile.prepare_values(&fixed.plan);
            workspace.forward(pass, theta).to_vec()
        });
        Ok(tiles.concat())
    }

    /// Working memory of a call that is over, or new.
    pub(super) fn idle_workspace(&self) -> Workspace {
        let idle = self.idle().pop();
        idle.unwrap_or_else(|| Workspace { tile: Tile::new(), scratch: Scratch::default() })
    }

    /// Keeps working memory for calls to come.
    pub(super) fn give_back(&self, workspace: Workspace) {
        self.idle().push(workspace);
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Workspace>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Workspace {
    /// The log-likelihoods of the rows that the tile was prepared for.
    fn forward(&mut self, pass: Pass<'_>, theta: &[f32]) -> &[f64] {
        // The state is lent to the steps, which look at the rest of the tile meanwhile.
        let Self { tile, scratch } = self;
        {
            let state = &mut *tile.state.lock().unwrap_or_else(PoisonError::into_inner);
            for step in &pass.plan.steps {
                forward::forward(pass, tile, state, scratch, step);
            }
            forward::finish(pass, tile, state);
            rescue(pass.circuit, theta, pass.batch, tile, state);
        }
        &tile.state.get_mut().unwrap_or_else(PoisonError::into_inner).log_likelihoods
    }
}

#[cfg(test)]
mod tests;
