//! The running agent as the rest of the process sees it.

use super::event_loop::AgentCommand;
use super::mailbox::Mailbox;
use super::startup::clustered;
use super::status::ClusterStatus;
use evergate_bpf::{Counter, PacketGate};
use evergate_config::model::Config;
use evergate_membership::{Bucket, CONFIGURATIONS};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// Sender of commands to the agent, and reader of its status. It can be cloned.
#[derive(Clone)]
pub struct Handle {
    gate: Arc<PacketGate>,
    commands: Arc<Mailbox<AgentCommand>>,
    published: Arc<Mutex<ClusterStatus>>,
}

/// The running agent; leaves the cluster when it is stopped.
pub struct Running {
    handle: Handle,
    /// Names of the configurations that this node has, newest first; 0 for none.
    configurations: [u64; CONFIGURATIONS],
    thread: Option<JoinHandle<std::io::Result<()>>>,
}

impl std::fmt::Debug for Running {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Running").finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Handle").finish_non_exhaustive()
    }
}

impl Handle {
    /// Sends a command.
    pub fn send(&self, command: AgentCommand) {
        // An agent that has ended has left the cluster.
        self.commands.post(command);
    }

    /// The status that the agent published last, with the gate's counters.
    pub fn status(&self) -> ClusterStatus {
        let mut status = self.published.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let owners = self.gate.owners();
        let recovers = |bucket: &Bucket| {
            let owner = owners.get(*bucket);
            owner.is_on_hold() && owner.node().is_some_and(|node| node.0.saturating_add(1) == status.node)
        };
        status.buckets.recovering = Bucket::all().filter(recovers).count() as u64;
        let (flows, flows_max) = self.gate.slots_counted();
        (status.flows, status.flows_max) = (flows as u64, flows_max as u64);
        if let Ok(counters) = self.gate.counters() {
            status.gate = Counter::ALL.iter().map(|of| (name_of(*of), counters.get(*of))).collect();
        }
        status
    }

    /// Whether there are other nodes that accept connections.
    pub fn has_takers(&self) -> bool {
        self.published.lock().unwrap_or_else(PoisonError::into_inner).has_takers()
    }

    /// Whether this node is an active member of its cluster.
    pub fn is_active(&self) -> bool {
        self.published.lock().unwrap_or_else(PoisonError::into_inner).phase == "active"
    }

    /// Why the other nodes could not continue without this node now, if so.
    pub fn must_stay(&self) -> Option<String> {
        self.published.lock().unwrap_or_else(PoisonError::into_inner).must_stay()
    }

    /// Whether this node has handed all its buckets off.
    pub fn is_drained(&self) -> bool {
        self.published.lock().unwrap_or_else(PoisonError::into_inner).drained
    }
}

impl Running {
    pub(super) fn new(
        gate: Arc<PacketGate>,
        commands: Arc<Mailbox<AgentCommand>>,
        published: Arc<Mutex<ClusterStatus>>,
    ) -> Running {
        let configurations = [0; CONFIGURATIONS];
        Running { handle: Handle { gate, commands, published }, configurations, thread: None }
    }

    pub(super) fn with_thread(self, thread: JoinHandle<std::io::Result<()>>) -> Running {
        Running { thread: Some(thread), ..self }
    }

    /// A handle for other threads.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Announces to the other nodes that this node has one more configuration. The list is as long as that of the
    /// workers.
    pub fn add_configuration(&mut self, name: u64) {
        let older = self.configurations.into_iter().filter(|known| *known != name && *known != 0);
        let mut all = std::iter::once(name).chain(older);
        self.configurations = std::array::from_fn(|_| all.next().unwrap_or(0));
        self.handle.send(AgentCommand::Configurations(self.configurations));
    }

    /// Gates the listeners that a reload adds, and releases the removed ones. On an error the old listeners stay.
    pub fn change_listeners(&self, before: &Config, now: &Config) -> anyhow::Result<()> {
        let of = |config: &Config| -> BTreeMap<SocketAddr, bool> {
            config.cluster.iter().flat_map(|cluster| clustered(config, cluster)).collect()
        };
        let (before, now) = (of(before), of(now));
        let changed = self.gate_listeners(&before, &now);
        if changed.is_err() {
            // The next reload reports what cannot be undone either.
            let _ = self.gate_listeners(&now, &before);
        }
        changed
    }

    fn gate_listeners(
        &self,
        before: &BTreeMap<SocketAddr, bool>,
        now: &BTreeMap<SocketAddr, bool>,
    ) -> anyhow::Result<()> {
        for (at, stateless) in now.iter().filter(|(at, stateless)| before.get(at) != Some(stateless)) {
            self.handle.gate.add_listener(*at, *stateless)?;
        }
        for gone in before.keys().filter(|at| !now.contains_key(at)) {
            self.handle.gate.remove_listener(*gone)?;
        }
        Ok(())
    }

    /// Whether the agent has ended without a command.
    pub fn is_finished(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Leaves the cluster and ends the thread.
    pub fn stop(mut self) -> std::io::Result<()> {
        self.handle.send(AgentCommand::Stop);
        match self.thread.take().map(JoinHandle::join) {
            Some(Err(_)) => Err(std::io::Error::other("the agent has panicked")),
            Some(Ok(_)) | None => Ok(()), // the agent has logged why it ended
        }
    }
}

/// `AckDropped` as `ack_dropped`.
fn name_of(counter: Counter) -> String {
    let mut name = String::new();
    for character in format!("{counter:?}").chars() {
        if character.is_ascii_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.push(character.to_ascii_lowercase());
    }
    name
}
