//! File descriptors: how many this process may have, and who hears that they are few.

use crate::control::console;
use crate::worker::files_for_clients;

/// Descriptors beside those of connections, roughly: listeners, workers, checks, idle connections to servers.
const FILES_BESIDE: u64 = 1024;

/// `limits.connections_max` where the configuration does not say, and so many descriptors that nobody need hear that it cannot
/// all be had.
pub(crate) const CONNECTIONS_MAX_DEFAULT: u64 = 100_000;
const FILES_PLENTY: u64 = 16_384;

/// Whether the operator hears that this process may have too few descriptors.
fn is_worth_telling(connections: u64, needed: u64, limit: u64) -> bool {
    needed > limit && (connections != CONNECTIONS_MAX_DEFAULT || limit < FILES_PLENTY)
}

/// Descriptors for so many connections, and as many to servers: as far as the process may, and a table of 2 MB. How many it
/// may have; the operator is told when that is too few.
pub(super) fn make_room_for_files(connections: u64) -> Option<u64> {
    const ROOM_MAX: u64 = 1 << 18;
    let limit = evergate_sys::raise_file_limit().ok()?;
    let needed = connections.saturating_mul(2).saturating_add(FILES_BESIDE);
    let _ = evergate_sys::make_room_for_files(needed.min(limit).min(ROOM_MAX));
    if is_worth_telling(connections, needed, limit) {
        let idle = files_for_clients(limit);
        let busy = idle.saturating_sub(FILES_BESIDE.min(idle / 2)) / 2;
        console::warning(format_args!(
            "limits.connections_max = {connections} needs up to {needed} file descriptors (one for a client, one for its \
             server, some for the rest), and this process may have {limit}: clients beyond about {busy} with a server \
             each, or {idle} that are idle, wait in the kernel's queue; raise the hard limit (LimitNOFILE={needed} in the \
             unit, or ulimit -Hn), or lower limits.connections_max"
        ));
    }
    Some(limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_that_nobody_set_is_told_of_only_where_little_can_be_had() {
        for (connections, limit, reported) in [
            (100_000, 20_000, false),
            (100_000, 4096, true),
            (50_000, 20_000, true),
            (100_000, 1 << 20, false),
        ] {
            assert_eq!(
                is_worth_telling(connections, 2 * connections + 1024, limit),
                reported,
                "{connections} {limit}"
            );
        }
    }
}
