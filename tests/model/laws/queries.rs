//! Questions: every answer is what enumeration in double precision says, on every shape, and rows that linear space
//! cannot hold are no exception.

use std::sync::Mutex;

use anemone::View;
use anemone::circuit::NodeKind;
use anemone::query::{Function, Marginal};

use super::condition::{asked, cells, outspoken};
use super::*;

/// Logarithms of conditionals: differences of two log-likelihoods, so twice their error.
const CONDITIONAL: Tolerance = Tolerance { absolute: 5e-6, relative: 2e-5 };

fn view(case: &Case) -> View {
    View::of(case.circuit.clone(), case.params.clone()).unwrap()
}

/// A row with one cell set, or missing where there is no value.
fn with_cell(batch: &Batch, row: usize, var: usize, values: &[Option<f64>]) -> Batch {
    let columns = (0..batch.num_vars()).map(|v| {
        let cell = |value: &Option<f64>| if v == var { value.unwrap_or(0.0) } else { batch.column(v).real(row) };
        match batch.column(v) {
            Values::F32(_) => Values::F32(values.iter().map(|value| cell(value) as f32).collect()),
            _ => Values::U32(values.iter().map(|value| cell(value) as u32).collect()),
        }
    });
    let missing = |copy: usize, v: usize| if v == var { values[copy].is_none() } else { batch.is_missing(row, v) };
    Batch::from_columns(columns.collect()).unwrap().with_missing(missing)
}

/// p(X_v = c | rest) of every category by listing them.
fn listed(spec: &Spec<'_>, batch: &Batch, row: usize, var: usize, cats: u32) -> Vec<f64> {
    let worlds: Vec<Option<f64>> = (0..cats).map(|c| Some(f64::from(c))).collect();
    let joint = spec.log_likelihoods(&with_cell(batch, row, var, &worlds));
    let rest = spec.log_likelihoods(&with_cell(batch, row, var, &[None]))[0];
    joint.iter().map(|ll| (ll - rest).exp()).collect()
}

/// Mean and variance of a number given the rest, by a sum over a fine grid. It is a mixture of normal distributions no
/// narrower than some steps, of which such sums are exact to many digits.
fn integrated(spec: &Spec<'_>, batch: &Batch, row: usize, var: usize) -> (f64, f64) {
    let grid: Vec<f64> = (0..1201).map(|i| f64::from((i as f32 - 600.0) / 32.0)).collect();
    let lls = spec.log_likelihoods(&with_cell(batch, row, var, &grid.iter().map(|&x| Some(x)).collect::<Vec<_>>()));
    let top = lls.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let densities: Vec<f64> = lls.iter().map(|ll| (ll - top).exp()).collect();
    let total: f64 = densities.iter().sum();
    let mean = grid.iter().zip(&densities).map(|(x, d)| x * d).sum::<f64>() / total;
    (mean, grid.iter().zip(&densities).map(|(x, d)| (x - mean).powi(2) * d).sum::<f64>() / total)
}

/// Marginals, in both forms, and expectations of every missing cell.
fn posteriors_are_conditionals(case: &Case, batch: &Batch) {
    let (view, spec, name) = (view(case), Spec::new(&case.circuit, &case.params), &case.name);
    let marginals = view.posterior_marginals(batch).unwrap();
    let vars = batch.num_vars();
    let seen = Mutex::new(Vec::new());
    view.for_each_posterior(batch, |row, var, posterior| {
        let mut probabilities = Vec::new();
        posterior.probabilities(&mut probabilities);
        seen.lock().unwrap().push(((row, var), probabilities, posterior.mean_and_variance()));
    })
    .unwrap();
    let mut seen = seen.into_inner().unwrap();
    seen.sort_by_key(|(cell, ..)| *cell);
    let means = view.expectations(batch, &vec![Function::Identity; vars]).unwrap();
    let squares = view.expectations(batch, &vec![Function::Square; vars]).unwrap();
    let weird = |c: f64| (3.0 * c).sin() - 0.2 * c;
    let functions = (0..vars).map(|var| match case.num_cats(var) {
        Some(cats) => Function::Table((0..cats).map(|c| weird(f64::from(c))).collect()),
        None => Function::Identity,
    });
    let of_functions = view.expectations(batch, &functions.collect::<Vec<_>>()).unwrap();
    let missing = (0..batch.num_rows()).flat_map(|row| (0..vars).map(move |var| (row, var)));
    let missing: Vec<(usize, usize)> = missing.filter(|&(row, var)| batch.is_missing(row, var)).collect();
    assert_eq!(marginals.iter().map(|(row, var, _)| (row, var)).collect::<Vec<_>>(), missing, "{name}");
    assert_eq!(seen.iter().map(|(cell, ..)| *cell).collect::<Vec<_>>(), missing, "{name}");
    for ((row, var, marginal), (_, probabilities, moments)) in marginals.iter().zip(seen) {
        let what = format!("{name}: row {row}: variable {var}");
        let at = row * vars + var;
        assert_eq!(marginals.get(row, var), Some(marginal));
        let (mean, variance) = match (marginal, case.num_cats(var)) {
            (Marginal::Categories(got), Some(cats)) => {
                let want = listed(&spec, batch, row, var, cats);
                let got: Vec<f64> = got.iter().map(|&p| f64::from(p)).collect();
                close(&what, &got, &want, PROBABILITY);
                close(&what, &probabilities, &want, PROBABILITY);
                close_number(&what, got.iter().sum(), 1.0, Tolerance { absolute: 1e-5, relative: 0.0 });
                let expected =
                    |f: &dyn Fn(f64) -> f64| want.iter().enumerate().map(|(c, p)| f(c as f64) * p).sum::<f64>();
                let mean = expected(&|c| c);
                close_number(&what, of_functions[at], expected(&weird), Tolerance { absolute: 1e-4, relative: 1e-4 });
                (mean, expected(&|c| (c - mean).powi(2)))
            }
            (Marginal::Number { mean, variance }, None) => {
                assert_eq!((mean, variance), moments, "{what}");
                integrated(&spec, batch, row, var)
            }
            other => panic!("{what}: {other:?}"),
        };
        let tolerance = Tolerance { absolute: 1e-4, relative: 1e-4 };
        close(&what, &[moments.0, moments.1], &[mean, variance], tolerance);
        close(&what, &[means[at], squares[at]], &[mean, variance + mean * mean], tolerance);
    }
    for (row, var) in (0..batch.num_rows()).flat_map(|row| (0..vars).map(move |var| (row, var))) {
        if !batch.is_missing(row, var) {
            assert_eq!(marginals.get(row, var), None);
            assert_eq!(means[row * vars + var], batch.column(var).real(row));
        }
    }
}

/// log p(x_v | rest) = log p(x) − log p(x without v).
fn surprise_is_a_difference_of_log_likelihoods(case: &Case, batch: &Batch) {
    let (spec, found) = (Spec::new(&case.circuit, &case.params), view(case).surprise(batch).unwrap());
    let joint = spec.log_likelihoods(batch);
    close(&case.name, found.log_likelihoods(), &joint, LOG_LIKELIHOOD);
    for (row, var) in (0..batch.num_rows()).flat_map(|row| (0..batch.num_vars()).map(move |var| (row, var))) {
        let what = format!("{}: row {row}: variable {var}", case.name);
        let rest = spec.log_likelihoods(&with_cell(batch, row, var, &[None]))[0];
        if batch.is_missing(row, var) || rest == f64::NEG_INFINITY {
            assert_eq!(found.get(row, var), None, "{what}");
        } else {
            // Far out log p has few digits of its own left: what is off by so much is the judge.
            let digits = Tolerance { absolute: CONDITIONAL.absolute + 1e-12 * rest.abs(), ..CONDITIONAL };
            close_number(&what, found.get(row, var).expect(&what), joint[row] - rest, digits);
        }
    }
}

/// Kept values stay, nothing is missing, the joint is the largest there is, and no sample has a larger one.
fn explanations_are_the_most_probable(case: &Case, batch: &Batch, seed: u64) {
    let (view, spec, name) = (view(case), Spec::new(&case.circuit, &case.params), &case.name);
    let root = case.circuit.root().index();
    let found = view.mpe(batch).unwrap();
    assert_eq!(found.rows().num_rows(), batch.num_rows());
    let draws = view.sample_given(batch, 5, seed).unwrap();
    for row in 0..batch.num_rows() {
        let what = format!("{name}: row {row}");
        for var in 0..batch.num_vars() {
            assert!(!found.rows().is_missing(row, var));
            if !batch.is_missing(row, var) {
                assert_eq!(found.rows().column(var).real(row), batch.column(var).real(row), "{what}");
            }
        }
        let best = spec.log_maxima(batch, row)[root][0];
        close_number(&what, found.log_joints()[row], best, LOG_LIKELIHOOD);
        // The completion has that joint with some latents. Modes of numbers are rounded to single precision.
        close_number(&what, spec.log_maxima(found.rows(), row)[root][0], best, CONDITIONAL);
        for draw in 5 * row..5 * (row + 1) {
            let drawn = spec.log_maxima(&draws, draw)[root][0];
            assert!(drawn <= found.log_joints()[row] + 1e-5 + 1e-5 * drawn.abs(), "{what}: a draw has {drawn}");
        }
        if case.is_discrete() && case.num_draws() < 3e5 {
            let listed = spec.log_joints(batch, row).into_iter().fold(f64::NEG_INFINITY, f64::max);
            close_number(&what, best, listed, LOG_LIKELIHOOD);
        }
        // Far out a joint has the digits of single precision, as that of a draw above.
        let (whole, joint) = (spec.log_likelihoods(found.rows())[row], found.log_joints()[row]);
        assert!(whole >= joint - 1e-5 - 1e-5 * joint.abs(), "{what}: {whole} of the row, {joint} with latents");
    }
}

fn all_questions(case: &Case, seed: u64) {
    for case in [case.clone(), outspoken(case, seed)] {
        let batch = asked(&case, 4, seed);
        posteriors_are_conditionals(&case, &batch);
        surprise_is_a_difference_of_log_likelihoods(&case, &batch);
        surprise_is_a_difference_of_log_likelihoods(&case, &case.batch(3, seed));
        explanations_are_the_most_probable(&case, &batch, seed);
    }
}

#[test]
fn answers_are_what_enumeration_says_on_every_shape() {
    cases::all().iter().for_each(|case| all_questions(case, 3));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn answers_are_what_enumeration_says_on_random_circuits(seed in 0u64..1_000_000) {
        all_questions(&random::categorical(seed), seed);
    }

    #[test]
    fn answers_are_what_enumeration_says_on_structures(drawn in drawing::drawn(6, 5, 4)) {
        all_questions(&drawn.case(), drawn.seed);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 6, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn answers_are_what_enumeration_says_with_densities(seed in 0u64..1_000_000) {
        all_questions(&random::with_densities(seed), seed);
    }
}

/// Two states, each with a symbol of its own that the other hardly ever emits: what leads is left far behind.
fn rare_chain(rare: f32) -> Case {
    let mut case = Case::new(&format!("a chain with {rare:e}"), cases::tied_hmm(8, 2, 2));
    let params = Params::from_rows(&case.circuit, |param, unit| match (param.index(), unit) {
        (0 | 1, 0) => vec![1.0 - rare, rare],
        (0 | 1, _) => vec![rare, 1.0 - rare],
        _ => vec![0.5, 0.5],
    });
    case.params = params.unwrap();
    case
}

#[test]
fn rows_that_need_log_space_have_the_same_answers() {
    let rows: Vec<u8> = [[1, 1, 1, 1, 1, 0, 0, 0], [0, 0, 0, 0, 0, 1, 1, 1], [1, 0, 1, 0, 1, 0, 1, 1], [0; 8]].concat();
    let whole = Batch::from_rows(&rows, 8).unwrap();
    for rare in [1e-30, 1e-38, 1e-12] {
        let case = rare_chain(rare);
        let partly = whole.clone().with_missing(|row, var| (row + var) % 3 == 0);
        posteriors_are_conditionals(&case, &partly);
        surprise_is_a_difference_of_log_likelihoods(&case, &partly);
        surprise_is_a_difference_of_log_likelihoods(&case, &whole);
        explanations_are_the_most_probable(&case, &partly, 1);
    }
    let mixed = Case::new("mixed inputs", cases::mixed()).with_densities_anywhere(5);
    let far = mixed.far_batch(40, 6);
    surprise_is_a_difference_of_log_likelihoods(&mixed, &far);
    let far = far.with_missing(|row, var| (row + var) % 3 == 0);
    surprise_is_a_difference_of_log_likelihoods(&mixed, &far);
    explanations_are_the_most_probable(&mixed, &far, 1);
}

#[test]
fn what_is_impossible_is_said() {
    // Each state has a symbol of its own and never changes: rows that change are impossible.
    let case = rare_chain(0.0);
    let rows =
        Batch::from_rows(&[[0u8; 8], [1; 8], [0, 0, 0, 1, 0, 0, 0, 0], [0, 0, 1, 1, 1, 1, 1, 1]].concat(), 8).unwrap();
    surprise_is_a_difference_of_log_likelihoods(&case, &rows);
    let found = view(&case).surprise(&rows).unwrap();
    assert_eq!(found.get(2, 3), Some(f64::NEG_INFINITY), "the one that changed cannot be, given the others");
    assert_eq!(found.get(3, 1), None, "the others are impossible themselves");
    let asked = rows.with_missing(|_, var| var == 7);
    let view = view(&case);
    let errors = [
        view.posterior_marginals(&asked).map(drop),
        view.for_each_posterior(&asked, |_, _, _| ()),
        view.expectations(&asked, &vec![Function::Identity; 8]).map(drop),
        view.mpe(&asked).map(drop),
        view.sample_given(&asked, 1, 1).map(drop),
    ];
    for error in errors {
        let error = error.unwrap_err().to_string();
        assert!(error.starts_with("row 2: ") && error.contains("probability zero"), "{error}");
    }
    let short = vec![Function::Table(vec![1.0]); 8];
    let error = view.expectations(&asked, &short).unwrap_err().to_string();
    assert!(error.contains("variable 0 has 2 categories, its function 1 values"), "{error}");
    assert!(view.expectations(&asked, &short[..3]).unwrap_err().to_string().contains("3 functions for 8 variables"));
}

#[test]
fn no_bit_depends_on_threads_or_on_the_rows_beside() {
    for case in cases::structures(40, 5).into_iter().chain([Case::new("mixed inputs", cases::mixed())]) {
        let view = view(&case);
        let batch = asked(&case, 300, 4);
        let ask = |batch: &Batch| {
            let surprise: Vec<Vec<u64>> = {
                let found = view.surprise(batch).unwrap();
                (0..batch.num_rows()).map(|row| found.row(row).iter().map(|v| v.to_bits()).collect()).collect()
            };
            let marginals = view.posterior_marginals(batch).unwrap();
            let marginals: Vec<_> = marginals.iter().map(|(_, var, marginal)| format!("{var} {marginal:?}")).collect();
            let mpe = view.mpe(batch).unwrap();
            let joints: Vec<u64> = mpe.log_joints().iter().map(|v| v.to_bits()).collect();
            let rows: Vec<Vec<f64>> = (0..batch.num_rows()).map(|row| cells(mpe.rows(), row)).collect();
            let likelihoods: Vec<u64> =
                view.log_likelihoods_spread(batch).unwrap().iter().map(|ll| ll.to_bits()).collect();
            (surprise, marginals, joints, rows, likelihoods)
        };
        let on = |threads: usize| rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        let one = on(1).install(|| ask(&batch));
        assert!(one == on(3).install(|| ask(&batch)), "{}: three threads", case.name);
        let plain: Vec<u64> = view.log_likelihoods(&batch).unwrap().iter().map(|ll| ll.to_bits()).collect();
        assert_eq!(plain, one.4, "{}", case.name);
        for row in [0, 131, 299] {
            let part = ask(&batch.slice(row..row + 1));
            assert_eq!((&part.0[0], part.2[0], &part.3[0]), (&one.0[row], one.2[row], &one.3[row]), "{}", case.name);
        }
    }
}

/// Posterior marginals, surprise and the best joint at full length, by the flows of the specification: one pass a row.
fn agrees_at_full_length(case: &Case, rows: usize) {
    let (view, spec) = (view(case), Spec::new(&case.circuit, &case.params));
    let batch = asked(case, rows, 9);
    let marginals = view.posterior_marginals(&batch).unwrap();
    let surprise = view.surprise(&batch).unwrap();
    let mpe = view.mpe(&batch).unwrap();
    for row in 1..rows {
        let values = spec.log_values(&batch, row);
        let flows = spec.add_flows(&batch, row, &values, 1.0, &mut spec.zeros());
        let mut wanted: Vec<Vec<f64>> = vec![Vec::new(); batch.num_vars()];
        let mut rest = vec![0.0; batch.num_vars()];
        for (i, node) in case.circuit.nodes().iter().enumerate() {
            let NodeKind::Input { var, param } = &node.kind else { continue };
            let table = &spec.theta[param.index()];
            wanted[*var].resize(table[0].len(), 0.0);
            for (unit, flow) in flows[i].iter().enumerate() {
                wanted[*var].iter_mut().zip(&table[unit]).for_each(|(sum, p)| *sum += flow * p);
                rest[*var] += flow / values[i][unit].exp();
            }
        }
        for var in 0..batch.num_vars() {
            let what = format!("{}: row {row}: variable {var}", case.name);
            match marginals.get(row, var) {
                Some(Marginal::Categories(got)) => {
                    close(&what, &got.iter().map(|&p| f64::from(p)).collect::<Vec<_>>(), &wanted[var], PROBABILITY);
                }
                None => close_number(&what, surprise.get(row, var).unwrap(), -rest[var].ln(), LONG),
                other => panic!("{what}: {other:?}"),
            }
        }
        let best = spec.log_maxima(&batch, row)[case.circuit.root().index()][0];
        close_number(&case.name, mpe.log_joints()[row], best, LOG_LIKELIHOOD);
    }
}

/// Some hundred steps of single precision, 6e-8 each.
const LONG: Tolerance = Tolerance { absolute: 2e-4, relative: 2e-5 };

#[test]
fn answers_agree_with_double_precision_at_full_length() {
    let chain = Case::new("hmm-64", hmm(128, 64, Categorical::new(300).unwrap()).unwrap());
    agrees_at_full_length(&outspoken(&chain, 5), 4);
    let parents: Vec<Option<usize>> = (0..768).map(|v: usize| v.checked_sub(1).map(|v| v / 2)).collect();
    let tree = anemone::structure::Tree::from_parents(&parents).unwrap();
    let tree = anemone::hclt(&tree, 16, |_| Categorical::new(256).unwrap(), HcltOptions::default()).unwrap();
    agrees_at_full_length(&outspoken(&Case::new("hclt-16", tree), 5), 4);
}

#[test]
fn draws_are_as_frequent_as_posterior_marginals_say() {
    const DRAWN: usize = 4000;
    let case = outspoken(&Case::new("hmm", hmm(40, 16, Categorical::new(6).unwrap()).unwrap()), 2);
    let batch = asked(&case, 3, 2);
    let view = view(&case);
    let draws = view.sample_given(&batch, DRAWN, 11).unwrap();
    for (row, var, marginal) in view.posterior_marginals(&batch).unwrap().iter() {
        let Marginal::Categories(probabilities) = marginal else { panic!("{marginal:?}") };
        for (cat, &p) in probabilities.iter().enumerate() {
            let is_cat = |draw: &usize| draws.column(var).category(*draw) == Some(cat as u32);
            let share = (row * DRAWN..(row + 1) * DRAWN).filter(is_cat).count() as f64 / DRAWN as f64;
            let p = f64::from(p);
            // Five standard deviations, and two draws where hardly any are expected: some 500 cells are looked at.
            let allowed = 5.0 * (p * (1.0 - p) / DRAWN as f64).sqrt() + 2.0 / DRAWN as f64;
            assert!((share - p).abs() <= allowed, "row {row}: variable {var}: category {cat}: {share} for {p}");
        }
    }
}
