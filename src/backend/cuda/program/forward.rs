//! The forward pass: descriptors level by level.

use super::maps::{Maps, skew};
use super::{Cells, Extent, Spaces, Span, spans, staged};
use crate::backend::cuda::descriptors::{
    FactorDesc, GroupDesc, InputDesc, PanelDesc, ProductDesc, SliceDesc, SumDesc, factor,
};
use crate::plan::{self, FactorSource, InputStep, Plan, PlanGroup, ProductStep, Step, SumStep, View};

use super::ParamLayout;

/// Units of a group in one tile of a kernel.
const TILE: usize = 64;

/// All that the forward pass launches over.
#[derive(Default)]
pub(in crate::backend::cuda) struct Forward {
    pub inputs: Vec<InputDesc>,
    pub products: Vec<ProductDesc>,
    pub factors: Vec<FactorDesc>,
    pub panels: Vec<PanelDesc>,
    pub slices: Vec<SliceDesc>,
    pub groups: Vec<GroupDesc>,
    pub sums: Vec<SumDesc>,
    pub input_spans: Vec<Span>,
    pub levels: Vec<ForwardLevel>,
    /// Tiles of the groups of the level that has most: two extremes each, per row.
    pub extreme_tiles: usize,
}

/// One level: products and panels first, then groups, then sums.
#[derive(Default)]
pub(in crate::backend::cuda) struct ForwardLevel {
    pub products: Vec<Span>,
    pub panels: Vec<Span>,
    pub groups: Vec<Span>,
    pub sums: Vec<Span>,
}

/// The steps of one level, before they are described.
#[derive(Clone, Default)]
struct LevelSteps<'a> {
    products: Vec<&'a ProductStep>,
    sums: Vec<&'a SumStep>,
}

/// What descriptors are made with.
struct Maker<'a> {
    values: &'a Spaces,
    flows: &'a Spaces,
    params: &'a ParamLayout,
    cells: &'a Cells<'a>,
}

impl Forward {
    pub(super) fn new(
        plan: &Plan,
        values: &Spaces,
        flows: &Spaces,
        params: &ParamLayout,
        cells: &Cells<'_>,
        maps: &mut Maps,
    ) -> Self {
        let maker = Maker { values, flows, params, cells };
        let mut forward = Self::default();
        let (inputs, levels) = levels(plan, values.at.len());
        let mut extents = Vec::with_capacity(inputs.len());
        for input in inputs {
            extents.push(Extent { units: input.value.units, ..Extent::default() });
            forward.inputs.push(InputDesc {
                value: values.of(input.value),
                param: params.index(input.param),
                cells: cells.of(input.var, input.param),
            });
        }
        forward.input_spans = spans(0, &extents);
        for steps in &levels {
            let level = forward.add_level(steps, &maker, maps);
            forward.levels.push(level);
        }
        forward
    }

    fn add_level(&mut self, steps: &LevelSteps<'_>, maker: &Maker<'_>, maps: &mut Maps) -> ForwardLevel {
        let first = self.products.len();
        let extents: Vec<Extent> = steps.products.iter().map(|p| self.add_product(p, maker, maps)).collect();
        let products = spans(first, &extents);

        let (first_panel, first_group, first_sum) = (self.panels.len(), self.groups.len(), self.sums.len());
        let (mut panels, mut groups, mut sums) = (Vec::new(), Vec::new(), Vec::new());
        let mut tiles = 0;
        for sum in &steps.sums {
            let panel = sum.groups[0].panel.buffer;
            self.sums.push(SumDesc {
                value: maker.values.of(sum.value),
                first_group: self.groups.len() as i32,
                num_groups: sum.groups.len() as i32,
                units: sum.value.units as i32,
                one_panel: i32::from(sum.groups.iter().all(|g| g.panel.buffer == panel)),
            });
            sums.push(Extent { units: sum.value.units, ..Extent::default() });
            for group in &sum.groups {
                if !group.gathered.is_empty() {
                    panels.push(self.add_panel(group, maker.values));
                }
                let desc = GroupDesc { extremes_at: tiles as i64, ..maker.group(sum, group) };
                tiles += group.units.div_ceil(TILE);
                self.groups.push(desc);
                let is_block = sum.groups.len() > 1;
                groups.push(Extent { units: group.units, cols: group.panel.units, is_block, ..Extent::default() });
            }
        }
        self.extreme_tiles = self.extreme_tiles.max(tiles);
        ForwardLevel {
            products,
            panels: spans(first_panel, &panels),
            groups: spans(first_group, &groups),
            sums: spans(first_sum, &sums),
        }
    }

    fn add_product(&mut self, product: &ProductStep, maker: &Maker<'_>, maps: &mut Maps) -> Extent {
        let mut extent = Extent { units: product.value.units, ..Extent::default() };
        self.products.push(ProductDesc {
            value: maker.values.of(product.value),
            first_factor: self.factors.len() as i32,
            num_factors: product.factors.len() as i32,
            units: product.value.units as i32,
            pad: 0,
        });
        for f in &product.factors {
            let skew = skew(f, true);
            let mut desc = FactorDesc { map_at: maps.of(f.map.as_ref()), skew, ..FactorDesc::default() };
            let units = match f.source {
                FactorSource::Value(buffer) => {
                    (desc.kind, desc.source) = (factor::VALUE, maker.values.of(buffer));
                    buffer.units
                }
                FactorSource::Table { var, param } => {
                    (desc.kind, desc.param) = (factor::TABLE, maker.params.index(param));
                    desc.cells = maker.cells.of(var, param);
                    maker.params.desc(param).units as usize
                }
            };
            desc.units = units as i32;
            if f.map.is_some() {
                extent.stage = extent.stage.max(staged(units));
            }
            self.factors.push(desc);
        }
        extent
    }

    fn add_panel(&mut self, group: &PlanGroup, values: &Spaces) -> Extent {
        let slice = |view: &View| SliceDesc {
            source: values.of(view.buffer),
            start: view.start as i32,
            units: view.units as i32,
        };
        self.panels.push(PanelDesc {
            panel: values.of(group.panel.buffer),
            first_slice: self.slices.len() as i32,
            num_slices: group.gathered.len() as i32,
            units: group.panel.units as i32,
            pad: 0,
        });
        self.slices.extend(group.gathered.iter().map(slice));
        Extent { units: group.panel.units, ..Extent::default() }
    }
}

impl Maker<'_> {
    fn group(&self, sum: &SumStep, group: &PlanGroup) -> GroupDesc {
        group_desc(sum, group, self.values, self.flows, self.params)
    }
}

/// A group, but for its extremes (forwards) and its targets (backwards).
pub(super) fn group_desc(
    sum: &SumStep,
    group: &PlanGroup,
    values: &Spaces,
    flows: &Spaces,
    params: &ParamLayout,
) -> GroupDesc {
    let weights = params.desc(group.param);
    GroupDesc {
        value: values.of(sum.value),
        flow: flows.of(sum.flow.expect("in a whole plan every sum has a flow")),
        panel: values.of(group.panel.buffer),
        theta_at: weights.theta_at,
        theta_ld: weights.ld,
        start: group.start as i32,
        units: group.units as i32,
        panel_start: group.panel.start as i32,
        cols: group.panel.units as i32,
        ..GroupDesc::default()
    }
}

/// The inputs, and the other steps by level.
fn levels(plan: &Plan, num_buffers: usize) -> (Vec<&InputStep>, Vec<LevelSteps<'_>>) {
    let mut level_of = vec![0usize; num_buffers]; // of value buffers; those of inputs are at level 0
    let (mut inputs, mut levels) = (Vec::new(), Vec::<LevelSteps<'_>>::new());
    for step in &plan.steps {
        let (reads, value): (Vec<plan::Buffer>, plan::Buffer) = match step {
            Step::Input(input) => {
                inputs.push(input);
                continue;
            }
            Step::Product(product) => {
                let source = |f: &plan::PlanFactor| match f.source {
                    FactorSource::Value(buffer) => Some(buffer),
                    FactorSource::Table { .. } => None,
                };
                (product.factors.iter().filter_map(source).collect(), product.value)
            }
            Step::Sum(sum) => {
                let of_group = |g: &PlanGroup| match g.gathered[..] {
                    [] => vec![g.panel.buffer],
                    _ => g.gathered.iter().map(|view| view.buffer).collect(),
                };
                (sum.groups.iter().flat_map(of_group).collect(), sum.value)
            }
        };
        let level = reads.iter().map(|b| level_of[b.id]).max().unwrap_or(0) + 1;
        level_of[value.id] = level;
        if levels.len() < level {
            levels.resize(level, LevelSteps::default());
        }
        match step {
            Step::Product(product) => levels[level - 1].products.push(product),
            Step::Sum(sum) => levels[level - 1].sums.push(sum),
            Step::Input(_) => {}
        }
    }
    (inputs, levels)
}
