//! Checks of rules: the names they refer to, and their compilation by `evergate-rules` with its errors
//! brought back to places in the file.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use evergate_rules::{Deny, Limits, RuleError, RuleId, RuleSpec, Ruleset, Sticky as RuleSticky};

use super::connection_rules;
use super::context::Checks;
use crate::model::{Protocol, Rules};
use crate::problem::REFUSED;
use crate::raw::{RawConfig, RawTrust};
use crate::span::KeyPath;

pub(crate) fn rules(config: &RawConfig, checks: &mut Checks<'_>) -> Rules {
    let list = KeyPath::root().key("rules");
    let mut seen = BTreeMap::new();
    for (i, rule) in config.rules.iter().enumerate() {
        let at = list.index(i);
        let name = Some(rule.name.as_str()).filter(|_| checks.report.is_given(&at.key("name")));
        checks.name(name, &at, &mut seen, "api");
        references(config, rule, &at, checks);
        host(rule, &at, checks);
        connection_rules::actions(config, rule, &at, checks);
    }
    denials(config, checks);
    super::session_balancing::rules(config, checks);
    super::session_balancing::warn_of_unrelayed(config, checks);
    let specs = connection_rules::scoped(config);
    match Ruleset::compile(&specs, &Limits::default()) {
        Ok(ruleset) => {
            connection_rules::fields(config, &ruleset, checks);
            warnings(config, &ruleset, checks);
            unseen_headers(config, &ruleset, checks);
            Rules { specs, ruleset: Arc::new(ruleset) }
        }
        Err(errors) => {
            let news: Vec<_> =
                errors.into_iter().filter(|error| !is_reported(config, error, checks)).collect();
            news.iter().for_each(|error| compile_error(config, error, checks));
            Rules::none()
        }
    }
}

fn references(config: &RawConfig, rule: &RuleSpec, at: &KeyPath, checks: &mut Checks<'_>) {
    let key = at.key("listeners");
    if rule.listeners.is_empty() && checks.report.is_given(&key) && !checks.report.is_excused(&key) {
        checks.report.error_because(
            &key,
            "the list of listeners is empty",
            format!("a rule for no listener would never apply; {REFUSED}"),
            "name at least one, or remove the key for a rule of all listeners",
        );
    }
    for (i, name) in rule.listeners.iter().enumerate() {
        let at = key.index(i);
        let found = checks.listeners.find(name, "listener", "[[listeners]]", &at, &mut checks.report);
        let Some(listener) = found.and_then(|i| config.listeners.get(i)) else { continue };
        if listener.redirect_to_https && listener.protocol == Some(Protocol::Http) {
            checks.report.warning(
                &at,
                format!("the listener {name:?} redirects every request to https before rules are asked"),
                "the rule never applies there",
                format!(
                    "remove the listener from the rule; or remove its `redirect_to_https` and end the rules with \
                     `when = \"true\"`, `listeners = [{name:?}]`, \
                     `redirect = \"https://${{host}}${{path}}?${{query}}\"`, `redirect_status = 308`"
                ),
            );
        }
    }
    if let Some(pool) = &rule.route {
        checks.pools.find(pool, "pool", "[[pools]]", &at.key("route"), &mut checks.report);
    }
    if let Some(class) = &rule.class
        && !config.pools.iter().any(|pool| pool.queue_classes.contains(class))
    {
        checks.report.warning(
            &at.key("class"),
            format!("no pool has the class {class:?} in its `queue_classes`"),
            "it is only shown in the log",
            "add it to the `queue_classes` of the pools where such requests should wait less",
        );
    }
    if rule.sticky.is_some_and(|s| s != RuleSticky::None)
        && rule.route.is_none()
        && !checks.report.is_excused(&at.key("route"))
    {
        checks.report.error_because(
            &at.key("sticky"),
            "`sticky` is given, but the rule does not route",
            format!("there is no server to return to; {REFUSED}"),
            "add `route` with the name of a pool, or remove `sticky`",
        );
    }
}

fn host(rule: &RuleSpec, at: &KeyPath, checks: &mut Checks<'_>) {
    for (name, value) in &rule.set_request_headers {
        if name.eq_ignore_ascii_case("host") && !evergate_http::is_host(value.as_bytes()) {
            checks.report.error_because(
                &at.key("set_request_headers").key(name),
                format!("{value:?} is no host"),
                format!("servers would refuse every request that the rule matches; {REFUSED}"),
                "write a name or an address, with or without a port, as in `Host = \"site.example\"`",
            );
        }
    }
}

/// Fields that responses of a status must have, with an example and their section in RFC 9110.
const REQUIRED: [(u16, &str, &str, &str); 3] = [
    (401, "WWW-Authenticate", "Bearer", "15.5.2"),
    (405, "Allow", "GET, HEAD", "15.5.6"),
    (407, "Proxy-Authenticate", "Basic", "15.5.8"),
];

/// Warns of denials without a field that their status requires: neither the rule sets it, nor a rule that continues the
/// search.
fn denials(config: &RawConfig, checks: &mut Checks<'_>) {
    let sets = |rule: &RuleSpec, field: &str| {
        rule.set_response_headers.keys().any(|k| k.eq_ignore_ascii_case(field))
    };
    let continues = |rule: &RuleSpec| rule.route.is_none() && rule.deny.is_none() && rule.redirect.is_none();
    for (status, field, example, section) in REQUIRED {
        if config.rules.iter().any(|rule| continues(rule) && sets(rule, field)) {
            continue;
        }
        for (i, rule) in config.rules.iter().enumerate() {
            if rule.deny == Some(Deny::Status(status)) && !sets(rule, field) {
                checks.report.warning(
                    &KeyPath::root().key("rules").index(i).key("deny"),
                    format!("a response with {status} must have the field `{field}`, and no rule sets it"),
                    format!("clients do not learn how to proceed (RFC 9110 section {section})"),
                    format!("add `set_response_headers = {{ {field} = \"{example}\" }}`, or deny with 403"),
                );
            }
        }
    }
}

/// The position of the rule that a compiler message names: by its name, or as `#3`.
fn index_of(config: &RawConfig, name: &str) -> Option<usize> {
    let by_name = config.rules.iter().position(|r| !r.name.is_empty() && r.name == name);
    by_name.or_else(|| name.strip_prefix('#')?.parse::<usize>().ok()?.checked_sub(1))
}

/// The key that a compiler message is about.
fn place_of(config: &RawConfig, error: &RuleError) -> KeyPath {
    let list = KeyPath::root().key("rules");
    match index_of(config, &error.rule) {
        Some(i) if error.key.is_empty() => list.index(i),
        Some(i) => list.index(i).key(error.key),
        None => list,
    }
}

/// Whether this module has found it too: names and references it checks with better guesses.
fn is_reported(config: &RawConfig, error: &RuleError, checks: &Checks<'_>) -> bool {
    let at = place_of(config, error);
    if checks.report.has_error_at(&at) || checks.report.is_excused(&at) {
        return true;
    }
    // Of two equal names the compiler blames the first and this module the second.
    let list = KeyPath::root().key("rules");
    let a_name_is_wrong =
        || (0..config.rules.len()).any(|i| checks.report.has_error_at(&list.index(i).key("name")));
    error.key == "name" && a_name_is_wrong()
}

fn compile_error(config: &RawConfig, error: &RuleError, checks: &mut Checks<'_>) {
    let at = place_of(config, error);
    let consequence =
        if error.why.is_empty() { REFUSED.to_owned() } else { format!("{}; {REFUSED}", error.why) };
    let remedy = if error.remedy.is_empty() {
        "correct the rule; docs/reference/rules.md describes the language"
    } else {
        &error.remedy
    };
    let byte = if error.line > 0 {
        checks.report.source().byte_in_string(&at, error.line as usize, error.column as usize)
    } else {
        None
    };
    match byte {
        Some(byte) => checks.report.error_at_byte_because(byte, &at, &error.what, consequence, remedy),
        None => checks.report.error_because(&at, &error.what, consequence, remedy),
    }
}

fn warnings(config: &RawConfig, ruleset: &Ruleset, checks: &mut Checks<'_>) {
    let list = KeyPath::root().key("rules");
    for warning in ruleset.warnings() {
        let at = match index_of(config, &warning.rule) {
            // What is missing from it may be what could not be read.
            Some(i) if checks.report.is_excused_below(&list.index(i)) => continue,
            Some(i) => list.index(i).key("when"),
            None => list.clone(),
        };
        checks.report.warning(
            &at,
            &warning.message,
            "the rule works, but perhaps not as meant, or slowly",
            "see the message; `evergate check` examines rules further",
        );
    }
}

/// Warns of conditions on headers that rules do not see where they apply.
fn unseen_headers(config: &RawConfig, ruleset: &Ruleset, checks: &mut Checks<'_>) {
    for (i, rule) in (0..).zip(&config.rules) {
        let asked = |name: &Option<String>| {
            rule.listeners.is_empty() || name.as_ref().is_some_and(|name| rule.listeners.contains(name))
        };
        let mut listeners = config.listeners.iter().filter(|listener| asked(&listener.name)).peekable();
        if listeners.peek().is_none() {
            continue; // reported already
        }
        let trusted = listeners.any(|listener| !matches!(listener.trust_forwarded, RawTrust::All(false)));
        let unseen = |name: &&str| !evergate_http::is_for_rules(name.as_bytes(), trusted);
        for name in ruleset.headers_of(RuleId(i)).filter(unseen).collect::<BTreeSet<_>>() {
            let (whose, remedy) = match evergate_http::is_for_rules(name.as_bytes(), true) {
                true => (
                    "of clients that are not trusted",
                    "set `trust_forwarded` of the listener to the networks of your own proxies, or compare \
                     client.ip",
                ),
                false => (
                    "of any client",
                    "remove the comparison: such a header is left out or replaced on the way",
                ),
            };
            checks.report.warning(
                &KeyPath::root().key("rules").index(i as usize).key("when"),
                format!("rules do not see the header {name:?} {whose}"),
                "no comparison with it ever holds",
                remedy,
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde::Deserialize;
    use toml::de::{DeTable, DeValue};

    use super::*;
    use crate::checks::context::Names;
    use crate::environment::Machine;
    use crate::problem::{Problem, Report};
    use crate::span::Source;
    use crate::{schema, structure};

    /// The problems that a compiler's error leads to, in a file with these rules.
    fn problems_of(text: &str, error: &RuleError) -> Vec<Problem> {
        let mut source = Source::new("f.toml", text);
        let tree = DeValue::Table(DeTable::parse(text).unwrap().into_inner());
        source.index(&KeyPath::root(), &tree);
        let DeValue::Table(mut table) = tree else { panic!("a document is a table") };
        let mut report = Report::new(&source);
        structure::fit(&schema::ROOT, &mut table, &KeyPath::root(), &mut report);
        let tree = toml::Spanned::new(0..0, table);
        let raw = RawConfig::deserialize(toml::de::Deserializer::from(tree)).unwrap();
        let mut checks = Checks {
            report,
            base_dir: Path::new(""),
            world: &Machine,
            user: None,
            listeners: Names::default(),
            certificates: Names::default(),
            tls: Names::default(),
            pools: Names::default(),
            read_files: Vec::new(),
            own_files: Vec::new(),
        };
        compile_error(&raw, error, &mut checks);
        checks.report.into_problems()
    }

    fn error(rule: &str, key: &'static str, line: u32, column: u32) -> RuleError {
        let (what, why, remedy) = ("a thing".to_owned(), "a reason".to_owned(), "a way".to_owned());
        RuleError { rule: rule.to_owned(), key, line, column, what, why, remedy }
    }

    const TEXT: &str = "[[rules]]\nname = \"a\"\nwhen = 'path == \"/\"'\n\
        [[rules]]\nname = \"b\"\nredirect = \"x\"\nwhen = \"\"\"\nhost == \"h\"\n  && pth == 1\"\"\"\n";

    #[test]
    fn error_in_a_condition_has_its_place_in_the_file() {
        for (found, key, place) in [
            (error("a", "when", 1, 6), "rules[0].when", (3, 14)),
            (error("b", "when", 2, 6), "rules[1].when", (9, 6)),
            (error("#2", "when", 1, 1), "rules[1].when", (8, 1)),
            (error("b", "redirect", 0, 0), "rules[1].redirect", (6, 12)),
            (error("b", "deny", 0, 0), "rules[1].deny", (4, 1)),
            (error("nobody", "when", 1, 1), "rules", (1, 1)),
        ] {
            let problems = problems_of(TEXT, &found);
            assert_eq!(problems.len(), 1);
            let problem = &problems[0];
            assert_eq!((problem.key.as_str(), (problem.line, problem.column)), (key, place));
            assert_eq!((problem.what.as_str(), problem.remedy.as_str()), ("a thing", "a way"));
            assert!(problem.consequence.starts_with("a reason; "));
        }
    }
}
