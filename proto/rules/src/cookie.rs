//! Readings of a `Cookie` line by servers that deviate from RFC 6265 section 5.4. That section has neither quotes nor
//! escapes, and only `;` ends a pair.

use std::borrow::Cow;

use crate::body::percent_decode;

/// Calls `take` with the other readings of a value: up to a blank or a comma (Python and other followers of RFC 2109),
/// without the quotes around it (Go, Python, Node), and each of these with `%HH` decoded (PHP, Node). Returns whether
/// these are all. They are incomplete with a backslash within quotes, which Python reads as an escape, and with quotes
/// that end elsewhere. The same holds for NUL, where some servers end the value.
pub(crate) fn other_readings(value: &[u8], mut take: impl FnMut(&[u8])) -> bool {
    let Some(first) = value.iter().position(|byte| matches!(byte, b'"' | b'%' | b' ' | b'\t' | b',')) else {
        return true;
    };
    let mut clear = true;
    let shorter = match value.strip_prefix(b"\"") {
        Some(rest) => {
            let inner =
                rest.strip_suffix(b"\"").filter(|inner| memchr::memchr2(b'"', b'\\', inner).is_none());
            clear &= inner.is_some();
            inner
        }
        None => value[first..]
            .iter()
            .position(|byte| matches!(byte, b' ' | b'\t' | b','))
            .map(|length| &value[..first + length]),
    };
    shorter.into_iter().for_each(&mut take);
    for part in [Some(value), shorter].into_iter().flatten() {
        if let Cow::Owned(decoded) = percent_decode(part) {
            clear &= !decoded.contains(&0);
            take(&decoded);
        }
    }
    clear
}

/// Names of cookies that begin within this pair for some servers: after a blank or a comma, which also end a pair under
/// RFC 2109, or after a quote.
pub(crate) fn hidden(pair: &[u8]) -> impl Iterator<Item = &[u8]> {
    let pair = pair.trim_ascii();
    memchr::memchr_iter(b'=', pair).filter_map(move |equals| {
        let before = pair[..equals].trim_ascii_end();
        // The name stops at the previous `=`, so that each byte is visited once.
        let start = before.iter().rposition(|byte| matches!(byte, b' ' | b'\t' | b',' | b'"' | b'='))?;
        (before[start] != b'=').then_some(&before[start + 1..])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn readings(value: &str) -> (bool, Vec<String>) {
        let mut found = Vec::new();
        let clear =
            other_readings(value.as_bytes(), |other| found.push(String::from_utf8(other.to_vec()).unwrap()));
        (clear, found)
    }

    #[test]
    fn quotes_and_escapes_are_read_both_ways() {
        let clear = |others: &[&str]| (true, others.iter().map(|other| (*other).to_owned()).collect());
        assert_eq!(readings("admin"), clear(&[]));
        assert_eq!(readings("\"admin\""), clear(&["admin"]));
        assert_eq!(readings("\"\""), clear(&[""]));
        assert_eq!(readings("%61dm+in"), clear(&["adm+in"]));
        assert_eq!(readings("\"%61\""), clear(&["%61", "\"a\"", "a"]));
        assert_eq!(readings("100%"), clear(&[]));
        assert_eq!(readings("{\"a\":1}"), clear(&[]), "no quotes around it");
        for value in ["admin x=1", "admin\tx=1", "admin $Path=/", "admin,x=1", "admin, x"] {
            assert_eq!(readings(value), clear(&["admin"]), "{value}");
        }
        assert_eq!(readings("%61 x"), clear(&["%61", "a x", "a"]));
    }

    #[test]
    fn values_with_further_readings_are_unclear() {
        for value in ["\"\\141dmin\"", "\"admin", "\"", "\"a\"b\"", "\"a\"b", "admin%00"] {
            assert!(!readings(value).0, "{value}");
        }
    }

    #[test]
    fn cookie_within_a_pair_is_hidden() {
        let hides = |pair: &str| hidden(pair.as_bytes()).any(|name| name == b"role");
        for pair in
            ["x=1 role=admin", "x=1,role=admin", "x=1, role =a", "x=\"1\"role=a", "a\trole=b", "a=b=c role=d"]
        {
            assert!(hides(pair), "{pair}");
        }
        for pair in
            ["role=admin", " role = x", "x=role", "x=1 role", "x=xrole=1", "x==role=1", "x=1 parole=2"]
        {
            assert!(!hides(pair), "{pair}");
        }
    }
}
