//! Decisions: precedence, contributions, undecidable bodies, explanations.

use evergate_rules::{
    Body, Effect, HeaderEdit, Limits, Outcome, RuleId, RuleSpec, Ruleset, Scratch, Sticky, Terminal, Unknown,
    Verdict, Witness,
};

fn rule(name: &str, when: &str) -> RuleSpec {
    RuleSpec { name: name.into(), when: when.into(), ..RuleSpec::default() }
}

fn route(name: &str, when: &str) -> RuleSpec {
    RuleSpec { route: Some(name.into()), ..rule(name, when) }
}

fn compile(specs: &[RuleSpec]) -> Ruleset {
    Ruleset::compile(specs, &Limits::default()).unwrap()
}

fn get(path: &str) -> Witness {
    Witness { path: path.into(), ..Witness::default() }
}

fn post(media: &str, body: &str) -> Witness {
    Witness {
        method: "POST".into(),
        headers: vec![("Content-Type".into(), media.into())],
        body: body.into(),
        ..Witness::default()
    }
}

/// Names of the rules that matched; `None` if the body is needed.
fn matched(rules: &Ruleset, witness: &Witness, body: impl Fn(&[u8]) -> Body<'_>) -> Option<Vec<String>> {
    witness.with(|request| {
        let request = evergate_rules::Request { body: body(&witness.body), ..*request };
        match rules.decide(&request, &mut Scratch::new()) {
            Outcome::NeedBody => None,
            Outcome::Decided(decision) => {
                Some(decision.matched.iter().map(|&id| rules.name(id).to_owned()).collect())
            }
        }
    })
}

fn complete(rules: &Ruleset, witness: &Witness) -> Vec<String> {
    matched(rules, witness, |bytes| Body::Complete(bytes)).unwrap()
}

#[test]
fn header_counts_under_every_spelling_of_its_name() {
    let mut both =
        [rule("exact", r#"header("x_debug").exists()"#), route("dashed", r#"header("x-debug").exists()"#)];
    both[0].set_request_headers.insert("x-seen".into(), "1".into());
    let witness = Witness { headers: vec![("X_Debug".into(), "1".into())], ..get("/") };
    assert_eq!(complete(&compile(&both), &witness), ["exact", "dashed"]);
}

/// Servers that pass header names on as variables replace all characters other than letters and digits with `_`, or
/// only `-`.
#[test]
fn header_counts_as_the_one_servers_mistake_it_for() {
    let rules = compile(&[route("debug", r#"header("x-debug").exists()"#)]);
    let with = |name: &str| Witness { headers: vec![(name.into(), "1".into())], ..get("/") };
    let names =
        [("X-Debug", true), ("X_Debug", true), ("x.debug", true), ("XDebug", false), ("X_Debug_", false)];
    for (name, counts) in names {
        assert_eq!(complete(&rules, &with(name)).is_empty(), !counts, "{name}");
    }
    let underscored = compile(&[route("debug", r#"header("X_debug").exists()"#)]);
    for (name, counts) in names {
        assert_eq!(complete(&underscored, &with(name)).is_empty(), !counts, "{name}");
    }
}

#[test]
fn precedence_is_priority_then_file_order() {
    let mut specs = vec![route("short", r#"path.path_prefix("/a")"#), route("long", r#"path == "/a/b""#)];
    assert_eq!(complete(&compile(&specs), &get("/a/b")), ["short"]);
    specs[1].priority = 1;
    assert_eq!(complete(&compile(&specs), &get("/a/b")), ["long"]);
}

#[test]
fn rules_before_the_terminal_rule_contribute_in_order() {
    let mut tag = rule("tag", "");
    tag.set_request_headers.insert("X-Tag".into(), "1".into());
    tag.remove_response_headers.push("Server".into());
    let audit =
        RuleSpec { audit: true, class: Some("gold".into()), ..rule("audit", r#"path.starts_with("/a")"#) };
    let late = RuleSpec { class: Some("late".into()), ..rule("late", "") };
    let rules = compile(&[tag, audit, RuleSpec { sticky: Some(Sticky::Cookie), ..route("pool", "") }, late]);
    get("/a").with(|request| {
        let mut scratch = Scratch::new();
        let Outcome::Decided(decision) = rules.decide(request, &mut scratch) else { panic!() };
        assert_eq!(decision.rule, Some(RuleId(2)));
        assert_eq!(
            decision.terminal,
            Terminal::Route { pool: "pool", pool_index: 0, sticky: Some(Sticky::Cookie) }
        );
        assert_eq!(*decision.matched, [RuleId(0), RuleId(1), RuleId(2)]);
        let effects: Vec<Effect<'_>> = decision.effects().collect();
        assert_eq!(
            effects,
            [
                Effect::Request(HeaderEdit::Set { name: "x-tag", value: "1" }),
                Effect::Response(HeaderEdit::Remove { name: "server" }),
                Effect::Audit,
                Effect::Class("gold"),
            ]
        );
        assert!(decision.audit() && decision.class() == Some("gold"));
    });
}

#[test]
fn listeners_limit_a_rule() {
    let rules = compile(&[
        RuleSpec { listeners: vec!["edge".into(), "x".into()], ..route("edge", "") },
        route("all", ""),
    ]);
    assert_eq!(complete(&rules, &Witness { listener: "edge".into(), ..get("/") }), ["edge"]);
    assert_eq!(complete(&rules, &Witness { listener: "other".into(), ..get("/") }), ["all"]);
}

#[test]
fn undecidable_body_is_never_false() {
    for (unknown, expected) in [(Unknown::NoMatch, "rest"), (Unknown::Match, "json"), (Unknown::Deny, "json")]
    {
        let rules = compile(&[
            RuleSpec { unknown, ..route("json", r#"json("/a") == "1" && path == "/""#) },
            route("rest", ""),
        ]);
        let cut = post("application/json", r#"{"b":[1,2,3]"#);
        let prefix = |witness: &Witness| matched(&rules, witness, |bytes| Body::Prefix(bytes)).unwrap();
        assert_eq!(prefix(&cut), [expected], "past the cap");
        assert_eq!(complete(&rules, &cut), [expected], "malformed");
        let mut encoded = post("application/json", "{}");
        encoded.headers.push(("Content-Encoding".into(), "gzip".into()));
        assert_eq!(complete(&rules, &encoded), [expected], "encoded");
        // The negation is undecidable as well.
        let negated =
            compile(&[RuleSpec { unknown, ..route("json", r#"json("/a") != "1""#) }, route("rest", "")]);
        assert_eq!(matched(&negated, &cut, |bytes| Body::Prefix(bytes)).unwrap(), [expected]);
        // A value found within the prefix is decidable, and so is a condition that another comparison decides.
        assert_eq!(prefix(&post("application/json", r#"{"a":"1","b":"#)), ["json"]);
        assert_eq!(prefix(&Witness { path: "/x".into(), ..cut }), ["rest"]);
        assert_eq!(complete(&rules, &post("application/json", r#"{"a":2}"#)), ["rest"]);
    }
    let deny =
        compile(&[RuleSpec { unknown: Unknown::Deny, audit: true, ..rule("j", r#"json("/a").exists()"#) }]);
    post("application/json", "{").with(|request| {
        let Outcome::Decided(decision) = deny.decide(request, &mut Scratch::new()) else { panic!() };
        assert_eq!(decision.terminal, Terminal::Deny(403.into()));
    });
}

/// A `;` neither circumvents a rule that denies all other requests nor changes a route.
#[test]
fn no_match_rule_uses_the_values_that_are_present() {
    let rules =
        compile(&[route("others", r#"query("token") != "s" || cookie("c") != "s""#), route("rest", "")]);
    for (query, cookie, pool) in [
        ("token=s", "c=s", "rest"),
        ("token=s&;", "c=s", "rest"),
        ("token=s&;", "c=s; x=1 c=2", "rest"),
        ("?;", "c=s", "others"),
        ("x=1;token=s", "c=s", "others"),
        ("token=s", "d=\"; x=1 c=s", "others"),
    ] {
        let headers = vec![("Cookie".into(), cookie.into())];
        let request = Witness { query: query.into(), headers, ..get("/") };
        request.with(|request| match rules.decide(request, &mut Scratch::new()) {
            Outcome::Decided(decision) => match decision.terminal {
                Terminal::Route { pool: found, .. } => assert_eq!(found, pool, "{query} {cookie}"),
                other => panic!("{other:?}"),
            },
            Outcome::NeedBody => panic!(),
        });
    }
}

#[test]
fn ambiguous_query_or_cookie_is_never_false() {
    let decided = |when: &str, query: &str, cookie: &str| {
        let unknown = RuleSpec { unknown: Unknown::Deny, ..route("admin", when) };
        let rules = compile(&[unknown, route("rest", "")]);
        let headers = [("Cookie", cookie)].map(|(name, value)| (name.into(), value.into()));
        let request = Witness { query: query.into(), headers: headers.to_vec(), ..get("/") };
        request.with(|request| match rules.decide(request, &mut Scratch::new()) {
            Outcome::Decided(decision) => match decision.terminal {
                Terminal::Route { pool, .. } => pool.to_owned(),
                other => format!("{other:?}"),
            },
            Outcome::NeedBody => panic!(),
        })
    };
    let query = |query: &str| {
        let unlike = decided(r#"query("role") != "admin""#, query, "");
        (decided(r#"query("role") == "admin""#, query, ""), unlike)
    };
    let denied = || "Deny(Status(403))".to_owned();
    for text in [
        "x=1;role=admin",
        "+role=admin",
        "%20role=admin",
        "role=admin%00",
        "role%00=admin",
        "r%u006fle=admin",
        "role=%61dmi%6",
        "ro%0ale=admin",
        "x;y&role=user",
    ] {
        assert_eq!(query(text), (denied(), denied()), "{text}");
    }
    // Values found remain valid: a `;` elsewhere does not undo a rule against one.
    assert_eq!(query("role=admin&x;y"), ("admin".into(), "rest".into()));
    for text in ["role=user&x=100%", "role=a%3Bb", "x=%00", "role=%0d%0a", "role[]=admin", ""] {
        assert_eq!(query(text), ("rest".into(), "admin".into()), "{text}");
    }
    let cookie = |cookie: &str| {
        let unlike = decided(r#"cookie("role") != "admin""#, "", cookie);
        (decided(r#"cookie("role") == "admin""#, "", cookie), unlike)
    };
    for text in ["role=\"admin\"", "role=%61dmin", "role=\"%61dmin\"", "a=\"; role=admin; b=\""] {
        assert_eq!(cookie(text), ("admin".into(), "rest".into()), "{text}");
    }
    for text in ["role=\"\\141dmin\"", "role=\"admin", "x=1 role=admin", "x=1, role=admin", "role=admin%00"] {
        assert_eq!(cookie(text), (denied(), denied()), "{text}");
    }
    for text in ["role=user; x=\"1, 2\"", "x=role=admin", "y={\"role\":\"admin\"}; z=100%", "role=us%er"] {
        assert_eq!(cookie(text), ("rest".into(), "admin".into()), "{text}");
    }
}

#[test]
fn ambiguous_value_does_not_affect_other_fields() {
    let denied = |when: &str| RuleSpec { unknown: Unknown::Deny, ..route(when, when) };
    let rules = compile(&[
        denied(r#"query("a") == "1""#),
        denied(r#"query("b") == "1""#),
        denied(r#"cookie("c") == "1""#),
        denied(r#"cookie("d") == "1""#),
    ]);
    let matched = |query: &str, cookie: &str| {
        let headers = vec![("Cookie".into(), cookie.into())];
        complete(&rules, &Witness { query: query.into(), headers, ..get("/") })
    };
    assert_eq!(matched("a=2&b=%00", "c=2"), [r#"query("b") == "1""#]);
    assert_eq!(matched("a=2", "c=2 d=1"), [r#"cookie("d") == "1""#]);
    assert_eq!(matched("a=2", "c=2; d=\""), [r#"cookie("d") == "1""#]);
    assert!(matched("a=2&e=%zz", "c=2; e=\"\\\"").is_empty());
}

#[test]
fn body_is_needed_only_by_a_rule_that_could_still_win() {
    let rules = compile(&[
        route("first", r#"path == "/first""#),
        route("form", r#"form("a") == "1" && header("x-form").exists()"#),
        route("rest", ""),
    ]);
    let mut request = post("application/x-www-form-urlencoded", "a=1");
    let pending = |witness: &Witness| matched(&rules, witness, |_| Body::Pending);
    assert_eq!(pending(&request).unwrap(), ["rest"], "the header is missing");
    request.headers.push(("X-Form".into(), "1".into()));
    assert_eq!(pending(&request), None);
    request.path = "/first".into();
    assert_eq!(pending(&request).unwrap(), ["first"], "an earlier rule wins");
    request.path = "/".into();
    request.headers[0].1 = "image/png".into();
    assert_eq!(pending(&request).unwrap(), ["rest"], "no form can follow");
}

#[test]
fn body_size_is_known_from_content_length() {
    let rules = compile(&[route("large", "body.size > 1000"), route("rest", "")]);
    let mut request = post("text/plain", "x");
    assert_eq!(matched(&rules, &request, |_| Body::Pending), None);
    assert_eq!(matched(&rules, &request, |_| Body::Prefix(&[b'x'; 1000])).unwrap(), ["large"]);
    request.headers.push(("Content-Length".into(), "5000".into()));
    assert_eq!(matched(&rules, &request, |_| Body::Pending).unwrap(), ["large"]);
    request.headers[1].1 = "5".into();
    assert_eq!(matched(&rules, &request, |_| Body::Pending).unwrap(), ["rest"]);
}

#[test]
fn comparison_needs_any_value_and_negation_none() {
    let rules = compile(&[
        route("any", r#"query("a") == "2""#),
        route("none", r#"query("a") != "1""#),
        route("rest", ""),
    ]);
    let query = |query: &str| complete(&rules, &Witness { query: query.into(), ..get("/") });
    assert_eq!(query("a=1&b=3&a=%32"), ["any"]);
    assert_eq!(query("a=3&a=1"), ["rest"]);
    assert_eq!(query("b=1"), ["none"]);
}

#[test]
fn hosts_and_header_names_ignore_case() {
    let rules = compile(&[route(
        "r",
        r#"host in ["A.Example"] && tls.sni.ends_with(".EXAMPLE") && header("X-Y") == "V""#,
    )]);
    let mut request = get("/");
    request.host = "a.eXample".into();
    request.headers.push(("x-y".into(), " V ".into()));
    request.tls = Some(evergate_rules::WitnessTls { sni: Some("b.Example".into()), ..Default::default() });
    assert_eq!(complete(&rules, &request), ["r"]);
    request.headers[0].1 = "v".into();
    assert!(complete(&rules, &request).is_empty());
}

#[test]
fn ipv6_host_has_one_spelling() {
    let rules = compile(&[
        route("path", r#"host == "[2001:DB8:0::1]" && path == "/x""#),
        route("host", r#"host == "[2001:DB8:0::1]""#),
        route("local", r#"host in ["[::1]", "a"]"#),
    ]);
    let host = |host: &str, path: &str| complete(&rules, &Witness { host: host.into(), ..get(path) });
    for text in ["[2001:db8::1]", "[2001:DB8::1]", "[2001:0db8:0:0:0:0:0:1]", "[2001:db8::0.0.0.1]"] {
        assert_eq!(host(text, "/"), ["host"], "{text}");
        assert_eq!(host(text, "/x"), ["path"], "{text}");
    }
    for text in ["[::1]", "[0::1]", "[0:0:0:0:0:0:0:1]", "[::0001]"] {
        assert_eq!(host(text, "/"), ["local"], "{text}");
    }
    for text in ["[::2]", "[::1", "[::1]x", "[]", "["] {
        assert!(host(text, "/").is_empty(), "{text}");
    }
}

#[test]
fn scratch_memory_serves_many_rule_sets_in_turn() {
    let a = compile(&[route("a", r#"path.matches("^/x")"#), route("b", r#"header("h").contains("v")"#)]);
    let b = compile(&[route("c", r#"path.contains("x") || cookie("k").matches("1|2")"#)]);
    let mut scratch = Scratch::new();
    for _ in 0..3 {
        for (rules, expected) in [(&a, Some(RuleId(0))), (&b, Some(RuleId(0))), (&Ruleset::empty(), None)] {
            get("/x").with(|request| {
                let Outcome::Decided(decision) = rules.decide(request, &mut scratch) else { panic!() };
                assert_eq!(decision.rule, expected);
            });
        }
    }
}

#[test]
fn redirect_fills_in_its_location() {
    let spec = RuleSpec {
        redirect: Some("https://${host}${path}?${query}".into()),
        redirect_status: Some(308),
        ..rule("r", r#"scheme == "http""#)
    };
    let rules = compile(&[spec]);
    let request = Witness { scheme: "http".into(), query: "a=1".into(), ..get("/x") };
    request.with(|request| {
        let Outcome::Decided(decision) = rules.decide(request, &mut Scratch::new()) else { panic!() };
        let location = "https://host.example/x?a=1".to_owned();
        assert_eq!(decision.terminal, Terminal::Redirect { status: 308, location });
    });
}

#[test]
fn explain_names_the_comparison_that_stopped_each_rule() {
    let rules = compile(&[
        route("amount", r#"xml.purchase/totalAmount > 52000"#),
        RuleSpec { audit: true, ..rule("seen", r#"client.ip in ["192.0.2.0/24"]"#) },
        route("picture", r#"path.ends_with("gif") || host == "img.example" && method == "GET""#),
        route("rest", ""),
        route("never", r#"method == "POST""#),
    ]);
    let explanation =
        post("text/xml", "<purchase><totalAmount>7</totalAmount></purchase>").with(|r| rules.explain(r));
    let verdicts: Vec<Verdict> = explanation.rules.iter().map(|rule| rule.verdict).collect();
    use Verdict::{Contributes, Fails, Shadowed, Wins};
    assert_eq!(verdicts, [Fails, Contributes, Fails, Wins, Shadowed]);
    assert_eq!(
        explanation.to_string(),
        "rule \"rest\" wins: route to pool rest\n  amount: does not match\n    \
         xml(\"purchase/totalAmount\") > 52000: \"7\"\n  \
         seen: matches, contributes its edits\n  picture: does not match\n    path.ends_with(\"gif\"): \"/\"\n    \
         host == \"img.example\": \"host.example\"\n  rest: wins\n  \
         never: would match, but an earlier rule ended the search\n"
    );
    let json = serde_json::to_value(&explanation).unwrap();
    assert_eq!(json["rules"][0]["failed"][0]["value"], "\"7\"");
    let in_pieces = post("text/xml", "<purchase><totalAmount>7<!-- -->9</totalAmount></purchase>");
    let amount = in_pieces.with(|r| rules.explain(r)).rules.remove(0);
    let value = "unknown: present, and too long or read differently by servers";
    assert_eq!((amount.verdict, amount.failed[0].value.as_str()), (Verdict::Undecidable, value));
}

#[test]
fn number_is_compared_in_every_spelling() {
    let rules = compile(&[
        route("query", r#"query("a") > 100"#),
        route("equal", r#"query("a") == 101 || json("/a") in [101, 102]"#),
        route("json", r#"json("/a") > 100"#),
    ]);
    let zeros = "0".repeat(70);
    let spellings =
        ["101", "101.", ".5e9", "9e400", &format!("101.{zeros}"), &format!("{zeros}101"), &"9".repeat(71)];
    for text in spellings {
        assert_eq!(
            complete(&rules, &Witness { query: format!("a={text}"), ..get("/") }),
            ["query"],
            "{text}"
        );
    }
    for text in ["9e400", &"9".repeat(71), &format!("\"{zeros}110.\"")] {
        let body = format!("{{\"a\":{text}}}");
        assert_eq!(complete(&rules, &post("application/json", &body)), ["json"], "{text}");
    }
    // A text that is not a number is decided: no comparison with a number holds for it.
    let denied = compile(&[RuleSpec { unknown: Unknown::Deny, ..route("large", r#"json("/a") > 100"#) }]);
    assert!(complete(&denied, &post("application/json", r#"{"a":"many"}"#)).is_empty());
}

#[test]
fn number_past_the_largest_equals_none() {
    let rules = compile(&[
        route("equal", r#"query("a") in [0, 1, 9007199254740991]"#),
        route("less", r#"query("a") < -9007199254740991"#),
        route("not", r#"query("a") != 1"#),
    ]);
    let query = |query: &str| complete(&rules, &Witness { query: query.into(), ..get("/") });
    assert_eq!(query("a=9e400"), ["not"]);
    assert_eq!(query("a=-9e400"), ["less"]);
    assert_eq!(query("a=9e-400"), ["equal"]);
}
