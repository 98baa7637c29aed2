//! Request heads: request line, Host, framing and connection options.

use crate::authority::{self, HOST_BYTES_MAX};
use crate::body::Body;
use crate::bytes::{ascii, has_non_vchar, is_token, is_token_byte, list_members, trim_ows};
use crate::connection_auth::ConnectionAuth;
use crate::fields::{FieldSummary, Side, may_tunnel, scan_fields};
use crate::header::{Header, HeaderSlots, Headers, Name};
use crate::limits::{Limits, Parsed, Refusal};
use crate::target;
use crate::write::is_listed;
use memchr::memchr;

const METHOD_BYTES_MAX: usize = 32;
const ID_BYTES_MAX: usize = 128;

/// Versions that this crate processes. A higher minor version is processed as HTTP/1.1 (RFC 9110 section 2.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    /// HTTP/1.0
    H10,
    /// HTTP/1.1 to HTTP/1.9
    H11,
}

/// How the body of a request is delimited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestFraming {
    /// There is no body.
    None,
    /// Content-Length, in bytes; may be 0.
    Length(u64),
    /// Transfer-Encoding: chunked
    Chunked,
}

/// A complete request head, borrowed from the receive buffer and the header slots.
#[derive(Clone, Copy, Debug)]
pub struct RequestHead<'a> {
    /// Length of the head in the buffer, in bytes; the body starts there.
    pub head_len: usize,
    /// A token (RFC 9110 section 9.1) of at most 32 bytes, as sent: methods are case-sensitive.
    pub method: &'a str,
    /// The request target as sent.
    pub target: &'a [u8],
    /// The path of an origin-form or absolute-form target, or `*`. Not canonical: see [`crate::canonical_path`].
    pub path: &'a [u8],
    /// The part after the first `?`.
    pub query: Option<&'a [u8]>,
    /// The authority as sent, in the absolute-form target or the Host header; empty only in HTTP/1.0.
    pub host: &'a [u8],
    /// Version of the request line.
    pub version: Version,
    /// The header lines.
    pub headers: Headers<'a>,
    /// How the body is delimited.
    pub framing: RequestFraming,
    /// Whether the client may send another request on this connection.
    pub keep_alive: bool,
    /// Whether the client waits for 100 (Continue) before it sends the body.
    pub expect_continue: bool,
    /// Whether the request has no content and asks for another protocol that may be tunnelled.
    pub upgrade: bool,
    pub(crate) summary: FieldSummary,
}

impl<'a> RequestHead<'a> {
    /// The host without its port and without a final dot, because servers treat both spellings as the same. An IPv6
    /// address keeps its brackets.
    pub fn host_name(&self) -> &'a [u8] {
        let name = authority::name(self.host);
        name.strip_suffix(b".").filter(|name| !name.is_empty()).unwrap_or(name)
    }

    /// The canonical spelling of the host, for comparisons (RFC 3986 section 6.2.2): lower case, percent-encoded
    /// unreserved characters decoded, no port and no final dot.
    pub fn canonical_host<'b>(&self, out: &'b mut [u8; HOST_BYTES_MAX]) -> &'b [u8] {
        authority::canonical(authority::name(self.host), out)
    }

    /// The header lines that rules may read: those that the server receives, and those that frame the message. Fields
    /// that rewriting drops are excluded: a client could use them to impersonate another client, or to influence a rule
    /// unseen. Host comes first, in the spelling that is written; a target in absolute-form supplies it.
    pub fn for_rules(&self, trust_forwarded: bool) -> impl Iterator<Item = Header<'a>> + use<'a> {
        let (headers, listed) = (self.headers, self.summary.names_listed);
        let host = Some(Header { name: "Host", value: self.host }).filter(|host| !host.value.is_empty());
        let others =
            headers.classified().zip(headers.iter()).filter_map(move |((class, name, _), header)| {
                let passes = match class {
                    Name::Host => false,
                    class if class.may_be_listed() => !(listed && is_listed(headers, name)),
                    class => class.is_for_rules(trust_forwarded),
                };
                passes.then_some(header)
            });
        host.into_iter().chain(others)
    }

    /// The value of the first header of that name, without regard to case.
    pub fn header(&self, name: &str) -> Option<&'a [u8]> {
        self.headers.get(name)
    }

    /// The values of every cookie of that name (case-sensitive), as sent, in the order received.
    pub fn cookies<'n>(&self, name: &'n str) -> impl Iterator<Item = &'a [u8]> + use<'a, 'n> {
        let pairs = self.headers.of(Name::Cookie).flat_map(|line| line.split(|&b| b == b';'));
        pairs.filter_map(|pair| trim_ows(pair).strip_prefix(name.as_bytes())?.strip_prefix(b"="))
    }

    /// The request id from a hop in front of the proxy: 1 to 128 visible ASCII characters, on a single header line.
    pub fn given_id(&self) -> Option<&'a str> {
        let mut values = self.headers.of(Name::XRequestId);
        let id = values.next().filter(|id| (1..=ID_BYTES_MAX).contains(&id.len()) && !has_non_vchar(id))?;
        values.next().is_none().then(|| ascii(id))
    }

    /// Appends the protocols that the client offers and that may be tunnelled, in its order, as a list of at most
    /// `bytes_max` bytes. Appends nothing for a request that asks for no upgrade.
    pub fn write_offer(&self, out: &mut Vec<u8>, bytes_max: usize) {
        let start = out.len();
        let lines = self.headers.of(Name::Upgrade).filter(|_| self.upgrade);
        for protocol in lines.flat_map(list_members).filter(|protocol| may_tunnel(protocol)) {
            let before: &[u8] = if out.len() > start { b", " } else { b"" };
            if out.len() - start + before.len() + protocol.len() <= bytes_max {
                out.extend_from_slice(before);
                out.extend_from_slice(protocol);
            }
        }
    }

    /// Effect of the request on authentication that belongs to a connection.
    pub fn connection_auth(&self) -> ConnectionAuth {
        self.summary.auth
    }

    /// Whether sending the request twice has the effect of sending it once (RFC 9110 section 9.2.2).
    pub fn is_idempotent(&self) -> bool {
        matches!(self.method, "GET" | "HEAD" | "OPTIONS" | "PUT" | "DELETE" | "TRACE")
    }

    /// The body before its first byte.
    pub fn body(&self) -> Body {
        match self.framing {
            RequestFraming::None => Body::Done,
            RequestFraming::Length(left) => Body::length(left),
            RequestFraming::Chunked => Body::chunked(),
        }
    }
}

/// Parses a request head at the start of `buf`.
///
/// At most one CRLF before the request line is skipped (RFC 9112 section 2.2) and counted in `head_len`.
pub fn parse_request<'a>(
    buf: &'a [u8],
    limits: &Limits,
    slots: &'a mut HeaderSlots,
) -> Result<Parsed<RequestHead<'a>>, Refusal> {
    let Some(line) = request_line(buf, limits)? else { return Ok(Parsed::Partial) };
    let summary = match scan_fields(buf, line.next, limits, slots, Side::Request)? {
        Parsed::Complete(summary) => summary,
        Parsed::Partial => return Ok(Parsed::Partial),
    };
    let host = host(buf, &line, &summary)?;
    let framing = framing(&line, &summary)?;
    let h11 = line.version == Version::H11;
    let has_body = !matches!(framing, RequestFraming::None | RequestFraming::Length(0));
    let upgrade =
        h11 && summary.upgrade_option && summary.upgrade_lines == 1 && summary.upgrade_offered && !has_body;
    let slots: &'a HeaderSlots = slots;
    Ok(Parsed::Complete(RequestHead {
        head_len: summary.end,
        method: ascii(line.method),
        target: line.target,
        path: line.parts.path,
        query: line.parts.query,
        host,
        version: line.version,
        headers: Headers::new(buf, slots.first(summary.count)),
        framing,
        keep_alive: !summary.close && (h11 || summary.keep_alive),
        // RFC 9110 section 10.1.1: an expectation is ignored in HTTP/1.0; without content it has no purpose.
        expect_continue: summary.expect_continue && h11 && has_body,
        upgrade,
        summary,
    }))
}

struct RequestLine<'a> {
    method: &'a [u8],
    target: &'a [u8],
    parts: target::Target<'a>,
    version: Version,
    /// Position where the header lines start.
    next: usize,
}

fn request_line<'a>(buf: &'a [u8], limits: &Limits) -> Result<Option<RequestLine<'a>>, Refusal> {
    let Some(start) = line_start(buf)? else { return Ok(None) };
    let rest = &buf[start..];
    let Some(method) = method(rest)? else { return Ok(None) };

    // The limits are thresholds on the position of the LF. An incomplete line crosses them at the same byte as a
    // complete one; the lower threshold names the reason.
    let lf = memchr(b'\n', rest);
    let position = start + lf.unwrap_or(rest.len());
    let line_too_long = start + METHOD_BYTES_MAX + 1 + limits.target_bytes_max + " HTTP/1.1\r".len() + 1;
    let head_too_long = limits.head_bytes();
    if position >= line_too_long.min(head_too_long) {
        return Err(if line_too_long <= head_too_long {
            Refusal::with(414, "target_too_long")
        } else {
            Refusal::with(431, "head_too_large")
        });
    }
    let Some(lf) = lf else { return Ok(None) };
    let Some(line) = rest[..lf].strip_suffix(b"\r") else { return Err(Refusal::bad("bare_lf")) };
    if memchr(b'\r', line).is_some() {
        return Err(Refusal::bad("bare_cr"));
    }

    let Some(after) = line.get(method.len() + 1..) else {
        return Err(Refusal::bad("request_line_malformed"));
    };
    let (target, version) = match memchr(b' ', after) {
        // RFC 9112 section 3: a recipient should not guess around whitespace in the request line.
        Some(0) => return Err(Refusal::bad("request_line_spaces")),
        Some(space) => (&after[..space], &after[space + 1..]),
        None => return Err(Refusal::bad("version_missing")),
    };
    if memchr(b' ', version).is_some() {
        return Err(Refusal::bad("request_line_spaces"));
    }
    let version = match version {
        b"HTTP/1.0" => Version::H10,
        [b'H', b'T', b'T', b'P', b'/', b'1', b'.', b'1'..=b'9'] => Version::H11,
        [b'H', b'T', b'T', b'P', b'/', b'0'..=b'9', b'.', b'0'..=b'9'] => {
            return Err(Refusal::with(505, "version_unsupported"));
        }
        _ => return Err(Refusal::bad("version_malformed")),
    };
    if target.len() > limits.target_bytes_max {
        return Err(Refusal::with(414, "target_too_long"));
    }
    if method == b"CONNECT" {
        return Err(Refusal::with(501, "connect_unsupported"));
    }
    let parts = target::parse(method, target)?;
    Ok(Some(RequestLine { method, target, parts, version, next: start + lf + 1 }))
}

/// Position where the request line starts; `None` while that is unknown.
fn line_start(buf: &[u8]) -> Result<Option<usize>, Refusal> {
    let start = match buf {
        [b'\r', b'\n', ..] => 2,
        [b'\r'] => return Ok(None),
        [b'\r', ..] => return Err(Refusal::bad("bare_cr")),
        _ => 0,
    };
    match buf.get(start) {
        None => Ok(None),
        Some(b' ' | b'\t') => Err(Refusal::bad("leading_space")),
        Some(b'\r' | b'\n') if start > 0 => Err(Refusal::bad("leading_empty_lines")),
        Some(b'\n') => Err(Refusal::bad("bare_lf")),
        Some(_) => Ok(Some(start)),
    }
}

/// The method at the start of a line. It is checked byte by byte, so that other protocols are refused at once.
fn method(rest: &[u8]) -> Result<Option<&[u8]>, Refusal> {
    let head = &rest[..rest.len().min(METHOD_BYTES_MAX + 1)];
    match head.iter().position(|&b| !is_token_byte(b)) {
        None if head.len() > METHOD_BYTES_MAX => Err(Refusal::with(501, "method_too_long")),
        None => Ok(None),
        // The line checks name the reason when the line ends within the method.
        Some(len) if len > 0 && matches!(head[len], b' ' | b'\r' | b'\n') => Ok(Some(&rest[..len])),
        Some(_) => Err(Refusal::bad("method_malformed")),
    }
}

/// Whether a request line may begin with this method.
pub fn is_method(method: &[u8]) -> bool {
    is_token(method) && method.len() <= METHOD_BYTES_MAX
}

fn host<'a>(buf: &'a [u8], line: &RequestLine<'a>, summary: &FieldSummary) -> Result<&'a [u8], Refusal> {
    let sent = summary.host.map(|(start, end)| &buf[start..end]);
    let h10 = line.version == Version::H10;
    let header = match sent {
        None if h10 => None,
        None => return Err(Refusal::bad("host_missing")),
        Some([]) if h10 => None,
        Some(host) => Some((host, authority::parse(host)?)),
    };
    match (line.parts.authority, header) {
        (None, None) => Ok(b""),
        (None, Some((host, _))) => Ok(host),
        (Some((name, _, _)), None) => Ok(name),
        // RFC 9112 section 3.2.2 prefers the target; a server may prefer the header.
        (Some((name, a, port)), Some((_, b))) if authority::same(a, b, port) => Ok(name),
        (Some(_), Some(_)) => Err(Refusal::bad("host_conflict")),
    }
}

fn framing(line: &RequestLine<'_>, summary: &FieldSummary) -> Result<RequestFraming, Refusal> {
    match (summary.chunked, summary.content_length) {
        (true, Some(_)) => Err(Refusal::bad("length_and_chunked")),
        // RFC 9112 section 6.1: a recipient must treat the framing of such a message as faulty.
        (true, None) if line.version == Version::H10 => Err(Refusal::bad("transfer_encoding_http10")),
        (true, None) => Ok(RequestFraming::Chunked),
        (false, Some(length)) => Ok(RequestFraming::Length(length)),
        (false, None) => Ok(RequestFraming::None),
    }
}
