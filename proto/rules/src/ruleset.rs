//! The compiled rule set and the decision.

use crate::atom::Table;
use crate::body::Wanted;
use crate::check::{self, Entrance, Finding, Witness};
use crate::compile;
use crate::decision::{Decision, Effect, HeaderEdit, Matched, Outcome, RuleId, Terminal};
use crate::deny::Deny;
use crate::dnf::Literal;
use crate::error::{RuleError, RuleWarning};
use crate::eval::{Run, Truth};
use crate::explain::{self, Explanation};
use crate::field::{Field, FieldScope, Origin};
use crate::hash::Names;
use crate::index::Index;
use crate::mark::Marks;
use crate::redirect::Template;
use crate::request::Request;
use crate::scratch::Scratch;
use crate::spec::{Limits, RateLimit, RuleSpec, Sticky, Unknown};

/// A compiled set of rules: immutable, shared by all workers.
#[derive(Debug)]
pub struct Ruleset {
    /// Distinguishes rule sets, so that a [`Scratch`] detects a reload.
    pub(crate) identity: u64,
    /// In the order of the specification, by [`RuleId`].
    pub(crate) rules: Vec<Rule>,
    pub(crate) marks: Marks,
    /// Rule ids by precedence.
    pub(crate) order: Vec<u32>,
    /// By precedence of their rules; the conjuncts of a rule are adjacent.
    pub(crate) conjuncts: Vec<Conjunct>,
    pub(crate) literals: Vec<Literal>,
    pub(crate) table: Table,
    /// Source of the values, by field.
    pub(crate) origins: Vec<Origin>,
    pub(crate) names: FieldNames,
    pub(crate) wanted: Wanted,
    pub(crate) index: Index,
    pub(crate) pools: Vec<String>,
    pub(crate) warnings: Vec<RuleWarning>,
    pub(crate) limits: Limits,
}

/// Names of the values that rules use.
#[derive(Debug, Default)]
pub(crate) struct FieldNames {
    pub(crate) headers: Names,
    pub(crate) query: Names,
    pub(crate) cookies: Names,
}

/// One rule, compiled.
#[derive(Debug)]
pub(crate) struct Rule {
    pub(crate) name: String,
    pub(crate) action: Action,
    pub(crate) unknown: Unknown,
    pub(crate) effects: Vec<RuleEffect>,
    /// Whether the condition was left out or is the word `true`.
    pub(crate) unconditional: bool,
    /// Range in [`Ruleset::conjuncts`].
    pub(crate) conjuncts: std::ops::Range<usize>,
}

/// Action of a rule at the end of the search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Not terminal.
    Continue,
    Route {
        pool: u32,
        sticky: Option<Sticky>,
    },
    Deny(Deny),
    Redirect {
        status: u16,
        location: Template,
    },
}

/// One effect, owned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RuleEffect {
    SetRequest(String, String),
    RemoveRequest(String),
    SetResponse(String, String),
    RemoveResponse(String),
    RateLimit(RateLimit),
    Audit,
    Class(String),
}

/// Literals that must all hold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Conjunct {
    pub(crate) rule: u32,
    pub(crate) start: u32,
    pub(crate) end: u32,
}

/// Status when a rule denies an undecidable request and names no status itself.
const UNDECIDABLE_STATUS: u16 = 403;

impl Ruleset {
    /// Compiles rules; reports every faulty rule, not only the first.
    pub fn compile(specs: &[RuleSpec], limits: &Limits) -> Result<Ruleset, Vec<RuleError>> {
        compile::compile(specs, limits)
    }

    /// A set without rules: every decision is [`Terminal::None`].
    pub fn empty() -> Ruleset {
        compile::assemble(Vec::new(), Vec::new(), Table::new(), Vec::new(), Vec::new(), &Limits::default())
    }

    /// Number of rules.
    pub fn len(&self) -> usize {
        self.rules.len()
    }

    /// Whether there are no rules.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Warnings about rules that compile but are probably unintended, or cost time on each request.
    pub fn warnings(&self) -> &[RuleWarning] {
        &self.warnings
    }

    /// Name of a rule; empty for an id of another rule set.
    pub fn name(&self, id: RuleId) -> &str {
        self.rules.get(id.0 as usize).map_or("", |rule| rule.name.as_str())
    }

    /// Ids of all rules, in the order they are tried.
    pub fn precedence(&self) -> impl Iterator<Item = RuleId> + '_ {
        self.order.iter().map(|&id| RuleId(id))
    }

    /// The pools that rules route to; [`Terminal::Route`] has the index.
    pub fn pools(&self) -> &[String] {
        &self.pools
    }

    /// Decides a request. Allocates only for a redirect's location, more than 16 matching rules, and body parsing.
    pub fn decide<'r>(&'r self, request: &Request<'_>, scratch: &mut Scratch) -> Outcome<'r> {
        scratch.begin(self, request);
        let Scratch { gathered, merge, caches, .. } = scratch;
        self.index.candidates(self, request, gathered, merge, caches);
        let mut run = Run { rules: self, request, gathered, caches, minds_unclear: true };
        let mut matched = Matched::new();
        let (mut last, mut rule, mut truth) = (u32::MAX, u32::MAX, Truth::False);
        while let Some(candidate) = merge.next(self.index.postings()) {
            if candidate == last {
                continue;
            }
            last = candidate;
            let conjunct = self.conjuncts[candidate as usize];
            if conjunct.rule != rule {
                if let Some(outcome) = self.conclude(rule, truth, request, &mut matched) {
                    return outcome;
                }
                (rule, truth) = (conjunct.rule, Truth::False);
            }
            if truth != Truth::True {
                let literals = &self.literals[conjunct.start as usize..conjunct.end as usize];
                let unknown = self.rules[rule as usize].unknown;
                truth = truth.or(run.conjunct_of(unknown, literals));
            }
        }
        match self.conclude(rule, truth, request, &mut matched) {
            Some(outcome) => outcome,
            None => {
                Outcome::Decided(Decision { rule: None, terminal: Terminal::None, matched, ruleset: self })
            }
        }
    }

    /// Applies a rule whose candidates were all evaluated; returns an outcome if the search ends here.
    fn conclude<'r>(
        &'r self,
        id: u32,
        truth: Truth,
        request: &Request<'_>,
        matched: &mut Matched,
    ) -> Option<Outcome<'r>> {
        let denied = match truth {
            Truth::False => return None,
            Truth::Pending => return Some(Outcome::NeedBody),
            Truth::True => false,
            Truth::Unknown => match self.rules[id as usize].unknown {
                Unknown::NoMatch => return None,
                Unknown::Match => false,
                Unknown::Deny => true,
            },
        };
        matched.push(RuleId(id));
        let terminal = match &self.rules[id as usize].action {
            Action::Deny(deny) => Terminal::Deny(*deny),
            _ if denied => Terminal::Deny(Deny::Status(UNDECIDABLE_STATUS)),
            Action::Continue => return None,
            Action::Route { pool, sticky } => {
                Terminal::Route { pool: &self.pools[*pool as usize], pool_index: *pool, sticky: *sticky }
            }
            Action::Redirect { status, location } => {
                Terminal::Redirect { status: *status, location: location.fill(request) }
            }
        };
        let matched = std::mem::replace(matched, Matched::new());
        Some(Outcome::Decided(Decision { rule: Some(RuleId(id)), terminal, matched, ruleset: self }))
    }

    /// The rule that wins for a request, and the reason why each other rule does not. Slow: evaluates every rule.
    pub fn explain(&self, request: &Request<'_>) -> Explanation {
        explain::explain(self, request)
    }

    /// Finds rules that are probably mistakes: unreachable, contradictory, never or always true.
    pub fn check(&self) -> Vec<Finding> {
        self.check_behind(&[])
    }

    /// [`check`](Self::check) behind these listeners: where possible, the example request of a finding comes through
    /// one of them.
    pub fn check_behind(&self, entrances: &[Entrance]) -> Vec<Finding> {
        check::check(self, entrances)
    }

    /// A request that satisfies a rule's condition, if one could be found. An earlier rule may still win it.
    pub fn witness(&self, id: RuleId) -> Option<Witness> {
        check::witness_of(self, id)
    }

    /// The effects of one rule, in order; none for an id of another set.
    pub fn effects_of(&self, id: RuleId) -> impl Iterator<Item = Effect<'_>> {
        self.rules.get(id.0 as usize).into_iter().flat_map(|rule| &rule.effects).map(move |effect| {
            match effect {
                RuleEffect::SetRequest(name, value) => Effect::Request(HeaderEdit::Set { name, value }),
                RuleEffect::RemoveRequest(name) => Effect::Request(HeaderEdit::Remove { name }),
                RuleEffect::SetResponse(name, value) => Effect::Response(HeaderEdit::Set { name, value }),
                RuleEffect::RemoveResponse(name) => Effect::Response(HeaderEdit::Remove { name }),
                RuleEffect::RateLimit(limit) => Effect::RateLimit(id, limit),
                RuleEffect::Audit => Effect::Audit,
                RuleEffect::Class(class) => Effect::Class(class),
            }
        })
    }

    /// The field of a rule's condition that needs most of a connection, and its scope; `None` for a condition without
    /// fields.
    pub fn widest_field(&self, id: RuleId) -> Option<(FieldScope, String)> {
        let literals = self.conditions(id.0).flatten();
        let fields = literals.map(|literal| self.table.field_of(literal.atom()));
        fields.max_by_key(|field| field.scope()).map(|field| (field.scope(), field.to_string()))
    }

    /// The headers that a rule's condition uses, in lower case, possibly repeated.
    pub fn headers_of(&self, id: RuleId) -> impl Iterator<Item = &str> {
        let conjuncts = self.rules.get(id.0 as usize).map_or(0..0, |rule| rule.conjuncts.clone());
        let literals = conjuncts.flat_map(|conjunct| self.literals_of(conjunct));
        literals.filter_map(|literal| match self.table.field_of(literal.atom()) {
            Field::Header(name) => Some(name.as_str()),
            _ => None,
        })
    }

    /// The literals of a conjunct.
    pub(crate) fn literals_of(&self, conjunct: usize) -> &[Literal] {
        let Conjunct { start, end, .. } = self.conjuncts[conjunct];
        &self.literals[start as usize..end as usize]
    }

    /// The literals of each conjunct of a rule.
    pub(crate) fn conditions(&self, id: u32) -> impl Iterator<Item = &[Literal]> {
        self.rules[id as usize].conjuncts.clone().map(|conjunct| self.literals_of(conjunct))
    }
}
