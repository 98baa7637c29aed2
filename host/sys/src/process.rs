//! Process settings: privileges, limits, clocks.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

fn check(result: i32) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Makes the kernel kill the process that `command` starts as soon as the thread that starts it has ended.
pub fn end_with_parent(command: &mut Command) -> &mut Command {
    // SAFETY: between fork and exec the closure makes one system call and touches no memory of the parent.
    unsafe { command.pre_exec(|| check(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL))) }
}

/// Excludes the memory of this process from core files, and protects it from other processes of its user.
pub fn hide_memory() -> io::Result<()> {
    const NO: libc::c_ulong = 0;
    // SAFETY: sets a number of the process.
    check(unsafe { libc::prctl(libc::PR_SET_DUMPABLE, NO) })
}

/// Whether [`hide_memory`] has been called.
pub(crate) fn hides_memory() -> bool {
    // SAFETY: reads a number of the process.
    unsafe { libc::prctl(libc::PR_GET_DUMPABLE) == 0 }
}

/// Whether this process can open no more files: the limit of the process or of the machine is reached.
pub fn lacks_descriptors() -> bool {
    let none_left = |error: io::Error| matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE));
    std::fs::File::open("/dev/null").is_err_and(none_left)
}

/// Raises the limit of open files to the hard limit; returns the limit in force.
pub fn raise_file_limit() -> io::Result<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel writes one rlimit.
    check(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) })?;
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: the pointer describes an initialised rlimit.
    check(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) })?;
    Ok(limit.rlim_cur)
}

/// Grows the kernel's file table to `count` open files at once. Otherwise it grows in steps, and each step makes a
/// thread of a multi-threaded process wait for all processors, which takes 5 to 15 ms.
pub fn make_room_for_files(count: u64) -> io::Result<()> {
    let last = i32::try_from(count.saturating_sub(1)).unwrap_or(i32::MAX);
    // SAFETY: no pointers are passed; the result is a new descriptor, owned here alone.
    let some = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
    check(some)?;
    // SAFETY: as above.
    let some = unsafe { OwnedFd::from_raw_fd(some) };
    // SAFETY: no pointers are passed.
    let high = unsafe { libc::fcntl(some.as_raw_fd(), libc::F_DUPFD_CLOEXEC, last) };
    check(high)?;
    // SAFETY: the result is a new descriptor, owned here alone.
    drop(unsafe { OwnedFd::from_raw_fd(high) });
    Ok(())
}

/// Gives the calling thread the real-time `priority` of 1 to 99; threads that it starts are ordinary again. Needs
/// `CAP_SYS_NICE` or a limit `RLIMIT_RTPRIO`. Only for threads that wait most of the time.
pub fn run_in_real_time(priority: i32) -> io::Result<()> {
    let parameters = libc::sched_param { sched_priority: priority };
    let policy = libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK;
    // SAFETY: the pointer describes an initialised sched_param; 0 is the calling thread.
    check(unsafe { libc::sched_setscheduler(0, policy, &raw const parameters) })
}

/// Locks the memory that the process uses now; untouched pages stay untouched. Later memory is not locked, because a
/// limit on locked memory would then make allocations fail.
pub fn lock_memory() -> io::Result<()> {
    // SAFETY: no pointers are passed.
    check(unsafe { libc::mlockall(libc::MCL_CURRENT | libc::MCL_ONFAULT) })
}

/// Makes sleeps of the calling thread end within `slack` of their time; the kernel's default is 50 us.
pub fn sleep_within(slack: Duration) -> io::Result<()> {
    let ns = libc::c_ulong::try_from(slack.as_nanos()).unwrap_or(libc::c_ulong::MAX);
    // SAFETY: sets a number of the calling thread.
    check(unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, ns) })?;
    Ok(())
}

/// CPU time of the calling thread in nanoseconds.
pub fn thread_cpu_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes one timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Monotonic clock in microseconds, common to all processes of this machine until it restarts.
pub fn monotonic_us() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes one timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1_000_000 + time.tv_nsec as u64 / 1000
}

/// Monotonic clock in milliseconds with a large offset, so that times before the start of this machine, as other
/// machines report them, can be represented.
pub fn steady_clock_ms() -> u64 {
    (1 << 40) + monotonic_us() / 1000
}

/// Wall clock in seconds since 1970.
pub fn wall_clock_s() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Resident memory of this process in bytes; 0 when it cannot be read.
pub fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = text.split(' ').nth(1).and_then(|field| field.parse().ok()).unwrap_or(0);
    // SAFETY: no pointers are passed.
    let page_bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    pages * u64::try_from(page_bytes).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resident_memory_matches_the_kernel_for_any_page_size() {
        let text = std::fs::read_to_string("/proc/self/status").unwrap();
        let kilobytes = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        let kilobytes: u64 = kilobytes.trim().trim_end_matches(" kB").parse().unwrap();
        // Other tests allocate meanwhile; the test detects that pages of 16 KiB and more are mistaken for 4 KiB.
        let resident = resident_bytes();
        assert!((kilobytes * 512..kilobytes * 2048).contains(&resident), "{resident} {kilobytes}");
    }
}
