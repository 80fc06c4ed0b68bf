"""What figures 14 and 15 share: three figures along one axis, and where they turn.

Only points are run at which both stations are stable. The turning point of the delivery time is
where waiting adds a tenth to the time without any; that of the waiting number where one message
waits on average.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from experiments.beside import beside
from experiments.queueing import closed, draw, inside, measure

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from ringdove.models.visibility import Setup

    Row = dict[str, Any]

_NAMES = ["delivery_ms", "waiting", "sender_utilisation", "broker_utilisation"]
_WAITING_SHARE = 0.1


def run(
    name: str,
    points: Sequence[Setup],
    x: str,
    told: Mapping[int, str],
    unit: str,
    *,
    quick: bool,
    spark: bool,
) -> dict[str, Any]:
    """The rows of a figure, and its statements."""
    stable = [point for point in points if closed(point) is not None]
    rows = measure(stable, _NAMES, quick=quick, spark=spark)
    statements = [
        beside(
            f"{threads} threads turn at (delivery time, waiting number)",
            document,
            _turns([row for row in rows if row["broker_threads"] == threads], x, unit),
        )
        for threads, document in told.items()
    ]
    agree = [
        beside(f"closed form of {figure}", "agree very well", inside(rows, figure))
        for figure in ("delivery_ms", "waiting")
    ]
    return {name: rows, "beside": [*agree, *statements]}


def _turns(rows: Sequence[Row], x: str, unit: str) -> str:
    """The last points before the turns."""
    slow = [row for row in rows if _added(row) < _WAITING_SHARE]
    few = [row for row in rows if row["waiting"] < 1]
    ends = [f"{max(row[x] for row in kept):g} {unit}" if kept else "-" for kept in (slow, few)]
    return " and ".join(ends)


def _added(row: Row) -> float:
    """What waiting adds to the time without any, as a share of it."""
    idle_ms = row["service_ms"] * (1 + 1 / row["reliability"])
    return float(row["delivery_ms"] / idle_ms - 1)


def plot(rows: list[Row], x: str, label: str, title: str, path: Path) -> None:
    """Delivery time, waiting number and utilisation; a line for each number of threads."""
    from ringdove.bench.plots import figure_of, grouped, save

    figure, panels = figure_of(3, title)
    texts = ("mean delivery time (ms)", "messages waiting", "broker's utilisation")
    names = ("delivery_ms", "waiting", "broker_utilisation")
    for axes, name, text in zip(panels, names, texts, strict=True):
        for at, (threads, own) in enumerate(grouped(rows, "broker_threads").items()):
            draw(axes, own, x, name, f"{threads} threads", f"C{at}")
        axes.set_xlabel(label)
        axes.set_ylabel(text)
    panels[1].set_yscale("symlog", linthresh=0.01)
    save(figure, panels, path)
