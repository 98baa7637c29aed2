//! Turns of the hosts: the agent's loop, the worker's loop, and their messages to each other and to other nodes.

use super::{Event, World};
use crate::agent::{Instruction, Report};
use crate::event_queue::Time;
use crate::kernel::Kernel;
use crate::network::Cuts;
use crate::worker::Worker;
use evergate_base::Micros;
use evergate_membership::{Bucket, Event as Reported, NodeId, Path, is_calm};
use evergate_replication::{Answer, NextTurn};

/// Most datagrams that a socket keeps.
const INBOX_MAX: usize = 2_000;
/// Time between two attempts to send a channel's bytes while a link is cut.
const AGAIN: Time = 2_000;

impl World {
    pub(super) fn is_cut(&self, to: usize, from: usize) -> bool {
        self.now < self.hosts[to].cuts.inside
            || self.now < self.hosts[from].cuts.inside
            || self.now < self.hosts[from].cuts.output
    }

    /// The earliest arrival of a stuck channel's data: the sender's next retransmission, whose interval grows with the
    /// time without progress. `None` without a fault.
    pub(super) fn stuck(&self, to: usize, from: usize, channel: u64) -> Option<Time> {
        let cuts = [self.hosts[to].cuts, self.hosts[from].cuts];
        let of = |cuts: &Cuts| (cuts.channels, channel.wrapping_mul(0x9e37_79b9) % cuts.channels_for.max(1));
        let (until, later) = cuts.iter().map(of).max()?;
        (self.now < until).then(|| until - self.now + later)
    }

    // ---- the agent ----

    pub(super) fn take_datagram(&mut self, to: usize, process: u64, path: Path, bytes: Vec<u8>) {
        let host = &mut self.hosts[to];
        if host.up && host.process() == process && host.inbox.len() < INBOX_MAX {
            let waits = is_calm(&bytes);
            host.inbox.push_back((path, bytes));
            if !waits {
                self.run_agent(to);
            }
        }
    }

    /// One turn of the agent's loop.
    pub(super) fn run_agent(&mut self, id: usize) {
        let host = &mut self.hosts[id];
        if !host.runs() {
            return;
        }
        let now = host.clock.at(self.now);
        // The clock is read again after the sockets are drained, a little later.
        let after = Micros(now.0 + 20);
        let (mut events, mut instructions) = (Vec::new(), Vec::new());
        while let Some((path, bytes)) = host.inbox.pop_front() {
            host.node.handle_datagram(after, path, &bytes);
            instructions.extend(host.agent.apply_events(&mut host.node, &mut host.kernel, &mut events));
        }
        host.node.handle_timer(now);
        instructions.extend(host.agent.apply_events(&mut host.node, &mut host.kernel, &mut events));
        self.coverage.transitions = self.coverage.transitions.union(host.node.take_transitions());
        if let Err(what) = host.node.check_invariants() {
            self.fail(|| what);
        }
        self.after_agent(id, events, instructions);
        self.note_drained(id);
        self.send_datagrams(id);
        self.check_owners();
        self.schedule(id);
    }

    fn after_agent(&mut self, id: usize, events: Vec<Reported>, instructions: Vec<Instruction>) {
        for event in events {
            self.log_line(|| format!("node {id}: {event:?}"));
        }
        if !instructions.is_empty() {
            self.note_moment();
            let (host, process) = (id, self.hosts[id].process());
            let delay = 5 + self.random.below(60);
            let delay = self.in_order(host, host, 0, delay);
            self.plan(delay, Event::Instruct { host, process, instructions });
        }
        if self.may_transmit(id, Bucket(0)) {
            self.announcer = id;
        }
    }

    /// A delay with which a message arrives after earlier ones on the same way.
    fn in_order(&mut self, from: usize, to: usize, channel: u64, delay: Time) -> Time {
        let last = self.in_order.entry((from, to, channel)).or_default();
        *last = (*last + 1).max(self.now + delay);
        *last - self.now
    }

    fn send_datagrams(&mut self, id: usize) {
        while let Some(transmit) = self.hosts[id].node.poll_transmit() {
            let to = usize::from(transmit.to.0);
            let Some(target) = self.hosts.get(to) else { continue };
            let (cuts, theirs) = (self.hosts[id].cuts, target.cuts);
            let cut = match transmit.path {
                Path::Inside => cuts.inside.max(theirs.inside),
                Path::Outside => cuts.outside.max(theirs.outside),
            };
            if !self.hosts[id].up || self.now < cut.max(cuts.output) {
                continue;
            }
            let (process, stamp) = (target.process(), self.hosts[id].stamp(self.now));
            for delay in self.weather.inside.carry(&mut self.random) {
                let (path, bytes) = (transmit.path, transmit.bytes.clone());
                self.plan(delay, Event::Datagram { to, process, from: id, stamp, path, bytes });
            }
        }
    }

    pub(super) fn instruct(&mut self, host: usize, process: u64, instructions: Vec<Instruction>) {
        if self.hosts[host].process() != process {
            return;
        }
        if self.hosts[host].paused {
            return self.plan(AGAIN, Event::Instruct { host, process, instructions });
        }
        self.turn(host, |worker, now, kernel| {
            for instruction in instructions {
                worker.instruct(now, kernel, instruction);
            }
        });
    }

    pub(super) fn take_report(&mut self, host: usize, process: u64, report: Report) {
        let it = &mut self.hosts[host];
        if it.process() != process {
            return;
        }
        if it.paused {
            return self.plan(AGAIN, Event::Report { host, process, report });
        }
        let now = it.clock.at(self.now);
        let refused = it.agent.handle_report(&mut it.node, now, report);
        self.log_line(|| format!("node {host}: {report:?}"));
        if let Some((peer, channel)) = refused {
            let (to, from) = (usize::from(peer.0), host);
            self.plan(200, Event::Hangup { to, from, channel, outgoing: true });
        }
        self.run_agent(host);
    }

    /// Asks the witness, which is on the outside.
    pub(super) fn ask_witness(&mut self) {
        for id in 0..self.hosts.len() {
            let host = &mut self.hosts[id];
            if host.runs() && self.now >= host.cuts.outside.max(host.cuts.witness) {
                let (clock, asked) = (host.clock.at(self.now), host.clock.at(self.now - 100));
                host.node.set_witness(clock, asked, true);
                self.run_agent(id);
            }
        }
        let gap = self.template.config.timing.heartbeat.0;
        self.plan(gap, Event::Witness);
    }

    pub(super) fn answer_witness(&mut self, host: usize, process: u64, clock: Micros) {
        let it = &mut self.hosts[host];
        let reached = self.now >= it.cuts.outside.max(it.cuts.witness);
        if it.runs() && it.process() == process && reached {
            it.node.set_witness(it.clock.at(self.now), clock, true);
            self.run_agent(host);
        }
    }

    // ---- the worker ----

    /// One turn of the worker's loop, if it runs. Its kernel's segments leave in any case.
    pub(super) fn turn(&mut self, id: usize, step: impl FnOnce(&mut Worker, Time, &mut Kernel)) {
        let now = self.now;
        let host = &mut self.hosts[id];
        if host.halted {
            return;
        }
        if host.runs()
            && let Some(worker) = &mut host.worker
        {
            step(worker, now, &mut host.kernel);
            worker.end_turn(now, &mut host.kernel);
            if worker.resumed > 0 {
                self.resumed_at.get_or_insert(now);
            }
        }
        self.depart(id);
        self.check_host(id);
        self.schedule(id);
    }

    /// Sends everything from the host: segments through the gate, then answers, then frames, each a moment after the
    /// other.
    fn depart(&mut self, id: usize) {
        let segments = self.hosts[id].kernel.poll(self.now);
        let mut left_at = self.now;
        for segment in segments {
            left_at += 1;
            self.leave_host(id, segment, left_at);
        }
        if !self.hosts[id].runs() {
            return;
        }
        self.send_answers(id, &mut left_at);
        self.send_frames(id, &mut left_at);
        let Some(worker) = &mut self.hosts[id].worker else { return };
        let process = worker.process;
        let closed_outgoing = std::mem::take(&mut worker.closed_outgoing);
        let reports = std::mem::take(&mut worker.reports);
        self.coverage.channels_closed += closed_outgoing.len() as u64;
        for (node, channel) in closed_outgoing {
            let to = usize::from(node.0);
            // After everything that was sent on the channel.
            let delay = self.in_order(id, to, channel << 1, 200);
            self.plan(delay, Event::Hangup { to, from: id, channel, outgoing: false });
        }
        for report in reports {
            let delay = 5 + self.random.below(60);
            let delay = self.in_order(id, id, 1, delay);
            self.plan(delay, Event::Report { host: id, process, report });
        }
    }

    fn send_answers(&mut self, id: usize, left_at: &mut Time) {
        let Some(worker) = &mut self.hosts[id].worker else { return };
        let mut answers = Vec::new();
        for ((node, channel), incoming) in &mut worker.incoming {
            if incoming.frames > incoming.answered {
                incoming.answered = incoming.frames;
                answers.push((usize::from(node.0), *channel, Answer { frames: incoming.frames }));
            }
        }
        for (to, channel, answer) in answers {
            *left_at += 1;
            self.mark(*left_at);
            let stamp = self.hosts[id].stamp(*left_at);
            let delay = self.weather.inside.delay(&mut self.random) + (*left_at - self.now);
            let delay = self.in_order(id, to, channel << 1 | 1, delay);
            self.plan(delay, Event::Answer { to, from: id, stamp, channel, frames: answer.frames });
        }
    }

    fn send_frames(&mut self, id: usize, left_at: &mut Time) {
        let now = self.now;
        let processes: Vec<u64> = self.hosts.iter().map(|host| host.process()).collect();
        let next = match self.batches && self.random.chance(400) {
            true if self.random.chance(500) => NextTurn::Batched,
            true => NextTurn::AtOnce,
            false => NextTurn::Idle,
        };
        let Some(worker) = &mut self.hosts[id].worker else { return };
        let ready = worker.outgoing.values().filter(|outgoing| outgoing.ready_at <= now);
        let waiting = ready.map(|outgoing| outgoing.feed.unsent().len()).sum();
        if self.batches && !worker.batcher.may_leave(next, waiting, Micros(now)) {
            self.coverage.frames_batched += 1;
            return;
        }
        worker.batcher.note_gone();
        let mut frames = Vec::new();
        for (node, outgoing) in &mut worker.outgoing {
            let bytes = outgoing.feed.unsent().to_vec();
            if outgoing.ready_at <= now && !bytes.is_empty() {
                outgoing.feed.advance(bytes.len());
                outgoing.sent += 1;
                let to = usize::from(node.0);
                let Some(process) = processes.get(to) else { continue };
                let process = *outgoing.leads_to.get_or_insert(*process);
                frames.push((to, process, outgoing.number, outgoing.sent, bytes));
            }
        }
        for (to, process, channel, number, bytes) in frames {
            *left_at += 1;
            self.mark(*left_at);
            let stamp = self.hosts[id].stamp(*left_at);
            let delay = self.weather.inside.delay(&mut self.random) + (*left_at - self.now);
            let delay = self.in_order(id, to, channel << 1, delay);
            self.plan(delay, Event::Frames { to, from: id, stamp, channel, process, number, bytes });
        }
    }

    /// Marks a moment of output as a moment for a failure: the output may just not leave.
    pub(super) fn mark(&mut self, at: Time) {
        if self.moments.last().is_none_or(|last| *last < at) {
            self.moments.push(at);
        }
    }

    pub(super) fn take_frames(&mut self, event: Event) {
        let Event::Frames { to, from, stamp, channel, process, .. } = event else { return };
        if self.is_cut(to, from) || (self.hosts[to].paused && self.hosts[to].up) {
            return self.plan(AGAIN, event);
        }
        if let Some(after) = self.stuck(to, from, channel) {
            return self.plan(after, event);
        }
        if !self.hosts[from].has_left(stamp, true) {
            return;
        }
        if self.hosts[to].up && self.hosts[to].process() != process {
            // The process at the channel's other end is gone.
            return self.plan(200, Event::Hangup { to: from, from: to, channel, outgoing: true });
        }
        let Event::Frames { number, bytes, .. } = event else { return };
        self.log_line(|| format!("node {to}: {} bytes of frames from node {from}", bytes.len()));
        self.turn(to, |worker, _, _| worker.read_frames(NodeId(from as u8), channel, number, bytes));
    }

    /// Schedules the timers of the host: the agent's, the worker's and the kernel's.
    pub(super) fn schedule(&mut self, id: usize) {
        let late = self.random.below(self.weather.wake_late.max(1));
        let now = self.now;
        let host = &mut self.hosts[id];
        if !host.up {
            return;
        }
        let mut planned = Vec::new();
        if host.runs() {
            if let Some(wanted) = host.node.witness_wanted()
                && host.asked_for != wanted
            {
                // The answer comes 100 us after the question.
                let at = host.clock.when(wanted).max(now) + 100 + late;
                host.asked_for = wanted;
                planned.push((
                    at,
                    Event::Asked { host: id, process: host.process(), clock: host.clock.at(at - 100) },
                ));
            }
            let at = host.clock.when(host.node.poll_timeout()).max(now) + late;
            if at < host.timer_at {
                host.timer_at = at;
                planned.push((at, Event::Timer { host: id, at }));
            }
        }
        let worker = host.worker.as_ref().filter(|_| !host.paused);
        let ready = worker.and_then(|worker| {
            let unsent =
                worker.outgoing.values().filter(|out| out.ready_at > now && !out.feed.unsent().is_empty());
            unsent.map(|out| out.ready_at).min()
        });
        let work = worker.and_then(|worker| worker.next_at(now));
        if let Some(at) = [host.kernel.next_at(), work, ready].into_iter().flatten().min() {
            let at = at.max(now + 1);
            if at < host.work_at {
                host.work_at = at;
                planned.push((at, Event::Work { host: id, at }));
            }
        }
        for (at, event) in planned {
            self.event_queue.plan(at, event);
        }
    }
}
