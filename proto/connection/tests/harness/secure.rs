//! A server behind TLS: its side of the handshake, and its records; and sessions that were made before.

use super::peer::{Peer, seal};
use super::setup;
use evergate_base::session::KeptSession;
use evergate_tls::{Handshake, HandshakeParams, NamedSession, Opened, Progress, Records, record_len};
use std::sync::Arc;

/// Makes a session that clients of this configuration resume by its id: what its server keeps.
pub(crate) fn make_session(client: &Arc<rustls::ClientConfig>, seed: u64) -> KeptSession {
    let (mut peer, mut up) = Peer::ours_with(client, !seed);
    let mut server = Handshake::new(&setup::server_tls(), &params(1)).unwrap();
    loop {
        let mut down = Vec::new();
        let progress = server.handle_input(&up, &mut down).unwrap();
        up = peer.receive(&down);
        if progress == Progress::Done {
            break;
        }
    }
    match server.finish().unwrap().session {
        Some(NamedSession::New(kept)) => kept,
        other => panic!("{other:?}"),
    }
}

fn params(seed: u8) -> HandshakeParams {
    HandshakeParams {
        secret: [seed; 32],
        accepted_unix_s: 1_700_000_000,
        generation: 1,
        client: "10.0.0.1:40001".parse().unwrap(),
        local: "10.0.0.2:443".parse().unwrap(),
    }
}

/// TLS state of a server's connection, over all requests on it.
pub(crate) struct ServerTls {
    handshake: Option<Handshake>,
    records: Option<Records>,
    raw: Vec<u8>,
    /// What has been received of the present request, or tunnel.
    pub(crate) plain: Vec<u8>,
    /// The end has been received.
    pub(crate) ended: bool,
    /// Payload of its records at most.
    record: usize,
    /// It changes its keys before each of its answers, and wants ours changed.
    updates: bool,
    /// KeyUpdates that were asked for and not answered.
    owed: u32,
    /// ... and those that were, one after the other.
    answered: u32,
}

/// More KeyUpdates in a row than any server takes are not asked for.
const UPDATES_MAX: u32 = 16;

impl ServerTls {
    pub(crate) fn new(record: usize, updates: bool, seed: u8) -> ServerTls {
        ServerTls {
            handshake: Some(Handshake::new(&setup::server_tls(), &params(seed)).unwrap()),
            records: None,
            raw: Vec::new(),
            plain: Vec::new(),
            ended: false,
            record,
            updates,
            owed: 0,
            answered: 0,
        }
    }

    /// Whether it can answer.
    pub(crate) fn is_open(&self) -> bool {
        self.records.is_some()
    }

    /// Takes bytes from the wire; an immediate answer goes to `out`.
    pub(crate) fn take(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        if let Some(mut handshake) = self.handshake.take() {
            let progress = handshake.handle_input(bytes, out).unwrap();
            if progress == Progress::NeedInput {
                self.handshake = Some(handshake);
                return;
            }
            let finished = handshake.finish().unwrap();
            self.records = Some(finished.records);
            self.raw = finished.leftover;
        } else {
            self.raw.extend_from_slice(bytes);
        }
        let records = self.records.as_mut().unwrap();
        let mut at = 0;
        while let Some(head) = self.raw.get(at..).and_then(|rest| rest.first_chunk::<5>()) {
            let len = record_len(head).unwrap();
            let Some(record) = self.raw.get_mut(at..at + len) else { break };
            assert!(!self.ended, "a record after the end");
            match records.open(record).unwrap() {
                Opened::Data(range) => {
                    self.plain.extend_from_slice(&record[range]);
                    self.answered = 0;
                }
                Opened::KeyUpdate { requested } => {
                    assert!(!requested);
                    records.rebase(records.tx(), records.rx());
                    self.answered += 1;
                    self.owed = self.owed.checked_sub(1).expect("a KeyUpdate without a request");
                }
                Opened::Alert { description: 0, .. } => self.ended = true,
                Opened::Alert { description, .. } => panic!("alert {description}"),
                Opened::Renegotiation | Opened::Ignored => {}
            }
            at += len;
        }
        self.raw.drain(..at);
    }

    /// Seals the application's bytes.
    pub(crate) fn state_text(&mut self, data: &[u8], out: &mut Vec<u8>) {
        let Some(records) = self.records.as_mut().filter(|_| !data.is_empty()) else { return };
        if self.updates && self.answered + self.owed < UPDATES_MAX {
            let before = out.len();
            records.seal_key_update(true, out);
            self.owed += u32::from(out.len() > before);
        }
        for chunk in data.chunks(self.record) {
            seal(records, chunk, out);
        }
    }

    pub(crate) fn end(&mut self, out: &mut Vec<u8>) {
        self.warn(0, out);
    }

    /// Sends this alert.
    pub(crate) fn warn(&mut self, description: u8, out: &mut Vec<u8>) {
        if let Some(records) = &mut self.records {
            records.seal_alert(description, out);
        }
    }

    /// The connection is that of this leg again: nothing has come on the one that it was given to.
    pub(crate) fn take_back(&mut self, other: &mut ServerTls) {
        let plain = std::mem::take(&mut self.plain);
        *self = ServerTls { plain, ..other.detach() };
    }

    /// The connection leaves its leg, for another request; what was received stays here.
    pub(crate) fn detach(&mut self) -> ServerTls {
        assert!(self.raw.is_empty() && !self.ended, "used again inside a record");
        let plain = std::mem::take(&mut self.plain);
        let rest = ServerTls { plain, ..ServerTls::new(self.record, self.updates, 0) };
        std::mem::replace(self, rest)
    }
}
