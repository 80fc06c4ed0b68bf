"""Exactly once from queue to queue through Spark, whatever is killed on the way (S1).

Every message is counted and hashed at both ends.
"""

import hashlib
import os
import signal
import subprocess
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

import ringdove
from server.running import ServerProcess, wait_for
from spark.job import ROWS_PER_TRIGGER, start
from spark.standalone import Standalone

COUNT = 3 * ROWS_PER_TRIGGER + 1_234
JOB = Path(__file__).with_name("job.py")


class Job:
    """The job in a process of its own, begun as often as it must be."""

    def __init__(self, server, directory, master):
        self.checkpoint = directory / "checkpoint"
        self.trouble = self.checkpoint / "trouble"
        self._arguments = [master, server.url, str(self.checkpoint)]
        self._log = directory / "job.log"
        self.process = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process is not None and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)  # Its Java, too.
            self.process.wait()

    def start(self, *troubles):
        path = os.pathsep.join([str(JOB.parent.parent), os.environ.get("PYTHONPATH", "")])
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(JOB), *self._arguments, *troubles],
                env={**os.environ, "PYTHONPATH": path}, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip

    def end(self):
        """Wait until it has ended; answers its exit code."""
        return self.process.wait(timeout=240)

    def runs(self, *troubles):
        """Begin it, and see it through."""
        self.start(*troubles)
        assert self.end() == 0, self._log.read_text(errors="replace")[-5_000:]

    def wait_for(self, trouble):
        """Wait until a trouble has come."""

        def came():
            assert self.process.poll() is None, self._log.read_text(errors="replace")[-5_000:]
            return (self.trouble / trouble).exists()

        wait_for(came, f"the trouble {trouble!r}", 180)


@pytest.fixture
def server(tmp_path):
    with ServerProcess(tmp_path / "data") as running:
        with ringdove.connect(running.url) as rd:
            rd.create_queue("out", stripes=2)
            queue = rd.create_queue("in", stripes=2)
            for first in range(0, COUNT, 10_000):
                last = min(COUNT, first + 10_000)
                queue.send_many([message(n) for n in range(first, last)])
        yield running


def message(number):
    return b"%d %s" % (number, hashlib.sha256(b"%d" % number).hexdigest().encode())


def check(server):
    """Every message that went in came out, once and whole."""
    with ringdove.connect(server.url) as rd:
        found = Counter(m.body for m in rd.queue("out").replay())
    expected = Counter(message(n) for n in range(COUNT))
    assert sum(found.values()) == COUNT
    assert found == expected


def test_tasks_fail_when_they_are_done_and_the_driver_dies_within_the_sink_s_commit(
    server, tmp_path
):
    with Job(server, tmp_path, "local[2,4]") as job:
        job.start("tasks", "driver")
        assert job.end() == -signal.SIGKILL
        assert len(list(job.trouble.glob("tasks*"))) >= 2
        assert (job.trouble / "driver").exists()
        job.runs("tasks", "driver")
    check(server)


def test_the_server_is_killed_within_a_fetch(spark, server, tmp_path):
    assert spark.sparkContext.master == "local[2]"  # A task that fails is not tried again.
    checkpoint = tmp_path / "checkpoint"
    query = start(spark, server.url, str(checkpoint), "fetch")

    def came():
        assert query.isActive, query.exception()
        return (checkpoint / "trouble" / "fetch").exists()

    try:
        wait_for(came, "the first rows", 180)
        server.kill()
        (checkpoint / "trouble" / "fetch.done").touch()
        server.start()
        assert query.awaitTermination(240)
    finally:
        query.stop()
    check(server)


@pytest.mark.cluster
def test_everything_is_killed_on_a_cluster(server, tmp_path):
    (tmp_path / "spark").mkdir()
    cluster = Standalone(tmp_path / "spark", 2)
    with closing(cluster), Job(server, tmp_path, cluster.url) as job:
        job.start("fetch", "tasks", "driver")
        job.wait_for("fetch")
        cluster.kill_executor()
        server.kill()
        (job.trouble / "fetch.done").touch()
        server.start()
        assert job.end() == -signal.SIGKILL
        assert {"fetch", "driver"} <= {found.name for found in job.trouble.iterdir()}
        job.runs("fetch", "tasks", "driver")
    check(server)
