//! The daemon and its command line.

pub mod aead;
pub mod assemble;
mod bind;
pub mod cli;
pub mod cluster;
pub mod config;
pub mod control;
pub mod crypto_cost;
pub mod daemon;
pub mod demo;
mod forms;
pub mod handover;
pub mod health;
pub mod line;
pub mod log;
pub mod rate;
pub mod rule_hits;
pub mod runtime;
pub mod sessions;
pub mod times;
pub mod worker;
