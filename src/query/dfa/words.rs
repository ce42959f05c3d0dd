//! Sequences that contain given words, in a given order or in any.
//!
//! In order means that each word begins after the one before it has ended. Of text a word may be asked for as a whole:
//! then no letter or digit stands directly before or behind it, so that `cat` is not found in `concatenate`. Bytes of
//! characters beyond ASCII count as letters.

use super::pattern::{Pattern, complement};
use super::{Dfa, nfa};
use crate::error::{Error, Result};

/// How words follow each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// One after the other, as they are listed.
    #[default]
    AsListed,
    /// Anyhow; they may overlap.
    Any,
}

/// Sequences over `num_symbols` symbols that contain each of `words`, themselves sequences.
///
/// ```
/// use anemone::query::dfa::{Order, contains};
///
/// let words = contains(&[vec![7, 3], vec![5]], 10, Order::AsListed)?;
/// assert!(words.accepts(&[1, 7, 3, 2, 5]) && !words.accepts(&[5, 7, 3]));
/// # Ok::<(), anemone::Error>(())
/// ```
pub fn contains(words: &[Vec<u32>], num_symbols: usize, order: Order) -> Result<Dfa> {
    if let Some(symbol) = words.iter().flatten().find(|&&symbol| symbol as usize >= num_symbols) {
        return Err(Error::option(format!("a word has the symbol {symbol}, which is outside 0..{num_symbols}")));
    }
    let anything = || Pattern::anything(num_symbols as u32);
    let around = |word: &Vec<u32>| Pattern::All(vec![anything(), Pattern::literal(word.iter().copied()), anything()]);
    joined(words.iter().map(|word| (word.is_empty(), around(word))), num_symbols, order)
}

/// Texts, as bytes, that contain each of `words`: as whole words, or anywhere.
pub fn contains_words(words: &[&str], whole: bool, order: Order) -> Result<Dfa> {
    let is_letter: Vec<(u32, u32)> = [(b'0', b'9'), (b'A', b'Z'), (b'a', b'z'), (0x80, 0xFF)]
        .map(|(low, high)| (u32::from(low), u32::from(high)))
        .to_vec();
    let is_in = |byte: u8| is_letter.iter().any(|&(low, high)| (low..=high).contains(&u32::from(byte)));
    let boundary = || Pattern::Symbol(complement(is_letter.clone(), 255));
    let anything = || Pattern::anything(256);
    let nothing = || Pattern::All(Vec::new());
    let around = |word: &&str| {
        let bytes = word.as_bytes();
        // A word that begins or ends with a sign has its boundary in itself.
        let before = match whole && bytes.first().is_some_and(|&byte| is_in(byte)) {
            true => Pattern::Any(vec![nothing(), Pattern::All(vec![anything(), boundary()])]),
            false => anything(),
        };
        let after = match whole && bytes.last().is_some_and(|&byte| is_in(byte)) {
            true => Pattern::Any(vec![nothing(), Pattern::All(vec![boundary(), anything()])]),
            false => anything(),
        };
        Pattern::All(vec![before, Pattern::literal(bytes.iter().map(|&byte| u32::from(byte))), after])
    };
    joined(words.iter().map(|word| (word.is_empty(), around(word))), 256, order)
}

/// One automaton of those that find one word each.
fn joined(words: impl Iterator<Item = (bool, Pattern)>, num_symbols: usize, order: Order) -> Result<Dfa> {
    let mut found: Option<Dfa> = None;
    for (is_empty, around) in words {
        if is_empty {
            return Err(Error::option("a word is empty: it would be found in everything"));
        }
        let one = nfa::compile(&around, num_symbols)?;
        found = Some(match (found, order) {
            (None, _) => one,
            (Some(before), Order::Any) => before.and(&one)?,
            (Some(before), Order::AsListed) => before.then(&one)?,
        });
    }
    found.map_or_else(|| Dfa::anything(num_symbols), Ok)
}

impl Dfa {
    /// Accepts a sequence that this automaton is done with, followed by one that `other` accepts. Done is the state in
    /// which everything is accepted; an automaton that finds a word has it.
    fn then(&self, other: &Self) -> Result<Self> {
        let is_done = |state: usize| {
            self.is_accepting(state) && (0..self.num_classes()).all(|class| self.next_of_class(state, class) == state)
        };
        let shift = self.num_states();
        let moved = |state: usize| if is_done(state) { shift + other.start() } else { state };
        let next = |state: usize, symbol: u32| match state.checked_sub(shift) {
            None => moved(self.next(state, symbol)),
            Some(state) => shift + other.next(state, symbol),
        };
        let accepting = |state: usize| state.checked_sub(shift).is_some_and(|state| other.is_accepting(state));
        let both = Self::from_fn(self.num_symbols(), shift + other.num_states(), moved(self.start()), next, accepting)?;
        both.reached()
    }

    /// Without the states that nothing leads to.
    fn reached(&self) -> Result<Self> {
        let next = |&state: &usize, class: usize| self.next_of_class(state, class);
        let reached = Self::explore(self.class_of.clone(), self.start(), next, |&state| self.is_accepting(state))?;
        Ok(reached.minimise())
    }
}
