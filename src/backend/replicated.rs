//! A backend around a backend, of which every rank of a cluster has one: the same parameters everywhere, a part of each
//! batch on each.
//!
//! The rows of a global batch belong to logical shards. A rank is given those of its own shards, with the numbers of
//! rows of all ([`ShardRows`](crate::data::ShardRows)); or every rank is given the whole batch, and shards are equal
//! runs of its rows. A rank computes the flows of its own shards, one after the other, and `cluster::shard_sum` adds up
//! those of all in the order of the shards. Everything else is done by all ranks alike. So parameters have the same
//! bits on every rank, for any number of ranks, and on one process with as many shards. Of large tables only rows are
//! sent that some row of the batch touches, and only by ranks that have such rows; the others move by what all ranks
//! know of the whole table. A step of EM is two halves of the inner backend's: flows of a batch, and an update from
//! flows that are given.
//!
//! Ranks call the verbs that are collective (`add_flows`, `em_step`, both likelihoods) in the same order; all others
//! are each rank's own, and so are likelihoods of a part of a batch. A collective verb that fails because a rank is
//! gone has touched nothing, so it can be made again.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use super::{
    AdamStep, Backend, BatchReport, EmStep, EmUpdate, Evaluator, FlowPrecision, FlowsId, ParamRowsId, PhaseSeconds,
    Tensor,
};
use crate::circuit::{Circuit, Flows, NodeKind, ParamId, ParamKind, Params};
use crate::cluster::rows::{RowLayout, RowSet};
use crate::cluster::shard_sum::{Number, partials, sum_of_rows};
use crate::cluster::{Ranks, shards_of};
use crate::data::Batch;
use crate::error::{Error, ErrorKind, Result};

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
    /// How a flow buffer is cut into rows that are sent or not: categories of large tables, and all else.
    layout: RowLayout,
    /// Rows of those tables, and the variables that read each.
    sparse: Vec<(Range<usize>, Vec<usize>)>,
    /// All other rows: they are sent whatever a batch has.
    always: RowSet,
    /// A buffer to be scaled before the next verb: not at once, because a sum may fail that comes after it.
    deferred: Option<(FlowsId, f64)>,
}

impl Replicated {
    /// Makes a backend one rank's of a cluster.
    pub fn new(mut inner: Box<dyn Backend>, ranks: Ranks) -> Result<Self> {
        let added = [inner.new_flows(FlowPrecision::Single)?, inner.new_flows(FlowPrecision::Double)?];
        let tables = sparse_tables(inner.circuit());
        let (mut layout, mut sparse, mut dense) = (RowLayout::default(), Vec::new(), Vec::new());
        for (param, block) in inner.circuit().param_ids().zip(inner.circuit().layout().blocks()) {
            match tables.get(&param) {
                Some(vars) => sparse.push((layout.push(block.units(), block.stats_per_row), vars.clone())),
                None => dense.push(layout.push_dense(block.stats.len())),
            }
        }
        let mut always = RowSet::none(layout.num_rows());
        dense.into_iter().for_each(|rows| always.insert_all(rows));
        let precisions =
            HashMap::from([(added[0].index, FlowPrecision::Single), (added[1].index, FlowPrecision::Double)]);
        Ok(Self { inner, ranks, precisions, added, layout, sparse, always, deferred: None })
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

    /// Rows of a flow buffer that the rows of this rank's shards add to.
    fn touched(&self, batch: &Batch, own: &Range<usize>) -> RowSet {
        let mut touched = self.always.clone();
        let num_shards = self.ranks.num_shards();
        let [first, last] = [own.start, own.end - 1].map(|shard| rows_of_shard(batch, shard, num_shards));
        for (rows, vars) in &self.sparse {
            if vars.iter().any(|&var| !mark(batch, first.start..last.end, var, rows, &mut touched)) {
                touched.insert_all(rows.clone());
            }
        }
        touched
    }

    /// The shards of this rank, which a part of a batch must be of.
    fn own_shards(&self, batch: &Batch) -> Result<Range<usize>> {
        let own = self.ranks.shards();
        match batch.part() {
            Some(part) if part.held != own || part.rows.len() != self.ranks.num_shards() => Err(Error::state(format!(
                "rows of the shards {:?} of {} where this rank has {own:?} of {}",
                part.held,
                part.rows.len(),
                self.ranks.num_shards()
            ))),
            _ => Ok(own),
        }
    }

    /// Σ over all shards of gain · flows, of the rows that some shard adds to, and what the pass found.
    fn sum_flows<T: Number + FromTensor>(
        &mut self,
        batch: &Batch,
        gain: f64,
        added: FlowsId,
    ) -> Result<(Vec<Range<usize>>, Tensor, BatchReport)> {
        let begun = Instant::now();
        let mine = self.own_flows::<T>(batch, gain, added);
        self.ranks.add_compute(begun.elapsed());
        let begun = Instant::now();
        let mut calls = self.ranks.calls();
        // A rank that failed says so before the others wait for its flows.
        let said = calls.gather(&message(mine.as_ref(), digest_of(batch)))?;
        let (sets, report) = understood(&said, self.layout.num_rows())?;
        let heard = said.iter().map(Vec::len).sum::<usize>() - said[calls.rank()].len();
        let num_shards = self.ranks.num_shards();
        let sum = sum_of_rows(&mut **calls, num_shards, &self.layout, &sets, mine?.partials)?;
        drop(calls);
        let spans = self.layout.spans(&sum.rows);
        self.ranks.add_sum(begun.elapsed(), sum.received + heard as u64);
        Ok((spans, T::into_tensor(sum.numbers), report))
    }

    /// Partial sums of this rank's shards.
    fn own_flows<T: Number + FromTensor>(&mut self, batch: &Batch, gain: f64, added: FlowsId) -> Result<OwnFlows<T>> {
        let own = self.own_shards(batch)?;
        if batch.part().is_some() {
            self.circuit().check_batch(batch)?; // nobody else has looked at these rows
        }
        let num_shards = self.ranks.num_shards();
        let rows = self.touched(batch, &own);
        let spans = self.layout.spans(&rows);
        let len = spans.iter().map(Range::len).sum();
        let mut reports = Vec::new();
        let inner = &mut self.inner;
        let mut shard_flows = |shard: usize| {
            let rows = rows_of_shard(batch, shard, num_shards);
            if rows.is_empty() {
                reports.push(BatchReport::default());
                return Ok(vec![T::default(); len]);
            }
            let report = match rows.len() == batch.num_rows() && batch.part().is_none() {
                true => inner.add_flows(batch, gain, added)?,
                false => inner.add_flows(&batch.slice(rows), gain, added)?,
            };
            reports.push(report);
            T::from_tensor(inner.take_flows(added, &spans)?)
        };
        let partials = partials(own, num_shards, &mut shard_flows)?;
        Ok(OwnFlows { partials, rows, reports })
    }

    /// Log-likelihoods of a batch, by shards of it, on every rank.
    fn score(
        &mut self,
        batch: &Batch,
        mut score: impl FnMut(&mut dyn Backend, &Batch) -> Result<Vec<f64>>,
    ) -> Result<Vec<f64>> {
        self.settle()?;
        self.circuit().check_batch(batch)?;
        if batch.part().is_some() {
            // Nobody else has these rows.
            return if batch.num_rows() == 0 { Ok(Vec::new()) } else { score(&mut *self.inner, batch) };
        }
        let mut mine = Vec::new();
        let mut failed = None;
        for shard in self.ranks.shards() {
            let rows = rows_of_shard(batch, shard, self.ranks.num_shards());
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

/// What a rank has of a sum.
struct OwnFlows<T> {
    partials: Vec<Vec<T>>,
    /// Rows of a flow buffer that they are of.
    rows: RowSet,
    /// Of each of its shards.
    reports: Vec<BatchReport>,
}

/// The variables that read each table with many categories.
fn sparse_tables(circuit: &Circuit) -> HashMap<ParamId, Vec<usize>> {
    let mut tables: HashMap<ParamId, Vec<usize>> = HashMap::new();
    for node in circuit.nodes() {
        let NodeKind::Input { var, param } = &node.kind else { continue };
        let ParamKind::Input(distribution) = &circuit.params()[param.index()].kind else { continue };
        if distribution.is_table() && circuit.layout().block(*param).stats_per_row >= MANY_CATS {
            let vars = tables.entry(*param).or_default();
            if !vars.contains(var) {
                vars.push(*var);
            }
        }
    }
    tables
}

/// Marks the categories of a variable that some rows of a batch have. Returns false if a value is missing, which adds
/// to all of them.
fn mark(batch: &Batch, rows: Range<usize>, var: usize, cats: &Range<usize>, touched: &mut RowSet) -> bool {
    let column = batch.column(var);
    let mut known = rows.map(|row| column.category(row).filter(|_| !batch.is_missing(row, var)));
    known.all(|category| match category.filter(|&category| (category as usize) < cats.len()) {
        Some(category) => {
            touched.insert(cats.start + category as usize);
            true
        }
        None => false,
    })
}

/// The rows of a batch that belong to a shard.
fn rows_of_shard(batch: &Batch, shard: usize, num_shards: usize) -> Range<usize> {
    match batch.part() {
        Some(part) => part.range(shard),
        None => shards_of(shard, num_shards, batch.num_rows()),
    }
}

/// What a rank found in its shards, and of which rows it has flows; or why it could not look.
fn message<T>(found: std::result::Result<&OwnFlows<T>, &Error>, digest: u64) -> Vec<u8> {
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
fn understood(said: &[Vec<u8>], num_rows: usize) -> Result<(Vec<RowSet>, BatchReport)> {
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

fn number(bytes: &[u8]) -> f64 {
    f64::from_le_bytes(bytes.try_into().expect("eight bytes"))
}

/// A failure of one rank, which ends all of them.
fn of_rank(rank: usize, text: &str) -> Error {
    Error::new(ErrorKind::Cluster, format!("rank {rank}: {text}"))
}

/// Tells global batches apart, as far as every rank knows them.
fn digest_of(batch: &Batch) -> u64 {
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
        if batch.part().is_none() {
            self.circuit().check_batch(batch)?; // the same on all ranks
        }
        let Some(&precision) = self.precisions.get(&into.index) else {
            return Err(Error::state("a buffer handle belongs to another backend"));
        };
        let put_off = self.deferred.take();
        if let Some((flows, factor)) = put_off.filter(|(flows, _)| *flows != into) {
            self.inner.scale(flows, factor)?;
        }
        let added = self.added[precision as usize];
        let (spans, sum, report) = match precision {
            FlowPrecision::Single => self.sum_flows::<f32>(batch, gain, added)?,
            FlowPrecision::Double => self.sum_flows::<f64>(batch, gain, added)?,
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
        if self.precisions.get(&step.flows.index) != Some(&FlowPrecision::Single) {
            return step.by_verbs(self, batch);
        }
        if batch.part().is_none() {
            self.circuit().check_batch(batch)?; // the same on all ranks
        }
        self.settle()?;
        let (spans, sum, report) = self.sum_flows::<f32>(batch, step.gain, self.added[0])?;
        self.inner.em_step_with(step, &spans, &sum)?;
        Ok(report)
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
