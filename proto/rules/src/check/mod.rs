//! Static checks: rules that cannot be reached, contradict each other, never hold or always hold.
//!
//! A proof that a rule hides another uses implication between conjuncts, comparison by comparison. A rule that takes
//! all requests of a conjunct also takes its witness. The index therefore finds the few rules worth comparing, and the
//! check stays near linear in the number of rules.
//!
//! Not detected: a rule hidden only by several rules together, none of which covers a whole alternative.

mod automaton;
mod implies;
mod request;
mod witness;

pub use request::{Entrance, Witness, WitnessTls};

use serde::Serialize;

use self::implies::{Proof, Prover};
use crate::decision::{Outcome, RuleId};
use crate::dnf::Literal;
use crate::eval::{Run, Truth};
use crate::ruleset::{Action, Ruleset};
use crate::scratch::Scratch;
use crate::spec::Unknown;

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// For information.
    Info,
    /// Probably unintended.
    Warning,
    /// Certainly a mistake.
    Error,
}

/// Kind of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FindingKind {
    /// Earlier rules match every request that this rule matches.
    Unreachable,
    /// An earlier rule matches exactly the same requests and has another action.
    Conflict,
    /// The condition never holds.
    Unsatisfiable,
    /// The condition always holds although it is not `true`.
    AlwaysTrue,
    /// It could not be proven whether an earlier rule hides this one.
    NotProven,
}

/// One finding of [`Ruleset::check`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Severity.
    pub severity: Severity,
    /// Kind.
    pub kind: FindingKind,
    /// Name of the rule.
    pub rule: String,
    /// Names of the earlier rules concerned.
    pub others: Vec<String>,
    /// Description.
    pub message: String,
    /// A request that demonstrates the finding, verified by deciding it.
    pub witness: Option<String>,
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let severity = match self.severity {
            Severity::Info => "info",
            Severity::Warning => "warning",
            Severity::Error => "error",
        };
        write!(f, "{severity}: rule \"{}\": {}", self.rule, self.message)?;
        if let Some(witness) = &self.witness {
            write!(f, "\n  witness: {}", witness.replace('\n', "\n    "))?;
        }
        Ok(())
    }
}

pub(crate) fn check(rules: &Ruleset, entrances: &[Entrance]) -> Vec<Finding> {
    let prover = Prover::new(rules, entrances);
    let mut checker = Checker { rules, prover, rank: vec![0; rules.len()], findings: Vec::new() };
    for (rank, id) in rules.order.iter().enumerate() {
        checker.rank[*id as usize] = rank;
    }
    for &id in &rules.order {
        checker.rule(id);
    }
    checker.findings
}

pub(crate) fn witness_of(rules: &Ruleset, id: RuleId) -> Option<Witness> {
    let mut prover = Prover::new(rules, &[]);
    rules.rules.get(id.0 as usize)?;
    rules.conditions(id.0).find_map(|literals| prover.witness(literals))
}

/// Without a witness to narrow the search, a conjunct is compared with at most this many earlier ones.
const COMPARED_MAX: usize = 2000;

struct Checker<'r> {
    rules: &'r Ruleset,
    prover: Prover<'r>,
    /// Position in the order of precedence, by rule.
    rank: Vec<usize>,
    findings: Vec<Finding>,
}

/// Findings on one alternative of a condition.
struct Alternative {
    witness: Option<Witness>,
    /// The earlier rule that takes all its requests.
    covered_by: Option<u32>,
    /// An earlier rule that may take all its requests.
    maybe: Option<u32>,
}

impl Checker<'_> {
    fn rule(&mut self, id: u32) {
        let rules = self.rules;
        let rule = &rules.rules[id as usize];
        let mut alternatives = Vec::new();
        for conjunct in rule.conjuncts.clone() {
            let literals = rules.literals_of(conjunct);
            let witness = self.prover.witness(literals);
            // A witness proves that the alternative can hold.
            if witness.is_some() || !self.prover.never(literals) {
                alternatives.push(self.alternative(id, literals, witness));
            }
        }
        if alternatives.is_empty() {
            let message = "the condition never holds; correct or remove it".to_owned();
            return self.report(Severity::Error, FindingKind::Unsatisfiable, id, &[], message, None);
        }
        self.always(id);
        // A rule that acts on unknown values fires where its condition is not true, so no rule certainly hides it.
        let unknowable =
            |literals: &[Literal]| literals.iter().any(|l| rules.table.field_of(l.atom()).may_be_unknown());
        let acts_on_unknown = rule.unknown != Unknown::NoMatch && rules.conditions(id).any(unknowable);
        let mut others: Vec<u32> =
            alternatives.iter().filter_map(|alternative| alternative.covered_by).collect();
        others.sort_unstable();
        others.dedup();
        if alternatives.iter().all(|alternative| alternative.covered_by.is_some()) {
            let witness = alternatives.into_iter().find_map(|alternative| alternative.witness);
            if acts_on_unknown {
                let message =
                    "earlier rules match first whenever nothing in the condition is unknown".to_owned();
                return self.report(Severity::Info, FindingKind::NotProven, id, &others, message, witness);
            }
            return self.unreachable(id, &others, witness);
        }
        if let Some(alternative) = alternatives.iter().find(|alternative| alternative.maybe.is_some()) {
            let other = alternative.maybe.unwrap_or_default();
            let names = format!("rule \"{}\"", rules.rules[other as usize].name);
            let message = format!(
                "not proven whether {names} hides it: the patterns cannot be compared; check the witness, or give one \
                 of them a plain comparison"
            );
            let witness = alternative.witness.clone();
            self.report(Severity::Info, FindingKind::NotProven, id, &[other], message, witness);
        }
    }

    fn unreachable(&mut self, id: u32, others: &[u32], witness: Option<Witness>) {
        let rules = self.rules;
        let action = &rules.rules[id as usize].action;
        if let &[other] = others {
            let back = rules.conditions(other).all(|given| {
                rules.conditions(id).any(|wanted| self.prover.implies(given, wanted) == Proof::Proven)
            });
            let name = &rules.rules[other as usize].name;
            if back && *action != Action::Continue && *action != rules.rules[other as usize].action {
                let message =
                    format!("rule \"{name}\" matches the same requests, comes first and does something else");
                return self.report(Severity::Error, FindingKind::Conflict, id, others, message, witness);
            }
        }
        let names: Vec<String> =
            others.iter().map(|&id| format!("\"{}\"", rules.rules[id as usize].name)).collect();
        let message = format!("unreachable: all its requests are decided before it, by {}", names.join(", "));
        self.report(Severity::Warning, FindingKind::Unreachable, id, others, message, witness);
    }

    /// Reports a condition that holds for every request although it is not the word `true`.
    fn always(&mut self, id: u32) {
        let rules = self.rules;
        let rule = &rules.rules[id as usize];
        let given = |literals: &[Literal]| -> Vec<Literal> {
            let listener =
                |literal: &&Literal| rules.table.atom(literal.atom()).field != crate::field::id::LISTENER;
            literals.iter().filter(listener).copied().collect()
        };
        let conditions: Vec<Vec<Literal>> = rules.conditions(id).map(given).collect();
        let complementary = conditions.iter().enumerate().any(|(at, one)| {
            let inverse = |literal: &Literal| conditions[..at].contains(&vec![literal.inverse()]);
            one.len() == 1 && inverse(&one[0]) && !rules.table.field_of(one[0].atom()).may_be_unknown()
        });
        if !rule.unconditional && (complementary || conditions.contains(&Vec::new())) {
            let message = "the condition always holds; write when = \"true\" if that is meant".to_owned();
            self.report(Severity::Warning, FindingKind::AlwaysTrue, id, &[], message, None);
        }
    }

    fn alternative(&mut self, id: u32, literals: &[Literal], witness: Option<Witness>) -> Alternative {
        let rules = self.rules;
        // A rule that takes all requests of this alternative also takes the witness.
        let earlier: Vec<u32> = match &witness {
            Some(witness) => self.prover.matching(witness),
            None => (0..rules.conjuncts.len().min(COMPARED_MAX) as u32).collect(),
        };
        let mut alternative = Alternative { witness, covered_by: None, maybe: None };
        for other in earlier {
            let other_id = rules.conjuncts[other as usize].rule;
            let terminal = rules.rules[other_id as usize].action != Action::Continue;
            if !terminal || self.rank[other_id as usize] >= self.rank[id as usize] {
                continue;
            }
            match self.prover.implies(literals, rules.literals_of(other as usize)) {
                Proof::Proven => {
                    alternative.covered_by = Some(other_id);
                    break;
                }
                // Both rules take the witness, so the finding is worth a report.
                Proof::Undecided if alternative.witness.is_some() => {
                    alternative.maybe = alternative.maybe.or(Some(other_id));
                }
                Proof::Undecided | Proof::NotProven => {}
            }
        }
        alternative
    }

    fn report(
        &mut self,
        severity: Severity,
        kind: FindingKind,
        id: u32,
        others: &[u32],
        message: String,
        witness: Option<Witness>,
    ) {
        let rules = self.rules;
        let name = |id: u32| rules.rules[id as usize].name.clone();
        // Shown only if a decision confirms that another rule takes the request.
        let confirmed = witness.filter(|witness| {
            witness.with(|request| match rules.decide(request, &mut self.prover.scratch) {
                Outcome::Decided(decision) => decision.rule.is_some_and(|winner| winner.0 != id),
                Outcome::NeedBody => false,
            })
        });
        self.findings.push(Finding {
            severity,
            kind,
            rule: name(id),
            others: others.iter().map(|&id| name(id)).collect(),
            message,
            witness: confirmed.map(|witness| witness.to_string()),
        });
    }
}

impl Prover<'_> {
    /// The conjuncts that hold for a request, found with the index.
    fn matching(&mut self, witness: &Witness) -> Vec<u32> {
        let rules = self.rules;
        witness.with(|request| {
            self.scratch.begin(rules, request);
            let Scratch { gathered, merge, caches, .. } = &mut self.scratch;
            rules.index.candidates(rules, request, gathered, merge, caches);
            let mut run = Run { rules, request, gathered, caches, minds_unclear: true };
            let mut matching = Vec::new();
            while let Some(candidate) = merge.next(rules.index.postings()) {
                let fresh = matching.last() != Some(&candidate);
                if fresh && run.conjunct(rules.literals_of(candidate as usize)) == Truth::True {
                    matching.push(candidate);
                }
            }
            matching
        })
    }
}

#[cfg(test)]
mod tests;
