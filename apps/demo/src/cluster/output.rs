//! Output of the show: to standard output, or to standard error when standard output is for JSON.

use anyhow::{Result, bail};
use std::fmt::Write as _;
use std::io::{self, ErrorKind, Write};
use std::time::Instant;

/// Console of the show.
pub(super) struct Console {
    json: bool,
    began: Instant,
}

impl Console {
    /// Times count from now.
    pub(super) fn new(json: bool) -> Console {
        Console { json, began: Instant::now() }
    }

    /// Seconds since the beginning.
    pub(super) fn elapsed_s(&self) -> f64 {
        self.began.elapsed().as_secs_f64()
    }

    /// Prints text; a closed output is no failure.
    pub(super) fn print(&self, text: &str) {
        if self.json {
            let _ = writeln!(std::io::stderr().lock(), "{text}");
        } else {
            let _ = writeln!(std::io::stdout().lock(), "{text}");
        }
    }

    /// Prints text with the time.
    pub(super) fn event(&self, text: &str) {
        self.print(&format!("{:6.1} s  {text}", self.elapsed_s()));
    }
}

/// Prints a line of JSON to standard output. A closed pipe is no failure.
pub(super) fn json(line: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    match writeln!(out, "{line}").and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            bail!("cannot write to standard output: {error}; the output is not complete")
        }
        _ => Ok(()),
    }
}

/// The little network. `nodes`: their names.
pub(super) fn picture(nodes: &[String], address: &str) -> String {
    let column = |text: &str| format!("{text:^12}");
    let row = |part: &dyn Fn(&str) -> String| nodes.iter().map(|name| part(name)).collect::<String>();
    let wire = |mark: char| row(&|_| format!("─────{mark}──────"));
    let mut picture = String::new();
    let _ = writeln!(picture, "     client ── TLS 1.3 to https://{address} ──");
    let _ = writeln!(picture, "        │");
    let _ = writeln!(picture, "  ──────┴─────{}── outside", wire('┬'));
    let _ = writeln!(picture, "              {}   each: evergate run", row(&column));
    let _ = writeln!(picture, "  ──┬───────┬─{}── inside", wire('┴'));
    let _ = writeln!(picture, "    │       │");
    let _ = write!(picture, " server-1 server-2");
    picture
}
