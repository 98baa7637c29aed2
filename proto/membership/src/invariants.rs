//! What must hold of a node after every call; for tests, the simulator and the model checker.

use crate::{DataEpoch, MemberSet, Node};

impl Node {
    /// Says what is wrong with this node's state, if anything.
    pub fn check_invariants(&self) -> Result<(), String> {
        let fail = |what: String| Err(format!("{} in {}: {what}", self.me().id, self.view));
        let buckets = usize::from(self.config().buckets);
        if self.terms.len() != buckets {
            return fail(format!("{} offices for {buckets} buckets", self.terms.len()));
        }
        if self.established {
            if !self.members.contains(self.me()) || self.map.len() != buckets {
                return fail("installed a view without itself, or without a map".into());
            }
        } else if !self.members.0.is_empty() || !self.map.is_empty() || !self.busy.is_empty() {
            return fail("has no view but members, a map or operations".into());
        }
        if self.view > self.promised {
            return fail(format!("installed above its promise {}", self.promised));
        }
        if let Some(pending) = &self.pending
            && (pending.view != self.promised
                || pending.view <= self.view
                || !pending.members.contains(self.me()))
        {
            return fail(format!("pending {} does not fit the promise {}", pending.view, self.promised));
        }
        if self.proposal.as_ref().is_some_and(|own| self.pending.as_ref().is_none_or(|p| p.view != own.view))
        {
            return fail("proposes what it does not promise".into());
        }
        for (bucket, term_of) in self.terms.iter().enumerate() {
            let what = |what: &str| fail(format!("bucket {bucket}: {what}: {term_of:?}"));
            let owns = term_of.owner == Some(self.me().id);
            if !self.established && (term_of.owner.is_some() || term_of.in_sync) {
                return what("a role without a view");
            }
            if !term_of.listed.is_superset(term_of.required()) {
                return what("a commit waits for a backup whose lease the gate ignores");
            }
            if owns && term_of.in_sync && term_of.moves == 0 {
                return what("owner and backup at once");
            }
            if !owns && (term_of.freezing.is_some() || term_of.begin.is_some()) {
                return what("an owner's work without the office");
            }
            if term_of.listed.contains(self.me().id) {
                return what("its own backup");
            }
            let members = if self.established { self.members.set() } else { MemberSet::EMPTY };
            if !members.is_superset(term_of.listed) {
                return what("lists a node outside the view");
            }
            if self.established && term_of.generation == DataEpoch::default() {
                return what("no generation");
            }
        }
        Ok(())
    }
}
