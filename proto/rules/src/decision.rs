//! Result of a decision: the terminal action, the matching rules and their effects.

use std::ops::Deref;

use serde::{Deserialize, Serialize};

use crate::deny::Deny;
use crate::ruleset::Ruleset;
use crate::spec::{RateLimit, Sticky};

/// Position of a rule in the compiled list of specifications.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RuleId(pub u32);

/// Result of [`Ruleset::decide`].
#[derive(Clone, Debug)]
pub enum Outcome<'r> {
    /// The decision is final.
    Decided(Decision<'r>),
    /// A rule that could still win depends on the body: read it up to the limit and decide again.
    NeedBody,
}

/// Actions and effects for a request.
#[derive(Clone, Debug)]
pub struct Decision<'r> {
    /// The terminal rule; `None` if no terminal rule matched.
    pub rule: Option<RuleId>,
    /// The terminal action.
    pub terminal: Terminal<'r>,
    /// Every matching rule in the order tried; the terminal rule is the last.
    pub matched: Matched,
    pub(crate) ruleset: &'r Ruleset,
}

/// The action that ends the search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Terminal<'r> {
    /// No terminal rule matched.
    None,
    /// Send the request to a pool.
    Route {
        /// Name of the pool.
        pool: &'r str,
        /// Index into [`Ruleset::pools`].
        pool_index: u32,
        /// Stickiness of the client to its server; `None` leaves it to the pool.
        sticky: Option<Sticky>,
    },
    /// Answer with a status, or end the connection.
    Deny(Deny),
    /// Answer with a redirect.
    Redirect {
        /// 301, 302, 303, 307 or 308.
        status: u16,
        /// The `Location`, with every byte that is not printable ASCII percent-encoded.
        location: String,
    },
}

const INLINE: usize = 16;

/// Ids of the matching rules; allocates only beyond 16.
#[derive(Clone, Debug)]
pub struct Matched {
    inline: [RuleId; INLINE],
    len: usize,
    spilled: Vec<RuleId>,
}

impl Matched {
    pub(crate) fn new() -> Matched {
        Matched { inline: [RuleId(0); INLINE], len: 0, spilled: Vec::new() }
    }

    pub(crate) fn push(&mut self, id: RuleId) {
        if self.len < INLINE {
            self.inline[self.len] = id;
        } else {
            if self.len == INLINE {
                self.spilled.extend_from_slice(&self.inline);
            }
            self.spilled.push(id);
        }
        self.len += 1;
    }
}

impl Deref for Matched {
    type Target = [RuleId];

    fn deref(&self) -> &[RuleId] {
        if self.len <= INLINE { &self.inline[..self.len] } else { &self.spilled }
    }
}

/// One change to a message's headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderEdit<'r> {
    /// Replace all lines of that name with this one.
    Set {
        /// Name, in lower case.
        name: &'r str,
        /// Value.
        value: &'r str,
    },
    /// Remove all lines of that name.
    Remove {
        /// Name, in lower case.
        name: &'r str,
    },
}

/// One effect of a matching rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect<'r> {
    /// Edit the request.
    Request(HeaderEdit<'r>),
    /// Edit the response.
    Response(HeaderEdit<'r>),
    /// Count the request against this rule's limit.
    RateLimit(RuleId, &'r RateLimit),
    /// Mark the request in the access log.
    Audit,
    /// Give the request this service class.
    Class(&'r str),
}

impl<'r> Decision<'r> {
    /// The effects of all matching rules, in the order tried. Apply them in this order: where two rules set the same
    /// header, the later one (of lower precedence) overwrites.
    pub fn effects(&self) -> impl Iterator<Item = Effect<'r>> + '_ {
        let ruleset = self.ruleset;
        self.matched.iter().flat_map(move |&id| ruleset.effects_of(id))
    }

    /// The edits to the request, in order.
    pub fn request_edits(&self) -> impl Iterator<Item = HeaderEdit<'r>> + '_ {
        self.effects().filter_map(|effect| if let Effect::Request(edit) = effect { Some(edit) } else { None })
    }

    /// The edits to the response, in order.
    pub fn response_edits(&self) -> impl Iterator<Item = HeaderEdit<'r>> + '_ {
        self.effects()
            .filter_map(|effect| if let Effect::Response(edit) = effect { Some(edit) } else { None })
    }

    /// The rate limits that the request counts against.
    pub fn rate_limits(&self) -> impl Iterator<Item = (RuleId, &'r RateLimit)> + '_ {
        self.effects().filter_map(|effect| {
            if let Effect::RateLimit(id, limit) = effect { Some((id, limit)) } else { None }
        })
    }

    /// Whether a matching rule asks for the mark in the access log.
    pub fn audit(&self) -> bool {
        self.effects().any(|effect| effect == Effect::Audit)
    }

    /// The service class of the first matching rule that names one.
    pub fn class(&self) -> Option<&'r str> {
        self.effects().find_map(|effect| if let Effect::Class(class) = effect { Some(class) } else { None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matched_keeps_order_across_the_spill() {
        let mut matched = Matched::new();
        for id in 0..40 {
            matched.push(RuleId(id));
            let ids: Vec<u32> = matched.iter().map(|id| id.0).collect();
            assert_eq!(ids, (0..=id).collect::<Vec<_>>());
        }
    }
}
