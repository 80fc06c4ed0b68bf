"""How far Spark's jobs are, told while they run."""

from __future__ import annotations

import threading
import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark import SparkContext

    #: Called with how many tasks are done, and how many are known of.
    OnProgress = Callable[[int, int], None]

_PAUSE_S = 0.2


@contextmanager
def watching(context: SparkContext, on_progress: OnProgress | None) -> Iterator[None]:
    """Tell how far the jobs are that this thread starts within the block."""
    if on_progress is None:
        yield
        return
    group = f"ringdove-{uuid.uuid4()}"
    context.setJobGroup(group, "ringdove", interruptOnCancel=True)
    ended = threading.Event()
    watcher = threading.Thread(target=_watch, args=(context, group, on_progress, ended))
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()
        context._jsc.sc().clearJobGroup()  # noqa: SLF001  Python has no word for it


def _watch(
    context: SparkContext, group: str, on_progress: OnProgress, ended: threading.Event
) -> None:
    last = False
    while not last:
        last = ended.wait(_PAUSE_S)  # Once more at the end, so that the last word is true.
        on_progress(*_tasks(context, group))


def _tasks(context: SparkContext, group: str) -> tuple[int, int]:
    tracker = context.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
    numbers = {number for job in jobs if job is not None for number in job.stageIds}
    stages = [stage for stage in map(tracker.getStageInfo, numbers) if stage is not None]
    return sum(s.numCompletedTasks for s in stages), sum(s.numTasks for s in stages)
