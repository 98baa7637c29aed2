"""The backend, the proxies in front of it, certificates and bodies, all in one temporary folder on free ports."""

from __future__ import annotations

import hashlib
import os
import subprocess
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import audited
from children import BenchError, Child, Children, free_ports
from configs import (
    CERTIFICATES,
    ECHO_LISTENERS,
    LARGE_BODIES,
    LISTENERS,
    NGINX_STREAM,
    PASSED_THROUGH,
    PASSTHROUGH_LISTENERS,
    SMALL_BODIES,
    STREAM_LISTENERS,
    Material,
    Ports,
    Tuning,
    backend_config,
    evergate_config,
    haproxy_config,
    nginx_config,
)
from load import Target, Tools

SIZES = {"/1k": 1024, "/100k": 100_000, "/10m": 10_000_000}
UPLOAD = "/upload"
UPLOADED = "/10m"
ROOT = Path(__file__).resolve().parent.parent
# HAProxy with unconditional splicing: rows of its own, so that `haproxy` means the same proxy everywhere.
FORCED_SPLICE = "haproxy_splice"
# Another build of evergate. It has no aims: its rows show the cost of a change.
BEFORE = "before"


@dataclass(frozen=True)
class Options:
    """Options of the command line."""

    evergate: Path
    rounds: int
    seconds: float
    idle_connections: int
    proxy_core: int | None
    load_core: int | None
    cluster_connections: int = 10_000
    """Connections that exist when their node is killed ..."""
    cluster_transfers: int = 200
    """... of which this number transfer."""
    before: Path | None = None
    """Another build of evergate, in place of the peers."""

    @property
    def own_tool(self) -> Path:
        """The clients and the echo server, which `make bench` builds beside the binary of this tree."""
        built = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release" / "evergate-bench"
        return built.resolve()


@dataclass(frozen=True)
class Contender:
    """A running proxy under a name of the results."""

    label: str
    child: Child
    ports: Ports

    folder: Path

    def target(self, listener: str, path: str) -> Target:
        upload = self.folder / f"{UPLOADED[1:]}.bin" if path == UPLOAD else None
        size = SIZES.get(UPLOADED if upload else path, SIZES["/1k"])
        if listener in PASSTHROUGH_LISTENERS:
            return Target(self.ports[listener], path, True, size, name=PASSED_THROUGH)
        return Target(self.ports[listener], path, listener in CERTIFICATES, size, upload=upload)


class Stack:
    """Starts and ends the programs of a case."""

    def __init__(self, folder: Path, children: Children, options: Options) -> None:
        self.folder = folder
        self.children = children
        self.options = options
        self.tools = Tools(children, folder, options.load_core, own=options.own_tool)
        backend, marked, tls, echo_http, echo_tcp = free_ports(5)
        self.material = Material(folder, backend, marked, tls=tls, echo_http=echo_http, echo_tcp=echo_tcp)
        self.hashes = {path: self._make_body(path, size) for path, size in SIZES.items()}
        make_certificate(folder, "ecdsa", ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"])
        make_certificate(folder, "rsa", ["-newkey", "rsa:2048"])
        self.backend = self._start(
            "backend",
            ["nginx", "-p", str(folder), "-c"],
            backend_config(self.material),
            [backend, marked, tls],
            True,
        )
        self.backends = [self.backend]

    def _make_body(self, path: str, size: int) -> str:
        body = os.urandom(size)
        (self.folder / f"{path[1:]}.bin").write_bytes(body)
        return hashlib.sha256(body).hexdigest()

    def _start(
        self, name: str, command: list[str], config: str, ports: list[int], backend: bool = False
    ) -> Child:
        path = self.folder / f"{name}.conf"
        path.write_text(config)
        core = self.options.load_core if backend else self.options.proxy_core
        forks = 1 if command[0] == "nginx" else 0
        return self.children.start(name, [*command, str(path)], core, ports, forks)

    def evergate(
        self,
        rules: str = "",
        label: str = "evergate",
        listeners: tuple[str, ...] = LISTENERS,
        audit: str = "",
        binary: Path | None = None,
    ) -> Contender:
        ports = make_ports(listeners)
        config = evergate_config(self.material, ports, rules, audit)
        command = [str(binary or self.options.evergate), "run"]
        child = self._start(label, command, config, list(ports.by_listener.values()))
        return Contender(label, child, ports, self.folder)

    def haproxy(
        self,
        rules: str = "",
        label: str = "haproxy",
        listeners: tuple[str, ...] = LISTENERS,
        tuning: Tuning = SMALL_BODIES,
    ) -> Contender:
        ports = make_ports(listeners)
        config = haproxy_config(self.material, ports, tuning, rules)
        child = self._start(label, ["haproxy", "-db", "-f"], config, list(ports.by_listener.values()))
        return Contender(label, child, ports, self.folder)

    def nginx(
        self, tuning: Tuning = SMALL_BODIES, listeners: tuple[str, ...] = LISTENERS
    ) -> Contender:
        """Without the package of its stream module nginx does not relay TCP, and those rows have HAProxy only."""
        able = tuple(name for name in listeners if name not in STREAM_LISTENERS or NGINX_STREAM.exists())
        ports = make_ports(able)
        config = nginx_config(self.material, ports, tuning)
        child = self._start(
            "nginx", ["nginx", "-p", str(self.folder), "-c"], config, list(ports.by_listener.values())
        )
        return Contender("nginx", child, ports, self.folder)

    def proxies(self, listener: str, bulk: bool) -> list[Contender]:
        """Evergate and its peers that have the listener."""
        tuning = LARGE_BODIES if bulk else SMALL_BODIES
        listeners = LISTENERS
        if listener in ECHO_LISTENERS:
            listeners = ECHO_LISTENERS
            self._start_echo()
        elif listener in PASSTHROUGH_LISTENERS:
            listeners = PASSTHROUGH_LISTENERS
        if self.options.before:
            return [self.evergate(listeners=listeners), self.before(listeners)]
        found = [
            self.evergate(listeners=listeners),
            self.nginx(tuning, listeners),
            self.haproxy(listeners=listeners, tuning=tuning),
        ]
        if bulk and listener in STREAM_LISTENERS:
            forced = Tuning(bulk, force_splice=True)
            found.append(self.haproxy(label=FORCED_SPLICE, listeners=listeners, tuning=forced))
        return [contender for contender in found if listener in contender.ports]

    def before(self, listeners: tuple[str, ...] = LISTENERS) -> Contender:
        """The other build of evergate."""
        return self.evergate(label=BEFORE, listeners=listeners, binary=self.options.before)

    def audited(self) -> Contender:
        """Evergate whose TLS listeners are audited, and a Recorder that acknowledges everything."""
        table = audited.table(self.folder)
        (self.folder / "feed.sock").unlink(missing_ok=True)
        command = [audited.__file__, str(self.folder / "feed.sock")]
        self.children.start("recorder", command, self.options.load_core, [])
        return self.evergate(label="evergate_audited", audit=table)

    def _start_echo(self) -> None:
        """The echo server, once."""
        if len(self.backends) > 1:
            return
        ports = [self.material.echo_tcp, self.material.echo_http]
        command = [self.tools.own_command(), "serve", *(str(port) for port in ports)]
        self.backends.append(self.children.start("echo", command, self.options.load_core, ports))

    def stop_proxies(self) -> None:
        """Ends everything except the backends."""
        for child in self.children.live():
            if child not in self.backends:
                self.children.stop(child)

    def check(self, contender: Contender, listener: str, path: str) -> str:
        """Checks bytes before a case is measured, and returns which. Echo clients check theirs all the time."""
        if path == UPLOAD:
            self.check_upload(contender, listener)
            return "uploads equal"
        if listener in ECHO_LISTENERS:
            return "echoes equal"
        self.check_bodies(contender, listener, path)
        return "bodies equal"

    def check_upload(self, contender: Contender, listener: str) -> None:
        """Sends a body twice over one connection; the echo server answers with its hash."""
        target = contender.target(listener, UPLOAD)
        url = replace(target, path="/sha256").url
        command = ["curl", "--silent", "--show-error", "--fail", "--insecure", "--http1.1", "--noproxy", "*"]
        command += ["--max-time", "20", "--header", "Expect:", "--data-binary", f"@{target.upload}", url, url]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode != 0:
            raise BenchError(f"{contender.label}: curl {url}: {result.stderr.strip()}{self._state(contender)}")
        if result.stdout != self.hashes[UPLOADED] * 2:
            raise BenchError(f"{contender.label}: an upload differs: {result.stdout[:200]}")

    def check_bodies(self, contender: Contender, listener: str, path: str) -> None:
        """Fetches a body twice over one connection; any byte that differs fails the case."""
        target = contender.target(listener, path)
        outputs = [self.folder / f"body-{number}" for number in range(2)]
        command = ["curl", "--silent", "--show-error", "--fail", "--insecure", "--http1.1", "--noproxy", "*"]
        command += ["--max-time", "20"]
        command += ["--connect-to", f"{target.name}::{target.host}:"] if target.name else []
        for output in outputs:
            output.unlink(missing_ok=True)
            command += ["--output", str(output), target.url]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode != 0:
            raise BenchError(
                f"{contender.label}: curl {target.url}: {result.stderr.strip()}{self._state(contender)}"
            )
        for output in outputs:
            body = output.read_bytes()
            if hashlib.sha256(body).hexdigest() != self.hashes[path]:
                raise BenchError(
                    f"{contender.label}: the body of {target.url} differs ({len(body)} bytes came)"
                )

    def check_route(self, contender: Contender, path: str, marked: bool) -> None:
        """Checks whether a request goes to the pool of its rule."""
        url = contender.target("http", path).url
        command = ["curl", "--silent", "--show-error", "--fail", "--noproxy", "*", "--max-time", "20"]
        command += ["--dump-header", "-", "--output", "/dev/null", url]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode != 0:
            raise BenchError(
                f"{contender.label}: curl {url}: {result.stderr.strip()}{self._state(contender)}"
            )
        if ("x-pool: marked" in result.stdout.lower()) != marked:
            raise BenchError(f"{contender.label}: {path} should {'' if marked else 'not '}match a rule")

    @staticmethod
    def _state(contender: Contender) -> str:
        with suppress(BenchError):
            contender.child.check()
            return ""
        return f" (its process is gone: {contender.child.log_tail()})"


def make_ports(listeners: tuple[str, ...]) -> Ports:
    return Ports(dict(zip(listeners, free_ports(len(listeners)))))


def make_certificate(folder: Path, name: str, key: list[str]) -> None:
    """A self-signed certificate as `.crt`, `.key` and, for HAProxy, both in one `.pem`."""
    certificate, private = folder / f"{name}.crt", folder / f"{name}.key"
    command = ["openssl", "req", "-x509", *key, "-noenc", "-days", "2", "-subj", f"/CN={PASSED_THROUGH}"]
    command += ["-addext", f"subjectAltName=DNS:{PASSED_THROUGH},IP:127.0.0.1"]
    command += ["-keyout", str(private), "-out", str(certificate)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise BenchError(f"openssl req failed: {result.stderr.strip()}")
    private.chmod(0o600)
    bundle = folder / f"{name}.pem"
    bundle.write_bytes(certificate.read_bytes() + private.read_bytes())
    bundle.chmod(0o600)
