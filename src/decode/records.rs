//! What every decoder does with a piece: takes the records it understands, one by one.
//!
//! A record that the source could not read, or that the decoder cannot decode, becomes a [`BadRecord`] with its place;
//! the others are decoded in order. Used by the decoders beside it.

use std::collections::BTreeMap;

use super::BadRecord;
use crate::data::Cells;
use crate::error::{Error, Result};
use crate::source::{Blobs, Lists, Piece, Records};

/// Decodes each record that was read, in order; an `Err` is the reason why a record is bad.
pub(super) fn decode_each(
    piece: &Piece,
    mut decode: impl FnMut(usize) -> std::result::Result<(), String>,
) -> Vec<BadRecord> {
    let unread: BTreeMap<usize, &str> = piece.bad.iter().map(|(record, reason)| (*record, reason.as_str())).collect();
    let mut bad = Vec::new();
    for record in 0..piece.num_records() {
        let outcome = unread.get(&record).map_or_else(|| decode(record), |&reason| Err(reason.to_owned()));
        if let Err(reason) = outcome {
            bad.push(BadRecord::new(piece, record, reason));
        }
    }
    bad
}

/// The byte strings of a piece; `wanted` says what the decoder takes them for.
pub(super) fn blobs<'a>(piece: &'a Piece, wanted: &str) -> Result<&'a Blobs> {
    match &piece.records {
        Records::Blobs(blobs) => Ok(blobs),
        Records::Lists(_) | Records::Cells(_) => Err(Error::unsupported(format!(
            "{}: numbers where {wanted} are expected: name another column, or decode tokens or rows",
            piece.file
        ))),
    }
}

/// The lists of numbers of a piece; `wanted` says what the decoder takes them for.
pub(super) fn lists<'a>(piece: &'a Piece, wanted: &str) -> Result<&'a Lists> {
    match &piece.records {
        Records::Lists(lists) => Ok(lists),
        Records::Blobs(_) | Records::Cells(_) => Err(Error::unsupported(format!(
            "{}: texts or files where {wanted} are expected: name another column, or decode text or images",
            piece.file
        ))),
    }
}

/// The cells of a piece.
pub(super) fn cells(piece: &Piece) -> Result<&Cells> {
    match &piece.records {
        Records::Cells(cells) => Ok(cells),
        Records::Blobs(_) | Records::Lists(_) => Err(Error::unsupported(format!(
            "{}: not a table with a value per column where one is expected: decode texts, images, tokens or rows",
            piece.file
        ))),
    }
}

#[cfg(test)]
pub(super) mod testing {
    //! Pieces for the unit tests of the decoders.

    use crate::data::Values;
    use crate::source::{Blobs, Lists, Piece, Positions, Records};

    /// Byte strings from row 100 of a file.
    pub(in crate::decode) fn blobs(records: &[&[u8]]) -> Piece {
        let mut blobs = Blobs::default();
        records.iter().for_each(|record| blobs.push(record));
        piece(Records::Blobs(blobs))
    }

    /// Lists of these lengths from row 100 of a file.
    pub(in crate::decode) fn lists(values: Values, lengths: &[usize]) -> Piece {
        let mut end = 0;
        let ends = lengths.iter().map(|length| {
            end += length;
            end
        });
        piece(Records::Lists(Lists { values, ends: ends.collect(), missing: None }))
    }

    /// The same lists, some values missing.
    pub(in crate::decode) fn with_missing(mut piece: Piece, missing: &[bool]) -> Piece {
        if let Records::Lists(lists) = &mut piece.records {
            lists.missing = Some(missing.to_vec());
        }
        piece
    }

    fn piece(records: Records) -> Piece {
        Piece { file: "shard".into(), positions: Positions::Rows { first: 100 }, records, bad: Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unread_and_undecodable_records_are_reported_in_order_and_the_rest_decoded() {
        let mut piece = testing::blobs(&[b"a", b"b", b"c", b"d"]);
        piece.bad = vec![(3, "null".into()), (1, "null".into())];
        let mut seen = Vec::new();
        let bad = decode_each(&piece, |record| {
            seen.push(record);
            if record == 2 { Err("odd".into()) } else { Ok(()) }
        });
        assert_eq!(seen, [0, 2]);
        let lines: Vec<String> = bad.iter().map(BadRecord::to_string).collect();
        assert_eq!(lines, ["shard: row 101: null", "shard: row 102: odd", "shard: row 103: null"]);
    }
}
