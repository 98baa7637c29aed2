//! The installed view of a member, and the obstacles that it has met since.
//!
//! Invariant: the obstacles end with the view. The next view begins without any.

use evergate_base::Micros;

use crate::message::Assignment;
use crate::{Members, ViewId};

/// A view that this node installed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct InstalledView {
    pub(crate) view: ViewId,
    pub(crate) members: Members,
    /// One assignment for each bucket.
    pub(crate) map: Vec<Assignment>,
    /// Time of the installation.
    pub(crate) at: Micros,
    /// Since then views and promises of members have differed.
    pub(crate) unsettled_since: Option<Micros>,
    /// Since then this view has been the only thing that blocks reachable nodes from bootstrapping.
    pub(crate) blocks_bootstrap_since: Option<Micros>,
    /// Since then this node has blocked a witnessed member from a view without a fenced one.
    pub(crate) blocks_majority_since: Option<Micros>,
}

impl InstalledView {
    /// A view that is installed at `at`.
    pub(crate) fn new(view: ViewId, members: Members, map: Vec<Assignment>, at: Micros) -> InstalledView {
        InstalledView {
            view,
            members,
            map,
            at,
            unsettled_since: None,
            blocks_bootstrap_since: None,
            blocks_majority_since: None,
        }
    }
}

/// Records since when a condition has held. Returns whether it has lasted for `span`.
pub(crate) fn has_lasted(since: &mut Option<Micros>, holds: bool, now: Micros, span: Micros) -> bool {
    *since = holds.then(|| since.unwrap_or(now));
    since.is_some_and(|since| now.since(since) >= span)
}
