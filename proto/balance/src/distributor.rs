//! Request distributor in front of TLS terminators: a policy, the known sessions and the assigned work.
//!
//! A session is known in one of two ways. Where the caller reads handshakes, it names sessions by hashes:
//! [`Distributor::find`] looks the offered ones up, and [`Distributor::learn`] stores those of a finished handshake.
//! Else a key stands for the client, and with it for its session: [`Distributor::handle_finished`] stores it. The
//! decision is the same: [`Distributor::distribute`]. State of each policy:
//!
//! | policy | sessions | loads | outstanding |
//! |---|---|---|---|
//! | `Spread` (round robin, least outstanding, power of two) | | | yes |
//! | `Spread(LeastExpectedCompletion)` | where cached | | work under way |
//! | `Sticky`, `Lard` | which node the client went to | | yes |
//! | `BoundedHash` | | | yes |
//! | `Sslsard` | where cached | equation (1) | |
//!
//! A learned session counts as "where cached", and as the node that the client went to.
//!
//! CSSL-SL is `Spread(RoundRobin)` with [`Scope::Broadcast`], shared ticket keys are any policy with [`Scope::Shared`].
//!
//! Invariants: an ineligible node is never chosen; no function allocates after [`Distributor::new`]; work under way is
//! never negative. This module does not measure costs, monitor nodes or parse a ClientHello.

use crate::distribution::{Node, Weights, place_new, place_resuming};
use crate::picker::{PickRule, Picker, ServerLoad};
use crate::source::bounded_server;
use crate::table::{Origin, Renewal, SessionKey, SessionTable};
use crate::{LearnedSessions, LoadEstimator, Policy, Scope};
use evergate_base::session::{LearnedSession, SessionHash};
use evergate_base::{Micros, Unix};

/// Policy of a [`Distributor`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SessionPolicy {
    /// By the nodes' weights and load; sessions do not matter (except for `LeastExpectedCompletion`, see the module).
    /// With `RoundRobin` the paper's WRR.
    Spread(PickRule),
    /// A client stays with its node; the rule chooses its first node, and another one when that is lost. With
    /// `RoundRobin` the paper's SSL_session_only; with `LeastOutstanding` clients are placed better.
    Sticky(PickRule),
    /// A client stays with its node, unless that one has more than `high` requests outstanding while another has fewer
    /// than `low`, or twice `high`. The client then moves to the least loaded node (Pai et al. 1998). Counts are scaled
    /// to nodes of equal weight.
    Lard {
        /// T_low, in outstanding requests.
        low: u32,
        /// T_high, in outstanding requests.
        high: u32,
    },
    /// Consistent hashing of the key, with this percentage of the fair share as the bound; see [`bounded_server`].
    BoundedHash {
        /// At least 100.
        load_percent_max: u32,
    },
    /// Problems 1 and 2 of SSLSARD.
    Sslsard(Weights),
}

/// Parameters of policies; their meaning is in [`SessionPolicy`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PolicyParameters {
    /// Constants of [`Policy::Sslsard`].
    pub weights: Weights,
    /// T_low of [`Policy::Lard`].
    pub lard_low: u32,
    /// T_high of [`Policy::Lard`].
    pub lard_high: u32,
    /// Bound of [`Policy::BoundedHash`].
    pub load_percent_max: u32,
}

impl SessionPolicy {
    /// Whether the policy looks at sessions that were learned by name.
    pub fn is_by_session(self) -> bool {
        match self {
            SessionPolicy::Spread(rule) => rule == PickRule::LeastExpectedCompletion,
            SessionPolicy::BoundedHash { .. } => false,
            SessionPolicy::Sticky(_) | SessionPolicy::Lard { .. } | SessionPolicy::Sslsard(_) => true,
        }
    }

    /// The distributor's policy for a configured one.
    pub fn new(policy: Policy, parameters: &PolicyParameters) -> SessionPolicy {
        let PolicyParameters { weights, lard_low, lard_high, load_percent_max } = *parameters;
        match policy {
            Policy::RoundRobin
            | Policy::LeastOutstanding
            | Policy::PowerOfTwo
            | Policy::LeastExpectedCompletion => SessionPolicy::Spread(policy.pick_rule()),
            Policy::SessionOnly => SessionPolicy::Sticky(PickRule::RoundRobin),
            Policy::StickyLeastOutstanding => SessionPolicy::Sticky(PickRule::LeastOutstanding),
            Policy::Lard => SessionPolicy::Lard { low: lard_low, high: lard_high },
            Policy::BoundedHash => SessionPolicy::BoundedHash { load_percent_max },
            Policy::Sslsard => SessionPolicy::Sslsard(weights),
        }
    }
}

/// Settings of a [`Distributor`].
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Choice of nodes.
    pub policy: SessionPolicy,
    /// Nodes on which a session can be resumed.
    pub scope: Scope,
    /// ΔT of equation (1).
    pub slice: Micros,
    /// Lifetime of a session.
    pub lifetime: Micros,
    /// Start of the lifetime.
    pub renewal: Renewal,
    /// How long `Sticky` and `Lard` remember an idle client.
    pub affinity: Micros,
    /// Limit of learned sessions, of remembered sessions, and of remembered clients; see [`LearnedSessions`] and
    /// [`SessionTable`] for the behaviour at the limit.
    pub sessions_max: usize,
}

/// Costs of a node. One unit of work is the cost of a resumed request on a reference node.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NodeCost {
    /// Stable hash of its name.
    pub name: u64,
    /// `p_{i,new}`: the load of a request with a full handshake, in units of work.
    pub new: f64,
    /// `p_{i,reu}`: the load of a request that resumes a session, in units of work.
    pub resumed: f64,
}

/// A request to be distributed.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    /// Now.
    pub now: Micros,
    /// The client or its session: a key that is equal for all its requests.
    pub key: SessionKey,
    /// The node that has its session, or finished its last handshake, by [`Distributor::find`].
    pub known: Option<usize>,
    /// Whether its ClientHello offers a session, or is expected to.
    pub resumes: bool,
    /// Uniform over 64 bits; for `PowerOfTwo`.
    pub random: u64,
}

/// Decision for a request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    /// Index of the node.
    pub node: usize,
    /// The expected work on that node.
    pub work: f64,
    /// Whether the session is expected to be resumed.
    pub resumed: bool,
    /// Time of the decision.
    pub at: Micros,
}

/// Distributor of requests; see the module.
#[derive(Clone, Debug)]
pub struct Distributor {
    policy: SessionPolicy,
    scope: Scope,
    picker: Picker,
    costs: Vec<NodeCost>,
    names: Vec<u64>,
    up_since: Vec<Micros>,
    /// Assigned work that has not finished.
    pending: Vec<f64>,
    estimator: LoadEstimator,
    /// Sessions by the names that handshakes show. Their servers are the nodes' numbers.
    learned: LearnedSessions,
    /// The present number of each node: its index plus a multiple of the number of nodes. A node that has lost its
    /// sessions gets another number, so that none of them is found.
    numbers: Vec<u32>,
    /// Sessions by the clients' keys.
    sessions: SessionTable,
    /// The node of each client; for `Sticky` and `Lard`.
    clients: SessionTable,
    /// Scratch memory of one decision.
    nodes: Vec<Node>,
    loads: Vec<ServerLoad>,
}

/// Microseconds per unit of work in `completion_us`: only the order of the sums matters, so the unit is small.
const COMPLETION_PER_UNIT: f64 = 1e6;

impl Distributor {
    /// A distributor in front of these nodes.
    pub fn new(settings: &Settings, costs: &[NodeCost]) -> Distributor {
        let placement = match settings.policy {
            SessionPolicy::Spread(rule) | SessionPolicy::Sticky(rule) => rule,
            _ => PickRule::LeastOutstanding,
        };
        let remembers_clients =
            matches!(settings.policy, SessionPolicy::Sticky(_) | SessionPolicy::Lard { .. });
        let clients_max = if remembers_clients { settings.sessions_max } else { 1 };
        let learned_max = if settings.policy.is_by_session() { settings.sessions_max } else { 1 };
        Distributor {
            policy: settings.policy,
            scope: settings.scope,
            picker: Picker::new(placement, costs.len()),
            costs: costs.to_vec(),
            names: costs.iter().map(|cost| cost.name).collect(),
            up_since: vec![Micros(0); costs.len()],
            pending: vec![0.0; costs.len()],
            estimator: LoadEstimator::new(settings.slice, costs.len()),
            learned: LearnedSessions::new(learned_max),
            numbers: (0..costs.len() as u32).collect(),
            sessions: SessionTable::new(settings.sessions_max, settings.lifetime, settings.renewal),
            clients: SessionTable::new(clients_max, settings.affinity, Renewal::Sliding),
            nodes: Vec::with_capacity(costs.len()),
            loads: Vec::with_capacity(costs.len()),
        }
    }

    /// Chooses a node and counts the work as assigned to it; `None` when no node is eligible. `servers` has the nodes'
    /// weights, outstanding requests and eligibility, in the order of the costs.
    pub fn distribute(&mut self, arrival: &Arrival, servers: &[ServerLoad]) -> Option<Choice> {
        self.estimator.advance(arrival.now);
        let origin = match arrival.known {
            _ if !arrival.resumes => None,
            Some(node) => Some(Origin { node, since: arrival.now }),
            None => self.sessions.get(arrival.key, arrival.now),
        };
        let servers = servers.get(..self.costs.len()).unwrap_or(servers);
        let node = match self.policy {
            SessionPolicy::Spread(PickRule::LeastExpectedCompletion) => {
                self.least_expected_completion(arrival, origin, servers)?
            }
            SessionPolicy::Spread(_) => self.picker.pick(servers, arrival.random)?,
            SessionPolicy::Sticky(_) => self.sticky(arrival, servers, |_, _| false)?,
            SessionPolicy::Lard { low, high } => {
                let distributors = u64::from(self.estimator.distributors());
                let leaves =
                    |servers: &[ServerLoad], node| is_overloaded(servers, node, (low, high), distributors);
                self.sticky(arrival, servers, leaves)?
            }
            SessionPolicy::BoundedHash { load_percent_max } => {
                bounded_server(arrival.key.0, &self.names, servers, load_percent_max)?
            }
            SessionPolicy::Sslsard(weights) => self.sslsard(arrival, origin, servers, &weights)?,
        };
        let resumed = self.is_cached(origin, node, arrival.now);
        let work = self.work(node, resumed);
        self.estimator.add(node, work);
        if let Some(pending) = self.pending.get_mut(node) {
            *pending += work;
        }
        Some(Choice { node, work, resumed, at: arrival.now })
    }

    /// The node that has the first known one of these sessions. Sessions that a node had lost are unknown.
    pub fn find(&mut self, hashes: impl IntoIterator<Item = SessionHash>, now: Unix) -> Option<usize> {
        hashes.into_iter().find_map(|hash| {
            let number = self.learned.find(hash, now)?;
            self.node_of(number)
        })
    }

    /// Stores a session of a finished handshake. Ignores an unknown node, and a session that has expired.
    pub fn learn(&mut self, session: LearnedSession<usize>, now: Unix) {
        let LearnedSession { hash, server, expires } = session;
        if let Some(&number) = self.numbers.get(server) {
            self.learned.insert(LearnedSession { hash, server: number, expires }, now);
        }
    }

    /// Forgets a session of this node. Returns whether it was known.
    pub fn forget(&mut self, hash: SessionHash, node: usize, now: Unix) -> bool {
        let known = self.learned.peek(hash, now).and_then(|number| self.node_of(number));
        known == Some(node) && self.learned.remove(hash)
    }

    /// The learned sessions and their nodes, from the newest on, expired ones included.
    pub fn newest(&self) -> impl Iterator<Item = LearnedSession<usize>> + '_ {
        self.learned.newest().filter_map(|session| {
            let LearnedSession { hash, server, expires } = session;
            Some(LearnedSession { hash, server: self.node_of(server)?, expires })
        })
    }

    /// The table of learned sessions.
    pub fn learned(&self) -> &LearnedSessions {
        &self.learned
    }

    /// Records that a request sent as `choice` was served; `resumed` is the result of its handshake.
    pub fn handle_finished(&mut self, now: Micros, key: SessionKey, choice: &Choice, resumed: bool) {
        self.handle_lost(choice);
        if resumed {
            self.sessions.renew(key, now);
        } else {
            self.sessions.insert(key, choice.node, now);
        }
    }

    /// Records that a request sent as `choice` will not be served.
    pub fn handle_lost(&mut self, choice: &Choice) {
        if let Some(pending) = self.pending.get_mut(choice.node) {
            *pending = (*pending - choice.work).max(0.0);
        }
    }

    /// Records that a handshake of a request sent as `choice` did not finish: the client is not taken for one of that
    /// node because of this request.
    pub fn handle_failed(&mut self, key: SessionKey, choice: &Choice) {
        self.handle_lost(choice);
        let placed = Origin { node: choice.node, since: choice.at };
        if self.clients.get(key, choice.at) == Some(placed) {
            self.clients.remove(key);
        }
    }

    /// Replaces the costs of a node, in the units of the others.
    pub fn set_cost(&mut self, node: usize, new: f64, resumed: f64) {
        if let Some(cost) = self.costs.get_mut(node) {
            (cost.new, cost.resumed) = (new, resumed);
        }
    }

    /// Number of distributors with an equal share of the arrivals, this one included; 1 at the start. Each sees only
    /// its own share, so loads and outstanding requests count so many times.
    pub fn set_distributors(&mut self, distributors: u32) {
        self.estimator.set_distributors(distributors);
    }

    /// Records that a node has lost its work and its sessions. The caller must mark it as ineligible while it is down.
    pub fn handle_node_lost(&mut self, node: usize, now: Micros) {
        self.estimator.clear(node);
        if let Some(pending) = self.pending.get_mut(node) {
            *pending = 0.0;
        }
        self.handle_node_up(node, now);
    }

    /// Records that a node has come up, without sessions.
    pub fn handle_node_up(&mut self, node: usize, now: Micros) {
        if let Some(since) = self.up_since.get_mut(node) {
            *since = now;
        }
        let nodes = self.numbers.len() as u32;
        if let Some(number) = self.numbers.get_mut(node) {
            *number = number.checked_add(nodes).unwrap_or(node as u32);
        }
    }

    /// Copies the sessions of another distributor with the same kind of policy: node i there is node `renumbered[i]`
    /// here, if that is `Some`. Loads start at zero.
    pub fn inherit(&mut self, former: &Distributor, renumbered: &[Option<usize>]) {
        for LearnedSession { hash, server, expires } in former.learned.newest().rev() {
            let node = former.node_of(server).and_then(|node| renumbered.get(node).copied().flatten());
            if let Some(node) = node {
                self.learn(LearnedSession { hash, server: node, expires }, Unix(0));
            }
        }
        self.sessions.inherit(&former.sessions, renumbered);
        self.clients.inherit(&former.clients, renumbered);
        for (since, node) in former.up_since.iter().zip(renumbered) {
            if let Some(place) = node.and_then(|node| self.up_since.get_mut(node)) {
                *place = *since;
            }
        }
    }

    /// Equation (1) for every policy, in units of work per second, after [`observe`](Self::observe) or a decision.
    pub fn load(&self, node: usize) -> f64 {
        self.estimator.load(node)
    }

    /// Moves the window of the loads to `now`.
    pub fn observe(&mut self, now: Micros) {
        self.estimator.advance(now);
    }

    /// The known sessions.
    pub fn sessions(&self) -> &SessionTable {
        &self.sessions
    }

    /// The node with this number; `None` for a number before a loss.
    fn node_of(&self, number: u32) -> Option<usize> {
        let node = number.checked_rem(self.numbers.len() as u32)? as usize;
        (self.numbers.get(node) == Some(&number)).then_some(node)
    }

    fn is_cached(&self, origin: Option<Origin>, node: usize, now: Micros) -> bool {
        let since = self.up_since.get(node).copied().unwrap_or_default();
        origin.is_some_and(|origin| self.scope.is_resumable(origin, node, since, now))
    }

    fn work(&self, node: usize, resumed: bool) -> f64 {
        self.costs.get(node).map_or(0.0, |cost| if resumed { cost.resumed } else { cost.new })
    }

    fn sslsard(
        &mut self,
        arrival: &Arrival,
        origin: Option<Origin>,
        servers: &[ServerLoad],
        weights: &Weights,
    ) -> Option<usize> {
        let mut nodes = std::mem::take(&mut self.nodes);
        nodes.clear();
        let costs = servers.iter().zip(&self.costs).zip(self.estimator.loads());
        nodes.extend(costs.enumerate().map(|(index, ((server, cost), load))| {
            let cached = self.is_cached(origin, index, arrival.now);
            let work = if cached { cost.resumed } else { cost.new };
            Node { load, work, cached, eligible: server.eligible && server.weight > 0 }
        }));
        let span_s = self.estimator.span_s();
        let node = match origin {
            Some(_) => place_resuming(&nodes, span_s, weights),
            None => place_new(&nodes, span_s),
        };
        self.nodes = nodes;
        node
    }

    fn least_expected_completion(
        &mut self,
        arrival: &Arrival,
        origin: Option<Origin>,
        servers: &[ServerLoad],
    ) -> Option<usize> {
        let mut loads = std::mem::take(&mut self.loads);
        loads.clear();
        loads.extend(servers.iter().enumerate().map(|(index, server)| {
            let work = self.work(index, self.is_cached(origin, index, arrival.now));
            let pending = self.pending.get(index).copied().unwrap_or(0.0);
            ServerLoad { completion_us: ((pending + work) * COMPLETION_PER_UNIT) as u64, ..*server }
        }));
        let node = self.picker.pick(&loads, arrival.random);
        self.loads = loads;
        node
    }

    /// The client's node, or one chosen by the picker for a client that has none or should leave it.
    fn sticky(
        &mut self,
        arrival: &Arrival,
        servers: &[ServerLoad],
        should_leave: impl Fn(&[ServerLoad], usize) -> bool,
    ) -> Option<usize> {
        let placed = || self.clients.get(arrival.key, arrival.now).map(|origin| origin.node);
        let home = arrival.known.or_else(placed);
        let may_stay = |node: &usize| {
            servers.get(*node).is_some_and(|server| server.eligible && server.weight > 0)
                && !should_leave(servers, *node)
        };
        if let Some(node) = home.filter(may_stay) {
            if arrival.known.is_none() {
                self.clients.renew(arrival.key, arrival.now);
            }
            return Some(node);
        }
        let node = self.picker.pick(servers, arrival.random)?;
        self.clients.insert(arrival.key, node, arrival.now);
        Some(node)
    }
}

/// LARD's condition for leaving a node. Outstanding requests are scaled to a node of mean weight, o·W/(N·w), and to all
/// distributors.
fn is_overloaded(servers: &[ServerLoad], node: usize, (low, high): (u32, u32), distributors: u64) -> bool {
    let usable = || servers.iter().filter(|server| server.eligible && server.weight > 0);
    let weights: u128 = usable().map(|server| u128::from(server.weight)).sum();
    let count = usable().count() as u128;
    let scaled = |server: &ServerLoad| u128::from(u64::from(server.outstanding) * distributors) * weights;
    let bound =
        |server: &ServerLoad, outstanding: u64| u128::from(outstanding) * count * u128::from(server.weight);
    let Some(server) = servers.get(node) else { return true };
    let load = scaled(server);
    load >= bound(server, 2 * u64::from(high))
        || (load > bound(server, u64::from(high))
            && usable().any(|other| scaled(other) < bound(other, u64::from(low))))
}
