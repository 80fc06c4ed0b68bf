"""Things measured side by side: in turns, several times, and the best round of each.

Other work on the machine comes and goes, and only ever slows: what is measured in turns meets it
alike, and the best of several rounds meets it least.
"""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Any

from ringdove.cli.output import watched

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Cell = tuple[dict[str, Any], Callable[[], dict[str, Any]]]


def in_turns(label: str, cells: Sequence[Cell], rounds: int) -> list[dict[str, Any]]:
    """A row for each cell: what it is, and what it answers in the round of its highest rate."""
    found: list[list[dict[str, Any]]] = [[] for _ in cells]
    for number in watched(range(rounds * len(cells)), label):
        at = number % len(cells)
        found[at].append(cells[at][1]())
    return [
        {**what, **max(rows, key=itemgetter("per_s"))}
        for (what, _), rows in zip(cells, found, strict=True)
    ]
