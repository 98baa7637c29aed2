//! The signals that a node handles, and their meanings. A signal that other servers know and this one does not must not
//! end it.

use signal_hook::consts::{SIGALRM, SIGHUP, SIGUSR1, SIGUSR2};
use signal_hook::flag;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::signal::unix::{self, SignalKind, signal};

/// Meaning of a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Signal {
    /// Reload the configuration.
    Reload,
    /// Reopen the access log.
    ReopenLog,
    /// To drain, and the second time to end; with the signal's name.
    Stop(&'static str),
    /// Nothing; with its name.
    Nothing(&'static str),
}

/// Signals that arrive before the main loop runs: names that do not resolve yet may delay a start for long.
#[derive(Debug)]
pub struct EarlySignals {
    hangup: Arc<AtomicBool>,
}

impl EarlySignals {
    /// From now on only signals that ask for the end can end the process.
    pub fn new() -> io::Result<EarlySignals> {
        for signal in [SIGUSR1, SIGUSR2, SIGALRM] {
            flag::register(signal, Arc::new(AtomicBool::new(false)))?;
        }
        let hangup = Arc::new(AtomicBool::new(false));
        flag::register(SIGHUP, hangup.clone())?;
        Ok(EarlySignals { hangup })
    }

    /// Whether a reload was requested: the configuration that was read may be older than the request.
    pub(super) fn reload(&self) -> bool {
        self.hangup.load(Ordering::Relaxed)
    }
}

/// Waits for all of them.
#[derive(Debug)]
pub(super) struct Signals {
    hangup: unix::Signal,
    terminate: unix::Signal,
    interrupt: unix::Signal,
    quit: unix::Signal,
    user_1: unix::Signal,
    user_2: unix::Signal,
    alarm: unix::Signal,
}

impl Signals {
    /// From now on none of them ends the process by itself.
    pub(super) fn new() -> io::Result<Signals> {
        // A write beyond the limit of a file's size fails with an error instead.
        flag::register(libc::SIGXFSZ, Arc::new(AtomicBool::new(false)))?;
        Ok(Signals {
            hangup: signal(SignalKind::hangup())?,
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            quit: signal(SignalKind::quit())?,
            user_1: signal(SignalKind::user_defined1())?,
            user_2: signal(SignalKind::user_defined2())?,
            alarm: signal(SignalKind::alarm())?,
        })
    }

    /// Waits for the next one. None is lost when this is given up.
    pub(super) async fn next(&mut self) -> Signal {
        tokio::select! {
            _ = self.hangup.recv() => Signal::Reload,
            _ = self.terminate.recv() => Signal::Stop("SIGTERM"),
            _ = self.interrupt.recv() => Signal::Stop("SIGINT"),
            _ = self.quit.recv() => Signal::Stop("SIGQUIT"),
            _ = self.user_1.recv() => Signal::ReopenLog,
            _ = self.user_2.recv() => Signal::Nothing("SIGUSR2"),
            _ = self.alarm.recv() => Signal::Nothing("SIGALRM"),
        }
    }

    /// Waits for one that asks for the end.
    pub(super) async fn stop(&mut self) {
        while !matches!(self.next().await, Signal::Stop(_)) {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn early_reload_signal_is_handled_later() {
        let early = EarlySignals::new().unwrap();
        signal_hook::low_level::raise(SIGUSR1).unwrap();
        assert!(!early.reload());
        signal_hook::low_level::raise(SIGHUP).unwrap();
        assert!(early.reload());
    }
}
