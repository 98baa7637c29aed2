//! Turns of the hosts: the agent's loop, the worker's loop, and their messages to each other and to other nodes.

use super::{Event, World};
use crate::doings::Doings;
use crate::event_queue::Time;
use evergate_agent::Notice;
use evergate_base::Micros;
use evergate_membership::{Bucket, NodeId, Path, is_calm};
use evergate_worker::{Instruction, Report};

/// Most datagrams that a socket keeps.
const INBOX_MAX: usize = 2_000;
/// Time between two attempts to deliver to a paused process, or over a cut link.
pub(super) const AGAIN: Time = 2_000;
/// Cause of the end of a channel whose backup is silent, as the worker reports it.
const SILENT: &str = "it does not answer";

impl World {
    // ---- the agent ----

    pub(super) fn take_datagram(&mut self, to: usize, process: u64, path: Path, bytes: Vec<u8>) {
        let host = &mut self.hosts[to];
        if host.up && host.process_number() == process && host.inbox.len() < INBOX_MAX {
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
        let mut machine = host.machine.borrow_mut();
        let mut doings = Doings::of(NodeId(id as u8), &mut machine.kernel);
        while let Some((path, bytes)) = host.inbox.pop_front() {
            host.node.handle_datagram(after, path, &bytes);
            host.agent.apply_events(&mut host.node, after, &mut doings);
        }
        host.node.handle_timer(now);
        host.agent.apply_events(&mut host.node, now, &mut doings);
        let Doings { instructions, notices, .. } = doings;
        drop(machine);
        self.coverage.transitions = self.coverage.transitions.union(host.node.take_transitions());
        if let Err(what) = host.node.check_invariants() {
            self.fail(|| what);
        }
        self.after_agent(id, notices, instructions);
        self.note_drained(id);
        self.send_datagrams(id);
        self.check_owners();
        self.schedule(id);
    }

    fn after_agent(&mut self, id: usize, notices: Vec<Notice>, instructions: Vec<Instruction>) {
        for notice in notices {
            self.log_line(|| format!("node {id}: {notice:?}"));
        }
        if !instructions.is_empty() {
            self.note_moment();
            let (host, process) = (id, self.hosts[id].process_number());
            let delay = 5 + self.random.below(60);
            let delay = self.in_order(host, host, 0, delay);
            self.plan(delay, Event::Instruct { host, process, instructions });
        }
        if self.may_transmit(id, Bucket(0)) {
            self.announcer = id;
        }
    }

    /// A delay with which a message arrives after earlier ones on the same way.
    pub(super) fn in_order(&mut self, from: usize, to: usize, channel: u64, delay: Time) -> Time {
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
            let (process, stamp) = (target.process_number(), self.hosts[id].stamp(self.now));
            for delay in self.weather.inside.carry(&mut self.random) {
                let (path, bytes) = (transmit.path, transmit.bytes.clone());
                self.plan(delay, Event::Datagram { to, process, from: id, stamp, path, bytes });
            }
        }
    }

    pub(super) fn instruct(&mut self, host: usize, process: u64, instructions: Vec<Instruction>) {
        if self.hosts[host].process_number() != process {
            return;
        }
        if self.hosts[host].paused {
            return self.plan(AGAIN, Event::Instruct { host, process, instructions });
        }
        if let Some(process) = &self.hosts[host].process {
            instructions.into_iter().for_each(|instruction| process.instruct(instruction));
        }
        self.turn(host);
    }

    pub(super) fn take_report(&mut self, host: usize, process: u64, report: Report) {
        let it = &mut self.hosts[host];
        if it.process_number() != process {
            return;
        }
        if it.paused {
            return self.plan(AGAIN, Event::Report { host, process, report });
        }
        if matches!(&report, Report::ChannelLost { why, .. } if why == SILENT) {
            self.coverage.channels_closed += 1;
        }
        self.log_line(|| format!("node {host}: {report:?}"));
        let it = &mut self.hosts[host];
        let now = it.clock.at(self.now);
        let mut machine = it.machine.borrow_mut();
        let mut doings = Doings::of(NodeId(host as u8), &mut machine.kernel);
        it.agent.handle_report(&mut it.node, now, (0, report), &mut doings);
        let Doings { instructions, notices, .. } = doings;
        drop(machine);
        self.after_agent(host, notices, instructions);
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
        if it.runs() && it.process_number() == process && reached {
            it.node.set_witness(it.clock.at(self.now), clock, true);
            self.run_agent(host);
        }
    }

    // ---- the worker ----

    /// Sets the time of the kernel, and the buckets whose packets may leave now.
    pub(super) fn open_gate(&mut self, id: usize) {
        let mut machine = self.hosts[id].machine.borrow_mut();
        machine.now = self.now;
        for bucket in self.buckets() {
            machine.kernel.words.set_open(bucket, self.may_transmit(id, bucket));
        }
    }

    /// One turn of the worker's loop, if it runs and has something to do. Its kernel's segments leave in any case.
    pub(super) fn turn(&mut self, id: usize) {
        if self.hosts[id].halted {
            return;
        }
        self.open_gate(id);
        self.run_turn(id);
    }

    /// The same with a gate that is up to date.
    pub(super) fn run_turn(&mut self, id: usize) {
        let now = self.now;
        let host = &mut self.hosts[id];
        host.machine.borrow_mut().channels.run_timers(now);
        if host.runs()
            && let Some(process) = &mut host.process
            && now >= process.busy_until
        {
            let events = host.machine.borrow_mut().take_events();
            if !events.is_empty() || now >= process.turn_at {
                process.turn(now, &events);
                self.coverage.frames_batched += u64::from(process.worker.has_waiting_frames());
                if process.worker.resumed() > 0 {
                    self.resumed_at.get_or_insert(now);
                }
            }
        }
        self.depart(id);
        self.check_host(id);
        self.schedule(id);
    }

    /// Sends everything from the host: segments, then bytes of channels, each a moment after the other.
    fn depart(&mut self, id: usize) {
        let segments = self.hosts[id].kernel().poll(self.now);
        let mut left_at = self.now;
        for segment in segments {
            left_at += 1;
            self.leave_host(id, segment, left_at);
        }
        if !self.hosts[id].runs() {
            return;
        }
        self.send_pieces(id, &mut left_at);
        let Some(process) = &self.hosts[id].process else { return };
        let (process, reports) = (process.number, process.take_reports());
        for report in reports {
            let delay = 5 + self.random.below(60);
            let delay = self.in_order(id, id, 1, delay);
            self.plan(delay, Event::Report { host: id, process, report });
        }
    }

    /// Marks a moment of output as a moment for a failure: the output may just not leave.
    pub(super) fn mark(&mut self, at: Time) {
        if self.moments.last().is_none_or(|last| *last < at) {
            self.moments.push(at);
        }
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
                    Event::Asked { host: id, process: host.process_number(), clock: host.clock.at(at - 100) },
                ));
            }
            let at = host.clock.when(host.node.poll_timeout()).max(now) + late;
            if at < host.timer_at {
                host.timer_at = at;
                planned.push((at, Event::Timer { host: id, at }));
            }
        }
        let process = host.process.as_ref().filter(|_| !host.paused);
        let machine = host.machine.borrow();
        let channels = process.and_then(|_| machine.channels.next_at());
        let work = process.map(|process| process.turn_at.max(process.busy_until));
        if let Some(at) = [machine.kernel.next_at(), work, channels].into_iter().flatten().min() {
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
