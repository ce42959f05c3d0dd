//! The launches of a pass, in the order that `kernels/README.md` gives: forward, backward, flows of parameters.

use super::descriptors::*;
use super::feed::Fed;
use super::kernels::{CudaPrecision, Grid, Kernels, Product};
use super::program::{BlockClass, CHUNKS_PER_SPLIT, Program, ROWS_PER_SPLIT, Span};
use super::slabs::{Tables, Workspace};
use super::sorted::Sorted;
use super::stream::Device;
use crate::backend::FlowPrecision;
use crate::error::Result;

/// All that a pass needs.
#[derive(Clone, Copy)]
pub(super) struct Engine<'a> {
    pub device: &'a Device,
    pub kernels: &'a Kernels,
    pub program: &'a Program,
    pub tables: &'a Tables,
    pub theta: Ptr<f32>,
    pub workspace: &'a Workspace,
}

/// A flow buffer: where it lies, and in which precision.
#[derive(Clone, Copy, Debug)]
pub(in crate::backend) struct FlowPtr {
    pub precision: FlowPrecision,
    pub(super) ptr: Ptr<Count>,
}

/// A warp a row.
fn by_warps(x: usize) -> usize {
    x.div_ceil(8)
}

/// Tiles of a matrix product.
fn by_tiles(x: usize) -> usize {
    x.div_ceil(64)
}

/// Square tiles or tall ones, and the grid: tall where they still make four blocks for every multiprocessor, and are
/// not mostly empty. By arithmetic, not by measurement; by sizes and device alone, because the bits depend on it.
fn product(
    precision: CudaPrecision,
    multiprocessors: usize,
    height: usize,
    [square, tall]: [[usize; 3]; 2],
) -> (Product, [usize; 3]) {
    const LEAST_HEIGHT: usize = 96;
    const BLOCKS_EACH: usize = 4;
    let is_tall = height >= LEAST_HEIGHT && tall.iter().product::<usize>() >= BLOCKS_EACH * multiprocessors;
    match Product::tall(precision).filter(|_| is_tall) {
        Some(product) => (product, tall),
        None => (Product::square(precision), square),
    }
}

impl Engine<'_> {
    /// How to multiply the groups of a launch, in tiles of rows by `width` units or columns.
    fn by_rows(&self, precision: CudaPrecision, span: &Span, width: usize, rows: usize) -> (Product, [usize; 3]) {
        // Blocks of a block-diagonal sum are narrow, and many.
        let height = if span.has_blocks { 0 } else { rows };
        let grid = |tile: usize| [by_tiles(width), rows.div_ceil(tile), span.count];
        product(precision, self.device.multiprocessors, height, [grid(64), grid(128)])
    }

    /// `rows` of which `data_rows` are of a batch.
    pub fn pass(&self, cells: Ptr<u32>, rows: usize, data_rows: usize, flow_bits: i64) -> Pass {
        let workspace = self.workspace;
        Pass {
            values: workspace.values.ptr,
            flows: workspace.flows.ptr,
            scales: workspace.scales.ptr,
            theta: self.theta,
            cells,
            degenerate: workspace.degenerate.ptr,
            rows: rows as i32,
            data_rows: data_rows as i32,
            capacity: workspace.sizes.capacity as i32,
            flow_bits: flow_bits as i32,
        }
    }

    /// Values of all nodes.
    pub fn forward(&self, pass: Pass, precision: CudaPrecision) -> Result<()> {
        let Self { kernels, tables, workspace, .. } = *self;
        let (rows, params, extremes) = (pass.rows as usize, tables.params.ptr, workspace.extremes.ptr);
        self.device.zero(pass.degenerate, rows)?;
        for span in &self.program.forward.input_spans {
            kernels.input_forward([by_warps(rows), span.count], pass, tables.inputs.ptr.offset(span.first), params)?;
        }
        for level in &self.program.forward.levels {
            for span in &level.products {
                let (grid, stage) = Grid::staged(rows, span.count, span.stage);
                let (products, factors) = (tables.products.ptr.offset(span.first), tables.factors.ptr);
                kernels.product_forward(grid, pass, products, factors, params, tables.maps.ptr, stage)?;
            }
            for span in &level.panels {
                let panels = tables.panels.ptr.offset(span.first);
                kernels.panel_gather([by_warps(rows), span.count], pass, panels, tables.slices.ptr)?;
            }
            for span in &level.groups {
                let (product, grid) = self.by_rows(precision, span, span.units, rows);
                kernels.sum_forward(product, grid, pass, tables.groups.ptr.offset(span.first), extremes)?;
            }
            for span in &level.sums {
                let sums = tables.sum_descs.ptr.offset(span.first);
                kernels.sum_finish([rows.div_ceil(128), span.count], pass, sums, tables.groups.ptr, extremes)?;
            }
        }
        Ok(())
    }

    /// log p, which rows are degenerate, and the root's flow for the pass backwards, `gain` times a row's weight;
    /// without a gain no flow.
    pub fn root(&self, pass: Pass, weights: Ptr<f32>, gain: Option<f64>) -> Result<()> {
        let Program { root_value, root_flow, .. } = *self.program;
        let flow = if gain.is_some() { root_flow } else { Buffer { at: -1, ..root_flow } };
        let log_likelihoods = self.workspace.log_likelihoods.ptr;
        let grid = [(pass.rows as usize).div_ceil(256)];
        self.kernels.root_finish(grid, pass, root_value, flow, weights, gain.unwrap_or(0.0), log_likelihoods)
    }

    /// Flows of all nodes, from the root's.
    pub fn backward(&self, pass: Pass, precision: CudaPrecision) -> Result<()> {
        let Self { kernels, tables, program, .. } = *self;
        let rows = pass.rows as usize;
        for buffer in &program.backward.clear {
            let at = buffer.at as usize * pass.capacity as usize;
            self.device.zero(pass.flows.offset(at), rows * buffer.ld as usize)?;
        }
        for level in &program.backward.levels {
            for span in &level.pulls {
                let (grid, stage) = Grid::staged(rows, span.count, span.stage);
                let pulls = tables.pulls.ptr.offset(span.first);
                kernels.product_backward(grid, pass, pulls, tables.sources.ptr, tables.maps.ptr, stage)?;
            }
            for span in &level.gains {
                kernels.sum_gain([by_warps(rows), span.count], pass, tables.gains.ptr.offset(span.first))?;
            }
            for span in level.waves.iter().flatten() {
                let (product, grid) = self.by_rows(precision, span, span.cols, rows);
                let groups = tables.back_groups.ptr.offset(span.first);
                kernels.sum_backward(product, grid, pass, groups, tables.targets.ptr)?;
            }
        }
        Ok(())
    }

    /// Sums over the rows that the flows of weights and densities are made of, by split.
    pub fn partial_flows(&self, pass: Pass, precision: CudaPrecision) -> Result<()> {
        let Self { kernels, tables, workspace, program, .. } = *self;
        let (data_rows, uses) = (pass.data_rows as usize, tables.uses.ptr);
        let splits = program.params.most_splits(BlockClass::Weights, data_rows);
        for span in &program.params.spans(BlockClass::Weights) {
            let weights = workspace.params.ptr.offset(span.first);
            let grids = [[span.tiles, splits, span.count], [span.tall_tiles, splits, span.count]];
            let (product, grid) = product(precision, self.device.multiprocessors, span.units, grids);
            kernels.sum_flows(product, grid, pass, weights, uses, workspace.partials.ptr, CHUNKS_PER_SPLIT as i32)?;
        }
        let splits = program.params.most_splits(BlockClass::Density, data_rows);
        for span in &program.params.spans(BlockClass::Density) {
            let densities = workspace.params.ptr.offset(span.first);
            let grid = [by_tiles(span.units), splits, span.count];
            kernels.density_flows(grid, pass, densities, uses, workspace.partials64.ptr, ROWS_PER_SPLIT as i32)?;
        }
        Ok(())
    }

    /// flows = keep·flows + θ ⊙ partial sums, of weights.
    pub fn weights_flows(&self, pass: Pass, flows: FlowPtr, keep: f32) -> Result<()> {
        for span in &self.program.params.spans(BlockClass::Weights) {
            let weights = self.workspace.params.ptr.offset(span.first);
            let (grid, partials) = ([by_warps(span.units), span.count], self.workspace.partials.ptr);
            let chunks = CHUNKS_PER_SPLIT as i32;
            self.kernels.weights_flows(flows.precision, grid, pass, weights, partials, flows.ptr, keep, chunks)?;
        }
        Ok(())
    }

    /// flows = keep·flows + statistics, of densities.
    pub fn density_flows(&self, pass: Pass, flows: FlowPtr, keep: f32) -> Result<()> {
        for span in &self.program.params.spans(BlockClass::Density) {
            let densities = self.workspace.params.ptr.offset(span.first);
            let (grid, partials) = ([by_tiles(span.units), span.count], self.workspace.partials64.ptr);
            let rows = ROWS_PER_SPLIT as i32;
            self.kernels.density_apply(flows.precision, grid, pass, densities, partials, flows.ptr, keep, rows)?;
        }
        Ok(())
    }

    /// flows = keep·flows + flow of each category, of tables; and sums over tiles of categories, if there is a place
    /// for them.
    pub fn table_flows(
        &self,
        pass: Pass,
        fed: Fed,
        sorted: &Sorted,
        flows: FlowPtr,
        keep: f32,
        sums: Option<Ptr<f64>>,
    ) -> Result<()> {
        for round in &sorted.rounds {
            let grid = [round.len(), sorted.units.div_ceil(128)];
            self.kernels.rows_sum(grid, pass, fed.pieces.offset(round.start), fed.items)?;
        }
        let spans = self.program.params.spans(BlockClass::Table);
        let first = spans.first().map_or(0, |span| span.first);
        for span in &spans {
            let tables = self.workspace.params.ptr.offset(span.first);
            let missing = fed.missing.offset(span.first - first);
            let sums = sums.unwrap_or(Ptr::NULL);
            self.kernels.table_flows(
                flows.precision,
                table_grid(span),
                pass,
                tables,
                fed.starts,
                fed.items,
                missing,
                flows.ptr,
                keep,
                sums,
            )?;
        }
        Ok(())
    }

    /// rows = top-down probabilities, from the flows of the row in which everything is missing.
    pub fn top_down_rows(&self, pass: Pass, rows: Ptr<f64>) -> Result<()> {
        for span in &self.program.params.all_spans() {
            let grid = [span.units.div_ceil(128), span.count];
            let params = self.tables.params.ptr.offset(span.first);
            self.kernels.top_down_rows(grid, pass, params, self.tables.uses.ptr, rows)?;
        }
        Ok(())
    }
}

/// Tiles of 32 categories by 128 units.
pub(super) fn table_grid(span: &Span) -> [usize; 3] {
    [span.cols.div_ceil(32), span.units.div_ceil(128), span.count]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_are_tall_where_that_leaves_enough_of_them() {
        let grids = |n| [[2, 4, n], [2, 2, n]];
        let choose = |precision, height, n| product(precision, 10, height, grids(n));
        assert_eq!(choose(CudaPrecision::Tf32, 256, 10), (Product::Tf32Tall, [2, 2, 10]));
        assert_eq!(choose(CudaPrecision::Tf32, 256, 9), (Product::Tf32, [2, 4, 9]), "too few");
        assert_eq!(choose(CudaPrecision::Bf16, 95, 10), (Product::Bf16, [2, 4, 10]), "half empty");
        assert_eq!(choose(CudaPrecision::F32, 256, 10), (Product::F32, [2, 4, 10]), "there is none");
    }
}
