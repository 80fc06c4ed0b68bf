"""Mean delivery time by threads, in order and out of order (V3, figure 11).

30.3 messages/s, 100 ms of service at the sender and at the broker, as many threads at both, and
failed deliveries that come again at once, as in the document's formula. A further table has the
wait for the visibility timeout that the document leaves out.
"""

from __future__ import annotations

import os
import time
from statistics import fmean
from typing import TYPE_CHECKING, Any

from experiments.beside import beside
from experiments.queueing import (
    COLOURS,
    IN,
    OUT,
    both_orders,
    by_threads,
    closed,
    draw,
    inside,
    measure,
    pairs,
)
from ringdove.models.visibility import Setup

if TYPE_CHECKING:
    from pathlib import Path

    Row = dict[str, Any]

#: SQS's usual visibility timeout.
_TIMEOUT_S = 30.0


def run(*, quick: bool = False, spark: bool = False) -> dict[str, Any]:
    """Every number of threads, both reliabilities, both brokers."""
    points = by_threads(quick=quick)
    began_s, worked_s = time.monotonic(), _cpu_s()
    rows = measure(both_orders(points), ["delivery_ms"], quick=quick, spark=spark)
    took_s, worked_s = time.monotonic() - began_s, _cpu_s() - worked_s
    return {
        "delivery_time": rows,
        "beside": _beside(rows),
        "forms": [_forms(point) for point in points],
        "took_s": round(took_s, 1),
        "processor_s": round(worked_s, 1),
    }


def _cpu_s() -> float:
    """Processor time of this process and of those that it has run."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _forms(point: Setup) -> Row:
    """The closed form set right, as it is printed, and with the wait for the timeout."""
    right = closed(point)
    late = closed(Setup(
        sender_threads=point.sender_threads, broker_threads=point.broker_threads,
        reliability=point.reliability, timeout_s=_TIMEOUT_S, waits_out=True,
    ))  # fmt: skip
    assert right is not None
    assert late is not None
    assert right.printed_s is not None
    return {
        "threads": point.broker_threads,
        "reliability": point.reliability,
        "closed_form_ms": round(1e3 * right.total_s, 2),
        "as_printed_ms": round(1e3 * right.printed_s, 2),
        "with_timeout_of_30_s_ms": round(1e3 * late.total_s, 2),
    }


def _beside(rows: list[Row]) -> list[Row]:
    factors = [strict["delivery_ms"] / loose["delivery_ms"] for loose, strict in pairs(rows)]
    worse = sum(factor > 1 for factor in factors)
    share = f"{fmean(factors) - 1:.0%} ({min(factors) - 1:.0%} to {max(factors) - 1:.0%})"
    loose = [row for row in rows if row["order"] == OUT]
    return [
        beside("closed form against simulation", "agree very well", inside(loose, "delivery_ms")),
        beside("in order is slower", "everywhere", f"at {worse} of {len(factors)} points"),
        beside("out of order performs better by", "about 50 %", share),
    ]


def plot(result: dict[str, Any], path: Path) -> None:
    """A panel for each reliability."""
    from ringdove.bench.plots import figure_of, grouped, save

    groups = grouped(result["delivery_time"], "reliability")
    figure, panels = figure_of(len(groups), "Mean delivery time (V3, figure 11)")
    for axes, (reliability, rows) in zip(panels, groups.items(), strict=True):
        for order in (OUT, IN):
            own = [row for row in rows if row["order"] == order]
            draw(axes, own, "broker_threads", "delivery_ms", order, COLOURS[order])
        axes.set_title(f"reliability {reliability:.0%}")
        axes.set_xlabel("threads of sender and broker")
        axes.set_ylabel("mean delivery time (ms)")
        axes.set_ylim(bottom=0)
    save(figure, panels, path)
