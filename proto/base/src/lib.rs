//! Types that several crates share. A type enters only when two crates need it.

pub mod seed;
pub mod session;
mod time;

pub use time::{Micros, Unix};
