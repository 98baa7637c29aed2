//! Replicated bytes of a connection from another node: any bytes are an entry or an error, and entries survive the
//! wire. Replaying any of them in any order neither panics nor stores more than was sent, and the resulting state
//! survives the wire.

#![no_main]

use evergate_fuzz::input::chunks;
use evergate_replication::{ConnectionState, Entry};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    whole_state(data);
    let mut state = ConnectionState::default();
    let mut sent = 0;
    for chunk in chunks(data) {
        let Ok(entry) = Entry::decode(chunk) else { continue };
        let encoded = entry.encode().expect("what was read can be written");
        assert_eq!(Entry::decode(&encoded).as_ref(), Ok(&entry));
        assert!(encoded.len() <= chunk.len(), "the encoding is not the shortest one");
        state.apply(entry);
        sent += encoded.len();
        let _ = (state.client_frontier(), state.server_frontier(1));
        // Positions take up to ten bytes where the entry needed one: hence the constants.
        let held = state.encode().expect("a replayed state can be encoded").len();
        assert!(held <= 256 + 32 * sent, "{held} bytes are stored of {sent} that were sent");
    }
    survives(&state);
});

fn whole_state(bytes: &[u8]) {
    if let Ok(mut state) = ConnectionState::decode(bytes) {
        survives(&state);
        let _ = (state.client_frontier(), state.server_frontier(0));
        state.apply(Entry::Server(state.server.clone()));
        state.apply(Entry::Client(state.client.clone()));
    }
}

fn survives(state: &ConnectionState) {
    let bytes = state.encode().expect("a state can be written");
    assert_eq!(ConnectionState::decode(&bytes).as_ref(), Ok(state));
}
