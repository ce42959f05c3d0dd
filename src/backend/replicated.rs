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
//! Where every rank has a GPU of its own, flows are summed between the GPUs (`device_sums`): the same additions, of
//! whole buffers. Otherwise they go by way of the host.
//!
//! Ranks call the verbs that are collective (`add_flows`, `em_step`, both likelihoods) in the same order; all others
//! are each rank's own, and so are likelihoods of a part of a batch. A collective verb that fails because a rank is
//! gone has touched nothing, so it can be made again.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use super::device_sums::{Meeting, confirm, meet};
use super::said::{OwnFlows, digest_of, message, number, of_rank, understood};
use super::{
    AdamStep, Backend, BatchReport, ClusterSums, EmStep, EmUpdate, Evaluator, FlowPrecision, FlowsId, ParamRowsId,
    Patience, PhaseSeconds, Tensor,
};
use crate::circuit::{Circuit, Flows, NodeKind, ParamId, ParamKind, Params};
use crate::cluster::rows::{RowLayout, RowSet};
use crate::cluster::shard_sum::{Number, Step, own_steps, partials, subtrees, sum_of_rows};
use crate::cluster::{Ranks, shards_of};
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
    /// What the rows of one shard add, single and double; zeros between two uses where sums go by way of the host.
    added: [FlowsId; 2],
    /// By which way flows are to be summed.
    sums: ClusterSums,
    /// What ranks have agreed on about that, once they have.
    meeting: Option<Meeting>,
    /// Where shards are added up on the device, single and double; `added` is the first of each.
    buffers: [Vec<FlowsId>; 2],
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
    /// Makes a backend one rank's of a cluster. Flows are summed between GPUs where every rank has one.
    pub fn new(inner: Box<dyn Backend>, ranks: Ranks) -> Result<Self> {
        Self::with_sums(inner, ranks, ClusterSums::default())
    }

    /// The same with a say in how flows are summed, which must be the same on every rank.
    pub fn with_sums(mut inner: Box<dyn Backend>, ranks: Ranks, sums: ClusterSums) -> Result<Self> {
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
        let buffers = added.map(|added| vec![added]);
        let (meeting, deferred) = (None, None);
        Ok(Self { inner, ranks, precisions, added, sums, meeting, buffers, layout, sparse, always, deferred })
    }

    /// Returns true if flows are summed between devices. Ranks agree on it before their first sum, and again when one
    /// of them was lost.
    fn is_on_devices(&mut self) -> Result<bool> {
        let own = self.ranks.shards();
        let mut calls = self.ranks.calls();
        if let Some(meeting) = self.meeting.as_ref().filter(|meeting| meeting.num_ranks == calls.num_ranks()) {
            return Ok(meeting.on_devices);
        }
        self.meeting = None;
        // Buffers of precisions that an optimizer has: a device that has no room for them cannot take part.
        let used =
            |precision| self.precisions.iter().any(|(index, of)| *of == precision && *index > self.added[1].index);
        let used = [FlowPrecision::Single, FlowPrecision::Double].map(|precision| (precision, used(precision)));
        let count = own_steps(own, self.ranks.num_shards()).1;
        let buffers = &mut self.buffers;
        let meeting = meet(&mut *self.inner, &mut **calls, self.sums, |inner| {
            let mut used = used.into_iter().filter(|(_, is_used)| *is_used);
            used.try_for_each(|(precision, _)| grow(inner, &mut buffers[precision as usize], count, precision))
        })?;
        drop(calls);
        if !meeting.on_devices && self.inner.device_sums().is_ok() {
            self.added.iter().try_for_each(|added| self.inner.scale(*added, 0.0))?; // they may hold sums of before
        }
        Ok(self.meeting.insert(meeting).on_devices)
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

    /// Σ over all shards of gain · flows, and what the pass found.
    fn sum_flows(&mut self, batch: &Batch, gain: f64, precision: FlowPrecision) -> Result<(Sum, BatchReport)> {
        if self.is_on_devices()? {
            return self.sum_on_devices(batch, gain, precision);
        }
        let added = self.added[precision as usize];
        match precision {
            FlowPrecision::Single => self.sum_on_host::<f32>(batch, gain, added),
            FlowPrecision::Double => self.sum_on_host::<f64>(batch, gain, added),
        }
    }

    /// By way of the host: of the rows that some shard adds to.
    fn sum_on_host<T: Number + FromTensor>(
        &mut self,
        batch: &Batch,
        gain: f64,
        added: FlowsId,
    ) -> Result<(Sum, BatchReport)> {
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
        Ok((Sum::OnHost(spans, T::into_tensor(sum.numbers)), report))
    }

    /// Partial sums of this rank's shards.
    fn own_flows<T: Number + FromTensor>(
        &mut self,
        batch: &Batch,
        gain: f64,
        added: FlowsId,
    ) -> Result<OwnFlows<Vec<Vec<T>>>> {
        let own = self.checked_shards(batch)?;
        let num_shards = self.ranks.num_shards();
        let rows = self.touched(batch, &own);
        let spans = self.layout.spans(&rows);
        let len = spans.iter().map(Range::len).sum();
        let mut reports = Vec::new();
        let inner = &mut *self.inner;
        let mut shard_flows = |shard: usize| {
            let report = add_shard(inner, batch, (shard, num_shards), gain, added)?;
            reports.push(report.unwrap_or_default());
            match report {
                Some(_) => T::from_tensor(inner.take_flows(added, &spans)?),
                None => Ok(vec![T::default(); len]),
            }
        };
        let partials = partials(own, num_shards, &mut shard_flows)?;
        Ok(OwnFlows { partials, rows, reports })
    }

    /// Between devices: of whole buffers.
    fn sum_on_devices(&mut self, batch: &Batch, gain: f64, precision: FlowPrecision) -> Result<(Sum, BatchReport)> {
        let begun = Instant::now();
        let mine = self.own_flows_on_device(batch, gain, precision);
        self.ranks.add_compute(begun.elapsed());
        let begun = Instant::now();
        let mut calls = self.ranks.calls();
        // As by way of the host: nobody waits for a rank that failed.
        let said = calls.gather(&message(mine.as_ref(), digest_of(batch)))?;
        let (_, report) = understood(&said, 0)?;
        let partials = mine?.partials;
        let mut received = (said.iter().map(Vec::len).sum::<usize>() - said[calls.rank()].len()) as u64;
        if calls.num_ranks() > 1 {
            let num_shards = self.ranks.num_shards();
            let device = self.inner.device_sums();
            let done = device.and_then(|d| d.sum(&partials, num_shards, &Patience::new(&|| calls.lost())));
            // A rank that is gone, or has failed, must not leave others a step ahead.
            received += confirm(&mut **calls, done)?;
        }
        drop(calls);
        self.ranks.add_sum(begun.elapsed(), received);
        Ok((Sum::OnDevice(partials[0]), report))
    }

    /// Partial sums of this rank's shards, added up where they are.
    fn own_flows_on_device(
        &mut self,
        batch: &Batch,
        gain: f64,
        precision: FlowPrecision,
    ) -> Result<OwnFlows<Vec<FlowsId>>> {
        let own = self.checked_shards(batch)?;
        let num_shards = self.ranks.num_shards();
        let (steps, count) = own_steps(own.clone(), num_shards);
        let buffers = &mut self.buffers[precision as usize];
        grow(&mut *self.inner, buffers, count, precision)?;
        let mut reports = Vec::new();
        for step in steps {
            match step {
                Step::Shard { shard, into } => {
                    self.inner.scale(buffers[into], 0.0)?;
                    let report = add_shard(&mut *self.inner, batch, (shard, num_shards), gain, buffers[into])?;
                    reports.push(report.unwrap_or_default());
                }
                Step::Add { from, into } => self.inner.add_scaled(buffers[from], 1.0, buffers[into])?,
            }
        }
        let partials = buffers[..subtrees(own, num_shards).len()].to_vec();
        Ok(OwnFlows { partials, rows: RowSet::none(0), reports })
    }

    /// The shards of this rank, and no surprises in their rows.
    fn checked_shards(&self, batch: &Batch) -> Result<Range<usize>> {
        let own = self.own_shards(batch)?;
        if batch.part().is_some() {
            self.circuit().check_batch(batch)?; // nobody else has looked at these rows
        }
        Ok(own)
    }

    /// Adds a sum to a buffer.
    fn put(&mut self, sum: &Sum, into: FlowsId) -> Result<()> {
        match sum {
            Sum::OnHost(spans, numbers) => self.inner.put_flows(into, spans, numbers),
            Sum::OnDevice(sum) => self.inner.add_scaled(*sum, 1.0, into),
        }
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

/// A sum over all shards.
enum Sum {
    /// Numbers of some stretches of a flow buffer, one after the other.
    OnHost(Vec<Range<usize>>, Tensor),
    /// A whole buffer of the inner backend's; until the next sum.
    OnDevice(FlowsId),
}

/// Adds the flows of a shard's rows to a buffer, if it has any.
fn add_shard(
    inner: &mut dyn Backend,
    batch: &Batch,
    (shard, num_shards): (usize, usize),
    gain: f64,
    into: FlowsId,
) -> Result<Option<BatchReport>> {
    let rows = rows_of_shard(batch, shard, num_shards);
    match rows.len() {
        0 => Ok(None),
        all if all == batch.num_rows() && batch.part().is_none() => inner.add_flows(batch, gain, into).map(Some),
        _ => inner.add_flows(&batch.slice(rows), gain, into).map(Some),
    }
}

/// Makes buffers until there are so many.
fn grow(inner: &mut dyn Backend, have: &mut Vec<FlowsId>, count: usize, precision: FlowPrecision) -> Result<()> {
    while have.len() < count {
        have.push(inner.new_flows(precision)?);
    }
    Ok(())
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

    fn device_name(&self) -> String {
        self.inner.device_name()
    }

    fn meet(&mut self) -> Result<Option<String>> {
        self.is_on_devices()?;
        Ok(self.meeting.as_ref().and_then(|meeting| meeting.sentence.clone()))
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
        let (sum, report) = self.sum_flows(batch, gain, precision)?;
        if let Some((flows, factor)) = put_off.filter(|(flows, _)| *flows == into) {
            self.inner.scale(flows, factor)?;
        }
        self.put(&sum, into)?;
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
        let (sum, report) = self.sum_flows(batch, step.gain, FlowPrecision::Single)?;
        match &sum {
            Sum::OnHost(spans, numbers) => self.inner.em_step_with(step, spans, numbers)?,
            Sum::OnDevice(_) => {
                self.inner.scale(step.flows, step.keep)?;
                self.put(&sum, step.flows)?;
                step.update_by_verbs(&mut *self.inner)?;
            }
        }
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
