//! Circuits as a JSON node list: any shape, readable by people and by other programs.
//!
//! `nodes` lists the nodes children first and the root last; a child is named by its place in that list. `params` lists
//! the parameter blocks; nodes that name the same one are tied. Other top-level keys are left alone, so that a file may
//! carry data beside its circuit; an unknown key inside a node or a block is a mistake and is refused.
//!
//! | node | keys |
//! |---|---|
//! | input | `var`, `param` |
//! | product | `children`: each a node, or `{"node": i, "map": [..]}` whose unit `k` is unit `map[k]` of node `i` |
//! | sum | `children` and `param`; or `groups`, a list of `{"children": [..], "param": p}` |
//!
//! A sum's child is a node, or some of its units: `{"node": i, "start": s, "units": u}`, where `start` is 0 and `units`
//! the rest unless given.
//!
//! | parameter block | meaning |
//! |---|---|
//! | `[0.2, 0.8]` | one row: probabilities of an input's categories, or weights of a sum's child units |
//! | `[[0.2, 0.8], [0.5, 0.5]]` | the same, one row per unit |
//! | `{"units": 2, "cols": 3}` | weights of a sum without values |
//! | `{"distribution": "gaussian", "min_sigma": 0.01, "rows": [[0.0, 1.0]]}` | any input distribution, with options |
//! | `{"distribution": "categorical", "cats": 4, "units": 2}` | the same without values |
//!
//! Either all blocks have values or none has. The number of variables is `num_vars`, else the length of
//! `cardinalities`, else the highest `var` plus one. Values are written so that they come back bit-identical.
//!
//! ```
//! use anemone::circuit::json::{read_circuit, write_circuit};
//!
//! let text = r#"{
//!     "num_vars": 2,
//!     "nodes": [
//!         {"kind": "input", "var": 0, "param": 0},
//!         {"kind": "input", "var": 1, "param": 1},
//!         {"kind": "product", "children": [0, {"node": 1, "map": [1, 0]}]},
//!         {"kind": "sum", "children": [2], "param": 2}
//!     ],
//!     "params": [
//!         [[0.9, 0.1], [0.2, 0.8]],
//!         {"distribution": "gaussian", "min_sigma": 0.01, "origin": 0.0, "rows": [[-1.0, 0.5], [1.5, 2.0]]},
//!         [0.25, 0.75]
//!     ]
//! }"#;
//! let (circuit, params) = read_circuit(text)?;
//! assert_eq!((circuit.num_vars(), circuit.nodes().len()), (2, 4));
//! let (again, params_again) = read_circuit(&write_circuit(&circuit, params.as_ref()))?;
//! assert_eq!(format!("{again:?}"), format!("{circuit:?}"));
//! assert_eq!(params_again, params);
//! # Ok::<(), anemone::Error>(())
//! ```

use std::fs;
use std::io::Read;
use std::path::Path;

use serde_json::{Map, Value, json};

use super::distribution::{self, Categorical};
use super::{
    Circuit, CircuitBuilder, Factor, NodeId, NodeKind, ParamBlock, ParamId, ParamKind, Params, Slice, SumGroup,
};
use crate::error::{Error, Result};
use crate::files::open_regular;

/// Reads a circuit, and its parameters if the text has them.
pub fn read_circuit(text: &str) -> Result<(Circuit, Option<Params>)> {
    let document: Value = serde_json::from_str(text)
        .map_err(|e| Error::format(format!("not a whole JSON document: {e}; is the file complete?")))?;
    let document = object(&document, "the document")?;
    let nodes = list(required(document, "nodes", "the document")?, "`nodes`")?;
    let params = list(required(document, "params", "the document")?, "`params`")?;

    let nodes: Vec<NodeSpec> = nodes.iter().enumerate().map(|(i, node)| read_node(i, node)).collect::<Result<_>>()?;
    let uses = param_uses(&nodes, params.len())?;
    let blocks = params.iter().zip(uses).enumerate().map(|(i, (param, used_as))| read_param(i, param, used_as));
    let blocks: Vec<(ParamBlock, Option<Rows>)> = blocks.collect::<Result<_>>()?;

    let mut circuit = CircuitBuilder::new(count_vars(document, &nodes)?);
    for (block, _) in &blocks {
        match &block.kind {
            ParamKind::Sum { cols } => circuit.sum_param(block.units, *cols)?,
            ParamKind::Input(distribution) => circuit.input_param(block.units, distribution.clone())?,
        };
    }
    for node in nodes {
        match node {
            NodeSpec::Input { var, param } => circuit.input(var, ParamId(param))?,
            NodeSpec::Product(factors) => circuit.mapped_product(factors)?,
            NodeSpec::Sum(groups) => {
                let groups = groups.into_iter().map(|group| group.resolve(&circuit)).collect();
                circuit.grouped_sum(groups)?
            }
        };
    }
    let circuit = circuit.finish()?;
    let params = collect_values(&circuit, blocks.into_iter().map(|(_, rows)| rows).collect())?;
    Ok((circuit, params))
}

/// Writes a circuit, and its parameters if they are given, one node and one parameter block a line.
pub fn write_circuit(circuit: &Circuit, params: Option<&Params>) -> String {
    let nodes = circuit.nodes().iter().map(|node| write_node(circuit, &node.kind).to_string());
    let blocks = circuit.param_ids().map(|id| write_param(circuit, id, params).to_string());
    let lines = |items: Vec<String>| items.join(",\n    ");
    format!(
        "{{\n  \"num_vars\": {},\n  \"nodes\": [\n    {}\n  ],\n  \"params\": [\n    {}\n  ]\n}}\n",
        circuit.num_vars(),
        lines(nodes.collect()),
        lines(blocks.collect())
    )
}

/// Reads a circuit from a file; a pipe is refused, because a run reads it more than once.
pub fn load(path: &Path) -> Result<(Circuit, Option<Params>)> {
    let place = path.display().to_string();
    let mut text = String::new();
    let read = open_regular(path).and_then(|mut file| file.read_to_string(&mut text));
    read.map_err(|e| Error::io(&place, &e))?;
    read_circuit(&text).map_err(|e| e.at(place))
}

/// Writes a circuit to a file.
pub fn save(path: &Path, circuit: &Circuit, params: Option<&Params>) -> Result<()> {
    fs::write(path, write_circuit(circuit, params)).map_err(|e| Error::io_at(path, &e))
}

/// A node as written. Sizes are checked by the builder, which knows the children.
enum NodeSpec {
    Input { var: usize, param: u32 },
    Product(Vec<Factor>),
    Sum(Vec<GroupSpec>),
}

struct GroupSpec {
    children: Vec<SliceSpec>,
    param: u32,
}

struct SliceSpec {
    node: NodeId,
    start: usize,
    /// `None` is all units from `start` on.
    units: Option<usize>,
}

impl GroupSpec {
    /// Gives the slices their sizes; children come first, so they are there.
    fn resolve(self, circuit: &CircuitBuilder) -> SumGroup {
        let children = self.children.into_iter().map(|slice| {
            let rest = circuit.units(slice.node).saturating_sub(slice.start);
            Slice { node: slice.node, start: slice.start, units: slice.units.unwrap_or(rest) }
        });
        SumGroup { children: children.collect(), param: ParamId(self.param) }
    }
}

fn read_node(index: usize, node: &Value) -> Result<NodeSpec> {
    let place = format!("node {index}");
    let node = object(node, &place)?;
    let kind = required(node, "kind", &place)?;
    let place = match kind.as_str() {
        Some(kind) => format!("{place} ({kind})"),
        None => return Err(wrong(&place, "`kind` must be \"input\", \"product\" or \"sum\"", kind)),
    };
    match kind.as_str() {
        Some("input") => {
            only_keys(node, &["kind", "var", "param"], &place)?;
            let var = number(required(node, "var", &place)?, &format!("{place}: `var`"))?;
            Ok(NodeSpec::Input { var, param: read_param_id(node, &place)? })
        }
        Some("product") => {
            only_keys(node, &["kind", "children"], &place)?;
            let children = list(required(node, "children", &place)?, &format!("{place}: `children`"))?;
            let factors = children.iter().map(|child| read_factor(index, child, &place)).collect::<Result<_>>()?;
            Ok(NodeSpec::Product(factors))
        }
        Some("sum") if node.contains_key("groups") => {
            only_keys(node, &["kind", "groups"], &place)?;
            let groups = list(&node["groups"], &format!("{place}: `groups`"))?;
            let groups = groups.iter().enumerate().map(|(g, group)| {
                let place = format!("{place}: group {g}");
                let group = object(group, &place)?;
                only_keys(group, &["children", "param"], &place)?;
                read_group(index, group, &place)
            });
            Ok(NodeSpec::Sum(groups.collect::<Result<_>>()?))
        }
        Some("sum") => {
            only_keys(node, &["kind", "children", "param"], &place)?;
            Ok(NodeSpec::Sum(vec![read_group(index, node, &place)?]))
        }
        _ => Err(Error::format(format!("{place}: there is no such kind; there are input, product and sum"))),
    }
}

fn read_group(index: usize, group: &Map<String, Value>, place: &str) -> Result<GroupSpec> {
    let children = list(required(group, "children", place)?, &format!("{place}: `children`"))?;
    let children = children.iter().map(|child| read_slice(index, child, place)).collect::<Result<_>>()?;
    Ok(GroupSpec { children, param: read_param_id(group, place)? })
}

fn read_factor(index: usize, child: &Value, place: &str) -> Result<Factor> {
    let Value::Object(factor) = child else {
        return Ok(Factor { node: read_child(index, child, place)?, map: None });
    };
    only_keys(factor, &["node", "map"], &format!("{place}: child"))?;
    let node = read_child(index, required(factor, "node", &format!("{place}: child"))?, place)?;
    let Some(map) = factor.get("map") else {
        return Ok(Factor { node, map: None });
    };
    let what = format!("{place}: map of child {node}");
    let map = list(map, &what)?.iter().map(|unit| number(unit, &what).map(|u| u as u32)).collect::<Result<_>>()?;
    Ok(Factor { node, map: Some(map) })
}

fn read_slice(index: usize, child: &Value, place: &str) -> Result<SliceSpec> {
    let Value::Object(slice) = child else {
        return Ok(SliceSpec { node: read_child(index, child, place)?, start: 0, units: None });
    };
    only_keys(slice, &["node", "start", "units"], &format!("{place}: child"))?;
    let node = read_child(index, required(slice, "node", &format!("{place}: child"))?, place)?;
    let field =
        |key: &str| slice.get(key).map(|value| number(value, &format!("{place}: `{key}` of child {node}"))).transpose();
    Ok(SliceSpec { node, start: field("start")?.unwrap_or(0), units: field("units")? })
}

fn read_child(index: usize, child: &Value, place: &str) -> Result<NodeId> {
    let child = number(child, &format!("{place}: child"))?;
    if child >= index {
        return Err(Error::circuit(format!("{place}: child {child} does not come before it; list children first")));
    }
    Ok(NodeId(child as u32))
}

fn read_param_id(node: &Map<String, Value>, place: &str) -> Result<u32> {
    Ok(number(required(node, "param", place)?, &format!("{place}: `param`"))? as u32)
}

/// What the nodes take each block for, so that plain numbers can be read as it; `None` where no node refers to it.
fn param_uses(nodes: &[NodeSpec], num_params: usize) -> Result<Vec<Option<Use>>> {
    let mut uses: Vec<Option<(Use, usize)>> = vec![None; num_params];
    for (i, node) in nodes.iter().enumerate() {
        let (used_as, params) = match node {
            NodeSpec::Input { param, .. } => (Use::Input, vec![*param]),
            NodeSpec::Product(_) => continue,
            NodeSpec::Sum(groups) => (Use::Sum, groups.iter().map(|group| group.param).collect()),
        };
        for param in params {
            let Some(slot) = uses.get_mut(param as usize) else {
                return Err(Error::circuit(format!("node {i}: parameter block {param} is outside 0..{num_params}")));
            };
            let (first, at) = *slot.get_or_insert((used_as, i));
            if first != used_as {
                return Err(Error::circuit(format!(
                    "parameter block {param}: nodes {at} and {i} use it as both input distribution and mixture \
                     weights; give each a block of its own"
                )));
            }
        }
    }
    Ok(uses.into_iter().map(|slot| slot.map(|(used_as, _)| used_as)).collect())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    Input,
    Sum,
}

type Rows = Vec<Vec<f32>>;

fn read_param(index: usize, param: &Value, used_as: Option<Use>) -> Result<(ParamBlock, Option<Rows>)> {
    let place = format!("parameter block {index}");
    let Value::Object(fields) = param else {
        let rows = read_rows(param, &place)?;
        let len = rows[0].len();
        let kind = match used_as {
            Some(Use::Input) => ParamKind::Input(Categorical::new(len as u32)?),
            _ => ParamKind::Sum { cols: len },
        };
        return Ok((ParamBlock { units: rows.len(), kind }, Some(rows)));
    };
    let rows = fields.get("rows").map(|rows| read_rows(rows, &place)).transpose()?;
    let units = match (fields.get("units"), &rows) {
        (None, None) => {
            return Err(Error::format(format!(
                "{place}: give `units`, how many rows it has, or the `rows` themselves"
            )));
        }
        (None, Some(rows)) => rows.len(),
        (Some(units), rows) => {
            let units = number(units, &format!("{place}: `units`"))?;
            match rows {
                Some(rows) if rows.len() != units => {
                    return Err(Error::format(format!("{place}: `units` is {units}, `rows` has {} rows", rows.len())));
                }
                _ => units,
            }
        }
    };
    let kind = match fields.get("distribution") {
        Some(name) => {
            let name = name.as_str().ok_or_else(|| wrong(&place, "`distribution` must be a name", name))?;
            let mut options = fields.clone();
            options.retain(|key, _| !["distribution", "units", "rows"].contains(&key.as_str()));
            let made = distribution::from_json(name, &options).map_err(|e| Error::format(format!("{place}: {e}")))?;
            let known = made.options();
            let known: Vec<&str> = known.keys().map(String::as_str).collect();
            only_keys(&options, &known, &format!("{place} ({name})"))?;
            ParamKind::Input(made)
        }
        None => {
            only_keys(fields, &["units", "cols", "rows"], &place)?;
            match (fields.get("cols"), &rows) {
                (Some(cols), _) => ParamKind::Sum { cols: number(cols, &format!("{place}: `cols`"))? },
                (None, Some(rows)) => ParamKind::Sum { cols: rows[0].len() },
                (None, None) => {
                    return Err(Error::format(format!(
                        "{place}: give `cols`, how many child units it weighs, or `distribution`, which input it is"
                    )));
                }
            }
        }
    };
    let wanted = match &kind {
        ParamKind::Sum { cols } => *cols,
        ParamKind::Input(distribution) => distribution.num_params(),
    };
    if let Some(rows) = rows.as_ref().filter(|rows| rows[0].len() != wanted) {
        return Err(Error::format(format!("{place}: rows have {} numbers where {wanted} belong", rows[0].len())));
    }
    Ok((ParamBlock { units, kind }, rows))
}

/// One row or a list of rows, all of the same length and none empty.
fn read_rows(value: &Value, place: &str) -> Result<Rows> {
    let items = list(value, place)?;
    let rows: Rows = match items.first() {
        Some(Value::Array(_)) => items
            .iter()
            .enumerate()
            .map(|(r, row)| read_row(row, &format!("{place}: row {r}")))
            .collect::<Result<_>>()?,
        _ => vec![read_row(value, place)?],
    };
    if let Some(r) = rows.iter().position(|row| row.len() != rows[0].len()) {
        return Err(Error::format(format!(
            "{place}: row {r} has {} numbers where row 0 has {}; every unit needs as many",
            rows[r].len(),
            rows[0].len()
        )));
    }
    Ok(rows)
}

fn read_row(value: &Value, place: &str) -> Result<Vec<f32>> {
    let row = list(value, place)?;
    if row.is_empty() {
        return Err(Error::format(format!("{place}: no numbers")));
    }
    let read = |number: &Value| {
        let value = number.as_f64().ok_or_else(|| wrong(place, "every entry must be a number", number))? as f32;
        if value.is_finite() { Ok(value) } else { Err(wrong(place, "every entry must fit single precision", number)) }
    };
    row.iter().map(read).collect()
}

fn count_vars(document: &Map<String, Value>, nodes: &[NodeSpec]) -> Result<usize> {
    let inputs = nodes.iter().filter_map(|node| match node {
        NodeSpec::Input { var, .. } => Some(*var),
        _ => None,
    });
    let num_inputs = inputs.clone().count();
    let num_vars = match (document.get("num_vars"), document.get("cardinalities")) {
        (Some(count), _) => number(count, "`num_vars`")?,
        (None, Some(cardinalities)) => list(cardinalities, "`cardinalities`")?.len(),
        (None, None) => inputs.max().map_or(0, |var| var + 1),
    };
    // Also keeps a slip of the pen from asking for scopes of billions of variables.
    if num_vars > num_inputs {
        return Err(Error::circuit(format!(
            "{num_vars} variables and {num_inputs} input nodes: every variable needs an input"
        )));
    }
    Ok(num_vars)
}

/// The parameters, if every block has values.
fn collect_values(circuit: &Circuit, rows: Vec<Option<Rows>>) -> Result<Option<Params>> {
    let absent = rows.iter().position(Option::is_none);
    if let (Some(absent), Some(present)) = (absent, rows.iter().position(Option::is_some)) {
        return Err(Error::format(format!(
            "parameter block {absent} has no values and block {present} has; give `rows` to all blocks or to none"
        )));
    }
    let Some(rows) = rows.into_iter().collect::<Option<Vec<Rows>>>() else {
        return Ok(None);
    };
    let params = Params::from_rows(circuit, |param, unit| rows[param.index()][unit].clone());
    params.map(Some).map_err(|e| Error::format(e.to_string()))
}

fn write_node(circuit: &Circuit, kind: &NodeKind) -> Value {
    let slice = |child: &Slice| match child.start == 0 && child.units == circuit.node(child.node).units {
        true => json!(child.node.index()),
        false => json!({"node": child.node.index(), "start": child.start, "units": child.units}),
    };
    let children = |group: &SumGroup| group.children.iter().map(slice).collect::<Value>();
    match kind {
        NodeKind::Input { var, param } => json!({"kind": "input", "var": var, "param": param.index()}),
        NodeKind::Product { factors } => {
            let children: Value = factors
                .iter()
                .map(|factor| match &factor.map {
                    None => json!(factor.node.index()),
                    Some(map) => json!({"node": factor.node.index(), "map": &**map}),
                })
                .collect();
            json!({"kind": "product", "children": children})
        }
        NodeKind::Sum { groups } => match &groups[..] {
            [group] => json!({"kind": "sum", "children": children(group), "param": group.param.index()}),
            _ => {
                let groups: Value = groups
                    .iter()
                    .map(|group| json!({"children": children(group), "param": group.param.index()}))
                    .collect();
                json!({"kind": "sum", "groups": groups})
            }
        },
    }
}

fn write_param(circuit: &Circuit, id: ParamId, params: Option<&Params>) -> Value {
    let block = &circuit.params()[id.index()];
    // As f64, which holds every f32 and is printed with as many digits as it takes to come back.
    let row = |params: &Params, unit| params.row(id, unit).into_iter().map(f64::from).collect::<Value>();
    let rows = params.map(|params| (0..block.units).map(|unit| row(params, unit)).collect::<Vec<Value>>());
    match (&block.kind, rows) {
        (ParamKind::Sum { .. }, Some(rows)) => plain(rows),
        (ParamKind::Input(distribution), Some(rows)) if distribution.is_table() => plain(rows),
        (ParamKind::Sum { cols }, None) => json!({"units": block.units, "cols": cols}),
        (ParamKind::Input(distribution), rows) => {
            let mut fields = distribution.options();
            fields.insert("distribution".to_string(), distribution.name().into());
            match rows {
                Some(rows) => fields.insert("rows".to_string(), rows.into()),
                None => fields.insert("units".to_string(), block.units.into()),
            };
            Value::Object(fields)
        }
    }
}

/// A single row without the list around it.
fn plain(mut rows: Vec<Value>) -> Value {
    if rows.len() == 1 { rows.remove(0) } else { Value::Array(rows) }
}

fn object<'a>(value: &'a Value, what: &str) -> Result<&'a Map<String, Value>> {
    value.as_object().ok_or_else(|| wrong(what, "must be an object, {…}", value))
}

fn list<'a>(value: &'a Value, what: &str) -> Result<&'a [Value]> {
    value.as_array().map(Vec::as_slice).ok_or_else(|| wrong(what, "must be a list, […]", value))
}

/// A whole number that an index or a size can be.
fn number(value: &Value, what: &str) -> Result<usize> {
    match value.as_u64().filter(|&n| n < u64::from(u32::MAX)) {
        Some(number) => Ok(number as usize),
        None => Err(wrong(what, "must be a whole number, 0 or more", value)),
    }
}

fn required<'a>(fields: &'a Map<String, Value>, key: &str, place: &str) -> Result<&'a Value> {
    fields.get(key).ok_or_else(|| Error::format(format!("{place}: `{key}` is missing")))
}

fn only_keys(fields: &Map<String, Value>, known: &[&str], place: &str) -> Result<()> {
    match fields.keys().find(|key| !known.contains(&key.as_str())) {
        Some(key) => Err(Error::format(format!("{place}: `{key}` is unknown here; there are {}", known.join(", ")))),
        None => Ok(()),
    }
}

/// What was expected and what was found, however long that is.
fn wrong(what: &str, must: &str, found: &Value) -> Error {
    let found: String = found.to_string().chars().take(40).collect();
    Error::format(format!("{what}: {must}; found {found}"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::error::ErrorKind;

    /// Every feature of the format: ties, groups, slices, maps, three distributions.
    const RICH: &str = r#"{
        "name": "rich", "cardinalities": [2, 0, 16],
        "nodes": [
            {"kind": "input", "var": 0, "param": 0},
            {"kind": "input", "var": 1, "param": 1},
            {"kind": "product", "children": [0, {"node": 1, "map": [1, 1, 0]}]},
            {"kind": "sum", "groups": [
                {"children": [{"node": 2, "start": 1}], "param": 2},
                {"children": [{"node": 2, "start": 0, "units": 1}, {"node": 2, "start": 2, "units": 1}], "param": 2}]},
            {"kind": "input", "var": 2, "param": 3},
            {"kind": "product", "children": [3, 4]},
            {"kind": "sum", "children": [5], "param": 4}],
        "params": [
            [[0.5, 0.5], [0.1, 0.9], [1, 0]],
            {"distribution": "gaussian", "origin": 2.5, "rows": [[-1.5, 0.25], [3, 1e-3]]},
            [0.3, 0.7],
            {"distribution": "discrete_logistic", "cats": 16, "units": 2, "rows": [[0, 0.1], [0.5, 0.2]]},
            {"units": 1, "cols": 2, "rows": [0.5, 0.5]}]}"#;

    fn rich() -> (Circuit, Params) {
        let (circuit, params) = read_circuit(RICH).unwrap();
        (circuit, params.unwrap())
    }

    fn same(a: &Circuit, b: &Circuit) {
        assert_eq!(format!("{a:?}"), format!("{b:?}"));
    }

    fn refused(text: &str, words: &[&str]) {
        let error = read_circuit(text).unwrap_err();
        // A size beyond any machine is refused in every place.
        assert!([ErrorKind::Format, ErrorKind::Circuit, ErrorKind::Option].contains(&error.kind()), "{error:?}");
        for word in words {
            assert!(error.to_string().contains(word), "`{error}` does not say `{word}`");
        }
    }

    #[test]
    fn everything_a_circuit_can_be_is_read() {
        let (circuit, params) = rich();
        assert_eq!(circuit.num_vars(), 3);
        let NodeKind::Sum { groups } = &circuit.nodes()[3].kind else { panic!("node 3 is a sum") };
        assert_eq!(groups[0].children, [Slice { node: NodeId(2), start: 1, units: 2 }]);
        assert_eq!(groups[0].param, groups[1].param);
        assert_eq!(params.row(ParamId(1), 1), [3.0, 1e-3]);
        assert_eq!(params.row(ParamId(0), 2), [1.0, 0.0]);
    }

    #[test]
    fn a_circuit_without_values_round_trips_too() {
        let (circuit, _) = rich();
        let (again, params) = read_circuit(&write_circuit(&circuit, None)).unwrap();
        same(&circuit, &again);
        assert_eq!(params, None);
    }

    #[test]
    fn files_round_trip_and_their_errors_name_the_path() {
        let (circuit, params) = rich();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rich.json");
        save(&path, &circuit, Some(&params)).unwrap();
        let (again, params_again) = load(&path).unwrap();
        same(&circuit, &again);
        assert_eq!(params_again, Some(params));
        assert_eq!(load(&folder.path().join("none.json")).unwrap_err().kind(), ErrorKind::Path);
        fs::write(&path, "{").unwrap();
        assert!(load(&path).unwrap_err().to_string().contains("rich.json"));
    }

    #[test]
    fn a_text_cut_anywhere_is_refused() {
        let end = RICH.trim_end().len();
        for cut in (0..end).filter(|&cut| RICH.is_char_boundary(cut)) {
            refused(&RICH[..cut], &["complete"]);
        }
    }

    #[test]
    fn every_mistake_is_named_where_it_is() {
        let edits: &[(&str, &str, &[&str])] = &[
            (r#""var": 2, "param": 3"#, r#""var": 2, "param": 9"#, &["node 4", "block 9", "0..5"]),
            (r#""var": 2, "param": 3"#, r#""var": 2, "param": -1"#, &["node 4", "whole number", "-1"]),
            (r#""var": 2, "param": 3"#, r#""var": 2, "param": 1.5"#, &["node 4", "1.5"]),
            (r#""var": 2, "param": 3"#, r#""var": 3, "param": 3"#, &["node 4", "variable 3", "0..3"]),
            (r#""var": 2, "param": 3"#, r#""var": 2, "param": 2"#, &["block 2", "nodes 3 and 4"]),
            (r#""var": 2, "param": 3"#, r#""var": 2"#, &["node 4", "`param` is missing"]),
            (r#""var": 2, "param": 3"#, r#""var": 2, "param": 3, "vra": 1"#, &["node 4", "`vra` is unknown", "var"]),
            (
                r#""kind": "input", "var": 2"#,
                r#""kind": "leaf", "var": 2"#,
                &["node 4 (leaf)", "input, product and sum"],
            ),
            (r#""kind": "input", "var": 2"#, r#""kind": 7, "var": 2"#, &["node 4", "kind", "7"]),
            ("[3, 4]", "[3, 40]", &["node 5", "child 40", "children first"]),
            ("[3, 4]", "[3, 5]", &["node 5", "child 5", "children first"]),
            ("[3, 4]", "[3, \"4\"]", &["node 5", "whole number", "4"]),
            ("[3, 4]", "7", &["node 5", "must be a list"]),
            ("[3, 4]", "[]", &["node 5", "no children"]),
            ("[1, 1, 0]", "[1, 1, 2]", &["node 2", "names unit 2"]),
            ("[1, 1, 0]", "[1, 1, -2]", &["node 2", "map of child 1", "-2"]),
            (r#""start": 2, "units": 1"#, r#""start": 3, "units": 1"#, &["node 3", "3 units, not 3..4"]),
            (r#""start": 2, "units": 1"#, r#""start": 4294967290"#, &["node 3", "3 units"]),
            (r#""start": 2, "units": 1"#, r#""from": 2"#, &["node 3", "`from` is unknown"]),
            ("[0.1, 0.9]", "[0.1]", &["block 0", "row 1 has 1", "row 0 has 2"]),
            ("[0.1, 0.9]", "[0.1, -0.9]", &["block 0", "row 1", "-0.9"]),
            ("[0.1, 0.9]", "[0.1, 1e300]", &["block 0", "row 1", "single precision"]),
            ("[0.1, 0.9]", "[0.1, null]", &["block 0", "row 1", "null"]),
            ("[0.1, 0.9]", "0.1", &["block 0", "row 1", "list"]),
            ("[0.3, 0.7]", "[]", &["block 2", "no numbers"]),
            ("[0.3, 0.7]", "0.3", &["block 2", "list"]),
            ("[0.3, 0.7]", "{}", &["block 2", "`units`"]),
            ("[0.3, 0.7]", r#"{"units": 1}"#, &["block 2", "`cols`", "`distribution`"]),
            ("[0.3, 0.7]", r#"{"units": 1, "cols": 2}"#, &["block 2 has no values", "all blocks or to none"]),
            ("[0.3, 0.7]", r#"{"units": 4000000000, "cols": 4000000000}"#, &["block 2", "more than"]),
            ("[0.3, 0.7]", "[[0.3, 0.7, 0.5]]", &["node 3", "block 2 weighs 3"]),
            (r#""gaussian""#, r#""gauss""#, &["block 1", "`gauss` is unknown", "gaussian"]),
            (r#""gaussian""#, r#""gaussian", "sigma": 1"#, &["block 1", "`sigma` is unknown", "min_sigma"]),
            (r#""gaussian""#, r#""gaussian", "min_sigma": -1"#, &["block 1", "min_sigma = -1"]),
            (r#""gaussian""#, r#""gaussian", "min_sigma": 1e-46"#, &["block 1", "min_sigma = ", "f32"]),
            (r#""gaussian""#, r#""gaussian", "min_sigma": 1e39"#, &["block 1", "min_sigma = ", "f32"]),
            ("[3, 1e-3]", "[3, 0]", &["block 1", "row 1", "standard deviation"]),
            ("[3, 1e-3]", "[3, 1, 2]", &["block 1", "row 1 has 3"]),
            (r#""cats": 16, "units": 2"#, r#""cats": 16, "units": 3"#, &["block 3", "`units` is 3"]),
            (r#""cats": 16"#, r#""cats": "16""#, &["block 3", "`cats`"]),
            ("[2, 0, 16]", "[2, 0, 16, 3]", &["4 variables", "3 input nodes"]),
            ("[2, 0, 16]", "[2, 0]", &["variable 2 is outside 0..2"]),
            (r#""cardinalities": [2, 0, 16]"#, r#""num_vars": 4000000000"#, &["4000000000 variables"]),
            (r#""nodes""#, r#""knots""#, &["`nodes` is missing"]),
            (r#""params""#, r#""parms""#, &["`params` is missing"]),
        ];
        for (from, to, words) in edits {
            assert_eq!(RICH.matches(from).count(), 1, "`{from}` must name one place");
            refused(&RICH.replace(from, to), words);
        }
        refused("[]", &["object"]);
        refused("nonsense", &["JSON"]);
        refused(r#"{"nodes": [], "params": []}"#, &["no nodes"]);
        refused(r#"{"nodes": [{"kind": "input", "var": 99999999999, "param": 0}], "params": [[1]]}"#, &["node 0"]);
    }

    proptest! {
        #[test]
        fn values_come_back_to_the_same_bits(seed in proptest::collection::vec(any::<u32>(), 16)) {
            let (circuit, _) = rich();
            let mut seed = seed.into_iter().cycle();
            // Any positive f32, subnormal ones too: scales may not be zero.
            let mut positive = || f32::from_bits(seed.next().unwrap() % f32::MAX.to_bits() + 1);
            let rows: Vec<Vec<Vec<f32>>> = circuit.param_ids().map(|id| {
                let block = circuit.layout().block(id);
                (0..block.units()).map(|_| (0..block.values_per_row).map(|_| positive()).collect()).collect()
            }).collect();
            let params = Params::from_rows(&circuit, |id, unit| rows[id.index()][unit].clone()).unwrap();
            let (again, params_again) = read_circuit(&write_circuit(&circuit, Some(&params))).unwrap();
            same(&circuit, &again);
            let bits = |params: &Params| params.values().iter().map(|v| v.to_bits()).collect::<Vec<_>>();
            prop_assert_eq!(bits(&params), bits(&params_again.unwrap()));
        }

        #[test]
        fn no_text_makes_it_panic(at in 0..RICH.len(), with in "[-0-9\\[\\]{}\",:.ea-z]{0,6}", drop in 0..8usize) {
            let end = (at + drop).min(RICH.len());
            prop_assume!(RICH.is_char_boundary(at) && RICH.is_char_boundary(end));
            drop_result(read_circuit(&format!("{}{with}{}", &RICH[..at], &RICH[end..])));
        }
    }

    fn drop_result<T>(_: Result<T>) {}
}
