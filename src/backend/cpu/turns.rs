//! Who works on what, and when: tiles of rows × stages of the plan, with counters instead of barriers.
//!
//! Stages of a tile run one after the other, on whatever thread is free. Threads prefer their own tiles, and of those
//! the one that lags, so that consecutive work of a thread needs the same weights. Where weights are large, two threads
//! have their tiles together and take turns by stages, so that weights are packed once for both.
//!
//! The rules that others rely on:
//! 1. A tile is worked on by one thread at a time (`State::busy`).
//! 2. A released block is read and written by its own tasks only, each on its own rows, after every tile has passed its
//!    stage (`Turns::note`).
//! 3. A value buffer whose stage every tile has passed is not written again, but for the one that transient sums share,
//!    which only the thread that has the tile looks at.
//! 4. In the backward pass a tile starts a stage only when the tasks of all stages that are [`LEAD`] or more before it
//!    are done (`Turns::pick`), so that the flows that those tasks read may be written over (`flow_memory`).

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use super::stages::{LEAD, ParamTask, Stages};

/// Which way a pass goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Forward,
    Backward,
}

/// One piece of work, for one worker.
#[derive(Clone, Debug)]
pub(super) enum Turn {
    /// The steps of a stage for a tile; `first` and `last` tell where in its pass the tile is.
    Stage { tile: usize, stage: usize, first: bool, last: bool },
    /// Flows (and update) of a block that a stage has released.
    Params { task: ParamTask, stage: usize },
}

/// A pass under way: hands out turns until all of them are done.
pub(super) struct Turns<'a> {
    stages: &'a Stages,
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
    finished: usize,
    /// Pieces of work not yet done.
    left: usize,
    /// Workers that sleep until something changes.
    sleepers: usize,
    /// A worker has died: all others stop.
    abandoned: bool,
}

impl State {
    /// Counts the stages whose tasks are all done.
    fn count_finished(&mut self) {
        while self.tasks.get(self.finished) == Some(&0) {
            self.finished += 1;
        }
    }
}

/// Looks at the version this often before it sleeps: some microseconds, about what a piece of work lasts.
const SPINS: usize = 4000;

impl<'a> Turns<'a> {
    pub fn new(stages: &'a Stages, direction: Direction, num_tiles: usize, workers: usize) -> Self {
        let count = stages.count();
        let tasks: Vec<usize> = match direction {
            Direction::Forward => vec![0; count],
            Direction::Backward => stages.released.iter().rev().map(Vec::len).collect(),
        };
        let mut state = State {
            done: vec![0; num_tiles],
            busy: vec![false; num_tiles],
            passed: vec![0; count],
            ready: VecDeque::new(),
            left: num_tiles * count + tasks.iter().sum::<usize>(),
            tasks,
            finished: 0,
            sleepers: 0,
            abandoned: false,
        };
        state.count_finished();
        let (version, changed) = (AtomicUsize::new(0), Condvar::new());
        Self { stages, direction, workers, state: Mutex::new(state), version, changed }
    }

    /// Works until nothing is left. Called by every worker, by its number.
    pub fn work(&self, worker: usize, mut act: impl FnMut(&Turn)) {
        let guard = Abandon(self);
        let mut done = None;
        while let Some(turn) = self.next(worker, done.as_ref()) {
            act(&turn);
            done = Some(turn);
        }
        std::mem::forget(guard);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next(&self, worker: usize, done: Option<&Turn>) -> Option<Turn> {
        let mut state = self.lock();
        if let Some(done) = done {
            self.note(&mut state, done);
        }
        let mut spins = 0;
        loop {
            if state.left == 0 || state.abandoned {
                return None;
            }
            if let Some(turn) = self.pick(&mut state, worker, spins == SPINS) {
                return Some(turn);
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
    fn note(&self, state: &mut State, done: &Turn) {
        state.left -= 1;
        match *done {
            Turn::Stage { tile, stage, .. } => {
                state.busy[tile] = false;
                state.done[tile] += 1;
                state.passed[stage] += 1;
                if self.direction == Direction::Backward && state.passed[stage] == state.busy.len() {
                    state.ready.extend(self.stages.released[stage].iter().map(|task| (task.clone(), stage)));
                }
            }
            Turn::Params { stage, .. } => {
                state.tasks[self.stages.count() - 1 - stage] -= 1;
                state.count_finished();
            }
        }
        self.version.fetch_add(1, Ordering::Release);
        if state.sleepers > 0 {
            self.changed.notify_all();
        }
    }

    /// The next piece of work for a worker. In a team one takes all its tiles through a stage, while another takes
    /// those that are done with it through the next one. A worker whose wait has expired takes any
    /// free tile.
    fn pick(&self, state: &mut State, worker: usize, has_waited: bool) -> Option<Turn> {
        if let Some((task, stage)) = state.ready.pop_front() {
            return Some(Turn::Params { task, stage });
        }
        let stages = self.stages.count();
        let num_tiles = state.done.len();
        let most = self.stages.team;
        let (team, teams) = (worker / most, self.workers.div_ceil(most));
        let members = most.min(self.workers - team * most);
        // No worker waits forever: what the tile that lags most would wait for is ready or under way.
        let end = stages.min(state.finished + LEAD);
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
        Some(Turn::Stage { tile, stage, first: nth == 0, last: nth + 1 == stages })
    }
}

/// Wakes the others when a worker dies, so that its panic is heard instead of waited for.
struct Abandon<'a, 'b>(&'a Turns<'b>);

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
    use std::sync::{Arc, Barrier, Mutex};

    use super::*;
    use crate::backend::cpu::stages::TEAM;
    use crate::backend::cpu::stages::tests::{planned, tree};
    use crate::circuit::{Categorical, Distribution};
    use crate::structure::{HcltOptions, Tree, hclt};

    /// Runs a pass on some threads and tells what was done, in the order of its ends.
    fn done(stages: &Stages, direction: Direction, tiles: usize, workers: usize) -> Vec<Turn> {
        let turns = Turns::new(stages, direction, tiles, workers);
        let log = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for worker in 0..workers {
                let (turns, log) = (&turns, &log);
                scope.spawn(move || turns.work(worker, |turn| log.lock().unwrap().push(turn.clone())));
            }
        });
        log.into_inner().unwrap()
    }

    #[test]
    fn tiles_keep_their_order_and_blocks_wait_for_all_tiles() {
        let (_, mut stages) = planned(&tree());
        let tiles = 5;
        let ways = [(Direction::Forward, 1), (Direction::Forward, 3), (Direction::Backward, 4)];
        for ((direction, workers), team) in ways.into_iter().flat_map(|way| [(way, 1), (way, TEAM)]) {
            stages.team = team;
            let log = done(&stages, direction, tiles, workers);
            let mut order: Vec<usize> = (0..stages.count()).collect();
            if direction == Direction::Backward {
                order.reverse();
            }
            for tile in 0..tiles {
                let own = log.iter().filter_map(|turn| match turn {
                    Turn::Stage { tile: t, stage, .. } if *t == tile => Some(*stage),
                    _ => None,
                });
                assert_eq!(own.collect::<Vec<_>>(), order, "{direction:?}, tile {tile}");
            }
            let tasks = log.iter().enumerate().filter_map(|(at, turn)| match turn {
                Turn::Params { task, .. } => Some((at, task)),
                Turn::Stage { .. } => None,
            });
            let tasks: Vec<_> = tasks.collect();
            let expected = if direction == Direction::Backward { stages.released.concat().len() } else { 0 };
            assert_eq!(tasks.len(), expected);
            for (at, task) in tasks {
                let stage = stages.released.iter().position(|tasks| tasks.contains(task)).unwrap();
                let passed = log[..at].iter().filter(|w| matches!(w, Turn::Stage { stage: s, .. } if *s == stage));
                assert_eq!(passed.count(), tiles, "{task:?} before all tiles had passed");
            }
        }
    }

    #[test]
    fn a_team_takes_turns_and_only_who_has_waited_takes_more() {
        let (_, mut stages) = planned(&tree());
        stages.team = TEAM;
        let turns = Turns::new(&stages, Direction::Forward, 2, 2);
        let state = &mut *turns.lock();
        let pick = |state: &mut State, worker, has_waited| match turns.pick(state, worker, has_waited) {
            Some(Turn::Stage { tile, stage, first, last }) => {
                Some((tile, stage, Turn::Stage { tile, stage, first, last }))
            }
            _ => None,
        };
        let (tile, stage, begun) = pick(state, 0, false).unwrap();
        assert_eq!((tile, stage), (0, 0));
        assert!(pick(state, 1, false).is_none(), "the other tile is to go through the same stage");
        turns.note(state, &begun);
        assert_eq!(pick(state, 1, false).map(|(tile, stage, _)| (tile, stage)), Some((0, 1)), "whose turn it is");
        let (tile, stage, begun) = pick(state, 0, false).unwrap();
        assert_eq!((tile, stage), (1, 0), "the same weights again");
        turns.note(state, &begun);
        assert!(pick(state, 0, false).is_none());
        assert_eq!(pick(state, 0, true).map(|(tile, stage, _)| (tile, stage)), Some((1, 1)), "waited in vain");
    }

    #[test]
    fn no_tile_is_far_ahead_of_the_tasks() {
        let parents: Vec<Option<usize>> = (0..40).map(|var| (var > 0).then(|| (var - 1) / 2)).collect();
        let cats = |_| -> Arc<dyn Distribution> { Categorical::new(3).unwrap() };
        let tree = hclt(&Tree::from_parents(&parents).unwrap(), 4, cats, HcltOptions::default()).unwrap();
        let (_, stages) = planned(&tree);
        let count = stages.count();
        assert!(count > 2 * LEAD);
        let log = Mutex::new(Vec::new());
        let turns = Turns::new(&stages, Direction::Backward, 6, 3);
        std::thread::scope(|scope| {
            for worker in 0..3 {
                let (turns, log) = (&turns, &log);
                scope.spawn(move || {
                    turns.work(worker, |turn| {
                        // Slow tasks: tiles would turns away from them. A stage is noted as it begins, a task as it
                        // ends.
                        if let Turn::Params { .. } = turn {
                            std::thread::sleep(std::time::Duration::from_micros(200));
                        }
                        log.lock().unwrap().push(turn.clone());
                    });
                });
            }
        });
        let mut undone: Vec<usize> = stages.released.iter().map(Vec::len).collect();
        assert!(undone.iter().sum::<usize>() > count);
        for turn in log.into_inner().unwrap() {
            match turn {
                Turn::Stage { stage, .. } => {
                    let early = undone.get(stage + LEAD..).unwrap_or_default();
                    assert!(early.iter().all(|left| *left == 0), "stage {stage} with tasks left: {undone:?}");
                }
                Turn::Params { stage, .. } => undone[stage] -= 1,
            }
        }
        assert!(undone.iter().all(|left| *left == 0));
    }

    #[test]
    fn when_a_worker_dies_the_others_stop() {
        let (_, stages) = planned(&tree());
        let turns = Turns::new(&stages, Direction::Forward, 2, 2);
        // Each has a piece of work before either goes on: otherwise the other might do all of it first.
        let both_at_work = Barrier::new(2);
        let is_met = AtomicBool::new(false);
        let died = std::thread::scope(|scope| {
            let doomed = scope.spawn(|| {
                turns.work(0, |_| {
                    both_at_work.wait();
                    panic!("a worker dies");
                });
            });
            let other = scope.spawn(|| {
                turns.work(1, |_| {
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
