//! Audited capture of a worker's connections: envelopes, requests and continuations for the Recorder.

use super::Worker;
use super::slab::Key;
use crate::audit::Feed;
use evergate_connection::{Connection, RequestLog};
use evergate_evidence::feed::Continuation;
use evergate_evidence::record::{RequestLeg, RequestRecord};
use evergate_worker::host::Socket;
use std::time::{SystemTime, UNIX_EPOCH};

impl Worker {
    /// Sends the envelope of a connection to the Recorder.
    pub(super) fn feed_envelope(&mut self, key: Key) {
        let (Some(sealer), Some(client)) = (&self.sealer, self.clients.get_mut(key)) else { return };
        if let Some(sealed) = client.connection.sealed_secrets() {
            sealer.audit().feed.push_envelope(&sealed.envelope);
        }
    }

    /// Keeps the addresses of an audited connection's server connection: it may be gone when its request ends.
    pub(super) fn record_audited_leg(&mut self, key: Key, upstream: Key) {
        let (Some(client), Some(upstream)) = (self.clients.get_mut(key), self.upstreams.get_mut(upstream))
        else {
            return;
        };
        if client.connection.sealed_secrets().is_none() {
            return;
        }
        let local = upstream.socket.local_address().map(super::canonical);
        let peer = upstream.server.address();
        client.audited_leg = local.ok().map(|local| Box::new(RequestLeg { peer, local }));
    }

    /// Sends the record of a request to the Recorder, if it is to be recorded.
    pub(super) fn feed_request(&mut self, key: Key, line: &RequestLog) {
        let (Some(sealer), Some(client)) = (&self.sealer, self.clients.get_mut(key)) else { return };
        let connection = &client.connection;
        let Some(sealed) = connection.sealed_secrets().filter(|_| connection.records(line)) else { return };
        let mut own = [0; 24];
        let id = connection.own_request_id(line.request, &mut own);
        sealer.audit().feed.push_request(RequestRecord {
            switch_connection: connection.id().0,
            index: line.request,
            time_ns: now_ns(),
            client_random: sealed.client_random,
            client: RequestLeg { peer: connection.client_address(), local: connection.local_address() },
            server: client.audited_leg.as_deref().copied().filter(|_| line.server.is_some()),
            status: line.status,
            flags: 0,
            id: id.as_bytes().into(),
            given_id: line.given_id.as_deref().unwrap_or_default().as_bytes().into(),
        });
    }
}

/// Sends to the Recorder that this node continues a connection of another one.
pub(super) fn feed_continuation(feed: &Feed, connection: &Connection) {
    let (Some(sealed), Some((rx, tx))) = (connection.sealed_secrets(), connection.record_positions()) else {
        return;
    };
    feed.push_continued(Continuation {
        connection: connection.id().0,
        client_random: sealed.client_random,
        time_ns: now_ns(),
        from_client: (rx.generation, rx.sequence),
        to_client: (tx.generation, tx.sequence),
    });
}

fn now_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}
