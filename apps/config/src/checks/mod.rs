//! Checks of what the schema cannot express, a file for each part of the configuration.
//!
//! Each check reads raw structs, reports problems to [`context`] and returns its part of the model. [`cross`] and
//! [`cluster_cross`] compare parts with each other.

pub(crate) mod audit;
pub(crate) mod certificate_dates;
pub(crate) mod certificates;
mod client_source;
pub(crate) mod cluster;
pub(crate) mod cluster_cross;
mod connection_rules;
pub(crate) mod context;
pub(crate) mod cross;
mod health;
pub(crate) mod listeners;
pub(crate) mod node;
pub(crate) mod pools;
mod proxy_protocol;
pub(crate) mod rules;
pub(crate) mod runtime_files;
mod session_balancing;
