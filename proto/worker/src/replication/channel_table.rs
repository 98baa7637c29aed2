//! The replication channels of a worker, in both directions.

use super::backup::{Incoming, Newest};
use super::outgoing::Outgoing;
use crate::host::Host;
use evergate_base::Micros;
use evergate_membership::{Bucket, NodeId};
use std::collections::{BTreeMap, BTreeSet};

/// Channels to backups, channels from owners, and when to make them again.
pub(crate) struct ChannelTable<H: Host> {
    /// By the node and the worker at the other end.
    pub(crate) outgoing: BTreeMap<(NodeId, usize), Outgoing<H>>,
    /// Channels that broke, and when to connect again.
    pub(super) broken: BTreeMap<(NodeId, usize), Micros>,
    /// When each channel broke last.
    pub(super) broken_at: BTreeMap<(NodeId, usize), Micros>,
    /// When the timed work of the channels is due.
    pub(super) due: Micros,
    /// When this node's clock is sent to other nodes next.
    pub(super) clock_due: Micros,
    /// Backups reported to the agent as caught up that the role does not list as required yet.
    pub(super) named: BTreeSet<(Bucket, NodeId)>,
    pub(crate) incoming: Vec<Option<Incoming<H>>>,
    pub(super) newest: Newest,
    /// No channels are accepted for a moment.
    pub(super) paused: bool,
    /// When the last warning about a refused channel was logged.
    pub(super) refused_at: Option<Micros>,
}

impl<H: Host> Default for ChannelTable<H> {
    fn default() -> ChannelTable<H> {
        ChannelTable {
            outgoing: BTreeMap::new(),
            broken: BTreeMap::new(),
            broken_at: BTreeMap::new(),
            due: Micros(0),
            clock_due: Micros(0),
            named: BTreeSet::new(),
            incoming: Vec::new(),
            newest: Newest::default(),
            paused: false,
            refused_at: None,
        }
    }
}
