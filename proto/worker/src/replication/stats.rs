//! Gauges of replication: connections with replicas elsewhere, replicas held here, and the lag of the backups.
//!
//! Updated once a second. Connections count themselves by bucket when they begin and end. Which buckets have a complete
//! replica elsewhere is looked up on demand. Nothing here costs anything per request.

use super::Cluster;
use super::load::Work;
use crate::host::Host;
use crate::{Count, Counters, Lag, ReplicationCounts};
use evergate_base::Micros;
use evergate_membership::{BUCKETS, Bucket, Role};
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};

const EVERY: Micros = Micros::from_ms(1000);

/// Figures that a worker publishes: connections of each bucket, and their CPU cost.
#[derive(Default)]
pub(crate) struct Figures {
    pub(super) census: Census,
    /// CPU costs of the buckets since the last report.
    pub(super) work: Work,
}

/// Connections of each bucket.
pub(super) struct Census {
    all: Arc<[Count]>,
    due: Micros,
}

/// Count of one connection, released when it is dropped.
pub(crate) struct Counted {
    all: Arc<[Count]>,
    bucket: Bucket,
}

impl Default for Census {
    fn default() -> Census {
        Census { all: (0..BUCKETS).map(|_| Count::default()).collect(), due: Micros(0) }
    }
}

impl Census {
    /// A connection of the bucket begins here.
    pub(super) fn count(&self, bucket: Bucket) -> Counted {
        if let Some(count) = self.all.get(usize::from(bucket.0)) {
            count.add(1);
        }
        Counted { all: self.all.clone(), bucket }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        if let Some(count) = self.all.get(usize::from(self.bucket.0)) {
            count.sub(1);
        }
    }
}

impl<H: Host> Cluster<H> {
    /// Publishes the counts of own, replicated and held connections, once a second.
    pub(super) fn publish_figures(&mut self, counters: &Counters, now: Micros) {
        if now < self.figures.census.due {
            return;
        }
        self.figures.census.due = now + EVERY;
        let mut lags: BTreeMap<u8, Lag> = BTreeMap::new();
        for ((node, _), outgoing) in &mut self.channels.outgoing {
            let lag = lags.entry(node.0.saturating_add(1)).or_default();
            *lag = lag.with(outgoing.take_lag(now));
        }
        let has_copy = |role: &Role| matches!(role, Role::Owner { required, .. } if !required.is_empty());
        let counts = || self.figures.census.all.iter().map(Count::get);
        let replicated =
            counts().zip(&self.roles).filter(|(_, role)| has_copy(role)).map(|(count, _)| count).sum();
        let figures = ReplicationCounts {
            own: counts().sum(),
            replicated,
            held: self.replicas.store.len() as u64,
            lags,
        };
        *counters.replicated_state.lock().unwrap_or_else(PoisonError::into_inner) = figures;
    }
}
