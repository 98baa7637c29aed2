//! Policies that pick a server in a pool.
//!
//! Two families: a [`Picker`] spreads requests by what the servers have to do, and [`source_server`] sends a client
//! to the same server every time. Both are pure: load, eligibility and randomness come from the caller, and neither
//! allocates per pick.
//!
//! Invariants:
//! * An ineligible server, or one of weight 0, is never picked; without an eligible one nothing is picked.
//! * [`source_server`] depends on the set of servers and not on their order, and on no platform's arithmetic, so
//!   that the nodes of a cluster agree.
//!
//! What it does not do: health checks, limits and retries decide who is eligible before they ask here.

mod picker;
mod source;

pub use picker::{Picker, Policy, ServerLoad};
pub use source::source_server;
