//! `application/x-www-form-urlencoded`: pairs separated by `&`, `+` for a blank, `%HH` for a byte.

use std::borrow::Cow;
use std::collections::HashMap;

use super::{Reach, Sink, Value};
use crate::field::FieldId;
use crate::spec::Limits;

/// Decodes one name or value. An invalid `%` stays as it is, as browsers and servers do (WHATWG URL standard), and
/// bytes are kept as bytes, so that no replacement character hides a difference.
pub(crate) fn decode(bytes: &[u8]) -> Cow<'_, [u8]> {
    if !bytes.iter().any(|&byte| byte == b'+' || byte == b'%') {
        return Cow::Borrowed(bytes);
    }
    let hex = |at: usize| bytes.get(at).and_then(|&byte| char::from(byte).to_digit(16));
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        match (bytes[at], hex(at + 1), hex(at + 2)) {
            (b'%', Some(high), Some(low)) => {
                decoded.push((high * 16 + low) as u8);
                at += 2;
            }
            (b'+', ..) => decoded.push(b' '),
            (byte, ..) => decoded.push(byte),
        }
        at += 1;
    }
    Cow::Owned(decoded)
}

pub(super) fn read(
    wanted: &HashMap<Vec<u8>, FieldId>,
    bytes: &[u8],
    whole: bool,
    limits: &Limits,
    sink: &mut dyn Sink,
) -> Reach {
    let mut pairs = bytes.split(|&byte| byte == b'&').peekable();
    while let Some(pair) = pairs.next() {
        if pairs.peek().is_none() && !whole {
            // The last pair may go on past the prefix.
            break;
        }
        if pair.is_empty() {
            continue;
        }
        let equals = memchr::memchr(b'=', pair).unwrap_or(pair.len());
        let value = pair.get(equals + 1..).unwrap_or_default();
        if let Some(&field) = wanted.get(decode(&pair[..equals]).as_ref()) {
            // Three encoded bytes make one, so this bounds the work before decoding.
            if value.len() > 3 * limits.body_value_bytes_max {
                sink.value(field, Value::Long);
                continue;
            }
            let value = decode(value);
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
    fn names_and_values_are_decoded_and_all_values_are_seen() {
        assert_eq!(
            values("x=1&a+b=1&&a%20b=%32+&a+b", true),
            (Reach::Whole, vec![text("1"), text("2 "), text("")])
        );
        assert_eq!(values("a+b=%zz%", true), (Reach::Whole, vec![text("%zz%")]));
    }

    #[test]
    fn a_pair_at_the_cut_is_not_a_value() {
        assert_eq!(values("a+b=1&a+b=2", false), (Reach::Cut, vec![text("1")]));
        assert_eq!(values("a+b=12345&x", false), (Reach::Cut, vec!["Long".into()]));
    }
}
