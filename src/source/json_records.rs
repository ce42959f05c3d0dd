//! Records out of JSON values, one at a time.
//!
//! A [`JsonShape`] says what a value means; [`JsonRecords`] takes values and keeps texts, numbers or cells, as
//! `json_values` reads them. A value that does not fit is a bad record with a reason, and costs none of its neighbours:
//! not JSON, no such column, another type, a number that 32 bits cannot hold, a column that nobody has heard of where
//! all columns were meant. Whole numbers stay as narrow as they fit; a fraction or a negative number makes the numbers
//! of this piece real ones, and truth values are 0 and 1. Used wherever JSON is read, by lines or by messages.

use super::json_shape::Form;
use super::json_values::{ListOf, ListUnder, NamedColumns, RowOf, TextUnder, parsed};
use super::{Blobs, Lists, Records};
use crate::data::{Cells, Values};

pub use super::json_shape::JsonShape;
pub(super) use super::json_values::Number;

/// Records that are being put together.
#[derive(Debug)]
pub struct JsonRecords {
    kept: Kept,
    /// Records that do not fit, by index and with the reason; empty records stand in their place.
    bad: Vec<(usize, String)>,
    /// The numbers of the record that is being read; kept only if all of it fits.
    row: Vec<Number>,
}

#[derive(Debug)]
enum Kept {
    Texts { key: String, blobs: Blobs },
    Numbers { from: From, reals: bool, lists: Lists },
    Cells { columns: NamedColumns, cells: Cells },
}

/// Where the numbers of a record are.
#[derive(Debug)]
enum From {
    Key(String),
    Line,
    Columns(NamedColumns),
}

impl JsonRecords {
    pub(super) fn new(shape: &JsonShape) -> Self {
        let lists = Lists { values: Values::U8(Vec::new()), ends: Vec::new(), missing: None };
        let from = match &shape.form {
            Form::Text(key) => {
                let kept = Kept::Texts { key: key.clone(), blobs: Blobs::default() };
                return Self { kept, bad: Vec::new(), row: Vec::new() };
            }
            Form::List { key, .. } => From::Key(key.clone()),
            Form::Line { .. } => From::Line,
            Form::Columns { names, all } => From::Columns(named(shape, names, *all)),
            Form::Cells { names, all } => {
                let kept = Kept::Cells { columns: named(shape, names, *all), cells: Cells::new(names.len()) };
                return Self { kept, bad: Vec::new(), row: Vec::new() };
            }
        };
        Self { kept: Kept::Numbers { from, reals: shape.reals, lists }, bad: Vec::new(), row: Vec::new() }
    }

    /// Adds the record of a JSON value; a bad one if it does not fit.
    pub fn push(&mut self, line: &[u8]) {
        let reason = match &mut self.kept {
            Kept::Texts { key, blobs } => match parsed(line, TextUnder(key)) {
                Ok(Some(Ok(text))) => {
                    blobs.push(text.as_bytes());
                    return;
                }
                Ok(Some(Err(what))) => format!("column `{key}` is {what}, not a text"),
                Ok(None) => format!("no column `{key}`"),
                Err(error) => format!("not a JSON object: {error}"),
            },
            Kept::Numbers { from, reals, lists } => {
                self.row.clear();
                let row = &mut self.row;
                let (read, expected) = match &*from {
                    From::Key(key) => (parsed(line, ListUnder { key, row }), "object"),
                    From::Line => {
                        (parsed(line, ListOf(row)).map(|list| list.map_err(|e| e.within("the line"))), "list")
                    }
                    From::Columns(columns) => (parsed(line, RowOf { columns, row }), "object"),
                };
                match read {
                    Ok(Ok(())) => {
                        append(lists, row, *reals);
                        return;
                    }
                    Ok(Err(reason)) => reason,
                    Err(error) => format!("not a JSON {expected}: {error}"),
                }
            }
            Kept::Cells { columns, cells } => {
                let mut row = Vec::with_capacity(columns.names.len());
                match parsed(line, RowOf { columns, row: &mut row }) {
                    Ok(Ok(())) => {
                        row.iter().for_each(|cell| cells.push(cell));
                        return;
                    }
                    Ok(Err(reason)) => reason,
                    Err(error) => format!("not a JSON object: {error}"),
                }
            }
        };
        self.push_bad(reason);
    }

    /// Adds a record that cannot be read, for instance because it is too long.
    pub fn push_bad(&mut self, reason: String) {
        self.bad.push((self.len(), reason));
        match &mut self.kept {
            Kept::Texts { blobs, .. } => blobs.push(&[]),
            Kept::Numbers { lists, .. } => lists.ends.push(lists.values.len()),
            Kept::Cells { cells, .. } => cells.push_null_row(),
        }
    }

    /// How many records there are, bad ones among them.
    pub fn len(&self) -> usize {
        match &self.kept {
            Kept::Texts { blobs, .. } => blobs.ends.len(),
            Kept::Numbers { lists, .. } => lists.ends.len(),
            Kept::Cells { cells, .. } => cells.num_rows(),
        }
    }

    /// Returns true if there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes that the texts or numbers take.
    pub fn num_bytes(&self) -> usize {
        match &self.kept {
            Kept::Texts { blobs, .. } => blobs.bytes.len(),
            Kept::Numbers { lists, .. } => lists.values.num_bytes(),
            Kept::Cells { cells, .. } => cells.num_bytes(),
        }
    }

    /// The records, and which of them are bad, in order.
    pub fn finish(self) -> (Records, Vec<(usize, String)>) {
        let records = match self.kept {
            Kept::Texts { blobs, .. } => Records::Blobs(blobs),
            Kept::Numbers { lists, .. } => Records::Lists(lists),
            Kept::Cells { cells, .. } => Records::Cells(cells),
        };
        (records, self.bad)
    }
}

fn named(shape: &JsonShape, names: &[String], all: bool) -> NamedColumns {
    NamedColumns::new(names, all.then(|| shape.left_out()))
}

/// Adds the numbers of a record; all of them widen where one does not fit.
pub(super) fn append(lists: &mut Lists, row: &[Number], reals: bool) {
    let (mut largest, mut has_real, mut has_gap) = (0, reals, false);
    for number in row {
        match number {
            Number::Missing => has_gap = true,
            Number::Whole(value) => largest = largest.max(*value),
            Number::Real(_) => has_real = true,
        }
    }
    let before = lists.values.len();
    widen(&mut lists.values, largest, has_real);
    let whole = |number: &Number| match number {
        Number::Whole(value) => *value,
        Number::Missing | Number::Real(_) => 0,
    };
    match &mut lists.values {
        Values::U8(values) => values.extend(row.iter().map(|number| whole(number) as u8)),
        Values::U16(values) => values.extend(row.iter().map(|number| whole(number) as u16)),
        Values::U32(values) => values.extend(row.iter().map(whole)),
        Values::F32(values) => values.extend(row.iter().map(|number| match number {
            Number::Missing => 0.0,
            Number::Whole(value) => *value as f32,
            Number::Real(value) => *value,
        })),
    }
    if has_gap || lists.missing.is_some() {
        let missing = lists.missing.get_or_insert_with(|| vec![false; before]);
        missing.extend(row.iter().map(|number| *number == Number::Missing));
    }
    lists.ends.push(lists.values.len());
}

/// Makes room for whole numbers up to `largest`, or for real ones.
fn widen(values: &mut Values, largest: u32, real: bool) {
    let wider = match (&*values, largest) {
        (Values::F32(_), _) => return,
        (_, _) if real => Values::F32((0..values.len()).map(|at| values.real(at) as f32).collect()),
        (Values::U8(_), 0..=0xff) | (Values::U16(_), 0..=0xffff) | (Values::U32(_), _) => return,
        (Values::U8(narrow), 0x100..=0xffff) => Values::U16(narrow.iter().map(|&value| value.into()).collect()),
        (Values::U8(narrow), _) => Values::U32(narrow.iter().map(|&value| value.into()).collect()),
        (Values::U16(narrow), _) => Values::U32(narrow.iter().map(|&value| value.into()).collect()),
    };
    *values = wider;
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::data::Cell;
    use crate::source::columns::Columns;

    fn records(first: &str, lines: &[&str]) -> (Records, Vec<(usize, String)>) {
        let mut records = JsonShape::find(&[first.as_bytes()], &Columns::Auto).unwrap().records();
        for (at, line) in lines.iter().enumerate() {
            records.push(line.as_bytes());
            assert_eq!(records.len(), at + 1);
        }
        records.finish()
    }

    fn lists(first: &str, lines: &[&str]) -> (Lists, Vec<(usize, String)>) {
        match records(first, lines) {
            (Records::Lists(lists), bad) => (lists, bad),
            (other, _) => panic!("{other:?}"),
        }
    }

    #[test]
    fn rows_come_by_name_in_any_order_and_what_is_not_there_is_missing() {
        let lines = [r#"{"a": 1, "b": 2}"#, r#"{"b": 3, "a": true}"#, r#"{"a": null, "b": 4}"#, r#"{"b": 5}"#];
        let (found, bad) = lists(lines[0], &lines);
        assert!(bad.is_empty(), "{bad:?}");
        assert_eq!(found.values, Values::U8(vec![1, 2, 1, 3, 0, 4, 0, 5]));
        assert_eq!(found.ends, [2, 4, 6, 8]);
        assert_eq!(found.missing, Some([[false; 4], [true, false, true, false]].concat()));
    }

    #[test]
    fn numbers_are_as_narrow_as_they_fit_and_a_fraction_makes_them_real() {
        let (found, _) = lists("[1]", &["[255, 0]"]);
        assert_eq!(found.values, Values::U8(vec![255, 0]));
        assert_eq!(lists("[1]", &["[255]", "[256]"]).0.values, Values::U16(vec![255, 256]));
        assert_eq!(lists("[1]", &["[255]", "[65536]", "[2.0]"]).0.values, Values::U32(vec![255, 65_536, 2]));
        assert_eq!(lists("[1]", &["[300]", "[-1]", "[null, 0.5]"]).0.values, Values::F32(vec![300.0, -1.0, 0.0, 0.5]));
        assert_eq!(lists("[0.5]", &["[1]"]).0.values, Values::F32(vec![1.0]), "as the first lines said");
        assert_eq!(lists("[1]", &["[1]", "[1e10]"]).0.values, Values::F32(vec![1.0, 1e10]));
    }

    #[test]
    fn what_does_not_fit_is_bad_with_its_reason_and_costs_nobody_else() {
        let good = r#"{"a": 1, "b": 2}"#;
        let cases = [
            (r#"{"a": "x", "b": 2}"#, "column `a` is a text, not a number"),
            (r#"{"a": [1], "b": {"c": 1}}"#, "column `a` is a list, not a number"),
            (r#"{"a": 1e300, "b": 2}"#, "column `a`: 1e300 is not a finite 32-bit number"),
            (r#"{"c": 1}"#, "column `c` is not among those of the first lines"),
            (r#"{"a": 1, "b": 1, "c": 1}"#, "column `c` is not among those of the first lines"),
            ("{}", "none of the columns `a` to `b`"),
            ("[1, 2]", "not a JSON object: invalid type: sequence"),
            ("{\"a\": 1", "not a JSON object: EOF"),
            ("{\"a\": 1, \"b\": 2} x", "not a JSON object: trailing"),
            ("", "not a JSON object: EOF"),
        ];
        for (line, reason) in cases {
            let (found, bad) = lists(good, &[good, line, good]);
            assert_eq!((found.values, found.ends), (Values::U8(vec![1, 2, 1, 2]), vec![2, 2, 4]), "{line}");
            assert_eq!((bad.len(), bad[0].0), (1, 1));
            assert!(bad[0].1.starts_with(reason), "{line}: {}", bad[0].1);
        }
        for (first, line, reason) in [
            ("[1]", "[1, \"x\"]", "the line: value 1 is a text, not a number"),
            ("[1]", "7", "the line is a number, not a list of numbers"),
            (r#"{"a": [1]}"#, r#"{"a": 3}"#, "column `a` is a number, not a list of numbers"),
            (r#"{"a": [1]}"#, r#"{"a": [3, [4]]}"#, "column `a`: value 1 is a list, not a number"),
            (r#"{"a": [1]}"#, r#"{"b": [3]}"#, "no column `a`"),
            (r#"{"text": "x"}"#, r#"{"text": null}"#, "column `text` is null, not a text"),
        ] {
            let (found, bad) = records(first, &[line]);
            assert_eq!((found.len(), bad.len()), (1, 1));
            assert!(bad[0].1.starts_with(reason), "{line}: {}", bad[0].1);
        }
    }

    #[test]
    fn columns_that_were_named_may_have_any_company() {
        let shape = JsonShape::find(&[br#"{"a": 1, "b": 2}"#], &Columns::Many(vec!["b".into()])).unwrap();
        let mut records = shape.records();
        records.push(br#"{"new": "x", "b": 7, "a": "y"}"#);
        let (found, bad) = records.finish();
        assert!(bad.is_empty(), "{bad:?}");
        assert_eq!(found, Records::Lists(Lists { values: Values::U8(vec![7]), ends: vec![1], missing: None }));
    }

    #[test]
    fn cells_keep_their_types_and_what_is_nested_is_bad() {
        let first: &[u8] = br#"{"a": 1, "b": "x", "c": [1]}"#;
        let all = JsonShape::find(&[first], &Columns::Cells(Vec::new())).unwrap();
        let named = JsonShape::find(&[first], &Columns::Cells(vec!["b".into(), "a".into()])).unwrap();
        let read = |shape: &JsonShape, line: &str| {
            let mut records = shape.records();
            records.push(first);
            records.push(line.as_bytes());
            records.push(first);
            let (found, mut bad) = records.finish();
            let Records::Cells(cells) = found else { panic!("{found:?}") };
            assert_eq!((cells.num_rows(), cells.get(0, 0), cells.get(2, 0)), (3, cells.get(2, 0), cells.get(0, 0)));
            assert!(!cells.get(2, 0).is_null() && bad.iter().all(|bad| bad.0 == 1));
            bad.pop().map_or_else(|| Ok((0..2).map(|at| cells.get(1, at).into_owned()).collect()), |bad| Err(bad.1))
        };
        let text = |text: &'static str| Cell::Text(text.into());
        let good: [(&str, [Cell<'_>; 2]); 7] = [
            (r#"{"a": -5, "b": "\u00e9\"", "c": {}}"#, [Cell::Int(-5), text("é\"")]),
            (r#"{"b": true, "a": 2.0}"#, [Cell::Float(2.0), Cell::Bool(true)]),
            (r#"{"a": null, "b": ""}"#, [Cell::Null, text("")]),
            (r#"{"b": "1"}"#, [Cell::Null, text("1")]),
            (
                r#"{"a": 9223372036854775807, "b": 9223372036854775808}"#,
                [Cell::Int(i64::MAX), Cell::Float(9223372036854775808.0)],
            ),
            (r#"{"a": 1e400, "a": 3, "b": -0.5}"#, [Cell::Int(3), Cell::Float(-0.5)]),
            (r#"{"a": 1, "a": 2}"#, [Cell::Int(2), Cell::Null]),
        ];
        for (line, cells) in good.iter().filter(|(line, _)| !line.contains("1e400")) {
            assert_eq!(read(&all, line), Ok(cells.to_vec()), "{line}");
            let [a, b] = cells.clone();
            assert_eq!(read(&named, line), Ok(vec![b, a]), "{line}");
        }
        for (line, reason) in [
            (r#"{"a": [1], "b": "x"}"#, "column `a` is a list, not a single value"),
            (r#"{"a": 1, "b": {"c": 1}}"#, "column `b` is an object, not a single value"),
            (r#"{"c": 1}"#, "none of the columns `"),
            ("[1]", "not a JSON object: "),
            (r#"{"a": 1"#, "not a JSON object: EOF"),
            (r#"{"a": 1e400}"#, "not a JSON object: number out of range"),
        ] {
            for shape in [&all, &named] {
                let found = read(shape, line).unwrap_err();
                assert!(found.starts_with(reason), "{line}: {found}");
            }
        }
        let unknown = r#"{"a": 1, "new": 2}"#;
        assert!(read(&all, unknown).unwrap_err().starts_with("column `new` is not among those of the first lines"));
        assert_eq!(read(&named, unknown), Ok(vec![Cell::Null, Cell::Int(1)]));
    }

    proptest! {
        #[test]
        fn any_numbers_come_back_through_columns_and_lists_alike(
            rows in prop::collection::vec(prop::collection::vec(prop::option::of(0u32..70_000), 3), 1..20),
        ) {
            let text = |value: &Option<u32>| value.map_or("null".to_string(), |value| value.to_string());
            let first = "{\"c0\":1,\"c1\":1,\"c2\":1}";
            let objects: Vec<String> = rows.iter().map(|row| {
                let fields: Vec<String> = (0..3).rev().map(|c| format!("\"c{c}\":{}", text(&row[c]))).collect();
                format!("{{{}}}", fields.join(","))
            }).collect();
            let arrays: Vec<String> =
                rows.iter().map(|row| format!("[{}]", row.iter().map(text).collect::<Vec<_>>().join(", "))).collect();
            let by_name = lists(first, &objects.iter().map(String::as_str).collect::<Vec<_>>()).0;
            let by_place = lists("[1]", &arrays.iter().map(String::as_str).collect::<Vec<_>>()).0;
            prop_assert_eq!(&by_name, &by_place);
            let cells: Vec<Option<u32>> = rows.concat();
            for (at, cell) in cells.iter().enumerate() {
                let is_missing = by_name.missing.as_ref().is_some_and(|missing| missing[at]);
                prop_assert_eq!(is_missing, cell.is_none());
                prop_assert_eq!(by_name.values.category(at), Some(cell.unwrap_or(0)));
            }
        }
    }
}
