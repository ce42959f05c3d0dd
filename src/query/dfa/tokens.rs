//! Constraints on bytes become constraints on tokens that spell bytes.
//!
//! A token moves the automaton by all of its bytes at once, so a text is accepted however it is cut into tokens. A text
//! ends at the end of the sequence or with its first end-of-text token. What follows that is no part of the text, and
//! may be anything: padding, the next text, or what was never looked at.

use super::{Dfa, MOST_STATES};
use crate::error::{Error, Result};

/// The automaton over tokens that accepts sequences whose text `bytes` accepts. `spelling` has the bytes of every
/// token; a token without bytes never occurs in a text, unless it is `end`: then the text ends with it, and the rest is
/// free. With `must_end` an end-of-text token has to be there.
pub fn over_tokens(bytes: &Dfa, spelling: &[Vec<u8>], end: Option<u32>, must_end: bool) -> Result<Dfa> {
    if bytes.num_symbols() != 256 {
        return Err(Error::option(format!("an automaton over {} symbols does not read bytes", bytes.num_symbols())));
    }
    check_end(end, spelling.len(), must_end)?;
    let (ended, dead) = (bytes.num_states(), bytes.num_states() + 1);
    let next = |state: usize, token: u32| {
        let spelled = &spelling[token as usize];
        match Some(token) == end {
            _ if state >= ended => state,
            true => {
                if bytes.is_accepting(state) {
                    ended
                } else {
                    dead
                }
            }
            false if spelled.is_empty() => dead,
            false => spelled.iter().fold(state, |state, &byte| bytes.next(state, u32::from(byte))),
        }
    };
    let accepting = |state: usize| state == ended || (!must_end && state < ended && bytes.is_accepting(state));
    let tokens = Dfa::from_fn(spelling.len(), dead + 1, bytes.start(), next, accepting)?;
    Ok(tokens.minimise())
}

/// Sequences whose text an automaton over tokens accepts: what comes before the first end-of-text, or all of it where
/// there is none. What follows is free. With `must_end` one has to be there.
pub fn before_end(text: &Dfa, end: u32, must_end: bool) -> Result<Dfa> {
    check_end(Some(end), text.num_symbols(), must_end)?;
    let (ended, dead) = (text.num_states(), text.num_states() + 1);
    let next = |state: usize, token: u32| match token == end {
        _ if state >= ended => state,
        true => {
            if text.is_accepting(state) {
                ended
            } else {
                dead
            }
        }
        false => text.next(state, token),
    };
    let accepting = |state: usize| state == ended || (!must_end && state < ended && text.is_accepting(state));
    Ok(Dfa::from_fn(text.num_symbols(), dead + 1, text.start(), next, accepting)?.minimise())
}

/// Sequences of `least` to `most` tokens before the first end-of-text, or in all where there is none; what follows it
/// is free. With `must_end` one has to be there.
pub fn text_length(
    num_symbols: usize,
    end: Option<u32>,
    least: usize,
    most: Option<usize>,
    must_end: bool,
) -> Result<Dfa> {
    check_end(end, num_symbols, must_end)?;
    if most.is_some_and(|most| most < least) {
        return Err(Error::option(format!("a length of at least {least} and at most {}", most.unwrap_or(0))));
    }
    // Tokens are counted up to the last number that makes a difference.
    let last = most.map_or(least, |most| most + 1);
    if last >= MOST_STATES - 1 {
        return Err(Error::option(format!("a length of {last} tokens: at most {} can be counted", MOST_STATES - 3)));
    }
    let (ended, dead) = (last + 1, last + 2);
    let fits = |count: usize| count >= least && most.is_none_or(|most| count <= most);
    let next = |state: usize, token: u32| match Some(token) == end {
        _ if state >= ended => state,
        true => {
            if fits(state) {
                ended
            } else {
                dead
            }
        }
        false => (state + 1).min(last),
    };
    let accepting = |state: usize| state == ended || (!must_end && state < ended && fits(state));
    Ok(Dfa::from_fn(num_symbols, dead + 1, 0, next, accepting)?.minimise())
}

fn check_end(end: Option<u32>, num_symbols: usize, must_end: bool) -> Result<()> {
    match end {
        Some(end) if end as usize >= num_symbols => {
            Err(Error::option(format!("end-of-text is {end}, which is outside 0..{num_symbols}")))
        }
        None if must_end => Err(Error::option("a text cannot end where there is no end-of-text token")),
        _ => Ok(()),
    }
}
