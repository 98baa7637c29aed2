//! Meaning of accepted heads: targets, hosts, framing, connection options; examples of RFC 9112; limits.

mod support;

use evergate_http::{
    After, Body, HOST_BYTES_MAX, HeaderSlots, Limits, Parsed, RequestFraming, RequestHead, ResponseFraming,
    ResponseHead, Version, error_response, parse_request, parse_response,
};
use support::{Verdict, request_verdict_within, response_verdict, stream_verdict_within};

fn request<T>(bytes: &str, look: impl FnOnce(&RequestHead<'_>) -> T) -> T {
    match parse_request(bytes.as_bytes(), &Limits::default(), &mut HeaderSlots::new()) {
        Ok(Parsed::Complete(head)) => look(&head),
        other => panic!("{bytes:?}: {other:?}"),
    }
}

fn response<T>(bytes: &str, to_head: bool, look: impl FnOnce(&ResponseHead<'_>) -> T) -> T {
    match parse_response(bytes.as_bytes(), &Limits::default(), &mut HeaderSlots::new(), to_head) {
        Ok(Parsed::Complete(head)) => look(&head),
        other => panic!("{bytes:?}: {other:?}"),
    }
}

/// RFC 9112 section 3.2: method, target and Host, and the path, query, host and host name that follow.
#[test]
fn targets_of_the_rfc_are_understood() {
    for (line, host, path, query, authority, name) in [
        (
            "GET /where?q=now",
            "www.example.org",
            "/where",
            Some("q=now"),
            "www.example.org",
            "www.example.org",
        ),
        (
            "GET http://www.example.org/pub/WWW/TheProject.html",
            "www.example.org",
            "/pub/WWW/TheProject.html",
            None,
            "www.example.org",
            "www.example.org",
        ),
        ("OPTIONS *", "www.example.org:8001", "*", None, "www.example.org:8001", "www.example.org"),
        (
            "OPTIONS http://www.example.org:8001",
            "www.example.org:8001",
            "*",
            None,
            "www.example.org:8001",
            "www.example.org",
        ),
        ("GET http://a?x=/", "a", "/", Some("x=/"), "a", "a"),
        ("GET /?", "a", "/", Some(""), "a", "a"),
        ("GET /a?b?c", "a", "/a", Some("b?c"), "a", "a"),
        ("GET //b/c", "a", "//b/c", None, "a", "a"),
        ("GET /http://b/", "a", "/http://b/", None, "a", "a"),
        ("GET /", "[::1]:80", "/", None, "[::1]:80", "[::1]"),
        ("GET /", "[v1.a:b]:80", "/", None, "[v1.a:b]:80", "[v1.a:b]"),
    ] {
        let bytes = format!("{line} HTTP/1.1\r\nHost: {host}\r\n\r\n");
        request(&bytes, |head| {
            assert_eq!(head.target, line.split_once(' ').unwrap().1.as_bytes());
            assert_eq!(head.path, path.as_bytes(), "{line}");
            assert_eq!(head.query, query.map(str::as_bytes), "{line}");
            assert_eq!(head.host, authority.as_bytes(), "{line}");
            assert_eq!(head.host_name(), name.as_bytes(), "{line}");
        });
    }
}

/// RFC 3986 section 6.2.2: rules compare one spelling of a host.
#[test]
fn hosts_of_one_meaning_have_one_spelling() {
    for (host, canonical) in [
        ("A.Test:80", "a.test"),
        ("a.test.", "a.test"),
        ("%61%2Etest", "a.test"),
        ("%41.test%2e:8", "a.test"),
        ("%7E%2d%5F", "~-_"),
        ("A%2F%C3%bC,b", "a%2f%c3%bc,b"),
        ("%25%36%31", "%2561"),
        ("[2001:DB8::1]:80", "[2001:db8::1]"),
        ("[V1.A:b]", "[v1.a:b]"),
    ] {
        let mut out = [0; HOST_BYTES_MAX];
        request(&format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n"), |head| {
            assert_eq!(std::str::from_utf8(head.canonical_host(&mut out)), Ok(canonical), "{host}");
            assert_eq!(head.host, host.as_bytes());
        });
    }
}

/// RFC 9110 section 7.8: the list of protocols that a server may choose from.
#[test]
fn offer_lists_the_tunnelled_protocols_of_the_client() {
    let offer = |line: &str, bytes_max: usize| {
        let bytes = format!("GET / HTTP/1.1\r\nHost: a\r\n{line}\r\n\r\n");
        let mut out = b"before".to_vec();
        request(&bytes, |head| head.write_offer(&mut out, bytes_max));
        String::from_utf8(out.split_off(6)).unwrap()
    };
    let listed = "Connection: upgrade\r\nUpgrade: h2c,websocket/13 , TLS/1.0,x,,a b";
    assert_eq!(offer(listed, 256), "websocket/13, x");
    assert_eq!((offer(listed, 15), offer(listed, 14)), ("websocket/13, x".into(), "websocket/13".into()));
    assert_eq!((offer(listed, 11), offer(listed, 0)), ("x".into(), String::new()));
    assert_eq!(offer("Upgrade: websocket", 256), "", "it does not ask");
}

#[test]
fn server_switches_only_to_offered_protocols() {
    let switches = |lines: &str, offer: &str| {
        let bytes = format!("HTTP/1.1 101 X\r\nConnection: upgrade\r\n{lines}\r\n\r\n");
        let mut slots = HeaderSlots::new();
        let parsed = parse_response(bytes.as_bytes(), &Limits::default(), &mut slots, false);
        let Ok(Parsed::Complete(head)) = parsed else { panic!("{lines}: {parsed:?}") };
        head.switches_within(offer.as_bytes())
    };
    for (lines, offer, expected) in [
        ("Upgrade: websocket", "websocket", true),
        ("upgrade: WebSocket", "foo, websocket", true),
        ("Upgrade: a, b", "b, c, a", true),
        ("Upgrade: a\r\nUpgrade: b", "a, b", true),
        ("Upgrade: SPDY/3.1", "spdy/3.1", true),
        ("Upgrade: other", "websocket", false),
        ("Upgrade: websocket, other", "websocket", false),
        ("Upgrade: websocket\r\nUpgrade: other", "websocket", false),
        ("Upgrade: websocket/13", "websocket", false),
        ("Upgrade: websocket", "websocket/13", false),
        ("Upgrade: web", "websocket", false),
        ("Upgrade: websocket", "", false),
    ] {
        assert_eq!(switches(lines, offer), expected, "{lines:?} of {offer:?}");
    }
}

/// RFC 9110 section 2.5.
#[test]
fn higher_minor_versions_are_processed_as_http11() {
    for minor in 0..=9 {
        let expected = if minor == 0 { Version::H10 } else { Version::H11 };
        request(&format!("GET / HTTP/1.{minor}\r\nHost: a\r\n\r\n"), |head| {
            assert_eq!((head.version, head.keep_alive), (expected, minor > 0));
        });
        let bytes = format!("HTTP/1.{minor} 200 OK\r\nContent-Length: 1\r\n\r\n");
        let mut slots = HeaderSlots::new();
        let parsed = parse_response(bytes.as_bytes(), &Limits::default(), &mut slots, false);
        let Ok(Parsed::Complete(head)) = parsed else { panic!("{minor}: {parsed:?}") };
        assert_eq!((head.version, head.keep_alive), (expected, minor > 0));
    }
}

/// RFC 9112 section 9.3, and the options of HTTP/1.0.
#[test]
fn persistence_follows_version_and_connection_options() {
    for (version, connection, keep_alive) in [
        ("1.1", "", true),
        ("1.1", "close", false),
        ("1.1", "x, CLOSE", false),
        ("1.1", "keep-alive", true),
        ("1.1", "keep-alive, close", false),
        ("1.0", "", false),
        ("1.0", "keep-alive", true),
        ("1.0", "Keep-Alive,close", false),
    ] {
        let bytes = format!("GET / HTTP/{version}\r\nHost: a\r\nConnection: {connection}\r\n\r\n");
        request(&bytes, |head| assert_eq!(head.keep_alive, keep_alive, "{bytes:?}"));
        let bytes = format!("HTTP/{version} 200 OK\r\nContent-Length: 1\r\nConnection: {connection}\r\n\r\n");
        response(&bytes, false, |head| assert_eq!(head.keep_alive, keep_alive, "{bytes:?}"));
    }
}

#[test]
fn request_framing_follows_the_headers() {
    for (lines, framing, body) in [
        ("", RequestFraming::None, Body::Done),
        ("Content-Length: 0\r\n", RequestFraming::Length(0), Body::Done),
        ("Content-Length: 12\r\n", RequestFraming::Length(12), Body::Length { left: 12 }),
        ("Transfer-Encoding: Chunked\r\n", RequestFraming::Chunked, Body::chunked()),
    ] {
        request(&format!("POST / HTTP/1.1\r\nHost: a\r\n{lines}\r\n"), |head| {
            assert_eq!((head.framing, head.body()), (framing, body));
        });
    }
}

/// RFC 9112 section 6.3.
#[test]
fn response_framing_depends_on_the_request_and_the_status() {
    use ResponseFraming::{Chunked, Length, None as Bodiless, UntilClose};
    for (status, lines, to_head, framing) in [
        ("200 OK", "Content-Length: 5\r\n", false, Length(5)),
        ("200 OK", "Content-Length: 5\r\n", true, Bodiless),
        ("200 OK", "Transfer-Encoding: chunked\r\n", false, Chunked),
        ("200 OK", "Transfer-Encoding: chunked\r\n", true, Bodiless),
        ("200 OK", "", false, UntilClose),
        ("200 OK", "", true, Bodiless),
        ("204 No Content", "Content-Length: 5\r\n", false, Bodiless),
        ("304 Not Modified", "Content-Length: 5\r\n", false, Bodiless),
        ("100 Continue", "", false, Bodiless),
        ("103 Early Hints", "Content-Length: 0\r\n", false, Bodiless),
        ("101 Switching Protocols", "Upgrade: websocket\r\n", false, Bodiless),
    ] {
        response(&format!("HTTP/1.1 {status}\r\n{lines}\r\n"), to_head, |head| {
            assert_eq!(head.framing, framing, "{status} {lines:?} {to_head}");
            // A head that announces forbidden content may be followed by it.
            let doubtful = head.status == 204 && !lines.is_empty();
            assert_eq!(head.keep_alive, framing != UntilClose && !doubtful, "{status} {lines:?}");
            assert_eq!(head.is_upgrade, head.status == 101);
            assert_eq!(head.is_interim(), matches!(head.status, 100 | 103));
        });
    }
}

#[test]
fn status_lines_may_lack_a_reason() {
    for (line, reason) in [("HTTP/1.1 200", ""), ("HTTP/1.1 200 ", ""), ("HTTP/1.0 200 A b\tc", "A b\tc")] {
        response(&format!("{line}\r\nContent-Length: 0\r\n\r\n"), false, |head| {
            assert_eq!((head.status, head.reason), (200, reason));
        });
    }
    assert_eq!(response_verdict(b"HTTP/1.1 200 \xff\r\n\r\n", false), Verdict::Complete(18));
}

#[test]
fn upgrade_needs_no_content_and_a_tunnelled_protocol() {
    let ask =
        |line: &str, more: &str| request(&format!("{line}\r\nHost: a\r\n{more}\r\n"), |head| head.upgrade);
    let get = "GET / HTTP/1.1";
    assert!(ask(get, "Connection: Upgrade\r\nUpgrade: websocket\r\n"));
    assert!(ask(get, "Connection: keep-alive, upgrade\r\nUpgrade: WebSocket/13\r\n"));
    assert!(ask(get, "Connection: upgrade\r\nUpgrade: h2c, websocket\r\n"));
    assert!(ask(get, "Connection: upgrade\r\nUpgrade: websocket\r\nContent-Length: 0\r\n"));
    assert!(ask("POST / HTTP/1.1", "Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\nContent-Length: 0\r\n"));
    for (line, more) in [
        (get, "Upgrade: websocket\r\n"),
        (get, "Connection: upgrade\r\n"),
        (get, "Connection: upgrade\r\nUpgrade:\r\n"),
        (get, "Connection: upgrade\r\nUpgrade: h2c\r\n"),
        (get, "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: H2C\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n"),
        (get, "Connection: upgrade\r\nUpgrade: websocket\r\nUpgrade: h2c\r\n"),
        (get, "Connection: upgrade\r\nUpgrade: HTTP/2.0\r\n"),
        (get, "Connection: upgrade\r\nUpgrade: TLS/1.3\r\n"),
        (get, "Connection: upgrade\r\nUpgrade: web socket\r\n"),
        (get, "Connection: upgrade\r\nUpgrade: websocket/\r\n"),
        (get, "Connection: upgrade\r\nUpgrade: websocket/1/3\r\n"),
        (get, "Connection: upgrade\r\nUpgrade: websocket\r\nContent-Length: 1\r\n"),
        (get, "Connection: upgrade\r\nUpgrade: websocket\r\nTransfer-Encoding: chunked\r\n"),
        ("POST / HTTP/1.1", "Connection: upgrade\r\nUpgrade: websocket\r\nContent-Length: 1\r\n"),
        ("GET / HTTP/1.0", "Connection: upgrade\r\nUpgrade: websocket\r\n"),
    ] {
        assert!(!ask(line, more), "{line} {more:?}");
    }
}

#[test]
fn expectation_counts_only_with_a_body_in_http11() {
    for (version, lines, expected) in [
        ("1.1", "Content-Length: 5\r\n", true),
        ("1.1", "Transfer-Encoding: chunked\r\n", true),
        ("1.1", "Content-Length: 0\r\n", false),
        ("1.1", "", false),
        ("1.0", "Content-Length: 5\r\n", false),
    ] {
        let bytes = format!("PUT / HTTP/{version}\r\nHost: a\r\nExpect: 100-Continue\r\n{lines}\r\n");
        request(&bytes, |head| assert_eq!(head.expect_continue, expected, "{bytes:?}"));
    }
}

#[test]
fn request_id_is_one_line_of_visible_characters() {
    let id = |lines: &str| {
        request(&format!("GET / HTTP/1.1\r\nHost: a\r\n{lines}\r\n"), |head| {
            head.given_id().map(str::to_owned)
        })
    };
    let line = |value: &str| format!("X-Request-Id: {value}\r\n");
    let longest = "a".repeat(128);
    for value in ["7", "{\"a\"}", &longest] {
        assert_eq!(id(&line(value)).as_deref(), Some(value));
    }
    for value in ["", "a b", "\u{e9}", &format!("{longest}a")] {
        assert_eq!(id(&line(value)), None, "{value}");
    }
    assert_eq!(id(""), None);
    assert_eq!(id(&line("7").repeat(2)), None);
    assert_eq!(id("X_Request_Id: 7\r\n"), None);
}

#[test]
fn headers_and_cookies_are_found_by_name() {
    let bytes = "GET / HTTP/1.1\r\nHost: a\r\nX-A:  1 \r\nx-a: 2\r\nEmpty:\r\n\
                 Cookie: sid=a=b; id=1;id=2; SID=x\r\nCookie: late=yes; flag\r\n\r\n";
    request(bytes, |head| {
        assert_eq!(head.header("X-a"), Some(&b"1"[..]));
        assert_eq!(head.header("empty"), Some(&b""[..]));
        assert_eq!(head.header("nope"), None);
        assert_eq!(head.headers.all("x-A").collect::<Vec<_>>(), [b"1", b"2"]);
        assert_eq!(head.headers.len(), 6);
        assert_eq!(head.headers.at(1).map(|h| h.name), Some("X-A"));
        assert_eq!(head.headers.iter().map(|h| h.name).last(), Some("Cookie"));
        let cookies =
            |name| head.cookies(name).map(|value| value.escape_ascii().to_string()).collect::<Vec<_>>();
        assert_eq!(cookies("sid"), ["a=b"]);
        assert_eq!(cookies("id"), ["1", "2"]);
        assert_eq!(cookies("SID"), ["x"]);
        assert_eq!(cookies("late"), ["yes"]);
        assert!(["flag", "si", ""].iter().all(|name| cookies(name).is_empty()));
    });
}

#[test]
fn idempotent_methods_are_those_of_the_rfc() {
    for (method, idempotent) in
        [("GET", true), ("HEAD", true), ("PUT", true), ("DELETE", true), ("POST", false), ("PATCH", false)]
    {
        request(&format!("{method} / HTTP/1.1\r\nHost: a\r\n\r\n"), |head| {
            assert_eq!(head.is_idempotent(), idempotent);
            assert_eq!(head.version, Version::H11);
        });
    }
}

#[test]
fn limits_are_exact_and_met_at_the_same_byte() {
    let small = |change: fn(&mut Limits)| {
        let mut limits = Limits::default();
        change(&mut limits);
        limits
    };
    let head = "GET /abc HTTP/1.1\r\nHost: a\r\nB: c\r\n\r\n";
    for delta in 0..=head.len() {
        let limits = Limits { head_bytes_max: head.len() - delta, ..Limits::default() };
        let expected =
            if delta == 0 { Verdict::Complete(head.len()) } else { Verdict::Refused(431, "head_too_large") };
        assert_eq!(request_verdict_within(head.as_bytes(), &limits), expected);
    }
    for (headers_max, expected) in
        [(2, Verdict::Complete(head.len())), (1, Verdict::Refused(431, "too_many_headers"))]
    {
        let limits = Limits { headers_max, ..Limits::default() };
        assert_eq!(request_verdict_within(head.as_bytes(), &limits), expected);
    }
    for (target_bytes_max, expected) in
        [(4, Verdict::Complete(head.len())), (3, Verdict::Refused(414, "target_too_long"))]
    {
        let limits = Limits { target_bytes_max, ..Limits::default() };
        assert_eq!(request_verdict_within(head.as_bytes(), &limits), expected);
    }
    // A target without end is refused before the head is complete.
    let endless = format!("GET /{}", "a".repeat(300));
    let limits = small(|l| l.target_bytes_max = 64);
    assert_eq!(request_verdict_within(endless.as_bytes(), &limits), Verdict::Refused(414, "target_too_long"));
    let limits = small(|l| l.head_bytes_max = 64);
    assert_eq!(request_verdict_within(endless.as_bytes(), &limits), Verdict::Refused(431, "head_too_large"));
    // A DNS name has at most 255 bytes, which is the limit of the canonical host.
    for (length, expected) in [(255, None), (256, Some(Verdict::Refused(400, "host_malformed")))] {
        let named = format!("GET / HTTP/1.1\r\nHost: {}:80\r\n\r\n", "a".repeat(length));
        let verdict = request_verdict_within(named.as_bytes(), &Limits::default());
        assert_eq!(verdict, expected.unwrap_or(Verdict::Complete(named.len())));
    }
    // No more slots are used than exist.
    let many = format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", "A: b\r\n".repeat(128));
    let limits = small(|l| l.headers_max = usize::MAX);
    assert_eq!(request_verdict_within(many.as_bytes(), &limits), Verdict::Refused(431, "too_many_headers"));

    let stream = "5;abc\r\nhello\r\n0\r\nA: b\r\n\r\n";
    for (chunk_line_bytes_max, trailer_bytes_max, expected) in [
        (6, 8, Verdict::Complete(stream.len())),
        (5, 8, Verdict::Refused(400, "chunk_line_too_long")),
        (6, 7, Verdict::Refused(431, "trailer_too_large")),
    ] {
        let limits = Limits { chunk_line_bytes_max, trailer_bytes_max, ..Limits::default() };
        assert_eq!(stream_verdict_within(stream.as_bytes(), &limits), expected);
    }
}

#[test]
fn slots_are_reused_without_traces_of_the_last_head() {
    let mut slots = HeaderSlots::new();
    let limits = Limits::default();
    for (bytes, count) in [
        ("GET / HTTP/1.1\r\nHost: a\r\nB: c\r\nD: e\r\n\r\n", 3),
        ("GET / HTTP/1.1\r\nHost: longer.example\r\n\r\n", 1),
        ("GET / HTTP/1.0\r\n\r\n", 0),
    ] {
        let Ok(Parsed::Complete(head)) = parse_request(bytes.as_bytes(), &limits, &mut slots) else {
            panic!("{bytes:?}")
        };
        assert_eq!(head.headers.len(), count);
        assert_eq!(head.headers.is_empty(), count == 0);
    }
}

#[test]
fn error_responses_parse_with_the_right_length() {
    let statuses = [301, 302, 307, 308, 400, 403, 404, 408, 411, 413, 414, 417, 429, 431];
    for status in statuses.into_iter().chain([500, 501, 502, 503, 504, 505, 599]) {
        for to_head in [false, true] {
            let mut out = Vec::new();
            let extra = [("Location", "https://a/\r\nSet-Cookie: x=y"), ("bad name", "x")];
            error_response(&mut out, status, "some_token", After::Close, to_head, &extra);
            let mut slots = HeaderSlots::new();
            let parsed = parse_response(&out, &Limits::default(), &mut slots, to_head);
            let Ok(Parsed::Complete(head)) = parsed else { panic!("{status}: {parsed:?}") };
            assert_eq!((head.status, head.keep_alive), (status, false));
            assert_eq!(head.header("location"), Some(&b"https://a/  Set-Cookie: x=y"[..]));
            assert_eq!(head.header("set-cookie"), None);
            let body = &out[head.head_len..];
            match head.framing {
                ResponseFraming::None => assert!(to_head && body.is_empty()),
                framing => assert_eq!(framing, ResponseFraming::Length(body.len() as u64)),
            }
            assert_eq!(to_head, !body.ends_with(b": some_token\n"));
        }
    }
}
