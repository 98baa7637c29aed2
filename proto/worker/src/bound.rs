//! Server connections bound to one client connection, because their server authenticated it (NTLM, Negotiate).
//!
//! The state machine decides which ones ([`evergate_connection::Effect::Retain`]). Between two requests such a
//! connection stays with its client, outside of the pool, and counts at its server. It is closed when its server ends
//! it, is drained or down, or when the newest configuration would not make it the same way.

use crate::dial;
use crate::host::Host;
use crate::slab::{Key, Source};
use crate::upstreams::{Unsettled, is_quiet};
use crate::worker::Worker;
use evergate_base::net::Event;

impl<H: Host> Worker<H> {
    /// Whether this leg is idle and bound to the connection.
    pub(super) fn is_bound_idle(&self, client: Key, leg: u32) -> bool {
        self.clients.get(client).is_some_and(|client| client.connection.bound_leg() == Some(leg))
    }

    /// Handles an event of an idle bound leg, which can only end.
    pub(super) fn bound_event(&mut self, client: Key, event: Event) {
        if (event.readable || event.ended || event.broken) && !self.is_frozen(client) {
            self.lose_bound(client);
            self.pump(client);
        }
    }

    pub(super) fn lose_bound(&mut self, client: Key) {
        self.with(client, |connection, io| connection.handle_bound_lost(io));
        self.perform(client);
    }

    /// Keeps the server connection for this client after the response.
    pub(super) fn retain(&mut self, client_key: Key, leg: u32) {
        let now = self.now;
        let Some(client) = self.clients.get_mut(client_key) else { return };
        (client.pipes, client.server_fin_waits) = (None, false);
        let Some(key) = client.upstream else { return };
        let Some(upstream) = self.upstreams.get_mut(key) else { return };
        if upstream.owner != Some((client_key, leg)) {
            return;
        }
        upstream.note_end(now);
        let quiet = !upstream.ended && (!upstream.readable || is_quiet(upstream));
        upstream.readable = false;
        if let (Some(gated), Some(cluster)) = (&mut upstream.gated, &mut self.cluster) {
            cluster.on_pooled(key, gated, now);
        }
        self.pool.bound.insert(key);
        self.restore_upstream_interest(key);
        if !quiet {
            self.lose_bound(client_key);
        }
    }

    /// Records the bound leg, if any, of a connection that another node or process served before.
    pub(super) fn note_bound(&mut self, client_key: Key) {
        let Some(client) = self.clients.get(client_key) else { return };
        let bound = client.connection.bound_leg().and(client.upstream);
        self.pool.bound.extend(bound);
    }

    /// Uses the idle bound leg for the client's next request, or reports to the connection that it is lost.
    pub(super) fn dial_bound(&mut self, client_key: Key, leg: u32, (pool, server): (u32, u32)) {
        if self.clients.get(client_key).is_none_or(|client| client.connection.bound_leg().is_none()) {
            return; // the leg was lost when it was retained, and the connection dials again
        }
        if !self.is_bound_fit(client_key, pool, server) {
            return self.lose_bound(client_key);
        }
        let now = self.now;
        let Some(client) = self.clients.get_mut(client_key) else { return };
        let Some(key) = client.upstream else { return };
        let Some(upstream) = self.upstreams.get_mut(key) else { return };
        if let (Some((_, before)), Some(gated)) = (upstream.owner, &upstream.gated)
            && client.connection.is_unsettled(before)
        {
            let received = gated.received();
            upstream.unsettled = Some(Unsettled { client: client_key, leg: before, received, ends: false });
            client.unsettled = Some(key);
        }
        upstream.owner = Some((client_key, leg));
        upstream.index = server;
        upstream.used_since = now;
        upstream.answered_at = None;
        upstream.reused = true;
        upstream.server.handle_request(now);
        self.counters.reused.add(1);
        self.pool.bound.remove(&key);
        self.gate_server(client_key, key, leg);
        self.with(client_key, |connection, io| connection.handle_leg_open(io, leg, server, None));
        self.perform(client_key);
    }

    /// Whether the idle bound leg leads to this server as a new connection would, and has received nothing.
    fn is_bound_fit(&mut self, client: Key, pool: u32, server: u32) -> bool {
        let Some(client) = self.clients.get_mut(client) else { return false };
        let generation = client.connection.snapshot().generation;
        let upstream = client.upstream;
        let runtime = self.current_of(generation).and_then(|index| {
            let pool = self.current[index].generation.pools.get(pool as usize)?;
            Some((pool.servers.get(server as usize)?.clone(), pool.tls_fingerprint))
        });
        let Some((known, tls_fingerprint)) = runtime else { return false };
        let Some(upstream) = upstream.and_then(|key| self.upstreams.get_mut(key)) else { return false };
        let same = known.id == upstream.server.id && upstream.tls_fingerprint == tls_fingerprint;
        same && known.is_up() && !upstream.ended && !upstream.broken && is_quiet(upstream)
    }

    /// Closes idle bound legs whose server takes no further request, or that the newest configuration would not make
    /// the same way.
    pub(super) fn tend_bound(&mut self) {
        let is_over = |key: &&Key| {
            let Some(upstream) = self.upstreams.get(**key) else { return true };
            let todays = self.current.last().is_none_or(|current| dial::idle_of(current, upstream).is_some());
            !(upstream.server.is_up() && todays)
        };
        let over: Vec<Key> = self.pool.bound.iter().filter(is_over).copied().collect();
        for key in over {
            let owner = self.upstreams.get(key).and_then(|upstream| upstream.owner);
            let client = owner.map(|(client, _)| client).filter(|client| !self.is_frozen(*client));
            if let Some(client) = client {
                self.guarded(Some(Source::Client(client)), |worker| {
                    worker.lose_bound(client);
                    worker.pump(client);
                });
            }
        }
        self.counters.bound.set(self.pool.bound.len() as u64);
    }
}
