//! Columns as codes of their distinct values, and the joint counts of two of them.
//!
//! Columns repeat themselves: a byte has 256 values however many rows there are. Whatever depends on a pair of values
//! is therefore computed once per *cell*, a pair of codes that occurs, and weighted with its count.

use rayon::prelude::*;

use crate::data::Batch;
use crate::error::{Error, Result};

/// A table of all pairs of codes is used where it has at most this many entries per row of data; beyond, clearing and
/// scanning it costs more than going through the rows.
const TABLE_ENTRIES_PER_ROW: usize = 16;

/// The columns of some variables, over the rows that count.
pub(super) struct Table {
    pub(super) columns: Vec<CodedColumn>,
    /// How much each row counts; `None` is 1 for all.
    pub(super) weights: Option<Vec<f64>>,
}

/// One column: its distinct values, and for each row which of them it holds.
pub(super) struct CodedColumn {
    /// The values that occur, in the order in which they first do: a column in which hardly any value repeats then
    /// goes through what is kept per value from front to back, not at random.
    pub(super) values: Vec<f64>,
    /// `[num_rows]`, positions in `values`; `values.len()` where the cell is missing.
    pub(super) codes: Vec<u32>,
    pub(super) has_missing: bool,
}

impl Table {
    /// The columns `vars` of a batch. Rows of weight 0 are left out.
    pub(super) fn new(data: &Batch, vars: &[usize]) -> Result<Self> {
        let rows: Vec<usize> = (0..data.num_rows()).filter(|&row| data.weight(row) > 0.0).collect();
        if rows.is_empty() {
            return Err(Error::data("no rows to learn a structure from: mutual information needs at least one"));
        }
        if vars.is_empty() {
            return Err(Error::data("no variables to learn a structure over"));
        }
        let columns = vars.par_iter().map(|&var| CodedColumn::new(data, var, &rows)).collect::<Result<_>>()?;
        let weights: Vec<f64> = rows.iter().map(|&row| f64::from(data.weight(row))).collect();
        let weighted = weights.iter().any(|&w| w != 1.0);
        Ok(Self { columns, weights: weighted.then_some(weights) })
    }

    pub(super) fn weight(&self, row: usize) -> f64 {
        self.weights.as_ref().map_or(1.0, |w| w[row])
    }

    pub(super) fn num_rows(&self) -> usize {
        self.columns[0].codes.len()
    }

    /// Returns true if the pairs of codes of two columns fit a table that is worth it.
    fn is_tabular(&self, u: usize, v: usize) -> bool {
        let entries = (self.columns[u].values.len() + 1) * (self.columns[v].values.len() + 1);
        entries <= TABLE_ENTRIES_PER_ROW * self.num_rows().max(16)
    }

    /// Calls `visit(code of u, code of v, count)` for every pair of codes that occurs in a row where both are present,
    /// in ascending order of the codes.
    pub(super) fn for_each_cell(
        &self,
        u: usize,
        v: usize,
        scratch: &mut JointScratch,
        visit: impl FnMut(usize, usize, f64),
    ) {
        if self.is_tabular(u, v) {
            self.cells_by_table(u, v, scratch, visit);
        } else {
            self.cells_by_sorting(u, v, scratch, visit);
        }
    }

    fn cells_by_table(&self, u: usize, v: usize, scratch: &mut JointScratch, mut visit: impl FnMut(usize, usize, f64)) {
        let (u, v) = (&self.columns[u], &self.columns[v]);
        // Missing cells have a row and a column of their own, which is not visited: no branch per data row.
        let stride = v.values.len() + 1;
        let counts = &mut scratch.counts;
        counts.clear();
        counts.resize((u.values.len() + 1) * stride, 0.0);
        match &self.weights {
            None => {
                for (&a, &b) in u.codes.iter().zip(&v.codes) {
                    counts[a as usize * stride + b as usize] += 1.0;
                }
            }
            Some(weights) => {
                for ((&a, &b), w) in u.codes.iter().zip(&v.codes).zip(weights) {
                    counts[a as usize * stride + b as usize] += w;
                }
            }
        }
        for (a, row) in counts.chunks_exact(stride).take(u.values.len()).enumerate() {
            for (b, &count) in row[..v.values.len()].iter().enumerate() {
                if count > 0.0 {
                    visit(a, b, count);
                }
            }
        }
    }

    fn cells_by_sorting(
        &self,
        u: usize,
        v: usize,
        scratch: &mut JointScratch,
        mut visit: impl FnMut(usize, usize, f64),
    ) {
        let (u, v) = (&self.columns[u], &self.columns[v]);
        let cells = &mut scratch.cells;
        cells.clear();
        for (row, (&a, &b)) in u.codes.iter().zip(&v.codes).enumerate() {
            if (a as usize) < u.values.len() && (b as usize) < v.values.len() {
                cells.push((a, b, row as u32));
            }
        }
        cells.sort_unstable();
        for cell in cells.chunk_by(|x, y| (x.0, x.1) == (y.0, y.1)) {
            let count = cell.iter().map(|&(_, _, row)| self.weight(row as usize)).sum();
            visit(cell[0].0 as usize, cell[0].1 as usize, count);
        }
    }
}

impl CodedColumn {
    fn new(data: &Batch, var: usize, rows: &[usize]) -> Result<Self> {
        let column = data.column(var);
        let present = || rows.iter().copied().filter(|&row| !data.is_missing(row, var));
        if let Some(row) = present().find(|&row| !column.real(row).is_finite()) {
            return Err(Error::data(format!(
                "row {row}: variable {var}: {} is not a number; mark missing values as missing",
                column.real(row)
            )));
        }
        // Adding 0 turns −0 into 0, which is the same value and must have the same code.
        let value = |row: usize| column.real(row) + 0.0;
        let mut ascending: Vec<f64> = present().map(value).collect();
        if ascending.is_empty() {
            return Err(Error::data(format!(
                "variable {var} is missing in every row: its place in a structure cannot be learned"
            )));
        }
        let has_missing = ascending.len() < rows.len();
        ascending.sort_unstable_by(f64::total_cmp);
        ascending.dedup();
        let missing_code = ascending.len() as u32;
        let mut code_of_rank = vec![None; ascending.len()];
        let mut values = Vec::with_capacity(ascending.len());
        let mut code = |row: usize| {
            let rank = ascending.partition_point(|&v| v < value(row));
            *code_of_rank[rank].get_or_insert_with(|| {
                values.push(value(row));
                values.len() as u32 - 1
            })
        };
        let codes = rows.iter().map(|&row| if data.is_missing(row, var) { missing_code } else { code(row) }).collect();
        Ok(Self { values, codes, has_missing })
    }

    /// Returns true if the cell is there.
    pub(super) fn is_present(&self, row: usize) -> bool {
        (self.codes[row] as usize) < self.values.len()
    }
}

/// Buffers for the joint counts of a pair, kept from pair to pair only to save their allocation.
#[derive(Default)]
pub(super) struct JointScratch {
    /// `[(cats of u + 1) × (cats of v + 1)]`.
    counts: Vec<f64>,
    /// (code of u, code of v, row).
    cells: Vec<(u32, u32, u32)>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    #[test]
    fn both_ways_to_count_give_the_same_cells() {
        let mut rng = Rng::new(4);
        let values: Vec<u8> = (0..600).map(|_| rng.below(9) as u8).collect();
        let data = Batch::from_rows(&values, 2).unwrap().with_missing(|row, var| row % 5 == var);
        for data in [data.clone(), data.with_weights((0..300).map(|row| (row % 3) as f32).collect()).unwrap()] {
            let table = Table::new(&data, &[0, 1]).unwrap();
            let (mut by_table, mut by_sorting) = (Vec::new(), Vec::new());
            let mut scratch = JointScratch::default();
            table.cells_by_table(0, 1, &mut scratch, |a, b, count| by_table.push((a, b, count)));
            table.cells_by_sorting(0, 1, &mut scratch, |a, b, count| by_sorting.push((a, b, count)));
            assert_eq!(by_table, by_sorting);
            let both = (0..300).filter(|row| row % 5 > 1).map(|row| f64::from(data.weight(row))).sum::<f64>();
            assert_eq!(by_table.iter().map(|cell| cell.2).sum::<f64>(), both);
        }
    }

    #[test]
    fn codes_name_the_distinct_values() {
        let data = Batch::from_rows(&[3.5f32, -0.0, 0.0, -1.0], 1).unwrap().with_missing(|row, _| row == 3);
        let column = &Table::new(&data, &[0]).unwrap().columns[0];
        assert_eq!((column.values.as_slice(), column.codes.as_slice()), (&[3.5, 0.0][..], &[0, 1, 1, 2][..]));
        assert!(column.has_missing && column.is_present(0) && !column.is_present(3));
    }
}
