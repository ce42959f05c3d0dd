//! Places in a stream.

use serde::{Deserialize, Serialize};

use super::{Batch, Position};

/// A place in a stream: between two rows. The order of rows is computed from the seed and the epoch, so this is all
/// that a resumed stream needs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cursor {
    /// Passes over the data that are over.
    pub epoch: u64,
    /// Windows of this epoch whose rows have all been delivered. A window is what rows are shuffled within: a few row
    /// groups; one block where nothing is shuffled; a fixed run of the epoch's order where any row can be read by its
    /// number; a message of a live stream.
    pub window: u64,
    /// Rows of the current window that have been delivered.
    pub row: u64,
    /// Tokens left over from the windows before, fewer than one row has: the current window's first row begins with
    /// them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub carry: Vec<u32>,
    /// Records read before the current window, since the very beginning.
    pub records: u64,
    /// Records among them that were skipped because they could not be read.
    pub bad_records: u64,
    /// Of `records`, those of earlier epochs.
    #[serde(default)]
    pub records_before_epoch: u64,
    /// Of `bad_records`, those of earlier epochs: a budget counts from zero every epoch, which meets the same records
    /// again.
    #[serde(default)]
    pub bad_before_epoch: u64,
    /// Where the current window begins in a live source. Opened there, it delivers the same window again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub position: Option<Position>,
    /// Rows of this epoch that have been delivered, where an epoch is a number of rows of a live stream.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub epoch_rows: u64,
    /// Where batches have several shards: the place of each, in order. All other numbers are then the sums of theirs,
    /// for people; the epoch, and its rows in a live source, are those of all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shards: Vec<Self>,
}

impl Cursor {
    /// The place of several shards in an epoch of all.
    pub fn of_shards(epoch: u64, shards: Vec<Self>) -> Self {
        let sum = |number: fn(&Self) -> u64| shards.iter().map(number).sum();
        Self {
            epoch,
            window: sum(|shard| shard.window),
            row: sum(|shard| shard.row),
            carry: Vec::new(),
            records: sum(|shard| shard.records),
            bad_records: sum(|shard| shard.bad_records),
            records_before_epoch: sum(|shard| shard.records_before_epoch),
            bad_before_epoch: sum(|shard| shard.bad_before_epoch),
            position: None,
            epoch_rows: sum(|shard| shard.epoch_rows),
            shards,
        }
    }
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// What a stream delivers.
#[derive(Clone, Debug)]
pub enum Item {
    /// Rows to learn from.
    Batch {
        /// The rows.
        batch: Batch,
        /// The place just after them.
        end: Cursor,
    },
    /// The data has been seen once more. Travels as an item so that no receiver has to guess.
    EpochEnd {
        /// The beginning of the next epoch.
        next: Cursor,
    },
}
