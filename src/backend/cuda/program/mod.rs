//! A plan as descriptor tables and lists of launches, in plain Rust: no device is needed to make or to test one.
//!
//! A step's *level* is one more than the highest of the steps it reads, so all steps of a level run in one launch per
//! kind.
//! [`Forward`] and [`Backward`] hold the descriptors in the order of the launches, a launch being a [`Span`] of them.
//! Parameters lie as [`ParamLayout`] says. `passes` does the launching.

mod backward;
mod forward;
mod maps;
mod params;

use crate::circuit::{Circuit, ParamKind};
use crate::error::Result;
use crate::plan::{self, Plan, Step, Use};

pub(super) use self::backward::Backward;
pub(super) use self::forward::Forward;
pub(super) use self::params::{BlockClass, CHUNKS_PER_SPLIT, ParamLayout, ROWS_PER_SPLIT, WorkingSizes};
use super::descriptors::{Buffer, UseDesc};

/// The last dimension of a grid is the number of descriptors; it may not be larger.
const LARGEST_GRID: usize = 65_535;

/// Everything about a circuit that the launches need, but for memory.
pub(super) struct Program {
    pub params: ParamLayout,
    pub uses: Vec<UseDesc>,
    /// Maps of factors and their inverses, one table for all.
    pub maps: Vec<u32>,
    pub forward: Forward,
    pub backward: Backward,
    /// What each column of cells is of.
    pub columns: Vec<CellColumn>,
    /// Numbers per row in all value buffers, padded.
    pub value_units: usize,
    /// The same of flow buffers.
    pub flow_units: usize,
    /// Scales per row.
    pub num_scales: usize,
    pub root_value: Buffer,
    pub root_flow: Buffer,
}

/// A column of cells: a variable, read as a category or as a real number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CellColumn {
    pub var: usize,
    pub is_real: bool,
}

impl Program {
    /// The program of a circuit. Fails for a distribution that there is no kernel for.
    pub fn new(circuit: &Circuit) -> Result<Self> {
        let plan = Plan::whole(circuit);
        let values = Spaces::new(value_buffers(&plan));
        let flows = Spaces::new(flow_buffers(&plan));
        let mut params = ParamLayout::new(circuit)?;
        let columns = cell_columns(circuit, &plan);
        let cells = Cells { circuit, columns: &columns };
        let uses = params.take_uses(&plan, |u| use_desc(u, &values, &flows, &cells));
        let mut maps = maps::Maps::default();
        let forward = Forward::new(&plan, &values, &flows, &params, &cells, &mut maps);
        let backward = Backward::new(&plan, &values, &flows, &params, &mut maps);
        Ok(Self {
            root_value: values.of(plan.root_value),
            root_flow: flows.of(plan.root_flow),
            value_units: values.units,
            flow_units: flows.units,
            num_scales: values.at.len(),
            maps: maps.numbers,
            params,
            uses,
            forward,
            backward,
            columns,
        })
    }
}

/// Descriptors of one launch: a run of them in their table, and the extents that size its grid.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Span {
    pub first: usize,
    pub count: usize,
    /// The most units of any of them.
    pub units: usize,
    /// The most columns, of groups and weights.
    pub cols: usize,
    /// The most tiles of 64 units by 64 columns, of weights; and of 128 units by 64 columns.
    pub tiles: usize,
    pub tall_tiles: usize,
    /// Whether some of them are blocks of a block-diagonal sum.
    pub has_blocks: bool,
    /// The largest row that a warp stages in shared memory, in floats.
    pub stage: usize,
}

/// What one descriptor contributes to the extents of its launch.
#[derive(Clone, Copy, Debug, Default)]
struct Extent {
    units: usize,
    cols: usize,
    stage: usize,
    is_block: bool,
}

/// The launches over descriptors that start at `first` of their table.
fn spans(first: usize, extents: &[Extent]) -> Vec<Span> {
    let chunks = extents.chunks(LARGEST_GRID).enumerate();
    let span = |(i, part): (usize, &[Extent])| {
        let start = Span { first: first + i * LARGEST_GRID, count: part.len(), ..Span::default() };
        part.iter().fold(start, |span, e| Span {
            units: span.units.max(e.units),
            cols: span.cols.max(e.cols),
            tiles: span.tiles.max(e.units.div_ceil(64) * e.cols.div_ceil(64)),
            tall_tiles: span.tall_tiles.max(e.units.div_ceil(128) * e.cols.div_ceil(64)),
            has_blocks: span.has_blocks || e.is_block,
            stage: span.stage.max(e.stage),
            ..span
        })
    };
    chunks.map(span).collect()
}

/// Floats that a warp stages for a row of `units`: whole rounds of its banks.
fn staged(units: usize) -> usize {
    units.next_multiple_of(32)
}

/// ⌊log2⌋ of a number that is not zero.
fn log2(x: usize) -> i32 {
    x.ilog2() as i32
}

/// Rounds up to whole rows of 32 bytes.
fn padded(units: usize) -> usize {
    units.next_multiple_of(8)
}

/// Where the buffers of a plan lie on the device: one after the other, each row padded.
struct Spaces {
    at: Vec<usize>,
    ld: Vec<usize>,
    units: usize,
}

impl Spaces {
    /// From the units of every buffer, by its number.
    fn new(sizes: Vec<usize>) -> Self {
        let ld: Vec<usize> = sizes.into_iter().map(padded).collect();
        let mut units = 0;
        let at = ld.iter().map(|ld| {
            units += ld;
            units - ld
        });
        Self { at: at.collect(), ld, units }
    }

    fn of(&self, buffer: plan::Buffer) -> Buffer {
        let i = buffer.id;
        Buffer { at: self.at[i] as i64, ld: self.ld[i] as i32, scale: i as i32 }
    }
}

/// The units of every buffer, by its number.
fn sizes(buffers: impl Iterator<Item = plan::Buffer>) -> Vec<usize> {
    let mut sizes = Vec::new();
    for buffer in buffers {
        if sizes.len() <= buffer.id {
            sizes.resize(buffer.id + 1, 0);
        }
        sizes[buffer.id] = buffer.units;
    }
    sizes
}

fn value_buffers(plan: &Plan) -> Vec<usize> {
    sizes(plan.steps.iter().flat_map(|step| match step {
        Step::Input(input) => vec![input.value],
        Step::Product(product) => vec![product.value],
        Step::Sum(sum) => sum.groups.iter().map(|g| g.panel.buffer).chain([sum.value]).collect(),
    }))
}

fn flow_buffers(plan: &Plan) -> Vec<usize> {
    let of_steps = plan.steps.iter().flat_map(|step| match step {
        Step::Input(_) => Vec::new(),
        Step::Product(p) => p.factors.iter().filter_map(|f| f.flow.map(|t| t.buffer)).chain(p.flow).collect(),
        Step::Sum(s) => {
            s.groups.iter().flat_map(|g| &g.targets).map(|(target, _)| target.buffer).chain(s.flow).collect()
        }
    });
    let of_inputs = plan.uses.iter().flatten().filter_map(|u| match u {
        Use::Input { flow, .. } => Some(*flow),
        Use::Sum { .. } => None,
    });
    sizes(of_steps.chain(of_inputs).chain([plan.root_flow]))
}

/// Finds the column of cells that an input reads.
struct Cells<'a> {
    circuit: &'a Circuit,
    columns: &'a [CellColumn],
}

impl Cells<'_> {
    fn of(&self, var: usize, param: crate::circuit::ParamId) -> i32 {
        let column = column_of(self.circuit, var, param);
        self.columns.iter().position(|c| *c == column).expect("every use of a variable has its column") as i32
    }

    fn of_use(&self, var: usize, param: usize) -> i32 {
        let column = CellColumn { var, is_real: is_real(&self.circuit.params()[param].kind) };
        self.columns.iter().position(|c| *c == column).expect("every use of a variable has its column") as i32
    }
}

fn column_of(circuit: &Circuit, var: usize, param: crate::circuit::ParamId) -> CellColumn {
    CellColumn { var, is_real: is_real(&circuit.params()[param.index()].kind) }
}

fn is_real(kind: &ParamKind) -> bool {
    matches!(kind, ParamKind::Input(distribution) if distribution.num_cats().is_none())
}

/// One column per variable, two for a variable that is read as a category here and as a number there.
fn cell_columns(circuit: &Circuit, plan: &Plan) -> Vec<CellColumn> {
    let mut columns = Vec::new();
    for (param, uses) in plan.uses.iter().enumerate() {
        for u in uses {
            if let Use::Input { var, .. } = u {
                let is_real = is_real(&circuit.params()[param].kind);
                columns.push(CellColumn { var: *var, is_real });
            }
        }
    }
    columns.sort_unstable_by_key(|c| (c.var, c.is_real));
    columns.dedup();
    columns
}

/// A use, by the number of the block.
fn use_desc((param, u): (usize, &Use), values: &Spaces, flows: &Spaces, cells: &Cells<'_>) -> UseDesc {
    match u {
        Use::Sum { gain, panel, flow } => UseDesc {
            gain: values.of(gain.buffer),
            panel: values.of(panel.buffer),
            flow: flows.of(flow.expect("in a whole plan every sum has a flow").buffer),
            gain_start: gain.start as i32,
            panel_start: panel.start as i32,
            ..UseDesc::default()
        },
        Use::Input { var, flow } => {
            UseDesc { flow: flows.of(*flow), cells: cells.of_use(*var, param), ..UseDesc::default() }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::Arc;

    use super::*;
    use crate::backend::cuda::descriptors::factor;
    use crate::circuit::{Categorical, Distribution};
    use crate::structure::{PdOptions, RatSpnOptions, hmm, monarch_hmm, pd, rat_spn};

    fn programs() -> Vec<Program> {
        let table = |_| -> Arc<dyn Distribution> { Categorical::new(3).unwrap() };
        let random = RatSpnOptions { latents: 3, depth: 2, repetitions: 2, pieces: 2, seed: 4 };
        let circuits = [
            hmm(5, 9, table(0)).unwrap(),
            monarch_hmm(4, (2, 5), table(0)).unwrap(),
            pd(&[2, 4], &PdOptions::new(vec![1, 2], 3), table).unwrap(),
            rat_spn(6, &random, table).unwrap(),
        ];
        circuits.iter().map(|circuit| Program::new(circuit).unwrap()).collect()
    }

    fn range(span: &Span) -> std::ops::Range<usize> {
        span.first..span.first + span.count
    }

    #[test]
    fn a_level_reads_what_levels_before_it_wrote() {
        for program in programs() {
            let forward = &program.forward;
            let mut written: HashSet<i64> = forward.inputs.iter().map(|input| input.value.at).collect();
            for level in &forward.levels {
                let mut new = Vec::new();
                for product in level.products.iter().flat_map(|span| &forward.products[range(span)]) {
                    let factors = &forward.factors[product.first_factor as usize..][..product.num_factors as usize];
                    assert!(factors.iter().all(|f| f.kind == factor::TABLE || written.contains(&f.source.at)));
                    new.push(product.value.at);
                }
                for panel in level.panels.iter().flat_map(|span| &forward.panels[range(span)]) {
                    let slices = &forward.slices[panel.first_slice as usize..][..panel.num_slices as usize];
                    assert!(slices.iter().all(|slice| written.contains(&slice.source.at)));
                    written.insert(panel.panel.at); // before the sums of the same level
                }
                for sum in level.sums.iter().flat_map(|span| &forward.sums[range(span)]) {
                    let groups = &forward.groups[sum.first_group as usize..][..sum.num_groups as usize];
                    assert!(groups.iter().all(|group| written.contains(&group.panel.at)));
                    new.push(sum.value.at);
                }
                written.extend(new);
            }
            assert_eq!(written.len(), program.num_scales, "every buffer is written");
            assert!(written.contains(&program.root_value.at));
        }
    }

    #[test]
    fn flows_are_complete_before_they_are_used_and_no_two_targets_of_a_wave_overlap() {
        for program in programs() {
            let backward = &program.backward;
            // Buffers that hold something: set, or cleared.
            let mut begun: HashSet<i64> = backward.clear.iter().map(|buffer| buffer.at).collect();
            begun.insert(program.root_flow.at);
            let mut used = HashSet::new();
            for level in &backward.levels {
                for pull in level.pulls.iter().flat_map(|span| &backward.pulls[range(span)]) {
                    let sources = &backward.sources[pull.first_source as usize..][..pull.num_sources as usize];
                    assert!(sources.iter().all(|source| begun.contains(&source.flow.at)));
                    assert!(!used.contains(&pull.target.at), "complete flows stay as they are");
                    assert_eq!(pull.add == 1, begun.contains(&pull.target.at));
                    begun.insert(pull.target.at);
                }
                for gain in level.gains.iter().flat_map(|span| &backward.gains[range(span)]) {
                    assert!(begun.contains(&gain.flow.at));
                    used.insert(gain.flow.at);
                }
                for wave in &level.waves {
                    let mut columns = HashSet::new();
                    for group in wave.iter().flat_map(|span| &backward.groups[range(span)]) {
                        let targets = &backward.targets[group.first_target as usize..][..group.num_targets as usize];
                        for target in targets {
                            assert!(!used.contains(&target.target.at), "complete flows stay as they are");
                            assert!(target.add == 0 || begun.contains(&target.target.at));
                            let new = target.start..target.start + target.units;
                            assert!(new.into_iter().all(|column| columns.insert((target.target.at, column))));
                        }
                    }
                    begun.extend(columns.into_iter().map(|(at, _)| at));
                }
            }
            assert_eq!(backward.gains.len(), program.forward.groups.len(), "every group has its gain once");
            let uses = program.uses.iter().all(|u| begun.contains(&u.flow.at));
            assert!(uses, "every use has a flow");
        }
    }

    #[test]
    fn launches_of_many_descriptors_are_cut() {
        let extents: Vec<Extent> = (0..70_000).map(|i| Extent { units: i, ..Extent::default() }).collect();
        let cut = spans(3, &extents);
        assert_eq!(
            cut.iter().map(|s| (s.first, s.count, s.units)).collect::<Vec<_>>(),
            [(3, 65_535, 65_534), (65_538, 4_465, 69_999)]
        );
        assert!(spans(0, &[]).is_empty());
    }

    #[test]
    fn buffers_are_padded_and_follow_each_other() {
        let spaces = Spaces::new(vec![5, 8, 17]);
        assert_eq!((spaces.at, spaces.ld, spaces.units), (vec![0, 8, 16], vec![8, 8, 24], 40));
    }
}
