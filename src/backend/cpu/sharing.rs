//! Which buffers lie in the same memory: what a tile needs for a few stages only has no place of its own.
//!
//! Trees with few latents wait for memory, not for arithmetic, so the fewer bytes a row takes the better. Two kinds of buffers
//! come and go. A *flow* is written by the stage above a node, and is dead once the stages of the nodes that share it are over
//! and the tasks that add it up (`schedule`) are done. The *values of a product* that one sum mixes in the same stage
//! are needed forwards for that sum alone; the backward pass computes them again, from factors that are still there, for
//! its own stage and for the task of the weights. Each gets memory of others that are dead by then, the latest first: that is
//! what is still in a cache.
//!
//! No bit depends on any of this: numbers are computed by the same code from the same numbers, only elsewhere.

use std::collections::BTreeMap;

use super::schedule::{LEAD, Schedule};
use crate::circuit::Circuit;
use crate::plan::{Buffer, FactorSource, Plan, PlanGroup, Step, SumStep, Use};

/// Products of more factors are kept: to compute them again costs more than to read them.
const MOST_FACTORS: usize = 4;

/// Bytes that one row of a circuit takes in this backend.
pub fn bytes_per_row(circuit: &Circuit) -> usize {
    plan(circuit).0.bytes_per_row()
}

/// The program of a circuit with its buffers in shared memory, and the order of work.
pub(super) fn plan(circuit: &Circuit) -> (Plan, Schedule) {
    let mut plan = Plan::new(circuit);
    let mut schedule = Schedule::new(circuit, &plan);
    share_flows(&mut plan, &mut schedule);
    share_products(&mut plan, &mut schedule);
    (plan, schedule)
}

/// From when to when a buffer is in use, in stages since the start of the backward pass.
#[derive(Clone, Copy, Debug)]
struct Life {
    born: usize,
    dies: usize,
}

impl Life {
    fn include(&mut self, nth: usize) {
        (self.born, self.dies) = (self.born.min(nth), self.dies.max(nth));
    }
}

/// A buffer and its life; `None` for one that needs a place of its own.
type Lives = BTreeMap<usize, (Buffer, Option<Life>)>;

fn share_flows(plan: &mut Plan, schedule: &mut Schedule) {
    let lives = flow_lives(plan, schedule);
    let (places, units) = places(&lives);
    let relocate = |buffer: &mut Buffer| buffer.at = places[&buffer.scale];
    plan.for_each_flow(relocate);
    schedule.completed.iter_mut().flatten().for_each(|(_, buffer)| relocate(buffer));
    plan.flow_units = units;
}

/// The lives of all flow buffers. One that is added up at the end of the pass has no end before.
fn flow_lives(plan: &mut Plan, schedule: &Schedule) -> Lives {
    let mut lives = Lives::new();
    let mut see = |buffer: &mut Buffer, nth: usize| {
        let (_, life) = lives.entry(buffer.scale).or_insert((*buffer, Some(Life { born: nth, dies: nth })));
        life.iter_mut().for_each(|life| life.include(nth));
    };
    see(&mut plan.root_flow, 0);
    let mut released_at = vec![None; plan.uses.len()];
    for (nth, (steps, tasks)) in schedule.stages.iter().zip(&schedule.released).rev().enumerate() {
        plan.steps[steps.clone()].iter_mut().for_each(|step| step.for_each_flow(|buffer| see(buffer, nth)));
        tasks.iter().for_each(|task| released_at[task.param.index()] = Some(nth));
    }
    let mut kept = Vec::new();
    for (uses, released_at) in plan.uses.iter_mut().zip(released_at) {
        for buffer in uses.iter_mut().filter_map(Use::flow_mut) {
            match released_at {
                Some(nth) => see(buffer, nth),
                None => kept.push(*buffer),
            }
        }
    }
    lives.extend(kept.into_iter().map(|buffer| (buffer.scale, (buffer, None))));
    lives
}

fn share_products(plan: &mut Plan, schedule: &mut Schedule) {
    let mut lives = Lives::new();
    plan.for_each_value(|buffer| {
        lives.insert(buffer.scale, (*buffer, None));
    });
    let users = value_users(plan);
    for (nth, steps) in schedule.stages.iter().rev().enumerate() {
        for i in steps.clone() {
            let Step::Sum(sum) = &plan.steps[i] else { continue };
            let Some(value) = mixed_alone(sum, schedule).filter(|value| users[value.scale] == 1) else { continue };
            let product = steps.clone().find(|&j| match &plan.steps[j] {
                Step::Product(product) => product.value == value && product.factors.len() <= MOST_FACTORS,
                _ => false,
            });
            if product.is_some() {
                schedule.recomputed[i] = product;
                lives.insert(value.scale, (value, Some(Life { born: nth, dies: nth })));
            }
        }
    }
    let (places, units) = places(&lives);
    plan.for_each_value(|buffer| buffer.at = places[&buffer.scale]);
    plan.value_units = units;
}

/// The buffer of which a sum mixes parts and nothing else, if its weights are all its own.
fn mixed_alone(sum: &SumStep, schedule: &Schedule) -> Option<Buffer> {
    let value = sum.groups.first()?.panel.buffer;
    let is_simple = |group: &PlanGroup| {
        group.panel.buffer == value && group.gathered.is_empty() && schedule.tied[group.param.index()].is_none()
    };
    // A transient sum below leaves nothing to compute the product from.
    (sum.gain_below.is_none() && sum.groups.iter().all(is_simple)).then_some(value)
}

/// How many steps read each value buffer forwards; the root's is read once more, at the end.
fn value_users(plan: &Plan) -> Vec<usize> {
    let mut users = vec![0; plan.num_scales];
    users[plan.root_value.scale] += 1;
    for step in &plan.steps {
        let mut read: Vec<usize> = match step {
            Step::Input(_) => Vec::new(),
            Step::Product(product) => {
                let values = product.factors.iter().filter_map(|factor| match factor.source {
                    FactorSource::Value(buffer) => Some(buffer.scale),
                    FactorSource::Table { .. } => None,
                });
                values.collect()
            }
            Step::Sum(sum) => {
                let groups = sum.groups.iter();
                groups.flat_map(|g| g.gathered.iter().chain([&g.panel])).map(|view| view.buffer.scale).collect()
            }
        };
        read.sort_unstable();
        read.dedup();
        read.into_iter().for_each(|buffer| users[buffer] += 1);
    }
    users
}

/// Memory that buffers of one width have one after the other.
struct Slot {
    at: usize,
    units: usize,
    /// The stage from which on nobody needs what is there.
    free_from: usize,
}

/// Where each buffer lies, by number, and the units of all memory.
fn places(lives: &Lives) -> (BTreeMap<usize, usize>, usize) {
    let mut places = BTreeMap::new();
    let mut units = 0;
    let mut mortal = Vec::new();
    for (&number, &(buffer, life)) in lives {
        match life {
            Some(life) => mortal.push((life, number, buffer.units)),
            None => {
                places.insert(number, units);
                units += buffer.units;
            }
        }
    }
    mortal.sort_by_key(|&(life, number, _)| (life.born, number));
    let mut slots: Vec<Slot> = Vec::new();
    for (life, number, width) in mortal {
        let free = slots.iter_mut().filter(|slot| slot.units == width && slot.free_from <= life.born);
        let slot = match free.max_by_key(|slot| slot.free_from) {
            Some(slot) => slot,
            None => {
                units += width;
                slots.push(Slot { at: units - width, units: width, free_from: 0 });
                slots.last_mut().expect("one was just added")
            }
        };
        // A tile is less than LEAD stages ahead of tasks that still read.
        slot.free_from = life.dies + LEAD;
        places.insert(number, slot.at);
    }
    (places, units)
}

#[cfg(test)]
mod tests {
    use std::ops::Range;
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use crate::backend::Backend;
    use crate::backend::cpu::{CpuBackend, CpuOptions};
    use crate::circuit::{Categorical, Distribution, Params, sample};
    use crate::optim::AnemoneSpec;
    use crate::rng::Rng;
    use crate::structure::{HcltOptions, PdOptions, Tree, Tying, hclt, hmm, pd};

    fn cats(_: usize) -> Arc<dyn Distribution> {
        Categorical::new(3).unwrap()
    }

    /// A tree in which every variable hangs from an earlier one.
    fn tree(picks: &[usize], latents: usize) -> Circuit {
        let parents: Vec<Option<usize>> =
            std::iter::once(None).chain(picks.iter().enumerate().map(|(i, pick)| Some(pick % (i + 1)))).collect();
        hclt(&Tree::from_parents(&parents).unwrap(), latents, cats, HcltOptions::default()).unwrap()
    }

    fn grid() -> Circuit {
        pd(&[4, 4], &PdOptions::new(vec![2, 1], 3), cats).unwrap()
    }

    /// Who has each unit of memory at a time. Panics where somebody finds another's numbers instead of his own.
    struct Memory(Vec<Option<usize>>);

    impl Memory {
        fn write(&mut self, buffer: Buffer) {
            self.0[Self::range(buffer)].fill(Some(buffer.scale));
        }

        fn read(&self, buffer: Buffer) {
            let found = &self.0[Self::range(buffer)];
            assert!(found.iter().all(|owner| *owner == Some(buffer.scale)), "{buffer:?} was written over: {found:?}");
        }

        fn range(buffer: Buffer) -> Range<usize> {
            buffer.at..buffer.at + buffer.units
        }
    }

    /// Walks backwards through a plan as slowly as tasks may be, and looks whether all find what they need.
    fn check(circuit: &Circuit) {
        let (plan, schedule) = plan(circuit);
        let mut flows = Memory(vec![None; plan.flow_units]);
        let mut products = Memory(vec![None; plan.value_units]);
        flows.write(plan.root_flow);
        let read_by_task = |flows: &Memory, products: &Memory, stage: usize| {
            for used in schedule.released[stage].iter().flat_map(|task| &plan.uses[task.param.index()]) {
                match used {
                    Use::Input { flow, .. } => flows.read(*flow),
                    Use::Sum { panel, flow, .. } => {
                        flow.iter().for_each(|flow| flows.read(flow.buffer));
                        let is_recomputed = schedule.stages[stage].clone().any(|i| schedule.recomputed[i].is_some());
                        is_recomputed.then(|| products.read(panel.buffer));
                    }
                }
            }
        };
        for stage in (0..schedule.stages.len()).rev() {
            // The tasks of this one are now done at the latest, and not before.
            if stage + LEAD < schedule.stages.len() {
                read_by_task(&flows, &products, stage + LEAD);
            }
            for i in schedule.stages[stage].clone().rev() {
                if let Some(Step::Product(product)) = schedule.recomputed[i].map(|j| &plan.steps[j]) {
                    products.write(product.value);
                }
                match &plan.steps[i] {
                    Step::Input(_) => {}
                    Step::Product(product) => {
                        product.flow.iter().for_each(|flow| flows.read(*flow));
                        product.factors.iter().filter_map(|f| f.flow).for_each(|t| match t.first {
                            true => flows.write(t.buffer),
                            false => flows.read(t.buffer),
                        });
                    }
                    Step::Sum(sum) => {
                        sum.flow.iter().for_each(|flow| flows.read(*flow));
                        sum.clear.iter().for_each(|buffer| flows.write(*buffer));
                        sum.groups.iter().flat_map(|g| &g.targets).for_each(|(t, _)| match t.first {
                            true => flows.write(t.buffer),
                            false => flows.read(t.buffer),
                        });
                        sum.gain_below.iter().filter_map(|b| b.flow).for_each(|flow| flows.write(flow));
                    }
                }
            }
        }
        (0..schedule.stages.len().min(LEAD)).for_each(|stage| read_by_task(&flows, &products, stage));
        let at_the_end = schedule.shared.iter().chain(&schedule.large_tables);
        for used in at_the_end.flat_map(|param| &plan.uses[param.index()]) {
            match used {
                Use::Input { flow, .. } => flows.read(*flow),
                Use::Sum { flow, .. } => flow.iter().for_each(|flow| flows.read(flow.buffer)),
            }
        }
    }

    proptest! {
        #[test]
        fn nobody_finds_what_others_left(picks in prop::collection::vec(0..1000usize, 0..60)) {
            check(&tree(&picks, 2));
        }
    }

    #[test]
    fn other_shapes_share_as_well_as_they_can() {
        check(&grid());
        for tying in [Tying::Homogeneous, Tying::Inhomogeneous] {
            check(&hmm(9, 4, Categorical::new(3).unwrap(), tying).unwrap());
        }
    }

    #[test]
    fn a_long_chain_takes_the_memory_of_its_sums() {
        let chain: Vec<usize> = (0..200).collect();
        let circuit = tree(&chain, 8);
        let (shared, _) = plan(&circuit);
        let own = Plan::new(&circuit);
        assert!(shared.value_units <= own.value_units / 2 + 8 * (LEAD + 1), "{} values", shared.value_units);
        assert!(shared.flow_units <= 8 * 3 * LEAD, "{} flows", shared.flow_units);
    }

    /// The parameters after some steps, in shared memory or not.
    fn trained(circuit: &Arc<Circuit>, is_shared: bool, threads: usize) -> Vec<u32> {
        let params = Params::random(circuit, 4, 3.0).unwrap();
        let batch = sample(circuit, &params, 700, &mut Rng::new(5)).unwrap();
        let options = CpuOptions { threads: Some(threads), ..CpuOptions::default() };
        let mut backend = CpuBackend::new(circuit.clone(), &params, &options).unwrap();
        if !is_shared {
            backend.plan = Plan::new(circuit);
            backend.schedule = Schedule::new(circuit, &backend.plan);
        }
        let mut optimizer = AnemoneSpec::default().build(&mut backend).unwrap();
        for _ in 0..3 {
            optimizer.learn(&mut backend, &batch).unwrap();
        }
        backend.params().unwrap().values().iter().map(|value| value.to_bits()).collect()
    }

    #[test]
    fn no_bit_depends_on_where_buffers_lie() {
        let mut rng = Rng::new(8);
        let picks: Vec<usize> = (0..50).map(|_| rng.below(1000)).collect();
        for circuit in [Arc::new(tree(&picks, 9)), Arc::new(grid())] {
            let expected = trained(&circuit, false, 1);
            for threads in [1, 2, 4] {
                assert!(trained(&circuit, true, threads) == expected, "{threads} threads");
            }
        }
    }
}
