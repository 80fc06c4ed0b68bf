"""Messages waiting by threads of one side, six threads at the other (V3, figure 12)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from experiments.beside import beside
from experiments.queueing import (
    COLOURS,
    IN,
    OUT,
    RELIABILITIES,
    both_orders,
    draw,
    inside,
    measure,
    pairs,
    threads,
)
from ringdove.models.visibility import Setup

if TYPE_CHECKING:
    from pathlib import Path

    Row = dict[str, Any]

_OTHER = 6
_SIDES = {"broker_threads": "sender_threads", "sender_threads": "broker_threads"}


def run(*, quick: bool = False, spark: bool = False) -> dict[str, Any]:
    """Both sides, both reliabilities, both brokers."""
    rows = []
    for side in _SIDES:
        points = [_setup(side, n, q) for q in RELIABILITIES for n in threads(quick=quick)]
        found = measure(both_orders(points), ["waiting"], quick=quick, spark=spark)
        rows += [{"varied": side, **row} for row in found]
    return {"waiting": rows, "beside": _beside(rows)}


def _setup(side: str, threads: int, reliability: float) -> Setup:
    if side == "broker_threads":
        return Setup(sender_threads=_OTHER, broker_threads=threads, reliability=reliability)
    return Setup(sender_threads=threads, broker_threads=_OTHER, reliability=reliability)


def _beside(rows: list[Row]) -> list[Row]:
    worse = [strict["waiting"] > loose["waiting"] for loose, strict in pairs(rows)]
    most = max(row["broker_threads"] for row in rows)
    told = []
    for side, document in (("broker_threads", "about 3,000"), ("sender_threads", "about 4,000")):
        levels = [
            f"{1e3 * row['waiting']:,.0f}"
            for row in rows
            if row["varied"] == side and row["order"] == IN and row[side] == most
        ]
        what = f"in order, {side.replace('_', ' ')} growing, settles at (thousandths)"
        told.append(beside(what, document, " and ".join(levels)))
    loose = [row for row in rows if row["order"] == OUT]
    return [
        beside("closed form against simulation", "agree very well", inside(loose, "waiting")),
        beside("more wait in order", "everywhere", f"at {sum(worse)} of {len(worse)} points"),
        *told,
    ]


def plot(result: dict[str, Any], path: Path) -> None:
    """A panel for each side and reliability."""
    from ringdove.bench.plots import figure_of, save

    cases = [(side, q) for side in _SIDES for q in RELIABILITIES]
    figure, panels = figure_of(len(cases), "Messages waiting (V3, figure 12)", columns=2)
    for axes, (side, q) in zip(panels, cases, strict=True):
        rows = [r for r in result["waiting"] if r["varied"] == side and r["reliability"] == q]
        for order in (OUT, IN):
            own = [row for row in rows if row["order"] == order]
            draw(axes, own, side, "waiting", order, COLOURS[order])
        axes.set_title(f"reliability {q:.0%}, six {_SIDES[side].replace('_', ' ')}")
        axes.set_xlabel(side.replace("_", " "))
        axes.set_ylabel("messages waiting")
        axes.set_ylim(bottom=0)
    save(figure, panels, path)
