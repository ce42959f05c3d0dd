//! A word about runs that will hardly move.
//!
//! A mini-batch optimizer needs some hundreds of updates to get anywhere. Batches that are large for little data make
//! fewer, and the likelihood then says less about the model than about that.

use crate::pipeline::spec::PipelineSpec;

/// Fewer updates than this are worth a word.
const FEW_UPDATES: u64 = 200;

/// As many updates as batches are proposed for.
const ENOUGH_UPDATES: u64 = 1000;

/// No smaller batches than these are proposed.
const LEAST_ROWS: u64 = 16;

/// What to tell about a run over epochs of so many rows, if it makes few updates.
pub(super) fn few_updates(spec: &PipelineSpec, epoch_rows: u64) -> Option<String> {
    let learn = &spec.learn;
    let (Some(epochs), None, None, None) = (learn.epochs, learn.batches, learn.rows, learn.seconds) else {
        return None;
    };
    learn.optimizer.batches_per_update()?; // one update an epoch is what full-batch EM is for
    let batch_rows = spec.batch.rows as u64;
    let batches = epochs.saturating_mul(epoch_rows.div_ceil(batch_rows));
    if epoch_rows == 0 || batches >= FEW_UPDATES {
        return None;
    }
    let fewer = (epochs.saturating_mul(epoch_rows) / ENOUGH_UPDATES).max(LEAST_ROWS);
    let fewer = 1 << fewer.ilog2(); // a power of two, not more
    let more = match fewer < batch_rows {
        true => format!("smaller batches (batch.rows = {fewer}) or more epochs"),
        false => "more epochs".to_string(),
    };
    let times = |count: u64, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
    Some(format!(
        "{} of {epoch_rows} rows in batches of {batch_rows} {} only {}: {more} learn more",
        times(epochs, "epoch"),
        if epochs == 1 { "makes" } else { "make" },
        times(batches, "update")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hint(learn: &str, batch_rows: u64, epoch_rows: u64) -> Option<String> {
        let text = format!("[source]\nfiles = \"a.npy\"\n[batch]\nrows = {batch_rows}\n[learn]\n{learn}\n");
        few_updates(&PipelineSpec::parse(&text, "p.toml").unwrap(), epoch_rows)
    }

    #[test]
    fn few_updates_are_worth_a_word_and_many_are_not() {
        let text = hint("epochs = 3", 512, 233).unwrap();
        assert_eq!(
            text,
            "3 epochs of 233 rows in batches of 512 make only 3 updates: smaller batches (batch.rows = 16) or more \
             epochs learn more"
        );
        assert!(hint("epochs = 1", 512, 60_000).unwrap().contains("batch.rows = 32"));
        assert!(hint("epochs = 1", 16, 20).unwrap().contains("makes only 2 updates: more epochs learn more"));
        assert_eq!(hint("epochs = 40", 256, 16_000), None);
        assert_eq!(hint("epochs = 1\noptimizer = \"full_batch_em\"", 512, 20), None);
        assert_eq!(hint("epochs = 1\nbatches = 5", 512, 20), None, "somebody counts batches");
    }
}
