//! Hidden Markov models.
//!
//! A latent state of `latents` values walks along the sequence and emits one variable at each step. The circuit is
//! written from the last variable to the first: the vector of step `t` holds p(x_t, … , x_last | state of t).

use std::sync::Arc;

use super::at_least_one;
use crate::circuit::{Circuit, CircuitBuilder, Distribution};
use crate::error::Result;

/// Whether the steps of a sequence share their parameters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tying {
    /// One emission and one transition block for all steps.
    #[default]
    Homogeneous,
    /// Every step has blocks of its own.
    Inhomogeneous,
}

/// A hidden Markov model over `length` variables with `latents` states.
///
/// Parameter blocks, in order of declaration: the emissions (`latents` distributions), the transitions (row = state
/// now, column = state next), the initial distribution (one row): one block each, 0, 1 and 2. A sequence of one
/// variable has no transition block.
///
/// ```
/// use anemone::circuit::Categorical;
/// use anemone::structure::hmm;
///
/// let circuit = hmm(128, 16, Categorical::new(256)?)?;
/// assert_eq!((circuit.num_vars(), circuit.params().len()), (128, 3));
/// # Ok::<(), anemone::Error>(())
/// ```
pub fn hmm(length: usize, latents: usize, distribution: Arc<dyn Distribution>) -> Result<Circuit> {
    hmm_with(length, latents, distribution, Tying::Homogeneous)
}

/// [`hmm`] whose steps share their parameters or do not. Blocks of an inhomogeneous one: emissions of variables
/// `0..length`, transitions out of steps `0..length-1`, then the initial one.
#[expect(clippy::needless_pass_by_value, reason = "callers hand over a fresh `Arc`, as to the builder")]
pub fn hmm_with(length: usize, latents: usize, distribution: Arc<dyn Distribution>, tying: Tying) -> Result<Circuit> {
    hmm_of(length, latents, |_| distribution.clone(), tying)
}

/// The same with a distribution for each emission block: of every variable, or of the first for all if they are tied.
pub fn hmm_of(
    length: usize,
    latents: usize,
    distribution: impl Fn(usize) -> Arc<dyn Distribution>,
    tying: Tying,
) -> Result<Circuit> {
    at_least_one("length", length)?;
    at_least_one("latents", latents)?;
    let mut circuit = CircuitBuilder::new(length);
    // Blocks of their own for every step, or one for all; `tied` then maps every step to the only block.
    let tied = |step: usize| if tying == Tying::Homogeneous { 0 } else { step };
    let blocks = |steps: usize| if steps == 0 { 0 } else { tied(steps - 1) + 1 };
    let emissions: Vec<_> =
        (0..blocks(length)).map(|var| circuit.input_param(latents, distribution(var))).collect::<Result<_>>()?;
    let transitions: Vec<_> =
        (0..blocks(length - 1)).map(|_| circuit.sum_param(latents, latents)).collect::<Result<_>>()?;
    let initial = circuit.sum_param(1, latents)?;

    let mut suffix = circuit.input(length - 1, emissions[tied(length - 1)])?;
    for step in (0..length - 1).rev() {
        let next = circuit.sum(&[suffix], transitions[tied(step)])?;
        let emission = circuit.input(step, emissions[tied(step)])?;
        suffix = circuit.product(&[emission, next])?;
    }
    circuit.sum(&[suffix], initial)?;
    circuit.finish()
}

#[cfg(test)]
mod tests {
    use super::super::testing::{assert_normalised, describe, describe_reference, probability, reference, worlds};
    use super::*;
    use crate::circuit::{Categorical, Params};
    use crate::error::ErrorKind;

    /// p(row) by the forward algorithm, with parameter blocks where the documentation of [`hmm`] puts them.
    fn forward(params: &Params, row: &[Option<f64>], latents: usize, tying: Tying) -> f64 {
        let ids: Vec<_> = {
            let circuit = hmm_with(row.len(), latents, Categorical::new(2).unwrap(), tying).unwrap();
            circuit.param_ids().collect()
        };
        let (emission, transition) = match tying {
            Tying::Homogeneous => (vec![ids[0]; row.len()], vec![ids[1]; row.len()]),
            Tying::Inhomogeneous => (ids[..row.len()].to_vec(), ids[row.len()..].to_vec()),
        };
        let initial = *ids.last().unwrap();
        let emit = |t: usize, s: usize| f64::from(params.row(emission[t], s)[row[t].unwrap() as usize]);
        let mut state: Vec<f64> = (0..latents).map(|s| f64::from(params.row(initial, 0)[s]) * emit(0, s)).collect();
        for t in 1..row.len() {
            let step = |next: usize| {
                let into: f64 =
                    (0..latents).map(|now| state[now] * f64::from(params.row(transition[t - 1], now)[next])).sum();
                into * emit(t, next)
            };
            state = (0..latents).map(step).collect();
        }
        state.iter().sum()
    }

    #[test]
    fn the_circuit_is_the_forward_algorithm() {
        for tying in [Tying::Homogeneous, Tying::Inhomogeneous] {
            let circuit = hmm_with(4, 3, Categorical::new(2).unwrap(), tying).unwrap();
            let params = Params::random(&circuit, 2, 2.0).unwrap();
            for world in worlds(4, 2) {
                let (ours, wanted) = (probability(&circuit, &params, &world), forward(&params, &world, 3, tying));
                assert!((ours - wanted).abs() < 1e-12, "{tying:?}: {ours} is not {wanted}");
            }
        }
    }

    #[test]
    fn a_sequence_of_one_is_a_mixture_without_a_transition() {
        for tying in [Tying::Homogeneous, Tying::Inhomogeneous] {
            let circuit = hmm_with(1, 3, Categorical::new(4).unwrap(), tying).unwrap();
            assert_eq!(circuit.params().len(), 2);
            assert_normalised(&circuit, 4);
        }
    }

    #[test]
    fn the_structure_is_that_of_the_reference() {
        for (name, length, tying) in [("hmm", 8, Tying::Homogeneous), ("hmm_inhomogeneous", 5, Tying::Inhomogeneous)] {
            let circuit = hmm_with(length, 4, Categorical::new(7).unwrap(), tying).unwrap();
            // The reference wraps a lone input in a one-factor product before it sums it.
            let wanted = describe_reference(&reference(name))
                .replace(&format!("(x{})", length - 1), &format!("x{}", length - 1));
            assert_eq!(describe(&circuit), wanted);
        }
    }

    #[test]
    fn nothing_to_model_is_refused() {
        let coin = || Categorical::new(2).unwrap();
        for (result, words) in [
            (hmm(0, 2, coin()), "length = 0: must be at least 1"),
            (hmm(2, 0, coin()), "latents = 0: must be at least 1"),
        ] {
            let error = result.unwrap_err();
            assert_eq!((error.kind(), error.to_string().as_str()), (ErrorKind::Option, words));
        }
    }
}
