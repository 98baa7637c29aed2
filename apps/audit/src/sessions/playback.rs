//! Playback: packets of many sessions in one pass, each through its player.
//!
//! Bounds: `--memory` for what all players keep. If it is reached, the player that keeps most ends early, and its
//! report shows that. Sessions that overlap in time share the memory.

use crate::cli::Failure;
use crate::sessions::catalog::{Catalog, Selected};
use crate::sessions::packets::{Item, Packets, Plan, addresses_of};
use crate::sessions::secrets::SecretFile;
use evergate_evidence::record::Gap;
use evergate_player::{Event, Limits, Report, Session};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::net::IpAddr;

/// Time before a session's first packet and behind its last one in which its player exists: packets of other Recorders
/// may be late, and fragments have no number.
const LINGER_NS: u64 = 5_000_000_000;
/// Declared losses that a new session is given.
const GAPS_MAX: usize = 64;

/// Receiver of what sessions have. The number of a session is its place in the selection.
pub(crate) trait Sink {
    /// A packet of a session, as captured.
    fn on_packet(
        &mut self,
        _session: usize,
        _source: usize,
        _time_ns: u64,
        _wire_bytes: u32,
        _frame: &[u8],
    ) -> Result<(), Failure> {
        Ok(())
    }

    /// An event of a session. Answers whether credentials were left out of it.
    fn on_event(&mut self, session: usize, event: Event) -> Result<bool, Failure>;

    /// The end of a session.
    fn on_end(&mut self, session: usize, report: &Report, outcome: Outcome) -> Result<(), Failure>;
}

/// How the playback of a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// All packets were played.
    Whole,
    /// The memory was full: the rest was left out.
    Memory,
}

/// Playback of selected sessions.
pub(crate) struct Playback<'a> {
    pub(crate) catalog: &'a mut Catalog,
    pub(crate) sessions: &'a [Selected],
    pub(crate) secrets: &'a SecretFile,
    pub(crate) memory: usize,
    pub(crate) label: &'static str,
}

struct Running {
    player: Session,
    buffered: usize,
}

impl Playback<'_> {
    /// Plays the sessions. Few sessions are played from their extents first; only if bytes are missing, whole segments
    /// are read for fragments and declared losses.
    pub(crate) fn run(&mut self, sink: &mut dyn Sink) -> Result<(), Failure> {
        let plan = match self.sessions.len() {
            0 | 1 if !self.has_holes()? => Plan::Extents,
            _ => Plan::Whole,
        };
        self.pass(plan, u64::MAX, sink)
    }

    /// Plays the first packets only.
    pub(crate) fn begin(&mut self, packets: u64, sink: &mut dyn Sink) -> Result<(), Failure> {
        self.pass(Plan::Extents, packets, sink)
    }

    fn has_holes(&mut self) -> Result<bool, Failure> {
        struct Holes(u64);
        impl Sink for Holes {
            fn on_event(&mut self, _: usize, _: Event) -> Result<bool, Failure> {
                Ok(false)
            }
            fn on_end(&mut self, _: usize, report: &Report, _: Outcome) -> Result<(), Failure> {
                let has_begun = report.sides.iter().all(|side| side.counts.bytes > 0);
                self.0 += report.holes() + u64::from(!has_begun);
                Ok(())
            }
        }
        let mut holes = Holes(0);
        self.pass(Plan::Extents, u64::MAX, &mut holes)?;
        Ok(holes.0 > 0)
    }

    fn pass(&mut self, plan: Plan, most: u64, sink: &mut dyn Sink) -> Result<(), Failure> {
        let mut packets = Packets::open(self.catalog, self.sessions, plan, self.label)?;
        let mut stage = Stage::new(self.sessions, self.secrets, self.memory);
        for _ in 0..most {
            if !packets.next(&mut |source, item| stage.on_item(source, item, sink))? {
                break;
            }
        }
        stage.finish(sink)
    }
}

/// The players that run at a moment.
struct Stage<'a> {
    sessions: &'a [Selected],
    secrets: &'a SecretFile,
    limits: Limits,
    memory: usize,
    buffered: usize,
    /// Sessions by source and number of the connection.
    places: HashMap<(usize, u64), usize>,
    running: BTreeMap<usize, Running>,
    /// The first session whose time has not come.
    next: usize,
    /// Running sessions by their addresses, for fragments.
    by_addresses: HashMap<[IpAddr; 2], BTreeSet<usize>>,
    /// Times at which a running session ends.
    ends: BTreeSet<(u64, usize)>,
    done: BTreeSet<usize>,
    /// The last declared losses, for sessions that begin behind them.
    gaps: VecDeque<Gap>,
}

impl<'a> Stage<'a> {
    fn new(sessions: &'a [Selected], secrets: &'a SecretFile, memory: usize) -> Stage<'a> {
        let mut places = HashMap::new();
        for (number, session) in sessions.iter().enumerate() {
            for part in &session.parts {
                places.insert((part.source, part.connection.number), number);
            }
        }
        let (is_single, sources) = (sessions.len() < 2, sessions.iter().flat_map(|session| &session.parts));
        let mut limits = Limits::of_memory(memory, if is_single { 1 } else { 4 });
        if sources.map(|part| part.source).collect::<BTreeSet<_>>().len() < 2 {
            limits.copies = 0;
        }
        if !is_single {
            limits.history = limits.history.min(memory / 8 / sessions.len()).max(16 << 10);
        }
        Stage {
            sessions,
            secrets,
            limits,
            memory,
            buffered: 0,
            places,
            running: BTreeMap::new(),
            next: 0,
            by_addresses: HashMap::new(),
            ends: BTreeSet::new(),
            done: BTreeSet::new(),
            gaps: VecDeque::new(),
        }
    }

    fn on_item(&mut self, source: usize, item: &Item, sink: &mut dyn Sink) -> Result<(), Failure> {
        while let Some(&(time_ns, session)) = self.ends.first()
            && time_ns < item.time_ns
        {
            self.end(session, Outcome::Whole, sink)?;
        }
        // Fragments of a session may come before a packet that has its number.
        while let Some(session) = self.sessions.get(self.next)
            && session.first_ns <= item.time_ns.saturating_add(LINGER_NS)
        {
            self.begin(self.next);
            self.next += 1;
        }
        if let Some(gap) = item.gap {
            if self.gaps.len() >= GAPS_MAX {
                self.gaps.pop_front();
            }
            self.gaps.push_back(gap);
            self.running.values_mut().for_each(|running| running.player.on_gap(gap));
            return Ok(());
        }
        if item.connection != 0 {
            return match self.places.get(&(source, item.connection)) {
                Some(&session) => self.on_packet(session, source, item, sink),
                None => Ok(()),
            };
        }
        let sessions =
            addresses_of(&item.data).and_then(|addresses| self.by_addresses.get(&addresses)).cloned();
        for session in sessions.unwrap_or_default() {
            self.on_packet(session, source, item, sink)?;
        }
        Ok(())
    }

    fn on_packet(
        &mut self,
        session: usize,
        source: usize,
        item: &Item,
        sink: &mut dyn Sink,
    ) -> Result<(), Failure> {
        if self.done.contains(&session) {
            return Ok(());
        }
        self.begin(session);
        let Some(running) = self.running.get_mut(&session) else { return Ok(()) };
        if !running.player.on_frame(item.time_ns, source as u16, &item.data, self.secrets) {
            return Ok(());
        }
        sink.on_packet(session, source, item.time_ns, item.wire_bytes, &item.data)?;
        while let Some(event) = running.player.poll() {
            sink.on_event(session, event)?;
        }
        let now = running.player.buffered();
        self.buffered = (self.buffered + now).saturating_sub(running.buffered);
        running.buffered = now;
        if self.buffered > self.memory {
            let largest = self.running.iter().max_by_key(|(_, running)| running.buffered);
            if let Some(largest) = largest.map(|(session, _)| *session) {
                self.end(largest, Outcome::Memory, sink)?;
            }
        }
        Ok(())
    }

    fn begin(&mut self, session: usize) {
        let selected = &self.sessions[session];
        if self.running.contains_key(&session) || self.done.contains(&session) {
            return;
        }
        let mut player = Session::new(selected.ends, &self.limits);
        self.gaps.iter().for_each(|gap| player.on_gap(*gap));
        self.running.insert(session, Running { player, buffered: 0 });
        self.by_addresses.entry(addresses(selected)).or_default().insert(session);
        self.ends.insert((selected.last_ns.saturating_add(LINGER_NS), session));
    }

    fn end(&mut self, session: usize, outcome: Outcome, sink: &mut dyn Sink) -> Result<(), Failure> {
        let selected = &self.sessions[session];
        self.ends.remove(&(selected.last_ns.saturating_add(LINGER_NS), session));
        if let Some(others) = self.by_addresses.get_mut(&addresses(selected)) {
            others.remove(&session);
            if others.is_empty() {
                self.by_addresses.remove(&addresses(selected));
            }
        }
        let Some(mut running) = self.running.remove(&session) else { return Ok(()) };
        self.buffered = self.buffered.saturating_sub(running.buffered);
        self.done.insert(session);
        running.player.finish(self.secrets);
        while let Some(event) = running.player.poll() {
            sink.on_event(session, event)?;
        }
        sink.on_end(session, &running.player.report(), outcome)
    }

    fn finish(mut self, sink: &mut dyn Sink) -> Result<(), Failure> {
        let left: Vec<usize> = self.running.keys().copied().collect();
        left.into_iter().try_for_each(|session| self.end(session, Outcome::Whole, sink))
    }
}

fn addresses(session: &Selected) -> [IpAddr; 2] {
    let mut addresses = [session.ends.client.ip(), session.ends.server.ip()];
    addresses.sort_unstable();
    addresses
}
