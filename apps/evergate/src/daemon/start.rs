//! Start of a process: its sockets, its user, its workers and its agent.

use super::fd_limit::make_room_for_files;
use super::generation_drop::Retired;
use super::{Daemon, WorkerHandle};
use crate::access_log::{self, Target, Writer};
use crate::agent::{self, Startup};
use crate::audit::Audit;
use crate::generation::{Assembled, CarriedState, assemble};
use crate::listen::bind_all;
use crate::upgrade::{Inheritance, adopt_servers, prefer_known};
use crate::worker::{Command, EventLoop, JoiningNode, ListenerSocket};
use anyhow::{Context, Result};
use evergate_config::Config;
use evergate_config::model::{ServerSource, Timeouts};
use evergate_connection::RequestKey;
use evergate_sys::{Account, Keepalive};
use evergate_worker::pools::Generation;
use evergate_worker::{Bounds, Settings, Shared, Watchdog};
use std::mem::take;
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};

/// Where a process is reached.
struct Places {
    bound: Vec<(String, SocketAddr)>,
    /// By worker.
    sockets: Vec<Vec<ListenerSocket>>,
    /// See [`Daemon`].
    streams: Vec<UnixStream>,
}

impl Daemon {
    /// Binds everything, becomes the configured user, and starts the workers. Inherited sockets replace new ones.
    /// Serves once [`Daemon::listen`] is called.
    pub fn start(mut config: Config, inherited: Option<&mut Inheritance>) -> Result<Daemon> {
        check_rights(&config)?;
        let mut keep = CarriedState::default();
        if let Some(inherited) = &inherited {
            keep.inherit(&inherited.offer)?;
        }
        evergate_crypto::warm_up();
        // Before anything listens: no packet of a movable address may get past the gate.
        let ground = config.cluster.as_ref().map(|cluster| Startup::prepare(&config, cluster)).transpose()?;
        if let Some(ground) = &ground {
            keep.share_tickets(ground.ticket_secret());
        }
        // Alone, no other process compares hashes, and peers must not predict them.
        let half = || u64::from_le_bytes(evergate_crypto::random_bytes());
        let random = || RequestKey([half(), half()]);
        keep.set_request_key(ground.as_ref().map_or_else(random, Startup::request_key));
        if let Some(inherited) = &inherited {
            prefer_known(&mut config, &inherited.offer.servers);
        }
        let Assembled { generation, certificates } = assemble(&config, None, &mut keep)?;
        keep.commit();
        let shared = share(&config);
        let count = config.node.worker_count().get();
        // A process that inherits was started by one that has become the user.
        let account = if inherited.is_none() { becomes(&config)? } else { None };
        let Places { bound, sockets, streams } = match inherited {
            None => bind_all(&config, count).map(|(bound, sockets)| Places {
                bound,
                sockets,
                streams: Vec::new(),
            })?,
            Some(inherited) => adopt(inherited, &generation, &shared),
        };
        let writer = become_user(&config, account)?;
        // Its threads and files are those of the configured user.
        let audit = config.audit.as_ref().map(Audit::start).transpose()?;
        let workers =
            start_workers(&config, &generation, &shared, audit.as_ref(), writer.as_ref(), ground.as_ref())?;
        shared.inheriting.store(streams.len(), Ordering::Relaxed);
        let mut agent = ground.map(|ground| start_agent(ground, &workers)).transpose()?;
        if let Some(agent) = &mut agent {
            agent.add_configuration(generation.snapshot.generation);
        }
        let leaving = AtomicBool::new(false);
        Ok(Daemon {
            sockets: Mutex::new(sockets),
            streams,
            config,
            generation,
            certificates,
            workers,
            bound,
            metrics: None,
            shared,
            audit,
            retired: Retired::default(),
            keep,
            writer,
            agent,
            leaving,
        })
    }
}

/// Checks the rights that single requests need later. Then it would be too late for the error.
pub(super) fn check_rights(config: &Config) -> Result<()> {
    let Some(pool) = config.pools.iter().find(|pool| pool.source == ServerSource::Client) else {
        return Ok(());
    };
    let missing = evergate_sys::missing_client_source();
    missing.map_or(Ok(()), Err).with_context(|| {
        format!(
            "pool \"{}\" has source = \"client\", and this process may not use the addresses of clients: run it as \
             root, or give it CAP_NET_RAW (systemd: AmbientCapabilities=CAP_NET_RAW)",
            pool.name
        )
    })
}

/// State that the workers share.
fn share(config: &Config) -> Arc<Shared> {
    let shared = Shared::default();
    if let Some(limit) = make_room_for_files(config.limits.listener.connections_max as u64) {
        shared.room.set_limit(limit);
    }
    shared.sessions.set_bytes_max(config.limits.session_cache_bytes_max);
    Arc::new(shared)
}

/// Inheritance from the old process: its sockets, its sessions, and its state of the servers.
fn adopt(inherited: &mut Inheritance, generation: &Arc<Generation>, shared: &Shared) -> Places {
    let Inheritance { offer, bound, listeners, streams, .. } = inherited;
    adopt_servers(generation, &offer.servers);
    let now_s = evergate_sys::wall_clock_s();
    offer.sessions.iter().cloned().for_each(|session| shared.sessions.keep(session, now_s));
    shared.room.hold_back(offer.descriptors);
    Places { bound: take(bound), sockets: take(listeners), streams: take(streams) }
}

/// Opens the log as the user that this process becomes.
fn become_user(config: &Config, account: Option<Account>) -> Result<Option<Writer>> {
    let to = Target::of(&config.logs.access);
    if let (Some(account), Some(user)) = (account, &config.node.user) {
        if let Some(to) = &to {
            access_log::make(to, &account);
        }
        account.become_it().with_context(|| cannot_become(user))?;
    }
    let writer = to.map(|to| access_log::start_as(config.node.user.as_deref(), &to)).transpose()?;
    if let Some(writer) = &writer {
        writer.set_format(&config.logs);
    }
    Ok(writer)
}

/// The user that a process with this configuration becomes, if not the one that starts it.
pub(crate) fn becomes(config: &Config) -> Result<Option<Account>> {
    let Some(user) = &config.node.user else { return Ok(None) };
    let account = Account::named(user, config.node.group.as_deref());
    account.map(Some).with_context(|| cannot_become(user))
}

fn cannot_become(user: &str) -> String {
    format!("cannot become user \"{user}\": start as root, or leave node.user out")
}

pub(crate) fn settings(config: &Config, workers: usize) -> Settings {
    Settings {
        handshakes_per_turn: config.limits.handshakes_per_turn.get(),
        event_batching: config.limits.event_batching,
        connections_max: config.limits.listener.connections_max,
        listeners: config
            .listeners
            .iter()
            .map(|listener| {
                let bounds = Bounds {
                    connections_max: listener.limits.connections_max,
                    per_source_max: listener.limits.connections_per_source_max.map_or(0, |max| max.get()),
                };
                (listener.name.clone(), bounds)
            })
            .collect(),
        buffered_max: config.limits.buffers_bytes_max.get() / workers.max(1),
        keepalive: keepalive(&config.timeouts),
    }
}

/// A peer that takes nothing ends by `write_stall`: Linux must not end it before.
pub(crate) fn keepalive(timeouts: &Timeouts) -> Option<Keepalive> {
    let idle_s = u16::try_from(timeouts.tcp_keepalive.as_secs()).unwrap_or(u16::MAX);
    let mut keepalive = Keepalive { idle_s, timeout_ms: 2000 * u32::from(idle_s) };
    keepalive.outlast(timeouts.write_stall);
    (idle_s > 0).then_some(keepalive)
}

fn start_workers(
    config: &Config,
    generation: &Arc<Generation>,
    shared: &Arc<Shared>,
    audit: Option<&Arc<Audit>>,
    writer: Option<&Writer>,
    ground: Option<&Startup>,
) -> Result<Vec<WorkerHandle>> {
    let count = config.node.worker_count().get();
    let settings = settings(config, count);
    let joining = |worker| {
        ground.map(|ground| JoiningNode {
            gate: ground.gate(),
            layout: ground.layout(),
            ends: ground.replication_ends(),
            worker,
            reports: ground.reporter(worker),
        })
    };
    (0..count)
        .map(|index| start_worker(index, generation, &settings, shared, audit, writer, joining(index)))
        .collect()
}

/// Starts the agent, which sends instructions to the workers.
fn start_agent(ground: Startup, workers: &[WorkerHandle]) -> Result<agent::Running> {
    let ways: Vec<_> = workers.iter().map(|worker| (worker.commands.clone(), worker.waker.clone())).collect();
    let mut pulses: Vec<_> = workers.iter().map(|worker| (worker.pulse.clone(), 0)).collect();
    let working = move || pulses.iter_mut().fold(true, |well, (pulse, last)| pulse.continues(last) && well);
    let notify = move |worker: usize, instruction| {
        if let Some((commands, waker)) = ways.get(worker) {
            // A worker that has ended receives nothing more.
            let _ = commands.send(Command::Cluster(instruction));
            waker.wake();
        }
    };
    ground.start(notify, working)
}

fn start_worker(
    index: usize,
    generation: &Arc<Generation>,
    settings: &Settings,
    shared: &Arc<Shared>,
    audit: Option<&Arc<Audit>>,
    writer: Option<&Writer>,
    joining: Option<JoiningNode>,
) -> Result<WorkerHandle> {
    let (commands, received) = channel();
    let lines = writer.map(Writer::sender);
    let mut worker = EventLoop::new(generation, settings.clone(), shared.clone(), received, lines, audit)
        .context("cannot set up a worker: is epoll allowed here, and are there file descriptors left?")?;
    if let Some(joining) = joining {
        worker.join(joining);
    }
    let (waker, counters, pulse) = (worker.waker(), worker.counters(), worker.watchdog());
    let end = End(pulse.clone());
    let run = move || {
        let _end = end;
        worker.run()
    };
    let thread = std::thread::Builder::new().name(format!("worker-{index}")).spawn(run)?;
    Ok(WorkerHandle { commands, waker, counters, pulse, thread: Some(thread) })
}

/// Records that a worker's thread has ended, even by a panic.
struct End(Arc<Watchdog>);

impl Drop for End {
    fn drop(&mut self) {
        self.0.end();
    }
}
