"""Throughput of the dequeue methods by request rate, simulated (T4.4, figure 4.9)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from experiments import dequeuing
from experiments.beside import beside, ratio
from experiments.dequeuing import MONITOR, POLL, RETRY, at, share

if TYPE_CHECKING:
    from pathlib import Path


def run(*, quick: bool = False, spark: bool = False) -> dict[str, Any]:
    """See the module."""
    rows = dequeuing.sweep(quick=quick, spark=spark)
    return {"throughput": rows, "beside": statements(rows)}


def statements(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the document says of its figure, beside ours."""
    poll, monitor, retry = (at(rows, m, "delivered_per_s") for m in (POLL, MONITOR, RETRY))
    first, last = min(poll), max(poll)
    spread = 1 - min(retry.values()) / max(retry.values())
    return [
        beside("conventional at the top by the bottom", "less", ratio(poll[last], poll[first])),
        beside("RDS above conventional", "everywhere", share(retry, poll, list(poll))),
        beside("RDS above PMS", "everywhere", share(retry, monitor, list(poll))),
        beside("RDS over all rates", "flat", f"within {spread:.0%}"),
        beside("RDS by conventional at the top", 1.8, ratio(retry[last], poll[last])),
        beside("PMS above conventional from 100 on", "yes", share(monitor, poll, [100, 150, 200])),
    ]


def plot(result: dict[str, Any], path: Path) -> None:
    """See `dequeuing`."""
    title = "Throughput of dequeue methods, simulated (T4.4, figure 4.9)"
    label = "messages delivered per second"
    dequeuing.plot(result["throughput"], "delivered_per_s", label, title, path)
