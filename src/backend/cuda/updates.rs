//! What happens to parameters and flows apart from a batch: the M-step, masses, averages, gradient steps.

use super::descriptors::*;
use super::kernels::{Grid, Kernels};
use super::passes::{FlowPtr, table_grid};
use super::program::{BlockClass, Program};
use super::slabs::Tables;
use crate::backend::FlowPrecision;
use crate::circuit::Smoothing;
use crate::error::Result;

/// All that an update needs: no rows, and so no working memory.
#[derive(Clone, Copy)]
pub(super) struct Updater<'a> {
    pub kernels: &'a Kernels,
    pub program: &'a Program,
    pub tables: &'a Tables,
    pub theta: Ptr<f32>,
}

/// What the retained mass of a row is.
#[derive(Clone, Copy, Debug)]
pub(super) enum Retained {
    Nothing,
    /// scale·(rows[row] + offset).
    Rows {
        rows: Ptr<f64>,
        scale: f64,
        offset: f64,
    },
    /// scale·(gain·ΣF + offset).
    Masses {
        scale: f64,
        offset: f64,
    },
    /// scale·(max(rows[row], gain·ΣF) + offset).
    Larger {
        rows: Ptr<f64>,
        scale: f64,
        offset: f64,
    },
}

/// The M-step as the kernels read it.
pub(super) fn update(
    retained: Retained,
    gain: f64,
    smoothing: Smoothing,
    masses: Option<Ptr<f64>>,
    keep: f32,
) -> Update {
    let (source, retain, scale, offset) = match retained {
        Retained::Nothing => (0, Ptr::NULL, 0.0, 0.0),
        Retained::Rows { rows, scale, offset } => (1, rows, scale, offset),
        Retained::Masses { scale, offset } => (2, Ptr::NULL, scale, offset),
        Retained::Larger { rows, scale, offset } => (3, rows, scale, offset),
    };
    Update {
        scale,
        offset,
        gain,
        epsilon: smoothing.epsilon(),
        retain,
        masses: masses.unwrap_or(Ptr::NULL),
        absolute: i32::from(matches!(smoothing, Smoothing::Absolute(_))),
        source,
        keep,
        pad: 0,
    }
}

impl Updater<'_> {
    /// A pass without rows: kernels of updates read θ from it, and nothing else.
    fn pass(&self) -> Pass {
        Pass {
            values: Ptr::NULL,
            flows: Ptr::NULL,
            scales: Ptr::NULL,
            theta: self.theta,
            cells: Ptr::NULL,
            degenerate: Ptr::NULL,
            rows: 0,
            data_rows: 0,
            capacity: 0,
            flow_bits: 0,
        }
    }

    fn params(&self, first: usize) -> Ptr<ParamDesc> {
        self.tables.params.ptr.offset(first)
    }

    /// θ' of all blocks: of sums by one update, of inputs by another.
    pub fn em_update(&self, flows: FlowPtr, of_sums: Update, of_inputs: Update) -> Result<()> {
        for span in &self.program.params.spans(BlockClass::Weights) {
            let grid = [span.units.div_ceil(8), span.count];
            self.kernels.weights_update(
                flows.precision,
                grid,
                self.pass(),
                self.params(span.first),
                flows.ptr,
                of_sums,
            )?;
        }
        self.table_sums(flows)?;
        self.update_tables(flows, of_inputs)?;
        self.update_densities(flows, of_inputs)
    }

    /// θ' of tables, whose sums are there.
    pub fn update_tables(&self, flows: FlowPtr, update: Update) -> Result<()> {
        let (sums, coefficients) = (self.tables.sums.ptr, self.tables.coefficients.ptr);
        let num_rows = self.program.params.num_rows as i64;
        for span in &self.program.params.spans(BlockClass::Table) {
            let tables = self.params(span.first);
            let grid = [span.units.div_ceil(128), span.count];
            self.kernels.table_coefficients(grid, tables, sums, coefficients, num_rows, update)?;
            let grid = table_grid(span);
            self.kernels.table_move(flows.precision, grid, self.pass(), tables, flows.ptr, coefficients, num_rows)?;
        }
        Ok(())
    }

    /// θ' of densities.
    pub fn update_densities(&self, flows: FlowPtr, update: Update) -> Result<()> {
        for span in &self.program.params.spans(BlockClass::Density) {
            let grid = [span.units.div_ceil(64), span.count];
            self.kernels.density_update(
                flows.precision,
                grid,
                self.pass(),
                self.params(span.first),
                flows.ptr,
                update,
            )?;
        }
        Ok(())
    }

    /// Sums of θ and of flows over the categories of tables, by tile.
    pub fn table_sums(&self, flows: FlowPtr) -> Result<()> {
        for span in &self.program.params.spans(BlockClass::Table) {
            let (grid, tables) = (table_grid(span), self.params(span.first));
            self.kernels.table_sums(flows.precision, grid, self.pass(), tables, flows.ptr, self.tables.sums.ptr)?;
        }
        Ok(())
    }

    /// rows = gain · Σ over each row of the flows.
    pub fn row_masses(&self, flows: FlowPtr, gain: f64, rows: Ptr<f64>) -> Result<()> {
        for span in &self.program.params.spans(BlockClass::Weights) {
            let grid = [span.units.div_ceil(8), span.count];
            self.kernels.weights_masses(flows.precision, grid, self.params(span.first), flows.ptr, gain, rows)?;
        }
        self.table_sums(flows)?;
        self.table_masses(gain, rows)?;
        for span in &self.program.params.spans(BlockClass::Density) {
            let grid = [span.units.div_ceil(64), span.count];
            self.kernels.density_masses(flows.precision, grid, self.params(span.first), flows.ptr, gain, rows)?;
        }
        Ok(())
    }

    fn table_masses(&self, gain: f64, rows: Ptr<f64>) -> Result<()> {
        for span in &self.program.params.spans(BlockClass::Table) {
            let grid = [span.units.div_ceil(128), span.count];
            self.kernels.table_masses(grid, self.params(span.first), self.tables.sums.ptr, gain, rows)?;
        }
        Ok(())
    }

    /// rows = 1, or the mass of a table's row: what an input is worth if its variable is missing, at any θ.
    pub fn input_masses(&self, rows: Ptr<f64>) -> Result<()> {
        let num_rows = self.program.params.num_rows;
        self.kernels.fill_f64(Grid::over(num_rows), rows, 1.0, num_rows as i64)?;
        self.table_sums(FlowPtr { precision: FlowPrecision::Single, ptr: Ptr::NULL })?;
        self.table_masses(1.0, rows)
    }

    /// θ̄ ← θ̄ + weight·(θ − θ̄): of weights and tables number by number, of densities by the moments they expect.
    pub fn average(&self, averages: Ptr<f32>, weight: f64) -> Result<()> {
        let n = self.program.params.densities_at();
        self.kernels.average(Grid::over(n), averages, self.theta, n as i64, weight as f32)?;
        for span in &self.program.params.spans(BlockClass::Density) {
            let grid = [span.units.div_ceil(64), span.count];
            self.kernels.density_average(grid, self.params(span.first), averages, self.theta, weight)?;
        }
        Ok(())
    }

    /// flows = gain·flows − TD·θ.
    pub fn gradient(&self, flows: FlowPtr, gain: f64, top_down: Ptr<f64>) -> Result<()> {
        let classes = [BlockClass::Weights, BlockClass::Table];
        for span in classes.into_iter().flat_map(|class| self.program.params.spans(class)) {
            let grid = [(span.units * span.cols).div_ceil(1024).clamp(1, 1024), span.count];
            let params = self.params(span.first);
            self.kernels.gradient(flows.precision, grid, self.pass(), params, flows.ptr, gain, top_down)?;
        }
        Ok(())
    }
}
