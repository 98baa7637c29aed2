//! Progress of long work on standard error: bytes done of a total, four times a second, on terminals only.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

const PERIOD: Duration = Duration::from_millis(250);

/// Line of progress. Dropping it clears the line.
#[derive(Debug)]
pub(crate) struct Progress {
    label: &'static str,
    total: u64,
    done: u64,
    begin: Instant,
    shown: Option<Instant>,
    is_terminal: bool,
}

impl Progress {
    /// Progress of `total` bytes of work.
    pub(crate) fn new(label: &'static str, total: u64) -> Progress {
        let is_terminal = std::io::stderr().is_terminal();
        Progress { label, total, done: 0, begin: Instant::now(), shown: None, is_terminal }
    }

    /// Adds bytes of finished work.
    pub(crate) fn add(&mut self, bytes: u64) {
        self.done += bytes;
        if self.is_terminal && self.shown.is_none_or(|shown| shown.elapsed() >= PERIOD) {
            self.show();
        }
    }

    fn show(&mut self) {
        self.shown = Some(Instant::now());
        let share = (self.done * 100).checked_div(self.total).unwrap_or(100).min(100);
        let speed = self.done as f64 / self.begin.elapsed().as_secs_f64().max(0.001) / 1e6;
        let bar = "#".repeat(share as usize / 4);
        eprint!("\r{} [{bar:<25}] {share:3} %  {speed:.0} MB/s ", self.label);
        let _ = std::io::stderr().flush();
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.shown.is_some() {
            eprint!("\r\x1b[K");
        }
    }
}
