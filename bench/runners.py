"""Runner of cases: checks first, then interleaved rounds, then medians."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median

import idle
from cases import AUDITED_CASE, KEEP_ALIVE_CONNECTIONS, RELAY_CASES, RULES_CASE, RelayCase
from children import BenchError, pinned
from load import Done, Target
from measure import Row, Sample, measure, rows_of
from rulesets import LARGE, SMALL, evergate_rules, haproxy_acls, haproxy_map, haproxy_map_rule, probes
from stack import FORCED_SPLICE, Contender, Stack
from witness import Witness

WARM_UP_S = 1.0
EQUAL_LOAD_SHARE = 0.4
EQUAL_LOAD_REACHED = 0.9  # connections are set up within the load's time
# Row, contender, and the name of the same contender with few rules.
RULES_ROWS = (
    (RULES_CASE, "evergate", f"evergate_{SMALL}"),
    (f"{RULES_CASE}_haproxy_acl", "haproxy_acl", f"haproxy_{SMALL}"),
    (f"{RULES_CASE}_haproxy_map", "haproxy_map", f"haproxy_{SMALL}"),
)

Samples = dict[str, list[Sample]]


@dataclass
class Record:
    """Record of a run: rows, and their samples and notes."""

    rows: list[Row] = field(default_factory=list)
    samples: dict[str, dict[str, list[dict[str, object]]]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    figures: dict[str, str] = field(default_factory=dict)
    """SVG by name."""

    def keep(self, name: str, samples: Samples) -> None:
        self.samples[name] = {
            label: [sample.as_json() for sample in rounds] for label, rounds in samples.items()
        }
        for label, rounds in samples.items():
            hidden = median(sample.hidden for sample in rounds)
            if hidden > 0.03:
                self.note(
                    f"{name}: ksoftirqd used {hidden:.0%} of {label}'s CPU time, which no process is charged for"
                )

    def note(self, text: str) -> None:
        self.notes.append(text)
        log_line(f"    note: {text}")


def log_line(text: str) -> None:
    print(text, flush=True)


def interleave(
    stack: Stack,
    contenders: list[Contender],
    load: Callable[[Contender], Callable[[], Done]],
    show: Callable[[Sample], str],
) -> Samples:
    """Rounds in turn, so that a slow minute of the machine affects all contenders."""
    samples: Samples = {contender.label: [] for contender in contenders}
    for number in range(stack.options.rounds):
        # The second of two runs often differs: with each round the order turns.
        for contender in contenders if number % 2 == 0 else contenders[::-1]:
            sample = measure(contender.child, load(contender))
            samples[contender.label].append(sample)
            log_line(f"  round {number + 1}/{stack.options.rounds}  {contender.label:<18} {show(sample)}")
    return samples


def run_relay(stack: Stack, case: RelayCase, record: Record) -> None:
    """One load through evergate and each peer: CPU time, throughput and, if requested, p99 at equal load."""
    contenders = stack.proxies(case.listener, case.bulk)
    seconds = stack.options.seconds
    for contender in contenders:
        checked = stack.check(contender, case.listener, case.path)
        log_line(f"  checked  {contender.label:<18} {checked}{warm_up(stack, contender, case)}")

    def load(contender: Contender) -> Callable[[], Done]:
        return lambda: case.load(stack.tools, contender.target(case.listener, case.path), seconds)

    show = show_bulk if case.bulk else lambda sample: show_requests(sample, case.operation)
    samples = interleave(stack, contenders, load, show)
    record.keep(case.name, samples)
    forced = samples.pop(FORCED_SPLICE, None)
    add_case_rows(record, case, case.name, samples)
    if forced:
        pair = {"evergate": samples["evergate"], "haproxy": forced}
        add_case_rows(record, case, f"{case.name}_forced_splice", pair)
    if case.p99:
        run_equal_load(stack, case, contenders, samples, record)


def add_case_rows(record: Record, case: RelayCase, name: str, samples: Samples) -> None:
    """The cost and the throughput of one load."""
    if case.bulk:
        add_rows(record, name, "CPU s/GB", samples, lambda sample: sample.cpu_s_per_gb)
        add_rows(record, f"{name}_throughput", "GB/s", samples, lambda sample: sample.gb_per_s)
    else:
        unit = case.operation
        add_rows(record, name, f"CPU us/{unit}", samples, lambda sample: sample.cpu_us_per_operation)
        add_rows(record, f"{name}_throughput", f"{plural(unit)}/s", samples, lambda sample: sample.operations_per_s)


def add_rows(
    record: Record, name: str, unit: str, samples: Samples, value: Callable[[Sample], float]
) -> None:
    values = {label: [value(sample) for sample in rounds] for label, rounds in samples.items()}
    record.rows += rows_of(name, unit, values)


def run_equal_load(
    stack: Stack, case: RelayCase, contenders: list[Contender], unbound: Samples, record: Record
) -> None:
    """p99 at a rate that all sustain: a share of what the slowest reached."""
    slowest = min(median(sample.operations_per_s for sample in rounds) for rounds in unbound.values())
    rate = float(f"{EQUAL_LOAD_SHARE * slowest:.2g}")
    name = f"{case.name}_p99_ms"
    log_line(f"  equal load: {rate:,.0f} requests/s")

    def load(contender: Contender) -> Callable[[], Done]:
        target = contender.target(case.listener, case.path)
        return lambda: stack.tools.keep_alive(target, case.clients, stack.options.seconds, rate=rate)

    samples = interleave(stack, contenders, load, lambda sample: f"p99 {(sample.p99_us or 0) / 1e3:.2f} ms")
    record.keep(name, samples)
    for label, rounds in samples.items():
        reached = median(sample.operations_per_s for sample in rounds)
        if reached < EQUAL_LOAD_REACHED * rate:
            raise BenchError(
                f"{name}: {label} reached {reached:,.0f} of {rate:,.0f} requests/s: loads are not equal"
            )
    record.note(f"{name}: at {rate:,.0f} requests/s over {case.clients} connections")
    add_rows(record, name, "ms", samples, lambda sample: (sample.p99_us or 0) / 1e3)


def warm_up(stack: Stack, contender: Contender, case: RelayCase) -> str:
    """A moment of the case's own load; with TLS through the witness, which fails the case if handshakes differ."""
    target = contender.target(case.listener, case.path)
    if case.resumed is None:
        case.load(stack.tools, target, WARM_UP_S)
        return ""
    with Witness(target.port) as witness:
        case.load(stack.tools, replace(target, port=witness.port), WARM_UP_S)
        return f"; handshakes: {witness.expect(contender.label, case.resumed, case.clients)}"


def plural(operation: str) -> str:
    return "echoes" if operation == "echo" else f"{operation}s"


def show_requests(sample: Sample, operation: str = "request") -> str:
    return (
        f"{sample.cpu_us_per_operation:8.1f} CPU us/{operation} {sample.operations_per_s:10,.0f} {plural(operation)}/s"
        f"   {sample.cores:4.0%} of its core"
    )


def show_bulk(sample: Sample) -> str:
    return (
        f"{sample.cpu_s_per_gb:8.3f} CPU s/GB {sample.gb_per_s:10.2f} GB/s   {sample.cores:4.0%} of its core"
    )


def run_rules(stack: Stack, record: Record) -> None:
    """Many rules against few, each proxy against itself, with the same requests."""
    listeners = ("http",)
    sets: list[tuple[Contender, int]] = []
    for count in (LARGE, SMALL):
        sets.append((stack.evergate(evergate_rules(count), f"evergate_{count}", listeners), count))
    for count in (LARGE, SMALL):
        sets.append((stack.haproxy(haproxy_acls(count), f"haproxy_acl_{count}", listeners), count))
    for count in (LARGE, SMALL):
        path = stack.folder / f"map-{count}"
        path.write_text(haproxy_map(count))
        sets.append((stack.haproxy(haproxy_map_rule(str(path)), f"haproxy_map_{count}", listeners), count))
    for contender, count in sets:
        for probe in probes():
            stack.check_route(contender, probe.path, probe.is_matched_by(count))
        log_line(f"  checked  {contender.label:<18} {len(probes())} requests go where their rules state")
    contenders = [contender for contender, _ in sets]
    urls = {contender.label: write_urls(stack, contender) for contender in contenders}

    def load(contender: Contender) -> Callable[[], Done]:
        target = contender.target("http", "/")
        paths, seconds = urls[contender.label], stack.options.seconds
        return lambda: stack.tools.keep_alive(target, KEEP_ALIVE_CONNECTIONS, seconds, paths)

    for contender in contenders:
        stack.tools.keep_alive(contender.target("http", "/"), KEEP_ALIVE_CONNECTIONS, WARM_UP_S)
    samples = interleave(stack, contenders, load, show_requests)
    record.keep(RULES_CASE, samples)
    for name, label, peer in RULES_ROWS:
        large, small = (
            median(sample.cpu_us_per_operation for sample in samples[f"{label}_{count}"])
            for count in (LARGE, SMALL)
        )
        record.rows.append(Row(name, "CPU us/request", large, peer, small))


def run_audited(stack: Stack, record: Record) -> None:
    """Full handshakes of audited listeners against those of the same program without audit."""
    case = next(case for case in RELAY_CASES if case.name == "full_ecdsa")
    contenders = [stack.evergate(), stack.audited()]
    for contender in contenders:
        checked = stack.check(contender, case.listener, case.path)
        log_line(f"  checked  {contender.label:<18} {checked}{warm_up(stack, contender, case)}")

    def load(contender: Contender) -> Callable[[], Done]:
        target = contender.target(case.listener, case.path)
        return lambda: case.load(stack.tools, target, stack.options.seconds)

    samples = interleave(stack, contenders, load, show_requests)
    record.keep(AUDITED_CASE, samples)
    plain, audited = (
        median(sample.cpu_us_per_operation for sample in samples[contender.label]) for contender in contenders
    )
    record.rows.append(Row(AUDITED_CASE, "CPU us/request", audited, "evergate", plain))


def write_urls(stack: Stack, contender: Contender) -> Path:
    path = stack.folder / f"{contender.label}.urls"
    path.write_text("".join(contender.target("http", probe.path).url + "\n" for probe in probes()))
    return path


def run_idle(stack: Stack, record: Record) -> None:
    """Resident memory per open connection that did a request and waits for the next."""
    peers = (stack.before,) if stack.options.before else (stack.nginx, stack.haproxy)
    makers: tuple[Callable[[], Contender], ...] = (stack.evergate, *peers)
    values: dict[str, list[float]] = {}
    rounds = stack.options.rounds
    for number in range(rounds):
        for make in makers:
            contender = make()  # fresh: the connections would use memory of an earlier load
            if number == 0:
                stack.check_bodies(contender, "ecdsa", "/1k")
            value = idle_kb(stack, contender)
            stack.stop_proxies()
            values.setdefault(contender.label, []).append(value)
            show = f"{value:8.2f} KB for each of {stack.options.idle_connections:,} connections"
            log_line(f"  round {number + 1}/{rounds}  {contender.label:<18} {show}")
    record.samples["idle_rss"] = {label: [{"kb": kb} for kb in rounds] for label, rounds in values.items()}
    record.rows += rows_of("idle_rss", "KB/connection", values)


def idle_kb(stack: Stack, contender: Contender) -> float:
    """Opens the connections from another process and compares resident memory before and after."""
    options = stack.options
    # The first requests make every proxy initialise what it needs once.
    stack.tools.keep_alive(contender.target("ecdsa", "/1k"), KEEP_ALIVE_CONNECTIONS, 0.5)
    before = contender.child.resident_kb()
    command = ["python3", idle.__file__, str(contender.ports["ecdsa"]), str(options.idle_connections)]
    process = subprocess.Popen(
        pinned(command, options.load_core),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=stack.tools.environment,
        start_new_session=True,
    )
    opener = stack.children.adopt("idle", process)
    try:
        assert process.stdin and process.stdout and process.stderr
        if process.stdout.readline() != b"ready\n":
            raise BenchError(
                f"{contender.label}: opening idle connections: {process.stderr.read().decode()[-300:]}"
            )
        after = contender.child.resident_kb()
        contender.child.check()
        process.stdin.write(b"still there?\n")
        process.stdin.flush()
        if process.stdout.readline() != b"alive\n":
            raise BenchError(
                f"{contender.label}: idle connections ended: {process.stderr.read().decode()[-300:]}"
            )
        return (after - before) / options.idle_connections
    finally:
        stack.children.stop(opener)
