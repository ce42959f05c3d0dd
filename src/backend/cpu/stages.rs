//! What may be worked on when: the steps of a plan cut into stages, and what each stage releases.
//!
//! A *stage* is a run of steps up to a sum. Rows are independent of each other, so a tile only waits for itself: its
//! stages run one after the other. In the backward pass a block of weights or a table that a single node uses is
//! *released* once every tile has passed that node: its flows are then gathered, and in a fused step it is updated at
//! once, while all it needs is still in a cache. Blocks that several nodes share wait for the end of the pass. Who
//! works on what is decided by `turns`.

use std::collections::HashMap;
use std::ops::Range;

use crate::backend::micro_batch::pieces;
use crate::circuit::{Circuit, ParamBlock, ParamId, ParamKind};
use crate::plan::{Buffer, Plan, Step, Use};

/// Rows of a weight matrix that one task owns: enough that packing what they are multiplied with costs little.
const WEIGHT_ROWS: usize = 256;

/// Blocks with fewer rows, those of a root, are gathered with the shared ones where no others are released: then an HMM
/// has none that are.
const FEW_ROWS: usize = 2;

/// Stages without released blocks that are done in one go.
const MERGED_STAGES: usize = 8;

/// Stages that a tile may be ahead of tasks that are not done: enough that nobody waits, few enough that memory which
/// is used again is still in a cache.
pub(super) const LEAD: usize = 4;

/// A table with more categories than this is sorted as a whole at the end of a pass, and updated lazily.
pub(super) const LARGE_TABLE: usize = 4096;

/// Numbers of a weight matrix from which on it is packed by one of two workers: a second cache does not hold more.
const LARGE_WEIGHTS: usize = 1 << 17;

/// Workers that take turns: fewer than [`LEAD`], so that there is room between tiles that go ahead and tasks.
pub(super) const TEAM: usize = 2;

/// Some param rows of a block that a single node uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ParamTask {
    pub param: ParamId,
    /// Rows of a weight matrix; all units of a table.
    pub rows: Range<usize>,
}

/// The stages of one circuit.
#[derive(Debug)]
pub(super) struct Stages {
    /// Steps of each stage, in the order of the forward pass.
    pub steps: Vec<Range<usize>>,
    /// What is released once all tiles have passed a stage backwards.
    pub released: Vec<Vec<ParamTask>>,
    /// For blocks of weights that several nodes share, or that are small, which accumulator of a tile is theirs; by
    /// block.
    pub tied: Vec<Option<usize>>,
    /// Rows and columns of those blocks.
    pub tied_shapes: Vec<(usize, usize)>,
    /// Blocks that no task releases, but for large tables: they wait for the end of the pass.
    pub shared: Vec<ParamId>,
    /// Tables with many categories.
    pub large_tables: Vec<ParamId>,
    /// For each stage, flow buffers of large tables that are complete after it: (which table, buffer).
    pub completed: Vec<Vec<(usize, Buffer)>>,
    /// How many workers take turns by stages.
    pub team: usize,
}

impl Stages {
    pub fn new(circuit: &Circuit, plan: &Plan) -> Self {
        let mut blocks = Blocks::new(circuit, plan);
        let team = if blocks.has_large_weights(circuit) { TEAM } else { 1 };
        let (mut steps, mut released, mut completed) = (Vec::new(), Vec::new(), Vec::new());
        for stage in cut(plan, &blocks.released) {
            let tasks = blocks.released[stage.clone()].iter_mut().rev().flat_map(std::mem::take);
            released.push(tasks.collect());
            completed.push(blocks.completed[stage.clone()].concat());
            steps.push(stage);
        }
        let Blocks { tied, tied_shapes, shared, large_tables, .. } = blocks;
        Self { steps, released, tied, tied_shapes, shared, large_tables, completed, team }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.steps.len()
    }

    /// Returns true if nothing is released on the way: then a tile can go all the way forwards and back on its own, and
    /// what it computes is still in a cache when it returns.
    pub fn is_released_at_end(&self) -> bool {
        self.released.iter().all(Vec::is_empty)
    }

    /// Returns true if no sum over rows is taken tile by tile: then tiles may be cut in any way, and the bits are the
    /// same.
    pub fn is_free_of_tiles(&self) -> bool {
        self.tied_shapes.is_empty() && self.large_tables.is_empty()
    }
}

/// When the flows of each parameter block are gathered. Fields are as in [`Stages`], but by step.
struct Blocks {
    released: Vec<Vec<ParamTask>>,
    tied: Vec<Option<usize>>,
    tied_shapes: Vec<(usize, usize)>,
    shared: Vec<ParamId>,
    large_tables: Vec<ParamId>,
    completed: Vec<Vec<(usize, Buffer)>>,
}

impl Blocks {
    fn new(circuit: &Circuit, plan: &Plan) -> Self {
        let mut blocks = Self {
            released: vec![Vec::new(); plan.steps.len()],
            tied: vec![None; circuit.params().len()],
            tied_shapes: Vec::new(),
            shared: Vec::new(),
            large_tables: Vec::new(),
            completed: vec![Vec::new(); plan.steps.len()],
        };
        let complete = flow_complete(plan);
        let is_released = |param: ParamId| {
            let block = &circuit.params()[param.index()];
            block.units >= FEW_ROWS && matches!(plan.uses[param.index()][..], [Use::Sum { .. }])
        };
        let fewest_rows = if circuit.param_ids().any(is_released) { 1 } else { FEW_ROWS };
        for param in circuit.param_ids() {
            let block = &circuit.params()[param.index()];
            let uses = &plan.uses[param.index()];
            match (&block.kind, &uses[..]) {
                (ParamKind::Sum { .. }, [Use::Sum { gain, .. }]) if block.units >= fewest_rows => {
                    let step = plan.steps.iter().position(|s| matches!(s, Step::Sum(s) if s.value == gain.buffer));
                    let tasks = pieces(block.units, WEIGHT_ROWS).map(|rows| ParamTask { param, rows });
                    blocks.released[step.expect("a sum has a step")].extend(tasks);
                }
                (ParamKind::Sum { cols }, _) => {
                    blocks.tied[param.index()] = Some(blocks.tied_shapes.len());
                    blocks.tied_shapes.push((block.units, *cols));
                    blocks.shared.push(param);
                }
                (ParamKind::Input(distribution), uses)
                    if distribution.is_table() && distribution.num_params() > LARGE_TABLE =>
                {
                    for used in uses {
                        if let Use::Input { flow, .. } = used {
                            blocks.completed[complete(*flow)].push((blocks.large_tables.len(), *flow));
                        }
                    }
                    blocks.large_tables.push(param);
                }
                (ParamKind::Input(distribution), [Use::Input { flow, .. }]) if distribution.is_table() => {
                    blocks.released[complete(*flow)].push(ParamTask { param, rows: 0..block.units });
                }
                _ => blocks.shared.push(param),
            }
        }
        blocks
    }

    /// Returns true if a released block is too large for a worker to pack it alone.
    fn has_large_weights(&self, circuit: &Circuit) -> bool {
        self.released.iter().flatten().any(|task| match circuit.params()[task.param.index()] {
            ParamBlock { units, kind: ParamKind::Sum { cols }, .. } => units * cols >= LARGE_WEIGHTS,
            _ => false,
        })
    }
}

/// Cuts the steps after sums; a few stages that release nothing become one.
fn cut(plan: &Plan, released: &[Vec<ParamTask>]) -> Vec<Range<usize>> {
    let mut stages = Vec::new();
    let mut start = 0;
    let mut merged = 0;
    for (i, step) in plan.steps.iter().enumerate() {
        let last = i + 1 == plan.steps.len();
        if !matches!(step, Step::Sum(_)) && !last {
            continue;
        }
        merged += 1;
        let quiet = released[start..=i].iter().all(Vec::is_empty);
        let next_quiet = || {
            let next_sum = plan.steps[i + 1..].iter().position(|s| matches!(s, Step::Sum(_)));
            next_sum.is_some_and(|n| released[i + 1..=i + 1 + n].iter().all(Vec::is_empty))
        };
        if !last && quiet && merged < MERGED_STAGES && next_quiet() {
            continue;
        }
        stages.push(start..i + 1);
        (start, merged) = (i + 1, 0);
    }
    stages
}

/// For a flow buffer, the step after which, in the backward pass, all its contributions are in.
fn flow_complete(plan: &Plan) -> impl Fn(Buffer) -> usize {
    // The root's flow is there before the first step of the backward pass.
    let last = plan.steps.len().saturating_sub(1);
    let mut complete = HashMap::new();
    for (i, step) in plan.steps.iter().enumerate().rev() {
        let mut reach = |buffer: Buffer| {
            complete.insert(buffer.id, i);
        };
        match step {
            Step::Input(_) => {}
            Step::Product(product) => product.factors.iter().filter_map(|f| f.flow).for_each(|t| reach(t.buffer)),
            Step::Sum(sum) => {
                sum.groups.iter().flat_map(|g| &g.targets).for_each(|(t, _)| reach(t.buffer));
                sum.gain_below.iter().filter_map(|below| below.flow).for_each(reach);
            }
        }
    }
    move |buffer| complete.get(&buffer.id).copied().unwrap_or(last)
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::circuit::{Categorical, Distribution};
    use crate::structure::{HcltOptions, Tree, hclt, hmm};

    pub fn planned(circuit: &Circuit) -> (Plan, Stages) {
        let plan = Plan::new(circuit);
        let stages = Stages::new(circuit, &plan);
        (plan, stages)
    }

    pub fn tree() -> Circuit {
        let parents = [None, Some(0), Some(0), Some(1), Some(1), Some(2), Some(5)];
        let cats = |_| -> Arc<dyn Distribution> { Categorical::new(3).unwrap() };
        hclt(&Tree::from_parents(&parents).unwrap(), 9, cats, HcltOptions::default()).unwrap()
    }

    #[test]
    fn every_step_is_in_one_stage_and_every_block_is_gathered_once() {
        for circuit in [tree(), hmm(5, 4, Categorical::new(6).unwrap()).unwrap()] {
            let (plan, stages) = planned(&circuit);
            let steps: Vec<usize> = stages.steps.iter().flat_map(Clone::clone).collect();
            assert_eq!(steps, (0..plan.steps.len()).collect::<Vec<_>>());
            let mut units: Vec<usize> = vec![0; circuit.params().len()];
            stages.released.iter().flatten().for_each(|task| units[task.param.index()] += task.rows.len());
            let shared = stages.shared.iter().chain(&stages.large_tables);
            shared.for_each(|param| units[param.index()] += circuit.params()[param.index()].units);
            assert_eq!(units, circuit.params().iter().map(|block| block.units).collect::<Vec<_>>());
        }
        let (_, hmm) = planned(&hmm(5, 4, Categorical::new(6).unwrap()).unwrap());
        assert!(hmm.is_released_at_end());
        assert!(!planned(&tree()).1.is_released_at_end());
    }

    #[test]
    fn large_weights_make_teams() {
        let cats = |_| -> Arc<dyn Distribution> { Categorical::new(3).unwrap() };
        let chain = Tree::from_parents(&[None, Some(0), Some(1)]).unwrap();
        let team = |latents: usize| planned(&hclt(&chain, latents, cats, HcltOptions::default()).unwrap()).1.team;
        assert_eq!((team(64), team(512)), (1, TEAM));
    }
}
