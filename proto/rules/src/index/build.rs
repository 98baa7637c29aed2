//! Construction of the index: counts how many conjuncts could use each key, then registers each conjunct under the
//! choice with the smallest expected number of needless candidates.

use std::collections::{BTreeMap, HashMap};

use aho_corasick::{AhoCorasick, MatchKind};
use regex_automata::meta;
use regex_automata::nfa::thompson::WhichCaptures;

use super::key::{Choice, Key, choices};
use super::{Index, NONE, Probe};
use crate::atom::{Table, regex_builder};
use crate::dnf::Literal;
use crate::field::{FieldId, Format, Origin};
use crate::hash::KeyMap;

/// The index, and data for warnings.
#[derive(Debug, Default)]
pub(crate) struct Built {
    pub(crate) index: Index,
    /// Conjuncts that are candidates for every request.
    pub(crate) residual: Vec<u32>,
    /// The conjuncts of the longest list, if one request can make them all candidates.
    pub(crate) longest: Vec<u32>,
}

/// Limit of patterns of a field that one automaton searches. Patterns of a larger set, or of one above the size limit,
/// become residual.
const SET_PATTERNS_MAX: usize = 128;
const SET_BYTES_MAX: usize = 64 << 20;

/// Limit of cached automaton states of a set, in bytes per worker. With a smaller cache than a set needs, the search
/// would always walk all states of all patterns for each byte.
const SET_CACHE_BYTES: usize = 8 << 20;

/// Builds the index. `acts_on_unknown`: whether the rule of a conjunct acts when the conjunct is unknown.
pub(crate) fn build<'t>(
    conjuncts: impl Iterator<Item = &'t [Literal]> + Clone,
    table: &'t Table,
    acts_on_unknown: impl Fn(u32) -> bool,
) -> Built {
    let mut counts: KeyMap<u32> = KeyMap::default();
    let mut format_counts = [0u32; 3];
    for conjunct in conjuncts.clone() {
        for choice in choices(conjunct, table) {
            choice.keys.iter().for_each(|key| *counts.entry(key.hash()).or_default() += 1);
            if let Some(format) = choice.format() {
                format_counts[format as usize] += 1;
            }
        }
    }
    let cost = |choice: &Choice<'_>| {
        let companions: f64 = choice.keys.iter().map(|key| f64::from(counts[&key.hash()])).sum();
        // While a body is unread, all conjuncts registered under its values are candidates.
        let pending = choice.format().map_or(0.0, |format| 0.02 * f64::from(format_counts[format as usize]));
        choice.share * companions + pending
    };
    let mut builder = Builder::default();
    for (conjunct, literals) in (0..).zip(conjuncts) {
        let choice = choices(literals, table).into_iter().min_by(|a, b| cost(a).total_cmp(&cost(b)));
        match choice {
            None => builder.residual.push(conjunct),
            Some(choice) => {
                if let Some(format) = choice.format() {
                    builder.bodies[format as usize].push(conjunct);
                }
                match choice.origin {
                    Origin::Query if acts_on_unknown(conjunct) => builder.unclear[0].push(conjunct),
                    Origin::Cookie if acts_on_unknown(conjunct) => builder.unclear[1].push(conjunct),
                    _ => {}
                }
                choice.keys.iter().for_each(|&key| builder.register(key, conjunct));
            }
        }
    }
    builder.finish(table)
}

#[derive(Default)]
struct Builder<'t> {
    residual: Vec<u32>,
    bodies: [Vec<u32>; 3],
    unclear: [Vec<u32>; 2],
    hashed: HashMap<u64, Vec<u32>>,
    probes: BTreeMap<FieldId, Probe>,
    contains: BTreeMap<FieldId, BTreeMap<&'t [u8], Vec<u32>>>,
    regexes: BTreeMap<FieldId, BTreeMap<u32, Vec<u32>>>,
    /// See [`Built::longest`].
    longest: Vec<u32>,
    index: Index,
}

impl<'t> Builder<'t> {
    fn probe(&mut self, field: FieldId) -> &mut Probe {
        self.probes.entry(field).or_insert_with(|| Probe { field, ..Probe::default() })
    }

    fn register(&mut self, key: Key<'t>, conjunct: u32) {
        match key {
            Key::Equal(field, _) => self.probe(field).equal = true,
            Key::Starts(field, start) => self.probe(field).starts.push(start.len() as u32),
            Key::Ends(field, end) => self.probe(field).ends.push(end.len() as u32),
            Key::Number(field, _) => self.probe(field).number = true,
            Key::Exists(field) => self.probe(field).exists = true,
            Key::Net(field, net) => {
                let probe = self.probe(field);
                if net.v6 { &mut probe.v6 } else { &mut probe.v4 }.push(net.length);
            }
            Key::PathPrefix(prefix) => {
                self.index.path.prefix = true;
                self.index.path.prefix_length_max = self.index.path.prefix_length_max.max(prefix.len());
            }
            Key::HostAndPath(..) => self.index.path.host_and_path = true,
            Key::HostAndPrefix(_, prefix) => {
                self.index.path.host_and_prefix = true;
                self.index.path.prefix_length_max = self.index.path.prefix_length_max.max(prefix.len());
            }
            Key::Contains(field, part) => {
                self.probe(field);
                self.contains.entry(field).or_default().entry(part).or_default().push(conjunct);
                return;
            }
            Key::Regex(field, regex) => {
                self.probe(field);
                self.regexes.entry(field).or_default().entry(regex).or_default().push(conjunct);
                return;
            }
        }
        self.hashed.entry(key.hash()).or_default().push(conjunct);
    }

    /// Adds a list whose conjuncts are ascending; returns its index.
    fn list(&mut self, mut conjuncts: Vec<u32>) -> u32 {
        conjuncts.dedup();
        let index = &mut self.index;
        let start = index.postings.len() as u32;
        index.postings.extend(conjuncts);
        index.lists.push((start, index.postings.len() as u32));
        index.lists.len() as u32 - 1
    }

    /// Like [`Builder::list`], but [`NONE`] for an empty list.
    fn list_or_none(&mut self, conjuncts: Vec<u32>) -> u32 {
        if conjuncts.is_empty() { NONE } else { self.list(conjuncts) }
    }

    fn keep_longest(&mut self, list: &[u32]) {
        if list.len() > self.longest.len() {
            self.longest = list.to_vec();
        }
    }

    fn finish(mut self, table: &Table) -> Built {
        self.index_parts();
        self.index_patterns(table);
        self.index_hashed();
        self.index_whole_lists();
        self.index_probes(table);
        Built { index: self.index, residual: self.residual, longest: self.longest }
    }

    /// Registers substrings, which are searched anywhere in a field.
    fn index_parts(&mut self) {
        for (field, parts) in std::mem::take(&mut self.contains) {
            parts.values().for_each(|list| self.keep_longest(list));
            let built = AhoCorasick::builder().match_kind(MatchKind::Standard).build(parts.keys());
            match built {
                Ok(automaton) => {
                    let lists = parts.into_values().map(|list| self.list(list)).collect();
                    self.probe(field).contains = Some((automaton, lists));
                }
                Err(_) => self.residual.extend(parts.into_values().flatten()),
            }
        }
    }

    fn index_patterns(&mut self, table: &Table) {
        let mut caches = 0;
        for (field, patterns) in std::mem::take(&mut self.regexes) {
            patterns.values().for_each(|list| self.keep_longest(list));
            let patterns: Vec<(u32, Vec<u32>)> = patterns.into_iter().collect();
            for patterns in patterns.chunks(SET_PATTERNS_MAX) {
                match regex_set(table, field, patterns) {
                    Some(set) => {
                        let lists = patterns.iter().map(|(_, list)| self.list(list.clone())).collect();
                        self.probe(field).regexes.push((set, lists, caches));
                        caches += 1;
                    }
                    None => self.residual.extend(patterns.iter().flat_map(|(_, list)| list)),
                }
            }
        }
    }

    /// Registers keys that are looked up by their hash.
    fn index_hashed(&mut self) {
        let slots = (self.hashed.len() * 16).next_power_of_two().max(1024);
        self.index.filter = vec![0; slots / 64];
        let mut hashed: Vec<(u64, Vec<u32>)> = std::mem::take(&mut self.hashed).into_iter().collect();
        hashed.sort_unstable_by_key(|(key, _)| *key);
        for (key, list) in hashed {
            self.keep_longest(&list);
            let bit = key >> 20;
            let word = (bit >> 6) as usize & (self.index.filter.len() - 1);
            self.index.filter[word] |= 1 << (bit & 63);
            let list = self.list(list);
            self.index.map.insert(key, list);
        }
    }

    /// Registers lists whose conjuncts are all candidates at once.
    fn index_whole_lists(&mut self) {
        self.residual.sort_unstable();
        self.residual.dedup();
        self.index.residual = self.list_or_none(self.residual.clone());
        let bodies = std::mem::take(&mut self.bodies);
        for (format, list) in [Format::Form, Format::Json, Format::Xml].into_iter().zip(bodies) {
            self.index.body |= !list.is_empty();
            self.index.bodies[format as usize] = self.list_or_none(list);
        }
        self.index.unclear = std::mem::take(&mut self.unclear).map(|list| self.list_or_none(list));
    }

    /// Registers what is searched in each field.
    fn index_probes(&mut self, table: &Table) {
        let index = &mut self.index;
        index.probe_of = vec![NONE; table.fields.len()];
        for (at, (field, mut probe)) in (0..).zip(std::mem::take(&mut self.probes)) {
            sort_once(&mut probe.starts);
            sort_once(&mut probe.ends);
            sort_once(&mut probe.v4);
            sort_once(&mut probe.v6);
            match table.fields.get(field).origin() {
                Origin::Single => index.singles.push(at),
                Origin::Header => index.headers = true,
                Origin::Query => index.query = true,
                Origin::Cookie => index.cookies = true,
                Origin::Body(_) | Origin::BodySize => {}
            }
            index.probe_of[field as usize] = at;
            index.probes.push(probe);
        }
    }
}

/// Sorts the list and drops duplicates.
fn sort_once<T: Ord>(list: &mut Vec<T>) {
    list.sort_unstable();
    list.dedup();
}

/// Patterns as one automaton; `None` when it would be too large. Only the set of matching patterns is needed: match
/// positions would cost a slot per state and pattern.
fn regex_set(table: &Table, field: FieldId, patterns: &[(u32, Vec<u32>)]) -> Option<meta::Regex> {
    let sources: Vec<&str> = patterns.iter().map(|(regex, _)| table.pattern(*regex)).collect();
    let mut builder = regex_builder(table.fields.get(field).ignores_case(), SET_BYTES_MAX);
    builder.configure(
        meta::Config::new()
            .match_kind(regex_automata::MatchKind::All)
            .which_captures(WhichCaptures::None)
            .hybrid_cache_capacity(SET_CACHE_BYTES),
    );
    builder.build_many(&sources).ok()
}
