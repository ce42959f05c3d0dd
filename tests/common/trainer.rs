//! What each optimizer does to the parameters, written down from its formula.

use anemone::backend::RetainSource;
use anemone::circuit::{Circuit, ParamKind, Params, Smoothing};
use anemone::data::Batch;
use anemone::optim::{AdamSpec, Averaging, OptimizerSpec, Schedule};

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
    /// θ̄, and the update at which it was last averaged.
    pub average: Table,
    averaged: u64,
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
            average: spec.theta.clone(),
            averaged: 0,
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
                let flows = self.with_momentum(&mean, o.momentum);
                let masses = self.retained([o.retain, o.retain_inputs], &flows, 0.0);
                self.spec.em_update(Some(&kept(masses, step)), &flows, o.smoothing.scaled(1.0 / step))
            }
            OptimizerSpec::MiniBatchEm(o) => {
                let step = self.step(o.step);
                let flows = self.with_momentum(&mean, o.momentum);
                let epsilon = if let Smoothing::Absolute(epsilon) = o.smoothing { epsilon } else { 0.0 };
                let masses = self.retained([o.retain, o.retain_inputs], &flows, epsilon);
                self.spec.em_update(Some(&kept(masses, step)), &flows, o.smoothing)
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
        self.add_to_average();
    }

    /// The mass that every param row retains, of sums and of inputs, with `epsilon` more for those that are smoothed.
    fn retained(&self, [sums, inputs]: [RetainSource; 2], flows: &Table, epsilon: f64) -> Vec<Vec<f64>> {
        let (top_down, mut masses) = (self.spec.top_down(), self.spec.row_masses(flows));
        for (at, block) in self.spec.circuit.params().iter().enumerate() {
            let source = if let ParamKind::Sum { .. } = block.kind { sums } else { inputs };
            for (mass, &td) in masses[at].iter_mut().zip(&top_down[at]) {
                *mass = match source {
                    RetainSource::TopDown => td,
                    RetainSource::Flows => *mass,
                    RetainSource::Larger => mass.max(td),
                };
            }
        }
        self.spec.add_to_weights(epsilon, &mut masses);
        masses
    }

    /// θ̄ = Σ over averages of w·(mean parameters), which w makes the last 1/(window + 1) of the way.
    fn add_to_average(&mut self) {
        let Averaging::On(o) = self.optimizer.average() else { return };
        let (now, before) = (self.updates as f64, self.averaged as f64);
        let is_due = now - before >= (now / 32.0).floor().clamp(1.0, o.every as f64);
        if is_due {
            let weight = 1.0 - (before / now).powf(o.window + 1.0);
            let weight = weight.max((now - before) / o.cap as f64).min(1.0);
            self.average = self.spec.mixed(&self.average, weight);
            self.averaged = self.updates;
        }
    }

    fn step(&self, schedule: Schedule) -> f64 {
        schedule.at(self.updates, self.weight * self.spec.circuit.counts_per_row())
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
