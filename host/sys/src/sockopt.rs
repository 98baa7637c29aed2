//! Socket options, one call each.

use std::io;
use std::os::fd::RawFd;

pub(crate) fn check(result: i32) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Sets an option to a plain value: an integer or an array of them.
pub(crate) fn set<T: Copy>(fd: RawFd, level: i32, option: i32, value: &T) -> io::Result<()> {
    // SAFETY: the pointer and length describe `value`, which lives across the call.
    check(unsafe {
        libc::setsockopt(fd, level, option, (&raw const *value).cast(), size_of::<T>() as libc::socklen_t)
    })
}

/// Sets an option to a list of words.
pub(crate) fn set_words(fd: RawFd, level: i32, option: i32, words: &[u32]) -> io::Result<()> {
    // SAFETY: the pointer and length describe `words`, which live across the call.
    check(unsafe {
        libc::setsockopt(fd, level, option, words.as_ptr().cast(), size_of_val(words) as libc::socklen_t)
    })
}

pub(crate) fn get_u32(fd: RawFd, level: i32, option: i32) -> io::Result<u32> {
    let mut value = 0u32;
    let mut length = size_of::<u32>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes into `value`.
    check(unsafe { libc::getsockopt(fd, level, option, (&raw mut value).cast(), &raw mut length) })?;
    Ok(value)
}

/// Reads an option into `buffer`; returns the number of bytes that the kernel wrote.
pub(crate) fn get_bytes(fd: RawFd, level: i32, option: i32, buffer: &mut [u8]) -> io::Result<usize> {
    let mut length = buffer.len() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes into the buffer.
    check(unsafe { libc::getsockopt(fd, level, option, buffer.as_mut_ptr().cast(), &raw mut length) })?;
    Ok((length as usize).min(buffer.len()))
}

/// Practically unlimited send buffer, in bytes: other limits bound unsent packets, per neighbour and in the queues of
/// cards.
const SEND_BYTES: i32 = 64 << 20;

/// Raises the send buffer of a socket with many destinations, so that unreachable ones do not block it. The kernel
/// keeps packets for a neighbour that does not answer for some seconds (`unres_qlen_bytes`, 208 KiB each). It counts
/// them against the socket, whose usual buffer has the same size. One machine that is off would fill it.
pub(crate) fn raise_send_buffer(fd: RawFd) -> io::Result<()> {
    // Without the privilege to exceed the system's limit, the socket keeps the largest allowed buffer.
    set(fd, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &SEND_BYTES)
        .or_else(|_| set(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, &SEND_BYTES))
}
