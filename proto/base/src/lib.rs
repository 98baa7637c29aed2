//! Types that several crates share, and what they must agree on. Either enters only when two crates need it.

pub mod name;
pub mod seed;
pub mod session;
mod sip;
pub mod terminal;
mod time;

pub use sip::{Sip, sip_hash};
pub use time::{Micros, Unix};
