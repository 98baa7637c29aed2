//! From what the protocol concludes to the gate and the workers.

use super::inputs::Lack;
use super::{Agent, COMPLETE, State};
use crate::agent::instruction::{FailoverOrder, Instruction};
use crate::agent::roles::ALL_MEMBERS;
use crate::agent::routes::net;
use crate::agent::status::CutOff;
use evergate_base::Micros;
use evergate_membership::{
    Bucket, Event, MemberSet, Members, NodeId, NodePhase, OwnershipStart, Path, Role, ViewId,
};
use std::sync::Arc;

const NOBODY_VOUCHES: &str = "nobody vouches for it, so it says nothing to clients and servers";

impl Agent {
    /// Acts on what the protocol has concluded.
    pub(super) fn apply_events(&mut self, state: &mut State) {
        while let Some(event) = self.node.poll_event() {
            match event {
                Event::StateDropped => self.voided(state),
                Event::Installed { view, members } => self.installed(state, view, &members),
                Event::Role { bucket, role } => self.play(state, bucket, role),
                Event::Phase(standing) => self.stands(state, standing),
                Event::Drained => {
                    state.drained = true;
                    state.publish_at = Micros(0);
                    self.info("is drained: it serves no bucket any more");
                }
            }
        }
        self.write_leases(state);
        let (changed, round) = state.roles.take();
        if !changed.is_empty() {
            self.send_roles(state, changed, round);
        }
    }

    fn play(&mut self, state: &mut State, bucket: Bucket, role: Role) {
        let listed = self.node.gate_listed(bucket).unwrap_or_default();
        state.roles.change(bucket, role, listed);
        let (syncing, freeze) = match role {
            Role::Owner { term, syncing, freeze_for, .. } => {
                (syncing, freeze_for.map(|freeze| (term, freeze)))
            }
            _ => (MemberSet::EMPTY, None),
        };
        state.barrier.expect(bucket, syncing, freeze);
        if matches!(role, Role::Owner { .. }) && std::mem::take(&mut state.drained) {
            state.publish_at = Micros(0); // it took over from another one meanwhile: who ends it now must wait again
        }
        if let Role::Backup { term, in_sync: true, .. } = role {
            // It stays complete when a view or an owner changes: every commit has waited for it. Nobody tells it again.
            self.node.handle_stored(bucket, term, COMPLETE);
        }
    }

    fn send_roles(&mut self, state: &mut State, changed: Vec<(Bucket, Role)>, round: Option<FailoverOrder>) {
        if round.is_some() {
            self.answer_unknown(false);
        }
        let round = round.map(|mut round| {
            let died = |bucket: &Bucket| {
                matches!(self.node.role(*bucket), Role::Owner { begin: OwnershipStart::Failover, .. })
            };
            let failed_over = round.buckets.iter().filter(|(bucket, _)| died(bucket)).count();
            state.counts.failovers += u64::from(failed_over > 0);
            state.counts.handoffs += (round.buckets.len() - failed_over) as u64;
            let silent = if failed_over > 0 { std::mem::take(&mut state.silent) } else { Micros(0) };
            state.rounds.begin(
                self.clock.now(),
                evergate_sys::wall_clock_s(),
                &mut round,
                failed_over,
                silent,
                self.workers,
            );
            Arc::new(round)
        });
        for worker in 0..self.workers {
            (self.notify)(worker, Instruction::Roles(changed.clone()));
        }
        // Behind all roles: the first worker that is done lets clients in, which another one may have to accept.
        for worker in 0..self.workers {
            if let Some(round) = &round {
                (self.notify)(worker, Instruction::Failover(round.clone()));
            }
        }
    }

    /// Whether connections that this node knows nothing of are answered with RST. Not while some are being taken over: their
    /// peers may speak before their sockets are there.
    pub(super) fn answer_unknown(&mut self, allowed: bool) {
        if let Err(error) = self.gate.set_reset_unknown(allowed) {
            self.warn(format!("cannot tell the gate how to answer unknown connections: {error}"));
        }
    }

    fn voided(&mut self, state: &mut State) {
        state.revoke_all();
        state.roles.void();
        state.rounds.void();
        state.barrier.clear();
        state.counts.state_dropped += 1;
        state.publish_at = Micros(0);
        for worker in 0..self.workers {
            (self.notify)(worker, Instruction::Void);
        }
        self.answer_unknown(false);
        if self.node.phase() != NodePhase::Left {
            let then = match self.cut_off() {
                Some(CutOff { network, why }) => format!(": it is cut off the {network} network ({why})"),
                None => "; it joins again".to_owned(),
            };
            self.warn(format!("has lost its place in the cluster and dropped all state{then}"));
            self.warn_about_delay(state);
        }
    }

    fn installed(&mut self, state: &mut State, view: ViewId, members: &Members) {
        state.revoke_all();
        state.counts.views += 1;
        state.installed_at = self.clock.now();
        let lost = self.lost(members);
        lost.iter().for_each(|id| state.warnings.forget_channels_lost(*id));
        let silence = |id: &NodeId| self.silence(state.installed_at, *id);
        state.silent = lost.iter().filter_map(silence).max().unwrap_or_default();
        let lost: String = lost.iter().map(|id| self.why_lost(*id, silence(id))).collect();
        state.publish_at = Micros(0);
        let numbers: Vec<String> = members.0.keys().map(|id| (id.0 + 1).to_string()).collect();
        let proposer = view.proposer.0.saturating_add(1);
        let numbers = numbers.join(", ");
        self.info(format!("view {} (proposed by node {proposer}): nodes {numbers}{lost}", view.epoch));
    }

    /// The members that a view lacks.
    fn lost(&self, members: &Members) -> Vec<NodeId> {
        let before = self.status.nodes.iter().filter(|node| node.member);
        before
            .map(|node| NodeId(node.number.saturating_sub(1)))
            .filter(|id| !members.0.contains_key(id))
            .collect()
    }

    /// How long nothing has been heard of a node; `None` if nothing ever was.
    fn silence(&self, now: Micros, id: NodeId) -> Option<Micros> {
        let peer_input = Path::ALL.iter().filter_map(|path| self.node.last_received_at(id, *path)).max();
        peer_input.map(|at| now.since(at))
    }

    fn why_lost(&self, id: NodeId, silence: Option<Micros>) -> String {
        let number = id.0.saturating_add(1);
        match silence {
            _ if self.node.has_left(id) => format!("; node {number} has left, or its process has ended"),
            Some(silence) if silence >= Micros::from_ms(1) => {
                format!("; node {number} was last heard {} ms before", silence.as_ms())
            }
            _ => format!("; without node {number}"),
        }
    }

    fn stands(&mut self, state: &mut State, standing: NodePhase) {
        state.publish_at = Micros(0);
        match standing {
            NodePhase::Listening => match (self.cut_off(), self.node.rejoin_delay(self.clock.now())) {
                (Some(CutOff { network, .. }), _) => self.info(format!(
                    "listens for the others, and joins them when it is back on the {network} network"
                )),
                (None, None) => self.info("listens for the others"),
                (None, Some(wait)) => self.info(format!(
                    "listens for the others, and joins them in {:.0} s: nodes that come and go wait the longer the more often they do",
                    wait.as_ms() as f64 / 1e3
                )),
            },
            NodePhase::Active => {
                self.info("is active");
                self.answer_unknown(!state.rounds.is_running());
            }
            NodePhase::Fenced => {
                state.counts.fenced += 1;
                self.warn(format!("is fenced: {NOBODY_VOUCHES}"));
                self.warn_about_delay(state);
            }
            NodePhase::Left => self.info("has left the cluster"),
        }
    }

    /// The network that this node gives its place way for, and why it seems to be gone.
    pub(super) fn cut_off(&self) -> Option<CutOff> {
        let path = self.node.cut_off()?;
        let lack = self.links.iter().find(|link| link.path == path).and_then(|link| link.lack);
        let why = match lack {
            Some(Lack::Carrier) => "its card has no carrier",
            Some(Lack::Address) => "nothing can be sent there as this node",
            Some(Lack::Route) => "the default route that led there is gone",
            Some(Lack::Answers) => "it hears no node there, or none hears it, and no witness of it answers",
            None => "it hears no node there, or none hears it, while others hear each other",
        };
        Some(CutOff { network: net(path).to_owned(), why: why.to_owned() })
    }

    /// Why it still says nothing to clients and servers.
    pub(super) fn why_fenced(&self) -> String {
        let all = self.node.config().nodes.len();
        match self.node.quorum() {
            Some((peer_input, needed)) if peer_input < needed => format!(
                "is still fenced: it hears {peer_input} of {all} nodes, itself included, and a majority is {needed}; until it hears so many it \
                 says nothing to clients and servers"
            ),
            _ => format!("is still fenced: {NOBODY_VOUCHES}"),
        }
    }

    fn write_leases(&self, state: &mut State) {
        let leases = self.node.leases();
        state.write_own_lease(self.clock.gate_ns(leases.own));
        let me = self.node.me().id;
        let mut all_members = u64::MAX;
        let members: MemberSet = self.node.members().set();
        for peer in self.node.config().nodes.without(me).iter() {
            let until = leases.member.get(usize::from(peer.0)).copied().unwrap_or_default();
            let until_ns = self.clock.gate_ns(until);
            if members.contains(peer) {
                all_members = all_members.min(until_ns);
            }
            state.write_lease(peer, until_ns);
        }
        state.write_lease(ALL_MEMBERS, all_members);
    }
}
