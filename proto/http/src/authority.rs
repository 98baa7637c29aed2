//! `host [":" port]` of a Host header or an absolute-form target (RFC 3986 section 3.2).

use crate::bytes::{ascii, is_host_byte};
use crate::limits::Refusal;

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
        [b'[', inner @ .., b']'] => {
            ascii(inner).parse::<std::net::Ipv6Addr>().map_err(|_| MALFORMED)?;
        }
        _ if host.len() > 255 || !host.iter().all(|&b| is_host_byte(b)) => return Err(MALFORMED),
        // Without a label: `a..` would be a second spelling of `a`, which rules do not match and lenient servers may.
        [b'.', ..] => return Err(MALFORMED),
        _ if host.windows(2).any(|pair| pair == b"..") => return Err(MALFORMED),
        _ => {}
    }
    Ok(Authority { host, port })
}

/// Whether a Host header may say this.
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
    // An empty port is allowed by the grammar and means the default.
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
