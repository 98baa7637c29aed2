//! A request on its way to a server that a session policy chose, and what becomes of it.
//!
//! Without an offer the server counts as having the client's session when it takes the connection. A relayed handshake
//! is settled by its result alone: a finished one is remembered, a failed or lost one is not. A value that is dropped
//! counts as lost.

use super::session_balancer::{LIFETIME_S_MAX, Sessions, State};
use evergate_balance::{Choice, Renewal, SessionFallback, SessionKey};
use evergate_base::session::{LearnedSession, SessionHash};
use evergate_base::{Micros, Unix};
use evergate_tls::{Completed, NewSession, Observation};
use std::sync::Arc;

/// A request that was sent to a server, until its handshake is finished or given up.
#[derive(Debug)]
pub struct Handed {
    sessions: Arc<Sessions>,
    key: SessionKey,
    choice: Choice,
    /// Of a relayed handshake: the name under which its client is known without a session.
    fallback: Option<SessionHash>,
    is_settled: bool,
}

/// What other nodes should know of a handshake. Servers have the names that are equal on all nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HandshakeNews {
    /// Entries that were stored: at most two sessions and a fallback.
    pub learned: Vec<LearnedSession<u64>>,
    /// A session that was ended, and its server.
    pub forgotten: Option<(SessionHash, u64)>,
}

impl Handed {
    pub(super) fn new(
        sessions: Arc<Sessions>,
        key: SessionKey,
        choice: Choice,
        fallback: Option<SessionHash>,
    ) -> Handed {
        Handed { sessions, key, choice, fallback, is_settled: false }
    }

    /// The server took the connection. Without an offer the server counts from now on as the one with the client's
    /// session: how the handshake ends is not visible. A relayed handshake is not settled yet.
    pub fn on_connected(mut self: Box<Self>, now: Micros) -> Option<Box<Handed>> {
        if self.fallback.is_some() {
            return Some(self);
        }
        self.is_settled = true;
        let (key, choice) = (self.key, &self.choice);
        self.sessions.lock().distributor.handle_finished(now, key, choice, choice.resumed);
        None
    }

    /// The relayed handshake is finished, or has failed. Returns what other nodes should know.
    pub fn on_observed(mut self, observation: &Observation, now: Unix) -> HandshakeNews {
        self.is_settled = true;
        let mut news = HandshakeNews::default();
        let sessions = &self.sessions;
        let (node, Some(name)) = (self.choice.node, sessions.name_of(self.choice.node)) else { return news };
        let mut state = sessions.lock();
        let (resumed, completed) = match observation {
            Observation::Resumed(completed) => (true, completed),
            Observation::Full(completed) => (false, completed),
            Observation::Failed(failed) => {
                state.distributor.handle_failed(self.key, &self.choice);
                if let Some(hash) = failed.forget.filter(|hash| state.distributor.forget(*hash, node, now)) {
                    state.counts.learned.forgotten += 1;
                    news.forgotten = Some((hash, name));
                }
                return news;
            }
        };
        state.distributor.handle_lost(&self.choice); // the work is done
        self.measure(&mut state, resumed, completed);
        if sessions.recipe().is_by_hash() {
            return news;
        }
        for session in observation.learned() {
            if let Some(entry) = self.learn(&mut state, session, now) {
                state.counts.learned.learned += 1;
                news.learned.push(LearnedSession { hash: entry.hash, server: name, expires: entry.expires });
            }
        }
        if let Some(entry) = self.learn_fallback(&mut state, now) {
            news.learned.push(LearnedSession { hash: entry.hash, server: name, expires: entry.expires });
        }
        news
    }

    /// The server did not take the connection, or was not asked.
    pub fn handle_lost(self) {
        drop(self);
    }

    fn measure(&self, state: &mut State, resumed: bool, completed: &Completed) {
        if let Some(meter) = state.meters.get_mut(self.choice.node) {
            meter.add(resumed, completed.timing.at_server);
            state.apply_costs(self.sessions.recipe(), self.choice.node);
        }
    }

    /// Stores a session that the server has. A known one keeps its end where lifetimes count from the full handshake.
    fn learn(&self, state: &mut State, session: NewSession, now: Unix) -> Option<LearnedSession<usize>> {
        let (recipe, node) = (self.sessions.recipe(), self.choice.node);
        let NewSession { hash, lifetime_s } = session;
        let is_fixed = recipe.settings.renewal == Renewal::Fixed && lifetime_s.is_none();
        if is_fixed && state.distributor.find([hash], now) == Some(node) {
            return None;
        }
        let lifetime_s = lifetime_s.map_or(recipe.lifetime_s(), u64::from);
        self.store(state, hash, lifetime_s, now)
    }

    /// Remembers the server of the client's last handshake. A server name stays with its server, as long as that has
    /// it: its other clients went there, too.
    fn learn_fallback(&self, state: &mut State, now: Unix) -> Option<LearnedSession<usize>> {
        let (recipe, hash) = (self.sessions.recipe(), self.fallback?);
        let known = state.distributor.find([hash], now);
        if recipe.fallback == SessionFallback::Sni && known.is_some_and(|node| node != self.choice.node) {
            return None;
        }
        self.store(state, hash, recipe.lifetime_s(), now)
    }

    fn store(
        &self,
        state: &mut State,
        hash: SessionHash,
        lifetime_s: u64,
        now: Unix,
    ) -> Option<LearnedSession<usize>> {
        let expires = Unix(now.0.saturating_add(lifetime_s.min(LIFETIME_S_MAX)));
        let entry = LearnedSession { hash, server: self.choice.node, expires };
        state.distributor.learn(entry, now);
        Some(entry)
    }
}

impl Drop for Handed {
    fn drop(&mut self) {
        if self.is_settled {
            return;
        }
        let mut state = self.sessions.lock();
        match self.fallback {
            Some(_) => state.distributor.handle_failed(self.key, &self.choice),
            None => state.distributor.handle_lost(&self.choice),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pools::SessionCounts as Counts;
    use crate::pools::{Offer, Recipe, Seeker, ServerRuntime};
    use evergate_balance::{CostSource, NodeCost, PickRule, SAMPLES_MIN, Scope, ServerLoad};
    use evergate_balance::{SessionPolicy, Settings};
    use evergate_base::session::SessionHasher;
    use evergate_connection::OfferedSessions;
    use evergate_tls::{FailReason, Failed, Timing};
    use std::net::{IpAddr, Ipv4Addr};

    const STICKY: SessionPolicy = SessionPolicy::Sticky(PickRule::RoundRobin);
    const NOW: Unix = Unix(1_800_000_000);
    const LIFETIME_S: u64 = 300;

    /// A pool with three servers.
    struct Rig {
        servers: Vec<Arc<ServerRuntime>>,
        sessions: Arc<Sessions>,
        now: Micros,
        unix: Unix,
        ineligible: Option<usize>,
        /// Clients that offer sessions have them for certain.
        is_certain: bool,
    }

    fn recipe(policy: SessionPolicy, servers: &[Arc<ServerRuntime>]) -> Recipe {
        let lifetime = Micros::from_ms(1000 * LIFETIME_S);
        let settings = Settings {
            policy,
            scope: Scope::Node,
            slice: Micros::from_ms(2000),
            lifetime,
            renewal: Renewal::Fixed,
            affinity: lifetime,
            sessions_max: 100,
        };
        let cost = |server: &Arc<ServerRuntime>| NodeCost { name: server.name_hash, new: 20.0, resumed: 1.0 };
        Recipe {
            settings,
            costs: servers.iter().map(cost).collect(),
            servers: servers.iter().map(|server| server.id).collect(),
            fallback: SessionFallback::Address,
            cost_source: CostSource::Configured,
            unit_us: 20.0,
        }
    }

    fn servers() -> Vec<Arc<ServerRuntime>> {
        [31, 12, 23].map(|id| Arc::new(ServerRuntime::new(id, &format!("s{id}")))).to_vec()
    }

    fn rig(policy: SessionPolicy, change: impl Fn(&mut Recipe)) -> Rig {
        let servers = servers();
        let mut recipe = recipe(policy, &servers);
        change(&mut recipe);
        let sessions = Arc::new(Sessions::new(recipe, &servers));
        Rig { servers, sessions, now: Micros(1), unix: NOW, ineligible: None, is_certain: true }
    }

    fn hash(number: u64) -> SessionHash {
        SessionHash([number << 32 | number, number])
    }

    fn address(number: u32) -> IpAddr {
        Ipv4Addr::from_bits(0x0a00_0000 + number).into()
    }

    fn completed(reused: Option<u64>, made: Option<(u64, Option<u32>)>) -> Completed {
        let made = made.map(|(number, lifetime_s)| NewSession { hash: hash(number), lifetime_s });
        Completed { version: 0x0304, reused: reused.map(hash), made, timing: Timing::default() }
    }

    fn full(number: u64) -> Observation {
        Observation::Full(completed(None, Some((number, None))))
    }

    fn failed(forget: Option<u64>) -> Observation {
        Observation::Failed(Failed { reason: FailReason::Alert(40), forget: forget.map(hash) })
    }

    impl Rig {
        /// A server took the relayed connection of a client that offers these sessions.
        fn dial(&mut self, client: u32, offered: &[u64], name: Option<&str>) -> (usize, Box<Handed>) {
            self.now = self.now + Micros(1);
            let hashes = offered.iter().copied().map(hash).collect();
            let is_certain = self.is_certain && !offered.is_empty();
            let offered = OfferedSessions { hashes, is_certain, server_name: name.map(str::to_owned) };
            let offer = Offer { sessions: &offered, hasher: SessionHasher::new([1, 2]), now: self.unix };
            let seeker = Seeker { address: address(client), offer: Some(offer) };
            let load = |index| ServerLoad {
                weight: 1,
                eligible: self.ineligible != Some(index),
                ..ServerLoad::default()
            };
            let loads: Vec<_> = (0..3).map(load).collect();
            let chosen = self.sessions.choose(&seeker, &self.servers, &loads, (0, 1), self.now);
            let (server, handed) = chosen.expect("a server");
            (server, handed.on_connected(self.now).expect("not settled by a connect"))
        }

        fn serve(&mut self, client: u32, offered: &[u64], result: &Observation) -> (usize, HandshakeNews) {
            let (server, handed) = self.dial(client, offered, None);
            (server, handed.on_observed(result, self.unix))
        }

        fn counts(&self) -> Counts {
            self.sessions.counts().expect("the policy remembers sessions")
        }

        /// Where a client would go that offers these sessions.
        fn home(&mut self, client: u32, offered: &[u64]) -> usize {
            self.dial(client, offered, None).0
        }
    }

    #[test]
    fn session_of_a_finished_handshake_is_known_at_any_address() {
        for policy in [STICKY, SessionPolicy::Sslsard(Default::default())] {
            let mut rig = rig(policy, |_| {});
            let (home, news) = rig.serve(1, &[], &full(70));
            let entries: Vec<_> = news.learned.iter().map(|entry| (entry.server, entry.expires)).collect();
            let expected = (rig.servers[home].name_hash, Unix(NOW.0 + LIFETIME_S));
            assert_eq!((entries, news.forgotten), (vec![expected; 2], None), "{policy:?}");
            for client in 2..8 {
                assert_eq!(rig.home(client, &[99, 70]), home, "{policy:?}");
            }
            let counts = rig.counts();
            assert_eq!((counts.by_session, counts.by_address, counts.returned), (6, 1, 6));
            let learned = counts.learned;
            assert_eq!((learned.found, learned.unknown, learned.unoffered, learned.learned), (6, 0, 1, 1));
            assert_eq!((learned.entries, counts.known), (2, 0));
        }
    }

    #[test]
    fn connect_without_a_handshake_teaches_nothing() {
        let mut rig = rig(STICKY, |_| {});
        let (first, handed) = rig.dial(1, &[], None);
        handed.handle_lost();
        assert_ne!(rig.home(1, &[]), first, "round robin: the client belongs nowhere");
        let (_, news) = rig.serve(1, &[], &failed(None));
        assert_eq!((news, rig.counts().learned.entries), (HandshakeNews::default(), 0));
    }

    #[test]
    fn fatal_alert_ends_the_session_that_the_server_accepted() {
        let mut rig = rig(STICKY, |_| {});
        let (home, _) = rig.serve(1, &[], &full(70));
        let (server, news) = rig.serve(1, &[70], &failed(Some(70)));
        assert_eq!((server, news.learned.len()), (home, 0));
        assert_eq!(news.forgotten, Some((hash(70), rig.servers[home].name_hash)));
        rig.home(2, &[70]);
        let counts = rig.counts();
        assert_eq!((counts.learned.forgotten, counts.learned.unknown, counts.learned.entries), (1, 1, 1));
    }

    #[test]
    fn address_decides_without_a_known_session() {
        let mut rig = rig(STICKY, |_| {});
        let (home, _) = rig.serve(1, &[], &full(70));
        for once in 80..84 {
            assert_eq!(rig.serve(1, &[once], &full(once + 10)).0, home, "a ticket that is used once");
        }
        let counts = rig.counts();
        assert_eq!((counts.by_address, counts.returned, counts.missed), (5, 4, 0));
    }

    #[test]
    fn random_id_of_a_client_is_no_session() {
        let mut rig = rig(STICKY, |_| {});
        rig.is_certain = false;
        let (home, _) = rig.serve(1, &[98], &full(70));
        rig.home(1, &[99]);
        let counts = rig.counts();
        assert_eq!((counts.new, counts.returned, counts.missed), (2, 0, 0), "a full handshake follows");
        assert_eq!((counts.learned.unoffered, counts.learned.unknown), (2, 0));
        assert_eq!(rig.home(2, &[70]), home);
        assert_eq!((rig.counts().learned.found, rig.counts().returned), (1, 1));
    }

    #[test]
    fn session_wins_over_the_address() {
        let mut rig = rig(STICKY, |_| {});
        let (first, _) = rig.serve(1, &[], &full(70));
        rig.ineligible = Some(first);
        let (second, _) = rig.serve(1, &[], &full(71));
        rig.ineligible = None;
        assert_ne!(first, second);
        assert_eq!((rig.home(1, &[70]), rig.home(1, &[71]), rig.home(1, &[])), (first, second, second));
    }

    #[test]
    fn server_name_keeps_its_server() {
        let mut rig = rig(STICKY, |recipe| recipe.fallback = SessionFallback::Sni);
        let serve = |rig: &mut Rig, client, name| {
            let (server, handed) = rig.dial(client, &[], name);
            handed.on_observed(&full(u64::from(client)), NOW);
            server
        };
        let home = serve(&mut rig, 1, Some("a.example"));
        assert!((2..6).all(|client| serve(&mut rig, client, Some("a.example")) == home));
        assert_ne!(serve(&mut rig, 7, Some("b.example")), home);
        rig.ineligible = Some(home);
        serve(&mut rig, 8, Some("a.example"));
        rig.ineligible = None;
        assert_eq!(serve(&mut rig, 9, Some("a.example")), home, "one handshake elsewhere does not move it");
        let unnamed = serve(&mut rig, 10, None);
        assert_eq!(serve(&mut rig, 10, None), unnamed);
        assert_eq!((rig.counts().by_sni, rig.counts().by_address), (8, 2));
    }

    #[test]
    fn lifetime_is_the_servers_hint_or_the_pools() {
        let mut rig = rig(STICKY, |_| {});
        let hinted = |lifetime_s| Observation::Full(completed(None, Some((70, Some(lifetime_s)))));
        let until = |news: HandshakeNews| news.learned[0].expires.0 - NOW.0;
        assert_eq!(until(rig.serve(1, &[], &hinted(7200)).1), 7200);
        assert_eq!(until(rig.serve(1, &[], &hinted(u32::MAX)).1), LIFETIME_S_MAX);
        assert_eq!(until(rig.serve(1, &[], &full(71)).1), LIFETIME_S);
        rig.unix.0 += LIFETIME_S / 2;
        let resumed = Observation::Resumed(completed(Some(71), None));
        let (_, news) = rig.serve(1, &[71], &resumed);
        assert_eq!(news.learned.len(), 1, "only the address: the session ends as before");
        rig.unix.0 += LIFETIME_S / 2;
        rig.home(2, &[71]);
        assert_eq!(rig.counts().learned.unknown, 1, "it has expired");
    }

    #[test]
    fn lost_server_has_none_of_its_learned_sessions() {
        let mut rig = rig(STICKY, |_| {});
        let (home, _) = rig.serve(1, &[], &full(70));
        rig.servers[home].handle_checked(false);
        rig.servers[home].handle_checked(true);
        rig.home(2, &[70]);
        assert_eq!((rig.counts().learned.found, rig.counts().learned.unknown), (0, 1));
    }

    #[test]
    fn reload_keeps_the_sessions_of_remaining_servers() {
        let mut rig = rig(STICKY, |recipe| recipe.cost_source = CostSource::Measured);
        let homes: Vec<usize> = (0..6).map(|n| rig.serve(n, &[], &full(100 + u64::from(n))).0).collect();
        let staying = vec![rig.servers[2].clone(), rig.servers[0].clone()];
        let recipe = recipe(STICKY, &staying);
        let successor = Sessions::succeeding(recipe, &staying, &rig.sessions, &rig.servers, rig.now);
        assert_eq!(successor.measured(0), rig.sessions.measured(2));
        assert_eq!(successor.measured(0).full.samples(), 2);
        (rig.servers, rig.sessions, rig.ineligible) = (staying, Arc::new(successor), Some(2));
        for (number, home) in (100..).zip(homes) {
            let found = rig.counts().learned.found;
            let server = rig.home(90 + number as u32, &[number]);
            match home {
                0 => assert_eq!((server, rig.counts().learned.found), (1, found + 1)),
                2 => assert_eq!((server, rig.counts().learned.found), (0, found + 1)),
                _ => assert_eq!(rig.counts().learned.found, found, "its server has left"),
            }
        }
    }

    #[test]
    fn news_of_another_node_are_known_here() {
        let (mut here, mut there) = (rig(STICKY, |_| {}), rig(STICKY, |_| {}));
        here.home(9, &[]); // the two are at different places of their turn
        let (home, news) = here.serve(1, &[], &full(70));
        there.sessions.adopt(&news.learned, NOW);
        assert_eq!((there.home(5, &[70]), there.home(1, &[])), (home, home));
        assert_eq!(there.counts().learned.received, 2);
        assert_eq!(there.sessions.newest(1, NOW), [news.learned[1]], "the newest");
        let all: Vec<_> = news.learned.iter().rev().copied().collect();
        assert_eq!(there.sessions.newest(10, NOW), all);
        assert_eq!(there.sessions.newest(10, Unix(NOW.0 + LIFETIME_S)), []);
        there.sessions.disown(hash(70), 4711, NOW);
        assert_eq!(there.counts().learned.entries, 2, "no server of this pool");
        there.sessions.disown(hash(70), there.servers[home].name_hash, NOW);
        assert_eq!(there.counts().learned.entries, 1);
    }

    #[test]
    fn entries_of_a_malicious_node_are_bounded() {
        let rig = rig(STICKY, |_| {});
        let entry = |number, server, expires| LearnedSession { hash: hash(number), server, expires };
        let name = rig.servers[0].name_hash;
        let forever = entry(1, name, Unix(u64::MAX));
        rig.sessions.adopt(&[forever, entry(2, name, NOW), entry(3, 4711, Unix(u64::MAX))], NOW);
        let expected = entry(1, name, Unix(NOW.0 + LIFETIME_S_MAX));
        assert_eq!(rig.sessions.newest(10, NOW), [expected]);
        let many: Vec<_> = (0..1000).map(|number| entry(number, name, Unix(NOW.0 + 9))).collect();
        rig.sessions.adopt(&many, NOW);
        assert_eq!(rig.counts().learned.entries, 100);
    }

    #[test]
    fn measured_costs_count_after_enough_handshakes() {
        let sslsard = SessionPolicy::Sslsard(Default::default());
        for (cost_source, expected) in [(CostSource::Configured, 20.0), (CostSource::Measured, 5.0)] {
            let mut rig = rig(sslsard, |recipe| recipe.cost_source = cost_source);
            let timing = Timing { at_server: Micros(100), ..Timing::default() };
            let result = Observation::Full(Completed { timing, ..completed(None, None) });
            rig.ineligible = Some(1);
            let mut last = 20.0;
            for number in 0..3 * SAMPLES_MIN {
                let (server, handed) = rig.dial(number, &[], None);
                last = if server == 0 { handed.choice.work } else { last };
                handed.on_observed(&result, NOW);
            }
            assert_eq!(last, expected, "{cost_source:?}");
            assert_eq!(rig.sessions.measured(0).full.cost_us(), Some(100.0));
            assert_eq!(rig.sessions.measured(1).full.cost_us(), None);
        }
    }

    #[test]
    fn hash_policy_goes_by_name_and_learns_nothing() {
        let policy = SessionPolicy::BoundedHash { load_percent_max: 125 };
        let mut rig = rig(policy, |recipe| recipe.fallback = SessionFallback::Sni);
        let (home, handed) = rig.dial(1, &[], Some("a.example"));
        let news = handed.on_observed(&full(70), NOW);
        assert_eq!((news, rig.sessions.newest(9, NOW)), (HandshakeNews::default(), vec![]));
        assert!((2..9).all(|client| rig.dial(client, &[70], Some("a.example")).0 == home));
    }
}
