"""Cost of a handshake in clusters of two to seven nodes. See docs/measurements/benchmarks.md."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

from cases import HANDSHAKE_CLIENTS
from children import Child
from cluster_cases import STALL_ROUNDS_MAX, make_world, target_of, undisturbed
from cluster_net import Shape, World
from load import Done, Tools
from measure import Row
from runners import WARM_UP_S, Record, log_line
from stack import Stack

SIZES_OF_CLUSTERS = (2, 3, 4, 5, 6, 7)
HANDSHAKES_PER_NODE_S = 60.0  # seven nodes and their load fit two cores
PACED_PROCESSES = 12
GROWTH = "cluster_cpu_per_handshake_7_vs_2"
SHARED = "cluster_cpu_per_handshake_shared_7_vs_2"


def run_growth(stack: Stack, record: Record, _wanted: set[str]) -> list[str]:
    """Handshakes spread over clusters of all sizes: the CPU time of all nodes, divided by all handshakes.

    One load grows with the cluster, so that each node always has the same. The other is shared by all nodes: each then
    has less to do the more there are, and fewer handshakes share the cost of one wake-up.
    """
    samples: dict[str, list[dict[str, object]]] = {}
    costs: dict[str, dict[int, list[float]]] = {GROWTH: {}, SHARED: {}}
    rounds = min(stack.options.rounds, STALL_ROUNDS_MAX)
    for number in range(rounds):
        for size in SIZES_OF_CLUSTERS[:: 1 if number % 2 == 0 else -1]:
            with make_world(stack, Shape(nodes=size)) as world:
                world.rest = world.core
                world.start()
                world.rest = stack.options.load_core
                shown = []
                for row, sample in growth_of(stack, world, size).items():
                    costs[row].setdefault(size, []).append(sample["cpu_us"])
                    samples.setdefault(f"{row} {size}", []).append(dict(sample))
                    idle = sample["idle_cores"]
                    shown.append("{cpu_us:8.1f} ({cpu_us_without_idle:.1f}) at {per_s:5,.0f}/s".format_map(sample))
            log_line(
                f"  round {number + 1}/{rounds}  {size} nodes, CPU us/handshake (without the {idle:.1%} of a core that"
                f" they use idle): {'; '.join(shown)}"
            )
    record.samples[GROWTH] = samples
    first, last = SIZES_OF_CLUSTERS[0], SIZES_OF_CLUSTERS[-1]
    for row, values in costs.items():
        medians = {size: median(rounds) for size, rounds in values.items()}
        record.rows.append(Row(row, "CPU us/handshake", medians[last], f"{first} nodes", medians[first]))
        if row == GROWTH:
            record.figures["cluster_handshakes"] = plot(medians)
    return []


def growth_of(stack: Stack, world: World, size: int) -> dict[str, dict[str, float]]:
    """Cost of a handshake with the same load for each node, and with the same load for all."""
    tools = Tools(stack.children, stack.folder, stack.options.load_core, world.within("client"))
    target, seconds = target_of("/1k"), stack.options.seconds
    children = [node.child for node in world.nodes]
    rate = HANDSHAKES_PER_NODE_S * size
    loads: dict[str, Callable[[], Done]] = {
        GROWTH: lambda: tools.paced(target, rate, PACED_PROCESSES, seconds),
        SHARED: lambda: tools.fresh(target, HANDSHAKE_CLIENTS, seconds),
    }
    tools.fresh(target, HANDSHAKE_CLIENTS, WARM_UP_S)
    idle = idle_cores(children)
    found = {}
    for row, load in loads.items():
        done, cpu_ns, span_s = undisturbed(world, lambda load=load: of_all(children, load))
        own = cpu_ns - idle * span_s * 1e9
        found[row] = {
            "cpu_us": cpu_ns / 1e3 / done.operations,
            "cpu_us_without_idle": own / 1e3 / done.operations,
            "idle_cores": idle,
            "per_s": done.operations / done.seconds,
        }
    return found


def of_all(children: list[Child], load: Callable[[], Done]) -> tuple[Done, int, float]:
    """A load, the CPU time of all nodes meanwhile, and its duration: tools take time to start."""
    before, started = [child.cpu_ns() for child in children], time.monotonic()
    done = load()
    spent = sum(child.cpu_ns() - cpu for child, cpu in zip(children, before, strict=True))
    return done, spent, time.monotonic() - started


def idle_cores(children: list[Child], seconds: float = 2.0) -> float:
    """Cores that all idle nodes together use for heartbeats and similar work."""
    before, started = sum(child.cpu_ns() for child in children), time.monotonic()
    time.sleep(seconds)
    return (sum(child.cpu_ns() for child in children) - before) / 1e9 / (time.monotonic() - started)


def plot(values: dict[int, float], width: int = 480, height: int = 300) -> str:
    """An SVG: CPU time of a handshake over the number of nodes, with the line on which it would not grow."""
    left, bottom, top = 60, 40, 20
    highest = 1.25 * max(values.values())
    sizes = sorted(values)

    def x(size: int) -> float:
        return left + (size - sizes[0]) * (width - left - 20) / max(1, sizes[-1] - sizes[0])

    def y(value: float) -> float:
        return height - bottom - value / highest * (height - bottom - top)

    points = " ".join(f"{x(size):.1f},{y(values[size]):.1f}" for size in sizes)
    flat = y(values[sizes[0]])
    marks = "".join(
        f'<circle cx="{x(size):.1f}" cy="{y(values[size]):.1f}" r="3"/>'
        f'<text x="{x(size):.1f}" y="{y(values[size]) - 8:.1f}" text-anchor="middle">{values[size]:.0f}</text>'
        f'<text x="{x(size):.1f}" y="{height - bottom + 16}" text-anchor="middle">{size}</text>'
        for size in sizes
    )
    size_and_font = f'width="{width}" height="{height}" font-family="sans-serif" font-size="12"'
    return f"""<svg xmlns="http://www.w3.org/2000/svg" {size_and_font}>
<rect width="100%" height="100%" fill="white"/>
<path d="M{left},{top} V{height - bottom} H{width - 20}" fill="none" stroke="black"/>
<path d="M{x(sizes[0]):.1f},{flat:.1f} H{x(sizes[-1]):.1f}" stroke="gray" stroke-dasharray="4"/>
<polyline points="{points}" fill="none" stroke="black"/>
{marks}
<text x="{(left + width) / 2:.0f}" y="{height - 6}" text-anchor="middle">nodes</text>
<text x="6" y="14">CPU us per handshake, all nodes together</text>
</svg>
"""
