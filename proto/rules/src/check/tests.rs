//! Findings on small rule sets, each with its reason.

use crate::check::{Entrance, Finding, FindingKind, Severity};
use crate::spec::{Limits, RuleSpec};
use crate::{Outcome, RuleId, Ruleset, Scratch};

fn routes(conditions: &[(&str, &str)]) -> Ruleset {
    let spec = |(at, (when, pool)): (usize, &(&str, &str))| RuleSpec {
        name: format!("r{at}"),
        when: (*when).to_owned(),
        route: Some((*pool).to_owned()),
        ..RuleSpec::default()
    };
    let specs: Vec<RuleSpec> = conditions.iter().enumerate().map(spec).collect();
    Ruleset::compile(&specs, &Limits::default()).unwrap()
}

fn findings(conditions: &[(&str, &str)]) -> Vec<(FindingKind, String)> {
    routes(conditions).check().into_iter().map(|finding| (finding.kind, finding.rule)).collect()
}

#[test]
fn rule_behind_a_wider_one_is_unreachable() {
    for (wide, narrow) in [
        (r#"path.path_prefix("/api")"#, r#"path.path_prefix("/api/v1")"#),
        (r#"path.starts_with("/a")"#, r#"path == "/ab" && method == "GET""#),
        (r#"client.ip in ["10.0.0.0/8"]"#, r#"client.ip in ["10.1.0.0/16", "10.2.0.1"]"#),
        (r#"xml.purchase/totalAmount > 100"#, r#"xml.purchase/totalAmount >= 101"#),
        (r#"header("x").exists()"#, r#"header("x").contains("a") && path != "/""#),
        (r#"host.ends_with("example")"#, r#"host == "A.Example" || host.ends_with(".example")"#),
        (r#"!(path == "/a")"#, r#"!(path.starts_with("/a"))"#),
        (r#"method != "GET""#, r#"method == "POST""#),
        (r#"path.matches("^/v[0-9]")"#, r#"path.matches("^/v[12]/x")"#),
        (r#"path.matches("^/v[0-9]+/")"#, r#"path.path_prefix("/v1/x")"#),
        ("", r#"path == "/""#),
        (r#"json("/a").exists()"#, r#"json("/a") in ["1", "2"]"#),
    ] {
        let found = findings(&[(wide, "a"), (narrow, "b")]);
        assert_eq!(found, [(FindingKind::Unreachable, "r1".into())], "{wide} over {narrow}");
        assert_eq!(findings(&[(narrow, "b"), (wide, "a")]), [], "{narrow} before {wide}");
    }
}

#[test]
fn alternatives_may_be_hidden_by_different_rules() {
    let rules = [
        (r#"path == "/a""#, "a"),
        (r#"path == "/b""#, "b"),
        (r#"method == "GET" && path == "/a" || path == "/b" && scheme == "http""#, "c"),
    ];
    assert_eq!(findings(&rules), [(FindingKind::Unreachable, "r2".into())]);
}

#[test]
fn same_match_with_another_action_is_a_conflict() {
    let rules =
        routes(&[(r#"host == "a" && path == "/x""#, "a"), (r#"path in ["/x"] && !(host != "a")"#, "b")]);
    let [Finding { severity: Severity::Error, kind: FindingKind::Conflict, witness: Some(witness), .. }] =
        &rules.check()[..]
    else {
        panic!("{:?}", rules.check())
    };
    assert!(witness.starts_with("GET https://a/x"), "{witness}");
    // The same action is merely superfluous.
    assert_eq!(
        findings(&[(r#"path == "/x""#, "a"), (r#"path == "/x""#, "a")]),
        [(FindingKind::Unreachable, "r1".into())]
    );
}

#[test]
fn conditions_that_never_hold_are_errors() {
    for condition in [
        "false",
        r#"path == "/a" && path == "/b""#,
        r#"path == "/a" && !path.starts_with("/")"#,
        r#"path.starts_with("/a") && path.starts_with("/b")"#,
        r#"client.ip in ["10.0.0.0/8"] && client.ip == "192.0.2.1""#,
        r#"client.port > 5 && client.port < 5"#,
        r#"header("a").starts_with("x") && !header("a").exists()"#,
        r#"json("/a") == 1 && xml.a == 1"#,
        r#"path.matches("^[a-z]")"#,
        r#"path.matches("^/[0-9]+$") && path.ends_with("x")"#,
        r#"tls.sni == "a" && host == "b" && tls.sni != "a""#,
    ] {
        assert_eq!(findings(&[(condition, "a")]), [(FindingKind::Unsatisfiable, "r0".into())], "{condition}");
    }
}

#[test]
fn conditions_that_always_hold_are_noticed() {
    assert_eq!(findings(&[(r#"path == "/" || path != "/""#, "a")]), [(FindingKind::AlwaysTrue, "r0".into())]);
    assert_eq!(findings(&[("!false", "a")]), [(FindingKind::AlwaysTrue, "r0".into())]);
    assert_eq!(findings(&[("true", "a")]), []);
}

#[test]
fn incomparable_patterns_are_reported_as_not_proven() {
    let rules = [(r#"path.matches(r"^/\w+\b")"#, "a"), (r#"path.matches(r"^/[a-z]+\b")"#, "b")];
    assert_eq!(findings(&rules), [(FindingKind::NotProven, "r1".into())]);
}

#[test]
fn independent_rules_have_no_findings() {
    let rules = [
        (r#"path.path_prefix("/api")"#, "a"),
        (r#"path.starts_with("/api")"#, "b"),
        (r#"header("x") == "1" && header("x") == "2""#, "c"),
        (r#"header("x") == "1""#, "d"),
        (r#"query("n") < 5"#, "e"),
        (r#"query("n") > 3"#, "f"),
        ("", "g"),
    ];
    assert_eq!(findings(&rules), []);
}

#[test]
fn rule_that_acts_on_unknown_is_never_unreachable() {
    let mut specs = Vec::new();
    for (name, unknown) in [("first", crate::Unknown::NoMatch), ("second", crate::Unknown::Deny)] {
        specs.push(RuleSpec {
            name: name.into(),
            when: r#"form("a") == "1""#.into(),
            deny: Some(403.into()),
            unknown,
            ..RuleSpec::default()
        });
    }
    let rules = Ruleset::compile(&specs, &Limits::default()).unwrap();
    assert_eq!(rules.check()[0].kind, FindingKind::NotProven);
}

#[test]
fn witness_is_found_for_conditions_of_every_kind() {
    for condition in [
        r#"path.starts_with("/a") && path.contains("b") && path.ends_with("c") && !path.contains("x")"#,
        r#"host.ends_with(".example") && !(host in ["host.example", "a.example"])"#,
        r#"header("x").matches("^[0-9]{3}-[a-f]+$") && header("x") != "000-a""#,
        r#"cookie("a") == "1" && cookie("b") > 5 && cookie("b") < 6"#,
        r#"query("a b") == "c&d" && !query("z").exists()"#,
        r#"client.ip in ["2001:db8::/32"] && !(client.ip in ["2001:db8::/33"]) && client.port <= 1"#,
        r#"tls.sni == "a" && tls.alpn == "http/1.1" && tls.version == "TLSv1.2"
            && tls.client_subject.contains("CN=x")"#,
        r#"!tls.version.exists() && scheme == "http""#,
        r#"json("/a/0/b") == true && json("/a/1") > 7 && json("/c~1d") == "x\"y""#,
        r#"xml("p/a") > 52000 && xml("p/@id") == "<1>" && xml("p/a/b").exists()"#,
        r#"form("a") == "x y" && form("a") == "z" && body.size > 100 && body.size < 102"#,
        r#"body.size >= 5000 && method == "PUT" && local.port in [8443]"#,
    ] {
        let rules = routes(&[(condition, "a")]);
        let witness = rules.witness(RuleId(0)).unwrap_or_else(|| panic!("{condition}"));
        witness.with(|request| {
            let Outcome::Decided(decision) = rules.decide(request, &mut Scratch::new()) else { panic!() };
            assert_eq!(decision.rule, Some(RuleId(0)), "{condition}: {witness}");
        });
    }
}

/// The example requests of the findings, behind listeners with these names that terminate TLS or do not.
fn witnesses(conditions: &[(&str, &str)], listeners: &[(&str, bool)]) -> Vec<String> {
    let entrance = |&(listener, is_tls): &(&str, bool)| Entrance { listener: listener.to_owned(), is_tls };
    let entrances: Vec<Entrance> = listeners.iter().map(entrance).collect();
    let found = routes(conditions).check_behind(&entrances);
    found.into_iter().filter_map(|finding| finding.witness).collect()
}

#[test]
fn witness_behind_plain_listeners_has_no_tls() {
    let hidden = [(r#"path.path_prefix("/a")"#, "a"), (r#"path == "/a/b""#, "b")];
    assert_eq!(witnesses(&hidden, &[("in", false)]), ["GET http://host.example/a/b"]);
    assert_eq!(witnesses(&hidden, &[("in", false), ("tls", true)]), ["GET http://host.example/a/b"]);
    let tls = "GET https://host.example/a/b\n(TLSv1.3)";
    assert_eq!(witnesses(&hidden, &[("tls", true), ("in", false)]), [tls]);
    assert_eq!(witnesses(&hidden, &[]), [tls]);
    // A condition decides before the order of the listeners.
    let secure = [(r#"path.path_prefix("/a")"#, "a"), (r#"path == "/a/b" && scheme == "https""#, "b")];
    assert_eq!(witnesses(&secure, &[("in", false), ("tls", true)]), [tls]);
    assert_eq!(witnesses(&secure, &[("in", false)]), [tls], "the condition asks for it");
}

#[test]
fn witness_of_a_rule_for_one_listener_comes_through_it() {
    let rule = |name: &str, when: &str, listener: &str| RuleSpec {
        name: name.to_owned(),
        when: when.to_owned(),
        listeners: vec![listener.to_owned()],
        route: Some("p".to_owned()),
        ..RuleSpec::default()
    };
    let specs = [rule("wide", r#"path.path_prefix("/a")"#, "in"), rule("narrow", r#"path == "/a/b""#, "in")];
    let rules = Ruleset::compile(&specs, &Limits::default()).unwrap();
    let entrance = |name: &str, is_tls| Entrance { listener: name.to_owned(), is_tls };
    let found = rules.check_behind(&[entrance("tls", true), entrance("in", false)]);
    let witness = found[0].witness.as_deref().unwrap();
    assert_eq!(witness, "GET http://host.example/a/b\n(listener in)");
}
