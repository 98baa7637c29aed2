//! The rules of the thesis, as in the example file.

use evergate_rules::{
    Body, Limits, Outcome, Request, RuleId, RuleSpec, Ruleset, Scratch, Sticky, Terminal, Verdict,
};
use serde::Deserialize;

#[derive(Deserialize)]
struct File {
    rules: Vec<RuleSpec>,
}

fn ruleset() -> Ruleset {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/lacs-rules.toml");
    let file: File = toml::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    Ruleset::compile(&file.rules, &Limits::default()).unwrap()
}

fn order(body: Body<'_>, headers: &[(&'static [u8], &'static [u8])]) -> Option<String> {
    let rules = ruleset();
    let request = Request {
        listener: "shop",
        method: b"POST",
        scheme: "https",
        host: b"shop.example",
        path: b"/order",
        query: b"",
        headers,
        client: "192.0.2.1:40000".parse().unwrap(),
        local: "198.51.100.1:443".parse().unwrap(),
        tls: None,
        body,
    };
    match rules.decide(&request, &mut Scratch::new()) {
        Outcome::NeedBody => Some("needs body".into()),
        Outcome::Decided(decision) => decision.rule.map(|id| rules.name(id).to_owned()),
    }
}

const XML: &[(&[u8], &[u8])] = &[(b"Content-Type", b"text/xml; charset=utf-8")];

#[test]
fn each_rule_wins_on_its_witness() {
    let rules = ruleset();
    assert_eq!(rules.pools(), ["server1", "server2", "server3"]);
    let expected = [
        ("server1", Some(Sticky::Cookie)),
        ("server2", Some(Sticky::None)),
        ("server3", Some(Sticky::None)),
        ("server2", Some(Sticky::Source)),
    ];
    for (id, (pool, sticky)) in (0..).map(RuleId).zip(expected) {
        let witness = rules.witness(id).unwrap();
        witness.with(|request| {
            let Outcome::Decided(decision) = rules.decide(request, &mut Scratch::new()) else {
                panic!("{witness}")
            };
            assert_eq!(decision.rule, Some(id), "{witness}");
            let Terminal::Route { pool: found, sticky: kept, .. } = decision.terminal else {
                panic!("{witness}")
            };
            assert_eq!((found, kept), (pool, sticky), "{witness}");
            assert_eq!(rules.explain(request).rules[id.0 as usize].verdict, Verdict::Wins);
        });
    }
}

#[test]
fn example_rules_have_no_findings() {
    let rules = ruleset();
    assert_eq!(rules.check(), []);
    assert_eq!(rules.warnings(), []);
}

#[test]
fn orders_are_distinguished_by_amount_then_by_customer() {
    let decide = |body: &str| order(Body::Complete(body.as_bytes()), XML);
    let purchase = |amount: &str, customer: &str| {
        format!(
            "<purchase><customerName>{customer}</customerName><item><totalAmount>99999</totalAmount></item>\
             <totalAmount>{amount}</totalAmount></purchase>"
        )
    };
    assert_eq!(decide(&purchase("52000.01", "CCL")).as_deref(), Some("R1"));
    assert_eq!(decide(&purchase("52000", "CCL")).as_deref(), Some("R2"));
    assert_eq!(decide(&purchase("52000", "other")), None);
    assert_eq!(decide(&purchase("lots", "other")), None);
}

#[test]
fn body_is_requested_only_when_it_matters() {
    assert_eq!(order(Body::Pending, XML).as_deref(), Some("needs body"));
    assert_eq!(order(Body::Pending, &[(b"content-type", b"image/png")]), None);
}
