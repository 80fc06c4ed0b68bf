"""Things measured side by side: in turns, several times, and the median of each.

Other work on the machine comes and goes; what is measured in turns meets it alike.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Any

from ringdove.cli.output import watched

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Cell = tuple[dict[str, Any], Callable[[], dict[str, Any]]]


def in_turns(label: str, cells: Sequence[Cell], rounds: int) -> list[dict[str, Any]]:
    """A row for each cell: what it is, and the medians of the figures that it answers."""
    found: list[list[dict[str, Any]]] = [[] for _ in cells]
    for number in watched(range(rounds * len(cells)), label):
        at = number % len(cells)
        found[at].append(cells[at][1]())
    return [
        {**what, **{name: _middle([row[name] for row in rows]) for name in rows[0]}}
        for (what, _), rows in zip(cells, found, strict=True)
    ]


def _middle(values: list[float]) -> float:
    middle = median(values)
    return round(middle) if all(isinstance(value, int) for value in values) else round(middle, 2)
