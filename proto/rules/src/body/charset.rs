//! The `charset` parameter and its effect on a body's text.

use super::multipart::parameters;
use memchr::memmem;

/// Decoding of bytes to text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Charset {
    /// UTF-8, ASCII or no charset: the bytes are the text.
    Utf8,
    /// ISO 8859-1 and similar: the bytes are the text if all are ASCII.
    Latin,
    /// Another charset, or one that servers may disagree about.
    Other,
}

impl Charset {
    /// The charset of a Content-Type's parameters; `text` starts with the first `;`.
    pub(super) fn of(text: &[u8]) -> Charset {
        if !mentioned(text) {
            return Charset::Utf8;
        }
        let mut found = None;
        // Some servers use the first occurrence of the word, wherever it is.
        let read = parameters(text, |name, value| {
            if name.eq_ignore_ascii_case(b"charset") {
                return found.replace(Charset::named(value)).is_none().then_some(());
            }
            (!mentioned(name) && !mentioned(value)).then_some(())
        });
        read.and(found).unwrap_or(Charset::Other)
    }

    /// The charset with this name.
    pub(super) fn named(name: &[u8]) -> Charset {
        let is_one_of =
            |names: &[&str]| names.iter().any(|known| name.eq_ignore_ascii_case(known.as_bytes()));
        if is_one_of(&["utf-8", "utf8", "us-ascii", "ascii"]) {
            Charset::Utf8
        } else if is_one_of(&["iso-8859-1", "iso-8859-15", "windows-1252", "latin1"]) {
            Charset::Latin
        } else {
            Charset::Other
        }
    }

    /// Whether `bytes` in this charset are the same text as in UTF-8.
    pub(super) fn agrees_on(self, bytes: &[u8]) -> bool {
        match self {
            Charset::Utf8 => true,
            Charset::Latin => bytes.is_ascii(),
            Charset::Other => false,
        }
    }
}

fn mentioned(text: &[u8]) -> bool {
    memmem::find(&text.to_ascii_lowercase(), b"charset").is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn charset_counts_only_when_all_readers_find_it() {
        for (text, charset) in [
            ("", Charset::Utf8),
            ("; odata=verbose", Charset::Utf8),
            ("; charset", Charset::Other),
            ("; charset=utf-8", Charset::Utf8),
            (";CHARSET=\"UTF-8\"; x=y", Charset::Utf8),
            ("; charset=ISO-8859-1", Charset::Latin),
            ("; charset=utf-7", Charset::Other),
            ("; charset=", Charset::Other),
            ("; charset=utf-8; charset=utf-8", Charset::Other),
            ("; charset=utf-8; charset=utf-7", Charset::Other),
            ("; x=\"; charset=utf-7\"; charset=utf-8", Charset::Other),
            ("; xcharset=utf-7", Charset::Other),
            ("; charset*=utf-7''x", Charset::Other),
            ("; charset='utf-8'", Charset::Other),
            ("; charset=utf-8 x", Charset::Other),
        ] {
            assert_eq!(Charset::of(text.as_bytes()), charset, "{text}");
        }
    }
}
