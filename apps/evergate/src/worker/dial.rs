//! Choosing a server and getting a connection to it.

use super::slab::Key;
use super::upstream::{Upstream, Waiting};
use super::{Current, Worker};
use crate::runtime::PoolRuntime;
use crate::sessions::{Handed, Sessions};
use evergate_balance::{ServerLoad, bounded_server, source_key, source_server};
use evergate_base::Micros;
use evergate_connection::Hint;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// How many idle connections like this one are kept, and for how long, if the configuration has its server, and would connect
/// to it in the same way.
pub(super) fn idle_of(current: &Current, upstream: &Upstream) -> Option<(usize, Micros)> {
    let has = |pool: &PoolRuntime| pool.servers.iter().any(|known| known.id == upstream.server.id);
    let pools = &current.generation.pools;
    let pool = pools
        .iter()
        .find(|pool| has(pool))
        .filter(|pool| pool.tls_fingerprint == upstream.tls_fingerprint)?;
    Some((pool.idle_max, Micros(pool.idle.as_micros() as u64)))
}

/// What a policy may know of a server.
fn load_of(pool: &PoolRuntime, index: usize, eligible: bool, now: Micros) -> ServerLoad {
    pool.servers.get(index).map_or_else(ServerLoad::default, |server| ServerLoad {
        weight: server.weight.load(Ordering::Relaxed),
        outstanding: server.outstanding.load(Ordering::Relaxed),
        completion_us: server.completion_us(now),
        eligible,
    })
}

impl Worker {
    pub(super) fn dial(&mut self, key: Key, leg: u32, pool: u32, hint: Hint, tried: &[u32], reuse: bool) {
        let Some(client) = self.clients.get_mut(key) else { return };
        let generation = client.connection.snapshot().generation;
        let Some(index) = self.current_of(generation) else { return };
        let Some(pool_runtime) = self.current[index].generation.pools.get(pool as usize).cloned() else {
            return;
        };
        // Who comes after others waits behind them, although there may be room at the moment.
        let choice = match pool_runtime.line.is_empty() {
            true => self.find_server(index, key, pool, hint, tried),
            false => None,
        };
        match choice {
            Some((server, handed)) => self.connect(key, leg, &pool_runtime, server, handed, reuse),
            None => {
                let rank = self.rank(key, &pool_runtime);
                let place = pool_runtime.line.join(rank, &self.waker, &self.shared);
                let tried = tried.to_vec();
                let waiting = Waiting { client: key, leg, pool, hint, tried, reuse, rank, place };
                self.enqueue(index, &pool_runtime, waiting);
            }
        }
    }

    /// A server for a request, counted in, with what the choice was by session.
    fn find_server(
        &mut self,
        current: usize,
        key: Key,
        pool: u32,
        hint: Hint,
        tried: &[u32],
    ) -> Option<(u32, Option<Box<Handed>>)> {
        let runtime = self.current[current].generation.pools.get(pool as usize)?.clone();
        match &runtime.sessions {
            Some(sessions) => self.choose_by_session(key, &runtime, sessions, tried),
            None => self.choose(current, pool as usize, &runtime, hint, tried).map(|server| (server, None)),
        }
    }

    /// Where a request belongs in the queue by its service class.
    fn rank(&mut self, key: Key, pool: &PoolRuntime) -> usize {
        let classes = &pool.queue_classes;
        if classes.is_empty() {
            return 0;
        }
        let class = self.clients.get(key).and_then(|client| client.connection.service_class());
        class.and_then(|class| classes.iter().position(|known| known == class)).unwrap_or(classes.len())
    }

    /// Lets a request wait behind those of its class and of better ones. A full queue loses its last one, if that is of a
    /// lesser class.
    fn enqueue(&mut self, index: usize, pool: &PoolRuntime, newcomer: Waiting) {
        let (key, leg) = (newcomer.client, newcomer.leg);
        if !pool.servers.iter().any(|server| server.is_up()) {
            pool.unavailable.fetch_add(1, Ordering::Relaxed);
            return self.unavailable(key, leg, "no_server_up");
        }
        let last = self.current[index].waiting[newcomer.pool as usize].back().map(|last| last.client);
        let stays = last.is_some_and(|last| self.is_frozen(last)); // it is the next owner's
        let queue = &mut self.current[index].waiting[newcomer.pool as usize];
        let full = queue.len() >= pool.queue_max;
        let outranked = queue.pop_back_if(|last| full && !stays && last.rank > newcomer.rank);
        if full && outranked.is_none() {
            pool.unavailable.fetch_add(1, Ordering::Relaxed);
            return self.unavailable(key, leg, "queue_full");
        }
        let place = queue.partition_point(|other| other.rank <= newcomer.rank);
        queue.insert(place, newcomer);
        let until = self.now + Micros(pool.queue_timeout.as_micros() as u64);
        self.with(key, |connection, io| connection.handle_leg_queued(io.now, leg, until));
        match outranked {
            Some(last) => {
                pool.unavailable.fetch_add(1, Ordering::Relaxed);
                self.unavailable(last.client, last.leg, "queue_outranked");
                self.file(last.client);
            }
            None => self.counters.queued.add(1),
        }
    }

    fn unavailable(&mut self, key: Key, leg: u32, reason: &'static str) {
        self.with(key, |connection, io| connection.handle_unavailable(io, leg, reason));
        self.perform(key);
    }

    /// A server by hint or policy, counted in; servers tried before only when no other is left.
    fn choose(
        &mut self,
        current: usize,
        pool: usize,
        runtime: &PoolRuntime,
        hint: Hint,
        tried: &[u32],
    ) -> Option<u32> {
        let eligible =
            |index: usize| !tried.contains(&(index as u32)) && runtime.servers[index].is_eligible();
        let hinted = match hint {
            Hint::Server(index) if (index as usize) < runtime.servers.len() && eligible(index as usize) => {
                Some(index as usize)
            }
            Hint::Source(ip) if runtime.sticky_load_percent_max.is_some() => {
                let percent = runtime.sticky_load_percent_max.unwrap_or(u32::MAX);
                let names: Vec<u64> = runtime.servers.iter().map(|server| server.name_hash).collect();
                let loads: Vec<ServerLoad> =
                    (0..names.len()).map(|i| load_of(runtime, i, eligible(i), self.now)).collect();
                bounded_server(source_key(ip), &names, &loads, percent)
            }
            Hint::Source(ip) => {
                let candidates: Vec<(u64, u32, bool)> = runtime
                    .servers
                    .iter()
                    .enumerate()
                    .map(|(index, server)| {
                        (server.name_hash, server.weight.load(Ordering::Relaxed), eligible(index))
                    })
                    .collect();
                source_server(ip, &candidates)
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

    /// A server by the client's session, counted in; servers tried before only when no other is left.
    fn choose_by_session(
        &mut self,
        key: Key,
        runtime: &PoolRuntime,
        sessions: &Arc<Sessions>,
        tried: &[u32],
    ) -> Option<(u32, Option<Box<Handed>>)> {
        let client = self.clients.get_mut(key)?.connection.client_address().ip();
        let random = self.next_random();
        let mut among = |may: &dyn Fn(u32) -> bool| {
            self.loads.clear();
            self.loads.extend((0..).zip(&runtime.servers).map(|(index, server)| {
                load_of(runtime, index as usize, may(index) && server.is_eligible(), self.now)
            }));
            sessions.choose(client, &runtime.servers, &self.loads, random)
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

    /// Uses an idle connection to the server, or makes one.
    fn connect(
        &mut self,
        key: Key,
        leg: u32,
        pool: &PoolRuntime,
        index: u32,
        handed: Option<Box<Handed>>,
        reuse: bool,
    ) {
        let server = pool.servers[index as usize].clone();
        server.handle_request(self.now);
        let bucket = self.clients.get(key).and_then(|client| Some(client.mirroring.as_ref()?.bucket));
        let idle = if reuse {
            self.take_idle(server.id, bucket.map(|bucket| bucket.0), pool.tls_fingerprint)
        } else {
            None
        };
        if let Some(idle) = idle {
            self.counters.reused.add(1);
            if let Some(handed) = handed {
                handed.handle_taken();
            }
            let mut records = None;
            if let Some(upstream) = self.upstreams.get_mut(idle) {
                upstream.owner = Some((key, leg));
                upstream.index = index;
                upstream.used_since = self.now;
                upstream.answered_at = None;
                upstream.reused = true;
                records = upstream.records.take();
            }
            if let Some(client) = self.clients.get_mut(key) {
                client.upstream = Some(idle);
            }
            self.gate_server(key, idle, leg);
            self.with(key, |connection, io| connection.handle_leg_open(io, leg, index, records));
            return self.perform(key);
        }
        self.counters.connects.add(1);
        self.with(key, |connection, io| connection.handle_leg_connecting(io.now, leg, index));
        let to = server.addresses[0];
        let dialled = match (&self.cluster, bucket) {
            (Some(cluster), Some(bucket)) => cluster.connect_server(bucket, to),
            _ => evergate_sys::connect(to),
        };
        match dialled {
            Ok(socket) => {
                let upstream = Upstream {
                    socket,
                    server,
                    index,
                    owner: Some((key, leg)),
                    used_since: self.now,
                    answered_at: None,
                    tls_fingerprint: pool.tls_fingerprint,
                    connecting: true,
                    reused: false,
                    handed,
                    readable: false,
                    writable: false,
                    ended: false,
                    muted: false,
                    broken: false,
                    idle_until: Micros(0),
                    records: None,
                    gated: None,
                    unsettled: None,
                };
                self.add_upstream(key, upstream);
            }
            Err(error) => {
                if let Some(handed) = handed {
                    handed.handle_lost();
                }
                server.leave();
                if !crate::health::is_of_machine(&error) {
                    self.note_failure(key, &server, Some(Micros(0)));
                }
                self.with(key, |connection, io| connection.handle_connect_failed(io, leg, &error));
                self.perform(key);
            }
        }
    }

    /// Requests that waited may go where there is room now, those of other workers too.
    pub(super) fn serve_waiting(&mut self, generation: u64) {
        if self.shared.waiting.load(Ordering::Relaxed) == 0 || self.is_sweeping() {
            return;
        }
        let Some(index) = self.current_of(generation) else { return };
        for pool in 0..self.current[index].waiting.len() {
            while self.serve_first(index, pool) {}
        }
    }

    /// The first of this worker's requests that wait for a pool gets a server, if there is room and it is its turn; whether
    /// there may be more to do.
    fn serve_first(&mut self, index: usize, pool: usize) -> bool {
        let runtime = self.current[index].generation.pools[pool].clone();
        if runtime.line.is_empty() || !runtime.servers.iter().any(|server| server.is_eligible()) {
            return false;
        }
        let first = self.current[index].waiting[pool].front();
        if !runtime.line.is_turn_of(first.map(|waiting| &waiting.place), self.now) {
            return false;
        }
        if first.is_some_and(|waiting| self.is_frozen(waiting.client)) {
            return false; // the next owner asks for a server, or this one when the move is called off: a moment
        }
        let Some(first) = self.current[index].waiting[pool].pop_front() else { return false };
        let (key, leg) = (first.client, first.leg);
        if self.clients.get_mut(key).and_then(|client| client.connection.leg_id()) != Some(leg) {
            self.counters.queued.sub(1);
            return true; // it has given up
        }
        let Some((server, handed)) = self.find_server(index, key, first.pool, first.hint, &first.tried)
        else {
            self.current[index].waiting[pool].push_front(first);
            return false;
        };
        self.counters.queued.sub(1);
        let reuse = first.reuse;
        drop(first); // the next one's turn
        self.connect(key, leg, &runtime, server, handed, reuse);
        self.file(key); // it has another deadline now
        self.put_again(key); // what its client has said meanwhile was left in the socket
        true
    }

    /// A connection that gave up its leg waits no longer.
    pub(super) fn stop_waiting(&mut self, key: Key) {
        let mut gone = 0;
        for current in &mut self.current {
            for queue in &mut current.waiting {
                let before = queue.len();
                queue.retain(|waiting| waiting.client != key);
                gone += before - queue.len();
            }
        }
        if gone > 0 {
            self.counters.queued.sub(gone as u64);
        }
    }

    /// A request has waited for a server for as long as it may.
    pub(super) fn count_unserved(&mut self, key: Key) {
        for current in &self.current {
            for (queue, pool) in current.waiting.iter().zip(&current.generation.pools) {
                if queue.iter().any(|waiting| waiting.client == key) {
                    pool.unavailable.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    }

    /// Requests of all generations that waited may go where there is room now: a server may have come up.
    pub(super) fn serve_all_waiting(&mut self) {
        let generations: Vec<u64> =
            self.current.iter().map(|current| current.generation.snapshot.generation).collect();
        for generation in generations {
            self.serve_waiting(generation);
        }
    }
}
