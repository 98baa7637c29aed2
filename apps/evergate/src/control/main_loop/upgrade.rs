//! `evergate upgrade`: a new process replaces this one, connections included.
//!
//! Until the new process is ready, which a separate thread waits for, nothing changes here. Reloads are refused,
//! because the offer must stay true. Then this process releases the new one, accepts no more connections, and passes
//! its own. It ends when none is left, or at the drain timeout.
//!
//! If the new process crashes before that, this one serves again. If it received a stop signal, this one ends too. If
//! it lives and only the link to it is broken, it serves alone, and the connections here end: two processes must never
//! accept at the same time.

use super::Main;
use crate::control::console::{error, info, warning};
use crate::control::published::{Message, UpgradeCaller};
use crate::control::status::{Refused, Upgraded};
use crate::upgrade::{Failure, Leash, Offered, Order, Progress, Successor};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

/// How long a process that has closed its end of a stream may take to end.
const ENDING: Duration = Duration::from_secs(2);

/// An upgrade under way.
pub(super) struct Upgrade {
    asker: Option<UpgradeCaller>,
    /// Our ends of the workers' streams, until they have them.
    streams: Vec<UnixStream>,
    /// The new process until it serves.
    leash: Leash,
    /// The new process serves.
    passing: Option<Passing>,
}

struct Passing {
    progress: Arc<Progress>,
    /// Dropping it ends no process once the new process is released.
    successor: Successor,
    /// Since when the way to it is broken.
    broken_since: Option<Instant>,
    /// It lives all the same.
    alone: bool,
}

impl Upgrade {
    /// Answers the callers with the result.
    fn answer_callers(&mut self) {
        let (Some(passing), Some(asker)) = (&self.passing, self.asker.take()) else { return };
        let progress = &passing.progress;
        let waiting = progress.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = asker.send(Ok(Upgraded {
            version: passing.successor.version().to_owned(),
            pid: passing.successor.pid(),
            passed: progress.passed.load(Ordering::Relaxed),
            waiting: waiting.iter().map(|(reason, count)| ((*reason).to_owned(), *count)).collect(),
        }));
    }

    /// This process ends: so does a new one that does not serve yet.
    pub(super) fn give_up(&self) {
        if self.passing.is_none() {
            self.leash.end();
        }
    }

    /// Logs that this process has ended with `open` connections.
    pub(super) fn log_end(&mut self, open: usize) {
        if open == 0 {
            return self.answer_callers();
        }
        let (Some(passing), Some(asker)) = (&self.passing, self.asker.take()) else { return };
        let (pid, passed) = (passing.successor.pid(), passing.progress.passed.load(Ordering::Relaxed));
        let error =
            format!("pid {pid} serves with {passed} connections of the old process, and {open} were ended");
        let remedy = "raise timeouts.drain_ms, unless a signal ended that process".to_owned();
        let _ = asker.send(Err(Refused { error, remedy }));
    }
}

impl Main {
    /// Starts the new process, unless another operation is running.
    pub(super) fn ask_upgrade(&mut self, binary: Option<PathBuf>, asker: UpgradeCaller) {
        let offered = self.may_upgrade().and_then(|()| self.prepare_offer(binary));
        let (order, streams) = match offered {
            Ok(offered) => offered,
            Err(refused) => {
                warning(format_args!("upgrade refused: {}", refused.error));
                return drop(asker.send(Err(refused)));
            }
        };
        let name = order.binary.as_ref().map_or("the same program".into(), |path| path.display().to_string());
        info(format_args!("upgrade: starting {name}"));
        self.upgrade =
            Some(Upgrade { asker: Some(asker), streams, leash: order.leash.clone(), passing: None });
        let messages = self.control.messages.clone();
        tokio::task::spawn_blocking(move || {
            let _ = messages.blocking_send(Message::Started(Box::new(Successor::start(order))));
        });
    }

    fn may_upgrade(&self) -> Result<(), Refused> {
        let refuse =
            |error: &str, remedy: &str| Err(Refused { error: error.to_owned(), remedy: remedy.to_owned() });
        may_be_left(std::process::id())?;
        if self.upgrade.is_some() {
            return refuse("an upgrade is under way already", "wait until it is done");
        }
        if self.is_draining() {
            return refuse("the node is draining", "start the new program when it has ended");
        }
        if self.reading.is_some() {
            return refuse("a reload is under way", "try again when it is done");
        }
        if self.daemon.is_inheriting() {
            return refuse(
                "the old process still passes connections to this one",
                "try again when it has ended",
            );
        }
        if self.daemon.agent().is_some() {
            return refuse(
                "a node of a cluster is not upgraded in place: the other nodes take its connections",
                "`evergate node drain`, wait until `evergate cluster status` shows drained, stop this process, \
                 start the new program, and wait until every bucket has a backup before the next node",
            );
        }
        Ok(())
    }

    fn prepare_offer(&self, binary: Option<PathBuf>) -> Result<(Order, Vec<UnixStream>), Refused> {
        let prepare = || {
            let (mut offer, mut descriptors, streams) = self.daemon.offer(&self.rotated)?;
            if let Some((socket, _)) = &self.admin {
                offer.sockets.push(Offered::Admin(socket.path.clone()));
                descriptors.push(socket.listener.try_clone()?.into());
            }
            if let (Some((address, _)), Some(listener)) = (&self.metrics, &self.metrics_socket) {
                offer.sockets.push(Offered::Metrics(*address));
                descriptors.push(listener.try_clone()?.into());
            }
            anyhow::Ok((Order { binary, offer, descriptors, leash: Leash::default() }, streams))
        };
        let remedy = "try again when fewer connections are open, or raise the limit of open files".to_owned();
        prepare().map_err(|error| Refused { error: format!("{error:#}"), remedy })
    }

    /// The new process is ready, or there is none.
    pub(super) fn handle_started(&mut self, started: Result<Successor, Failure>) {
        let Some(upgrade) = &mut self.upgrade else { return };
        let draining = self.drain_until.is_some();
        let released = started.and_then(|mut successor| {
            let failure = |error: String| Failure { error, remedy: "try again".to_owned() };
            if draining {
                return Err(failure("the node has begun to drain meanwhile".to_owned()));
            }
            // The service manager accepts messages of the main process only, so it gets the new pid before the new
            // process sends.
            self.notify.main_process(successor.pid());
            successor
                .go(self.daemon.operator_state())
                .map_err(|error| failure(format!("the new process is gone: {error}")))?;
            Ok(successor)
        });
        match released {
            Ok(successor) => self.pass_on(successor),
            Err(Failure { error: why, remedy }) => {
                self.notify.main_process(std::process::id());
                error(format_args!("upgrade failed, this process continues: {why}"));
                if let Some(asker) = upgrade.asker.take() {
                    let _ = asker.send(Err(Refused { error: why, remedy }));
                }
                self.upgrade = None;
            }
        }
    }

    /// From now on the new process serves.
    fn pass_on(&mut self, successor: Successor) {
        let Some(upgrade) = &mut self.upgrade else { return };
        info(format_args!(
            "upgrade: evergate {} (pid {}) serves; passing {} connections to it",
            successor.version(),
            successor.pid(),
            self.control.shared.connections.load(Ordering::Relaxed),
        ));
        let progress = Arc::new(Progress::default());
        self.daemon.transfer(std::mem::take(&mut upgrade.streams), &progress);
        upgrade.passing = Some(Passing { progress, successor, broken_since: None, alone: false });
        if let Some((socket, serving)) = &mut self.admin {
            serving.stop();
            socket.leave();
        }
        if let Some((_, serving)) = &self.metrics {
            serving.stop();
        }
        self.control.draining.store(true, Ordering::Relaxed);
        self.drain_until = Some(Instant::now() + self.daemon.config.timeouts.drain);
    }

    /// Answers the callers once every connection has been handled; serves again when the new process has ended.
    pub(super) fn poll_upgrade(&mut self) {
        if self.has_passed_all() {
            return self.log_upgraded();
        }
        let workers = self.daemon.workers.len();
        let Some(passing) = self.upgrade.as_mut().and_then(|upgrade| upgrade.passing.as_mut()) else {
            return;
        };
        if let Some(status) = passing.successor.ended() {
            return if status.success() { self.follow() } else { self.take_back(&status.to_string()) };
        }
        if passing.progress.broken.load(Ordering::Relaxed) && !passing.alone {
            let since = *passing.broken_since.get_or_insert_with(Instant::now);
            if since.elapsed() >= ENDING {
                self.leave_alone();
            }
        } else if passing.progress.swept.load(Ordering::Relaxed) >= workers {
            self.log_upgraded();
        }
    }

    /// Whether no worker has anything left.
    pub(super) fn has_passed_all(&self) -> bool {
        let passing = self.upgrade.as_ref().and_then(|upgrade| upgrade.passing.as_ref());
        passing
            .is_some_and(|passing| passing.progress.done.load(Ordering::Relaxed) >= self.daemon.workers.len())
    }

    /// Whether the new process serves, and this one passes connections to it.
    pub(super) fn is_passing(&self) -> bool {
        self.upgrade.as_ref().is_some_and(|upgrade| upgrade.passing.is_some())
    }

    fn log_upgraded(&mut self) {
        if let Some(upgrade) = &mut self.upgrade {
            upgrade.answer_callers();
        }
    }

    /// The new process serves, but the link to it is broken: the remaining connections end here.
    fn leave_alone(&mut self) {
        let open = self.open_connections();
        let Some(Upgrade { asker, passing: Some(passing), .. }) = &mut self.upgrade else { return };
        passing.alone = true;
        let what = format!(
            "the new process (pid {}) serves, and the way to it is broken: {open} connections end here, within \
             timeouts.drain_ms",
            passing.successor.pid(),
        );
        error(&what);
        if let Some(asker) = asker.take() {
            let remedy = "see the messages of both on standard error".to_owned();
            let _ = asker.send(Err(Refused { error: what, remedy }));
        }
        self.daemon.end_remaining();
    }

    /// The new process received a stop signal, and the whole service ends.
    fn follow(&mut self) {
        let Some(upgrade) = &mut self.upgrade else { return };
        let open = self.control.shared.connections.load(Ordering::Relaxed);
        let what = format!("the new process was stopped: ending {open} open connections here now");
        info(&what);
        if let Some(asker) = upgrade.asker.take() {
            let remedy = "start the node again".to_owned();
            let _ = asker.send(Err(Refused { error: what, remedy }));
        }
        self.stop_now = true;
    }

    fn take_back(&mut self, status: &str) {
        let Some(Upgrade { asker, passing: Some(passing), .. }) = self.upgrade.take() else { return };
        let passed = passing.progress.passed.load(Ordering::Relaxed);
        let what = format!(
            "the new process ended while it got connections ({status}): {passed} are lost, this one serves again"
        );
        error(&what);
        (self.drain_until, self.stop_reported) = (None, false);
        self.control.draining.store(false, Ordering::Relaxed);
        self.notify.main_process(std::process::id());
        self.return_pid_file();
        if let Err(problem) = self.daemon.take_back() {
            error(format_args!("cannot listen again: {problem:#}"));
        }
        self.return_doors();
        if let Some(asker) = asker {
            let remedy = "see its messages on standard error".to_owned();
            let _ = asker.send(Err(Refused { error: what, remedy }));
        }
    }

    /// Operators come in here again.
    fn return_doors(&mut self) {
        if let Some((socket, _)) = self.admin.take() {
            self.serve_admin(socket.into_owned());
        }
        self.metrics = None;
        if let Some(listener) = self.metrics_socket.take() {
            self.serve_metrics(listener);
        }
    }

    /// Last message of a process that has passed its connections.
    pub(super) fn passed_to(&self) -> Option<String> {
        let passing = self.upgrade.as_ref()?.passing.as_ref()?;
        let passed = passing.progress.passed.load(Ordering::Relaxed);
        Some(format!("{passed} connections passed to pid {}", passing.successor.pid()))
    }
}

/// Whether a process of this number may end without everything around it.
fn may_be_left(pid: u32) -> Result<(), Refused> {
    if pid != 1 {
        return Ok(());
    }
    Err(Refused {
        error: "this is process 1 of its container: when it ended, the kernel would end the new one too"
            .to_owned(),
        remedy: "drain this node and start a container with the new program".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_1_is_not_upgraded() {
        assert!(may_be_left(1).is_err() && may_be_left(4711).is_ok());
    }
}
