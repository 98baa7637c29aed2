//! `evergate check`: the configuration, its files, and what its rules do to one another. Starts and changes nothing.

use super::{UNSTARTABLE, WRONG, output, refused};
use crate::control::status::Finding;
use crate::generation::{CarriedState, assemble};
use evergate_config::{self as config, Config, Loaded, PROBLEMS_MAX, Problem, Severity, thousands};
use evergate_rules::{Entrance, Finding as RuleFinding, FindingKind, Severity as RuleSeverity};
use serde::Serialize;
use std::collections::BTreeSet;
use std::fmt::{self, Write};
use std::path::Path;

#[derive(Serialize)]
struct Report {
    /// Whether `evergate run` would start with it and no rule is an error. It starts with rules that are.
    ok: bool,
    problems: Vec<Finding>,
    /// The gravest findings of the rules, at most [`PROBLEMS_MAX`].
    rules: Vec<Placed>,
    /// Findings of the rules that are not in `rules`.
    #[serde(skip_serializing_if = "is_zero")]
    rules_more: usize,
}

fn is_zero(number: &usize) -> bool {
    *number == 0
}

/// A finding about a rule, with its place and remedy.
#[derive(Serialize)]
struct Placed {
    #[serde(flatten)]
    finding: RuleFinding,
    file: String,
    line: usize,
    column: usize,
    key: String,
    consequence: &'static str,
    remedy: String,
    #[serde(skip)]
    value: Option<String>,
    #[serde(skip)]
    what: String,
}

pub(super) fn check(file: &Path, json: bool) -> u8 {
    let (mut text, mut report) =
        (String::new(), Report { ok: true, problems: Vec::new(), rules: Vec::new(), rules_more: 0 });
    let mut code = WRONG;
    let loaded = load(file);
    let file = if file.as_os_str() == STANDARD_INPUT { Path::new(STANDARD_INPUT_NAME) } else { file };
    let problems = match loaded {
        Err(problems) => {
            report.ok = false;
            code = refused(&problems);
            problems
        }
        Ok(loaded) => {
            if let Err(error) = assemble(&loaded.config, None, &mut CarriedState::default()) {
                // What only shows when keys and certificates are put together.
                report.ok = false;
                report.problems.push(refusal(file, &error));
                let _ = writeln!(text, "error: {}\n  problem:     {error:#}", file.display());
                let _ = writeln!(text, "  consequence: {CONSEQUENCE}\n  remedy:      {REMEDY}");
            }
            let found = loaded.config.rules.ruleset.check_behind(&entrances(&loaded.config)).into_iter();
            report.rules = found.map(|finding| Placed::new(finding, &loaded, file)).collect();
            let meant = report.rules.iter().all(|rule| rule.finding.severity != RuleSeverity::Error);
            let loads = report.ok;
            report.ok &= meant;
            if report.ok && loaded.warnings.iter().any(|warning| warning.hinders_start) {
                (report.ok, code) = (false, UNSTARTABLE);
            }
            let verdict = match loads && !meant {
                true => "has rules that cannot be meant".to_owned(),
                false => {
                    verdict(&report, code, loaded.warnings.iter().map(|warning| warning.stands_for).sum())
                }
            };
            shorten(&mut report);
            summary(&loaded.config, &report, &verdict, &mut text, file);
            loaded.warnings
        }
    };
    let listed: String = problems.iter().map(|problem| format!("{problem}\n")).collect();
    report.problems.extend(problems.iter().map(Finding::from));
    let printed = match json {
        true => output::json(&report),
        false => output::text(&format!("{listed}{text}")),
    };
    if report.ok { printed } else { code }
}

/// The argument that stands for standard input, and its name in problems.
const STANDARD_INPUT: &str = "-";
const STANDARD_INPUT_NAME: &str = "<stdin>";

/// The configuration of a file, or of standard input.
pub(super) fn load(file: &Path) -> Result<Loaded, Vec<Problem>> {
    if file.as_os_str() == STANDARD_INPUT {
        return config::load_from(std::io::stdin().lock(), STANDARD_INPUT_NAME);
    }
    config::load(file)
}

/// Leaves the gravest findings of the rules, in their order.
fn shorten(report: &mut Report) {
    let count = report.rules.len();
    if count <= PROBLEMS_MAX {
        return;
    }
    let mut order: Vec<usize> = (0..count).collect();
    order.sort_by_key(|&index| std::cmp::Reverse(report.rules[index].finding.severity));
    let shown: BTreeSet<usize> = order.into_iter().take(PROBLEMS_MAX).collect();
    let mut index = 0..;
    report.rules.retain(|_| index.next().is_some_and(|index| shown.contains(&index)));
    report.rules_more = count - PROBLEMS_MAX;
}

const CONSEQUENCE: &str = "the configuration is refused; a running node keeps its previous one";
const REMEDY: &str = "correct the file named above, or the key that names it";

fn refusal(file: &Path, error: &anyhow::Error) -> Finding {
    let file = file.display().to_string();
    Finding::of_machine(Severity::Error, &file, format!("{error:#}"), CONSEQUENCE, REMEDY)
}

impl Placed {
    fn new(finding: RuleFinding, loaded: &Loaded, file: &Path) -> Placed {
        let Problem { file, line, column, key, value, .. } = loaded.place_of_rule(&finding.rule, file);
        let (consequence, remedy) = advice(finding.kind);
        // What to do is a part of some messages.
        let (what, remedy) = finding.message.rsplit_once("; ").unwrap_or((&finding.message, remedy));
        let (what, remedy) = (format!("rule \"{}\": {what}", finding.rule), remedy.to_owned());
        Placed { finding, file, line, column, key, consequence, remedy, value, what }
    }
}

/// The listeners that read requests.
fn entrances(config: &Config) -> Vec<Entrance> {
    let readers = config.listeners.iter().filter(|listener| listener.protocol.is_http());
    readers
        .map(|listener| Entrance { listener: listener.name.clone(), is_tls: listener.tls.is_some() })
        .collect()
}

/// Consequence and remedy of a finding of this kind, where the finding has none of its own.
fn advice(kind: FindingKind) -> (&'static str, &'static str) {
    match kind {
        FindingKind::Unreachable => (
            "it never decides anything",
            "give it a higher `priority` or an earlier place, narrow the rules before it, or remove it",
        ),
        FindingKind::Conflict => {
            ("it never decides anything", "let their conditions differ, or remove one of the two")
        }
        FindingKind::Unsatisfiable => ("it never decides anything", "correct or remove it"),
        FindingKind::AlwaysTrue => {
            ("it decides every request that comes to it", "write when = \"true\" if that is meant")
        }
        FindingKind::NotProven => {
            ("perhaps it never decides anything", "nothing, if that is meant; the witness shows a request")
        }
    }
}

/// The format of the file's problems; an information takes one line.
impl fmt::Display for Placed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let severity = match self.finding.severity {
            RuleSeverity::Info => return self.finding.fmt(f),
            RuleSeverity::Warning => Severity::Warning,
            RuleSeverity::Error => Severity::Error,
        };
        let problem = Problem {
            severity,
            file: self.file.clone(),
            line: self.line,
            column: self.column,
            key: self.key.clone(),
            value: self.value.clone(),
            what: self.what.clone(),
            consequence: self.consequence.to_owned(),
            remedy: self.remedy.clone(),
            may_pass: false,
            hinders_start: false,
            stands_for: 1,
        };
        problem.fmt(f)?;
        match &self.finding.witness {
            Some(witness) => write!(f, "\n  witness:     {}", witness.replace('\n', "\n    ")),
            None => Ok(()),
        }
    }
}

fn verdict(report: &Report, code: u8, warnings: usize) -> String {
    let worth = |rule: &&Placed| rule.finding.severity != RuleSeverity::Info;
    match (report.ok, warnings + report.rules.iter().filter(worth).count()) {
        (false, _) if code == UNSTARTABLE => {
            "can be used, but no node starts with it on this machine: see the warnings".to_owned()
        }
        (false, _) => "cannot be used as it is".to_owned(),
        (true, 0) => "is correct".to_owned(),
        (true, 1) => "can be used, with 1 warning".to_owned(),
        (true, count) => format!("can be used, with {count} warnings"),
    }
}

fn summary(config: &Config, report: &Report, verdict: &str, text: &mut String, file: &Path) {
    for rule in &report.rules {
        let _ = writeln!(text, "{rule}");
    }
    if report.rules_more > 0 {
        let _ = writeln!(text, "and {} more findings of the rules", thousands(report.rules_more));
    }
    let (listeners, pools, rules) = (config.listeners.len(), config.pools.len(), config.rules.specs.len());
    let _ = writeln!(
        text,
        "{} {verdict} (listeners: {listeners}, pools: {pools}, rules: {rules})",
        file.display()
    );
}
