//! The backward pass: who flows into which buffer, level by level from the root down.
//!
//! A flow buffer's level is one more than the highest of the steps that flow into it; a step runs at the level of its
//! flow. Products push nothing: a buffer that they flow into pulls from all of them, when their flows are complete.
//! Groups of sums push into their targets; those that would write to the same columns go into one *wave* after the
//! other.

use super::forward::group_desc;
use super::maps::{Maps, skew};
use super::{Extent, ParamLayout, Spaces, Span, spans, staged};
use crate::backend::cuda::descriptors::{Buffer, GroupDesc, PullDesc, PullSource, TargetDesc};
use crate::plan::{self, Plan, PlanFactor, PlanGroup, ProductStep, Step, SumStep};

/// All that the backward pass launches over.
#[derive(Default)]
pub(in crate::backend::cuda) struct Backward {
    pub pulls: Vec<PullDesc>,
    pub sources: Vec<PullSource>,
    /// All groups, in the order of their gains.
    pub gains: Vec<GroupDesc>,
    /// All groups, in the order of their waves.
    pub groups: Vec<GroupDesc>,
    pub targets: Vec<TargetDesc>,
    pub levels: Vec<BackwardLevel>,
    /// Flow buffers that are not set as a whole by whoever reaches them first: zero before the pass.
    pub clear: Vec<Buffer>,
}

/// One level: pulls, then the gains of all groups, then their waves.
#[derive(Default)]
pub(in crate::backend::cuda) struct BackwardLevel {
    pub pulls: Vec<Span>,
    pub gains: Vec<Span>,
    pub waves: Vec<Vec<Span>>,
}

/// Columns of a flow buffer that a group flows into.
#[derive(Clone, Copy)]
struct Columns {
    buffer: usize,
    start: usize,
    units: usize,
}

impl Columns {
    fn overlaps(&self, other: &Self) -> bool {
        self.buffer == other.buffer && self.start < other.start + other.units && other.start < self.start + self.units
    }
}

/// What flows into one buffer.
#[derive(Clone, Default)]
struct Inflow<'a> {
    buffer: Option<plan::Buffer>,
    level: usize,
    pulls: Vec<(&'a ProductStep, &'a PlanFactor)>,
    /// Columns and when: (level, wave) of the group.
    pushes: Vec<(Columns, (usize, usize))>,
}

/// A group with its wave. A group that mixes a child twice is there twice, each time with targets that do not overlap.
struct Queued<'a> {
    sum: &'a SumStep,
    group: &'a PlanGroup,
    targets: Vec<(usize, Columns)>,
    wave: usize,
    is_again: bool,
}

impl Backward {
    pub(super) fn new(plan: &Plan, values: &Spaces, flows: &Spaces, params: &ParamLayout, maps: &mut Maps) -> Self {
        let (inflows, queues) = schedule(plan, flows.at.len());
        let mut backward = Self::default();
        // Whether the first to push into a buffer make it up as a whole; otherwise it is cleared and all add to it.
        let is_set: Vec<bool> = inflows.iter().map(is_set_by_first).collect();
        for (i, inflow) in inflows.iter().enumerate() {
            let is_root = plan.root_flow.id == i;
            let is_reached = !inflow.pushes.is_empty() || !inflow.pulls.is_empty();
            if let Some(buffer) = inflow.buffer
                && !is_root
                && (!is_reached || (!inflow.pushes.is_empty() && !is_set[i]))
            {
                backward.clear.push(flows.of(buffer));
            }
        }

        let num_levels = inflows.iter().map(|inflow| inflow.level + 1).max().unwrap_or(0);
        for level in 0..num_levels {
            let first = backward.pulls.len();
            let mut extents = Vec::new();
            for inflow in inflows.iter().filter(|inflow| inflow.level == level && !inflow.pulls.is_empty()) {
                extents.push(backward.add_pull(inflow, flows, maps));
            }
            let pulls = spans(first, &extents);

            let mut queue: Vec<&Queued<'_>> = queues.get(level).into_iter().flatten().collect();
            queue.sort_by_key(|queued| queued.wave); // stable: the order of the steps is kept
            let extent = |q: &&Queued<'_>| Extent {
                units: q.group.units,
                cols: q.group.panel.units,
                is_block: q.sum.groups.len() > 1,
                ..Extent::default()
            };
            let (first, first_gain) = (backward.groups.len(), backward.gains.len());
            let gains: Vec<Extent> = queue.iter().filter(|q| !q.is_again).map(extent).collect();
            let extents: Vec<Extent> = queue.iter().map(extent).collect();
            let num_waves = queue.last().map_or(0, |last| last.wave + 1);
            let waves = (0..num_waves).map(|wave| {
                let start = queue.partition_point(|q| q.wave < wave);
                let end = queue.partition_point(|q| q.wave <= wave);
                spans(first + start, &extents[start..end])
            });
            let waves = waves.collect();
            for queued in &queue {
                let desc = group_desc(queued.sum, queued.group, values, flows, params);
                if !queued.is_again {
                    backward.gains.push(desc);
                }
                let first_target = backward.targets.len() as i32;
                let num_targets = queued.targets.len() as i32;
                for (col, columns) in &queued.targets {
                    let earliest = inflows[columns.buffer].pushes.iter().map(|(_, at)| *at).min();
                    let is_first = is_set[columns.buffer] && earliest == Some((level, queued.wave));
                    let target = inflows[columns.buffer].buffer.expect("a buffer that is pushed into is known");
                    backward.targets.push(TargetDesc {
                        target: flows.of(target),
                        start: columns.start as i32,
                        col: *col as i32,
                        units: columns.units as i32,
                        add: i32::from(!is_first),
                    });
                }
                backward.groups.push(GroupDesc { first_target, num_targets, ..desc });
            }
            let gains = spans(first_gain, &gains);
            backward.levels.push(BackwardLevel { pulls, gains, waves });
        }
        backward
    }

    fn add_pull(&mut self, inflow: &Inflow<'_>, flows: &Spaces, maps: &mut Maps) -> Extent {
        let target = inflow.buffer.expect("a buffer that is pulled into is known");
        let mut extent = Extent { units: target.units, ..Extent::default() };
        self.pulls.push(PullDesc {
            target: flows.of(target),
            first_source: self.sources.len() as i32,
            num_sources: inflow.pulls.len() as i32,
            units: target.units as i32,
            add: i32::from(!inflow.pushes.is_empty()),
        });
        for (product, factor) in &inflow.pulls {
            let skew = skew(factor, false);
            let pull = maps.pull(factor.map.as_ref(), target.units);
            let units = product.value.units;
            self.sources.push(PullSource {
                flow: flows.of(product.flow.expect("in a whole plan every product has a flow")),
                starts_at: pull.starts_at,
                items_at: pull.items_at,
                units: units as i32,
                skew,
            });
            if factor.map.is_some() {
                extent.stage = extent.stage.max(staged(units));
            }
        }
        extent
    }
}

/// Levels of the flow buffers, what flows into each, and the groups of each level with their waves.
fn schedule(plan: &Plan, num_buffers: usize) -> (Vec<Inflow<'_>>, Vec<Vec<Queued<'_>>>) {
    let mut inflows = vec![Inflow::default(); num_buffers];
    let mut queues: Vec<Vec<Queued<'_>>> = Vec::new();
    inflows[plan.root_flow.id].buffer = Some(plan.root_flow);
    // Parents come after their children: what flows into a step's buffer has been met before the step itself.
    for step in plan.steps.iter().rev() {
        match step {
            Step::Input(_) => {}
            Step::Product(product) => {
                let flow = product.flow.expect("in a whole plan every product has a flow");
                inflows[flow.id].buffer = Some(flow);
                let level = inflows[flow.id].level;
                for factor in &product.factors {
                    if let Some(target) = factor.flow {
                        let inflow = &mut inflows[target.buffer.id];
                        (inflow.buffer, inflow.level) = (Some(target.buffer), inflow.level.max(level + 1));
                        inflow.pulls.push((product, factor));
                    }
                }
            }
            Step::Sum(sum) => {
                let flow = sum.flow.expect("in a whole plan every sum has a flow");
                inflows[flow.id].buffer = Some(flow);
                let level = inflows[flow.id].level;
                if queues.len() <= level {
                    queues.resize_with(level + 1, Vec::new);
                }
                for group in &sum.groups {
                    for (i, targets) in apart(group).into_iter().enumerate() {
                        let after = (targets.iter())
                            .flat_map(|(_, c)| inflows[c.buffer].pushes.iter().filter(|(other, _)| other.overlaps(c)))
                            .filter(|(_, at)| at.0 == level)
                            .map(|(_, at)| at.1 + 1);
                        let wave = after.max().unwrap_or(0);
                        for (_, columns) in &targets {
                            let inflow = &mut inflows[columns.buffer];
                            inflow.level = inflow.level.max(level + 1);
                            inflow.pushes.push((*columns, (level, wave)));
                        }
                        queues[level].push(Queued { sum, group, targets, wave, is_again: i > 0 });
                    }
                    group.targets.iter().for_each(|(target, _)| {
                        inflows[target.buffer.id].buffer = Some(target.buffer);
                    });
                }
            }
        }
    }
    (inflows, queues)
}

/// Where the flow of each slice of a group's panel goes, with its first column in the panel. In several parts, if the
/// group mixes some units twice: in a part no two overlap.
fn apart(group: &PlanGroup) -> Vec<Vec<(usize, Columns)>> {
    let mut parts: Vec<Vec<(usize, Columns)>> = vec![Vec::new()];
    let mut col = 0;
    for (i, (target, start)) in group.targets.iter().enumerate() {
        let units = group.gathered.get(i).map_or(group.panel.units, |view| view.units);
        let columns = Columns { buffer: target.buffer.id, start: *start, units };
        let is_free = |part: &Vec<(usize, Columns)>| !part.iter().any(|(_, other)| other.overlaps(&columns));
        match parts.iter().position(is_free) {
            Some(part) => parts[part].push((col, columns)),
            None => parts.push(vec![(col, columns)]),
        }
        col += units;
    }
    parts
}

/// Whether those who push into a buffer first make it up as a whole, each column once.
fn is_set_by_first(inflow: &Inflow<'_>) -> bool {
    let Some(first) = inflow.pushes.iter().map(|(_, at)| *at).min() else { return false };
    let of_first = inflow.pushes.iter().filter(|(_, at)| *at == first);
    let mut parts: Vec<(usize, usize)> = of_first.map(|(c, _)| (c.start, c.units)).collect();
    parts.sort_unstable();
    let end = parts.into_iter().try_fold(0, |at, (start, units)| (start == at).then_some(at + units));
    end == inflow.buffer.map(|buffer| buffer.units)
}
