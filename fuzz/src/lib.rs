//! What the fuzz targets share: how an input is taken apart, and the worlds that connections live in.
//!
//! An input is bytes from the fuzzer and means the same on every machine: the certificate is a file, secrets and
//! clocks are constants. So a reproducer replays.

pub mod fixture;
pub mod input;
pub mod version;
pub mod worker;
