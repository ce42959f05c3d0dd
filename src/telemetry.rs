//! Metrics: what they are called, what they count, and what question they answer.
//!
//! Names are constants here and nowhere else. They are recorded once a batch, through the `metrics` facade, which costs
//! next to nothing while nobody listens; [`install`] makes this process listen, [`Registry::render`] writes what it
//! heard as Prometheus text, and `serve` (feature `cli`) shows that over HTTP.

mod health;
mod registry;
#[cfg(feature = "cli")]
mod server;

use metrics::Unit;

pub use health::{HEALTH, Health};
pub use registry::Registry;
#[cfg(feature = "cli")]
#[cfg_attr(docsrs, doc(cfg(feature = "cli")))]
pub use server::{Server, parse_address, serve};

use crate::error::{Error, Result};

/// What a metric does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only grows.
    Counter,
    /// Goes up and down.
    Gauge,
    /// A distribution.
    Histogram,
}

/// A metric: name, kind, unit, and what it tells.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// The name, with its unit where it has one.
    pub name: &'static str,
    /// What it does.
    pub kind: Kind,
    /// What it counts.
    pub unit: Unit,
    /// What it tells.
    pub meaning: &'static str,
}

/// Rows learned from.
pub const ROWS: &str = "anemone_rows_total";
/// Batches learned from.
pub const BATCHES: &str = "anemone_batches_total";
/// Updates of the parameters.
pub const UPDATES: &str = "anemone_updates_total";
/// Bytes that sources delivered, before decoding.
pub const BYTES_READ: &str = "anemone_read_bytes_total";
/// Records that were left out because they could not be read or decoded.
pub const DECODE_ERRORS: &str = "anemone_bad_records_total";
/// Rows of probability zero.
pub const IMPOSSIBLE_ROWS: &str = "anemone_impossible_rows_total";
/// Seconds that a stage waited; labels `stage` and `side` (`input`: starved, `output`: held up).
pub const STAGE_WAIT: &str = "anemone_stage_wait_seconds";
/// Bytes of rows on their way.
pub const QUEUE_BYTES: &str = "anemone_queue_bytes";
/// Mean log-likelihood of all rows when they were first seen.
pub const PREQUENTIAL_LL: &str = "anemone_prequential_log_likelihood_nats";
/// The same over the last rows, of any epoch.
pub const WINDOW_LL: &str = "anemone_window_log_likelihood_nats";
/// The same, fading.
pub const FADING_LL: &str = "anemone_fading_log_likelihood_nats";
/// How often a detector said that the stream has changed.
pub const DRIFTS: &str = "anemone_drift_total";
/// Rows learned from when one said so last.
pub const DRIFT_ROW: &str = "anemone_drift_last_row";
/// Mean log-likelihood of the last batch, before its update.
pub const BATCH_LL: &str = "anemone_batch_log_likelihood_nats";
/// Mean log-likelihood of held-out rows.
pub const VALID_LL: &str = "anemone_valid_log_likelihood_nats";
/// Seconds that a batch took on the device.
pub const STEP_SECONDS: &str = "anemone_step_seconds";
/// The step size of the last update.
pub const STEP_SIZE: &str = "anemone_step_size";
/// Held-out rows of probability zero at the latest look.
pub const VALID_IMPOSSIBLE_ROWS: &str = "anemone_valid_impossible_rows";
/// How many states of a variable are in use, on average.
pub const STATES_IN_USE: &str = "anemone_states_in_use";
/// Checkpoints that could not be written.
pub const CHECKPOINT_FAILURES: &str = "anemone_checkpoint_failures_total";
/// Stretches during which a file of the run folder could not be written.
pub const WRITE_FAILURES: &str = "anemone_write_failures_total";
/// Seconds that the last checkpoint took.
pub const CHECKPOINT_SECONDS: &str = "anemone_checkpoint_seconds";
/// When the last checkpoint was written.
pub const CHECKPOINT_TIME: &str = "anemone_checkpoint_timestamp_seconds";
/// Epochs that are over.
pub const EPOCH: &str = "anemone_epoch";
/// Windows of the current epoch that are over.
pub const CURSOR_WINDOW: &str = "anemone_cursor_window";
/// Rows of the current window that were delivered.
pub const CURSOR_ROW: &str = "anemone_cursor_row";
/// Complaints of a client about its brokers; label `topic`.
pub const SOURCE_ERRORS: &str = "anemone_source_errors_total";
/// 1 while a broker answers, else 0; label `topic`.
pub const SOURCE_CONNECTED: &str = "anemone_source_connected";
/// Messages of a topic that are still to be read; labels `topic` and, where there are several, `shard`.
pub const SOURCE_LAG: &str = "anemone_source_lag";
/// Messages that were deleted before they were read; label `topic`.
pub const SOURCE_GONE: &str = "anemone_source_gone_total";

/// Files of a watched folder that were learned from, or left out as bad.
pub const FILES_TAKEN: &str = "anemone_files_taken_total";
/// Files of a watched folder that are there and were not taken yet; label `shard`, where there are several.
pub const FILES_WAITING: &str = "anemone_files_waiting";
/// How long the oldest of these has been there; label `shard`, where there are several.
pub const OLDEST_WAITING: &str = "anemone_oldest_waiting_file_seconds";

/// Rows that a rank learned from; label `rank`.
pub const RANK_ROWS: &str = "anemone_rank_rows_total";
/// Bytes that a rank's sources delivered; label `rank`.
pub const RANK_BYTES_READ: &str = "anemone_rank_read_bytes_total";
/// Seconds in which a rank computed flows; label `rank`.
pub const RANK_COMPUTE: &str = "anemone_rank_compute_seconds";
/// Seconds of a rank in sums over ranks; label `rank`.
pub const RANK_SUMS: &str = "anemone_rank_sum_seconds";
/// Label of the metrics of a rank: its number.
pub const RANK: &str = "rank";
/// Label of the metrics of a watched folder or a topic, where batches have shards: whose files or partitions.
pub const SHARD: &str = "shard";
/// Label of the metrics of a topic: its name.
pub const TOPIC: &str = "topic";
/// Label of [`STAGE_WAIT`]: which stage.
pub const STAGE: &str = "stage";
/// Label of [`STAGE_WAIT`]: `input` or `output`.
pub const SIDE: &str = "side";

/// All metrics, with the question that each answers.
pub const METRICS: [Metric; 37] = [
    counter(ROWS, Unit::Count, "rows learned from"),
    counter(BATCHES, Unit::Count, "batches learned from"),
    counter(UPDATES, Unit::Count, "updates of the parameters"),
    counter(BYTES_READ, Unit::Bytes, "bytes that sources delivered, before decoding: is it the disk or the network?"),
    counter(DECODE_ERRORS, Unit::Count, "records left out because they could not be read: is the data damaged?"),
    counter(IMPOSSIBLE_ROWS, Unit::Count, "rows of probability zero: is there too little smoothing?"),
    gauge(
        STAGE_WAIT,
        Unit::Seconds,
        "seconds that a stage waited for its input or for room at its output: what bounds the run?",
    ),
    gauge(QUEUE_BYTES, Unit::Bytes, "bytes of rows on their way: is the memory budget used?"),
    gauge(PREQUENTIAL_LL, Unit::Count, "mean log-likelihood of all rows when they were first seen, nats per row"),
    gauge(
        WINDOW_LL,
        Unit::Count,
        "mean log-likelihood of the last rows (drift.mean_rows) before they were learned from, nats per row: how \
         good is \
         it now?",
    ),
    gauge(
        FADING_LL,
        Unit::Count,
        "mean log-likelihood of about the last hundred batches before they were learned from, nats per row",
    ),
    counter(DRIFTS, Unit::Count, "times that a detector said that the stream has changed"),
    gauge(DRIFT_ROW, Unit::Count, "rows learned from when a detector last said so: when did the stream change?"),
    gauge(
        BATCH_LL,
        Unit::Count,
        "mean log-likelihood of the last batch before its update, nats per row: is it still learning?",
    ),
    gauge(
        VALID_LL,
        Unit::Count,
        "mean log-likelihood of held-out rows, nats per row, -inf if one is impossible: does it generalise?",
    ),
    gauge(VALID_IMPOSSIBLE_ROWS, Unit::Count, "held-out rows of probability zero: is there too little smoothing?"),
    gauge(
        STATES_IN_USE,
        Unit::Count,
        "effective number of states in use, mean over variables, when held-out rows were looked at: are there dead \
         ones?",
    ),
    counter(CHECKPOINT_FAILURES, Unit::Count, "checkpoints that could not be written: is there room on the disk?"),
    counter(
        WRITE_FAILURES,
        Unit::Count,
        "times that metrics.jsonl or the ledger could not be written any more: is there room on the disk?",
    ),
    histogram(STEP_SECONDS, Unit::Seconds, "seconds that a batch took on the device: is it slower than it was?"),
    gauge(STEP_SIZE, Unit::Count, "step size of the last update"),
    gauge(CHECKPOINT_SECONDS, Unit::Seconds, "seconds that the last checkpoint took: does it hold up the run?"),
    gauge(
        CHECKPOINT_TIME,
        Unit::Seconds,
        "when the last checkpoint was written, in Unix time: how much would a crash lose?",
    ),
    gauge(EPOCH, Unit::Count, "epochs that are over"),
    gauge(CURSOR_WINDOW, Unit::Count, "windows of the current epoch that are over: how far is it?"),
    gauge(CURSOR_ROW, Unit::Count, "rows of the current window that were delivered: how far is it?"),
    counter(SOURCE_ERRORS, Unit::Count, "complaints about brokers of a topic: is the connection good?"),
    gauge(SOURCE_CONNECTED, Unit::Count, "1 while a broker of the topic answers: is there an outage?"),
    gauge(SOURCE_LAG, Unit::Count, "messages of the topic that are still to be read: does the run keep up?"),
    counter(
        SOURCE_GONE,
        Unit::Count,
        "messages deleted before they were read (on_gap = \"skip\"): is retention too short?",
    ),
    counter(FILES_TAKEN, Unit::Count, "files of a watched folder that were taken, with bad ones"),
    gauge(FILES_WAITING, Unit::Count, "files of a watched folder that are not taken yet: does learning keep up?"),
    gauge(
        OLDEST_WAITING,
        Unit::Seconds,
        "how long the oldest of these has been there: is a file never whole, or is learning behind?",
    ),
    counter(RANK_ROWS, Unit::Count, "rows that each rank of a cluster learned from"),
    counter(RANK_BYTES_READ, Unit::Bytes, "bytes that each rank read: does every rank read its share only?"),
    gauge(RANK_COMPUTE, Unit::Seconds, "seconds in which each rank computed flows: is the work shared evenly?"),
    gauge(RANK_SUMS, Unit::Seconds, "seconds of each rank in sums over ranks, with waiting: is it the network?"),
];

const fn counter(name: &'static str, unit: Unit, meaning: &'static str) -> Metric {
    Metric { name, kind: Kind::Counter, unit, meaning }
}

const fn gauge(name: &'static str, unit: Unit, meaning: &'static str) -> Metric {
    Metric { name, kind: Kind::Gauge, unit, meaning }
}

const fn histogram(name: &'static str, unit: Unit, meaning: &'static str) -> Metric {
    Metric { name, kind: Kind::Histogram, unit, meaning }
}

/// Tells the recorder in use what every metric means.
pub fn describe_all() {
    for Metric { name, kind, unit, meaning } in METRICS {
        match kind {
            Kind::Counter => metrics::describe_counter!(name, unit, meaning),
            Kind::Gauge => metrics::describe_gauge!(name, unit, meaning),
            Kind::Histogram => metrics::describe_histogram!(name, unit, meaning),
        }
    }
}

/// Makes this process keep its metrics. Once: a second recorder is refused.
pub fn install() -> Result<Registry> {
    let registry = Registry::default();
    metrics::set_global_recorder(registry.clone())
        .map_err(|_| Error::unsupported("metrics are recorded already; a process keeps them once"))?;
    describe_all();
    Ok(registry)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_say_their_unit() {
        for (i, metric) in METRICS.iter().enumerate() {
            assert!(METRICS[..i].iter().all(|other| other.name != metric.name), "{}", metric.name);
            assert!(metric.name.starts_with("anemone_") && !metric.meaning.is_empty());
            assert_eq!(metric.name.ends_with("_total"), metric.kind == Kind::Counter, "{}", metric.name);
            let word = match metric.unit {
                Unit::Bytes => "bytes",
                Unit::Seconds => "seconds",
                _ => "",
            };
            assert!(metric.name.contains(word), "{} does not say {word}", metric.name);
        }
    }

    #[test]
    fn what_was_recorded_is_rendered_with_its_meaning() {
        let registry = Registry::default();
        metrics::with_local_recorder(&registry, || {
            describe_all();
            metrics::counter!(ROWS).increment(512);
            metrics::gauge!(STAGE_WAIT, STAGE => "decode", SIDE => "input").set(2.5);
            metrics::gauge!(VALID_LL).set(-3.5);
            metrics::histogram!(STEP_SECONDS).record(0.02);
        });
        let text = registry.render();
        for line in [
            "# HELP anemone_rows_total rows learned from",
            "# TYPE anemone_rows_total counter",
            "anemone_rows_total 512",
            "anemone_stage_wait_seconds{stage=\"decode\",side=\"input\"} 2.5",
            "anemone_valid_log_likelihood_nats -3.5",
            "anemone_step_seconds_bucket{le=\"0.03\"} 1",
            "anemone_step_seconds_bucket{le=\"0.01\"} 0",
        ] {
            assert!(text.lines().any(|l| l.starts_with(line)), "no `{line}` in:\n{text}");
        }
    }
}
