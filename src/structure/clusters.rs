//! A start for mixtures of trees: rows in clusters, one for each component.
//!
//! From a random start EM gives nearly all rows to the few components that happen to fit the mean row best, and the
//! others never come back. So every component starts where some rows are: clusters are a mixture of products, fitted by
//! classification EM (Celeux and Govaert 1992) to the sample from which the tree was learned. The formulas are in
//! `docs/MATH.md`, "A mixture of hidden trees". The same rows and seed give the same clusters on any number of threads.

use rayon::prelude::*;

use crate::circuit::{Circuit, NodeKind, ParamId, Params};
use crate::data::Batch;
use crate::error::{Error, Result};
use crate::rng::Rng;

/// How often rows are assigned. Few change after some rounds, and learning continues from there.
const ROUNDS: usize = 8;

/// What a cluster of one row, its seed, believes of that row's values.
const TRUST_IN_SEEDS: f64 = 0.5;

/// Clusters of rows, each a distribution of every variable on its own.
#[derive(Clone, Debug, PartialEq)]
pub struct Clusters {
    cats: usize,
    /// Rows of each cluster.
    sizes: Vec<usize>,
    /// The cluster of each row, as the tables were fitted.
    assigned: Vec<usize>,
    /// p(category of a variable | cluster), `[num_vars × cats × num_clusters]`, cluster fastest: a row adds up whole
    /// lines.
    tables: Vec<f64>,
}

impl Clusters {
    /// Clusters of rows of categories below `cats`.
    pub fn of_rows(rows: &Batch, cats: u32, num_clusters: usize, seed: u64) -> Result<Self> {
        if rows.num_rows() < num_clusters {
            return Err(Error::option(format!(
                "components = {num_clusters}: more than the {} rows that they start from; read more (structure_rows) \
                 or have fewer",
                rows.num_rows()
            )));
        }
        let values = categories(rows, cats)?;
        let num_vars = rows.num_vars();
        let mut order: Vec<usize> = (0..rows.num_rows()).collect();
        Rng::new(seed).shuffle(&mut order);
        let overall = overall(&values, num_vars, cats as usize);
        let mut clusters =
            Self { cats: cats as usize, sizes: vec![1; num_clusters], assigned: Vec::new(), tables: Vec::new() };
        clusters.tables = clusters.spread(&overall);
        for (cluster, &row) in order[..num_clusters].iter().enumerate() {
            clusters.believe(cluster, &values[row * num_vars..(row + 1) * num_vars]);
        }
        for _ in 0..ROUNDS {
            let assigned = clusters.assign(&values, num_vars);
            clusters.fit(&values, num_vars, &assigned, &overall);
            clusters.assigned = assigned;
        }
        Ok(clusters)
    }

    /// Rows of each cluster.
    pub fn sizes(&self) -> &[usize] {
        &self.sizes
    }

    /// The numbers of the rows of one.
    pub fn rows_of(&self, cluster: usize) -> Vec<usize> {
        (0..self.assigned.len()).filter(|&row| self.assigned[row] == cluster).collect()
    }

    /// Moves the start of a mixture of trees to the clusters: the k-th input node of a variable belongs to component k.
    /// Its tables, such as chance made them, are multiplied by those of the cluster, and the root weighs components by
    /// size.
    pub fn move_start(&self, circuit: &Circuit, params: &mut Params) -> Result<()> {
        let mut seen = vec![0; circuit.num_vars()];
        for node in circuit.nodes() {
            let NodeKind::Input { var, param } = node.kind else { continue };
            for unit in 0..node.units {
                let of = |cat: usize| self.tables[(var * self.cats + cat) * self.sizes.len() + seen[var]];
                reweigh(params, param, unit, of)?;
            }
            seen[var] += 1;
        }
        if let NodeKind::Sum { groups } = &circuit.nodes()[circuit.root().index()].kind {
            let total: usize = groups[0].children.iter().map(|child| child.units).sum();
            let latents = total / self.sizes.len();
            reweigh(params, groups[0].param, 0, |unit| self.sizes[unit / latents] as f64 + 1.0)?;
        }
        Ok(())
    }

    /// The overall distribution, for every cluster.
    fn spread(&self, overall: &[f64]) -> Vec<f64> {
        overall.iter().flat_map(|&p| std::iter::repeat_n(p, self.sizes.len())).collect()
    }

    /// p = (1−τ)·overall + τ·[the row has it].
    fn believe(&mut self, cluster: usize, row: &[Option<u32>]) {
        for (var, value) in row.iter().enumerate().filter_map(|(var, value)| value.map(|value| (var, value as usize))) {
            for cat in 0..self.cats {
                let p = &mut self.tables[(var * self.cats + cat) * self.sizes.len() + cluster];
                *p = (1.0 - TRUST_IN_SEEDS) * *p + if cat == value { TRUST_IN_SEEDS } else { 0.0 };
            }
        }
    }

    /// The cluster under which each row is likeliest, whatever its size; the first of equals.
    fn assign(&self, values: &[Option<u32>], num_vars: usize) -> Vec<usize> {
        let logs: Vec<f32> = self.tables.iter().map(|p| p.ln() as f32).collect();
        let num_clusters = self.sizes.len();
        let best = |row: &[Option<u32>]| {
            let mut scores = vec![0.0f32; num_clusters];
            for (var, value) in
                row.iter().enumerate().filter_map(|(var, value)| value.map(|value| (var, value as usize)))
            {
                let line = &logs[(var * self.cats + value) * num_clusters..][..num_clusters];
                scores.iter_mut().zip(line).for_each(|(score, log)| *score += log);
            }
            (1..num_clusters).fold(0, |best, cluster| if scores[cluster] > scores[best] { cluster } else { best })
        };
        values.par_chunks_exact(num_vars).map(best).collect()
    }

    /// p = (count + overall) / (rows + 1); a cluster that lost all rows gets the overall distribution.
    fn fit(&mut self, values: &[Option<u32>], num_vars: usize, assigned: &[usize], overall: &[f64]) {
        self.sizes.fill(0);
        self.tables = self.spread(overall);
        for (row, &cluster) in values.chunks_exact(num_vars).zip(assigned) {
            self.sizes[cluster] += 1;
            for (var, value) in
                row.iter().enumerate().filter_map(|(var, value)| value.map(|value| (var, value as usize)))
            {
                self.tables[(var * self.cats + value) * self.sizes.len() + cluster] += 1.0;
            }
        }
        // By what is there, not by the size of the cluster: values may be missing.
        for table in self.tables.chunks_exact_mut(self.cats * self.sizes.len()) {
            for cluster in 0..self.sizes.len() {
                let total: f64 = table.iter().skip(cluster).step_by(self.sizes.len()).sum();
                table.iter_mut().skip(cluster).step_by(self.sizes.len()).for_each(|p| *p /= total);
            }
        }
    }
}

/// The values of all rows, row by row.
fn categories(rows: &Batch, cats: u32) -> Result<Vec<Option<u32>>> {
    let mut values = Vec::with_capacity(rows.num_rows() * rows.num_vars());
    for row in 0..rows.num_rows() {
        for var in 0..rows.num_vars() {
            let value = rows.column(var).category(row).filter(|_| !rows.is_missing(row, var));
            if let Some(outside) = value.filter(|&value| value >= cats) {
                return Err(Error::data(format!("row {row}, variable {var}: {outside} is outside 0..{cats}")));
            }
            values.push(value);
        }
    }
    Ok(values)
}

/// p(category) of every variable over all rows, `[num_vars × cats]`, with one row's worth of everything else.
fn overall(values: &[Option<u32>], num_vars: usize, cats: usize) -> Vec<f64> {
    let mut tables = vec![1.0 / cats as f64; num_vars * cats];
    for row in values.chunks_exact(num_vars) {
        for (var, value) in row.iter().enumerate().filter_map(|(var, value)| value.map(|value| (var, value as usize))) {
            tables[var * cats + value] += 1.0;
        }
    }
    for table in tables.chunks_exact_mut(cats) {
        let total: f64 = table.iter().sum();
        table.iter_mut().for_each(|p| *p /= total);
    }
    tables
}

/// θ'[c] ∝ θ[c]·factor(c), for one param row.
fn reweigh(params: &mut Params, param: ParamId, unit: usize, factor: impl Fn(usize) -> f64) -> Result<()> {
    let row: Vec<f64> = params.row(param, unit).iter().enumerate().map(|(at, &p)| f64::from(p) * factor(at)).collect();
    let total: f64 = row.iter().sum();
    params.set_row(param, unit, &row.iter().map(|p| (p / total) as f32).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::super::{HcltOptions, HcltParams, Tree, hclt};
    use super::*;
    use crate::circuit::Categorical;

    const NUM_VARS: usize = 12;

    /// Rows near one of three patterns, one in three each: a value in ten is any other.
    fn patterned(num_rows: usize) -> Batch {
        let mut rng = Rng::new(4);
        let mut values = Vec::new();
        for row in 0..num_rows {
            for var in 0..NUM_VARS {
                let own = (row % 3 + var * (row % 3 + 1)) % 4;
                values.push(if rng.below(10) == 0 { rng.below(4) as u8 } else { own as u8 });
            }
        }
        Batch::from_rows(&values, NUM_VARS).unwrap()
    }

    /// The cluster of every row, by the definition.
    fn nearest(clusters: &Clusters, rows: &Batch) -> Vec<usize> {
        let values = categories(rows, 4).unwrap();
        clusters.assign(&values, NUM_VARS)
    }

    #[test]
    fn rows_of_one_pattern_come_into_one_cluster() {
        let rows = patterned(300);
        let found = (1..=8).filter(|&seed| {
            let clusters = Clusters::of_rows(&rows, 4, 3, seed).unwrap();
            let of = nearest(&clusters, &rows);
            clusters.sizes() == [100; 3] && (3..300).all(|row| of[row] == of[row % 3])
        });
        // Two seeds may fall into one pattern and stay there.
        assert!(found.count() >= 3);
    }

    #[test]
    fn tables_are_distributions_and_every_value_is_possible() {
        let rows = patterned(60).with_missing(|row, var| (row + var) % 5 == 0);
        let clusters = Clusters::of_rows(&rows, 5, 4, 1).unwrap();
        assert_eq!(clusters.sizes().iter().sum::<usize>(), 60);
        for table in clusters.tables.chunks(5 * 4) {
            for cluster in 0..4 {
                let own: Vec<f64> = table.iter().skip(cluster).step_by(4).copied().collect();
                assert!((own.iter().sum::<f64>() - 1.0).abs() < 1e-12 && own.iter().all(|&p| p > 0.0), "{own:?}");
            }
        }
    }

    #[test]
    fn a_start_that_was_moved_is_a_mixture_of_the_clusters() {
        let rows = patterned(90);
        let clusters = Clusters::of_rows(&rows, 4, 3, 2).unwrap();
        let tree = Tree::from_parents(&(0..NUM_VARS).map(|v| v.checked_sub(1)).collect::<Vec<_>>()).unwrap();
        let options = HcltOptions { components: 3, ..HcltOptions::default() };
        let circuit = hclt(&tree, 2, |_| Categorical::new(4).unwrap(), options).unwrap();
        let ids = HcltParams::new(&tree, options);
        let mut params = Params::random(&circuit, 1, 0.0).unwrap(); // nothing left to chance: clusters alone
        clusters.move_start(&circuit, &mut params).unwrap();
        params.check(&circuit).unwrap();
        for component in 0..3 {
            for var in 0..NUM_VARS {
                let row = params.row(ids.inputs(component, var), 1);
                let wanted = (0..4).map(|cat| clusters.tables[(var * 4 + cat) * 3 + component]);
                assert!(row.iter().zip(wanted).all(|(&p, q)| (f64::from(p) - q).abs() < 1e-6), "{row:?}");
            }
            let share: f32 = params.row(ids.sum(0, tree.root()).unwrap(), 0)[2 * component..][..2].iter().sum();
            let wanted = (clusters.sizes()[component] as f64 + 1.0) / 93.0;
            assert!((f64::from(share) - wanted).abs() < 1e-6, "{share} is not {wanted}");
        }
    }

    #[test]
    fn too_few_rows_and_values_that_are_no_category_are_refused() {
        let error = Clusters::of_rows(&patterned(3), 4, 4, 1).unwrap_err().to_string();
        assert!(
            error.starts_with("components = 4: more than the 3 rows") && error.contains("structure_rows"),
            "{error}"
        );
        let error = Clusters::of_rows(&patterned(30), 2, 2, 1).unwrap_err().to_string();
        assert!(error.contains("is outside 0..2"), "{error}");
    }
}
