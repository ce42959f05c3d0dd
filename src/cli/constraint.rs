//! What a drawn sequence has to be, as flags say it: words it contains, a pattern, a length, a beginning.
//!
//! Rows that are text are constrained by their bytes, so words are found however they are cut into tokens. Other rows
//! are token ids, and so are words and patterns then. `query::dfa` makes automata of them, `query::chain` draws.

use clap::Args;

use crate::decode::text::TextDecoder;
use crate::error::{Error, Result};
use crate::query::chain::{Chain, Constrained};
use crate::query::dfa::{
    Dfa, Order, before_end, contains, contains_words, matches_text, matches_tokens, over_tokens, text_length,
};

/// Constraints on what is drawn from a hidden Markov model.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Constraints (hidden Markov models)")]
pub(super) struct ConstraintArgs {
    /// Begin with this text, or with these token ids
    #[arg(long, value_name = "TEXT|IDS")]
    prefix: Option<String>,
    /// Contain these words or phrases, separated by commas, in this order; of token ids: "3 17, 5"
    #[arg(long, value_name = "WORDS", value_delimiter = ',')]
    contains: Vec<String>,
    /// The words of --contains may come in any order
    #[arg(long, requires = "contains")]
    any_order: bool,
    /// The words of --contains may be parts of longer words
    #[arg(long, requires = "contains")]
    inside_words: bool,
    /// Match this regular expression as a whole; of token ids: "1 (2|3-9)* ."
    #[arg(long, value_name = "REGEX")]
    matches: Option<String>,
    /// At least so many tokens before the end of the text
    #[arg(long, value_name = "N")]
    min_length: Option<usize>,
    /// At most so many tokens before the end of the text
    #[arg(long, value_name = "N")]
    max_length: Option<usize>,
    /// The text must end, with an end-of-text token; the rest of the row is left out
    #[arg(long)]
    ends: bool,
    /// How many tokens are drawn (as many as a row has if left out)
    #[arg(long, value_name = "N")]
    length: Option<usize>,
}

/// What the flags ask for.
pub(super) struct Constraint {
    dfa: Dfa,
    prefix: Vec<u32>,
    length: usize,
    /// The token that ends a text.
    pub end: Option<u32>,
}

impl ConstraintArgs {
    /// Returns true if any flag was given.
    pub fn is_asked(&self) -> bool {
        let Self { prefix, contains, matches, min_length, max_length, ends, length, .. } = self;
        let lengths = [min_length, max_length, length].iter().any(|length| length.is_some());
        prefix.is_some() || !contains.is_empty() || matches.is_some() || lengths || *ends
    }

    /// The constraint on sequences of `chain`, whose rows are texts if there is a decoder. Texts end with the token
    /// that the model names, if it does, or else with that of the tokenizer.
    pub fn understand(&self, chain: &Chain<'_>, text: Option<&TextDecoder>, end: Option<u32>) -> Result<Constraint> {
        let vocab = chain.num_symbols();
        let end = end.or_else(|| text?.end_of_text()).filter(|&end| (end as usize) < vocab);
        if self.ends && end.is_none() {
            return Err(Error::option("--ends: the vocabulary of this model has no end-of-text token"));
        }
        let mut dfa = match text {
            Some(text) => self.of_text(text, vocab, end)?,
            None => self.of_ids(vocab, end)?,
        };
        let is_counted = self.min_length.is_some() || self.max_length.is_some();
        // Text has its ends in it already.
        if is_counted || (self.ends && text.is_none()) {
            let length = text_length(vocab, end, self.min_length.unwrap_or(0), self.max_length, self.ends);
            dfa = dfa.and(&length.map_err(|e| e.at("--min-length and --max-length"))?)?;
        }
        let prefix = match (&self.prefix, text) {
            (None, _) => Vec::new(),
            (Some(prefix), Some(text)) => text.encode(prefix)?,
            (Some(prefix), None) => ids(prefix).map_err(|e| e.at("--prefix"))?,
        };
        let length = self.length.unwrap_or(chain.num_vars());
        if prefix.len() > length {
            let (has, flag) = (prefix.len(), "--length");
            return Err(Error::option(format!("--prefix: has {has} tokens where {length} are drawn; see {flag}")));
        }
        chain.filter(&prefix).map_err(|e| Error::option(format!("--prefix: {e}")))?;
        Ok(Constraint { dfa, prefix, length, end })
    }

    fn of_text(&self, text: &TextDecoder, vocab: usize, end: Option<u32>) -> Result<Dfa> {
        let words: Vec<&str> = self.contains.iter().map(|word| word.trim()).collect();
        let words = contains_words(&words, !self.inside_words, self.order()).map_err(|e| e.at("--contains"))?;
        let bytes = match &self.matches {
            Some(expression) => words.and(&matches_text(expression).map_err(|e| e.at("--matches"))?)?,
            None => words,
        };
        let mut spelling = text.spelling()?;
        spelling.resize(vocab, Vec::new());
        over_tokens(&bytes, &spelling, end, self.ends)
    }

    fn of_ids(&self, vocab: usize, end: Option<u32>) -> Result<Dfa> {
        let words = self.contains.iter().map(|word| ids(word)).collect::<Result<Vec<_>>>();
        let words = words.and_then(|words| contains(&words, vocab, self.order())).map_err(|e| e.at("--contains"))?;
        let ids = match &self.matches {
            Some(expression) => words.and(&matches_tokens(expression, vocab).map_err(|e| e.at("--matches"))?)?,
            None => words,
        };
        match end {
            Some(end) => before_end(&ids, end, false),
            None => Ok(ids),
        }
    }

    fn order(&self) -> Order {
        if self.any_order { Order::Any } else { Order::AsListed }
    }
}

impl Constraint {
    /// Draws sequences. The second number is log p(constraint | prefix), in nats.
    pub fn draw(&self, chain: Chain<'_>, rows: usize, seed: u64) -> Result<(Vec<Vec<u32>>, f64)> {
        let constrained = Constrained::new(chain, self.dfa.clone(), self.length)?;
        let drawn = constrained.sample(&self.prefix, rows, seed)?;
        Ok((drawn, constrained.log_probability(&self.prefix)?))
    }
}

/// Token ids with blanks between.
fn ids(text: &str) -> Result<Vec<u32>> {
    let id = |word: &str| word.parse().map_err(|_| Error::option(format!("{word:?} is not a token id")));
    text.split_whitespace().map(id).collect()
}
