//! Socket calls that need namespaces: port blocks, orphans, probes, neighbours.

use crate::world::privileged;
use evergate_base::Bucket;
use evergate_bpf::PortBlocks;
use evergate_netns::Namespace;
use evergate_sys::{Probe, Route};
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;

fn loopback(v6: bool) -> (Namespace, TcpListener, SocketAddr) {
    let namespace = Namespace::new().unwrap();
    namespace.sysctl("net.ipv4.ip_local_port_range", "32768 60999").unwrap();
    let any: SocketAddr = if v6 { "[::1]:0" } else { "127.0.0.1:0" }.parse().unwrap();
    let listener = namespace.run(move || TcpListener::bind(any).unwrap());
    let to = listener.local_addr().unwrap();
    (namespace, listener, to)
}

#[test]
fn legs_use_every_port_of_their_block_and_no_other() {
    if !privileged() {
        return;
    }
    for v6 in [false, true] {
        let (namespace, _listener, to) = loopback(v6);
        let second = namespace.run(move || TcpListener::bind(SocketAddr::new(to.ip(), 0)).unwrap());
        let second_to = second.local_addr().unwrap();
        namespace.run(move || {
            let range = evergate_sys::local_port_range().unwrap();
            let blocks = PortBlocks::DEFAULT;
            assert!(range.contains(blocks.range().start()) && range.contains(blocks.range().end()));
            let ports = blocks.of(Bucket(500)).unwrap();
            let connect = |to: SocketAddr| evergate_sys::connect_from(to.ip(), ports.clone(), to);
            let sockets: Vec<_> = ports.clone().map(|_| connect(to).unwrap()).collect();
            let used: BTreeSet<u16> = sockets
                .iter()
                .map(|socket| evergate_sys::local_address(socket.as_raw_fd()).unwrap().port())
                .collect();
            assert_eq!(used, ports.clone().collect());
            let error = connect(to).expect_err("the block is used up");
            assert_eq!(error.kind(), std::io::ErrorKind::AddrNotAvailable);
            connect(second_to).expect("another server may use the same ports");
        });
    }
}

#[test]
fn a_destroyed_socket_is_gone_and_its_name_is_free() {
    if !privileged() {
        return;
    }
    for v6 in [false, true] {
        let (namespace, listener, to) = loopback(v6);
        namespace.run(move || {
            let mut client = TcpStream::connect(to).unwrap();
            let local = client.local_addr().unwrap();
            let (_server, _) = listener.accept().unwrap();
            assert!(evergate_sys::destroy(local, to).unwrap());
            let error = client.read(&mut [0; 1]).expect_err("the socket is dead");
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionAborted);
            assert!(!evergate_sys::destroy(local, to).unwrap());
        });
    }
}

#[test]
fn orphans_are_destroyed_and_nothing_else() {
    if !privileged() {
        return;
    }
    for v6 in [false, true] {
        let (namespace, listener, to) = loopback(v6);
        namespace.run(move || {
            let pair = || (TcpStream::connect(to).unwrap(), listener.accept().unwrap().0);
            let (mut full, mut deaf) = pair();
            let (mut client, mut server) = pair();
            full.set_nonblocking(true).unwrap();
            while full.write(&[7; 65_536]).is_ok() {}
            drop(full); // its FIN waits behind what the other end does not read
            let elsewhere: [std::net::IpAddr; 2] =
                ["10.99.99.99".parse().unwrap(), "fd99::1".parse().unwrap()];
            assert_eq!(evergate_sys::destroy_orphans(&elsewhere).unwrap(), 0);
            assert_eq!(evergate_sys::destroy_orphans(&[to.ip()]).unwrap(), 1);
            assert_eq!(evergate_sys::destroy_orphans(&[to.ip()]).unwrap(), 0);
            client.write_all(b"a").unwrap();
            server.read_exact(&mut [0]).expect("a live connection continues");
            deaf.read_to_end(&mut Vec::new()).expect_err("nothing stopped the orphan's RST here");
            TcpStream::connect(to).expect("the listener listens");
        });
    }
}

#[test]
fn a_restored_socket_may_not_take_the_name_of_a_living_one() {
    if !privileged() {
        return;
    }
    let (namespace, listener, to) = loopback(false);
    namespace.run(move || {
        let client = TcpStream::connect(to).unwrap();
        let _server = listener.accept().unwrap();
        let facts = evergate_sys::tcp_params(client.as_raw_fd(), 0).unwrap();
        let restore = evergate_sys::Restore {
            facts,
            send: 1,
            receive: 1,
            timestamp: None,
            window: 65_535,
            peer_window: 65_535,
            buffer: 1 << 20,
        };
        let error = evergate_sys::restore(&restore).expect_err("the name is taken");
        assert_eq!((error.step, error.source.kind()), ("connect", std::io::ErrorKind::AddrNotAvailable));
        assert!(evergate_sys::destroy(facts.local, facts.remote).unwrap());
        // The server's half is gone too, reset by the destroyed one.
        evergate_sys::restore(&restore).expect("the name is free now");
    });
}

#[test]
fn data_from_before_the_socket_can_be_read_from_it() {
    if !privileged() {
        return;
    }
    for v6 in [false, true] {
        let (namespace, listener, to) = loopback(v6);
        namespace.run(move || {
            let client = TcpStream::connect(to).unwrap();
            let (server, _) = listener.accept().unwrap();
            let facts = evergate_sys::tcp_params(client.as_raw_fd(), 0).unwrap();
            drop((client, server)); // both ends are gone; no end receives what follows
            evergate_sys::destroy(facts.local, facts.remote).unwrap();
            let restore = evergate_sys::Restore {
                facts,
                send: 1,
                receive: u32::MAX - 2,
                timestamp: facts.stamp.map(|stamp| stamp.value),
                window: 65_535,
                peer_window: 65_535,
                buffer: 1 << 20,
            };
            let restoring = evergate_sys::restore(&restore).unwrap();
            for piece in [&b"GET "[..], &[b'x'; 4096], b" HTTP/1.1"] {
                assert_eq!(restoring.receive(piece).unwrap(), piece.len());
            }
            let mut socket = TcpStream::from(restoring.finish().unwrap());
            let mut all = vec![0; 4 + 4096 + 9];
            socket.read_exact(&mut all).unwrap();
            assert!(all.starts_with(b"GET xxx") && all.ends_with(b"xxx HTTP/1.1"));
        });
    }
}

/// Segments that a socket has sent.
fn sent(socket: &TcpStream) -> u32 {
    // SAFETY: all zeros is a valid tcp_info.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut length = size_of_val(&info) as u32;
    let into = (&raw mut info).cast();
    // SAFETY: pointer and length describe the struct.
    let result = unsafe {
        libc::getsockopt(socket.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, into, &raw mut length)
    };
    assert_eq!(result, 0);
    info.tcpi_segs_out
}

/// Where a socket is in what it receives and in what it sends.
pub(crate) fn sequences(socket: &TcpStream) -> [u32; 2] {
    let option = |name, value: &mut i32, set: bool| {
        let (fd, tcp, mut length) = (socket.as_raw_fd(), libc::IPPROTO_TCP, 4);
        let value = (&raw mut *value).cast();
        // SAFETY: pointer and length describe the integer.
        let result = unsafe {
            match set {
                true => libc::setsockopt(fd, tcp, name, value, length),
                false => libc::getsockopt(fd, tcp, name, value, &raw mut length),
            }
        };
        assert_eq!(result, 0, "option {name}: {}", std::io::Error::last_os_error());
    };
    option(libc::TCP_REPAIR, &mut 1, true);
    let sequences = [1, 2].map(|mut queue| {
        let mut sequence = 0;
        option(libc::TCP_REPAIR_QUEUE, &mut queue, true);
        option(libc::TCP_QUEUE_SEQ, &mut sequence, false);
        sequence as u32
    });
    option(libc::TCP_REPAIR, &mut -1, true); // off, without the probe that 0 sends
    sequences
}

#[test]
fn every_probe_is_answered_at_once_however_old_its_ack() {
    if !privileged() {
        return;
    }
    for (v6, ended) in [(false, false), (false, true), (true, false), (true, true)] {
        let (namespace, listener, to) = loopback(v6);
        namespace.run(move || {
            let mut peer = TcpStream::connect(to).unwrap();
            let (mut node, _) = listener.accept().unwrap();
            peer.write_all(&[1; 100]).unwrap();
            node.read_exact(&mut [0; 100]).unwrap();
            node.write_all(&[2; 50]).unwrap();
            peer.read_exact(&mut [0; 50]).unwrap();
            if ended {
                peer.shutdown(Shutdown::Write).unwrap();
                assert_eq!(node.read(&mut [0; 1]).unwrap(), 0);
            }
            let facts = evergate_sys::tcp_params(node.as_raw_fd(), 0).unwrap();
            let prober = evergate_sys::Prober::new().unwrap();
            let [receive, send] = sequences(&node);
            for below in [1, 90, 100, 1 << 16, 1 << 20] {
                for _ in 0..3 {
                    let before = sent(&peer);
                    let timestamp = facts.stamp.map(|stamp| stamp.value);
                    let ack = receive.wrapping_sub(below);
                    let probe = Probe { acknowledged: send, ack, window: 65_535, timestamp };
                    prober.ask(&facts, &probe).unwrap();
                    // The loopback device has delivered it, and the answer, when the call returns.
                    assert_eq!(sent(&peer), before + 1, "ended: {ended}, {below} below");
                }
            }
        });
    }
}

#[test]
fn neighbour_entry_is_set_but_never_overrides_a_known_one() {
    if !privileged() {
        return;
    }
    let (one, other) = (Namespace::new().unwrap(), Namespace::new().unwrap());
    one.connect("eth0", "02:00:00:00:00:01", &other, "eth0").unwrap();
    one.run(|| {
        let card = evergate_bpf::interface_index("eth0").unwrap();
        let ip_command = |args: &[&str]| {
            let output = std::process::Command::new("ip").args(args).output().unwrap();
            assert!(output.status.success(), "{args:?}: {output:?}");
            String::from_utf8(output.stdout).unwrap()
        };
        for ip in ["10.77.0.9", "fd77::9"] {
            let set_entry = |last| {
                evergate_sys::set_neighbour(card, ip.parse().unwrap(), [2, 0, 0, 0, 0, last]).unwrap();
            };
            let known = || evergate_sys::neighbour(card, ip.parse().unwrap()).unwrap();
            set_entry(8);
            let text = ip_command(&["neigh", "show", ip]);
            assert!(text.contains("02:00:00:00:00:08") && text.contains("STALE"), "{text}");
            for state in ["stale", "reachable", "delay", "probe", "permanent"] {
                let mac = "02:00:00:00:00:07";
                ip_command(&["neigh", "replace", ip, "lladdr", mac, "dev", "eth0", "nud", state]);
                set_entry(8);
                assert_eq!(known(), Some([2, 0, 0, 0, 0, 7]), "{state}");
            }
            ip_command(&["neigh", "del", ip, "dev", "eth0"]);
            set_entry(9);
            assert_eq!(known(), Some([2, 0, 0, 0, 0, 9]), "the deleted entry was set");
        }
        assert!(evergate_sys::set_neighbour(9999, "10.77.0.9".parse().unwrap(), [0; 6]).is_err());
    });
}

#[test]
fn peer_behind_a_router_is_not_on_link() {
    if !privileged() {
        return;
    }
    let (one, other) = (Namespace::new().unwrap(), Namespace::new().unwrap());
    one.connect("eth0", "02:00:00:00:00:01", &other, "eth0").unwrap();
    for words in [
        "addr add 10.77.0.1/24 dev eth0",
        "addr add fd77::1/64 dev eth0 nodad",
        "route add 10.78.0.0/24 dev eth0",
        "route add 10.79.0.0/24 via 10.77.0.254",
        "route add fd79::/64 via fd77::254",
        "route add 10.80.0.0/24 via inet6 fd77::254 dev eth0",
    ] {
        one.ip(words).unwrap();
    }
    one.run(|| {
        let card = evergate_bpf::interface_index("eth0").unwrap();
        let on_link = |ip: &str| evergate_sys::is_on_link(card, ip.parse().unwrap()).ok();
        assert_eq!(["10.77.0.9", "fd77::9", "10.78.0.9"].map(on_link), [Some(true); 3]);
        assert_eq!(["10.79.0.9", "fd79::9", "10.80.0.9"].map(on_link), [Some(false); 3]);
        assert_eq!(["10.81.0.9", "fd81::9"].map(on_link), [None; 2], "no route");
        assert_eq!(on_link("127.0.0.9"), None, "the route leads elsewhere");
        let route = |ip: &str| evergate_sys::route_to(ip.parse().unwrap()).ok();
        let from = |ip: &str| Some(Route { interface: card, source: Some(ip.parse().unwrap()) });
        assert_eq!(["10.77.0.9", "10.79.0.9"].map(route), [from("10.77.0.1"); 2]);
        assert_eq!(["fd77::9", "fd79::9"].map(route), [from("fd77::1"); 2]);
        assert_eq!(["10.81.0.9", "fd81::9"].map(route), [None; 2], "no route");
        let bits = |ip: &str| evergate_sys::route_prefix(ip.parse().unwrap()).ok();
        assert_eq!(["10.77.0.9", "10.77.0.1", "10.79.0.9"].map(bits), [Some(24), Some(32), Some(24)]);
        assert_eq!(["fd77::9", "fd79::9"].map(bits), [Some(64); 2]);
        assert_eq!(["10.81.0.9", "fd81::9"].map(bits), [None; 2], "no route");
        let networks = evergate_sys::networks_of("eth0").unwrap();
        let listed = |ip: &str, bits| networks.contains(&(ip.parse().unwrap(), bits));
        assert!(listed("10.77.0.0", 24) && listed("fd77::", 64) && listed("fe80::", 64), "{networks:?}");
        assert_eq!(networks.len(), 3, "of {networks:?}");
    });
}

#[test]
fn nothing_is_missing_here_and_what_is_refused_is_named() {
    if !privileged() {
        return;
    }
    assert_eq!(evergate_bpf::missing_gate_features(), []);
    assert_eq!(evergate_sys::missing_socket_features(), []);
    // Without root's capabilities, in a thread of its own: they are a thread's.
    let refused = std::thread::spawn(|| {
        // SAFETY: no pointers are passed. The raw call changes the calling thread only.
        assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, 65_534, 65_534, 65_534) }, 0);
        [evergate_bpf::missing_gate_features(), evergate_sys::missing_socket_features()].concat()
    });
    let text: String = refused.join().unwrap().iter().map(|missing| format!("{missing}\n")).collect();
    for part in ["SCHED_CLS", "CAP_BPF", "TCP_REPAIR", "CAP_NET_ADMIN", "raw probes", "CAP_NET_RAW"] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
    assert!(!text.contains("IP_LOCAL_PORT_RANGE"), "port blocks need no privilege:\n{text}");
}
