//! The workers' part of a configuration: pools with the servers of the model.

use evergate_connection::Snapshot;
use evergate_memory_host::PoolOptions;
use evergate_worker::pools::Generation;
use std::sync::Arc;
use std::time::Duration;

/// Idle connections kept per server.
const IDLE_MAX: usize = 64;
/// How long they are kept: longer than any run.
const IDLE: Duration = Duration::from_secs(600);

/// A generation for the snapshot. The servers of `down_pool` are down.
pub(crate) fn generation(snapshot: &Arc<Snapshot>, down_pool: u32) -> Generation {
    let options = PoolOptions {
        queue_max: 0,
        queue_timeout: Duration::ZERO,
        idle_max: IDLE_MAX,
        idle: IDLE,
        down_pool: Some(down_pool),
    };
    evergate_memory_host::generation(snapshot, &options)
}
