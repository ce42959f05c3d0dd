//! Passes for questions: what `query` reads off a tile of rows, flows of inputs or values of what sums mix.
//!
//! The steps are those of learning, on a plan whose flow buffers lie apart, so that the flows of all inputs are there
//! when the pass is over; flows of weights are not added up. A large batch is cut into tiles for all threads of the
//! rayon pool that asks; a row's bits do not depend on the cut. Rows that linear space cannot hold are marked, and
//! whoever asks computes them from `circuit::log_values`. `evaluator` keeps all of this for as long as it lives.

use std::ops::Range;
use std::sync::{OnceLock, PoisonError};

use rayon::prelude::*;

use super::backward;
use super::evaluator::{Evaluator, Workspace};
use super::fixed::Fixed;
use super::forward::{self, Pass};
use super::kernels::max_product::largest_term;
use super::kernels::normalise::normalise_rows;
use super::kernels::product::{LeftScratch, Matrix, MatrixMut, Packed, multiply};
use super::kernels::{Arithmetic, Isa, prefetch};
use super::large_pages;
use super::packed::{PackedWeights, pack_both};
use super::scaled::{SAFE_BITS, SOME_LOSS};
use super::shared::ReadOnly;
use super::tile::{Tile, TileState, resident_rows};
use crate::backend::micro_batch::pieces;
use crate::circuit::{Circuit, NodeId, NodeKind, ParamId, ParamKind, Params};
use crate::data::Batch;
use crate::error::Result;
use crate::plan::{Buffer, Plan, Step, View};

/// A circuit, made ready for questions.
pub(super) struct Questions {
    /// Every flow buffer in a place of its own.
    plan: Plan,
    /// Weights that several nodes share, packed for both directions.
    packed: Vec<Option<PackedWeights>>,
    /// No block has its flows added up.
    none_tied: Vec<Option<usize>>,
    /// What each group of each sum mixes; by node.
    panels: Vec<Vec<View>>,
    leaves: Vec<Leaf>,
    /// By variable, which leaves are its inputs.
    leaves_of: Vec<Vec<usize>>,
    /// By block: the probabilities of categories, `[cats × units]`, where θ does not hold them as they are.
    computed: Vec<OnceLock<Vec<f32>>>,
    /// By block: the same packed, for products with flows.
    packed_tables: Vec<OnceLock<Packed>>,
    /// By block: mean and variance of each unit.
    moments: Vec<OnceLock<Vec<(f64, f64)>>>,
    best: OnceLock<Best>,
}

/// An input node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Leaf {
    pub node: NodeId,
    pub var: usize,
    pub param: ParamId,
    flow: Buffer,
    /// The values, where they have a buffer.
    value: Option<Buffer>,
}

/// The best that each unit of an input can do with a missing value; by block, empty for blocks of weights.
pub(crate) struct Best {
    /// The value, by unit,
    pub values: Vec<Vec<f64>>,
    /// the logarithm of its probability or density,
    pub logs: Vec<Vec<f64>>,
    /// and for tables the probability itself.
    linear: Vec<Vec<f32>>,
}

impl Questions {
    fn new(fixed: &Fixed, params: &Params) -> Self {
        let circuit = &*fixed.circuit;
        let plan = Plan::new(circuit);
        let mut panels = vec![Vec::new(); circuit.nodes().len()];
        let mut inputs = vec![None; circuit.nodes().len()];
        let mut steps = plan.steps.iter();
        let mut used = vec![0; circuit.params().len()];
        let mut leaves = Vec::new();
        let mut leaves_of = vec![Vec::new(); circuit.num_vars()];
        // Steps are in the order of the nodes; inputs whose table is read by products have none.
        for (i, node) in circuit.nodes().iter().enumerate() {
            match &node.kind {
                NodeKind::Sum { .. } => {
                    if let Some(Step::Sum(sum)) = steps.next() {
                        panels[i] = sum.groups.iter().map(|group| group.panel).collect();
                    }
                }
                NodeKind::Product { .. } => drop(steps.next()),
                NodeKind::Input { var, param } => {
                    if let Some(Step::Input(input)) = steps.clone().next()
                        && (input.var, input.param) == (*var, *param)
                    {
                        inputs[i] = Some(input.value);
                        steps.next();
                    }
                    // Uses of a block are in the order of the nodes, too.
                    let crate::plan::Use::Input { flow, .. } = plan.uses[param.index()][used[param.index()]] else {
                        unreachable!("inputs use blocks of inputs")
                    };
                    used[param.index()] += 1;
                    leaves_of[*var].push(leaves.len());
                    leaves.push(Leaf { node: NodeId(i as u32), var: *var, param: *param, flow, value: inputs[i] });
                }
            }
        }
        let blocks = circuit.params().len();
        Self {
            packed: pack_both(fixed, fixed.evaluation(), params.values()),
            none_tied: vec![None; blocks],
            computed: (0..blocks).map(|_| OnceLock::new()).collect(),
            packed_tables: (0..blocks).map(|_| OnceLock::new()).collect(),
            moments: (0..blocks).map(|_| OnceLock::new()).collect(),
            best: OnceLock::new(),
            plan,
            panels,
            leaves,
            leaves_of,
        }
    }
}

/// What is computed on the way up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mixing {
    /// Σ: likelihoods.
    Sum,
    /// max: the best completion, with the latents that go with it.
    Max,
}

impl Evaluator {
    fn questions(&self) -> &Questions {
        self.questions.get_or_init(|| Questions::new(&self.fixed, &self.params))
    }

    /// All input nodes, in the order of the circuit's nodes.
    pub(crate) fn leaves(&self) -> &[Leaf] {
        &self.questions().leaves
    }

    /// Which of them are a variable's.
    pub(crate) fn leaves_of(&self, var: usize) -> &[usize] {
        &self.questions().leaves_of[var]
    }

    /// The probabilities of the categories of an input block, `[cats × units]`; `None` where it has none.
    pub(crate) fn table(&self, param: ParamId) -> Option<&[f32]> {
        let circuit = &*self.fixed.circuit;
        let (distribution, layout) = (circuit.distribution(param), circuit.layout().block(param));
        let cats = distribution.num_cats()?;
        if distribution.is_table() {
            return Some(&self.params.values()[layout.values.clone()]);
        }
        Some(self.questions().computed[param.index()].get_or_init(|| {
            let rows: Vec<Vec<f32>> = (0..layout.units()).map(|unit| self.params.row(param, unit)).collect();
            let cells = (0..cats).flat_map(|cat| rows.iter().map(move |row| (cat, row)));
            cells.map(|(cat, row)| distribution.log_prob(row, f64::from(cat)).exp() as f32).collect()
        }))
    }

    /// Asks for a parameter that will soon be read, by its number.
    pub(crate) fn prefetch(&self, at: usize) {
        prefetch(&self.params.values()[at..=at]);
    }

    /// Mean and variance of each unit of an input block.
    pub(crate) fn moments(&self, param: ParamId) -> &[(f64, f64)] {
        self.questions().moments[param.index()].get_or_init(|| {
            let circuit = &*self.fixed.circuit;
            let (distribution, units) = (circuit.distribution(param), circuit.layout().block(param).units());
            match self.table(param).filter(|_| distribution.is_table()) {
                None => (0..units).map(|u| distribution.mean_and_variance(&self.params.row(param, u))).collect(),
                Some(table) => table_moments(table, units),
            }
        })
    }

    /// The best values of missing cells.
    pub(crate) fn best(&self) -> &Best {
        self.questions().best.get_or_init(|| Best::new(&self.fixed.circuit, &self.params))
    }

    /// Runs forwards and back and shows each tile with the flows of its inputs; what is made of the tiles comes back in
    /// the order of the rows.
    pub(crate) fn with_flows<T: Send>(
        &self,
        batch: &Batch,
        act: impl Fn(&mut FlowTile<'_>) -> T + Sync,
    ) -> Result<Vec<T>> {
        self.fixed.circuit.check_batch(batch)?;
        let questions = self.questions();
        let pass = self.question_pass(batch, None);
        Ok(self.over_tiles(batch.num_rows(), |workspace, rows| {
            let Workspace { tile, scratch } = workspace;
            tile.prepare(&questions.plan, batch, rows, false, true);
            tile.prepare_values(&questions.plan);
            let state = &mut *tile.state.lock().unwrap_or_else(PoisonError::into_inner);
            for step in &questions.plan.steps {
                forward::forward(pass, tile, state, scratch, step);
            }
            forward::finish(pass, tile, state);
            backward::start(pass, tile, state, |_| 1.0);
            for step in questions.plan.steps.iter().rev() {
                backward::backward(pass, tile, state, scratch, step, &questions.none_tied);
            }
            act(&mut FlowTile { evaluator: self, questions, tile, state, left: Vec::new(), scratch: &mut scratch.left })
        }))
    }

    /// Runs forwards and shows each tile with the values of what sums mix; likewise.
    pub(crate) fn with_values<T: Send>(
        &self,
        batch: &Batch,
        mixing: Mixing,
        act: impl Fn(&ValueTile<'_>) -> T + Sync,
    ) -> Result<Vec<T>> {
        self.fixed.circuit.check_batch(batch)?;
        let questions = self.questions();
        let pass = self.question_pass(batch, (mixing == Mixing::Max).then(|| self.best()));
        Ok(self.over_tiles(batch.num_rows(), |workspace, rows| {
            let Workspace { tile, scratch } = workspace;
            tile.prepare(&questions.plan, batch, rows, false, false);
            tile.prepare_values(&questions.plan);
            let state = &mut *tile.state.lock().unwrap_or_else(PoisonError::into_inner);
            for step in &questions.plan.steps {
                forward::forward(pass, tile, state, scratch, step);
            }
            forward::finish(pass, tile, state);
            act(&ValueTile { isa: self.fixed.isa, questions, tile, state })
        }))
    }

    fn question_pass<'a>(&'a self, batch: &'a Batch, best: Option<&'a Best>) -> Pass<'a> {
        let questions = self.questions();
        Pass {
            circuit: &self.fixed.circuit,
            plan: &questions.plan,
            isa: self.fixed.isa,
            arithmetic: self.fixed.evaluation(),
            theta: ReadOnly::new(self.params.values()),
            packed: &questions.packed,
            batch,
            flow_bits: 1,
            best,
        }
    }

    /// Cuts rows into tiles and works on them side by side; results are in the order of the rows.
    pub(super) fn over_tiles<T: Send>(
        &self,
        num_rows: usize,
        act: impl Fn(&mut Workspace, Range<usize>) -> T + Sync,
    ) -> Vec<T> {
        let most = resident_rows(&self.fixed.plan).min(self.fixed.micro_batch);
        let rows = most.min(num_rows.div_ceil(rayon::current_num_threads())).max(1);
        let on_tile = |rows: Range<usize>| {
            let mut workspace = self.idle_workspace();
            let made = act(&mut workspace, rows);
            self.give_back(workspace);
            made
        };
        match num_rows <= rows {
            true => pieces(num_rows, rows).map(on_tile).collect(),
            false => pieces(num_rows, rows).collect::<Vec<_>>().into_par_iter().with_max_len(1).map(on_tile).collect(),
        }
    }
}

impl Best {
    /// The largest probability of each unit of a table.
    pub fn of_table(&self, param: ParamId) -> &[f32] {
        &self.linear[param.index()]
    }

    fn new(circuit: &Circuit, params: &Params) -> Self {
        let blocks = circuit.params().len();
        let (mut values, mut logs, mut linear) = (vec![vec![]; blocks], vec![vec![]; blocks], vec![vec![]; blocks]);
        for param in circuit.param_ids() {
            let at = param.index();
            let ParamKind::Input(distribution) = &circuit.params()[at].kind else { continue };
            let layout = circuit.layout().block(param);
            if distribution.is_table() {
                let (mut best, mut found) = (vec![-1f32; layout.units()], vec![0.0; layout.units()]);
                for (cat, row) in params.values()[layout.values.clone()].chunks_exact(layout.units()).enumerate() {
                    for ((best, found), &p) in best.iter_mut().zip(&mut found).zip(row) {
                        if p > *best {
                            (*best, *found) = (p, cat as f64);
                        }
                    }
                }
                logs[at] = best.iter().map(|&p| f64::from(p).ln()).collect();
                (values[at], linear[at]) = (found, best);
            } else {
                for unit in 0..layout.units() {
                    let row = params.row(param, unit);
                    let mode = distribution.mode(&row);
                    logs[at].push(distribution.log_prob(&row, mode));
                    values[at].push(mode);
                }
            }
        }
        Self { values, logs, linear }
    }
}

/// Mean and variance of every unit of a table `[cats × units]`.
fn table_moments(table: &[f32], units: usize) -> Vec<(f64, f64)> {
    let mut sums = vec![[0.0f64; 3]; units];
    for (cat, row) in table.chunks_exact(units).enumerate() {
        let cat = cat as f64;
        for (sums, &p) in sums.iter_mut().zip(row) {
            let p = f64::from(p);
            *sums = [sums[0] + p, sums[1] + p * cat, sums[2] + p * cat * cat];
        }
    }
    let of = |[mass, first, second]: [f64; 3]| (first / mass, (second / mass - (first / mass).powi(2)).max(0.0));
    sums.into_iter().map(of).collect()
}

/// Some rows after a pass up and back down. Rows are counted from the tile's first.
pub(crate) struct FlowTile<'a> {
    evaluator: &'a Evaluator,
    questions: &'a Questions,
    tile: &'a Tile,
    state: &'a TileState,
    /// Scratch.
    left: Vec<f32>,
    scratch: &'a mut LeftScratch,
}

impl FlowTile<'_> {
    /// Which rows of the batch.
    pub fn rows(&self) -> Range<usize> {
        self.tile.rows.clone()
    }

    /// log p of a row; `None` where linear space cannot hold it.
    pub fn log_likelihood(&self, row: usize) -> Option<f64> {
        (!self.state.degenerate[row]).then(|| self.state.log_likelihoods[row])
    }

    /// The flows of the units of a leaf.
    pub fn flows(&self, leaf: usize, row: usize) -> &[f32] {
        // SAFETY: the passes over this tile are done, and its buffers lie apart.
        unsafe { self.tile.flows.get(self.tile.row(self.questions.leaves[leaf].flow, row)) }
    }

    /// The values of the units of a leaf that is not missing, and the power of two they are to be multiplied by.
    pub fn values(&self, leaf: usize, row: usize) -> (&[f32], i64) {
        let Leaf { var, param, value, .. } = self.questions.leaves[leaf];
        match value {
            Some(buffer) => {
                // SAFETY: the passes over this tile are done, and inputs keep their values.
                let values = unsafe { self.tile.values.get(self.tile.row(buffer, row)) };
                (values, self.state.scales[self.tile.scale_span(buffer).start + row].exponent)
            }
            None => {
                let layout = self.evaluator.circuit().layout().block(param);
                let start = layout.values.start + self.tile.categories(var)[row] as usize * layout.units();
                (&self.evaluator.params().values()[start..start + layout.units()], 0)
            }
        }
    }

    /// Everything that was dropped on the way up adds up to less than p(x)·2^−this. A sum forgets what was dropped
    /// below it once its values are SAFE_BITS above, so that much is all that is known of a row that has dropped
    /// anything anywhere.
    pub fn bits_above_loss(&self, row: usize) -> i64 {
        let Self { tile, state, questions, .. } = self;
        let mut of_row = state.scales.iter().skip(row).step_by(tile.num_rows());
        if of_row.all(|scale| scale.loss <= SOME_LOSS) {
            return i64::MAX;
        }
        let root = state.scales[tile.scale_span(questions.plan.root_value).start + row];
        let forgotten = SAFE_BITS - i64::from(questions.plan.num_scales.ilog2()) - 1;
        if root.loss <= SOME_LOSS { forgotten } else { forgotten.min(root.exponent - root.loss) }
    }

    /// out\[r, c\] = p(c | rest of row r) for some rows and all categories of a variable: Σ over the units of its
    /// leaves of flow·p(c), and what rounding has left of one made one.
    pub fn probabilities(&mut self, var: usize, rows: &[usize], out: &mut [f32]) {
        let leaves = &self.questions.leaves_of[var];
        self.mix_table(leaves[0], rows, out);
        let mut part = Vec::new();
        for &leaf in &leaves[1..] {
            part.resize(out.len(), 0.0);
            self.mix_table(leaf, rows, &mut part);
            out.iter_mut().zip(&part).for_each(|(sum, part)| *sum += part);
        }
        normalise_rows(self.evaluator.fixed.isa, out, out.len() / rows.len());
    }

    /// out\[r, c\] = Σ over the units of a leaf of flow·p(c), for some rows and all categories.
    fn mix_table(&mut self, leaf: usize, rows: &[usize], out: &mut [f32]) {
        let Leaf { param, flow, .. } = self.questions.leaves[leaf];
        let (table, units) = (self.evaluator.table(param).expect("an input with categories"), flow.units);
        let arithmetic: Arithmetic = self.evaluator.fixed.evaluation();
        let cats = table.len() / units;
        let packed = self.questions.packed_tables[param.index()].get_or_init(|| {
            let mut packed = Packed::default();
            packed.pack_transposed(arithmetic, Matrix::new(table, cats, units, units));
            packed
        });
        let mut left = std::mem::take(&mut self.left);
        left.clear();
        rows.iter().for_each(|&row| left.extend_from_slice(self.flows(leaf, row)));
        let (to, from) = (MatrixMut::new(out, rows.len(), cats, cats), Matrix::new(&left, rows.len(), units, units));
        multiply(arithmetic, to, from, packed, self.scratch);
        self.left = left;
    }

    /// So many zeros, in large pages if they are many.
    pub fn room(&self, len: usize) -> Vec<f32> {
        large_pages::zeros(len)
    }
}

/// Some rows after a pass up. Rows are counted from the tile's first.
pub(crate) struct ValueTile<'a> {
    isa: Isa,
    questions: &'a Questions,
    tile: &'a Tile,
    state: &'a TileState,
}

impl ValueTile<'_> {
    /// Which rows of the batch.
    pub fn rows(&self) -> Range<usize> {
        self.tile.rows.clone()
    }

    /// The logarithm of the root's value; `None` where linear space cannot hold the row.
    pub fn log_value(&self, row: usize) -> Option<f64> {
        (!self.state.degenerate[row]).then(|| self.state.log_likelihoods[row])
    }

    /// The values of what a group of a sum mixes, up to a common factor.
    pub fn panel(&self, node: NodeId, group: usize, row: usize) -> &[f32] {
        let view = self.questions.panels[node.index()][group];
        // SAFETY: the pass over this tile is done; what sums mix keeps its values.
        let all = unsafe { self.tile.values.get(self.tile.row(view.buffer, row)) };
        &all[view.start..view.start + view.units]
    }

    /// Which of those is largest when they are multiplied with weights; the first of several.
    pub fn largest(&self, node: NodeId, group: usize, row: usize, weights: &[f32]) -> usize {
        largest_term(self.isa, weights, self.panel(node, group, row))
    }
}
