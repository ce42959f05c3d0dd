//! Rows of numbers that are made to sum to one.

use super::multiversion;

multiversion! {
    /// Divides each row of `[rows × cols]` by its sum, which is added up in double precision.
    pub(in crate::backend::cpu) fn normalise_rows(values: &mut [f32], cols: usize) = normalise_rows_body;
}

#[inline(always)]
fn normalise_rows_body(values: &mut [f32], cols: usize) {
    for row in values.chunks_exact_mut(cols) {
        let scale = (1.0 / total(row)) as f32;
        row.iter_mut().for_each(|x| *x *= scale);
    }
}

/// In eight lanes, so that it runs side by side; the order of addition is fixed.
#[inline(always)]
fn total(values: &[f32]) -> f64 {
    const LANES: usize = 8;
    let mut lanes = [0f64; LANES];
    let chunks = values.chunks_exact(LANES);
    let rest: f64 = chunks.remainder().iter().map(|&v| f64::from(v)).sum();
    for chunk in chunks {
        (0..LANES).for_each(|lane| lanes[lane] += f64::from(chunk[lane]));
    }
    rest + lanes.iter().sum::<f64>()
}
