//! Common parts of the fuzz targets: decomposition of inputs, and the worlds of connections.
//!
//! An input is bytes from the fuzzer and means the same on every machine: the certificate is a file, secrets and clocks
//! are constants. A reproducer therefore replays.

pub mod backup;
pub mod fixture;
pub mod input;
pub mod version;
pub mod world;
