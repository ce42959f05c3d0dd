//! Columns of different kinds in one circuit: what they tell about each other, and a mixture of known truth.

use anemone::circuit::{Bernoulli, Distribution, Poisson};
use anemone::structure::{HcltOptions, MutualInformation, Tree, hclt, mutual_information, start_densities};

use super::em::training_log_likelihood;
use super::*;

const KINDS: usize = 3;

/// p(x | z) of four columns: a category, a truth value, a count, a number.
fn families() -> [Arc<dyn Distribution>; 4] {
    [Categorical::new(4).unwrap(), Bernoulli::new(), Poisson::new(1e-3).unwrap(), Gaussian::new(0.01, 0.0).unwrap()]
}

fn truth(kind: usize) -> [Vec<f32>; 4] {
    let chances = [[0.7, 0.1, 0.1, 0.1], [0.1, 0.7, 0.1, 0.1], [0.05, 0.05, 0.5, 0.4]];
    let (p, rate, mean) = ([0.1, 0.5, 0.9][kind], [1.0, 8.0, 30.0][kind], [-2.0, 0.0, 3.0][kind]);
    [chances[kind].to_vec(), vec![p], vec![rate], vec![mean, 0.7]]
}

/// Rows of three equally likely kinds, a fifth column of chance, and the mean log-likelihood of the first four.
fn rows(num_rows: usize, seed: u64) -> (Vec<Values>, f64) {
    let mut rng = Rng::new(seed);
    let (mut a, mut b, mut c, mut d, mut chance) = (vec![], vec![], vec![], vec![], vec![]);
    let mut total = 0.0;
    for _ in 0..num_rows {
        let params = truth(rng.below(KINDS));
        let row: Vec<f64> = families().iter().zip(&params).map(|(f, p)| f.sample(p, &mut rng)).collect();
        let given = |kind: usize| -> f64 {
            families().iter().zip(truth(kind)).zip(&row).map(|((f, p), &x)| f.log_prob(&p, x)).sum()
        };
        total += ((0..KINDS).map(|kind| given(kind).exp()).sum::<f64>() / KINDS as f64).ln();
        a.push(row[0] as u8);
        b.push(row[1] as u8);
        c.push(row[2] as f32);
        d.push(row[3] as f32);
        chance.push(rng.below(5) as u8);
    }
    let columns = vec![Values::U8(a), Values::U8(b), Values::F32(c), Values::F32(d), Values::U8(chance)];
    (columns, total / num_rows as f64)
}

#[test]
fn information_is_seen_between_any_two_kinds_of_column_and_categories_are_counted() {
    let columns = rows(3000, 1).0;
    let data = Batch::from_columns(columns.clone()).unwrap();
    let information = mutual_information(&data, MutualInformation::Auto).unwrap();
    for (u, v) in [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)] {
        let (related, chance) = (information.get(u, v), information.get(u, 4).max(information.get(v, 4)));
        assert!(related > 0.08 && related > 2.0 * chance, "({u}, {v}): {related}, by chance {chance}");
    }
    let categories = Batch::from_columns(vec![columns[0].clone(), columns[1].clone(), columns[4].clone()]).unwrap();
    let counted = mutual_information(&categories, MutualInformation::Counts).unwrap();
    for (u, v, a, b) in [(0, 1, 0, 1), (0, 4, 0, 2), (1, 4, 1, 2)] {
        // H adds 1e-4 to every probability.
        let (ours, exact) = (information.get(u, v), counted.get(a, b));
        assert!((ours - exact).abs() < 5e-3, "({u}, {v}): {ours} is not {exact}");
    }
}

#[test]
fn a_hidden_tree_over_a_mixed_table_comes_near_its_truth() {
    let first_four = |seed| {
        let (mut columns, truth) = rows(2000, seed);
        columns.truncate(4);
        (Batch::from_columns(columns).unwrap(), truth)
    };
    let (data, _) = first_four(1);
    let tree = Tree::chow_liu(&mutual_information(&data, MutualInformation::Auto).unwrap()).unwrap();
    let circuit = hclt(&tree, 4, |var| families()[var].clone(), HcltOptions::default()).unwrap();
    let mut case = Case::new("mixed table", circuit);
    start_densities(&case.circuit, &data, 1, &mut case.params).unwrap();
    let (mut backend, mut optimizer) = start(&case.circuit, &case.params, &full_batch_em());
    for _ in 0..60 {
        optimizer.learn(&mut backend, &data).unwrap();
        assert!(optimizer.end_epoch(&mut backend).unwrap());
    }
    let (held_out, truth) = first_four(2);
    let reached = training_log_likelihood(&case, &backend.params().unwrap(), &held_out);
    // About 50 parameters of 2,000 rows cost 50/(2·2000) = 0.013 nats per row; a local optimum may cost more.
    assert!(reached > truth - 0.08 && reached < truth + 0.02, "{reached}, truth {truth}");
}
