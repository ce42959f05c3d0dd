//! How likely held-out rows are, and whether that is the best so far.

use std::time::Instant;

use metrics::gauge;

use super::record::Best;
use super::{Run, unless_stopped};
use crate::error::{ErrorKind, Result};
use crate::pipeline::evaluate::{Evaluation, evaluate};
use crate::pipeline::observer::{Event, Validated};
use crate::pipeline::prepare::HeldOut;
use crate::telemetry::{self, HEALTH};

impl Run<'_> {
    /// Looks at held-out rows if that is due after so many epochs.
    pub(super) async fn validate_if_due(&mut self, epochs: u64) -> Result<()> {
        let every = self.spec.validate.as_ref().and_then(|validate| validate.every_epochs);
        match every {
            Some(every) if epochs.is_multiple_of(every) => self.validate().await,
            _ => Ok(()),
        }
    }

    /// Returns true if held-out rows are to be looked at after a batch of so many rows. By seconds it depends on the
    /// clock, which changes nothing that is learned.
    pub(super) fn is_look_due(&self, batch_rows: u64) -> bool {
        let Some(validate) = &self.spec.validate else { return false };
        let rows = self.line.rows;
        validate.every_batches.is_some_and(|every| self.line.step.is_multiple_of(every))
            || validate.every_rows.is_some_and(|every| (rows - batch_rows) / every < rows / every)
            || validate.every_seconds.is_some_and(|every| self.looked.elapsed().as_secs_f64() >= every)
    }

    /// Asks for the log-likelihood of held-out rows, on a stream of their own.
    pub(super) async fn validate(&mut self) -> Result<()> {
        let Some(valid) = &self.inputs.valid else { return Ok(()) };
        let progress = self.learner.progress();
        if self.record.validated == Some(progress.updates) {
            return Ok(());
        }
        self.looked = Instant::now();
        let learned_seconds = self.seconds() - self.record.validation_seconds;
        let begun = Instant::now();
        let device = self.learner.phase_seconds().await?;
        let found = match self.look_at(valid).await {
            Ok(Some(found)) => found,
            Ok(None) => return Ok(()), // the loop sees the request next
            Err(error) if matches!(error.kind(), ErrorKind::Io | ErrorKind::Path) && !self.every_look => {
                // Reading them is no part of learning: they are looked at again when it is next due.
                self.warn(format!("validate: held-out rows could not be looked at: {error}"));
                return Ok(());
            }
            Err(error) => return Err(error.at("validate")),
        };
        let better = |log_likelihood: f64| self.record.best.is_none_or(|best| log_likelihood > best.log_likelihood);
        let best = found.mean_log_likelihood.filter(|&ll| better(ll));
        let mut test_ll = None;
        if let Some(log_likelihood) = best {
            if let Some(test) = &self.inputs.test {
                let Some(tested) = self.look_at(test).await.map_err(|e| e.at("test"))? else { return Ok(()) };
                test_ll = tested.mean_log_likelihood;
            }
            self.record.best = Some(Best { step: progress.batches, log_likelihood, test_ll });
        }
        (self.record.validated, self.record.valid_ll) = (Some(progress.updates), found.mean_log_likelihood);
        self.record.valid_impossible_rows = Some(found.impossible_rows);
        gauge!(telemetry::VALID_LL).set(found.mean_log_likelihood.unwrap_or(f64::NEG_INFINITY));
        gauge!(telemetry::VALID_IMPOSSIBLE_ROWS).set(found.impossible_rows as f64);
        let states_in_use = self.learner.states_in_use().await?.mean();
        gauge!(telemetry::STATES_IN_USE).set(states_in_use);
        self.validating.add(&self.learner.phase_seconds().await?.since(&device));
        let seconds = begun.elapsed().as_secs_f64();
        self.record.validation_seconds += seconds;
        self.write_line(Some((&found, states_in_use)));
        self.observer.event(&Event::Validated(Validated {
            step: progress.batches,
            epoch: progress.epoch,
            log_likelihood: found.mean_log_likelihood,
            possible_ll: found.possible_log_likelihood,
            bits_per_dim: found.bits_per_dim,
            perplexity: found.perplexity,
            rows: found.rows,
            impossible_rows: found.impossible_rows,
            best: best.is_some(),
            train_ll: self.record.train_ll,
            test_ll,
            states_in_use: Some(states_in_use),
            seconds,
            learned_seconds,
        }));
        if best.is_some() && self.spec.checkpoint.keep_best {
            self.checkpoint().await?; // the best is kept, so it has to be written
        }
        Ok(())
    }

    /// How likely held-out rows are now; `None` if somebody asks for a stop meanwhile.
    async fn look_at(&mut self, rows: &HeldOut) -> Result<Option<Evaluation>> {
        let mut stream = rows.open(self.inputs)?;
        let learner = self.learner.clone();
        let score = async |batch| {
            HEALTH.alive();
            learner.log_likelihoods(batch).await
        };
        let found = unless_stopped(&self.stop, evaluate(&mut stream, rows.rows, score)).await?;
        if found.is_some() {
            self.add_bad_records(stream.take_bad());
        }
        Ok(found.map(|found| found.in_units_of(self.learner.circuit().is_discrete())))
    }
}
