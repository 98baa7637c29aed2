//! Response heads. A server is trusted no more than a client.

use crate::body::Body;
use crate::bytes::{has_control, list_members};
use crate::connection_auth::ConnectionAuth;
use crate::fields::{FieldSummary, Side, line_end, scan_fields};
use crate::header::{HeaderSlots, Headers, Name};
use crate::limits::{Limits, Parsed, Refusal};
use crate::request::Version;

/// How the body of a response is delimited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseFraming {
    /// There is no body, regardless of the headers: 1xx, 204, 304 and responses to HEAD.
    None,
    /// Content-Length, in bytes; may be 0.
    Length(u64),
    /// Transfer-Encoding: chunked
    Chunked,
    /// The body ends when the server closes the connection.
    UntilClose,
}

/// A complete response head, borrowed from the receive buffer and the header slots.
#[derive(Clone, Copy, Debug)]
pub struct ResponseHead<'a> {
    /// Length of the head in the buffer, in bytes; the body starts there.
    pub head_len: usize,
    /// 100 to 599.
    pub status: u16,
    /// Version of the status line.
    pub version: Version,
    /// The reason phrase; empty when it is absent or not UTF-8.
    pub reason: &'a str,
    /// The header lines.
    pub headers: Headers<'a>,
    /// How the body is delimited.
    pub framing: ResponseFraming,
    /// Whether the server accepts another request on this connection. An HTTP/1.1 response to an HTTP/1.0 request may
    /// announce this and close nevertheless: the caller knows the version of its request.
    pub keep_alive: bool,
    /// Whether the status is 101: the bytes after the head belong to another protocol.
    pub is_upgrade: bool,
    pub(crate) summary: FieldSummary,
}

impl<'a> ResponseHead<'a> {
    /// The value of the first header of that name, without regard to case.
    pub fn header(&self, name: &str) -> Option<&'a [u8]> {
        self.headers.get(name)
    }

    /// Effect of the response on authentication that belongs to a connection. Only a 401 or 407 continues a handshake.
    pub fn connection_auth(&self) -> ConnectionAuth {
        match self.status {
            401 | 407 => self.summary.auth,
            _ => self.summary.auth.min(ConnectionAuth::Binds),
        }
    }

    /// Whether the status is 1xx other than 101: another head follows.
    pub fn is_interim(&self) -> bool {
        self.status < 200 && self.status != 101
    }

    /// Whether the list `offer` contains every protocol that the server switches to (RFC 9110 section 7.8).
    pub fn switches_within(&self, offer: &[u8]) -> bool {
        let mut protocols = self.headers.of(Name::Upgrade).flat_map(list_members).peekable();
        let is_offered =
            |protocol: &[u8]| list_members(offer).any(|offered| offered.eq_ignore_ascii_case(protocol));
        self.is_upgrade && protocols.peek().is_some() && protocols.all(is_offered)
    }

    /// The body before its first byte.
    pub fn body(&self) -> Body {
        match self.framing {
            ResponseFraming::None => Body::Done,
            ResponseFraming::Length(left) => Body::length(left),
            ResponseFraming::Chunked => Body::chunked(),
            ResponseFraming::UntilClose => Body::UntilClose,
        }
    }
}

/// Parses a response head at the start of `buf`. `request_was_head`: the response to HEAD has no body.
pub fn parse_response<'a>(
    buf: &'a [u8],
    limits: &Limits,
    slots: &'a mut HeaderSlots,
    request_was_head: bool,
) -> Result<Parsed<ResponseHead<'a>>, Refusal> {
    parse(buf, limits, slots, request_was_head).map_err(Refusal::for_response)
}

fn parse<'a>(
    buf: &'a [u8],
    limits: &Limits,
    slots: &'a mut HeaderSlots,
    request_was_head: bool,
) -> Result<Parsed<ResponseHead<'a>>, Refusal> {
    let Some(end) = line_end(buf, 0, limits.head_bytes())? else { return Ok(Parsed::Partial) };
    let (version, status, reason) = status_line(&buf[..end])?;
    let summary = match scan_fields(buf, end + 2, limits, slots, Side::Response)? {
        Parsed::Complete(summary) => summary,
        Parsed::Partial => return Ok(Parsed::Partial),
    };
    let framing = framing(version, status, &summary, request_was_head)?;
    if status == 101 && summary.upgrade_lines == 0 {
        return Err(Refusal::bad("upgrade_missing"));
    }
    // RFC 9110 section 8.6, RFC 9112 section 6.1: neither may announce content. A server that does may also send it.
    let announced = summary.chunked || summary.content_length.is_some_and(|length| length > 0);
    if announced && status < 200 {
        return Err(Refusal::bad("interim_with_content"));
    }
    if status == 101 && (summary.upgrade_refused || !summary.upgrade_offered) {
        return Err(Refusal::bad("upgrade_refused"));
    }
    let persistent =
        !summary.close && (version == Version::H11 || summary.keep_alive) && !(announced && status == 204);
    let slots: &'a HeaderSlots = slots;
    Ok(Parsed::Complete(ResponseHead {
        head_len: summary.end,
        status,
        version,
        reason: std::str::from_utf8(reason).unwrap_or(""),
        headers: Headers::new(buf, slots.first(summary.count)),
        framing,
        keep_alive: persistent && framing != ResponseFraming::UntilClose,
        is_upgrade: status == 101,
        summary,
    }))
}

fn status_line(line: &[u8]) -> Result<(Version, u16, &[u8]), Refusal> {
    if has_control(line) {
        let cr = memchr::memchr(b'\r', line).is_some();
        return Err(Refusal::bad(if cr { "bare_cr" } else { "status_line_malformed" }));
    }
    let (version, rest) = match line {
        [b'H', b'T', b'T', b'P', b'/', b'1', b'.', b'1'..=b'9', rest @ ..] => (Version::H11, rest),
        [b'H', b'T', b'T', b'P', b'/', b'1', b'.', b'0', rest @ ..] => (Version::H10, rest),
        [b'H', b'T', b'T', b'P', b'/', b'0'..=b'9', b'.', b'0'..=b'9', ..] => {
            return Err(Refusal::bad("version_unsupported"));
        }
        _ => return Err(Refusal::bad("status_line_malformed")),
    };
    // A missing space before an empty reason phrase is common and unambiguous.
    let (digits, reason) = match rest {
        [b' ', a, b, c] => ([*a, *b, *c], &b""[..]),
        [b' ', a, b, c, b' ', reason @ ..] => ([*a, *b, *c], reason),
        _ => return Err(Refusal::bad("status_line_malformed")),
    };
    if !digits.iter().all(u8::is_ascii_digit) || !(b'1'..=b'5').contains(&digits[0]) {
        return Err(Refusal::bad("status_invalid"));
    }
    let status = digits.iter().fold(0u16, |n, d| n * 10 + u16::from(d - b'0'));
    Ok((version, status, reason))
}

/// RFC 9112 section 6.3.
fn framing(
    version: Version,
    status: u16,
    summary: &FieldSummary,
    request_was_head: bool,
) -> Result<ResponseFraming, Refusal> {
    match (summary.chunked, summary.content_length) {
        (true, Some(_)) => return Err(Refusal::bad("length_and_chunked")),
        (true, None) if version == Version::H10 => return Err(Refusal::bad("transfer_encoding_http10")),
        _ => {}
    }
    if request_was_head || status < 200 || status == 204 || status == 304 {
        return Ok(ResponseFraming::None);
    }
    Ok(match summary.content_length {
        Some(length) => ResponseFraming::Length(length),
        None if summary.chunked => ResponseFraming::Chunked,
        None => ResponseFraming::UntilClose,
    })
}
