//! Requests that wait for a server: any of their pool, or the one that knows their client.

use crate::host::Host;
use crate::pools::{PoolRuntime, ServerRuntime};
use crate::slab::{Key, Source};
use crate::upstreams::Waiting;
use crate::worker::Worker;
use evergate_base::Micros;
use std::sync::atomic::Ordering;

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
        if self.shared.waiting.load(Ordering::Relaxed) == 0 || self.is_sweeping() {
            return;
        }
        let Some(index) = self.current_of(generation) else { return };
        for pool in 0..self.current[index].waiting.len() {
            while self.serve_first(index, pool) {}
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
                waiting.place = runtime.lines.join(None, waiting.rank, self.waker.clone(), &self.shared);
            }
        }
    }

    /// Dispatches the first request that waits for this server, or for any.
    fn serve_one(&mut self, index: usize, pool: usize, runtime: &PoolRuntime, wish: Option<u32>) -> bool {
        let queue = &self.current[index].waiting[pool];
        let at = queue.iter().position(|waiting| waiting.wish == wish);
        let first = at.and_then(|at| queue.get(at));
        if !runtime.lines.is_turn_of(wish, first.map(|waiting| &waiting.place), self.now) {
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
        self.current[index].waiting[pool].remove(at); // the next request's turn
        self.counters.queued.sub(1);
        if let Some((server, handed)) = found {
            self.connect(key, leg, runtime, server, handed, reuse);
            self.schedule(key); // its deadline has changed
            self.mark_pending(key); // its input was left in the socket meanwhile
        }
        true
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
