//! Faults at their planned times.

use super::{Event, World};
use crate::event_queue::Time;
use crate::fault::{Fault, Target};
use crate::kernel::PORT;
use evergate_membership::Bucket;

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
                    && self.hosts[*id].worker.as_ref().is_some_and(|worker| worker.is_recovering(bucket))
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
                self.end_process(id);
                let buffer = self.buffer;
                let host = &mut self.hosts[id];
                host.up = false;
                host.kernel = crate::kernel::Kernel::new(buffer);
            }
            Fault::Process if !self.hosts[id].halted && self.hosts[id].worker.is_some() => {
                self.end_process(id);
                self.hosts[id].kernel.orphan_all();
                self.turn(id, |_, _, _| {});
            }
            Fault::Pause(span) | Fault::Halt(span) if self.hosts[id].runs() => {
                self.hosts[id].paused = true;
                self.hosts[id].halted = matches!(fault, Fault::Halt(_));
                let process = self.hosts[id].process();
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
                let dead = (0..self.hosts.len()).filter(meant).filter(|id| self.hosts[*id].worker.is_none());
                for id in dead.collect::<Vec<_>>() {
                    self.hosts[id].up = true;
                    self.restart(id);
                }
            }
            Fault::Drain(draining) if self.hosts[id].runs() => {
                let host = &mut self.hosts[id];
                host.draining = draining;
                host.node.set_draining(host.clock.at(now), draining);
                self.run_agent(id);
            }
            Fault::Power { .. } | Fault::Process | Fault::Pause(_) | Fault::Halt(_) => {}
            Fault::Drain(_) | Fault::Channels => {}
        }
    }

    fn break_channels(&mut self, id: usize) {
        let Some(worker) = &self.hosts[id].worker else { return };
        let channels = worker.outgoing.iter().map(|(node, outgoing)| (usize::from(node.0), outgoing.number));
        for (to, channel) in channels.collect::<Vec<_>>() {
            // Either end may notice first.
            let delays = [self.random.below(400), self.random.below(400)];
            self.plan(delays[0], Event::Hangup { to, from: id, channel, outgoing: false });
            self.plan(delays[1], Event::Hangup { to: id, from: to, channel, outgoing: true });
        }
    }

    fn end_process(&mut self, id: usize) {
        self.count_failure(id);
        let now = self.now;
        let host = &mut self.hosts[id];
        (host.paused, host.halted, host.draining) = (false, false, false);
        host.inbox.clear();
        (host.timer_at, host.work_at) = (Time::MAX, Time::MAX);
        let Some(worker) = host.worker.take() else { return };
        host.ends.insert(worker.process, now);
        self.resumed_before += worker.resumed;
        self.coverage.idle_resumed += worker.idle_resumed;
        self.coverage.early_resumed += worker.early_resumed;
        self.coverage.tickets_with_acks += worker.tickets_with_acks;
        self.coverage.entries_batched += worker.entries_batched;
        if host.blackouts.last().is_some_and(|(at, _)| *at == now) {
            return; // no process is left to end the drain
        }
        for (node, outgoing) in &worker.outgoing {
            let to = usize::from(node.0);
            self.plan(300, Event::Hangup { to, from: id, channel: outgoing.number, outgoing: false });
        }
        for (node, channel) in worker.incoming.keys() {
            let to = usize::from(node.0);
            self.plan(300, Event::Hangup { to, from: id, channel: *channel, outgoing: true });
        }
    }

    pub(super) fn resume(&mut self, host: usize, process: u64) {
        if self.hosts[host].process() == process && self.hosts[host].paused {
            self.log_line(|| format!("node {host} continues"));
            let it = &mut self.hosts[host];
            (it.paused, it.halted) = (false, false);
            self.coverage.resumptions += 1;
            (it.timer_at, it.work_at) = (Time::MAX, Time::MAX);
            let kernel = &self.hosts[host].kernel;
            let open = kernel.sockets.keys().filter(|flow| kernel.is_open(**flow));
            for flow in open.copied().collect::<Vec<_>>() {
                let known = self.hosts[host].worker.as_ref().is_some_and(|worker| worker.knows(flow));
                match known || flow.ours.port() != PORT {
                    true => self.turn(host, |worker, now, kernel| worker.news(now, kernel, flow)),
                    false => self.accept(host, flow, self.bucket(flow)),
                }
            }
            self.turn(host, |worker, now, kernel| worker.tick(now, kernel));
            self.run_agent(host);
        }
    }
}
