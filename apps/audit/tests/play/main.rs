//! `play` and `export` of real sessions: Python and OpenSSL as peers, recorded on loopback, and transformed captures.

mod exports;
mod grants;
mod rig;
mod stores;

use rig::{Exchange, Packet, Played, Random, client_port, fragments, payload_of, recorded, tagged};
use std::collections::BTreeMap;

fn assert_whole(played: &BTreeMap<u16, Played>, expected: &BTreeMap<u16, Vec<Exchange>>) {
    assert_eq!(played.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
    for (port, exchanges) in expected {
        let session = &played[port];
        assert!(session.exchanges() == *exchanges, "session {port} differs: {}", session.report);
        assert!(session.holes().is_empty(), "session {port}: {}", session.report);
    }
}

#[test]
fn every_session_of_a_store_is_played_byte_by_byte() {
    let Some(recorded) = recorded() else { return };
    let played = recorded.play(&[&recorded.store()], &[]);
    assert!(recorded.sessions.len() >= 20);
    assert_whole(&played, &recorded.sessions);
    for (port, (kind, is_resumed)) in &recorded.kinds {
        assert_eq!(played[port].report["resumed"], *is_resumed, "{kind}");
        assert_eq!(played[port].ambiguous().len(), 0);
    }
    let updated: Vec<_> = played.values().filter(|session| session.notes("key_update") > 0).collect();
    let [updated] = updated[..] else { panic!("one session has KeyUpdates") };
    assert_eq!(updated.report["to_server"]["key_generation"], 4);
    assert_eq!(updated.report["to_client"]["key_generation"], 3);
    assert!(played.values().any(|session| session.notes("hello_retry") == 1));
}

#[test]
fn one_session_is_chosen_by_its_random() {
    let Some(recorded) = recorded() else { return };
    let all = recorded.play(&[&recorded.store()], &[]);
    let (port, session) = all.iter().nth(7).unwrap();
    let random = session.report["client_random"].as_str().unwrap();
    let one = recorded.play(&[&recorded.store()], &["--client-random", random]);
    assert_eq!(one.keys().collect::<Vec<_>>(), [port]);
    let number = session.report["parts"][0]["connection"].to_string();
    let same = recorded.play(&[&recorded.store()], &["--connection", &number]);
    assert_eq!(same[port].lines, one[port].lines);
}

#[test]
fn transformed_captures_have_the_same_messages() {
    let Some(recorded) = recorded() else { return };
    let each = |change: &dyn Fn(&Packet) -> Vec<u8>| -> Vec<Packet> {
        recorded.packets.iter().map(|packet| (packet.0, change(packet))).collect()
    };
    let vlan = each(&|packet| tagged(&packet.1, &[[0x81, 0, 0, 7]]));
    let qinq = each(&|packet| tagged(&packet.1, &[[0x88, 0xa8, 0, 7], [0x81, 0, 0, 9]]));
    for (name, packets) in [
        ("plain", recorded.packets.clone()),
        ("vlan", vlan),
        ("qinq", qinq),
        ("fragments", fragmented(&recorded.packets, 1)),
        ("reordered", reordered(&recorded.packets, 2, 12)),
        ("repeated", repeated(&recorded.packets, 3)),
        ("all", reordered(&repeated(&fragmented(&recorded.packets, 4), 5), 6, 6)),
    ] {
        let path = recorded.capture(&format!("{name}.pcap"), &packets);
        let played = recorded.play(&[&path], &[]);
        assert_whole(&played, &recorded.sessions);
        assert!(played.values().all(|session| session.ambiguous().is_empty()), "{name}");
    }
}

/// Long packets as fragments, in another order; every tenth of them again.
fn fragmented(packets: &[Packet], seed: u64) -> Vec<Packet> {
    let mut random = Random(seed);
    let mut out = Vec::new();
    for (number, (time_ns, frame)) in packets.iter().enumerate() {
        let mut parts = fragments(frame, number as u16, 8 * (20 + random.below(60)));
        if parts.len() > 1 && random.below(2) == 0 {
            parts.rotate_left(1);
        }
        if parts.len() > 1 && random.below(10) == 0 {
            parts.push(parts[0].clone());
        }
        out.extend(parts.into_iter().map(|part| (*time_ns, part)));
    }
    out
}

/// Packets at most `window` places from their own.
fn reordered(packets: &[Packet], seed: u64, window: usize) -> Vec<Packet> {
    let mut random = Random(seed);
    let mut keyed: Vec<(usize, &Packet)> =
        packets.iter().enumerate().map(|(place, packet)| (place + random.below(window), packet)).collect();
    keyed.sort_by_key(|(place, _)| *place);
    keyed.into_iter().map(|(_, packet)| packet.clone()).collect()
}

/// Every fifth packet again, up to forty packets later.
fn repeated(packets: &[Packet], seed: u64) -> Vec<Packet> {
    let mut random = Random(seed);
    let mut keyed: Vec<(usize, &Packet)> = packets.iter().enumerate().collect();
    let again: Vec<_> =
        keyed.iter().filter(|_| random.below(5) == 0).map(|(place, packet)| (place + 40, *packet)).collect();
    keyed.extend(again);
    keyed.sort_by_key(|(place, _)| *place);
    keyed.into_iter().map(|(_, packet)| packet.clone()).collect()
}

/// Packets with payload are left out at random, and never the hellos: holes are named, and every byte that is shown is
/// one that was sent.
#[test]
fn missing_packets_are_named_and_the_rest_is_right() {
    let Some(recorded) = recorded() else { return };
    let (mut holes, mut shown, mut whole) = (0, 0, 0);
    for seed in 1..=6 {
        let mut random = Random(seed);
        let mut seen: BTreeMap<u16, usize> = BTreeMap::new();
        let mut lost: BTreeMap<u16, usize> = BTreeMap::new();
        let kept = recorded.packets.iter().filter(|(_, frame)| {
            let (Some(port), Some((_, length))) = (client_port(frame, &recorded.sessions), payload_of(frame))
            else {
                return true;
            };
            let count = seen.entry(port).or_default();
            *count += usize::from(length > 0);
            let is_lost = length > 0 && *count > 8 && random.below(25) == 0;
            *lost.entry(port).or_default() += usize::from(is_lost);
            !is_lost
        });
        let packets: Vec<Packet> = kept.cloned().collect();
        let path = recorded.capture(&format!("gaps-{seed}.pcap"), &packets);
        for (port, session) in recorded.play(&[&path], &[]) {
            if lost.get(&port).is_none_or(|lost| *lost == 0) {
                assert_eq!(session.exchanges(), recorded.sessions[&port]);
                whole += 1;
                continue;
            }
            holes += session.holes().len();
            assert!(!session.holes().is_empty(), "seed {seed}, {port}: {}", session.report);
            assert!(session.holes().iter().all(|hole| hole["cause"] == "unexplained"));
            shown += assert_right(&session, &recorded.sessions[&port], seed);
        }
    }
    assert!(holes > 100 && shown > 1_000_000 && whole > 10, "{holes} {shown} {whole}");
}

/// Checks that each message has the bytes that were sent outside its holes. Answers the number of bytes.
fn assert_right(session: &Played, expected: &[Exchange], seed: u64) -> usize {
    let mut shown = 0;
    let requests = session.messages("request");
    for (kind, messages) in [("request", requests.clone()), ("response", session.messages("response"))] {
        for (exchange, message) in messages {
            let Some(target) = requests.get(&exchange).and_then(|request| request["target"].as_str()) else {
                continue;
            };
            let found = expected.iter().find(|expected| expected.target == target);
            let Some(sent) = found else { panic!("seed {seed}: no request has the target {target}") };
            // A lost request leaves its response with the next request; its length shows that.
            let sent = if kind == "request" { &sent.request } else { &sent.response };
            let (body, length) = (rig::body(message), message["body_bytes"].as_u64().unwrap() as usize);
            if length != sent.len() && message["complete"] == true {
                continue;
            }
            let mut missing = vec![false; body.len()];
            for hole in message["holes"].as_array().unwrap() {
                let begin = (hole["offset"].as_u64().unwrap() as usize).min(missing.len());
                let length = hole["bytes"].as_u64().map_or(usize::MAX, |length| length as usize);
                let end = begin.saturating_add(length).min(missing.len());
                missing[begin..end].fill(true);
            }
            for (at, byte) in body.iter().enumerate().filter(|(at, _)| !missing[*at]) {
                assert_eq!(Some(byte), sent.get(at), "seed {seed}: {kind} {target} at byte {at}");
                shown += 1;
            }
        }
    }
    shown
}

/// A forger repeats payload with other bytes, before the real packet and after it: the real bytes are shown, as only
/// they are authentic, and both copies are named.
#[test]
fn forged_copies_are_named_and_the_authentic_one_is_shown() {
    let Some(recorded) = recorded() else { return };
    let seed = recorded.packets.len() as u64;
    println!("seed {seed}");
    let (mut random, mut forged) = (Random(seed), 0);
    let mut packets = Vec::new();
    let mut seen: BTreeMap<u16, usize> = BTreeMap::new();
    for packet in &recorded.packets {
        let (Some(port), Some((begin, length))) =
            (client_port(&packet.1, &recorded.sessions), payload_of(&packet.1))
        else {
            packets.push(packet.clone());
            continue;
        };
        let count = seen.entry(port).or_default();
        *count += usize::from(length > 0);
        if length < 100 || *count < 8 || random.below(20) > 0 {
            packets.push(packet.clone());
            continue;
        }
        forged += 1;
        let mut copy = packet.clone();
        copy.1[begin + random.below(length)] ^= 0x55;
        let is_first = random.below(2) == 0;
        packets.extend(if is_first { [copy, packet.clone()] } else { [packet.clone(), copy] });
    }
    let path = recorded.capture("forged.pcap", &packets);
    let played = recorded.play(&[&path], &[]);
    assert_whole(&played, &recorded.sessions);
    let ambiguous: usize = played.values().map(|session| session.ambiguous().len()).sum();
    let decided: usize = played.values().map(|session| session.notes("other_copy_used")).sum();
    assert!(forged > 30 && ambiguous == forged && decided > 10, "{forged} {ambiguous} {decided}");
}

/// Packets of two Recorders: each has a part, some have both, and long packets are fragments in one of them.
#[test]
fn packets_of_two_recorders_are_joined() {
    let Some(recorded) = recorded() else { return };
    let mut random = Random(5);
    let mut parts = [Vec::new(), Vec::new()];
    let mut both = 0;
    for (number, packet) in recorded.packets.iter().enumerate() {
        let place = random.below(2);
        let pieces = if random.below(4) == 0 {
            fragments(&packet.1, number as u16, 512)
        } else {
            vec![packet.1.clone()]
        };
        for piece in pieces {
            parts[place].push((packet.0, piece));
        }
        if random.below(10) == 0 {
            parts[1 - place].push(packet.clone());
            both += 1;
        }
    }
    let stores = [0, 1].map(|number| {
        let file = recorded.capture(&format!("part-{number}.pcap"), &parts[number]);
        let store = recorded.path(&format!("part-{number}"));
        rig::audit(0, &["record", "--read", &file, "--store", &store, "--json"]);
        store
    });
    let played = recorded.play(&[&stores[0], &stores[1]], &[]);
    assert_whole(&played, &recorded.sessions);
    let twice: u64 = played.values().map(|session| session.report["captured_twice"].as_u64().unwrap()).sum();
    assert!(twice > 0 && twice <= both, "{twice} of {both}");
}

#[test]
fn wrong_secrets_open_nothing() {
    let Some(recorded) = recorded() else { return };
    let keys = std::fs::read_to_string(recorded.keys()).unwrap();
    let wrong: String = keys
        .lines()
        .map(|line| {
            let (head, secret) = line.rsplit_once(' ').unwrap_or((line, ""));
            format!(
                "{head} {}\n",
                secret.chars().map(|c| if c == '0' { '1' } else { '0' }).collect::<String>()
            )
        })
        .collect();
    let path = recorded.path("wrong.log");
    std::fs::write(&path, wrong).unwrap();
    let (out, _) =
        rig::audit(0, &["play", &recorded.store(), "--secrets", &path, "--json", "--limit", "1000"]);
    for session in rig::played(&out).values() {
        assert!(session.messages("request").is_empty() && session.notes("decryption_ends") >= 1);
    }
    let (out, _) = rig::audit(0, &["play", &recorded.store(), "--limit", "1"]);
    assert!(out.contains("decryption ends: no secrets of this connection"), "{out}");
}
