"""The load tools, from Debian packages except for `evergate-bench`, and their reports.

Each function runs one tool to its end and returns what was completed. A tool that reports an error, an unexpected
status or a short body fails the measurement, because a proxy that answers with errors is fast.
"""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from children import BenchError, Children, pinned

GRACE_S = 20.0
PACE_KEPT = 0.9  # the last operation ends after the load's time
LATE_MAX_S = 1.0
OPENED_EVERY_MS = 3  # no divisor of the 10 ms in which h2load sends due requests

# Offer of every client, so that all proxies do the same work. OpenSSL applies it to every tool linked with it.
OPENSSL_CLIENT = """
openssl_conf = start
[start]
ssl_conf = ssl
[ssl]
system_default = client
[client]
MinProtocol = TLSv1.3
Ciphersuites = TLS_AES_128_GCM_SHA256
Groups = X25519
"""


# h2load does not finish uploads of this size.
UPLOAD_SCRIPT = """
init = function(arguments)
  local file = assert(io.open(arguments[1], "rb"))
  wrk.method, wrk.body = "POST", file:read("*a")
  file:close()
end
"""


@dataclass(frozen=True)
class Done:
    """Completed work of a load."""

    operations: int
    body_bytes: int
    seconds: float
    latencies_us: tuple[int, ...] = ()


@dataclass(frozen=True)
class Target:
    """Destination of a load."""

    port: int
    path: str = "/1k"
    tls: bool = True
    body_bytes: int = 1024
    host: str = "127.0.0.1"
    name: str | None = None
    """Name in place of the address in URLs, and so in ClientHellos (SNI)."""
    upload: Path | None = None
    """The body of each request."""

    @property
    def url(self) -> str:
        scheme = "https" if self.tls else "http"
        return f"{scheme}://{self.name or self.host}:{self.port}{self.path}"


class Tools:
    """Runs load tools on their core."""

    def __init__(
        self,
        children: Children,
        folder: Path,
        core: int | None,
        within: Sequence[str] = (),
        own: Path = Path("evergate-bench"),
    ) -> None:
        self.children = children
        self.folder = folder
        self.core = core
        self.within = list(within)
        """Prefix of each command, which enters a network namespace."""
        self.own_binary = own
        settings = folder / "client.cnf"
        settings.write_text(OPENSSL_CLIENT)
        self.environment = {**os.environ, "OPENSSL_CONF": str(settings)}

    def own_command(self) -> str:
        """The path of `evergate-bench`."""
        if not self.own_binary.is_file():
            raise BenchError(f"{self.own_binary} is missing: `make bench` makes it")
        return str(self.own_binary)

    def keep_alive(
        self,
        target: Target,
        connections: int,
        seconds: float,
        paths: Path | None = None,
        rate: float | None = None,
    ) -> Done:
        """h2load over HTTP/1.1: `connections` that each send one request after the other.

        With `rate` the connections together send that many requests a second, and latencies are recorded. h2load sends
        the due requests of each connection every 10 ms. Connections opened at once would send as close together as
        their handshakes ended, so faster handshakes would cause larger bursts of requests. They are therefore opened at
        set intervals. `paths` is a file with URLs to use instead of the target's.
        """
        command = [
            "h2load",
            "--h1",
            "--threads=1",
            f"--clients={connections}",
        ]
        log = self.folder / "h2load.tsv"
        if rate is None:
            command += [f"--duration={round(seconds * 1000)}ms"]
        else:
            log.unlink(missing_ok=True)
            each = max(1, round(rate / connections * seconds))
            command += [f"--rps={rate / connections:g}", f"--requests={each * connections}"]
            command += ["--rate=1", f"--rate-period={OPENED_EVERY_MS}ms", f"--log-file={log}"]
        command += [f"--input-file={paths}"] if paths is not None else []
        command += ["--tls13-ciphers=TLS_AES_128_GCM_SHA256", "--groups=X25519"]
        command += [f"--connect-to={target.host}:{target.port}"] if target.name else []
        command += [target.url] if paths is None else [f"--base-uri={target.url}"]
        output, elapsed = self._run([command], seconds)
        done = parse_h2load(output[0], target.body_bytes)
        if rate is None:
            # Connections are set up within the first moments; the load's time is the requested one.
            return Done(done.operations, done.body_bytes, done.seconds or elapsed)
        opening_us = connections * OPENED_EVERY_MS * 1000
        latencies = read_latencies(log, opening_us)
        return Done(done.operations, done.body_bytes, done.seconds - opening_us / 1e6, latencies)

    def echo(self, target: Target, connections: int, message: int, seconds: float) -> Done:
        """`connections` that each send `message` bytes, wait until the echo is complete, and send the next; as
        WebSocket frames if the target has a path."""
        command = [self.own_command(), "echo", f"{target.host}:{target.port}", str(connections), str(message)]
        command += [f"{seconds:g}", *(["ws"] if target.path else []), *(["tls"] if target.tls else [])]
        output, _ = self._run([command], seconds)
        return parse_echo(output[0], message)

    def connections(self, target: Target, clients: int, seconds: float) -> Done:
        """`clients` that each open a connection, send one request, read until the server closes, and open the next;
        with TLS and SNI if the target has a name."""
        command = [self.own_command(), "fetch", f"{target.host}:{target.port}", str(clients), target.path]
        command += [str(target.body_bytes), f"{seconds:g}", *([target.name] if target.name else [])]
        output, _ = self._run([command], seconds)
        return parse_fetch(output[0], target.body_bytes)

    def upload(self, target: Target, connections: int, seconds: float) -> Done:
        """wrk over `connections` that each send the target's body, wait for the response, and send it again."""
        script = self.folder / "upload.lua"
        script.write_text(UPLOAD_SCRIPT)
        whole = max(1, math.ceil(seconds))
        command = ["wrk", "--threads", "1", "--connections", str(connections), "--duration", f"{whole}s"]
        command += ["--timeout", f"{GRACE_S:.0f}s", "--script", str(script), target.url, "--", str(target.upload)]
        output, elapsed = self._run([command], whole)
        return parse_wrk(output[0], elapsed, target.body_bytes)

    def closing(self, target: Target, connections: int, seconds: float) -> Done:
        """wrk with `Connection: close`: a connection per request, resumed with the last ticket."""
        whole = max(1, math.ceil(seconds))  # wrk takes whole seconds
        command = ["wrk", "--threads", "1", "--connections", str(connections), "--duration", f"{whole}s"]
        command += ["--header", "Connection: close", target.url]
        output, elapsed = self._run([command], whole)
        return parse_wrk(output[0], elapsed, target.body_bytes)

    def fresh(self, target: Target, clients: int, seconds: float) -> Done:
        """`clients` processes of `openssl s_time -new`: full handshake, request, response until the server closes."""
        whole = max(1, math.ceil(seconds))
        command = ["openssl", "s_time", "-new", "-tls1_3", "-time", str(whole)]
        command += ["-connect", f"{target.host}:{target.port}", "-www", target.path]
        outputs, elapsed = self._run([command] * clients, whole)
        connections = sum(parse_s_time(output, target.body_bytes) for output in outputs)
        return Done(connections, connections * target.body_bytes, elapsed)

    def paced(self, target: Target, per_s: float, processes: int, seconds: float) -> Done:
        """Full handshakes at a rate, each with one request; less than that rate fails the measurement."""
        command = ["python3", "-B", str(Path(__file__).with_name("paced.py")), target.host, str(target.port)]
        output, _ = self._run([[*command, f"{per_s:g}", f"{seconds:g}", str(processes)]], seconds)
        found = json.loads(output[0])
        done, took = int(found["done"]), float(found["seconds"])
        if done < PACE_KEPT * per_s * took or found["late_s"] > LATE_MAX_S:
            late = f"the latest began {found['late_s'] * 1e3:.0f} ms late"
            raise BenchError(f"{done / took:,.0f} of {per_s:,.0f} handshakes/s were reached; {late}")
        return Done(done, done * target.body_bytes, took)

    def _run(self, commands: list[list[str]], seconds: float) -> tuple[list[str], float]:
        started = time.monotonic()
        deadline = started + seconds + GRACE_S
        running = []
        try:
            for command in commands:
                process = subprocess.Popen(
                    pinned(self.within + command, self.core),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    env=self.environment,
                    start_new_session=True,
                )
                running.append(self.children.adopt(command[0], process))
            outputs = []
            for child in running:
                try:
                    raw, _ = child.process.communicate(timeout=max(0.1, deadline - time.monotonic()))
                except subprocess.TimeoutExpired as expired:
                    raise BenchError(f"{child.name} did not end {GRACE_S:.0f} s after its time") from expired
                text = raw.decode(errors="replace")
                if child.process.returncode != 0:
                    status = child.process.returncode
                    raise BenchError(f"{child.name} ended with status {status}: {text.strip()[-300:]}")
                outputs.append(text)
            return outputs, time.monotonic() - started
        finally:
            for child in running:
                self.children.stop(child)


def parse_h2load(text: str, body_bytes: int) -> Done:
    """Reads h2load's summary; any failed request is an error."""
    requests = re.search(
        r"requests: (\d+) total.*?(\d+) succeeded, (\d+) failed, (\d+) errored, (\d+) timeout", text
    )
    statuses = re.search(r"status codes: (\d+) 2xx, (\d+) 3xx, (\d+) 4xx, (\d+) 5xx", text)
    data = re.search(r"\((\d+)\) data", text)
    seconds = re.search(r"finished in ([0-9.]+)(us|ms|s|m)\b", text)
    if not (requests and statuses and data and seconds):
        raise BenchError(f"h2load said something unexpected: {text.strip()[-300:]}")
    succeeded = int(requests[2])
    problems = [int(requests[group]) for group in (3, 4, 5)] + [int(statuses[group]) for group in (2, 3, 4)]
    if any(problems) or succeeded == 0:
        raise BenchError(f"h2load saw requests that failed: {requests[0]}; {statuses[0]}")
    read = int(data[1])
    if read < succeeded * body_bytes:
        raise BenchError(f"h2load read {read} bytes for {succeeded} bodies of {body_bytes}")
    unit_s = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0}[seconds[2]]
    return Done(succeeded, read, float(seconds[1]) * unit_s)


def parse_echo(text: str, message: int) -> Done:
    """Reads the report of `evergate-bench echo`, which ends with an error when a byte differs."""
    found = json.loads(text)
    echoes, took = int(found["echoes"]), float(found["seconds"])
    if echoes == 0:
        raise BenchError("no message came back")
    return Done(echoes, echoes * message, took)


def parse_fetch(text: str, body_bytes: int) -> Done:
    """Reads the report of `evergate-bench fetch`, which ends with an error when a response is not as expected."""
    found = json.loads(text)
    connections, took = int(found["connections"]), float(found["seconds"])
    if connections == 0:
        raise BenchError("no connection was served")
    return Done(connections, connections * body_bytes, took)


def parse_wrk(text: str, elapsed_s: float, body_bytes: int) -> Done:
    """Reads wrk's summary; socket errors and other statuses are errors."""
    total = re.search(r"(\d+) requests in ([0-9.]+)(ms|s|m)", text)
    if not total or int(total[1]) == 0:
        raise BenchError(f"wrk completed nothing: {text.strip()[-300:]}")
    errors = re.search(r"Socket errors:.*|Non-2xx or 3xx responses:.*", text)
    if errors:
        raise BenchError(f"wrk: {total[1]} requests, {errors[0].strip()}")
    requests = int(total[1])
    seconds = float(total[2]) * {"ms": 1e-3, "s": 1.0, "m": 60.0}[total[3]]
    return Done(requests, requests * body_bytes, seconds or elapsed_s)


def parse_s_time(text: str, body_bytes: int) -> int:
    """Reads the number of connections from `openssl s_time`; responses must be at least a body long."""
    total = re.search(r"(\d+) connections in \d+ real seconds, (\d+) bytes read per connection", text)
    if not total or int(total[1]) == 0:
        raise BenchError(f"openssl s_time completed nothing: {text.strip()[-300:]}")
    if int(total[2]) < body_bytes:
        raise BenchError(
            f"openssl s_time read {total[2]} bytes per connection, less than the body's {body_bytes}"
        )
    return int(total[1])


def read_latencies(log: Path, edge_us: int) -> tuple[int, ...]:
    """Latencies of one h2load run in microseconds, sorted. Requests within `edge_us` of the first and of the last
    are left out, because not all connections are open then. Columns: start, status, latency."""
    rows = [[int(column) for column in line.split("\t")[:3]] for line in log.read_text().splitlines()]
    begun = [start for start, _, _ in rows]
    first, last = min(begun, default=0) + edge_us, max(begun, default=0) - edge_us
    return tuple(sorted(took for start, status, took in rows if status == 200 and first <= start <= last))


def percentile(ordered: tuple[int, ...], share: float) -> int:
    """The value below which `share` of the sorted values lie (nearest rank)."""
    if not ordered:
        raise BenchError("no latencies were recorded")
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
