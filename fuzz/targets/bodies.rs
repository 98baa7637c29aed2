//! Bodies from a client, read by the rules as JSON, XML and forms: no panic and no unbounded work. A value is found in
//! JSON only if a strict parser accepts the body as well. A body that begins with a decided prefix never changes the
//! decision.

#![no_main]

use std::sync::LazyLock;

use evergate_fuzz::input::split;
use evergate_rules::{Body, Limits, Outcome, Request, RuleSpec, Ruleset, Scratch, Witness};
use libfuzzer_sys::fuzz_target;

const MEDIA: [&str; 6] = [
    "application/json",
    "application/xml",
    "application/x-www-form-urlencoded",
    "multipart/form-data; boundary=b",
    "multipart/form-data; boundary=\"-- x\"",
    "application/vnd.x+json; charset=utf-8",
];

static RULES: LazyLock<Ruleset> = LazyLock::new(|| {
    let conditions = [
        r#"json("/a").exists()"#,
        r#"json("/a") == "b""#,
        r#"json("/a/0/b") > 3"#,
        r#"json("/a/b").contains("x")"#,
        r#"json("/") == "slash""#,
        r#"xml("a/b") == "c""#,
        r#"xml("a").exists()"#,
        r#"xml("a/b/@c").matches("^x+$")"#,
        r#"form("p") == "v""#,
        r#"form("q").exists()"#,
    ];
    let rule = |(n, when): (usize, &&str)| RuleSpec {
        name: format!("r{n}"),
        when: (*when).to_owned(),
        audit: true,
        ..RuleSpec::default()
    };
    let specs: Vec<RuleSpec> = conditions.iter().enumerate().map(rule).collect();
    let limits =
        Limits { body_depth_max: 16, body_value_bytes_max: 64, body_parts_max: 8, ..Limits::default() };
    Ruleset::compile(&specs, &limits).expect("the rules compile")
});

fuzz_target!(|data: &[u8]| {
    let (mut choices, body) = split(data);
    let media = usize::from(choices.byte()) % MEDIA.len();
    let cut = usize::from(choices.byte()).min(body.len());
    let whole = decide(media, Body::Complete(body));
    let prefix = decide(media, Body::Prefix(&body[..cut]));
    decide(media, Body::Pending);
    let json = matches!(media, 0 | 5);
    if json {
        // A byte order mark may be ignored (RFC 8259, section 8.1): the rules ignore it, the strict parser does not.
        let unmarked = body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(body);
        let strict = serde_json::from_slice::<serde_json::Value>(unmarked);
        // A number too large for a double is no error of syntax.
        let valid = match &strict {
            Ok(_) => true,
            Err(error) => error.to_string().contains("number out of range"),
        };
        assert!(
            valid || whole.is_empty(),
            "{whole:?} found in {}: {strict:?}",
            String::from_utf8_lossy(body)
        );
        if valid && !whole.is_empty() {
            assert!(
                prefix.iter().all(|id| whole.contains(id)),
                "{prefix:?} at {cut}, {whole:?} in the whole"
            );
        }
    }
});

/// The rules that match; none while the body is still needed.
fn decide(media: usize, body: Body<'_>) -> Vec<u32> {
    let headers = [(&b"Content-Type"[..], MEDIA[media].as_bytes())];
    Witness::default().with(|request| {
        let request = Request { method: b"POST", headers: &headers, body, ..*request };
        match RULES.decide(&request, &mut Scratch::new()) {
            Outcome::NeedBody => {
                assert!(matches!(body, Body::Pending), "nothing more will come");
                Vec::new()
            }
            Outcome::Decided(decision) => decision.matched.iter().map(|id| id.0).collect(),
        }
    })
}
