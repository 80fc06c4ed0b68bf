"""Replications: the same simulation with many seeds, and what their results say together.

Runs fan out over processes; the results are the same in any number of them, because each run's
chance comes from its own seed. Intervals are Student's, from the means of the replications, which
are independent and nearly normal.
"""

from __future__ import annotations

import math
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from statistics import NormalDist, fmean, stdev
from typing import TYPE_CHECKING, Any, TypeVar

from ringdove.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Figures = dict[str, float]

S = TypeVar("S")

#: Runs that a process is handed at once, at most.
_CHUNK = 8


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean with the half-width of its confidence interval."""

    mean: float
    half: float

    def covers(self, value: float) -> bool:
        """Whether a value lies within the interval."""
        return abs(value - self.mean) <= self.half


def fan_out(
    function: Callable[[S, int], Figures],
    grid: Sequence[S],
    seeds: Sequence[int],
    processes: int | None = None,
) -> list[list[Figures]]:
    """Results of a function for every point and seed, by point; in processes, one for each core.

    The function must be one that other processes can import.
    """
    calls = [(point, seed) for point in grid for seed in seeds]
    count = min(processes or os.cpu_count() or 1, len(calls))
    if count <= 1:
        found = [function(point, seed) for point, seed in calls]
    else:
        context = multiprocessing.get_context("spawn")
        chunk = max(1, min(_CHUNK, len(calls) // (4 * count)))
        others = multiprocessing.active_children()
        pool = ProcessPoolExecutor(count, context)
        try:
            found = list(pool.map(function, *zip(*calls, strict=True), chunksize=chunk))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in multiprocessing.active_children():
                if worker not in others:
                    worker.terminate()  # Nobody waits for what it is at.
            raise
        pool.shutdown()
    each = len(seeds)
    return [found[at : at + each] for at in range(0, len(found), each)]


def estimate(values: Sequence[float], confidence: float = 0.95, together: int = 1) -> Estimate:
    """The mean of replications; `together` such intervals hold at once with this confidence.

    That is Bonferroni's bound: each of them is made as wide as a confidence of 1 - (1 -
    confidence) / together asks for.
    """
    if len(values) < 2:
        raise InvalidArgument(f"{len(values)} replications give no interval; run two or more.")
    share = 1 - (1 - confidence) / together / 2
    half = student(share, len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return Estimate(fmean(values), half)


def estimates(runs: Sequence[dict[str, Any]], confidence: float = 0.95) -> dict[str, Estimate]:
    """Every figure of several runs."""
    return {name: estimate([run[name] for run in runs], confidence) for name in runs[0]}


def student(share: float, freedom: int) -> float:
    """The quantile of Student's distribution: Fisher's expansion around the normal one.

    Right to three digits from five degrees of freedom on.
    """
    z = NormalDist().inv_cdf(share)
    terms = [
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92_160,
    ]
    return sum(term / math.pow(freedom, power) for power, term in enumerate(terms))
