//! Prints the cost of one decision for growing rule sets: `cargo run --release -p evergate-rules --example
//! decide_cost`.
//!
//! Rules are mixed: host with path prefix, exact paths, prefixes, headers, cookies, parameters, ranges, substrings,
//! endings and patterns, each with further comparisons. Requests hit rules all over the set, or none.

use std::hint::black_box;
use std::time::Instant;

use evergate_rules::{Body, Limits, Outcome, Request, RuleSpec, Ruleset, Scratch, TlsFacts};

fn spec(i: usize, patterns: usize) -> RuleSpec {
    let when = match i % 10 {
        0 => format!(
            r#"host == "h{}.example" && path.path_prefix("/svc/{i}") && method in ["GET", "POST"]"#,
            i % 997
        ),
        1 => format!(r#"path == "/exact/{i}/index.html""#),
        2 => format!(r#"path.path_prefix("/tree/{}/{i}") && scheme == "https""#, i % 100),
        3 => format!(r#"header("x-tenant") == "t{i}" && path.path_prefix("/tenant")"#),
        4 => format!(r#"cookie("group") == "g{i}" && !(method == "DELETE")"#),
        5 => format!(r#"query("id") == {i} && host.ends_with(".example")"#),
        6 => format!(r#"client.ip in ["10.{}.{}.0/24"] && local.port == 443"#, i / 256 % 256, i % 256),
        7 => format!(r#"path.contains("zbwb_{i}_") && method == "GET""#),
        8 => format!(r#"path.ends_with(".x{i}") || path.starts_with("/old/{i}/")"#),
        // The cost of patterns grows with their number, so a set has at most a few.
        _ if i / 10 < patterns => format!(r#"path.matches("^/v[0-9]+/item{i}(/|$)")"#),
        _ => format!(r#"host in ["s{i}.example", "s{i}.test"] && tls.version == "TLSv1.3""#),
    };
    RuleSpec { name: format!("r{i}"), when, route: Some(format!("pool{}", i % 16)), ..RuleSpec::default() }
}

fn main() {
    println!(
        "{:>8} {:>9} {:>12} {:>12} {:>8} {:>12}",
        "rules", "patterns", "compile ms", "ns/decision", "hits", "check ms"
    );
    for (count, patterns) in [(10, 0), (500, 0), (5_000, 0), (100_000, 0), (5_000, 20), (100_000, 20)] {
        let specs: Vec<RuleSpec> = (0..count).map(|i| spec(i, patterns)).collect();
        let started = Instant::now();
        let ruleset = match Ruleset::compile(&specs, &Limits::default()) {
            Ok(ruleset) => ruleset,
            Err(errors) => return eprintln!("{}", errors[0]),
        };
        let compile_ms = started.elapsed().as_millis();
        ruleset.warnings().iter().for_each(|warning| eprintln!("{warning}"));

        let requests: Vec<[String; 4]> = (0..1000usize)
            .map(|n| {
                let i = n.wrapping_mul(7919) % count;
                let host = format!("h{}.example", i % 997);
                let path = match n % 6 {
                    0 => format!("/svc/{}/list/items", i - i % 10),
                    1 => format!("/exact/{}/index.html", i - i % 10 + 1),
                    2 => format!("/tree/{}/{}/leaf", (i - i % 10 + 2) % 100, i - i % 10 + 2),
                    3 => "/tenant/home".into(),
                    4 => format!("/static/img/a_zbwb_{}_b.gif", i - i % 10 + 7),
                    _ => "/nothing/to/see/here.html".into(),
                };
                let host = if n % 6 == 0 { format!("h{}.example", (i - i % 10) % 997) } else { host };
                let tenant = if n % 6 == 3 { format!("t{}", i - i % 10 + 3) } else { "none".into() };
                [host, path, tenant, format!("id=x{n}&page=2")]
            })
            .collect();
        let mut scratch = Scratch::new();
        let mut best_ns = f64::MAX;
        let mut hits = 0;
        for _ in 0..20 {
            hits = 0;
            let started = Instant::now();
            for [host, path, tenant, query] in &requests {
                let headers: [(&[u8], &[u8]); 10] = [
                    (b"Host", host.as_bytes()),
                    (
                        b"User-Agent",
                        b"Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0",
                    ),
                    (b"Accept", b"text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"),
                    (b"Accept-Language", b"en-GB,en;q=0.7"),
                    (b"Accept-Encoding", b"gzip, deflate, br"),
                    (b"Cookie", b"session=0123456789abcdef; theme=dark; group=none"),
                    (b"Referer", b"https://www.example/start"),
                    (b"X-Tenant", tenant.as_bytes()),
                    (b"Connection", b"keep-alive"),
                    (b"Cache-Control", b"no-cache"),
                ];
                let request = Request {
                    listener: "edge",
                    method: b"GET",
                    scheme: "https",
                    host: host.as_bytes(),
                    path: path.as_bytes(),
                    query: query.as_bytes(),
                    headers: &headers,
                    client: ([192, 0, 2, 7], 40000).into(),
                    local: ([198, 51, 100, 1], 443).into(),
                    tls: Some(TlsFacts { sni: Some(host), version: "TLSv1.3", ..TlsFacts::default() }),
                    body: Body::Complete(b""),
                };
                if let Outcome::Decided(decision) = ruleset.decide(black_box(&request), &mut scratch) {
                    hits += usize::from(decision.rule.is_some());
                }
            }
            best_ns = best_ns.min(started.elapsed().as_nanos() as f64 / requests.len() as f64);
        }
        let started = Instant::now();
        let findings = ruleset.check().len();
        let check_ms = started.elapsed().as_millis();
        println!(
            "{count:>8} {patterns:>9} {compile_ms:>12} {best_ns:>12.0} {hits:>8} {check_ms:>12} ({findings} findings)"
        );
    }
}
