//! Explanation of a decision: the winning rule, and the reason why each other rule does not win. It evaluates every
//! rule without the index.

use std::fmt;

use serde::Serialize;

use crate::atom::{AtomId, address_bits};
use crate::body::Reach;
use crate::decision::{Outcome, Terminal};
use crate::eval::{self, Run, Truth};
use crate::field::{Origin, id};
use crate::request::{Body, Request};
use crate::ruleset::{Action, Ruleset};
use crate::scratch::{BodyView, Gathered, Scratch};

/// Result of [`Ruleset::explain`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Explanation {
    /// The rule whose action applies; `None` if no terminal rule matched or the body is needed first.
    pub winner: Option<String>,
    /// The outcome for the request, as text.
    pub outcome: String,
    /// Every rule, in the order tried.
    pub rules: Vec<RuleExplanation>,
}

/// Explanation for one rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RuleExplanation {
    /// Name of the rule.
    pub rule: String,
    /// Verdict.
    pub verdict: Verdict,
    /// For each alternative of the condition that does not hold, the first comparison that stops it.
    pub failed: Vec<Condition>,
}

/// Verdict on one rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Its action applies.
    Wins,
    /// It matches and contributes its edits.
    Contributes,
    /// It would match, but an earlier rule ended the search.
    Shadowed,
    /// Its condition does not hold.
    Fails,
    /// Its condition cannot be decided, and the rule ignores unknown.
    Undecidable,
    /// Its condition depends on the body, which was not read.
    NeedsBody,
}

/// A comparison and the value that it was applied to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Condition {
    /// The comparison.
    pub condition: String,
    /// The value in the request.
    pub value: String,
}

pub(crate) fn explain(rules: &Ruleset, request: &Request<'_>) -> Explanation {
    let mut scratch = Scratch::new();
    let (winner, matched, outcome, ended) = match rules.decide(request, &mut scratch) {
        Outcome::NeedBody => (None, Vec::new(), "the body must be read first".to_owned(), false),
        Outcome::Decided(decision) => {
            let outcome = match &decision.terminal {
                Terminal::None => "no terminal rule matches: the listener's default".to_owned(),
                Terminal::Route { pool, sticky, .. } => {
                    let sticky = match sticky {
                        None => "",
                        Some(crate::spec::Sticky::None) => ", not sticky",
                        Some(crate::spec::Sticky::Cookie) => ", sticky by cookie",
                        Some(crate::spec::Sticky::Source) => ", sticky by source",
                    };
                    format!("route to pool {pool}{sticky}")
                }
                Terminal::Deny(deny) => format!("deny with {deny}"),
                Terminal::Redirect { status, location } => format!("redirect with {status} to {location}"),
            };
            (decision.rule, decision.matched.to_vec(), outcome, decision.rule.is_some())
        }
    };
    scratch.begin(rules, request);
    let Scratch { gathered, caches, .. } = &mut scratch;
    let mut run = Run { rules, request, gathered, caches, minds_unclear: true };
    let explain_rule = |id: crate::RuleId| {
        let mut truth = Truth::False;
        let mut failed = Vec::new();
        for literals in rules.conditions(id.0) {
            let one = run.conjunct_of(rules.rules[id.0 as usize].unknown, literals);
            truth = truth.or(one);
            if one != Truth::True {
                let stops = |&&literal: &&crate::dnf::Literal| run.literal(literal) == one;
                if let Some(literal) = literals.iter().find(stops) {
                    failed.push(Condition {
                        condition: rules.table.show(literal.atom(), literal.negated()),
                        value: show_value(&mut run, literal.atom()),
                    });
                }
            }
        }
        let verdict = match truth {
            _ if winner == Some(id) => Verdict::Wins,
            _ if matched.contains(&id) => Verdict::Contributes,
            Truth::True if ended => Verdict::Shadowed,
            // The search stopped for the body before it reached this rule.
            Truth::True => match rules.rules[id.0 as usize].action {
                Action::Continue => Verdict::Contributes,
                _ => Verdict::Shadowed,
            },
            Truth::False => Verdict::Fails,
            Truth::Unknown => Verdict::Undecidable,
            Truth::Pending => Verdict::NeedsBody,
        };
        if truth == Truth::True {
            failed.clear();
        } else if failed.is_empty() && truth == Truth::False {
            failed.push(Condition { condition: "false".into(), value: "never holds".into() });
        }
        RuleExplanation { rule: rules.name(id).to_owned(), verdict, failed }
    };
    let list = rules.precedence().map(explain_rule).collect();
    Explanation { winner: winner.map(|id| rules.name(id).to_owned()), outcome, rules: list }
}

/// The values that an atom was applied to, shortened.
fn show_value(run: &mut Run<'_, '_>, atom: AtomId) -> String {
    const SHOWN_MAX: usize = 64;
    let quote = |bytes: &[u8]| {
        let (head, dots) = if bytes.len() > SHOWN_MAX { (&bytes[..SHOWN_MAX], "..") } else { (bytes, "") };
        format!("\"{}\"{dots}", head.escape_ascii())
    };
    let field = run.rules.table.atom(atom).field;
    match run.rules.origins[field as usize] {
        Origin::Single => match eval::address(run.request, field) {
            Some(address) if matches!(field, id::CLIENT_PORT | id::LOCAL_PORT) => address.port().to_string(),
            Some(address) => {
                let (v6, bits) = address_bits(address.ip());
                crate::atom::Net { v6, bits, length: if v6 { 128 } else { 32 } }.to_string()
            }
            None => eval::text(run.request, run.gathered, field).map_or("absent".into(), quote),
        },
        Origin::BodySize => match run.request.body {
            Body::Complete(bytes) => bytes.len().to_string(),
            Body::Prefix(bytes) => format!("more than {}", bytes.len()),
            Body::Pending => "not read yet".into(),
        },
        origin => {
            run.gathered.gather(origin, run.rules, run.request);
            let shown: Vec<String> = run
                .gathered
                .values(field)
                .take(4)
                .map(|found| match run.gathered.bytes(found, run.request) {
                    Some(bytes) => quote(bytes),
                    None if Gathered::is_long(found) => {
                        "unknown: present, and too long or read differently by servers".into()
                    }
                    None => "present, without text".into(),
                })
                .collect();
            if let Origin::Body(format) = origin {
                let reason = match run.gathered.body() {
                    BodyView::Opaque => Some("unknown: the body is encoded or its type contradictory"),
                    BodyView::Pending(media) if media == format => Some("not read yet"),
                    BodyView::Read(media, Reach::Broken) if media == format => {
                        Some("unknown: the body is malformed, or not of a type that all servers read alike")
                    }
                    BodyView::Read(media, Reach::Cut) if media == format && shown.is_empty() => {
                        Some("unknown: not within the prefix that was read")
                    }
                    BodyView::Read(media, _) if media == format => None,
                    _ => Some("absent: the content type is another one"),
                };
                if let Some(reason) = reason {
                    return reason.into();
                }
            }
            let shown = if shown.is_empty() { "absent".into() } else { shown.join(", ") };
            match run.gathered.is_unclear(origin, field) {
                true => format!("{shown}; servers may find other values"),
                false => shown,
            }
        }
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.winner {
            Some(rule) => writeln!(f, "rule \"{rule}\" wins: {}", self.outcome)?,
            None => writeln!(f, "no rule wins: {}", self.outcome)?,
        }
        for rule in &self.rules {
            let verdict = match rule.verdict {
                Verdict::Wins => "wins",
                Verdict::Contributes => "matches, contributes its edits",
                Verdict::Shadowed => "would match, but an earlier rule ended the search",
                Verdict::Fails => "does not match",
                Verdict::Undecidable => "cannot be decided",
                Verdict::NeedsBody => "needs the body",
            };
            writeln!(f, "  {}: {verdict}", rule.rule)?;
            for Condition { condition, value } in &rule.failed {
                writeln!(f, "    {condition}: {value}")?;
            }
        }
        Ok(())
    }
}
