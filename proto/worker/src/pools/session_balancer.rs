//! Pools that choose a server by session: one [`Distributor`] per pool, shared by all workers. The simulator uses the
//! same code.
//!
//! The connections carry TLS between the client and a server, so the session itself is not visible, and a client is
//! identified by its address. A client that a server answered within the lifetime of sessions is expected to resume
//! there.
//!
//! Invariants: a decision is one short critical section that allocates nothing; pools of other policies never come
//! here; the distributor's memory is bounded. Not here: the choice of eligible servers (the worker's job), and the
//! detection of dead servers (the health checks' job).

use super::server_state::ServerRuntime;
use evergate_balance::{
    Arrival, Choice, Distributor, NodeCost, ServerLoad, SessionKey, SessionPolicy, Settings, source_key,
};
use evergate_base::Micros;
use std::hash::{BuildHasher, RandomState};
use std::mem::discriminant;
use std::net::IpAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Parameters of a [`Sessions`](Sessions). After a reload with the same recipe, the old one continues to serve.
#[derive(Clone, Debug, PartialEq)]
pub struct Recipe {
    /// The distributor's settings.
    pub settings: Settings,
    /// Role of each server, in the order of the pool.
    pub costs: Vec<NodeCost>,
    /// The servers' ids, in the same order.
    pub servers: Vec<u64>,
}

/// The sessions of a pool; see the module.
#[derive(Debug)]
pub struct Sessions {
    recipe: Recipe,
    /// Keyed, so that no client can choose addresses that share a bucket of the table.
    hasher: RandomState,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    distributor: Distributor,
    /// Losses of each server up to the last update of the distributor.
    losses: Vec<u64>,
    counts: Counts,
}

/// How requests were sent, since the pool came into force with this recipe. One that is sent again, because its server
/// did not take the connection, counts again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Sessions known now, including expired ones that were not accessed since.
    pub known: u64,
    /// Sessions forgotten before their time because there were too many.
    pub evicted: u64,
    /// Requests of clients that no server was known to have a session of.
    pub new: u64,
    /// Requests sent to a server that has the client's session.
    pub returned: u64,
    /// Requests sent elsewhere although a session was known: its server was lost, could not take it, or was too busy.
    pub missed: u64,
}

/// A request that was sent to a server, until its connection is made or given up.
#[derive(Debug)]
pub struct Handed {
    sessions: Arc<Sessions>,
    key: SessionKey,
    choice: Choice,
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
}

impl Sessions {
    /// Knows nothing yet.
    pub fn new(recipe: Recipe, servers: &[Arc<ServerRuntime>]) -> Sessions {
        let state = State {
            distributor: Distributor::new(&recipe.settings, &recipe.costs),
            losses: servers.iter().map(|server| server.losses.load(Ordering::Relaxed)).collect(),
            counts: Counts::default(),
        };
        Sessions { recipe, hasher: RandomState::new(), state: Mutex::new(state) }
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
        let known = {
            let mut state = former.lock();
            state.notice_losses(former_servers, now);
            state.distributor.clone()
        };
        fresh
            .state
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner)
            .distributor
            .inherit(&known, &renumbered);
        fresh
    }

    /// Its recipe.
    pub fn recipe(&self) -> &Recipe {
        &self.recipe
    }

    /// Chooses a server for a client among the eligible servers by `loads`, which has the order of `servers`.
    /// `random` is uniform over 64 bits.
    pub fn choose(
        self: &Arc<Sessions>,
        client: IpAddr,
        servers: &[Arc<ServerRuntime>],
        loads: &[ServerLoad],
        random: u64,
        now: Micros,
    ) -> Option<(usize, Box<Handed>)> {
        let key = self.key(client);
        let mut state = self.lock();
        state.notice_losses(servers, now);
        // A client without a known session offers none, as far as this node can detect.
        let known = state.distributor.sessions().get(key, now).is_some();
        let arrival = Arrival { now, key, resumes: known, random };
        let choice = state.distributor.distribute(&arrival, loads)?;
        let counts = &mut state.counts;
        let count = match (known, choice.resumed) {
            (false, _) => &mut counts.new,
            (true, true) => &mut counts.returned,
            (true, false) => &mut counts.missed,
        };
        *count += 1;
        drop(state);
        Some((choice.node, Box::new(Handed { sessions: self.clone(), key, choice })))
    }

    /// Counters so far; `None` where a hash decides, which remembers no client.
    pub fn counts(&self) -> Option<Counts> {
        if self.recipe.is_by_hash() {
            return None;
        }
        let state = self.lock();
        let sessions = state.distributor.sessions();
        Some(Counts { known: sessions.len() as u64, evicted: sessions.evicted(), ..state.counts })
    }

    fn key(&self, client: IpAddr) -> SessionKey {
        let client = client.to_canonical();
        SessionKey(match self.recipe.is_by_hash() {
            // Equal on all nodes and after a restart. The table holds one session only.
            true => source_key(client),
            false => self.hasher.hash_one(client),
        })
    }

    /// A panic under the lock ends one connection and leaves numbers behind that are right or slightly old.
    fn lock(&self) -> MutexGuard<'_, State> {
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
}

impl Handed {
    /// The server took the connection: from now on it has the client's session.
    pub fn on_connected(self, now: Micros) {
        let (key, choice) = (self.key, &self.choice);
        self.sessions.lock().distributor.handle_finished(now, key, choice, choice.resumed);
    }

    /// The server did not take the connection, or was not asked.
    pub fn handle_lost(self) {
        self.sessions.lock().distributor.handle_lost(&self.choice);
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

    /// Sends a request of a client, which the server takes.
    fn serve(sessions: &Arc<Sessions>, servers: &[Arc<ServerRuntime>], from: IpAddr) -> usize {
        let (server, handed) = sessions.choose(from, servers, &loads(servers), 0, now()).unwrap();
        handed.on_connected(now());
        server
    }

    fn counts(sessions: &Sessions) -> Counts {
        sessions.counts().expect("the policy remembers sessions")
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
        let expected = Counts { known: 1, evicted: 0, new: 1, returned: 1, missed: 1 };
        assert_eq!(counts(&sessions), expected);
    }

    #[test]
    fn only_a_server_that_took_the_connection_has_a_session() {
        let (servers, sessions) = three(STICKY);
        let (_, handed) = sessions.choose(client(1), &servers, &loads(&servers), 0, now()).unwrap();
        assert_eq!(counts(&sessions).known, 0);
        handed.handle_lost();
        serve(&sessions, &servers, client(1));
        assert_eq!(counts(&sessions), Counts { known: 1, evicted: 0, new: 2, returned: 0, missed: 0 });
    }

    #[test]
    fn nothing_is_chosen_when_no_server_is_eligible() {
        let (servers, sessions) = three(STICKY);
        servers.iter().for_each(|server| server.handle_checked(false));
        assert!(sessions.choose(client(1), &servers, &loads(&servers), 0, now()).is_none());
        assert_eq!(counts(&sessions), Counts::default());
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
            let expected = Counts { known: 60, evicted: 0, new: 60, returned: 2400, missed: 0 };
            assert_eq!(counts(&sessions), expected, "{policy:?}");
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
