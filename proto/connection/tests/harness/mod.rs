//! A mini worker that performs what a connection asks for exactly as the real one does, in memory, with peers beside it.
#![allow(dead_code)] // each test binary uses its part

pub(crate) mod peer;
pub(crate) mod rig;
pub(crate) mod secure;
pub(crate) mod setup;
