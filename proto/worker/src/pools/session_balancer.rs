//! Pools that choose a server by session: one [`Distributor`] per pool, shared by all workers. The simulator uses the
//! same code.
//!
//! A relayed ClientHello offers sessions: the first known one decides. Without a known one a fallback decides: the
//! server of the last handshake from the client's address, or for the server name. Connections without an offer (http,
//! tcp) are known by the client's address alone: a server that took a connection within the lifetime of sessions is
//! expected to resume the client's session.
//!
//! Sessions and fallbacks of relayed handshakes are in one table under keyed hashes, so that nodes of a cluster can
//! exchange them. Servers have names there that are equal on all nodes.
//!
//! Invariants: a decision is one short critical section that allocates nothing; pools of other policies never come
//! here; the distributor's memory is bounded. Not here: the choice of eligible servers (the worker's job), and the
//! detection of dead servers (the health checks' job).

use super::handed::Handed;
use super::server_state::ServerRuntime;
use evergate_balance::{
    Arrival, CostSource, Distributor, HandshakeMeter, NodeCost, ServerLoad, SessionFallback, SessionKey,
    SessionPolicy, Settings, source_key,
};
use evergate_base::session::{LearnedSession, SessionHash, SessionHasher, SessionName};
use evergate_base::{Micros, Unix, fnv};
use evergate_connection::OfferedSessions;
use std::hash::{BuildHasher, RandomState};
use std::mem::discriminant;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Longest lifetime that a server, or another node, may give a session, in seconds (RFC 8446 section 4.6.1).
pub(super) const LIFETIME_S_MAX: u64 = 604_800;

/// Parameters of a [`Sessions`](Sessions). After a reload with the same recipe, the old one continues to serve.
#[derive(Clone, Debug, PartialEq)]
pub struct Recipe {
    /// The distributor's settings.
    pub settings: Settings,
    /// Role of each server, in the order of the pool.
    pub costs: Vec<NodeCost>,
    /// The servers' ids, in the same order.
    pub servers: Vec<u64>,
    /// How a client is known whose hello offers no known session.
    pub fallback: SessionFallback,
    /// Source of the costs.
    pub cost_source: CostSource,
    /// Microseconds in a unit of work, positive.
    pub unit_us: f64,
}

/// A client that needs a server.
#[derive(Clone, Copy, Debug)]
pub struct Seeker<'a> {
    /// Its address.
    pub address: IpAddr,
    /// What its relayed ClientHello offers.
    pub offer: Option<Offer<'a>>,
}

/// What a relayed ClientHello offers.
#[derive(Clone, Copy, Debug)]
pub struct Offer<'a> {
    /// Its sessions and its server name.
    pub sessions: &'a OfferedSessions,
    /// Hasher of the names of sessions.
    pub hasher: SessionHasher,
    /// Now.
    pub now: Unix,
}

/// The sessions of a pool; see the module.
#[derive(Debug)]
pub struct Sessions {
    recipe: Recipe,
    /// Keyed, so that no client can choose addresses that share a bucket of the table.
    hasher: RandomState,
    /// The servers' names on the wire, in order, each with its index.
    names: Vec<(u64, usize)>,
    state: Mutex<State>,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) distributor: Distributor,
    /// Losses of each server up to the last update of the distributor.
    losses: Vec<u64>,
    /// Measured costs of each server.
    pub(super) meters: Vec<HandshakeMeter>,
    pub(super) counts: Counts,
}

/// How requests were sent, since the pool came into force with this recipe. One that is sent again, because its server
/// did not take the connection, counts again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Sessions known now by the clients' addresses, including expired ones that were not accessed since.
    pub known: u64,
    /// Sessions of `known` that were forgotten before their time because there were too many.
    pub evicted: u64,
    /// Requests of clients that no server was known to have a session of.
    pub new: u64,
    /// Requests sent to a server that has the client's session.
    pub returned: u64,
    /// Requests sent elsewhere although a session was known: its server was lost, could not take it, or was too busy.
    pub missed: u64,
    /// Requests for which a session decided that the client offered.
    pub by_session: u64,
    /// Requests for which the client's address decided.
    pub by_address: u64,
    /// Requests for which the server name decided.
    pub by_sni: u64,
    /// Sessions of relayed handshakes.
    pub learned: LearnedCounts,
}

/// Sessions learned from relayed handshakes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LearnedCounts {
    /// Entries now, including expired ones that were not visited since: sessions, addresses and server names.
    pub entries: u64,
    /// Entries that were evicted before their expiry.
    pub evicted: u64,
    /// Memory of the table, in bytes.
    pub memory_bytes: u64,
    /// Hellos that offered a known session.
    pub found: u64,
    /// Hellos that offered only unknown sessions.
    pub unknown: u64,
    /// Hellos that offered no session, as far as this node can detect: ids of TLS 1.3 clients are random without one.
    pub unoffered: u64,
    /// Sessions stored from finished handshakes.
    pub learned: u64,
    /// Sessions forgotten after a fatal alert.
    pub forgotten: u64,
    /// Entries stored from other nodes.
    pub received: u64,
}

impl Recipe {
    /// Whether both choose in the same way, with whatever settings: then they remember the same things.
    pub fn has_policy_of(&self, other: &Recipe) -> bool {
        discriminant(&self.settings.policy) == discriminant(&other.settings.policy)
    }

    /// Whether a hash maps clients to servers, so that sessions need not be remembered.
    pub fn is_by_hash(&self) -> bool {
        matches!(self.settings.policy, SessionPolicy::BoundedHash { .. })
    }

    /// Lifetime of a session without a hint of its server, in seconds.
    pub(super) fn lifetime_s(&self) -> u64 {
        self.settings.lifetime.0.div_ceil(1_000_000)
    }
}

impl Sessions {
    /// Knows nothing yet.
    pub fn new(recipe: Recipe, servers: &[Arc<ServerRuntime>]) -> Sessions {
        let state = State {
            distributor: Distributor::new(&recipe.settings, &recipe.costs),
            losses: servers.iter().map(|server| server.losses.load(Ordering::Relaxed)).collect(),
            meters: vec![HandshakeMeter::default(); recipe.costs.len()],
            counts: Counts::default(),
        };
        let mut names: Vec<_> = recipe.costs.iter().map(|cost| cost.name).zip(0..).collect();
        names.sort_unstable();
        Sessions { recipe, hasher: RandomState::new(), names, state: Mutex::new(state) }
    }

    /// Adopts the sessions of `former` whose servers still exist. The former configuration alone records connections
    /// that it started.
    pub fn succeeding(
        recipe: Recipe,
        servers: &[Arc<ServerRuntime>],
        former: &Sessions,
        former_servers: &[Arc<ServerRuntime>],
        now: Micros,
    ) -> Sessions {
        let renumbered: Vec<Option<usize>> = former
            .recipe
            .servers
            .iter()
            .map(|id| recipe.servers.iter().position(|other| other == id))
            .collect();
        let mut fresh = Sessions::new(recipe, servers);
        fresh.hasher = former.hasher.clone();
        let (known, meters) = {
            let mut state = former.lock();
            state.notice_losses(former_servers, now);
            (state.distributor.clone(), state.meters.clone())
        };
        let state = fresh.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        state.distributor.inherit(&known, &renumbered);
        for (meter, node) in meters.into_iter().zip(&renumbered) {
            if let Some(node) = *node
                && let Some(place) = state.meters.get_mut(node)
            {
                *place = meter;
                state.apply_costs(&fresh.recipe, node);
            }
        }
        fresh
    }

    /// Its recipe.
    pub fn recipe(&self) -> &Recipe {
        &self.recipe
    }

    /// Chooses a server for a client among the eligible servers by `loads`, which has the order of `servers`.
    /// `random` is uniform over 64 bits. `distributors` is the number of nodes that serve clients.
    pub fn choose(
        self: &Arc<Sessions>,
        seeker: &Seeker<'_>,
        servers: &[Arc<ServerRuntime>],
        loads: &[ServerLoad],
        (random, distributors): (u64, u32),
        now: Micros,
    ) -> Option<(usize, Box<Handed>)> {
        let key = self.key(seeker);
        let mut state = self.lock();
        state.notice_losses(servers, now);
        state.distributor.set_distributors(distributors);
        let (mut known, mut by_session) = (None, false);
        let resumes = match &seeker.offer {
            // A client without a known session offers none, as far as this node can detect.
            None => state.distributor.sessions().get(key, now).is_some(),
            Some(offer) => {
                let exact = state.distributor.find(offer.sessions.hashes.iter().copied(), offer.now);
                by_session = exact.is_some();
                known = exact.or_else(|| {
                    let fallback = self.fallback(seeker)?;
                    state.distributor.find([fallback], offer.now)
                });
                by_session || offer.sessions.is_certain
            }
        };
        let has_session = match seeker.offer {
            None => resumes,
            Some(_) => resumes && known.is_some(),
        };
        let arrival = Arrival { now, key, known, resumes, random };
        let choice = state.distributor.distribute(&arrival, loads)?;
        let counts = &mut state.counts;
        *match (has_session, choice.resumed) {
            (false, _) => &mut counts.new,
            (true, true) => &mut counts.returned,
            (true, false) => &mut counts.missed,
        } += 1;
        *match (by_session, self.is_by_name(seeker)) {
            (true, _) => &mut counts.by_session,
            (false, true) => &mut counts.by_sni,
            (false, false) => &mut counts.by_address,
        } += 1;
        if seeker.offer.is_some() {
            *match (by_session, resumes) {
                (true, _) => &mut counts.learned.found,
                (false, true) => &mut counts.learned.unknown,
                (false, false) => &mut counts.learned.unoffered,
            } += 1;
        }
        drop(state);
        let handed = Handed::new(self.clone(), key, choice, self.fallback(seeker));
        Some((choice.node, Box::new(handed)))
    }

    /// Counters so far; `None` where a hash decides, which remembers no client.
    pub fn counts(&self) -> Option<Counts> {
        if self.recipe.is_by_hash() {
            return None;
        }
        let state = self.lock();
        let (sessions, learned) = (state.distributor.sessions(), state.distributor.learned());
        Some(Counts {
            known: sessions.len() as u64,
            evicted: sessions.evicted(),
            learned: LearnedCounts {
                entries: learned.len() as u64,
                evicted: learned.evicted(),
                memory_bytes: learned.memory_bytes() as u64,
                ..state.counts.learned
            },
            ..state.counts
        })
    }

    /// Measured costs of the server with this index.
    pub fn measured(&self, server: usize) -> HandshakeMeter {
        self.lock().meters.get(server).copied().unwrap_or_default()
    }

    /// Stores entries that other nodes learned. Ignores servers of other pools, and entries that have expired.
    pub fn adopt(&self, entries: &[LearnedSession<u64>], now: Unix) {
        if self.recipe.is_by_hash() {
            return;
        }
        let mut state = self.lock();
        for entry in entries {
            let Some(server) = self.node_named(entry.server) else { continue };
            let expires = entry.expires.min(Unix(now.0.saturating_add(LIFETIME_S_MAX)));
            state.distributor.learn(LearnedSession { hash: entry.hash, server, expires }, now);
            state.counts.learned.received += 1;
        }
    }

    /// Forgets a session that another node found to be ended.
    pub fn disown(&self, hash: SessionHash, server: u64, now: Unix) {
        if let Some(node) = self.node_named(server) {
            self.lock().distributor.forget(hash, node, now);
        }
    }

    /// Up to `max` learned entries, the newest first, for a node that has none of them.
    pub fn newest(&self, max: usize, now: Unix) -> Vec<LearnedSession<u64>> {
        let state = self.lock();
        let live = state.distributor.newest().filter(|entry| entry.expires > now).take(max);
        live.filter_map(|entry| {
            let LearnedSession { hash, server, expires } = entry;
            Some(LearnedSession { hash, server: self.name_of(server)?, expires })
        })
        .collect()
    }

    /// The name of a server on the wire.
    pub(super) fn name_of(&self, server: usize) -> Option<u64> {
        self.recipe.costs.get(server).map(|cost| cost.name)
    }

    fn node_named(&self, name: u64) -> Option<usize> {
        let at = self.names.binary_search_by_key(&name, |(name, _)| *name).ok()?;
        self.names.get(at).map(|(_, node)| *node)
    }

    fn key(&self, seeker: &Seeker<'_>) -> SessionKey {
        let name = seeker.offer.and_then(|offer| offer.sessions.server_name.as_deref());
        if let Some(name) = name.filter(|_| self.recipe.fallback == SessionFallback::Sni) {
            return SessionKey(match self.recipe.is_by_hash() {
                true => fnv(name.bytes()),
                false => self.hasher.hash_one(name),
            });
        }
        let client = seeker.address.to_canonical();
        SessionKey(match self.recipe.is_by_hash() {
            // Equal on all nodes and after a restart. The table holds one session only.
            true => source_key(client),
            false => self.hasher.hash_one(client),
        })
    }

    fn is_by_name(&self, seeker: &Seeker<'_>) -> bool {
        self.recipe.fallback == SessionFallback::Sni
            && seeker.offer.is_some_and(|offer| offer.sessions.server_name.is_some())
    }

    /// The name under which a client is known that offers no known session; `None` without an offer.
    fn fallback(&self, seeker: &Seeker<'_>) -> Option<SessionHash> {
        let offer = seeker.offer.as_ref()?;
        Some(match &offer.sessions.server_name {
            Some(name) if self.is_by_name(seeker) => {
                offer.hasher.hash(SessionName::ServerName, name.as_bytes())
            }
            _ => offer.hasher.hash(SessionName::Address, &mapped(seeker.address).octets()),
        })
    }

    /// A panic under the lock ends one connection and leaves numbers behind that are right or slightly old.
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// A server that failed its checks has lost its sessions, whether it is back already or not.
    fn notice_losses(&mut self, servers: &[Arc<ServerRuntime>], now: Micros) {
        for (index, (server, known)) in servers.iter().zip(&mut self.losses).enumerate() {
            let losses = server.losses.load(Ordering::Relaxed);
            if losses != *known {
                *known = losses;
                self.distributor.handle_node_lost(index, now);
            }
        }
    }

    /// Puts the measured costs of a server in force, where they count. A cost without enough samples stays configured.
    pub(super) fn apply_costs(&mut self, recipe: &Recipe, node: usize) {
        let (Some(meter), Some(cost)) = (self.meters.get(node), recipe.costs.get(node)) else { return };
        if recipe.cost_source == CostSource::Measured {
            let in_units = |us: Option<f64>, otherwise| us.map_or(otherwise, |us| us / recipe.unit_us);
            let new = in_units(meter.full.cost_us(), cost.new);
            let resumed = in_units(meter.resumed.cost_us(), cost.resumed);
            self.distributor.set_cost(node, new, resumed);
        }
    }
}

fn mapped(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evergate_balance::{PickRule, Renewal, Scope};
    use std::net::Ipv4Addr;
    use std::sync::atomic::AtomicU64;

    /// A later time with each call.
    fn now() -> Micros {
        static LAST: AtomicU64 = AtomicU64::new(1_000_000);
        Micros(LAST.fetch_add(1, Ordering::Relaxed))
    }

    fn server(id: u64) -> Arc<ServerRuntime> {
        Arc::new(ServerRuntime::new(id, &format!("s{id}")))
    }

    fn recipe(policy: SessionPolicy, servers: &[Arc<ServerRuntime>]) -> Recipe {
        let hour = Micros::from_ms(3_600_000);
        Recipe {
            settings: Settings {
                policy,
                scope: Scope::Node,
                slice: hour,
                lifetime: hour,
                renewal: Renewal::Fixed,
                affinity: hour,
                sessions_max: 1000,
            },
            costs: servers
                .iter()
                .map(|server| NodeCost { name: server.id, new: 10.0, resumed: 1.0 })
                .collect(),
            servers: servers.iter().map(|server| server.id).collect(),
            fallback: SessionFallback::Address,
            cost_source: CostSource::Configured,
            unit_us: 20.0,
        }
    }

    /// Three servers, and their sessions by this policy.
    fn three(policy: SessionPolicy) -> (Vec<Arc<ServerRuntime>>, Arc<Sessions>) {
        let servers: Vec<_> = (0..3).map(server).collect();
        let sessions = Arc::new(Sessions::new(recipe(policy, &servers), &servers));
        (servers, sessions)
    }

    fn loads(servers: &[Arc<ServerRuntime>]) -> Vec<ServerLoad> {
        let load = |server: &Arc<ServerRuntime>| ServerLoad {
            weight: 1,
            outstanding: 0,
            completion_us: 0,
            eligible: server.is_eligible(),
        };
        servers.iter().map(load).collect()
    }

    fn client(number: u32) -> IpAddr {
        Ipv4Addr::from_bits(0x0a00_0000 + number).into()
    }

    fn at(address: IpAddr) -> Seeker<'static> {
        Seeker { address, offer: None }
    }

    /// Sends a request of a client, which the server takes.
    fn serve(sessions: &Arc<Sessions>, servers: &[Arc<ServerRuntime>], from: IpAddr) -> usize {
        let (server, handed) = sessions.choose(&at(from), servers, &loads(servers), (0, 0), now()).unwrap();
        handed.on_connected(now());
        server
    }

    fn counts(sessions: &Sessions) -> Counts {
        sessions.counts().expect("the policy remembers sessions")
    }

    /// Sessions known, and attempts: new, returned, missed.
    fn attempts(sessions: &Sessions) -> [u64; 4] {
        let counts = counts(sessions);
        assert_eq!((counts.by_session, counts.by_sni, counts.learned.entries), (0, 0, 0));
        assert_eq!(counts.by_address, counts.new + counts.returned + counts.missed);
        [counts.known, counts.new, counts.returned, counts.missed]
    }

    const STICKY: SessionPolicy = SessionPolicy::Sticky(PickRule::RoundRobin);

    #[test]
    fn lost_server_has_no_sessions_even_when_it_is_back() {
        let (servers, sessions) = three(STICKY);
        let home = serve(&sessions, &servers, client(1));
        servers[home].handle_checked(false);
        servers[home].handle_checked(true);
        assert_eq!(serve(&sessions, &servers, client(1)), home, "the client itself belongs there");
        assert_eq!(serve(&sessions, &servers, client(1)), home);
        let expected = [1, 1, 1, 1];
        assert_eq!(attempts(&sessions), expected);
    }

    #[test]
    fn only_a_server_that_took_the_connection_has_a_session() {
        let (servers, sessions) = three(STICKY);
        let (_, handed) = sessions.choose(&at(client(1)), &servers, &loads(&servers), (0, 0), now()).unwrap();
        assert_eq!(counts(&sessions).known, 0);
        handed.handle_lost();
        serve(&sessions, &servers, client(1));
        assert_eq!(attempts(&sessions), [1, 2, 0, 0]);
    }

    #[test]
    fn nothing_is_chosen_when_no_server_is_eligible() {
        let (servers, sessions) = three(STICKY);
        servers.iter().for_each(|server| server.handle_checked(false));
        assert!(sessions.choose(&at(client(1)), &servers, &loads(&servers), (0, 0), now()).is_none());
        assert_eq!(attempts(&sessions), [0; 4]);
    }

    #[test]
    fn address_is_one_client_in_both_notations() {
        let (servers, sessions) = three(STICKY);
        let v4 = Ipv4Addr::new(192, 0, 2, 1);
        let home = serve(&sessions, &servers, v4.into());
        assert_eq!(serve(&sessions, &servers, v4.to_ipv6_mapped().into()), home);
        assert_eq!(counts(&sessions).returned, 1);
    }

    #[test]
    fn threads_agree_about_every_client() {
        for policy in [STICKY, SessionPolicy::Sslsard(Default::default())] {
            let (servers, sessions) = three(policy);
            let homes: Vec<usize> = (0..60).map(|n| serve(&sessions, &servers, client(n))).collect();
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| {
                        for round in 0..600 {
                            let number = round % 60;
                            let server = serve(&sessions, &servers, client(number));
                            assert_eq!(server, homes[number as usize], "{policy:?}");
                        }
                    });
                }
            });
            let expected = [60, 60, 2400, 0];
            assert_eq!(attempts(&sessions), expected, "{policy:?}");
        }
    }

    #[test]
    fn successor_adopts_sessions_and_losses_of_remaining_servers() {
        let (servers, sessions) = three(SessionPolicy::Sslsard(Default::default()));
        let homes: Vec<usize> = (0..30).map(|n| serve(&sessions, &servers, client(n))).collect();
        servers[2].handle_checked(false);
        servers[2].handle_checked(true);
        let staying = [servers[2].clone(), servers[1].clone()];
        let recipe = recipe(SessionPolicy::Sslsard(Default::default()), &staying);
        let successor = Arc::new(Sessions::succeeding(recipe, &staying, &sessions, &servers, now()));
        for (number, home) in (0..).zip(homes) {
            let before = counts(&successor);
            let server = serve(&successor, &staying, client(number));
            let after = counts(&successor);
            match home {
                1 => assert_eq!((server, after.returned), (1, before.returned + 1)),
                2 => assert_eq!(after.missed, before.missed + 1, "its sessions were lost"),
                _ => assert_eq!(after.new, before.new + 1, "its server has left"),
            }
        }
    }
}
