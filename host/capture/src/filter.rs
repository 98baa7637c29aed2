//! Filters of a packet socket.

use crate::sockopt::set;
use evergate_evidence::program::{Instruction, accept_all};
use evergate_evidence::statement::Partition;
use std::io;
use std::os::fd::OwnedFd;

/// Choice of the frames that a ring receives. The kernel counts refused frames nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filter {
    /// One part of several recorders.
    Partition(Partition),
}

/// Value of a program that accepts whole frames. The kernel cuts to the smaller of it and the frame's length.
const WHOLE: u32 = u32::MAX;

/// The program of a filter and a snap length (0: whole frames); `None` when no program is needed.
pub(crate) fn program(filter: Option<Filter>, snaplen: u32) -> Option<Vec<Instruction>> {
    let accepted = if snaplen == 0 { WHOLE } else { snaplen };
    match filter {
        Some(Filter::Partition(partition)) => Some(partition.program(accepted)),
        None if snaplen == 0 => None,
        None => Some(accept_all(accepted)),
    }
}

/// Puts a program in place of the socket's present one. No frame meets a socket without any program meanwhile.
pub(crate) fn attach(socket: &OwnedFd, program: &[Instruction]) -> io::Result<()> {
    let raw = |i: &Instruction| libc::sock_filter { code: i.code, jt: i.if_true, jf: i.if_false, k: i.k };
    let mut instructions: Vec<libc::sock_filter> = program.iter().map(raw).collect();
    let length = u16::try_from(instructions.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let program = libc::sock_fprog { len: length, filter: instructions.as_mut_ptr() };
    // The kernel copies the instructions, which live across the call.
    set(socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)
}
