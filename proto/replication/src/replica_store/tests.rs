//! Several channels in turn: which frames count, and which connections are held then.

use super::*;
use crate::Entry;
use evergate_base::ViewId;

const VIEW: ViewId = ViewId { epoch: 3, proposer: NodeId(1), incarnation: Incarnation(9) };
const TERM: Term = Term { view: VIEW, moves: 0 };
const BUCKET: Bucket = Bucket(7);

fn begin(id: u64, bucket: Bucket) -> Frame {
    Frame::Begin { connection: ConnectionId(id), bucket, state: None, legs: BTreeMap::new() }
}

fn complete(holder: &mut ReplicaStore, channel: &mut Announced) {
    holder.handle(channel, Frame::Complete { bucket: BUCKET }).unwrap();
}

/// The replica of connection 1 is an earlier owner's; the next owner has two workers, each with a term of its own.
#[test]
fn older_replicas_go_when_all_workers_have_sent_their_state() {
    let mut holder = ReplicaStore::default();
    let mut before = announcer(1);
    holder.handle(&mut before, Frame::Term { bucket: BUCKET, term: TERM }).unwrap();
    holder.handle(&mut before, begin(1, BUCKET)).unwrap();
    for number in 0..2 {
        let mut channel = Announced { worker: (number, 2), ..announcer(2) };
        let term = later(1 + u32::from(number));
        holder.handle(&mut channel, Frame::Term { bucket: BUCKET, term }).unwrap();
        holder.handle(&mut channel, begin(2 + u64::from(number), BUCKET)).unwrap();
        assert_eq!(holder.len(), 2 + usize::from(number), "earlier connections stay");
        complete(&mut holder, &mut channel);
    }
    assert_eq!(holder.iter().map(|(id, _)| id.0).collect::<Vec<_>>(), [2, 3]);
}

fn later(moves: u32) -> Term {
    Term { moves, ..TERM }
}

#[test]
fn only_the_newest_term_of_a_bucket_counts() {
    let mut holder = ReplicaStore::default();
    let (mut old, mut new) = (announcer(1), announcer(2));
    assert!(holder.handle(&mut old, begin(1, BUCKET)).is_err());
    holder.handle(&mut old, Frame::Term { bucket: BUCKET, term: TERM }).unwrap();
    holder.handle(&mut old, begin(1, BUCKET)).unwrap();
    holder.handle(&mut new, Frame::Term { bucket: BUCKET, term: later(1) }).unwrap();
    assert!(holder.handle(&mut old, begin(2, BUCKET)).is_err());
    assert!(holder.handle(&mut old, Frame::End { connection: ConnectionId(1) }).is_err());
    assert!(holder.handle(&mut old, Frame::Term { bucket: BUCKET, term: TERM }).is_err());
    holder.handle(&mut new, begin(2, BUCKET)).unwrap();
    holder.check_invariants();
    assert_eq!(holder.len(), 2);
}

#[test]
fn connection_missing_from_a_new_owners_state_is_over() {
    let mut holder = ReplicaStore::default();
    let mut channel = announcer(1);
    holder.handle(&mut channel, Frame::Term { bucket: BUCKET, term: TERM }).unwrap();
    for id in 1..=3 {
        holder.handle(&mut channel, begin(id, BUCKET)).unwrap();
    }
    let mut next = announcer(2);
    holder.handle(&mut next, Frame::Term { bucket: BUCKET, term: later(1) }).unwrap();
    holder.handle(&mut next, begin(2, BUCKET)).unwrap();
    complete(&mut holder, &mut next);
    holder.check_invariants();
    assert_eq!(holder.iter().map(|(id, _)| id.0).collect::<Vec<_>>(), [2]);
}

#[test]
fn continuing_owner_need_not_send_its_state_again() {
    let mut holder = ReplicaStore::default();
    let mut channel = Announced::default();
    holder.handle(&mut channel, Frame::Term { bucket: BUCKET, term: TERM }).unwrap();
    holder.handle(&mut channel, begin(1, BUCKET)).unwrap();
    holder.handle(&mut channel, Frame::Term { bucket: BUCKET, term: later(1) }).unwrap();
    complete(&mut holder, &mut channel);
    assert_eq!(holder.len(), 1);
}

#[test]
fn handed_off_bucket_stays_until_the_next_owners_state() {
    let mut holder = ReplicaStore::default();
    holder.recover(BUCKET, TERM);
    for id in 1..=2 {
        holder.keep(TERM, begin(id, BUCKET));
    }
    holder.check_invariants();
    let mut silent = holder.clone();
    assert_eq!(silent.recover(BUCKET, later(2)).len(), 2, "no newer owner");
    let mut next = announcer(2);
    holder.handle(&mut next, Frame::Term { bucket: BUCKET, term: later(1) }).unwrap();
    holder.handle(&mut next, begin(1, BUCKET)).unwrap();
    complete(&mut holder, &mut next);
    assert_eq!(holder.iter().map(|(id, _)| id.0).collect::<Vec<_>>(), [1]);
    holder.forget(BUCKET, later(2));
    holder.keep(TERM, begin(3, BUCKET));
    assert!(holder.is_empty(), "it was given up meanwhile");
}

#[test]
fn handed_off_state_does_not_replace_newer_state() {
    let (mut holder, mut next) = (ReplicaStore::default(), announcer(2));
    holder.recover(BUCKET, TERM);
    holder.handle(&mut next, Frame::Term { bucket: BUCKET, term: later(1) }).unwrap();
    holder.handle(&mut next, begin(1, BUCKET)).unwrap();
    holder.keep(TERM, begin(1, BUCKET));
    let terms: Vec<_> = holder.iter().map(|(_, held)| held.term).collect();
    assert_eq!(terms, [later(1)]);
}

#[test]
fn last_of_two_announcers_of_a_term_counts() {
    let mut holder = ReplicaStore::default();
    let (mut first, mut second) = (announcer(1), announcer(2));
    for channel in [&mut first, &mut second] {
        holder.handle(channel, Frame::Term { bucket: BUCKET, term: TERM }).unwrap();
    }
    assert!(holder.handle(&mut first, begin(1, BUCKET)).is_err());
    holder.handle(&mut second, begin(2, BUCKET)).unwrap();
    // After a recovery, the announced term of the recovering node is rejected too.
    holder.recover(BUCKET, TERM);
    assert!(holder.handle(&mut second, begin(3, BUCKET)).is_err());
}

fn announcer(node: u8) -> Announced {
    Announced { announcer: Some((NodeId(node), Incarnation(1))), ..Announced::default() }
}

#[test]
fn workers_of_one_owner_may_announce_terms_in_turn() {
    let mut holder = ReplicaStore::default();
    let (mut first, mut second) = (announcer(1), Announced { worker: (1, 0), ..announcer(1) });
    for (channel, id) in [(&mut first, 1), (&mut second, 2)] {
        holder.handle(channel, Frame::Term { bucket: BUCKET, term: TERM }).unwrap();
        holder.handle(channel, begin(id, BUCKET)).unwrap();
    }
    holder.handle(&mut first, Frame::Term { bucket: BUCKET, term: later(1) }).unwrap();
    let entries = vec![Entry::Close { plain: 5, abort: true }];
    holder.handle(&mut second, Frame::Entries { connection: ConnectionId(2), entries }).unwrap();
    complete(&mut holder, &mut first);
    assert_eq!(holder.len(), 2, "connections of the other worker stay");
    holder.handle(&mut second, Frame::Term { bucket: BUCKET, term: later(1) }).unwrap();
    // Another node announces a term: frames of the first one no longer count, in any term.
    let mut other = announcer(2);
    holder.handle(&mut other, Frame::Term { bucket: BUCKET, term: later(2) }).unwrap();
    for channel in [&mut first, &mut second] {
        assert!(holder.handle(channel, begin(3, BUCKET)).is_err());
        assert!(holder.handle(channel, Frame::Term { bucket: BUCKET, term: later(1) }).is_err());
    }
    // It is the owner again: frames on its old channel still do not count.
    holder.handle(&mut first, Frame::Term { bucket: BUCKET, term: later(3) }).unwrap();
    assert!(holder.handle(&mut second, begin(3, BUCKET)).is_err());
    complete(&mut holder, &mut first);
    assert!(holder.is_empty());
}

/// A connection may end while a channel is broken, so that no frame reports its end.
#[test]
fn connection_missing_from_a_repeated_state_is_over() {
    let mut holder = ReplicaStore::default();
    let channels = || [0, 1].map(|number| Announced { worker: (number, 2), ..announcer(1) });
    let [mut first, mut second] = channels();
    for (channel, ids) in [(&mut first, [1, 2]), (&mut second, [3, 4])] {
        holder.handle(channel, Frame::Term { bucket: BUCKET, term: TERM }).unwrap();
        ids.into_iter().for_each(|id| holder.handle(channel, begin(id, BUCKET)).unwrap());
        complete(&mut holder, channel);
    }
    assert_eq!(holder.len(), 4);
    // A new channel of the first worker.
    let [mut first, _] = channels();
    holder.handle(&mut first, Frame::Term { bucket: BUCKET, term: TERM }).unwrap();
    holder.handle(&mut first, begin(2, BUCKET)).unwrap();
    assert_eq!(holder.len(), 4, "connections stay until the state is complete");
    complete(&mut holder, &mut first);
    assert_eq!(holder.iter().map(|(id, _)| id.0).collect::<Vec<_>>(), [2, 3, 4]);
    // The second worker's channel is the same, and it stays in another term.
    for term in [TERM, later(1)] {
        holder.handle(&mut second, Frame::Term { bucket: BUCKET, term }).unwrap();
    }
    holder.handle(&mut second, begin(4, BUCKET)).unwrap();
    complete(&mut holder, &mut second);
    complete(&mut holder, &mut first);
    holder.check_invariants();
    assert_eq!(holder.iter().map(|(id, _)| id.0).collect::<Vec<_>>(), [2, 4]);
}

#[test]
fn worker_late_with_the_owners_first_term_counts() {
    let mut holder = ReplicaStore::default();
    let mut before = announcer(1);
    holder.handle(&mut before, Frame::Term { bucket: BUCKET, term: TERM }).unwrap();
    let [mut fast, mut late] = [0, 1].map(|number| Announced { worker: (number, 2), ..announcer(2) });
    holder.handle(&mut fast, Frame::Term { bucket: BUCKET, term: later(2) }).unwrap();
    holder.handle(&mut late, Frame::Term { bucket: BUCKET, term: later(1) }).unwrap();
    holder.handle(&mut late, begin(1, BUCKET)).unwrap();
    complete(&mut holder, &mut fast);
    complete(&mut holder, &mut late);
    assert_eq!(holder.len(), 1, "its connections stay");
    assert!(holder.handle(&mut before, begin(2, BUCKET)).is_err());
    let mut older = announcer(2);
    assert!(holder.handle(&mut older, Frame::Term { bucket: BUCKET, term: Term::default() }).is_err());
}

#[test]
fn late_frames_about_dropped_connections_are_skipped() {
    let (mut holder, mut channel) = (ReplicaStore::default(), announcer(1));
    holder.handle(&mut channel, Frame::Term { bucket: BUCKET, term: TERM }).unwrap();
    holder.handle(&mut channel, begin(1, BUCKET)).unwrap();
    holder.forget(BUCKET, later(1));
    let entries = |id| Frame::Entries { connection: ConnectionId(id), entries: Vec::new() };
    holder.handle(&mut channel, entries(1)).unwrap();
    holder.handle(&mut channel, begin(2, BUCKET)).unwrap();
    holder.handle(&mut channel, entries(2)).unwrap();
    holder.check_invariants();
    assert!(holder.is_empty());
    holder.drop_all(BUCKET);
    assert!(holder.forgotten.is_empty());
    assert_eq!(holder.handle(&mut channel, entries(1)), Err(ReplicaError::Unknown(ConnectionId(1))));
    // Frames of a replaced node are rejected, whatever they contain.
    holder.handle(&mut channel, begin(3, BUCKET)).unwrap();
    holder.recover(BUCKET, later(1));
    assert!(holder.handle(&mut channel, Frame::End { connection: ConnectionId(3) }).is_err());
    assert!(holder.handle(&mut channel, begin(3, BUCKET)).is_err());
}

#[test]
fn refilled_replica_survives_a_late_drop() {
    let (mut holder, mut channel) = (ReplicaStore::default(), announcer(1));
    let entries = |id| Frame::Entries { connection: ConnectionId(id), entries: Vec::new() };
    holder.handle(&mut channel, Frame::Term { bucket: BUCKET, term: TERM }).unwrap();
    for id in 1..=2 {
        holder.handle(&mut channel, begin(id, BUCKET)).unwrap();
    }
    // The replica was dropped, connection 2 ended without a frame, and the next fill is faster than the role of the
    // drop.
    holder.handle(&mut channel, Frame::Term { bucket: BUCKET, term: later(1) }).unwrap();
    holder.handle(&mut channel, begin(1, BUCKET)).unwrap();
    holder.forget(BUCKET, later(1));
    holder.handle(&mut channel, begin(3, BUCKET)).unwrap();
    holder.handle(&mut channel, entries(1)).unwrap();
    complete(&mut holder, &mut channel);
    holder.drop_all(BUCKET);
    holder.check_invariants();
    assert_eq!(holder.iter().map(|(id, _)| id.0).collect::<Vec<_>>(), [1, 3], "2 is over");
    for id in [1, 3] {
        holder.handle(&mut channel, entries(id)).unwrap();
    }
}

#[test]
fn frames_in_a_dropped_term_change_nothing() {
    let mut holder = ReplicaStore::default();
    let (mut first, mut second) = (announcer(1), Announced { worker: (1, 0), ..announcer(1) });
    for channel in [&mut first, &mut second] {
        holder.handle(channel, Frame::Term { bucket: BUCKET, term: TERM }).unwrap();
    }
    holder.handle(&mut second, begin(2, BUCKET)).unwrap();
    holder.forget(BUCKET, later(1));
    for frame in
        [Frame::Term { bucket: BUCKET, term: later(1) }, begin(1, BUCKET), Frame::Complete { bucket: BUCKET }]
    {
        holder.handle(&mut first, frame).unwrap();
    }
    // The other worker does not have the new term, and sends frames about old and new connections.
    let close = |id| {
        let entries = vec![Entry::Close { plain: 5, abort: true }];
        Frame::Entries { connection: ConnectionId(id), entries }
    };
    let late = [
        begin(4, BUCKET),
        begin(1, BUCKET),
        close(1),
        close(2),
        close(4),
        Frame::Complete { bucket: BUCKET },
    ];
    for frame in late.into_iter().chain([1, 2].map(|id| Frame::End { connection: ConnectionId(id) })) {
        holder.handle(&mut second, frame).unwrap();
    }
    let held: Vec<_> = holder.iter().map(|(id, held)| (id.0, held.state.closed)).collect();
    assert_eq!(held, [(1, None)]);
    // Then it sends its full state again, and a `Complete` of the first one did not stand in for it.
    for frame in [Frame::Term { bucket: BUCKET, term: later(1) }, begin(2, BUCKET), begin(4, BUCKET)] {
        holder.handle(&mut second, frame).unwrap();
    }
    complete(&mut holder, &mut first);
    holder.check_invariants();
    assert_eq!(holder.len(), 3);
}

#[test]
fn failover_gets_the_replay_and_rejects_the_late_owner() {
    let mut holder = ReplicaStore::default();
    let mut channel = Announced::default();
    holder.handle(&mut channel, Frame::Term { bucket: BUCKET, term: TERM }).unwrap();
    holder.handle(&mut channel, begin(1, BUCKET)).unwrap();
    let entries = vec![Entry::Close { plain: 5, abort: true }];
    let connection = ConnectionId(1);
    holder.handle(&mut channel, Frame::Entries { connection, entries }).unwrap();
    let taken = holder.recover(BUCKET, later(1));
    assert_eq!((taken.len(), taken[0].idle, taken[0].held.state.closed), (1, false, Some((5, true))));
    assert!(holder.is_empty());
    assert!(holder.handle(&mut channel, begin(2, BUCKET)).is_err());
    assert!(holder.handle(&mut channel, Frame::End { connection }).is_err());
}

#[test]
fn recovered_connections_do_not_grow_the_index() {
    let mut holder = ReplicaStore::default();
    for (round, bucket) in (0..20u64).zip([BUCKET, Bucket(8)].into_iter().cycle()) {
        let (mut channel, term) = (announcer(round as u8), later(round as u32));
        holder.handle(&mut channel, Frame::Term { bucket, term }).unwrap();
        for id in 0..1000 {
            holder.handle(&mut channel, begin(1000 * round + id, bucket)).unwrap();
        }
        // Also under another bucket than the one it was recovered from.
        holder.handle(&mut channel, begin((1000 * round).saturating_sub(1), bucket)).unwrap();
        holder.check_invariants();
        let taken = holder.recover(bucket, term);
        assert!(taken.len() > 999 && taken.iter().all(|taken| taken.idle) && holder.is_empty());
        assert!(holder.index.len() <= 2 * taken.len() + STALE_MAX, "{}", holder.index.len());
    }
}
