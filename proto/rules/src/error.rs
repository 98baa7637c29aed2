//! Errors and warnings of the compiler: place, cause, reason and remedy.

use std::fmt;

use serde::Serialize;

/// A rule that cannot be compiled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, thiserror::Error)]
pub struct RuleError {
    /// Name of the rule (or `#3` for the third rule if it has none of its own).
    pub rule: String,
    /// The faulty key of the rule, for example `when` or `redirect`.
    pub key: &'static str,
    /// Line within the condition, from 1; 0 if the error is not in the condition.
    pub line: u32,
    /// Column within the line, in characters from 1; 0 if the error is not in the condition.
    pub column: u32,
    /// The fault, with the offending text.
    pub what: String,
    /// The reason; may be empty.
    pub why: String,
    /// The remedy; may be empty.
    pub remedy: String,
}

impl fmt::Display for RuleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rule \"{}\", {}", self.rule, self.key)?;
        if self.line > 0 {
            write!(f, " {}:{}", self.line, self.column)?;
        }
        write!(f, ": {}", self.what)?;
        if !self.why.is_empty() {
            write!(f, "; {}", self.why)?;
        }
        if !self.remedy.is_empty() {
            write!(f, "; {}", self.remedy)?;
        }
        Ok(())
    }
}

/// Warning about a rule that compiles but is probably unintended, or costs time on each request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RuleWarning {
    /// Name of the rule; empty if the warning concerns the set.
    pub rule: String,
    /// Observation, consequence and remedy.
    pub message: String,
}

impl fmt::Display for RuleWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.rule.is_empty() {
            write!(f, "rules: {}", self.message)
        } else {
            write!(f, "rule \"{}\": {}", self.rule, self.message)
        }
    }
}

/// An error at a byte offset of a condition, before the rule's name is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ConditionError {
    pub(crate) offset: usize,
    pub(crate) what: String,
    pub(crate) why: String,
    pub(crate) remedy: String,
}

impl ConditionError {
    pub(crate) fn new(offset: usize, what: impl Into<String>) -> ConditionError {
        ConditionError { offset, what: what.into(), why: String::new(), remedy: String::new() }
    }

    pub(crate) fn why(mut self, why: impl Into<String>) -> ConditionError {
        self.why = why.into();
        self
    }

    pub(crate) fn remedy(mut self, remedy: impl Into<String>) -> ConditionError {
        self.remedy = remedy.into();
        self
    }

    /// Adds the rule's name and turns the offset into line and column of `source`.
    pub(crate) fn in_rule(self, rule: &str, source: &str) -> RuleError {
        let mut end = self.offset.min(source.len());
        while !source.is_char_boundary(end) {
            end -= 1;
        }
        let before = &source[..end];
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        RuleError {
            rule: rule.to_owned(),
            key: "when",
            line: before.matches('\n').count() as u32 + 1,
            column: before[line_start..].chars().count() as u32 + 1,
            what: self.what,
            why: self.why,
            remedy: self.remedy,
        }
    }
}
