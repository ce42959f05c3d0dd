//! Averaged parameters: weights and tables number by number, densities by the moments that they expect.

use super::device::*;
use super::inputs::{self, Inputs, UNIT_STD};

#[test]
fn averages_agree_with_double_precision() {
    averages(false);
}

#[test]
fn typical_averages() {
    averages(true);
}

/// Mean and spread of a unit, in the terms of its statistics.
fn expected(p: &ParamDesc, theta: &[f32], u: usize) -> (f64, f64) {
    let at = p.theta_at as usize + u;
    let (a, b) = (f64::from(theta[at]), f64::from(theta[at + p.ld as usize]));
    if p.kind == GAUSSIAN { (a - p.origin, b) } else { (a, b * UNIT_STD) }
}

fn averages(typical: bool) {
    let d = super::device_or_return!();
    let Inputs { params, theta: mut old, .. } = inputs::inputs(21, 3, typical);
    let mut theta = inputs::inputs(22, 3, typical).theta;
    // Two tables come first, then densities.
    let n = params[2].theta_at as usize;
    for numbers in [&mut old, &mut theta] {
        numbers[..n].iter_mut().filter(|x| x.is_nan()).for_each(|padding| *padding = 0.0);
    }
    let first = &params[2];
    let spread = first.theta_at as usize + first.ld as usize;
    // A unit without an expectation, and one that is narrower than it may be.
    theta[spread] = f32::INFINITY;
    let mean = first.theta_at as usize + 1;
    theta[mean] = old[mean];
    (old[spread + 1], theta[spread + 1]) = (0.01, 0.01);

    let (theta_dev, densities_dev) = (d.up(&theta), d.up(&params[2..]));
    let widest = params[2..].iter().map(|p| p.units as usize).max().unwrap();
    for weight in [0.5f64, 0.01] {
        let averages = d.up(&old);
        launch!(d, "average", 2, 256, 0; d.at(&averages), d.at(&theta_dev), n as i64, weight as f32);
        launch!(d, "density_average", (tiles(widest, 64), params.len() - 2), 64, 0;
            d.at(&densities_dev), d.at(&averages), d.at(&theta_dev), weight);
        let got = d.down(&averages);
        for i in 0..n {
            let want = (1.0 - weight) * f64::from(old[i]) + weight * f64::from(theta[i]);
            close(got[i].into(), want, 1e-6, || format!("{weight}: number {i}"));
        }
        for p in &params[2..] {
            for u in 0..p.units as usize {
                let at = p.theta_at as usize + u;
                let got = [got[at], got[at + p.ld as usize]].map(f64::from);
                let ((m0, s0), (m1, s1)) = (expected(p, &old, u), expected(p, &theta, u));
                if s1.is_infinite() {
                    assert_eq!(
                        got,
                        [old[at], old[at + p.ld as usize]].map(f64::from),
                        "{weight}: unit {u} keeps its θ̄"
                    );
                    continue;
                }
                // The variance of a mixture of two: that of its parts, and that of their means.
                let mean = m0 + weight * (m1 - m0);
                let between = weight * (1.0 - weight) * (m1 - m0) * (m1 - m0);
                let std = ((1.0 - weight) * s0 * s0 + weight * s1 * s1 + between).sqrt().max(p.min_std);
                let (a, b) = if p.kind == GAUSSIAN { (mean + p.origin, std) } else { (mean, std / UNIT_STD) };
                assert!((got[0] - a).abs() <= 1e-6, "{weight}: mean of {u}: {} is not {a}", got[0]);
                close(got[1], b, 1e-6, || format!("{weight}: spread of {u}"));
            }
            for line in 0..2 {
                let padding = p.theta_at as usize + line * p.ld as usize + p.units as usize;
                let padding = &got[padding..padding + (p.ld - p.units) as usize];
                assert!(padding.iter().all(|x| x.is_nan()), "{weight}: padding of densities is left alone");
            }
        }
    }
}
