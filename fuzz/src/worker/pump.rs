//! One turn: flushes pending bytes and reads, until no byte moves.

use evergate_connection::{Connection, INPUT_BYTES, ReadPlan, Scratch, Slots};

use super::{Socket, World};

/// Limit of turns in one call of [`World::pump`]: more means that the connection loops without progress.
const TURNS_MAX: usize = 100_000;
const READ_BYTES: usize = 65_536;

impl World {
    /// Runs turns until no byte moves.
    pub fn pump(&mut self) {
        for _ in 0..TURNS_MAX {
            if self.closed.is_some() {
                return;
            }
            let mut moved = self.flush_down();
            moved |= self.flush_up();
            moved |= self.read_client();
            moved |= self.read_server();
            if !moved {
                return;
            }
            self.turns += 1;
        }
        panic!("the connection goes round in circles: {}", self.state());
    }

    fn flush_down(&mut self) -> bool {
        let acknowledged = self.connection.acknowledged();
        let waiting = self.connection.down().front(acknowledged);
        let count = waiting.len().min(self.client.window);
        if count == 0 || self.closed.is_some() {
            return false;
        }
        self.client.take(&waiting[..count]);
        self.connection.down().advance(count);
        self.connection.down().take_spent();
        self.call(|connection, io| connection.handle_flushed(io));
        true
    }

    fn flush_up(&mut self) -> bool {
        let Some(upstream) = &mut self.upstream else { return false };
        let acknowledged = self.connection.acknowledged();
        let waiting = self.connection.up().front(acknowledged);
        let count = waiting.len().min(upstream.socket.window);
        if count == 0 || self.closed.is_some() {
            return false;
        }
        upstream.socket.take(&waiting[..count]);
        self.connection.up().advance(count);
        self.connection.up().take_spent();
        self.call(|connection, io| connection.handle_flushed(io));
        true
    }

    fn read_client(&mut self) -> bool {
        if self.closed.is_some() || !self.connection.wants_client() {
            return false;
        }
        if self.client.inbox.is_empty() {
            if !self.client.ended || std::mem::replace(&mut self.client.end_seen, true) {
                return false;
            }
            self.call(Connection::handle_client_end);
            return true;
        }
        if self.splices && self.connection.splice_up() > 0 {
            let Some(upstream) = &mut self.upstream else { return false };
            let count = self.client.inbox.len().min(upstream.socket.window);
            let bytes: Vec<u8> = self.client.receive(count);
            upstream.socket.take(&bytes);
            if count > 0 {
                self.call(|connection, io| connection.handle_spliced_up(io, count as u64, 0));
            }
            return count > 0;
        }
        let held = self.connection.begin_client_read(&mut self.scratch.input);
        let bytes = self.client.receive(READ_BYTES.min(INPUT_BYTES.saturating_sub(held)));
        assert!(!bytes.is_empty(), "no room to read into");
        self.scratch.input[held..held + bytes.len()].copy_from_slice(&bytes);
        self.call(|connection, io| connection.handle_client_data(io, held + bytes.len()));
        true
    }

    fn read_server(&mut self) -> bool {
        let Some(upstream) = self.upstream.as_mut().filter(|_| self.closed.is_none()) else { return false };
        let socket = &mut upstream.socket;
        if socket.inbox.is_empty() && (!socket.ended || socket.end_seen) {
            return false;
        }
        if self.connection.bound_leg() == Some(upstream.leg) {
            self.call(Connection::handle_bound_lost); // only its end is left
            return true;
        }
        let splice = if self.splices { self.connection.splice_down() } else { 0 };
        if splice > 0 && !socket.inbox.is_empty() {
            let count = usize::try_from(splice).unwrap_or(usize::MAX).min(self.client.window);
            let bytes = socket.receive(count);
            self.client.take(&bytes);
            if !bytes.is_empty() {
                self.call(|connection, io| connection.handle_spliced_down(io, bytes.len() as u64, 0));
            }
            return !bytes.is_empty();
        }
        let plan = self.connection.begin_server_read(&mut self.scratch);
        if plan == ReadPlan::Nothing {
            return false;
        }
        if socket.inbox.is_empty() {
            socket.end_seen = true;
            let leg = upstream.leg;
            assert_eq!(self.connection.leg_id(), Some(leg));
            self.call(|connection, io| connection.handle_server_end(io, leg));
            return true;
        }
        let count = place(plan, socket, &mut self.scratch);
        assert!(count > 0, "no room to read into: {plan:?}");
        self.call(|connection, io| connection.handle_server_data(io, plan, count));
        true
    }
}

/// Reads from a server's socket to the destination that the connection names.
fn place(plan: ReadPlan, socket: &mut Socket, scratch: &mut Scratch) -> usize {
    match plan {
        ReadPlan::Nothing => 0,
        ReadPlan::Head { layout, held, room } => {
            let start = Slots::payload(layout, 0).start + held;
            let bytes = socket.receive(room);
            scratch.down.at_mut(start..start + bytes.len()).copy_from_slice(&bytes);
            bytes.len()
        }
        ReadPlan::Body { layout, held, slots } => {
            let mut count = 0;
            for index in 0..slots {
                let payload = Slots::body(layout, index, held);
                let bytes = socket.receive(payload.len());
                scratch.down.at_mut(payload.start..payload.start + bytes.len()).copy_from_slice(&bytes);
                count += bytes.len();
            }
            count
        }
        ReadPlan::Records { held } => {
            let bytes = socket.receive(READ_BYTES.min(INPUT_BYTES.saturating_sub(held)));
            scratch.input[held..held + bytes.len()].copy_from_slice(&bytes);
            bytes.len()
        }
    }
}
