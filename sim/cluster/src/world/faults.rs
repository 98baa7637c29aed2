//! Faults at their planned times.

use super::{Event, World};
use crate::event_queue::Time;
use crate::fault::{Fault, Target};
use crate::kernel::Kernel;
use crate::model_host::ChannelId;
use evergate_membership::{Bucket, NodeId};

impl World {
    /// The node that a target names at this moment.
    fn target(&self, target: Target) -> Option<usize> {
        let bucket = Bucket(40_001 % self.template.config.buckets);
        let nodes = self.hosts.len();
        let owners = (0..nodes).filter(|id| self.hosts[*id].up && self.hosts[*id].owns(bucket));
        let owner = owners.max_by_key(|id| (self.may_transmit(*id, bucket), self.hosts[*id].runs()));
        match target {
            Target::Owner => owner,
            Target::Node(id) => Some(usize::from(id)),
            Target::Other(step) => Some((owner.unwrap_or(0) + 1 + usize::from(step)) % nodes),
            Target::Drained => (0..nodes).find(|id| self.hosts[*id].draining),
            Target::Recovering => (0..nodes).find(|id| {
                self.hosts[*id].up
                    && self.hosts[*id]
                        .process
                        .as_ref()
                        .is_some_and(|process| process.worker.is_recovering(bucket))
            }),
        }
    }

    /// Injects a fault, or ends one.
    pub(super) fn inflict(&mut self, target: Target, fault: Fault) {
        let Some(id) = self.target(target) else { return };
        self.log_line(|| format!("node {id}: {fault:?}"));
        let now = self.now;
        match fault {
            Fault::Power { lossy } if self.hosts[id].up => {
                self.hosts[id].blackouts.push((now, lossy));
                let kernel = Kernel::new(self.buffer, self.template.config.buckets, self.mutation);
                *self.hosts[id].kernel() = kernel;
                self.end_process(id);
                self.hosts[id].up = false;
            }
            Fault::Process if !self.hosts[id].halted && self.hosts[id].process.is_some() => {
                self.end_process(id);
                self.turn(id);
            }
            Fault::Pause(span) | Fault::Halt(span) if self.hosts[id].runs() => {
                self.hosts[id].paused = true;
                self.hosts[id].halted = matches!(fault, Fault::Halt(_));
                let process = self.hosts[id].process_number();
                self.plan(span, Event::Resume { host: id, process });
            }
            Fault::CutOutside(span) => self.hosts[id].cuts.outside = now + span,
            Fault::CutInside(span) => self.hosts[id].cuts.inside = now + span,
            Fault::OutputLost(span) => self.hosts[id].cuts.output = now + span,
            Fault::Unwitnessed(span) => self.hosts[id].cuts.witness = now + span,
            Fault::Stuck(span) => {
                self.hosts[id].cuts.channels = now + span;
                self.hosts[id].cuts.channels_for = span;
            }
            Fault::Channels if self.hosts[id].up => self.break_channels(id),
            Fault::Restart => {
                let meant = |host: &usize| !matches!(target, Target::Node(_)) || *host == id;
                let dead = (0..self.hosts.len()).filter(meant).filter(|id| self.hosts[*id].process.is_none());
                for id in dead.collect::<Vec<_>>() {
                    self.hosts[id].up = true;
                    self.restart(id);
                }
            }
            Fault::Drain(draining) if self.hosts[id].runs() => {
                let host = &mut self.hosts[id];
                host.draining = draining;
                host.agent.set_draining(&mut host.node, host.clock.at(now), draining);
                self.run_agent(id);
            }
            Fault::Power { .. } | Fault::Process | Fault::Pause(_) | Fault::Halt(_) => {}
            Fault::Drain(_) | Fault::Channels => {}
        }
    }

    fn break_channels(&mut self, id: usize) {
        let me = NodeId(id as u8);
        let ends: Vec<ChannelId> = self.hosts[id].machine.borrow().channels.open_ends().collect();
        for end in ends.into_iter().filter(|end| end.outgoing) {
            // Either end may notice first.
            let delays = [self.random.below(400), self.random.below(400)];
            self.plan(delays[0], Event::Hangup { to: usize::from(end.peer.0), end: end.other(me) });
            self.plan(delays[1], Event::Hangup { to: id, end });
        }
    }

    fn end_process(&mut self, id: usize) {
        self.count_failure(id);
        self.open_gate(id);
        let now = self.now;
        let host = &mut self.hosts[id];
        (host.paused, host.halted, host.draining) = (false, false, false);
        host.inbox.clear();
        (host.timer_at, host.work_at) = (Time::MAX, Time::MAX);
        let Some(process) = host.process.take() else { return };
        host.ends.insert(process.number, now);
        self.resumed_before += process.worker.resumed();
        self.coverage.add_steps(host.machine.borrow().steps.counts);
        // The kernel closes the descriptors of a process that ends.
        drop(process);
        let mut machine = host.machine.borrow_mut();
        machine.kernel.end_listener(now);
        let mut ends = machine.channels.take_hangups();
        ends.extend(machine.channels.open_ends());
        drop(machine);
        if host.blackouts.last().is_some_and(|(at, _)| *at == now) {
            return; // no machine is left to end the channels
        }
        let me = NodeId(id as u8);
        for end in ends {
            self.plan(300, Event::Hangup { to: usize::from(end.peer.0), end: end.other(me) });
        }
    }

    pub(super) fn resume(&mut self, host: usize, process: u64) {
        if self.hosts[host].process_number() == process && self.hosts[host].paused {
            self.log_line(|| format!("node {host} continues"));
            let it = &mut self.hosts[host];
            (it.paused, it.halted) = (false, false);
            self.coverage.resumptions += 1;
            (it.timer_at, it.work_at) = (Time::MAX, Time::MAX);
            self.turn(host);
            self.run_agent(host);
        }
    }
}
