//! The numbers of a circuit, and flows read back from a backend.

use std::sync::Arc;

use super::{BlockLayout, Circuit, Layout, ParamId, ParamKind};
use crate::error::{Error, Result};
use crate::rng::Rng;

/// exp(−80) is 2e-35: beyond this, weights would start as zeros and stay so.
const LARGEST_PERTURBATION: f64 = 80.0;

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
        if !(0.0..=LARGEST_PERTURBATION).contains(&perturbation) {
            return Err(Error::option(format!(
                "perturbation = {perturbation}: must be in [0, {LARGEST_PERTURBATION}]"
            )));
        }
        let mut params = Self::zeros(circuit);
        for id in circuit.param_ids() {
            let mut rng = Rng::stream(seed, id.index() as u64);
            let block = circuit.layout().block(id);
            let values = &mut params.values[block.values.clone()];
            match &circuit.params()[id.index()].kind {
                ParamKind::Input(distribution) if !distribution.is_table() => {
                    let mut row = vec![0.0; block.values_per_row];
                    for unit in 0..block.units() {
                        distribution.initialize(&mut rng, perturbation, &mut row);
                        row.iter().enumerate().for_each(|(slot, &v)| values[slot * block.units() + unit] = v);
                    }
                }
                _ => initialize_rows(&mut rng, perturbation, values, block),
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
        let mut params = Self { layout: layout.clone(), values };
        params.values.iter_mut().for_each(|value| *value += 0.0); // −0 would compare as above everything
        params.check(circuit)?;
        Ok(params)
    }

    /// Parameters that a backend computed.
    pub(crate) fn trusted(circuit: &Circuit, values: Vec<f32>) -> Self {
        debug_assert_eq!(values.len(), circuit.layout().num_values());
        Self { layout: circuit.layout().clone(), values }
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
        let block = self.layout.block(param);
        if unit >= block.units() {
            return Err(Error::state(format!(
                "parameter block {param} has rows 0..{}, there is no row {unit}",
                block.units()
            )));
        }
        let positions = block.value_positions(unit);
        if positions.len() != row.len() {
            return Err(Error::state(format!(
                "parameter block {param}: row {unit} has {} values where {} belong",
                row.len(),
                positions.len()
            )));
        }
        for (position, &value) in positions.zip(row) {
            self.values[position] = value + 0.0; // −0 would compare as above everything
        }
        Ok(())
    }

    /// Multiplies every row of a block of weights or of a table, and normalises it: θ'[n, c] ∝ θ[n, c]·factors[c].
    /// Nothing becomes zero that was none.
    pub(crate) fn reweigh(&mut self, param: ParamId, factors: &[f64]) -> Result<()> {
        let block = self.layout.block(param);
        let (units, per_row) = (block.units(), block.values_per_row);
        if factors.len() != per_row {
            return Err(Error::state(format!(
                "parameter block {param}: {} factors where {per_row} belong",
                factors.len()
            )));
        }
        let values = &mut self.values[block.values.clone()];
        // As they lie: row by row would jump through a large table.
        let at_of =
            |at: usize| if block.unit_fastest { (at % units, at / units) } else { (at / per_row, at % per_row) };
        let mut totals = vec![0.0f64; units];
        for (at, &value) in values.iter().enumerate() {
            let (unit, column) = at_of(at);
            totals[unit] += f64::from(value) * factors[column];
        }
        for (at, value) in values.iter_mut().enumerate() {
            let (unit, column) = at_of(at);
            let share = f64::from(*value) * factors[column] / totals[unit];
            *value = if share > 0.0 { (share as f32).max(f32::MIN_POSITIVE) } else { 0.0 };
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
            let block = self.layout.block(id);
            let values = &self.values[block.values.clone()];
            let refuse =
                |unit: usize, why: String| Err(Error::state(format!("parameter block {id}: row {unit}: {why}")));
            match &circuit.params()[id.index()].kind {
                ParamKind::Input(distribution) if !distribution.is_table() => {
                    for unit in 0..block.units() {
                        if let Err(why) = distribution.check_params(&self.row(id, unit)) {
                            return refuse(unit, why);
                        }
                    }
                }
                // Weights and tables are walked as they lie: row by row would jump through a large table.
                _ => {
                    if let Some(at) = values.iter().position(|p| !(p.is_finite() && *p >= 0.0)) {
                        let unit = if block.unit_fastest { at % block.units() } else { at / block.values_per_row };
                        return refuse(unit, format!("{} is not a probability", values[at]));
                    }
                }
            }
        }
        Ok(())
    }
}

/// Fills weights or tables, in the order they lie, with exp(−p·U) and normalises each row.
fn initialize_rows(rng: &mut Rng, perturbation: f64, values: &mut [f32], block: &BlockLayout) {
    let (units, per_row) = (block.units(), block.values_per_row);
    let unit_of = |at: usize| if block.unit_fastest { at % units } else { at / per_row };
    let mut totals = vec![0.0f64; units];
    for (at, value) in values.iter_mut().enumerate() {
        *value = (-perturbation * rng.uniform()).exp() as f32;
        totals[unit_of(at)] += f64::from(*value);
    }
    values.iter_mut().enumerate().for_each(|(at, value)| *value = (f64::from(*value) / totals[unit_of(at)]) as f32);
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
