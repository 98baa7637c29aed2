//! Commands without a running node: `check`, `explain`, `version`, and wrong command lines.

#![allow(missing_docs)]

mod certificates;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

#[derive(Debug)]
struct Output {
    code: Option<i32>,
    out: String,
    err: String,
}

fn evergate(args: &[&str]) -> Output {
    let output = Command::new(env!("CARGO_BIN_EXE_evergate")).args(args).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Output { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

/// [`evergate`] with this text on standard input.
fn evergate_reading(args: &[&str], input: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_evergate"));
    let piped = command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = piped.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Output { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

/// Folder of one test, removed at its end.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("evergate-cli-{}-{test}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Folder(path)
    }

    fn write(&self, name: &str, text: &str) -> String {
        let path = self.0.join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

const BASE: &str = r#"
[[listeners]]
name = "public"
address = ":8443"
protocol = "https"
pool = "site"
limits = { body_bytes_max = 1000, body_prefix_bytes = 100 }
[[listeners]]
name = "plain"
address = ":8080"
protocol = "http"
redirect_to_https = true
[[listeners]]
name = "bare"
address = ":8081"
protocol = "http"
[[certificates]]
name = "local"
self_signed = ["localhost"]
[[pools]]
name = "site"
sticky = "source"
servers = [{ name = "one", address = "192.0.2.1:80" }]
[[pools]]
name = "api"
sticky_cookie = "AT"
servers = [{ address = "192.0.2.2:80" }]
"#;

const RULES: &str = r#"
[[rules]]
name = "large"
when = 'json("/total") > 100'
route = "api"
class = "gold"
[[rules]]
name = "api"
when = 'path.path_prefix("/api") && header("x-key") == "k"'
route = "api"
sticky = "cookie"
set_request_headers = { X-By = "evergate" }
remove_response_headers = ["Server"]
rate_limit = { requests_per_s = 5, burst = 9 }
[[rules]]
name = "old"
when = 'path.path_prefix("/old")'
redirect = "https://${host}/new"
redirect_status = 301
"#;

fn example(name: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    root.join(name).to_str().unwrap().to_owned()
}

#[test]
fn check_and_explain_read_standard_input() {
    let config = format!("{BASE}{RULES}");
    let output = evergate_reading(&["check", "-"], &config);
    assert!(output.code == Some(0) && output.out.contains("<stdin> "), "{output:?}");
    let output = evergate_reading(&["check", "-"], "nonsense");
    assert!(output.code == Some(2) && output.out.contains("error: <stdin>:1:"), "{output:?}");
    let request = ["explain", "-", "--request", "https://a.example/old"];
    let output = evergate_reading(&request, &config);
    assert!(output.code == Some(0) && output.out.contains("https://a.example/new"), "{output:?}");
}

#[test]
fn check_bounds_what_it_prints() {
    let folder = Folder::new("bounds");
    let duplicates = folder.write("duplicates.toml", &"a = 1\n".repeat(200_001));
    let output = evergate(&["check", &duplicates]);
    assert!(output.code == Some(2) && output.out.len() < 50_000, "{} bytes", output.out.len());
    assert!(output.out.contains("and 199,950 more problems"), "{}", output.out);
    let output = evergate(&["check", "--json", &duplicates]);
    assert!(output.code == Some(2) && output.out.len() < 50_000, "{} bytes", output.out.len());
    let json: serde_json::Value = serde_json::from_str(&output.out).unwrap();
    assert_eq!(json["problems"].as_array().unwrap().len(), 51);
    assert_eq!(json["problems"][50]["what"], "and 199,950 more problems");
    // Findings of rules have the same bound.
    let rule = |number: usize| {
        format!("[[rules]]\nname = \"r{number}\"\nwhen = 'path == \"/a\"'\nroute = \"api\"\n")
    };
    let rules: String = (0..200).map(rule).collect();
    let hidden = folder.write("hidden.toml", &format!("{BASE}{rules}"));
    let output = evergate(&["check", &hidden]);
    assert!(output.out.contains("and 149 more findings of the rules"), "{}", output.out);
    let json: serde_json::Value = serde_json::from_str(&evergate(&["check", "--json", &hidden]).out).unwrap();
    assert_eq!((json["rules"].as_array().unwrap().len(), json["rules_more"].as_u64()), (50, Some(149)));
}

#[test]
fn check_accepts_the_examples() {
    for name in ["minimal.toml", "content-switch.toml", "tcp.toml", "tls-terminators.toml", "lacs-rules.toml"]
    {
        let output = evergate(&["check", &example(name)]);
        assert_eq!(output.code, Some(0), "{name}: {}{}", output.out, output.err);
    }
}

#[test]
fn check_reports_every_problem_and_exits_with_2() {
    let folder = Folder::new("problems");
    let path = folder.write("bad.toml", &BASE.replace(":8080", "8080").replace("192.0.2.2:80", "192.0.2.2"));
    let output = evergate(&["check", &path]);
    assert_eq!(output.code, Some(2));
    assert!(
        output.out.contains("listeners[1].address") && output.out.contains("pools[1].servers[0].address")
    );
    assert!(output.out.contains("remedy:"));
    let json = evergate(&["check", "--json", &path]);
    assert_eq!(json.code, Some(2));
    let report: serde_json::Value = serde_json::from_str(&json.out).unwrap();
    let problems = report["problems"].as_array().unwrap();
    let errors = problems.iter().filter(|problem| problem["severity"] == "error").count();
    assert_eq!((&report["ok"], errors), (&false.into(), 2));
    let missing = evergate(&["check", "/nonexistent/evergate.toml"]);
    assert!(missing.code == Some(2) && missing.out.contains("cannot be read"));
}

#[test]
fn unresolvable_names_are_failures_but_not_problems() {
    let folder = Folder::new("names");
    let base = BASE.replace("192.0.2.2:80", "nowhere.invalid:80");
    let unknown = folder.write("unknown.toml", &base);
    let wrong = folder.write("wrong.toml", &base.replace(":8080", "8080"));
    for (path, code) in [(&unknown, 1), (&wrong, 2)] {
        for command in ["check", "run"] {
            let output = evergate(&[command, path]);
            assert_eq!(output.code, Some(code), "{command}: {output:?}");
            assert!(format!("{}{}", output.out, output.err).contains("`nowhere.invalid` does not resolve"));
        }
    }
}

#[test]
fn valid_file_that_cannot_start_here_has_its_own_exit_code() {
    let folder = Folder::new("unstartable");
    folder.write("notes", "not a process id");
    std::fs::create_dir(folder.0.join("folder")).unwrap();
    for more in [
        "[logs]\naccess = \"none/access.json\"\n",
        "[logs]\naccess = \"folder\"\n",
        "[node]\npid_file = \"notes\"\n",
        "[node]\nuser = \"nobody-of-that-name\"\n",
    ] {
        let path = folder.write("evergate.toml", &format!("{BASE}{more}"));
        let output = evergate(&["check", &path]);
        assert_eq!(output.code, Some(3), "{more}{}", output.out);
        assert!(output.out.lines().last().unwrap().contains("no node starts with it on this machine"));
        let json = evergate(&["check", "--json", &path]);
        let report: serde_json::Value = serde_json::from_str(&json.out).unwrap();
        assert_eq!((json.code, &report["ok"]), (Some(3), &false.into()));
        assert!(report["problems"].as_array().unwrap().iter().all(|p| p["severity"] == "warning"));
    }
    let output = evergate(&["check", "--help"]);
    assert!(output.out.contains("3 it can be used, but no node starts"), "{}", output.out);
}

#[test]
fn check_shows_rules_that_cannot_be_meant_with_a_witness() {
    let folder = Folder::new("rules");
    let shadow = "[[rules]]\nname = \"first\"\nwhen = 'path.starts_with(\"/a\")'\ndeny = 403\n\
        [[rules]]\nname = \"hidden\"\nwhen = 'path.starts_with(\"/ab\")'\nroute = \"api\"\n";
    let path = folder.write("shadow.toml", &format!("{BASE}{shadow}"));
    let output = evergate(&["check", &path]);
    assert_eq!(output.code, Some(0), "{}", output.out);
    let lines = format!("{BASE}{shadow}");
    let line = lines.lines().position(|line| line.contains("/ab")).unwrap() + 1;
    let head = format!("warning: {path}:{line}:8: rules[1].when = 'path.starts_with(\"/ab\")'\n");
    for part in [
        head.as_str(),
        "problem:     rule \"hidden\": unreachable",
        "consequence: it never decides",
        "remedy:      give it a higher `priority`",
        "witness:     GET https://host.example/ab",
    ] {
        assert!(output.out.contains(part), "{part}: {}", output.out);
    }
    let conflict = shadow.replace("\"/ab\"", "\"/a\"");
    let path = folder.write("conflict.toml", &format!("{BASE}{conflict}"));
    let output = evergate(&["check", "--json", &path]);
    let report: serde_json::Value = serde_json::from_str(&output.out).unwrap();
    let found = &report["rules"][0];
    assert_eq!((output.code, &found["kind"], &found["line"]), (Some(2), &"conflict".into(), &line.into()));
    assert_eq!((&found["key"], &found["rule"]), (&"rules[1].when".into(), &"hidden".into()));
    let never = shadow.replace("path.starts_with(\"/ab\")", "path == \"/a\" && path == \"/b\"");
    let output = evergate(&["check", &folder.write("never.toml", &format!("{BASE}{never}"))]);
    assert_eq!(output.code, Some(2));
    let reported = "problem:     rule \"hidden\": the condition never holds\n  \
                    consequence: it never decides anything\n  \
                    remedy:      correct or remove it\n";
    assert!(output.out.contains(reported), "{}", output.out);
    assert!(output.out.contains("never.toml has rules that cannot be meant ("), "{}", output.out);
}

#[test]
fn check_finds_a_key_of_another_certificate() {
    let folder = Folder::new("mismatch");
    let pair = |name: &str| evergate_crypto::self_signed(&[name.to_owned()]).unwrap();
    folder.write("cert.pem", &pair("a.example").0);
    folder.write("key.pem", &pair("b.example").1);
    let text = BASE.replace("self_signed = [\"localhost\"]", "chain = \"cert.pem\"\nkey = \"key.pem\"");
    let output = evergate(&["check", &folder.write("evergate.toml", &text)]);
    assert_eq!(output.code, Some(2));
    assert!(output.out.contains("does not belong to certificate"), "{}", output.out);
}

fn explained(folder: &Folder, request: &str, more: &[&str]) -> serde_json::Value {
    let path = folder.write("evergate.toml", &format!("{BASE}{RULES}"));
    let mut args = vec!["explain", path.as_str(), "--json", "--request", request];
    args.extend(more);
    let output = evergate(&args);
    assert_eq!(output.code, Some(0), "{request}: {}", output.err);
    serde_json::from_str(&output.out).unwrap()
}

#[test]
fn explain_shows_the_pool_and_the_changes_of_a_request() {
    let folder = Folder::new("route");
    let answer = explained(&folder, "GET https://X.example/a/../api/%7ev?q=1", &["-H", "X-Key: k"]);
    assert_eq!((&answer["rule"], &answer["pool"]), (&"api".into(), &"api".into()));
    assert_eq!((&answer["path"], &answer["host"]), (&"/api/~v".into(), &"x.example".into()));
    assert_eq!((&answer["path_sent"], &answer["query"]), (&"/a/../api/%7ev".into(), &"q=1".into()));
    assert_eq!((&answer["sticky"], &answer["listener"]), (&"by the cookie AT".into(), &"public".into()));
    assert_eq!(answer["request_headers"], serde_json::json!(["set x-by: evergate"]));
    assert_eq!(answer["response_headers"], serde_json::json!(["remove server"]));
    assert!(answer["rate_limits"][0].as_str().unwrap().starts_with("5 requests/s"));
    assert_eq!(answer["rules"][1]["verdict"], "wins");

    let answer = explained(&folder, "/elsewhere", &["-H", "X-Key: k"]);
    assert_eq!((&answer["rule"], &answer["pool"]), (&serde_json::Value::Null, &"site".into()));
    assert_eq!(answer["sticky"], "by the client's address");
    assert_eq!(answer["rules"][1]["failed"][0]["value"], "\"/elsewhere\"");

    let answer = explained(&folder, "https://x.example/old/page", &[]);
    assert_eq!((&answer["status"], &answer["location"]), (&301.into(), &"https://x.example/new".into()));
}

#[test]
fn redirect_of_an_example_leads_to_one_of_its_listeners() {
    let ask = |request: &str| -> serde_json::Value {
        let output = evergate(&["explain", &example("content-switch.toml"), "--json", "--request", request]);
        serde_json::from_str(&output.out).unwrap()
    };
    let answer = ask("https://example.com:8443/old/page");
    let next = ask(answer["location"].as_str().unwrap());
    assert_eq!(
        (&next["note"], &next["pool"]),
        (&serde_json::Value::Null, &"static".into()),
        "{answer} {next}"
    );
}

const TLS: &str = r#"
[[listeners]]
name = "internal"
address = ":8443"
protocol = "https"
[[listeners]]
name = "public"
address = ":443"
protocol = "https"
tls = "old"
[[certificates]]
name = "site"
self_signed = ["localhost"]
[tls.old]
max_version = "1.2"
alpn = []
[[rules]]
name = "named"
when = 'tls.sni == "a.example" && tls.version == "TLSv1.2"'
deny = 401
[[rules]]
name = "alpn"
when = 'tls.alpn == "http/1.1"'
deny = 402
[[rules]]
name = "address"
when = 'tls.sni == "192.0.2.7"'
deny = 403
"#;

#[test]
fn explain_chooses_listener_and_handshake_by_the_url() {
    let folder = Folder::new("handshake");
    let path = folder.write("evergate.toml", TLS);
    let run = |request: &str, more: &[&str]| {
        evergate(&[&["explain", path.as_str(), "--json", "--request", request][..], more].concat())
    };
    for (request, more, listener, status) in [
        ("https://a.example/", &[][..], "public", 401),
        ("https://b.example/", &["--sni", "a.example"], "public", 401),
        ("https://a.example/", &["--sni", ""], "public", 404),
        ("https://192.0.2.7/", &[], "public", 404),
        ("https://[2001:db8::1]/", &[], "public", 404),
        ("https://a.example:8443/", &[], "internal", 402),
        ("https://a.example:8443/", &["--tls-version", "1.2"], "internal", 401),
    ] {
        let output = run(request, more);
        assert_eq!(output.code, Some(0), "{request} {more:?}: {}", output.err);
        let answer: serde_json::Value = serde_json::from_str(&output.out).unwrap();
        let seen = (answer["listener"].as_str().unwrap(), answer["status"].as_u64().unwrap());
        assert_eq!(seen, (listener, status), "{request} {more:?}");
        assert!(answer["note"].is_null());
    }
    let output = run("https://a.example/", &["--tls-version", "1.3"]);
    assert!(output.code == Some(2) && output.err.contains("does not take TLSv1.3"), "{}", output.err);
}

#[test]
fn explain_reads_addresses_and_certificate_from_options() {
    let folder = Folder::new("ends");
    let explain = |file: &str, request: &str, more: &[&str]| {
        evergate(&[&["explain", file, "--json", "--request", request][..], more].concat())
    };
    let rule = |file: &str, request: &str, more: &[&str]| {
        let output = explain(file, request, more);
        assert_eq!(output.code, Some(0), "{request} {more:?}: {}", output.err);
        let answer: serde_json::Value = serde_json::from_str(&output.out).unwrap();
        answer["rule"].as_str().map(str::to_owned)
    };
    // Each rule of the thesis, with a request that only this rule matches.
    let lacs = example("lacs-rules.toml");
    let xml = ["-H", "Content-Type: text/xml", "--body"];
    let order = |more: &str| format!("<purchase>{more}</purchase>");
    let large = order("<totalAmount>52001</totalAmount>");
    let known = order("<customerName>CCL</customerName>");
    let ends = ["--client", "128.198.60.1", "--local", "128.198.192.192"];
    let moved = ["--client", "128.198.60.1:7", "--local", "128.198.192.192:81"];
    let v6 = ["--client", "[2001:db8::1]:7", "--local", "2001:db8::2"];
    for (request, more, expected) in [
        ("POST https://shop/", &[&xml[..], &[large.as_str()]].concat()[..], Some("R1")),
        ("POST https://shop/", &[&xml[..], &[known.as_str()]].concat(), Some("R2")),
        ("https://shop/logo.gif", &[], Some("R3")),
        ("http://shop/", &ends, Some("R4")),
        ("http://shop/", &moved, None),
        ("http://shop/", &v6, None),
        ("http://shop/", &[], None),
    ] {
        assert_eq!(rule(&lacs, request, more).as_deref(), expected, "{request} {more:?}");
    }
    let wrong = explain(&lacs, "http://shop/", &["--local", "here"]);
    assert!(wrong.code == Some(2) && wrong.err.contains("192.0.2.1:443"), "{}", wrong.err);
    let unasked = explain(&lacs, "https://shop/", &["--client-subject", "CN=alice"]);
    assert!(unasked.code == Some(2) && unasked.err.contains("asks for no certificates"), "{}", unasked.err);

    let path = certificates::asking_for_alice(&folder);
    let alice = rule(&path, "https://x.example/", &["--client-subject", "CN=alice"]);
    assert_eq!(alice.as_deref(), Some("alice"));
    assert_eq!(rule(&path, "https://x.example/", &["--client-subject", "CN=bob"]), None);
    let none = explain(&path, "https://x.example/", &[]);
    assert!(none.code == Some(2) && none.err.contains("requires a certificate"), "{}", none.err);
}

#[test]
fn explain_names_its_listener_when_the_url_matches_none() {
    let folder = Folder::new("note");
    let note = |request: &str| explained(&folder, request, &[])["note"].clone();
    let text = note("https://x/").as_str().unwrap().to_owned();
    assert!(
        text.contains("no https listener has port 443") && text.contains("listener \"public\" on :8443"),
        "{text}"
    );
    assert_eq!(note("https://x:8443/"), serde_json::Value::Null);
    assert_eq!(note("/"), serde_json::Value::Null);
}

#[test]
fn explain_names_the_policy_of_the_pool() {
    let folder = Folder::new("policy");
    let base = BASE.replace("sticky = \"source\"", "policy = \"sslsard\"");
    assert_ne!(base, BASE);
    let path = folder.write("evergate.toml", &base);
    let output = evergate(&["explain", &path, "--json", "--request", "/elsewhere"]);
    let answer: serde_json::Value = serde_json::from_str(&output.out).unwrap();
    assert_eq!((&answer["pool"], &answer["policy"]), (&"site".into(), &"sslsard".into()));
    assert_eq!(answer["sticky"], "by the client's address: only a relayed handshake offers sessions");
    let text = evergate(&["explain", &path, "--request", "/elsewhere"]).out;
    assert!(text.contains("policy:           sslsard\n"), "{text}");
}

#[test]
fn explain_follows_the_data_path_in_what_it_refuses() {
    let folder = Folder::new("refused");
    let status = |request: &str, more: &[&str]| {
        let answer = explained(&folder, request, more);
        (answer["status"].as_u64(), answer["outcome"].as_str().unwrap().to_owned())
    };
    let (code, outcome) = status("GET https://x/%00", &[]);
    assert!(code == Some(400) && outcome.contains("path_nul"), "{outcome}");
    let (code, outcome) = status("GET https://x/", &["-H", "Content-Length: 1", "-H", "Content-Length: 2"]);
    assert!(code == Some(400), "{outcome}");
    assert_eq!(status("POST https://x/", &["--body", &"x".repeat(1001)]).0, Some(413));
    assert_eq!(status("GET http://x:8080/api", &[]).0, Some(308));
    assert_eq!(status("GET http://x:8081/", &[]).0, Some(404));
    assert_eq!(status("GET https://x/", &["--listener", "bare"]).0, Some(404));
}

#[test]
fn explain_reads_bodies_as_far_as_the_listener_does() {
    let folder = Folder::new("body");
    let json = ["-H", "Content-Type: application/json", "--body"];
    let with = |body: &str| explained(&folder, "POST https://x/", &[&json[..], &[body]].concat());
    let answer = with("{\"total\": 101}");
    assert_eq!((&answer["rule"], &answer["class"]), (&"large".into(), &"gold".into()));
    assert_eq!(with("{\"total\": 99}")["rule"], serde_json::Value::Null);
    let long = format!("{{\"pad\": \"{}\", \"total\": 101}}", "x".repeat(100));
    let answer = with(&long);
    assert_eq!(
        (&answer["rule"], &answer["rules"][0]["verdict"]),
        (&serde_json::Value::Null, &"undecidable".into())
    );
    let announced = explained(
        &folder,
        "POST https://x/",
        &["-H", "Content-Type: application/json", "-H", "Content-Length: 9"],
    );
    assert!(announced["outcome"].as_str().unwrap().contains("--body") && announced["pool"].is_null());
    let file = format!("@{}", folder.write("body.json", "{\"total\": 5000}"));
    assert_eq!(with(&file)["rule"], "large");
}

#[test]
fn explain_as_text_names_the_matching_rule_and_reasons() {
    let folder = Folder::new("text");
    let path = folder.write("evergate.toml", &format!("{BASE}{RULES}"));
    let output = evergate(&["explain", &path, "--request", "GET https://x/api", "-H", "x-key: other"]);
    assert_eq!(output.code, Some(0));
    assert!(
        output.out.contains("sent to pool \"site\" by the default of listener \"public\""),
        "{}",
        output.out
    );
    assert!(output.out.contains("api: does not match"), "{}", output.out);
    assert!(output.out.contains("meets \"other\""), "{}", output.out);
}

#[test]
fn wrong_command_lines_exit_with_2() {
    let folder = Folder::new("usage");
    let path = folder.write("evergate.toml", BASE);
    for args in [
        &["run"][..],
        &["run", "--listen", ":8443"],
        &["run", &path, "--listen", ":8443", "--to", "127.0.0.1:1"],
        &["run", "--listen", "8443", "--to", "127.0.0.1:1"],
        &["run", "/nonexistent/evergate.toml"],
        &["frobnicate"],
        &["explain", &path, "--request", "ftp://x/"],
        &["explain", &path, "--request", "/", "--listener", "nobody"],
        &["explain", &path, "--request", "/", "-H", "no colon"],
        &["explain", &path, "--request", "/", "--client", "localhost"],
        &["servers", "drain"],
    ] {
        let output = evergate(args);
        assert!(
            output.code == Some(2) && !output.err.is_empty(),
            "{args:?}: {:?} {}",
            output.code,
            output.err
        );
    }
}

#[test]
fn version_is_printed_as_text_and_as_json() {
    let version = env!("CARGO_PKG_VERSION");
    let text = evergate(&["version"]).out;
    assert!(
        text.starts_with(&format!("evergate {version} (replication frames ")) && text.lines().count() == 1,
        "{text}"
    );
    let json: serde_json::Value = serde_json::from_str(&evergate(&["version", "--json"]).out).unwrap();
    assert_eq!(json["version"], version);
    assert!(json["forms"]["heartbeats"].is_u64(), "{json}");
}

#[test]
fn write_error_fails_a_command_and_a_closed_pipe_does_not() {
    let folder = Folder::new("output");
    let config = folder.write("good.toml", BASE);
    let run = |args: &[&str], stdout: std::process::Stdio| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_evergate"));
        let output = command.args(args).stdout(stdout).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    for args in [&["cluster", "key"][..], &["check", &config], &["version", "--json"]] {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let (code, err) = run(args, full.into());
        assert_eq!(code, Some(1), "{args:?}");
        assert!(err.contains("cannot write to standard output: No space left"), "{args:?}: {err}");
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        assert_eq!(run(args, writer.into()), (Some(0), String::new()), "{args:?}");
    }
}

#[test]
fn incomplete_run_command_names_the_missing_parts() {
    for (args, missing) in [
        (&["run"][..], "name a file, or use --listen and --to"),
        (&["run", "--to", "127.0.0.1:1"], "add it, such as --listen :8443"),
        (&["run", "--cert", "c", "--key", "k"], "add it, such as --listen :8443"),
        (&["run", "--listen", ":8443"], "add --to, such as"),
    ] {
        let output = evergate(args);
        assert_eq!(output.code, Some(2), "{output:?}");
        let forms =
            ["evergate run [OPTIONS] <FILE>\n", "evergate run [OPTIONS] --listen <ADDRESS> --to <ADDRESS>"];
        for part in forms.into_iter().chain([missing]) {
            assert!(output.err.contains(part), "{args:?}: {part}: {}", output.err);
        }
    }
}
