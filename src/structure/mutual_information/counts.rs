//! Mutual information from joint counts: the plug-in estimate, without smoothing.
//!
//! Where both variables have few categories and rows count alike, categories become sets of rows as bits, and a joint
//! count is the number of bits two sets share: 64 rows per word. Otherwise pairs of codes are counted.

use super::columns::{CodedColumn, JointScratch, Table};

/// Up to this many categories, sets of rows are faster than counting.
const MAX_PLANES: usize = 8;

pub(super) struct Counts<'a> {
    table: &'a Table,
    /// For each variable, `[categories × words]` bits over the rows; `None` where pairs are counted instead.
    planes: Vec<Option<Vec<u64>>>,
    /// Words a plane has.
    words: usize,
}

impl<'a> Counts<'a> {
    pub(super) fn new(table: &'a Table) -> Self {
        let words = table.num_rows().div_ceil(64);
        let planes = |column: &CodedColumn| {
            (table.weights.is_none() && column.values.len() <= MAX_PLANES).then(|| bit_planes(column, words))
        };
        Self { table, planes: table.columns.iter().map(planes).collect(), words }
    }

    /// The mutual information of variables `u` and `v`, in nats.
    pub(super) fn information(&self, u: usize, v: usize, scratch: &mut JointScratch) -> f64 {
        let cats = |var: usize| self.table.columns[var].values.len();
        let mut estimate = PlugIn::new(cats(u), cats(v));
        match (&self.planes[u], &self.planes[v]) {
            (Some(a), Some(b)) => self.cells_by_planes(a, b, |a, b, count| estimate.add(a, b, count)),
            _ => self.table.for_each_cell(u, v, scratch, |a, b, count| estimate.add(a, b, count)),
        }
        estimate.information()
    }

    fn cells_by_planes(&self, u: &[u64], v: &[u64], mut visit: impl FnMut(usize, usize, f64)) {
        let (cats_u, cats_v) = (u.len() / self.words, v.len() / self.words);
        let mut counts = [[0u64; MAX_PLANES]; MAX_PLANES];
        for (a, plane_u) in u.chunks_exact(self.words).enumerate() {
            for (b, plane_v) in v.chunks_exact(self.words).enumerate() {
                counts[a][b] = plane_u.iter().zip(plane_v).map(|(x, y)| u64::from((x & y).count_ones())).sum();
            }
        }
        // The last plane of each is "present"; what the categories before it do not hold is the last category.
        for row in &mut counts[..cats_u] {
            row[cats_v - 1] -= row[..cats_v - 1].iter().sum::<u64>();
        }
        let (before, last) = counts.split_at_mut(cats_u - 1);
        for row in before {
            last[0].iter_mut().zip(row).for_each(|(rest, &mut count)| *rest -= count);
        }
        for (a, row) in counts[..cats_u].iter().enumerate() {
            for (b, &count) in row[..cats_v].iter().enumerate().filter(|(_, count)| **count > 0) {
                visit(a, b, count as f64);
            }
        }
    }
}

/// The rows of each category but the last, then the rows that are present: as many planes as categories.
fn bit_planes(column: &CodedColumn, words: usize) -> Vec<u64> {
    let cats = column.values.len();
    let mut planes = vec![0; cats * words];
    for (row, &code) in column.codes.iter().enumerate().filter(|(_, code)| (**code as usize) < cats) {
        let bit = 1u64 << (row % 64);
        if (code as usize) < cats - 1 {
            planes[code as usize * words + row / 64] |= bit;
        }
        planes[(cats - 1) * words + row / 64] |= bit;
    }
    planes
}

/// Σ n(a,b)/n · log(n(a,b)·n / (n(a)·n(b))), gathered cell by cell.
struct PlugIn {
    /// n(a) and n(b), over the rows where both are present.
    margins: [Vec<f64>; 2],
    /// Σ n(a,b)·log n(a,b).
    joint: f64,
}

impl PlugIn {
    fn new(cats_u: usize, cats_v: usize) -> Self {
        Self { margins: [vec![0.0; cats_u], vec![0.0; cats_v]], joint: 0.0 }
    }

    fn add(&mut self, a: usize, b: usize, count: f64) {
        self.margins[0][a] += count;
        self.margins[1][b] += count;
        self.joint += count * count.ln();
    }

    fn information(&self) -> f64 {
        let total: f64 = self.margins[0].iter().sum();
        if total == 0.0 {
            return 0.0; // no row has both: nothing speaks for an edge
        }
        let of_margin = |margin: &Vec<f64>| margin.iter().filter(|n| **n > 0.0).map(|n| n * n.ln()).sum::<f64>();
        let margins: f64 = self.margins.iter().map(of_margin).sum();
        // Not below 0: independence should not look worse in one pair than in another by rounding alone.
        (total.ln() + (self.joint - margins) / total).max(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{MutualInformation, mutual_information};
    use super::*;
    use crate::data::Batch;
    use crate::rng::Rng;

    /// Categories that lean on their left neighbour, some of them missing.
    fn chain(num_rows: usize, num_vars: usize, cats: usize, seed: u64) -> Batch {
        let mut rng = Rng::new(seed);
        let mut values = Vec::new();
        for _ in 0..num_rows {
            let mut value = rng.below(cats);
            for _ in 0..num_vars {
                value = if rng.uniform() < 0.6 { value } else { rng.below(cats) };
                values.push(value as u16);
            }
        }
        Batch::from_rows(&values, num_vars).unwrap().with_missing(|row, var| (row * 7 + var * 3) % 11 == 0)
    }

    /// The definition, from frequencies.
    fn by_definition(data: &Batch, u: usize, v: usize, cats: u32) -> f64 {
        let rows: Vec<(u32, u32)> = (0..data.num_rows())
            .filter(|&row| !data.is_missing(row, u) && !data.is_missing(row, v))
            .map(|row| (data.column(u).category(row).unwrap(), data.column(v).category(row).unwrap()))
            .collect();
        let share =
            |of: &dyn Fn(&(u32, u32)) -> bool| rows.iter().filter(|row| of(row)).count() as f64 / rows.len() as f64;
        let mut information = 0.0;
        for a in 0..cats {
            for b in 0..cats {
                let joint = share(&|row| *row == (a, b));
                if joint > 0.0 {
                    information += joint * (joint / (share(&|row| row.0 == a) * share(&|row| row.1 == b))).ln();
                }
            }
        }
        information
    }

    #[test]
    fn counts_are_the_definition() {
        // 2 and 8 categories go by bits, 9 by a table, 40 on 70 rows by sorting.
        for (cats, num_rows) in [(2, 300), (8, 300), (9, 300), (40, 70)] {
            let data = chain(num_rows, 3, cats, 5);
            let information = mutual_information(&data, MutualInformation::Counts).unwrap();
            for (u, v) in [(0, 0), (0, 1), (0, 2), (1, 2)] {
                let wanted = by_definition(&data, u, v, cats as u32);
                let ours = information.get(u, v);
                assert!((ours - wanted).abs() < 1e-12, "{cats} categories: ({u}, {v}): {ours} is not {wanted}");
                assert_eq!(ours, information.get(v, u));
            }
        }
    }

    #[test]
    fn bits_and_counting_give_the_same_bits() {
        for cats in [1, 2, 3, 8] {
            let data = chain(500, 2, cats, 6);
            let table = Table::new(&data, &[0, 1]).unwrap();
            let counts = Counts::new(&table);
            assert!(counts.planes.iter().all(Option::is_some));
            let counting = Counts { table: &table, planes: vec![None, None], words: counts.words };
            let mut scratch = JointScratch::default();
            assert_eq!(counts.information(0, 1, &mut scratch), counting.information(0, 1, &mut scratch));
        }
    }

    #[test]
    fn a_pair_never_seen_together_tells_nothing() {
        let data = Batch::from_rows(&[0u8, 0, 1, 1, 0, 1, 1, 0], 2).unwrap().with_missing(|row, var| row % 2 == var);
        for how in [MutualInformation::Counts, MutualInformation::soft_bins()] {
            assert_eq!(mutual_information(&data, how).unwrap().get(0, 1), 0.0);
        }
    }
}
