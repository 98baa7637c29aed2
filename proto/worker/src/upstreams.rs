//! Server connections: connecting, in use, idle.

use crate::dial;
use crate::host::{Host, Slot, Socket};
use crate::pools::Handed;
use crate::pools::ServerRuntime;
use crate::queue::Turn;
use crate::replication::GatedLeg;
use crate::slab::{Key, Source};
use crate::worker::Worker;
use evergate_base::Micros;
use evergate_base::net::{Event, Transfer};
use evergate_connection::{Failure, ServerHint};
use evergate_membership::Bucket;
use evergate_tls::Records;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Server connections that no request uses.
#[derive(Default)]
pub(crate) struct IdlePool {
    /// By server, and in a cluster by bucket.
    pub(crate) idle: IdleMap,
    /// Those that are bound to one client connection each.
    pub(crate) bound: BTreeSet<Key>,
}

/// Idle server connections by server, and in a cluster by bucket.
pub(crate) type IdleMap = BTreeMap<(u64, Option<Bucket>), Vec<Key>>;

/// One server connection.
pub(super) struct Upstream<H: Host> {
    pub(super) socket: H::Socket,
    pub(super) server: Arc<ServerRuntime>,
    /// Index in its pool, for the connection that uses it.
    pub(super) index: u32,
    /// The client connection that uses it, and its leg.
    pub(super) owner: Option<(Key, u32)>,
    /// When its owner got it.
    pub(super) used_since: Micros,
    /// When its server began to answer.
    pub(super) answered_at: Option<Micros>,
    /// Fingerprint of its TLS settings: [`crate::pools::PoolRuntime::tls_fingerprint`].
    pub(super) tls_fingerprint: u64,
    pub(super) connecting: bool,
    /// It has carried other requests.
    pub(super) reused: bool,
    /// In a pool with session balancing: the choice, while connecting, and until a relayed handshake is over.
    pub(super) handed: Option<Box<Handed>>,
    pub(super) readable: bool,
    pub(super) writable: bool,
    pub(super) ended: bool,
    /// Read interest is off: the input could not be forwarded.
    pub(super) read_paused: bool,
    /// The connection broke, and this is not handled yet.
    pub(super) broken: bool,
    pub(super) idle_until: Micros,
    pub(super) records: Option<Box<Records>>,
    /// In a cluster: the gated leg, whose acknowledgements wait for the backups.
    pub(super) gated: Option<Box<GatedLeg<H>>>,
    /// The leg was released before the backups had the end of its last response.
    pub(super) unsettled: Option<Unsettled>,
    /// Released with nothing in flight, and not reusable.
    pub(super) spent: bool,
}

/// A released server connection whose last response the backups lack. Until they have it, they need the connection open
/// and the response unacknowledged.
pub(super) struct Unsettled {
    /// The connection that had the leg.
    pub(super) client: Key,
    pub(super) leg: u32,
    /// Sequence numbers of the first byte received on that leg, and after the last one.
    pub(super) received: (u32, u32),
    /// Whether it is closed then.
    pub(super) ends: bool,
}

impl<H: Host> Upstream<H> {
    /// A server connection without an owner.
    pub(super) fn new(socket: H::Socket, server: Arc<ServerRuntime>) -> Upstream<H> {
        Upstream {
            socket,
            server,
            index: 0,
            owner: None,
            used_since: Micros(0),
            answered_at: None,
            tls_fingerprint: 0,
            connecting: false,
            reused: false,
            handed: None,
            readable: false,
            writable: false,
            ended: false,
            read_paused: false,
            broken: false,
            idle_until: Micros(0),
            records: None,
            gated: None,
            unsettled: None,
            spent: false,
        }
    }

    /// The server has sent something.
    pub(super) fn note_answer(&mut self, now: Micros) {
        if self.answered_at.is_none() {
            self.answered_at = Some(now);
            self.server.handle_response(now.since(self.used_since), true, now);
        }
    }

    /// The request that it carried is over.
    pub(super) fn note_end(&self, now: Micros) {
        if self.answered_at.is_none() {
            self.server.handle_response(now.since(self.used_since), false, now);
        }
    }

    pub(super) fn descriptor(&self) -> i32 {
        self.socket.descriptor()
    }
}

/// A request that waits for a server with room, or for a local port.
pub(super) struct Waiting {
    pub(super) client: Key,
    pub(super) leg: u32,
    pub(super) pool: u32,
    pub(super) hint: ServerHint,
    /// The server that the request waits for; any of the pool if there is none.
    pub(super) wish: Option<u32>,
    pub(super) tried: Vec<u32>,
    /// Whether a connection that carried other requests may be used.
    pub(super) reuse: bool,
    /// Its place by service class: lower ones leave first.
    pub(super) rank: usize,
    pub(super) turn: Turn,
}

impl<H: Host> Worker<H> {
    pub(super) fn upstream_event(&mut self, key: Key, event: Event) {
        let Some(upstream) = self.upstreams.get_mut(key) else { return };
        upstream.readable |= event.readable;
        upstream.writable |= event.writable;
        upstream.ended |= event.ended;
        upstream.broken |= event.broken;
        let Some((client, leg)) = upstream.owner else {
            // An idle connection can only end.
            if event.readable {
                self.drop_upstream(key);
            }
            return;
        };
        if self.is_bound_idle(client, leg) {
            return self.bound_event(client, event);
        }
        self.check_server(client);
        self.pump(client);
    }

    /// Handles the state of a connection's server connection. Not during a handoff of its bucket: the next owner
    /// connects again, or this is done when the handoff is cancelled.
    pub(super) fn check_server(&mut self, client: Key) {
        let Some(key) = self.clients.get(client).and_then(|client| client.upstream) else { return };
        if self.is_frozen(client) {
            return;
        }
        let Some(upstream) = self.upstreams.get_mut(key) else { return };
        let Some((_, leg)) = upstream.owner.filter(|(owner, _)| *owner == client) else { return };
        let broken = std::mem::take(&mut upstream.broken);
        if upstream.connecting && (upstream.writable || broken) {
            // Readiness without an error is the success; a system call is saved.
            let connected = if broken { upstream.socket.connect_error() } else { Ok(()) };
            match connected {
                Ok(()) => {
                    upstream.connecting = false;
                    let now = self.now;
                    upstream.handed = upstream.handed.take().and_then(|handed| handed.on_connected(now));
                    let index = upstream.index;
                    self.gate_server(client, key, leg);
                    self.with(client, |connection, io| connection.handle_leg_open(io, leg, index, None));
                }
                Err(error) => {
                    self.with(client, |connection, io| connection.handle_connect_failed(io, leg, &error));
                }
            }
            self.perform(client);
        } else if broken
            && self.clients.get(client).is_some_and(|client| client.connection.has_server_ended())
        {
            self.server_write_broke(client);
        }
    }

    /// Counts a failure of this leg's server, unless it just closed an idle connection while a request was sent on it.
    pub(super) fn count_failure(&mut self, client: Key, leg: u32) {
        let upstream = self.clients.get(client).and_then(|client| self.upstreams.get(client.upstream?));
        let Some(upstream) = upstream.filter(|upstream| upstream.owner == Some((client, leg))) else {
            return;
        };
        let stale = upstream.reused && upstream.ended && upstream.answered_at.is_none();
        if !stale {
            let unreachable = upstream.connecting.then(|| self.now.since(upstream.used_since));
            let server = upstream.server.clone();
            self.note_failure(client, &server, unreachable);
        }
    }

    /// Records a server's failure; `unreachable`: how long a connection to it was tried.
    pub(super) fn note_failure(&mut self, client: Key, server: &ServerRuntime, unreachable: Option<Micros>) {
        server.failures.fetch_add(1, Ordering::Relaxed);
        self.counters.server_failures.add(1);
        let Some(took) = unreachable else { return };
        let generation = self.clients.get(client).map(|client| client.connection.snapshot().generation);
        let pools = generation
            .and_then(|generation| self.current_of(generation))
            .map(|index| &self.current[index].generation.pools);
        let pool = pools.and_then(|pools| {
            pools.iter().find(|pool| pool.servers.iter().any(|known| known.id == server.id))
        });
        let slowest = pool.and_then(|pool| pool.servers.iter().map(|known| known.aged_us(self.now)).max());
        server.handle_unreachable(took, slowest.unwrap_or_default(), self.now);
    }

    /// Releases the server connection of a connection: it goes to the pool if clean, else it is closed.
    pub(super) fn release(&mut self, client_key: Key, leg: u32, clean: bool, records: Option<Box<Records>>) {
        let Some(client) = self.clients.get_mut(client_key) else { return };
        client.pipes = None;
        client.server_fin_waits = false;
        let generation = client.connection.snapshot().generation;
        let Some(key) = client.upstream.take() else { return self.stop_waiting(client_key) };
        let Some(upstream) = self.upstreams.get_mut(key) else { return };
        if !upstream.connecting {
            upstream.note_end(self.now);
        }
        let mut quiet = !upstream.readable || is_quiet(upstream);
        let ends = upstream.spent;
        let unsettled = client.connection.is_unsettled(leg);
        if (clean || (ends && unsettled))
            && let (Some(gated), Some(cluster)) = (&mut upstream.gated, &mut self.cluster)
        {
            let whole = cluster.on_pooled(key, gated, self.now);
            if unsettled {
                let received = gated.received();
                upstream.unsettled = Some(Unsettled { client: client_key, leg, received, ends });
                client.unsettled = Some(key);
            } else {
                quiet &= whole;
            }
        }
        let bucket = client.replicated_state.as_ref().map(|replicated_state| replicated_state.bucket);
        upstream.records = records;
        match clean && quiet {
            true => self.keep_idle(key, bucket),
            false => self.drop_upstream(key),
        }
        self.serve_waiting(generation);
    }

    /// Releases a server connection with nothing in flight that must not be used again.
    pub(super) fn release_spent(&mut self, client_key: Key, leg: u32, records: Option<Box<Records>>) {
        let upstream = self.clients.get(client_key).and_then(|client| client.upstream);
        if let Some(upstream) = upstream.and_then(|key| self.upstreams.get_mut(key)) {
            upstream.spent = !upstream.ended;
        }
        self.release(client_key, leg, false, records);
    }

    /// The connection is over: its server connection goes to the pool if `clean`, else it is closed in order, once the
    /// backups have the end.
    pub(super) fn release_after(&mut self, client_key: Key, clean: bool, records: Option<Box<Records>>) {
        if let Some(client) = self.clients.get_mut(client_key) {
            let generation = client.connection.snapshot().generation;
            client.left = Some(Left { generation, clean, records });
        }
    }

    /// Handles the server connection of a closed connection whose end was sent to the backups.
    pub(super) fn pool_left(&mut self, key: Key, bucket: Option<Bucket>, left: Left) {
        let now = self.now;
        let Some(upstream) = self.upstreams.get_mut(key) else { return };
        upstream.note_end(now);
        upstream.records = left.records;
        let quiet = left.clean && (!upstream.readable || is_quiet(upstream));
        match (&mut upstream.gated, &mut self.cluster, quiet) {
            (Some(gated), Some(cluster), true) => {
                cluster.on_pooled(key, gated, now);
                gated.allow_ack(gated.received().1, now); // its last response is no longer needed
                self.keep_idle(key, bucket);
            }
            _ => self.drop_upstream(key),
        }
        self.serve_waiting(left.generation);
    }

    /// Puts the server connection into the pool, if there is room.
    fn keep_idle(&mut self, key: Key, bucket: Option<Bucket>) {
        let Some(upstream) = self.upstreams.get_mut(key) else { return };
        let idle = self.pool.idle.entry((upstream.server.id, bucket)).or_default();
        let settings = self.current.last().and_then(|current| dial::idle_of(current, upstream));
        let (idle_max, idle_span) = settings.unwrap_or((0, Micros(0)));
        if upstream.ended || upstream.connecting || idle.len() >= idle_max {
            return self.drop_upstream(key);
        }
        upstream.server.leave();
        upstream.owner = None;
        upstream.readable = false;
        upstream.idle_until = self.now + idle_span;
        idle.push(key);
        self.restore_upstream_interest(key);
    }

    /// Adds the connection's server connection. False when no event would arrive for it: then it is closed, and its leg
    /// has failed.
    pub(super) fn add_upstream(&mut self, client_key: Key, upstream: Upstream<H>) -> bool {
        let (fd, connecting, owner) = (upstream.descriptor(), upstream.connecting, upstream.owner);
        let key = self.upstreams.insert(upstream);
        let Err(error) = self.register(fd, Source::Upstream(key)) else {
            if let Some(client) = self.clients.get_mut(client_key) {
                client.upstream = Some(key);
            }
            self.record_audited_leg(client_key, key);
            return true;
        };
        self.drop_upstream(key);
        let Some((_, leg)) = owner else { return false };
        self.with(client_key, |connection, io| match connecting {
            true => connection.handle_connect_failed(io, leg, &error),
            false => connection.handle_leg_failed(io, leg, Failure::Lost),
        });
        self.perform(client_key);
        false
    }

    /// The backups have the end of the last response of a released leg: input on it up to `position` may be
    /// acknowledged. Returns whether there is such a leg.
    pub(super) fn finish_upstream(&mut self, client_key: Key, leg: u32, position: u64) -> bool {
        let Some(client) = self.clients.get_mut(client_key) else { return false };
        let Some(key) = client.unsettled else { return false };
        let Some(upstream) = self.upstreams.get_mut(key) else { return false };
        let Some(Unsettled { client: whose, leg: known, received: (first, end), ends }) = &upstream.unsettled
        else {
            return false;
        };
        if (*whose, *known) != (client_key, leg) {
            return false;
        }
        let (settled, ends) = (first.wrapping_add(position as u32), *ends);
        let whole = settled.wrapping_sub(*end) as i32 >= 0;
        if let Some(gated) = &mut upstream.gated {
            gated.allow_ack(settled, self.now);
        }
        if let Some(cluster) = self.cluster.as_mut().filter(|_| upstream.owner.is_none()) {
            cluster.schedule_pooled_ack(key, self.now);
        }
        if whole {
            upstream.unsettled = None;
            client.unsettled = None;
            if ends {
                self.drop_upstream(key);
            }
        }
        true
    }

    /// Handles a released leg whose connection will send the backups nothing more about its last response. A pooled one
    /// is closed, unless the backups were `notified` that the connection is over.
    pub(super) fn end_unsettled(&mut self, client_key: Key, key: Key, notified: bool) {
        let Some(upstream) = self.upstreams.get_mut(key) else { return };
        let Some(unsettled) = upstream.unsettled.take_if(|unsettled| unsettled.client == client_key) else {
            return;
        };
        if unsettled.ends || (upstream.owner.is_none() && !notified) {
            return self.drop_upstream(key);
        }
        if let Some(gated) = &mut upstream.gated {
            gated.allow_ack(unsettled.received.1, self.now); // the connection that needed it is over
        }
        if let Some(cluster) = self.cluster.as_mut().filter(|_| upstream.owner.is_none()) {
            cluster.schedule_pooled_ack(key, self.now);
        }
    }

    /// Closes a server connection; an unsettled one when it is settled.
    pub(super) fn drop_upstream(&mut self, key: Key) {
        if let Some(upstream) = self.upstreams.get_mut(key)
            && let Some(unsettled) = &mut upstream.unsettled
        {
            unsettled.ends = true;
            upstream.ended = true; // no request gets it from the pool
            if upstream.owner.take().is_some() {
                upstream.server.leave(); // frees room for the next request
            }
            return;
        }
        self.pool.bound.remove(&key);
        let Some(mut upstream) = self.upstreams.remove(key) else { return };
        let mut is_idle = false;
        match upstream.owner {
            Some(_) => upstream.server.leave(),
            None => {
                for (_, idle) in
                    self.pool.idle.iter_mut().filter(|((server, _), _)| *server == upstream.server.id)
                {
                    let before = idle.len();
                    idle.retain(|other| *other != key);
                    is_idle |= idle.len() < before;
                }
            }
        }
        if let Some(handed) = upstream.handed.take() {
            handed.handle_lost();
        }
        if upstream.connecting && self.cluster.is_some() {
            // Its handshake may be over in the kernel and the gate; the backups do not have the leg.
            let server = upstream.server.addresses[0];
            if let Ok(local) = upstream.socket.local_address() {
                self.reset_unreplicated(upstream.socket, local, server);
            }
            return;
        }
        if let Some(gated) = &upstream.gated {
            gated.slot.open(); // before the socket closes: a RST is sent once, and a FIN is repeated late
        }
        if let Some(records) = upstream.records.take() {
            upstream.close_tls(*records, self.now);
        }
        if upstream.gated.is_some() && (is_idle || upstream.spent) {
            // Nothing is in flight. A FIN would keep one of the bucket's few ports for a minute (TIME_WAIT), and wait
            // for an ACK that arrives at another node when the bucket moves.
            upstream.socket.reset_on_close();
        }
        drop(upstream.socket);
        if let Some(gated) = upstream.gated {
            self.end_gated(*gated);
        }
    }

    /// The newest idle connection to a server that has received nothing. In a cluster connections are shared only
    /// within a bucket: a server leg moves with the bucket of its port.
    pub(super) fn take_idle(
        &mut self,
        server: u64,
        bucket: Option<Bucket>,
        tls_fingerprint: u64,
    ) -> Option<Key> {
        while let Some(idle) = self.pool.idle.get_mut(&(server, bucket))
            && let Some(key) = idle.pop()
        {
            if self.upstreams.get_mut(key).is_some_and(|upstream| upstream.tls_fingerprint != tls_fingerprint)
            {
                idle.push(key); // for requests that run under a newer configuration than this one
                return None;
            }
            let now = self.now;
            let is_fit = |upstream: &mut Upstream<H>| {
                !upstream.ended && !upstream.readable && upstream.idle_until > now
            };
            if self.upstreams.get_mut(key).is_some_and(is_fit) {
                return Some(key);
            }
            self.drop_upstream(key);
        }
        None
    }

    /// Records events of idle connections before any other event of the turn is handled: such a connection must not
    /// carry a request of the same turn.
    pub(super) fn note_idle(&mut self, event: Event) {
        if let Some(Source::Upstream(key)) = Source::of(event.token)
            && let Some(upstream) = self.upstreams.get_mut(key)
            && upstream.owner.is_none()
        {
            upstream.readable |= event.readable;
            upstream.ended |= event.ended;
        }
    }

    pub(super) fn expire_idle(&mut self) {
        let now = self.now;
        self.drop_idle(|_, upstream| upstream.idle_until <= now);
    }

    /// Closes idle connections that the newest configuration would not have made the same way, or at all.
    pub(super) fn drop_outdated(&mut self) {
        self.drop_idle(|worker, upstream| {
            worker.current.last().is_some_and(|current| dial::idle_of(current, upstream).is_none())
        });
        self.tend_bound();
    }

    /// Closes idle connections that belong to these buckets of a cluster.
    pub(super) fn close_idle_of(&mut self, buckets: &BTreeSet<Bucket>) {
        let theirs = self
            .pool
            .idle
            .iter()
            .filter(|((_, bucket), _)| bucket.is_some_and(|bucket| buckets.contains(&bucket)));
        let keys: Vec<Key> = theirs.flat_map(|(_, keys)| keys).copied().collect();
        for key in keys {
            self.drop_upstream(key);
        }
        self.pool.idle.retain(|_, idle| !idle.is_empty());
    }

    /// Closes all idle connections: the worker ends.
    pub(super) fn close_idle(&mut self) {
        self.drop_idle(|_, _| true);
    }

    fn drop_idle(&mut self, is_over: impl Fn(&Worker<H>, &Upstream<H>) -> bool) {
        let over = |key: &Key| self.upstreams.get(*key).is_none_or(|upstream| is_over(self, upstream));
        let over: Vec<Key> = self.pool.idle.values().flatten().copied().filter(over).collect();
        for key in over {
            self.drop_upstream(key);
        }
        self.pool.idle.retain(|_, idle| !idle.is_empty());
    }
}

/// Server connection released by a closed connection, and its record layer.
pub(super) struct Left {
    generation: u64,
    /// Other requests may use it.
    clean: bool,
    records: Option<Box<Records>>,
}

/// Whether no input waits: data behind a response belongs to no request.
pub(super) fn is_quiet<H: Host>(upstream: &mut Upstream<H>) -> bool {
    matches!(upstream.socket.read(&mut [0]), Transfer::Blocked)
}
