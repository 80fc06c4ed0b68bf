"""Sweeps: a function over a grid of parameters and seeds, on Spark or on the cores of this machine.

    from ringdove.spark.sweep import sweep

    outcomes = sweep(simulate, {"rate": [10, 20], "threads": [4, 8]}, seeds=20)

The function is called with each point's parameters by name, and with `seed`. What it answers must
follow from them alone; then the outcomes are the same wherever it runs, in the order of the grid.
A call that fails becomes an outcome with its error; the others go on. Functions of scripts and
notebooks, lambdas and closures will do: they travel by value (cloudpickle).
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import product
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeAlias

from ringdove.errors import InvalidArgument
from ringdove.spark.apart import Apart, Died, dumps, loads
from ringdove.spark.watching import watching

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

#: Values by name, all of which are combined, the last name varying fastest; or points one by one.
Grid: TypeAlias = Mapping[str, Iterable[Any]] | Iterable[Mapping[str, Any]]

#: Tasks of a sweep at most; beyond it, tasks have several points.
_TASKS_MAX = 10_000


@dataclass(frozen=True, slots=True)
class Failure:
    """Why there is no result."""

    #: The exception's type and text.
    error: str
    traceback: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one point."""

    point: dict[str, Any]
    #: What the function answered; None if it failed.
    result: Any
    failure: Failure | None = None


def sweep(
    function: Callable[..., Any],
    grid: Grid,
    *,
    seeds: int | Iterable[int] | None = None,
    spark: SparkSession | None = None,
    processes: int | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> list[Outcome]:
    """Call the function at every point; answers the outcomes in the order of `points`.

    With `spark` the points are spread over its cores, else over `processes` of this machine, by
    default one per core. `seeds` is how many, or which; None: the function takes no seed.
    `on_progress` is told how many of how many are done.
    """
    if processes is not None and processes < 1:
        raise InvalidArgument(f"processes is {processes}; it must be above 0, or None.")
    todo = points(grid, seeds)
    if not todo:
        return []
    pickled = dumps(function)
    if spark is not None:
        return _on_spark(spark, pickled, todo, on_progress)
    count = min(len(todo), processes or os.cpu_count() or 1)
    return _on_processes(count, pickled, todo, on_progress)


def points(grid: Grid, seeds: int | Iterable[int] | None = None) -> list[dict[str, Any]]:
    """The points of a grid in order, each with every seed."""
    if isinstance(grid, Mapping):
        for name, values in grid.items():
            if isinstance(values, str | bytes) or not isinstance(values, Iterable):
                raise InvalidArgument(f"Values of {name!r} are {values!r}; give a list of values.")
        bare = [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]
    else:
        bare = [dict(point) for point in grid]
    if seeds is None:
        return bare
    chosen = range(seeds) if isinstance(seeds, int) else list(seeds)
    if any("seed" in point for point in bare):
        raise InvalidArgument("The grid has a parameter 'seed', and seeds are given, too.")
    return [{**point, "seed": seed} for point in bare for seed in chosen]


def attempt(pickled: bytes, point: dict[str, Any]) -> bytes:
    """One call, and its outcome as bytes: a result that cannot travel is a failure, too.

    Each call has a function of its own, so that none finds what another has left in it.
    """
    try:
        return dumps((loads(pickled)(**point), None))
    except Exception as error:  # noqa: BLE001  told as the point's outcome
        text = "".join(traceback.format_exception_only(error)).strip()
        return dumps((None, Failure(text, traceback.format_exc())))


def _outcome(point: dict[str, Any], answer: bytes) -> Outcome:
    return Outcome(point, *loads(answer))


# -- on Spark -------------------------------------------------------------------------------------


def _on_spark(
    spark: SparkSession,
    pickled: bytes,
    todo: Sequence[dict[str, Any]],
    on_progress: Callable[[int, int], None] | None,
) -> list[Outcome]:
    context = spark.sparkContext
    tasks = min(len(todo), _TASKS_MAX)
    shipped = context.broadcast(pickled)

    def run(given: Iterable[bytes]) -> Iterator[bytes]:
        return (attempt(shipped.value, loads(point)) for point in given)

    def tell(done: int, _: int) -> None:
        if on_progress is not None:
            on_progress(done * len(todo) // tasks, len(todo))

    try:
        with watching(context, tell if on_progress else None):
            given = context.parallelize([dumps(point) for point in todo], tasks)
            answers = given.mapPartitions(run).collect()
    finally:
        shipped.unpersist()
    return [_outcome(point, answer) for point, answer in zip(todo, answers, strict=True)]


# -- on this machine ------------------------------------------------------------------------------


def _on_processes(
    count: int,
    pickled: bytes,
    todo: Sequence[dict[str, Any]],
    on_progress: Callable[[int, int], None] | None,
) -> list[Outcome]:
    with ExitStack() as stack:
        idle: SimpleQueue[Apart] = SimpleQueue()
        for _ in range(count):
            idle.put(stack.enter_context(Apart()))

        def run(point: dict[str, Any]) -> bytes:
            worker = idle.get()
            try:
                answer: bytes = worker.call(attempt, pickled, point)
            except Died as error:
                answer = dumps((None, Failure(str(error), "")))
            finally:
                idle.put(worker)
            return answer

        pool = stack.enter_context(ThreadPoolExecutor(count))
        outcomes = []
        for point, answer in zip(todo, pool.map(run, todo), strict=True):
            outcomes.append(_outcome(point, answer))
            if on_progress is not None:
                on_progress(len(outcomes), len(todo))
    return outcomes
