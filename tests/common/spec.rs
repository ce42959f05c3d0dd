//! The specification: what every quantity *is*, unit by unit, in double precision and as slowly as the definition.
//!
//! Nothing here is shared with a backend but the circuit itself and, for inputs that are not tables of probabilities,
//! the distribution's own formulas. Nodes are listed children first, so that going down the list is the recursion
//! towards the root, and going up it the recursion towards the leaves.

use anemone::circuit::{
    Circuit, Distribution, Factor, Flows, NodeKind, ParamId, ParamKind, Params, Smoothing, SumGroup,
};
use anemone::data::Batch;

/// One number per parameter or statistic: block, row, place in the row.
pub type Table = Vec<Vec<Vec<f64>>>;

/// A circuit with parameters, normalised or not.
#[derive(Clone)]
pub struct Spec<'a> {
    pub circuit: &'a Circuit,
    /// θ: probabilities of tables, weights of sums, the parameters of other inputs.
    pub theta: Table,
}

/// A unit of a node.
type Unit = (usize, usize);

impl<'a> Spec<'a> {
    pub fn new(circuit: &'a Circuit, params: &Params) -> Self {
        Self { circuit, theta: param_table(circuit, params) }
    }

    /// log p_n(x) of every unit of every node.
    pub fn log_values(&self, batch: &Batch, row: usize) -> Vec<Vec<f64>> {
        let mut values: Vec<Vec<f64>> = Vec::new();
        for node in self.circuit.nodes() {
            let unit_value = |unit: usize| match &node.kind {
                NodeKind::Input { var, param } => self.log_input(*param, unit, batch, row, *var),
                NodeKind::Product { factors } => factors_of(factors, unit).map(|(n, u)| values[n][u]).sum(),
                NodeKind::Sum { groups } => {
                    let (param, r, children) = self.sum_unit(groups, unit);
                    let weights = &self.theta[param.index()][r];
                    log_sum_exp(children.iter().zip(weights).map(|(&(n, u), w)| w.ln() + values[n][u]))
                }
            };
            let units = (0..node.units).map(unit_value).collect();
            values.push(units);
        }
        values
    }

    fn log_input(&self, param: ParamId, unit: usize, batch: &Batch, row: usize, var: usize) -> f64 {
        if batch.is_missing(row, var) {
            return 0.0;
        }
        let theta = &self.theta[param.index()][unit];
        let (distribution, value) = (self.distribution(param), batch.column(var).real(row));
        if distribution.is_table() { theta[value as usize].ln() } else { distribution.log_prob(&narrow(theta), value) }
    }

    /// log p(x) of every row.
    pub fn log_likelihoods(&self, batch: &Batch) -> Vec<f64> {
        let root = self.circuit.root().index();
        (0..batch.num_rows()).map(|row| self.log_values(batch, row)[root][0]).collect()
    }

    /// Σ over rows of weight·∂log p̃(x)/∂φ. A row of probability zero has no flow.
    pub fn flows(&self, batch: &Batch) -> Table {
        let mut flows = self.zeros();
        for row in 0..batch.num_rows() {
            let weight = f64::from(batch.weight(row));
            let values = self.log_values(batch, row);
            if weight > 0.0 && values[self.circuit.root().index()][0] > f64::NEG_INFINITY {
                self.add_flows(batch, row, &values, weight, &mut flows);
            }
        }
        flows
    }

    /// Flows divided by the weight of the batch.
    pub fn mean_flows(&self, batch: &Batch) -> Table {
        scaled(&self.flows(batch), 1.0 / batch.total_weight())
    }

    /// F(n) of every unit, times `weight`; flows of parameters are added to `flows`.
    pub fn add_flows(
        &self,
        batch: &Batch,
        row: usize,
        values: &[Vec<f64>],
        weight: f64,
        flows: &mut Table,
    ) -> Vec<Vec<f64>> {
        let mut node_flows: Vec<Vec<f64>> = self.circuit.nodes().iter().map(|n| vec![0.0; n.units]).collect();
        node_flows[self.circuit.root().index()][0] = weight;
        for (i, unit) in self.units_from_the_root() {
            let flow = node_flows[i][unit];
            if flow == 0.0 {
                continue;
            }
            match &self.circuit.nodes()[i].kind {
                NodeKind::Input { var, param } => {
                    let stats = &mut flows[param.index()][unit];
                    match batch.is_missing(row, *var) {
                        true => self.add_expected(*param, unit, flow, stats),
                        false => self.distribution(*param).add_stats(batch.column(*var).real(row), flow, stats),
                    }
                }
                NodeKind::Product { factors } => factors_of(factors, unit).for_each(|(n, u)| node_flows[n][u] += flow),
                NodeKind::Sum { groups } => {
                    let (param, r, children) = self.sum_unit(groups, unit);
                    for (k, (n, u)) in children.into_iter().enumerate() {
                        // F(n,c) = F(n)·θ·p_c/p_n
                        let share =
                            flow * (self.theta[param.index()][r][k].ln() + values[n][u] - values[i][unit]).exp();
                        flows[param.index()][r][k] += share;
                        node_flows[n][u] += share;
                    }
                }
            }
        }
        node_flows
    }

    /// TD of every unit: the probability that a sample drawn from the root passes it.
    pub fn node_top_down(&self) -> Vec<Vec<f64>> {
        let mut td: Vec<Vec<f64>> = self.circuit.nodes().iter().map(|n| vec![0.0; n.units]).collect();
        td[self.circuit.root().index()][0] = 1.0;
        for (i, unit) in self.units_from_the_root() {
            let here = td[i][unit];
            match &self.circuit.nodes()[i].kind {
                NodeKind::Input { .. } => {}
                NodeKind::Product { factors } => factors_of(factors, unit).for_each(|(n, u)| td[n][u] += here),
                NodeKind::Sum { groups } => {
                    let (param, r, children) = self.sum_unit(groups, unit);
                    let weights = &self.theta[param.index()][r];
                    children.into_iter().zip(weights).for_each(|((n, u), w)| td[n][u] += here * w);
                }
            }
        }
        td
    }

    /// TD of every param row, added up over the units that share it.
    pub fn top_down(&self) -> Vec<Vec<f64>> {
        let td = self.node_top_down();
        let mut rows: Vec<Vec<f64>> = self.theta.iter().map(|block| vec![0.0; block.len()]).collect();
        for (i, unit) in self.units_from_the_root() {
            match &self.circuit.nodes()[i].kind {
                NodeKind::Input { param, .. } => rows[param.index()][unit] += td[i][unit],
                NodeKind::Product { .. } => {}
                NodeKind::Sum { groups } => {
                    let (param, r, _) = self.sum_unit(groups, unit);
                    rows[param.index()][r] += td[i][unit];
                }
            }
        }
        rows
    }

    /// The mass of every row of flows.
    pub fn row_masses(&self, flows: &Table) -> Vec<Vec<f64>> {
        let mass = |b: usize, row: &Vec<f64>| match &self.circuit.params()[b].kind {
            ParamKind::Sum { .. } => row.iter().sum(),
            ParamKind::Input(distribution) => distribution.mass(row),
        };
        flows.iter().enumerate().map(|(b, rows)| rows.iter().map(|row| mass(b, row)).collect()).collect()
    }

    /// Adds to the mass of every row of weights or probabilities: what absolute smoothing adds. Densities have none.
    pub fn add_to_weights(&self, epsilon: f64, masses: &mut [Vec<f64>]) {
        for (rows, block) in masses.iter_mut().zip(self.circuit.params()) {
            match &block.kind {
                ParamKind::Input(distribution) if !distribution.is_table() => {}
                _ => rows.iter_mut().for_each(|m| *m += epsilon),
            }
        }
    }

    /// θ' = normalise(retain·θ + F), smoothed; a row without mass keeps its θ.
    pub fn em_update(&self, retain: Option<&[Vec<f64>]>, flows: &Table, smoothing: Smoothing) -> Table {
        let mut theta = self.theta.clone();
        for id in self.circuit.param_ids() {
            for (unit, row) in theta[id.index()].iter_mut().enumerate() {
                let mut stats = flows[id.index()][unit].clone();
                if let Some(retain) = retain {
                    self.add_expected(id, unit, retain[id.index()][unit], &mut stats);
                }
                match &self.circuit.params()[id.index()].kind {
                    ParamKind::Input(distribution) if !distribution.is_table() => {
                        let mut params = narrow(row);
                        if distribution.mass(&stats) > 0.0 {
                            distribution.maximize(&stats, smoothing, &mut params);
                            *row = params.into_iter().map(f64::from).collect();
                        }
                    }
                    _ => {
                        let (mass, len) = (stats.iter().sum::<f64>(), stats.len() as f64);
                        if mass > 0.0 {
                            let smoothed = |f: f64| match smoothing {
                                Smoothing::Relative(epsilon) => (f + epsilon * mass / len) / (mass * (1.0 + epsilon)),
                                Smoothing::Absolute(epsilon) => (f + epsilon / len) / (mass + epsilon),
                            };
                            *row = stats.into_iter().map(smoothed).collect();
                        }
                    }
                }
            }
        }
        theta
    }

    /// (1−weight)·average + weight·θ in mean parameters.
    pub fn mixed(&self, average: &Table, weight: f64) -> Table {
        let mut expected = self.zeros();
        for id in self.circuit.param_ids() {
            let rows = expected[id.index()].iter_mut().enumerate();
            rows.for_each(|(unit, stats)| self.add_expected(id, unit, weight, stats));
        }
        let kept: Vec<Vec<f64>> = expected.iter().map(|rows| vec![1.0 - weight; rows.len()]).collect();
        let average = Spec { circuit: self.circuit, theta: average.clone() };
        average.em_update(Some(&kept), &expected, Smoothing::NONE)
    }

    /// ∂(mean log p)/∂φ at a normalised circuit: F − TD·θ.
    pub fn gradient(&self, mean_flows: &Table) -> Table {
        let td = self.top_down();
        let mut gradient = mean_flows.clone();
        for (b, rows) in gradient.iter_mut().enumerate() {
            for (r, row) in rows.iter_mut().enumerate() {
                row.iter_mut().zip(&self.theta[b][r]).for_each(|(g, t)| *g -= td[b][r] * t);
            }
        }
        gradient
    }

    /// Global renormalisation: θ·Z(c)/Z(n), where tied rows add up the flows of all their uses first.
    pub fn renormalized(&self) -> Table {
        let z = self.partitions();
        let mut flows = self.zeros();
        let mut reach: Vec<Vec<f64>> = self.circuit.nodes().iter().map(|n| vec![0.0; n.units]).collect();
        reach[self.circuit.root().index()][0] = 1.0;
        for (i, unit) in self.units_from_the_root() {
            let here = reach[i][unit];
            match &self.circuit.nodes()[i].kind {
                NodeKind::Input { .. } => {}
                NodeKind::Product { factors } => factors_of(factors, unit).for_each(|(n, u)| reach[n][u] += here),
                NodeKind::Sum { groups } => {
                    let (param, r, children) = self.sum_unit(groups, unit);
                    for (k, (n, u)) in children.into_iter().enumerate() {
                        let share = here * self.theta[param.index()][r][k] * z[n][u] / z[i][unit];
                        flows[param.index()][r][k] += share;
                        reach[n][u] += share;
                    }
                }
            }
        }
        let mut theta = self.theta.clone();
        for (b, block) in self.circuit.params().iter().enumerate() {
            for (r, row) in theta[b].iter_mut().enumerate() {
                match &block.kind {
                    ParamKind::Sum { .. } if flows[b][r].iter().sum::<f64>() > 0.0 => *row = normalized(&flows[b][r]),
                    ParamKind::Input(distribution) if !distribution.is_table() => {}
                    _ => *row = normalized(row),
                }
            }
        }
        theta
    }

    /// Z of every unit: its value when everything is missing and nothing need be normalised.
    fn partitions(&self) -> Vec<Vec<f64>> {
        let mut z: Vec<Vec<f64>> = Vec::new();
        for node in self.circuit.nodes() {
            let units = (0..node.units).map(|unit| match &node.kind {
                NodeKind::Input { param, .. } if self.distribution(*param).is_table() => {
                    self.theta[param.index()][unit].iter().sum()
                }
                NodeKind::Input { .. } => 1.0,
                NodeKind::Product { factors } => factors_of(factors, unit).map(|(n, u)| z[n][u]).product(),
                NodeKind::Sum { groups } => {
                    let (param, r, children) = self.sum_unit(groups, unit);
                    children.into_iter().zip(&self.theta[param.index()][r]).map(|((n, u), w)| w * z[n][u]).sum()
                }
            });
            let units = units.collect();
            z.push(units);
        }
        z
    }

    /// KL(p ‖ q) over everything a circuit decides, values and latents: the sum over all worlds of p·log(p/q).
    /// For small circuits of tables only: it lists the worlds.
    pub fn kl(&self, q: &Self) -> f64 {
        let worlds = self.worlds(q, (self.circuit.root().index(), 0));
        assert!((worlds.iter().map(|(p, _)| p).sum::<f64>() - 1.0).abs() < 1e-5, "the worlds must sum to one");
        worlds.into_iter().map(|(p, log_ratio)| p * log_ratio).sum()
    }

    /// (p, log p/q) of every way to draw from a unit.
    fn worlds(&self, q: &Self, (i, unit): Unit) -> Vec<(f64, f64)> {
        let ratio = |b: usize, r: usize, k: usize| (self.theta[b][r][k] / q.theta[b][r][k]).ln();
        match &self.circuit.nodes()[i].kind {
            NodeKind::Input { param, .. } => {
                let b = param.index();
                (0..self.theta[b][unit].len()).map(|k| (self.theta[b][unit][k], ratio(b, unit, k))).collect()
            }
            NodeKind::Product { factors } => factors_of(factors, unit).fold(vec![(1.0, 0.0)], |worlds, factor| {
                let below = self.worlds(q, factor);
                worlds.iter().flat_map(|(p, l)| below.iter().map(move |(p2, l2)| (p * p2, l + l2))).collect()
            }),
            NodeKind::Sum { groups } => {
                let (param, r, children) = self.sum_unit(groups, unit);
                let b = param.index();
                let below = children.into_iter().enumerate().flat_map(|(k, child)| {
                    let (weight, log_ratio) = (self.theta[b][r][k], ratio(b, r, k));
                    self.worlds(q, child).into_iter().map(move |(p, l)| (weight * p, log_ratio + l))
                });
                below.collect()
            }
        }
    }

    /// log of the largest product below every unit of every node: over values that are missing and latents together. A
    /// table takes its largest entry, a density its value at the mode.
    pub fn log_maxima(&self, batch: &Batch, row: usize) -> Vec<Vec<f64>> {
        let mut values: Vec<Vec<f64>> = Vec::new();
        for node in self.circuit.nodes() {
            let unit_value = |unit: usize| match &node.kind {
                NodeKind::Input { var, param } if batch.is_missing(row, *var) => {
                    let (theta, distribution) = (&self.theta[param.index()][unit], self.distribution(*param));
                    match distribution.num_cats() {
                        Some(_) if distribution.is_table() => theta.iter().copied().fold(0.0, f64::max).ln(),
                        Some(cats) => {
                            let logs = (0..cats).map(|c| distribution.log_prob(&narrow(theta), f64::from(c)));
                            logs.fold(f64::NEG_INFINITY, f64::max)
                        }
                        None => distribution.log_prob(&narrow(theta), distribution.mode(&narrow(theta))),
                    }
                }
                NodeKind::Input { var, param } => self.log_input(*param, unit, batch, row, *var),
                NodeKind::Product { factors } => factors_of(factors, unit).map(|(n, u)| values[n][u]).sum(),
                NodeKind::Sum { groups } => {
                    let (param, r, children) = self.sum_unit(groups, unit);
                    let weights = &self.theta[param.index()][r];
                    let terms = children.iter().zip(weights).map(|(&(n, u), w)| w.ln() + values[n][u]);
                    terms.fold(f64::NEG_INFINITY, f64::max)
                }
            };
            let units = (0..node.units).map(unit_value).collect();
            values.push(units);
        }
        values
    }

    /// log p(values, latents) of every way to draw from the root that agrees with a row: it lists them all. Circuits of
    /// tables only.
    pub fn log_joints(&self, batch: &Batch, row: usize) -> Vec<f64> {
        self.joints_below(batch, row, (self.circuit.root().index(), 0))
    }

    fn joints_below(&self, batch: &Batch, row: usize, (i, unit): Unit) -> Vec<f64> {
        match &self.circuit.nodes()[i].kind {
            NodeKind::Input { var, param } => match batch.is_missing(row, *var) {
                true => self.theta[param.index()][unit].iter().map(|p| p.ln()).collect(),
                false => vec![self.log_input(*param, unit, batch, row, *var)],
            },
            NodeKind::Product { factors } => factors_of(factors, unit).fold(vec![0.0], |joints, factor| {
                let below = self.joints_below(batch, row, factor);
                joints.iter().flat_map(|a| below.iter().map(move |b| a + b)).collect()
            }),
            NodeKind::Sum { groups } => {
                let (param, r, children) = self.sum_unit(groups, unit);
                let below = children.into_iter().enumerate().flat_map(|(k, child)| {
                    let weight = self.theta[param.index()][r][k].ln();
                    self.joints_below(batch, row, child).into_iter().map(move |joint| weight + joint)
                });
                below.collect()
            }
        }
    }

    /// The block, the row and the children of one unit of a sum.
    fn sum_unit(&self, groups: &[SumGroup], mut unit: usize) -> (ParamId, usize, Vec<Unit>) {
        for group in groups {
            let units = self.circuit.params()[group.param.index()].units;
            if unit < units {
                let children = group.children.iter().flat_map(|c| (0..c.units).map(|u| (c.node.index(), c.start + u)));
                return (group.param, unit, children.collect());
            }
            unit -= units;
        }
        panic!("a sum has no unit {unit}")
    }

    /// Every unit, parents before children.
    fn units_from_the_root(&self) -> impl Iterator<Item = Unit> + use<'a> {
        let circuit = self.circuit;
        (0..circuit.nodes().len()).rev().flat_map(move |i| (0..circuit.nodes()[i].units).map(move |unit| (i, unit)))
    }

    pub fn distribution(&self, param: ParamId) -> &'a dyn Distribution {
        match &self.circuit.params()[param.index()].kind {
            ParamKind::Input(distribution) => &**distribution,
            ParamKind::Sum { .. } => panic!("block {param} holds weights"),
        }
    }

    /// Adds what a row expects of itself: flow·θ for weights and tables.
    fn add_expected(&self, param: ParamId, unit: usize, flow: f64, stats: &mut [f64]) {
        let theta = &self.theta[param.index()][unit];
        match &self.circuit.params()[param.index()].kind {
            ParamKind::Input(d) if !d.is_table() => d.add_expected_stats(&narrow(theta), flow, stats),
            _ => stats.iter_mut().zip(theta).for_each(|(s, t)| *s += flow * t),
        }
    }

    /// Flows of zero.
    pub fn zeros(&self) -> Table {
        let layout = self.circuit.layout();
        layout.blocks().iter().map(|block| vec![vec![0.0; block.stats_per_row]; block.units()]).collect()
    }
}

fn factors_of(factors: &[Factor], unit: usize) -> impl Iterator<Item = Unit> + '_ {
    factors.iter().map(move |f| (f.node.index(), f.map.as_ref().map_or(unit, |map| map[unit] as usize)))
}

fn log_sum_exp(terms: impl Iterator<Item = f64> + Clone) -> f64 {
    let top = terms.clone().fold(f64::NEG_INFINITY, f64::max);
    if top == f64::NEG_INFINITY { top } else { top + terms.map(|t| (t - top).exp()).sum::<f64>().ln() }
}

/// Parameters of densities come from f32 and go back to it unchanged.
fn narrow(row: &[f64]) -> Vec<f32> {
    row.iter().map(|&v| v as f32).collect()
}

fn normalized(row: &[f64]) -> Vec<f64> {
    let mass: f64 = row.iter().sum();
    row.iter().map(|v| v / mass).collect()
}

pub fn scaled(table: &Table, factor: f64) -> Table {
    map_table(table, |v| v * factor)
}

pub fn map_table(table: &Table, mut f: impl FnMut(f64) -> f64) -> Table {
    let mut out = table.clone();
    out.iter_mut().flatten().flatten().for_each(|v| *v = f(*v));
    out
}

/// f of two tables, entry by entry.
pub fn zip_tables(a: &Table, b: &Table, f: impl Fn(f64, f64) -> f64) -> Table {
    let mut out = a.clone();
    for (x, y) in out.iter_mut().flatten().flatten().zip(b.iter().flatten().flatten()) {
        *x = f(*x, *y);
    }
    out
}

pub fn param_table(circuit: &Circuit, params: &Params) -> Table {
    table(circuit, |id, unit| params.row(id, unit).into_iter().map(f64::from).collect())
}

pub fn flow_table(circuit: &Circuit, flows: &Flows) -> Table {
    table(circuit, |id, unit| flows.row(id, unit))
}

fn table(circuit: &Circuit, row: impl Fn(ParamId, usize) -> Vec<f64>) -> Table {
    let rows = |id: ParamId| (0..circuit.layout().block(id).units()).map(|unit| row(id, unit)).collect();
    circuit.param_ids().map(rows).collect()
}

/// Parameters from a table, rounded to f32.
pub fn params_from(circuit: &Circuit, table: &Table) -> Params {
    Params::from_rows(circuit, |id, unit| narrow(&table[id.index()][unit])).unwrap()
}
