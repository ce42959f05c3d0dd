//! How likely held-out rows are, and whether that is the best so far.

use std::time::Instant;

use metrics::gauge;

use super::record::Best;
use super::{Run, unless_stopped};
use crate::data::{Batch, ShardRows};
use crate::decode::BadRecord;
use crate::error::{ErrorKind, Result};
use crate::order::Share;
use crate::pipeline::evaluate::{Evaluation, Sums, evaluate, sums};
use crate::pipeline::observer::{Event, Validated};
use crate::pipeline::prepare::HeldOut;
use crate::pipeline::team::Told;
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
            || self.is_look_due_by_clock
    }

    /// Returns true if by this process's clock held-out rows are to be looked at.
    pub(super) fn is_look_due_by_seconds(&self) -> bool {
        let every = self.spec.validate.as_ref().and_then(|validate| validate.every_seconds);
        every.is_some_and(|every| self.looked.elapsed().as_secs_f64() >= every)
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
        self.is_looking = true;
        let found = match self.look_at(valid).await {
            Ok(Some(found)) => found,
            Ok(None) => {
                self.is_looking = false;
                return Ok(()); // the loop sees the request next
            }
            Err(error) if matches!(error.kind(), ErrorKind::Io | ErrorKind::Path) && !self.every_look => {
                // Reading them is no part of learning: they are looked at again when it is next due.
                self.warn(format!("validate: held-out rows could not be looked at: {error}"));
                self.is_looking = false;
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
        self.is_looking = false;
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
        if self.spec.batch.shards > 1 {
            return self.look_at_shards(rows).await;
        }
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

    /// The same where batches have shards: held-out rows have the same, each rank looks at those of its own, and what
    /// they say is added up in the order of shards. So the bits do not depend on the number of ranks.
    async fn look_at_shards(&mut self, rows: &HeldOut) -> Result<Option<Evaluation>> {
        let own = self.look_at_own_shards(rows).await;
        let all = match self.team.is_alone() {
            true => vec![own?],
            false => {
                let said = match own {
                    Ok(found) => (None, found),
                    Err(error) => (Some(Told::new(&error)), None),
                };
                let mut all = Vec::new();
                for (rank, (told, found)) in self.team.all(said).await?.into_iter().enumerate() {
                    if let Some(told) = told {
                        return Err(self.team.failed(rank, told));
                    }
                    all.push(found);
                }
                all
            }
        };
        let Some(all) = all.into_iter().collect::<Option<Vec<_>>>() else { return Ok(None) };
        let mut whole = Sums::default();
        for (sums, bad) in all.into_iter().flatten() {
            whole.add(&sums);
            if self.team.is_first() {
                self.add_bad_records(bad);
            }
        }
        whole.evaluation().map(|found| Some(found.in_units_of(self.learner.circuit().is_discrete())))
    }

    /// What the rows of each own shard say, and records that were left out; `None` if somebody asks for a stop.
    async fn look_at_own_shards(&self, rows: &HeldOut) -> Result<Option<Vec<(Sums, Vec<BadRecord>)>>> {
        let shards = self.spec.batch.shards;
        let mut found = Vec::new();
        for shard in self.own.clone() {
            let share = Share { shard, shards };
            let mut stream = rows.open_share(self.inputs, share)?;
            let most = rows.rows.map(|most| share.of_rows(most as usize).len() as u64);
            let score = async |batch: Batch| {
                HEALTH.alive();
                let mut rows = vec![0; shards];
                rows[shard] = batch.num_rows();
                let weight = batch.total_weight();
                let part = batch.as_part(ShardRows { rows, held: shard..shard + 1, weight })?;
                self.learner.log_likelihoods(part).await
            };
            let Some(sums) = unless_stopped(&self.stop, sums(&mut stream, most, score)).await? else { return Ok(None) };
            found.push((sums, stream.take_bad()));
        }
        Ok(Some(found))
    }
}
