//! The base secrets of long connections, whose peers change their keys without bound.
//!
//! A failover computes every key epoch from a base secret, so the base must follow. Without backups it follows at
//! once. With backups it moves to the newest checkpoints, behind which no record is sealed or opened again. An entry
//! behind those checkpoints replicates the new base.

use crate::client_leg::ClientTls;
use crate::connection::Connection;
use crate::leg_records::LegRecords;
use crate::replication::Replication;
use crate::restore::at;
use crate::server_leg::ServerLeg;
use evergate_replication::{Entry, RecordPosition, Side};
use evergate_tls::Records;

impl Connection {
    /// Moves the base secrets of both record layers as far as their checkpoints allow.
    pub(crate) fn move_keys(&mut self) {
        let remote = &mut self.remote;
        if let ClientTls::Open(records) = &mut self.client.tls {
            let checkpoints = remote.as_ref().map(|remote| {
                let rx = remote.client_checkpoints.newest().map(|point| point.rx).unwrap_or_default();
                Some((remote.server_checkpoints.last_end.tx, rx))
            });
            move_base(records, Side::Client, remote.as_deref_mut(), checkpoints);
        }
        if let Some(ServerLeg { id, tls: LegRecords { layer: Some(records), .. }, .. }) =
            self.servers.leg.as_deref_mut()
        {
            let checkpoints = remote.as_ref().map(|remote| remote.checkpoints_of(*id));
            move_base(records, Side::Server(*id), remote.as_deref_mut(), checkpoints);
        }
    }
}

impl Replication {
    /// Where the records of a server leg stand in the newest checkpoints, ours first, when both name it.
    fn checkpoints_of(&self, leg: u32) -> Option<(RecordPosition, RecordPosition)> {
        let client = self.client_checkpoints.newest().filter(|point| point.leg == leg)?;
        let server = self.server_checkpoints.newest().filter(|point| point.leg == leg)?;
        Some((client.tx, server.rx?))
    }
}

/// `checkpoints`: none on a connection without backups; else the newest, when they are known.
fn move_base(
    records: &mut Records,
    side: Side,
    remote: Option<&mut Replication>,
    checkpoints: Option<Option<(RecordPosition, RecordPosition)>>,
) {
    let oldest = match checkpoints {
        None => Some((records.tx(), records.rx())),
        Some(known) => known.map(|(tx, rx)| (at(tx), at(rx))),
    };
    let Some((tx, rx)) = oldest.filter(|(tx, rx)| records.wants_rebase(*tx, *rx)) else { return };
    records.rebase(tx, rx);
    if let Some(remote) = remote {
        let mut state = Vec::new();
        records.export_at(tx, rx).encode(&mut state);
        remote.log.push(Entry::Keys { side, records: state });
    }
}
