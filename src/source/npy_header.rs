//! The header of a `.npy` file.
//!
//! Six magic bytes, a version, a length, and a Python dictionary of three keys:
//!
//! ```text
//! \x93NUMPY 1 0 <u16 length> {'descr': '<u2', 'fortran_order': False, 'shape': (60000, 28, 28), }\n
//! ```
//!
//! Versions 2 and 3 have a `u32` length; version 3 allows other letters in field names, which we do not take anyway.
//! [`parse_header`] works on any bytes and says what it does not like about them; it allocates nothing by a length that
//! it has read. Used by `npy`.

use crate::error::{Error, Result};

const MAGIC: &[u8] = b"\x93NUMPY";

/// More dimensions than this NumPy itself does not make.
const MOST_DIMENSIONS: usize = 64;

/// What a header says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Header {
    /// What the elements are.
    pub item: ItemType,
    /// Sizes of the dimensions, slowest first.
    pub shape: Vec<usize>,
    /// Where the data begins.
    pub data: usize,
}

/// An element type that we read; all little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ItemType {
    Bool,
    U8,
    U16,
    U32,
    U64,
    I8,
    I16,
    I32,
    I64,
    F32,
    F64,
}

/// What NumPy calls them, without the byte order.
const ITEM_TYPES: [(&str, &str, ItemType); 11] = [
    ("b1", "bool", ItemType::Bool),
    ("u1", "uint8", ItemType::U8),
    ("u2", "uint16", ItemType::U16),
    ("u4", "uint32", ItemType::U32),
    ("u8", "uint64", ItemType::U64),
    ("i1", "int8", ItemType::I8),
    ("i2", "int16", ItemType::I16),
    ("i4", "int32", ItemType::I32),
    ("i8", "int64", ItemType::I64),
    ("f4", "float32", ItemType::F32),
    ("f8", "float64", ItemType::F64),
];

impl ItemType {
    /// Bytes of one element.
    pub fn bytes(self) -> usize {
        match self {
            Self::Bool | Self::U8 | Self::I8 => 1,
            Self::U16 | Self::I16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 => 8,
        }
    }

    /// NumPy's name for it.
    pub fn name(self) -> &'static str {
        ITEM_TYPES.iter().find(|(_, _, item)| *item == self).map_or("", |(_, name, _)| name)
    }

    /// The type of a `descr` such as `<u2`.
    fn from_descr(descr: &str) -> Result<Self> {
        let (order, code) = descr.split_at_checked(1).unwrap_or(("", descr));
        let known = ITEM_TYPES.iter().find(|(known, _, _)| *known == code);
        let Some((_, name, item)) = known.filter(|_| ["<", ">", "|", "="].contains(&order)) else {
            return Err(Error::unsupported(format!(
                "elements are {descr:?}, which is not read: save it as uint8, uint16, uint32 or float32, \
                 with array.astype(\"uint16\")"
            )));
        };
        if order == ">" && item.bytes() > 1 {
            return Err(Error::unsupported(format!(
                "elements are big-endian {name}: save it as little-endian, with array.astype(\"<{code}\")"
            )));
        }
        Ok(*item)
    }
}

/// Reads the header at the beginning of a file.
pub(super) fn parse_header(bytes: &[u8]) -> Result<Header> {
    let Some(rest) = bytes.strip_prefix(MAGIC) else {
        let remedy = match bytes {
            [b'P', b'K', 3 | 5, ..] => "it is a zip archive, perhaps .npz: save each array by itself, with numpy.save",
            [] => "the file is empty",
            _ => "it does not begin with \\x93NUMPY",
        };
        return Err(Error::format(format!("not an array that NumPy saved: {remedy}")));
    };
    let (length, text) = match *rest {
        [1, _, a, b, ref text @ ..] => (usize::from(u16::from_le_bytes([a, b])), text),
        [2 | 3, _, a, b, c, d, ref text @ ..] => (u32::from_le_bytes([a, b, c, d]) as usize, text),
        [1..=3, ..] | [] => return Err(Error::format("the file ends inside its header: it is cut off")),
        [version, ..] => {
            return Err(Error::unsupported(format!("version {version} of the .npy format: versions 1 to 3 are read")));
        }
    };
    let Some(dictionary) = text.get(..length) else {
        let has = text.len();
        return Err(Error::format(format!("the file ends inside its header: it is cut off ({has} of {length} bytes)")));
    };
    let (item, shape) = parse_dictionary(dictionary)?;
    Ok(Header { item, shape, data: bytes.len() - text.len() + length })
}

/// The three values of the dictionary.
fn parse_dictionary(text: &[u8]) -> Result<(ItemType, Vec<usize>)> {
    let mut scan = Scan { text, at: 0 };
    let (mut item, mut fortran_order, mut shape) = (None, None, None);
    scan.expect(b'{')?;
    while !scan.take(b'}') {
        let key = scan.string()?;
        scan.expect(b':')?;
        let twice = match key {
            "descr" => item.replace(scan.item_type()?).is_some(),
            "fortran_order" => fortran_order.replace(scan.boolean()?).is_some(),
            "shape" => shape.replace(scan.shape()?).is_some(),
            _ => return Err(scan.error("a key that is not descr, fortran_order or shape")),
        };
        if twice {
            return Err(scan.error("a key that was there before"));
        }
        if !scan.take(b',') {
            scan.expect(b'}')?;
            break;
        }
    }
    if !scan.rest_is_blank() {
        return Err(scan.error("something after the dictionary"));
    }
    let (Some(item), Some(fortran_order), Some(shape)) = (item, fortran_order, shape) else {
        return Err(Error::format("header: descr, fortran_order and shape must all be there"));
    };
    // A column vector is the same in both orders, but NumPy marks such arrays as C order itself.
    if fortran_order {
        return Err(Error::unsupported(
            "the array is in Fortran order, where a row is scattered: save it with numpy.ascontiguousarray(array)",
        ));
    }
    Ok((item, shape))
}

/// A place in the dictionary's text. Blanks are skipped before whatever is asked for.
struct Scan<'a> {
    text: &'a [u8],
    at: usize,
}

impl<'a> Scan<'a> {
    fn peek(&mut self) -> Option<u8> {
        let blanks = self.text[self.at..].iter().take_while(|byte| byte.is_ascii_whitespace()).count();
        self.at += blanks;
        self.text.get(self.at).copied()
    }

    /// Steps over a byte if it is there.
    fn take(&mut self, byte: u8) -> bool {
        let there = self.peek() == Some(byte);
        self.at += usize::from(there);
        there
    }

    fn expect(&mut self, byte: u8) -> Result<()> {
        if self.take(byte) { Ok(()) } else { Err(self.error(&format!("something else than {:?}", char::from(byte)))) }
    }

    /// A quoted string; NumPy writes none with escapes.
    fn string(&mut self) -> Result<&'a str> {
        let quote = self.peek().filter(|byte| [b'\'', b'"'].contains(byte));
        let quote = quote.ok_or_else(|| self.error("something else than a quoted word"))?;
        let inside = &self.text[self.at + 1..];
        let end = inside.iter().position(|&byte| byte == quote).ok_or_else(|| self.error("a quote without an end"))?;
        let word = std::str::from_utf8(&inside[..end]).map_err(|_| self.error("a word that is not text"))?;
        self.at += end + 2;
        Ok(word)
    }

    fn item_type(&mut self) -> Result<ItemType> {
        if self.peek() == Some(b'[') {
            return Err(Error::unsupported(
                "elements have named fields: save the fields as plain columns, with \
                 numpy.lib.recfunctions.structured_to_unstructured(array)",
            ));
        }
        ItemType::from_descr(self.string()?)
    }

    fn boolean(&mut self) -> Result<bool> {
        for (word, value) in [("True", true), ("False", false)] {
            self.peek();
            if self.text[self.at..].starts_with(word.as_bytes()) {
                self.at += word.len();
                return Ok(value);
            }
        }
        Err(self.error("something else than True or False"))
    }

    /// `(3, 4)`, `(3,)` or `()`. Python 2 wrote `3L`.
    fn shape(&mut self) -> Result<Vec<usize>> {
        let mut shape = Vec::new();
        self.expect(b'(')?;
        while !self.take(b')') {
            if shape.len() == MOST_DIMENSIONS {
                return Err(self.error("more dimensions than NumPy makes"));
            }
            shape.push(self.number()?);
            self.take(b'L');
            if !self.take(b',') {
                self.expect(b')')?;
                break;
            }
        }
        Ok(shape)
    }

    fn number(&mut self) -> Result<usize> {
        self.peek();
        let digits = self.text[self.at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        let text = std::str::from_utf8(&self.text[self.at..self.at + digits]).unwrap_or_default();
        let number = text.parse().map_err(|_| self.error("a size that is not a number, or too large"))?;
        self.at += digits;
        Ok(number)
    }

    fn rest_is_blank(&mut self) -> bool {
        self.peek().is_none()
    }

    fn error(&self, what: &str) -> Error {
        let near = &self.text[self.at.min(self.text.len())..];
        let near = String::from_utf8_lossy(&near[..near.len().min(24)]).into_owned();
        Error::format(format!("header: {what} at character {}: {near:?}", self.at))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::error::ErrorKind;

    /// The bytes that come before the data, as NumPy lays them out: padded so that the data begins at a multiple of 64.
    pub fn header_bytes(version: u8, dictionary: &str) -> Vec<u8> {
        let mut bytes = [MAGIC, &[version, 0]].concat();
        let length_bytes = if version == 1 { 2 } else { 4 };
        let used = bytes.len() + length_bytes + dictionary.len() + 1;
        let length = dictionary.len() + 1 + (64 - used % 64) % 64;
        bytes.extend_from_slice(&(length as u32).to_le_bytes()[..length_bytes]);
        bytes.extend_from_slice(dictionary.as_bytes());
        bytes.resize(bytes.len() + length - dictionary.len() - 1, b' ');
        bytes.push(b'\n');
        bytes
    }

    fn parse(dictionary: &str) -> Result<Header> {
        parse_header(&header_bytes(1, dictionary))
    }

    #[test]
    fn it_reads_what_numpy_writes() {
        // What numpy.save makes of numpy.zeros((2, 3), dtype="uint16"), up to the data: 118 is `v`.
        let dictionary = b"{'descr': '<u2', 'fortran_order': False, 'shape': (2, 3), }";
        let written = [b"\x93NUMPY\x01\x00v\x00", dictionary.as_slice(), &[b' '; 58], b"\n"].concat();
        assert_eq!(written, header_bytes(1, str::from_utf8(dictionary).unwrap()));
        let header = parse_header(&written).unwrap();
        assert_eq!(header, Header { item: ItemType::U16, shape: vec![2, 3], data: 128 });
        for version in [1, 2, 3] {
            let bytes = header_bytes(version, "{'descr': '|u1', 'fortran_order': False, 'shape': (60000, 28, 28), }");
            let header = parse_header(&bytes).unwrap();
            assert_eq!(header, Header { item: ItemType::U8, shape: vec![60_000, 28, 28], data: bytes.len() });
            assert_eq!(header.data % 64, 0);
        }
    }

    #[test]
    fn it_takes_every_python_spelling() {
        for (dictionary, shape) in [
            ("{\"shape\":(7,),\"fortran_order\":False,\"descr\":\"<f4\"}", vec![7]),
            ("{'descr':'<f4','fortran_order':False,'shape':(3L, 4L)}", vec![3, 4]),
            ("  { 'descr' : '<f4' , 'fortran_order' : False , 'shape' : ( ) , }  ", vec![]),
        ] {
            let header = parse(dictionary).unwrap();
            assert_eq!((header.item, header.shape), (ItemType::F32, shape), "{dictionary}");
        }
        for (code, name, item) in ITEM_TYPES {
            let header = parse(&format!("{{'descr': '<{code}', 'fortran_order': False, 'shape': (1,)}}")).unwrap();
            assert_eq!((header.item, header.item.name()), (item, name));
        }
    }

    #[test]
    fn what_is_refused_says_what_to_do() {
        let whole = |descr: &str, order: &str, shape: &str| {
            parse(&format!("{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}"))
        };
        for (header, word) in [
            (whole("'>u2'", "False", "(2,)"), "array.astype(\"<u2\")"),
            (whole("'<u2'", "True", "(2, 3)"), "ascontiguousarray"),
            (whole("'<f2'", "False", "(2,)"), "float32"),
            (whole("'<U8'", "False", "(2,)"), "uint16"),
            (whole("'é'", "False", "(2,)"), "uint16"),
            (whole("''", "False", "(2,)"), "uint16"),
            (whole("'|O'", "False", "(2,)"), "uint16"),
            (whole("[('a', '<i4')]", "False", "(2,)"), "structured_to_unstructured"),
            (whole("'<u2'", "0", "(2,)"), "True or False"),
            (whole("'<u2'", "False", "(-1,)"), "a size that is not a number"),
            (whole("'<u2'", "False", "(99999999999999999999999,)"), "too large"),
            (whole("'<u2'", "False", &format!("({})", "1,".repeat(65))), "more dimensions"),
            (whole("'<u2'", "False", "2"), "something else than '('"),
            (parse("{'descr': '<u2', 'shape': (2,), }"), "must all be there"),
            (parse("{'descr': '<u2', 'descr': '<u2'}"), "was there before"),
            (parse("{'descr': '<u2', 'fortran_order': False, 'shape': (2,)} x"), "after the dictionary"),
            (parse("{'descr': '<u2"), "quote without an end"),
            (parse("{'color': 1}"), "a key that is not"),
            (parse_header(b"PK\x03\x04rest"), "numpy.save"),
            (parse_header(b""), "empty"),
            (parse_header(b"\x93NUMPY\x04\x00\x00\x00"), "version 4"),
            (parse_header(b"\x93NUMPY\x01\x00\xff\xff{'descr'"), "cut off (8 of 65535 bytes)"),
            (parse_header(b"\x93NUMPY\x02\x00\xff"), "cut off"),
        ] {
            let error = header.unwrap_err();
            assert!([ErrorKind::Format, ErrorKind::Unsupported].contains(&error.kind()), "{error}");
            assert!(error.to_string().contains(word), "{error} should say {word}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]

        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), version in 0u8..5) {
            let _ = parse_header(&bytes);
            let _ = parse_header(&[MAGIC, &[version, 0], &bytes].concat());
        }

        #[test]
        fn no_damage_to_a_good_header_makes_it_panic(
            changes in prop::collection::vec((0usize..128, any::<u8>()), 0..4),
            length in 0usize..=128,
        ) {
            let mut bytes = header_bytes(1, "{'descr': '<u2', 'fortran_order': False, 'shape': (2, 3), }");
            changes.iter().for_each(|&(at, byte)| bytes[at] = byte);
            if let Ok(header) = parse_header(&bytes[..length]) {
                prop_assert!(header.data <= length);
            }
        }

        #[test]
        fn no_soup_of_its_own_words_makes_it_panic(words in prop::collection::vec(prop::sample::select(vec![
            "{", "}", "(", ")", ",", ":", "'", "\"", "'descr'", "'shape'", "'fortran_order'", "'<u2'", "False", "True",
            "[", "7", "7L", " ", "18446744073709551616", "é",
        ]), 0..16)) {
            let _ = parse(&words.concat());
        }
    }
}
