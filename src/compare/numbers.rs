//! Numbers as people read them: a true minus sign, thousands apart, no more digits than help.

use super::findings::Section;

/// With so many decimals; what rounds to zero has no sign.
pub(super) fn fixed(value: f64, decimals: usize) -> String {
    let text = format!("{value:.decimals$}");
    match text.strip_prefix('-') {
        Some(digits) if digits.bytes().all(|b| matches!(b, b'0' | b'.')) => digits.to_string(),
        Some(digits) => format!("−{digits}"),
        None => text,
    }
}

/// A difference, with its sign.
pub(super) fn signed(value: f64, decimals: usize) -> String {
    let text = fixed(value, decimals);
    let is_zero = text.bytes().all(|b| matches!(b, b'0' | b'.'));
    if value > 0.0 && !is_zero { format!("+{text}") } else { text }
}

/// About three digits, and no decimals that say nothing: epochs, seconds, rates.
pub(super) fn short(value: f64) -> String {
    let decimals = match value.abs() {
        100.0.. => return thousands(value),
        10.0.. => 1,
        _ => 2,
    };
    let text = fixed(value, decimals);
    text.trim_end_matches('0').trim_end_matches('.').to_string()
}

/// A whole number with its thousands apart.
pub(super) fn thousands(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    if value <= -0.5 { format!("−{text}") } else { text }
}

/// How many decimals the likelihoods of a section are told with: about five digits of the largest.
pub(super) fn decimals(section: &Section) -> usize {
    let points = section.contenders.iter().flat_map(|c| &c.runs).flat_map(|r| r.points.iter().skip(1));
    let largest = points.filter_map(|p| p.valid).filter(|v| v.is_finite()).fold(0f64, |most, v| most.max(v.abs()));
    match largest {
        100.0.. => 2,
        10.0.. => 3,
        _ => 4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn minus_is_a_minus_and_nothing_has_no_sign() {
        assert_eq!(fixed(-660.126, 2), "−660.13");
        assert_eq!(fixed(-0.001, 2), "0.00");
        assert_eq!(signed(1.25, 1), "+1.2");
        assert_eq!(signed(-1.0, 1), "−1.0");
        assert_eq!([signed(0.01, 1), signed(-0.01, 1)], ["0.0", "0.0"]);
    }

    #[test]
    fn short_numbers_have_no_empty_decimals() {
        let shown = [40.0, 7.5, 12.34, 0.126, 0.0, 1234.4, 1_234_567.0, -100.0].map(short);
        assert_eq!(shown, ["40", "7.5", "12.3", "0.13", "0", "1,234", "1,234,567", "−100"]);
    }
}
