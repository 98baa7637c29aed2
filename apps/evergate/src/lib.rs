//! The daemon and its command line.

pub mod access_log;
pub mod aead;
pub mod agent;
pub mod audit;
pub mod bench_crypto;
pub mod cli;
pub mod control;
pub mod daemon;
pub mod generation;
pub mod health;
pub mod latency_histogram;
mod listen;
pub mod rate_limit;
pub mod response_counts;
pub mod rule_hits;
pub mod server_state;
pub mod session_balancer;
pub mod upgrade;
pub mod wait_queue;
mod wire_versions;
pub mod worker;
