//! Requirements on this host: addresses on the loopback interface, and settings of the kernel.
//!
//! Nothing is undone when the process ends. Another process may rely on it by then, and without the address the kernel
//! would answer for connections that another node serves.

use crate::control::console::{info, warning};
use anyhow::{Context, Result};
use evergate_bpf::PortBlocks;
use std::net::IpAddr;

const LOOPBACK: &str = "lo";

/// The kernel's settings that the cluster needs, each with the reason.
const SETTINGS: &[(&str, &str, &str)] = &[
    ("net/ipv4/conf/all/arp_ignore", "1", "the node must not answer ARP for addresses that move"),
    ("net/ipv4/conf/all/arp_announce", "2", "the node must not use movable addresses as senders in ARP"),
    (
        "net/ipv4/tcp_syncookies",
        "1",
        "a flood of connection requests must not use up the packet filter's table",
    ),
    ("net/ipv4/tcp_fastopen", "0", "data must not come before the packet filter knows a connection"),
    (
        "net/ipv4/tcp_rfc1337",
        "0",
        "a client that reuses a port must be able to refuse what is left of the connection before",
    ),
];
/// Setting of connection tracking. The file may appear later, with the module of a firewall rule.
const TRACKING: (&str, &str, &str) = (
    "net/netfilter/nf_conntrack_tcp_be_liberal",
    "1",
    "a rule that drops invalid packets must not meet connections that come back from another node",
);
const PORT_RANGE: &str = "net/ipv4/ip_local_port_range";

/// Sets what differs, and logs it.
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

/// Relaxes the connection tracking of this host's firewall, which follows TCP windows. After a connection was at
/// another node for a while, tracking has stale windows, takes every segment for invalid, and usual rules drop it.
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
            format!(
                "cannot give {ip} to the interface {LOOPBACK}: this needs CAP_NET_ADMIN, and its family \
                switched on"
            )
        })?;
        if added {
            info(format_args!("{ip} is an address of the interface {LOOPBACK} now"));
        }
    }
    Ok(())
}

/// Destroys sockets that an earlier process left at the cluster's addresses. They would acknowledge segments of clients
/// whose connections no process serves.
pub(crate) fn destroy_orphans(addresses: &[IpAddr]) {
    match evergate_sys::destroy_orphans(addresses) {
        Ok(0) => {}
        Ok(count) => {
            info(format_args!("cluster: {count} sockets that an earlier process had left are destroyed"))
        }
        Err(error) => warning(format_args!(
            "cluster: cannot destroy the sockets that an earlier process left: {error} (this needs CAP_NET_ADMIN); \
             clients whose connections began just before it ended may wait for a minute or two"
        )),
    }
}
