//! The agent in network namespaces: real nodes, two switches, and whoever wants to disturb them. No traffic: what becomes
//! of connections is tested elsewhere.

#![allow(missing_docs)]

#[path = "../support/mod.rs"]
mod support;

mod clocks;
mod crossing;
mod demo;
mod foreign;
mod host;
mod hostile;
mod matrix;
mod orders;
mod phases;
mod redial;
mod relay;
mod rolling;
mod traffic;
mod views;
mod world;
