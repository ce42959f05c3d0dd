//! Holds the learner against PyJuice: seven circuits with their flows and updates.
//!
//! The reference file gives each quantity as PyJuice computed it in single precision and as a double-precision
//! evaluator of the same rules did; we compare with the latter. Circuits are built from their node lists, as they are.
//! Tolerances are those of `tests/model/oracle.rs`: log-likelihoods to 1e-5 of their size, which is some hundred
//! roundings of f32, parameters and mean flows to 2e-5, because they are f32 sums of numbers about 1.

use std::collections::BTreeMap;
use std::sync::Arc;

use anemone::backend::Backend;
use anemone::circuit::{
    Categorical, Circuit, CircuitBuilder, DiscreteLogistic, Distribution, Factor, Gaussian, NodeId, NodeKind, ParamId,
    Params, Slice, Smoothing, SumGroup,
};
use anemone::data::Batch;
use anemone::optim::{AnemoneSpec, FullBatchEmSpec, MiniBatchEmSpec, OptimizerSpec, Schedule};
use anemone::structure::{
    HcltOptions, MutualInformation, PdOptions, Tree, Tying, hclt, hmm_with, mutual_information, pdhclt,
};
use serde_json::Value;

use crate::common::compare::{LOG_LIKELIHOOD, PROBABILITY, Tolerance, close, close_rows};
use crate::common::reference::{categories, fixture, index, list, matrix, number, read_json, reals, vector};
use crate::common::spec::{Table, param_table};
use crate::common::{cpu, learned, mean_flows, top_down};

/// A circuit of the reference, built here, and where its parameters are.
struct Reference {
    name: String,
    json: Value,
    circuit: Arc<Circuit>,
    params: Params,
    /// Which param row holds which row of which source vector of the reference.
    places: Vec<Place>,
}

/// Row `row` of the reference's vector `source` is row `unit` of `param`; `cols` are the child units that it weighs.
#[derive(Clone)]
struct Place {
    source: String,
    row: usize,
    param: ParamId,
    unit: usize,
    /// Columns of the dense matrix of the reference; `None` takes the row whole (inputs).
    cols: Option<Vec<usize>>,
}

impl Place {
    /// The part of a reference table that belongs here.
    fn of(&self, table: &Value) -> Vec<f64> {
        let row = vector(&list(&table[&self.source])[self.row]);
        match &self.cols {
            None => row,
            Some(cols) => cols.iter().map(|&c| row[c]).collect(),
        }
    }
}

impl Reference {
    fn batch(&self, key: &str) -> Batch {
        let is_real = self.circuit.params().iter().any(|block| format!("{block:?}").contains("Gaussian"));
        if is_real { reals(&self.json[key]) } else { categories(&self.json[key]) }
    }

    fn missing(&self) -> Batch {
        let mask = matrix(&self.json["missing_mask"]);
        self.batch("data").with_missing(|row, var| mask[row][var] != 0.0)
    }

    fn oracle(&self, key: &str) -> &Value {
        let value = &self.json["oracle_float64"][key];
        assert!(!value.is_null(), "{}: the reference has no {key}", self.name);
        value
    }

    /// Compares a table of ours with a table of the reference, which is divided by `scale`.
    fn compare(&self, key: &str, got: &Table, scale: f64) {
        let pick = |place: &Place| got[place.param.index()][place.unit].clone();
        let got: Vec<Vec<f64>> = self.places.iter().map(pick).collect();
        let table = self.oracle(key);
        let want: Vec<Vec<f64>> =
            self.places.iter().map(|place| place.of(table).iter().map(|v| v / scale).collect()).collect();
        close_rows(&format!("{}: {key}", self.name), &got, &want, PROBABILITY);
    }

    fn after(&self, key: &str, spec: &OptimizerSpec, batches: &[&Batch]) {
        let params = learned(&self.circuit, &self.params, spec, batches);
        self.compare(key, &param_table(&self.circuit, &params), 1.0);
    }
}

fn reference(name: &str) -> Reference {
    as_given(name, &read_json(&fixture("pyjuice/reference.json"))["circuits"][name])
}

/// The circuit of the node list, vector for vector. Vectors that only unused products reach are left out: they have
/// no effect on the distribution, and a circuit has a single root.
fn as_given(name: &str, json: &Value) -> Reference {
    let nodes = list(&json["nodes"]);
    let used = reachable(nodes);
    let num_vars = list(&list(&json["data"])[0]).len();
    let mut circuit = CircuitBuilder::new(num_vars);
    let mut ids: BTreeMap<usize, NodeId> = BTreeMap::new();
    let mut blocks: BTreeMap<String, Vec<ParamId>> = BTreeMap::new();
    let mut places = Vec::new();
    for (i, node) in nodes.iter().enumerate().filter(|(i, _)| used[*i]) {
        assert_eq!(index(&node["id"]), i);
        let source = if node["tied_to"].is_null() { i.to_string() } else { index(&node["tied_to"]).to_string() };
        let children: Vec<usize> = list(&node["children"]).iter().map(index).collect();
        let block_size = index(&node["block_size"]);
        let id = match node["type"].as_str() {
            Some("input") => {
                let units = index(&node["num_nodes"]);
                let param = blocks.entry(source.clone()).or_insert_with(|| {
                    let param = circuit.input_param(units, distribution(&node["dist"])).unwrap();
                    let rows =
                        (0..units).map(|row| Place { source: source.clone(), row, param, unit: row, cols: None });
                    places.extend(rows);
                    vec![param]
                })[0];
                circuit.input(index(&list(&node["scope"])[0]), param).unwrap()
            }
            Some("product") => {
                let edges = matrix(&node["edge_ids"]);
                let factors = children.iter().enumerate().map(|(c, child)| {
                    let map =
                        edges.iter().flat_map(|row| (0..block_size).map(move |i| row[c] as usize * block_size + i));
                    Factor { node: ids[child], map: Some(map.map(|u| u as u32).collect()) }
                });
                circuit.mapped_product(factors.collect()).unwrap()
            }
            Some("sum") => {
                let children =
                    children.iter().map(|&child| (ids.get(&child).copied(), index(&nodes[child]["num_nodes"])));
                let groups = groups(node, &children.collect::<Vec<_>>());
                let params = blocks.entry(source.clone()).or_insert_with(|| {
                    let params = groups.iter().enumerate().map(|(g, group)| {
                        let param = circuit.sum_param(block_size, group.cols.len()).unwrap();
                        places.extend((0..block_size).map(|unit| Place {
                            source: source.clone(),
                            row: g * block_size + unit,
                            param,
                            unit,
                            cols: Some(group.cols.clone()),
                        }));
                        param
                    });
                    params.collect()
                });
                let groups = groups.into_iter().zip(params).map(|(g, p)| SumGroup { children: g.slices, param: *p });
                circuit.grouped_sum(groups.collect()).unwrap()
            }
            other => panic!("{name}: node {i} is {other:?}"),
        };
        ids.insert(i, id);
    }
    let circuit = Arc::new(circuit.finish().unwrap_or_else(|e| panic!("{name}: {e}")));
    let params = reference_params(&circuit, &places, &json["initial_params"]);
    Reference { name: name.to_string(), json: json.clone(), circuit, params, places }
}

fn reference_params(circuit: &Circuit, places: &[Place], initial: &Value) -> Params {
    let row = |param: ParamId, unit: usize| {
        let place = places.iter().find(|p| p.param == param && p.unit == unit).expect("every row has a place");
        place.of(initial).into_iter().map(|v| v as f32).collect()
    };
    Params::from_rows(circuit, row).unwrap()
}

/// Which vectors the root reaches. A product counts only if a sum has an edge to it.
fn reachable(nodes: &[Value]) -> Vec<bool> {
    let mut used = vec![false; nodes.len()];
    *used.last_mut().unwrap() = true;
    for (i, node) in nodes.iter().enumerate().rev() {
        if !used[i] {
            continue;
        }
        let children: Vec<usize> = list(&node["children"]).iter().map(index).collect();
        if node["type"] == "sum" {
            let size = index(&node["ch_block_size"]);
            let mut start = 0;
            for child in children {
                let blocks = index(&nodes[child]["num_nodes"]) / size;
                let touched = vector(&list(&node["edge_ids"])[1]);
                used[child] |= touched.iter().any(|&b| (start..start + blocks).contains(&(b as usize)));
                start += blocks;
            }
        } else {
            children.into_iter().for_each(|child| used[child] = true);
        }
    }
    used
}

/// The children of one block of sum nodes.
struct Group {
    slices: Vec<Slice>,
    /// Their columns in the dense matrix of the reference.
    cols: Vec<usize>,
}

/// One group for each block of a sum: the child blocks that its edges name, in order. A child is its node and its
/// number of units; an unused product has units but no node.
fn groups(node: &Value, children: &[(Option<NodeId>, usize)]) -> Vec<Group> {
    let size = index(&node["ch_block_size"]);
    let edges = matrix(&node["edge_ids"]);
    // Child blocks are numbered over the concatenation of the children.
    let locate = |block: usize| {
        let mut first = block * size;
        for &(child, units) in children {
            if first < units {
                return Slice { node: child.expect("no edge leads to an unused product"), start: first, units: size };
            }
            first -= units;
        }
        panic!("no child block {block}")
    };
    let blocks = (0..index(&node["num_node_blocks"])).map(|b| {
        let touched: Vec<usize> =
            edges[0].iter().zip(&edges[1]).filter(|(n, _)| **n as usize == b).map(|(_, c)| *c as usize).collect();
        let cols = touched.iter().flat_map(|block| block * size..(block + 1) * size).collect();
        Group { slices: touched.into_iter().map(locate).collect(), cols }
    });
    blocks.collect()
}

fn distribution(dist: &Value) -> Arc<dyn Distribution> {
    match dist["name"].as_str() {
        Some("Categorical") => Categorical::new(index(&dist["num_cats"]) as u32).unwrap(),
        Some("Gaussian") => Gaussian::new(number(&dist["min_sigma"]), 0.0).unwrap(),
        Some("DiscreteLogistic") => {
            let range = vector(&dist["val_range"]);
            let cats = index(&dist["num_cats"]) as u32;
            DiscreteLogistic::new(cats, (range[0], range[1]), number(&dist["min_std"])).unwrap()
        }
        other => panic!("the reference has no {other:?}"),
    }
}

fn anemone(momentum: f64, batches_per_update: u64, epsilon: f64) -> OptimizerSpec {
    let step = Schedule::Constant { step: 0.4 };
    OptimizerSpec::Anemone(AnemoneSpec {
        step,
        momentum,
        batches_per_update,
        smoothing: Smoothing::Absolute(epsilon),
        ..AnemoneSpec::paper()
    })
}

/// Everything but the updates: what a circuit with these parameters says about the reference's data.
fn check_evaluation(r: &Reference) {
    let (data, missing) = (r.batch("data"), r.missing());
    let mut backend = cpu(&r.circuit, &r.params);
    for (batch, key) in [(&data, "log_likelihood"), (&missing, "log_marginal_with_missing")] {
        let got = backend.log_likelihoods(batch).unwrap();
        close(&format!("{}: {key}", r.name), &got, &vector(r.oracle(key)), LOG_LIKELIHOOD);
    }
    for (batch, key) in [(&data, "param_flows"), (&missing, "param_flows_with_missing")] {
        let (flows, _) = mean_flows(&mut backend, batch);
        r.compare(key, &flows, batch.num_rows() as f64); // the reference sums over the batch
    }
}

/// The reference gives TD per vector, not added up over tied copies.
fn check_top_down(r: &Reference) {
    let ours = top_down(&mut cpu(&r.circuit, &r.params));
    let td = r.oracle("td_prob");
    let mut wanted: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for node in list(&r.json["nodes"]).iter().filter(|n| n["type"] != "product") {
        let id = index(&node["id"]);
        let source = if node["tied_to"].is_null() { id } else { index(&node["tied_to"]) };
        let here = vector(&td[id.to_string()]);
        let total = wanted.entry(source.to_string()).or_insert_with(|| vec![0.0; here.len()]);
        total.iter_mut().zip(here).for_each(|(t, h)| *t += h);
    }
    let got: Vec<f64> = r.places.iter().map(|p| ours[p.param.index()][p.unit]).collect();
    let want: Vec<f64> = r.places.iter().map(|p| wanted[&p.source][p.row]).collect();
    close(&format!("{}: td", r.name), &got, &want, PROBABILITY);
}

/// One update of each rule, with each smoothing. No row of these circuits is without flow, so that none is left out:
/// PyJuice would make such a row uniform or NaN where we keep it.
fn check_updates(r: &Reference) {
    let (data, data2) = (r.batch("data"), r.batch("data2"));
    let masses: Vec<f64> =
        r.places.iter().map(|p| p.of(r.oracle("param_flows")).iter().map(|f| f.abs()).sum()).collect();
    assert!(masses.iter().all(|&m| m > 0.0), "{}: a row has no flow; leave it out of the comparison", r.name);
    let rows = data.num_rows() as f64;
    for (pc, epsilon) in [("pc0", 0.0), ("pc0.1", 0.1)] {
        // PyJuice adds ε to flows summed over the batch: so does our full-batch EM; our mini-batch EM works on means.
        let full = OptimizerSpec::FullBatchEm(FullBatchEmSpec {
            smoothing: Smoothing::Absolute(epsilon),
            ..Default::default()
        });
        r.after(&format!("params_after_full_em_{pc}"), &full, &[&data]);
        let smoothing = Smoothing::Absolute(epsilon / rows);
        let step = Schedule::Constant { step: 0.1 };
        let mini = OptimizerSpec::MiniBatchEm(MiniBatchEmSpec { step, smoothing, ..Default::default() });
        r.after(&format!("params_after_mini_em_0.1_{pc}"), &mini, &[&data]);
    }
    for (pc, epsilon) in [("pc0", 0.0), ("pc1e-6", 1e-6), ("pc0.1", 0.1)] {
        r.after(&format!("params_after_anemone_0.4_{pc}"), &anemone(0.0, 1, epsilon), &[&data]);
    }
    let momentum = "params_after_anemone_0.4_m0.9_pc1e-6";
    r.after(&format!("{momentum}_update1"), &anemone(0.9, 1, 1e-6), &[&data]);
    // Our momentum averages means per sample, so that a short batch counts like any other.
    r.after(&format!("{momentum}_update2_per_sample_momentum"), &anemone(0.9, 1, 1e-6), &[&data, &data2]);
    r.after("params_after_anemone_0.4_pc1e-6_accumulate2", &anemone(0.0, 2, 1e-6), &[&data, &data2]);
}

// The same circuits, made by our own structures.

/// Finds the reference's parameters in a circuit of ours: by scope, and for sums over several products by what they
/// multiply.
fn as_we_build_it(name: &str, build: impl Fn(&Value) -> Circuit) -> Reference {
    let json = read_json(&fixture("pyjuice/reference.json"))["circuits"][name].clone();
    let circuit = build(&json);
    let nodes = list(&json["nodes"]);
    let scopes = scopes(&circuit);
    let mut places: Vec<Place> = Vec::new();
    for (node, scope) in circuit.nodes().iter().zip(&scopes) {
        let (param, theirs, cols) = match &node.kind {
            NodeKind::Product { .. } => continue,
            NodeKind::Input { param, .. } => (*param, find(nodes, "input", scope), None),
            NodeKind::Sum { groups } => {
                let [group] = &groups[..] else { panic!("{name}: these sums are dense") };
                let sum = find(nodes, "sum", scope);
                let cols = group.children.iter().flat_map(|child| {
                    let factors = match &circuit.node(child.node).kind {
                        NodeKind::Product { factors } => {
                            factors.iter().map(|f| scopes[f.node.index()].clone()).collect()
                        }
                        _ => vec![scopes[child.node.index()].clone()],
                    };
                    let first = column_of(nodes, sum, &factors);
                    first..first + child.units
                });
                (group.param, sum, Some(cols.collect::<Vec<usize>>()))
            }
        };
        let theirs = &nodes[theirs];
        let source = if theirs["tied_to"].is_null() { &theirs["id"] } else { &theirs["tied_to"] }.to_string();
        if let Some(known) = places.iter().find(|place| place.param == param) {
            assert_eq!(known.source, source, "{name}: we tie what the reference does not");
            continue;
        }
        assert!(places.iter().all(|place| place.source != source), "{name}: the reference ties what we do not");
        assert_eq!(node.units, index(&theirs["num_nodes"]), "{name}");
        let rows =
            (0..node.units).map(|row| Place { source: source.clone(), row, param, unit: row, cols: cols.clone() });
        places.extend(rows);
    }
    let params = reference_params(&circuit, &places, &json["initial_params"]);
    Reference { name: format!("{name}, our own"), json, circuit: Arc::new(circuit), params, places }
}

/// The variables below every node, ascending.
fn scopes(circuit: &Circuit) -> Vec<Vec<usize>> {
    let mut scopes: Vec<Vec<usize>> = Vec::new();
    for node in circuit.nodes() {
        let mut scope = match &node.kind {
            NodeKind::Input { var, .. } => vec![*var],
            NodeKind::Product { factors } => factors.iter().flat_map(|f| scopes[f.node.index()].clone()).collect(),
            NodeKind::Sum { groups } => scopes[groups[0].children[0].node.index()].clone(),
        };
        scope.sort_unstable();
        scopes.push(scope);
    }
    scopes
}

fn scope_of(node: &Value) -> Vec<usize> {
    list(&node["scope"]).iter().map(index).collect()
}

/// The only vector of that kind over that scope, besides the pass-through sums that PyJuice adds when it compiles.
fn find(nodes: &[Value], kind: &str, scope: &[usize]) -> usize {
    let fits = |node: &&Value| node["type"] == kind && node["added_by_compile"] == false && scope_of(node) == scope;
    let found: Vec<usize> = nodes.iter().filter(fits).map(|node| index(&node["id"])).collect();
    let [only] = found[..] else { panic!("{kind} over {scope:?}: the reference has {found:?}") };
    only
}

/// The first column of a sum's child that multiplies these scopes, seen through pass-through sums.
fn column_of(nodes: &[Value], sum: usize, factors: &[Vec<usize>]) -> usize {
    let mut wanted = factors.to_vec();
    wanted.sort();
    let mut column = 0;
    for child in list(&nodes[sum]["children"]).iter().map(index) {
        let mut product = child;
        while nodes[product]["added_by_compile"] == true {
            product = index(&list(&nodes[product]["children"])[0]);
        }
        let mut multiplied: Vec<Vec<usize>> =
            list(&nodes[product]["children"]).iter().map(|factor| scope_of(&nodes[index(factor)])).collect();
        multiplied.sort();
        if multiplied == wanted {
            return column;
        }
        column += index(&nodes[child]["num_nodes"]);
    }
    panic!("sum {sum} of the reference mixes no product of {wanted:?}")
}

fn check_all(reference: &Reference) {
    check_evaluation(reference);
    check_top_down(reference);
    check_updates(reference);
}

/// The distribution of all inputs of a reference circuit.
fn inputs_of(json: &Value) -> Arc<dyn Distribution> {
    let input = list(&json["nodes"]).iter().find(|node| node["type"] == "input").expect("there are inputs");
    distribution(&input["dist"])
}

/// The data that the reference learned its structure from: numbers stay numbers, categories categories.
fn structure_data(json: &Value) -> Batch {
    let rows = &json["structure_data"];
    if matrix(rows).iter().flatten().all(|v| v.fract() == 0.0) { categories(rows) } else { reals(rows) }
}

fn soft_bins(args: &Value) -> MutualInformation {
    MutualInformation::SoftBins {
        num_bins: index(&args["num_bins"]),
        sigma: number(&args["sigma"]),
        chunk_size: index(&args["chunk_size"]),
    }
}

fn our_hmm(json: &Value, tying: Tying) -> Circuit {
    hmm_with(list(&list(&json["data"])[0]).len(), 4, inputs_of(json), tying).unwrap()
}

#[test]
fn our_hmm_is_pyjuices() {
    check_all(&as_we_build_it("hmm", |json| our_hmm(json, Tying::Homogeneous)));
}

#[test]
fn our_untied_hmm_is_pyjuices() {
    check_all(&as_we_build_it("hmm_inhomogeneous", |json| our_hmm(json, Tying::Inhomogeneous)));
}

#[test]
fn our_hclt_is_pyjuices_down_to_mutual_information_tree_and_root() {
    for name in ["hclt", "hclt_gaussian", "hclt_discrete_logistic"] {
        let reference = as_we_build_it(name, |json| {
            let information = mutual_information(&structure_data(json), soft_bins(&json["structure_args"])).unwrap();
            let vars = information.num_vars();
            let ours: Vec<Vec<f64>> = (0..vars).map(|u| (0..vars).map(|v| information.get(u, v)).collect()).collect();
            // The reference is in single precision: 200 rows, each with up to 16 bins.
            let tolerance = Tolerance { absolute: 1e-5, relative: 1e-5 };
            close_rows(&format!("{name}: mutual information"), &ours, &matrix(&json["mutual_information"]), tolerance);
            let tree = Tree::chow_liu(&information).unwrap();
            assert_eq!(tree.root(), index(&json["root"]), "{name}: root");
            let mut edges: Vec<Vec<f64>> =
                (0..vars).filter_map(|v| tree.parent(v).map(|p| vec![p.min(v) as f64, p.max(v) as f64])).collect();
            edges.sort_by(|a, b| a.partial_cmp(b).expect("indices are numbers"));
            assert_eq!(edges, matrix(&json["tree_edges"]), "{name}: tree");
            hclt(&tree, 4, |_| inputs_of(json), HcltOptions::default()).unwrap()
        });
        check_all(&reference);
    }
}

/// PyJuice's has pass-through sums, which are the identity at first and off it by 1e-6 after an update: less than
/// the tolerance, also in the second update.
#[test]
fn our_pdhclt_is_pyjuices() {
    let how = MutualInformation::SoftBins { num_bins: 32, sigma: 0.5 / 32.0, chunk_size: 32 };
    check_all(&as_we_build_it("pdhclt", |json| {
        pdhclt(&structure_data(json), &[12], &PdOptions::new(vec![3], 4), how, |_| inputs_of(json)).unwrap()
    }));
}

macro_rules! held_against_pyjuice {
    ($($circuit:ident)*) => {
        $(mod $circuit {
            #[test]
            fn has_the_likelihoods_marginals_and_flows_of_pyjuice() {
                super::check_evaluation(&super::reference(stringify!($circuit)));
            }

            #[test]
            fn has_the_top_down_probabilities_of_pyjuice() {
                super::check_top_down(&super::reference(stringify!($circuit)));
            }

            #[test]
            fn is_updated_as_by_pyjuice() {
                super::check_updates(&super::reference(stringify!($circuit)));
            }
        })*

        #[test]
        fn no_circuit_of_the_reference_is_left_out() {
            let file = read_json(&fixture("pyjuice/reference.json"));
            let names: Vec<&String> = file["circuits"].as_object().expect("there are circuits").keys().collect();
            assert_eq!(names, [$(stringify!($circuit)),*]);
        }
    };
}

held_against_pyjuice!(hclt hclt_discrete_logistic hclt_gaussian hmm hmm_inhomogeneous pdhclt pdhclt_blocks);
