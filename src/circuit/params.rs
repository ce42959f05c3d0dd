//! The numbers of a circuit, and flows read back from a backend.

use std::sync::Arc;

use super::distribution::initialize_simplex;
use super::{Circuit, Layout, ParamId, ParamKind};
use crate::error::{Error, Result};
use crate::rng::Rng;

/// All parameters of a circuit, on the host.
#[derive(Clone, Debug, PartialEq)]
pub struct Params {
    layout: Arc<Layout>,
    /// Every block's parameters, where the layout puts them.
    values: Vec<f32>,
}

impl Params {
    /// Random parameters: every row of weights ∝ exp(−perturbation·U), U uniform; 2 is a good perturbation. Each block
    /// has a random stream of its own, so that a block's start does not depend on how many others there are.
    pub fn random(circuit: &Circuit, seed: u64, perturbation: f64) -> Result<Self> {
        if !(perturbation.is_finite() && perturbation >= 0.0) {
            return Err(Error::option(format!("perturbation = {perturbation}: must be a number, 0 or more")));
        }
        let mut params = Self::zeros(circuit);
        let mut row = Vec::new();
        for id in circuit.param_ids() {
            let mut rng = Rng::stream(seed, id.index() as u64);
            let block = circuit.layout().block(id);
            row.resize(block.values_per_row, 0.0);
            for unit in 0..block.units() {
                match &circuit.params()[id.index()].kind {
                    ParamKind::Sum { .. } => initialize_simplex(&mut rng, perturbation, &mut row),
                    ParamKind::Input(distribution) => distribution.initialize(&mut rng, perturbation, &mut row),
                }
                for (position, &value) in block.value_positions(unit).zip(&row) {
                    params.values[position] = value;
                }
            }
        }
        Ok(params)
    }

    /// Parameters from one vector per param row, `rows(param, unit)`. They need not be normalised.
    pub fn from_rows(circuit: &Circuit, rows: impl Fn(ParamId, usize) -> Vec<f32>) -> Result<Self> {
        let mut params = Self::zeros(circuit);
        for id in circuit.param_ids() {
            for unit in 0..circuit.layout().block(id).units() {
                params.set_row(id, unit, &rows(id, unit))?;
            }
        }
        params.check(circuit)?;
        Ok(params)
    }

    /// Parameters from a flat buffer in the circuit's layout, such as [`Params::values`] gives.
    pub fn from_values(circuit: &Circuit, values: Vec<f32>) -> Result<Self> {
        let layout = circuit.layout();
        if values.len() != layout.num_values() {
            return Err(Error::state(format!(
                "{} parameters do not fit a circuit that has {}",
                values.len(),
                layout.num_values()
            )));
        }
        let params = Self { layout: layout.clone(), values };
        params.check(circuit)?;
        Ok(params)
    }

    fn zeros(circuit: &Circuit) -> Self {
        let layout = circuit.layout().clone();
        Self { values: vec![0.0; layout.num_values()], layout }
    }

    /// The parameters of one unit of a block.
    pub fn row(&self, param: ParamId, unit: usize) -> Vec<f32> {
        self.layout.block(param).value_positions(unit).map(|i| self.values[i]).collect()
    }

    /// Replaces the parameters of one unit of a block.
    pub fn set_row(&mut self, param: ParamId, unit: usize, row: &[f32]) -> Result<()> {
        let positions = self.layout.block(param).value_positions(unit);
        if positions.len() != row.len() {
            return Err(Error::state(format!(
                "parameter block {param}: row {unit} has {} values where {} belong",
                row.len(),
                positions.len()
            )));
        }
        for (position, &value) in positions.zip(row) {
            self.values[position] = value;
        }
        Ok(())
    }

    /// The flat buffer.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// Where blocks lie in the flat buffer.
    pub fn layout(&self) -> &Arc<Layout> {
        &self.layout
    }

    /// Refuses parameters that belong to another circuit or are no parameters at all.
    pub fn check(&self, circuit: &Circuit) -> Result<()> {
        if self.layout != *circuit.layout() {
            return Err(Error::state("the parameters belong to a circuit of another shape"));
        }
        for id in circuit.param_ids() {
            let kind = &circuit.params()[id.index()].kind;
            for unit in 0..self.layout.block(id).units() {
                let row = self.row(id, unit);
                let verdict = match kind {
                    ParamKind::Sum { .. } => match row.iter().find(|w| !(w.is_finite() && **w >= 0.0)) {
                        Some(w) => Err(format!("{w} is not a mixture weight")),
                        None => Ok(()),
                    },
                    ParamKind::Input(distribution) => distribution.check_params(&row),
                };
                verdict.map_err(|why| Error::state(format!("parameter block {id}: row {unit}: {why}")))?;
            }
        }
        Ok(())
    }
}

/// Flows, or anything else with one number per sufficient statistic, read back from a backend.
#[derive(Clone, Debug, PartialEq)]
pub struct Flows {
    layout: Arc<Layout>,
    /// Every block's statistics, where the layout puts them.
    values: Vec<f64>,
}

impl Flows {
    pub(crate) fn new(layout: Arc<Layout>, values: Vec<f64>) -> Self {
        debug_assert_eq!(values.len(), layout.num_stats());
        Self { layout, values }
    }

    /// The statistics of one unit of a block.
    pub fn row(&self, param: ParamId, unit: usize) -> Vec<f64> {
        self.layout.block(param).stat_positions(unit).map(|i| self.values[i]).collect()
    }

    /// The flat buffer.
    pub fn values(&self) -> &[f64] {
        &self.values
    }
}
