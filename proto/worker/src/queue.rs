//! Requests that wait for a server: any of their pool, or the one that knows their client.
//!
//! In a cluster a request may also wait for a local port: those of its bucket to one server are few. Such a request has
//! its place in the queue, with the queue's bounds, but no turn among the requests of all workers, because a bucket
//! belongs to one worker. The worker tries again and again, the oldest request of a bucket and server first.

use crate::dial::PortLack;
use crate::host::Host;
use crate::pools::{PoolRuntime, ServerRuntime, WaitTicket};
use crate::slab::{Key, Source};
use crate::upstreams::Waiting;
use crate::worker::Worker;
use evergate_base::Micros;
use evergate_membership::Bucket;
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

/// Time between two tries of a request to get a port.
pub(super) const PORT_RETRY: Micros = Micros::from_ms(20);
/// Most requests that try to get a port in one pass over the queues.
const PORT_TRIES: usize = 16;

/// What a waiting request waits for.
pub(super) enum Turn {
    /// A server with room: the request's place among those of all workers.
    Room(WaitTicket),
    /// A free port of the bucket to this server, or another server; the next try is due at this time.
    Port { server: u64, bucket: Option<Bucket>, due: Micros },
}

impl Turn {
    fn place(&self) -> Option<&WaitTicket> {
        match self {
            Turn::Room(place) => Some(place),
            Turn::Port { .. } => None,
        }
    }
}

impl<H: Host> Worker<H> {
    /// Position of a request in the queue by its service class.
    pub(super) fn rank(&mut self, key: Key, pool: &PoolRuntime) -> usize {
        let classes = &pool.queue_classes;
        if classes.is_empty() {
            return 0;
        }
        let class = self.clients.get(key).and_then(|client| client.connection.service_class());
        class.and_then(|class| classes.iter().position(|known| known == class)).unwrap_or(classes.len())
    }

    /// Queues a request behind those of its class and of better ones. A full queue loses its last request, if that is
    /// of a lesser class.
    pub(super) fn enqueue(&mut self, index: usize, pool: &PoolRuntime, newcomer: Waiting) {
        let (key, leg) = (newcomer.client, newcomer.leg);
        if !pool.servers.iter().any(|server| server.is_up()) {
            pool.unavailable.fetch_add(1, Ordering::Relaxed);
            return self.unavailable(key, leg, "no_server_up");
        }
        let last = self.current[index].waiting[newcomer.pool as usize].back().map(|last| last.client);
        let stays = last.is_some_and(|last| self.is_frozen(last)); // the next owner serves it
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
                self.schedule(last.client);
            }
            None => self.counters.queued.add(1),
        }
    }

    fn unavailable(&mut self, key: Key, leg: u32, reason: &'static str) {
        self.with(key, |connection, io| connection.handle_unavailable(io, leg, reason));
        self.perform(key);
    }

    /// Serves waiting requests where there is room now, those of other workers too.
    pub(super) fn serve_waiting(&mut self, generation: u64) {
        if self.is_sweeping() {
            return;
        }
        let Some(index) = self.current_of(generation) else { return };
        if self.shared.waiting.load(Ordering::Relaxed) > 0 {
            for pool in 0..self.current[index].waiting.len() {
                while self.serve_first(index, pool) {}
            }
        }
        if self.counters.queued.get() > 0 {
            self.retry_ports(index);
        }
    }

    /// Tries to get ports for the requests that wait for one. After a vain try the later requests of the same bucket
    /// and server are not tried: the first one gets the next port.
    fn retry_ports(&mut self, index: usize) {
        let (now, mut tries) = (self.now, PORT_TRIES);
        for pool in 0..self.current[index].waiting.len() {
            let mut vain = BTreeSet::new();
            let mut at = 0;
            while let Some(waiting) = self.current[index].waiting[pool].get_mut(at) {
                at += 1;
                let Turn::Port { server, bucket, due } = &mut waiting.turn else { continue };
                let (key, of) = (waiting.client, (*server, *bucket));
                if *due > now || !vain.insert(of) {
                    vain.insert(of);
                    continue;
                }
                if tries == 0 {
                    return;
                }
                *due = now + PORT_RETRY;
                if self.is_frozen(key) {
                    continue; // the next owner dials, or this one when the handoff is cancelled
                }
                tries -= 1;
                let runtime = self.current[index].generation.pools[pool].clone();
                self.guarded(Some(Source::Client(key)), |worker| {
                    worker.serve_at(index, pool, &runtime, at - 1);
                });
                let stays = self.current[index].waiting[pool].get(at - 1);
                if stays.is_none_or(|waiting| waiting.client != key) {
                    vain.remove(&of);
                    at -= 1;
                }
            }
        }
    }

    /// Whether earlier requests of the client's bucket wait for a port to this server. They go first.
    pub(super) fn find_port_waiter(&self, key: Key, (pool, server): (&PoolRuntime, u32)) -> Option<PortLack> {
        if self.counters.queued.get() == 0 {
            return None;
        }
        let of =
            (pool.servers.get(server as usize)?.id, self.clients.get(key)?.replicated_state.as_ref()?.bucket);
        let is_such = |waiting: &Waiting| match &waiting.turn {
            Turn::Port { server, bucket, .. } => (*server, *bucket) == (of.0, Some(of.1)),
            Turn::Room(_) => false,
        };
        let mut queues = self.current.iter().flat_map(|current| &current.waiting);
        queues.any(|queue| queue.iter().any(is_such)).then(|| PortLack {
            server: of.0,
            bucket: Some(of.1),
            why: "earlier requests wait for a port to this server".to_owned(),
        })
    }

    /// Counts a request that begins to wait for a port; the log gets the cause if it waits in vain.
    pub(super) fn note_port_wait(&mut self, key: Key, leg: u32, lack: &PortLack) {
        if self.clients.get(key).is_some_and(|client| client.connection.is_leg_queued()) {
            self.counters.port_waits.add(1);
            self.with(key, |connection, _| connection.handle_port_awaited(leg, &lack.why));
        }
    }

    /// Dispatches this worker's first request that waits for a pool, if there is room and it is next in line. Returns
    /// whether more may follow.
    fn serve_first(&mut self, index: usize, pool: usize) -> bool {
        let runtime = self.current[index].generation.pools[pool].clone();
        if runtime.lines.is_empty() {
            return false;
        }
        self.drop_wishes(index, pool, &runtime);
        let has_room = |server: &ServerRuntime| server.is_eligible();
        for (server, wished) in (0..).zip(&runtime.servers) {
            if runtime.lines.goes_first(server)
                && has_room(wished)
                && self.serve_one(index, pool, &runtime, Some(server))
            {
                return true;
            }
        }
        runtime.servers.iter().any(|server| has_room(server)) && self.serve_one(index, pool, &runtime, None)
    }

    /// Requests that wait for a server that is down wait for any server instead.
    fn drop_wishes(&mut self, index: usize, pool: usize, runtime: &PoolRuntime) {
        for waiting in &mut self.current[index].waiting[pool] {
            let wished = waiting.wish.and_then(|wish| runtime.servers.get(wish as usize));
            if wished.is_some_and(|server| !server.is_up()) {
                waiting.wish = None;
                if let Turn::Room(place) = &mut waiting.turn {
                    *place = runtime.lines.join(None, waiting.rank, self.waker.clone(), &self.shared);
                }
            }
        }
    }

    /// Dispatches the first request that waits for this server, or for any.
    fn serve_one(&mut self, index: usize, pool: usize, runtime: &PoolRuntime, wish: Option<u32>) -> bool {
        let queue = &self.current[index].waiting[pool];
        let waits = |waiting: &Waiting| waiting.wish == wish && waiting.turn.place().is_some();
        let at = queue.iter().position(waits);
        let first = at.and_then(|at| queue.get(at));
        if !runtime.lines.is_turn_of(wish, first.and_then(|waiting| waiting.turn.place()), self.now) {
            return false;
        }
        if first.is_some_and(|waiting| self.is_frozen(waiting.client)) {
            return false; // the next owner dials, or this one when the handoff is cancelled
        }
        let (Some(at), Some(first)) = (at, first) else { return false };
        let key = first.client;
        let mut continues = true; // also after a panic
        self.guarded(Some(Source::Client(key)), |worker| {
            continues = worker.serve_at(index, pool, runtime, at);
        });
        continues
    }

    /// Dispatches the request at this place of the queue; false when there is no server for it. It stays in the queue
    /// until then.
    fn serve_at(&mut self, index: usize, pool: usize, runtime: &PoolRuntime, at: usize) -> bool {
        let Some(waiting) = self.current[index].waiting[pool].get(at) else { return false };
        let (key, leg, reuse) = (waiting.client, waiting.leg, waiting.reuse);
        let (of, wish, hint, tried) = (waiting.pool, waiting.wish, waiting.hint, waiting.tried.clone());
        let has_given_up = self.clients.get(key).and_then(|client| client.connection.leg_id()) != Some(leg);
        let found = match has_given_up {
            true => None,
            false => match self.find_wished(index, key, of, wish, hint, &tried) {
                None => return false,
                found => found,
            },
        };
        let Some(mut waiting) = self.current[index].waiting[pool].remove(at) else { return false };
        let waited = matches!(waiting.turn, Turn::Port { .. });
        self.counters.queued.sub(1);
        let Some((server, handed)) = found else { return true };
        match self.connect((key, leg), (runtime, server), handed, reuse) {
            Ok(()) => {
                self.schedule(key); // its deadline has changed
                self.mark_pending(key); // its input was left in the socket meanwhile
            }
            Err(lack) => {
                waiting.turn =
                    Turn::Port { server: lack.server, bucket: lack.bucket, due: self.now + PORT_RETRY };
                self.current[index].waiting[pool].insert(at, waiting);
                self.counters.queued.add(1);
                if !waited {
                    self.note_port_wait(key, leg, &lack);
                }
            }
        }
        true // the next request's turn
    }

    /// Removes a connection that dropped its leg from the queue.
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

    /// Counts a request that reached its longest wait for a server.
    pub(super) fn count_unserved(&mut self, key: Key) {
        for current in &self.current {
            for (queue, pool) in current.waiting.iter().zip(&current.generation.pools) {
                if queue.iter().any(|waiting| waiting.client == key) {
                    pool.unavailable.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    }

    /// Serves waiting requests of all generations: a server may have come up.
    pub(super) fn serve_all_waiting(&mut self) {
        let generations: Vec<u64> =
            self.current.iter().map(|current| current.generation.snapshot.generation).collect();
        for generation in generations {
            self.serve_waiting(generation);
        }
    }
}
