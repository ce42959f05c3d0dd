//! Ranks that are threads of one process: for tests, and for programs that want several learners as one.
//!
//! A collective call is a meeting: every rank leaves what it has in the meeting of this number, waits until all have,
//! and reads. A rank whose handle is dropped is lost: a meeting that it has not come to fails for the others.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use super::Cluster;
use crate::error::{Error, ErrorKind, Result};

/// A rank among threads of this process.
#[derive(Debug)]
pub struct Threads {
    /// Who the ranks of this cluster were at the very beginning; this one is `members[rank]`.
    members: Vec<usize>,
    rank: usize,
    /// Meetings of this membership so far.
    meetings: u64,
    /// How often the cluster has shrunk.
    generation: u64,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    meetings: HashMap<(u64, u64), Meeting>,
    /// By number at the very beginning.
    gone: Vec<bool>,
    aborted: Option<String>,
}

#[derive(Debug)]
struct Meeting {
    left: Vec<Option<Arc<Left>>>,
    readers: usize,
}

/// What a rank leaves at a meeting.
#[derive(Debug)]
enum Left {
    Bytes(Vec<u8>),
    Single(Vec<f32>, Vec<usize>),
    Double(Vec<f64>, Vec<usize>),
}

impl Threads {
    /// A cluster of `num_ranks` ranks: hand each to a thread.
    pub fn ranks(num_ranks: usize) -> Vec<Self> {
        let state = State { gone: vec![false; num_ranks], ..State::default() };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() });
        let rank = |rank| {
            let members = (0..num_ranks).collect();
            Self { members, rank, meetings: 0, generation: 0, shared: shared.clone() }
        };
        (0..num_ranks).map(rank).collect()
    }

    fn meet(&mut self, mine: Left) -> Result<Vec<Arc<Left>>> {
        let key = (self.generation, self.meetings);
        self.meetings += 1;
        let num_ranks = self.members.len();
        let mut state = self.shared.state.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh = || Meeting { left: vec![None; num_ranks], readers: 0 };
        state.meetings.entry(key).or_insert_with(fresh).left[self.rank] = Some(Arc::new(mine));
        self.shared.changed.notify_all();
        loop {
            if let Some(message) = &state.aborted {
                return Err(Error::new(ErrorKind::State, message.clone()));
            }
            let State { meetings, gone, .. } = &mut *state;
            let meeting = meetings.get_mut(&key).expect("it is removed by its last reader");
            if meeting.left.iter().all(Option::is_some) {
                let all = meeting.left.iter().flatten().cloned().collect();
                meeting.readers += 1;
                if meeting.readers == num_ranks {
                    meetings.remove(&key);
                }
                return Ok(all);
            }
            let is_lost = |(rank, left): (usize, &Option<Arc<Left>>)| left.is_none() && gone[self.members[rank]];
            if let Some(rank) = meeting.left.iter().enumerate().position(is_lost) {
                return Err(Error::new(ErrorKind::RankLost, format!("rank {rank} is gone")));
            }
            state = self.shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// The part of one rank in what another left for all of them, by the counts beside it.
fn part<'a, T>(numbers: &'a [T], counts: &[usize], rank: usize) -> &'a [T] {
    let begin: usize = counts[..rank].iter().sum();
    &numbers[begin..begin + counts[rank]]
}

/// An exchange and a spread, in one precision.
macro_rules! of_precision {
    ($exchange:ident $spread:ident $number:ty, $left:ident) => {
        fn $exchange(
            &mut self,
            send: &[$number],
            send_counts: &[usize],
            receive: &mut [$number],
            receive_counts: &[usize],
        ) -> Result<()> {
            let all = self.meet(Left::$left(send.to_vec(), send_counts.to_vec()))?;
            let mut rest = receive;
            for (left, &count) in all.iter().zip(receive_counts) {
                let Left::$left(numbers, counts) = &**left else { return Err(other_call()) };
                let (into, tail) = rest.split_at_mut(count);
                into.copy_from_slice(part(numbers, counts, self.rank));
                rest = tail;
            }
            Ok(())
        }

        fn $spread(&mut self, numbers: &mut [$number], counts: &[usize]) -> Result<()> {
            let mine = part(numbers, counts, self.rank).to_vec();
            let all = self.meet(Left::$left(mine, Vec::new()))?;
            let mut rest = numbers;
            for (left, &count) in all.iter().zip(counts) {
                let Left::$left(numbers, _) = &**left else { return Err(other_call()) };
                let (into, tail) = rest.split_at_mut(count);
                into.copy_from_slice(numbers);
                rest = tail;
            }
            Ok(())
        }
    };
}

fn other_call() -> Error {
    Error::internal("ranks have made different calls")
}

impl Cluster for Threads {
    fn rank(&self) -> usize {
        self.rank
    }

    fn num_ranks(&self) -> usize {
        self.members.len()
    }

    fn name(&self) -> String {
        "threads".into()
    }

    fn barrier(&mut self) -> Result<()> {
        self.meet(Left::Bytes(Vec::new())).map(drop)
    }

    fn broadcast(&mut self, root: usize, bytes: &mut Vec<u8>) -> Result<()> {
        let mine = if self.rank == root { std::mem::take(bytes) } else { Vec::new() };
        let all = self.meet(Left::Bytes(mine))?;
        let Left::Bytes(found) = &*all[root] else { return Err(other_call()) };
        bytes.clone_from(found);
        Ok(())
    }

    fn gather(&mut self, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        let all = self.meet(Left::Bytes(bytes.to_vec()))?;
        let bytes = |left: &Arc<Left>| match &**left {
            Left::Bytes(bytes) => Ok(bytes.clone()),
            _ => Err(other_call()),
        };
        all.iter().map(bytes).collect()
    }

    of_precision!(exchange_f32 spread_f32 f32, Single);
    of_precision!(exchange_f64 spread_f64 f64, Double);

    fn can_shrink(&self) -> bool {
        true
    }

    fn lost(&self) -> Option<usize> {
        let state = self.shared.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.members.iter().position(|&member| state.gone[member])
    }

    fn shrink(&mut self) -> Result<Vec<usize>> {
        // Who is left must be seen alike by all: those that come to a meeting of the survivors, and nobody else can.
        loop {
            let state = self.shared.state.lock().unwrap_or_else(PoisonError::into_inner);
            let left: Vec<usize> = (0..self.members.len()).filter(|&rank| !state.gone[self.members[rank]]).collect();
            drop(state);
            let me = self.members[self.rank];
            let members: Vec<usize> = left.iter().map(|&rank| self.members[rank]).collect();
            let rank = members.iter().position(|&member| member == me).expect("this rank is not gone");
            // Numbered by who is left: ranks that saw another loss meet elsewhere, and see it too before long.
            let generation =
                members.iter().fold(1u64, |key, &member| key.wrapping_mul(1 << 7).wrapping_add(member as u64 + 1));
            let before = (std::mem::replace(&mut self.members, members), self.rank, self.meetings, self.generation);
            (self.rank, self.meetings, self.generation) = (rank, 0, generation);
            match self.barrier() {
                Ok(()) => return Ok(left),
                Err(error) if error.kind() == ErrorKind::RankLost => {
                    (self.members, self.rank, self.meetings, self.generation) = before;
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn abort(&mut self, message: &str) {
        let mut state = self.shared.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.aborted.get_or_insert_with(|| message.to_string());
        self.shared.changed.notify_all();
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.gone[self.members[self.rank]] = true;
        self.shared.changed.notify_all();
    }
}
