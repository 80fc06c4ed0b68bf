"""Simulations with many seeds, fanned out: over the processes of this machine, or over Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from ringdove.errors import InvalidArgument
from ringdove.models.replications import fan_out

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Results = list[list[dict[str, Any]]]

S = TypeVar("S")


def replicate(
    function: Callable[[S, int], dict[str, float]],
    grid: Sequence[S],
    seeds: Sequence[int],
    *,
    spark: bool = False,
) -> Results:
    """Results by point, in the order of the seeds; the same numbers either way."""
    return _on_spark(function, grid, seeds) if spark else fan_out(function, grid, seeds)


def _on_spark(
    function: Callable[[S, int], dict[str, float]], grid: Sequence[S], seeds: Sequence[int]
) -> Results:
    try:
        from ringdove.spark.session import session
        from ringdove.spark.sweep import sweep
    except ImportError as error:
        raise InvalidArgument("--spark needs Spark: pip install 'ringdove[spark]'.") from error

    def call(point: S, seed: int) -> dict[str, float]:
        return function(point, seed)  # Whatever the function calls its first parameter.

    points = [{"point": point} for point in grid]
    outcomes = sweep(call, points, seeds=seeds, spark=session())
    for outcome in outcomes:
        if outcome.failure is not None:
            raise InvalidArgument(f"A run failed: {outcome.failure.error}")
    each = len(seeds)
    found = [outcome.result for outcome in outcomes]
    return [found[at : at + each] for at in range(0, len(found), each)]
