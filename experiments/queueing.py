"""What the experiments with the document's queue share (V3): runs, closed form, rows, lines.

Every point is simulated with `REPLICATIONS` seeds, `SECONDS` each after a warm-up that does not
count, and computed in closed form where that applies: to the out-of-order broker below saturation.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from experiments.replicating import replicate
from ringdove.errors import InvalidArgument
from ringdove.models.delivery import Delivery
from ringdove.models.replications import estimate
from ringdove.models.stations import Service
from ringdove.models.visibility import Setup, simulate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

    Row = dict[str, Any]

REPLICATIONS = 20
SECONDS = 100.0
WARM_S = 20.0
CONFIDENCE = 0.99
THREADS = range(4, 11)
RELIABILITIES = (0.99, 0.88)

OUT, IN = "out of order", "in order"
COLOURS = {OUT: "C0", IN: "C3"}


def threads(*, quick: bool) -> Sequence[int]:
    """Numbers of threads to look at."""
    return (5, 8) if quick else THREADS


def by_threads(*, quick: bool) -> list[Setup]:
    """Both reliabilities, as many threads at either side."""
    return [
        Setup(sender_threads=n, broker_threads=n, reliability=q)
        for q in RELIABILITIES
        for n in threads(quick=quick)
    ]


def closed(setup: Setup) -> Delivery | None:
    """The closed form of a setup; None where there is none."""
    if setup.in_order:
        return None
    try:
        return Delivery(
            setup.rate_per_s,
            Service(1 / setup.sender_rate_per_s),
            Service(1 / setup.broker_rate_per_s),
            setup.sender_threads,
            setup.broker_threads,
            setup.reliability,
            setup.link_s,
            setup.timeout_s if setup.waits_out else None,
        )
    except InvalidArgument:
        return None  # It is not stable.


def closed_figures(setup: Setup) -> dict[str, float | None]:
    """The closed form's figures by the names that the simulation has for them."""
    modelled = closed(setup)
    names = ("delivery_ms", "waiting", "sender_utilisation", "broker_utilisation", "broker_busy")
    if modelled is None:
        return dict.fromkeys(names)
    sender, broker = modelled.stations
    values = (
        1e3 * modelled.total_s,
        sender.waiting + broker.waiting,
        sender.utilisation,
        broker.utilisation,
        broker.busy_probability,
    )
    return dict(zip(names, values, strict=True))


def measure(
    points: Sequence[Setup], names: Sequence[str], *, quick: bool, spark: bool = False
) -> list[Row]:
    """A row for each setup: figures, with the half-width of a band.

    The band holds at once for all points that have a closed form.

    `names` are the figures wanted, as the simulation has them.
    """
    length = (5.0, 2.0) if quick else (SECONDS, WARM_S)
    function = partial(simulate, seconds=length[0], warm_s=length[1])
    runs = replicate(function, points, range(3 if quick else REPLICATIONS), spark=spark)
    together = sum(closed(point) is not None for point in points)
    rows = []
    for setup, found in zip(points, runs, strict=True):
        row: Row = {
            "order": IN if setup.in_order else OUT,
            "reliability": setup.reliability,
            "sender_threads": setup.sender_threads,
            "broker_threads": setup.broker_threads,
            "rate_per_s": setup.rate_per_s,
            "service_ms": round(1e3 / setup.broker_rate_per_s, 3),
        }
        expected = closed_figures(setup)
        for name in names:
            band = estimate([run[name] for run in found], CONFIDENCE, together)
            row |= {name: round(band.mean, 4), f"{name}_band": round(band.half, 4)}
            if name in expected:
                value = expected[name]
                row[f"{name}_closed"] = None if value is None else round(value, 4)
        rows.append(row)
    return rows


def inside(rows: Sequence[Row], name: str) -> str:
    """How many closed-form values lie within the band around the simulated ones."""
    known = [row for row in rows if row[f"{name}_closed"] is not None]
    within = sum(abs(row[name] - row[f"{name}_closed"]) <= row[f"{name}_band"] for row in known)
    return f"{within} of {len(known)} points in a simultaneous 99 % band"


def pairs(rows: Sequence[Row]) -> list[tuple[Row, Row]]:
    """Rows of the two brokers that are alike otherwise: out of order, in order."""
    loose = [row for row in rows if row["order"] == OUT]
    strict = [row for row in rows if row["order"] == IN]
    return list(zip(loose, strict, strict=True))


def both_orders(points: Sequence[Setup]) -> list[Setup]:
    """Each point with both brokers."""
    return [replace(point, in_order=in_order) for point in points for in_order in (False, True)]


def draw(axes: Axes, rows: Sequence[Row], x: str, name: str, label: str, colour: str) -> None:
    """The simulation as a line with its band, the closed form as crosses."""
    at = [row[x] for row in rows]
    axes.errorbar(
        at,
        [row[name] for row in rows],
        [row[f"{name}_band"] for row in rows],
        color=colour,
        capsize=2,
        label=label,
    )
    known = [row for row in rows if row.get(f"{name}_closed") is not None]
    if known:
        told = "closed form" in axes.get_legend_handles_labels()[1]
        axes.plot(
            [row[x] for row in known],
            [row[f"{name}_closed"] for row in known],
            "kx",
            label=None if told else "closed form",
        )
