//! Which flow buffers lie in the same memory: what a tile needs for a few stages only has no place of its own.
//!
//! A flow is written by the stage above a node, and is dead once the stages of the nodes that share it are over and the
//! tasks that add it up (`turns`) are done. It gets memory of one that is dead by then, the latest: that is what is
//! still in a cache. Of a deep tree only the flows of the branch at hand remain, and a row takes about a third less. No
//! bit depends on where a buffer lies, only on how many rows the memory budget then holds.
//!
//! (To do the same with the values of products, which the backward pass could compute again, was tried: a third less
//! once more, but slower by 3 to 11 % with 64 latents.)

use std::collections::BTreeMap;

use super::stages::{LEAD, Stages};
use crate::circuit::Circuit;
use crate::plan::{Buffer, Plan, Use};

/// Bytes that one row of a circuit takes in this backend.
pub fn bytes_per_row(circuit: &Circuit) -> usize {
    plan(circuit).0.bytes_per_row()
}

/// The program of a circuit with its buffers in shared memory, and the order of work.
pub(super) fn plan(circuit: &Circuit) -> (Plan, Stages) {
    let mut plan = Plan::new(circuit);
    let mut stages = Stages::new(circuit, &plan);
    share_flows(&mut plan, &mut stages);
    (plan, stages)
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

fn share_flows(plan: &mut Plan, stages: &mut Stages) {
    let lives = flow_lives(plan, stages);
    let (places, units) = places(&lives);
    let relocate = |buffer: &mut Buffer| buffer.at = places[&buffer.id];
    plan.for_each_flow(relocate);
    stages.completed.iter_mut().flatten().for_each(|(_, buffer)| relocate(buffer));
    plan.flow_units = units;
}

/// The lives of all flow buffers. One that is added up at the end of the pass has no end before, nor have those of
/// shared weights, of which there are few.
fn flow_lives(plan: &mut Plan, stages: &Stages) -> Lives {
    let mut lives = Lives::new();
    let mut see = |buffer: &mut Buffer, nth: usize| {
        let (_, life) = lives.entry(buffer.id).or_insert((*buffer, Some(Life { born: nth, dies: nth })));
        life.iter_mut().for_each(|life| life.include(nth));
    };
    see(&mut plan.root_flow, 0);
    let mut released_at = vec![None; plan.uses.len()];
    for (nth, (steps, tasks)) in stages.steps.iter().zip(&stages.released).rev().enumerate() {
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
    lives.extend(kept.into_iter().map(|buffer| (buffer.id, (buffer, None))));
    lives
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
    use crate::circuit::{Categorical, Distribution, ParamId, Params};
    use crate::optim::AnemoneSpec;
    use crate::plan::Step;
    use crate::query::sample;
    use crate::rng::Rng;
    use crate::structure::{HcltOptions, PdOptions, Tree, Tying, hclt, hmm_with, pd};

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
            self.0[Self::range(buffer)].fill(Some(buffer.id));
        }

        fn read(&self, buffer: Buffer) {
            let found = &self.0[Self::range(buffer)];
            assert!(found.iter().all(|owner| *owner == Some(buffer.id)), "{buffer:?} was written over: {found:?}");
        }

        fn range(buffer: Buffer) -> Range<usize> {
            buffer.at..buffer.at + buffer.units
        }
    }

    /// Walks backwards through a plan as slowly as tasks may be, and looks whether all find what they need.
    fn check(circuit: &Circuit) {
        let (plan, stages) = plan(circuit);
        let mut flows = Memory(vec![None; plan.flow_units]);
        flows.write(plan.root_flow);
        let read_by_params = |flows: &Memory, params: &mut dyn Iterator<Item = ParamId>| {
            for used in params.flat_map(|param| &plan.uses[param.index()]) {
                match used {
                    Use::Input { flow, .. } => flows.read(*flow),
                    Use::Sum { flow, .. } => flow.iter().for_each(|flow| flows.read(flow.buffer)),
                }
            }
        };
        let tasks = |stage: usize| stages.released[stage].iter().map(|task| task.param);
        for stage in (0..stages.steps.len()).rev() {
            // The tasks of this one are now done at the latest, and not before.
            if stage + LEAD < stages.steps.len() {
                read_by_params(&flows, &mut tasks(stage + LEAD));
            }
            for i in stages.steps[stage].clone().rev() {
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
        (0..stages.steps.len().min(LEAD)).for_each(|stage| read_by_params(&flows, &mut tasks(stage)));
        read_by_params(&flows, &mut stages.shared.iter().chain(&stages.large_tables).copied());
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
            check(&hmm_with(9, 4, Categorical::new(3).unwrap(), tying).unwrap());
        }
    }

    #[test]
    fn a_long_chain_has_few_flows() {
        let chain: Vec<usize> = (0..200).collect();
        let circuit = tree(&chain, 8);
        let (shared, _) = plan(&circuit);
        assert!(Plan::new(&circuit).flow_units > 8 * 190);
        assert!(shared.flow_units <= 8 * 3 * LEAD, "{} flows", shared.flow_units);
    }

    /// The parameters after some steps, in shared memory or not.
    fn trained(circuit: &Arc<Circuit>, is_shared: bool, threads: usize) -> Vec<u32> {
        let params = Params::random(circuit, 4, 3.0).unwrap();
        let batch = sample(circuit, &params, 700, &mut Rng::new(5)).unwrap();
        let options = CpuOptions { threads: Some(threads), ..CpuOptions::default() };
        let mut backend = CpuBackend::new(circuit.clone(), &params, &options).unwrap();
        if !is_shared {
            let fixed = Arc::get_mut(&mut backend.fixed).expect("nobody else has it");
            fixed.plan = Plan::new(circuit);
            fixed.stages = Stages::new(circuit, &fixed.plan);
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
