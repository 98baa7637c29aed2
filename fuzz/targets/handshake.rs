//! A server's handshake depends on the client's bytes and not on their segmentation: the same flight, the same end, the
//! same record layer. This is law 0 of `docs/internals/failover.md`, on which recovery of a connection in its handshake
//! relies.

#![no_main]

use evergate_base::session::Sealed;
use evergate_fuzz::fixture::{handshake_params, server_configs};
use evergate_fuzz::input::split;
use evergate_tls::{Handshake, HelloStatus, Progress, hello_status, read_hello};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let (mut choices, bytes) = split(data);
    let config = usize::from(choices.byte()) % server_configs().len();
    let _ = read_hello(bytes);
    match hello_status(bytes, 1 << 14) {
        HelloStatus::Complete { len } => {
            assert_eq!(hello_status(&bytes[..len], 1 << 14), HelloStatus::Complete { len });
            assert_eq!(hello_status(&bytes[..len - 1], 1 << 14), HelloStatus::Partial);
        }
        verdict => {
            let mut end = 0;
            let pieces = choices.pieces(bytes);
            let verdicts = pieces.iter().map(|piece| {
                end += piece.len();
                hello_status(&bytes[..end], 1 << 14)
            });
            let first = verdicts.into_iter().find(|verdict| *verdict != HelloStatus::Partial);
            assert_eq!(first.unwrap_or(HelloStatus::Partial), verdict);
        }
    }
    let at_once = run(config, &[bytes]);
    let split = run(config, &choices.pieces(bytes));
    assert_eq!(at_once, split, "the handshake depends on the segmentation");
});

/// Visible result of a handshake.
#[derive(Debug, PartialEq)]
struct Course {
    flight: Vec<u8>,
    outcome: String,
    /// Secrets and positions.
    records: Vec<u8>,
    /// Client bytes after the handshake.
    rest: Vec<u8>,
}

fn run(config: usize, pieces: &[&[u8]]) -> Course {
    let mut handshake =
        Handshake::new(&server_configs()[config], &handshake_params()).expect("the settings fit");
    let whole = pieces.concat();
    if let Some(id) = handshake.session_wanted(&whole) {
        handshake.resume_from(Sealed(id.repeat(5))); // not sealed by any key
    }
    let mut course =
        Course { flight: Vec::new(), outcome: "open".into(), records: Vec::new(), rest: Vec::new() };
    let mut pieces = pieces.iter();
    while let Some(piece) = pieces.next() {
        match handshake.handle_input(piece, &mut course.flight) {
            Ok(Progress::NeedInput) => {}
            Ok(Progress::Done) => {
                let finished = handshake.finish().expect("done means done");
                finished.records.export().encode(&mut course.records);
                course.outcome =
                    format!("done {} {:?} {:?}", finished.consumed, finished.facts, finished.session);
                course.rest = finished.leftover;
                pieces.for_each(|piece| course.rest.extend_from_slice(piece));
                return course;
            }
            Err(error) => {
                course.outcome = format!("failed {} {error}", handshake.consumed());
                return course;
            }
        }
    }
    course
}
