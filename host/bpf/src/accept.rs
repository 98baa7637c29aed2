//! The stateless accept: an object of its own, because it needs a newer kernel than the gate.

use crate::flow::words;
use crate::skeleton::accept::{AcceptSkelBuilder, types};
use crate::table::bytes;
use crate::{CookieKey, Flow, GateError, PacketGate, Strange, clock, libbpf_log, pins};
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{MapCore, MapFlags, MapHandle, TC_INGRESS, TcHook, TcHookBuilder};
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv6Addr};
use std::num::NonZeroU32;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Stateless accept: answers SYNs of gated listeners with cookies, and accepts connections from the cookies that come
/// back, also those of another node. It needs Linux 6.9 and the sysctl `net.ipv4.tcp_syncookies` at 1 or 2. It agrees
/// with clients to what `net.ipv4.tcp_timestamps`, `tcp_sack` and `tcp_window_scaling` allow when it is loaded.
pub struct Accept {
    program: OwnedFd,
    card: MapHandle,
}

/// Properties of the interface that may change while it is up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CardState {
    /// The segment size to offer, IPv4 and IPv6; from the interface's MTU.
    pub segment_bytes: [u16; 2],
    /// The networks on its link, addresses and their prefixes in bits. A client in one of the first sixteen is answered
    /// at the card that sent its SYN; every other client is answered by the kernel's routes.
    pub networks: Vec<(IpAddr, u8)>,
}

impl CardState {
    fn as_seen(&self) -> types::card {
        let mut card =
            types::card { segment_bytes: self.segment_bytes.map(u32::from), ..types::card::default() };
        for (to, (ip, bits)) in card.network.iter_mut().zip(&self.networks) {
            let bits = u32::from(*bits) + if ip.is_ipv4() { 96 } else { 0 };
            let mask = u128::MAX.checked_shl(128u32.saturating_sub(bits)).unwrap_or(0);
            *to = types::network { ip: words(*ip), mask: words(Ipv6Addr::from(mask).into()) };
            card.networks += 1;
        }
        card
    }
}

impl PacketGate {
    /// Loads the stateless accept beside this gate.
    pub fn load_accept(&self, key: CookieKey, card: &CardState) -> Result<Accept, GateError> {
        self.load_accept_in(key, card, None)
    }

    /// [`PacketGate::load_accept`] in a fixed epoch, for tests.
    pub fn load_accept_in(
        &self,
        key: CookieKey,
        card: &CardState,
        epoch: Option<NonZeroU32>,
    ) -> Result<Accept, GateError> {
        let loading = "loading the stateless accept (needs Linux 6.9)";
        let failed = |error: libbpf_rs::Error| GateError::bpf(loading, &error);
        let mut storage = MaybeUninit::uninit();
        let mut open = AcceptSkelBuilder::default().open(&mut storage).map_err(failed)?;
        if let Some(constants) = open.maps.rodata_data.as_deref_mut() {
            constants.node = u32::from(self.node.get());
            constants.bucket_key = self.bucket_key.0;
            constants.cookie_key = key.0;
            constants.timestamp_offset = key.timestamp_offset(self.node);
            constants.test_epoch = epoch.map_or(0, NonZeroU32::get);
            constants.use_timestamps = allowed("tcp_timestamps")?;
            constants.use_sack = allowed("tcp_sack")?;
            constants.use_scaling = allowed("tcp_window_scaling")?;
        }
        pins::share(open.open_object_mut(), &self.folder, self.slots.entries() as u32).map_err(failed)?;
        let (loaded, reported) = libbpf_log::quietly(|| open.load());
        let loaded = loaded.map_err(|error| GateError::bpf(format!("{loading} {reported}"), &error))?;
        let _ = self.cookies.set((key, epoch)); // those of a node do not change
        let program = loaded.progs.stateless_accept.as_fd().try_clone_to_owned();
        let accept = Accept {
            program: program.map_err(|error| GateError::kernel("keeping a program", error))?,
            card: MapHandle::try_from(&loaded.maps.data)
                .map_err(|error| GateError::bpf("keeping a map", &error))?,
        };
        accept.set_card(card)?;
        Ok(accept)
    }
}

impl Accept {
    /// Puts it behind the gate on an interface.
    pub fn attach(&self, interface: u32) -> Result<(), GateError> {
        let (attached, reported) = libbpf_log::quietly(|| self.hook(interface).attach());
        let attempt = || format!("attaching the stateless accept to interface {interface} {reported}");
        attached.map(drop).map_err(|error| GateError::bpf(attempt(), &error))
    }

    /// Whether it is attached to the interface.
    pub fn is_attached(&self, interface: u32) -> bool {
        let mut hook = self.hook(interface);
        libbpf_log::quietly(|| hook.query()).0.is_ok()
    }

    /// The interface has changed; good from the next SYN on.
    pub fn set_card(&self, card: &CardState) -> Result<(), GateError> {
        self.card
            .update(&0u32.to_ne_bytes(), bytes(&card.as_seen()), MapFlags::ANY)
            .map_err(|error| GateError::bpf("setting the interface of the stateless accept", &error))
    }

    fn hook(&self, interface: u32) -> TcHook {
        hook(self.program.as_fd(), interface)
    }
}

impl PacketGate {
    /// Whether a segment acknowledges a cookie that a node has just given this flow for a SYN: the peer started again.
    pub fn has_answered_syn(&self, flow: &Flow, came: Strange) -> bool {
        let Some((key, epoch)) = self.cookies.get() else { return false };
        let epoch = epoch.map_or_else(|| (clock::tai_ns() >> 36) as u32, NonZeroU32::get);
        key.has_answered(flow, came.seq.wrapping_sub(1), came.ack.wrapping_sub(1), epoch)
    }

    /// Detaches the stateless accept of an interface, also that of an earlier process: the kernel then answers SYNs.
    pub fn detach_accept(&self, interface: u32) -> Result<(), GateError> {
        let mut hook = hook(self.programs.ingress.as_fd(), interface);
        if libbpf_log::quietly(|| hook.query()).0.is_err() {
            return Ok(()); // there is none
        }
        hook.detach().map_err(|error| {
            GateError::bpf(format!("detaching the stateless accept from interface {interface}"), &error)
        })
    }
}

/// Whether sockets of this network namespace may do something, 1 or 0.
fn allowed(sysctl: &str) -> Result<u32, GateError> {
    let path = format!("/proc/sys/net/ipv4/{sysctl}");
    let value = std::fs::read_to_string(&path)
        .map_err(|error| GateError::kernel(format!("reading {path}"), error))?;
    Ok(u32::from(value.trim() != "0"))
}

fn hook(program: BorrowedFd<'_>, interface: u32) -> TcHook {
    TcHookBuilder::new(program).ifindex(interface as i32).replace(true).handle(1).priority(2).hook(TC_INGRESS)
}
