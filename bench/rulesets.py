"""The rules of the `rules_*` rows, in the languages of evergate and HAProxy.

A set of N is the first N of one endless list, so a smaller set is part of a larger one. Matching requests go to the
pool `marked`, others to `web`; both answer the same body.
"""

from __future__ import annotations

from dataclasses import dataclass

LARGE = 5_000
SMALL = 10


@dataclass(frozen=True)
class Probe:
    """A request path and the rule that it matches, if any."""

    path: str
    rule: int | None

    def is_matched_by(self, count: int) -> bool:
        return self.rule is not None and self.rule < count


def when(index: int) -> str:
    """The condition of one rule. Of ten rules four are prefixes; one in a hundred is a pattern."""
    kinds = {
        1: f'path == "/exact/{index}/index.html"',
        2: f'host == "h{index}.example" && path.path_prefix("/shop")',
        3: f'header("x-tenant") == "t{index}" && path.path_prefix("/tenant")',
        4: f'cookie("group") == "g{index}" && method != "DELETE"',
        5: f'path.ends_with(".x{index}") || path.starts_with("/old/{index}/")',
        6: f'query("id") == {index} && host.ends_with(".example")',
    }
    if index % 100 == 7:
        return f'path.matches("^/v[0-9]+/item{index}(/|$)")'
    return kinds.get(index % 10, f'path.path_prefix("/svc/{index}")')


def probes(count: int = LARGE) -> list[Probe]:
    """The requests of the load, the same for all sets: half match no rule, others all over the large set."""
    spread = [8, count // 3 // 10 * 10, count * 2 // 3 // 10 * 10, count - 1]
    matching = [Probe(f"/svc/{index}/list", index) for index in spread]
    missing = [Probe(f"/nothing/to/see/{number}.html", None) for number in range(len(spread))]
    return [probe for pair in zip(matching, missing) for probe in pair]


def evergate_rules(count: int) -> str:
    rules = (
        f'\n[[rules]]\nname = "r{index}"\nwhen = \'{when(index)}\'\nroute = "marked"\n'
        for index in range(count)
    )
    return "".join(rules)


def haproxy_acls(count: int) -> str:
    """One `path_beg` per rule, tried in order."""
    return "".join(f"    use_backend marked if {{ path_beg /svc/{index}/ }}\n" for index in range(count))


def haproxy_map(count: int) -> str:
    """The file of a map from prefix to backend."""
    return "".join(f"/svc/{index}/ marked\n" for index in range(count))


def haproxy_map_rule(path: str) -> str:
    return f"    use_backend %[path,map_beg({path},web)]\n"
