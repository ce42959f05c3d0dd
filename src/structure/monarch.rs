//! Hidden Markov models whose transition is a Monarch matrix: two block-diagonal factors with a transpose between.
//!
//! With K = b1·b2 states a dense transition has K² weights; this one has K·(b1 + b2), so that K in the thousands is
//! affordable. A state is a pair s = (k, i), numbered k·b2 + i with k < b1 and i < b2, and
//!
//! P(next = (h, j) | now = (k, i)) = W0\[i\]\[k, h\] · W1\[h\]\[i, j\]:
//!
//! first k moves to h within the states that share i, then i moves to j within those that share h. Every state
//! reaches every other, and rows sum to one because those of the factors do.

use std::sync::Arc;

use super::at_least_one;
use crate::circuit::{Circuit, CircuitBuilder, Distribution, Factor, NodeId, ParamId, Slice, SumGroup};
use crate::error::{Error, Result};

/// A homogeneous hidden Markov model over `length` variables with `factors.0 × factors.1` states.
///
/// Parameter blocks, in order of declaration: the emissions; `factors.1` blocks W0\[i\] of b1×b1; `factors.0` blocks
/// W1\[h\] of b2×b2; the initial distribution. All are shared by all steps. A sequence of one variable has only
/// emissions and initial distribution.
#[expect(clippy::needless_pass_by_value, reason = "callers hand over a fresh `Arc`, as to the builder")]
pub fn monarch_hmm(length: usize, factors: (usize, usize), distribution: Arc<dyn Distribution>) -> Result<Circuit> {
    at_least_one("length", length)?;
    let (b1, b2) = factors;
    if b1 < 2 || b2 < 2 {
        return Err(Error::option(format!(
            "factors = ({b1}, {b2}): both must be at least 2; a single factor is a dense transition"
        )));
    }
    let mut circuit = CircuitBuilder::new(length);
    let emissions = circuit.input_param(b1 * b2, distribution.clone())?;
    let mut transition = None;
    if length > 1 {
        let w0 = (0..b2).map(|_| circuit.sum_param(b1, b1)).collect::<Result<Vec<_>>>()?;
        let w1 = (0..b1).map(|_| circuit.sum_param(b2, b2)).collect::<Result<Vec<_>>>()?;
        transition = Some((w0, w1));
    }
    let initial = circuit.sum_param(1, b1 * b2)?;

    let mut suffix = circuit.input(length - 1, emissions)?;
    if let Some((w0, w1)) = transition {
        // Unit (i, h) of the one takes unit (h, i) of the other, and back.
        let to_i_major: Arc<[u32]> = transpose(b1, b2);
        let to_k_major: Arc<[u32]> = transpose(b2, b1);
        for step in (0..length - 1).rev() {
            let within_h = block_diagonal(&mut circuit, suffix, b2, &w1)?; // (h, i) = Σ_j W1[h][i, j]·(h, j)
            let turned = circuit.mapped_product(vec![Factor { node: within_h, map: Some(to_i_major.clone()) }])?;
            let within_i = block_diagonal(&mut circuit, turned, b1, &w0)?; // (i, k) = Σ_h W0[i][k, h]·(i, h)
            let emission = circuit.input(step, emissions)?;
            suffix = circuit.mapped_product(vec![
                Factor { node: emission, map: None },
                Factor { node: within_i, map: Some(to_k_major.clone()) },
            ])?;
        }
    }
    circuit.sum(&[suffix], initial)?;
    circuit.finish()
}

/// The factorisation of `latents` that is nearest to a square, smaller factor first, both above 1.
pub fn factor_latents(latents: usize) -> Result<(usize, usize)> {
    let small = (2..=latents.isqrt()).rev().find(|small| latents.is_multiple_of(*small));
    small.map(|small| (small, latents / small)).ok_or_else(|| {
        // The neighbours of a prime above 4 are even and at least 4, so both can be factored.
        let (why, nearest) = match latents {
            0..4 => ("too few", "4".to_string()),
            _ => ("a prime", format!("{} and {}", latents - 1, latents + 1)),
        };
        Error::option(format!(
            "latents = {latents}: is {why} and has no two factors above 1; the nearest that has: {nearest}"
        ))
    })
}

/// The map of a product whose unit (column, row) takes unit (row, column) of a `rows × cols` vector.
fn transpose(rows: usize, cols: usize) -> Arc<[u32]> {
    (0..cols).flat_map(|col| (0..rows).map(move |row| (row * cols + col) as u32)).collect()
}

/// A sum whose group `g` mixes the `g`-th `size` units of the child.
fn block_diagonal(circuit: &mut CircuitBuilder, child: NodeId, size: usize, blocks: &[ParamId]) -> Result<NodeId> {
    let group = |(g, &param): (usize, &ParamId)| SumGroup {
        children: vec![Slice { node: child, start: g * size, units: size }],
        param,
    };
    circuit.grouped_sum(blocks.iter().enumerate().map(group).collect())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::hmm;
    use super::super::testing::{assert_normalised, probability, worlds};
    use super::*;
    use crate::circuit::{Categorical, Params};
    use crate::error::ErrorKind;

    /// The dense transition by the formula of the module, `[state now][state next]`.
    fn dense_transition(params: &Params, ids: &[ParamId], (b1, b2): (usize, usize)) -> Vec<Vec<f64>> {
        let (w0, w1) = (&ids[1..1 + b2], &ids[1 + b2..1 + b2 + b1]);
        let weight = |now: usize, next: usize| {
            let ((k, i), (h, j)) = ((now / b2, now % b2), (next / b2, next % b2));
            f64::from(params.row(w0[i], k)[h]) * f64::from(params.row(w1[h], i)[j])
        };
        (0..b1 * b2).map(|now| (0..b1 * b2).map(|next| weight(now, next)).collect()).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(12))]

        #[test]
        fn it_is_the_dense_hmm_of_its_formula(b1 in 2usize..5, b2 in 2usize..5, length in 2usize..5, seed: u64) {
            let circuit = monarch_hmm(length, (b1, b2), Categorical::new(2).unwrap()).unwrap();
            let params = Params::random(&circuit, seed, 3.0).unwrap();
            let ids: Vec<_> = circuit.param_ids().collect();
            let transition = dense_transition(&params, &ids, (b1, b2));
            for row in &transition {
                // Two f32 rows, each summing to one within a few 1e-7.
                prop_assert!((row.iter().sum::<f64>() - 1.0).abs() < 1e-6);
            }
            let dense = hmm(length, b1 * b2, Categorical::new(2).unwrap()).unwrap();
            let dense_params = Params::from_rows(&dense, |id, unit| match id.index() {
                0 => params.row(ids[0], unit),
                1 => transition[unit].iter().map(|&w| w as f32).collect(),
                _ => params.row(*ids.last().unwrap(), unit),
            });
            let dense_params = dense_params.unwrap();
            for world in worlds(length, 2) {
                let ours = probability(&circuit, &params, &world);
                let wanted = probability(&dense, &dense_params, &world);
                // The dense transition was rounded to f32.
                prop_assert!((ours - wanted).abs() < 1e-6, "{} is not {}", ours, wanted);
            }
        }
    }

    #[test]
    fn a_sequence_of_one_has_no_transition() {
        let circuit = monarch_hmm(1, (2, 3), Categorical::new(4).unwrap()).unwrap();
        assert_eq!(circuit.params().len(), 2);
        assert_normalised(&circuit, 4);
    }

    #[test]
    fn the_factorisation_is_the_most_square_one() {
        for (latents, factors) in
            [(4, (2, 2)), (6, (2, 3)), (36, (6, 6)), (1024, (32, 32)), (512, (16, 32)), (35, (5, 7))]
        {
            assert_eq!(factor_latents(latents).unwrap(), factors);
        }
    }

    #[test]
    fn what_has_no_factors_is_refused_with_the_nearest_that_has() {
        for (latents, words) in
            [(0, "nearest that has: 4"), (3, "nearest that has: 4"), (13, "12 and 14"), (5, "4 and 6")]
        {
            let error = factor_latents(latents).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Option);
            assert!(error.to_string().contains(words), "{error}");
        }
        let error = monarch_hmm(3, (1, 4), Categorical::new(2).unwrap()).unwrap_err();
        assert!(error.to_string().contains("factors = (1, 4)"), "{error}");
        assert!(monarch_hmm(0, (2, 2), Categorical::new(2).unwrap()).is_err());
    }
}
