//! What each optimizer does to the parameters, written down from its formula.

use anemone::circuit::{Circuit, Params, Smoothing};
use anemone::data::Batch;
use anemone::optim::{AdamSpec, OptimizerSpec, Schedule};

use super::spec::{Spec, Table, scaled, zip_tables};

/// Learns like the optimizer of the same spec, in double precision.
pub struct Trainer<'a> {
    pub spec: Spec<'a>,
    optimizer: OptimizerSpec,
    /// Flows and weight of the batches since the last update.
    pending: Table,
    weight: f64,
    batches: u64,
    /// Fm, and how often it was fed.
    momentum_flows: Table,
    updates: u64,
    /// s of stepwise EM.
    running: Vec<Vec<f64>>,
    /// Adam's moments.
    first: Table,
    second: Table,
}

impl<'a> Trainer<'a> {
    pub fn new(circuit: &'a Circuit, params: &Params, optimizer: &OptimizerSpec) -> Self {
        let spec = Spec::new(circuit, params);
        let zeros = spec.zeros();
        let running = spec.row_masses(&zeros);
        Self {
            optimizer: optimizer.clone(),
            pending: zeros.clone(),
            weight: 0.0,
            batches: 0,
            momentum_flows: zeros.clone(),
            updates: 0,
            running,
            first: zeros.clone(),
            second: zeros,
            spec,
        }
    }

    pub fn learn(&mut self, batch: &Batch) {
        self.pending = zip_tables(&self.pending, &self.spec.flows(batch), |a, b| a + b);
        self.weight += batch.total_weight();
        self.batches += 1;
        if self.batches_per_update().is_some_and(|n| self.batches >= n) {
            self.update();
        }
    }

    pub fn end_epoch(&mut self) {
        self.update();
    }

    /// `None` updates at the end of an epoch only.
    fn batches_per_update(&self) -> Option<u64> {
        match &self.optimizer {
            OptimizerSpec::FullBatchEm(_) => None,
            OptimizerSpec::Anemone(o) => Some(o.batches_per_update),
            OptimizerSpec::MiniBatchEm(o) => Some(o.batches_per_update),
            OptimizerSpec::StepwiseEm(o) => Some(o.batches_per_update),
            OptimizerSpec::Adam(o) => Some(o.batches_per_update),
            OptimizerSpec::Sgd(o) => Some(o.batches_per_update),
        }
    }

    fn update(&mut self) {
        if self.weight == 0.0 {
            return;
        }
        let sum = std::mem::replace(&mut self.pending, self.spec.zeros());
        let mean = scaled(&sum, 1.0 / self.weight);
        let spec = &self.spec;
        let kept = |masses: Vec<Vec<f64>>, step: f64| -> Vec<Vec<f64>> {
            let keep = (1.0 - step) / step;
            masses.iter().map(|rows| rows.iter().map(|m| keep * m).collect()).collect()
        };
        self.spec.theta = match self.optimizer.clone() {
            OptimizerSpec::FullBatchEm(o) => spec.em_update(None, &sum, o.smoothing),
            OptimizerSpec::Anemone(o) => {
                let step = self.step(o.step);
                let retain = kept(self.spec.top_down(), step);
                let flows = self.with_momentum(&mean, o.momentum);
                self.spec.em_update(Some(&retain), &flows, o.smoothing.scaled(1.0 / step))
            }
            OptimizerSpec::MiniBatchEm(o) => {
                let step = self.step(o.step);
                let flows = self.with_momentum(&mean, o.momentum);
                let mut masses = self.spec.row_masses(&flows);
                if let Smoothing::Absolute(epsilon) = o.smoothing {
                    self.spec.add_to_weights(epsilon, &mut masses);
                }
                let retain = kept(masses, step);
                self.spec.em_update(Some(&retain), &flows, o.smoothing)
            }
            OptimizerSpec::StepwiseEm(o) => {
                let step = self.step(o.step);
                let theta =
                    spec.em_update(Some(&kept(self.running.clone(), step)), &mean, o.smoothing.scaled(1.0 / step));
                let masses = spec.row_masses(&mean);
                for (s, m) in self.running.iter_mut().flatten().zip(masses.into_iter().flatten()) {
                    *s = (1.0 - step) * *s + step * m;
                }
                theta
            }
            OptimizerSpec::Adam(o) => {
                let gradient = spec.gradient(&mean);
                let moved = self.adam_move(&gradient, &o);
                self.moved_by(&moved)
            }
            OptimizerSpec::Sgd(o) => self.moved_by(&scaled(&spec.gradient(&mean), self.step(o.rate))),
        };
        (self.weight, self.batches) = (0.0, 0);
        self.updates += 1;
    }

    fn step(&self, schedule: Schedule) -> f64 {
        schedule.at(self.updates)
    }

    /// Fm ← β·Fm + (1−β)·F, read as Fm/(1−β^(T+1)).
    fn with_momentum(&mut self, mean: &Table, beta: f64) -> Table {
        self.momentum_flows = zip_tables(&self.momentum_flows, mean, |m, f| beta * m + (1.0 - beta) * f);
        scaled(&self.momentum_flows, 1.0 / (1.0 - beta.powi(self.updates as i32 + 1)))
    }

    fn adam_move(&mut self, gradient: &Table, o: &AdamSpec) -> Table {
        let t = self.updates as i32 + 1;
        self.first = zip_tables(&self.first, gradient, |m, g| o.beta1 * m + (1.0 - o.beta1) * g);
        self.second = zip_tables(&self.second, gradient, |v, g| o.beta2 * v + (1.0 - o.beta2) * g * g);
        let rate = self.step(o.rate);
        zip_tables(&self.first, &self.second, |m, v| {
            rate * (m / (1.0 - o.beta1.powi(t))) / ((v / (1.0 - o.beta2.powi(t))).sqrt() + o.epsilon)
        })
    }

    /// θ·exp(move), renormalised.
    fn moved_by(&self, moved: &Table) -> Table {
        let theta = zip_tables(&self.spec.theta, moved, |t, m| t * m.exp());
        Spec { circuit: self.spec.circuit, theta }.renormalized()
    }
}
