//! `application/x-www-form-urlencoded`: pairs separated by `&`, `+` for a blank, `%HH` for a byte.

use std::borrow::Cow;
use std::collections::HashMap;

use super::{Reach, Sink, Value};
use crate::field::FieldId;
use crate::spec::Limits;

/// Decodes one name or value. An invalid `%` is kept, as in browsers and servers (WHATWG URL standard). Bytes are kept
/// as bytes, so that no replacement character hides a difference.
pub(crate) fn decode(bytes: &[u8]) -> Cow<'_, [u8]> {
    if memchr::memchr2(b'+', b'%', bytes).is_none() {
        return Cow::Borrowed(bytes);
    }
    Cow::Owned(decoded(bytes, b' '))
}

/// Decodes `%HH` alone.
pub(crate) fn percent_decode(bytes: &[u8]) -> Cow<'_, [u8]> {
    if memchr::memchr_iter(b'%', bytes).all(|at| !is_escape(bytes, at)) {
        return Cow::Borrowed(bytes);
    }
    Cow::Owned(decoded(bytes, b'+'))
}

/// Whether the `%` at `at` begins an escape.
fn is_escape(bytes: &[u8], at: usize) -> bool {
    let digits = bytes.get(at + 1..at + 3).unwrap_or_default();
    digits.len() == 2 && digits.iter().all(u8::is_ascii_hexdigit)
}

fn decoded(bytes: &[u8], plus: u8) -> Vec<u8> {
    let hex = |at: usize| bytes.get(at).and_then(|&byte| char::from(byte).to_digit(16));
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        match (bytes[at], hex(at + 1), hex(at + 2)) {
            (b'%', Some(high), Some(low)) => {
                decoded.push((high * 16 + low) as u8);
                at += 2;
            }
            (b'+', ..) => decoded.push(plus),
            (byte, ..) => decoded.push(byte),
        }
        at += 1;
    }
    decoded
}

/// Whether all servers split these bytes into the same pairs. Control characters and `;` break this, because some
/// servers read `;` as `&`. Browsers send neither.
pub(crate) fn is_split_alike(bytes: &[u8]) -> bool {
    !bytes.iter().any(|&byte| byte.is_ascii_control() || byte == b';')
}

/// Whether all servers read the same name. These break it: an invalid escape; escaped control characters, where some
/// servers stop or which they drop; and a leading blank, which some drop.
pub(crate) fn is_clear_name(raw: &[u8], name: &[u8]) -> bool {
    has_only_escapes(raw) && !name.starts_with(b" ") && !name.iter().any(u8::is_ascii_control)
}

/// Whether all servers read the same value. These break it: an invalid escape, and NUL, where some servers end the
/// value.
pub(crate) fn is_clear_value(raw: &[u8], value: &[u8]) -> bool {
    has_only_escapes(raw) && memchr::memchr(0, value).is_none()
}

fn has_only_escapes(raw: &[u8]) -> bool {
    memchr::memchr_iter(b'%', raw).all(|at| is_escape(raw, at))
}

pub(super) fn read(
    wanted: &HashMap<Vec<u8>, FieldId>,
    bytes: &[u8],
    whole: bool,
    limits: &Limits,
    sink: &mut dyn Sink,
) -> Reach {
    if bytes.starts_with(b"\xEF\xBB\xBF") {
        return Reach::Broken; // a byte order mark, or a part of the first name
    }
    let mut pairs = bytes.split(|&byte| byte == b'&').peekable();
    while let Some(pair) = pairs.next() {
        if pairs.peek().is_none() && !whole {
            // The last pair may continue behind the prefix.
            break;
        }
        if pair.is_empty() {
            continue;
        }
        let equals = memchr::memchr(b'=', pair).unwrap_or(pair.len());
        let (raw_name, value) = (&pair[..equals], pair.get(equals + 1..).unwrap_or_default());
        let name = decode(raw_name);
        if !is_split_alike(pair) || !has_only_escapes(value) || !is_clear_name(raw_name, &name) {
            return Reach::Broken;
        }
        if let Some(&field) = wanted.get(name.as_ref()) {
            // Three encoded bytes make one, so this bounds the work before decoding.
            if value.len() > 3 * limits.body_value_bytes_max {
                sink.value(field, Value::Long);
                continue;
            }
            let raw = value;
            let value = decode(raw);
            if !is_clear_value(raw, &value) {
                return Reach::Broken;
            }
            let long = value.len() > limits.body_value_bytes_max;
            sink.value(field, if long { Value::Long } else { Value::Text(&value) });
        }
    }
    if whole { Reach::Whole } else { Reach::Cut }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(body: &str, whole: bool) -> (Reach, Vec<String>) {
        let wanted = HashMap::from([(b"a b".to_vec(), 1)]);
        let mut found = Vec::new();
        let mut keep = |_, value: Value<'_>| found.push(format!("{value:?}"));
        let limits = Limits { body_value_bytes_max: 4, ..Limits::default() };
        let reach = read(&wanted, body.as_bytes(), whole, &limits, &mut keep);
        (reach, found)
    }

    fn text(text: &str) -> String {
        format!("{:?}", Value::Text(text.as_bytes()))
    }

    #[test]
    fn names_and_values_are_decoded() {
        assert_eq!(
            values("x=1&a+b=1&&a%20b=%32+&a+b", true),
            (Reach::Whole, vec![text("1"), text("2 "), text("")])
        );
        assert_eq!(decode(b"%zz%").as_ref(), b"%zz%", "in a query");
    }

    #[test]
    fn ambiguous_pairs_break_the_body() {
        for body in [
            "a+b=%zz",
            "a+b=1%",
            "a+b=%u0078",
            "x=%4&a+b=1",
            "x=1;a+b=2",
            "a+b=1\r\n",
            "a+b=1\0",
            "\u{feff}a+b=1",
            "+a+b=1",
            "%20a+b=1",
            " a+b=1",
            "a+b%00x=1",
            "%0d%0aa+b=1",
            "a+b%09=1",
            "a+b=1%00",
        ] {
            assert_eq!(values(body, true).0, Reach::Broken, "{body:?}");
        }
        assert_eq!(values("a+b=%0d%0a", true), (Reach::Whole, vec![text("\r\n")]), "lines of a text");
        assert_eq!(values("a+b=%3B&x=\u{e9} y", true), (Reach::Whole, vec![text(";")]));
    }

    #[test]
    fn pair_at_the_cut_is_not_a_value() {
        assert_eq!(values("a+b=1&a+b=2", false), (Reach::Cut, vec![text("1")]));
        assert_eq!(values("a+b=12345&x", false), (Reach::Cut, vec!["Long".into()]));
    }
}
