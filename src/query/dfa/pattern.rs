//! What a regular expression means, over any alphabet.
//!
//! Two notations are read into it: of text, whose symbols are bytes (`text_pattern`), and of token ids
//! (`token_pattern`). `nfa` makes an automaton of it.

/// A set of sequences.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Pattern {
    /// One symbol out of these ranges, both ends included. No range is nothing at all.
    Symbol(Vec<(u32, u32)>),
    /// One after the other; none is the empty sequence.
    All(Vec<Pattern>),
    /// One of them.
    Any(Vec<Pattern>),
    /// At least `least` and at most `most` in a row.
    Repeat { what: Box<Pattern>, least: u32, most: Option<u32> },
}

impl Pattern {
    /// Any number of any symbol.
    pub fn anything(num_symbols: u32) -> Self {
        Self::Repeat { what: Box::new(Self::Symbol(vec![(0, num_symbols - 1)])), least: 0, most: None }
    }

    /// These symbols in this order.
    pub fn literal(symbols: impl IntoIterator<Item = u32>) -> Self {
        Self::All(symbols.into_iter().map(|symbol| Self::Symbol(vec![(symbol, symbol)])).collect())
    }

    /// `{least,most}` in a row.
    pub fn repeated(self, least: u32, most: Option<u32>) -> Self {
        Self::Repeat { what: Box::new(self), least, most }
    }
}

/// Sorts ranges and joins those that touch.
pub(super) fn union(mut ranges: Vec<(u32, u32)>) -> Vec<(u32, u32)> {
    ranges.sort_unstable();
    let mut joined: Vec<(u32, u32)> = Vec::new();
    for (low, high) in ranges {
        match joined.last_mut() {
            Some(last) if low <= last.1.saturating_add(1) => last.1 = last.1.max(high),
            _ => joined.push((low, high)),
        }
    }
    joined
}

/// What is in `0..=largest` and in none of the ranges.
pub(super) fn complement(ranges: Vec<(u32, u32)>, largest: u32) -> Vec<(u32, u32)> {
    let mut from = 0;
    let mut rest = Vec::new();
    for (low, high) in union(ranges) {
        if low > from {
            rest.push((from, low - 1));
        }
        from = high.saturating_add(1);
    }
    if from <= largest {
        rest.push((from, largest));
    }
    rest
}
