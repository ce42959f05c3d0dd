//! The M-step and its relatives: what happens to parameters, row by row.
//!
//! θ' = normalise(retain[row]·θ + gain·F). Rows of weights are contiguous; rows of tables are strided, so a table is
//! walked category by category for all its rows at once, in pieces that are added up in a fixed order.

use rayon::prelude::*;

use super::buffers::FlowBuffer;
use crate::backend::AdamStep;
use crate::backend::micro_batch::pieces;
use crate::circuit::{BlockLayout, Circuit, Distribution, ParamKind, Smoothing};

/// Categories of a table that one task walks.
const TABLE_PIECE: usize = 1024;

/// A number that flows are kept as.
pub(super) trait Count: Copy + Send + Sync {
    /// In double precision.
    fn to_f64(self) -> f64;
}

impl Count for f32 {
    fn to_f64(self) -> f64 {
        f64::from(self)
    }
}

impl Count for f64 {
    fn to_f64(self) -> f64 {
        self
    }
}

/// What an update is made of.
pub(super) struct Update<'a, T> {
    /// For rows of sums, and for rows of inputs; `None` retains nothing.
    pub retain: Option<Retained<'a>>,
    pub retain_inputs: Option<Retained<'a>>,
    pub flows: &'a [T],
    pub gain: f64,
    pub smoothing: Smoothing,
}

/// What rows retain: one number per param row, and how it is read.
#[derive(Clone, Copy)]
pub(super) struct Retained<'a> {
    pub rows: &'a [f64],
    /// Masses of the flows, where a row retains at least those.
    pub at_least: Option<&'a [f64]>,
    pub scale: f64,
    pub offset: f64,
}

impl Retained<'_> {
    /// The mass of a row, before `scale` and `offset`.
    fn mass(&self, row: usize, gain: f64) -> f64 {
        self.at_least.map_or(self.rows[row], |flows| self.rows[row].max(gain * flows[row]))
    }
}

/// Updates every block.
pub(super) fn em_update<T: Count>(circuit: &Circuit, theta: &mut [f32], update: &Update<'_, T>) {
    blocks(circuit, theta).into_par_iter().for_each(|(layout, kind, theta)| {
        let flows = &update.flows[layout.stats.clone()];
        let retained = match kind {
            ParamKind::Sum { .. } => update.retain,
            ParamKind::Input(_) => update.retain_inputs,
        };
        let mass = |r: Retained<'_>, unit: usize| r.mass(layout.rows.start + unit, update.gain);
        let retain = |unit: usize| retained.map_or(0.0, |r| r.scale * (mass(r, unit) + r.offset));
        match kind {
            ParamKind::Sum { cols } => {
                let rows = theta.par_chunks_exact_mut(*cols).zip(flows.par_chunks_exact(*cols)).enumerate();
                rows.with_min_len(rows_per_task(*cols))
                    .for_each(|(unit, (row, flows))| update_weights(row, flows, retain(unit), update));
            }
            ParamKind::Input(distribution) if distribution.is_table() => {
                update_table(theta, flows, &retain, layout, update);
            }
            ParamKind::Input(distribution) => {
                // No offset: densities are not smoothed.
                let retain = |unit: usize| retained.map_or(0.0, |r| r.scale * mass(r, unit));
                let Update { gain, smoothing, .. } = *update;
                update_density(theta, flows, &retain, layout, &**distribution, gain, smoothing);
            }
        }
    });
}

/// Rows of a weight matrix that are worth a task of their own.
fn rows_per_task(cols: usize) -> usize {
    (32_768 / cols).max(1)
}

/// The parameters of every block, apart.
pub(super) fn blocks<'a>(
    circuit: &'a Circuit,
    theta: &'a mut [f32],
) -> Vec<(&'a BlockLayout, &'a ParamKind, &'a mut [f32])> {
    let mut rest = theta;
    let parts = circuit.layout().blocks().iter().zip(circuit.params()).map(|(layout, block)| {
        let (part, tail) = std::mem::take(&mut rest).split_at_mut(layout.values.len());
        rest = tail;
        (layout, &block.kind, part)
    });
    parts.collect()
}

/// θ' = keep·θ + take·F + add for one row. In double precision: a row that is hardly ever reached has a mass below
/// the range of `f32`, and is a distribution all the same.
#[derive(Clone, Copy, Debug)]
pub(super) struct Coefficients {
    keep: f64,
    take: f64,
    add: f64,
}

impl Coefficients {
    /// For a row of `len` numbers with this mass before smoothing. A row without mass, or with an infinite one, has
    /// none and keeps its θ.
    pub fn new(mass: f64, len: usize, retain: f64, gain: f64, smoothing: Smoothing) -> Option<Self> {
        if !(mass > 0.0 && mass.is_finite()) {
            return None;
        }
        let (add, scale) = smoothing.coefficients(mass, len);
        Some(Self { keep: retain * scale, take: gain * scale, add: add * scale })
    }

    /// In single precision, `[keep, take, add]`; `None` where a mass below its range asks for more.
    pub fn single(self) -> Option<[f32; 3]> {
        (self.take < 1e37).then_some([self.keep as f32, self.take as f32, self.add as f32])
    }

    fn of<T: Count>(self, theta: f32, flow: T) -> f32 {
        (self.keep * f64::from(theta) + self.take * flow.to_f64() + self.add) as f32
    }

    /// Moves a contiguous row.
    #[inline(always)]
    pub fn apply(self, theta: &mut [f32], flows: &[f32]) {
        match self.single() {
            Some([keep, take, add]) => {
                theta.iter_mut().zip(flows).for_each(|(p, f)| *p = keep * *p + (take * f + add));
            }
            None => theta.iter_mut().zip(flows).for_each(|(p, &f)| *p = self.of(*p, f)),
        }
    }
}

/// One contiguous row.
fn update_weights<T: Count>(row: &mut [f32], flows: &[T], retain: f64, update: &Update<'_, T>) {
    let mass = sum(row.iter().zip(flows).map(|(&p, f)| retain * f64::from(p) + update.gain * f.to_f64()));
    if let Some(coefficients) = Coefficients::new(mass, row.len(), retain, update.gain, update.smoothing) {
        row.iter_mut().zip(flows).for_each(|(p, &f)| *p = coefficients.of(*p, f));
    }
}

/// Eight partial sums side by side: fast, and always in the same order.
fn sum(terms: impl Iterator<Item = f64>) -> f64 {
    let mut partials = [0.0; 8];
    for (i, term) in terms.enumerate() {
        partials[i % 8] += term;
    }
    partials.iter().sum()
}

/// All rows of a table `[cats × units]` at once.
fn update_table<T: Count>(
    theta: &mut [f32],
    flows: &[T],
    retain: &(dyn Fn(usize) -> f64 + Sync),
    layout: &BlockLayout,
    update: &Update<'_, T>,
) {
    let (units, cats) = (layout.units(), layout.values_per_row);
    let retained: Vec<f64> = (0..units).map(retain).collect();
    let masses = column_masses(units, cats, |cat, masses| {
        let terms = theta[cat * units..][..units].iter().zip(&flows[cat * units..][..units]).zip(&retained);
        masses.iter_mut().zip(terms).for_each(|(m, ((&p, f), r))| *m += r * f64::from(p) + update.gain * f.to_f64());
    });
    let coefficients: Vec<Option<Coefficients>> = masses
        .iter()
        .zip(&retained)
        .map(|(&mass, &r)| Coefficients::new(mass, cats, r, update.gain, update.smoothing))
        .collect();
    let piece = TABLE_PIECE * units;
    theta.par_chunks_mut(piece).zip(flows.par_chunks(piece)).for_each(|(theta, flows)| {
        for (theta, flows) in theta.chunks_exact_mut(units).zip(flows.chunks_exact(units)) {
            let row = theta.iter_mut().zip(flows).zip(&coefficients);
            for ((p, &f), coefficients) in row {
                if let Some(coefficients) = coefficients {
                    *p = coefficients.of(*p, f);
                }
            }
        }
    });
}

/// Column sums over the categories of a table: pieces in parallel, added up in their order.
fn column_masses(units: usize, cats: usize, add_category: impl Fn(usize, &mut [f64]) + Sync) -> Vec<f64> {
    let partial: Vec<Vec<f64>> = pieces(cats, TABLE_PIECE)
        .collect::<Vec<_>>()
        .into_par_iter()
        .map(|piece| {
            let mut masses = vec![0.0; units];
            piece.for_each(|cat| add_category(cat, &mut masses));
            masses
        })
        .collect();
    let mut total = vec![0.0; units];
    for part in partial {
        total.iter_mut().zip(part).for_each(|(t, p)| *t += p);
    }
    total
}

/// Inputs that are not tables: statistics retained and added, then their M-step.
pub(super) fn update_density<T: Count>(
    theta: &mut [f32],
    flows: &[T],
    retain: &(dyn Fn(usize) -> f64 + Sync),
    layout: &BlockLayout,
    distribution: &dyn Distribution,
    gain: f64,
    smoothing: Smoothing,
) {
    let units = layout.units();
    let mut params = vec![0.0; layout.values_per_row];
    let mut stats = vec![0.0; layout.stats_per_row];
    for unit in 0..units {
        params.iter_mut().enumerate().for_each(|(slot, p)| *p = theta[slot * units + unit]);
        stats.iter_mut().enumerate().for_each(|(slot, s)| *s = flows[slot * units + unit].to_f64() * gain);
        distribution.add_expected_stats(&params, retain(unit), &mut stats);
        let mass = distribution.mass(&stats);
        if mass > 0.0 && stats.iter().all(|s| s.is_finite()) {
            distribution.maximize(&stats, smoothing, &mut params);
            params.iter().enumerate().for_each(|(slot, &p)| theta[slot * units + unit] = p);
        }
    }
}

/// out[row] = gain · mass of the row's flows.
pub(super) fn row_masses<T: Count>(circuit: &Circuit, flows: &[T], gain: f64, out: &mut [f64]) {
    let mut rest = out;
    let parts: Vec<_> = circuit
        .layout()
        .blocks()
        .iter()
        .zip(circuit.params())
        .map(|(layout, block)| {
            let (part, tail) = std::mem::take(&mut rest).split_at_mut(layout.units());
            rest = tail;
            (layout, &block.kind, part)
        })
        .collect();
    parts.into_par_iter().for_each(|(layout, kind, out)| {
        let flows = &flows[layout.stats.clone()];
        let units = layout.units();
        match kind {
            ParamKind::Sum { cols } => {
                let rows = out.par_iter_mut().zip(flows.par_chunks_exact(*cols));
                rows.with_min_len(rows_per_task(*cols))
                    .for_each(|(mass, row)| *mass = gain * sum(row.iter().map(|f| f.to_f64())));
            }
            ParamKind::Input(distribution) if distribution.is_table() => {
                let masses = column_masses(units, layout.stats_per_row, |cat, masses| {
                    masses.iter_mut().zip(&flows[cat * units..]).for_each(|(m, f)| *m += f.to_f64());
                });
                out.iter_mut().zip(masses).for_each(|(out, mass)| *out = gain * mass);
            }
            ParamKind::Input(distribution) => {
                for (unit, mass) in out.iter_mut().enumerate() {
                    let stats: Vec<f64> = flows.iter().skip(unit).step_by(units).map(|f| f.to_f64()).collect();
                    *mass = gain * distribution.mass(&stats);
                }
            }
        }
    });
}

/// flows = gain·flows − TD·θ, for circuits whose parameters are all weights.
pub(super) fn gradient(circuit: &Circuit, theta: &[f32], flows: &mut FlowBuffer, gain: f64, top_down: &[f64]) {
    for layout in circuit.layout().blocks() {
        let units = layout.units();
        let td = |i: usize| {
            let unit = if layout.unit_fastest { i % units } else { i / layout.values_per_row };
            top_down[layout.rows.start + unit]
        };
        let theta = &theta[layout.values.clone()];
        match flows {
            FlowBuffer::Single(flows) => {
                let flows = flows[layout.stats.clone()].par_iter_mut().zip(theta).enumerate();
                flows.for_each(|(i, (f, &p))| *f = (gain * f64::from(*f) - td(i) * f64::from(p)) as f32);
            }
            FlowBuffer::Double(flows) => {
                let flows = flows[layout.stats.clone()].par_iter_mut().zip(theta).enumerate();
                flows.for_each(|(i, (f, &p))| *f = gain * *f - td(i) * f64::from(p));
            }
        }
    }
}

/// θ ← θ·exp(rate·m̂/(√v̂ + ε)) with Adam's moments m and v of the gradient, corrected for their start at zero.
pub(super) fn adam(theta: &mut [f32], gradient: &[f32], first: &mut [f32], second: &mut [f32], step: &AdamStep) {
    let (beta1, beta2) = (step.beta1 as f32, step.beta2 as f32);
    let correct1 = (1.0 / (1.0 - step.beta1.powf(step.step as f64))) as f32;
    let correct2 = (1.0 / (1.0 - step.beta2.powf(step.step as f64))) as f32;
    let (rate, epsilon) = (step.rate as f32, step.epsilon as f32);
    let moments = first.par_iter_mut().zip(second);
    theta.par_iter_mut().zip(gradient).zip(moments).with_min_len(ELEMENTS).for_each(|((p, &g), (m, v))| {
        *m = beta1 * *m + (1.0 - beta1) * g;
        *v = beta2 * *v + (1.0 - beta2) * g * g;
        let move_by = rate * (*m * correct1) / ((*v * correct2).sqrt() + epsilon);
        *p *= move_by.clamp(-LARGEST_MOVE, LARGEST_MOVE).exp();
    });
}

/// θ ← θ·exp(rate·gradient).
pub(super) fn ascend(theta: &mut [f32], gradient: &[f32], rate: f64) {
    let rate = rate as f32;
    theta.par_iter_mut().zip(gradient).with_min_len(ELEMENTS).for_each(|(p, &g)| {
        *p *= (rate * g).clamp(-LARGEST_MOVE, LARGEST_MOVE).exp();
    });
}

/// Numbers that are worth a task of their own.
pub(super) const ELEMENTS: usize = 32_768;

/// No log-weight moves further in one step: e^20 is 5e8, far beyond any useful step and far inside `f32`.
const LARGEST_MOVE: f32 = 20.0;
