//! Feeds of switches: messages become records, and acknowledgements wait for the disk.

use crate::rig::{Rig, rig};
use evergate_audit::segment_file::SegmentFile;
use evergate_audit::store::Store;
use evergate_evidence::envelope::{Aad, Envelope};
use evergate_evidence::feed::{Continuation, FeedHello, FeedSender, FromFeed, ToFeed};
use evergate_evidence::mark::MarkKind;
use evergate_evidence::record::{Body, GapReason, RequestLeg, RequestRecord};
use evergate_submission::{FeedAddress, FeedChannel, Identity};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(10);

fn envelope(number: u32) -> Vec<u8> {
    let (client, local) = ("10.0.0.1:50000".parse().unwrap(), "10.0.0.2:443".parse().unwrap());
    let aad = Aad {
        switch: [5; 32],
        connection: 77,
        born_ns: 1_800_000_000_000_000_000,
        client,
        local,
        client_random: [1; 32],
        server_random: [2; 32],
        tls_version: 0x0304,
        cipher_suite: 0x1301,
        feed_number: number,
        sni: b"site.example",
    };
    let point = [4; 65];
    Envelope { aad, index: 0, enc_inner: point, enc_outer: point, sealed: &[7; 200] }.encode()
}

fn request() -> RequestRecord<'static> {
    let leg =
        |peer: &str, local: &str| RequestLeg { peer: peer.parse().unwrap(), local: local.parse().unwrap() };
    RequestRecord {
        switch_connection: 77,
        index: 0,
        time_ns: 1_800_000_000_000_000_001,
        client_random: [1; 32],
        client: leg("10.0.0.1:50000", "10.0.0.2:443"),
        server: Some(leg("10.0.1.1:80", "10.0.0.2:40000")),
        status: 200,
        flags: 0,
        id: b"000000000000004d00000000".into(),
        given_id: b"".into(),
    }
}

/// Sends the frames, and answers the highest acknowledged number once it is `last`.
fn feed(channel: &mut FeedChannel, frames: &[Vec<u8>], last: u64) {
    channel.send(&frames.concat()).unwrap();
    let begin = Instant::now();
    loop {
        assert!(begin.elapsed() < LIMIT, "no acknowledgement of {last}");
        let Some(frame) = channel.receive(Duration::from_millis(50)).unwrap() else { continue };
        match FromFeed::decode(&frame).unwrap() {
            FromFeed::Acknowledged(number) if number == last => return,
            FromFeed::Acknowledged(number) => assert!(number < last, "{number}"),
            FromFeed::Refused(reason) => panic!("refused: {reason}"),
        }
    }
}

fn hello(switch: [u8; 32], next: u64) -> Vec<u8> {
    ToFeed::Hello(FeedHello { sender: FeedSender { switch, run: 9 }, next }).to_frame()
}

/// What the store has of feeds, in order: a word for each record.
fn fed(rig: &Rig) -> Vec<String> {
    let word = |body: &Body<'_>| match body {
        Body::Envelope(bytes) => {
            Some(format!("envelope {}", Envelope::decode(bytes).unwrap().aad.feed_number))
        }
        Body::Request(request) => Some(format!("request {}", String::from_utf8_lossy(&request.id))),
        Body::Gap(gap) if gap.reason == GapReason::Feed => Some(format!("lost {}", gap.count)),
        Body::Mark(mark) if mark.what == MarkKind::SwitchContinued => Some("continued".to_owned()),
        _ => None,
    };
    let mut words = Vec::new();
    for segment in Store::at(&rig.store()).segments().unwrap() {
        let mut file = SegmentFile::open(&segment.path).unwrap();
        while let Some(located) = file.read().unwrap() {
            words.extend(word(&located.record.body));
        }
    }
    words
}

#[test]
fn messages_become_records_in_order_and_losses_gaps() {
    let Some(rig) = rig() else { return };
    let (socket, master) = (rig.folder.join("feed.sock"), rig.master());
    let options = [&["--feed", socket.to_str().unwrap()], &master.options()[..]].concat();
    let recorder = rig.record(&options);
    let address = FeedAddress::Unix(socket.clone());
    let mut channel = FeedChannel::connect(&address, LIMIT).unwrap();
    let continued = Continuation {
        connection: 77,
        client_random: [1; 32],
        time_ns: 5,
        from_client: (0, 3),
        to_client: (1, 4),
    };
    let first = ToFeed::Envelope(1, &envelope(1)).to_frame();
    feed(&mut channel, &[hello([5; 32], 1), first.clone(), ToFeed::Request(2, request()).to_frame()], 2);
    drop(channel);
    // The switch did not see the acknowledgement, then dropped three messages.
    let mut channel = FeedChannel::connect(&address, LIMIT).unwrap();
    let later = ToFeed::Continued(6, continued).to_frame();
    feed(&mut channel, &[hello([5; 32], 1), first, later], 6);
    recorder.stop();
    let expected = ["envelope 1", "request 000000000000004d00000000", "lost 3", "continued"];
    assert_eq!(fed(&rig), expected);
    let report = rig.verify();
    assert!(report.ok, "{:?}", report.findings);
}

#[test]
fn acknowledged_messages_survive_a_kill() {
    let Some(rig) = rig() else { return };
    let (socket, master) = (rig.folder.join("feed.sock"), rig.master());
    let options = [&["--feed", socket.to_str().unwrap()], &master.options()[..]].concat();
    let address = FeedAddress::Unix(socket.clone());
    for round in 0..5 {
        let recorder = rig.record(&options);
        let mut channel = FeedChannel::connect(&address, LIMIT).unwrap();
        let (first, last) = (round * 10 + 1, round * 10 + 10);
        let frames =
            (first..=last).map(|number| ToFeed::Envelope(number, &envelope(number as u32)).to_frame());
        let frames: Vec<_> = std::iter::once(hello([5; 32], first)).chain(frames).collect();
        feed(&mut channel, &frames, last);
        recorder.kill();
    }
    rig.record(&options).stop();
    assert_eq!(fed(&rig), (1..=50).map(|number| format!("envelope {number}")).collect::<Vec<_>>());
    let report = rig.verify();
    assert!(report.ok, "{:?}", report.findings);
}

#[test]
fn tls_feed_admits_only_known_switches_under_their_own_id() {
    let Some(rig) = rig() else { return };
    let identity = || {
        let (certificate, key) = Identity::generate("switch").unwrap();
        Identity::parse(certificate.as_bytes(), key.as_bytes()).unwrap()
    };
    let (known, unknown) = (identity(), identity());
    let id = rig.run(0, &["identity", "--store", rig.store().to_str().unwrap()]).0;
    let recorder_id = evergate_submission::parse_id(id.trim()).unwrap();
    let switch = evergate_submission::id_text(&known.id());
    let recorder = rig.record(&["--feed", "127.0.0.1:7444", "--feed-switch", &switch]);
    let own = known.id();
    rig.receiver.run(move || {
        let connect = |identity: &Identity| {
            FeedChannel::connect(
                &FeedAddress::Tls("127.0.0.1:7444".into(), identity.clone(), recorder_id),
                LIMIT,
            )
        };
        let mut channel = connect(&known).unwrap();
        feed(&mut channel, &[hello(own, 1), ToFeed::Envelope(1, &envelope(1)).to_frame()], 1);
        // TLS 1.3: the client learns of the refusal with its first read.
        let refused = connect(&unknown).and_then(|mut channel| channel.receive(LIMIT));
        assert!(refused.is_err(), "{refused:?}");
        let mut channel = connect(&known).unwrap();
        channel.send(&hello([5; 32], 1)).unwrap();
        let answer = channel.receive(LIMIT).unwrap().unwrap();
        assert!(matches!(FromFeed::decode(&answer), Ok(FromFeed::Refused(_))));
    });
    recorder.stop();
    assert_eq!(fed(&rig), ["envelope 1"]);
}

#[test]
fn bytes_that_are_no_message_end_one_connection_only() {
    let Some(rig) = rig() else { return };
    let socket = rig.folder.join("feed.sock");
    let recorder = rig.record(&["--feed", socket.to_str().unwrap()]);
    let address = FeedAddress::Unix(socket);
    let hostile: [&[u8]; 5] = [
        b"\0\0\0\x01\x09",
        b"\xff\xff\xff\xff",
        b"\0\0\0\x02\x01\x07",
        b"\0\0\0\x09\x02\0\0\0\0\0\0\0\x01",
        b"GET / ",
    ];
    for bytes in hostile {
        let mut channel = FeedChannel::connect(&address, LIMIT).unwrap();
        channel.send(bytes).unwrap();
        let mut channel = FeedChannel::connect(&address, LIMIT).unwrap();
        let _ = channel.send(&[&hello([6; 32], 1)[..], bytes].concat());
    }
    let mut channel = FeedChannel::connect(&address, LIMIT).unwrap();
    feed(&mut channel, &[hello([5; 32], 1), ToFeed::Envelope(1, &envelope(1)).to_frame()], 1);
    recorder.stop();
    assert_eq!(fed(&rig), ["envelope 1"]);
}
