//! Raw connections: a reset at one end reaches the other end, also after a failover.

use crate::raw_connection::{RawConnection, carrier, prepare};
use crate::traffic::PATIENCE;
use crate::world::{privileged, settled};
use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsRawFd;

#[test]
fn reset_of_either_end_reaches_the_other() {
    if !privileged() {
        return;
    }
    let (world, mut nodes, _config, ends) = prepare(2, "");
    for dies in [false, true] {
        let (mut client, mut server) =
            (RawConnection::open(&world).unwrap(), RawConnection::open(&world).unwrap());
        for connection in [&mut client, &mut server] {
            connection.continues("before");
        }
        if dies {
            carrier(&mut nodes).kill();
            settled(&nodes);
            for connection in [&mut client, &mut server] {
                connection.continues("after its node has died");
            }
        }
        evergate_sys::reset_on_close(client.stream.as_raw_fd());
        drop(client);
        let end = ends.recv_timeout(PATIENCE).expect("the server receives the reset");
        assert_eq!(end, Some(ErrorKind::ConnectionReset), "died before: {dies}");
        server.stream.write_all(&[0]).unwrap();
        let received = server.stream.read(&mut [0]).map_err(|error| error.kind());
        assert_eq!(received, Err(ErrorKind::ConnectionReset), "died before: {dies}");
        assert_eq!(ends.recv_timeout(PATIENCE).unwrap(), None);
    }
}
