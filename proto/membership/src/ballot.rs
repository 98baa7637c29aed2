//! The next view at one node: the number it promised, the view it accepted, and its own proposal.
//!
//! Invariants: promises rise; an own proposal exists only beside its acceptance.

use std::collections::BTreeMap;

use evergate_base::Micros;

use crate::message::Promise;
use crate::{Member, Members, NodeId, ViewId};

/// A view that this node accepted.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Pending {
    pub(crate) view: ViewId,
    pub(crate) members: Members,
    pub(crate) accepted_at: Micros,
    /// Time of the last promise.
    pub(crate) promised_at: Option<Micros>,
    /// The proposer asked again.
    pub(crate) asked: bool,
    /// Made by nodes without state: a new cluster.
    pub(crate) is_bootstrap: bool,
}

impl Pending {
    /// The node that proposed the view.
    pub(crate) fn proposer(&self) -> Member {
        Member { id: self.view.proposer, incarnation: self.view.incarnation }
    }
}

/// A view that this node proposes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Proposal {
    pub(crate) view: ViewId,
    pub(crate) members: Members,
    pub(crate) promises: BTreeMap<NodeId, Promise>,
    pub(crate) asked_at: Micros,
}

impl Proposal {
    /// The members whose promise is missing.
    pub(crate) fn missing(&self) -> impl Iterator<Item = NodeId> {
        self.members.0.keys().copied().filter(|id| !self.promises.contains_key(id))
    }
}

/// State of the change to the next view.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Ballot {
    /// The highest view that this process promised.
    pub(crate) promised: ViewId,
    pub(crate) pending: Option<Pending>,
    pub(crate) proposal: Option<Proposal>,
    /// Since then a change of the view has been wanted, for the stagger.
    pub(crate) wanted_since: Option<Micros>,
    /// End of the last lapse that ended with the same view, for the stagger.
    pub(crate) renewed_at: Option<Micros>,
}

impl Ballot {
    /// Accepts a view.
    pub(crate) fn accept(&mut self, pending: Pending) {
        if self.proposal.as_ref().is_some_and(|proposal| proposal.view < pending.view) {
            self.proposal = None;
        }
        self.promised = pending.view;
        self.wanted_since = None;
        self.pending = Some(pending);
    }

    /// Withdraws the acceptance, and with it the own proposal.
    pub(crate) fn withdraw(&mut self) {
        self.pending = None;
        self.proposal = None;
    }

    /// Ends the change of the view.
    pub(crate) fn end(&mut self) {
        self.withdraw();
        self.wanted_since = None;
    }

    /// The acceptance whose promise the proposer asked for.
    pub(crate) fn asked(&self) -> Option<&Pending> {
        self.pending.as_ref().filter(|pending| pending.asked)
    }
}
