//! A backend around a backend, of which every rank of a cluster has one: the same parameters everywhere, a part of each
//! batch on each.
//!
//! Every rank is given the same batch. Its rows belong to logical shards, equal runs of rows by their number; a rank
//! computes the flows of its own shards, one after the other, and `cluster::shard_sum` adds up those of all in the
//! order of the shards. Everything else is done by all ranks alike. So parameters have the same bits on every rank, for
//! any number of ranks, and on one process with as many shards. Of large tables only rows are sent that some row of the
//! batch touches.
//!
//! Ranks call the verbs that are collective (`add_flows`, `em_step`, both likelihoods) in the same order; all others
//! are each rank's own. A collective verb that fails because a rank is gone has touched nothing, so it can be made
//! again.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use super::{
    AdamStep, Backend, BatchReport, EmStep, EmUpdate, Evaluator, FlowPrecision, FlowsId, ParamRowsId, PhaseSeconds,
    Tensor,
};
use crate::circuit::{Circuit, Flows, NodeKind, ParamId, ParamKind, Params};
use crate::cluster::Ranks;
use crate::cluster::shard_sum::{Number, partials, sum_over_ranks};
use crate::data::Batch;
use crate::error::{Error, Result};

/// Tables of at least so many categories are sent by touched rows.
const MANY_CATS: usize = 256;

/// A circuit on every rank of a cluster.
pub struct Replicated {
    inner: Box<dyn Backend>,
    ranks: Ranks,
    /// How precisely each flow buffer of the inner backend counts, by its index.
    precisions: HashMap<u32, FlowPrecision>,
    /// What the rows of one shard add, single and double; zeros between two uses.
    added: [FlowsId; 2],
    /// Tables that are sent by touched rows, and the variables that read each.
    sparse: Vec<(ParamId, Vec<usize>)>,
    /// A buffer to be scaled before the next verb: not at once, because a sum may fail that comes after it.
    deferred: Option<(FlowsId, f64)>,
}

impl Replicated {
    /// Makes a backend one rank's of a cluster.
    pub fn new(mut inner: Box<dyn Backend>, ranks: Ranks) -> Result<Self> {
        let added = [inner.new_flows(FlowPrecision::Single)?, inner.new_flows(FlowPrecision::Double)?];
        let sparse = sparse_tables(inner.circuit());
        let precisions =
            HashMap::from([(added[0].index, FlowPrecision::Single), (added[1].index, FlowPrecision::Double)]);
        Ok(Self { inner, ranks, precisions, added, sparse, deferred: None })
    }

    /// Makes up for what was put off.
    fn settle(&mut self) -> Result<()> {
        match self.deferred.take() {
            Some((flows, factor)) => self.inner.scale(flows, factor),
            None => Ok(()),
        }
    }

    /// Nothing may be put off where a buffer is only looked at.
    fn check_settled(&self) -> Result<()> {
        match self.deferred {
            None => Ok(()),
            Some(_) => Err(Error::internal("a flow buffer is looked at before its sum is made")),
        }
    }

    /// Which stretches of a flow buffer some row of the batch adds to.
    fn spans(&self, batch: &Batch) -> Vec<Range<usize>> {
        let layout = self.inner.circuit().layout();
        let mut spans: Vec<Range<usize>> = Vec::new();
        let mut add = |span: Range<usize>| match spans.last_mut() {
            Some(last) if last.end == span.start => last.end = span.end,
            _ => spans.push(span),
        };
        for (param, block) in layout.blocks().iter().enumerate() {
            let Some((_, vars)) = self.sparse.iter().find(|(sparse, _)| sparse.index() == param) else {
                add(block.stats.clone());
                continue;
            };
            let (units, start) = (block.units(), block.stats.start);
            let mut touched = vec![0u64; block.stats_per_row.div_ceil(64)];
            for &var in vars {
                mark(batch, var, block.stats_per_row, &mut touched);
            }
            for cat in (0..block.stats_per_row).filter(|cat| touched[cat / 64] >> (cat % 64) & 1 == 1) {
                add(start + cat * units..start + (cat + 1) * units);
            }
        }
        spans
    }

    /// Σ over all shards of gain · flows, packed by the spans, and what the pass found.
    fn sum_flows<T: Number + FromTensor>(
        &mut self,
        batch: &Batch,
        gain: f64,
        added: FlowsId,
        spans: &[Range<usize>],
    ) -> Result<(Tensor, BatchReport)> {
        let num_shards = self.ranks.num_shards();
        let len = spans.iter().map(Range::len).sum();
        let mut reports = Vec::new();
        let inner = &mut self.inner;
        let mut shard_flows = |shard: usize| {
            let rows = rows_of_shard(batch.num_rows(), shard, num_shards);
            if rows.is_empty() {
                reports.push(BatchReport::default());
                return Ok(vec![T::default(); len]);
            }
            reports.push(inner.add_flows(&batch.slice(rows), gain, added)?);
            T::from_tensor(inner.take_flows(added, spans)?)
        };
        let begun = Instant::now();
        let mine = partials(self.ranks.shards(), num_shards, &mut shard_flows);
        self.ranks.add_compute(begun.elapsed());
        let begun = Instant::now();
        let mut calls = self.ranks.calls();
        // A rank that failed says so before the others wait for its flows.
        let said = calls.gather(&message(mine.as_ref().map(|_| &reports[..]), digest_of(batch)))?;
        let report = understood(&said)?;
        let (sum, received) = sum_over_ranks(&mut **calls, num_shards, mine?, len)?;
        drop(calls);
        self.ranks.add_sum(begun.elapsed(), received);
        Ok((T::into_tensor(sum), report))
    }

    /// Log-likelihoods of a batch, by shards of it, on every rank.
    fn score(
        &mut self,
        batch: &Batch,
        mut score: impl FnMut(&mut dyn Backend, &Batch) -> Result<Vec<f64>>,
    ) -> Result<Vec<f64>> {
        self.settle()?;
        self.circuit().check_batch(batch)?;
        let mut mine = Vec::new();
        let mut failed = None;
        for shard in self.ranks.shards() {
            let rows = rows_of_shard(batch.num_rows(), shard, self.ranks.num_shards());
            if !rows.is_empty() && failed.is_none() {
                match score(&mut *self.inner, &batch.slice(rows)) {
                    Ok(found) => mine.extend(found),
                    Err(error) => failed = Some(error),
                }
            }
        }
        let bytes: Vec<u8> = match &failed {
            None => std::iter::once(0).chain(mine.iter().flat_map(|x| x.to_le_bytes())).collect(),
            Some(error) => std::iter::once(1).chain(error.to_string().into_bytes()).collect(),
        };
        let said = self.ranks.calls().gather(&bytes)?;
        let mut all = Vec::with_capacity(batch.num_rows());
        for (rank, said) in said.iter().enumerate() {
            match said.split_first() {
                Some((0, numbers)) => all.extend(numbers.chunks_exact(8).map(number)),
                Some((_, text)) => return Err(of_rank(rank, &String::from_utf8_lossy(text))),
                None => return Err(of_rank(rank, "said nothing")),
            }
        }
        match all.len() == batch.num_rows() {
            true => Ok(all),
            false => Err(Error::state("ranks were asked about different rows")),
        }
    }
}

/// Tables with many categories, and the variables that read each.
fn sparse_tables(circuit: &Circuit) -> Vec<(ParamId, Vec<usize>)> {
    let mut tables: Vec<(ParamId, Vec<usize>)> = Vec::new();
    for node in circuit.nodes() {
        let NodeKind::Input { var, param } = &node.kind else { continue };
        let ParamKind::Input(distribution) = &circuit.params()[param.index()].kind else { continue };
        if !distribution.is_table() || circuit.layout().block(*param).stats_per_row < MANY_CATS {
            continue;
        }
        match tables.iter_mut().find(|(known, _)| known == param) {
            Some((_, vars)) if vars.contains(var) => {}
            Some((_, vars)) => vars.push(*var),
            None => tables.push((*param, vec![*var])),
        }
    }
    tables
}

/// Marks the categories of a variable that rows have; a missing value adds to all of them.
fn mark(batch: &Batch, var: usize, cats: usize, touched: &mut [u64]) {
    let column = batch.column(var);
    for row in 0..batch.num_rows() {
        match column.category(row).filter(|&cat| !batch.is_missing(row, var) && (cat as usize) < cats) {
            Some(cat) => touched[cat as usize / 64] |= 1 << (cat % 64),
            None => {
                touched.fill(u64::MAX);
                return;
            }
        }
    }
}

/// The rows of a batch that belong to a shard.
fn rows_of_shard(num_rows: usize, shard: usize, num_shards: usize) -> Range<usize> {
    shard * num_rows / num_shards..(shard + 1) * num_rows / num_shards
}

/// What a rank found in its shards, or why it could not look, and which rows it had.
fn message(found: std::result::Result<&[BatchReport], &Error>, digest: u64) -> Vec<u8> {
    match found {
        Err(error) => std::iter::once(1).chain(error.to_string().into_bytes()).collect(),
        Ok(reports) => {
            let mut bytes = vec![0];
            bytes.extend(digest.to_le_bytes());
            for report in reports {
                let BatchReport { num_rows, weight, log_likelihood, possible_weight, impossible_rows, rescued_rows } =
                    *report;
                for count in [num_rows, impossible_rows, rescued_rows] {
                    bytes.extend((count as f64).to_le_bytes());
                }
                for number in [weight, log_likelihood, possible_weight] {
                    bytes.extend(number.to_le_bytes());
                }
            }
            bytes
        }
    }
}

/// Numbers of a shard's report in a message.
const REPORT_NUMBERS: usize = 6;

/// The report of all shards, added up in their order, from what every rank said.
fn understood(said: &[Vec<u8>]) -> Result<BatchReport> {
    let mut whole = BatchReport::default();
    if let Some((rank, text)) = said.iter().enumerate().find(|(_, said)| said.first() == Some(&1)) {
        return Err(of_rank(rank, &String::from_utf8_lossy(&text[1..])));
    }
    for (rank, bytes) in said.iter().enumerate() {
        if bytes.get(1..9) != said[0].get(1..9) {
            return Err(Error::state(format!(
                "rank {rank} has other rows than rank 0 in the same batch: every rank must be given the same data"
            )));
        }
        let numbers: Vec<f64> = bytes[9..].chunks_exact(8).map(number).collect();
        for report in numbers.chunks_exact(REPORT_NUMBERS) {
            let [num_rows, impossible_rows, rescued_rows] = [report[0], report[1], report[2]].map(|n| n as usize);
            let [weight, log_likelihood, possible_weight] = [report[3], report[4], report[5]];
            let found =
                BatchReport { num_rows, weight, log_likelihood, possible_weight, impossible_rows, rescued_rows };
            whole.add(&found);
        }
    }
    Ok(whole)
}

fn number(bytes: &[u8]) -> f64 {
    f64::from_le_bytes(bytes.try_into().expect("eight bytes"))
}

/// A failure of one rank, which ends all of them.
fn of_rank(rank: usize, text: &str) -> Error {
    Error::state(format!("rank {rank}: {text}"))
}

/// Tells batches apart.
fn digest_of(batch: &Batch) -> u64 {
    let mut digest = 0xcbf2_9ce4_8422_2325u64 ^ batch.num_rows() as u64;
    let mut take = |bits: u64| digest = (digest ^ bits).wrapping_mul(0x0100_0000_01b3).rotate_left(17);
    for var in 0..batch.num_vars() {
        let column = batch.column(var);
        for row in 0..batch.num_rows() {
            take(if batch.is_missing(row, var) { u64::MAX } else { column.real(row).to_bits() });
        }
    }
    (0..batch.num_rows()).for_each(|row| take(u64::from(batch.weight(row).to_bits())));
    digest
}

/// A number that a saved buffer may be made of.
trait FromTensor: Sized {
    fn from_tensor(tensor: Tensor) -> Result<Vec<Self>>;
    fn into_tensor(numbers: Vec<Self>) -> Tensor;
}

impl FromTensor for f32 {
    fn from_tensor(tensor: Tensor) -> Result<Vec<Self>> {
        match tensor {
            Tensor::F32(numbers) => Ok(numbers),
            Tensor::F64(_) => Err(Error::internal("flows of another precision")),
        }
    }

    fn into_tensor(numbers: Vec<Self>) -> Tensor {
        Tensor::F32(numbers)
    }
}

impl FromTensor for f64 {
    fn from_tensor(tensor: Tensor) -> Result<Vec<Self>> {
        match tensor {
            Tensor::F64(numbers) => Ok(numbers),
            Tensor::F32(_) => Err(Error::internal("flows of another precision")),
        }
    }

    fn into_tensor(numbers: Vec<Self>) -> Tensor {
        Tensor::F64(numbers)
    }
}

impl Backend for Replicated {
    fn circuit(&self) -> &Arc<Circuit> {
        self.inner.circuit()
    }

    fn phase_seconds(&self) -> PhaseSeconds {
        self.inner.phase_seconds()
    }

    fn params(&self) -> Result<Params> {
        self.inner.params()
    }

    fn set_params(&mut self, params: &Params) -> Result<()> {
        self.inner.set_params(params)
    }

    fn average(&mut self, weight: f64) -> Result<()> {
        self.inner.average(weight)
    }

    fn averaged_params(&self) -> Result<Params> {
        self.inner.averaged_params()
    }

    fn evaluator(&self) -> Result<Evaluator> {
        self.inner.evaluator()
    }

    fn set_average(&mut self, average: &Params) -> Result<()> {
        self.inner.set_average(average)
    }

    fn averaged_log_likelihoods(&mut self, batch: &Batch) -> Result<Vec<f64>> {
        self.score(batch, |inner, part| inner.averaged_log_likelihoods(part))
    }

    fn log_likelihoods(&mut self, batch: &Batch) -> Result<Vec<f64>> {
        self.score(batch, |inner, part| inner.log_likelihoods(part))
    }

    fn add_flows(&mut self, batch: &Batch, gain: f64, into: FlowsId) -> Result<BatchReport> {
        self.circuit().check_batch(batch)?; // the same on all ranks
        let Some(&precision) = self.precisions.get(&into.index) else {
            return Err(Error::state("a buffer handle belongs to another backend"));
        };
        let put_off = self.deferred.take();
        if let Some((flows, factor)) = put_off.filter(|(flows, _)| *flows != into) {
            self.inner.scale(flows, factor)?;
        }
        let spans = self.spans(batch);
        let added = self.added[precision as usize];
        let (sum, report) = match precision {
            FlowPrecision::Single => self.sum_flows::<f32>(batch, gain, added, &spans)?,
            FlowPrecision::Double => self.sum_flows::<f64>(batch, gain, added, &spans)?,
        };
        if let Some((flows, factor)) = put_off.filter(|(flows, _)| *flows == into) {
            self.inner.scale(flows, factor)?;
        }
        self.inner.put_flows(into, &spans, &sum)?;
        Ok(report)
    }

    fn em_step(&mut self, batch: &Batch, step: &EmStep) -> Result<BatchReport> {
        if step.masses == step.spare {
            return Err(Error::state("an EM step needs a spare row buffer besides the masses"));
        }
        step.by_verbs(self, batch)
    }

    fn top_down(&mut self, into: ParamRowsId) -> Result<()> {
        self.settle()?;
        self.inner.top_down(into)
    }

    fn row_masses(&mut self, flows: FlowsId, gain: f64, into: ParamRowsId) -> Result<()> {
        self.settle()?;
        self.inner.row_masses(flows, gain, into)
    }

    fn em_update(&mut self, update: &EmUpdate) -> Result<()> {
        self.settle()?;
        self.inner.em_update(update)
    }

    fn gradient(&mut self, flows: FlowsId, gain: f64, top_down: ParamRowsId) -> Result<()> {
        self.settle()?;
        self.inner.gradient(flows, gain, top_down)
    }

    fn adam_update(&mut self, gradient: FlowsId, first: FlowsId, second: FlowsId, step: &AdamStep) -> Result<()> {
        self.settle()?;
        self.inner.adam_update(gradient, first, second, step)
    }

    fn ascend(&mut self, gradient: FlowsId, rate: f64) -> Result<()> {
        self.settle()?;
        self.inner.ascend(gradient, rate)
    }

    fn renormalize(&mut self) -> Result<()> {
        self.settle()?;
        self.inner.renormalize()
    }

    fn new_flows(&mut self, precision: FlowPrecision) -> Result<FlowsId> {
        let flows = self.inner.new_flows(precision)?;
        self.precisions.insert(flows.index, precision);
        Ok(flows)
    }

    fn new_rows(&mut self) -> Result<ParamRowsId> {
        self.inner.new_rows()
    }

    fn scale(&mut self, flows: FlowsId, factor: f64) -> Result<()> {
        self.settle()?;
        if factor == 0.0 {
            return self.inner.scale(flows, factor); // to be cleared twice does no harm
        }
        self.deferred = Some((flows, factor));
        Ok(())
    }

    fn add_scaled(&mut self, flows: FlowsId, gain: f64, into: FlowsId) -> Result<()> {
        self.settle()?;
        self.inner.add_scaled(flows, gain, into)
    }

    fn blend_rows(&mut self, into: ParamRowsId, keep: f64, rows: ParamRowsId, gain: f64) -> Result<()> {
        self.settle()?;
        self.inner.blend_rows(into, keep, rows, gain)
    }

    fn flows(&self, flows: FlowsId) -> Result<Flows> {
        self.check_settled()?;
        self.inner.flows(flows)
    }

    fn rows(&self, rows: ParamRowsId) -> Result<Vec<f64>> {
        self.inner.rows(rows)
    }

    fn save_flows(&self, flows: FlowsId) -> Result<Tensor> {
        self.check_settled()?;
        self.inner.save_flows(flows)
    }

    fn load_flows(&mut self, flows: FlowsId, saved: &Tensor) -> Result<()> {
        self.settle()?;
        self.inner.load_flows(flows, saved)
    }

    fn save_rows(&self, rows: ParamRowsId) -> Result<Tensor> {
        self.inner.save_rows(rows)
    }

    fn load_rows(&mut self, rows: ParamRowsId, saved: &Tensor) -> Result<()> {
        self.inner.load_rows(rows, saved)
    }
}
