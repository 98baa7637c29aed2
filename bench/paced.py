"""Full TLS handshakes at a set rate: `paced.py ADDRESS PORT PER_S SECONDS PROCESSES`.

Each operation is a connection, a full handshake, one request whose response is checked, and the end. The processes take
turns at equal intervals; a late one catches up. Prints as JSON the number of operations, their time, and the largest
delay: `{"done": N, "seconds": S, "late_s": S}`. Public tools either hold a rate or make a connection for each request.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from types import FrameType

from cluster_load import TIMEOUT_S, connect, tls_context
from idle import request

LEAD_S = 0.1  # until all processes have started


@dataclass(frozen=True)
class Turns:
    """Times of one process's operations."""

    first_s: float
    gap_s: float
    end_s: float


def work(address: str, port: int, turns: Turns) -> dict[str, float]:
    """One process's operations."""
    context = tls_context()
    done, late, due = 0, 0.0, turns.first_s
    while due < turns.end_s and time.monotonic() < turns.end_s + TIMEOUT_S:
        time.sleep(max(0.0, due - time.monotonic()))
        late = max(late, time.monotonic() - due)
        with connect(context, address, port) as connection:
            request(connection)
        done += 1
        due += turns.gap_s
    return {"done": done, "late_s": late}


def start(address: str, port: int, turns: Turns) -> tuple[int, int]:
    """Starts a process; returns its id and the descriptor of its report."""
    reads, writes = os.pipe()
    process = os.fork()
    if process:
        os.close(writes)
        return process, reads
    status = 1
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.write(writes, json.dumps(work(address, port, turns)).encode())
        status = 0
    except Exception as error:  # every failure is reported to the run
        print(f"a handshake or a request failed: {error!r}", file=sys.stderr, flush=True)
    finally:
        os._exit(status)


def stop(_signal: int, _frame: FrameType | None) -> None:
    raise SystemExit(1)


def main() -> int:
    address, port = sys.argv[1], int(sys.argv[2])
    per_s, seconds, processes = float(sys.argv[3]), float(sys.argv[4]), int(sys.argv[5])
    signal.signal(signal.SIGTERM, stop)
    began = time.monotonic() + LEAD_S
    gap = processes / per_s
    started: list[tuple[int, int]] = []
    try:
        for index in range(processes):
            turns = Turns(began + gap * index / processes, gap, began + seconds)
            started.append(start(address, port, turns))
        found = []
        for _, reads in started:
            with os.fdopen(reads, closefd=False) as report:
                found.append(json.loads(report.read() or "null"))
        took = time.monotonic() - began
    finally:
        for process, _ in started:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGTERM)
            os.waitpid(process, 0)
    if None in found:
        return 1  # it has printed the reason
    done = sum(one["done"] for one in found)
    print(json.dumps({"done": done, "seconds": took, "late_s": max(one["late_s"] for one in found)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
