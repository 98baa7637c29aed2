//! Worker without sockets: performs a connection's effects between a client and a server that a script plays.
//!
//! It follows the order of the daemon's worker: bytes first, then effects. One turn flushes pending bytes, reads the
//! client and reads the server, until no byte moves. Sockets are vectors with a window.

mod perform;
mod pump;
mod socket;

use std::net::IpAddr;
use std::sync::Arc;

use evergate_base::Micros;
use evergate_base::session::{Sealed, SessionId};
use evergate_connection::{Connection, ConnectionHost, Effects, Failure, Io, RequestLog, Scratch, Snapshot};
use evergate_replication::{ConnectionState, Entry};
use evergate_rules::RuleId;
use evergate_tls::Records;

use crate::fixture;

pub use socket::Socket;

/// Limit of consecutive deadlines before a connection whose peers are gone must close.
pub const DEADLINES_MAX: usize = 16;

/// A server connection.
#[derive(Debug, Default)]
pub struct Upstream {
    /// The leg that uses it.
    pub leg: u32,
    /// The worker's end.
    pub socket: Socket,
}

/// A requested leg that is neither open nor refused yet.
#[derive(Clone, Copy, Debug)]
pub struct Dialing {
    leg: u32,
    server: u32,
}

/// Result of a dial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// An idle connection was available.
    Open,
    /// The connection is being established.
    Wait,
    /// Refused.
    Refused,
    /// No server is up.
    Unavailable,
    /// All servers are at their limit: the request waits.
    Queue,
}

/// The node in the connection's view.
#[derive(Debug)]
pub struct View {
    /// The newest configuration.
    pub snapshot: Arc<Snapshot>,
    /// Whether the node drains.
    pub draining: bool,
    /// Whether requests pass rate limits.
    pub allows: bool,
}

impl ConnectionHost for View {
    fn snapshot(&self) -> &Arc<Snapshot> {
        &self.snapshot
    }
    fn is_draining(&self) -> bool {
        self.draining
    }
    fn allow(&mut self, _: &Snapshot, _: RuleId, _: IpAddr, _: &[u8]) -> bool {
        self.allows
    }
    fn session(&mut self, id: &SessionId) -> Option<Sealed> {
        (id[0] & 1 == 0).then(|| Sealed(id.repeat(5))) // not sealed by any key
    }
    fn wants_logs(&self) -> bool {
        true
    }
}

/// One connection, its peers and its node.
pub struct World {
    /// The connection.
    pub connection: Connection,
    /// The client's socket.
    pub client: Socket,
    /// The server leg's socket.
    pub upstream: Option<Upstream>,
    /// A leg that is not open yet.
    pub dialing: Option<Dialing>,
    /// Result of the next dial.
    pub next_dial: Answer,
    /// Window of later server connections.
    pub server_window: usize,
    /// The node.
    pub node: View,
    /// Now.
    pub now: Micros,
    /// Whether plain bodies bypass the connection.
    pub splices: bool,
    /// The backup's state, if there is a backup.
    pub backup: Option<ConnectionState>,
    /// Entries that the backup has received.
    pub entries: Vec<Entry>,
    /// Whether entries are acknowledged at once.
    pub acknowledges: bool,
    /// Bytes sent on closed server connections, in order.
    pub sent_up: Vec<Vec<u8>>,
    /// Requests that ended.
    pub logs: Vec<Box<RequestLog>>,
    /// Turns in which bytes moved.
    pub turns: usize,
    /// Set when the client's socket is closed; whether by RST.
    pub closed: Option<bool>,
    restored: bool,
    scratch: Scratch,
    effects: Effects,
}

impl World {
    /// A connection just accepted on this listener; `replicated`: with a backup.
    pub fn accept(listener: u32, replicated: bool) -> World {
        let snapshot = fixture::snapshot();
        let now = Micros::from_ms(1000);
        let mut connection = Connection::new(snapshot, &fixture::accepted(listener), now);
        if replicated {
            connection.start_replication();
        }
        let mut world = World::around(connection, now);
        world.backup = replicated.then(ConnectionState::default);
        world.with(|connection, io| connection.handle_accepted(io));
        world.perform();
        world
    }

    /// A connection from a backup's state; `None` when it cannot be restored.
    pub fn restore(state: &ConnectionState) -> Option<World> {
        let now = Micros::from_ms(1000);
        let (mut scratch, mut effects) = (Scratch::new(), Effects::default());
        let mut node = View::new();
        let mut io = Io { now, scratch: &mut scratch, effects: &mut effects, node: &mut node };
        let fresh = fixture::accepted(0);
        let reloaded = state.generation() == Some(fixture::reloaded().generation);
        let snapshot = if reloaded { fixture::reloaded() } else { fixture::snapshot() };
        let (connection, leg) = Connection::restore(snapshot, state, &fresh, &mut io).ok()?;
        let mut world = World { scratch, effects, node, ..World::around(connection, now) };
        world.backup = Some(state.clone());
        world.restored = true;
        let bound = world.connection.bound_leg();
        match leg {
            Some(leg) if bound == Some(leg.route.leg) => {
                let socket = Socket { window: usize::MAX, ..Socket::default() };
                world.upstream = Some(Upstream { leg: leg.route.leg, socket });
            }
            Some(leg) => {
                let server = leg.route.server.min(fixture::SERVERS - 1);
                world.dialing = Some(Dialing { leg: leg.route.leg, server });
            }
            None => {}
        }
        world.perform();
        Some(world)
    }

    /// A connection from an upgrade state, with its sockets; `None` when it is refused. False claims of the state about
    /// the past may cost the connection its sockets, but nothing else.
    pub fn import(upgrade_state: &[u8]) -> Option<World> {
        let (connection, leg) = Connection::import(fixture::snapshot(), upgrade_state).ok()?;
        let mut world = World::around(connection, Micros::from_ms(1000));
        world.upstream = leg.map(|leg| {
            let socket = Socket { window: usize::MAX, drops_late_writes: true, ..Socket::default() };
            Upstream { leg: leg.leg, socket }
        });
        world.client.drops_late_writes = true;
        Some(world)
    }

    fn around(connection: Connection, now: Micros) -> World {
        World {
            connection,
            client: Socket { window: usize::MAX, ..Socket::default() },
            upstream: None,
            dialing: None,
            next_dial: Answer::Open,
            server_window: usize::MAX,
            node: View::new(),
            now,
            splices: false,
            backup: None,
            entries: Vec::new(),
            restored: false,
            acknowledges: true,
            sent_up: Vec::new(),
            logs: Vec::new(),
            turns: 0,
            closed: None,
            scratch: Scratch::new(),
            effects: Effects::default(),
        }
    }

    /// Calls the connection.
    pub fn with<R>(&mut self, call: impl FnOnce(&mut Connection, &mut Io<'_>) -> R) -> R {
        let World { connection, scratch, effects, node, now, .. } = self;
        call(connection, &mut Io { now: *now, scratch, effects, node })
    }

    /// Calls the connection and performs its effects.
    pub fn call(&mut self, call: impl FnOnce(&mut Connection, &mut Io<'_>)) {
        if self.closed.is_none() {
            self.with(call);
            self.perform();
        }
    }

    /// Completes the dial.
    pub fn connect(&mut self) {
        if let Some(Dialing { leg, server }) = self.dialing.take() {
            self.with(|connection, io| connection.handle_leg_connecting(io.now, leg, server));
            self.open(leg, server, None);
        }
    }

    /// Completes the dial and, with records, the handshake.
    pub fn open_with(&mut self, records: Option<Box<Records>>) {
        if let Some(Dialing { leg, server }) = self.dialing.take() {
            self.open(leg, server, records);
        }
    }

    /// Refuses the dial.
    pub fn refuse(&mut self) {
        if let Some(Dialing { leg, .. }) = self.dialing.take() {
            self.call(|connection, io| connection.handle_leg_failed(io, leg, Failure::Refused));
        }
    }

    /// Acknowledges all entries that the backup has received.
    pub fn acknowledge(&mut self) {
        let entries = self.entries.len() as u64;
        if self.backup.is_some() && entries > self.connection.acknowledged() {
            self.call(|connection, io| {
                connection.on_replicated(io, entries);
                connection.handle_deferred(io);
            });
        }
    }

    /// Moves the clock to the deadline.
    pub fn expire(&mut self) {
        let deadline = self.connection.deadline();
        assert!(deadline < Micros(u64::MAX), "no deadline: {}", self.state());
        self.now = self.now.max(deadline);
        self.call(Connection::handle_timeout);
    }

    /// The client sends its pieces. Servers send their part after every second one, and again on each later connection.
    /// Then all peers end, time passes, and the connection must end.
    pub fn play_out(&mut self, client: &[&[u8]], server: &[u8]) {
        for (piece, from_server) in client.iter().zip([false, true].into_iter().cycle()) {
            self.client.inbox.extend_from_slice(piece);
            if from_server && let Some(upstream) = &mut self.upstream {
                upstream.socket.inbox.extend_from_slice(server);
            }
            self.pump();
            self.acknowledge();
        }
        self.client.ended = true;
        for _ in 0..DEADLINES_MAX {
            if let Some(upstream) = &mut self.upstream {
                upstream.socket.inbox.extend_from_slice(server);
                upstream.socket.ended = true;
            }
            self.pump();
            self.acknowledge();
            self.connect();
            if self.closed.is_some() {
                return;
            }
            self.expire();
        }
        assert!(self.closed.is_some(), "the connection does not end: {}", self.state());
    }

    /// The connection's state without its configuration, for messages.
    pub fn state(&self) -> String {
        let all = format!("{:?}", self.connection);
        let from = all.rfind(", raw: ").unwrap_or(0);
        let from = all[..from].rfind(", facts: ").unwrap_or(0);
        all[from..].chars().take(3000).collect()
    }
}

impl View {
    fn new() -> View {
        View { snapshot: fixture::snapshot().clone(), draining: false, allows: true }
    }
}
