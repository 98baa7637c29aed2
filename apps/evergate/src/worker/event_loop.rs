//! One worker's thread: an epoll instance, and the engine that handles its events.

use super::linux::{EpollPoll, Linux};
use super::linux_gate::LinuxGate;
use super::tls_channel::TlsChannels;
use super::upgrade::{Predecessor, Successor};
use super::{Command, upgrade};
use crate::access_log::LineSender;
use crate::agent::{ReplicationEnds, Reporter};
use crate::audit::{Audit, Sealer};
use evergate_base::Wake;
use evergate_base::net::Event;
use evergate_bpf::PacketGate;
use evergate_worker::host::{AccessLog, AuditedCapture};
use evergate_worker::pools::Generation;
use evergate_worker::{Counters, Joining, Layout, Parts, Settings, Shared, Source, Watchdog, Worker};
use std::io;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Duration;

/// Sleeps are not longer by more than this.
const SLACK: Duration = Duration::from_micros(5);

/// Input of a worker that joins a cluster.
pub struct JoiningNode {
    /// The node's gate.
    pub gate: Arc<PacketGate>,
    /// Constant settings of the node.
    pub layout: Arc<Layout>,
    /// Its replication channels.
    pub ends: Arc<ReplicationEnds>,
    /// Number of the worker.
    pub worker: usize,
    /// Sender of reports to the agent.
    pub reports: Reporter,
}

/// One worker's thread.
pub struct EventLoop {
    pub(super) engine: Worker<Linux>,
    joining: Option<JoiningNode>,
    events: Vec<Event>,
    pub(super) shared: Arc<Shared>,
    pub(super) predecessor: Option<Predecessor>,
    pub(super) successor: Option<Box<Successor>>,
}

impl EventLoop {
    /// A worker that will serve `generation`; its listeners come as a command.
    pub fn new(
        generation: &Generation,
        settings: Settings,
        shared: Arc<Shared>,
        commands: Receiver<Command>,
        lines: Option<LineSender>,
        audit: Option<&Arc<Audit>>,
    ) -> io::Result<EventLoop> {
        let poll = EpollPoll::new()?;
        let waker = poll.waker();
        let audit = audit.map(|audit| Box::new(Sealer::new(audit.clone())) as Box<dyn AuditedCapture>);
        let access_log = lines.map(|lines| Box::new(lines) as Box<dyn AccessLog>);
        let parts = Parts { host: Linux, poll, waker, commands, access_log, audit };
        let engine = Worker::new(parts, generation, settings, shared.clone());
        #[cfg(test)]
        let engine = super::faults::known(engine);
        Ok(EventLoop {
            engine,
            joining: None,
            events: Vec::new(),
            shared,
            predecessor: None,
            successor: None,
        })
    }

    /// Makes it one of a cluster's; before [`EventLoop::run`].
    pub fn join(&mut self, joining: JoiningNode) {
        self.joining = Some(joining);
    }

    /// Ends the worker's wait from another thread.
    pub fn waker(&self) -> Arc<dyn Wake> {
        self.engine.waker()
    }

    /// Whether it gets on.
    pub fn watchdog(&self) -> Arc<Watchdog> {
        self.engine.watchdog()
    }

    /// Counters of the worker.
    pub fn counters(&self) -> Arc<Counters> {
        self.engine.counters()
    }

    /// Serves until stopped, or until drained.
    pub fn run(mut self) -> io::Result<()> {
        let _ = evergate_sys::sleep_within(SLACK); // without it some sleeps are 0.05 ms longer
        self.join_cluster().map_err(|error| io::Error::other(format!("{error:#}")))?;
        while !self.is_done() {
            self.turn()?;
        }
        self.finish_transfer();
        self.engine.end_all();
        Ok(())
    }

    /// Makes this worker, in its own thread, a member of the cluster.
    pub(super) fn join_cluster(&mut self) -> anyhow::Result<()> {
        let Some(JoiningNode { gate, layout, ends, worker, reports }) = self.joining.take() else {
            return Ok(());
        };
        let gate = LinuxGate::new(gate, worker, layout.node, ends.neighbours.clone())?;
        let (events, channels) = (gate.events_fd(), TlsChannels::new(ends, worker));
        let reports = Box::new(reports);
        Ok(self.engine.join(Joining { gate, events, channels, layout, worker, reports })?)
    }

    fn is_done(&self) -> bool {
        let drained = self.engine.is_drained();
        let passes = self.successor.is_some() || self.predecessor.is_some();
        self.engine.is_stopping() || (drained && !passes)
    }

    /// Waits for events, and handles them.
    pub(super) fn turn(&mut self) -> io::Result<()> {
        let wait =
            self.engine.wait(self.successor.as_ref().map_or(i32::MAX, |successor| successor.wait_ms()));
        self.engine.watchdog().rest();
        if let Some(pause) = wait.batch_for {
            std::thread::sleep(pause);
            self.engine.counters().batched.add(1);
        }
        self.engine.poll_mut().wait(wait.at_most_ms, &mut self.events)?;
        self.engine.turn(&self.events);
        for index in 0..self.events.len() {
            match Source::of(self.events[index].token) {
                Some(Source::Shell(upgrade::PREDECESSOR)) => self.predecessor_event(),
                Some(Source::Shell(_)) => self.successor_event(self.events[index]),
                _ => {}
            }
        }
        self.handle_upgrade_commands();
        if self.successor.is_some() {
            self.transfer();
        }
        self.engine.flush_log();
        Ok(())
    }
}

impl Drop for EventLoop {
    fn drop(&mut self) {
        if !self.engine.is_clustered() {
            self.end_transfers();
        }
    }
}
