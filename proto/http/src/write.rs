//! Heads as they are forwarded: hop-by-hop fields are dropped, framing is written from the parsed values, forwarding
//! fields are added. Names and values of other fields are unchanged.

use crate::bytes::{is_token, list_members, push_decimal};
use crate::header::{Headers, Name};
use crate::request::{RequestFraming, RequestHead, Version};
use crate::response::{ResponseFraming, ResponseHead};
use evergate_base::name::is_same;

/// Changes to a request before it is sent to the server.
#[derive(Clone, Copy, Debug, Default)]
pub struct RequestEdits<'a> {
    /// Path to write: the bytes that the rules matched, from [`crate::canonical_path`]. Empty means as received.
    pub path: &'a [u8],
    /// Host to write for a client of HTTP/1.0 that names none: many servers refuse an empty one.
    pub default_host: &'a str,
    /// The client's address as text, without port.
    pub client_ip: &'a str,
    /// Scheme of the client's connection: `http` or `https`.
    pub scheme: &'a str,
    /// Value of X-Request-Id, in place of the client's, which may be [`RequestHead::given_id`]; empty writes none.
    pub request_id: &'a str,
    /// Whether to append to the received X-Forwarded-For and keep the related fields; otherwise these are dropped.
    pub trust_forwarded: bool,
    /// Fields to write in place of received fields of the same name. `Host` is allowed; framing fields are ignored.
    pub set: &'a [(&'a str, &'a str)],
    /// Names of fields to drop. Framing fields and Host are ignored.
    pub remove: &'a [&'a str],
    /// Protocols to offer to the server, from [`RequestHead::write_offer`]; empty offers none.
    pub offer: &'a [u8],
    /// Whether the client has already received 100 (Continue): the expectation is met and not forwarded.
    pub continued: bool,
    /// Whether to ask the server to close this connection after the response.
    pub close: bool,
}

/// Changes to a response before it is sent to the client.
#[derive(Clone, Copy, Debug, Default)]
pub struct ResponseEdits<'a> {
    /// Whether the proxy closes the connection after this response. Implied when the body ends with the connection.
    pub close: bool,
    /// Whether the client uses HTTP/1.0: a connection that stays open must announce it. A chunked body loses its
    /// framing, so that it ends with the connection.
    pub http10_client: bool,
    /// Fields to write in place of received fields of the same name; framing fields are ignored.
    pub set: &'a [(&'a str, &'a str)],
    /// Names of fields to drop; framing fields are ignored.
    pub remove: &'a [&'a str],
    /// Fields to add, such as Set-Cookie.
    pub append: &'a [(&'a str, &'a str)],
    /// Whether to forward a 101 as such.
    pub upgrade: bool,
}

/// Appends the request head for the server.
///
/// The target is in origin-form and Host comes first. An HTTP/1.0 request becomes HTTP/1.1 (RFC 9110 section 2.5), so
/// that the server connection can be reused. A chunked response must then lose its framing: see
/// [`ResponseEdits::http10_client`].
pub fn write_request_head(out: &mut Vec<u8>, head: &RequestHead<'_>, edits: &RequestEdits<'_>) {
    let h11 = head.version == Version::H11;
    out.reserve(head.head_len + 256);
    out.extend_from_slice(head.method.as_bytes());
    out.push(b' ');
    out.extend_from_slice(if edits.path.is_empty() { head.path } else { edits.path });
    if let Some(query) = head.query {
        out.push(b'?');
        out.extend_from_slice(query);
    }
    out.extend_from_slice(b" HTTP/1.1\r\n");

    match edits.set.iter().find(|(name, _)| name.eq_ignore_ascii_case("host")) {
        Some((_, host)) => push_field(out, "Host", host.as_bytes()),
        None if head.host.is_empty() => push_field(out, "Host", edits.default_host.as_bytes()),
        None => push_field(out, "Host", head.host),
    }

    let upgrade = !edits.offer.is_empty() && head.upgrade;
    let te = head.summary.te_trailers && h11;
    let listed = head.summary.names_listed;
    for (class, name, value) in head.headers.classified() {
        let forward = match class {
            Name::Other
            | Name::Cookie
            | Name::Authorization
            | Name::ProxyAuthorization
            | Name::Challenge
            | Name::PersistentAuth => forwards(head.headers, name, listed, edits.set, edits.remove),
            Name::Forwarded | Name::XForwardedProto => {
                edits.trust_forwarded && forwards(head.headers, name, listed, edits.set, edits.remove)
            }
            Name::Expect => head.expect_continue && !edits.continued,
            Name::Upgrade if upgrade => {
                push_line(out, b"Upgrade", edits.offer); // the only line of this name
                false
            }
            // Written below, or never.
            Name::Host
            | Name::ContentLength
            | Name::TransferEncoding
            | Name::Connection
            | Name::HopByHop
            | Name::Te
            | Name::Upgrade
            | Name::XForwardedFor
            | Name::XRequestId
            | Name::Disguised => false,
        };
        if forward {
            push_line(out, name, value);
        }
    }

    push_request_framing(out, head.framing);
    push_options(out, [(upgrade, b"upgrade"), (te, b"TE"), (edits.close, b"close")]);
    if te {
        push_line(out, b"TE", b"trailers");
    }
    push_forwarding(out, head, edits);
    push_set(out, edits.set);
    out.extend_from_slice(b"\r\n");
}

/// Writes a Connection field with the options whose condition holds.
fn push_options(out: &mut Vec<u8>, options: [(bool, &[u8]); 3]) {
    let mut before: &[u8] = b"Connection: ";
    for (_, option) in options.into_iter().filter(|(holds, _)| *holds) {
        out.extend_from_slice(before);
        out.extend_from_slice(option);
        before = b", ";
    }
    if before == b", " {
        out.extend_from_slice(b"\r\n");
    }
}

fn push_request_framing(out: &mut Vec<u8>, framing: RequestFraming) {
    match framing {
        RequestFraming::None => {}
        RequestFraming::Length(length) => push_content_length(out, length),
        RequestFraming::Chunked => push_line(out, b"Transfer-Encoding", b"chunked"),
    }
}

fn push_forwarding(out: &mut Vec<u8>, head: &RequestHead<'_>, edits: &RequestEdits<'_>) {
    let is_written = |name: &str| !overridden(name.as_bytes(), edits.set, edits.remove);
    if is_written("x-forwarded-for") {
        out.extend_from_slice(b"X-Forwarded-For: ");
        if edits.trust_forwarded {
            for value in head.headers.of(Name::XForwardedFor).filter(|value| !value.is_empty()) {
                out.extend_from_slice(value);
                out.extend_from_slice(b", ");
            }
        }
        push_value(out, edits.client_ip.as_bytes());
        out.extend_from_slice(b"\r\n");
    }
    // A trusted hop knows how the client reached it; the proxy only knows how the hop reached the proxy.
    let has_proto = edits.trust_forwarded && head.headers.of(Name::XForwardedProto).next().is_some();
    if !has_proto && is_written("x-forwarded-proto") {
        push_field(out, "X-Forwarded-Proto", edits.scheme.as_bytes());
    }
    if !edits.request_id.is_empty() && is_written("x-request-id") {
        push_field(out, "X-Request-Id", edits.request_id.as_bytes());
    }
}

/// Appends the response head for the client, always as HTTP/1.1 (RFC 9110 section 2.5).
pub fn write_response_head(out: &mut Vec<u8>, head: &ResponseHead<'_>, edits: &ResponseEdits<'_>) {
    out.reserve(head.head_len + 256);
    out.extend_from_slice(b"HTTP/1.1 ");
    push_decimal(out, u64::from(head.status));
    out.push(b' ');
    out.extend_from_slice(head.reason.as_bytes());
    out.extend_from_slice(b"\r\n");

    // A 426 must name the protocols to upgrade to (RFC 9110 section 15.5.22). HTTP/1.0 has no upgrades.
    let required = head.status == 426 && head.summary.upgrade_lines > 0 && !edits.http10_client;
    let upgrade = (edits.upgrade && head.is_upgrade) || required;
    let listed = head.summary.names_listed;
    for (class, name, value) in head.headers.classified() {
        let forward = match class {
            Name::ContentLength
            | Name::TransferEncoding
            | Name::Connection
            | Name::HopByHop
            | Name::Te
            | Name::Disguised => false,
            Name::Upgrade => upgrade,
            _ => forwards(head.headers, name, listed, edits.set, edits.remove),
        };
        if forward {
            push_line(out, name, value);
        }
    }

    match head.framing {
        ResponseFraming::Length(length) => push_content_length(out, length),
        ResponseFraming::Chunked if edits.http10_client => {}
        ResponseFraming::Chunked => push_line(out, b"Transfer-Encoding", b"chunked"),
        // Responses to HEAD and 304 may give the length of the content; 1xx and 204 must not.
        ResponseFraming::None if head.status >= 200 && head.status != 204 => {
            if let Some(length) = head.summary.content_length {
                push_content_length(out, length);
            }
        }
        ResponseFraming::None | ResponseFraming::UntilClose => {}
    }
    let unframed = edits.http10_client && head.framing == ResponseFraming::Chunked;
    let closes =
        head.status >= 200 && (edits.close || unframed || head.framing == ResponseFraming::UntilClose);
    match (closes, upgrade) {
        (true, true) => push_line(out, b"Connection", b"close, upgrade"),
        (true, false) => push_line(out, b"Connection", b"close"),
        (false, true) => push_line(out, b"Connection", b"upgrade"),
        (false, false) if head.status >= 200 && edits.http10_client => {
            push_line(out, b"Connection", b"keep-alive");
        }
        (false, false) => {}
    }
    push_set(out, edits.set);
    push_set(out, edits.append);
    out.extend_from_slice(b"\r\n");
}

/// Whether the field is forwarded: neither the caller nor the message's own Connection lines drop it.
#[inline]
fn forwards(headers: Headers<'_>, name: &[u8], listed: bool, set: &[(&str, &str)], remove: &[&str]) -> bool {
    let left_out = overridden(name, set, remove) || (listed && is_listed(headers, name));
    !left_out
}

/// Whether the caller replaces or removes fields of that name.
#[inline]
fn overridden(name: &[u8], set: &[(&str, &str)], remove: &[&str]) -> bool {
    let named = |other: &str| is_same(name, other.as_bytes());
    set.iter().any(|(other, _)| named(other)) || remove.iter().any(|other| named(other))
}

/// Whether the message's own Connection lines name that field.
#[cold]
pub(crate) fn is_listed(headers: Headers<'_>, name: &[u8]) -> bool {
    headers.of(Name::Connection).flat_map(list_members).any(|option| option.eq_ignore_ascii_case(name))
}

pub(crate) fn push_set(out: &mut Vec<u8>, fields: &[(&str, &str)]) {
    for (name, value) in fields {
        let framing = matches!(
            Name::of(name.as_bytes()),
            None | Some(
                Name::Host
                    | Name::ContentLength
                    | Name::TransferEncoding
                    | Name::Connection
                    | Name::HopByHop
                    | Name::Te
                    | Name::Upgrade
                    | Name::Expect
            )
        );
        if !framing {
            push_field(out, name, value.as_bytes());
        }
    }
}

/// Appends a field whose value did not come from a parsed head but, for example, from a certificate or a cookie.
/// Control bytes are replaced. A field whose name is not a token is not written.
pub(crate) fn push_field(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    if !is_token(name.as_bytes()) {
        return;
    }
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    push_value(out, value);
    out.extend_from_slice(b"\r\n");
}

fn push_value(out: &mut Vec<u8>, value: &[u8]) {
    let start = out.len();
    out.extend_from_slice(value);
    if crate::bytes::has_control(value) {
        for byte in &mut out[start..] {
            if (*byte < 0x20 && *byte != b'\t') || *byte == 0x7f {
                *byte = b' ';
            }
        }
    }
}

#[inline]
fn push_line(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    out.extend_from_slice(name);
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

pub(crate) fn push_content_length(out: &mut Vec<u8>, length: u64) {
    out.extend_from_slice(b"Content-Length: ");
    push_decimal(out, length);
    out.extend_from_slice(b"\r\n");
}
