//! Lists of numbers that are rows already: tables, SNPs, arrays.
//!
//! Every list has one value per variable. Categories are checked against their number; real numbers must be finite and
//! no larger than a density can square, and integers become real where reals are wanted (above 2²⁴ to the nearest
//! `f32`). A missing value stays missing, whatever it holds: the circuit marginalises it. Fed by table columns, list
//! columns and arrays.

use std::ops::Range;

use super::categories::{CategoryRule, Checked, ListKind};
use super::records::{self, decode_each};
use super::{Decoded, Decoder, RowShape, ValueKind};
use crate::data::{LARGEST_REAL, Values};
use crate::error::{Error, Result};
use crate::source::{Lists, Piece};

/// Checks rows of numbers.
#[derive(Clone, Debug)]
pub struct RowDecoder {
    shape: RowShape,
}

impl RowDecoder {
    /// For rows of `num_vars` values.
    pub fn new(num_vars: usize, values: ValueKind) -> Result<Self> {
        if num_vars == 0 {
            return Err(Error::option("rows have no variables: a row needs at least one variable"));
        }
        if values == ValueKind::Categories(0) {
            return Err(Error::option("cats = 0: must be at least 1, and above every value"));
        }
        if values == ValueKind::Mixed {
            return Err(Error::option("rows of numbers are all of one kind: decode a table"));
        }
        Ok(Self { shape: RowShape::of(num_vars, values) })
    }

    /// Says where the variables lie on a grid.
    pub fn with_grid(mut self, grid: Vec<usize>) -> Result<Self> {
        let cells = grid.iter().try_fold(1usize, |cells, &side| cells.checked_mul(side));
        if cells != Some(self.shape.num_vars) {
            return Err(Error::option(format!("grid = {grid:?}: does not have {} cells", self.shape.num_vars)));
        }
        self.shape.grid = Some(grid);
        Ok(self)
    }
}

impl Decoder for RowDecoder {
    fn shape(&self) -> &RowShape {
        &self.shape
    }

    fn identity(&self) -> String {
        let num_vars = self.shape.num_vars;
        match self.shape.values {
            ValueKind::Categories(cats) => format!("rows num_vars={num_vars} categories={cats}"),
            ValueKind::Reals | ValueKind::Mixed => format!("rows num_vars={num_vars} reals"),
        }
    }

    fn decode(&self, piece: &Piece) -> Result<Decoded> {
        let num_vars = self.shape.num_vars;
        let checked = match self.shape.values {
            ValueKind::Categories(cats) => {
                CategoryRule { cats, length: Some(num_vars), kind: ListKind::Rows }.check(piece)?
            }
            ValueKind::Reals | ValueKind::Mixed => check_reals(piece, records::lists(piece, "values")?, num_vars),
        };
        checked.into_rows(num_vars, piece)
    }
}

/// Lists of finite numbers, as `f32`.
fn check_reals(piece: &Piece, lists: &Lists, num_vars: usize) -> Checked {
    let mut values: Vec<f32> = Vec::with_capacity(lists.values.len());
    let mut missing: Vec<bool> = Vec::new();
    let bad = decode_each(piece, |record| {
        let range = lists.range(record);
        if range.len() != num_vars {
            return Err(format!("a list of {} values where rows have {num_vars}", range.len()));
        }
        let marks = lists.missing.as_ref().map(|marks| &marks[range.clone()]);
        let start = values.len();
        extend_reals(&mut values, &lists.values, range);
        for (var, value) in values[start..].iter_mut().enumerate() {
            if marks.is_some_and(|marks| marks[var]) {
                *value = 0.0; // it may hold a NaN, which spreads through any sum
            } else if !value.is_finite() {
                let reason = format!("variable {var}: {value} must be finite, or missing");
                values.truncate(start);
                return Err(reason);
            } else if value.abs() > LARGEST_REAL {
                let reason = format!("variable {var}: {value:e} is outside ±{LARGEST_REAL:e}; rescale the column");
                values.truncate(start);
                return Err(reason);
            }
        }
        missing.extend_from_slice(marks.unwrap_or_default());
        Ok(())
    });
    let ends = (1..=values.len() / num_vars).map(|row| row * num_vars).collect();
    Checked { values: Values::F32(values), ends, missing: lists.missing.is_some().then_some(missing), bad }
}

fn extend_reals(into: &mut Vec<f32>, from: &Values, range: Range<usize>) {
    match from {
        Values::U8(values) => into.extend(values[range].iter().map(|&value| f32::from(value))),
        Values::U16(values) => into.extend(values[range].iter().map(|&value| f32::from(value))),
        Values::U32(values) => into.extend(values[range].iter().map(|&value| value as f32)),
        Values::F32(values) => into.extend_from_slice(&values[range]),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Output;
    use super::super::records::testing::{blobs, lists, with_missing};
    use super::*;
    use crate::data::Table;
    use crate::error::ErrorKind;

    fn categories(num_vars: usize, cats: u32) -> RowDecoder {
        RowDecoder::new(num_vars, ValueKind::Categories(cats)).unwrap()
    }

    fn reals(num_vars: usize) -> RowDecoder {
        RowDecoder::new(num_vars, ValueKind::Reals).unwrap()
    }

    fn reasons(decoded: &Decoded) -> Vec<String> {
        decoded.bad.iter().map(|bad| bad.reason.clone()).collect()
    }

    #[test]
    fn a_list_of_another_length_or_with_a_value_outside_is_bad_and_the_rest_are_rows() {
        let piece = lists(Values::U8(vec![0, 1, 1, 0, 2, 1, 1]), &[2, 1, 2, 2]);
        let decoded = categories(2, 2).decode(&piece).unwrap();
        assert_eq!(decoded.output, Output::Rows(Table::new(2, Values::U8(vec![0, 1, 1, 1])).unwrap()));
        assert_eq!(reasons(&decoded), ["a list of 1 values where rows have 2", "variable 1: value 2 is outside 0..2"]);
        assert_eq!((decoded.records, decoded.bad[1].position), (4, 102));
    }

    #[test]
    fn the_type_depends_on_the_number_of_categories_not_on_the_data() {
        for (cats, expected) in [
            (256, Values::U8(vec![7])),
            (257, Values::U16(vec![7])),
            (65_536, Values::U16(vec![7])),
            (65_537, Values::U32(vec![7])),
        ] {
            for values in [Values::U8(vec![7]), Values::U16(vec![7]), Values::U32(vec![7]), Values::F32(vec![7.0])] {
                let decoded = categories(1, cats).decode(&lists(values, &[1])).unwrap();
                assert_eq!(decoded.output, Output::Rows(Table::new(1, expected.clone()).unwrap()));
            }
        }
    }

    #[test]
    fn a_real_number_too_large_for_a_density_costs_its_row_and_no_other() {
        let piece = lists(Values::F32(vec![1.0, 2.0, 3.0, -2e30, 1e18, -1e18]), &[2, 2, 2]);
        let decoded = reals(2).decode(&piece).unwrap();
        assert_eq!(decoded.output, Output::Rows(Table::new(2, Values::F32(vec![1.0, 2.0, 1e18, -1e18])).unwrap()));
        assert_eq!(reasons(&decoded), ["variable 1: -2e30 is outside ±1e18; rescale the column"]);
        assert_eq!(decoded.bad[0].to_string().split(": ").next(), Some("shard"));
        assert_eq!(decoded.bad[0].position, 101);
    }

    #[test]
    fn missing_cells_stay_missing_whatever_they_hold() {
        let marks = [false, true, false, false];
        let piece = with_missing(lists(Values::U32(vec![1, 999, 0, 1]), &[2, 2]), &marks);
        let expected = Table::new(2, Values::U8(vec![1, 0, 0, 1])).unwrap().with_missing(marks.to_vec()).unwrap();
        assert_eq!(categories(2, 2).decode(&piece).unwrap().output, Output::Rows(expected));
        let piece = with_missing(lists(Values::F32(vec![0.5, f32::NAN, -2.0, 1.0]), &[2, 2]), &marks);
        let expected = Table::new(2, Values::F32(vec![0.5, 0.0, -2.0, 1.0])).unwrap();
        let expected = expected.with_missing(marks.to_vec()).unwrap();
        assert_eq!(reals(2).decode(&piece).unwrap().output, Output::Rows(expected));
    }

    #[test]
    fn marks_follow_their_rows_when_a_bad_one_is_left_out() {
        let marks = [true, false, false, false, false, true];
        for (decoder, values) in [
            (categories(2, 2), Values::F32(vec![9.0, 1.0, 7.0, 1.0, 0.0, 9.0])),
            (reals(2), Values::F32(vec![9.0, 1.0, f32::INFINITY, 1.0, 0.0, 9.0])),
        ] {
            let decoded = decoder.decode(&with_missing(lists(values, &[2, 2, 2]), &marks)).unwrap();
            let Output::Rows(table) = &decoded.output else { panic!("rows") };
            assert_eq!(table.missing(), Some(&[true, false, false, true][..]));
            assert_eq!((0..4).map(|i| table.values().real(i)).collect::<Vec<_>>(), [0.0, 1.0, 0.0, 0.0]);
            assert_eq!(decoded.bad[0].position, 101);
        }
    }

    #[test]
    fn reals_must_be_finite_and_integers_become_real() {
        let piece = lists(Values::F32(vec![0.5, f32::NAN, 2.0, 3.0]), &[2, 2]);
        let decoded = reals(2).decode(&piece).unwrap();
        assert_eq!(decoded.output, Output::Rows(Table::new(2, Values::F32(vec![2.0, 3.0])).unwrap()));
        assert_eq!(reasons(&decoded), ["variable 1: NaN must be finite, or missing"]);
        let decoded = reals(2).decode(&lists(Values::U16(vec![300, 1]), &[2])).unwrap();
        assert_eq!(decoded.output, Output::Rows(Table::new(2, Values::F32(vec![300.0, 1.0])).unwrap()));
    }

    #[test]
    fn a_real_number_that_is_not_whole_is_no_category() {
        let piece = lists(Values::F32(vec![1.0, 0.5, -1.0, f32::NAN, 5e9]), &[1, 1, 1, 1, 1]);
        let decoded = categories(1, 3).decode(&piece).unwrap();
        assert_eq!(decoded.output, Output::Rows(Table::new(1, Values::U8(vec![1])).unwrap()));
        assert_eq!(reasons(&decoded)[0], "variable 0: value 0.5 is outside 0..3");
        assert_eq!(decoded.bad.len(), 4);
    }

    #[test]
    fn impossible_options_and_texts_are_refused() {
        assert_eq!(RowDecoder::new(0, ValueKind::Reals).unwrap_err().kind(), ErrorKind::Option);
        assert_eq!(RowDecoder::new(1, ValueKind::Categories(0)).unwrap_err().kind(), ErrorKind::Option);
        assert_eq!(reals(6).with_grid(vec![2, 2]).unwrap_err().kind(), ErrorKind::Option);
        assert_eq!(reals(6).with_grid(vec![2, 3]).unwrap().shape().grid, Some(vec![2, 3]));
        assert_eq!(reals(1).decode(&blobs(&[b"text"])).unwrap_err().kind(), ErrorKind::Unsupported);
        assert_eq!(reals(3).decode(&lists(Values::U8(vec![]), &[])).unwrap().records, 0);
    }
}
