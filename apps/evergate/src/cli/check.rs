//! `evergate check`: the configuration, its files, and what its rules do to one another. Starts and changes nothing.

use super::{WRONG, output};
use crate::assemble::{Keepsakes, assemble};
use crate::config::{self, Config, Severity};
use crate::control::status::Finding;
use evergate_rules::{Finding as RuleFinding, Severity as RuleSeverity};
use serde::Serialize;
use std::fmt::Write;
use std::path::Path;

#[derive(Serialize)]
struct Report {
    /// Whether `evergate run` would start with it and no rule is an error.
    ok: bool,
    problems: Vec<Finding>,
    rules: Vec<RuleFinding>,
}

pub(super) fn check(file: &Path, json: bool) -> u8 {
    let (mut text, mut report) =
        (String::new(), Report { ok: true, problems: Vec::new(), rules: Vec::new() });
    let problems = match config::load(file) {
        Err(problems) => {
            report.ok = false;
            problems
        }
        Ok(loaded) => {
            if let Err(error) = assemble(&loaded.config, None, &mut Keepsakes::default()) {
                // What only shows when keys and certificates are put together.
                report.ok = false;
                report.problems.push(refusal(file, &error));
                let _ = writeln!(text, "error: {}\n  problem:     {error:#}", file.display());
                let _ = writeln!(text, "  consequence: {CONSEQUENCE}\n  remedy:      {REMEDY}");
            }
            report.rules = loaded.config.rules.ruleset.check();
            report.ok &= report.rules.iter().all(|finding| finding.severity != RuleSeverity::Error);
            summary(&loaded.config, &report, &loaded.warnings, &mut text, file);
            loaded.warnings
        }
    };
    let listed: String = problems.iter().map(|problem| format!("{problem}\n")).collect();
    report.problems.extend(problems.iter().map(Finding::from));
    let printed = match json {
        true => output::json(&report),
        false => output::text(&format!("{listed}{text}")),
    };
    if report.ok { printed } else { WRONG }
}

const CONSEQUENCE: &str = "the configuration is refused; a running node keeps its previous one";
const REMEDY: &str = "correct the file named above, or the key that names it";

fn refusal(file: &Path, error: &anyhow::Error) -> Finding {
    let file = file.display().to_string();
    Finding::of_machine(Severity::Error, &file, format!("{error:#}"), CONSEQUENCE, REMEDY)
}

fn summary(config: &Config, report: &Report, warnings: &[config::Problem], text: &mut String, file: &Path) {
    for finding in &report.rules {
        let _ = writeln!(text, "{finding}");
    }
    let worth = |finding: &&RuleFinding| finding.severity != RuleSeverity::Info;
    let count = warnings.len() + report.rules.iter().filter(worth).count();
    let verdict = match (report.ok, count) {
        (false, _) => "cannot be used as it is".to_owned(),
        (true, 0) => "is correct".to_owned(),
        (true, 1) => "can be used, with 1 warning".to_owned(),
        (true, count) => format!("can be used, with {count} warnings"),
    };
    let (listeners, pools, rules) = (config.listeners.len(), config.pools.len(), config.rules.specs.len());
    let _ = writeln!(
        text,
        "{} {verdict} (listeners: {listeners}, pools: {pools}, rules: {rules})",
        file.display()
    );
}
