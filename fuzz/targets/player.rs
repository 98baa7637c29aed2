//! Packets of a connection, any network's: the player never panics, stays within its bounds, ends, and hands out at
//! most what the packets carried. Its report counts every packet.
//!
//! The first byte sets the bounds. A chunk is a frame: how it comes, and its bytes. Secrets are those of the recorded
//! sessions that are the seeds.

#![no_main]

use evergate_evidence::record::{Gap, GapReason};
use evergate_fuzz::input::chunks;
use evergate_evidence::secrets::{Label, SecretList};
use evergate_player::key_log::KeyLog;
use evergate_player::tls::RsaExchange;
use evergate_player::{Ends, Event, Limits, SecretSource, Session};
use evergate_recorder::frame::{Content, Frame};
use libfuzzer_sys::fuzz_target;
use std::sync::LazyLock;

static KEYS: LazyLock<Keys> = LazyLock::new(|| {
    Keys(KeyLog::parse(include_bytes!("../../proto/player/tests/fixture/keys.txt")).expect("a key log"))
});

/// Secrets of the seeds, and a server's key that decrypts every key exchange to the same premaster secret.
struct Keys(KeyLog);

impl SecretSource for Keys {
    fn secrets(&self, client_random: &[u8; 32]) -> Option<SecretList> {
        self.0.secrets(client_random)
    }

    fn has_server_keys(&self) -> bool {
        true
    }

    fn exchange_secrets(&self, exchange: &RsaExchange) -> Option<SecretList> {
        let mut premaster = [7; 48];
        premaster[..2].copy_from_slice(&[3, 3]);
        let mut list = SecretList::default();
        list.set(Label::MasterSecret, &exchange.master_secret(&premaster)?).ok()?;
        Some(list)
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((&first, rest)) = data.split_first() else { return };
    let _ = KeyLog::parse(rest);
    let memory = 16usize << 10 << (first & 7);
    let limits =
        Limits { pending: memory, history: memory / 4, records: memory, copies: 8, ..Limits::default() };
    let Some(ends) = chunks(rest).find_map(|chunk| ends_of(chunk.get(1..)?)) else { return };
    let mut session = Session::new(ends, &limits);
    let (mut packets, mut carried, mut shown, mut now_ns) = (0, 0, 0, 1);
    for chunk in chunks(rest) {
        let Some((&how, frame)) = chunk.split_first() else { continue };
        now_ns += 1;
        if how & 1 != 0 {
            let reason = GapReason::Ring;
            session.on_gap(Gap { reason, exact: true, count: 1, from_ns: now_ns - 1, to_ns: now_ns });
        }
        for _ in 0..=u32::from(how >> 6 == 3) * 1100 {
            packets += u64::from(session.on_frame(now_ns, u16::from(how >> 1 & 1), frame, &*KEYS));
        }
        carried += frame.len() as u64;
        shown += events(&mut session);
        assert!(session.buffered() <= 64 * memory + (1 << 20), "{} of {memory}", session.buffered());
    }
    session.finish(&*KEYS);
    shown += events(&mut session);
    assert!(shown <= carried, "{shown} bytes of {carried}");
    assert!(session.report().packets <= packets);
});

fn ends_of(frame: &[u8]) -> Option<Ends> {
    match Frame::read(frame).content {
        Content::Tcp(segment) => Some(Ends { client: segment.source, server: segment.destination }),
        _ => None,
    }
}

/// Bytes of all events that wait, without those of holes.
fn events(session: &mut Session) -> u64 {
    let mut shown = 0;
    while let Some(event) = session.poll() {
        shown += match event {
            Event::Message(message) => {
                let missing: u64 = message.holes.iter().filter_map(|hole| hole.length).sum();
                let end = message.holes.last().filter(|hole| hole.length.is_none());
                end.map_or(message.body_bytes, |hole| hole.offset).saturating_sub(missing)
            }
            Event::Data { bytes, .. } => bytes.len() as u64,
            Event::Hole { .. } | Event::Note { .. } => 0,
        };
    }
    shown
}
