"""Hit rate of the dequeue methods by request rate, simulated (T4.4, figure 4.10)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from experiments import dequeuing
from experiments.beside import beside
from experiments.dequeuing import MONITOR, POLL, RETRY, at, share

if TYPE_CHECKING:
    from pathlib import Path


def run(*, quick: bool = False, spark: bool = False) -> dict[str, Any]:
    """See the module."""
    rows = dequeuing.sweep(quick=quick, spark=spark)
    return {"hits": rows, "beside": statements(rows)}


def statements(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the document says of its figure, beside ours."""
    poll, monitor, retry = (at(rows, method, "hit_rate") for method in (POLL, MONITOR, RETRY))
    return [
        beside("PMS below conventional from 100 on", "yes", share(poll, monitor, [100, 150, 200])),
        beside("RDS above conventional", "everywhere", share(retry, poll, list(poll))),
        beside("RDS above PMS", "everywhere", share(retry, monitor, list(poll))),
    ]


def plot(result: dict[str, Any], path: Path) -> None:
    """See `dequeuing`."""
    title = "Hit rate of dequeue methods, simulated (T4.4, figure 4.10)"
    dequeuing.plot(result["hits"], "hit_rate", "hits among all visits", title, path)
