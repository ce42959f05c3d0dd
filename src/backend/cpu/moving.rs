//! Numbers that learning moves: parameters, their average, and flow buffers.
//!
//! Rows of large tables may lag in them (`lazy`), so no number can be read as it is. [`Moving::settled`] brings all
//! rows up to date and then hands out everything; copies are up to date as well. Who can work with rows that lag asks
//! for them by name ([`Moving::unsettled`]), and has their history beside them.

use super::buffers::FlowBuffer;
use super::fixed::Fixed;
use super::large_pages;
use super::large_tables::{Lagging, settle};
use super::lazy::LazyTable;
use super::shared::SharedSlice;
use super::workers::Workers;
use crate::backend::FlowPrecision;
use crate::circuit::Params;

/// What changes from batch to batch; `Fixed` is what does not.
pub(super) struct Moving {
    /// The parameters, in the circuit's layout.
    theta: Vec<f32>,
    /// θ̄, once there has been an average. Rows lag as those of θ do.
    average: Option<Vec<f32>>,
    flows: Vec<FlowBuffer>,
    tables: Vec<LazyTable>,
    /// The flow buffer in which rows lag too: the momentum of the updates that they have missed. `None`: none lags.
    momentum: Option<usize>,
}

/// All numbers, every row of them up to date.
pub(super) struct Settled<'a> {
    pub theta: &'a mut [f32],
    pub average: &'a mut Option<Vec<f32>>,
    pub flows: &'a mut [FlowBuffer],
}

/// All numbers as they are, and what rows of large tables have missed.
pub(super) struct Unsettled<'a> {
    pub theta: &'a mut [f32],
    pub average: Option<&'a mut [f32]>,
    pub flows: &'a mut [FlowBuffer],
    pub tables: &'a mut [LazyTable],
    pub momentum: Option<usize>,
}

impl Moving {
    pub fn new(fixed: &Fixed, params: &Params) -> Self {
        Self {
            theta: large_pages::copied(params.values()),
            average: None,
            flows: Vec::new(),
            tables: fixed.lazy_tables(),
            momentum: None,
        }
    }

    /// Adds a flow buffer, and tells which it is.
    pub fn add_flows(&mut self, flows: FlowBuffer) -> usize {
        self.flows.push(flows);
        self.flows.len() - 1
    }

    pub fn num_flows(&self) -> usize {
        self.flows.len()
    }

    pub fn precision_of(&self, flows: usize) -> FlowPrecision {
        match self.flows[flows] {
            FlowBuffer::Single(_) => FlowPrecision::Single,
            FlowBuffer::Double(_) => FlowPrecision::Double,
        }
    }

    pub fn has_large_tables(&self) -> bool {
        !self.tables.is_empty()
    }

    /// Brings all rows of large tables up to date.
    pub fn settled(&mut self, fixed: &Fixed, workers: &Workers) -> Settled<'_> {
        if let Some(at) = self.momentum.take()
            && let FlowBuffer::Single(flows) = &mut self.flows[at]
        {
            let average = self.average.as_deref_mut().map(SharedSlice::new);
            let (theta, flows) = (SharedSlice::new(&mut self.theta), SharedSlice::new(flows));
            settle(fixed, workers, Lagging { theta, flows, average }, &mut self.tables);
        }
        Settled { theta: &mut self.theta, average: &mut self.average, flows: &mut self.flows }
    }

    /// One flow buffer, up to date: rows lag in one at the most.
    pub fn flows_of(&mut self, at: usize, fixed: &Fixed, workers: &Workers) -> &mut FlowBuffer {
        if self.momentum == Some(at) {
            self.settled(fixed, workers);
        }
        &mut self.flows[at]
    }

    /// From now on rows may lag, in this flow buffer and no other.
    pub fn let_lag_in(&mut self, flows: usize, fixed: &Fixed, workers: &Workers) {
        if self.momentum != Some(flows) {
            self.settled(fixed, workers);
            self.momentum = Some(flows);
        }
    }

    /// Everything, for who brings those rows up to date that are read.
    pub fn unsettled(&mut self) -> Unsettled<'_> {
        Unsettled {
            theta: &mut self.theta,
            average: self.average.as_deref_mut(),
            flows: &mut self.flows,
            tables: &mut self.tables,
            momentum: self.momentum,
        }
    }

    /// The parameters, for who reads weights only: rows of tables may lag.
    pub fn weights(&self) -> &[f32] {
        &self.theta
    }

    /// A copy of the parameters, up to date.
    pub fn copy_of_theta(&self, fixed: &Fixed, workers: &Workers) -> Vec<f32> {
        let mut theta = self.theta.clone();
        self.settle_copies(fixed, workers, &mut theta, None);
        theta
    }

    /// A copy of the averaged parameters, up to date; `None` where there are none.
    pub fn copy_of_average(&self, fixed: &Fixed, workers: &Workers) -> Option<Vec<f32>> {
        let mut average = self.average.clone()?;
        if self.momentum.is_some() {
            self.settle_copies(fixed, workers, &mut self.theta.clone(), Some(&mut average));
        }
        Some(average)
    }

    /// A copy of a flow buffer, up to date.
    pub fn copy_of_flows(&self, at: usize, fixed: &Fixed, workers: &Workers) -> FlowBuffer {
        if self.momentum != Some(at) {
            return self.flows[at].clone();
        }
        let momentum = self.settle_copies(fixed, workers, &mut self.theta.clone(), None);
        momentum.expect("rows lag in this buffer")
    }

    /// Brings copies up to date, and with them one of the momentum, if rows lag.
    fn settle_copies(
        &self,
        fixed: &Fixed,
        workers: &Workers,
        theta: &mut [f32],
        average: Option<&mut [f32]>,
    ) -> Option<FlowBuffer> {
        let mut momentum = self.flows[self.momentum?].clone();
        if let FlowBuffer::Single(flows) = &mut momentum {
            let average = average.map(SharedSlice::new);
            let lagging = Lagging { theta: SharedSlice::new(theta), flows: SharedSlice::new(flows), average };
            settle(fixed, workers, lagging, &mut self.tables.clone());
        }
        Some(momentum)
    }
}
