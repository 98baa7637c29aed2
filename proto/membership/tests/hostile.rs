//! Bad input: a node counts every unusable datagram by reason and changes nothing.

use evergate_base::Micros;
use evergate_membership::{
    AnnouncedPhase, Assignment, Body, Bucket, Change, Claim, ClaimedState, ClusterId, Commit, Config,
    DATAGRAM_BYTES_MAX, DataEpoch, Header, Heartbeat, Holds, Incarnation, KeyId, Keyring, Member, MemberSet,
    Members, Message, Mode, Node, NodeId, NodePhase, Op, Path, Prepare, Promise, Reach, Rejected, Role,
    VERSION, ViewId,
};
use proptest::prelude::*;

const KEY: [u8; 32] = [9; 32];

fn config(id: u8, nodes: u8) -> Config {
    Config { buckets: 4, mode: Mode::Majority, ..Config::new(ClusterId(5), NodeId(id), nodes) }
}

fn node(mode: Mode, id: u8, keys: Keyring, now: Micros) -> Node {
    Node::new(Config { mode, ..config(id, 2) }, keys, Incarnation(100 + u64::from(id)), now).unwrap()
}

/// Two nodes joined by a wire that records.
struct Pair {
    nodes: Vec<Node>,
    now: u64,
    /// Everything sent so far: receiver, path, datagram.
    recorded: Vec<(usize, Path, Vec<u8>)>,
    skew: [u64; 2],
}

impl Pair {
    fn new(mode: Mode, keys: [Keyring; 2]) -> Pair {
        // The clocks are a minute apart: no code may compare them.
        let skew = [60_000_000, 0];
        let nodes = keys.into_iter().enumerate();
        let nodes = nodes.map(|(id, keys)| node(mode, id as u8, keys, Micros(skew[id]))).collect();
        Pair { nodes, now: 0, recorded: Vec::new(), skew }
    }

    fn clock(&self, id: usize) -> Micros {
        Micros(self.now + self.skew[id])
    }

    fn run_ms(&mut self, span_ms: u64) {
        for _ in 0..span_ms {
            self.now += 1000;
            for id in 0..2 {
                let clock = self.clock(id);
                self.nodes[id].set_witness(clock, clock, true);
                self.nodes[id].handle_timer(clock);
                self.carry(id);
            }
        }
    }

    fn carry(&mut self, id: usize) {
        while self.nodes[id].poll_event().is_some() {}
        while let Some(transmit) = self.nodes[id].poll_transmit() {
            let to = usize::from(transmit.to.0);
            let clock = self.clock(to);
            self.recorded.push((to, transmit.path, transmit.bytes.clone()));
            self.nodes[to].handle_datagram(clock, transmit.path, &transmit.bytes);
            while self.nodes[to].poll_event().is_some() {}
        }
        self.nodes.iter().for_each(|node| assert_eq!(node.check_invariants(), Ok(())));
    }

    fn is_joined(&self) -> bool {
        self.nodes.iter().all(|node| node.phase() == NodePhase::Active && node.members().0.len() == 2)
            && self.nodes[0].view() == self.nodes[1].view()
    }
}

fn joined() -> Pair {
    joined_in(Mode::Majority)
}

fn joined_in(mode: Mode) -> Pair {
    let mut pair = Pair::new(mode, [Keyring::new(KeyId(1), KEY), Keyring::new(KeyId(1), KEY)]);
    pair.run_ms(200);
    assert!(pair.is_joined());
    pair
}

/// Header of a message from one node to another in a view.
fn header((from, to): (Member, Member), view: ViewId, sequence: u64) -> Header {
    Header { version: VERSION, key: KeyId(1), calm: false, cluster: ClusterId(5), from, to, view, sequence }
}

fn total_rejected(node: &Node) -> u64 {
    Rejected::ALL.iter().map(|reason| node.rejected(*reason)).sum()
}

#[test]
fn clocks_a_minute_apart_do_not_matter() {
    let mut pair = joined();
    let view = pair.nodes[0].view();
    pair.run_ms(2000);
    assert!(pair.is_joined());
    assert_eq!(pair.nodes[0].view(), view);
    assert_eq!(total_rejected(&pair.nodes[0]) + total_rejected(&pair.nodes[1]), 0);
}

#[test]
fn replayed_datagrams_are_counted_and_change_nothing() {
    let mut pair = joined();
    pair.run_ms(100);
    let before = pair.nodes[0].clone();
    let recorded = pair.recorded.clone();
    let mine: Vec<_> = recorded.iter().filter(|(to, ..)| *to == 0).collect();
    let clock = pair.clock(0);
    for (_, path, bytes) in &mine {
        pair.nodes[0].handle_datagram(clock, *path, bytes);
    }
    let node = &pair.nodes[0];
    let seen = node.rejected(Rejected::Duplicate) + node.rejected(Rejected::TooOld);
    assert!(seen > 50, "{seen}");
    assert_eq!((node.view(), node.leases()), (before.view(), before.leases()));
    assert!(node.poll_timeout() >= before.poll_timeout(), "a replay caused work");
}

#[test]
fn recording_of_an_ended_incarnation_changes_nothing() {
    let mut pair = joined_in(Mode::Witness);
    let old = pair.recorded.clone();
    // Node 1 starts again, and joins again.
    let clock = pair.clock(1);
    let keys = Keyring::new(KeyId(1), KEY);
    let config = Config { mode: Mode::Witness, ..config(1, 2) };
    pair.nodes[1] = Node::new(config, keys, Incarnation(777), clock).unwrap();
    pair.run_ms(400);
    assert!(pair.is_joined());
    let view = pair.nodes[0].view();
    // Also when the earlier incarnation is not remembered any more.
    for later_ms in [0, 2000] {
        pair.run_ms(later_ms);
        for round in 0..20 {
            for (to, path, bytes) in old.iter().skip(round * 3).step_by(7) {
                let clock = pair.clock(*to);
                pair.nodes[*to].handle_datagram(clock, *path, bytes);
                pair.carry(0);
                pair.carry(1);
            }
            pair.run_ms(10);
        }
        assert!(pair.is_joined(), "{later_ms} ms later");
        assert_eq!(pair.nodes[0].view(), view, "{later_ms} ms later");
    }
    assert!(pair.nodes[1].rejected(Rejected::WrongReceiver) > 0);
    assert!(pair.nodes[0].rejected(Rejected::StaleSender) > 0);
}

#[test]
fn wrong_keys_clusters_and_bits_have_different_reasons() {
    let mut pair = joined();
    let (to, path, good) = pair.recorded.iter().rev().find(|(to, ..)| *to == 0).cloned().unwrap();
    assert_eq!(to, 0);
    let clock = pair.clock(0);
    let header = Header {
        version: VERSION,
        key: KeyId(1),
        calm: false,
        cluster: ClusterId(6),
        from: pair.nodes[1].me(),
        to: pair.nodes[0].me(),
        view: ViewId::NONE,
        sequence: 1 << 40,
    };
    let sealed = |header: Header, keys: &Keyring| {
        Message { header, body: Body::Heartbeat(Heartbeat::default()) }.encode(keys).unwrap()
    };
    let right = Keyring::new(KeyId(1), KEY);
    let mut expect = |bytes: &[u8], reason| {
        let before = pair.nodes[0].rejected(reason);
        let view = pair.nodes[0].view();
        pair.nodes[0].handle_datagram(clock, path, bytes);
        assert_eq!(pair.nodes[0].rejected(reason), before + 1, "{reason:?}");
        assert_eq!(pair.nodes[0].view(), view);
    };
    expect(&sealed(header, &right), Rejected::WrongCluster);
    let own_cluster = Header { cluster: ClusterId(5), ..header };
    expect(&sealed(own_cluster, &Keyring::new(KeyId(1), [8; 32])), Rejected::Forged);
    expect(
        &sealed(Header { key: KeyId(2), ..own_cluster }, &Keyring::new(KeyId(2), KEY)),
        Rejected::UnknownKey,
    );
    let unlisted = Member { id: NodeId(7), incarnation: Incarnation(1) };
    expect(&sealed(Header { from: unlisted, ..own_cluster }, &right), Rejected::UnknownSender);
    expect(&sealed(Header { from: pair_me(0), ..own_cluster }, &right), Rejected::UnknownSender);
    expect(&sealed(Header { to: unlisted, ..own_cluster }, &right), Rejected::WrongReceiver);
    let restarted = Member { id: NodeId(1), incarnation: Incarnation(5) };
    expect(&sealed(Header { from: restarted, ..own_cluster }, &right), Rejected::StaleSender);
    let mut version = good.clone();
    version[0] = 9;
    expect(&version, Rejected::Version);
    expect(&[], Rejected::Malformed);
    expect(&[VERSION], Rejected::Malformed);
    for at in 2..good.len() {
        let mut flipped = good.clone();
        flipped[at] ^= 0x10;
        expect(&flipped, Rejected::Forged);
    }
}

fn pair_me(id: u8) -> Member {
    Member { id: NodeId(id), incarnation: Incarnation(100 + u64::from(id)) }
}

#[test]
fn node_with_another_key_stays_outside_and_is_counted() {
    let mut pair = Pair::new(Mode::Majority, [Keyring::new(KeyId(1), KEY), Keyring::new(KeyId(1), [1; 32])]);
    pair.run_ms(5000);
    assert!(pair.nodes.iter().all(|node| node.phase() == NodePhase::Listening));
    assert!(pair.nodes.iter().all(|node| node.rejected(Rejected::Forged) > 100));
}

#[test]
fn authentic_message_with_invalid_content_is_refused() {
    let mut pair = joined();
    let me = pair.nodes[0].me();
    let peer = pair.nodes[1].me();
    let view = ViewId { epoch: 99, proposer: NodeId(1), incarnation: peer.incarnation };
    let members = Members([(me.id, me.incarnation), (peer.id, peer.incarnation)].into());
    let assignment = Assignment { owner: NodeId(0), ..Assignment::default() };
    let odd_owner = Assignment { owner: NodeId(3), ..assignment };
    let own_backup = Assignment { listed: MemberSet::of(NodeId(0)), ..assignment };
    let unlisted = Members([(NodeId(9), Incarnation(1)), (me.id, me.incarnation)].into());
    let none = MemberSet::EMPTY;
    let move_to = |in_sync, listed| {
        let data_epoch = DataEpoch(pair.nodes[0].view().unwrap());
        Change::Move { data_epoch, index: 0, in_sync, listed, work: None }
    };
    let bodies = [
        Body::Commit(Commit { view, members: members.clone(), map: vec![assignment; 3] }),
        Body::Commit(Commit { view, members: members.clone(), map: vec![odd_owner; 4] }),
        Body::Commit(Commit { view, members: members.clone(), map: vec![own_backup; 4] }),
        Body::Commit(Commit { view, members: unlisted.clone(), map: vec![assignment; 4] }),
        Body::Prepare(Prepare { view, members: unlisted }),
        Body::Prepare(Prepare { view: ViewId { proposer: NodeId(0), ..view }, members: members.clone() }),
        Body::Prepare(Prepare { view, members: Members([(peer.id, peer.incarnation)].into()) }),
        Body::Ops(vec![Op { bucket: Bucket(900), moves: 0, change: Change::Own }]),
        Body::Ops(vec![Op { bucket: Bucket(0), moves: u32::MAX, change: Change::Own }]),
        Body::Ops(vec![Op { bucket: Bucket(0), moves: 1, change: move_to(MemberSet::of(NodeId(9)), none) }]),
        Body::Ops(vec![Op { bucket: Bucket(0), moves: 1, change: move_to(none, MemberSet::of(NodeId(9))) }]),
    ];
    for (at, body) in bodies.into_iter().enumerate() {
        let header = header((peer, me), pair.nodes[0].view().unwrap(), 1_000_000 + at as u64);
        let bytes = Message { header, body: body.clone() }.encode(&Keyring::new(KeyId(1), KEY)).unwrap();
        let (clock, installed) = (pair.clock(0), pair.nodes[0].view());
        pair.nodes[0].handle_datagram(clock, Path::Inside, &bytes);
        pair.nodes[0].handle_timer(clock);
        assert_eq!(pair.nodes[0].rejected(Rejected::Unexpected), at as u64 + 1, "{body:?}");
        assert_eq!(pair.nodes[0].view(), installed, "{body:?}");
        assert_eq!(pair.nodes[0].check_invariants(), Ok(()));
    }
}

/// With the key, or by a defect, a peer can echo a clock of this node that is still in the future, or grant in another
/// view.
#[test]
fn lease_counts_from_an_own_past_clock_in_the_own_view() {
    let pair = joined_in(Mode::Witness);
    let (me, clock) = (&pair.nodes[0], pair.clock(0));
    let last = pair.recorded.iter().rev().find(|(to, ..)| *to == 0).unwrap();
    let reported = Message::decode(&last.2).unwrap();
    let Body::Heartbeat(last_sent) = reported.body else { panic!("{reported:?}") };
    assert!(last_sent.grants);
    let lease = |later_us: u64, echo_us: u64, view: ViewId| {
        let (mut node, mut header, mut heartbeat) = (me.clone(), reported.header, last_sent);
        heartbeat.clock_us += 1;
        heartbeat.echo_us = echo_us;
        header.sequence += 1;
        header.view = view;
        let body = Body::Heartbeat(heartbeat);
        let bytes = Message { header, body }.encode(&Keyring::new(KeyId(1), KEY)).unwrap();
        node.handle_datagram(clock + Micros(later_us), last.1, &bytes);
        assert_eq!(total_rejected(&node), 0);
        node.leases().member[1]
    };
    let (before, fence) = (me.leases().member[1], me.config().timing.fence);
    let view = me.view().unwrap();
    let other = ViewId { epoch: view.epoch - 1, ..view };
    assert_eq!(lease(3000, clock.0 + 1000, view), clock + Micros(1000) + fence, "from the sending time");
    assert_eq!(lease(3000, clock.0 + 1000, other), before, "of another view");
    for ahead_us in [3001, 60_000_000, u64::MAX - clock.0] {
        assert_eq!(lease(3000, clock.0 + ahead_us, view), before, "{ahead_us} us ahead");
    }
}

#[test]
fn witness_answer_counts_from_the_time_of_the_question() {
    let mut node = node(Mode::Witness, 0, Keyring::new(KeyId(1), KEY), Micros(0));
    let fence = node.config().timing.fence;
    let at = Micros::from_ms;
    node.set_witness(at(1020), at(1000), true);
    assert_eq!(node.witness_until(), at(1000) + fence);
    node.set_witness(at(1025), at(990), true);
    assert_eq!(node.witness_until(), at(1000) + fence, "an older question changes nothing");
    node.set_witness(at(1030), at(5000), true);
    assert_eq!(node.witness_until(), at(1030) + fence, "a question cannot follow its answer");
    node.set_witness(at(1031), at(1031), false);
    assert_eq!(node.witness_until(), Micros(0));
}

/// The owner's knowledge of a replica may be wrong: only its holder knows its content.
#[test]
fn replica_that_lacks_entries_is_neither_added_nor_owner() {
    let mut pair = joined();
    let (me, peer, view) = (pair.nodes[0].me(), pair.nodes[1].me(), pair.nodes[0].view().unwrap());
    let role = |node: &Node, bucket| node.role(Bucket(bucket));
    let is_replica =
        |bucket: &u16| matches!(role(&pair.nodes[0], *bucket), Role::Backup { in_sync: false, .. });
    let bucket = (0..4).find(is_replica).expect("a bucket of node 1");
    let Role::Backup { term, data_epoch, .. } = role(&pair.nodes[0], bucket) else { unreachable!() };
    let clock = pair.clock(0);
    let node = &mut pair.nodes[0];
    let mut sequence = 1_000_000;
    let mut send_op = |node: &mut Node, moves: u32, change: Change| {
        sequence += 1;
        let header = header((peer, me), view, sequence);
        let body = Body::Ops(vec![Op { bucket: Bucket(bucket), moves, change }]);
        let bytes = Message { header, body }.encode(&Keyring::new(KeyId(1), KEY)).unwrap();
        node.handle_datagram(clock, Path::Inside, &bytes);
        assert_eq!((total_rejected(node), node.check_invariants()), (0, Ok(())));
    };
    let mine = MemberSet::of(me.id);
    let move_to = |index| Change::Move { data_epoch, index, in_sync: mine, listed: mine, work: None };
    node.handle_stored(Bucket(bucket), term, 5);
    send_op(node, 0, Change::Add { data_epoch, index: 6 });
    assert!(matches!(role(node, bucket), Role::Backup { in_sync: false, .. }), "entry 6 is missing");
    send_op(node, 1, move_to(5));
    assert!(matches!(role(node, bucket), Role::Backup { in_sync: false, .. }), "not in sync yet");
    send_op(node, 0, Change::Add { data_epoch, index: 5 });
    assert!(matches!(role(node, bucket), Role::Backup { in_sync: true, .. }));
    send_op(node, 1, move_to(6));
    assert!(matches!(role(node, bucket), Role::Backup { .. }), "entry 6 is still missing");
    send_op(node, 1, move_to(5));
    assert!(matches!(role(node, bucket), Role::Owner { .. }));
}

/// Heartbeats of that time may wait in its queues.
#[test]
fn paused_node_counts_no_peer_as_silent() {
    for mode in [Mode::Witness, Mode::Majority] {
        let pair = joined_in(mode);
        let fence = pair.nodes[0].config().timing.fence;
        for pause in [fence.0 * 4, fence.0 / 2] {
            let mut node = pair.nodes[0].clone();
            let clock = pair.clock(0) + Micros(pause);
            node.set_witness(clock, clock, true);
            node.handle_timer(clock);
            while let Some(transmit) = node.poll_transmit() {
                let reported = Message::decode(&transmit.bytes).unwrap().body;
                assert!(!matches!(reported, Body::Prepare(_)), "{mode:?} {pause} us");
            }
            assert!(node.reachable_nodes().contains(NodeId(1)), "{mode:?} {pause} us");
        }
    }
}

#[test]
fn datagram_for_another_node_is_refused() {
    let mut pair = joined();
    let (me, peer) = (pair.nodes[0].me(), pair.nodes[1].me());
    let (to, path, bytes) = pair.recorded.iter().rev().find(|(to, ..)| *to == 0).unwrap();
    let reported = Message::decode(bytes).unwrap();
    assert_eq!((*to, reported.header.to, reported.header.from), (0, me, peer));
    let (clock, path) = (pair.clock(0), *path);
    for (count, incarnation) in (1..).zip([me.incarnation, Incarnation::UNKNOWN]) {
        let mut header = reported.header;
        header.to = Member { id: NodeId(1), incarnation };
        header.sequence += count;
        let message = Message { header, body: reported.body.clone() };
        let bytes = message.encode(&Keyring::new(KeyId(1), KEY)).unwrap();
        pair.nodes[0].handle_datagram(clock, path, &bytes);
        assert_eq!(pair.nodes[0].rejected(Rejected::WrongReceiver), count, "{incarnation:?}");
    }
}

#[test]
fn promise_never_goes_back() {
    let mut pair = joined();
    let (me, peer) = (pair.nodes[0].me(), pair.nodes[1].me());
    let installed = pair.nodes[0].view().unwrap();
    let members = Members([(me.id, me.incarnation), (peer.id, peer.incarnation)].into());
    let view = |later: u64| ViewId {
        epoch: installed.epoch + later,
        proposer: peer.id,
        incarnation: peer.incarnation,
    };
    for (sequence, asked, promised) in [(0, 20, 20), (1, 10, 20), (2, 19, 20), (3, 21, 21)] {
        let header = header((peer, me), installed, 1_000_000 + sequence);
        let body = Body::Prepare(Prepare { view: view(asked), members: members.clone() });
        let bytes = Message { header, body }.encode(&Keyring::new(KeyId(1), KEY)).unwrap();
        pair.now += 5000;
        let clock = pair.clock(0);
        pair.nodes[0].handle_datagram(clock, Path::Inside, &bytes);
        pair.nodes[0].handle_timer(clock);
        let mut reported = Vec::new();
        while let Some(transmit) = pair.nodes[0].poll_transmit() {
            if let Body::Heartbeat(heartbeat) = Message::decode(&transmit.bytes).unwrap().body {
                reported.push(heartbeat.promised);
            }
        }
        assert!(
            !reported.is_empty() && reported.iter().all(|reported| *reported == view(promised)),
            "{asked}: {reported:?}"
        );
    }
}

#[test]
fn largest_map_and_promise_fit_into_a_datagram() {
    let view = |epoch| ViewId { epoch, proposer: NodeId(31), incarnation: Incarnation(u64::MAX) };
    let members = Members((0..32).map(|id| (NodeId(id), Incarnation(u64::MAX))).collect());
    let header = Header {
        version: VERSION,
        key: KeyId(1),
        calm: false,
        cluster: ClusterId(u64::MAX),
        from: pair_me(0),
        to: pair_me(1),
        view: view(u64::MAX),
        sequence: u64::MAX,
    };
    let assignment = |bucket: u64| Assignment {
        owner: NodeId(31),
        in_sync: MemberSet(0x7FFF_0000),
        listed: MemberSet(0x7FFF_FFFF),
        data_epoch: DataEpoch(view(bucket % 8)),
    };
    let commit =
        Commit { view: view(u64::MAX), members: members.clone(), map: (0..1024).map(assignment).collect() };
    let claim = |bucket: u64| Claim {
        holds: Holds::InSync,
        moves: 300,
        index: 1 << 48,
        data_epoch: DataEpoch(view(bucket)),
        base_in_sync: MemberSet(u32::MAX),
    };
    let claims = (0..1024).map(claim).collect();
    let promise = Promise { view: view(9), claimed: Some(ClaimedState { view: view(8), members, claims }) };
    let keys = Keyring::new(KeyId(1), KEY);
    let commit = Message { header, body: Body::Commit(commit) };
    let promise = Message { header, body: Body::Promise(promise) };
    let (commit_bytes, promise_bytes) = (commit.encode(&keys).unwrap(), promise.encode(&keys).unwrap());
    println!("commit {} bytes, promise {} bytes", commit_bytes.len(), promise_bytes.len());
    assert!(commit_bytes.len() < 16_384 && promise_bytes.len() < DATAGRAM_BYTES_MAX);
    assert_eq!(Message::decode(&commit_bytes), Ok(commit));
    assert_eq!(Message::decode(&promise_bytes), Ok(promise));
}

fn any_heartbeat() -> impl Strategy<Value = Heartbeat> {
    (any::<[u64; 4]>(), any::<[bool; 6]>(), 0u8..5, any::<u32>()).prop_map(|(n, b, state, nodes)| Heartbeat {
        clock_us: n[0],
        echo_us: n[1],
        grants: b[0],
        includes_you: b[1],
        excludes_you: b[2],
        state: [
            AnnouncedPhase::Listen,
            AnnouncedPhase::HeldDown,
            AnnouncedPhase::Active,
            AnnouncedPhase::Fenced,
            AnnouncedPhase::Left,
        ][usize::from(state)],
        witnessed: b[4],
        lapsed: b[5],
        promised: ViewId { epoch: n[2] % 8, proposer: NodeId(1), incarnation: Incarnation(n[3] % 4) },
        receives_from: [MemberSet(nodes), MemberSet(nodes.rotate_left(7))],
        reach: [b[1], b[2]].map(|works| if works { Reach::Works } else { Reach::Silent }),
        closed_from: Incarnation(n[2]),
        closed_to: Incarnation(n[3]),
        owned: nodes as u16,
        work: n[0],
        weight: nodes as u16,
        draining: b[3],
        lease_us: n[1],
        configurations: n,
    })
}

proptest! {
    #[test]
    fn no_bytes_make_decoding_panic(bytes in prop::collection::vec(any::<u8>(), 0..600), version in any::<bool>()) {
        let mut bytes = bytes;
        if version && let Some(first) = bytes.first_mut() {
            *first = VERSION;
        }
        let _ = Message::decode(&bytes);
        joined_once().handle_datagram(Micros(1), Path::Outside, &bytes);
    }

    #[test]
    fn any_authentic_heartbeats_keep_the_invariants(
        heartbeats in prop::collection::vec((any_heartbeat(), 0u64..40_000, 0u64..5, any::<bool>()), 1..60)
    ) {
        let mut node = joined_once();
        let keys = Keyring::new(KeyId(1), KEY);
        let (mut now, mut sequence) = (60_300_000u64, 10_000_000u64);
        for (heartbeat, span, epoch, known) in heartbeats {
            now += span;
            sequence += 1;
            let from = Member { id: NodeId(1), incarnation: Incarnation(if known { 101 } else { 500 + epoch }) };
            let view = ViewId { epoch, proposer: NodeId(1), incarnation: Incarnation(101) };
            let heartbeat = Heartbeat { echo_us: now.saturating_sub(heartbeat.echo_us % 5_000), ..heartbeat };
            let header = Header {
                version: VERSION, key: KeyId(1), calm: sequence % 2 == 0, cluster: ClusterId(5), from,
                to: node.me(), view, sequence,
            };
            let bytes = Message { header, body: Body::Heartbeat(heartbeat) }.encode(&keys).unwrap();
            node.handle_datagram(Micros(now), Path::Inside, &bytes);
            node.handle_timer(Micros(now));
            while node.poll_event().is_some() {}
            while node.poll_transmit().is_some() {}
            prop_assert_eq!(node.check_invariants(), Ok(()));
        }
    }
}

/// A joined node, built once: joining two nodes for every case would take most of the test's time.
fn joined_once() -> Node {
    static NODE: std::sync::OnceLock<Node> = std::sync::OnceLock::new();
    NODE.get_or_init(|| joined().nodes.swap_remove(0)).clone()
}
