//! Two recorded sessions of OpenSSL and Python (TLS 1.3 with a HelloRetryRequest, TLS 1.2), whole and damaged.

use evergate_evidence::capture_file::{CaptureDecoder, Step};
use evergate_player::http::{Head, Message};
use evergate_player::key_log::KeyLog;
use evergate_player::{Ends, Event, Limits, Note, Report, Session, Side};
use evergate_recorder::frame::{Content, Frame};
use proptest::prelude::*;

const CAPTURES: [&[u8]; 2] = [include_bytes!("fixture/tls13.pcap"), include_bytes!("fixture/tls12.pcap")];
const KEYS: &[u8] = include_bytes!("fixture/keys.txt");
const BODY: usize = 500;

type Packet = (u64, Vec<u8>);

fn packets(capture: &[u8]) -> Vec<Packet> {
    let (mut decoder, mut at, mut packets) = (CaptureDecoder::default(), 0, Vec::new());
    loop {
        match decoder.read(&capture[at..]).unwrap() {
            Step::Need(_) => return packets,
            Step::Skip(length) => at += length,
            Step::Packet(length, packet) => {
                at += length;
                packets.push((packet.time_ns, packet.data.to_vec()));
            }
        }
    }
}

fn ends(packets: &[Packet]) -> Ends {
    let Content::Tcp(first) = Frame::read(&packets[0].1).content else { panic!("a SYN") };
    Ends { client: first.source, server: first.destination }
}

fn limits() -> Limits {
    Limits::of_memory(8 << 20, 1)
}

fn play(ends: Ends, packets: &[Packet], limits: &Limits) -> (Vec<Event>, Report) {
    let keys = KeyLog::parse(KEYS).unwrap();
    let (mut session, mut events) = (Session::new(ends, limits), Vec::new());
    for (time_ns, frame) in packets {
        session.on_frame(*time_ns, 0, frame, &keys);
        events.extend(std::iter::from_fn(|| session.poll()));
        assert!(session.buffered() <= 16 << 20);
    }
    session.finish(&keys);
    events.extend(std::iter::from_fn(|| session.poll()));
    (events, session.report())
}

fn messages(events: &[Event]) -> Vec<&Message> {
    let mut messages = Vec::new();
    for event in events {
        if let Event::Message(message) = event {
            messages.push(&**message);
        }
    }
    messages
}

/// Messages without their times.
fn contents(events: &[Event]) -> Vec<(Side, Head, Vec<u8>, bool)> {
    let content =
        |message: &&Message| (message.side, message.head.clone(), message.body.clone(), message.is_complete);
    messages(events).iter().map(content).collect()
}

/// A segment in two, at this place of its payload.
fn split(packet: &Packet, at: usize) -> Vec<Packet> {
    let (time_ns, frame) = packet;
    let ip = usize::from(frame[14] & 15) * 4;
    let total = usize::from(u16::from_be_bytes([frame[16], frame[17]]));
    let head = 14 + ip + usize::from(frame[14 + ip + 12] >> 4) * 4;
    let length = (14 + total).saturating_sub(head);
    if at == 0 || at >= length {
        return vec![packet.clone()];
    }
    let part = |from: usize, to: usize| {
        let mut part = frame[..head].to_vec();
        part[16..18].copy_from_slice(&((head - 14 + to - from) as u16).to_be_bytes());
        let seq = u32::from_be_bytes(frame[14 + ip + 4..14 + ip + 8].try_into().unwrap());
        part[14 + ip + 4..14 + ip + 8].copy_from_slice(&seq.wrapping_add(from as u32).to_be_bytes());
        if to < length {
            part[14 + ip + 13] &= !1; // the FIN belongs to the end
        }
        part.extend_from_slice(&frame[head + from..head + to]);
        (*time_ns, part)
    };
    vec![part(0, at), part(at, length)]
}

#[test]
fn recorded_sessions_have_their_messages() {
    for (capture, version) in CAPTURES.iter().zip([0x0304, 0x0303]) {
        let packets = packets(capture);
        let (events, report) = play(ends(&packets), &packets, &limits());
        let [request, response] = messages(&events)[..] else { panic!("{events:?}") };
        let Head::Request { method, target, host } = &request.head else { panic!("{request:?}") };
        assert_eq!(
            (method.as_str(), &target[..], &host[..]),
            ("GET", &b"/bytes/500"[..], &b"shop.example"[..])
        );
        assert_eq!(response.head, Head::Response { status: 200, reason: "OK".into() });
        assert!(response.body.len() == BODY && response.is_complete && request.is_complete);
        assert!(request.last_ns <= response.first_ns && request.exchange == response.exchange);
        assert_eq!((report.tls.version, report.holes()), (Some(version), 0));
        assert_eq!(report.tls.sni.as_deref(), Some("shop.example"));
        let closed = |event: &&Event| matches!(event, Event::Note { note: Note::Closed, .. });
        assert!(events.iter().filter(closed).count() >= 1);
        let retry = |event: &Event| matches!(event, Event::Note { note: Note::HelloRetry, .. });
        assert_eq!(events.iter().any(retry), version == 0x0304);
    }
}

#[test]
fn traffic_secrets_alone_open_the_messages() {
    let packets = packets(CAPTURES[0]);
    let lines = KEYS.split_inclusive(|&byte| byte == b'\n');
    let without: Vec<u8> =
        lines.filter(|line| !line.windows(9).any(|part| part == b"HANDSHAKE")).flatten().copied().collect();
    let keys = KeyLog::parse(&without).unwrap();
    let mut session = Session::new(ends(&packets), &limits());
    for (time_ns, frame) in &packets {
        session.on_frame(*time_ns, 0, frame, &keys);
    }
    session.finish(&keys);
    let events: Vec<Event> = std::iter::from_fn(|| session.poll()).collect();
    assert_eq!(messages(&events).len(), 2, "{events:?}");
    assert!(messages(&events).iter().all(|message| message.is_complete));
}

/// One packet less: the other bytes are right, and what is missing is named.
#[test]
fn every_missing_packet_is_named() {
    for capture in CAPTURES {
        let all = packets(capture);
        let (whole, _) = play(ends(&all), &all, &limits());
        let whole = contents(&whole);
        for missing in 1..all.len() {
            let mut packets = all.clone();
            let (_, frame) = packets.remove(missing);
            let Content::Tcp(segment) = Frame::read(&frame).content else { continue };
            let (events, report) = play(ends(&all), &packets, &limits());
            if segment.payload.is_empty() {
                assert_eq!(contents(&events), whole, "packet {missing} without payload");
                continue;
            }
            assert_eq!(report.holes(), 1, "packet {missing}");
            for message in messages(&events) {
                let sent = whole.iter().find(|(side, ..)| *side == message.side).unwrap();
                let is_hole = |at: usize| {
                    message.holes.iter().any(|hole| {
                        let end = hole.length.map_or(u64::MAX, |length| hole.offset + length);
                        (hole.offset..end).contains(&(at as u64))
                    })
                };
                assert_eq!(message.head, sent.1);
                let shown = message.body.iter().zip(&sent.2).enumerate().filter(|(at, _)| !is_hole(*at));
                assert!(shown.into_iter().all(|(_, (shown, sent))| shown == sent), "packet {missing}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Segments that are split, repeated and moved have the same messages.
    #[test]
    fn messages_do_not_depend_on_segments(
        capture in 0usize..2,
        cuts in prop::collection::vec(0usize..1400, 25),
        moves in prop::collection::vec(0usize..8, 60),
        again in prop::collection::vec(any::<bool>(), 60),
    ) {
        let all = packets(CAPTURES[capture]);
        let (whole, _) = play(ends(&all), &all, &limits());
        let pieces: Vec<Packet> = all.iter().zip(cuts).flat_map(|(packet, at)| split(packet, at)).collect();
        let mut keyed: Vec<(usize, &Packet)> = pieces.iter().enumerate().collect();
        keyed.extend(pieces.iter().enumerate().zip(&again).filter(|(_, again)| **again).map(|(piece, _)| piece));
        for (number, (place, _)) in keyed.iter_mut().enumerate() {
            *place += moves[number % 60];
        }
        keyed.sort_by_key(|(place, _)| *place);
        let packets: Vec<Packet> = keyed.into_iter().map(|(_, packet)| packet.clone()).collect();
        let (events, report) = play(ends(&all), &packets, &limits());
        let sorted = |events: &[Event]| {
            let mut contents = contents(events);
            contents.sort_by_key(|content| content.0);
            contents
        };
        prop_assert_eq!(sorted(&events), sorted(&whole));
        prop_assert_eq!(report.holes(), 0);
    }

    /// Changed, lost and foreign bytes never panic, stay within the bounds, and never show a byte that was not sent.
    #[test]
    fn damaged_captures_never_panic_or_lie(
        capture in 0usize..2, changes in prop::collection::vec((any::<u16>(), any::<u16>(), any::<u8>()), 0..40),
        small in any::<bool>(),
    ) {
        let mut packets = packets(CAPTURES[capture]);
        let ends = ends(&packets);
        let (whole, _) = play(ends, &packets, &limits());
        let whole = contents(&whole);
        for (packet, at, value) in changes {
            let place = usize::from(packet) % packets.len();
            match value {
                0 if packets.len() > 1 => drop(packets.remove(place)),
                1 => { let copy = packets[place].clone(); packets.push(copy); }
                2 => packets.swap(place, 0),
                _ => {
                    let frame = &mut packets[place].1;
                    if frame.is_empty() { continue }
                    let at = usize::from(at) % frame.len();
                    if value == 3 { frame.truncate(at) } else { frame[at] ^= value }
                }
            }
        }
        let limits = if small { Limits::of_memory(64 << 10, 1) } else { limits() };
        let (events, _) = play(ends, &packets, &limits);
        for message in messages(&events) {
            let sent = whole.iter().find(|(side, ..)| *side == message.side).unwrap();
            prop_assert!(message.body.len() <= sent.2.len().max(limits.body));
            if message.is_complete && message.holes.is_empty() {
                prop_assert_eq!(&message.body, &sent.2);
            }
        }
    }
}
