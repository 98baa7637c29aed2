//! One connection's turn: ACKs of peers, output that waits, input that may be read, until nothing changes.

use super::Worker;
use crate::event_queue::Time;
use crate::fault::Mutation;
use crate::kernel::Kernel;
use crate::tcp::Tcp;
use evergate_base::Micros;
use evergate_connection::{INPUT_BYTES, ReadPlan, Scratch, Slots};
use evergate_replication::ConnectionId;

/// Client bytes read at once.
const READ_BYTES: usize = 65_536;
/// Most rounds of one turn.
const ROUNDS: usize = 16;

impl Worker {
    pub(super) fn pump(&mut self, now: Time, kernel: &mut Kernel, key: ConnectionId) {
        if self.is_frozen(key) {
            return;
        }
        self.check_dial(now, kernel, key);
        self.pass_acks(kernel, key);
        for _ in 0..ROUNDS {
            let mut moved = self.flush_down(now, kernel, key);
            moved |= self.flush_up(now, kernel, key);
            moved |= self.read_client(now, kernel, key);
            moved |= self.read_server(now, kernel, key);
            moved |= self.run_deferred(now, kernel, key);
            if !moved {
                return self.on_idle(now, kernel, key);
            }
        }
        self.to_pump.insert(key);
    }

    /// Ends the turn: a connection whose client has reset it meanwhile ends.
    fn on_idle(&mut self, now: Time, kernel: &mut Kernel, key: ConnectionId) {
        let Some(client) = self.clients.get(&key) else { return };
        let broken = kernel.sockets.get(&client.leg.flow).is_some_and(Tcp::is_reset);
        if broken && !client.connection.wants_client() && self.mutation != Mutation::IgnoresResets {
            return self.call(now, kernel, key, |connection, io| connection.handle_abort(io, "client_reset"));
        }
        if self.arm_ack_events(now, kernel, key) {
            self.to_pump.insert(key);
        }
    }

    /// Checks a dial: the server has answered the SYN, or refused.
    fn check_dial(&mut self, now: Time, kernel: &mut Kernel, key: ConnectionId) {
        let Some(upstream) = self.clients.get(&key).and_then(|client| client.upstream.as_ref()) else {
            return;
        };
        if !upstream.connecting {
            return;
        }
        match kernel.sockets.get(&upstream.leg.flow) {
            Some(socket) if socket.is_open() => self.open_server(now, kernel, key),
            Some(socket) if !socket.is_reset() => {}
            _ => self.fail_server(now, kernel, key),
        }
    }

    /// Passes the ACKs of peers to the connection, which handles them with its next call.
    pub(super) fn pass_acks(&mut self, kernel: &Kernel, key: ConnectionId) {
        let Some(client) = self.clients.get_mut(&key) else { return };
        if let Some(upstream) = client.upstream.as_mut().filter(|upstream| !upstream.connecting) {
            let slot = kernel.slots.get(&upstream.leg.flow);
            let acked = slot.and_then(|slot| upstream.leg.positions.newly_acked(slot));
            if let Some(output) = acked {
                client.connection.learn_server_acked(upstream.number, output);
            }
        }
        let slot = kernel.slots.get(&client.leg.flow);
        let acked = slot.and_then(|slot| client.leg.positions.newly_acked(slot));
        if let Some(output) = acked {
            client.connection.learn_client_acked(output);
        }
    }

    /// Runs the connection's deferred work. Returns whether there was any.
    pub(super) fn run_deferred(&mut self, now: Time, kernel: &mut Kernel, key: ConnectionId) -> bool {
        let deferred = self.clients.get(&key).is_some_and(|client| client.connection.has_deferred());
        if deferred {
            self.call(now, kernel, key, |connection, io| connection.handle_deferred(io));
        }
        deferred
    }

    fn flush_down(&mut self, now: Time, kernel: &mut Kernel, key: ConnectionId) -> bool {
        let Some(client) = self.clients.get_mut(&key) else { return false };
        let acknowledged = client.connection.acknowledged();
        let waiting = client.connection.down().front(acknowledged);
        if waiting.is_empty() {
            return false;
        }
        let mut moved = client.leg.positions.skip_delivered(waiting.len());
        if moved == 0 {
            moved = kernel.socket(client.leg.flow).map_or(0, |socket| socket.write(waiting));
            client.leg.positions.handle_written(moved, Micros(now));
        }
        client.connection.down().advance(moved);
        if moved > 0 {
            self.call(now, kernel, key, |connection, io| connection.handle_flushed(io));
        }
        moved > 0
    }

    fn flush_up(&mut self, now: Time, kernel: &mut Kernel, key: ConnectionId) -> bool {
        let Some(client) = self.clients.get_mut(&key) else { return false };
        let Some(upstream) = client.upstream.as_mut().filter(|upstream| !upstream.connecting) else {
            return false;
        };
        let acknowledged = client.connection.acknowledged();
        let waiting = client.connection.up().front(acknowledged);
        if waiting.is_empty() {
            return false;
        }
        let Some(socket) = kernel.socket(upstream.leg.flow) else {
            // Bytes that the server sent before it closed are still to be read.
            client.connection.up().clear();
            return false;
        };
        let mut moved = upstream.leg.positions.skip_delivered(waiting.len());
        if moved == 0 {
            moved = socket.write(waiting);
            upstream.leg.positions.handle_written(moved, Micros(now));
        }
        client.connection.up().advance(moved);
        if moved > 0 {
            self.call(now, kernel, key, |connection, io| connection.handle_flushed(io));
        }
        moved > 0
    }

    fn read_client(&mut self, now: Time, kernel: &mut Kernel, key: ConnectionId) -> bool {
        let Some(client) = self.clients.get_mut(&key) else { return false };
        if !client.connection.wants_client() {
            return false;
        }
        let Some(socket) = kernel.sockets.get_mut(&client.leg.flow) else { return false };
        if socket.is_reset() {
            if self.mutation == Mutation::IgnoresResets {
                return false;
            }
            self.call(now, kernel, key, |connection, io| connection.handle_abort(io, "client_reset"));
            return true;
        }
        let held = client.connection.begin_client_read(&mut self.scratch.input);
        let bytes = socket.read(READ_BYTES.min(INPUT_BYTES.saturating_sub(held)));
        if !bytes.is_empty() {
            self.scratch.input[held..held + bytes.len()].copy_from_slice(&bytes);
            if let Some(slot) = kernel.slots.get(&client.leg.flow).filter(|_| !client.connection.is_active())
            {
                client.leg.positions.note_next(slot);
            }
            client.leg.positions.handle_read(bytes.len(), Micros(now));
            let count = held + bytes.len();
            self.call(now, kernel, key, |connection, io| connection.handle_client_data(io, count));
            self.acknowledge_early(now, kernel, key);
            return true;
        }
        if socket.is_ended() && !client.end_reported {
            client.end_reported = true;
            client.leg.positions.handle_end();
            self.call(now, kernel, key, |connection, io| connection.handle_client_end(io));
            return true;
        }
        false
    }

    fn read_server(&mut self, now: Time, kernel: &mut Kernel, key: ConnectionId) -> bool {
        let Some(client) = self.clients.get_mut(&key) else { return false };
        let Some(upstream) = client.upstream.as_mut().filter(|upstream| !upstream.connecting) else {
            return false;
        };
        if client.connection.bound_leg() == Some(upstream.number) {
            let socket = kernel.sockets.get(&upstream.leg.flow);
            let reports = |socket: &Tcp| socket.has_input() || socket.is_ended() || socket.is_reset();
            let lost = socket.is_none_or(reports);
            if lost {
                self.call(now, kernel, key, |connection, io| connection.handle_bound_lost(io));
            }
            return lost;
        }
        let plan = client.connection.begin_server_read(&mut self.scratch);
        let Some(socket) = kernel.sockets.get_mut(&upstream.leg.flow).filter(|_| plan != ReadPlan::Nothing)
        else {
            return false;
        };
        let count = read_into(&mut self.scratch, plan, socket);
        if count > 0 {
            upstream.leg.positions.handle_read(count, Micros(now));
            self.call(now, kernel, key, |connection, io| connection.handle_server_data(io, plan, count));
            self.acknowledge_early(now, kernel, key);
            return true;
        }
        let (broken, number) = (socket.is_reset(), upstream.number);
        if (broken || socket.is_ended()) && !upstream.ended {
            upstream.ended = true;
            upstream.leg.positions.handle_end();
            self.call(now, kernel, key, |connection, io| match broken {
                true => connection.handle_server_reset(io, number),
                false => connection.handle_server_end(io, number),
            });
            return true;
        }
        false
    }

    /// The mutation that acknowledges input without a replica.
    fn acknowledge_early(&mut self, now: Time, kernel: &mut Kernel, key: ConnectionId) {
        let Some(client) = self.clients.get_mut(&key) else { return };
        if self.mutation != crate::Mutation::EarlyAck {
            return;
        }
        let server = client.upstream.as_mut().map(|upstream| &mut upstream.leg);
        for leg in server.into_iter().chain([&mut client.leg]) {
            if let Some(slot) = kernel.slots.get_mut(&leg.flow) {
                leg.positions.allow_ack(slot, leg.positions.received().1, Micros(now));
                self.dirty.insert(leg.flow);
            }
        }
    }
}

/// Reads from a server to the place that the connection wants. Returns the number of bytes.
fn read_into(scratch: &mut Scratch, plan: ReadPlan, socket: &mut Tcp) -> usize {
    match plan {
        ReadPlan::Nothing => 0,
        ReadPlan::Head { layout, held, room } => {
            let bytes = socket.read(room);
            let start = Slots::payload(layout, 0).start + held;
            scratch.down.memory()[start..start + bytes.len()].copy_from_slice(&bytes);
            bytes.len()
        }
        ReadPlan::Body { layout, held, slots } => {
            let mut count = 0;
            for index in 0..slots {
                let room = Slots::body(layout, index, held);
                let bytes = socket.read(room.len());
                scratch.down.memory()[room.start..room.start + bytes.len()].copy_from_slice(&bytes);
                count += bytes.len();
            }
            count
        }
        ReadPlan::Records { held } => {
            let bytes = socket.read(READ_BYTES.min(INPUT_BYTES.saturating_sub(held)));
            scratch.input[held..held + bytes.len()].copy_from_slice(&bytes);
            bytes.len()
        }
    }
}
