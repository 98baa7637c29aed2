//! Heads of HTTP/1.2 to HTTP/1.9 for a parser that knows HTTP/1.0 and HTTP/1.1 only.

use std::borrow::Cow;

/// The head as HTTP/1.1 if its minor version is higher; `before` precedes that version.
pub fn as_http11<'a>(bytes: &'a [u8], before: &[u8]) -> Cow<'a, [u8]> {
    let at = bytes.windows(before.len()).position(|window| window == before).map(|at| at + before.len());
    match at.and_then(|at| bytes.get(at).map(|minor| (at, *minor))) {
        Some((at, b'2'..=b'9')) => {
            let mut all = bytes.to_vec();
            all[at] = b'1';
            Cow::Owned(all)
        }
        _ => Cow::Borrowed(bytes),
    }
}
