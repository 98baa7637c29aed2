//! Header lines of requests and responses. One pass finds the line ends, checks every byte and collects the values that
//! framing and connection handling need.
//!
//! Each line is checked in order and only once its LF has arrived, so the verdict does not depend on the segmentation.
//! The caller checks conditions on the whole head (a missing Host, length and chunked together).

use crate::bytes::{has_control, is_token, is_token_byte, list_members, trim_ows};
use crate::connection_auth::{ConnectionAuth, Field, connection_auth};
use crate::header::{HeaderSlots, Name, Slot};
use crate::limits::{Limits, Parsed, Refusal};
use memchr::memchr;

/// Limit of names that `Connection` may list besides the usual options.
const LISTED_MAX: u16 = 32;

/// Kind of message that the lines belong to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Request,
    Response,
}

/// Summary of the header lines: framing and connection options.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FieldSummary {
    /// Position in the buffer where the head ends.
    pub(crate) end: usize,
    /// Number of header lines.
    pub(crate) count: usize,
    /// Start and end of the Host value.
    pub(crate) host: Option<(usize, usize)>,
    pub(crate) content_length: Option<u64>,
    pub(crate) chunked: bool,
    pub(crate) close: bool,
    pub(crate) keep_alive: bool,
    /// Whether `Connection` has the option `upgrade`.
    pub(crate) upgrade_option: bool,
    /// Whether `Connection` names header lines that must not be forwarded.
    pub(crate) names_listed: bool,
    /// Number of names that `Connection` lists; each is compared with each line.
    names: u16,
    pub(crate) upgrade_lines: u8,
    /// Whether `Upgrade` has a protocol that may be tunnelled, and one that may not.
    pub(crate) upgrade_offered: bool,
    pub(crate) upgrade_refused: bool,
    pub(crate) expect_continue: bool,
    pub(crate) te_trailers: bool,
    /// The strongest effect of all lines.
    pub(crate) auth: ConnectionAuth,
}

/// Reads header lines from `at` to the empty line.
pub(crate) fn scan_fields(
    buf: &[u8],
    mut at: usize,
    limits: &Limits,
    slots: &mut HeaderSlots,
    side: Side,
) -> Result<Parsed<FieldSummary>, Refusal> {
    let mut summary = FieldSummary::default();
    let bytes_max = limits.head_bytes();
    loop {
        let Some(end) = line_end(buf, at, bytes_max)? else { return Ok(Parsed::Partial) };
        let line = &buf[at..end];
        if line.is_empty() {
            summary.end = end + 2;
            return Ok(Parsed::Complete(summary));
        }
        if summary.count >= limits.headers_max {
            return Err(Refusal::with(431, "too_many_headers"));
        }
        let name_len = name_length(line)?;
        let raw = &line[name_len + 1..];
        if has_control(raw) {
            return Err(control_refusal(raw));
        }
        let name = &line[..name_len];
        let Some(class) = Name::of(name) else { return Err(Refusal::bad("header_name_ambiguous")) };
        let value = trim_ows(raw);
        let value_start = at + name_len + 1 + raw.len() - raw.trim_ascii_start().len();
        let slot = Slot {
            name_start: at as u32,
            name_end: (at + name_len) as u32,
            value_start: value_start as u32,
            value_end: (value_start + value.len()) as u32,
            name: class,
        };
        if !slots.put(summary.count, slot) {
            return Err(Refusal::with(431, "too_many_headers"));
        }
        summary.count += 1;
        if class != Name::Other {
            summary.record(class, value, value_start, side)?;
        }
        at = end + 2;
    }
}

/// The position of the CR that ends the line starting at `at`; `None` while the line is incomplete.
#[inline]
pub(crate) fn line_end(buf: &[u8], at: usize, bytes_max: usize) -> Result<Option<usize>, Refusal> {
    let rest = &buf[at..];
    let lf = memchr(b'\n', rest);
    // An incomplete line ends at the end of the buffer at the earliest: both cases meet the limit at the same byte.
    if at + lf.unwrap_or(rest.len()) >= bytes_max {
        return Err(Refusal::with(431, "head_too_large"));
    }
    match lf {
        None => Ok(None),
        Some(lf) if lf > 0 && rest[lf - 1] == b'\r' => Ok(Some(at + lf - 1)),
        Some(_) => Err(Refusal::bad("bare_lf")),
    }
}

/// Length of the name before the colon.
#[inline]
fn name_length(line: &[u8]) -> Result<usize, Refusal> {
    let len = line.iter().position(|&b| !is_token_byte(b)).unwrap_or(line.len());
    match line.get(len) {
        Some(b':') if len > 0 => Ok(len),
        stop => Err(name_refusal(line, len, stop.copied())),
    }
}

#[cold]
fn name_refusal(line: &[u8], len: usize, stop: Option<u8>) -> Refusal {
    let reason = match stop {
        Some(b' ' | b'\t') if len == 0 => "obs_fold",
        Some(b':') => "header_name_empty",
        Some(b' ' | b'\t') => match trim_ows(&line[len..]).first() {
            Some(b':') => "space_before_colon",
            _ => "header_name_invalid",
        },
        None => "header_without_colon",
        Some(b'\r') => "bare_cr",
        Some(_) => "header_name_invalid",
    };
    Refusal::bad(reason)
}

#[cold]
fn control_refusal(value: &[u8]) -> Refusal {
    // The first offending byte names the reason.
    let first = value.iter().find(|&&b| (b < 0x20 && b != b'\t') || b == 0x7f);
    Refusal::bad(match first {
        Some(b'\r') => "bare_cr",
        Some(0) => "header_value_nul",
        _ => "header_value_control",
    })
}

impl FieldSummary {
    fn record(&mut self, name: Name, value: &[u8], value_start: usize, side: Side) -> Result<(), Refusal> {
        match name {
            Name::Host if side == Side::Request => {
                let seen = self.host.replace((value_start, value_start + value.len())).is_some();
                refuse_if(seen, "host_duplicate")?;
            }
            Name::ContentLength => {
                // Equal duplicates are refused as well: recipients differ in which one they read.
                let seen = self.content_length.replace(content_length(value)?).is_some();
                refuse_if(seen, "content_length_duplicate")?;
            }
            Name::TransferEncoding => {
                check_transfer_encoding(value)?;
                refuse_if(std::mem::replace(&mut self.chunked, true), "transfer_encoding_duplicate")?;
            }
            Name::Connection => self.record_connection(value, side)?,
            Name::Upgrade => {
                self.upgrade_lines = self.upgrade_lines.saturating_add(1);
                for protocol in list_members(value) {
                    match may_tunnel(protocol) {
                        true => self.upgrade_offered = true,
                        false => self.upgrade_refused = true,
                    }
                }
            }
            Name::Expect if side == Side::Request => {
                if !value.eq_ignore_ascii_case(b"100-continue") {
                    return Err(Refusal::with(417, "expect_unknown"));
                }
                self.expect_continue = true;
            }
            Name::Authorization | Name::ProxyAuthorization if side == Side::Request => {
                self.auth = self.auth.max(connection_auth(Field::Credentials, value));
            }
            Name::Challenge if side == Side::Response => {
                self.auth = self.auth.max(connection_auth(Field::Challenges, value));
            }
            Name::PersistentAuth if side == Side::Response => {
                self.auth = self.auth.max(connection_auth(Field::Persistent, value));
            }
            Name::Te => self.te_trailers |= list_members(value).any(|m| m.eq_ignore_ascii_case(b"trailers")),
            _ => {}
        }
        Ok(())
    }

    fn record_connection(&mut self, value: &[u8], side: Side) -> Result<(), Refusal> {
        for option in list_members(value) {
            if !is_token(option) {
                return Err(Refusal::bad("connection_malformed"));
            }
            if option.eq_ignore_ascii_case(b"close") {
                self.close = true;
            } else if option.eq_ignore_ascii_case(b"keep-alive") {
                self.keep_alive = true;
            } else if option.eq_ignore_ascii_case(b"upgrade") {
                self.upgrade_option = true;
            } else if names_end_to_end(option, side) {
                // RFC 9110 section 7.6.1: a connection option must not name a field meant for every recipient.
                // Otherwise a client could hide from the server a field that the proxy based a decision on.
                return Err(Refusal::bad("connection_names_protected"));
            } else {
                self.names_listed = true;
                self.names += 1;
                refuse_if(self.names > LISTED_MAX, "connection_options")?;
            }
        }
        Ok(())
    }
}

fn refuse_if(fault: bool, reason: &'static str) -> Result<(), Refusal> {
    if fault { Err(Refusal::bad(reason)) } else { Ok(()) }
}

fn names_end_to_end(option: &[u8], side: Side) -> bool {
    match Name::of(option) {
        None | Some(Name::Host | Name::ContentLength | Name::Disguised) => true,
        Some(
            Name::Expect
            | Name::Cookie
            | Name::Authorization
            | Name::XForwardedFor
            | Name::XForwardedProto
            | Name::Forwarded
            | Name::XRequestId,
        ) => side == Side::Request,
        _ => false,
    }
}

/// `1*DIGIT` and nothing else, below 2^63 because servers often store the length in a signed integer.
fn content_length(value: &[u8]) -> Result<u64, Refusal> {
    if value.is_empty() {
        return Err(Refusal::bad("content_length_empty"));
    }
    let mut length = 0u64;
    for &b in value {
        match b {
            b'0'..=b'9' => {}
            b',' => return Err(Refusal::bad("content_length_list")),
            _ => return Err(Refusal::bad("content_length_malformed")),
        }
        length = length
            .checked_mul(10)
            .and_then(|n| n.checked_add(u64::from(b - b'0')))
            .filter(|&n| n <= i64::MAX as u64)
            .ok_or(Refusal::bad("content_length_overflow"))?;
    }
    Ok(length)
}

fn check_transfer_encoding(value: &[u8]) -> Result<(), Refusal> {
    let is_chunked = |coding: &[u8]| coding.eq_ignore_ascii_case(b"chunked");
    if is_chunked(value) {
        return Ok(());
    }
    let mut codings = value.split(|&b| b == b',').map(trim_ows);
    let last = codings.next_back().unwrap_or_default();
    // RFC 9112 section 6.1: a coding that the recipient does not implement is answered with 501.
    match is_token(last) && codings.all(|coding| is_token(coding) && !is_chunked(coding)) {
        true => Err(Refusal::with(501, "transfer_encoding_unsupported")),
        false => Err(Refusal::bad("transfer_encoding_malformed")),
    }
}

/// Whether a tunnel may carry `protocol`, `name ["/" version]` (RFC 9110 section 7.8). No tunnel carries another
/// version of HTTP, because its requests would bypass every rule.
pub(crate) fn may_tunnel(protocol: &[u8]) -> bool {
    let slash = memchr(b'/', protocol);
    let name = &protocol[..slash.unwrap_or(protocol.len())];
    let hidden_http: [&[u8]; 4] = [b"h2c", b"h2", b"http", b"tls"];
    is_token(name)
        && slash.is_none_or(|slash| is_token(&protocol[slash + 1..]))
        && !hidden_http.iter().any(|word| name.eq_ignore_ascii_case(word))
}
