//! Errors of routers about our packets: they are too large for the path to the client.

use crate::cookies::count;
use crate::frame::{fold, sum};
use crate::moved_cookies::moved;
use crate::world::{eventually, privileged};
use evergate_bpf::{CookieKey, Counter, Flow, WorkerPortId};
use std::io::Read;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

const NARROW: u16 = 1300;

/// The error, with the head of the segment that it is about.
fn too_big(v6: bool, from: SocketAddr, to: SocketAddr, seq: u32) -> Vec<u8> {
    let mut error = if v6 { vec![2, 0, 0, 0, 0, 0] } else { vec![3, 4, 0, 0, 0, 0] };
    error.extend(NARROW.to_be_bytes());
    match (from.ip(), to.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            error.extend([0x45, 0, 5, 220, 0, 0, 0x40, 0, 60, 6, 0, 0]);
            error.extend(from.octets().into_iter().chain(to.octets()));
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            error.extend([0x60, 0, 0, 0, 5, 180, 6, 60]);
            error.extend(from.octets().into_iter().chain(to.octets()));
        }
        _ => unreachable!("one family"),
    }
    error.extend(from.port().to_be_bytes().into_iter().chain(to.port().to_be_bytes()));
    error.extend(seq.to_be_bytes());
    if !v6 {
        let sum = !fold(sum(&error)); // that of ICMPv6 is the kernel's
        error[2..4].copy_from_slice(&sum.to_be_bytes());
    }
    error
}

fn send(packet: &[u8], to: IpAddr) {
    let (family, protocol) = match to {
        IpAddr::V4(_) => (libc::AF_INET, libc::IPPROTO_ICMP),
        IpAddr::V6(_) => (libc::AF_INET6, libc::IPPROTO_ICMPV6),
    };
    // SAFETY: no pointers; the descriptor is new.
    let socket = unsafe { OwnedFd::from_raw_fd(libc::socket(family, libc::SOCK_RAW, protocol)) };
    let sent = UdpSocket::from(socket).send_to(packet, (to, 0)).unwrap(); // which is `sendto` for any kind
    assert_eq!(sent, packet.len());
}

fn segment_bytes(fd: i32) -> i32 {
    let (mut value, mut length) = (0i32, 4u32);
    // SAFETY: pointers to an integer and its length.
    let done = unsafe {
        libc::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_MAXSEG, (&raw mut value).cast(), &raw mut length)
    };
    assert_eq!(done, 0);
    value
}

/// Node 1 has the address, node 2 the connection.
#[test]
fn packet_too_big_error_reaches_the_connections_owner() {
    if !privileged() {
        return;
    }
    for v6 in [false, true] {
        let (world, listener, client) = moved([CookieKey([5, 6]); 2], v6);
        let (mut socket, _) = listener.accept().unwrap();
        socket.read_exact(&mut [0; 5]).unwrap();
        let (local, remote) = (socket.local_addr().unwrap(), client.local_addr().unwrap());
        let gate = world.nodes[1].gate.clone();
        let worker_port =
            world.nodes[1].namespace.run(move || gate.worker_port(WorkerPortId::new(0).unwrap()).unwrap());
        let slot = worker_port.slot(&Flow::new(local, remote)).expect("gated");
        assert!(segment_bytes(socket.as_raw_fd()) > i32::from(NARROW));
        let passed_on = count(&world, 0, Counter::Steered);
        let error = too_big(v6, local, remote, slot.sent());
        world.client.run(move || send(&error, local.ip()));
        eventually("the segments are smaller", || segment_bytes(socket.as_raw_fd()) < i32::from(NARROW));
        assert_eq!(count(&world, 0, Counter::Steered), passed_on + 1);
    }
}
