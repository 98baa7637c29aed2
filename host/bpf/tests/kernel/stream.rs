//! A client and a server that exchange bytes whose content shows their position.

use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};
use std::ops::RangeInclusive;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// The byte at a position of a stream.
fn byte(stream: u64, position: u64) -> u8 {
    let mut mixed = (position / 8 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ stream;
    mixed = (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (mixed >> (position % 8 * 8)) as u8
}

/// Writes `length` bytes of a stream.
pub(crate) fn write_all(socket: &TcpStream, stream: u64, length: u64) {
    let mut socket = socket;
    let mut position = 0;
    while position < length {
        let end = (position + 65_536).min(length);
        let chunk: Vec<u8> = (position..end).map(|position| byte(stream, position)).collect();
        socket.write_all(&chunk).unwrap_or_else(|error| panic!("writing at {position}: {error}"));
        position = end;
    }
}

/// Reads a stream to its end, which must come after `length` right bytes.
pub(crate) fn read_all(socket: &TcpStream, stream: u64, length: u64) {
    let mut socket = socket;
    let mut buffer = vec![0; 65_536];
    let mut position = 0;
    loop {
        let count = socket.read(&mut buffer).unwrap_or_else(|error| panic!("reading at {position}: {error}"));
        if count == 0 {
            break;
        }
        for got in &buffer[..count] {
            assert_eq!(*got, byte(stream, position), "byte {position} of stream {stream}");
            position += 1;
        }
    }
    assert_eq!(position, length, "stream {stream} ended early");
}

/// Both directions at once; the deadline only ends a hang. With `last` our stream ends only after the other one has.
pub(crate) fn exchange(socket: &TcpStream, send: (u64, u64), receive: (u64, u64), last: bool) {
    let deadline = Some(std::time::Duration::from_secs(30));
    socket.set_read_timeout(deadline).unwrap();
    socket.set_write_timeout(deadline).unwrap();
    let finish = || socket.shutdown(Shutdown::Write).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            write_all(socket, send.0, send.1);
            if !last {
                finish();
            }
        });
        read_all(socket, receive.0, receive.1);
    });
    if last {
        finish();
    }
}

/// Connects from a port of a range, with this sequence number first, so that a test can let it wrap around.
pub(crate) fn connect_at(from: IpAddr, ports: RangeInclusive<u16>, to: SocketAddr, first: u32) -> OwnedFd {
    let family = if to.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    // SAFETY: no pointers are passed; the descriptor is new and ours.
    let socket =
        unsafe { OwnedFd::from_raw_fd(libc::socket(family, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0)) };
    let set = |level, option, value: u32| {
        // SAFETY: pointer and length describe the value.
        let result =
            unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const value).cast(), 4) };
        assert_eq!(result, 0, "option {option}: {}", std::io::Error::last_os_error());
    };
    set(libc::IPPROTO_TCP, libc::TCP_REPAIR, 1);
    set(libc::IPPROTO_TCP, libc::TCP_REPAIR_QUEUE, 2);
    set(libc::IPPROTO_TCP, libc::TCP_QUEUE_SEQ, first);
    set(libc::IPPROTO_TCP, libc::TCP_REPAIR, 0);
    evergate_sys::connect_socket_from(socket, from, ports, to).unwrap()
}
