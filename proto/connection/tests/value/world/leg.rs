//! The servers' ends of legs.

use crate::harness::secure::ServerTls;
use crate::scenario::App;
use evergate_connection::Hint;
use evergate_tls::Records;

/// A server that is asked for.
pub(super) struct Dial {
    pub(super) leg: u32,
    pub(super) pool: u32,
    pub(super) hint: Hint,
    pub(super) first: bool,
    pub(super) reuse: bool,
}

/// A server's connection.
pub(super) struct Leg {
    pub(super) app: App,
    pub(super) tls: Option<ServerTls>,
    /// How much of `wire` its TLS has taken.
    pub(super) taken: usize,
    pub(super) server: u32,
    pub(super) open: bool,
    /// The present node has its socket.
    pub(super) held: bool,
    pub(super) released: bool,
    pub(super) sent: Vec<u8>,
    pub(super) acked: u64,
    pub(super) read: u64,
    pub(super) end_told: bool,
    /// Everything ever written to it, by position.
    pub(super) wire: Vec<u8>,
    pub(super) written: u64,
    pub(super) delivered: u64,
    pub(super) told: u64,
    pub(super) fin_waits: bool,
    pub(super) fin_at: Option<u64>,
    pub(super) fin_seen: bool,
}

impl Leg {
    pub(super) fn react(&mut self, fin: bool, flaked: &mut bool) {
        let received = &self.wire[..self.delivered as usize];
        if let Some(tls) = &mut self.tls {
            tls.take(&received[self.taken.min(received.len())..], &mut self.sent);
            self.taken = received.len();
        }
        if self.app.fin || self.app.reset {
            return;
        }
        let before = self.sent.len();
        match &mut self.tls {
            None => self.app.react(received, fin, &mut self.sent),
            Some(tls) if tls.is_open() => {
                let mut said = Vec::new();
                self.app.react(&tls.plain, fin || tls.ended, &mut said);
                tls.say(&said, &mut self.sent);
                if self.app.fin {
                    tls.end(&mut self.sent);
                }
            }
            Some(_) => {}
        }
        if self.app.flaky && !*flaked {
            *flaked = true;
            self.app.reset = true;
            self.sent.truncate(before);
        }
    }

    /// What its application has received.
    pub(super) fn received(&self) -> &[u8] {
        match &self.tls {
            Some(tls) => &tls.plain,
            None => &self.wire[..self.delivered as usize],
        }
    }
}

/// A connection to a TLS server that waits for its next request.
pub(super) struct Idle {
    pub(super) server: u32,
    pub(super) records: Box<Records>,
    pub(super) tls: ServerTls,
}
