"""A streaming job from queue `in` to queue `out`, with trouble on the way.

It runs in a session that there is (`start`), or as a program of its own:

    python job.py MASTER URL CHECKPOINT TROUBLE...

Each trouble comes once, and leaves a file of its name in CHECKPOINT/trouble when it does:

    driver      the driver is killed within the sink's commit of the third batch
    tasks       every task of the second batch fails when it has written everything
    fetch       the first task waits within its rows until somebody makes the file `fetch.done`
"""

import os
import signal
import sys
import time
from pathlib import Path

from ringdove.spark.session import session
from ringdove.spark.source import RingdoveSource
from ringdove.spark.writing import StreamWriter
from spark.conftest import QUICK

ROWS_PER_TRIGGER = 60_000
ROWS_PER_PARTITION = 20_000


def main(master, url, checkpoint, *troubles):
    spark = session(master, {**QUICK, "spark.executor.memory": "512m"})
    start(spark, url, checkpoint, *troubles).awaitTermination()
    spark.stop()


def start(spark, url, checkpoint, *troubles):
    """Begin the query of the job in a session; answers it."""
    place = Path(checkpoint, "trouble")
    place.mkdir(parents=True, exist_ok=True)
    victims = [spark._jvm.java.lang.ProcessHandle.current().pid(), os.getpid()]

    def comes(trouble, name=""):
        """Whether a trouble comes now: once, and only if it was asked for."""
        if trouble not in troubles:
            return False
        try:
            (place / f"{trouble}{name}").touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    class TroubledWriter(StreamWriter):
        def write(self, iterator):
            written = super().write(iterator)
            claim = self.claim()
            if claim.batch == 1 and comes("tasks", str(claim.partition)):
                raise RuntimeError("this task fails although it has written everything")
            return written

        def commit(self, messages, batchId):  # noqa: N803  Spark's name
            if batchId == 2 and comes("driver"):
                for victim in victims:
                    os.kill(victim, signal.SIGKILL)

    class TroubledSource(RingdoveSource):
        @classmethod
        def name(cls):
            return "troubled"

        def streamWriter(self, schema, overwrite):  # noqa: N802  Spark's name
            return TroubledWriter(self._options)

    def pass_on(batches):
        for batch in batches:
            if comes("fetch"):
                deadline_s = time.monotonic() + 60
                while not (place / "fetch.done").exists() and time.monotonic() < deadline_s:
                    time.sleep(0.01)
            yield batch

    spark.dataSource.register(TroubledSource)
    rows = {"rowsPerTrigger": str(ROWS_PER_TRIGGER), "rowsPerPartition": str(ROWS_PER_PARTITION)}
    return (
        spark.readStream.format("ringdove")
        .options(url=url, queue="in", columns="body", **rows)
        .load()
        .mapInArrow(pass_on, "body binary")
        .writeStream.format("troubled")
        .options(url=url, queue="out", checkpointLocation=checkpoint)
        .trigger(availableNow=True)
        .start()
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
