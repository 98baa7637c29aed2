//! A path of a known round-trip time between the cluster's switch and a client.

use crate::world::World;
use evergate_netns::Namespace;
use std::collections::VecDeque;
use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A client in networks of its own, 10.78.0.0/24 and fd78::/64. The world's server is its router. The path between
/// the two takes `round_trip` and loses nothing.
pub(crate) struct FarClient {
    pub(crate) host: Namespace,
    ends: Arc<AtomicBool>,
    path: Option<JoinHandle<()>>,
}

impl FarClient {
    pub(crate) fn behind(world: &World, round_trip: Duration) -> FarClient {
        let (host, router) = (Namespace::new().unwrap(), &world.server);
        let cables = [(router, "near0", 1), (&host, "far0", 2)].map(|(at, name, number)| {
            let cable = at.run(move || cable(name));
            // A queue that holds a whole window, for the path must not lose a burst.
            at.ip(&format!("link set {name} up txqueuelen 10000")).unwrap();
            at.ip(&format!("addr add 10.78.0.{number}/24 dev {name}")).unwrap();
            at.ip(&format!("addr add fd78::{number}/64 dev {name} nodad")).unwrap();
            cable
        });
        for prefix in ["10.77.0.0/24", "fd77::/64"] {
            host.ip(&format!("route add {prefix} dev far0")).unwrap();
        }
        for sysctl in ["net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"] {
            router.sysctl(sysctl, "1").unwrap();
        }
        for node in &world.nodes {
            node.namespace.ip("route add 10.78.0.0/24 via 10.77.0.20").unwrap();
            node.namespace.ip("route add fd78::/64 via fd77::20").unwrap();
        }
        let ends = Arc::new(AtomicBool::new(false));
        let path = std::thread::spawn({
            let ends = ends.clone();
            move || delay(cables, round_trip / 2, &ends)
        });
        FarClient { host, ends, path: Some(path) }
    }
}

impl Drop for FarClient {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        if let Some(path) = self.path.take() {
            let _ = path.join();
        }
    }
}

/// The other end of a new interface of the calling thread's network namespace. Each read returns one packet that left
/// the interface, checksums filled in; each write is one packet that arrives there.
fn cable(name: &str) -> File {
    let mut options = File::options();
    let file = options.read(true).write(true).custom_flags(libc::O_NONBLOCK).open("/dev/net/tun").unwrap();
    // SAFETY: ifreq is plain data for which all zero bytes are a valid value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI) as i16;
    // SAFETY: the kernel reads and writes inside the ifreq.
    let made = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut request) };
    assert_eq!(made, 0, "{}", std::io::Error::last_os_error());
    file
}

/// Passes packets between two cables; each arrives `one_way` after it left.
fn delay(mut cables: [File; 2], one_way: Duration, ends: &AtomicBool) {
    let priority = libc::sched_param { sched_priority: 1 };
    // SAFETY: pid 0 is the calling thread. As far as the machine allows, its other work adds no delay.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const priority) };
    let mut under_way: [VecDeque<(Instant, Vec<u8>)>; 2] = Default::default();
    let mut buffer = vec![0; 65_536];
    while !ends.load(Ordering::Relaxed) {
        let due = under_way.iter().filter_map(|packets| packets.front()).map(|(due, _)| *due).min();
        let wait = due.map_or(Duration::from_millis(10), |due| due.saturating_duration_since(Instant::now()));
        let mut polls = [&cables[0], &cables[1]].map(|cable| libc::pollfd {
            fd: cable.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        });
        // SAFETY: pointer and length describe the array.
        unsafe { libc::poll(polls.as_mut_ptr(), 2, wait.as_micros().div_ceil(1000).min(10) as i32) };
        for (from, packets) in under_way.iter_mut().enumerate() {
            while let Ok(length) = cables[from].read(&mut buffer) {
                packets.push_back((Instant::now() + one_way, buffer[..length].to_vec()));
            }
            while let Some((_, packet)) = packets.pop_front_if(|(due, _)| *due <= Instant::now()) {
                cables[1 - from].write_all(&packet).unwrap();
            }
        }
    }
}

/// What our kernel has measured of a connection's path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Measured {
    /// Smoothed round-trip time and the least one; `None` before the first sample.
    pub(crate) round_trip: Option<(Duration, Duration)>,
    /// Segments that were sent more than once.
    pub(crate) resent: u32,
}

impl Measured {
    pub(crate) fn of(socket: &TcpStream) -> Measured {
        let mut info = [0u8; 152]; // a prefix of tcp_info that ends with tcpi_min_rtt
        let mut length = info.len() as libc::socklen_t;
        // SAFETY: the kernel writes at most `length` bytes into the buffer.
        let got = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::IPPROTO_TCP,
                libc::TCP_INFO,
                info.as_mut_ptr().cast(),
                &raw mut length,
            )
        };
        assert_eq!((got, length), (0, info.len() as u32), "{}", std::io::Error::last_os_error());
        let at = |offset: usize| u32::from_ne_bytes(info[offset..offset + 4].try_into().unwrap());
        let span = |us: u32| Duration::from_micros(us.into());
        let (smoothed, least) = (at(68), at(148));
        let round_trip = (smoothed != 0).then(|| (span(smoothed), span(least)));
        assert_eq!(round_trip.is_none(), least == u32::MAX, "{smoothed} and {least} us");
        Measured { round_trip, resent: at(100) }
    }
}
