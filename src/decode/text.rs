//! Texts become tokens.
//!
//! Every record is a document, encoded by itself; the tokens of all documents follow each other, and the batcher cuts
//! rows of `window` tokens out of them. Or each document has rows of its own, and what it leaves of the last is
//! missing. Nothing is put between two documents unless a separator is asked for. A record that is not UTF-8 is bad.
//! The tokenizers are `gpt2` and `tokenizer_json`.

use std::path::Path;
use std::sync::Arc;

use super::gpt2::Gpt2;
use super::records::{self, decode_each};
use super::tokens::{PADDING, token_shape};
use super::{BadRecord, Decoded, Decoder, Output, RowShape};
use crate::data::{Table, Values};
use crate::error::{Error, Result};
use crate::source::{Blobs, Piece};

/// Turns text into token ids and back.
pub(super) trait Tokenizer: Send + Sync {
    /// Its name and a digest of its vocabulary.
    fn identity(&self) -> String;

    /// One more than the largest id.
    fn vocab(&self) -> u32;

    /// The token that ends a document, if the vocabulary has one.
    fn end_of_text(&self) -> Option<u32>;

    /// The tokens of a text.
    fn encode(&self, text: &str) -> Result<Vec<u32>>;

    /// The text of some tokens, all of them below `vocab`. Bytes that are not UTF-8 become `U+FFFD`: a token may be a
    /// part of a letter.
    fn decode(&self, tokens: &[u32]) -> Result<String>;

    /// The bytes of every token, and none for special ones.
    fn spelling(&self) -> Result<Vec<Vec<u8>>> {
        Err(Error::unsupported("constraints on text need the bytes of tokens, which only the tokenizer gpt2 tells"))
    }
}

/// Turns texts into a stream of tokens.
///
/// ```
/// use anemone::decode::text::TextDecoder;
///
/// let gpt2 = TextDecoder::gpt2(128)?;
/// let tokens = gpt2.encode("Hello, world!")?;
/// assert_eq!(tokens, [15496, 11, 995, 0]);
/// assert_eq!(gpt2.decode_tokens(&tokens)?, "Hello, world!");
/// # Ok::<(), anemone::Error>(())
/// ```
#[derive(Clone)]
pub struct TextDecoder {
    tokenizer: Arc<dyn Tokenizer>,
    shape: RowShape,
    /// Put after every document.
    separator: Option<u32>,
    /// Each document has rows of its own.
    apart: bool,
}

impl TextDecoder {
    /// GPT-2's tokenizer. Special tokens are not recognised: `<|endoftext|>` in a document is text like any other.
    pub fn gpt2(window: usize) -> Result<Self> {
        Self::new(Arc::new(Gpt2::shared()), window)
    }

    /// The tokenizer of a `tokenizer.json`. It adds nothing to a document, but recognises its special tokens in the
    /// text: GPT-2's file makes one token of `<|endoftext|>`, unlike [`TextDecoder::gpt2`].
    #[cfg(feature = "tokenizer-json")]
    pub fn from_file(path: &Path, window: usize) -> Result<Self> {
        Self::new(Arc::new(super::tokenizer_json::TokenizerJson::open(path)?), window)
    }

    /// Refused: this build was made without the feature `tokenizer-json`.
    #[cfg(not(feature = "tokenizer-json"))]
    pub fn from_file(path: &Path, _window: usize) -> Result<Self> {
        Err(Error::unsupported(format!(
            "{}: this build reads no tokenizer.json: build it with the feature `tokenizer-json`, or use `gpt2`",
            path.display()
        )))
    }

    fn new(tokenizer: Arc<dyn Tokenizer>, window: usize) -> Result<Self> {
        Ok(Self { shape: token_shape(tokenizer.vocab(), window)?, tokenizer, separator: None, apart: false })
    }

    /// Puts a token after every document, or nothing.
    pub fn with_separator(mut self, separator: Option<u32>) -> Result<Self> {
        if let Some(token) = separator {
            self.check_token(token)?;
        }
        self.separator = separator;
        Ok(self)
    }

    /// Gives every document rows of its own, with the separator as its last token: one longer than the window goes on
    /// in the next row, and what a document leaves of its last row is missing.
    pub fn apart(mut self) -> Self {
        self.apart = true;
        self
    }

    /// The token that the vocabulary has for the end of a document (`<|endoftext|>`): a natural separator.
    pub fn end_of_text(&self) -> Option<u32> {
        self.tokenizer.end_of_text()
    }

    /// One more than the largest token id.
    pub fn vocab(&self) -> u32 {
        self.tokenizer.vocab()
    }

    /// The tokens of a text, without separator.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let tokens = self.tokenizer.encode(text)?;
        tokens.iter().try_for_each(|&token| self.check_token(token))?;
        Ok(tokens)
    }

    /// The text of some tokens. Bytes that are not UTF-8 become `U+FFFD`: a window may begin inside a letter.
    pub fn decode_tokens(&self, tokens: &[u32]) -> Result<String> {
        tokens.iter().try_for_each(|&token| self.check_token(token))?;
        self.tokenizer.decode(tokens)
    }

    /// The bytes of every token; special ones, such as the end of a text, have none.
    pub fn spelling(&self) -> Result<Vec<Vec<u8>>> {
        self.tokenizer.spelling()
    }

    fn check_token(&self, token: u32) -> Result<()> {
        let vocab = self.vocab();
        if token < vocab { Ok(()) } else { Err(Error::data(format!("token {token} is outside 0..{vocab}"))) }
    }

    /// Tokens of all documents, each made as narrow as the vocabulary allows by `narrow`.
    /// Where the documents end goes to `ends`.
    fn encode_all<T>(
        &self,
        piece: &Piece,
        texts: &Blobs,
        ends: &mut Vec<usize>,
        narrow: impl Fn(u32) -> T,
    ) -> (Vec<T>, Vec<BadRecord>) {
        let mut stream = Vec::with_capacity(texts.bytes.len() / 4); // English has 4 to 5 bytes a token
        let bad = decode_each(piece, |record| {
            let text = std::str::from_utf8(texts.get(record))
                .map_err(|error| format!("not UTF-8 at byte {}", error.valid_up_to()))?;
            let tokens = self.encode(text).map_err(|error| error.to_string())?;
            stream.extend(tokens.into_iter().chain(self.separator).map(&narrow));
            ends.push(stream.len());
            Ok(())
        });
        (stream, bad)
    }
}

impl Decoder for TextDecoder {
    fn shape(&self) -> &RowShape {
        &self.shape
    }

    fn identity(&self) -> String {
        let separator = self.separator.map(|token| format!(" separator={token}")).unwrap_or_default();
        let rows = if self.apart { " rows=texts" } else { "" };
        format!("{} window={}{separator}{rows}", self.tokenizer.identity(), self.shape.num_vars)
    }

    fn decode(&self, piece: &Piece) -> Result<Decoded> {
        let texts = records::blobs(piece, "texts")?;
        let mut ends = Vec::new();
        let (column, bad) = if self.vocab() <= 0x1_0000 {
            let (tokens, bad) = self.encode_all(piece, texts, &mut ends, |token| token as u16);
            (Values::U16(tokens), bad)
        } else {
            let (tokens, bad) = self.encode_all(piece, texts, &mut ends, |token| token);
            (Values::U32(tokens), bad)
        };
        let output = match self.apart {
            true => Output::Rows(Table::of_stretches(self.shape.num_vars, &column, &ends)?),
            false => Output::Tokens(column),
        };
        Ok(Decoded { output, records: piece.num_records() as u64, bad })
    }

    fn expansion(&self) -> u64 {
        if self.apart { PADDING } else { 1 }
    }
}

impl std::fmt::Debug for TextDecoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TextDecoder({})", self.identity())
    }
}

#[cfg(test)]
mod tests {
    use super::super::records::testing::{blobs, lists};
    use super::*;
    use crate::error::ErrorKind;

    fn tokens(decoder: &TextDecoder, texts: &[&[u8]]) -> Vec<u16> {
        let Output::Tokens(Values::U16(tokens)) = decoder.decode(&blobs(texts)).unwrap().output else {
            panic!("tokens of 16 bits")
        };
        tokens
    }

    #[test]
    fn documents_that_stay_apart_have_rows_of_their_own() {
        let end = 50_256;
        let apart = TextDecoder::gpt2(3).unwrap().with_separator(Some(end)).unwrap().apart();
        let decoded = apart.decode(&blobs(&[b"Hello, world!", b"", b" the", b"\xff"])).unwrap();
        let expected = vec![15496, 11, 995, 0, 50_256, 0, 50_256, 0, 0, 262, 50_256, 0];
        let missing = [5, 7, 8, 11].into_iter().collect::<std::collections::BTreeSet<usize>>();
        let expected = Table::new(3, Values::U16(expected)).unwrap();
        let expected = expected.with_missing((0..12).map(|at| missing.contains(&at)).collect()).unwrap();
        assert_eq!(decoded.output, Output::Rows(expected));
        assert_eq!((decoded.records, decoded.bad.len()), (4, 1));
        assert!(apart.identity().ends_with("window=3 separator=50256 rows=texts"), "{}", apart.identity());
    }

    #[test]
    fn documents_are_encoded_by_themselves_and_follow_each_other() {
        let gpt2 = TextDecoder::gpt2(8).unwrap();
        assert_eq!(tokens(&gpt2, &[b"Hello", b"", b", world!"]), [15496, 11, 995, 0]);
        // Together they would be one token: " the" is 262.
        assert_eq!(tokens(&gpt2, &[b" t", b"he"]), [256, 258]);
    }

    #[test]
    fn a_separator_follows_every_document_even_an_empty_one() {
        let gpt2 = TextDecoder::gpt2(8).unwrap();
        let with_end = gpt2.clone().with_separator(gpt2.end_of_text()).unwrap();
        assert_eq!(tokens(&with_end, &[b"Hello", b"", b"0"]), [15496, 50256, 50256, 15, 50256]);
        assert_ne!(with_end.identity(), gpt2.identity());
        assert_eq!(gpt2.with_separator(Some(50_257)).unwrap_err().to_string(), "token 50257 is outside 0..50257");
    }

    #[test]
    fn a_document_that_is_not_utf8_is_bad_and_leaves_no_token_behind() {
        let gpt2 = TextDecoder::gpt2(8).unwrap().with_separator(Some(0)).unwrap();
        let mut piece = blobs(&[b"Hello", b"abc\xffdef", b"null", b"0"]);
        piece.bad.push((2, "null".into()));
        let decoded = gpt2.decode(&piece).unwrap();
        assert_eq!(decoded.output, Output::Tokens(Values::U16(vec![15496, 0, 15, 0])));
        assert_eq!(decoded.records, 4);
        let lines: Vec<String> = decoded.bad.iter().map(ToString::to_string).collect();
        assert_eq!(lines, ["shard: row 101: not UTF-8 at byte 3", "shard: row 102: null"]);
    }

    /// Every letter is the token of its code point, except that it has no token for `?`.
    struct Letters {
        vocab: u32,
    }

    impl Tokenizer for Letters {
        fn identity(&self) -> String {
            "letters".into()
        }

        fn vocab(&self) -> u32 {
            self.vocab
        }

        fn end_of_text(&self) -> Option<u32> {
            None
        }

        fn encode(&self, text: &str) -> Result<Vec<u32>> {
            if text.contains('?') { Err(Error::data("no token")) } else { Ok(text.chars().map(u32::from).collect()) }
        }

        fn decode(&self, _tokens: &[u32]) -> Result<String> {
            Ok(String::new())
        }
    }

    #[test]
    fn tokens_have_16_bits_where_the_vocabulary_allows_it() {
        for (vocab, expected) in [(0x1_0000, Values::U16(vec![97])), (0x1_0001, Values::U32(vec![97]))] {
            let letters = TextDecoder::new(Arc::new(Letters { vocab }), 8).unwrap();
            assert_eq!(letters.decode(&blobs(&[b"a"])).unwrap().output, Output::Tokens(expected));
        }
    }

    #[test]
    fn a_document_that_the_tokenizer_refuses_is_bad_and_so_is_one_with_an_id_outside() {
        let letters = TextDecoder::new(Arc::new(Letters { vocab: 0x100 }), 8).unwrap();
        let decoded = letters.decode(&blobs(&["ab".as_bytes(), b"a?", "a🙂".as_bytes(), b"c"])).unwrap();
        assert_eq!(decoded.output, Output::Tokens(Values::U16(vec![97, 98, 99])));
        let reasons: Vec<&str> = decoded.bad.iter().map(|bad| bad.reason.as_str()).collect();
        assert_eq!(reasons, ["no token", "token 128578 is outside 0..256"]);
    }

    #[test]
    fn numbers_and_empty_windows_are_refused() {
        assert_eq!(TextDecoder::gpt2(0).unwrap_err().kind(), ErrorKind::Option);
        let error = TextDecoder::gpt2(8).unwrap().decode(&lists(Values::U8(vec![1]), &[1])).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
    }

    #[test]
    fn a_window_that_begins_inside_a_letter_still_has_a_text() {
        let gpt2 = TextDecoder::gpt2(8).unwrap();
        let emoji = gpt2.encode("🙂").unwrap();
        assert_eq!(emoji.len(), 2);
        assert!(gpt2.decode_tokens(&emoji[1..]).unwrap().contains('\u{fffd}'));
        assert_eq!(gpt2.decode_tokens(&[50_256]).unwrap(), "<|endoftext|>");
        assert_eq!(gpt2.decode_tokens(&[60_000]).unwrap_err().to_string(), "token 60000 is outside 0..50257");
    }
}
