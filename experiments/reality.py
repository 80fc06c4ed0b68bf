"""Model against reality: the document's queue on a real server, beside formula and simulation (V3).

Figure 11's parameters with failures that come again at once: closed form, out-of-order simulation,
and a real server whose senders and receivers have the injected service times. What the server adds
is what a real queue costs beyond the model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from experiments.beside import beside
from experiments.injected import Scene, play
from experiments.queueing import RELIABILITIES, THREADS, closed_figures, measure
from ringdove.cli.output import watched
from ringdove.models.visibility import Setup

if TYPE_CHECKING:
    from pathlib import Path

    Row = dict[str, Any]

_NAMES = ("delivery_ms", "waiting", "sender_utilisation", "broker_utilisation")
_TEXTS = ("mean delivery time (ms)", "messages waiting", "sender's utilisation", "broker's")


def run(*, quick: bool = False, spark: bool = False) -> dict[str, Any]:
    """Every number of threads, one after the other; both reliabilities at once on one server."""
    points = [
        Setup(sender_threads=n, broker_threads=n, reliability=q)
        for n in (THREADS if not quick else (5,))
        for q in RELIABILITIES
    ]
    scenes = [_scene(point, seed) for seed, point in enumerate(points)]
    spell = (2.0, 1.0) if quick else (60.0, 10.0)
    together = len(RELIABILITIES)
    found = []
    for at in watched(range(0, len(scenes), together), "threads"):
        found += play(scenes[at : at + together], *spell)
    simulated = measure(points, _NAMES, quick=quick, spark=spark)
    rows = []
    for point, real, model in zip(points, found, simulated, strict=True):
        expected = closed_figures(point)
        row: Row = {"threads": point.broker_threads, "reliability": point.reliability}
        for name in _NAMES:
            value = expected[name]
            assert value is not None
            row |= {
                f"{name}_closed": round(value, 3),
                f"{name}_simulated": round(model[name], 3),
                f"{name}_real": round(real[name], 3),
            }
        rows.append({**row, "delivered": real["delivered"]})
    return {"reality": rows, "beside": _beside(rows)}


def _scene(point: Setup, seed: int) -> Scene:
    return Scene(
        rate_per_s=point.rate_per_s,
        broker_threads=point.broker_threads,
        broker_s=1 / point.broker_rate_per_s,
        reliability=point.reliability,
        sender_threads=point.sender_threads,
        sender_s=1 / point.sender_rate_per_s,
        seed=seed,
    )


def _beside(rows: list[Row]) -> list[Row]:
    """The closed form stands for the document."""
    told = []
    for name, text in zip(_NAMES[::2], ("delivery time", "utilisation of the sender"), strict=True):
        off = [row[f"{name}_real"] / row[f"{name}_closed"] - 1 for row in rows]
        within = f"{min(off):+.1%} to {max(off):+.1%} of the closed form"
        told.append(beside(f"real {text}", "the model's", within))
    return told


def plot(result: dict[str, Any], path: Path) -> None:
    """Each figure by threads: formula, simulation and server."""
    from ringdove.bench.plots import figure_of, grouped, save

    figure, panels = figure_of(4, "Model against reality, at figure 11's parameters", columns=2)
    for axes, name, text in zip(panels, _NAMES, _TEXTS, strict=True):
        for at, (q, rows) in enumerate(grouped(result["reality"], "reliability").items()):
            x = [row["threads"] for row in rows]
            for kind, style in (("closed", "x"), ("simulated", "--"), ("real", "o-")):
                values = [row[f"{name}_{kind}"] for row in rows]
                axes.plot(x, values, style, color=f"C{at}", markersize=5, label=f"{kind}, {q:.0%}")
        axes.set_xlabel("threads of sender and broker")
        axes.set_ylabel(text)
    save(figure, panels, path)
