//! Descriptors sent to another process over a Unix stream socket (unix(7), SCM_RIGHTS).

use crate::Transfer;
use crate::socket::outcome;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// Most descriptors in one message; the kernel accepts up to 253.
pub const DESCRIPTORS_MAX: usize = 64;

/// Size of a control message with that many descriptors, aligned for its header.
const CONTROL_WORDS: usize = (DESCRIPTORS_MAX * size_of::<RawFd>() + 64) / size_of::<u64>();

fn too_many(count: usize) -> Transfer {
    Transfer::Broken(io::Error::other(format!(
        "{count} descriptors at once, at most {DESCRIPTORS_MAX} can go"
    )))
}

/// Repeats a call that a signal interrupted: on a blocking socket with a time limit the kernel leaves that to the
/// caller (signal(7)).
fn uninterrupted(mut call: impl FnMut() -> isize) -> isize {
    loop {
        let result = call();
        if result >= 0 || io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            return result;
        }
    }
}

/// Sends from `bytes`, which must not be empty; the descriptors travel with the first byte. They stay open here.
pub fn send_descriptors(socket: RawFd, bytes: &[u8], descriptors: &[OwnedFd]) -> Transfer {
    if descriptors.len() > DESCRIPTORS_MAX {
        return too_many(descriptors.len());
    }
    let numbers: Vec<RawFd> = descriptors.iter().map(AsRawFd::as_raw_fd).collect();
    let length = size_of_val(numbers.as_slice()) as u32;
    let mut control = [0u64; CONTROL_WORDS];
    let mut piece = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: msghdr is plain data for which all zero bytes are a valid value.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut piece;
    message.msg_iovlen = 1;
    if !numbers.is_empty() {
        message.msg_control = control.as_mut_ptr().cast();
        // SAFETY: the macro only calculates.
        message.msg_controllen = unsafe { libc::CMSG_SPACE(length) } as usize;
        // SAFETY: the control buffer is aligned, longer than one header with DESCRIPTORS_MAX descriptors, and outlives
        // the call.
        unsafe {
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(length) as usize;
            let data = libc::CMSG_DATA(header).cast::<RawFd>();
            std::ptr::copy_nonoverlapping(numbers.as_ptr(), data, numbers.len());
        }
    }
    // SAFETY: the message describes `bytes` and the control buffer, both borrowed across the call, which only reads
    // them.
    let send = || unsafe { libc::sendmsg(socket, &raw const message, libc::MSG_NOSIGNAL) };
    match outcome(uninterrupted(send)) {
        // The number of descriptors in flight has reached the process limit (unix(7)); some will have arrived soon.
        Transfer::Broken(error) if error.raw_os_error() == Some(libc::ETOOMANYREFS) => Transfer::Blocked,
        sent => sent,
    }
}

/// Reads into `buffer`, which must not be empty; appends received descriptors, closed on exec, to `descriptors`. The
/// bytes belong to one [`send_descriptors`]. Also returns whether descriptors were lost because of this process's
/// limit.
pub fn receive_descriptors(
    socket: RawFd,
    buffer: &mut [u8],
    descriptors: &mut Vec<OwnedFd>,
) -> (Transfer, bool) {
    let mut control = [0u64; CONTROL_WORDS];
    let mut piece = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: msghdr is plain data for which all zero bytes are a valid value.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut piece;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control);
    // SAFETY: the message describes `buffer` and the control buffer with their lengths; the kernel writes no more.
    let receive = || unsafe { libc::recvmsg(socket, &raw mut message, libc::MSG_CMSG_CLOEXEC) };
    let result = uninterrupted(receive);
    let moved = outcome(result);
    if result < 0 {
        return (moved, false);
    }
    // SAFETY: the kernel filled the control buffer and its length in; the macros stay inside it.
    let mut header = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
    while !header.is_null() {
        // SAFETY: a header from the macros is completely inside the control buffer.
        let (level, kind, length) =
            unsafe { ((*header).cmsg_level, (*header).cmsg_type, (*header).cmsg_len as usize) };
        if level == libc::SOL_SOCKET && kind == libc::SCM_RIGHTS {
            // SAFETY: the macro only calculates.
            let count = (length - unsafe { libc::CMSG_LEN(0) } as usize) / size_of::<RawFd>();
            for index in 0..count {
                // SAFETY: the kernel put `count` descriptors behind the header; they are new and owned here alone.
                descriptors.push(unsafe {
                    let data = libc::CMSG_DATA(header).cast::<RawFd>();
                    OwnedFd::from_raw_fd(data.add(index).read_unaligned())
                });
            }
        }
        // SAFETY: both describe the same control buffer.
        header = unsafe { libc::CMSG_NXTHDR(&raw const message, header) };
    }
    (moved, message.msg_flags & libc::MSG_CTRUNC != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;
    use std::os::unix::thread::JoinHandleExt;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    #[test]
    fn descriptors_arrive_with_their_bytes_in_order() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let pairs: Vec<_> = (0..3).map(|_| UnixStream::pair().unwrap()).collect();
        for (index, (_, far)) in pairs.iter().enumerate() {
            let fds = [OwnedFd::from(far.try_clone().unwrap())];
            let sent = send_descriptors(ours.as_raw_fd(), &[index as u8; 5], &fds);
            assert!(matches!(sent, Transfer::Moved(5)), "{sent:?}");
        }
        let (mut bytes, mut fds) = (Vec::new(), Vec::new());
        while bytes.len() < 15 {
            let mut buffer = [0; 64];
            match receive_descriptors(theirs.as_raw_fd(), &mut buffer, &mut fds) {
                (Transfer::Moved(count), false) => bytes.extend_from_slice(&buffer[..count]),
                other => panic!("{other:?}"),
            }
            assert!(fds.len() >= bytes.len().div_ceil(5), "bytes before their descriptors");
        }
        assert_eq!(bytes, [[0u8; 5], [1; 5], [2; 5]].concat());
        for ((mut near, far), fd) in pairs.into_iter().zip(fds) {
            drop(far);
            UnixStream::from(fd).write_all(b"x").unwrap();
            let mut back = Vec::new();
            near.read_to_end(&mut back).unwrap(); // its end shows that no other descriptor is left
            assert_eq!(back, b"x");
        }
        drop(ours);
        let ended = receive_descriptors(theirs.as_raw_fd(), &mut [0; 4], &mut Vec::new());
        assert!(matches!(ended, (Transfer::End, false)), "{ended:?}");
    }
    #[test]
    fn signal_does_not_end_the_wait_of_a_blocking_socket() {
        static SIGNALS: AtomicUsize = AtomicUsize::new(0);
        extern "C" fn noted(_: libc::c_int) {
            SIGNALS.fetch_add(1, Ordering::Relaxed);
        }
        // SAFETY: sigaction is plain data for which all zero bytes are a valid value; the handler only counts.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = noted as extern "C" fn(libc::c_int) as libc::sighandler_t;
            assert_eq!(libc::sigaction(libc::SIGUSR2, &raw const action, std::ptr::null_mut()), 0);
        }
        let (ours, theirs) = UnixStream::pair().unwrap();
        theirs.set_read_timeout(Some(Duration::from_secs(60))).unwrap(); // only ends a hang
        let reader =
            std::thread::spawn(move || receive_descriptors(theirs.as_raw_fd(), &mut [0; 4], &mut Vec::new()));
        while SIGNALS.load(Ordering::Relaxed) < 100 && !reader.is_finished() {
            // SAFETY: the thread is not joined yet.
            unsafe { libc::pthread_kill(reader.as_pthread_t(), libc::SIGUSR2) };
            std::thread::yield_now();
        }
        let sent = send_descriptors(ours.as_raw_fd(), b"x", &[]);
        assert!(matches!(sent, Transfer::Moved(1)), "{sent:?}");
        let received = reader.join().unwrap();
        assert!(matches!(received, (Transfer::Moved(1), false)), "{received:?}");
    }
}
