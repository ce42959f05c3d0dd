//! What the tests of matrix products share: every arithmetic there is, and what a product may be off by.

use super::precision::{Precision, from_bf16, split_bf16};
use super::{Arithmetic, Isa, IsaCap};
use crate::rng::Rng;

/// Every precision on every instruction set that this machine has, and bf16 on the model of a tile unit.
pub(super) fn arithmetics() -> Vec<Arithmetic> {
    let mut sets: Vec<Isa> = IsaCap::NAMES.iter().map(|(_, cap)| Isa::detect(*cap)).collect();
    sets.dedup();
    let precisions = || Precision::NAMES.iter().map(|(_, precision)| *precision);
    let on_sets = sets.iter().flat_map(|&isa| precisions().map(move |precision| Arithmetic::new(isa, precision)));
    let rounded = precisions().filter(|precision| *precision != Precision::F32);
    let modelled = rounded.map(|precision| Arithmetic::model(Isa::detect(IsaCap::Auto), precision));
    on_sets.chain(modelled).collect()
}

pub(super) fn random(rng: &mut Rng, len: usize) -> Vec<f32> {
    (0..len).map(|_| rng.uniform() as f32).collect()
}

/// A product against the definition: closely for the rounded operands, and as closely as rounding allows for the exact.
pub(super) fn assert_close(arithmetic: Arithmetic, got: f32, operands: impl Iterator<Item = (f32, f32)> + Clone) {
    let exact: f64 = operands.clone().map(|(x, y)| f64::from(x) * f64::from(y)).sum();
    let term = |(x, y): (f32, f32)| {
        let [(x, x_low), (y, y_low)] = [x, y].map(|x| {
            let (high, low) = split_bf16(x);
            (f64::from(from_bf16(high)), f64::from(from_bf16(low)))
        });
        if arithmetic.precision == Precision::Bf16 { x * y } else { x * y + x * y_low + x_low * y }
    };
    // Both operands are within 2^-8 of what they were, or both within 2^-17 and without the product of low parts,
    // 2^-16.
    let (rounded, distance) = match arithmetic.precision {
        Precision::F32 => (exact, 2e-6),
        Precision::Bf16x3 => (operands.map(term).sum(), 2f64.powi(-15)),
        Precision::Bf16 => (operands.map(term).sum(), 2f64.powi(-7)),
    };
    let got = f64::from(got);
    assert!((got - rounded).abs() <= 2e-6 * rounded, "{arithmetic:?}: {got} is not {rounded}");
    assert!((got - exact).abs() <= distance * exact, "{arithmetic:?}: {got} is far from {exact}");
}
