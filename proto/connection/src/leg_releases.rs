//! Finished legs that a failover might still need.
//!
//! Law (`docs/internals/failover.md`): a leg is released only when all backups know that the client has its response.

use crate::Effect;
use crate::effect::Effects;
use crate::leg_records::Uplink;
use crate::peer_acks::PeerAcks;
use crate::server_leg::ServerLeg;
use evergate_replication::{BoundLeg, Entry, Log};
use evergate_tls::Records;

/// A finished leg that a failover would still need.
#[derive(Debug)]
struct LegRelease {
    leg: u32,
    clean: bool,
    spent: bool,
    records: Option<Box<Records>>,
    /// Bytes sent to and parsed from the server.
    sent: u64,
    input: u64,
    /// Where its records towards the server stood.
    uplink: Uplink,
    /// Plaintext position that the client must have.
    plain: u64,
    /// The entry that frees it, once there is one.
    after: Option<u64>,
    idles: Idles,
}

/// What becomes of a leg that the client has the response of.
#[derive(Debug)]
enum Idles {
    /// It is released.
    No,
    /// It belongs to the client's connection and idles, which the backups have yet to know.
    LostSegments(Box<BoundLeg>),
    /// The entry is queued. `tls`: its records are in use again only when the backups hold that.
    Sent { tls: bool },
}

impl LegRelease {
    /// A server that has not acknowledged the whole request would see the next one behind a gap.
    fn is_clean(&self, acks: &PeerAcks) -> bool {
        self.clean && acks.has_server(self.leg, self.sent)
    }

    /// Whether the leg may carry the next request before the backups have acknowledged that the client has its
    /// response. Output on the leg then waits for a later entry, and a backup with that entry has the earlier one too.
    /// Input of the leg is acknowledged only when they have it
    /// ([`OutputReleases::is_unsettled`](crate::output_releases::OutputReleases::is_unsettled)).
    fn may_leave_early(&self, acks: &PeerAcks) -> bool {
        let busy = self.records.is_some() || matches!(self.idles, Idles::Sent { tls: true });
        self.after.is_some() && !busy && !self.spent && self.is_clean(acks)
    }

    /// The effect that gives the leg back to the worker.
    fn into_effect(self, clean: bool) -> Effect {
        let LegRelease { leg, spent, records, idles, .. } = self;
        match idles {
            Idles::No => Effect::Release { leg, clean, spent, records, over: false },
            _ => Effect::Retain { leg },
        }
    }
}

/// Legs that wait for their release, oldest first.
#[derive(Debug, Default)]
pub(crate) struct LegReleases {
    waiting: Vec<LegRelease>,
    /// Number of the newest leg whose response the client has, as an entry records.
    pub(crate) done: u32,
    /// A bound leg cannot idle: see [`LegReleases::record_bound`].
    pub(crate) bound_lost: bool,
}

impl LegReleases {
    /// Whether the next request need not wait for a leg.
    pub(crate) fn allow_request(&self, acks: &PeerAcks) -> bool {
        self.waiting.iter().all(|release| release.may_leave_early(acks))
    }

    /// The next request begins: legs that may carry it are given back now.
    pub(crate) fn release_early(&mut self, effects: &mut Effects) {
        for release in self.waiting.drain(..) {
            // Spent: it was bound when the request could begin, and this request goes elsewhere.
            effects.push(release.into_effect(true));
        }
    }

    /// The leg is done with, but kept until the client has the plaintext up to `plain`.
    pub(crate) fn push(
        &mut self,
        leg: &ServerLeg,
        (clean, spent): (bool, bool),
        records: Option<Box<Records>>,
        uplink: Uplink,
        plain: u64,
    ) {
        let ServerLeg { id: leg, out_pos: sent, in_pos: input, .. } = *leg;
        let (after, idles) = (None, Idles::No);
        self.waiting.push(LegRelease {
            leg,
            clean,
            spent,
            records,
            sent,
            input,
            uplink,
            plain,
            after,
            idles,
        });
    }

    /// The same of a leg that idles and belongs to the client's connection.
    pub(crate) fn push_bound(&mut self, leg: &ServerLeg, state: BoundLeg, uplink: Uplink, plain: u64) {
        self.push(leg, (true, false), None, uplink, plain);
        if let Some(release) = self.waiting.last_mut() {
            release.idles = Idles::LostSegments(Box::new(state));
        }
    }

    /// The idle bound leg is over. Whether that is done when the client has its response.
    pub(crate) fn unbind(&mut self, log: &mut Log, leg: u32, records: &mut Option<Box<Records>>) -> bool {
        let found = self.waiting.iter_mut().find(|release| release.leg == leg);
        let Some(release) = found.filter(|release| !matches!(release.idles, Idles::No)) else { return false };
        release.spent = true;
        match std::mem::replace(&mut release.idles, Idles::No) {
            // The backups could seal a request under the nonce of close_notify until they know this entry.
            Idles::Sent { .. } => _ = log.push(Entry::Bound(None)),
            _ => release.records = records.take(),
        }
        true
    }

    /// A checkpoint at plaintext position `plain` is about to be queued, behind which the backups know of idle bound
    /// legs by these entries alone. A leg whose server has not acknowledged the whole request cannot be continued.
    pub(crate) fn record_bound(&mut self, log: &mut Log, acks: &mut PeerAcks, plain: u64) {
        let Some(release) = self.waiting.iter_mut().find(|release| {
            release.after.is_none()
                && release.plain <= plain
                && matches!(release.idles, Idles::LostSegments(_))
        }) else {
            return;
        };
        let clean = release.is_clean(acks);
        let Idles::LostSegments(state) = std::mem::replace(&mut release.idles, Idles::No) else { return };
        if clean {
            release.idles = Idles::Sent { tls: state.route.tls.is_some() };
            log.push(Entry::Bound(Some(state)));
        } else {
            release.spent = true;
            (self.bound_lost, acks.has_news) = (true, true);
        }
    }

    /// The newest leg that is kept, how much was sent on it, and where its records stood.
    pub(crate) fn newest(&self) -> Option<(u32, u64, Uplink)> {
        self.waiting
            .last()
            .filter(|release| release.after.is_none())
            .map(|release| (release.leg, release.sent, release.uplink))
    }

    /// Whether a leg is kept although the client has everything up to `plain`.
    pub(crate) fn waits_at(&self, plain: u64) -> bool {
        self.waiting.iter().any(|release| release.after.is_none() && release.plain <= plain)
    }

    /// Frees legs whose responses end before `plain` when the backups hold `entry`. Number and input position of each.
    pub(crate) fn free(&mut self, plain: u64, entry: u64) -> Vec<(u32, u64)> {
        let mut done = Vec::new();
        for release in self.waiting.iter_mut().filter(|p| p.after.is_none() && p.plain <= plain) {
            release.after = Some(entry);
            self.done = self.done.max(release.leg);
            done.push((release.leg, release.input));
        }
        done
    }

    /// Gives legs back whose entry is acknowledged.
    pub(crate) fn perform(&mut self, acknowledged: u64, acks: &PeerAcks, effects: &mut Effects) {
        let is_free = |release: &LegRelease| release.after.is_some_and(|after| after <= acknowledged);
        while let Some(index) = self.waiting.iter().position(is_free) {
            let release = self.waiting.remove(index);
            let clean = release.is_clean(acks);
            effects.push(release.into_effect(clean));
        }
    }

    /// The connection is over: no node will recover it, and a backup that knows so needs the last response of a leg no
    /// more.
    pub(crate) fn release_all(&mut self, acks: &PeerAcks, effects: &mut Effects) {
        for release in std::mem::take(&mut self.waiting) {
            let clean = release.is_clean(acks);
            let LegRelease { leg, spent, records, .. } = release;
            effects.push(Effect::Release { leg, clean, spent, records, over: true });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replication::{Replication, performed};
    use evergate_replication::ServerCheckpoint;

    /// The release of a leg in clear whose response ends at plaintext position 10.
    fn release(leg: u32, input: u64) -> LegRelease {
        LegRelease {
            leg,
            clean: true,
            spent: false,
            records: None,
            sent: 0,
            input,
            uplink: Uplink::default(),
            plain: 10,
            after: None,
            idles: Idles::No,
        }
    }

    #[test]
    fn leg_is_free_when_backups_know_its_response_arrived() {
        let mut remote = Replication::default();
        remote.legs.waiting.push(release(1, 0));
        remote.log.push(Entry::Close { plain: 0, abort: false });
        remote.log.push(Entry::Server(ServerCheckpoint { plain: 10, ..ServerCheckpoint::default() }));
        remote.free_legs(10);
        remote.log.handle_acknowledged(1);
        assert!(performed(&mut remote).is_empty());
        remote.log.handle_acknowledged(2);
        assert!(matches!(performed(&mut remote)[..], [Effect::Release { leg: 1, .. }]));
    }

    /// The next request goes to another pool before the backups know that the response has arrived.
    #[test]
    fn bound_leg_released_early_serves_no_other_client() {
        let mut remote = Replication::default();
        remote.acks.note_server(1, 0);
        let after = Some(remote.log.push(Entry::Server(ServerCheckpoint::default())));
        remote.legs.waiting.push(LegRelease { after, idles: Idles::Sent { tls: false }, ..release(1, 0) });
        assert!(remote.is_between_messages());
        assert!(remote.legs.unbind(&mut remote.log, 1, &mut None));
        let mut effects = Effects::default();
        remote.release_legs_early(&mut effects);
        let released = std::mem::take(&mut effects.list);
        assert!(
            matches!(released[..], [Effect::Release { leg: 1, clean: true, spent: true, .. }]),
            "{released:?}"
        );
    }

    #[test]
    fn server_input_is_dropped_with_its_leg() {
        let mut remote = Replication::default();
        for (number, length) in [(1, 1_300), (2, 5_000)] {
            remote.server_input.retain(number, 0, &vec![7; length], None);
            remote.legs.waiting.push(release(number, length as u64));
            remote.free_legs(9);
            assert_eq!(remote.server_input.len(), length, "the client lacks some of it");
            remote.free_legs(10);
            assert_eq!(remote.server_input.len(), 0);
        }
        remote.server_input.retain(2, 5_000, b"more", None);
        let of_resumed = (5_000, b"more".to_vec());
        assert_eq!(remote.server_input.next_stash(2, u64::MAX), Some(of_resumed));
    }
}
