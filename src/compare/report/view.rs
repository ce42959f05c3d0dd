//! Which part of the curves is worth showing, and where its ticks are.
//!
//! The first epochs of every learner fall off a cliff, and a contender may be stuck far below. A range that shows all
//! of it shows nothing of what is compared, so the lower end is cut, and the page says so.

use super::lines::Line;
use crate::compare::analysis::value;
use crate::compare::findings::Reference;

/// The range of held-out log-likelihoods that is drawn.
#[derive(Clone, Debug, PartialEq)]
pub struct View {
    /// Its lower end.
    pub low: f64,
    /// Its upper end.
    pub high: f64,
    /// True if some line continues below.
    pub is_clipped: bool,
    /// References within it, by name.
    pub references: Vec<(String, f64)>,
    /// References outside of it.
    pub outside: Vec<(String, f64)>,
}

/// A range of all values is cut if it is more than so many times that of the later ones.
const CLIFF: f64 = 2.5;
/// How far a contender's early values may lie below the highest, in medians over contenders, before it counts as stuck.
const STUCK: f64 = 4.0;
/// How much of a range may be added for a reference.
const NEAR: f64 = 0.35;

/// Looks at all lines; `None` if none has a value, or values that no axis has room for.
pub fn view(lines: &[Line], references: &[Reference]) -> Option<View> {
    let all: Vec<f64> = lines.iter().flat_map(values).collect();
    let lowest = all.iter().copied().reduce(f64::min)?;
    let highest = all.iter().copied().reduce(f64::max)?;
    let mut gaps: Vec<f64> = lines.iter().filter_map(early).map(|early| highest - early).collect();
    gaps.sort_by(f64::total_cmp);
    let median = gaps.get(gaps.len() / 2).copied().unwrap_or(0.0);
    let widest = gaps.into_iter().filter(|gap| *gap <= STUCK * median).fold(0.0, f64::max);
    let mut low = highest - 1.25 * widest;
    if widest <= 0.0 || highest - lowest <= CLIFF * widest {
        low = lowest;
    }
    let (mut low, mut high) = if low < highest { (low, highest) } else { (highest - 1.0, highest + 1.0) };
    let span = high - low;
    let known: Vec<(String, f64)> =
        references.iter().filter_map(|r| Some((r.name.clone(), r.valid.filter(|v| v.is_finite())?))).collect();
    let (references, outside): (Vec<_>, Vec<_>) =
        known.into_iter().partition(|(_, v)| *v >= low - NEAR * span && *v <= high + NEAR * span);
    for (_, v) in &references {
        (low, high) = (low.min(*v), high.max(*v));
    }
    let air = 0.04 * (high - low);
    let (low, high) = (low - air, high + air);
    if !(high - low).is_finite() || low >= high {
        return None;
    }
    Some(View { low, high, is_clipped: lowest < low, references, outside })
}

/// All values of a line.
fn values(line: &Line) -> Vec<f64> {
    let means = line.points.iter().filter_map(|p| p.valid).flat_map(|band| [band.mean, band.min, band.max]);
    means.chain(line.failed.iter().flatten().filter_map(value)).collect()
}

/// What is above the lowest tenth of a contender's later mean values, those after the first quarter and after the
/// start: where it has left the cliff, however short its curve is. Only of runs that went well.
fn early(line: &Line) -> Option<f64> {
    let means: Vec<f64> = line.points.iter().filter_map(|p| p.valid).map(|band| band.mean).collect();
    let first = means.len().div_ceil(4).min(means.len().saturating_sub(1));
    let mut later = means[first..].to_vec();
    later.sort_by(f64::total_cmp);
    later.get(later.len() / 10).copied()
}

/// Round numbers within a range, about `most` at most: multiples of 1, 2 or 5 times a power of ten, or of 25, 250, ….
pub fn ticks(low: f64, high: f64, most: usize) -> Vec<f64> {
    let step = step(low, high, most);
    let first = (low / step).ceil() as i64;
    let last = (high / step + 1e-9).floor() as i64;
    (first..=last).map(|at| at as f64 * step).collect()
}

/// What lies between two ticks.
pub fn step(low: f64, high: f64, most: usize) -> f64 {
    let wanted = ((high - low) / most.max(1) as f64).max(f64::MIN_POSITIVE);
    let power = 10f64.powf(wanted.log10().floor());
    let quarter = if power >= 10.0 { 2.5 } else { 2.0 };
    let steps = [1.0, 2.0, quarter, 5.0, 10.0].map(|m| m * power);
    steps.into_iter().find(|step| *step >= wanted * (1.0 - 1e-9)).unwrap_or(10.0 * power)
}

/// The part of a line that is not below `low`, in pieces. Where it goes below, it ends at the edge.
pub fn above(points: &[(f64, Option<f64>)], low: f64) -> Vec<Vec<(f64, f64)>> {
    let mut pieces: Vec<Vec<(f64, f64)>> = vec![Vec::new()];
    let mut before: Option<(f64, f64)> = None;
    for (x, y) in points {
        let here = y.map(|y| (*x, y));
        match (before, here) {
            (Some(a), Some(b)) if (a.1 < low) != (b.1 < low) => {
                let crossing = (a.0 + (b.0 - a.0) * (low - a.1) / (b.1 - a.1), low);
                if let Some(piece) = pieces.last_mut() {
                    piece.push(crossing);
                }
                if b.1 < low {
                    pieces.push(Vec::new());
                }
            }
            (Some(_), None) => pieces.push(Vec::new()),
            _ => {}
        }
        if let (Some(point), Some(piece)) = (here.filter(|p| p.1 >= low), pieces.last_mut()) {
            piece.push(point);
        }
        before = here;
    }
    pieces.retain(|piece| !piece.is_empty());
    pieces
}

/// The part of a band (place, lower, upper) that is not below `low`, in pieces. Both edges cross where their lines do.
pub fn band_above(points: &[(f64, Option<(f64, f64)>)], low: f64) -> Vec<Vec<(f64, f64, f64)>> {
    let mut pieces = Vec::new();
    for piece in points.split(|(_, band)| band.is_none()) {
        let piece: Vec<(f64, f64, f64)> = piece.iter().filter_map(|(x, band)| band.map(|(a, b)| (*x, a, b))).collect();
        let mut all: Vec<(f64, f64, f64)> = piece.first().copied().into_iter().collect();
        for pair in piece.windows(2) {
            let (a, b) = (pair[0], pair[1]);
            let crossing = |from: f64, to: f64| ((from < low) != (to < low)).then(|| (low - from) / (to - from));
            let mut crossings: Vec<f64> = [crossing(a.1, b.1), crossing(a.2, b.2)].into_iter().flatten().collect();
            crossings.sort_by(f64::total_cmp);
            let between = |t: f64| (a.0 + t * (b.0 - a.0), a.1 + t * (b.1 - a.1), a.2 + t * (b.2 - a.2));
            all.extend(crossings.into_iter().map(between));
            all.push(b);
        }
        pieces.push(all.into_iter().map(|(x, lower, upper)| (x, lower.max(low), upper.max(low))).collect());
    }
    pieces.retain(|piece: &Vec<_>| piece.len() > 1);
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::analysis::{Band, CurvePoint};

    fn line(values: &[f64]) -> Line {
        let point = |(at, v): (usize, &f64)| CurvePoint {
            epoch: at as f64,
            seconds: at as f64,
            valid: Some(Band { mean: *v, min: *v, max: *v }),
        };
        Line { points: values.iter().enumerate().map(point).collect(), ..Line::default() }
    }

    #[test]
    fn the_cliff_and_who_is_stuck_are_cut_and_the_rest_is_shown() {
        let good = line(&[-1400.0, -800.0, -720.0, -700.0, -690.0, -680.0, -670.0, -665.0, -662.0, -660.0]);
        let slow = line(&[-1400.0, -850.0, -840.0, -820.0, -800.0, -780.0, -760.0, -740.0, -720.0, -700.0]);
        let stuck = line(&[-1400.0; 10]);
        let view = view(&[good.clone(), good, slow, stuck], &[]).unwrap();
        assert!(view.is_clipped && view.low > -950.0 && view.low < -840.0, "{view:?}");
        assert!(view.high > -660.0 && view.high < -640.0, "{view:?}");
    }

    #[test]
    fn the_start_of_a_short_curve_does_not_flatten_the_rest() {
        let view = view(&[line(&[-70.0, -12.0, -11.0, -10.5]), line(&[-70.0, -13.0, -12.5, -12.0])], &[]).unwrap();
        assert!(view.is_clipped && view.low > -16.0 && view.low < -13.0, "{view:?}");
    }

    #[test]
    fn nothing_is_cut_that_is_near() {
        let view = view(&[line(&[-10.0, -9.0, -8.0, -7.5])], &[]).unwrap();
        assert!(!view.is_clipped && view.low < -10.0, "{view:?}");
    }

    #[test]
    fn near_references_are_shown_and_far_ones_named() {
        let reference = |name: &str, v| Reference { name: name.into(), valid: v, test: None };
        let all = [reference("near", Some(-10.3)), reference("far", Some(-100.0)), reference("none", None)];
        let view = view(&[line(&[-10.0, -9.0, -8.0])], &all).unwrap();
        assert_eq!(view.references, [("near".to_string(), -10.3)]);
        assert_eq!(view.outside, [("far".to_string(), -100.0)]);
        assert!(view.low < -10.3);
    }

    #[test]
    fn one_value_is_enough_and_none_is_not() {
        assert!(view(&[line(&[-1.0])], &[]).is_some_and(|v| v.low < -1.0 && v.high > -1.0));
        assert_eq!(view(&[Line::default()], &[]), None);
    }

    #[test]
    fn ticks_are_round_and_few() {
        assert_eq!(ticks(-870.0, -655.0, 6), [-850.0, -800.0, -750.0, -700.0]);
        assert_eq!(ticks(-830.0, -655.0, 8), [-825.0, -800.0, -775.0, -750.0, -725.0, -700.0, -675.0]);
        assert_eq!(ticks(0.0, 40.0, 8), [0.0, 5.0, 10.0, 15.0, 20.0, 25.0, 30.0, 35.0, 40.0]);
        assert_eq!(ticks(0.0, 1.0, 5), [0.0, 0.2, 0.4, 0.6000000000000001, 0.8, 1.0]);
        for most in 2..12 {
            assert!(ticks(-871.3, -655.2, most).len() <= most + 1);
        }
    }

    #[test]
    fn a_line_is_cut_at_the_edge_and_at_gaps() {
        let points = [(0.0, Some(-10.0)), (1.0, Some(0.0)), (2.0, None), (3.0, Some(1.0)), (4.0, Some(-11.0))];
        let pieces = above(&points, -5.0);
        assert_eq!(pieces, [vec![(0.5, -5.0), (1.0, 0.0)], vec![(3.0, 1.0), (3.5, -5.0)]]);
        assert!(above(&[], 0.0).is_empty());
    }

    #[test]
    fn a_band_is_cut_at_the_edge_and_at_gaps() {
        let points = [(0.0, Some((-8.0, -6.0))), (1.0, Some((-2.0, 0.0))), (2.0, None), (3.0, Some((1.0, 1.0)))];
        let pieces = band_above(&points, -5.0);
        assert_eq!(pieces.len(), 1);
        let places: Vec<f64> = pieces[0].iter().map(|p| p.0).collect();
        assert!((places[1] - 1.0 / 6.0).abs() < 1e-12 && (places[2] - 0.5).abs() < 1e-12, "{places:?}");
        assert!(pieces[0].iter().all(|(_, lower, upper)| *lower >= -5.0 && lower <= upper));
        assert_eq!(pieces[0][0], (0.0, -5.0, -5.0));
    }
}
