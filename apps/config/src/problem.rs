//! Problems of a configuration, written so that the reader can repair it without the manual.
//!
//! A problem always has four parts: the place, the value found there, the consequence if nothing is
//! done, and the remedy. [`Report`] collects all of them in one pass; nothing here stops at the first.

use std::collections::BTreeSet;
use std::fmt;

use evergate_base::terminal;
use serde::Serialize;

use crate::span::{KeyPath, Source};

/// Whether the configuration can still be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The configuration is refused; a running node keeps its previous one.
    Error,
    /// The configuration is used, but part of it probably has an unintended effect.
    Warning,
}

/// One finding in a configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// Whether this refuses the configuration.
    pub severity: Severity,
    /// The file as it was named by the caller.
    pub file: String,
    /// Line, from 1; 0 when the problem has no place in the text (an unreadable file, a command line).
    pub line: usize,
    /// Column in characters, from 1; 0 like `line`.
    pub column: usize,
    /// The key path, such as `listeners[1].address`; empty for problems of the whole text.
    pub key: String,
    /// The value as written in the file, shortened; absent when the key is absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// The fault.
    pub what: String,
    /// Its consequence.
    pub consequence: String,
    /// Its remedy.
    pub remedy: String,
    /// Whether it may pass with the file as it is: a host name that does not resolve now.
    #[serde(skip)]
    pub may_pass: bool,
    /// Whether it prevents a start on this machine, although the configuration is accepted.
    #[serde(skip)]
    pub hinders_start: bool,
    /// Number of findings that this entry stands for: more than 1 in the last entry of a list that was cut.
    #[serde(skip)]
    pub stands_for: usize,
}

/// The consequence shared by all problems that simply refuse the file.
pub(crate) const REFUSED: &str = "the configuration is refused; a running node keeps its previous one";

/// Longest excerpt of a value shown in a problem, in characters.
const VALUE_LEN_MAX: usize = 80;

/// Most problems of one file that are shown; one more entry counts the rest.
pub const PROBLEMS_MAX: usize = 50;

impl Problem {
    /// A problem of the whole file, without a place in its text.
    pub(crate) fn of_file(file: &str, what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            severity: Severity::Error,
            file: file.to_owned(),
            line: 0,
            column: 0,
            key: String::new(),
            value: None,
            what: what.into(),
            consequence: REFUSED.to_owned(),
            remedy: remedy.into(),
            may_pass: false,
            hinders_start: false,
            stands_for: 1,
        }
    }

    /// The entry that ends a list which was cut.
    pub(crate) fn of_more(file: &str, severity: Severity, count: usize) -> Self {
        let consequence = match severity {
            Severity::Error => REFUSED,
            Severity::Warning => "they are not shown",
        };
        let what = format!("and {} more problems", thousands(count));
        let more = Self::of_file(file, what, "correct the ones above, then check again");
        Self { severity, consequence: consequence.to_owned(), stands_for: count, ..more }
    }
}

/// A number with commas between its thousands.
pub fn thousands(number: usize) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// The first [`PROBLEMS_MAX`] of these problems in the order of the file, and one entry that counts the rest. Where
/// problems are left out, errors take precedence over warnings.
pub(crate) fn bounded(mut problems: Vec<Problem>, file: &str) -> Vec<Problem> {
    let place = |problem: &Problem| (problem.line, problem.column);
    problems.sort_by_key(place);
    if problems.len() <= PROBLEMS_MAX {
        return problems;
    }
    problems.sort_by_key(|problem| problem.severity);
    let rest = problems.split_off(PROBLEMS_MAX);
    problems.sort_by_key(place);
    let is_error = |problem: &&Problem| problem.severity == Severity::Error;
    let severity =
        if rest.iter().any(|problem| is_error(&problem)) { Severity::Error } else { Severity::Warning };
    let more = Problem::of_more(file, severity, rest.len());
    let may_pass = rest.iter().filter(is_error).all(|problem| problem.may_pass);
    let hinders_start = rest.iter().any(|problem| problem.hinders_start);
    problems.push(Problem { may_pass, hinders_start, ..more });
    problems
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let severity = match self.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
        };
        write!(f, "{severity}: {}", terminal::shown(&self.file))?;
        if self.line > 0 {
            write!(f, ":{}:{}", self.line, self.column)?;
        }
        if !self.key.is_empty() {
            write!(f, ": {}", terminal::shown(&self.key))?;
        }
        if let Some(value) = &self.value {
            write!(f, " = {value}")?;
        }
        write!(f, "\n  problem:     {}", terminal::shown(&self.what))?;
        write!(f, "\n  consequence: {}", terminal::shown(&self.consequence))?;
        write!(f, "\n  remedy:      {}", terminal::shown(&self.remedy))
    }
}

impl std::error::Error for Problem {}

/// Collects the problems of one configuration and knows where each key is written.
pub(crate) struct Report<'a> {
    source: &'a Source<'a>,
    problems: Vec<Problem>,
    /// Keys that already have a problem which also explains why their value is missing.
    excused: BTreeSet<String>,
    /// Keys that the file gives with their default value, as in a written-out configuration.
    at_default: BTreeSet<String>,
}

impl<'a> Report<'a> {
    pub(crate) fn new(source: &'a Source<'a>) -> Self {
        Self { source, problems: Vec::new(), excused: BTreeSet::new(), at_default: BTreeSet::new() }
    }

    /// Records an error that refuses the file.
    pub(crate) fn error(&mut self, at: &KeyPath, what: impl Into<String>, remedy: impl Into<String>) {
        self.error_because(at, what, REFUSED, remedy);
    }

    /// Records an error with a consequence of its own.
    pub(crate) fn error_because(
        &mut self,
        at: &KeyPath,
        what: impl Into<String>,
        consequence: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        self.add(Severity::Error, at, what.into(), consequence.into(), remedy.into());
    }

    /// Records an error that may pass with the file as it is.
    pub(crate) fn error_for_now(&mut self, at: &KeyPath, what: impl Into<String>, remedy: impl Into<String>) {
        self.error(at, what, remedy);
        if let Some(problem) = self.problems.last_mut() {
            problem.may_pass = true;
        }
    }

    /// Records a warning: the file is used all the same.
    pub(crate) fn warning(
        &mut self,
        at: &KeyPath,
        what: impl Into<String>,
        consequence: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        self.add(Severity::Warning, at, what.into(), consequence.into(), remedy.into());
    }

    /// Records a warning about an obstacle to a start on this machine; a running node can use the file.
    pub(crate) fn hindrance(&mut self, at: &KeyPath, what: impl Into<String>, remedy: impl Into<String>) {
        self.warning(at, what, "the node does not start here", remedy);
        if let Some(problem) = self.problems.last_mut() {
            problem.hinders_start = true;
        }
    }

    /// Records that a required key is absent, unless an earlier problem already explains its absence.
    pub(crate) fn missing(&mut self, at: &KeyPath, consequence: &str, remedy: &str) {
        if self.is_excused(at) {
            return;
        }
        let what = format!("the key `{}` is missing", at.last());
        self.error_because(at, what, consequence, remedy);
        self.excuse(at);
    }

    /// Marks a key whose value is gone because of a problem that was reported at another place.
    pub(crate) fn excuse(&mut self, at: &KeyPath) {
        self.excused.insert(at.as_str().to_owned());
    }

    /// Whether the value at `at`, or a table around it, was unusable and has been reported.
    pub(crate) fn is_excused(&self, at: &KeyPath) -> bool {
        let mut path = Some(at.clone());
        while let Some(p) = path {
            if self.excused.contains(p.as_str()) {
                return true;
            }
            path = p.parent();
        }
        false
    }

    /// Whether the value of a key of the table at `at` was unusable and has been reported.
    pub(crate) fn is_excused_below(&self, at: &KeyPath) -> bool {
        let is_below = |key: &str| key.strip_prefix(at.as_str()).is_some_and(|rest| rest.starts_with('.'));
        self.excused.iter().any(|key| is_below(key))
    }

    /// Notes that the file gives this key; `default` is the text of its default.
    pub(crate) fn note_given(&mut self, at: &KeyPath, default: &str) {
        if self.source.value(at) == Some(default) {
            self.at_default.insert(at.as_str().to_owned());
        }
    }

    /// Notes that the value given for this key means the same as its default, however it is written.
    pub(crate) fn note_default(&mut self, at: &KeyPath) {
        self.at_default.insert(at.as_str().to_owned());
    }

    /// Whether the file gives this key a value of its own, as opposed to its default.
    pub(crate) fn is_given(&self, at: &KeyPath) -> bool {
        self.source.contains(at) && !self.at_default.contains(at.as_str())
    }

    /// Records an error at a byte of the text that belongs to `at` (inside a string, for example).
    pub(crate) fn error_at_byte_because(
        &mut self,
        byte: usize,
        at: &KeyPath,
        what: impl Into<String>,
        consequence: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        self.error_because(at, what, consequence, remedy);
        self.move_last_to(byte);
    }

    fn move_last_to(&mut self, byte: usize) {
        let (line, column) = self.source.line_column(byte);
        if let Some(problem) = self.problems.last_mut() {
            (problem.line, problem.column) = (line, column);
        }
    }

    /// Whether an error was recorded for exactly this key or an element of it.
    pub(crate) fn has_error_at(&self, at: &KeyPath) -> bool {
        let is_error = |p: &&Problem| p.severity == Severity::Error;
        self.problems.iter().filter(is_error).any(|p| {
            p.key.strip_prefix(at.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('['))
        })
    }

    /// Whether the configuration is refused.
    pub(crate) fn has_errors(&self) -> bool {
        self.problems.iter().any(|p| p.severity == Severity::Error)
    }

    pub(crate) fn source(&self) -> &'a Source<'a> {
        self.source
    }

    /// The problems in the order of their places in the file, bounded: see [`bounded`].
    pub(crate) fn into_problems(self) -> Vec<Problem> {
        bounded(self.problems, self.source.file())
    }

    fn add(&mut self, severity: Severity, at: &KeyPath, what: String, consequence: String, remedy: String) {
        self.problems.push(Problem { severity, what, consequence, remedy, ..self.place(at) });
    }

    /// A problem at `at` without text; the caller fills it in.
    pub(crate) fn place(&self, at: &KeyPath) -> Problem {
        let (line, column) = self.source.place(at);
        let value = self.source.value(at).map(shorten);
        let nameless = Problem::of_file(self.source.file(), "", "");
        Problem { line, column, key: at.as_str().to_owned(), value, ..nameless }
    }
}

/// One line of at most [`VALUE_LEN_MAX`] characters, safe to print on a terminal.
pub(crate) fn shorten(text: &str) -> String {
    let mut shown = String::new();
    for (i, c) in text.chars().enumerate() {
        if i == VALUE_LEN_MAX {
            shown.push('…');
            break;
        }
        terminal::push_shown(&mut shown, c);
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounded_list_shows_errors_first_and_counts_the_rest() {
        let problem = |severity, line| Problem { severity, line, ..Problem::of_file("f", "x", "y") };
        let mut all: Vec<Problem> = (1..=1200).map(|line| problem(Severity::Warning, line)).collect();
        all.push(problem(Severity::Error, 1300));
        let shown = bounded(all, "f");
        assert_eq!(shown.len(), PROBLEMS_MAX + 1);
        assert!(shown[..PROBLEMS_MAX].is_sorted_by_key(|problem| problem.line));
        assert_eq!((shown[49].severity, shown[49].line), (Severity::Error, 1300));
        assert_eq!((shown[50].severity, shown[50].stands_for), (Severity::Warning, 1151));
        assert_eq!(shown[50].what, "and 1,151 more problems");
        let errors: Vec<Problem> = (0..60).map(|line| problem(Severity::Error, line)).collect();
        let shown = bounded(errors, "f");
        assert_eq!((shown[50].severity, shown[50].may_pass), (Severity::Error, false));
        assert_eq!(bounded((0..50).map(|line| problem(Severity::Error, line)).collect(), "f").len(), 50);
        let numbers = [0, 999, 1000, 199_950, 1_000_000].map(thousands);
        assert_eq!(numbers, ["0", "999", "1,000", "199,950", "1,000,000"]);
    }

    #[test]
    fn control_characters_of_a_file_never_reach_a_terminal() {
        let mut problem =
            Problem::of_file("e\x1b[2J.toml", "pool \"\x1b]0;x\x07\" is unknown", "write\u{9b}1m it");
        problem.key = "pools.\x1b[1m".to_owned();
        let text = problem.to_string();
        assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{text:?}");
        assert!(text.contains(r"pools.\u{1b}[1m") && text.contains("is unknown"), "{text}");
    }
}
