//! Content rules: parse, type, check, compile, decide, explain.
//!
//! A [`Ruleset`] is compiled once from [`RuleSpec`]s and shared by all workers. A worker keeps one [`Scratch`] and
//! calls [`Ruleset::decide`] for each request. Rules are tried by explicit priority (higher first), then in file order,
//! never by the length of what they match. The first matching *terminal* rule (route, deny or redirect) ends the
//! search; matching rules before it contribute their edits.
//!
//! Invariants:
//! - The index is only a filter: every candidate is evaluated in full, so a hash collision costs time and never changes
//!   a decision. `decide` therefore equals trying the rules one by one (`tests/indexed_equals_naive.rs`).
//! - A value that the body's prefix cannot settle is *unknown*, never false (Kleene's three-valued logic), and the rule
//!   states the effect of unknown.
//! - A field is the set of its values (a header may occur twice). A comparison holds if any value satisfies it. `!` and
//!   `!=` negate the comparison, so they hold if no value satisfies it.
//!
//! The caller reads bodies, limits rates, counts hits and edits messages.

mod atom;
mod body;
mod check;
mod compile;
mod cookie;
mod decision;
mod deny;
mod dnf;
mod error;
mod eval;
mod explain;
mod field;
mod hash;
mod index;
mod lang;
mod mark;
mod redirect;
mod request;
mod ruleset;
mod scratch;
mod spec;

pub use check::{Entrance, Finding, FindingKind, Severity, Witness, WitnessTls};
pub use decision::{Decision, Effect, HeaderEdit, Matched, Outcome, RuleId, Terminal};
pub use deny::Deny;
pub use error::{RuleError, RuleWarning};
pub use explain::{Condition, Explanation, RuleExplanation, Verdict};
pub use field::FieldScope;
pub use request::{Body, Request, TlsFacts};
pub use ruleset::Ruleset;
pub use scratch::Scratch;
pub use spec::{Limits, RateKey, RateLimit, RuleSpec, Sticky, Unknown};
