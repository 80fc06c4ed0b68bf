"""Messages per hit of the dequeue methods by request rate, simulated (T4.4, figure 4.11)."""

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
    return {"batches": rows, "beside": statements(rows)}


def statements(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the document says of its figure, beside ours."""
    poll, monitor, retry = (at(rows, m, "messages_per_hit") for m in (POLL, MONITOR, RETRY))
    top = max(poll)
    return [
        beside("PMS above conventional from 100 on", "yes", share(monitor, poll, [100, 150, 200])),
        beside("RDS above conventional", "yes", share(retry, poll, list(poll))),
        beside("at the top: conventional", "least", poll[top]),
        beside("at the top: PMS", "more", monitor[top]),
        beside("at the top: RDS", "more", retry[top]),
    ]


def plot(result: dict[str, Any], path: Path) -> None:
    """See `dequeuing`."""
    title = "Messages per hit of dequeue methods, simulated (T4.4, figure 4.11)"
    dequeuing.plot(result["batches"], "messages_per_hit", "messages per hit", title, path)
