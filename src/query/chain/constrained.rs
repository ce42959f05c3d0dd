//! A chain under a constraint: exact p(constraint | prefix), next symbols and samples given that it is met.
//!
//! A table goes backwards over (position, state of the automaton, hidden state). What a step needs of the emissions is
//! how much of them leads from one state of the automaton to another, and that is added up once, in one pass over
//! states × symbols; a next-symbol question is one more such pass, whatever the number of states. Only states that the
//! automaton can be in at a position, and that can still be accepted, are kept. Tables are logarithms, so that no
//! constraint is too improbable. docs/MATH.md, "Constraints on chains".

use std::collections::BTreeMap;
use std::sync::Arc;

use rayon::prelude::*;

use super::transition::log_sum;
use super::{Chain, Filtered};
use crate::circuit::ParamId;
use crate::error::{Error, Result};
use crate::query::dfa::Dfa;
use crate::rng::{Rng, pick};

/// Bytes that the tables of one constraint may take.
const MOST_BYTES: usize = 4 << 30;

/// A chain and a constraint on its first `length` symbols.
///
/// ```
/// use anemone::circuit::{Categorical, Params};
/// use anemone::query::chain::{Chain, Constrained};
/// use anemone::query::dfa::{Order, contains};
/// use anemone::structure::hmm;
///
/// let circuit = hmm(6, 3, Categorical::new(5)?)?;
/// let params = Params::random(&circuit, 1, 2.0)?;
/// let chain = Chain::of(&circuit, &params)?;
/// let constrained = Constrained::new(chain, contains(&[vec![4, 0]], 5, Order::AsListed)?, 6)?;
/// assert!(constrained.log_probability(&[1])? < 0.0);
/// for row in constrained.sample(&[1], 10, 7)? {
///     assert!(row[0] == 1 && row.windows(2).any(|pair| pair == [4, 0]));
/// }
/// # Ok::<(), anemone::Error>(())
/// ```
pub struct Constrained<'a> {
    chain: Chain<'a>,
    dfa: Dfa,
    length: usize,
    /// Of positions `0..=length`.
    places: Vec<Place>,
    /// Of positions `0..length`; the same ones where the chain is homogeneous.
    edges: Vec<Arc<Edges>>,
}

/// What can be at a position: before its symbol is read.
struct Place {
    /// Where a state of the automaton lies in the tables; `NOWHERE` where the constraint cannot be met any more.
    slot: Vec<u32>,
    /// log W: p(constraint | automaton in s, hidden state z at this position), `[slots × states]`.
    here: Vec<f64>,
    /// log N: the same given the hidden state at the position before: `[slots × states]`, empty at position 0.
    after: Vec<f64>,
}

const NOWHERE: u32 = u32::MAX;

/// How much of the emissions leads from one state of the automaton to another: for each state (successor, p(symbols
/// that lead there | hidden state)), successors in order.
struct Edges(Vec<Vec<(usize, Vec<f64>)>>);

/// Where a prefix has led.
struct At {
    position: usize,
    state: usize,
    filtered: Filtered,
}

impl<'a> Constrained<'a> {
    /// Fills the tables. The constraint is on sequences of `length` symbols; a chain whose steps share their parameters
    /// takes any length, others at most that of their circuit.
    pub fn new(chain: Chain<'a>, dfa: Dfa, length: usize) -> Result<Self> {
        if dfa.num_symbols() != chain.num_symbols() {
            return Err(Error::option(format!(
                "a constraint over {} symbols for a chain over {}",
                dfa.num_symbols(),
                chain.num_symbols()
            )));
        }
        if length == 0 {
            return Err(Error::option("length = 0: must be at least 1"));
        }
        chain.check_length(length)?;
        let fits = |bytes: usize| match bytes <= MOST_BYTES {
            true => Ok(()),
            false => Err(Error::option(format!(
                "the constraint has {} states, and its tables over {length} positions and {} hidden states would take \
                 {} MiB; use a smaller constraint or fewer symbols",
                dfa.num_states(),
                chain.num_states(),
                bytes >> 20
            ))),
        };
        fits(length.saturating_mul(64 + 5 * dfa.num_states()))?; // what it takes to find out which states are kept
        let slots = slots(&dfa, length);
        let num_slots: usize = slots.iter().map(|slot| slot.iter().filter(|&&slot| slot != NOWHERE).count()).sum();
        fits(num_slots.saturating_mul(chain.num_states() * 16))?;
        let edges = edges(&chain, &dfa, length);
        let places = places(&chain, &dfa, slots, &edges);
        Ok(Self { chain, dfa, length, places, edges })
    }

    /// The constraint.
    pub fn dfa(&self) -> &Dfa {
        &self.dfa
    }

    /// How many symbols a sequence has.
    pub fn length(&self) -> usize {
        self.length
    }

    /// log p(constraint | prefix), in nats; −∞ where it cannot be met.
    pub fn log_probability(&self, prefix: &[u32]) -> Result<f64> {
        let at = self.follow(prefix)?;
        if at.position == self.length {
            return Ok(if self.dfa.is_accepting(at.state) { 0.0 } else { f64::NEG_INFINITY });
        }
        let log_p = self.places[at.position]
            .here(at.state, self.chain.num_states())
            .map_or(f64::NEG_INFINITY, |here| log_sum(at.filtered.log_state.iter().zip(here).map(|(p, w)| p + w)));
        Ok(log_p.min(0.0)) // parameters sum to one to their rounding only
    }

    /// p(next symbol | prefix, constraint) of every symbol. A constraint that cannot be met is an error.
    pub fn next(&self, prefix: &[u32]) -> Result<Vec<f64>> {
        let at = self.before_the_end(prefix)?;
        let mut joint = self.joint(&at, 0.0, |_, joint, _| joint);
        let total: f64 = joint.par_chunks(4096).map(|part| part.iter().sum::<f64>()).collect::<Vec<_>>().iter().sum();
        if total.is_nan() || total <= 0.0 {
            return Err(self.unmet(prefix));
        }
        joint.iter_mut().for_each(|p| *p /= total);
        Ok(joint)
    }

    /// p(constraint | prefix, next symbol) of every symbol: what the next-symbol probabilities of another model, such
    /// as a language model, are multiplied with. Zero for a symbol that is impossible after the prefix, or nearly so
    /// (below 1e-38), and where f64 has no smaller number; [`log_chances`](Self::log_chances) has.
    pub fn chances(&self, prefix: &[u32]) -> Result<Vec<f64>> {
        let mut chances = self.log_chances(prefix)?;
        chances.par_chunks_mut(4096).for_each(|part| part.iter_mut().for_each(|p| *p = p.exp()));
        Ok(chances)
    }

    /// The logarithms of [`chances`](Self::chances), in nats, however small; −∞ for zero.
    pub fn log_chances(&self, prefix: &[u32]) -> Result<Vec<f64>> {
        let at = self.before_the_end(prefix)?;
        let state: Vec<f32> = at.filtered.log_state.iter().map(|p| p.exp() as f32).collect();
        Ok(self.joint(&at, f64::NEG_INFINITY, |emitted, joint, scale| {
            let alone = f64::from(dot(emitted, &state));
            if alone > 0.0 { ((joint / alone).ln() + scale).min(0.0) } else { f64::NEG_INFINITY }
        }))
    }

    /// Draws `num_samples` sequences of `length` symbols that begin with the prefix and meet the constraint, from their
    /// exact distribution. A seed draws the same ones on any number of threads.
    pub fn sample(&self, prefix: &[u32], num_samples: usize, seed: u64) -> Result<Vec<Vec<u32>>> {
        let at = self.follow(prefix)?;
        if at.position == self.length {
            let met = self.dfa.is_accepting(at.state);
            return if met { Ok(vec![prefix.to_vec(); num_samples]) } else { Err(self.unmet(prefix)) };
        }
        if self.log_probability(prefix)? == f64::NEG_INFINITY {
            return Err(self.unmet(prefix));
        }
        let walks: Vec<Vec<Draw>> =
            (0..num_samples as u64).into_par_iter().map(|k| self.walk(&at, &mut Rng::stream(seed, k))).collect();
        let symbols: Vec<Vec<u32>> = walks
            .par_chunks(8)
            .flat_map_iter(|walks| {
                let mut rows = vec![prefix.to_vec(); walks.len()];
                for position in at.position..self.length {
                    let draws: Vec<&Draw> = walks.iter().map(|walk| &walk[position - at.position]).collect();
                    let drawn = self.draw_symbols(position, &draws);
                    rows.iter_mut().zip(drawn).for_each(|(row, symbol)| row.push(symbol));
                }
                rows
            })
            .collect();
        Ok(symbols)
    }

    /// The filter and the automaton after a prefix.
    fn follow(&self, prefix: &[u32]) -> Result<At> {
        if prefix.len() > self.length {
            return Err(Error::option(format!(
                "the prefix has {} symbols, and the constraint is on {}",
                prefix.len(),
                self.length
            )));
        }
        let filtered = self.chain.filter(prefix).map_err(|e| e.at("the prefix"))?;
        Ok(At { position: prefix.len(), state: self.dfa.run(self.dfa.start(), prefix), filtered })
    }

    fn before_the_end(&self, prefix: &[u32]) -> Result<At> {
        if prefix.len() == self.length {
            return Err(Error::option(format!("the prefix has all {} symbols: there is no next one", self.length)));
        }
        self.follow(prefix)
    }

    fn unmet(&self, prefix: &[u32]) -> Error {
        Error::option(format!(
            "the constraint cannot be met in {} symbols that begin with the {} of the prefix: allow more symbols, or \
             ask for less",
            self.length,
            prefix.len()
        ))
    }

    /// p(symbol, constraint | prefix) of every symbol v, up to one factor: Σ_z p(z | prefix)·E[z, v]·N(δ(s, v), z). The
    /// vectors u(s') = p(z | prefix)·N(s', z) are made for each successor once; then it is one dot product per symbol.
    /// `see` is told the emissions of v, that number and the logarithm of the factor that was left out; a symbol after
    /// which the constraint cannot be met has `otherwise`.
    fn joint(&self, at: &At, otherwise: f64, see: impl Fn(&[f32], f64, f64) -> f64 + Sync) -> Vec<f64> {
        let states = self.chain.num_states();
        let place = &self.places[at.position + 1];
        let mut found: BTreeMap<usize, usize> = BTreeMap::new();
        let mut wide: Vec<f64> = Vec::new();
        let of_class: Vec<Option<usize>> = (0..self.dfa.num_classes())
            .map(|class| {
                let next = self.dfa.next_of_class(at.state, class);
                let after = place.after(next, states)?;
                Some(*found.entry(next).or_insert_with(|| {
                    wide.extend(at.filtered.log_state.iter().zip(after).map(|(p, n)| p + n));
                    wide.len() / states - 1
                }))
            })
            .collect();
        // The largest becomes one, so that f32 has room for what counts.
        let scale = wide.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let scale = if scale == f64::NEG_INFINITY { 0.0 } else { scale };
        let vectors: Vec<f32> = wide.iter().map(|u| (u - scale).exp() as f32).collect();
        let table = self.chain.emissions(at.position);
        let mut answer = vec![otherwise; self.chain.num_symbols()];
        const TOGETHER: usize = 1024;
        answer.par_chunks_mut(TOGETHER).enumerate().for_each(|(piece, answer)| {
            let first = piece * TOGETHER;
            for (offset, p) in answer.iter_mut().enumerate() {
                let symbol = first + offset;
                if let Some(vector) = of_class[self.dfa.class_of(symbol as u32)] {
                    let emitted = &table[symbol * states..][..states];
                    let joint = f64::from(dot(emitted, &vectors[vector * states..][..states]));
                    *p = see(emitted, joint, scale);
                }
            }
        });
        answer
    }

    /// Hidden states and states of the automaton of one sample; its symbols have their random points only.
    fn walk(&self, at: &At, rng: &mut Rng) -> Vec<Draw> {
        let states = self.chain.num_states();
        let mut walk = Vec::with_capacity(self.length - at.position);
        let (mut hidden, mut state) = (at.filtered.log_state.clone(), at.state);
        for position in at.position..self.length {
            let here = self.places[position].here(state, states).expect("a walk stays where the constraint can be met");
            let chosen = rng.weighted(from_logs(hidden.iter().zip(here).map(|(p, w)| p + w).collect()).into_iter());
            // A successor of the automaton, in proportion to its share of the emissions and to what it is worth.
            let ways = &self.edges[position].0[state];
            let worth = |(next, mass): &(usize, Vec<f64>)| {
                let after = self.places[position + 1].after(*next, states);
                after.map_or(f64::NEG_INFINITY, |after| mass[chosen].ln() + after[chosen])
            };
            let next = ways[rng.weighted(from_logs(ways.iter().map(worth).collect()).into_iter())].0;
            walk.push(Draw { hidden: chosen, state, next, point: rng.uniform() });
            if position + 1 < self.length {
                hidden = self.chain.transition_row(position, chosen);
                hidden.iter_mut().for_each(|p| *p = p.ln());
            }
            state = next;
        }
        walk
    }

    /// The symbols of some draws at one position: each in proportion to its probability among those that lead on.
    fn draw_symbols(&self, position: usize, draws: &[&Draw]) -> Vec<u32> {
        let states = self.chain.num_states();
        let table = self.chain.emissions(position);
        let symbols_of = |draw: &Draw| {
            let leads = (0..self.dfa.num_classes()).map(|class| self.dfa.next_of_class(draw.state, class) == draw.next);
            let leads: Vec<bool> = leads.collect();
            let weight = |symbol: usize| match leads[self.dfa.class_of(symbol as u32)] {
                true => f64::from(table[symbol * states + draw.hidden]),
                false => 0.0,
            };
            let weights: Vec<f64> = (0..self.chain.num_symbols()).map(weight).collect();
            let total: f64 = weights.iter().sum();
            pick(draw.point * total, weights.into_iter()) as u32
        };
        draws.iter().map(|draw| symbols_of(draw)).collect()
    }
}

/// A symbol that is not drawn yet: all that decides it.
struct Draw {
    hidden: usize,
    state: usize,
    next: usize,
    point: f64,
}

impl Place {
    fn here(&self, state: usize, states: usize) -> Option<&[f64]> {
        row(&self.here, self.slot[state], states)
    }

    fn after(&self, state: usize, states: usize) -> Option<&[f64]> {
        row(&self.after, self.slot[state], states)
    }
}

fn row(table: &[f64], slot: u32, states: usize) -> Option<&[f64]> {
    (slot != NOWHERE).then(|| &table[slot as usize * states..][..states])
}

/// Of every position, where the states lie that the automaton can be in and that can still be accepted.
fn slots(dfa: &Dfa, length: usize) -> Vec<Vec<u32>> {
    let all = |state: usize| (0..dfa.num_classes()).map(move |class| dfa.next_of_class(state, class));
    let mut reached = vec![vec![false; dfa.num_states()]; length + 1];
    reached[0][dfa.start()] = true;
    for position in 0..length {
        for state in (0..dfa.num_states()).filter(|&state| reached[position][state]).collect::<Vec<_>>() {
            all(state).for_each(|next| reached[position + 1][next] = true);
        }
    }
    let mut alive: Vec<bool> = (0..dfa.num_states()).map(|state| dfa.is_accepting(state)).collect();
    let mut slots = Vec::with_capacity(length + 1);
    for position in (0..=length).rev() {
        if position < length {
            alive = (0..dfa.num_states()).map(|state| all(state).any(|next| alive[next])).collect();
        }
        let mut number = 0..;
        let slot = |state: usize| (reached[position][state] && alive[state]).then(|| number.next()).flatten();
        slots.push((0..dfa.num_states()).map(slot).map(|slot| slot.unwrap_or(NOWHERE)).collect());
    }
    slots.reverse();
    slots
}

/// The edges of every position; a table that several positions share is read once.
fn edges(chain: &Chain<'_>, dfa: &Dfa, length: usize) -> Vec<Arc<Edges>> {
    let mut known: BTreeMap<ParamId, Arc<Edges>> = BTreeMap::new();
    let table_of = |position: usize| chain.emissions[if chain.emissions.len() == 1 { 0 } else { position }];
    let mut of = |position: usize| {
        known.entry(table_of(position)).or_insert_with(|| Arc::new(Edges::new(chain, dfa, position))).clone()
    };
    (0..length).map(&mut of).collect()
}

impl Edges {
    fn new(chain: &Chain<'_>, dfa: &Dfa, position: usize) -> Self {
        let states = chain.num_states();
        // The one pass over the table: how much of each state's emissions is in each class, `[classes × states]`.
        let mut mass = vec![0.0f64; dfa.num_classes() * states];
        for (symbol, emitted) in chain.emissions(position).chunks_exact(states).enumerate() {
            let mass = &mut mass[dfa.class_of(symbol as u32) * states..][..states];
            mass.iter_mut().zip(emitted).for_each(|(mass, &e)| *mass += f64::from(e));
        }
        let of_state = |state: usize| {
            let mut ways: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
            for (class, mass) in mass.chunks_exact(states).enumerate() {
                let way = ways.entry(dfa.next_of_class(state, class)).or_insert_with(|| vec![0.0; states]);
                way.iter_mut().zip(mass).for_each(|(way, mass)| *way += mass);
            }
            ways.into_iter().collect()
        };
        Self((0..dfa.num_states()).into_par_iter().map(of_state).collect())
    }
}

/// The tables, from the last position to the first.
fn places(chain: &Chain<'_>, dfa: &Dfa, slots: Vec<Vec<u32>>, edges: &[Arc<Edges>]) -> Vec<Place> {
    let (states, length) = (chain.num_states(), edges.len());
    let mut places: Vec<Place> = Vec::with_capacity(length + 1);
    for (position, slot) in slots.into_iter().enumerate().rev() {
        let kept: Vec<usize> = (0..dfa.num_states()).filter(|&state| slot[state] != NOWHERE).collect();
        let Some(later) = places.last() else {
            // Behind the last symbol everything that is kept is accepted.
            let after = vec![0.0; kept.len() * states];
            places.push(Place { slot, here: Vec::new(), after });
            continue;
        };
        // W(s, z) = Σ_s' p(symbols from s to s' | z)·N'(s', z), and N(s, z) = Σ_z' A[z, z']·W(s, z').
        let rows = |state: &usize| {
            let ways = edges[position].0[*state].iter();
            let ways: Vec<(&[f64], &[f64])> =
                ways.filter_map(|(next, mass)| Some((&mass[..], later.after(*next, states)?))).collect();
            let here: Vec<f64> =
                (0..states).map(|z| log_sum(ways.iter().map(|(mass, after)| mass[z].ln() + after[z]))).collect();
            let after = match position.checked_sub(1) {
                Some(before) => chain.transition(before).log_pull(chain.params, &here),
                None => Vec::new(),
            };
            (here, after)
        };
        let rows: Vec<(Vec<f64>, Vec<f64>)> = kept.par_iter().map(rows).collect();
        let (here, after): (Vec<Vec<f64>>, Vec<Vec<f64>>) = rows.into_iter().unzip();
        places.push(Place { slot, here: here.concat(), after: after.concat() });
    }
    places.reverse();
    places
}

/// What is in proportion to these logarithms, the largest one.
fn from_logs(mut logs: Vec<f64>) -> Vec<f64> {
    let largest = logs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    logs.iter_mut().for_each(|log| *log = (*log - largest).exp());
    logs
}

/// In sixteen lanes, so that it runs side by side; the order of addition is fixed.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    const LANES: usize = 16;
    let mut lanes = [0.0f32; LANES];
    let (left, right) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
    let rest: f32 = left.remainder().iter().zip(right.remainder()).map(|(a, b)| a * b).sum();
    for (a, b) in left.zip(right) {
        (0..LANES).for_each(|lane| lanes[lane] += a[lane] * b[lane]);
    }
    lanes.iter().sum::<f32>() + rest
}
