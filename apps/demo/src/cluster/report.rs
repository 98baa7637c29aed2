//! Result of the show: a table for people, JSON for programs.

use super::progress;
use super::scenario::Kill;
use super::scoreboard::{Board, Kind};
use evergate_base::Table;
use serde::Serialize;
use std::time::Duration;

/// The figures.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    nodes: usize,
    killed: usize,
    /// Downloads, uploads, WebSockets, the connection with requests, and all visits as one.
    transfers: usize,
    /// Verified and right.
    bytes: u64,
    /// Transfers and visits that ended before all bytes were there.
    broken: u64,
    /// Bytes that were not what they should be.
    corrupted: u64,
    /// The longest silence of every open connection at every kill.
    stall_ms: Stalls,
    /// Every node but one died while something was under way on it.
    #[serde(skip)]
    complete: bool,
}

#[derive(Debug, Serialize)]
struct Stalls {
    p50: f64,
    p99: f64,
    max: f64,
}

impl Report {
    pub(super) fn new(nodes: usize, board: &Board, kills: &[Kill]) -> Report {
        let states: Vec<_> = board.transfers.iter().map(|transfer| transfer.state()).collect();
        let mut stalls: Vec<Duration> =
            kills.iter().flat_map(|kill| kill.silences.iter().flatten().copied()).collect();
        stalls.sort_unstable();
        Report {
            nodes,
            killed: kills.len(),
            transfers: states.len(),
            bytes: states.iter().map(|state| state.bytes).sum(),
            broken: states.iter().map(|state| state.broken() + u64::from(state.ended.is_none())).sum(),
            corrupted: states.iter().map(|state| state.corrupted).sum(),
            stall_ms: Stalls {
                p50: quantile(&stalls, 50),
                p99: quantile(&stalls, 99),
                max: quantile(&stalls, 100),
            },
            complete: kills.len() + 1 == nodes && kills.iter().all(Kill::counts),
        }
    }

    /// Whether the cluster kept its word, and was really put to the test.
    pub(super) fn good(&self) -> bool {
        self.complete && self.broken == 0 && self.corrupted == 0
    }

    /// One line.
    pub(super) fn json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// The final verdict for people.
    pub(super) fn verdict(&self) -> String {
        let stalls = &self.stall_ms;
        let head = match (self.good(), self.complete) {
            (true, _) => "All of it came through",
            (false, true) => "NOT all of it came through",
            (false, false) => "This proves nothing: a node died while nothing was under way on it",
        };
        format!(
            "{head}: {} of {} nodes killed, {} transfers, {:.1} MiB compared, {} broken, {} wrong bytes; \
             stalls p50 {:.0} ms, p99 {:.0} ms, longest {:.0} ms.",
            self.killed,
            self.nodes,
            self.transfers,
            self.bytes as f64 / f64::from(1 << 20),
            self.broken,
            self.corrupted,
            stalls.p50,
            stalls.p99,
            stalls.max
        )
    }
}

/// One row for each transfer.
pub(super) fn table(board: &Board, kills: &[Kill]) -> String {
    let stalls: Vec<String> = kills.iter().map(|kill| format!("{} DIED", kill.node.to_uppercase())).collect();
    let mut heads = vec!["TRANSFER", "CAME THROUGH"];
    heads.extend(stalls.iter().map(String::as_str));
    heads.push("ENDED");
    let mut table = Table::new(&heads);
    for transfer in &board.transfers {
        let state = transfer.state();
        let mut row = vec![transfer.name.clone(), progress::amount(transfer.kind, &state)];
        for kill in kills {
            let silence = kill.silences.get(transfer.number).copied().flatten();
            row.push(silence.map_or("-".to_owned(), |silence| format!("silent {}", progress::ms(silence))));
        }
        row.push(progress::outcome(&state));
        table.row(row);
    }
    let note = if board.transfers.iter().any(|transfer| transfer.kind == Kind::Visits) {
        "Visits are new connections all the time. A connection that is being opened when its node dies waits up to a \
         second, or is opened again.\n"
    } else {
        ""
    };
    format!("{}{note}", table.show(""))
}

/// The smallest value that so many percent do not exceed, in milliseconds with one digit.
fn quantile(sorted: &[Duration], percent: usize) -> f64 {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    let value = sorted.get(rank - 1).copied().unwrap_or_default();
    (value.as_secs_f64() * 10_000.0).round() / 10.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_values_that_occurred() {
        let values: Vec<Duration> = (1..=200).map(Duration::from_millis).collect();
        assert_eq!([50, 99, 100].map(|percent| quantile(&values, percent)), [100.0, 198.0, 200.0]);
        assert_eq!(quantile(&[], 50), 0.0);
        assert_eq!(quantile(&values[..1], 99), 1.0);
    }

    #[test]
    fn a_show_without_a_kill_that_hit_anything_is_not_good() {
        let board = Board::new(&[(Kind::Download, 1)], 1, 1);
        board.transfers[0].ended(Ok(()));
        let kill = |continued| Kill { node: "n".to_owned(), continued, under_way: 1, silences: Vec::new() };
        assert!(Report::new(2, &board, &[kill(1)]).good());
        assert!(!Report::new(2, &board, &[kill(0)]).good());
        assert!(!Report::new(3, &board, &[kill(1)]).good());
        board.transfers[0].ended(Err("no".to_owned()));
        assert!(!Report::new(2, &board, &[kill(1)]).good());
    }
}
