//! The agent in network namespaces: real nodes, two switches, and whoever wants to disturb them. No traffic: what becomes
//! of connections is tested elsewhere.

#![allow(missing_docs)]

#[path = "../support/figures.rs"]
mod metrics;
#[path = "../support/mod.rs"]
mod support;

mod absent;
mod bound;
mod breaks;
mod chance;
mod channels;
mod checks;
mod clocks;
mod crossing;
mod demo;
mod endurance;
mod figures;
mod foreign;
mod fresh;
mod host;
mod hostile;
mod line;
mod loads;
mod matrix;
mod orders;
mod phases;
mod ports;
mod quorum;
mod records;
mod redial;
mod relay;
mod resets;
mod rights;
mod rolling;
mod second;
mod sessions;
mod shortage;
mod skewed;
mod skips;
mod slow;
mod sockets;
mod traffic;
mod views;
mod world;
