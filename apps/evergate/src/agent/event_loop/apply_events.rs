//! Translation of the protocol's events for the gate and the workers.

use super::inputs::Lack;
use super::{Agent, COMPLETE, State};
use crate::agent::roles::ALL_MEMBERS;
use crate::agent::routes::net;
use crate::agent::status::CutOff;
use evergate_base::Micros;
use evergate_membership::{
    Bucket, Event, MemberSet, Members, NodeId, NodePhase, OwnershipStart, Path, Role, ViewId,
};
use evergate_worker::{FailoverOrder, Instruction};
use std::sync::Arc;

const NO_LEASE: &str = "no node and no witness vouches for it, so it sends nothing to clients and servers";

impl Agent {
    /// Applies the protocol's events.
    pub(super) fn apply_events(&mut self, state: &mut State) {
        while let Some(event) = self.node.poll_event() {
            match event {
                Event::StateDropped => self.on_state_dropped(state),
                Event::Installed { view, members } => self.on_view_installed(state, view, &members),
                Event::Role { bucket, role } => self.on_role(state, bucket, role),
                Event::Phase(phase) => self.on_phase(state, phase),
                Event::Drained => {
                    state.drained = true;
                    state.publish_at = Micros(0);
                    self.info("is drained: it serves no bucket any more");
                }
            }
        }
        self.write_leases(state);
        let (changed, order) = state.roles.take_changes();
        if !changed.is_empty() {
            self.send_roles(state, changed, order);
        }
    }

    fn on_role(&mut self, state: &mut State, bucket: Bucket, role: Role) {
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
            state.publish_at = Micros(0); // it recovered a bucket meanwhile: `node stop` must wait again
        }
        if let Role::Backup { term, in_sync: true, .. } = role {
            // A replica stays complete when a view or an owner changes, since every commit waited for it. No worker
            // reports it again.
            self.node.handle_stored(bucket, term, COMPLETE);
        }
    }

    fn send_roles(&mut self, state: &mut State, changed: Vec<(Bucket, Role)>, order: Option<FailoverOrder>) {
        if order.is_some() {
            self.answer_unknown(false);
        }
        let order = order.map(|mut order| {
            let failed = |bucket: &Bucket| {
                matches!(self.node.role(*bucket), Role::Owner { begin: OwnershipStart::Failover, .. })
            };
            let failed_over = order.buckets.iter().filter(|(bucket, _)| failed(bucket)).count();
            state.counts.failovers += u64::from(failed_over > 0);
            state.counts.handoffs += (order.buckets.len() - failed_over) as u64;
            let silent = if failed_over > 0 { std::mem::take(&mut state.silent) } else { Micros(0) };
            state.failovers.begin(
                self.clock.now(),
                evergate_sys::wall_clock_s(),
                &mut order,
                failed_over,
                silent,
                self.workers,
            );
            Arc::new(order)
        });
        for worker in 0..self.workers {
            (self.notify)(worker, Instruction::Roles(changed.clone()));
        }
        // After all roles: the first worker that is done admits clients, which another worker may have to accept.
        for worker in 0..self.workers {
            if let Some(order) = &order {
                (self.notify)(worker, Instruction::Failover(order.clone()));
            }
        }
    }

    /// Whether the gate answers segments of unknown connections with RST. Not while connections are being recovered:
    /// their peers may send before the sockets exist.
    pub(super) fn answer_unknown(&mut self, allowed: bool) {
        if let Err(error) = self.gate.set_reset_unknown(allowed) {
            self.warn(format!("cannot set the gate's answer to unknown connections: {error}"));
        }
    }

    fn on_state_dropped(&mut self, state: &mut State) {
        state.revoke_all();
        state.roles.reset();
        state.failovers.reset();
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
            self.warn(format!("has lost its membership of the cluster and dropped all state{then}"));
            self.warn_about_delay(state);
        }
    }

    fn on_view_installed(&mut self, state: &mut State, view: ViewId, members: &Members) {
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

    /// The members of the current view that the next view lacks.
    fn lost(&self, members: &Members) -> Vec<NodeId> {
        let before = self.status.nodes.iter().filter(|node| node.member);
        before
            .map(|node| NodeId(node.number.saturating_sub(1)))
            .filter(|id| !members.0.contains_key(id))
            .collect()
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
            NodePhase::Active => {
                self.info("is active");
                self.answer_unknown(!state.failovers.is_running());
            }
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
