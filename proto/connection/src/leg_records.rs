//! TLS records of a server leg: both directions, and the records of a restored leg that are made again.

use crate::replication::position;
use crate::restore::at;
use evergate_replication::{ConnectionState, LegTls, RecordKind, RecordLayout, RecordPosition, Route};
use evergate_tls::{Records, RecordsState};
use std::collections::VecDeque;

/// Records that were decided before a failover, and the part of their content that has arrived again. Bound: one run,
/// and the bytes of one call.
#[derive(Debug, Default)]
pub(crate) struct Replay {
    pub(crate) forced: VecDeque<RecordLayout>,
    pub(crate) hold: Vec<u8>,
    /// The server's key generation whose KeyUpdate is answered after the replay; 0 when none.
    pub(crate) owed: u32,
}

/// Where records towards a server stand; nothing on a leg without TLS.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Uplink {
    pub(crate) tx: RecordPosition,
    /// The server's key generation whose KeyUpdate request is answered.
    pub(crate) answered_keys: u32,
    /// Our end is sealed.
    pub(crate) ended: bool,
}

/// Content of a run of records, in bytes.
pub(crate) fn length_of(run: &RecordLayout) -> usize {
    let lengths = run.lengths.iter();
    let lengths = lengths.map(|(length, count)| usize::from(*length).saturating_mul(*count as usize));
    lengths.fold(0, usize::saturating_add)
}

impl Replay {
    /// Whether content was taken in that no record has yet.
    pub(crate) fn holds(&self) -> bool {
        !self.hold.is_empty()
    }

    /// How much content makes the next run whole.
    pub(crate) fn lacks(&self) -> Option<usize> {
        let run = self.forced.front().filter(|boundary| boundary.kind == RecordKind::Data)?;
        Some(length_of(run).saturating_sub(self.hold.len()))
    }
}

/// The record layer of a leg, and the bytes around it; empty on a leg without TLS.
#[derive(Debug, Default)]
pub(crate) struct LegRecords {
    /// Raw bytes of the server, not decrypted yet.
    pub(crate) raw: Vec<u8>,
    /// Bytes behind the record in hand: after a response they are surplus.
    pub(crate) behind: usize,
    pub(crate) layer: Option<Box<Records>>,
    /// Our last bytes of the handshake, which the server may lack. Kept only for backups.
    pub(crate) flight: Vec<u8>,
    /// The server's key generation whose KeyUpdate request is answered.
    pub(crate) answered_keys: u32,
    /// Our close_notify is sealed.
    pub(crate) up_ended: bool,
    /// Output position of our close_notify.
    pub(crate) notify_at: Option<u64>,
    /// Records of a restored leg that were decided before.
    pub(crate) replay: Option<Box<Replay>>,
    /// The leg ends without close_notify: by RST, or before the backups know its last record.
    pub(crate) abandoned: bool,
}

impl LegRecords {
    /// See [`crate::upgrade_state`].
    #[rustfmt::skip]
    pub(crate) fn all_fields_are_exported(&self) {
        let LegRecords {
            raw: _, behind: _, layer: _, answered_keys: _, up_ended: _,
            replay: _, flight: _, notify_at: _, // of restored legs, which stay, and of those with backups
            abandoned: _, // released in the same call, or with backups
        } = self;
    }

    /// The state for another node: directly after the handshake, or before the next request. `consumed` and `sent` are
    /// the leg's positions.
    pub(crate) fn export(&mut self, consumed: u64, sent: u64) -> Option<Box<LegTls>> {
        let records = self.layer.as_ref()?;
        let mut state = Vec::new();
        records.export().encode(&mut state);
        let flight = std::mem::take(&mut self.flight);
        Some(Box::new(LegTls { records: state, consumed, sent, flight }))
    }

    /// Restores the records of a leg from a replica; the error names the contradiction.
    pub(crate) fn restore(
        &mut self,
        state: &ConnectionState,
        route: &Route,
        tls: &LegTls,
    ) -> Result<(), &'static str> {
        let exported = RecordsState::decode(&tls.records).map_err(|_| "record state of a leg")?;
        let mut records = Records::import(&exported).map_err(|_| "record keys of a leg")?;
        let (client, server) = (&state.client, &state.server);
        self.answered_keys = records.rx().generation;
        self.flight = tls.flight.clone();
        if server.leg == route.leg {
            records.seek_rx(at(server.rx)).map_err(|_| "record position of a server")?;
        }
        if client.leg == route.leg {
            records.seek_tx(at(client.tx)).map_err(|_| "record position towards a server")?;
            self.answered_keys = self.answered_keys.max(client.answered_keys);
            self.up_ended = client.leg_ended;
            self.flight = Vec::new();
        }
        let forced = state.leg_boundaries.get(&route.leg).cloned().unwrap_or_default();
        for boundary in &forced {
            if let RecordKind::KeyUpdate(answers) = boundary.kind {
                self.answered_keys = self.answered_keys.max(answers);
            }
        }
        self.replay = (!forced.is_empty()).then(|| Box::new(Replay { forced, ..Replay::default() }));
        self.layer = Some(Box::new(records));
        Ok(())
    }

    /// The record layer that lacks only close_notify. `None` after close_notify, before the end of a replay, and for a
    /// leg that ends without it: a record sealed there could use a nonce twice.
    pub(crate) fn take_unclosed(&mut self) -> Option<Box<Records>> {
        let lacks_it = self.replay.is_none() && !self.up_ended && !self.abandoned;
        if lacks_it { self.layer.take() } else { None }
    }

    /// Whether all that came is opened, and the layer takes another message.
    pub(crate) fn is_quiet(&self) -> bool {
        let fit = |records: &Records| records.is_between_messages() && !records.wants_close();
        self.raw.is_empty() && self.behind == 0 && self.layer.as_deref().is_none_or(fit)
    }

    /// Whether the server's stream can be read again from here by a node that knows nothing of what was before.
    pub(crate) fn is_restartable(&self) -> bool {
        let owes = self.replay.as_ref().is_some_and(|replay| replay.owed > self.answered_keys);
        self.layer.as_ref().is_none_or(|records| records.is_between_messages()) && !owes
    }

    /// Whether all records that were decided before a failover are made again.
    pub(crate) fn has_repeated(&self) -> bool {
        self.replay.as_ref().is_none_or(|replay| replay.forced.is_empty())
    }

    /// Where sealing stands.
    pub(crate) fn uplink(&self) -> Uplink {
        let tx = self.layer.as_ref().map(|records| position(records.tx())).unwrap_or_default();
        Uplink { tx, answered_keys: self.answered_keys, ended: self.up_ended }
    }

    /// Forgets secrets, and bytes of the server.
    pub(crate) fn wipe(&mut self) {
        (self.layer, self.replay) = (None, None);
        (self.raw, self.flight) = (Vec::new(), Vec::new());
    }
}
