//! Performs the results of a connection call: bytes, then effects, in order. In a cluster entries go before the bytes.
//! If the call asks for a server, they go after the effects, which may add some.

use crate::clients::Client;
use crate::host::{Host, Slot, Socket};
use crate::slab::Key;
use crate::worker::{Current, SPARE_BUFFERS, Worker};
use evergate_base::net::Transfer;
use evergate_connection::{Answered, Effect, Scratch, Source};
use std::ops::Range;
use std::sync::atomic::Ordering;

/// Buffer that a connection may always use, in bytes: at the limit, connections with hardly any buffered data continue.
const BUFFERED_FREE: usize = 16_384;

impl<H: Host> Worker<H> {
    /// Performs all results of the last call to the connection.
    pub(super) fn perform(&mut self, key: Key) {
        // An existing server connection adds entries to those of this call: they go in one frame.
        let dials = self.effects.list.iter().any(|effect| matches!(effect, Effect::Dial { .. }));
        if self.cluster.is_some() && !dials {
            self.replication(key);
        }
        self.send_down(key);
        self.send_up(key);
        self.carry_out_all(key);
        if self.cluster.is_some() && dials {
            self.replication(key);
        }
        self.send_fins(key);
        self.count_buffered(key);
    }

    /// Performs the effects of a call, without bytes or entries that it may have made.
    pub(super) fn carry_out_all(&mut self, key: Key) {
        let mut unserved = false;
        for Answered { status, reason, generation, listener, pool } in self.effects.answered.drain(..) {
            self.counters.response(status);
            let known = |current: &&Current| current.generation.snapshot.generation == generation;
            if let Some(current) = self.current.iter().rfind(known) {
                current.generation.count_response(self.number, status, listener, pool);
            }
            if !reason.is_empty() {
                self.counters.reason(reason);
            }
            unserved |= reason == "queue_timeout";
        }
        if unserved {
            self.count_unserved(key);
        }
        if !self.effects.list.is_empty() {
            let mut list = std::mem::take(&mut self.effects.list);
            for effect in list.drain(..) {
                self.carry_out(key, effect);
            }
            if self.effects.list.capacity() == 0 {
                self.effects.list = list;
            }
        }
    }

    /// Counts bytes that wait for slow peers or are retained for them. At the limit, the connection that would add to
    /// them ends, unless it has hardly any.
    pub(super) fn count_buffered(&mut self, key: Key) {
        let Some(client) = self.clients.get_mut(key) else { return };
        let pipes = client.pipes.as_ref().map_or(0, |pipes| pipes.buffered_bytes());
        let outlets = client.connection.down().memory() + client.connection.up().memory();
        let waiting = outlets + pipes + client.connection.buffered_bytes();
        self.buffered = (self.buffered + waiting).saturating_sub(client.buffered);
        let grown = waiting > client.buffered && waiting > BUFFERED_FREE;
        client.buffered = waiting;
        if grown && self.buffered > self.settings.buffered_max {
            self.with(key, |connection, io| connection.handle_abort(io, "buffers_full"));
            self.perform(key);
        }
    }

    fn send_down(&mut self, key: Key) {
        if self.scratch.down.is_empty() {
            return;
        }
        let ends = self.effects.list.iter().any(|effect| matches!(effect, Effect::ShutdownClient));
        let Some(client) = self.clients.get_mut(key) else { return self.scratch.down.clear() };
        let after = client.connection.newest_decision();
        let free = after <= client.connection.acknowledged()
            && client.connection.down().is_empty()
            && client
                .replicated_state
                .as_ref()
                .is_none_or(|replicated_state| !replicated_state.leg.has_undelivered_skip());
        let (first, second) = self.scratch.down.ready();
        let total = first.len() + second.len();
        let socket = &client.socket;
        let result = match (free && client.writable, second.is_empty(), first.is_empty()) {
            (false, ..) => Transfer::Blocked,
            (true, ..) if ends => socket.write_last(&[first, second]),
            (true, true, _) => socket.write(first),
            (true, _, true) => socket.write(second),
            _ => socket.write_gathered(&[first, second]),
        };
        let written = match result {
            Transfer::Moved(count) => count,
            Transfer::Blocked | Transfer::End => 0,
            Transfer::Broken(_) => {
                client.broken = true;
                client.writable = false;
                0
            }
        };
        self.counters.client_bytes_out.add(written as u64);
        if let Some(replicated_state) = &mut client.replicated_state {
            replicated_state.leg.handle_written(written, self.now);
        }
        if written < total {
            client.writable &= !free;
            keep(client, &mut self.scratch, &mut self.spares.buffers, written, after);
            client.connection.handle_blocked(self.now);
        }
        self.scratch.down.clear();
    }

    /// Sends the alert with which a leg fails, as far as its socket takes it at once.
    fn send_last_up(&mut self, key: Key) {
        let alert = std::mem::take(&mut self.effects.last_up);
        let upstream = self.clients.get(key).and_then(|client| self.upstreams.get_mut(client.upstream?));
        if let Some(upstream) = upstream.filter(|upstream| upstream.writable && !upstream.connecting)
            && let Transfer::Moved(count) = upstream.socket.write(&alert)
            && let Some(gated) = &mut upstream.gated
        {
            gated.handle_written(count, self.now);
        }
    }

    fn send_up(&mut self, key: Key) {
        if !self.effects.last_up.is_empty() {
            self.send_last_up(key);
        }
        if self.effects.up.is_empty() {
            return self.scratch.up.clear();
        }
        let mut broke = false;
        if let Some(client) = self.clients.get_mut(key) {
            let after = client.connection.newest_decision();
            let free = after <= client.connection.acknowledged() && client.connection.up().is_empty();
            let upstream = client.upstream.and_then(|upstream| self.upstreams.get_mut(upstream));
            let mut written = 0;
            let surplus = |upstream: &crate::upstreams::Upstream<H>| {
                upstream.gated.as_ref().is_some_and(|gated| gated.has_undelivered_skip())
            };
            if let Some(upstream) = upstream
                .filter(|upstream| free && upstream.writable && !upstream.connecting && !surplus(upstream))
            {
                let result = match &self.effects.up[..] {
                    [piece] => upstream.socket.write(bytes_of(&self.scratch, piece.source, &piece.range)),
                    pieces => {
                        let mut slices: [&[u8]; 64] = [&[]; 64];
                        for (slice, piece) in slices.iter_mut().zip(pieces) {
                            *slice = bytes_of(&self.scratch, piece.source, &piece.range);
                        }
                        upstream.socket.write_gathered(&slices[..pieces.len().min(64)])
                    }
                };
                match result {
                    Transfer::Moved(count) => {
                        written = count;
                        if let Some(gated) = &mut upstream.gated {
                            gated.handle_written(count, self.now);
                        }
                    }
                    Transfer::Blocked | Transfer::End => upstream.writable = false,
                    Transfer::Broken(_) => broke = true,
                }
            }
            let mut blocked = false;
            for piece in &self.effects.up {
                let bytes = bytes_of(&self.scratch, piece.source, &piece.range);
                let skip = written.min(bytes.len());
                written -= skip;
                if skip < bytes.len() {
                    blocked = true;
                    client.connection.up().push(bytes[skip..].to_vec(), after);
                }
            }
            let total: usize = self.effects.up.iter().map(|piece| piece.range.len()).sum();
            self.counters.server_bytes_out.add(total.saturating_sub(client.connection.up().len()) as u64);
            if blocked && !broke {
                client.connection.handle_blocked(self.now);
            }
        }
        self.effects.up.clear();
        self.scratch.up.clear();
        if broke {
            self.server_write_broke(key);
        }
    }

    fn carry_out(&mut self, key: Key, effect: Effect) {
        match effect {
            Effect::Dial { leg, pool, bound: Some(server), .. } => self.dial_bound(key, leg, (pool, server)),
            Effect::Dial { leg, pool, hint, tried, reuse, bound: None } => {
                self.dial(key, leg, pool, hint, &tried, reuse)
            }
            Effect::Retain { leg } => self.retain(key, leg),
            Effect::Release { clean: true, spent: false, records, over: true, .. } => {
                self.release_after(key, true, records)
            }
            Effect::Release { records: Some(records), over: true, .. } => {
                self.release_after(key, false, Some(records))
            }
            Effect::Release { leg, clean: true, spent: true, records, .. } => {
                self.release_spent(key, leg, records)
            }
            Effect::Release { leg, clean, records, .. } => self.release(key, leg, clean, records),
            Effect::ResetServer { .. } => {
                let upstream = self.clients.get_mut(key).and_then(|client| client.upstream);
                if let Some(upstream) = upstream.and_then(|upstream| self.upstreams.get_mut(upstream)) {
                    upstream.socket.reset_on_close();
                }
            }
            Effect::ServerFailed { leg } => self.count_failure(key, leg),
            Effect::ShutdownServer { .. } => {
                if let Some(client) = self.clients.get_mut(key) {
                    client.server_fin_waits = true;
                }
            }
            Effect::ShutdownClient => {
                if let Some(client) = self.clients.get_mut(key) {
                    client.fin_waits = true;
                }
            }
            Effect::CloseClient { abort } => {
                if let Some(client) = self.clients.get_mut(key)
                    && abort
                {
                    client.socket.reset_on_close();
                    if let Some(replicated_state) = &mut client.replicated_state {
                        replicated_state.break_off();
                    }
                }
                self.forget(key);
            }
            Effect::KeepSession(session) => self.keep_session(*session),
            Effect::WithdrawSession(id) => self.withdraw_session(id),
            Effect::SessionObserved { leg, observation } => {
                self.handle_session_observed(key, leg, &observation)
            }
            Effect::Matched(rules) => {
                let Some(client) = self.clients.get_mut(key) else { return };
                let generation = client.connection.snapshot().generation;
                let Some(index) = self.current_of(generation) else { return };
                for rule in rules {
                    if let Some(hits) = self.current[index].generation.rule_hits.get(rule.0 as usize) {
                        hits.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }
            Effect::Sealed => self.feed_envelope(key),
            Effect::Logged(line) => {
                self.feed_request(key, &line);
                if let (Some(lines), Some(client)) =
                    (&mut self.observers.access_log, self.clients.get_mut(key))
                {
                    lines.push(&line, &client.connection);
                }
            }
            Effect::Acknowledge { side, position } => self.release_input(key, side, position),
        }
    }

    /// FINs leave once the bytes before them have.
    fn send_fins(&mut self, key: Key) {
        let Some(client) = self.clients.get_mut(key) else { return };
        if client.fin_waits && client.connection.down().is_empty() {
            client.fin_waits = false;
            if let Some(replicated_state) = &client.replicated_state {
                replicated_state.leg.slot.allow_fin();
            }
            client.socket.shutdown_write();
            if client.connection.closes_at_once() && !self.lifecycle.draining && client.socket.is_drained() {
                return self.forget(key); // the kernel sends the rest
            }
        }
        if client.server_fin_waits && client.connection.up().is_empty() {
            client.server_fin_waits = false;
            if let Some(upstream) = client.upstream.and_then(|upstream| self.upstreams.get_mut(upstream)) {
                if let Some(gated) = &upstream.gated {
                    gated.slot.allow_fin();
                }
                upstream.socket.shutdown_write();
            }
        }
    }
}

fn bytes_of<'a>(scratch: &'a Scratch, source: Source, range: &Range<usize>) -> &'a [u8] {
    match source {
        Source::Input => &scratch.input[range.clone()],
        Source::Up => &scratch.up[range.clone()],
    }
}

/// Returns unwritten output to the connection: a large rest with its buffer, a small one by copying.
fn keep<H: Host>(
    client: &mut Client<H>,
    scratch: &mut Scratch,
    spare: &mut Vec<Vec<u8>>,
    written: usize,
    after: u64,
) {
    const COPIED_MAX: usize = 65_536;
    const COPIED_MIN: usize = 16_384;
    let (first, second) = scratch.down.ready();
    let second = second[written.saturating_sub(first.len()).min(second.len())..].to_vec();
    let rest = first.len().saturating_sub(written);
    if rest > if spare.is_empty() { COPIED_MAX } else { COPIED_MIN } {
        let fresh = spare.pop().unwrap_or_default();
        let (buffer, range) = scratch.down.take_memory(fresh);
        client.connection.down().push_buffer(buffer, range.start + written..range.end, after);
    } else {
        let rest = first[first.len() - rest..].to_vec();
        client.connection.down().push(rest, after);
    }
    client.connection.down().push(second, after);
    debug_assert!(spare.len() <= SPARE_BUFFERS);
}
