//! Netlink requests, each answered by an acknowledgement or by one object.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

const HEADER: usize = 16;

/// Size of the buffer for an answer: one object with its attributes.
const ANSWER: usize = 4096;

/// Sends a request of `protocol` and waits for the kernel's acknowledgement; returns its error, if any.
pub(crate) fn request(protocol: i32, kind: u16, flags: i32, body: &[u8]) -> io::Result<()> {
    match exchange(protocol, kind, flags | libc::NLM_F_ACK, body)? {
        (ERROR, answer) => outcome(&answer),
        (kind, _) => Err(unexpected(kind)),
    }
}

/// Sends a request and waits for the requested object; returns its body with the attributes.
pub(crate) fn ask(protocol: i32, kind: u16, body: &[u8]) -> io::Result<Vec<u8>> {
    match exchange(protocol, kind, 0, body)? {
        (ERROR, answer) => outcome(&answer).and(Err(unexpected(ERROR))),
        (_, answer) => Ok(answer),
    }
}

const ERROR: u16 = 2;

fn outcome(answer: &[u8]) -> io::Result<()> {
    match answer.first_chunk().map(|code| i32::from_ne_bytes(*code)) {
        Some(0) => Ok(()),
        Some(error) => Err(io::Error::from_raw_os_error(-error)),
        None => Err(unexpected(ERROR)),
    }
}

fn unexpected(kind: u16) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("netlink answered with message {kind}"))
}

/// Sends a request; returns kind and body of the first answer.
fn exchange(protocol: i32, kind: u16, flags: i32, body: &[u8]) -> io::Result<(u16, Vec<u8>)> {
    // SAFETY: no pointers are passed.
    let fd = unsafe { libc::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, protocol) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `fd` was just returned by the kernel and is owned here alone.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    let flags = (libc::NLM_F_REQUEST | flags) as u16;
    let mut message = Vec::with_capacity(HEADER + body.len());
    message.extend(((HEADER + body.len()) as u32).to_ne_bytes());
    message.extend(kind.to_ne_bytes());
    message.extend(flags.to_ne_bytes());
    message.extend([0; 8]); // sequence number and port: there is one request only
    message.extend(body);
    // SAFETY: pointer and length describe the message. Without an address the message goes to the kernel.
    let sent = unsafe { libc::send(socket.as_raw_fd(), message.as_ptr().cast(), message.len(), 0) };
    if sent < 0 {
        return Err(io::Error::last_os_error());
    }
    let mut answer = vec![0u8; ANSWER];
    // SAFETY: pointer and length describe the buffer.
    let got = unsafe { libc::recv(socket.as_raw_fd(), answer.as_mut_ptr().cast(), answer.len(), 0) };
    let Ok(got) = usize::try_from(got) else { return Err(io::Error::last_os_error()) };
    answer.truncate(got);
    let header: &[u8; HEADER] = answer.first_chunk().ok_or_else(|| unexpected(0))?;
    let (length, kind) = (
        u32::from_ne_bytes([header[0], header[1], header[2], header[3]]) as usize,
        u16::from_ne_bytes([header[4], header[5]]),
    );
    let body = answer.get(HEADER..length.min(got)).ok_or_else(|| unexpected(kind))?;
    Ok((kind, body.to_vec()))
}

/// The value of an attribute among `attributes`.
pub(crate) fn find(mut attributes: &[u8], wanted: u16) -> Option<&[u8]> {
    loop {
        let [a, b, c, d, ..] = *attributes else { return None };
        let (length, kind) = (usize::from(u16::from_ne_bytes([a, b])), u16::from_ne_bytes([c, d]));
        if kind == wanted {
            return attributes.get(4..length);
        }
        attributes = attributes.get(length.max(4).next_multiple_of(4)..)?;
    }
}

/// Appends one attribute: length, type, value, padding.
pub(crate) fn attribute(into: &mut Vec<u8>, kind: u16, value: &[u8]) {
    into.extend(((4 + value.len()) as u16).to_ne_bytes());
    into.extend(kind.to_ne_bytes());
    into.extend(value);
    into.resize(into.len().next_multiple_of(4), 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_found_behind_padding() {
        let mut all = Vec::new();
        attribute(&mut all, 1, &[1, 2, 3, 4, 5]);
        attribute(&mut all, 2, &[9; 6]);
        assert_eq!(find(&all, 1), Some(&[1, 2, 3, 4, 5][..]));
        assert_eq!(find(&all, 2), Some(&[9; 6][..]));
        assert_eq!(find(&all, 3), None);
        for length in 0..all.len() - 2 {
            assert_eq!(find(&all[..length], 2), None, "{length}");
        }
        assert_eq!(find(&[0; 8], 2), None, "a length of zero ends the search");
    }
}
