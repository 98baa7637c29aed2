"""Child processes: started pinned to cores, measured through /proc, and ended by their own ids.

CPU time is the first column of `/proc/PID/task/*/schedstat`: nanoseconds on a core, at the scheduler's precision,
summed over all threads of all processes of a program. `utime + stime` would have a resolution of one timer tick.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

START_TIMEOUT_S = 15.0
STOP_TIMEOUT_S = 3.0


class BenchError(Exception):
    """A case that cannot be measured; the message has the attempt and its result."""


@dataclass
class Child:
    """One started program with the processes that it forked."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    pids: list[int] = field(default_factory=list)

    def settle(self, forks: int) -> None:
        """Records the processes of the program: nginx accepts connections before its worker exists, and a shell in
        front of a program has its own processes for a moment."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            before, self.pids = self.pids, [self.process.pid, *descendants(self.process.pid)]
            if len(self.pids) == 1 + forks and self.pids == before:
                return
            time.sleep(0.1)
        raise BenchError(f"{self.name} should have {1 + forks} processes and has {len(self.pids)}")

    def check(self) -> None:
        """Raises if a process died or was replaced: its CPU time would be missing from the sum."""
        if self.process.poll() is not None:
            raise BenchError(f"{self.name} ended with status {self.process.returncode}: {self.log_tail()}")
        now = [self.process.pid, *descendants(self.process.pid)]
        if sorted(now) != sorted(self.pids):
            raise BenchError(f"a process of {self.name} was replaced while measuring: {self.log_tail()}")

    def cpu_ns(self) -> int:
        """CPU time of all its threads so far, in nanoseconds."""
        return sum(process_cpu_ns(pid) for pid in self.pids)

    def resident_kb(self) -> int:
        """Resident memory of all its processes, in KB (1,024 bytes)."""
        return sum(resident_kb(pid) for pid in self.pids)

    def log_tail(self) -> str:
        """The end of its output."""
        with suppress(OSError):
            lines = self.log.read_text(errors="replace").strip().splitlines()
            if lines:
                return " / ".join(lines[-4:])
        return f"nothing in {self.log}"


class Children:
    """All children of this run; leaving the context ends the remaining ones."""

    def __init__(self, folder: Path, environment: dict[str, str] | None = None) -> None:
        self.folder = folder
        self.environment = {**os.environ, **(environment or {})}
        self._live: list[Child] = []
        self._started = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for child in self.live():
            self.stop(child)

    def live(self) -> list[Child]:
        """Children that were not stopped."""
        return list(self._live)

    def start(
        self, name: str, command: list[str], core: int | None, ports: Iterable[int], forks: int = 0
    ) -> Child:
        """Starts a server and waits until it accepts connections on all `ports` and has forked its workers."""
        self._started += 1
        log = self.folder / f"{self._started:03}-{name}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                pinned(command, core),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self.environment,
                cwd=self.folder,
                start_new_session=True,  # Ctrl-C reaches this process only, which ends the others in order
            )
        child = Child(name, process, log)
        self._live.append(child)
        try:
            for port in ports:
                wait_for_port(child, port)
            child.settle(forks)
        except BaseException:
            self.stop(child)
            raise
        return child

    def start_with_pipes(
        self, name: str, command: list[str], core: int | None, environment: dict[str, str]
    ) -> Child:
        """Starts a program that receives commands on standard input and answers on standard output."""
        self._started += 1
        log = self.folder / f"{self._started:03}-{name}.log"
        with log.open("wb") as errors:
            process = subprocess.Popen(
                pinned(command, core),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment,
                cwd=self.folder,
                start_new_session=True,
            )
        child = Child(name, process, log, [process.pid])
        self._live.append(child)
        return child

    def adopt(self, name: str, process: subprocess.Popen[bytes]) -> Child:
        """Adds a process that was started elsewhere, to be ended with the others."""
        child = Child(name, process, self.folder / f"{name}.log", [process.pid])
        self._live.append(child)
        return child

    def stop(self, child: Child) -> None:
        """Ends a child with all its processes: TERM first, then KILL."""
        pids = [child.process.pid, *descendants(child.process.pid)] if child.process.poll() is None else []
        if pids:
            child.process.terminate()
            try:
                child.process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                for pid in pids:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                child.process.wait()
        if child in self._live:
            self._live.remove(child)


def pinned(command: list[str], core: int | None) -> list[str]:
    """The command bound to a core, and ended when this process is killed (TERM: nginx then ends its workers)."""
    prefix = ["setpriv", "--pdeathsig", "TERM"]
    if core is not None:
        prefix += ["taskset", "--cpu-list", str(core)]
    return prefix + command


def wait_for_port(child: Child, port: int) -> None:
    """Waits until the child accepts connections, at most `START_TIMEOUT_S`."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if child.process.poll() is not None:
            raise BenchError(f"{child.name} did not start: {child.log_tail()}")
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.02)
    raise BenchError(
        f"{child.name} does not listen on port {port} after {START_TIMEOUT_S:.0f} s: {child.log_tail()}"
    )


def free_ports(count: int) -> list[int]:
    """Free ports below the kernel's range for outgoing connections, which a load could use up."""
    held: list[socket.socket] = []
    try:
        while len(held) < count:
            candidate = socket.socket()
            try:
                candidate.bind(("127.0.0.1", random.randrange(12_000, 32_000)))
                held.append(candidate)
            except OSError:
                candidate.close()
        return [sock.getsockname()[1] for sock in held]
    finally:
        for sock in held:
            sock.close()


def descendants(pid: int) -> list[int]:
    """Ids of the processes below `pid`."""
    found: list[int] = []
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                found += [int(child), *descendants(int(child))]
    return found


def process_cpu_ns(pid: int) -> int:
    """CPU time of the live threads of one process, in nanoseconds."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):
            total += int((task / "schedstat").read_text().split()[0])
    return total


def resident_kb(pid: int) -> int:
    """VmRSS of one process in KB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    raise BenchError(f"/proc/{pid}/status has no VmRSS")


def softirq_cpu_ns() -> int:
    """CPU time of the kernel's ksoftirqd threads: network work that is charged to no process."""
    total = 0
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                if (entry / "comm").read_text().startswith("ksoftirqd/"):
                    total += process_cpu_ns(int(entry.name))
    return total
