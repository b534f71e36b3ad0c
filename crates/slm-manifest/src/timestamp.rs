//! RFC 3339 in UTC, one spelling.

/// Whether `text` is an RFC 3339 time in UTC as slm writes it: `2026-07-21T00:00:00Z`, or with 1 to 9 decimals of a second.
///
/// Upper-case `T` and `Z`; the day exists in the calendar; no leap second, which few clocks can give back.
///
/// ```
/// use slm_manifest::is_utc_timestamp;
///
/// assert!(is_utc_timestamp("2026-07-21T00:00:00Z"));
/// assert!(!is_utc_timestamp("2026-02-30T00:00:00Z"));
/// ```
pub fn is_utc_timestamp(text: &str) -> bool {
    let Some((seconds, rest)) = text.split_at_checked(19) else { return false };
    let shape_fits =
        seconds.bytes().zip("dddd-dd-ddTdd:dd:dd".bytes()).all(
            |(found, expected)| match expected {
                b'd' => found.is_ascii_digit(),
                other => found == other,
            },
        );
    let rest_fits = match rest.strip_suffix('Z') {
        Some("") => true,
        Some(fraction) => fraction.strip_prefix('.').is_some_and(|digits| {
            (1..=9).contains(&digits.len()) && digits.bytes().all(|d| d.is_ascii_digit())
        }),
        None => false,
    };
    if !shape_fits || !rest_fits {
        return false;
    }
    let number = |range: core::ops::Range<usize>| {
        seconds[range].bytes().fold(0u32, |n, digit| n * 10 + u32::from(digit - b'0'))
    };
    let (year, month, day) = (number(0..4), number(5..7), number(8..10));
    let leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let days = match month {
        4 | 6 | 9 | 11 => 30,
        2 if leap => 29,
        2 => 28,
        1..=12 => 31,
        _ => return false,
    };
    (1..=days).contains(&day) && number(11..13) < 24 && number(14..16) < 60 && number(17..19) < 60
}

#[cfg(test)]
mod tests {
    use super::is_utc_timestamp;

    #[test]
    fn days_exist_and_the_spelling_is_one() {
        for good in [
            "2026-07-21T00:00:00Z",
            "2024-02-29T23:59:59.5Z",
            "2000-02-29T00:00:00.123456789Z",
            "0000-01-01T00:00:00Z",
        ] {
            assert!(is_utc_timestamp(good), "{good}");
        }
        for bad in [
            "",
            "Z",
            "2026-07-21T00:00:00",
            "2026-07-21T00:00:00z",
            "2026-07-21t00:00:00Z",
            "2026-07-21 00:00:00Z",
            "2026-07-21T00:00:00+00:00",
            "2026-7-21T00:00:00Z",
            "2026-13-01T00:00:00Z",
            "2026-00-01T00:00:00Z",
            "2026-01-00T00:00:00Z",
            "2026-02-29T00:00:00Z",
            "1900-02-29T00:00:00Z",
            "2026-04-31T00:00:00Z",
            "2026-07-21T24:00:00Z",
            "2026-07-21T00:60:00Z",
            "2026-07-21T00:00:60Z",
            "2026-07-21T00:00:00.Z",
            "2026-07-21T00:00:00.1234567890Z",
            "2026-07-21T00:00:00,5Z",
            "2026-07-21T00:00:00ZZ",
            "２026-07-21T00:00:00Z",
            "2026-07-21T00:00:0é",
        ] {
            assert!(!is_utc_timestamp(bad), "{bad}");
        }
    }
}
