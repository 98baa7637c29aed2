//! Progress of the transfers, in a line.

use super::scoreboard::{Board, Kind, State};
use std::time::Duration;

/// One line about all transfers; nothing before they begin.
pub(super) fn line(board: &Board) -> Option<String> {
    let mut parts = Vec::new();
    for (kind, word) in [
        (Kind::Download, "down"),
        (Kind::Upload, "up"),
        (Kind::WebSocket, "WebSocket"),
        (Kind::Requests, "requests"),
        (Kind::Visits, "visits"),
    ] {
        let all: Vec<String> = board
            .transfers
            .iter()
            .filter(|transfer| transfer.kind == kind)
            .map(|transfer| short(kind, &transfer.state()))
            .collect();
        let unit = if matches!(kind, Kind::Download | Kind::Upload) { " MiB" } else { "" };
        parts.push(format!("{word} {}{unit}", all.join(" ")));
    }
    let begun = board.transfers.iter().any(|transfer| transfer.state().bytes > 0);
    begun.then(|| parts.join(" · "))
}

fn short(kind: Kind, state: &State) -> String {
    if state.broken() > 0 {
        return "BROKEN".to_owned();
    }
    if state.corrupted > 0 {
        return "CORRUPTED".to_owned();
    }
    match kind {
        Kind::Download | Kind::Upload => format!("{:.1}", mib(state.bytes)),
        _ => state.count.to_string(),
    }
}

/// Amount that came through, in the unit of the kind.
pub(super) fn amount(kind: Kind, state: &State) -> String {
    let bytes = format!("{:.1} MiB", mib(state.bytes));
    match kind {
        Kind::Download | Kind::Upload => bytes,
        Kind::WebSocket => format!("{bytes} in {} messages", state.count),
        Kind::Requests => format!("{} × 200", state.count),
        Kind::Visits => {
            let slowest = ms(state.slowest);
            format!("{} × 200, slowest {slowest}, {} connected twice", state.count, state.repeated)
        }
    }
}

/// Outcome of a transfer, in words.
pub(super) fn outcome(state: &State) -> String {
    let mut words = Vec::new();
    if state.corrupted > 0 {
        words.push(format!("CORRUPTED: {} bytes are wrong", state.corrupted));
    }
    if let Some(why) = &state.failure {
        words.push(format!("{} FAILED, the last: {why}", state.failed));
    }
    match &state.ended {
        Some(Ok(())) if words.is_empty() => "whole".to_owned(),
        Some(Ok(())) => words.join("; "),
        Some(Err(why)) => format!("BROKEN: {why}"),
        None => "not over".to_owned(),
    }
}

pub(super) fn ms(span: Duration) -> String {
    format!("{:.0} ms", span.as_secs_f64() * 1000.0)
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}
