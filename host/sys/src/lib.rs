//! Sockets, epoll and splice: the kernel side of the worker loop.
//!
//! Thin, checked wrappers over system calls. Each unsafe block makes one call and states why its arguments are valid.
//! Scattered reads check their offsets against the buffer, so that a wrong layout is an error instead of a write past
//! the end. This crate makes no decisions.

#![allow(unsafe_code)]

mod address;
mod arp_ndp;
mod arp_probe;
mod blocking_write;
mod client_source;
mod datagram;
mod epoll;
mod fd_passing;
mod feature;
mod hypervisor;
mod icmp_echo;
mod keepalive;
mod netlink;
mod orphans;
mod port_range;
mod process;
mod socket;
mod sockopt;
mod splice;
mod survivor;
mod tcp_probe;
mod tcp_repair;
mod user;

pub use arp_ndp::{
    Announcer, Route, add_address, card_address, card_index, card_mtu, has_carrier, interfaces_with,
    is_on_link, neighbour, networks_of, route_prefix, route_to, set_neighbour,
};
pub use arp_probe::{ArpFrame, ArpProbe};
pub use blocking_write::BlockingWriter;
pub use client_source::{connect_as, missing_client_source};
pub use datagram::Datagrams;
pub use epoll::{Epoll, Waker};
pub use evergate_base::net::{Event, Keepalive, Loss, Probe, Restore, Stamp, TcpParams, Transfer};
pub use fd_passing::{DESCRIPTORS_MAX, receive_descriptors, send_descriptors};
pub use feature::{Missing, missing_socket_features};
pub use hypervisor::{MachineSigns, machine_signs};
pub use icmp_echo::{Pinger, Pong};
pub use keepalive::set_keepalive;
pub use orphans::destroy_orphans;
pub use port_range::{
    connect_from, connect_socket_from, destroy, end_time_wait, forget, forget_on_close, local_port_range,
};
pub use process::{
    end_with_parent, hide_memory, lacks_descriptors, lock_memory, make_room_for_files, monotonic_us,
    raise_file_limit, resident_bytes, run_in_real_time, sleep_within, steady_clock_ms, thread_cpu_ns,
    wall_clock_s,
};
pub use socket::{
    Listening, accept, acknowledge_now, connect, connect_error, has_input, is_drained, listen, listen_as,
    local_address, peek, read, read_scattered, reset_on_close, shutdown_write, unacknowledged, write,
    write_gathered, write_last,
};
pub use splice::Pipe;
pub use survivor::Survivor;
pub use tcp_probe::Prober;
pub use tcp_repair::{
    RestoreError, Restoring, bytes_received, restore, tcp_params, tcp_params_between, timestamp,
};
pub use user::{Access, Account};
