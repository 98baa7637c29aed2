//! Seeds of audited capture: a store's records and files, the Master's log, messages between both, foreign captures,
//! and packets of a connection. Keys and signatures are those of the examples of C2SP.

use evergate_evidence::capture_file::{CaptureDecoder, Step};
use evergate_evidence::connection_record::{ConnectionRecord, Counts, Endpoints, TlsHellos};
use evergate_evidence::deletion;
use evergate_evidence::disclosure::{DestroyOrder, Grant, Outcome, OutcomeKind, Request, Scope};
use evergate_evidence::entry::{Deletion, Enrolment, Entry, Event, Hold, MasterEvent, Timestamp};
use evergate_evidence::envelope::{Aad, EPOCH_NS, Envelope};
use evergate_evidence::epochs::{EpochFile, EpochKeys};
use evergate_evidence::feed::{FeedHello, FeedSender, FromFeed, ToFeed};
use evergate_evidence::mark::{Mark, MarkKind, SegmentBegin, SegmentEnd};
use evergate_evidence::record::{Body, Direction, Gap, GapReason, Packet, Record, RequestLeg, RequestRecord};
use evergate_evidence::secrets::{Label, SecretList};
use evergate_evidence::segment::SegmentEncoder;
use evergate_evidence::statement::{ChainEnd, Counters, Partition, Span, Statement};
use evergate_evidence::submission::{Hello, Refusal, RefusalCode, ToMaster, ToRecorder, Welcome};
use evergate_evidence::tile::put_entry;
use evergate_evidence::verify::{BatchProof, EventReceipt, ReceiptFrame};
use evergate_fuzz::input::{join, put_chunk};
use std::net::SocketAddr;

const VKEY: &str = "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW";
const SIGNATURE_LINE: &str = "\u{2014} PeterNeumann x08go/ZJkuBS9UG/SffcvIAQxVBtiFupLLr8pAcElZInNIuGUgYN1FFYC2pZSNXg\
    KvqfqdngotpRZb6KE6RyyBwJnAM=";
const CHECKPOINT: &str = "example.com/behind-the-sofa\n20852163\nCsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=\n\n\
    \u{2014} example.com/behind-the-sofa Az3grlgtzPICa5OS8npVmf1Myq/5IZniMp+ZJurmRDeOoRDe4URYN7u5/Zhcyv2q1gGzGku9nTo\
    +zyWE+xeMcTOAYQ8=\n";
/// Sizes of the windows in which a file arrives.
const WINDOWS: [u8; 4] = [7, 60, 3, 200];

pub(crate) fn all(put: &impl Fn(&str, &str, &[u8])) {
    records(put);
    notes(put);
    entries(put);
    envelopes(put);
    messages(put);
    captures(put);
    packets(put);
    sessions(put);
}

/// Recorded sessions, packet by packet.
fn sessions(put: &impl Fn(&str, &str, &[u8])) {
    for (name, capture) in [
        ("tls13", &include_bytes!("../../proto/player/tests/fixture/tls13.pcap")[..]),
        ("tls12", include_bytes!("../../proto/player/tests/fixture/tls12.pcap")),
    ] {
        let (mut decoder, mut at, mut input) = (CaptureDecoder::default(), 0, vec![3]);
        loop {
            match decoder.read(&capture[at..]).expect("a capture") {
                Step::Need(_) => break,
                Step::Skip(length) => at += length,
                Step::Packet(length, packet) => {
                    at += length;
                    put_chunk(&[&[0], packet.data].concat(), &mut input);
                }
            }
        }
        put("player", name, &input);
    }
}

fn begin() -> SegmentBegin {
    SegmentBegin {
        filter: "part 0 of 2".into(),
        interfaces: vec!["eth0".into()],
        link_type: 1,
        next_connection: 1,
        recorder: "ab".repeat(32),
        segment: 3,
        snaplen: 0,
    }
}

fn packet(data: &[u8], packet_seq: u64) -> Packet<'_> {
    let (time_ns, wire_bytes, direction) = (1 << 60, data.len() as u32, Direction::ToServer);
    Packet { time_ns, wire_bytes, connection: 1, packet_seq, direction, flags: 8, data }
}

fn connection() -> ConnectionRecord {
    let [client, server] = ["10.0.0.1:50000", "[fd00::2]:443"].map(|end| end.parse().expect("an address"));
    ConnectionRecord {
        connection: 1,
        is_final: true,
        endpoints: Endpoints { client, server, vlan: 5 },
        counts: Counts { first_ns: 1 << 60, last_ns: 1 << 61, packets: 2, ..Counts::default() },
        tls: TlsHellos {
            client_random: [1; 32],
            server_random: [2; 32],
            version: 0x304,
            suite: 0x1301,
            sni: b"a.test".to_vec(),
            alpn: b"h2".to_vec(),
        },
    }
}

/// One body of each kind; together a segment.
fn bodies() -> Vec<(&'static str, Body<'static>)> {
    let gap = Gap { reason: GapReason::Ring, exact: true, count: 5, from_ns: 1, to_ns: 2 };
    let request = RequestRecord {
        switch_connection: 4,
        index: 1,
        time_ns: 1 << 60,
        client_random: [1; 32],
        client: RequestLeg {
            peer: SocketAddr::from(([10, 0, 0, 1], 50_000)),
            local: SocketAddr::from(([10, 0, 0, 2], 443)),
        },
        server: None,
        status: 200,
        flags: 0,
        id: b"r-1".into(),
        given_id: b"".into(),
    };
    let end = SegmentEnd { dropped: 5, missed: 0, received: 9, time_ns: (1u64 << 60).to_string() };
    vec![
        ("begin", Body::Mark(Mark::new(MarkKind::SegmentBegins, &begin()))),
        ("packet", Body::Packet(packet(b"first packet", 1))),
        ("gap", Body::Gap(gap)),
        ("second_packet", Body::Packet(packet(b"", 2))),
        ("envelope", Body::Envelope(b"opaque".into())),
        ("connection", Body::Connection(Box::new(connection()))),
        ("request", Body::Request(request)),
        ("end", Body::Mark(Mark::new(MarkKind::SegmentEnds, &end))),
    ]
}

fn segment() -> Vec<u8> {
    let (mut encoder, mut bytes) = (SegmentEncoder::default(), Vec::new());
    for (seq, (_, body)) in (1..).zip(bodies()) {
        encoder.push(&Record { seq, interface: 0, body }, &mut bytes);
    }
    bytes
}

fn records(put: &impl Fn(&str, &str, &[u8])) {
    for (seq, (name, body)) in (1..).zip(bodies()) {
        if let Body::Mark(mark) = &body {
            let what = u8::from(mark.what == MarkKind::SegmentEnds);
            put("evidence_records", &format!("mark_{name}"), &join(&[2, what], mark.json.as_bytes()));
        }
        let mut bytes = Vec::new();
        Record { seq, interface: 0, body }.encode(&mut bytes);
        put("evidence_records", name, &join(&[0], &bytes));
        put("evidence_records", &format!("framed_{name}"), &join(&[1, bytes[0] - 1], &bytes[16..]));
    }
    put("evidence_records", "segment", &join(&[&[3], &WINDOWS[..]].concat(), &segment()));
}

fn receipt() -> String {
    format!(
        "c2sp.org/tlog-proof@v1\nindex 73894\nAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n\n{CHECKPOINT}"
    )
}

fn notes(put: &impl Fn(&str, &str, &[u8])) {
    let trust = format!(
        "{{\"logs\":[\"{VKEY}\"],\"witnesses\":[],\"witness_threshold\":0,\"tsa_certificates\":[\"t.pem\"],\
        \"trial_keys\":[\"c74f20a3\"]}}"
    );
    let note = format!("text\n\nmore\n\n{SIGNATURE_LINE}\n");
    let texts = [
        ("note", note),
        ("vkey", VKEY.to_owned()),
        ("checkpoint", CHECKPOINT.to_owned()),
        ("receipt", receipt()),
        ("base64", "Zm9vYg==".to_owned()),
        ("line", SIGNATURE_LINE.to_owned()),
        ("trust", trust),
    ];
    for (format, (name, text)) in (0..).zip(texts) {
        put("evidence_notes", name, &[&[format], text.as_bytes()].concat());
    }
}

fn statement(previous: Option<&Statement>) -> Statement {
    let end = previous.map(ChainEnd::from);
    let (batch, last_seq) = end.map_or((0, 0), |end| (end.batch, end.last_seq));
    Statement {
        received_ms: 0,
        recorder: [0xab; 32],
        batch: batch + 1,
        span: Span { first_seq: last_seq + 1, last_seq: last_seq + 9, first_ns: 1 << 60, last_ns: 1 << 60 },
        packets: 2,
        packet_bytes: 12,
        root: [7; 32],
        previous: end.map_or([0; 32], |end| end.link),
        counters: Counters { seen: 9, written: 4, dropped: 5, if_rx: 9, if_missed: 0 },
        partition: Partition::default(),
        emergency_ms: 0,
    }
}

fn deleted() -> Deletion {
    Deletion {
        recorder: [0xab; 32],
        segment: 6,
        bytes: 9,
        sha256: [0xcd; 32],
        first_seq: 3,
        last_seq: 5,
        rule: "older than 30 days".into(),
    }
}

fn request() -> Request {
    Request {
        connection: 7,
        client_random: [1; 32],
        server_random: [2; 32],
        epoch: 497_000,
        recorder: [0xab; 32],
        recipient: [4; 65],
        scope: Scope::Connection,
        with_credentials: false,
        reason: "fraud report".into(),
        reference: "case-12".into(),
        requester: "alice".into(),
        created_s: 1_795_000_000,
        expires_s: 1_795_086_400,
        nonce: [9; 16],
    }
}

fn outcome() -> Outcome {
    Outcome {
        kind: OutcomeKind::Refused,
        request: [5; 32],
        nonce: [9; 16],
        index: 3,
        grant: [0; 32],
        reason: "expired: the request has expired".into(),
    }
}

fn policy() -> String {
    format!(
        "evergate-audit/policy@v1\nversion 1\nthreshold 1\nthreshold-beyond 0\nper-day 20\ndays 7\nscope connection\n\
         credentials redact\nmember peter both {VKEY}\n"
    )
}

fn epoch_keys() -> EpochKeys {
    EpochKeys { epoch: 497_000, inner: [4; 65], outer: [4; 65] }
}

fn events() -> [(&'static str, Event); 10] {
    let recorder = [0xab; 32];
    let hold = Hold {
        is_set: true,
        recorder,
        hold: 1,
        from_ns: 1,
        to_ns: u64::MAX,
        query: "--sni a.test".into(),
        reason: "case-1: asked".into(),
    };
    let master = MasterEvent { is_key_change: true, vkey: VKEY.into(), previous: CHECKPOINT.into() };
    [
        ("enrolment", Event::Enrolment(Enrolment { is_enrolled: true, recorder, name: "edge-1".into() })),
        ("deletion", Event::Deletion(deleted())),
        ("hold", Event::Hold(hold)),
        ("master", Event::Master(master)),
        ("disclosure", Event::DisclosureRequest(request().to_text())),
        ("disclosure_done", Event::DisclosureDone(outcome())),
        ("policy", Event::Policy(policy())),
        ("epoch_keys", Event::EpochKeys(epoch_keys())),
        ("epoch_destroyed", Event::EpochDestroyed(epoch_keys().destroyed())),
        ("timestamp", Event::Timestamp(Timestamp { size: 9, imprint: [3; 32], token: vec![0x30, 0] })),
    ]
}

fn entries(put: &impl Fn(&str, &str, &[u8])) {
    let put = |name: &str, choices: &[u8], bytes: &[u8]| put("evidence_entries", name, &join(choices, bytes));
    let first = statement(None);
    let second = statement(Some(&first));
    let logged = Statement { received_ms: 1_795_000_000_000, ..first.clone() };
    put("entry_statement", &[0], &Entry::Statement(logged.clone()).encode());
    for (name, event) in events() {
        put(&format!("entry_{name}"), &[0], &Entry::Event(1_795_000_000_000, event).encode());
    }
    put("statements", &[1], &[first.encode(), second.encode()].concat());
    put("tile", &[5], b"tile/0/x001/x234/067");
    put("tile_part", &[5], b"tile/entries/x001/000.p/17");
    let mut bundle = Vec::new();
    put_entry(&mut bundle, b"one").expect("a short entry");
    put_entry(&mut bundle, &logged.encode()).expect("a short entry");
    put("bundle", &[6, 2], &bundle);
    put("hashes", &[6, 2], &[5; 64]);
    put("deletion", &[7], deletion::to_json(&deleted()).as_bytes());
    let event = Entry::Event(1, Event::Deletion(deleted())).encode();
    let (statement, proof) = (logged.encode(), receipt());
    let (mut batch, mut outbox) = (Vec::new(), Vec::new());
    ReceiptFrame { statement: &statement, proof: proof.as_bytes() }.encode(&mut batch);
    EventReceipt { entry: &event, proof: proof.as_bytes() }.encode(&mut outbox);
    put("receipt_batch", &[8], &batch[4..]);
    put("receipt_event", &[8], &outbox);
    let mut batches = Vec::new();
    BatchProof { statement: logged, wanted: vec![0, 4], hashes: vec![[1; 32], [2; 32]] }.encode(&mut batches);
    BatchProof { statement: second, wanted: vec![8], hashes: Vec::new() }.encode(&mut batches);
    put("batches", &[9], &batches);
    put("proofs", &[10], &[&[4; 64][..], &0u64.to_be_bytes(), &4u64.to_be_bytes()].concat());
}

fn envelopes(put: &impl Fn(&str, &str, &[u8])) {
    let put = |name: &str, format: u8, bytes: &[u8]| {
        put("evidence_envelopes", name, &[&[format], bytes].concat());
    };
    let [client, local] = ["10.0.0.1:50000", "[fd00::2]:443"].map(|end| end.parse().expect("an address"));
    let aad = Aad {
        switch: [1; 32],
        connection: 7,
        born_ns: 497_000 * EPOCH_NS,
        client,
        local,
        client_random: [2; 32],
        server_random: [3; 32],
        tls_version: 0x304,
        cipher_suite: 0x1301,
        feed_number: 9,
        sni: b"a.test",
    };
    let sealed = [5; 240];
    let envelope = Envelope { aad, index: 3, enc_inner: [4; 65], enc_outer: [4; 65], sealed: &sealed };
    put("envelope", 0, &envelope.encode());
    for (name, labels) in [("tls12", &Label::ALL[..1]), ("tls13", &Label::ALL[1..])] {
        let mut list = SecretList::default();
        labels.iter().for_each(|label| list.set(*label, &[6; 48]).expect("a secret"));
        put(name, 1, &list.encode());
    }
    let keys = [epoch_keys(), EpochKeys { epoch: 497_001, ..epoch_keys() }];
    let signed = |text: String| format!("{text}\n{SIGNATURE_LINE}\n");
    let requester = Request { requester: "PeterNeumann".into(), ..request() };
    put("request", 3, signed(requester.to_text()).as_bytes());
    put("policy", 4, policy().as_bytes());
    let order = DestroyOrder { epoch: 5, reason: "court".into(), created_s: 1, expires_s: 2 };
    put("order", 5, signed(order.to_text()).as_bytes());
    let hello = FeedHello { sender: FeedSender { switch: [1; 32], run: 2 }, next: 3 };
    put("feed_hello", 7, &ToFeed::Hello(hello).to_frame()[4..]);
    put("feed_envelope", 7, &ToFeed::Envelope(4, &envelope.encode()).to_frame()[4..]);
    put("feed_acknowledged", 8, &FromFeed::Acknowledged(4).to_frame()[4..]);
    put("feed_refused", 8, &FromFeed::Refused("no".into()).to_frame()[4..]);
    let grant = Grant {
        index: 5,
        received_ms: 9,
        note: signed(request().to_text()),
        proof: receipt().into_bytes(),
        envelope: envelope.encode(),
        enc: [4; 65],
        sealed: vec![7; 216],
    };
    put("grant", 6, &grant.encode());
    put("epochs", 2, EpochFile::new(keys.to_vec()).expect("ascending epochs").to_text().as_bytes());
}

fn messages(put: &impl Fn(&str, &str, &[u8])) {
    let put = |name: &str, choices: &[u8], bytes: &[u8]| put("evidence_entries", name, &join(choices, bytes));
    let hello = Hello { last_batch: 2, acknowledged: 1, origin: "a/2026".into() };
    let event = Event::Deletion(deleted());
    let to_master = [
        ("hello", ToMaster::Hello(hello)),
        ("to_master_statement", ToMaster::Statement(statement(None))),
        ("to_master_event", ToMaster::Event { request: 1, event }),
        (
            "disclose",
            ToMaster::Disclose { request: 1, seen: 9, note: b"note".to_vec(), envelope: vec![1; 60] },
        ),
        ("report", ToMaster::Report { request: 2, outcome: outcome() }),
        ("announce", ToMaster::Announce { request: 3, epoch: 497_000, inner: [4; 65] }),
        ("destroy", ToMaster::Destroy { request: 4, epoch: 497_000, order: Vec::new() }),
    ];
    let mut stream = Vec::new();
    for (name, message) in to_master {
        let frame = message.to_frame();
        put(name, &[2], &frame[4..]);
        stream.extend_from_slice(&frame);
    }
    put("stream", &[&[4], &WINDOWS[..]].concat(), &stream);
    let (vkey, proof) = (VKEY.to_owned(), receipt().into_bytes());
    let welcome =
        Welcome { origin: "a/2026".into(), vkey, last_batch: 1, last_hash: [9; 32], last_log_index: 4 };
    let to_recorder = [
        ("welcome", ToRecorder::Welcome(welcome)),
        ("receipt", ToRecorder::Receipt { batch: 1, received_ms: 5, proof: proof.clone() }),
        ("refused", ToRecorder::Refused(Refusal { code: RefusalCode::Full, text: "full".into() })),
        (
            "opened",
            ToRecorder::Opened {
                request: 1,
                received_ms: 5,
                inner: vec![1; 60],
                proof: proof.clone(),
                consistency: vec![[7; 32]],
            },
        ),
        ("denied", ToRecorder::Denied { request: 1, name: "later".into(), text: "one a second".into() }),
        ("logged", ToRecorder::Logged { request: 1, entry: vec![1; 20], proof: proof.clone() }),
        ("event_receipt", ToRecorder::EventReceipt { request: 1, received_ms: 5, proof }),
    ];
    for (name, message) in to_recorder {
        put(name, &[3], &message.to_frame()[4..]);
    }
}

/// A word of a capture in its byte order.
fn word(is_big: bool, value: u32) -> [u8; 4] {
    if is_big { value.to_be_bytes() } else { value.to_le_bytes() }
}

fn pcap(is_big: bool, magic: u32) -> Vec<u8> {
    let version = if is_big { [0, 2, 0, 4] } else { [2, 0, 4, 0] };
    let head = [0, 0, 65_535, 1].map(|value| word(is_big, value)).concat();
    let packet = [1_795_000_000, 9, 5, 60].map(|value| word(is_big, value)).concat();
    [&word(is_big, magic)[..], &version, &head, &packet, b"hello", &packet, b"again"].concat()
}

fn block(is_big: bool, kind: u32, content: &[u8]) -> Vec<u8> {
    let total = word(is_big, content.len() as u32 + 12);
    [&word(is_big, kind)[..], &total, content, &total].concat()
}

/// Section, interface with 2^-10 s and an offset, and a packet of each type of block.
fn pcapng(is_big: bool) -> Vec<u8> {
    let words = |values: &[u32]| values.iter().flat_map(|value| word(is_big, *value)).collect::<Vec<u8>>();
    let halves = |values: &[u16]| {
        let bytes = |value: &u16| if is_big { value.to_be_bytes() } else { value.to_le_bytes() };
        values.iter().flat_map(bytes).collect::<Vec<u8>>()
    };
    let section =
        [words(&[0x1a2b_3c4d]), halves(&[1, if is_big { 0 } else { 2 }]), words(&[u32::MAX; 2])].concat();
    let offset = if is_big { 100u64.to_be_bytes() } else { 100u64.to_le_bytes() };
    let interface = [
        halves(&[1, 0, 0, 0, 2, 2]),
        b"lo\0\0".to_vec(),
        halves(&[9, 1]),
        vec![0x8a, 0, 0, 0],
        halves(&[14, 8]),
        offset.to_vec(),
        halves(&[0, 0]),
    ];
    let enhanced = [words(&[0, 0, 2560, 5, 60]), b"hello\0\0\0".to_vec()].concat();
    let simple = [words(&[5]), b"hello\0\0\0".to_vec()].concat();
    let obsolete = [halves(&[0, 9]), words(&[0, 1024, 5, 60]), b"hello\0\0\0".to_vec()].concat();
    [
        block(is_big, 0x0a0d_0d0a, &section),
        block(is_big, 1, &interface.concat()),
        block(is_big, 77, &words(&[5])),
        block(is_big, 6, &enhanced),
        block(is_big, 3, &simple),
        block(is_big, 2, &obsolete),
    ]
    .concat()
}

fn captures(put: &impl Fn(&str, &str, &[u8])) {
    let files = [
        ("pcap_micro", pcap(false, 0xa1b2_c3d4)),
        ("pcap_nano_big", pcap(true, 0xa1b2_3c4d)),
        ("pcapng", pcapng(false)),
        ("pcapng_big", pcapng(true)),
        ("segment", segment()),
    ];
    for (name, bytes) in files {
        put("capture_files", name, &join(&WINDOWS, &bytes));
    }
}

/// Hello of a client with a host name and an application protocol, in one record.
fn client_hello() -> Vec<u8> {
    let sni = [&[0, 0, 0, 11, 0, 9, 0, 0, 6][..], b"a.test"].concat();
    let alpn = [&[0, 16, 0, 5, 0, 3, 2][..], b"h2"].concat();
    let versions = [0, 43, 0, 3, 2, 3, 4];
    let extensions = [&sni[..], &alpn, &versions].concat();
    let length = (extensions.len() as u16).to_be_bytes();
    hello(1, &[&[3, 3][..], &[1; 32], &[0, 0, 2, 0x13, 1, 1, 0], &length, &extensions].concat())
}

fn server_hello() -> Vec<u8> {
    hello(2, &[&[3, 3][..], &[2; 32], &[0, 0x13, 1, 0, 0, 6, 0, 43, 0, 2, 3, 4]].concat())
}

fn hello(kind: u8, body: &[u8]) -> Vec<u8> {
    let [_, a, b, c] = (body.len() as u32).to_be_bytes();
    let record = (body.len() as u16 + 4).to_be_bytes();
    [&[22, 3, 1][..], &record, &[kind, a, b, c], body].concat()
}

/// A connection with both hellos, the client's in two segments out of order, over IPv4 and over tagged IPv6; then
/// frames in full.
fn packets(put: &impl Fn(&str, &str, &[u8])) {
    const SERVER: u8 = 2;
    let (client, server) = (client_hello(), server_hello());
    let (first, second) = client.split_at(40);
    for (name, how, version) in [("ipv4", 0x80, 0), ("tagged_ipv6", 0x84, 1)] {
        let steps: [(u8, u8, u16, &[u8]); 8] = [
            (0, 2, 9, b""),
            (SERVER, 18, 99, b""),
            (0, 24, 50, second),
            (0, 24, 10, first),
            (SERVER, 24, 100, &server),
            (0, 17, 200, b""),
            (SERVER, 17, 300, b""),
            (8, 2, 9, b""),
        ];
        let mut input = vec![0xff];
        for (side, flags, seq, payload) in steps {
            let [high, low] = seq.to_be_bytes();
            put_chunk(&[&[how | side, 20, flags, high, low, version], payload].concat(), &mut input);
        }
        put_chunk(&[0x80, 36, 16, 0, 0, 0], &mut input);
        put("packets", name, &input);
    }
    let mut input = vec![0xff];
    for flags in [2, 4, 4] {
        put_chunk(&[0x80, 63, flags, 0, 9, 0], &mut input);
    }
    put("packets", "last_time", &input);
    let mut input = vec![0x05];
    let ipv4 = [&[0x45, 0, 0, 43, 0, 0, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2][..], &tcp()].concat();
    let fragment =
        [&[0x45, 0, 0, 43, 0, 0, 0x20, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2][..], &tcp()].concat();
    let options = [6, 0, 0, 0, 0, 0, 0, 0];
    let ipv6 = [&[0x60, 0, 0, 0, 0, 31, 0, 64][..], &[1; 32], &options, &tcp()].concat();
    let frames: [(&[u8], &[u8]); 4] = [
        (&[8, 0], &ipv4),
        (&[0x88, 0xa8, 0, 7, 0x81, 0, 0, 9, 8, 0], &fragment),
        (&[0x86, 0xdd], &ipv6),
        (&[8, 6], &[0, 1]),
    ];
    for (kind, content) in frames {
        for how in [0x21, 0x45] {
            put_chunk(&[&[how, 3, 0, 0, 0, 0][..], &[2; 12], kind, content].concat(), &mut input);
        }
    }
    put("packets", "frames", &input);
}

fn tcp() -> Vec<u8> {
    [&[0xc3, 0x50, 1, 0xbb, 0, 0, 0, 9, 0, 0, 0, 0, 0x50, 24, 0, 0, 0, 0, 0, 0][..], b"abc"].concat()
}
