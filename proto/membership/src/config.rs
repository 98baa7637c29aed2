//! The operator's settings, and the inequalities between timers that safety depends on.

use evergate_base::Micros;

use crate::{BUCKETS, MemberSet, NODES_MAX, NodeId};

/// The evidence by which a node knows that it is not in the smaller part of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// A witness answers, or all configured nodes agree. The cluster survives down to one node. Safe while two live
    /// nodes that both reach the witness receive each other within [`Timing::take`].
    Witness,
    /// More than half of the configured nodes agree. Safe under any partition. Stops when half of the nodes are down.
    Majority,
}

/// The protocol's spans of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Timing {
    /// Time between two heartbeats on each path.
    pub heartbeat: Micros,
    /// Length of a lease, from the sending time of the heartbeat that it answers.
    pub fence: Micros,
    /// The longest time that a packet behind the gate stays in a queue of the node.
    pub transmit: Micros,
    /// Failover time: a node helps to replace a peer at the earliest so long after its last grant to that peer.
    pub take: Micros,
    /// Silence after which a node is suspected. At most `take`: a later suspicion only lengthens the failover.
    pub suspect: Micros,
    /// The largest difference of two clocks' rates, in parts per million.
    pub drift_ppm: u64,
    /// Time for which a started node listens before it may bootstrap a cluster alone.
    pub listen_start: Micros,
    /// Time for which a node listens after a lapse or after it dropped its state, before it may bootstrap alone.
    pub listen_lapse: Micros,
    /// First delay before an excluded node joins again. The delay doubles up to `hold_down_max`.
    pub hold_down_min: Micros,
    /// Longest delay before an excluded node joins again.
    pub hold_down_max: Micros,
    /// Delay between the proposals of nodes that notice the same change, times the rank of a node.
    pub stagger: Micros,
    /// Without progress of its workers for so long a node stops its heartbeats.
    pub stall_max: Micros,
    /// Time between two checks of the spread of load and backups.
    pub balance: Micros,
    /// Time for which an owner waits for a bucket to freeze, before it cancels a move.
    pub freeze_max: Micros,
}

impl Timing {
    /// For nodes whose heartbeat thread runs on time: bare metal.
    pub const BARE_METAL: Timing = Timing {
        heartbeat: Micros::from_ms(5),
        fence: Micros::from_ms(34),
        transmit: Micros::from_ms(2),
        take: Micros::from_ms(40),
        suspect: Micros::from_ms(30),
        drift_ppm: 1000,
        listen_start: Micros::from_ms(3000),
        listen_lapse: Micros::from_ms(1000),
        hold_down_min: Micros::from_ms(1000),
        hold_down_max: Micros::from_ms(60_000),
        stagger: Micros::from_ms(2),
        stall_max: Micros::from_ms(100),
        balance: Micros::from_ms(1000),
        freeze_max: Micros::from_ms(1000),
    };

    /// For virtual machines on loaded hosts, where threads were measured to wake up to 106 ms late.
    pub const VIRTUAL_MACHINE: Timing = Timing {
        heartbeat: Micros::from_ms(10),
        fence: Micros::from_ms(140),
        take: Micros::from_ms(150),
        suspect: Micros::from_ms(120),
        stall_max: Micros::from_ms(1000),
        ..Timing::BARE_METAL
    };

    /// Whether a lease is long enough for calm heartbeats to alternate between the networks. Each network then carries
    /// half of them, and a lost one costs twice the time.
    pub(crate) fn alternates(&self) -> bool {
        self.fence.0 >= self.heartbeat.0.saturating_mul(12)
            && self.suspect.0 >= self.heartbeat.0.saturating_mul(6)
    }
}

/// Limits on the buckets that an owner changes at once, so that a join causes no storm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pace {
    /// Most buckets that catch up at one more backup for the sake of balance.
    pub catching_up_max: u16,
    /// Most buckets that are being moved.
    pub moves_max: u16,
    /// Tolerance in percent: a node gives buckets away when its load exceeds its share by more.
    pub tolerance_percent: u8,
}

impl Default for Pace {
    fn default() -> Pace {
        Pace { catching_up_max: 64, moves_max: 64, tolerance_percent: 10 }
    }
}

/// Name of a cluster, so that two clusters on one network stay apart. The caller derives it from the configured name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct ClusterId(pub u64);

/// The configuration of one node. All nodes must agree on everything but `id` and `weight`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// The cluster.
    pub cluster: ClusterId,
    /// This node.
    pub id: NodeId,
    /// The static list of nodes, this one included.
    pub nodes: MemberSet,
    /// Number of buckets; [`BUCKETS`] outside of tests.
    pub buckets: u16,
    /// Backups for each bucket; more than there are nodes means all.
    pub backups: u8,
    /// Evidence that a node needs to act.
    pub mode: Mode,
    /// Timers.
    pub timing: Timing,
    /// Limits on simultaneous work.
    pub pace: Pace,
    /// This node's share of the load relative to other nodes. With 0 it receives no buckets.
    pub weight: u16,
}

/// A configuration that would not be safe, or could not work.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The node's own id is missing from the list, or an id is out of range.
    #[error("{id} is not in the list of nodes {nodes:?}")]
    NotListed {
        /// Own id.
        id: NodeId,
        /// The list.
        nodes: MemberSet,
    },
    /// No buckets, or more than a map can carry.
    #[error("{0} buckets: expected 1 to {BUCKETS}")]
    Buckets(u16),
    /// A lease could outlast the wait of the node that fails over.
    #[error(
        "leases of {fence_us} us (+{transmit_us} us in queues, clocks {drift_ppm} ppm apart) may outlast the failover \
         after {take_us} us, so that two nodes own a bucket at once; raise take or lower fence"
    )]
    LeaseOutlastsTake {
        /// The lease.
        fence_us: u64,
        /// The queues.
        transmit_us: u64,
        /// The clocks.
        drift_ppm: u64,
        /// The wait.
        take_us: u64,
    },
    /// Too few heartbeats in a lease: a few lost packets would fence a healthy node.
    #[error("heartbeat of {heartbeat_us} us: at most a sixth of the lease of {fence_us} us")]
    HeartbeatTooSlow {
        /// The heartbeat.
        heartbeat_us: u64,
        /// The lease.
        fence_us: u64,
    },
    /// Suspicion after the failover could start, or before a second heartbeat could arrive.
    #[error(
        "suspicion after {suspect_us} us: expected more than two heartbeats and at most take ({take_us} us)"
    )]
    Suspect {
        /// The silence.
        suspect_us: u64,
        /// The wait.
        take_us: u64,
    },
    /// A listening node could bootstrap a second cluster during a failover.
    #[error("listening for {listen_us} us: at least twice take ({take_us} us)")]
    ListenTooShort {
        /// The shorter of the two spans.
        listen_us: u64,
        /// The wait.
        take_us: u64,
    },
}

impl Config {
    /// A cluster of the nodes 0 to `nodes - 1` with one backup, the default timers and witness mode.
    pub fn new(cluster: ClusterId, id: NodeId, nodes: u8) -> Config {
        Config {
            cluster,
            id,
            nodes: (0..nodes).map(NodeId).collect(),
            buckets: BUCKETS,
            backups: 1,
            mode: Mode::Witness,
            timing: Timing::BARE_METAL,
            pace: Pace::default(),
            weight: 100,
        }
    }

    /// Checks every inequality that the protocol relies on.
    pub fn check(&self) -> Result<(), ConfigError> {
        let t = &self.timing;
        if usize::from(self.id.0) >= NODES_MAX || !self.nodes.contains(self.id) {
            return Err(ConfigError::NotListed { id: self.id, nodes: self.nodes });
        }
        if self.buckets == 0 || self.buckets > BUCKETS {
            return Err(ConfigError::Buckets(self.buckets));
        }
        // (fence + transmit) (1 + rho) / (1 - rho) < take, in integers.
        let rho = u128::from(t.drift_ppm.min(500_000));
        let lease = u128::from(t.fence.0) + u128::from(t.transmit.0);
        if lease * (1_000_000 + rho) >= u128::from(t.take.0) * (1_000_000 - rho) {
            return Err(ConfigError::LeaseOutlastsTake {
                fence_us: t.fence.0,
                transmit_us: t.transmit.0,
                drift_ppm: t.drift_ppm,
                take_us: t.take.0,
            });
        }
        if t.heartbeat.0 == 0 || t.heartbeat.0.saturating_mul(6) > t.fence.0 {
            return Err(ConfigError::HeartbeatTooSlow { heartbeat_us: t.heartbeat.0, fence_us: t.fence.0 });
        }
        if t.suspect > t.take || t.suspect.0 <= t.heartbeat.0.saturating_mul(2) {
            return Err(ConfigError::Suspect { suspect_us: t.suspect.0, take_us: t.take.0 });
        }
        let listen = t.listen_start.min(t.listen_lapse);
        if listen.0 < t.take.0.saturating_mul(2) {
            return Err(ConfigError::ListenTooShort { listen_us: listen.0, take_us: t.take.0 });
        }
        Ok(())
    }

    /// The smallest number of nodes that is more than half of the configured nodes.
    pub(crate) fn majority(&self) -> usize {
        self.nodes.len() / 2 + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shipped_timers_satisfy_the_inequalities() {
        let mut config = Config::new(ClusterId(1), NodeId(0), 3);
        assert_eq!(config.check(), Ok(()));
        config.timing = Timing::VIRTUAL_MACHINE;
        assert_eq!(config.check(), Ok(()));
    }

    #[test]
    fn lease_that_could_outlast_the_failover_time_is_refused() {
        let mut config = Config::new(ClusterId(1), NodeId(0), 2);
        config.timing.fence = Micros::from_ms(38);
        assert!(matches!(config.check(), Err(ConfigError::LeaseOutlastsTake { .. })));
        config.timing.fence = Micros::from_ms(34);
        config.timing.drift_ppm = 60_000;
        assert!(matches!(config.check(), Err(ConfigError::LeaseOutlastsTake { .. })));
    }

    #[test]
    fn every_inequality_holds_up_to_its_edge() {
        let check = |change: &dyn Fn(&mut Timing)| {
            let mut config = Config::new(ClusterId(1), NodeId(0), 3);
            change(&mut config.timing);
            config.check().map_err(|error| error.to_string())
        };
        let base = Timing::BARE_METAL;
        let (hb, take) = (base.heartbeat.0, base.take.0);
        type Edge<'a> = (&'a str, &'a dyn Fn(&mut Timing, u64), u64, u64);
        let edges: [Edge<'_>; 7] = [
            // (fence + 2,000) * 1.001 < 40,000 * 0.999
            ("may outlast", &|t, us| t.fence = Micros(us), 37_920, 37_921),
            ("heartbeat of", &|t, us| t.heartbeat = Micros(us), base.fence.0 / 6, base.fence.0 / 6 + 1),
            ("heartbeat of", &|t, us| t.heartbeat = Micros(us), 1, 0),
            ("suspicion after", &|t, us| t.suspect = Micros(us), take, take + 1),
            ("suspicion after", &|t, us| t.suspect = Micros(us), 2 * hb + 1, 2 * hb),
            ("listening for", &|t, us| t.listen_start = Micros(us), 2 * take, 2 * take - 1),
            ("listening for", &|t, us| t.listen_lapse = Micros(us), 2 * take, 2 * take - 1),
        ];
        for (what, change, good, bad) in edges {
            assert_eq!(check(&|timing| change(timing, good)), Ok(()), "{what} {good}");
            let error = check(&|timing| change(timing, bad)).unwrap_err();
            assert!(error.contains(what), "{what} {bad}: {error}");
        }
        for (buckets, good) in [(0, false), (1, true), (BUCKETS, true), (BUCKETS + 1, false)] {
            let config = Config { buckets, ..Config::new(ClusterId(1), NodeId(0), 3) };
            assert_eq!(config.check().is_ok(), good, "{buckets} buckets");
        }
    }

    #[test]
    fn node_outside_its_own_list_is_refused() {
        let config = Config::new(ClusterId(1), NodeId(5), 3);
        assert!(matches!(config.check(), Err(ConfigError::NotListed { .. })));
    }
}
