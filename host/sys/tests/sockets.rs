//! Sockets against the real kernel, on loopback.

use evergate_sys::{Epoll, Pipe, Transfer, Waker, accept, connect, connect_error, listen, local_address};
use std::os::fd::{AsRawFd, OwnedFd};

fn pair() -> (OwnedFd, OwnedFd) {
    let listener = listen("127.0.0.1:0".parse().unwrap(), 16).unwrap();
    let address = local_address(listener.as_raw_fd()).unwrap();
    let client = connect(address).unwrap();
    let mut epoll = Epoll::new(4).unwrap();
    epoll.add_input(listener.as_raw_fd(), 1).unwrap();
    assert_eq!(epoll.wait(5_000).unwrap(), 1);
    let (server, from) = accept(listener.as_raw_fd()).unwrap().unwrap();
    assert_eq!(from, local_address(client.as_raw_fd()).unwrap());
    connect_error(client.as_raw_fd()).unwrap();
    (client, server)
}

fn wait_readable(fd: &OwnedFd) {
    let mut epoll = Epoll::new(1).unwrap();
    epoll.add_input(fd.as_raw_fd(), 0).unwrap();
    assert_eq!(epoll.wait(5_000).unwrap(), 1);
}

#[test]
fn scattered_reads_stay_inside_their_regions() {
    let (client, server) = pair();
    assert!(matches!(
        evergate_sys::write_gathered(client.as_raw_fd(), &[b"ab", b"cdef"]),
        Transfer::Moved(6)
    ));
    wait_readable(&server);
    let mut memory = [b'.'; 12];
    let moved = evergate_sys::read_scattered(server.as_raw_fd(), &mut memory, &[(1, 2), (5, 4)]);
    assert!(matches!(moved, Transfer::Moved(6)));
    assert_eq!(&memory, b".ab..cdef...");
    let outside = evergate_sys::read_scattered(server.as_raw_fd(), &mut memory, &[(10, 3)]);
    assert!(matches!(outside, Transfer::Broken(_)));
}

#[test]
fn a_pipe_moves_bytes_between_sockets() {
    let (client, middle) = pair();
    let (out, server) = pair();
    let mut pipe = Pipe::new().unwrap();
    evergate_sys::write(client.as_raw_fd(), b"spliced");
    wait_readable(&middle);
    assert!(matches!(pipe.fill(middle.as_raw_fd(), 1 << 16), Transfer::Moved(7)));
    assert_eq!(pipe.held(), 7);
    assert!(matches!(pipe.empty(out.as_raw_fd()), Transfer::Moved(7)));
    wait_readable(&server);
    let mut got = [0; 16];
    assert!(matches!(evergate_sys::read(server.as_raw_fd(), &mut got), Transfer::Moved(7)));
    assert_eq!(&got[..7], b"spliced");
}

#[test]
fn what_was_left_in_a_socket_is_reported_again_when_asked() {
    let (client, server) = pair();
    evergate_sys::write(client.as_raw_fd(), b"left");
    wait_readable(&server);
    let mut epoll = Epoll::new(1).unwrap();
    epoll.add(server.as_raw_fd(), 7).unwrap();
    assert_eq!((epoll.wait(5_000).unwrap(), epoll.event(0).readable), (1, true));
    assert_eq!(epoll.wait(0).unwrap(), 0, "nothing new has come");
    epoll.report_again(server.as_raw_fd(), 7).unwrap();
    assert_eq!((epoll.wait(0).unwrap(), epoll.event(0).token, epoll.event(0).readable), (1, 7, true));
}

#[test]
fn what_waits_in_a_socket_is_seen() {
    let (client, server) = pair();
    assert!(evergate_sys::is_drained(server.as_raw_fd()));
    evergate_sys::write(client.as_raw_fd(), b"unread");
    assert!(!evergate_sys::is_drained(server.as_raw_fd()));
    evergate_sys::read(server.as_raw_fd(), &mut [0; 16]);
    evergate_sys::shutdown_write(client.as_raw_fd());
    wait_readable(&server);
    assert!(evergate_sys::is_drained(server.as_raw_fd()), "an end is nothing to be read");
    while let Transfer::Moved(_) = evergate_sys::write(server.as_raw_fd(), &[0; 65_536]) {}
    assert!(!evergate_sys::is_drained(server.as_raw_fd()));
}

#[test]
fn an_end_and_a_reset_are_told_apart() {
    let (client, server) = pair();
    evergate_sys::shutdown_write(client.as_raw_fd());
    wait_readable(&server);
    assert!(matches!(evergate_sys::read(server.as_raw_fd(), &mut [0; 4]), Transfer::End));
    let (client, server) = pair();
    evergate_sys::reset_on_close(client.as_raw_fd());
    drop(client);
    wait_readable(&server);
    assert!(matches!(evergate_sys::read(server.as_raw_fd(), &mut [0; 4]), Transfer::Broken(_)));
}

#[test]
fn a_waker_ends_a_wait() {
    let waker = Waker::new().unwrap();
    let mut epoll = Epoll::new(1).unwrap();
    epoll.add_input(waker.fd(), 9).unwrap();
    waker.wake();
    assert_eq!(epoll.wait(5_000).unwrap(), 1);
    assert_eq!(epoll.event(0).token, 9);
    waker.drain();
    assert_eq!(epoll.wait(0).unwrap(), 0);
}

#[test]
fn room_for_files_is_there_before_they_are_and_leaves_none_open() {
    let size = || {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("FDSize:")).unwrap();
        line.trim().parse::<u64>().unwrap()
    };
    let limit = evergate_sys::raise_file_limit().unwrap();
    let count = limit.min(4096);
    evergate_sys::make_room_for_files(count).unwrap();
    assert!(size() >= count, "{} of {count}", size());
    assert!(!std::path::Path::new(&format!("/proc/self/fd/{}", count - 1)).exists(), "left open");
    assert!(evergate_sys::make_room_for_files(limit + 1).is_err());
}
