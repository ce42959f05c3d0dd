//! What the tests of this folder share: probabilities by definition, and the circuits of the reference file.

use serde_json::Value;

use crate::circuit::{Circuit, NodeId, NodeKind, ParamKind, Params};

/// p(row) by the definition of a circuit, `None` where a value is missing.
pub(super) fn probability(circuit: &Circuit, params: &Params, row: &[Option<f64>]) -> f64 {
    let mut values: Vec<Vec<f64>> = Vec::new();
    for node in circuit.nodes() {
        let units = match &node.kind {
            NodeKind::Input { var, param } => {
                let ParamKind::Input(distribution) = &circuit.params()[param.index()].kind else { unreachable!() };
                let unit = |k| row[*var].map_or(1.0, |x| distribution.log_prob(&params.row(*param, k), x).exp());
                (0..node.units).map(unit).collect()
            }
            NodeKind::Product { factors } => {
                let of = |k: usize| {
                    let unit = |map: &Option<std::sync::Arc<[u32]>>| map.as_ref().map_or(k, |m| m[k] as usize);
                    factors.iter().map(|f| values[f.node.index()][unit(&f.map)]).product()
                };
                (0..node.units).map(of).collect()
            }
            NodeKind::Sum { groups } => {
                let mut units = Vec::new();
                for group in groups {
                    let children: Vec<f64> = group
                        .children
                        .iter()
                        .flat_map(|c| values[c.node.index()][c.start..c.start + c.units].iter().copied())
                        .collect();
                    for unit in 0..circuit.params()[group.param.index()].units {
                        let weights = params.row(group.param, unit);
                        units.push(weights.iter().zip(&children).map(|(w, v)| f64::from(*w) * v).sum());
                    }
                }
                units
            }
        };
        values.push(units);
    }
    values[circuit.root().index()][0]
}

/// Every assignment of `cats` categories to `num_vars` variables.
pub(super) fn worlds(num_vars: usize, cats: usize) -> impl Iterator<Item = Vec<Option<f64>>> {
    (0..cats.pow(num_vars as u32))
        .map(move |world| (0..num_vars).map(|v| Some((world / cats.pow(v as u32) % cats) as f64)).collect())
}

/// Asserts that the probabilities of all worlds sum to one, under random parameters.
pub(super) fn assert_normalised(circuit: &Circuit, cats: usize) {
    let params = Params::random(circuit, 5, 2.0).unwrap();
    let total: f64 = worlds(circuit.num_vars(), cats).map(|w| probability(circuit, &params, &w)).sum();
    // Parameters are f32 rows that sum to one within 1e-7; a path multiplies a few dozen of them.
    assert!((total - 1.0).abs() < 1e-5, "all worlds together have probability {total}");
}

/// A circuit of the PyJuice reference file.
pub(super) fn reference(name: &str) -> Value {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/pyjuice/reference.json");
    // Python writes NaN, which JSON does not have.
    let text = std::fs::read_to_string(path).unwrap().replace("NaN", "null");
    let file: Value = serde_json::from_str(&text).unwrap();
    file["circuits"][name].clone()
}

/// A table of numbers in the reference file, row by row.
pub(super) fn numbers(table: &Value) -> Vec<Vec<f64>> {
    let row = |row: &Value| row.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect();
    table.as_array().unwrap().iter().map(row).collect()
}

/// The structure of a circuit of the reference file as text; see [`describe`]. What PyJuice's compiler added is
/// skipped: its pass-through sums are no part of the structure.
pub(super) fn describe_reference(circuit: &Value) -> String {
    let nodes = circuit["nodes"].as_array().unwrap();
    let mut texts: Vec<String> = Vec::new();
    for node in nodes {
        let children: Vec<String> =
            node["children"].as_array().unwrap().iter().map(|c| texts[c.as_u64().unwrap() as usize].clone()).collect();
        let text = match (node["added_by_compile"].as_bool().unwrap(), node["type"].as_str().unwrap()) {
            (true, _) => children[0].clone(),
            (_, "input") => format!("x{}", node["scope"][0]),
            (_, "product") => describe_product(children),
            _ => format!("{}[{}]", node["num_nodes"], children.join(" ")),
        };
        texts.push(text);
    }
    texts.pop().unwrap()
}

/// The structure of a circuit as text: `x3` an input, `(a*b)` a product, `4[a b]` a sum of 4 units over a and b.
/// The factors of a product have no order, the children of a sum have.
pub(super) fn describe(circuit: &Circuit) -> String {
    let mut texts: Vec<String> = Vec::new();
    for node in circuit.nodes() {
        let of = |id: NodeId| texts[id.index()].clone();
        let text = match &node.kind {
            NodeKind::Input { var, .. } => format!("x{var}"),
            NodeKind::Product { factors } => describe_product(factors.iter().map(|f| of(f.node)).collect()),
            NodeKind::Sum { groups } => {
                let children: Vec<String> = groups.iter().flat_map(|g| &g.children).map(|c| of(c.node)).collect();
                format!("{}[{}]", node.units, children.join(" "))
            }
        };
        texts.push(text);
    }
    texts.pop().unwrap()
}

fn describe_product(mut factors: Vec<String>) -> String {
    factors.sort();
    format!("({})", factors.join("*"))
}
