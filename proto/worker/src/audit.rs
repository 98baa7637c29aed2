//! Audited capture of a worker's connections: envelopes, requests and continuations for the Recorder.

use crate::host::{AuditedCapture, Host, Socket};
use crate::slab::Key;
use crate::worker::{Worker, canonical};
use evergate_connection::{Connection, RequestLog};
use evergate_evidence::feed::Continuation;
use evergate_evidence::record::{RequestLeg, RequestRecord};

impl<H: Host> Worker<H> {
    /// Sends the envelope of a connection to the Recorder.
    pub(super) fn feed_envelope(&mut self, key: Key) {
        let (Some(audit), Some(client)) = (&self.observers.audit, self.clients.get_mut(key)) else { return };
        if let Some(sealed) = client.connection.sealed_secrets() {
            audit.push_envelope(&sealed.envelope);
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
        let local = upstream.socket.local_address().map(canonical);
        let peer = upstream.server.address();
        client.audited_leg = local.ok().map(|local| Box::new(RequestLeg { peer, local }));
    }

    /// Sends the record of a request to the Recorder, if it is to be recorded.
    pub(super) fn feed_request(&mut self, key: Key, line: &RequestLog) {
        let (Some(audit), Some(client)) = (&self.observers.audit, self.clients.get_mut(key)) else { return };
        let connection = &client.connection;
        let Some(sealed) = connection.sealed_secrets().filter(|_| connection.records(line)) else { return };
        let mut own = [0; 24];
        let id = connection.own_request_id(line.request, &mut own);
        audit.push_request(RequestRecord {
            switch_connection: connection.id().0,
            index: line.request,
            time_ns: self.host.wall_clock_ns(),
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
pub(crate) fn feed_continuation(audit: &dyn AuditedCapture, connection: &Connection, time_ns: u64) {
    let (Some(sealed), Some((rx, tx))) = (connection.sealed_secrets(), connection.record_positions()) else {
        return;
    };
    audit.push_continued(Continuation {
        connection: connection.id().0,
        client_random: sealed.client_random,
        time_ns,
        from_client: (rx.generation, rx.sequence),
        to_client: (tx.generation, tx.sequence),
    });
}
