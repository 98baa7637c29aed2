//! The node dies, and another node continues from the replica.

use super::{Cut, Mutation, World};
use crate::audited::ENVELOPE_BYTES_MIN;
use crate::harness::setup;
use evergate_connection::{Connection, Io};
use evergate_replication::ConnectionState;

impl World<'_> {
    fn share(&mut self, cut: Cut, most: usize) -> usize {
        match cut {
            Cut::Least => 0,
            Cut::Most => most,
            Cut::Random => self.rng.below(most + 1),
        }
    }

    /// The node dies, and another one continues.
    pub(crate) fn crash(&mut self, cut: Cut) {
        if self.closed.is_some() {
            return;
        }
        self.crashes += 1;
        let count = self.share(cut, self.pending.len());
        self.apply(count);
        let count = self.share(cut, (self.written - self.delivered.min(self.written)) as usize);
        if count > 0 {
            self.deliver(count);
        }
        for id in self.legs.keys().copied().collect::<Vec<_>>() {
            let most = self.legs[&id].written.saturating_sub(self.legs[&id].delivered) as usize;
            let count = self.share(cut, most) as u64;
            let leg = self.legs.get_mut(&id).unwrap();
            leg.delivered += count;
            leg.held = false;
            leg.open = false;
            leg.end_reported = false;
            leg.fin_waits = false;
            if count > 0 {
                leg.react(false, &mut self.flaked);
            }
        }
        self.mutate();
        let established = self.replicated.established.as_ref();
        self.envelope_was_replicated =
            established.is_some_and(|known| known.facts.len() > ENVELOPE_BYTES_MIN);
        self.hello_was_replicated = self.replicated.client.input > 0;
        self.flights_were_replicated = self.replicated.hello.as_ref().map_or(0, |hello| hello.flights.len());
        self.reasons.clear();
        if let Some(other) = &mut self.other {
            std::mem::swap(other, &mut self.node.snapshot);
        }
        self.change_sessions(); // what this node finds or not may decide nothing that the other one has decided
        if std::env::var_os("TRACE").is_some() {
            eprintln!("crash at {}: {}", self.step, self.describe());
        }
        self.pending.clear();
        (self.queued, self.applied, self.acked) = (0, 0, 0);
        self.dials.clear();
        self.idle.clear();
        (self.resumed, self.retained) = (None, None);
        self.fin_waits = false;
        self.client.end_reported = false;
        self.effects.clear();
        self.scratch.down.clear();
        self.scratch.up.clear();
        self.restore();
    }

    /// A bound leg that the next request had been given to before its backups knew.
    fn take_back(&mut self, id: u32) {
        let Some(mut tls) = self.legs.get_mut(&id).and_then(|leg| leg.tls.take()) else { return };
        if let Some(later) = self.legs.get_mut(&(id + 1)).and_then(|later| later.tls.as_mut())
            && !tls.is_open()
        {
            tls.take_back(later);
        }
        self.legs.entry(id).and_modify(|leg| leg.tls = Some(tls));
    }

    fn mutate(&mut self) {
        match self.mutation {
            Mutation::LostBoundary => drop(self.replicated.boundaries.pop_back()),
            Mutation::LostLegBoundary => {
                self.replicated.leg_boundaries.values_mut().for_each(|runs| drop(runs.pop_back()))
            }
            Mutation::LostRoute => self.replicated.routes.clear(),
            Mutation::LostBound => self.replicated.bound = None,
            Mutation::LostReserve => self.replicated.reserved = None,
            Mutation::LostFlights => {
                if let Some(hello) = &mut self.replicated.hello {
                    hello.flights.clear();
                    self.replicated.established = None; // it records that there were some, as do later entries
                    self.replicated.routes.clear();
                }
            }
            _ => {}
        }
    }

    fn restore(&mut self) {
        let mut fresh = setup::accepted(self.scenario.listener());
        fresh.secret = [9; 32];
        let snapshot = self.node.snapshot.clone();
        if self.replicated.open.is_none() {
            // Nothing of it is known: it is accepted again.
            assert_eq!(
                (self.written, self.client.acked),
                (0, 0),
                "something was sent before anything was replicated"
            );
            self.client.read = 0;
            self.legs.clear();
            self.conn = Connection::new(&snapshot, &setup::accepted(self.scenario.listener()), self.now);
            self.conn.start_replication();
            return self.call(|conn, io| conn.handle_accepted(io));
        }
        let state = ConnectionState::decode(&self.replicated.encode().unwrap()).unwrap();
        let mut io =
            Io { now: self.now, scratch: self.scratch, effects: &mut self.effects, node: &mut self.node };
        let (conn, resumed) = match Connection::restore(&snapshot, &state, &fresh, &mut io) {
            Ok(restored) => restored,
            Err(evergate_connection::RestoreError::Aborted) => {
                self.closed = Some(true);
                return;
            }
            Err(error) => panic!("cannot be restored: {error:?}"),
        };
        self.conn = conn;
        self.client.read = self.conn.client_frontier();
        assert!(
            self.client.read >= self.client.acked,
            "input {} on is needed, but {} is acknowledged",
            self.client.read,
            self.client.acked
        );
        assert!(self.client.read <= self.client.sent.len() as u64);
        let start = self.conn.output_position() - self.scratch.down.len() as u64;
        assert!(
            start <= self.delivered,
            "output continues at {start}, but the client has {}",
            self.delivered
        );
        self.written = start;
        self.reported = start;
        let kept = resumed.as_ref().map(|resumed| resumed.route.leg);
        for (_, leg) in self.legs.iter_mut().filter(|(id, leg)| Some(**id) != kept && !leg.released) {
            leg.released = true; // this server gets no answer any more
            leg.fin_seen = true;
            leg.reported = u64::MAX; // what it acknowledges is no leg's of this node, though one may get its number
        }
        if let Some(resumed) = resumed {
            let id = resumed.route.leg;
            // One that was given back for the next request is whole as long as nothing of that has left.
            let untouched = self.legs.range(id + 1..).all(|(_, later)| later.wire.is_empty());
            let leg = self.legs.get_mut(&id).expect("a resumed leg that never was");
            assert!(
                !leg.released || leg.app.reset || ((leg.tls.is_none() || leg.retained) && untouched),
                "leg {id} is needed, but it was given back"
            );
            leg.fin_seen &= !leg.released;
            leg.released = false;
            assert!(
                resumed.input >= leg.acked,
                "leg {id}: {} on is needed, {} is acknowledged",
                resumed.input,
                leg.acked
            );
            assert!(
                resumed.input <= leg.sent.len() as u64,
                "leg {id}: {} is to come, of {}",
                resumed.input,
                leg.sent.len()
            );
            assert!(
                resumed.output <= leg.delivered,
                "leg {id}: output continues at {}, but the server has {}",
                resumed.output,
                leg.delivered
            );
            assert_eq!(leg.server, resumed.route.server);
            if leg.retained {
                self.take_back(id);
            }
            let leg = self.legs.get_mut(&id).unwrap();
            leg.read = resumed.input;
            leg.written = resumed.output;
            leg.reported = resumed.output;
            self.resumed = Some(id);
        }
        self.perform();
        if self.reasons.contains(&"handshake_replay_mismatch") {
            assert_eq!(
                (self.written, self.closed),
                (start, Some(true)),
                "something of another handshake has left"
            );
        }
    }
}
