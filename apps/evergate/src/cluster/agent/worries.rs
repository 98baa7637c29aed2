//! What an operator should know before somebody dies: a node without a witness, a view that does not come to be, and lists of nodes
//! that differ.
//!
//! A node without a witness is as good as any other while all agree, and useless as soon as one is missing.

use super::{Agent, State};
use evergate_base::Micros;
use evergate_cluster::{NodeId, ROLLOUT, Standing};
use std::collections::BTreeMap;

/// What lasts less is no reason to worry.
const LASTS: Micros = Micros::from_ms(1000);
/// How long nodes may lack a new configuration before that is said.
const ROLLOUT_LASTS: Micros = Micros::from_ms(30_000);
/// Between two lines about a view that is waited for.
const AGAIN: Micros = Micros::from_ms(10_000);

/// What there is to worry about, and what was told of it.
#[derive(Debug, Default)]
pub(super) struct Worries {
    view_told_at: Option<Micros>,
    /// Since when this node has listened to others that do not know it, and when that was told.
    overhears: Option<(Micros, Option<Micros>)>,
    /// Since when nodes have lacked this node's configuration, and whether that was told.
    lacking: BTreeMap<NodeId, (Micros, bool)>,
    /// Since when nodes have had no witness, and whether that was told.
    unwitnessed: BTreeMap<NodeId, (Micros, bool)>,
}

impl Agent {
    /// Tells what lasts; looked at each time that figures are published.
    pub(super) fn worry(&mut self, state: &mut State, now: Micros) {
        self.worry_about_view(state, now);
        self.worry_about_lists(state, now);
        let nodes = self.node.config().nodes;
        for id in nodes.iter().filter(|_| nodes.len() > 1) {
            self.worry_about_witness(state, now, id);
            self.worry_about_configuration(state, now, id);
        }
    }

    fn worry_about_view(&mut self, state: &mut State, now: Micros) {
        let told_at = state.worries.view_told_at;
        let Some(waits) = self.node.waits_for_view(now).filter(|waits| *waits >= LASTS) else { return };
        if told_at.is_some_and(|at| now.since(at) < AGAIN) {
            return;
        }
        state.worries.view_told_at = Some(now);
        let awaited: Vec<String> = self.node.awaited().iter().map(|id| (id.0 + 1).to_string()).collect();
        let whom = match awaited.is_empty() {
            true => String::new(),
            false => format!("; nodes {} have not agreed to the one that it proposes", awaited.join(", ")),
        };
        let waits_s = waits.as_ms() as f64 / 1e3;
        self.warn(format!("has waited {waits_s:.1} s for a view in which all agree{whom}"));
    }

    fn worry_about_lists(&mut self, state: &mut State, now: Micros) {
        let waits_by_itself = self.node.held_down(now).is_some();
        if self.node.standing() != Standing::Listening || waits_by_itself || !self.node.overhears(now) {
            state.worries.overhears = None;
            return;
        }
        let (since, told_at) = state.worries.overhears.get_or_insert((now, None));
        if now.since(*since) >= LASTS && told_at.is_none_or(|at| now.since(at) >= AGAIN) {
            *told_at = Some(now);
            self.warn(
                "listens, because there is a cluster whose nodes do not answer this one: is it in [[cluster.nodes]] there, and \
                 under the same addresses?"
                    .to_owned(),
            );
        }
    }

    /// A rollout takes its time; what lasts longer was forgotten, or differs by mistake.
    fn worry_about_configuration(&mut self, state: &mut State, now: Micros, id: NodeId) {
        let number = id.0.saturating_add(1);
        if self.node.can_follow(id) != Some(false) {
            if let Some((_, true)) = state.worries.lacking.remove(&id) {
                self.info(format!("node {number} has this node's configuration now, or is gone"));
            }
            return;
        }
        let (since, told) = state.worries.lacking.entry(id).or_insert((now, false));
        if !*told && now.since(*since) >= ROLLOUT_LASTS {
            *told = true;
            self.warn(format!(
                "node {number} lacks this node's configuration: it gets no buckets from here for {} minutes, and should this node \
                 die, requests without a response are reset there; give all nodes the same file, and reload them",
                ROLLOUT.as_ms() / 60_000
            ));
        }
    }

    fn worry_about_witness(&mut self, state: &mut State, now: Micros, id: NodeId) {
        let whom = match id == self.node.me().id {
            true => "itself".to_owned(),
            false => format!("node {}", id.0.saturating_add(1)),
        };
        if self.node.witnessed(id) != Some(false) {
            if let Some((_, true)) = state.worries.unwitnessed.remove(&id) {
                self.info(format!("no longer misses a witness for {whom}"));
            }
            return;
        }
        let (since, told) = state.worries.unwitnessed.entry(id).or_insert((now, false));
        if !*told && now.since(*since) >= LASTS {
            *told = true;
            self.warn(format!(
                "finds no witness for {whom}: without one a node cannot go on when another one is missing"
            ));
        }
    }
}
