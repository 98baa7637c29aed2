//! Connections that move to another process of the machine, or come from one, between two turns of their own.
//!
//! All results of a connection's last call are performed, unwritten output is in its outlets, and spliced data is in a
//! pipe, which moves along with its descriptors. A connection that cannot move ([`Connection::export`] returns the
//! reason) is served here and tried again soon. The sockets stay registered until they are closed everywhere, so they
//! are deregistered before they move. The program around the worker carries descriptors and bytes.

use crate::clients::{Client, Pipes};
use crate::command::ListenerSocket;
use crate::host::{Host, Listener, Pipe, Poll};
use crate::slab::{Key, Source};
use crate::upstreams::Upstream;
use crate::worker::Worker;
use evergate_base::Micros;
use evergate_connection::{Connection, UpgradeLeg};
use std::sync::Arc;

/// Whether the connections of a worker go to another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Passing {
    /// They stay.
    No,
    /// The first pass over them is not over: room of connections that have only moved is not free.
    Sweeping,
    /// Those that are left are tried again.
    Swept,
    /// The other process takes no more.
    Broken,
}

/// Whether a worker ends, and where its connections go.
pub(crate) struct Lifecycle {
    pub(crate) draining: bool,
    pub(crate) stopping: bool,
    pub(crate) passing: Passing,
}

/// The worker's data of a connection that moves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moving {
    /// When the connection got its server, and when the server's response began.
    pub used_since: Micros,
    /// See `used_since`.
    pub answered_at: Option<Micros>,
    /// Destination and settings of the server connection: [`crate::pools::ServerRuntime::way`].
    pub way: u64,
    /// The client's FIN waits for bytes before it.
    pub fin_waits: bool,
    /// The server's FIN waits for bytes before it.
    pub server_fin_waits: bool,
}

/// Sockets and pipes of a connection that moves: owned ones, or references.
#[derive(Debug)]
pub struct Carried<S, P> {
    /// The client's socket.
    pub client: S,
    /// The server's.
    pub server: Option<S>,
    /// A pipe with bytes to the client.
    pub down: Option<P>,
    /// A pipe with bytes to the server.
    pub up: Option<P>,
}

impl<H: Host> Worker<H> {
    /// Begins to pass everything to another process, which already has the listeners' queues. Returns the connections
    /// in the order in which they are popped: those that wait for a server come last, so that they do not get the
    /// places of those that move.
    pub fn begin_passing(&mut self) -> Vec<Key> {
        for listener in std::mem::take(&mut self.listening.sockets).into_iter().flatten() {
            let _ = self.poll.remove(listener.socket.descriptor()); // it stays open in the new process
        }
        self.set_passing(Passing::Sweeping);
        let mut keys = self.clients.keys();
        keys.sort_by_key(|key| {
            self.clients.get(*key).is_none_or(|client| !client.connection.is_leg_queued())
        });
        keys
    }

    /// Every connection has been tried once. Returns those that are left.
    pub fn end_sweep(&mut self) -> Vec<Key> {
        self.set_passing(Passing::Swept);
        self.clients.keys()
    }

    /// The other process takes no more: the connections that are left stay.
    pub fn break_passing(&mut self) {
        self.set_passing(Passing::Broken);
    }

    /// The other process is gone: this worker serves again, on these sockets.
    pub fn take_back(&mut self, listeners: Vec<ListenerSocket<H>>) {
        self.set_passing(Passing::No);
        self.lifecycle.draining = false;
        self.change_listeners(listeners, &[]);
    }

    /// Passes everything of a connection to `pack`. `None` when it is gone, or after a panic, which ends it here; an
    /// error is the reason why it has to stay.
    pub fn export<R>(
        &mut self,
        key: Key,
        pack: impl FnOnce(Moving, Carried<&H::Socket, &H::Pipe>, &[u8]) -> Result<R, &'static str>,
    ) -> Option<Result<R, &'static str>> {
        let mut packed = None;
        self.guarded(Some(Source::Client(key)), |worker| packed = worker.try_export(key, pack));
        packed
    }

    fn try_export<R>(
        &mut self,
        key: Key,
        pack: impl FnOnce(Moving, Carried<&H::Socket, &H::Pipe>, &[u8]) -> Result<R, &'static str>,
    ) -> Option<Result<R, &'static str>> {
        let client = self.clients.get(key)?;
        self.host.reached(&self.counters, "pack", Some(client.connection.client_address()));
        let newest = &self.current.last()?.generation.snapshot;
        let state = match client.connection.export(newest) {
            Ok(state) => state,
            Err(reason) => return Some(Err(reason)),
        };
        let upstream = client.upstream.and_then(|upstream| self.upstreams.get(upstream));
        let (leg, bound) = (client.connection.leg_id(), client.connection.bound_leg());
        let has_server = leg.or(bound).is_some() && !client.connection.is_leg_queued();
        if has_server != upstream.is_some() {
            return Some(Err("no_server_socket"));
        }
        let moving = Moving {
            used_since: upstream.map_or(Micros(0), |upstream| upstream.used_since),
            answered_at: upstream.and_then(|upstream| upstream.answered_at),
            way: upstream.map_or(0, |upstream| upstream.server.way(upstream.tls_fingerprint)),
            fin_waits: client.fin_waits,
            server_fin_waits: client.server_fin_waits,
        };
        let carried = Carried {
            client: &client.socket,
            server: upstream.map(|upstream| &upstream.socket),
            down: client.pipes.as_ref().and_then(|pipes| pipes.down.as_ref()),
            up: client.pipes.as_ref().and_then(|pipes| pipes.up.as_ref()),
        };
        Some(pack(moving, carried, &state))
    }

    /// Drops a connection that is on its way: its sockets close here and stay open there.
    pub fn release_client(&mut self, key: Key) {
        let Some(client) = self.clients.get(key) else { return };
        let _ = self.poll.remove(client.descriptor());
        if let Some(upstream) = client.upstream.and_then(|upstream| self.upstreams.get(upstream)) {
            let _ = self.poll.remove(upstream.descriptor());
        }
        if client.connection.is_leg_queued() {
            self.stop_waiting(key);
        }
        self.forget(key);
    }

    /// Continues a connection of another process here; `None` after a panic. An error loses the connection.
    pub fn import(
        &mut self,
        moving: Moving,
        carried: Carried<H::Socket, H::Pipe>,
        state: &[u8],
    ) -> Option<Result<(), String>> {
        let mut outcome = None;
        self.guarded(None, |worker| outcome = Some(worker.try_import(moving, carried, state)));
        outcome
    }

    fn try_import(
        &mut self,
        moving: Moving,
        carried: Carried<H::Socket, H::Pipe>,
        state: &[u8],
    ) -> Result<(), String> {
        let Carried { client: socket, server, down, up } = carried;
        let snapshot = self.current[self.current.len() - 1].generation.snapshot.clone();
        let (connection, leg) = Connection::import(&snapshot, state).map_err(|error| format!("{error:?}"))?;
        if leg.is_some_and(|leg| leg.server.is_some()) != server.is_some() {
            return Err("a server leg without its socket".to_owned());
        }
        let held = self.acquire_limits(connection.listener_name(), connection.client_address().ip());
        let mut client = Client::new(socket, connection, held);
        client.readable = true;
        client.fin_waits = moving.fin_waits;
        client.server_fin_waits = moving.server_fin_waits;
        if down.is_some() || up.is_some() {
            let held = |pipe: &Option<H::Pipe>| pipe.as_ref().map_or(0, |pipe| pipe.held() as u64);
            client.connection.handle_piped(held(&down), held(&up));
            client.pipes = Some(Box::new(Pipes { down, up }));
        }
        let descriptor = client.descriptor();
        let key = self.clients.insert(client);
        self.list(key);
        self.counters.open.set(self.clients.len() as u64);
        self.counters.inherited.add(1);
        if self.poll.add(descriptor, Source::Client(key).token()).is_err() {
            self.forget(key);
            return Err("epoll does not take its socket".to_owned());
        }
        let waits = leg.is_some() && server.is_none();
        if let Some((server, leg)) = server.zip(leg) {
            self.import_server(key, server, leg, moving);
        }
        if waits {
            self.with(key, |connection, io| connection.handle_leg_resumed(io));
            self.perform(key);
        }
        self.count_buffered(key);
        self.pump(key);
        if self.lifecycle.draining {
            self.with(key, |connection, io| connection.handle_drain(io));
            self.perform(key);
        }
        self.schedule(key);
        Ok(())
    }

    /// Continues a server connection. If it leads elsewhere or was made otherwise than new ones, it serves its request
    /// and is not pooled, as after a reload.
    fn import_server(&mut self, key: Key, socket: H::Socket, leg: UpgradeLeg, moving: Moving) {
        let pools = &self.current[self.current.len() - 1].generation.pools;
        let pool = pools.get(leg.pool as usize);
        let known = pool.zip(leg.server).and_then(|(pool, index)| {
            Some((pool.servers.get(index as usize)?.clone(), index, pool.tls_fingerprint))
        });
        let Some((server, index, tls_fingerprint)) = known else {
            return self.forget(key); // unreachable: the snapshot has the server
        };
        let is_todays = server.way(tls_fingerprint) == moving.way;
        let server = if is_todays { server } else { Arc::new(server.of_before()) };
        server.enter_resumed();
        let upstream = Upstream {
            index,
            owner: Some((key, leg.leg)),
            used_since: moving.used_since,
            answered_at: moving.answered_at,
            tls_fingerprint,
            readable: true,
            writable: true,
            ..Upstream::new(socket, server)
        };
        self.add_upstream(key, upstream);
        self.note_bound(key);
    }
}
