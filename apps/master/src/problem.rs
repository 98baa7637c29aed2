//! Reason why the Master cannot run: one message with its consequence and its remedy.

use std::fmt;

/// Problem for people: exit code 2.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Component, or place in the configuration.
    pub place: String,
    /// What is wrong, and its cause.
    pub what: String,
    /// What to do.
    pub remedy: String,
}

impl Problem {
    /// Problem from its three parts.
    pub fn new(place: impl Into<String>, what: impl Into<String>, remedy: impl Into<String>) -> Problem {
        Problem { place: place.into(), what: what.into(), remedy: remedy.into() }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}; {}", self.place, self.what, self.remedy)
    }
}

impl std::error::Error for Problem {}

/// Problem of a file or folder.
pub fn file_problem(path: &std::path::Path, error: &std::io::Error, remedy: &str) -> Problem {
    Problem::new(path.display().to_string(), error.to_string(), remedy)
}
