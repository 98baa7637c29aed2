//! Sockets, their options and their addresses, one call each.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

pub(crate) fn check(result: i32) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// A new socket that programs started by this one do not inherit.
pub(crate) fn socket(family: i32, kind: i32, protocol: i32) -> io::Result<OwnedFd> {
    // SAFETY: no pointers are passed.
    let fd = unsafe { libc::socket(family, kind | libc::SOCK_CLOEXEC, protocol) };
    check(fd)?;
    // SAFETY: `fd` was just returned by the kernel and is owned here alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Sets an option to a plain value: an integer, or a structure of integers that the kernel only reads.
pub(crate) fn set<T: Copy>(socket: &OwnedFd, level: i32, option: i32, value: &T) -> io::Result<()> {
    let length = size_of::<T>() as libc::socklen_t;
    // SAFETY: the pointer and length describe `value`, which lives across the call.
    check(unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const *value).cast(), length) })
}

/// Reads an option of a plain type: any bytes are a valid value of `T`.
///
/// # Safety
///
/// `T` consists of integers only.
pub(crate) unsafe fn get<T: Copy>(socket: &OwnedFd, level: i32, option: i32, mut value: T) -> io::Result<T> {
    let mut length = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes into `value`, and the caller promises that any are valid.
    check(unsafe {
        libc::getsockopt(socket.as_raw_fd(), level, option, (&raw mut value).cast(), &raw mut length)
    })?;
    Ok(value)
}

/// Binds a packet socket to an interface; `protocol` 0 receives nothing.
pub(crate) fn bind_packet(socket: &OwnedFd, interface: u32, protocol: u16) -> io::Result<()> {
    // SAFETY: sockaddr_ll is plain data for which all zero bytes are a valid value.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = protocol.to_be();
    address.sll_ifindex = interface as i32;
    let length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: the pointer and length describe an initialised address.
    check(unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) })
}
