//! Schema of pools in front of TLS terminators that keep sessions of their own. Keys are named as in a simulator's
//! plan.

use super::bounds::COST_US_MAX;
use super::{Kind, Section, with_default};

/// `[pools.sessions]`
pub(crate) static SESSIONS: Section = Section {
    header: "[pools.sessions]",
    about: "Settings of the session policies: `session_only`, `sticky_least_outstanding`, `lard`, \
        `bounded_hash` and `sslsard`. Only relayed handshakes offer sessions. On other listeners the client's \
        address stands for its session.",
    keys: &[
        with_default(
            "lifetime_s",
            Kind::Integer(1, 604_800),
            "300",
            "How long the servers resume a session, unless they announce a lifetime. A client that returns \
                later counts as new.",
        ),
        with_default(
            "fallback",
            Kind::Choice(&["address", "sni"]),
            "\"address\"",
            "What decides for a connection that offers no known session: the client's address, or the \
                server name that it asks for. See below.",
        ),
        with_default(
            "renewal",
            Kind::Choice(&["fixed", "sliding"]),
            "\"fixed\"",
            "Whether `lifetime_s` counts from the full handshake (`fixed`) or from the last use \
                (`sliding`): for sessions of relayed handshakes, and for `sslsard`. See below.",
        ),
        with_default(
            "remembered_max",
            Kind::Integer(1, 100_000_000),
            "200000",
            "Remembered sessions, about 100 bytes each by address and 40 when learned from a handshake. \
                Beyond it one is dropped: the first to expire, or one that was not used for long.",
        ),
        with_default(
            "handshake_costs",
            Kind::Choice(&["configured", "measured"]),
            "\"configured\"",
            "`sslsard`: whether the costs are those of this file, or measured in relayed handshakes. See \
                below.",
        ),
        with_default(
            "full_us",
            Kind::Integer(1, COST_US_MAX),
            "471",
            "Cost of a request with a full handshake at a server of weight 1, in microseconds of CPU \
                time. Only the ratios between costs matter. The default is TLS 1.2 with RSA; `evergate \
                bench crypto` measures others.",
        ),
        with_default(
            "resumed_us",
            Kind::Integer(1, COST_US_MAX),
            "20",
            "Cost of a request with a resumed session. Near `full_us`, `sslsard` gives up sessions to \
                balance load.",
        ),
        with_default(
            "slice_ms",
            Kind::Integer(1, 3_600_000),
            "2000",
            "`sslsard`: loads are estimated over one to two slices of this length (ΔT).",
        ),
        with_default(
            "alpha",
            Kind::TwoNumbers(0.0, 1_000_000.0),
            "[10, 1]",
            "`sslsard`: weights of little work and of even load (α1, α2).",
        ),
        with_default(
            "lambda",
            Kind::TwoNumbers(0.001, 100.0),
            "[1, 2]",
            "`sslsard`: their exponents (λ1, λ2).",
        ),
        with_default(
            "lard_low",
            Kind::Integer(0, 1_000_000),
            "25",
            "`lard`: a server with fewer outstanding requests may receive clients of one above `lard_high`.",
        ),
        with_default(
            "lard_high",
            Kind::Integer(1, 1_000_000),
            "65",
            "`lard`: a server with more outstanding requests gives clients away; at twice as many it \
                always does.",
        ),
        with_default(
            "bounded_load_percent",
            Kind::Integer(100, 100_000),
            "125",
            "`bounded_hash`: a server above this percentage of its share of the outstanding requests is \
                skipped. The share is rounded up ([why](#load-bounds)).",
        ),
    ],
};
