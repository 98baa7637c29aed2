//! Evaluation of atoms, conjuncts and rules on one request, in Kleene's logic with a fourth value for "not read yet".

use std::net::SocketAddr;

use crate::atom::{AtomId, Compare, Test, address_bits, number, under};
use crate::body::Reach;
use crate::dnf::Literal;
use crate::field::{FieldId, Origin, id};
use crate::request::{Body, Request};
use crate::ruleset::Ruleset;
use crate::scratch::{BodyView, Caches, Gathered};
use crate::spec::Unknown;

/// Value of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Truth {
    False,
    True,
    /// Undecidable, even with the whole body.
    Unknown,
    /// Depends on the body, which was not read.
    Pending,
}

impl Truth {
    pub(crate) fn of(holds: bool) -> Truth {
        if holds { Truth::True } else { Truth::False }
    }

    pub(crate) fn not(self) -> Truth {
        match self {
            Truth::False => Truth::True,
            Truth::True => Truth::False,
            other => other,
        }
    }

    /// The disjunction of two values.
    pub(crate) fn or(self, other: Truth) -> Truth {
        match (self, other) {
            (Truth::True, _) | (_, Truth::True) => Truth::True,
            (Truth::Pending, _) | (_, Truth::Pending) => Truth::Pending,
            (Truth::Unknown, _) | (_, Truth::Unknown) => Truth::Unknown,
            _ => Truth::False,
        }
    }
}

/// Evaluation of one request.
pub(crate) struct Run<'a, 'q> {
    pub(crate) rules: &'a Ruleset,
    pub(crate) request: &'a Request<'q>,
    pub(crate) gathered: &'a mut Gathered,
    pub(crate) caches: &'a mut Caches,
    /// Whether an ambiguous query or cookie makes a comparison unknown: only for rules that act on unknown.
    pub(crate) minds_unclear: bool,
}

impl Run<'_, '_> {
    /// Value of a conjunct of a rule. If the rule ignores unknown, the first unknown literal ends the evaluation.
    pub(crate) fn conjunct_of(&mut self, unknown: Unknown, literals: &[Literal]) -> Truth {
        self.minds_unclear = unknown != Unknown::NoMatch;
        if self.minds_unclear {
            return self.conjunct(literals);
        }
        let mut truth = Truth::True;
        for &literal in literals {
            match self.literal(literal) {
                Truth::True => {}
                Truth::Pending => truth = Truth::Pending,
                settled => return settled,
            }
        }
        truth
    }

    pub(crate) fn conjunct(&mut self, literals: &[Literal]) -> Truth {
        let mut truth = Truth::True;
        for &literal in literals {
            truth = match (truth, self.literal(literal)) {
                (_, Truth::False) => return Truth::False,
                (truth, Truth::True) => truth,
                (_, Truth::Pending) | (Truth::Pending, _) => Truth::Pending,
                (_, Truth::Unknown) => Truth::Unknown,
            };
        }
        truth
    }

    pub(crate) fn literal(&mut self, literal: Literal) -> Truth {
        let truth = self.atom(literal.atom());
        if literal.negated() { truth.not() } else { truth }
    }

    fn atom(&mut self, id: AtomId) -> Truth {
        let rules = self.rules;
        let atom = rules.table.atom(id);
        let origin = rules.origins[atom.field as usize];
        match origin {
            Origin::Single => self.single(atom.field, &atom.test),
            Origin::BodySize => body_size(self.request, &atom.test),
            Origin::Query | Origin::Header | Origin::Cookie => {
                self.gathered.gather(origin, rules, self.request);
                match self.any(atom.field, &atom.test) {
                    true => Truth::True,
                    // Servers may find further values.
                    false if self.minds_unclear && self.gathered.is_unclear(origin, atom.field) => {
                        Truth::Unknown
                    }
                    false => Truth::False,
                }
            }
            Origin::Body(format) => {
                self.gathered.gather(origin, rules, self.request);
                match self.gathered.body() {
                    BodyView::Opaque => Truth::Unknown,
                    BodyView::Pending(media) if media == format => Truth::Pending,
                    BodyView::Read(media, Reach::Broken) if media == format => Truth::Unknown,
                    BodyView::Read(media, reach) if media == format => {
                        if self.any(atom.field, &atom.test) {
                            return Truth::True;
                        }
                        let long = self.gathered.values(atom.field).any(Gathered::is_long);
                        if reach == Reach::Cut || long { Truth::Unknown } else { Truth::False }
                    }
                    _ => Truth::False,
                }
            }
        }
    }

    /// Whether any value of the field passes.
    fn any(&mut self, field: FieldId, test: &Test) -> bool {
        self.gathered.values(field).any(|found| match self.gathered.bytes(found, self.request) {
            Some(value) => holds(test, value, self.rules, self.caches),
            None => *test == Test::Exists,
        })
    }

    fn single(&mut self, field: FieldId, test: &Test) -> Truth {
        if let Some(address) = address(self.request, field) {
            return Truth::of(match test {
                Test::InNets(nets) => {
                    let bits = address_bits(address.ip());
                    nets.iter().any(|net| net.contains(bits))
                }
                _ => number_holds(test, f64::from(address.port())),
            });
        }
        let value = text(self.request, self.gathered, field);
        Truth::of(value.is_some_and(|value| holds(test, value, self.rules, self.caches)))
    }
}

/// The address of `client.*` and `local.*`.
pub(crate) fn address(request: &Request<'_>, field: FieldId) -> Option<SocketAddr> {
    match field {
        id::CLIENT_IP | id::CLIENT_PORT => Some(request.client),
        id::LOCAL_IP | id::LOCAL_PORT => Some(request.local),
        _ => None,
    }
}

/// The value of a text field that has at most one.
pub(crate) fn text<'a>(request: &Request<'a>, gathered: &'a Gathered, field: FieldId) -> Option<&'a [u8]> {
    match field {
        id::LISTENER => Some(request.listener.as_bytes()),
        id::METHOD => Some(request.method),
        id::SCHEME => Some(request.scheme.as_bytes()),
        id::HOST => Some(gathered.host(request)),
        id::PATH => Some(request.path),
        id::SNI => gathered.sni(request),
        id::ALPN => Some(request.tls?.alpn?.as_bytes()),
        id::TLS_VERSION => Some(request.tls?.version.as_bytes()),
        id::CLIENT_SUBJECT => Some(request.tls?.client_subject?.as_bytes()),
        _ => None,
    }
}

/// Whether one value passes.
pub(crate) fn holds(test: &Test, value: &[u8], rules: &Ruleset, caches: &mut Caches) -> bool {
    match test {
        Test::OneOf(literals) if literals.len() == 1 => literals[0] == value,
        Test::OneOf(literals) => literals.binary_search_by(|literal| literal.as_slice().cmp(value)).is_ok(),
        Test::StartsWith(start) => value.starts_with(start),
        Test::EndsWith(end) => value.ends_with(end),
        Test::Contains(part) => memchr::memmem::find(value, part).is_some(),
        Test::PathPrefix(prefix) => under(value, prefix),
        Test::Matches { regex, .. } => caches.is_match(*regex, &rules.table.regexes[*regex as usize], value),
        Test::Exists => true,
        Test::Number(..) | Test::NumberIn(_) => number(value).is_some_and(|value| number_holds(test, value)),
        Test::InNets(_) => false,
    }
}

fn number_holds(test: &Test, value: f64) -> bool {
    match test {
        Test::Number(compare, literal) => compare.holds(value, literal.get()),
        Test::NumberIn(literals) => literals.iter().any(|literal| literal.get() == value),
        _ => false,
    }
}

/// `body.size`: from the complete body, otherwise from Content-Length, otherwise bounded below by the prefix.
fn body_size(request: &Request<'_>, test: &Test) -> Truth {
    let bytes = match request.body {
        Body::Complete(bytes) => return Truth::of(number_holds(test, bytes.len() as f64)),
        Body::Prefix(bytes) => Some(bytes),
        Body::Pending => None,
    };
    if let Some(length) = content_length(request) {
        return Truth::of(number_holds(test, length));
    }
    // Without Content-Length the size is any number above the bytes read. A pending body may be short.
    let Some(bytes) = bytes else { return Truth::Pending };
    let least = bytes.len() as f64 + 1.0;
    match test {
        Test::Number(compare @ (Compare::Greater | Compare::GreaterEqual), literal)
            if compare.holds(least, literal.get()) =>
        {
            Truth::True
        }
        Test::Number(compare @ (Compare::Less | Compare::LessEqual), literal)
            if !compare.holds(least, literal.get()) =>
        {
            Truth::False
        }
        Test::NumberIn(literals) if literals.iter().all(|literal| literal.get() < least) => Truth::False,
        _ => Truth::Unknown,
    }
}

fn content_length(request: &Request<'_>) -> Option<f64> {
    let named = |name: &'static [u8]| {
        request
            .headers
            .iter()
            .filter(move |(other, _)| other.eq_ignore_ascii_case(name))
            .map(|(_, value)| value)
    };
    if named(b"transfer-encoding").next().is_some() {
        return None;
    }
    let mut lengths = named(b"content-length");
    let (first, None) = (lengths.next()?, lengths.next()) else { return None };
    std::str::from_utf8(first.trim_ascii()).ok()?.parse::<u64>().ok().map(|length| length as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::field::{FIXED, Kind};
    use crate::request::TlsFacts;
    use crate::scratch::Scratch;
    use crate::spec::Limits;

    #[test]
    fn fixed_fields_are_present_in_a_complete_request() {
        let rules = Ruleset::compile(&[], &Limits::default()).unwrap();
        let tls = TlsFacts {
            sni: Some("h"),
            alpn: Some("http/1.1"),
            version: "TLSv1.3",
            client_subject: Some("CN=c"),
        };
        let request = Request {
            listener: "l",
            method: b"GET",
            scheme: "https",
            host: b"h",
            path: b"/",
            query: b"",
            headers: &[],
            client: ([192, 0, 2, 1], 50_000).into(),
            local: ([192, 0, 2, 2], 443).into(),
            tls: Some(tls),
            body: Body::Complete(b""),
        };
        let mut scratch = Scratch::new();
        scratch.begin(&rules, &request);
        for (id, field) in (0..).zip(FIXED) {
            let found = match field.kind() {
                _ if field.origin() == Origin::BodySize => continue,
                Kind::Address | Kind::Number => address(&request, id).is_some(),
                Kind::Text | Kind::TextOrNumber => text(&request, &scratch.gathered, id).is_some(),
            };
            assert!(found, "{field}");
        }
    }
}
