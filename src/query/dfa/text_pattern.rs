//! Regular expressions over text.
//!
//! | written | means |
//! |---|---|
//! | `a`, `é` | that character |
//! | `.` | any character except a line feed |
//! | `[a-z_]`, `[^0-9]` | one of these, none of these |
//! | `\d \w \s`, `\D \W \S` | digit, letter or digit or `_`, white space, all of ASCII; what is none of them |
//! | `\n \t \r`, `\xHH`, `\u{HHHH}` | line feed, tab, carriage return, a character by its number |
//! | `\.` and so on | the character itself, where it would mean something |
//! | `xy`, `x\|y`, `(x)`, `(?:x)` | x then y, x or y, a group |
//! | `x*`, `x+`, `x?`, `x{3}`, `x{2,}`, `x{2,5}` | any number, at least one, at most one, so many |
//! | `^`, `$` | the beginning and the end of the text |
//!
//! The whole text has to match: `^` and `$` may stand at the ends of the expression and change nothing. For a match
//! anywhere write `(.|\n)*x(.|\n)*`. There are no back references, no look-around and no lazy repetition: an automaton
//! has no memory for them, or no use.

use super::pattern::{Pattern, complement, union};
use super::utf8::{LARGEST, characters};
use super::{Dfa, nfa};
use crate::error::{Error, Result};

/// The automaton over bytes that accepts texts that match an expression as a whole.
///
/// ```
/// use anemone::query::dfa::matches_text;
///
/// let dates = matches_text(r"\d{4}-\d\d?-\d\d?|né en \d{4}")?;
/// let accepts = |text: &str| dates.accepts(&text.bytes().map(u32::from).collect::<Vec<_>>());
/// assert!(accepts("2024-1-31") && accepts("né en 1775") && !accepts("on 2024-1-31"));
/// # Ok::<(), anemone::Error>(())
/// ```
pub fn matches_text(expression: &str) -> Result<Dfa> {
    let characters: Vec<char> = expression.chars().collect();
    let (mut from, mut to) = (0, characters.len());
    from += usize::from(characters.first() == Some(&'^'));
    // A `$` after an odd number of backslashes is a dollar sign.
    let slashes = characters[..to.max(1) - 1].iter().rev().take_while(|&&c| c == '\\').count();
    to -= usize::from(to > from && characters[to - 1] == '$' && slashes % 2 == 0);
    let mut parser = Parser { text: &characters[..to], at: from, depth: 0 };
    let pattern = parser.alternatives()?;
    match parser.peek() {
        None => nfa::compile(&pattern, 256),
        Some(_) => Err(parser.wrong("a `)` that closes nothing; write \\) for the character")),
    }
}

/// Groups in groups; more would be too deep for the stack.
const DEEPEST: usize = 200;

/// More repetitions make an automaton too large in any case.
const MOST_TIMES: u32 = 1000;

struct Parser<'a> {
    text: &'a [char],
    at: usize,
    depth: usize,
}

impl Parser<'_> {
    fn peek(&self) -> Option<char> {
        self.text.get(self.at).copied()
    }

    fn take(&mut self) -> Option<char> {
        let next = self.peek();
        self.at += usize::from(next.is_some());
        next
    }

    fn takes(&mut self, wanted: char) -> bool {
        let is_here = self.peek() == Some(wanted);
        self.at += usize::from(is_here);
        is_here
    }

    fn wrong(&self, why: &str) -> Error {
        Error::option(format!("regular expression, character {}: {why}", self.at + 1))
    }

    fn alternatives(&mut self) -> Result<Pattern> {
        let mut ways = vec![self.sequence()?];
        while self.takes('|') {
            ways.push(self.sequence()?);
        }
        Ok(if ways.len() == 1 { ways.remove(0) } else { Pattern::Any(ways) })
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
        let class = |ranges: Vec<(u32, u32)>| Ok(characters(&union(ranges)));
        match self.take() {
            Some('(') => {
                if self.takes('?') && !self.takes(':') {
                    return Err(self.wrong("of groups that begin with `(?` only `(?:` is known"));
                }
                self.depth += 1;
                if self.depth > DEEPEST {
                    return Err(self.wrong("groups are nested too deeply"));
                }
                let inside = self.alternatives()?;
                self.depth -= 1;
                if self.takes(')') { Ok(inside) } else { Err(self.wrong("a group is not closed: `)` is missing")) }
            }
            Some('[') => class(self.class()?),
            Some('.') => class(complement(vec![(0x0A, 0x0A)], LARGEST)),
            Some('\\') => class(self.escape()?),
            Some(c @ ('*' | '+' | '?' | '{')) => {
                self.at -= 1;
                Err(self.wrong(&format!("nothing to repeat before `{c}`; write \\{c} for the character")))
            }
            Some('^' | '$') => {
                self.at -= 1;
                Err(self.wrong("`^` and `$` stand at the ends of the expression; write \\^ or \\$ for the characters"))
            }
            Some(c) => class(vec![(c as u32, c as u32)]),
            None => Err(self.wrong("the expression ends where a character is expected")),
        }
    }

    fn repetitions(&mut self, mut what: Pattern) -> Result<Pattern> {
        loop {
            what = match self.peek() {
                Some('*') => what.repeated(0, None),
                Some('+') => what.repeated(1, None),
                Some('?') => what.repeated(0, Some(1)),
                Some('{') => {
                    self.at += 1;
                    let least = self.number()?;
                    let most = match self.takes(',') {
                        false => Some(least),
                        true if self.peek() == Some('}') => None,
                        true => Some(self.number()?),
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

    fn number(&mut self) -> Result<u32> {
        let mut number: Option<u32> = None;
        while let Some(digit) = self.peek().and_then(|next| next.to_digit(10)) {
            self.at += 1;
            let so_far = number.unwrap_or(0) * 10 + digit;
            if so_far > MOST_TIMES {
                return Err(self.wrong(&format!("more than {MOST_TIMES} repetitions")));
            }
            number = Some(so_far);
        }
        number.ok_or_else(|| self.wrong("repetitions are {n}, {least,} or {least,most}"))
    }

    /// What stands between brackets; the first one is read.
    fn class(&mut self) -> Result<Vec<(u32, u32)>> {
        let is_negated = self.takes('^');
        let mut ranges = Vec::new();
        let mut is_first = true;
        loop {
            let low = match self.take() {
                None => return Err(self.wrong("a class is not closed: `]` is missing")),
                Some(']') if !is_first => break,
                Some('\\') => self.escape()?,
                Some(c) => vec![(c as u32, c as u32)],
            };
            is_first = false;
            let is_range = self.peek() == Some('-') && self.text.get(self.at + 1).is_some_and(|&after| after != ']');
            if !is_range {
                ranges.extend(low);
                continue;
            }
            self.at += 1;
            let high = match self.take() {
                Some('\\') => self.escape()?,
                Some(c) => vec![(c as u32, c as u32)],
                None => return Err(self.wrong("a class is not closed: `]` is missing")),
            };
            match (&low[..], &high[..]) {
                (&[(low, l)], &[(high, h)]) if low == l && high == h && low <= high => ranges.push((low, high)),
                _ => return Err(self.wrong("a range needs a character at each end, the smaller first")),
            }
        }
        Ok(if is_negated { complement(ranges, LARGEST) } else { union(ranges) })
    }

    /// What a backslash means; it is read.
    fn escape(&mut self) -> Result<Vec<(u32, u32)>> {
        let one = |c: char| vec![(c as u32, c as u32)];
        let range = |low: char, high: char| (low as u32, high as u32);
        let words = || vec![range('0', '9'), range('A', 'Z'), range('_', '_'), range('a', 'z')];
        let spaces = || vec![range('\t', '\r'), range(' ', ' ')];
        Ok(match self.take() {
            Some('n') => one('\n'),
            Some('t') => one('\t'),
            Some('r') => one('\r'),
            Some('d') => vec![range('0', '9')],
            Some('D') => complement(vec![range('0', '9')], LARGEST),
            Some('w') => words(),
            Some('W') => complement(words(), LARGEST),
            Some('s') => spaces(),
            Some('S') => complement(spaces(), LARGEST),
            Some('x') => {
                let digits: String = self.text[self.at..].iter().take(2).collect();
                self.at += digits.chars().count();
                one(self.numbered(&digits, 2)?)
            }
            Some('u') => {
                let is_open = self.takes('{');
                let digits: String = self.text[self.at..].iter().take_while(|c| c.is_ascii_hexdigit()).collect();
                self.at += digits.chars().count();
                if !is_open || !self.takes('}') {
                    return Err(self.wrong("a character by its number is \\u{…} with hexadecimal digits"));
                }
                one(self.numbered(&digits, 1)?)
            }
            Some(c) if !c.is_ascii_alphanumeric() => one(c),
            Some(c) => return Err(self.wrong(&format!("`\\{c}` means nothing here"))),
            None => return Err(self.wrong("a backslash at the end escapes nothing")),
        })
    }

    fn numbered(&self, digits: &str, least: usize) -> Result<char> {
        let number = u32::from_str_radix(digits, 16).ok().filter(|_| digits.len() >= least);
        number.and_then(char::from_u32).ok_or_else(|| self.wrong("no character has this number"))
    }
}
