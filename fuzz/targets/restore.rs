//! Failover of a worker with a replica of any entries of another node: the connection is refused or continued. A
//! continued connection serves any further bytes of its peers without panic, without a loop, and to its end.

#![no_main]

use evergate_fuzz::fixture::LISTENERS;
use evergate_fuzz::input::{chunks, split};
use evergate_fuzz::world::World;
use evergate_replication::{ConnectionState, Entry};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let (mut choices, rest) = split(data);
    let flags = choices.byte();
    let mut rest = chunks(rest);
    let (client, server) = (rest.next().unwrap_or_default(), rest.next().unwrap_or_default());
    let mut state = ConnectionState::default();
    if flags & 0x80 != 0 {
        let Some(Ok(whole)) = rest.next().map(ConnectionState::decode) else { return };
        state = whole;
    }
    for entry in rest.filter_map(|chunk| Entry::decode(chunk).ok()) {
        state.apply(entry);
    }
    if let Some(open) = &mut state.open
        && flags & 0x40 != 0
    {
        // An existing name, so that mutation need not find it letter by letter.
        open.listener = LISTENERS[usize::from(flags & 7) % LISTENERS.len()].to_owned();
    }
    let Some(mut world) = World::recover(&state, &Default::default()) else { return };
    world.connect();
    world.play_out(&choices.pieces(client), server);
});
