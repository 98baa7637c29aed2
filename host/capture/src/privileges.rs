//! Privileges of a capture: CAP_NET_RAW until its sockets are open, none afterwards.

use crate::error::CaptureError;
use crate::sockopt::check;

/// Number of CAP_NET_RAW.
const NET_RAW: u32 = 13;
/// Number of CAP_SETPCAP.
const SETPCAP: u32 = 8;
/// Two words a set (`_LINUX_CAPABILITY_VERSION_3`).
const VERSION: u32 = 0x2008_0522;

#[repr(C)]
struct Header {
    version: u32,
    thread: i32,
}

/// Sets of capabilities, one half of the numbers.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Sets {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

fn sets() -> std::io::Result<[Sets; 2]> {
    let mut header = Header { version: VERSION, thread: 0 };
    let mut sets = [Sets::default(); 2];
    // SAFETY: this version of the call reads the header and writes two sets; thread 0 is the calling one.
    let result = unsafe { libc::syscall(libc::SYS_capget, &raw mut header, sets.as_mut_ptr()) };
    check(result as i32).map(|()| sets)
}

fn has(capability: u32) -> bool {
    sets().is_ok_and(|sets| sets[0].effective >> capability & 1 != 0)
}

/// Whether the calling thread has CAP_NET_RAW, which opening a ring needs.
pub fn has_net_raw() -> bool {
    has(NET_RAW)
}

/// Drops all capabilities of the calling thread permanently and sets `no_new_privs`. Open rings keep working. Call it
/// before other threads start: they inherit the state, running ones keep theirs.
pub fn drop_privileges() -> Result<(), CaptureError> {
    let drop = || {
        // SAFETY: no pointers are passed.
        check(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) })?;
        // SAFETY: no pointers are passed.
        check(unsafe { libc::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) })?;
        if has(SETPCAP) {
            drop_bounding_set();
        }
        let mut header = Header { version: VERSION, thread: 0 };
        let none = [Sets::default(); 2];
        // SAFETY: this version of the call reads the header and two sets; thread 0 is the calling one.
        let result = unsafe { libc::syscall(libc::SYS_capset, &raw mut header, none.as_ptr()) };
        check(result as i32)
    };
    drop().map_err(CaptureError::kernel("dropping capabilities"))
}

/// Empties the bounding set. The call fails behind the last capability of the kernel.
fn drop_bounding_set() {
    // SAFETY: no pointers are passed.
    (0..64)
        .take_while(|capability| unsafe { libc::prctl(libc::PR_CAPBSET_DROP, *capability, 0, 0, 0) } == 0)
        .count();
}
