//! The slow, sure way down: log ∂p(x)/∂p_n of every unit for one row, in log space and double precision.
//!
//! A derivative is not divided by anything, so it is right where a value is zero: what a unit *would* contribute. Flows
//! are derivative times value over p(x). Queries turn to it for rows that scaled linear space cannot hold, with values
//! from `log_values` (docs/MATH.md, "Posterior marginals" and "Surprise").

use super::log_values::LogValues;
use super::{Circuit, Factor, NodeKind};

/// log ∂p/∂p_n, by node, then unit; −∞ where a unit has no way to the root.
pub(crate) fn log_derivatives(circuit: &Circuit, theta: &[f32], values: &LogValues) -> Vec<Vec<f64>> {
    let values = values.nodes();
    let mut down: Vec<Vec<f64>> = circuit.nodes().iter().map(|node| vec![f64::NEG_INFINITY; node.units]).collect();
    down[circuit.root().index()][0] = 0.0;
    for (i, node) in circuit.nodes().iter().enumerate().rev() {
        let own = std::mem::take(&mut down[i]);
        match &node.kind {
            NodeKind::Input { .. } => {}
            NodeKind::Product { factors } => {
                for (unit, &own) in own.iter().enumerate().filter(|(_, own)| **own > f64::NEG_INFINITY) {
                    let place = |f: &Factor| (f.node.index(), f.map.as_ref().map_or(unit, |m| m[unit] as usize));
                    // What lies behind each factor, and on the way what lies before it. Not the whole product without
                    // the factor: far out its logarithm has no digits left for the others, and it may be −∞.
                    let mut behind = vec![0.0; factors.len()];
                    for (i, factor) in factors.iter().enumerate().skip(1).rev() {
                        behind[i - 1] = behind[i] + values[place(factor).0][place(factor).1];
                    }
                    let mut before = own;
                    for (factor, behind) in factors.iter().zip(behind) {
                        let (child, at) = place(factor);
                        down[child][at] = log_add(down[child][at], before + behind);
                        before += values[child][at];
                    }
                }
            }
            NodeKind::Sum { groups } => {
                let mut start = 0;
                for group in groups {
                    let block = circuit.layout().block(group.param);
                    let own = &own[start..start + block.units()];
                    start += block.units();
                    let mixed = mix_down(own, &theta[block.values.clone()], block.values_per_row);
                    let mut at = 0;
                    for child in &group.children {
                        let into = &mut down[child.node.index()][child.start..child.start + child.units];
                        into.iter_mut().zip(&mixed[at..]).for_each(|(d, &m)| *d = log_add(*d, m));
                        at += child.units;
                    }
                }
            }
        }
        down[i] = own;
    }
    down
}

/// log Σ_u exp(own[u])·w[u,c] of every column c.
fn mix_down(own: &[f64], weights: &[f32], cols: usize) -> Vec<f64> {
    let top = own.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if top == f64::NEG_INFINITY {
        return vec![top; cols];
    }
    let mut sums = vec![0.0; cols];
    for (own, weights) in own.iter().zip(weights.chunks_exact(cols)) {
        let linear = (own - top).exp();
        sums.iter_mut().zip(weights).for_each(|(sum, &w)| *sum += linear * f64::from(w));
    }
    let each = sums.iter().enumerate().map(|(c, &sum)| match sum > 1e-200 {
        true => top + sum.ln(),
        // All large derivatives have tiny weights here: term by term.
        false => {
            let column = own.iter().zip(weights.iter().skip(c).step_by(cols));
            column.map(|(own, &w)| own + f64::from(w).ln()).fold(f64::NEG_INFINITY, log_add)
        }
    });
    each.collect()
}

/// log(exp a + exp b).
pub(crate) fn log_add(a: f64, b: f64) -> f64 {
    let (low, high) = if a < b { (a, b) } else { (b, a) };
    if low == f64::NEG_INFINITY { high } else { high + (low - high).exp().ln_1p() }
}
