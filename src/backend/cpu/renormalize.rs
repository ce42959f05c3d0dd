//! Global renormalisation: every row sums to one, and the circuit says what it said before.
//!
//! With Z the partition function of a node, an input row is divided by its mass Z(c), and a sum row becomes
//! θ[n,c]·Z(c)/Z(n). Where a block is tied and its uses see different Z, the rows of all uses are averaged, each in
//! proportion to the flow it has when everything is missing: a projection. Rows that nothing reaches are divided by
//! their own sum. In log space and double precision, because Z may be anything. See docs/MATH.md.

use rayon::prelude::*;

use super::log_space::{FlowSink, flow_down};
use super::update::ELEMENTS;
use crate::circuit::log_values::{Row, log_values};
use crate::circuit::{BlockLayout, Circuit, ParamId, ParamKind};

/// Normalises all rows of `theta`.
pub(super) fn renormalize(circuit: &Circuit, theta: &mut [f32]) {
    let masses = input_masses(circuit, theta);
    let partition = log_values(circuit, theta, Row::Masses(&masses));
    let mut rows = SumRows::new(circuit);
    flow_down(circuit, theta, &partition, 1.0, 0.0, &mut rows);

    blocks_of(circuit, theta).into_par_iter().zip(circuit.params()).zip(&rows.blocks).for_each(
        |(((layout, theta), block), rows)| match &block.kind {
            ParamKind::Sum { cols } => {
                for (row, reached) in theta.chunks_exact_mut(*cols).zip(rows.chunks_exact(*cols)) {
                    if !normalize(row, reached.iter().copied()) {
                        let own: Vec<f64> = row.iter().map(|&p| f64::from(p)).collect();
                        normalize(row, own.into_iter());
                    }
                }
            }
            ParamKind::Input(distribution) if distribution.is_table() => {
                let masses = &masses[layout.rows.clone()];
                let units = layout.units();
                theta.par_chunks_exact_mut(units).with_min_len(ELEMENTS.div_ceil(units)).for_each(|row| {
                    for (p, &mass) in row.iter_mut().zip(masses).filter(|(_, mass)| **mass > 0.0) {
                        *p = (f64::from(*p) / mass) as f32;
                    }
                });
            }
            ParamKind::Input(_) => {} // a density is normalised by its form
        },
    );
}

/// The parameters cut into their blocks, which follow each other.
fn blocks_of<'a>(circuit: &'a Circuit, mut theta: &'a mut [f32]) -> Vec<(&'a BlockLayout, &'a mut [f32])> {
    let mut blocks = Vec::with_capacity(circuit.params().len());
    for layout in circuit.layout().blocks() {
        let (block, rest) = theta.split_at_mut(layout.values.len());
        blocks.push((layout, block));
        theta = rest;
    }
    blocks
}

/// The mass of each input row: the sum of a table's, 1 of a density's. One number per param row.
fn input_masses(circuit: &Circuit, theta: &[f32]) -> Vec<f64> {
    let blocks = circuit.layout().blocks().par_iter().zip(circuit.params());
    let masses = blocks.map(|(layout, block)| match &block.kind {
        ParamKind::Input(distribution) if distribution.is_table() => {
            let mut masses = vec![0.0; layout.units()];
            for row in theta[layout.values.clone()].chunks_exact(layout.units()) {
                masses.iter_mut().zip(row).for_each(|(mass, &p)| *mass += f64::from(p));
            }
            masses
        }
        _ => vec![1.0; layout.rows.len()],
    });
    masses.collect::<Vec<_>>().concat()
}

/// For each block of weights, Σ over its uses of F(n)·θ[n,c]·Z(c)/Z(n), with F the flow when everything is missing.
struct SumRows {
    blocks: Vec<Vec<f64>>,
}

impl SumRows {
    fn new(circuit: &Circuit) -> Self {
        let sizes = circuit.params().iter().map(|block| match block.kind {
            ParamKind::Sum { cols } => block.units * cols,
            ParamKind::Input(_) => 0,
        });
        Self { blocks: sizes.map(|size| vec![0.0; size]).collect() }
    }
}

impl FlowSink for SumRows {
    fn edge(&mut self, param: ParamId, position: usize, flow: f64) {
        self.blocks[param.index()][position] += flow;
    }

    fn input(&mut self, _: usize, _: ParamId, _: &[f64]) {} // an input row only needs its mass
}

/// row ∝ weights. Whether they had any mass.
fn normalize(row: &mut [f32], weights: impl Iterator<Item = f64> + Clone) -> bool {
    let mass: f64 = weights.clone().sum();
    let positive = mass > 0.0 && mass.is_finite();
    if positive {
        row.iter_mut().zip(weights).for_each(|(p, w)| *p = (w / mass) as f32);
    }
    positive
}
