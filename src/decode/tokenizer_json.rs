//! Any tokenizer that comes as a `tokenizer.json`.
//!
//! The only user of `tokenizers`. A document is encoded whole and nothing is added to it: templates, truncation and
//! padding that the file asks for are for single sentences and would break a stream. Special tokens written out in a
//! text *are* recognised, as everywhere that reads these files.

use std::path::Path;

use tokenizers::{ModelWrapper, Tokenizer as Tokenizers};

use super::text::Tokenizer;
use crate::data::Digest;
use crate::error::{Error, Result};

/// A tokenizer read from a file.
pub(super) struct TokenizerJson {
    tokenizers: Tokenizers,
    vocab: u32,
    /// Of the file's bytes.
    digest: String,
}

impl TokenizerJson {
    /// Reads the file.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let bytes = std::fs::read(path).map_err(|error| Error::io_at(path, &error))?;
        Self::parse(&bytes).map_err(|error| error.at_path(path))
    }

    fn parse(bytes: &[u8]) -> Result<Self> {
        let mut tokenizers = Tokenizers::from_bytes(bytes)
            .map_err(|error| Error::format(format!("not a tokenizer.json that can be read: {error}")))?;
        tokenizers.with_truncation(None).map_err(|error| Error::format(error.to_string()))?;
        tokenizers.with_padding(None);
        if let ModelWrapper::BPE(bpe) = tokenizers.get_model()
            && bpe.dropout.is_some_and(|dropout| dropout > 0.0)
        {
            return Err(Error::unsupported(
                "it drops merges at random, so that no run can be repeated: set \"dropout\" to null in it",
            ));
        }
        // Not the number of tokens: ids may have gaps.
        let largest = tokenizers.get_vocab(true).into_values().max();
        let vocab = largest.map(|largest| largest.checked_add(1));
        match vocab {
            Some(Some(vocab)) => Ok(Self { tokenizers, vocab, digest: Digest::of(bytes) }),
            Some(None) => Err(Error::format(format!("token id {} is too large", u32::MAX))),
            None => Err(Error::format("its vocabulary is empty")),
        }
    }
}

impl Tokenizer for TokenizerJson {
    fn identity(&self) -> String {
        format!("tokenizer.json sha256:{}", self.digest)
    }

    fn vocab(&self) -> u32 {
        self.vocab
    }

    fn end_of_text(&self) -> Option<u32> {
        self.tokenizers.token_to_id("<|endoftext|>")
    }

    fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let encoding = self.tokenizers.encode_fast(text, false).map_err(|error| Error::data(error.to_string()))?;
        Ok(encoding.get_ids().to_vec())
    }

    fn decode(&self, tokens: &[u32]) -> Result<String> {
        self.tokenizers.decode(tokens, false).map_err(|error| Error::data(error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    /// Words by themselves, with a gap in the ids, and all that would break a stream.
    const WORDS: &str = r#"{
        "version": "1.0",
        "truncation": {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0},
        "padding": {"strategy": {"Fixed": 8}, "direction": "Right", "pad_to_multiple_of": null,
                    "pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]"},
        "added_tokens": [{"id": 70000, "content": "<|endoftext|>", "single_word": false, "lstrip": false,
                          "rstrip": false, "normalized": false, "special": true}],
        "normalizer": null,
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": {"type": "BertProcessing", "sep": ["b", 5], "cls": ["a", 1]},
        "decoder": null,
        "model": {"type": "WordLevel", "unk_token": "[UNK]",
                  "vocab": {"[UNK]": 0, "a": 1, "b": 5, "<|endoftext|>": 70000}}
    }"#;

    #[test]
    fn documents_are_neither_cut_nor_padded_nor_framed() {
        let words = TokenizerJson::parse(WORDS.as_bytes()).unwrap();
        assert_eq!(words.encode("a b b a what").unwrap(), [1, 5, 5, 1, 0]);
        assert_eq!(words.encode("").unwrap(), [0u32; 0]);
        assert_eq!(words.decode(&[1, 5]).unwrap(), "a b");
    }

    #[test]
    fn the_vocabulary_reaches_to_the_largest_id_and_special_tokens_are_recognised() {
        let words = TokenizerJson::parse(WORDS.as_bytes()).unwrap();
        assert_eq!((words.vocab(), words.end_of_text()), (70_001, Some(70_000)));
        assert_eq!(words.encode("a<|endoftext|>").unwrap(), [1, 70_000]);
    }

    #[test]
    fn the_identity_is_that_of_the_file() {
        let words = TokenizerJson::parse(WORDS.as_bytes()).unwrap();
        assert_eq!(words.identity(), format!("tokenizer.json sha256:{}", Digest::of(WORDS.as_bytes())));
    }

    #[test]
    fn files_that_are_no_tokenizer_are_refused_with_their_path() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokenizer.json");
        assert_eq!(TokenizerJson::open(&path).err().unwrap().kind(), ErrorKind::Path);
        for text in ["", "{}", "[1, 2]", "{\"model\": 3}", "\u{0}"] {
            std::fs::write(&path, text).unwrap();
            let error = TokenizerJson::open(&path).err().unwrap();
            assert_eq!(error.kind(), ErrorKind::Format, "{text:?}");
            assert!(error.to_string().starts_with(&path.display().to_string()), "{error}");
        }
    }

    #[test]
    fn a_tokenizer_that_is_random_is_refused() {
        let text = r#"{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
            "pre_tokenizer": null, "post_processor": null, "decoder": null,
            "model": {"type": "BPE", "dropout": 0.1, "unk_token": null, "continuing_subword_prefix": null,
                      "end_of_word_suffix": null, "fuse_unk": false, "vocab": {"a": 0}, "merges": []}}"#;
        assert_eq!(TokenizerJson::parse(text.as_bytes()).err().unwrap().kind(), ErrorKind::Unsupported);
        assert!(TokenizerJson::parse(text.replace("0.1", "null").as_bytes()).is_ok());
    }
}
