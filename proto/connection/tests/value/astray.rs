//! Peers that send different bytes the second time: a restored connection that cannot repeat its decided records breaks
//! off, and makes no others in their place.

use crate::harness::peer::Peer;
use crate::harness::secure::ServerTls;
use crate::harness::setup;
use crate::pair::{Pair, restore};
use crate::scenario::{Wire, config, noise};
use evergate_base::Micros;
use evergate_connection::{Failure, RestoreError, Snapshot};
use evergate_replication::{ConnectionState, Phase, RUN_BYTES_MAX, RecordKind, RecordLayout};
use std::sync::Arc;

/// A client of a listener, whose handshake is over.
fn greeted(config: &Arc<Snapshot>, listener: u32) -> (Peer, Pair) {
    let (mut peer, hello) = Peer::ours(&rustls::version::TLS13, 1);
    let mut pair = Pair::new(config, listener);
    pair.client_sends(&hello);
    let finished = peer.receive(&std::mem::take(&mut pair.to_client));
    pair.client_sends(&finished);
    (peer, pair)
}

/// A tunnel inside TLS whose server has sent `reported`, in records that the client has not acknowledged.
fn tunnel(config: &Arc<Snapshot>, reported: &[u8]) -> ConnectionState {
    tunnel_in_pieces(config, &[reported])
}

fn tunnel_in_pieces(config: &Arc<Snapshot>, reported: &[&[u8]]) -> ConnectionState {
    let (_, mut pair) = greeted(config, setup::TLS);
    // What the client has of the handshake, it has acknowledged.
    let output = pair.conn.output_position();
    pair.call(|conn, io| conn.handle_client_acked(io, output));
    pair.open();
    reported.iter().for_each(|piece| pair.server_sends(piece));
    assert!(!pair.replicated.boundaries.is_empty(), "records are decided");
    pair.replicated
}

#[test]
fn replay_without_input_breaks_off_at_the_next_deadline() {
    let (config, reported) = (config(Wire::Plain), noise(3000, 1));
    let state = tunnel(&config, &reported);
    for share in [0, 1, reported.len() - 1] {
        let mut pair = Pair::restore(&state, &config);
        pair.server_sends(&reported[..share]);
        pair.expire();
        assert_eq!((pair.closed, &pair.reasons[..]), (Some(true), &["replay_stalled"][..]), "after {share}");
        assert_eq!(pair.to_client, b"", "nothing can be made of {share} bytes");
    }
    let mut pair = Pair::restore(&state, &config);
    pair.server_sends(&reported);
    pair.expire();
    assert_eq!(
        (pair.closed, &pair.reasons[..]),
        (None, &["tunnel_idle"][..]),
        "a replay that is over ends in order"
    );
}

/// A deadline that only checks a slow client does not mean that the replay gets no input.
#[test]
fn a_replay_waits_for_a_client_that_takes_some_and_for_no_other() {
    let (config, reported) = (config(Wire::Plain), noise(9000, 1));
    let state = tunnel_in_pieces(&config, &[&reported[..5000], &reported[5000..]]);
    for takes in [0, 1, 3] {
        let mut pair = Pair::restore(&state, &config);
        let before = pair.conn.output_position();
        pair.server_sends(&reported[..5000]);
        let made = pair.conn.output_position();
        assert!(made > before + 5000, "the first run is repeated");
        // The client has no room for the last byte.
        pair.conn.down().push(vec![0], made);
        pair.conn.handle_blocked(pair.now);
        pair.expire();
        assert_eq!(pair.closed, None, "it was looked at for the first time");
        for taken in 1..=takes {
            pair.call(|conn, io| conn.handle_client_acked(io, before + taken * 1000));
            pair.expire();
            assert_eq!(pair.closed, None, "it takes some");
        }
        pair.expire();
        assert_eq!((pair.closed, &pair.reasons[..]), (Some(true), &["replay_stalled"][..]), "{takes}");
    }
}

#[test]
fn server_that_ends_earlier_the_second_time_gets_no_alert() {
    let (config, reported) = (config(Wire::Plain), noise(3000, 1));
    let state = tunnel(&config, &reported);
    for share in [0, 2999] {
        let mut pair = Pair::restore(&state, &config);
        pair.server_sends(&reported[..share]);
        pair.call(|conn, io| conn.handle_server_end(io, conn.leg_id().unwrap()));
        assert_eq!(
            (pair.closed, &pair.reasons[..]),
            (Some(true), &["response_replay_mismatch"][..]),
            "after {share}"
        );
        assert_eq!(pair.to_client, b"");
    }
}

#[test]
fn a_replay_holds_no_more_than_one_run_of_records() {
    let config = config(Wire::Plain);
    let mut state = tunnel(&config, b"first");
    // A run that no node makes, behind one that is repeated.
    let first = state.boundaries.back().unwrap().end();
    let lengths = vec![(16384, 17)];
    state.boundaries.push_back(RecordLayout { first, kind: RecordKind::Data, lengths, digest: 1 });
    let mut pair = Pair::restore(&state, &config);
    pair.server_sends(&[b"first", &noise(RUN_BYTES_MAX, 2)[..]].concat());
    assert_eq!(pair.closed, None);
    pair.server_sends(b"x");
    assert_eq!((pair.closed, &pair.reasons[..]), (Some(true), &["replay_too_long"][..]));
}

#[test]
fn replicated_runs_can_be_repeated_at_any_length() {
    let config = config(Wire::Plain);
    let reported = noise(5 * RUN_BYTES_MAX + 77, 3);
    let state = tunnel(&config, &reported);
    let state = ConnectionState::decode(&state.encode().unwrap()).unwrap();
    let mut expected = Pair::restore(&state, &config);
    expected.server_sends(&reported);
    assert_eq!((expected.closed, expected.conn.down().len()), (None, 0));
    // Stashed, everything comes at once.
    let mut stashed = state.clone();
    let leg = *stashed.routes.values().map(|route| &route.leg).next().unwrap();
    let position = if stashed.server.leg == leg { stashed.server.input } else { 0 };
    let stash = evergate_replication::Stash { position, bytes: reported.clone() };
    stashed.server_stash.insert(leg, stash);
    let pair = Pair::restore(&stashed, &config);
    assert_eq!(pair.closed, None);
    assert!(pair.to_client == expected.to_client, "the same records");
    // Once more: what is decided now must be bearable to the next node too.
    let mut fresh = stashed.clone();
    fresh.boundaries.clear();
    let next = Pair::restore(&fresh, &config).replicated;
    assert_eq!(ConnectionState::decode(&next.encode().unwrap()), Ok(next));
}

/// A server with lost packets sends one segment at a time, and the next one only after an acknowledgement.
#[test]
fn full_server_stash_inside_a_run_frees_space_with_client_acks() {
    let config = config(Wire::Plain);
    let reported = noise(6 * RUN_BYTES_MAX, 4);
    let decided = tunnel_in_pieces(&config, &[&reported[..5000], &reported[5000..]]);
    let mut state = decided.clone();
    let leg = state.routes.values().next().unwrap().leg;
    let bytes = reported[..1 << 20].to_vec(); // as much as is stashed of one direction
    state.server_stash.insert(leg, evergate_replication::Stash { position: 0, bytes });
    let mut pair = Pair::restore(&state, &config);
    for segment in reported[1 << 20..].chunks(1428) {
        let output = pair.conn.output_position();
        pair.call(|conn, io| conn.handle_client_acked(io, output));
        let before = pair.replicated.server_frontier(leg);
        pair.server_sends(segment);
        pair.call(|conn, io| conn.handle_server_stall(io));
        assert_eq!(pair.replicated.server_frontier(leg), before + segment.len() as u64, "acknowledged");
    }
    let mut expected = Pair::restore(&decided, &config);
    expected.server_sends(&reported);
    assert!(pair.to_client == expected.to_client, "the same records");
}

/// A loss notice cannot report a segment that nothing follows.
#[test]
fn end_of_a_long_response_is_stashed_for_a_slow_client() {
    const LEFT: u64 = 35_000;
    let config = config(Wire::Plain);
    for read in [10_000, 50_000, 200_000] {
        let (mut peer, mut pair) = greeted(&config, setup::HTTPS);
        pair.client_sends(&peer.send(b"GET /page HTTP/1.1\r\nHost: h\r\n\r\n"));
        pair.open();
        let leg = pair.replicated.routes.values().next().unwrap().leg;
        let head = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n";
        pair.server_sends(head);
        noise(1_000_000, 5).chunks(read).for_each(|piece| pair.server_sends(piece));
        let reported = pair.conn.output_position();
        pair.call(|conn, io| conn.handle_client_acked(io, reported - LEFT));
        let frontier = |pair: &Pair| pair.replicated.server_frontier(leg);
        let all = head.len() as u64 + 1_000_000;
        assert!(frontier(&pair) < all && pair.replicated.server_stash.is_empty());
        pair.call(|conn, io| conn.handle_server_stall(io));
        assert_eq!(frontier(&pair), all, "acknowledged, in reads of {read}");
        // The next node sends the same to the client, whose last record only the client has.
        let state = pair.replicated.clone();
        let next = Pair::restore(&state, &config);
        assert_eq!((next.conn.output_position(), next.to_client.len() as u64 >= LEFT), (reported, true));
        let rest = &pair.to_client[pair.to_client.len() - next.to_client.len()..];
        assert!(next.to_client == rest, "the same records");
    }
}

#[test]
fn second_answer_of_ours_does_not_wait_for_the_first_ack() {
    let mut pair = Pair::new(&config(Wire::Plain), setup::HTTP);
    pair.client_sends(b"GET /deny HTTP/1.1\r\nHost: h\r\n\r\nGET /deny HTTP/1.1\r\nHo");
    assert_eq!((pair.closed, pair.replicated.generated.len()), (None, 1));
    let answer = pair.to_client.clone();
    assert!(answer.starts_with(b"HTTP/1.1 403 "));
    pair.expire(); // checks the backup's laws
    assert_eq!((pair.closed, pair.reasons.last()), (Some(true), Some(&"request_head_timeout")));
    assert_eq!(pair.to_client, answer, "nothing after the first answer");
}

#[test]
fn an_acknowledged_answer_of_ours_may_be_followed_by_another() {
    let mut pair = Pair::new(&config(Wire::Plain), setup::HTTP);
    pair.client_sends(b"GET /deny HTTP/1.1\r\nHost: h\r\n\r\nGET /deny HTTP/1.1\r\nHo");
    let output = pair.conn.output_position();
    pair.call(|conn, io| conn.handle_client_acked(io, output));
    pair.expire();
    assert_eq!((pair.closed, pair.reasons.last()), (None, Some(&"request_head_timeout")));
    assert!(pair.to_client[output as usize..].starts_with(b"HTTP/1.1 408 "));
}

#[test]
fn no_answer_of_ours_takes_the_place_of_one_that_may_have_left() {
    let config = config(Wire::Plain);
    let (mut peer, mut pair) = greeted(&config, setup::HTTPS);
    pair.client_sends(&peer.send(b"GET /len/5 HTTP/1.1\r\nHost: h\r\n\r\n"));
    pair.open();
    let state = pair.replicated;
    // An orderly end shows that there was no answer. After a failed write it may be an RST, which shows nothing.
    for (in_doubt, closed, reason) in [(false, None, "upstream_lost"), (true, Some(true), "upstream_lost")] {
        let (mut pair, leg) = restore(&state, &config).unwrap();
        let (resumed, sent) = (leg.unwrap(), pair.to_client.len());
        let leg = resumed.route.leg;
        pair.call(|conn, _| conn.record_loss_notice(&resumed)); // entries show what may have left in records
        if in_doubt {
            pair.call(|conn, io| conn.handle_server_write_error(io));
        }
        pair.call(|conn, io| conn.handle_server_end(io, leg));
        assert_eq!((pair.closed, pair.to_client.len() > sent), (closed, !in_doubt));
        assert_eq!(pair.reasons, [reason]);
    }
}

/// In plaintext no entry records what was sent, but the client acknowledges its position.
#[test]
fn no_answer_of_ours_follows_part_of_a_response_in_clear() {
    let config = config(Wire::Plain);
    let mut pair = Pair::new(&config, setup::HTTP);
    pair.client_sends(b"GET /len/5 HTTP/1.1\r\nHost: h\r\n\r\n");
    pair.open();
    let state = pair.replicated;
    for (acked, closed, answered) in [(0, None, true), (1, Some(true), false), (40, Some(true), false)] {
        let mut pair = Pair::restore(&state, &config);
        let leg = pair.conn.leg_id().unwrap();
        pair.call(|conn, io| conn.handle_client_acked(io, acked));
        pair.call(|conn, io| conn.handle_leg_failed(io, leg, Failure::Lost));
        assert_eq!(pair.to_client.starts_with(b"HTTP/1.1 502 "), answered, "{acked} bytes have arrived");
        assert_eq!((pair.to_client.is_empty(), pair.closed), (!answered, closed));
        assert_eq!(pair.reasons, ["upstream_lost"]);
    }
}

/// A client that is far away, or whose acknowledgement is lost, has not acknowledged its position yet.
#[test]
fn plain_client_of_unknown_position_gets_no_answer_of_ours() {
    let config = config(Wire::Plain);
    let mut pair = Pair::new(&config, setup::HTTP);
    pair.client_sends(b"GET /len/5 HTTP/1.1\r\nHost: h\r\n\r\n");
    pair.open();
    let state = pair.replicated;
    let loss_notices = || {
        let (mut pair, leg) = restore(&state, &config).unwrap();
        let leg = leg.unwrap();
        pair.call(|conn, _| conn.record_loss_notice(&leg));
        pair.call(|conn, io| conn.handle_leg_open(io, leg.route.leg, leg.route.server, None));
        pair.call(|conn, io| conn.handle_client_acked(io, 0));
        (pair.conn.leg_id().unwrap(), pair)
    };
    let (leg, mut pair) = loss_notices();
    pair.call(|conn, io| conn.handle_leg_failed(io, leg, Failure::Lost));
    assert_eq!(
        (&pair.to_client[..], pair.closed, &pair.reasons[..]),
        (&b""[..], Some(true), &["upstream_lost"][..])
    );
    // What is asked for after it is another matter.
    let (leg, mut pair) = loss_notices();
    pair.call(|conn, io| conn.handle_server_acked(io, leg, u64::MAX));
    pair.server_sends(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello");
    let output = pair.conn.output_position();
    pair.call(|conn, io| conn.handle_client_acked(io, output));
    pair.client_sends(b"GET /len/5 HTTP/1.1\r\nHost: h\r\n\r\nGET /deny HTTP/1.1\r\nHost: h\r\n\r\n");
    assert!(pair.to_client[output as usize..].starts_with(b"HTTP/1.1 403 "), "{:?}", pair.reasons);
}

#[test]
fn a_request_after_our_end_is_refused() {
    let config = config(Wire::Plain);
    let mut state = Pair::new(&config, setup::HTTP).replicated;
    assert!(restore(&state, &config).is_ok());
    state.server.phase = Phase::Ended;
    let refused = restore(&state, &config).map(|_| ());
    assert_eq!(refused, Err(RestoreError::Inconsistent("a request after the end")));
}

#[test]
fn tunnel_with_an_ended_server_resumes_on_a_repeated_request() {
    const ASKED: &[u8] = b"GET /ws HTTP/1.1\r\nHost: h\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n";
    const AGREED: &[u8] = b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n";
    let config = config(Wire::Plain);
    let mut pair = Pair::new(&config, setup::HTTP);
    pair.client_sends(ASKED);
    let leg = pair.open();
    let head = pair.to_server.clone();
    pair.server_sends(&[AGREED, b"bye"].concat());
    pair.call(|conn, io| conn.handle_server_end(io, leg));
    // The client acknowledges all; the server never does.
    let output = pair.conn.output_position();
    pair.call(|conn, io| conn.handle_client_acked(io, output));
    let state = pair.replicated;
    assert_eq!((&state.server.phase, &state.client.phase), (&Phase::Ended, &Phase::Head));
    let mut pair = Pair::restore(&state, &config);
    pair.client_sends(&[ASKED, b"and more"].concat());
    assert_eq!((pair.to_server, pair.to_client), ([&head, &b"and more"[..]].concat(), Vec::new()));
    assert_eq!((pair.closed, pair.reasons), (None, Vec::new()));
}

/// Whether a server's 101 passes is decided alike before and after the request's head came again.
#[test]
fn a_restored_connection_knows_what_the_client_offered() {
    const ASKED: &[u8] = b"GET /ws HTTP/1.1\r\nHost: h\r\nConnection: upgrade\r\nUpgrade: echo, chat\r\n\r\n";
    let config = config(Wire::Plain);
    let mut pair = Pair::new(&config, setup::HTTP);
    pair.client_sends(ASKED);
    pair.open();
    let state = pair.replicated;
    for (taken, status) in [("chat", "101"), ("ECHO", "101"), ("other", "502"), ("chat, other", "502")] {
        for head_first in [false, true] {
            let mut pair = Pair::restore(&state, &config);
            if head_first {
                pair.client_sends(ASKED);
            }
            let switched = format!("HTTP/1.1 101 X\r\nConnection: upgrade\r\nUpgrade: {taken}\r\n\r\n");
            pair.server_sends(switched.as_bytes());
            let reported = String::from_utf8_lossy(&pair.to_client).into_owned();
            assert!(
                reported.starts_with(&format!("HTTP/1.1 {status} ")),
                "{taken}, {head_first}: {reported:?}"
            );
        }
    }
}

#[test]
fn a_route_without_the_handshake_that_it_needs_is_refused() {
    let config = config(Wire::Plain);
    let (_, mut pair) = greeted(&config, setup::TLS);
    pair.open();
    let mut state = pair.replicated;
    let consumed = state.established.take().unwrap().consumed;
    assert_eq!((state.client.input, state.routes.len(), state.hello.is_some()), (consumed, 1, true));
    let refused = restore(&state, &config).map(|_| ());
    assert!(matches!(refused, Err(RestoreError::Inconsistent(_))), "{refused:?}");
    state.routes.clear();
    assert_eq!(restore(&state, &config).map(|(pair, _)| pair.dialled.is_some()), Ok(true));
}

/// A plaintext client has sent `reported` to a TLS server, which has acknowledged nothing but its handshake.
fn upload(config: &Arc<Snapshot>, reported: &[u8]) -> (ConnectionState, Vec<u8>) {
    upload_in_pieces(config, &mut [reported].into_iter())
}

fn upload_in_pieces(
    config: &Arc<Snapshot>,
    reported: &mut dyn Iterator<Item = &[u8]>,
) -> (ConnectionState, Vec<u8>) {
    let mut server = ServerTls::new(16_384, false, 1);
    let mut pair = Pair::new(config, setup::TCP);
    pair.open();
    while !server.is_open() {
        let mut answer = Vec::new();
        server.take(&std::mem::take(&mut pair.to_server), &mut answer);
        pair.server_sends(&answer);
    }
    pair.to_server.clear();
    reported.for_each(|piece| pair.client_sends(piece));
    let tls = pair.replicated.leg_tls(1).expect("secrets are replicated").clone();
    assert!(!pair.replicated.leg_boundaries.is_empty(), "records are decided");
    (pair.replicated, [tls.flight, pair.to_server].concat())
}

#[test]
fn client_with_other_bytes_the_second_time_reuses_no_nonce() {
    for behind in [Wire::Tls12, Wire::Tls13] {
        let (config, reported) = (config(behind), noise(3000, 1));
        let (state, sent) = upload(&config, &reported);
        let mut same = Pair::restore(&state, &config);
        let flight = same.to_server.len();
        same.client_sends(&reported[..2999]);
        assert_eq!(same.to_server.len(), flight, "a run leaves as a whole or not at all");
        same.client_sends(&reported[2999..]);
        assert_eq!((same.closed, same.to_server == sent), (None, true));
        let mut other = reported.clone();
        other[2999] ^= 1;
        let mut pair = Pair::restore(&state, &config);
        pair.client_sends(&other);
        assert_eq!((pair.closed, &pair.reasons[..]), (Some(true), &["response_replay_mismatch"][..]));
        assert_eq!(pair.to_server.len(), flight, "nothing of the other bytes leaves");
        let mut pair = Pair::restore(&state, &config);
        pair.client_sends(&reported[..2999]);
        pair.call(|conn, io| conn.handle_client_end(io));
        assert_eq!((pair.closed, &pair.reasons[..]), (Some(true), &["response_replay_mismatch"][..]));
        assert_eq!(pair.to_server.len(), flight, "no alert in place of a decided record");
    }
}

/// The same as for a server that sends little at a time, towards a TLS server.
#[test]
fn full_client_stash_inside_a_run_frees_space_with_server_acks() {
    for behind in [Wire::Tls12, Wire::Tls13] {
        let (config, reported) = (config(behind), noise(6 * RUN_BYTES_MAX, 4));
        let mut pieces = [&reported[..5000]].into_iter().chain(reported[5000..].chunks(50_000));
        let (mut state, sent) = upload_in_pieces(&config, &mut pieces);
        state.client_stash = evergate_replication::Stash { position: 0, bytes: reported[..1 << 20].to_vec() };
        let mut pair = Pair::restore(&state, &config);
        for segment in reported[1 << 20..].chunks(1428) {
            pair.call(|conn, io| conn.handle_server_acked(io, 1, u64::MAX));
            let before = pair.replicated.client_frontier();
            pair.client_sends(segment);
            pair.call(|conn, io| conn.handle_client_stall(io));
            assert_eq!(pair.replicated.client_frontier(), before + segment.len() as u64, "acknowledged");
        }
        assert!(pair.to_server == sent, "the same records");
    }
}

/// Refused input was read: none of it is stashed behind the replicated input, and the next node refuses the same.
#[test]
fn a_handshake_that_is_refused_counts_as_read() {
    let config = config(Wire::Plain);
    let unreadable = vec![22, 3, 1, 0, 8, 1, 0, 0, 4, 0xaa, 0xaa, 0xaa, 0xaa];
    let too_old = [&[22, 3, 1, 0, 45, 1, 0, 0, 41, 3, 1][..], &[7; 32], &[0, 0, 2, 0, 47, 1, 0]].concat();
    let (_, hello) = Peer::ours(&rustls::version::TLS12, 1);
    for (hello, then) in
        [(unreadable, vec![22, 3]), (too_old, vec![22, 3]), (hello, vec![22, 9, 9, 0, 4, 1, 22])]
    {
        let mut pair = Pair::new(&config, setup::HTTPS);
        pair.client_sends(&hello);
        pair.client_sends(&then);
        pair.call(|conn, io| conn.handle_client_stall(io));
        pair.replicated.check_invariants();
        assert_eq!(pair.replicated.client_frontier(), (hello.len() + then.len()) as u64);
        assert_eq!(pair.to_client[pair.to_client.len() - 7], 21, "an alert");
        let (again, _) = restore(&pair.replicated, &config).unwrap();
        assert!(again.to_client == pair.to_client, "{:?}", again.reasons);
    }
}

#[test]
fn a_route_to_a_tls_server_without_its_secrets_is_refused() {
    let config = config(Wire::Tls13);
    let (mut state, _) = upload(&config, b"hello");
    let edits: [&dyn Fn(&mut evergate_replication::Route); 4] = [
        &|route| route.tls = None,
        &|route| route.tls.as_mut().unwrap().records.truncate(9),
        &|route| route.pool = 2, // in clear
        &|route| route.pool = 99,
    ];
    for edit in edits {
        let mut state = state.clone();
        state.routes.values_mut().for_each(edit);
        let refused = restore(&state, &config).map(|_| ());
        assert!(matches!(refused, Err(RestoreError::Inconsistent(_))), "{refused:?}");
    }
    state.client.leg = 1;
    state.client.tx.generation = 2000;
    assert!(matches!(restore(&state, &config).map(|_| ()), Err(RestoreError::Inconsistent(_))));
}

#[test]
fn a_key_that_is_almost_used_up_ends_its_connection_in_order() {
    for (sequence, ends) in [(1 << 23, false), ((1 << 24) / 16 * 15, true)] {
        let config = config(Wire::Plain);
        let (mut peer, hello) = Peer::ours(&rustls::version::TLS12, 1);
        let mut pair = Pair::new(&config, setup::HTTPS);
        pair.client_sends(&hello);
        let finished = peer.receive(&std::mem::take(&mut pair.to_client));
        pair.client_sends(&finished);
        peer.receive(&std::mem::take(&mut pair.to_client));
        let output = pair.conn.output_position();
        pair.call(|conn, io| conn.handle_client_acked(io, output));
        let mut state = pair.replicated;
        state.server.tx.sequence = sequence;
        let (mut pair, _) = restore(&state, &config).unwrap();
        let request = peer.send(b"GET / HTTP/1.1\r\nHost: test.example\r\n\r\n");
        pair.client_sends(&request);
        pair.open();
        let routes: Vec<_> = pair.replicated.routes.values().map(|route| route.flags.close).collect();
        assert_eq!(routes, [ends]);
    }
}

/// All is in our kernel's hands, and the client takes it at its own pace.
#[test]
fn slow_client_of_an_ending_connection_has_time_while_it_reads() {
    let config = config(Wire::Plain);
    let mut pair = Pair::new(&config, setup::HTTP);
    pair.client_sends(b"GET / HTTP/1.1\r\nHost: test.example\r\nConnection: close\r\n\r\n");
    pair.open();
    let body = noise(1_000_000, 1);
    pair.server_sends(&[b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n", &body[..]].concat());
    let all = pair.conn.output_position();
    for output in (0..all).step_by(100_000) {
        assert_eq!(pair.closed, None, "after {output} bytes");
        pair.now = pair.now + Micros::from_ms(20_000);
        pair.call(|conn, io| conn.handle_client_acked(io, output));
        pair.call(|conn, io| conn.handle_timeout(io));
    }
    pair.call(|conn, io| conn.handle_client_acked(io, all));
    pair.expire();
    assert_eq!(pair.closed, Some(false));
}

/// With backups input is acknowledged when the client has it, and no more may be under way, least of all after a
/// failover.
#[test]
fn server_is_not_late_while_its_slow_client_reads() {
    let config = config(Wire::Plain);
    for takes in [true, false] {
        let mut pair = Pair::new(&config, setup::HTTP);
        pair.client_sends(b"GET / HTTP/1.1\r\nHost: test.example\r\n\r\n");
        pair.open();
        pair.server_sends(
            &[b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n", &noise(300_000, 1)[..]].concat(),
        );
        let sent = pair.conn.output_position();
        let mut looks = 0;
        for output in (0..sent).step_by(10_000) {
            pair.now = pair.now + Micros::from_ms(20_000);
            pair.call(|conn, io| conn.handle_client_acked(io, if takes { output } else { 0 }));
            pair.call(|conn, io| conn.handle_timeout(io));
            looks += 1;
            if pair.closed.is_some() {
                break;
            }
        }
        assert!(if takes { looks > 30 } else { looks < 9 }, "takes {takes}: {looks} times 20 s");
        pair.call(|conn, io| conn.handle_client_acked(io, sent));
        pair.expire();
        pair.expire();
        assert_eq!(pair.reasons, ["response_timeout"], "takes {takes}");
    }
}
