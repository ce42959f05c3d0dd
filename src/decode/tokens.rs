//! Lists of token ids that were made elsewhere.
//!
//! A stream of lists of any length is concatenated, and the batcher cuts rows of `window` tokens out of it; lists that
//! are whole rows already (an indexed source cuts token files into them) stay rows. Or each list has rows of its own:
//! what it leaves of its last row is missing, so that nothing is learned from it. An id outside the vocabulary makes
//! its list a bad record. Fed by `source::tokens` and its like, or by a list column.

use super::categories::{CategoryRule, ListKind};
use super::{Decoded, Decoder, Output, RowShape, ValueKind};
use crate::data::Table;
use crate::error::{Error, Result};
use crate::source::Piece;

/// Checks token ids.
#[derive(Clone, Debug)]
pub struct TokenDecoder {
    shape: RowShape,
    rule: CategoryRule,
    /// Each list has rows of its own.
    apart: bool,
}

impl TokenDecoder {
    /// For lists of any length, concatenated and cut into rows of `window` tokens.
    pub fn new(vocab: u32, window: usize) -> Result<Self> {
        Self::with_length(vocab, window, None)
    }

    /// For lists that are rows of exactly `window` tokens.
    pub fn rows(vocab: u32, window: usize) -> Result<Self> {
        Self::with_length(vocab, window, Some(window))
    }

    /// For lists of any length that are a text each: a list begins a row, one longer than `window` goes on in the next,
    /// and what it leaves of the last is missing.
    pub fn texts(vocab: u32, window: usize) -> Result<Self> {
        Ok(Self { apart: true, ..Self::new(vocab, window)? })
    }

    fn with_length(vocab: u32, window: usize, length: Option<usize>) -> Result<Self> {
        if vocab == 0 {
            return Err(Error::option("vocab = 0: must be at least 1, and above every token id"));
        }
        Ok(Self {
            shape: token_shape(vocab, window)?,
            rule: CategoryRule { cats: vocab, length, kind: ListKind::Tokens },
            apart: false,
        })
    }
}

impl Decoder for TokenDecoder {
    fn shape(&self) -> &RowShape {
        &self.shape
    }

    fn identity(&self) -> String {
        let kind = match self.rule.length {
            Some(_) => "token rows",
            None if self.apart => "token texts",
            None => "tokens",
        };
        format!("{kind} vocab={} window={}", self.rule.cats, self.shape.num_vars)
    }

    fn decode(&self, piece: &Piece) -> Result<Decoded> {
        let checked = self.rule.check(piece)?;
        if let Some(window) = self.rule.length {
            return checked.into_rows(window, piece);
        }
        let records = piece.num_records() as u64;
        let output = match self.apart {
            true => Output::Rows(Table::of_stretches(self.shape.num_vars, &checked.values, &checked.ends)?),
            false => Output::Tokens(checked.values),
        };
        Ok(Decoded { output, records, bad: checked.bad })
    }

    fn expansion(&self) -> u64 {
        if self.apart { PADDING } else { 1 }
    }
}

/// Bytes of rows for a byte of tokens where each text has rows of its own: marks of missing cells, and rows that are
/// half empty.
pub(super) const PADDING: u64 = 4;

/// Rows of `window` tokens.
pub(super) fn token_shape(vocab: u32, window: usize) -> Result<RowShape> {
    if window == 0 {
        return Err(Error::option("window = 0: a row needs at least one token"));
    }
    Ok(RowShape::of(window, ValueKind::Categories(vocab)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::records::testing::{blobs, lists, with_missing};
    use super::*;
    use crate::data::Values;
    use crate::error::ErrorKind;

    fn reasons(decoded: &Decoded) -> Vec<String> {
        decoded.bad.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn lists_are_concatenated_without_those_that_have_an_id_outside() {
        let decoder = TokenDecoder::new(50_257, 4).unwrap();
        let decoded = decoder.decode(&lists(Values::U32(vec![1, 2, 70_000, 3, 50_256]), &[2, 1, 0, 2])).unwrap();
        assert_eq!(decoded.output, Output::Tokens(Values::U16(vec![1, 2, 3, 50_256])));
        assert_eq!(decoded.records, 4);
        assert_eq!(reasons(&decoded), ["shard: row 101: token 70000 is outside 0..50257"]);
    }

    #[test]
    fn whole_rows_stay_rows_and_a_bad_id_costs_its_row() {
        let decoder = TokenDecoder::rows(300, 2).unwrap();
        let decoded = decoder.decode(&lists(Values::U16(vec![1, 2, 3, 300, 299, 6]), &[2, 2, 2])).unwrap();
        assert_eq!(decoded.output, Output::Rows(Table::new(2, Values::U16(vec![1, 2, 299, 6])).unwrap()));
        assert_eq!(reasons(&decoded), ["shard: row 101: token 300 is outside 0..300"]);
        let short = decoder.decode(&lists(Values::U16(vec![1, 2, 3]), &[2, 1])).unwrap();
        assert_eq!(reasons(&short), ["shard: row 101: a list of 1 tokens where rows have 2"]);
        let shifted = decoder.decode(&lists(Values::U16(vec![1, 2, 3, 4]), &[1, 3])).unwrap();
        assert_eq!(shifted.bad.len(), 2, "as many values as two rows have, but not in rows");
    }

    #[test]
    fn lists_that_are_texts_have_rows_of_their_own() {
        let decoder = TokenDecoder::texts(300, 3).unwrap();
        let values = Values::U16(vec![1, 2, 300, 7, 3, 4, 5, 6, 7, 8]);
        let decoded = decoder.decode(&lists(values, &[2, 2, 0, 4, 2])).unwrap();
        let expected = Table::new(3, Values::U16(vec![1, 2, 0, 3, 4, 5, 6, 0, 0, 7, 8, 0])).unwrap();
        let missing = [false, false, true, false, false, false, false, true, true, false, false, true];
        assert_eq!(decoded.output, Output::Rows(expected.with_missing(missing.to_vec()).unwrap()));
        assert_eq!(reasons(&decoded), ["shard: row 101: token 300 is outside 0..300"]);
        assert_eq!((decoded.records, decoder.identity()), (5, "token texts vocab=300 window=3".to_string()));
        // Where all are good, and where one has just a row.
        let decoded = decoder.decode(&lists(Values::U8(vec![1, 2, 3, 4]), &[3, 1])).unwrap();
        let expected = Table::new(3, Values::U16(vec![1, 2, 3, 4, 0, 0])).unwrap();
        let expected = expected.with_missing(vec![false, false, false, false, true, true]).unwrap();
        assert_eq!(decoded.output, Output::Rows(expected));
    }

    #[test]
    fn a_missing_token_is_a_bad_record() {
        let piece = with_missing(lists(Values::U8(vec![1, 2, 3]), &[2, 1]), &[false, true, false]);
        let decoded = TokenDecoder::new(10, 2).unwrap().decode(&piece).unwrap();
        assert_eq!(decoded.output, Output::Tokens(Values::U8(vec![3])));
        assert_eq!(reasons(&decoded), ["shard: row 100: token 1 of the list is missing"]);
    }

    #[test]
    fn what_the_source_could_not_read_is_left_out() {
        let mut piece = lists(Values::U8(vec![1, 2, 3]), &[1, 1, 1]);
        piece.bad = vec![(1, "-5 is negative".into())];
        let decoded = TokenDecoder::new(256, 2).unwrap().decode(&piece).unwrap();
        assert_eq!(decoded.output, Output::Tokens(Values::U8(vec![1, 3])));
        assert_eq!(reasons(&decoded), ["shard: row 101: -5 is negative"]);
    }

    #[test]
    fn impossible_options_and_texts_are_refused() {
        assert_eq!(TokenDecoder::new(0, 4).unwrap_err().kind(), ErrorKind::Option);
        assert_eq!(TokenDecoder::rows(4, 0).unwrap_err().kind(), ErrorKind::Option);
        let error = TokenDecoder::new(4, 4).unwrap().decode(&blobs(&[b"text"])).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
    }

    #[test]
    fn the_decoder_is_named_with_all_that_decides_its_rows() {
        let names =
            [TokenDecoder::new(5, 4), TokenDecoder::new(5, 3), TokenDecoder::new(6, 4), TokenDecoder::rows(5, 4)];
        let mut names: Vec<String> = names.into_iter().map(|decoder| decoder.unwrap().identity()).collect();
        names.dedup();
        assert_eq!(
            names,
            [
                "tokens vocab=5 window=4",
                "tokens vocab=5 window=3",
                "tokens vocab=6 window=4",
                "token rows vocab=5 window=4"
            ]
        );
    }

    proptest! {
        /// Whichever path is taken, the tokens are those of the good lists, and the type depends on the vocabulary
        /// only.
        #[test]
        fn good_lists_come_through_in_order_and_bad_ones_are_counted(
            lengths in prop::collection::vec(0usize..5, 0..20),
            seed in prop::collection::vec(0u32..12, 100),
            vocab in prop::sample::select(vec![9u32, 11, 12, 256, 257, 65_536, 65_537]),
            wide in any::<bool>(),
        ) {
            let values = &seed[..lengths.iter().sum()];
            let column = match wide {
                true => Values::U32(values.to_vec()),
                false => Values::U8(values.iter().map(|&v| v as u8).collect()),
            };
            let decoded = TokenDecoder::new(vocab, 4).unwrap().decode(&lists(column, &lengths)).unwrap();
            let (mut expected, mut bad, mut start) = (Vec::new(), 0, 0);
            for length in &lengths {
                let list = &values[start..start + length];
                start += length;
                if list.iter().all(|&v| v < vocab) { expected.extend_from_slice(list) } else { bad += 1 }
            }
            let Output::Tokens(column) = &decoded.output else { panic!("tokens") };
            let tokens: Vec<u32> = (0..column.len()).map(|i| column.category(i).unwrap()).collect();
            prop_assert_eq!(tokens, expected);
            prop_assert_eq!(decoded.bad.len(), bad);
            prop_assert_eq!(decoded.records, lengths.len() as u64);
            let expected_bytes = match vocab { 0..=256 => 1, 257..=65_536 => 2, _ => 4 };
            prop_assert_eq!(column.num_bytes(), expected_bytes * column.len());
            let is_expected =
                matches!((expected_bytes, column), (1, Values::U8(_)) | (2, Values::U16(_)) | (4, Values::U32(_)));
            prop_assert!(!column.is_empty() || is_expected);
        }
    }
}
