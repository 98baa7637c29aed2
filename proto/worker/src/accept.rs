//! New connections: trusted proxies and limits first, then the state machine.

use crate::arrivals::{Arrival, Ends};
use crate::clients::Client;
use crate::command::ListenerSocket;
use crate::evict::Outcome;
use crate::host::{Host, Listener, Poll, Slot, Socket};
use crate::limits::Share;
use crate::log_event::LogEvent;
use crate::replication::ConnectionReplication;
use crate::slab::{Key, Source};
use crate::worker::{Worker, canonical};
use evergate_connection::{Accepted, Connection, Otherwise};
use evergate_replication::ConnectionId;
use std::net::SocketAddr;
use std::time::Duration;

/// Connections taken from one listener in one turn.
const BATCH: usize = 64;
/// Batches after which the queue of a closing listener counts as empty.
const QUEUE_BATCHES: usize = 64;

/// Listeners of a worker.
pub(crate) struct Listening<H: Host> {
    pub(crate) sockets: Vec<Option<ListenerSocket<H>>>,
    /// Those that are paused because no more connections could be accepted.
    pub(crate) paused: Vec<usize>,
    /// The last turn with new connections, and how many were tried.
    pub(crate) accepts: (u64, usize),
}

impl<H: Host> Worker<H> {
    /// Adds listeners, and removes those named. Connections already in a removed socket's queue are still served.
    pub(super) fn change_listeners(&mut self, add: Vec<ListenerSocket<H>>, remove: &[String]) {
        for index in 0..self.listening.sockets.len() {
            if self.listening.sockets[index].as_ref().is_some_and(|listener| remove.contains(&listener.name))
            {
                for _ in 0..QUEUE_BATCHES {
                    if !self.accept_from(index) {
                        break;
                    }
                }
                if let Some(listener) = self.listening.sockets[index].take() {
                    // The socket may live on under another descriptor: closing this one would not end its reports.
                    let _ = self.poll.remove(listener.socket.descriptor());
                }
            }
        }
        if self.lifecycle.draining {
            return;
        }
        for listener in add {
            if let Some(mut keepalive) = self.settings.keepalive {
                keepalive.outlast(Duration::ZERO);
                // Accepted sockets inherit it.
                let _ = listener.socket.set_keepalive(Some(keepalive));
            }
            let free = self.listening.sockets.iter().position(Option::is_none);
            let index = free.unwrap_or(self.listening.sockets.len());
            let token = Source::Listener(index as u32).token();
            if self.poll.add_input(listener.socket.descriptor(), token).is_err() {
                self.counters.reason("epoll_failed");
                continue;
            }
            match free {
                Some(index) => self.listening.sockets[index] = Some(listener),
                None => self.listening.sockets.push(Some(listener)),
            }
        }
    }

    /// Sets TCP keep-alive of a new socket whose peer may stay silent for `patience`, or longer.
    pub(super) fn keep_alive(&self, socket: &H::Socket, patience: Duration) {
        let Some(mut keepalive) = self.settings.keepalive else { return };
        keepalive.outlast(patience);
        let _ = socket.set_keepalive(Some(keepalive)); // the connection works without it
    }

    /// Logs a failure to accept connections, once per shortage.
    pub(super) fn log_shortage(&self, why: &dyn std::fmt::Display) {
        if self.shared.room.begins(self.now) {
            self.host.log(LogEvent::AcceptFailed { why: why.to_string() });
        }
    }

    /// Accepts again on listeners that were paused.
    pub(super) fn listen_again(&mut self) {
        if self.shared.room.is_short() {
            self.check_fd_reserve();
        }
        if self.shared.room.is_short() && !self.has_descriptor_to_make() {
            return;
        }
        for index in std::mem::take(&mut self.listening.paused) {
            let Some(Some(listener)) = self.listening.sockets.get(index) else { continue };
            let token = Source::Listener(index as u32).token();
            match self.poll.add_input(listener.socket.descriptor(), token) {
                Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                    self.listening.paused.push(index)
                }
                _ => {} // another listener may have the place already
            }
        }
    }

    pub(super) fn check_fd_reserve(&self) {
        let Some(listener) = self.listening.sockets.iter().flatten().next() else { return };
        self.shared.room.record_lowest_free(listener.socket.lowest_free_descriptor());
    }

    /// Pauses a listener: an immediate retry would return the same error endlessly.
    fn pause(&mut self, index: usize) {
        self.counters.reason("accept_failed");
        let Some(Some(listener)) = self.listening.sockets.get(index) else { return };
        if self.poll.remove(listener.socket.descriptor()).is_ok() {
            self.listening.paused.push(index);
        }
    }

    /// Takes what waits in the queues of all listeners.
    pub(super) fn empty_queues(&mut self) {
        for index in 0..self.listening.sockets.len() {
            for _ in 0..QUEUE_BATCHES {
                self.pulse.beat();
                let mut more = true; // also after a panic
                self.guarded(None, |worker| more = worker.accept_from(index));
                if !more {
                    break;
                }
            }
        }
    }

    /// Accepts some connections of a ready listener. Accepting without a connection costs the kernel a socket and a
    /// file, so more than one is tried only after a turn with several. If more wait, the listener is reported again.
    pub(super) fn accept_some(&mut self, index: usize) {
        let turn = self.counters.turns.get();
        let (last, batch) = self.listening.accepts;
        let batch = if turn <= last + 1 { (batch * 2).min(BATCH) } else { 1 };
        self.listening.accepts = (turn, batch);
        self.accept_up_to(index, batch);
    }

    /// Accepts many connections of a listener. False when its queue is empty, or no more can be accepted.
    pub(super) fn accept_from(&mut self, index: usize) -> bool {
        self.accept_up_to(index, BATCH)
    }

    fn accept_up_to(&mut self, index: usize, batch: usize) -> bool {
        for _ in 0..batch {
            if self.shared.room.is_tight(self.now) {
                self.check_fd_reserve();
            }
            if self.shared.room.is_short() && !self.make_descriptor() {
                self.pause(index);
                return false;
            }
            let Some(Some(listener)) = self.listening.sockets.get(index) else { return false };
            match listener.socket.accept() {
                Ok(Some((socket, address))) => {
                    let fd = socket.descriptor();
                    if self.shared.room.is_used_up_by(fd) {
                        let why = format_args!(
                            "{fd} file descriptors are in use, and the last ones are kept for servers, health \
                                                checks and operators"
                        );
                        self.log_shortage(&why);
                    }
                    self.accept(index, socket, address);
                }
                Ok(None) => return false,
                Err(_)
                    if self.host.lacks_descriptors()
                        && self.make_room(None, Otherwise::Waits) == Outcome::Evicted =>
                {
                    // With backups an evicted connection has its descriptor until its client acknowledges the end.
                    self.check_fd_reserve();
                    if self.shared.room.is_short() {
                        self.pause(index);
                        return false;
                    }
                }
                Err(error) => {
                    self.log_shortage(&error);
                    self.pause(index);
                    return false;
                }
            }
        }
        true
    }

    fn accept(&mut self, index: usize, socket: H::Socket, address: SocketAddr) {
        let address = canonical(address);
        let Some(Some(listener)) = self.listening.sockets.get(index) else { return };
        let local = listener.local.unwrap_or_else(|| socket.local_address().map_or(address, canonical));
        if self.cluster.as_ref().is_some_and(|cluster| cluster.is_strange(local, address)) {
            let name = listener.name.clone();
            self.handle_commands(); // this node may own the bucket by now
            if !matches!(self.listening.sockets.get(index), Some(Some(listener)) if listener.name == name) {
                return socket.reset_on_close();
            }
        }
        let Some(Some(listener)) = self.listening.sockets.get(index) else { return };
        let ends = Ends::of_socket(address, local);
        let snapshot = self.newest_snapshot();
        let known = snapshot.listener_index(&listener.name).and_then(|position| {
            snapshot.listeners.get(position as usize).map(|listener| (position, listener))
        });
        let Some((position, known)) = known else { return self.reset_unreplicated(socket, local, address) };
        if known.audit.seals() && self.observers.audit.as_ref().is_some_and(|audit| audit.refuses()) {
            return self.refuse_accepted(socket, &ends, Some("audit_refused"));
        }
        let trusted = known.trusted_proxies.as_ref();
        let trusted = trusted.map(|trusted| trusted.iter().any(|network| network.contains(address.ip())));
        let name = listener.name.clone();
        match trusted {
            Some(true) => return self.accept_proxied(socket, name, ends),
            Some(false) => return self.refuse_accepted(socket, &ends, Some("proxy_untrusted")),
            None => {}
        }
        let Some(share) = self.admit(&name, address.ip()) else {
            return self.refuse_accepted(socket, &ends, None);
        };
        self.counters.accepted.add(1);
        match self.gate_client(&socket, local, address) {
            Ok(gated) => self.serve_accepted(socket, position, &ends, share, gated),
            Err(reason) => {
                self.give_back(&share);
                self.refuse_ungated(&socket, reason);
            }
        }
    }

    /// Accepts the connection of a trusted proxy, whose header comes first.
    fn accept_proxied(&mut self, socket: H::Socket, listener: String, ends: Ends) {
        match self.gate_client(&socket, ends.local, ends.peer) {
            Ok(gated) => self.await_header(Arrival { socket, listener, ends, gated, since: self.now }),
            Err(reason) => self.refuse_ungated(&socket, reason),
        }
    }

    /// Refuses a connection without a slot, for this reason if its limits have not counted one.
    fn refuse_accepted(&mut self, socket: H::Socket, ends: &Ends, reason: Option<&'static str>) {
        if let Some(reason) = reason {
            self.counters.reason(reason);
        }
        self.counters.refused.add(1);
        self.reset_unreplicated(socket, ends.local, ends.peer);
    }

    /// Refuses a connection that the gate does not take.
    fn refuse_ungated(&mut self, socket: &H::Socket, reason: &'static str) {
        self.counters.reason(reason);
        self.counters.refused.add(1);
        // A FIN would be retransmitted, and leave when the bucket is ours again.
        socket.reset_on_close();
    }

    /// Serves an accepted connection that counts against its limits.
    pub(super) fn serve_accepted(
        &mut self,
        socket: H::Socket,
        listener: u32,
        ends: &Ends,
        share: Share,
        replicated_state: Option<ConnectionReplication<H>>,
    ) {
        let fresh = self.random_secret::<40>();
        let (id, secret) = fresh.split_at(8);
        let (client, local) = ends.of_client();
        let accepted = Accepted {
            id: ConnectionId(id.try_into().map_or(0, u64::from_le_bytes)),
            listener,
            client,
            local,
            proxy: ends.proxy(),
            unix_s: self.host.wall_clock_s(),
            secret: secret.try_into().unwrap_or([0; 32]),
        };
        let connection = Connection::new(&self.newest_snapshot().clone(), &accepted, self.now);
        let mut client = Client::new(socket, connection, share);
        client.replicated_state = replicated_state.map(Box::new);
        let key = self.clients.insert(client);
        self.list(key);
        self.begin_replication(key);
        let fd = self.clients.get_mut(key).map_or(-1, |client| client.descriptor());
        self.counters.open.set(self.clients.len() as u64);
        if self.register(fd, Source::Client(key)).is_err() {
            return self.forget(key);
        }
        self.with(key, |connection, io| connection.handle_accepted(io));
        self.perform(key);
        if ends.proxied.is_some() {
            self.begin_proxied(key);
        }
        self.note_activity(key);
        self.schedule(key);
    }

    /// Replicates the addresses of a PROXY header at once: its ACK waits for them.
    fn begin_proxied(&mut self, key: Key) {
        if self.cluster.is_some() {
            self.replicate_all(key);
        }
        if self.lifecycle.draining {
            self.drain_accepted(key); // it waited for its header when the drain began
        }
    }

    /// Drops a client connection with its server connection and its replication state.
    pub(super) fn forget(&mut self, key: Key) {
        self.unlist(key);
        let Some(client) = self.clients.remove(key) else { return };
        self.buffered = self.buffered.saturating_sub(client.buffered);
        self.counters.open.set(self.clients.len() as u64);
        self.give_back(&client.share);
        let connection = client.connection.id();
        if let Some(replicated_state) = &client.replicated_state {
            replicated_state.leg.slot.open(); // before the socket closes, whose RST or FIN must leave
        }
        drop(client.socket);
        let bucket = client.replicated_state.as_ref().map(|replicated_state| replicated_state.bucket);
        let notified = client
            .replicated_state
            .is_some_and(|replicated_state| self.end_replication(*replicated_state, connection));
        if let Some(upstream) = client.unsettled {
            self.end_unsettled(key, upstream, notified);
        }
        match (client.upstream, client.left) {
            (Some(upstream), Some(left)) if notified => self.pool_left(upstream, bucket, left),
            (Some(upstream), _) => self.drop_upstream(upstream),
            (None, _) => {}
        }
    }
}
