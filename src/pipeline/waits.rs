//! Where the stages spend their time, and the one word that follows from it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::Serialize;

/// Clocks of all stages, written by them as they run.
#[derive(Debug, Default)]
pub(super) struct Waits {
    pub cutter: StageClock,
    pub decoders: StageClock,
    pub batcher: StageClock,
    /// Only its waiting for input is known here: what it does between calls is its own business.
    pub learner: StageClock,
    /// Bytes of records that came out of the source.
    pub bytes_read: AtomicU64,
}

/// Nanoseconds of one stage, over all its threads.
#[derive(Debug, Default)]
pub(super) struct StageClock {
    input: AtomicU64,
    busy: AtomicU64,
    output: AtomicU64,
}

impl StageClock {
    pub fn add_input(&self, time: Duration) {
        add(&self.input, time);
    }

    pub fn add_busy(&self, time: Duration) {
        add(&self.busy, time);
    }

    pub fn add_output(&self, time: Duration) {
        add(&self.output, time);
    }

    fn read(&self) -> StageTime {
        StageTime { input: seconds(&self.input), busy: seconds(&self.busy), output: seconds(&self.output) }
    }
}

// Relaxed: these are statistics, nothing is decided by their order.
fn add(clock: &AtomicU64, time: Duration) {
    clock.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
}

fn seconds(clock: &AtomicU64) -> f64 {
    clock.load(Ordering::Relaxed) as f64 * 1e-9
}

impl Waits {
    pub fn read(&self) -> StageWaits {
        StageWaits {
            cutter: self.cutter.read(),
            decoders: self.decoders.read(),
            batcher: self.batcher.read(),
            learner: self.learner.read(),
        }
    }
}

/// Seconds of one stage, over all its threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct StageTime {
    /// Waiting for something to do: starved.
    pub input: f64,
    /// Working.
    pub busy: f64,
    /// Waiting for room to put the result: blocked.
    pub output: f64,
}

/// Where the stages have spent their time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct StageWaits {
    /// Waiting for bytes, cutting them into pieces.
    pub cutter: StageTime,
    /// Decoding, all workers together.
    pub decoders: StageTime,
    /// Making batches.
    pub batcher: StageTime,
    /// Whoever takes the batches: how long it waited for them.
    pub learner: StageTime,
}

/// What a faster run would need more of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// The device is busy: a faster one, or more threads.
    Compute,
    /// Decoders are busy while the device waits: more workers.
    Decode,
    /// Decoders wait as well: faster storage, more prefetch.
    Input,
}

impl Bound {
    /// The word itself.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Compute => "compute",
            Self::Decode => "decode",
            Self::Input => "input",
        }
    }
}

impl StageWaits {
    /// What bounded a stretch of `seconds` that began when the clocks stood at `before`.
    pub fn bound(&self, before: &Self, seconds: f64) -> Bound {
        let starved = self.learner.input - before.learner.input;
        if starved < 0.1 * seconds {
            return Bound::Compute;
        }
        let busy = self.decoders.busy - before.decoders.busy;
        let idle = self.decoders.input - before.decoders.input;
        if busy > idle { Bound::Decode } else { Bound::Input }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_word_says_who_is_waited_for() {
        let time = |input, busy| StageTime { input, busy, output: 0.0 };
        let waits =
            |starved, decode| StageWaits { learner: time(starved, 0.0), decoders: decode, ..Default::default() };
        let start = StageWaits::default();
        assert_eq!(waits(0.5, time(9.0, 1.0)).bound(&start, 10.0), Bound::Compute);
        assert_eq!(waits(5.0, time(1.0, 9.0)).bound(&start, 10.0), Bound::Decode);
        assert_eq!(waits(5.0, time(9.0, 1.0)).bound(&start, 10.0), Bound::Input);
        // Only what happened since the last look counts.
        let later = waits(5.5, time(9.0, 2.0));
        assert_eq!(later.bound(&waits(5.0, time(1.0, 9.0)), 10.0), Bound::Compute);
    }
}
