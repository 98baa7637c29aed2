//! The backup's side: frames of other nodes' connections arrive, and their number is acknowledged.

use super::Worker;
use crate::agent::Report;
use crate::channel::Incoming;
use crate::kernel::Kernel;
use evergate_membership::{Bucket, NodeId, OwnershipStart, Role};
use evergate_replication::Frame;

impl Worker {
    /// Processes bytes of an owner's channel.
    pub(crate) fn read_frames(&mut self, from: NodeId, channel: u64, number: u64, bytes: Vec<u8>) {
        if self.closed.contains(&(from, channel)) {
            return self.reports.push(Report::Refused { node: from, channel });
        }
        let incoming = self.incoming.entry((from, channel)).or_default();
        incoming.receive(number, bytes);
        let knew = incoming.announced.sender();
        let mut at = 0;
        let result = loop {
            match Frame::decode(&incoming.input[at..]) {
                Ok(Some((frame, length))) => {
                    at += length;
                    if let Err(error) = take_in(incoming, &mut self.store, &mut self.reports, frame) {
                        break Err(error);
                    }
                }
                Ok(None) => break Ok(()),
                Err(error) => break Err(error.to_string()),
            }
        };
        incoming.input.drain(..at);
        if knew.is_none() && incoming.announced.sender().is_some() {
            // Frames on an earlier channel are older than the first ones on this channel.
            let others = self.incoming.extract_if(.., |(node, number), other| {
                *node == from && *number != channel && other.announced.sender().is_some()
            });
            self.closed.extend(others.map(|(of, _)| of));
        }
        if result.is_err() {
            // Frames of a former owner are refused, and its channel ends.
            self.incoming.remove(&(from, channel));
            self.reports.push(Report::Refused { node: from, channel });
        }
    }

    pub(crate) fn lose_incoming(&mut self, from: NodeId, channel: u64) {
        self.incoming.remove(&(from, channel));
    }

    /// Drops everything because this node lost its place: other nodes continue its connections, or they are lost.
    pub(super) fn drop_state(&mut self, kernel: &mut Kernel) {
        self.store.clear();
        self.roles.fill(Role::NOTHING);
        self.outgoing.clear();
        self.closed.extend(std::mem::take(&mut self.incoming).into_keys());
        self.freezing.clear();
        self.named.clear();
        for key in self.clients.keys().copied().collect::<Vec<_>>() {
            self.drop_client(kernel, key);
        }
        for flow in std::mem::take(&mut self.ending).into_keys() {
            kernel.silence(flow);
        }
        for upstream in std::mem::take(&mut self.idle).into_values().flatten() {
            kernel.silence(upstream.leg.flow);
        }
        for failover in std::mem::take(&mut self.failovers) {
            failover.drop_all(kernel);
        }
        self.early.clear();
        kernel.pending.clear();
        kernel.held.clear();
    }

    /// Applies a change of role to the replicas of a bucket.
    pub(super) fn change_held(&mut self, bucket: Bucket, role: Role) {
        match role {
            Role::Outside { since, .. } => self.store.forget(bucket, since),
            Role::Backup { term, in_sync: false, .. } => self.store.forget(bucket, term),
            Role::Owner { term, begin: OwnershipStart::Empty, .. } => drop(self.store.recover(bucket, term)),
            Role::Backup { .. } | Role::Owner { .. } => {}
        }
    }
}

fn take_in(
    incoming: &mut Incoming,
    store: &mut evergate_replication::ReplicaStore,
    reports: &mut Vec<Report>,
    frame: Frame,
) -> Result<(), String> {
    incoming.frames += 1;
    if matches!(frame, Frame::Hello { .. }) == (incoming.frames > 1) {
        return Err("frames out of order".to_owned());
    }
    let completes = if let Frame::Complete { bucket } = &frame { Some(*bucket) } else { None };
    store.handle(&mut incoming.announced, frame).map_err(|error| error.to_string())?;
    if let Some(bucket) = completes
        && let Some(term) = incoming.announced.of(bucket)
    {
        reports.push(Report::Complete { bucket, term });
    }
    Ok(())
}
