//! Policies that choose a server in a pool, and a node for a TLS session.
//!
//! Three families. A [`Picker`] spreads requests by the servers' load. [`source_server`] and [`bounded_server`] send a
//! client to the same server every time. A [`Distributor`] in front of TLS terminators also considers sessions, by
//! SSLSARD ([`LoadEstimator`], [`place_new`], [`place_resuming`]) among others. The data path and the simulator
//! (`sim/sslsard`) run the same code. Its [`LearnedSessions`] remember which server has a session that handshakes
//! showed, and a [`HandshakeMeter`] measures what handshakes cost a server. All functions are pure: time, load,
//! eligibility and randomness come from the caller, and no pick allocates.
//!
//! Invariants:
//! * An ineligible server, or one of weight 0, is never picked; without an eligible server the result is `None`.
//! * Hashing depends on the set of servers and not on their order. No answer depends on a platform's arithmetic, so
//!   that the nodes of a cluster agree and a simulation has the same result everywhere.
//!
//! Health checks, limits and retries are the caller's: they decide which servers are eligible.

#![forbid(unsafe_code)]

mod distribution;
mod distributor;
mod estimator;
mod handshake_meter;
mod learned_sessions;
mod picker;
mod policy;
mod scope;
mod source;
mod table;

pub use distribution::{
    Node, Weights, balance_degree, balance_degree_after, place_new, place_resuming, utility,
};
pub use distributor::{Arrival, Choice, Distributor, NodeCost, PolicyParameters, SessionPolicy, Settings};
pub use estimator::LoadEstimator;
pub use handshake_meter::{HandshakeMeter, MovingCost, SAMPLES_MIN};
pub use learned_sessions::{EVICTION_SCAN_MAX, LearnedSessions};
pub use picker::{PickRule, Picker, ServerLoad};
pub use policy::{CostSource, Policy, SessionFallback};
pub use scope::Scope;
pub use source::{bounded_server, source_key, source_server};
pub use table::{Origin, Renewal, SessionKey, SessionTable};
