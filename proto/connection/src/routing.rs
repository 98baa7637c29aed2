//! Small decisions about a request: the rules' outcome, the choice of a server, the request's id.

use crate::{Pool, ServerHint, Stickiness};
use evergate_base::name::is_same;
use evergate_http::{Body, Limits, Refusal, RequestFraming, RequestHead};
use evergate_rules::{Deny, Effect, HeaderEdit, RuleId, Ruleset, Sticky};
use std::io::Write;
use std::net::IpAddr;

/// What the rules decided, detached from them.
#[derive(Debug, Default)]
pub(crate) struct RouteDecision {
    pub(crate) rule: Option<RuleId>,
    pub(crate) terminal: Action,
    pub(crate) matched: Vec<RuleId>,
    pub(crate) limits: Vec<RuleId>,
    pub(crate) audit: bool,
}

#[derive(Debug, Default)]
pub(crate) enum Action {
    /// No rule decided: the listener's pool.
    #[default]
    Default,
    /// Pool by the ruleset's index; stickiness where the rule names one.
    Route(u32, Option<Stickiness>),
    Deny(Deny),
    Redirect(u16, String),
}

pub(crate) fn stickiness(sticky: Option<Sticky>) -> Option<Stickiness> {
    match sticky? {
        Sticky::None => Some(Stickiness::None),
        Sticky::Cookie => Some(Stickiness::Cookie),
        Sticky::Source => Some(Stickiness::Source),
    }
}

/// How to choose a server, and whether the response must set the cookie.
pub(crate) fn hint(
    pool: &Pool,
    stickiness: Stickiness,
    head: &RequestHead<'_>,
    client: IpAddr,
) -> (ServerHint, bool) {
    match stickiness {
        Stickiness::None => (ServerHint::Policy, false),
        Stickiness::Source => (ServerHint::Source(client), false),
        Stickiness::Cookie => {
            // What another site of the domain, or an older configuration, left beside it names none.
            let server = head.cookies(&pool.cookie).find_map(|value| server_of(pool, value));
            (server.map_or(ServerHint::Policy, |index| ServerHint::Server(index as u32)), true)
        }
    }
}

/// The server that a cookie names, in quotes or without (RFC 6265 section 4.1.1).
fn server_of(pool: &Pool, value: &[u8]) -> Option<usize> {
    let inner = value.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\""));
    let value = inner.unwrap_or(value);
    pool.servers.iter().position(|server| server.cookie.as_bytes() == value)
}

/// Hash of eight-byte words multiplied and folded, FNV-1a for the rest, and a final mix: for names of the
/// configuration, no defence against attackers. Equal on all nodes: replicated routes carry it.
pub(crate) fn hash_name(bytes: &[u8]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    let mut words = bytes.chunks_exact(8);
    for word in &mut words {
        let mut eight = [0u8; 8];
        eight.copy_from_slice(word);
        hash = (hash ^ u64::from_le_bytes(eight)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        hash ^= hash >> 29;
    }
    for byte in words.remainder() {
        hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    }
    (hash ^ (hash >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93)
}

/// The id of request `index` of connection `connection`: the same on every node.
pub(crate) fn request_id(connection: u64, index: u32, out: &mut [u8; 24]) -> &str {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    for (place, digit) in out[..16].iter_mut().enumerate() {
        *digit = HEX[(connection >> (60 - 4 * place)) as usize & 15];
    }
    for (place, digit) in out[16..].iter_mut().enumerate() {
        *digit = HEX[(index >> (28 - 4 * place)) as usize & 15];
    }
    std::str::from_utf8(out).unwrap_or("")
}

/// An address as text, without allocating.
pub(crate) fn ip_text(ip: IpAddr, out: &mut [u8; 64]) -> &str {
    let ip = ip.to_canonical();
    if let IpAddr::V4(v4) = ip {
        return dotted(v4.octets(), out);
    }
    let mut rest = &mut out[..];
    let written = match write!(rest, "{ip}") {
        Ok(()) => 64 - rest.len(),
        Err(_) => 0,
    };
    std::str::from_utf8(&out[..written]).unwrap_or("")
}

/// The formatter takes ten times as long, on every request.
fn dotted(octets: [u8; 4], out: &mut [u8; 64]) -> &str {
    let mut length = 0;
    for (place, octet) in octets.into_iter().enumerate() {
        if place > 0 {
            out[length] = b'.';
            length += 1;
        }
        for (least, unit) in [(100, 100), (10, 10), (0, 1)] {
            if octet >= least {
                out[length] = b'0' + octet / unit % 10;
                length += 1;
            }
        }
    }
    std::str::from_utf8(&out[..length]).unwrap_or("")
}

/// Fields to set and to remove.
pub(crate) type Edits<'a> = (Vec<(&'a str, &'a str)>, Vec<&'a str>);

/// What the matched rules, in their order, make of the request's header lines.
pub(crate) fn request_edits(rules: &Ruleset, matched: impl Iterator<Item = RuleId>) -> Edits<'_> {
    edits(rules, matched, |effect| match effect {
        Effect::Request(edit) => Some(edit),
        _ => None,
    })
}

/// ... and of the response's.
pub(crate) fn response_edits(rules: &Ruleset, matched: impl Iterator<Item = RuleId>) -> Edits<'_> {
    edits(rules, matched, |effect| match effect {
        Effect::Response(edit) => Some(edit),
        _ => None,
    })
}

fn edits<'a>(
    rules: &'a Ruleset,
    matched: impl Iterator<Item = RuleId>,
    of: impl Fn(Effect<'a>) -> Option<HeaderEdit<'a>>,
) -> Edits<'a> {
    let (mut set, mut remove): Edits<'a> = Default::default();
    for edit in matched.flat_map(|rule| rules.effects_of(rule)).filter_map(of) {
        let (HeaderEdit::Set { name, .. } | HeaderEdit::Remove { name }) = edit;
        set.retain(|(known, _)| !is_same(known.as_bytes(), name.as_bytes()));
        match edit {
            HeaderEdit::Set { name, value } => set.push((name, value)),
            HeaderEdit::Remove { name } => remove.push(name),
        }
    }
    (set, remove)
}

/// Target of a plaintext request on a listener that only redirects. A request without a host came to `local`; a request
/// for no path (`*`) leads to the site's root.
pub(crate) fn https_location(head: &RequestHead<'_>, local: IpAddr, port: u16) -> String {
    let mut location = b"https://".to_vec();
    match (head.host_name(), local) {
        (b"", IpAddr::V4(local)) => location.extend_from_slice(local.to_string().as_bytes()),
        (b"", IpAddr::V6(local)) => location.extend_from_slice(format!("[{local}]").as_bytes()),
        (host, _) => location.extend_from_slice(host),
    }
    if port != 443 {
        location.extend_from_slice(format!(":{port}").as_bytes());
    }
    location.extend_from_slice(if head.path == b"*" { b"/" } else { head.path });
    if let Some(query) = head.query {
        location.push(b'?');
        location.extend_from_slice(query);
    }
    String::from_utf8_lossy(&location).into_owned()
}

/// What rules see of a body.
pub(crate) struct Prefix {
    /// Its first bytes without their framing.
    pub(crate) content: Vec<u8>,
    /// That is all of it.
    pub(crate) whole: bool,
    /// Bytes that were looked at for that, with their framing.
    pub(crate) looked_at: usize,
}

/// Framing may double what a chunked body takes, its trailers aside; past that the prefix is what there is.
pub(crate) fn framed_max(bytes_max: usize, limits: &Limits) -> usize {
    bytes_max.saturating_mul(2).saturating_add(limits.trailer_bytes_max)
}

/// Bytes that a request may take until its rules have decided, with heads of at most `head_bytes_max` and so long a
/// prefix of bodies. With backups at most [`crate::UNDECIDED_MAX`] of them are accepted.
pub fn undecided(head_bytes_max: usize, body_prefix_bytes: usize) -> usize {
    head_bytes_max.saturating_add(framed_max(body_prefix_bytes, &Limits::default()))
}

/// The body's first bytes; `None` until there are enough. The content does not depend on segmentation.
pub(crate) fn body_prefix(
    head: &RequestHead<'_>,
    received: &[u8],
    bytes_max: usize,
    limits: &Limits,
) -> Result<Option<Prefix>, Refusal> {
    let chunked = head.framing == RequestFraming::Chunked;
    let framed_max = framed_max(bytes_max, limits);
    // More than is needed to know that there is more must not count as looked at: it may be any.
    let most = if chunked { framed_max } else { bytes_max.saturating_add(1) };
    let received = &received[..received.len().min(most)];
    let mut content = Vec::with_capacity(received.len());
    let mut body = head.body();
    let looked_at = body.advance_content(received, limits, &mut content)?;
    if body.is_done() && content.len() <= bytes_max {
        return Ok(Some(Prefix { content, whole: true, looked_at }));
    }
    // A chunked body may end with the last byte that there is room for.
    let enough = bytes_max.saturating_add(usize::from(chunked));
    if content.len() >= enough || (chunked && received.len() == framed_max) {
        content.truncate(bytes_max);
        return Ok(Some(Prefix { content, whole: false, looked_at }));
    }
    Ok(None)
}

/// The wire form of a body position inside a log entry.
pub(crate) fn encode_body(body: Body) -> Vec<u8> {
    let mut out = Vec::new();
    body.encode(&mut out);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use evergate_http::{HeaderSlots, Parsed, parse_request};

    /// What is seen of a body of which so many bytes come at a time.
    fn prefix_of(framing: &str, body: &[u8], step: usize) -> Option<Prefix> {
        let head = format!("POST / HTTP/1.1\r\nHost: a\r\n{framing}\r\n\r\n");
        let (limits, mut slots) = (Limits { trailer_bytes_max: 50, ..Limits::default() }, HeaderSlots::new());
        let Ok(Parsed::Complete(head)) = parse_request(head.as_bytes(), &limits, &mut slots) else {
            panic!()
        };
        let ends = (0..body.len()).step_by(step).chain([body.len()]);
        ends.into_iter().find_map(|end| body_prefix(&head, &body[..end], 100, &limits).unwrap())
    }

    #[test]
    fn body_prefix_does_not_depend_on_segmentation() {
        let chunks =
            |line: &str, count: usize| format!("{}0\r\n\r\n", format!("1{line}\r\nx\r\n").repeat(count));
        let one = |size: usize| format!("{size:x}\r\n{}\r\n0\r\n\r\n", "x".repeat(size));
        let length = |size: usize| (format!("Content-Length: {size}"), "x".repeat(size));
        let chunked = |body: String| ("Transfer-Encoding: chunked".to_owned(), body);
        for ((framing, body), expected) in [
            (length(100), Some((100, true))),
            (length(101), Some((100, false))),
            (chunked(one(100)), Some((100, true))),
            (chunked(one(101)), Some((100, false))),
            (chunked(chunks("", 40)), Some((40, true))),
            (chunked(chunks("", 42)), Some((42, false))),
            (chunked(chunks(";a=\"b\"", 30)), Some((21, false))),
            (chunked("3\r\nxxx\r\n0\r\na: b\r\n\r\n".to_owned()), Some((3, true))),
            (chunked("3\r\nxxx\r\n".to_owned()), None),
        ] {
            for step in [1, 2, 7, 64, 10_000] {
                let found = prefix_of(&framing, body.as_bytes(), step);
                let found = found.map(|prefix| {
                    assert!(prefix.looked_at >= prefix.content.len() && prefix.looked_at <= body.len());
                    (prefix.content.len(), prefix.whole)
                });
                assert_eq!(found, expected, "{body:?} by {step}");
            }
        }
    }

    #[test]
    fn request_ids_name_connection_and_request() {
        let mut out = [0; 24];
        assert_eq!(request_id(0x0123_4567_89ab_cdef, 26, &mut out), "0123456789abcdef0000001a");
    }

    #[test]
    fn addresses_are_written_as_the_formatter_does() {
        let mut out = [0; 64];
        for part in 0..=255u8 {
            let ip = std::net::Ipv4Addr::new(part, 255 - part, part / 3, part.wrapping_mul(7));
            assert_eq!(ip_text(ip.into(), &mut out), ip.to_string());
            assert_eq!(ip_text(ip.to_ipv6_mapped().into(), &mut out), ip.to_string());
        }
        assert_eq!(ip_text("2001:db8::7".parse().unwrap(), &mut out), "2001:db8::7");
    }

    #[test]
    fn names_that_differ_anywhere_hash_differently() {
        let head = b"GET /path HTTP/1.1\r\nHost: a\r\n\r\n";
        for place in 0..head.len() {
            let mut other = head.to_vec();
            other[place] ^= 1;
            assert_ne!(hash_name(head), hash_name(&other));
        }
    }
}
