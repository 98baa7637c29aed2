//! Atoms: one field compared with literals. Equal atoms of a rule set are stored once.

use std::collections::HashMap;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::net::IpAddr;

use regex_automata::meta;

use crate::field::{Field, FieldId, Fields};

pub(crate) type AtomId = u32;

/// One comparison.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Atom {
    pub(crate) field: FieldId,
    pub(crate) test: Test,
}

/// Test of a field's value.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Test {
    /// Sorted, without repetition.
    OneOf(Vec<Vec<u8>>),
    StartsWith(Vec<u8>),
    EndsWith(Vec<u8>),
    Contains(Vec<u8>),
    /// Whole segments without a trailing slash, so `/` is empty.
    PathPrefix(Vec<u8>),
    Matches {
        pattern: String,
        regex: u32,
    },
    Exists,
    Number(Compare, Num),
    /// Sorted, without repetition.
    NumberIn(Vec<Num>),
    InNets(Vec<Net>),
}

/// Comparison of numbers by size; equality is [`Test::NumberIn`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Compare {
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
}

impl Compare {
    pub(crate) fn holds(self, value: f64, literal: f64) -> bool {
        match self {
            Compare::Less => value < literal,
            Compare::LessEqual => value <= literal,
            Compare::Greater => value > literal,
            Compare::GreaterEqual => value >= literal,
        }
    }

    pub(crate) fn sign(self) -> &'static str {
        match self {
            Compare::Less => "<",
            Compare::LessEqual => "<=",
            Compare::Greater => ">",
            Compare::GreaterEqual => ">=",
        }
    }
}

/// A finite number; `-0` is `0`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Num(f64);

impl Num {
    pub(crate) fn new(value: f64) -> Option<Num> {
        value.is_finite().then_some(Num(if value == 0.0 { 0.0 } else { value }))
    }

    pub(crate) fn get(self) -> f64 {
        self.0
    }

    /// The finite number that `text` spells.
    pub(crate) fn parse(text: &[u8]) -> Option<Num> {
        Num::new(number(text)?)
    }

    pub(crate) fn to_bytes(self) -> [u8; 8] {
        self.0.to_bits().to_le_bytes()
    }
}

impl PartialEq for Num {
    fn eq(&self, other: &Num) -> bool {
        self.0.to_bits() == other.0.to_bits()
    }
}

impl Eq for Num {}

impl Hash for Num {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.to_bits().hash(state);
    }
}

impl fmt::Display for Num {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Reads a decimal number as servers do: sign, digits, fraction, exponent, and blanks around. The text may have any
/// length, since the sources bound their values, and may lack the digits on one side of its point. A number past the
/// largest `f64` is infinite: it compares as larger than every literal and equals none.
///
/// Not accepted: hexadecimal, `inf`, and grouping, since `1,000` means one thousand only in some locales.
pub(crate) fn number(text: &[u8]) -> Option<f64> {
    let text = std::str::from_utf8(text).ok()?.trim_matches([' ', '\t', '\n', '\x0b', '\x0c', '\r']);
    let allowed = |byte: u8| matches!(byte, b'0'..=b'9' | b'.' | b'e' | b'E' | b'+' | b'-');
    if text.bytes().all(allowed) { text.parse().ok() } else { None }
}

/// An address range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Net {
    /// Whether the family is IPv6.
    pub(crate) v6: bool,
    /// First address; IPv4 in the low 32 bits.
    pub(crate) bits: u128,
    /// Prefix length in bits of the family.
    pub(crate) length: u8,
}

/// An address as family and bits. IPv4-mapped IPv6 counts as IPv4, because listeners on `::` see IPv4 clients that way.
pub(crate) fn address_bits(address: IpAddr) -> (bool, u128) {
    match address.to_canonical() {
        IpAddr::V4(v4) => (false, u128::from(u32::from(v4))),
        IpAddr::V6(v6) => (true, u128::from(v6)),
    }
}

impl Net {
    /// Zeroes the bits of an address behind the prefix.
    pub(crate) fn mask(v6: bool, bits: u128, length: u8) -> u128 {
        let host_bits = u32::from(if v6 { 128 } else { 32 } - length);
        bits.checked_shr(host_bits).and_then(|kept| kept.checked_shl(host_bits)).unwrap_or(0)
    }

    pub(crate) fn contains(&self, (v6, bits): (bool, u128)) -> bool {
        v6 == self.v6 && Net::mask(v6, bits, self.length) == self.bits
    }

    pub(crate) fn covers(&self, other: &Net) -> bool {
        self.length <= other.length && self.contains((other.v6, other.bits))
    }

    pub(crate) fn address(&self) -> IpAddr {
        if self.v6 { IpAddr::V6(self.bits.into()) } else { IpAddr::V4((self.bits as u32).into()) }
    }
}

impl fmt::Display for Net {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.length == if self.v6 { 128 } else { 32 } {
            write!(f, "{}", self.address())
        } else {
            write!(f, "{}/{}", self.address(), self.length)
        }
    }
}

/// Whether `path` lies under `prefix` by whole segments, as in Gateway API.
pub(crate) fn under(path: &[u8], prefix: &[u8]) -> bool {
    match path.strip_prefix(prefix) {
        Some(rest) => rest.first() == Some(&b'/') || (rest.is_empty() && !prefix.is_empty()),
        None => false,
    }
}

/// Fields, atoms and regular expressions of a rule set.
#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) fields: Fields,
    atoms: Vec<Atom>,
    atom_ids: HashMap<Atom, AtomId>,
    pub(crate) regexes: Vec<meta::Regex>,
    patterns: Vec<String>,
    regex_ids: HashMap<(String, bool), u32>,
}

/// A builder with the common settings of all regular expressions of this crate: bytes, bounded size.
pub(crate) fn regex_builder(ignore_case: bool, bytes_max: usize) -> meta::Builder {
    let mut builder = meta::Builder::new();
    builder
        .configure(
            meta::Config::new()
                .utf8_empty(false)
                .nfa_size_limit(Some(bytes_max))
                .hybrid_cache_capacity(bytes_max.max(1 << 20)),
        )
        .syntax(
            regex_automata::util::syntax::Config::new()
                .utf8(false)
                .case_insensitive(ignore_case)
                .nest_limit(64),
        );
    builder
}

impl Table {
    pub(crate) fn new() -> Table {
        Table {
            fields: Fields::new(),
            atoms: Vec::new(),
            atom_ids: HashMap::new(),
            regexes: Vec::new(),
            patterns: Vec::new(),
            regex_ids: HashMap::new(),
        }
    }

    pub(crate) fn intern(&mut self, atom: Atom) -> AtomId {
        let next = self.atoms.len() as AtomId;
        *self.atom_ids.entry(atom).or_insert_with_key(|atom| {
            self.atoms.push(atom.clone());
            next
        })
    }

    pub(crate) fn atom(&self, id: AtomId) -> &Atom {
        &self.atoms[id as usize]
    }

    pub(crate) fn field_of(&self, id: AtomId) -> &Field {
        self.fields.get(self.atom(id).field)
    }

    /// Compiles a pattern once per rule set; the error is the reason as text.
    pub(crate) fn regex(
        &mut self,
        pattern: &str,
        ignore_case: bool,
        bytes_max: usize,
    ) -> Result<u32, String> {
        let key = (pattern.to_owned(), ignore_case);
        if let Some(&id) = self.regex_ids.get(&key) {
            return Ok(id);
        }
        let regex = regex_builder(ignore_case, bytes_max).build(pattern).map_err(|error| {
            let cause: &dyn std::error::Error = &error;
            cause.source().map_or_else(|| error.to_string(), |source| source.to_string())
        })?;
        let id = self.regexes.len() as u32;
        self.regexes.push(regex);
        self.patterns.push(pattern.to_owned());
        self.regex_ids.insert(key, id);
        Ok(id)
    }

    /// The source of a regular expression.
    pub(crate) fn pattern(&self, regex: u32) -> &str {
        &self.patterns[regex as usize]
    }

    /// The atom in the syntax of conditions.
    pub(crate) fn show(&self, id: AtomId, negated: bool) -> String {
        let atom = self.atom(id);
        let field = self.fields.get(atom.field);
        let text = |bytes: &[u8]| format!("\"{}\"", bytes.escape_ascii());
        let list = |items: Vec<String>| {
            if items.len() == 1 {
                format!("{field} {} {}", if negated { "!=" } else { "==" }, items[0])
            } else {
                let not = if negated { "!" } else { "" };
                format!("{not}({field} in [{}])", items.join(", "))
            }
        };
        let call = |method: &str, argument: String| {
            let not = if negated { "!" } else { "" };
            format!("{not}{field}.{method}({argument})")
        };
        match &atom.test {
            Test::OneOf(values) => list(values.iter().map(|value| text(value)).collect()),
            Test::NumberIn(values) => list(values.iter().map(|value| value.to_string()).collect()),
            Test::InNets(nets) => list(nets.iter().map(|net| format!("\"{net}\"")).collect()),
            Test::StartsWith(start) => call("starts_with", text(start)),
            Test::EndsWith(end) => call("ends_with", text(end)),
            Test::Contains(part) => call("contains", text(part)),
            Test::PathPrefix(prefix) => {
                call("path_prefix", if prefix.is_empty() { text(b"/") } else { text(prefix) })
            }
            Test::Matches { pattern, .. } => call("matches", format!("{pattern:?}")),
            Test::Exists => call("exists", String::new()),
            Test::Number(compare, number) => match negated {
                true => format!("!({field} {} {number})", compare.sign()),
                false => format!("{field} {} {number}", compare.sign()),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_plain_decimals() {
        let cases = [("52001", 52001.0), (" -1.5 ", -1.5), ("+2", 2.0), ("1e3", 1000.0), ("-0", 0.0)];
        for (text, value) in cases {
            assert_eq!(Num::parse(text.as_bytes()), Num::new(value), "{text}");
        }
        for text in ["", "-", ".", "1,000", "0x10", "inf", "nan", "1e", "e5", ".e3", "5 5", "1.2.3", "१"] {
            assert_eq!(number(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn numbers_are_read_in_every_spelling_of_servers() {
        let long = [
            format!("101.{}", "0".repeat(5000)),
            format!("{}101", "0".repeat(5000)),
            format!(" \u{b}101.{}1\u{c}", "0".repeat(60)),
        ];
        for text in &long {
            assert_eq!(number(text.as_bytes()), Some(101.0), "{text}");
        }
        for (text, value) in [("101.", 101.0), (".5e9", 5e8), ("-.5", -0.5), ("1.e3", 1000.0)] {
            assert_eq!(number(text.as_bytes()), Some(value), "{text}");
        }
    }

    #[test]
    fn numbers_past_the_largest_are_infinite() {
        let digits = "9".repeat(400);
        for text in ["9e400", "9e99999999999999999999", digits.as_str()] {
            assert_eq!(number(text.as_bytes()), Some(f64::INFINITY), "{text}");
            assert_eq!(number(format!("-{text}").as_bytes()), Some(f64::NEG_INFINITY), "{text}");
            assert_eq!(Num::parse(text.as_bytes()), None, "{text}");
        }
        assert_eq!(number(b"9e-400"), Some(0.0));
    }

    #[test]
    fn prefixes_match_by_whole_segments() {
        for (path, prefix, holds) in [
            ("/api", "/api", true),
            ("/api/", "/api", true),
            ("/api/x", "/api", true),
            ("/apix", "/api", false),
            ("/ap", "/api", false),
            ("/", "", true),
            ("/x", "", true),
            ("*", "", false),
        ] {
            assert_eq!(under(path.as_bytes(), prefix.as_bytes()), holds, "{path} under {prefix}");
        }
    }

    #[test]
    fn nets_contain_by_prefix_and_family() {
        let all_v6 = Net { v6: true, bits: 0, length: 0 };
        assert!(all_v6.contains(address_bits("2001:db8::1".parse().unwrap())));
        assert!(!all_v6.contains(address_bits("::ffff:10.0.0.1".parse().unwrap())));
        let ten = Net { v6: false, bits: 10 << 24, length: 8 };
        assert!(ten.contains(address_bits("::ffff:10.9.0.1".parse().unwrap())));
        assert!(ten.covers(&Net { v6: false, bits: 10 << 24 | 5, length: 32 }));
        assert!(!ten.covers(&Net { v6: false, bits: 0, length: 0 }));
    }
}
