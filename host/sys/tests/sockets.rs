//! Sockets against the real kernel, on loopback.

// The standard library cannot send urgent bytes.
#![allow(unsafe_code)]

use evergate_base::Wake;
use evergate_sys::{
    Epoll, Listening, Pipe, Transfer, Waker, accept, connect, connect_error, end_time_wait, listen,
    listen_as, local_address,
};
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
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

fn send_urgently(socket: &OwnedFd, byte: u8) {
    // SAFETY: the pointer is to one byte.
    let sent = unsafe { libc::send(socket.as_raw_fd(), (&raw const byte).cast(), 1, libc::MSG_OOB) };
    assert_eq!(sent, 1);
}

/// TCP counts urgent bytes like all others, and a reader stops before them.
#[test]
fn urgent_byte_is_in_the_stream_and_the_rest_is_reported() {
    for accepted in [false, true] {
        let (client, server) = pair();
        let (from, to) = if accepted { (client, server) } else { (server, client) };
        let mut epoll = Epoll::new(1).unwrap();
        epoll.add(to.as_raw_fd(), 0).unwrap();
        assert_eq!((epoll.wait(5_000).unwrap(), epoll.event(0).ended), (1, false), "it can be written");
        evergate_sys::write(from.as_raw_fd(), b"before");
        send_urgently(&from, b'!');
        evergate_sys::write(from.as_raw_fd(), b"behind");
        let mut got = Vec::new();
        let mut continues = false;
        while got.len() < 13 {
            assert_eq!(epoll.wait(5_000).unwrap(), 1, "{got:?}");
            continues |= epoll.event(0).ended;
            let mut buffer = [0; 64];
            while let Transfer::Moved(count) = evergate_sys::read(to.as_raw_fd(), &mut buffer) {
                got.extend_from_slice(&buffer[..count]);
                if !continues {
                    break; // like a reader whose buffer was not filled
                }
            }
        }
        assert_eq!((got.as_slice(), continues), (b"before!behind".as_slice(), true));
    }
}

#[test]
fn pipe_moves_urgent_bytes_and_the_rest_before_the_end() {
    let (client, middle) = pair();
    let mut pipe = Pipe::new().unwrap();
    let (out, server) = pair();
    evergate_sys::write(client.as_raw_fd(), b"before");
    send_urgently(&client, b'!');
    evergate_sys::write(client.as_raw_fd(), &[b'x'; 10_000]);
    evergate_sys::shutdown_write(client.as_raw_fd());
    let (mut got, mut ended) = (Vec::new(), false);
    let mut epoll = Epoll::new(1).unwrap();
    epoll.add(middle.as_raw_fd(), 0).unwrap();
    loop {
        match pipe.fill(middle.as_raw_fd(), 5_000, ended) {
            Transfer::Moved(count) => assert!(count <= 5_000),
            Transfer::Blocked => {
                assert_eq!(epoll.wait(5_000).unwrap(), 1, "a byte or an end is own: {}", got.len());
                ended |= epoll.event(0).ended;
            }
            Transfer::End => break,
            Transfer::Broken(error) => panic!("{error}"),
        }
        while pipe.held() > 0 {
            let Transfer::Moved(count) = pipe.empty(out.as_raw_fd()) else { panic!("there is room") };
            let mut buffer = vec![0; count];
            wait_readable(&server);
            assert!(
                matches!(evergate_sys::read(server.as_raw_fd(), &mut buffer), Transfer::Moved(n) if n == count)
            );
            got.extend(buffer);
        }
    }
    assert_eq!(got, [b"before!".as_slice(), &[b'x'; 10_000]].concat());
}

#[test]
fn pipe_moves_bytes_between_sockets() {
    let (client, middle) = pair();
    let (out, server) = pair();
    let mut pipe = Pipe::new().unwrap();
    evergate_sys::write(client.as_raw_fd(), b"spliced");
    wait_readable(&middle);
    assert!(matches!(pipe.fill(middle.as_raw_fd(), 1 << 16, false), Transfer::Moved(7)));
    assert_eq!(pipe.held(), 7);
    assert!(matches!(pipe.empty(out.as_raw_fd()), Transfer::Moved(7)));
    wait_readable(&server);
    let mut got = [0; 16];
    assert!(matches!(evergate_sys::read(server.as_raw_fd(), &mut got), Transfer::Moved(7)));
    assert_eq!(&got[..7], b"spliced");
}

#[test]
fn report_again_reports_unread_input() {
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
fn muted_socket_reports_its_input_when_unmuted() {
    let (client, server) = pair();
    let mut epoll = Epoll::new(1).unwrap();
    epoll.add(server.as_raw_fd(), 7).unwrap();
    assert_eq!((epoll.wait(5_000).unwrap(), epoll.event(0).readable), (1, false));
    epoll.add_without_reads(server.as_raw_fd(), 7).unwrap();
    assert_eq!((epoll.wait(5_000).unwrap(), epoll.event(0).readable), (1, false), "room to write");
    evergate_sys::write(client.as_raw_fd(), b"more");
    wait_readable(&server);
    assert_eq!(epoll.wait(0).unwrap(), 0, "it is muted");
    epoll.report_again(server.as_raw_fd(), 7).unwrap();
    assert_eq!((epoll.wait(0).unwrap(), epoll.event(0).readable, epoll.event(0).ended), (1, true, false));
    epoll.add_without_reads(server.as_raw_fd(), 7).unwrap();
    assert_eq!((epoll.wait(0).unwrap(), epoll.event(0).readable), (1, false));
    drop(client);
    assert_eq!((epoll.wait(5_000).unwrap(), epoll.event(0).ended), (1, true));
}

#[test]
fn unread_and_unsent_bytes_are_detected() {
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
fn last_bytes_leave_with_the_fin() {
    let (client, server) = pair();
    let mut got = [0; 16];
    assert!(matches!(
        evergate_sys::write_last(client.as_raw_fd(), &[b"last ", b"bytes"]),
        Transfer::Moved(10)
    ));
    assert!(matches!(evergate_sys::read(server.as_raw_fd(), &mut got), Transfer::Blocked));
    assert!(!evergate_sys::is_drained(client.as_raw_fd()));
    evergate_sys::shutdown_write(client.as_raw_fd());
    assert!(evergate_sys::is_drained(client.as_raw_fd()));
    assert!(matches!(evergate_sys::read(server.as_raw_fd(), &mut got), Transfer::Moved(10)));
    assert_eq!(&got[..10], b"last bytes");
    assert!(matches!(evergate_sys::read(server.as_raw_fd(), &mut got), Transfer::End));
}

#[test]
fn end_and_reset_are_distinguished() {
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
fn waker_ends_a_wait() {
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
fn file_table_grows_without_leaving_files_open() {
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

const FIRST: Listening = Listening { both_families: false, is_first: true, backlog: 128, keepalive: None };
const FURTHER: Listening = Listening { is_first: false, ..FIRST };

fn address_of(socket: &OwnedFd) -> SocketAddr {
    local_address(socket.as_raw_fd()).unwrap()
}

fn waiting(listener: &OwnedFd) -> usize {
    std::iter::from_fn(|| accept(listener.as_raw_fd()).unwrap()).count()
}

#[test]
fn first_listener_fails_beside_another() {
    let any = "127.0.0.1:0".parse().unwrap();
    let in_use =
        |result: std::io::Result<OwnedFd>| result.unwrap_err().kind() == std::io::ErrorKind::AddrInUse;
    for how in [FIRST, FURTHER] {
        let there = listen_as(any, how).unwrap();
        let address = address_of(&there);
        assert!(in_use(listen_as(address, FIRST)), "beside {how:?}");
        assert!(
            in_use(listen_as(SocketAddr::from(([0, 0, 0, 0], address.port())), FIRST)),
            "on all addresses"
        );
        drop(there);
        listen_as(address, FIRST).unwrap();
    }
    let of_another_kind = TcpListener::bind(any).unwrap();
    assert!(in_use(listen_as(of_another_kind.local_addr().unwrap(), FIRST)));
}

#[test]
fn leftover_connections_do_not_prevent_listening() {
    let there = listen_as("127.0.0.1:0".parse().unwrap(), FIRST).unwrap();
    let address = address_of(&there);
    let _open = TcpStream::connect(address).unwrap();
    let (_accepted, _) = accept(there.as_raw_fd()).unwrap().unwrap();
    let closed = TcpStream::connect(address).unwrap();
    drop(accept(there.as_raw_fd()).unwrap().unwrap()); // this end closes first, so it waits in TIME_WAIT
    drop((closed, there));
    listen_as(address, FIRST).unwrap();
}

#[test]
fn time_wait_ends_on_request() {
    let (client, server) = pair();
    let [local, remote] = [&client, &server].map(|fd| local_address(fd.as_raw_fd()).unwrap());
    let (first, second) = (TcpStream::from(client), TcpStream::from(server));
    match end_time_wait(local, remote) {
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            assert!(
                std::env::var_os("CI").is_none(),
                "in CI no test is skipped, and this one needs CAP_NET_ADMIN"
            );
            return drop(writeln!(std::io::stderr(), "skipped: needs CAP_NET_ADMIN"));
        }
        found => assert!(!found.unwrap(), "a live connection stays"),
    }
    first.shutdown(Shutdown::Write).unwrap();
    assert_eq!((&second).read(&mut [0]).unwrap(), 0);
    drop(second);
    assert_eq!((&first).read(&mut [0]).unwrap(), 0);
    drop(first);
    assert!(end_time_wait(local, remote).unwrap());
    assert!(!end_time_wait(local, remote).unwrap(), "the port is free");
}

#[test]
fn further_listeners_share_connections_with_the_first() {
    let first = listen_as("127.0.0.1:0".parse().unwrap(), FIRST).unwrap();
    let further = listen_as(address_of(&first), FURTHER).unwrap();
    let _clients: Vec<_> = (0..100).map(|_| TcpStream::connect(address_of(&first)).unwrap()).collect();
    let counts = (waiting(&first), waiting(&further));
    // All connections at one listener have a probability of 2^-99.
    assert!(counts.0 > 0 && counts.1 > 0 && counts.0 + counts.1 == 100, "{counts:?}");
}

#[test]
fn ipv6_listener_takes_ipv4_only_for_both_families() {
    let any = "[::]:0".parse().unwrap();
    let both = Listening { both_families: true, ..FIRST };
    let Ok(of_both) = listen_as(any, both) else {
        assert!(std::env::var_os("CI").is_none(), "in CI no test is skipped, and this one needs IPv6");
        // Not by `eprintln!`, whose output the harness captures.
        return drop(writeln!(std::io::stderr(), "skipped: this machine has no IPv6"));
    };
    let _client = TcpStream::connect(("127.0.0.1", address_of(&of_both).port())).unwrap();
    assert_eq!(waiting(&of_both), 1);

    // Each family to its own, at one port.
    let ipv4 = listen_as("0.0.0.0:0".parse().unwrap(), FIRST).unwrap();
    let port = address_of(&ipv4).port();
    let at = SocketAddr::new("::".parse().unwrap(), port);
    assert_eq!(listen_as(at, both).unwrap_err().kind(), std::io::ErrorKind::AddrInUse);
    let ipv6 = listen_as(at, FIRST).unwrap();
    let _clients = ["127.0.0.1", "::1"].map(|host| TcpStream::connect((host, port)).unwrap());
    assert_eq!((waiting(&ipv4), waiting(&ipv6)), (1, 1));
}
