//! What a connection relays without backups: exact bytes at both ends.

#[path = "../harness/mod.rs"]
mod harness;

mod bodies;
mod bound;
mod ends;
mod errors;
mod failures;
mod forwarded;
mod passthrough;
mod requests;
mod rules;
mod tls;
mod tunnels;

use harness::peer::Peer;
use harness::rig::Rig;
use harness::setup::{self, snapshot};

const GET: &str = "GET /a HTTP/1.1\r\nHost: test.example\r\n";
const TLS13: &rustls::SupportedProtocolVersion = &rustls::version::TLS13;
const TLS12: &rustls::SupportedProtocolVersion = &rustls::version::TLS12;

/// A client of each kind on the HTTP listener of its kind, with the scheme that servers see.
fn on_each(test: impl Fn(Rig, &str)) {
    test(Rig::new(&snapshot(|_| {}), setup::HTTP, Peer::plain()), "http");
    for version in [TLS12, TLS13] {
        test(Rig::new(&snapshot(|_| {}), setup::HTTPS, Peer::rustls(version)), "https");
    }
}

fn plain(edit: impl FnOnce(&mut evergate_connection::Snapshot)) -> Rig {
    Rig::new(&snapshot(edit), setup::HTTP, Peer::plain())
}

/// Bytes without a pattern that segmentation could hide behind.
fn noise(len: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    (0..len.div_ceil(8)).flat_map(|_| next()).take(len).collect()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn same(got: &[u8], expected: &[u8]) {
    if got != expected {
        let at = got.iter().zip(expected).position(|(a, b)| a != b).unwrap_or(got.len().min(expected.len()));
        let show =
            |bytes: &[u8]| text(&bytes[at.saturating_sub(60).min(bytes.len())..bytes.len().min(at + 200)]);
        panic!(
            "differs at {at} ({} and {} bytes):\n got {:?}\n expected {:?}",
            got.len(),
            expected.len(),
            show(got),
            show(expected)
        );
    }
}
