//! Types and conventions that several crates share. A type belongs here only if two crates need it.

mod calendar;
mod fnv;
mod ids;
mod mix;
pub mod name;
pub mod net;
mod protocol;
mod proxy_protocol;
pub mod seed;
pub mod session;
mod sip;
mod table;
pub mod terminal;
mod time;
mod wake;

pub use calendar::rfc3339;
pub use fnv::fnv;
pub use ids::{BUCKETS, Bucket, Incarnation, NODES_MAX, NodeId, Term, ViewId};
pub use mix::{GAMMA, SplitMix64, spread};
pub use protocol::Protocol;
pub use proxy_protocol::{ProxyHeader, ProxyVersion, is_proxy_header, may_be_proxy_header};
pub use sip::{Sip, Sip128, sip_hash};
pub use table::Table;
pub use time::{Micros, Unix};
pub use wake::Wake;
