//! Sockets that continue on another node: the parameters of a live socket, and its reconstruction.
//!
//! A leg's parameters are read once, when it is established; afterwards only bytes are counted. A live socket is never
//! put into repair mode: a simultaneous write would fail.
//!
//! Restoring is a fixed order of system calls ([`Restore::open`], then [`Restoring::finish`]); each step states its
//! reason. It needs `CAP_NET_ADMIN`. The caller has already gated the flow, so that no segment of the new socket leaves
//! early. It has also probed the peer's position ([`Prober`](crate::Prober)): a socket that starts above it, or below
//! what it acknowledged, stalls permanently.

use crate::address::Raw;
use crate::socket::{local_address, stream_socket};
use crate::sockopt::{check, get_bytes, get_u32, set, set_words};
use evergate_base::net::{Restore, Stamp, TcpParams};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

const TCP_REPAIR_WINDOW: i32 = 29;
const REPAIR_ON: i32 = 1;
/// Value that leaves repair mode without the window probe, which peers ignore.
const REPAIR_OFF_NO_PROBE: i32 = -1;
const RECEIVE_QUEUE: i32 = 1;
const SEND_QUEUE: i32 = 2;
const OPTION_MSS: u32 = 2;
const OPTION_WINDOW_SCALE: u32 = 3;
const OPTION_SACK: u32 = 4;
const OPTION_TIMESTAMPS: u32 = 8;
const IPV6_FREEBIND: i32 = 78;
/// Option for the buffers that the kernel must not resize (Linux 5.14 and newer).
const SO_BUF_LOCK: i32 = 72;
/// Send buffer after repair mode, in bytes before the kernel doubles it: it grows from there with the path.
const SEND_BUFFER: i32 = 256 << 10;
/// Smallest segment size that the kernel accepts (`TCP_MIN_MSS`).
const MSS_MIN: u16 = 88;
/// TCP's timestamps take 12 bytes of every segment.
const TIMESTAMP_BYTES: u32 = 12;

fn peer_address(fd: RawFd) -> io::Result<SocketAddr> {
    let mut raw = Raw::empty();
    let (address, length) = raw.pointer_mut();
    // SAFETY: the kernel writes at most `length` bytes of address into the storage behind the pointer.
    check(unsafe { libc::getpeername(fd, address, length) })?;
    Ok(raw.address())
}

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// The parameters of an established socket. `now_ms` is the time of [`steady_clock_ms`](crate::steady_clock_ms).
pub fn tcp_params(socket: RawFd, now_ms: u64) -> io::Result<TcpParams> {
    tcp_params_between(socket, (local_address(socket)?, peer_address(socket)?), now_ms)
}

/// The parameters of a socket whose addresses, the local one first, are known.
pub fn tcp_params_between(
    socket: RawFd,
    (local, remote): (SocketAddr, SocketAddr),
    now_ms: u64,
) -> io::Result<TcpParams> {
    let mut info = [0u8; 24]; // a prefix of tcp_info: options at 5, both scales at 6, snd_mss at 16
    if get_bytes(socket, libc::IPPROTO_TCP, libc::TCP_INFO, &mut info)? < info.len() {
        return Err(io::Error::new(
            io::ErrorKind::UnexpectedEof,
            "TCP_INFO is shorter than its oldest version",
        ));
    }
    let options = info[5];
    let (timestamps, sack, scaled) = (options & 1 != 0, options & 2 != 0, options & 4 != 0);
    let segment = u32::from_ne_bytes([info[16], info[17], info[18], info[19]]);
    let mss = segment + if timestamps { TIMESTAMP_BYTES } else { 0 };
    let stamp = match timestamps {
        true => Some(Stamp { value: timestamp(socket)?, at_ms: now_ms }),
        false => None,
    };
    Ok(TcpParams {
        local: canonical(local),
        remote: canonical(remote),
        mss: u16::try_from(mss).unwrap_or(u16::MAX),
        window_scales: scaled.then_some((info[6] & 15, info[6] >> 4)),
        sack,
        stamp,
    })
}

/// Bytes that the socket has received in order since it was made or restored. Linux 4.1 or newer.
pub fn bytes_received(socket: RawFd) -> io::Result<u64> {
    let mut info = [0u8; 136]; // a prefix of tcp_info that ends with tcpi_bytes_received
    if get_bytes(socket, libc::IPPROTO_TCP, libc::TCP_INFO, &mut info)? < info.len() {
        return Err(io::Error::new(io::ErrorKind::Unsupported, "TCP_INFO is shorter than that of Linux 4.1"));
    }
    let [.., a, b, c, d, e, f, g, h] = info;
    Ok(u64::from_ne_bytes([a, b, c, d, e, f, g, h]))
}

/// The timestamp that the socket would put on a segment now, if timestamps were negotiated.
pub fn timestamp(socket: RawFd) -> io::Result<u32> {
    get_u32(socket, libc::IPPROTO_TCP, libc::TCP_TIMESTAMP)
}

/// Error of a restoration, and its step.
#[derive(Debug, thiserror::Error)]
#[error("restoring {local} to {remote}: {step}: {source}")]
pub struct RestoreError {
    /// Local address.
    pub local: SocketAddr,
    /// Remote address.
    pub remote: SocketAddr,
    /// The step that failed.
    pub step: &'static str,
    /// Error of the kernel. `AddrNotAvailable` at "connect": an orphan with these addresses exists, see
    /// [`destroy`](crate::destroy).
    pub source: io::Error,
}

/// An established socket, still in repair mode: it neither sends nor answers.
#[derive(Debug)]
pub struct Restoring {
    socket: OwnedFd,
    facts: TcpParams,
}

/// Builds the socket. Dropping the result sends nothing.
pub fn restore(from: &Restore) -> Result<Restoring, RestoreError> {
    let facts = from.facts;
    let at = |step: &'static str| {
        move |source| RestoreError { local: facts.local, remote: facts.remote, step, source }
    };
    let socket = stream_socket(facts.local).map_err(at("socket"))?;
    let fd = socket.as_raw_fd();
    let tcp = |option, value: i32| set(fd, libc::IPPROTO_TCP, option, &value);
    tcp(libc::TCP_REPAIR, REPAIR_ON).map_err(at("entering repair mode (needs CAP_NET_ADMIN)"))?;
    for (queue, sequence) in [(RECEIVE_QUEUE, from.receive), (SEND_QUEUE, from.send)] {
        tcp(libc::TCP_REPAIR_QUEUE, queue).map_err(at("choosing a queue"))?;
        tcp(libc::TCP_QUEUE_SEQ, sequence as i32).map_err(at("setting a sequence number"))?;
    }
    tcp(libc::TCP_REPAIR_QUEUE, 0).map_err(at("choosing no queue"))?;
    let free = match facts.local {
        SocketAddr::V4(_) => set(fd, libc::SOL_IP, libc::IP_FREEBIND, &1i32),
        SocketAddr::V6(_) => set(fd, libc::SOL_IPV6, IPV6_FREEBIND, &1i32),
    };
    free.map_err(at("binding to an address that this node does not have yet"))?;
    // Without it the kernel starts from 524 bytes and stays there. The options below set smaller sizes.
    tcp(libc::TCP_MAXSEG, i32::from(facts.mss.max(MSS_MIN))).map_err(at("setting the segment size"))?;
    // Buffers first: the offered window must fit.
    for option in [libc::SO_SNDBUFFORCE, libc::SO_RCVBUFFORCE] {
        set(fd, libc::SOL_SOCKET, option, &(from.buffer as i32)).map_err(at("sizing a buffer"))?;
    }
    let local = Raw::new(facts.local);
    // SAFETY: pointer and length describe an initialised socket address.
    check(unsafe { libc::bind(fd, local.pointer(), local.length()) }).map_err(at("bind"))?;
    let remote = Raw::new(facts.remote);
    // SAFETY: pointer and length describe an initialised socket address.
    check(unsafe { libc::connect(fd, remote.pointer(), remote.length()) }).map_err(at("connect"))?;
    set_words(fd, libc::IPPROTO_TCP, libc::TCP_REPAIR_OPTIONS, &repair_options(&facts))
        .map_err(at("options"))?;
    if let Some(value) = from.timestamp {
        tcp(libc::TCP_TIMESTAMP, value as i32).map_err(at("setting the timestamp"))?;
    }
    // snd_wl1, snd_wnd, max_window, rcv_wnd, rcv_wup
    let windows = [from.receive, from.peer_window, from.peer_window.max(1), from.window, from.receive];
    set_words(fd, libc::IPPROTO_TCP, TCP_REPAIR_WINDOW, &windows).map_err(at("setting the windows"))?;
    tcp(libc::TCP_NODELAY, 1).map_err(at("TCP_NODELAY"))?;
    Ok(Restoring { socket, facts })
}

impl Restoring {
    /// Adds bytes that the peer sent before the socket existed, directly after the received ones: they count as
    /// received and can be read. Returns the number of bytes added: all, or none when memory is short.
    pub fn receive(&self, data: &[u8]) -> io::Result<usize> {
        let fd = self.socket.as_raw_fd();
        let queue = |which: i32| set(fd, libc::IPPROTO_TCP, libc::TCP_REPAIR_QUEUE, &which);
        queue(RECEIVE_QUEUE)?;
        // SAFETY: pointer and length describe `data`.
        let taken = unsafe { libc::send(fd, data.as_ptr().cast(), data.len(), 0) };
        let result = usize::try_from(taken).map_err(|_| io::Error::last_os_error());
        queue(0)?;
        result
    }

    /// Leaves repair mode: the socket answers and can be written to. The caller then writes the bytes that the peer
    /// lacks; they leave at once.
    pub fn finish(self) -> Result<OwnedFd, RestoreError> {
        let (local, remote) = (self.facts.local, self.facts.remote);
        let at = |step| move |source| RestoreError { local, remote, step, source };
        let fd = self.socket.as_raw_fd();
        set(fd, libc::IPPROTO_TCP, libc::TCP_REPAIR, &REPAIR_OFF_NO_PROBE)
            .map_err(at("leaving repair mode"))?;
        unlock_buffers(fd);
        // Leaving repair mode cleared it, and the listener must be able to use the port after this socket's end.
        set(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, &1i32).map_err(at("SO_REUSEADDR"))?;
        Ok(self.socket)
    }
}

/// Lets the kernel size the buffers. The sizes for the restoration would otherwise stay, and the queue of a slow peer
/// could grow to them. The receive buffer keeps its size, because the offered window must fit.
fn unlock_buffers(fd: RawFd) {
    let unlock = || set(fd, libc::SOL_SOCKET, SO_BUF_LOCK, &0i32);
    // Unlock first: where a size cannot be unlocked, a small buffer would be permanent.
    if unlock().is_ok() && set(fd, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &SEND_BUFFER).is_ok() {
        let _ = unlock(); // it was possible just now
    }
}

fn repair_options(facts: &TcpParams) -> Vec<u32> {
    let mut options = vec![OPTION_MSS, u32::from(facts.mss)];
    if let Some((send, receive)) = facts.window_scales {
        options.extend([OPTION_WINDOW_SCALE, u32::from(send) | u32::from(receive) << 16]);
    }
    if facts.sack {
        options.extend([OPTION_SACK, 0]);
    }
    if facts.stamp.is_some() {
        options.extend([OPTION_TIMESTAMPS, 0]);
    }
    options
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    /// The kernel's state of a socket's buffers: locks, and the limits of the send and the receive buffer.
    fn buffers(fd: RawFd) -> [u32; 3] {
        [SO_BUF_LOCK, libc::SO_SNDBUF, libc::SO_RCVBUF]
            .map(|name| get_u32(fd, libc::SOL_SOCKET, name).unwrap())
    }

    #[test]
    fn restored_socket_has_kernel_sized_buffers() {
        for ip in ["127.0.0.1", "::1"] {
            let end = |port| SocketAddr::new(ip.parse().unwrap(), port);
            let (local, remote) = (end(9), end(10)); // no peer is needed: the test only looks at the socket
            let facts =
                TcpParams { local, remote, mss: 1460, window_scales: Some((7, 7)), sack: true, stamp: None };
            let restore = Restore {
                facts,
                send: 1,
                receive: 1,
                timestamp: None,
                window: 65_535,
                peer_window: 65_535,
                buffer: 8 << 20,
            };
            let restoring = match super::restore(&restore) {
                Err(error) if error.source.raw_os_error() == Some(libc::EPERM) => {
                    assert!(std::env::var_os("CI").is_none(), "in CI no test is skipped: {error}");
                    return drop(writeln!(std::io::stderr(), "skipped what a restored socket has: {error}"));
                }
                other => other.unwrap(),
            };
            assert_eq!(buffers(restoring.socket.as_raw_fd()), [3, 16 << 20, 16 << 20]);
            let early = vec![7; 4096];
            assert_eq!(restoring.receive(&early).unwrap(), early.len());
            let socket = restoring.finish().unwrap();
            assert_eq!(buffers(socket.as_raw_fd()), [0, 512 << 10, 16 << 20]);
            let mut got = vec![0; early.len()];
            let moved = crate::read(socket.as_raw_fd(), &mut got);
            assert!(matches!(moved, crate::Transfer::Moved(count) if count == early.len()), "{moved:?}");
            assert!(got == early);
        }
    }
}
