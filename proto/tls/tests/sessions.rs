//! Observed handshakes: conversations of OpenSSL's client and server, as `tests/conversations/record.py` records them.

use evergate_base::Micros;
use evergate_base::session::{SessionHasher, SessionName};
use evergate_tls::{
    ClientHello, Completed, FailReason, Failed, HelloScan, HelloStatus, NewSession, Observation,
    SessionObserver, SessionOffer, hello_message,
};
use proptest::prelude::*;

const HELLO_BYTES_MAX: usize = 16 << 10;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Side {
    Client,
    Server,
}

type Conversation = Vec<(Side, Vec<u8>)>;

fn read(text: &str) -> Conversation {
    let byte = |hex: &[u8]| u8::from_str_radix(std::str::from_utf8(hex).unwrap(), 16).unwrap();
    let line = |line: &str| {
        let side = if line.starts_with('>') { Side::Client } else { Side::Server };
        (side, line.as_bytes()[2..].chunks(2).map(byte).collect())
    };
    text.lines().map(line).collect()
}

macro_rules! conversation {
    ($name:literal) => {
        read(include_str!(concat!("conversations/", $name, ".txt")))
    };
}

fn all() -> Vec<Conversation> {
    vec![
        conversation!("tls12_id_full"),
        conversation!("tls12_id_resumed"),
        conversation!("tls12_ticket_full"),
        conversation!("tls12_ticket_resumed"),
        conversation!("tls12_ticket_unknown"),
        conversation!("tls12_refused"),
        conversation!("tls13_full"),
        conversation!("tls13_resumed"),
        conversation!("tls13_refused"),
        conversation!("tls13_no_version"),
        conversation!("tls13_retry_full"),
        conversation!("tls13_retry_resumed"),
        conversation!("tls13_early_full"),
        conversation!("tls13_early_resumed"),
    ]
}

fn hasher() -> SessionHasher {
    SessionHasher::new([7, 9])
}

/// What the observer reported, and after how many pieces.
struct Observed {
    offer: SessionOffer,
    observation: Option<Observation>,
    pieces: usize,
}

/// Observes a conversation in pieces of at most `size` bytes. Each piece of the conversation takes a millisecond.
fn observe_in(conversation: &[(Side, Vec<u8>)], size: usize) -> Observed {
    let (mut scan, mut hello) = (HelloScan::new(HELLO_BYTES_MAX), Vec::new());
    let mut started: Option<(SessionOffer, SessionObserver)> = None;
    let mut result = None;
    let mut pieces = 0;
    for (number, (side, bytes)) in conversation.iter().enumerate() {
        let now = Micros::from_ms(number as u64);
        for piece in bytes.chunks(size) {
            let mut piece = piece.to_vec();
            if started.is_none() {
                hello.extend_from_slice(&piece);
                let HelloStatus::Complete { len } = scan.advance(&hello) else { continue };
                let message = hello_message(&hello).unwrap();
                let read = ClientHello::read(&message).unwrap();
                if read.check().is_err() {
                    return Observed { offer: SessionOffer::default(), observation: None, pieces: 0 };
                }
                let observer = SessionObserver::new(&read, hasher(), now);
                started = Some((SessionOffer::new(&read, &hasher()), observer));
                piece = hello.split_off(len);
            }
            let Some((_, observer)) = &mut started else { continue };
            let observation = match side {
                Side::Client => observer.handle_client(&piece, now),
                Side::Server => observer.handle_server(&piece, now),
            };
            assert!(result.is_none() || observation.is_none(), "one result");
            assert_eq!(observer.is_done(), observation.is_some() || result.is_some());
            if observation.is_some() {
                (result, pieces) = (observation, number + 1);
            }
        }
    }
    let offer = started.map(|(offer, _)| offer).unwrap_or_default();
    Observed { offer, observation: result, pieces }
}

fn observe(conversation: &[(Side, Vec<u8>)]) -> Observed {
    observe_in(conversation, usize::MAX)
}

fn full(observed: &Observed) -> Completed {
    match observed.observation {
        Some(Observation::Full(completed)) => completed,
        other => panic!("{other:?}"),
    }
}

fn resumed(observed: &Observed) -> Completed {
    match observed.observation {
        Some(Observation::Resumed(completed)) => completed,
        other => panic!("{other:?}"),
    }
}

fn failed(observed: &Observed) -> Failed {
    match observed.observation {
        Some(Observation::Failed(failed)) => failed,
        other => panic!("{other:?}"),
    }
}

#[test]
fn tls12_session_is_found_by_its_id() {
    let (first, second) =
        (observe(&conversation!("tls12_id_full")), observe(&conversation!("tls12_id_resumed")));
    let made = full(&first).made.unwrap();
    assert_eq!((full(&first).version, made.lifetime_s), (0x0303, None));
    assert_eq!(first.offer.hashes().count(), 1, "the random id of a client of TLS 1.3 looks like a session");
    assert_ne!(first.offer.hashes().next(), Some(made.hash));
    assert_eq!(second.offer.hashes().collect::<Vec<_>>(), [made.hash]);
    assert_eq!((resumed(&second).reused, resumed(&second).made), (Some(made.hash), None));
    assert_eq!((first.pieces, second.pieces), (4, 3), "learned at the last Finished");
}

#[test]
fn tls12_session_is_found_by_its_ticket() {
    let (first, second) =
        (observe(&conversation!("tls12_ticket_full")), observe(&conversation!("tls12_ticket_resumed")));
    let made = full(&first).made.unwrap();
    assert_eq!(made.lifetime_s, Some(7200));
    assert_eq!(second.offer.hashes().collect::<Vec<_>>(), [made.hash], "its id is noise");
    assert_eq!((resumed(&second).reused, resumed(&second).made), (Some(made.hash), None));
    let learned: Vec<_> = resumed(&second).reused.into_iter().collect();
    assert_eq!(
        second.observation.unwrap().learned().map(|session| session.hash).collect::<Vec<_>>(),
        learned
    );
}

#[test]
fn ticket_that_the_server_does_not_know_makes_a_session() {
    let observed = observe(&conversation!("tls12_ticket_unknown"));
    let (completed, offered) = (full(&observed), observed.offer.hashes().next().unwrap());
    assert!(completed.made.unwrap().hash != offered && completed.reused.is_none());
}

#[test]
fn renewed_ticket_is_learned_beside_the_resumed_one() {
    let mut conversation = conversation!("tls12_ticket_resumed");
    let before = resumed(&observe(&conversation));
    let renewal = conversation!("tls12_ticket_unknown")[3].1[..191].to_vec(); // its first record
    let answer = &mut conversation[1].1;
    let hello_record = answer.len() - 51;
    answer.splice(hello_record..hello_record, renewal.iter().copied());
    let observed = observe(&conversation);
    let ticket = hasher().hash(SessionName::Ticket, &renewal[15..]);
    let completed = resumed(&observed);
    assert_eq!(completed.reused, before.reused);
    assert_eq!(completed.made, Some(NewSession { hash: ticket, lifetime_s: Some(7200) }));
    assert_eq!(observed.observation.unwrap().learned().count(), 2);
}

#[test]
fn tls13_identity_is_learned_when_it_is_accepted() {
    for (first, second, retried) in [
        (conversation!("tls13_full"), conversation!("tls13_resumed"), false),
        (conversation!("tls13_early_full"), conversation!("tls13_early_resumed"), false),
        (conversation!("tls13_retry_full"), conversation!("tls13_retry_resumed"), true),
    ] {
        let (first, second) = (observe(&first), observe(&second));
        assert_eq!((full(&first).version, full(&first).made), (0x0304, None), "tickets are encrypted");
        assert_eq!(first.observation.unwrap().learned().count(), 0, "a random id is not learned");
        let offered: Vec<_> = second.offer.hashes().collect();
        assert_eq!((resumed(&second).reused, offered.len()), (Some(offered[0]), 1));
        assert_eq!(resumed(&second).version, 0x0304);
        assert_eq!(second.pieces, if retried { 5 } else { 3 });
    }
}

#[test]
fn refused_handshake_teaches_nothing() {
    for (conversation, alert) in [
        (conversation!("tls12_refused"), 48), // unknown_ca
        (conversation!("tls13_refused"), 48),
        (conversation!("tls13_no_version"), 70), // protocol_version
    ] {
        let observed = observe(&conversation);
        assert_eq!(failed(&observed), Failed { reason: FailReason::Alert(alert), forget: None });
        assert_eq!(observed.observation.unwrap().learned().count(), 0);
    }
}

#[test]
fn accepted_session_is_forgotten_after_a_fatal_alert() {
    for (conversation, reason, alert) in [
        (conversation!("tls12_id_resumed"), FailReason::Alert(40), [21, 3, 3, 0, 2, 2, 40].to_vec()),
        (conversation!("tls12_ticket_resumed"), FailReason::Alert(40), [21, 3, 3, 0, 2, 2, 40].to_vec()),
        (conversation!("tls13_resumed"), FailReason::Alert(40), [21, 3, 3, 0, 2, 2, 40].to_vec()),
        (
            conversation!("tls13_resumed"),
            FailReason::ProtectedAlert,
            [&[23, 3, 3, 0, 19][..], &[0; 19]].concat(),
        ),
    ] {
        let mut conversation = conversation;
        conversation.truncate(2);
        conversation.push((Side::Client, alert));
        let observed = observe(&conversation);
        let session = observed.offer.hashes().next();
        assert_eq!(failed(&observed), Failed { reason, forget: session });
    }
    // The server's Finished does not verify for the client, or the client's for the server.
    let mut conversation = conversation!("tls12_id_resumed");
    conversation.truncate(2);
    conversation.push((Side::Server, [&[21, 3, 3, 0, 26][..], &[0; 26]].concat()));
    let observed = observe(&conversation);
    assert_eq!(failed(&observed).reason, FailReason::ProtectedAlert);
    assert!(failed(&observed).forget.is_some());
}

#[test]
fn close_before_the_end_teaches_nothing() {
    for conversation in all() {
        let whole = observe(&conversation);
        for pieces in 1..whole.pieces {
            let observed = observe(&conversation[..pieces]);
            assert_eq!(observed.observation, None, "after {pieces} pieces");
        }
        let message = hello_message(&conversation[0].1).unwrap();
        let mut observer = SessionObserver::new(&ClientHello::read(&message).unwrap(), hasher(), Micros(0));
        observer.handle_server(&conversation[1].1[..20.min(conversation[1].1.len() - 1)], Micros(1));
        let closed = Observation::Failed(Failed { reason: FailReason::Closed, forget: None });
        assert_eq!((observer.handle_close(), observer.handle_close()), (Some(closed), None));
    }
}

#[test]
fn observation_does_not_depend_on_the_segmentation() {
    for conversation in all() {
        let whole = observe(&conversation);
        for size in [1, 2, 3, 5, 7, 16, 100] {
            let observed = observe_in(&conversation, size);
            assert_eq!((observed.observation, observed.pieces), (whole.observation, whole.pieces), "{size}");
            assert_eq!(observed.offer, whole.offer);
        }
    }
}

/// The conversation with handshake messages in clear cut into records of `size` bytes.
fn fragmented(conversation: &[(Side, Vec<u8>)], size: usize) -> Conversation {
    let mut has_changed = [false; 2];
    let fragment = |(side, bytes): &(Side, Vec<u8>)| {
        let (mut out, mut rest) = (Vec::new(), &bytes[..]);
        while let Some((&[kind, a, b, hi, lo], after)) = rest.split_first_chunk() {
            let (body, next) = after.split_at(usize::from(u16::from_be_bytes([hi, lo])));
            let changed = &mut has_changed[usize::from(*side == Side::Server)];
            let size = if kind == 22 && !*changed { size } else { usize::MAX };
            *changed |= kind == 20;
            for part in body.chunks(size) {
                out.extend_from_slice(&[kind, a, b]);
                out.extend_from_slice(&(part.len() as u16).to_be_bytes());
                out.extend_from_slice(part);
            }
            rest = next;
        }
        (*side, out)
    };
    conversation.iter().map(fragment).collect()
}

#[test]
fn observation_does_not_depend_on_the_records() {
    for conversation in all() {
        let whole = observe(&conversation);
        for size in [1, 3, 4, 5, 50, 1000] {
            let observed = observe(&fragmented(&conversation, size));
            assert_eq!((observed.observation, observed.pieces), (whole.observation, whole.pieces), "{size}");
            assert_eq!(observed.offer, whole.offer);
        }
    }
}

/// Each piece takes a millisecond: hello at 0, the server's answer at 1, and so on.
#[test]
fn time_of_the_server_excludes_the_clients() {
    let timing = |observed: &Observed, completed: fn(&Observed) -> Completed| {
        let timing = completed(observed).timing;
        (timing.to_finished.as_ms(), timing.at_server.as_ms())
    };
    assert_eq!(timing(&observe(&conversation!("tls12_id_full")), full), (3, 2));
    assert_eq!(timing(&observe(&conversation!("tls12_id_resumed")), resumed), (1, 1));
    assert_eq!(timing(&observe(&conversation!("tls13_full")), full), (1, 1));
    assert_eq!(timing(&observe(&conversation!("tls13_resumed")), resumed), (1, 1));
    assert_eq!(timing(&observe(&conversation!("tls13_retry_full")), full), (3, 2));
}

#[test]
fn bytes_that_are_no_handshake_end_the_observation() {
    let hello = conversation!("tls12_id_resumed").swap_remove(0);
    let reason = |server: &[u8]| failed(&observe(&[hello.clone(), (Side::Server, server.to_vec())])).reason;
    assert_eq!(reason(b"HTTP/1.1 400"), FailReason::NotTls);
    assert_eq!(reason(&[22, 2]), FailReason::NotTls);
    assert_eq!(reason(&[22, 3, 3, 0x7f, 0xff]), FailReason::NotTls);
    assert_eq!(reason(&[22, 3, 3, 0, 4, 2, 0, 0x10, 1]), FailReason::TooLong);
    assert!(matches!(reason(&[20, 3, 3, 0, 1, 1]), FailReason::Unexpected(_)));
    assert!(matches!(reason(&[23, 3, 3, 0, 1, 1]), FailReason::Unexpected(_)));
    assert!(matches!(reason(&[22, 3, 3, 0, 4, 11, 0, 0, 0]), FailReason::Unexpected(_)));
    assert_eq!(reason(&[21, 3, 3, 0, 2, 1, 0]), FailReason::Closed);
    let warned = observe(&[hello.clone(), (Side::Server, vec![21, 3, 3, 0, 2, 1, 112])]);
    assert_eq!(warned.observation, None, "unrecognized_name is a warning");
    // A handshake without an end.
    let mut answer = conversation!("tls12_id_full").swap_remove(1).1;
    answer.splice(98.., std::iter::empty());
    let record = [&[22, 3, 3, 0x40, 0][..], &[0; 1 << 14]].concat();
    (0..16).for_each(|_| answer.extend_from_slice(&record));
    assert_eq!(reason(&answer), FailReason::TooLong);
}

#[test]
fn server_that_resumes_nothing_offered_is_refused() {
    let mut conversation = conversation!("tls12_id_resumed");
    conversation[0] = conversation!("tls12_id_full").swap_remove(0);
    let reason = failed(&observe(&conversation)).reason;
    assert_eq!(reason, FailReason::Unexpected("ChangeCipherSpec without a key exchange"));
    let mut conversation = conversation!("tls12_id_resumed");
    conversation[1].1[50] ^= 1; // another session id
    assert_eq!(failed(&observe(&conversation)).reason, reason);
}

proptest! {
    #[test]
    fn damaged_conversation_has_one_observation(
        which in 0..14_usize, size in 1..40_usize,
        damage in proptest::collection::vec((any::<usize>(), any::<usize>(), any::<u8>()), 1..4),
    ) {
        let mut conversation = all().swap_remove(which);
        for (piece, at, byte) in damage {
            let pieces = conversation.len();
            let bytes = &mut conversation[1.min(pieces - 1) + piece % (pieces - 1)].1;
            let at = at % bytes.len();
            bytes[at] = byte;
        }
        let (whole, cut) = (observe(&conversation), observe_in(&conversation, size));
        prop_assert_eq!(whole.observation, cut.observation);
        prop_assert_eq!(whole.pieces, cut.pieces);
    }
}
