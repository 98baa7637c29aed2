//! Progress of a long command.

use std::io::{IsTerminal, Write};
use std::sync::Mutex;

/// A progress bar on standard error, when that is a terminal.
pub(super) struct Bar {
    terminal: Option<Mutex<usize>>,
}

const BAR_CELLS: usize = 30;

impl Bar {
    pub(super) fn new() -> Bar {
        Bar { terminal: std::io::stderr().is_terminal().then(|| Mutex::new(0)) }
    }

    pub(super) fn show(&self, done: usize, of: usize, label: &str) {
        let Some(terminal) = &self.terminal else { return };
        let mut most = terminal.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        // Threads may come out of order.
        if done < *most {
            return;
        }
        *most = done;
        let filled = BAR_CELLS * done / of.max(1);
        let bar: String = (0..BAR_CELLS).map(|cell| if cell < filled { '█' } else { '░' }).collect();
        let mut err = std::io::stderr().lock();
        let _ = write!(err, "\r{bar} {done}/{of} {label}\x1b[K").and_then(|()| err.flush());
    }

    pub(super) fn clear(&self) {
        if self.terminal.is_some() {
            let _ = write!(std::io::stderr().lock(), "\r\x1b[K");
        }
    }
}
