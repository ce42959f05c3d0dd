//! A pattern becomes an automaton: Thompson's construction, then the sets of states that can be held at once.

use super::pattern::Pattern;
use super::{Dfa, MOST_STATES};
use crate::error::{Error, Result};

/// Steps of a nondeterministic automaton; more come from repetitions such as `(.{1000}){1000}`.
const MOST_STEPS: usize = 16 * MOST_STATES;

/// A state of it.
enum Step {
    /// To `to` by a symbol out of the ranges.
    Symbol { ranges: Vec<(u32, u32)>, to: usize },
    /// To all of them, by nothing.
    Fork(Vec<usize>),
    /// The end of the pattern.
    Accept,
}

/// The smallest automaton over `num_symbols` symbols that accepts the sequences of a pattern.
pub(super) fn compile(pattern: &Pattern, num_symbols: usize) -> Result<Dfa> {
    let mut nfa = Nfa { steps: vec![Step::Accept] };
    let start = nfa.add(pattern, 0)?;
    let (class_of, symbols) = nfa.classes(num_symbols);
    let first = nfa.closure(&[start]);
    let next = |held: &Vec<usize>, class: usize| {
        let symbol = symbols[class];
        let moved = held.iter().filter_map(|&at| match &nfa.steps[at] {
            Step::Symbol { ranges, to } if has(ranges, symbol) => Some(*to),
            _ => None,
        });
        nfa.closure(&moved.collect::<Vec<_>>())
    };
    let dfa = Dfa::explore(class_of, first, next, |held| held.contains(&0))?;
    Ok(dfa.minimise())
}

/// Returns true if a symbol is in one of the ranges.
fn has(ranges: &[(u32, u32)], symbol: u32) -> bool {
    ranges.iter().any(|&(low, high)| (low..=high).contains(&symbol))
}

struct Nfa {
    /// Step 0 accepts.
    steps: Vec<Step>,
}

impl Nfa {
    fn push(&mut self, step: Step) -> Result<usize> {
        if self.steps.len() == MOST_STEPS {
            return Err(Error::option("the pattern is too large: use smaller repetitions"));
        }
        self.steps.push(step);
        Ok(self.steps.len() - 1)
    }

    /// Adds a pattern after which `then` follows; returns where it begins.
    fn add(&mut self, pattern: &Pattern, then: usize) -> Result<usize> {
        match pattern {
            Pattern::Symbol(ranges) => self.push(Step::Symbol { ranges: ranges.clone(), to: then }),
            Pattern::All(parts) => parts.iter().rev().try_fold(then, |then, part| self.add(part, then)),
            Pattern::Any(parts) => {
                let ways = parts.iter().map(|part| self.add(part, then)).collect::<Result<Vec<_>>>()?;
                self.push(Step::Fork(ways))
            }
            Pattern::Repeat { what, least, most } => {
                let mut at = then;
                match most {
                    None => {
                        // A fork that `what` comes back to.
                        at = self.push(Step::Fork(Vec::new()))?;
                        let again = self.add(what, at)?;
                        self.steps[at] = Step::Fork(vec![again, then]);
                    }
                    Some(most) => {
                        for _ in *least..*most {
                            let once = self.add(what, at)?;
                            at = self.push(Step::Fork(vec![once, then]))?;
                        }
                    }
                }
                (0..*least).try_fold(at, |at, _| self.add(what, at))
            }
        }
    }

    /// All steps that are held when these are; sorted, and only those that read a symbol or accept.
    fn closure(&self, from: &[usize]) -> Vec<usize> {
        let mut seen = vec![false; self.steps.len()];
        let mut waiting = from.to_vec();
        let mut held = Vec::new();
        while let Some(at) = waiting.pop() {
            if std::mem::replace(&mut seen[at], true) {
                continue;
            }
            match &self.steps[at] {
                Step::Fork(ways) => waiting.extend(ways),
                _ => held.push(at),
            }
        }
        held.sort_unstable();
        held
    }

    /// The class of every symbol, and a symbol of every class: between two bounds of ranges no step tells them apart.
    fn classes(&self, num_symbols: usize) -> (Vec<u32>, Vec<u32>) {
        let mut begins = vec![false; num_symbols + 1];
        for step in &self.steps {
            if let Step::Symbol { ranges, .. } = step {
                for &(low, high) in ranges {
                    begins[(low as usize).min(num_symbols)] = true;
                    begins[(high as usize).saturating_add(1).min(num_symbols)] = true;
                }
            }
        }
        let mut symbols = Vec::new();
        let class_of = (0..num_symbols).map(|symbol| {
            if symbol == 0 || begins[symbol] {
                symbols.push(symbol as u32);
            }
            symbols.len() as u32 - 1
        });
        (class_of.collect(), symbols)
    }
}
