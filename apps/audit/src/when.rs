//! Times on the command line: RFC 3339 in UTC or with an offset, a date, `-15m`, `2h ago`, `now`. And times for people.

use evergate_base::rfc3339;
use std::time::{SystemTime, UNIX_EPOCH};

const SECOND_NS: i128 = 1_000_000_000;

/// Nanoseconds since 1970 by the system clock.
pub fn now_ns() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}

/// A time in nanoseconds since 1970 as RFC 3339 in UTC, with nine digits of the second.
pub fn shown_ns(time_ns: u64) -> String {
    let (seconds, rest) = (time_ns / 1_000_000_000, time_ns % 1_000_000_000);
    let date = rfc3339(i64::try_from(seconds).unwrap_or(i64::MAX));
    format!("{}.{rest:09}Z", date.trim_end_matches('Z'))
}

/// A time for a column: date and clock in UTC, with milliseconds.
pub fn shown_short(time_ns: u64) -> String {
    shown_ns(time_ns)[..].replacen('T', " ", 1).chars().take(23).collect()
}

/// A duration for people: `250 ms`, `4.2 s`, `3 h 20 min`, `12 d 4 h`.
pub fn shown_duration(ns: u64) -> String {
    let (ms, s) = (ns / 1_000_000, ns / 1_000_000_000);
    match s {
        0 => format!("{ms} ms"),
        1..60 => format!("{}.{} s", s, ms % 1000 / 100),
        60..3600 => format!("{} min {} s", s / 60, s % 60),
        3600..86_400 => format!("{} h {} min", s / 3600, s % 3600 / 60),
        _ => format!("{} d {} h", s / 86_400, s % 86_400 / 3600),
    }
}

/// The time that a text means, in nanoseconds since 1970.
pub fn parse(text: &str, now_ns: u64) -> Result<u64, String> {
    let text = text.trim();
    let ago = text.strip_prefix('-').or_else(|| text.strip_suffix("ago"));
    let time = match (text, ago) {
        ("now", _) => Some(i128::from(now_ns)),
        (_, Some(span)) => parse_span(span).map(|span| i128::from(now_ns) - span),
        _ => parse_date(text),
    };
    time.and_then(|ns| u64::try_from(ns).ok()).ok_or_else(|| {
        format!("{text:?} is no time: write 2026-11-28T08:00:00Z, 2026-11-28, -15m, or \"2h ago\"")
    })
}

/// `15m`, `2h 30m`, `90 s`, `3 days`.
fn parse_span(text: &str) -> Option<i128> {
    let (mut rest, mut total) = (text.trim(), 0i128);
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let number: u32 = rest[..digits].parse().ok()?;
        rest = rest[digits..].trim_start();
        let letters = rest.bytes().take_while(u8::is_ascii_alphabetic).count();
        let seconds = match &rest[..letters] {
            "s" | "sec" | "second" | "seconds" => 1,
            "m" | "min" | "minute" | "minutes" => 60,
            "h" | "hour" | "hours" => 3600,
            "d" | "day" | "days" => 86_400,
            "w" | "week" | "weeks" => 7 * 86_400,
            _ => return None,
        };
        total += i128::from(number) * seconds * SECOND_NS;
        rest = rest[letters..].trim_start();
    }
    (total > 0).then_some(total)
}

/// A date with or without a time. Without an offset it is in UTC.
fn parse_date(text: &str) -> Option<i128> {
    let days = i128::from(days_of_date(text.get(..10)?)?);
    let rest = &text[10..];
    if rest.is_empty() {
        return Some(days * 86_400 * SECOND_NS);
    }
    let rest = rest.strip_prefix(['T', 't', ' '])?;
    let end = rest.find(['Z', 'z', '+', '-']).unwrap_or(rest.len());
    let (clock, zone) = rest.split_at(end);
    let (hour, rest) = clock.split_once(':')?;
    let (minute, second) = rest.split_once(':').unwrap_or((rest, "0"));
    let (second, fraction) = second.split_once('.').unwrap_or((second, ""));
    let seconds = field(hour, 23)? * 3600 + field(minute, 59)? * 60 + field(second, 59)?;
    Some((days * 86_400 + seconds - parse_zone(zone)?) * SECOND_NS + parse_fraction(fraction)?)
}

/// Seconds that a zone is ahead of UTC.
fn parse_zone(zone: &str) -> Option<i128> {
    if matches!(zone, "" | "Z" | "z") {
        return Some(0);
    }
    let sign = if zone.starts_with('-') { -1 } else { 1 };
    let (hours, minutes) = zone.get(1..)?.split_once(':')?;
    Some(sign * (field(hours, 23)? * 3600 + field(minutes, 59)? * 60))
}

fn parse_fraction(digits: &str) -> Option<i128> {
    if digits.len() > 9 || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    format!("{digits:0<9}").parse().ok()
}

fn field(digits: &str, max: i128) -> Option<i128> {
    let is_number =
        !digits.is_empty() && digits.len() <= 2 && digits.bytes().all(|digit| digit.is_ascii_digit());
    digits.parse().ok().filter(|number| is_number && *number <= max)
}

/// Days since 1970 of `2026-11-28`.
pub(crate) fn days_of_date(date: &str) -> Option<i64> {
    let is_form = date.len() == 10
        && date.bytes().enumerate().all(|(at, byte)| match at {
            4 | 7 => byte == b'-',
            _ => byte.is_ascii_digit(),
        });
    if !is_form {
        return None;
    }
    let (year, month, day): (i64, i64, i64) =
        (date[..4].parse().ok()?, date[5..7].parse().ok()?, date[8..].parse().ok()?);
    // The year begins in March, so that the leap day ends it; 146,097 days are 400 years.
    let shifted = if month <= 2 { year - 1 } else { year };
    let (era, year_of_era) = (shifted.div_euclid(400), shifted.rem_euclid(400));
    let day_of_year = (153 * (month + if month > 2 { -3 } else { 9 }) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    let days = era * 146_097 + day_of_era - 719_468;
    rfc3339(days * 86_400).starts_with(date).then_some(days) // no 31 November
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_795_861_800_000_000_000; // 2026-11-28T10:30:00Z

    #[test]
    fn texts_have_their_times() {
        let minute = 60_000_000_000;
        for (text, ns) in [
            ("now", NOW),
            ("-15m", NOW - 15 * minute),
            ("2h ago", NOW - 120 * minute),
            ("1 day 2 hours ago", NOW - 26 * 60 * minute),
            ("2026-11-28", NOW - 630 * minute),
            ("2026-11-28T10:30:00Z", NOW),
            ("2026-11-28 10:30", NOW),
            ("2026-11-28T10:30:00.000000001Z", NOW + 1),
            ("2026-11-28T11:30:00+01:00", NOW),
            ("2026-11-28T05:00:00.5-05:30", NOW + 500_000_000),
        ] {
            assert_eq!(parse(text, NOW), Ok(ns), "{text}");
        }
        assert_eq!(shown_ns(NOW + 1), "2026-11-28T10:30:00.000000001Z");
        assert_eq!(shown_short(NOW + 1_000_000), "2026-11-28 10:30:00.001");
    }

    #[test]
    fn other_texts_are_refused() {
        for text in [
            "",
            "yesterday",
            "2026-02-29",
            "2026-11-28T25:00",
            "-15",
            "-m",
            "15",
            "-99999d",
            "1969-12-31",
            "é",
        ] {
            assert!(parse(text, NOW).is_err(), "{text}");
        }
    }

    proptest::proptest! {
        #[test]
        fn shown_time_parses_to_itself(ns: u64) {
            proptest::prop_assert_eq!(parse(&shown_ns(ns), NOW), Ok(ns));
        }

        #[test]
        fn any_text_never_panics(text: String) {
            let _ = parse(&text, NOW);
        }
    }
}
