//! A raw connection that breaks on one side breaks on the other, also when the node that carried it has died before.

use crate::line::{Line, carrier, prepare};
use crate::traffic::PATIENCE;
use crate::world::{privileged, settled};
use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsRawFd;

#[test]
fn a_reset_of_either_end_reaches_the_other() {
    if !privileged() {
        return;
    }
    let (world, mut nodes, _config, ends) = prepare(2, "");
    for dies in [false, true] {
        let (mut client, mut server) = (Line::open(&world).unwrap(), Line::open(&world).unwrap());
        for line in [&mut client, &mut server] {
            line.continues("before");
        }
        if dies {
            carrier(&mut nodes).kill();
            settled(&nodes);
            for line in [&mut client, &mut server] {
                line.continues("after its node has died");
            }
        }
        evergate_sys::reset_on_close(client.stream.as_raw_fd());
        drop(client);
        let end = ends.recv_timeout(PATIENCE).expect("the server hears of it");
        assert_eq!(end, Some(ErrorKind::ConnectionReset), "died before: {dies}");
        server.stream.write_all(&[0]).unwrap();
        let peer_input = server.stream.read(&mut [0]).map_err(|error| error.kind());
        assert_eq!(peer_input, Err(ErrorKind::ConnectionReset), "died before: {dies}");
        assert_eq!(ends.recv_timeout(PATIENCE).unwrap(), None);
    }
}
