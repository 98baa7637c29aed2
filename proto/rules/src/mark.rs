//! Names of rules that are also valid in other rule sets.

use crate::decision::RuleId;
use crate::hash::{KeyMap, RunningHash};
use crate::ruleset::{Rule, RuleEffect, Ruleset};
use evergate_base::spread;

/// Marks of rules. A mark covers the name of a rule and its effects after the request has been sent: on the response
/// and on the log. Rules with equal name and effects have one mark in every rule set.
#[derive(Debug, Default)]
pub(crate) struct Marks {
    of: Vec<u64>,
    rules: KeyMap<u32>,
}

impl Marks {
    pub(crate) fn new(rules: &[Rule]) -> Marks {
        let of: Vec<u64> = rules.iter().map(mark).collect();
        let rules = of.iter().zip(0..).map(|(mark, rule)| (*mark, rule)).collect();
        Marks { of, rules }
    }
}

impl Ruleset {
    /// The mark of a rule: a name for its remaining effects on a request that has been sent to a server (response
    /// headers, service class, access log). It is the same in the rule sets of other nodes and configurations that have
    /// such a rule. 0 for an id of another rule set.
    pub fn mark(&self, id: RuleId) -> u64 {
        self.marks.of.get(id.0 as usize).copied().unwrap_or(0)
    }

    /// A rule with this mark.
    pub fn marked(&self, mark: u64) -> Option<RuleId> {
        self.marks.rules.get(&mark).copied().map(RuleId)
    }
}

fn mark(rule: &Rule) -> u64 {
    let mut hash = RunningHash::new();
    let mut take = |kind: u8, texts: [&str; 2]| {
        hash.push(kind);
        for text in texts {
            (text.len() as u32).to_le_bytes().iter().chain(text.as_bytes()).for_each(|byte| hash.push(*byte));
        }
    };
    take(0, [&rule.name, ""]);
    for effect in &rule.effects {
        match effect {
            RuleEffect::SetResponse(name, value) => take(1, [name, value]),
            RuleEffect::RemoveResponse(name) => take(2, [name, ""]),
            RuleEffect::Audit => take(3, ["", ""]),
            RuleEffect::Class(class) => take(4, [class, ""]),
            // Applied before the request is sent.
            RuleEffect::SetRequest(..) | RuleEffect::RemoveRequest(_) | RuleEffect::RateLimit(_) => {}
        }
    }
    spread(std::hash::Hasher::finish(&hash))
}

#[cfg(test)]
mod tests {
    use crate::{Limits, RuleId, RuleSpec, Ruleset};

    fn compiled(specs: &[RuleSpec]) -> Ruleset {
        Ruleset::compile(specs, &Limits::default()).expect("the rules compile")
    }

    fn named(name: &str) -> RuleSpec {
        RuleSpec { name: name.into(), route: Some("web".into()), ..RuleSpec::default() }
    }

    fn setting(name: &str, field: &str, value: &str) -> RuleSpec {
        let fields = [(field.to_owned(), value.to_owned())].into();
        RuleSpec { set_response_headers: fields, ..named(name) }
    }

    #[test]
    fn mark_finds_a_rule_with_the_same_later_effects() {
        let here = compiled(&[named("a"), setting("b", "x-b", "1")]);
        let condition = RuleSpec { when: "path == \"/b\"".into(), ..setting("b", "x-b", "1") };
        let elsewhere = RuleSpec { route: Some("other".into()), priority: 7, ..condition };
        let request = RuleSpec { remove_request_headers: vec!["x-c".into()], ..elsewhere };
        let there = compiled(&[named("new"), request, named("a")]);
        let found = |id| there.marked(here.mark(RuleId(id)));
        assert_eq!((found(0), found(1)), (Some(RuleId(2)), Some(RuleId(1))));
        assert_eq!((here.mark(RuleId(2)), here.marked(0)), (0, None));
    }

    #[test]
    fn rule_with_other_response_or_log_effects_has_another_mark() {
        let rule = || setting("b", "x-b", "1");
        let mark = |spec: RuleSpec| compiled(&[spec]).mark(RuleId(0));
        let others = [
            named("b"),
            setting("c", "x-b", "1"),
            setting("b", "x-b", "2"),
            setting("b", "x-", "b1"),
            RuleSpec { remove_response_headers: vec!["x-c".into()], ..rule() },
            RuleSpec { audit: true, ..rule() },
            RuleSpec { class: Some("gold".into()), ..rule() },
        ];
        for other in others {
            assert_ne!(mark(other.clone()), mark(rule()), "{other:?}");
        }
        assert_eq!(mark(rule()), mark(rule()));
    }
}
