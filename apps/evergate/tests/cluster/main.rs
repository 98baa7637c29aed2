//! Clusters of real nodes in network namespaces, on two switches, with and without traffic: membership, failover,
//! handoff and replication, under failures and attacks.

#![allow(missing_docs)]

#[path = "../support/metrics.rs"]
mod metrics;
#[path = "../support/mod.rs"]
mod support;

mod access_log;
mod audit_trial;
mod audited;
mod bound;
mod capabilities;
mod channels;
mod checks;
mod clocks;
mod demo;
mod double_start;
mod endurance;
mod fd_exhaustion;

mod foreign;
mod forged_traffic;
mod host;
mod loads;
mod matrix;
mod membership;
mod missing_privileges;
mod new_connections;
mod nodes_without_replicas;
mod null_workers;
mod operator_commands;
mod passthrough;
mod phases;
mod port_security;
mod ports;
mod proxy_protocol;
mod quorum;
mod raw_connection;
mod redial;
mod relay;
mod replication_status;
mod resets;
mod resets_raw;
mod rolling;
mod routed;
mod seed;
mod sessions;
mod slow;
mod sockets;
mod timing;
mod traffic;
mod transfers;
mod unreachable_nodes;
mod world;
