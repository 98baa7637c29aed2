//! Small decisions about a request: what the rules said, how to choose a server, what to call the request.

use crate::{Hint, Pool, Stickiness};
use evergate_base::name::is_same;
use evergate_http::{Body, Limits, Refusal, RequestFraming, RequestHead};
use evergate_rules::{Effect, HeaderEdit, RuleId, Ruleset, Sticky};
use std::io::Write;
use std::net::IpAddr;

/// What the rules decided, detached from them.
#[derive(Debug, Default)]
pub(crate) struct Plan {
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
    Deny(u16),
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
) -> (Hint, bool) {
    match stickiness {
        Stickiness::None => (Hint::Policy, false),
        Stickiness::Source => (Hint::Source(client), false),
        Stickiness::Cookie => {
            // What another site of the domain, or an older configuration, left beside it names none.
            let server = head.cookies(&pool.cookie).find_map(|value| server_of(pool, value));
            (server.map_or(Hint::Policy, |index| Hint::Server(index as u32)), true)
        }
    }
}

/// The server that a cookie names, in quotes or without (RFC 6265 section 4.1.1).
fn server_of(pool: &Pool, value: &[u8]) -> Option<usize> {
    let inner = value.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\""));
    let value = inner.unwrap_or(value);
    pool.servers.iter().position(|server| server.cookie.as_bytes() == value)
}

/// FNV-1a with a final mix: recognises a head that was sent again, is no defence by itself.
pub(crate) fn hash_head(bytes: &[u8]) -> u64 {
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

/// A host name in lower case; a name too long for DNS is cut and matches nothing.
pub(crate) fn lower_case<'a>(host: &[u8], out: &'a mut [u8; 256]) -> &'a [u8] {
    let length = host.len().min(out.len());
    for (to, from) in out.iter_mut().zip(host) {
        *to = from.to_ascii_lowercase();
    }
    &out[..length]
}

/// Where a plain request goes on a listener that only redirects. One that names no host came to `local`; one that asks for no
/// path (`*`) is led to the site.
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

/// The body's first bytes without their framing, and whether that is all of it; `None` until there are enough.
pub(crate) fn body_prefix(
    head: &RequestHead<'_>,
    received: &[u8],
    bytes_max: usize,
    limits: &Limits,
) -> Result<Option<(Vec<u8>, bool)>, Refusal> {
    let mut body = head.body();
    let used = body.advance(received, limits)?;
    let received = &received[..used];
    let content = match head.framing {
        RequestFraming::Chunked => chunk_contents(received),
        _ => received.to_vec(),
    };
    if body.is_done() && content.len() <= bytes_max {
        return Ok(Some((content, true)));
    }
    // Framing may double what a chunked body takes; past that the prefix is what there is.
    if content.len() >= bytes_max || received.len() >= bytes_max.saturating_mul(2) {
        let cut = content.len().min(bytes_max);
        return Ok(Some((content[..cut].to_vec(), false)));
    }
    Ok(None)
}

/// Chunk data of a chunked body that [`Body::advance`] has accepted, as far as it has come.
fn chunk_contents(mut framed: &[u8]) -> Vec<u8> {
    let mut content = Vec::with_capacity(framed.len());
    while let Some(end) = memchr::memchr(b'\n', framed) {
        let digits = framed[..end].iter().take_while(|byte| byte.is_ascii_hexdigit());
        let size = digits.fold(0usize, |size, digit| {
            size.saturating_mul(16).saturating_add((*digit as char).to_digit(16).unwrap_or(0) as usize)
        });
        framed = &framed[end + 1..];
        let taken = size.min(framed.len());
        content.extend_from_slice(&framed[..taken]);
        if size == 0 || taken < size {
            break;
        }
        framed = framed.get(size + 2..).unwrap_or(b"");
    }
    content
}

/// The wire form of a body position inside a mirror entry.
pub(crate) fn encode_body(body: Body) -> Vec<u8> {
    let mut out = Vec::new();
    body.encode(&mut out);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunk_contents_follow_the_chunks_that_have_come() {
        assert_eq!(chunk_contents(b"3\r\nabc\r\n2;x=1\r\nde\r\n0\r\n\r\n"), b"abcde");
        assert_eq!(chunk_contents(b"3\r\nabc\r\nff\r\nde"), b"abcde");
        assert_eq!(chunk_contents(b"3\r\nabc\r"), b"abc");
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
    fn heads_that_differ_anywhere_hash_differently() {
        let head = b"GET /path HTTP/1.1\r\nHost: a\r\n\r\n";
        for place in 0..head.len() {
            let mut other = head.to_vec();
            other[place] ^= 1;
            assert_ne!(hash_head(head), hash_head(&other));
        }
    }
}
