//! File descriptors: the limit of this process, and the warning when it is low.

use crate::control::console;
use evergate_worker::files_for_clients;

/// Descriptors for other purposes than connections, roughly: listeners, workers, checks, idle connections to servers.
const FILES_BESIDE: u64 = 1024;

/// Default of `limits.connections_max`.
pub(crate) const CONNECTIONS_MAX_DEFAULT: u64 = 100_000;
/// Number of descriptors from which on the default needs no warning.
const FILES_PLENTY: u64 = 16_384;

/// Whether the operator gets a warning that this process may have too few descriptors.
fn needs_warning(connections: u64, needed: u64, limit: u64) -> bool {
    needed > limit && (connections != CONNECTIONS_MAX_DEFAULT || limit < FILES_PLENTY)
}

/// Raises the limit for `connections` clients and as many servers, as far as the process may, and allocates a table of
/// at most 2 MB. Returns the limit, and warns if it is too low.
pub(super) fn make_room_for_files(connections: u64) -> Option<u64> {
    const ROOM_MAX: u64 = 1 << 18;
    let limit = evergate_sys::raise_file_limit().ok()?;
    let needed = connections.saturating_mul(2).saturating_add(FILES_BESIDE);
    let _ = evergate_sys::make_room_for_files(needed.min(limit).min(ROOM_MAX));
    if needs_warning(connections, needed, limit) {
        let idle = files_for_clients(limit);
        let active = idle.saturating_sub(FILES_BESIDE.min(idle / 2)) / 2;
        console::warning(format_args!(
            "limits.connections_max = {connections} needs up to {needed} file descriptors (one for a client, one \
             for its server, some for the rest), and this process may have {limit}: clients beyond about {active} \
             with a server each, or {idle} that are idle, wait in the kernel's queue; raise the hard limit \
             (LimitNOFILE={needed} in the unit, or ulimit -Hn), or lower limits.connections_max"
        ));
    }
    Some(limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn low_limit_warns_with_the_default_only_below_plenty() {
        for (connections, limit, reported) in [
            (100_000, 20_000, false),
            (100_000, 4096, true),
            (50_000, 20_000, true),
            (100_000, 1 << 20, false),
        ] {
            assert_eq!(
                needs_warning(connections, 2 * connections + 1024, limit),
                reported,
                "{connections} {limit}"
            );
        }
    }
}
