//! Reload: a separate thread reads the configuration, which then takes effect as a whole or not at all.
//!
//! Requests during a read share the next read, because the file may have been written after this read began. Requests
//! during an upgrade wait for its end, for a bounded time: the connections that the old process passes refer to rules
//! and listeners of the configuration that both processes have.

use super::{Asker, Main, bind_metrics, no_admin};
use crate::control::config_source::Read;
use crate::control::console::{error, info, warning};
use crate::control::file_watch::{Fingerprint, files, secrets};
use crate::control::published::Message;
use crate::control::socket::AdminSocket;
use crate::control::status::{Finding, Reloaded};
use evergate_config::{Concern, Config, Machine, Validity, World};
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Longest wait of a reload for the end of an upgrade. The caller's timeout (`cli::remote`, `control::server`) is
/// longer.
const UPGRADE_WAIT: Duration = Duration::from_secs(60);

/// Reloads that wait for the end of an upgrade.
pub(super) struct DeferredReload {
    askers: Vec<Asker>,
    /// The end of their patience.
    until: Instant,
}

impl Main {
    /// Reads the configuration again, and applies it when it has been read.
    pub(super) fn ask_reload(&mut self, asker: Option<tokio::sync::oneshot::Sender<Reloaded>>) {
        if self.is_upgrading() {
            self.defer_reload(asker);
        } else if self.reading.is_some() {
            self.waiting.push(asker);
        } else {
            self.read(vec![asker]);
        }
    }

    /// Whether an upgrade from or to this process is under way.
    fn is_upgrading(&self) -> bool {
        self.upgrade.is_some() || self.daemon.is_inheriting()
    }

    fn defer_reload(&mut self, asker: Asker) {
        let deferred = self.deferred.get_or_insert_with(|| {
            let seconds = UPGRADE_WAIT.as_secs();
            info(format_args!("reload: waiting for the end of the upgrade, at most {seconds} s"));
            DeferredReload { askers: Vec::new(), until: Instant::now() + UPGRADE_WAIT }
        });
        deferred.askers.push(asker);
        self.poll_deferred_reload();
    }

    /// Starts the reload that waits for an upgrade, when the upgrade has ended. If it lasts too long, the reload is
    /// refused with the reason. A process with a successor reloads nothing; its callers ask the successor.
    pub(super) fn poll_deferred_reload(&mut self) {
        let Some(deferred) = &self.deferred else { return };
        let has_successor = self.is_passing();
        if self.is_upgrading() && !has_successor && Instant::now() < deferred.until {
            return;
        }
        let Some(DeferredReload { askers, .. }) = self.deferred.take() else { return };
        if !has_successor {
            return self.read(askers);
        }
        if askers.iter().any(Option::is_none) {
            warning("reload: a SIGHUP came to the old process of an upgrade: send it to the new process");
        }
    }

    fn read(&mut self, askers: Vec<Asker>) {
        self.reading = Some(askers);
        self.notify.reloading();
        let (source, messages) = (self.control.source.clone(), self.control.messages.clone());
        tokio::task::spawn_blocking(move || {
            let _ = messages.blocking_send(Message::Read(Box::new(source.read())));
        });
    }

    /// Applies the configuration that was read, and answers the callers.
    pub(super) fn reload(&mut self, read: Read) {
        let reloaded = self.apply(read);
        for problem in &reloaded.problems {
            match problem.is_error() {
                true => error(problem),
                false => warning(problem),
            }
        }
        if reloaded.ok {
            self.control.reloads_succeeded.fetch_add(1, Ordering::Relaxed);
            self.control.files_stale.store(false, Ordering::Relaxed);
            info(format_args!("reloaded {}: {}", self.control.source, self.summary()));
        } else {
            self.control.reloads_failed.fetch_add(1, Ordering::Relaxed);
            error(format_args!("reload refused: generation {} stays in force", reloaded.generation));
        }
        for asker in self.reading.take().into_iter().flatten().flatten() {
            let _ = asker.send(reloaded.clone());
        }
        if self.waiting.is_empty() {
            self.notify.ready(&self.status_line());
        } else {
            let askers = std::mem::take(&mut self.waiting);
            self.read(askers);
        }
    }

    fn apply(&mut self, read: Read) -> Reloaded {
        let mut problems;
        let outcome = match read {
            Err(found) => {
                problems = found.iter().map(Finding::from).collect::<Vec<_>>();
                Err(None)
            }
            Ok((config, found)) => {
                problems = found.iter().map(Finding::from).collect();
                self.put_in_force(config, &mut problems).map_err(Some)
            }
        };
        let ok = outcome.is_ok();
        problems.extend(outcome.err().flatten().map(|refusal| *refusal));
        Reloaded { ok, generation: self.daemon.generation.snapshot.generation, problems }
    }

    fn put_in_force(&mut self, config: Config, problems: &mut Vec<Finding>) -> Result<(), Box<Finding>> {
        let refuse =
            |main: &Main, what: String, remedy| Err(Box::new(main.control.source.refusal(what, remedy)));
        if self.is_draining() {
            return refuse(
                self,
                "the node is draining".to_owned(),
                "start it again to use the configuration",
            );
        }
        if self.upgrade.is_some() {
            return refuse(self, "an upgrade is under way".to_owned(), "reload when it is done");
        }
        if self.daemon.is_inheriting() {
            // Its connections name rules and listeners as the configuration has them that both processes read.
            let what = "the old process still passes connections to this one".to_owned();
            return refuse(self, what, "reload when it has ended");
        }
        // Reading it again would not help.
        if let Some(why) = self.daemon.config.refuses(&config) {
            return refuse(self, why, "or put back what it was");
        }
        let metrics = match self.wanted_metrics(&config) {
            Ok(listener) => listener,
            Err(error) => return refuse(self, format!("{error:#}"), "correct it and reload"),
        };
        let (before, files) = (self.daemon.config.clone(), Fingerprint::of(&files(&config)));
        if let Err(error) = self.daemon.reload(config) {
            return refuse(self, format!("{error:#}"), "correct it and reload");
        }
        self.watch.loaded(files);
        self.checks.follow(&self.daemon.config, &self.daemon.generation);
        self.change_admin(problems);
        let now = &self.daemon.config;
        if now.admin.metrics_listen != before.admin.metrics_listen {
            (self.metrics, self.metrics_socket, self.daemon.metrics) = (None, None, None);
        }
        if let Some(listener) = metrics {
            self.serve_metrics(listener);
        }
        if self.daemon.logs_elsewhere() {
            let what =
                "`logs.access` is not where the access log goes: it cannot change while running".to_owned();
            let remedy = "restart to change where the access log goes";
            let consequence = "the access log goes where it went before";
            problems.push(self.control.source.warning(what, consequence, remedy));
        }
        self.publish();
        Ok(())
    }

    /// A listener for metrics, if the configuration wants them where they are not yet.
    fn wanted_metrics(&self, config: &Config) -> anyhow::Result<Option<TcpListener>> {
        match config.admin.metrics_listen {
            Some(address) if self.daemon.config.admin.metrics_listen != Some(address) => {
                bind_metrics(address, &self.daemon.listens_on()).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Moves the admin API, or creates its socket again if the file is gone. The old socket stays if the new one fails:
    /// an operator must not be locked out.
    fn change_admin(&mut self, problems: &mut Vec<Finding>) {
        let Some(path) = self.daemon.config.admin.socket.clone() else {
            if self.admin.take().is_some() {
                info("no admin API any more");
            }
            return;
        };
        if self.admin.as_ref().is_some_and(|(socket, _)| socket.path == path && socket.is_there()) {
            return;
        }
        match AdminSocket::bind(&path, None) {
            Ok(socket) => {
                self.serve_admin(socket);
                info(format_args!("admin API on {} now", path.display()));
            }
            Err(error) => {
                let consequence = match &self.admin {
                    Some((socket, _)) if !socket.is_there() => "no command reaches this node".to_owned(),
                    Some((socket, _)) => format!("the admin API stays on {}", socket.path.display()),
                    None => "the node serves without it".to_owned(),
                };
                problems.push(self.control.source.warning(
                    no_admin(&path, &error),
                    &consequence,
                    AdminSocket::remedy(&error),
                ));
            }
        }
    }

    /// Warns of certificates that are not valid now, or not for long. The checks of a configuration file cover those
    /// that it names.
    pub(super) fn warn_of_certificates(&self) {
        let now = evergate_sys::wall_clock_s().cast_signed();
        for (name, certificate) in &self.daemon.certificates {
            if let Some(Concern { what, consequence, remedy }) = Validity::of(certificate).concern(now) {
                warning(format_args!("certificate \"{name}\": {what}; {consequence}; {remedy}"));
            }
        }
    }

    /// Warns of keys among these files that every user may read.
    fn warn_of_open_secrets(&self, fresh: &[PathBuf]) {
        for path in secrets(&self.daemon.config) {
            if fresh.contains(path) && Machine.is_readable_by_all(path) {
                let shown = path.display();
                warning(format_args!(
                    "every user of this machine may read the secret in `{shown}`: any of them can pose as this \
                     server or read its connections; remove the permission: `chmod o-r {shown}`"
                ));
            }
        }
    }

    /// Loads certificates, keys and ticket keys again when their files have changed, with the configuration in force.
    pub(super) fn compare_files(&mut self, now: Fingerprint) {
        let Some(changed) = self.watch.sees(&now) else {
            if self.watch.is_back(&now) {
                let was_stale = self.control.files_stale.swap(false, Ordering::Relaxed);
                if was_stale {
                    info("certificate, key and ticket files are again those that are in use");
                }
            }
            return;
        };
        if self.is_draining() || self.reading.is_some() || self.is_upgrading() {
            return; // the next read of the configuration loads them anyway
        }
        match self.daemon.reload(self.daemon.config.clone()) {
            Ok(()) => {
                let fresh = self.watch.fresh(&now);
                self.watch.loaded(now);
                self.control.files_stale.store(false, Ordering::Relaxed);
                self.checks.follow(&self.daemon.config, &self.daemon.generation);
                self.publish();
                info(format_args!("loaded changed files: {changed}; {}", self.summary()));
                self.warn_of_certificates();
                self.warn_of_open_secrets(&fresh);
            }
            Err(error) => {
                self.watch.refused(now);
                self.control.files_stale.store(true, Ordering::Relaxed);
                warning(format_args!(
                    "cannot use changed files ({changed}): {error:#}; the previous ones stay in use until the files \
                     change again"
                ));
            }
        }
    }
}
