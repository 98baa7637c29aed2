//! An observed handshake between any two sides has one result, whatever the segmentation, and is done with it. What is
//! learned was offered by the client or made by the server in a handshake to which both sent records.

#![no_main]

use evergate_base::Micros;
use evergate_base::session::SessionHasher;
use evergate_fuzz::input::{Choices, chunks, split};
use evergate_tls::{
    ClientHello, HelloScan, HelloStatus, Observation, PSK_IDENTITIES_MAX, SessionObserver, SessionOffer,
    alert, hello_message, read_hello,
};
use libfuzzer_sys::fuzz_target;

const KEY: [u64; 2] = [7, 9];
const HELLO_BYTES_MAX: usize = 16 << 10;

fuzz_target!(|data: &[u8]| {
    let (choices, payload) = split(data);
    let mut parts = chunks(payload);
    let Some(raw) = parts.next() else { return };
    let HelloStatus::Complete { len } = HelloScan::new(HELLO_BYTES_MAX).advance(raw) else { return };
    let (raw, early) = raw.split_at(len);
    let message = hello_message(raw).expect("the hello is whole");
    let Ok(hello) = ClientHello::read(&message) else {
        assert!(read_hello(raw).is_none());
        return;
    };
    if let Err(fault) = hello.check() {
        assert!([alert::DECODE_ERROR, alert::ILLEGAL_PARAMETER].contains(&fault.alert()));
        return;
    }
    let offer = SessionOffer::new(&hello, &SessionHasher::new(KEY));
    assert!(offer.hashes().count() <= PSK_IDENTITIES_MAX + 1);
    assert_eq!(
        hello.psk().is_some(),
        hello.psk().is_some_and(|psk| psk.identities().count() == psk.binders().count())
    );
    let rest: Vec<(u8, &[u8])> = std::iter::once((0, early))
        .chain(parts.filter_map(|part| Some((*part.first()?, &part[1..]))))
        .collect();
    let whole = observe(&hello, &rest, None);
    let cut = observe(&hello, &rest, Some(&choices));
    assert_eq!(whole, cut, "the segmentation decided");
    let Some(observation) = whole else { return };
    match observation {
        Observation::Full(completed) => assert_eq!(completed.reused, None),
        Observation::Resumed(completed) if completed.version != 0x0304 => assert!(completed.reused.is_some()),
        Observation::Resumed(_) => {}
        Observation::Failed(_) => assert_eq!(observation.learned().count(), 0),
    }
    assert!(observation.learned().count() <= 2);
    if !matches!(observation, Observation::Failed(_)) {
        for side in 0..2 {
            let sent: usize = rest.iter().filter(|part| part.0 & 1 == side).map(|part| part.1.len()).sum();
            assert!(sent > 5, "complete without a record of side {side}");
        }
    }
});

/// Observes the rest of a conversation: parts of a client (even) and of a server (odd).
fn observe(
    hello: &ClientHello<'_>,
    rest: &[(u8, &[u8])],
    choices: Option<&Choices<'_>>,
) -> Option<Observation> {
    let mut observer = SessionObserver::new(hello, SessionHasher::new(KEY), Micros(0));
    let mut result = None;
    for (side, part) in rest {
        let pieces = choices.map_or(vec![*part], |choices| choices.pieces(part));
        for piece in pieces {
            let observation = match side & 1 {
                0 => observer.handle_client(piece, Micros(1)),
                _ => observer.handle_server(piece, Micros(1)),
            };
            assert!(result.is_none() || observation.is_none(), "a second result");
            result = result.or(observation);
            assert_eq!(observer.is_done(), result.is_some());
        }
    }
    assert_eq!(observer.handle_close().is_some(), result.is_none());
    result
}
