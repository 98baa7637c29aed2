//! Construction of a request that satisfies a conjunct: a value per field, each tested by the evaluator.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use super::automaton::{Alphabet, Constraint, Search, pattern_of, search};
use super::implies::Prover;
use super::request::{Witness, WitnessTls};
use crate::atom::{Net, Num, Test, address_bits};
use crate::dnf::Literal;
use crate::eval::{Run, Truth};
use crate::field::{Field, FieldId, Format, Origin};
use crate::scratch::Scratch;

/// Listeners that are tried for one example request.
const ENTRANCES_MAX: usize = 64;

/// Requirements of a conjunct on one field.
#[derive(Default)]
struct Demand<'r> {
    positive: Vec<&'r Test>,
    negative: Vec<&'r Test>,
}

/// A request under construction.
#[derive(Clone, Default)]
struct Draft<'r> {
    request: Witness,
    tls: WitnessTls,
    /// Whether the request must come without TLS.
    plain: bool,
    query: Vec<(String, String)>,
    cookies: Vec<String>,
    body: Vec<(&'r Field, Vec<String>)>,
}

impl<'r> Draft<'r> {
    fn set_address(&mut self, field: &Field, demand: &Demand<'_>) -> Option<()> {
        let Witness { client, local, .. } = &mut self.request;
        match field {
            Field::ClientIp => client.set_ip(address(demand, client.ip())?),
            Field::LocalIp => local.set_ip(address(demand, local.ip())?),
            Field::ClientPort => client.set_port(port(demand, client)?),
            _ => local.set_port(port(demand, local)?),
        }
        Some(())
    }

    /// Sets all values of a field that may occur more than once, otherwise the first.
    fn set(&mut self, field: &'r Field, values: Vec<String>) -> Option<()> {
        let Draft { request, tls, .. } = self;
        let first = values.first()?.clone();
        match field {
            Field::Listener => request.listener = first,
            Field::Method => request.method = first,
            Field::Scheme => request.scheme = first,
            Field::Host => request.host = first,
            Field::Path => request.path = first,
            Field::Sni => tls.sni = Some(first),
            Field::Alpn => tls.alpn = Some(first),
            Field::TlsVersion => tls.version = first,
            Field::ClientSubject => tls.client_subject = Some(first),
            Field::Query(name) => self.query.extend(values.into_iter().map(|value| (name.clone(), value))),
            Field::Cookie(name) => {
                self.cookies.extend(values.into_iter().map(|value| format!("{name}={value}")))
            }
            Field::Header(name) => {
                request.headers.extend(values.into_iter().map(|value| (name.clone(), value)))
            }
            _ => self.body.push((field, values)),
        }
        Some(())
    }

    fn finish(self) -> Option<Witness> {
        let Draft { mut request, tls, plain, query, cookies, body } = self;
        let encode = |text: &str| form_urlencoded::byte_serialize(text.as_bytes()).collect::<String>();
        let pairs: Vec<String> =
            query.iter().map(|(name, value)| format!("{}={}", encode(name), encode(value))).collect();
        request.query = pairs.join("&");
        if !cookies.is_empty() {
            request.headers.push(("cookie".into(), cookies.join("; ")));
        }
        let facts = tls.sni.is_some() || tls.alpn.is_some() || tls.client_subject.is_some();
        if facts || (request.scheme == "https" && !plain) {
            request.tls = Some(tls);
        }
        if !body.is_empty() {
            write_body(&mut request, &body)?;
        }
        Some(request)
    }
}

impl Prover<'_> {
    /// A request that satisfies the conjunct; verified by evaluating it. It comes through one of the entrances if one
    /// of them lets such a request in.
    pub(super) fn witness(&mut self, conjunct: &[Literal]) -> Option<Witness> {
        let rules = self.rules;
        let mut demands: BTreeMap<FieldId, Demand<'_>> = BTreeMap::new();
        for literal in conjunct {
            let atom = rules.table.atom(literal.atom());
            let demand = demands.entry(atom.field).or_default();
            if literal.negated() { &mut demand.negative } else { &mut demand.positive }.push(&atom.test);
        }
        let tls = WitnessTls { version: "TLSv1.3".into(), ..WitnessTls::default() };
        let mut draft = Draft { tls, ..Draft::default() };
        let mut asks_scheme = false;
        for (&id, demand) in &demands {
            let field = rules.table.fields.get(id);
            asks_scheme |= *field == Field::Scheme;
            if field.optional() && demand.positive.is_empty() {
                // Absent: every negation holds.
                draft.plain |= *field == Field::TlsVersion;
                continue;
            }
            match field {
                Field::BodySize | Field::Listener => {}
                Field::ClientIp | Field::LocalIp | Field::ClientPort | Field::LocalPort => {
                    draft.set_address(field, demand)?;
                }
                _ => draft.set(field, self.values(field, demand)?)?,
            }
        }
        let listener = demands.get(&crate::field::id::LISTENER);
        let size = demands.get(&crate::field::id::BODY_SIZE);
        let mut tried = Vec::new();
        let entrances = self.entrances;
        for entrance in entrances.iter().take(ENTRANCES_MAX) {
            // Without a condition on the listener, entrances differ in TLS only.
            let key = (listener.is_some().then_some(&entrance.listener), entrance.is_tls);
            if tried.contains(&key) {
                continue;
            }
            tried.push(key);
            let mut draft = draft.clone();
            if listener.is_some() {
                draft.request.listener.clone_from(&entrance.listener);
            }
            if !asks_scheme {
                draft.request.scheme = entrance.scheme().to_owned();
            }
            draft.plain |= !entrance.is_tls;
            let fits = |witness: &Witness| {
                witness.scheme == entrance.scheme() && witness.tls.is_some() == entrance.is_tls
            };
            let witness = self.finished(draft, size, conjunct).filter(fits);
            if witness.is_some() {
                return witness;
            }
        }
        if let Some(demand) = listener {
            draft.set(&Field::Listener, self.values(&Field::Listener, demand)?)?;
        }
        self.finished(draft, size, conjunct)
    }

    fn finished(
        &mut self,
        draft: Draft<'_>,
        size: Option<&Demand<'_>>,
        conjunct: &[Literal],
    ) -> Option<Witness> {
        let mut witness = draft.finish()?;
        if let Some(demand) = size {
            pad(&mut witness, demand)?;
        }
        (self.evaluate(&witness, conjunct) == Truth::True).then_some(witness)
    }

    /// Value of the conjunct for the request.
    pub(super) fn evaluate(&mut self, witness: &Witness, conjunct: &[Literal]) -> Truth {
        let rules = self.rules;
        witness.with(|request| {
            self.scratch.begin(rules, request);
            let Scratch { gathered, caches, .. } = &mut self.scratch;
            Run { rules, request, gathered, caches, minds_unclear: true }.conjunct(conjunct)
        })
    }

    /// Values for a text field: one that passes all comparisons, or, if the field may occur often, one per comparison.
    fn values(&mut self, field: &Field, demand: &Demand<'_>) -> Option<Vec<String>> {
        let candidates = candidates(field, demand);
        let printable = |value: &Vec<u8>| value.iter().all(|byte| (b' '..=b'~').contains(byte));
        let candidates: Vec<Vec<u8>> = candidates.into_iter().filter(printable).collect();
        let negative =
            |prover: &mut Self, value: &[u8]| demand.negative.iter().any(|test| prover.holds(test, value));
        for value in &candidates {
            if demand.positive.iter().all(|test| self.holds(test, value)) && !negative(self, value) {
                return Some(vec![String::from_utf8(value.clone()).ok()?]);
            }
        }
        if let Some(value) = searched(field, demand) {
            return Some(vec![value]);
        }
        if field.single() {
            return None;
        }
        let mut values = Vec::new();
        for test in &demand.positive {
            let value = candidates.iter().find(|value| self.holds(test, value) && !negative(self, value))?;
            values.push(String::from_utf8(value.clone()).ok()?);
        }
        Some(values)
    }
}

/// Candidate values for a field, simple ones first.
fn candidates(field: &Field, demand: &Demand<'_>) -> Vec<Vec<u8>> {
    let mut list: Vec<Vec<u8>> = Vec::new();
    let mut numbers: Vec<f64> = Vec::new();
    let (mut starts, mut ends, mut parts) = (vec![Vec::new()], vec![Vec::new()], Vec::new());
    for test in &demand.positive {
        match test {
            Test::OneOf(values) => list.extend(values.iter().take(1000).cloned()),
            Test::NumberIn(values) => numbers.extend(values.iter().take(1000).map(|number| number.get())),
            Test::Number(_, bound) => {
                numbers.extend([0.0, 1.0, -1.0, 0.5, -0.5].map(|step| bound.get() + step))
            }
            Test::StartsWith(start) => starts.push(start.clone()),
            Test::PathPrefix(prefix) => starts.push(prefix.clone()),
            Test::EndsWith(end) => ends.push(end.clone()),
            Test::Contains(part) => parts.push(part.clone()),
            _ => {}
        }
    }
    for pair in numbers.clone().windows(2) {
        numbers.push((pair[0] + pair[1]) / 2.0);
    }
    list.extend(numbers.iter().map(|number| number.to_string().into_bytes()));
    // Plain pieces in a row satisfy most conditions; the automata find the rest.
    let start = starts.iter().max_by_key(|start| start.len()).cloned().unwrap_or_default();
    let end = ends.iter().max_by_key(|end| end.len()).cloned().unwrap_or_default();
    let slash = if *field == Field::Path && start.is_empty() { b"/".as_slice() } else { b"" };
    for glue in [b"".as_slice(), b"/", b"x", b"/x"] {
        let mut value = [slash, &start].concat();
        if !value.ends_with(&end) || value.is_empty() {
            for piece in parts.iter().chain([&end]) {
                if !piece.is_empty() {
                    value.extend_from_slice(glue);
                    value.extend_from_slice(piece);
                }
            }
        }
        list.push(value);
    }
    let defaults: &[&str] = match field {
        Field::Listener => &["listener", "other"],
        Field::Method => &["GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH"],
        Field::Scheme => &["https", "http"],
        Field::Host => &["host.example", "other.example", "x.test"],
        Field::Path => &["/", "/x", "/other/x"],
        Field::Alpn => &["http/1.1", "http/1.0"],
        Field::TlsVersion => &["TLSv1.3", "TLSv1.2"],
        Field::ClientSubject => &["CN=client"],
        _ => &["1", "x", "other", ""],
    };
    list.extend(defaults.iter().map(|text| text.as_bytes().to_vec()));
    // For fields that may occur several times, each pattern is also tried alone.
    let patterns =
        demand.positive.iter().filter(|test| matches!(test, Test::Matches { .. }) && !field.single());
    for test in patterns {
        let alone = Demand { positive: vec![test], negative: demand.negative.clone() };
        list.extend(searched(field, &alone).map(String::into_bytes));
    }
    list
}

/// A value found by the automata, shortest first.
fn searched(field: &Field, demand: &Demand<'_>) -> Option<String> {
    let tests = demand
        .positive
        .iter()
        .map(|test| (test, true))
        .chain(demand.negative.iter().map(|test| (test, false)));
    let constraints: Vec<Constraint> = tests
        .filter_map(|(test, wanted)| {
            Some(Constraint { pattern: pattern_of(test)?, ignore_case: field.ignores_case(), wanted })
        })
        .chain((*field == Field::Path).then(|| Constraint {
            pattern: "^/".into(),
            ignore_case: false,
            wanted: true,
        }))
        .collect();
    let textual = constraints.len() >= demand.positive.len() + demand.negative.len();
    let plain = |test: &&Test| matches!(test, Test::OneOf(_) | Test::Exists);
    if !textual || demand.positive.iter().all(plain) {
        return None;
    }
    match search(&constraints, Alphabet::Printable) {
        Search::Found(text) => String::from_utf8(text).ok(),
        Search::None | Search::GaveUp => None,
    }
}

fn address(demand: &Demand<'_>, default: IpAddr) -> Option<IpAddr> {
    let nets = |tests: &[&Test]| -> Vec<Vec<Net>> {
        let nets = |test: &&Test| if let Test::InNets(nets) = test { Some(nets.clone()) } else { None };
        tests.iter().filter_map(nets).collect()
    };
    let (positive, negative) = (nets(&demand.positive), nets(&demand.negative));
    let mut tried = vec![default];
    for net in positive.iter().flatten() {
        let whole = if net.v6 { 128 } else { 32 };
        for step in [0, 1, 2, 255] {
            if net.length < whole || step == 0 {
                tried.push(Net { bits: net.bits | step, ..*net }.address());
            }
        }
        // The last address of the range, and one in its upper half.
        if net.length < whole {
            let span = u128::MAX.checked_shr(128 - u32::from(whole - net.length)).unwrap_or(0);
            tried.push(Net { bits: net.bits | span, ..*net }.address());
            tried.push(Net { bits: net.bits | (span / 2 + 1), ..*net }.address());
        }
    }
    tried.extend(
        ["203.0.113.9", "10.0.0.1", "172.16.0.1", "2001:db8::1", "8.8.8.8"]
            .iter()
            .flat_map(|a| a.parse::<IpAddr>()),
    );
    tried.into_iter().find(|address| {
        let bits = address_bits(*address);
        let inside = |nets: &Vec<Net>| nets.iter().any(|net| net.contains(bits));
        positive.iter().all(inside) && !negative.iter().any(inside)
    })
}

/// A number that passes, from the literals and their neighbours.
fn number(demand: &Demand<'_>, defaults: &[f64], largest: f64) -> Option<f64> {
    let passes = |test: &&Test, value: f64| match test {
        Test::Number(compare, bound) => compare.holds(value, bound.get()),
        Test::NumberIn(values) => Num::new(value).is_some_and(|value| values.contains(&value)),
        _ => false,
    };
    let mut tried = defaults.to_vec();
    for test in demand.positive.iter().chain(&demand.negative) {
        match test {
            Test::Number(_, bound) => tried.extend([-1.0, 0.0, 1.0].map(|step| (bound.get() + step).floor())),
            Test::NumberIn(values) => {
                tried.extend(values.iter().flat_map(|number| [number.get(), number.get() + 1.0]));
            }
            _ => {}
        }
    }
    tried.into_iter().find(|&value| {
        (0.0..=largest).contains(&value)
            && value.fract() == 0.0
            && demand.positive.iter().all(|test| passes(test, value))
            && !demand.negative.iter().any(|test| passes(test, value))
    })
}

fn port(demand: &Demand<'_>, default: &SocketAddr) -> Option<u16> {
    let defaults = [f64::from(default.port()), 80.0, 443.0, 8080.0, 1.0];
    number(demand, &defaults, f64::from(u16::MAX)).map(|port| port as u16)
}

fn write_body(witness: &mut Witness, values: &[(&Field, Vec<String>)]) -> Option<()> {
    let formats: Vec<Origin> = values.iter().map(|(field, _)| field.origin()).collect();
    if formats.iter().any(|format| *format != formats[0]) {
        return None;
    }
    let media = match formats[0] {
        Origin::Body(Format::Json) => {
            let mut tree = Tree::default();
            for (field, values) in values {
                let Field::Json(pointer) = field else { return None };
                let plain = |segment: &str| segment.replace("~1", "/").replace("~0", "~");
                tree.at(pointer.split('/').skip(1).map(plain)).values.clone_from(values);
            }
            witness.body = tree.json()?.into_bytes();
            "application/json"
        }
        Origin::Body(Format::Xml) => {
            let mut tree = Tree::default();
            for (field, values) in values {
                let Field::Xml(path) = field else { return None };
                tree.at(path.split('/').map(str::to_owned)).values.clone_from(values);
            }
            if tree.children.len() != 1 {
                return None;
            }
            witness.body = tree.xml_children()?.into_bytes();
            "application/xml"
        }
        _ => {
            let encode = |text: &str| form_urlencoded::byte_serialize(text.as_bytes()).collect::<String>();
            let mut pairs = Vec::new();
            for (field, values) in values {
                let Field::Form(name) = field else { return None };
                pairs.extend(values.iter().map(|value| format!("{}={}", encode(name), encode(value))));
            }
            witness.body = pairs.join("&").into_bytes();
            "application/x-www-form-urlencoded"
        }
    };
    if witness.method == "GET" {
        // The usual method of a request with a body; a condition on GET then fails in the final evaluation.
        witness.method = "POST".into();
    }
    if !witness.headers.iter().any(|(name, _)| name == "content-type") {
        witness.headers.push(("content-type".into(), media.into()));
    }
    Some(())
}

/// Tree-shaped body under construction.
#[derive(Default)]
struct Tree {
    values: Vec<String>,
    children: BTreeMap<String, Tree>,
}

impl Tree {
    fn at(&mut self, path: impl Iterator<Item = String>) -> &mut Tree {
        path.fold(self, |tree, segment| tree.children.entry(segment).or_default())
    }

    fn json(&self) -> Option<String> {
        if self.children.is_empty() {
            return serde_json::to_string(self.values.first()?).ok();
        }
        if !self.values.is_empty() {
            return None;
        }
        let members: Option<Vec<String>> = self
            .children
            .iter()
            .map(|(name, child)| Some(format!("{}:{}", serde_json::to_string(name).ok()?, child.json()?)))
            .collect();
        Some(format!("{{{}}}", members?.join(",")))
    }

    fn xml_children(&self) -> Option<String> {
        let mut text = String::new();
        for (name, child) in &self.children {
            if name.starts_with('@') {
                continue;
            }
            // Several values of an element are several elements; descendants belong to the first.
            for at in 0..child.values.len().max(1) {
                let first = at == 0;
                text.push_str(&format!("<{name}"));
                for (attribute, value) in
                    child.children.iter().filter(|(key, _)| first && key.starts_with('@'))
                {
                    text.push_str(&format!(" {}=\"{}\"", &attribute[1..], escape(value.values.first()?)));
                }
                text.push('>');
                text.push_str(&child.values.get(at).map(|value| escape(value)).unwrap_or_default());
                if first {
                    text.push_str(&child.xml_children()?);
                }
                text.push_str(&format!("</{name}>"));
            }
        }
        Some(text)
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Pads the body to a size that passes with bytes that its format ignores.
fn pad(witness: &mut Witness, demand: &Demand<'_>) -> Option<()> {
    const PADDED_MAX: f64 = 1_048_576.0;
    let size = number(demand, &[witness.body.len() as f64], PADDED_MAX)? as usize;
    let form = witness.headers.iter().any(|(_, value)| value == "application/x-www-form-urlencoded");
    if size < witness.body.len() {
        return None;
    }
    witness.body.resize(size, if form { b'&' } else { b' ' });
    Some(())
}
