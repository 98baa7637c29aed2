//! Errors of the compiler (place, cause, reason and remedy) and accepted conditions.

use evergate_rules::{Limits, RateKey, RateLimit, RuleError, RuleSpec, Ruleset, Unknown};

fn rule(when: &str) -> RuleSpec {
    RuleSpec { name: "r".into(), when: when.into(), audit: true, ..RuleSpec::default() }
}

fn errors(spec: RuleSpec) -> Vec<RuleError> {
    Ruleset::compile(&[spec], &Limits::default()).err().unwrap_or_default()
}

fn error(when: &str) -> RuleError {
    let mut errors = errors(rule(when));
    assert_eq!(errors.len(), 1, "{when}");
    errors.remove(0)
}

#[test]
fn error_has_place_cause_reason_and_remedy() {
    assert_eq!(
        error("method == \"GET\"\n  && path > 3").to_string(),
        "rule \"r\", when 2:11: path > .. compares text by size; path is not a number; use ==, in [..] or a method \
         such as .starts_with(..)"
    );
    assert_eq!(
        error(r#"path.starts_wth("/a")"#).to_string(),
        "rule \"r\", when 1:6: unknown method starts_wth; did you mean starts_with?"
    );
}

#[test]
fn every_error_has_its_position_and_remedy() {
    for (when, column, what, hint) in [
        (r#"hots == "a""#, 1, "unknown field hots", "did you mean host?"),
        (r#"client.prt == 1"#, 8, "unknown field client.prt", "did you mean client.port?"),
        (r#"tls.sn == "a""#, 5, "unknown field tls.sn", "did you mean tls.sni?"),
        (r#"host == a"#, 9, "'a' where a literal is needed", "quote text"),
        (r#"host == 5"#, 9, "host compared with the number 5", "quotation marks"),
        (r#"client.port == "80""#, 16, "client.port compared with the string", "without quotation marks"),
        (r#"client.ip == "10.0.0.1/8""#, 14, "bits past its prefix length", "10.0.0.0/8"),
        (r#"client.ip == "ten""#, 14, "client.ip compared with \"ten\"", "2001:db8::/32"),
        (r#"client.ip.contains("10")"#, 11, "client.ip has no method contains", "in ["),
        (r#"header("x") > "5""#, 15, "> with the string \"5\"", "without quotation marks"),
        (r#"path == "gif""#, 9, "never holds", "path.ends_with(\"gif\")"),
        (r#"path.path_prefix("api")"#, 18, "never holds", "/api"),
        (r#"host.path_prefix("/a")"#, 6, "host has no method path_prefix", "starts_with"),
        (r#"host == "a:80""#, 9, "never holds", "local.port"),
        (r#"method == "get""#, 11, "never holds", "\"GET\""),
        (r#"path.exists()"#, 1, "always holds", "leave it out"),
        (r#"path.contains("")"#, 15, "always holds", "leave it out"),
        (r#"path.contains()"#, 15, "contains without a string", "path.contains(\"..\")"),
        (r#"path.matches("(")"#, 14, "does not compile", ""),
        (r#"path.matches("\d")"#, 15, "unknown escape", "raw string"),
        (r#"host"#, 5, "host is followed by the end", "host.exists()"),
        (r#""GET" == method"#, 1, "begins with a literal", "on the left"),
        (r#"host = "a""#, 6, "unexpected character '='", "=="),
        (r#"path ~ "^/a""#, 6, "unexpected character '~'", ".matches("),
        (r#"host == "a" and path == "/""#, 13, "unexpected 'and'", "write &&"),
        (r#"host == "a" OR path == "/""#, 13, "unexpected 'OR'", "write ||"),
        (r#"cookie("a").exists"#, 19, "unexpected end of", "write cookie(\"a\").exists()"),
        (r#"path.starts_with "/a""#, 18, "unexpected the string", "write path.starts_with(\"..\")"),
        (r#"path.matches("^/(?!a)")"#, 14, "does not compile", "!path.matches("),
        (r#"host == "a" & true"#, 13, "unexpected character '&'", "&&"),
        (r#"host == "a"#, 9, "string without an end", "close it"),
        (r#"host == "a" host == "b""#, 13, "unexpected 'host'", ""),
        (r#"(host == "a""#, 13, "unexpected end of", ""),
        (r#"header("a b") == "x""#, 8, "header(\"a b\")", "letters"),
        (r#"json("a") == 1"#, 6, "json(\"a\")", "/order/0/total"),
        (r#"xml("a//b") == 1"#, 5, "the XML path \"a//b\"", "local names"),
        (r#"xml.p:a == 1"#, 5, "the XML path \"p:a\"", "local names"),
        (r#"query("a") == 1."#, 15, "1. is not a number", "decimal digits"),
        (r#"query("a") == 1x"#, 15, "1x is not a number", "decimal digits"),
        (r#"query("a") == 9007199254740993"#, 15, "too large", "as text"),
        (r#"query("a") in [1, "b"]"#, 19, "both text and numbers", "||"),
        (r#"query("a") == true"#, 15, "compared with true", "exists"),
        (r#"tls.version == "1.3""#, 16, "never holds", "TLSv1.3"),
        (r#"query == "a""#, 7, "unexpected '=='", ""),
        (r#"path == "/a%2fb""#, 9, "never holds", "write path == \"/a%2Fb\""),
        (r#"path != "/%41""#, 9, "never holds", "write path == \"/A\""),
        (r#"path == "/café""#, 9, "never holds", "write path == \"/caf%C3%A9\""),
        (r#"path == "/a b""#, 9, "never holds", "write path == \"/a%20b\""),
        (r#"path == "/a\\b""#, 9, "never holds", "write path == \"/a%5Cb\""),
        (r#"path == "/100%""#, 9, "never holds", "write path == \"/100%25\""),
        (r#"path in ["/x", "/a/../b"]"#, 16, "path == \"/a/../b\" never holds", "write path == \"/b\""),
        (r#"path == "/a?b=1""#, 9, "never holds", "write path == \"/a\" and compare query(\"..\")"),
        (r#"path == "/a#b""#, 9, "never holds", "write path == \"/a\""),
        (r#"path == "/%00""#, 9, "never holds", "leave it out"),
        (r#"path.path_prefix("/%7Euser")"#, 18, "never holds", "write path.path_prefix(\"/~user\")"),
        (r#"path.path_prefix("/a/..")"#, 18, "never holds", "write path.path_prefix(\"/\")"),
        (r#"path.path_prefix("/a%2")"#, 18, "never holds", "write path.path_prefix(\"/a%252\")"),
        (r#"path.path_prefix("//")"#, 18, "empty segment", "write path.starts_with(\"//\")"),
        (r#"path.path_prefix("/a//")"#, 18, "empty segment", "write path.starts_with(\"/a//\")"),
        (r#"path.starts_with("/a/./b")"#, 18, "never holds", "write path.starts_with(\"/a/b\")"),
        (r#"path.starts_with("/a%e")"#, 18, "never holds", "write path.starts_with(\"/a%E\")"),
        (r#"path.starts_with("/a?")"#, 18, "never holds", "write path == \"/a\" and compare query(\"..\")"),
        (r#"host == "münchen.de""#, 9, "never holds", "xn--"),
        (r#"host in ["a", "*.example.com"]"#, 15, "never holds", "host.ends_with(\".example.com\")"),
        (r#"host == "a b""#, 9, "never holds", "as in \"a.example\""),
        (r#"host == "a.example/x""#, 9, "never holds", "as in \"a.example\""),
        (r#"host == "::1""#, 9, "never holds", "write \"[::1]\""),
        (r#"host == "[::1]:80""#, 9, "never holds", "local.port"),
        (r#"host == "[::x]""#, 9, "never holds", "as in \"a.example\" or \"[2001:db8::1]\""),
        (r#"method in ["GET", "CONNECT"]"#, 19, "method == \"CONNECT\" never holds", "leave it out"),
        (r#"path.contains("%2f")"#, 15, "path.contains(\"%2f\") never holds", "write path.contains(\"%2F\")"),
        (r#"path.contains("%2e%2e%2f")"#, 15, "never holds", "write path.contains(\"..%2F\")"),
        (r#"path.contains("é")"#, 15, "never holds", "write path.contains(\"%C3%A9\")"),
        (r#"path.contains(" ")"#, 15, "never holds", "write path.contains(\"%20\")"),
        (r#"path.contains("/../")"#, 15, "never holds", "leave it out"),
        (r#"path.contains("a/%2e/")"#, 15, "never holds", "leave it out"),
        (r#"path.contains("%00")"#, 15, "never holds", "leave it out"),
        (r##"path.contains("#a")"##, 15, "never holds", "write %23"),
        (r#"path.ends_with("/..")"#, 16, "never holds", "leave it out"),
        (r#"path.ends_with("%c3%a9")"#, 16, "never holds", "write path.ends_with(\"%C3%A9\")"),
        (r#"path.ends_with("100%")"#, 16, "never holds", "write path.ends_with(\"100%25\")"),
        (r#"path.ends_with(".php?x=1")"#, 16, "never holds", "compare query(\"..\")"),
        (r#"host == ".example.com""#, 9, "never holds", "leave out the dot"),
        (r#"host.contains("münchen")"#, 15, "never holds", "xn--"),
        (r#"host.contains("x..y")"#, 15, "never holds", "leave out the dot"),
        (r#"host.starts_with("*.example")"#, 18, "never holds", "host.ends_with(\".example\")"),
        (r#"host.starts_with("2001:DB8:")"#, 18, "never holds", "write \"[2001:db8:\""),
        (r#"host.starts_with("a.example:8")"#, 18, "never holds", "local.port"),
        (r#"host.ends_with(":8080")"#, 16, "never holds", "local.port"),
        (r#"host.ends_with(".example.")"#, 16, "never holds", "write \".example\""),
        (r#"tls.sni == "a.example.""#, 12, "never holds", "write \"a.example\""),
        (r#"tls.sni == "*.a.example""#, 12, "never holds", "tls.sni.ends_with(\".a.example\")"),
        (r#"tls.sni in ["[::1]"]"#, 13, "never holds", "as in \"a.example\""),
        (r#"tls.sni.ends_with("é")"#, 19, "never holds", "xn--"),
        (r#"tls.alpn == "h2""#, 1, "never holds", "write \"http/1.1\" or \"http/1.0\""),
        (r#"tls.alpn.starts_with("h2")"#, 1, "never holds", "write \"http/1.1\""),
        (r#"tls.version.ends_with("1.4")"#, 23, "never holds", "write \"TLSv1.2\""),
        (r#"scheme.contains("ws")"#, 17, "never holds", "write \"http\""),
        (r#"method.starts_with("get")"#, 20, "never holds", "write \"GET\""),
        (r#"method == "GET /""#, 11, "never holds", "as in \"GET\""),
        (r#"method in ["x", "Patch"]"#, 17, "method == \"Patch\" never holds", "write \"PATCH\""),
        (r#"host == "%41.test""#, 9, "never holds", "write \"a\" instead of \"%41\""),
        (r#"host == "a%""#, 9, "never holds", "two hexadecimal digits"),
        (r#"host.contains("%0g")"#, 15, "never holds", "two hexadecimal digits"),
        (r#"host.starts_with("a%00")"#, 18, "never holds", "leave it out"),
        (r#"host == "[v1]""#, 9, "never holds", "as in \"a.example\" or \"[2001:db8::1]\""),
        (r#"header("x") == " a""#, 16, "never holds", "write \"a\""),
        (r#"header("x").ends_with("a\t")"#, 23, "never holds", "write \"a\""),
        (r#"xml("a") in ["y", " x"]"#, 19, "xml(\"a\") == \" x\" never holds", "write \"x\""),
        (r#"xml("a/b").starts_with("\n")"#, 24, "never holds", "not blanks"),
        (r#"client.port == 70000"#, 16, "client.port == 70000 never holds", "as in 443"),
        (r#"local.port in [80, 1.5]"#, 20, "local.port == 1.5 never holds", "as in 443"),
        (r#"client.port > 65535"#, 15, "client.port > 65535 never holds", "as in 443"),
        (r#"body.size < 0"#, 13, "body.size < 0 never holds", "as in 1000"),
        (r#"body.size == -1"#, 14, "body.size == -1 never holds", "as in 1000"),
        (r#"body.size <= -0.5"#, 14, "body.size <= -0.5 never holds", "as in 1000"),
    ] {
        let error = error(when);
        assert_eq!((error.line, error.column), (1, column), "{when}: {error}");
        assert!(error.what.contains(what), "{when}: {error}");
        assert!(error.remedy.contains(hint), "{when}: {error}");
    }
}

#[test]
fn error_in_a_rule_with_a_duplicate_name_is_its_own() {
    let rule = |when: &str| RuleSpec { name: "r".into(), when: when.into(), ..RuleSpec::default() };
    let specs = [rule(r#"path == "/a""#), rule(r#"path = "/b""#)];
    let errors = Ruleset::compile(&specs, &Limits::default()).unwrap_err();
    let places: Vec<_> = errors.iter().map(|error| (error.rule.as_str(), error.key)).collect();
    assert_eq!(places, [("#2", "name"), ("#2", "when")]);
}

#[test]
fn length_depth_and_number_of_comparisons_are_bounded() {
    let long = format!("path == \"/{}\"", "x".repeat(5000));
    assert!(error(&long).what.contains("bytes"));
    assert!(error(&("(".repeat(40) + "true" + &")".repeat(40))).what.contains("nested deeper than 32"));
    assert!(error(&("!".repeat(40) + "true")).what.contains("nested deeper than 32"));
    assert!(error(&vec!["host=='a'"; 260].join("||")).what.contains("more than 256 comparisons"));
    let pairs: Vec<String> =
        (0..7).map(|i| format!(r#"(query("a{i}").exists() || query("b{i}").exists())"#)).collect();
    assert!(error(&pairs.join("&&")).what.contains("more than 64 alternatives"));
}

#[test]
fn columns_count_characters() {
    assert_eq!(error(r#"query("é") == "a" && hots == "a""#).column, 22);
}

#[test]
fn whole_language_is_accepted() {
    for when in [
        "",
        " true ",
        r#"method in ["GET", "HEAD",] && !(scheme == "http")"#,
        r#"xml.purchase/totalAmount > 52000 || xml('purchase/@id').exists()"#,
        r#"json("") == -1.5 || json("/a~1b/0") == true"#,
        r#"client.ip in ["10.0.0.0/8", "2001:db8::/32"] && local.ip == "::1""#,
        r#"tls.client_subject.matches(r"CN=\w+") && tls.alpn == "http/1.0" && tls.version == "TLSv1.3""#,
        r#"body.size <= 1000 && form("a").contains("\x00\"\\")"#,
        r#"path == "*" || host in ["[::1]", "a_b.example", "1.2.3.4", ""]"#,
        r#"path in ["/a%2Fb", "/~user/.x/..y/", "/caf%C3%A9", "//a//", "/*/{x}|\"^`<>", "/%252e"]"#,
        r#"path.path_prefix("/") && path.path_prefix("//a/") && path.starts_with("//")"#,
        r#"path.starts_with("/a/..") && path.starts_with("/a%") && path.starts_with("/a%2") && path.ends_with("%2F")"#,
        r#"path.contains("../") || path.contains("2f") || path.contains("/.") || path.ends_with("..")
            || path.contains("%2")"#,
        r#"host.contains(":80") || host.starts_with("[2001:db8:") || host.ends_with("::1]") || host.contains("a.")"#,
        r#"tls.sni.ends_with(".example") || tls.alpn.ends_with("/1.1") || tls.version.contains(".")
            || scheme.ends_with("p")"#,
        r#"method == "get-it" || method.contains("e") || host == "a,b!$&'()*+;=" || host == "[v1.a:b]""#,
        r#"host == "A%2Fb" || host.starts_with("a%2") || host.ends_with("2f") || host.starts_with("[v1.a:")"#,
        r#"method.starts_with("CONNECT") || method == "M-SEARCH" || header("x").contains(" ") || header("x") == """#,
        r#"xml("a/@b") == " x" || xml("a").contains(" x ") || json("/a") == " x" || cookie("a") == " x""#,
        r#"client.port in [0, 65535] && local.port >= 65535 && body.size <= 0 && body.size > 1.5"#,
    ] {
        assert_eq!(errors(rule(when)), [], "{when}");
    }
}

#[test]
fn actions_that_contradict_each_other_are_refused() {
    let base = || rule("");
    let cases: Vec<(RuleSpec, &str)> = vec![
        (RuleSpec { route: Some("p".into()), deny: Some(403.into()), ..base() }, "more than one"),
        (RuleSpec { sticky: Some(evergate_rules::Sticky::Cookie), ..base() }, "sticky without route"),
        (RuleSpec { redirect_status: Some(301), ..base() }, "redirect_status without redirect"),
        (
            RuleSpec { redirect: Some("/x".into()), redirect_status: Some(200), ..base() },
            "redirect_status = 200",
        ),
        (RuleSpec { redirect: Some("/${hots}".into()), ..base() }, "unknown placeholder"),
        (RuleSpec { redirect: Some("https://${path}".into()), ..base() }, "to which site"),
        (RuleSpec { deny: Some(200.into()), ..base() }, "deny = 200"),
        (RuleSpec { route: Some(String::new()), ..base() }, "empty"),
        (RuleSpec { name: String::new(), ..base() }, "name is empty"),
        (RuleSpec { set_request_headers: [("a b".into(), "c".into())].into(), ..base() }, "header name"),
        (
            RuleSpec { set_response_headers: [("a".into(), "c\r\nx: y".into())].into(), ..base() },
            "value of header a",
        ),
        (
            RuleSpec { set_request_headers: [("Content-Length".into(), "0".into())].into(), ..base() },
            "Content-Length",
        ),
        (RuleSpec { remove_request_headers: vec!["Host".into()], ..base() }, "host"),
        (RuleSpec { set_response_headers: fields(&[("Host", "a")]), ..base() }, "host"),
        (
            RuleSpec { set_request_headers: fields(&[("X-Site", "a ${host} b")]), ..base() },
            "variable ${host}",
        ),
        (RuleSpec { set_response_headers: fields(&[("X-Site", "${other}")]), ..base() }, "variable ${other}"),
        (RuleSpec { set_request_headers: fields(&[("Proxy", "a")]), ..base() }, "Proxy"),
        (RuleSpec { set_request_headers: fields(&[("http2-settings", "a")]), ..base() }, "http2-settings"),
        (RuleSpec { set_request_headers: fields(&[("Content_Length", "1")]), ..base() }, "Content_Length"),
        (RuleSpec { set_response_headers: fields(&[("X-A", "1"), ("x-a", "2")]), ..base() }, "header x-a"),
        (RuleSpec { set_request_headers: fields(&[("X-A", "1"), ("X_A", "2")]), ..base() }, "header X_A"),
        (
            RuleSpec {
                rate_limit: Some(RateLimit { requests_per_s: 0, burst: 1, key: RateKey::Source }),
                ..base()
            },
            "rate",
        ),
    ];
    for (spec, what) in cases {
        let found = errors(spec);
        assert!(found.len() == 1 && found[0].what.contains(what), "{what}: {found:?}");
    }
}

fn fields(fields: &[(&str, &str)]) -> std::collections::BTreeMap<String, String> {
    fields.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

#[test]
fn all_wrong_rules_are_reported_at_once_and_names_are_unique() {
    let specs = [rule("hots == 1"), rule("true"), RuleSpec { name: "s".into(), ..rule("path > 1") }];
    let errors = Ruleset::compile(&specs, &Limits::default()).unwrap_err();
    assert_eq!(errors.len(), 3, "{errors:?}");
    assert!(errors.iter().any(|error| error.what.contains("same name")));
}

#[test]
fn unknown_keys_of_a_rule_are_refused() {
    assert!(toml::from_str::<RuleSpec>("name = 'a'\nrout = 'x'").is_err());
    let spec: RuleSpec = toml::from_str(
        "name = 'a'\nroute = 'x'\nsticky = 'source'\nunknown = 'deny'\n\
         rate_limit = { requests_per_s = 5, burst = 10, key = 'global' }",
    )
    .unwrap();
    assert_eq!(spec.rate_limit, Some(RateLimit { requests_per_s: 5, burst: 10, key: RateKey::Global }));
}

#[test]
fn unindexed_and_ineffective_rules_cause_warnings() {
    let specs: Vec<RuleSpec> =
        (0..70).map(|i| RuleSpec { name: format!("r{i}"), ..rule(&format!("path != \"/{i}\"")) }).collect();
    let rules = Ruleset::compile(&specs, &Limits::default()).unwrap();
    assert!(
        rules.warnings()[0].message.contains("70 conditions have nothing to index by"),
        "{:?}",
        rules.warnings()
    );
    let idle = RuleSpec { audit: false, ..rule("") };
    let rules = Ruleset::compile(&[idle], &Limits::default()).unwrap();
    assert!(rules.warnings()[0].to_string().contains("without any effect"));
}

#[test]
fn deny_rule_that_ignores_unknown_causes_a_warning() {
    let warnings = |when: &str, unknown: Unknown| {
        let spec = RuleSpec {
            deny: Some(403.into()),
            unknown,
            name: "r".into(),
            when: when.into(),
            ..RuleSpec::default()
        };
        let rules = Ruleset::compile(&[spec], &Limits::default()).unwrap();
        rules.warnings().iter().map(|warning| warning.message.clone()).collect::<Vec<_>>()
    };
    for when in [r#"query("a") == "1""#, r#"path == "/" && cookie("a") != "1""#, r#"json("/a").exists()"#] {
        let message = &warnings(when, Unknown::NoMatch)[0];
        assert!(message.contains("unknown = \"deny\""), "{when}: {message}");
        assert!(warnings(when, Unknown::Deny).is_empty() && warnings(when, Unknown::Match).is_empty());
    }
    assert!(warnings(r#"header("a") == "1" || path == "/""#, Unknown::NoMatch).is_empty());
}

#[test]
fn unindexed_conditions_cause_a_warning_at_the_limit() {
    let warnings = |count: usize, when: &dyn Fn(usize) -> String| {
        let specs: Vec<RuleSpec> =
            (0..count).map(|n| RuleSpec { name: format!("r{n}"), ..rule(&when(n)) }).collect();
        Ruleset::compile(&specs, &Limits::default()).unwrap().warnings().len()
    };
    for when in [
        &(|n| format!(r#"header("x") != "{n}""#)) as &dyn Fn(usize) -> String,
        &|n| format!(r#"!path.contains("a{n}")"#),
        &|n| format!("body.size > {n}"),
        &|n| format!("client.port > {n}"),
        &|n| format!(r#"tls.sni.exists() && !host.contains("a{n}")"#),
    ] {
        assert_eq!((warnings(63, when), warnings(64, when)), (0, 1), "{}", when(0));
    }
    for when in [
        &(|n| format!(r#"path.contains("a{n}")"#)) as &dyn Fn(usize) -> String,
        &|n| format!(r#"path.matches("a{n}[0-9]")"#),
        &|n| format!(r#"header("n{n}").exists()"#),
    ] {
        assert_eq!(warnings(70, when), 0, "{}", when(0));
    }
    let shared = |n: usize| format!(r#"method == "GET" && header("x") != "{n}""#);
    assert_eq!((warnings(255, &shared), warnings(256, &shared)), (0, 1));
}
