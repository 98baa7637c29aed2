//! Kernel features that the gate needs, checked before anything is loaded.

use evergate_sys::Missing;
use libbpf_rs::libbpf_sys as sys;
use std::io;

/// Features that the gate lacks on this machine; empty when it can run. Checks by loading programs of a few
/// instructions.
pub fn missing_gate_features() -> Vec<Missing> {
    let privilege = Some("CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON");
    let program = sys::BPF_PROG_TYPE_SCHED_CLS;
    // SAFETY: no pointers but null, which means no options.
    let trials = unsafe {
        [
            (
                "eBPF at traffic control (BPF_PROG_TYPE_SCHED_CLS)",
                "4.5",
                sys::libbpf_probe_bpf_prog_type(program, std::ptr::null()),
            ),
            (
                "ring buffers (BPF_MAP_TYPE_RINGBUF)",
                "5.8",
                sys::libbpf_probe_bpf_map_type(sys::BPF_MAP_TYPE_RINGBUF, std::ptr::null()),
            ),
            (
                "loops in eBPF (bpf_loop)",
                "5.17",
                sys::libbpf_probe_bpf_helper(program, sys::BPF_FUNC_loop, std::ptr::null()),
            ),
        ]
    };
    let missing = |(feature, kernel, answer): (_, _, i32)| match answer {
        1.. => None,
        0 => {
            let refused = io::Error::other("the kernel refuses it");
            Some(Missing::new(feature, kernel, privilege, &refused))
        }
        error => Some(Missing::new(feature, kernel, privilege, &io::Error::from_raw_os_error(-error))),
    };
    trials.into_iter().filter_map(missing).collect()
}
