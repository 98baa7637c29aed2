//! Rewritten heads: dropped fields, added fields, and an unchanged meaning.

use evergate_http::{
    HeaderSlots, Limits, Parsed, RequestEdits, ResponseEdits, parse_request, parse_response,
    write_request_head, write_response_head,
};

const EDITS: RequestEdits<'static> = RequestEdits {
    path: b"",
    default_host: "192.0.2.1:80",
    client_ip: "192.0.2.1",
    scheme: "https",
    request_id: "r1",
    trust_forwarded: false,
    set: &[],
    remove: &[],
    offer: b"",
    continued: false,
    close: false,
};

const EDITS_BACK: ResponseEdits<'static> =
    ResponseEdits { close: false, http10_client: false, set: &[], remove: &[], append: &[], upgrade: false };

fn request(bytes: &str, edits: &RequestEdits<'_>) -> String {
    let mut slots = HeaderSlots::new();
    let Ok(Parsed::Complete(head)) = parse_request(bytes.as_bytes(), &Limits::default(), &mut slots) else {
        panic!("{bytes:?}")
    };
    let mut out = Vec::new();
    write_request_head(&mut out, &head, edits);
    String::from_utf8(out).unwrap()
}

fn response(bytes: &str, to_head: bool, edits: &ResponseEdits<'_>) -> String {
    let mut slots = HeaderSlots::new();
    let parsed = parse_response(bytes.as_bytes(), &Limits::default(), &mut slots, to_head);
    let Ok(Parsed::Complete(head)) = parsed else { panic!("{bytes:?}") };
    let mut out = Vec::new();
    write_response_head(&mut out, &head, edits);
    String::from_utf8(out).unwrap()
}

const ADDED: &str = "X-Forwarded-For: 192.0.2.1\r\nX-Forwarded-Proto: https\r\nX-Request-Id: r1\r\n\r\n";

#[test]
fn request_keeps_its_order_and_gains_forwarding_fields() {
    let bytes =
        "\r\nGET http://A.example/x?y HTTP/1.1\r\nAccept:  */*\r\nhOsT: a.example:80\r\nx-Y: z\r\n\r\n";
    assert_eq!(
        request(bytes, &EDITS),
        format!("GET /x?y HTTP/1.1\r\nHost: A.example\r\nAccept: */*\r\nx-Y: z\r\n{ADDED}")
    );
}

#[test]
fn written_path_is_the_given_one() {
    let edits = RequestEdits { path: b"/canonical", ..EDITS };
    let out = request("GET /a/../canonical?q HTTP/1.1\r\nHost: a\r\n\r\n", &edits);
    assert!(out.starts_with("GET /canonical?q HTTP/1.1\r\nHost: a\r\n"));
    let out = request("OPTIONS http://a HTTP/1.1\r\nHost: a\r\n\r\n", &EDITS);
    assert!(out.starts_with("OPTIONS * HTTP/1.1\r\nHost: a\r\n"));
}

#[test]
fn hop_by_hop_fields_are_not_forwarded() {
    let bytes = "GET / HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, X-Secret, TE\r\nKeep-Alive: timeout=5\r\n\
                 Proxy-Connection: close\r\nTE: gzip, trailers;q=1\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\n\
                 x-secret: 1\r\nX-Secret-Not: 2\r\nProxy-Authorization: p\r\nTrailer: x\r\n\r\n";
    assert_eq!(
        request(bytes, &EDITS),
        format!(
            "GET / HTTP/1.1\r\nHost: a\r\nX-Secret-Not: 2\r\nProxy-Authorization: p\r\nTrailer: x\r\n{ADDED}"
        )
    );
    let out = request("GET / HTTP/1.1\r\nHost: a\r\nTE: gzip, Trailers\r\n\r\n", &EDITS);
    assert_eq!(out, format!("GET / HTTP/1.1\r\nHost: a\r\nConnection: TE\r\nTE: trailers\r\n{ADDED}"));
}

#[test]
fn framing_is_written_once_and_from_what_was_understood() {
    let out = request("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 007\r\nB: c\r\n\r\n", &EDITS);
    assert_eq!(out, format!("POST / HTTP/1.1\r\nHost: a\r\nB: c\r\nContent-Length: 7\r\n{ADDED}"));
    let bytes = "POST / HTTP/1.1\r\nHost: a\r\ntransfer-encoding: CHUNKED\r\nExpect: 100-continue\r\n\r\n";
    let expected = format!(
        "POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nTransfer-Encoding: chunked\r\n{ADDED}"
    );
    assert_eq!(request(bytes, &EDITS), expected);
    // Neither set nor remove reaches the framing.
    let edits = RequestEdits {
        set: &[("Content-Length", "9"), ("Connection", "close"), ("Upgrade", "h2c"), ("TE", "x")],
        remove: &["transfer-encoding", "Host", "Expect"],
        ..EDITS
    };
    assert_eq!(request(bytes, &edits), expected);
}

#[test]
fn http10_request_becomes_http11() {
    let out = request("GET / HTTP/1.0\r\nConnection: keep-alive\r\nExpect: 100-continue\r\n\r\n", &EDITS);
    assert_eq!(out, format!("GET / HTTP/1.1\r\nHost: 192.0.2.1:80\r\n{ADDED}"));
}

#[test]
fn met_expectation_is_not_forwarded() {
    let bytes =
        "PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nConnection: x\r\nExpect: 100-continue\r\n\r\n";
    let sent = |expect: &str| format!("PUT / HTTP/1.1\r\nHost: a\r\n{expect}Content-Length: 3\r\n{ADDED}");
    assert_eq!(request(bytes, &EDITS), sent("Expect: 100-continue\r\n"));
    let edits = RequestEdits { continued: true, ..EDITS };
    assert_eq!(request(bytes, &edits), sent(""), "the client has already received 100");
}

#[test]
fn close_option_is_added_to_the_other_options() {
    let bytes =
        "PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nConnection: TE\r\nTE: trailers\r\n\r\n";
    let sent = |option: &str| {
        format!(
            "PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nConnection: TE{option}\r\n\
             TE: trailers\r\n{ADDED}"
        )
    };
    assert_eq!(request(bytes, &EDITS), sent(""));
    assert_eq!(request(bytes, &RequestEdits { close: true, ..EDITS }), sent(", close"));
}

#[test]
fn upgrade_is_forwarded_only_when_both_sides_want_it() {
    let bytes = "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                 Sec-WebSocket-Version: 13\r\n\r\n";
    let edits = RequestEdits { offer: b"websocket", remove: &["upgrade"], ..EDITS };
    assert_eq!(
        request(bytes, &edits),
        format!(
            "GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
             Connection: upgrade\r\n{ADDED}"
        )
    );
    assert_eq!(
        request(bytes, &EDITS),
        format!("GET / HTTP/1.1\r\nHost: a\r\nSec-WebSocket-Version: 13\r\n{ADDED}")
    );
    let h2c = bytes.replace("websocket", "h2c");
    assert!(!request(&h2c, &edits).contains("pgrade"));
}

#[test]
fn forwarding_fields_are_accepted_only_from_a_trusted_hop() {
    let bytes = "GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 198.51.100.7\r\nx-forwarded-for: 10.0.0.1\r\n\
                 X-Forwarded-Proto: http\r\nX-Forwarded-Host: h\r\nForwarded: for=x\r\nX-Real-IP: y\r\n\
                 X-Forwarded-Anything: z\r\nX-Request-ID: theirs\r\nX_Forwarded_For: 6.6.6.6\r\n\r\n";
    assert_eq!(request(bytes, &EDITS), format!("GET / HTTP/1.1\r\nHost: a\r\n{ADDED}"));
    assert_eq!(
        request(bytes, &RequestEdits { trust_forwarded: true, ..EDITS }),
        "GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-Proto: http\r\nX-Forwarded-Host: h\r\nForwarded: for=x\r\n\
         X-Real-IP: y\r\nX-Forwarded-Anything: z\r\n\
         X-Forwarded-For: 198.51.100.7, 10.0.0.1, 192.0.2.1\r\nX-Request-Id: r1\r\n\r\n"
    );
}

#[test]
fn forwarding_names_are_dropped_in_every_spelling() {
    for name in
        ["Client-IP", "CLIENT_IP", "X-Forwarded", "X_Forwarded", "Forwarded-For", "forwarded_for", "Proxy"]
    {
        assert_eq!(
            request(&format!("GET / HTTP/1.1\r\nHost: a\r\n{name}: 1\r\n\r\n"), &EDITS),
            format!("GET / HTTP/1.1\r\nHost: a\r\n{ADDED}"),
            "{name}"
        );
    }
    for byte in "!#$%&'*+-.^_`|~".chars() {
        let line = format!("X{byte}Forwarded{byte}For: 6.6.6.6\r\nX-Request{byte}Id: 7");
        assert_eq!(
            request(&format!("GET / HTTP/1.1\r\nHost: a\r\n{line}\r\n\r\n"), &EDITS),
            format!("GET / HTTP/1.1\r\nHost: a\r\n{ADDED}"),
            "{line}"
        );
    }
    let long = "X_Forwarded-Tls_Client_Cert_Infos: CN=root";
    assert_eq!(
        request(&format!("GET / HTTP/1.1\r\nHost: a\r\n{long}\r\n\r\n"), &EDITS),
        format!("GET / HTTP/1.1\r\nHost: a\r\n{ADDED}")
    );
}

/// The written Host is the one that rules see.
#[test]
fn rules_see_the_host_that_the_server_gets() {
    for (bytes, host) in [
        ("GET http://a.example/ HTTP/1.1\r\nX: y\r\nHost: A.example:80\r\n\r\n", Some("a.example")),
        ("GET http://a.example/ HTTP/1.0\r\nX: y\r\n\r\n", Some("a.example")),
        ("GET / HTTP/1.1\r\nX: y\r\nHost: A.example:80\r\n\r\n", Some("A.example:80")),
        ("GET / HTTP/1.0\r\nX: y\r\n\r\n", None),
    ] {
        let mut slots = HeaderSlots::new();
        let Ok(Parsed::Complete(head)) = parse_request(bytes.as_bytes(), &Limits::default(), &mut slots)
        else {
            panic!("{bytes:?}")
        };
        let lines: Vec<_> = head.for_rules(false).map(|line| (line.name, line.value)).collect();
        let host = host.map(|host| ("Host", host.as_bytes()));
        assert_eq!(lines, host.into_iter().chain([("X", &b"y"[..])]).collect::<Vec<_>>(), "{bytes:?}");
    }
}

#[test]
fn set_replaces_and_remove_drops() {
    let bytes = "GET / HTTP/1.1\r\nHost: a\r\nA: 1\r\nB: 2\r\na: 3\r\nCookie: c\r\n\r\n";
    let edits = RequestEdits {
        set: &[("Host", "inner"), ("A", "new\r\nEvil: x"), ("X-Forwarded-Proto", "h"), ("no name", "x")],
        remove: &["b", "cookie", "X-Request-Id"],
        ..EDITS
    };
    assert_eq!(
        request(bytes, &edits),
        "GET / HTTP/1.1\r\nHost: inner\r\nX-Forwarded-For: 192.0.2.1\r\nA: new  Evil: x\r\n\
         X-Forwarded-Proto: h\r\n\r\n"
    );
}

#[test]
fn set_values_contain_no_control_bytes() {
    let bytes = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    for byte in (0..=0x1f).chain([0x7f]).map(char::from) {
        let value = format!("a{byte}b");
        let edits = RequestEdits { set: &[("A", &value)], ..EDITS };
        let kept = if byte == '\t' { byte } else { ' ' };
        assert!(request(bytes, &edits).contains(&format!("\r\nA: a{kept}b\r\n")), "{value:?}");
    }
}

#[test]
fn responses_lose_hop_by_hop_fields_and_keep_their_framing() {
    let bytes = "HTTP/1.0 200 Fine\r\nConnection: keep-alive, X-Hop\r\nKeep-Alive: 5\r\nX-Hop: 1\r\n\
                 Content-Length: 05\r\nUpgrade: h2,h2c\r\nProxy-Authenticate: Basic\r\nA: 1\r\nTrailer: T\r\n\r\n";
    assert_eq!(
        response(bytes, false, &EDITS_BACK),
        "HTTP/1.1 200 Fine\r\nProxy-Authenticate: Basic\r\nA: 1\r\nTrailer: T\r\nContent-Length: 5\r\n\r\n"
    );
    let edits = ResponseEdits {
        http10_client: true,
        set: &[("A", "2")],
        remove: &["trailer"],
        append: &[("Set-Cookie", "s=1")],
        ..EDITS_BACK
    };
    assert_eq!(
        response(bytes, false, &edits),
        "HTTP/1.1 200 Fine\r\nProxy-Authenticate: Basic\r\nContent-Length: 5\r\nConnection: keep-alive\r\n\
         A: 2\r\nSet-Cookie: s=1\r\n\r\n"
    );
}

#[test]
fn end_of_the_connection_is_announced() {
    let closing = ResponseEdits { close: true, ..EDITS_BACK };
    let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    assert_eq!(
        response(chunked, false, &closing),
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    );
    let endless = "HTTP/1.1 200 OK\r\nA: b\r\n\r\n";
    assert_eq!(response(endless, false, &EDITS_BACK), "HTTP/1.1 200 OK\r\nA: b\r\nConnection: close\r\n\r\n");
}

#[test]
fn bodiless_responses_announce_no_forbidden_length() {
    let length = |status: &str, to_head| {
        let bytes = format!("HTTP/1.1 {status}\r\nContent-Length: 5\r\n\r\n");
        response(&bytes, to_head, &ResponseEdits { close: true, ..EDITS_BACK })
    };
    assert_eq!(length("200 OK", true), "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\n");
    assert_eq!(length("304 X", false), "HTTP/1.1 304 X\r\nContent-Length: 5\r\nConnection: close\r\n\r\n");
    assert_eq!(length("204 X", false), "HTTP/1.1 204 X\r\nConnection: close\r\n\r\n");
    let interim = "HTTP/1.1 103 E\r\nContent-Length: 0\r\n\r\n";
    assert_eq!(response(interim, false, &EDITS_BACK), "HTTP/1.1 103 E\r\n\r\n");
    let switch =
        "HTTP/1.1 101 S\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: x\r\n\r\n";
    assert_eq!(
        response(switch, false, &ResponseEdits { upgrade: true, ..EDITS_BACK }),
        "HTTP/1.1 101 S\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: x\r\nConnection: upgrade\r\n\r\n"
    );
}

#[test]
fn status_426_names_the_protocols_to_upgrade_to() {
    let bytes = "HTTP/1.1 426 U\r\nConnection: Upgrade, X-Own\r\nX-Own: 1\r\n\
                 Upgrade: websocket, irc/6.9\r\nContent-Length: 0\r\n\r\n";
    let kept = "HTTP/1.1 426 U\r\nUpgrade: websocket, irc/6.9\r\nContent-Length: 0\r\n";
    let with = |edits: ResponseEdits<'static>| response(bytes, false, &edits);
    assert_eq!(with(EDITS_BACK), format!("{kept}Connection: upgrade\r\n\r\n"));
    assert_eq!(
        with(ResponseEdits { close: true, ..EDITS_BACK }),
        format!("{kept}Connection: close, upgrade\r\n\r\n")
    );
    // HTTP/1.0 has no upgrades.
    assert_eq!(
        with(ResponseEdits { http10_client: true, ..EDITS_BACK }),
        "HTTP/1.1 426 U\r\nContent-Length: 0\r\nConnection: keep-alive\r\n\r\n"
    );
    let silent = "HTTP/1.1 426 U\r\nContent-Length: 0\r\n\r\n";
    assert_eq!(response(silent, false, &EDITS_BACK), silent, "nothing is made up");
    let other = bytes.replace("426", "400");
    assert_eq!(response(&other, false, &EDITS_BACK), "HTTP/1.1 400 U\r\nContent-Length: 0\r\n\r\n");
}

#[test]
fn set_and_removed_names_are_dropped_in_every_spelling() {
    let edits = RequestEdits { set: &[("x-user", "anon")], remove: &["x-admin"], ..EDITS };
    let bytes = "GET / HTTP/1.1\r\nHost: a\r\nX_User: root\r\nx-user: root\r\nx.User: root\r\n\
                 X_Admin: 1\r\nXxAdmin: 2\r\n\r\n";
    let out = request(bytes, &edits);
    assert!(!out.contains("root") && !out.contains("Admin: 1"), "{out}");
    assert!(out.contains("XxAdmin: 2\r\n") && out.contains("x-user: anon\r\n"), "{out}");
}
