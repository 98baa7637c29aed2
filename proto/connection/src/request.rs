//! Client to server: a request head becomes a decision, a leg and the head that the server gets.

use crate::bound::{Binding, Carrier};
use crate::client_leg::ClientTls;
use crate::close::PROXY_HEADER;
use crate::connection::Connection;
use crate::exchange::{BodyPrefixScan, RequestState};
use crate::request_log::class_of;
use crate::routing::{self, Prefix, RouteDecision};
use crate::server_leg::ServerLeg;
use crate::timers::Timer;
use crate::tls_info::TlsInfo;
use crate::{Effect, Io, Snapshot};
use evergate_base::{Micros, is_proxy_header, sip_hash};
use evergate_http::{
    FOR_RULES_MAX, HOST_BYTES_MAX, Parsed, RequestEdits, RequestFraming, RequestHead, Version, parse_request,
    write_request_head,
};
use evergate_replication::{NUMBER_MAX, OFFER_BYTES_MAX, Route, RouteFlags};
use evergate_rules::{Body as RuleBody, Decision, Deny, Outcome, Request, RuleId, Terminal, TlsFacts};
use std::sync::Arc;

/// The interim response that lets a client send its body.
pub(crate) const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

impl Connection {
    /// Takes a request head from the start of `data`, and what the rules need of the body after it. Returns 0 when more
    /// bytes are needed.
    pub(crate) fn take_head(&mut self, io: &mut Io<'_>, data: &[u8]) -> usize {
        if !self.head_is_due() {
            return 0; // the previous response is still under way
        }
        let may_continue = match self.exchange.receiving {
            RequestState::Head => self.head_may_end(data),
            _ => self.prefix_may_do(data, io.now),
        };
        if !may_continue {
            return 0;
        }
        if self.deadline.timer == Timer::KeepAlive {
            self.arm(Timer::RequestHead, io.now);
        }
        let mut slots = io.scratch.slots.take().unwrap_or_default();
        let limits = self.listener().limits.http.clone();
        let used = match parse_request(data, &limits, &mut slots) {
            Ok(Parsed::Partial) => {
                self.client.scanned = data.len();
                0
            }
            Ok(Parsed::Complete(head)) => {
                self.client.scanned = 0;
                self.start_request(io, &head, data)
            }
            Err(refusal) => {
                // A method called PROXY is a method; only what is no request can be a header of that protocol.
                let reason = if is_proxy_header(data) { PROXY_HEADER } else { refusal.reason };
                self.refuse_line(io, (refusal.status, reason), data);
                data.len()
            }
        };
        io.scratch.slots = Some(slots);
        used
    }

    /// Whether a request may start: the one before is answered. After a restore the response may be further than the
    /// request, or under way already on a leg that waits for its head.
    pub(crate) fn head_is_due(&self) -> bool {
        let due = match (&self.servers.leg, self.exchange.order().is_eq()) {
            (Some(leg), true) => leg.pending.awaits_head,
            (None, true) => self.may_ask(),
            _ => self.exchange.is_answered(), // answered before a failover: it is only skipped
        };
        due && self.client.outlet.is_empty()
    }

    /// With backups a leg is left only when the client has the response before, and the backups know it before they
    /// know of another leg: a failover then needs one leg at most.
    pub(crate) fn may_ask(&self) -> bool {
        self.remote.as_ref().is_none_or(|remote| remote.is_between_messages())
    }

    /// Whether the head's end may have arrived. A head is parsed again only then, so that slow senders cost no more.
    fn head_may_end(&self, data: &[u8]) -> bool {
        let from = self.client.scanned.saturating_sub(3).min(data.len());
        self.client.scanned == 0
            || data.len() > self.listener().limits.http.head_bytes_max
            || memchr::memmem::find(&data[from..], b"\r\n\r\n").is_some()
            || memchr::memmem::find(&data[from..], b"\n\n").is_some()
    }

    /// Whether a body that the rules must see may be whole, or long enough. It is parsed again only then: neither small
    /// pieces nor small chunks make that expensive.
    fn prefix_may_do(&mut self, data: &[u8], now: Micros) -> bool {
        let limits = self.listener().limits.http.clone();
        let Some(scan) = &mut self.exchange.prefix else { return true };
        let new = data.len().saturating_sub(scan.seen);
        scan.seen = scan.seen.max(data.len());
        if new > 0 {
            self.progress(Timer::RequestBody, new, now);
        }
        let Some(scan) = &mut self.exchange.prefix else { return true };
        let Some(Ok(taken)) = data.get(scan.at..).map(|rest| scan.body.advance(rest, &limits)) else {
            return true; // the parser reports the error there
        };
        scan.at += taken;
        scan.body.is_done() || data.len() >= scan.enough
    }

    /// The rules need more of this body than there is.
    fn await_prefix(&mut self, head: &RequestHead<'_>, received: usize) -> usize {
        let max = self.listener().limits.body_prefix_bytes;
        let enough = if received < max { max } else { received.saturating_add(max / 4 + 1) };
        let enough = head.head_len.saturating_add(enough);
        let seen = head.head_len + received;
        self.exchange.prefix =
            Some(Box::new(BodyPrefixScan { body: head.body(), at: head.head_len, seen, enough }));
        0
    }

    fn start_request(&mut self, io: &mut Io<'_>, head: &RequestHead<'_>, data: &[u8]) -> usize {
        if self.exchange.is_answered() {
            return self.pass_answered(io, head.body(), head.head_len); // answered before a failover
        }
        if let Some(known) = self.replayed_route() {
            return self.repeat_request(io, head, data, &known);
        }
        let head_end = self.head_end(head, data);
        if let Some(remote) = &mut self.remote {
            remote.client_input.answered = remote.client_input.answered.max(head_end);
        }
        // A request that waits for its body continues under the configuration that it began with.
        if self.exchange.receiving == RequestState::Head {
            self.adopt_snapshot(io);
            self.find_request_client(head);
            self.begin_log(io, Some(head));
        }
        let rest = &data[head.head_len..];
        let limits = &self.listener().limits;
        let (body_max, prefix_max, http) =
            (limits.body_bytes_max, limits.body_prefix_bytes, limits.http.clone());
        if !self.is_let_in() {
            self.exchange.last_response = true; // only a new handshake changes it
            return self.answer(io, head, rest, 421, "client_certificate_policy", &[]);
        }
        io.scratch.path.clear();
        if let Err(refusal) = evergate_http::canonical_path(head.path, &mut io.scratch.path) {
            return self.answer(io, head, rest, refusal.status, refusal.reason, &[]);
        }
        if let Some(port) = self.listener().redirect_to_https {
            let location = routing::https_location(head, self.local_address.ip(), port);
            return self.answer(io, head, rest, 308, "redirected_to_https", &[("Location", &location)]);
        }
        if matches!(head.framing, RequestFraming::Length(length) if body_max > 0 && length > body_max) {
            return self.answer(io, head, rest, 413, "body_too_long", &[]);
        }
        let prefix = match self.exchange.receiving {
            RequestState::Prefix => match routing::body_prefix(head, rest, prefix_max, &http) {
                Ok(Some(prefix)) => {
                    self.exchange.prefix = None;
                    Some(prefix)
                }
                Ok(None) => return self.await_prefix(head, rest.len()),
                Err(refusal) => return self.answer(io, head, rest, refusal.status, refusal.reason, &[]),
            },
            _ => None,
        };
        let plan = if self.snapshot.rules.is_empty() {
            RouteDecision::default()
        } else {
            let body = match &prefix {
                Some(Prefix { content, whole: true, .. }) => RuleBody::Complete(content),
                Some(Prefix { content, whole: false, .. }) => RuleBody::Prefix(content),
                None if head.framing == RequestFraming::None => RuleBody::Complete(b""),
                None => RuleBody::Pending,
            };
            let mut rules_scratch = std::mem::take(&mut io.scratch.rules);
            let path = std::mem::take(&mut io.scratch.path);
            let plan = self.decide(head, &path, body, &mut rules_scratch);
            io.scratch.rules = rules_scratch;
            io.scratch.path = path;
            match plan {
                Some(plan) => plan,
                None => return self.wait_for_body(io, head),
            }
        };
        // What was decided holds for what was looked at, and for nothing else.
        let looked_at = prefix.map_or(0, |prefix| prefix.looked_at);
        self.act(io, head, data, looked_at, plan)
    }

    /// The rules must see the body: buffers the head, and sends 100 Continue to a client that waits for it.
    fn wait_for_body(&mut self, io: &mut Io<'_>, head: &RequestHead<'_>) -> usize {
        if self.exchange.receiving == RequestState::Head {
            self.exchange.receiving = RequestState::Prefix;
            self.exchange.prefix = None;
            self.arm(Timer::RequestBody, io.now);
            if head.expect_continue {
                self.exchange.continued = true;
                self.frame(io, CONTINUE);
            }
        }
        0
    }

    /// Asks the rules; `None` when they need the body.
    fn decide(
        &self,
        head: &RequestHead<'_>,
        path: &[u8],
        body: RuleBody<'_>,
        scratch: &mut evergate_rules::Scratch,
    ) -> Option<RouteDecision> {
        let listener = self.listener();
        let mut headers: [(&[u8], &[u8]); FOR_RULES_MAX] = [(b"", b""); FOR_RULES_MAX];
        let mut count = 0;
        for (slot, header) in headers.iter_mut().zip(head.for_rules(self.trusts_forwarded())) {
            *slot = (header.name.as_bytes(), header.value);
            count += 1;
        }
        let mut host = [0u8; HOST_BYTES_MAX];
        let request = Request {
            listener: &listener.name,
            method: head.method.as_bytes(),
            scheme: self.scheme(),
            host: head.canonical_host(&mut host),
            path,
            query: head.query.unwrap_or(b""),
            headers: &headers[..count],
            client: self.request_client_address(),
            local: self.local_address,
            tls: self.client.info.as_ref().map(|facts| TlsFacts {
                sni: facts.sni.as_deref(),
                alpn: facts.alpn.as_deref(),
                version: facts.version,
                client_subject: facts.subject.as_deref(),
            }),
            body,
        };
        match self.snapshot.rules.decide(&request, scratch) {
            Outcome::NeedBody => None,
            Outcome::Decided(decision) => Some(decision_of(&decision)),
        }
    }

    /// Carries out what was decided, having looked at so many bytes behind the head.
    fn act(
        &mut self,
        io: &mut Io<'_>,
        head: &RequestHead<'_>,
        data: &[u8],
        looked_at: usize,
        decision: RouteDecision,
    ) -> usize {
        let (looked_at, rest) = (&data[..head.head_len + looked_at], &data[head.head_len..]);
        let snapshot = self.snapshot.clone();
        let mut host = [0u8; HOST_BYTES_MAX];
        let host = if decision.limits.is_empty() { &[][..] } else { head.canonical_host(&mut host) };
        if !self.passes_limits(io, &decision, host) {
            let why = (429, "rate_limited");
            return self.answer_by_rule(io, head, rest, why, ("Retry-After", "1"), &decision.matched);
        }
        let (pool, sticky) = match decision.terminal {
            routing::Action::Deny(Deny::Status(status)) => {
                let why = (status, "denied_by_rule");
                return self.answer_by_rule(io, head, rest, why, ("", ""), &decision.matched);
            }
            routing::Action::Deny(_) => {
                self.end_abruptly(io, "denied_by_rule"); // a configuration has this for whole connections only
                return data.len();
            }
            routing::Action::Redirect(status, location) => {
                let field = ("Location", location.as_str());
                return self.answer_by_rule(
                    io,
                    head,
                    rest,
                    (status, "redirected_by_rule"),
                    field,
                    &decision.matched,
                );
            }
            routing::Action::Route(index, sticky) => {
                (snapshot.rule_pools.get(index as usize).copied(), sticky)
            }
            routing::Action::Default => (self.listener().pool, None),
        };
        let Some(pool) = pool else {
            return self.answer(io, head, rest, 404, "no_route", &[]);
        };
        self.route(io, head, looked_at, pool, sticky, &decision.matched)
    }

    /// Notes what was decided, and asks the limits of the rules that matched.
    pub(crate) fn passes_limits(&mut self, io: &mut Io<'_>, decision: &RouteDecision, host: &[u8]) -> bool {
        let snapshot = self.snapshot.clone();
        if let Some(log) = &mut self.exchange.log {
            log.rule = decision.rule;
            log.audit = decision.audit;
            log.class = class_of(&snapshot, &decision.matched).map(str::to_owned);
        }
        if !decision.matched.is_empty() {
            io.effects.push(Effect::Matched(decision.matched.clone()));
        }
        let client = self.request_client();
        for (at, rule) in decision.limits.iter().enumerate() {
            if !io.node.allow(&snapshot, *rule, client, host) {
                // What is refused uses up nothing of the other limits.
                for passed in &decision.limits[..at] {
                    io.node.give_back(&snapshot, *passed, client, host);
                }
                if let Some(log) = &mut self.exchange.log {
                    log.rule = Some(*rule); // not the one that would have decided
                }
                return false;
            }
        }
        true
    }

    /// Opens a leg for the request and hands it the rewritten head.
    fn route(
        &mut self,
        io: &mut Io<'_>,
        head: &RequestHead<'_>,
        looked_at: &[u8],
        pool: u32,
        sticky: Option<crate::Stickiness>,
        matched: &[RuleId],
    ) -> usize {
        let snapshot = self.snapshot.clone();
        let stickiness = sticky.unwrap_or(snapshot.pools[pool as usize].stickiness);
        let (hint, set_cookie) =
            routing::hint(&snapshot.pools[pool as usize], stickiness, head, self.request_client());
        self.client.done = !head.keep_alive;
        let auth = head.connection_auth();
        let carrier = match self.carrier_to(pool, auth) {
            Some(carrier) => carrier,
            None => {
                self.release_bound(io);
                Carrier::Any
            }
        };
        let binding = self.binding_to(pool, carrier).with(auth);
        let flags = RouteFlags {
            head: head.method == "HEAD",
            http10: head.version == Version::H10,
            close: !head.keep_alive || self.is_spent() || self.is_last(io, binding),
            set_cookie,
            continued: std::mem::take(&mut self.exchange.continued),
            bodiless: head.body().is_done(),
            bound: binding >= Binding::Bound,
            header: None, // known when the leg opens
        };
        let mut offer = Vec::new();
        head.write_offer(&mut offer, OFFER_BYTES_MAX);
        let route = Route {
            exchange: self.exchange.request(),
            answered: 0, // known when the decision is queued
            leg: self.servers.next,
            generation: snapshot.generation,
            pool,
            server: u32::MAX,
            place: 0,
            rules: Vec::new(),
            shape: 0,
            flags,
            offer,
            looked_at: (looked_at.len() - head.head_len) as u32,
            // No node compares it without backups.
            hash: self.remote.as_ref().map_or(0, |_| sip_hash(snapshot.request_key.0, looked_at)),
            tls: None,
        };
        let mut leg = ServerLeg::new(route, matched.to_vec(), hint, head.is_idempotent());
        (leg.binding, leg.attempt.carrier) = (binding, carrier);
        leg.attempt.reuse = carrier != Carrier::Any || !self.dedicates_legs(pool);
        let mut leg = io.scratch.boxed_leg(leg);
        self.servers.next += 1;
        self.write_head(io, head, &mut leg);
        self.servers.leg = Some(leg);
        if let Some(log) = &mut self.exchange.log {
            log.pool = Some(pool);
        }
        if let Some(remote) = &mut self.remote {
            remote.release_legs_early(io.effects);
        }
        self.dial(io);
        self.pass_head(io, head);
        self.arm(Timer::Connect, io.now);
        head.head_len
    }

    /// The head is with the leg: what follows it is the body, or the next request.
    pub(crate) fn pass_head(&mut self, io: &mut Io<'_>, head: &RequestHead<'_>) {
        let body = head.body();
        if head.upgrade || body.is_done() {
            self.end_request(io);
        } else {
            self.exchange.receiving = RequestState::Body(body);
        }
    }

    /// Whether the server must reject bytes behind the request. The next node forwards what the client resends of a
    /// chunked body behind what the server has. Where its chunks begin elsewhere, a server that reads on in plaintext
    /// would find a request that no rule has seen. Records to TLS servers must be the same.
    fn may_be_reframed(&self, head: &RequestHead<'_>, leg: &ServerLeg) -> bool {
        let pool = self.snapshot.pools.get(leg.pool as usize);
        self.remote.is_some()
            && head.framing == RequestFraming::Chunked
            && pool.is_none_or(|pool| pool.tls.is_none())
    }

    /// Writes the head that the server gets into the leg.
    pub(crate) fn write_head(&self, io: &mut Io<'_>, head: &RequestHead<'_>, leg: &mut ServerLeg) {
        let snapshot = &self.snapshot;
        let (set, remove) = routing::request_edits(&snapshot.rules, leg.rules.iter().copied());
        let mut address = [0u8; 64];
        let mut id = [0u8; 24];
        let local = if head.host.is_empty() { self.local_address.to_string() } else { String::new() };
        let edits = RequestEdits {
            path: &io.scratch.path,
            default_host: &local,
            client_ip: routing::ip_text(self.client_address.ip(), &mut address),
            scheme: self.scheme(),
            request_id: self.request_id(Some(head), &mut id),
            trust_forwarded: self.trusts_forwarded(),
            set: &set,
            remove: &remove,
            offer: &leg.route.offer,
            continued: leg.route.flags.continued,
            close: self.may_be_reframed(head, leg),
        };
        leg.request.closes = edits.close;
        write_request_head(&mut leg.request.bytes, head, &edits);
        leg.request.head_bytes = leg.request.bytes.len();
    }

    /// The service class of the request under way.
    pub fn service_class(&self) -> Option<&str> {
        class_of(&self.snapshot, &self.servers.leg.as_ref()?.rules)
    }

    /// Asks the worker for a server, unless a restored connection already has its leg.
    pub(crate) fn dial(&mut self, io: &mut Io<'_>) {
        let bound = self.bound_server();
        let Some(leg) = &mut self.servers.leg else { return };
        if leg.decided {
            return; // the worker restored this leg and reports when it is open
        }
        io.effects.push(Effect::Dial {
            leg: leg.id,
            pool: leg.pool,
            hint: leg.attempt.hint,
            tried: leg.attempt.tried.clone(),
            reuse: leg.attempt.reuse,
            bound,
        });
    }

    /// Queues the decision before the first byte reaches the server.
    pub(crate) fn replicate_route(&mut self) {
        let Some(leg) = &mut self.servers.leg else { return };
        if leg.decided {
            return;
        }
        leg.decided = true;
        if let Some(remote) = &mut self.remote {
            let snapshot = &self.snapshot;
            let (tls, place) = (leg.export_tls(), snapshot.place(leg.route.pool, leg.route.server));
            let rules = snapshot.marks(&leg.rules);
            let shape = snapshot.listeners[self.listener as usize].shape();
            leg.route.answered = remote.client_input.answered;
            remote.push_route(Route { tls, place, rules, shape, ..leg.route.clone() });
        }
    }

    /// New requests run under the newest configuration, where their listener still exists.
    pub(crate) fn adopt_snapshot(&mut self, io: &mut Io<'_>) {
        let newest = io.node.snapshot();
        // Two of one number may differ in what is read from files.
        if Arc::ptr_eq(newest, &self.snapshot) {
            return;
        }
        if let Some(index) = self.listener_of(newest) {
            self.snapshot = newest.clone();
            self.listener = index;
        }
    }

    /// Where another configuration has this connection's listener, if it has it.
    fn listener_of(&self, other: &Snapshot) -> Option<u32> {
        let listener = self.listener();
        let index = other.listener_index(&listener.name)?;
        (other.listeners[index as usize].protocol == listener.protocol).then_some(index)
    }

    /// Whether the listener, as it is now, would let this client in: it asks for no certificate, or asked for the same.
    fn is_let_in(&self) -> bool {
        let policy = |facts: &TlsInfo| facts.policy.as_deref().copied();
        let asked = self.listener().client_policy;
        asked.is_none() || asked == self.client.info.as_deref().and_then(policy)
    }

    /// Whether this request is answered and none after it: the node drains, a limit on connections is nearly reached,
    /// or the newest configuration no longer has the listener.
    pub(crate) fn is_last(&self, io: &Io<'_>, binding: Binding) -> bool {
        let newest = io.node.snapshot();
        let is_newest = newest.generation == self.snapshot.generation;
        // A crowd must not end an authentication of the connection: each new attempt would meet the crowd again.
        let is_crowded = io.node.is_crowded() && binding < Binding::Bound;
        io.node.is_draining() || is_crowded || (!is_newest && self.listener_of(newest).is_none())
    }

    /// Whether the connection has had as many requests, or its key almost as many records, as it may.
    pub(crate) fn is_spent(&self) -> bool {
        let requests_max = self.listener().limits.requests_max;
        let worn = matches!(&self.client.tls, ClientTls::Open(records) if records.wants_close());
        worn || (requests_max > 0 && self.exchange.request() + 1 >= requests_max)
            || self.servers.next >= NUMBER_MAX
    }

    pub(crate) fn scheme(&self) -> &'static str {
        if self.listener().protocol.is_tls() { "https" } else { "http" }
    }

    /// The request's id: from a trusted hop the received one, which another node finds in the head again.
    pub(crate) fn request_id<'a>(&self, head: Option<&RequestHead<'a>>, own: &'a mut [u8; 24]) -> &'a str {
        let trusted = head.filter(|_| self.trusts_forwarded());
        match trusted.and_then(|head| head.given_id()) {
            Some(given) => given,
            None => routing::request_id(self.id.0, self.exchange.request(), own),
        }
    }
}

pub(crate) fn decision_of(decision: &Decision<'_>) -> RouteDecision {
    let action = match &decision.terminal {
        Terminal::None => routing::Action::Default,
        Terminal::Route { pool_index, sticky, .. } => {
            routing::Action::Route(*pool_index, routing::stickiness(*sticky))
        }
        Terminal::Deny(deny) => routing::Action::Deny(*deny),
        Terminal::Redirect { status, location } => routing::Action::Redirect(*status, location.clone()),
    };
    RouteDecision {
        rule: decision.rule,
        terminal: action,
        matched: decision.matched.to_vec(),
        limits: decision.rate_limits().map(|(rule, _)| rule).collect(),
        audit: decision.audit(),
    }
}
