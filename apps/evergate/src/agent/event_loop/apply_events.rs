//! What the agent's core decides, carried out: words of the gate, instructions to workers, log lines.

use super::inputs::Lack;
use super::{Agent, State};
use crate::agent::gate_words::GateWords;
use crate::agent::routes::net;
use crate::agent::status::CutOff;
use evergate_agent::{Notice, Outside, OwnerWord};
use evergate_base::Micros;
use evergate_membership::{Bucket, MemberSet, Members, NodeId, NodePhase, Path, ViewId};
use evergate_worker::Instruction;

const NO_LEASE: &str = "no node and no witness vouches for it, so it sends nothing to clients and servers";

/// The gate's tables and the workers, for one call of the core.
pub(super) struct Doings<'a> {
    pub(super) words: &'a mut GateWords,
    pub(super) notify: &'a (dyn Fn(usize, Instruction) + Send),
    pub(super) notices: &'a mut Vec<Notice>,
}

impl Outside for Doings<'_> {
    fn set_owner(&mut self, bucket: Bucket, word: OwnerWord) {
        self.words.set_owner(bucket, word);
    }

    fn clear_owners(&mut self) {
        self.words.clear_owners();
    }

    fn answer_unknown(&mut self, allowed: bool) {
        self.words.answer_unknown(allowed);
    }

    fn set_own_lease(&mut self, until: Micros) {
        self.words.set_own_lease(until);
    }

    fn set_lease(&mut self, node: NodeId, until: Micros) {
        self.words.set_lease(node, until);
    }

    fn set_lease_of_all(&mut self, until: Micros) {
        self.words.set_lease_of_all(until);
    }

    fn revoke_leases(&mut self) {
        self.words.revoke_leases();
    }

    fn instruct(&mut self, worker: usize, instruction: Instruction) {
        (self.notify)(worker, instruction);
    }

    fn wall_clock_s(&self) -> u64 {
        evergate_sys::wall_clock_s()
    }

    fn note(&mut self, notice: Notice) {
        self.notices.push(notice);
    }
}

impl Agent {
    /// Applies the protocol's events.
    pub(super) fn apply_events(&mut self, state: &mut State) {
        let now = self.clock.now();
        let State { core, words, notices, .. } = state;
        let mut outside = Doings { words, notify: &*self.notify, notices };
        core.apply_events(&mut self.node, now, &mut outside);
        self.handle_notices(state);
    }

    /// Logs and publishes what the core has reported.
    pub(super) fn handle_notices(&mut self, state: &mut State) {
        for notice in std::mem::take(&mut state.notices) {
            match notice {
                Notice::Drained => {
                    state.publish_at = Micros(0);
                    self.info("is drained: it serves no bucket any more");
                }
                Notice::DrainedNoMore => state.publish_at = Micros(0), // `node stop` must wait again
                Notice::StateDropped => self.on_state_dropped(state),
                Notice::ViewInstalled { view, members, lost } => {
                    self.on_view_installed(state, view, &members, lost);
                }
                Notice::Phase(phase) => self.on_phase(state, phase),
                Notice::ChannelLost { node, why } => {
                    state.counts.channels_lost += 1;
                    state.warnings.record_channel_lost(self.clock.now(), node, why);
                }
                Notice::FailoverEnded(done) => {
                    self.info(format!(
                        "recovered {} buckets by failover and received {} by handoff: {} connections continue, {} \
                         are lost, {:.1} ms",
                        done.failed_over, done.handed_off, done.connections, done.lost, done.took_ms
                    ));
                    state.publish_at = self.clock.now();
                }
            }
        }
        if let Some(error) = state.words.take_error() {
            self.warn(format!("cannot set the gate's answer to unknown connections: {error}"));
        }
    }

    fn on_state_dropped(&mut self, state: &mut State) {
        state.counts.state_dropped += 1;
        state.publish_at = Micros(0);
        if self.node.phase() != NodePhase::Left {
            let then = match self.cut_off() {
                Some(CutOff { network, why }) => format!(": it is cut off the {network} network ({why})"),
                None => "; it joins again".to_owned(),
            };
            self.warn(format!("has lost its membership of the cluster and dropped all state{then}"));
            self.warn_about_delay(state);
        }
    }

    fn on_view_installed(&mut self, state: &mut State, view: ViewId, members: &Members, lost: MemberSet) {
        state.counts.views += 1;
        state.installed_at = self.clock.now();
        lost.iter().for_each(|id| state.warnings.forget_channels_lost(id));
        let lost: String =
            lost.iter().map(|id| self.why_lost(id, self.silence(state.installed_at, id))).collect();
        state.publish_at = Micros(0);
        let numbers: Vec<String> = members.0.keys().map(|id| (id.0 + 1).to_string()).collect();
        let proposer = view.proposer.0.saturating_add(1);
        let numbers = numbers.join(", ");
        self.info(format!("view {} (proposed by node {proposer}): nodes {numbers}{lost}", view.epoch));
    }

    /// How long a node has been silent; `None` if it never sent anything.
    fn silence(&self, now: Micros, id: NodeId) -> Option<Micros> {
        let received_at = Path::ALL.iter().filter_map(|path| self.node.last_received_at(id, *path)).max();
        received_at.map(|at| now.since(at))
    }

    fn why_lost(&self, id: NodeId, silence: Option<Micros>) -> String {
        let number = id.0.saturating_add(1);
        match silence {
            _ if self.node.has_left(id) => format!("; node {number} has left, or its process has ended"),
            Some(silence) if silence >= Micros::from_ms(1) => {
                format!("; node {number} was silent for {} ms", silence.as_ms())
            }
            _ => format!("; without node {number}"),
        }
    }

    fn on_phase(&mut self, state: &mut State, phase: NodePhase) {
        state.publish_at = Micros(0);
        match phase {
            NodePhase::Listening => match (self.cut_off(), self.node.rejoin_delay(self.clock.now())) {
                (Some(CutOff { network, .. }), _) => self.info(format!(
                    "listens for other nodes, and joins them when it is back on the {network} network"
                )),
                (None, None) => self.info("listens for other nodes"),
                (None, Some(wait)) => self.info(format!(
                    "listens for other nodes, and joins them in {:.0} s: each loss of membership in a row lengthens \
                     the wait",
                    wait.as_ms() as f64 / 1e3
                )),
            },
            NodePhase::Active => self.info("is active"),
            NodePhase::Fenced => {
                state.counts.fenced += 1;
                self.warn(format!("is fenced: {NO_LEASE}"));
                self.warn_about_delay(state);
            }
            NodePhase::Left => self.info("has left the cluster"),
        }
    }

    /// The network because of which this node yields its buckets, and why the network seems to be gone.
    pub(super) fn cut_off(&self) -> Option<CutOff> {
        let path = self.node.cut_off()?;
        let lack = self.links.iter().find(|link| link.path == path).and_then(|link| link.lack);
        let why = match lack {
            Some(Lack::Carrier) => "its card has no carrier",
            Some(Lack::Address) => "this node cannot send there from its own address",
            Some(Lack::Route) => "the default route that led there is gone",
            Some(Lack::Answers) => "it exchanges heartbeats with no node there, and no witness there answers",
            None => "it exchanges heartbeats with no node there, while other nodes do",
        };
        Some(CutOff { network: net(path).to_owned(), why: why.to_owned() })
    }

    /// Why the node is still fenced.
    pub(super) fn why_fenced(&self) -> String {
        let all = self.node.config().nodes.len();
        match self.node.quorum() {
            Some((reachable, needed)) if reachable < needed => format!(
                "is still fenced: it reaches {reachable} of {all} nodes, itself included, and a majority is \
                 {needed}; until then it sends nothing to clients and servers"
            ),
            _ => format!("is still fenced: {NO_LEASE}"),
        }
    }
}
