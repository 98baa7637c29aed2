//! Policies that pick a server in a pool, and a node for a TLS session.
//!
//! Three families: a [`Picker`] spreads requests by what the servers have to do; [`source_server`] and
//! [`bounded_server`] send a client to the same server every time; a [`Distributor`] stands in front of TLS terminators
//! and decides with the sessions in view, by SSLSARD ([`LoadEstimator`], [`place_new`], [`place_resuming`]) among
//! others. The switch and the simulator (`sim/sslsard`) run this very code. All of it is pure: time, load, eligibility
//! and randomness come from the caller, and nothing allocates per pick.
//!
//! Invariants:
//! * An ineligible server, or one of weight 0, is never picked; without an eligible one nothing is picked.
//! * Hashing depends on the set of servers and not on their order; and no answer depends on a platform's arithmetic,
//!   so that the nodes of a cluster agree and a simulation is the same everywhere.
//!
//! What it does not do: health checks, limits and retries decide who is eligible before they ask here.

#![forbid(unsafe_code)]

mod distribution;
mod distributor;
mod estimator;
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
pub use picker::{PickRule, Picker, ServerLoad};
pub use policy::Policy;
pub use scope::Scope;
pub use source::{bounded_server, source_key, source_server};
pub use table::{Origin, Renewal, SessionKey, SessionTable};
