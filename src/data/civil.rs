//! Dates and times as people write them, and as numbers of days and microseconds since 1970.
//!
//! The calendar is the Gregorian one, taken back before it was introduced, without leap seconds: what ISO 8601, Parquet
//! and every database mean. Times carry no zone; what is written with one is turned into UTC.

/// Microseconds of a day.
pub const MICROS_PER_DAY: i64 = 86_400_000_000;

const MICROS_PER_SECOND: i64 = 1_000_000;

/// Days of a cycle of the calendar, which has 400 years.
const DAYS_PER_CYCLE: i64 = 146_097;

/// Days from 0000-03-01, where the cycles are counted from, to 1970-01-01.
const DAYS_TO_1970: i64 = 719_468;

/// Days since 1970-01-01 of a date, if there is such a date. Years are 0 to 9999.
pub fn days_of(year: i64, month: u32, day: u32) -> Option<i64> {
    if !(0..=9999).contains(&year) || !(1..=12).contains(&month) || day < 1 || day > days_in_month(year, month) {
        return None;
    }
    // Years begin in March here, so that the day that some of them lack is the last.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let (cycle, year_of_cycle) = (year.div_euclid(400), year.rem_euclid(400));
    let day_of_year = i64::from((153 * month + 2) / 5 + day - 1);
    let day_of_cycle = 365 * year_of_cycle + year_of_cycle / 4 - year_of_cycle / 100 + day_of_year;
    Some(cycle * DAYS_PER_CYCLE + day_of_cycle - DAYS_TO_1970)
}

/// Year, month and day of a number of days since 1970-01-01.
pub fn date_of(days: i64) -> (i64, u32, u32) {
    let days = days + DAYS_TO_1970;
    let (cycle, day) = (days.div_euclid(DAYS_PER_CYCLE), days.rem_euclid(DAYS_PER_CYCLE));
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day_of_year = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let (year, month) = if month < 10 { (year, month + 3) } else { (year + 1, month - 9) };
    (cycle * 400 + year, month as u32, day as u32)
}

/// Day of the week of a number of days since 1970-01-01, Monday 0.
pub fn weekday_of(days: i64) -> u32 {
    (days + 3).rem_euclid(7) as u32 // the first day of 1970 was a Thursday
}

fn days_in_month(year: i64, month: u32) -> u32 {
    match month {
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// `2024-05-31` as days.
pub fn parse_date(text: &str) -> Option<i64> {
    let mut digits = Digits(text.as_bytes());
    let days = digits.date()?;
    digits.0.is_empty().then_some(days)
}

/// `2024-05-31T07:45`, with `T` or a space, perhaps with seconds, digits of a second beyond which microseconds are
/// dropped, and a zone (`Z`, `+02:00`, `+0200`): as microseconds since 1970 in UTC.
pub fn parse_timestamp(text: &str) -> Option<i64> {
    let mut rest = Digits(text.as_bytes());
    let days = rest.date()?;
    if !(rest.take(b'T') || rest.take(b't') || rest.take(b' ')) {
        return None;
    }
    let (hours, minutes) = (rest.number(2)?, rest.take(b':').then(|| rest.number(2))??);
    let seconds = if rest.take(b':') { rest.number(2)? } else { 0 };
    let micros = if rest.take(b'.') { rest.fraction()? } else { 0 };
    if hours > 23 || minutes > 59 || seconds > 59 {
        return None;
    }
    let offset = rest.zone()?;
    let of_day = (hours * 3600 + minutes * 60 + seconds - offset) * MICROS_PER_SECOND + micros;
    rest.0.is_empty().then_some(days * MICROS_PER_DAY + of_day)
}

/// What is left of a text that begins with digits.
struct Digits<'a>(&'a [u8]);

impl Digits<'_> {
    fn take(&mut self, byte: u8) -> bool {
        let is_next = self.0.first() == Some(&byte);
        if is_next {
            self.0 = &self.0[1..];
        }
        is_next
    }

    /// Exactly so many digits.
    fn number(&mut self, digits: usize) -> Option<i64> {
        let (number, rest) = self.0.split_at_checked(digits)?;
        self.0 = rest;
        number.iter().try_fold(0, |sum, byte| byte.is_ascii_digit().then(|| 10 * sum + i64::from(byte - b'0')))
    }

    fn date(&mut self) -> Option<i64> {
        let year = self.number(4)?;
        let month = self.take(b'-').then(|| self.number(2))??;
        let day = self.take(b'-').then(|| self.number(2))??;
        days_of(year, month as u32, day as u32)
    }

    /// Digits of a second, one at least, as microseconds.
    fn fraction(&mut self) -> Option<i64> {
        let (mut micros, mut worth, mut seen) = (0, 100_000, false);
        while let Some(digit) = self.0.first().filter(|byte| byte.is_ascii_digit()) {
            micros += i64::from(digit - b'0') * worth;
            worth /= 10;
            self.0 = &self.0[1..];
            seen = true;
        }
        seen.then_some(micros)
    }

    /// Seconds that a zone is ahead of UTC; 0 where none is written.
    fn zone(&mut self) -> Option<i64> {
        if self.0.is_empty() || self.take(b'Z') || self.take(b'z') {
            return Some(0);
        }
        let sign = if self.take(b'+') { 1 } else { self.take(b'-').then_some(-1)? };
        let hours = self.number(2)?;
        self.take(b':');
        let minutes = if self.0.is_empty() { 0 } else { self.number(2)? };
        (hours < 24 && minutes < 60).then_some(sign * (hours * 3600 + minutes * 60))
    }
}

/// Days as `2024-05-31`.
pub fn show_date(days: i64) -> String {
    let (year, month, day) = date_of(days);
    format!("{year:04}-{month:02}-{day:02}")
}

/// Microseconds as `2024-05-31T07:45:00`, with as many digits of a second as there are, up to six.
pub fn show_timestamp(micros: i64) -> String {
    let (days, of_day) = (micros.div_euclid(MICROS_PER_DAY), micros.rem_euclid(MICROS_PER_DAY));
    let (seconds, fraction) = (of_day / MICROS_PER_SECOND, of_day % MICROS_PER_SECOND);
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    let mut shown = format!("{}T{hours:02}:{minutes:02}:{seconds:02}", show_date(days));
    if fraction != 0 {
        shown += format!(".{fraction:06}").trim_end_matches('0');
    }
    shown
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn days_follow_each_other_through_twelve_centuries() {
        let (mut date, mut weekday) = ((1600, 1, 1), weekday_of(days_of(1600, 1, 1).unwrap()));
        for days in days_of(1600, 1, 1).unwrap()..days_of(2800, 1, 1).unwrap() {
            assert_eq!((date_of(days), days_of(date.0, date.1, date.2)), (date, Some(days)));
            assert_eq!(weekday_of(days), weekday);
            weekday = (weekday + 1) % 7;
            date = match date {
                (year, 12, 31) => (year + 1, 1, 1),
                (year, month, day) if day == days_in_month(year, month) => (year, month + 1, 1),
                (year, month, day) => (year, month, day + 1),
            };
        }
        assert_eq!(days_of(1970, 1, 1), Some(0));
        assert_eq!(weekday_of(parse_date("2024-02-29").unwrap()), 3, "a Thursday");
        assert_eq!((days_of(1900, 2, 29), days_of(2023, 4, 31), days_of(2023, 13, 1)), (None, None, None));
    }

    #[test]
    fn zones_and_parts_of_seconds_are_read() {
        let noon = parse_timestamp("2024-05-31T12:00:00Z").unwrap();
        for same in
            ["2024-05-31 12:00", "2024-05-31T14:00:00+02:00", "2024-05-31T07:30:00.000-0430", "2024-05-31t12:00z"]
        {
            assert_eq!(parse_timestamp(same), Some(noon), "{same}");
        }
        assert_eq!(parse_timestamp("2024-05-31T12:00:00.1234567"), Some(noon + 123_456));
        assert_eq!(show_timestamp(noon + 120_000), "2024-05-31T12:00:00.12");
        for wrong in [
            "2024-05-31",
            "2024-05-31T24:00",
            "2024-05-31T12",
            "2024-05-31T12:00:00.",
            "2024-05-31T12:00 CET",
            "2024-5-31T12:00",
            "2024-05-31T12:60",
            "2024-05-31T12:00+25:00",
            "",
            "x",
            "2024-02-30T12:00",
        ] {
            assert_eq!(parse_timestamp(wrong), None, "{wrong}");
        }
        assert_eq!((parse_date("2024-05-31T12:00"), parse_date("20240531"), parse_date("2024-05")), (None, None, None));
    }

    proptest! {
        #[test]
        fn what_is_shown_is_read_back(micros in -62_167_219_200_000_000i64..253_402_300_800_000_000) {
            prop_assert_eq!(parse_timestamp(&show_timestamp(micros)), Some(micros));
            let days = micros.div_euclid(MICROS_PER_DAY);
            prop_assert_eq!(parse_date(&show_date(days)), Some(days));
        }
    }
}
