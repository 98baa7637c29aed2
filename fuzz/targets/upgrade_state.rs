//! A connection from any upgrade state of another process: the state is refused or imported. An imported connection
//! exports an equal state. It serves any further bytes of its peers to its end, in bounded memory, without panic or
//! loop.

#![no_main]

use evergate_fuzz::fixture::snapshot;
use evergate_fuzz::input::{chunks, split};
use evergate_fuzz::worker::World;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let (choices, rest) = split(data);
    let mut rest = chunks(rest);
    let (client, server) = (rest.next().unwrap_or_default(), rest.next().unwrap_or_default());
    let Some(mut world) = rest.next().and_then(World::import) else { return };
    let packed = pack(&world);
    assert!(World::import(&packed).map(|world| pack(&world)) == Some(packed), "its second export differs");
    world.play_out(&choices.pieces(client), server);
});

fn pack(world: &World) -> Vec<u8> {
    world.connection.export(snapshot()).unwrap_or_else(|why| panic!("it stays for {why}: {}", world.state()))
}
