//! The connections to servers that belong to one client connection.
//!
//! Bound: one leg carries an exchange. Beside it, one bound leg may idle until the next request uses or releases it.

use crate::bound::IdleLeg;
use crate::outlet::Outlet;
use crate::server_leg::ServerLeg;

/// Server legs by number. Numbers start at 1, and each is used once.
#[derive(Debug)]
pub(crate) struct ServerLegs {
    /// The leg of the exchange under way.
    pub(crate) leg: Option<Box<ServerLeg>>,
    /// The bound leg, while it idles.
    pub(crate) bound: Option<Box<IdleLeg>>,
    /// Number of the next leg.
    pub(crate) next: u32,
    /// Output that waits for the leg's socket, or for the backups.
    pub(crate) outlet: Outlet,
}

impl Default for ServerLegs {
    fn default() -> ServerLegs {
        ServerLegs { leg: None, bound: None, next: 1, outlet: Outlet::default() }
    }
}
