//! Choosing a server and getting a connection to it.

use crate::host::Host;
use crate::pools::{Handed, Offer, PoolRuntime, Seeker, ServerRuntime, Sessions};
use crate::queue::{PORT_RETRY, Turn};
use crate::replication::NoFreePort;
use crate::slab::Key;
use crate::upstreams::{Upstream, Waiting};
use crate::worker::{Current, Worker};
use evergate_balance::{ServerLoad, bounded_server, source_key, source_server};
use evergate_base::{Micros, Unix};
use evergate_connection::ServerHint;
use evergate_membership::Bucket;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// How many idle connections like this one are kept, and for how long, if the configuration still has its server and
/// would connect to it the same way.
pub(super) fn idle_of<H: Host>(current: &Current, upstream: &Upstream<H>) -> Option<(usize, Micros)> {
    let has = |pool: &PoolRuntime| pool.servers.iter().any(|known| known.id == upstream.server.id);
    let pools = &current.generation.pools;
    let pool = pools
        .iter()
        .find(|pool| has(pool))
        .filter(|pool| pool.tls_fingerprint == upstream.tls_fingerprint)?;
    Some((pool.idle_max, Micros(pool.idle.as_micros() as u64)))
}

/// Input of a balancing policy about one server.
fn load_of(pool: &PoolRuntime, index: usize, eligible: bool, now: Micros) -> ServerLoad {
    pool.servers.get(index).map_or_else(ServerLoad::default, |server| ServerLoad {
        weight: server.weight.load(Ordering::Relaxed),
        outstanding: server.outstanding.load(Ordering::Relaxed),
        completion_us: server.completion_us(now),
        eligible,
    })
}

/// The server chosen by the client's address, among the usable servers.
fn source_of(pool: &PoolRuntime, ip: IpAddr, may: impl Fn(u32) -> bool) -> Option<u32> {
    let candidates: Vec<(u64, u32, bool)> = (0..)
        .zip(&pool.servers)
        .map(|(index, server)| (server.name_hash, server.weight.load(Ordering::Relaxed), may(index)))
        .collect();
    source_server(ip, &candidates).map(|index| index as u32)
}

/// No local port is free for connections to a server.
pub(super) struct PortLack {
    pub(super) server: u64,
    /// Bucket of the client, whose ports are in use.
    pub(super) bucket: Option<Bucket>,
    /// The cause, for the log.
    pub(super) why: String,
}

/// A request counted at a server, until a connection carries it.
struct CountedIn<'a>(&'a ServerRuntime);

impl CountedIn<'_> {
    fn stays(self) {
        std::mem::forget(self);
    }
}

impl Drop for CountedIn<'_> {
    fn drop(&mut self) {
        self.0.leave();
    }
}

impl<H: Host> Worker<H> {
    pub(super) fn dial(
        &mut self,
        key: Key,
        leg: u32,
        pool: u32,
        hint: ServerHint,
        tried: &[u32],
        reuse: bool,
    ) {
        let Some(client) = self.clients.get_mut(key) else { return };
        let generation = client.connection.snapshot().generation;
        let Some(index) = self.current_of(generation) else { return };
        let Some(pool_runtime) = self.current[index].generation.pools.get(pool as usize).cloned() else {
            return;
        };
        let wish = self.wish(&pool_runtime, hint, tried);
        // A later request waits behind earlier ones, even if there is room at the moment.
        let choice = match pool_runtime.lines.may_go(wish) {
            true => self.find_wished(index, key, pool, wish, hint, tried),
            false => None,
        };
        let lack = match choice {
            Some((server, handed)) => {
                let to = (&*pool_runtime, server);
                let connected = match self.find_port_waiter(key, to) {
                    Some(lack) => Err(self.leave_server(to, handed, lack)),
                    None => self.connect((key, leg), to, handed, reuse),
                };
                match connected {
                    Ok(()) => return,
                    Err(lack) => Some(lack),
                }
            }
            None => None,
        };
        let rank = self.rank(key, &pool_runtime);
        let turn = match &lack {
            Some(lack) => Turn::Port { server: lack.server, bucket: lack.bucket, due: self.now + PORT_RETRY },
            None => Turn::Room(pool_runtime.lines.join(wish, rank, self.waker.clone(), &self.shared)),
        };
        let tried = tried.to_vec();
        let waiting = Waiting { client: key, leg, pool, hint, wish, tried, reuse, rank, turn };
        self.enqueue(index, &pool_runtime, waiting);
        if let Some(lack) = lack {
            self.note_port_wait(key, leg, &lack);
        }
    }

    /// The server that a client returns to. While it is up and full, the request waits for it if it may wait: another
    /// server does not know the client.
    fn wish(&self, pool: &PoolRuntime, hint: ServerHint, tried: &[u32]) -> Option<u32> {
        let may = |index: u32| {
            !tried.contains(&index) && pool.servers.get(index as usize).is_some_and(|server| server.is_up())
        };
        let wish = match hint {
            ServerHint::Server(index) => Some(index).filter(|index| may(*index)),
            ServerHint::Source(ip) if pool.sticky_load_percent_max.is_none() => source_of(pool, ip, may),
            _ => None,
        };
        wish.filter(|_| pool.queue_max > 0 && pool.sessions.is_none())
    }

    /// The wished server, or any without a wish, counted, with the outcome of session balancing.
    pub(super) fn find_wished(
        &mut self,
        current: usize,
        key: Key,
        pool: u32,
        wish: Option<u32>,
        hint: ServerHint,
        tried: &[u32],
    ) -> Option<(u32, Option<Box<Handed>>)> {
        let Some(wish) = wish else { return self.find_server(current, key, pool, hint, tried) };
        let runtime = self.current[current].generation.pools.get(pool as usize)?;
        runtime.servers.get(wish as usize)?.enter().then_some((wish, None))
    }

    /// A server for a request, counted, with the outcome of session balancing.
    fn find_server(
        &mut self,
        current: usize,
        key: Key,
        pool: u32,
        hint: ServerHint,
        tried: &[u32],
    ) -> Option<(u32, Option<Box<Handed>>)> {
        let runtime = self.current[current].generation.pools.get(pool as usize)?.clone();
        match &runtime.sessions {
            Some(sessions) => self.choose_by_session(key, &runtime, sessions, tried),
            None => self.choose(current, pool as usize, &runtime, hint, tried).map(|server| (server, None)),
        }
    }

    /// A server by hint or policy, counted; servers tried before only when no other is left.
    fn choose(
        &mut self,
        current: usize,
        pool: usize,
        runtime: &PoolRuntime,
        hint: ServerHint,
        tried: &[u32],
    ) -> Option<u32> {
        let eligible =
            |index: usize| !tried.contains(&(index as u32)) && runtime.servers[index].is_eligible();
        let hinted = match hint {
            ServerHint::Server(index)
                if (index as usize) < runtime.servers.len() && eligible(index as usize) =>
            {
                Some(index as usize)
            }
            ServerHint::Source(ip) if runtime.sticky_load_percent_max.is_some() => {
                let percent = runtime.sticky_load_percent_max.unwrap_or(u32::MAX);
                let names: Vec<u64> = runtime.servers.iter().map(|server| server.name_hash).collect();
                let loads: Vec<ServerLoad> =
                    (0..names.len()).map(|i| load_of(runtime, i, eligible(i), self.now)).collect();
                bounded_server(source_key(ip), &names, &loads, percent)
            }
            ServerHint::Source(ip) => {
                source_of(runtime, ip, |index| eligible(index as usize)).map(|index| index as usize)
            }
            _ => None,
        };
        let random = self.next_random();
        let picked = hinted.or_else(|| self.pick(current, pool, runtime, random, &|index| eligible(index)));
        let picked = picked.or_else(|| {
            if tried.is_empty() {
                return None;
            }
            self.pick(current, pool, runtime, random, &|index| runtime.servers[index].is_eligible())
        })?;
        runtime.servers[picked].enter().then_some(picked as u32)
    }

    /// A server by the client's session, counted; servers tried before only when no other is left.
    fn choose_by_session(
        &mut self,
        key: Key,
        runtime: &PoolRuntime,
        sessions: &Arc<Sessions>,
        tried: &[u32],
    ) -> Option<(u32, Option<Box<Handed>>)> {
        let random = self.next_random();
        let distributors = self.shared.distributors.load(Ordering::Relaxed);
        let connection = &self.clients.get(key)?.connection;
        let offer = connection.offered_sessions().map(|sessions| Offer {
            sessions,
            hasher: connection.snapshot().session_hasher(),
            now: Unix(self.host.wall_clock_s()),
        });
        let seeker = Seeker { address: connection.request_client(), offer };
        let mut among = |may: &dyn Fn(u32) -> bool| {
            self.loads.clear();
            self.loads.extend((0..).zip(&runtime.servers).map(|(index, server)| {
                load_of(runtime, index as usize, may(index) && server.is_eligible(), self.now)
            }));
            sessions.choose(&seeker, &runtime.servers, &self.loads, (random, distributors), self.now)
        };
        let untried = among(&|index| !tried.contains(&index));
        let (server, handed) = match untried {
            None if !tried.is_empty() => among(&|_| true)?,
            untried => untried?,
        };
        if !runtime.servers.get(server).is_some_and(|server| server.enter()) {
            handed.handle_lost();
            return None;
        }
        Some((server as u32, Some(handed)))
    }

    fn pick(
        &mut self,
        current: usize,
        pool: usize,
        runtime: &PoolRuntime,
        random: u64,
        eligible: &dyn Fn(usize) -> bool,
    ) -> Option<usize> {
        self.loads.clear();
        self.loads.extend(
            (0..runtime.servers.len()).map(|index| load_of(runtime, index, eligible(index), self.now)),
        );
        self.current[current].pickers[pool].pick(&self.loads, random)
    }

    /// An idle connection carries the request.
    fn reuse(&mut self, (key, leg): (Key, u32), idle: Key, index: u32, counted: CountedIn<'_>) {
        self.counters.reused.add(1);
        let mut records = None;
        if let Some(upstream) = self.upstreams.get_mut(idle) {
            upstream.owner = Some((key, leg));
            counted.stays();
            upstream.index = index;
            upstream.used_since = self.now;
            upstream.answered_at = None;
            upstream.reused = true;
            records = upstream.records.take();
        }
        if let Some(client) = self.clients.get_mut(key) {
            client.upstream = Some(idle);
        }
        self.record_audited_leg(key, idle);
        self.gate_server(key, idle, leg);
        self.with(key, |connection, io| connection.handle_leg_open(io, leg, index, records));
        self.perform(key);
    }

    /// Uses an idle connection to the server, or makes one. When no local port is free, nothing has happened, and the
    /// request is not counted at the server.
    pub(super) fn connect(
        &mut self,
        (key, leg): (Key, u32),
        (pool, index): (&PoolRuntime, u32),
        handed: Option<Box<Handed>>,
        reuse: bool,
    ) -> Result<(), PortLack> {
        let counted = CountedIn(&pool.servers[index as usize]);
        let server = pool.servers[index as usize].clone();
        let address = self.clients.get(key).map(|client| client.connection.client_address());
        self.host.reached(&self.counters, "connect", address);
        let bucket = self.clients.get(key).and_then(|client| Some(client.replicated_state.as_ref()?.bucket));
        let idle = if reuse { self.take_idle(server.id, bucket, pool.tls_fingerprint) } else { None };
        if let Some(idle) = idle {
            // No relayed handshake uses an idle connection.
            drop(handed.and_then(|handed| handed.on_connected(self.now)));
            server.handle_request(self.now);
            self.reuse((key, leg), idle, index, counted);
            return Ok(());
        }
        let to = server.addresses[0];
        let source = self.clients.get(key).and_then(|client| client.connection.leg_source(to.ip()));
        let dialled = match (source, &self.cluster, bucket) {
            (Some(Ok(client)), ..) => self.host.connect_as(client, to),
            (Some(Err(error)), ..) => Err(io::Error::new(io::ErrorKind::AddrNotAvailable, error)),
            (None, Some(cluster), Some(bucket)) => cluster.connect_server(bucket, to),
            _ => self.host.connect(to),
        };
        if let Err(error) = &dialled
            && NoFreePort::is_cause(error)
            && pool.queue_max > 0
        {
            counted.stays();
            let lack = PortLack { server: server.id, bucket, why: error.to_string() };
            return Err(self.leave_server((pool, index), handed, lack));
        }
        server.handle_request(self.now);
        self.counters.connects.add(1);
        self.with(key, |connection, io| connection.handle_leg_connecting(io.now, leg, index));
        match dialled {
            Ok(socket) => {
                self.keep_alive(&socket, pool.response);
                let upstream = Upstream {
                    index,
                    owner: Some((key, leg)),
                    used_since: self.now,
                    tls_fingerprint: pool.tls_fingerprint,
                    connecting: true,
                    handed,
                    ..Upstream::new(socket, server)
                };
                counted.stays();
                self.add_upstream(key, upstream);
            }
            Err(error) => {
                if let Some(handed) = handed {
                    handed.handle_lost();
                }
                drop(counted);
                if !self.host.is_of_machine(&error) {
                    self.note_failure(key, &server, Some(Micros(0)));
                }
                self.with(key, |connection, io| connection.handle_connect_failed(io, leg, &error));
                self.perform(key);
            }
        }
        Ok(())
    }

    /// Takes back the choice of a server to which no port is free.
    fn leave_server(
        &mut self,
        (pool, index): (&PoolRuntime, u32),
        handed: Option<Box<Handed>>,
        lack: PortLack,
    ) -> PortLack {
        if let Some(handed) = handed {
            handed.handle_lost();
        }
        drop(CountedIn(&pool.servers[index as usize]));
        lack
    }
}
