//! Types that several crates share, and what they must agree on. Either enters only when two crates need it.

pub mod name;
pub mod seed;
pub mod session;
pub mod terminal;
mod time;

pub use time::{Micros, Unix};
