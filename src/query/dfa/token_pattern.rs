//! Regular expressions over token ids: the notation of text patterns with numbers for characters.
//!
//! `17 4* (3 | 5-9) .{2} [^0 2-4]`: ids are separated by blanks, `5-9` is any id of that range, `.` any at all,
//! brackets hold ids and ranges. The whole sequence has to match.

use super::pattern::{Pattern, complement, union};
use super::{Dfa, nfa};
use crate::error::{Error, Result};

/// The automaton over `num_symbols` ids that accepts sequences that match an expression as a whole.
///
/// ```
/// use anemone::query::dfa::matches_tokens;
///
/// let pattern = matches_tokens("1 (2|3)+ .* 0{2}", 10)?;
/// assert!(pattern.accepts(&[1, 3, 2, 9, 0, 0]) && !pattern.accepts(&[1, 0, 0]));
/// # Ok::<(), anemone::Error>(())
/// ```
pub fn matches_tokens(expression: &str, num_symbols: usize) -> Result<Dfa> {
    let text: Vec<char> = expression.chars().collect();
    let mut parser = Parser { text: &text, at: 0, depth: 0, num_symbols };
    let pattern = parser.alternatives()?;
    match parser.peek() {
        None => nfa::compile(&pattern, num_symbols),
        Some(_) => Err(parser.wrong("a `)` that closes nothing")),
    }
}

const DEEPEST: usize = 200;
const MOST_TIMES: usize = 1000;

struct Parser<'a> {
    text: &'a [char],
    at: usize,
    depth: usize,
    num_symbols: usize,
}

impl Parser<'_> {
    /// The next character that is no blank.
    fn peek(&mut self) -> Option<char> {
        while self.text.get(self.at).is_some_and(|c| c.is_whitespace()) {
            self.at += 1;
        }
        self.text.get(self.at).copied()
    }

    fn takes(&mut self, wanted: char) -> bool {
        let is_here = self.peek() == Some(wanted);
        self.at += usize::from(is_here);
        is_here
    }

    fn wrong(&self, why: &str) -> Error {
        Error::option(format!("token expression, character {}: {why}", self.at + 1))
    }

    fn alternatives(&mut self) -> Result<Pattern> {
        let mut ways = vec![self.sequence()?];
        while self.takes('|') {
            ways.push(self.sequence()?);
        }
        Ok(Pattern::Any(ways))
    }

    fn sequence(&mut self) -> Result<Pattern> {
        let mut parts = Vec::new();
        while self.peek().is_some_and(|next| next != '|' && next != ')') {
            let part = self.single()?;
            parts.push(self.repetitions(part)?);
        }
        Ok(Pattern::All(parts))
    }

    fn single(&mut self) -> Result<Pattern> {
        let largest = self.num_symbols as u32 - 1;
        if self.takes('(') {
            self.depth += 1;
            if self.depth > DEEPEST {
                return Err(self.wrong("groups are nested too deeply"));
            }
            let inside = self.alternatives()?;
            self.depth -= 1;
            return if self.takes(')') { Ok(inside) } else { Err(self.wrong("a group is not closed: `)` is missing")) };
        }
        if self.takes('.') {
            return Ok(Pattern::Symbol(vec![(0, largest)]));
        }
        if !self.takes('[') {
            return Ok(Pattern::Symbol(vec![self.range()?]));
        }
        let is_negated = self.takes('^');
        let mut ranges = Vec::new();
        while !self.takes(']') {
            ranges.push(self.range()?);
        }
        Ok(Pattern::Symbol(if is_negated { complement(ranges, largest) } else { union(ranges) }))
    }

    fn repetitions(&mut self, mut what: Pattern) -> Result<Pattern> {
        loop {
            what = match self.peek() {
                Some('*') => what.repeated(0, None),
                Some('+') => what.repeated(1, None),
                Some('?') => what.repeated(0, Some(1)),
                Some('{') => {
                    self.at += 1;
                    let least = self.number(MOST_TIMES)?;
                    let most = match self.takes(',') {
                        false => Some(least),
                        true if self.peek() == Some('}') => None,
                        true => Some(self.number(MOST_TIMES)?),
                    };
                    if self.peek() != Some('}') || most.is_some_and(|most| most < least) {
                        return Err(self.wrong("repetitions are {n}, {least,} or {least,most}"));
                    }
                    what.repeated(least, most)
                }
                _ => return Ok(what),
            };
            self.at += 1;
        }
    }

    /// An id, or two and what is between them.
    fn range(&mut self) -> Result<(u32, u32)> {
        let low = self.number(self.num_symbols - 1)?;
        let high = if self.takes('-') { self.number(self.num_symbols - 1)? } else { low };
        if low <= high { Ok((low, high)) } else { Err(self.wrong("a range begins with the smaller id")) }
    }

    fn number(&mut self, largest: usize) -> Result<u32> {
        self.peek();
        let digits: String = self.text[self.at..].iter().take_while(|c| c.is_ascii_digit()).collect();
        let number = digits.parse::<usize>();
        match number {
            Ok(number) if number <= largest => {
                self.at += digits.len();
                Ok(number as u32)
            }
            Ok(_) => Err(self.wrong(&format!("{digits} is above {largest}"))),
            Err(_) if digits.is_empty() => Err(self.wrong("a token id is expected")),
            Err(_) => Err(self.wrong(&format!("{digits} is above {largest}"))),
        }
    }
}
