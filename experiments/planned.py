"""The planner's answers tried on a real server (V4, B8).

Three loads; for each the planner says how many threads are needed, and a real server gets the load
with that many receivers whose processing times and failures are injected. What the server itself
takes from a send to a receiver is measured first, as a user would.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from experiments.beside import beside
from experiments.injected import Scene, play
from ringdove.models.planner import Goal, Load, make_plan
from ringdove.models.stations import Service

if TYPE_CHECKING:
    from pathlib import Path

    from ringdove.models.planner import Plan

    Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Case:
    """A load and what is wanted."""

    name: str
    rate_per_s: float
    service_s: float
    loss: float
    p99_s: float

    def plan(self, transit_s: float) -> Plan:
        """What the planner says."""
        load = Load(self.rate_per_s, Service(self.service_s), self.loss, transit_s=transit_s)
        return make_plan(load, Goal(p99_s=self.p99_s))


CASES = (
    Case("meters", 100.0, 0.020, 0.01, 0.120),
    Case("orders", 40.0, 0.080, 0.02, 0.450),
    Case("pictures", 10.0, 0.400, 0.05, 2.5),
)
#: Receivers that have nothing to do but receive.
_PROBE = Scene(50.0, 4, 1e-6)
#: The difference between prediction and measurement that is wanted at most.
_WANTED = 0.25


def run(*, quick: bool = False) -> dict[str, Any]:
    """All three at once on one server."""
    transit_s = play([_PROBE], *((1.0, 0.5) if quick else (20.0, 1.0)))[0]["delivery_ms"] / 1e3
    plans = [case.plan(transit_s) for case in CASES]
    scenes = [
        Scene(case.rate_per_s, plan.threads, case.service_s, 1 - case.loss, seed=seed)
        for seed, (case, plan) in enumerate(zip(CASES, plans, strict=True))
    ]
    found = play(scenes, *((2.0, 1.0) if quick else (120.0, 10.0)))
    rows = [_row(*group) for group in zip(CASES, plans, found, strict=True)]
    off = max(abs(row["off"]) for row in rows)
    told = [beside("mean delay off by at most", f"{_WANTED:.0%}", f"{off:.1%}")]
    return {"planned": rows, "beside": told, "transit_ms": round(1e3 * transit_s, 2)}


def _row(case: Case, plan: Plan, real: dict[str, Any]) -> Row:
    predicted_ms = 1e3 * plan.mean_s
    return {
        "load": case.name,
        "rate_per_s": case.rate_per_s,
        "service_ms": 1e3 * case.service_s,
        "loss": case.loss,
        "threads": plan.threads,
        "utilisation_planned": round(plan.delivery.stations[1].utilisation, 3),
        "utilisation_real": round(real["broker_utilisation"], 3),
        "mean_planned_ms": round(predicted_ms, 1),
        "mean_real_ms": round(real["delivery_ms"], 1),
        "off": round(real["delivery_ms"] / predicted_ms - 1, 3),
        "p99_wanted_ms": 1e3 * case.p99_s,
        "p99_planned_ms": round(1e3 * plan.p99_s, 1),
        "p99_real_ms": round(real["p99_ms"], 1),
        "delivered": real["delivered"],
    }


def plot(result: dict[str, Any], path: Path) -> None:
    """Planned and measured delays, side by side."""
    from ringdove.bench.plots import figure_of, save

    figure, panels = figure_of(2, "Plans tried on a real server")
    rows = result["planned"]
    names = [f"{row['load']}\n{row['threads']} threads" for row in rows]
    for axes, kind in zip(panels, ("mean", "p99"), strict=True):
        for shift, source in enumerate(("planned", "real")):
            x = [at + 0.35 * shift for at in range(len(rows))]
            bars = axes.bar(x, [row[f"{kind}_{source}_ms"] for row in rows], 0.33, label=source)
            axes.bar_label(bars, fmt="{:,.0f}", fontsize=8)
        axes.set_xticks([at + 0.175 for at in range(len(rows))], names)
        axes.set_ylabel(f"{kind} delay (ms)")
        axes.set_yscale("log")
        axes.margins(y=0.15)
    save(figure, panels, path)
