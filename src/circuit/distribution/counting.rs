//! What the families over counts share: the logarithm of the gamma function, and draws.

use crate::rng::Rng;

/// ½·log(2π).
const HALF_LOG_TAU: f64 = 0.918_938_533_204_672_7;

/// Below this the series of Stirling is reached by Γ(x) = Γ(x+1)/x: its error there is below 1e-14.
const STIRLING_FROM: f64 = 12.0;

/// log Γ(x) for x > 0, by Stirling's series.
pub(super) fn log_gamma(mut x: f64) -> f64 {
    let mut below = 1.0;
    while x < STIRLING_FROM {
        below *= x;
        x += 1.0;
    }
    let inverse = 1.0 / x;
    let square = inverse * inverse;
    let far = 1.0 / 1260.0 - square * (1.0 / 1680.0 - square / 1188.0);
    let series = inverse * (1.0 / 12.0 - square * (1.0 / 360.0 - square * far));
    (x - 0.5) * x.ln() - x + HALF_LOG_TAU + series - below.ln()
}

/// log (n over k).
pub(super) fn log_choose(n: f64, k: f64) -> f64 {
    log_gamma(n + 1.0) - log_gamma(k + 1.0) - log_gamma(n - k + 1.0)
}

/// Returns true if a value is 0, 1, 2, …; anything else has probability 0 under a family over counts.
pub(super) fn is_count(value: f64) -> bool {
    value >= 0.0 && value.fract() == 0.0
}

/// Draws from the Poisson distribution: in halves while the rate is large, since a sum of two is one of the sum.
pub(super) fn sample_poisson(rate: f64, rng: &mut Rng) -> f64 {
    /// Counting arrivals takes as many steps as there are.
    const MOST_COUNTED: f64 = 64.0;
    if rate > 1e6 {
        return (rate + rate.sqrt() * rng.normal()).round().max(0.0); // skewed by less than a thousandth
    }
    let parts = (rate / MOST_COUNTED).ceil().max(1.0);
    let mut total = 0.0;
    for _ in 0..parts as u64 {
        let (least, mut product) = ((-rate / parts).exp(), rng.uniform());
        while product > least {
            total += 1.0;
            product *= rng.uniform();
        }
    }
    total
}

/// Draws from the gamma distribution of this shape and scale 1 (Marsaglia and Tsang 2000).
pub(super) fn sample_gamma(shape: f64, rng: &mut Rng) -> f64 {
    if shape < 1.0 {
        let up = sample_gamma(shape + 1.0, rng);
        return up * rng.uniform().max(f64::MIN_POSITIVE).powf(1.0 / shape);
    }
    let d = shape - 1.0 / 3.0;
    let c = 1.0 / (9.0 * d).sqrt();
    loop {
        let x = rng.normal();
        let v = (1.0 + c * x).powi(3);
        if v > 0.0 && rng.uniform().max(f64::MIN_POSITIVE).ln() < 0.5 * x * x + d - d * v + d * v.ln() {
            return d * v;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gamma_function_is_the_factorial_and_of_one_half_the_root_of_pi() {
        let mut factorial = 1.0f64;
        for n in 1..100u32 {
            let found = log_gamma(f64::from(n));
            assert!((found - factorial.ln()).abs() < 1e-12 * found.abs().max(1.0), "{n}: {found}");
            factorial *= f64::from(n);
        }
        assert!((log_gamma(0.5) - 0.5 * std::f64::consts::PI.ln()).abs() < 1e-13);
        assert!((log_choose(10.0, 3.0) - 120f64.ln()).abs() < 1e-12);
    }

    #[test]
    fn draws_have_the_mean_and_the_variance_of_their_family() {
        let mut rng = Rng::new(5);
        let mut moments = |draw: &dyn Fn(&mut Rng) -> f64| {
            let draws: Vec<f64> = (0..40_000).map(|_| draw(&mut rng)).collect();
            let mean = draws.iter().sum::<f64>() / draws.len() as f64;
            (mean, draws.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / draws.len() as f64)
        };
        // Means are within six standard errors, variances within a twentieth.
        for rate in [0.3, 5.0, 200.0, 2e6] {
            let (mean, variance) = moments(&|rng| sample_poisson(rate, rng));
            assert!((mean - rate).abs() < 6.0 * (rate / 4e4).sqrt() && (variance / rate - 1.0).abs() < 0.05, "{rate}");
        }
        for shape in [0.4, 1.0, 7.5] {
            let (mean, variance) = moments(&|rng| sample_gamma(shape, rng));
            assert!((mean - shape).abs() < 6.0 * (shape / 4e4).sqrt(), "{shape}: {mean}");
            assert!((variance / shape - 1.0).abs() < 0.1, "{shape}: {variance}");
        }
    }
}
