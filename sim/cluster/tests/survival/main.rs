//! Connections outlive their nodes, under virtual time: see the crate and `docs/internals/simulator.md`.
//!
//! Scenarios and server applications are shared with the tests of `proto/connection`, so that requests mean the same.

#[path = "../../../../proto/connection/tests/harness/mod.rs"]
mod harness;
#[path = "../../../../proto/connection/tests/value/scenario.rs"]
#[allow(dead_code)] // each user has its part of it
mod scenario;

mod apps;
mod exhaustive;
mod faults;
mod mutations;
mod random;
mod reference;
mod run;
mod scripts;
