//! The servers' ends of legs.

use super::put;
use crate::harness::secure::ServerTls;
use crate::scenario::App;
use evergate_connection::ServerHint;
use evergate_proxy_protocol::{Decoded, decode};
use evergate_tls::Records;

/// A server that is asked for.
pub(super) struct Dial {
    pub(super) leg: u32,
    pub(super) pool: u32,
    pub(super) hint: ServerHint,
    pub(super) first: bool,
    pub(super) reuse: bool,
    /// The idle bound leg is to carry the request.
    pub(super) bound: bool,
}

/// Rate at which a peer may send more.
#[derive(Default)]
pub(super) struct Pace {
    /// Its timer for retransmission has fired.
    waits: bool,
}

impl Pace {
    /// How much more can be read of a peer that has sent so much. A waiting peer sends nothing new before all read
    /// bytes are acknowledged: it repeats the first segment only.
    pub(super) fn limit(
        &mut self,
        window: Option<(u64, bool)>,
        (acked, read, reported): (u64, u64, u64),
    ) -> u64 {
        let Some((window, loses)) = window else { return reported - read };
        self.waits = (self.waits || loses) && acked < read;
        let limit = if self.waits { read } else { acked + window };
        limit.min(reported).saturating_sub(read)
    }
}

/// Length of the PROXY header at the begin of a connection; everything while it is not whole.
fn header_of(bytes: &[u8]) -> usize {
    let beginning = b"\r\n\r\n\0";
    if !bytes.starts_with(beginning) && !beginning.starts_with(bytes) {
        return 0;
    }
    match decode(bytes) {
        Ok(Decoded::Header(header)) => header.len,
        Ok(Decoded::NeedMore) => bytes.len(),
        Err(error) => panic!("{error}: {bytes:?}"),
    }
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
    /// It idles, or did, for this client alone.
    pub(super) retained: bool,
    pub(super) sent: Vec<u8>,
    pub(super) acked: u64,
    pub(super) pace: Pace,
    pub(super) read: u64,
    pub(super) end_reported: bool,
    /// Everything ever written to it, by position.
    pub(super) wire: Vec<u8>,
    pub(super) written: u64,
    pub(super) delivered: u64,
    pub(super) reported: u64,
    pub(super) fin_waits: bool,
    pub(super) fin_at: Option<u64>,
    pub(super) fin_seen: bool,
}

impl Leg {
    /// Writes close_notify as the last record, which no node may have written otherwise; the server opens it.
    pub(super) fn close_tls(&mut self, id: u32, mut records: Records) {
        let mut alert = Vec::new();
        records.seal_alert(evergate_tls::alert::CLOSE_NOTIFY, &mut alert);
        put(&format!("server leg {id}"), &mut self.wire, &mut self.written, self.fin_at, &alert);
        let tls = self.tls.as_mut().expect("a record layer without TLS");
        tls.take(&self.wire[self.taken..], &mut Vec::new());
        (self.taken, self.delivered) = (self.wire.len(), self.wire.len() as u64);
        assert!(tls.ended, "the server has not received close_notify");
    }

    pub(super) fn react(&mut self, fin: bool, flaked: &mut bool) {
        let received = &self.wire[..self.delivered as usize];
        let header = header_of(received);
        if let Some(tls) = &mut self.tls {
            tls.take(&received[self.taken.max(header).min(received.len())..], &mut self.sent);
            self.taken = received.len();
        }
        let received = &received[header..];
        if self.app.fin || self.app.reset {
            return;
        }
        let before = self.sent.len();
        match &mut self.tls {
            None => self.app.react(received, fin, &mut self.sent),
            Some(tls) if tls.is_open() => {
                let mut reported = Vec::new();
                self.app.react(&tls.plain, fin || tls.ended, &mut reported);
                tls.state_text(&reported, &mut self.sent);
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
            None => {
                let received = &self.wire[..self.delivered as usize];
                &received[header_of(received)..]
            }
        }
    }
}

/// A connection to a TLS server that waits for its next request.
pub(super) struct Idle {
    pub(super) server: u32,
    pub(super) records: Box<Records>,
    pub(super) tls: ServerTls,
}
