//! The daemon and its command line.

pub mod access_log;
pub mod aead;
pub mod agent;
pub mod audit;
pub mod bench_crypto;
pub mod bench_sessions;
pub mod cli;
pub mod control;
pub mod daemon;
pub mod generation;
pub mod health;
mod listen;
pub mod upgrade;
mod wire_versions;
pub mod worker;
