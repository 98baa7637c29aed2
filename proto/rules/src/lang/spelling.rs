//! How the paths and hosts of requests are spelled. A literal in another spelling equals none of them, so that a rule
//! with it would never hold; with `deny`, what it was to keep out would pass.
//!
//! Requests are brought to this spelling before rules see them, by `canonical_path` of the HTTP crate, or refused. Here
//! is only what literals need of it.

use std::net::Ipv6Addr;

use crate::error::ConditionError;

/// Refuses a text that no request's path is, or begins with if it is `open`. `show` writes the comparison with a text.
pub(super) fn check_path(
    text: &[u8],
    open: bool,
    at: usize,
    show: impl Fn(&[u8]) -> String,
) -> Result<(), ConditionError> {
    let never = |why: &str, remedy: String| {
        Err(ConditionError::new(at, format!("{} never holds", show(text))).why(why).remedy(remedy))
    };
    if let Some(end) = text.iter().position(|&byte| byte == b'?' || byte == b'#') {
        let path = canonical(&text[..end], false);
        let shown = format!("path == \"{}\"", path.escape_ascii());
        return match text[end] {
            b'?' => never("a path ends before its query", format!("write {shown} and compare query(\"..\")")),
            _ => never("a request has no fragment", format!("write {shown}, with %23 for a # in it")),
        };
    }
    if memchr::memmem::find(text, b"%00").is_some() {
        return never("requests with %00 in the path are refused", "leave it out".into());
    }
    let path = canonical(text, open);
    if path != text {
        return never("every path is brought to one spelling first", format!("write {}", show(&path)));
    }
    Ok(())
}

/// The spelling of a path (RFC 3986 section 6.2.2): unreserved characters plain, all others that are encoded with upper
/// case digits, dot segments resolved; and what cannot be sent as it is, encoded. What ends an `open` text may go on:
/// its last segment is no dot segment yet, and its last encoding may be incomplete.
fn canonical(text: &[u8], open: bool) -> Vec<u8> {
    let mut path = Vec::with_capacity(text.len());
    let mut rest = text;
    while let [byte, after @ ..] = rest {
        rest = after;
        match (byte, after) {
            (b'%', [high, low, after @ ..]) if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => {
                rest = after;
                encoded(*high, *low, &mut path);
            }
            (b'%', []) if open => path.push(b'%'),
            (b'%', [high]) if open && high.is_ascii_hexdigit() => {
                path.extend_from_slice(&[b'%', high.to_ascii_uppercase()]);
                break;
            }
            (b'%' | b'\\', _) => escape(*byte, &mut path),
            (byte, _) if byte.is_ascii_graphic() => path.push(*byte),
            (byte, _) => escape(*byte, &mut path),
        }
    }
    resolve_dots(&path, open)
}

/// Adds the byte of `%` and two hexadecimal digits.
fn encoded(high: u8, low: u8, path: &mut Vec<u8>) {
    let digit = |digit: u8| char::from(digit).to_digit(16).unwrap_or(0) as u8;
    let byte = digit(high) << 4 | digit(low);
    if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
        path.push(byte);
    } else {
        escape(byte, path);
    }
}

fn escape(byte: u8, path: &mut Vec<u8>) {
    path.extend_from_slice(format!("%{byte:02X}").as_bytes());
}

fn resolve_dots(path: &[u8], open: bool) -> Vec<u8> {
    let mut kept: Vec<&[u8]> = Vec::new();
    let mut segments = path.split(|&byte| byte == b'/').skip(1).peekable();
    while let Some(segment) = segments.next() {
        let last = segments.peek().is_none();
        if (segment != b"." && segment != b"..") || (last && open) {
            kept.push(segment);
            continue;
        }
        if segment == b".." {
            kept.pop();
        }
        if last {
            kept.push(b"");
        }
    }
    kept.iter().flat_map(|segment| [b"/".as_slice(), segment]).collect::<Vec<_>>().concat()
}

/// Why no request has this host, in lower case, and what to write. It is empty in requests of HTTP/1.0 without one.
pub(super) fn host_never_sent(host: &[u8]) -> Option<(&'static str, String)> {
    let text = String::from_utf8_lossy(host);
    let bracketed = text.strip_prefix('[').and_then(|inner| inner.strip_suffix(']'));
    if bracketed.is_some_and(|inner| inner.parse::<Ipv6Addr>().is_ok()) {
        return None;
    }
    if text.parse::<Ipv6Addr>().is_ok() {
        return Some(("an IPv6 address as host has brackets", format!("write \"[{text}]\"")));
    }
    if host.contains(&b':') && bracketed.is_none() {
        let remedy = "leave the port out; use local.port == ..".into();
        return Some(("the host is compared without its port", remedy));
    }
    if let Some(name) = text.strip_suffix('.').filter(|name| !name.is_empty()) {
        return Some(("the dot of the root is not looked at", format!("write \"{name}\"")));
    }
    let sent = |&byte: &u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    if host.len() <= 255 && host.iter().all(sent) {
        return None;
    }
    let remedy = match host {
        [b'*', rest @ ..] if rest.iter().all(sent) && !rest.is_empty() => {
            format!("use host.ends_with(\"{}\")", rest.escape_ascii())
        }
        _ if !host.is_ascii() => "write the name's ASCII form, which begins with xn--".into(),
        _ => "write the name alone, as in \"a.example\" or \"[2001:db8::1]\"".into(),
    };
    Some(("a host has letters, digits and -._~ only, or is an IPv6 address in brackets", remedy))
}

/// The one spelling of an IPv6 address in brackets (RFC 5952).
pub(crate) fn canonical_address(host: &[u8]) -> Option<String> {
    let inner = host.strip_prefix(b"[")?.strip_suffix(b"]")?;
    let address: Ipv6Addr = std::str::from_utf8(inner).ok()?.parse().ok()?;
    Some(format!("[{address}]"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn spelled(text: &str, open: bool) -> String {
        String::from_utf8(canonical(text.as_bytes(), open)).unwrap()
    }

    /// The table of `canonical_path`, whose results these must be.
    #[test]
    fn a_path_is_spelled_as_in_requests() {
        for (sent, expected) in [
            ("/", "/"),
            ("/a/b", "/a/b"),
            ("/a//b/", "/a//b/"),
            ("/a/./b", "/a/b"),
            ("/a/../b", "/b"),
            ("/a/b/..", "/a/"),
            ("/a/b/.", "/a/b/"),
            ("/..", "/"),
            ("/.", "/"),
            ("/../../a", "/a"),
            ("/a/../../../b/", "/b/"),
            ("/a//../b", "/a/b"),
            ("/a/b/c/./../../g", "/a/g"),
            ("/mid/content=5/../6", "/mid/6"),
            ("/%2e%2E/a", "/a"),
            ("/a/%2e%2e%2fb", "/a/..%2Fb"),
            ("/%7Euser", "/~user"),
            ("/%41%5a%30", "/AZ0"),
            ("/a%2fb%5c", "/a%2Fb%5C"),
            ("/%e2%82%ac", "/%E2%82%AC"),
            ("/%252e%252e/", "/%252e%252e/"),
            ("/...", "/..."),
            ("/.hidden/..a", "/.hidden/..a"),
            ("/a..", "/a.."),
            ("/%20", "/%20"),
        ] {
            assert_eq!(spelled(sent, false), expected, "{sent}");
            assert_eq!(spelled(expected, false), expected, "{sent}");
        }
    }

    #[test]
    fn what_cannot_be_sent_as_it_is_is_encoded() {
        for (text, expected) in [
            ("/é", "/%C3%A9"),
            ("/\\ \t", "/%5C%20%09"),
            ("/%", "/%25"),
            ("/%2g", "/%252g"),
            ("/%a", "/%25a"),
        ] {
            assert_eq!(spelled(text, false), expected, "{text}");
        }
    }

    proptest! {
        #[test]
        fn the_spelling_that_an_error_names_is_accepted(text in "/[%0-9a-fA-F./\\\\é ~]{0,12}", open: bool) {
            let path = canonical(text.as_bytes(), open);
            prop_assert_eq!(canonical(&path, open), path);
        }
    }

    #[test]
    fn the_end_of_an_open_text_may_go_on() {
        for text in ["/a/.", "/a/..", "/a%", "/a%2", "/a%F", "/"] {
            assert_eq!(spelled(text, true), text);
        }
        for (text, expected) in [("/a/./", "/a/"), ("/%2e%", "/.%"), ("/%f", "/%F"), ("/%g", "/%25g")] {
            assert_eq!(spelled(text, true), expected, "{text}");
        }
    }
}
