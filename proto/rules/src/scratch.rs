//! Reusable memory of a worker for decisions: values taken from the request, candidate lists, caches of the regular
//! expressions. Only its capacity outlives a decision.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

use regex_automata::meta::Cache;
use regex_automata::{Input, PatternSet, meta};

use crate::body::{Media, Reach, Value, decode_form, is_clear_name, is_clear_value, is_split_alike};
use crate::cookie;
use crate::field::{FieldId, Format, Origin};
use crate::lang::canonical_address;
use crate::request::{Body, Request};
use crate::ruleset::Ruleset;

/// Memory that [`Ruleset::decide`] reuses; one per worker, for any rule set.
#[derive(Debug, Default)]
pub struct Scratch {
    owner: u64,
    epoch: u32,
    pub(crate) gathered: Gathered,
    pub(crate) merge: Merge,
    pub(crate) caches: Caches,
}

impl Scratch {
    /// Empty scratch memory.
    pub fn new() -> Scratch {
        Scratch::default()
    }

    /// Clears the last request, and everything if the rule set is another one.
    pub(crate) fn begin(&mut self, rules: &Ruleset, request: &Request<'_>) {
        if self.owner != rules.identity || self.epoch == u32::MAX {
            *self = Scratch { owner: rules.identity, ..Scratch::default() };
            self.gathered.heads.resize(rules.table.fields.len(), Head::default());
            self.merge.stamps.resize(rules.index.lists_len(), 0);
            self.caches.single.resize_with(rules.table.regexes.len(), || None);
        }
        self.epoch += 1;
        self.gathered.begin(self.epoch, request);
        self.merge.begin(self.epoch);
    }
}

/// The lists of candidates, merged in order of precedence.
#[derive(Debug, Default)]
pub(crate) struct Merge {
    epoch: u32,
    /// Epoch in which each list was added: a value that occurs twice adds its list once.
    stamps: Vec<u32>,
    /// Next conjunct of each list, its position, and the list's end.
    heap: BinaryHeap<Reverse<(u32, u32, u32)>>,
}

impl Merge {
    fn begin(&mut self, epoch: u32) {
        self.epoch = epoch;
        self.heap.clear();
    }

    #[inline]
    pub(crate) fn add(&mut self, list: u32, (start, end): (u32, u32), postings: &[u32]) {
        let stamp = &mut self.stamps[list as usize];
        if *stamp != self.epoch && start < end {
            *stamp = self.epoch;
            self.heap.push(Reverse((postings[start as usize], start, end)));
        }
    }

    /// The next candidate; a candidate of several lists comes several times.
    #[inline]
    pub(crate) fn next(&mut self, postings: &[u32]) -> Option<u32> {
        let mut top = self.heap.peek_mut()?;
        let Reverse((conjunct, at, end)) = *top;
        if at + 1 < end {
            *top = Reverse((postings[at as usize + 1], at + 1, end));
        } else {
            std::collections::binary_heap::PeekMut::pop(top);
        }
        Some(conjunct)
    }
}

/// Caches of the regular expressions: owned, so that workers share no lock.
#[derive(Debug, Default)]
pub(crate) struct Caches {
    single: Vec<Option<Box<Cache>>>,
    sets: Vec<Option<Box<(Cache, PatternSet)>>>,
}

impl Caches {
    pub(crate) fn is_match(&mut self, id: u32, regex: &meta::Regex, value: &[u8]) -> bool {
        let cache = self.single[id as usize].get_or_insert_with(|| Box::new(regex.create_cache()));
        regex.search_half_with(cache, &Input::new(value).earliest(true)).is_some()
    }

    /// The patterns of a set that match.
    pub(crate) fn which(&mut self, id: usize, regex: &meta::Regex, value: &[u8]) -> &PatternSet {
        if self.sets.len() <= id {
            self.sets.resize_with(id + 1, || None);
        }
        let entry = self.sets[id]
            .get_or_insert_with(|| Box::new((regex.create_cache(), PatternSet::new(regex.pattern_len()))));
        let (cache, set) = &mut **entry;
        set.clear();
        regex.which_overlapping_matches_with(cache, &Input::new(value), set);
        set
    }
}

const NONE: u32 = u32::MAX;

/// First and last value of a field, and the epoch in which they were found.
#[derive(Clone, Copy, Debug, Default)]
struct Head {
    epoch: u32,
    first: u32,
    last: u32,
}

/// Location of a value's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// In [`Gathered::text`].
    Text,
    Query,
    Header(u32),
    /// Exists without text.
    Opaque,
    /// Exists, and its text is unknown.
    Long,
    /// Not a value: servers may find other values than the listed ones.
    Unclear,
}

/// One value found.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found {
    pub(crate) field: FieldId,
    next: u32,
    place: Place,
    start: u32,
    end: u32,
}

/// State of the body's fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyView {
    /// No field of a body has a value.
    Nothing,
    /// Fields of this format depend on bytes that were not read.
    Pending(Format),
    /// Fields of this format were read up to this point.
    Read(Format, Reach),
    /// All fields are undecidable.
    Opaque,
}

/// Values taken from one request, gathered on demand.
#[derive(Debug, Default)]
pub(crate) struct Gathered {
    epoch: u32,
    text: Vec<u8>,
    found: Vec<Found>,
    heads: Vec<Head>,
    query: bool,
    headers: bool,
    cookies: bool,
    /// Whether servers may find other values of any parameter of the query, and of some field ([`Place::Unclear`]).
    query_unclear: bool,
    field_unclear: bool,
    body: Option<BodyView>,
    /// Host and server name in the spelling of comparisons, if the request has another: their ranges in `text`.
    host: Option<(usize, usize)>,
    sni: Option<(usize, usize)>,
}

impl Gathered {
    fn begin(&mut self, epoch: u32, request: &Request<'_>) {
        self.epoch = epoch;
        self.text.clear();
        self.found.clear();
        (self.query, self.headers, self.cookies, self.body) = (false, false, false, None);
        (self.query_unclear, self.field_unclear) = (false, false);
        self.host = match request.host {
            [b'[', ..] => self.fold_address(request.host),
            host => self.fold(host),
        };
        self.sni = request.tls.and_then(|tls| tls.sni).and_then(|sni| self.fold(sni.as_bytes()));
    }

    fn fold(&mut self, value: &[u8]) -> Option<(usize, usize)> {
        if !value.iter().any(u8::is_ascii_uppercase) {
            return None;
        }
        let start = self.text.len();
        self.text.extend(value.iter().map(u8::to_ascii_lowercase));
        Some((start, self.text.len()))
    }

    /// Brings an IPv6 address to its canonical spelling (RFC 5952).
    #[cold]
    fn fold_address(&mut self, host: &[u8]) -> Option<(usize, usize)> {
        let Some(spelled) = canonical_address(host) else { return self.fold(host) };
        let start = self.text.len();
        self.text.extend(spelled.bytes());
        Some((start, self.text.len()))
    }

    pub(crate) fn host<'a>(&'a self, request: &Request<'a>) -> &'a [u8] {
        self.host.map_or(request.host, |(start, end)| &self.text[start..end])
    }

    pub(crate) fn sni<'a>(&'a self, request: &Request<'a>) -> Option<&'a [u8]> {
        let sni = request.tls?.sni?;
        Some(self.sni.map_or(sni.as_bytes(), |(start, end)| &self.text[start..end]))
    }

    /// Number of values found so far; use it with [`Self::at`] to visit them.
    pub(crate) fn len(&self) -> usize {
        self.found.len()
    }

    pub(crate) fn at(&self, at: usize) -> Found {
        self.found[at]
    }

    /// The bytes of a value; `None` if it exists without text, or its text is unknown.
    #[inline]
    pub(crate) fn bytes<'a>(&'a self, found: Found, request: &Request<'a>) -> Option<&'a [u8]> {
        let range = found.start as usize..found.end as usize;
        match found.place {
            Place::Text => Some(&self.text[range]),
            Place::Query => Some(&request.query[range]),
            Place::Header(line) => Some(&request.headers[line as usize].1[range]),
            Place::Opaque | Place::Long | Place::Unclear => None,
        }
    }

    /// Whether the value exists and its text is unknown.
    pub(crate) fn is_long(found: Found) -> bool {
        found.place == Place::Long
    }

    /// The values of a field, in order.
    pub(crate) fn values(&self, field: FieldId) -> impl Iterator<Item = Found> + '_ {
        self.all(field).filter(|found| found.place != Place::Unclear)
    }

    /// Whether servers may find other values of the field. Call [`Self::gather`] first.
    pub(crate) fn is_unclear(&self, origin: Origin, field: FieldId) -> bool {
        (self.query_unclear && origin == Origin::Query)
            || (self.field_unclear && self.all(field).any(|found| found.place == Place::Unclear))
    }

    /// Whether servers may find other values of any field that rules use.
    pub(crate) fn is_any_unclear(&self) -> bool {
        self.query_unclear || self.field_unclear
    }

    fn all(&self, field: FieldId) -> impl Iterator<Item = Found> + '_ {
        let head = self.heads[field as usize];
        let mut at = if head.epoch == self.epoch { head.first } else { NONE };
        std::iter::from_fn(move || {
            let found = *self.found.get(at as usize)?;
            at = found.next;
            Some(found)
        })
    }

    fn push(&mut self, field: FieldId, place: Place, start: usize, end: usize) {
        let at = self.found.len() as u32;
        self.found.push(Found { field, next: NONE, place, start: start as u32, end: end as u32 });
        let head = &mut self.heads[field as usize];
        if head.epoch == self.epoch {
            self.found[head.last as usize].next = at;
            head.last = at;
        } else {
            *head = Head { epoch: self.epoch, first: at, last: at };
        }
    }

    fn push_unclear(&mut self, field: FieldId) {
        self.field_unclear = true;
        self.push(field, Place::Unclear, 0, 0);
    }

    fn push_text(&mut self, field: FieldId, text: &[u8]) {
        let start = self.text.len();
        self.text.extend_from_slice(text);
        self.push(field, Place::Text, start, self.text.len());
    }

    /// Takes the values that come from `origin`, once per request.
    pub(crate) fn gather(&mut self, origin: Origin, rules: &Ruleset, request: &Request<'_>) {
        match origin {
            Origin::Header if !self.headers => self.gather_headers(rules, request),
            Origin::Query if !self.query => self.gather_query(rules, request),
            Origin::Cookie if !self.cookies => self.gather_cookies(rules, request),
            Origin::Body(_) if self.body.is_none() => self.body = Some(self.gather_body(rules, request)),
            _ => {}
        }
    }

    fn gather_headers(&mut self, rules: &Ruleset, request: &Request<'_>) {
        self.headers = true;
        for (line, (name, value)) in (0..).zip(request.headers) {
            if let Some(field) = rules.names.headers.get_header(name) {
                let start = value.len() - value.trim_ascii_start().len();
                self.push(field, Place::Header(line), start, start + value.trim_ascii().len());
            }
        }
    }

    fn gather_query(&mut self, rules: &Ruleset, request: &Request<'_>) {
        self.query = true;
        let mut clear = is_split_alike(request.query);
        let mut start = 0;
        while start < request.query.len() {
            let rest = &request.query[start..];
            let length = memchr::memchr(b'&', rest).unwrap_or(rest.len());
            let pair = &rest[..length];
            let equals = memchr::memchr(b'=', pair).unwrap_or(length);
            let name = decode_form(&pair[..equals]);
            clear &= is_clear_name(&pair[..equals], &name);
            if let Some(field) = rules.names.query.get(&name) {
                let from = (equals + 1).min(length);
                let value = decode_form(&pair[from..]);
                if !is_clear_value(&pair[from..], &value) {
                    self.push_unclear(field);
                }
                match value {
                    Cow::Borrowed(_) => self.push(field, Place::Query, start + from, start + length),
                    Cow::Owned(value) => self.push_text(field, &value),
                }
            }
            start += length + 1;
        }
        self.query_unclear = !clear;
    }

    fn gather_cookies(&mut self, rules: &Ruleset, request: &Request<'_>) {
        self.cookies = true;
        let names = &rules.names.cookies;
        for (line, (name, value)) in (0..).zip(request.headers) {
            if !name.eq_ignore_ascii_case(b"cookie") {
                continue;
            }
            let mut start = 0;
            while start < value.len() {
                let length = memchr::memchr(b';', &value[start..]).unwrap_or(value.len() - start);
                let end = start + length;
                for field in cookie::hidden(&value[start..end]).filter_map(|name| names.get(name)) {
                    self.push_unclear(field);
                }
                let equals = memchr::memchr(b'=', &value[start..end]);
                if let Some(at) = equals.map(|at| start + at)
                    && let Some(field) = names.get(value[start..at].trim_ascii())
                {
                    let content = &value[at + 1..end];
                    let from = at + 1 + content.len() - content.trim_ascii_start().len();
                    let content = content.trim_ascii();
                    self.push(field, Place::Header(line), from, from + content.len());
                    if !cookie::other_readings(content, |other| self.push_text(field, other)) {
                        self.push_unclear(field);
                    }
                }
                start = end + 1;
            }
        }
    }

    fn gather_body(&mut self, rules: &Ruleset, request: &Request<'_>) -> BodyView {
        let (bytes, whole) = match request.body {
            Body::Complete([]) => return BodyView::Nothing,
            Body::Complete(bytes) => (Some(bytes), true),
            Body::Prefix(bytes) => (Some(bytes), false),
            Body::Pending => (None, false),
        };
        let media = Media::of(request.headers);
        let format = match (media, media.format()) {
            (Media::Opaque, _) => return BodyView::Opaque,
            (_, None) => return BodyView::Nothing,
            (_, Some(format)) => format,
        };
        let Some(bytes) = bytes else { return BodyView::Pending(format) };
        let mut sink = |field, value: Value<'_>| match value {
            Value::Text(text) => self.push_text(field, text),
            Value::Opaque => self.push(field, Place::Opaque, 0, 0),
            Value::Long => self.push(field, Place::Long, 0, 0),
        };
        BodyView::Read(format, rules.wanted.read(media, bytes, whole, &rules.limits, &mut sink))
    }

    /// State of the body's fields. Call [`Self::gather`] first.
    pub(crate) fn body(&self) -> BodyView {
        self.body.unwrap_or(BodyView::Nothing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Limits, Outcome, RuleSpec, Witness};

    const RULES: usize = 600;

    fn matched(rules: &Ruleset, scratch: &mut Scratch, agent: &str) -> usize {
        let headers = vec![("User-Agent".into(), agent.into())];
        Witness { path: "/".into(), headers, ..Witness::default() }.with(|request| {
            match rules.decide(request, scratch) {
                Outcome::Decided(decision) => decision.matched.iter().count(),
                Outcome::NeedBody => panic!("there is no body"),
            }
        })
    }

    /// Match positions would be stored for each pattern in each state of all: gigabytes.
    #[test]
    fn hundreds_of_patterns_on_one_field_take_little_memory() {
        let rule = |number: usize| RuleSpec {
            name: format!("r{number}"),
            when: format!(r#"header("user-agent").matches(r"(?i)\b(tool{number}|nikto)[/ ]?\d+(\.\d+)*")"#),
            ..RuleSpec::default()
        };
        let specs: Vec<RuleSpec> = (0..RULES).map(rule).collect();
        let rules = Ruleset::compile(&specs, &Limits::default()).unwrap();
        let mut scratch = Scratch::new();
        assert_eq!(matched(&rules, &mut scratch, "Mozilla/5.0 (X11; Linux x86_64) Chrome/126.0.0.0"), 0);
        assert_eq!(matched(&rules, &mut scratch, "a Nikto 3"), RULES);
        assert_eq!(matched(&rules, &mut scratch, "\u{e9} TOOL77/1.2 tool599.9 tool599/9"), 5);
        let memory: usize = scratch.caches.sets.iter().flatten().map(|set| set.0.memory_usage()).sum();
        assert!(memory < 32 << 20, "{memory} bytes");
    }
}
