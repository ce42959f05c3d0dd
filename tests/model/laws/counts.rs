//! Families over counts and truth values: they sum to one, their M-step is what it says, and mixtures of them climb.

use anemone::circuit::distribution::from_json;
use anemone::circuit::{Bernoulli, Binomial, Distribution, NegativeBinomial, Poisson};

use super::em::training_log_likelihood;
use super::*;

/// A family, and parameters of a few units of it.
type Family = (Arc<dyn Distribution>, Vec<Vec<f32>>);

/// Every family with a few parameters.
fn families() -> Vec<Family> {
    vec![
        (Bernoulli::new(), vec![vec![0.3], vec![0.999]]),
        (Binomial::new(7).unwrap(), vec![vec![0.01], vec![0.6]]),
        (Poisson::new(1e-3).unwrap(), vec![vec![0.2], vec![40.0]]),
        (NegativeBinomial::new(1e-3).unwrap(), vec![vec![0.4, 0.5], vec![12.0, 3.0], vec![5.0, 1e6]]),
    ]
}

/// All values that have mass worth counting.
fn values(family: &dyn Distribution) -> impl Iterator<Item = f64> + use<> {
    (0..family.num_cats().unwrap_or(4000)).map(f64::from)
}

#[test]
fn probabilities_sum_to_one_and_expected_statistics_are_sums_over_all_values() {
    for (family, units) in families() {
        for params in &units {
            let (mut total, mut summed) = (0.0, vec![0.0; family.num_stats()]);
            for value in values(&*family) {
                let p = family.log_prob(params, value).exp();
                total += p;
                family.add_stats(value, 2.0 * p, &mut summed);
            }
            assert!((total - 1.0).abs() < 1e-9, "{} {params:?}: {total}", family.name());
            let mut expected = vec![0.0; family.num_stats()];
            family.add_expected_stats(params, 2.0, &mut expected);
            for (a, b) in summed.iter().zip(&expected) {
                assert!((a - b).abs() < 1e-6 * b.abs().max(1.0), "{} {params:?}: {a} is not {b}", family.name());
            }
            assert!((family.mass(&expected) - 2.0).abs() < 1e-12);
        }
    }
}

#[test]
fn what_is_no_count_is_impossible() {
    for (family, units) in families().into_iter().filter(|(family, _)| family.num_cats().is_none()) {
        for value in [-1.0, 0.5, f64::NAN] {
            assert_eq!(family.log_prob(&units[0], value), f64::NEG_INFINITY, "{} {value}", family.name());
        }
    }
}

/// Mean log-likelihood of weighted values.
fn likelihood(family: &dyn Distribution, params: &[f32], data: &[(f64, f64)]) -> f64 {
    data.iter().map(|(value, flow)| flow * family.log_prob(params, *value)).sum()
}

#[test]
fn the_m_step_is_the_likeliest_parameter_and_of_a_negative_binomial_the_likeliest_mean() {
    for (family, _) in families() {
        let most = family.num_cats().map_or(9.0, |cats| f64::from(cats - 1));
        let data = [(0.0, 0.7), (most, 0.4), (1.0, 1.5), ((most / 2.0).floor(), 0.9)];
        let mut stats = vec![0.0; family.num_stats()];
        data.iter().for_each(|(value, flow)| family.add_stats(*value, *flow, &mut stats));
        let mut best = vec![0.5; family.num_params()];
        family.maximize(&stats, Smoothing::NONE, &mut best);
        family.check_params(&best).unwrap();
        let at_best = likelihood(&*family, &best, &data);
        for factor in [0.5, 0.9, 0.99, 1.01, 1.1] {
            let mut other = best.clone();
            other[0] *= factor; // the mean, the rate or the chance; a size stays
            if family.check_params(&other).is_ok() {
                let there = likelihood(&*family, &other, &data);
                assert!(there < at_best, "{}: {there} at {factor} of the best, {at_best}", family.name());
            }
        }
        // A fixed point: what a unit expects of itself leaves it where it is.
        let (mut expected, mut again) = (vec![0.0; family.num_stats()], best.clone());
        family.add_expected_stats(&best, 3.0, &mut expected);
        family.maximize(&expected, Smoothing::NONE, &mut again);
        for (a, b) in again.iter().zip(&best) {
            assert!((a - b).abs() <= 1e-5 * b.abs(), "{}: {again:?} after {best:?}", family.name());
        }
    }
}

#[test]
fn a_negative_binomial_has_the_variance_of_its_values_or_is_nearly_poisson() {
    let family = NegativeBinomial::new(1e-3).unwrap();
    let fit = |values: &[f64]| {
        let (mut stats, mut params) = (vec![0.0; 3], vec![1.0; 2]);
        values.iter().for_each(|value| family.add_stats(*value, 1.0, &mut stats));
        family.maximize(&stats, Smoothing::NONE, &mut params);
        params
    };
    let wide = [0.0, 0.0, 1.0, 3.0, 16.0];
    let (mean, variance) = family.mean_and_variance(&fit(&wide));
    let moment = wide.iter().map(|x| (x - 4.0) * (x - 4.0)).sum::<f64>() / 5.0;
    assert!((mean - 4.0).abs() < 1e-6 && (variance - moment).abs() < 1e-4, "{mean} {variance} {moment}");
    let narrow = fit(&[4.0, 4.0, 4.0, 5.0]);
    let poisson = Poisson::new(1e-3).unwrap();
    for value in [0.0, 4.0, 20.0] {
        let (a, b) = (family.log_prob(&narrow, value), poisson.log_prob(&narrow[..1], value));
        assert!((a - b).abs() < 1e-3, "{value}: {a} {b}");
    }
    assert_eq!(fit(&[0.0, 0.0]), [1e-3, 1e6]);
}

#[test]
fn draws_have_the_mean_and_the_variance_that_a_unit_says() {
    for (family, units) in families() {
        for params in &units {
            let mut rng = Rng::new(11);
            let draws: Vec<f64> = (0..20_000).map(|_| family.sample(params, &mut rng)).collect();
            let (mean, variance) = family.mean_and_variance(params);
            let found = draws.iter().sum::<f64>() / draws.len() as f64;
            let error = 6.0 * (variance / draws.len() as f64).sqrt(); // six standard errors
            assert!((found - mean).abs() < error, "{} {params:?}: {found} is not {mean}", family.name());
            assert!(draws.iter().all(|&value| family.log_prob(params, value) > f64::NEG_INFINITY));
        }
    }
}

#[test]
fn the_mode_is_where_probability_is_largest() {
    for (family, units) in families() {
        for params in &units {
            let at_mode = family.log_prob(params, family.mode(params));
            let best = values(&*family).map(|value| family.log_prob(params, value)).fold(f64::NEG_INFINITY, f64::max);
            assert!((at_mode - best).abs() < 1e-9, "{} {params:?}: {at_mode} {best}", family.name());
        }
    }
}

#[test]
fn full_batch_em_raises_the_log_likelihood_of_mixtures_whose_m_step_is_exact() {
    let mut rng = Rng::new(3);
    for (family, _) in families().into_iter().filter(|(family, _)| family.name() != "negative_binomial") {
        let mut c = CircuitBuilder::new(2);
        let param = c.input_param(3, family.clone()).unwrap();
        let inputs = [c.input(0, param).unwrap(), c.input(1, param).unwrap()];
        let both = c.product(&inputs).unwrap();
        cases::sum(&mut c, 1, &[both]);
        let case = Case::new(family.name(), c.finish().unwrap());
        let most = family.num_cats().map_or(12, |cats| cats as usize);
        let values: Vec<u8> = (0..60).map(|_| rng.below(most) as u8).collect();
        let data = Batch::from_rows(&values, 2).unwrap().with_missing(|row, var| (row + 3 * var) % 5 == 0);
        let (mut backend, mut optimizer) = start(&case.circuit, &case.params, &full_batch_em());
        let first = training_log_likelihood(&case, &case.params, &data);
        let mut before = first;
        for epoch in 0..8 {
            optimizer.learn(&mut backend, &data).unwrap();
            assert!(optimizer.end_epoch(&mut backend).unwrap());
            let after = training_log_likelihood(&case, &backend.params().unwrap(), &data);
            assert!(after >= before - 1e-5 * before.abs(), "{}: epoch {epoch}: {before} fell to {after}", case.name);
            before = after;
        }
        assert!(before > first + 1e-3, "{}: {first} to {before}", case.name);
    }
}

#[test]
fn families_come_back_from_their_json_and_bad_options_are_refused() {
    for (family, _) in families() {
        let again = from_json(family.name(), &family.options()).unwrap();
        assert_eq!(format!("{again:?}"), format!("{family:?}"));
    }
    assert!(Binomial::new(0).is_err() && Poisson::new(0.0).is_err() && NegativeBinomial::new(f64::NAN).is_err());
    for params in [[0.0f32], [1.0], [f32::NAN]] {
        assert!(Bernoulli::new().check_params(&params).is_err());
    }
    for params in [[0.0f32, 1.0], [1.0, 0.0], [f32::INFINITY, 1.0]] {
        assert!(NegativeBinomial::new(1.0).unwrap().check_params(&params).is_err());
    }
}
