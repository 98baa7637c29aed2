//! Non-blocking TCP sockets.

use crate::address::Raw;
use crate::{Keepalive, set_keepalive};
use evergate_base::net::Transfer;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// Result of a transfer that returned a number of bytes, or a negative value.
pub(crate) fn outcome(result: isize) -> Transfer {
    match result {
        0 => Transfer::End,
        moved if moved > 0 => Transfer::Moved(moved as usize),
        _ => {
            let error = io::Error::last_os_error();
            match error.raw_os_error() {
                // ETOOMANYREFS: the user has too many descriptors in flight to send more now.
                Some(libc::EAGAIN | libc::EINTR | libc::ETOOMANYREFS) => Transfer::Blocked,
                _ => Transfer::Broken(error),
            }
        }
    }
}

fn owned(fd: i32) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `fd` was just returned by the kernel and is owned here alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn check(result: i32) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn set(fd: RawFd, level: i32, option: i32, value: i32) -> io::Result<()> {
    // SAFETY: the pointer and length describe `value`, which lives across the call.
    check(unsafe {
        libc::setsockopt(fd, level, option, (&raw const value).cast(), size_of::<i32>() as libc::socklen_t)
    })
}

/// A TCP socket of the address's family. An urgent byte is part of the stream (RFC 6093 section 5). Otherwise reads
/// would omit it, although TCP's sequence numbers count it. A listener passes this option on to accepted sockets.
pub(crate) fn stream_socket(address: SocketAddr) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    // SAFETY: no pointers are passed.
    let socket = owned(unsafe {
        libc::socket(family, libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC, 0)
    })?;
    set(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_OOBINLINE, 1)?;
    Ok(socket)
}

/// Options of a listener.
#[derive(Clone, Copy, Debug)]
pub struct Listening {
    /// Accept IPv4 clients as well, on `[::]`. Otherwise an IPv6 socket accepts only its own family.
    pub both_families: bool,
    /// Fail if another socket listens already, even a sharing one, so that no other service's traffic is divided by
    /// mistake. Later sockets of the same user may listen beside this one if they do not set `is_first`.
    pub is_first: bool,
    /// Most connections that may wait to be accepted.
    pub backlog: i32,
    /// TCP keep-alive, which accepted sockets inherit; set before the first connection can arrive.
    pub keepalive: Option<Keepalive>,
}

/// A listener that shares its port with those of other workers, for the family of its address alone.
pub fn listen(address: SocketAddr, backlog: i32) -> io::Result<OwnedFd> {
    listen_as(address, Listening { both_families: false, is_first: false, backlog, keepalive: None })
}

/// A listener. Accepted sockets inherit TCP_NODELAY.
pub fn listen_as(address: SocketAddr, how: Listening) -> io::Result<OwnedFd> {
    let socket = stream_socket(address)?;
    let fd = socket.as_raw_fd();
    // Allows the port while connections of an earlier process remain. It admits no socket beside a listening one.
    set(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1)?;
    if !how.is_first {
        set(fd, libc::SOL_SOCKET, libc::SO_REUSEPORT, 1)?;
    }
    set(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1)?;
    if address.is_ipv6() {
        // Set explicitly in both cases, because the default is a system setting.
        set(fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, i32::from(!how.both_families))?;
    }
    if how.keepalive.is_some() {
        set_keepalive(fd, how.keepalive)?;
    }
    let raw = Raw::new(address);
    // SAFETY: pointer and length describe an initialised socket address.
    check(unsafe { libc::bind(fd, raw.pointer(), raw.length()) })?;
    // SAFETY: no pointers are passed.
    check(unsafe { libc::listen(fd, how.backlog) })?;
    if how.is_first {
        // Set only after listening starts: the kernel then refuses one of two processes that start at once.
        set(fd, libc::SOL_SOCKET, libc::SO_REUSEPORT, 1)?;
    }
    Ok(socket)
}

/// Accepts one connection; `None` when none waits.
pub fn accept(listener: RawFd) -> io::Result<Option<(OwnedFd, SocketAddr)>> {
    let mut raw = Raw::empty();
    let (address, length) = raw.pointer_mut();
    // SAFETY: the kernel writes at most `length` bytes of address into the storage behind the pointer.
    let fd = unsafe { libc::accept4(listener, address, length, libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) };
    match owned(fd) {
        Ok(socket) => Ok(Some((socket, raw.address()))),
        Err(error) => match error.raw_os_error() {
            Some(libc::EAGAIN | libc::ECONNABORTED | libc::EINTR | libc::EPROTO) => Ok(None),
            _ => Err(error),
        },
    }
}

/// The local address of a socket.
pub fn local_address(fd: RawFd) -> io::Result<SocketAddr> {
    let mut raw = Raw::empty();
    let (address, length) = raw.pointer_mut();
    // SAFETY: the kernel writes at most `length` bytes of address into the storage behind the pointer.
    check(unsafe { libc::getsockname(fd, address, length) })?;
    Ok(raw.address())
}

/// Starts connecting; the socket becomes writable when connected, see [`connect_error`].
pub fn connect(address: SocketAddr) -> io::Result<OwnedFd> {
    let socket = stream_socket(address)?;
    let fd = socket.as_raw_fd();
    set(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1)?;
    let raw = Raw::new(address);
    // SAFETY: pointer and length describe an initialised socket address.
    match check(unsafe { libc::connect(fd, raw.pointer(), raw.length()) }) {
        Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => Err(error),
        _ => Ok(socket),
    }
}

/// The reason why connecting failed, once the socket reports readiness; `Ok` when it is connected.
pub fn connect_error(fd: RawFd) -> io::Result<()> {
    let mut error = 0i32;
    let mut length = size_of::<i32>() as libc::socklen_t;
    // SAFETY: the kernel writes one int into `error`, whose size is in `length`.
    check(unsafe {
        libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_ERROR, (&raw mut error).cast(), &raw mut length)
    })?;
    if error == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(error)) }
}

// The socket calls `read` and `write` make up half of the system calls of a small request. The C library's `recv` and
// `send` are cancellation points and do atomic operations in a multi-threaded process: about 1.5 % of such a request.

/// Reads into `buffer`, which must not be empty.
pub fn read(fd: RawFd, buffer: &mut [u8]) -> Transfer {
    let none = std::ptr::null_mut::<libc::c_void>();
    // SAFETY: pointer and length describe `buffer`; the kernel is asked for no address.
    let result =
        unsafe { libc::syscall(libc::SYS_recvfrom, fd, buffer.as_mut_ptr(), buffer.len(), 0, none, none) };
    outcome(result as isize)
}

/// Copies received bytes into `buffer`, which must not be empty, and leaves them to be read.
pub fn peek(fd: RawFd, buffer: &mut [u8]) -> Transfer {
    // SAFETY: pointer and length describe `buffer`.
    outcome(unsafe { libc::recv(fd, buffer.as_mut_ptr().cast(), buffer.len(), libc::MSG_PEEK) })
}

/// Most pieces of one scattered read or gathered write.
const PIECES_MAX: usize = 64;

/// Reads into the regions (offset, length) of `memory`, in order. Regions outside the memory are an error.
pub fn read_scattered(fd: RawFd, memory: &mut [u8], regions: &[(usize, usize)]) -> Transfer {
    let mut vectors = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; PIECES_MAX];
    let count = regions.len().min(PIECES_MAX);
    for (vector, (offset, length)) in vectors.iter_mut().zip(regions) {
        let Some(region) = offset.checked_add(*length).and_then(|end| memory.get_mut(*offset..end)) else {
            return Transfer::Broken(io::Error::from_raw_os_error(libc::EFAULT));
        };
        *vector = libc::iovec { iov_base: region.as_mut_ptr().cast(), iov_len: region.len() };
    }
    // SAFETY: each vector describes a checked region of `memory`, which is borrowed across the call.
    outcome(unsafe { libc::readv(fd, vectors.as_ptr(), count as i32) })
}

/// Writes from `bytes`, which must not be empty; a closed peer is an error, not a signal.
pub fn write(fd: RawFd, bytes: &[u8]) -> Transfer {
    let (none, flags) = (std::ptr::null::<libc::c_void>(), libc::MSG_NOSIGNAL);
    // SAFETY: pointer and length describe `bytes`; no address is passed.
    let result =
        unsafe { libc::syscall(libc::SYS_sendto, fd, bytes.as_ptr(), bytes.len(), flags, none, 0usize) };
    outcome(result as isize)
}

/// Writes the pieces in order; at most 64 of them.
pub fn write_gathered(fd: RawFd, pieces: &[&[u8]]) -> Transfer {
    send_gathered(fd, pieces, libc::MSG_NOSIGNAL)
}

/// Writes the last bytes of a stream: [`shutdown_write`] must follow at once. The FIN then leaves in one packet with
/// the last byte instead of in its own.
pub fn write_last(fd: RawFd, pieces: &[&[u8]]) -> Transfer {
    send_gathered(fd, pieces, libc::MSG_NOSIGNAL | libc::MSG_MORE)
}

fn send_gathered(fd: RawFd, pieces: &[&[u8]], flags: i32) -> Transfer {
    let mut vectors = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; PIECES_MAX];
    let count = pieces.len().min(PIECES_MAX);
    for (vector, piece) in vectors.iter_mut().zip(pieces) {
        *vector = libc::iovec { iov_base: piece.as_ptr().cast_mut().cast(), iov_len: piece.len() };
    }
    // SAFETY: msghdr is plain data for which all zero bytes are a valid value.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = vectors.as_mut_ptr();
    message.msg_iovlen = count;
    // SAFETY: each vector describes a piece that is borrowed across the call, which only reads them.
    outcome(unsafe { libc::sendmsg(fd, &raw const message, flags) })
}

/// Sends a delayed ACK now.
pub fn acknowledge_now(fd: RawFd) {
    // An error means that the connection has already ended.
    let _ = set(fd, libc::IPPROTO_TCP, libc::TCP_QUICKACK, 1);
}

/// Result of an ioctl that returns a number of bytes.
fn count_bytes(fd: RawFd, request: libc::Ioctl) -> Option<i32> {
    let mut count = 0i32;
    // SAFETY: the kernel writes one int into `count`.
    let result = unsafe { libc::ioctl(fd, request, &raw mut count) };
    (result >= 0).then_some(count)
}

/// Whether bytes wait to be read.
pub fn has_input(fd: RawFd) -> bool {
    count_bytes(fd, libc::FIONREAD).is_some_and(|count| count > 0)
}

/// Whether the socket has no unread input and no unsent bytes. Closing a socket with input sends RST and drops unsent
/// bytes.
pub fn is_drained(fd: RawFd) -> bool {
    /// `<linux/sockios.h>`: bytes that were never sent.
    const SIOCOUTQNSD: libc::Ioctl = 0x894B;
    [libc::FIONREAD, SIOCOUTQNSD].into_iter().all(|request| count_bytes(fd, request) == Some(0))
}

/// Bytes that were written and not acknowledged by the peer.
pub fn unacknowledged(fd: RawFd) -> u64 {
    // `SIOCOUTQ` has the number of `TIOCOUTQ`.
    count_bytes(fd, libc::TIOCOUTQ).and_then(|count| u64::try_from(count).ok()).unwrap_or(0)
}

/// Sends FIN after what is queued.
pub fn shutdown_write(fd: RawFd) {
    // SAFETY: no pointers are passed. An error means that the connection has already ended.
    unsafe { libc::shutdown(fd, libc::SHUT_WR) };
}

/// Makes closing the socket send RST and drop queued bytes.
pub fn reset_on_close(fd: RawFd) {
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    // SAFETY: pointer and length describe `linger`, which lives across the call.
    unsafe {
        libc::setsockopt(
            fd,
            libc::SOL_SOCKET,
            libc::SO_LINGER,
            (&raw const linger).cast(),
            size_of::<libc::linger>() as libc::socklen_t,
        )
    };
}
