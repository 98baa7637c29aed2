//! Responses that the proxy generates: errors and redirects, with the reason as a short text.

use crate::bytes::push_decimal;
use crate::write::{push_content_length, push_set};

/// State of the connection after a generated response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    /// The connection closes; the response announces it.
    Close,
    /// The connection stays open, as is the default of HTTP/1.1.
    Stay,
    /// The connection stays open; the response announces it to a client of HTTP/1.0.
    StayHttp10,
}

/// Appends a complete response with a small `text/plain` body made of the status and `reason_token`.
///
/// `head_request` leaves the body out but keeps its length. `extra` holds further fields, such as the Location of a
/// redirect or Retry-After; fields that frame the message or describe the body are left out.
pub fn error_response(
    out: &mut Vec<u8>,
    status: u16,
    reason_token: &str,
    after: After,
    head_request: bool,
    extra: &[(&str, &str)],
) {
    let phrase = reason_phrase(status);
    let token = reason_token.as_bytes();
    out.reserve(256);
    out.extend_from_slice(b"HTTP/1.1 ");
    push_decimal(out, u64::from(status));
    out.push(b' ');
    out.extend_from_slice(phrase.as_bytes());
    out.extend_from_slice(b"\r\nContent-Type: text/plain; charset=utf-8\r\n");
    // 204 and 304 have no body, and 204 must not announce one.
    let bodiless = status == 204 || status == 304;
    let separator = if token.is_empty() { 0 } else { ": ".len() };
    let body_len = decimal_len(status) + 1 + phrase.len() + separator + token.len() + 1;
    if !bodiless {
        push_content_length(out, body_len as u64);
    }
    let is = |name: &str, field: &(&str, &str)| field.0.eq_ignore_ascii_case(name);
    if status >= 400 && !extra.iter().any(|field| is("cache-control", field)) {
        out.extend_from_slice(b"Cache-Control: no-store\r\n");
    }
    // A 426 must name a protocol (RFC 9110 section 15.5.22). WebSocket is the one that servers usually upgrade to.
    let upgrade = status == 426;
    match (after, upgrade) {
        (After::Stay, false) => {}
        (After::Close, false) => out.extend_from_slice(b"Connection: close\r\n"),
        (After::StayHttp10, false) => out.extend_from_slice(b"Connection: keep-alive\r\n"),
        (After::Stay, true) => out.extend_from_slice(b"Connection: Upgrade\r\n"),
        (After::Close, true) => out.extend_from_slice(b"Connection: close, Upgrade\r\n"),
        (After::StayHttp10, true) => out.extend_from_slice(b"Connection: keep-alive, Upgrade\r\n"),
    }
    if upgrade {
        out.extend_from_slice(b"Upgrade: websocket\r\n");
    }
    for field in extra.iter().filter(|field| !is("content-type", field)) {
        push_set(out, std::slice::from_ref(field));
    }
    out.extend_from_slice(b"\r\n");
    if head_request || bodiless {
        return;
    }
    push_decimal(out, u64::from(status));
    out.push(b' ');
    out.extend_from_slice(phrase.as_bytes());
    if !token.is_empty() {
        out.extend_from_slice(b": ");
        out.extend_from_slice(token);
    }
    out.push(b'\n');
}

fn decimal_len(status: u16) -> usize {
    status.checked_ilog10().map_or(1, |log| log as usize + 1)
}

/// The registered phrase of a status, or a general one.
pub fn reason_phrase(status: u16) -> &'static str {
    match status {
        100 => "Continue",
        200 => "OK",
        204 => "No Content",
        301 => "Moved Permanently",
        302 => "Found",
        303 => "See Other",
        304 => "Not Modified",
        307 => "Temporary Redirect",
        308 => "Permanent Redirect",
        400 => "Bad Request",
        401 => "Unauthorized",
        402 => "Payment Required",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        406 => "Not Acceptable",
        407 => "Proxy Authentication Required",
        408 => "Request Timeout",
        409 => "Conflict",
        410 => "Gone",
        411 => "Length Required",
        412 => "Precondition Failed",
        413 => "Content Too Large",
        414 => "URI Too Long",
        415 => "Unsupported Media Type",
        416 => "Range Not Satisfiable",
        417 => "Expectation Failed",
        421 => "Misdirected Request",
        422 => "Unprocessable Content",
        423 => "Locked",
        424 => "Failed Dependency",
        425 => "Too Early",
        426 => "Upgrade Required",
        428 => "Precondition Required",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        451 => "Unavailable For Legal Reasons",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        505 => "HTTP Version Not Supported",
        506 => "Variant Also Negotiates",
        507 => "Insufficient Storage",
        508 => "Loop Detected",
        511 => "Network Authentication Required",
        _ => "Status",
    }
}
