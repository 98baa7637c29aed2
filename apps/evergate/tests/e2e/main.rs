//! Program, clients and kernel as a user of evergate meets them on the wire.

#![allow(missing_docs)]

#[path = "../support/mod.rs"]
mod support;

mod audit;
mod backend;
mod bound;
mod client;
mod client_source;
mod crowd;
mod forwarded;
mod http;
mod libraries;
mod limits;

mod node;
mod operations;
mod passthrough;
mod passthrough_browser;
mod passthrough_sessions;
mod pki;
mod proxy_protocol;
mod server_ends;
mod session_clients;
mod session_ids;
mod sessions;
mod slow;
mod smuggling;
mod sticky;
mod terminators;
mod tls;
mod transfers;
mod tunnels;
mod unprivileged;
mod upgrade;
mod upgrade_failed;
mod upgrade_later;
mod upstream;
