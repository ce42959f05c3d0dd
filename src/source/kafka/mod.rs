//! Topics of Apache Kafka: a `LiveSource` (feature `kafka`).
//!
//! Partitions are read from offsets of our own, which live in the checkpoint beside the parameters, so every message is
//! learned from exactly once in what is kept. No group is joined. Where one is named, the offsets of a checkpoint are
//! committed for it once that checkpoint is on disk, so that tools can show lag; they are never read.
//!
//! A window is consecutive messages of one partition. By `order`:
//!
//! * *arrival*: what has arrived of a partition, up to 1,000 messages or 256 KiB. Nobody waits; another run may merge
//!   partitions otherwise, so it learns the same rows in another order.
//! * *round-robin*: 100 messages of each partition in turn, or fewer where they reach 256 KiB. The order is a function
//!   of the topic alone and a resumed run has the same bits; the slowest partition decides the pace. A partition that
//!   appears during a run joins when it is noticed: only then may bits depend on time.
//!
//! Partition p belongs to shard p mod `batch.shards`, also one that appears later; the reader of a share knows of no
//! other partitions, and the orders above are among its own.
//!
//! A file each: `spec` is what a pipeline says, `connection` the client, `position` a place in a topic, `messages` what
//! they hold, `reader` the windows.

#[cfg(feature = "kafka")]
mod connection;
#[cfg(feature = "kafka")]
mod messages;
#[cfg(feature = "kafka")]
mod position;
#[cfg(feature = "kafka")]
mod reader;
#[cfg(feature = "kafka")]
mod source;
pub mod spec;
#[cfg(feature = "kafka")]
#[cfg(test)]
mod tests;
mod time;

#[cfg(feature = "kafka")]
#[cfg_attr(docsrs, doc(cfg(feature = "kafka")))]
pub use source::{Access, KafkaSource};

/// A message of a partition.
#[cfg(feature = "kafka")]
#[derive(Clone, Debug, PartialEq, Eq)]
struct Message {
    offset: i64,
    /// `None` says that a key was deleted.
    payload: Option<Vec<u8>>,
}
