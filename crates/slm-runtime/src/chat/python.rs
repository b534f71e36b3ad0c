//! What templates expect of Python: `raise_exception`, `strftime_now`, `tojson`, and how values print.

use core::fmt;

use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Error, ErrorKind, State};
use serde::Serialize;

use super::error::ChatError;

/// The words of a `raise_exception`, carried through the template engine as the source of its error.
#[derive(Debug)]
pub(crate) struct Raised(pub(crate) String);

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

pub(crate) fn raise_exception(message: String) -> Result<Value, Error> {
    let shown = message.clone();
    Err(Error::new(ErrorKind::InvalidOperation, shown).with_source(Raised(message)))
}

/// Python's `json.dumps` as templates call it: nothing escaped for HTML, letters beyond ASCII as they are, order kept.
pub(crate) fn tojson(
    value: &Value,
    indent: Option<usize>,
    options: Kwargs,
) -> Result<String, Error> {
    let named: Option<usize> = options.get("indent")?;
    // Accepted and without effect: the first is this filter's behaviour, the others are seldom given and leave the values alone.
    for name in ["ensure_ascii", "separators", "sort_keys"] {
        let _: Option<Value> = options.get(name)?;
    }
    options.assert_all_used()?;
    let failed =
        |error: serde_json::Error| Error::new(ErrorKind::BadSerialization, error.to_string());
    let mut out = Vec::new();
    match indent.or(named) {
        Some(width) => {
            let indent = " ".repeat(width.min(16));
            let formatter = serde_json::ser::PrettyFormatter::with_indent(indent.as_bytes());
            value
                .serialize(&mut serde_json::Serializer::with_formatter(&mut out, formatter))
                .map_err(failed)?;
        }
        None => value
            .serialize(&mut serde_json::Serializer::with_formatter(&mut out, Spaced))
            .map_err(failed)?,
    }
    Ok(String::from_utf8(out).expect("BUG: JSON is not UTF-8"))
}

/// JSON on one line with a space behind `,` and `:`, as Python writes it.
struct Spaced;

impl serde_json::ser::Formatter for Spaced {
    fn begin_array_value<W: ?Sized + std::io::Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + std::io::Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + std::io::Write>(
        &mut self,
        writer: &mut W,
    ) -> std::io::Result<()> {
        writer.write_all(b": ")
    }
}

/// Prints truth values and nothing as Python does.
pub(crate) fn print(
    out: &mut minijinja::Output<'_>,
    state: &mut State<'_, '_>,
    value: &Value,
) -> Result<(), Error> {
    let text = match value.kind() {
        ValueKind::Bool if value.is_true() => "True",
        ValueKind::Bool => "False",
        ValueKind::None => "None",
        _ => return minijinja::escape_formatter(out, state, value),
    };
    out.write_str(text).map_err(Error::from)
}

/// A date and a time of day, given by the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Moment {
    year: u32,
    month: u32,
    day: u32,
    hour: u32,
    minute: u32,
    second: u32,
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] =
    ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

impl Moment {
    /// Reads `YYYY-MM-DD` or `YYYY-MM-DDTHH:MM:SS`; midnight where no time is given.
    pub(crate) fn parse(text: &str) -> Result<Moment, ChatError> {
        Moment::read(text)
            .ok_or_else(|| ChatError::BadDate { found: text.chars().take(64).collect() })
    }

    fn read(text: &str) -> Option<Moment> {
        let (date, time) = text.split_once('T').unwrap_or((text, "00:00:00"));
        let [year, month, day] = fields(date, '-', [4, 2, 2])?;
        let [hour, minute, second] = fields(time, ':', [2, 2, 2])?;
        let moment = Moment { year, month, day, hour, minute, second };
        let in_range = (1..=12).contains(&month) && (1..=moment.days_in(month)).contains(&day);
        (in_range && hour < 24 && minute < 60 && second < 60).then_some(moment)
    }

    /// Formats as C's `strftime` in the C locale; unknown letters are an error, because text would be wrong.
    pub(crate) fn format(&self, format: &str) -> Result<String, Error> {
        let mut out = String::new();
        let mut chars = format.chars();
        while let Some(character) = chars.next() {
            if character != '%' {
                out.push(character);
                continue;
            }
            let mut letter = chars.next();
            let is_short = letter == Some('-');
            if is_short {
                letter = chars.next();
            }
            let pad = |value: u32, width: usize| {
                if is_short { value.to_string() } else { format!("{value:0width$}") }
            };
            let month = MONTHS[usize::try_from(self.month - 1).unwrap_or(0)];
            let day = DAYS[usize::try_from(self.weekday()).unwrap_or(0)];
            let text = match letter {
                Some('Y') => self.year.to_string(),
                Some('y') => pad(self.year % 100, 2),
                Some('m') => pad(self.month, 2),
                Some('B') => month.to_owned(),
                Some('b' | 'h') => month[..3].to_owned(),
                Some('d') => pad(self.day, 2),
                Some('e') => format!("{:2}", self.day),
                Some('j') => {
                    pad((1..self.month).map(|month| self.days_in(month)).sum::<u32>() + self.day, 3)
                }
                Some('A') => day.to_owned(),
                Some('a') => day[..3].to_owned(),
                Some('H') => pad(self.hour, 2),
                Some('I') => pad((self.hour + 11) % 12 + 1, 2),
                Some('M') => pad(self.minute, 2),
                Some('S') => pad(self.second, 2),
                Some('p') => if self.hour < 12 { "AM" } else { "PM" }.to_owned(),
                Some('F') => format!("{}-{:02}-{:02}", self.year, self.month, self.day),
                Some('T') => format!("{:02}:{:02}:{:02}", self.hour, self.minute, self.second),
                Some('%') => "%".to_owned(),
                _ => {
                    let message = format!(
                        "strftime_now does not know %{}",
                        letter.map_or(String::new(), String::from)
                    );
                    return Err(Error::new(ErrorKind::InvalidOperation, message));
                }
            };
            out.push_str(&text);
        }
        Ok(out)
    }

    fn days_in(&self, month: u32) -> u32 {
        let is_leap = self.year.is_multiple_of(4)
            && (!self.year.is_multiple_of(100) || self.year.is_multiple_of(400));
        match month {
            2 if is_leap => 29,
            2 => 28,
            4 | 6 | 9 | 11 => 30,
            _ => 31,
        }
    }

    /// Days since Sunday, by Sakamoto's method for the Gregorian calendar.
    fn weekday(&self) -> u32 {
        const SHIFT: [u32; 12] = [0, 3, 2, 5, 0, 3, 5, 1, 4, 6, 2, 4];
        // A whole cycle of 400 years has a whole number of weeks; adding it keeps year 0 from passing below zero.
        let year = self.year + 400 - u32::from(self.month < 3);
        (year + year / 4 - year / 100
            + year / 400
            + SHIFT[usize::try_from(self.month - 1).unwrap_or(0)]
            + self.day)
            % 7
    }
}

/// Three numbers of fixed widths.
fn fields(text: &str, separator: char, widths: [usize; 3]) -> Option<[u32; 3]> {
    let mut parts = text.split(separator);
    let mut out = [0; 3];
    for (slot, width) in out.iter_mut().zip(widths) {
        let part = parts
            .next()
            .filter(|part| part.len() == width && part.bytes().all(|byte| byte.is_ascii_digit()))?;
        *slot = part.parse().ok()?;
    }
    parts.next().is_none().then_some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_formatted_as_python_does() {
        // Python 3.11: datetime(2024, 2, 29, 13, 5, 9).strftime(...)
        let moment = Moment::parse("2024-02-29T13:05:09").unwrap();
        assert_eq!(moment.format("%d %b %Y").unwrap(), "29 Feb 2024");
        assert_eq!(
            moment.format("%A %a %B %j %I:%M %p %H%M%S %y %-m %%").unwrap(),
            "Thursday Thu February 060 01:05 PM 130509 24 2 %"
        );
        assert_eq!(
            Moment::parse("2026-11-29").unwrap().format("%a %F %T").unwrap(),
            "Sun 2026-11-29 00:00:00"
        );
        assert!(moment.format("%Q").is_err());
    }

    #[test]
    fn what_is_no_date_is_refused() {
        for bad in [
            "",
            "2023-02-29",
            "2024-13-01",
            "2024-1-1",
            "2024-01-01T24:00:00",
            "2024-01-01-01",
            "today",
        ] {
            assert!(matches!(Moment::parse(bad), Err(ChatError::BadDate { .. })), "{bad}");
        }
        assert!(Moment::parse("2024-02-29").is_ok());
    }
}
