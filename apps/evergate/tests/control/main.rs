//! Control plane of the real program: admin API, command line, reload, signals, health checks, certificates.

#![allow(missing_docs)]

#[path = "../support/metrics.rs"]
mod metrics;
#[path = "../support/mod.rs"]
mod support;

mod admin;
mod alerts;
mod double_start;
mod files;
mod health;
mod log_fields;
mod node;
mod reasons;
mod reload;
mod service_manager;
mod signals;
mod units;
mod upgrade;
