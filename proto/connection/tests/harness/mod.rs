//! A worker in memory that performs a connection's effects as the daemon's worker does, with peers beside it.
#![allow(dead_code)] // each test binary uses its part

pub(crate) mod peer;
pub(crate) mod rig;
pub(crate) mod secure;
pub(crate) mod setup;
