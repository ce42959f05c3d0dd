//! GPT-2's byte-pair encoding, with its vocabulary inside: nothing to download.
//!
//! The only user of `tiktoken-rs`. Special tokens are not recognised in a text. Building the tables takes a moment, so
//! that all decoders of a process share one. Words that are thousands of letters long are encoded in `long_words`.

use std::collections::HashSet;
use std::sync::OnceLock;

use tiktoken_rs::{CoreBPE, r50k_base_singleton};

use super::long_words::{LONG, Merges, Words, is_space, may_have_long_word};
use super::text::Tokenizer;
use crate::data::Digest;
use crate::error::{Error, Result};

/// 256 bytes, 50,000 merges, and the end of a text.
const VOCAB: u32 = 50_257;

/// `<|endoftext|>`.
const END_OF_TEXT: u32 = 50_256;

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

    /// A text with long words: they are encoded apart, and what is between them as it is.
    fn encode_around_long_words(&self, text: &str) -> Result<Vec<u32>> {
        let mut tokens = Vec::new();
        let mut done = 0;
        // Words of white space before a long one: at the end of a text they would be one word, here they are not.
        let mut spaces: Vec<&str> = Vec::new();
        let mut solid = 0;
        for word in Words::new(text) {
            let letters = &text[word.clone()];
            if letters.len() >= LONG {
                tokens.extend(self.encode_part(&text[done..solid.max(done)])?);
                for space in spaces.drain(..) {
                    tokens.extend(self.encode_part(space)?);
                }
                self.merges().encode(letters.as_bytes(), &mut tokens);
                (done, solid) = (word.end, word.end);
            } else if is_space(letters) {
                spaces.push(letters);
            } else {
                spaces.clear();
                solid = word.end;
            }
        }
        tokens.extend(self.encode_part(&text[done..])?);
        Ok(tokens)
    }

    fn merges(&self) -> &'static Merges {
        static MERGES: OnceLock<Merges> = OnceLock::new();
        MERGES.get_or_init(|| {
            let spell = |token| self.bpe.decode_bytes(&[token]).unwrap_or_default();
            Merges::new((0..END_OF_TEXT).map(spell).collect())
        })
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
        if may_have_long_word(text) { self.encode_around_long_words(text) } else { self.encode_part(text) }
    }

    fn decode(&self, tokens: &[u32]) -> Result<String> {
        let bytes = self.bpe.decode_bytes(tokens).map_err(|error| Error::data(error.to_string()))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn spelling(&self) -> Result<Vec<Vec<u8>>> {
        let bytes = |token| self.bpe.decode_bytes(&[token]).map_err(|error| Error::data(error.to_string()));
        (0..END_OF_TEXT).map(bytes).chain([Ok(Vec::new())]).collect()
    }
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
    fn texts_cut_at_long_words_have_the_same_tokens() {
        let gpt2 = Gpt2::shared();
        let runs = [" ", "\n", " \n", "\u{2003}", "a", "é", "7", "٣", "!", "'", "字", "ab", "\u{301}", "🙂", "-="];
        for run in runs {
            let long = run.repeat(LONG / run.len() + 3);
            for (before, after) in [
                ("", ""),
                ("a", "b"),
                ("one two \n", " \n three"),
                ("it", "'s"),
                ("x'", "s"),
                ("x '", "re"),
                ("!'", "'ll'"),
                ("'", "'ve"),
                ("\n ", "  "),
                ("1  ", "é"),
            ] {
                let text = [before, &long, after, " ", &long, " end\n\n"].concat();
                assert!(may_have_long_word(&text));
                let whole = gpt2.bpe.encode_ordinary(&text);
                assert!(gpt2.encode_around_long_words(&text).unwrap() == whole, "{before:?} {run:?} {after:?}");
            }
        }
    }

    #[test]
    fn ordinary_texts_are_not_looked_at_twice() {
        let words = "It was the best of times, it was the worst of times; 1775, in five words.\n".repeat(200);
        assert!(!may_have_long_word(&words));
        assert!(!may_have_long_word(&"a".repeat(LONG - 1)));
        assert!(may_have_long_word(&[words.as_str(), " ", &"a".repeat(LONG), &words].concat()));
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

        #[test]
        fn words_are_those_of_the_regular_expression(
            text in "([a-zé字🙂\u{301}]{0,4}|[ \n\t\u{2003}]{0,3}|[0-9٣'!-]{0,3}|'(s|ll|re|x)){0,12}",
        ) {
            let gpt2 = Gpt2::shared();
            let mut tokens = Vec::new();
            let mut end = 0;
            for word in Words::new(&text) {
                prop_assert_eq!(word.start, end);
                end = word.end;
                gpt2.merges().encode(text[word].as_bytes(), &mut tokens);
            }
            prop_assert_eq!(end, text.len());
            prop_assert_eq!(tokens, gpt2.bpe.encode_ordinary(&text));
        }

        #[test]
        fn long_words_have_the_tokens_of_tiktoken_in_windows_of_any_size(
            parts in prop::collection::vec(("[a-z]{1,3}|[a-cA-C]{1,8}|the|ing|é|字|ö|ß|ﬁ", 1usize..60), 1..60),
            window in prop_oneof![40usize..200, Just(1000), Just(16 << 10)],
        ) {
            let gpt2 = Gpt2::shared();
            let word: String = parts.iter().map(|(part, times)| part.repeat(*times)).collect();
            let mut tokens = Vec::new();
            gpt2.merges().encode_in_windows(word.as_bytes(), window, &mut tokens);
            prop_assert_eq!(tokens, gpt2.bpe.encode_ordinary(&word));
        }
    }
}
