//! One connection, its peers and its node: a worker over the memory host, around which a script plays.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use evergate_base::{Micros, Term};
use evergate_connection::RequestLog;
use evergate_membership::{MemberSet, OwnershipStart};
use evergate_memory_host::{
    BACKUP, BUCKET, Dials, MemoryHost, Options, Peer, PoolOptions, Process, SOURCE, generation,
};
use evergate_replication::{ConnectionState, Frame, LegFacts};
use evergate_tls::Records;
use evergate_worker::pools::{Generation, ServerRuntime};
use evergate_worker::{Carried, Command, Key, Moving, Report};

use crate::backup::Backup;
use crate::fixture;

/// Limit of consecutive deadlines before a connection whose peers are gone must close.
pub const DEADLINES_MAX: usize = 16;
/// Limit of pending bytes for one peer: a batch of 16 records with their overhead, and the same again for heads,
/// tickets, alerts and generated responses.
const WAITING_MAX: usize = 2 * 270_000;
/// Most exchanges with the backup until nothing follows from its answers.
const EXCHANGES_MAX: usize = 100_000;
/// Time for which requests wait for a server below its limit.
const QUEUE_TIMEOUT: Duration = Duration::from_millis(500);
/// Within this time a worker sends entries and acknowledgements that wait for company, in milliseconds.
const COMPANY_MS: usize = 6;
/// Deadlines are checked once in this time.
const TICK: Micros = Micros::from_ms(64);
/// Sequence numbers at which both streams of an invented leg begin.
const ORIGIN: (u32, u32) = (1_000_000, 2_000_000);
/// Client connections of a node that is not crowded.
const CONNECTIONS_MAX: usize = 100;

/// Result of a dial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The server accepts at once.
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

/// Properties of a new world.
#[derive(Clone, Copy, Debug, Default)]
pub struct Kind {
    /// A backup replicates the connection.
    pub replicated: bool,
    /// Plain bodies bypass the connection.
    pub splices: bool,
    /// Server connections carry several requests.
    pub pooled: bool,
}

/// See the module's description.
pub struct World {
    /// The worker and its host.
    pub process: Process,
    /// The client.
    pub client: Peer,
    /// The backup, if there is one.
    pub backup: Option<Backup>,
    /// Whether frames are acknowledged at once.
    pub acknowledges: bool,
    /// Requests that ended.
    pub logs: Vec<RequestLog>,
    pools: Generation,
    dials: Answer,
    is_reloaded: bool,
}

/// Begin.
impl World {
    /// A connection just accepted on this listener.
    pub fn accept(listener: u32, kind: Kind) -> World {
        let (mut process, pools) = process(kind);
        process.host.set_pipes(kind.splices);
        if kind.replicated {
            process.own(OwnershipStart::Empty, MemberSet::of(BACKUP));
        }
        let accepted = fixture::accepted(listener);
        let client = process.arrive(listener, accepted.local, accepted.client);
        let mut world = World::around(process, pools, client);
        world.backup = world.process.host.wires().into_iter().next().map(Backup::new);
        world.settle();
        world
    }

    /// A connection that its node continues for another one, from a replica; `None` when it cannot. `legs`: as far as
    /// they are known; missing ones are invented.
    pub fn recover(state: &ConnectionState, legs: &BTreeMap<u32, LegFacts>) -> Option<World> {
        let (mut process, pools) = process(Kind { replicated: true, ..Kind::default() });
        process.command(Command::Reload(reloaded(&pools).into()));
        process.turn();
        let mut legs = legs.clone();
        for leg in [0].into_iter().chain(state.leg_in_use()) {
            legs.entry(leg).or_insert_with(|| invented(leg));
        }
        let client = legs.get(&0).map(|facts| (facts.local, facts.remote))?;
        let (connection, state) = (fixture::accepted(0).id, Some(Box::new(state.clone())));
        let replica = Frame::Begin { connection, bucket: BUCKET, state, legs };
        process.worker.steps().store()?.keep(Term::default(), replica);
        process.fail_over(MemberSet::EMPTY);
        assert!(process.run(), "the failover makes no progress");
        let resumed = process.take_reports().into_iter().find_map(|report| match report {
            Report::Resumed(resumed) => Some(resumed),
            _ => None,
        });
        let resumed = resumed.expect("a failover reports its end");
        assert_eq!(resumed.connections + resumed.lost, 1);
        if resumed.connections == 0 {
            return None;
        }
        let client = process.host.peer_of(client.0, client.1).expect("a continued connection has a socket");
        let mut world = World { is_reloaded: true, ..World::around(process, pools, client) };
        world.settle();
        Some(world)
    }

    /// A connection from an upgrade state, with its sockets; `None` when it is refused. False claims of the state about
    /// the past may cost the connection its sockets, but nothing else.
    pub fn import(upgrade_state: &[u8]) -> Option<World> {
        for has_server in [false, true] {
            let (mut process, pools) = process(Kind::default());
            process.host.forgive_late_writes();
            let ends = fixture::accepted(0);
            let (client, peer) = process.host.socket(ends.local, ends.client);
            let to = pools.pools[0].servers[0].address();
            let server = has_server.then(|| process.host.socket((SOURCE, 1024).into(), to).0);
            let carried = Carried { client, server, down: None, up: None };
            let imported = process.worker.import(Moving::default(), carried, upgrade_state);
            match imported.expect("no import panics") {
                Ok(()) => {
                    let mut world = World::around(process, pools, peer);
                    world.settle();
                    return Some(world);
                }
                Err(why) if why == "a server leg without its socket" => {}
                Err(_) => return None,
            }
        }
        None
    }

    fn around(process: Process, pools: Generation, client: Peer) -> World {
        World {
            process,
            client,
            backup: None,
            acknowledges: true,
            logs: Vec::new(),
            pools,
            dials: Answer::Open,
            is_reloaded: false,
        }
    }
}

/// What the script changes.
impl World {
    /// Sets the result of later dials.
    pub fn set_dials(&mut self, dials: Answer) {
        self.process.host.set_dials(match dials {
            Answer::Wait => Dials::Wait,
            Answer::Refused => Dials::Refused,
            Answer::Open | Answer::Unavailable | Answer::Queue => Dials::Open,
        });
        for server in self.servers() {
            server.healthy.store(dials != Answer::Unavailable, Ordering::Relaxed);
        }
        match (self.dials == Answer::Queue, dials == Answer::Queue) {
            (false, true) => self.servers().for_each(|server| {
                server.enter_resumed();
                server.connections_max.store(1, Ordering::Relaxed);
            }),
            (true, false) => self.servers().for_each(|server| {
                server.connections_max.store(0, Ordering::Relaxed);
                server.leave();
            }),
            _ => {}
        }
        self.dials = dials;
    }

    /// Lets the dial under way succeed.
    pub fn connect(&mut self) {
        self.answer_dial(Answer::Open, Peer::connect);
    }

    /// Refuses the dial under way.
    pub fn refuse(&mut self) {
        self.answer_dial(Answer::Refused, Peer::refuse);
    }

    /// Answers a dial; a request that waits for a server dials first.
    fn answer_dial(&mut self, answer: Answer, act: impl Fn(&Peer)) {
        let before = self.dials;
        if before == Answer::Queue {
            self.set_dials(answer);
        }
        self.process.host.servers().iter().filter(|server| server.is_connecting()).for_each(act);
        self.settle();
        if before == Answer::Queue {
            self.set_dials(before);
        }
    }

    /// Reloads the configuration, once.
    pub fn reload(&mut self) {
        if !std::mem::replace(&mut self.is_reloaded, true) {
            self.process.command(Command::Reload(reloaded(&self.pools).into()));
        }
    }

    /// Begins a drain, or ends it.
    pub fn toggle_drain(&mut self) {
        match self.process.worker.is_draining() {
            true => self.process.worker.take_back(Vec::new()),
            false => self.process.command(Command::Drain),
        }
    }

    /// The node may have hardly any connections, or many.
    pub fn set_crowded(&mut self, is_crowded: bool) {
        self.process.set_connections_max(if is_crowded { 1 } else { CONNECTIONS_MAX });
    }

    /// Gives the idle server connection this record layer.
    pub fn set_idle_records(&mut self, records: Records) {
        let idle = self.process.worker.steps().idle();
        self.process.worker.steps().set_idle_records(*idle.first().expect("a server connection"), records);
    }

    /// Acknowledges all frames that the backup has received.
    pub fn acknowledge(&mut self) {
        if let Some(backup) = &mut self.backup {
            backup.receive();
            backup.acknowledge();
        }
        self.settle();
    }

    /// Lets time pass.
    pub fn pass(&mut self, span: Micros) {
        self.process.host.pass(span);
        self.settle();
    }

    /// Moves the clock to the connection's deadline.
    pub fn expire(&mut self) {
        let Some(key) = self.key() else { return };
        let deadline = self.process.worker.steps().connection(key).map_or(Micros(0), |it| it.deadline());
        assert!(deadline < Micros(u64::MAX), "no deadline: {}", self.state());
        self.pass(deadline.since(self.process.host.now()) + TICK);
    }

    /// Runs the worker until no byte moves.
    pub fn pump(&mut self) {
        self.settle();
        if self.process.worker.is_clustered() {
            (0..COMPANY_MS).for_each(|_| self.pass(Micros::from_ms(1)));
        }
    }

    /// Runs the worker and the backup until nothing follows.
    fn settle(&mut self) {
        for _ in 0..EXCHANGES_MAX {
            assert!(self.process.run(), "the connection goes round in circles: {}", self.state());
            self.check();
            self.logs.extend(self.process.take_logs());
            let lost = |report: &Report| matches!(report, Report::Incomplete { .. });
            if self.process.take_reports().iter().any(lost) {
                self.backup = None; // as the agent decides
                self.process.set_backups(MemberSet::EMPTY);
                continue;
            }
            let Some(backup) = &mut self.backup else { return };
            backup.receive();
            self.check_backup();
            let Some(backup) = &mut self.backup else { return };
            if !self.acknowledges || !backup.acknowledge() {
                return;
            }
        }
        panic!("the backup's answers do not end: {}", self.state());
    }

    /// The client sends its pieces. Servers send their part after every second one, and again on each later connection.
    /// Then all peers end, time passes, and the connection must end.
    pub fn play_out(&mut self, client: &[&[u8]], server: &[u8]) {
        for (piece, from_server) in client.iter().zip([false, true].into_iter().cycle()) {
            self.client.send(piece);
            if let Some(upstream) = self.server().filter(|_| from_server) {
                upstream.send(server);
            }
            self.pump();
        }
        self.client.end();
        for _ in 0..DEADLINES_MAX {
            if let Some(upstream) = self.server() {
                upstream.send(server);
                upstream.end();
            }
            self.pump();
            self.connect();
            if self.is_closed() {
                return;
            }
            self.expire();
        }
        assert!(self.is_closed(), "the connection does not end: {}", self.state());
    }
}

/// What the script sees.
impl World {
    /// The server whose connection the worker used last, unless it is closed.
    pub fn server(&self) -> Option<Peer> {
        self.process.host.servers().into_iter().filter(Peer::is_open).max_by_key(Peer::touched)
    }

    /// Bytes sent on each server connection, oldest first.
    pub fn sent_up(&self) -> Vec<Vec<u8>> {
        self.process.host.servers().iter().map(Peer::written).collect()
    }

    /// Whether the client's socket is closed.
    pub fn is_closed(&self) -> bool {
        self.client.closing().is_some()
    }

    /// The upgrade state of the connection.
    pub fn export(&mut self) -> Vec<u8> {
        let key = self.key().expect("the connection is open");
        let exported = self.process.worker.export(key, |_, _, state| Ok(state.to_vec()));
        exported
            .expect("no export panics")
            .unwrap_or_else(|why| panic!("it stays for {why}: {}", self.state()))
    }

    fn servers(&self) -> impl Iterator<Item = &ServerRuntime> {
        self.pools.pools.iter().flat_map(|pool| &pool.servers).map(|server| &**server)
    }

    fn key(&mut self) -> Option<Key> {
        self.process.worker.steps().clients().first().copied()
    }

    /// The connection's state without its configuration, for messages.
    pub fn state(&mut self) -> String {
        let Some(key) = self.key() else { return "closed".to_owned() };
        let steps = self.process.worker.steps();
        let all = steps.connection(key).map_or_else(String::new, |connection| format!("{connection:?}"));
        let from = all.rfind(", raw: ").unwrap_or(0);
        let from = all[..from].rfind(", facts: ").unwrap_or(0);
        all[from..].chars().take(3000).collect()
    }

    /// Laws of replication: the backup has every entry that counts as acknowledged, and the client's input that the
    /// gate lets the worker acknowledge.
    fn check_backup(&mut self) {
        let (Some(key), Some(backup)) = (self.key(), &self.backup) else { return };
        let received = backup.entries.len() as u64;
        let held = backup.replica().map(|replica| replica.positions(0).1);
        let committed = self.client.committed();
        let acknowledged = self.process.worker.steps().connection(key).map_or(0, |it| it.acknowledged());
        assert!(acknowledged <= received, "{acknowledged} of {received} entries: {}", self.state());
        let Some((held, committed)) = held.zip(committed) else { return };
        assert!(committed <= held + 1, "ACK of {committed} bytes, {held} at the backup: {}", self.state());
    }

    /// Laws that hold between two turns.
    fn check(&mut self) {
        let violations = self.process.host.violations();
        assert!(violations.is_empty(), "{violations:?}: {}", self.state());
        for log in &self.logs {
            assert!(log.status == 0 || (100..600).contains(&log.status), "status {}", log.status);
        }
        let Some(key) = self.key() else { return };
        assert!(!self.is_closed(), "its socket is closed: {}", self.state());
        let mut steps = self.process.worker.steps();
        let waiting = steps.waiting(key).unwrap_or_default();
        assert!(waiting.0 <= WAITING_MAX && waiting.1 <= WAITING_MAX, "{waiting:?} bytes wait");
        let (server, idle) = (steps.server_of(key), steps.idle());
        let Some(connection) = steps.connection(key) else { return };
        let needs_server = connection.bound_leg().or(connection.leg_id()).is_some();
        let lacks_server = needs_server && server.is_none() && !connection.is_leg_queued();
        assert!(!lacks_server, "a leg without a server connection: {}", self.state());
        assert!(server.is_none_or(|server| !idle.contains(&server)), "a used connection is in the pool");
        let open = self.process.host.servers().iter().filter(|server| server.is_open()).count();
        // In a cluster a released connection stays open until the backups have its last response.
        let is_known = open <= idle.len() + usize::from(server.is_some());
        assert!(
            is_known || self.process.worker.is_clustered(),
            "{open} server connections: {}",
            self.state()
        );
    }
}

fn process(kind: Kind) -> (Process, Generation) {
    let host = MemoryHost::default();
    let accepted = fixture::accepted(0);
    host.set_random(accepted.secret[0]);
    host.set_wall_clock(accepted.unix_s);
    let pools = generation(fixture::snapshot(), &pool_options(kind.pooled));
    let movable = if kind.replicated { vec![accepted.local.ip()] } else { Vec::new() };
    let options = Options { connections_max: CONNECTIONS_MAX, buffered_max: 256 << 20, movable };
    (Process::new(host, &pools, &options), pools)
}

fn pool_options(pooled: bool) -> PoolOptions {
    PoolOptions {
        queue_max: 8,
        queue_timeout: QUEUE_TIMEOUT,
        idle_max: if pooled { 4 } else { 0 },
        idle: Duration::from_secs(60),
        down_pool: None,
    }
}

/// The generation after a reload, with the same servers.
fn reloaded(before: &Generation) -> Generation {
    let after = generation(fixture::reloaded(), &pool_options(false));
    Generation { pools: before.pools.clone(), ..after }
}

/// Parameters of a leg whose replica lacks them.
fn invented(leg: u32) -> LegFacts {
    let ends = fixture::accepted(0);
    let (local, remote) = match leg {
        0 => (ends.local, ends.client),
        _ => ((SOURCE, 1024).into(), ([10, 0, 10, 1], 80).into()),
    };
    LegFacts {
        local,
        remote,
        sent: ORIGIN.0,
        received: ORIGIN.1,
        acknowledged: ORIGIN.1,
        mss: 1460,
        window_scales: Some((7, 7)),
        sack: false,
        timestamp: None,
        interface: u8::from(leg != 0),
        next_hop: [2, 0, 0, 0, 0, 1],
    }
}
