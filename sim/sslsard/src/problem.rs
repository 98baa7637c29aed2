//! Problems of a plan: place, problem, consequence and remedy.

use std::fmt;
use std::fmt::Write;
use toml::de::{DeTable, DeValue};

/// One problem of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanProblem {
    /// File, line, column and key, with the value if there is one.
    pub place: String,
    /// The problem.
    pub problem: String,
    /// The remedy.
    pub remedy: String,
}

const CONSEQUENCE: &str = "nothing is simulated";

impl fmt::Display for PlanProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "error: {}\n  problem:     {}\n  consequence: {CONSEQUENCE}\n  remedy:      {}",
            self.place, self.problem, self.remedy
        )
    }
}

/// A plan that cannot be simulated.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{}", shown(.problems))]
pub struct PlanError {
    /// All problems of the plan, at least one.
    pub problems: Vec<PlanProblem>,
}

fn shown(problems: &[PlanProblem]) -> String {
    problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

impl PlanError {
    /// The error of the TOML reader: invalid TOML, an unknown key, or a value of another type.
    pub(crate) fn syntax(file: &str, text: &str, error: &toml::de::Error) -> PlanError {
        let (line, column) = line_column(text, error.span().map_or(0, |span| span.start));
        let message = error.message().trim().to_owned();
        let remedy = unknown(&message).unwrap_or_else(|| {
            "write it as the plans in examples/ do; docs/measurements/sslsard.md lists the keys with their units"
                .to_owned()
        });
        let problem = PlanProblem { place: format!("{file}:{line}:{column}"), problem: message, remedy };
        PlanError { problems: vec![problem] }
    }
}

/// The remedy for "unknown field `x`, expected one of `a`, `b`" and similar errors.
fn unknown(message: &str) -> Option<String> {
    let quoted: Vec<&str> = message.split('`').skip(1).step_by(2).collect();
    let (word, known) = quoted.split_first()?;
    if !message.starts_with("unknown") || known.is_empty() {
        return None;
    }
    Some(format!("{}use one of {}", did_you_mean(word, known.iter().copied()), known.join(", ")))
}

/// "did you mean `x`? " or an empty text.
pub(crate) fn did_you_mean<'c>(word: &str, known: impl Iterator<Item = &'c str>) -> String {
    let near = |known: &str| {
        let edits = strsim::osa_distance(word, known);
        // Few edits for its length, or one name without the unit or ending of the other.
        let is_stem = word.len() >= 3 && (known.starts_with(word) || word.starts_with(known));
        (is_stem || edits <= (word.chars().count().max(known.chars().count()) / 3).max(1)).then_some(edits)
    };
    known
        .filter_map(|known| near(known).map(|edits| (edits, known)))
        .min()
        .map_or_else(String::new, |(_, known)| format!("did you mean `{known}`? "))
}

/// Locator of keys in the text.
pub(crate) struct Locator<'a> {
    file: &'a str,
    text: &'a str,
    table: Option<DeTable<'a>>,
}

impl<'a> Locator<'a> {
    pub(crate) fn new(file: &'a str, text: &'a str) -> Locator<'a> {
        Locator { file, text, table: DeTable::parse(text).ok().map(toml::Spanned::into_inner) }
    }

    /// A problem of the value at a path such as `nodes[2].weight`; if it is absent, at the nearest table around it.
    pub(crate) fn problem(&self, at: &str, problem: String, remedy: String) -> PlanProblem {
        let mut place = self.file.to_owned();
        let found = self.find(at);
        if let Some(start) = found.as_ref().map(|found| found.start) {
            let (line, column) = line_column(self.text, start);
            let _ = write!(place, ":{line}:{column}");
        }
        let _ = write!(place, ": {at}");
        let value =
            found.filter(|found| found.is_exact).and_then(|found| self.text.get(found.start..found.end));
        if let Some(value) = value.filter(|value| !value.contains(['\n', '[', '{'])) {
            let _ = write!(place, " = {value}");
        }
        PlanProblem { place, problem, remedy }
    }

    fn find(&self, at: &str) -> Option<Found> {
        let mut steps = at.split(['.', '[']).map(|step| step.trim_end_matches(']'));
        let first = steps.next()?;
        let mut value = self.table.as_ref()?.get(first)?;
        loop {
            let span = value.span();
            let Some(step) = steps.next() else {
                return Some(Found { start: span.start, end: span.end, is_exact: true });
            };
            let inner = match value.get_ref() {
                DeValue::Table(table) => table.get(step),
                DeValue::Array(array) => step.parse::<usize>().ok().and_then(|index| array.get(index)),
                _ => None,
            };
            match inner {
                Some(inner) => value = inner,
                None => return Some(Found { start: span.start, end: span.end, is_exact: false }),
            }
        }
    }
}

struct Found {
    start: usize,
    end: usize,
    is_exact: bool,
}

/// Line and column, from 1, of a byte; columns count characters.
fn line_column(text: &str, byte: usize) -> (usize, usize) {
    let before = text.get(..byte).unwrap_or(text);
    let line_start = before.rfind('\n').map_or(0, |at| at + 1);
    let column = before.get(line_start..).map_or(0, |line| line.chars().count()) + 1;
    (before.matches('\n').count() + 1, column)
}
