//! Relay turn of one connection: flushes waiting output and reads allowed input, until nothing moves.

use crate::host::{Host, Pipe, Socket};
use crate::slab::Key;
use crate::worker::{ROUNDS, SPARE_BUFFERS, Worker};
use evergate_base::net::Transfer;
use evergate_connection::{Activity, INPUT_BYTES, ReadPlan, SLOTS, Slots};

/// Client bytes read at once.
const READ_BYTES: usize = 65_536;
/// Least length of a plain body for splicing, in bytes.
const SPLICE_MIN: u64 = 65_536;
/// Bytes spliced at once.
const SPLICE_BYTES: usize = 1 << 20;
/// Least length for splicing when much waits for slow peers already, in bytes.
const SPLICE_LITTLE: usize = 16_384;
/// Most spare empty pipes, of two descriptors each.
const SPARE_PIPES: usize = 64;

impl<H: Host> Worker<H> {
    pub(super) fn pump(&mut self, key: Key) {
        if self.cluster.is_none() {
            return self.drive(key);
        }
        if self.is_frozen(key) {
            return;
        }
        let before = self.before_turn(key);
        self.learn_from_peers(key);
        self.drive(key);
        self.note_turn(before);
    }

    fn drive(&mut self, key: Key) {
        for _ in 0..ROUNDS {
            let mut moved = self.flush_down(key);
            moved |= self.flush_up(key);
            moved |= self.read_client(key);
            moved |= self.read_server(key);
            moved |= self.run_deferred(key);
            if !moved {
                return self.on_idle(key);
            }
        }
        self.mark_pending(key);
    }

    /// Runs deferred work of the connection that no other call has done; whether there was some.
    pub(super) fn run_deferred(&mut self, key: Key) -> bool {
        if !self.clients.get(key).is_some_and(|client| client.connection.has_deferred()) {
            return false;
        }
        self.with(key, |connection, io| connection.handle_deferred(io));
        self.perform(key);
        true
    }

    pub(super) fn mark_pending(&mut self, key: Key) {
        if let Some(client) = self.clients.get_mut(key)
            && !client.pending
        {
            client.pending = true;
            self.pending.push(key);
        }
    }

    /// Nothing moves: ends a connection that broke meanwhile, or sets its timer.
    fn on_idle(&mut self, key: Key) {
        let Some(client) = self.clients.get_mut(key) else { return };
        if client.broken && !client.connection.wants_client() {
            self.with(key, |connection, io| connection.handle_abort(io, "client_reset"));
            return self.perform(key);
        }
        if std::mem::take(&mut client.owes_ack) {
            // Tickets wait for the first response, so nothing carries the ACK of the client's last handshake message;
            // a client without TCP_NODELAY would hold its request back until the delayed ACK (40 ms).
            client.socket.acknowledge_now();
        }
        self.schedule(key);
        self.drop_read_interest(key);
        self.note_activity(key);
        if self.cluster.is_some() && self.arm_ack_event(key) {
            self.mark_pending(key);
        }
    }

    /// Passes the peers' acknowledgements to a connection whose timeout depends on them.
    pub(super) fn check_peers(&mut self, key: Key) {
        let Some(client) = self.clients.get_mut(key).filter(|client| client.connection.checks_peers()) else {
            return;
        };
        if client.replicated_state.is_some() {
            self.note_peers(key);
            return;
        }
        let server = client.upstream.and_then(|upstream| self.upstreams.get(upstream));
        let server = server.map_or(0, |upstream| upstream.socket.unacknowledged());
        let held = client.socket.unacknowledged();
        client.connection.handle_unacknowledged(held, server);
    }

    fn flush_down(&mut self, key: Key) -> bool {
        let Some(client) = self.clients.get_mut(key) else { return false };
        if !client.writable || client.connection.down().is_empty() {
            return false;
        }
        let acknowledged = client.connection.acknowledged();
        let total = client.connection.down().len();
        let waiting = client.connection.down().front(acknowledged);
        if waiting.is_empty() {
            return false;
        }
        if let Some(replicated_state) = &mut client.replicated_state
            && let skipped @ 1.. = replicated_state.leg.skip_delivered(waiting.len())
        {
            client.connection.down().advance(skipped);
            self.with(key, |connection, io| connection.handle_flushed(io));
            self.perform(key);
            return true;
        }
        let result = match client.fin_waits && waiting.len() == total {
            true => client.socket.write_last(&[waiting]),
            false => client.socket.write(waiting),
        };
        match result {
            Transfer::Moved(count) => {
                client.writable = count == waiting.len();
                if let Some(replicated_state) = &mut client.replicated_state {
                    replicated_state.leg.handle_written(count, self.now);
                }
                client.connection.down().advance(count);
                if let Some(buffer) = client.connection.down().take_spent() {
                    self.spares.buffers.push(buffer);
                    self.spares.buffers.truncate(SPARE_BUFFERS);
                }
                self.counters.client_bytes_out.add(count as u64);
                self.with(key, |connection, io| connection.handle_flushed(io));
                self.perform(key);
                true
            }
            Transfer::Blocked | Transfer::End => {
                client.writable = false;
                false
            }
            Transfer::Broken(_) => self.client_broke(key),
        }
    }

    fn flush_up(&mut self, key: Key) -> bool {
        let Some(client) = self.clients.get_mut(key) else { return false };
        let Some(upstream_key) = client.upstream else { return false };
        let Some(upstream) = self.upstreams.get_mut(upstream_key) else { return false };
        if !upstream.writable || upstream.connecting || client.connection.up().is_empty() {
            return false;
        }
        let acknowledged = client.connection.acknowledged();
        let waiting = client.connection.up().front(acknowledged);
        if waiting.is_empty() {
            return false;
        }
        if let Some(gated) = &mut upstream.gated
            && let skipped @ 1.. = gated.skip_delivered(waiting.len())
        {
            client.connection.up().advance(skipped);
            client.connection.up().take_spent();
            self.with(key, |connection, io| connection.handle_flushed(io));
            self.perform(key);
            return true;
        }
        match upstream.socket.write(waiting) {
            Transfer::Moved(count) => {
                upstream.writable = count == waiting.len();
                if let Some(gated) = &mut upstream.gated {
                    gated.handle_written(count, self.now);
                }
                client.connection.up().advance(count);
                client.connection.up().take_spent();
                self.counters.server_bytes_out.add(count as u64);
                self.with(key, |connection, io| connection.handle_flushed(io));
                self.perform(key);
                true
            }
            Transfer::Blocked | Transfer::End => {
                upstream.writable = false;
                false
            }
            Transfer::Broken(_) => self.server_write_broke(key),
        }
    }

    /// The server accepts no more data. Its earlier output is still to be read.
    pub(super) fn server_write_broke(&mut self, key: Key) -> bool {
        let upstream = self.clients.get_mut(key).and_then(|client| client.upstream);
        if let Some(upstream) = upstream.and_then(|upstream| self.upstreams.get_mut(upstream)) {
            upstream.readable = true;
            upstream.ended = true;
        }
        self.with(key, |connection, io| connection.handle_server_write_error(io));
        self.perform(key);
        false
    }

    fn client_broke(&mut self, key: Key) -> bool {
        self.with(key, |connection, io| connection.handle_abort(io, "client_reset"));
        self.perform(key);
        true
    }

    fn read_client(&mut self, key: Key) -> bool {
        let Some(client) = self.clients.get_mut(key) else { return false };
        if !client.readable || !client.connection.wants_client() {
            return false;
        }
        let piped = client.pipes.as_ref().is_some_and(|pipes| pipes.up.is_some());
        if client.connection.splice_up() >= SPLICE_MIN && (piped || self.has_pipe()) {
            return self.splice_up(key);
        }
        let Some(client) = self.clients.get_mut(key) else { return false };
        if client.handshaking {
            if !client.connection.is_handshaking() {
                client.handshaking = false;
            } else if self.handshakes >= self.settings.handshakes_per_turn {
                self.mark_pending(key);
                return false;
            }
        }
        let held = client.connection.begin_client_read(&mut self.scratch.input);
        let room = READ_BYTES.min(INPUT_BYTES.saturating_sub(held));
        match client.socket.read(&mut self.scratch.input[held..held + room]) {
            Transfer::Moved(count) => {
                client.readable = count == room || client.ended;
                client.owes_ack = false;
                self.counters.client_bytes_in.add(count as u64);
                self.set_activity(key, Activity::Active);
                let Some(client) = self.clients.get_mut(key) else { return false };
                if let Some(replicated_state) = &mut client.replicated_state {
                    if !client.connection.is_active() {
                        replicated_state.leg.note_next();
                    }
                    replicated_state.leg.handle_read(count, self.now);
                }
                let handshaking = client.handshaking;
                self.with(key, |connection, io| connection.handle_client_data(io, held + count));
                if handshaking {
                    self.count_handshake(key);
                }
                self.perform(key);
                true
            }
            Transfer::End => {
                client.readable = false;
                if let Some(replicated_state) = &mut client.replicated_state {
                    replicated_state.leg.handle_end();
                }
                self.with(key, |connection, io| connection.handle_client_end(io));
                self.perform(key);
                true
            }
            Transfer::Blocked => {
                client.readable = false;
                false
            }
            Transfer::Broken(_) => self.client_broke(key),
        }
    }

    fn count_handshake(&mut self, key: Key) {
        self.handshakes += 1;
        let Some(client) = self.clients.get_mut(key) else { return };
        if let Some(resumed) = client.connection.session_resumed() {
            client.handshaking = false;
            // With backups nothing more is read before they have that input, and its ACK is the gate's.
            if !client.connection.is_active() && client.replicated_state.is_none() {
                // The request may have arrived meanwhile; see `on_idle`.
                client.owes_ack = true;
                client.readable = true;
            }
            let counters = &self.counters;
            if resumed { &counters.handshakes_resumed } else { &counters.handshakes_full }.add(1);
        }
    }

    fn read_server(&mut self, key: Key) -> bool {
        let Some(client) = self.clients.get_mut(key) else { return false };
        let Some(upstream_key) = client.upstream else { return false };
        let Some(upstream) = self.upstreams.get_mut(upstream_key) else { return false };
        if !upstream.readable || upstream.connecting {
            return false;
        }
        // Bytes inside a pipe precede bytes in the socket, however few are left.
        let piped = client.pipes.as_ref().is_some_and(|pipes| pipes.down.is_some());
        let spliceable = client.connection.splice_down();
        if piped && spliceable > 0 || spliceable >= SPLICE_MIN && self.has_pipe() {
            return self.splice_down(key);
        }
        let little = self.reads_little();
        let Some(client) = self.clients.get_mut(key) else { return false };
        let Some(upstream) = self.upstreams.get_mut(upstream_key) else { return false };
        let plan = client.connection.begin_server_read(&mut self.scratch);
        let (result, asked) = match plan {
            ReadPlan::Nothing => return false,
            ReadPlan::Head { layout, held, room } => {
                let start = Slots::payload(layout, 0).start + held;
                let memory = self.scratch.down.memory();
                (upstream.socket.read(&mut memory[start..start + room]), room)
            }
            ReadPlan::Body { layout, held, slots } if little || slots == 1 => {
                let room = Slots::body(layout, 0, held);
                let asked = room.len();
                (upstream.socket.read(&mut self.scratch.down.memory()[room]), asked)
            }
            ReadPlan::Body { layout, held, slots } => {
                let mut regions = [(0, 0); SLOTS];
                for (index, region) in regions.iter_mut().enumerate() {
                    let room = Slots::body(layout, index, held);
                    *region = (room.start, room.len());
                }
                let asked = regions[..slots].iter().map(|(_, length)| length).sum();
                (upstream.socket.read_scattered(self.scratch.down.memory(), &regions[..slots]), asked)
            }
            ReadPlan::Records { held } => {
                let room = READ_BYTES.min(INPUT_BYTES.saturating_sub(held));
                (upstream.socket.read(&mut self.scratch.input[held..held + room]), room)
            }
        };
        match result {
            Transfer::Moved(count) => {
                upstream.readable = count == asked || upstream.ended;
                upstream.note_answer(self.now);
                if let Some(gated) = &mut upstream.gated {
                    gated.handle_read(count, self.now);
                }
                self.counters.server_bytes_in.add(count as u64);
                self.with(key, |connection, io| connection.handle_server_data(io, plan, count));
                self.perform(key);
                true
            }
            Transfer::Blocked => {
                upstream.readable = false;
                false
            }
            Transfer::End => self.server_ended(key, false),
            Transfer::Broken(_) => self.server_ended(key, true),
        }
    }

    /// The server's FIN, or its RST.
    fn server_ended(&mut self, key: Key, broken: bool) -> bool {
        let Some(client) = self.clients.get_mut(key) else { return false };
        let upstream = client.upstream.and_then(|upstream| self.upstreams.get_mut(upstream));
        if let Some(upstream) = upstream {
            upstream.readable = false;
            upstream.ended = true;
            if let Some(gated) = &mut upstream.gated {
                gated.handle_end();
            }
        }
        let Some(leg) = client.connection.leg_id() else { return false };
        self.with(key, |connection, io| match broken {
            true => connection.handle_server_reset(io, leg),
            false => connection.handle_server_end(io, leg),
        });
        self.perform(key);
        true
    }

    /// Whether there is a pipe for splicing. Without spare descriptors or memory, bytes are copied.
    fn has_pipe(&mut self) -> bool {
        if self.reads_little() {
            return false;
        }
        if self.spares.pipes.is_empty()
            && let Ok(pipe) = self.host.pipe()
            && self.shared.room.allows(pipe.highest_descriptor())
        {
            self.spares.pipes.push(pipe);
        }
        !self.spares.pipes.is_empty()
    }

    /// Whether to read less per connection, because much waits for slow peers.
    fn reads_little(&self) -> bool {
        self.buffered * 2 > self.settings.buffered_max
    }

    /// A transfer of at most `allowed` bytes. `ended`: the source was reported as ended, or at an urgent byte.
    fn passage(&self, allowed: u64, ended: bool) -> Passage {
        Passage { allowed, at_once: if self.reads_little() { SPLICE_LITTLE } else { SPLICE_BYTES }, ended }
    }

    /// Server to client inside the kernel.
    fn splice_down(&mut self, key: Key) -> bool {
        let Some(client) = self.clients.get_mut(key) else { return false };
        let allowed = client.connection.splice_down();
        let Some(upstream_key) = client.upstream else { return false };
        let Some(ended) = self.upstreams.get_mut(upstream_key).map(|upstream| upstream.ended) else {
            return false;
        };
        let passage = self.passage(allowed, ended);
        let Some(client) = self.clients.get_mut(key) else { return false };
        let Some(upstream) = self.upstreams.get_mut(upstream_key) else { return false };
        let kept = client.pipes.as_mut().and_then(|pipes| pipes.down.take());
        let Some(pipe) = kept.or_else(|| self.spares.pipes.pop()) else { return false };
        let (from, to) = (&upstream.socket, &client.socket);
        let passed = pass(pipe, (from, passage), (to, &mut client.writable));
        upstream.readable &= !matches!(passed.filled, Some(Transfer::Blocked));
        if let Some(Transfer::Moved(count)) = passed.filled {
            upstream.note_answer(self.now);
            self.counters.server_bytes_in.add(count as u64);
        }
        let Some(pipe) = passed.pipe else { return self.client_broke(key) };
        let (moved, held) = (passed.moved as u64, pipe.held() as u64);
        match held {
            0 => give_pipe(&mut self.spares.pipes, pipe),
            _ => client.pipes.get_or_insert_default().down = Some(pipe),
        }
        self.counters.client_bytes_out.add(moved);
        self.batching.note_spliced(moved);
        if moved > 0 || held > 0 {
            self.with(key, |connection, io| connection.handle_spliced_down(io, moved, held));
            self.perform(key);
        }
        match passed.filled {
            Some(Transfer::End) => self.server_ended(key, false),
            Some(Transfer::Broken(_)) => self.server_ended(key, true),
            _ => moved > 0,
        }
    }

    /// Client to server inside the kernel.
    fn splice_up(&mut self, key: Key) -> bool {
        let Some(ended) = self.clients.get_mut(key).map(|client| client.ended) else { return false };
        let passage = self.passage(u64::MAX, ended);
        let Some(client) = self.clients.get_mut(key) else { return false };
        let Some(upstream) = client.upstream.and_then(|upstream| self.upstreams.get_mut(upstream)) else {
            return false;
        };
        let kept = client.pipes.as_mut().and_then(|pipes| pipes.up.take());
        let Some(pipe) = kept.or_else(|| self.spares.pipes.pop()) else { return false };
        let (from, to) = (&client.socket, &upstream.socket);
        let passed = pass(pipe, (from, passage), (to, &mut upstream.writable));
        client.readable &= !matches!(passed.filled, Some(Transfer::Blocked));
        if let Some(Transfer::Moved(count)) = passed.filled {
            self.counters.client_bytes_in.add(count as u64);
        }
        let Some(pipe) = passed.pipe else { return self.server_write_broke(key) };
        let (moved, held) = (passed.moved as u64, pipe.held() as u64);
        match held {
            0 => give_pipe(&mut self.spares.pipes, pipe),
            _ => client.pipes.get_or_insert_default().up = Some(pipe),
        }
        self.counters.server_bytes_out.add(moved);
        self.batching.note_spliced(moved);
        if moved > 0 || held > 0 {
            self.with(key, |connection, io| connection.handle_spliced_up(io, moved, held));
            self.perform(key);
        }
        match passed.filled {
            Some(Transfer::End) => {
                self.with(key, |connection, io| connection.handle_client_end(io));
                self.perform(key);
                true
            }
            Some(Transfer::Broken(_)) => self.client_broke(key),
            _ => moved > 0,
        }
    }
}

/// Limits of a transfer.
struct Passage {
    /// Bytes in all, with those inside the pipe.
    allowed: u64,
    /// Bytes taken from the source at once.
    at_once: usize,
    /// The source was reported as ended, or at an urgent byte: see [`Pipe::fill`].
    ended: bool,
}

/// Outcome of one transfer through a pipe.
struct Passed<P> {
    /// Outcome at the source, if it was read: the source is not read while the pipe holds bytes, so an end found here
    /// follows all of them.
    filled: Option<Transfer>,
    moved: usize,
    /// None when the target is broken: the bytes inside were dropped.
    pipe: Option<P>,
}

fn pass<S, P: Pipe<S>>(
    mut pipe: P,
    (from, passage): (&S, Passage),
    (to, writable): (&S, &mut bool),
) -> Passed<P> {
    let mut passed = Passed { filled: None, moved: 0, pipe: None };
    loop {
        if pipe.held() > 0 && *writable {
            match pipe.empty(to) {
                Transfer::Moved(count) => passed.moved += count,
                Transfer::Blocked | Transfer::End => *writable = false,
                Transfer::Broken(_) => return passed,
            }
        }
        let left = passage.allowed.saturating_sub(passed.moved as u64).min(passage.at_once as u64) as usize;
        if pipe.held() > 0 || passed.filled.is_some() || left == 0 {
            passed.pipe = Some(pipe);
            return passed;
        }
        passed.filled = Some(pipe.fill(from, left, passage.ended));
    }
}

fn give_pipe<P>(spare: &mut Vec<P>, pipe: P) {
    if spare.len() < SPARE_PIPES {
        spare.push(pipe);
    }
}
