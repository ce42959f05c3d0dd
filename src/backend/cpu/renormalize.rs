//! Global renormalisation: every row sums to one, and the circuit says what it said before.
//!
//! An input row is divided by its mass Z(c). A sum row becomes θ[n,c]·Z(c)/Z(n), which is the flow of a row with
//! everything missing, normalised. Where a block is tied and its uses see different Z, the flows of all uses are added
//! up first: a projection. Rows that nothing reaches are divided by their own sum. See docs/MATH.md.

use super::backward::backward;
use super::chunk::Chunk;
use super::forward::{Pass, Source, forward};
use crate::circuit::{Circuit, ParamKind};
use crate::plan::{Plan, Use};

/// Normalises all rows of `theta`.
pub(super) fn renormalize(circuit: &Circuit, plan: &Plan, theta: &mut [f32]) {
    let masses = input_masses(circuit, theta);
    let mut chunk = Chunk::new();
    chunk.prepare(plan, 0..1, true);
    let pass = Pass { circuit, plan, theta, source: Source::AllMissing { masses: &masses } };
    forward(pass, &mut chunk);
    backward(pass, &mut chunk, |_| 1.0);

    for param in circuit.param_ids() {
        let layout = circuit.layout().block(param);
        let theta = &mut theta[layout.values.clone()];
        match &circuit.params()[param.index()].kind {
            ParamKind::Sum { cols } => {
                for (unit, row) in theta.chunks_exact_mut(*cols).enumerate() {
                    let reached = edge_factors(plan, &chunk, param.index(), unit, *cols);
                    if !normalize(row, |i| reached[i]) {
                        normalize(row, |_| 1.0);
                    }
                }
            }
            ParamKind::Input(distribution) if distribution.is_table() => {
                let units = layout.units();
                for row in theta.chunks_exact_mut(units) {
                    for (p, &mass) in row.iter_mut().zip(&masses[layout.rows.clone()]) {
                        *p /= if mass > 0.0 { mass } else { 1.0 };
                    }
                }
            }
            ParamKind::Input(_) => {} // a density is normalised by its form
        }
    }
}

/// Σ of each table row; 1 for densities. One number per param row, 0 for sums.
fn input_masses(circuit: &Circuit, theta: &[f32]) -> Vec<f32> {
    let mut masses = vec![0.0; circuit.layout().num_rows()];
    for (layout, block) in circuit.layout().blocks().iter().zip(circuit.params()) {
        let ParamKind::Input(distribution) = &block.kind else { continue };
        let out = &mut masses[layout.rows.clone()];
        if !distribution.is_table() {
            out.fill(1.0);
            continue;
        }
        let mut total = vec![0.0f64; layout.units()];
        for row in theta[layout.values.clone()].chunks_exact(layout.units()) {
            total.iter_mut().zip(row).for_each(|(t, &p)| *t += f64::from(p));
        }
        out.iter_mut().zip(total).for_each(|(out, t)| *out = t as f32);
    }
    masses
}

/// Σ over uses of G[unit]·Z(c): what the weights of one row are multiplied by.
fn edge_factors(plan: &Plan, chunk: &Chunk, param: usize, unit: usize, cols: usize) -> Vec<f64> {
    let mut factors = vec![0.0; cols];
    for used in &plan.uses[param] {
        let Use::Sum { gain, panel } = *used else { continue };
        let gain = f64::from(chunk.view(&chunk.values, gain)[unit]);
        let panel = chunk.view(&chunk.values, panel);
        factors.iter_mut().zip(panel).for_each(|(f, &z)| *f += gain * f64::from(z));
    }
    factors
}

/// row ∝ row·factor. Whether there was any mass to normalise.
fn normalize(row: &mut [f32], factor: impl Fn(usize) -> f64) -> bool {
    let mass: f64 = row.iter().enumerate().map(|(i, &p)| f64::from(p) * factor(i)).sum();
    let positive = mass > 0.0 && mass.is_finite();
    if positive {
        row.iter_mut().enumerate().for_each(|(i, p)| *p = (f64::from(*p) * factor(i) / mass) as f32);
    }
    positive
}
