//! A start for sequences: every state begins with the frequencies of the data, far from its neighbours.
//!
//! From weights that are nearly alike a hidden Markov model learns the frequencies first, and what tells states apart
//! epochs later. Here tables begin as frequencies times noise. The noise is that of the parameters, which the caller
//! draws with a large perturbation: it is what breaks the symmetry, in tables and transitions alike. Transitions do not
//! begin near the identity, as the sums of trees do: a state that stays is the wrong guess for text. The formulas are
//! in `docs/MATH.md`, "A start from rows". For densities `densities` does the part of the tables.

use super::row_start::{ROWS_OF_A_START, category};
use crate::circuit::{Circuit, NodeKind, ParamKind, Params};
use crate::data::Batch;
use crate::error::Result;

/// Multiplies all tables of a random start by the frequencies of their values: over all variables that share a table.
pub fn start_sequence(circuit: &Circuit, rows: &Batch, params: &mut Params) -> Result<()> {
    let num_rows = rows.num_rows().min(ROWS_OF_A_START);
    // The frequencies of every block that is a table and that a variable uses: θ[k, c] ∝ q(c)·exp(−p·U).
    let mut counts: Vec<Option<Vec<f64>>> = vec![None; circuit.params().len()];
    for node in circuit.nodes() {
        let NodeKind::Input { var, param } = node.kind else { continue };
        let ParamKind::Input(distribution) = &circuit.params()[param.index()].kind else { continue };
        if !distribution.is_table() {
            continue;
        }
        let cats = distribution.num_params();
        let counts = counts[param.index()].get_or_insert_with(|| vec![1.0 / cats as f64; cats]);
        let values = (0..num_rows).filter_map(|row| category(rows, row, var, cats));
        values.for_each(|cat| counts[cat] += 1.0);
    }
    for param in circuit.param_ids() {
        if let Some(counts) = &counts[param.index()] {
            params.reweigh(param, counts)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::{Tying, hmm_with, monarch_hmm};
    use super::*;
    use crate::circuit::{Categorical, ParamId};
    use crate::rng::Rng;

    const NUM_VARS: usize = 6;
    const CATS: usize = 40;

    /// Rows in which small values are common, and half of the values of odd variables are the last one.
    fn rows(num_rows: usize) -> Batch {
        let mut rng = Rng::new(4);
        let value = |at: usize| match rng.below(2) {
            0 if at % 2 == 1 => CATS as u8 - 1,
            _ => (rng.uniform().powi(2) * (CATS - 1) as f64) as u8,
        };
        let values: Vec<u8> = (0..num_rows * NUM_VARS).map(value).collect();
        Batch::from_rows(&values, NUM_VARS).unwrap()
    }

    fn dense(latents: usize, tying: Tying) -> Circuit {
        hmm_with(NUM_VARS, latents, Categorical::new(CATS as u32).unwrap(), tying).unwrap()
    }

    fn circuits() -> Vec<Circuit> {
        let monarch = monarch_hmm(NUM_VARS, (3, 4), Categorical::new(CATS as u32).unwrap()).unwrap();
        vec![dense(5, Tying::Homogeneous), dense(5, Tying::Inhomogeneous), monarch]
    }

    fn started(circuit: &Circuit, rows: &Batch, seed: u64) -> Params {
        let mut params = Params::random(circuit, seed, 8.0).unwrap();
        start_sequence(circuit, rows, &mut params).unwrap();
        params.check(circuit).unwrap();
        params
    }

    /// The frequencies of some variables, by the definition.
    fn frequencies(rows: &Batch, vars: impl Iterator<Item = usize>) -> Vec<f64> {
        let mut counts = vec![1.0 / CATS as f64; CATS];
        for var in vars {
            for row in (0..rows.num_rows().min(1024)).filter(|&row| !rows.is_missing(row, var)) {
                counts[rows.column(var).category(row).unwrap() as usize] += 1.0;
            }
        }
        let total: f64 = counts.iter().sum();
        counts.iter().map(|count| count / total).collect()
    }

    #[test]
    fn every_param_row_is_a_distribution_without_zeros_and_the_seed_decides_it() {
        for (at, circuit) in circuits().iter().enumerate() {
            let rows = rows(200).with_missing(|row, var| (row + var) % 7 == 0);
            let params = started(circuit, &rows, 3);
            for param in circuit.param_ids() {
                for unit in 0..circuit.layout().block(param).units() {
                    let row = params.row(param, unit);
                    let total: f32 = row.iter().sum();
                    assert!((total - 1.0).abs() < 1e-5, "circuit {at}, block {param}: {total}");
                    assert!(row.iter().all(|&p| p > 0.0), "circuit {at}, block {param}");
                }
            }
            assert_eq!(params, started(circuit, &rows, 3));
            assert_ne!(params, started(circuit, &rows, 4));
        }
    }

    #[test]
    fn a_table_is_its_noise_times_the_frequencies_of_the_variables_that_use_it() {
        // More rows than are looked at, and missing ones among them.
        let rows = rows(1500).with_missing(|row, var| (row + var) % 5 == 0);
        let mut later = rows.slice(0..1024);
        later.append(&rows.slice(0..300)).unwrap();
        for (circuit, block, vars) in [
            (dense(5, Tying::Homogeneous), 0, (0..NUM_VARS)),
            (dense(5, Tying::Inhomogeneous), 2, (2..3)),
            (dense(5, Tying::Inhomogeneous), 3, (3..4)),
        ] {
            let param: ParamId = circuit.param_ids().nth(block).unwrap();
            let (params, noise) = (started(&circuit, &rows, 1), Params::random(&circuit, 1, 8.0).unwrap());
            let q = frequencies(&rows, vars);
            for unit in 0..5 {
                let mut wanted: Vec<f64> =
                    noise.row(param, unit).iter().zip(&q).map(|(&p, q)| f64::from(p) * q).collect();
                let total: f64 = wanted.iter().sum();
                wanted.iter_mut().for_each(|p| *p /= total);
                let found = params.row(param, unit);
                // Rounded to f32 once before and once after.
                assert!(found.iter().zip(&wanted).all(|(&p, w)| (f64::from(p) - w).abs() < 1e-6 * w + 1e-9));
            }
            assert_eq!(params, started(&circuit, &later, 1), "only the first 1,024 rows count");
        }
    }

    #[test]
    fn over_many_states_tables_are_the_frequencies() {
        let rows = rows(1000);
        let circuit = dense(2000, Tying::Homogeneous);
        let param = circuit.param_ids().next().unwrap();
        let params = started(&circuit, &rows, 1);
        let q = frequencies(&rows, 0..NUM_VARS);
        let mean = |cat: usize| (0..2000).map(|unit| f64::from(params.row(param, unit)[cat])).sum::<f64>() / 2000.0;
        let apart: f64 = (0..CATS).map(|cat| (mean(cat) - q[cat]).abs()).sum::<f64>() / 2.0;
        let flat: f64 = q.iter().map(|q| (q - 1.0 / CATS as f64).abs()).sum::<f64>() / 2.0;
        // Every state is normalised on its own, which takes from values that are common.
        assert!(apart < 0.12 && flat > 0.25, "{apart}, where a flat table is {flat} away");
    }

    #[test]
    fn sums_keep_their_noise_and_no_rows_change_nothing() {
        for circuit in circuits() {
            let (noise, start) = (Params::random(&circuit, 1, 8.0).unwrap(), started(&circuit, &rows(50), 1));
            for param in circuit.param_ids() {
                let is_sum = matches!(circuit.params()[param.index()].kind, ParamKind::Sum { .. });
                assert_eq!(noise.row(param, 0) == start.row(param, 0), is_sum, "block {param}");
            }
            started(&circuit, &rows(2), 1);
            let none = started(&circuit, &rows(1).slice(0..0), 1);
            let same = |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-6 * b;
            assert!(none.values().iter().zip(noise.values()).all(same), "the frequencies of no rows are flat");
        }
    }

    #[test]
    fn a_perturbation_at_its_limit_leaves_no_zeros() {
        let circuit = dense(5, Tying::Homogeneous);
        let mut params = Params::random(&circuit, 1, 80.0).unwrap();
        start_sequence(&circuit, &rows(1000), &mut params).unwrap();
        assert!(params.values().iter().all(|&p| p > 0.0));
    }
}
