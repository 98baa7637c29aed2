//! Messages for the operator on standard error: lines that begin with their severity, mostly one line per message.
//!
//! While a node runs, a separate thread writes them in their order, so a blocked standard error stops neither the
//! control plane nor a worker. Bound: messages beyond [`BYTES_MAX`] are lost and counted, and a line reports the number
//! as soon as there is space. The end of the process waits only a moment for the queued messages. Other commands write
//! directly.

use evergate_base::terminal;
use evergate_sys::BlockingWriter;
use std::backtrace::{Backtrace, BacktraceStatus};
use std::collections::VecDeque;
use std::fmt::Display;
use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Bytes of messages that may wait for the writer.
const BYTES_MAX: usize = 1 << 20;
/// Longest wait of the process's end for queued messages.
const PATIENCE: Duration = Duration::from_secs(1);

static QUEUE: Queue = Queue::new();

/// Something happened that an operator may want to know.
pub fn info(text: impl Display) {
    line("info", &text);
}

/// Something is probably wrong; service continues.
pub fn warning(text: impl Display) {
    line("warning", &text);
}

/// Something was asked for and could not be done.
pub fn error(text: impl Display) {
    line("error", &text);
}

fn line(weight: &str, text: &dyn Display) {
    print(lines(weight, &text.to_string()));
}

/// A message as lines of the log. Each line has the weight and the component of the first one: a search for them finds
/// the whole message, and no text can forge a line of another weight.
fn lines(weight: &str, text: &str) -> String {
    let mut lines = text.split(['\n', '\r']).map(str::trim_end).filter(|line| !line.is_empty());
    let first = lines.next().unwrap_or_default();
    let component = component(first).map_or(String::new(), |component| format!("{component}: "));
    let mut all = format!("{weight}: {}", terminal::shown(first));
    for line in lines {
        all += &format!("\n{weight}: {component}  {}", terminal::shown(line));
    }
    all
}

/// The component that a message begins with: a few plain words before a colon.
fn component(line: &str) -> Option<&str> {
    let (component, _) = line.split_once(": ")?;
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, ' ' | '-' | '_');
    ((1..=32).contains(&component.len()) && component.chars().all(is_plain)).then_some(component)
}

/// Text as it is, on lines of its own.
pub(crate) fn print(text: String) {
    if let Some(text) = QUEUE.push(text) {
        // There is no way to report this error.
        let _ = writeln!(std::io::stderr().lock(), "{text}");
    }
}

/// While it lives, no thread waits for standard error.
#[derive(Debug)]
pub(crate) struct Queued(());

impl Queued {
    /// Starts the writer.
    pub(crate) fn start() -> std::io::Result<Queued> {
        let mut file = BlockingWriter(File::from(std::io::stderr().as_fd().try_clone_to_owned()?));
        std::thread::Builder::new().name("messages".to_owned()).spawn(move || QUEUE.write_to(&mut file))?;
        QUEUE.open();
        print_panics();
        Ok(Queued(()))
    }
}

impl Drop for Queued {
    fn drop(&mut self) {
        QUEUE.close(PATIENCE);
    }
}

/// A panic is a message too: the library would write it from the thread that panics, a worker perhaps.
fn print_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let thread = std::thread::current();
        error(format_args!("thread {} {panic}", thread.name().unwrap_or("without a name")));
        let trace = Backtrace::capture();
        if trace.status() == BacktraceStatus::Captured {
            print(trace.to_string());
        }
    }));
}

/// Messages on their way to one writer.
#[derive(Debug)]
struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    phase: Phase,
    waiting: VecDeque<String>,
    bytes: usize,
    /// Messages that had no room since the last one that had.
    lost: u64,
    is_writing: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The calling thread writes the message.
    Direct,
    /// The writer writes it.
    Queued,
    /// The writer has not ended in time, so further messages would not come out either.
    Stuck,
}

impl State {
    fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.lost == 0
    }

    fn push(&mut self, text: String) {
        if self.bytes.saturating_add(text.len()) > BYTES_MAX {
            self.lost += 1;
            return;
        }
        if let Some(notice) = self.take_lost() {
            self.keep(notice);
        }
        self.keep(text);
    }

    fn keep(&mut self, text: String) {
        self.bytes += text.len();
        self.waiting.push_back(text);
    }

    fn take_lost(&mut self) -> Option<String> {
        let lost = std::mem::take(&mut self.lost);
        (lost > 0).then(|| {
            format!("warning: {lost} messages are lost: standard error was not read; let a program read it all the \
                time")
        })
    }

    fn next(&mut self) -> Option<String> {
        match self.waiting.pop_front() {
            Some(text) => {
                self.bytes -= text.len();
                Some(text)
            }
            None => self.take_lost(),
        }
    }
}

impl Queue {
    const fn new() -> Queue {
        let state =
            State { phase: Phase::Direct, waiting: VecDeque::new(), bytes: 0, lost: 0, is_writing: false };
        Queue { state: Mutex::new(state), changed: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open(&self) {
        self.state().phase = Phase::Queued;
    }

    /// Takes a message, or gives it back to be written at once.
    fn push(&self, text: String) -> Option<String> {
        let mut state = self.state();
        match state.phase {
            Phase::Direct => return Some(text),
            Phase::Queued => state.push(text),
            Phase::Stuck => {}
        }
        self.changed.notify_all();
        None
    }

    /// Writes messages, without end.
    fn write_to(&self, output: &mut impl Write) {
        let mut state = self.state();
        loop {
            while state.is_empty() {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            let Some(mut text) = state.next() else { continue };
            state.is_writing = true;
            drop(state);
            text.push('\n');
            // There is no way to report this error.
            let _ = output.write_all(text.as_bytes());
            state = self.state();
            state.is_writing = false;
            self.changed.notify_all();
        }
    }

    /// Waits until everything is written, but not longer than this.
    fn close(&self, patience: Duration) {
        let is_busy = |state: &mut State| !state.is_empty() || state.is_writing;
        let waited = self.changed.wait_timeout_while(self.state(), patience, is_busy);
        let (mut state, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        state.phase = if timeout.timed_out() { Phase::Stuck } else { Phase::Direct };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};

    /// A queue whose writer writes to the pipe.
    fn queue() -> (&'static Queue, BufReader<std::io::PipeReader>) {
        let (reader, mut writer) = std::io::pipe().unwrap();
        let queue: &'static Queue = Box::leak(Box::new(Queue::new()));
        queue.open();
        std::thread::spawn(move || queue.write_to(&mut writer));
        (queue, BufReader::new(reader))
    }

    #[test]
    fn message_of_several_lines_repeats_weight_and_component() {
        let shown = |text| lines("warning", text);
        assert_eq!(shown("one line"), "warning: one line");
        assert_eq!(
            shown("access log: cannot write:\r\n  disk full\n\nmake room\n"),
            "warning: access log: cannot write:\nwarning: access log:     disk full\nwarning: access log:   make room"
        );
        assert_eq!(
            shown("/etc/e.toml:3: bad\nerror: forged"),
            "warning: /etc/e.toml:3: bad\nwarning:   error: forged"
        );
        assert_eq!(shown("a\x1b[1m\nb"), "warning: a\\u{1b}[1m\nwarning:   b");
        assert_eq!(shown(""), "warning: ");
    }

    #[test]
    fn messages_come_out_in_their_order_and_the_end_waits_for_them() {
        let (queue, mut reader) = queue();
        for number in 0..100 {
            assert_eq!(queue.push(number.to_string()), None);
        }
        queue.close(Duration::from_secs(60));
        for number in 0..100 {
            let mut line = String::new();
            reader.read_line(&mut line).unwrap();
            assert_eq!(line, format!("{number}\n"));
        }
        assert_eq!(
            queue.push("after".to_owned()).as_deref(),
            Some("after"),
            "no other thread would write it"
        );
    }

    #[test]
    fn full_queue_blocks_no_thread_and_losses_are_reported_later() {
        let (queue, mut reader) = queue();
        let (count, text) = (40, "x".repeat(BYTES_MAX / 10));
        assert_eq!(queue.push(text.clone()), None);
        // The pipe does not take it whole. Before the writer has it, it would take the room of another: two notices.
        while !queue.state().is_writing {
            std::thread::yield_now();
        }
        for _ in 1..count {
            assert_eq!(queue.push(text.clone()), None);
        }
        let lost = queue.state().lost;
        assert_eq!(lost, count - 11, "one is being written, ten wait");
        let mut line = String::new();
        for _ in lost..count {
            line.clear();
            reader.read_line(&mut line).unwrap();
            assert_eq!(line.len(), text.len() + 1);
        }
        line.clear();
        reader.read_line(&mut line).unwrap();
        assert!(line.starts_with(&format!("warning: {lost} messages are lost")), "{line}");
    }

    #[test]
    fn end_does_not_wait_for_a_reader_that_never_comes() {
        let (queue, _reader) = queue();
        queue.push("x".repeat(BYTES_MAX));
        queue.close(Duration::from_millis(1));
        assert_eq!(queue.push("after".to_owned()), None, "it would block");
    }
}
