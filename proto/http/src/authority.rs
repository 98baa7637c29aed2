//! `host [":" port]` of a Host header or an absolute-form target (RFC 3986 section 3.2).

use crate::bytes::{ascii, hex, is_reg_name_byte, is_unreserved};
use crate::limits::Refusal;

/// Limit of a host as sent, in bytes. RFC 3986 section 3.2.2 asks for no more than DNS can hold.
pub const HOST_BYTES_MAX: usize = 255;

/// A checked authority: the host without its port, and the port when one is given.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Authority<'a> {
    pub(crate) host: &'a [u8],
    pub(crate) port: Option<u16>,
}

/// Checks an authority; the host must not be empty and userinfo is refused.
pub(crate) fn parse(authority: &[u8]) -> Result<Authority<'_>, Refusal> {
    const MALFORMED: Refusal = Refusal::bad("host_malformed");
    if memchr::memchr(b'@', authority).is_some() {
        return Err(Refusal::bad("authority_userinfo"));
    }
    let host = name(authority);
    let port = match &authority[host.len()..] {
        [] => None,
        [b':', digits @ ..] => parse_port(digits)?,
        _ => return Err(MALFORMED),
    };
    match host {
        [] => return Err(Refusal::bad("host_empty")),
        _ if host.len() > HOST_BYTES_MAX => return Err(MALFORMED),
        [b'[', inner @ .., b']'] if is_address(inner) => {}
        _ if is_reg_name(host) => {}
        _ => return Err(MALFORMED),
    }
    Ok(Authority { host, port })
}

/// Whether brackets may enclose `inner`: `IPv6address` or `IPvFuture`.
fn is_address(inner: &[u8]) -> bool {
    let [b'v' | b'V', future @ ..] = inner else {
        return ascii(inner).parse::<std::net::Ipv6Addr>().is_ok();
    };
    let Some(dot) = memchr::memchr(b'.', future) else { return false };
    let (version, address) = (&future[..dot], &future[dot + 1..]);
    let is_digits = !version.is_empty() && version.iter().all(u8::is_ascii_hexdigit);
    is_digits && !address.is_empty() && address.iter().all(|&b| is_reg_name_byte(b) || b == b':')
}

/// Whether `host` is a `reg-name` without empty labels. `a..` would be a second spelling of `a` that rules do not
/// match, although lenient servers may.
fn is_reg_name(host: &[u8]) -> bool {
    let (mut rest, mut before) = (host, b'.');
    while !rest.is_empty() {
        let Some((character, length)) = next_character(rest) else { return false };
        if character == b'.' && before == b'.' {
            return false;
        }
        before = character;
        rest = &rest[length..];
    }
    true
}

/// The next character of a registered name and the number of bytes that spell it. `%` stands for a character that stays
/// percent-encoded. `%00` is refused (RFC 3986 section 7.3).
fn next_character(name: &[u8]) -> Option<(u8, usize)> {
    match *name {
        [b'%', high, low, ..] => match hex(high)? << 4 | hex(low)? {
            0 => None,
            octet if is_unreserved(octet) => Some((octet, 3)),
            _ => Some((b'%', 3)),
        },
        [byte, ..] if is_reg_name_byte(byte) => Some((byte, 1)),
        _ => None,
    }
}

/// The canonical spelling of a host (RFC 3986 section 6.2.2), for comparisons: lower case, percent-encoded unreserved
/// characters decoded, no final dot. `host` must be checked.
pub(crate) fn canonical<'a>(host: &[u8], out: &'a mut [u8; HOST_BYTES_MAX]) -> &'a [u8] {
    let (mut rest, mut length) = (host, 0);
    while let ([first, after @ ..], Some(place)) = (rest, out.get_mut(length)) {
        let escaped = if *first == b'%' { next_character(rest) } else { None };
        (*place, rest) = match escaped {
            Some((character, taken)) if character != b'%' => (character.to_ascii_lowercase(), &rest[taken..]),
            _ => (first.to_ascii_lowercase(), after),
        };
        length += 1;
    }
    let name = &out[..length];
    name.strip_suffix(b".").filter(|name| !name.is_empty()).unwrap_or(name)
}

/// Whether `value` is a valid value of a Host header.
pub fn is_host(value: &[u8]) -> bool {
    parse(value).is_ok()
}

/// The host of a checked authority, without the port. An IPv6 address keeps its brackets.
pub(crate) fn name(authority: &[u8]) -> &[u8] {
    let from = match authority {
        [b'[', ..] => memchr::memchr(b']', authority).unwrap_or(authority.len()),
        _ => 0,
    };
    match memchr::memchr(b':', &authority[from..]) {
        Some(colon) => &authority[..from + colon],
        None => authority,
    }
}

fn parse_port(digits: &[u8]) -> Result<Option<u16>, Refusal> {
    // An empty port is valid and means the default.
    let mut port = 0u16;
    for &b in digits {
        if !b.is_ascii_digit() {
            return Err(Refusal::bad("host_port_malformed"));
        }
        port = port
            .checked_mul(10)
            .and_then(|p| p.checked_add(u16::from(b - b'0')))
            .ok_or(Refusal::bad("host_port_malformed"))?;
    }
    Ok((!digits.is_empty()).then_some(port))
}

/// True when both name the same host and port, given the port that the scheme implies.
pub(crate) fn same(a: Authority<'_>, b: Authority<'_>, port_default: u16) -> bool {
    a.host.eq_ignore_ascii_case(b.host) && a.port.unwrap_or(port_default) == b.port.unwrap_or(port_default)
}
