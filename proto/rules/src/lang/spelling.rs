//! Canonical spelling of the paths, hosts and other texts of requests. A literal in another spelling equals none of
//! them and occurs in none of them, so a rule with it would never hold; a `deny` rule would let its requests pass.
//!
//! `canonical_path` of the HTTP crate brings requests to this spelling, or refuses them, before rules see them. This
//! module has only the part that literals need. A text that some request could have is accepted.

use std::net::Ipv6Addr;

use crate::error::ConditionError;

/// Reason why no request has a text, and the remedy.
type Never = (&'static str, String);

/// Ends of the value at which a literal stands: both, if it is the whole value.
#[derive(Clone, Copy)]
pub(super) struct Ends {
    pub(super) start: bool,
    pub(super) end: bool,
}

impl Ends {
    pub(super) const BOTH: Ends = Ends { start: true, end: true };

    /// The ends for the argument of a method.
    pub(super) fn of(method: &str) -> Ends {
        Ends { start: method == "starts_with", end: method == "ends_with" }
    }
}

/// Refuses a text that no request's path equals, or begins with if `open`. `show` writes the comparison with a text.
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

/// Refuses a text that no path contains, or ends with if `at_end`. A path begins with a text that [`check_path`]
/// accepts.
pub(super) fn check_path_part(
    text: &[u8],
    at_end: bool,
    at: usize,
    show: impl Fn(&[u8]) -> String,
) -> Result<(), ConditionError> {
    let never = |why: &str, remedy: String| {
        Err(ConditionError::new(at, format!("{} never holds", show(text))).why(why).remedy(remedy))
    };
    if text.contains(&b'?') {
        return never(
            "a path ends before its query",
            "compare query(\"..\"), or write %3F for a ? in the path".into(),
        );
    }
    if text.contains(&b'#') {
        return never("a request has no fragment", "write %23 for a # in the path".into());
    }
    if memchr::memmem::find(text, b"%00").is_some() {
        return never("requests with %00 in the path are refused", "leave it out".into());
    }
    let spelled = spell(text, !at_end);
    let mut segments = spelled.split(|&byte| byte == b'/').skip(1).peekable();
    while let Some(segment) = segments.next() {
        if (segment == b"." || segment == b"..") && (at_end || segments.peek().is_some()) {
            return never("dot segments are resolved before rules are asked", "leave it out".into());
        }
    }
    if spelled != text {
        return never("every path is brought to one spelling first", format!("write {}", show(&spelled)));
    }
    Ok(())
}

/// The canonical spelling of a path (RFC 3986 section 6.2.2): unreserved characters are plain, other encodings have
/// upper case digits, dot segments are resolved, and bytes that cannot be sent raw are encoded. The end of an `open`
/// text may continue: its last segment is not yet a dot segment, and its last encoding may be incomplete.
fn canonical(text: &[u8], open: bool) -> Vec<u8> {
    resolve_dots(&spell(text, open), open)
}

/// The canonical spelling before dot segments are resolved.
fn spell(text: &[u8], open: bool) -> Vec<u8> {
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
    path
}

/// Appends the byte of `%` and two hexadecimal digits.
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

/// Signs of a host name other than percent-encoding (RFC 3986 section 3.2.2).
const HOST_SIGNS: &[u8] = b"-._~!$&'()*+,;=";

/// The reason why no request's host has this text, in lower case, at `ends`. The host is empty in HTTP/1.0 requests
/// without one.
pub(super) fn host_never_sent(host: &[u8], ends: Ends) -> Option<Never> {
    if let Some(never) = host_escape_never_sent(host, ends) {
        return Some(never);
    }
    let is_name = is_name_part(host, &[HOST_SIGNS, b"%"].concat(), 255, ends) && !host.starts_with(b"*.");
    if host.is_empty() || is_name || is_address_part(host, ends) {
        return None;
    }
    let text = String::from_utf8_lossy(host);
    let colons = host.iter().filter(|&&byte| byte == b':').count();
    let unbracketed = host.iter().all(|byte| byte.is_ascii_hexdigit() || b":.".contains(byte));
    if unbracketed && (if ends.start && ends.end { text.parse::<Ipv6Addr>().is_ok() } else { colons > 1 }) {
        let (open, close) = (if ends.start { "[" } else { "" }, if ends.end { "]" } else { "" });
        return Some(("an IPv6 address as host has brackets", format!("write \"{open}{text}{close}\"")));
    }
    if colons > 0 && !(host[0] == b'[' && host.ends_with(b"]")) {
        let remedy = "leave the port out; use local.port == ..".into();
        return Some(("the host is compared without its port", remedy));
    }
    let why = "a host has letters, digits and -._~ and is compared as it is, or is an address in brackets";
    Some(name_never_sent("host", host, b"-._~", why))
}

/// The reason why no host has the percent-encoding of this text: an unreserved character is compared decoded (RFC 3986
/// section 6.2.2).
fn host_escape_never_sent(host: &[u8], ends: Ends) -> Option<Never> {
    let why = "in a host % begins the code of an octet that has no spelling of its own";
    for (at, _) in host.iter().enumerate().filter(|(_, byte)| **byte == b'%') {
        let rest = &host[at + 1..];
        let digits = &rest[..rest.len().min(2)];
        if !digits.iter().all(u8::is_ascii_hexdigit) || (digits.len() < 2 && ends.end) {
            return Some((why, "write two hexadecimal digits behind %".into()));
        }
        let code = std::str::from_utf8(digits).ok().filter(|digits| digits.len() == 2);
        let octet = code.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match octet {
            Some(0) => return Some(("a host with %00 is refused", "leave it out".into())),
            Some(octet) if octet.is_ascii_alphanumeric() || b"-._~".contains(&octet) => {
                let plain = char::from(octet.to_ascii_lowercase());
                return Some((why, format!("write \"{plain}\" instead of \"%{}\"", digits.escape_ascii())));
            }
            _ => {}
        }
    }
    None
}

/// The reason why no client requests a server name with this text, in lower case, at `ends`.
pub(super) fn sni_never_sent(name: &[u8], ends: Ends) -> Option<Never> {
    let why = "a server name has letters, digits and -._ only, and is no address";
    (!is_name_part(name, b"-._", 253, ends)).then(|| name_never_sent("tls.sni", name, b"-._", why))
}

/// Whether a host name can have this text at `ends`: labels of letters, digits and `signs`, none of them empty.
fn is_name_part(text: &[u8], signs: &[u8], bytes_max: usize, ends: Ends) -> bool {
    let empty_label = (ends.start && text.starts_with(b"."))
        || (ends.end && text.ends_with(b"."))
        || text.windows(2).any(|pair| pair == b"..");
    let sent = |byte: &u8| byte.is_ascii_alphanumeric() || signs.contains(byte);
    !text.is_empty() && text.len() <= bytes_max && !empty_label && text.iter().all(sent)
}

/// Whether an address in brackets, of IPv6 or of a future version (RFC 3986 section 3.2.2), can have this text at
/// `ends`.
fn is_address_part(text: &[u8], ends: Ends) -> bool {
    let opened = text.strip_prefix(b"[");
    let inner = opened.unwrap_or(text);
    let closed = inner.strip_suffix(b"]");
    let inner = closed.unwrap_or(inner);
    if (ends.start && opened.is_none()) || (ends.end && closed.is_none()) {
        return false;
    }
    let is_hex = inner.iter().all(|byte| byte.is_ascii_hexdigit() || b":.".contains(byte));
    match (opened, closed, std::str::from_utf8(inner)) {
        (Some(_), Some(_), Ok(inner)) => {
            inner.parse::<Ipv6Addr>().is_ok() || is_future(inner.as_bytes(), true)
        }
        (Some(_), ..) => is_hex || is_future(inner, false),
        (None, Some(_), _) => is_hex || inner.iter().all(is_future_byte),
        _ => is_hex,
    }
}

/// Whether `inner` is `IPvFuture`, or begins one.
fn is_future(inner: &[u8], whole: bool) -> bool {
    let Some(future) = inner.strip_prefix(b"v") else { return false };
    let digits = future.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
    match &future[digits..] {
        [] => !whole,
        [b'.', address @ ..] => {
            digits > 0 && address.iter().all(is_future_byte) && !(whole && address.is_empty())
        }
        _ => false,
    }
}

fn is_future_byte(byte: &u8) -> bool {
    byte.is_ascii_alphanumeric() || HOST_SIGNS.contains(byte) || *byte == b':'
}

/// The remedy for a name that no value is spelled like.
fn name_never_sent(field: &str, text: &[u8], signs: &[u8], why: &'static str) -> Never {
    let shown = text.escape_ascii();
    let plain =
        |rest: &[u8]| !rest.is_empty() && rest.iter().all(|b| b.is_ascii_alphanumeric() || signs.contains(b));
    match text {
        [b'*', rest @ ..] if plain(rest) => {
            (why, format!("use {field}.ends_with(\"{}\")", rest.escape_ascii()))
        }
        [rest @ .., b'.'] if plain(rest) && !rest.ends_with(b".") => {
            ("the dot of the root is not looked at", format!("write \"{}\"", rest.escape_ascii()))
        }
        _ if plain(text) => ("no label of a name is empty", format!("leave out the dot in \"{shown}\"")),
        _ if !text.is_ascii() => (why, "write the name's ASCII form, which begins with xn--".into()),
        _ if field == "host" => {
            (why, "write the name alone, as in \"a.example\" or \"[2001:db8::1]\"".into())
        }
        _ => (why, "write the name alone, as in \"a.example\"".into()),
    }
}

/// Methods of RFC 9110 section 9.3 and RFC 5789, which no client spells otherwise.
const KNOWN_METHODS: [&str; 9] =
    ["CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE"];

/// The reason why no method has this text at `ends`.
pub(super) fn method_never_sent(method: &[u8], ends: Ends) -> Option<Never> {
    let known = KNOWN_METHODS.iter().find(|known| known.as_bytes().eq_ignore_ascii_case(method));
    if let Some(known) = known.filter(|known| known.as_bytes() != method) {
        return Some((
            "methods are case-sensitive, and this one is in upper case",
            format!("write \"{known}\""),
        ));
    }
    if method == b"CONNECT" && ends.start && ends.end {
        return Some(("CONNECT is answered with 501 before rules are tried", "leave it out".into()));
    }
    let sent = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    let why = "a method is a token: letters, digits and !#$%&'*+-.^_`|~ only";
    (!method.iter().all(sent)).then(|| (why, "write the method alone, as in \"GET\"".into()))
}

/// The reason why no value has this text at `ends`, for fields whose surrounding blanks are trimmed.
pub(super) fn has_blanks_around(text: &[u8], ends: Ends) -> Option<Never> {
    let blank = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_whitespace);
    let never = (ends.start && blank(text.first())) || (ends.end && blank(text.last()));
    let remedy = match text.trim_ascii() {
        [] => "write text that is not blanks".to_owned(),
        trimmed => format!("write \"{}\"", trimmed.escape_ascii()),
    };
    never.then_some(("it is compared without the blanks around it", remedy))
}

/// The canonical spelling of an IPv6 address in brackets (RFC 5952).
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

    /// The table of `canonical_path`, whose results these must equal.
    #[test]
    fn path_is_spelled_as_in_requests() {
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
    fn bytes_that_cannot_be_sent_raw_are_encoded() {
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

    fn part_is_refused(text: &[u8], at_end: bool) -> bool {
        check_path_part(text, at_end, 0, |text| text.escape_ascii().to_string()).is_err()
    }

    proptest! {
        #[test]
        fn part_of_a_canonical_path_is_accepted(
            text in "/[%0-9a-fA-F./\\\\é ~]{0,12}", from in 0usize..14, to in 0usize..14,
        ) {
            let path = canonical(text.as_bytes(), false);
            prop_assume!(memchr::memmem::find(&path, b"%00").is_none());
            let (from, to) = (from.min(path.len()), to.min(path.len()));
            prop_assert!(!part_is_refused(&path[from..], true), "{}", path.escape_ascii());
            prop_assert!(!part_is_refused(&path[from.min(to)..to], false), "{}", path.escape_ascii());
        }

        #[test]
        fn part_of_a_host_is_accepted(
            name in r"[a-z0-9_~!$&'()+,;=-]{1,3}(\.[a-z0-9-]{1,3}){0,3}(%(2[0-9a-c]|[89a-f][0-9a-f])){0,2}",
            address: u128, short: bool, from in 0usize..40, to in 0usize..40,
        ) {
            // Addresses with long runs of zeros are written with `::`.
            let address = std::net::Ipv6Addr::from(if short { address & 0xffff << 112 | 1 } else { address });
            for host in [name, format!("[{address}]")] {
                let (from, to) = (from.min(host.len()), to.min(host.len()));
                let part = |range: std::ops::Range<usize>| host.as_bytes()[range].to_vec();
                for (part, method) in [
                    (part(0..to), "starts_with"),
                    (part(from..host.len()), "ends_with"),
                    (part(from.min(to)..to), "contains"),
                ] {
                    let never = host_never_sent(&part, Ends::of(method));
                    prop_assert!(never.is_none(), "{} {}", method, part.escape_ascii());
                }
                prop_assert!(host_never_sent(host.as_bytes(), Ends::BOTH).is_none(), "{}", host);
            }
        }

        #[test]
        fn spelling_suggested_by_an_error_is_accepted(text in "/[%0-9a-fA-F./\\\\é ~]{0,12}", open: bool) {
            let path = canonical(text.as_bytes(), open);
            prop_assert_eq!(canonical(&path, open), path);
        }
    }

    #[test]
    fn end_of_an_open_text_may_continue() {
        for text in ["/a/.", "/a/..", "/a%", "/a%2", "/a%F", "/"] {
            assert_eq!(spelled(text, true), text);
        }
        for (text, expected) in [("/a/./", "/a/"), ("/%2e%", "/.%"), ("/%f", "/%F"), ("/%g", "/%25g")] {
            assert_eq!(spelled(text, true), expected, "{text}");
        }
    }
}
