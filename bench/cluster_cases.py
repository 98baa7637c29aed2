"""The cluster rows: cost of replication, and effect of a node's death on clients. See
docs/measurements/benchmarks.md."""

from __future__ import annotations

import json
import os
import select
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import cluster_load
import cluster_stream
from cases import BULK_CONNECTIONS, HANDSHAKE_CLIENTS, KEEP_ALIVE_CONNECTIONS
from children import BenchError, Child
from cluster_net import (
    ADDRESS,
    HTTPS_PORT,
    SERVER,
    SOURCE_PORT,
    STREAM_PORT,
    Node,
    Shape,
    World,
    changes_between,
)
from load import Done, Target, Tools
from measure import Row, Sample, measure
from runners import WARM_UP_S, Record, Samples, log_line, show_bulk, show_requests
from stack import SIZES, Stack

Found = TypeVar("Found")
ON, OFF = "cluster", "off"
PAIR = Shape(nodes=2, owners=1)
ALONE = Shape(nodes=1, clustered=False)
STALLED = replace(PAIR, burst_bytes=8192)
LATENCY_RATE = 200.0  # requests/s over one connection: far from what either can do
STALL_ROUNDS_MAX = 3
STALL_RATE = 250_000  # bytes/s of each transfer
WINDOW_S = 4.0
ANSWER_S = 120.0
OPENING_S = 300.0
ATTEMPTS = 2
NEXT_SHOWN = 20
UNDISTURBED = "undisturbed"


@dataclass(frozen=True)
class CostCase:
    """A load whose CPU cost at the owner is compared with and without replication."""

    name: str
    title: str
    path: str
    unit: str
    bulk: bool
    load: Callable[[Tools, Target, float], Done]

    def per_cpu_s(self, sample: Sample) -> float:
        return 1 / sample.cpu_s_per_gb if self.bulk else 1e6 / sample.cpu_us_per_operation

    def per_s(self, sample: Sample) -> float:
        return sample.gb_per_s if self.bulk else sample.operations_per_s


COST_CASES = (
    CostCase(
        "cluster_requests",
        "1 KB over kept TLS connections",
        "/1k",
        "requests",
        False,
        lambda tools, target, seconds: tools.keep_alive(target, KEEP_ALIVE_CONNECTIONS, seconds),
    ),
    CostCase(
        "cluster_bulk",
        "10 MB over TLS",
        "/10m",
        "GB",
        True,
        lambda tools, target, seconds: tools.keep_alive(target, BULK_CONNECTIONS, seconds),
    ),
    CostCase(
        "cluster_handshakes",
        "full handshake and 1 KB request",
        "/1k",
        "handshakes",
        False,
        lambda tools, target, seconds: tools.fresh(target, HANDSHAKE_CLIENTS, seconds),
    ),
)
LATENCY = "cluster_latency_us"
SHARE = "cluster_replication_share_of_bulk"
STALL_P99, STALL_MAX = "cluster_stall_p99_ms", "cluster_stall_max_ms"
NEXT, NEXT_MAX = "cluster_next_request_ms", "cluster_next_request_max_ms"
DEAD_P99, DEAD_MAX = "cluster_host_dead_p99_ms", "cluster_host_dead_max_ms"
IDLE_BYTES = "cluster_bytes_per_idle_connection"


@dataclass
class Costs:
    """Results of the rounds of all cost cases."""

    samples: dict[str, Samples] = field(default_factory=dict)
    latencies_us: dict[str, list[float]] = field(default_factory=dict)
    shares: list[float] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)
    """Row and the first reason why it cannot be measured."""

    def add(self, case: str, label: str, sample: Sample) -> None:
        self.samples.setdefault(case, {}).setdefault(label, []).append(sample)


def make_world(stack: Stack, shape: Shape) -> World:
    options = stack.options
    return World(
        stack.children, stack.folder, options.evergate, shape, options.proxy_core, options.load_core
    )


def target_of(path: str) -> Target:
    return Target(HTTPS_PORT, path, True, SIZES[path], ADDRESS)


def run_costs(stack: Stack, record: Record, wanted: set[str]) -> list[str]:
    """Each round: two nodes of which the second is only a backup, then one node without `[cluster]`."""
    costs = Costs()
    for number in range(stack.options.rounds):
        for label, shape in ((ON, PAIR), (OFF, ALONE)):
            log_line(f"  round {number + 1}/{stack.options.rounds}  {label}")
            with make_world(stack, shape) as world:
                world.start()
                tools = Tools(stack.children, stack.folder, stack.options.load_core, world.within("client"))
                cost_round(stack, world, tools, label, wanted, costs)
        if not wanted - set(costs.failures):
            break
    for case in COST_CASES:
        if case.name in wanted and case.name not in costs.failures:
            cost_rows(record, case, costs.samples[case.name])
    if SHARE in wanted and SHARE not in costs.failures:
        record.samples[SHARE] = {ON: [{"share": share} for share in costs.shares]}
        record.rows.append(Row(SHARE, "of the data", median(costs.shares)))
    if LATENCY in wanted and LATENCY not in costs.failures:
        latency_rows(record, costs.latencies_us)
    return [f"{name}: {reason}" for name, reason in costs.failures.items()]


def cost_round(
    stack: Stack, world: World, tools: Tools, label: str, wanted: set[str], costs: Costs
) -> None:
    """All loads against one world."""
    owner = world.nodes[0]
    cases = [case for case in COST_CASES if case.name in wanted or (case.bulk and SHARE in wanted)]
    for case in cases:
        rows = [case.name] + ([SHARE] if case.bulk else [])
        if all(row in costs.failures or row not in wanted for row in rows):
            continue
        try:
            target = target_of(case.path)
            case.load(tools, target, WARM_UP_S)
            sample, mirrored = undisturbed(
                world, lambda: measure_owner(world, owner, case, tools, target, stack.options.seconds)
            )
        except BenchError as error:
            costs.failures.update({row: f"{label}: {error}" for row in rows if row in wanted})
            log_line(f"    FAILED  {case.name}: {label}: {error}")
            continue
        costs.add(case.name, label, sample)
        share = ""
        if case.bulk and label == ON:
            costs.shares.append(mirrored / sample.body_bytes)
            share = f"   {mirrored / sample.body_bytes:.2%} mirrored"
        log_line(f"    {case.name:<20} {show_bulk(sample) if case.bulk else show_requests(sample)}{share}")
    if LATENCY in wanted and LATENCY not in costs.failures:
        try:
            latency = measure_latency(stack, world, tools)
            costs.latencies_us.setdefault(label, []).append(latency)
            log_line(f"    {LATENCY:<20} {latency:8.0f} us for half of the requests")
        except BenchError as error:
            costs.failures[LATENCY] = f"{label}: {error}"
            log_line(f"    FAILED  {LATENCY}: {label}: {error}")


def measure_owner(
    world: World, owner: Node, case: CostCase, tools: Tools, target: Target, seconds: float
) -> tuple[Sample, int]:
    """The owner's CPU time, and the bytes on the backup's inside card, which carries no traffic of servers."""
    before = backup_bytes(world)
    sample = measure(owner.child, lambda: case.load(tools, target, seconds))
    return sample, backup_bytes(world) - before


def backup_bytes(world: World) -> int:
    return world.bytes_of("in2") if world.shape.nodes == 2 else 0


def undisturbed(world: World, run: Callable[[], Found]) -> Found:
    """Repeats the run if the cluster changed meanwhile, as on a machine that was paused; then gives up."""
    reason = None
    for _ in range(ATTEMPTS):
        before = world.settle()
        found = run()
        reason = changes_between(before, [node.status() for node in world.nodes] if before else [])
        if reason is None:
            return found
        log_line(f"    again: {reason}")
    raise BenchError(f"the cluster does not keep still under this load: {reason}; {log_tail(world)}")


def log_tail(world: World) -> str:
    return "; ".join(f"{node.child.name}: {node.child.log_tail()}" for node in world.nodes)


def measure_latency(stack: Stack, world: World, tools: Tools) -> float:
    """Median time of a request in microseconds, one after the other at a low rate."""

    def load() -> Done:
        return tools.keep_alive(target_of("/1k"), 1, stack.options.seconds, rate=LATENCY_RATE)

    done = undisturbed(world, load)
    return float(median(done.latencies_us))


def cost_rows(record: Record, case: CostCase, samples: Samples) -> None:
    """Operations per CPU second and per second, on against off: the ratio of the first is CPU off / on."""
    record.keep(case.name, samples)
    for name, unit, value in (
        (case.name, f"{case.unit}/CPU s", case.per_cpu_s),
        (f"{case.name}_throughput", f"{case.unit}/s", case.per_s),
    ):
        on, off = (median(value(sample) for sample in samples[label]) for label in (ON, OFF))
        record.rows.append(Row(name, unit, on, OFF, off))


def latency_rows(record: Record, latencies_us: dict[str, list[float]]) -> None:
    on, off = median(latencies_us[ON]), median(latencies_us[OFF])
    record.samples[LATENCY] = {
        label: [{"median_us": value} for value in rounds] for label, rounds in latencies_us.items()
    }
    record.note(f"{LATENCY}: half of the requests take at most {on:.0f} us on and {off:.0f} us off")
    record.rows.append(Row(LATENCY, "us added", on - off))


class Opened:
    """A client of `cluster_load.py` in the client's namespace."""

    def __init__(self, stack: Stack, world: World, idle: int, transfers: int) -> None:
        command = ["python3", "-B", str(Path(cluster_load.__file__)), ADDRESS, str(HTTPS_PORT)]
        command += [str(STREAM_PORT), str(idle), str(transfers)]
        self.child = stack.children.start_with_pipes(
            "client", [*world.within("client"), *command], stack.options.load_core, stack.tools.environment
        )
        world.adopt(self.child)
        self._receive(OPENING_S)

    def send(self, command: str) -> dict[str, Any]:
        assert self.child.process.stdin
        try:
            self.child.process.stdin.write(f"{command}\n".encode())
            self.child.process.stdin.flush()
        except BrokenPipeError as error:
            raise BenchError(f"the client ended: {self.child.log_tail()}") from error
        return self._receive(ANSWER_S)

    def _receive(self, patience_s: float) -> dict[str, Any]:
        output = self.child.process.stdout
        assert output
        ready, _, _ = select.select([output], [], [], patience_s)
        line = output.readline() if ready else b""
        if not line:
            state = "ended" if ready else f"does not answer after {patience_s:.0f} s"
            raise BenchError(f"the client {state}: {self.child.log_tail()}")
        return json.loads(line)


@dataclass(frozen=True)
class Stall:
    """Result of one death."""

    gaps_ms: list[float]
    undisturbed_ms: list[float]
    next_ms: list[float]
    next_before_ms: list[float]
    broken: list[str]
    broken_count: int
    failover: dict[str, Any]

    def as_json(self) -> dict[str, object]:
        return {
            "p99_ms": rank(self.gaps_ms, 0.99),
            "max_ms": max(self.gaps_ms),
            "median_ms": median(self.gaps_ms),
            "undisturbed_p99_ms": rank(self.undisturbed_ms, 0.99),
            "undisturbed_max_ms": max(self.undisturbed_ms),
            "next_p99_ms": rank(self.next_ms, 0.99),
            "next_before_p99_ms": rank(self.next_before_ms, 0.99),
            "next_count": len(self.next_ms),
            "next_first_ms": self.next_ms[:NEXT_SHOWN],
            "broken": self.broken,
            "broken_count": self.broken_count,
            "failover": self.failover,
        }


def rank(values: list[float], share: float) -> float:
    """The value below which `share` of the values lie (nearest rank)."""
    ordered = sorted(values)
    if not ordered:
        raise BenchError("nothing was measured")
    return ordered[min(len(ordered) - 1, max(0, -int(-share * len(ordered) // 1) - 1))]


def run_stall(stack: Stack, record: Record, wanted: set[str]) -> list[str]:
    """Kills the process of the owner of all connections; a few of these transfer, the others are idle."""
    stalls, failed = stalls_of(stack, record, "cluster_stall", unplugged=False)
    stall_rows(record, stalls, (STALL_P99, STALL_MAX), wanted)
    rows = [
        Row(NEXT, "ms longer", median(rank(s.next_ms, 0.99) - rank(s.next_before_ms, 0.99) for s in stalls)),
        Row(
            NEXT_MAX,
            "ms",
            max(max(s.next_ms) for s in stalls),
            UNDISTURBED,
            max(max(s.next_before_ms) for s in stalls),
        ),
    ]
    record.rows += [row for row in rows if row.name in wanted]
    return failed


def run_host_dead(stack: Stack, record: Record, wanted: set[str]) -> list[str]:
    """Like `run_stall`, but the whole machine is disconnected at once."""
    stalls, failed = stalls_of(stack, record, "cluster_host_dead", unplugged=True)
    stall_rows(record, stalls, (DEAD_P99, DEAD_MAX), wanted)
    return failed


def stalls_of(stack: Stack, record: Record, name: str, unplugged: bool) -> tuple[list[Stall], list[str]]:
    options = stack.options
    idle = options.cluster_connections - options.cluster_transfers
    stalls: list[Stall] = []
    rounds = min(options.rounds, STALL_ROUNDS_MAX)
    for number in range(rounds):
        with make_world(stack, STALLED) as world:
            # Both on one core: when the first node dies, the second has the core alone, as on its own machine.
            world.rest = world.core
            world.start()
            world.rest = options.load_core
            stall = one_stall(stack, world, idle, unplugged)
        stalls.append(stall)
        found = stall.as_json()
        log_line(
            f"  round {number + 1}/{rounds}  longest gap of {len(stall.gaps_ms)} transfers:"
            f" p99 {found['p99_ms']:.0f} ms, max {found['max_ms']:.0f} ms (undisturbed"
            f" {found['undisturbed_p99_ms']:.0f} and {found['undisturbed_max_ms']:.0f}); next request"
            f" p99 {found['next_p99_ms']:.1f} ms, max {max(stall.next_ms):.0f} ms of {len(stall.next_ms)}"
            f" (before {found['next_before_p99_ms']:.1f} of {len(stall.next_before_ms)});"
            f" {stall.broken_count} broken"
        )
    record.samples[name] = {ON: [stall.as_json() for stall in stalls]}
    broken = sum(stall.broken_count for stall in stalls)
    if not broken:
        return stalls, []
    example = next(stall.broken[0] for stall in stalls if stall.broken)
    everything = len(stalls) * options.cluster_connections
    return stalls, [f"{name}: {broken} of {everything} connections broke, among them: {example}"]


def stall_rows(record: Record, stalls: list[Stall], names: tuple[str, str], wanted: set[str]) -> None:
    """The 99th percentile, median of all rounds, and the longest of all."""
    p99 = [median(rank(of, 0.99) for of in gaps) for gaps in zip(*((s.gaps_ms, s.undisturbed_ms) for s in stalls))]
    longest = [max(map(max, gaps)) for gaps in zip(*((s.gaps_ms, s.undisturbed_ms) for s in stalls))]
    for name, (ours, calm) in zip(names, (p99, longest), strict=True):
        if name in wanted:
            record.rows.append(Row(name, "ms", ours, UNDISTURBED, calm))


def one_stall(stack: Stack, world: World, idle: int, unplugged: bool) -> Stall:
    options = stack.options
    command = ["python3", "-B", str(Path(cluster_stream.__file__)), SERVER, str(SOURCE_PORT), str(STALL_RATE)]
    world.run("server", "stream", command, options.load_core)
    started = time.monotonic()
    client = Opened(stack, world, idle, options.cluster_transfers)
    log_line(f"  {options.cluster_connections:,} connections opened in {time.monotonic() - started:.0f} s")
    time.sleep(1)
    before = world.settle()
    client.send("mark")
    time.sleep(WINDOW_S)
    calm = client.send("report")
    reason = changes_between(before, [node.status() for node in world.nodes])
    if reason or calm["broken"]:
        raise BenchError(f"before anything was killed: {reason or calm['broken'][0]}; {log_tail(world)}")
    if len(calm["gaps_ms"]) != options.cluster_transfers:
        raise BenchError(f"only {len(calm['gaps_ms'])} of {options.cluster_transfers} transfers run")
    killed = world.nodes.pop(0)
    client.send("mark")
    if unplugged:
        world.unplug(1)
    killed.child.process.kill()
    move_aside(killed.child, options.load_core)
    killed.child.process.wait()
    time.sleep(WINDOW_S)
    after = client.send("report")
    gaps = after["gaps_ms"]
    if gaps:
        log_line(f"    longest gaps: p99 {rank(gaps, 0.99):.0f} ms, max {max(gaps):.0f} ms")
    end = client.send("check")
    status = world.nodes[0].status()
    log_line(f"    node 2: {' / '.join(world.nodes[0].child.log.read_text().splitlines()[-3:])}")
    broken = after["broken"] + end["broken"]
    return Stall(
        after["gaps_ms"],
        calm["gaps_ms"],
        after["asked_ms"],
        calm["asked_ms"],
        broken,
        len(after["broken"]) + end["broken_count"],
        (status["failovers"] or [{}])[-1] | {"counts": status["counts"]},
    )


def move_aside(child: Child, core: int | None) -> None:
    """Moves the child to another core: the kernel takes a quarter of a second to clear up after a process with 20,000
    sockets. In a real cluster this happens on the failed machine, not on the one that continues."""
    for pid in child.pids if core is not None else []:
        with suppress(OSError):
            for task in os.listdir(f"/proc/{pid}/task"):
                with suppress(OSError):
                    os.sched_setaffinity(int(task), {core})


def run_idle_bytes(stack: Stack, record: Record, _wanted: set[str]) -> list[str]:
    """Bytes of state that a node receives when it joins another one with many idle connections."""
    count = stack.options.idle_connections
    values: list[float] = []
    for number in range(min(stack.options.rounds, STALL_ROUNDS_MAX)):
        empty, full = (joining_bytes(stack, connections) for connections in (0, count))
        values.append((full - empty) / count)
        log_line(f"  round {number + 1}  {full:,} bytes with {count:,} connections, {empty:,} with none")
    record.samples[IDLE_BYTES] = {ON: [{"bytes": value} for value in values]}
    record.rows.append(Row(IDLE_BYTES, "B/connection", median(values)))
    return []


def joining_bytes(stack: Stack, connections: int) -> int:
    """Bytes that the second node's inside card received and sent, in the same time from its start."""
    with make_world(stack, PAIR) as world:
        world.start_node(1, world.core)
        world.settle()
        client = Opened(stack, world, connections, 0)
        time.sleep(2)  # until the end of the handshakes is acknowledged
        before = world.bytes_of("in2")
        started = time.monotonic()
        world.start_node(2, world.rest)
        world.settle()
        time.sleep(max(0.0, started + 5 - time.monotonic()))
        moved = world.bytes_of("in2") - before
        alive = client.send("check")
        if alive["broken_count"]:
            raise BenchError(f"{alive['broken_count']} idle connections broke: {alive['broken'][0]}")
        return moved
