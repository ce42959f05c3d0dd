//! What the pages of a column chunk say of their size, before any of them is decompressed.
//!
//! The reader of the `parquet` crate makes room for what a page header promises, and a page is decompressed as a whole.
//! So all headers of a chunk are looked at first: a thrift struct in its compact form before every page, which is small
//! and tells how far to the next one. What cannot be read here is left to the reader, which says better what is wrong
//! with it. Used by `parquet`.

use super::limits::ReadLimits;

/// A dictionary of values, by its number in the format.
const DICTIONARY_PAGE: i64 = 2;

/// A page of data in the second version of the format.
const DATA_PAGE_V2: i64 = 3;

/// Values that share their beginnings: each may be as long as the whole page.
const DELTA_BYTE_ARRAY: i64 = 7;

/// Structs inside structs that are followed; a header has three.
const MAX_DEPTH: u32 = 16;

/// What is read of a page header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Header {
    kind: i64,
    /// Bytes after decompression.
    bytes: i64,
    compressed_bytes: i64,
    /// Of data, of a dictionary, of data in the second version: only that of the page's own kind counts.
    inner: [Inner; 3],
}

/// The header of one kind of page inside a page header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Inner {
    num_values: i64,
    encoding: i64,
}

impl Header {
    fn own(&self) -> Inner {
        match self.kind {
            DICTIONARY_PAGE => self.inner[1],
            DATA_PAGE_V2 => self.inner[2],
            _ => self.inner[0],
        }
    }
}

/// Refuses a chunk of `num_rows` rows with a page that is too large; `value_bytes` is what one value takes at least.
/// Returns how many rows may be read at once, so that values which share their beginnings do not become too large
/// together.
///
/// Values may be many in few bytes, as long lists of one value are. They are read some rows at a time, so only a page
/// whose rows are too large on average is refused for them.
pub(super) fn check_pages(chunk: &[u8], num_rows: u64, value_bytes: u64, limits: &ReadLimits) -> Result<u64, String> {
    let mut rest = chunk;
    let mut most_rows = u64::MAX;
    while !rest.is_empty() {
        let mut thrift = Thrift { bytes: rest };
        let Some(header) = thrift.header() else { break };
        let negative = |_| String::from("a page of negative size");
        let bytes = u64::try_from(header.bytes).map_err(negative)?;
        let Inner { num_values, encoding } = header.own();
        let num_values = u64::try_from(num_values).map_err(negative)?;
        limits.check_part("a page", bytes)?;
        let values_bytes = num_values.saturating_mul(value_bytes);
        if values_bytes > limits.part_bytes {
            let of_a_row = values_bytes / num_rows.max(1);
            limits.check_record(of_a_row)?;
            most_rows = most_rows.min((limits.part_bytes / of_a_row.max(1)).max(1));
        }
        if header.kind == DICTIONARY_PAGE && num_values > bytes {
            return Err(format!("a dictionary of {num_values} values in {bytes} bytes"));
        }
        if encoding == DELTA_BYTE_ARRAY {
            most_rows = most_rows.min((limits.part_bytes / bytes.max(1)).max(1));
        }
        let compressed = usize::try_from(header.compressed_bytes).map_err(negative)?;
        let Some(after) = thrift.bytes.get(compressed..) else { break };
        rest = after;
    }
    Ok(most_rows)
}

/// Thrift's compact protocol, as far as page headers need it.
struct Thrift<'a> {
    bytes: &'a [u8],
}

impl Thrift<'_> {
    fn header(&mut self) -> Option<Header> {
        let mut header = Header::default();
        let mut field = 0;
        while let Some(kind) = self.field(&mut field)? {
            match (field, kind) {
                // Integers of any width, as the reader takes them.
                (1, 4..=6) => header.kind = self.integer()?,
                (2, 4..=6) => header.bytes = self.integer()?,
                (3, 4..=6) => header.compressed_bytes = self.integer()?,
                // The number of values comes first in all kinds.
                (5, 12) => header.inner[0] = self.inner(2)?,
                (7, 12) => header.inner[1] = self.inner(2)?,
                (8, 12) => header.inner[2] = self.inner(4)?,
                (_, kind) => self.skip(kind, 0)?,
            }
        }
        Some(header)
    }

    /// The header of a kind of page; `encoding` is the number of that field.
    fn inner(&mut self, encoding: i64) -> Option<Inner> {
        let mut inner = Inner::default();
        let mut field = 0;
        while let Some(kind) = self.field(&mut field)? {
            match (field, kind) {
                (1, 4..=6) => inner.num_values = self.integer()?,
                (number, 4..=6) if number == encoding => inner.encoding = self.integer()?,
                (_, kind) => self.skip(kind, 0)?,
            }
        }
        Some(inner)
    }

    /// The kind of the next field, whose number is left in `field`; `Some(None)` at the end of the struct.
    fn field(&mut self, field: &mut i64) -> Option<Option<u8>> {
        let byte = self.byte()?;
        if byte == 0 {
            return Some(None);
        }
        *field = match byte >> 4 {
            0 => self.integer()?,
            step => field.checked_add(i64::from(step))?,
        };
        Some(Some(byte & 15))
    }

    fn byte(&mut self) -> Option<u8> {
        let (&byte, rest) = self.bytes.split_first()?;
        self.bytes = rest;
        Some(byte)
    }

    fn unsigned(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    /// Signs alternate: 0, -1, 1, -2, …
    fn integer(&mut self) -> Option<i64> {
        let value = self.unsigned()?;
        Some((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    fn advance(&mut self, bytes: u64) -> Option<()> {
        self.bytes = self.bytes.get(usize::try_from(bytes).ok()?..)?;
        Some(())
    }

    fn skip(&mut self, kind: u8, depth: u32) -> Option<()> {
        if depth > MAX_DEPTH {
            return None;
        }
        match kind {
            1 | 2 => Some(()), // true and false are their own kinds
            3 => self.advance(1),
            4..=6 => self.unsigned().map(drop),
            7 => self.advance(8),
            8 => {
                let length = self.unsigned()?;
                self.advance(length)
            }
            9 | 10 => {
                let byte = self.byte()?;
                let count = if byte >> 4 == 15 { self.unsigned()? } else { u64::from(byte >> 4) };
                // Every item takes a byte, and true or false one of their own inside a list.
                (0..count).try_for_each(|_| match byte & 15 {
                    1 | 2 => self.advance(1),
                    item => self.skip(item, depth + 1),
                })
            }
            12 => {
                let mut field = 0;
                while let Some(kind) = self.field(&mut field)? {
                    self.skip(kind, depth + 1)?;
                }
                Some(())
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIMITS: ReadLimits = ReadLimits { piece_bytes: 1, part_bytes: 1000, record_bytes: 500 };

    fn signed(value: i64) -> Vec<u8> {
        let mut value = ((value << 1) ^ (value >> 63)) as u64;
        let mut bytes = Vec::new();
        while value >= 0x80 {
            bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        bytes.push(value as u8);
        bytes
    }

    /// A data page of the first version with statistics, which are skipped.
    fn page(bytes: i64, num_values: i64, encoding: i64, body: &[u8]) -> Vec<u8> {
        let parts: [&[u8]; 13] = [
            &[0x15],
            &signed(0),
            &[0x15],
            &signed(bytes),
            &[0x15],
            &signed(body.len() as i64),
            &[0x2c, 0x15],
            &signed(num_values),
            &[0x15],
            &signed(encoding),
            // level encodings, then statistics of two byte strings and a list
            &[0x15, 0, 0x15, 0, 0x1c, 0x18, 2, b'a', b'b', 0x18, 1, b'a', 0x19, 0x21, 1, 0, 0],
            &[0, 0],
            body,
        ];
        parts.concat()
    }

    #[test]
    fn every_page_is_seen_and_one_that_is_too_large_refused() {
        let good = [page(900, 10, 0, b"abc"), page(1000, 100, 0, b"")].concat();
        assert_eq!(check_pages(&good, 10, 4, &LIMITS), Ok(u64::MAX));
        let large = [good.clone(), page(1001, 1, 0, b"x")].concat();
        assert!(check_pages(&large, 10, 4, &LIMITS).unwrap_err().starts_with("a page takes 1001 bytes"));
        let many = [good.clone(), page(1, 251, 0, b"x")].concat();
        assert_eq!(check_pages(&many, 10, 4, &LIMITS), Ok(10), "rows of a hundred bytes, ten at a time");
        assert!(check_pages(&many, 2, 4, &LIMITS).unwrap_err().starts_with("a record of 502 bytes"));
        let mut wide = page(1001, 1, 0, b"x");
        wide[2] = 0x16; // the same number as an integer of eight bytes
        assert!(check_pages(&wide, 10, 4, &LIMITS).is_err());
        assert!(check_pages(&page(-1, 1, 0, b"x"), 10, 4, &LIMITS).is_err());
        let shared = [good, page(300, 1, DELTA_BYTE_ARRAY, b"x")].concat();
        assert_eq!(check_pages(&shared, 10, 4, &LIMITS), Ok(3));
    }

    proptest! {
        #[test]
        fn any_bytes_are_looked_at_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = check_pages(&bytes, 10, 4, &LIMITS);
        }
    }
}
