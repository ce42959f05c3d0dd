//! Batches of rows, as a circuit takes them.
//!
//! A [`Batch`] is a table, one [`Values`] per variable, in the type the data came in (a token stays a `u16`, a SNP a
//! `u8`). Any cell may be missing: the circuit marginalises it exactly. Rows may carry weights (soft counts).

use std::ops::Range;

use crate::error::{Error, Result};

/// Beyond this, the square of a value leaves the range of single precision and with it the statistics of a density.
/// Decoders refuse such a value with its record; circuits refuse a batch that has one all the same.
pub const LARGEST_REAL: f32 = 1e18;

/// The values of one variable over the rows of a batch, as narrow as they came.
#[derive(Clone, Debug, PartialEq)]
pub enum Values {
    /// Categories below 256, or small integers.
    U8(Vec<u8>),
    /// Categories below 65,536: GPT-2 tokens.
    U16(Vec<u16>),
    /// Any category.
    U32(Vec<u32>),
    /// Real numbers.
    F32(Vec<f32>),
}

/// An element type that a [`Values`] can hold.
pub trait Element: Copy {
    /// Wraps values of this type.
    fn column(values: Vec<Self>) -> Values
    where
        Self: Sized;
}

macro_rules! element {
    ($($type:ty => $variant:ident),*) => {$(
        impl Element for $type {
            fn column(values: Vec<Self>) -> Values {
                Values::$variant(values)
            }
        }
    )*};
}
element!(u8 => U8, u16 => U16, u32 => U32, f32 => F32);

/// Does the same to whatever a column holds.
macro_rules! with_values {
    ($column:expr, $values:ident => $body:expr) => {
        match $column {
            Values::U8($values) => $body,
            Values::U16($values) => $body,
            Values::U32($values) => $body,
            Values::F32($values) => $body,
        }
    };
}

impl Values {
    /// How many rows it has.
    pub fn len(&self) -> usize {
        with_values!(self, values => values.len())
    }

    /// Returns true if it has no rows.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The value as a category id; `None` where the column holds real numbers.
    pub fn category(&self, row: usize) -> Option<u32> {
        match self {
            Self::U8(values) => Some(u32::from(values[row])),
            Self::U16(values) => Some(u32::from(values[row])),
            Self::U32(values) => Some(values[row]),
            Self::F32(_) => None,
        }
    }

    /// The value as a real number; every integer column fits.
    pub fn real(&self, row: usize) -> f64 {
        with_values!(self, values => f64::from(values[row]))
    }

    /// The first row whose category is not below `cats`, if the column holds integers.
    pub(crate) fn first_outside(&self, cats: u32, missing: Option<&[bool]>) -> Option<(usize, u32)> {
        let is_missing = |row: usize| missing.is_some_and(|m| m[row]);
        let find = |mut values: Box<dyn Iterator<Item = u32> + '_>| {
            let mut row = 0;
            values.find_map(|v| {
                row += 1;
                (v >= cats && !is_missing(row - 1)).then_some((row - 1, v))
            })
        };
        match self {
            Self::U8(values) if cats < 256 => find(Box::new(values.iter().map(|&v| u32::from(v)))),
            Self::U16(values) if cats < 65_536 => find(Box::new(values.iter().map(|&v| u32::from(v)))),
            Self::U32(values) => find(Box::new(values.iter().copied())),
            _ => None, // the type itself cannot exceed `cats`
        }
    }

    /// Bytes that the values take.
    pub fn num_bytes(&self) -> usize {
        with_values!(self, values => size_of_val(values.as_slice()))
    }

    /// Adds the values of another column; narrower integers widen to the wider type, but integers are not reals.
    pub fn append(&mut self, other: &Self) -> Result<()> {
        if self.is_empty() && other.width() > self.width() {
            *self = other.clone();
            return Ok(());
        }
        if other.width() > self.width() {
            self.widen(other)?;
        }
        match (self, other) {
            (Self::U8(into), Self::U8(from)) => into.extend_from_slice(from),
            (Self::U16(into), Self::U8(from)) => into.extend(from.iter().map(|&v| u16::from(v))),
            (Self::U16(into), Self::U16(from)) => into.extend_from_slice(from),
            (Self::U32(into), Self::U8(from)) => into.extend(from.iter().map(|&v| u32::from(v))),
            (Self::U32(into), Self::U16(from)) => into.extend(from.iter().map(|&v| u32::from(v))),
            (Self::U32(into), Self::U32(from)) => into.extend_from_slice(from),
            (Self::F32(into), Self::F32(from)) => into.extend_from_slice(from),
            _ if other.is_empty() => {}
            _ => return Err(Error::data("integers and real numbers in one column: give it one type")),
        }
        Ok(())
    }

    /// Makes room for the values of a wider type.
    fn widen(&mut self, like: &Self) -> Result<()> {
        *self = match (&*self, like) {
            (Self::U8(values), Self::U16(_)) => Self::U16(values.iter().map(|&v| u16::from(v)).collect()),
            (Self::U8(values), Self::U32(_)) => Self::U32(values.iter().map(|&v| u32::from(v)).collect()),
            (Self::U16(values), Self::U32(_)) => Self::U32(values.iter().map(|&v| u32::from(v)).collect()),
            _ => return Err(Error::data("integers and real numbers in one column: give it one type")),
        };
        Ok(())
    }

    /// Orders the types: a wider one holds all of a narrower one's integers.
    fn width(&self) -> u8 {
        match self {
            Self::U8(_) => 0,
            Self::U16(_) => 1,
            Self::U32(_) => 2,
            Self::F32(_) => 3,
        }
    }

    /// Groups of `size` values, in the given order.
    pub(super) fn gather(&self, size: usize, groups: impl Iterator<Item = usize>) -> Self {
        with_values!(self, values => {
            let mut picked = Vec::with_capacity(size * groups.size_hint().0);
            groups.for_each(|group| picked.extend_from_slice(&values[group * size..(group + 1) * size]));
            Element::column(picked)
        })
    }

    /// Stretches that end at `ends`, each cut into rows of `size` values; the last row of each is filled up. The second
    /// answer says with what.
    pub(super) fn cut(&self, ends: &[usize], size: usize) -> (Self, Vec<bool>) {
        with_values!(self, values => {
            let (mut rows, mut filled, mut start) = (Vec::new(), Vec::new(), 0);
            for &end in ends {
                for row in values[start..end].chunks(size) {
                    rows.extend_from_slice(row);
                    filled.resize(rows.len(), false);
                    rows.resize(rows.len() + size - row.len(), Default::default());
                    filled.resize(rows.len(), true);
                }
                start = end;
            }
            (Element::column(rows), filled)
        })
    }

    /// Keeps the first `len` values.
    pub fn truncate(&mut self, len: usize) {
        with_values!(self, values => values.truncate(len));
    }

    /// Drops the first `len` values.
    pub fn drop_front(&mut self, len: usize) {
        with_values!(self, values => drop(values.drain(..len)));
    }

    /// A copy of some values.
    pub fn slice(&self, rows: Range<usize>) -> Self {
        with_values!(self, values => Element::column(values[rows].to_vec()))
    }
}

/// Rows on their way into a circuit: one column per variable, perhaps with missing cells and weights.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    num_rows: usize,
    columns: Vec<Values>,
    /// Per variable, which rows are missing; `None` where none is.
    missing: Vec<Option<Box<[bool]>>>,
    /// How much each row counts; `None` is 1 for all.
    weights: Option<Vec<f32>>,
    /// Where this is a part of a global batch: which.
    part: Option<Box<ShardRows>>,
}

/// Which rows of a global batch a batch has: those of some of its shards.
#[derive(Clone, Debug, PartialEq)]
pub struct ShardRows {
    /// Rows of every shard of the global batch, in the order of shards.
    pub rows: Vec<usize>,
    /// The shards whose rows are here, one after the other.
    pub held: Range<usize>,
    /// The sum of the weights of all rows of the global batch.
    pub weight: f64,
}

impl ShardRows {
    /// Where the rows of a shard are in the batch that holds it.
    pub fn range(&self, shard: usize) -> Range<usize> {
        let begin = self.rows[self.held.start..shard].iter().sum();
        begin..begin + self.rows[shard]
    }
}

impl Batch {
    /// No rows and no columns: what a pass is given that reads none.
    pub(crate) fn empty() -> Self {
        Self { num_rows: 0, columns: Vec::new(), missing: Vec::new(), weights: None, part: None }
    }

    /// No rows of so many variables: what a rank has of a global batch whose rows are all in other shards.
    pub fn without_rows(num_vars: usize) -> Self {
        let (columns, missing) = (vec![Values::U8(Vec::new()); num_vars], vec![None; num_vars]);
        Self { num_rows: 0, columns, missing, weights: None, part: None }
    }

    /// Says that these rows are a part of a global batch. A step then is one from the whole of it, which all ranks that
    /// have the other parts make together.
    pub fn as_part(mut self, part: ShardRows) -> Result<Self> {
        let rows: usize = part.rows.get(part.held.clone()).map_or(0, |held| held.iter().sum());
        if rows != self.num_rows || part.held.end > part.rows.len() {
            return Err(Error::data(format!("{} rows where the shards {:?} have {rows}", self.num_rows, part.held)));
        }
        self.part = Some(Box::new(part));
        Ok(self)
    }

    /// Which part of a global batch this is, if it is one.
    pub fn part(&self) -> Option<&ShardRows> {
        self.part.as_deref()
    }

    /// Rows of the global batch that this is a part of, or of this batch if it is a whole one.
    pub fn num_global_rows(&self) -> usize {
        self.part.as_ref().map_or(self.num_rows, |part| part.rows.iter().sum())
    }

    /// A batch of columns of equal length.
    pub fn from_columns(columns: Vec<Values>) -> Result<Self> {
        let num_rows = columns.first().map_or(0, Values::len);
        if let Some(var) = columns.iter().position(|c| c.len() != num_rows) {
            return Err(Error::data(format!(
                "variable {var} has {} rows where variable 0 has {num_rows}: every column needs the same number",
                columns[var].len()
            )));
        }
        let missing = vec![None; columns.len()];
        Ok(Self { num_rows, columns, missing, weights: None, part: None })
    }

    /// A batch from rows laid one after the other, `[rows × num_vars]`.
    pub fn from_rows<T: Element>(values: &[T], num_vars: usize) -> Result<Self> {
        if num_vars == 0 || !values.len().is_multiple_of(num_vars) {
            return Err(Error::data(format!("{} values do not make whole rows of {num_vars} variables", values.len())));
        }
        let columns =
            (0..num_vars).map(|var| T::column(values.iter().skip(var).step_by(num_vars).copied().collect())).collect();
        let mut batch = Self::from_columns(columns)?;
        batch.num_rows = values.len() / num_vars;
        Ok(batch)
    }

    /// Marks the cells for which `is_missing(row, var)` holds, besides those already marked; what they contain no
    /// longer matters.
    pub fn with_missing(mut self, is_missing: impl Fn(usize, usize) -> bool) -> Self {
        for (var, slot) in self.missing.iter_mut().enumerate() {
            let was = |row: usize| slot.as_ref().is_some_and(|mask| mask[row]);
            let mask: Box<[bool]> = (0..self.num_rows).map(|row| was(row) || is_missing(row, var)).collect();
            *slot = mask.contains(&true).then_some(mask);
        }
        self
    }

    /// Makes row `r` count `weights[r]` times.
    pub fn with_weights(mut self, weights: Vec<f32>) -> Result<Self> {
        if weights.len() != self.num_rows {
            return Err(Error::data(format!("{} weights for {} rows", weights.len(), self.num_rows)));
        }
        if let Some(row) = weights.iter().position(|w| !(w.is_finite() && *w >= 0.0)) {
            return Err(Error::data(format!(
                "row {row}: weight {} must be finite and not negative; leave a row out with weight 0",
                weights[row]
            )));
        }
        self.weights = Some(weights);
        Ok(self)
    }

    /// How many rows.
    pub fn num_rows(&self) -> usize {
        self.num_rows
    }

    /// How many variables.
    pub fn num_vars(&self) -> usize {
        self.columns.len()
    }

    /// The values of variable `var`.
    pub fn column(&self, var: usize) -> &Values {
        &self.columns[var]
    }

    /// Which rows of variable `var` are missing, if any is.
    pub fn missing(&self, var: usize) -> Option<&[bool]> {
        self.missing[var].as_deref()
    }

    /// Returns true if the cell is missing.
    pub fn is_missing(&self, row: usize, var: usize) -> bool {
        self.missing(var).is_some_and(|mask| mask[row])
    }

    /// How much row `row` counts.
    pub fn weight(&self, row: usize) -> f32 {
        self.weights.as_ref().map_or(1.0, |w| w[row])
    }

    /// The sum of the rows' weights: what a mean over this batch divides by. Of a part of a global batch that of the
    /// whole.
    pub fn total_weight(&self) -> f64 {
        if let Some(part) = &self.part {
            return part.weight;
        }
        self.weights.as_ref().map_or(self.num_rows as f64, |w| w.iter().map(|&x| f64::from(x)).sum())
    }

    /// Adds the rows of another batch, with their missing cells and weights. The result is no part of a global batch.
    pub fn append(&mut self, other: &Self) -> Result<()> {
        if other.num_vars() != self.num_vars() {
            let (found, expected) = (other.num_vars(), self.num_vars());
            return Err(Error::data(format!("rows of {found} variables among rows of {expected}")));
        }
        let total = self.num_rows + other.num_rows;
        for (column, more) in self.columns.iter_mut().zip(&other.columns) {
            column.append(more)?;
        }
        for (mask, more) in self.missing.iter_mut().zip(&other.missing) {
            if mask.is_some() || more.is_some() {
                let mut cells = mask.take().map_or_else(|| vec![false; self.num_rows], Vec::from);
                cells.extend_from_slice(more.as_deref().unwrap_or(&vec![false; other.num_rows]));
                *mask = Some(cells.into());
            }
        }
        if self.weights.is_some() || other.weights.is_some() {
            let weights = (0..self.num_rows).map(|row| self.weight(row)).collect::<Vec<_>>();
            self.weights = Some(weights.into_iter().chain((0..other.num_rows).map(|row| other.weight(row))).collect());
        }
        self.num_rows = total;
        self.part = None;
        Ok(())
    }

    /// A copy of some rows, with their missing cells and weights: a whole batch.
    pub fn slice(&self, rows: Range<usize>) -> Self {
        let missing = self.missing.iter().map(|mask| {
            let part: Box<[bool]> = mask.as_ref()?[rows.clone()].into();
            part.contains(&true).then_some(part)
        });
        Self {
            num_rows: rows.len(),
            missing: missing.collect(),
            columns: self.columns.iter().map(|c| c.slice(rows.clone())).collect(),
            weights: self.weights.as_ref().map(|w| w[rows].to_vec()),
            part: None,
        }
    }

    /// The batch cut into consecutive pieces of at most `rows` rows.
    pub fn chunks(&self, rows: usize) -> impl Iterator<Item = Self> + '_ {
        let step = rows.max(1);
        (0..self.num_rows).step_by(step).map(move |start| self.slice(start..(start + step).min(self.num_rows)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn rows_become_columns_and_slices_keep_masks_and_weights() {
        let batch = Batch::from_rows(&[1u8, 2, 3, 4, 5, 6], 2).unwrap();
        assert_eq!(batch.column(1), &Values::U8(vec![2, 4, 6]));
        let batch = batch.with_missing(|row, var| row == 2 && var == 0).with_weights(vec![1.0, 2.0, 0.5]).unwrap();
        let tail = batch.slice(1..3);
        assert!(tail.is_missing(1, 0) && !tail.is_missing(0, 0) && tail.missing(1).is_none());
        assert_eq!(tail.total_weight(), 2.5);
        assert_eq!(batch.chunks(2).map(|b| b.num_rows()).collect::<Vec<_>>(), [2, 1]);
    }

    #[test]
    fn a_batch_that_was_cut_is_put_together_again() {
        let batch = Batch::from_rows(&[1u16, 2, 3, 4, 5, 6], 2).unwrap();
        let batch = batch.with_missing(|row, var| row == 2 && var == 0).with_weights(vec![1.0, 2.0, 0.5]).unwrap();
        let mut whole = batch.slice(0..1);
        whole.append(&batch.slice(1..3)).unwrap();
        assert_eq!(whole, batch);
        assert!(whole.append(&Batch::from_rows(&[1u8], 1).unwrap()).is_err());
    }

    #[test]
    fn a_part_of_a_global_batch_knows_the_whole_and_its_slices_do_not() {
        let rows = |held| ShardRows { rows: vec![2, 1, 0, 3], held, weight: 6.0 };
        let batch = Batch::from_rows(&[1u8, 2, 3, 4], 1).unwrap();
        let part = batch.clone().as_part(rows(1..4)).unwrap();
        assert_eq!((part.num_rows(), part.num_global_rows(), part.total_weight()), (4, 6, 6.0));
        let ranges: Vec<_> = (1..4).map(|shard| part.part().unwrap().range(shard)).collect();
        assert_eq!(ranges, [0..1, 1..1, 1..4]);
        let slice = part.slice(1..4);
        assert_eq!((slice.part(), slice.total_weight()), (None, 3.0));
        assert!(batch.clone().as_part(rows(0..2)).is_err() && batch.as_part(rows(1..5)).is_err());
        let nothing = Batch::without_rows(3).as_part(rows(2..3)).unwrap();
        assert_eq!((nothing.num_vars(), nothing.num_rows(), nothing.num_global_rows()), (3, 0, 6));
    }

    #[test]
    fn ragged_columns_and_bad_weights_are_refused() {
        let ragged = Batch::from_columns(vec![Values::U8(vec![1]), Values::U8(vec![1, 2])]);
        assert_eq!(ragged.unwrap_err().kind(), ErrorKind::Data);
        assert!(Batch::from_rows(&[1u8, 2, 3], 2).is_err());
        let batch = Batch::from_rows(&[1u8, 2], 1).unwrap();
        assert!(batch.clone().with_weights(vec![1.0]).is_err());
        assert!(batch.clone().with_weights(vec![1.0, f32::NAN]).is_err());
        assert!(batch.with_weights(vec![1.0, -1.0]).is_err());
    }

    #[test]
    fn a_category_outside_is_found_unless_it_is_missing() {
        let column = Values::U16(vec![3, 9, 4, 11]);
        assert_eq!(column.first_outside(9, None), Some((1, 9)));
        assert_eq!(column.first_outside(9, Some(&[false, true, false, false])), Some((3, 11)));
        assert_eq!(column.first_outside(12, None), None);
    }
}
