//! Which columns of a table are read, and what their records are: as a user says it, and as it was found.
//!
//! `binding` finds the columns in a schema.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Which columns of a table to read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Columns {
    /// What can only be meant: an image column `image`, the only list, all columns if all are numbers, the only images.
    /// Strings may be texts, names or categories: they have to be asked for.
    #[default]
    Auto,
    /// What can only be meant by somebody who wants such records; other columns are left out.
    Only(Wanted),
    /// A column of texts, byte strings, images (`struct{bytes, path}`), lists of numbers, or numbers.
    One(String),
    /// One column of numbers per variable, in this order; `x*` is every column whose name begins with `x`, in file
    /// order.
    Many(Vec<String>),
}

/// Records that are asked for, where columns are not named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// A column of texts: `text`, or the only one.
    Text,
    /// A column of images: `image`, or the only one.
    Images,
    /// A list of numbers, the only one, or all columns that are numbers.
    Rows,
    /// The only list of numbers.
    Lists,
}

/// Which columns of a table are learned from, and which are not.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reading {
    /// Those that are read, in the order in which a record has them.
    pub read: Vec<ColumnInfo>,
    /// The others, in the order of the table.
    pub left_out: Vec<ColumnInfo>,
}

/// A column of a table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ColumnInfo {
    /// Its name.
    pub name: String,
    /// Its type, as Arrow calls it.
    #[serde(rename = "type")]
    pub data_type: String,
}

impl fmt::Display for ColumnInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` ({})", self.name, self.data_type)
    }
}

/// What the records of bound columns are: enough to choose a decoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordKind {
    /// Texts.
    Text,
    /// Image files, or other bytes.
    Image,
    /// Lists of numbers.
    Lists {
        /// How long every list is, if the schema says so.
        width: Option<usize>,
        /// Whether they are real numbers, not categories.
        reals: bool,
    },
}
<<<<<<< HEAD
=======

/// Columns of one schema that become records.
#[derive(Clone, Debug)]
pub struct Binding {
    names: Vec<String>,
    form: Form,
    kind: RecordKind,
    /// What numbers become.
    number: NumberType,
    /// What the user said, or what `Auto` came to: binds other files to the same columns.
    chosen: Columns,
    reading: Reading,
}

/// How columns become records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Blobs,
    /// A struct whose field `bytes` is meant.
    Images,
    Lists,
    /// A number per column.
    Numbers,
}

/// The field of an image struct that is read.
pub(super) const IMAGE_BYTES: &str = "bytes";

impl Binding {
    /// Finds the columns in a schema.
    pub fn new(schema: &Schema, columns: &Columns) -> Result<Self> {
        let mut binding = match columns {
            Columns::Auto => return Self::new(schema, &choose(schema)?),
            Columns::Only(wanted) => return Self::new(schema, &choose_only(schema, *wanted)?),
            Columns::One(name) => Self::one(find(schema, name)?),
            Columns::Many(names) => Self::many(schema, names),
        }?;
        let named = |name: &String| schema.fields().iter().find(|field| field.name() == name);
        binding.reading.read = binding.names.iter().filter_map(named).map(|field| ColumnInfo::of(field)).collect();
        let others = schema.fields().iter().filter(|field| !binding.names.contains(field.name()));
        binding.reading.left_out = others.map(|field| ColumnInfo::of(field)).collect();
        Ok(binding)
    }

    fn one(field: &Field) -> Result<Self> {
        let name = field.name();
        let Some((form, kind, number)) = usable(field) else {
            return Err(Error::data(format!(
                "column `{name}` is {}: neither text, bytes, an image, a list of numbers nor a number",
                field.data_type()
            )));
        };
        Ok(Self {
            names: vec![name.clone()],
            form,
            kind,
            number,
            chosen: Columns::One(name.clone()),
            reading: Reading::default(),
        })
    }

    fn many(schema: &Schema, patterns: &[String]) -> Result<Self> {
        let mut fields: Vec<&Field> = Vec::new();
        for pattern in patterns {
            match pattern.strip_suffix('*') {
                None => fields.push(find(schema, pattern)?),
                Some(prefix) => {
                    let before = fields.len();
                    fields.extend(schema.fields().iter().map(AsRef::as_ref).filter(|f| f.name().starts_with(prefix)));
                    if fields.len() == before {
                        return Err(Error::option(format!("no column `{pattern}`; {}", there_are(schema))));
                    }
                }
            }
        }
        let mut number = NumberType::U8;
        let mut seen = HashSet::new();
        for field in &fields {
            if !seen.insert(field.name()) {
                return Err(Error::option(format!("column `{}` is named twice", field.name())));
            }
            number = number.max(NumberType::of(field.data_type()).ok_or_else(|| {
                Error::data(format!("column `{}` is {}, not a number", field.name(), field.data_type()))
            })?);
        }
        if fields.is_empty() {
            return Err(Error::option("no column to read: name at least one"));
        }
        Ok(Self {
            names: fields.iter().map(|field| field.name().clone()).collect(),
            form: Form::Numbers,
            kind: RecordKind::Lists { width: Some(fields.len()), reals: number == NumberType::F32 },
            number,
            chosen: Columns::Many(patterns.to_vec()),
            reading: Reading::default(),
        })
    }

    /// The columns by name, in the order in which a record has them.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// What the records are.
    pub fn kind(&self) -> RecordKind {
        self.kind
    }

    /// Which columns are read, and which are not.
    pub fn reading(&self) -> &Reading {
        &self.reading
    }

    /// What to bind the other files of the same data to.
    pub fn chosen(&self) -> &Columns {
        &self.chosen
    }

    /// Returns true if only the field `bytes` of the column is read.
    pub(super) fn reads_image_bytes(&self) -> bool {
        self.form == Form::Images
    }

    /// Bytes that one number takes in a record; 0 where records are byte strings.
    pub(super) fn number_bytes(&self) -> u64 {
        match (self.form, self.number) {
            (Form::Blobs | Form::Images, _) => 0,
            (_, NumberType::U8) => 1,
            (_, NumberType::U16) => 2,
            (_, NumberType::U32 | NumberType::F32) => 4,
        }
    }

    /// Makes two files deliver the same: both widen to what holds the other. Refuses what cannot be.
    pub(super) fn agree(&mut self, other: &mut Self) -> Result<()> {
        use RecordKind::Lists as L;
        let kind = match (self.kind, other.kind) {
            (L { width: a, reals }, L { width: b, reals: also_reals }) => {
                if self.names != other.names || (a.is_some() && b.is_some() && a != b) {
                    return Err(self.unlike(other));
                }
                L { width: a.filter(|_| a == b), reals: reals || also_reals }
            }
            (L { .. }, _) | (_, L { .. }) => return Err(self.unlike(other)),
            (kind, _) => kind, // texts and bytes are both byte strings
        };
        let number = self.number.max(other.number);
        for binding in [self, other] {
            binding.kind = kind;
            binding.number = number;
        }
        Ok(())
    }

    fn unlike(&self, other: &Self) -> Error {
        let name = &self.names[0];
        if self.names.len() == other.names.len() && self.names.len() == 1 {
            return Error::data(format!("column `{name}`: expected {}, found {}", self.found(), other.found()));
        }
        Error::data(format!(
            "expected the {} columns `{name}`…, found {} columns `{}`…: give all files the same ones",
            self.names.len(),
            other.names.len(),
            other.names[0]
        ))
    }

    fn found(&self) -> String {
        match self.kind {
            RecordKind::Text => "text".into(),
            RecordKind::Image => "bytes".into(),
            RecordKind::Lists { width: Some(width), .. } => format!("lists of {width} numbers"),
            RecordKind::Lists { width: None, .. } => "lists of numbers".into(),
        }
    }
}

/// What a column can be read as.
fn usable(field: &Field) -> Option<(Form, RecordKind, NumberType)> {
    // Old writers give texts no type but bytes: the name tells.
    let bytes_kind = if field.name() == "text" { RecordKind::Text } else { RecordKind::Image };
    let list = |item: &Field, width: Option<usize>| {
        let number = NumberType::of(item.data_type())?;
        Some((Form::Lists, RecordKind::Lists { width, reals: number == NumberType::F32 }, number))
    };
    match field.data_type() {
        DataType::List(item) | DataType::LargeList(item) => list(item, None),
        DataType::FixedSizeList(item, width) => list(item, usize::try_from(*width).ok()),
        DataType::Struct(fields) => {
            let bytes = fields.iter().find(|field| field.name() == IMAGE_BYTES)?;
            is_bytes(bytes.data_type()).then_some((Form::Images, RecordKind::Image, NumberType::U8))
        }
        other if is_text(other) => Some((Form::Blobs, RecordKind::Text, NumberType::U8)),
        other if is_bytes(other) => Some((Form::Blobs, bytes_kind, NumberType::U8)),
        other => {
            let number = NumberType::of(other)?;
            let kind = RecordKind::Lists { width: Some(1), reals: number == NumberType::F32 };
            Some((Form::Numbers, kind, number))
        }
    }
}

fn is_text(data_type: &DataType) -> bool {
    match data_type {
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => true,
        DataType::Dictionary(_, values) => is_text(values),
        _ => false,
    }
}

fn is_bytes(data_type: &DataType) -> bool {
    match data_type {
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView => true,
        DataType::Dictionary(_, values) => is_bytes(values),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{
        ArrayRef, BinaryArray, FixedSizeListArray, Float32Array, Int64Array, ListArray, RecordBatch, StringArray,
        StructArray, UInt8Array, UInt16Array,
    };
    use arrow::datatypes::{Int64Type, UInt8Type};

    use super::*;
    use crate::data::Column;
    use crate::source::{Lists, Records};

    fn batch(columns: Vec<(&str, ArrayRef)>) -> RecordBatch {
        RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, array)| (name, array, true))).unwrap()
    }

    fn text(items: &[&str]) -> ArrayRef {
        Arc::new(StringArray::from(items.to_vec()))
    }

    fn ints(items: &[i64]) -> ArrayRef {
        Arc::new(Int64Array::from(items.to_vec()))
    }

    fn list() -> ArrayRef {
        let items = [Some(vec![Some(1), None]), None, Some(vec![]), Some(vec![Some(-7), Some(7), Some(-8)])];
        Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>(items))
    }

    fn chosen(batch: &RecordBatch) -> Columns {
        Binding::new(&batch.schema(), &Columns::Auto).unwrap().chosen().clone()
    }

    #[test]
    fn without_a_name_the_column_that_can_only_be_meant_is_read() {
        let one = |name: &str| Columns::One(name.into());
        let wide = FixedSizeListArray::from_iter_primitive::<UInt8Type, _, _>([Some([Some(1)])], 1);
        assert_eq!(chosen(&batch(vec![("id", text(&["a"])), ("snps", Arc::new(wide))])), one("snps"));
        let image: ArrayRef = Arc::new(BinaryArray::from(vec![&b"x"[..]]));
        assert_eq!(chosen(&batch(vec![("image", image.clone()), ("label", ints(&[1]))])), one("image"));
        assert_eq!(chosen(&batch(vec![("png", image), ("label", ints(&[1]))])), one("png"));
        let both = Columns::Many(vec!["b".into(), "a".into()]);
        assert_eq!(chosen(&batch(vec![("b", ints(&[1])), ("a", ints(&[1]))])), both);
    }

    #[test]
    fn who_wants_texts_or_rows_gets_them_and_the_rest_is_left_out() {
        let only = |batch: &RecordBatch, wanted: Wanted| Binding::new(&batch.schema(), &Columns::Only(wanted));
        let table = batch(vec![
            ("title", text(&["a"])),
            ("n", ints(&[1])),
            ("text", text(&["a"])),
            ("m", ints(&[1])),
            ("ids", Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>([Some(vec![Some(1)])]))),
        ]);
        assert_eq!(only(&table, Wanted::Text).unwrap().names(), ["text"]);
        assert_eq!(only(&table, Wanted::Lists).unwrap().names(), ["ids"]);
        assert_eq!(only(&table, Wanted::Rows).unwrap().names(), ["ids"]);
        let error = only(&table, Wanted::Images).unwrap_err().to_string();
        assert!(error.starts_with("say which column holds the images; there are `title` (Utf8)"), "{error}");
        let table = batch(vec![("prose", text(&["a"])), ("b", ints(&[1])), ("a", ints(&[1]))]);
        assert_eq!(only(&table, Wanted::Text).unwrap().names(), ["prose"]);
        let rows = only(&table, Wanted::Rows).unwrap();
        let names = |columns: &[ColumnInfo]| columns.iter().map(|column| column.name.clone()).collect::<Vec<_>>();
        assert_eq!(
            (names(&rows.reading().read), names(&rows.reading().left_out)),
            (vec!["b".into(), "a".into()], vec!["prose".to_string()])
        );
    }

    #[test]
    fn strings_and_mixed_tables_are_refused_with_what_would_work() {
        let refused = |batch: &RecordBatch| {
            let error = Binding::new(&batch.schema(), &Columns::Auto).unwrap_err();
            assert_eq!(error.kind(), crate::error::ErrorKind::Option, "{error}");
            error.to_string()
        };
        let error = refused(&batch(vec![("text", text(&["a"]))]));
        assert_eq!(
            error,
            "there are `text` (Utf8): which to learn, and as what, is not clear; say source.column = \"text\" (--column text) \
             for a text; strings as categories, and dates, are not learned yet"
        );
        let error = refused(&batch(vec![("name", text(&["a"])), ("age", ints(&[1])), ("size", ints(&[1]))]));
        assert!(
            error.contains("(--column name) for a text, or source.columns = [\"age\", \"size\"] (--columns)"),
            "{error}"
        );
        let bytes: ArrayRef = Arc::new(BinaryArray::from(vec![&b"x"[..]]));
        let error = refused(&batch(vec![("a", bytes.clone()), ("b", bytes)]));
        assert!(error.contains("source.column = \"a\" or another (--column a) for images"), "{error}");
        let two = batch(vec![("a", list()), ("b", list()), ("id", ints(&[1, 2, 3, 4]))]);
        let error = Binding::new(&two.schema(), &Columns::Only(Wanted::Rows)).unwrap_err().to_string();
        assert!(error.starts_with("say which column holds the rows"), "{error}");
        let error = refused(&batch(vec![("a", list()), ("b", list())]));
        assert!(error.contains("source.column = \"a\" or another (--column a) for a list of numbers"), "{error}");
    }

    #[test]
    fn what_cannot_be_read_lists_the_columns_there_are() {
        let two = batch(vec![("question", text(&["a"])), ("answer", text(&["b"]))]);
        let error = Binding::new(&two.schema(), &Columns::Only(Wanted::Text)).unwrap_err().to_string();
        assert_eq!(error, "say which column holds the texts; there are `question` (Utf8), `answer` (Utf8)");
        let error = Binding::new(&two.schema(), &Columns::One("text".into())).unwrap_err().to_string();
        assert_eq!(error, "no column `text`; there are `question` (Utf8), `answer` (Utf8)");
        for wrong in [vec!["x*"], vec!["answer"], vec![], vec!["zz"]] {
            let wrong = Columns::Many(wrong.into_iter().map(String::from).collect());
            assert!(Binding::new(&two.schema(), &wrong).is_err(), "{wrong:?}");
        }
        let twice = batch(vec![("x1", ints(&[1]))]);
        assert!(Binding::new(&twice.schema(), &Columns::Many(vec!["x*".into(), "x1".into()])).is_err());
        let many: Vec<(String, ArrayRef)> = (0..30).map(|i| (format!("t{i}"), text(&["a"]))).collect();
        let many = batch(many.iter().map(|(name, array)| (name.as_str(), array.clone())).collect());
        let error = Binding::new(&many.schema(), &Columns::Only(Wanted::Text)).unwrap_err().to_string();
        assert!(error.ends_with("`t19` (Utf8) and 10 more"), "{error}");
    }

    #[test]
    fn lists_keep_their_nulls_and_name_their_bad_values() {
        let batch = batch(vec![("ids", list())]);
        let binding = Binding::new(&batch.schema(), &Columns::Auto).unwrap();
        assert_eq!(binding.kind(), RecordKind::Lists { width: None, reals: false });
        let (records, bad) = binding.records(&batch).unwrap();
        let Records::Lists(lists) = &records else { panic!("{records:?}") };
        assert_eq!(lists.ends, [2, 2, 2, 5]);
        assert_eq!(lists.values, Column::U32(vec![1, 0, 0, 7, 0]));
        assert_eq!(lists.missing, Some(vec![false, true, false, false, false]));
        let reason = "value 0: -7 is not a category: it is outside 0..=4294967295".to_string();
        assert_eq!(bad, [(1, "null".to_string()), (3, reason)]);
        // A slice of a batch begins in the middle of the values.
        let (records, bad) = binding.records(&batch.slice(2, 2)).unwrap();
        let Records::Lists(lists) = &records else { panic!("{records:?}") };
        assert_eq!((lists.range(1), bad[0].0), (0..3, 1));
        assert_eq!(lists.values, Column::U32(vec![0, 7, 0]));
    }

    #[test]
    fn fixed_lists_know_their_width_and_slices_their_place() {
        let rows = [Some([Some(1), Some(2)]), None, Some([None, Some(4)])];
        let array = FixedSizeListArray::from_iter_primitive::<UInt8Type, _, _>(rows, 2);
        let batch = batch(vec![("x", Arc::new(array))]);
        let binding = Binding::new(&batch.schema(), &Columns::One("x".into())).unwrap();
        assert_eq!(binding.kind(), RecordKind::Lists { width: Some(2), reals: false });
        let (records, bad) = binding.records(&batch.slice(1, 2)).unwrap();
        let Records::Lists(lists) = records else { panic!() };
        assert_eq!((lists.ends.as_slice(), bad.as_slice()), ([2, 4].as_slice(), [(0, "null".into())].as_slice()));
        assert_eq!(lists.values.category(3), Some(4));
        assert!(lists.missing.unwrap()[2]);
    }

    #[test]
    fn many_columns_become_rows_of_the_widest_type() {
        let batch = batch(vec![
            ("x0", Arc::new(UInt8Array::from(vec![Some(1), None])) as ArrayRef),
            ("y", text(&["a", "b"])),
            ("x1", Arc::new(UInt16Array::from(vec![300, 400]))),
        ]);
        let binding = Binding::new(&batch.schema(), &Columns::Many(vec!["x*".into()])).unwrap();
        assert_eq!(binding.names(), ["x0", "x1"]);
        let (records, bad) = binding.records(&batch).unwrap();
        let missing = Some(vec![false, false, true, false]);
        assert_eq!(
            records,
            Records::Lists(Lists { values: Column::U16(vec![1, 300, 0, 400]), ends: vec![2, 4], missing })
        );
        assert!(bad.is_empty());
        let reversed = Binding::new(&batch.schema(), &Columns::Many(vec!["x1".into(), "x0".into()])).unwrap();
        let Records::Lists(lists) = reversed.records(&batch).unwrap().0 else { panic!() };
        assert_eq!(lists.values, Column::U16(vec![300, 1, 400, 0]));
    }

    #[test]
    fn an_image_without_bytes_says_so() {
        let bytes: ArrayRef = Arc::new(BinaryArray::from(vec![Some(&b"png"[..]), None]));
        let path: ArrayRef = Arc::new(StringArray::from(vec![None, Some("a.png")]));
        let images = StructArray::try_from(vec![("bytes", bytes), ("path", path)]).unwrap();
        let batch = batch(vec![("image", Arc::new(images)), ("label", ints(&[1, 2]))]);
        let binding = Binding::new(&batch.schema(), &Columns::Auto).unwrap();
        assert_eq!(binding.kind(), RecordKind::Image);
        let (records, bad) = binding.records(&batch).unwrap();
        let Records::Blobs(blobs) = records else { panic!() };
        assert_eq!(blobs.get(0), b"png");
        assert_eq!(bad, [(1, "no bytes; only a path is given".to_string())]);
    }

    #[test]
    fn files_agree_on_the_wider_type_or_not_at_all() {
        let bind =
            |array: ArrayRef| Binding::new(&batch(vec![("x", array)]).schema(), &Columns::One("x".into())).unwrap();
        let (mut a, mut b) = (bind(ints(&[1])), bind(Arc::new(Float32Array::from(vec![0.5]))));
        a.agree(&mut b).unwrap();
        assert_eq!(a.kind(), RecordKind::Lists { width: Some(1), reals: true });
        let (records, _) = a.records(&batch(vec![("x", ints(&[3]))])).unwrap();
        assert_eq!(records, Records::Lists(Lists { values: Column::F32(vec![3.0]), ends: vec![1], missing: None }));
        let error = bind(list()).agree(&mut bind(text(&["a"]))).unwrap_err().to_string();
        assert_eq!(error, "column `x`: expected lists of numbers, found text");
        let wide = |n: i32| {
            let rows = [Some(vec![Some(0); n as usize])];
            bind(Arc::new(FixedSizeListArray::from_iter_primitive::<UInt8Type, _, _>(rows, n)))
        };
        assert!(wide(2).agree(&mut wide(3)).is_err());
        let (mut fixed, mut free) = (wide(2), bind(list()));
        fixed.agree(&mut free).unwrap();
        assert_eq!((fixed.kind(), free.kind()), (free.kind(), RecordKind::Lists { width: None, reals: false }));
    }
}
>>>>>>> pipeline
