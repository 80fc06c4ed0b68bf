"""How busy sender and broker are, by threads (V3, figure 13).

Two measures. The share of a thread's time that is spent on messages cannot depend on their order:
the work is the same. The share of time in which at least one thread is busy can: in order, work
comes in bursts after a pause. The document's text describes the second where it finds the broker
less busy in order, and the first where more threads are each less busy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from experiments.beside import beside
from experiments.queueing import (
    COLOURS,
    IN,
    OUT,
    RELIABILITIES,
    both_orders,
    by_threads,
    draw,
    inside,
    measure,
    pairs,
)

if TYPE_CHECKING:
    from pathlib import Path

    Row = dict[str, Any]

_NAMES = ["sender_utilisation", "broker_utilisation", "sender_busy", "broker_busy"]


def run(*, quick: bool = False, spark: bool = False) -> dict[str, Any]:
    """Every number of threads, both reliabilities, both brokers."""
    points = by_threads(quick=quick)
    rows = measure(both_orders(points), _NAMES, quick=quick, spark=spark)
    return {"utilisation": rows, "beside": _beside(rows)}


def _beside(rows: list[Row]) -> list[Row]:
    both = pairs(rows)
    sender = max(abs(a["sender_utilisation"] - b["sender_utilisation"]) for a, b in both)
    threads = max(abs(a["broker_utilisation"] - b["broker_utilisation"]) for a, b in both)
    low = [b["broker_busy"] < a["broker_busy"] for a, b in both]
    above = [row for row in rows if row["reliability"] == min(RELIABILITIES)]
    higher = [row["broker_utilisation"] > row["sender_utilisation"] for row in above]
    loose = [row for row in rows if row["order"] == OUT]
    return [
        beside("closed form of the broker", "agree very well", inside(loose, "broker_utilisation")),
        beside("sender: order matters", "not at all", f"by {sender:.3f} at most"),
        beside("broker's threads: order matters", "much lower in order", f"{threads:.3f} at most"),
        beside("broker, any thread busy: lower in order", "much", f"at {sum(low)} of {len(low)}"),
        beside("broker above sender at 88 %", "yes", f"at {sum(higher)} of {len(higher)} points"),
    ]


def plot(result: dict[str, Any], path: Path) -> None:
    """For each reliability: threads' utilisation, and the share of time with any thread busy."""
    from ringdove.bench.plots import figure_of, grouped, save

    groups = grouped(result["utilisation"], "reliability")
    figure, panels = figure_of(2 * len(groups), "Utilisation (V3, figure 13)", columns=2)
    for at, (reliability, rows) in enumerate(groups.items()):
        for axes, kind in zip(panels[2 * at : 2 * at + 2], ("utilisation", "busy"), strict=True):
            for order in (OUT, IN):
                own = [row for row in rows if row["order"] == order]
                draw(
                    axes,
                    own,
                    "broker_threads",
                    f"broker_{kind}",
                    f"broker, {order}",
                    COLOURS[order],
                )
            own = [row for row in rows if row["order"] == OUT]
            axes.plot(
                [row["sender_threads"] for row in own],
                [row[f"sender_{kind}"] for row in own],
                "C2--",
                label="sender",
            )
            told = "share of a thread's time" if kind == "utilisation" else "any thread is busy"
            axes.set_title(f"reliability {reliability:.0%}: {told}")
            axes.set_xlabel("threads of sender and broker")
            axes.set_ylabel("share of time")
    save(figure, panels, path)
