//! Bounds that several keys of the schema share.

use super::Kind;

/// The longest time a key takes: 7 days in milliseconds. Longer ones are typing errors.
pub(crate) const TIME_MS_MAX: i64 = 7 * 24 * 3_600_000;
/// The largest count a key takes.
pub(crate) const COUNT_MAX: i64 = 10_000_000;

/// Most nodes of a cluster.
pub(crate) const NODES_MAX: i64 = 32;
/// Most copies of a connection with a number of their own.
pub(crate) const BACKUPS_MAX: i64 = 6;
/// The largest cost of a request: a minute. Longer ones are typing errors.
pub(crate) const COST_US_MAX: i64 = 60_000_000;
/// Smallest and largest time of a state in milliseconds.
pub(crate) const TIME_MS: Kind = Kind::Integer(1, TIME_MS_MAX);
/// A count where 0 means "no limit".
pub(crate) const COUNT_OR_NONE: Kind = Kind::Integer(0, COUNT_MAX);
