//! Proofs that a conjunct implies a literal, or never holds.
//!
//! A field may have several values, and two comparisons may then hold for different values. For such a field only
//! single comparisons imply each other.

use super::Entrance;
use super::automaton::{Alphabet, Constraint, Search, pattern_of, search};
use crate::atom::{Compare, Net, Test, under};
use crate::dnf::Literal;
use crate::eval;
use crate::field::{Field, FieldId, Origin};
use crate::ruleset::Ruleset;
use crate::scratch::Scratch;

/// Result of a proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Proof {
    Proven,
    NotProven,
    /// The conjuncts have patterns that could not be compared.
    Undecided,
}

/// Limit of proofs by automata, which are expensive.
const SEARCHES_MAX: usize = 2000;

/// Prover for the conjuncts of one rule set.
pub(super) struct Prover<'r> {
    pub(super) rules: &'r Ruleset,
    pub(super) scratch: Scratch,
    /// Listeners that requests can come through; empty where they are unknown.
    pub(super) entrances: &'r [Entrance],
    searches: usize,
}

impl<'r> Prover<'r> {
    pub(super) fn new(rules: &'r Ruleset, entrances: &'r [Entrance]) -> Prover<'r> {
        let mut scratch = Scratch::new();
        // Sizes the scratch memory for this rule set.
        super::Witness::default().with(|request| scratch.begin(rules, request));
        Prover { rules, scratch, entrances, searches: 0 }
    }

    fn test(&self, literal: Literal) -> &'r Test {
        &self.rules.table.atom(literal.atom()).test
    }

    fn field(&self, literal: Literal) -> FieldId {
        self.rules.table.atom(literal.atom()).field
    }

    pub(super) fn holds(&mut self, test: &Test, value: &[u8]) -> bool {
        eval::holds(test, value, self.rules, &mut self.scratch.caches)
    }

    /// Whether every request that satisfies `given` satisfies all of `wanted`.
    pub(super) fn implies(&mut self, given: &[Literal], wanted: &[Literal]) -> Proof {
        let mut proof = Proof::Proven;
        for &literal in wanted {
            match self.implies_one(given, literal) {
                Proof::Proven => {}
                Proof::NotProven => return Proof::NotProven,
                Proof::Undecided => proof = Proof::Undecided,
            }
        }
        proof
    }

    fn implies_one(&mut self, given: &[Literal], wanted: Literal) -> Proof {
        if given.contains(&wanted) {
            return Proof::Proven;
        }
        let id = self.field(wanted);
        let field = self.rules.table.fields.get(id);
        let same: Vec<Literal> = given.iter().copied().filter(|&literal| self.field(literal) == id).collect();
        if same.is_empty() {
            return Proof::NotProven;
        }
        let goal = self.test(wanted);
        for &literal in &same {
            let premise = self.test(literal);
            let direct = match (literal.negated(), wanted.negated()) {
                (false, false) => self.test_implies(premise, goal),
                (true, true) => self.test_implies(goal, premise),
                (false, true) => field.single() && excludes(premise, goal),
                (true, false) => false,
            };
            if direct {
                return Proof::Proven;
            }
        }
        if !field.single() {
            // Each value on its own: a pattern may still imply another.
            let mut proof = Proof::NotProven;
            for &literal in same.iter().filter(|literal| literal.negated() == wanted.negated()) {
                let (premise, goal) = match wanted.negated() {
                    false => (self.test(literal), goal),
                    true => (goal, self.test(literal)),
                };
                if is_pattern(premise) || is_pattern(goal) {
                    match self.search(field, &[(premise, true), (goal, false)]) {
                        Search::None => return Proof::Proven,
                        Search::Found(_) => {}
                        Search::GaveUp => proof = Proof::Undecided,
                    }
                }
            }
            return proof;
        }
        if field.optional() && !wanted.negated() && same.iter().all(|literal| literal.negated()) {
            // A request without the field satisfies the negations and nothing else.
            return Proof::NotProven;
        }
        if let Some(values) = self.finite(&same) {
            let holds = values.iter().all(|value| self.holds(goal, value) != wanted.negated());
            return if holds { Proof::Proven } else { Proof::NotProven };
        }
        let mut parts: Vec<(&Test, bool)> =
            same.iter().map(|&literal| (self.test(literal), !literal.negated())).collect();
        parts.push((goal, wanted.negated()));
        match self.search(field, &parts) {
            Search::None => Proof::Proven,
            Search::Found(_) => Proof::NotProven,
            Search::GaveUp if parts.iter().any(|(test, _)| is_pattern(test)) => Proof::Undecided,
            Search::GaveUp => Proof::NotProven,
        }
    }

    /// The values that a field may have, if the literals leave finitely many.
    fn finite(&mut self, literals: &[Literal]) -> Option<Vec<Vec<u8>>> {
        let values = literals.iter().find_map(|&literal| match self.test(literal) {
            Test::OneOf(values) if !literal.negated() => Some(values),
            _ => None,
        })?;
        let passes = |value: &&Vec<u8>| {
            literals.iter().all(|&literal| {
                let test = &self.rules.table.atom(literal.atom()).test;
                eval::holds(test, value, self.rules, &mut self.scratch.caches) != literal.negated()
            })
        };
        Some(values.iter().filter(passes).cloned().collect())
    }

    /// Searches for a value that passes (or fails) the tests.
    fn search(&mut self, field: &Field, parts: &[(&Test, bool)]) -> Search {
        let ignore_case = field.ignores_case();
        let mut constraints = Vec::new();
        for &(test, wanted) in parts {
            // Leaving a comparison out would keep the proof correct but make the text useless.
            let Some(pattern) = pattern_of(test) else { return Search::GaveUp };
            constraints.push(Constraint { pattern, ignore_case, wanted });
        }
        if *field == Field::Path {
            constraints.push(Constraint { pattern: r"^(?:/|\*$)".into(), ignore_case: false, wanted: true });
        }
        if *field == Field::Host || *field == Field::Sni {
            constraints.push(Constraint { pattern: "[A-Z]".into(), ignore_case: false, wanted: false });
        }
        self.searches += 1;
        if self.searches > SEARCHES_MAX { Search::GaveUp } else { search(&constraints, Alphabet::All) }
    }

    fn test_implies(&mut self, a: &Test, b: &Test) -> bool {
        match (a, b) {
            (_, Test::Exists) => true,
            (Test::OneOf(values), _) => values.iter().all(|value| self.holds(b, value)),
            (Test::NumberIn(numbers), Test::Number(compare, bound)) => {
                numbers.iter().all(|number| compare.holds(number.get(), bound.get()))
            }
            (Test::NumberIn(numbers), Test::NumberIn(others)) => numbers.iter().all(|n| others.contains(n)),
            (Test::Number(..), Test::Number(compare, bound)) => {
                let (a, strict) = bound_of(a);
                match compare {
                    Compare::Greater => a.0 > bound.get() || (a.0 == bound.get() && strict),
                    Compare::GreaterEqual => a.0 >= bound.get(),
                    Compare::Less => a.1 < bound.get() || (a.1 == bound.get() && strict),
                    Compare::LessEqual => a.1 <= bound.get(),
                }
            }
            (Test::StartsWith(a), Test::StartsWith(b)) => a.starts_with(b),
            (Test::StartsWith(a), Test::PathPrefix(b)) => {
                a.strip_prefix(b.as_slice()).is_some_and(|rest| rest.starts_with(b"/"))
            }
            (Test::PathPrefix(a), Test::PathPrefix(b)) => under(a, b) || b.is_empty(),
            (Test::PathPrefix(a), Test::StartsWith(b)) => a.starts_with(b) || b == b"/",
            (Test::EndsWith(a), Test::EndsWith(b)) => a.ends_with(b),
            (
                Test::StartsWith(a) | Test::PathPrefix(a) | Test::EndsWith(a) | Test::Contains(a),
                Test::Contains(b),
            ) => memchr::memmem::find(a, b).is_some(),
            (Test::InNets(nets), Test::InNets(others)) => {
                nets.iter().all(|net| others.iter().any(|other| other.covers(net)))
            }
            _ => a == b,
        }
    }

    /// Whether a conjunct can never hold.
    pub(super) fn never(&mut self, conjunct: &[Literal]) -> bool {
        let mut fields: Vec<FieldId> = conjunct.iter().map(|&literal| self.field(literal)).collect();
        fields.sort_unstable();
        fields.dedup();
        let mut formats = Vec::new();
        for id in fields {
            let field = self.rules.table.fields.get(id);
            let on_field: Vec<Literal> = conjunct.iter().copied().filter(|&l| self.field(l) == id).collect();
            let positive: Vec<Literal> =
                on_field.iter().copied().filter(|literal| !literal.negated()).collect();
            if let (Origin::Body(format), false) = (field.origin(), positive.is_empty()) {
                formats.push(format as u8);
            }
            let contradiction = if field.single() {
                self.never_single(field, &on_field, &positive)
            } else {
                // A value that passes a comparison passes everything it implies; a negated literal contradicts this.
                positive.iter().any(|&literal| {
                    on_field.iter().any(|&other| {
                        other.negated() && self.test_implies(self.test(literal), self.test(other))
                    })
                })
            };
            if contradiction {
                return true;
            }
        }
        formats.dedup();
        formats.len() > 1
    }

    fn never_single(&mut self, field: &Field, on_field: &[Literal], positive: &[Literal]) -> bool {
        if let Some(values) = self.finite(on_field) {
            return values.is_empty();
        }
        let pairs = |prover: &Self| {
            positive
                .iter()
                .enumerate()
                .any(|(at, &a)| positive[..at].iter().any(|&b| excludes(prover.test(a), prover.test(b))))
        };
        let denied = positive.iter().any(|&literal| {
            on_field
                .iter()
                .any(|&other| other.negated() && self.test_implies(self.test(literal), self.test(other)))
        });
        if denied || pairs(self) {
            return true;
        }
        if positive.is_empty() && field.optional() {
            return false;
        }
        let parts: Vec<(&Test, bool)> =
            on_field.iter().map(|&literal| (self.test(literal), !literal.negated())).collect();
        parts.len() + usize::from(*field == Field::Path) > 1 && self.search(field, &parts) == Search::None
    }
}

fn is_pattern(test: &Test) -> bool {
    matches!(test, Test::Matches { .. })
}

/// The interval of a comparison, and whether its finite end is excluded.
fn bound_of(test: &Test) -> ((f64, f64), bool) {
    match test {
        Test::Number(Compare::Less, bound) => ((f64::NEG_INFINITY, bound.get()), true),
        Test::Number(Compare::LessEqual, bound) => ((f64::NEG_INFINITY, bound.get()), false),
        Test::Number(Compare::Greater, bound) => ((bound.get(), f64::INFINITY), true),
        Test::Number(Compare::GreaterEqual, bound) => ((bound.get(), f64::INFINITY), false),
        _ => ((f64::NEG_INFINITY, f64::INFINITY), false),
    }
}

/// Whether no single value passes both tests.
fn excludes(a: &Test, b: &Test) -> bool {
    let numbers = |numbers: &[crate::atom::Num], test: &Test| match test {
        Test::Number(compare, bound) => {
            !numbers.iter().any(|number| compare.holds(number.get(), bound.get()))
        }
        Test::NumberIn(others) => !numbers.iter().any(|number| others.contains(number)),
        _ => false,
    };
    match (a, b) {
        (Test::NumberIn(a), b) | (b, Test::NumberIn(a)) => numbers(a, b),
        (Test::Number(..), Test::Number(..)) => {
            let ((a_low, a_high), a_strict) = bound_of(a);
            let ((b_low, b_high), b_strict) = bound_of(b);
            let (low, high) = (a_low.max(b_low), a_high.min(b_high));
            low > high || (low == high && (a_strict || b_strict))
        }
        (Test::InNets(a), Test::InNets(b)) => {
            let disjoint = |a: &Net, b: &Net| !a.covers(b) && !b.covers(a);
            a.iter().all(|a| b.iter().all(|b| disjoint(a, b)))
        }
        (Test::StartsWith(a), Test::StartsWith(b)) => !a.starts_with(b) && !b.starts_with(a),
        (Test::EndsWith(a), Test::EndsWith(b)) => !a.ends_with(b) && !b.ends_with(a),
        (Test::PathPrefix(a), Test::PathPrefix(b)) => {
            !under(a, b) && !under(b, a) && !a.is_empty() && !b.is_empty()
        }
        _ => false,
    }
}
