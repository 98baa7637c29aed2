//! Servers of pools and what all workers know of them: load, health, queues, sessions, rates. Everything is shared, so
//! it has atomics and short locks.

mod handed;
mod rate_limit;
mod response_counts;
mod rule_hits;
mod server_state;
mod session_balancer;
mod wait_queue;

pub use handed::{Handed, HandshakeNews};
pub use rate_limit::{Rates, source_of};
pub use response_counts::ResponseCounts;
pub use rule_hits::RuleHits;
pub use server_state::{Generation, PoolRuntime, ServerRuntime};
pub use session_balancer::{Counts as SessionCounts, LearnedCounts, Offer, Recipe, Seeker, Sessions};
pub use wait_queue::{WaitQueues, WaitTicket};
