"""Rings for five to five hundred servers under failures, on paper (T4.6).

Single ring, same direction, counter-rotating, random and copysets: the load of the busiest server
after two neighbours or two servers at random have failed, and how likely three failures at random
lose a shard.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from experiments.beside import beside
from ringdove.cli.output import watched
from ringdove.models.placement import LAYOUTS, place, study

if TYPE_CHECKING:
    from pathlib import Path

    Row = dict[str, Any]

SERVERS = (5, 10, 20, 50, 100, 200, 500)
_FAILURES = 2


def run(*, quick: bool = False) -> dict[str, Any]:
    """Every layout at every size."""
    rows = []
    for servers in watched(SERVERS[:3] if quick else SERVERS, "servers"):
        for layout in LAYOUTS:
            placed = place(layout, servers)
            near = study(placed, _FAILURES, neighbours=True)
            far = study(placed, _FAILURES)
            rows.append({
                "servers": servers,
                "layout": layout,
                "neighbours_load": near["load_worst"],
                "random_load_mean": round(far["load_mean"], 3),
                "random_load_worst": far["load_worst"],
                "alone_share": round(far["alone_share"], 6),
                "loss_chance_of_3": placed.loss_chance,
            })  # fmt: skip
    return {"placement": rows, "beside": _beside(rows)}


def _beside(rows: list[Row]) -> list[Row]:
    def worst(layout: str) -> float:
        return float(max(row["neighbours_load"] for row in rows if row["layout"] == layout))

    return [
        beside("two neighbours fail: load, same direction", 3, worst("same direction")),
        beside("two neighbours fail: load, counter-rotating", 2, worst("counter-rotating")),
        beside("the same with copysets", "-", worst("copysets")),
    ]


def plot(result: dict[str, Any], path: Path) -> None:
    """Load after failures, and the chance of a loss, by servers."""
    from ringdove.bench.plots import figure_of, grouped, line, save

    figure, panels = figure_of(3, "Layouts of a fabric under failures (T4.6)")
    names = ("neighbours_load", "random_load_mean", "loss_chance_of_3")
    texts = (
        "two neighbours fail: load of the busiest",
        "two at random fail: load of the busiest, mean",
        "three at random fail: chance that data is lost",
    )
    for axes, name, text in zip(panels, names, texts, strict=True):
        for number, (layout, own) in enumerate(grouped(result["placement"], "layout").items()):
            line(axes, own, "servers", name, layout, number)
        axes.set_title(text)
        axes.set_xlabel("servers")
        axes.set_xscale("log")
        axes.set_ylabel("shares" if "load" in name else "probability")
    panels[2].set_yscale("log")
    save(figure, panels, path)
