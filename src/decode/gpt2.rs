//! GPT-2's byte-pair encoding, with its vocabulary inside: nothing to download.
//!
//! The only user of `tiktoken-rs`. Special tokens are not recognised in a text. Building the tables takes a moment, so that
//! all decoders of a process share one.

use std::collections::HashSet;
use std::sync::OnceLock;

use tiktoken_rs::{CoreBPE, r50k_base_singleton};

use super::text::Tokenizer;
use crate::data::Digest;
use crate::error::{Error, Result};

/// 256 bytes, 50,000 merges, and the end of a text.
const VOCAB: u32 = 50_257;

/// `<|endoftext|>`.
const END_OF_TEXT: u32 = 50_256;

/// White space at least this long is encoded apart: see [`cut_at_long_runs`].
const LONG_RUN: usize = 100_000;

/// The tokenizer of GPT-2.
#[derive(Clone, Copy)]
pub(super) struct Gpt2 {
    bpe: &'static CoreBPE,
}

impl Gpt2 {
    /// The one of this process.
    pub(super) fn shared() -> Self {
        Self { bpe: r50k_base_singleton() }
    }

    /// Not `encode_ordinary`, which gives the same tokens but panics where the regular expression gives up.
    fn encode_part(&self, text: &str) -> Result<Vec<u32>> {
        let none_special = HashSet::new();
        self.bpe.encode(text, &none_special).map(|(tokens, _)| tokens).map_err(|error| Error::data(error.to_string()))
    }
}

impl Tokenizer for Gpt2 {
    fn identity(&self) -> String {
        static DIGEST: OnceLock<String> = OnceLock::new();
        let digest = DIGEST.get_or_init(|| {
            let mut digest = Digest::new();
            for token in 0..VOCAB {
                digest.update(self.bpe.decode_bytes(&[token]).unwrap_or_default());
            }
            digest.finish()
        });
        format!("gpt2 sha256:{digest}")
    }

    fn vocab(&self) -> u32 {
        VOCAB
    }

    fn end_of_text(&self) -> Option<u32> {
        Some(END_OF_TEXT)
    }

    fn encode(&self, text: &str) -> Result<Vec<u32>> {
        self.encode_part(text).or_else(|_| {
            let parts: Result<Vec<_>> = cut_at_long_runs(text).into_iter().map(|part| self.encode_part(part)).collect();
            Ok(parts?.concat())
        })
    }

    fn decode(&self, tokens: &[u32]) -> Result<String> {
        let bytes = self.bpe.decode_bytes(tokens).map_err(|error| Error::data(error.to_string()))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

/// Cuts a text around long runs of white space, only where the words of GPT-2 end anyway.
///
/// A run before other text is one word without its last space, which belongs to what follows. The regular expression
/// finds that by stepping back from the end of the run, and its stack is too small for a million steps. A run at the
/// end of a text needs no step back.
fn cut_at_long_runs(text: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let (mut done, mut search) = (0, 0);
    while let Some(start) = text[search..].find(char::is_whitespace).map(|offset| search + offset) {
        let end = text[start..].find(|c: char| !c.is_whitespace()).map_or(text.len(), |offset| start + offset);
        search = end;
        if end - start >= LONG_RUN && end < text.len() {
            let last = text[start..end].char_indices().next_back().map_or(end, |(offset, _)| start + offset);
            parts.extend([&text[done..start], &text[start..last]]);
            done = last;
        }
    }
    parts.push(&text[done..]);
    parts
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_token_has_its_own_bytes_and_no_other_token_exists() {
        let gpt2 = Gpt2::shared();
        let bytes: HashSet<Vec<u8>> = (0..VOCAB).map(|token| gpt2.bpe.decode_bytes(&[token]).unwrap()).collect();
        assert_eq!(bytes.len(), VOCAB as usize);
        assert!(gpt2.bpe.decode_bytes(&[VOCAB]).is_err());
        assert_eq!(gpt2.decode(&[END_OF_TEXT]).unwrap(), "<|endoftext|>");
        let identity = gpt2.identity();
        assert!(identity.starts_with("gpt2 sha256:") && identity.len() == 12 + 64, "{identity}");
    }

    #[test]
    fn special_tokens_are_text() {
        assert_eq!(Gpt2::shared().encode("<|endoftext|>").unwrap(), [27, 91, 437, 1659, 5239, 91, 29]);
    }

    #[test]
    fn more_than_a_million_spaces_are_encoded_like_few() {
        let gpt2 = Gpt2::shared();
        let tokens = |spaces: usize| gpt2.encode(&format!("one{}two.", " ".repeat(spaces))).unwrap();
        // Every space but the last is a token of its own, so that more of them change nothing else.
        let mut expected = tokens(3);
        assert_eq!(expected[1..3], [220, 220]);
        expected.splice(1..1, vec![220; 1_100_000]);
        assert!(gpt2.encode_part(&format!("one{}two.", " ".repeat(1_100_003))).is_err(), "it is needed");
        assert!(tokens(1_100_003) == expected);
    }

    #[test]
    fn texts_cut_at_long_runs_have_the_same_tokens() {
        let gpt2 = Gpt2::shared();
        for (before, run, after) in [
            ("a", " ", "b"),
            ("", "\n", " b"),
            ("a.", "\t", "'s"),
            ("7", " \n", ""),
            ("é", "\u{2003}", "1"),
            ("", " ", ""),
        ] {
            let text = [before, &run.repeat(LONG_RUN), after, &run.repeat(3), "end"].concat();
            let parts: Vec<u32> =
                cut_at_long_runs(&text).into_iter().flat_map(|part| gpt2.encode_part(part).unwrap()).collect();
            assert!(cut_at_long_runs(&text).len() == 3);
            assert_eq!(parts, gpt2.encode_part(&text).unwrap(), "{before:?} {run:?} {after:?}");
        }
    }

    proptest! {
        #[test]
        fn tokens_spell_the_text(text in "\\PC*|[ \\n\\ta-z0-9'.é🙂]{0,60}") {
            let gpt2 = Gpt2::shared();
            let tokens = gpt2.encode(&text).unwrap();
            prop_assert!(tokens.iter().all(|&token| token < END_OF_TEXT));
            prop_assert_eq!(gpt2.decode(&tokens).unwrap(), text.clone());
            prop_assert_eq!(tokens, gpt2.bpe.encode_ordinary(&text));
        }
    }
}
