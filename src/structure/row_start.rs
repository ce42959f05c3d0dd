//! A start for trees and regions: every state begins as a whole row.
//!
//! From noise each latent learns its own neighbourhood, and what concerns the whole row is found late or never. Here
//! state k of every latent begins at the same row of the data, and every inner sum near the identity, so that the
//! circuit begins as a mixture of whole rows: what is far apart agrees from the first update. The formulas are in
//! `docs/MATH.md`, "A start from rows". The same rows and seed give the same start on any number of threads. For
//! densities `densities` does the part of the tables.

use super::Clusters;
use crate::circuit::{Circuit, NodeKind, ParamId, ParamKind, Params, SumGroup};
use crate::data::Batch;
use crate::error::Result;
use crate::rng::Rng;

/// Rows that a start looks at: frequencies are counted over them, and states are drawn from them.
pub const ROWS_OF_A_START: usize = 1024;

/// What a state believes of its own row's values.
const TRUST_IN_ROW: f64 = 0.3;

/// How far apart the rest of the tables starts: exp(−p·U).
const PERTURBATION: f64 = 1.0;

/// How near the identity inner sums begin.
const IDENTITY: f64 = 0.8;

/// What rows and noise are drawn with besides the seed.
const SEED_OF_ROWS: u64 = 0x7374_6172;
const SEED_OF_TABLES: u64 = 0x7461_626c;

/// Moves a start to rows: tables of variables that do not share one, and all sums but the root's.
pub fn start_from_rows(circuit: &Circuit, rows: &Batch, seed: u64, params: &mut Params) -> Result<()> {
    let first: Vec<usize> = (0..rows.num_rows().min(ROWS_OF_A_START)).collect();
    move_to_rows(circuit, rows, &[first], seed, params)
}

/// The same for a mixture of trees: states of a component begin at rows of its own cluster. `Clusters::move_start` has
/// weighed the components before.
pub fn start_from_clusters(
    circuit: &Circuit,
    rows: &Batch,
    clusters: &Clusters,
    seed: u64,
    params: &mut Params,
) -> Result<()> {
    let all: Vec<usize> = (0..rows.num_rows()).collect();
    let of_clusters: Vec<Vec<usize>> = (0..clusters.sizes().len())
        .map(|cluster| match clusters.rows_of(cluster) {
            none if none.is_empty() => all.clone(), // it lost its rows to others, and begins at the mean of all rows
            own => own,
        })
        .collect();
    move_to_rows(circuit, rows, &of_clusters, seed, params)
}

/// `places` has the rows for the first, second, … input of a variable, from its beginning again where inputs are more:
/// components and repetitions begin elsewhere.
fn move_to_rows(circuit: &Circuit, rows: &Batch, places: &[Vec<usize>], seed: u64, params: &mut Params) -> Result<()> {
    if rows.num_rows() == 0 {
        return Ok(());
    }
    let mut users = vec![0; circuit.params().len()];
    circuit.nodes().iter().for_each(|node| {
        if let NodeKind::Input { param, .. } = node.kind {
            users[param.index()] += 1;
        }
    });
    let mut seen = vec![0; circuit.num_vars()];
    let mut moved = vec![false; circuit.params().len()]; // weights that nodes share are moved once
    for (at, node) in circuit.nodes().iter().enumerate() {
        match &node.kind {
            NodeKind::Input { var, param } => {
                let place = seen[*var];
                seen[*var] += 1;
                let is_table =
                    matches!(&circuit.params()[param.index()].kind, ParamKind::Input(input) if input.is_table());
                if is_table && users[param.index()] == 1 {
                    let own = &places[place % places.len()];
                    let states = draw_rows(own, node.units, &mut Rng::stream(seed ^ SEED_OF_ROWS, place as u64));
                    start_table(rows, own, *var, *param, &states, seed, params)?;
                }
            }
            NodeKind::Sum { groups } if at != circuit.root().index() => {
                let mut first = 0;
                for group in groups {
                    if !std::mem::replace(&mut moved[group.param.index()], true) {
                        near_identity(circuit, group, first, params)?;
                    }
                    first += circuit.layout().block(group.param).units();
                }
            }
            NodeKind::Sum { .. } | NodeKind::Product { .. } => {}
        }
    }
    Ok(())
}

/// `count` of these rows, none twice as long as there are others.
fn draw_rows(rows: &[usize], count: usize, rng: &mut Rng) -> Vec<usize> {
    let mut drawn = Vec::with_capacity(count);
    while drawn.len() < count {
        let mut order = rows.to_vec();
        rng.shuffle(&mut order);
        drawn.extend(order.into_iter().take(count - drawn.len()));
    }
    drawn
}

/// The category of a variable in a row, if it is there and one of `cats`.
pub(super) fn category(rows: &Batch, row: usize, var: usize, cats: usize) -> Option<usize> {
    let value = rows.column(var).category(row).filter(|_| !rows.is_missing(row, var));
    value.map(|cat| cat as usize).filter(|&cat| cat < cats)
}

/// θ[k, c] = (1−m)·norm(q(c)·exp(−p·U)) + m·[c = x of row k], q the frequencies; a state whose row misses it has no
/// second part.
fn start_table(
    rows: &Batch,
    own: &[usize],
    var: usize,
    param: ParamId,
    states: &[usize],
    seed: u64,
    params: &mut Params,
) -> Result<()> {
    let cats = params.row(param, 0).len();
    let mut frequencies = vec![1.0 / cats as f64; cats];
    own.iter().filter_map(|&row| category(rows, row, var, cats)).for_each(|cat| frequencies[cat] += 1.0);
    let mut rng = Rng::stream(seed ^ SEED_OF_TABLES, param.index() as u64);
    for (unit, &row) in states.iter().enumerate() {
        let mut table: Vec<f64> = frequencies.iter().map(|q| q * (-PERTURBATION * rng.uniform()).exp()).collect();
        let total: f64 = table.iter().sum();
        table.iter_mut().for_each(|p| *p /= total);
        if let Some(cat) = category(rows, row, var, cats) {
            table.iter_mut().for_each(|p| *p *= 1.0 - TRUST_IN_ROW);
            table[cat] += TRUST_IN_ROW;
        }
        params.set_row(param, unit, &table.iter().map(|&p| p as f32).collect::<Vec<_>>())?;
    }
    Ok(())
}

/// W[a, (child, k)] ← (1−d)·W + d·[a = k] / children that have a unit k. Rows that nothing belongs to stay as they are.
/// `first` is the number of the group's first unit.
fn near_identity(circuit: &Circuit, group: &SumGroup, first: usize, params: &mut Params) -> Result<()> {
    for unit in 0..circuit.layout().block(group.param).units() {
        let own = first + unit;
        let mut columns = Vec::new();
        let mut before = 0;
        for child in &group.children {
            if (child.start..child.start + child.units).contains(&own) {
                columns.push(before + own - child.start);
            }
            before += child.units;
        }
        if columns.is_empty() {
            continue;
        }
        let mut row = params.row(group.param, unit);
        row.iter_mut().for_each(|w| *w *= (1.0 - IDENTITY) as f32);
        columns.iter().for_each(|&column| row[column] += (IDENTITY / columns.len() as f64) as f32);
        params.set_row(group.param, unit, &row)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::{HcltOptions, HcltParams, PdOptions, RatSpnOptions, Tree, hclt, pd, rat_spn};
    use super::*;
    use crate::backend::Backend;
    use crate::backend::cpu::{CpuBackend, CpuOptions};
    use crate::circuit::Categorical;

    const NUM_VARS: usize = 12;

    /// Rows of one value in four each, at random: nothing tells variables about each other but the row itself.
    fn rows(num_rows: usize) -> Batch {
        let mut rng = Rng::new(4);
        let values: Vec<u8> = (0..num_rows * NUM_VARS).map(|_| rng.below(4) as u8).collect();
        Batch::from_rows(&values, NUM_VARS).unwrap()
    }

    fn chain(components: usize) -> (Circuit, Tree) {
        let tree = Tree::from_parents(&(0..NUM_VARS).map(|v| v.checked_sub(1)).collect::<Vec<_>>()).unwrap();
        let options = HcltOptions { components, ..HcltOptions::default() };
        (hclt(&tree, 5, |_| Categorical::new(4).unwrap(), options).unwrap(), tree)
    }

    fn started(circuit: &Circuit, rows: &Batch, seed: u64) -> Params {
        let mut params = Params::random(circuit, seed, 2.0).unwrap();
        start_from_rows(circuit, rows, seed, &mut params).unwrap();
        params.check(circuit).unwrap();
        params
    }

    fn circuits() -> Vec<Circuit> {
        let cats = |_: usize| Categorical::new(4).unwrap() as _;
        let spn = RatSpnOptions { latents: 5, depth: 2, repetitions: 2, pieces: 2, seed: 1 };
        let boxes = PdOptions::new(vec![3, 2], 4);
        vec![chain(1).0, chain(3).0, rat_spn(NUM_VARS, &spn, cats).unwrap(), pd(&[6, 2], &boxes, cats).unwrap()]
    }

    #[test]
    fn every_param_row_is_a_distribution_and_the_seed_decides_it() {
        for (at, circuit) in circuits().iter().enumerate() {
            let rows = rows(200).with_missing(|row, var| (row + var) % 7 == 0);
            let params = started(circuit, &rows, 3);
            for param in circuit.param_ids() {
                for unit in 0..circuit.layout().block(param).units() {
                    let total: f32 = params.row(param, unit).iter().sum();
                    assert!((total - 1.0).abs() < 1e-5, "circuit {at}, block {param}: {total}");
                }
            }
            assert_eq!(params, started(circuit, &rows, 3));
            assert_ne!(params, started(circuit, &rows, 4));
        }
    }

    #[test]
    fn a_tree_begins_as_a_mixture_of_whole_rows() {
        let (circuit, tree) = chain(1);
        let rows = rows(300);
        let params = started(&circuit, &rows, 2);
        let ids = HcltParams::new(&tree, HcltOptions::default());
        // What states of all variables agree on is a row of the data.
        let believed = |unit: usize| -> Vec<u32> {
            let of = |var: usize| {
                let table = params.row(ids.inputs(0, var), unit);
                (0..4).max_by(|&a, &b| table[a as usize].total_cmp(&table[b as usize])).unwrap()
            };
            (0..NUM_VARS).map(of).collect()
        };
        let row = |row: usize| (0..NUM_VARS).map(|var| rows.column(var).category(row).unwrap()).collect::<Vec<_>>();
        let found: Vec<usize> =
            (0..5).map(|unit| (0..300).find(|&at| row(at) == believed(unit)).expect("a whole row")).collect();
        // Those rows are far likelier than others, and than they are from noise.
        let shared = std::sync::Arc::new(circuit);
        let likelihoods = |params: &Params| {
            let mut backend = CpuBackend::new(shared.clone(), params, &CpuOptions::default()).unwrap();
            backend.log_likelihoods(&rows).unwrap()
        };
        let (of_rows, of_noise) = (likelihoods(&params), likelihoods(&Params::random(&shared, 2, 2.0).unwrap()));
        let others = of_rows.iter().sum::<f64>() / 300.0;
        for at in found {
            assert!(of_rows[at] > others + 2.0 && of_rows[at] > of_noise[at] + 2.0, "row {at}: {}", of_rows[at]);
        }
    }

    #[test]
    fn states_of_a_component_begin_at_rows_of_its_cluster() {
        // Two kinds of rows that share no value: clusters find them.
        let mut rng = Rng::new(7);
        let values: Vec<u8> =
            (0..100).flat_map(|row| [2 * (row % 2); NUM_VARS]).map(|v| v + rng.below(2) as u8).collect();
        let rows = Batch::from_rows(&values, NUM_VARS).unwrap();
        let (circuit, tree) = chain(2);
        let options = HcltOptions { components: 2, ..HcltOptions::default() };
        let ids = HcltParams::new(&tree, options);
        let clusters = Clusters::of_rows(&rows, 4, 2, 1).unwrap();
        assert_eq!(clusters.sizes(), [50, 50]);
        let mut params = Params::random(&circuit, 1, 2.0).unwrap();
        start_from_clusters(&circuit, &rows, &clusters, 1, &mut params).unwrap();
        params.check(&circuit).unwrap();
        for component in 0..2 {
            let kind = clusters.rows_of(component)[0] % 2;
            assert!(clusters.rows_of(component).iter().all(|row| row % 2 == kind));
            for var in 0..NUM_VARS {
                let wrong = |unit: usize| params.row(ids.inputs(component, var), unit)[2 * (1 - kind)..][..2].to_vec();
                assert!((0..5).flat_map(wrong).all(|p| p < 0.02), "component {component}, variable {var}");
            }
        }
        // Tables that variables share keep their noise, and sums begin near the identity as all do.
        let tied = hclt(&tree, 5, |_| Categorical::new(4).unwrap(), HcltOptions { tie_inputs: true, components: 1 });
        let tied = tied.unwrap();
        let (noise, start) = (Params::random(&tied, 1, 2.0).unwrap(), started(&tied, &rows, 1));
        let ids = HcltParams::new(&tree, HcltOptions { tie_inputs: true, components: 1 });
        let (table, sum) = (ids.inputs(0, 3), ids.sum(0, 3).unwrap());
        assert_eq!(start.row(table, 1), noise.row(table, 1));
        assert!(start.row(sum, 1)[1] > 0.8 && noise.row(sum, 1)[1] < 0.8);
    }

    #[test]
    fn more_states_than_rows_and_none_at_all_are_no_trouble() {
        let (circuit, _) = chain(1);
        started(&circuit, &rows(2), 1);
        let noise = Params::random(&circuit, 1, 2.0).unwrap();
        assert_eq!(started(&circuit, &rows(1).slice(0..0), 1), noise);
    }
}
