//! Arrays that NumPy saved: `.npy` files whose first dimension counts rows.
//!
//! Several files are read one after the other; they share one element type and one row shape. The other dimensions are
//! a row's variables, last dimension fastest, and [`NpyFiles::shape`] keeps them (`[28, 28]`) for callers that want a
//! grid. Integers, booleans and floats are taken, little-endian and in C order. Categories are what a `u32` holds: a
//! row with a negative or a larger number is a bad record, not a failure. An array of one dimension is refused, because
//! it might be rows of one variable or a stretch of tokens, and only its owner knows.
//!
//! Headers are read by `npy_header`; the length of the data is compared with the shape before a row is read. Files are
//! mapped (`mapped` tells what that means for memory and for files that change).

use std::fmt::Display;
use std::path::PathBuf;

use super::concatenated::Concatenated;
use super::mapped::Mapped;
use super::npy_header::{Header, ItemType, parse_header};
use super::{IndexedSource, Lists, Manifest, Piece, Positions, Records};
use crate::data::Values;
use crate::error::{Error, Result};

/// Rows of NumPy arrays.
#[derive(Debug)]
pub struct NpyFiles {
    files: Concatenated,
    item: ItemType,
    /// Shape of one row.
    shape: Vec<usize>,
    /// Values in a row: the product of `shape`, at least 1.
    num_vars: usize,
    num_rows: u64,
    manifest: Manifest,
}

impl NpyFiles {
    /// Maps arrays of one element type and one row shape, to be read in this order.
    pub fn open(paths: &[PathBuf]) -> Result<Self> {
        let mut files: Vec<(Mapped, usize)> = Vec::new();
        let mut rows_of_first: Option<Header> = None;
        for path in paths {
            let file = Mapped::open(path)?;
            let place = |error: Error| error.at(file.name());
            let header = parse_header(file.bytes()).map_err(place)?;
            check_size(&header, file.len()).map_err(place)?;
            if let (Some(first), Some((first_file, _))) = (&rows_of_first, files.first())
                && (header.item, &header.shape[1..]) != (first.item, &first.shape[1..])
            {
                return Err(Error::data(format!(
                    "{}: rows are {} where those of {} are {}: arrays read together need one type and one row shape",
                    file.name(),
                    describe_rows(&header),
                    first_file.name(),
                    describe_rows(first)
                )));
            }
            files.push((file, header.data));
            rows_of_first.get_or_insert(header);
        }
        let files = Concatenated::new(files);
        let manifest = Manifest::new("npy", files.entries(), "");
        manifest.require_files()?;
        let Header { item, shape, .. } = rows_of_first.expect("a file was read: the manifest has one");
        let shape = shape[1..].to_vec();
        let num_vars: usize = shape.iter().product(); // `check_size` found that it fits
        let num_rows = files.len() / (num_vars * item.bytes()) as u64;
        if num_rows == 0 {
            return Err(Error::data(format!("{}: no rows: the first dimension is 0", files.label())));
        }
        Ok(Self { files, item, shape, num_vars, num_rows, manifest })
    }

    /// The shape of one row: `[28, 28]` for an array of shape `(60000, 28, 28)`. Its product is the number of
    /// variables.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }
}

fn describe_rows(header: &Header) -> String {
    format!("{} of shape {:?}", header.item.name(), &header.shape[1..])
}

/// Refuses shapes that are not rows of variables, and files whose data is not as long as the shape says.
fn check_size(header: &Header, file_bytes: usize) -> Result<()> {
    let shape = &header.shape;
    if shape.len() < 2 {
        return Err(Error::data(format!(
            "shape {shape:?} is not rows of variables: save array.reshape(-1, 1) for rows of one variable, or \
             array[: len(array) // n * n].reshape(-1, n) for rows of n tokens"
        )));
    }
    if shape[1..].contains(&0) {
        return Err(Error::data(format!("shape {shape:?}: its rows have no values")));
    }
    // Of one row too: a first dimension of 0 would hide that it does not fit.
    let fit = |sizes: &[usize]| sizes.iter().try_fold(header.item.bytes(), |bytes, &size| bytes.checked_mul(size));
    let (Some(bytes), Some(_)) = (fit(shape), fit(&shape[1..])) else {
        return Err(Error::format(format!("shape {shape:?} is larger than any file")));
    };
    let has = file_bytes - header.data;
    if has < bytes {
        return Err(Error::format(format!(
            "shape {shape:?} of {} needs {bytes} bytes and the file has {has} after its header: it is cut off",
            header.item.name()
        )));
    }
    if has > bytes {
        let more = has - bytes;
        return Err(Error::format(format!(
            "{more} bytes follow the array of shape {shape:?}: save one array a file, with numpy.save"
        )));
    }
    Ok(())
}

impl IndexedSource for NpyFiles {
    fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    fn num_rows(&self) -> Option<u64> {
        Some(self.num_rows)
    }

    fn gather(&self, rows: &[u64]) -> Result<Piece> {
        let bytes = self.files.gather(rows, self.num_vars * self.item.bytes())?;
        let mut bad = Vec::new();
        let values = values(self.item, bytes, self.num_vars, &mut bad);
        Ok(Piece {
            file: self.files.label().clone(),
            positions: Positions::RowNumbers(rows.to_vec()),
            records: Records::Lists(Lists {
                values,
                ends: (1..=rows.len()).map(|row| row * self.num_vars).collect(),
                missing: None,
            }),
            bad,
        })
    }
}

/// The elements as narrow as a column can hold them. Rows with one that does not fit are added to `bad`.
fn values(item: ItemType, bytes: Vec<u8>, num_vars: usize, bad: &mut Vec<(usize, String)>) -> Values {
    let zero_or_one = |[byte]: [u8; 1]| if byte < 2 { Ok(byte) } else { Err(format!("{byte} is not a boolean")) };
    match item {
        ItemType::U8 => Values::U8(bytes),
        ItemType::Bool => Values::U8(fit(&bytes, num_vars, bad, zero_or_one)),
        ItemType::I8 => Values::U8(fit(&bytes, num_vars, bad, |item| category(i8::from_le_bytes(item)))),
        ItemType::U16 => Values::U16(fit(&bytes, num_vars, bad, |item| Ok(u16::from_le_bytes(item)))),
        ItemType::I16 => Values::U16(fit(&bytes, num_vars, bad, |item| category(i16::from_le_bytes(item)))),
        ItemType::U32 => Values::U32(fit(&bytes, num_vars, bad, |item| Ok(u32::from_le_bytes(item)))),
        ItemType::I32 => Values::U32(fit(&bytes, num_vars, bad, |item| category(i32::from_le_bytes(item)))),
        ItemType::U64 => Values::U32(fit(&bytes, num_vars, bad, |item| category(u64::from_le_bytes(item)))),
        ItemType::I64 => Values::U32(fit(&bytes, num_vars, bad, |item| category(i64::from_le_bytes(item)))),
        ItemType::F32 => Values::F32(fit(&bytes, num_vars, bad, |item| Ok(f32::from_le_bytes(item)))),
        ItemType::F64 => Values::F32(fit(&bytes, num_vars, bad, |item| real(f64::from_le_bytes(item)))),
    }
}

/// Reads element by element; the first reason why a row cannot be read is kept.
fn fit<const N: usize, T: Default>(
    bytes: &[u8],
    num_vars: usize,
    bad: &mut Vec<(usize, String)>,
    read: impl Fn([u8; N]) -> std::result::Result<T, String>,
) -> Vec<T> {
    let mut one = |(at, &item): (usize, &[u8; N])| {
        read(item).unwrap_or_else(|reason| {
            let (row, var) = (at / num_vars, at % num_vars);
            if bad.last().is_none_or(|(last, _)| *last != row) {
                bad.push((row, format!("variable {var}: {reason}")));
            }
            T::default()
        })
    };
    bytes.as_chunks().0.iter().enumerate().map(&mut one).collect()
}

fn category<Wide: Copy + Display + TryInto<T>, T>(value: Wide) -> std::result::Result<T, String> {
    value.try_into().map_err(|_| format!("{value} is not a category: those are 0 to {}", u32::MAX))
}

fn real(value: f64) -> std::result::Result<f32, String> {
    let narrow = value as f32;
    if value.is_finite() && narrow.is_infinite() { Err(format!("{value} does not fit float32")) } else { Ok(narrow) }
}

#[cfg(test)]
mod tests {
    use super::super::npy_header::tests::header_bytes;
    use super::*;
    use crate::error::ErrorKind;

    fn write(folder: &tempfile::TempDir, name: &str, descr: &str, shape: &str, data: &[u8]) -> PathBuf {
        let path = folder.path().join(name);
        let dictionary = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}");
        std::fs::write(&path, [header_bytes(1, &dictionary), data.to_vec()].concat()).unwrap();
        path
    }

    /// The rows of an array of two rows of two.
    fn two_by_two(descr: &str, data: &[u8]) -> Piece {
        let folder = tempfile::tempdir().unwrap();
        let source = NpyFiles::open(&[write(&folder, "a.npy", descr, "(2, 2)", data)]).unwrap();
        assert_eq!((source.num_rows(), source.shape()), (Some(2), [2].as_slice()));
        source.gather(&[0, 1]).unwrap()
    }

    fn column(piece: &Piece) -> &Values {
        let Records::Lists(lists) = &piece.records else { panic!("arrays are lists") };
        assert_eq!(lists.ends, [2, 4]);
        &lists.values
    }

    fn le_bytes<T: Copy, const N: usize>(values: &[T], bytes: fn(T) -> [u8; N]) -> Vec<u8> {
        values.iter().flat_map(|&value| bytes(value)).collect()
    }

    #[test]
    fn every_type_is_read_into_the_column_that_holds_it() {
        let small = [0i8, 1, 2, 127];
        let bytes = |width: usize| -> Vec<u8> {
            small.iter().flat_map(|&value| i64::from(value).to_le_bytes().into_iter().take(width)).collect()
        };
        for (descr, width, expected) in [
            ("|u1", 1, Values::U8(vec![0, 1, 2, 127])),
            ("|i1", 1, Values::U8(vec![0, 1, 2, 127])),
            ("<u2", 2, Values::U16(vec![0, 1, 2, 127])),
            ("<i2", 2, Values::U16(vec![0, 1, 2, 127])),
            ("<u4", 4, Values::U32(vec![0, 1, 2, 127])),
            ("<i4", 4, Values::U32(vec![0, 1, 2, 127])),
            ("<u8", 8, Values::U32(vec![0, 1, 2, 127])),
            ("<i8", 8, Values::U32(vec![0, 1, 2, 127])),
        ] {
            let piece = two_by_two(descr, &bytes(width));
            assert_eq!((column(&piece), piece.bad.len()), (&expected, 0), "{descr}");
        }
        assert_eq!(column(&two_by_two("|b1", &[0, 1, 1, 0])), &Values::U8(vec![0, 1, 1, 0]));
        let reals = [0.5, -1.25, 3e8, 0.0];
        let expected = Values::F32(vec![0.5, -1.25, 3e8, 0.0]);
        assert_eq!(column(&two_by_two("<f8", &le_bytes(&reals, f64::to_le_bytes))), &expected);
        assert_eq!(column(&two_by_two("<f4", &le_bytes(&reals.map(|x| x as f32), f32::to_le_bytes))), &expected);
    }

    #[test]
    fn a_number_that_is_no_category_makes_its_row_bad_and_no_other() {
        let wide = le_bytes(&[1, -7, -8, 4_294_967_296i64], i64::to_le_bytes);
        let bad = two_by_two("<i8", &wide).bad;
        assert_eq!(bad[0], (0, "variable 1: -7 is not a category: those are 0 to 4294967295".to_string()));
        assert_eq!(bad.len(), 2);
        assert!(bad[1].1.starts_with("variable 0: -8"), "{bad:?}");
        let bad_rows = |piece: Piece| piece.bad.into_iter().map(|(row, _)| row).collect::<Vec<_>>();
        assert_eq!(bad_rows(two_by_two("<i2", &le_bytes(&[1, 2, 3, -1], i16::to_le_bytes))), [1]);
        assert_eq!(bad_rows(two_by_two("|b1", &[0, 2, 1, 1])), [0]);
        assert_eq!(bad_rows(two_by_two("<f8", &le_bytes(&[1.0, 1e300, 0.0, 1.0], f64::to_le_bytes))), [0]);
        assert_eq!(bad_rows(two_by_two("<u8", &le_bytes(&[u64::MAX, 0, 0, 0], u64::to_le_bytes))), [0]);
    }

    #[test]
    fn arrays_are_read_one_after_the_other_in_any_order() {
        let folder = tempfile::tempdir().unwrap();
        let data: Vec<u8> = (0..60).collect();
        let paths = [
            write(&folder, "a.npy", "|u1", "(2, 2, 3)", &data[..12]),
            write(&folder, "b.npy", "|u1", "(0, 2, 3)", &[]),
            write(&folder, "c.npy", "|u1", "(8, 2, 3)", &data[12..]),
        ];
        let source = NpyFiles::open(&paths).unwrap();
        assert_eq!((source.num_rows(), source.shape()), (Some(10), [2, 3].as_slice()));
        let mut rows: Vec<u64> = (0..10).collect();
        crate::rng::Rng::new(5).shuffle(&mut rows);
        let piece = source.gather(&rows).unwrap();
        let Records::Lists(lists) = &piece.records else { panic!("arrays are lists") };
        let expected = rows.iter().flat_map(|&row| data[6 * row as usize..][..6].to_vec()).collect();
        assert_eq!(lists.values, Values::U8(expected));
        assert_eq!(piece.positions, Positions::RowNumbers(rows));
        assert!(source.gather(&[10]).unwrap_err().to_string().contains("row 10 is outside 0..10"));
    }

    #[test]
    fn sizes_that_do_not_agree_are_refused_before_anything_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let open = |descr: &str, shape: &str, bytes: usize| {
            NpyFiles::open(&[write(&folder, "a.npy", descr, shape, &vec![0; bytes])]).unwrap_err()
        };
        let largest = usize::MAX;
        for (error, kind, word) in [
            (open("<u2", "(3, 4)", 23), ErrorKind::Format, "needs 24 bytes and the file has 23"),
            (open("<u2", "(3, 4)", 25), ErrorKind::Format, "1 bytes follow the array"),
            (open("<u2", "(3,)", 6), ErrorKind::Data, "reshape(-1, 1)"),
            (open("<u2", "()", 2), ErrorKind::Data, "reshape(-1, 1)"),
            (open("<u2", "(0, 4)", 0), ErrorKind::Data, "the first dimension is 0"),
            (open("<u2", "(4, 0)", 0), ErrorKind::Data, "rows have no values"),
            (open("<u2", &format!("({largest}, 2)"), 8), ErrorKind::Format, "larger than any file"),
            (open("<u2", &format!("(0, {largest})"), 0), ErrorKind::Format, "larger than any file"),
            (open("<u8", &format!("(1, {largest}, 0, 3)"), 0), ErrorKind::Data, "rows have no values"),
        ] {
            assert!(error.kind() == kind && error.to_string().contains(word), "{error} should say {word}");
            assert!(error.to_string().contains("a.npy"), "{error}");
        }
    }

    #[test]
    fn arrays_of_other_types_or_shapes_are_not_read_together() {
        let folder = tempfile::tempdir().unwrap();
        let first = write(&folder, "a.npy", "|u1", "(2, 6)", &[0; 12]);
        for (descr, shape) in [("|u1", "(2, 2, 3)"), ("|i1", "(2, 6)"), ("|u1", "(4, 3)")] {
            let error = NpyFiles::open(&[first.clone(), write(&folder, "b.npy", descr, shape, &[0; 12])]).unwrap_err();
            assert!(error.to_string().contains("b.npy: rows are "), "{error}");
            assert!(error.to_string().contains("a.npy are uint8 of shape [6]"), "{error}");
        }
        assert!(NpyFiles::open(&[]).unwrap_err().to_string().contains("no file"));
        std::fs::write(&first, b"x,y\n1,2\n").unwrap();
        let error = NpyFiles::open(&[first]).unwrap_err();
        assert!(error.to_string().contains("a.npy: not an array that NumPy saved"), "{error}");
    }
}
