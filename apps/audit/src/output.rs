//! Output for people and scripts.

use crate::cli::Failure;
use evergate_base::terminal::acts;
use serde::Serialize;
use std::borrow::Cow;
use std::io::Write;

/// Prints a value as one line of JSON.
pub(crate) fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string(value).map_err(|error| closed(error.into()))?;
    writeln!(std::io::stdout().lock(), "{}", escaped(&text)).map_err(closed)
}

/// JSON without characters on which a terminal acts. They are only within its strings.
fn escaped(json: &str) -> Cow<'_, str> {
    if !json.contains(acts) {
        return Cow::Borrowed(json);
    }
    let mut out = String::with_capacity(json.len() + 16);
    for c in json.chars() {
        if acts(c) {
            c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| out.push_str(&format!("\\u{unit:04x}")));
        } else {
            out.push(c);
        }
    }
    Cow::Owned(out)
}

/// Failure of standard output.
pub(crate) fn closed(error: std::io::Error) -> Failure {
    Failure::failed(format!("output: cannot write: {error}"))
}

/// Bytes for people: `950 B`, `4.2 MB`, `1.5 GB`.
pub(crate) fn shown_bytes(bytes: u64) -> String {
    let units = ["kB", "MB", "GB", "TB", "PB", "EB"];
    if bytes < 1000 {
        return format!("{bytes} B");
    }
    let (mut value, mut unit) = (bytes as f64 / 1000.0, 0);
    while value >= 999.95 && unit + 1 < units.len() {
        value /= 1000.0;
        unit += 1;
    }
    format!("{value:.1} {}", units[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_has_no_characters_that_a_terminal_acts_on() {
        let json = serde_json::to_string("a\u{9b}b\u{202e}c").expect("text");
        assert_eq!(escaped(&json), "\"a\\u009bb\\u202ec\"");
        assert_eq!(serde_json::from_str::<String>(&escaped(&json)).expect("JSON"), "a\u{9b}b\u{202e}c");
    }

    #[test]
    fn bytes_have_a_unit_that_fits() {
        for (bytes, text) in
            [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (999_960, "1.0 MB"), (u64::MAX, "18.4 EB")]
        {
            assert_eq!(shown_bytes(bytes), text);
        }
    }
}
