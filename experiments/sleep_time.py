"""Throughput of retry by its sleep time, simulated, beside poll (T4.4, figure 4.12).

Twice: in the steady state, and in twenty seconds that begin with an empty fabric. In the steady
state a longer sleep costs delay but never throughput: what is not taken waits, and whoever wakes
takes it for all. In a short run what waits at its end is missing, so a best sleep time shows. The
document does not say how long it ran.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from experiments.beside import beside
from experiments.dequeuing import POLL, RETRY, measure
from ringdove.models.fabric import Load

if TYPE_CHECKING:
    from pathlib import Path

    Row = dict[str, Any]

SLEEPS_S = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 40.0)
STEADY, SHORT = "steady state", "20 s from empty"

_RATE = 200.0
#: Longer than any sleep, so that a request is answered only when it has found something.
_WAIT_S = 600.0


def run(*, quick: bool = False, spark: bool = False) -> dict[str, Any]:
    """Every sleep time, both ways."""
    sleeps_s = SLEEPS_S if not quick else (0.1, 1.0)
    points = [(RETRY, Load("retry", _RATE, pause_s=s, wait_s=_WAIT_S)) for s in sleeps_s]
    points.append((POLL, Load("poll", _RATE)))
    rows = []
    for spell, seconds, warm_s in ((STEADY, 60.0, 40.0), (SHORT, 20.0, 0.0)):
        found = measure(points, seconds, warm_s, quick=quick, spark=spark)
        rows += [{"spell": spell, **row} for row in found]
    return {"sleep_time": rows, "beside": _beside(rows)}


def _beside(rows: list[Row]) -> list[Row]:
    told = []
    for spell in (SHORT, STEADY):
        retry = [row for row in rows if row["spell"] == spell and row["method"] == RETRY]
        best = max(retry, key=lambda row: float(row["delivered_per_s"]))
        shortest, longest = (retry[end]["delivered_per_s"] for end in (0, -1))
        top = best["delivered_per_s"]
        fastest = min(retry, key=lambda row: float(row["delay_ms"]))
        told += [
            beside(f"best sleep time, {spell} (s)", 5.0, best["pause_s"]),
            beside(f"sleep time of the least delay, {spell} (s)", "-", fastest["pause_s"]),
            beside(
                f"shortest and longest by the best, {spell}",
                "both less",
                f"{shortest / top:.0%} and {longest / top:.0%}",
            ),
        ]
    return told


def plot(result: dict[str, Any], path: Path) -> None:
    """A panel for each way."""
    from ringdove.bench.plots import figure_of, grouped, save

    groups = grouped(result["sleep_time"], "spell")
    figure, panels = figure_of(len(groups), "Throughput by sleep time (T4.4, figure 4.12)")
    for axes, (spell, rows) in zip(panels, groups.items(), strict=True):
        retry = [row for row in rows if row["method"] == RETRY]
        axes.errorbar(
            [row["pause_s"] for row in retry],
            [row["delivered_per_s"] for row in retry],
            [row["delivered_per_s_interval"] for row in retry],
            marker="o",
            capsize=2,
            label=RETRY,
        )
        [poll] = [row for row in rows if row["method"] == POLL]
        axes.axhline(poll["delivered_per_s"], color="C3", ls="--", label=POLL)
        axes.set_title(spell)
        axes.set_xscale("log")
        axes.set_xlabel("sleep time (s)")
        axes.set_ylabel("messages delivered per second")
        axes.set_ylim(bottom=0)
    save(figure, panels, path)
