//! The set of variables below a node.

use std::fmt;

/// A set of variables, as bits.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Scope {
    words: Vec<u64>,
}

impl Scope {
    /// The empty set among `num_vars` variables.
    pub fn empty(num_vars: usize) -> Self {
        Self { words: vec![0; num_vars.div_ceil(64)] }
    }

    /// Adds a variable.
    pub fn insert(&mut self, var: usize) {
        self.words[var / 64] |= 1 << (var % 64);
    }

    /// Adds all of `other`.
    pub fn extend(&mut self, other: &Self) {
        for (a, b) in self.words.iter_mut().zip(&other.words) {
            *a |= b;
        }
    }

    /// A variable that both contain.
    pub fn common(&self, other: &Self) -> Option<usize> {
        let (word, bits) =
            self.words.iter().zip(&other.words).map(|(a, b)| a & b).enumerate().find(|(_, w)| *w != 0)?;
        Some(word * 64 + bits.trailing_zeros() as usize)
    }

    /// The variables, ascending.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.words.len() * 64).filter(|v| self.words[v / 64] >> (v % 64) & 1 == 1)
    }

    /// How many variables.
    pub fn len(&self) -> usize {
        self.words.iter().map(|w| w.count_ones() as usize).sum()
    }

    /// Returns true if there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Short however large the scope: `{0, 1, 2, … 768 variables}`.
impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 8;
        let shown: Vec<String> = self.iter().take(SHOWN).map(|v| v.to_string()).collect();
        match self.len() {
            n if n > SHOWN => write!(f, "{{{}, … {n} variables}}", shown.join(", ")),
            _ => write!(f, "{{{}}}", shown.join(", ")),
        }
    }
}

impl fmt::Debug for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
