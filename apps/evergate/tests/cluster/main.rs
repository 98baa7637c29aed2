//! The agent in network namespaces: real nodes, two switches, and whoever wants to disturb them. No traffic: what becomes
//! of connections is tested elsewhere.

#![allow(missing_docs)]

#[path = "../support/mod.rs"]
mod support;

mod clocks;
mod crossing;
mod demo;
mod host;
mod hostile;
mod matrix;
mod orders;
mod redial;
mod relay;
mod traffic;
mod views;
mod world;
