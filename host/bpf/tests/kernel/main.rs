//! The gate against the real kernel: single packets through test runs, and TCP between network namespaces.
//!
//! These tests need root and Linux 6.9 or newer. Without them they print that they are skipped, and pass, but fail in
//! CI (`CI` is set). With them nothing is skipped.

#![allow(unsafe_code)]

mod clock;
mod cookies;
mod errors;
mod events;
mod failover;
mod frame;
mod live;
mod losses;
mod moved_cookies;
mod neighbours;
mod owned;
mod packets;
mod path;
mod relay;
mod restored;
mod round_trip;
mod sockets;
mod stream;
mod testrun;
mod world;
