//! Another configuration takes the place of the one in force.

use super::fd_limit::make_room_for_files;
use super::start::check_rights;
use super::{Daemon, copies, settings};
use crate::generation::assemble;
use crate::listen::bind;
use crate::upgrade::{offered_servers, prefer_known};
use crate::worker::{Command, ListenerSocket};
use anyhow::{Context, Result, bail};
use evergate_config::Config;
use evergate_config::model::Listener;
use std::net::SocketAddr;

/// Where listeners are bound, by their names.
type Bound = Vec<(String, SocketAddr)>;

impl Daemon {
    /// Puts another configuration in force; on any error nothing changes.
    pub fn reload(&mut self, mut config: Config) -> Result<()> {
        if let Some(why) = self.config.refuses(&config) {
            bail!(why);
        }
        check_rights(&config)?;
        prefer_known(&mut config, &offered_servers(&self.generation));
        let assembled = assemble(&config, Some(&self.generation), &mut self.keep)?;
        let gone = self.listeners_gone(&config);
        let (bound, mut sockets) = self.bind_fresh(&config, &gone)?;
        self.reassign_unlistened(&mut sockets);
        let copies = copies(&sockets)?;
        if let Some(cluster) = &self.agent {
            cluster.change_listeners(&self.config, &config)?;
        }
        // Nothing fails from here on.
        self.keep_sockets(sockets, &gone);
        self.keep.commit();
        self.shared.sessions.set_bytes_max(config.limits.session_cache_bytes_max);
        if let Some(writer) = &self.writer {
            writer.set_format(&config.logs);
        }
        let settings = settings(&config, self.workers.len());
        for (worker, add) in self.workers.iter().zip(copies) {
            // Connections in the queue of a removed listener are served by the configuration that has it.
            worker.notify(Command::Listeners { add: Vec::new(), remove: gone.clone() });
            worker.notify(Command::Reload(assembled.generation.clone()));
            worker.notify(Command::Settings(settings.clone()));
            worker.notify(Command::Listeners { add, remove: Vec::new() });
        }
        let max = config.limits.listener.connections_max;
        if max > self.config.limits.listener.connections_max {
            make_room_for_files(max as u64);
        }
        self.bound = bound;
        self.retired.push(std::mem::replace(&mut self.generation, assembled.generation));
        if let Some(cluster) = &mut self.agent {
            cluster.add_configuration(self.generation.snapshot.generation); // the workers have it
        }
        self.certificates = assembled.certificates;
        self.config = config;
        Ok(())
    }

    /// Frees replaced generations that no worker uses any more.
    pub fn sweep_retired(&mut self) {
        self.retired.sweep(&self.generation);
    }

    /// Names of the listeners that are there no more, or at another address.
    fn listeners_gone(&self, config: &Config) -> Vec<String> {
        let stays = |old: &Listener| {
            config.listeners.iter().any(|new| new.name == old.name && new.address == old.address)
        };
        let gone = self.config.listeners.iter().filter(|old| !stays(old));
        gone.map(|old| old.name.clone()).collect()
    }

    /// The bound addresses of all listeners, and the sockets of new listeners, by worker.
    fn bind_fresh(&self, config: &Config, gone: &[String]) -> Result<(Bound, Vec<Vec<ListenerSocket>>)> {
        let known = |new: &Listener| {
            self.config.listeners.iter().any(|old| new.name == old.name && new.address == old.address)
        };
        let mut sockets: Vec<Vec<ListenerSocket>> = self.workers.iter().map(|_| Vec::new()).collect();
        let mut bound: Bound = self.bound.iter().filter(|(name, _)| !gone.contains(name)).cloned().collect();
        // Removed listeners still exist: their ports belong to this process too.
        let mut ours = self.listens_on();
        for listener in config.listeners.iter().filter(|new| !known(new)) {
            let renamed = |old: &&Listener| old.address == listener.address && gone.contains(&old.name);
            let at = match self.config.listeners.iter().find(renamed) {
                Some(old) => self.keep_under(&old.name, &listener.name, &mut sockets)?,
                None => {
                    let at = bind(listener, &mut sockets, &ours, super::keepalive(&config.timeouts))?;
                    ours.push(at);
                    at.socket
                }
            };
            bound.push((listener.name.clone(), at));
        }
        Ok((bound, sockets))
    }

    /// Reuses a listener's sockets for a listener with another name at the same address, with the addresses where they
    /// are bound. The kernel would reset clients in the middle of TCP's handshake together with a closed socket.
    fn keep_under(&self, old: &str, name: &str, sockets: &mut [Vec<ListenerSocket>]) -> Result<SocketAddr> {
        for (list, all) in sockets.iter_mut().zip(copies(&self.sockets())?) {
            let own = all.into_iter().filter(|socket| socket.name == old);
            list.extend(own.map(|socket| ListenerSocket { name: name.to_owned(), ..socket }));
        }
        let bound = self.bound.iter().find(|(bound, _)| bound == old).map(|(_, at)| *at);
        bound.with_context(|| format!("listener \"{old}\" is bound nowhere"))
    }

    /// Keeps these sockets, and drops those of removed listeners.
    fn keep_sockets(&self, fresh: Vec<Vec<ListenerSocket>>, gone: &[String]) {
        for (kept, fresh) in self.sockets().iter_mut().zip(fresh) {
            kept.retain(|socket| !gone.contains(&socket.name));
            kept.extend(fresh);
        }
    }
}
