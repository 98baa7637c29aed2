//! Cluster datagrams of another node, under the right key: each is decoded or refused, and equal after a round trip. A
//! node that receives any of them, at any time, keeps its laws, counts refusals, and sends only datagrams that can be
//! decoded.
//!
//! A chunk is a datagram. Its first byte sets the path, the delay, and whether its header gets the next sequence number
//! of a peer. The latter leads mutations past the checks of the header.

#![no_main]

use evergate_base::Micros;
use evergate_fuzz::input::chunks;
use evergate_membership::{
    ClusterId, Config, Event, Header, Incarnation, KeyId, Keyring, Member, Message, Mode, Node, NodeId, Path,
    Rejected, Role, VERSION,
};
use libfuzzer_sys::fuzz_target;

const NODES: u8 = 3;
const BUCKETS: u16 = 8;

fn keys() -> Keyring {
    Keyring::new(KeyId(1), [7; 32])
}

fn member(id: u8) -> Member {
    Member { id: NodeId(id), incarnation: Incarnation(100 + u64::from(id)) }
}

fuzz_target!(|data: &[u8]| {
    let Some((&first, rest)) = data.split_first() else { return };
    let mode = if first & 1 == 0 { Mode::Witness } else { Mode::Majority };
    let config = Config { buckets: BUCKETS, mode, ..Config::new(ClusterId(5), NodeId(0), NODES) };
    let mut now = Micros(1_000_000);
    let mut node = Node::new(config, keys(), member(0).incarnation, now).expect("a sound configuration");
    let mut sequence = 1;
    for chunk in chunks(rest) {
        let Some((&how, bytes)) = chunk.split_first() else { continue };
        now = now + Micros(u64::from(how >> 2 & 15) * 2000);
        let path = if how & 1 == 0 { Path::Inside } else { Path::Outside };
        if how & 0x80 != 0 {
            node.set_witness(now, now, true);
        }
        sequence += 1;
        let datagram = sealed(bytes, (how & 2 != 0).then_some(sequence));
        let refused = refusals(&node);
        node.handle_datagram(now, path, datagram.as_deref().unwrap_or(bytes));
        assert!(datagram.is_some() || refusals(&node) == refused + 1, "what cannot be read is counted once");
        node.handle_timer(now);
        perform(&mut node);
        assert_eq!(node.check_invariants(), Ok(()));
    }
});

fn refusals(node: &Node) -> u64 {
    Rejected::ALL.iter().map(|reason| node.rejected(*reason)).sum()
}

/// The datagram under the right key, if it has a message. With a `sequence` it is the next datagram of another node.
fn sealed(bytes: &[u8], sequence: Option<u64>) -> Option<Vec<u8>> {
    let mut message = Message::decode(bytes).ok()?;
    if let Some(sequence) = sequence {
        let from = 1 + message.header.from.id.0 % (NODES - 1);
        let Header { calm, view, .. } = message.header;
        message.header = Header {
            version: VERSION,
            key: KeyId(1),
            calm,
            cluster: ClusterId(5),
            from: member(from),
            to: member(0),
            view,
            sequence,
        };
    }
    let datagram = message.encode(&keys());
    // Another header may be longer.
    assert!(datagram.is_ok() || sequence.is_some(), "a decoded message has no encoding");
    let datagram = datagram.ok()?;
    assert_eq!(Message::decode(&datagram).as_ref(), Ok(&message));
    Some(datagram)
}

/// Performs events like the agent and the workers, at once.
fn perform(node: &mut Node) {
    while let Some(event) = node.poll_event() {
        if let Event::Role { bucket, role: Role::Backup { term, .. } } = event {
            node.handle_stored(bucket, term, 1);
        }
    }
    while let Some(transmit) = node.poll_transmit() {
        let sent = Message::decode(&transmit.bytes).expect("sent datagrams can be decoded");
        assert_eq!((sent.header.from, sent.header.to.id), (node.me(), transmit.to));
    }
    assert_eq!(node.transmits_dropped(), 0, "more than a queue takes");
}
