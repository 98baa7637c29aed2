//! What this host must be like: addresses on the loopback interface, and settings of the kernel.
//!
//! Nothing is put back when the process ends: another process may have come to rely on it, and an address that goes away
//! would make the kernel answer for connections that another node carries on.

use crate::control::console::{info, warning};
use anyhow::{Context, Result};
use evergate_bpf::PortBlocks;
use std::net::IpAddr;

const LOOPBACK: &str = "lo";

/// The kernel's settings that the cluster rests on, and why.
const SETTINGS: &[(&str, &str, &str)] = &[
    ("net/ipv4/conf/all/arp_ignore", "1", "the node must not answer ARP for addresses that move"),
    ("net/ipv4/conf/all/arp_announce", "2", "the node must not speak for addresses that move in ARP"),
    (
        "net/ipv4/tcp_syncookies",
        "1",
        "a flood of connection requests must not use up the packet filter's table",
    ),
    ("net/ipv4/tcp_fastopen", "0", "data must not come before the packet filter knows a connection"),
    (
        "net/ipv4/tcp_rfc1337",
        "0",
        "a client that comes again from the same port must be able to refuse what is left of before",
    ),
];
/// Where connections are tracked. The file may come with the module of a rule that asks for it.
const TRACKING: (&str, &str, &str) = (
    "net/netfilter/nf_conntrack_tcp_be_liberal",
    "1",
    "a rule that drops invalid packets must not meet connections that come back from another node",
);
const PORT_RANGE: &str = "net/ipv4/ip_local_port_range";

/// Sets what is not as it must be, and says so.
pub(crate) fn apply_sysctls(ports: PortBlocks) -> Result<()> {
    for (name, value, why) in SETTINGS {
        if read(name)? != *value {
            write(name, value, why)?;
        }
    }
    let now = evergate_sys::local_port_range()?;
    let needed = ports.range();
    if now.start() > needed.start() || now.end() < needed.end() {
        let (first, last) = (now.start().min(needed.start()), now.end().max(needed.end()));
        write(PORT_RANGE, &format!("{first} {last}"), "connections to servers take their ports from it")?;
    }
    Ok(())
}

/// A firewall of this host follows the windows of the connections that it knows. Of one that was at another node for a while it
/// knows what was there before, takes all that comes for invalid, and usual rules drop that.
pub(crate) fn loosen_tracking() -> Result<()> {
    let (name, value, why) = TRACKING;
    if std::path::Path::new(&path(name)).exists() && read(name)? != value {
        write(name, value, why)?;
    }
    Ok(())
}

fn path(name: &str) -> String {
    format!("/proc/sys/{name}")
}

fn read(name: &str) -> Result<String> {
    let text = std::fs::read_to_string(path(name)).with_context(|| format!("cannot read {}", path(name)))?;
    Ok(text.trim().to_owned())
}

fn write(name: &str, value: &str, why: &str) -> Result<()> {
    let before = read(name)?;
    std::fs::write(path(name), value).with_context(|| {
        format!(
            "cannot set {} to {value}: {why}. Start as root, or set it beforehand (sysctl)",
            name.replace('/', ".")
        )
    })?;
    info(format_args!("{} was {before:?}, is {value:?} now: {why}", name.replace('/', ".")));
    Ok(())
}

/// Gives the loopback interface the addresses that it lacks.
pub(crate) fn add_addresses(addresses: &[IpAddr]) -> Result<()> {
    let interface = evergate_bpf::interface_index(LOOPBACK).context("cannot find the loopback interface")?;
    for ip in addresses {
        let added = evergate_sys::add_address(interface, *ip).with_context(|| {
            format!("cannot give {ip} to the interface {LOOPBACK}: this needs CAP_NET_ADMIN, and its family switched on")
        })?;
        if added {
            info(format_args!("{ip} is an address of the interface {LOOPBACK} now"));
        }
    }
    Ok(())
}

/// Clears away what a process before this one left at the cluster's addresses: clients whose connections nobody else knows would
/// be heard by sockets that nobody reads.
pub(crate) fn destroy_orphans(addresses: &[IpAddr]) {
    match evergate_sys::destroy_orphans(addresses) {
        Ok(0) => {}
        Ok(count) => info(format_args!("{count} sockets that a process before this one had left are gone")),
        Err(error) => warning(format_args!(
            "sockets that a process before this one left cannot be cleared away ({error}; this needs CAP_NET_ADMIN): clients \
             whose connections began just before it ended may wait for a minute or two"
        )),
    }
}
