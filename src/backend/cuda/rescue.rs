//! Rows that linear space could not hold, in log space and double precision; and the renormalisation of a circuit,
//! which is one such row with everything missing.

use super::descriptors::*;
use super::kernels::Kernels;
use super::passes::FlowPtr;
use super::program::{BlockClass, Program};
use super::slabs::Tables;
use super::stream::{Device, Slab};
use crate::backend::NEGLIGIBLE_FLOW;
use crate::error::Result;

/// Bytes that log space may take: few rows need it, so they go through it a few at a time.
const BYTES: usize = 256 << 20;

/// The most rows at a time: the flows of parameters are added row after row, by few threads.
const MOST_ROWS: usize = 64;

/// Working memory in double precision.
pub(super) struct LogSpace {
    pub capacity: usize,
    values: Slab<f64>,
    gains: Slab<f64>,
    flows: Slab<f64>,
    row_ids: Slab<u32>,
    root_flow: Slab<f64>,
    log_likelihoods: Slab<f64>,
}

impl LogSpace {
    pub fn new(device: &Device, program: &Program) -> Result<Self> {
        let per_row = 8 * (2 * program.value_units + program.flow_units);
        let capacity = (BYTES / per_row).clamp(1, MOST_ROWS);
        let what = "rows in log space";
        Ok(Self {
            capacity,
            values: device.alloc(what, program.value_units * capacity)?,
            gains: device.alloc(what, program.value_units * capacity)?,
            flows: device.alloc(what, program.flow_units * capacity)?,
            row_ids: device.alloc(what, capacity)?,
            root_flow: device.alloc(what, capacity)?,
            log_likelihoods: device.alloc(what, capacity)?,
        })
    }
}

/// All that log space needs.
#[derive(Clone, Copy)]
pub(super) struct Rescuer<'a> {
    pub device: &'a Device,
    pub kernels: &'a Kernels,
    pub program: &'a Program,
    pub tables: &'a Tables,
    pub theta: Ptr<f32>,
    pub space: &'a LogSpace,
}

/// A row to be rescued: which of the micro-batch, and gain times its weight.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lost {
    pub row: u32,
    pub root_flow: f64,
}

impl Rescuer<'_> {
    /// log p of rows whose cells are on the device, and their flows added to a buffer, if there is one.
    pub fn rescue(
        &self,
        lost: &[Lost],
        cells: Ptr<u32>,
        cells_capacity: usize,
        into: Option<FlowPtr>,
    ) -> Result<Vec<f64>> {
        let mut found = Vec::with_capacity(lost.len());
        for rows in lost.chunks(self.space.capacity) {
            let ids: Vec<u32> = rows.iter().map(|lost| lost.row).collect();
            let flows: Vec<f64> = rows.iter().map(|lost| lost.root_flow).collect();
            self.device.upload(&ids, self.space.row_ids.ptr)?;
            self.device.upload(&flows, self.space.root_flow.ptr)?;
            let pass = LogPass {
                cells,
                row_ids: self.space.row_ids.ptr,
                cells_capacity: cells_capacity as i32,
                ..self.pass(rows.len(), NEGLIGIBLE_FLOW)
            };
            self.forward(pass)?;
            if let Some(into) = into {
                self.backward(pass)?;
                self.add_flows(pass, into)?;
            }
            found.extend(self.device.download(self.space.log_likelihoods.ptr, rows.len())?);
        }
        Ok(found)
    }

    /// Makes every row of θ sum to one, given the masses of inputs.
    pub fn renormalize(&self, masses: Ptr<f64>) -> Result<()> {
        self.device.upload(&[1.0], self.space.root_flow.ptr)?;
        let pass = LogPass { masses, ..self.pass(1, 0.0) };
        self.forward(pass)?;
        self.backward(pass)?;
        for span in &self.program.params.spans(BlockClass::Weights) {
            let (grid, weights) = ([span.units.div_ceil(8), span.count], self.params(span.first));
            self.kernels.renormalize_weights(grid, pass, weights, self.tables.uses.ptr, self.theta)?;
        }
        for span in &self.program.params.spans(BlockClass::Table) {
            let grid = super::passes::table_grid(span);
            self.kernels.renormalize_tables(grid, self.params(span.first), masses, self.theta)?;
        }
        Ok(())
    }

    fn pass(&self, rows: usize, negligible: f64) -> LogPass {
        LogPass {
            values: self.space.values.ptr,
            gains: self.space.gains.ptr,
            flows: self.space.flows.ptr,
            theta: self.theta,
            cells: Ptr::NULL,
            masses: Ptr::NULL,
            row_ids: Ptr::NULL,
            root_flow: self.space.root_flow.ptr,
            negligible,
            rows: rows as i32,
            capacity: self.space.capacity as i32,
            cells_capacity: 0,
            pad: 0,
            pad2: 0,
        }
    }

    fn params(&self, first: usize) -> Ptr<ParamDesc> {
        self.tables.params.ptr.offset(first)
    }

    fn forward(&self, pass: LogPass) -> Result<()> {
        let Self { kernels, tables, program, .. } = *self;
        let (rows, params) = (pass.rows as usize, tables.params.ptr);
        for span in &program.forward.input_spans {
            let grid = [span.units.div_ceil(128), rows, span.count];
            kernels.log_input(grid, pass, tables.inputs.ptr.offset(span.first), params)?;
        }
        for level in &program.forward.levels {
            for span in &level.products {
                let grid = [span.units.div_ceil(128), rows, span.count];
                let products = tables.products.ptr.offset(span.first);
                kernels.log_product(grid, pass, products, tables.factors.ptr, params, tables.maps.ptr)?;
            }
            for span in &level.panels {
                let grid = [span.units.div_ceil(128), rows, span.count];
                kernels.log_panel(grid, pass, tables.panels.ptr.offset(span.first), tables.slices.ptr)?;
            }
            for span in &level.groups {
                let grid = [span.units.div_ceil(8), rows, span.count];
                kernels.log_sum(grid, pass, tables.groups.ptr.offset(span.first))?;
            }
        }
        let Program { root_value, root_flow, .. } = *program;
        kernels.log_root([rows.div_ceil(128)], pass, root_value, root_flow, self.space.log_likelihoods.ptr)
    }

    fn backward(&self, pass: LogPass) -> Result<()> {
        let Self { kernels, tables, program, .. } = *self;
        let rows = pass.rows as usize;
        for buffer in &program.backward.clear {
            let at = buffer.at as usize * pass.capacity as usize;
            self.device.zero(pass.flows.offset(at), rows * buffer.ld as usize)?;
        }
        for level in &program.backward.levels {
            for span in &level.pulls {
                let grid = [span.units.div_ceil(128), rows, span.count];
                let pulls = tables.pulls.ptr.offset(span.first);
                kernels.log_product_backward(grid, pass, pulls, tables.sources.ptr, tables.maps.ptr)?;
            }
            for span in &level.gains {
                let grid = [span.units.div_ceil(8), rows, span.count];
                kernels.log_gain(grid, pass, tables.gains.ptr.offset(span.first))?;
            }
            for span in level.waves.iter().flatten() {
                let grid = [span.cols.div_ceil(128), rows, span.count];
                let groups = tables.back_groups.ptr.offset(span.first);
                kernels.log_sum_backward(grid, pass, groups, tables.targets.ptr)?;
            }
        }
        Ok(())
    }

    fn add_flows(&self, pass: LogPass, into: FlowPtr) -> Result<()> {
        let Self { kernels, tables, program, .. } = *self;
        let (precision, uses) = (into.precision, tables.uses.ptr);
        for span in &program.params.spans(BlockClass::Weights) {
            let grid = [span.cols.div_ceil(128), span.units, span.count];
            kernels.log_weight_flows(precision, grid, pass, self.params(span.first), uses, into.ptr)?;
        }
        for span in &program.params.spans(BlockClass::Table) {
            let grid = [span.units.div_ceil(128), span.count];
            kernels.log_table_flows(precision, grid, pass, self.params(span.first), uses, into.ptr)?;
        }
        for span in &program.params.spans(BlockClass::Density) {
            let grid = [span.units.div_ceil(128), span.count];
            kernels.log_density_flows(precision, grid, pass, self.params(span.first), uses, into.ptr)?;
        }
        Ok(())
    }
}
