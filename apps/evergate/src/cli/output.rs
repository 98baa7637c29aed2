//! Printing: data to standard output, problems to standard error. A reader that closes the pipe early is no failure.

use super::FAILED;
use crate::control::status::Done;
use serde::Serialize;
use std::fmt::Display;
use std::io::{ErrorKind, Write};

/// Prints text as it is; returns the exit code. Lost output is a failure: a key, for instance, that is not in the file.
#[must_use]
pub(crate) fn text(text: &str) -> u8 {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            print_error(format_args!(
                "error: cannot write to standard output: {error}; the output is not complete"
            ));
            FAILED
        }
        _ => 0,
    }
}

/// Prints a value as JSON, for people and programs; the exit code.
#[must_use]
pub(crate) fn json(value: &impl Serialize) -> u8 {
    match serde_json::to_string_pretty(value) {
        Ok(mut line) => {
            line.push('\n');
            text(&line)
        }
        Err(error) => {
            print_error(format_args!("error: cannot print JSON: {error}"));
            FAILED
        }
    }
}

/// Prints that something is done; the exit code.
#[must_use]
pub(crate) fn done(as_json: bool, done: &Done) -> u8 {
    if as_json { json(done) } else { text(&format!("{}\n", done.done)) }
}

/// Prints to standard error.
pub(crate) fn print_error(text: impl Display) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}

/// Prints the error; returns the exit code.
pub(crate) fn failed(error: &anyhow::Error) -> u8 {
    print_error(format_args!("error: {error:#}"));
    FAILED
}
