"""The cluster rows, grouped by measurement."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cluster_cases import (
    COST_CASES,
    DEAD_MAX,
    DEAD_P99,
    IDLE_BYTES,
    LATENCY,
    NEXT,
    NEXT_MAX,
    SHARE,
    STALL_MAX,
    STALL_P99,
    run_costs,
    run_host_dead,
    run_idle_bytes,
    run_stall,
)
from cluster_growth import GROWTH, SHARED, run_growth
from runners import Record
from stack import Stack


@dataclass(frozen=True)
class Group:
    """Rows of one measurement."""

    title: str
    rows: tuple[str, ...]
    run: Callable[[Stack, Record, set[str]], list[str]]
    """Runs the measurement for the wanted rows and returns the failed ones."""


GROUPS = (
    Group(
        "CPU of the owner with one backup, against off",
        (*(case.name for case in COST_CASES), LATENCY, SHARE),
        run_costs,
    ),
    Group("what clients see when a node's process dies", (STALL_P99, STALL_MAX, NEXT, NEXT_MAX), run_stall),
    Group("what clients see when a node's machine dies", (DEAD_P99, DEAD_MAX), run_host_dead),
    Group("mirrored state of idle connections", (IDLE_BYTES,), run_idle_bytes),
    Group("CPU per handshake in clusters of 2 to 7 nodes", (GROWTH, SHARED), run_growth),
)
