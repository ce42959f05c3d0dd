//! Several GPUs of one machine as one: every device has the whole circuit and a part of each batch.
//!
//! Flows of a batch are summed over the devices, to the same bits on each; everything else is done by all of them
//! alike. So all have the same parameters at any time, and what is read is read from the first.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::nccl::Communicator;
use super::{CudaBackend, CudaOptions, NEXT_ID};
use crate::backend::{
    AdamStep, Backend, BatchReport, DeviceSums, EmStep, EmUpdate, FlowPrecision, FlowsId, ParamRowsId, PhaseSeconds,
    Retain, Tensor,
};
use crate::circuit::{Circuit, Flows, Params};
use crate::data::Batch;
use crate::error::{Error, Result};

/// A circuit on several GPUs.
pub struct CudaGroup {
    /// Tells this group's handles from those of others.
    id: u32,
    members: Vec<Member>,
    /// How precisely each flow buffer counts.
    precisions: Vec<FlowPrecision>,
    num_rows_buffers: usize,
}

/// A device of a group. Buffers have the same index on all members.
struct Member {
    // Before the backend, whose context it lives in.
    communicator: Communicator,
    backend: CudaBackend,
    /// The first two flow buffers: what a batch adds, single and double, before it is summed over the devices.
    added: [FlowsId; 2],
}

/// Flow buffers of a member that nobody outside knows of.
const OWN_FLOWS: u32 = 2;

impl Member {
    fn flows(&self, index: u32) -> FlowsId {
        FlowsId { backend: self.backend.id, index: index + OWN_FLOWS }
    }

    fn rows(&self, index: u32) -> ParamRowsId {
        ParamRowsId { backend: self.backend.id, index }
    }

    /// The flows of a part of a batch, alone.
    fn add_part(&mut self, part: &Batch, gain: f64, precision: FlowPrecision) -> Result<BatchReport> {
        let added = self.added[precision as usize];
        self.backend.scale(added, 0.0)?;
        match part.num_rows() {
            0 => Ok(BatchReport::default()),
            _ => self.backend.add_flows(part, gain, added),
        }
    }

    /// Sums them over all devices and adds them to a buffer.
    fn share(&mut self, precision: FlowPrecision, into: FlowsId) -> Result<()> {
        let added = self.added[precision as usize];
        let (flows, len) = (self.backend.flow_ptr(added)?, self.backend.program.params.stats_len);
        self.communicator.all_reduce(flows.ptr, precision, len, &self.backend.device.compute)?;
        self.backend.add_scaled(added, 1.0, into)
    }
}

impl CudaGroup {
    /// Puts a circuit on several devices. `options.device` does not matter.
    pub fn new(circuit: &Arc<Circuit>, params: &Params, options: &CudaOptions, devices: &[usize]) -> Result<Self> {
        if devices.is_empty() || (1..devices.len()).any(|i| devices[..i].contains(&devices[i])) {
            return Err(Error::option(format!("devices {devices:?}: name at least one, and none twice")));
        }
        let backends = devices.iter().map(|&device| {
            let mut backend = CudaBackend::new(circuit.clone(), params, &CudaOptions { device, ..options.clone() })?;
            let added = [backend.new_flows(FlowPrecision::Single)?, backend.new_flows(FlowPrecision::Double)?];
            Ok((backend, added))
        });
        let backends = backends.collect::<Result<Vec<_>>>()?;
        let members = Communicator::join(devices)?.into_iter().zip(backends);
        let members = members.map(|(communicator, (backend, added))| Member { communicator, backend, added });
        Ok(Self {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            members: members.collect(),
            precisions: Vec::new(),
            num_rows_buffers: 0,
        })
    }

    /// The devices: their numbers and what their driver calls them.
    pub fn device_name(&self) -> String {
        let names: Vec<String> = self.members.iter().map(|member| member.backend.device_name()).collect();
        names.join(", ")
    }

    /// The same on all devices, one after the other: launches, which do not wait.
    fn each(&mut self, act: impl Fn(&mut Member) -> Result<()>) -> Result<()> {
        self.members.iter_mut().try_for_each(act)
    }

    /// The same on all devices at the same time, a part of the batch on each.
    fn each_with_part<T: Send>(
        &mut self,
        batch: &Batch,
        act: impl Fn(&mut Member, &Batch) -> Result<T> + Sync,
    ) -> Result<Vec<T>> {
        let most = batch.num_rows().div_ceil(self.members.len());
        let act = &act;
        std::thread::scope(|scope| {
            let threads: Vec<_> = (self.members.iter_mut().enumerate())
                .map(|(i, member)| {
                    let rows = (i * most).min(batch.num_rows())..((i + 1) * most).min(batch.num_rows());
                    scope.spawn(move || act(member, &batch.slice(rows)))
                })
                .collect();
            // All are joined before the first error is told.
            let found: Vec<_> = threads.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
            found.into_iter().map(|result| result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
        })
    }

    /// Log-likelihoods of a batch, a part of it on each device.
    fn score(
        &mut self,
        batch: &Batch,
        score: impl Fn(&mut Member, &Batch) -> Result<Vec<f64>> + Sync,
    ) -> Result<Vec<f64>> {
        self.circuit().check_batch(batch)?;
        let parts = self.each_with_part(batch, |member, part| match part.num_rows() {
            0 => Ok(Vec::new()),
            _ => score(member, part),
        });
        Ok(parts?.concat())
    }

    fn first(&self) -> &Member {
        &self.members[0]
    }

    fn flows_at(&self, id: FlowsId) -> Result<u32> {
        Ok(id.index_in(self.id, self.precisions.len())? as u32)
    }

    fn rows_at(&self, id: ParamRowsId) -> Result<u32> {
        Ok(id.index_in(self.id, self.num_rows_buffers)? as u32)
    }
}

impl Backend for CudaGroup {
    fn circuit(&self) -> &Arc<Circuit> {
        self.first().backend.circuit()
    }

    fn phase_seconds(&self) -> PhaseSeconds {
        self.first().backend.phase_seconds()
    }

    fn device_name(&self) -> String {
        Self::device_name(self)
    }

    fn device_sums(&mut self) -> Result<&mut dyn DeviceSums> {
        Err(Error::unsupported("it has several GPUs, and sums over ranks need one each"))
    }

    fn params(&self) -> Result<Params> {
        self.first().backend.params()
    }

    fn set_params(&mut self, params: &Params) -> Result<()> {
        self.each(|member| member.backend.set_params(params))
    }

    fn average(&mut self, weight: f64) -> Result<()> {
        self.each(|member| member.backend.average(weight))
    }

    fn averaged_params(&self) -> Result<Params> {
        self.first().backend.averaged_params()
    }

    fn set_average(&mut self, average: &Params) -> Result<()> {
        self.each(|member| member.backend.set_average(average))
    }

    fn log_likelihoods(&mut self, batch: &Batch) -> Result<Vec<f64>> {
        self.score(batch, |member, part| member.backend.log_likelihoods(part))
    }

    fn averaged_log_likelihoods(&mut self, batch: &Batch) -> Result<Vec<f64>> {
        self.score(batch, |member, part| member.backend.averaged_log_likelihoods(part))
    }

    fn add_flows(&mut self, batch: &Batch, gain: f64, into: FlowsId) -> Result<BatchReport> {
        self.circuit().check_batch(batch)?;
        let into = self.flows_at(into)?;
        let precision = self.precisions[into as usize];
        let reports = self.each_with_part(batch, |member, part| member.add_part(part, gain, precision))?;
        // Only now that all have flows: a device that waits for one that failed would wait for ever.
        self.each_with_part(batch, |member, _| member.share(precision, member.flows(into)))?;
        let mut report = BatchReport::default();
        reports.iter().for_each(|part| report.add(part));
        Ok(report)
    }

    fn em_step(&mut self, batch: &Batch, step: &EmStep) -> Result<BatchReport> {
        self.circuit().check_batch(batch)?;
        self.flows_at(step.flows)?;
        self.rows_at(step.masses)?;
        self.rows_at(step.spare)?;
        if step.masses == step.spare {
            return Err(Error::state("an EM step needs a spare row buffer besides the masses"));
        }
        step.by_verbs(self, batch)
    }

    fn top_down(&mut self, into: ParamRowsId) -> Result<()> {
        let into = self.rows_at(into)?;
        self.each(|member| member.backend.top_down(member.rows(into)))
    }

    fn row_masses(&mut self, flows: FlowsId, gain: f64, into: ParamRowsId) -> Result<()> {
        let (flows, into) = (self.flows_at(flows)?, self.rows_at(into)?);
        self.each(|member| member.backend.row_masses(member.flows(flows), gain, member.rows(into)))
    }

    fn em_update(&mut self, update: &EmUpdate) -> Result<()> {
        let flows = self.flows_at(update.flows)?;
        for retain in [update.retain, update.retain_inputs].into_iter().flatten() {
            self.rows_at(retain.rows)?;
            retain.at_least.map(|rows| self.rows_at(rows)).transpose()?;
        }
        self.each(|member| {
            let rows = |id: ParamRowsId| member.rows(id.index);
            let of_member =
                |retain: Retain| Retain { rows: rows(retain.rows), at_least: retain.at_least.map(rows), ..retain };
            let (retain, retain_inputs) = (update.retain.map(of_member), update.retain_inputs.map(of_member));
            member.backend.em_update(&EmUpdate { retain, retain_inputs, flows: member.flows(flows), ..*update })
        })
    }

    fn gradient(&mut self, flows: FlowsId, gain: f64, top_down: ParamRowsId) -> Result<()> {
        let (flows, rows) = (self.flows_at(flows)?, self.rows_at(top_down)?);
        self.each(|member| member.backend.gradient(member.flows(flows), gain, member.rows(rows)))
    }

    fn adam_update(&mut self, gradient: FlowsId, first: FlowsId, second: FlowsId, step: &AdamStep) -> Result<()> {
        let (gradient, first, second) = (self.flows_at(gradient)?, self.flows_at(first)?, self.flows_at(second)?);
        self.each(|member| {
            let (gradient, first, second) = (member.flows(gradient), member.flows(first), member.flows(second));
            member.backend.adam_update(gradient, first, second, step)
        })
    }

    fn ascend(&mut self, gradient: FlowsId, rate: f64) -> Result<()> {
        let gradient = self.flows_at(gradient)?;
        self.each(|member| member.backend.ascend(member.flows(gradient), rate))
    }

    fn renormalize(&mut self) -> Result<()> {
        self.each(|member| member.backend.renormalize())
    }

    fn new_flows(&mut self, precision: FlowPrecision) -> Result<FlowsId> {
        self.each(|member| member.backend.new_flows(precision).map(drop))?;
        self.precisions.push(precision);
        Ok(FlowsId { backend: self.id, index: (self.precisions.len() - 1) as u32 })
    }

    fn new_rows(&mut self) -> Result<ParamRowsId> {
        self.each(|member| member.backend.new_rows().map(drop))?;
        self.num_rows_buffers += 1;
        Ok(ParamRowsId { backend: self.id, index: (self.num_rows_buffers - 1) as u32 })
    }

    fn scale(&mut self, flows: FlowsId, factor: f64) -> Result<()> {
        let flows = self.flows_at(flows)?;
        self.each(|member| member.backend.scale(member.flows(flows), factor))
    }

    fn add_scaled(&mut self, flows: FlowsId, gain: f64, into: FlowsId) -> Result<()> {
        let (flows, into) = (self.flows_at(flows)?, self.flows_at(into)?);
        self.each(|member| member.backend.add_scaled(member.flows(flows), gain, member.flows(into)))
    }

    fn blend_rows(&mut self, into: ParamRowsId, keep: f64, rows: ParamRowsId, gain: f64) -> Result<()> {
        let (into, rows) = (self.rows_at(into)?, self.rows_at(rows)?);
        self.each(|member| member.backend.blend_rows(member.rows(into), keep, member.rows(rows), gain))
    }

    fn flows(&self, flows: FlowsId) -> Result<Flows> {
        self.first().backend.flows(self.first().flows(self.flows_at(flows)?))
    }

    fn rows(&self, rows: ParamRowsId) -> Result<Vec<f64>> {
        self.first().backend.rows(self.first().rows(self.rows_at(rows)?))
    }

    fn save_flows(&self, flows: FlowsId) -> Result<Tensor> {
        self.first().backend.save_flows(self.first().flows(self.flows_at(flows)?))
    }

    fn load_flows(&mut self, flows: FlowsId, saved: &Tensor) -> Result<()> {
        let flows = self.flows_at(flows)?;
        self.each(|member| member.backend.load_flows(member.flows(flows), saved))
    }

    fn save_rows(&self, rows: ParamRowsId) -> Result<Tensor> {
        self.first().backend.save_rows(self.first().rows(self.rows_at(rows)?))
    }

    fn load_rows(&mut self, rows: ParamRowsId, saved: &Tensor) -> Result<()> {
        let rows = self.rows_at(rows)?;
        self.each(|member| member.backend.load_rows(member.rows(rows), saved))
    }
}
