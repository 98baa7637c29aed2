//! A connection between a client and a server that send any bytes, in any pieces, at any speed.
//!
//! Laws: no panic, no loop without progress, bounded memory, and no stall: when both peers have ended and no byte is
//! blocked, the connection closes at once or by its timers. A server receives one well-formed request (or the client's
//! bytes unchanged). The client receives a sequence of well-formed responses. Acknowledged bytes were read. With a
//! backup, the replay of the entries keeps its laws, and a connection can be restored from it at any time.

#![no_main]

use evergate_base::{Micros, Protocol};
use evergate_connection::Connection;
use evergate_fuzz::fixture;
use evergate_fuzz::input::{Choices, chunks, split};
use evergate_fuzz::worker::{Answer, DEADLINES_MAX, World};
use evergate_http::{HeaderSlots, Limits, Parsed, parse_request, parse_response};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let (mut script, streams) = split(data);
    let mut streams = chunks(streams);
    let (client, server) = (streams.next().unwrap_or_default(), streams.next().unwrap_or_default());
    let kind = script.byte();
    let listener = u32::from(kind & 7) % fixture::LISTENERS.len() as u32;
    let mut world = World::accept(listener, kind & 0x10 != 0);
    world.splices = kind & 0x20 != 0;
    world.acknowledges = kind & 0x40 == 0;
    let mut play = Play { client, server, is_undisturbed: true };
    while let Some(step) = script.next() {
        play.step(&mut world, step, &mut script);
        world.pump();
        check(&world);
    }
    play.end(&mut world);
    check(&world);
    check_streams(&world, listener, client, server);
});

/// Bytes that the peers have not sent yet.
struct Play<'a> {
    client: &'a [u8],
    server: &'a [u8],
    /// Whether no peer ended before its last byte, and no timer expired.
    is_undisturbed: bool,
}

impl Play<'_> {
    fn step(&mut self, world: &mut World, step: u8, script: &mut Choices<'_>) {
        match step & 0x0f {
            0..=2 => self.client_sends(world, usize::from(script.byte()) << (step >> 4)),
            3..=5 => self.server_sends(world, usize::from(script.byte()) << (step >> 4)),
            6 => world.client.window = usize::from(script.byte()) << (step >> 4),
            7 => {
                world.server_window = usize::from(script.byte()) << (step >> 4);
                if let Some(upstream) = &mut world.upstream {
                    upstream.socket.window = world.server_window;
                }
            }
            8 => {
                let answers =
                    [Answer::Open, Answer::Wait, Answer::Refused, Answer::Unavailable, Answer::Queue];
                world.next_dial = answers[usize::from(step >> 4) % answers.len()];
            }
            9 if step & 0x10 == 0 => world.connect(),
            9 => world.refuse(),
            10 => {
                self.is_undisturbed = false;
                world.now = world.now + Micros::from_ms(u64::from(script.byte()) << (step >> 4 & 7));
                world.call(Connection::handle_timeout);
            }
            11 => match step >> 4 & 3 {
                0 => world.node.draining = !world.node.draining,
                1 => world.call(Connection::handle_drain),
                2 => world.node.allows = !world.node.allows,
                _ => world.node.snapshot = fixture::reloaded().clone(),
            },
            12 => world.acknowledge(),
            13 => self.peers_acknowledge(world, step, script),
            14 => fail_over(world),
            _ => self.any_ends(world, step),
        }
    }

    fn client_sends(&mut self, world: &mut World, count: usize) {
        let (now, later) = self.client.split_at(count.min(self.client.len()));
        if !world.client.ended {
            world.client.inbox.extend_from_slice(now);
            self.client = later;
        }
    }

    fn server_sends(&mut self, world: &mut World, count: usize) {
        let Some(upstream) = world.upstream.as_mut().filter(|upstream| !upstream.socket.ended) else {
            return;
        };
        let (now, later) = self.server.split_at(count.min(self.server.len()));
        upstream.socket.inbox.extend_from_slice(now);
        self.server = later;
    }

    fn peers_acknowledge(&mut self, world: &mut World, step: u8, script: &mut Choices<'_>) {
        let lag = usize::from(script.byte());
        match step >> 4 & 3 {
            0 => {
                let output = world.client.written.len().saturating_sub(lag) as u64;
                world.call(|connection, io| connection.handle_client_acked(io, output));
            }
            1 => {
                let Some(upstream) = &world.upstream else { return };
                let (leg, output) = (upstream.leg, upstream.socket.written.len().saturating_sub(lag) as u64);
                world.call(|connection, io| connection.handle_server_acked(io, leg, output));
            }
            2 => world.call(Connection::handle_client_stall),
            _ => world.call(Connection::handle_server_stall),
        }
    }

    fn any_ends(&mut self, world: &mut World, step: u8) {
        self.is_undisturbed = false;
        match step >> 4 & 3 {
            0 => world.client.ended = true,
            1 => {
                if let Some(upstream) = &mut world.upstream {
                    upstream.socket.ended = true;
                }
            }
            2 => {
                let Some(leg) = world.upstream.as_ref().map(|upstream| upstream.leg) else { return };
                world.call(|connection, io| connection.handle_server_reset(io, leg));
            }
            _ => world.call(|connection, io| connection.handle_abort(io, "client_reset")),
        }
    }

    /// The peers send the rest, read everything, and end; then only time passes.
    fn end(&mut self, world: &mut World) {
        world.acknowledges = true;
        world.acknowledge();
        world.next_dial = Answer::Open;
        world.server_window = usize::MAX;
        world.client.window = usize::MAX;
        self.client_sends(world, self.client.len());
        world.connect();
        world.pump();
        world.client.ended = true;
        for deadline in 0..=DEADLINES_MAX {
            loop {
                let left = self.server.len();
                if let Some(upstream) = &mut world.upstream {
                    upstream.socket.window = usize::MAX;
                }
                self.server_sends(world, left);
                if let Some(upstream) = &mut world.upstream {
                    upstream.socket.ended = true;
                }
                world.pump();
                let (taken, before) = (world.client.written.len() as u64, world.turns);
                world.call(|connection, io| connection.handle_client_acked(io, taken));
                if let Some(upstream) = &world.upstream {
                    let (leg, taken) = (upstream.leg, upstream.socket.written.len() as u64);
                    world.call(|connection, io| connection.handle_server_acked(io, leg, taken));
                }
                world.pump();
                // Otherwise another leg was opened meanwhile, or bytes moved.
                if world.turns == before
                    && world.upstream.as_ref().is_none_or(|upstream| upstream.socket.ended)
                {
                    break;
                }
            }
            if world.closed.is_some() {
                return;
            }
            assert!(deadline < DEADLINES_MAX, "the connection does not end: {}", world.state());
            self.is_undisturbed = false;
            world.expire();
        }
    }
}

/// A connection can be restored from the backup's state, unless it has broken.
fn fail_over(world: &World) {
    let Some(backup) = &world.backup else { return };
    let broken = matches!(backup.closed, Some((_, true)));
    let restored = World::restore(backup);
    assert!(restored.is_some() != (broken || backup.open.is_none()), "cannot be restored: {backup:?}");
}

fn check(world: &World) {
    if let Some(backup) = &world.backup {
        backup.check_invariants();
    }
}

fn check_streams(world: &World, listener: u32, client: &[u8], server: &[u8]) {
    match fixture::snapshot().listeners[listener as usize].protocol {
        Protocol::Http => {
            world.sent_up.iter().for_each(|bytes| check_request(bytes));
            check_responses(world);
        }
        Protocol::Https => world.sent_up.iter().for_each(|bytes| check_request(bytes)),
        Protocol::Tcp => {
            let used = world.sent_up.iter().filter(|sent| !sent.is_empty());
            assert!(used.count() <= 1, "opaque bytes went to two servers");
            for sent in &world.sent_up {
                assert!(client.starts_with(sent), "a server got {sent:?}");
            }
            let written = &world.client.written;
            assert!(server.starts_with(written), "the client got {written:?}");
        }
        Protocol::Tls => {}
    }
}

/// Larger than the limits of clients, because rewriting lengthens heads.
fn limits() -> Limits {
    Limits { head_bytes_max: 1 << 20, headers_max: 128, target_bytes_max: 1 << 16, ..Limits::default() }
}

/// One request, possibly incomplete, and no byte after it.
fn check_request(bytes: &[u8]) {
    let shown = || String::from_utf8_lossy(bytes).into_owned();
    let mut slots = HeaderSlots::new();
    let parsed = parse_request(bytes, &limits(), &mut slots);
    match parsed {
        Ok(Parsed::Partial) => {}
        Ok(Parsed::Complete(head)) if head.upgrade => {}
        Ok(Parsed::Complete(head)) => {
            let rest = &bytes[head.head_len..];
            let taken =
                head.body().advance(rest, &limits()).unwrap_or_else(|error| panic!("{error}: {}", shown()));
            assert_eq!(taken, rest.len(), "bytes behind the request: {}", shown());
        }
        Err(refusal) => panic!("a server got: {refusal}: {}", shown()),
    }
}

/// Responses in the order of the requests, the last one possibly incomplete.
fn check_responses(world: &World) {
    let mut rest = &world.client.written[..];
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
