//! Clock of the leases, read by this process and by the programs.
//!
//! It is the boot-time clock: unlike the monotonic clock it continues while the machine is suspended, so a node does
//! not come back with leases that other nodes saw expire long ago. In a time namespace a process may see this clock
//! moved against the programs' clock (`time_namespaces(7)`): its leases would be expired already, or last hours too
//! long. The gate refuses to load there. Where a hypervisor stops the machine's clocks, this clock stops as well.

use crate::GateError;
use libbpf_rs::libbpf_sys as sys;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

/// Largest accepted difference of both clocks: the kernel corrects its clock by nanoseconds between two reads. A lease
/// has a margin of 2 ms.
const APART_NS_MAX: u64 = 500_000;
/// A frame that is long enough for a test run; the time takes the place of its first bytes.
const FRAME_BYTES: usize = 64;

/// Nanoseconds since the machine started, as this process sees it.
pub(crate) fn now_ns() -> u64 {
    read_ns(libc::CLOCK_BOOTTIME)
}

/// Nanoseconds of atomic time since 1970, by which cookies go.
pub(crate) fn tai_ns() -> u64 {
    read_ns(libc::CLOCK_TAI)
}

fn read_ns(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes one timespec.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Fails where this process and the programs see different times. `program` returns the programs' time.
pub(crate) fn check(program: BorrowedFd<'_>) -> Result<(), GateError> {
    let before_ns = now_ns();
    let programs_ns = ask(program).map_err(|error| GateError::kernel("asking the gate's clock", error))?;
    let after_ns = now_ns();
    let (ahead, behind) = (before_ns.saturating_sub(programs_ns), programs_ns.saturating_sub(after_ns));
    match ahead.max(behind) {
        0..=APART_NS_MAX => Ok(()),
        apart => Err(GateError::Clock { apart: Duration::from_nanos(apart), ahead: ahead > behind }),
    }
}

fn ask(program: BorrowedFd<'_>) -> io::Result<u64> {
    let (frame, mut out) = ([0u8; FRAME_BYTES], [0u8; FRAME_BYTES]);
    let mut options = sys::bpf_test_run_opts {
        sz: size_of::<sys::bpf_test_run_opts>() as _,
        data_in: frame.as_ptr().cast(),
        data_size_in: FRAME_BYTES as u32,
        data_out: out.as_mut_ptr().cast(),
        data_size_out: FRAME_BYTES as u32,
        repeat: 1,
        ..Default::default()
    };
    // SAFETY: the options describe buffers that live across the call; the kernel writes at most data_size_out bytes.
    let result = unsafe { sys::bpf_prog_test_run_opts(program.as_raw_fd(), &raw mut options) };
    match (result, options.retval, out.first_chunk()) {
        (..0, ..) => Err(io::Error::from_raw_os_error(-result)),
        (_, 0, Some(time)) => Ok(u64::from_ne_bytes(*time)),
        _ => Err(io::Error::other("the program could not write the time")),
    }
}

#[cfg(test)]
mod tests {
    use crate::skeleton::gate::GateSkelBuilder;
    use libbpf_rs::libbpf_sys as sys;
    use libbpf_rs::skel::{OpenSkel, SkelBuilder};
    use std::mem::MaybeUninit;

    /// On a machine that was never suspended both clocks are equal, so the test reads the programs instead.
    #[test]
    fn gate_clock_continues_while_the_machine_is_suspended() {
        let mut storage = MaybeUninit::uninit();
        let mut open = GateSkelBuilder::default().open(&mut storage).unwrap();
        let (mut asks, mut call) = (0, 0);
        for program in open.open_object_mut().progs() {
            let calls =
                program.insns().iter().filter(|insn| insn.code == (sys::BPF_JMP | sys::BPF_CALL) as u8);
            for insn in calls.filter(|insn| insn.src_reg() == 0) {
                call += 1;
                let helper = insn.imm as u32;
                asks += u32::from(helper == sys::BPF_FUNC_ktime_get_boot_ns);
                assert_ne!(helper, sys::BPF_FUNC_ktime_get_ns, "{:?}", program.name());
                assert_ne!(helper, sys::BPF_FUNC_ktime_get_coarse_ns, "{:?}", program.name());
            }
        }
        assert!(asks > 0 && call > asks, "{asks} of {call}");
    }
}
