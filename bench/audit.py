#!/usr/bin/env -S python3 -B
"""Audited capture beside tcpdump and dumpcap: `make audit-bench`. Rows `audit_*` go into results.json.

Each tool captures the same load from a cable between two namespaces into memory, in turns; the order changes with each
round. The CPU time is that of the tool's process, its ring's set-up of 256 MiB included. Needs root.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from children import BenchError
from measure import Row
from report import environment, table

ROOT = Path(__file__).resolve().parent.parent
BUILT = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release"
RING_MIB = 256
SETTLE_S = 1.2
STATEMENT = struct.Struct(">B B H Q 32s Q Q Q Q Q Q Q 32s 32s Q Q Q Q Q H H I")


@dataclass(frozen=True)
class Load:
    """Frames of `size` bytes in `flows` connections."""

    rate: int
    size: int
    flows: int = 2000


@dataclass(frozen=True)
class Sample:
    """Result of one tool in one round."""

    received: int
    written: int
    lost: int
    cpu_us_per_packet: float
    rate: float


class Cable:
    """Two namespaces and the cable between them."""

    def __init__(self) -> None:
        self.sender, self.receiver = f"eg-ab-t-{os.getpid()}", f"eg-ab-r-{os.getpid()}"

    def __enter__(self) -> Cable:
        for name in (self.sender, self.receiver):
            run("ip", "netns", "add", name)
        peer = ["peer", "name", "rx", "netns", self.receiver]
        run("ip", "link", "add", "name", "tx", "netns", self.sender, "type", "veth", *peer)
        for name, card in ((self.sender, "tx"), (self.receiver, "rx")):
            run("ip", "netns", "exec", name, "sysctl", "-qw", f"net.ipv6.conf.{card}.disable_ipv6=1")
            run("ip", "netns", "exec", name, "ethtool", "-K", card, "gro", "off", "gso", "off", "tso", "off")
            run("ip", "-n", name, "link", "set", "dev", card, "up")
            run("ip", "-n", name, "link", "set", "dev", "lo", "up")
        return self

    def __exit__(self, *_: object) -> None:
        for name in (self.sender, self.receiver):
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)

    def command(self, *arguments: str) -> list[str]:
        return ["nice", "-n", "-10", "ip", "netns", "exec", self.receiver, *arguments]

    def traffic(self, load: Load, seconds: float) -> list[str]:
        sender = [str(BUILT / "examples" / "evergate-traffic"), "tx", f"rate={load.rate}", f"seconds={seconds}"]
        command = ["nice", "-n", "-10", "ip", "netns", "exec", self.sender, *sender]
        return [*command, f"flows={load.flows}", f"bytes={load.size}"]

    def received(self) -> int:
        link = run("ip", "-n", self.receiver, "-s", "-j", "link", "show", "dev", "rx")
        return int(json.loads(link)[0]["stats64"]["rx"]["packets"])

    def send(self, load: Load, seconds: float, *before: str) -> dict[str, float]:
        done: dict[str, float] = json.loads(run(*before, *self.traffic(load, seconds)))
        return done


def run(*command: str) -> str:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise BenchError(f"{' '.join(command)}: {result.stderr.strip()}")
    return result.stdout


class Tools:
    """The contenders: their commands, and what they report."""

    def __init__(self, cable: Cable, folder: Path) -> None:
        self.cable, self.file, self.store = cable, folder / "capture", folder / "store"

    def command(self, tool: str) -> list[str]:
        record = [str(BUILT / "evergate-audit"), "record", "--interface", "rx", "--store", str(self.store)]
        file = str(self.file)
        commands = {
            "tcpdump": ["tcpdump", "-i", "rx", "-B", str(RING_MIB * 1024), "-w", file, "-Z", "root"],
            "dumpcap": ["dumpcap", "-q", "-i", "rx", "-B", str(RING_MIB), "-w", file],
            "raw": [str(BUILT / "examples" / "evergate-capture-raw"), "rx", file, f"mib={RING_MIB}"],
            "audited": [*record, "--ring", str(RING_MIB), "--json"],
            "half": [*record, "--ring", str(RING_MIB), "--json", "--part", "0/2"],
            "fanout": [*record, "--ring", str(RING_MIB), "--json", "--fanout", "2"],
        }
        return self.cable.command(*commands[tool])

    @staticmethod
    def written(tool: str, out: str, err: str) -> int:
        if tool in ("audited", "half", "fanout", "raw"):
            count = "written" if tool == "raw" else "packets"
            return int(json.loads(out.strip().splitlines()[-1])[count])
        pattern = r"(\d+) packets captured" if tool == "tcpdump" else r"'rx': (\d+)/"
        found = re.search(pattern, err)
        if found is None:
            raise BenchError(f"{tool}: no count in {err!r}")
        return int(found.group(1))

    def measure(self, tool: str, load: Load, seconds: float, is_pinned: bool = False) -> Sample:
        """Captures one load. Pinned: the tool on one core, the generator on the other."""
        self.file.unlink(missing_ok=True)
        shutil.rmtree(self.store, ignore_errors=True)
        before = self.cable.received()
        capture, send = (["taskset", "-c", core] if is_pinned else [] for core in ("1", "0"))
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            process = subprocess.Popen([*capture, *self.command(tool)], stdout=out, stderr=err)
            time.sleep(SETTLE_S)
            rate = self.cable.send(load, seconds, *send)["rate"]
            time.sleep(0.3)
            process.send_signal(signal.SIGINT)
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            out.seek(0)
            err.seek(0)
            written = self.written(tool, out.read(), err.read())
        received = self.cable.received() - before
        cpu_us = (usage.ru_utime + usage.ru_stime) * 1e6
        return Sample(received, written, received - written, cpu_us / max(1, written), rate)

    def highest_rate(self, tool: str, size: int, seconds: float) -> float:
        """Highest rate that the generator reached and of which the tool missed nothing, in packets a second.

        tcpdump misses packets at its end that no counter has: 1,000 packets or less count as none, for all tools.
        """
        best, step = 0.0, 60_000
        for rate in range(step, 10 * step, step):
            sample = self.measure(tool, Load(rate, size), seconds, is_pinned=True)
            print(f"peak {size} {tool}: {sample}", flush=True)
            if sample.lost > 1000:
                break
            best = max(best, sample.rate)
            if sample.rate < rate * 0.95:
                break  # the generator has no more
        return best


def sha256_us(size: int) -> float:
    """CPU time of SHA-256 over a packet's record by OpenSSL, in microseconds; the call itself is not counted."""
    count = 50_000

    def once(data: bytes) -> float:
        begin = time.process_time()
        for _ in range(count):
            hashlib.sha256(data).digest()
        return (time.process_time() - begin) / count * 1e6

    return once(b"x" * (size + 53)) - once(b"")


def latencies_ms(store: Path, seen: dict[Path, int]) -> list[float]:
    """Time from each new batch's first record to now, for receipts that came since the last look."""
    now_ns, found = time.time_ns(), []
    for path in (store / "segments").glob("*.proofs"):
        data = path.read_bytes()
        at = seen.get(path, 0)
        while at + 4 <= len(data) and at + 4 + (length := int.from_bytes(data[at : at + 4], "big")) <= len(data):
            first_ns = STATEMENT.unpack(data[at + 5 : at + 217])[8]
            found.append((now_ns - first_ns) / 1e6)
            at += 4 + length
        seen[path] = at
    return found


def checkpoint_ms(cable: Cable, folder: Path, load: Load, seconds: float, delay_ms: int) -> tuple[float, float]:
    """Median and p99 of the time from a batch's first record to its stored receipt."""
    master, store = folder / "master", folder / "store"
    for old in (master, store):
        shutil.rmtree(old, ignore_errors=True)
    master.mkdir()
    config, program = master / "master.toml", str(BUILT / "evergate-master")
    run(program, "--config", str(config), "init")
    recorder = run(str(BUILT / "evergate-audit"), "identity", "--store", str(store)).strip()
    text = config.read_text().replace("0.0.0.0:7443", "127.0.0.1:7443")
    config.write_text(f'{text}\n[[recorder]]\nname = "r"\nid = "{recorder}"\n')
    own = run(str(BUILT / "evergate-audit"), "identity", "--certificate", str(master / "master.pem")).strip()
    delay = ["--signer-delay", str(delay_ms)] if delay_ms else []
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    signer = subprocess.Popen(cable.command(program, "--config", str(config), *delay), **quiet)
    time.sleep(0.5)
    record = [str(BUILT / "evergate-audit"), "record", "--interface", "rx", "--store", str(store)]
    to_master = ["--ring", str(RING_MIB), "--master", "127.0.0.1", "--master-id", own]
    process = subprocess.Popen(cable.command(*record, *to_master), **quiet)
    time.sleep(SETTLE_S)
    seen: dict[Path, int] = {}
    latencies_ms(store, seen)
    sending = subprocess.Popen(cable.traffic(load, seconds), stdout=subprocess.DEVNULL)
    values: list[float] = []
    while sending.poll() is None:
        values += latencies_ms(store, seen)
        time.sleep(0.002)
    for child in (process, signer):
        child.send_signal(signal.SIGTERM)
        child.wait()
    values.sort()
    if not values:
        raise BenchError("no receipt came")
    return median(values), values[int(len(values) * 0.99)]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compares the Recorder with tcpdump and dumpcap on this machine.")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of which medians are taken (default 5)")
    parser.add_argument("--seconds", type=float, default=3.0, help="length of one load (default 3)")
    parser.add_argument("--rate", type=int, default=100_000, help="packets a second (default 100000)")
    parser.add_argument("--no-peak", action="store_true", help="leave out the search for the highest rate")
    parser.add_argument("--out", type=Path, default=ROOT / "target" / "bench" / "results.json")
    return parser.parse_args()


def rows_of_load(name: str, samples: dict[str, list[Sample]]) -> list[Row]:
    """Rows of CPU per packet: raw against tcpdump, audited against both."""
    value = {tool: median(sample.cpu_us_per_packet for sample in rounds) for tool, rounds in samples.items()}
    pairs = [("raw", "tcpdump"), ("audited", "dumpcap"), ("audited", "tcpdump")]
    return [
        Row(f"audit_{ours}_{name}", "us/packet", value[ours], peer, value[peer]) for ours, peer in pairs
    ]


def row_of_bound(samples: dict[str, list[Sample]], hashing_us: float) -> Row:
    """Audited capture against raw capture and 1.3 times SHA-256."""
    raw, audited = (median(sample.cpu_us_per_packet for sample in samples[tool]) for tool in ("raw", "audited"))
    return Row("audit_audited_1415", "us/packet", audited, "raw + 1.3 SHA-256", raw + 1.3 * hashing_us)


def rows_of_parts(samples: dict[str, list[Sample]]) -> list[Row]:
    """One of two Recorders on two machines, and two on one machine, against one Recorder of all packets."""
    value = {tool: median(s.cpu_us_per_packet for s in samples[tool]) for tool in ("half", "fanout", "audited")}
    whole = value["audited"]
    return [Row(f"audit_{tool}_1415", "us/packet", value[tool], "audited", whole) for tool in ("half", "fanout")]


def rows_of_peak(tools: Tools, details: dict[str, object], seconds: float) -> list[Row]:
    """Highest rates without loss: raw and audited against tcpdump and dumpcap."""
    rows = []
    for size in (1415, 200):
        best = {tool: tools.highest_rate(tool, size, seconds) for tool in ("tcpdump", "dumpcap", "raw", "audited")}
        details[f"peak_{size}"] = best
        for ours, peer in (("raw", "tcpdump"), ("audited", "tcpdump"), ("audited", "dumpcap")):
            rows.append(Row(f"audit_peak_{ours}_{size}", "packets/s", best[ours], peer, best[peer]))
    return rows


def main() -> int:
    options = arguments()
    rows: list[Row] = []
    details: dict[str, object] = {}
    with Cable() as cable, tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        folder = Path(name)
        tools = Tools(cable, folder)
        loads = {"1415": Load(options.rate, 1415), "200": Load(options.rate, 200)}
        loads["web"] = Load(options.rate, 600, 20_000)
        for title, load in loads.items():
            samples: dict[str, list[Sample]] = {}
            contenders = ["tcpdump", "dumpcap", "raw", "audited"] + (["half", "fanout"] if title == "1415" else [])
            for turn in range(options.rounds):
                for tool in contenders[turn % len(contenders) :] + contenders[: turn % len(contenders)]:
                    sample = tools.measure(tool, load, options.seconds)
                    samples.setdefault(tool, []).append(sample)
                    print(f"{title} {tool}: {sample}", flush=True)
            rows += rows_of_load(title, samples)
            details[title] = {tool: [asdict(sample) for sample in rounds] for tool, rounds in samples.items()}
            if title == "1415":
                details["sha256_us"] = hashing_us = sha256_us(1415)
                rows.append(row_of_bound(samples, hashing_us))
                rows += rows_of_parts(samples)
        for title, delay in (("", 0), ("_hsm_10", 100)):
            middle, p99 = checkpoint_ms(cable, folder, Load(70_000, 1415), options.seconds, delay)
            details[f"checkpoint{title}"] = {"median_ms": middle, "p99_ms": p99}
            rows.append(Row(f"audit_checkpoint_p99{title}", "ms", p99))
        save(options.out, rows, details)
        if not options.no_peak:
            rows += rows_of_peak(tools, details, options.seconds)
    save(options.out, rows, details)
    print(table(rows))
    return 0


def save(out: Path, rows: list[Row], details: dict[str, object]) -> None:
    """Replaces the rows of an earlier run."""
    out.parent.mkdir(parents=True, exist_ok=True)
    old = json.loads(out.read_text()) if out.exists() else []
    kept = [row for row in old if not row["name"].startswith("audit_")]
    out.write_text(json.dumps(kept + [row.as_json() for row in rows], indent=1) + "\n")
    details["environment"] = environment(BUILT / "evergate-audit")
    (out.parent / "audit-details.json").write_text(json.dumps(details, indent=1) + "\n")


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BenchError as error:
        sys.exit(f"audit bench: {error}")
