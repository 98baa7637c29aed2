//! Disclosure: the request that people sign, the policy that it must satisfy, and the outcome in the log.
//!
//! A [request](request) is a signed note of a requester and its approvers. The [policy](policy) names persons, keys and
//! thresholds, and [decides](decide). The Master logs the request before it opens anything, and the [outcome] behind
//! it. A [grant](grant) is what the recipient gets.

pub mod decide;
pub mod destroy;
pub mod grant;
pub mod outcome;
pub mod policy;
pub mod request;
mod text;

pub use decide::Refusal;
pub use destroy::DestroyOrder;
pub use grant::Grant;
pub use outcome::{Outcome, OutcomeKind};
pub use policy::{Member, Policy, PolicyError, Role};
pub use request::{Nonce, Request, RequestError, Scope};
