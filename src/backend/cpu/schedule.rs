//! Who works on what, and when: tiles of rows × stages of the plan, with counters instead of barriers.
//!
//! A *stage* is a run of steps up to a sum. Rows are independent of each other, so a tile only waits for itself: its
//! stages run one after the other, on whatever thread is free. Threads prefer their own tiles, and of those the one
//! that lags, so that consecutive work of a thread needs the same weights. Where weights are large, two threads have
//! their tiles together and take turns by stages, so that weights are packed once for both. In the backward pass a
//! block of weights or a table that a single node uses is *released* once every tile has passed that node: its flows
//! are then gathered, and in a fused step it is updated at once, while all it needs is still in a cache. Blocks that
//! several nodes share wait for the end of the pass.
//!
//! The rules that others rely on: a tile is worked on by one thread at a time; a released block is read and written by
//! its own tasks only, each on its own rows; a value buffer whose stage every tile has passed is not written again, but
//! for the one that transient sums share, which only the thread that has the tile looks at; in the backward pass a tile
//! starts a stage only when the tasks of all stages that are [`LEAD`] or more before it are done, so that the flows
//! that those tasks read may be written over (`flow_memory`).

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use super::buffers::pieces;
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
const TEAM: usize = 2;

/// Some param rows of a block that a single node uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ParamTask {
    pub param: ParamId,
    /// Rows of a weight matrix; all units of a table.
    pub rows: Range<usize>,
}

/// The order of work for one circuit.
#[derive(Debug)]
pub(super) struct Schedule {
    /// Steps of each stage, in the order of the forward pass.
    pub stages: Vec<Range<usize>>,
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

impl Schedule {
    /// Whether nothing is released on the way: then a tile can go all the way forwards and back on its own, and what it
    /// computes is still in a cache when it returns.
    pub fn is_released_at_end(&self) -> bool {
        self.released.iter().all(Vec::is_empty)
    }

    /// Whether no sum over rows is taken tile by tile: then tiles may be cut in any way, and the bits are the same.
    pub fn is_free_of_tiles(&self) -> bool {
        self.tied_shapes.is_empty() && self.large_tables.is_empty()
    }

    pub fn new(circuit: &Circuit, plan: &Plan) -> Self {
        let mut tied = vec![None; circuit.params().len()];
        let mut tied_shapes = Vec::new();
        let mut shared = Vec::new();
        let complete = flow_complete(plan);
        let mut release_at: Vec<(usize, ParamTask)> = Vec::new();
        let mut large_tables = Vec::new();
        let mut complete_at: Vec<(usize, (usize, Buffer))> = Vec::new();
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
                    let step = step.expect("a sum has a step");
                    release_at.extend(pieces(block.units, WEIGHT_ROWS).map(|rows| (step, ParamTask { param, rows })));
                }
                (ParamKind::Sum { cols }, _) => {
                    tied[param.index()] = Some(tied_shapes.len());
                    tied_shapes.push((block.units, *cols));
                    shared.push(param);
                }
                (ParamKind::Input(distribution), uses)
                    if distribution.is_table() && distribution.num_params() > LARGE_TABLE =>
                {
                    for used in uses {
                        if let Use::Input { flow, .. } = used {
                            complete_at.push((complete(*flow), (large_tables.len(), *flow)));
                        }
                    }
                    large_tables.push(param);
                }
                (ParamKind::Input(distribution), [Use::Input { flow, .. }]) if distribution.is_table() => {
                    release_at.push((complete(*flow), ParamTask { param, rows: 0..block.units }));
                }
                _ => shared.push(param),
            }
        }

        let is_large = |task: &ParamTask| match circuit.params()[task.param.index()] {
            ParamBlock { units, kind: ParamKind::Sum { cols }, .. } => units * cols >= LARGE_WEIGHTS,
            _ => false,
        };
        let team = if release_at.iter().any(|(_, task)| is_large(task)) { TEAM } else { 1 };
        let mut by_step: Vec<Vec<ParamTask>> = vec![Vec::new(); plan.steps.len()];
        release_at.into_iter().for_each(|(step, task)| by_step[step].push(task));
        let mut completed: Vec<Vec<(usize, Buffer)>> = vec![Vec::new(); plan.steps.len()];
        complete_at.into_iter().for_each(|(step, buffer)| completed[step].push(buffer));
        let mut schedule = Self {
            stages: Vec::new(),
            released: Vec::new(),
            tied,
            tied_shapes,
            shared,
            large_tables,
            completed: Vec::new(),
            team,
        };
        let mut start = 0;
        let mut merged = 0;
        for (i, step) in plan.steps.iter().enumerate() {
            let last = i + 1 == plan.steps.len();
            if !matches!(step, Step::Sum(_)) && !last {
                continue;
            }
            merged += 1;
            let quiet = by_step[start..=i].iter().all(Vec::is_empty);
            let next_quiet = || {
                let next_sum = plan.steps[i + 1..].iter().position(|s| matches!(s, Step::Sum(_)));
                next_sum.is_some_and(|n| by_step[i + 1..=i + 1 + n].iter().all(Vec::is_empty))
            };
            if !last && quiet && merged < MERGED_STAGES && next_quiet() {
                continue;
            }
            schedule.stages.push(start..i + 1);
            schedule.released.push(by_step[start..=i].iter_mut().rev().flat_map(std::mem::take).collect());
            schedule.completed.push(completed[start..=i].concat());
            (start, merged) = (i + 1, 0);
        }
        schedule
    }
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

/// Which way a pass goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Forward,
    Backward,
}

/// One piece of work.
#[derive(Clone, Debug)]
pub(super) enum Work {
    /// The steps of a stage for a tile; `first` and `last` tell where in its pass the tile is.
    Stage { tile: usize, stage: usize, first: bool, last: bool },
    /// Flows (and update) of a block that a stage has released.
    Params { task: ParamTask, stage: usize },
}

/// A pass under way.
pub(super) struct Run<'a> {
    schedule: &'a Schedule,
    direction: Direction,
    workers: usize,
    state: Mutex<State>,
    /// Counts changes of `state`, for those who wait without the lock.
    version: AtomicUsize,
    changed: Condvar,
}

struct State {
    /// Stages that each tile has done.
    done: Vec<usize>,
    busy: Vec<bool>,
    /// Tiles that have passed each stage, counted in the order of the pass.
    passed: Vec<usize>,
    ready: VecDeque<(ParamTask, usize)>,
    /// Tasks of each stage that are not done, in the order of the pass.
    tasks: Vec<usize>,
    /// Stages at the start of the pass whose tasks are all done.
    settled: usize,
    /// Pieces of work not yet done.
    left: usize,
    /// Workers that sleep until something changes.
    sleepers: usize,
    /// A worker has died: all others stop.
    abandoned: bool,
}

impl State {
    /// Counts the stages whose tasks are all done.
    fn settle(&mut self) {
        while self.tasks.get(self.settled) == Some(&0) {
            self.settled += 1;
        }
    }
}

/// Looks at the version this often before it sleeps: some microseconds, about what a piece of work lasts.
const SPINS: usize = 4000;

impl<'a> Run<'a> {
    pub fn new(schedule: &'a Schedule, direction: Direction, num_tiles: usize, workers: usize) -> Self {
        let stages = schedule.stages.len();
        let tasks: Vec<usize> = match direction {
            Direction::Forward => vec![0; stages],
            Direction::Backward => schedule.released.iter().rev().map(Vec::len).collect(),
        };
        let mut state = State {
            done: vec![0; num_tiles],
            busy: vec![false; num_tiles],
            passed: vec![0; stages],
            ready: VecDeque::new(),
            left: num_tiles * stages + tasks.iter().sum::<usize>(),
            tasks,
            settled: 0,
            sleepers: 0,
            abandoned: false,
        };
        state.settle();
        let (version, changed) = (AtomicUsize::new(0), Condvar::new());
        Self { schedule, direction, workers, state: Mutex::new(state), version, changed }
    }

    /// Works until nothing is left. Called by every worker, by its number.
    pub fn work(&self, worker: usize, mut act: impl FnMut(&Work)) {
        let guard = Abandon(self);
        let mut done = None;
        while let Some(work) = self.next(worker, done.as_ref()) {
            act(&work);
            done = Some(work);
        }
        std::mem::forget(guard);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next(&self, worker: usize, done: Option<&Work>) -> Option<Work> {
        let mut state = self.lock();
        if let Some(done) = done {
            self.note(&mut state, done);
        }
        let mut spins = 0;
        loop {
            if state.left == 0 || state.abandoned {
                return None;
            }
            if let Some(work) = self.pick(&mut state, worker, spins == SPINS) {
                return Some(work);
            }
            let version = self.version.load(Ordering::Acquire);
            if spins < SPINS {
                drop(state);
                while spins < SPINS && self.version.load(Ordering::Acquire) == version {
                    std::hint::spin_loop();
                    spins += 1;
                }
                state = self.lock();
            } else {
                state.sleepers += 1;
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.sleepers -= 1;
            }
        }
    }

    /// Notes that a piece of work is done, and releases what waited for it.
    fn note(&self, state: &mut State, done: &Work) {
        state.left -= 1;
        match *done {
            Work::Stage { tile, stage, .. } => {
                state.busy[tile] = false;
                state.done[tile] += 1;
                state.passed[stage] += 1;
                if self.direction == Direction::Backward && state.passed[stage] == state.busy.len() {
                    state.ready.extend(self.schedule.released[stage].iter().map(|task| (task.clone(), stage)));
                }
            }
            Work::Params { stage, .. } => {
                state.tasks[self.schedule.stages.len() - 1 - stage] -= 1;
                state.settle();
            }
        }
        self.version.fetch_add(1, Ordering::Release);
        if state.sleepers > 0 {
            self.changed.notify_all();
        }
    }

    /// The next piece of work for a worker. In a team one takes all its tiles through a stage, while another takes
    /// those that are done with it through the next one. Who has waited for his turn in vain takes what there is.
    fn pick(&self, state: &mut State, worker: usize, has_waited: bool) -> Option<Work> {
        if let Some((task, stage)) = state.ready.pop_front() {
            return Some(Work::Params { task, stage });
        }
        let stages = self.schedule.stages.len();
        let num_tiles = state.done.len();
        let most = self.schedule.team;
        let (team, teams) = (worker / most, self.workers.div_ceil(most));
        let members = most.min(self.workers - team * most);
        // Nobody waits for ever: what the tile that lags most would wait for is ready or under way.
        let end = stages.min(state.settled + LEAD);
        let free = |tile: &usize| !state.busy[*tile] && state.done[*tile] < end;
        let own = |tile: &usize| tile * teams / num_tiles == team && state.done[*tile] % members == worker % most;
        let lagging = |tile: &usize| state.done[*tile];
        let mut tile = (0..num_tiles).filter(own).filter(free).min_by_key(lagging);
        if members == 1 || has_waited {
            tile = tile.or_else(|| (0..num_tiles).filter(free).min_by_key(lagging));
        }
        let tile = tile?;
        state.busy[tile] = true;
        let nth = state.done[tile];
        let stage = match self.direction {
            Direction::Forward => nth,
            Direction::Backward => stages - 1 - nth,
        };
        Some(Work::Stage { tile, stage, first: nth == 0, last: nth + 1 == stages })
    }
}

/// Wakes the others when a worker dies, so that its panic is heard instead of waited for.
struct Abandon<'a, 'b>(&'a Run<'b>);

impl Drop for Abandon<'_, '_> {
    fn drop(&mut self) {
        self.0.lock().abandoned = true;
        self.0.version.fetch_add(1, Ordering::Release);
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::sync::{Barrier, Mutex};

    use super::*;
    use crate::circuit::{Categorical, Distribution};
    use crate::structure::{HcltOptions, Tree, Tying, hclt, hmm};
    use std::sync::Arc;

    fn schedule(circuit: &Circuit) -> (Plan, Schedule) {
        let plan = Plan::new(circuit);
        let schedule = Schedule::new(circuit, &plan);
        (plan, schedule)
    }

    fn tree() -> Circuit {
        let parents = [None, Some(0), Some(0), Some(1), Some(1), Some(2), Some(5)];
        let cats = |_| -> Arc<dyn Distribution> { Categorical::new(3).unwrap() };
        hclt(&Tree::from_parents(&parents).unwrap(), 9, cats, HcltOptions::default()).unwrap()
    }

    /// Runs a pass on some threads and tells what was done, in the order of its ends.
    fn done(schedule: &Schedule, direction: Direction, tiles: usize, workers: usize) -> Vec<Work> {
        let run = Run::new(schedule, direction, tiles, workers);
        let log = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for worker in 0..workers {
                let (run, log) = (&run, &log);
                scope.spawn(move || run.work(worker, |work| log.lock().unwrap().push(work.clone())));
            }
        });
        log.into_inner().unwrap()
    }

    #[test]
    fn every_step_is_in_one_stage_and_every_block_is_gathered_once() {
        for circuit in [tree(), hmm(5, 4, Categorical::new(6).unwrap(), Tying::Homogeneous).unwrap()] {
            let (plan, schedule) = schedule(&circuit);
            let steps: Vec<usize> = schedule.stages.iter().flat_map(Clone::clone).collect();
            assert_eq!(steps, (0..plan.steps.len()).collect::<Vec<_>>());
            let mut units: Vec<usize> = vec![0; circuit.params().len()];
            schedule.released.iter().flatten().for_each(|task| units[task.param.index()] += task.rows.len());
            let shared = schedule.shared.iter().chain(&schedule.large_tables);
            shared.for_each(|param| units[param.index()] += circuit.params()[param.index()].units);
            assert_eq!(units, circuit.params().iter().map(|block| block.units).collect::<Vec<_>>());
        }
        let (_, hmm) = schedule(&hmm(5, 4, Categorical::new(6).unwrap(), Tying::Homogeneous).unwrap());
        assert!(hmm.is_released_at_end());
        assert!(!schedule(&tree()).1.is_released_at_end());
    }

    #[test]
    fn tiles_keep_their_order_and_blocks_wait_for_all_tiles() {
        let (_, mut schedule) = schedule(&tree());
        let tiles = 5;
        let ways = [(Direction::Forward, 1), (Direction::Forward, 3), (Direction::Backward, 4)];
        for ((direction, workers), team) in ways.into_iter().flat_map(|way| [(way, 1), (way, TEAM)]) {
            schedule.team = team;
            let log = done(&schedule, direction, tiles, workers);
            let mut order: Vec<usize> = (0..schedule.stages.len()).collect();
            if direction == Direction::Backward {
                order.reverse();
            }
            for tile in 0..tiles {
                let own = log.iter().filter_map(|work| match work {
                    Work::Stage { tile: t, stage, .. } if *t == tile => Some(*stage),
                    _ => None,
                });
                assert_eq!(own.collect::<Vec<_>>(), order, "{direction:?}, tile {tile}");
            }
            let tasks = log.iter().enumerate().filter_map(|(at, work)| match work {
                Work::Params { task, .. } => Some((at, task)),
                Work::Stage { .. } => None,
            });
            let tasks: Vec<_> = tasks.collect();
            let expected = if direction == Direction::Backward { schedule.released.concat().len() } else { 0 };
            assert_eq!(tasks.len(), expected);
            for (at, task) in tasks {
                let stage = schedule.released.iter().position(|tasks| tasks.contains(task)).unwrap();
                let passed = log[..at].iter().filter(|w| matches!(w, Work::Stage { stage: s, .. } if *s == stage));
                assert_eq!(passed.count(), tiles, "{task:?} before all tiles had passed");
            }
        }
    }

    #[test]
    fn a_team_takes_turns_and_only_who_has_waited_takes_more() {
        let (_, mut schedule) = schedule(&tree());
        schedule.team = TEAM;
        let run = Run::new(&schedule, Direction::Forward, 2, 2);
        let state = &mut *run.lock();
        let pick = |state: &mut State, worker, has_waited| match run.pick(state, worker, has_waited) {
            Some(Work::Stage { tile, stage, first, last }) => {
                Some((tile, stage, Work::Stage { tile, stage, first, last }))
            }
            _ => None,
        };
        let (tile, stage, begun) = pick(state, 0, false).unwrap();
        assert_eq!((tile, stage), (0, 0));
        assert!(pick(state, 1, false).is_none(), "the other tile is to go through the same stage");
        run.note(state, &begun);
        assert_eq!(pick(state, 1, false).map(|(tile, stage, _)| (tile, stage)), Some((0, 1)), "whose turn it is");
        let (tile, stage, begun) = pick(state, 0, false).unwrap();
        assert_eq!((tile, stage), (1, 0), "the same weights again");
        run.note(state, &begun);
        assert!(pick(state, 0, false).is_none());
        assert_eq!(pick(state, 0, true).map(|(tile, stage, _)| (tile, stage)), Some((1, 1)), "waited in vain");
    }

    #[test]
    fn large_weights_make_teams() {
        let cats = |_| -> Arc<dyn Distribution> { Categorical::new(3).unwrap() };
        let chain = Tree::from_parents(&[None, Some(0), Some(1)]).unwrap();
        let team = |latents: usize| schedule(&hclt(&chain, latents, cats, HcltOptions::default()).unwrap()).1.team;
        assert_eq!((team(64), team(512)), (1, TEAM));
    }

    #[test]
    fn no_tile_is_far_ahead_of_the_tasks() {
        let parents: Vec<Option<usize>> = (0..40).map(|var| (var > 0).then(|| (var - 1) / 2)).collect();
        let cats = |_| -> Arc<dyn Distribution> { Categorical::new(3).unwrap() };
        let tree = hclt(&Tree::from_parents(&parents).unwrap(), 4, cats, HcltOptions::default()).unwrap();
        let (_, schedule) = schedule(&tree);
        let stages = schedule.stages.len();
        assert!(stages > 2 * LEAD);
        let log = Mutex::new(Vec::new());
        let run = Run::new(&schedule, Direction::Backward, 6, 3);
        std::thread::scope(|scope| {
            for worker in 0..3 {
                let (run, log) = (&run, &log);
                scope.spawn(move || {
                    run.work(worker, |work| {
                        // Slow tasks: tiles would run away from them. A stage is noted as it begins, a task as it ends.
                        if let Work::Params { .. } = work {
                            std::thread::sleep(std::time::Duration::from_micros(200));
                        }
                        log.lock().unwrap().push(work.clone());
                    });
                });
            }
        });
        let mut undone: Vec<usize> = schedule.released.iter().map(Vec::len).collect();
        assert!(undone.iter().sum::<usize>() > stages);
        for work in log.into_inner().unwrap() {
            match work {
                Work::Stage { stage, .. } => {
                    let early = undone.get(stage + LEAD..).unwrap_or_default();
                    assert!(early.iter().all(|left| *left == 0), "stage {stage} with tasks left: {undone:?}");
                }
                Work::Params { stage, .. } => undone[stage] -= 1,
            }
        }
        assert!(undone.iter().all(|left| *left == 0));
    }

    #[test]
    fn when_a_worker_dies_the_others_stop() {
        let (_, schedule) = schedule(&tree());
        let run = Run::new(&schedule, Direction::Forward, 2, 2);
        // Each has a piece of work before either goes on: otherwise the other might do all of it first.
        let both_at_work = Barrier::new(2);
        let is_met = AtomicBool::new(false);
        let died = std::thread::scope(|scope| {
            let doomed = scope.spawn(|| {
                run.work(0, |_| {
                    both_at_work.wait();
                    panic!("a worker dies");
                });
            });
            let other = scope.spawn(|| {
                run.work(1, |_| {
                    if !is_met.swap(true, Ordering::Relaxed) {
                        both_at_work.wait();
                    }
                });
            });
            (doomed.join().is_err(), other.join().is_ok())
        });
        assert_eq!(died, (true, true));
    }
}
