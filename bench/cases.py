"""The measured cases: one value per case, and the aims."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from load import Done, Target, Tools

# Loopback `send` also runs the receiver's half, so the cost of an operation depends on the number under way. These
# numbers are part of the meaning of a row.
HANDSHAKE_CLIENTS = 16
KEEP_ALIVE_CONNECTIONS = 64
BULK_CONNECTIONS = 8

Load = Callable[[Tools, Target, float], Done]


@dataclass(frozen=True)
class Aim:
    """Bounds: `ratio` (at most) and `ratio_min` (at least) against the better peer, `value` in the row's unit."""

    ratio: float | None = None
    value: float | None = None
    ratio_min: float | None = None


@dataclass(frozen=True)
class RelayCase:
    """A load through evergate and through each peer."""

    name: str
    title: str
    listener: str
    path: str
    load: Load
    clients: int
    resumed: bool | None = False
    """Required kind of its handshakes; None for plain text."""
    bulk: bool = False
    """Whether cost counts per byte instead of per request."""
    p99: bool = False
    operation: str = "request"


def fresh(tools: Tools, target: Target, seconds: float) -> Done:
    return tools.fresh(target, HANDSHAKE_CLIENTS, seconds)


def closing(tools: Tools, target: Target, seconds: float) -> Done:
    return tools.closing(target, HANDSHAKE_CLIENTS, seconds)


def connections(tools: Tools, target: Target, seconds: float) -> Done:
    return tools.connections(target, HANDSHAKE_CLIENTS, seconds)


def keep_alive(tools: Tools, target: Target, seconds: float) -> Done:
    return tools.keep_alive(target, KEEP_ALIVE_CONNECTIONS, seconds)


def bulk(tools: Tools, target: Target, seconds: float) -> Done:
    return tools.keep_alive(target, BULK_CONNECTIONS, seconds)


def upload(tools: Tools, target: Target, seconds: float) -> Done:
    return tools.upload(target, BULK_CONNECTIONS, seconds)


def echo_125(tools: Tools, target: Target, seconds: float) -> Done:
    return tools.echo(target, KEEP_ALIVE_CONNECTIONS, 125, seconds)


def echo_4k(tools: Tools, target: Target, seconds: float) -> Done:
    return tools.echo(target, KEEP_ALIVE_CONNECTIONS, 4096, seconds)


RELAY_CASES = (
    RelayCase(
        "full_ecdsa", "full handshake and 1 KB request, ECDSA P-256", "ecdsa", "/1k", fresh, HANDSHAKE_CLIENTS
    ),
    RelayCase(
        "full_rsa", "full handshake and 1 KB request, RSA-2048", "rsa", "/1k", fresh, HANDSHAKE_CLIENTS
    ),
    RelayCase(
        "resumed", "resumed handshake and 1 KB request", "ecdsa", "/1k", closing, HANDSHAKE_CLIENTS, True
    ),
    RelayCase(
        "https_1k",
        "1 KB over kept TLS connections",
        "ecdsa",
        "/1k",
        keep_alive,
        KEEP_ALIVE_CONNECTIONS,
        p99=True,
    ),
    RelayCase("https_10m", "10 MB over TLS, AES-128-GCM", "ecdsa", "/10m", bulk, BULK_CONNECTIONS, bulk=True),
    RelayCase(
        "https_100k",
        "100 KB over kept TLS connections",
        "ecdsa",
        "/100k",
        keep_alive,
        KEEP_ALIVE_CONNECTIONS,
        bulk=True,
    ),
    RelayCase(
        "upload_10m", "upload of 10 MB over TLS", "echo_https", "/upload", upload, BULK_CONNECTIONS, bulk=True
    ),
    RelayCase(
        "http_1k",
        "1 KB over kept plain connections",
        "http",
        "/1k",
        keep_alive,
        KEEP_ALIVE_CONNECTIONS,
        None,
        p99=True,
    ),
    RelayCase("tcp_10m", "10 MB through a TCP relay", "tcp", "/10m", bulk, BULK_CONNECTIONS, None, bulk=True),
    RelayCase(
        "tcp_conn",
        "connection and 1 KB through a TCP relay",
        "tcp",
        "/1k",
        connections,
        HANDSHAKE_CLIENTS,
        None,
        operation="connection",
    ),
    RelayCase(
        "passthrough_conn",
        "TLS connection and 1 KB, passed through by its server name",
        "passthrough",
        "/1k",
        connections,
        HANDSHAKE_CLIENTS,
        operation="connection",
    ),
    RelayCase(
        "passthrough_10m",
        "10 MB over TLS, passed through by its server name",
        "passthrough",
        "/10m",
        bulk,
        BULK_CONNECTIONS,
        bulk=True,
    ),
    *(
        RelayCase(name, title, listener, path, load, KEEP_ALIVE_CONNECTIONS, resumed, operation="echo")
        for name, title, listener, path, load, resumed in (
            ("ws_plain", "WebSocket echo of 125 bytes", "echo_http", "/ws", echo_125, None),
            ("ws_tls", "WebSocket echo of 125 bytes over TLS", "echo_https", "/ws", echo_125, False),
            ("tcp_echo_125", "echo of 125 bytes through a TCP relay", "echo_tcp", "", echo_125, None),
            ("tcp_echo_4k", "echo of 4 KB through a TCP relay", "echo_tcp", "", echo_4k, None),
        )
    ),
)
RULES_CASE = "rules_5000"
AUDITED_CASE = "full_ecdsa_audited"
IDLE_CASE = "idle_rss"
# Rows of clusters, as measured by `cluster_cases`; the rows of one line come from one measurement.
CLUSTER_NAMES = (
    *("cluster_requests", "cluster_bulk", "cluster_handshakes"),
    *("cluster_latency_us", "cluster_replication_share_of_bulk"),
    *("cluster_stall_p99_ms", "cluster_stall_max_ms", "cluster_next_request_ms", "cluster_next_request_max_ms"),
    *("cluster_host_dead_p99_ms", "cluster_host_dead_max_ms"),
    "cluster_bytes_per_idle_connection",
    *("cluster_cpu_per_handshake_7_vs_2", "cluster_cpu_per_handshake_shared_7_vs_2"),
)
NAMES = tuple(case.name for case in RELAY_CASES) + (RULES_CASE, AUDITED_CASE, IDLE_CASE) + CLUSTER_NAMES

# Rows that supplement another row.
WITHOUT_AIM = (
    "cluster_cpu_per_handshake_shared_7_vs_2",
    "cluster_next_request_max_ms",
    "cluster_host_dead_p99_ms",
    "cluster_host_dead_max_ms",
)
# Rows that come from the measurement of another one.
BESIDE = ("https_1k_p99_ms", "http_1k_p99_ms", "tcp_10m_forced_splice", "passthrough_10m_forced_splice")

AIMS = {
    "full_ecdsa": Aim(0.55),
    "full_rsa": Aim(0.75),
    "resumed": Aim(0.50),
    "https_1k": Aim(0.70),
    "https_10m": Aim(0.55),
    "http_1k": Aim(0.85),
    "tcp_10m": Aim(0.40),
    "tcp_10m_forced_splice": Aim(1.00),
    "tcp_conn": Aim(0.90),
    "passthrough_conn": Aim(0.80),
    "passthrough_10m": Aim(0.50),
    "passthrough_10m_forced_splice": Aim(1.00),
    "https_100k": Aim(0.70),
    "upload_10m": Aim(0.80),
    "ws_plain": Aim(0.95),
    "ws_tls": Aim(0.95),
    "tcp_echo_125": Aim(0.95),
    "tcp_echo_4k": Aim(0.95),
    "https_1k_p99_ms": Aim(1.00),
    "http_1k_p99_ms": Aim(1.00),
    "rules_5000": Aim(1.05),
    "full_ecdsa_audited": Aim(1.04),
    "idle_rss": Aim(0.25, 3.0),
    # Operations per CPU second with one backup against none.
    "cluster_requests": Aim(ratio_min=0.80),
    "cluster_bulk": Aim(ratio_min=0.95),
    "cluster_handshakes": Aim(ratio_min=0.85),
    "cluster_latency_us": Aim(value=200),
    "cluster_replication_share_of_bulk": Aim(value=0.005),
    "cluster_stall_p99_ms": Aim(value=100),
    "cluster_stall_max_ms": Aim(value=300),
    "cluster_next_request_ms": Aim(value=10),
    "cluster_bytes_per_idle_connection": Aim(value=256),
    "cluster_cpu_per_handshake_7_vs_2": Aim(1.05),
}
