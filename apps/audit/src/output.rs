//! Output for people and scripts.

use crate::cli::Failure;
use serde::Serialize;
use std::io::Write;

/// Prints a value as one line of JSON.
pub(crate) fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    serde_json::to_writer(&mut out, value)
        .map_err(std::io::Error::from)
        .and_then(|()| writeln!(out))
        .map_err(closed)
}

/// Failure of standard output.
pub(crate) fn closed(error: std::io::Error) -> Failure {
    Failure::failed(format!("output: cannot write: {error}"))
}

/// Bytes for people: `950 B`, `4.2 MB`, `1.5 GB`.
pub(crate) fn shown_bytes(bytes: u64) -> String {
    let units = ["kB", "MB", "GB", "TB", "PB", "EB"];
    if bytes < 1000 {
        return format!("{bytes} B");
    }
    let (mut value, mut unit) = (bytes as f64 / 1000.0, 0);
    while value >= 999.95 && unit + 1 < units.len() {
        value /= 1000.0;
        unit += 1;
    }
    format!("{value:.1} {}", units[unit])
}
