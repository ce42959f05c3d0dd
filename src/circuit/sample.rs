//! Draws rows from a circuit, root to leaves.

use super::{Circuit, NodeId, NodeKind, Params};
use crate::data::{Batch, Column};
use crate::error::Result;
use crate::rng::Rng;

/// Draws `num_rows` rows. Every sum picks one child in proportion to its weights, every product follows all its
/// factors, every input draws its variable. Columns are `u8`, `u16`, `u32` or `f32`, the narrowest that fits.
pub fn sample(circuit: &Circuit, params: &Params, num_rows: usize, rng: &mut Rng) -> Result<Batch> {
    params.check(circuit)?;
    let mut values = vec![Vec::with_capacity(num_rows); circuit.num_vars()];
    let mut stack: Vec<(NodeId, usize)> = Vec::new();
    for _ in 0..num_rows {
        stack.push((circuit.root(), 0));
        while let Some((id, unit)) = stack.pop() {
            match &circuit.node(id).kind {
                NodeKind::Input { var, param } => {
                    values[*var].push(circuit.distribution(*param).sample(&params.row(*param, unit), rng));
                }
                NodeKind::Product { factors } => {
                    let units = factors.iter().map(|f| (f.node, f.map.as_ref().map_or(unit, |m| m[unit] as usize)));
                    stack.extend(units);
                }
                NodeKind::Sum { groups } => {
                    let mut unit = unit;
                    let group = groups
                        .iter()
                        .find(|g| {
                            let units = circuit.params()[g.param.index()].units;
                            let here = unit < units;
                            unit -= if here { 0 } else { units };
                            here
                        })
                        .expect("a sum has as many units as its groups together");
                    let block = params.layout().block(group.param);
                    let weights = block.value_positions(unit).map(|i| f64::from(params.values()[i]));
                    let mut chosen = rng.weighted(weights);
                    let child = group
                        .children
                        .iter()
                        .find(|c| {
                            let here = chosen < c.units;
                            chosen -= if here { 0 } else { c.units };
                            here
                        })
                        .expect("a param row is as long as its children together");
                    stack.push((child.node, child.start + chosen));
                }
            }
        }
    }
    let columns = values.into_iter().enumerate().map(|(var, values)| narrowest(circuit, var, values));
    Batch::from_columns(columns.collect())
}

/// The values of a variable in the narrowest column type that holds whatever any of its inputs may draw.
fn narrowest(circuit: &Circuit, var: usize, values: Vec<f64>) -> Column {
    let families = circuit.nodes().iter().filter_map(|node| match &node.kind {
        NodeKind::Input { var: v, param } if *v == var => Some(circuit.distribution(*param).num_cats()),
        _ => None,
    });
    // `None` where an input draws real numbers.
    let cats = families.reduce(|a, b| Some(a?.max(b?))).flatten();
    match cats {
        None => Column::F32(values.into_iter().map(|v| v as f32).collect()),
        Some(0..=256) => Column::U8(values.into_iter().map(|v| v as u8).collect()),
        Some(257..=65_536) => Column::U16(values.into_iter().map(|v| v as u16).collect()),
        Some(_) => Column::U32(values.into_iter().map(|v| v as u32).collect()),
    }
}
