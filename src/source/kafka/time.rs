//! Times as people write them: RFC 3339.

/// Milliseconds since 1970 of a time such as `2026-11-18T09:30:00Z` or `2026-11-18T09:30:00.5+01:00`.
pub(super) fn parse_time(text: &str) -> Result<i64, String> {
    read_time(text.as_bytes()).ok_or_else(|| {
        "must be \"earliest\", \"latest\", or a time such as \"2026-11-18T09:30:00Z\" (RFC 3339)".to_string()
    })
}

fn read_time(text: &[u8]) -> Option<i64> {
    let (date, rest) = (text.get(..10)?, text.get(11..)?);
    let (year, month, day) = match date {
        [year @ .., b'-', m1, m2, b'-', d1, d2] => (number(year)?, number(&[*m1, *m2])?, number(&[*d1, *d2])?),
        _ => return None,
    };
    let [h1, h2, b':', m1, m2, b':', s1, s2, rest @ ..] = rest else { return None };
    let (hour, minute, second) = (number(&[*h1, *h2])?, number(&[*m1, *m2])?, number(&[*s1, *s2])?);
    let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let days_in_month = match month {
        4 | 6 | 9 | 11 => 30,
        2 => 28 + i64::from(is_leap),
        1..=12 => 31,
        _ => return None,
    };
    // A leap second is the first of the next minute.
    if !matches!(text[10], b'T' | b't' | b' ')
        || !(1..=days_in_month).contains(&day)
        || hour > 23
        || minute > 59
        || second > 60
    {
        return None;
    }
    let (millis, zone) = match rest {
        [b'.', rest @ ..] => {
            let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
            let first: Vec<u8> = rest.get(..digits)?.iter().copied().chain(*b"000").take(3).collect();
            (number(&first).filter(|_| digits > 0)?, &rest[digits..])
        }
        rest => (0, rest),
    };
    let offset_minutes = match zone {
        b"Z" | b"z" => 0,
        [sign @ (b'+' | b'-'), h1, h2, b':', m1, m2] => {
            let (hours, minutes) = (number(&[*h1, *h2])?, number(&[*m1, *m2])?);
            let offset = 60 * hours + minutes;
            if hours > 23 || minutes > 59 {
                return None;
            }
            if *sign == b'-' { -offset } else { offset }
        }
        _ => return None,
    };
    let days = days_since_1970(year, month, day);
    Some((((days * 24 + hour) * 60 + minute - offset_minutes) * 60 + second) * 1000 + millis)
}

fn number(digits: &[u8]) -> Option<i64> {
    let digit = |byte: &u8| byte.is_ascii_digit().then(|| i64::from(byte - b'0'));
    digits.iter().try_fold(0, |number, byte| Some(number * 10 + digit(byte)?)).filter(|_| !digits.is_empty())
}

/// Days of the proleptic Gregorian calendar: years begin in March, so that a leap day is the last of its year.
fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_milliseconds_of_their_zone() {
        for (text, millis) in [
            ("1970-01-01T00:00:00Z", 0),
            ("1970-01-01T01:00:00.25+01:00", 250),
            ("2000-02-29T12:00:00Z", 951_825_600_000),
            ("2026-11-18T09:30:00.123456Z", 1_794_994_200_123),
            ("1969-12-31T18:59:59-05:00", -1000),
        ] {
            assert_eq!(parse_time(text), Ok(millis), "{text}");
        }
        for text in ["", "now", "2026-11-18", "2026-13-01T00:00:00Z", "2026-02-29T00:00:00Z", "2026-11-18T24:00:00Z"] {
            assert!(parse_time(text).is_err(), "{text}");
        }
        for text in ["2026-11-18T09:30:00", "2026-11-18T09:30:00.Z", "2026-11-18T09:30:00+1", "20é6-11-18T09:30:00Z"] {
            assert!(parse_time(text).is_err(), "{text}");
        }
    }
}
