//! Table of messages that must be refused, with the status and the reason token of each, and of similar messages that
//! must be accepted. Every case is also fed byte by byte.

mod support;

use support::{Verdict, request_verdict, response_verdict, stream_verdict};

/// Name, bytes, status, reason.
type Refused = (&'static str, &'static str, u16, &'static str);

/// Whole request heads.
const REQUEST_LINES: &[Refused] = &[
    // Start of the message
    ("leading space", " GET / HTTP/1.1\r\nHost: a\r\n\r\n", 400, "leading_space"),
    ("leading tab", "\tGET / HTTP/1.1\r\nHost: a\r\n\r\n", 400, "leading_space"),
    ("leading space after CRLF", "\r\n GET / HTTP/1.1\r\nHost: a\r\n\r\n", 400, "leading_space"),
    ("two leading CRLF", "\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", 400, "leading_empty_lines"),
    ("CRLF and LF leading", "\r\n\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", 400, "leading_empty_lines"),
    ("leading LF", "\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", 400, "bare_lf"),
    ("leading CR", "\rGET / HTTP/1.1\r\nHost: a\r\n\r\n", 400, "bare_cr"),
    ("TLS hello on a plain port", "\x16\x03\x01\x02\r\n\r\n", 400, "method_malformed"),
    // Request line
    ("bare LF after request line", "GET / HTTP/1.1\nHost: a\r\n\r\n", 400, "bare_lf"),
    ("bare CR in request line", "GET /\r HTTP/1.1\r\nHost: a\r\n\r\n", 400, "bare_cr"),
    ("CR CR LF after request line", "GET / HTTP/1.1\r\r\nHost: a\r\n\r\n", 400, "bare_cr"),
    ("bare CR as the only line end", "GET / HTTP/1.1\rHost: a\r\n\r\n", 400, "bare_cr"),
    ("method with slash", "GE/T / HTTP/1.1\r\nHost: a\r\n\r\n", 400, "method_malformed"),
    ("method with 8-bit byte", "GET\u{e9} / HTTP/1.1\r\nHost: a\r\n\r\n", 400, "method_malformed"),
    ("method with parenthesis", "GE(T / HTTP/1.1\r\nHost: a\r\n\r\n", 400, "method_malformed"),
    ("method with NUL", "GET\0 / HTTP/1.1\r\nHost: a\r\n\r\n", 400, "method_malformed"),
    ("empty method", ": / HTTP/1.1\r\nHost: a\r\n\r\n", 400, "method_malformed"),
    ("method of 33 bytes", "ABCDEFGHIJKLMNOPQRSTUVWXYZABCDEFG / HTTP/1.1\r\n", 501, "method_too_long"),
    ("method only", "GET\r\nHost: a\r\n\r\n", 400, "request_line_malformed"),
    ("two spaces before target", "GET  / HTTP/1.1\r\nHost: a\r\n\r\n", 400, "request_line_spaces"),
    ("two spaces before version", "GET /  HTTP/1.1\r\nHost: a\r\n\r\n", 400, "request_line_spaces"),
    ("space after version", "GET / HTTP/1.1 \r\nHost: a\r\n\r\n", 400, "request_line_spaces"),
    ("space in target", "GET /a b HTTP/1.1\r\nHost: a\r\n\r\n", 400, "request_line_spaces"),
    ("tab as separator", "GET\t/ HTTP/1.1\r\nHost: a\r\n\r\n", 400, "method_malformed"),
    ("tab before version", "GET /\tHTTP/1.1\r\nHost: a\r\n\r\n", 400, "version_missing"),
    ("HTTP/0.9", "GET /\r\n\r\n", 400, "version_missing"),
    ("empty version", "GET / \r\nHost: a\r\n\r\n", 400, "version_malformed"),
    ("HTTP/2.0", "GET / HTTP/2.0\r\nHost: a\r\n\r\n", 505, "version_unsupported"),
    ("HTTP/2 preface", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505, "version_unsupported"),
    ("HTTP/2.1", "GET / HTTP/2.1\r\nHost: a\r\n\r\n", 505, "version_unsupported"),
    ("HTTP/1.a", "GET / HTTP/1.a\r\nHost: a\r\n\r\n", 400, "version_malformed"),
    ("HTTP/0.9 written out", "GET / HTTP/0.9\r\nHost: a\r\n\r\n", 505, "version_unsupported"),
    ("lower-case version", "GET / http/1.1\r\nHost: a\r\n\r\n", 400, "version_malformed"),
    ("HTTP/1", "GET / HTTP/1\r\nHost: a\r\n\r\n", 400, "version_malformed"),
    ("HTTP/1.10", "GET / HTTP/1.10\r\nHost: a\r\n\r\n", 400, "version_malformed"),
    ("HTTP/01.1", "GET / HTTP/01.1\r\nHost: a\r\n\r\n", 400, "version_malformed"),
    ("another protocol", "GET / RTSP/1.0\r\nHost: a\r\n\r\n", 400, "version_malformed"),
    // Target
    ("fragment", "GET /a#b HTTP/1.1\r\nHost: a\r\n\r\n", 400, "target_fragment"),
    ("control byte in target", "GET /\x01 HTTP/1.1\r\nHost: a\r\n\r\n", 400, "target_bytes"),
    ("NUL in target", "GET /\0 HTTP/1.1\r\nHost: a\r\n\r\n", 400, "target_bytes"),
    ("DEL in target", "GET /\x7f HTTP/1.1\r\nHost: a\r\n\r\n", 400, "target_bytes"),
    ("vertical tab in target", "GET /\x0b HTTP/1.1\r\nHost: a\r\n\r\n", 400, "target_bytes"),
    ("8-bit byte in target", "GET /\u{e9} HTTP/1.1\r\nHost: a\r\n\r\n", 400, "target_bytes"),
    ("relative target", "GET a/b HTTP/1.1\r\nHost: a\r\n\r\n", 400, "target_form"),
    ("query only", "GET ?a HTTP/1.1\r\nHost: a\r\n\r\n", 400, "target_form"),
    ("authority-form", "GET a:80 HTTP/1.1\r\nHost: a\r\n\r\n", 400, "target_form"),
    ("asterisk with GET", "GET * HTTP/1.1\r\nHost: a\r\n\r\n", 400, "target_form"),
    ("asterisk and more", "OPTIONS *a HTTP/1.1\r\nHost: a\r\n\r\n", 400, "target_form"),
    ("CONNECT", "CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n", 501, "connect_unsupported"),
    ("CONNECT in origin-form", "CONNECT / HTTP/1.1\r\nHost: a\r\n\r\n", 501, "connect_unsupported"),
    ("foreign scheme", "GET ftp://a/ HTTP/1.1\r\nHost: a\r\n\r\n", 400, "target_scheme"),
    ("scheme with one slash", "GET http:/a/ HTTP/1.1\r\nHost: a\r\n\r\n", 400, "target_form"),
    ("absolute-form with userinfo", "GET http://u@a/ HTTP/1.1\r\nHost: a\r\n\r\n", 400, "authority_userinfo"),
    ("absolute-form without host", "GET http:///x HTTP/1.1\r\nHost: a\r\n\r\n", 400, "host_empty"),
    ("absolute-form with port only", "GET http://:80/ HTTP/1.1\r\nHost: a\r\n\r\n", 400, "host_empty"),
    ("absolute-form and another Host", "GET http://b/ HTTP/1.1\r\nHost: a\r\n\r\n", 400, "host_conflict"),
    ("absolute-form and another port", "GET http://a:81/ HTTP/1.1\r\nHost: a\r\n\r\n", 400, "host_conflict"),
    ("https and Host with port 80", "GET https://a/ HTTP/1.1\r\nHost: a:80\r\n\r\n", 400, "host_conflict"),
    ("absolute-form, Host missing", "GET http://a/ HTTP/1.1\r\n\r\n", 400, "host_missing"),
    ("absolute-form, Host empty", "GET http://a/ HTTP/1.1\r\nHost:\r\n\r\n", 400, "host_empty"),
    // Host
    ("Host missing", "GET / HTTP/1.1\r\nA: b\r\n\r\n", 400, "host_missing"),
    ("Host empty", "GET / HTTP/1.1\r\nHost: \r\n\r\n", 400, "host_empty"),
    ("Host twice", "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400, "host_duplicate"),
    ("Host twice, equal", "GET / HTTP/1.1\r\nHost: a\r\nhost: a\r\n\r\n", 400, "host_duplicate"),
    ("Host twice in HTTP/1.0", "GET / HTTP/1.0\r\nHost: a\r\nHost: a\r\n\r\n", 400, "host_duplicate"),
    ("Host with userinfo", "GET / HTTP/1.1\r\nHost: u@a\r\n\r\n", 400, "authority_userinfo"),
    ("Host with path", "GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", 400, "host_malformed"),
    ("Host with space", "GET / HTTP/1.1\r\nHost: a b\r\n\r\n", 400, "host_malformed"),
    ("Host with quote", "GET / HTTP/1.1\r\nHost: a\"b\r\n\r\n", 400, "host_malformed"),
    ("Host with backslash", "GET / HTTP/1.1\r\nHost: a\\b\r\n\r\n", 400, "host_malformed"),
    ("Host with query", "GET / HTTP/1.1\r\nHost: a?b\r\n\r\n", 400, "host_malformed"),
    ("Host with brackets", "GET / HTTP/1.1\r\nHost: a[b]\r\n\r\n", 400, "host_malformed"),
    ("Host with a percent sign", "GET / HTTP/1.1\r\nHost: a%\r\n\r\n", 400, "host_malformed"),
    ("Host with half an escape", "GET / HTTP/1.1\r\nHost: a%2:80\r\n\r\n", 400, "host_malformed"),
    ("Host with an escape of no digits", "GET / HTTP/1.1\r\nHost: a%2gb\r\n\r\n", 400, "host_malformed"),
    ("Host with encoded NUL", "GET / HTTP/1.1\r\nHost: a%00\r\n\r\n", 400, "host_malformed"),
    ("Host with an encoded empty label", "GET / HTTP/1.1\r\nHost: a.%2Eb\r\n\r\n", 400, "host_malformed"),
    ("Host with an encoded dot in front", "GET / HTTP/1.1\r\nHost: %2ea\r\n\r\n", 400, "host_malformed"),
    ("Host of a later IP without version", "GET / HTTP/1.1\r\nHost: [v.a]\r\n\r\n", 400, "host_malformed"),
    ("Host of a later IP without dot", "GET / HTTP/1.1\r\nHost: [v1]\r\n\r\n", 400, "host_malformed"),
    ("Host of a later IP without address", "GET / HTTP/1.1\r\nHost: [v1.]\r\n\r\n", 400, "host_malformed"),
    ("Host of a later IP, no digit", "GET / HTTP/1.1\r\nHost: [vg.a]\r\n\r\n", 400, "host_malformed"),
    ("Host of a later IP, encoded", "GET / HTTP/1.1\r\nHost: [v1.%61]\r\n\r\n", 400, "host_malformed"),
    (
        "Host of a later IP without brackets",
        "GET / HTTP/1.1\r\nHost: v1.a:b\r\n\r\n",
        400,
        "host_port_malformed",
    ),
    ("Host with 8-bit byte", "GET / HTTP/1.1\r\nHost: \u{e9}\r\n\r\n", 400, "host_malformed"),
    ("Host with broken IPv6", "GET / HTTP/1.1\r\nHost: [::1\r\n\r\n", 400, "host_malformed"),
    ("Host with IPv6 zone", "GET / HTTP/1.1\r\nHost: [fe80::1%25lo]\r\n\r\n", 400, "host_malformed"),
    ("Host with bytes after IPv6", "GET / HTTP/1.1\r\nHost: [::1]a:80\r\n\r\n", 400, "host_malformed"),
    ("Host with bare IPv6", "GET / HTTP/1.1\r\nHost: ::1\r\n\r\n", 400, "host_port_malformed"),
    ("Host with word as port", "GET / HTTP/1.1\r\nHost: a:http\r\n\r\n", 400, "host_port_malformed"),
    ("Host with signed port", "GET / HTTP/1.1\r\nHost: a:+80\r\n\r\n", 400, "host_port_malformed"),
    ("Host with port 65536", "GET / HTTP/1.1\r\nHost: a:65536\r\n\r\n", 400, "host_port_malformed"),
    ("Host of a dot", "GET / HTTP/1.1\r\nHost: .\r\n\r\n", 400, "host_malformed"),
    ("Host with a dot in front", "GET / HTTP/1.1\r\nHost: .a\r\n\r\n", 400, "host_malformed"),
    ("Host with an empty label", "GET / HTTP/1.1\r\nHost: a..b\r\n\r\n", 400, "host_malformed"),
    ("Host with two final dots", "GET / HTTP/1.1\r\nHost: a..:80\r\n\r\n", 400, "host_malformed"),
    (
        "absolute-form with two final dots",
        "GET http://a../ HTTP/1.1\r\nHost: a..\r\n\r\n",
        400,
        "host_malformed",
    ),
    ("Host with two ports", "GET / HTTP/1.1\r\nHost: a:80:80\r\n\r\n", 400, "host_port_malformed"),
];

/// Header lines appended to `POST / HTTP/1.1` and `Host: a`.
const HEADER_LINES: &[Refused] = &[
    ("bare LF after a header", "A: b\nC: d\r\n", 400, "bare_lf"),
    ("bare LF as the empty line", "A: b\r\n\n", 400, "bare_lf"),
    ("bare CR in a value", "A: b\rc\r\n", 400, "bare_cr"),
    ("bare CR hiding a header", "A: b\rContent-Length: 5\r\n", 400, "bare_cr"),
    ("CR CR LF after a header", "A: b\r\r\n", 400, "bare_cr"),
    ("bare CR in a name", "A\rB: c\r\n", 400, "bare_cr"),
    ("CR as the empty line", "\rA: b\r\n", 400, "bare_cr"),
    ("obs-fold with space", "A: b\r\n c\r\n", 400, "obs_fold"),
    ("obs-fold with tab", "A: b\r\n\tc\r\n", 400, "obs_fold"),
    ("obs-fold of the coding", "Transfer-Encoding:\r\n chunked\r\n", 400, "transfer_encoding_malformed"),
    ("line of spaces", "A: b\r\n   \r\n", 400, "obs_fold"),
    ("space before colon", "Content-Length : 5\r\n", 400, "space_before_colon"),
    ("tab before colon", "Transfer-Encoding\t: chunked\r\n", 400, "space_before_colon"),
    ("space in a name", "Content Length: 5\r\n", 400, "header_name_invalid"),
    ("empty name", ": b\r\n", 400, "header_name_empty"),
    ("no colon", "Content-Length\r\n", 400, "header_without_colon"),
    ("no colon but a value", "Content-Length 5\r\n", 400, "header_name_invalid"),
    ("slash in a name", "A/B: c\r\n", 400, "header_name_invalid"),
    ("NUL in a name", "Content-Length\0: 5\r\n", 400, "header_name_invalid"),
    ("8-bit byte in a name", "\u{e9}: b\r\n", 400, "header_name_invalid"),
    ("quote in a name", "\"A\": b\r\n", 400, "header_name_invalid"),
    ("name in brackets", "[A]: b\r\n", 400, "header_name_invalid"),
    ("NUL in a value", "A: b\0c\r\n", 400, "header_value_nul"),
    ("NUL at the end of a value", "A: b\0\r\n", 400, "header_value_nul"),
    ("vertical tab in a value", "A: b\x0bc\r\n", 400, "header_value_control"),
    ("DEL in a value", "A: \x7f\r\n", 400, "header_value_control"),
    ("escape in a value", "A: \x1b[2J\r\n", 400, "header_value_control"),
    // Content-Length
    ("length twice, equal", "Content-Length: 5\r\nContent-Length: 5\r\n", 400, "content_length_duplicate"),
    (
        "length twice, different",
        "Content-Length: 5\r\ncontent-length: 6\r\n",
        400,
        "content_length_duplicate",
    ),
    ("length list, equal", "Content-Length: 5, 5\r\n", 400, "content_length_list"),
    ("length list, different", "Content-Length: 5,6\r\n", 400, "content_length_list"),
    ("length with plus", "Content-Length: +5\r\n", 400, "content_length_malformed"),
    ("length with minus", "Content-Length: -5\r\n", 400, "content_length_malformed"),
    ("length of minus zero", "Content-Length: -0\r\n", 400, "content_length_malformed"),
    ("length with space within", "Content-Length: 5 5\r\n", 400, "content_length_malformed"),
    ("length in hex", "Content-Length: 0x5\r\n", 400, "content_length_malformed"),
    ("length with hex digit", "Content-Length: a\r\n", 400, "content_length_malformed"),
    ("length with fraction", "Content-Length: 5.0\r\n", 400, "content_length_malformed"),
    ("length with exponent", "Content-Length: 5e1\r\n", 400, "content_length_malformed"),
    ("length in quotes", "Content-Length: \"5\"\r\n", 400, "content_length_malformed"),
    ("length with underscore", "Content-Length: 1_0\r\n", 400, "content_length_malformed"),
    ("length with parameter", "Content-Length: 5;a\r\n", 400, "content_length_malformed"),
    ("length in other digits", "Content-Length: \u{0665}\r\n", 400, "content_length_malformed"),
    ("length empty", "Content-Length: \r\n", 400, "content_length_empty"),
    ("length of 2^63", "Content-Length: 9223372036854775808\r\n", 400, "content_length_overflow"),
    ("length of 2^64", "Content-Length: 18446744073709551616\r\n", 400, "content_length_overflow"),
    ("length of 2^64 + 5", "Content-Length: 18446744073709551621\r\n", 400, "content_length_overflow"),
    ("length spelt with underscore", "Content_Length: 5\r\n", 400, "header_name_ambiguous"),
    ("length spelt with dot", "Content.Length: 5\r\n", 400, "header_name_ambiguous"),
    // Transfer-Encoding
    ("length and chunked", "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", 400, "length_and_chunked"),
    ("chunked and length", "Transfer-Encoding: chunked\r\nContent-Length: 0\r\n", 400, "length_and_chunked"),
    ("identity", "Transfer-Encoding: identity\r\n", 501, "transfer_encoding_unsupported"),
    ("gzip", "Transfer-Encoding: gzip\r\n", 501, "transfer_encoding_unsupported"),
    ("xchunked", "Transfer-Encoding: xchunked\r\n", 501, "transfer_encoding_unsupported"),
    ("chunkedx", "Transfer-Encoding: chunkedx\r\n", 501, "transfer_encoding_unsupported"),
    (
        "chunked twice in a list",
        "Transfer-Encoding: chunked, chunked\r\n",
        400,
        "transfer_encoding_malformed",
    ),
    ("gzip, chunked", "Transfer-Encoding: gzip, chunked\r\n", 501, "transfer_encoding_unsupported"),
    (
        "gzip and a space, chunked",
        "Transfer-Encoding: gz ip, chunked\r\n",
        400,
        "transfer_encoding_malformed",
    ),
    ("chunked, identity", "Transfer-Encoding: chunked, identity\r\n", 400, "transfer_encoding_malformed"),
    ("chunked with empty member", "Transfer-Encoding: ,chunked\r\n", 400, "transfer_encoding_malformed"),
    ("chunked and comma", "Transfer-Encoding: chunked,\r\n", 400, "transfer_encoding_malformed"),
    ("chunked with weight", "Transfer-Encoding: chunked;q=1\r\n", 400, "transfer_encoding_malformed"),
    ("chunked in quotes", "Transfer-Encoding: \"chunked\"\r\n", 400, "transfer_encoding_malformed"),
    ("coding empty", "Transfer-Encoding:\r\n", 400, "transfer_encoding_malformed"),
    ("chunked after vertical tab", "Transfer-Encoding: \x0bchunked\r\n", 400, "header_value_control"),
    ("chunked before form feed", "Transfer-Encoding: chunked\x0c\r\n", 400, "header_value_control"),
    (
        "chunked after no-break space",
        "Transfer-Encoding: \u{a0}chunked\r\n",
        400,
        "transfer_encoding_malformed",
    ),
    ("chunked with 8-bit byte", "Transfer-Encoding: chun\u{212a}ed\r\n", 400, "transfer_encoding_malformed"),
    (
        "chunked on two lines",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        400,
        "transfer_encoding_duplicate",
    ),
    (
        "chunked and identity on two lines",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
        501,
        "transfer_encoding_unsupported",
    ),
    ("coding spelt with underscore", "Transfer_Encoding: chunked\r\n", 400, "header_name_ambiguous"),
    ("coding spelt with tilde", "Transfer~Encoding: chunked\r\n", 400, "header_name_ambiguous"),
    // Connection and Expect
    (
        "Connection lists more than any hop would",
        "Connection: a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a\r\n",
        400,
        "connection_options",
    ),
    ("Connection names Host", "Connection: close, host\r\n", 400, "connection_names_protected"),
    ("Connection names the length", "Connection: Content-Length\r\n", 400, "connection_names_protected"),
    (
        "Connection names X-Forwarded-For",
        "Connection: x-forwarded-for\r\n",
        400,
        "connection_names_protected",
    ),
    ("Connection names Authorization", "Connection: Authorization\r\n", 400, "connection_names_protected"),
    ("Connection with a space", "Connection: keep alive\r\n", 400, "connection_malformed"),
    ("Connection with a parameter", "Connection: close;x\r\n", 400, "connection_malformed"),
    ("unknown expectation", "Expect: 200-ok\r\n", 417, "expect_unknown"),
    ("expectation list", "Expect: 100-continue, x\r\n", 417, "expect_unknown"),
    ("expectation empty", "Expect:\r\n", 417, "expect_unknown"),
];

/// Chunked bodies.
const CHUNK_STREAMS: &[Refused] = &[
    ("empty size", "\r\n\r\n", 400, "chunk_size_empty"),
    ("empty size with extension", ";a=b\r\n", 400, "chunk_size_empty"),
    ("empty size, bare LF", "\n", 400, "chunk_size_empty"),
    ("plus", "+5\r\nhello\r\n0\r\n\r\n", 400, "chunk_size_malformed"),
    ("minus", "-5\r\nhello\r\n0\r\n\r\n", 400, "chunk_size_malformed"),
    ("0x", "0x5\r\nhello\r\n0\r\n\r\n", 400, "chunk_size_malformed"),
    ("not hex", "g\r\n", 400, "chunk_size_malformed"),
    ("underscore", "1_0\r\n", 400, "chunk_size_malformed"),
    ("NUL after size", "5\0\r\nhello\r\n0\r\n\r\n", 400, "chunk_size_malformed"),
    ("comma", "5,5\r\nhello\r\n0\r\n\r\n", 400, "chunk_size_malformed"),
    ("17 digits", "00000000000000005\r\nhello\r\n0\r\n\r\n", 400, "chunk_size_too_long"),
    ("2^63", "8000000000000000\r\n", 400, "chunk_size_overflow"),
    ("2^64 - 1", "ffffffffffffffff\r\n", 400, "chunk_size_overflow"),
    ("2^64 + 5", "10000000000000005\r\n", 400, "chunk_size_too_long"),
    ("space before size", " 5\r\nhello\r\n0\r\n\r\n", 400, "chunk_size_space"),
    ("space after size", "5 \r\nhello\r\n0\r\n\r\n", 400, "chunk_size_space"),
    ("tab after size", "5\t\r\nhello\r\n0\r\n\r\n", 400, "chunk_size_space"),
    ("space before extension", "5 ;a=b\r\nhello\r\n0\r\n\r\n", 400, "chunk_size_space"),
    ("bare LF after size", "5\nhello\r\n0\r\n\r\n", 400, "chunk_bare_lf"),
    ("bare CR after size", "5\rhello\r\n0\r\n\r\n", 400, "chunk_bare_cr"),
    ("CR CR LF after size", "5\r\r\nhello\r\n0\r\n\r\n", 400, "chunk_bare_cr"),
    ("bare LF in extension", "5;a\nhello\r\n0\r\n\r\n", 400, "chunk_bare_lf"),
    ("bare CR in extension", "5;a\rb\r\nhello\r\n0\r\n\r\n", 400, "chunk_bare_cr"),
    ("quoted LF in extension", "5;a=\"\n\"\r\nhello\r\n0\r\n\r\n", 400, "chunk_bare_lf"),
    ("open quote in extension", "5;a=\"b\r\nhello\r\n0\r\n\r\n", 400, "chunk_extension_quoted"),
    ("quoted CRLF in extension", "5;a=\"\r\n\"\r\nhello\r\n0\r\n\r\n", 400, "chunk_extension_quoted"),
    ("escaped quote ends no value", "5;a=\"\\\"\r\nhello\r\n0\r\n\r\n", 400, "chunk_extension_quoted"),
    ("escaped CR in extension", "5;a=\"\\\r\n\"\r\nhello\r\n0\r\n\r\n", 400, "chunk_extension_quoted"),
    ("escaped LF in extension", "5;a=\"\\\n\"\r\nhello\r\n0\r\n\r\n", 400, "chunk_bare_lf"),
    ("escaped NUL in extension", "5;a=\"\\\0\"\r\nhello\r\n0\r\n\r\n", 400, "chunk_extension_control"),
    ("backslash outside quotes", "5;a=\\\"\r\nhello\r\n0\r\n\r\n", 400, "chunk_extension_quoted"),
    ("NUL in extension", "5;a\0\r\nhello\r\n0\r\n\r\n", 400, "chunk_extension_control"),
    ("DEL in extension", "5;\x7f\r\nhello\r\n0\r\n\r\n", 400, "chunk_extension_control"),
    ("no CRLF after data", "5\r\nhello0\r\n\r\n", 400, "chunk_data_unterminated"),
    ("bare LF after data", "5\r\nhello\n0\r\n\r\n", 400, "chunk_data_unterminated"),
    ("bare CR after data", "5\r\nhello\r0\r\n\r\n", 400, "chunk_data_unterminated"),
    ("data longer than its size", "5\r\nhello!\r\n0\r\n\r\n", 400, "chunk_data_unterminated"),
    ("bare LF ends the body", "0\r\n\n", 400, "trailer_bare_lf"),
    ("bare CR ends the body", "0\r\n\rGET / HTTP/1.1\r\n", 400, "trailer_bare_cr"),
    ("bytes instead of the last CRLF", "0\r\nGET / HTTP/1.1\r\n\r\n", 400, "trailer_name_invalid"),
    // Trailers
    ("trailer with bare LF", "0\r\nA: b\n\r\n", 400, "trailer_bare_lf"),
    ("trailer with bare CR", "0\r\nA: b\rC: d\r\n\r\n", 400, "trailer_bare_cr"),
    ("trailer folded", "0\r\nA: b\r\n c\r\n\r\n", 400, "trailer_obs_fold"),
    ("trailer without name", "0\r\n: b\r\n\r\n", 400, "trailer_name_empty"),
    ("trailer without colon", "0\r\nA\r\n\r\n", 400, "trailer_without_colon"),
    ("trailer with space before colon", "0\r\nHost : b\r\n\r\n", 400, "trailer_name_invalid"),
    ("trailer with slash in name", "0\r\nA/B: c\r\n\r\n", 400, "trailer_name_invalid"),
    ("trailer with NUL in value", "0\r\nA: b\0\r\n\r\n", 400, "trailer_value_control"),
    ("trailer Content-Length", "0\r\nContent-Length: 5\r\n\r\n", 400, "trailer_forbidden"),
    ("trailer Transfer-Encoding", "0\r\ntransfer-encoding: chunked\r\n\r\n", 400, "trailer_forbidden"),
    ("trailer Host", "0\r\nHOST: a\r\n\r\n", 400, "trailer_forbidden"),
    ("trailer Connection", "0\r\nConnection: close\r\n\r\n", 400, "trailer_forbidden"),
    ("trailer Upgrade", "0\r\nUpgrade: h2c\r\n\r\n", 400, "trailer_forbidden"),
    ("trailer TE", "0\r\nTE: trailers\r\n\r\n", 400, "trailer_forbidden"),
    ("trailer Trailer", "0\r\nTrailer: A\r\n\r\n", 400, "trailer_forbidden"),
    ("trailer Authorization", "0\r\nAuthorization: x\r\n\r\n", 400, "trailer_forbidden"),
    ("trailer Cookie", "0\r\nCookie: a=b\r\n\r\n", 400, "trailer_forbidden"),
    ("trailer Set-Cookie", "0\r\nSet-Cookie: a=b\r\n\r\n", 400, "trailer_forbidden"),
    ("trailer X_Forwarded_For", "0\r\nX_Forwarded_For: 1.1.1.1\r\n\r\n", 400, "trailer_forbidden"),
    ("trailer X.Forwarded~For", "0\r\nX.Forwarded~For: 1.1.1.1\r\n\r\n", 400, "trailer_forbidden"),
    ("forbidden after a harmless one", "0\r\nA: b\r\nHost: c\r\n\r\n", 400, "trailer_forbidden"),
];

/// Responses; the status is 502 for all.
const RESPONSES: &[(&str, &str, &str)] = &[
    ("bare LF", "HTTP/1.1 200 OK\nA: b\r\n\r\n", "bare_lf"),
    ("bare LF as empty line", "HTTP/1.1 200 OK\r\n\n", "bare_lf"),
    ("bare CR in reason", "HTTP/1.1 200 O\rK\r\n\r\n", "bare_cr"),
    ("leading CRLF", "\r\nHTTP/1.1 200 OK\r\n\r\n", "status_line_malformed"),
    ("HTTP/2.0", "HTTP/2.0 200 OK\r\n\r\n", "version_unsupported"),
    ("lower-case version", "http/1.1 200 OK\r\n\r\n", "status_line_malformed"),
    ("two spaces", "HTTP/1.1  200 OK\r\n\r\n", "status_line_malformed"),
    ("status of two digits", "HTTP/1.1 20 OK\r\n\r\n", "status_line_malformed"),
    ("status of four digits", "HTTP/1.1 2000 OK\r\n\r\n", "status_line_malformed"),
    ("status 000", "HTTP/1.1 000 OK\r\n\r\n", "status_invalid"),
    ("status 600", "HTTP/1.1 600 OK\r\n\r\n", "status_invalid"),
    ("status with sign", "HTTP/1.1 +20 OK\r\n\r\n", "status_invalid"),
    ("NUL in reason", "HTTP/1.1 200 \0\r\n\r\n", "status_line_malformed"),
    ("obs-fold", "HTTP/1.1 200 OK\r\nA: b\r\n c\r\n\r\n", "obs_fold"),
    ("space before colon", "HTTP/1.1 200 OK\r\nContent-Length : 5\r\n\r\n", "space_before_colon"),
    (
        "length twice",
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\n",
        "content_length_duplicate",
    ),
    ("length list", "HTTP/1.1 200 OK\r\nContent-Length: 5, 5\r\n\r\n", "content_length_list"),
    (
        "length and chunked",
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        "length_and_chunked",
    ),
    ("gzip", "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n", "transfer_encoding_unsupported"),
    (
        "chunked in HTTP/1.0",
        "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        "transfer_encoding_http10",
    ),
    ("faulty length in 304", "HTTP/1.1 304 X\r\nContent-Length: x\r\n\r\n", "content_length_malformed"),
    ("101 without Upgrade", "HTTP/1.1 101 X\r\nConnection: upgrade\r\n\r\n", "upgrade_missing"),
    ("101 to HTTP/2", "HTTP/1.1 101 X\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n", "upgrade_refused"),
    ("103 with content", "HTTP/1.1 103 X\r\nContent-Length: 5\r\n\r\n", "interim_with_content"),
    ("100 with chunks", "HTTP/1.1 100 X\r\nTransfer-Encoding: chunked\r\n\r\n", "interim_with_content"),
];

fn refused(status: u16, reason: &'static str) -> Verdict {
    Verdict::Refused(status, reason)
}

#[test]
fn requests_with_two_readings_are_refused() {
    for (name, bytes, status, reason) in REQUEST_LINES {
        assert_eq!(request_verdict(bytes.as_bytes()), refused(*status, reason), "{name}");
    }
}

#[test]
fn header_lines_with_two_readings_are_refused() {
    for (name, lines, status, reason) in HEADER_LINES {
        let bytes = format!("POST / HTTP/1.1\r\nHost: a\r\n{lines}\r\n");
        assert_eq!(request_verdict(bytes.as_bytes()), refused(*status, reason), "{name}");
    }
}

#[test]
fn chunked_in_http10_is_refused() {
    let bytes = b"POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    assert_eq!(request_verdict(bytes), refused(400, "transfer_encoding_http10"));
}

#[test]
fn chunk_streams_with_two_readings_are_refused() {
    for (name, bytes, status, reason) in CHUNK_STREAMS {
        assert_eq!(stream_verdict(bytes.as_bytes()), refused(*status, reason), "{name}");
    }
}

#[test]
fn responses_with_two_readings_are_refused() {
    for (name, bytes, reason) in RESPONSES {
        assert_eq!(response_verdict(bytes.as_bytes(), false), refused(502, reason), "{name}");
    }
}

#[test]
fn chunk_streams_with_one_reading_are_accepted_to_the_byte() {
    for stream in [
        "0\r\n\r\n",
        "5\r\nhello\r\n0\r\n\r\n",
        "0000000000000005\r\nhello\r\n000\r\n\r\n",
        "A;a=b;c=\"d e\"\r\n0123456789\r\n0;last\r\n\r\n",
        // RFC 9110 section 5.6.4: quoted pairs
        "5;a=\"\\\"\"\r\nhello\r\n0;b=\"\\\\\";c=\"\\d\\\te\"\r\n\r\n",
        "5;a=\\;b=\"x\"\r\nhello\r\n0\r\n\r\n",
        "a\r\n\r\n0\r\n\r\n\0\n\x7f\r\n0\r\n\r\n",
        "0\r\nServer-Timing: a;dur=1\r\nDigest:\r\n\r\n",
        // RFC 9112 section 7.1.3 shape: several chunks, trailers
        "4\r\nWiki\r\n7\r\npedia i\r\nB\r\nn \r\nchunks.\r\n0\r\n\r\n",
    ] {
        for after in ["", "GET / HTTP/1.1\r\n", "\r\n"] {
            let bytes = format!("{stream}{after}");
            assert_eq!(stream_verdict(bytes.as_bytes()), Verdict::Complete(stream.len()), "{stream:?}");
        }
        assert_eq!(stream_verdict(&stream.as_bytes()[..stream.len() - 1]), Verdict::Partial, "{stream:?}");
    }
}

#[test]
fn requests_with_one_reading_are_accepted_to_the_byte() {
    for head in [
        "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        "\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET / HTTP/1.0\r\n\r\n",
        "GET / HTTP/1.0\r\nHost:\r\n\r\n",
        "OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n",
        // RFC 9110 sections 2.5 and 9.1: higher minor versions, and methods of any token
        "GET / HTTP/1.2\r\nHost: a\r\n\r\n",
        "POST / HTTP/1.9\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n",
        "get / HTTP/1.1\r\nHost: a\r\n\r\n",
        "!#$%&'*+-.^_`|~aZ9 / HTTP/1.1\r\nHost: a\r\n\r\n",
        // RFC 3986 section 3.2.2
        "GET / HTTP/1.1\r\nHost: a!$&'()*+,;=b\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a%20%e2%82%AC.b:80\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: %61%2Etest.\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: [v1F.a:b!$&'()*+,;=~]:80\r\n\r\n",
        "GET http://a,b%20c/ HTTP/1.1\r\nHost: A,b%20c\r\n\r\n",
        "M-SEARCH / HTTP/1.1\r\nHost: a:\r\n\r\n",
        "ABCDEFGHIJKLMNOPQRSTUVWXYZABCDEF / HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET http://A:80/x?y HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET HTTPS://a HTTP/1.1\r\nHost: a:443\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: [2001:db8::1]:8443\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding:\t ChUnKeD \t\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0005\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9223372036854775807\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nX:\r\nY: \t \r\nZ: \u{e9}\t\"\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nConnection: , close,, x\r\nX: y\r\n\r\n",
        "GET /{}|^`\"<> HTTP/1.1\r\nHost: a\r\n\r\n",
    ] {
        for after in ["", "\r\n", "GET"] {
            let bytes = format!("{head}{after}");
            assert_eq!(request_verdict(bytes.as_bytes()), Verdict::Complete(head.len()), "{head:?}");
        }
        assert_eq!(request_verdict(&head.as_bytes()[..head.len() - 1]), Verdict::Partial, "{head:?}");
    }
}

#[test]
fn tables_name_each_case_once() {
    let mut names: Vec<_> = REQUEST_LINES.iter().map(|c| ("request", c.0)).collect();
    names.extend(HEADER_LINES.iter().map(|c| ("header", c.0)));
    names.extend(CHUNK_STREAMS.iter().map(|c| ("chunk", c.0)));
    names.extend(RESPONSES.iter().map(|c| ("response", c.0)));
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count);
    assert!(count >= 80);
}
