//! What ranks say to each other with a batch: what each found in its own shards, or why it could not look.
//!
//! Used by `replicated`, whatever way flows are summed after it.

use super::BatchReport;
use crate::cluster::rows::RowSet;
use crate::data::Batch;
use crate::error::{Error, ErrorKind, Result};

/// What a rank has of a sum.
pub(super) struct OwnFlows<P> {
    /// Partial sums of its shards.
    pub partials: P,
    /// Rows of a flow buffer that they are of; none where whole buffers are summed.
    pub rows: RowSet,
    /// Of each of its shards.
    pub reports: Vec<BatchReport>,
}

/// What a rank found in its shards, and of which rows it has flows; or why it could not look.
pub(super) fn message<P>(found: std::result::Result<&OwnFlows<P>, &Error>, digest: u64) -> Vec<u8> {
    let found = match found {
        Err(error) => return std::iter::once(1).chain(error.to_string().into_bytes()).collect(),
        Ok(found) => found,
    };
    let mut bytes = vec![0];
    bytes.extend(digest.to_le_bytes());
    bytes.extend(found.rows.to_bytes());
    for report in &found.reports {
        let BatchReport { num_rows, weight, log_likelihood, possible_weight, impossible_rows, rescued_rows } = *report;
        for count in [num_rows, impossible_rows, rescued_rows] {
            bytes.extend((count as f64).to_le_bytes());
        }
        for number in [weight, log_likelihood, possible_weight] {
            bytes.extend(number.to_le_bytes());
        }
    }
    bytes
}

/// Numbers of a shard's report in a message.
const REPORT_NUMBERS: usize = 6;

/// The rows that each rank has flows of, and the report of all shards, added up in their order, from what every rank
/// said.
pub(super) fn understood(said: &[Vec<u8>], num_rows: usize) -> Result<(Vec<RowSet>, BatchReport)> {
    let mut whole = BatchReport::default();
    if let Some((rank, text)) = said.iter().enumerate().find(|(_, said)| said.first() == Some(&1)) {
        return Err(of_rank(rank, &String::from_utf8_lossy(&text[1..])));
    }
    let mut sets = Vec::with_capacity(said.len());
    for (rank, bytes) in said.iter().enumerate() {
        if bytes.get(1..9) != said[0].get(1..9) {
            return Err(Error::state(format!(
                "rank {rank} has other rows than rank 0 in the same batch: every rank must be given the same data"
            )));
        }
        let Some((set, numbers)) = bytes[9..].split_at_checked(RowSet::num_bytes(num_rows)) else {
            return Err(of_rank(rank, "has another circuit than rank 0"));
        };
        sets.push(RowSet::from_bytes(set));
        let numbers: Vec<f64> = numbers.chunks_exact(8).map(number).collect();
        for report in numbers.chunks_exact(REPORT_NUMBERS) {
            let [num_rows, impossible_rows, rescued_rows] = [report[0], report[1], report[2]].map(|n| n as usize);
            let [weight, log_likelihood, possible_weight] = [report[3], report[4], report[5]];
            let found =
                BatchReport { num_rows, weight, log_likelihood, possible_weight, impossible_rows, rescued_rows };
            whole.add(&found);
        }
    }
    Ok((sets, whole))
}

pub(super) fn number(bytes: &[u8]) -> f64 {
    f64::from_le_bytes(bytes.try_into().expect("eight bytes"))
}

/// A failure of one rank, which ends all of them.
pub(super) fn of_rank(rank: usize, text: &str) -> Error {
    Error::new(ErrorKind::Cluster, format!("rank {rank}: {text}"))
}

/// Tells global batches apart, as far as every rank knows them.
pub(super) fn digest_of(batch: &Batch) -> u64 {
    let mut digest = 0xcbf2_9ce4_8422_2325u64 ^ batch.num_global_rows() as u64;
    let mut take = |bits: u64| digest = (digest ^ bits).wrapping_mul(0x0100_0000_01b3).rotate_left(17);
    if let Some(part) = batch.part() {
        part.rows.iter().for_each(|&rows| take(rows as u64));
        take(part.weight.to_bits());
        return digest;
    }
    for var in 0..batch.num_vars() {
        let column = batch.column(var);
        for row in 0..batch.num_rows() {
            take(if batch.is_missing(row, var) { u64::MAX } else { column.real(row).to_bits() });
        }
    }
    (0..batch.num_rows()).for_each(|row| take(u64::from(batch.weight(row).to_bits())));
    digest
}
