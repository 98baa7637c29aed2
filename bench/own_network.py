"""A separate loopback interface: loads outside a cluster's networks then run equally on every machine."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from children import BenchError
from cluster_net import allowed

CONGESTION_CONTROL = Path("/proc/sys/net/ipv4/tcp_congestion_control")
AVAILABLE = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")
MACHINES = "machine"
"""Value in place of a name: the machine's own network, unchanged."""
OWN = "/proc/self/ns/net"
CLONE_NEWNET = 0x40000000
LIBC = ctypes.CDLL(None, use_errno=True)


def obstacle(congestion_control: str, is_root: bool, available: str) -> str | None:
    """The reason why connections cannot use this congestion control here, if any."""
    if not is_root:
        return "a network namespace needs root"
    if congestion_control not in available.split():
        return f"the kernel has no {congestion_control}, only {available.strip()}"
    return None


@contextmanager
def own_network(congestion_control: str) -> Iterator[str | None]:
    """Moves this process, and its children, into a network namespace whose connections use this congestion control. If
    that is not possible, they stay in the machine's namespace; yields the reason."""
    if congestion_control == MACHINES:
        yield None
        return
    reason = obstacle(congestion_control, os.geteuid() == 0, AVAILABLE.read_text())
    if reason:
        yield reason
        return
    machines = os.open(OWN, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield move(machines, congestion_control)
    finally:
        enter(machines)
        os.close(machines)


def move(machines: int, congestion_control: str) -> str | None:
    """Moves into a new network namespace; returns the reason if root may not do so either, as in most containers."""
    try:
        ours = make()
        enter(machines)  # the namespace that controls what others may use
        with allowed(congestion_control):
            enter(ours)
            CONGESTION_CONTROL.write_text(congestion_control)
            enter(machines)
        enter(ours)
        os.close(ours)
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    except (BenchError, OSError, subprocess.CalledProcessError) as error:
        enter(machines)
        return str(error)
    return None


def make() -> int:
    """A new network namespace, which the process is in from now on."""
    succeed(LIBC.unshare(CLONE_NEWNET), "making a network namespace")
    return os.open(OWN, os.O_RDONLY | os.O_CLOEXEC)


def enter(namespace: int) -> None:
    succeed(LIBC.setns(namespace, CLONE_NEWNET), "entering a network namespace")


def succeed(result: int, what: str) -> None:
    if result != 0:
        raise BenchError(f"{what}: {os.strerror(ctypes.get_errno())}")
