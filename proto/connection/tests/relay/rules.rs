//! Rules and what passes: they decide on what the server gets, and what they set is set wherever an answer comes from.

use super::harness::setup::set_rules;
use super::{plain, text};
use evergate_http::ForwardedTrust;
use evergate_rules::{RuleSpec, Ruleset};

fn rule(name: &str, when: &str) -> RuleSpec {
    RuleSpec { name: name.to_owned(), when: when.to_owned(), ..RuleSpec::default() }
}

fn trust(all: bool) -> ForwardedTrust {
    if all { ForwardedTrust::AllPeers } else { ForwardedTrust::NoPeer }
}

fn fields(fields: &[(&str, &str)]) -> std::collections::BTreeMap<String, String> {
    fields.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

#[test]
fn rules_see_no_header_that_the_server_does_not_get() {
    let keyless = RuleSpec { deny: Some(401.into()), ..rule("keyless", r#"!header("x-api-key").exists()"#) };
    let inside = concat!(
        r#"header("x-forwarded-for") == "10.0.0.1" || "#,
        r#"header("x-request-id") == "1" || header("x_real_ip") == "1""#
    );
    let inside = RuleSpec { deny: Some(403.into()), ..rule("inside", inside) };
    let rules = [keyless, inside];
    for (lines, trusted, status) in [
        ("X-Api-Key: 1\r\n", false, None),
        ("X-Api-Key: 1\r\nConnection: x-api-key\r\n", false, Some(401)),
        ("X-Api-Key: 1\r\nX-Forwarded-For: 10.0.0.1\r\n", false, None),
        ("X-Api-Key: 1\r\nX-Forwarded-For: 10.0.0.1\r\n", true, Some(403)),
        ("X-Api-Key: 1\r\nX-Request-Id: 1\r\nX_Real_IP: 1\r\nX.Real.IP: 1\r\n", true, None),
    ] {
        let mut rig = plain(|snapshot| {
            set_rules(snapshot, &rules);
            snapshot.listeners[1].trust_forwarded = trust(trusted);
        });
        rig.send(format!("GET /a HTTP/1.1\r\nHost: test.example\r\n{lines}\r\n").as_bytes());
        let got = text(&rig.received());
        match status {
            None => assert_eq!((rig.legs.len(), got.as_str()), (1, ""), "{lines:?}"),
            Some(status) => assert!(got.starts_with(&format!("HTTP/1.1 {status} ")), "{lines:?} {got}"),
        }
    }
}

#[test]
fn a_trusted_hop_names_the_request() {
    for (lines, trusted, kept) in [
        ("X-Request-Id: edge-7\r\n", true, true),
        ("X-Request-Id: edge-7\r\n", false, false),
        ("X-Request-Id: edge-7\r\nX-Request-Id: edge-7\r\n", true, false),
        ("X-Request-Id: edge 7\r\n", true, false),
    ] {
        let mut rig = plain(|snapshot| snapshot.listeners[1].trust_forwarded = trust(trusted));
        rig.send(format!("GET /a HTTP/1.1\r\nHost: test.example\r\n{lines}\r\n").as_bytes());
        let got = text(&rig.server_got(1));
        rig.serve(1, b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
        let id = &rig.logs[0].id;
        assert_eq!((id == "edge-7", got.contains("edge")), (kept, kept), "{lines:?} {got}");
        assert_eq!(got.matches(&format!("X-Request-Id: {id}\r\n")).count(), 1, "{got}");
    }
}

#[test]
fn a_host_is_the_same_with_the_dot_of_the_root() {
    let rules = [RuleSpec { deny: Some(403.into()), ..rule("admin", r#"host == "admin.example""#) }];
    for host in ["admin.example", "ADMIN.example.", "admin.example.:80"] {
        let mut rig = plain(|snapshot| set_rules(snapshot, &rules));
        rig.send(format!("GET /a HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes());
        assert!(text(&rig.received()).starts_with("HTTP/1.1 403 "), "{host}");
    }
}

#[test]
fn later_one_of_two_rules_that_edit_a_header_counts() {
    let sets = |priority| RuleSpec {
        priority,
        set_request_headers: fields(&[("X-Env", "a")]),
        set_response_headers: fields(&[("X-Env", "a")]),
        ..rule("sets", r#"path == "/a""#)
    };
    let removes = |name: &str| RuleSpec {
        priority: 5,
        remove_request_headers: vec![name.to_owned()],
        remove_response_headers: vec![name.to_owned()],
        ..rule("removes", r#"path == "/a""#)
    };
    for (priority, name, stays) in [(10, "X-Env", false), (10, "x.Env", false), (1, "X-Env", true)] {
        let mut rig = plain(|snapshot| set_rules(snapshot, &[sets(priority), removes(name)]));
        rig.send(b"GET /a HTTP/1.1\r\nHost: test.example\r\nX_Env: client\r\n\r\n");
        let got = text(&rig.server_got(1));
        assert_eq!((got.contains("x-env: a"), got.contains("client")), (stays, false), "{got}");
        rig.serve(1, b"HTTP/1.1 200 OK\r\nX-Env: server\r\nContent-Length: 0\r\n\r\n");
        let got = text(&rig.received());
        assert_eq!((got.contains("x-env: a"), got.contains("server")), (stays, false), "{got}");
    }
}

#[test]
fn answers_of_our_own_have_the_headers_that_rules_set() {
    let set = [("Strict-Transport-Security", "max-age=1"), ("Content-Type", "x/y")];
    let rules = [
        RuleSpec { set_response_headers: fields(&set), ..rule("all", r#"path.path_prefix("/")"#) },
        RuleSpec { deny: Some(403.into()), ..rule("deny", r#"path == "/deny""#) },
        RuleSpec { redirect: Some("https://x${path}".to_owned()), ..rule("move", r#"path == "/move""#) },
    ];
    let mut rig = plain(|snapshot| set_rules(snapshot, &rules));
    for (path, first) in [("/deny", "HTTP/1.1 403 "), ("/move", "HTTP/1.1 302 ")] {
        rig.send(format!("GET {path} HTTP/1.1\r\nHost: test.example\r\n\r\n").as_bytes());
        let got = text(&rig.received());
        assert!(
            got.starts_with(first) && got.contains("\r\nstrict-transport-security: max-age=1\r\n"),
            "{got}"
        );
        assert!(
            got.matches("ontent-").count() == 2 && !got.contains("x/y"),
            "its own length and type: {got}"
        );
    }
    assert!(rig.legs.is_empty());
}

/// What `check` calls a spelling that no request has, and what requests are brought to, are two pieces of code.
#[test]
fn path_literals_are_refused_where_requests_spell_otherwise() {
    let compiles = |path: &str| {
        let rules = [rule("path", &format!("path == {path:?}"))];
        Ruleset::compile(&rules, &evergate_rules::Limits::default())
            .map(drop)
            .map_err(|errors| format!("{errors:?}"))
    };
    for path in [
        "/",
        "/a",
        "/a/",
        "//",
        "//a",
        "/a//b",
        "/%7Euser",
        "/%7euser",
        "/~user",
        "/a%2fb",
        "/a%2Fb",
        "/%41",
        "/./a",
        "/a/.",
        "/a/..",
        "/a/../b",
        "/..",
        "/a/%2e%2E/b",
        "/%2E",
        "/a.b",
        "/...",
        "/a;b=c",
        "/a:b@c",
        "/%20",
        "/%c3%A9",
        "/a!$&'()*+,=",
    ] {
        let mut canonical = Vec::new();
        let spelt = evergate_http::canonical_path(path.as_bytes(), &mut canonical).map(|_| text(&canonical));
        match spelt {
            Ok(spelt) if spelt == path => assert_eq!(compiles(path), Ok(()), "{path}"),
            Ok(spelt) => {
                assert!(compiles(path).is_err_and(|error| error.contains(&spelt)), "{path} is {spelt}");
                assert_eq!(compiles(&spelt), Ok(()), "{spelt}");
            }
            Err(_) => assert!(compiles(path).is_err(), "{path} is refused"),
        }
    }
}
