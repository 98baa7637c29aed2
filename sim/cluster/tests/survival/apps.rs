//! The applications at both ends: a client with a script, and servers.

use crate::harness::peer::Peer;
use crate::harness::secure::ServerTls;
use crate::reference::Expected;
use crate::scenario::{Act, App, Scenario, Wire};
use evergate_sim_cluster::{Application, Seen, Sent, Time};
use std::cell::RefCell;
use std::rc::Rc;

/// Input of the servers: one entry for each request, or tunnel.
#[derive(Clone, Debug, Default)]
pub(crate) struct Served {
    pub(crate) bytes: Vec<u8>,
    /// Of a tunnel: whether its end was received.
    pub(crate) tunnel_end: Option<bool>,
}

pub(crate) type Log = Rc<RefCell<Vec<Served>>>;

/// A client that follows a scenario and knows its expected input.
pub(crate) struct Client {
    peer: Peer,
    scenario: Rc<Scenario>,
    expected: Rc<Expected>,
    hello: Vec<u8>,
    /// Whether it may be reset: the faults exceed the guarantee.
    lenient: bool,
    /// Whether nodes fail in this run.
    faults: bool,
    /// Whether its reset may be lost: it is repeated only to a sender.
    reset_may_be_lost: bool,
    broke: bool,
    /// Pauses after the handshake and between steps, with their progress.
    asks_after: Time,
    thinks_for: Time,
    thinks: bool,
    thought: bool,
    next: usize,
    checked: usize,
    ended: bool,
    reset: bool,
    finished: bool,
    complaint: Option<String>,
    served: Log,
    clients: usize,
}

impl Client {
    pub(crate) fn new(
        scenario: &Rc<Scenario>,
        expected: &Rc<Expected>,
        seed: u64,
        lenient: bool,
        served: &Log,
        clients: usize,
    ) -> Client {
        let (peer, hello) = peer_of(scenario, seed);
        Client {
            peer,
            scenario: scenario.clone(),
            expected: expected.clone(),
            hello,
            lenient,
            faults: false,
            reset_may_be_lost: false,
            broke: false,
            asks_after: 0,
            thinks_for: 0,
            thinks: false,
            thought: false,
            next: 0,
            checked: 0,
            ended: false,
            reset: false,
            finished: false,
            complaint: None,
            served: served.clone(),
            clients,
        }
    }

    pub(crate) fn among_faults(mut self, faults: bool) -> Client {
        self.faults = faults;
        self
    }

    pub(crate) fn that_thinks_for(mut self, span: Time) -> Client {
        self.thinks_for = span;
        self
    }

    /// Lets the first request follow the end of the handshake by this time.
    pub(crate) fn that_asks_after(mut self, span: Time) -> Client {
        self.asks_after = if self.scenario.wire == Wire::Plain { 0 } else { span };
        self
    }

    pub(crate) fn in_bad_weather(mut self, lossy: bool) -> Client {
        self.reset_may_be_lost = lossy;
        self
    }

    /// Performs the next steps of the script, until one has to wait.
    fn proceed(&mut self, sent: &mut Sent) {
        while let Some(step) = self.scenario.steps.get(self.next) {
            let answered = self.peer.received().len() >= self.expected.marks[self.next];
            let pause = match self.next {
                0 => self.asks_after,
                _ if step.waits => self.thinks_for,
                _ => 0,
            };
            let early = (pause > 0 || !matches!(step.act, Act::Send(_))) && self.peer.is_handshaking();
            if (step.waits && !answered) || early || self.finished {
                return;
            }
            if pause > 0 && !self.thought {
                sent.pause = (!self.thinks).then_some(pause);
                self.thinks = true;
                return;
            }
            self.thought = false;
            sent.bytes.extend_from_slice(&perform(&mut self.peer, &self.scenario, &step.act));
            sent.reset |= matches!(step.act, Act::Reset);
            self.broke |= sent.reset;
            self.finished |= matches!(step.act, Act::Close | Act::Cut | Act::Reset);
            sent.end |= self.finished && !sent.reset;
            self.next += 1;
        }
    }

    fn check(&mut self) {
        let expected = &self.expected.client;
        let received = self.peer.received();
        let same = |at: usize| {
            // Each node chooses a server on its own: the cookie names one of three.
            received.get(at) == expected.get(at) || (at >= 5 && &received[at - 5..at] == b"EG=c-")
        };
        let wrong = (self.checked..received.len()).find(|at| !same(*at));
        self.checked = received.len();
        if let Some(at) = wrong {
            self.complaint = Some(format!("the client sees another byte at {at} of {}", expected.len()));
        } else if self.reset && !self.may_be_reset() && !self.lenient && !self.is_given_up() {
            self.complaint =
                Some(format!("the client is reset after {} of {} bytes", received.len(), expected.len()));
        } else if self.ended
            && !self.lenient
            && !self.reset
            && (!self.expected.client_end || received.len() < expected.len())
        {
            self.complaint =
                Some(format!("the client sees an end after {} of {} bytes", received.len(), expected.len()));
        }
    }

    /// Whether it is reset in place of a generated answer: a new owner does not know whether the server's own answer
    /// has left.
    fn is_given_up(&self) -> bool {
        const OURS: [&[u8]; 4] = [b"HTTP/1.1 408", b"HTTP/1.1 502", b"HTTP/1.1 503", b"HTTP/1.1 504"];
        let missing = self.expected.client.get(self.peer.received().len()..).unwrap_or_default();
        let sealed = self.scenario.wire != Wire::Plain;
        self.faults && self.reset && sealed && OURS.iter().any(|answer| missing.starts_with(answer))
    }

    /// Whether a reset is expected, or the client has reset the connection itself.
    fn may_be_reset(&self) -> bool {
        if self.scenario.breaks() { self.broke } else { self.expected.aborted }
    }

    /// Whether the servers have all their expected input.
    fn is_served(&self) -> bool {
        let served = self.served.borrow();
        let wanted: usize = self.expected.servers.iter().map(|served| served.bytes.len()).sum();
        let ends = self.expected.servers.iter().filter(|served| served.tunnel_end == Some(true)).count();
        served.iter().map(|served| served.bytes.len()).sum::<usize>() >= wanted * self.clients
            && (self.reset_may_be_lost && self.scenario.breaks()
                || served.iter().filter(|served| served.tunnel_end == Some(true)).count()
                    >= ends * self.clients)
    }
}

impl Application for Client {
    fn react(&mut self, seen: Seen<'_>) -> Sent {
        let mut sent = Sent { bytes: std::mem::take(&mut self.hello), ..Sent::default() };
        if !seen.bytes.is_empty() {
            let answer = self.peer.receive(seen.bytes);
            if !self.finished {
                sent.bytes.extend_from_slice(&answer);
            }
        }
        self.ended |= seen.ended;
        self.reset |= seen.reset;
        if seen.woken {
            (self.thinks, self.thought) = (false, true);
        }
        self.proceed(&mut sent);
        self.check();
        if self.ended && !self.finished {
            sent.end = true; // no further output to a closed server
            self.finished = true;
        }
        sent
    }

    fn is_done(&self) -> bool {
        if (self.lenient && self.reset) || (self.is_given_up() && self.is_served()) {
            return true;
        }
        let over = self.reset || self.ended || self.broke;
        let expected = &self.expected;
        (self.next == self.scenario.steps.len() || over)
            && self.peer.received().len() >= expected.client.len()
            && (over || !(expected.client_end || expected.aborted))
            && self.is_served()
    }

    fn complaint(&self) -> Option<String> {
        self.complaint.clone()
    }

    fn describe(&self) -> String {
        format!(
            "script {}/{}, received {} of {}, ended {}, reset {}, servers have {:?}",
            self.next,
            self.scenario.steps.len(),
            self.peer.received().len(),
            self.expected.client.len(),
            self.ended,
            self.reset,
            self.served
                .borrow()
                .iter()
                .map(|served| (served.bytes.len(), served.tunnel_end))
                .collect::<Vec<_>>()
        )
    }
}

/// A client's endpoint, and its first bytes.
pub(crate) fn peer_of(scenario: &Scenario, seed: u64) -> (Peer, Vec<u8>) {
    match scenario.wire {
        Wire::Plain => (Peer::plain(), Vec::new()),
        Wire::Tls12 => Peer::ours(&rustls::version::TLS12, seed),
        Wire::Tls13 => Peer::ours(&rustls::version::TLS13, seed),
    }
}

/// Bytes on the wire for one act.
pub(crate) fn perform(peer: &mut Peer, scenario: &Scenario, act: &Act) -> Vec<u8> {
    match (act, peer) {
        (Act::Send(data), Peer::Ours(ours)) => ours.send(data, scenario.record),
        (Act::Send(data), peer) => peer.send(data),
        (Act::KeyUpdate(request), Peer::Ours(ours)) if scenario.wire == Wire::Tls13 => {
            ours.key_update(*request)
        }
        (Act::Close, peer) => peer.close(),
        (Act::Raw(bytes), _) => bytes.clone(),
        (Act::Renegotiate, Peer::Ours(ours)) if scenario.wire == Wire::Tls12 => ours.request_renegotiation(),
        (Act::KeyUpdate(_) | Act::Renegotiate | Act::Cut | Act::Reset | Act::Silence, _) => Vec::new(),
    }
}

/// A server that answers the requests of a kept connection in sequence.
pub(crate) struct Server {
    scenario: Rc<Scenario>,
    app: App,
    tls: Option<ServerTls>,
    received: Vec<u8>,
    served: Log,
    entry: Option<usize>,
    over: bool,
}

impl Server {
    pub(crate) fn new(scenario: &Rc<Scenario>, served: &Log) -> Server {
        let (app, scenario) = (App::new(scenario), scenario.clone());
        let tls = (scenario.behind != Wire::Plain)
            .then(|| ServerTls::new(scenario.record, scenario.server_updates, 1));
        Server { scenario, app, tls, received: Vec::new(), served: served.clone(), entry: None, over: false }
    }

    /// Input of the application: the wire's bytes, or the plaintext of its TLS.
    fn unseal(&mut self, seen: Seen<'_>, wire: &mut Vec<u8>) -> (Vec<u8>, bool) {
        let Some(tls) = &mut self.tls else { return (seen.bytes.to_vec(), seen.ended) };
        tls.take(seen.bytes, wire);
        (std::mem::take(&mut tls.plain), seen.ended || tls.ended)
    }

    /// Output on the wire for an answer.
    fn seal(&mut self, answer: &[u8], wire: &mut Vec<u8>) {
        let Some(tls) = &mut self.tls else { return wire.extend_from_slice(answer) };
        tls.state_text(answer, wire);
        if self.app.fin {
            tls.end(wire);
        }
    }
}

impl Application for Server {
    fn react(&mut self, seen: Seen<'_>) -> Sent {
        let mut sent = Sent::default();
        let (bytes, ended) = self.unseal(seen, &mut sent.bytes);
        if self.app.stage == 2 && !bytes.is_empty() {
            self.app = App::known(&self.scenario, self.app.login);
            self.received.clear();
            self.entry = None;
        }
        self.received.extend_from_slice(&bytes);
        if !bytes.is_empty() {
            let mut served = self.served.borrow_mut();
            let entry = *self.entry.get_or_insert_with(|| {
                served.push(Served::default());
                served.len() - 1
            });
            served[entry].bytes.extend_from_slice(&bytes);
        }
        let open = self.tls.as_ref().is_none_or(ServerTls::is_open);
        if !self.over && !seen.reset && open {
            let mut answer = Vec::new();
            self.app.react(&self.received, ended, &mut answer);
            self.seal(&answer, &mut sent.bytes);
        }
        if let Some(entry) = self.entry.filter(|_| self.app.stage >= 10) {
            self.served.borrow_mut()[entry].tunnel_end.get_or_insert(false);
            // A FIN to a client that has ended itself has no effect.
            let broken = seen.reset && self.scenario.breaks();
            if ended || broken || self.app.fin {
                self.served.borrow_mut()[entry].tunnel_end = Some(true);
            }
        }
        // A server of one request also ends when its peer does.
        sent.end = self.app.fin || ended;
        sent.reset = self.app.reset && !self.over;
        self.over |= sent.end || sent.reset;
        sent
    }

    fn is_done(&self) -> bool {
        true
    }
}
