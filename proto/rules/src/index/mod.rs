//! Index from a request to the few conjuncts that can hold.
//!
//! Each conjunct is registered under one of its atoms: the one expected to find it least often, given how many other
//! conjuncts share the key ([`build()`]). Only structures that have entries are probed. The lists found are merged by
//! precedence, so evaluation stops at the winner.
//!
//! Invariant: a conjunct that is not false for a request is among its candidates, unless it is unknown and its rule
//! ignores unknown.

mod build;
mod key;

pub(crate) use build::{Built, build};

use aho_corasick::AhoCorasick;
use regex_automata::meta;

use crate::atom::{Net, Num, address_bits};
use crate::body::Reach;
use crate::eval;
use crate::field::{FieldId, Origin, id};
use crate::hash::{KeyMap, RunningHash, Tag};
use crate::request::Request;
use crate::ruleset::Ruleset;
use crate::scratch::{BodyView, Caches, Gathered, Merge};

/// No list.
const NONE: u32 = u32::MAX;

/// The index of a rule set.
#[derive(Debug, Default)]
pub(crate) struct Index {
    /// From hashed key to list.
    map: KeyMap<u32>,
    /// One bit per slot of the key's hash: most probes end here, within the CPU cache.
    filter: Vec<u64>,
    /// Ranges of `postings`.
    lists: Vec<(u32, u32)>,
    /// Conjuncts, ascending within a list.
    postings: Vec<u32>,
    /// Conjuncts without an indexable atom: always candidates.
    residual: u32,
    /// Conjuncts registered under a value of a form, JSON or XML body: all are candidates while the body is unread.
    bodies: [u32; 3],
    /// Conjuncts registered under a value of the query or of a cookie whose rule acts on unknown: all are candidates
    /// when servers read the query or the cookies in several ways.
    unclear: [u32; 2],
    path: PathProbe,
    /// One per field with entries.
    probes: Vec<Probe>,
    /// Position in `probes`, by field.
    probe_of: Vec<u32>,
    /// Probes of fields that have at most one value.
    singles: Vec<u32>,
    /// Whether any header has a probe.
    headers: bool,
    query: bool,
    cookies: bool,
    body: bool,
}

/// Entries for paths by segments, alone or with a host.
#[derive(Debug, Default)]
struct PathProbe {
    prefix: bool,
    host_and_path: bool,
    host_and_prefix: bool,
    prefix_length_max: usize,
}

/// Entries for one field.
#[derive(Debug, Default)]
struct Probe {
    field: FieldId,
    equal: bool,
    number: bool,
    exists: bool,
    /// Lengths of the registered starts and ends, ascending.
    starts: Vec<u32>,
    ends: Vec<u32>,
    contains: Option<(AhoCorasick, Vec<u32>)>,
    /// Sets of patterns, with the list of each pattern and the index of the set's cache.
    regexes: Vec<(meta::Regex, Vec<u32>, usize)>,
    /// Prefix lengths of the registered ranges.
    v4: Vec<u8>,
    v6: Vec<u8>,
}

/// Adds lists to the merge.
struct Collect<'a> {
    index: &'a Index,
    merge: &'a mut Merge,
    caches: &'a mut Caches,
}

impl Index {
    pub(crate) fn lists_len(&self) -> usize {
        self.lists.len()
    }

    pub(crate) fn postings(&self) -> &[u32] {
        &self.postings
    }

    /// Adds the lists of all conjuncts that can hold for the request.
    pub(crate) fn candidates(
        &self,
        rules: &Ruleset,
        request: &Request<'_>,
        gathered: &mut Gathered,
        merge: &mut Merge,
        caches: &mut Caches,
    ) {
        let mut collect = Collect { index: self, merge, caches };
        collect.list(self.residual);
        if self.path.prefix || self.path.host_and_path || self.path.host_and_prefix {
            collect.path(gathered.host(request), request.path);
        }
        for &probe in &self.singles {
            let probe = &self.probes[probe as usize];
            match (eval::address(request, probe.field), probe.field) {
                (Some(address), id::CLIENT_IP | id::LOCAL_IP) => {
                    collect.address(probe, address_bits(address.ip()))
                }
                (Some(address), _) => collect.number(probe, Num::new(f64::from(address.port()))),
                (None, field) => {
                    if let Some(value) = eval::text(request, gathered, field) {
                        collect.value(probe, value);
                    }
                }
            }
        }
        let sources = [
            (self.headers, Origin::Header, NONE),
            (self.query, Origin::Query, self.unclear[0]),
            (self.cookies, Origin::Cookie, self.unclear[1]),
        ];
        for (used, origin, unclear) in sources {
            if used {
                let from = gathered.len();
                gathered.gather(origin, rules, request);
                collect.found(from, gathered, request);
                if gathered.is_any_unclear() {
                    collect.list(unclear);
                }
            }
        }
        if self.body {
            let from = gathered.len();
            gathered.gather(Origin::Body(crate::field::Format::Form), rules, request);
            match gathered.body() {
                BodyView::Nothing => {}
                BodyView::Opaque => self.bodies.iter().for_each(|&list| collect.list(list)),
                BodyView::Pending(format) | BodyView::Read(format, Reach::Cut | Reach::Broken) => {
                    collect.list(self.bodies[format as usize]);
                }
                BodyView::Read(format, Reach::Whole) => {
                    let long = (from..gathered.len()).any(|at| Gathered::is_long(gathered.at(at)));
                    match long {
                        true => collect.list(self.bodies[format as usize]),
                        false => collect.found(from, gathered, request),
                    }
                }
            }
        }
    }

    #[inline]
    fn maybe(&self, key: u64) -> bool {
        let bit = key >> 20;
        let word = (bit >> 6) as usize & (self.filter.len() - 1);
        self.filter[word] & 1 << (bit & 63) != 0
    }
}

impl Collect<'_> {
    fn list(&mut self, list: u32) {
        if list != NONE {
            self.merge.add(list, self.index.lists[list as usize], &self.index.postings);
        }
    }

    #[inline]
    fn key(&mut self, key: u64) {
        if self.index.maybe(key)
            && let Some(&list) = self.index.map.get(&key)
        {
            self.list(list);
        }
    }

    /// Probes the path by segments and as a whole, alone and together with the host, in one pass.
    fn path(&mut self, host: &[u8], path: &[u8]) {
        let with = &self.index.path;
        let host = RunningHash::of(host);
        let mut fold = RunningHash::new();
        for (at, &byte) in path.iter().enumerate() {
            if byte == b'/' && at <= with.prefix_length_max {
                self.prefix(fold, host);
            } else if at > with.prefix_length_max && !with.host_and_path {
                return;
            }
            fold.push(byte);
        }
        if path.len() <= with.prefix_length_max {
            self.prefix(fold, host);
        }
        if with.host_and_path {
            self.key(fold.with_host(host, Tag::HostAndPath));
        }
    }

    fn prefix(&mut self, fold: RunningHash, host: RunningHash) {
        if self.index.path.prefix {
            self.key(fold.key(Tag::PathPrefix, id::PATH));
        }
        if self.index.path.host_and_prefix {
            self.key(fold.with_host(host, Tag::HostAndPrefix));
        }
    }

    /// Probes one text value.
    fn value(&mut self, probe: &Probe, value: &[u8]) {
        if probe.equal || !probe.starts.is_empty() {
            let mut fold = RunningHash::new();
            let mut at = 0;
            for &length in &probe.starts {
                let Some(piece) = value.get(at..length as usize) else { break };
                piece.iter().for_each(|&byte| fold.push(byte));
                at = length as usize;
                self.key(fold.key(Tag::Starts, probe.field));
            }
            if probe.equal {
                value[at..].iter().for_each(|&byte| fold.push(byte));
                self.key(fold.key(Tag::Equal, probe.field));
            }
        }
        let mut fold = RunningHash::new();
        let mut at = 0;
        for &length in &probe.ends {
            let length = length as usize;
            if length > value.len() {
                break;
            }
            value[value.len() - length..value.len() - at].iter().rev().for_each(|&byte| fold.push(byte));
            at = length;
            self.key(fold.key(Tag::Ends, probe.field));
        }
        if let Some((automaton, lists)) = &probe.contains {
            for found in automaton.find_overlapping_iter(value) {
                self.list(lists[found.pattern().as_usize()]);
            }
        }
        for (set, lists, cache) in &probe.regexes {
            let (index, merge) = (self.index, &mut *self.merge);
            for pattern in self.caches.which(*cache, set, value).iter() {
                let list = lists[pattern.as_usize()];
                merge.add(list, index.lists[list as usize], &index.postings);
            }
        }
        if probe.number {
            self.number(probe, Num::parse(value));
        }
    }

    fn number(&mut self, probe: &Probe, number: Option<Num>) {
        if let Some(number) = number.filter(|_| probe.number) {
            self.key(RunningHash::of(&number.to_bytes()).key(Tag::Number, probe.field));
        }
    }

    fn address(&mut self, probe: &Probe, (v6, bits): (bool, u128)) {
        for &length in if v6 { &probe.v6 } else { &probe.v4 } {
            let net = Net { v6, bits: Net::mask(v6, bits, length), length };
            self.key(net_key(&net, probe.field));
        }
    }

    /// Probes the values gathered from position `from` on.
    fn found(&mut self, from: usize, gathered: &Gathered, request: &Request<'_>) {
        for at in from..gathered.len() {
            let found = gathered.at(at);
            let Some(probe) = self.index.probes.get(self.index.probe_of[found.field as usize] as usize)
            else {
                continue;
            };
            if probe.exists {
                self.key(RunningHash::new().key(Tag::Exists, probe.field));
            }
            if let Some(value) = gathered.bytes(found, request) {
                self.value(probe, value);
            }
        }
    }
}

fn net_key(net: &Net, field: FieldId) -> u64 {
    let mut fold = RunningHash::of(&net.bits.to_le_bytes());
    fold.push(net.length);
    fold.push(u8::from(net.v6));
    fold.key(Tag::Net, field)
}
