//! Rows one after the other, on their way to a batch.
//!
//! Decoders make tables, the batcher picks rows out of them. Values stay as narrow as they came; when narrower and
//! wider ones meet, the table widens.

use super::{Batch, Values};
use crate::error::{Error, Result};

/// Rows of equal width, laid one after the other.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    num_vars: usize,
    /// `[rows × num_vars]`, variable index fastest.
    values: Values,
    /// Which of them are missing; `None` where none is.
    missing: Option<Vec<bool>>,
}

impl Table {
    /// Rows of `num_vars` values each.
    pub fn new(num_vars: usize, values: Values) -> Result<Self> {
        if num_vars == 0 || !values.len().is_multiple_of(num_vars) {
            return Err(Error::data(format!("{} values do not make whole rows of {num_vars} variables", values.len())));
        }
        Ok(Self { num_vars, values, missing: None })
    }

    /// Stretches of values that end at `ends`, each in rows of its own: as many as it fills, and what it leaves of the
    /// last one is missing.
    pub fn of_stretches(num_vars: usize, values: &Values, ends: &[usize]) -> Result<Self> {
        if num_vars == 0 || ends.last().copied().unwrap_or(0) != values.len() || !ends.is_sorted() {
            let count = values.len();
            return Err(Error::data(format!("{count} values in rows of {num_vars}: no stretches of them end there")));
        }
        let (values, missing) = values.cut(ends, num_vars);
        Self::new(num_vars, values)?.with_missing(missing)
    }

    /// Marks cells as missing, `[rows × num_vars]`.
    pub fn with_missing(mut self, missing: Vec<bool>) -> Result<Self> {
        if missing.len() != self.values.len() {
            return Err(Error::data(format!("{} marks for {} cells", missing.len(), self.values.len())));
        }
        self.missing = missing.contains(&true).then_some(missing);
        Ok(self)
    }

    /// How many variables a row has.
    pub fn num_vars(&self) -> usize {
        self.num_vars
    }

    /// How many rows.
    pub fn num_rows(&self) -> usize {
        self.values.len() / self.num_vars
    }

    /// All values, `[rows × num_vars]`.
    pub fn values(&self) -> &Values {
        &self.values
    }

    /// Which cells are missing, if any is.
    pub fn missing(&self) -> Option<&[bool]> {
        self.missing.as_deref()
    }

    /// Bytes that the rows take.
    pub fn num_bytes(&self) -> usize {
        self.values.num_bytes() + self.missing.as_ref().map_or(0, Vec::len)
    }

    /// Adds the rows of another table.
    pub fn append(&mut self, other: &Self) -> Result<()> {
        if other.num_vars != self.num_vars {
            return Err(Error::data(format!("a row of {} values among rows of {}", other.num_vars, self.num_vars)));
        }
        let before = self.values.len();
        self.values.append(&other.values)?;
        if self.missing.is_some() || other.missing.is_some() {
            let mask = self.missing.get_or_insert_with(|| vec![false; before]);
            match &other.missing {
                Some(marks) => mask.extend_from_slice(marks),
                None => mask.resize(self.values.len(), false),
            }
        }
        Ok(())
    }

    /// Adds some rows of another table, in the given order.
    pub fn append_rows(&mut self, other: &Self, rows: impl Iterator<Item = usize> + Clone) -> Result<()> {
        let picked = Self {
            num_vars: self.num_vars,
            values: other.values.gather(self.num_vars, rows.clone()),
            missing: other.missing.as_ref().map(|mask| {
                rows.flat_map(|row| mask[row * other.num_vars..(row + 1) * other.num_vars].iter().copied()).collect()
            }),
        };
        self.append(&picked)
    }

    /// Drops the first rows.
    pub fn drop_front(&mut self, rows: usize) {
        self.values.drop_front(rows * self.num_vars);
        if let Some(mask) = &mut self.missing {
            mask.drain(..rows * self.num_vars);
        }
    }

    /// The rows as a batch: one column per variable. Values of a variable that has `num_cats` are whole numbers, and
    /// are as narrow as categories of so many are; where values are real, others stay real.
    pub fn into_batch_of(self, num_cats: impl Fn(usize) -> Option<u32>) -> Result<Batch> {
        let num_vars = self.num_vars;
        let Values::F32(values) = &self.values else { return self.into_batch() };
        let columns = (0..num_vars).map(|var| {
            let of_var = values.iter().skip(var).step_by(num_vars).copied();
            match num_cats(var) {
                None => Values::F32(of_var.collect()),
                Some(0..=0x100) => Values::U8(of_var.map(|value| value as u8).collect()),
                Some(0..=0x1_0000) => Values::U16(of_var.map(|value| value as u16).collect()),
                Some(_) => Values::U32(of_var.map(|value| value as u32).collect()),
            }
        });
        let batch = Batch::from_columns(columns.collect())?;
        Ok(match self.missing {
            Some(mask) => batch.with_missing(|row, var| mask[row * num_vars + var]),
            None => batch,
        })
    }

    /// The rows as a batch: one column per variable, all of the same type.
    pub fn into_batch(self) -> Result<Batch> {
        let batch = match &self.values {
            Values::U8(values) => Batch::from_rows(values, self.num_vars),
            Values::U16(values) => Batch::from_rows(values, self.num_vars),
            Values::U32(values) => Batch::from_rows(values, self.num_vars),
            Values::F32(values) => Batch::from_rows(values, self.num_vars),
        }?;
        Ok(match self.missing {
            Some(mask) => batch.with_missing(|row, var| mask[row * self.num_vars + var]),
            None => batch,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_widen_when_they_meet_and_keep_their_missing_cells() {
        let mut table = Table::new(2, Values::U8(vec![1, 2])).unwrap();
        let wide = Table::new(2, Values::U16(vec![300, 4, 5, 6])).unwrap();
        table.append(&wide.with_missing(vec![false, true, false, false]).unwrap()).unwrap();
        assert_eq!(table.values(), &Values::U16(vec![1, 2, 300, 4, 5, 6]));
        let mut picked = Table::new(2, Values::U8(vec![])).unwrap();
        picked.append_rows(&table, [1, 0].into_iter()).unwrap();
        let batch = picked.into_batch().unwrap();
        assert_eq!(batch.column(0), &Values::U16(vec![300, 1]));
        assert!(batch.is_missing(0, 1) && !batch.is_missing(1, 1));
    }

    #[test]
    fn columns_of_a_mixed_table_have_types_of_their_own() {
        let cats = [Some(256), None, Some(300), Some(70_000)];
        let table = Table::new(4, Values::F32(vec![255.0, 0.5, 299.0, 69_999.0, 0.0, -1.0, 1.0, 2.0])).unwrap();
        let mask = vec![false, false, true, false, false, true, false, false];
        let batch = table.with_missing(mask).unwrap().into_batch_of(|var| cats[var]).unwrap();
        assert_eq!(batch.column(0), &Values::U8(vec![255, 0]));
        assert_eq!(batch.column(1), &Values::F32(vec![0.5, -1.0]));
        assert_eq!(batch.column(2), &Values::U16(vec![299, 1]));
        assert_eq!(batch.column(3), &Values::U32(vec![69_999, 2]));
        assert!(batch.is_missing(0, 2) && batch.is_missing(1, 1) && !batch.is_missing(0, 0));
    }

    #[test]
    fn every_stretch_has_rows_of_its_own() {
        let values = Values::U16(vec![1, 2, 3, 4, 5, 6, 7]);
        let table = Table::of_stretches(3, &values, &[2, 2, 5, 7]).unwrap();
        assert_eq!(table.values(), &Values::U16(vec![1, 2, 0, 3, 4, 5, 6, 7, 0]));
        let marks: Vec<usize> = (0..9).filter(|&at| table.missing().unwrap()[at]).collect();
        assert_eq!(marks, [2, 8], "what a stretch fills is whole, and an empty one has no row");
        let long = Table::of_stretches(3, &values, &[7]).unwrap();
        assert_eq!(long.values(), &Values::U16(vec![1, 2, 3, 4, 5, 6, 7, 0, 0]));
        assert_eq!(Table::of_stretches(3, &values.slice(0..0), &[]).unwrap().num_rows(), 0);
        for ends in [&[2, 6][..], &[8], &[5, 2, 7], &[]] {
            assert!(Table::of_stretches(3, &values, ends).is_err(), "{ends:?}");
        }
    }

    #[test]
    fn integers_and_reals_do_not_mix_and_widths_must_agree() {
        let mut table = Table::new(1, Values::U8(vec![1])).unwrap();
        assert!(table.append(&Table::new(1, Values::F32(vec![0.5])).unwrap()).is_err());
        assert!(table.append(&Table::new(2, Values::U8(vec![0, 1])).unwrap()).is_err());
        assert!(Table::new(3, Values::U8(vec![0, 1])).is_err());
    }
}
