//! Invariants of a node after every call, for tests, the simulator and the model checker.

use crate::{DataEpoch, Node};

impl Node {
    /// Describes the first violated invariant of this node's state, if any.
    pub fn check_invariants(&self) -> Result<(), String> {
        let fail = |what: String| Err(format!("{} in {}: {what}", self.me().id, self.phase.view()));
        let buckets = usize::from(self.config().buckets);
        if self.buckets.states.len() != buckets {
            return fail(format!("{} states for {buckets} buckets", self.buckets.states.len()));
        }
        if let Some(installed) = self.phase.installed() {
            if !installed.members.contains(self.me()) || installed.map.len() != buckets {
                return fail("a view without this node, or without a map".into());
            }
        } else if !self.buckets.with_operations.is_empty() {
            return fail("operations without a view".into());
        }
        if self.phase.illegal() > 0 {
            return fail(format!("{} illegal transitions of the phase", self.phase.illegal()));
        }
        if self.phase.view() > self.ballot.promised {
            return fail(format!("installed above its promise {}", self.ballot.promised));
        }
        if let Some(pending) = &self.ballot.pending
            && (pending.view != self.ballot.promised
                || pending.view <= self.phase.view()
                || !pending.members.contains(self.me()))
        {
            return fail(format!(
                "pending {} does not fit the promise {}",
                pending.view, self.ballot.promised
            ));
        }
        if self
            .ballot
            .proposal
            .as_ref()
            .is_some_and(|own| self.ballot.pending.as_ref().is_none_or(|p| p.view != own.view))
        {
            return fail("proposal without its promise".into());
        }
        for (bucket, state) in self.buckets.states.iter().enumerate() {
            let what = |what: &str| fail(format!("bucket {bucket}: {what}: {state:?}"));
            let owns = state.owner == Some(self.me().id);
            if !self.phase.is_established() && (state.owner.is_some() || state.in_sync) {
                return what("a role without a view");
            }
            if !state.listed.is_superset(state.required()) {
                return what("a commit waits for a backup whose lease the gate ignores");
            }
            if owns && state.in_sync && state.moves == 0 {
                return what("owner and backup at once");
            }
            if !owns && (state.freezing.is_some() || state.begin.is_some()) {
                return what("operations of an owner in a bucket that this node does not own");
            }
            if state.listed.contains(self.me().id) {
                return what("its own backup");
            }
            let members = self.phase.members().set();
            if !members.is_superset(state.listed) {
                return what("lists a node outside the view");
            }
            if self.phase.is_established() && state.data_epoch == DataEpoch::default() {
                return what("no data epoch");
            }
        }
        Ok(())
    }
}
