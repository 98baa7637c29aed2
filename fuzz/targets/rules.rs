//! Any text is a condition or an error with a place, within the limits. A compiled rule matches the same requests alone
//! and among others. A request that the checker constructs for a rule satisfies it.
//!
//! Input: conditions (a line each), path, query, host, header lines and body, separated by NUL.

#![no_main]

use evergate_fuzz::input::split;
use evergate_rules::{
    Body, Limits, Outcome, Request, RuleSpec, Ruleset, Scratch, Terminal, Unknown, Witness,
};
use libfuzzer_sys::fuzz_target;

const RULES_MAX: usize = 6;

fuzz_target!(|data: &[u8]| {
    let (mut choices, text) = split(data);
    let flags = choices.byte();
    let mut parts = text.split(|byte| *byte == 0);
    let mut part = || parts.next().unwrap_or_default();
    let Ok(conditions) = std::str::from_utf8(part()) else { return };
    let specs: Vec<RuleSpec> =
        conditions.lines().take(RULES_MAX).enumerate().map(|(n, when)| spec(n, when, flags)).collect();
    let limits = Limits {
        condition_bytes_max: 512,
        regex_bytes_max: 1 << 14,
        depth_max: if flags & 1 == 0 { 32 } else { 3 },
        atoms_max: if flags & 2 == 0 { 64 } else { 4 },
        conjuncts_max: if flags & 4 == 0 { 32 } else { 3 },
        ..Limits::default()
    };
    let rules = match Ruleset::compile(&specs, &limits) {
        Ok(rules) => rules,
        Err(errors) => {
            assert!(!errors.is_empty());
            for error in errors {
                assert!(!error.what.is_empty() && !error.to_string().is_empty(), "{error:?}");
                assert!((error.line > 0) == (error.column > 0), "{error:?}");
                let lines =
                    specs.iter().find(|spec| spec.name == error.rule).map(|spec| spec.when.lines().count());
                assert!(error.line as usize <= lines.unwrap_or(0) + 1, "{error:?}");
            }
            return;
        }
    };
    let alone: Vec<Ruleset> = specs
        .iter()
        .map(|spec| Ruleset::compile(std::slice::from_ref(spec), &limits).expect("it compiled among others"))
        .collect();
    for (id, single) in rules.precedence().zip(&alone) {
        if let Some(witness) = rules.witness(id) {
            witness.with(|request| {
                assert!(!matched(single, request).0.is_empty(), "{witness} misses {}", rules.name(id))
            });
        }
    }
    let (path, query, host) = (part(), part(), part());
    let headers: Vec<(&[u8], &[u8])> =
        part().split(|byte| *byte == b'\n').take(16).filter_map(header).collect();
    let body = part();
    let base = Witness::default();
    base.with(|request| {
        let request =
            Request { path, query, host, headers: &headers, body: Body::Complete(body), ..*request };
        same_alone(&rules, &alone, &request);
        for body in [Body::Pending, Body::Prefix(body), Body::Complete(b"")] {
            let request = Request { body, ..request };
            let _ = rules.decide(&request, &mut Scratch::new());
            let _ = rules.explain(&request).to_string();
        }
    });
    for finding in rules.check() {
        assert!(!finding.to_string().is_empty());
    }
});

fn spec(n: usize, when: &str, flags: u8) -> RuleSpec {
    RuleSpec {
        name: format!("r{n}"),
        when: when.to_owned(),
        route: (n % 2 == 1).then(|| format!("p{n}")),
        audit: n.is_multiple_of(2),
        unknown: [Unknown::NoMatch, Unknown::Match, Unknown::Deny][(usize::from(flags >> 4) + n) % 3],
        ..RuleSpec::default()
    }
}

fn header(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let colon = line.iter().position(|byte| *byte == b':')?;
    Some((&line[..colon], line[colon + 1..].trim_ascii()))
}

/// Names of the rules that match, and whether the search ended.
fn matched(rules: &Ruleset, request: &Request<'_>) -> (Vec<String>, bool) {
    match rules.decide(request, &mut Scratch::new()) {
        Outcome::NeedBody => panic!("the whole body is there"),
        Outcome::Decided(decision) => {
            let names = decision.matched.iter().map(|id| rules.name(*id).to_owned()).collect();
            (names, decision.terminal != Terminal::None)
        }
    }
}

fn same_alone(rules: &Ruleset, alone: &[Ruleset], request: &Request<'_>) {
    let mut expected = Vec::new();
    for single in alone {
        let (names, ended) = matched(single, request);
        expected.extend(names);
        if ended {
            break;
        }
    }
    assert_eq!(matched(rules, request).0, expected, "rules match otherwise among others: {request:?}");
    let mut scratch = Scratch::new();
    for _ in 0..2 {
        let Outcome::Decided(decision) = rules.decide(request, &mut scratch) else { panic!("undecided") };
        assert_eq!(decision.matched.len(), expected.len(), "a scratch used before decides otherwise");
    }
}
