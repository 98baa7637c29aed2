//! Compiler from specifications to a rule set: parse, type, normalise, order, index.

use evergate_base::name::is_same;
use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::atom::{Atom, Table, Test};
use crate::body::Wanted;
use crate::deny::Deny;
use crate::dnf::{self, Literal};
use crate::error::{RuleError, RuleWarning};
use crate::field::{Field, Origin, id};
use crate::index;
use crate::lang;
use crate::mark::Marks;
use crate::redirect::Template;
use crate::ruleset::{Action, Conjunct, FieldNames, Rule, RuleEffect, Ruleset};
use crate::spec::{Limits, RuleSpec, Unknown};

/// Distinguishes rule sets; no decision depends on it.
static IDENTITY: AtomicU64 = AtomicU64::new(1);

/// Headers that no rule may edit. The connection controls framing, and a rule that edits it would allow request
/// smuggling. `Proxy` and `HTTP2-Settings` are never forwarded.
const FRAMING: [&str; 11] = [
    "connection",
    "content-length",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "expect",
    "http2-settings",
    "proxy",
];

/// Length from which a list of candidates costs more than the microsecond that the design allows.
const LIST_WARN: usize = 256;

pub(crate) fn compile(specs: &[RuleSpec], limits: &Limits) -> Result<Ruleset, Vec<RuleError>> {
    let mut errors = Vec::new();
    let (mut table, mut pools, mut warnings) = (Table::new(), Vec::new(), Vec::new());
    let (mut rules, mut forms) = (Vec::new(), Vec::new());
    if specs.len() > limits.rules_max {
        let what =
            format!("{} rules, of which the last is past the limit of {}", specs.len(), limits.rules_max);
        return Err(vec![Site { name: "", key: "rules" }.error(what, "", "merge rules with in [..]")]);
    }
    let mut names = HashSet::new();
    let mut pool_ids = std::collections::HashMap::new();
    for (position, spec) in specs.iter().enumerate() {
        let numbered = format!("#{}", position + 1);
        let misnamed = misnamed(spec, &numbered, &mut names);
        let name = if misnamed.is_some() { &numbered } else { &spec.name };
        errors.extend(misnamed);
        match condition(spec, name, &mut table, limits) {
            Ok(form) => {
                warnings.extend(passes_unknown(spec, name, &form, &table));
                forms.push(form);
            }
            Err(error) => errors.push(error),
        }
        let mut pool = |pool: &str| {
            *pool_ids.entry(pool.to_owned()).or_insert_with(|| {
                pools.push(pool.to_owned());
                pools.len() as u32 - 1
            })
        };
        let action = action(spec, name, &mut pool, &mut errors);
        let effects = effects(spec, name, &mut errors);
        if action == Action::Continue && effects.is_empty() {
            let message = "matches without any effect but a hit counter; give it an action".into();
            warnings.push(RuleWarning { rule: name.clone(), message });
        }
        rules.push(Rule {
            name: name.clone(),
            action,
            unknown: spec.unknown,
            effects,
            unconditional: matches!(spec.when.trim(), "" | "true"),
            conjuncts: 0..0,
        });
    }
    if !errors.is_empty() {
        return Err(errors);
    }
    let mut order: Vec<u32> = (0..rules.len() as u32).collect();
    order.sort_by_key(|&id| std::cmp::Reverse(specs[id as usize].priority));
    let conjuncts = in_order(&order, &mut rules, forms);
    let mut ruleset = assemble(rules, order, table, conjuncts, pools, limits);
    ruleset.warnings.splice(0..0, warnings);
    Ok(ruleset)
}

/// The error for a name that is empty or belongs to another rule.
fn misnamed<'s>(spec: &'s RuleSpec, name: &str, names: &mut HashSet<&'s str>) -> Option<RuleError> {
    let site = Site { name, key: "name" };
    if spec.name.is_empty() {
        return Some(site.error("the name is empty", "", "name the rule"));
    }
    let why = "hit counters and explain could not distinguish the rules";
    let is_new = names.insert(spec.name.as_str());
    (!is_new).then(|| site.error("another rule has the same name", why, "rename one"))
}

/// The conjuncts of all rules in order of precedence; sets the range of each rule.
fn in_order(
    order: &[u32],
    rules: &mut [Rule],
    mut forms: Vec<Vec<dnf::Conjunct>>,
) -> Vec<(u32, dnf::Conjunct)> {
    let mut conjuncts = Vec::new();
    for &id in order {
        let form = std::mem::take(&mut forms[id as usize]);
        rules[id as usize].conjuncts = conjuncts.len()..conjuncts.len() + form.len();
        conjuncts.extend(form.into_iter().map(|literals| (id, literals)));
    }
    conjuncts
}

/// Builds everything that follows from the parsed rules.
pub(crate) fn assemble(
    rules: Vec<Rule>,
    order: Vec<u32>,
    table: Table,
    conjuncts: Vec<(u32, dnf::Conjunct)>,
    pools: Vec<String>,
    limits: &Limits,
) -> Ruleset {
    let mut literals = Vec::new();
    let mut flat = Vec::with_capacity(conjuncts.len());
    for (rule, mut conjunct) in conjuncts {
        // Comparisons that are cheap and likely to fail come first, those on the body last, so that a false header
        // saves reading it.
        conjunct.sort_by_key(|literal| weight(&table, *literal));
        let start = literals.len() as u32;
        literals.extend(conjunct);
        flat.push(Conjunct { rule, start, end: literals.len() as u32 });
    }
    let slices = flat.iter().map(|conjunct| &literals[conjunct.start as usize..conjunct.end as usize]);
    let acts_on_unknown =
        |conjunct: u32| rules[flat[conjunct as usize].rule as usize].unknown != Unknown::NoMatch;
    let built = index::build(slices, &table, acts_on_unknown);
    let name = |conjunct: u32| rules[flat[conjunct as usize].rule as usize].name.as_str();
    let warnings = costly(&built, limits, name);
    Ruleset {
        identity: IDENTITY.fetch_add(1, Ordering::Relaxed),
        marks: Marks::new(&rules),
        rules,
        order,
        conjuncts: flat,
        literals,
        origins: table.fields.iter().map(|(_, field)| field.origin()).collect(),
        wanted: Wanted::new(&table.fields),
        names: names_of(&table),
        table,
        index: built.index,
        pools,
        warnings,
        limits: limits.clone(),
    }
}

/// Warnings about conditions that the index cannot look up.
fn costly<'r>(built: &index::Built, limits: &Limits, name: impl Fn(u32) -> &'r str) -> Vec<RuleWarning> {
    let mut warnings = Vec::new();
    let mut warn = |message: String| warnings.push(RuleWarning { rule: String::new(), message });
    if built.residual.len() >= limits.residual_warn {
        warn(format!(
            "{} conditions have nothing to index by and are evaluated on every request, among them \"{}\"; add a \
             comparison with == , a prefix or a range to each",
            built.residual.len(),
            name(built.residual[0])
        ));
    }
    if built.longest.len() >= LIST_WARN {
        warn(format!(
            "{} conditions share their most selective comparison and are evaluated together, among them \"{}\"; add a \
             more selective one to each",
            built.longest.len(),
            name(built.longest[0])
        ));
    }
    warnings
}

fn names_of(table: &Table) -> FieldNames {
    let mut names = FieldNames::default();
    for (id, field) in table.fields.iter() {
        match field {
            Field::Header(name) => names.headers.insert(name.as_bytes(), id),
            Field::Query(name) => names.query.insert(name.as_bytes(), id),
            Field::Cookie(name) => names.cookies.insert(name.as_bytes(), id),
            _ => {}
        }
    }
    names
}

/// A warning for a rule that denies requests but passes those for which its condition is unknown.
fn passes_unknown(spec: &RuleSpec, name: &str, form: &[dnf::Conjunct], table: &Table) -> Option<RuleWarning> {
    if spec.deny.is_none() || spec.unknown != Unknown::NoMatch {
        return None;
    }
    let mut fields = form.iter().flatten().map(|literal| table.field_of(literal.atom()));
    let field = fields.find(|field| field.may_be_unknown())?;
    let message = format!(
        "denies, and lets pass what makes {field} unknown, which clients can do; add unknown = \"deny\""
    );
    Some(RuleWarning { rule: name.to_owned(), message })
}

fn weight(table: &Table, literal: Literal) -> u32 {
    let atom = table.atom(literal.atom());
    let source = match table.fields.get(atom.field).origin() {
        Origin::Single => 0,
        Origin::Header | Origin::Query | Origin::Cookie => 4,
        Origin::BodySize => 64,
        Origin::Body(_) => 128,
    };
    let test = match &atom.test {
        Test::OneOf(values) if values.len() > 4 => 2,
        Test::Contains(_) => 8,
        Test::Matches { .. } => 16,
        _ => 1,
    };
    source + test
}

/// Parses the condition and adds the condition on the listener.
fn condition(
    spec: &RuleSpec,
    name: &str,
    table: &mut Table,
    limits: &Limits,
) -> Result<Vec<dnf::Conjunct>, RuleError> {
    let expr = lang::parse(&spec.when, table, limits).map_err(|error| error.in_rule(name, &spec.when))?;
    let mut form = dnf::normal_form(&expr, table, limits.conjuncts_max).map_err(|dnf::TooMany| {
        Site { name, key: "when" }.error(
            format!("more than {} alternatives once && is multiplied out over ||", limits.conjuncts_max),
            "each alternative is indexed on its own",
            "use in [..] instead of ||, or split the rule",
        )
    })?;
    let (listeners, excepted) = match spec.listeners.is_empty() {
        true => (&spec.except_listeners, true),
        false => (&spec.listeners, false),
    };
    if !spec.of_connections {
        refuse_protocols(&form, table, name)?;
    }
    if !listeners.is_empty() {
        let mut listeners: Vec<Vec<u8>> = listeners.iter().map(|name| name.clone().into_bytes()).collect();
        listeners.sort_unstable();
        listeners.dedup();
        let atom = table.intern(Atom { field: id::LISTENER, test: Test::OneOf(listeners) });
        for conjunct in &mut form {
            conjunct.push(Literal::new(atom, excepted));
            conjunct.sort_unstable();
        }
    }
    Ok(form)
}

/// Protocols that the clients of requests can have chosen.
const PROTOCOLS: [&str; 2] = ["http/1.1", "http/1.0"];

/// Refuses a comparison with a protocol in which this server receives no requests.
fn refuse_protocols(form: &[dnf::Conjunct], table: &Table, name: &str) -> Result<(), RuleError> {
    let can_hold = |test: &Test| match test {
        Test::OneOf(values) => values.iter().any(|value| PROTOCOLS.iter().any(|one| one.as_bytes() == value)),
        Test::StartsWith(part) => PROTOCOLS.iter().any(|one| one.as_bytes().starts_with(part)),
        Test::EndsWith(part) => PROTOCOLS.iter().any(|one| one.as_bytes().ends_with(part)),
        Test::Contains(part) => {
            PROTOCOLS.iter().any(|one| memchr::memmem::find(one.as_bytes(), part).is_some())
        }
        _ => true,
    };
    for literal in form.iter().flatten() {
        let atom = table.atom(literal.atom());
        if atom.field == id::ALPN && !can_hold(&atom.test) {
            let error = Site { name, key: "when" }.error(
                format!("{} never holds", table.show(literal.atom(), false)),
                "protocols of requests are http/1.1 and http/1.0",
                "write \"http/1.1\" or \"http/1.0\"; rules of passthrough listeners see what a client offers",
            );
            return Err(RuleError { line: 1, column: 1, ..error });
        }
    }
    Ok(())
}

/// Position of an error outside a condition.
struct Site<'n> {
    name: &'n str,
    key: &'static str,
}

impl Site<'_> {
    fn error(&self, what: impl Into<String>, why: &str, remedy: &str) -> RuleError {
        RuleError {
            rule: self.name.to_owned(),
            key: self.key,
            line: 0,
            column: 0,
            what: what.into(),
            why: why.to_owned(),
            remedy: remedy.to_owned(),
        }
    }
}

fn action(
    spec: &RuleSpec,
    name: &str,
    pool_id: &mut dyn FnMut(&str) -> u32,
    errors: &mut Vec<RuleError>,
) -> Action {
    let mut refuse = |key: &'static str, what: String, why: &str, remedy: &str| {
        errors.push(Site { name, key }.error(what, why, remedy));
    };
    let terminals = [spec.route.is_some(), spec.deny.is_some(), spec.redirect.is_some()];
    if terminals.iter().filter(|&&given| given).count() > 1 {
        refuse(
            "route",
            "more than one of route, deny and redirect".into(),
            "a request ends one way",
            "keep one",
        );
    }
    if spec.sticky.is_some() && spec.route.is_none() {
        refuse(
            "sticky",
            "sticky without route".into(),
            "there is no server to keep",
            "add route, or remove sticky",
        );
    }
    if spec.redirect_status.is_some() && spec.redirect.is_none() {
        refuse(
            "redirect_status",
            "redirect_status without redirect".into(),
            "",
            "add redirect, or remove it",
        );
    }
    if let Some(pool) = &spec.route {
        if pool.is_empty() {
            refuse("route", "the name of the pool is empty".into(), "", "name a pool");
        }
        return Action::Route { pool: pool_id(pool), sticky: spec.sticky };
    }
    if let Some(deny) = spec.deny {
        if let Deny::Status(status) = deny
            && !(400..600).contains(&status)
        {
            let what = format!("deny = {status}");
            refuse("deny", what, "denying takes an error status", "use 400 to 599, for example 403");
        }
        return Action::Deny(deny);
    }
    if let Some(location) = &spec.redirect {
        let status = spec.redirect_status.unwrap_or(302);
        if !matches!(status, 301 | 302 | 303 | 307 | 308) {
            let what = format!("redirect_status = {status}");
            refuse("redirect_status", what, "that is no redirect", "use 301, 302, 303, 307 or 308");
        }
        match Template::parse(location) {
            Ok(location) => return Action::Redirect { status, location },
            Err((what, remedy)) => refuse("redirect", what, "", &remedy),
        }
    }
    Action::Continue
}

/// The name of a header that may be edited, in lower case.
fn edited(site: &Site<'_>, header: &str) -> Result<String, RuleError> {
    let lower = header.to_ascii_lowercase();
    if header.is_empty() || header.len() > 256 || !header.bytes().all(lang::is_token) {
        let why = "that is no token (RFC 9110 section 5.6.2)";
        return Err(site.error(format!("header name {header:?}"), why, "letters, digits and - only"));
    }
    if FRAMING.iter().any(|name| is_same(name.as_bytes(), header.as_bytes())) {
        let why = "the connection sets framing headers itself, and passes none like it on";
        return Err(site.error(format!("header {header}"), why, "leave it out"));
    }
    if lower == "host" && site.key == "remove_request_headers" {
        return Err(site.error("header host", "a request without Host is invalid", "leave it out"));
    }
    if lower == "host" && site.key == "set_response_headers" {
        return Err(site.error("header host", "a response has none", "leave it out"));
    }
    Ok(lower)
}

fn removed(site: &Site<'_>, headers: &[String], errors: &mut Vec<RuleError>) -> Vec<String> {
    let names = headers.iter().map(|header| edited(site, header));
    names.filter_map(|name| name.map_err(|error| errors.push(error)).ok()).collect()
}

fn set(
    site: &Site<'_>,
    headers: &BTreeMap<String, String>,
    errors: &mut Vec<RuleError>,
) -> Vec<(String, String)> {
    let mut edits: Vec<(String, String)> = Vec::new();
    let printable = |byte: u8| byte == b'\t' || (byte >= b' ' && byte != 0x7f);
    for (header, value) in headers {
        if !value.bytes().all(printable) || value.len() > 8192 {
            let why = "control characters could end the header";
            errors.push(site.error(format!("value of header {header}"), why, "use printable characters"));
            continue;
        }
        if let Some(variable) = variable_in(value) {
            let what = format!("the value of header {header} has the variable {variable}");
            let why = "header values have no variables; the text would be sent as it is";
            let remedy =
                "write the value itself; only `redirect` has variables: ${host}, ${path} and ${query}";
            errors.push(site.error(what, why, remedy));
            continue;
        }
        match edited(site, header) {
            Ok(name) if edits.iter().any(|(other, _)| is_same(other.as_bytes(), name.as_bytes())) => {
                let why = "servers may take it for one that is set here too";
                errors.push(site.error(format!("header {header}"), why, "keep one of them"));
            }
            Ok(name) => edits.push((name, value.clone())),
            Err(error) => errors.push(error),
        }
    }
    edits
}

/// The first `${..}` of a text, at most 64 bytes of it.
fn variable_in(text: &str) -> Option<&str> {
    let rest = &text[text.find("${")?..];
    let name = &rest[..=rest.find('}')?];
    Some(&name[..name.floor_char_boundary(64)])
}

fn effects(spec: &RuleSpec, name: &str, errors: &mut Vec<RuleError>) -> Vec<RuleEffect> {
    let site = |key| Site { name, key };
    let mut effects = Vec::new();
    let names = removed(&site("remove_request_headers"), &spec.remove_request_headers, errors);
    effects.extend(names.into_iter().map(RuleEffect::RemoveRequest));
    let edits = set(&site("set_request_headers"), &spec.set_request_headers, errors);
    effects.extend(edits.into_iter().map(|(name, value)| RuleEffect::SetRequest(name, value)));
    let names = removed(&site("remove_response_headers"), &spec.remove_response_headers, errors);
    effects.extend(names.into_iter().map(RuleEffect::RemoveResponse));
    let edits = set(&site("set_response_headers"), &spec.set_response_headers, errors);
    effects.extend(edits.into_iter().map(|(name, value)| RuleEffect::SetResponse(name, value)));
    if let Some(limit) = &spec.rate_limit {
        if limit.requests_per_s == 0 || limit.burst == 0 {
            let why = "no request would ever pass";
            errors.push(site("rate_limit").error(
                "a rate or burst of 0",
                why,
                "use deny = 429, or a positive number",
            ));
        }
        effects.push(RuleEffect::RateLimit(limit.clone()));
    }
    if spec.audit {
        effects.push(RuleEffect::Audit);
    }
    effects.extend(spec.class.clone().map(RuleEffect::Class));
    effects
}
