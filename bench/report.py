"""Environment of a run, and its table and files."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from pathlib import Path

from cases import AIMS, Aim
from children import BenchError
from measure import Row
from runners import Record
from stack import BEFORE

COMMANDS = {
    "nginx": ["nginx", "-v"],
    "haproxy": ["haproxy", "-v"],
    "h2load": ["h2load", "--version"],
    "wrk": ["wrk", "-v"],
    "openssl": ["openssl", "version"],
    "curl": ["curl", "--version"],
}


def environment(evergate: Path) -> dict[str, str]:
    """CPU, kernel, versions and other conditions of a figure."""
    model = next(
        (line.split(":", 1)[1].strip() for line in lines("/proc/cpuinfo") if line.startswith("model name")),
        "",
    )
    found = {
        "cpu": f"{model}, {os.cpu_count()} cores",
        "kernel": platform.release(),
        "load average at start": f"{os.getloadavg()[0]:.1f}",
        "evergate": f"{evergate}{commit()}",
    }
    for name, command in COMMANDS.items():
        found[name] = first_line(command)
    return found


def congestion_control() -> str:
    """The initial congestion control of this network namespace's connections."""
    return " ".join(lines("/proc/sys/net/ipv4/tcp_congestion_control"))


def lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


def first_line(command: list[str]) -> str:
    """The version line of a program; some print it on standard error, and `wrk -v` ends with status 1."""
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError as missing:
        raise BenchError(f"{command[0]} is missing: run `scripts/setup bench`") from missing
    return (
        (result.stdout + result.stderr)
        .strip()
        .splitlines()[0]
        .removeprefix("nginx version: ")
        .split(" (")[0]
        .split(" Copyright")[0]
    )


def commit() -> str:
    """The revision, if the source is a git repository."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return ""
    return f" at {result.stdout.strip()}" if result.returncode == 0 else ""


def verdict(aim: Aim, rows: list[Row]) -> tuple[bool, str]:
    """Whether a row's aim is met against the better of its peers, and the aim as text."""
    parts, met = [], True
    if aim.ratio is not None:
        better = max(row.ratio for row in rows if row.ratio is not None)
        met = better <= aim.ratio
        parts.append(f"<= {aim.ratio:.2f}x")
    if aim.ratio_min is not None:
        worst = min(row.ratio for row in rows if row.ratio is not None)
        met = met and worst >= aim.ratio_min
        parts.append(f">= {aim.ratio_min:.2f}x")
    if aim.value is not None:
        met = met and rows[0].ours <= aim.value
        parts.append(f"<= {aim.value:g}")
    return met, " and ".join(parts)


def table(rows: list[Row]) -> str:
    """One line per row name."""
    header = f"{'row':<40} {'unit':<15} {'ours':>10}   {'peers (ratio)':<44} {'aim':<18} result"
    out = [header, "-" * len(header)]
    for name in dict.fromkeys(row.name for row in rows):
        same = [row for row in rows if row.name == name]
        peers = ", ".join(
            f"{row.peer} {number(row.peer_value)} ({row.ratio:.2f}x)"
            for row in same
            if row.peer_value is not None and row.ratio is not None
        )
        aim, result = "", ""
        if name in AIMS and same[0].peer != BEFORE:
            met, aim = verdict(AIMS[name], same)
            result = "met" if met else "MISSED"
        out.append(
            f"{name:<40} {same[0].unit:<15} {number(same[0].ours):>10}   {peers:<44} {aim:<18} {result}".rstrip()
        )
    return "\n".join(out)


def number(value: float) -> str:
    size = abs(value)
    if 0 < size < 0.01:
        return f"{value:.2g}"
    return f"{value:,.0f}" if size >= 1000 else f"{value:.1f}" if size >= 10 else f"{value:.3f}"


def save(path: Path, record: Record, where: dict[str, str], settings: dict[str, object]) -> None:
    """Rows to `path`; environment, notes and every sample to `details.json`, and figures, beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([row.as_json() for row in record.rows], indent=1) + "\n")
    details = {"environment": where, "settings": settings, "notes": record.notes, "samples": record.samples}
    (path.parent / "details.json").write_text(json.dumps(details, indent=1) + "\n")
    for name, figure in record.figures.items():
        (path.parent / f"{name}.svg").write_text(figure)
