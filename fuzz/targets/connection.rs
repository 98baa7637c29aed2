//! A connection between a client and a server that send any bytes, in any pieces, at any speed.
//!
//! Laws: no panic, no loop without progress, bounded memory, and no stall: when both peers have ended and no byte is
//! blocked, the connection closes at once or by its timers. A server receives one well-formed request (or the client's
//! bytes unchanged). The client receives a sequence of well-formed responses. Acknowledged bytes were read. With a
//! backup, the replay of the entries keeps its laws, and a connection can be restored from it at any time.

#![no_main]

use evergate_base::{Micros, Protocol};
use evergate_fuzz::backup::Backup;
use evergate_fuzz::fixture;
use evergate_fuzz::input::{Choices, chunks, split};
use evergate_fuzz::world::{Answer, DEADLINES_MAX, Kind, World};
use evergate_http::{HeaderSlots, Limits, Parsed, parse_request, parse_response};
use evergate_memory_host::Peer;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let (mut script, streams) = split(data);
    let mut streams = chunks(streams);
    let (client, server) = (streams.next().unwrap_or_default(), streams.next().unwrap_or_default());
    let flags = script.byte();
    let listener = u32::from(flags & 7) % fixture::LISTENERS.len() as u32;
    let has = |bit: u8| flags & bit != 0;
    let kind = Kind { replicated: has(0x10), splices: has(0x20), pooled: has(0x80) };
    let mut world = World::accept(listener, kind);
    world.acknowledges = !has(0x40);
    let mut play = Play { client, server, is_crowded: false };
    while let Some(step) = script.next() {
        play.step(&mut world, step, &mut script);
        world.pump();
    }
    play.end(&mut world);
    check_streams(&world, (listener, kind.pooled), client, server);
});

/// Time after which a leg counts as stalled: within a message, and after one.
const STALLS: [Micros; 2] = [Micros::from_ms(2), Micros::from_ms(1_100)];

/// Bytes that the peers have not sent yet.
struct Play<'a> {
    client: &'a [u8],
    server: &'a [u8],
    is_crowded: bool,
}

impl Play<'_> {
    fn step(&mut self, world: &mut World, step: u8, script: &mut Choices<'_>) {
        match step & 0x0f {
            0..=2 => self.client_sends(world, usize::from(script.byte()) << (step >> 4)),
            3..=5 => self.server_sends(world, usize::from(script.byte()) << (step >> 4)),
            6 => world.client.set_window(usize::from(script.byte()) << (step >> 4)),
            7 => {
                let window = usize::from(script.byte()) << (step >> 4);
                world.process.host.set_server_window(window);
                if let Some(server) = world.server() {
                    server.set_window(window);
                }
            }
            8 => {
                let answers =
                    [Answer::Open, Answer::Wait, Answer::Refused, Answer::Unavailable, Answer::Queue];
                world.set_dials(answers[usize::from(step >> 4) % answers.len()]);
            }
            9 if step & 0x10 == 0 => world.connect(),
            9 => world.refuse(),
            10 => world.pass(Micros::from_ms(u64::from(script.byte()) << (step >> 4 & 7))),
            11 => match step >> 4 & 3 {
                0 | 1 => world.toggle_drain(),
                2 => {
                    self.is_crowded = !self.is_crowded;
                    world.set_crowded(self.is_crowded);
                }
                _ => world.reload(),
            },
            12 => world.acknowledge(),
            13 => peers_acknowledge(world, step, script),
            14 => fail_over(world),
            _ => match step >> 4 & 3 {
                0 => world.client.end(),
                1 => world.server().iter().for_each(Peer::end),
                2 => world.server().iter().for_each(Peer::reset),
                _ => world.client.reset(),
            },
        }
    }

    fn client_sends(&mut self, world: &mut World, count: usize) {
        let (now, later) = self.client.split_at(count.min(self.client.len()));
        if !world.client.has_ended() {
            world.client.send(now);
            self.client = later;
        }
    }

    fn server_sends(&mut self, world: &mut World, count: usize) {
        let Some(server) = world.server().filter(|server| !server.has_ended()) else { return };
        let (now, later) = self.server.split_at(count.min(self.server.len()));
        server.send(now);
        self.server = later;
    }

    /// The peers send the rest, read everything, and end; then only time passes.
    fn end(&mut self, world: &mut World) {
        world.acknowledges = true;
        world.acknowledge();
        world.set_dials(Answer::Open);
        world.process.host.set_server_window(usize::MAX);
        world.client.set_window(usize::MAX);
        self.client_sends(world, self.client.len());
        world.connect();
        world.pump();
        world.client.end();
        for deadline in 0..=DEADLINES_MAX {
            loop {
                let left = self.server.len();
                let open = world.server();
                open.iter().for_each(|server| server.set_window(usize::MAX));
                self.server_sends(world, left);
                open.iter().for_each(Peer::end);
                world.pump();
                let before = world.process.host.moved();
                world.client.acknowledge(u64::MAX);
                world.process.host.servers().iter().for_each(|server| server.acknowledge(u64::MAX));
                world.pump();
                // Otherwise another leg was opened meanwhile, or bytes moved.
                let is_over = world.server().is_none_or(|server| server.has_ended());
                if world.process.host.moved() == before && is_over {
                    break;
                }
            }
            if world.is_closed() {
                return;
            }
            assert!(deadline < DEADLINES_MAX, "the connection does not end: {}", world.state());
            world.expire();
        }
    }
}

fn peers_acknowledge(world: &mut World, step: u8, script: &mut Choices<'_>) {
    let lag = u64::from(script.byte());
    let acknowledge = |peer: &Peer| peer.acknowledge(peer.written_len().saturating_sub(lag));
    match step >> 4 & 3 {
        0 => acknowledge(&world.client),
        1 => world.server().iter().for_each(acknowledge),
        2 => world.pass(STALLS[0]),
        _ => world.pass(STALLS[1]),
    }
}

/// A node with the backup's replica can continue the connection, unless it has broken.
fn fail_over(world: &World) {
    let Some(replica) = world.backup.as_ref().and_then(Backup::replica) else { return };
    let state = &replica.state;
    let broken = matches!(state.closed, Some((_, true)));
    let continued = World::recover(state, &replica.legs);
    assert!(continued.is_some() != (broken || state.open.is_none()), "cannot be continued: {state:?}");
}

fn check_streams(world: &World, (listener, pooled): (u32, bool), client: &[u8], server: &[u8]) {
    match fixture::snapshot().listeners[listener as usize].protocol {
        Protocol::Http => {
            world.sent_up().iter().for_each(|bytes| check_requests(bytes, pooled));
            check_responses(world);
        }
        Protocol::Https => world.sent_up().iter().for_each(|bytes| check_requests(bytes, pooled)),
        Protocol::Tcp => {
            let sent_up = world.sent_up();
            let used = sent_up.iter().filter(|sent| !sent.is_empty());
            assert!(used.count() <= 1, "opaque bytes went to two servers");
            for sent in &sent_up {
                assert!(client.starts_with(sent), "a server got {sent:?}");
            }
            let written = world.client.written();
            assert!(server.starts_with(&written), "the client got {written:?}");
        }
        Protocol::Passthrough => {
            let sent_up = world.sent_up();
            let used: Vec<_> = sent_up.iter().filter(|sent| !sent.is_empty()).collect();
            assert!(used.len() <= 1, "opaque bytes went to two servers");
            for sent in &used {
                assert!(client.starts_with(sent), "a server got {sent:?}");
                let written = world.client.written();
                assert!(server.starts_with(&written), "the client got {written:?}");
            }
        }
        Protocol::Tls => {}
    }
}

/// Larger than the limits of clients, because rewriting lengthens heads.
fn limits() -> Limits {
    Limits { head_bytes_max: 1 << 20, headers_max: 128, target_bytes_max: 1 << 16, ..Limits::default() }
}

/// Requests on one server connection, the last one possibly incomplete; only one unless connections are pooled.
fn check_requests(mut bytes: &[u8], pooled: bool) {
    while !bytes.is_empty() {
        let shown = || String::from_utf8_lossy(bytes).into_owned();
        let mut slots = HeaderSlots::new();
        match parse_request(bytes, &limits(), &mut slots) {
            Ok(Parsed::Partial) => return,
            Ok(Parsed::Complete(head)) if head.upgrade => return,
            Ok(Parsed::Complete(head)) => {
                let (mut body, rest) = (head.body(), &bytes[head.head_len..]);
                let taken = body.advance(rest, &limits());
                let taken = taken.unwrap_or_else(|error| panic!("{error}: {}", shown()));
                let is_last = taken == rest.len();
                assert!(is_last || (pooled && body.is_done()), "bytes behind the request: {}", shown());
                bytes = &rest[taken..];
            }
            Err(refusal) => panic!("a server got: {refusal}: {}", shown()),
        }
    }
}

/// Responses in the order of the requests, the last one possibly incomplete.
fn check_responses(world: &World) {
    let written = world.client.written();
    let mut rest = &written[..];
    let mut heads = world.logs.iter().map(|log| log.method == "HEAD");
    let mut to_head = heads.next();
    while !rest.is_empty() {
        let shown = || String::from_utf8_lossy(rest).into_owned();
        let mut slots = HeaderSlots::new();
        match parse_response(rest, &limits(), &mut slots, to_head.unwrap_or(false)) {
            Ok(Parsed::Partial) => return,
            Ok(Parsed::Complete(head)) if head.is_upgrade => return,
            Ok(Parsed::Complete(head)) => {
                let mut body = head.body();
                rest = &rest[head.head_len..];
                let taken = body.advance(rest, &limits());
                rest = &rest[taken.unwrap_or_else(|error| panic!("{error}: {}", shown()))..];
                if !head.is_interim() {
                    assert!(to_head.is_some(), "more responses than requests");
                    to_head = heads.next();
                }
                assert!(rest.is_empty() || body.is_done());
            }
            Err(refusal) => panic!("the client got: {refusal}: {}", shown()),
        }
    }
}
