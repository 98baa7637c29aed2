//! Keys under which a conjunct may be registered, and the expected frequency of each.

use crate::atom::{AtomId, Net, Num, Table, Test};
use crate::dnf::Literal;
use crate::field::{Field, FieldId, Format, Kind, Origin, id};
use crate::hash::{RunningHash, Tag};
use evergate_base::spread;

use super::net_key;

/// A key; the literals are borrowed from the atoms.
#[derive(Clone, Copy, Debug)]
pub(super) enum Key<'t> {
    Equal(FieldId, &'t [u8]),
    Starts(FieldId, &'t [u8]),
    Ends(FieldId, &'t [u8]),
    Contains(FieldId, &'t [u8]),
    Regex(FieldId, u32),
    Number(FieldId, Num),
    Exists(FieldId),
    Net(FieldId, Net),
    PathPrefix(&'t [u8]),
    HostAndPath(&'t [u8], &'t [u8]),
    HostAndPrefix(&'t [u8], &'t [u8]),
}

impl Choice<'_> {
    /// The format of the body that must be read for the key.
    pub(super) fn format(&self) -> Option<Format> {
        if let Origin::Body(format) = self.origin { Some(format) } else { None }
    }
}

impl Key<'_> {
    /// Hash of the key in the map. Substrings and patterns have structures of their own and use it only for counting.
    pub(super) fn hash(&self) -> u64 {
        match *self {
            Key::Equal(field, bytes) => RunningHash::of(bytes).key(Tag::Equal, field),
            Key::Starts(field, bytes) => RunningHash::of(bytes).key(Tag::Starts, field),
            Key::Ends(field, bytes) => RunningHash::of_reversed(bytes).key(Tag::Ends, field),
            Key::Contains(field, bytes) => spread(RunningHash::of(bytes).key(Tag::Starts, field)),
            Key::Regex(field, regex) => spread(RunningHash::of(&regex.to_le_bytes()).key(Tag::Ends, field)),
            Key::Number(field, number) => RunningHash::of(&number.to_bytes()).key(Tag::Number, field),
            Key::Exists(field) => RunningHash::new().key(Tag::Exists, field),
            Key::Net(field, net) => net_key(&net, field),
            Key::PathPrefix(prefix) => RunningHash::of(prefix).key(Tag::PathPrefix, id::PATH),
            Key::HostAndPath(host, path) => {
                RunningHash::of(path).with_host(RunningHash::of(host), Tag::HostAndPath)
            }
            Key::HostAndPrefix(host, prefix) => {
                RunningHash::of(prefix).with_host(RunningHash::of(host), Tag::HostAndPrefix)
            }
        }
    }
}

/// One way to register a conjunct: under all of these keys.
pub(super) struct Choice<'t> {
    pub(super) keys: Vec<Key<'t>>,
    /// Expected share of requests that hit one of the keys.
    pub(super) share: f64,
    /// Source of the values of its keys.
    pub(super) origin: Origin,
}

/// Limit of combined host and path values of `in [..]`; a larger combination is not registered.
const PAIRS_MAX: usize = 64;

/// All ways to register a conjunct; empty if only the residual list remains.
pub(super) fn choices<'t>(conjunct: &[Literal], table: &'t Table) -> Vec<Choice<'t>> {
    let positive: Vec<AtomId> =
        conjunct.iter().filter(|literal| !literal.negated()).map(|literal| literal.atom()).collect();
    let mut all: Vec<Choice<'t>> = positive.iter().filter_map(|&atom| single(atom, table)).collect();
    let values = |field: FieldId| {
        positive.iter().map(|&atom| table.atom(atom)).find_map(move |atom| match &atom.test {
            Test::OneOf(values) if atom.field == field => Some(values),
            _ => None,
        })
    };
    let Some(hosts) = values(id::HOST) else { return all };
    if let Some(paths) = values(id::PATH).filter(|paths| paths.len() * hosts.len() <= PAIRS_MAX) {
        let pairs = hosts.iter().flat_map(|host| paths.iter().map(move |path| Key::HostAndPath(host, path)));
        all.push(Choice { keys: pairs.collect(), share: 0.001, origin: Origin::Single });
    }
    for &atom in &positive {
        if let Test::PathPrefix(prefix) = &table.atom(atom).test
            && hosts.len() <= PAIRS_MAX
        {
            let keys = hosts.iter().map(|host| Key::HostAndPrefix(host, prefix)).collect();
            all.push(Choice {
                keys,
                share: if prefix.is_empty() { 0.05 } else { 0.005 },
                origin: Origin::Single,
            });
        }
    }
    all
}

fn single(atom: AtomId, table: &Table) -> Option<Choice<'_>> {
    let field = table.field_of(atom);
    let (id, test) = (table.atom(atom).field, &table.atom(atom).test);
    let origin = field.origin();
    // The size may be unknown, and then no key would find the conjunct.
    if origin == Origin::BodySize {
        return None;
    }
    let length = |bytes: &[u8]| bytes.len().max(1) as f64;
    let (keys, share) = match test {
        Test::OneOf(values) => {
            let share = match field {
                Field::Path => 0.002,
                Field::Method | Field::Scheme | Field::Alpn | Field::TlsVersion | Field::Listener => 0.5,
                _ => 0.05,
            };
            (values.iter().map(|value| Key::Equal(id, value)).collect(), share)
        }
        Test::NumberIn(numbers) => (numbers.iter().map(|&number| Key::Number(id, number)).collect(), 0.05),
        Test::InNets(nets) => {
            let share = |net: &Net| 0.5f64.powi(i32::from(net.length) / if net.v6 { 4 } else { 2 });
            (nets.iter().map(|&net| Key::Net(id, net)).collect(), nets.iter().map(share).fold(0.0, f64::max))
        }
        Test::PathPrefix(prefix) => {
            (vec![Key::PathPrefix(prefix)], if prefix.is_empty() { 0.9 } else { 0.02 })
        }
        Test::StartsWith(start) => (vec![Key::Starts(id, start)], 0.5 / length(start)),
        Test::EndsWith(end) => (vec![Key::Ends(id, end)], 0.5 / length(end)),
        Test::Contains(part) => (vec![Key::Contains(id, part)], 0.6 / length(part)),
        Test::Matches { pattern, regex } => match literal_start(pattern) {
            // Only for fields whose bytes are compared unchanged.
            Some(range) if !field.ignores_case() => {
                let start = &pattern.as_bytes()[range];
                (vec![Key::Starts(id, start)], 0.5 / length(start))
            }
            _ => (vec![Key::Regex(id, *regex)], 0.3),
        },
        Test::Exists | Test::Number(..) if field.kind() == Kind::TextOrNumber => (vec![Key::Exists(id)], 0.3),
        Test::Exists | Test::Number(..) => return None,
    };
    Some(Choice { keys, share, origin })
}

/// The range of a pattern that every match starts with: `^`, then letters, digits and a few plain signs. A construct
/// that could make these optional (alternation, a repetition of the last character) ends or forbids the range.
fn literal_start(pattern: &str) -> Option<std::ops::Range<usize>> {
    let bytes = pattern.as_bytes();
    if bytes.first() != Some(&b'^') || pattern.contains('|') || pattern.contains("(?") {
        return None;
    }
    let plain = |byte: u8| {
        byte.is_ascii_alphanumeric() || matches!(byte, b'/' | b'_' | b'-' | b'=' | b',' | b':' | b'~')
    };
    let mut end = 1;
    while end < bytes.len() && plain(bytes[end]) {
        end += 1;
    }
    if bytes.get(end).is_some_and(|next| matches!(next, b'*' | b'?' | b'+' | b'{')) {
        end -= 1;
    }
    (end > 1).then_some(1..end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literal_start_begins_every_match() {
        for (pattern, start) in [
            ("^/api/v[12]", Some("/api/v")),
            ("^/ab?c", Some("/a")),
            ("^/ab*", Some("/a")),
            ("^a{0}", None),
            ("^/a|/b", None),
            ("/a", None),
            ("^", None),
            ("^(?i)/a", None),
            (r"^/a\.b", Some("/a")),
        ] {
            assert_eq!(literal_start(pattern).map(|range| &pattern[range]), start, "{pattern}");
        }
    }
}
