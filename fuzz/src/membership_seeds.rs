//! Seeds of messages between nodes: the datagrams of three nodes that become a cluster and lose one, and the frames of
//! a replication channel.

use evergate_base::session::{KeptSession, LearnedSession, Sealed, SessionHash, SessionId};
use evergate_base::{Micros, Unix};
use evergate_fuzz::input::put_chunk;
use evergate_membership::{
    Body, Bucket, ClusterId, Config, Event, Incarnation, KeyId, Keyring, Message, Mode, Node, NodeId, Path,
    Role, Term, ViewId,
};
use evergate_replication::{
    Answer, ConnectionId, ConnectionState, Entry, FRAME_VERSION, Frame, LegFacts, SessionNews,
};
use std::collections::BTreeMap;

/// Most datagrams of each kind in a seed.
const OF_A_KIND: usize = 6;

pub(crate) fn datagrams(put: &impl Fn(&str, &str, &[u8])) {
    for (name, mode) in [("witness", Mode::Witness), ("majority", Mode::Majority)] {
        let node = |id: u8| {
            let config = Config { buckets: 8, mode, ..Config::new(ClusterId(5), NodeId(id), 3) };
            let keys = Keyring::new(KeyId(1), [7; 32]);
            Node::new(config, keys, Incarnation(100 + u64::from(id)), Micros(1_000_000))
                .expect("a sound configuration")
        };
        let mut nodes: Vec<Node> = (0..3).map(node).collect();
        let mut input = vec![u8::from(mode == Mode::Majority)];
        let mut kinds = [0; 6];
        for ms in 0..600u64 {
            let now = Micros(1_000_000 + ms * 1000);
            let living = if ms < 300 { 3 } else { 2 }; // one of them has failed then
            for id in 0..living {
                nodes[id].set_witness(now, now, true);
                nodes[id].handle_timer(now);
                while let Some(event) = nodes[id].poll_event() {
                    if let Event::Role { bucket, role: Role::Backup { term, .. } } = event {
                        nodes[id].handle_stored(bucket, term, 1);
                    }
                }
                while let Some(transmit) = nodes[id].poll_transmit() {
                    let to = usize::from(transmit.to.0);
                    if to == 0 {
                        record(&transmit.bytes, transmit.path, &mut kinds, &mut input);
                    }
                    if to < living {
                        nodes[to].handle_datagram(now, transmit.path, &transmit.bytes);
                    }
                }
            }
        }
        put("membership", name, &input);
    }
}

/// A chunk of the target: the path, the next sequence number of its sender, a small delay, and an answer of the
/// witness.
fn record(datagram: &[u8], path: Path, kinds: &mut [usize; 6], input: &mut Vec<u8>) {
    let message = Message::decode(datagram).expect("a datagram of a node");
    let kind = match message.body {
        Body::Heartbeat(_) => 0,
        Body::Prepare(_) => 1,
        Body::Promise(_) => 2,
        Body::Commit(_) => 3,
        Body::Ops(_) => 4,
        Body::Yield(_) => 5,
    };
    kinds[kind] += 1;
    if kinds[kind] <= OF_A_KIND || kind == 0 && kinds[0] % 60 == 0 {
        let how = 0x80 | 1 << 2 | 2 | u8::from(path == Path::Outside);
        put_chunk(&[&[how], datagram].concat(), input);
    }
}

/// A channel on which a connection with these entries was replicated, entry by entry and again as a whole. Decisions of
/// the backup's node follow.
pub(crate) fn frames(put: &impl Fn(&str, &str, &[u8]), name: &str, entries: &[Entry]) {
    let (connection, bucket) = (ConnectionId(7), Bucket(3));
    let view = ViewId { epoch: 2, proposer: NodeId(1), incarnation: Incarnation(101) };
    let term = Term { view, moves: 0 };
    let facts = LegFacts {
        local: ([203, 0, 113, 10], 443).into(),
        remote: ([198, 51, 100, 7], 50_000).into(),
        sent: 1,
        received: 2,
        acknowledged: 2,
        mss: 1460,
        window_scales: Some((7, 7)),
        sack: true,
        timestamp: Some((5, 6)),
        interface: 0,
        next_hop: [2, 0, 0, 0, 0, 1],
    };
    let legs = BTreeMap::from([(0, facts)]);
    let mut state = ConnectionState::default();
    entries.iter().cloned().for_each(|entry| state.apply(entry));
    let id = SessionId::from([9; 32]);
    let kept = KeptSession { id, until_unix_s: 1 << 31, sealed: Sealed(vec![1, 2, 3]) };
    let hash = SessionHash([3, 4]);
    let entry = LearnedSession { hash, server: 7, expires: Unix(1 << 31) };
    let hello = Frame::Hello {
        version: FRAME_VERSION,
        node: view.proposer,
        incarnation: view.incarnation,
        worker: 0,
        workers: 1,
        clock_ms: 9,
    };
    let mut all = vec![
        hello,
        Frame::Term { bucket, term },
        Frame::Begin { connection, bucket, state: None, legs: legs.clone() },
        Frame::Leg { connection, leg: 1, facts },
    ];
    all.extend(entries.iter().map(|entry| Frame::Entries { connection, entries: vec![entry.clone()] }));
    all.extend([
        Frame::Begin { connection, bucket, state: Some(Box::new(state)), legs },
        Frame::Complete { bucket },
        Frame::Sessions(vec![SessionNews::Kept(kept), SessionNews::Withdrawn(id)]),
        Frame::Sessions(vec![SessionNews::Learned(entry), SessionNews::Forgotten { hash, server: 7 }]),
        Frame::Settings(BTreeMap::from([("mode".to_owned(), "witness".to_owned())])),
        Frame::Clock { clock_ms: 60_009 },
        Frame::End { connection },
    ]);
    let mut input = Vec::new();
    for frame in &all {
        let mut bytes = vec![0];
        frame.encode(&mut bytes).expect("a frame can be written");
        put_chunk(&bytes, &mut input);
        let mut answer = vec![3];
        Answer { frames: 1 }.encode(&mut answer).expect("an answer can be written");
        put_chunk(&answer, &mut input);
    }
    for concluded in [1u8, 0, 2] {
        put_chunk(&[2, concluded, 3, 3, 1], &mut input);
    }
    put("frames", name, &input);
}
