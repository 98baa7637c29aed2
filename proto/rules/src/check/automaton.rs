//! Products of automata: finds a text that satisfies several comparisons, or proves that there is none.
//!
//! Each comparison becomes a regular expression with a lazily built automaton. A breadth-first walk over the product
//! finds a shortest text. If the walk ends without one and every byte was tried, this proves that there is none.

use std::collections::{HashSet, VecDeque};

use regex_automata::Input;
use regex_automata::hybrid::LazyStateID;
use regex_automata::hybrid::dfa::{Cache, DFA};

use crate::atom::Test;

/// Limit of product states; beyond it the search gives up.
const STATES_MAX: usize = 4000;

/// Result of a search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Search {
    Found(Vec<u8>),
    /// Proven: there is no such text.
    None,
    /// Too large, or a construct that the automata do not support.
    GaveUp,
}

/// Bytes that a search tries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Alphabet {
    /// Printable ASCII, plain characters first: for witnesses. It never proves anything.
    Printable,
    /// Every byte: for proofs.
    All,
}

/// A comparison as a pattern; `None` if it is not about text.
pub(super) fn pattern_of(test: &Test) -> Option<String> {
    let literal = |bytes: &[u8]| {
        let hex: String = bytes.iter().map(|byte| format!("\\x{byte:02x}")).collect();
        format!("(?-u:{hex})")
    };
    Some(match test {
        Test::OneOf(values) => {
            let values: Vec<String> = values.iter().map(|value| literal(value)).collect();
            format!("^(?:{})$", values.join("|"))
        }
        Test::StartsWith(start) => format!("^{}", literal(start)),
        Test::EndsWith(end) => format!("{}$", literal(end)),
        Test::Contains(part) => literal(part),
        Test::PathPrefix(prefix) if prefix.is_empty() => "^/".into(),
        Test::PathPrefix(prefix) => format!("^{}(?:/|$)", literal(prefix)),
        Test::Matches { pattern, .. } => pattern.clone(),
        Test::Exists => String::new(),
        Test::Number(..) | Test::NumberIn(_) | Test::InNets(_) => return None,
    })
}

/// One pattern and whether texts must match it.
#[derive(Clone, Debug)]
pub(super) struct Constraint {
    pub(super) pattern: String,
    pub(super) ignore_case: bool,
    pub(super) wanted: bool,
}

/// State of one automaton of the product.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Stand {
    /// Already matched; a search for a match anywhere cannot lose the match again.
    Matched,
    At(LazyStateID),
}

/// A node of the walk: its parent with the byte that was added, and the state of each automaton.
type Step = (Option<(usize, u8)>, Vec<Stand>);

/// Searches for a shortest text that satisfies all constraints.
pub(super) fn search(constraints: &[Constraint], alphabet: Alphabet) -> Search {
    let mut machines: Vec<(DFA, Cache, bool)> = Vec::new();
    let mut start = Vec::new();
    for constraint in constraints {
        let built = DFA::builder()
            .configure(
                DFA::config()
                    .cache_capacity(4 << 20)
                    .skip_cache_capacity_check(true)
                    // States keep their ids: a full cache is an error instead of being cleared.
                    .minimum_cache_clear_count(Some(0))
                    .unicode_word_boundary(true),
            )
            .syntax(
                regex_automata::util::syntax::Config::new()
                    .utf8(false)
                    .case_insensitive(constraint.ignore_case),
            )
            .thompson(regex_automata::nfa::thompson::Config::new().utf8(false).nfa_size_limit(Some(4 << 20)))
            .build(&constraint.pattern);
        let Ok(dfa) = built else { return Search::GaveUp };
        let mut cache = dfa.create_cache();
        let Ok(state) = dfa.start_state_forward(&mut cache, &Input::new("")) else { return Search::GaveUp };
        start.push(Stand::At(state));
        machines.push((dfa, cache, constraint.wanted));
    }
    let bytes: Vec<u8> = match alphabet {
        Alphabet::All => (0..=255).collect(),
        Alphabet::Printable => {
            let printable = (b'!'..=b'~').filter(|byte| !b"\"#%&+?<>\\^`{|};, ".contains(byte));
            let mut bytes: Vec<u8> = printable.collect();
            bytes.sort_by_key(|byte| (!byte.is_ascii_lowercase(), !byte.is_ascii_digit(), *byte));
            bytes
        }
    };
    let mut nodes: Vec<Step> = vec![(None, start.clone())];
    let mut seen: HashSet<Vec<Stand>> = HashSet::from([start]);
    let mut queue = VecDeque::from([0]);
    let mut incomplete = alphabet == Alphabet::Printable;
    while let Some(at) = queue.pop_front() {
        match accepts(&mut machines, &nodes[at].1) {
            Some(true) => return Search::Found(spell(&nodes, at)),
            Some(false) => {}
            None => incomplete = true,
        }
        for &byte in &bytes {
            let Some(next) = step(&mut machines, &nodes[at].1, byte) else {
                incomplete = true;
                continue;
            };
            // Dead end: an unwanted pattern has matched, and no further text undoes that.
            if next.iter().zip(&machines).any(|(stand, (.., wanted))| *stand == Stand::Matched && !wanted) {
                continue;
            }
            if seen.insert(next.clone()) {
                if nodes.len() >= STATES_MAX {
                    return Search::GaveUp;
                }
                nodes.push((Some((at, byte)), next));
                queue.push_back(nodes.len() - 1);
            }
        }
    }
    if incomplete { Search::GaveUp } else { Search::None }
}

fn step(machines: &mut [(DFA, Cache, bool)], stands: &[Stand], byte: u8) -> Option<Vec<Stand>> {
    let mut next = Vec::with_capacity(stands.len());
    for ((dfa, cache, _), &stand) in machines.iter_mut().zip(stands) {
        let Stand::At(state) = stand else {
            next.push(Stand::Matched);
            continue;
        };
        let state = dfa.next_state(cache, state, byte).ok()?;
        if state.is_quit() {
            return None;
        }
        // Match states are entered one byte late: this match ended before `byte`.
        next.push(if state.is_match() { Stand::Matched } else { Stand::At(state) });
    }
    Some(next)
}

/// Whether the complete text satisfies everything; `None` if an automaton cannot decide it.
fn accepts(machines: &mut [(DFA, Cache, bool)], stands: &[Stand]) -> Option<bool> {
    for ((dfa, cache, wanted), &stand) in machines.iter_mut().zip(stands) {
        let matched = match stand {
            Stand::Matched => true,
            Stand::At(state) => dfa.next_eoi_state(cache, state).ok()?.is_match(),
        };
        if matched != *wanted {
            return Some(false);
        }
    }
    Some(true)
}

fn spell(nodes: &[Step], mut at: usize) -> Vec<u8> {
    let mut text = Vec::new();
    while let Some((parent, byte)) = nodes[at].0 {
        text.push(byte);
        at = parent;
    }
    text.reverse();
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(patterns: &[(&str, bool)], alphabet: Alphabet) -> Search {
        let constraints: Vec<Constraint> = patterns
            .iter()
            .map(|(pattern, wanted)| Constraint {
                pattern: (*pattern).to_owned(),
                ignore_case: false,
                wanted: *wanted,
            })
            .collect();
        search(&constraints, alphabet)
    }

    #[test]
    fn search_finds_a_text_that_satisfies_all_patterns() {
        for patterns in [
            vec![("^/a[0-9]{2}", true), ("z$", true)],
            vec![("^/", true), ("x", false), ("[w-y]{3}", true)],
            vec![("", true)],
        ] {
            let Search::Found(text) = run(&patterns, Alphabet::Printable) else { panic!("{patterns:?}") };
            for (pattern, wanted) in patterns {
                assert_eq!(
                    regex::bytes::Regex::new(pattern).unwrap().is_match(&text),
                    wanted,
                    "{pattern} {text:?}"
                );
            }
        }
    }

    #[test]
    fn implication_of_patterns_is_proven_or_refuted() {
        assert_eq!(run(&[("^/api/v[12]/", true), ("^/api/", false)], Alphabet::All), Search::None);
        assert!(matches!(run(&[("^/api", true), ("^/api/", false)], Alphabet::All), Search::Found(_)));
        assert_eq!(run(&[("^a+$", true), ("^(a|aa)+$", false)], Alphabet::All), Search::None);
        // Unicode word boundaries stop the automaton at bytes above 127.
        assert_eq!(run(&[(r"\ba\b", true), ("a", false)], Alphabet::All), Search::GaveUp);
    }
}
