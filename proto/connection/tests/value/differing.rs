//! Nodes whose files differ for a moment: certificates, ticket keys, client authorities. Their configurations have the
//! same generation, and nothing else names the files. A node that replays a handshake of another node then makes other
//! bytes, under keys that may be the same, and must not send them. No position of the client's stream ever gets two
//! bytes (`World`), so no nonce covers two plaintexts.

use crate::exhaustive::{requests, tunnel};
use crate::harness::peer::{Peer, with_strange_group};
use crate::harness::rig::TestNode;
use crate::harness::setup::{self, Files, differing_tls};
use crate::scenario::{Scenario, Session, Wire, config, config_with};
use crate::world::{Cut, Mutation, Outcome, World, reference};
use evergate_base::Micros;
use evergate_connection::{Connection, Effects, Io, Scratch, Snapshot};
use evergate_replication::Entry;
use evergate_tls::flight_digest;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

const DIFFERS: &str = "handshake_replay_mismatch";

/// The reason of a connection that a node cannot continue.
const ENDS: &[&str] = &[DIFFERS];

/// Two nodes, and what an undisturbed client of the first one sees.
struct Pair {
    scenario: Scenario,
    configs: [Arc<Snapshot>; 2],
    expected: (Vec<usize>, Outcome),
    /// The client's first key share is of no use.
    retries: bool,
}

/// How runs ended.
#[derive(Debug, Default, PartialEq, Eq)]
struct Ends {
    /// As if nothing had happened.
    same: usize,
    /// By a node that would have answered otherwise than the one before.
    differing: usize,
    /// With the alert of a node that does not let the client in.
    refused: usize,
}

impl Pair {
    fn new(files: Files, scenario: Scenario) -> Pair {
        let configs = differing_tls(files).map(|tls| config_with(scenario.behind, &tls));
        let expected = reference(&scenario, &configs[0], &mut Scratch::new());
        Pair { scenario, configs, expected, retries: false }
    }

    /// One run with failovers at these steps; its length.
    fn run(&self, seed: u64, crashes: &[(u64, Cut)], mutation: Mutation, ends: &mut Ends) -> u64 {
        let mut scratch = Scratch::new();
        let (config, marks) = (&self.configs[0], Some(&self.expected.0[..]));
        let mut world = World::new(&self.scenario, config, marks, seed, mutation, &mut scratch);
        world.differ(&self.configs[1]);
        if self.retries {
            world.replace_client(&with_strange_group(), seed);
        }
        let mut crashes_left = crashes;
        while world.advance() {
            while let Some(((_, cut), rest)) = crashes_left.split_first().filter(|(c, _)| c.0 <= world.step) {
                world.crash(*cut);
                crashes_left = rest;
            }
        }
        let outcome = world.outcome();
        let context = format!("seed {seed}, crashes {crashes:?}: {}", world.describe());
        if outcome == self.expected.1 {
            ends.same += 1;
        } else if world.reasons == ENDS {
            assert!(outcome.aborted && world.flights_were_replicated > 0, "{context}");
            ends.differing += 1;
        } else {
            assert!(world.alert().is_some() && world.reasons == ["tls_handshake"], "{context}");
            ends.refused += 1;
        }
        world.step
    }

    /// Failovers at every step.
    fn everywhere(&self) -> Ends {
        let mut ends = Ends::default();
        for seed in 0..2 {
            let steps = self.run(seed, &[], Mutation::None, &mut ends);
            for step in 1..=steps {
                for cut in [Cut::Least, Cut::Most] {
                    self.run(seed, &[(step, cut)], Mutation::None, &mut ends);
                }
                let again = [(step, Cut::Random), (step + 3, Cut::Random)];
                self.run(seed, &again, Mutation::None, &mut ends);
            }
        }
        ends
    }
}

/// Each kind of handshake, and the files that it depends on.
fn pairs() -> Vec<Pair> {
    let short = |wire| requests(wire, &[(0, 300), (4, 700)]);
    let with = |session| Scenario { session, ..short(Wire::Tls12) };
    let mut pairs = Vec::new();
    for files in [Files::Certificate, Files::TicketKeys, Files::ClientRoots] {
        pairs.push(Pair::new(files, short(Wire::Tls13)));
        pairs.push(Pair { retries: true, ..Pair::new(files, short(Wire::Tls13)) });
        pairs.push(Pair::new(files, tunnel(Wire::Tls13, false, None)));
        pairs.push(Pair::new(files, short(Wire::Tls12)));
    }
    pairs.push(Pair::new(Files::Certificate, with(Session::New)));
    pairs.push(Pair::new(Files::TicketKeys, with(Session::Known)));
    pairs
}

#[test]
fn no_nonce_covers_two_plaintexts_where_files_of_nodes_differ() {
    for pair in pairs() {
        let ends = pair.everywhere();
        eprintln!("{:?} {:?}: {ends:?}", pair.scenario.wire, pair.scenario.session);
        assert!(ends.same > 0 && ends.differing > 0, "{ends:?}");
    }
}

/// The check sees what it is there for.
#[test]
fn without_the_flights_nonces_would_cover_two_plaintexts() {
    let breaks = |pair: &Pair, seed, step| {
        let run = || pair.run(seed, &[(step, Cut::Least)], Mutation::LostFlights, &mut Ends::default());
        let panic = catch_unwind(AssertUnwindSafe(run)).err();
        let message = panic.and_then(|panic| panic.downcast::<String>().ok());
        message.is_some_and(|message| message.starts_with("another byte at position"))
    };
    for (index, pair) in pairs().iter().enumerate() {
        let found = (0..10).any(|seed| (1..60).any(|step| breaks(pair, seed, step)));
        assert!(found, "pair {index}");
    }
}

/// A connection with a backup, and the entries and output of one call.
struct Alone {
    conn: Connection,
    node: TestNode,
    scratch: Scratch,
}

impl Alone {
    fn read_from(&mut self, bytes: &[u8]) -> (Vec<Entry>, Vec<u8>) {
        let Alone { conn, node, scratch } = self;
        let held = conn.begin_client_read(&mut scratch.input);
        scratch.input[held..held + bytes.len()].copy_from_slice(bytes);
        let mut effects = Effects::default();
        let mut io = Io { now: Micros(1_000_000), scratch, effects: &mut effects, node };
        conn.handle_client_data(&mut io, held + bytes.len());
        if conn.holds_tickets() {
            conn.handle_tickets_due(&mut io); // no request comes
        }
        let entries = conn.drain_entries().filter(Entry::decides_output).collect(); // output waits for them
        let (first, second) = scratch.down.ready();
        let reported = [first, second].concat();
        scratch.down.clear();
        (entries, reported)
    }
}

/// No round to the backups, and no frame, more than what is answered waits for in any case.
#[test]
fn a_flight_is_named_with_the_input_that_it_answers() {
    let config = config(Wire::Plain);
    let (mut peer, hello) = Peer::ours_with(&with_strange_group(), 1);
    let mut conn = Connection::new(&config, &setup::accepted(setup::HTTPS), Micros(1_000_000));
    conn.start_replication();
    let mut alone = Alone { conn, node: TestNode::new(&config), scratch: Scratch::new() };
    let mut bytes = hello;
    for expected in ["Open Hello Flight", "Input Flight", "Input Flight Established"] {
        let (entries, reported) = alone.read_from(&bytes);
        let kinds = entries.iter().map(|entry| match entry {
            Entry::Open(_) => "Open",
            Entry::Hello(_) => "Hello",
            Entry::Input(_) => "Input",
            Entry::Flight(flight) => {
                assert_eq!(
                    (flight.length as usize, flight.digest),
                    (reported.len(), flight_digest(&reported))
                );
                "Flight"
            }
            Entry::Established(_) => "Established",
            other => panic!("{other:?}"),
        });
        assert_eq!(kinds.collect::<Vec<_>>().join(" "), expected);
        bytes = peer.receive(&reported);
    }
}
