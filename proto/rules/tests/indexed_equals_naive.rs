//! `decide` equals trying the rules one by one, for random rules and requests, bodies included.
//!
//! The reference shares nothing with the crate. It evaluates the generated tree (not the parsed, normalised one) and
//! takes values from the generated request (not from bytes).

use std::net::{IpAddr, SocketAddr};

use evergate_rules::{
    Body, Deny, FindingKind, Limits, Outcome, Request, RuleSpec, Ruleset, Scratch, Severity, Terminal,
    TlsFacts, Unknown,
};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Expr {
    Constant(bool),
    Atom(Field, Test),
    Not(Box<Expr>),
    And(Vec<Expr>),
    Or(Vec<Expr>),
}

#[derive(Clone, Debug, PartialEq)]
enum Field {
    Method,
    Host,
    Path,
    Sni,
    ClientIp,
    ClientPort,
    Query(&'static str),
    Header(&'static str),
    Cookie(&'static str),
    Form(&'static str),
    Json(&'static str),
    Xml(&'static str),
    BodySize,
}

#[derive(Clone, Debug)]
enum Test {
    Equal(&'static str),
    NotEqual(&'static str),
    In(Vec<&'static str>),
    Starts(&'static str),
    Ends(&'static str),
    Contains(&'static str),
    Matches(&'static str),
    Prefix(&'static str),
    Exists,
    Number(&'static str, i32),
}

#[derive(Clone, Debug)]
enum Sent {
    Nothing,
    /// Text of the body, its type, whether it can be read.
    Json(Vec<(&'static str, &'static str)>),
    Xml(Vec<(&'static str, &'static str)>),
    Form(Vec<(&'static str, &'static str)>),
    Other,
    Broken,
    Compressed,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Read {
    Pending,
    /// Cut off right before its end.
    Prefix,
    Complete,
}

#[derive(Clone, Debug)]
struct Sample {
    listener: &'static str,
    method: &'static str,
    host: &'static str,
    path: &'static str,
    sni: Option<&'static str>,
    client: SocketAddr,
    query: Vec<(&'static str, &'static str)>,
    headers: Vec<(&'static str, &'static str)>,
    cookies: Vec<(&'static str, &'static str)>,
    /// Whether servers read the query, and the cookies, in several ways.
    unclear: (bool, bool),
    sent: Sent,
    read: Read,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Truth {
    False,
    True,
    Unknown,
    Pending,
}

const HOSTS: [&str; 4] = ["a.example", "b.example", "c.test", "localhost"];
const PATHS: [&str; 12] = [
    "/",
    "/api",
    "/api/",
    "/api/v1",
    "/apix",
    "/api/v1/x.gif",
    "/a/b/c",
    "/a/b",
    "/img/logo.gif",
    "/zbwb_20/x",
    "*",
    "/a//b",
];
const VALUES: [&str; 12] = ["1", "2", "10", "x", "xy", "", "1.0", "a b", "10.", ".5e1", "9e400", LONG];
/// Ten, in more digits than a number needs.
const LONG: &str = "0000000000000000000000000000000000000000000000000000000000000000000010.0";
const NAMES: [&str; 3] = ["p", "q", "x-r"];
const NETS: [&str; 5] = ["10.0.0.0/8", "10.1.0.0/16", "10.1.2.3", "2001:db8::/32", "0.0.0.0/0"];
const ADDRESSES: [&str; 5] = ["10.1.2.3", "10.9.9.9", "192.0.2.1", "2001:db8::1", "::ffff:10.1.2.3"];
const METHODS: [&str; 3] = ["GET", "POST", "PUT"];

fn pick<T: Clone + std::fmt::Debug + 'static>(items: &[T]) -> impl Strategy<Value = T> + Clone + use<T> {
    prop::sample::select(items.to_vec())
}

fn text_test(words: &'static [&'static str]) -> BoxedStrategy<Test> {
    let part = pick(words).prop_filter("methods need text", |word| !word.is_empty());
    prop_oneof![
        4 => pick(words).prop_map(Test::Equal),
        1 => pick(words).prop_map(Test::NotEqual),
        2 => prop::collection::vec(pick(words), 1..4).prop_map(Test::In),
        1 => part.clone().prop_map(Test::Starts),
        1 => part.clone().prop_map(Test::Ends),
        1 => part.prop_map(Test::Contains),
        1 => pick(&["^1", "^x+$", "[a-z]y", "1|2", "e$", "b"]).prop_map(Test::Matches),
    ]
    .boxed()
}

fn path_test() -> BoxedStrategy<Test> {
    let absolute: Vec<&'static str> = PATHS.into_iter().filter(|path| path.starts_with('/')).collect();
    prop_oneof![
        3 => pick(&PATHS).prop_map(Test::Equal),
        1 => prop::collection::vec(pick(&PATHS), 1..4).prop_map(Test::In),
        4 => pick(&absolute).prop_map(Test::Prefix),
        2 => pick(&absolute).prop_map(Test::Starts),
        2 => pick(&["gif", ".gif", "b", "/"]).prop_map(Test::Ends),
        2 => pick(&["zbwb_20", "api", "i", "//"]).prop_map(Test::Contains),
        2 => pick(&["^/api/v[0-9]", "\\.gif$", "^/a(/b)*$", "^/(img|a)/", "^/ap?"]).prop_map(Test::Matches),
    ]
    .boxed()
}

fn atom() -> BoxedStrategy<Expr> {
    let number =
        || (pick(&["<", "<=", ">", ">=", "==", "!="]), 0..12i32).prop_map(|(op, n)| Test::Number(op, n));
    // Ports and sizes below 0 are refused.
    let size = || number().prop_filter("there is one", |test| !matches!(test, Test::Number("<", 0)));
    let value = || prop_oneof![3 => text_test(&VALUES), 1 => Just(Test::Exists), 1 => number()];
    let named = prop_oneof![
        pick(&NAMES).prop_map(Field::Query),
        pick(&NAMES).prop_map(Field::Header),
        pick(&NAMES).prop_map(Field::Cookie),
        pick(&NAMES).prop_map(Field::Form),
        pick(&["/p", "/q/0"]).prop_map(Field::Json),
        pick(&["d/p", "d/q"]).prop_map(Field::Xml),
    ];
    prop_oneof![
        2 => pick(&METHODS).prop_map(|method| Expr::Atom(Field::Method, Test::Equal(method))),
        2 => text_test(&HOSTS).prop_map(|test| Expr::Atom(Field::Host, test)),
        4 => path_test().prop_map(|test| Expr::Atom(Field::Path, test)),
        1 => text_test(&HOSTS).prop_map(|test| Expr::Atom(Field::Sni, test)),
        2 => prop::collection::vec(pick(&NETS), 1..3).prop_map(|nets| Expr::Atom(Field::ClientIp, Test::In(nets))),
        1 => size().prop_map(|test| Expr::Atom(Field::ClientPort, test)),
        1 => size().prop_map(|test| Expr::Atom(Field::BodySize, test)),
        6 => (named, value()).prop_map(|(field, test)| Expr::Atom(field, test)),
    ]
    .boxed()
}

fn expr() -> impl Strategy<Value = Expr> {
    let leaf = prop_oneof![20 => atom(), 1 => any::<bool>().prop_map(Expr::Constant)];
    leaf.prop_recursive(3, 8, 3, |inner| {
        prop_oneof![
            2 => prop::collection::vec(inner.clone(), 2..4).prop_map(Expr::And),
            2 => prop::collection::vec(inner.clone(), 2..4).prop_map(Expr::Or),
            1 => inner.prop_map(|inner| Expr::Not(Box::new(inner))),
        ]
    })
}

fn rule() -> impl Strategy<Value = (Expr, RuleSpec)> {
    let action = 0..4u8;
    let listeners = prop_oneof![3 => Just(vec![]), 1 => Just(vec!["edge".to_owned()])];
    (expr(), 0..3i64, listeners, action, pick(&[Unknown::NoMatch, Unknown::Match, Unknown::Deny])).prop_map(
        |(expr, priority, listeners, action, unknown)| {
            let mut spec = RuleSpec { priority, listeners, unknown, ..RuleSpec::default() };
            match action {
                0 => spec.route = Some("pool".into()),
                1 => spec.deny = Some(404.into()),
                _ => spec.audit = true,
            }
            (expr, spec)
        },
    )
}

fn sample() -> impl Strategy<Value = Sample> {
    let pairs = || prop::collection::vec((pick(&NAMES), pick(&VALUES)), 0..3);
    let single = |names: &[&'static str]| prop::collection::vec((pick(names), pick(&VALUES)), 0..3);
    let sent = prop_oneof![
        Just(Sent::Nothing),
        single(&["/p", "/q/0"]).prop_map(Sent::Json),
        single(&["d/p", "d/q"]).prop_map(Sent::Xml),
        pairs().prop_map(Sent::Form),
        Just(Sent::Other),
        Just(Sent::Broken),
        Just(Sent::Compressed),
    ];
    let address = (pick(&ADDRESSES), 0..12u16)
        .prop_map(|(address, port)| SocketAddr::new(address.parse::<IpAddr>().unwrap(), port));
    let head = (
        pick(&["edge", "inner"]),
        pick(&METHODS),
        pick(&HOSTS),
        pick(&PATHS),
        prop::option::of(pick(&HOSTS)),
        address,
    );
    let read = pick(&[Read::Pending, Read::Prefix, Read::Complete]);
    let unclear = (prop::bool::weighted(0.2), prop::bool::weighted(0.2));
    (head, pairs(), pairs(), pairs(), unclear, sent, read).prop_map(
        |((listener, method, host, path, sni, client), query, headers, cookies, unclear, sent, read)| {
            let read = if matches!(sent, Sent::Nothing) { Read::Complete } else { read };
            Sample { listener, method, host, path, sni, client, query, headers, cookies, unclear, sent, read }
        },
    )
}

fn quote(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

fn render(expr: &Expr) -> String {
    let join = |parts: &[Expr], sign: &str| {
        let parts: Vec<String> = parts.iter().map(|part| format!("({})", render(part))).collect();
        parts.join(sign)
    };
    match expr {
        Expr::Constant(value) => value.to_string(),
        Expr::Not(inner) => format!("!({})", render(inner)),
        Expr::And(parts) => join(parts, " && "),
        Expr::Or(parts) => join(parts, " || "),
        Expr::Atom(field, test) => {
            let field = match field {
                Field::Method => "method".into(),
                Field::Host => "host".into(),
                Field::Path => "path".into(),
                Field::Sni => "tls.sni".into(),
                Field::ClientIp => "client.ip".into(),
                Field::ClientPort => "client.port".into(),
                Field::BodySize => "body.size".into(),
                Field::Query(name) => format!("query('{name}')"),
                Field::Header(name) => format!("header('{}')", name.to_uppercase()),
                Field::Cookie(name) => format!("cookie('{name}')"),
                Field::Form(name) => format!("form('{name}')"),
                Field::Json(pointer) => format!("json('{pointer}')"),
                Field::Xml(path) => format!("xml.{path}"),
            };
            match test {
                Test::Equal(value) => format!("{field} == {}", quote(value)),
                Test::NotEqual(value) => format!("{field} != {}", quote(value)),
                Test::In(values) => {
                    let values: Vec<String> = values.iter().map(|value| quote(value)).collect();
                    format!("{field} in [{}]", values.join(", "))
                }
                Test::Starts(value) => format!("{field}.starts_with({})", quote(value)),
                Test::Ends(value) => format!("{field}.ends_with({})", quote(value)),
                Test::Contains(value) => format!("{field}.contains({})", quote(value)),
                Test::Matches(value) => format!("{field}.matches({})", quote(value)),
                Test::Prefix(value) => format!("{field}.path_prefix({})", quote(value)),
                Test::Exists => format!("{field}.exists()"),
                Test::Number(op, number) => format!("{field} {op} {number}"),
            }
        }
    }
}

impl Sample {
    /// Type and bytes of the body as sent.
    fn body(&self) -> (Option<&'static str>, String) {
        match &self.sent {
            Sent::Nothing => (None, String::new()),
            Sent::Json(pairs) => {
                let members: Vec<String> = pairs
                    .iter()
                    .map(|(pointer, value)| match *pointer {
                        "/p" => format!("\"p\":{value:?}"),
                        _ => format!("\"q\":[{value:?}]"),
                    })
                    .collect();
                (Some("application/json"), format!("{{{}}}", members.join(",")))
            }
            Sent::Xml(pairs) => {
                let members: Vec<String> = pairs
                    .iter()
                    .map(|(path, value)| format!("<{0}>{value}</{0}>", path.trim_start_matches("d/")))
                    .collect();
                (Some("text/xml"), format!("<d>{}</d>", members.concat()))
            }
            Sent::Form(pairs) => (Some("application/x-www-form-urlencoded"), encode(pairs) + "&end=1"),
            Sent::Other => (Some("text/plain"), "p=1".into()),
            Sent::Broken => (Some("application/json"), "{\"p\":\"1\",}".into()),
            Sent::Compressed => (Some("text/xml"), "\x1f\x08".into()),
        }
    }

    /// The values of a field, and the truth of a comparison when it has none.
    fn values(&self, field: &Field) -> (Vec<String>, Truth) {
        let of = |pairs: &[(&'static str, &'static str)], wanted: &str| -> Vec<String> {
            pairs.iter().filter(|(name, _)| *name == wanted).map(|(_, value)| (*value).to_owned()).collect()
        };
        let settled = |values| (values, Truth::False);
        let unless = |clear: bool| if clear { Truth::False } else { Truth::Unknown };
        let (pairs, name) = match (field, &self.sent) {
            (Field::Method, _) => return settled(vec![self.method.to_owned()]),
            (Field::Host, _) => return settled(vec![self.host.to_owned()]),
            (Field::Path, _) => return settled(vec![self.path.to_owned()]),
            (Field::Sni, _) => return settled(self.sni.iter().map(|sni| (*sni).to_owned()).collect()),
            (Field::ClientPort, _) => return settled(vec![self.client.port().to_string()]),
            (Field::BodySize, _) => return settled(vec![self.body().1.len().to_string()]),
            (Field::Query(name), _) => return (of(&self.query, name), unless(!self.unclear.0)),
            (Field::Header(name), _) => return settled(of(&self.headers, name)),
            (Field::Cookie(name), _) => return (of(&self.cookies, name), unless(!self.unclear.1)),
            (Field::ClientIp, _) => return settled(vec![self.client.ip().to_canonical().to_string()]),
            (Field::Form(_) | Field::Json(_) | Field::Xml(_), Sent::Compressed) => {
                return (vec![], Truth::Unknown);
            }
            (Field::Json(_), Sent::Broken) if self.read == Read::Pending => return (vec![], Truth::Pending),
            (Field::Json(_), Sent::Broken) => return (vec![], Truth::Unknown),
            (Field::Form(name), Sent::Form(pairs))
            | (Field::Json(name), Sent::Json(pairs))
            | (Field::Xml(name), Sent::Xml(pairs)) => (pairs, name),
            _ => return settled(vec![]),
        };
        match self.read {
            Read::Pending => (vec![], Truth::Pending),
            Read::Prefix => (of(pairs, name), Truth::Unknown),
            Read::Complete => (of(pairs, name), Truth::False),
        }
    }

    fn evaluate(&self, expr: &Expr) -> Truth {
        match expr {
            Expr::Constant(value) => {
                if *value {
                    Truth::True
                } else {
                    Truth::False
                }
            }
            Expr::Not(inner) => not(self.evaluate(inner)),
            Expr::And(parts) => fold(parts.iter().map(|part| self.evaluate(part)), Truth::False, Truth::True),
            Expr::Or(parts) => fold(parts.iter().map(|part| self.evaluate(part)), Truth::True, Truth::False),
            Expr::Atom(field, Test::NotEqual(value)) => {
                not(self.evaluate(&Expr::Atom(field.clone(), Test::Equal(value))))
            }
            Expr::Atom(field, Test::Number("!=", number)) => {
                not(self.evaluate(&Expr::Atom(field.clone(), Test::Number("==", *number))))
            }
            Expr::Atom(field, test) => {
                let (values, otherwise) = self.values(field);
                if values.iter().any(|value| passes(value, test, *field == Field::ClientIp)) {
                    Truth::True
                } else {
                    otherwise
                }
            }
        }
    }

    /// Like `evaluate`, for a rule that ignores unknown: the first unknown part ends the evaluation where it settles
    /// it.
    fn evaluate_known(&self, expr: &Expr, negate: bool) -> Truth {
        match (expr, negate) {
            (Expr::Not(inner), _) => self.evaluate_known(inner, !negate),
            (Expr::And(parts), false) | (Expr::Or(parts), true) => {
                let parts = parts.iter().map(|part| self.evaluate_known(part, negate));
                fold(parts, Truth::False, Truth::True)
            }
            (Expr::Or(parts), false) | (Expr::And(parts), true) => {
                let parts = parts.iter().map(|part| self.evaluate_known(part, negate));
                fold(parts, Truth::True, Truth::False)
            }
            (Expr::Constant(_) | Expr::Atom(..), _) => {
                let truth = self.evaluate(expr);
                match if negate { not(truth) } else { truth } {
                    Truth::Unknown => Truth::False,
                    truth => truth,
                }
            }
        }
    }

    fn with<R>(&self, use_it: impl FnOnce(&Request<'_>) -> R) -> R {
        let (media, body) = self.body();
        let mut lines: Vec<(String, String)> =
            self.headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        if let Some(media) = media {
            lines.push(("Content-Type".into(), media.into()));
            lines.push(("Content-Length".into(), body.len().to_string()));
        }
        if matches!(self.sent, Sent::Compressed) {
            lines.push(("content-encoding".into(), "gzip".into()));
        }
        for (name, value) in &self.cookies {
            lines.push(("cookie".into(), format!("other=1; {name}={value}")));
        }
        if self.unclear.1 {
            lines.push(("cookie".into(), "y=1 p=2 q=3 x-r=4".into()));
        }
        let headers: Vec<(&[u8], &[u8])> =
            lines.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())).collect();
        let query = encode(&self.query) + if self.unclear.0 { "&y=1;z" } else { "" };
        let bytes = body.as_bytes();
        use_it(&Request {
            listener: self.listener,
            method: self.method.as_bytes(),
            scheme: "https",
            host: self.host.as_bytes(),
            path: self.path.as_bytes(),
            query: query.as_bytes(),
            headers: &headers,
            client: self.client,
            local: "192.0.2.9:443".parse().unwrap(),
            tls: self.sni.map(|sni| TlsFacts { sni: Some(sni), version: "TLSv1.3", ..TlsFacts::default() }),
            body: match self.read {
                Read::Pending => Body::Pending,
                // The last byte closes the document, or belongs to the pair `end=1`.
                Read::Prefix => {
                    Body::Prefix(&bytes[..bytes.len() - usize::from(!matches!(self.sent, Sent::Broken))])
                }
                Read::Complete => Body::Complete(bytes),
            },
        })
    }
}

fn encode(pairs: &[(&'static str, &'static str)]) -> String {
    let pairs: Vec<String> = pairs
        .iter()
        .map(|(name, value)| format!("{}={}", name.replace('-', "%2d"), value.replace(' ', "+")))
        .collect();
    pairs.join("&")
}

fn not(truth: Truth) -> Truth {
    match truth {
        Truth::True => Truth::False,
        Truth::False => Truth::True,
        other => other,
    }
}

fn fold(parts: impl Iterator<Item = Truth>, strongest: Truth, neutral: Truth) -> Truth {
    let parts: Vec<Truth> = parts.collect();
    [strongest, Truth::Pending, Truth::Unknown]
        .into_iter()
        .find(|truth| parts.contains(truth))
        .unwrap_or(neutral)
}

fn passes(value: &str, test: &Test, address: bool) -> bool {
    match test {
        Test::In(nets) if address => nets.iter().any(|net| {
            let (base, length) = net.split_once('/').unwrap_or((net, "128"));
            let bits = |text: &str| match text.parse().unwrap() {
                IpAddr::V4(v4) => format!("4{:032b}", u32::from(v4)),
                IpAddr::V6(v6) => format!("6{:0128b}", u128::from(v6)),
            };
            let (base, value) = (bits(base), bits(value));
            let length = length.parse::<usize>().unwrap().min(base.len() - 1) + 1;
            value.len() == base.len() && value[..length] == base[..length]
        }),
        Test::Equal(text) => value == *text,
        Test::In(texts) => texts.contains(&value),
        Test::Starts(text) => value.starts_with(text),
        Test::Ends(text) => value.ends_with(text),
        Test::Contains(text) => value.contains(text),
        Test::Matches(pattern) => regex::Regex::new(pattern).unwrap().is_match(value),
        Test::Prefix(prefix) => {
            let segments = |path: &'static str| path.trim_end_matches('/').len();
            let base = &prefix[..segments(prefix)];
            value == base || value.starts_with(&format!("{base}/"))
        }
        Test::Exists => true,
        Test::Number(op, number) => match value.trim().parse::<f64>() {
            Ok(value) => match *op {
                "<" => value < f64::from(*number),
                "<=" => value <= f64::from(*number),
                ">" => value > f64::from(*number),
                ">=" => value >= f64::from(*number),
                _ => value == f64::from(*number),
            },
            Err(_) => false,
        },
        Test::NotEqual(_) => unreachable!(),
    }
}

/// Tries rules one by one: `None` for "the body is needed", else the terminal rule, its status, and the matching rules.
fn naive(rules: &[(Expr, RuleSpec)], sample: &Sample) -> Option<(Option<u32>, u16, Vec<u32>)> {
    let mut order: Vec<usize> = (0..rules.len()).collect();
    order.sort_by_key(|&at| -rules[at].1.priority);
    let mut matched = Vec::new();
    for at in order {
        let (expr, spec) = &rules[at];
        if !spec.listeners.is_empty() && !spec.listeners.iter().any(|name| name == sample.listener) {
            continue;
        }
        let truth = match spec.unknown {
            Unknown::NoMatch => {
                // An ambiguous query does not matter to the rule.
                Sample { unclear: (false, false), ..sample.clone() }.evaluate_known(expr, false)
            }
            _ => sample.evaluate(expr),
        };
        let denied = match (truth, spec.unknown) {
            (Truth::False, _) => continue,
            (Truth::Pending, _) => return None,
            (truth, unknown) => truth == Truth::Unknown && unknown == Unknown::Deny,
        };
        matched.push(at as u32);
        match spec.deny {
            Some(Deny::Status(status)) => return Some((Some(at as u32), status, matched)),
            Some(_) => unreachable!("no rule here ends connections"),
            None if denied => return Some((Some(at as u32), 403, matched)),
            None if spec.route.is_some() => return Some((Some(at as u32), 0, matched)),
            None => {}
        }
    }
    Some((None, 1, matched))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]
    #[test]
    fn decide_equals_trying_rules_one_by_one(
        mut rules in prop::collection::vec(rule(), 0..14),
        samples in prop::collection::vec(sample(), 6),
        checked in prop::bool::weighted(0.1),
    ) {
        for (at, (expr, spec)) in rules.iter_mut().enumerate() {
            spec.name = format!("r{at}");
            spec.when = render(expr);
        }
        let specs: Vec<RuleSpec> = rules.iter().map(|(_, spec)| spec.clone()).collect();
        let ruleset = match Ruleset::compile(&specs, &Limits::default()) {
            Ok(ruleset) => ruleset,
            Err(errors) => {
                prop_assert!(errors.iter().all(|error| error.what.contains("alternatives")), "{:?}", errors);
                return Ok(());
            }
        };
        // Proofs take long in an unoptimised build, so only some of the cases run them.
        let findings = if checked { ruleset.check() } else { Vec::new() };
        let hopeless: Vec<String> = findings
            .into_iter()
            .filter(|finding| finding.severity > Severity::Info && finding.kind != FindingKind::AlwaysTrue)
            .map(|finding| finding.rule)
            .collect();
        let mut scratch = Scratch::new();
        for sample in &samples {
            let mut decide = |sample: &Sample| sample.with(|request| match ruleset.decide(request, &mut scratch) {
                Outcome::NeedBody => None,
                Outcome::Decided(decision) => {
                    let status = match decision.terminal {
                        Terminal::None => 1,
                        Terminal::Deny(Deny::Status(status)) => status,
                        _ => 0,
                    };
                    Some((decision.rule.map(|id| id.0), status, decision.matched.iter().map(|id| id.0).collect()))
                }
            });
            let conditions: Vec<&str> = specs.iter().map(|spec| spec.when.as_str()).collect();
            let expected = naive(&rules, sample);
            let mut decided = decide(sample);
            let mut sample = sample;
            let whole = Sample { read: Read::Complete, ..sample.clone() };
            if decided.is_none() && expected.is_some() && sample.unclear != (false, false) {
                // The condition in normal form may need a body that cannot make a difference.
                (decided, sample) = (decide(&whole), &whole);
            }
            prop_assert_eq!(&decided, &expected, "{:?} {:#?}", sample, conditions);
            if let Some((rule, _, matched)) = decided {
                // A rule that `check` reports as unreachable or unsatisfiable never matches, undecidable bodies
                // excepted.
                for id in matched {
                    let unknown = sample.evaluate(&rules[id as usize].0) == Truth::Unknown;
                    let can_match = unknown || !hopeless.contains(&format!("r{id}"));
                    prop_assert!(can_match, "r{} {:?} {:#?}", id, sample, conditions);
                }
                let explained = sample.with(|request| ruleset.explain(request));
                prop_assert_eq!(explained.winner, rule.map(|id| format!("r{id}")));
            }
        }
    }

    #[test]
    fn compiler_never_panics(
        pieces in prop::collection::vec(
            prop_oneof![
                pick(&[
                    "path", "host", "==", "!=", "in", "[", "]", "(", ")", "!", "&&", "||", ".", "matches",
                    "starts_with", "\"", "'", "\"/a\"", "xml.", "a/b", "json", "(\"/a\")", "client.ip",
                    "\"10.0.0.0/8\"", "1", "-", "1e9",
                    "true", "\\", "r\"", "\"(\"", "body.size", ">", "\u{201c}", "\n", "é",
                ])
                .prop_map(str::to_owned),
                any::<char>().prop_map(String::from),
            ],
            0..24,
        ),
        glue in pick(&["", " "]),
    ) {
        let spec = RuleSpec { name: "r".into(), when: pieces.join(glue), audit: true, ..RuleSpec::default() };
        match Ruleset::compile(&[spec], &Limits::default()) {
            Ok(ruleset) => drop(ruleset.check()),
            Err(errors) => {
                let is_placed = |e: &evergate_rules::RuleError| e.line > 0 || e.what.contains("alternatives");
                prop_assert!(errors.iter().all(is_placed));
            }
        }
    }
}
