"""What the experiments with dequeue methods share (T4.4): table I, run with the real machines.

The document gives neither the send rate nor how much a back end has outstanding. With 100
messages/s from each of ten senders, two of them on their way at most, and two requests of each back
end, the ten nodes could carry the load if they made no visits in vain. `monitor` reads counters
every 0.1 s; `retry` sleeps 5 s, the document's best. `wake` is run with ten controllers and with
one: an arrival calls a receiver at each controller, so with ten of them nine are called in vain.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from experiments.replicating import replicate
from ringdove.models.fabric import Load, simulate
from ringdove.models.replications import estimate

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    Row = dict[str, Any]

RATES = (10, 20, 50, 100, 150, 200)
REPLICATIONS = 4
POLL, MONITOR, RETRY = "poll", "monitor", "retry"
WAKE, WAKE_ONE = "wake, 10 controllers", "wake, 1 controller"

_PERIOD_S = 0.1
_SLEEP_S = 5.0
_NAMES = ("delivered_per_s", "hit_rate", "messages_per_hit", "delay_ms")


def methods(rate: float) -> dict[str, Load]:
    """All methods at one request rate."""
    return {
        POLL: Load("poll", rate),
        MONITOR: Load("monitor", rate, pause_s=_PERIOD_S),
        RETRY: Load("retry", rate, pause_s=_SLEEP_S),
        WAKE: Load("wake", rate),
        WAKE_ONE: Load("wake", rate, controllers=1),
    }


def measure(
    points: Sequence[tuple[str, Load]],
    seconds: float,
    warm_s: float,
    *,
    quick: bool,
    spark: bool,
) -> list[Row]:
    """A row for each point, with 95 % intervals."""
    function = partial(simulate, seconds=2.0 if quick else seconds, warm_s=1.0 if quick else warm_s)
    seeds = range(2 if quick else REPLICATIONS)
    runs = replicate(function, [load for _, load in points], seeds, spark=spark)
    rows = []
    for (label, load), found in zip(points, runs, strict=True):
        row: Row = {"method": label, "lambda_per_s": load.asks_per_s, "pause_s": load.pause_s}
        for name in _NAMES:
            value = estimate([run[name] for run in found])
            row |= {name: round(value.mean, 3), f"{name}_interval": round(value.half, 3)}
        rows.append(row)
    return rows


def sweep(*, quick: bool, spark: bool) -> list[Row]:
    """Every method at every request rate."""
    rates = RATES if not quick else (10, 200)
    points = [(label, load) for rate in rates for label, load in methods(rate).items()]
    return measure(points, 40.0, 20.0, quick=quick, spark=spark)


def at(rows: Sequence[Row], method: str, name: str) -> dict[float, float]:
    """A figure of a method by request rate."""
    return {row["lambda_per_s"]: row[name] for row in rows if row["method"] == method}


def share(one: dict[float, float], other: dict[float, float], rates: Sequence[float]) -> str:
    """At how many of these rates one figure is above another."""
    asked = [rate for rate in rates if rate in one]
    return f"at {sum(one[rate] > other[rate] for rate in asked)} of {len(asked)} rates"


def plot(rows: list[Row], name: str, label: str, title: str, path: Path) -> None:
    """One figure by request rate, a line for each method."""
    from ringdove.bench.plots import figure_of, grouped, save

    figure, [axes] = figure_of(1, title, inches=(7.5, 4.8))
    for method, own in grouped(rows, "method").items():
        axes.errorbar(
            [row["lambda_per_s"] for row in own],
            [row[name] for row in own],
            [row[f"{name}_interval"] for row in own],
            marker="o",
            markersize=4,
            capsize=2,
            label=method,
        )
    axes.set_xlabel("requests per second of each back end (λ)")
    axes.set_ylabel(label)
    axes.set_ylim(bottom=0)
    save(figure, [axes], path)
