"""Simulations with many seeds, fanned out: over the processes of this machine, or over Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from ringdove.models.replications import fan_out

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

S = TypeVar("S")


def replicate(
    function: Callable[[S, int], dict[str, float]],
    grid: Sequence[S],
    seeds: Sequence[int],
    *,
    spark: bool = False,
) -> list[list[dict[str, Any]]]:
    """Results by point, in the order of the seeds; the same numbers either way."""
    if not spark:
        return fan_out(function, grid, seeds)
    raise NotImplementedError
