//! Sessions in stores with declared losses, and in bundles.

#[path = "../support/mod.rs"]
pub(crate) mod support;

use crate::rig::{Packet, Played, Recorded, audit, client_port, payload_of, recorded};
use evergate_audit::bundle;
use evergate_audit::store::Store;
use evergate_evidence::connection_record::{ConnectionRecord, Counts, Endpoints, TlsHellos};
use evergate_evidence::record::{Body, Direction, Gap, GapReason, Packet as PacketRecord};
use evergate_recorder::frame::{Content, Frame};
use std::path::{Path, PathBuf};
use support::{BEGIN_NS, StoreWriter};

/// The port of a recorded session of TLS 1.3, and its packets.
fn session(recorded: &Recorded) -> (u16, Vec<Packet>) {
    let is_wanted = |port: &&u16| recorded.kinds[*port].0.contains("AES_128");
    let port = *recorded.sessions.keys().find(is_wanted).expect("a session");
    let packets = recorded.packets.iter();
    (
        port,
        packets.filter(|(_, frame)| client_port(frame, &recorded.sessions) == Some(port)).cloned().collect(),
    )
}

/// Writes a store with these packets as connection 1. Where `missing` has a place, the packet is a declared loss.
fn write_store(root: &Path, port: u16, packets: &[Packet], missing: &[usize]) {
    let mut writer = StoreWriter::new(root, 2);
    let (mut seq, mut ends) = (0, None);
    for (place, (_, frame)) in packets.iter().enumerate() {
        let Content::Tcp(segment) = Frame::read(frame).content else { panic!("a segment") };
        let from_client = segment.source.port() == port;
        let (client, server) = match from_client {
            true => (segment.source, segment.destination),
            false => (segment.destination, segment.source),
        };
        ends = Some(Endpoints { client, server, vlan: 0 });
        writer.time_ns += 1_000_000;
        let time_ns = writer.time_ns;
        if missing.contains(&place) {
            let gap =
                Gap { reason: GapReason::Ring, exact: true, count: 1, from_ns: time_ns, to_ns: time_ns };
            writer.push(Body::Gap(gap));
            continue;
        }
        seq += 1;
        writer.push(Body::Packet(PacketRecord {
            time_ns,
            wire_bytes: frame.len() as u32,
            connection: 1,
            packet_seq: seq,
            direction: if from_client { Direction::ToServer } else { Direction::ToClient },
            flags: 0,
            data: frame,
        }));
    }
    let counts = Counts { first_ns: BEGIN_NS, last_ns: writer.time_ns, packets: seq, ..Counts::default() };
    let endpoints = ends.expect("packets");
    let tls = TlsHellos { sni: b"shop.example".to_vec(), client_random: [1; 32], ..TlsHellos::default() };
    writer.push(Body::Connection(Box::new(ConnectionRecord {
        connection: 1,
        is_final: true,
        endpoints,
        counts,
        tls,
    })));
    writer.end_segment();
    writer.finish();
}

fn only(mut sessions: std::collections::BTreeMap<u16, Played>, port: u16) -> Played {
    assert_eq!(sessions.len(), 1);
    sessions.remove(&port).expect("the session")
}

#[test]
fn declared_losses_explain_holes_and_bundles_play() {
    let Some(recorded) = recorded() else { return };
    let (port, packets) = session(recorded);
    let whole: PathBuf = recorded.path("whole-store").into();
    write_store(&whole, port, &packets, &[]);
    let bundle_folder = recorded.path("bundle");
    bundle::write(&Store::at(&whole), 1, Path::new(&bundle_folder))
        .map_err(|failure| failure.message)
        .unwrap();
    let played = only(recorded.play(&[&bundle_folder], &[]), port);
    assert_eq!(played.exchanges(), recorded.sessions[&port]);
    audit(0, &["index", whole.to_str().unwrap()]);
    let played = only(recorded.play(&[whole.to_str().unwrap()], &[]), port);
    assert_eq!(played.exchanges(), recorded.sessions[&port]);

    let is_large = |place: &usize| payload_of(&packets[*place].1).is_some_and(|(_, length)| length > 1000);
    let large: Vec<usize> = (0..packets.len()).filter(is_large).collect();
    let missing = [large[20], large[21], large[60]];
    let lossy = recorded.path("lossy-store");
    write_store(Path::new(&lossy), port, &packets, &missing);
    audit(0, &["index", &lossy]);
    let played = only(recorded.play(&[&lossy], &[]), port);
    let causes: Vec<_> =
        played.holes().iter().map(|hole| hole["cause"].as_str().unwrap().to_owned()).collect();
    // Packets that follow each other are one hole, unless another one lies between.
    assert!((2..=3).contains(&causes.len()), "{}", played.report);
    assert!(causes.iter().all(|cause| cause == "ring"), "{}", played.report);
    let responses = played.messages("response");
    let (sent, shown) = (&recorded.sessions[&port][0].response, crate::rig::body(responses[&0]));
    assert_eq!(shown.len(), sent.len());
    let holes: u64 =
        responses[&0]["holes"].as_array().unwrap().iter().map(|hole| hole["bytes"].as_u64().unwrap()).sum();
    let differing = shown.iter().zip(sent).filter(|(shown, sent)| shown != sent).count() as u64;
    assert!(differing <= holes && holes <= 4 * 16_384, "{differing} {holes}");
}
