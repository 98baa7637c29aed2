//! A connection from any upgrade state of another process: the state is refused or imported. An imported connection
//! exports an equal state. In a worker it serves any further bytes of its peers to its end, in bounded memory, without
//! panic or loop.

#![no_main]

use evergate_connection::Connection;
use evergate_fuzz::fixture::snapshot;
use evergate_fuzz::input::{chunks, split};
use evergate_fuzz::world::World;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let (choices, rest) = split(data);
    let mut rest = chunks(rest);
    let (client, server) = (rest.next().unwrap_or_default(), rest.next().unwrap_or_default());
    let Some(state) = rest.next() else { return };
    let Some(packed) = export_again(state) else {
        return assert!(World::import(state).is_none(), "a worker imports what a connection refuses");
    };
    assert!(export_again(&packed) == Some(packed), "its second export differs");
    let mut world = World::import(state).expect("a worker imports what a connection does");
    world.play_out(&choices.pieces(client), server);
});

/// The state that an imported connection exports; `None` when the import is refused.
fn export_again(state: &[u8]) -> Option<Vec<u8>> {
    let (connection, _) = Connection::import(snapshot(), state).ok()?;
    Some(connection.export(snapshot()).unwrap_or_else(|why| panic!("it stays for {why}: {connection:?}")))
}
