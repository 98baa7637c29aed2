"""One measurement: a load against one proxy, and its cost for that proxy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import median

from children import Child, softirq_cpu_ns
from load import Done, percentile

GB = 1e9


@dataclass(frozen=True)
class Sample:
    """Result of one round of one contender."""

    cpu_ns: int
    operations: int
    body_bytes: int
    seconds: float
    softirq_ns: int
    p99_us: int | None = None

    @property
    def cpu_us_per_operation(self) -> float:
        return self.cpu_ns / 1e3 / self.operations

    @property
    def cpu_s_per_gb(self) -> float:
        return self.cpu_ns / 1e9 / (self.body_bytes / GB)

    @property
    def operations_per_s(self) -> float:
        return self.operations / self.seconds

    @property
    def gb_per_s(self) -> float:
        return self.body_bytes / GB / self.seconds

    @property
    def cores(self) -> float:
        """Cores that the proxy kept busy: far below 1 the load tool or the backend was the limit."""
        return self.cpu_ns / 1e9 / self.seconds

    @property
    def hidden(self) -> float:
        """CPU time of ksoftirqd on all cores as a share of the proxy's: work that is charged to no process."""
        return self.softirq_ns / max(1, self.cpu_ns)

    def as_json(self) -> dict[str, object]:
        return asdict(self)


def measure(child: Child, load: Callable[[], Done]) -> Sample:
    """Runs a load and reads the CPU time of all the proxy's threads before and after it."""
    child.check()
    softirq, cpu = softirq_cpu_ns(), child.cpu_ns()
    done = load()
    cpu, softirq = child.cpu_ns() - cpu, softirq_cpu_ns() - softirq
    child.check()
    p99 = percentile(done.latencies_us, 0.99) if done.latencies_us else None
    return Sample(cpu, done.operations, done.body_bytes, done.seconds, softirq, p99)


@dataclass(frozen=True)
class Row:
    """One line of the results: evergate against one peer, or a figure without one."""

    name: str
    unit: str
    ours: float
    peer: str | None = None
    peer_value: float | None = None

    @property
    def ratio(self) -> float | None:
        if self.peer_value is None:
            return None
        return self.ours / self.peer_value if self.peer_value else float("inf")

    def as_json(self) -> dict[str, object]:
        return {
            "name": self.name,
            "unit": self.unit,
            "ours": significant(self.ours),
            "peer": self.peer,
            "peer_value": None if self.peer_value is None else significant(self.peer_value),
            "ratio": None if self.ratio is None else round(self.ratio, 4),
        }


def significant(value: float) -> float:
    """Four digits: more would claim a precision that no run has."""
    return float(f"{value:.4g}")


def rows_of(name: str, unit: str, values: dict[str, list[float]], ours: str = "evergate") -> list[Row]:
    """Medians over the rounds, evergate against each other contender."""
    mine = median(values[ours])
    return [Row(name, unit, mine, peer, median(rounds)) for peer, rounds in values.items() if peer != ours]
