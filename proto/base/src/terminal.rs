//! Escaping of text for terminals.
//!
//! Certificates, servers and configuration files may contain any character, and their text appears in messages, logs
//! and tables.

use std::borrow::Cow;

/// Whether a terminal acts on a character, or shows nothing: control characters, and marks that change the direction of
/// writing or have no width.
pub fn acts(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}')
        || matches!(c, '\u{2066}'..='\u{2069}' | '\u{feff}')
}

/// A text that is safe to show: characters on which a terminal acts are written as escapes of Rust, such as `\u{1b}`.
pub fn shown(text: &str) -> Cow<'_, str> {
    if !text.contains(acts) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    text.chars().for_each(|c| push_shown(&mut out, c));
    Cow::Owned(out)
}

/// Appends one character like [`shown`].
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
    fn visible_characters_are_unchanged() {
        for text in ["", "plain \"text\"", "Zürich, 東京, 🚀"] {
            assert!(matches!(shown(text), Cow::Borrowed(same) if same == text));
        }
        assert_eq!(shown("a\x1b[2J\u{9b}1m\nb\u{202e}c\u{7f}"), r"a\u{1b}[2J\u{9b}1m\nb\u{202e}c\u{7f}");
    }
}
