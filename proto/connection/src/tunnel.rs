//! Connections that are routed as a whole: rules decide once, and one tunnel to a server follows.

use crate::client_leg::ClientTls;
use crate::connection::Connection;
use crate::request::decision_of;
use crate::routing::{Action, RouteDecision};
use crate::server_leg::ServerLeg;
use crate::timers::Timer;
use crate::{Io, ServerHint, Stickiness};
use evergate_replication::{Route, RouteFlags};
use evergate_rules::{Deny, Outcome, Request, RuleId, Scratch, TlsFacts};
use evergate_tls::alert;

impl Connection {
    /// A plain connection, or a terminated TLS stream, goes to its pool as one tunnel.
    pub(crate) fn open_tunnel(&mut self, io: &mut Io<'_>) {
        self.begin_log(io, None);
        let decision = self.decide_connection(&mut io.scratch.rules, self.tls_facts());
        self.enter_tunnel(io, decision);
    }

    /// Facts of the client's session, where this node terminates TLS.
    fn tls_facts(&self) -> Option<TlsFacts<'_>> {
        self.client.info.as_ref().map(|facts| TlsFacts {
            sni: facts.sni.as_deref(),
            alpn: facts.alpn.as_deref(),
            version: facts.version,
            client_subject: facts.subject.as_deref(),
        })
    }

    /// Asks the rules that name the listener.
    pub(crate) fn decide_connection(
        &self,
        scratch: &mut Scratch,
        tls: Option<TlsFacts<'_>>,
    ) -> RouteDecision {
        let listener = self.listener();
        if !listener.asks_rules {
            return RouteDecision::default();
        }
        let request = Request::of_connection(&listener.name, self.client_address, self.local_address, tls);
        match self.snapshot.rules.decide(&request, scratch) {
            Outcome::Decided(decision) => decision_of(&decision),
            Outcome::NeedBody => RouteDecision::default(), // never: the body is complete
        }
    }

    /// Carries out what was decided about the connection.
    pub(crate) fn enter_tunnel(&mut self, io: &mut Io<'_>, decision: RouteDecision) {
        let name = match self.offered_sessions() {
            Some(offered) => offered.server_name.clone(),
            None => self.client.info.as_ref().and_then(|facts| facts.sni.clone()),
        };
        if !self.passes_limits(io, &decision, name.unwrap_or_default().as_bytes()) {
            return self.deny_connection(io, Deny::Reset, "rate_limited");
        }
        let (pool, sticky) = match decision.terminal {
            Action::Deny(deny) => return self.deny_connection(io, deny, "denied_by_rule"),
            Action::Route(index, sticky) => (self.snapshot.rule_pools.get(index as usize).copied(), sticky),
            Action::Default | Action::Redirect(..) => (self.listener().pool, None),
        };
        match pool {
            Some(pool) => self.dial_tunnel(io, pool, sticky, decision.matched),
            None if self.offered_sessions().is_some() => {
                self.deny_connection(io, Deny::UnrecognizedName, "no_route")
            }
            None => self.end_abruptly(io, "no_route"),
        }
    }

    /// No tunnel: an alert, in clear or by the session's keys, or RST.
    fn deny_connection(&mut self, io: &mut Io<'_>, deny: Deny, reason: &'static str) {
        let description = match deny {
            Deny::AccessDenied => alert::ACCESS_DENIED,
            Deny::UnrecognizedName => alert::UNRECOGNIZED_NAME,
            Deny::Status(_) | Deny::Reset => return self.end_abruptly(io, reason),
        };
        match self.client.tls {
            ClientTls::Open(_) => self.end_after_replay(io, description, reason),
            _ if self.listener().protocol.is_greeted() => {
                self.refuse_greeting(io, reason, Some(description), "")
            }
            _ => self.end_abruptly(io, reason),
        }
    }

    /// The server name of a relayed hello, where a PROXY header of the pool has it: the route carries it to the node
    /// that makes the header again.
    fn offered_name(&self, pool: u32) -> Vec<u8> {
        let header = self.snapshot.pools.get(pool as usize).and_then(|pool| pool.proxy_header);
        let wanted = header.is_some_and(|header| header.authority);
        let name = self.offered_sessions().and_then(|offered| offered.server_name.as_deref());
        name.filter(|_| wanted).unwrap_or_default().as_bytes().to_vec()
    }

    fn dial_tunnel(&mut self, io: &mut Io<'_>, pool: u32, sticky: Option<Stickiness>, matched: Vec<RuleId>) {
        let snapshot = self.snapshot.clone();
        let stickiness = sticky.unwrap_or(snapshot.pools[pool as usize].stickiness);
        let hint = match stickiness {
            Stickiness::Source => ServerHint::Source(self.client_address.ip()),
            Stickiness::None | Stickiness::Cookie => ServerHint::Policy,
        };
        let route = Route {
            exchange: 0,
            answered: 0, // known when the decision is queued
            leg: self.servers.next,
            generation: snapshot.generation,
            pool,
            server: u32::MAX,
            place: 0,
            rules: Vec::new(),
            shape: 0,
            flags: RouteFlags { close: true, ..RouteFlags::default() },
            offer: self.offered_name(pool),
            looked_at: 0,
            hash: 0,
            tls: None,
        };
        let mut leg = ServerLeg::new(route, matched, hint, false);
        leg.attempt.reuse = false;
        self.servers.next = leg.id + 1;
        self.servers.leg = Some(Box::new(leg));
        if let Some(log) = &mut self.exchange.log {
            log.pool = Some(pool);
        }
        self.dial(io);
        self.arm(Timer::Connect, io.now);
    }
}
