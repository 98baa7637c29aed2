//! What the operator is told on standard error: one line each, beginning with its weight.

use std::fmt::Display;
use std::io::Write;

/// Something happened that an operator may want to know.
pub fn info(text: impl Display) {
    line("info", &text);
}

/// Something is probably not as meant; service goes on.
pub fn warning(text: impl Display) {
    line("warning", &text);
}

/// Something was asked for and could not be done.
pub fn error(text: impl Display) {
    line("error", &text);
}

fn line(weight: &str, text: &dyn Display) {
    let text = format!("{weight}: {text}").replace(['\n', '\r'], " ");
    // Nobody can be told that nobody can be told.
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}
