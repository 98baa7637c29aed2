//! Errors of a capture, each with its remedy.

use std::io;

/// Why a capture cannot start or continue.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    /// No interface has this name.
    #[error("capture: no interface {0}; `ip link` lists the interfaces of this network namespace")]
    NoInterface(String),
    /// The interface is administratively down.
    #[error("capture: interface {0} is down; run `ip link set {0} up` first")]
    Down(String),
    /// The interface disappeared during the capture.
    #[error("capture: interface {0} disappeared; start again when it is back")]
    Gone(String),
    /// The frames of the interface have no Ethernet header.
    #[error(
        "capture: interface {name} has link type {kind}, not Ethernet; name the Ethernet interface below it \
             (for a tunnel the one that carries it)"
    )]
    NotEthernet {
        /// Name of the interface.
        name: String,
        /// Hardware type, `ARPHRD_*`.
        kind: u16,
    },
    /// The process lacks CAP_NET_RAW.
    #[error(
        "capture: opening a packet socket failed: CAP_NET_RAW is missing; start the program as root, by its systemd \
             unit, or after `setcap cap_net_raw+ep PROGRAM`"
    )]
    Privilege,
    /// The kernel has no memory for the ring.
    #[error(
        "capture: the kernel has no memory for a ring of {mib} MiB; free memory or choose a smaller ring"
    )]
    RingTooLarge {
        /// Size of the ring.
        mib: u64,
    },
    /// An option has an impossible value.
    #[error("capture: {0}")]
    Options(String),
    /// The kernel refused the socket's membership in a fanout group.
    #[error(
        "capture: joining fanout group {group} on {name} failed: {reported}; all members need the same interface and \
             mode, and an id that no other program uses"
    )]
    Fanout {
        /// Id of the group.
        group: u16,
        /// Name of the interface.
        name: String,
        /// The kernel's error. Part of the message and not a source.
        reported: io::Error,
    },
    /// Another system call failed.
    #[error("capture: {attempt}: {reported}; it needs Linux 5.9 or newer with CONFIG_PACKET")]
    Kernel {
        /// The attempted step, with its values.
        attempt: String,
        /// The kernel's error. Part of the message and not a source.
        reported: io::Error,
    },
}

impl CaptureError {
    /// An error of a system call.
    pub(crate) fn kernel(attempt: impl Into<String>) -> impl FnOnce(io::Error) -> CaptureError {
        move |reported| CaptureError::Kernel { attempt: attempt.into(), reported }
    }
}
