//! Sizes in bytes as people write them: `"256MiB"`, `"500MB"`, `65536`.

/// Units, the longest names first so that `MiB` is not taken for bytes.
const UNITS: [(&str, u64); 10] = [
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("kB", 1_000),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("B", 1),
];

/// The bytes that a text means, such as `1.5GiB`; a bare number is bytes.
pub fn parse_size(text: &str) -> Option<u64> {
    let text = text.trim();
    let (number, unit) =
        UNITS.iter().find_map(|(name, bytes)| Some((text.strip_suffix(name)?.trim_end(), *bytes))).unwrap_or((text, 1));
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(unit);
    }
    let bytes = number.parse::<f64>().ok().filter(|_| unit > 1)? * unit as f64;
    (bytes.is_finite() && bytes >= 0.0 && bytes < u64::MAX as f64).then_some(bytes.round() as u64)
}

/// A size as a pipeline file has it: in the largest unit that divides it.
pub fn write_size(bytes: u64) -> String {
    let exact =
        |&&(_, unit): &&(&str, u64)| unit.is_power_of_two() && unit > 1 && bytes > 0 && bytes.is_multiple_of(unit);
    match UNITS.iter().filter(exact).max_by_key(|(_, unit)| *unit) {
        Some((name, unit)) => format!("{}{name}", bytes / unit),
        None => format!("{bytes}B"),
    }
}

/// A size for people: three digits are enough.
pub fn show_size(bytes: u64) -> String {
    let large = UNITS.iter().filter(|(_, unit)| unit.is_power_of_two() && *unit > 1 && bytes >= *unit);
    match large.max_by_key(|(_, unit)| *unit) {
        Some((name, unit)) => format!("{:.1} {name}", bytes as f64 / *unit as f64),
        None => format!("{bytes} B"),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        for (text, bytes) in [
            ("256MiB", Some(256 << 20)),
            ("1GiB", Some(1 << 30)),
            ("1.5 GiB", Some(3 << 29)),
            ("500MB", Some(500_000_000)),
            ("12", Some(12)),
            ("12B", Some(12)),
            ("3KB", Some(3000)),
            ("1.5", None),
            ("MiB", None),
            ("-1MiB", None),
            ("64 mib", None),
            ("99999999TiB", None),
            ("1e300GiB", None),
            ("nanMiB", None),
            ("", None),
        ] {
            assert_eq!(parse_size(text), bytes, "{text}");
        }
        assert_eq!(show_size(1_610_612_736), "1.5 GiB");
        assert_eq!(show_size(12), "12 B");
    }

    proptest! {
        #[test]
        fn a_size_that_was_written_is_read_again(bytes: u64) {
            prop_assert_eq!(parse_size(&write_size(bytes)), Some(bytes));
        }
    }
}
