"""Clusters on this machine: nodes, clients and servers in their own network namespaces, on two bridges in another one.

Names of namespaces begin with `evergate-bench-` and the id of this process. They are removed at the end; the next run
removes those of a killed run. Nothing else on the machine changes, except for a moment the congestion controls that are
allowed for all processes.
"""

from __future__ import annotations

import http.client
import json
import os
import platform
import re
import secrets
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from children import BenchError, Child, Children
from configs import Material, backend_config

ADDRESS = "10.72.0.100"
SOURCE = "10.71.0.100"
SERVER = "10.71.0.250"
CLIENT = "10.72.0.250"
SWITCH = ("10.71.0.254", "10.72.0.254")
FILTERS_OF_BRIDGES = tuple(f"bridge-nf-call-{of}tables" for of in ("arp", "ip", "ip6"))
HTTPS_PORT, STREAM_PORT = 9443, 9444
BACKEND_PORT, MARKED_PORT, SOURCE_PORT = 8000, 8001, 8002
CLUSTER_PORT = 7400
FLOWS_MAX = 65_536
BUCKETS = 1024
SETTLE_TIMEOUT_S = 60.0
KERNEL_MIN = (6, 8)
PREFIX = "evergate-bench-"
ALLOWED = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control")
# `ip netns exec` gives a process its own /sys, in which the daemon needs a BPF file system.
WITH_BPF = ("sh", "-c", 'mount -t bpf bpf /sys/fs/bpf && exec "$@"', "node")


def obstacle(root: bool, release: str) -> str | None:
    """The reason why clusters cannot be measured here, if any."""
    numbers = re.match(r"(\d+)\.(\d+)", release)
    version = (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)
    if not root:
        return "needs root: it makes network namespaces and loads packet filters"
    if version < KERNEL_MIN:
        return f"needs Linux {KERNEL_MIN[0]}.{KERNEL_MIN[1]}, this is {release}"
    return None


def obstacle_here() -> str | None:
    return obstacle(os.geteuid() == 0, platform.release())


def inside(number: int) -> str:
    return f"10.71.0.{number}"


def outside(number: int) -> str:
    return f"10.72.0.{number}"


@dataclass(frozen=True)
class Shape:
    """Number and roles of the nodes. `clustered` false: one node, the same without `[cluster]`."""

    nodes: int = 2
    clustered: bool = True
    owners: int | None = None
    """Nodes that own connections; the others have weight 0 and are only backups. None: all."""
    congestion_control: str | None = "cubic"
    """Of all hosts; the machine's when None. BBR, a common default, paces with timers, whose packets are charged to the
    interrupted process."""
    burst_bytes: int | None = None
    """Most bytes that the server's kernel passes to its card at once: with short round trips it sends whole windows
    together, whatever its pacing rate."""

    def weight(self, number: int) -> int:
        return 100 if self.owners is None or number <= self.owners else 0


def node_config(material: Material, shape: Shape, number: int) -> str:
    """One node's configuration: identical with and without a cluster, except for `[cluster]`."""
    folder = material.folder
    text = f"""[node]
workers = 1

[logs]
access = "off"

[admin]
socket = "{folder}/node-{number}.sock"

[timeouts]
keep_alive_ms = 600_000

[[certificates]]
name = "ecdsa"
chain = "{material.certificate("ecdsa")}"
key = "{material.key("ecdsa")}"
"""
    for name, port, server_port in (
        ("web", HTTPS_PORT, BACKEND_PORT),
        ("stream", STREAM_PORT, SOURCE_PORT),
    ):
        text += f"""
[[listeners]]
name = "{name}"
address = "{ADDRESS}:{port}"
protocol = "https"
certificates = ["ecdsa"]
pool = "{name}"

[[pools]]
name = "{name}"
keep_alive_idle_max = {2 * BUCKETS}
keep_alive_idle_ms = 600_000

[[pools.servers]]
address = "{SERVER}:{server_port}"
"""
    return text + (cluster_table(folder, shape, number) if shape.clustered else "")


def cluster_table(folder: Path, shape: Shape, number: int) -> str:
    text = f"""
[cluster]
name = "bench"
node = {number}
key_file = "{folder}/cluster.key"
addresses = ["{ADDRESS}"]
server_source = ["{SOURCE}"]
inside_interface = "in"
outside_interface = "out"
witness = ["{SWITCH[1]}", "{SWITCH[0]}"]
backups = 1
timing = "virtual_machine"
flows_max = {FLOWS_MAX}
port = {CLUSTER_PORT}
weight = {shape.weight(number)}
"""
    for node in range(1, shape.nodes + 1):
        text += f"""
[[cluster.nodes]]
number = {node}
inside = "{inside(node)}"
outside = "{outside(node)}"
"""
    return text


@contextmanager
def allowed(congestion_control: str) -> Iterator[None]:
    """Allows a congestion control for all processes, so that network namespaces can start with it."""
    before = ALLOWED.read_text()
    if congestion_control not in before.split():
        ALLOWED.write_text(f"{before.strip()} {congestion_control}")
    try:
        yield
    finally:
        ALLOWED.write_text(before)


class UnixConnection(http.client.HTTPConnection):
    """HTTP over the admin socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("evergate", timeout=5)
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self.path))


@dataclass
class Node:
    """A running node."""

    number: int
    child: Child
    socket: Path

    def status(self) -> dict[str, Any]:
        """Output of `evergate cluster status --json`."""
        return json.loads(self.get("/v1/cluster"))

    def get(self, path: str) -> bytes:
        """An answer of the admin API."""
        connection = UnixConnection(self.socket)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            body = response.read()
        finally:
            connection.close()
        if response.status != 200:
            raise BenchError(f"node {self.number}: {path}: {response.status} {body[:200]!r}")
        return body


class World:
    """Two networks with a client, a server, and nodes: `with World(...) as world`."""

    def __init__(
        self, children: Children, folder: Path, evergate: Path, shape: Shape, core: int | None, rest: int | None
    ) -> None:
        self.children = children
        self.material = Material(folder, BACKEND_PORT, MARKED_PORT, SERVER)
        self.evergate = evergate
        self.shape = shape
        self.core = core
        self.rest = rest
        self.nodes: list[Node] = []
        self._mine: list[Child] = []
        self._namespaces: list[str] = []

    def __enter__(self) -> Self:
        try:
            self._build()
            (self.material.folder / "cluster.key").write_text(secrets.token_hex(32) + "\n")
            (self.material.folder / "cluster.key").chmod(0o600)
            config = self.material.folder / "cluster-backend.conf"
            config.write_text(backend_config(self.material))
            command = ["nginx", "-p", str(self.material.folder), "-c", str(config)]
            self.run("server", "backend", command, self.rest, forks=1)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the processes inside, then removes the namespaces."""
        for child in self._mine:
            if child.process.poll() is None and child.name.startswith("node"):
                child.process.kill()  # TERM would first hand off its connections
            self.children.stop(child)
        for name in self._namespaces:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
        self._mine, self._namespaces, self.nodes = [], [], []

    def _build(self) -> None:
        remove_leftovers()
        for host in ("switch", "client", "server", *self._hosts()):
            name = self._name(host)
            ip("netns", "add", name)
            self._namespaces.append(name)
            self._ip(host, "link set lo up")
        # A switch has no packet filter, whose cost would be charged to the sender.
        for name in FILTERS_OF_BRIDGES:
            with suppress(BenchError):  # kernels without them need no change
                self._sysctl("switch", f"net.bridge.{name}", "0")
        for bridge, address in (("in", SWITCH[0]), ("out", SWITCH[1])):
            self._ip("switch", f"link add {bridge} type bridge")
            self._ip("switch", f"addr add {address}/24 dev {bridge}")
            self._ip("switch", f"link set {bridge} up")
        self._plug("client", "out", CLIENT, 250)
        self._plug("server", "in", SERVER, 250)
        for number, host in enumerate(self._hosts(), 1):
            self._plug(host, "in", inside(number), number)
            self._plug(host, "out", outside(number), number)
        if not self.shape.clustered:
            self._ip("node1", f"addr add {ADDRESS}/32 dev lo")
        if self.shape.burst_bytes:
            self._ip("server", f"link set in gso_max_size {self.shape.burst_bytes}")
        # As many ports as a client of a load test needs: all its connections come from one address.
        self._sysctl("client", "net.ipv4.ip_local_port_range", "1024 65000")
        if self.shape.congestion_control:
            with allowed(self.shape.congestion_control):
                for host in ("client", "server", *self._hosts()):
                    self._sysctl(host, "net.ipv4.tcp_congestion_control", self.shape.congestion_control)

    def _hosts(self) -> list[str]:
        return [f"node{number}" for number in range(1, self.shape.nodes + 1)]

    def _plug(self, host: str, card: str, address: str, number: int) -> None:
        """A card of `host` on one of the bridges."""
        port = f"{card}{number}"
        mac = f"02:00:00:00:{int(card == 'out'):02x}:{number:02x}"
        peer = f"peer name {port} netns {self._name('switch')}"
        self._ip(host, f"link add {card} address {mac} type veth {peer}")
        self._ip("switch", f"link set {port} master {card}")
        self._ip("switch", f"link set {port} up")
        self._ip(host, f"link set {card} up")
        self._ip(host, f"addr add {address}/24 dev {card}")

    def _name(self, host: str) -> str:
        return f"{PREFIX}{os.getpid()}-{host}"

    def _ip(self, host: str, arguments: str) -> None:
        ip("-n", self._name(host), *arguments.split())

    def _sysctl(self, host: str, name: str, value: str) -> None:
        path = f"/proc/sys/{name.replace('.', '/')}"
        result = subprocess.run(
            [*self.within(host), "sh", "-c", f"echo {value} > {path}"], capture_output=True, check=False
        )
        if result.returncode != 0:
            raise BenchError(f"{name} cannot be set in {host}: {result.stderr.decode().strip()}")

    def within(self, host: str) -> list[str]:
        """The prefix of a command that runs at a host."""
        return ["ip", "netns", "exec", self._name(host)]

    def run(self, host: str, name: str, command: list[str], core: int | None, forks: int = 0) -> Child:
        """Starts a program at a host; it ends with this world at the latest."""
        child = self.children.start(name, [*self.within(host), *command], core, (), forks)
        self._mine.append(child)
        return child

    def adopt(self, child: Child) -> Child:
        self._mine.append(child)
        return child

    def start_node(self, number: int, core: int | None) -> Node:
        config = self.material.folder / f"node-{number}.toml"
        config.write_text(node_config(self.material, self.shape, number))
        command = [*WITH_BPF, str(self.evergate), "run", str(config)]
        # A node of a cluster has a second process, which waits for the end of the first.
        child = self.run(f"node{number}", f"node{number}", command, core, int(self.shape.clustered))
        node = Node(number, child, self.material.folder / f"node-{number}.sock")
        self.nodes.append(node)
        return node

    def start(self) -> None:
        """All nodes: the first on the proxies' core, the others beside the load. Returns when they are one cluster."""
        for number in range(1, self.shape.nodes + 1):
            self.start_node(number, self.core if number == 1 else self.rest)
        self.settle()

    def settle(self) -> list[dict[str, Any]]:
        """Waits until the remaining nodes are one cluster, and each bucket has its backup and the intended owner."""
        deadline = time.monotonic() + SETTLE_TIMEOUT_S
        found: list[dict[str, Any]] = []
        while time.monotonic() < deadline:
            for node in self.nodes:
                if node.child.process.poll() is not None:
                    raise BenchError(f"{node.child.name} ended: {node.child.log_tail()}")
            with suppress(OSError, http.client.HTTPException):
                if not self.shape.clustered:
                    self.nodes[0].get("/healthz")
                    return []
                found = [node.status() for node in self.nodes]
                if settled(found, self.shape):
                    return found
            time.sleep(0.1)
        seen = "; ".join(f"node {status['node']}: {brief(status)}" for status in found)
        raise BenchError(f"the cluster did not settle within {SETTLE_TIMEOUT_S:.0f} s: {seen or 'no answer'}")

    def unplug(self, number: int) -> None:
        """Both cards of a node lose their network at once."""
        for card in ("out", "in"):
            self._ip("switch", f"link set {card}{number} down")

    def bytes_of(self, port: str) -> int:
        """Bytes that a card of a node has sent and received, all headers included."""
        script = f"cat /sys/class/net/{port}/statistics/[rt]x_bytes"
        command = [*self.within("switch"), "sh", "-c", script]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode != 0:
            raise BenchError(f"counters of {port} cannot be read: {result.stderr.strip()}")
        return sum(int(value) for value in result.stdout.split())


def settled(found: list[dict[str, Any]], shape: Shape) -> bool:
    """Whether these nodes are all in one view, own all buckets by their weights, and have a backup of each."""
    members = [status["node"] for status in found]
    for status in found:
        buckets, view = status["buckets"], status["view"]
        if status["phase"] != "active" or not view or sorted(view["members"]) != members:
            return False
        if buckets["unowned"] or buckets["recovering"] or buckets["syncing"]:
            return False
        if buckets["without_backup"] and len(found) > 1:
            return False
        if (buckets["owned"] == 0) != (shape.weight(status["node"]) == 0):
            return False
    if shape.owners is None and max(s["buckets"]["owned"] for s in found) > 1.2 * BUCKETS / len(found):
        return False
    epochs = {status["view"]["epoch"] for status in found}
    return len(epochs) == 1 and sum(status["buckets"]["owned"] for status in found) == BUCKETS


def brief(status: dict[str, Any]) -> str:
    members = status["view"]["members"] if status["view"] else None
    return f"{status['phase']}, members {members}, buckets {status['buckets']}"


def changes_between(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> str | None:
    """A change of the cluster in between that no load should cause, if any."""
    for old, new in zip(before, after, strict=True):
        for count in ("views", "fenced", "state_dropped", "failovers", "handoffs", "channels_lost", "connections_lost"):
            if new["counts"][count] != old["counts"][count]:
                return f"node {new['node']}: {count} went from {old['counts'][count]} to {new['counts'][count]}"
    return None


def ip(*arguments: str) -> str:
    try:
        result = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError as missing:
        raise BenchError("ip is missing: install iproute2") from missing
    if result.returncode != 0:
        raise BenchError(f"ip {' '.join(arguments)}: {result.stderr.strip()}")
    return result.stdout


def remove_leftovers() -> None:
    """Namespaces of runs that were killed."""
    for line in ip("netns", "list").splitlines():
        name = line.split()[0]
        match = re.fullmatch(rf"{PREFIX}(\d+)-\w+", name)
        if match and not Path(f"/proc/{match[1]}").exists():
            ip("netns", "del", name)
