#!/usr/bin/env -S python3 -B
"""Comparison with nginx and HAProxy: `make bench`, or `bench/run.py --only https_1k`.

See docs/measurements/benchmarks.md.
"""

from __future__ import annotations

import argparse
import os
import resource
import signal
import sys
import tempfile
import time
from pathlib import Path
from types import FrameType

from cases import AUDITED_CASE, CLUSTER_NAMES, IDLE_CASE, NAMES, RELAY_CASES, RULES_CASE
from children import BenchError, Children
from cluster_groups import GROUPS
from cluster_net import obstacle_here
from configs import CONNECTIONS_MAX
from own_network import MACHINES, own_network
from report import congestion_control, environment, save, table
from runners import Record, log_line, run_audited, run_idle, run_relay, run_rules
from stack import Options, Stack

ROOT = Path(__file__).resolve().parent.parent
TRANSFERS = 200
OTHER_TITLES = {
    RULES_CASE: "5,000 rules against 10",
    AUDITED_CASE: "full handshakes of an audited listener",
    IDLE_CASE: "memory of idle TLS connections",
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compares evergate with nginx and HAProxy on this machine.")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of which medians are taken (default 5)")
    parser.add_argument("--seconds", type=float, default=3.0, help="length of one load (default 3)")
    parser.add_argument("--only", default="", metavar="NAME[,NAME]", help=f"some of: {', '.join(NAMES)}")
    parser.add_argument(
        "--quick", action="store_true", help="1 round of 1 s, few connections: tests the harness"
    )
    parser.add_argument(
        "--idle-connections", type=int, default=5000, help="connections of idle_rss (default 5000)"
    )
    parser.add_argument(
        "--cluster-connections",
        type=int,
        default=10_000,
        help="connections of the node that is killed, 200 of them transferring (default 10000)",
    )
    parser.add_argument("--proxy-core", type=int, default=0, help="core of the proxies (default 0)")
    parser.add_argument("--load-core", type=int, default=1, help="core of load tools and backend (default 1)")
    parser.add_argument(
        "--congestion-control",
        default="cubic",
        metavar="NAME",
        help=f"of the rows without a cluster (default cubic, as kernels come); `{MACHINES}` for the machine's",
    )
    parser.add_argument("--no-pin", action="store_true", help="leave the placement to the kernel")
    built = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release" / "evergate"
    parser.add_argument("--evergate", type=Path, default=built, help="the binary to measure")
    parser.add_argument(
        "--before", type=Path, metavar="EVERGATE", help="another build to compare with, in place of the peers"
    )
    parser.add_argument(
        "--out", type=Path, default=ROOT / "target" / "bench" / "results.json", help="where rows go"
    )
    chosen = parser.parse_args()
    if chosen.quick:
        chosen.rounds, chosen.seconds, chosen.idle_connections = 1, 1.0, 500
        chosen.cluster_connections = min(chosen.cluster_connections, 1000)
    chosen.only = [name for name in chosen.only.split(",") if name]
    unknown = [name for name in chosen.only if name not in NAMES]
    if unknown:
        parser.error(f"no such row: {', '.join(unknown)}; there are {', '.join(NAMES)}")
    alone = [name for name in chosen.only if name in CLUSTER_NAMES or name in (RULES_CASE, AUDITED_CASE)]
    if chosen.before and alone:
        parser.error(f"--before does not compare {', '.join(alone)}: run each build and compare the results")
    if chosen.rounds < 1 or chosen.seconds <= 0 or chosen.idle_connections < 1:
        parser.error("--rounds, --seconds and --idle-connections must be positive")
    if chosen.cluster_connections < TRANSFERS:
        parser.error(f"--cluster-connections must be at least {TRANSFERS}")
    return chosen


def options(chosen: argparse.Namespace) -> Options:
    """Checks what the machine allows."""
    for binary in filter(None, (chosen.evergate, chosen.before)):
        if not binary.is_file():
            raise BenchError(f"{binary} is missing: `make build` makes it")
    cores = os.sched_getaffinity(0)
    pins = None if chosen.no_pin else (chosen.proxy_core, chosen.load_core)
    if pins and not cores.issuperset(pins):
        raise BenchError(f"cores {pins} are not all available ({sorted(cores)}): choose others, or --no-pin")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = CONNECTIONS_MAX + 1000
    if hard < wanted:
        raise BenchError(
            f"only {hard} open files are allowed, {wanted} are needed: raise the hard limit (ulimit -Hn)"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    proxy_core, load_core = pins or (None, None)
    return Options(
        chosen.evergate.resolve(),
        chosen.rounds,
        chosen.seconds,
        chosen.idle_connections,
        proxy_core,
        load_core,
        chosen.cluster_connections,
        TRANSFERS,
        chosen.before.resolve() if chosen.before else None,
    )


def run_all(stack: Stack, names: list[str], record: Record) -> list[str]:
    """Runs the cases; a failed one does not stop the others."""
    failures = []
    relays = {case.name: case for case in RELAY_CASES}
    for position, name in enumerate(names):
        title = relays[name].title if name in relays else OTHER_TITLES[name]
        log_line(f"[{position + 1}/{len(names)}] {name}: {title}")
        try:
            if name in relays:
                run_relay(stack, relays[name], record)
            elif name == RULES_CASE:
                run_rules(stack, record)
            elif name == AUDITED_CASE:
                run_audited(stack, record)
            else:
                run_idle(stack, record)
        except (BenchError, OSError) as error:
            failures.append(f"{name}: {error}")
            log_line(f"  FAILED  {error}")
        finally:
            stack.stop_proxies()
    return failures


def run_clusters(stack: Stack, names: list[str], record: Record) -> tuple[list[str], list[str]]:
    """Runs the groups that have one of these rows; returns the failed rows, and the skipped ones with the reason."""
    wanted = {name for name in names if name in CLUSTER_NAMES}
    reason = obstacle_here()
    if wanted and reason:
        return [], [f"{name}: {reason}" for name in names if name in wanted]
    failures = []
    for group in GROUPS:
        rows = [name for name in group.rows if name in wanted]
        if not rows:
            continue
        log_line(f"[cluster] {', '.join(rows)}: {group.title}")
        try:
            failures += group.run(stack, record, set(rows))
        except (BenchError, OSError) as error:
            failures += [f"{name}: {error}" for name in rows]
            log_line(f"  FAILED  {error}")
        finally:
            stack.stop_proxies()
    return failures, []


def stop(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main() -> int:
    chosen = arguments()
    signal.signal(signal.SIGTERM, stop)
    started = time.monotonic()
    record = Record()
    try:
        settings = options(chosen)
        where = environment(settings.evergate)
        for name, value in where.items():
            log_line(f"{name + ':':<24}{value}")
        if os.getloadavg()[0] > 0.5:
            record.note("the machine is busy with other work: figures of this run are noisy")
        names = [name for name in NAMES if not chosen.only or name in chosen.only]
        if chosen.before:
            names = [name for name in names if name in (*(case.name for case in RELAY_CASES), IDLE_CASE)]
        with (
            tempfile.TemporaryDirectory(prefix="evergate-bench-") as folder,
            Children(Path(folder)) as children,
        ):
            with own_network(chosen.congestion_control) as reason:
                where["congestion control"] = congestion_control()
                log_line(f"{'congestion control:':<24}{where['congestion control']}")
                if reason:
                    record.note(f"not {chosen.congestion_control}: {reason}")
                stack = Stack(Path(folder), children, settings)
                alone = [name for name in names if name not in CLUSTER_NAMES]
                failures = run_all(stack, alone, record)
            more, skipped = run_clusters(stack, names, record)
            failures += more
    except BenchError as error:
        log_line(f"bench: {error}")
        return 2
    except KeyboardInterrupt:
        log_line("bench: interrupted; everything it started is ended")
        return 130
    shown = {"rounds": chosen.rounds, "seconds": chosen.seconds, "idle_connections": chosen.idle_connections}
    save(
        chosen.out,
        record,
        where,
        shown
        | {"cores": [settings.proxy_core, settings.load_core], "failed": failures, "skipped": skipped}
        | {"cluster_connections": settings.cluster_connections, "cluster_transfers": TRANSFERS},
    )
    log_line("")
    log_line(table(record.rows))
    log_line("")
    for failure in failures:
        log_line(f"FAILED: {failure}")
    for row in skipped:
        log_line(f"SKIPPED: {row}")
    log_line(f"{len(record.rows)} rows in {chosen.out} after {time.monotonic() - started:.0f} s")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
