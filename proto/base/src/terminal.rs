//! What of a text a terminal would act upon instead of showing it.
//!
//! Certificates, servers and configuration files may hold anything, and end in messages, logs and tables that people look at.

use std::borrow::Cow;

/// Whether a terminal acts on a character, or shows nothing: control characters, marks that turn the direction of writing or
/// have no width.
pub fn acts(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

/// A text that may be shown: what a terminal would act upon is written as an escape of Rust, such as `\u{1b}`.
pub fn shown(text: &str) -> Cow<'_, str> {
    if !text.contains(acts) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    text.chars().for_each(|c| push_shown(&mut out, c));
    Cow::Owned(out)
}

/// Appends one character as [`shown`] would.
pub fn push_shown(to: &mut String, c: char) {
    if acts(c) {
        to.extend(c.escape_default());
    } else {
        to.push(c);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_seen_as_it_is_stays_as_it_is() {
        for text in ["", "plain \"text\"", "Zürich, 東京, 🚀"] {
            assert!(matches!(shown(text), Cow::Borrowed(same) if same == text));
        }
        assert_eq!(shown("a\x1b[2J\u{9b}1m\nb\u{202e}c\u{7f}"), r"a\u{1b}[2J\u{9b}1m\nb\u{202e}c\u{7f}");
    }
}
