"""Documents' figures beside ours, put into the results page from what experiments have written.

An experiment's JSON has rows `beside`: what, the document's figure, ours. `python -m experiments
results` keeps those rows of each in `docs/results/` and fills the parts of `docs/results.md` that
are marked for them:

    <!-- beside kvs -->
    (filled)
    <!-- end -->

All else on the page is written by hand, and says what differs and why.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from experiments import NAMES
from experiments.beside import beside, ratio
from ringdove.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Row = dict[str, Any]

_PART = re.compile(r"(<!-- beside ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def keep(measured: Path, kept: Path) -> list[str]:
    """Keep the rows of every experiment and benchmark in `measured`; answers their names."""
    kept.mkdir(parents=True, exist_ok=True)
    found = []
    for name in (*NAMES, *BENCHES):
        path = measured / f"{name}.json"
        if path.exists():
            result = json.loads(path.read_text())
            rows = BENCHES[name](result) if name in BENCHES else result["beside"]
            (kept / f"{name}.json").write_text(json.dumps(rows, indent=1) + "\n")
            found.append(name)
    return found


def fill(page: str, kept: Path) -> str:
    """The page with its marked parts filled; empty where nothing was kept."""

    def part(match: re.Match[str]) -> str:
        name = match[2]
        if name not in NAMES and name not in BENCHES:
            raise InvalidArgument(f"The page has a part for {name!r}, which is no experiment.")
        path = kept / f"{name}.json"
        rows = json.loads(path.read_text()) if path.exists() else []
        return f"{match[1]}{_table(rows)}{match[3]}"

    return _PART.sub(part, page)


def parts(page: str) -> list[str]:
    """What the page has marked parts for."""
    return [match[2] for match in _PART.finditer(page)]


def _table(rows: list[Row]) -> str:
    if not rows:
        return ""
    lines = ["| | the document | here |", "|---|---|---|"]
    lines += [
        f"| {row['what']} | {_cell(row['document'])} | {_cell(row['here'])} |" for row in rows
    ]
    return "\n" + "\n".join(lines) + "\n\n"


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return str(value).replace("|", "\\|")


# -- benchmarks that repeat an experiment ---------------------------------------------------------


def _e2e(result: dict[str, Any]) -> list[Row]:
    """M7: one producer against the best of the document's figure 8, and many against one."""
    rates = {
        (row["durability"], row["size"], row["producers"]): row["messages_per_s"]
        for row in result["e2e"]
    }
    one = rates["disk", 100, 1]
    rows = [beside("messages/s, 100 bytes, synced, 1 producer", "190,000 (the best: Kafka)", one)]
    rows += [
        beside(f"{count} producers by one", "no gain over Kafka", ratio(rate, one))
        for (durability, size, count), rate in rates.items()
        if (durability, size) == ("disk", 100) and count > 1
    ]
    return [*rows, beside("messages lost", 0, sum(row["lost"] for row in result["e2e"]))]


def _load(result: dict[str, Any]) -> list[Row]:
    """B6: response time below 80 % load."""
    return [
        beside(f"mean response time up to 80 % load, {durability} (ms)", "below 200",
               result[f"{durability}_mean_ms_max_to_80_percent"])
        for durability in ("disk", "memory")
    ]  # fmt: skip


def _rds(result: dict[str, Any]) -> list[Row]:
    """T4.5: RDS by conventional at the highest request rate."""
    top: dict[str, int] = {}
    for row in result["rds"]:
        top[row["mode"]] = max(top.get(row["mode"], 0), row["lambda_per_s"])
    rates = {
        (row["mode"], row["method"]): row["delivered_per_s"]
        for row in result["rds"]
        if row["lambda_per_s"] == top[row["mode"]] and row["pause_ms"] in (None, 100)
    }
    return [
        beside(f"RDS (0.1 s) by conventional, lambda = {top[mode]}, {mode}", 1.8,
               ratio(rates[mode, "retry"], rates[mode, "poll"]))
        for mode in top
    ]  # fmt: skip


def _peers(result: dict[str, Any]) -> list[Row]:
    """M7: throughput by Kafka's, the best clients of both."""
    return [
        beside(f"throughput by Kafka's, {row['workload']}, {row['durability']}, {row['client']}",
               "nearly 2 with one producer, no gain with many", row["times"])
        for row in result["ratios"]
        if row["peer"] == "Kafka" and row["figure"] == "rate"
    ]  # fmt: skip


#: By the name of its JSON file.
BENCHES: dict[str, Callable[[dict[str, Any]], list[Row]]] = {
    "bench-e2e": _e2e,
    "bench-load": _load,
    "bench-rds": _rds,
    "peers": _peers,
}
